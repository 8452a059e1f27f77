//! Waking consumers after something was stored: through a notifier, by dispatching, or not at all.
//!
//! A notifier is never trusted: after calling it, a background process, one per thread, waits a second and
//! then dispatches. The same process evaluates filters on backlogs that are too long for a push. A push that
//! finds that process's lock held had committed before, and the process dispatches once more after releasing
//! the lock.

use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use super::control::notify_supervisors;
use super::dispatch::{Dispatched, NextStep, OWN_TIME, Waits, dispatch, log_skipped, next_step, start};
use super::launcher::{Launcher, WAKE_LOCK, WakeBy};
use super::notifier::{self, Answer};
use crate::error::{Error, Result};
use crate::files::lock::Lock;
use crate::files::log::log;
use crate::files::{COMMIT, Files};
use crate::model::exponential_backoff::ExponentialBackoff;
use crate::model::location::Location;
use crate::model::subscription::{ConsumerId, Subscription};
use crate::queue::Queue;
use crate::queue::locations::files_of;
use crate::store::Notice;

/// How long a notifier has before the background process dispatches.
const WATCHDOG_DELAY: Duration = Duration::from_secs(1);

/// Pauses between two attempts, for example if the database is locked or no process can be started.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// How consumers were woken.
#[derive(Debug)]
pub enum Waking {
    /// A notifier promised to run a dispatch.
    Queued,
    /// The notifier already had such a task.
    AlreadyQueued,
    /// This process dispatched.
    Dispatched(Vec<(ConsumerId, Dispatched)>),
    /// Waking is switched off.
    Off,
    /// The thread belongs to another user, whose next push or dispatch starts the handlers.
    LeftToOwner,
    /// The thread is not in a directory: a dispatch starts the handlers, on any machine.
    LeftToWorkers,
}

/// Wakes the consumers that have something pending, as `launcher` is set to. `source` is the author of the
/// notifier's task.
///
/// # Errors
///
/// The dispatch failed, or the background process could not be started.
pub fn wake(queue: &mut Queue, launcher: &Launcher, source: &str) -> Result<Waking> {
    if !queue.location().backend().wakes_on_push {
        return Ok(Waking::LeftToWorkers);
    }
    if !queue.files.is_owner() {
        log!(queue, Info, "wake: left to the owner of the thread");
        return Ok(Waking::LeftToOwner);
    }
    let (program, word) = match &launcher.waking {
        WakeBy::Nobody => return Ok(Waking::Off),
        WakeBy::Dispatch => return dispatch(queue, launcher).map(Waking::Dispatched),
        WakeBy::Notifier { program, dispatch_with } => (program, dispatch_with),
    };
    let waking = match notifier::ask(program, word, queue.location(), source) {
        Answer::Queued => {
            log!(queue, Info, "notifier: queued a dispatch");
            Waking::Queued
        }
        Answer::AlreadyQueued => Waking::AlreadyQueued,
        Answer::Failed(why) => {
            log!(queue, Warn, "notifier: {why}; dispatching without it");
            return dispatch(queue, launcher).map(Waking::Dispatched);
        }
    };
    launcher.start_background(&queue.files, WATCHDOG_DELAY)?;
    Ok(waking)
}

/// Wakes one consumer after a change that may have made it due.
///
/// # Errors
///
/// As [`wake`]; if it is due but could not be started, or its subscription is broken.
pub fn wake_consumer(queue: &mut Queue, launcher: &Launcher, consumer: &ConsumerId) -> Result<()> {
    let subscription = queue.store.subscription(consumer)?;
    if subscription.as_ref().is_some_and(|one| one.options.finishes_singly()) {
        // Its handler may be at work, and is to follow the change, too.
        notify_supervisors(queue);
    }
    for (_, done) in wake_some(queue, launcher, subscription.into_iter().collect())? {
        if let Dispatched::Broken(e) | Dispatched::Failed(e) = done {
            return Err(e);
        }
    }
    Ok(())
}

