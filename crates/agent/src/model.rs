//! A model behind HTTP: OpenAI's chat completions, as most servers of models offer them.
//!
//! [`serve()`] is the process that the adapter starts for [`--protocol openai`](crate::protocol::OpenAi), in the place of
//! an agent program: an [`Order`] in, lines of [`Heard`] out. It holds nothing between two orders.

mod ask;
mod assembly;
mod check;
mod endpoint;
mod serve;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thread_conversation::ModelTurn;

pub use check::{Check, check};
pub use endpoint::{Endpoint, default_key_variable, parse_url};
pub use serve::serve;

/// A line for the process.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Ask the model for a turn.
    Ask { id: u64, endpoint: Endpoint, model: String, messages: Vec<Value> },
    /// Stop asking.
    Cancel,
}

/// A line from the process, about the order of that id.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    pub id: u64,
    pub heard: Heard,
}

/// What a model was heard to say. The last one is a turn or a failure, or that it was stopped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Heard {
    Token(String),
    Thinking(String),
    Turn(ModelTurn),
    Failed(Failed),
    Stopped,
}

/// Why there is no turn.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Failed {
    /// For people, with what they can do about it.
    pub error: String,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// How many seconds to wait before.
    pub retry_after: Option<u64>,
}
