//! Sending messages, cancelling runs, answering permission requests, the status.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use thread_agent::conversation::Priority;

use crate::actions::{self, Reply, cancel, create, send_message};
use crate::client::{Client, parse_session};
use crate::commands::{self, Parsed};
use crate::error::{RequestError, Result};
use crate::protocol::content::is_part;
use crate::session::blocking;
use crate::session::speak::{self as disk, ClientMessage, MAX_KEY};
use crate::session_id::SessionId;

/// Metadata keys that the gateway sets itself.
const RESERVED: &[&str] = &["run_id", "message_id", "client", "priority", "reply_to"];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentParams {
    session_id: Option<String>,
    message: Value,
    priority: Option<String>,
    metadata: Option<Map<String, Value>>,
    idempotency_key: Option<String>,
}

/// `agent`: sends a message, or executes a command.
pub async fn agent(client: &mut Client, id: &str, params: AgentParams) -> Result<Reply> {
    let mut content = content_of(&params.message)?;
    if params.message.is_string() {
        match commands::parse(&content) {
            Parsed::Command(command) => return commands::execute(client, command).await,
            Parsed::Text(text) => content = text.to_owned(),
        }
    }
    let session = params.session_id.as_deref().map(parse_session).transpose()?;
    let key = key_of(params.idempotency_key, session)?;
    let mut metadata = params.metadata.unwrap_or_default();
    for reserved in RESERVED {
        metadata.shift_remove(*reserved);
    }
    disk::extract_attachments(&client.gateway.storage, &client.origins, &mut content, &mut metadata)?;
    let priority = params.priority.as_deref().map_or(Priority::Next, Priority::of);
    let message = ClientMessage { content, priority, metadata, key, run_id: None, message_id: None };
    let session = match session.or(client.session()) {
        Some(session) => session,
        None => create(client, None).await?,
    };
    // The client enters before the message is stored, so that it misses no event of the run.
    client.enter(session).await?;
    let accepted = send_message(client, session, message).await?;
    let queued = client.queued(id, &accepted);
    let status = if queued.is_some() { "queued" } else { "accepted" };
    let payload = json!({ "runId": accepted.run_id, "sessionId": session.to_string(), "status": status });
    Ok(Reply { payload, then: queued.into_iter().collect() })
}

/// The text to store for a message.
fn content_of(message: &Value) -> Result<String> {
    let bad = |what: &str| Err(RequestError::BadParams(format!("'message' {what}")));
    match message {
        Value::String(text) if text.trim().is_empty() => bad("is empty"),
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) if parts.is_empty() => bad("has no parts"),
        Value::Array(parts) if parts.iter().all(is_part) => Ok(message.to_string()),
        Value::Array(_) => bad("has a part without a 'type'"),
        _ => bad("is neither a text nor an array of parts"),
    }
}

fn key_of(key: Option<String>, session: Option<SessionId>) -> Result<Option<String>> {
    let bad = |what: &str| Err(RequestError::BadParams(format!("'idempotencyKey' {what}")));
    match key {
        None => Ok(None),
        Some(_) if session.is_none() => bad("needs a 'sessionId'"),
        Some(key) if key.is_empty() || key.len() > MAX_KEY => bad("must be 1 to 512 bytes"),
        Some(key) => Ok(Some(key)),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CancelParams {
    run_id: String,
    session_id: Option<String>,
}

/// `agent.cancel`.
pub async fn agent_cancel(client: &mut Client, params: CancelParams) -> Result<Value> {
    let session = client.session_or_current(params.session_id.as_deref())?;
    cancel(client, session, Some(params.run_id)).await?;
    Ok(json!({ "message": "Cancellation requested" }))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PermissionParams {
    session_id: String,
    request_id: String,
    choice: String,
}

/// `permission.answer`.
pub async fn permission_answer(client: &mut Client, params: PermissionParams) -> Result<Value> {
    let session = parse_session(&params.session_id)?;
    let (gateway, source) = (client.gateway.clone(), client.speaker.source(session));
    blocking(move || {
        let mut queue = gateway.root.queue(session)?;
        disk::permission(&mut queue, &gateway.launcher, &source, &params.request_id, &params.choice)
    })
    .await?;
    Ok(json!({}))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusParams {
    session_id: Option<String>,
}

/// `status`.
pub async fn status(client: &mut Client, params: StatusParams) -> Result<Value> {
    let session = params.session_id.as_deref().map(parse_session).transpose()?;
    actions::status(client, session).await
}
