//! The one rule for runs: what happens before and after a handler ran, as pure functions.
//!
//! A run made *progress* if the consumer's cursor at its end is past the cursor at its start. With
//! nothing pending the consumer is idle. Pending after progress: run again at once, attempts
//! forgotten. Pending without progress: one more failed attempt, and a wait; out of attempts, the
//! consumer stalls, or, when events are delivered on stdin, the one event at fault becomes a dead
//! letter. `run` carries out what is decided here; a store remembers it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::time::Time;

/// How events reach a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Deliver {
    /// It is only started, and pops for itself.
    #[default]
    Wake,
    /// It gets them as NDJSON on stdin, and exit 0 acknowledges them.
    Stdin,
}

impl Deliver {
    pub fn as_str(self) -> &'static str {
        match self {
            Deliver::Wake => "wake",
            Deliver::Stdin => "stdin",
        }
    }
}

/// What a subscription asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Options {
    pub deliver: Deliver,
    /// Most events per run with [`Deliver::Stdin`], at least 1.
    pub batch_size: u64,
    /// Runs without progress before giving up, at least 1.
    pub max_attempts: u32,
    /// Waits between attempts; the last repeats. Never empty.
    pub backoff: Vec<Duration>,
    /// How long a run may take.
    pub timeout: Option<Duration>,
    /// Variables that the handler gets, whichever process dispatches.
    pub env: BTreeMap<String, String>,
    /// From the dispatcher's environment the handler gets only what no program can do without.
    pub clear_env: bool,
    /// Nobody starts the consumer: it reads for itself.
    pub no_handler: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            deliver: Deliver::Wake,
            batch_size: 100,
            max_attempts: 5,
            backoff: [1, 5, 30, 120, 600].map(Duration::from_secs).to_vec(),
            timeout: None,
            env: BTreeMap::new(),
            clear_env: false,
            no_handler: false,
        }
    }
}

impl Options {
    /// The wait after that many failed attempts.
    pub fn wait_after(&self, attempts: u32) -> Duration {
        let step = (attempts.max(1) - 1) as usize;
        self.backoff.get(step).or(self.backoff.last()).copied().unwrap_or_default()
    }

    pub fn longest_wait(&self) -> Duration {
        self.backoff.iter().max().copied().unwrap_or_default()
    }
}

/// A process, identified for longer than its pid lasts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    pub pid: u32,
    /// When it started, in the kernel's own unit; 0 where that cannot be known.
    pub start: i64,
    /// The boot it lives in; empty where that cannot be known.
    pub boot: String,
    /// The PID namespace its pid belongs to; 0 where that cannot be known.
    pub namespace: u64,
}

/// Where a consumer stands, as recorded. Pausing is separate: a paused consumer may still be running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    #[default]
    Idle,
    /// A run began and its end is not recorded yet; its supervisor may be dead.
    Running,
    /// The next attempt is due at `next_try`.
    Waiting,
    /// Given up until a newer matching event comes or somebody says `resume`.
    Stalled,
}

/// What a run is given to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// It pops for itself.
    Wake,
    /// Several events on stdin; the last one's id.
    Batch(i64),
    /// One event alone on stdin.
    Single(i64),
    /// A dead letter, delivered again.
    DeadLetter(i64),
}

/// A request to end a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopRequest {
    /// The signal its processes get first.
    pub signal: i32,
    /// How long they have before they are killed, in milliseconds.
    pub kill_after_ms: u64,
    /// Whether what was under way is acknowledged.
    #[serde(default)]
    pub skip: bool,
}

/// TERM, and KILL ten seconds later.
impl Default for StopRequest {
    fn default() -> StopRequest {
        StopRequest { signal: libc::SIGTERM, kill_after_ms: 10_000, skip: false }
    }
}

/// The reason recorded for a consumer that somebody stopped.
pub const STOPPED: &str = "stopped";

/// All that is recorded about a subscription's runs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunState {
    pub phase: Phase,
    pub paused: bool,
    /// Why it stalled.
    pub reason: Option<String>,
    /// The number of the attempt under way, or of the last failed one; 0 when the last run was fine.
    pub attempts: u32,
    pub next_try: Option<Time>,
    /// Who supervises the run or the wait. May be dead.
    pub supervisor: Option<ProcessId>,
    /// The handler's first process, which leads its process group.
    pub handler: Option<ProcessId>,
    /// Identifies the thread the processes work for (device and inode of its database), so that a
    /// copied directory does not take the original's run for its own.
    pub home: Option<(u64, u64)>,
    /// When the run or the wait began.
    pub since: Option<Time>,
    /// When the last finished run began, when it ended, and how.
    pub began: Option<Time>,
    pub ended: Option<Time>,
    pub last_exit: Option<Exit>,
    /// What the run under way was given.
    pub task: Option<Task>,
    /// The cursor at its start.
    pub start_cursor: i64,
    /// How often the cursor had been moved back by then.
    pub start_rewinds: i64,
    /// The newest event at its start, or how far a stalled consumer was scanned for newer ones.
    pub start_newest: i64,
    /// A run on stdin failed: events up to this id are delivered one at a time. See
    /// [`Subscription::single_upto`](crate::model::subscription::Subscription::single_upto).
    pub single_upto: i64,
    /// A dead letter was made, and nothing has succeeded since.
    pub dead_streak: bool,
    pub stop: Option<StopRequest>,
    /// How many runs have ended well, and how many have not.
    pub succeeded: u64,
    pub failed: u64,
    /// How many dead letters were made.
    pub dead_lettered: u64,
}

