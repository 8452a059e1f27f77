//! Durations as people write them: `500ms`, `10s`, `5m`, `2h`, `1d`, `2w`, or several together, as
//! in `1h30m`. A bare number is seconds.

use std::time::Duration;

/// The maximum duration: ten years.
const MAX_DURATION: Duration = Duration::from_secs(10 * 366 * 86_400);

/// Parses one duration. The error is a human-readable sentence.
pub fn parse(text: &str) -> Result<Duration, String> {
    let invalid = || format!("'{text}' is not a duration such as 500ms, 10s, 5m, 2h, 1d, 2w or 1h30m");
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(invalid());
    }
    let parsed = if text.bytes().all(|b| b.is_ascii_digit()) {
        text.parse().map(Duration::from_secs).ok()
    } else {
        // humantime accepts more units (years, `M` for months), which would be confusing.
        let mut units = text.split(|c: char| c.is_ascii_digit()).filter(|unit| !unit.is_empty());
        let known = units.all(|unit| ["ms", "s", "m", "h", "d", "w"].contains(&unit));
        if known { humantime::parse_duration(text).ok() } else { None }
    };
    match parsed {
        Some(duration) if duration > MAX_DURATION => Err(format!("'{text}' is longer than ten years")),
        Some(duration) => Ok(duration),
        None => Err(invalid()),
    }
}

/// Parses a duration that must not be zero.
pub fn parse_positive(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        Duration::ZERO => Err(format!("'{text}' is zero; give a longer duration")),
        duration => Ok(duration),
    }
}

/// Parses a comma-separated list of durations.
pub fn parse_list(text: &str) -> Result<Vec<Duration>, String> {
    text.split(',').map(|one| parse(one.trim())).collect()
}

/// Formats a list of durations as [`parse_list`] expects it.
pub fn format_list(durations: &[Duration]) -> String {
    durations.iter().map(|duration| format(*duration)).collect::<Vec<_>>().join(",")
}

/// Formats one duration exactly, to the millisecond: `1h30m`.
pub fn format(duration: Duration) -> String {
    let mut rest = duration.as_millis();
    let mut text = String::new();
    for (unit, length) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)] {
        if rest >= length {
            text.push_str(&format!("{}{unit}", rest / length));
            rest %= length;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Formats one duration for people, in its largest unit only: `45s`, `3m`, `2h`, `5d`.
pub fn rough(duration: Duration) -> String {
    let seconds = duration.as_secs();
    // A unit is used from two on, because "1h" could be nearly two hours.
    let unit = [("d", 86_400), ("h", 3600), ("m", 60)].into_iter().find(|(_, length)| seconds >= 2 * length);
    let (name, length) = unit.unwrap_or(("s", 1));
    format!("{}{name}", seconds / length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_at_most_ten_years() {
        assert_eq!(parse("3660d"), Ok(MAX_DURATION));
        assert_eq!(parse("316224001").unwrap_err(), "'316224001' is longer than ten years");
        assert_eq!(
            parse("99999999999999999999w").unwrap_err().split(" is ").next(),
            Some("'99999999999999999999w'")
        );
    }

    #[test]
    fn lists_are_written_as_they_are_read() {
        let list = [1, 90, 0].map(Duration::from_secs);
        assert_eq!(
            (format_list(&list), parse_list("1s, 1m30s,0")),
            ("1s,1m30s,0s".to_owned(), Ok(list.to_vec()))
        );
        assert!(parse_list("1s,").is_err());
    }

    #[test]
    fn a_rough_duration_has_one_unit() {
        for (seconds, text) in
            [(0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172_800, "2d")]
        {
            assert_eq!(rough(Duration::from_secs(seconds)), text);
        }
    }
}
