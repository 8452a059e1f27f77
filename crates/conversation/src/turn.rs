//! The turns of a model whose whole memory is the thread.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::lenient::{is_default, lenient};

/// A finished turn of a model: the content of `model`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ModelTurn {
    /// The assistant's message as the model sent it, with all its fields.
    pub message: Map<String, Value>,
    /// Why the model stopped: `stop`, `length`, `tool_calls` or another word.
    #[serde(default, deserialize_with = "lenient")]
    pub finish_reason: String,
    /// What the model says of the number of tokens, an object; null if it says nothing.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub usage: Value,
    /// The model's name, as it gives it.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "is_default")]
    pub model: String,
    /// The SHA-256 of the system text, in hexadecimal digits; empty if there was none.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "is_default")]
    pub system: String,
    /// The same of the list of tools that the model was given, as JSON; empty if it was given none.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "is_default")]
    pub tools: String,
    /// The newest event of the thread with the agent's notes of which the prompt knew; 0 if it had no notes.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "is_default")]
    pub notes: i64,
}

impl ModelTurn {
    /// The text of the message: its content, or that of the parts that are text.
    pub fn text(&self) -> String {
        match self.message.get("content") {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Array(parts)) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
            _ => String::new(),
        }
    }

    /// Whether the model wants to use tools. What it says of why it stopped does not matter: some say `stop`.
    pub fn has_calls(&self) -> bool {
        self.message.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty())
    }

    /// How many tokens the prompt and the message have together, if the model says so.
    pub fn total_tokens(&self) -> Option<u64> {
        self.usage.get("total_tokens")?.as_u64()
    }
}
