//! The state of one attempt to answer one message.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::protocol::Done;
use thread_conversation::runs::Verdict;
use thread_conversation::{CLIENT_TOOL_TIMEOUT, Choice, PERMISSION_TIMEOUT, Run, Status};

/// When a program that does not stop is sent TERM and KILL, counted from the request to stop. KILL comes in
/// time for it to be gone after five seconds.
const TERM_AFTER: Duration = Duration::from_secs(2);
const KILL_AFTER: Duration = Duration::from_millis(4800);

/// How long to wait for output after the program has exited: another process may hold its stdout open.
pub const OUTPUT_GRACE: Duration = Duration::from_secs(2);

/// The maximum output read after the program has exited, in bytes. Its pipe and the adapter's channel hold
/// no more, unless root has enlarged the pipe, so the rest comes from another process.
pub const LONGEST_PIPE: usize = 2 * 1024 * 1024;

#[derive(Debug)]
pub struct Attempt {
    pub run: Run,
    pub message_id: String,
    pub began: Instant,
    pub last_output: Instant,
    /// When it last printed something that is stored.
    pub last_said: Instant,
    /// The answer so far.
    pub text: String,
    /// Content parts of the answer that are not text, each with the length of the text before it.
    pub parts: Vec<(usize, Value)>,
    pub status: Option<Status>,
    /// How many bytes of output were stored.
    pub bytes: u64,
    /// The [`count`](super::output::Outbox::count) of events before it.
    pub events_before: u64,
    /// Calls that were pushed and have no result yet: their names, by their ids.
    pub calls: BTreeMap<String, String>,
    /// Ids of calls whose result was pushed.
    pub results: BTreeSet<String>,
    /// The names of the client's tools, if the program was given them.
    pub client_tools: BTreeSet<String>,
    /// Calls of the client's tools that wait for their results, by their ids.
    pub client_calls: BTreeMap<String, ClientCall>,
    /// How the program finished, once it has.
    pub done: Option<Done>,
    /// Set while it is being ended.
    pub ending: Option<Ending>,
    /// Requests for permission that the program is waiting for.
    pub asked: Vec<Asked>,
    /// How many requests for permission there were; numbers them.
    pub requests: u64,
    /// Processes that earlier runs left in the background, which are not to be killed with this attempt.
    pub spared: BTreeSet<u32>,
}

/// Why and since when an attempt is being ended.
#[derive(Debug)]
pub struct Ending {
    pub why: Why,
    since: Instant,
    stage: Stage,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    Verdict(Verdict),
    Failed {
        error: String,
        retryable: bool,
    },
    /// Another process has stored the ending.
    Ended,
    /// The adapter is being stopped.
    Stopped,
}

/// How forcefully the program was asked to stop, mildest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Asked,
    Terminated,
    Killed,
}

/// A request for permission that waits for its answer.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The id in the thread.
    pub request_id: String,
    /// The program's own id for it.
    pub program_id: String,
    pub choices: Vec<Choice>,
    pub until: Instant,
}

/// A call of one of the client's tools.
#[derive(Debug, Clone)]
pub struct ClientCall {
    pub name: String,
    /// Its event, once that is stored.
    pub event_id: Option<i64>,
    pub until: Instant,
}

impl ClientCall {
    pub fn new(name: String) -> ClientCall {
        ClientCall { name, event_id: None, until: Instant::now() + CLIENT_TOOL_TIMEOUT }
    }
}

impl Asked {
    pub fn new(request_id: String, program_id: String, choices: Vec<Choice>) -> Asked {
        Asked { request_id, program_id, choices, until: Instant::now() + PERMISSION_TIMEOUT }
    }
}

impl Attempt {
    /// Takes the answer assembled from pieces: text, or content parts if some are not text.
    pub fn take_answer(&mut self) -> String {
        let text = std::mem::take(&mut self.text);
        if self.parts.is_empty() {
            return text;
        }
        let (mut parts, mut from) = (Vec::new(), 0);
        let end = (text.len(), Value::Null);
        for (at, part) in self.parts.drain(..).chain([end]) {
            if at > from {
                parts.push(json!({ "type": "text", "text": text[from..at] }));
            }
            from = at;
            parts.extend(Some(part).filter(|part| !part.is_null()));
        }
        Value::Array(parts).to_string()
    }

    /// Whether the program waits for a person or a client: then it may be silent.
    pub fn waits_for_somebody(&self) -> bool {
        !self.asked.is_empty() || !self.client_calls.is_empty()
    }

    /// Removes the requests for permission that got no answer in time. Until then the program had to be silent, so only
    /// from now on does that count.
    pub fn take_overdue(&mut self, now: Instant) -> Vec<Asked> {
        let overdue: Vec<Asked> = self.asked.extract_if(.., |asked| asked.until <= now).collect();
        if !overdue.is_empty() {
            self.last_output = now;
        }
        overdue
    }

    pub fn new(run: Run, events_before: u64) -> Attempt {
        let now = Instant::now();
        Attempt {
            message_id: message_id_of(&run),
            run,
            began: now,
            last_output: now,
            last_said: now,
            text: String::new(),
            parts: Vec::new(),
            status: None,
            bytes: 0,
            events_before,
            calls: BTreeMap::new(),
            results: BTreeSet::new(),
            client_tools: BTreeSet::new(),
            client_calls: BTreeMap::new(),
            done: None,
            ending: None,
            asked: Vec::new(),
            requests: 0,
            spared: BTreeSet::new(),
        }
    }
}

/// The id of the answer, and of its pieces, that an attempt gives. Unique: ids of messages and of the events that begin
/// runs of the agent's own are ids of one thread.
pub fn message_id_of(attempt: &Run) -> String {
    format!("msg_{}_{}", attempt.reply_to, attempt.attempt)
}

impl Ending {
    /// Starts the clock: the program is being asked to stop.
    pub fn new(why: Why) -> Ending {
        Ending { why, since: Instant::now(), stage: Stage::Asked }
    }

    /// Moves to the next stage if it is due, and returns it.
    pub fn escalate(&mut self) -> Option<Stage> {
        let due = match self.since.elapsed() {
            waited if waited >= KILL_AFTER => Stage::Killed,
            waited if waited >= TERM_AFTER => Stage::Terminated,
            _ => Stage::Asked,
        };
        (due > self.stage).then(|| {
            self.stage = due;
            due
        })
    }

    /// When the next stage is due; `None` after the last.
    pub fn next_stage_at(&self) -> Option<Instant> {
        match self.stage {
            Stage::Asked => Some(self.since + TERM_AFTER),
            Stage::Terminated => Some(self.since + KILL_AFTER),
            Stage::Killed => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_not_quiet_for_the_time_in_which_nobody_answered_it() {
        let run = Run { run_id: "r".into(), reply_to: 1, attempt: 1, is_own: false };
        let mut attempt = Attempt::new(run, 0);
        let (began, minute) = (attempt.last_output, Duration::from_secs(60));
        let asked = |id: &str, minutes| Asked {
            request_id: id.into(),
            program_id: id.into(),
            choices: Vec::new(),
            until: began + minutes * minute,
        };
        attempt.asked = vec![asked("a", 5), asked("b", 7)];
        assert!(attempt.take_overdue(began + 4 * minute).is_empty());
        assert_eq!(attempt.last_output, began);
        assert_eq!(attempt.take_overdue(began + 6 * minute).len(), 1);
        assert_eq!(attempt.last_output, began + 6 * minute);
        assert!(attempt.waits_for_somebody());
    }
}
