//! The ends of handlers, and what becomes of their events.

use std::time::{Duration, Instant};

use chrono::Utc;

use super::places::Place;
use super::recording::Then;
use super::{Closing, Pool};
use crate::error::Result;
use crate::files::log::log;
use crate::model::figures::Figures;
use crate::model::ledger::EventWait;
use crate::model::run::{BAD_EVENT, ERROR_KEPT, Exit, NOT_NOW, Run, RunResult, STOPPED, end_of};
use crate::run::dispatch;
use crate::run::handler::Running;
use crate::run::settle::Failed;
use crate::store::DeadLetterUpdate;

impl Pool<'_, '_> {
    /// A handler has ended.
    pub(super) fn place_ended(&mut self, at: usize, exit: Exit) -> Result<()> {
        let is_pool = self.is_pool();
        let place = &mut self.places[at];
        let (after, closing) = (place.began.1.elapsed(), place.closing);
        if place.pipes.is_some() {
            place.running.kill_rest();
        }
        if is_pool {
            place.release();
        } else {
            self.supervisor.guard.release();
        }
        if !self.is_void() {
            // Others may have finished its events, or asked for a stop. It may have gone to sleep.
            self.look_again()?;
        }
        let mut place = self.places.remove(at);
        place.closing = closing;
        let exit = if place.has_timed_out { Exit::TimedOut } else { exit };
        if place.pipes.is_some() {
            // What it was not handed out costs no attempt.
            for id in std::mem::take(&mut place.held).into_keys() {
                place.take_back(id, &mut self.window);
            }
            self.kept_ended(place, exit, after)
        } else {
            self.run_ended(place, exit, after)
        }
    }

    /// The consumer stalls.
    pub(super) fn stall(&mut self, why: String) {
        self.stalls = Some(why);
        if self.closing.is_none() {
            self.close(Closing::Stalled);
        }
    }

    /// An event was handled.
    pub(super) fn succeeded(&mut self) {
        self.tally.success();
        self.is_probe = false;
        if self.is_pool() && matches!(self.then, Then::Wait(_)) {
            self.then = Then::Idle;
        }
    }

    /// Whether another handler may be started now.
    pub(super) fn may_start(&self) -> bool {
        if self.starts_after.is_some_and(|after| Instant::now() < after) {
            return false;
        }
        match self.then {
            Then::Wait(until) => until <= self.now(),
            Then::Idle => true,
            Then::Stall(_) => false,
        }
    }

    /// Whether a stop of the consumer was asked for.
    fn is_stopped(&self) -> bool {
        !self.is_void() && self.current.state.stop.is_some()
    }

    /// How a run failed at its only event.
    fn failed(&self, exit: Exit, error: String) -> Failed {
        let counts = exit != Exit::Code(NOT_NOW);
        let judged = exit == Exit::Code(BAD_EVENT);
        Failed { exit, counts, judged, delay: None, error, at: self.now(), took: None }
    }

