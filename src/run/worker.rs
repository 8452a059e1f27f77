//! A worker in the foreground: while it runs, it starts the consumers that have something pending.
//!
//! It starts the same supervisors as a push, under the same locks, so there may be any number of workers. For
//! a quiet thread it keeps a watch on `run/_commit` and nothing else. Once a second it looks for changes
//! without a notice: commits by other programs, new and removed threads, and supervisors that were killed
//! together with every process that would have looked again. It leaves long backlogs to a background process
//! and retries a locked database later, so that no thread delays another.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, poll};
use rustix::process::Signal;

use super::dispatch::{Dispatched, OWN_TIME, Slots, start_all, start_within, try_lock};
use super::handler;
use super::launcher::{Launcher, SUPERVISE, WAKE};
use super::process::background_below;
use super::shutdown::Shutdown;
use crate::error::{Error, IoContext, Result};
use crate::files::log::log;
use crate::files::stamp::Stamp;
use crate::files::watch::{LOOK_EVERY, Notice, PAUSE, WITHOUT_NOTICES, Watcher};
use crate::files::{self, COMMIT};
use crate::model::location::Location;
use crate::model::subscription::ConsumerId;
use crate::queue::Queue;
use crate::queue::locations::{self, files_of, listen};

/// The folder in a thread's directory with the threads of its agent's sub-agents.
const SUB_AGENTS: &str = "agents";

/// How long to wait for another writer before moving on to other threads.
const BUSY_TIMEOUT: Duration = Duration::from_millis(20);

/// The shortest time between two looks at a thread that is pushed to all the time.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// How often a worker beside other work checks its threads, of which there may be thousands.
const CHECK_EMBEDDED: Duration = Duration::from_secs(2);

/// It tries locks with every so many of these checks.
const LOCKS_EVERY: u32 = 2;

/// The longest pause before a failed look is retried; the first is [`LOOK_EVERY`]. A server that was away is found
/// sooner than a directory that cannot be used.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
const LONGEST_WITHOUT_SERVER: Duration = Duration::from_secs(10);

/// Polling interval for processes that were told to end.
const ENDING_STEP: Duration = Duration::from_millis(50);

/// How long supervisors have to end their runs and record that, once the grace period of handlers is over.
const LAST_GRACE: Duration = Duration::from_secs(5);

/// The threads that a worker follows.
#[derive(Debug, Clone, Default)]
pub struct WorkerScope {
    /// Individual threads, or locations that name all threads of a server. If one is moved away, the worker waits for
    /// it to come back.
    pub threads: Vec<Location>,
    /// Directories whose threads are all followed, including ones created later. Of every thread, those of its agent's
    /// sub-agents are followed as well.
    pub roots: Vec<PathBuf>,
    /// The most runs that the worker has at a time, at least 1; `None` for no limit. Runs that others start
    /// do not count.
    pub max_runs: Option<usize>,
    /// The worker is a part of a program that also does other things: it only starts what is due. It looks at a
    /// thread at most every two seconds, and not at all while nothing changes there; it neither reaps nor ends
    /// processes.
    pub embedded: bool,
}

/// What a worker reports to its caller.
#[derive(Debug)]
pub enum News<'a> {
    /// Everything that was pending is started, and pushes are noticed.
    Ready,
    /// What had changed in a thread was looked at, and so many consumers were started. It is still open, for
    /// others who have to look at what is new there.
    Looked { location: &'a Location, queue: &'a mut Queue, started: usize },
    /// Nothing can be started in this thread for now. Reported once, until it works again.
    Trouble { location: &'a Location, error: &'a Error },
    /// No more runs are started.
    Stopping,
}

