//! The world of a schedule: which programs are there, and how time passes.

use std::cell::{RefCell, RefMut};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::process::{ChildStdout, Command};
use std::rc::Rc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use clap::Parser;
use rustix::process::{Pid, Signal};
use tempfile::TempDir;
use thread::Queue;
use thread::error::{DatabaseError, DatabaseErrorKind};
use thread::model::location::Location;
use thread::model::subscription::{ConsumerId, NO_HANDLER, NewSubscription};
use thread::run::{Launcher, WakeBy};
use thread_testkit::say;
use thread_testkit::simulation::clock::{self, MILLISECOND, SECOND, nanoseconds};
use thread_testkit::simulation::{Killed, clear, directory, left};
use thread_testkit::store::SharedStore;

use super::programs::{Kind, Program};
use super::rules::{ATTEMPTS, IDLE, QUIET};
use super::state::State;
use super::talks::Talks;
use crate::adapter::{Adapter, LoopEvent, Options};
use crate::install::FILTER;
use crate::protocol::{Exec, Ndjson, Protocol};
use crate::seat::Seat;
use crate::settings::{Settings, Stay};
use crate::simulated::{Report, System, simulate};

/// So often an adapter may wait in a schedule.
const MOST_WAITS: u32 = 50_000;

pub struct World {
    dir: TempDir,
    location: Location,
    pub consumer: ConsumerId,
    launcher: Launcher,
    settings: Settings,
    null: OwnedFd,
    /// What others use.
    queue: RefCell<Queue>,
    pub state: RefCell<State>,
}

#[derive(Parser)]
struct Given {
    #[command(flatten)]
    settings: Settings,
    #[arg(last = true, group = "who")]
    program: Vec<String>,
}

