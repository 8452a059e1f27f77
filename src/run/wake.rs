//! Waking consumers after something was stored: through a notifier, by dispatching, or not at all.
//!
//! A notifier is never trusted: after it, a process in the background, one per thread, waits a second and
//! then dispatches. The same process looks through backlogs that are too long for a push. A push that finds
//! its lock held had committed before, and it dispatches once more after releasing it.

use std::os::fd::RawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use super::dispatch::{Dispatched, NextStep, OWN_TIME, dispatch, log_lock_held, next_step, start, start_all};
use super::launcher::{Launcher, WAKE_LOCK, WakeBy};
use super::notifier::{self, Answer};
use crate::error::{Error, Result};
use crate::files::lock::Lock;
use crate::files::log::log;
use crate::files::{COMMIT, Files};
use crate::model::subscription::{ConsumerId, Subscription};
use crate::queue::Queue;
use crate::store::Store;

/// How long a notifier has before its work is done for it.
const WATCHDOG_DELAY: Duration = Duration::from_secs(1);

/// Pauses between two tries where the database is locked, say, or no process can be started.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What became of the waking.
#[derive(Debug)]
pub enum Waking {
    /// A notifier said that it will run a dispatch.
    Queued,
    /// A notifier had such a task already.
    AlreadyQueued,
    /// This process dispatched.
    Dispatched(Vec<(ConsumerId, Dispatched)>),
    /// Waking is switched off.
    Off,
    /// The thread belongs to somebody else, whose next push or dispatch will see to it.
    LeftToOwner,
}

/// Wakes the consumers that have something pending, in the way the launcher says, on behalf of `source`.
///
/// # Errors
///
/// This process was to dispatch, or to start the process in the background, and could not.
pub fn wake(queue: &mut Queue, launcher: &Launcher, source: &str) -> Result<Waking> {
    if !queue.files.is_owner() {
        log!(queue, Info, "wake: left to the owner of the thread");
        return Ok(Waking::LeftToOwner);
    }
    let (program, word) = match &launcher.waking {
        WakeBy::Nobody => return Ok(Waking::Off),
        WakeBy::Dispatch => return dispatch(queue, launcher).map(Waking::Dispatched),
        WakeBy::Notifier { program, dispatch_with } => (program, dispatch_with),
    };
    let waking = match notifier::ask(program, word, queue.path(), source) {
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

/// Wakes one consumer after something was changed for it, if that made it due.
///
/// # Errors
///
/// As [`wake`]; when it could not be started, or it cannot be told whether it is due.
pub fn wake_consumer(queue: &mut Queue, launcher: &Launcher, consumer: &ConsumerId) -> Result<()> {
    let subscription = queue.store.subscription(consumer)?;
    for (_, done) in wake_some(queue, launcher, subscription.into_iter().collect())? {
        if let Dispatched::Broken(e) | Dispatched::Failed(e) = done {
            return Err(e);
        }
    }
    Ok(())
}

/// Wakes all consumers but one: a handler that pushes into its own thread need not be woken for that.
/// Trouble with one consumer is logged and does not keep the others from being woken.
///
/// # Errors
///
/// As [`wake`].
pub fn wake_others(queue: &mut Queue, launcher: &Launcher, own: &ConsumerId) -> Result<()> {
    let mut others = queue.store.subscriptions()?;
    others.retain(|subscription| subscription.consumer != *own);
    wake_some(queue, launcher, others).map(drop)
}

/// Starts those that are due; where that is left to others, lets them know if any is.
fn wake_some(
    queue: &mut Queue,
    launcher: &Launcher,
    subscriptions: Vec<Subscription>,
) -> Result<Vec<(ConsumerId, Dispatched)>> {
    if launcher.waking == WakeBy::Dispatch && queue.files.is_owner() {
        let all = start(queue, launcher, subscriptions, Some(OWN_TIME))?;
        log_lock_held(&queue.files, &all);
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
        // A worker may be following; where it is not told, it looks within a second.
        queue.files.touch(COMMIT).ok();
        wake(queue, launcher, "self")?;
    }
    Ok(broken)
}

/// The life of the process in the background. `lock_fd` is the lock that its starter passed on.
///
/// # Errors
///
/// A push did not start it; the thread cannot be read or dispatched.
///
/// # Safety
///
/// Nothing else in this process may own the descriptor `lock_fd`.
pub unsafe fn in_background(dir: &Path, launcher: &Launcher, delay: Duration, lock_fd: RawFd) -> Result<()> {
    let files = Files::open(dir)?;
    // SAFETY: the caller's promise.
    let lock = unsafe { Lock::adopt(lock_fd, &files, WAKE_LOCK) };
    let lock = lock.ok_or_else(|| Error::Other("this process is started by a push".into()))?;
    std::thread::sleep(delay);
    let all = start_patiently(&files, launcher)?;
    log_lock_held(&files, &all);
    lock.release();
    // A push that was turned away meanwhile had committed before the lock was free again.
    start_patiently(&files, launcher).map(drop)
}

/// Starts everybody who is due, however long it takes, and tries again with growing pauses where that
/// failed and another try may succeed. Returns what became of each at last; nothing if the thread is gone.
fn start_patiently(files: &Files, launcher: &Launcher) -> Result<Vec<(ConsumerId, Dispatched)>> {
    let mut pause = FIRST_PAUSE;
    while files.still_there() {
        let started = Queue::open(files.path()).and_then(|mut queue| start_all(&mut queue, launcher, None));
        match started {
            Ok(all) if all.iter().any(|(_, done)| may_be_started_later(done)) => {}
            Err(e) if e.may_pass() => log!(files, Warn, "wake: tries again: {e}"),
            done => return done,
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    Ok(Vec::new())
}

/// Whether a consumer could not be started for a reason that may pass without anybody's help.
fn may_be_started_later(done: &Dispatched) -> bool {
    matches!(done, Dispatched::Failed(e) if e.may_pass())
}
