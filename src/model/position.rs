//! Places in a thread as users name them: an event, a time, the beginning or the end.

use chrono::Utc;

use super::duration;
use super::time::{self, Time};

/// Where a cursor is to be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// Past the newest event.
    Latest,
    /// Past this event; 0 is the beginning.
    Event(i64),
    /// Before the first event that was stored then or later.
    Time(Time),
}

impl Position {
    /// Parses `beginning`, `now`, an event id, a time, or a duration as the time so long ago; also `earliest` and `all` for
    /// the beginning, `latest` and `new` for now.
    ///
    /// # Errors
    ///
    /// It is none of these; completes "the position …".
    pub fn parse(text: &str) -> Result<Position, String> {
        let id = || text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
        match text {
            "beginning" | "earliest" | "all" => Some(Position::Event(0)),
            "now" | "latest" | "new" => Some(Position::Latest),
            _ => id().map(Position::Event).or_else(|| when(text).map(Position::Time).ok()),
        }
        .ok_or_else(|| {
            "it must be beginning, now, an event id, a time like 2026-03-18T10:30:00Z or 2026-03-18, or a \
             duration like 90s, 1h or 2d"
                .to_owned()
        })
    }
}

/// Parses a time, or a duration as the time so long ago.
///
/// # Errors
///
/// It is neither.
pub fn when(text: &str) -> Result<Time, String> {
    let time = time::parse(text).or_else(|| time::parse(&format!("{text}T00:00:00Z")));
    // Does not overflow: durations are at most ten years.
    time.or_else(|| Some(Utc::now() - duration::parse(text).ok()?)).ok_or_else(|| {
        format!(
            "'{text}' is neither a time like 2026-03-18T10:30:00Z or 2026-03-18 nor a duration like 90s, 1h or 2d"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_an_end_an_event_or_a_time() {
        for (text, position) in [
            ("beginning", Position::Event(0)),
            ("earliest", Position::Event(0)),
            ("all", Position::Event(0)),
            ("now", Position::Latest),
            ("latest", Position::Latest),
            ("new", Position::Latest),
            ("17", Position::Event(17)),
        ] {
            assert_eq!(Position::parse(text), Ok(position), "{text}");
        }
        let day = Time::from_timestamp(1_773_792_000, 0).unwrap();
        assert_eq!(Position::parse("2026-03-18"), Ok(Position::Time(day)));
        assert_eq!(when("2026-03-18T01:00:00+01:00"), Ok(day));
        let ago = Utc::now() - when("2h").unwrap();
        assert!((7190..7300).contains(&ago.num_seconds()), "{ago}");
        for text in ["", "-1", "+1", "tomorrow", "1x"] {
            assert!(Position::parse(text).is_err(), "{text}");
        }
    }
}
