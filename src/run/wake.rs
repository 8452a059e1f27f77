//! Waking consumers after something was stored: through a notifier, by dispatching, or not at all.
//!
//! A notifier is never trusted: after it, a process in the background, one per thread, waits a second and
//! then dispatches. The same process looks through backlogs that are too long for a push. A push that finds
//! its lock held had committed before, and it looks once more after releasing it.

use std::os::fd::RawFd;
use std::path::Path;
use std::time::Duration;

use super::dispatch::{Dispatched, Effort, dispatch, log_lock_held, next_step, start_if_due};
use super::notifier::{self, Answer};
use super::{Launcher, WakeBy, process, spawn};
use crate::error::{Error, Result};
use crate::files::lock::Lock;
use crate::files::log::log;
use crate::files::{COMMIT, Files};
use crate::model::subscription::ConsumerId;
use crate::queue::Queue;
use crate::store::Store;

/// The subcommand that the process in the background runs as.
pub const COMMAND: &str = "_wake";

const LOCK: &str = "run/_wake.lock";

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
        WakeBy::Dispatch => return dispatch(queue, launcher, Effort::Quick).map(Waking::Dispatched),
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
            return dispatch(queue, launcher, Effort::Quick).map(Waking::Dispatched);
        }
    };
    start_background(queue, launcher, WATCHDOG_DELAY)?;
    Ok(waking)
}

/// Wakes one consumer after something was changed for it, if that made it due.
///
/// # Errors
///
/// As [`wake`]; when it cannot be told whether it is due.
pub fn wake_consumer(queue: &mut Queue, launcher: &Launcher, consumer: &ConsumerId) -> Result<()> {
    let Some(subscription) = queue.store.subscription(consumer)? else { return Ok(()) };
    let until = Some(std::time::Instant::now() + Duration::from_millis(5));
    match next_step(queue, &subscription, until)? {
        super::dispatch::Step::None { .. } => return Ok(()),
        _ if launcher.waking != WakeBy::Dispatch || !queue.files.is_owner() => {
            // A worker may be following; where it is not told, it looks within a second.
            queue.files.touch(COMMIT).ok();
            return wake(queue, launcher, "self").map(drop);
        }
        _ => {}
    }
    match start_if_due(queue, launcher, subscription, until)? {
        Dispatched::LeftToBackground => start_background(queue, launcher, Duration::ZERO),
        Dispatched::LockHeld => {
            log_lock_held(queue, consumer);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Starts the process in the background, unless one is at work.
pub(super) fn start_background(queue: &Queue, launcher: &Launcher, delay: Duration) -> Result<()> {
    let Some(lock) = Lock::try_take(&queue.files, LOCK)? else { return Ok(()) };
    let mut command = launcher.background(COMMAND, &queue.files);
    command.arg("--delay-ms").arg(delay.as_millis().to_string());
    match spawn::holding(&mut command, &lock).spawn() {
        Ok(_) => Ok(()),
        Err(source) => {
            lock.release();
            Err(Error::Spawn { what: "a process in the background", source })
        }
    }
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
    let lock = unsafe { Lock::adopt(lock_fd, &files, LOCK) };
    let mut lock = lock.ok_or_else(|| Error::Other("this process is started by a push".into()))?;
    let (mut delay, mut pause) = (delay, FIRST_PAUSE);
    loop {
        std::thread::sleep(delay);
        let done = dispatch_all(&files, launcher);
        lock.release();
        if !files.still_there() {
            return Ok(());
        }
        // A push that was turned away meanwhile had committed before the lock was free again.
        let due = done.and_then(|started| Ok((started, somebody_is_due(&files)?)));
        let all_started = match due {
            Ok((_, false)) => return Ok(()),
            Ok((started, true)) => started,
            Err(e) if e.may_pass() => {
                log!(files, Warn, "wake: tries again: {e}");
                false
            }
            Err(e) => return Err(e),
        };
        match Lock::try_take(&files, LOCK)? {
            Some(again) => lock = again,
            None => return Ok(()),
        }
        delay = match launcher.waking {
            WakeBy::Notifier { .. } => WATCHDOG_DELAY,
            _ => Duration::ZERO,
        };
        if all_started {
            pause = FIRST_PAUSE;
        } else {
            delay = delay.max(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Returns whether nobody was due who could not be started.
fn dispatch_all(files: &Files, launcher: &Launcher) -> Result<bool> {
    if !files.still_there() {
        return Ok(true);
    }
    let mut queue = Queue::open(files.path())?;
    let all = dispatch(&mut queue, launcher, Effort::Thorough)?;
    Ok(!all.iter().any(|(_, done)| matches!(done, Dispatched::Failed(_))))
}

/// Whether some consumer is to be started, and nobody is recorded as taking care of it.
fn somebody_is_due(files: &Files) -> Result<bool> {
    let mut queue = Queue::open(files.path())?;
    for subscription in queue.store.subscriptions()? {
        let supervised = process::supervisor_of(files, &subscription.state) != process::Liveness::Dead;
        // A broken subscription waits for its owner, not for a dispatch.
        match next_step(&mut queue, &subscription, None) {
            _ if supervised => {}
            Ok(step) if step.is_due() => return Ok(true),
            Err(e @ Error::Database(_)) => return Err(e),
            _ => {}
        }
    }
    Ok(false)
}
