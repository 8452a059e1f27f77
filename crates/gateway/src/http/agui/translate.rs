//! Translates the events of one run to AG-UI.
//!
//! The input is the session's events from the message on. The output, ids included, depends only on them and on
//! where the stream begins, so a resumed stream continues exactly where it was interrupted.
//!
//! A stream ends before its run where the agent waits for the client: at a request for permission, and at a call of
//! one of the client's own tools. The client continues the run in another stream, which begins after that event,
//! and reopens what is still open.

use std::collections::HashSet;

use serde_json::{Value, json};
use thread::model::time;
use thread_conversation::{
    Answer, Asked, Change, ClientInput, Ending, Entry, Outcome as How, Permission, RunView, parts_of,
};

use super::writer::{Version, Writer};
use crate::session::event::SessionEvent;

/// What a stream shows of the run of a message, or of one that the agent has begun itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// The message, or the event with which a client continues its run.
    pub event: i64,
    /// Of a run that the agent has begun itself, the event that began it.
    pub message: i64,
    /// Events of the run up to this one belong to earlier streams.
    pub shown: i64,
}

impl Start {
    /// From the beginning.
    pub fn of_message(id: i64) -> Start {
        Start { event: id, message: id, shown: id - 1 }
    }

    /// What an event begins; `None` if nothing.
    pub fn of(stored: &SessionEvent) -> Option<Start> {
        match stored.record.entry {
            // Also a run that the agent begins itself.
            Entry::Message(_) | Entry::RunStarted { reply_to: None, .. } => {
                Some(Start::of_message(stored.id()))
            }
            Entry::Continued { reply_to, after } if (1..stored.id()).contains(&reply_to) => {
                Some(Start { event: stored.id(), message: reply_to, shown: after })
            }
            _ => None,
        }
    }
}

/// What a run was waiting for when its stream began. Requests answered by then do not end the stream.
#[derive(Debug, Default)]
pub struct PendingInput {
    /// The last event that was there.
    pub upto: i64,
    /// Requests for permission, by their ids.
    pub permissions: HashSet<String>,
    /// Calls, by the program's ids.
    pub calls: HashSet<String>,
}

/// Whether the stream continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    GoesOn,
    Ended,
}

/// Why a stream is over, though nothing failed.
enum Outcome {
    Success,
    /// By whom, or why.
    Cancelled(String),
    /// The calls that wait for the client.
    Pending(Vec<String>),
    Interrupt(Vec<Value>),
}

pub struct Translator {
    thread_id: String,
    /// The client's name for what the stream shows of the run.
    run_id: String,
    start: Start,
    /// The client has everything up to this event.
    after: i64,
    pending: PendingInput,
    /// Where the content of an event is that is too large to be shown.
    content_url: Box<dyn Fn(i64) -> String + Send>,
    view: RunView,
    /// Whether `RUN_STARTED` was sent.
    begun: bool,
    to: Writer,
}

impl Translator {
    /// For what a stream shows of a run. `thread_id` and `run_id` are the client's names; it has everything up to
    /// the event `after`.
    pub fn new(
        version: Version,
        thread_id: String,
        run_id: String,
        (start, after): (Start, i64),
        pending: PendingInput,
        content_url: impl Fn(i64) -> String + Send + 'static,
    ) -> Translator {
        let (content_url, view) = (Box::new(content_url), RunView::of(start.message));
        let (begun, to) = (false, Writer::new(version));
        Translator { thread_id, run_id, start, after, pending, content_url, view, begun, to }
    }

    /// What the stream shows.
    pub fn start(&self) -> Start {
        self.start
    }

    /// The message, while its run has not started.
    pub fn waits_for(&self) -> Option<i64> {
        (!self.view.has_started()).then_some(self.start.message)
    }

    /// How many runs are before this one.
    pub fn queued(&mut self, position: usize) -> Value {
        self.to.at(&time::now());
        self.to.custom("queued", json!({ "position": position }));
        self.to.take().pop().unwrap_or_default()
    }

