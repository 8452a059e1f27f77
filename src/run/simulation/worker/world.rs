//! The world of a schedule: where threads are, how time passes, and what the worker sees of it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Once;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use super::state::{BEGINNING, Consumer, State, Thread, What, Worker};
use crate::error::{DatabaseErrorKind, Result, database};
use crate::files::simulated::{System, set_clocks, simulate};
use crate::files::stamp::Stamp;
use crate::files::watch::Notice;
use crate::files::{COMMIT, DB, Files};
use crate::model::location::Location;
use crate::model::run::{Deliver, Options, ProcessId};
use crate::model::subscription::{ConsumerId, NewSubscription};
use crate::queue::locations::{Scheme, add};
use crate::run::scope::Scope;
use crate::run::shutdown::Shutdown;
use crate::run::simulation::shared::SharedStore;
use crate::run::simulation::state::{MILLISECOND, SECOND};
use crate::run::starter::{News, Starter};
use crate::run::{Launcher, WakeBy, worker};
use crate::store::Store;

/// So often the worker may wait in a schedule.
const MOST_WAITS: u32 = 20_000;

/// The pids of simulated processes begin here, where no real one is.
const FIRST_PID: i64 = 1 << 23;

/// How many threads there are, and places for them: one that the worker is told by name, and two in its root.
const THREADS: usize = 3;
const NAMED: usize = 2;

/// How the worker is killed.
pub struct Killed;

/// How a starter ends, which never does by itself.
struct Done;

pub struct World {
    _dir: TempDir,
    root: PathBuf,
    /// Where threads are that were moved away.
    away: [PathBuf; THREADS],
    places: [PathBuf; THREADS],
    homes: [(u64, u64); THREADS],
    bases: [PathBuf; THREADS],
    base_homes: [(u64, u64); THREADS],
    pub launcher: Launcher,
    /// Those of each thread, by its location.
    files: RefCell<HashMap<(usize, Location), Files>>,
    pub state: RefCell<State>,
    seed: Cell<u64>,
}

/// Prints what has happened, if that was wrong or is all that happens.
struct Prints<'w>(&'w World);

impl Drop for Prints<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() || std::env::var_os("THREAD_SEED").is_some() {
            self.0.print();
        }
        simulate(None);
    }
}

