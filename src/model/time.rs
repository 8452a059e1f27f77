//! Points in time in the format of events: RFC 3339, UTC, milliseconds, `Z`.

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Serialize, Serializer};

/// A point in time, in UTC.
pub type Time = DateTime<Utc>;

/// Formats a time: `2026-03-18T10:30:00.123Z`.
pub fn format(time: Time) -> String {
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Parses any RFC 3339 time, such as one that [`format()`] wrote; `None` if it is not one.
pub fn parse(text: &str) -> Option<Time> {
    DateTime::parse_from_rfc3339(text).ok().map(|time| time.to_utc())
}

/// The current time in the format of events and logs.
pub fn now() -> String {
    format(Utc::now())
}

/// Serialises a time in the format of events, for serde's `serialize_with`.
pub(crate) fn serialize<S: Serializer>(time: &Option<Time>, to: S) -> Result<S::Ok, S::Error> {
    time.map(format).serialize(to)
}
