//! The world of a schedule: which programs are there, and how time passes.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::process::{ChildStdout, Command};
use std::rc::Rc;
use std::sync::mpsc::Receiver;
use std::sync::{Mutex, Once};
use std::time::Duration;

use clap::Parser;
use rustix::process::{Pid, Signal};
use tempfile::TempDir;
use thread::error::{DatabaseError, DatabaseErrorKind};
use thread::model::location::Location;
use thread::model::subscription::{ConsumerId, NO_HANDLER, NewSubscription};
use thread::queue::locations::{Scheme, add};
use thread::run::{Launcher, WakeBy};
use thread::{Queue, Result};
use thread_conversation::Record;
use thread_testkit::Dice;
use thread_testkit::store::SharedStore;

use super::others::May;
use super::programs::{Kind, Program};
use super::rules::{ATTEMPTS, IDLE, QUIET, Rules};
use super::talks::Talks;
use crate::adapter::{Adapter, LoopEvent, Options, Stop};
use crate::install::FILTER;
use crate::protocol::{Exec, Ndjson, Protocol};
use crate::seat::Seat;
use crate::settings::{Settings, Stay};
use crate::simulated::{Report, System, set_clocks, simulate};

/// In nanoseconds.
pub const MILLISECOND: u64 = 1_000_000;
pub const SECOND: u64 = 1000 * MILLISECOND;

/// The clocks when a schedule begins.
const BEGINNING: (u64, u64) = (1_000_000 * SECOND, 1_800_000_000 * SECOND);

/// So often an adapter may wait in a schedule.
const MOST_WAITS: u32 = 50_000;

/// The pids of simulated programs begin here, where no real one is.
const FIRST_PID: i32 = 1 << 23;

static STORES: Mutex<BTreeMap<Location, SharedStore>> = Mutex::new(BTreeMap::new());

/// How the adapter is killed.
pub struct Killed;

/// What happens at a time.
#[derive(Debug, Clone, Copy)]
pub enum What {
    /// Anything.
    Step,
    /// The adapter hears that something was stored.
    Nudge,
    /// A program does something.
    Program(i32),
}

pub struct State {
    pub dice: Dice,
    pub now: u64,
    pub may: May,
    pub kind: Kind,
    talks: (bool, bool, bool),
    pub steps: u32,
    pub is_calm: bool,
    pub calm_since: u64,
    waits: u32,
    /// In the order in which it happens.
    agenda: BTreeMap<(u64, u64), What>,
    planned: u64,
    pub programs: Vec<Program>,
    next_pid: i32,
    /// How many adapters there were.
    pub adapters: u32,
    /// When the one under way began.
    pub began: u64,
    /// To stop it.
    pub stop: Option<Stop>,
    /// When it was stopped, and how long it has slept since then.
    pub stopped: Option<u64>,
    pub slept: u64,
    /// Since when the adapter under way has had nothing to do.
    pub done_since: Option<u64>,
    /// The newest event when it began to wait last.
    checked: i64,
    /// It was told something while it waits.
    pub is_woken: bool,
    /// It has read the events up to this one, and had when it stored something last.
    read: i64,
    pub known: i64,
    /// So often the store fails.
    pub fails: u32,
    /// Others do something, during which nothing else happens.
    is_busy: bool,
    is_changed: bool,
    pub rules: Rules,
    log: Vec<String>,
}

impl State {
    fn new(seed: u64) -> State {
        let mut dice = Dice::of(seed);
        let may = May {
            kill: dice.one_in(2),
            stop: dice.one_in(4),
            cancel: dice.one_in(2),
            fail: dice.one_in(3),
            hurry: dice.one_in(2),
        };
        State {
            kind: *dice.pick(&[Kind::Exec, Kind::Ndjson, Kind::Talks, Kind::Talks]),
            talks: (dice.one_in(2), dice.one_in(2), dice.one_in(2)),
            steps: 5 + dice.below(25) as u32,
            dice,
            now: BEGINNING.0,
            may,
            is_calm: false,
            calm_since: 0,
            waits: 0,
            agenda: BTreeMap::new(),
            planned: 0,
            programs: Vec::new(),
            next_pid: FIRST_PID,
            adapters: 0,
            began: 0,
            stop: None,
            stopped: None,
            slept: 0,
            done_since: None,
            checked: 0,
            is_woken: false,
            read: 0,
            known: 0,
            fails: 0,
            is_busy: false,
            is_changed: false,
            rules: Rules::default(),
            log: Vec::new(),
        }
    }

    pub fn say(&mut self, what: std::fmt::Arguments<'_>) {
        let at = (self.now - BEGINNING.0) as f64 / MILLISECOND as f64;
        self.log.push(format!("{at:>12.3} ms  {what}"));
    }

    pub fn log_event(&mut self, record: &Record) {
        let event = &record.event;
        let (subtype, content) = (event.subtype.as_deref().unwrap_or("message"), &event.content);
        let run = record.run_id.as_deref().unwrap_or_default();
        self.say(format_args!("  event {}: {subtype} of {run}: {content}", event.id));
    }

    fn set_now(&mut self, now: u64) {
        self.now = self.now.max(now);
        set_clocks(self.now, BEGINNING.1 + self.now - BEGINNING.0);
    }

    pub fn plan(&mut self, after: u64, what: What) {
        self.planned += 1;
        self.agenda.insert((self.now + after, self.planned), what);
    }

    /// Plans the next step: at once, soon, or much later.
    pub fn plan_step(&mut self) {
        let most = *self.dice.pick(&[MILLISECOND, 100 * MILLISECOND, 3 * SECOND, 30 * SECOND]);
        let after = self.dice.below(most);
        self.plan(after, What::Step);
    }
}

