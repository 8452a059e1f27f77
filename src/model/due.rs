//! When something is due, as users say it, and the numbers of what is.

use std::fmt;
use std::time::Duration;

use jiff::civil;
use jiff::tz::{AmbiguousOffset, TimeZone};

use super::time::{self, Time};

/// When a scheduled event is to become an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// So long after it was stored.
    After(Duration),
    At(Time),
}

/// The number of a scheduled event: `s17`. Never given twice in a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScheduledId(pub i64);

impl ScheduledId {
    /// Parses `s17`.
    ///
    /// # Errors
    ///
    /// It has another form; says which it must have.
    pub fn parse(text: &str) -> Result<ScheduledId, String> {
        let number = text.strip_prefix('s').filter(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()));
        let id = number.and_then(|number| number.parse().ok());
        id.map(ScheduledId).ok_or_else(|| "a scheduled event is named as in s17".to_owned())
    }
}

impl fmt::Display for ScheduledId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}

/// Parses a point in time: RFC 3339, or a date and a time of day in `zone`.
///
/// # Errors
///
/// It is neither; or the clocks of the zone do not show that time, or show it twice.
pub fn point_in_time(text: &str, zone: &TimeZone) -> Result<Time, String> {
    if let Some(time) = time::parse(text) {
        return Ok(time);
    }
    let form = "a time like 2026-03-18T10:30:00Z, or '2026-03-18 10:30' in this machine's time zone";
    let has_both = text.contains(':') && !text.contains(['[', '+', 'Z', 'z']);
    // An hour of one digit, too.
    let padded = match text.split_once(' ') {
        Some((date, hour)) if hour.find(':') == Some(1) => format!("{date} 0{hour}"),
        _ => text.to_owned(),
    };
    let local = padded.parse::<civil::DateTime>().ok().filter(|_| has_both);
    let Some(local) = local else { return Err(format!("'{text}' is not {form}")) };
    let zone_name = name_of(zone);
    let ambiguous = zone.to_ambiguous_zoned(local);
    match ambiguous.offset() {
        AmbiguousOffset::Unambiguous { .. } => {}
        AmbiguousOffset::Gap { .. } => {
            return Err(format!(
                "'{text}' does not exist in {zone_name}, where the clocks are put forward then; give another time"
            ));
        }
        AmbiguousOffset::Fold { before, after } => {
            return Err(format!(
                "'{text}' comes twice in {zone_name}, where the clocks are put back then; give it with its offset, {before} or {after}"
            ));
        }
    }
    let zoned = ambiguous.compatible().map_err(|_| format!("'{text}' is not {form}"))?;
    Time::from_timestamp_millis(zoned.timestamp().as_millisecond())
        .ok_or_else(|| format!("'{text}' is not {form}"))
}

/// The name of a time zone, for people.
pub fn name_of(zone: &TimeZone) -> &str {
    zone.iana_name().unwrap_or("this machine's time zone")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn berlin(text: &str) -> Result<String, String> {
        let zone = TimeZone::get("Europe/Berlin").unwrap();
        point_in_time(text, &zone).map(time::format)
    }

    #[test]
    fn a_point_in_time_is_of_the_zone_unless_it_has_an_offset() {
        for (text, utc) in [
            ("2026-03-18T10:30:00Z", "2026-03-18T10:30:00.000Z"),
            ("2026-03-18T10:30:00.250+02:00", "2026-03-18T08:30:00.250Z"),
            ("2026-03-18 10:30", "2026-03-18T09:30:00.000Z"),
            ("2026-03-18 8:30", "2026-03-18T07:30:00.000Z"),
            ("2026-07-18T10:30:05", "2026-07-18T08:30:05.000Z"),
        ] {
            assert_eq!(berlin(text).as_deref(), Ok(utc), "{text}");
        }
        for text in
            ["", "10:30", "2026-03-18", "tomorrow", "2026-02-30 10:30", "2026-03-18 10:30+25:00", "1h"]
        {
            assert!(berlin(text).unwrap_err().contains("is not a time like"), "{text}");
        }
    }

    #[test]
    fn a_scheduled_event_is_named_by_its_number() {
        assert_eq!(
            (ScheduledId(17).to_string(), ScheduledId::parse("s17")),
            ("s17".into(), Ok(ScheduledId(17)))
        );
        for text in ["17", "s", "s-1", "s+1", "s1x", "S17"] {
            assert!(ScheduledId::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_time_that_the_clocks_skip_or_repeat_is_refused() {
        assert!(berlin("2026-03-29 02:30").unwrap_err().contains("does not exist in Europe/Berlin"));
        assert_eq!(
            berlin("2026-10-25 02:30").unwrap_err(),
            "'2026-10-25 02:30' comes twice in Europe/Berlin, where the clocks are put back then; give it with its \
             offset, +02 or +01"
        );
    }
}