thread_local! {
    static WORLD: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

fn world() -> Option<Rc<World>> {
    WORLD.with_borrow(Clone::clone)
}

/// The location that names all threads of the server.
const SERVER: &str = "followed://all";

fn base(location: &Location) -> Result<PathBuf> {
    Ok(PathBuf::from(location.as_os_str().to_str().unwrap().replace("followed://", "")))
}

fn threads(location: &Location) -> Option<Result<Vec<Location>>> {
    if location.as_os_str() != SERVER {
        return None;
    }
    let world = world().unwrap();
    let mut state = world.state.borrow_mut();
    if state.is_away {
        let now = state.now;
        state.threads.iter_mut().for_each(|thread| thread.failed = Some(now));
        return Some(Err(database(DatabaseErrorKind::Unreachable, "listing threads", "it is away")));
    }
    drop(state);
    Some(Ok((0..THREADS).filter_map(|thread| world.location_of(thread)).collect()))
}

fn identity(path: &Path) -> (u64, u64) {
    let about = fs::metadata(path).unwrap();
    (about.dev(), about.ino())
}

impl World {
    pub fn new() -> Rc<World> {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            add(Scheme {
                name: "followed",
                base,
                open: |location, _| unreachable!("{location} is opened"),
                init: |_| Ok(()),
                threads,
                changes: |_| Vec::new(),
                listen: |_| {},
                leave: || {},
                spare: || {},
            });
        });
        let memory = PathBuf::from("/dev/shm");
        let place = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let dir = tempfile::tempdir_in(place).unwrap();
        let (root, path) = (dir.path().join("root"), |name: &str| dir.path().join(name));
        fs::create_dir(&root).unwrap();
        let away = [path("away0"), path("away1"), path("away2")];
        let bases = [path("base0"), path("base1"), path("base2")];
        for base in away.iter().chain(&bases) {
            fs::create_dir_all(base.join("logs/handlers")).unwrap();
            fs::create_dir(base.join("run")).unwrap();
        }
        away.iter().for_each(|path| fs::write(path.join(DB), "").unwrap());
        let world = Rc::new(World {
            homes: [0, 1, 2].map(|at: usize| identity(&away[at].join(DB))),
            base_homes: [0, 1, 2].map(|at: usize| identity(&bases[at])),
            away,
            places: [root.join("a"), root.join("b"), path("named")],
            bases,
            root,
            launcher: Launcher { program: "/nowhere".into(), waking: WakeBy::Dispatch },
            files: RefCell::default(),
            state: RefCell::new(State::new(0, Vec::new())),
            seed: Cell::default(),
            _dir: dir,
        });
        WORLD.set(Some(world.clone()));
        world
    }

    pub fn say(&self, what: std::fmt::Arguments<'_>) {
        self.state.borrow_mut().say(what);
    }

    /// Prints what has happened in the last schedule.
    fn print(&self) {
        let mut state = self.state.borrow_mut();
        state.is_busy = true;
        state.log.iter().for_each(|line| eprintln!("{line}"));
        let (may, mut stores): (_, Vec<_>) =
            (state.may.clone(), state.threads.iter().map(|thread| thread.store.clone()).collect());
        let (is_server, tick) = (state.is_server, state.tick / MILLISECOND);
        drop(state);
        for store in &mut stores {
            for row in store.subscriptions().unwrap() {
                eprintln!("{} {} {:?}", row.consumer, row.last_acked_id, row.state);
            }
        }
        eprintln!("seed {}: {may:?} server={is_server} tick={tick} ms", self.seed.get());
    }

    /// A thread as it is at the beginning.
    fn thread(&self, dice: &mut thread_testkit::Dice, home: (u64, u64)) -> Thread {
        let mut store = SharedStore::new(|operation| world().unwrap().before(operation));
        let options = Options {
            deliver: Deliver::Stdin,
            max_attempts: 3,
            stall_after: None,
            backoff: vec![Duration::from_secs(1), Duration::from_secs(4)],
            ..Options::default()
        };
        let ids = (0..1 + dice.below(2)).map(|number| ConsumerId::new(&format!("c{number}")).unwrap());
        let consumers = ids.map(|id| {
            let new = NewSubscription {
                consumer: id.clone(),
                handler_cmd: "handler".to_owned(),
                filter: None,
                cwd: None,
                options: options.clone(),
                from: None,
                replace: false,
            };
            store.subscribe(&new).unwrap();
            Consumer { id, due: None }
        });
        let consumers = consumers.collect();
        let (wal, touched) = ((0, Duration::ZERO), Duration::ZERO);
        Thread {
            store,
            place: None,
            home,
            consumers,
            wal,
            touched,
            watch: None,
            leaves: false,
            fails: 0,
            moved: None,
            failed: None,
        }
    }

    /// One schedule, from its beginning to its end.
    pub fn schedule(self: &Rc<Self>, seed: u64) {
        self.seed.set(seed);
        self.clear();
        simulate(Some(self.clone()));
        let mut state = State::new(seed, Vec::new());
        state.is_busy = true;
        state.threads = {
            let homes = if state.is_server { self.base_homes } else { self.homes };
            let dice = &mut state.dice;
            self.state.borrow_mut().is_busy = true;
            homes.iter().map(|home| self.thread(dice, *home)).collect()
        };
        state.is_busy = false;
        set_clocks(BEGINNING.0, BEGINNING.1);
        let (is_server, away) = (state.is_server, state.dice.below(8));
        self.state.replace(state);
        let _prints = Prints(self);
        for at in 0..THREADS {
            if is_server {
                self.state.borrow_mut().threads[at].place = Some(at);
            } else if away & (1 << at) == 0 {
                self.moves_to(at, at);
            }
        }
        self.state.borrow_mut().plan_step();
        while !self.works() {
            let downtime = self.state.borrow_mut().dice.below(3 * SECOND);
            self.pass(downtime);
        }
        assert!(self.is_done(), "the worker has ended before all was done");
    }

    /// Puts the threads back to where they are before a schedule.
    fn clear(&self) {
        let mut state = self.state.borrow_mut();
        let is_server = state.is_server;
        for (at, thread) in state.threads.iter_mut().enumerate().filter(|_| !is_server) {
            if let Some(place) = thread.place.take() {
                fs::rename(&self.places[place], &self.away[at]).unwrap();
            }
        }
        // So that locks are free.
        state.processes.clear();
        state.worker = None;
    }

    /// A worker or a starter works. Returns whether that was the last one.
    fn works(self: &Rc<Self>) -> bool {
        let shutdown = Shutdown::new().unwrap();
        self.is_named();
        let (scope, grace, most, is_starter) = {
            let mut state = self.state.borrow_mut();
            let scope = match state.is_server {
                true => Scope { threads: vec![SERVER.into()], roots: Vec::new() },
                false => Scope {
                    threads: vec![Location::from(&self.places[NAMED])],
                    roots: vec![self.root.clone()],
                },
            };
            let is_starter = state.dice.one_in(5);
            let most = (!is_starter && state.dice.one_in(2)).then(|| 1 + state.dice.below(3) as usize);
            let grace = *state.dice.pick(&[0, SECOND, 10 * SECOND]);
            state.numbers += 1;
            let number = state.numbers;
            state.say(format_args!(
                "worker {number} begins: starter={is_starter} most={most:?} grace={grace}"
            ));
            state.notices.clear();
            state.threads.iter_mut().for_each(|thread| {
                thread.watch = None;
                thread.failed = None;
                thread.consumers.iter_mut().for_each(|consumer| consumer.due = None);
            });
            state.worker = Some(Worker {
                number,
                is_starter,
                most,
                grace,
                shutdown: Some(shutdown.sender().try_clone().unwrap()),
                asked: Vec::new(),
                is_nudged: false,
                has_waited: false,
                is_ready: false,
                is_stopping: false,
            });
            (scope, Duration::from_nanos(grace), most, is_starter)
        };
        let (began, busy) = {
            let state = self.state.borrow();
            (state.now, state.busy)
        };
        let mut tell = |news: News<'_>| self.is_told(&news);
        let done = catch_unwind(AssertUnwindSafe(|| match is_starter {
            true => Starter::new(&scope, &self.launcher, &mut tell)?.run(),
            false => worker::follow(&scope, most, &self.launcher, &shutdown, grace, &mut tell),
        }));
        let mut state = self.state.borrow_mut();
        let worker = state.worker.take().unwrap();
        state.threads.iter_mut().for_each(|thread| thread.watch = None);
        match done {
            Ok(done) => {
                state.say(format_args!("worker {} ends: {done:?}", worker.number));
                let is_calm = state.is_calm;
                drop(state);
                if done.is_err() {
                    // A thread that it was given cannot be used now.
                    assert!(!is_calm, "{done:?}");
                    return false;
                }
                self.has_ended(&worker, began, busy);
                is_calm && self.is_done()
            }
            Err(how) if how.is::<Killed>() => false,
            Err(how) if how.is::<Done>() => true,
            Err(failed) => {
                drop(state);
                resume_unwind(failed)
            }
        }
    }

    /// A worker does not begin if a thread that it is given by name is not there.
    fn is_named(&self) {
        let mut state = self.state.borrow_mut();
        if state.is_server || state.threads.iter().any(|thread| thread.place == Some(NAMED)) {
            return;
        }
        let at = state.threads.iter().position(|thread| thread.place.is_none()).unwrap_or(0);
        if state.threads[at].place.is_some() {
            self.has_moved_away(&mut state, at);
        }
        drop(state);
        self.moves_to(at, NAMED);
    }

    /// The worker tells its caller something.
    fn is_told(&self, news: &News<'_>) {
        let mut state = self.state.borrow_mut();
        let Some(worker) = state.worker.as_mut() else { return };
        match news {
            News::Ready => {
                assert!(!worker.is_ready, "it is ready twice");
                worker.is_ready = true;
            }
            News::Stopping => worker.is_stopping = true,
            News::Trouble { error, .. } => state.say(format_args!("trouble: {error}")),
            News::Looked { location, started, .. } => {
                state.say(format_args!("it looks at {}, and starts {started}", location.name()));
            }
        }
    }

    pub fn location_of(&self, thread: usize) -> Option<Location> {
        let (place, is_server) = {
            let state = self.state.borrow();
            (state.threads[thread].place?, state.is_server)
        };
        Some(match is_server {
            true => Location::from(format!("followed://{}", self.bases[place].display())),
            false => Location::from(&self.places[place]),
        })
    }

    /// The thread that has its files here.
    fn at(&self, path: &Path) -> Option<usize> {
        let state = self.state.borrow();
        let paths = if state.is_server { &self.bases } else { &self.places };
        let place = paths.iter().position(|place| place == path);
        state.threads.iter().position(|thread| place.is_some() && thread.place == place)
    }

    /// A thread is moved away, or is removed.
    pub fn moves_away(&self, thread: usize) {
        let mut state = self.state.borrow_mut();
        let place = state.threads[thread].place.unwrap();
        let is_removed = state.dice.one_in(2);
        state.say(format_args!("thread {thread} is moved away: removed={is_removed}"));
        if !is_removed {
            return self.has_moved_away(&mut state, thread);
        }
        drop(fs::remove_file(self.places[place].join(COMMIT)));
        if let Some(watch) = state.threads[thread].watch.take() {
            state.notices.push(Notice::Gone(watch));
        }
        state.threads[thread].leaves = true;
        let after = state.dice.below(50 * MILLISECOND);
        state.plan(after, What::Removed(thread));
    }

    fn has_moved_away(&self, state: &mut State, thread: usize) {
        let place = state.threads[thread].place.take().unwrap();
        state.threads[thread].leaves = false;
        fs::rename(&self.places[place], &self.away[thread]).unwrap();
    }

    /// All of a thread is removed.
    pub fn removed(&self, thread: usize) {
        let mut state = self.state.borrow_mut();
        if !state.threads[thread].leaves {
            return;
        }
        let place = state.threads[thread].place.unwrap();
        self.has_moved_away(&mut state, thread);
        let is_calm = state.is_calm;
        drop(state);
        if is_calm {
            self.moves_to(thread, place);
        }
    }

    pub fn moves_to(&self, thread: usize, place: usize) {
        fs::rename(&self.away[thread], &self.places[place]).unwrap();
        let commit = self.places[place].join(COMMIT);
        if !commit.exists() {
            File::create(commit).unwrap();
        }
        let mut state = self.state.borrow_mut();
        (state.threads[thread].place, state.threads[thread].moved) = (Some(place), Some(state.now));
        state.say(format_args!("thread {thread} is at place {place}"));
    }

    /// The worker gets a notice.
    pub fn notice(&self, state: &mut State, watch: i32) {
        if state.notices.last() != Some(&Notice::Touched(watch)) {
            state.notices.push(Notice::Touched(watch));
        }
    }

    /// Time passes, whatever happens.
    fn pass(self: &Rc<Self>, time: u64) {
        let end = self.state.borrow().now + time;
        while self.next_happens(end) {}
        self.state.borrow_mut().set_now(end);
    }

    /// Lets happen what is next, until a time. Returns false if there is nothing more.
    fn next_happens(self: &Rc<Self>, end: u64) -> bool {
        let what = {
            let mut state = self.state.borrow_mut();
            let Some(entry) = state.agenda.first_entry() else { return false };
            let at = entry.key().0;
            if at > end {
                return false;
            }
            let what = entry.remove();
            state.set_now(at);
            what
        };
        self.happens(what);
        true
    }

    /// Before the worker uses a store.
    fn before(self: &Rc<Self>, operation: &'static str) {
        let (acts, is_slow) = {
            let mut state = self.state.borrow_mut();
            let state = &mut *state;
            if state.is_busy || state.worker.is_none() {
                return;
            }
            if matches!(operation, "update_run" | "make_scheduled") {
                let open = state.open;
                state.written(open);
            }
            let is_slow = state.may.be_slow && !state.is_calm && state.dice.one_in(30);
            (!state.is_calm && state.steps > 0 && state.dice.one_in(12), is_slow)
        };
        if is_slow {
            let time = {
                let mut state = self.state.borrow_mut();
                let time = state.dice.below(60 * MILLISECOND);
                state.busy += time;
                time
            };
            self.pass(time);
        }
        if acts {
            self.step();
        }
    }

    /// Others do something, during which nothing else happens.
    pub fn others<T>(self: &Rc<Self>, act: impl FnOnce(&Rc<Self>) -> T) -> T {
        let was_busy = std::mem::replace(&mut self.state.borrow_mut().is_busy, true);
        let done = act(self);
        self.state.borrow_mut().is_busy = was_busy;
        done
    }

    /// Whether the worker has something to wake up for.
    fn is_woken(&self) -> bool {
        let mut state = self.state.borrow_mut();
        let has_notices = !state.notices.is_empty();
        let Some(worker) = state.worker.as_mut() else { return true };
        std::mem::take(&mut worker.is_nudged) || (has_notices && !worker.is_starter && !worker.is_stopping)
    }

    /// All is done, and the worker still waits: it may end.
    fn is_over(self: &Rc<Self>) {
        let (is_starter, is_asked) = {
            let state = self.state.borrow();
            let worker = state.worker.as_ref().unwrap();
            (worker.is_starter, !worker.asked.is_empty())
        };
        if is_starter {
            resume_unwind(Box::new(Done));
        }
        if !is_asked {
            self.ask_to_end();
        }
    }
}

