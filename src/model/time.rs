//! Points in time, written as events have them: RFC 3339, UTC, milliseconds, `Z`.

use chrono::{DateTime, SecondsFormat, Utc};

/// A point in time, in UTC.
pub type Time = DateTime<Utc>;

/// Writes a time: `2026-03-18T10:30:00.123Z`.
pub fn format(time: Time) -> String {
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Reads a time as [`format()`] writes it, or any other RFC 3339 time.
pub fn parse(text: &str) -> Option<Time> {
    DateTime::parse_from_rfc3339(text).ok().map(|time| time.to_utc())
}

/// The current time, as events and logs write it.
pub fn now() -> String {
    format(Utc::now())
}
