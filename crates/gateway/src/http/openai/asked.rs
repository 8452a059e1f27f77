//! What a client asks for, and the run that it is shown.

use std::sync::Arc;

use serde_json::{Map, Value};
use thread_protocol::Content;
use thread_sessions::SessionId;

use super::conversation::Conversation;
use super::error::Result;
use super::text::Digest;
use crate::gateway::Gateway;
use crate::http::agui::translate::Start;
use crate::http::attachments::store_inline;
use crate::session::write::{Author, extract_attachments};
use crate::storage::Object;

/// The client type of these clients, and the client of a request that names no user.
pub const CLIENT: &str = "openai";

/// What a client asks for.
#[derive(Debug, Clone)]
pub struct Request {
    pub conversation: Conversation,
    /// The client's functions, as AG-UI names them.
    pub tools: Vec<Value>,
    pub user: Option<String>,
    /// The client's name for the conversation.
    pub chat: Option<String>,
    pub body: Digest,
    /// The client has sent this before, and got no answer.
    pub is_retry: bool,
    /// The gateway's origins, as this client sees it.
    pub own: Vec<String>,
    /// It continues after the run of this message, whatever else it brings.
    pub after: Option<(SessionId, i64)>,
    /// The name of the agent.
    pub model: String,
    /// The client has named it: a session of another agent is moved to it.
    pub is_named: bool,
    /// The response that it continues.
    pub previous: Option<String>,
    pub background: bool,
    /// It is no part of a conversation, but a title or the like.
    pub is_task: bool,
}

/// A run, as far as a client is shown it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begun {
    pub session: SessionId,
    pub start: Start,
}

pub fn author(user: Option<&str>) -> Author {
    Author { client: user.unwrap_or(CLIENT).into(), client_type: CLIENT.into() }
}

/// The address of a session on the gateway's page.
pub fn link(gateway: &Gateway, session: SessionId) -> String {
    format!("{}/#/s/{session}", gateway.storage.base)
}

/// Stores the files in a content. Returns what remains of it, the metadata that names them, and the files.
///
/// # Errors
///
/// It cannot be stored, or is refused.
pub async fn taken(
    gateway: &Arc<Gateway>,
    session: SessionId,
    request: &Request,
    mut content: Content,
) -> Result<(Content, Map<String, Value>, Vec<Object>)> {
    if let Content::Parts(parts) = &mut content {
        for part in parts {
            store_inline(gateway, session, part).await?;
        }
    }
    let mut own = request.own.clone();
    own.push(gateway.storage.base.clone());
    let mut metadata = Map::new();
    let (content, files) = extract_attachments(&gateway.storage, &own, content, &mut metadata)?;
    Ok((content, metadata, files))
}
