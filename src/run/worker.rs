//! A worker in the foreground: while it runs, it starts the consumers that have something pending.
//!
//! It is a [`Starter`] that also notices pushes at once, limits the runs that it has at a time, reaps its processes, and
//! ends them when it ends. For a quiet thread it keeps a watch on `run/_commit` and nothing else. Once a second it looks
//! for changes without a notice: commits by other programs, new and removed threads, and supervisors that were killed
//! together with every process that would have looked again.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::dispatch::Slots;
use super::handler;
use super::launcher::{Launcher, SUPERVISE, TIMER, WAKE};
use super::process::background_below;
use super::scope::Scope;
use super::shutdown::Shutdown;
use super::starter::{Followed, News, Starter};
use super::workers;
use crate::error::Result;
use crate::files::stamp::Stamp;
use crate::files::watch::{LOOK_EVERY, Notice, WITHOUT_NOTICES, Watcher};
use crate::model::location::Location;
use crate::queue::locations::{files_of, leave};

/// Polling interval for processes that were asked to end.
const ENDING_STEP: Duration = Duration::from_millis(50);

/// How long supervisors have to end their runs and record the outcome, after the grace period of handlers.
const LAST_GRACE: Duration = Duration::from_secs(5);

/// Runs a worker until the first request of `shutdown`. Then gives the runs that it has started `grace` to
/// finish, ends those that are left, and returns when they are gone. A second request ends them at once. It has at
/// most `max_runs` runs at a time, at least 1; `None` for no limit. Runs that others start do not count.
///
/// # Errors
///
/// At startup: one of the threads, or a root, cannot be used.
pub fn follow(
    scope: &Scope,
    max_runs: Option<usize>,
    launcher: &Launcher,
    shutdown: &Shutdown,
    grace: Duration,
    tell: &mut dyn FnMut(News<'_>),
) -> Result<()> {
    // Processes that its supervisors leave behind become its own children, to be reaped.
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).ok();
    let starter = Starter::with_watcher(scope, launcher, tell, Some(Watcher::open()))?;
    let slots = max_runs.map(|most| Slots { most, supervisors: Vec::new() });
    let mut worker = Worker { starter, slots };
    worker.work(shutdown);
    (worker.starter.tell)(News::Stopping);
    end_background(shutdown, grace);
    worker.leave();
    Ok(())
}

struct Worker<'a> {
    starter: Starter<'a>,
    /// If the number of runs is limited.
    slots: Option<Slots>,
}

impl Worker<'_> {
    fn work(&mut self, shutdown: &Shutdown) {
        let mut ready = false;
        let mut next_check = Instant::now();
        while shutdown.requests() == 0 {
            handler::reap();
            if self.slots.as_mut().is_some_and(Slots::has_free) {
                let queued = self.starter.threads.values_mut().filter(|thread| thread.queued);
                queued.for_each(Followed::notice);
            }
            if Instant::now() >= next_check {
                self.starter.check(true);
                next_check = Instant::now() + LOOK_EVERY;
            }
            self.check_unwatched();
            let next = self.starter.look_at_due(self.slots.as_mut());
            if !ready && self.starter.has_seen_all() {
                ready = true;
                (self.starter.tell)(News::Ready);
            }
            self.wait(next.map_or(next_check, |next| next.min(next_check)), shutdown);
        }
    }

    /// Says that it follows its threads no more.
    fn leave(&self) {
        // With a server, all are signed out at once.
        let here = |location: &&Location| location.backend().has_database_file;
        for location in self.starter.threads.keys().filter(here) {
            if let Ok(files) = files_of(location) {
                workers::sign_out(&files);
            }
        }
        leave();
    }

    /// Waits until `until`, a notice or a shutdown request.
    fn wait(&mut self, until: Instant, shutdown: &Shutdown) {
        let mut left = until.saturating_duration_since(Instant::now());
        // The end of a supervisor gives no notice.
        if self.starter.threads.values().any(|thread| thread.queued || thread.is_unwatched()) {
            left = left.min(WITHOUT_NOTICES);
        }
        let Some(watcher) = &self.starter.watcher else { return };
        watcher.poll(left, [shutdown.poll_fd()]);
        let mut touched = HashSet::new();
        for notice in watcher.take() {
            match notice {
                // The thread is being removed. If it is still there at the next check, it is followed again.
                Notice::Gone(watch) => self.starter.remove(watch),
                Notice::Touched(watch) => drop(touched.insert(watch)),
                Notice::Overflow => self.starter.threads.values_mut().for_each(Followed::notice),
            }
        }
        if !touched.is_empty() {
            let is_touched =
                |thread: &&mut Followed| thread.watch.is_some_and(|watch| touched.contains(&watch));
            self.starter.threads.values_mut().filter(is_touched).for_each(Followed::notice);
        }
    }

    /// Checks for commits to threads without a watch.
    fn check_unwatched(&mut self) {
        let threads = self.starter.threads.iter_mut();
        for (location, thread) in threads.filter(|(_, thread)| thread.is_unwatched()) {
            if thread.looked.is_none_or(|looked| looked.elapsed() >= WITHOUT_NOTICES)
                && Stamp::of(location, &thread.path) != thread.seen
            {
                thread.notice();
            }
        }
    }
}

/// Ends the supervisors among this process's descendants: at first they let their runs finish, and after
/// `grace`, or a further request, they end them. Where processes cannot be listed, supervisors continue on
/// their own.
fn end_background(shutdown: &Shutdown, grace: Duration) {
    let began = Instant::now();
    let mut signalled = Vec::new();
    loop {
        handler::reap();
        let left = background_below(&[SUPERVISE, WAKE, TIMER]);
        let now = began.elapsed();
        let over = now >= grace || shutdown.requests() > 1;
        if left.is_empty() || (over && now >= grace + LAST_GRACE) {
            return;
        }
        for process in left {
            // Repeated, because signals in quick succession may be merged; more than two have the effect of
            // two.
            if over || !signalled.contains(&process) {
                process.signal(Signal::TERM).ok();
                signalled.push(process);
            }
        }
        shutdown.wait(ENDING_STEP);
    }
}
