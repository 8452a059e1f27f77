//! The world of a schedule: which processes are there, and how time passes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::IntoRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Mutex, Once};
use std::time::Duration;

use tempfile::TempDir;

use super::handlers::Handler;
use super::shared::SharedStore;
use super::state::{MICROSECOND, MILLISECOND, Role, SECOND, State};
use crate::error::Result;
use crate::files::Files;
use crate::files::simulated::{Given, System, set_clocks, simulate};
use crate::model::location::Location;
use crate::model::run::ProcessId;
use crate::model::subscription::{ConsumerId, NewSubscription, Subscription};
use crate::queue::Queue;
use crate::queue::locations::{Scheme, add};
use crate::run::launcher::{LEASE, SUPERVISE, TIMER};
use crate::run::shutdown::Shutdown;
use crate::run::{Launcher, WakeBy, supervisor, timer};
use crate::store::Store;

/// So often a process may wait in a schedule, and so long may the calm part of it be.
const MOST_WAITS: u32 = 20_000;
const MOST_CALM: u64 = 300 * SECOND;

static STORES: Mutex<BTreeMap<Location, SharedStore>> = Mutex::new(BTreeMap::new());

/// How the process under way is killed.
pub struct Killed;

pub struct World {
    _dir: TempDir,
    location: Location,
    files: Files,
    pub consumer: ConsumerId,
    pub launcher: Launcher,
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

fn base(location: &Location) -> Result<PathBuf> {
    Ok(PathBuf::from(location.as_os_str().to_str().unwrap().replace("simulated://", "")))
}

thread_local! {
    static WORLD: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

fn world() -> Option<Rc<World>> {
    WORLD.with_borrow(Clone::clone)
}

impl World {
    pub fn new() -> Rc<World> {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            add(Scheme {
                name: "simulated",
                base,
                open: |location, _| Ok(Box::new(STORES.lock().unwrap()[location].clone())),
                init: |_| Ok(()),
                threads: |_| None,
                changes: |_| Vec::new(),
                listen: |_| {},
                leave: || {},
                spare: || {},
            });
        });
        let memory = PathBuf::from("/dev/shm");
        let place = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let dir = tempfile::tempdir_in(place).unwrap();
        let location = Location::from(PathBuf::from(format!("simulated://{}", dir.path().display())));
        let world = Rc::new(World {
            files: Files::at_base(&location, dir.path()).unwrap(),
            location,
            consumer: ConsumerId::new("c").unwrap(),
            launcher: Launcher { program: "/nowhere".into(), waking: WakeBy::Dispatch },
            state: RefCell::new(State::new(0)),
            seed: Cell::default(),
            _dir: dir,
        });
        WORLD.set(Some(world.clone()));
        world
    }

    pub fn say(&self, what: String) {
        self.state.borrow_mut().say(what);
    }

    /// Prints what has happened in the last schedule.
    fn print(&self) {
        self.state.borrow_mut().is_busy = true;
        let (row, ledger) = (self.row(), self.store().ledger(&self.consumer));
        let state = self.state.borrow();
        state.log.iter().for_each(|line| eprintln!("{line}"));
        eprintln!("seed {}: {:?}\n{:?}\n{row:?}\n{ledger:?}", self.seed.get(), state.may, state.options);
    }

    pub fn queue(&self) -> Queue {
        Queue::open(self.location.clone()).unwrap()
    }

    /// The store, for those who only look at it.
    pub fn store(&self) -> SharedStore {
        STORES.lock().unwrap()[&self.location].clone()
    }

    pub fn row(&self) -> Subscription {
        self.store().subscription(&self.consumer).unwrap().unwrap()
    }

