//! Parsing numbers of the command line.

/// Parses an event id: a plain decimal integer, 0 or more.
pub fn event_id(text: &str) -> Result<i64, String> {
    whole_number(text).ok_or_else(|| "an event id is a whole number, 0 or more".to_owned())
}

/// Parses a limit or another count: a plain decimal integer, 1 or more.
pub fn limit(text: &str) -> Result<u64, String> {
    let number = whole_number(text).filter(|&n| n >= 1);
    number.map(i64::unsigned_abs).ok_or_else(|| "it must be a whole number, 1 or more".to_owned())
}

/// Parses a count that may be 0.
pub fn count(text: &str) -> Result<u64, String> {
    whole_number(text).map(i64::unsigned_abs).ok_or_else(|| "it must be a whole number, 0 or more".to_owned())
}

/// Digits only: no sign, space or fraction.
fn whole_number(text: &str) -> Option<i64> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}
