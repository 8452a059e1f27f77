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

    /// How many tokens the prompt and the message have together, if the model says so.
    pub fn total_tokens(&self) -> Option<u64> {
        self.usage.get("total_tokens")?.as_u64()
    }
}
