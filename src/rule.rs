//! The one rule for runs: what happens before and after a handler ran, as pure functions.
//!
//! A run made *progress* if the consumer's cursor at its end is past the cursor at its start. With
//! nothing pending the consumer rests. Pending after progress: run again at once, attempts
//! forgotten. Pending without progress: one more failed attempt, and a wait; out of attempts, the
//! consumer stalls, or, when events are handed over on stdin, the one event at fault is parked as a
//! dead letter. `supervisor` and `dispatch` carry out what is decided here; `store` remembers it.

use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};

use crate::process::Identity;

pub type Time = DateTime<Utc>;

/// How events reach a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deliver {
    /// It is only started, and pops for itself.
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

    pub fn parse(text: &str) -> Option<Deliver> {
        match text {
            "wake" => Some(Deliver::Wake),
            "stdin" => Some(Deliver::Stdin),
            _ => None,
        }
    }
}

/// What a subscription asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    pub deliver: Deliver,
    /// Most events per run on stdin.
    pub batch_size: u64,
    /// Runs without progress before giving up, at least 1.
    pub max_attempts: u32,
    /// Waits between attempts; the last repeats. Never empty.
    pub backoff: Vec<Duration>,
    /// How long a run may take.
    pub timeout: Option<Duration>,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            deliver: Deliver::Wake,
            batch_size: 100,
            max_attempts: 5,
            backoff: [1, 5, 30, 120, 600].map(Duration::from_secs).to_vec(),
            timeout: None,
        }
    }
}

impl Policy {
    /// The wait after that many failed attempts.
    pub fn wait_after(&self, attempts: u32) -> Duration {
        let step = (attempts.max(1) - 1) as usize;
        self.backoff.get(step).or(self.backoff.last()).copied().unwrap_or_default()
    }

    pub fn longest_wait(&self) -> Duration {
        self.backoff.iter().max().copied().unwrap_or_default()
    }
}

/// Where a consumer stands, as recorded. Pausing is apart: a paused consumer may still be running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    #[default]
    Idle,
    /// A run began and its end was not recorded yet; its supervisor may be dead.
    Running,
    /// The next attempt is due at `next_try`.
    Waiting,
    /// Given up until something new comes or somebody asks.
    Stalled,
}

impl Phase {
    /// As the table has it; idle is NULL there.
    pub fn as_str(self) -> Option<&'static str> {
        match self {
            Phase::Idle => None,
            Phase::Running => Some("running"),
            Phase::Waiting => Some("waiting"),
            Phase::Stalled => Some("stalled"),
        }
    }

    pub fn parse(text: Option<&str>) -> Phase {
        match text {
            Some("running") => Phase::Running,
            Some("waiting") => Phase::Waiting,
            Some("stalled") => Phase::Stalled,
            _ => Phase::Idle,
        }
    }
}

/// What a run is given to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// It pops for itself.
    Wake,
    /// Several events on stdin; the last one's id.
    Batch(i64),
    /// One event alone on stdin.
    Single(i64),
    /// A dead letter, delivered again.
    Letter(i64),
}

impl Task {
    /// The two columns a task is recorded in.
    pub fn to_columns(self) -> (&'static str, i64) {
        match self {
            Task::Wake => ("wake", 0),
            Task::Batch(last) => ("batch", last),
            Task::Single(id) => ("single", id),
            Task::Letter(id) => ("letter", id),
        }
    }

    pub fn from_columns(kind: &str, last: i64) -> Task {
        match kind {
            "batch" => Task::Batch(last),
            "single" => Task::Single(last),
            "letter" => Task::Letter(last),
            _ => Task::Wake,
        }
    }
}

/// A request to end a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopRequest {
    /// The signal its processes get first.
    pub signal: i32,
    /// How long they have before they are killed.
    pub kill_after: Duration,
}

/// Why a consumer stalled because somebody stopped it.
pub const STOPPED: &str = "stopped";

