//! Requests that change something.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::Value;
use thread::Queue;
use thread::model::due::Due;
use thread::model::event::{InvalidEvent, NewEvent};
use thread::model::position::Position;
use thread::model::run::StopRequest;
use thread::model::scheduled::ScheduledId;
use thread::model::subscription::ConsumerId;
use thread::model::time;
use thread_sessions::excerpt::echoed;
use thread_sessions::{Kind, RequestError};
use utoipa::ToSchema;

use super::ThreadPath;
use super::error::{ApiError, Body, Path};
use crate::gateway::Gateway;
use crate::http::error::Failures;
use crate::inspect::Inspector;
use crate::inspect::dead::Meant;
use crate::inspect::dto::{Cancelled, Consumer, Discarded, Pushed, Retried};
use crate::inspect::threads::Target;
use crate::inspect::verbs::Verb;

/// The most events that a request names, and the longest time that a stop gives processes.
const MOST_IDS: usize = 10_000;
const LONGEST_GRACE: u64 = 60_000;

/// An event to store.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewEventBody {
    #[schema(min_length = 1)]
    source: String,
    /// `message` or `record`.
    #[serde(rename = "type")]
    #[schema(pattern = "^(message|record)$")]
    kind: String,
    subtype: Option<String>,
    content: String,
    #[schema(value_type = Option<Object>)]
    metadata: Option<serde_json::Map<String, Value>>,
    /// Storing an event again under the same key stores nothing.
    #[schema(min_length = 1)]
    idempotency_key: Option<String>,
    /// When it is to become an event, in the form of RFC 3339; now, if it is missing or past.
    #[schema(format = DateTime)]
    at: Option<String>,
}

impl NewEventBody {
    fn event(self) -> thread::Result<NewEvent<'static>> {
        let mut event = NewEvent::new(self.source, &self.kind, self.subtype.map(Into::into), self.content)?;
        if let Some(metadata) = self.metadata {
            event = event.with_metadata(&Value::Object(metadata).to_string())?;
        }
        if let Some(at) = self.at {
            let wrong = || {
                let at = echoed(&at);
                InvalidEvent(format!("has '{at}' as its time, which is not like 2026-03-18T10:30:00Z"))
            };
            event = event.with_due(Due::At(time::parse(&at).ok_or_else(wrong)?))?;
        }
        match self.idempotency_key {
            Some(key) => Ok(event.with_key(key)?),
            None => Ok(event),
        }
    }
}

/// Store an event now, and wake the consumers, or later
#[utoipa::path(post, path = "/api/v1/threads/{thread}/events", tag = "threads",
    params(ThreadPath),
    request_body = NewEventBody,
    responses((status = 201, body = Pushed), Failures))]
pub async fn push(
    State(gateway): State<Arc<Gateway>>,
    Path(thread): Path<String>,
    Body(body): Body<NewEventBody>,
) -> Result<(StatusCode, Json<Pushed>), ApiError> {
    let event = body.event().map_err(RequestError::Thread)?;
    let pushed = gateway.inspector.at(&thread, Kind::Write, move |own, _, queue| own.push(queue, &event));
    Ok((StatusCode::CREATED, Json(pushed.await?)))
}

/// Does something with a scheduled event.
async fn with_scheduled<T: Send + 'static>(
    gateway: &Gateway,
    (thread, scheduled): (String, String),
    act: fn(&Inspector, &mut Queue, ScheduledId) -> thread_sessions::Result<T>,
) -> Result<Json<T>, ApiError> {
    let wrong = |why| ApiError::bad(format!("'{}': {why}", echoed(&scheduled)));
    let id = ScheduledId::parse(&scheduled).map_err(wrong)?;
    let act = move |own: &Inspector, _: &Target, queue: &mut Queue| act(own, queue, id);
    Ok(Json(gateway.inspector.at(&thread, Kind::Write, act).await?))
}

/// Forget a scheduled event, and free its idempotency key
#[utoipa::path(post, path = "/api/v1/threads/{thread}/scheduled/{scheduled}/cancel", tag = "threads",
    params(ThreadPath, ("scheduled" = String, Path, description = "Its number, such as `s17`.")),
    request_body = Nothing,
    responses((status = 200, body = Cancelled), Failures))]
pub async fn cancel_scheduled(
    State(gateway): State<Arc<Gateway>>,
    Path(path): Path<(String, String)>,
    Body(Nothing {}): Body<Nothing>,
) -> Result<Json<Cancelled>, ApiError> {
    with_scheduled(&gateway, path, Inspector::cancel_scheduled).await
}

