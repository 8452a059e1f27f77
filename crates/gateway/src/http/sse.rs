//! Responses of server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{self, HeaderName};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};

use crate::gateway::Gateway;

/// How often a comment is written to an idle stream, so that proxies do not close it.
pub const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);

/// What a response of events has besides its type.
pub const HEADERS: [(HeaderName, &str); 2] = [
    (header::CACHE_CONTROL, "no-cache, no-transform"),
    // Proxies must not buffer the events; nginx does by default.
    (HeaderName::from_static("x-accel-buffering"), "no"),
];

/// A response that lasts until the events or the gateway end. The next event is made once the client has taken the one
/// before it.
pub fn response(gateway: Arc<Gateway>, events: impl Stream<Item = Event> + Send + 'static) -> Response {
    let shutdown = async move { gateway.shutting_down().await };
    let events = Sse::new(events.map(Ok::<_, Infallible>).take_until(shutdown))
        .keep_alive(KeepAlive::new().interval(KEEP_ALIVE_EVERY).text("alive"));
    (HEADERS, events).into_response()
}
