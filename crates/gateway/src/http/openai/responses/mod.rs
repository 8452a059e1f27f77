//! `POST /v1/responses`, and what can be done with a response by its id.
//!
//! A response is what a client is shown of a run: from a message, or from the results of its tools on, to the answer or
//! the next call of one of its tools. It is read from the session's thread whenever it is asked for.

mod printer;
mod request;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use thread::model::key::IdempotencyKey;
use thread::{Error, NewEvent, Queue};
use thread_sessions::RequestError;
use tokio::time::{Instant, timeout_at};

use self::printer::{Frame, Printer, RESPONSE};
use self::request::ResponseRequest;
use super::asked::{Begun, Request, author};
use super::begin::begin;
use super::chat::{chat_of, in_session, is_retry, parsed};
use super::error::{Failures, OpenAiError, Result};
use super::follow::{Follower, Step};
use super::ids;
use super::models::{Chosen, chosen, model};
use super::text::digest_of;
use crate::access::origin;
use crate::gateway::Gateway;
use crate::http::agui::translate::Start;
use crate::http::sse::{self, Source};
use crate::session::history;
use crate::session::write::SessionWriter;

/// How long a request to cancel waits until the run has ended.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(10);

/// The event that says that a response was deleted.
const DELETED: &str = "response_deleted";

/// A response, whole or as a stream
#[utoipa::path(post, path = "/v1/responses", tag = "openai",
    request_body = Value,
    responses(
        (status = 200, content((Value = "application/json"), (String = "text/event-stream"))),
        Failures))]
pub async fn create(
    State(gateway): State<Arc<Gateway>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response> {
    let read = parsed(&body)?;
    let asked = ResponseRequest::read(&read)?;
    let Chosen { name: chosen, is_task } = chosen(&gateway, asked.model.as_deref(), &headers)?;
    let after = match &asked.previous {
        Some(previous) => Some(found(&gateway, previous).await.map_err(|e| of_previous(e, previous))?),
        None => None,
    };
    let request = Request {
        is_named: asked.model.is_some(),
        conversation: asked.conversation,
        tools: asked.tools,
        user: asked.user,
        chat: chat_of(&headers)?,
        body: digest_of(&body),
        is_retry: is_retry(&headers),
        own: origin::own(&headers),
        after: after.map(|after| (after.session, after.start.message)),
        model: chosen.clone(),
        previous: asked.previous,
        background: asked.background,
        is_task,
    };
    let begun = begin(&gateway, request).await?;
    let follower = Follower::new(gateway.clone(), begun).await?;
    let printer = Printer::new(begun, chosen);
    if asked.stream {
        return Ok(in_session(begun, sse::of(Frames::new(follower, printer, i64::MIN))));
    }
    let until = if asked.background { Until::Now } else { Until::End };
    let response = read_response(follower, printer, until).await?;
    Ok(in_session(begun, Json(response).into_response()))
}

fn of_previous(error: OpenAiError, id: &str) -> OpenAiError {
    let message = format!("there is no response '{id}'");
    let code = Some("previous_response_not_found");
    match error.status.is_client_error() {
        true => OpenAiError { code, ..OpenAiError::of_param("previous_response_id", message) },
        false => error,
    }
}

#[derive(Deserialize)]
pub struct GetQuery {
    #[serde(default)]
    stream: bool,
    starting_after: Option<i64>,
}

/// A response as it is now, or the rest of its stream
#[utoipa::path(get, path = "/v1/responses/{id}", tag = "openai",
    params(("id" = String, Path), ("stream" = Option<bool>, Query), ("starting_after" = Option<i64>, Query)),
    responses(
        (status = 200, content((Value = "application/json"), (String = "text/event-stream"))),
        Failures))]
pub async fn get(
    State(gateway): State<Arc<Gateway>>,
    Path(id): Path<String>,
    Query(query): Query<GetQuery>,
) -> Result<Response> {
    let begun = found(&gateway, &id).await?;
    let printer = Printer::new(begun, default_name(&gateway));
    let follower = Follower::new(gateway.clone(), begun).await?;
    if query.stream {
        let after = query.starting_after.unwrap_or(i64::MIN);
        return Ok(in_session(begun, sse::of(Frames::new(follower, printer, after))));
    }
    let response = read_response(follower, printer, Until::Now).await?;
    Ok(in_session(begun, Json(response).into_response()))
}

/// Ends the run of a response
#[utoipa::path(post, path = "/v1/responses/{id}/cancel", tag = "openai", params(("id" = String, Path)),
    responses((status = 200, body = Value), Failures))]
pub async fn cancel(State(gateway): State<Arc<Gateway>>, Path(id): Path<String>) -> Result<Response> {
    let begun = found(&gateway, &id).await?;
    let message = begun.start.message;
    let work = move |to: &mut SessionWriter<'_>| to.cancel_run_of(message);
    gateway.write(begun.session, author(None), work).await?;
    let printer = Printer::new(begun, default_name(&gateway));
    let follower = Follower::new(gateway.clone(), begun).await?;
    let response = read_response(follower, printer, Until::Then(Instant::now() + CANCEL_TIMEOUT)).await?;
    Ok(in_session(begun, Json(response).into_response()))
}