    /// A handler that was kept has ended.
    fn kept_ended(&mut self, place: Place, exit: Exit, after: Duration) -> Result<()> {
        let Place { mut running, number, given, dead, began, answered, closing, is_interrupted, .. } = place;
        let (supervisor, consumer) = (self.supervisor, self.supervisor.consumer);
        let output = running.last_output();
        let (_, span) = running.finish(exit, after);
        let mut left: Vec<i64> = given.into_keys().filter(|id| Some(*id) != dead).collect();
        left.retain(|id| self.window.has_given(*id));
        self.window.ended(&left);
        let unanswered = left.len() + usize::from(dead.is_some());
        let closing = closing.map(|(why, _)| why);
        let is_stopped = self.is_stopped();
        // However it ends then, it was asked to, or could not go on.
        let interrupted = matches!(closing, Some(Closing::Asked | Closing::Paused))
            || supervisor.shutdown.requests() > 0
            || supervisor.was_cut(exit)
            || is_interrupted;
        let cannot_run = matches!(exit, Exit::Code(126 | 127)) && answered == 0;
        let is_deferred = exit == Exit::Code(NOT_NOW);
        let is_cut_short = is_stopped || interrupted;
        if let Some(event_id) = dead {
            self.window.drop_taken(event_id);
            if !is_cut_short && !is_deferred {
                let (error, at) = (end_of(&output, ERROR_KEPT).to_owned(), Utc::now());
                self.tally.figures.failed(true, None);
                self.dead_letters.push(DeadLetterUpdate::FailedAgain { event_id, exit, error, at });
            }
        }
        let mut then = Then::Idle;
        if is_stopped {
            if self.current.state.stop.is_some_and(|stop| stop.skip) {
                left.drain(..).for_each(|id| self.window.finish(id));
            }
            then = Then::Stall(STOPPED.to_owned());
        } else if let Some(why) = self.stalls.clone().filter(|_| closing == Some(Closing::Stalled)) {
            then = Then::Stall(why);
        } else if interrupted || self.is_void() {
            // It costs no attempt.
        } else if cannot_run && supervisor.lease.is_some() {
            dispatch::leave_to_others(supervisor.files, consumer);
            self.close(Closing::Asked);
        } else if cannot_run {
            let code = exit.code().unwrap_or_default();
            then = Then::Stall(format!("the handler cannot be run (exit {code})"));
        } else if !left.is_empty() {
            let oldest = left.remove(0);
            let judged = Failed { judged: false, ..self.failed(exit, output.clone()) };
            self.fail(oldest, judged);
            if let Some(why) = self.stalls.clone() {
                then = Then::Stall(why);
            } else if let Some(wait) = self.window.ledger().waits().get(&oldest)
                && (answered == 0 || is_deferred)
            {
                // A handler that ends without any answer is not started again and again.
                then = Then::Wait(wait.until);
            }
        }
        left.into_iter().for_each(|id| self.window.give_back(id));
        if matches!(then, Then::Idle) && !is_cut_short {
            // A dead letter that was put off is still due, but not at once.
            if dead.is_some() && is_deferred {
                let wait = self.put_off_dead_letter();
                if !self.is_pool() {
                    then = Then::Wait(self.now() + wait);
                }
            } else if let Some(after) = self.dead_after.filter(|_| !self.is_pool()) {
                let left = after.saturating_duration_since(Instant::now());
                then = Then::Wait(self.now() + left.min(self.current.options.wait_after(1)));
            }
        }
        let result = match exit {
            _ if is_stopped => RunResult::Stopped,
            Exit::Code(0) if unanswered == 0 => RunResult::Succeeded,
            _ if interrupted || self.is_void() => RunResult::Interrupted,
            Exit::Code(NOT_NOW) => RunResult::Deferred,
            Exit::TimedOut => RunResult::TimedOut,
            Exit::Unknown => RunResult::Unknown,
            Exit::Code(_) | Exit::Signal(_) => RunResult::Failed,
        };
        let upto = self.window.ledger().cursor();
        let now = Utc::now();
        self.runs.push(Run {
            number: 0,
            began: began.0,
            ended: now,
            attempt: 1,
            events: Some(answered),
            upto,
            result,
            exit: exit.code(),
            output: span,
            host: None,
            tail: result.tail(&output),
        });
        self.tally.ended(began.0, now, exit, result == RunResult::Succeeded);
        let at = self.at_place(number);
        log!(
            supervisor.files,
            Info,
            "dispatch: consumer={consumer}{at} ended {exit} after={:.1}s acked={upto} unanswered={unanswered}",
            after.as_secs_f64()
        );
        self.changed.get_or_insert_with(Instant::now);
        self.goes_on(then);
        Ok(())
    }

    /// What the consumer does after the end of a handler.
    fn goes_on(&mut self, then: Then) {
        if let Then::Stall(why) = &then {
            self.stall(why.clone());
        }
        let now = self.now();
        let stays = match (&self.then, &then) {
            (Then::Stall(_), _) => true,
            (Then::Wait(until), Then::Idle) => *until > now,
            (Then::Wait(until), Then::Wait(other)) => until > other,
            (_, Then::Stall(_)) | (Then::Idle, _) => false,
        };
        if !stays {
            self.then = then;
        }
    }