pub struct World {
    _dir: TempDir,
    location: Location,
    pub consumer: ConsumerId,
    launcher: Launcher,
    settings: Settings,
    null: OwnedFd,
    pub state: RefCell<State>,
    seed: Cell<u64>,
}

/// Prints what has happened, if that was wrong or is all that happens.
struct Prints<'w>(&'w World);

impl Drop for Prints<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() || std::env::var_os("THREAD_SEED").is_some() {
            let state = self.0.state.borrow();
            state.log.iter().for_each(|line| eprintln!("{line}"));
            let seed = self.0.seed.get();
            eprintln!("seed {seed}: {:?} {:?} {:?}", state.may, state.kind, state.talks);
        }
        simulate(None);
    }
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

fn base(location: &Location) -> Result<PathBuf> {
    Ok(PathBuf::from(location.as_os_str().to_str().unwrap().replace("talked://", "")))
}

fn failure(kind: DatabaseErrorKind) -> thread::Error {
    DatabaseError { kind, doing: "storing", message: "the test says so".into(), advice: None }.into()
}

impl World {
    pub fn new() -> Rc<World> {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            add(Scheme {
                name: "talked",
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
        let location = Location::from(PathBuf::from(format!("talked://{}", dir.path().display())));
        let quiet = format!("{}s", QUIET / SECOND);
        let given = Given::parse_from(["agent", "--quiet", &quiet, "--permit-wait", "4s", "--", "program"]);
        assert_eq!(given.program.len(), 1);
        let world = Rc::new(World {
            location,
            consumer: ConsumerId::new("agent").unwrap(),
            launcher: Launcher { program: "/nowhere".into(), waking: WakeBy::Nobody },
            settings: given.settings,
            null: File::open("/dev/null").unwrap().into(),
            state: RefCell::new(State::new(0)),
            seed: Cell::default(),
            _dir: dir,
        });
        WORLD.set(Some(world.clone()));
        world
    }

    pub fn say(&self, what: std::fmt::Arguments<'_>) {
        self.state.borrow_mut().say(what);
    }

    pub fn queue(&self) -> Queue {
        Queue::open(self.location.clone()).unwrap()
    }

    /// One schedule, from its beginning to its end.
    pub fn schedule(self: &Rc<Self>, seed: u64) {
        self.seed.set(seed);
        let store = SharedStore::new(|operation| world().before(operation)).failing(|operation| {
            let world = world();
            let mut state = world.state.borrow_mut();
            let fails = !state.is_busy && state.fails > 0 && operation == "append";
            state.fails -= u32::from(fails);
            if fails { Err(failure(DatabaseErrorKind::OutcomeUnknown)) } else { Ok(()) }
        });
        STORES.lock().unwrap().insert(self.location.clone(), store);
        self.state.replace(State::new(seed));
        set_clocks(BEGINNING.0, BEGINNING.1);
        simulate(Some(self.clone()));
        let _prints = Prints(self);
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
            let end = self.state.borrow().now + downtime;
            while self.next_happens(end) {}
            self.state.borrow_mut().set_now(end);
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
            state.began = state.now;
            state.say(format_args!("adapter {number} begins"));
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
        let done = catch_unwind(AssertUnwindSafe(|| {
            let adapter = Adapter::new(self.queue(), self.launcher.clone(), options)?;
            self.state.borrow_mut().stop = Some(adapter.stopper());
            adapter.run()
        }));
        self.state.borrow_mut().stop = None;
        match done {
            Ok(done) => {
                self.say(format_args!("the adapter ends: {done:?}"));
                self.others(World::check);
                let state = self.state.borrow();
                let is_stopped = state.stopped.is_some();
                assert!(done.is_ok() || is_stopped, "{done:?}");
                let mut left = state.programs.iter();
                let left = left.find(|program| program.of == state.adapters && program.is_alive());
                assert!(left.is_none() || state.kind == Kind::Exec, "a program is left");
                state.is_calm && state.rules.is_done()
            }
            Err(how) if how.is::<Killed>() => false,
            Err(failed) => resume_unwind(failed),
        }
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
            state.now + u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX).min(7200 * SECOND)
        };
        world.others(World::check);
        loop {
            world.programs_read();
            {
                let mut state = self.state.borrow_mut();
                let is_done = state.is_calm && state.rules.is_done() && state.checked == state.rules.upto;
                state.checked = state.rules.upto;
                let now = state.now;
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
                self.state.borrow_mut().set_now(end);
                return self.check_times();
            }
        }
    }

    fn sleep(&self, time: Duration) {
        let mut state = self.state.borrow_mut();
        let time = u64::try_from(time.as_nanos()).unwrap_or(SECOND);
        state.slept += time;
        let now = state.now + time;
        state.set_now(now);
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
            state.say(format_args!("program {pid} is started"));
            let program = Program::new((pid, kind, of), variables, report, stdin, &mut state.dice, is_calm);
            state.programs.push(program);
            state.plan(0, What::Program(pid));
            (state.programs.len() - 1, pid, kind)
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
        for program in &mut state.programs {
            let has = |wanted: &Vec<u8>| match wanted.as_slice() {
                b"THREAD_RUN_ID=" => program.variables.iter().any(|one| one.starts_with(wanted)),
                _ => program.variables.contains(wanted),
            };
            let pid = program.pid.unsigned_abs();
            let is_below = all_but.is_some_and(|spared| !spared.contains(&pid));
            if variables.iter().all(has) || pids.contains(&pid) || is_below {
                program.exit(137);
            }
        }
    }

    fn alive(&self) -> BTreeSet<u32> {
        let state = self.state.borrow();
        let alive = state.programs.iter().filter(|program| program.is_alive());
        alive.map(|program| program.pid.unsigned_abs()).collect()
    }
}
