//! Events.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::DeadLetter;

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

/// An event, and what consumers did with it.
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

/// An event that was stored.
#[derive(Debug, Serialize, ToSchema)]
pub struct Pushed {
    pub id: i64,
    pub created_at: String,
    /// It was stored before, under the same key.
    pub deduplicated: bool,
}
