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
use thread_protocol::method::Place;

use self::input::{Input, InputError};
use self::stream::{ResumePoint, Stream};
use super::error::HttpError;
use crate::access::origin;
use crate::gateway::Gateway;
use crate::session::history;
use crate::session::jobs::Kind;
use crate::session::speak::{self, ClientMessage, Speaker};
use crate::session_id::SessionId;

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
    let input = Input::read(body)?;
    let mut metadata = serde_json::Map::new();
    let mut own = origin::own(&headers);
    own.push(gateway.storage.base.clone());
    let (content, attachments) =
        speak::extract_attachments(&gateway.storage, &own, input.content, &mut metadata)?;
    let session = SessionId::named(&input.thread_id);
    // The lengths keep two pairs of ids apart that are the same when joined.
    let key = format!("agui:{}:{}:{}", input.run_id.len(), input.run_id, input.message_id);
    let message = ClientMessage {
        content,
        priority: Default::default(),
        metadata,
        // A second request with the same ids is a resend, and gets the same run.
        key: Some(key),
        run_id: Some(input.run_id.clone()),
        message_id: Some(input.message_id),
        attachments,
    };
    let own = gateway.clone();
    let work = move || {
        own.root.create_if_missing(session, own.agent.as_ref())?;
        let mut queue = own.root.queue(session)?;
        if let Some(agent) = own.agent_for_all() {
            agent.replace(&mut queue)?;
        }
        let speaker = Speaker { client: "ag-ui".into(), client_type: "ag-ui".into() };
        speak::message(&mut queue, &own.storage, &own.launcher, session, &speaker, &message)
    };
    let accepted = gateway.jobs().run(session, Kind::Write, work).await?;
    let start = ResumePoint { message: accepted.event, after: accepted.event - 1 };
    let run_id = Some(input.run_id);
    Ok(Stream::new(gateway, session, input.version, input.thread_id, run_id, start).await?.into_response())
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
    let work = move || stream::resume_point(&mut own.root.queue(session)?, after);
    let start = gateway.jobs().run(session, Kind::Read, work).await?;
    let version = input::version(query.version.as_deref().unwrap_or("1"));
    Ok(Stream::new(gateway, session, version, query.thread_id, None, start).await?.into_response())
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
    let before = query.before.map(|seq| Place::Seq(u64::try_from(seq).unwrap_or(0)));
    let page = history::read(&gateway.hub.context, session, before, limit).await?;
    let messages = page.messages;
    Ok(Json(json!({ "threadId": query.thread_id, "messages": messages, "hasMore": page.has_more })))
}