    /// A dead letter was put off by the end of its handler. Returns for how long.
    fn put_off_dead_letter(&mut self) -> Duration {
        let before = self.deferred.max(self.current.state.deferred);
        self.deferred = before.saturating_add(1);
        let wait = self.current.options.wait_after(self.deferred);
        self.dead_after = Some(Instant::now() + wait);
        wait
    }

    fn at_place(&self, number: u32) -> String {
        if self.is_pool() { format!(" place={number}") } else { String::new() }
    }

    /// A run on stdin has ended.
    fn run_ended(&mut self, place: Place, exit: Exit, after: Duration) -> Result<()> {
        let Place { running, number, given, dead, began, attempt, began_with, is_interrupted, .. } = place;
        let (count, upto) = began_with;
        let (supervisor, consumer) = (self.supervisor, self.supervisor.consumer);
        let (output, span) = Running::finish(running, exit, after);
        let is_asleep = |id: &i64| self.current.state.asleep.contains_key(id);
        let slept = given.keys().chain(&dead).any(is_asleep) && exit != Exit::TimedOut;
        // It left a step unfinished, so that its exit code means nothing.
        let exit = if slept { Exit::Code(NOT_NOW) } else { exit };
        let mut events: Vec<i64> = given.into_keys().collect();
        events.retain(|id| self.window.has_given(*id));
        // When the machine shuts down, the handler gets its own TERM at the same time as this process.
        let terminated = supervisor.shutdown.requests() > 0 && exit == Exit::Signal(libc::SIGTERM);
        let interrupted = is_interrupted || terminated || supervisor.was_cut(exit);
        let is_stopped = self.is_stopped();
        let cannot_run = matches!(exit, Exit::Code(126 | 127));
        let letters = self.dead_letters.len();
        let mut then = Then::Idle;
        if let Some(event_id) = dead {
            self.window.drop_taken(event_id);
            let (error, at) = (end_of(&output, ERROR_KEPT).to_owned(), self.now());
            match exit {
                Exit::Code(0) => self.dead_letters.push(DeadLetterUpdate::Remove { event_id }),
                _ if is_stopped || interrupted => {}
                Exit::Code(NOT_NOW) => _ = self.put_off_dead_letter(),
                _ => self.dead_letters.push(DeadLetterUpdate::FailedAgain { event_id, exit, error, at }),
            }
        }
        if exit == Exit::Code(0) {
            self.succeeded();
            events.iter().for_each(|id| self.window.finish(*id));
        } else if is_stopped && self.current.state.stop.is_some_and(|stop| stop.skip) {
            events.iter().for_each(|id| self.window.finish(*id));
        } else if is_stopped || interrupted {
            // It costs no attempt.
            events.iter().for_each(|id| self.window.give_back(*id));
        } else if self.is_void() {
            self.tally.failure();
        } else if cannot_run {
            events.iter().for_each(|id| self.window.give_back(*id));
            if supervisor.lease.is_some() {
                dispatch::leave_to_others(supervisor.files, consumer);
                self.close(Closing::Asked);
            } else {
                let code = exit.code().unwrap_or_default();
                then = Then::Stall(format!("the handler cannot be run (exit {code})"));
            }
        } else {
            self.events_failed(&events, count == 1, exit, output.clone());
        }
        if is_stopped {
            then = Then::Stall(STOPPED.to_owned());
        }
        let is_dead = dead.is_some() || self.dead_letters.len() > letters;
        let result = match exit {
            _ if is_stopped => RunResult::Stopped,
            Exit::Code(0) => RunResult::Succeeded,
            _ if interrupted || self.is_void() => RunResult::Interrupted,
            Exit::Code(NOT_NOW) => RunResult::Deferred,
            _ if is_dead => RunResult::Dead,
            Exit::TimedOut => RunResult::TimedOut,
            Exit::Unknown => RunResult::Unknown,
            Exit::Code(_) | Exit::Signal(_) => RunResult::Failed,
        };
        let now = self.now();
        let finished = events.len() + usize::from(dead.is_some());
        self.end_run(
            Run {
                number: 0,
                began: began.0,
                ended: now,
                attempt,
                events: Some(count as u64),
                upto,
                result,
                exit: exit.code(),
                output: span,
                host: None,
                tail: result.tail(&output),
            },
            finished,
        );
        self.tally.ended(began.0, now, exit, result == RunResult::Succeeded);
        let (at, acked) = (self.at_place(number), self.window.ledger().cursor());
        let cut = if interrupted { " interrupted" } else { "" };
        log!(
            supervisor.files,
            Info,
            "dispatch: consumer={consumer}{at} ended {exit} after={:.1}s acked={acked}{cut}",
            after.as_secs_f64()
        );
        self.changed.get_or_insert_with(Instant::now);
        self.goes_on(then);
        Ok(())
    }

