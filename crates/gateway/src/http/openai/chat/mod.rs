//! `POST /v1/chat/completions`.

mod printer;
mod request;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use self::printer::Printer;
use self::request::ChatRequest;
pub use self::request::{flag, text, user};
use super::asked::{Begun, Request};
use super::begin::begin;
use super::error::{Failures, OpenAiError, Result};
use super::follow::{Follower, Step};
use super::models::{Chosen, chosen};
use super::text::digest_of;
use crate::access::origin;
use crate::gateway::Gateway;
use crate::http::sse::{self, Source};

/// The client's names for a conversation, the first of which counts.
const CHAT: [&str; 2] = ["x-openwebui-chat-id", "x-session-id"];

/// How often the client has sent this request before.
const RETRY: &str = "x-stainless-retry-count";

/// In every response: the session in which the run is.
pub const SESSION: HeaderName = HeaderName::from_static("x-session-id");

/// The longest name that a client may give a conversation, in bytes.
const MAX_NAME: usize = 200;

/// A chat completion, whole or as a stream
#[utoipa::path(post, path = "/v1/chat/completions", tag = "openai",
    request_body = Value,
    responses(
        (status = 200, content((Value = "application/json"), (String = "text/event-stream"))),
        Failures))]
pub async fn complete(
    State(gateway): State<Arc<Gateway>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response> {
    let read = parsed(&body)?;
    let asked = ChatRequest::read(&read)?;
    let Chosen { name: chosen, is_task } = chosen(&gateway, Some(&asked.model), &headers)?;
    let request = Request {
        conversation: asked.conversation,
        tools: asked.tools,
        user: asked.user,
        chat: chat_of(&headers)?,
        body: digest_of(&body),
        is_retry: is_retry(&headers),
        own: origin::own(&headers),
        after: None,
        model: chosen.clone(),
        is_named: true,
        previous: None,
        background: false,
        is_task,
    };
    let begun = begin(&gateway, request).await?;
    let printer = Printer::new(begun, chosen, !asked.stream, asked.include_usage);
    let follower = Follower::new(gateway.clone(), begun).await?;
    if asked.stream {
        return Ok(in_session(begun, sse::of(Chunks::new(follower, printer))));
    }
    whole(follower, printer).await.map(|whole| in_session(begun, Json(whole).into_response()))
}

/// The body of a request, as JSON.
pub fn parsed(body: &[u8]) -> Result<Value> {
    serde_json::from_slice(body).map_err(|e| OpenAiError::bad(format!("the body is not JSON: {e}")))
}

/// The client's name for the conversation.
pub fn chat_of(headers: &HeaderMap) -> Result<Option<String>> {
    let Some((name, value)) = CHAT.into_iter().find_map(|name| Some((name, headers.get(name)?))) else {
        return Ok(None);
    };
    match value.to_str().map(str::trim) {
        Ok(value) if (1..=MAX_NAME).contains(&value.len()) => Ok(Some(value.to_owned())),
        _ => Err(OpenAiError::of_param(name, format!("the header '{name}' must have 1 to {MAX_NAME} bytes"))),
    }
}

pub fn is_retry(headers: &HeaderMap) -> bool {
    let count = headers.get(RETRY).and_then(|count| count.to_str().ok()?.trim().parse::<u64>().ok());
    count.is_some_and(|count| count > 0)
}

/// A response that says in which session the run is.
pub fn in_session(begun: Begun, mut response: Response) -> Response {
    if let Ok(session) = HeaderValue::try_from(begun.session.to_string()) {
        response.headers_mut().insert(SESSION, session);
    }
    response
}

/// Waits for the end of a run.
async fn whole(mut follower: Follower, mut printer: Printer) -> Result<Value> {
    while !printer.is_over() {
        match follower.next().await {
            Step::Quiet | Step::CaughtUp => {}
            Step::Lost => return Err(OpenAiError::ending()),
            Step::Event(event, pieces) => {
                printer.at(event.id(), &event.record.event.created_at);
                for piece in pieces {
                    if !printer.is_over() {
                        printer.piece(event.id(), piece);
                    }
                }
            }
        }
    }
    match printer.failed() {
        Some(error) => Err(error),
        None => Ok(printer.whole(follower.shown().used)),
    }
}

/// A completion in chunks.
struct Chunks {
    follower: Follower,
    printer: Printer,
    has_begun: bool,
    /// What is ready to be written.
    ready: VecDeque<Value>,
    is_done: bool,
}

impl Chunks {
    fn new(follower: Follower, printer: Printer) -> Chunks {
        Chunks { follower, printer, has_begun: false, ready: VecDeque::new(), is_done: false }
    }

    /// The chunks that are ready, as events.
    fn written(&mut self) -> Bytes {
        let mut text = String::new();
        for chunk in self.ready.drain(..) {
            text += &format!("data: {chunk}\n\n");
        }
        if self.printer.is_over() {
            self.is_done = true;
            text += "data: [DONE]\n\n";
        }
        text.into()
    }
}

impl Source for Chunks {
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
                    self.printer.at(event.id(), &event.record.event.created_at);
                    if !self.has_begun && event.id() >= self.printer.begins_at() {
                        self.has_begun = true;
                        self.ready.push_back(self.printer.begin());
                    }
                    for piece in pieces {
                        if !self.printer.is_over() {
                            self.ready.extend(self.printer.piece(event.id(), piece));
                        }
                    }
                    if self.printer.is_over() {
                        self.ready.extend(self.printer.usage(self.follower.shown().used));
                    }
                    if !self.ready.is_empty() {
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