    /// One schedule, from its beginning to its end.
    pub fn schedule(self: &Rc<Self>, seed: u64) {
        self.seed.set(seed);
        let store = SharedStore::new(|operation| world().unwrap().before(operation));
        STORES.lock().unwrap().insert(self.location.clone(), store);
        self.state.replace(State::new(seed));
        {
            let state = self.state.borrow();
            set_clocks(state.monotonic, state.time_of_day);
        }
        simulate(Some(self.clone()));
        let _prints = Prints(self);
        let options = self.state.borrow().options.clone();
        let new = NewSubscription {
            consumer: self.consumer.clone(),
            handler_cmd: "handler".to_owned(),
            filter: None,
            cwd: None,
            options,
            from: None,
            replace: false,
        };
        self.others(|world| world.queue().subscribe(&new).unwrap());
        self.push();
        while !self.state.borrow().is_calm {
            self.go_on();
        }
        loop {
            while self.is_at_work() {
                self.go_on();
            }
            if !self.others(World::makes_up) {
                break;
            }
        }
        self.others(World::nothing_is_left);
    }

    fn is_at_work(&self) -> bool {
        let state = self.state.borrow();
        state.supervisor.is_some() || state.timer.is_some()
    }

    /// Lets a process run that was started, or something happen.
    fn go_on(self: &Rc<Self>) {
        let (supervisor, timer) = {
            let mut state = self.state.borrow_mut();
            let supervisor = state.supervisor.take();
            let timer = if supervisor.is_none() { state.timer.take() } else { None };
            (supervisor, timer)
        };
        if let Some(lock) = supervisor {
            self.supervise(lock);
        } else if let Some(lock) = timer {
            self.as_process(Role::Timer, || {
                let shutdown = Shutdown::new().unwrap();
                // SAFETY: the descriptor is this process's own.
                unsafe { timer::keep(&self.location, &self.launcher, lock.into_raw_fd(), &shutdown) }
            });
        } else {
            self.pass(Duration::from_secs(2));
        }
    }

    fn supervise(self: &Rc<Self>, lock: File) {
        self.as_process(Role::Supervisor, || {
            let shutdown = Shutdown::new().unwrap();
            self.state.borrow_mut().shutdown = Some(shutdown.sender().try_clone().unwrap());
            let (location, consumer, lock) = (&self.location, &self.consumer, lock.into_raw_fd());
            // SAFETY: the descriptor is this process's own.
            let done = unsafe { supervisor::supervise(location, consumer, lock, None, LEASE, &shutdown) };
            self.state.borrow_mut().needs_dispatch |= shutdown.requests() > 0;
            done
        });
    }

    fn as_process(&self, role: Role, run: impl FnOnce() -> Result<()>) {
        let (before, number) = {
            let mut state = self.state.borrow_mut();
            state.processes += 1;
            let number = state.processes;
            state.alive.push(number);
            state.say(format!("{role:?} {number} begins"));
            (state.role.replace((role, number)), number)
        };
        let done = catch_unwind(AssertUnwindSafe(run));
        let mut state = self.state.borrow_mut();
        state.alive.retain(|other| *other != number);
        state.role = before;
        if role == Role::Supervisor {
            state.shutdown = None;
        }
        match done {
            Ok(done) => {
                state.say(format!("{role:?} {number} ends: {done:?}"));
                done.unwrap();
            }
            Err(how) if how.is::<Killed>() => {
                state.needs_dispatch = true;
                state.rules.was_killed();
                let own = state.handlers.iter_mut().filter(|handler| handler.of == number);
                own.for_each(|handler| handler.is_orphan = true);
            }
            Err(failed) => {
                drop(state);
                resume_unwind(failed)
            }
        }
    }

