//! Streaming requests: watched state, and events as they arrive, as server-sent events.

use std::future::pending;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::response::sse::Event;
use futures_util::stream;
use serde::Deserialize;
use serde_json::json;
use thread_protocol::code;
use tokio::sync::watch;
use utoipa::IntoParams;

use super::ThreadPath;
use super::error::{ApiError, Path};
use super::read::ListQuery;
use crate::gateway::Gateway;
use crate::http::error::{ErrorBody, Failures, HttpError};
use crate::http::sse;
use crate::inspect::events::filter;
use crate::inspect::tail::{Piece, Tail};
use crate::inspect::watched::Seen;

/// Where events come from.
trait Source: Send + 'static {
    /// The next event, or as an error the last one.
    fn next(&mut self) -> impl Future<Output = Result<Event, Event>> + Send;
}

fn response(gateway: Arc<Gateway>, source: impl Source) -> Response {
    let events = stream::unfold(Some(source), async |source| {
        let mut source = source?;
        Some(match source.next().await {
            Ok(event) => (event, Some(source)),
            Err(last) => (last, None),
        })
    });
    sse::response(gateway, events)
}

fn named(event: Event, name: &str, json: &[u8]) -> Event {
    event.event(name).data(String::from_utf8_lossy(json))
}

fn failed(why: &str, code: &str) -> Event {
    named(Event::default(), "failed", json!({ "error": why, "code": code }).to_string().as_bytes())
}

/// A watcher of the list, of a thread, or of both.
struct Watching {
    gateway: Arc<Gateway>,
    list: Option<watch::Receiver<Seen>>,
    thread: Option<watch::Receiver<Seen>>,
    /// The page of the list.
    page: (usize, usize),
}

/// What is seen next, if it is watched.
async fn next(seen: &mut Option<watch::Receiver<Seen>>) -> Option<Seen> {
    let Some(seen) = seen else { return pending().await };
    seen.changed().await.ok()?;
    Some(seen.borrow_and_update().clone())
}

/// What is seen next of the list, of a thread, or of both.
async fn next_of(
    list: &mut Option<watch::Receiver<Seen>>,
    thread: &mut Option<watch::Receiver<Seen>>,
) -> Option<Seen> {
    loop {
        tokio::select! {
            seen = next(list) => return seen,
            seen = next(thread) => match seen {
                // The list is there without it.
                None | Some(Seen::Gone(..)) if list.is_some() => *thread = None,
                seen => return seen,
            },
        }
    }
}

impl Source for Watching {
    async fn next(&mut self) -> Result<Event, Event> {
        loop {
            let seen = next_of(&mut self.list, &mut self.thread).await;
            let (offset, limit) = self.page;
            match seen {
                Some(Seen::NotYet) => {}
                Some(Seen::List(list)) => {
                    let data = self.gateway.inspector.written_page_of(&list, offset, limit);
                    return Ok(named(Event::default(), "threads", &data));
                }
                Some(Seen::Thread(data)) => return Ok(named(Event::default(), "thread", &data)),
                Some(Seen::Gone(why, code)) => return Err(failed(&why, code)),
                None => {
                    let why = "the gateway has stopped watching; try again later";
                    return Err(failed(why, code::UNAVAILABLE));
                }
            }
        }
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct WatchQuery {
    /// At most so many, 200 if it is left out; never more than 1000.
    limit: Option<u32>,
    offset: Option<u32>,
    /// Watch this thread too. If there is none, only the list is watched.
    thread: Option<String>,
}

/// Watch the list
///
/// Events `threads`, at once and whenever something has changed: the same as the list. With `thread`, also events
/// `thread`.
#[utoipa::path(get, path = "/api/v1/threads/watch", tag = "threads", params(WatchQuery), responses(
    (status = 200, content_type = "text/event-stream", body = String),
    (status = "4XX", body = ErrorBody),
))]
pub async fn watch_list(
    State(gateway): State<Arc<Gateway>>,
    Query(WatchQuery { limit, offset, thread }): Query<WatchQuery>,
) -> Result<Response, ApiError> {
    let id = match thread {
        Some(thread) => gateway.inspector.existing(&thread).await.ok(),
        None => None,
    };
    let watching = Watching {
        gateway: gateway.clone(),
        list: Some(gateway.inspector.watch(None)),
        thread: id.map(|id| gateway.inspector.watch(Some(id))),
        page: ListQuery { limit, offset }.page(),
    };
    Ok(response(gateway, watching))
}

/// Watch a thread
///
/// Events `thread`, at once and whenever something has changed: the same as the thread.
#[utoipa::path(get, path = "/api/v1/threads/{thread}/watch", tag = "threads",
    params(ThreadPath), responses((status = 200, content_type = "text/event-stream", body = String), Failures))]
pub async fn watch(
    State(gateway): State<Arc<Gateway>>,
    Path(thread): Path<String>,
) -> Result<Response, ApiError> {
    let id = gateway.inspector.existing(&thread).await?;
    let seen = gateway.inspector.watch(Some(id));
    let watching = Watching { gateway: gateway.clone(), list: None, thread: Some(seen), page: (0, 0) };
    Ok(response(gateway, watching))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct StreamQuery {
    /// Begin after this event, unless there is a Last-Event-ID; without either, with new events.
    after: Option<i64>,
    /// As in the list of events.
    filter: Option<String>,
}

impl Source for Tail {
    async fn next(&mut self) -> Result<Event, Event> {
        match Tail::next(self).await {
            Ok(Piece::Event(event)) => {
                let data = serde_json::to_vec(&event).unwrap_or_default();
                Ok(named(Event::default().id(event.id.to_string()), "event", &data))
            }
            // Without data it is not an event, but a position to resume at.
            Ok(Piece::Nothing(upto)) => Ok(Event::default().id(upto.to_string())),
            Err(e) => {
                let HttpError { error, code, .. } = ApiError::from(e).into_http();
                Err(failed(&error, code))
            }
        }
    }
}

/// Events as they come, oldest first
///
/// Events `event`, each with its id as `id:`; after a lost connection, Last-Event-ID resumes there. An event
/// `failed` is the last one.
#[utoipa::path(get, path = "/api/v1/threads/{thread}/events/stream", tag = "threads",
    params(ThreadPath, StreamQuery),
    responses((status = 200, content_type = "text/event-stream", body = String), Failures))]
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_thread_that_is_gone_ends_only_what_is_watched_without_the_list() {
        // It has been deleted, or the gateway has stopped watching it.
        for is_deleted in [true, false] {
            let (lists, list) = watch::channel(Seen::NotYet);
            let (threads, thread) = watch::channel(Seen::NotYet);
            let (mut list, mut alone, mut beside) = (Some(list), Some(thread.clone()), Some(thread));
            if is_deleted {
                threads.send(Seen::Gone("deleted".to_owned(), code::NOT_FOUND)).unwrap();
            }
            drop(threads);
            let seen = async {
                let without = next_of(&mut None, &mut alone).await;
                let later = async { lists.send(Seen::Thread("the list".into())) };
                (without, tokio::join!(next_of(&mut list, &mut beside), later).0)
            };
            match tokio::time::timeout(Duration::from_secs(60), seen).await.unwrap() {
                (Some(Seen::Gone(..)), Some(Seen::Thread(_))) if is_deleted => {}
                (None, Some(Seen::Thread(_))) if !is_deleted => {}
                _ => panic!("is_deleted: {is_deleted}"),
            }
        }
    }
}
