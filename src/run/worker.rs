//! A worker in the foreground: it starts the consumers that have something pending, for as long as it runs.
//!
//! It starts the same supervisors as a push, under the same locks, so there may be any number of workers. For
//! a quiet thread it keeps a watch on `run/_commit` and nothing else. Once a second it looks for what gave no
//! notice: commits by other programs, threads that are new or gone, supervisors that were killed together with
//! all that would have looked again. It leaves long backlogs to a process in the background, and comes back
//! later to a locked database, so that no thread waits for another.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, poll};
use rustix::process::Signal;

use super::dispatch::{Dispatched, OWN_TIME, start_all, try_lock};
use super::handler;
use super::launcher::{Launcher, SUPERVISE, WAKE};
use super::process::background_below;
use super::shutdown::Shutdown;
use crate::error::{Error, IoContext, Result};
use crate::files::log::log;
use crate::files::stamp::Stamp;
use crate::files::watch::{LOOK_EVERY, Notice, PAUSE, WITHOUT_NOTICES, Watcher};
use crate::files::{self, COMMIT, Files};
use crate::model::subscription::ConsumerId;
use crate::queue::Queue;

/// How long to wait for another writer before other threads have their turn.
const PATIENCE: Duration = Duration::from_millis(20);

/// A thread that is pushed to all the time is looked at no more often than this.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// The longest pause after which a look that failed is tried again; the first is [`LOOK_EVERY`].
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// How often processes that are to end are looked at.
const ENDING_STEP: Duration = Duration::from_millis(50);

/// How long supervisors have to end their runs and record that when the time for handlers is over.
const LAST_GRACE: Duration = Duration::from_secs(5);

/// Which threads to work for.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// These. One that is moved away is waited for.
    pub threads: Vec<PathBuf>,
    /// All in these directories: threads that come are taken up, and ones that go are let go.
    pub roots: Vec<PathBuf>,
}

/// What a worker tells its starter.
#[derive(Debug)]
pub enum News<'a> {
    /// Whatever was pending is started, and pushes are heard.
    Ready,
    /// Nothing can be started in this thread for now. Told once until it works again.
    Trouble { path: &'a Path, error: &'a Error },
    /// No more runs are started.
    Stopping,
}

/// Works until `shutdown` says otherwise. Then lets the runs that it has started end for at most
/// `grace`, ends those that are left, and returns when they are gone. A second request ends them at
/// once.
///
/// # Errors
///
/// When it begins: one of the threads, or a root, cannot be used.
pub fn follow(
    scope: &Scope,
    launcher: &Launcher,
    shutdown: &Shutdown,
    grace: Duration,
    tell: &mut dyn FnMut(News<'_>),
) -> Result<()> {
    // What its supervisors leave behind becomes its own children, to be reaped.
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).ok();
    let mut worker = Worker {
        scope,
        launcher,
        watcher: Watcher::open(),
        threads: BTreeMap::new(),
        told: HashSet::new(),
        tell,
    };
    for path in &scope.threads {
        worker.take_up(&files::absolute(path).at("find", path)?)?;
    }
    for root in &scope.roots {
        std::fs::read_dir(root).at("read", root)?;
    }
    worker.look_around();
    worker.work(shutdown);
    (worker.tell)(News::Stopping);
    end_background(shutdown, grace);
    Ok(())
}

struct Worker<'a> {
    scope: &'a Scope,
    launcher: &'a Launcher,
    watcher: Watcher,
    /// By their absolute paths.
    threads: BTreeMap<PathBuf, Followed>,
    /// Those whose trouble was told.
    told: HashSet<PathBuf>,
    tell: &'a mut dyn FnMut(News<'_>),
}

/// A thread that is worked for.
struct Followed {
    home: (u64, u64),
    /// On its `run/_commit`, if there can be one.
    watch: Option<i32>,
    /// How its database was before the last look. `None` if it may have changed since all the same.
    seen: Option<Stamp>,
    /// When to look at it.
    due: Option<Instant>,
    /// The last look.
    looked: Option<Instant>,
    /// How long to wait if the next look fails, too.
    pause: Duration,
    /// Consumers that had something pending, and somebody at work.
    busy: Vec<ConsumerId>,
}

