//! Runs that have ended, as they are kept.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Ended, Exit, NOT_NOW, RunState, Task};
use crate::model::time::Time;

/// How many runs are kept for each consumer.
pub const RUNS_KEPT: usize = 1000;

/// A run that has ended, as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
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

/// A part of a file, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Identifies the file: its inode.
    pub file: u64,
    pub offset: u64,
    pub length: u64,
}

impl Run {
    /// The run that `before` describes and that has now ended. `dead`: it made a dead letter.
    pub fn of(before: &RunState, ended: &Ended, dead: bool, output: Option<Span>) -> Run {
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
        Run { began, ended: ended.now, attempt, events, upto, result, exit, output }
    }

    /// Zero if the clock was set back.
    pub fn duration(&self) -> Duration {
        (self.ended - self.began).to_std().unwrap_or_default()
    }
}
