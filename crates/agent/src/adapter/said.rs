//! Turning the program's output into events.

use std::time::Instant;

use serde_json::Value;
use thread::NewEvent;

use super::attempt::{Asked, Attempt, Why};
use super::{Adapter, Permit};
use crate::conversation::{Choice, Permission, Run, Status, ToolCall, ToolResult, result_key, session};
use crate::protocol::{Done, Said};

/// The longest answer, in bytes.
pub const LONGEST_ANSWER: usize = 16 * 1024 * 1024;

/// Events that are not stored yet, in order.
#[derive(Debug, Default)]
pub struct Outbox(Vec<Item>);

#[derive(Debug)]
enum Item {
    Token(Run, String, String),
    Thinking(Run, String, String),
    Event(NewEvent<'static>),
}

impl Outbox {
    pub fn event(&mut self, event: NewEvent<'static>) {
        self.0.push(Item::Event(event));
    }

    fn token(&mut self, attempt: &Attempt, text: String) {
        match self.0.last_mut() {
            Some(Item::Token(.., before)) => before.push_str(&text),
            _ => self.0.push(Item::Token(attempt.run.clone(), attempt.message_id.clone(), text)),
        }
    }

    fn thinking(&mut self, attempt: &Attempt, text: String) {
        match self.0.last_mut() {
            Some(Item::Thinking(.., before)) => before.push_str(&text),
            _ => self.0.push(Item::Thinking(attempt.run.clone(), attempt.message_id.clone(), text)),
        }
    }

    pub fn take(&mut self) -> Vec<NewEvent<'static>> {
        let event = |item| match item {
            Item::Token(run, message_id, text) => run.token(&message_id, text),
            Item::Thinking(run, message_id, text) => run.thinking(&message_id, text),
            Item::Event(event) => event,
        };
        std::mem::take(&mut self.0).into_iter().map(event).collect()
    }
}

impl Adapter {
    /// Handles the program's output. Apart from its session, output is dropped while no answer is due.
    pub(super) fn said(&mut self, said: Said) {
        if let Said::Session(id) = said {
            if self.session.as_ref() != Some(&id) {
                self.outbox.event(session(self.options.protocol.name(), &id));
            }
            return;
        }
        let Some(attempt) = &mut self.attempt else { return };
        // While the attempt is being ended, only results of its calls are still pushed.
        if attempt.ending.is_some() && !matches!(said, Said::Result(_) | Said::Done(_)) {
            if let Said::Asks(asked) = said {
                self.permit(&asked.request_id, None);
            }
            return;
        }
        match said {
            Said::Session(_) => {}
            Said::Token(text) => {
                if attempt.text.len() + text.len() > LONGEST_ANSWER {
                    return self.end(Why::Failed { error: too_long(), retryable: false });
                }
                attempt.text.push_str(&text);
                push_status(attempt, &mut self.outbox, Status::Streaming);
                self.outbox.token(attempt, text);
            }
            Said::Thinking(text) => {
                push_status(attempt, &mut self.outbox, Status::Thinking);
                self.outbox.thinking(attempt, text);
            }
            Said::Call(call) => {
                push_call(attempt, &mut self.outbox, &call);
            }
            Said::Result(result) => {
                if !attempt.calls.remove(&result.call_id) {
                    // Either the call came while the attempt was being ended, and was not pushed, or this is a
                    // second result: the first one counts.
                    if attempt.ending.is_some() || attempt.results.contains(&result.call_id) {
                        return;
                    }
                    let ToolResult { call_id, name, .. } = result.clone();
                    push_call(attempt, &mut self.outbox, &ToolCall { call_id, name, arguments: Value::Null });
                    attempt.calls.remove(&result.call_id);
                }
                attempt.results.insert(result.call_id.clone());
                let run = attempt.run.clone();
                self.result(&run, &result);
            }
            Said::Status(status) => push_status(attempt, &mut self.outbox, status),
            Said::Asks(asked) => self.permission_asked(asked),
            Said::Done(done) => self.done(done),
        }
    }

    /// Pushes the result of a call, unless a sub-agent has pushed one already. Call ids are the program's own
    /// and may be used again in a later attempt: then the key belongs to the earlier result, and this one has
    /// none.
    pub(super) fn result(&mut self, run: &Run, result: &ToolResult) {
        let begun = self.agenda.turn(run.reply_to).map_or(0, |turn| turn.last_begun);
        let key = result_key(&result.call_id);
        let event = run.tool_result(result);
        match self.queue.store().id_of_key(&key) {
            Ok(Some(id)) if id > begun => {}
            Ok(Some(_)) => self.outbox.event(event),
            // A key that is too long is left out.
            _ => self.outbox.event(event.clone().with_key(key).unwrap_or(event)),
        }
    }

    fn permission_asked(&mut self, asked: Permission) {
        let Some(attempt) = &mut self.attempt else { return };
        let of_kind = |word: &str| {
            asked.choices.iter().find(|choice: &&Choice| choice.kind.starts_with(word)).map(|c| c.id.clone())
        };
        match self.options.permit {
            Permit::Ask => {
                attempt.requests += 1;
                let request_id = format!("perm_{}_{}", &attempt.message_id, attempt.requests);
                let program_id = asked.request_id.clone();
                attempt.asked.push(Asked::new(request_id.clone(), program_id, asked.choices.clone()));
                let event = attempt.run.permission(&Permission { request_id, ..asked });
                self.outbox.event(event);
            }
            Permit::Allow => self.permit(&asked.request_id, of_kind("allow").as_deref()),
            Permit::Reject => self.permit(&asked.request_id, of_kind("reject").as_deref()),
        }
    }

    /// Handles an answer to a request for permission.
    pub(super) fn permission_answered(&mut self, request_id: &str, choice: &str) {
        let Some(attempt) = &mut self.attempt else { return };
        let known = |asked: &Asked| {
            asked.request_id == request_id && asked.choices.iter().any(|one| one.id == choice)
        };
        let Some(at) = attempt.asked.iter().position(known) else { return };
        let asked = attempt.asked.remove(at);
        attempt.last_output = Instant::now();
        self.permit(&asked.program_id, Some(choice));
    }

    /// Rejects requests that were not answered in time.
    pub(super) fn reject_overdue(&mut self) {
        let Some(attempt) = &mut self.attempt else { return };
        let now = Instant::now();
        let overdue: Vec<Asked> = attempt.asked.extract_if(.., |asked| asked.until <= now).collect();
        for asked in overdue {
            let reject = asked.choices.iter().find(|choice| choice.kind.starts_with("reject"));
            self.permit(&asked.program_id, reject.map(|choice| choice.id.as_str()));
        }
    }

    fn permit(&mut self, program_id: &str, choice: Option<&str>) {
        let mut out = Vec::new();
        self.options.protocol.permit(program_id, choice, &mut out);
        if let Some(running) = &self.running {
            running.program.send(out);
        }
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

pub fn too_long() -> String {
    format!("the answer is longer than {} MiB", LONGEST_ANSWER >> 20)
}

/// Pushes a tool call.
fn push_call(attempt: &mut Attempt, outbox: &mut Outbox, call: &ToolCall) {
    attempt.calls.insert(call.call_id.clone());
    push_status(attempt, outbox, Status::ExecutingTool);
    outbox.event(attempt.run.tool_call(call));
}

/// Pushes what the agent is doing, if that has changed.
pub fn push_status(attempt: &mut Attempt, outbox: &mut Outbox, status: Status) {
    if attempt.status.replace(status) != Some(status) {
        outbox.event(attempt.run.status(status));
    }
}
