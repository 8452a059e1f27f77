//! The runs of a handler, from the record of the start to that of the end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use chrono::Utc;

use super::{Next, Supervisor};
use crate::error::Result;
use crate::files::lock::Lock;
use crate::files::log::{Quoted, abridged, log};
use crate::files::watch::LOOK_EVERY;
use crate::model::run::{Crews, Exit, Phase, ProcessId, RunState, StopRequest, Task};
use crate::model::subscription::Subscription;
use crate::pending::PendingScan;
use crate::queue::Queue;
use crate::run::control;
use crate::run::dispatch::{self, Start};
use crate::run::handler::{self, NextTask, Running};
use crate::run::outcome::{End, Following, log_outcome, record_end_and_start};
use crate::store::RunUpdate;

/// How long processes have between TERM and KILL when a run exceeds its time limit.
const TIMEOUT_GRACE: Duration = Duration::from_secs(10);

/// After this time a run is no longer a short one: its handler's process is recorded, and the database closed.
const SHORT_RUN: Duration = Duration::from_millis(100);

/// How often, at least, what a backlog's short runs acknowledge is synced.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// How long processes have between TERM and KILL when the supervisor itself is shut down.
pub(super) const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// A run that is due, and recorded.
struct Run {
    subscription: Subscription,
    given: NextTask,
    /// The number of attempts before this one.
    attempts_before: u32,
}

