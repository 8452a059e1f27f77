//! Requests that look.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use thread::model::subscription::ConsumerId;
use thread::model::time;
use thread_sessions::{Kind, RequestError};
use utoipa::IntoParams;

use super::ThreadPath;
use super::error::{ApiError, Path};
use crate::gateway::Gateway;
use crate::http::content::streamed;
use crate::http::error::Failures;
use crate::inspect::dead::{self, Mark};
use crate::inspect::dto::{
    DeadPage, EventDetail, EventPage, Outcome, RunDetail, RunPage, Series, Span, Thread, ThreadList, Trace,
};
use crate::inspect::{events, runs, series, trace};

type Answer<T> = Result<Json<T>, ApiError>;

/// How much of a content is sent at a time, in bytes.
const PIECE: usize = 256 * 1024;

/// Which threads of the list.
#[derive(Debug, Clone, Copy, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// At most so many, 200 if it is left out; never more than 1000.
    pub limit: Option<u32>,
    pub offset: Option<u32>,
}

impl ListQuery {
    /// Offset and limit.
    pub fn page(self) -> (usize, usize) {
        (self.offset.unwrap_or(0) as usize, self.limit.unwrap_or(200).clamp(1, 1000) as usize)
    }
}

/// At most so many as are asked for.
fn limit(asked: Option<u32>) -> usize {
    asked.unwrap_or(50).clamp(1, 200) as usize
}

/// All threads
///
/// Sessions, their sub-agents' threads, and those that --thread names.
#[utoipa::path(get, path = "/api/v1/threads", tag = "threads",
    params(ListQuery), responses((status = 200, body = ThreadList), Failures))]
pub async fn list(
    State(gateway): State<Arc<Gateway>>,
    Query(query): Query<ListQuery>,
) -> Result<Response, ApiError> {
    let listing = gateway.inspector.listing().await?;
    let (offset, limit) = query.page();
    let page = gateway.inspector.written_page_of(&listing, offset, limit);
    Ok(([(header::CONTENT_TYPE, "application/json")], page).into_response())
}

/// A thread and its consumers
#[utoipa::path(get, path = "/api/v1/threads/{thread}", tag = "threads",
    params(ThreadPath), responses((status = 200, body = Thread), Failures))]
pub async fn thread(State(gateway): State<Arc<Gateway>>, Path(thread): Path<String>) -> Answer<Thread> {
    let found = gateway.inspector.at(&thread, Kind::Read, |own, target, queue| own.thread(target, queue));
    Ok(Json(found.await?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct EventsQuery {
    /// Only events before this one.
    before: Option<i64>,
    /// Only events after this one.
    after: Option<i64>,
    /// At most so many, 50 if it is left out; never more than 200.
    limit: Option<u32>,
    /// An SQL condition over id, created_at, source, type, subtype, content and metadata; limited to two seconds.
    filter: Option<String>,
}

/// Events, newest first
#[utoipa::path(get, path = "/api/v1/threads/{thread}/events", tag = "threads",
    params(ThreadPath, EventsQuery), responses((status = 200, body = EventPage), Failures))]
pub async fn events(
    State(gateway): State<Arc<Gateway>>,
    Path(thread): Path<String>,
    Query(query): Query<EventsQuery>,
) -> Answer<EventPage> {
    let EventsQuery { before, after, filter, .. } = query;
    let (filter, limit) = (events::filter(filter.as_deref())?, limit(query.limit));
    let page = move |queue: &mut _| events::page(queue, before, after, limit, filter.as_ref());
    Ok(Json(gateway.inspector.at(&thread, Kind::Read, move |_, _, queue| page(queue)).await?))
}

/// An event, and what consumers did with it
#[utoipa::path(get, path = "/api/v1/threads/{thread}/events/{event}", tag = "threads",
    params(ThreadPath, ("event" = i64, Path)), responses((status = 200, body = EventDetail), Failures))]
pub async fn event(
    State(gateway): State<Arc<Gateway>>,
    Path((thread, event)): Path<(String, i64)>,
) -> Answer<EventDetail> {
    let found = gateway
        .inspector
        .at(&thread, Kind::Read, move |_, target, queue| events::detail(queue, target, event, &content_url));
    Ok(Json(found.await?))
}

/// What an id consists of, except a sub-agent's name that another program has made.
const UNESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

fn content_url(thread: &str, event: i64) -> String {
    format!("/api/v1/threads/{}/events/{event}/content", utf8_percent_encode(thread, UNESCAPED))
}

/// What became of an event
///
/// Of a message to an agent: its attempts, the turns of its model, its tools, sub-agents and requests for permission. Of
/// any event: the runs, steps and waits of each consumer.
#[utoipa::path(get, path = "/api/v1/threads/{thread}/events/{event}/trace", tag = "threads",
    params(ThreadPath, ("event" = i64, Path)), responses((status = 200, body = Trace), Failures))]
pub async fn trace(
    State(gateway): State<Arc<Gateway>>,
    Path((thread, event)): Path<(String, i64)>,
) -> Answer<Trace> {
    let found =
        gateway.inspector.at(&thread, Kind::Read, move |_, target, queue| trace::of(queue, target, event));
    Ok(Json(found.await?))
}

/// The whole content of an event
#[utoipa::path(get, path = "/api/v1/threads/{thread}/events/{event}/content", tag = "threads",
    params(ThreadPath, ("event" = i64, Path)),
    responses((status = 200, content_type = "text/plain", body = String), Failures))]