/// Make a scheduled event an event now, and wake the consumers
#[utoipa::path(post, path = "/api/v1/threads/{thread}/scheduled/{scheduled}/now", tag = "threads",
    params(ThreadPath, ("scheduled" = String, Path, description = "Its number, such as `s17`.")),
    request_body = Nothing,
    responses((status = 200, body = Pushed), Failures))]
pub async fn make_scheduled_now(
    State(gateway): State<Arc<Gateway>>,
    Path(path): Path<(String, String)>,
    Body(Nothing {}): Body<Nothing>,
) -> Result<Json<Pushed>, ApiError> {
    with_scheduled(&gateway, path, Inspector::make_scheduled_now).await
}

/// Dead letters of a consumer: of some events, with one reason, or all.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeadBody {
    consumer: String,
    /// Of these events; all of them must be dead letters.
    ids: Option<Vec<i64>>,
    /// With this reason, apart from numbers and ids in it.
    reason: Option<String>,
    all: Option<bool>,
}

impl DeadBody {
    fn meant(self) -> Result<(ConsumerId, Meant), ApiError> {
        let meant = match (self.ids, self.reason, self.all.unwrap_or(false)) {
            (Some(ids), None, false) if ids.len() > MOST_IDS => {
                return Err(ApiError::bad(format!("a request names at most {MOST_IDS} events")));
            }
            (Some(ids), None, false) => Meant::Events(ids.into_iter().collect()),
            (None, Some(reason), false) => Meant::Reason(reason),
            (None, None, true) => Meant::All,
            _ => return Err(ApiError::bad("give one of 'ids', 'reason' and 'all': true")),
        };
        Ok((ConsumerId::stored(self.consumer), meant))
    }
}

/// Deliver dead letters again
#[utoipa::path(post, path = "/api/v1/threads/{thread}/dead/retry", tag = "threads",
    params(ThreadPath),
    request_body = DeadBody,
    responses((status = 200, body = Retried), Failures))]
pub async fn retry(
    State(gateway): State<Arc<Gateway>>,
    Path(thread): Path<String>,
    Body(body): Body<DeadBody>,
) -> Result<Json<Retried>, ApiError> {
    let (consumer, meant) = body.meant()?;
    let retry = move |own: &Inspector, _: &Target, queue: &mut Queue| own.retry(queue, &consumer, &meant);
    Ok(Json(gateway.inspector.at(&thread, Kind::Write, retry).await?))
}

/// Forget dead letters; the events stay
#[utoipa::path(post, path = "/api/v1/threads/{thread}/dead/discard", tag = "threads",
    params(ThreadPath),
    request_body = DeadBody,
    responses((status = 200, body = Discarded), Failures))]
pub async fn discard(
    State(gateway): State<Arc<Gateway>>,
    Path(thread): Path<String>,
    Body(body): Body<DeadBody>,
) -> Result<Json<Discarded>, ApiError> {
    let (consumer, meant) = body.meant()?;
    let discard = move |own: &Inspector, _: &Target, queue: &mut Queue| own.discard(queue, &consumer, &meant);
    Ok(Json(gateway.inspector.at(&thread, Kind::Write, discard).await?))
}

/// Does something to a consumer.
async fn act(
    gateway: &Gateway,
    (thread, consumer): (String, String),
    verb: Verb,
) -> Result<Json<Consumer>, ApiError> {
    let consumer = ConsumerId::stored(consumer);
    let act = move |own: &Inspector, _: &Target, queue: &mut Queue| own.act(queue, &consumer, &verb);
    Ok(Json(gateway.inspector.at(&thread, Kind::Write, act).await?))
}

/// Nothing.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// Keep a consumer from being started
#[utoipa::path(post, path = "/api/v1/threads/{thread}/consumers/{consumer}/pause", tag = "threads",
    params(ThreadPath, ("consumer" = String, Path)),
    request_body = Nothing,
    responses((status = 200, body = Consumer), Failures))]
pub async fn pause(
    State(gateway): State<Arc<Gateway>>,
    Path(names): Path<(String, String)>,
    Body(Nothing {}): Body<Nothing>,
) -> Result<Json<Consumer>, ApiError> {
    act(&gateway, names, Verb::Pause).await
}

/// What to resume.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResumeBody {
    /// Only end the wait of this event, which is one of a pool or of a kept handler.
    event: Option<i64>,
}

