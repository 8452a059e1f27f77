//! What a session is told to do.

use serde_json::Value;
use thread_protocol::Content;
use tokio::sync::mpsc;

/// How many orders may wait for a session. It takes none while it waits for the gateway.
pub const WAITING: usize = 64;

/// Where orders for a session are sent. The session is closed when nobody can send any.
pub type Orders = mpsc::Sender<Order>;

/// `id` is that of the editor's request, which the session answers.
#[derive(Debug)]
pub enum Order {
    Prompt {
        id: Value,
        content: Content,
    },
    /// To end what is under way.
    Cancel,
    /// To end one prompt.
    CancelRequest {
        id: Value,
    },
    /// To choose a mode, or the value of an option.
    Choose {
        id: Value,
        chosen: Box<Chosen>,
    },
    /// The answer to a request for permission, if one was chosen.
    Answer {
        request_id: String,
        choice: Option<String>,
    },
    /// To end what is under way, and then itself.
    Close {
        id: Value,
    },
}

/// What was chosen: each has its own method and response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chosen {
    Mode(String),
    Option { id: String, value: String },
}

impl Order {
    /// The request that waits for an answer.
    pub fn request(&self) -> Option<&Value> {
        match self {
            Order::Prompt { id, .. } | Order::Choose { id, .. } | Order::Close { id } => Some(id),
            Order::Cancel | Order::CancelRequest { .. } | Order::Answer { .. } => None,
        }
    }
}
