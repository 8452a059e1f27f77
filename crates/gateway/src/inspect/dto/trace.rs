//! What became of an event.

use serde::Serialize;
use serde_with::skip_serializing_none;
use thread::model::run::RunResult;
use utoipa::ToSchema;

use super::Event;

/// What became of an event, from when it was stored to when nothing more is done about it.
#[skip_serializing_none]
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Trace {
    /// The event, with the beginning of its content.
    pub event: Event,
    /// The gateway's clock, as milliseconds since the event was stored.
    pub now_ms: i64,
    /// A tree: each bar is followed by those inside of it, which are deeper, in the order in which they began.
    pub bars: Vec<Bar>,
    /// There is more than what was read.
    pub is_truncated: bool,
}

/// Something that was done about an event, or a wait.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Bar {
    pub kind: BarKind,
    /// How many bars it is inside of.
    pub depth: u32,
    /// When it began, in milliseconds since the event was stored.
    pub at_ms: i64,
    /// How long it lasted; none if it took no time, or has not ended.
    pub duration_ms: Option<u64>,
    /// It has not ended.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_open: bool,
    /// What it is called, or the beginning of what was said.
    pub label: String,
    /// What a tool was given, what a run printed last, or how many tokens a model took, in short.
    pub given: Option<String>,
    /// How it ended, if not well.
    pub ended: Option<BarEnd>,
    /// The event that it began with, in the same thread.
    pub event: Option<i64>,
    /// The event that ended it.
    pub end_event: Option<i64>,
    /// Of a request for permission: the event of the call that waits for it.
    pub call: Option<i64>,
    /// Of a consumer, and of its runs and steps.
    pub consumer: Option<String>,
    /// The consumer's run in which it was done.
    pub run: Option<String>,
    /// Of a sub-agent: its own thread.
    pub thread: Option<String>,
}

/// What a bar is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BarKind {
    /// All that a consumer has done.
    Consumer,
    /// Nobody works on it.
    Waiting,
    /// A run of a handler.
    Run,
    /// A step of a handler, by `thread step`.
    Step,
    /// The same by `thread sleep`.
    Sleep,
    /// The same by `thread await`.
    Await,
    /// An attempt of an agent.
    Attempt,
    /// A turn of a model, from its request to its answer.
    Model,
    Thinking,
    Text,
    Tool,
    Permission,
    SubAgent,
    Plan,
    /// An output of the agent besides the answer, or an event of its own.
    Event,
    /// How it ended.
    Done,
    Answer,
    Error,
    Cancelled,
    Dead,
}

/// How something ended that did not end well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BarEnd {
    Failed,
    /// Permission was refused.
    Rejected,
    /// A call that was never answered.
    NoResult,
    /// Somebody has ended it, or what it was a part of.
    Cancelled,
    /// Another attempt began before it had ended.
    Cut,
    Dead,
    TimedOut,
    Stopped,
    Deferred,
    Interrupted,
    Unknown,
}

impl BarEnd {
    pub fn of(result: RunResult) -> Option<BarEnd> {
        Some(match result {
            RunResult::Succeeded => return None,
            RunResult::Failed => BarEnd::Failed,
            RunResult::Dead => BarEnd::Dead,
            RunResult::TimedOut => BarEnd::TimedOut,
            RunResult::Stopped => BarEnd::Stopped,
            RunResult::Deferred => BarEnd::Deferred,
            RunResult::Interrupted => BarEnd::Interrupted,
            RunResult::Unknown => BarEnd::Unknown,
        })
    }
}
