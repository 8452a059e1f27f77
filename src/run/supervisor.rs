//! The process that supervises a handler from its start to its end, and waits out the backoff between
//! attempts.
//!
//! It inherits the consumer's lock. It starts the handler (which holds a copy of the lock), reaps it,
//! unlocks, and looks again: a push that found the lock held had committed before, so no wake-up is
//! lost. Each run has its own open file description of the lock, so a process that it leaves in the
//! background cannot hold the next run's lock. The database is not open while the handler runs or the
//! supervisor waits.

use std::cell::Cell;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use chrono::Utc;

use super::dispatch::{self, NextStep, Start, Wait, next_step};
use super::handler::{self, NextTask, Running};
use super::outcome::{End, Following, log_outcome, record_end, record_end_and_start, record_end_of_wait};
use super::shutdown::Shutdown;
use crate::error::{Error, Result};
use crate::files::lock::Lock;
use crate::files::log::{Quoted, abridged, log};
use crate::files::watch::{LOOK_EVERY, Watcher};
use crate::files::{COMMIT, CONTROL, Files};
use crate::model::location::Location;
use crate::model::run::{Exit, Phase, ProcessId, RunState, StopRequest, Task};
use crate::model::subscription::{ConsumerId, Subscription};
use crate::model::time;
use crate::pending::PendingScan;
use crate::queue::Queue;
use crate::queue::locations::{files_of, listen};
use crate::store::{Lease, Leased, RunUpdate};

/// How long processes have between TERM and KILL when a run exceeds its time limit.
const TIMEOUT_GRACE: Duration = Duration::from_secs(10);

/// The longest pause between two attempts while the disk is full or the database locked.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// After this time a run is no longer a short one: its handler's process is recorded, and the database closed.
const SHORT_RUN: Duration = Duration::from_millis(100);

/// How often, at least, what a backlog's short runs acknowledge is synced.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// How long processes have between TERM and KILL when the supervisor itself is shut down.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// Runs a supervisor until nothing is due. `lock_fd` is the lock that its starter passed on. With `worker`, the
/// pid of the worker that started it, it ends after one run, and leaves waits and further runs to the worker
/// as long as that lives. Where several machines share the thread, it has the consumer's runs for this one by a
/// lease of that length; if it cannot renew that, it ends the run in time. On the first
/// request of `shutdown` it lets the run in progress finish and starts no other; on the second it ends the
/// run. Such a run costs no attempt and is due again.
///
/// # Errors
///
/// It was not started by a dispatcher, or failed in a way that a retry cannot cure.
///
/// # Safety
///
/// Nothing else in this process may own the descriptor `lock_fd`.
pub unsafe fn supervise(
    location: &Location,
    consumer: &ConsumerId,
    lock_fd: RawFd,
    worker: Option<u32>,
    lease: Duration,
    shutdown: &Shutdown,
) -> Result<()> {
    let files = files_of(location)?;
    // SAFETY: guaranteed by the caller.
    let lock = unsafe { Lock::adopt(lock_fd, &files, files.consumer_lock(consumer)) };
    let Some(lock) = lock.filter(|_| files.is_owner()) else {
        return Err(Error::Other("a supervisor is started by a dispatcher, which passes it a lock".into()));
    };
    let Some(mut lock) = lock.shared() else {
        // Its new holder looks again.
        return Ok(());
    };
    // Processes that its handlers leave behind become its own children, to be reaped.
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).ok();
    listen(location);
    let watcher = Watcher::new(&files, CONTROL);
    let unsynced = Cell::default();
    let supervisor = Supervisor { files: &files, consumer, watcher, worker, shutdown, unsynced };
    loop {
        let taken = supervisor.take_lease(lease);
        if matches!(taken, Ok(Leased::Elsewhere)) {
            // Its holder looks again, or, if that is gone, a worker once the lease is over.
            lock.release();
            return Ok(());
        }
        let done = taken.and_then(|taken| match &taken {
            Leased::Taken(lease) => supervisor.act(&mut lock, Some(&**lease)),
            _ => supervisor.act(&mut lock, None),
        });
        lock.release();
        if supervisor.leaves_the_rest() {
            // The worker looks again, instead of this process.
            drop(files.touch(COMMIT));
            return done;
        }
        match done.and_then(|()| supervisor.look_again()) {
            Ok(Some(again)) => lock = again,
            // The next push at the thread's new path continues.
            Ok(None) | Err(Error::Moved(_)) => return Ok(()),
            Err(e) => return Err(e),
        }
    }
}

