//! Requests that go on: what is watched, and events as they come, as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{self, HeaderMap, HeaderName};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Deserialize;
use serde_json::json;
use thread_protocol::code;
use tokio::sync::watch;
use tokio::time::timeout;
use utoipa::IntoParams;

use super::error::{ApiError, Path, Query};
use super::read::ListQuery;
use crate::gateway::Gateway;
use crate::http::error::{ErrorBody, HttpError};
use crate::inspect::events::filter;
use crate::inspect::tail::{Piece, Tail};
use crate::inspect::watched::Seen;

/// How often a comment is written to an idle stream, so that proxies do not close it.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);

const ALIVE: &[u8] = b": alive\n\n";

/// A response that goes on. The next piece is made once the client has taken the one before it.
fn response(gateway: Arc<Gateway>, source: impl AsyncSource + Send + 'static) -> Response {
    let pieces = stream::unfold(Some(source), move |source| {
        let gateway = gateway.clone();
        async move {
            let mut source = source?;
            let next = tokio::select! {
                next = timeout(KEEP_ALIVE_EVERY, source.next()) => next,
                () = gateway.shutting_down() => return None,
            };
            match next {
                Err(_) => Some((Ok::<_, Infallible>(Bytes::from_static(ALIVE)), Some(source))),
                Ok(Next::Piece(piece)) => Some((Ok(piece), Some(source))),
                Ok(Next::Last(piece)) => Some((Ok(piece), None)),
            }
        }
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache, no-transform"),
        // Proxies must not collect the events: nginx does, unless told otherwise.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(pieces)).into_response()
}

enum Next {
    Piece(Bytes),
    Last(Bytes),
}

/// Where pieces come from. Dropping the future of `next` loses nothing.
trait AsyncSource {
    fn next(&mut self) -> impl Future<Output = Next> + Send;
}

fn written(event: &str, data: &[u8]) -> Bytes {
    [b"event: ", event.as_bytes(), b"\ndata: ", data, b"\n\n"].concat().into()
}

fn failed(why: &str, code: &str) -> Next {
    Next::Last(written("failed", json!({ "error": why, "code": code }).to_string().as_bytes()))
}

/// Somebody who watches.
struct Watching {
    gateway: Arc<Gateway>,
    seen: watch::Receiver<Seen>,
    /// The page of the list.
    page: (usize, usize),
    /// The first look is not waited for if there was one.
    is_first: bool,
}

impl AsyncSource for Watching {
    async fn next(&mut self) -> Next {
        loop {
            if !std::mem::take(&mut self.is_first) && self.seen.changed().await.is_err() {
                return failed("the gateway does not look any more; come back later", code::UNAVAILABLE);
            }
            let seen = self.seen.borrow_and_update().clone();
            let (offset, limit) = self.page;
            match seen {
                Seen::NotYet => {}
                Seen::List(list) => {
                    let data = self.gateway.inspector.written_page_of(&list, offset, limit);
                    return Next::Piece(written("threads", &data));
                }
                Seen::Thread(data) => return Next::Piece(written("thread", &data)),
                Seen::Gone(why, code) => return failed(&why, code),
            }
        }
    }
}

/// Watch the list
///
/// Events `threads`, at once and whenever something has changed: the same as the list.
#[utoipa::path(get, path = "/api/v1/threads/watch", tag = "threads", params(ListQuery), responses(
    (status = 200, content_type = "text/event-stream", body = String),
    (status = "4XX", body = ErrorBody),
))]
pub async fn watch_list(
    State(gateway): State<Arc<Gateway>>,
    Query(query): Query<ListQuery>,
) -> Result<Response, ApiError> {
    let seen = gateway.inspector.watch_list();
    let watching = Watching { gateway: gateway.clone(), seen, page: query.page(), is_first: true };
    Ok(response(gateway, watching))
}

/// Watch a thread
///
/// Events `thread`, at once and whenever something has changed: the same as the thread.
#[utoipa::path(get, path = "/api/v1/threads/{thread}/watch", tag = "threads",
    params(("thread" = String, Path, description = "Its id in the list")),
    responses(
        (status = 200, content_type = "text/event-stream", body = String),
        (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody),
    ))]
pub async fn watch(
    State(gateway): State<Arc<Gateway>>,
    Path(thread): Path<String>,
) -> Result<Response, ApiError> {
    let id = gateway.inspector.existing(&thread).await?;
    let seen = gateway.inspector.watch(id);
    let watching = Watching { gateway: gateway.clone(), seen, page: (0, 0), is_first: true };
    Ok(response(gateway, watching))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct StreamQuery {
    /// Begin after this event, unless there is a Last-Event-ID; without both, with what comes from now on.
    after: Option<i64>,
    /// As in the list of events.
    filter: Option<String>,
}

impl AsyncSource for Tail {
    async fn next(&mut self) -> Next {
        match Tail::next(self).await {
            Ok(Piece::Event(event)) => {
                let data = serde_json::to_vec(&event).unwrap_or_default();
                Next::Piece(
                    [format!("id: {}\n", event.id).as_bytes(), &written("event", &data)].concat().into(),
                )
            }
            // Without data it is no event, but where to go on.
            Ok(Piece::Nothing(upto)) => Next::Piece(format!("id: {upto}\n\n").into()),
            Err(e) => {
                let HttpError { error, code, .. } = ApiError::from(e).into_http();
                failed(&error, code)
            }
        }
    }
}

/// Events as they come, oldest first
///
/// Events `event`, each with its id as `id:`; after a lost connection, Last-Event-ID goes on from there. An event
/// `failed` is the last one.
#[utoipa::path(get, path = "/api/v1/threads/{thread}/events/stream", tag = "threads",
    params(("thread" = String, Path, description = "Its id in the list"), StreamQuery),
    responses(
        (status = 200, content_type = "text/event-stream", body = String),
        (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody),
    ))]
pub async fn stream(
    State(gateway): State<Arc<Gateway>>,
    Path(thread): Path<String>,
    Query(query): Query<StreamQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let last = headers.get("last-event-id").and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let filter = filter(query.filter.as_deref())?;
    let tail = Tail::new(&gateway.inspector, &thread, last.or(query.after), filter).await?;
    Ok(response(gateway, tail))
}
