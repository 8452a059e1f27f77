//! Starting what is due in many threads, as a part of another program, such as a server. A
//! [worker](super::worker::follow) is built on it.
//!
//! It starts the same supervisors as a push, under the same locks, so any number of processes may do this. Unless its
//! runs are limited, it leaves long backlogs to a background process; and it retries a locked database later, so that no
//! thread delays another.

mod servers;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use self::servers::Servers;
use super::attend::{self, TIMER_LOCK};
use super::awaits::{Awaited, Awaits};
use super::dispatch::{Dispatched, OWN_TIME, Slots, Waits, is_left_to_others, start, try_lock};
use super::due::NextEvent;
use super::launcher::Launcher;
use super::scope::{Listing, Scope, threads_below};
use super::waits::Ends;
use super::workers;
use crate::error::{Error, Result};
use crate::files::COMMIT;
use crate::files::lock::Lock;
use crate::files::log::log;
use crate::files::stamp::Stamp;
use crate::files::watch::{LOOK_EVERY, PAUSE, Watcher};
use crate::model::exponential_backoff::ExponentialBackoff;
use crate::model::location::Location;
use crate::model::subscription::ConsumerId;
use crate::queue::Queue;
use crate::queue::locations::{files_of, listen};
use crate::queue::retention::Keeper;
use crate::store::Changed;

/// How long to wait for another writer before moving on to other threads.
const BUSY_TIMEOUT: Duration = Duration::from_millis(20);

/// The shortest time between two looks at a thread that is pushed to all the time.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// How often [`Starter::run`] checks its threads, of which there may be thousands.
const CHECK_EVERY: Duration = Duration::from_secs(2);

/// It tries locks with every so many of these checks: many consumers may have theirs for hours, and trying one costs
/// more than a look at a file.
const LOCKS_EVERY: u32 = 2;

/// For how long it looks at threads that are due before it looks which are.
const LOOK_FOR: Duration = Duration::from_millis(50);

/// When to look again at a thread whose backlog was left to a background process, which may be killed, where no change of
/// a file shows that.
const AFTER_BACKGROUND: Duration = Duration::from_secs(10);

/// What a starter or a worker reports to its caller.
#[derive(Debug)]
pub enum News<'a> {
    /// Everything that was pending is started, and pushes are noticed. Only from a worker.
    Ready,
    /// A changed thread was checked, and so many consumers were started. It is still open, for callers that need to
    /// read what is new.
    Looked { location: &'a Location, queue: &'a mut Queue, started: usize },
    /// Nothing can be started in this thread for now. Reported once, until it works again.
    Trouble { location: &'a Location, error: &'a Error },
    /// No more runs are started. Only from a worker.
    Stopping,
}

/// Starts what is due in the threads of a scope, and nothing else: it neither reaps nor ends processes.
pub struct Starter<'a> {
    listing: Listing<'a>,
    servers: Servers,
    launcher: &'a Launcher,
    pub(super) tell: &'a mut dyn FnMut(News<'_>),
    /// Notices of pushes, for a worker.
    pub(super) watcher: Option<Watcher>,
    /// Directories have absolute paths here.
    pub(super) threads: BTreeMap<Location, Followed>,
    /// Threads whose failure was already reported.
    reported: HashSet<Location>,
    /// Threads of servers whose folders here were removed, or cannot be used; they are to be followed at the next check.
    lost: Vec<Location>,
    /// Threads of servers that are to be followed, of which there may be very many.
    new: VecDeque<Location>,
}

