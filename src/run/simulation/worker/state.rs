//! What there is in a schedule.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use thread_testkit::Dice;
use thread_testkit::simulation::Agenda;
use thread_testkit::simulation::clock::{self, MILLISECOND, SECOND};

use super::processes::Process;
use super::rules::Due;
use crate::files::watch::Notice;
use crate::model::subscription::ConsumerId;
use crate::run::simulation::shared::SharedStore;

/// What happens at a time.
#[derive(Debug, Clone)]
pub enum What {
    /// Anything.
    Step,
    /// What was written to a thread can be read from now on: so many events, and whether others are told.
    Stored { thread: usize, count: u64, tells: bool },
    /// A file of a thread is touched.
    Touched { thread: usize, name: &'static str },
    /// A process does something.
    Process(i64),
    /// All of a thread is removed.
    Removed(usize),
}

/// What may happen in a schedule, besides events.
#[derive(Debug, Clone)]
pub struct May {
    pub kill: bool,
    pub kill_worker: bool,
    pub ask_to_end: bool,
    pub move_threads: bool,
    pub fail: bool,
    pub be_slow: bool,
    pub drop_notices: bool,
    pub set_clock: bool,
}

impl May {
    fn any(dice: &mut Dice) -> May {
        May {
            kill: dice.one_in(2),
            kill_worker: dice.one_in(3),
            ask_to_end: dice.one_in(3),
            move_threads: dice.one_in(2),
            fail: dice.one_in(3),
            be_slow: dice.one_in(3),
            drop_notices: dice.one_in(2),
            set_clock: dice.one_in(4),
        }
    }
}

/// A thread, wherever it is.
pub struct Thread {
    pub store: SharedStore,
    /// Where it is; `None` if it was moved away.
    pub place: Option<usize>,
    pub home: (u64, u64),
    pub consumers: Vec<Consumer>,
    /// The size of its WAL, when that was changed, and when `run/_commit` was touched.
    pub wal: (i64, Duration),
    pub touched: Duration,
    /// The worker's watch.
    pub watch: Option<i32>,
    /// It is being removed.
    pub leaves: bool,
    /// So often it cannot be opened.
    pub fails: u32,
    /// When it came to its place.
    pub moved: Option<u64>,
    /// When the worker failed at it last.
    pub failed: Option<u64>,
}

pub struct Consumer {
    pub id: ConsumerId,
    pub due: Option<Due>,
}

/// The worker or starter under way.
pub struct Worker {
    pub number: i64,
    /// A part of a server.
    pub is_starter: bool,
    pub most: Option<usize>,
    pub grace: u64,
    pub shutdown: Option<UnixStream>,
    /// When it was asked to end, and when again.
    pub asked: Vec<u64>,
    /// It was asked to end since it has begun to wait last.
    pub is_nudged: bool,
    /// It has waited since it was asked to end.
    pub has_waited: bool,
    pub is_ready: bool,
    pub is_stopping: bool,
}

pub struct State {
    pub dice: Dice,
    pub may: May,
    /// The threads are on a server.
    pub is_server: bool,
    /// The server cannot be asked which threads there are.
    pub is_away: bool,
    /// How exact the times of files are.
    pub tick: u64,
    pub steps: u32,
    pub is_calm: bool,
    pub calm_since: u64,
    pub waits: u32,
    pub agenda: Agenda<What>,
    pub threads: Vec<Thread>,
    pub processes: Vec<Process>,
    pub worker: Option<Worker>,
    /// The number of the process that others play.
    pub role: Option<i64>,
    pub numbers: i64,
    pub notices: Vec<Notice>,
    pub watches: i32,
    /// How long the worker was busy.
    pub busy: u64,
    /// How often a process cannot be started.
    pub spawn_fails: u32,
    /// Others do something, during which nothing else happens.
    pub is_busy: bool,
    /// The thread that was opened last.
    pub open: usize,
    /// The worker is in the middle of using that.
    is_in_use: bool,
}

impl State {
    pub fn new(seed: u64, threads: Vec<Thread>) -> State {
        let mut dice = Dice::of(seed);
        State {
            may: May::any(&mut dice),
            is_server: dice.one_in(4),
            is_away: false,
            tick: *dice.pick(&[1, 4, 10, 40]) * MILLISECOND,
            steps: dice.length(35) as u32,
            dice,
            is_calm: false,
            calm_since: 0,
            waits: 0,
            agenda: Agenda::default(),
            threads,
            processes: Vec::new(),
            worker: None,
            role: None,
            numbers: 0,
            notices: Vec::new(),
            watches: 0,
            busy: 0,
            spawn_fails: 0,
            is_busy: false,
            open: 0,
            is_in_use: false,
        }
    }

    /// What follows happens while the worker uses a thread, or no longer.
    pub fn uses(&mut self, is_in_use: bool) {
        self.is_in_use = is_in_use;
    }

    /// A thread that is moved away from under the worker is one that the worker fails at.
    pub fn fails_if_used(&mut self, thread: usize) {
        if self.is_in_use && self.open == thread {
            self.threads[thread].failed = Some(clock::now());
        }
    }

    /// The time that a file gets that is changed now.
    pub fn file_time(&self) -> Duration {
        Duration::from_nanos(clock::time_of_day() / self.tick * self.tick)
    }

    /// Plans the next step: at once, soon, or much later.
    pub fn plan_step(&mut self) {
        let most = *self.dice.pick(&[MILLISECOND, 60 * MILLISECOND, 3 * SECOND]);
        let after = self.dice.below(most);
        self.agenda.plan(after, What::Step);
    }

    /// A commit writes to a thread's WAL, which begins again from time to time.
    pub fn written(&mut self, thread: usize) {
        let grows = self.dice.one_in(2);
        let at = self.file_time();
        let wal = &mut self.threads[thread].wal;
        *wal = (wal.0 + i64::from(grows) * 4096, at);
    }

    pub fn is_alive(&self, number: i64) -> bool {
        let is_worker = self.worker.as_ref().is_some_and(|worker| worker.number == number);
        is_worker || self.processes.iter().any(|process| process.number == number && !process.was_killed)
    }
}
