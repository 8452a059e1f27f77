//! The rule for runs: what happens before and after a handler ran, as pure functions.
//!
//! A run made *progress* if the consumer's cursor at its end is past the cursor at its start. With nothing
//! pending, the consumer is idle. Pending after progress: run again at once, attempts reset. Pending without
//! progress: one more failed attempt, and a wait; out of attempts, the consumer stalls or, with delivery on
//! stdin, the failing event becomes a dead letter. There a handler may also judge an event: by exit 65 it
//! becomes a dead letter at once. By exit 75 a handler defers: a wait, but no attempt. `run` carries out these
//! decisions; a store records them.

mod crew;
mod options;
mod record;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::crew::{Crew, Crews, allotment};
pub use self::options::{AHEAD, Deliver, Options, UNLIMITED};
pub use self::record::{ERROR_KEPT, RUNS_KEPT, Run, RunResult, Span, TAIL_KEPT, end_of};
use super::ledger::Sleep;
use super::time::Time;

/// The exit code by which a handler that gets events on stdin says that the event itself is bad
/// (`EX_DATAERR`).
pub const BAD_EVENT: i32 = 65;

/// The exit code by which a handler defers: what it was given cannot be handled now, through no fault of its own
/// (`EX_TEMPFAIL`).
pub const NOT_NOW: i32 = 75;

/// After this many events in a row were judged bad, the consumer stalls: a broken validator must not turn the
/// backlog into dead letters.
pub const MAX_JUDGED: u32 = 100;

/// Identifies a process even after its pid is reused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    pub pid: u32,
    /// Start time in the kernel's own unit; 0 if unknown.
    pub start: i64,
    /// Boot id of the machine at the time; empty if unknown.
    pub boot: String,
    /// The PID namespace of its pid; 0 if unknown.
    pub namespace: u64,
}

/// Recorded phase of a consumer. Pausing is separate: a paused consumer may still be running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    #[default]
    Idle,
    /// A run began and its outcome is not recorded yet; its supervisor may be dead.
    Running,
    /// The next attempt is due at `next_try`.
    Waiting,
    /// Given up until a newer matching event or a `resume`.
    Stalled,
}

/// What a run has to process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// Whatever the handler pops.
    Wake,
    /// Several events on stdin, up to this id.
    Batch(i64),
    /// One event alone on stdin.
    Single(i64),
    /// The retry of a dead letter.
    DeadLetter(i64),
    /// Events that finish singly: one after another by a handler that is kept, or by the runs of a pool.
    Pool,
}

/// A request to end a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopRequest {
    /// The first signal to its processes.
    pub signal: i32,
    /// Time until they are killed, in milliseconds.
    pub kill_after_ms: u64,
    /// Whether to acknowledge the run's events.
    #[serde(default)]
    pub skip: bool,
}

/// TERM, and KILL ten seconds later.
impl Default for StopRequest {
    fn default() -> StopRequest {
        StopRequest { signal: libc::SIGTERM, kill_after_ms: 10_000, skip: false }
    }
}

/// The reason recorded for a consumer that was stopped.
pub const STOPPED: &str = "stopped";