    /// Translates the next event.
    pub fn feed(&mut self, stored: &SessionEvent) -> (Vec<Value>, Run) {
        self.to.at(&stored.record.event.created_at);
        let run = self.translate(stored);
        (self.to.take(), run)
    }

    fn translate(&mut self, stored: &SessionEvent) -> Run {
        let (id, record) = (stored.id(), &stored.record);
        if id < self.start.message {
            return Run::GoesOn;
        }
        let ends = stored.ends == Some(self.start.message);
        self.view.begin(record);
        if !ends && !self.begun && id <= self.start.shown {
            // The client has seen it in an earlier stream.
            self.show(stored);
            self.to.take();
            return Run::GoesOn;
        }
        self.begin();
        if ends {
            self.end(stored);
            return Run::Ended;
        }
        if id == self.start.event {
            let input = record.input();
            for note in input.get(ClientInput::UNSUPPORTED).and_then(Value::as_array).into_iter().flatten() {
                self.to.custom("unsupported", note.clone());
            }
        }
        match self.show(stored) {
            Some(outcome) => {
                self.finish(outcome, None);
                Run::Ended
            }
            None => Run::GoesOn,
        }
    }

    /// Begins the stream, and opens again what an earlier one has closed.
    fn begin(&mut self) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        self.to.close();
        self.to.take();
        let parent = self.view.input.get(ClientInput::PARENT_RUN_ID);
        let parent = parent.filter(|_| self.start.event == self.start.message);
        self.to.run_started(&self.thread_id, &self.run_id, parent);
        for (id, call) in self.view.open_calls().filter(|(_, call)| !call.for_client) {
            self.to.call_again(id, &call.name);
        }
        for (id, parent) in self.view.open_sub_agents() {
            self.to.sub_agent_started(id, parent);
        }
    }

    /// Shows an event that does not end the run. Returns why the stream is over, if it is.
    fn show(&mut self, stored: &SessionEvent) -> Option<Outcome> {
        let (id, record) = (stored.id(), &stored.record);
        if matches!(record.entry, Entry::Continued { .. }) && id == self.start.event {
            if let Some(state) = record.input().0.shift_remove(ClientInput::STATE) {
                self.view.state = state;
            }
            let open = self.interrupts();
            let stops = !open.is_empty() && self.stops(id, true);
            return stops.then_some(Outcome::Interrupt(open));
        }
        let change = self.view.apply(record);
        if let Some(bytes) = stored.large.filter(|_| change.is_none() && self.view.has(record)) {
            let (event, url) = (&record.event, (self.content_url)(id));
            let value = json!({ "type": event.kind, "subtype": event.subtype, "bytes": bytes, "url": url });
            self.to.custom("large", value);
        }
        let to = &mut self.to;
        match change? {
            Change::Attempt { number, restored } => {
                // What an attempt that was cut off has said is a message of its own.
                to.close();
                to.custom("attempt", json!({ "attempt": number }));
                if restored {
                    to.state(&self.view.state);
                }
            }
            Change::Text { text, message_id } => to.text(id, message_id, text),
            Change::Thinking(text) => to.reasoning(id, text),
            Change::Called { id: call_id, call, is_new } => {
                to.close();
                to.call(&call_id, call, is_new, None);
                let is_open = self.pending.calls.contains(&call.call_id);
                let stops = is_new && record.for_client && self.stops(id, is_open);
                return stops.then(|| Outcome::Pending(vec![call_id]));
            }
            Change::Returned { id: call_id, result, ends } => {
                to.close();
                for sub in ends {
                    match &result.outcome {
                        Ok(result) => to.sub_agent_finished(&sub, Some(result)),
                        Err(why) => to.sub_agent_failed(&sub, why, "run_failed"),
                    }
                }
                to.result(&call_id, result, id, None);
            }
            Change::Status(status) => to.custom("status", json!({ "status": status.as_str() })),
            Change::Plan(entries) => to.custom("plan", json!({ "entries": entries })),
            Change::State(state) => to.state(state),
            Change::StateDelta(delta) => {
                let patch =
                    serde_json::from_value::<json_patch::Patch>(delta.clone()).map_err(|e| e.to_string());
                let apply = |state: &mut Value| json_patch::patch(state, &patch?).map_err(|e| e.to_string());
                match self.view.patch(apply) {
                    Ok(()) => to.push(json!({ "type": "STATE_DELTA", "delta": delta })),
                    // It would fail at the client, too.
                    Err(e) => to.custom("unsupported", json!({ "field": "state_delta", "reason": e })),
                }
            }
            Change::Unsupported(fields) => {
                for field in fields {
                    let reason = "the agent's protocol cannot take it";
                    to.custom("unsupported", json!({ "field": camel(field), "reason": reason }));
                }
            }
            Change::AttemptFailed { error, ends } => {
                to.close();
                for sub in ends {
                    to.sub_agent_failed(&sub, error, "attempt_failed");
                }
                to.custom("attempt_failed", json!({ "message": error }));
            }
            Change::Asked(asked) => return self.permission(id, asked),
            Change::Permitted(answer) => {
                let value = json!({ "requestId": answer.request_id, "choice": answer.choice });
                to.custom("permission", value);
            }
            Change::SubAgent { told, parent, did } => to.sub_agent(id, told, &parent, did),
        }
        None
    }

    /// Whether a stream ends where the agent waits for the client. `is_open`: it was still waiting when the stream
    /// began.
    fn stops(&self, id: i64, is_open: bool) -> bool {
        // A client that has later events was not stopped there.
        id == self.after || id > self.after && (id > self.pending.upto || is_open)
    }

    fn permission(&mut self, id: i64, asked: &Permission) -> Option<Outcome> {
        let is_open = self.pending.permissions.contains(&asked.request_id);
        if self.to.version() != Version::Zero && self.stops(id, is_open) {
            return Some(Outcome::Interrupt(self.interrupts()));
        }
        let request = self.view.request(&asked.request_id)?;
        let mut about = about(asked);
        about["requestId"] = asked.request_id.clone().into();
        about["title"] = asked.title.clone().into();
        about["toolCallId"] = request.call_id.clone().into();
        self.to.custom("permission", about);
        None
    }

    /// The open requests for permission.
    fn interrupts(&self) -> Vec<Value> {
        let is_open = |asked: &&Asked| {
            asked.event_id > self.pending.upto
                || self.pending.permissions.contains(&asked.permission.request_id)
        };
        match self.to.version() {
            Version::Zero => Vec::new(),
            _ => self.view.asked().filter(is_open).map(interrupt).collect(),
        }
    }

    /// Ends the stream with its run.
    fn end(&mut self, stored: &SessionEvent) {
        let Some(Ending { outcome, text, .. }) = stored.record.entry.ending() else { return };
        let mut tokens = None;
        let outcome = match outcome {
            How::Failed => {
                self.to.close();
                for (id, _) in self.view.open_sub_agents() {
                    self.to.sub_agent_failed(id, text, "run_failed");
                }
                let error = json!({ "type": "RUN_ERROR", "message": text, "code": "run_failed" });
                return self.to.push(error);
            }
            How::Cancelled => {
                self.to.custom("cancelled", json!({ "message": text }));
                Outcome::Cancelled(text.to_owned())
            }
            How::Answered => {
                if let Entry::Answer { answer, .. } = &stored.record.entry {
                    tokens = answer.total_tokens;
                    self.answer(stored.id(), answer);
                }
                Outcome::Success
            }
        };
        if let Some(bytes) = stored.large {
            self.to.custom("large", json!({ "bytes": bytes, "url": (self.content_url)(stored.id()) }));
        }
        self.finish(outcome, tokens);
    }

    /// Shows what has not been streamed of an answer.
    fn answer(&mut self, id: i64, answer: &Answer) {
        let is_streamed = self.view.has_streamed(&answer.content);
        let parts = parts_of(&answer.content).filter(|_| !is_streamed).unwrap_or_default();
        let text = match parts.is_empty() {
            true => answer.content.clone(),
            false => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        };
        if !text.is_empty() && !self.view.has_streamed(&text) {
            self.to.close();
            // It was not streamed, or differs from what was streamed.
            self.to.text(id, answer.message_id.as_deref(), &text);
        }
        // A message of an assistant is text.
        if parts.iter().any(|part| part["type"] != "text") {
            self.to.custom("parts", json!({ "messageId": answer.message_id, "parts": parts }));
        }
    }

    /// Ends the stream, with the tokens that the run has used, if they are known.
    fn finish(&mut self, outcome: Outcome, tokens: Option<u64>) {
        self.to.close();
        for (id, _) in self.view.open_sub_agents() {
            match &outcome {
                Outcome::Cancelled(why) => self.to.sub_agent_failed(id, why, "cancelled"),
                _ => self.to.sub_agent_suspended(id),
            }
        }
        let version = self.to.version();
        let outcome = match (outcome, version) {
            (_, Version::Zero) | (Outcome::Cancelled(_), Version::Early) => None,
            (Outcome::Cancelled(_), _) => Some(json!({ "type": "cancelled" })),
            (Outcome::Interrupt(interrupts), _) => {
                Some(json!({ "type": "interrupt", "interrupts": interrupts }))
            }
            (Outcome::Pending(calls), Version::One) => {
                Some(json!({ "type": "success", "pendingToolCallIds": calls }))
            }
            (Outcome::Success | Outcome::Pending(_), _) => Some(json!({ "type": "success" })),
        };
        let mut finished =
            json!({ "type": "RUN_FINISHED", "threadId": self.thread_id, "runId": self.run_id });
        if let Some(outcome) = outcome {
            finished["outcome"] = outcome;
        }
        if let Some(tokens) = tokens.filter(|_| version != Version::Zero) {
            finished["usage"] = json!([{ "totalTokens": tokens }]);
        }
        self.to.push(finished);
    }
}