/// A thread that is followed.
pub(super) struct Followed {
    /// Its directory or its base.
    pub path: PathBuf,
    home: (u64, u64),
    /// The watch on its `run/_commit`; `None` if there are no notices.
    pub watch: Option<i32>,
    /// A server is asked for its changes.
    is_asked_for: bool,
    /// The database's stamp before the last look. `None` if it was too recent to detect a later commit.
    pub seen: Option<Stamp>,
    /// The time of the next look, if one is scheduled.
    due: Option<Instant>,
    /// How soon after a notice, so that a pusher on this machine can exit first.
    lets_finish: Duration,
    /// The time of the last look.
    pub looked: Option<Instant>,
    /// The pauses before a failed look is retried.
    backoff: ExponentialBackoff,
    /// The thread could not be opened at the last look.
    is_away: bool,
    /// Consumers that were due at the last look, and were started or skipped.
    busy: Vec<ConsumerId>,
    /// Something is due, but all slots were taken.
    pub queued: bool,
    /// Something waits.
    waits: bool,
    /// There was no notice since the last look.
    is_quiet: bool,
    ends: Ends,
    next_event: NextEvent,
    awaits: Awaits,
    /// The lock of the thread's timer, held while something waits.
    timer: Option<Lock>,
    /// The threads of its agent's sub-agents, as of the last look. A new one comes with events here, so nothing is
    /// listed while nothing changes.
    below: Vec<PathBuf>,
    /// Applies its retention.
    keeper: Keeper,
}

impl Followed {
    /// Schedules a look after the notice.
    pub fn notice(&mut self) {
        let now = Instant::now() + self.lets_finish;
        self.is_quiet = false;
        self.look_by(self.looked.map_or(now, |looked| now.max(looked + BETWEEN_LOOKS)));
    }

    /// Schedules a look at the end of a wait.
    fn wait(&mut self, at: Instant) {
        self.look_by(at);
        self.waits = true;
    }

    /// Whether its changes are noticed only by looking at its files.
    pub fn is_unwatched(&self) -> bool {
        self.watch.is_none() && !self.is_asked_for
    }

    /// When its retention is to be applied, even if nothing happens.
    fn kept(&self, is_quiet: bool) -> Option<Instant> {
        // Of a server, there may be very many threads.
        if is_quiet && self.is_asked_for { self.keeper.due_when_quiet() } else { self.keeper.due() }
    }

    fn look_by(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }
}

