//! Threads and their consumers.

use serde::Serialize;
use serde_with::skip_serializing_none;
use thread::maintenance::report::ConsumerState;
use utoipa::ToSchema;

use super::{Outcome, Recent};

/// What a thread is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ThreadKind {
    /// One that `--thread` names.
    Thread,
    Session,
    SubAgent,
}

/// A page of the list of threads.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ThreadList {
    /// Whether the gateway refuses everything but looking.
    pub read_only: bool,
    /// The gateway's clock.
    pub now: String,
    /// How many threads there are.
    pub total: usize,
    /// How many of them were not read yet.
    pub unread: usize,
    // The last field: see `Listing::written`.
    /// Threads of `--thread`, then those that need attention, then the most recently active.
    pub threads: Vec<Summary>,
}

/// A thread in the list.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Summary {
    pub id: String,
    pub kind: ThreadKind,
    pub name: String,
    pub title: Option<String>,
    /// The session of a sub-agent.
    pub parent: Option<String>,
    /// As the option `--thread` of all commands takes it.
    pub path: String,
    /// It was not read yet: there are no figures.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unread: bool,
    /// It cannot be read: there are no figures.
    pub error: Option<Trouble>,
    #[serde(flatten)]
    pub figures: Option<Figures>,
}

/// Why a thread cannot be read.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Trouble {
    pub message: String,
}

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Figures {
    /// How many events are stored.
    pub events: u64,
    /// Otherwise there may be fewer: they were not counted.
    pub events_is_exact: bool,
    /// The newest id ever assigned.
    pub last_event_id: i64,
    pub newest_at: Option<String>,
    /// How many were stored in each of the last 30 minutes; the last is the one under way.
    pub rate: Vec<u64>,
    pub consumers: ConsumerCounts,
    /// How many dead letters there are.
    pub dead: u64,
    /// How many scheduled events there are.
    pub scheduled: u64,
    /// When the oldest event was stored that is pending for a consumer.
    pub oldest_pending_at: Option<String>,
    /// Why it needs attention, in one line: the first of its consumers' problems, or that its agent asks.
    pub attention: Option<String>,
    /// The conversation's agent has answered everything, and its program is kept open for a next message.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub agent_is_idle: bool,
}

/// How many consumers are in which state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct ConsumerCounts {
    pub total: u64,
    pub running: u64,
    pub waiting: u64,
    pub stalled: u64,
    pub paused: u64,
    /// How many need attention: those that have `problems`.
    pub attention: u64,
}

/// A thread and its consumers.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Thread {
    #[serde(flatten)]
    pub summary: Summary,
    /// Whether the gateway refuses everything but looking.
    pub read_only: bool,
    /// Its size on disk, logs included.
    pub size_bytes: u64,
    /// When its oldest event was stored.
    pub first_at: Option<String>,
    /// How many were stored in each of the last 24 hours; the last is the one under way.
    pub rate_by_hour: Vec<u64>,
    pub consumers_state: Vec<Consumer>,
    /// Schedules, and the scheduled events that are due first, at most 20 of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub to_come: Vec<ToCome>,
}

/// A schedule, or an event that is not due yet.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ToCome {
    /// The name of a schedule, or the number of an event: `s17`.
    pub id: String,
    /// When it comes next, unless the schedule is paused.
    pub next: Option<String>,
    /// By what rule a schedule makes events.
    pub rule: Option<String>,
    #[serde(rename = "type")]
    pub kind: String,
    /// The beginning of its content.
    pub content: String,
}

/// What a consumer does, in the words of `thread info`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Idle,
    Running,
    /// For its next attempt.
    Waiting,
    Stalled,
    Paused,
}

impl State {
    pub fn of(state: &ConsumerState) -> State {
        match state {
            ConsumerState::Idle => State::Idle,
            ConsumerState::Running { .. } => State::Running,
            ConsumerState::Waiting { .. } => State::Waiting,
            ConsumerState::Stalled { .. } => State::Stalled,
            ConsumerState::Paused => State::Paused,
        }
    }
}

/// A consumer.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Consumer {
    pub name: String,
    pub state: State,
    /// Whether it is paused, though its run may go on.
    pub paused: bool,
    /// Why it is stalled or waits.
    pub reason: Option<String>,
    /// When its run or wait began, or it gave up, or its last run ended.
    pub since: Option<String>,
    pub attempt: Option<u32>,
    pub next_try: Option<String>,
    /// It runs in another container, perhaps.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub elsewhere: bool,
    /// Its handler; none if it reads by itself.
    pub command: Option<String>,
    pub filter: Option<String>,
    /// The newest event that it has acknowledged.
    pub cursor: i64,
    pub cursor_moved_at: Option<String>,
    pub pending: u64,
    /// Otherwise there may be more.
    pub pending_is_exact: bool,
    pub oldest_pending_id: Option<i64>,
    pub oldest_pending_at: Option<String>,
    /// Since when its pending events have not been taken, if it has no handler and that is some minutes ago.
    pub untaken_since: Option<String>,
    /// The run under way.
    pub run: Option<RunUnderWay>,
    pub last_run: Option<LastRun>,
    pub dead: u64,
    /// How many dead letters will be delivered again.
    pub dead_to_retry: u64,
    /// On how many events its filter failed.
    pub filter_errors: u64,
    pub last_filter_error_id: Option<i64>,
    pub runs_succeeded: u64,
    pub runs_failed: u64,
    /// None if it has not run.
    pub recent: Option<Recent>,
    /// Of a pool: how many runs are under way, and how many events wait until they are tried again.
    pub in_hand: Option<InHand>,
    /// What to know about its last runs.
    pub notes: Vec<String>,
    /// Why it needs attention: what `thread info --check` finds without limits.
    pub problems: Vec<Problem>,
    pub settings: Settings,
}

/// A reason why a consumer needs attention, as in `thread info --check --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Problem {
    /// A word for programs, such as `stalled`.
    pub check: String,
    /// Details, for people; may be empty.
    pub problem: String,
}

/// What a pool has in hand.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct InHand {
    pub in_flight: u64,
    pub waiting: u64,
    /// What some of those are kept in order by that wait, the first ones.
    pub keys: Vec<String>,
    /// Nothing new starts, because too many wait.
    pub is_full: bool,
}

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct RunUnderWay {
    pub id: String,
    pub started_at: String,
    pub attempt: u32,
    pub pid: Option<u32>,
}

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct LastRun {
    pub id: String,
    pub started_at: String,
    pub ended_at: String,
    pub outcome: Outcome,
    pub exit: Option<i32>,
    /// The last line that it printed, if it did not succeed.
    pub said: Option<String>,
}

/// The settings of a subscription, by the names of the options of `thread subscribe`.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Settings {
    pub deliver: String,
    /// How many runs there may be at once, if it is a pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// The SQL expression by which events stay in order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    pub batch_size: u64,
    /// No limit, if it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// Never, if it is left out.
    pub stall_after: Option<u32>,
    /// Never, if it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe_ms: Option<u64>,
    /// Only with `ndjson`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_ms: Option<u64>,
    pub backoff_ms: Vec<u64>,
    pub timeout_ms: Option<u64>,
    pub cwd: Option<String>,
    /// The names of its variables.
    pub env: Vec<String>,
    pub clear_env: bool,
}