struct Supervisor<'a> {
    files: &'a Files,
    consumer: &'a ConsumerId,
    /// Watches for changes of the consumer's row.
    watcher: Watcher,
    worker: Option<u32>,
    shutdown: &'a Shutdown,
    /// Since when what runs have acknowledged has not been synced.
    unsynced: Cell<Option<Instant>>,
}

/// A run that is due, and recorded.
struct Run {
    subscription: Subscription,
    given: NextTask,
    /// The number of attempts before this one.
    attempts_before: u32,
}

/// What to do after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// The wait is over: start the handler.
    Waited,
    /// Determine again what to do.
    Again,
    /// Release the lock.
    Unlock,
}

impl Supervisor<'_> {
    /// Whether the worker that started this process lives, and so does what comes after this run.
    fn leaves_the_rest(&self) -> bool {
        let parent =
            rustix::process::getppid().and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok());
        self.worker.is_some() && self.worker == parent
    }

    fn take_lease(&self, length: Duration) -> Result<Leased> {
        if self.files.location().dir().is_some() {
            return Ok(Leased::NotNeeded);
        }
        self.retrying(|| self.open()?.store.take_lease(self.consumer, length))
    }

    /// Does what is due, under the lock and the lease: a run, or a wait and then a run.
    fn act(&self, lock: &mut Lock, lease: Option<&dyn Lease>) -> Result<()> {
        // Waits are measured with the monotonic clock, whatever happens to the time of day.
        let mut waited = false;
        while self.shutdown.requests() == 0 && !lease.is_some_and(is_ending) {
            let mut queue = self.open()?;
            let Some(mut subscription) = self.retrying(|| queue.store.subscription(self.consumer))? else {
                return Ok(());
            };
            if subscription.state.phase == Phase::Running {
                // The supervisor of that run is dead, or we could not hold the lock.
                match self.retrying(|| self.record_abandoned(&mut queue, &subscription))? {
                    Some(recorded) => subscription = recorded,
                    None => continue,
                }
            }
            let next = match self.retrying(|| next_step(&mut queue, &subscription, None))? {
                NextStep::None { pending } => {
                    return self.retrying(|| release(&mut queue, &subscription, pending));
                }
                NextStep::Unknown => Next::Again,
                NextStep::Start(Start { wait: Some(_), .. }) if self.leaves_the_rest() => {
                    return self.retrying(|| release(&mut queue, &subscription, true));
                }
                NextStep::Start(Start { wait: Some(wait), .. }) if !waited => {
                    self.wait(queue, &subscription, wait, lease)?
                }
                NextStep::Start(start) => self.run_handlers(queue, &subscription, start, lock, lease)?,
            };
            match next {
                Next::Again => {}
                Next::Waited => waited = true,
                Next::Unlock => return Ok(()),
            }
        }
        Ok(())
    }

    /// Records the end of a run whose supervisor was killed. When and how it ended is unknown, so the
    /// backoff is counted from its start.
    fn record_abandoned(
        &self,
        queue: &mut Queue,
        subscription: &Subscription,
    ) -> Result<Option<Subscription>> {
        log!(queue, Warn, "dispatch: consumer={} abandoned by its supervisor", self.consumer);
        let began = subscription.state.since.unwrap_or_else(Utc::now).min(Utc::now());
        let end = End { exit: Exit::Unknown, interrupted: false, output: "", span: None, at: began };
        record_end(queue, subscription, &end)
    }

    /// Waits until the time given, a relevant change of the consumer's row, a shutdown request, or the
    /// removal of the thread.
    fn wait(
        &self,
        mut queue: Queue,
        subscription: &Subscription,
        wait: Wait,
        lease: Option<&dyn Lease>,
    ) -> Result<Next> {
        // The clock may be set back at any moment, even while this is being recorded.
        let end = Instant::now() + wait.left;
        // Cleared before the wait is recorded, so that no later request is missed.
        self.watcher.clear();
        let update = RunUpdate::state(RunState {
            phase: Phase::Waiting,
            next_try: Some(wait.until),
            supervisor: Some(ProcessId::own()),
            handler: None,
            home: Some(self.files.home()),
            since: Some(wait.until - wait.left),
            ..subscription.state.clone()
        });
        let Some(waiting) = self.retrying(|| queue.store.update_run(subscription, &update))? else {
            return Ok(Next::Again);
        };
        let (consumer, until) = (self.consumer, time::format(wait.until));
        let attempts = waiting.state.attempts;
        log!(queue, Info, "dispatch: consumer={consumer} waiting until={until} attempts={attempts}");
        drop(queue);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || wait.until <= Utc::now() {
                return Ok(Next::Waited);
            }
            // The clock may be set forward, past the end of the wait.
            let requested = self.watcher.wait(left.min(LOOK_EVERY), [self.shutdown.poll_fd()]);
            handler::reap();
            if !self.files.still_there() || self.shutdown.requests() > 0 || lease.is_some_and(is_ending) {
                return Ok(Next::Unlock);
            }
            if !requested {
                continue;
            }
            let mut queue = self.open()?;
            let Some(current) = self.retrying(|| queue.store.subscription(self.consumer))? else {
                return Ok(Next::Unlock);
            };
            if current.state.stop.is_some() {
                if self.retrying(|| record_end_of_wait(&mut queue, &current))?.is_none() {
                    continue;
                }
                log!(queue, Info, "stop: consumer={consumer} no longer waits");
                return Ok(Next::Unlock);
            }
            if !current.is_same(&waiting) || current.state.phase != Phase::Waiting || current.state.paused {
                return Ok(Next::Again);
            }
        }
    }

    /// Runs of the handler, from the record of the first one's start to that of the last one's end: further ones as
    /// long as one is due at once.
    fn run_handlers(
        &self,
        mut queue: Queue,
        found: &Subscription,
        start: Start,
        lock: &mut Lock,
        lease: Option<&dyn Lease>,
    ) -> Result<Next> {
        let next = self.retrying(|| handler::next_task(&mut queue, found, start.first))?;
        let Some(given) = next else { return Ok(Next::Unlock) };
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
        while let Some(next) = self.run_handler(&mut kept, run, lock, lease)? {
            run = next;
        }
        Ok(Next::Unlock)
    }

    /// One run, whose start is recorded. Returns the next one, whose start was recorded with this one's end.
    fn run_handler(
        &self,
        kept: &mut Option<Queue>,
        run: Run,
        lock: &mut Lock,
        lease: Option<&dyn Lease>,
    ) -> Result<Option<Run>> {
        let Run { subscription, given: NextTask { task, stdin, .. }, attempts_before } = run;
        let consumer = self.consumer;
        self.watcher.clear();
        let began = Instant::now();
        let epoch = lease.map(|lease| lease.epoch());
        let mut running = match handler::start(self.files, &subscription, task, stdin, (lock, epoch)) {
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

        let (exit, mut interrupted) = self.wait_for_end(kept, &mut running, &subscription, lease);
        let after = began.elapsed();
        if lease.is_some() && matches!(exit, Exit::Code(126 | 127)) {
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
                let following = match may_follow && !lease.is_some_and(is_ending) {
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

    /// Takes the lock for the next run, so that what the last one left in the background has no part in it. Returns
    /// false if that is not possible; then there is no next run under this lock.
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
    fn started(&self, found: &Subscription, given: &NextTask, newest: i64) -> RunState {
        let (task, events) = (given.task, given.events);
        // A dead letter is tried once; that does not count as an attempt at the pending events.
        let attempt = u32::from(!matches!(task, Task::DeadLetter(_)));
        RunState {
            phase: Phase::Running,
            attempts: found.state.attempts.saturating_add(attempt),
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
            next_try: None,
            reason: None,
            stop: None,
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
        lease: Option<&dyn Lease>,
    ) -> (Exit, bool) {
        let consumer = self.consumer;
        let mut short_until = Some(Instant::now() + SHORT_RUN);
        let mut deadline = subscription.options.timeout.map(|timeout| Instant::now() + timeout);
        let mut timed_out = false;
        let mut followed = None;
        let mut interrupted = false;
        let mut noted = false;
        loop {
            if !noted && self.shutdown.requests() > 0 {
                noted = true;
                log!(self.files, Info, "dispatch: consumer={consumer} ends after this run");
            }
            if let Some(exit) = running.poll() {
                let exit = if timed_out { Exit::TimedOut } else { exit };
                // When the machine shuts down, the handler gets a TERM of its own along with this process.
                let terminated = self.shutdown.requests() > 0 && exit == Exit::Signal(libc::SIGTERM);
                return (exit, interrupted || terminated);
            }
            if !interrupted && self.shutdown.requests() > 1 {
                interrupted = true;
                running.end(libc::SIGTERM, SHUTDOWN_GRACE);
            }
            if let Some(lease) = lease.filter(|lease| !interrupted && is_ending(*lease)) {
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
            let short =
                short_until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            let left = deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
            // Once a second, because this clock stands still while the machine sleeps.
            let renewed = lease.filter(|_| !interrupted).map_or(Duration::MAX, |lease| {
                lease.left().saturating_sub(lease.length() / 4).min(LOOK_EVERY)
            });
            let longest = longest.min(short).min(left).min(renewed);
            let requested = self.watcher.wait(longest, notice.into_iter().chain([self.shutdown.poll_fd()]));
            if requested
                && let Some(stop) = self.stop_request(kept, subscription, lease)
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
        // What the runs before it have acknowledged must not wait for a sync until its end.
        let durable = self.unsynced.take().is_some();
        let recorded = kept.map_or_else(|| self.open(), Ok).and_then(|mut queue| {
            super::control::update(&mut queue, subscription, |current| {
                let state = RunState { handler: running.process(), ..current.state.clone() };
                Some(RunUpdate { durable, ..RunUpdate::state(state) })
            })
        });
        if let Err(e) = recorded {
            // The handler is running, and must be supervised whether or not other processes can find it.
            log!(self.files, Error, "dispatch: consumer={} {e}", self.consumer);
        }
    }

    fn stop_request(
        &self,
        kept: &mut Option<Queue>,
        subscription: &Subscription,
        lease: Option<&dyn Lease>,
    ) -> Option<StopRequest> {
        if let Some(lease) = lease {
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

    /// Checks, now that the lock is free, whether more is due; if so, takes the lock again. `None` if nothing
    /// is due or another process holds the lock.
    fn look_again(&self) -> Result<Option<Lock>> {
        if !self.files.still_there() || self.shutdown.requests() > 0 {
            return Ok(None);
        }
        self.retrying(|| {
            let mut queue = self.open()?;
            let Some(subscription) = queue.store.subscription(self.consumer)? else { return Ok(None) };
            match next_step(&mut queue, &subscription, None)? {
                NextStep::Start(_) => {
                    Ok(dispatch::try_lock(self.files, self.consumer)?.and_then(Lock::shared))
                }
                NextStep::None { .. } | NextStep::Unknown => Ok(None),
            }
        })
    }

    /// Opens the thread.
    ///
    /// # Errors
    ///
    /// [`Error::Moved`] if it is no longer the same one.
    fn open(&self) -> Result<Queue> {
        self.files.must_be_there()?;
        let queue = self.retrying(|| Queue::open(self.files.location()))?;
        self.files.must_be_there()?;
        Ok(queue)
    }

    /// The thread, which is opened if it is not open.
    ///
    /// # Errors
    ///
    /// As [`Supervisor::open`].
    fn reuse<'q>(&self, kept: &'q mut Option<Queue>) -> Result<&'q mut Queue> {
        match kept {
            Some(queue) => {
                self.files.must_be_there()?;
                Ok(queue)
            }
            None => Ok(kept.insert(self.open()?)),
        }
    }

    /// Whether to wait for a disk or a server. A server may be away for good, and another machine goes on.
    fn may_wait(&self) -> bool {
        self.files.location().dir().is_some() || self.shutdown.requests() < 2
    }

    /// Retries `work`, with growing pauses, while the disk is full or the database locked: the outcome of a
    /// run must not be lost because of that, nor a run that is due be left to the next push.
    fn retrying<T>(&self, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        let mut pause = Duration::from_millis(100);
        loop {
            match work() {
                Err(e) if e.may_pass() && self.files.still_there() && self.may_wait() => {
                    log!(self.files, Warn, "supervise: consumer={} tries again: {e}", self.consumer);
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                done => return done,
            }
        }
    }
}

/// Whether a lease has not been renewed for so long that a handler has to be told to end, so that it is gone before
/// another machine may start one.
fn is_ending(lease: &dyn Lease) -> bool {
    lease.left() <= lease.length() / 4
}

/// Clears this supervisor from the consumer's row.
fn release(queue: &mut Queue, subscription: &Subscription, pending: bool) -> Result<()> {
    let state = &subscription.state;
    let state = if !pending && state.phase == Phase::Waiting {
        RunState { attempts: 0, ..state.idle() }
    } else if state.supervisor.is_some() {
        RunState { supervisor: None, handler: None, since: None, ..state.clone() }
    } else {
        return Ok(());
    };
    // If the row has changed in the meantime, the look after the unlock sees that.
    queue.store.update_run(subscription, &RunUpdate::state(state)).map(drop)
}
