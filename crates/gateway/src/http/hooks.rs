//! `POST /hooks/NAME`: webhooks of others become events. A signature of the body is the right to push.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use thread::Queue;
use thread::model::event::NewEvent;
use thread_protocol::code;
use thread_sessions::{Kind, RequestError};

use super::error::{Failures, HttpError};
use super::threads::ApiError;
use crate::gateway::{Gateway, READ_ONLY};
use crate::inspect::Inspector;
use crate::inspect::dto::Pushed;
use crate::inspect::threads::Target;
use crate::webhooks::Hook;
use crate::webhooks::signature::{Refused, check};

/// The longest body, in bytes. It is in memory before it is known whether it is signed.
const LONGEST: usize = 4 * 1024 * 1024;

/// Store a webhook as an event, and wake the consumers
///
/// The signature of its sender is needed in place of a token. The event has the sender's id of the delivery as its key, so a
/// delivery that is repeated is one event.
#[utoipa::path(post, path = "/hooks/{name}", tag = "webhooks",
    params(("name" = String, Path, description = "A name of --hook")),
    request_body(content = String, description = "What the sender signed, at most 4 MiB"),
    responses((status = 200, body = Pushed), Failures),
    security(()))]
pub async fn receive(
    State(gateway): State<Arc<Gateway>>,
    Path(name): Path<String>,
    headers: HeaderMap,
    request: axum::extract::Request,
) -> Response {
    match taken(&gateway, &name, &headers, request).await {
        Ok(pushed) => Json(pushed).into_response(),
        Err(error) => {
            let is_busy = error.status == StatusCode::SERVICE_UNAVAILABLE;
            let mut response = error.into_response();
            if is_busy {
                response.headers_mut().insert(header::RETRY_AFTER, 5.into());
            }
            response
        }
    }
}

async fn taken(
    gateway: &Arc<Gateway>,
    name: &str,
    headers: &HeaderMap,
    request: axum::extract::Request,
) -> Result<Pushed, HttpError> {
    if gateway.read_only {
        let (status, error) = (StatusCode::FORBIDDEN, READ_ONLY.to_owned());
        return Err(HttpError { status, error, code: code::READ_ONLY });
    }
    let new = |status, why: &str| HttpError::new(status, why.to_owned());
    let hook = gateway.hooks.find(name);
    let hook = hook.ok_or_else(|| new(StatusCode::NOT_FOUND, "there is no such webhook; see --hook"))?;
    let too_many = || new(StatusCode::SERVICE_UNAVAILABLE, "too many webhooks at once; send it again");
    let reading = gateway.hooks.reading.try_acquire().map_err(|_| too_many())?;
    let body = axum::body::to_bytes(request.into_body(), LONGEST).await;
    drop(reading);
    let body: Bytes = body.map_err(|_| {
        new(StatusCode::PAYLOAD_TOO_LARGE, "the body is longer than 4 MiB, or did not come in time")
    })?;
    let signed = check(hook.sender, &hook.secret, headers, &body).map_err(|refused| match refused {
        Refused::Unsigned(why) => {
            gateway.counters.wrong_tokens.count();
            tracing::warn!(hook = name, "a webhook is refused: {why}");
            new(StatusCode::UNAUTHORIZED, "the signature is not that of this webhook's secret and of now")
        }
        Refused::Malformed(why) => new(StatusCode::BAD_REQUEST, why),
    })?;
    let text =
        String::from_utf8(body.into()).map_err(|_| new(StatusCode::BAD_REQUEST, "the body is not UTF-8"))?;
    let kind = signed.kind.filter(|kind| !kind.is_empty());
    let event = event_of(hook, signed.id, kind, text);
    let event = event.map_err(|e| ApiError::from(RequestError::Thread(e)).into_http())?;
    let push = move |own: &Inspector, _: &Target, queue: &mut Queue| match own.push(queue, &event) {
        // Some senders change a little of it when they repeat a delivery.
        Err(RequestError::Thread(thread::Error::KeyConflict { id, .. })) => {
            let created_at = queue.stored_at(id)?.unwrap_or_default();
            Ok(Pushed { id, created_at, deduplicated: true, ..Pushed::default() })
        }
        pushed => pushed,
    };
    let pushed = gateway.inspector.at(&hook.thread, Kind::Write, push).await;
    pushed.map_err(|e| ApiError::from(e).into_http())
}

fn event_of(
    hook: &Hook,
    delivery: String,
    kind: Option<String>,
    text: String,
) -> thread::Result<NewEvent<'static>> {
    let metadata = json!({ "hook": hook.name, "delivery": delivery }).to_string();
    let source = format!("external:webhook:{}", hook.name);
    let event = NewEvent::new(source, "message", kind.map(Into::into), text)?.with_metadata(&metadata)?;
    Ok(event.with_key(delivery)?)
}
