//! What requests are answered with, as JSON. What is not known or does not apply is left out.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

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
    /// Those of `--thread`, then what needs attention, then the most recently active.
    pub threads: Vec<Summary>,
}

/// A thread in the list.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Summary {
    pub id: String,
    pub kind: ThreadKind,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The session of a sub-agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// As the option `--thread` of all commands takes it.
    pub path: String,
    /// It was not read yet: there are no figures.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unread: bool,
    /// It cannot be read: there are no figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Trouble>,
    #[serde(flatten)]
    pub figures: Option<Figures>,
}

/// Why a thread cannot be read.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Trouble {
    pub message: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Figures {
    /// How many events are stored.
    pub events: u64,
    /// Otherwise there may be fewer: they were not counted.
    pub events_is_exact: bool,
    /// The newest id ever assigned.
    pub last_event_id: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub newest_at: Option<String>,
    /// How many were stored in each of the last 30 minutes; the last is the one under way.
    pub rate: Vec<u64>,
    pub consumers: ConsumerCounts,
    /// How many dead letters there are.
    pub dead: u64,
    /// When the oldest event was stored that is pending for a consumer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_pending_at: Option<String>,
    /// Why somebody should look, in one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention: Option<String>,
}

/// How many consumers are in which state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct ConsumerCounts {
    pub total: u64,
    pub running: u64,
    pub waiting: u64,
    pub stalled: u64,
    pub paused: u64,
}

/// A thread and its consumers.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Thread {
    #[serde(flatten)]
    pub summary: Summary,
    /// What it takes on the disk, logs included.
    pub size_bytes: u64,
    /// When its oldest event was stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_at: Option<String>,
    /// How many were stored in each of the last 24 hours; the last is the one under way.
    pub rate_by_hour: Vec<u64>,
    pub consumers_state: Vec<Consumer>,
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

/// A consumer.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Consumer {
    pub name: String,
    pub state: State,
    /// Whether it is paused, though its run may go on.
    pub paused: bool,
    /// Why it is stalled or waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When its run or wait began, or its last run ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_try: Option<String>,
    /// It runs in another container, perhaps.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub elsewhere: bool,
    /// Its handler; none if it reads by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// The newest event that it has acknowledged.
    pub cursor: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor_moved_at: Option<String>,
    pub pending: u64,
    /// Otherwise there may be more.
    pub pending_is_exact: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_pending_id: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_pending_at: Option<String>,
    /// The run under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<RunUnderWay>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_run: Option<LastRun>,
    pub dead: u64,
    /// How many dead letters will be delivered again.
    pub dead_to_retry: u64,
    /// On how many events its filter failed.
    pub filter_errors: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_filter_error_id: Option<i64>,
    pub runs_succeeded: u64,
    pub runs_failed: u64,
    /// What to know about its last runs.
    pub notes: Vec<String>,
    pub settings: Settings,
}

#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct RunUnderWay {
    pub id: String,
    pub started_at: String,
    pub attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct LastRun {
    pub id: String,
    pub started_at: String,
    pub ended_at: String,
    pub outcome: Outcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit: Option<i32>,
    /// The last line that it printed, if it did not succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub said: Option<String>,
}

/// The settings of a subscription, by the names of the options of `thread subscribe`.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Settings {
    pub deliver: String,
    pub batch_size: u64,
    pub max_attempts: u32,
    /// Never, if it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall_after: Option<u32>,
    pub backoff_ms: Vec<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The names of its variables.
    pub env: Vec<String>,
    pub clear_env: bool,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Event {
    pub id: i64,
    pub created_at: String,
    pub source: String,
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subtype: Option<String>,
    /// Its beginning, if it is long.
    pub content: String,
    /// The length of the whole content.
    pub content_bytes: u64,
    /// Any JSON; as a rule an object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
    /// The length of metadata that are too long to be shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata_bytes: Option<u64>,
}