/// Runs a worker until the first request of `shutdown`. Then gives the runs that it has started `grace` to
/// finish, ends those that are left, and returns when they are gone. A second request ends them at once.
///
/// # Errors
///
/// At startup: one of the threads, or a root, cannot be used.
#[expect(clippy::disallowed_methods, reason = "looks for threads")]
pub fn follow(
    scope: &WorkerScope,
    launcher: &Launcher,
    shutdown: &Shutdown,
    grace: Duration,
    tell: &mut dyn FnMut(News<'_>),
) -> Result<()> {
    // Processes that its supervisors leave behind become its own children, to be reaped.
    #[cfg(target_os = "linux")]
    if !scope.embedded {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).ok();
    }
    let mut worker = Worker {
        scope,
        launcher,
        slots: scope.max_runs.map(|most| Slots { most, supervisors: Vec::new() }),
        watcher: Watcher::open(),
        threads: BTreeMap::new(),
        servers: Vec::new(),
        reported: HashSet::new(),
        checks: 0,
        tell,
    };
    for location in &scope.threads {
        match locations::threads(location) {
            Some(Err(error)) if !error.may_pass() => return Err(error),
            Some(_) => worker.servers.push(Server::new(location)),
            None => worker.start_following(&files::absolute_location(location)?)?,
        }
    }
    for root in &scope.roots {
        std::fs::read_dir(root).at("read", root)?;
    }
    worker.check_all();
    worker.work(shutdown);
    (worker.tell)(News::Stopping);
    if !scope.embedded {
        end_background(shutdown, grace);
    }
    Ok(())
}

struct Worker<'a> {
    scope: &'a WorkerScope,
    launcher: &'a Launcher,
    /// If the number of runs is limited.
    slots: Option<Slots>,
    watcher: Watcher,
    /// Directories have absolute paths here.
    threads: BTreeMap<Location, Followed>,
    /// Of whose threads all are followed.
    servers: Vec<Server>,
    /// Threads whose failure was already reported.
    reported: HashSet<Location>,
    /// How many times all threads were checked.
    checks: u32,
    tell: &'a mut dyn FnMut(News<'_>),
}

/// A location that names all threads of a server.
struct Server {
    location: Location,
    /// As they were listed last; `None` before that.
    threads: Option<Vec<Location>>,
    /// When to list them again.
    due: Instant,
    /// The pause before that if it fails.
    pause: Duration,
}

impl Server {
    fn new(location: &Location) -> Server {
        Server { location: location.clone(), threads: None, due: Instant::now(), pause: LOOK_EVERY }
    }
}

/// A thread that the worker follows.
struct Followed {
    /// Its directory or its base.
    path: PathBuf,
    home: (u64, u64),
    /// The watch on its `run/_commit`; `None` if there are no notices.
    watch: Option<i32>,
    /// The database's stamp before the last look. `None` if it was too recent to detect a later commit.
    seen: Option<Stamp>,
    /// The time of the next look, if one is scheduled.
    due: Option<Instant>,
    /// How soon after a notice, so that a pusher on this machine can exit first. In another location it waits for the
    /// server, and mostly is elsewhere.
    lets_finish: Duration,
    /// The time of the last look.
    looked: Option<Instant>,
    /// The pause before a retry if the next look fails.
    pause: Duration,
    /// The thread could not be opened at the last look.
    is_away: bool,
    /// Consumers that had something pending and whose lock was held.
    busy: Vec<ConsumerId>,
    /// Something is due, but all slots were taken.
    queued: bool,
    /// The threads of its agent's sub-agents, as of the last look. One that is made comes with events here, so where
    /// nothing changes nothing is listed.
    below: Vec<PathBuf>,
}

impl Followed {
    /// Schedules a look after the notice.
    fn notice(&mut self) {
        let now = Instant::now() + self.lets_finish;
        let at = self.looked.map_or(now, |looked| now.max(looked + BETWEEN_LOOKS));
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }
}