impl RunState {
    /// The same without a run, wait or stall; what outlasts one run stays.
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
            ..self.clone()
        }
    }

    /// What a subscription that replaces this one begins with: a pause stays, and counters only rise.
    pub fn replaced(&self) -> RunState {
        RunState {
            paused: self.paused,
            succeeded: self.succeeded,
            failed: self.failed,
            dead_lettered: self.dead_lettered,
            ..RunState::default()
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
    /// Start then, and keep the lock until then.
    WaitUntil(Time),
}

/// Decides what to do with a consumer that has something pending. `newer` says whether a matching
/// event has come since its last run began; it matters only to a stalled one.
pub fn decide(state: &RunState, options: &Options, newer: bool, now: Time) -> Action {
    // A clock that was set back must not prolong a wait.
    let at = |time: Time, longest: Duration| {
        let time = time.min(now + longest);
        if time <= now { Action::Start } else { Action::WaitUntil(time) }
    };
    if state.paused {
        return Action::None;
    }
    match state.phase {
        // A run whose supervisor is gone is settled by the process that has the lock.
        Phase::Idle | Phase::Running => Action::Start,
        Phase::Waiting => {
            let left = state.next_try.zip(state.since).and_then(|(next, since)| (next - since).to_std().ok());
            at(state.next_try.unwrap_or(now), left.unwrap_or(options.longest_wait()))
        }
        Phase::Stalled if !newer => Action::None,
        Phase::Stalled if state.reason.as_deref() == Some(STOPPED) => Action::Start,
        Phase::Stalled => {
            let wait = options.longest_wait();
            at(state.ended.map_or(now, |ended| ended + wait), wait)
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
    /// Its supervisor was killed, so nobody knows.
    Unknown,
}

impl Exit {
    /// As one number, where there is one: like a shell, a signal counts from 128; like GNU
    /// timeout, a time limit is 124.
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

/// A run that has ended, and what stood then.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    pub task: Task,
    pub exit: Exit,
    /// Somebody asked for the end.
    pub stopped: bool,
    /// Its supervisor was told to end, and ended it: it is due again.
    pub interrupted: bool,
    /// The cursor, with the acknowledgement that the exit code stands for.
    pub cursor: i64,
    /// Whether the cursor was moved back during the run.
    pub rewound: bool,
    /// Whether anything is pending past the cursor.
    pub pending: bool,
    pub now: Time,
}

impl Ended {
    /// Whether the run did what it was given.
    pub fn succeeded(&self) -> bool {
        self.exit == Exit::Code(0) && !self.stopped && !self.interrupted
    }
}

/// What to record about a run that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub state: RunState,
    /// This event becomes a dead letter, after that many attempts, and the cursor moves on to it.
    pub dead_letter: Option<(i64, u32)>,
}

impl From<RunState> for Outcome {
    fn from(state: RunState) -> Outcome {
        Outcome { state, dead_letter: None }
    }
}

/// Applies the rule to a run that has ended.
pub fn apply_outcome(before: &RunState, options: &Options, ended: &Ended) -> Outcome {
    let succeeded = ended.succeeded();
    let cut_short = ended.stopped || ended.interrupted;
    let mut state = RunState {
        began: before.since,
        ended: Some(ended.now),
        last_exit: Some(ended.exit),
        succeeded: before.succeeded + u64::from(succeeded),
        failed: before.failed + u64::from(!succeeded && !cut_short),
        ..before.idle()
    };
    if succeeded && !matches!(ended.task, Task::Wake) && !ended.rewound {
        state.dead_streak = false;
    }
    if cut_short {
        if !matches!(ended.task, Task::DeadLetter(_)) {
            state.attempts = before.attempts.saturating_sub(1);
        }
        return if ended.stopped { state.stalled(STOPPED).into() } else { state.into() };
    }
    if let (Task::Batch(last) | Task::Single(last), false) = (ended.task, succeeded) {
        // One that has failed alone goes on alone, so that its attempts are not those of a batch.
        state.single_upto = state.single_upto.max(last);
    }
    if let Task::DeadLetter(_) = ended.task {
        // Its exit code alone decides, and that is recorded with the dead letter. The attempts are
        // those of what comes next.
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
    let waiting = |state: RunState| RunState {
        phase: Phase::Waiting,
        next_try: Some(ended.now + options.wait_after(before.attempts)),
        since: Some(ended.now),
        ..state
    };
    if let Task::Batch(_) = ended.task {
        // The attempts of its events are counted from their first run alone.
        state.attempts = 0;
        return waiting(state).into();
    }
    if before.attempts < options.max_attempts {
        return waiting(state).into();
    }
    match ended.task {
        Task::Single(id) if !ended.rewound && !before.dead_streak => {
            (state.attempts, state.dead_streak) = (0, true);
            state.dead_lettered += 1;
            Outcome { state, dead_letter: Some((id, before.attempts)) }
        }
        Task::Single(_) if before.dead_streak => {
            state.stalled("out of attempts, and nothing has succeeded since the last dead letter").into()
        }
        _ => state.stalled("out of attempts").into(),
    }
}
