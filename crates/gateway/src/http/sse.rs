//! Responses of server-sent events.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{self, HeaderName};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::gateway::Gateway;

/// How often a comment is written to an idle stream, so that proxies do not close it.
pub const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);

/// How long a client may take for a piece before it counts as behind.
const BEHIND_AFTER: Duration = Duration::from_millis(250);

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

/// What a response of events is made of that reads a session.
pub trait Source: Send + Sized + 'static {
    /// What is written next; `None` at the end. An error aborts the connection, so that the client does not take it for
    /// the end. May be dropped at any time: nothing is lost.
    fn next(&mut self) -> impl Future<Output = Option<io::Result<Bytes>>> + Send;

    /// Drops data that was read ahead: the client cannot take it now.
    fn forget(&mut self);

    /// The client has left before the end.
    fn left(self) -> impl Future<Output = ()> + Send;
}

/// A response that lasts until its source ends.
pub fn of(source: impl Source) -> Response {
    let (sender, chunks) = mpsc::channel(1);
    tokio::spawn(feed(source, sender));
    let chunks = stream::unfold(chunks, |mut chunks| async move { Some((chunks.recv().await?, chunks)) });
    ([(header::CONTENT_TYPE, "text/event-stream")], HEADERS, Body::from_stream(chunks)).into_response()
}

/// Passes on the pieces, each once the client has taken the one before it.
async fn feed(mut source: impl Source, chunks: mpsc::Sender<io::Result<Bytes>>) {
    loop {
        let room = match timeout(BEHIND_AFTER, chunks.reserve()).await {
            Ok(room) => room,
            // It would be kept until the client reads again.
            Err(_) => {
                source.forget();
                chunks.reserve().await
            }
        };
        // It fails if the client is gone.
        let Ok(room) = room else { return source.left().await };
        tokio::select! {
            next = source.next() => match next {
                Some(next) => room.send(next),
                None => return,
            },
            () = chunks.closed() => return source.left().await,
        }
    }
}
