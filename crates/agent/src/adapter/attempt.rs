//! The state of one attempt to answer one message.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::protocol::Done;
use thread_conversation::runs::Verdict;
use thread_conversation::{CLIENT_TOOL_TIMEOUT, Choice, Run, Spent, Status, ToolCall};

/// A request for permission that waits for its answer.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The id in the thread.
    pub request_id: String,
    /// The program's own id for it.
    pub program_id: String,
    pub choices: Vec<Choice>,
    /// When it is rejected; `None`: never.
    pub until: Option<Instant>,
}

/// The signals for a program that does not stop, mildest first, and when they are due, counted from the request to stop.
/// KILL comes in time for it to be gone after five seconds.
const SIGNALS: [(Duration, Signal); 2] =
    [(Duration::from_secs(2), Signal::TERM), (Duration::from_millis(4800), Signal::KILL)];

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
    /// How long the next attempt should wait if this one fails.
    pub retry_after: Option<Duration>,
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
    /// How long what the client hands over with the message is, in bytes of JSON.
    pub handed: usize,
    /// The names of the client's tools, if the program was given them.
    pub client_tools: BTreeSet<String>,
    /// Calls of the client's tools that wait for their results, by their ids.
    pub client_calls: BTreeMap<String, ClientCall>,
    /// Calls of the model's last turn that have no result yet, by their ids.
    pub waiting: BTreeMap<String, Waiting>,
    /// The list of a model's tools is awaited.
    pub lists_tools: bool,
    /// The last prompt was too long; why that is known.
    pub too_long: Option<String>,
    /// How often that has happened.
    pub shortened: u32,
    /// How often a model's next step was looked for.
    pub steps: u64,
    /// How often the process that asks a model was started again.
    pub restarts: u32,
    /// Another adapter has begun it, so the model may have begun a turn already.
    pub is_continued: bool,
    /// How the program finished, once it has.
    pub done: Option<Done>,
    /// Set while it is being ended.
    pub ending: Option<Ending>,
    /// Requests for permission that the program is waiting for.
    pub asked: Vec<Asked>,
    /// How many requests for permission there were; numbers them.
    pub requests: u64,
    /// What the program says that it has taken.
    pub spent: Spent,
    /// Processes that earlier runs left in the background, which are not to be killed with this attempt.
    pub spared: BTreeSet<u32>,
}

/// Why and since when an attempt is being ended.
#[derive(Debug)]
pub struct Ending {
    pub why: Why,
    since: Instant,
    /// How many of the signals were sent.
    sent: usize,
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

/// A call of one of the client's tools.
#[derive(Debug, Clone)]
pub struct ClientCall {
    pub name: String,
    /// Its event, once that is stored.
    pub event_id: Option<i64>,
    pub until: Instant,
}

impl ClientCall {
    /// A call that waits from now on.
    pub fn new(name: &str, event_id: Option<i64>) -> ClientCall {
        ClientCall { name: name.to_owned(), event_id, until: Instant::now() + CLIENT_TOOL_TIMEOUT }
    }
}

/// A call of a model.
#[derive(Debug, Clone)]
pub struct Waiting {
    pub call: ToolCall,
    /// It was given to the process that makes it.
    pub is_made: bool,
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

    /// Whether the program waits for a person, a client or a tool: then it may be silent.
    pub fn waits_for_somebody(&self) -> bool {
        // A model's tools, and their servers, have limits of their own.
        !self.asked.is_empty()
            || !self.client_calls.is_empty()
            || !self.waiting.is_empty()
            || self.lists_tools
    }

    pub fn new(run: Run, events_before: u64) -> Attempt {
        let now = Instant::now();
        Attempt {
            message_id: message_id_of(&run),
            run,
            began: now,
            last_output: now,
            last_said: now,
            retry_after: None,
            text: String::new(),
            parts: Vec::new(),
            status: None,
            bytes: 0,
            events_before,
            calls: BTreeMap::new(),
            results: BTreeSet::new(),
            client_tools: BTreeSet::new(),
            handed: 0,
            client_calls: BTreeMap::new(),
            waiting: BTreeMap::new(),
            lists_tools: false,
            too_long: None,
            shortened: 0,
            steps: 0,
            restarts: 0,
            is_continued: false,
            done: None,
            ending: None,
            asked: Vec::new(),
            requests: 0,
            spent: Spent::default(),
            spared: BTreeSet::new(),
        }
    }
}

/// The id of the answer, and of its pieces, that an attempt gives. Unique: ids of messages and of the events that begin
/// runs of the agent's own are ids of one thread.
pub fn message_id_of(attempt: &Run) -> String {
    format!("msg_{}_{}", attempt.reply_to, attempt.attempt)
}

/// The id of a model's turn in an attempt, counted from 1.
pub fn turn_id_of(attempt: &Run, number: u64) -> String {
    let first = message_id_of(attempt);
    if number > 1 { format!("{first}_{number}") } else { first }
}

/// Whether pieces with this id belong to that attempt.
pub fn is_id_of(attempt: &Run, message_id: &str) -> bool {
    let rest = message_id.strip_prefix(&*message_id_of(attempt));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

impl Ending {
    /// Starts the clock: the program is being asked to stop.
    pub fn new(why: Why) -> Ending {
        Ending { why, since: Instant::now(), sent: 0 }
    }

    /// The strongest signal that is due and was not sent yet; counts as sent from now on.
    pub fn escalate(&mut self) -> Option<Signal> {
        let waited = self.since.elapsed();
        let due = SIGNALS.iter().take_while(|(after, _)| waited >= *after).count();
        let sent = std::mem::replace(&mut self.sent, due);
        SIGNALS[sent..due].last().map(|(_, signal)| *signal)
    }

    /// When the next signal is due; `None` after the last.
    pub fn next_signal_at(&self) -> Option<Instant> {
        SIGNALS.get(self.sent).map(|(after, _)| self.since + *after)
    }
}
