//! Points in time in the format of events: RFC 3339, UTC, milliseconds, `Z`.

use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Serialize, Serializer};

/// A point in time, in UTC.
pub type Time = DateTime<Utc>;

/// A point in time on a clock of a store that nobody sets: see [`Store::clock`](crate::store::Store::clock).
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Moment {
    /// Which clock: after a reboot it is another one. Everything on a former clock is past.
    pub clock: String,
    /// Milliseconds.
    pub at: i64,
}

impl Moment {
    /// This moment so much later.
    pub fn after(&self, time: Duration) -> Moment {
        let time = i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        Moment { at: self.at.saturating_add(time), ..self.clone() }
    }

    /// How long it takes from `now` on until this moment.
    pub fn left(&self, now: &Moment) -> Duration {
        let is_past = self.clock != now.clock || self.at <= now.at;
        Duration::from_millis(if is_past { 0 } else { self.at.abs_diff(now.at) })
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_of_another_clock_is_past() {
        let moment = |clock: &str, at| Moment { clock: clock.to_owned(), at };
        let second = Duration::from_secs(1);
        assert_eq!(moment("a", 500).after(second), moment("a", 1500));
        assert_eq!(moment("a", 1500).left(&moment("a", 500)), second);
        assert_eq!(moment("a", 500).left(&moment("a", 500)), Duration::ZERO);
        assert_eq!(moment("a", 500).left(&moment("a", 1500)), Duration::ZERO);
        assert_eq!(moment("a", 1500).left(&moment("b", 500)), Duration::ZERO);
        assert_eq!(moment("a", 1).after(Duration::MAX).at, i64::MAX);
    }
}
