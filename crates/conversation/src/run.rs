//! The events that the agent's side writes in answer to a message.

use std::hash::BuildHasher;

use serde_json::{Value, json};
use thread::NewEvent;
use thread::model::event::Type;
use thread::model::key::IdempotencyKey;

use crate::metadata::Metadata;
use crate::record::{Failure, Started, Summary};
use crate::{
    Answer, ClientInput, ModelTurn, Permission, PermissionAnswer, Record, Status, ToolCall, ToolResult,
    own_event, text, with_metadata,
};

/// The maximum part of an unfinished answer that the ending of a run keeps, in bytes.
pub const MAX_PARTIAL: usize = 1024 * 1024;

/// The key of the ending of the run that answers this event.
pub fn end_key(event_id: i64) -> IdempotencyKey<'static> {
    IdempotencyKey::of_event("end", event_id)
}

/// A run. Its methods make the events that the agent's side writes in answer to one message.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Run {
    pub run_id: String,
    /// The id of the message that it answers; of a run that the agent began itself, of the event that began it.
    pub reply_to: i64,
    /// The number of the attempt that writes; the first is 1. 0 outside of any: then it is left out.
    pub attempt: u64,
    /// The agent began it itself, unasked: it answers no message.
    pub is_own: bool,
}

impl Run {
    /// A run that the agent begins itself. It has one attempt, and is known by the event that begins it, once that is
    /// stored.
    pub fn own() -> Run {
        let run_id = format!("run_{:016x}", std::hash::RandomState::new().hash_one(std::process::id()));
        Run { run_id, reply_to: 0, attempt: 1, is_own: true }
    }

    /// Whether a record belongs to this attempt.
    pub fn has(&self, record: &Record) -> bool {
        record.run_id.as_ref() == Some(&self.run_id) && record.attempt == self.attempt
    }

