//! Events.

use serde::Serialize;
use serde_json::Value;
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use super::DeadLetter;

/// An event.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Event {
    pub id: i64,
    pub created_at: String,
    pub source: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub subtype: Option<String>,
    /// Its beginning, if it is long.
    pub content: String,
    /// The length of the whole content.
    pub content_bytes: u64,
    /// Any JSON; as a rule an object.
    pub metadata: Option<Value>,
    /// The length of metadata that are too long to be shown.
    pub metadata_bytes: Option<u64>,
}

/// Events, newest first.
#[skip_serializing_none]
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct EventPage {
    pub events: Vec<Event>,
    /// `before` for the next page; none if this is the last.
    pub next_before: Option<i64>,
    pub incomplete: Option<Incomplete>,
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
#[skip_serializing_none]
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct EventDetail {
    /// Its content up to 1 MiB.
    pub event: Event,
    /// Where the whole content is, on this gateway.
    pub content_url: String,
    pub previous: Option<i64>,
    pub next: Option<i64>,
    /// The consumers whose filter it matches.
    pub handled: Vec<Handled>,
    pub dead: Vec<DeadLetter>,
    /// What handlers have done for it by `thread step`, `sleep` and `await`, in the order in which they began.
    pub steps: Vec<EventStep>,
}

/// What a consumer has done with an event.
#[skip_serializing_none]
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Handled {
    pub consumer: String,
    pub outcome: Handling,
    /// The run that did it, if that is known.
    pub run: Option<String>,
    /// While the event waits by itself: events of pools and kept handlers do.
    pub wait: Option<HandlingWait>,
}

/// That an event waits before its handler gets it again.
#[skip_serializing_none]
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct HandlingWait {
    /// How many attempts at it have failed.
    pub attempts: u32,
    /// Until when; none if it waits for another event without a limit.
    pub until: Option<String>,
    /// Its handler said so, by `thread sleep` or `thread await`.
    pub is_asleep: bool,
}

/// A step of a handler.
#[skip_serializing_none]
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct EventStep {
    pub consumer: String,
    pub name: String,
    /// `step`, `sleep` or `await`.
    pub kind: String,
    /// `begun`, `waiting`, `due`, `done` or `timed_out`.
    pub state: String,
    /// The command, the time or the filter, abridged.
    pub words: String,
    pub began: String,
    pub ended: Option<String>,
    /// How long it waits.
    pub until: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Handling {
    Acknowledged,
    Pending,
    Dead,
}

/// A scheduled event that was forgotten.
#[derive(Debug, Serialize, ToSchema)]
pub struct Cancelled {
    /// Its number.
    #[schema(pattern = "^s[0-9]+$")]
    pub scheduled: String,
}

/// An event that was stored.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct Pushed {
    /// 0 if it is scheduled.
    pub id: i64,
    /// When it was stored or scheduled.
    pub created_at: String,
    /// It was stored before, under the same key.
    pub deduplicated: bool,
    /// Its number, such as `s17`, if it is scheduled.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^s[0-9]+$")]
    pub scheduled: Option<String>,
    /// When it becomes an event, if it is scheduled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduled_at: Option<String>,
}
