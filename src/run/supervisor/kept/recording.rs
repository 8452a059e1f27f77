//! Storing answers, and the end of a run.

use std::time::{Duration, Instant};

use chrono::Utc;

use super::{COLLECT, Closing, Desk, SYNC_EVERY, Supervisor, open};
use crate::error::Result;
use crate::files::log::{Quoted, log};
use crate::model::run::{Exit, NOT_NOW, Phase, Run, RunResult, RunState, STOPPED};
use crate::model::subscription::Subscription;
use crate::model::time::Time;
use crate::model::window::Window;
use crate::queue::Queue;
use crate::run::handler::Running;
use crate::run::settle::{Failed, Tally, fail};
use crate::run::{control, dispatch};
use crate::store::{DeadLetterUpdate, RunUpdate};

/// What the consumer does after a run.
enum Then {
    Idle,
    Wait(Time),
    Stall(String),
}

impl Supervisor<'_> {
    /// The state of a consumer whose handler was kept, and whose supervisor was killed. What the handler had is not
    /// known; if it had finished nothing, the oldest event that is pending has used an attempt.
    pub(in crate::run::supervisor) fn record_abandoned_kept(
        &self,
        queue: &mut Queue,
        subscription: &Subscription,
    ) -> Result<Option<Subscription>> {
        let first = queue.scan_pending(subscription, None).ok().and_then(|scan| scan.first);
        let size = usize::try_from(subscription.options.batch_size).unwrap_or(usize::MAX);
        let mut window = Window::new(queue.store.ledger(self.consumer)?, size, subscription.single_upto());
        if let Some(id) = first {
            window.found(id);
            window.give_again(id);
        }
        let mut update = RunUpdate::state(subscription.state.idle());
        let mut stalls = None;
        if subscription.last_acked_id == subscription.state.start_cursor {
            let mut tally = Tally::default();
            let failed = Failed {
                exit: Exit::Unknown,
                counts: true,
                judged: false,
                delay: None,
                error: String::new(),
                at: Utc::now(),
            };
            if let Some(id) = first {
                stalls = fail(
                    &mut window,
                    &mut tally,
                    subscription,
                    id,
                    failed,
                    &mut update.dead_letters,
                    &mut update.runs,
                );
            }
            update.state = tally.applied_to(&update.state);
        }
        window.ended();
        let (now, reached) = (Utc::now(), subscription.state.start_newest);
        update.state.single_upto =
            window.single_upto().max(reached.min(first.unwrap_or(0).saturating_add(1000)));
        update.state.ended = Some(now);
        update.state.last_exit = Some(Exit::Unknown);
        if let Some(why) = stalls {
            update.state.start_newest = queue.store.newest()?;
            update.state = update.state.stalled(&why);
        }
        update.runs.push(Run {
            began: subscription.state.since.unwrap_or(now),
            ended: now,
            attempt: 1,
            events: None,
            upto: window.ledger().cursor(),
            result: RunResult::Unknown,
            exit: None,
            output: None,
        });
        update.ledger = window.changes().to_vec();
        update.durable = true;
        queue.store.update_run(subscription, &update)
    }
}

impl Desk<'_, '_> {
    /// Takes over what is stored. Returns false if the run is over for the store: the subscription or the cursor was
    /// changed, or another process has recorded its end.
    pub(super) fn accept(&mut self, now: Option<Subscription>) -> Result<bool> {
        let Some(now) = now else { return Ok(false) };
        let is_ours = now.is_same(&self.current)
            && now.rewinds == self.current.rewinds
            && now.state.phase == Phase::Running
            && now.state.supervisor == self.current.state.supervisor;
        if !is_ours {
            return Ok(false);
        }
        if now.revision != self.current.revision || now.last_acked_id != self.current.last_acked_id {
            let supervisor = self.supervisor;
            let queue = open(supervisor, &mut self.queue)?;
            let ledger = supervisor.retrying(|| queue.store.ledger(supervisor.consumer))?;
            self.window.reload(ledger);
            self.is_exhausted = false;
        }
        self.current = now;
        Ok(true)
    }

    /// Stores what has been collected long enough.
    pub(super) fn store_when_due(&mut self) -> Result<()> {
        if self.changed.is_some_and(|since| since.elapsed() >= COLLECT) {
            self.store()?;
        }
        Ok(())
    }

    /// Stores what has changed.
    pub(super) fn store(&mut self) -> Result<()> {
        if self.changed.is_none() {
            return Ok(());
        }
        let durable = self.unsynced.is_some_and(|since| since.elapsed() >= SYNC_EVERY);
        let state =
            RunState { start_newest: self.window.reached(), ..self.tally.applied_to(&self.current.state) };
        self.record(state, durable)
    }

    /// Makes what is stored survive a power cut.
    pub(super) fn sync(&mut self) -> Result<()> {
        match self.unsynced {
            Some(_) => self.record(self.current.state.clone(), true),
            None => Ok(()),
        }
    }

