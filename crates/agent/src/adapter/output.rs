//! Turning the program's output into events.

use std::time::{Duration, Instant};

use serde_json::Value;
use thread::NewEvent;

use super::Adapter;
use super::attempt::{Attempt, ClientCall, Why};
use crate::protocol::{Done, Output};
use crate::sub_agent;
use thread_conversation::runs::OpenRun;
use thread_conversation::{
    ClientInput, MAX_RESULT, Priority, Run, Status, ToolCall, ToolResult, result_key, result_of, session,
};

/// The longest answer, in bytes.
pub const LONGEST_ANSWER: usize = 16 * 1024 * 1024;

/// How many events an attempt may store.
const MAX_EVENTS: u64 = 100_000;

/// How long text waits for more after text of the same run was stored: more pieces a second than this are not
/// perceptible, and each takes a sync of the disk.
const JOIN: Duration = Duration::from_millis(20);

/// The longest token or piece of thinking, in bytes.
const LONGEST_PIECE: usize = 256 * 1024;

/// Events that are not stored yet, in order.
#[derive(Debug, Default)]
pub struct Outbox {
    items: Vec<Item>,
    count: u64,
    /// Text that comes last waits for more until then.
    joins_until: Option<Instant>,
}

#[derive(Debug)]
enum Item {
    Text { kind: Kind, run: Run, message_id: String, text: String },
    Event(NewEvent<'static>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Token,
    Thinking,
}

impl Outbox {
    /// How many events there were so far, stored or not.
    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn event(&mut self, event: NewEvent<'static>) {
        self.push(Item::Event(event));
    }

    fn push(&mut self, item: Item) {
        self.items.push(item);
        self.count += 1;
    }

    fn text(&mut self, kind: Kind, attempt: &Attempt, more: String) {
        if let Some(Item::Text { kind: before, text, .. }) = self.items.last_mut()
            && *before == kind
        {
            return text.push_str(&more);
        }
        let (run, message_id) = (attempt.run.clone(), attempt.message_id.clone());
        self.push(Item::Text { kind, run, message_id, text: more });
    }

    /// When text that is waiting for more is due; `None` if there is none.
    pub fn due(&self) -> Option<Instant> {
        self.joins_until.filter(|_| matches!(self.items.last(), Some(Item::Text { .. })))
    }

    /// Takes the events that are due: all but trailing text that waits for more.
    pub fn take_due(&mut self) -> Vec<NewEvent<'static>> {
        let waiting = match self.due() {
            Some(due) if Instant::now() < due => self.items.pop(),
            _ => None,
        };
        let events = self.take();
        self.items.extend(waiting);
        events
    }

    /// Takes everything.
    pub fn take(&mut self) -> Vec<NewEvent<'static>> {
        let mut events = Vec::new();
        for item in std::mem::take(&mut self.items) {
            match item {
                Item::Text { kind, run, message_id, text } => {
                    events.extend(pieces(&text).map(|piece| match kind {
                        Kind::Token => run.token(&message_id, piece),
                        Kind::Thinking => run.thinking(&message_id, piece),
                    }));
                }
                Item::Event(event) => events.push(event),
            }
        }
        events
    }

    /// Records that text has just been stored.
    pub fn text_stored(&mut self) {
        self.joins_until = Some(Instant::now() + JOIN);
    }

    /// The first text of an attempt does not wait.
    pub fn attempt_begins(&mut self) {
        self.joins_until = None;
    }
}

