//! The methods of the protocol: one function each, from params to payload.

mod agent;
mod sessions;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::actions::Reply;
use crate::client::Client;
use crate::error::{RequestError, Result};

/// The names of all methods.
pub const NAMES: &[&str] = &[
    "connect",
    "agent",
    "agent.cancel",
    "sessions.list",
    "sessions.new",
    "sessions.switch",
    "sessions.history",
    "sessions.rename",
    "sessions.search",
    "sessions.delete",
    "permission.answer",
    "status",
];

/// Executes a request.
///
/// # Errors
///
/// [`RequestError::UnknownMethod`], [`RequestError::BadParams`]; errors of the method.
pub async fn call(client: &mut Client, id: &str, method: &str, params: Map<String, Value>) -> Result<Reply> {
    match method {
        "connect" => Err(RequestError::Connected),
        "agent" => agent::agent(client, id, read(params)?).await,
        "agent.cancel" => agent::agent_cancel(client, read(params)?).await.map(Reply::from),
        "permission.answer" => agent::permission_answer(client, read(params)?).await.map(Reply::from),
        "sessions.list" => sessions::list(client, read(params)?).await.map(Reply::from),
        "sessions.new" => sessions::new(client, read(params)?).await.map(Reply::from),
        "sessions.switch" => sessions::switch_to(client, read(params)?).await.map(Reply::from),
        "sessions.history" => sessions::history(client, read(params)?).await.map(Reply::from),
        "sessions.rename" => sessions::rename(client, read(params)?).await.map(Reply::from),
        "sessions.search" => sessions::search(client, read(params)?).await.map(Reply::from),
        "sessions.delete" => sessions::delete(client, read(params)?).await.map(Reply::from),
        "status" => agent::status(client, read(params)?).await.map(Reply::from),
        _ => Err(RequestError::UnknownMethod(method.chars().take(100).collect())),
    }
}

fn read<T: DeserializeOwned>(params: Map<String, Value>) -> Result<T> {
    serde_json::from_value(Value::Object(params)).map_err(|e| RequestError::BadParams(e.to_string()))
}
