//! Conversations for clients of AG-UI, over HTTP and server-sent events.

pub mod input;
pub mod respond;
pub mod stream;
pub mod translate;
mod writer;

use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use thread::Queue;
use thread_conversation::{ClientInput, Entry};
use thread_protocol::Content;
use thread_protocol::method::MessageRef;
use thread_sessions::{Kind, RequestError, Result, SessionId};

use self::input::{Input, unsupported};
use self::respond::{pending_input, respond};
use self::stream::{Point, Stream};
use self::translate::Start;
use self::writer::Version;
use super::attachments;
use super::error::{Failures, HttpError};
use crate::access::origin;
use crate::agents::seating::Choice;
use crate::gateway::Gateway;
use crate::session::history;
use crate::session::root::create_if_missing;
use crate::session::write::{self, Author, ClientMessage, SessionWriter};

/// The client type of AG-UI clients, which have no ids of their own.
const CLIENT: &str = "ag-ui";

fn author() -> Author {
    Author { client: CLIENT.into(), client_type: CLIENT.into() }
}

#[derive(Deserialize)]
pub struct RunQuery {
    /// For clients that do not give it in their input: `0`, `1` or `1.0`.
    protocol: Option<String>,
    /// `cancel`: a client that leaves ends the run.
    on_disconnect: Option<String>,
    /// The name of the agent of a session that this request creates.
    agent: Option<String>,
}

/// `POST /api/v1/agent/run`: stores the message and streams its run, or continues a run that waits for the client.
///
/// The body is a `RunAgentInput`, and the answer a stream of AG-UI events.
#[utoipa::path(post, path = "/api/v1/agent/run", tag = "ag-ui",
    params(("protocol" = Option<String>, Query), ("on_disconnect" = Option<String>, Query),
        ("agent" = Option<String>, Query)),
    request_body = Value,
    responses((status = 200, content_type = "text/event-stream", body = String), Failures))]
pub async fn run(
    State(gateway): State<Arc<Gateway>>,
    Query(query): Query<RunQuery>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Result<Response, HttpError> {
    let mut input = Input::read(body)?;
    let version = input.version.or(Version::of_query(query.protocol.as_deref())).unwrap_or(Version::Zero);
    let cancels = match query.on_disconnect.as_deref() {
        None => false,
        Some("cancel") => true,
        Some(_) => {
            return Err(RequestError::BadParams("'on_disconnect' is 'cancel' or left out".into()).into());
        }
    };
    let session = SessionId::named(&input.thread_id);
    gateway.root.refuse_deleted(session)?;
    let (thread_id, run_id) = (input.thread_id.clone(), input.run_id.clone());
    let choice = Choice { agent: query.agent, ..Choice::default() };
    let own = gateway.clone();
    let work = move || {
        create_if_missing(&own.root, session, || own.agents.seat(session, &choice))?;
        let mut queue = own.root.queue(session)?;
        own.agents.refresh(&mut queue, session)?;
        let start = respond(&mut own.writer(&mut queue, session, &author()), &input)?;
        if start.is_none() && is_edited(&mut queue, &input)? {
            let reason = "the agent continues with this thread's messages, not with those given";
            unsupported(&mut input.handed, "messages", reason);
        }
        let pending_input = start.map(|start| pending_input(&mut queue, start.message)).transpose()?;
        Ok((start.zip(pending_input), std::mem::take(&mut input.message), std::mem::take(&mut input.handed)))
    };
    let (going_on, message, handed) = gateway.pool().run(session, Kind::Write, work).await?;
    let (start, pending_input) = match (going_on, message) {
        (Some(found), _) => found,
        (None, Some(message)) => {
            let mut own = origin::own(&headers);
            own.push(gateway.storage.base.clone());
            let mut content = message.content;
            let handed = take_files(&gateway, session, &mut content, handed).await?;
            let mut metadata = serde_json::Map::new();
            let (content, attachments) =
                write::extract_attachments(&gateway.storage, &own, content, &mut metadata)?;
            if !handed.0.is_empty() {
                metadata.insert(ClientInput::KEY.to_owned(), handed.0.into());
            }
            // The lengths keep two pairs of ids apart that are the same when joined.
            let key = format!("agui:{}:{run_id}:{}", run_id.len(), message.id);
            let message = ClientMessage {
                content,
                priority: Default::default(),
                metadata,
                // A second request with the same ids is a resend, and gets the same run.
                key: Some(key),
                is_only: false,
                run_id: Some(run_id.clone()),
                message_id: Some(message.id),
                due: None,
                attachments,
            };
            let work = move |to: &mut SessionWriter<'_>| {
                let accepted = to.message(&message)?;
                Ok((Start::of_message(accepted.event), pending_input(to.queue, accepted.event)?))
            };
            gateway.write(session, author(), work).await?
        }
        (None, None) => return Err(RequestError::BadParams("there is no user message".into()).into()),
    };
    let (after, run_id) = (start.shown, Some(run_id));
    let point = Point { start: Some(start), after, pending: pending_input, run_id, cancels };
    Ok(Stream::new(gateway, session, version, thread_id, point).await?.into_response())
}