/// Recorded state of a subscription's runs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunState {
    pub phase: Phase,
    pub paused: bool,
    /// Why the consumer stalled.
    pub reason: Option<String>,
    /// Number of the current attempt, or of the last failed one; 0 if neither.
    pub attempts: u32,
    /// Number of runs in a row that were deferred, which are not attempts.
    #[serde(skip_serializing_if = "is_zero")]
    pub deferred: u32,
    pub next_try: Option<Time>,
    /// The supervisor of the run or wait. May be dead.
    pub supervisor: Option<ProcessId>,
    /// The handler's first process, which leads its process group.
    pub handler: Option<ProcessId>,
    /// Device and inode of the database of the thread that the processes work for, so that a copied directory
    /// does not take the original's run for its own.
    pub home: Option<(u64, u64)>,
    /// When the run or the wait began.
    pub since: Option<Time>,
    /// When the last finished run began, when it ended, and how.
    pub began: Option<Time>,
    pub ended: Option<Time>,
    pub last_exit: Option<Exit>,
    /// Task of the current run, and how many events a batch has.
    pub task: Option<Task>,
    pub batch: u64,
    /// The cursor at the start of the run.
    pub start_cursor: i64,
    /// How often the cursor had been moved back at the start of the run.
    pub start_rewinds: i64,
    /// The newest event at the start of the run, or the position up to which a stalled consumer was scanned
    /// for newer ones.
    pub start_newest: i64,
    /// A run on stdin failed: events up to this id are delivered one at a time. See
    /// [`Subscription::single_upto`](crate::model::subscription::Subscription::single_upto).
    pub single_upto: i64,
    /// Number of dead letters made since a run on stdin has succeeded, without those in `judged_streak`.
    pub dead_streak: u32,
    /// Number of events judged bad since a run on stdin has succeeded.
    pub judged_streak: u32,
    pub stop: Option<StopRequest>,
    /// The events at handlers that sleep once their runs end, whatever their exit codes; where events finish together,
    /// also the one that sleeps now.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub asleep: BTreeMap<i64, Sleep>,
    /// Where programs take events: many that are held back, so that not each program reads them all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
    /// Number of runs that succeeded, and of those that failed.
    pub succeeded: u64,
    pub failed: u64,
    /// Number of dead letters made.
    pub dead_lettered: u64,
    /// Number of events that were passed over because they had expired.
    #[serde(skip_serializing_if = "is_zero")]
    pub expired: u64,
    /// Events up to this one were given, so that they do not expire any more. Kept only where some may expire.
    #[serde(skip_serializing_if = "is_zero")]
    pub given_upto: i64,
    /// The machines that work for a pool, where several may do so at once.
    #[serde(skip_serializing_if = "Crews::is_empty")]
    pub crews: Crews,
}

/// Events past the cursor that are held back by others with the same keys.
///
/// Up to the event `upto`, each unfinished one is claimed, waits, or has one of the keys. That stays true as long as, for
/// each key, an older event is claimed or waits, and the cursor is not moved back.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Held {
    pub upto: i64,
    /// The keys, each with the oldest event that has it.
    pub by: Vec<(i64, String)>,
    /// How many are held back, at most.
    pub count: usize,
    /// How often the cursor had been moved back.
    pub rewinds: i64,
}

pub(crate) fn is_zero<N: Default + PartialEq>(number: &N) -> bool {
    *number == N::default()
}

impl RunState {
    /// Copy of the state without a run, wait or stall; what outlives a run stays.
    pub fn idle(&self) -> RunState {
        RunState {
            phase: Phase::Idle,
            reason: None,
            next_try: None,
            supervisor: None,
            handler: None,
            home: None,
            since: None,
            task: None,
            stop: None,
            asleep: BTreeMap::new(),
            ..self.clone()
        }
    }

    /// State in a copy of the thread, where the consumer is paused. Runs and waits are not copied, and a run that was in
    /// progress does not count as a failed attempt.
    pub fn of_copy(&self) -> RunState {
        let idle = RunState { paused: true, held: None, crews: Crews::new(), ..self.idle() };
        match self.phase {
            Phase::Running if !matches!(self.task, Some(Task::DeadLetter(_))) => {
                RunState { attempts: self.attempts.saturating_sub(1), ..idle }
            }
            Phase::Stalled => RunState { phase: Phase::Stalled, reason: self.reason.clone(), ..idle },
            Phase::Idle | Phase::Waiting | Phase::Running => idle,
        }
    }

    /// Initial state of a subscription that replaces this one: a pause stays, and counters never decrease.
    pub fn replaced(&self) -> RunState {
        RunState {
            paused: self.paused,
            succeeded: self.succeeded,
            failed: self.failed,
            dead_lettered: self.dead_lettered,
            expired: self.expired,
            given_upto: self.given_upto,
            // They may still be at work.
            crews: self.crews.clone(),
            ..RunState::default()
        }
    }

    /// State of a subscription of which only numbers were changed, during a run or not: waits and stalls are over, and
    /// failed attempts forgotten.
    pub fn adjusted(&self) -> RunState {
        let phase = if self.phase == Phase::Running { Phase::Running } else { Phase::Idle };
        RunState {
            phase,
            reason: None,
            attempts: 0,
            deferred: 0,
            next_try: None,
            dead_streak: 0,
            judged_streak: 0,
            // It relies on the waits.
            held: None,
            ..self.clone()
        }
    }

    /// Counts a dead letter. `judged`: its handler said that the event itself is bad.
    pub fn with_dead_letter(self, judged: bool) -> RunState {
        RunState {
            dead_lettered: self.dead_lettered + 1,
            judged_streak: self.judged_streak.saturating_add(u32::from(judged)),
            dead_streak: self.dead_streak.saturating_add(u32::from(!judged)),
            ..self
        }
    }

