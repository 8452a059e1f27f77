//! The answers of a kept handler.

use serde::Serialize;

use crate::delivery::Outcome;

/// A line for the supervisor.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Answer {
    #[serde(skip_serializing_if = "Option::is_none")]
    ack: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nack: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reject: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// In seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    delay: Option<u64>,
    /// Left out if it counts as one.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<bool>,
}

impl Answer {
    /// The answer for an event that was posted.
    pub fn new(id: i64, outcome: Outcome) -> Answer {
        match outcome {
            Outcome::Taken => Answer { ack: Some(id), ..Answer::default() },
            Outcome::Later { error, delay } => {
                Answer { nack: Some(id), error: Some(error), delay, ..Answer::default() }
            }
            Outcome::Refused(error) => Answer { reject: Some(id), error: Some(error), ..Answer::default() },
            // It is posted once the consumer is resumed, and nothing is wrong with it.
            Outcome::Gone(error) => {
                Answer { nack: Some(id), error: Some(error), attempt: Some(false), ..Answer::default() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_those_of_kept_handlers() {
        let line = |outcome| serde_json::to_string(&Answer::new(7, outcome)).unwrap();
        let error = || "no".to_owned();
        assert_eq!(line(Outcome::Taken), r#"{"ack":7}"#);
        let later = Outcome::Later { error: error(), delay: Some(30) };
        assert_eq!(line(later), r#"{"nack":7,"error":"no","delay":30}"#);
        assert_eq!(line(Outcome::Refused(error())), r#"{"reject":7,"error":"no"}"#);
        assert_eq!(line(Outcome::Gone(error())), r#"{"nack":7,"error":"no","attempt":false}"#);
    }
}
