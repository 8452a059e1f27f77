//! `GET /v1/models`: the agents.

use std::sync::Arc;
use std::time::SystemTime;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde_json::{Value, json};

use super::error::{Failures, OpenAiError, Result};
use crate::gateway::Gateway;

/// The name of an agent that clients may choose; without one, that of the default.
///
/// # Errors
///
/// There is no such agent.
pub fn model(gateway: &Gateway, name: Option<&str>) -> Result<String> {
    let known: Vec<&str> = gateway.agents.names().collect();
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
    let data: Vec<Value> = gateway.agents.names().map(|name| shown(&gateway, name)).collect();
    Json(json!({ "object": "list", "data": data }))
}

/// One agent
#[utoipa::path(get, path = "/v1/models/{id}", tag = "openai", params(("id" = String, Path)),
    responses((status = 200, body = Value), Failures))]
pub async fn one(State(gateway): State<Arc<Gateway>>, Path(id): Path<String>) -> Result<Json<Value>> {
    let name = model(&gateway, Some(&id))?;
    Ok(Json(shown(&gateway, &name)))
}