/// Whether the input has another conversation than the one that the agent knows: its user message before the
/// last one is not the one that an AG-UI client has sent last.
fn is_edited(queue: &mut Queue, input: &Input) -> Result<bool> {
    let Some(previous) = &input.previous else { return Ok(false) };
    let condition = format!("type = 'message' AND source LIKE 'external:gateway:{CLIENT}:%'");
    let newest = history::newest(queue, &condition, i64::MAX, 1)?.pop();
    Ok(match newest.map(|stored| stored.record.entry) {
        Some(Entry::Message(message)) => {
            let last = input.message.as_ref().map(|message| &message.id);
            // A resend finds itself.
            message.message_id.as_ref() != Some(previous) && message.message_id.as_ref() != last
        }
        _ => true,
    })
}

/// Stores the files embedded in a message, and notes those that only this client can read.
async fn take_files(
    gateway: &Arc<Gateway>,
    session: SessionId,
    content: &mut Content,
    mut handed: ClientInput,
) -> Result<ClientInput, HttpError> {
    let Content::Parts(parts) = content else { return Ok(handed) };
    for part in parts {
        attachments::store_inline(gateway, session, part).await?;
        if part["source"]["type"] == "file" {
            unsupported(&mut handed, "messages", "a file that only its provider can read");
        }
    }
    Ok(handed)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventsQuery {
    thread_id: String,
    after: Option<i64>,
    /// `0`, `1` or `1.0`, the default.
    protocol: Option<String>,
}

/// `GET /api/v1/agent/events`: resumes an interrupted stream.
///
/// After Last-Event-ID, or the query's `after`.
#[utoipa::path(get, path = "/api/v1/agent/events", tag = "ag-ui",
    params(("threadId" = String, Query), ("after" = Option<i64>, Query), ("protocol" = Option<String>, Query)),
    responses((status = 200, content_type = "text/event-stream", body = String), Failures))]
pub async fn events(
    State(gateway): State<Arc<Gateway>>,
    headers: HeaderMap,
    Query(query): Query<EventsQuery>,
) -> Result<Response, HttpError> {
    let session = SessionId::named(&query.thread_id);
    let last = headers.get("last-event-id").and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let after: Option<i64> = last.or(query.after);
    let point = gateway.read(session, move |queue| stream::resume_point(queue, after)).await?;
    let version = Version::of_query(query.protocol.as_deref()).unwrap_or(Version::One);
    Ok(Stream::new(gateway, session, version, query.thread_id, point).await?.into_response())
}

fn parsed<T: serde::de::DeserializeOwned>(body: Value) -> Result<T> {
    serde_json::from_value(body).map_err(|e| RequestError::BadParams(e.to_string()))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CancelBody {
    thread_id: String,
    run_id: Option<String>,
}

/// `POST /api/v1/agent/cancel`: ends a run, by default the one under way.
///
/// The body is `{"threadId","runId"?}`.
#[utoipa::path(post, path = "/api/v1/agent/cancel", tag = "ag-ui",
    request_body = Value,
    responses((status = 200, body = Value), Failures))]
pub async fn cancel(
    State(gateway): State<Arc<Gateway>>,
    Json(body): Json<Value>,
) -> Result<Json<Value>, HttpError> {
    let body: CancelBody = parsed(body)?;
    let session = SessionId::named(&body.thread_id);
    let run_id = gateway.write(session, author(), move |to| to.cancel(body.run_id.as_deref())).await?;
    let run_id =
        run_id.ok_or(HttpError::new(StatusCode::NOT_FOUND, "no run is under way in this thread".into()))?;
    Ok(Json(json!({ "runId": run_id, "message": "Cancellation requested" })))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PermissionBody {
    thread_id: String,
    request_id: String,
    choice: String,
}

/// `POST /api/v1/agent/permission`: answers a request for permission.
///
/// The body is `{"threadId","requestId","choice"}`.
#[utoipa::path(post, path = "/api/v1/agent/permission", tag = "ag-ui",
    request_body = Value,
    responses((status = 200, body = Value), Failures))]
pub async fn permission(
    State(gateway): State<Arc<Gateway>>,
    Json(body): Json<Value>,
) -> Result<Json<Value>, HttpError> {
    let body: PermissionBody = parsed(body)?;
    let session = SessionId::named(&body.thread_id);
    let work = move |to: &mut SessionWriter<'_>| to.permission(&body.request_id, &body.choice);
    gateway.write(session, author(), work).await?;
    Ok(Json(json!({})))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryQuery {
    thread_id: String,
    limit: Option<usize>,
    before: Option<i64>,
}

/// `GET /api/v1/agent/history`: the last messages, oldest first.
///
/// See PROTOCOL.md.
#[utoipa::path(get, path = "/api/v1/agent/history", tag = "ag-ui",
    params(("threadId" = String, Query), ("limit" = Option<u32>, Query), ("before" = Option<i64>, Query)),
    responses((status = 200, body = Value), Failures))]
pub async fn message_history(
    State(gateway): State<Arc<Gateway>>,
    Query(query): Query<HistoryQuery>,
) -> Result<Json<Value>, HttpError> {
    let session = SessionId::named(&query.thread_id);
    let limit = query.limit.unwrap_or(50).clamp(1, 200);
    let before = query.before.map(|seq| MessageRef::Seq(u64::try_from(seq).unwrap_or(0)));
    let page = history::read(&gateway.hub.context, session, before, limit).await?;
    let messages = page.messages;
    Ok(Json(json!({ "threadId": query.thread_id, "messages": messages, "hasMore": page.has_more })))
}