    /// Time passes, and something may happen.
    fn pass(self: &Rc<Self>, timeout: Duration) {
        let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX).min(3600 * SECOND);
        self.take_from_supervisor();
        let acts = {
            let mut state = self.state.borrow_mut();
            state.waits += 1;
            assert!(state.waits < MOST_WAITS, "a process waits again and again");
            if state.steps == 0 && !state.is_calm {
                (state.is_calm, state.calm_since) = (true, state.monotonic);
                state.say("from here on it is calm".to_owned());
                drop(state);
                self.others(World::makes_up);
                return;
            }
            state.dice.below(4) > 0
        };
        if self.state.borrow().is_calm {
            // Whoever can do something does it at once.
            if !self.all_act() {
                self.others(|world| world.nobody_sleeps_over(timeout));
                self.advance(timeout.max(MICROSECOND));
            }
            return;
        }
        let passes = {
            let dice = &mut self.state.borrow_mut().dice;
            match dice.below(3) {
                _ if !acts => timeout,
                0 => 0,
                1 => dice.below(timeout.min(20 * MILLISECOND) + 1),
                _ => dice.below(timeout + 1),
            }
        };
        self.advance(passes.max(MICROSECOND));
        if acts {
            self.act();
        }
    }

    fn advance(&self, by: u64) {
        let mut state = self.state.borrow_mut();
        state.monotonic += by;
        state.time_of_day += by;
        set_clocks(state.monotonic, state.time_of_day);
        let is_late = state.is_calm && state.monotonic > state.calm_since + MOST_CALM;
        assert!(!is_late, "it takes too long until nothing is left");
        drop(state);
        self.kill_overdue();
    }

    /// Before a process uses the store.
    fn before(self: &Rc<Self>, operation: &'static str) {
        if self.state.borrow().is_busy {
            return;
        }
        if std::mem::take(&mut self.state.borrow_mut().is_changed) {
            self.others(World::check);
        }
        let acts = {
            let mut state = self.state.borrow_mut();
            state.is_changed = operation == "update_run";
            state.role.is_some() && !state.is_calm && state.dice.one_in(12)
        };
        if acts {
            self.act();
        }
    }

    /// Others do something, during which nothing else happens.
    pub fn others<T>(self: &Rc<Self>, act: impl FnOnce(&Rc<Self>) -> T) -> T {
        let was_busy = std::mem::replace(&mut self.state.borrow_mut().is_busy, true);
        let done = act(self);
        self.state.borrow_mut().is_busy = was_busy;
        done
    }
}

impl System for World {
    fn wait(&self, timeout: Duration) {
        let world = world().unwrap();
        let is_timer = matches!(self.state.borrow().role, Some((Role::Timer, _)));
        let supervisor = if is_timer { self.state.borrow_mut().supervisor.take() } else { None };
        match supervisor {
            Some(lock) => world.supervise(lock),
            None => world.pass(timeout),
        }
    }

    fn sleep(&self, time: Duration) {
        self.advance(u64::try_from(time.as_nanos()).unwrap_or(SECOND));
    }

    fn handler(&self, given: Given, lock: File) -> i32 {
        let (pid, of) = {
            let mut state = self.state.borrow_mut();
            state.next_pid += 1;
            (state.next_pid, state.role.map_or(0, |(_, number)| number))
        };
        world().unwrap().begins(Handler::new(pid, of, given, lock));
        pid
    }

    fn ends(&self, pid: i32, signal: i32, kill_after: Duration) {
        let mut state = self.state.borrow_mut();
        state.say(format!("handler {pid} gets signal {signal}"));
        let kill_at = state.monotonic + u64::try_from(kill_after.as_nanos()).unwrap_or(SECOND);
        if let Some(handler) = state.handlers.iter_mut().find(|handler| handler.pid == pid) {
            let earlier = handler.ends.map_or(kill_at, |(_, at)| at.min(kill_at));
            handler.ends = Some((signal, earlier));
        }
    }

    fn process(&self, subcommand: &str, _: &[&str], _: &Path, lock: File) -> io::Result<u32> {
        let mut state = self.state.borrow_mut();
        match subcommand {
            SUPERVISE => state.supervisor = Some(lock),
            TIMER => state.timer = Some(lock),
            _ => panic!("{subcommand} is started"),
        }
        Ok(1)
    }

    fn files(&self, _: &Location) -> Option<Files> {
        Some(self.files.clone())
    }

    fn own(&self) -> ProcessId {
        let number = self.state.borrow().role.map_or(0, |(_, number)| number);
        ProcessId { pid: 1, start: number, boot: String::new(), namespace: 0 }
    }

    fn is_alive(&self, process: &ProcessId) -> bool {
        self.state.borrow().alive.contains(&process.start)
    }
}
