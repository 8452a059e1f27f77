//! The input of AG-UI clients.

use serde_json::Value;
use thread_protocol::Content;

use super::translate::Version;

/// The parts of a `RunAgentInput` that the gateway uses.
#[derive(Debug)]
pub struct Input {
    pub version: Version,
    pub thread_id: String,
    pub run_id: String,
    pub message_id: String,
    /// The last user message.
    pub content: Content,
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
        let content = last.get("content").and_then(|content| serde_json::from_value(content.clone()).ok());
        let is_empty = |content: &Content| matches!(content, Content::Text(text) if text.trim().is_empty());
        let content = content
            .filter(|content| !is_empty(content))
            .ok_or_else(|| bad("has a last user message without content"))?;
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