    /// The beginning of the attempt.
    pub fn started(&self) -> NewEvent<'static> {
        let reply_to = (!self.is_own).then_some(self.reply_to);
        let content = text(&Started { status: "started", attempt: self.attempt });
        self.record("run", content, Metadata { reply_to, ..self.metadata() })
    }

    /// A piece of the answer.
    pub fn token(&self, message_id: &str, text: impl Into<String>) -> NewEvent<'static> {
        self.record("token", text.into(), self.part_of(message_id))
    }

    /// A piece of the agent's thinking.
    pub fn thinking(&self, message_id: &str, text: impl Into<String>) -> NewEvent<'static> {
        self.record("thinking", text.into(), self.part_of(message_id))
    }

    pub fn tool_call(&self, call: &ToolCall) -> NewEvent<'static> {
        self.record("toolcall", text(call), self.metadata())
    }

    /// A call of one of the client's tools, whose result the client gives.
    pub fn client_tool_call(&self, call: &ToolCall) -> NewEvent<'static> {
        self.record("toolcall", text(call), Metadata { for_client: true, ..self.metadata() })
    }

    /// The result of a call. One that is longer than [`MAX_RESULT`](crate::MAX_RESULT) becomes text, and is cut; such
    /// content is left out.
    pub fn tool_result(&self, result: &ToolResult) -> NewEvent<'static> {
        self.record("toolresult", text(&result.kept()), self.metadata())
    }

    /// The result of one of a client's tools, given by that client, with further input for the agent.
    pub fn client_tool_result(
        &self,
        client: &str,
        result: &ToolResult,
        input: ClientInput,
    ) -> NewEvent<'static> {
        let metadata = Metadata { client: Some(client.to_owned()), run_input: input, ..self.metadata() };
        self.record("toolresult", text(&result.kept()), metadata)
    }

    /// Closes a call whose result the program never reported; the outcome gives the reason.
    pub fn unreported_result(&self, result: &ToolResult) -> NewEvent<'static> {
        self.record("toolresult", text(&result.kept()), Metadata { unreported: true, ..self.metadata() })
    }

    /// A turn that a model has finished.
    pub fn model(&self, message_id: &str, turn: &ModelTurn) -> NewEvent<'static> {
        self.record("model", text(turn), self.part_of(message_id))
    }

    /// The agent is given this message while it works on the run's own.
    pub fn steered(&self, message: i64) -> NewEvent<'static> {
        self.record("steered", json!({ "message": message }).to_string(), self.metadata())
    }

    /// A turn that was not finished: its pieces count for nothing, and the attempt continues with another.
    pub fn turn_cut(&self, message_id: &str) -> NewEvent<'static> {
        self.record("turn_cut", String::new(), self.part_of(message_id))
    }

    /// What was said and done up to the event `upto`, in short, for the prompts of a model. There is one for each such
    /// event.
    pub fn summary(&self, upto: i64, summary: &str) -> NewEvent<'static> {
        let content = text(&Summary { summary: summary.to_owned(), upto });
        self.record("summary", content, self.metadata()).keyed(IdempotencyKey::of_event("summary", upto))
    }

    /// The messages of an answer as the agent knows them, which it is given again with later ones.
    pub fn messages(&self, messages: &[Value]) -> NewEvent<'static> {
        self.record("messages", json!({ "messages": messages }).to_string(), self.metadata())
    }

    pub fn status(&self, status: Status) -> NewEvent<'static> {
        self.record("status", status.as_str().to_owned(), self.metadata())
    }

    /// What the agent intends to do: a list of `{"content","priority","status"}`, which replaces the one before.
    pub fn plan(&self, entries: &Value) -> NewEvent<'static> {
        self.record("plan", json!({ "entries": entries }).to_string(), self.metadata())
    }

    /// The whole state that the agent shares with its client.
    pub fn state(&self, state: &Value) -> NewEvent<'static> {
        self.record("state", json!({ "state": state }).to_string(), self.metadata())
    }

    /// A change of that state: a JSON Patch (RFC 6902), an array of operations.
    pub fn state_delta(&self, delta: &Value) -> NewEvent<'static> {
        self.record("state_delta", json!({ "delta": delta }).to_string(), self.metadata())
    }

    /// The fields of the message's [`ClientInput`] that the program's protocol cannot take.
    pub fn unsupported(&self, fields: &[&str]) -> NewEvent<'static> {
        self.record("unsupported", json!({ "fields": fields }).to_string(), self.metadata())
    }

    /// A request for permission.
    pub fn permission(&self, asked: &Permission) -> NewEvent<'static> {
        self.record("permission", text(asked), self.metadata())
    }

    /// The agent has withdrawn its request for permission of this id.
    pub fn permission_withdrawn(&self, request_id: &str) -> NewEvent<'static> {
        let withdrawn = PermissionAnswer { request_id: request_id.to_owned(), choice: String::new() };
        self.record("permission_answer", text(&withdrawn), self.metadata())
    }

    /// An ending: the whole answer.
    pub fn answer(&self, answer: &Answer) -> NewEvent<'static> {
        let Answer { content, message_id, total_tokens, latency_ms, stage } = answer.clone();
        let metadata = Metadata { message_id, total_tokens, latency_ms, stage, ..self.ending() };
        with_metadata(own_event(Type::Message, None, content), &metadata).keyed(end_key(self.reply_to))
    }

    /// An ending: an error that is not retryable. `partial` is the answer so far; empty if there is none.
    pub fn failed(&self, error: &str, partial: &str) -> NewEvent<'static> {
        let content = text(&Failure { error: error.to_owned(), retryable: false });
        self.record("error", content, self.ending_after(partial)).keyed(end_key(self.reply_to))
    }

    /// The failure of an attempt, not of the run. `interrupted_by` is the message that interrupted it, if one
    /// did: such an attempt does not count.
    pub fn attempt_failed(&self, error: &str, interrupted_by: Option<i64>) -> NewEvent<'static> {
        let content = text(&Failure { error: error.to_owned(), retryable: true });
        let reply_to = Some(self.reply_to);
        self.record("error", content, Metadata { reply_to, interrupted_by, ..self.metadata() })
    }

    /// An ending: the run was cancelled. `why` is by whom, or the reason; `partial` is the answer so far, empty if
    /// there is none.
    pub fn cancelled(&self, why: &str, partial: &str) -> NewEvent<'static> {
        self.record("cancelled", why.to_owned(), self.ending_after(partial)).keyed(end_key(self.reply_to))
    }

    fn metadata(&self) -> Metadata {
        Metadata { run_id: Some(self.run_id.clone()), attempt: self.attempt, ..Metadata::default() }
    }

    fn part_of(&self, message_id: &str) -> Metadata {
        Metadata { message_id: Some(message_id.to_owned()), ..self.metadata() }
    }

    /// The metadata of an ending, which names its run.
    fn ending(&self) -> Metadata {
        let id = Some(self.reply_to);
        let (reply_to, began) = if self.is_own { (None, id) } else { (id, None) };
        Metadata { reply_to, began, ..self.metadata() }
    }

    /// That of an ending that is no answer.
    fn ending_after(&self, partial: &str) -> Metadata {
        let end = partial.floor_char_boundary(MAX_PARTIAL);
        let partial = Some(partial[..end].to_owned()).filter(|partial| !partial.is_empty());
        Metadata { partial, ..self.ending() }
    }

    fn record(&self, subtype: &'static str, content: String, metadata: Metadata) -> NewEvent<'static> {
        with_metadata(own_event(Type::Record, Some(subtype), content), &metadata)
    }
}