    /// Records a state with all that has changed.
    pub(super) fn record(&mut self, mut state: RunState, durable: bool) -> Result<()> {
        let supervisor = self.supervisor;
        while !self.is_void() {
            let update = RunUpdate {
                state: state.clone(),
                ledger: self.window.changes().to_vec(),
                dead_letters: self.dead_letters.clone(),
                runs: self.runs.clone(),
                durable,
                ..RunUpdate::default()
            };
            let queue = open(supervisor, &mut self.queue)?;
            let recorded = supervisor.retrying(|| queue.store.update_run(&self.current, &update))?;
            if let Some(now) = recorded {
                self.current = now;
                self.unsynced = if durable { None } else { self.unsynced.or_else(|| Some(Instant::now())) };
                break;
            }
            let now = supervisor.retrying(|| queue.store.subscription(supervisor.consumer))?;
            if !self.accept(now)? {
                self.closing = Some((Closing::Void, Instant::now()));
            }
            state = RunState {
                start_newest: self.window.reached(),
                ..self.tally.applied_to(&self.current.state)
            };
        }
        self.log_dead_letters();
        self.window.stored();
        self.runs.clear();
        self.tally = Tally::default();
        self.changed = None;
        Ok(())
    }

    /// Says which events became dead letters, once that is stored.
    fn log_dead_letters(&mut self) {
        let consumer = self.supervisor.consumer;
        for letter in std::mem::take(&mut self.dead_letters) {
            if let DeadLetterUpdate::Insert { event_id, attempts, .. } = letter {
                log!(
                    self.supervisor.files,
                    Warn,
                    "dispatch: consumer={consumer} id={event_id} is a dead letter attempts={attempts}"
                );
            }
        }
    }

    /// Records the end of the run.
    pub(super) fn ended(mut self, mut running: Running, exit: Exit, after: Duration) -> Result<()> {
        let supervisor = self.supervisor;
        let consumer = supervisor.consumer;
        let output = running.last_output();
        let (_, span) = running.finish(exit, after);
        if !self.is_void() {
            // Others may have finished events, or asked for a stop.
            let queue = open(supervisor, &mut self.queue)?;
            let now = supervisor.retrying(|| queue.store.subscription(consumer))?;
            if !self.accept(now)? {
                self.closing = Some((Closing::Void, Instant::now()));
            }
        }
        let mut left = self.window.ended();
        let unanswered = left.len() + usize::from(self.dead.is_some());
        let closing = self.closing.map(|(why, _)| why);
        let is_stopped = closing != Some(Closing::Void) && self.current.state.stop.is_some();
        // However it ends then, it was asked to, or could not go on.
        let interrupted = closing == Some(Closing::Asked)
            || supervisor.shutdown.requests() > 0
            || supervisor.was_cut(exit)
            || self.is_unguarded;
        let mut then = Then::Idle;
        let cannot_run = matches!(exit, Exit::Code(126 | 127));
        let is_deferred = exit == Exit::Code(NOT_NOW);
        let is_cut_short = is_stopped || interrupted;
        if let Some(dead) = self.dead.filter(|_| !is_cut_short && !is_deferred) {
            let (event_id, error, at) = (dead, output.clone(), Utc::now());
            self.dead_letters.push(DeadLetterUpdate::FailedAgain { event_id, exit, error, at });
        }
        if is_stopped {
            if self.current.state.stop.is_some_and(|stop| stop.skip) {
                left.iter().for_each(|id| self.window.finish(*id));
            }
            then = Then::Stall(STOPPED.to_owned());
        } else if closing == Some(Closing::Stalled) {
            then = Then::Stall(self.stalls.take().unwrap_or_default());
        } else if interrupted {
            // It costs no attempt.
        } else if cannot_run && self.answered == 0 && supervisor.lease.is_some() {
            dispatch::leave_to_others(supervisor.files, consumer);
        } else if cannot_run && self.answered == 0 {
            let code = exit.code().unwrap_or_default();
            then = Then::Stall(format!("the handler cannot be run (exit {code})"));
        } else if !left.is_empty() {
            let oldest = left.remove(0);
            let counts = !is_deferred;
            let at = self.now();
            let failed = Failed { exit, counts, judged: false, delay: None, error: output, at };
            self.fail(oldest, failed);
            if let Some(why) = self.stalls.take() {
                then = Then::Stall(why);
            } else if let Some(wait) = self.window.ledger().waits().get(&oldest)
                && (self.answered == 0 || !counts)
            {
                // A handler that ends without any answer is not started again and again.
                then = Then::Wait(wait.until);
            }
        }
        let options = &self.current.options;
        let mut deferred = 0;
        if matches!(then, Then::Idle) && !is_cut_short {
            // A dead letter that was put off is still due, but not at once.
            if self.dead.is_some() && is_deferred {
                deferred = self.current.state.deferred.saturating_add(1);
                then = Then::Wait(self.now() + options.wait_after(deferred));
            } else if let Some(after) = self.dead_after {
                let left = after.saturating_duration_since(Instant::now());
                then = Then::Wait(self.now() + left.min(options.wait_after(1)));
            }
        }
        let newest = match &then {
            _ if is_stopped => {
                let queue = open(supervisor, &mut self.queue)?;
                supervisor.retrying(|| queue.store.newest())?
            }
            // What came during the run is new.
            Then::Stall(_) => self.newest,
            Then::Idle | Then::Wait(_) => 0,
        };
        let result = match exit {
            _ if is_stopped => RunResult::Stopped,
            Exit::Code(0) if unanswered == 0 => RunResult::Succeeded,
            _ if interrupted || self.is_void() => RunResult::Interrupted,
            Exit::Code(NOT_NOW) => RunResult::Deferred,
            Exit::TimedOut => RunResult::TimedOut,
            Exit::Unknown => RunResult::Unknown,
            Exit::Code(_) | Exit::Signal(_) => RunResult::Failed,
        };
        let (now, began) = (Utc::now(), self.current.state.since.unwrap_or_default());
        self.runs.push(Run {
            began,
            ended: now,
            attempt: 1,
            events: Some(self.answered),
            upto: self.window.ledger().cursor(),
            result,
            exit: exit.code(),
            output: span,
        });
        log!(
            supervisor.files,
            Info,
            "dispatch: consumer={consumer} ended {exit} after={:.1}s acked={} unanswered={unanswered}",
            after.as_secs_f64(),
            self.window.ledger().cursor()
        );
        let finish = |desk: &Desk<'_, '_>| {
            let state = desk.tally.applied_to(&desk.current.state);
            let state = RunState {
                began: desk.current.state.since,
                ended: Some(now),
                last_exit: Some(exit),
                succeeded: state.succeeded + u64::from(result == RunResult::Succeeded),
                single_upto: desk.window.single_upto(),
                start_newest: desk.window.reached().max(newest),
                deferred,
                ..state.idle()
            };
            match &then {
                Then::Idle => state,
                Then::Wait(until) => {
                    RunState { phase: Phase::Waiting, since: Some(now), next_try: Some(*until), ..state }
                }
                Then::Stall(why) => state.stalled(why),
            }
        };
        if !self.is_void() && self.record_end(&finish)? {
            return Ok(());
        }
        self.record_void(now, exit)
    }

