//! The process that supervises a handler from its start to its end. A wait between attempts is left to the thread's
//! [timer](super::timer).
//!
//! It inherits the consumer's lock. It starts the handler (which holds a copy of the lock), reaps it,
//! unlocks, and looks again: a push that found the lock held had committed before, so no wake-up is
//! lost. Each run has its own open file description of the lock, so a process that it leaves in the
//! background cannot hold the next run's lock. The database is not open while a handler runs for long.

mod crew;
mod guarded;
mod pool;
mod runs;

use std::cell::{Cell, RefCell};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use chrono::Utc;

use self::crew::Crews;
use super::attend;
use super::dispatch::{self, NextStep, Start, is_left_to_others, next_step, try_lock};
use super::guard::Guard;
use super::handler;
use super::launcher::{GUARD, Launcher, WakeBy};
use super::outcome::{End, record_end, record_end_of_wait};
use super::process;
use super::shutdown::Shutdown;
use super::waits::Ends;
use crate::error::{Error, IoContext, Result};
use crate::files::lock::Lock;
use crate::files::log::log;
use crate::files::watch::{LOOK_EVERY, Watcher};
use crate::files::{COMMIT, CONTROL, Files};
use crate::model::exponential_backoff::ExponentialBackoff;
use crate::model::location::Location;
use crate::model::run::{Exit, Phase, RunState, Task};
use crate::model::subscription::{ConsumerId, Subscription};
use crate::queue::Queue;
use crate::queue::locations::{files_of, listen, spare};
use crate::queue::retention::Keeper;
use crate::store::{Lease, Leased, RunUpdate};

/// A wait that is over as soon as another process could attend to it.
const SHORT_WAIT: Duration = Duration::from_millis(20);

/// The longest pause between two attempts while the disk is full or the database locked.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Runs a supervisor until nothing is due. `lock_fd` is the lock that its starter passed on. With `worker`, the
/// pid of the worker that started it, it ends after one run, and leaves waits and further runs to the worker
/// as long as that lives. Where several machines share the thread, it has the consumer's runs for this one by a
/// lease of this `length`; if it cannot renew that, it ends the run in time. On the first
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
    length: Duration,
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
    spare();
    listen(location);
    let watcher = Watcher::new(&files, CONTROL);
    let unsynced = Cell::default();
    let guard = Guard::new(location, consumer);
    let keeper = RefCell::default();
    let mut supervisor = Supervisor {
        files: &files,
        consumer,
        watcher,
        worker,
        shutdown,
        unsynced,
        lease: None,
        guard,
        keeper,
    };
    loop {
        let done = match supervisor.take_lease(length) {
            Ok(true) => supervisor.act(&mut lock),
            Ok(false) => {
                // Its holder looks again; if that has died, a worker does once the lease is over.
                lock.release();
                return Ok(());
            }
            Err(e) => Err(e),
        };
        supervisor.leave();
        supervisor.lease = None;
        lock.release();
        if supervisor.leaves_the_rest() {
            // The worker looks again, instead of this process.
            drop(files.touch(COMMIT));
            return done;
        }
        match done.and_then(|()| supervisor.look_again()) {
            Ok(Some(again)) => lock = again,
            Ok(None) => return supervisor.keep_rest(),
            // The next push at the thread's new path continues.
            Err(Error::Moved(_)) => return Ok(()),
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
    /// Since when acknowledgements of runs have not been synced.
    unsynced: Cell<Option<Instant>>,
    /// Where several machines share the thread.
    lease: Option<Box<dyn Lease>>,
    /// Ends a handler that this process cannot end any more.
    guard: Guard,
    /// Applies the thread's retention.
    keeper: RefCell<Keeper>,
}

/// What to do after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Determine again what to do.
    Again,
    /// Release the lock.
    Unlock,
}

