//! Runs of handlers.

use serde::Serialize;
use thread::model::run::RunResult;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{Object, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use super::Event;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Running,
    #[serde(untagged)]
    Ended(RunResult),
}

impl PartialSchema for Outcome {
    fn schema() -> RefOr<Schema> {
        let words =
            ["running", "succeeded", "failed", "dead", "timed_out", "stopped", "interrupted", "unknown"];
        let text = Object::builder().schema_type(Type::String).enum_values(Some(words));
        text.description(Some("How a run ended.")).into()
    }
}

impl ToSchema for Outcome {}

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
    /// The last part of its output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
    pub output_truncated: bool,
    pub timeline: Vec<Span>,
    pub timeline_truncated: bool,
    /// The events that it was given, as far as known; newest first.
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
    /// A summary of a tool's arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub given: Option<String>,
    /// How a tool ended, if not with a result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<ToolEnd>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<i64>,
    /// Of a request for permission: the event of the call that waits for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<i64>,
}

/// How a tool ended that has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolEnd {
    Failed,
    /// Permission was refused.
    Rejected,
    /// The run continued or ended without one.
    NoResult,
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