    /// Notes and counts a run on stdin, which has finished so many events if it has succeeded.
    fn end_run(&mut self, run: Run, finished: usize) {
        let events = Some(finished as u64);
        self.tally.figures += &Figures::of_run(&Run { events, ..run.clone() });
        self.runs.push(run);
    }

    /// A run failed at these events. `was_alone`: it had no others.
    fn events_failed(&mut self, events: &[i64], was_alone: bool, exit: Exit, output: String) {
        match events {
            [] => {}
            [id] if was_alone => {
                let failed = self.failed(exit, output);
                self.fail_in_run(*id, failed);
            }
            _ if exit == Exit::Code(NOT_NOW) => {
                for id in events {
                    let failed = self.failed(exit, output.clone());
                    self.fail_in_run(*id, failed);
                }
            }
            _ => {
                // Attempts of an event count from its first run alone. If the batch is sound, its events are judged one
                // by one at once.
                self.tally.failure();
                let since = self.now();
                let judged = exit == Exit::Code(BAD_EVENT);
                let until = if judged { since } else { since + self.current.options.wait_after(1) };
                for id in events {
                    let (attempts, _) = self.window.tried(*id);
                    self.window.wait(*id, EventWait { attempts, since, until, ..EventWait::default() });
                }
            }
        }
    }

    /// The supervisor of a run was killed, and no process of the run is left. How it ended is not known.
    pub(super) fn abandoned(&mut self, mut events: Vec<i64>) {
        events.retain(|id| {
            let is_dead = self.window.ledger().claims().get(id).is_some_and(|claim| claim.is_dead_letter);
            // It is still to be tried once more.
            if is_dead {
                self.window.drop_taken(*id);
            }
            !is_dead
        });
        self.changed.get_or_insert_with(Instant::now);
        if events.is_empty() {
            return;
        }
        if self.is_kept() {
            self.window.ended(&events);
            events.drain(1..).for_each(|id| self.window.give_back(id));
        }
        let claims = self.window.ledger().claims();
        let began = events.iter().filter_map(|id| Some(claims.get(id)?.since)).min();
        let (now, attempt) = (
            self.now(),
            match events[..] {
                [id] => self.window.tried(id).0.saturating_add(1),
                _ => 1,
            },
        );
        let letters = self.dead_letters.len();
        self.events_failed(&events, events.len() == 1, Exit::Unknown, String::new());
        let is_dead = self.dead_letters.len() > letters;
        let began = began.unwrap_or(now).min(now);
        self.end_run(
            Run {
                number: 0,
                began,
                ended: now,
                attempt,
                events: Some(events.len() as u64),
                upto: events.last().copied().unwrap_or(0),
                result: if is_dead { RunResult::Dead } else { RunResult::Unknown },
                exit: None,
                output: None,
                host: None,
                tail: None,
            },
            0,
        );
        self.tally.ended(began, now, Exit::Unknown, false);
        self.changed.get_or_insert_with(Instant::now);
    }
}
