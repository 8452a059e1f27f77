//! Runs that have ended, as they are kept.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Ended, Exit, NOT_NOW, RunState, Task};
use crate::model::time::Time;

/// How many runs are kept for each consumer.
pub const RUNS_KEPT: usize = 1000;

/// How much of the end of its output is kept with a run that did not succeed, where several machines share the thread,
/// in bytes.
pub const TAIL_KEPT: usize = 4096;

/// How much of the end of a run's output a dead letter keeps, in bytes.
pub const ERROR_KEPT: usize = 2048;

/// A run that has ended, as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Among the consumer's runs, counted from 1; 0 before it is stored.
    #[serde(skip)]
    pub number: i64,
    pub began: Time,
    pub ended: Time,
    pub attempt: u32,
    /// How many events it was given on stdin; `None` if its handler pops.
    pub events: Option<u64>,
    /// The last of them, or, if the handler pops, the cursor at the end of the run.
    pub upto: i64,
    pub result: RunResult,
    /// As [`Exit::code`].
    pub exit: Option<i32>,
    /// Where its output is in the consumer's log; `None` if it was not written there.
    pub output: Option<Span>,
    /// The machine that recorded it, where several share the thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The end of its output, at most [`TAIL_KEPT`] bytes; `None` if it succeeded, if what it printed is not known, or if
    /// the store does not keep it. The last field, so that a store can leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<String>,
}

/// How a run ended, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunResult {
    Succeeded,
    Failed,
    /// It failed, and its event became a dead letter or remains one.
    Dead,
    TimedOut,
    Stopped,
    /// Its handler could not do its work then, and is due again.
    Deferred,
    /// It was cut short by a shutdown, and is due again.
    Interrupted,
    /// Its supervisor was killed.
    Unknown,
}

impl RunResult {
    /// What is kept of the end of the output of a run that ended so: see [`Run::tail`].
    pub fn tail(self, output: &str) -> Option<String> {
        let is_kept = !matches!(self, RunResult::Succeeded | RunResult::Unknown);
        is_kept.then(|| end_of(output, TAIL_KEPT).to_owned())
    }
}

/// The end of a text, at most so many bytes.
pub fn end_of(text: &str, most: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(most))..]
}

/// A part of a file, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Identifies the file: its inode.
    pub file: u64,
    pub offset: u64,
    pub length: u64,
}

impl Run {
    /// The run that `before` describes and that has now ended. `dead`: it made a dead letter. With the end of its output,
    /// and where all of it is.
    pub fn of(before: &RunState, ended: &Ended, dead: bool, (tail, output): (&str, Option<Span>)) -> Run {
        let result = match ended.exit {
            _ if ended.stopped => RunResult::Stopped,
            _ if ended.interrupted => RunResult::Interrupted,
            Exit::Code(0) => RunResult::Succeeded,
            Exit::Code(NOT_NOW) => RunResult::Deferred,
            _ if dead || matches!(ended.task, Task::DeadLetter(_)) => RunResult::Dead,
            Exit::TimedOut => RunResult::TimedOut,
            Exit::Unknown => RunResult::Unknown,
            Exit::Code(_) | Exit::Signal(_) => RunResult::Failed,
        };
        let (events, upto) = match ended.task {
            Task::Wake | Task::Pool => (None, ended.cursor),
            Task::Batch(last) => (Some(before.batch), last),
            Task::Single(id) | Task::DeadLetter(id) => (Some(1), id),
        };
        let began = before.since.unwrap_or(ended.now);
        let (attempt, exit) = (before.attempts, ended.exit.code());
        let tail = result.tail(tail);
        Run {
            number: 0,
            began,
            ended: ended.now,
            attempt,
            events,
            upto,
            result,
            exit,
            output,
            host: None,
            tail,
        }
    }

    /// Zero if the clock was set back.
    pub fn duration(&self) -> Duration {
        (self.ended - self.began).to_std().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_text_is_whole_characters() {
        assert_eq!(
            (end_of("abc", 2), end_of("abc", 3), end_of("abc", 9), end_of("", 2)),
            ("bc", "abc", "abc", "")
        );
        assert_eq!((end_of("xé", 2), end_of("éx", 2), end_of("é", 1)), ("é", "x", ""));
    }

    #[test]
    fn the_tail_is_the_last_field_and_only_of_runs_that_did_not_succeed() {
        let tail = |result: RunResult| result.tail(&"x".repeat(TAIL_KEPT + 1)).map(|tail| tail.len());
        assert_eq!(
            [RunResult::Failed, RunResult::TimedOut, RunResult::Deferred].map(tail),
            [Some(TAIL_KEPT); 3]
        );
        assert_eq!([RunResult::Succeeded, RunResult::Unknown].map(tail), [None; 2]);
        let run = Run {
            number: 7,
            began: Time::default(),
            ended: Time::default(),
            attempt: 1,
            events: None,
            upto: 1,
            result: RunResult::Failed,
            exit: Some(1),
            output: None,
            host: Some(",\"tail\":\"".into()),
            tail: Some("no".into()),
        };
        let json = serde_json::to_string(&run).unwrap();
        assert!(json.ends_with(",\"tail\":\"no\"}"), "{json}");
        assert_eq!(json.matches(",\"tail\":\"").count(), 1, "{json}");
        assert_eq!(serde_json::from_str::<Run>(&json).unwrap(), Run { number: 0, ..run });
    }
}