impl Followed {
    /// Has it looked at when the process that gave notice had time to end.
    fn notice(&mut self) {
        let now = Instant::now() + PAUSE;
        let at = self.looked.map_or(now, |looked| now.max(looked + BETWEEN_LOOKS));
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }
}

impl Worker<'_> {
    fn work(&mut self, shutdown: &Shutdown) {
        let mut ready = false;
        let mut look_around_at = Instant::now() + LOOK_EVERY;
        while shutdown.requests() == 0 {
            handler::reap();
            if Instant::now() >= look_around_at {
                self.look_around();
                look_around_at = Instant::now() + LOOK_EVERY;
            }
            self.look_at_unwatched();
            let next = self.threads.iter().filter_map(|(path, thread)| Some((thread.due?, path))).min();
            let next = next.map(|(due, path)| (due, path.clone()));
            let until = match next {
                Some((due, path)) if due <= Instant::now() => {
                    self.look(&path);
                    Instant::now()
                }
                Some((due, _)) => look_around_at.min(due),
                None => look_around_at,
            };
            if !ready && self.threads.values().all(|thread| thread.looked.is_some()) {
                ready = true;
                (self.tell)(News::Ready);
            }
            self.wait(until, shutdown);
        }
    }

    /// Waits until that time, a notice or a request to end.
    fn wait(&mut self, until: Instant, shutdown: &Shutdown) {
        let mut left = until.saturating_duration_since(Instant::now());
        if self.threads.values().any(|thread| thread.watch.is_none()) {
            left = left.min(WITHOUT_NOTICES);
        }
        self.watcher.poll(left, [shutdown.poll_fd()]);
        for notice in self.watcher.take() {
            match notice {
                // Somebody is removing the thread. If it stays, it is taken up anew.
                Notice::Gone(watch) => self.threads.retain(|_, thread| thread.watch != Some(watch)),
                Notice::Touched(watch) => {
                    let touched = self.threads.values_mut().filter(|thread| thread.watch == Some(watch));
                    touched.for_each(Followed::notice);
                }
                Notice::Overflow => self.threads.values_mut().for_each(Followed::notice),
            }
        }
    }

    /// Starts the consumers that are due in one thread.
    fn look(&mut self, path: &Path) {
        // Taken first: a commit after this is one that the next look has to see.
        let seen = Stamp::of(path);
        let Some(thread) = self.threads.get_mut(path) else { return };
        if seen.is_none() || (thread.watch.is_some() && !path.join(COMMIT).exists()) {
            // Somebody is removing the thread, and to open the database would put new files in the way;
            // or it is gone already. A look around will tell.
            thread.due = None;
            return;
        }
        let done = start_in(path, self.launcher);
        let failed = match &done {
            Ok(all) => all.iter().any(|(_, done)| matches!(done, Dispatched::Failed(_))),
            Err(_) => true,
        };
        if let Err(error) = &done {
            self.trouble(path, error);
        } else {
            self.told.remove(path);
        }
        let Some(thread) = self.threads.get_mut(path) else { return };
        let now = Instant::now();
        thread.seen = seen.filter(|stamp| !stamp.is_fresh());
        thread.looked = Some(now);
        thread.due = failed.then_some(now + thread.pause);
        thread.pause = if failed { (thread.pause * 2).min(LONGEST_PAUSE) } else { LOOK_EVERY };
        let at_work = |done: &Dispatched| matches!(done, Dispatched::LockHeld | Dispatched::Started);
        let all = done.into_iter().flatten();
        thread.busy = all.filter(|(_, done)| at_work(done)).map(|(consumer, _)| consumer).collect();
    }

    /// Finds what gave no notice.
    fn look_around(&mut self) {
        let mut gone = Vec::new();
        for (path, thread) in &mut self.threads {
            match Stamp::of(path) {
                Some(stamp) if stamp.home == thread.home => {
                    if thread.seen != Some(stamp) || somebody_stopped_working(path, thread) {
                        thread.notice();
                    }
                }
                _ => gone.push(path.clone()),
            }
        }
        for path in gone {
            if let Some(watch) = self.threads.remove(&path).and_then(|thread| thread.watch) {
                self.watcher.remove(watch);
            }
        }
        for path in self.wanted() {
            if !self.threads.contains_key(&path)
                && let Err(error) = self.take_up(&path)
            {
                self.trouble(&path, &error);
            }
        }
    }

    /// Looks for commits to threads of which there are no notices.
    fn look_at_unwatched(&mut self) {
        for (path, thread) in self.threads.iter_mut().filter(|(_, thread)| thread.watch.is_none()) {
            if thread.looked.is_none_or(|looked| looked.elapsed() >= WITHOUT_NOTICES)
                && Stamp::of(path) != thread.seen
            {
                thread.notice();
            }
        }
    }

    /// The threads there should be, as far as they can be found now.
    fn wanted(&self) -> Vec<PathBuf> {
        let named = self.scope.threads.iter().filter_map(|path| files::absolute(path).ok());
        let mut wanted: Vec<PathBuf> = named.collect();
        for root in &self.scope.roots {
            let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
            let root = files::absolute(root).unwrap_or_else(|_| root.clone());
            for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
                let path = root.join(entry.file_name());
                if self.threads.contains_key(&path) || Stamp::of(&path).is_some() {
                    wanted.push(path);
                }
            }
        }
        wanted
    }

    /// Begins to work for a thread.
    fn take_up(&mut self, path: &Path) -> Result<()> {
        let files = Files::open(path)?;
        if !files.is_owner() {
            return Err(Error::NotOwner(path.to_owned()));
        }
        log!(files, Info, "dispatch: a worker follows pid={}", std::process::id());
        let thread = Followed {
            home: files.home(),
            watch: self.watcher.add(&files, COMMIT),
            seen: None,
            due: Some(Instant::now()),
            looked: None,
            pause: LOOK_EVERY,
            busy: Vec::new(),
        };
        self.threads.insert(path.to_owned(), thread);
        Ok(())
    }

    fn trouble(&mut self, path: &Path, error: &Error) {
        if self.told.insert(path.to_owned()) {
            (self.tell)(News::Trouble { path, error });
        }
    }
}