/// All that is recorded about a subscription's runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct State {
    pub phase: Phase,
    pub paused: bool,
    /// Why it stalled.
    pub reason: Option<String>,
    /// The number of the attempt under way, or of the last failed one; 0 when the last run was fine.
    pub attempts: u32,
    pub next_try: Option<Time>,
    /// Who supervises the run or the wait. May be dead.
    pub supervisor: Option<Identity>,
    /// The handler's first process, which leads its process group.
    pub handler: Option<Identity>,
    /// When the run or the wait began.
    pub since: Option<Time>,
    /// When the last run that is over began, when it ended, and how.
    pub began: Option<Time>,
    pub ended: Option<Time>,
    pub last_exit: Option<String>,
    /// What the run under way was given.
    pub task: Option<Task>,
    /// The cursor at its start.
    pub run_cursor: i64,
    /// The newest event at its start, or as far as a stalled consumer has looked for newer ones.
    pub run_newest: i64,
    /// A batch failed: events up to this id are delivered one at a time.
    pub narrow_upto: i64,
    /// A dead letter was made, and nothing has succeeded since.
    pub dead_streak: bool,
    pub stop: Option<StopRequest>,
}

impl State {
    /// The same with no run, wait or stall; what is remembered beyond one run stays.
    pub fn at_rest(&self) -> State {
        State {
            phase: Phase::Idle,
            reason: None,
            next_try: None,
            supervisor: None,
            handler: None,
            since: None,
            task: None,
            stop: None,
            ..self.clone()
        }
    }
}

/// Why somebody looks at a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Something was stored, or a run ended.
    News,
    /// Somebody said `dispatch`.
    Asked,
}

/// What is to be done with a consumer now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Rest,
    Start,
    /// Start then, and keep the lock until then.
    WaitUntil(Time),
}

/// Decides what to do with a consumer that has something pending. `newer` tells whether a matching
/// event has come since its last run began; it matters only to a stalled one.
pub fn decide(state: &State, policy: &Policy, newer: bool, cause: Cause, now: Time) -> Action {
    // A clock that was set back must not prolong a wait.
    let at = |time: Time| {
        let time = time.min(now + policy.longest_wait());
        if time <= now { Action::Start } else { Action::WaitUntil(time) }
    };
    if state.paused {
        return Action::Rest;
    }
    match state.phase {
        // A run whose supervisor is gone is settled by whoever has the lock.
        Phase::Idle | Phase::Running => Action::Start,
        Phase::Waiting => at(state.next_try.unwrap_or(now)),
        Phase::Stalled if !newer && cause == Cause::News => Action::Rest,
        Phase::Stalled if state.reason.as_deref() == Some(STOPPED) => Action::Start,
        Phase::Stalled => at(state.ended.map_or(now, |ended| ended + policy.longest_wait())),
    }
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
    TimedOut,
    /// Its supervisor was killed, so nobody knows.
    Unknown,
}

impl Exit {
    /// As one number, where there is one: like a shell, a signal counts from 128; like GNU
    /// timeout, running out of time is 124.
    pub fn code(self) -> Option<i32> {
        match self {
            Exit::Code(code) => Some(code),
            Exit::Signal(signal) => Some(128 + signal),
            Exit::TimedOut => Some(124),
            Exit::Unknown => None,
        }
    }