    /// Records the end of a run whose answers count no more. If the subscription was replaced, there is nothing to
    /// record.
    fn record_void(&mut self, now: Time, exit: Exit) -> Result<()> {
        let supervisor = self.supervisor;
        let (run, seen) = (self.runs.pop(), &self.current);
        let queue = open(supervisor, &mut self.queue)?;
        supervisor
            .retrying(|| {
                let newest = queue.store.newest()?;
                control::update(queue, seen, |current| {
                    let is_ours = current.state.phase == Phase::Running
                        && current.state.supervisor == seen.state.supervisor;
                    let began = current.state.since;
                    let state =
                        RunState { began, ended: Some(now), last_exit: Some(exit), ..current.state.idle() };
                    let cancel_retries = current.state.stop.is_some();
                    let state = if cancel_retries {
                        RunState { start_newest: newest, ..state.stalled(STOPPED) }
                    } else {
                        state
                    };
                    let runs = run.clone().into_iter().collect();
                    let update = RunUpdate { runs, cancel_retries, durable: true, ..RunUpdate::state(state) };
                    is_ours.then_some(update)
                })
            })
            .map(drop)
    }

    /// Records the end of the run with all that has changed. Returns false if its answers count no more.
    fn record_end(&mut self, finish: &dyn Fn(&Desk<'_, '_>) -> RunState) -> Result<bool> {
        let supervisor = self.supervisor;
        loop {
            let update = RunUpdate {
                state: finish(self),
                ledger: self.window.changes().to_vec(),
                dead_letters: self.dead_letters.clone(),
                runs: self.runs.clone(),
                cancel_retries: self.current.state.stop.is_some(),
                durable: true,
                ..RunUpdate::default()
            };
            let queue = open(supervisor, &mut self.queue)?;
            if let Some(recorded) = supervisor.retrying(|| queue.store.update_run(&self.current, &update))? {
                if recorded.state.phase == Phase::Stalled {
                    let reason = Quoted(recorded.state.reason.as_deref().unwrap_or_default());
                    log!(
                        supervisor.files,
                        Warn,
                        "dispatch: consumer={} stalled reason={reason}",
                        supervisor.consumer
                    );
                }
                self.log_dead_letters();
                return Ok(true);
            }
            let now = supervisor.retrying(|| queue.store.subscription(supervisor.consumer))?;
            if !self.accept(now)? {
                return Ok(false);
            }
        }
    }
}
