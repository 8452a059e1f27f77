//! `GET /v1/models`: the agents.

use std::sync::Arc;
use std::time::SystemTime;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde_json::{Value, json};

use super::error::{Failures, OpenAiError, Result};
use crate::agent::Agent;
use crate::gateway::Gateway;

/// What an agent is called that has no name.
const UNNAMED: &str = "thread";

/// An agent that clients may choose.
pub struct Model<'g> {
    pub name: String,
    /// Of the sessions that it is chosen for.
    pub agent: &'g Agent,
}

/// The agents, the default first.
pub fn models(gateway: &Gateway) -> Vec<Model<'_>> {
    let name = |agent: &Agent| agent.name.clone().unwrap_or_else(|| UNNAMED.to_owned());
    gateway.agent.iter().map(|agent| Model { name: name(agent), agent }).collect()
}

/// The agent of that name; without one, the default.
///
/// # Errors
///
/// There is no such agent.
pub fn model<'g>(gateway: &'g Gateway, name: Option<&str>) -> Result<Model<'g>> {
    let mut all = models(gateway);
    let known: Vec<String> = all.iter().map(|model| model.name.clone()).collect();
    let at = all.iter().position(|model| name.is_none_or(|name| model.name == name));
    at.map(|at| all.swap_remove(at)).ok_or_else(|| {
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
    let data: Vec<Value> = models(&gateway).iter().map(|model| shown(&gateway, &model.name)).collect();
    Json(json!({ "object": "list", "data": data }))
}

/// One agent
#[utoipa::path(get, path = "/v1/models/{id}", tag = "openai", params(("id" = String, Path)),
    responses((status = 200, body = Value), Failures))]
pub async fn one(State(gateway): State<Arc<Gateway>>, Path(id): Path<String>) -> Result<Json<Value>> {
    let name = model(&gateway, Some(&id))?.name;
    Ok(Json(shown(&gateway, &name)))
}