/// Makes a response unknown; the conversation stays as it is
#[utoipa::path(delete, path = "/v1/responses/{id}", tag = "openai", params(("id" = String, Path)),
    responses((status = 200, body = Value), Failures))]
pub async fn delete(State(gateway): State<Arc<Gateway>>, Path(id): Path<String>) -> Result<Json<Value>> {
    let begun = found(&gateway, &id).await?;
    let event = begun.start.event;
    let work = move |to: &mut SessionWriter<'_>| {
        let deleted = NewEvent::new(to.source(), "record", Some(DELETED.into()), event.to_string());
        let deleted = deleted.map_err(Error::from)?.keyed(IdempotencyKey::of_event(DELETED, event));
        match to.push(&deleted) {
            // Another request has just deleted it.
            Err(RequestError::Thread(Error::KeyConflict { .. })) => Ok(()),
            done => done,
        }
    };
    gateway.write(begun.session, author(None), work).await?;
    Ok(Json(json!({ "id": id, "object": "response", "deleted": true })))
}

fn default_name(gateway: &Gateway) -> String {
    model(gateway, None).unwrap_or_default()
}

/// What a response shows.
async fn found(gateway: &Arc<Gateway>, id: &str) -> Result<Begun> {
    let missing = || OpenAiError {
        code: Some("response_not_found"),
        ..OpenAiError::not_found(format!("there is no response '{id}'"))
    };
    let (session, event) = ids::place(RESPONSE, id).ok_or_else(missing)?;
    let work = move |queue: &mut Queue| start_of(queue, event);
    match gateway.read(session, work).await {
        Ok(start) => start.map(|start| Begun { session, start }).ok_or_else(missing),
        Err(RequestError::UnknownSession(_)) => Err(missing()),
        Err(e) => Err(e.into()),
    }
}

/// Where a response begins; `None` if no event begins one, or it was deleted.
fn start_of(queue: &mut Queue, event: i64) -> thread_sessions::Result<Option<Start>> {
    if queue.id_of_key(&IdempotencyKey::of_event(DELETED, event))?.is_some() {
        return Ok(None);
    }
    Ok(history::event(queue, event)?.as_ref().and_then(Start::of))
}

/// Until when a response is read.
enum Until {
    /// As it is now.
    Now,
    End,
    Then(Instant),
}

async fn read_response(mut follower: Follower, mut printer: Printer, until: Until) -> Result<Value> {
    while !printer.is_over() {
        let step = match until {
            Until::Then(limit) => match timeout_at(limit, follower.next()).await {
                Ok(step) => step,
                // It continues; the client may ask again.
                Err(_) => break,
            },
            _ => follower.next().await,
        };
        match step {
            Step::CaughtUp if matches!(until, Until::Now) => break,
            Step::CaughtUp | Step::Quiet => {}
            Step::Lost => return Err(OpenAiError::ending()),
            Step::Event(event, pieces) => drop(printer.event(&event.record, pieces, follower.shown())),
        }
    }
    Ok(printer.response())
}

/// A response as a stream of frames.
struct Frames {
    follower: Follower,
    printer: Printer,
    /// The client has the frames up to this number.
    after: i64,
    ready: VecDeque<Frame>,
    is_done: bool,
}

impl Frames {
    fn new(follower: Follower, printer: Printer, after: i64) -> Frames {
        Frames { follower, printer, after, ready: VecDeque::new(), is_done: false }
    }

    fn written(&mut self) -> Bytes {
        let mut text = String::new();
        for (_, frame) in self.ready.drain(..) {
            text += &format!("event: {}\ndata: {frame}\n\n", frame["type"].as_str().unwrap_or_default());
        }
        if self.is_done {
            text += "data: [DONE]\n\n";
        }
        text.into()
    }
}

impl Source for Frames {
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        while !self.is_done {
            match self.follower.next().await {
                Step::CaughtUp => {}
                Step::Quiet => return Some(Ok(Bytes::from_static(b": alive\n\n"))),
                Step::Lost => {
                    self.is_done = true;
                    return Some(Err(io::ErrorKind::ConnectionAborted.into()));
                }
                Step::Event(event, pieces) => {
                    let frames = self.printer.event(&event.record, pieces, self.follower.shown());
                    self.ready.extend(frames.into_iter().filter(|(number, _)| *number > self.after));
                    self.is_done = self.printer.is_over();
                    if self.is_done || !self.ready.is_empty() {
                        return Some(Ok(self.written()));
                    }
                }
            }
        }
        None
    }

    fn forget(&mut self) {
        self.follower.forget();
    }

    /// A closed connection cancels nothing.
    async fn left(self) {}
}