thread_local! {
    static WORLD: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

fn world() -> Rc<World> {
    WORLD.with_borrow(Clone::clone).unwrap()
}

fn failure(kind: DatabaseErrorKind) -> thread::Error {
    DatabaseError { kind, doing: "storing", message: "the test says so".into(), advice: None }.into()
}

impl World {
    pub fn new() -> Rc<World> {
        let dir = directory();
        let location = SharedStore::new(|_| {}).put_at(dir.path());
        let quiet = format!("{}s", QUIET / SECOND);
        let given = Given::parse_from(["agent", "--quiet", &quiet, "--permit-wait", "4s", "--", "program"]);
        assert_eq!(given.program.len(), 1);
        let world = Rc::new(World {
            consumer: ConsumerId::new("agent").unwrap(),
            launcher: Launcher { program: "/nowhere".into(), waking: WakeBy::Nobody },
            settings: given.settings,
            null: File::open("/dev/null").unwrap().into(),
            queue: RefCell::new(Queue::open(location.clone()).unwrap()),
            location,
            state: RefCell::new(State::new(0)),
            dir,
        });
        WORLD.set(Some(world.clone()));
        world
    }

    fn open(&self) -> Queue {
        Queue::open(self.location.clone()).unwrap()
    }

    /// What others use.
    pub fn queue(&self) -> RefMut<'_, Queue> {
        self.queue.borrow_mut()
    }

    /// One schedule, from its beginning to its end.
    pub fn schedule(self: &Rc<Self>, seed: u64) {
        let store = SharedStore::new(|operation| world().before(operation)).failing(|operation| {
            let world = world();
            let mut state = world.state.borrow_mut();
            let fails = !state.is_busy && state.fails > 0 && operation == "append";
            state.fails -= u32::from(fails);
            if fails { Err(failure(DatabaseErrorKind::OutcomeUnknown)) } else { Ok(()) }
        });
        store.put_at(self.dir.path());
        self.state.replace(State::new(seed));
        for dir in ["", "run", "logs"] {
            clear(&self.dir.path().join(dir), "");
        }
        self.queue.replace(self.open());
        let _simulation = simulate(self.clone());
        {
            let state = self.state.borrow();
            say!("{:?} {:?} {:?}", state.may, state.kind, state.talks);
        }
        let new = NewSubscription {
            consumer: self.consumer.clone(),
            handler_cmd: NO_HANDLER.into(),
            filter: Some(FILTER.into()),
            cwd: None,
            options: Default::default(),
            from: None,
            replace: false,
        };
        self.others(|world| world.queue().subscribe(&new).unwrap());
        self.others(World::message);
        self.state.borrow_mut().plan_step();
        while !self.works() {
            let downtime = {
                let mut state = self.state.borrow_mut();
                let most = if state.is_calm { MILLISECOND } else { 3 * SECOND };
                state.dice.below(most)
            };
            let end = clock::now() + downtime;
            while self.next_happens(end) {}
            clock::pass_until(end);
        }
    }

    fn protocol(&self) -> Box<dyn Protocol> {
        let state = self.state.borrow();
        let (stops, takes_ahead, speaks_unasked) = state.talks;
        // As with every protocol that takes messages ahead.
        let stops = stops || takes_ahead;
        match state.kind {
            Kind::Exec => Box::new(Exec::default()),
            Kind::Ndjson => Box::new(Ndjson::default()),
            Kind::Talks => Box::new(Talks { stops, takes_ahead, speaks_unasked, ..Talks::default() }),
        }
    }

    /// An adapter works. Returns whether that was the last one.
    fn works(self: &Rc<Self>) -> bool {
        {
            let mut state = self.state.borrow_mut();
            state.adapters += 1;
            let number = state.adapters;
            (state.stopped, state.slept, state.done_since, state.read) = (None, 0, None, 0);
            state.began = clock::now();
            say!("adapter {number} begins");
        }
        let options = Options {
            consumer: self.consumer.clone(),
            program: vec!["program".into()],
            environment: Vec::new(),
            protocol: self.protocol(),
            seat: Seat { name: None, moved: None, chose: Vec::new() },
            settings: self.settings.clone(),
            stay: Stay { attempts: ATTEMPTS, idle: Duration::from_nanos(IDLE), max_agents: 0 },
        };
        let done = left::<Killed, _>(|| {
            let adapter = Adapter::new(self.open(), self.launcher.clone(), options)?;
            self.state.borrow_mut().stop = Some(adapter.stopper());
            adapter.run()
        });
        self.state.borrow_mut().stop = None;
        let Ok(done) = done else { return false };
        say!("the adapter ends: {done:?}");
        self.others(World::check);
        let state = self.state.borrow();
        let is_stopped = state.stopped.is_some();
        assert!(done.is_ok() || is_stopped, "{done:?}");
        let mut left = state.programs.iter();
        let left = left.find(|program| program.of == state.adapters && program.is_alive());
        assert!(left.is_none() || state.kind == Kind::Exec, "a program is left");
        state.is_calm && state.rules.is_done()
    }

    /// The adapter hears that something was stored.
    pub fn nudge(&self) {
        let mut state = self.state.borrow_mut();
        if let Some(stop) = &state.stop {
            stop.wake.try_send(LoopEvent::Nudge).ok();
            state.is_woken = true;
        }
    }

    /// Lets happen what is next, until a time. Returns false if there is nothing more.
    fn next_happens(self: &Rc<Self>, end: u64) -> bool {
        let Some(what) = self.state.borrow_mut().agenda.next(end) else { return false };
        self.happens(what);
        true
    }

    /// Before the adapter uses the store.
    fn before(self: &Rc<Self>, operation: &'static str) {
        let acts = {
            let mut state = self.state.borrow_mut();
            if state.is_busy {
                return;
            }
            !state.is_calm && state.steps > 0 && state.dice.one_in(25)
        };
        if std::mem::take(&mut self.state.borrow_mut().is_changed) {
            self.others(World::check);
        }
        {
            let mut state = self.state.borrow_mut();
            state.is_changed = matches!(operation, "append" | "acknowledge");
            if operation == "append" {
                state.known = state.read;
            }
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
}

impl System for World {
    fn wait(&self, timeout: Duration) {
        let world = world();
        let end = {
            let mut state = self.state.borrow_mut();
            state.waits += 1;
            assert!(state.waits < MOST_WAITS, "it waits again and again");
            state.is_changed = false;
            state.is_woken = false;
            clock::now() + nanoseconds(timeout).min(7200 * SECOND)
        };
        world.others(World::check);
        loop {
            world.programs_read();
            {
                let mut state = self.state.borrow_mut();
                let is_done = state.is_calm && state.rules.is_done() && state.checked == state.rules.upto;
                state.checked = state.rules.upto;
                let now = clock::now();
                match is_done {
                    true => _ = state.done_since.get_or_insert(now),
                    false => state.done_since = None,
                }
            }
            self.check_times();
            if self.state.borrow().is_woken {
                return;
            }
            if !world.next_happens(end) {
                clock::pass_until(end);
                return self.check_times();
            }
        }
    }

    fn sleep(&self, time: Duration) {
        self.state.borrow_mut().slept += nanoseconds(time);
        clock::pass(nanoseconds(time));
    }

    fn has_read(&self, upto: i64) {
        self.state.borrow_mut().read = upto;
    }

    fn start(
        &self,
        command: &Command,
        stdin: Option<Receiver<Vec<u8>>>,
        report: Report,
    ) -> std::io::Result<(Pid, ChildStdout)> {
        let mut variables: Vec<Vec<u8>> = Vec::new();
        let mut id = None;
        for (name, value) in command.get_envs() {
            let (name, value) =
                (name.to_str().unwrap(), value.and_then(|value| value.to_str()).unwrap_or_default());
            variables.push(format!("{name}={value}").into_bytes());
            if name == "THREAD_EVENT_ID" {
                id = value.parse::<i64>().ok();
            }
        }
        let (at, pid, kind) = {
            let mut state = self.state.borrow_mut();
            state.next_pid += 1;
            let (pid, kind, of) = (state.next_pid, state.kind, state.adapters);
            let is_calm = state.is_calm;
            say!("program {pid} is started");
            let program = Program::new((pid, kind, of), variables, report, stdin, &mut state.dice, is_calm);
            state.programs.push(program);
            let at = state.programs.len() - 1;
            state.acts_after(at, 0);
            (at, pid, kind)
        };
        if kind == Kind::Exec {
            let world = world();
            world.state.borrow_mut().begins(at, id.unwrap());
            world.is_given(at, id.unwrap());
        }
        Ok((Pid::from_raw(pid).unwrap(), self.null.try_clone()?.into()))
    }

    fn is_read(&self, pid: Pid) -> bool {
        let state = self.state.borrow();
        let pid = pid.as_raw_nonzero().get();
        state.programs.iter().all(|program| program.pid != pid || program.reports.is_empty())
    }

    fn signal(&self, pid: Pid, signal: Signal) {
        self.state.borrow_mut().is_signalled(pid.as_raw_nonzero().get(), signal);
    }

    fn reap(&self) -> Option<(Pid, i32)> {
        let mut state = self.state.borrow_mut();
        let of = state.adapters;
        let mut own = state.programs.iter_mut().filter(|program| program.of == of && !program.is_reaped);
        let ended = own.find(|program| program.exited.is_some())?;
        ended.is_reaped = true;
        Some((Pid::from_raw(ended.pid)?, ended.exited?))
    }

    fn kill(&self, variables: &[Vec<u8>], pids: &[u32], all_but: Option<&BTreeSet<u32>>) {
        let mut state = self.state.borrow_mut();
        for at in 0..state.programs.len() {
            let program = &mut state.programs[at];
            let has = |wanted: &Vec<u8>| match wanted.as_slice() {
                b"THREAD_RUN_ID=" => program.variables.iter().any(|one| one.starts_with(wanted)),
                _ => program.variables.contains(wanted),
            };
            let pid = program.pid.unsigned_abs();
            let is_below = all_but.is_some_and(|spared| !spared.contains(&pid));
            if variables.iter().all(has) || pids.contains(&pid) || is_below {
                program.exit(137);
                state.acts_after(at, 0);
            }
        }
    }

    fn alive(&self) -> BTreeSet<u32> {
        let state = self.state.borrow();
        let alive = state.programs.iter().filter(|program| program.is_alive());
        alive.map(|program| program.pid.unsigned_abs()).collect()
    }
}