impl Worker<'_> {
    fn work(&mut self, shutdown: &Shutdown) {
        let mut ready = false;
        let check_every = if self.scope.embedded { CHECK_EMBEDDED } else { LOOK_EVERY };
        let mut next_check = Instant::now() + check_every;
        while shutdown.requests() == 0 {
            if !self.scope.embedded {
                handler::reap();
            }
            if self.slots.as_mut().is_some_and(Slots::has_free) {
                self.threads.values_mut().filter(|thread| thread.queued).for_each(Followed::notice);
            }
            if Instant::now() >= next_check {
                self.check_all();
                next_check = Instant::now() + check_every;
            }
            if !self.scope.embedded {
                self.look_at_unwatched();
            }
            let next =
                self.threads.iter().filter_map(|(location, thread)| Some((thread.due?, location))).min();
            let next = next.map(|(due, location)| (due, location.clone()));
            let until = match next {
                Some((due, location)) if due <= Instant::now() => {
                    self.look(&location);
                    Instant::now()
                }
                Some((due, _)) => next_check.min(due),
                None => next_check,
            };
            let is_listed = self.servers.iter().all(|server| server.threads.is_some());
            if !ready && is_listed && self.threads.values().all(|thread| thread.looked.is_some()) {
                ready = true;
                (self.tell)(News::Ready);
            }
            self.wait(until, shutdown);
        }
    }

    /// Waits until `until`, a notice or a shutdown request.
    fn wait(&mut self, until: Instant, shutdown: &Shutdown) {
        let mut left = until.saturating_duration_since(Instant::now());
        // The end of a supervisor gives no notice.
        let polls = |thread: &Followed| thread.queued || thread.watch.is_none() && !self.scope.embedded;
        if self.threads.values().any(polls) {
            left = left.min(WITHOUT_NOTICES);
        }
        self.watcher.poll(left, [shutdown.poll_fd()]);
        for notice in self.watcher.take() {
            match notice {
                // The thread is being removed. If it is still there at the next check, it is followed again.
                Notice::Gone(watch) => self.threads.retain(|_, thread| thread.watch != Some(watch)),
                Notice::Touched(watch) => {
                    let touched = self.threads.values_mut().filter(|thread| thread.watch == Some(watch));
                    touched.for_each(Followed::notice);
                }
                Notice::Overflow => self.threads.values_mut().for_each(Followed::notice),
            }
        }
    }

    /// Starts the consumers of one thread that are due.
    fn look(&mut self, location: &Location) {
        let Some(thread) = self.threads.get_mut(location) else { return };
        // Taken before the look, so that a commit during the look changes the stamp; and whether it is fresh is
        // asked at once: after a long look, a commit right after the stamp would seem to be long past.
        let seen = Stamp::of(location, &thread.path);
        let settled = seen.filter(|stamp| !stamp.is_fresh());
        if seen.is_none() || (thread.watch.is_some() && !thread.path.join(COMMIT).exists()) {
            // The thread is gone or is being removed; opening the database now would create new files that
            // make the removal fail. The next check finds out.
            thread.due = None;
            return;
        }
        let looked = Queue::open_waiting(location, BUSY_TIMEOUT).and_then(|mut queue| {
            let all = match self.slots.as_mut() {
                Some(slots) => start_within(&mut queue, self.launcher, slots)?,
                None => start_all(&mut queue, self.launcher, Some(OWN_TIME))?,
            };
            let started = all.iter().filter(|(_, done)| matches!(done, Dispatched::Started)).count();
            (self.tell)(News::Looked { location, queue: &mut queue, started });
            Ok(all)
        });
        let failed = match &looked {
            Ok(all) => {
                self.reported.remove(location);
                all.iter().any(|(_, done)| matches!(done, Dispatched::Failed(_)))
            }
            Err(error) => {
                self.report_trouble(location, error);
                true
            }
        };
        let Some(thread) = self.threads.get_mut(location) else { return };
        let now = Instant::now();
        let below = threads_below(location);
        let is_new = below.iter().any(|path| !thread.below.contains(path));
        thread.below = below;
        thread.seen = settled;
        thread.looked = Some(now);
        let waits = looked.iter().flatten().filter_map(|(_, done)| match done {
            Dispatched::Waits(left) => Some(now + *left),
            _ => None,
        });
        thread.due = waits.chain(failed.then_some(now + thread.pause)).min();
        let longest = if location.dir().is_some() { LONGEST_PAUSE } else { LONGEST_WITHOUT_SERVER };
        thread.pause = if failed { (thread.pause * 2).min(longest) } else { LOOK_EVERY };
        thread.is_away = looked.is_err();
        thread.queued = looked.iter().flatten().any(|(_, done)| matches!(done, Dispatched::Queued));
        let is_busy = |done: &Dispatched| matches!(done, Dispatched::LockHeld | Dispatched::Started);
        let all = looked.into_iter().flatten();
        thread.busy = all.filter(|(_, done)| is_busy(done)).map(|(consumer, _)| consumer).collect();
        if is_new {
            self.follow_new();
        }
    }

    /// Checks all threads for changes without a notice, and finds new and removed ones.
    fn check_all(&mut self) {
        let mut gone = Vec::new();
        self.checks = self.checks.wrapping_add(1);
        // Many consumers may have their locks for hours, and trying one costs more than a look at a file.
        let tries_locks = !self.scope.embedded || self.checks.is_multiple_of(LOCKS_EVERY);
        for (location, thread) in &mut self.threads {
            match Stamp::of(location, &thread.path) {
                // Its stamp says nothing; the next look has its time.
                Some(_) if thread.is_away && location.dir().is_none() => {}
                Some(stamp) if stamp.home == thread.home => {
                    if thread.seen != Some(stamp) || tries_locks && some_lock_was_released(location, thread) {
                        thread.notice();
                    }
                }
                _ => gone.push(location.clone()),
            }
        }
        for location in gone {
            if let Some(watch) = self.threads.remove(&location).and_then(|thread| thread.watch) {
                self.watcher.remove(watch);
            }
        }
        self.list_servers();
        self.follow_new();
    }

    /// Follows the threads in scope that it does not follow yet.
    fn follow_new(&mut self) {
        let mut new: Vec<Location> =
            self.wanted().into_iter().filter(|location| !self.threads.contains_key(location)).collect();
        // What somebody is waiting for is likely to be in the newest ones.
        let changed = |location: &Location| Some(Stamp::of(location, location.dir()?)?.changed());
        new.sort_by_cached_key(|location| std::cmp::Reverse(changed(location)));
        for location in new {
            if let Err(error) = self.start_following(&location) {
                self.report_trouble(&location, &error);
            }
        }
    }

    /// Checks for commits to threads without a watch.
    fn look_at_unwatched(&mut self) {
        for (location, thread) in self.threads.iter_mut().filter(|(_, thread)| thread.watch.is_none()) {
            if thread.looked.is_none_or(|looked| looked.elapsed() >= WITHOUT_NOTICES)
                && Stamp::of(location, &thread.path) != thread.seen
            {
                thread.notice();
            }
        }
    }

    /// Lists the threads of servers, of which some may be new.
    fn list_servers(&mut self) {
        for at in 0..self.servers.len() {
            let server = &mut self.servers[at];
            if server.due > Instant::now() {
                continue;
            }
            let location = server.location.clone();
            let listed = locations::threads(&location).unwrap_or(Ok(Vec::new()));
            let now = Instant::now();
            match listed {
                Ok(threads) => {
                    server.threads = Some(threads);
                    (server.due, server.pause) = (now, LOOK_EVERY);
                    self.reported.remove(&location);
                }
                Err(error) => {
                    server.due = now + server.pause;
                    server.pause = (server.pause * 2).min(LONGEST_WITHOUT_SERVER);
                    self.report_trouble(&location, &error);
                }
            }
        }
    }

    /// All threads in scope, as far as they can be listed now.
    #[expect(clippy::disallowed_methods, reason = "looks for threads")]
    fn wanted(&self) -> Vec<Location> {
        let is_server =
            |location: &&Location| self.servers.iter().any(|server| server.location == **location);
        let named = self.scope.threads.iter().filter(|location| !is_server(location));
        let mut wanted: Vec<Location> =
            named.filter_map(|location| files::absolute_location(location).ok()).collect();
        wanted.extend(self.servers.iter().filter_map(|server| server.threads.clone()).flatten());
        for root in &self.scope.roots {
            let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
            let root = files::absolute(root).unwrap_or_else(|_| root.clone());
            for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
                // Under such a name, a thread is being made or removed.
                if entry.file_name().as_encoded_bytes().starts_with(b".") {
                    continue;
                }
                let path = root.join(entry.file_name());
                let location = Location::from(&path);
                if self.threads.contains_key(&location) || Stamp::of(&location, &path).is_some() {
                    wanted.push(location);
                }
            }
        }
        let below = self.threads.values().flat_map(|thread| &thread.below);
        wanted.extend(below.filter(|path| path.exists()).map(Location::from));
        wanted
    }

    fn start_following(&mut self, location: &Location) -> Result<()> {
        let files = files_of(location)?;
        if !files.is_owner() {
            return Err(Error::NotOwner(location.clone()));
        }
        listen(location);
        if !self.scope.embedded {
            log!(files, Info, "dispatch: a worker follows pid={}", std::process::id());
        }
        let thread = Followed {
            path: files.path().to_owned(),
            home: files.home(),
            watch: if self.scope.embedded { None } else { self.watcher.add(&files, COMMIT) },
            seen: None,
            due: Some(Instant::now()),
            lets_finish: if location.dir().is_some() { PAUSE } else { Duration::ZERO },
            looked: None,
            pause: LOOK_EVERY,
            is_away: false,
            busy: Vec::new(),
            queued: false,
            below: Vec::new(),
        };
        self.threads.insert(location.clone(), thread);
        Ok(())
    }

    fn report_trouble(&mut self, location: &Location, error: &Error) {
        if self.reported.insert(location.clone()) {
            (self.tell)(News::Trouble { location, error });
        }
    }
}