impl Supervisor<'_> {
    /// Whether the worker that started this process is alive, and will start the next run.
    fn leaves_the_rest(&self) -> bool {
        let parent =
            rustix::process::getppid().and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok());
        self.worker.is_some() && self.worker == parent
    }

    /// Takes the lease, if one is needed. Returns false if another machine has it.
    fn take_lease(&mut self, length: Duration) -> Result<bool> {
        if self.files.location().backend().is_shared_by_machines {
            match self.retrying(|| self.open()?.store.take_lease(self.consumer, length))? {
                Leased::Taken(lease) => self.lease = Some(lease),
                Leased::NotNeeded => {}
                Leased::Elsewhere => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Whether the lease has not been renewed for so long that the handler must be ended, so that it is gone before
    /// another machine may start one.
    fn lease_is_ending(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.left() <= lease.length() / 4)
    }

    /// Does what is due, under the lock and the lease: a run, or a wait and then a run.
    fn act(&self, lock: &mut Lock) -> Result<()> {
        let mut ends = Ends::default();
        while self.shutdown.requests() == 0 && !self.lease_is_ending() {
            let mut queue = self.open()?;
            let Some(mut subscription) = self.retrying(|| queue.store.subscription(self.consumer))? else {
                return Ok(());
            };
            if self.lease.is_some() && subscription.is_shared_pool() != self.machine().is_some() {
                // It was replaced, and needs another lease.
                return Ok(());
            }
            match self.retrying(|| self.end_crews(&mut queue, &subscription))? {
                Crews::Settled => {}
                Crews::Changed => continue,
                Crews::Busy => {
                    drop(queue);
                    self.watcher.wait(LOOK_EVERY / 10, [self.shutdown.poll_fd()]);
                    continue;
                }
            }
            if self.is_being_stopped_by_others(&subscription) {
                drop(queue);
                self.watcher.wait(LOOK_EVERY / 10, [self.shutdown.poll_fd()]);
                continue;
            }
            if subscription.state.phase == Phase::Running && !self.is_at_work_elsewhere(&subscription) {
                // The supervisor of that run is dead, or we could not hold the lock.
                match self.retrying(|| self.record_abandoned(&mut queue, &subscription))? {
                    Some(recorded) => subscription = recorded,
                    None => continue,
                }
            }
            if subscription.state.phase == Phase::Waiting && subscription.state.stop.is_some() {
                // The wait is over before whoever asked has ended it, or was killed.
                self.retrying(|| record_end_of_wait(&mut queue, &subscription))?;
                continue;
            }
            if !subscription.options.finishes_singly() && self.has_pool() {
                // It has replaced one with runs that go on.
                drop(queue);
                self.watcher.wait(LOOK_EVERY / 10, [self.shutdown.poll_fd()]);
                continue;
            }
            let next = match self.retrying(|| next_step(&mut queue, &subscription, None))? {
                NextStep::None { pending } => {
                    return self.retrying(|| release(&mut queue, &subscription, pending));
                }
                NextStep::Unknown => Next::Again,
                NextStep::Elsewhere => return Ok(()),
                NextStep::Start(Start { wait: Some(wait), .. })
                    if wait.left <= SHORT_WAIT || self.has_adopted() =>
                {
                    ends.look();
                    let left = self.retrying(|| ends.left(&mut queue, self.consumer, wait))?;
                    drop(queue);
                    self.watcher.wait(left.min(LOOK_EVERY), [self.shutdown.poll_fd()]);
                    handler::reap();
                    Next::Again
                }
                // The look after the unlock leaves the wait to the timer.
                NextStep::Start(Start { wait: Some(_), .. }) => {
                    return self.retrying(|| release(&mut queue, &subscription, true));
                }
                NextStep::Start(start) if subscription.options.finishes_singly() => {
                    self.run_pool(queue, &subscription, start, lock)?
                }
                NextStep::Start(start) => self.run_handlers(queue, &subscription, start, lock)?,
            };
            match next {
                Next::Again => {}
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
        self.end_rest(subscription);
        // If a stop was asked for, it is the end of all.
        let goes_on = subscription.state.stop.is_none() || self.machine().is_some();
        if subscription.state.task == Some(Task::Pool) && goes_on {
            return self.record_abandoned_pool(queue, subscription);
        }
        let began = subscription.state.since.unwrap_or_else(Utc::now).min(Utc::now());
        let end = End { exit: Exit::Unknown, interrupted: false, output: "", span: None, at: began };
        record_end(queue, subscription, &end)
    }

    /// Whether a pool is to be stopped whose supervisor was killed, and its runs are still there: whoever has asked ends
    /// them, or waits for them.
    fn is_being_stopped_by_others(&self, subscription: &Subscription) -> bool {
        let state = &subscription.state;
        let is_abandoned = state.phase == Phase::Running && self.machine().is_none();
        is_abandoned && state.task == Some(Task::Pool) && state.stop.is_some() && self.has_pool()
    }

    /// Whether runs of a pool are at work.
    fn has_pool(&self) -> bool {
        let mut places = self.files.places(self.consumer).into_iter();
        places.any(|place| {
            let lock = Lock::try_take(self.files, self.files.place_lock(self.consumer, place));
            lock.is_ok_and(|lock| lock.map(Lock::release).is_none())
        })
    }

    /// Leaves a wait to the thread's timer.
    #[expect(clippy::disallowed_methods, reason = "the timer is the same program")]
    fn attend(&self) -> Result<()> {
        let program = std::env::current_exe().at("find the program of", self.files.path())?;
        let launcher = Launcher { program, waking: WakeBy::Dispatch };
        let mut backoff = ExponentialBackoff::new(Duration::from_millis(100), LONGEST_PAUSE);
        loop {
            match self.retrying(|| attend::attend(self.files, &launcher)) {
                // Nobody else would know of the wait.
                Err(e @ Error::Spawn { .. }) if self.files.still_there() && self.shutdown.requests() == 0 => {
                    log!(self.files, Warn, "supervise: consumer={} tries again: {e}", self.consumer);
                    std::thread::sleep(backoff.pause());
                }
                done => return done,
            }
        }
    }

    /// Checks, now that the lock is free, whether more is due; if so, takes the lock again. `None` if nothing
    /// is due, another process holds the lock, or this machine leaves the consumer to others.
    fn look_again(&self) -> Result<Option<Lock>> {
        if !self.files.still_there() || self.shutdown.requests() > 0 {
            return Ok(None);
        }
        let mut waits = false;
        let again = self.retrying(|| {
            let mut queue = self.open()?;
            let Some(subscription) = queue.store.subscription(self.consumer)? else { return Ok(None) };
            match next_step(&mut queue, &subscription, None)? {
                NextStep::Start(start @ Start { wait: Some(wait), .. }) if wait.left > SHORT_WAIT => {
                    dispatch::record_wait(&mut queue, &subscription, start, wait)?;
                    if subscription.state.phase == Phase::Waiting {
                        dispatch::log_wait(&queue, &subscription, wait);
                    }
                    waits = true;
                    if self.has_adopted() { self.lock_again() } else { Ok(None) }
                }
                NextStep::Start(_) if !is_left_to_others(self.files, self.consumer) => self.lock_again(),
                _ => {
                    self.keeper.borrow_mut().keep(&mut queue);
                    Ok(None)
                }
            }
        })?;
        if waits {
            self.attend()?;
        }
        Ok(again)
    }

    /// Applies the thread's retention, as far as it is due, once nothing else is.
    fn keep_rest(&self) -> Result<()> {
        loop {
            if self.shutdown.requests() > 0 || !self.files.still_there() {
                return Ok(());
            }
            let mut keeper = self.keeper.borrow_mut();
            let Some(next) = keeper.due().filter(|_| keeper.has_more()) else { return Ok(()) };
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            // If it cannot be opened, another process continues.
            let Ok(mut queue) = Queue::open_waiting(self.files.location(), SHORT_WAIT) else { return Ok(()) };
            keeper.keep(&mut queue);
        }
    }

    fn lock_again(&self) -> Result<Option<Lock>> {
        Ok(try_lock(self.files, self.consumer)?.and_then(Lock::shared))
    }

    /// Whether processes that its handlers left are its children now. The next handler may look for them there, as that
    /// of an agent does, so it stays while a wait is not over.
    fn has_adopted(&self) -> bool {
        #[cfg(all(test, target_os = "linux"))]
        if crate::files::simulated::system().is_some() {
            return false;
        }
        let own = std::process::id();
        process::all().any(|process| process.parent == own && !process::runs_as(process.pid, &[GUARD]))
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

    /// Whether to wait for a disk or a server.
    fn may_wait(&self) -> bool {
        !self.files.location().backend().may_be_given_up || self.shutdown.requests() < 2
    }

    /// Retries `work`, with growing pauses, while the disk is full or the database locked: the outcome of a
    /// run must not be lost because of that, nor a run that is due be left to the next push.
    fn retrying<T>(&self, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        let mut backoff = ExponentialBackoff::new(Duration::from_millis(100), LONGEST_PAUSE);
        loop {
            match work() {
                Err(e) if e.may_pass() && self.files.still_there() && self.may_wait() => {
                    log!(self.files, Warn, "supervise: consumer={} tries again: {e}", self.consumer);
                    std::thread::sleep(backoff.pause());
                }
                done => return done,
            }
        }
    }
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
