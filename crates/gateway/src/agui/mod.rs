//! Conversations for clients of AG-UI, over HTTP and server-sent events.

pub mod input;
pub mod stream;
pub mod translate;

use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::access::origin;
use crate::error::RequestError;
use crate::gateway::Gateway;
use crate::session::speak::{self, ClientMessage, Speaker};
use crate::session::{blocking, history};
use crate::session_id::SessionId;
use input::{Input, InputError};
use stream::{ResumePoint, Stream};

/// An error response, with its status.
pub struct HttpError(pub StatusCode, pub String);

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        (self.0, Json(json!({ "error": self.1 }))).into_response()
    }
}

impl From<RequestError> for HttpError {
    fn from(error: RequestError) -> HttpError {
        let status = match &error {
            RequestError::BadParams(_) => StatusCode::BAD_REQUEST,
            RequestError::UnknownSession(_) => StatusCode::NOT_FOUND,
            RequestError::KeyConflict(_) => StatusCode::CONFLICT,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        HttpError(status, error.to_string())
    }
}

impl From<InputError> for HttpError {
    fn from(error: InputError) -> HttpError {
        HttpError(StatusCode::BAD_REQUEST, error.0)
    }
}

/// `POST /api/v1/agent/run`: stores the message and streams its run.
pub async fn run(
    State(gateway): State<Arc<Gateway>>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Result<Response, HttpError> {
    let mut input = Input::read(body)?;
    let mut metadata = serde_json::Map::new();
    speak::extract_attachments(
        &gateway.storage,
        &[origin::own(&headers)],
        &mut input.content,
        &mut metadata,
    )?;
    let session = SessionId::named(&input.thread_id);
    let message = ClientMessage {
        content: input.content,
        priority: Default::default(),
        metadata,
        // A second request with the same ids is a resend, and gets the same run.
        key: Some(format!("agui:{}:{}", input.run_id, input.message_id)),
        run_id: Some(input.run_id.clone()),
        message_id: Some(input.message_id),
    };
    let own = gateway.clone();
    let accepted = blocking(move || {
        own.root.create_if_missing(session, own.agent())?;
        let mut queue = own.root.queue(session)?;
        if let Some(agent) = own.agent_for_all() {
            agent.replace(&mut queue)?;
        }
        let speaker = Speaker { client: "ag-ui".into(), client_type: "ag-ui".into() };
        speak::message(&mut queue, &own.launcher, session, &speaker, message)
    })
    .await?;
    let start = ResumePoint { message: accepted.event, after: accepted.event - 1 };
    Ok(Stream::new(gateway, session, input.version, input.thread_id, Some(input.run_id), start)
        .into_response())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventsQuery {
    thread_id: String,
    after: Option<i64>,
    /// `0` for clients of AG-UI 0.x.
    version: Option<String>,
}

/// `GET /api/v1/agent/events`: resumes an interrupted stream.
pub async fn events(
    State(gateway): State<Arc<Gateway>>,
    headers: HeaderMap,
    Query(query): Query<EventsQuery>,
) -> Result<Response, HttpError> {
    let session = SessionId::named(&query.thread_id);
    let last = headers.get("last-event-id").and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let after: Option<i64> = last.or(query.after);
    let own = gateway.clone();
    let start = blocking(move || stream::resume_point(&mut own.root.queue(session)?, after)).await?;
    let version = input::version(query.version.as_deref().unwrap_or("1"));
    Ok(Stream::new(gateway, session, version, query.thread_id, None, start).into_response())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryQuery {
    thread_id: String,
    limit: Option<usize>,
    before: Option<i64>,
}

/// `GET /api/v1/agent/history`: the last messages, oldest first.
pub async fn message_history(
    State(gateway): State<Arc<Gateway>>,
    Query(query): Query<HistoryQuery>,
) -> Result<Json<Value>, HttpError> {
    let session = SessionId::named(&query.thread_id);
    let limit = query.limit.unwrap_or(50).clamp(1, 200);
    let page = blocking(move || {
        let mut queue = gateway.root.queue(session)?;
        let page = history::before(&mut queue, query.before.unwrap_or(i64::MAX), limit)?;
        let messages: Vec<Value> =
            page.messages.iter().map(|event| input::message(&gateway.storage, event)).collect();
        Ok(json!({ "threadId": query.thread_id, "messages": messages, "hasMore": page.has_more }))
    });
    Ok(Json(page.await?))
}
