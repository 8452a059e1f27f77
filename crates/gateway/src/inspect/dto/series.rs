//! How consumers have done.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How far back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, ToSchema)]
pub enum Span {
    #[serde(rename = "15m")]
    Quarter,
    #[default]
    #[serde(rename = "1h")]
    Hour,
    #[serde(rename = "1d")]
    Day,
    #[serde(rename = "7d")]
    Week,
    #[serde(rename = "30d")]
    Month,
}

/// The last runs of a consumer, at most 100 of a quarter of an hour.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Recent {
    pub runs: u64,
    /// How many of them have failed.
    pub failed: u64,
    /// How long half of them took at most.
    pub p50_ms: u64,
    /// How long 95 of 100 took at most.
    pub p95_ms: u64,
    /// How many events they have handled in a minute, up to the end of the last one.
    pub per_minute: f64,
}

/// How a thread and its consumers have done, in periods of equal length; the last one is under way.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Series {
    /// When the first period began.
    pub from: String,
    pub step_ms: u64,
    /// How many events were stored in each.
    pub arrived: Vec<u64>,
    pub consumers: Vec<ConsumerSeries>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ConsumerSeries {
    pub name: String,
    /// It has no filter.
    pub wants_all: bool,
    /// How many events were handled in each period.
    pub handled: Vec<u64>,
    /// How many attempts have failed.
    pub failed: Vec<u64>,
    /// How many of them have made a dead letter, or left it one.
    pub dead: Vec<u64>,
    /// About how long half of the attempts took at most that ended in each; null if there was none.
    pub p50_ms: Vec<Option<u64>>,
    /// The same of 95 of 100.
    pub p95_ms: Vec<Option<u64>>,
}