impl<'a> Starter<'a> {
    /// # Errors
    ///
    /// One of the threads, or a root, cannot be used.
    pub fn new(
        scope: &'a Scope,
        launcher: &'a Launcher,
        tell: &'a mut dyn FnMut(News<'_>),
    ) -> Result<Starter<'a>> {
        Starter::with_watcher(scope, launcher, tell, None)
    }

    /// Like [`Starter::new`], for a worker.
    pub(super) fn with_watcher(
        scope: &'a Scope,
        launcher: &'a Launcher,
        tell: &'a mut dyn FnMut(News<'_>),
        watcher: Option<Watcher>,
    ) -> Result<Starter<'a>> {
        let mut listing = Listing::new(scope)?;
        let servers = Servers::of(&mut listing);
        let (named, threads, reported) = (listing.named.clone(), BTreeMap::new(), HashSet::new());
        let (lost, new) = (Vec::new(), VecDeque::new());
        let mut starter = Starter { listing, servers, launcher, tell, watcher, threads, reported, lost, new };
        for location in &named {
            let is_asked_for = starter.servers.cover(location);
            starter.start_following(location, is_asked_for)?;
        }
        Ok(starter)
    }

    /// Starts what is due as long as the process lives. Checks its threads every two seconds, and looks at one
    /// only if it has changed or its last look failed.
    pub fn run(mut self) -> ! {
        let mut checks = 0_u32;
        loop {
            checks = checks.wrapping_add(1);
            self.check(checks.is_multiple_of(LOCKS_EVERY));
            let next_check = Instant::now() + CHECK_EVERY;
            while Instant::now() < next_check {
                let until = self.look_at_due(None).map_or(next_check, |next| next.min(next_check));
                pause(until.saturating_duration_since(Instant::now()));
            }
        }
    }

    /// Whether each thread in scope was looked at.
    pub(super) fn has_seen_all(&self) -> bool {
        self.listing.is_complete()
            && self.servers.are_known()
            && self.new.is_empty()
            && self.threads.values().all(|thread| thread.looked.is_some())
    }

    /// Looks at threads that are due, at least at one. Returns when the next one is: now, after a look.
    pub(super) fn look_at_due(&mut self, mut slots: Option<&mut Slots>) -> Option<Instant> {
        self.follow_some();
        let began = Instant::now();
        let due = |(location, thread): (&Location, &Followed)| Some((thread.due?, location.clone()));
        let is_due = |thread: &Followed| thread.due.is_some_and(|due| due <= began);
        let mut all: Vec<_> =
            self.threads.iter().filter(|(_, thread)| is_due(thread)).filter_map(due).collect();
        if all.is_empty() {
            let next = self.threads.values().filter_map(|thread| thread.due).min();
            return if self.new.is_empty() { next } else { Some(began) };
        }
        all.sort_unstable();
        for (_, location) in all {
            self.look(&location, slots.as_deref_mut());
            if began.elapsed() >= LOOK_FOR {
                break;
            }
        }
        Some(Instant::now())
    }

    /// Starts the consumers of one thread that are due.
    fn look(&mut self, location: &Location, slots: Option<&mut Slots>) {
        let Some(thread) = self.threads.get_mut(location) else { return };
        // Taken before the look, so that a commit during the look changes the stamp; and whether it is fresh is
        // asked at once: after a long look, a commit right after the stamp would seem to be long past.
        let seen = Stamp::of(location, &thread.path);
        let settled = seen.filter(|stamp| !stamp.is_fresh());
        if seen.is_none() || (thread.watch.is_some() && !thread.path.join(COMMIT).exists()) {
            // The thread is gone or is being removed; opening the database now would create new files that
            // make the removal fail. The next check finds out; if the thread has come back by then as it was,
            // what was due now still is.
            (thread.due, thread.seen) = (None, None);
            return;
        }
        let (keeper, ends, is_asked_for) = (&mut thread.keeper, &mut thread.ends, thread.is_asked_for);
        let mut next_event = std::mem::take(&mut thread.next_event);
        let mut awaits = std::mem::take(&mut thread.awaits);
        let is_worker = self.watcher.is_some();
        let is_named = self.listing.named.contains(location);
        let looked = Queue::open_waiting(location, BUSY_TIMEOUT).and_then(|mut queue| {
            let left = match next_event.make(&mut queue, is_asked_for) {
                // Another machine is at it.
                Err(e) if e.is_locked() => Some(BETWEEN_LOOKS),
                left => left?,
            };
            let awaited = match awaits.look(&mut queue, OWN_TIME) {
                Err(e) if e.is_locked() => Awaited::More,
                awaited => awaited?,
            };
            let all = queue.store.subscriptions()?;
            let time = slots.is_none().then_some(OWN_TIME);
            let mut all = start(&mut queue, self.launcher, all, time, Waits::Left(slots))?;
            ends.look();
            for (consumer, done) in &mut all {
                if let Dispatched::Waits(wait) = done {
                    wait.left = ends.left(&mut queue, consumer, *wait)?;
                }
            }
            let started = all.iter().filter(|(_, done)| matches!(done, Dispatched::Started)).count();
            (self.tell)(News::Looked { location, queue: &mut queue, started });
            keeper.keep(&mut queue);
            if is_worker && let Err(e) = queue.store.record_worker(!is_named) {
                log!(queue, Warn, "dispatch: the worker is not listed: {e}");
            }
            Ok((all, left, awaited))
        });
        if matches!(looked, Err(Error::NotAThread(_))) && is_asked_for && !is_named {
            // Its server says so when there is one again.
            self.forget(location);
            return;
        }
        let failed = match &looked {
            Ok((all, ..)) => {
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
        thread.is_away = looked.is_err();
        if !failed {
            thread.backoff.reset();
        }
        thread.due = failed.then(|| now + thread.backoff.pause());
        let is_quiet = std::mem::replace(&mut thread.is_quiet, true);
        thread.queued = false;
        thread.waits = false;
        (thread.next_event, thread.awaits) = (next_event, awaits);
        thread.busy.clear();
        let (all, left, awaited) = looked.unwrap_or((Vec::new(), None, Awaited::Nothing));
        match awaited {
            Awaited::Nothing => {}
            // A commit is noticed.
            Awaited::Something => thread.waits = true,
            Awaited::More => thread.wait(now + BETWEEN_LOOKS),
        }
        if let Some(left) = left {
            thread.wait(now + left);
        }
        for (consumer, done) in all {
            match done {
                Dispatched::Waits(wait) => thread.wait(now + wait.left),
                Dispatched::Queued => thread.queued = true,
                Dispatched::Started | Dispatched::LockHeld | Dispatched::LeftToOthers => {
                    thread.busy.push(consumer);
                }
                // This machine leaves it to others for a while.
                Dispatched::Broken(Error::BrokenSubscription(_)) if is_asked_for => {
                    thread.busy.push(consumer)
                }
                Dispatched::LeftToBackground if is_asked_for => thread.look_by(now + AFTER_BACKGROUND),
                _ => {}
            }
        }
        // While the thread cannot be opened, nothing is kept, and that time may be over.
        if !thread.is_away {
            thread.due = thread.due.into_iter().chain(thread.kept(is_quiet)).min();
        }
        attend_to_waits(thread, location);
        if is_new {
            self.follow_new();
        }
    }

    /// Checks all threads for changes without a notice, and finds new and removed ones.
    pub(super) fn check(&mut self, tries_locks: bool) {
        let (watcher, lost) = (&self.watcher, &mut self.lost);
        self.threads.retain(|location, thread| {
            if thread.is_asked_for {
                if tries_locks && some_lock_was_released(location, thread) {
                    thread.notice();
                }
                // With a watch, its removal is noticed.
                let is_there = thread.watch.is_some() || Stamp::of(location, &thread.path).is_some();
                lost.extend((!is_there).then(|| location.clone()));
                return is_there;
            }
            match Stamp::of(location, &thread.path) {
                // Its stamp cannot be relied on; the next look happens at its usual time.
                Some(_) if thread.is_away && !location.backend().has_database_file => {}
                Some(stamp) if stamp.home == thread.home => {
                    if thread.seen != Some(stamp) || tries_locks && some_lock_was_released(location, thread) {
                        thread.notice();
                    }
                }
                _ => {
                    watcher.iter().zip(thread.watch).for_each(|(watcher, watch)| watcher.remove(watch));
                    return false;
                }
            }
            true
        });
        for (server, error) in self.listing.ask_servers() {
            match error {
                Some(error) => self.report_trouble(&server, &error),
                None => drop(self.reported.remove(&server)),
            }
        }
        for (of, answer) in self.servers.ask() {
            match answer {
                Ok(changed) => self.hear_of(&of, changed),
                Err(error) => of.iter().for_each(|location| self.report_trouble(location, &error)),
            }
        }
        self.new.extend(self.lost.drain(..));
        self.follow_new();
    }

    /// Schedules looks at the threads in which something has happened, of those that these locations name.
    fn hear_of(&mut self, of: &[Location], changed: Changed) {
        if !self.reported.is_empty() {
            for server in of {
                // What was reported of a thread counts until a look at it.
                if !self.threads.contains_key(server) {
                    self.reported.remove(server);
                }
            }
        }
        for location in changed.threads {
            match self.threads.get_mut(&location) {
                Some(thread) => thread.notice(),
                None => self.new.push_back(location),
            }
        }
    }

    /// Follows some of the new threads of servers, and leaves the others to the next call: the first ones are looked at
    /// before the last ones are followed.
    fn follow_some(&mut self) {
        let began = Instant::now();
        while began.elapsed() < LOOK_FOR
            && let Some(location) = self.new.pop_front()
        {
            if !self.threads.contains_key(&location) {
                self.follow(&location, true);
            }
        }
    }

    /// Stops following a thread that is gone.
    fn forget(&mut self, location: &Location) {
        let watch = self.threads.remove(location).and_then(|thread| thread.watch);
        self.watcher.iter().zip(watch).for_each(|(watcher, watch)| watcher.remove(watch));
    }

    /// Stops following the thread with this watch, as its files are gone.
    pub(super) fn remove(&mut self, watch: i32) {
        let (lost, is_gone) = (&mut self.lost, |thread: &Followed| thread.watch == Some(watch));
        self.threads.retain(|location, thread| {
            let is_gone = is_gone(thread);
            lost.extend((is_gone && thread.is_asked_for).then(|| location.clone()));
            !is_gone
        });
    }

    /// Follows the threads in scope that it does not follow yet.
    fn follow_new(&mut self) {
        let mut new = self.listing.all(|location| self.threads.contains_key(location));
        let below = self.threads.values().flat_map(|thread| &thread.below);
        new.extend(below.filter(|path| path.exists()).map(Location::from));
        new.retain(|location| !self.threads.contains_key(location));
        // Events that are waited for are likely to be in the newest threads.
        let changed = |location: &Location| Some(Stamp::of(location, location.dir()?)?.changed());
        new.sort_by_cached_key(|location| std::cmp::Reverse(changed(location)));
        for location in new {
            let is_asked_for = self.servers.cover(&location);
            self.follow(&location, is_asked_for);
        }
    }

    fn follow(&mut self, location: &Location, is_asked_for: bool) {
        if let Err(error) = self.start_following(location, is_asked_for) {
            self.report_trouble(location, &error);
            // Its server does not name it again.
            self.lost.extend(is_asked_for.then(|| location.clone()));
        }
    }

    fn start_following(&mut self, location: &Location, is_asked_for: bool) -> Result<()> {
        let files = files_of(location)?;
        if !files.is_owner() {
            return Err(Error::NotOwner(location.clone()));
        }
        listen(location);
        let mut watch = None;
        if let Some(watcher) = &self.watcher {
            log!(files, Info, "dispatch: a worker follows pid={}", std::process::id());
            workers::sign_in(&files);
            watch = watcher.add(&files, COMMIT);
        }
        let thread = Followed {
            path: files.path().to_owned(),
            home: files.home(),
            watch,
            is_asked_for,
            seen: None,
            due: Some(Instant::now()),
            lets_finish: if location.backend().is_pushed_to_here { PAUSE } else { Duration::ZERO },
            looked: None,
            backoff: ExponentialBackoff::new(LOOK_EVERY, location.backend().longest_pause),
            is_away: false,
            busy: Vec::new(),
            queued: false,
            waits: false,
            is_quiet: true,
            ends: Ends::default(),
            next_event: NextEvent::default(),
            awaits: Awaits::default(),
            timer: None,
            below: Vec::new(),
            keeper: Keeper::default(),
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

fn pause(time: Duration) {
    #[cfg(all(test, target_os = "linux"))]
    if let Some(system) = crate::files::simulated::system() {
        return system.wait(time);
    }
    std::thread::sleep(time);
}

/// Takes the place of the thread's timer while something waits, unless that is there.
fn attend_to_waits(thread: &mut Followed, location: &Location) {
    if !thread.waits {
        thread.timer.take().into_iter().for_each(Lock::release);
    } else if thread.timer.is_none() {
        let lock = files_of(location).and_then(|files| Lock::try_take(&files, TIMER_LOCK));
        thread.timer = lock.ok().flatten().inspect(attend::sign);
    }
}

/// Whether the lock of a consumer that was busy is free now. Its holder has looked again, unless it was
/// killed. The lock is released at once; the look that every release requires follows.
fn some_lock_was_released(location: &Location, thread: &Followed) -> bool {
    if thread.busy.is_empty() {
        return false;
    }
    let Ok(files) = files_of(location) else { return false };
    let mut tried = thread.busy.iter().filter(|consumer| !is_left_to_others(&files, consumer));
    tried.any(|consumer| match try_lock(&files, consumer) {
        Ok(Some(lock)) => {
            lock.release();
            true
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::WakeBy;

    #[test]
    fn a_thread_that_was_away_when_it_was_due_is_looked_at_once_it_is_back() {
        let root = tempfile::tempdir().unwrap();
        let (dir, away) = (root.path().join("inbox"), root.path().join("away"));
        Queue::init(&dir).unwrap();
        let location = Location::from(&dir);
        let scope = Scope { threads: vec![location.clone()], roots: Vec::new() };
        let launcher = Launcher { program: "/nowhere".into(), waking: WakeBy::Nobody };
        let mut tell = |_: News<'_>| {};
        let mut starter = Starter::new(&scope, &launcher, &mut tell).unwrap();
        // A wait is over, and nothing has changed.
        let thread = starter.threads.get_mut(&location).unwrap();
        (thread.seen, thread.due) = (Stamp::of(&location, &dir), Some(Instant::now()));
        std::fs::rename(&dir, &away).unwrap();
        starter.look_at_due(None);
        std::fs::rename(&away, &dir).unwrap();
        starter.check(false);
        assert!(starter.threads[&location].due.is_some());
    }
}