    pub fn stalled(self, reason: &str) -> RunState {
        RunState { phase: Phase::Stalled, reason: Some(reason.to_owned()), ..self }
    }
}

/// What to do with a consumer now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    None,
    Start,
    /// Start at this time, holding the lock until then.
    WaitUntil(Time),
}

/// Decides what to do with a consumer that has something pending. `newer`: a matching event was stored since
/// its last run began; matters only if it is stalled.
pub fn decide(state: &RunState, options: &Options, newer: bool, now: Time) -> Action {
    // Setting the clock back must not prolong a wait.
    let at = |time: Time, longest: Duration| {
        let time = time.min(now + longest);
        if time <= now { Action::Start } else { Action::WaitUntil(time) }
    };
    if state.paused {
        return Action::None;
    }
    match state.phase {
        // The process that holds the lock records the outcome of a run whose supervisor has died.
        Phase::Idle | Phase::Running => Action::Start,
        Phase::Waiting => {
            let left = state.next_try.zip(state.since).and_then(|(next, since)| (next - since).to_std().ok());
            at(state.next_try.unwrap_or(now), left.unwrap_or(options.longest_wait()))
        }
        Phase::Stalled if state.reason.as_deref() == Some(STOPPED) => {
            if newer {
                Action::Start
            } else {
                Action::None
            }
        }
        Phase::Stalled => {
            let waits = newer.then(|| options.longest_wait()).into_iter().chain(options.probe);
            waits.min().map_or(Action::None, |wait| at(state.ended.map_or(now, |ended| ended + wait), wait))
        }
    }
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    Code(i32),
    Signal(i32),
    TimedOut,
    /// Its supervisor was killed, so the outcome is unknown.
    Unknown,
}

impl Exit {
    /// The exit code as a number: 128 plus the signal's number as in a shell, 124 for a timeout as in GNU
    /// timeout; `None` if unknown.
    pub fn code(self) -> Option<i32> {
        match self {
            Exit::Code(code) => Some(code),
            Exit::Signal(signal) => Some(128 + signal),
            Exit::TimedOut => Some(124),
            Exit::Unknown => None,
        }
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "exit={code}"),
            Exit::Signal(signal) => write!(f, "exit={} signal={signal}", 128 + signal),
            Exit::TimedOut => f.write_str("timed out"),
            Exit::Unknown => f.write_str("exit=unknown"),
        }
    }
}

/// A finished run and the consumer's state at that moment.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    pub task: Task,
    pub exit: Exit,
    /// The run was ended by a stop request.
    pub stopped: bool,
    /// Its supervisor was terminated and ended the run, which is therefore due again.
    pub interrupted: bool,
    /// The cursor, including the acknowledgement implied by exit 0.
    pub cursor: i64,
    /// Whether the cursor was moved back during the run.
    pub rewound: bool,
    /// Whether anything is pending past the cursor.
    pub pending: bool,
    /// Its event, which sleeps now: the exit code is that of a run that was deferred.
    pub asleep: Option<(i64, Sleep)>,
    pub now: Time,
}

impl Ended {
    /// Whether the run succeeded.
    pub fn succeeded(&self) -> bool {
        self.exit == Exit::Code(0) && !self.is_cut_short()
    }

    /// Whether its handler said that it cannot do its work now.
    pub fn is_deferred(&self) -> bool {
        self.exit == Exit::Code(NOT_NOW) && !self.is_cut_short()
    }

    fn is_cut_short(&self) -> bool {
        self.stopped || self.interrupted
    }
}

/// What to record about a finished run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub state: RunState,
    /// Event that becomes a dead letter, and its number of attempts; the cursor moves to this event.
    pub dead_letter: Option<(i64, u32)>,
}

impl From<RunState> for Outcome {
    fn from(state: RunState) -> Outcome {
        Outcome { state, dead_letter: None }
    }
}

