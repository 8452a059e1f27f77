//! What a handler that is kept says about an event: a line of JSON on its standard output.

use std::time::Duration;

use serde::Deserialize;

use super::duration;

/// The longest line that may be an answer, in bytes.
pub const LONGEST: usize = 64 * 1024;

const KEYS: [&str; 3] = ["ack", "nack", "reject"];

/// Whether text that is no JSON was probably meant as an answer: its first word is one of the keys.
fn is_meant(line: &[u8]) -> bool {
    let text = String::from_utf8_lossy(line);
    let mut words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.next().is_some_and(|first| KEYS.contains(&first))
}

/// What to do with an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is done.
    Ack,
    /// It cannot be handled now.
    Nack {
        /// When to try it again; `None` for the next wait of the consumer's backoff.
        delay: Option<Duration>,
        /// Whether this was an attempt.
        counts: bool,
        error: String,
    },
    /// It can never be handled: it becomes a dead letter.
    Reject { error: String },
}

/// A verdict on an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub id: i64,
    pub verdict: Verdict,
}

impl Answer {
    /// Reads a line. `None` if it is not meant as an answer: it is output like any other.
    ///
    /// # Errors
    ///
    /// It has one of the keys of an answer, but is none; says why.
    pub fn parse(line: &[u8]) -> Result<Option<Answer>, String> {
        #[derive(Deserialize)]
        struct Line {
            ack: Option<i64>,
            nack: Option<i64>,
            reject: Option<i64>,
            delay: Option<serde_json::Value>,
            error: Option<String>,
            attempt: Option<bool>,
        }
        if line.len() > LONGEST || !line.trim_ascii_start().starts_with(b"{") {
            return Ok(None);
        }
        // Output may be JSON, too.
        let Ok(serde_json::Value::Object(object)) = serde_json::from_slice(line) else {
            return if is_meant(line) { Err("it is not a line of JSON".to_owned()) } else { Ok(None) };
        };
        if !KEYS.iter().any(|key| object.contains_key(*key)) {
            return Ok(None);
        }
        let line: Line = serde_json::from_value(object.into()).map_err(|e| e.to_string())?;
        let error = line.error.unwrap_or_default();
        let (id, verdict) = match (line.ack, line.nack, line.reject) {
            (Some(id), None, None) => (id, Verdict::Ack),
            (None, Some(id), None) => {
                // A number is seconds, and may have a fraction.
                let delay = line.delay.map(|delay| match (delay.as_str(), delay.as_f64()) {
                    (Some(text), _) => text.to_owned(),
                    (None, Some(seconds)) if !delay.is_u64() => format!("{:.0}ms", seconds * 1000.0),
                    _ => delay.to_string(),
                });
                let delay = delay.as_deref().map(duration::parse).transpose()?;
                (id, Verdict::Nack { delay, counts: line.attempt.unwrap_or(true), error })
            }
            (None, None, Some(id)) => (id, Verdict::Reject { error }),
            _ => return Err("it must have one of ack, nack and reject, with an event id".to_owned()),
        };
        Ok(Some(Answer { id, verdict }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_from_output() {
        let parse = |line: &str| Answer::parse(line.as_bytes());
        let ack = |id| Ok(Some(Answer { id, verdict: Verdict::Ack }));
        assert_eq!(parse(r#"{"ack":17}"#), ack(17));
        assert_eq!(parse(" {\"ack\":17,\"more\":[1]} \r"), ack(17));
        for output in ["", "ack 17", "17", "[17]", "{", "{}", r#"{"message":"ack"}"#, "{message: ack}"] {
            assert_eq!(parse(output), Ok(None), "{output}");
        }
        assert_eq!(parse(&format!("{{\"ack\":17,\"x\":\"{}\"}}", "x".repeat(LONGEST))), Ok(None));
        let padded = |length: usize| format!("{}{{\"ack\":17}}", " ".repeat(length - 10));
        assert_eq!((parse(&padded(LONGEST)), parse(&padded(LONGEST + 1))), (ack(17), Ok(None)));
        for wrong in [
            r#"{"ack":"17"}"#,
            r#"{"ack":1.5}"#,
            r#"{"ack":null}"#,
            r#"{"ack":1,"nack":1}"#,
            r#"{"nack":1,"delay":"soon"}"#,
            r#"{"nack":1,"delay":-1.5}"#,
            r#"{"nack":1,"delay":1e300}"#,
            "{\"ack\":17",
            "{'ack': 17}",
            r#"{"ack":17}{"ack":18}"#,
            r#"{"nack":1,"delay":[30]}"#,
            r#"{"reject":1,"error":1}"#,
            r#"{"ack":99999999999999999999}"#,
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        let long = parse(r#"{"nack":1,"delay":400000000}"#);
        assert_eq!(long.unwrap_err(), "'400000000' is longer than ten years");
        let nack = |delay: Option<u64>, counts, error: &str| {
            let delay = delay.map(Duration::from_secs);
            Ok(Some(Answer { id: 1, verdict: Verdict::Nack { delay, counts, error: error.into() } }))
        };
        assert_eq!(parse(r#"{"nack":1}"#), nack(None, true, ""));
        assert_eq!(parse(r#"{"nack":1,"delay":"30s","error":"e"}"#), nack(Some(30), true, "e"));
        assert_eq!(parse(r#"{"nack":1,"delay":30,"error":"e"}"#), nack(Some(30), true, "e"));
        let soon = Verdict::Nack { delay: Some(Duration::from_millis(1500)), counts: true, error: "".into() };
        assert_eq!(parse(r#"{"nack":1,"delay":1.5}"#), Ok(Some(Answer { id: 1, verdict: soon })));
        assert_eq!(parse(r#"{"nack":1,"delay":"2m","attempt":false}"#), nack(Some(120), false, ""));
        let reject = Verdict::Reject { error: "bad".into() };
        assert_eq!(parse(r#"{"reject":1,"error":"bad"}"#), Ok(Some(Answer { id: 1, verdict: reject })));
    }
}
