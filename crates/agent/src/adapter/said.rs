//! What the program says, as events.

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
pub struct Unsaid(Vec<One>);

#[derive(Debug)]
enum One {
    Token(Run, String, String),
    Thinking(Run, String, String),
    Event(NewEvent<'static>),
}

impl Unsaid {
    pub fn event(&mut self, event: NewEvent<'static>) {
        self.0.push(One::Event(event));
    }

    fn token(&mut self, attempt: &Attempt, text: String) {
        match self.0.last_mut() {
            Some(One::Token(.., before)) => before.push_str(&text),
            _ => self.0.push(One::Token(attempt.run.clone(), attempt.message_id.clone(), text)),
        }
    }

    fn thinking(&mut self, attempt: &Attempt, text: String) {
        match self.0.last_mut() {
            Some(One::Thinking(.., before)) => before.push_str(&text),
            _ => self.0.push(One::Thinking(attempt.run.clone(), attempt.message_id.clone(), text)),
        }
    }

    pub fn take(&mut self) -> Vec<NewEvent<'static>> {
        let event = |one| match one {
            One::Token(run, message_id, text) => run.token(&message_id, text),
            One::Thinking(run, message_id, text) => run.thinking(&message_id, text),
            One::Event(event) => event,
        };
        std::mem::take(&mut self.0).into_iter().map(event).collect()
    }
}

impl Adapter {
    /// Takes what the program says. What it says when it owes no answer is nobody's.
    pub(super) fn said(&mut self, said: Said) {
        if let Said::Session(id) = said {
            if self.session.as_ref() != Some(&id) {
                self.unsaid.event(session(self.options.protocol.name(), &id));
            }
            return;
        }
        let Some(attempt) = &mut self.attempt else { return };
        // One that is being ended says no more; but a call that it has begun gets its result.
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
                show(attempt, &mut self.unsaid, Status::Streaming);
                self.unsaid.token(attempt, text);
            }
            Said::Thinking(text) => {
                show(attempt, &mut self.unsaid, Status::Thinking);
                self.unsaid.thinking(attempt, text);
            }
            Said::Call(call) => {
                call_of(attempt, &mut self.unsaid, &call);
            }
            Said::Result(result) => {
                if !attempt.calls.remove(&result.call_id) {
                    // The call came when the attempt was being ended, and was not told.
                    if attempt.ending.is_some() {
                        return;
                    }
                    let ToolResult { call_id, name, .. } = result.clone();
                    call_of(attempt, &mut self.unsaid, &ToolCall { call_id, name, arguments: Value::Null });
                    attempt.calls.remove(&result.call_id);
                }
                let run = attempt.run.clone();
                self.result(&run, &result);
            }
            Said::Status(status) => show(attempt, &mut self.unsaid, status),
            Said::Asks(asked) => self.asks(asked),
            Said::Done(done) => self.done(done),
        }
    }

    /// The result of a call, unless a sub-agent's was there first. Ids of calls are the program's own and
    /// may come again in another run, where the key belongs to the earlier one.
    pub(super) fn result(&mut self, run: &Run, result: &ToolResult) {
        let begun = self.agenda.turn(run.reply_to).map_or(0, |turn| turn.last_begun);
        let key = result_key(&result.call_id);
        let event = run.tool_result(result);
        match self.queue.store().id_of_key(&key) {
            Ok(Some(id)) if id > begun => {}
            Ok(Some(_)) => self.unsaid.event(event),
            // Too long a key cannot be stored.
            _ => self.unsaid.event(event.clone().with_key(key).unwrap_or(event)),
        }
    }

    fn asks(&mut self, asked: Permission) {
        let Some(attempt) = &mut self.attempt else { return };
        let of_kind = |word: &str| {
            asked.choices.iter().find(|choice: &&Choice| choice.kind.starts_with(word)).map(|c| c.id.clone())
        };
        match self.options.permit {
            Permit::Ask => {
                attempt.requests += 1;
                let request_id = format!("perm_{}_{}", &attempt.message_id, attempt.requests);
                let theirs = asked.request_id.clone();
                attempt.asked.push(Asked::new(request_id.clone(), theirs, asked.choices.clone()));
                let event = attempt.run.permission(&Permission { request_id, ..asked });
                self.unsaid.event(event);
            }
            Permit::Allow => self.permit(&asked.request_id, of_kind("allow").as_deref()),
            Permit::Reject => self.permit(&asked.request_id, of_kind("reject").as_deref()),
        }
    }

    /// Somebody has answered a request.
    pub(super) fn permitted(&mut self, request_id: &str, choice: &str) {
        let Some(attempt) = &mut self.attempt else { return };
        let known = |asked: &Asked| {
            asked.request_id == request_id && asked.choices.iter().any(|one| one.id == choice)
        };
        let Some(at) = attempt.asked.iter().position(known) else { return };
        let asked = attempt.asked.remove(at);
        attempt.last_output = Instant::now();
        self.permit(&asked.theirs, Some(choice));
    }

    /// Rejects what nobody has answered in time.
    pub(super) fn reject_overdue(&mut self) {
        let Some(attempt) = &mut self.attempt else { return };
        let now = Instant::now();
        let overdue: Vec<Asked> = attempt.asked.extract_if(.., |asked| asked.until <= now).collect();
        for asked in overdue {
            let reject = asked.choices.iter().find(|choice| choice.kind.starts_with("reject"));
            self.permit(&asked.theirs, reject.map(|choice| choice.id.as_str()));
        }
    }

    fn permit(&mut self, theirs: &str, choice: Option<&str>) {
        let mut out = Vec::new();
        self.options.protocol.permit(theirs, choice, &mut out);
        if let Some(kept) = &self.kept {
            kept.program.send(out);
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

/// Tells a call.
fn call_of(attempt: &mut Attempt, unsaid: &mut Unsaid, call: &ToolCall) {
    attempt.calls.insert(call.call_id.clone());
    show(attempt, unsaid, Status::ExecutingTool);
    unsaid.event(attempt.run.tool_call(call));
}

/// Says what the agent is doing, if that has changed.
pub fn show(attempt: &mut Attempt, unsaid: &mut Unsaid, status: Status) {
    if attempt.status.replace(status) != Some(status) {
        unsaid.event(attempt.run.status(status));
    }
}