impl Supervisor<'_> {
    /// Runs of the handler, from the record of the first one's start to that of the last one's end: further ones as
    /// long as one is due at once.
    pub(super) fn run_handlers(
        &self,
        mut queue: Queue,
        found: &Subscription,
        start: Start,
        lock: &mut Lock,
    ) -> Result<Next> {
        let next = self.retrying(|| handler::next_task(&mut queue, found, start.first))?;
        let Some(given) = next else {
            let passed = self.retrying(|| queue.pass_over(found))?;
            return Ok(if passed.is_some() { Next::Again } else { Next::Unlock });
        };
        // A shutdown request may have arrived while the disk was full.
        if self.shutdown.requests() > 0 {
            return Ok(Next::Unlock);
        }
        let update = RunUpdate::state(self.started(found, &given, start.newest));
        let Some(subscription) = self.retrying(|| queue.store.update_run(found, &update))? else {
            return Ok(Next::Again);
        };
        let mut run = Run { subscription, given, attempts_before: found.state.attempts };
        let mut kept = Some(queue);
        while let Some(next) = self.run_handler(&mut kept, run, lock)? {
            run = next;
            if let Some(queue) = &mut kept {
                self.keeper.borrow_mut().keep(queue);
            }
        }
        Ok(Next::Unlock)
    }

    /// One run, whose start is recorded. Returns the next one, whose start was recorded with this one's end.
    fn run_handler(&self, kept: &mut Option<Queue>, run: Run, lock: &mut Lock) -> Result<Option<Run>> {
        let Run { subscription, given: NextTask { task, stdin, .. }, attempts_before } = run;
        let consumer = self.consumer;
        self.watcher.clear();
        let began = Instant::now();
        let terms = self.terms(lock, &self.guard, false);
        let mut running = match handler::start(self.files, &subscription, task, stdin, terms) {
            Ok(running) => running,
            Err(failed) => {
                // It never ran, so no attempt is counted; the next push or dispatch tries again.
                let update =
                    RunUpdate::state(RunState { attempts: attempts_before, ..subscription.state.idle() });
                self.retrying(|| self.reuse(kept)?.store.update_run(&subscription, &update))?;
                return Err(failed);
            }
        };
        let command = abridged(&subscription.handler_cmd);
        let command = Quoted(&command);
        log!(self.files, Info, "dispatch: consumer={consumer} spawned handler_cmd={command}");

        let (exit, mut interrupted) = self.wait_for_end(kept, &mut running, &subscription);
        self.guard.release();
        let after = began.elapsed();
        if self.lease.is_some() && matches!(exit, Exit::Code(126 | 127)) {
            // Another machine may have the program.
            interrupted = true;
            dispatch::leave_to_others(self.files, consumer);
            let left = "left to other machines for a while";
            log!(self.files, Warn, "dispatch: consumer={consumer} cannot be run here: {left}");
        }
        let (output, span) = running.finish(exit, after);
        let after = after.as_secs_f64();
        let renewed = self.renew(lock);

        let mut next = None;
        self.retrying(|| {
            let queue = self.reuse(kept)?;
            let end = End { exit, interrupted, output: &output, span, at: Utc::now() };
            let (mut durable, unsynced) = (true, self.unsynced.get());
            let mut follow = |queue: &mut Queue, after: &Subscription, scan: &PendingScan| {
                let may_follow = renewed && self.shutdown.requests() == 0 && !self.leaves_the_rest();
                let following = match may_follow && !self.lease_is_ending() {
                    true => self.following(queue, after, scan),
                    false => None,
                };
                let (state, given) = following?;
                durable = unsynced.is_some_and(|since| since.elapsed() >= SYNC_EVERY);
                next = Some((given, after.state.attempts));
                Some(Following { state, durable })
            };
            let recorded = record_end_and_start(queue, &subscription, &end, unsynced.is_some(), &mut follow);
            let recorded = recorded.inspect_err(|_| *kept = None)?;
            self.unsynced.set(if durable { None } else { unsynced.or_else(|| Some(Instant::now())) });
            let acked = recorded.as_ref().map_or(subscription.last_acked_id, |(now, _)| now.last_acked_id);
            let cut = if interrupted { " interrupted" } else { "" };
            log!(
                self.files,
                Info,
                "dispatch: consumer={consumer} ended {exit} after={after:.1}s acked={acked}{cut}"
            );
            Ok(match recorded {
                Some((started, true)) => next.take().map(|(given, attempts_before)| Run {
                    subscription: started,
                    given,
                    attempts_before,
                }),
                Some((recorded, false)) => {
                    log_outcome(self.files, &subscription, &recorded, task);
                    None
                }
                None => None,
            })
        })
    }

    /// Prepares the run of a consumer that has just ended one, if another is due at once. What fails here is tried
    /// again once the end of that run is recorded.
    fn following(
        &self,
        queue: &mut Queue,
        after: &Subscription,
        scan: &PendingScan,
    ) -> Option<(RunState, NextTask)> {
        let start = dispatch::run_after(queue, after, scan).ok()??;
        let given = handler::next_task(queue, after, start.first).ok()??;
        Some((self.started(after, &given, start.newest), given))
    }

    /// Takes the lock for the next run, so that processes the last one left in the background do not hold it.
    /// Returns false if that is not possible; then there is no next run under this lock.
    fn renew(&self, lock: &mut Lock) -> bool {
        match lock.again(self.files, self.files.consumer_lock(self.consumer)) {
            Ok(again) => {
                std::mem::replace(lock, again).release();
                true
            }
            Err(e) => {
                if self.files.still_there() {
                    log!(self.files, Warn, "supervise: consumer={} {e}", self.consumer);
                }
                false
            }
        }
    }

    /// The state at the start of a run.
    pub(super) fn started(&self, found: &Subscription, given: &NextTask, newest: i64) -> RunState {
        let (task, events) = (given.task, given.events);
        // A dead letter is tried once; that does not count as an attempt at the pending events.
        let attempt = u32::from(!matches!(task, Task::DeadLetter(_) | Task::Pool));
        // Attempts at an event that the cursor has passed since are not those at the next one.
        let is_past = found.last_acked_id != found.state.start_cursor;
        let before = if is_past { 0 } else { found.state.attempts };
        RunState {
            phase: Phase::Running,
            attempts: before.saturating_add(attempt),
            supervisor: Some(ProcessId::own()),
            handler: None,
            home: Some(self.files.home()),
            since: Some(Utc::now()),
            task: Some(task),
            batch: events,
            start_cursor: found.last_acked_id,
            start_rewinds: found.rewinds,
            single_upto: found.single_upto(),
            start_newest: newest,
            given_upto: given.given_upto.unwrap_or(0).max(found.state.given_upto),
            next_try: None,
            reason: None,
            stop: None,
            // Those of a pool may still be at runs of an earlier supervisor.
            asleep: if task == Task::Pool { found.state.asleep.clone() } else { BTreeMap::new() },
            crews: if self.machine().is_some() { found.state.crews.clone() } else { Crews::new() },
            ..found.state.clone()
        }
    }

    /// Waits for the end of the run, and ends it on a timeout, a `stop`, a second shutdown request, or before the
    /// lease is over. Returns how it ended, and whether it was cut short by the shutdown or the lease.
    fn wait_for_end(
        &self,
        kept: &mut Option<Queue>,
        running: &mut Running,
        subscription: &Subscription,
    ) -> (Exit, bool) {
        let consumer = self.consumer;
        let mut short_until = Some(Instant::now() + SHORT_RUN);
        let mut deadline = subscription.options.timeout.map(|timeout| Instant::now() + timeout);
        let (mut timed_out, mut interrupted, mut noted, mut followed) = (false, false, false, None);
        let until = |end: Option<Instant>| {
            end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()))
        };
        loop {
            if !noted && self.shutdown.requests() > 0 {
                noted = true;
                log!(self.files, Info, "dispatch: consumer={consumer} ends after this run");
            }
            if let Some(exit) = running.poll() {
                let exit = if timed_out { Exit::TimedOut } else { exit };
                // When the machine shuts down, the handler gets its own TERM at the same time as this process.
                let terminated = self.shutdown.requests() > 0 && exit == Exit::Signal(libc::SIGTERM);
                return (exit, interrupted || terminated || self.was_cut(exit));
            }
            if running.end_rest() {
                deadline = None;
                let left = "failed, and left processes behind, which are ended";
                log!(self.files, Warn, "dispatch: consumer={consumer} {left}");
            }
            if !interrupted && !self.keep_guarded(running, &self.guard, false) {
                interrupted = true;
                running.end(libc::SIGTERM, SHUTDOWN_GRACE);
            }
            if !interrupted && self.shutdown.requests() > 1 {
                interrupted = true;
                running.end(libc::SIGTERM, SHUTDOWN_GRACE);
            }
            if let Some(lease) = self.lease.as_ref().filter(|_| !interrupted && self.lease_is_ending()) {
                interrupted = true;
                log!(self.files, Warn, "dispatch: consumer={consumer} is ended: its lease was not renewed");
                running.end(libc::SIGTERM, lease.left().saturating_sub(lease.length() / 8));
            }
            if deadline.is_some_and(|at| at <= Instant::now()) {
                (deadline, timed_out) = (None, true);
                running.end(libc::SIGTERM, TIMEOUT_GRACE);
            }
            if short_until.is_some_and(|until| until <= Instant::now()) {
                short_until = None;
                self.settle_in(kept.take(), running, subscription);
            }
            let (notice, longest) = running.wait_for();
            // Once a second, because this clock stands still while the machine sleeps.
            let renewed = self.lease.as_ref().filter(|_| !interrupted).map_or(Duration::MAX, |lease| {
                lease.left().saturating_sub(lease.length() / 4).min(LOOK_EVERY)
            });
            let longest = longest.min(until(short_until)).min(until(deadline)).min(renewed);
            let others = notice.into_iter().chain([self.shutdown.poll_fd()]);
            let requested = self.guard.watched(|guard| self.watcher.wait(longest, others.chain(guard)));
            if requested
                && let Some(stop) = self.stop_request(kept, subscription)
                && followed != Some(stop)
            {
                // Once per request: `stop` repeats its notice until the run is over.
                followed = Some(stop);
                running.end(stop.signal, Duration::from_millis(stop.kill_after_ms));
            }
        }
    }

    /// Records the handler's process, and closes the database, which stays open only while short runs follow each other.
    fn settle_in(&self, kept: Option<Queue>, running: &Running, subscription: &Subscription) {
        // The acknowledgements of earlier runs must not wait for a sync until this run ends.
        let durable = self.unsynced.take().is_some();
        let recorded = kept.map_or_else(|| self.open(), Ok).and_then(|mut queue| {
            control::update(&mut queue, subscription, |current| {
                let state = RunState { handler: running.process(), ..current.state.clone() };
                Some(RunUpdate { durable, ..RunUpdate::state(state) })
            })
        });
        if let Err(e) = recorded {
            // The handler is running, and must be supervised whether or not other processes can find it.
            log!(self.files, Error, "dispatch: consumer={} {e}", self.consumer);
        }
    }

    fn stop_request(&self, kept: &mut Option<Queue>, subscription: &Subscription) -> Option<StopRequest> {
        if let Some(lease) = self.lease.as_ref() {
            return lease.stop_request(&subscription.token);
        }
        // A notice is only a hint. If the row cannot be read now, `stop` repeats the notice.
        let mut opened = None;
        let queue = match kept {
            Some(queue) => queue,
            None => opened.insert(self.open().ok()?),
        };
        let current = queue.store.subscription(self.consumer).ok()??;
        if current.is_same(subscription) { current.state.stop } else { None }
    }
}