    /// Reads what its `Display` wrote.
    pub fn parse(text: &str) -> Option<Exit> {
        if text == "timed out" {
            return Some(Exit::TimedOut);
        }
        let code = text.strip_prefix("exit=")?;
        match code.split_once(" signal=") {
            Some((_, signal)) => signal.parse().ok().map(Exit::Signal),
            None if code == "unknown" => Some(Exit::Unknown),
            None => code.parse().ok().map(Exit::Code),
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

/// What became of a run, once its acknowledgement is recorded.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    pub task: Task,
    pub exit: Exit,
    /// Somebody asked for the end.
    pub stopped: bool,
    /// The cursor now.
    pub cursor: i64,
    /// Whether anything is pending past it.
    pub pending: bool,
    pub now: Time,
}

/// What is to be recorded about a run that ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    pub state: State,
    /// This event becomes a dead letter, after that many attempts, and the cursor moves on to it.
    pub bury: Option<(i64, u32)>,
}

/// The rule, after a run.
pub fn settle(before: &State, policy: &Policy, ended: &Ended) -> Settled {
    let mut state = State {
        began: before.since,
        ended: Some(ended.now),
        last_exit: Some(ended.exit.to_string()),
        ..before.at_rest()
    };
    let progress = ended.cursor > before.run_cursor;
    let rewound = ended.cursor < before.run_cursor;
    let fine = ended.exit == Exit::Code(0) && !ended.stopped;
    if fine && matches!(ended.task, Task::Batch(_) | Task::Single(_) | Task::Letter(_)) && !rewound {
        state.dead_streak = false;
    }
    if ended.stopped {
        if !matches!(ended.task, Task::Letter(_)) {
            state.attempts = before.attempts.saturating_sub(1);
        }
        return Settled { state: stall(state, STOPPED), bury: None };
    }
    if let (Task::Batch(last), false) = (ended.task, fine) {
        state.narrow_upto = last;
    }
    if matches!(ended.task, Task::Letter(_)) {
        // Its exit code alone decides, and that is recorded with the letter. The attempts are those
        // of what comes next.
        return Settled { state, bury: None };
    }
    if !ended.pending || progress {
        state.attempts = 0;
        return Settled { state, bury: None };
    }
    if let Exit::Code(code @ (126 | 127)) = ended.exit {
        return Settled {
            state: stall(state, &format!("the handler cannot be run (exit {code})")),
            bury: None,
        };
    }
    let next_try = Some(ended.now + policy.wait_after(before.attempts));
    if let Task::Batch(_) = ended.task {
        // The attempts of its events are counted from their first run alone.
        state.attempts = 0;
        return Settled { state: State { phase: Phase::Waiting, next_try, ..state }, bury: None };
    }
    if before.attempts < policy.max_attempts {
        return Settled { state: State { phase: Phase::Waiting, next_try, ..state }, bury: None };
    }
    match ended.task {
        Task::Single(id) if !rewound && !before.dead_streak => {
            let attempts = before.attempts;
            (state.attempts, state.dead_streak) = (0, true);
            Settled { state, bury: Some((id, attempts)) }
        }
        Task::Single(_) if before.dead_streak => {
            let reason = "out of attempts, and nothing has succeeded since the last dead letter";
            Settled { state: stall(state, reason), bury: None }
        }
        _ => Settled { state: stall(state, "out of attempts"), bury: None },
    }
}

fn stall(state: State, reason: &str) -> State {
    State { phase: Phase::Stalled, reason: Some(reason.to_owned()), ..state }
}

/// Writes a time as events do.
pub fn format_time(time: Time) -> String {
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Reads a time that [`format_time`] wrote.
pub fn parse_time(text: &str) -> Option<Time> {
    DateTime::parse_from_rfc3339(text).ok().map(|time| time.to_utc())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Time {
        parse_time("2026-03-18T10:30:00.000Z").unwrap()
    }

    fn running(attempts: u32) -> State {
        State { phase: Phase::Running, attempts, run_cursor: 10, run_newest: 20, ..State::default() }
    }

    fn ended(task: Task, exit: Exit, cursor: i64, pending: bool) -> Ended {
        Ended { task, exit, stopped: false, cursor, pending, now: now() }
    }

    fn stdin() -> Policy {
        Policy { deliver: Deliver::Stdin, ..Policy::default() }
    }

    #[test]
    fn nothing_pending_or_progress_forgets_the_attempts() {
        for (cursor, pending) in [(10, false), (11, true), (11, false), (5, false)] {
            let settled =
                settle(&running(3), &Policy::default(), &ended(Task::Wake, Exit::Code(1), cursor, pending));
            assert_eq!((settled.state.phase, settled.state.attempts), (Phase::Idle, 0));
        }
    }

    #[test]
    fn each_failed_attempt_waits_longer_and_the_last_stalls() {
        let policy = Policy::default();
        for (attempt, wait) in [(1, 1), (2, 5), (3, 30), (4, 120)] {
            let settled = settle(&running(attempt), &policy, &ended(Task::Wake, Exit::Code(0), 10, true));
            assert_eq!(settled.state.phase, Phase::Waiting);
            assert_eq!(settled.state.next_try, Some(now() + Duration::from_secs(wait)));
            assert_eq!(settled.state.attempts, attempt);
        }
        let settled = settle(&running(5), &policy, &ended(Task::Wake, Exit::Code(0), 10, true));
        assert_eq!(
            (settled.state.phase, settled.state.reason.as_deref()),
            (Phase::Stalled, Some("out of attempts"))
        );
    }

    #[test]
    fn what_is_written_of_an_end_is_read_back() {
        for exit in [Exit::Code(0), Exit::Code(137), Exit::Signal(9), Exit::TimedOut, Exit::Unknown] {
            assert_eq!(Exit::parse(&exit.to_string()), Some(exit));
        }
        for other in ["", "exit=", "exit=x", "exit=1 signal=", "ended"] {
            assert_eq!(Exit::parse(other), None, "{other}");
        }
    }

    #[test]
    fn no_such_program_stalls_at_once() {
        for code in [126, 127] {
            let settled = settle(&running(1), &stdin(), &ended(Task::Single(11), Exit::Code(code), 10, true));
            assert_eq!((settled.state.phase, settled.bury), (Phase::Stalled, None));
        }
    }

    #[test]
    fn a_stopped_run_costs_no_attempt() {
        let stopped = Ended { stopped: true, ..ended(Task::Wake, Exit::Signal(15), 10, true) };
        let settled = settle(&running(2), &Policy::default(), &stopped);
        assert_eq!((settled.state.phase, settled.state.attempts), (Phase::Stalled, 1));
        assert_eq!(settled.state.reason.as_deref(), Some(STOPPED));
        assert_eq!(decide(&settled.state, &Policy::default(), false, Cause::News, now()), Action::Rest);
        assert_eq!(decide(&settled.state, &Policy::default(), true, Cause::News, now()), Action::Start);
        assert_eq!(decide(&settled.state, &Policy::default(), false, Cause::Asked, now()), Action::Start);
    }

    #[test]
    fn a_failed_batch_is_narrowed_and_its_attempts_are_counted_from_the_first_single_run() {
        let settled = settle(&running(1), &stdin(), &ended(Task::Batch(20), Exit::Code(1), 10, true));
        assert_eq!(
            (settled.state.phase, settled.state.attempts, settled.state.narrow_upto),
            (Phase::Waiting, 0, 20)
        );
        let settled = settle(&running(1), &stdin(), &ended(Task::Batch(20), Exit::Code(1), 12, true));
        assert_eq!((settled.state.phase, settled.state.narrow_upto), (Phase::Idle, 20));
    }

    #[test]
    fn one_dead_letter_is_made_and_the_second_only_after_a_success() {
        let single = |exit, cursor| ended(Task::Single(11), exit, cursor, true);
        let settled = settle(&running(5), &stdin(), &single(Exit::Code(1), 10));
        assert_eq!((settled.bury, settled.state.phase), (Some((11, 5)), Phase::Idle));
        assert!(settled.state.dead_streak);
        let streak = State { dead_streak: true, ..running(5) };
        let settled = settle(&streak, &stdin(), &single(Exit::Code(1), 10));
        assert_eq!((settled.bury, settled.state.phase), (None, Phase::Stalled));
        let settled = settle(&streak, &stdin(), &single(Exit::Code(0), 11));
        assert!(!settled.state.dead_streak);
    }

    #[test]
    fn a_stalled_consumer_gets_one_more_run_after_the_longest_wait() {
        let stalled = State { phase: Phase::Stalled, attempts: 5, ended: Some(now()), ..State::default() };
        let due = now() + Duration::from_secs(600);
        assert_eq!(decide(&stalled, &Policy::default(), true, Cause::News, now()), Action::WaitUntil(due));
        assert_eq!(decide(&stalled, &Policy::default(), false, Cause::News, now()), Action::Rest);
        assert_eq!(decide(&stalled, &Policy::default(), false, Cause::Asked, due), Action::Start);
        let again = State { attempts: 6, ..running(6) };
        let settled = settle(&again, &Policy::default(), &ended(Task::Wake, Exit::Code(1), 10, true));
        assert_eq!(settled.state.phase, Phase::Stalled);
    }

    #[test]
    fn a_retried_dead_letter_is_no_attempt_at_what_comes_next() {
        let single = ended(Task::Letter(3), Exit::Code(1), 10, true);
        let settled = settle(&running(4), &stdin(), &single);
        assert_eq!((settled.state.phase, settled.state.attempts), (Phase::Idle, 4));
        let settled = settle(&running(4), &stdin(), &Ended { stopped: true, ..single });
        assert_eq!((settled.state.phase, settled.state.attempts), (Phase::Stalled, 4));
    }

    #[test]
    fn a_clock_that_was_set_back_prolongs_no_wait() {
        let next_try = Some(now() + Duration::from_secs(86_400));
        let waiting = State { phase: Phase::Waiting, next_try, ..State::default() };
        let due = now() + Duration::from_secs(600);
        assert_eq!(decide(&waiting, &Policy::default(), false, Cause::News, now()), Action::WaitUntil(due));
        let paused = State { paused: true, ..waiting };
        assert_eq!(decide(&paused, &Policy::default(), true, Cause::Asked, now()), Action::Rest);
    }
}