pub async fn content(
    State(gateway): State<Arc<Gateway>>,
    Path((thread, event)): Path<(String, i64)>,
) -> Result<Response, ApiError> {
    let read = move |offset| {
        let (gateway, thread) = (gateway.clone(), thread.clone());
        async move {
            let piece = move |queue: &mut thread::Queue| Ok(queue.read_content(event, offset, PIECE)?);
            gateway.inspector.at(&thread, Kind::Read, move |_, _, queue| piece(queue)).await
        }
    };
    let missing =
        || RequestError::Unknown(format!("there is no event {event} in this thread, or it was deleted"));
    Ok(streamed(read).await?.ok_or_else(missing)?)
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct RunsQuery {
    /// Only runs before this one.
    before: Option<String>,
    /// Only those that ended at this time or later, or are under way.
    from: Option<String>,
    /// At most so many, 50 if it is left out; never more than 200.
    limit: Option<u32>,
    /// Only those with this outcome.
    #[param(inline)]
    outcome: Option<Outcome>,
    /// Those that took longest first, of all that are kept; these are no pages.
    #[serde(default)]
    longest: bool,
}

/// The runs of a consumer, newest first
///
/// The last 1000 are kept.
#[utoipa::path(get, path = "/api/v1/threads/{thread}/consumers/{consumer}/runs", tag = "threads",
    params(ThreadPath, ("consumer" = String, Path), RunsQuery),
    responses((status = 200, body = RunPage), Failures))]
pub async fn runs(
    State(gateway): State<Arc<Gateway>>,
    Path((thread, consumer)): Path<(String, String)>,
    Query(query): Query<RunsQuery>,
) -> Answer<RunPage> {
    let before =
        query.before.map(|before| before.parse().map_err(|_| ApiError::bad("'before' is no id of a run")));
    let from = query.from.map(|from| {
        time::parse(&from).ok_or_else(|| ApiError::bad("'from' is no time such as 2026-01-31T12:00:00Z"))
    });
    let (limit, consumer) = (limit(query.limit), ConsumerId::stored(consumer));
    let which = runs::Which {
        before: before.transpose()?,
        from: from.transpose()?,
        outcome: query.outcome,
        longest: query.longest,
    };
    let page = move |queue: &mut _| runs::page(queue, &consumer, which, limit);
    Ok(Json(gateway.inspector.at(&thread, Kind::Read, move |_, _, queue| page(queue)).await?))
}

/// A run with its output and its events
#[utoipa::path(get, path = "/api/v1/threads/{thread}/consumers/{consumer}/runs/{run}", tag = "threads",
    params(ThreadPath, ("consumer" = String, Path), ("run" = String, Path)),
    responses((status = 200, body = RunDetail), Failures))]
pub async fn run(
    State(gateway): State<Arc<Gateway>>,
    Path((thread, consumer, run)): Path<(String, String, String)>,
) -> Answer<RunDetail> {
    let consumer = ConsumerId::stored(consumer);
    let found = move |queue: &mut _| runs::one(queue, &consumer, &run);
    Ok(Json(gateway.inspector.at(&thread, Kind::Read, move |_, _, queue| found(queue)).await?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct SeriesQuery {
    /// How far back: an hour if it is left out.
    #[serde(default)]
    #[param(inline)]
    span: Span,
}

/// A thread and its consumers over time
///
/// How many events came, and how many each consumer has handled, how often it failed and how long its runs took.
#[utoipa::path(get, path = "/api/v1/threads/{thread}/series", tag = "threads",
    params(ThreadPath, SeriesQuery), responses((status = 200, body = Series), Failures))]
pub async fn series(
    State(gateway): State<Arc<Gateway>>,
    Path(thread): Path<String>,
    Query(SeriesQuery { span }): Query<SeriesQuery>,
) -> Answer<Series> {
    let work = move |queue: &mut _| series::of(queue, span, chrono::Utc::now());
    Ok(Json(gateway.inspector.at(&thread, Kind::Read, move |_, _, queue| work(queue)).await?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct DeadQuery {
    /// Only those of this consumer.
    consumer: Option<String>,
    /// Only those with this reason, apart from numbers and ids in it.
    reason: Option<String>,
    /// Where the page before this one has ended.
    before: Option<String>,
    /// At most so many, 50 if it is left out; never more than 200.
    limit: Option<u32>,
}

/// Dead letters, the newest events first
#[utoipa::path(get, path = "/api/v1/threads/{thread}/dead", tag = "threads",
    params(ThreadPath, DeadQuery), responses((status = 200, body = DeadPage), Failures))]
pub async fn dead(
    State(gateway): State<Arc<Gateway>>,
    Path(thread): Path<String>,
    Query(query): Query<DeadQuery>,
) -> Answer<DeadPage> {
    let DeadQuery { consumer, reason, before, .. } = query;
    let before = before.as_deref().map(Mark::parse).transpose()?;
    let (limit, consumer) = (limit(query.limit), consumer.map(ConsumerId::stored));
    let page =
        move |queue: &mut _| dead::page(queue, consumer.as_ref(), reason.as_deref(), before.as_ref(), limit);
    Ok(Json(gateway.inspector.at(&thread, Kind::Read, move |_, _, queue| page(queue)).await?))
}