/// Applies the rule to a finished run.
pub fn apply_outcome(before: &RunState, options: &Options, ended: &Ended) -> Outcome {
    let (succeeded, deferred) = (ended.succeeded(), ended.is_deferred());
    let cut_short = ended.is_cut_short();
    let mut state = RunState {
        began: before.since,
        ended: Some(ended.now),
        last_exit: Some(ended.exit),
        succeeded: before.succeeded + u64::from(succeeded),
        failed: before.failed + u64::from(!succeeded && !cut_short && !deferred),
        deferred: 0,
        ..before.idle()
    };
    if succeeded && !matches!(ended.task, Task::Wake | Task::Pool) && !ended.rewound {
        (state.dead_streak, state.judged_streak) = (0, 0);
    }
    if cut_short {
        if !matches!(ended.task, Task::DeadLetter(_)) {
            state.attempts = before.attempts.saturating_sub(1);
        }
        return if ended.stopped { state.stalled(STOPPED).into() } else { state.into() };
    }
    let waiting = |state: RunState, wait: Duration| RunState {
        phase: Phase::Waiting,
        next_try: Some(ended.now + wait),
        since: Some(ended.now),
        ..state
    };
    if deferred && ended.pending {
        // The retry of a dead letter is no attempt in any case.
        let counted = u32::from(!matches!(ended.task, Task::DeadLetter(_)));
        state.attempts = before.attempts.saturating_sub(counted);
        state.deferred = before.deferred.saturating_add(1);
        if let Some((id, sleep)) = ended.asleep {
            state.deferred = 0;
            state.asleep = BTreeMap::from([(id, sleep)]);
            return waiting(state, (sleep.until - ended.now).to_std().unwrap_or_default()).into();
        }
        let wait = options.wait_after(state.deferred);
        return waiting(state, wait).into();
    }
    if let (Task::Batch(last) | Task::Single(last), false) = (ended.task, succeeded) {
        // An event that failed alone stays alone, so that its attempts are not mixed with those of a batch.
        state.single_upto = state.single_upto.max(last);
    }
    if let Task::DeadLetter(_) = ended.task {
        // Only its exit code decides, and that is recorded with the dead letter. `attempts` belongs to the
        // next pending event.
        return state.into();
    }
    let progress = ended.cursor > before.start_cursor;
    if !ended.pending || progress {
        state.attempts = 0;
        return state.into();
    }
    if let Exit::Code(code @ (126 | 127)) = ended.exit {
        return state.stalled(&format!("the handler cannot be run (exit {code})")).into();
    }
    let judged = ended.exit == Exit::Code(BAD_EVENT) && !ended.rewound;
    let waiting = |state: RunState| waiting(state, options.wait_after(before.attempts));
    match ended.task {
        Task::Batch(_) => {
            // Attempts of an event count from its first run alone.
            state.attempts = 0;
            // The batch is sound, its events are judged one by one.
            if judged { state.into() } else { waiting(state).into() }
        }
        Task::Single(id) if judged || !ended.rewound => {
            match fate(&state, options, before.attempts, judged) {
                Fate::Wait => waiting(state).into(),
                Fate::Dead => Outcome {
                    state: RunState { attempts: 0, ..state.with_dead_letter(judged) },
                    dead_letter: Some((id, before.attempts)),
                },
                Fate::Stall(why) => state.stalled(&why).into(),
            }
        }
        _ if before.attempts < options.max_attempts => waiting(state).into(),
        _ => state.stalled("out of attempts").into(),
    }
}

/// What becomes of an event that a handler failed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It is tried again after a wait.
    Wait,
    Dead,
    /// Nothing more is tried; the consumer stalls for this reason.
    Stall(String),
}

/// Decides about an event after so many attempts at it. `judged`: its handler said that the event itself is bad.
pub fn fate(state: &RunState, options: &Options, attempts: u32, judged: bool) -> Fate {
    if judged {
        return match state.judged_streak {
            MAX_JUDGED.. => Fate::Stall("100 events in a row were judged bad (exit 65)".to_owned()),
            _ => Fate::Dead,
        };
    }
    if attempts < options.max_attempts || options.max_attempts == UNLIMITED {
        return Fate::Wait;
    }
    match options.stall_after {
        Some(most) if state.dead_streak >= most => {
            let letters = if most == 1 { "letter" } else { "letters" };
            Fate::Stall(format!("out of attempts after {most} dead {letters} without a success"))
        }
        _ => Fate::Dead,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_under_way_costs_no_attempt_in_a_copy() {
        let copy = |phase, task| RunState { phase, task, attempts: 3, ..RunState::default() }.of_copy();
        assert_eq!(copy(Phase::Running, Some(Task::Wake)).attempts, 2);
        assert_eq!(copy(Phase::Running, Some(Task::DeadLetter(1))).attempts, 3);
        assert_eq!(copy(Phase::Waiting, None).attempts, 3);
        assert_eq!(copy(Phase::Stalled, None).phase, Phase::Stalled);
        assert_eq!(copy(Phase::Waiting, None).phase, Phase::Idle);
        assert!(copy(Phase::Idle, None).paused);
    }
}
