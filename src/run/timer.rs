//! One process waits for all that is to happen in a thread at a later time: the ends of waits between attempts, and
//! scheduled events.
//!
//! A process that leaves a wait behind starts it, or gives a notice if it is there, as the new wait may end before the
//! others. It has the lock `run/_timer.lock`, with its identity in it, so that others see that the waits are attended.
//! It ends when nothing waits, and looks once more after it has released the lock.

use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use chrono::Utc;

use super::attend::{TIMER_LOCK, sign};
use super::awaits::{Awaited, Awaits};
use super::dispatch::{Dispatched, Wait, Waits, start};
use super::due::NextEvent;
use super::launcher::Launcher;
use super::shutdown::Shutdown;
use super::waits::Ends;
use crate::error::{Error, Result};
use crate::files::lock::Lock;
use crate::files::log::log;
use crate::files::stamp::Stamp;
use crate::files::watch::{LOOK_EVERY, Watcher};
use crate::files::{COMMIT, CONTROL, Files};
use crate::model::exponential_backoff::ExponentialBackoff;
use crate::model::location::Location;
use crate::queue::Queue;
use crate::queue::locations::{files_of, spare};
use crate::queue::retention::Keeper;

/// Pauses after a failure that may pass.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// For how long the filters of events that are waited for are evaluated in one look.
const EVALUATE_FOR: Duration = Duration::from_millis(100);

/// How often, at most, to look for events that are waited for.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// When to look again for events that are waited for, though there was no notice.
const FAR: Duration = Duration::from_secs(60 * 60);

/// Runs the timer until nothing waits, or a shutdown is requested. `lock_fd` is the lock that its starter passed on.
///
/// # Errors
///
/// It was not started by this library, or failed in a way that a retry cannot cure.
///
/// # Safety
///
/// Nothing else in this process may own the descriptor `lock_fd`.
pub unsafe fn keep(
    location: &Location,
    launcher: &Launcher,
    lock_fd: RawFd,
    shutdown: &Shutdown,
) -> Result<()> {
    let files = files_of(location)?;
    spare();
    // SAFETY: guaranteed by the caller.
    let lock = unsafe { Lock::adopt(lock_fd, &files, TIMER_LOCK) };
    let mut lock = lock.ok_or_else(|| Error::Other("this process is started by others".into()))?;
    let mut timer = Timer {
        files: &files,
        launcher,
        ends: Ends::default(),
        next_event: NextEvent::default(),
        awaits: Awaits::default(),
        awaited: Awaited::Nothing,
        commits: None,
        keeper: Keeper::default(),
    };
    let watcher = Watcher::new(&files, CONTROL);
    loop {
        sign(&lock);
        while timer.wait_for_next(&watcher, shutdown)? {}
        if shutdown.requests() > 0 || !files.still_there() {
            return Ok(());
        }
        lock.release();
        // Who found the lock held has left a wait before.
        if timer.look()?.is_none() {
            return Ok(());
        }
        let Some(again) = Lock::try_take(&files, TIMER_LOCK)? else { return Ok(()) };
        lock = again;
    }
}

struct Timer<'a> {
    files: &'a Files,
    launcher: &'a Launcher,
    ends: Ends,
    /// Applies the thread's retention.
    keeper: Keeper,
    next_event: NextEvent,
    awaits: Awaits,
    /// What the last look has found to wait for events.
    awaited: Awaited,
    /// The watch of what is stored, while something waits for events.
    commits: Option<i32>,
}

impl Timer<'_> {
    /// Starts what is due, and waits until the next wait is over or there is a notice. Returns false if nothing waits
    /// any more.
    fn wait_for_next(&mut self, watcher: &Watcher, shutdown: &Shutdown) -> Result<bool> {
        watcher.clear();
        // Before the look, so that a commit by another program, which gives no notice, is seen after it.
        let stamp = self.stamp();
        let looked = Instant::now();
        let Some(next) = self.look()? else { return Ok(false) };
        let awaits = self.awaited != Awaited::Nothing;
        match (awaits, self.commits) {
            // What is stored before the watch begins is not noticed.
            (true, None) => {
                self.commits = watcher.add(self.files, COMMIT);
                if self.commits.is_some() {
                    return Ok(true);
                }
            }
            (false, Some(watch)) => {
                watcher.remove(watch);
                self.commits = None;
            }
            _ => {}
        }
        let end = Instant::now() + next.left;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            // The clock may be set forward, past the end of the wait.
            if left.is_zero() || next.until <= Utc::now() {
                return Ok(true);
            }
            let noticed = watcher.wait(left.min(LOOK_EVERY), [shutdown.poll_fd()]);
            super::handler::reap();
            if shutdown.requests() > 0 || !self.files.still_there() {
                return Ok(false);
            }
            if awaits && noticed {
                // Each push gives a notice.
                std::thread::sleep(BETWEEN_LOOKS.saturating_sub(looked.elapsed()));
            }
            if noticed || (awaits && (stamp.is_none() || self.stamp() != stamp)) {
                return Ok(true);
            }
        }
    }

    /// Changes whenever something is stored; `None` if that cannot be seen from here.
    fn stamp(&self) -> Option<Stamp> {
        let location = self.files.location();
        let is_here = !location.backend().is_shared_by_machines;
        is_here.then(|| Stamp::of(location, self.files.path())).flatten()
    }

    /// Starts what is due. Returns the wait that ends next; `None` if nothing waits.
    fn look(&mut self) -> Result<Option<Wait>> {
        let mut backoff = ExponentialBackoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        while self.files.still_there() {
            match self.start() {
                Err(e) if e.may_pass() => log!(self.files, Warn, "timer: tries again: {e}"),
                Err(Error::Moved(_) | Error::NotAThread(_)) => break,
                done => return done,
            }
            std::thread::sleep(backoff.pause());
        }
        Ok(None)
    }

    fn start(&mut self) -> Result<Option<Wait>> {
        self.files.must_be_there()?;
        let mut queue = Queue::open(self.files.location())?;
        let next_event = self.next_event.make(&mut queue, false)?;
        self.awaited = self.awaits.look(&mut queue, EVALUATE_FOR)?;
        let all = queue.store.subscriptions()?;
        let mut next = next_event.map(|left| Wait { until: Utc::now() + left, left, recorded: None });
        if self.awaited != Awaited::Nothing {
            let left = if self.awaited == Awaited::More { Duration::ZERO } else { FAR };
            let wait = Wait { until: Utc::now() + left, left, recorded: None };
            if next.is_none_or(|next| wait.left < next.left) {
                next = Some(wait);
            }
        }
        self.ends.look();
        for (consumer, done) in start(&mut queue, self.launcher, all, None, Waits::Left(None))? {
            match done {
                Dispatched::Waits(wait) => {
                    let left = self.ends.left(&mut queue, &consumer, wait)?;
                    if next.is_none_or(|next| left < next.left) {
                        next = Some(Wait { left, ..wait });
                    }
                }
                Dispatched::Failed(e) if e.may_pass() => return Err(e),
                _ => {}
            }
        }
        self.keeper.keep(&mut queue);
        Ok(next)
    }
}