/// Let a paused, stalled or waiting consumer start afresh
#[utoipa::path(post, path = "/api/v1/threads/{thread}/consumers/{consumer}/resume", tag = "threads",
    params(ThreadPath, ("consumer" = String, Path)),
    request_body = ResumeBody,
    responses((status = 200, body = Consumer), Failures))]
pub async fn resume(
    State(gateway): State<Arc<Gateway>>,
    Path(names): Path<(String, String)>,
    Body(body): Body<ResumeBody>,
) -> Result<Json<Consumer>, ApiError> {
    act(&gateway, names, body.event.map_or(Verb::Resume, Verb::ResumeEvent)).await
}

/// A finished event.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RedoBody {
    event: i64,
}

/// Deliver an event once more that the consumer has finished
#[utoipa::path(post, path = "/api/v1/threads/{thread}/consumers/{consumer}/redo", tag = "threads",
    params(ThreadPath, ("consumer" = String, Path)),
    request_body = RedoBody,
    responses((status = 200, body = Consumer), Failures))]
pub async fn redo(
    State(gateway): State<Arc<Gateway>>,
    Path(names): Path<(String, String)>,
    Body(RedoBody { event }): Body<RedoBody>,
) -> Result<Json<Consumer>, ApiError> {
    act(&gateway, names, Verb::Redo(event)).await
}

/// A step of a handler.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StepBody {
    event: i64,
    name: String,
}

/// Remove a step, so that the next run for its event does it again
#[utoipa::path(post, path = "/api/v1/threads/{thread}/consumers/{consumer}/forget_step", tag = "threads",
    params(ThreadPath, ("consumer" = String, Path)),
    request_body = StepBody,
    responses((status = 200, body = Consumer), Failures))]
pub async fn forget_step(
    State(gateway): State<Arc<Gateway>>,
    Path(names): Path<(String, String)>,
    Body(StepBody { event, name }): Body<StepBody>,
) -> Result<Json<Consumer>, ApiError> {
    act(&gateway, names, Verb::ForgetStep(event, name)).await
}

/// How to stop.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StopBody {
    /// Also acknowledge the events of the run or wait, so that they are not delivered again.
    skip: Option<bool>,
    /// How long its processes have before they are killed: ten seconds if it is left out, a minute at most.
    kill_after_ms: Option<u64>,
}

/// End a consumer's run or wait, and return when it is over
#[utoipa::path(post, path = "/api/v1/threads/{thread}/consumers/{consumer}/stop", tag = "threads",
    params(ThreadPath, ("consumer" = String, Path)),
    request_body = StopBody,
    responses((status = 200, body = Consumer), Failures))]
pub async fn stop(
    State(gateway): State<Arc<Gateway>>,
    Path(names): Path<(String, String)>,
    Body(body): Body<StopBody>,
) -> Result<Json<Consumer>, ApiError> {
    let default = StopRequest::default();
    let kill_after_ms = body.kill_after_ms.unwrap_or(default.kill_after_ms).min(LONGEST_GRACE);
    let request = StopRequest { kill_after_ms, skip: body.skip.unwrap_or(false), ..default };
    let (thread, consumer) = names;
    Ok(Json(gateway.inspector.stop(&thread, ConsumerId::stored(consumer), request).await?))
}

/// Where a cursor is to be moved.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SeekBody {
    to: To,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum To {
    /// Past this event; 0 is the beginning.
    Event(u64),
    /// `beginning`, `now`, an event's id, a time, or how long ago that was: `10m`.
    Word(String),
}

/// Move a consumer's cursor
#[utoipa::path(post, path = "/api/v1/threads/{thread}/consumers/{consumer}/seek", tag = "threads",
    params(ThreadPath, ("consumer" = String, Path)),
    request_body = SeekBody,
    responses((status = 200, body = Consumer), Failures))]
pub async fn seek(
    State(gateway): State<Arc<Gateway>>,
    Path(names): Path<(String, String)>,
    Body(body): Body<SeekBody>,
) -> Result<Json<Consumer>, ApiError> {
    let to = match body.to {
        To::Event(id) => Position::Event(i64::try_from(id).unwrap_or(i64::MAX)),
        To::Word(word) => Position::parse(&word)
            .map_err(|why| ApiError::bad(format!("the position '{}': {why}", word.escape_debug())))?,
    };
    act(&gateway, names, Verb::Seek(to)).await
}
