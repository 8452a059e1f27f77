//! Runs of handlers.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use thread::model::run::RunResult;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{Object, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use super::Event;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Running,
    #[serde(untagged)]
    Ended(RunResult),
}

impl PartialSchema for Outcome {
    fn schema() -> RefOr<Schema> {
        let words = [
            "running",
            "succeeded",
            "failed",
            "dead",
            "timed_out",
            "stopped",
            "deferred",
            "interrupted",
            "unknown",
        ];
        let text = Object::builder().schema_type(Type::String).enum_values(Some(words));
        text.description(Some("How a run ended.")).into()
    }
}

impl ToSchema for Outcome {}

/// A run of a handler.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Run {
    /// Stays the same when the run ends.
    pub id: String,
    pub started_at: String,
    pub ended_at: Option<String>,
    /// So far, of a run under way.
    pub duration_ms: u64,
    pub attempt: u32,
    /// How many events it was given on stdin.
    pub events: Option<u64>,
    pub first_event: Option<i64>,
    pub last_event: Option<i64>,
    pub outcome: Outcome,
    pub exit: Option<i32>,
    pub pid: Option<u32>,
    /// Whether its output is still in the log.
    pub has_output: bool,
}

/// Runs, newest first.
#[skip_serializing_none]
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct RunPage {
    pub runs: Vec<Run>,
    pub next_before: Option<String>,
}

/// A run with its output and its events.
#[skip_serializing_none]
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct RunDetail {
    #[serde(flatten)]
    pub run: Run,
    /// The last part of its output.
    pub output: Option<String>,
    pub output_bytes: Option<u64>,
    pub output_truncated: bool,
    /// The events that it was given, as far as known; newest first.
    pub handled: Vec<Event>,
    /// What was stored in the thread while it ran, by it and by others; the beginning, if it was much.
    pub stored: Vec<Event>,
}
