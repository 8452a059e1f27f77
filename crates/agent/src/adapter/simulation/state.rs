//! What there is in a schedule.

use thread_testkit::Dice;
use thread_testkit::simulation::Agenda;
use thread_testkit::simulation::clock::{MILLISECOND, SECOND};

use super::others::May;
use super::programs::{Kind, Program};
use super::rules::Rules;
use crate::adapter::Stop;

/// The pids of simulated programs begin here, where no real one is.
const FIRST_PID: i32 = 1 << 23;

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
    pub may: May,
    pub kind: Kind,
    pub talks: (bool, bool, bool),
    pub steps: u32,
    pub is_calm: bool,
    pub calm_since: u64,
    pub waits: u32,
    pub agenda: Agenda<What>,
    pub programs: Vec<Program>,
    pub next_pid: i32,
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
    pub checked: i64,
    /// It was told something while it waits.
    pub is_woken: bool,
    /// It has read the events up to this one, and had when it stored something last.
    pub read: i64,
    pub known: i64,
    /// So often the store fails.
    pub fails: u32,
    /// Others do something, during which nothing else happens.
    pub is_busy: bool,
    pub is_changed: bool,
    pub rules: Rules,
}

impl State {
    pub fn new(seed: u64) -> State {
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
            steps: dice.length(30) as u32,
            dice,
            may,
            is_calm: false,
            calm_since: 0,
            waits: 0,
            agenda: Agenda::default(),
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
        }
    }

    /// Plans the next step: at once, soon, or much later.
    pub fn plan_step(&mut self) {
        let most = *self.dice.pick(&[MILLISECOND, 100 * MILLISECOND, 3 * SECOND, 30 * SECOND]);
        let after = self.dice.below(most);
        self.agenda.plan(after, What::Step);
    }
}
