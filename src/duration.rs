//! Spans of time as people write them: `500ms`, `10s`, `5m`, `2h`, `1d`, or several together, as
//! in `1h30m`.

use std::time::Duration;

/// The longest span taken: ten years.
const LONGEST: Duration = Duration::from_secs(10 * 366 * 86_400);

/// Reads one span. Units are `ms`, `s`, `m`, `h` and `d`; every number has one.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is not a duration such as 500ms, 10s, 5m, 2h, 1d or 1h30m");
    // humantime knows more units (years, weeks, 'M' for months) than are worth confusing.
    let units: Vec<&str> = text.split(|c: char| c.is_ascii_digit()).filter(|unit| !unit.is_empty()).collect();
    if !text.starts_with(|c: char| c.is_ascii_digit())
        || !units.iter().all(|unit| ["ms", "s", "m", "h", "d"].contains(unit))
    {
        return Err(wrong());
    }
    let span = humantime::parse_duration(text).map_err(|_| wrong())?;
    if span > LONGEST { Err(format!("'{text}' is longer than ten years")) } else { Ok(span) }
}

/// Reads a span that must not be zero.
pub fn parse_positive(text: &str) -> Result<Duration, String> {
    parse(text)
        .and_then(|span| if span.is_zero() { Err(format!("'{text}' is no time at all")) } else { Ok(span) })
}

/// Reads a list of spans, separated by commas.
pub fn parse_list(text: &str) -> Result<Vec<Duration>, String> {
    text.split(',').map(|one| parse(one.trim())).collect()
}

/// Writes a list of spans so that [`parse_list`] reads it back.
pub fn format_list(spans: &[Duration]) -> String {
    spans.iter().map(|span| format(*span)).collect::<Vec<_>>().join(",")
}

/// Writes one span in whole units, without blanks.
pub fn format(span: Duration) -> String {
    let mut rest = span.as_millis();
    let mut text = String::new();
    for (unit, length) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)] {
        if rest >= length {
            text.push_str(&format!("{}{unit}", rest / length));
            rest %= length;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Writes one span in its largest unit only, for people: `45s`, `3m`, `2h`, `5d`.
pub fn rough(span: Duration) -> String {
    let seconds = span.as_secs();
    let units = [("d", 86_400), ("h", 3600), ("m", 60)];
    // Not before there are two of a unit: "1h" might be nearly two.
    let unit = units.into_iter().find(|(_, length)| seconds >= 2 * length);
    let (name, length) = unit.unwrap_or(("s", 1));
    format!("{}{name}", seconds / length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rough_span_has_one_unit() {
        for (seconds, text) in
            [(0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172_800, "2d")]
        {
            assert_eq!(rough(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn spans_are_read_and_written() {
        for (text, millis) in
            [("500ms", 500), ("10s", 10_000), ("5m", 300_000), ("1h30m", 5_400_000), ("1d", 86_400_000)]
        {
            let span = parse(text).unwrap();
            assert_eq!(span.as_millis(), millis, "{text}");
            assert_eq!(format(span), text);
        }
        assert_eq!(format_list(&parse_list("1s,5s, 30s,2m,10m").unwrap()), "1s,5s,30s,2m,10m");
        assert_eq!(parse("0s"), Ok(Duration::ZERO));
        assert!(parse_positive("0ms").is_err());
    }

    #[test]
    fn what_is_no_span_is_refused() {
        for text in [
            "",
            "10",
            "s",
            "-1s",
            "1.5s",
            "1y",
            "1M",
            "5min",
            "1 s",
            "99999999d",
            "99999999999999999999s",
            "1s,",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse_list("1s,,2s").is_err());
    }
}