/// Events, newest first.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct EventPage {
    pub events: Vec<Event>,
    /// `before` for the next page; none if this is the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_before: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<Incomplete>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter_failures: Option<FilterFailures>,
}

/// Time ran out while the filter was evaluated.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Incomplete {
    pub reason: String,
    /// It was evaluated on all events from this one on.
    pub searched_to: i64,
}

/// The filter itself failed on some events, which do not match.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct FilterFailures {
    pub events: u64,
    pub message: String,
}

/// An event, and what became of it.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct EventDetail {
    /// Its content up to 1 MiB.
    pub event: Event,
    /// Where the whole content is, on this gateway.
    pub content_url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<i64>,
    /// The consumers whose filter it matches.
    pub handled: Vec<Handled>,
    pub dead: Vec<DeadLetter>,
}

/// What a consumer has done with an event.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Handled {
    pub consumer: String,
    pub outcome: Handling,
    /// The run that did it, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Handling {
    Acknowledged,
    Pending,
    Dead,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Running,
    Succeeded,
    Failed,
    /// It failed, and its event is a dead letter.
    Dead,
    TimedOut,
    Stopped,
    /// By a shutdown; it is due again.
    Interrupted,
    Unknown,
}

/// A run of a handler.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Run {
    /// Stays the same when the run ends.
    pub id: String,
    pub started_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// So far, of a run under way.
    pub duration_ms: u64,
    pub attempt: u32,
    /// How many events it was given on stdin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_event: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_event: Option<i64>,
    pub outcome: Outcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Whether its output is still in the log.
    pub has_output: bool,
}

/// Runs, newest first.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct RunPage {
    pub runs: Vec<Run>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_before: Option<String>,
}

/// A run with its output and its events.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct RunDetail {
    #[serde(flatten)]
    pub run: Run,
    /// The end of what it printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
    pub output_truncated: bool,
    pub timeline: Vec<Span>,
    pub timeline_truncated: bool,
    /// The events that it has handled, as far as that is known; newest first.
    pub handled: Vec<Event>,
    /// What was stored in the thread while it ran.
    pub meanwhile: Vec<Event>,
}

/// A part of a run's time.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Span {
    pub kind: SpanKind,
    /// Since the start of the run; negative for what was before.
    pub at_ms: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    pub label: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SpanKind {
    /// From when its oldest event was stored to its start.
    Waiting,
    Message,
    Thinking,
    Text,
    Tool,
    Permission,
    Status,
    Answer,
    Error,
    Cancelled,
    SubAgent,
    Event,
}

/// A dead letter.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct DeadLetter {
    /// Of the event.
    pub id: i64,
    pub consumer: String,
    /// The exit code, and the last line that the handler printed.
    pub reason: String,
    /// The end of what it printed.
    pub error: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit: Option<i64>,
    pub attempts: i64,
    pub at: String,
    /// It will be delivered again.
    pub retrying: bool,
    /// None if it was pruned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<Event>,
}

/// Dead letters, the newest events first.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct DeadPage {
    pub dead: Vec<DeadLetter>,
    /// How many there are.
    pub total: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_before: Option<String>,
    /// The most frequent reasons.
    pub reasons: Vec<ReasonCount>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ReasonCount {
    pub consumer: String,
    pub reason: String,
    pub count: u64,
}

/// How many dead letters will be delivered again.
#[derive(Debug, Serialize, ToSchema)]
pub struct Retried {
    pub consumer: String,
    pub retried: usize,
}

/// How many dead letters are forgotten.
#[derive(Debug, Serialize, ToSchema)]
pub struct Discarded {
    pub consumer: String,
    pub discarded: usize,
}

/// An event that was stored.
#[derive(Debug, Serialize, ToSchema)]
pub struct Pushed {
    pub id: i64,
    pub created_at: String,
    /// It was stored before, under the same key.
    pub deduplicated: bool,
}