/// A request for permission as an interrupt of AG-UI.
fn interrupt(Asked { at, permission, call_id, call_is_known, .. }: &Asked) -> Value {
    let mut interrupt = json!({
        "id": permission.request_id,
        "reason": if *call_is_known { "tool_call" } else { "confirmation" },
        "message": permission.title,
        "responseSchema": response_schema(permission),
        "metadata": { "thread": about(permission) },
    });
    if let Some(call_id) = call_id.as_ref().filter(|_| *call_is_known) {
        interrupt["toolCallId"] = call_id.clone().into();
    }
    if let Some((asked_at, wait)) = time::parse(at).zip(permission.wait()) {
        interrupt["expiresAt"] = time::format(asked_at + wait).into();
    }
    interrupt
}

/// What people need to know to answer.
fn about(Permission { arguments, details, choices, .. }: &Permission) -> Value {
    json!({ "arguments": arguments, "details": details, "choices": choices })
}

/// What an answer to a request for permission looks like, as a JSON Schema.
fn response_schema(asked: &Permission) -> Value {
    let ids: Vec<&str> = asked.choices.iter().map(|choice| &*choice.id).collect();
    let named: Vec<Value> =
        asked.choices.iter().map(|choice| json!({ "const": choice.id, "title": choice.name })).collect();
    json!({
        "type": "object",
        "properties": { "choice": { "type": "string", "enum": ids, "oneOf": named } },
        "required": ["choice"],
    })
}

/// A field's name in the client's input.
pub fn camel(field: &str) -> &str {
    if field == ClientInput::FORWARDED_PROPS { "forwardedProps" } else { field }
}

#[cfg(test)]
mod protocol;
#[cfg(test)]
mod schedules;
#[cfg(test)]
mod tests;