/// Wakes all consumers but one: a handler that pushes into its own thread need not be woken for that.
/// A failure for one consumer is logged; the others are still woken.
///
/// # Errors
///
/// As [`wake`].
pub fn wake_others(queue: &mut Queue, launcher: &Launcher, own: &ConsumerId) -> Result<()> {
    let mut others = queue.store.subscriptions()?;
    others.retain(|subscription| subscription.consumer != *own);
    wake_some(queue, launcher, others).map(drop)
}

/// Starts the consumers that are due or, if other processes start them, notifies these if any is due.
fn wake_some(
    queue: &mut Queue,
    launcher: &Launcher,
    subscriptions: Vec<Subscription>,
) -> Result<Vec<(ConsumerId, Dispatched)>> {
    if !queue.location().backend().wakes_on_push {
        // Without reading the table: a user who may push need not be allowed to read.
        queue.files.touch(COMMIT).ok();
        queue.store.announce(Notice::Stored);
        return Ok(Vec::new());
    }
    if launcher.waking == WakeBy::Dispatch && queue.files.is_owner() {
        let all = start(queue, launcher, subscriptions, Some(OWN_TIME), Waits::Timer)?;
        log_skipped(&queue.files, &all);
        return Ok(all);
    }
    let until = Some(Instant::now() + OWN_TIME);
    let (mut due, mut broken) = (false, Vec::new());
    for subscription in subscriptions {
        match next_step(queue, &subscription, until) {
            Ok(NextStep::None { .. }) => {}
            Ok(_) => due = true,
            Err(e) => broken.push((subscription.consumer, Dispatched::Broken(e))),
        }
    }
    if due {
        // For a worker, which otherwise looks within a second.
        queue.files.touch(COMMIT).ok();
        wake(queue, launcher, "self")?;
    }
    Ok(broken)
}

/// Runs the background process. `lock_fd` is the lock that its starter passed on.
///
/// # Errors
///
/// It was not started by a push; the thread cannot be read or dispatched.
///
/// # Safety
///
/// Nothing else in this process may own the descriptor `lock_fd`.
pub unsafe fn in_background(
    location: &Location,
    launcher: &Launcher,
    delay: Duration,
    lock_fd: RawFd,
) -> Result<()> {
    let files = files_of(location)?;
    // SAFETY: guaranteed by the caller.
    let lock = unsafe { Lock::adopt(lock_fd, &files, WAKE_LOCK) };
    let lock = lock.ok_or_else(|| Error::Other("this process is started by a push".into()))?;
    std::thread::sleep(delay);
    let all = start_with_retries(&files, launcher)?;
    log_skipped(&files, &all);
    lock.release();
    // A push that found the lock held in the meantime had committed before it was released.
    start_with_retries(&files, launcher).map(drop)
}

/// Starts all consumers that are due, without a time limit, and retries with growing pauses after failures
/// that may pass. Returns the final result for each consumer; empty if the thread is gone.
fn start_with_retries(files: &Files, launcher: &Launcher) -> Result<Vec<(ConsumerId, Dispatched)>> {
    let mut backoff = ExponentialBackoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    while files.still_there() {
        let started = Queue::open(files.location()).and_then(|mut queue| {
            let all = queue.store.subscriptions()?;
            start(&mut queue, launcher, all, None, Waits::Timer)
        });
        match started {
            Ok(all) if all.iter().any(|(_, done)| may_be_started_later(done)) => {}
            Err(e) if e.may_pass() => log!(files, Warn, "wake: tries again: {e}"),
            done => return done,
        }
        std::thread::sleep(backoff.pause());
    }
    Ok(Vec::new())
}

/// Whether a consumer could not be started for a reason that may pass by itself.
fn may_be_started_later(done: &Dispatched) -> bool {
    matches!(done, Dispatched::Failed(e) if e.may_pass())
}
