//! The world of a schedule: which processes are there, and how time passes.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::IntoRawFd;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use tempfile::TempDir;
use thread_testkit::say;
use thread_testkit::simulation::clock::{self, MICROSECOND, MILLISECOND, SECOND, nanoseconds};
use thread_testkit::simulation::{Killed, clear, directory, left};

use super::handlers::Handler;
use super::shared::SharedStore;
use super::state::{Role, State};
use crate::error::Result;
use crate::files::Files;
use crate::files::simulated::{Given, System, simulate};
use crate::files::watch::Notice;
use crate::model::location::Location;
use crate::model::run::ProcessId;
use crate::model::subscription::{ConsumerId, NewSubscription, Subscription};
use crate::queue::Queue;
use crate::run::launcher::{LEASE, SUPERVISE, TIMER};
use crate::run::shutdown::Shutdown;
use crate::run::{Launcher, WakeBy, supervisor, timer};
use crate::store::Store;

/// So often a process may wait in a schedule, and so long may the calm part of it be.
const MOST_WAITS: u32 = 20_000;

/// So often a process may use the store before it waits again.
const MOST_OPERATIONS: u32 = 10_000;
const MOST_CALM: u64 = 300 * SECOND;

pub struct World {
    _dir: TempDir,
    location: Location,
    files: Files,
    pub consumer: ConsumerId,
    pub launcher: Launcher,
    store: RefCell<SharedStore>,
    pub state: RefCell<State>,
}

/// Says what is stored, if something is wrong.
struct Stored<'w>(&'w World);

impl Drop for Stored<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.state.borrow_mut().is_busy = true;
            say!("{:?}\n{:?}", self.0.row(), self.0.store().ledger(&self.0.consumer));
        }
    }
}

thread_local! {
    static WORLD: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

fn world() -> Option<Rc<World>> {
    WORLD.with_borrow(Clone::clone)
}

impl World {
    pub fn new() -> Rc<World> {
        let (dir, store) = (directory(), SharedStore::new(|_| {}));
        let location = store.put_at(dir.path());
        let world = Rc::new(World {
            files: Files::at_base(&location, dir.path()).unwrap(),
            location,
            consumer: ConsumerId::new("c").unwrap(),
            launcher: Launcher { program: "/nowhere".into(), waking: WakeBy::Dispatch },
            store: RefCell::new(store),
            state: RefCell::new(State::new(0)),
            _dir: dir,
        });
        WORLD.set(Some(world.clone()));
        world
    }

    pub fn queue(&self) -> Queue {
        Queue::open(self.location.clone()).unwrap()
    }

    /// The store, for those who only look at it.
    pub fn store(&self) -> SharedStore {
        self.store.borrow().clone()
    }

    pub fn row(&self) -> Subscription {
        self.store().subscription(&self.consumer).unwrap().unwrap()
    }

    /// One schedule, from its beginning to its end.
    pub fn schedule(self: &Rc<Self>, seed: u64) {
        let store = SharedStore::new(|operation| world().unwrap().before(operation));
        store.put_at(self.files.path());
        self.store.replace(store);
        self.state.replace(State::new(seed));
        clear(self.files.path(), "");
        clear(&self.files.path_of("run"), "");
        let (_simulation, _stored) = (simulate(self.clone()), Stored(self));
        let options = self.state.borrow().options.clone();
        say!("{:?}\n{options:?}", self.state.borrow().may);
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
            say!("{role:?} {number} begins");
            (state.role.replace((role, number)), number)
        };
        let done = left::<Killed, _>(run);
        let mut state = self.state.borrow_mut();
        state.watches.end(number);
        state.alive.retain(|other| *other != number);
        state.role = before;
        if role == Role::Supervisor {
            (state.shutdown, state.was_asked) = (None, false);
        }
        match done {
            Ok(done) => {
                say!("{role:?} {number} ends: {done:?}");
                done.unwrap();
            }
            Err(Killed) => {
                state.needs_dispatch = true;
                state.rules.was_killed();
                let own = state.handlers.iter_mut().filter(|handler| handler.of == number);
                own.for_each(|handler| handler.is_orphan = true);
            }
        }
    }

    /// Time passes, and something may happen.
    fn pass(self: &Rc<Self>, timeout: Duration) {
        let timeout = nanoseconds(timeout).min(3600 * SECOND);
        self.take_from_supervisor();
        let acts = {
            let mut state = self.state.borrow_mut();
            state.waits += 1;
            assert!(state.waits < MOST_WAITS, "a process waits again and again");
            state.operations = 0;
            if state.steps == 0 && !state.is_calm {
                (state.is_calm, state.calm_since) = (true, clock::now());
                say!("from here on it is calm");
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
        clock::pass(by);
        let is_late = {
            let state = self.state.borrow();
            state.is_calm && clock::now() > state.calm_since + MOST_CALM
        };
        assert!(!is_late, "it takes too long until nothing is left");
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
            state.operations += 1;
            assert!(state.operations < MOST_OPERATIONS, "a process goes on without waiting");
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
        self.advance(nanoseconds(time));
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
        say!("handler {pid} gets signal {signal}");
        let kill_at = clock::now() + nanoseconds(kill_after).min(3600 * SECOND);
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

    fn is_asked_to_end(&self) -> bool {
        self.state.borrow().was_asked
    }

    fn home(&self, _: &Path) -> Option<Option<(u64, u64)>> {
        Some(Some(self.files.home()))
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
    fn watch(&self, _: &Path, name: &str) -> Option<Option<i32>> {
        let process = self.own().start;
        Some(Some(self.state.borrow_mut().watches.add(process, name)))
    }

    fn unwatch(&self, watch: i32) {
        self.state.borrow_mut().watches.remove(watch);
    }

    fn take_notices(&self) -> Option<Vec<Notice>> {
        let process = self.own().start;
        Some(self.state.borrow_mut().watches.take(process))
    }

    fn touch(&self, _: &Path, name: &Path) -> bool {
        self.state.borrow_mut().watches.touch(name);
        true
    }
}
