//! The input of AG-UI clients, and stored messages as they get them back.

use serde_json::{Value, json};
use thread::Event;
use thread_agent::conversation::Entry;

use super::translate::Version;
use crate::protocol::content;
use crate::protocol::event::message_id;
use crate::session::history;
use crate::storage::Storage;

/// The parts of a `RunAgentInput` that the gateway uses.
#[derive(Debug)]
pub struct Input {
    pub version: Version,
    pub thread_id: String,
    pub run_id: String,
    pub message_id: String,
    /// The last user message: text, or content parts as JSON.
    pub content: String,
}

/// Why a body is not a valid `RunAgentInput`.
#[derive(Debug)]
pub struct InputError(pub String);

/// Longest id that a client may choose, in bytes.
const MAX_ID: usize = 200;

impl Input {
    /// # Errors
    ///
    /// A field that the gateway needs is missing or invalid.
    pub fn read(body: Value) -> Result<Input, InputError> {
        let bad = |what: &str| InputError(format!("the RunAgentInput {what}"));
        let id = |value: &Value, name: &str| {
            let id = value.get(name).and_then(Value::as_str).unwrap_or_default();
            let fits = !id.is_empty() && id.len() <= MAX_ID && !id.chars().any(char::is_control);
            if fits {
                Ok(id.to_owned())
            } else {
                Err(bad(&format!("needs a '{name}' of 1 to {MAX_ID} bytes")))
            }
        };
        let messages =
            body.get("messages").and_then(Value::as_array).ok_or_else(|| bad("has no 'messages'"))?;
        let last = messages.iter().rev().find(|message| message["role"] == "user");
        let last = last.ok_or_else(|| bad("has no user message"))?;
        let content = match &last["content"] {
            Value::String(text) if !text.trim().is_empty() => text.clone(),
            Value::Array(parts) if !parts.is_empty() && parts.iter().all(content::is_part) => {
                last["content"].to_string()
            }
            _ => return Err(bad("has a last user message without content")),
        };
        Ok(Input {
            version: body.get("protocolVersion").and_then(Value::as_str).map_or(Version::Zero, version),
            thread_id: id(&body, "threadId")?,
            run_id: id(&body, "runId")?,
            message_id: id(last, "id")?,
            content,
        })
    }
}

/// Parses a `protocolVersion`; 0 and 0.x are [`Version::Zero`].
pub fn version(text: &str) -> Version {
    if text == "0" || text.starts_with("0.") { Version::Zero } else { Version::One }
}

/// A stored message and its metadata, with the keys of the metadata unchanged.
pub fn message(storage: &Storage, event: &Event) -> Value {
    let (_, entry) = Entry::of(event);
    let metadata: Value = event
        .metadata
        .as_deref()
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_else(|| json!({}));
    json!({
        "id": message_id(event, &entry),
        "seq": event.id,
        "role": history::role(&entry),
        "content": content::shown(storage, &event.content),
        "timestamp": event.created_at,
        "metadata": metadata,
    })
}