/// The threads of the sub-agents of a thread's agent.
#[expect(clippy::disallowed_methods, reason = "looks for threads")]
fn threads_below(location: &Location) -> Vec<PathBuf> {
    let Some(dir) = location.dir() else { return Vec::new() };
    let entries = std::fs::read_dir(dir.join(SUB_AGENTS)).into_iter().flatten().flatten();
    // A link may lead anywhere, also back to here.
    let entries = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let paths = entries.map(|entry| entry.path());
    paths.filter(|path| Stamp::of(&Location::from(path), path).is_some()).collect()
}

/// Whether the lock of a consumer that was busy is free now. Its holder has looked again, unless it was
/// killed. The lock is released at once; the look that every release requires follows.
fn some_lock_was_released(location: &Location, thread: &Followed) -> bool {
    if thread.busy.is_empty() {
        return false;
    }
    let Ok(files) = files_of(location) else { return false };
    thread.busy.iter().any(|consumer| match try_lock(&files, consumer) {
        Ok(Some(lock)) => {
            lock.release();
            true
        }
        _ => false,
    })
}

/// Ends the supervisors among this process's descendants: at first they let their runs finish, and after
/// `grace`, or a further request, they end them. Where processes cannot be listed, supervisors continue on
/// their own.
fn end_background(shutdown: &Shutdown, grace: Duration) {
    let began = Instant::now();
    let mut signalled = Vec::new();
    loop {
        handler::reap();
        let left = background_below(&[SUPERVISE, WAKE]);
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
        poll(&mut [shutdown.poll_fd()], Timespec::try_from(ENDING_STEP).ok().as_ref()).ok();
    }
}
