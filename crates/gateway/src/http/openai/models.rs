//! `GET /v1/models`: the agents.

use std::sync::Arc;
use std::time::SystemTime;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use serde_json::{Value, json};

use super::error::{Failures, OpenAiError, Result};
use crate::gateway::Gateway;

/// What a chat program wants that is no conversation: `title`, `tags`, `follow_ups` and the like.
const TASK: &str = "x-thread-task";

/// What answers a request.
#[derive(Debug)]
pub struct Chosen {
    /// The name of the agent.
    pub name: String,
    /// It is no part of a conversation, but a title or the like.
    pub is_task: bool,
}

/// What answers a request with these headers for this model: the default agent, if none is named.
///
/// # Errors
///
/// There is no such agent, or it has no model for titles and the like.
pub fn chosen(gateway: &Gateway, name: Option<&str>, headers: &HeaderMap) -> Result<Chosen> {
    let name = model(gateway, name)?;
    let is_task = gateway.agents.tasks().any(|known| known == name);
    // Chat programs fill such headers from a template, which leaves nothing for a message of a conversation.
    let named = headers.get(TASK).filter(|task| !is_task && !task.as_bytes().trim_ascii().is_empty());
    let Some(task) = named else { return Ok(Chosen { name, is_task }) };
    match gateway.agents.task_of(&name) {
        Some(name) => Ok(Chosen { name: name.to_owned(), is_task: true }),
        None => {
            let task = String::from_utf8_lossy(task.as_bytes()).into_owned();
            Err(OpenAiError {
                code: Some("task_model_not_set"),
                ..OpenAiError::bad(format!(
                    "the agent '{name}' has no task_model for '{task}' - give it one in the file of --agents, or turn \
                     such requests off in the chat program"
                ))
            })
        }
    }
}

/// The name of an agent that clients may choose; without one, that of the default.
///
/// # Errors
///
/// There is no such agent.
pub fn model(gateway: &Gateway, name: Option<&str>) -> Result<String> {
    let known: Vec<&str> = all(gateway).collect();
    let found = known.iter().find(|known| name.is_none_or(|name| **known == name));
    found.map(|name| (*name).to_owned()).ok_or_else(|| {
        let hint = match known.is_empty() {
            true => "start the gateway with --agent".to_owned(),
            false => format!("use one of {}", known.join(", ")),
        };
        OpenAiError {
            status: StatusCode::NOT_FOUND,
            code: Some("model_not_found"),
            ..OpenAiError::of_param(
                "model",
                format!("there is no agent '{}' - {hint}", name.unwrap_or_default()),
            )
        }
    })
}

/// The agents, and those for titles and the like: chat programs can be told to use another model for these.
fn all(gateway: &Gateway) -> impl Iterator<Item = &str> {
    gateway.agents.names().chain(gateway.agents.tasks())
}

fn shown(gateway: &Gateway, name: &str) -> Value {
    // Since when there is an agent of that name is not recorded: at least since the gateway was started.
    let started = SystemTime::now() - gateway.started.elapsed();
    let created = started.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    json!({ "id": name, "object": "model", "created": created, "owned_by": "thread" })
}

/// The agents
#[utoipa::path(get, path = "/v1/models", tag = "openai",
    responses((status = 200, body = Value), Failures))]
pub async fn list(State(gateway): State<Arc<Gateway>>) -> Json<Value> {
    let data: Vec<Value> = all(&gateway).map(|name| shown(&gateway, name)).collect();
    Json(json!({ "object": "list", "data": data }))
}

/// One agent
#[utoipa::path(get, path = "/v1/models/{id}", tag = "openai", params(("id" = String, Path)),
    responses((status = 200, body = Value), Failures))]
pub async fn one(State(gateway): State<Arc<Gateway>>, Path(id): Path<String>) -> Result<Json<Value>> {
    let name = model(&gateway, Some(&id))?;
    Ok(Json(shown(&gateway, &name)))
}