fn start_in(path: &Path, launcher: &Launcher) -> Result<Vec<(ConsumerId, Dispatched)>> {
    let mut queue = Queue::open(path)?;
    queue.store.wait_at_most(PATIENCE)?;
    start_all(&mut queue, launcher, Some(OWN_TIME))
}

/// Whether the lock of a consumer that was busy is free. Its holder has looked again, unless it was
/// killed. The lock is released at once; the look that follows is the one that every release requires.
fn somebody_stopped_working(path: &Path, thread: &Followed) -> bool {
    if thread.busy.is_empty() {
        return false;
    }
    let Ok(files) = Files::open(path) else { return false };
    thread.busy.iter().any(|consumer| match try_lock(&files, consumer) {
        Ok(Some(lock)) => {
            lock.release();
            true
        }
        _ => false,
    })
}

/// Ends the supervisors that this process, or whatever it started, has started: at first they let
/// their runs end, and after `grace`, or a further request, they end them. Where processes cannot be
/// found, supervisors go on by themselves.
fn end_background(shutdown: &Shutdown, grace: Duration) {
    let began = Instant::now();
    let mut told = Vec::new();
    loop {
        handler::reap();
        let left = background_below(&[SUPERVISE, WAKE]);
        let now = began.elapsed();
        let over = now >= grace || shutdown.requests() > 1;
        if left.is_empty() || (over && now >= grace + LAST_GRACE) {
            return;
        }
        for process in left {
            // Signals that come in quick succession are one; more than two are as good as two.
            if over || !told.contains(&process) {
                process.signal(Signal::TERM).ok();
                told.push(process);
            }
        }
        poll(&mut [shutdown.poll_fd()], Timespec::try_from(ENDING_STEP).ok().as_ref()).ok();
    }
}
