//! Dead letters.

use serde::Serialize;
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use super::Event;

/// A dead letter.
#[skip_serializing_none]
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct DeadLetter {
    /// Of the event.
    pub id: i64,
    pub consumer: String,
    /// The exit code, and the last line that the handler printed.
    pub reason: String,
    /// The last part of its output.
    pub error: String,
    pub exit: Option<i64>,
    pub attempts: i64,
    pub at: String,
    /// It will be delivered again.
    pub retrying: bool,
    /// None if it was pruned.
    pub event: Option<Event>,
}

/// Dead letters, the newest events first.
#[skip_serializing_none]
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct DeadPage {
    pub dead: Vec<DeadLetter>,
    /// How many there are.
    pub total: u64,
    pub next_before: Option<String>,
    /// The most frequent reasons.
    pub reasons: Vec<ReasonCount>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ReasonCount {
    pub consumer: String,
    /// With `…` in place of numbers and ids in which they differ.
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
