//! A stored event as clients of its session see it.

use serde_json::{Map, Value, json};
use thread::Event;
use thread_agent::conversation::Entry;

use super::{content, frame};
use crate::session_id::SessionId;
use crate::storage::Storage;

/// An event's name and payload, still without the session, the run and `fromSelf`.
pub struct Shown {
    pub name: &'static str,
    payload: Map<String, Value>,
    run_id: Option<String>,
    /// The client that caused it, if one did.
    pub client: Option<String>,
}

impl Shown {
    /// `None` if clients do not see the event.
    pub fn of(storage: &Storage, event: &Event, run_id: Option<String>, entry: &Entry) -> Option<Shown> {
        let (name, payload) = translate(storage, event, entry)?;
        let Value::Object(payload) = payload else { return None };
        let client = match entry {
            Entry::Message(message) => message.client.clone(),
            _ => None,
        };
        Some(Shown { name, payload, run_id, client })
    }

    /// The frame for a client.
    pub fn frame(&self, session: SessionId, seq: i64, own: bool) -> String {
        let mut payload = self.payload.clone();
        if self.name == "message" {
            payload.insert("fromSelf".into(), own.into());
        }
        frame::event(self.name, in_session(payload, session, self.run_id.as_deref()), Some(seq))
    }
}

/// The id of a message for clients: its own, or one made from the event's id.
pub fn message_id(event: &Event, entry: &Entry) -> String {
    let own = match entry {
        Entry::Message(message) => message.message_id.clone(),
        Entry::Answer { answer, .. } => answer.message_id.clone(),
        _ => None,
    };
    own.unwrap_or_else(|| format!("event_{}", event.id))
}

/// Adds the keys that every payload has.
pub fn in_session(
    mut payload: Map<String, Value>,
    session: SessionId,
    run_id: Option<&str>,
) -> Map<String, Value> {
    payload.insert("sessionId".into(), session.to_string().into());
    payload.insert("runId".into(), run_id.map_or(Value::Null, Value::from));
    payload
}

/// The frame of an event that is not in the thread.
pub fn notice(name: &str, payload: Value, session: SessionId, run_id: Option<&str>) -> String {
    let Value::Object(payload) = payload else { return frame::event(name, Map::new(), None) };
    frame::event(name, in_session(payload, session, run_id), None)
}

fn translate(storage: &Storage, event: &Event, entry: &Entry) -> Option<(&'static str, Value)> {
    Some(match entry {
        Entry::Message(message) => {
            let mut payload = json!({
                "role": "user",
                "content": content::shown(storage, &message.content),
                "messageId": message_id(event, entry),
                "timestamp": event.created_at,
            });
            if message.priority != Default::default() {
                payload["priority"] = message.priority.as_str().into();
            }
            if !message.other.is_empty() {
                payload["metadata"] = Value::Object(message.other.clone());
            }
            ("message", payload)
        }
        // An answer to no message in particular does not end a run.
        Entry::Answer { answer, reply_to: None } => {
            let payload = json!({
                "role": "assistant",
                "content": content::shown(storage, &answer.content),
                "messageId": message_id(event, entry),
                "timestamp": event.created_at,
            });
            ("message", payload)
        }
        Entry::Answer { answer, .. } => {
            let payload = json!({
                "messageId": message_id(event, entry),
                "content": content::shown(storage, &answer.content),
                "totalTokens": answer.total_tokens,
                "latencyMs": answer.latency_ms,
                "stage": answer.stage,
                "timestamp": event.created_at,
            });
            ("final", payload)
        }
        Entry::RunStarted { attempt, .. } => ("status", json!({ "status": "started", "attempt": attempt })),
        Entry::Status(status) => ("status", json!({ "status": status.as_str() })),
        Entry::Token { text, message_id } => ("token", piece(text, message_id.as_deref())),
        Entry::Thinking { text, message_id } => ("thinking", piece(text, message_id.as_deref())),
        Entry::ToolCall(call) => (
            "tool_call",
            json!({ "callId": call.call_id, "toolName": call.name, "arguments": call.arguments }),
        ),
        Entry::ToolResult(result) => {
            let (key, outcome) = match &result.outcome {
                Ok(result) => ("result", result.clone()),
                Err(error) => ("error", error.clone().into()),
            };
            ("tool_result", json!({ "callId": result.call_id, "toolName": result.name, key: outcome }))
        }
        Entry::Error { error, retryable, .. } => {
            let code = if *retryable { "attempt_failed" } else { "run_failed" };
            ("error", json!({ "message": error, "errorCode": code, "retryable": retryable }))
        }
        Entry::Cancelled { why, .. } => ("cancelled", json!({ "message": why })),
        Entry::Title(title) => ("title", json!({ "title": content::beginning(title, 200) })),
        Entry::SubAgent(sub) => {
            let payload = json!({
                "parentCallId": sub.parent_call_id,
                "subAgent": sub.sub_agent,
                "event": sub.event,
                "payload": sub.payload,
            });
            ("sub_agent", payload)
        }
        Entry::Permission(asked) => {
            let choices: Vec<Value> = asked
                .choices
                .iter()
                .map(|choice| json!({ "id": choice.id, "name": choice.name, "kind": choice.kind }))
                .collect();
            let payload = json!({
                "requestId": asked.request_id,
                "title": asked.title,
                "callId": asked.call_id,
                "choices": choices,
            });
            ("permission", payload)
        }
        Entry::PermissionAnswer { request_id, choice } => {
            ("permission", json!({ "requestId": request_id, "choice": choice }))
        }
        // Internal to the agent, or unknown.
        _ => return None,
    })
}

fn piece(text: &str, message_id: Option<&str>) -> Value {
    json!({ "content": text, "delta": true, "messageId": message_id })
}