impl System for World {
    fn wait(&self, timeout: Duration) {
        let world = world().unwrap();
        let end = {
            let mut state = self.state.borrow_mut();
            state.waits += 1;
            assert!(state.waits < MOST_WAITS, "it waits again and again");
            if let Some(worker) = &mut state.worker {
                worker.has_waited |= !worker.asked.is_empty() && !worker.is_nudged;
            }
            state.now + u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX).min(3600 * SECOND)
        };
        loop {
            world.check_calm();
            world.others(World::check_due);
            if world.others(World::is_done) {
                world.is_over();
            }
            if world.is_woken() {
                return;
            }
            if !world.next_happens(end) {
                self.state.borrow_mut().set_now(end);
                return world.others(World::check_due);
            }
        }
    }

    fn sleep(&self, time: Duration) {
        let mut state = self.state.borrow_mut();
        let time = u64::try_from(time.as_nanos()).unwrap_or(SECOND);
        state.busy += time;
        let now = state.now + time;
        state.set_now(now);
    }

    fn process(&self, subcommand: &str, args: &[&str], path: &Path, lock: File) -> io::Result<u32> {
        let thread = self.at(path).ok_or(io::ErrorKind::WouldBlock)?;
        {
            let mut state = self.state.borrow_mut();
            if state.spawn_fails > 0 {
                state.spawn_fails -= 1;
                state.threads[thread].failed = Some(state.now);
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
        let number = self.starts(subcommand, args, thread, lock);
        Ok(u32::try_from(FIRST_PID + number).unwrap())
    }

    fn own(&self) -> ProcessId {
        let state = self.state.borrow();
        let number = state.role.or(state.worker.as_ref().map(|worker| worker.number)).unwrap_or(0);
        ProcessId { pid: 1, start: number, boot: String::new(), namespace: 0 }
    }

    fn is_alive(&self, process: &ProcessId) -> bool {
        self.state.borrow().is_alive(process.start)
    }

    fn process_of(&self, pid: u32) -> Option<ProcessId> {
        let start = i64::from(pid) - FIRST_PID;
        Some(ProcessId { pid, start, boot: String::new(), namespace: 0 })
    }

    fn background(&self) -> Vec<ProcessId> {
        let state = self.state.borrow();
        let worker = state.worker.as_ref().map(|worker| worker.number);
        let alive = state.processes.iter().filter(|process| !process.was_killed && process.parent == worker);
        alive
            .filter_map(|process| self.process_of(u32::try_from(FIRST_PID + process.number).unwrap()))
            .collect()
    }

    fn signal(&self, process: &ProcessId, signal: Signal) {
        self.is_signalled(process.start, signal);
    }

    fn files(&self, location: &Location) -> Option<Files> {
        let path = base(location).unwrap();
        let thread = self.at(&path)?;
        let mut files = self.files.borrow_mut();
        let open = || match location.scheme() {
            None => Files::open(&path).unwrap(),
            Some(_) => Files::at_base(location, &path).unwrap(),
        };
        Some(files.entry((thread, location.clone())).or_insert_with(open).clone())
    }

    fn store(&self, location: &Location) -> Option<Result<Box<dyn Store>>> {
        let path = base(location).unwrap();
        let thread = self.at(&path);
        let mut state = self.state.borrow_mut();
        let now = state.now;
        let locked = || Some(Err(database(DatabaseErrorKind::Locked, "opening", "others have it")));
        let Some(thread) = thread else { return locked() };
        if !state.is_busy {
            state.open = thread;
            let is_away = state.is_away && state.is_server;
            let found = &mut state.threads[thread];
            if found.fails > 0 || is_away {
                found.fails = found.fails.saturating_sub(1);
                found.failed = Some(now);
                return locked();
            }
            found.failed = None;
        }
        Some(Ok(Box::new(state.threads[thread].store.clone())))
    }

    fn stamp(&self, path: &Path) -> Option<Option<Stamp>> {
        if self.state.borrow().is_server {
            return None;
        }
        let thread = self.at(path);
        let state = self.state.borrow();
        Some(thread.map(|at| {
            let thread = &state.threads[at];
            Stamp::simulated(thread.home, thread.wal, thread.touched)
        }))
    }

    fn watch(&self, path: &Path, name: &str) -> Option<Option<i32>> {
        assert_eq!(name, COMMIT);
        let Some(thread) = self.at(path) else { return Some(None) };
        let mut state = self.state.borrow_mut();
        if let Some(watch) = state.threads[thread].watch {
            return Some(Some(watch));
        }
        if state.dice.one_in(6) {
            return Some(None);
        }
        drop(File::create(path.join(COMMIT)));
        state.watches += 1;
        let watch = state.watches;
        state.threads[thread].watch = Some(watch);
        Some(Some(watch))
    }

    fn unwatch(&self, watch: i32) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        if let Some(thread) = state.threads.iter_mut().find(|thread| thread.watch == Some(watch)) {
            thread.watch = None;
            state.notices.push(Notice::Gone(watch));
        }
    }

    fn take_notices(&self) -> Option<Vec<Notice>> {
        let taken = std::mem::take(&mut self.state.borrow_mut().notices);
        let watches = taken.iter().filter_map(|notice| match notice {
            Notice::Touched(watch) => Some(*watch),
            _ => None,
        });
        self.notices_are_taken(&watches.collect::<Vec<_>>());
        Some(taken)
    }

    fn touch(&self, path: &Path, name: &Path) -> bool {
        if let (Some(thread), Some(name)) = (self.at(path), name.to_str()) {
            self.touched(thread, name);
        }
        true
    }
}