/// Cuts a text into pieces that are not too long, between characters.
fn pieces(mut text: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let (piece, rest) = text.split_at(text.floor_char_boundary(LONGEST_PIECE));
        text = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

impl Adapter {
    /// Handles the program's output. Output while no answer is due begins a run of its own, if the protocol has
    /// such runs; otherwise only its session is accepted.
    pub(super) fn handle_output(&mut self, mut output: Output) {
        if let Output::Session(id) = output {
            if self.session.as_ref() != Some(&id) {
                self.outbox.event(session(
                    self.options.protocol.name(),
                    &id,
                    self.program_cleared.max(self.joined),
                ));
            }
            return;
        }
        if let Output::Commands(commands) = output {
            return self.takes_commands(commands);
        }
        if let Output::Options(options) = output {
            return self.says_options(options);
        }
        let Some(attempt) = self.attempt.as_mut().filter(|attempt| attempt.done.is_none()) else {
            // It belongs to the next run, which begins as soon as this one is over.
            if self.ahead.is_some() {
                return self.unasked.push(output);
            }
            match output {
                // A status is no part of an answer.
                Output::Status(_) | Output::Used(_) => {}
                Output::Withdrawn(_) if self.unasked.is_empty() => {}
                Output::Done(_) => self.stray(),
                output if self.options.protocol.speaks_unasked() => self.unasked.push(output),
                _ => self.stray(),
            }
            return;
        };
        if let Output::Used(spent) = output {
            attempt.spent += &spent;
            return;
        }
        attempt.last_said = Instant::now();
        if self.options.protocol.remembers_by_thread()
            && attempt.bytes + size_of(&output) + MAX_RESULT as u64 > self.options.settings.max_output
            && let Output::Result(result) = &mut output
        {
            // Tools must not end the run.
            result.outcome = Err("the result is left out: all results of this run are too much".to_owned());
        }
        attempt.bytes += size_of(&output);
        let events = self.outbox.count - attempt.events_before;
        if attempt.bytes > self.options.settings.max_output || events >= MAX_EVENTS {
            if attempt.ending.is_none() {
                let error = format!(
                    "the agent program wrote more than {} bytes or {MAX_EVENTS} events for one message",
                    self.options.settings.max_output
                );
                self.end(Why::Failed { error, retryable: false });
            }
            if !matches!(output, Output::Done(_)) {
                return;
            }
        }
        let Some(attempt) = &mut self.attempt else { return };
        // While the attempt is being ended, only results of its calls are still pushed.
        if attempt.ending.is_some() && !matches!(output, Output::Result(_) | Output::Done(_)) {
            if let Output::Asks(asked) = output {
                self.permit(&asked.request_id, None);
            }
            return;
        }
        match output {
            Output::Session(_) | Output::Commands(_) | Output::Options(_) | Output::Used(_) => {}
            Output::Token(text) | Output::Thinking(text) if text.is_empty() => {}
            Output::Token(text) => {
                if attempt.text.len() + text.len() > LONGEST_ANSWER {
                    return self.end(Why::Failed { error: too_long(), retryable: false });
                }
                attempt.text.push_str(&text);
                push_status(attempt, &mut self.outbox, Status::Streaming);
                self.outbox.text(Kind::Token, attempt, text);
            }
            Output::Thinking(text) => {
                push_status(attempt, &mut self.outbox, Status::Thinking);
                self.outbox.text(Kind::Thinking, attempt, text);
            }
            Output::Turn(turn) => self.outbox.event(attempt.run.model(&attempt.message_id, &turn)),
            Output::Messages(messages) => self.outbox.event(attempt.run.messages(&messages)),
            Output::Summary { text, upto } => self.outbox.event(attempt.run.summary(upto, &text)),
            Output::TooLong(error) => attempt.too_long = Some(error),
            Output::Note(text) => self.note_for_user(text),
            // The loop continues.
            Output::Tools => {}
            Output::RetryAfter(wait) => attempt.retry_after = Some(wait),
            Output::Part(part) => attempt.parts.push((attempt.text.len(), part)),
            Output::Plan(entries) => self.outbox.event(attempt.run.plan(&entries)),
            Output::State(state) => self.outbox.event(attempt.run.state(&state)),
            Output::StateDelta(delta) => self.outbox.event(attempt.run.state_delta(&delta)),
            Output::Call(call) => push_call(attempt, &mut self.outbox, &call),
            Output::Result(mut result) => {
                if let Some(name) = attempt.calls.remove(&result.call_id) {
                    if result.name.is_empty() {
                        result.name = name;
                    }
                } else {
                    // Either the call came while the attempt was being ended, and was not pushed, or this is a
                    // second result: the first one counts.
                    if attempt.ending.is_some() || attempt.results.contains(&result.call_id) {
                        return;
                    }
                    let ToolResult { call_id, name, .. } = result.clone();
                    push_call(attempt, &mut self.outbox, &ToolCall::new(call_id, name, Value::Null));
                    attempt.calls.remove(&result.call_id);
                }
                attempt.results.insert(result.call_id.clone());
                attempt.client_calls.remove(&result.call_id);
                let run = attempt.run.clone();
                let is_sub_agents = result.name.contains(sub_agent::TOOL)
                    && !self.has_earlier_result(&run, &result.call_id)
                    && sub_agent::is_at_work_for(self.queue.path(), &run, &result.call_id);
                if !is_sub_agents {
                    self.result(&run, &result);
                }
            }
            Output::Status(status) => push_status(attempt, &mut self.outbox, status),
            Output::Asks(asked) => self.permission_asked(asked),
            Output::Withdrawn(program_id) => self.permission_withdrawn(&program_id),
            Output::Done(done) => self.done(done),
        }
    }

    /// Whether a result from before this attempt has the key of the call's result: a sub-agent cannot store its own then.
    fn has_earlier_result(&mut self, run: &Run, call_id: &str) -> bool {
        let begun = self.runs.get(run.reply_to).map_or(0, |open| open.last_begun);
        let Ok(key) = result_key(call_id) else { return true };
        matches!(result_of(&mut self.queue, &key, call_id), Ok(Some(id)) if id <= begun)
    }

    /// Notes that the program printed something while no answer was due.
    pub(super) fn stray(&mut self) {
        if let Some(running) = &mut self.running {
            running.strayed = true;
        }
    }

    /// Pushes the result of a call, unless a sub-agent has pushed one already. Call ids are the program's own
    /// and may be used again in a later attempt: then the key belongs to the earlier result, and this one has
    /// none.
    pub(super) fn result(&mut self, run: &Run, result: &ToolResult) {
        self.result_event(run, &result.call_id, run.tool_result(result));
    }

    pub(super) fn result_event(&mut self, run: &Run, call_id: &str, event: NewEvent<'static>) {
        let begun = self.runs.get(run.reply_to).map_or(0, |open| open.last_begun);
        // A key that is too long is left out.
        let Ok(key) = result_key(call_id) else { return self.outbox.event(event) };
        match result_of(&mut self.queue, &key, call_id) {
            Ok(Some(id)) if id > begun => {}
            Ok(Some(_)) => self.outbox.event(event),
            _ => self.outbox.event(event.keyed(key)),
        }
    }

    /// Notes that a call of one of the client's tools is stored.
    pub(super) fn client_called(&mut self, call_id: &str, event_id: i64) {
        let calls = self.attempt.as_mut().map(|attempt| &mut attempt.client_calls);
        if let Some(call) = calls.and_then(|calls| calls.get_mut(call_id)) {
            call.event_id = Some(event_id);
        }
    }

    /// Gives the program the result of one of the client's tools, once it is stored.
    pub(super) fn client_answered(&mut self, result: &ToolResult, input: &ClientInput) {
        let Some(attempt) = &mut self.attempt else { return };
        if attempt.client_calls.remove(&result.call_id).is_none() {
            return;
        }
        attempt.calls.remove(&result.call_id);
        attempt.results.insert(result.call_id.clone());
        attempt.last_output = Instant::now();
        let mut out = Vec::new();
        self.options.protocol.tool_result(result, input, &mut out);
        if let Some(running) = &self.running {
            running.program.send(out);
        }
    }

    /// Gives calls of the client's tools an error if they get no answer: they timed out, or the user sent
    /// another message.
    pub(super) fn give_up_client_calls(&mut self) {
        let Some(attempt) = &mut self.attempt else { return };
        let newest = self.runs.iter().filter(|run| run.priority != Priority::Later).map(OpenRun::id).max();
        let (run, now) = (attempt.run.clone(), Instant::now());
        let mut given_up = Vec::new();
        for (call_id, call) in &mut attempt.client_calls {
            let error = match call.event_id {
                Some(id) if newest > Some(id) => "the user went on without it",
                Some(_) if call.until <= now => "the client gave no result in time",
                _ => continue,
            };
            // The program gets it once it is stored, like any result.
            call.event_id = None;
            given_up.push(ToolResult::new(&**call_id, &*call.name, Err(error.to_owned())));
        }
        for result in given_up {
            self.result(&run, &result);
        }
    }

    /// Tells the user something that is no part of the answer.
    fn note_for_user(&mut self, text: String) {
        self.warn(&text);
        let Some(attempt) = &mut self.attempt else { return };
        self.outbox.text(Kind::Thinking, attempt, format!("{text}\n"));
    }

    fn done(&mut self, done: Done) {
        let Some(attempt) = &mut self.attempt else { return };
        if let Done::Broken(error) = done {
            if attempt.ending.is_none() {
                self.end(Why::Failed { error, retryable: true });
            }
            return;
        }
        attempt.done = Some(done);
    }
}

/// How much of an attempt's output this is, in bytes.
fn size_of(output: &Output) -> u64 {
    let size = match output {
        Output::Token(text) | Output::Thinking(text) => text.len(),
        Output::Part(value) | Output::Plan(value) | Output::State(value) | Output::StateDelta(value) => {
            value.to_string().len()
        }
        Output::Call(call) => {
            let title = call.title.as_ref().map_or(0, String::len);
            let values = call.arguments.to_string().len() + call.locations.to_string().len();
            call.call_id.len() + call.name.len() + title + values
        }
        Output::Result(ToolResult { call_id, name, outcome, content }) => {
            let outcome = outcome.as_ref().map_or_else(String::len, |result| result.to_string().len());
            let content = content.to_string().len().min(MAX_RESULT);
            call_id.len() + name.len() + outcome.min(MAX_RESULT) + content
        }
        Output::Asks(asked) => {
            let choices = asked.choices.iter().map(|choice| choice.id.len() + choice.name.len());
            asked.title.len()
                + asked.arguments.to_string().len()
                + asked.details.len()
                + choices.sum::<usize>()
        }
        Output::Turn(turn) => turn.message.values().map(|value| value.to_string().len()).sum(),
        Output::Messages(messages) => messages.iter().map(|message| message.to_string().len()).sum(),
        Output::Note(text) | Output::Summary { text, .. } => text.len(),
        Output::TooLong(_)
        | Output::Status(_)
        | Output::Withdrawn(_)
        | Output::Session(_)
        | Output::Commands(_)
        | Output::Options(_)
        | Output::Used(_)
        | Output::RetryAfter(_)
        | Output::Tools
        | Output::Done(_) => 0,
    };
    size as u64
}

pub fn too_long() -> String {
    format!("the answer is longer than {} MiB", LONGEST_ANSWER >> 20)
}

/// Pushes a tool call.
pub fn push_call(attempt: &mut Attempt, outbox: &mut Outbox, call: &ToolCall) {
    attempt.calls.insert(call.call_id.clone(), call.name.clone());
    push_status(attempt, outbox, Status::ExecutingTool);
    if attempt.client_tools.contains(&call.name) {
        attempt.client_calls.insert(call.call_id.clone(), ClientCall::new(&call.name, None));
        outbox.event(attempt.run.client_tool_call(call));
    } else {
        outbox.event(attempt.run.tool_call(call));
    }
}

/// Pushes what the agent is doing, if that has changed.
pub fn push_status(attempt: &mut Attempt, outbox: &mut Outbox, status: Status) {
    if attempt.status.replace(status) != Some(status) {
        outbox.event(attempt.run.status(status));
    }
}
