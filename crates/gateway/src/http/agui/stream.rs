//! A run as a stream of server-sent events.
//!
//! The AG-UI events of one stored event are written together, and the last of them has the stored event's id
//! as `id:`. A client that was disconnected resumes after the last id it received, without gaps or
//! duplicates. A stream whose run is not over is aborted: a clean end would be taken for success.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{self, HeaderName};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::Value;
use thread::model::filter::Scope;
use thread::{Filter, Queue};
use thread_agent::conversation::Entry;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::translate::{Run, Translator, Version};
use crate::error::Result;
use crate::gateway::Gateway;
use crate::session::cursor::{Cursor, Next};
use crate::session::event::SessionEvent;
use crate::session::history;
use crate::session::live::test_delay;
use crate::session::runs::open_runs;
use crate::session_id::SessionId;

/// How often a comment is written to an idle stream, so that proxies do not close it.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);

/// How long a client may take for a piece before it counts as behind.
const BEHIND_AFTER: Duration = Duration::from_millis(250);

/// Where a stream begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResumePoint {
    /// The id of the message whose run is streamed; 0 for the next message.
    pub message: i64,
    /// The client has received everything up to this event id.
    pub after: i64,
}

/// Where to resume for a client that has received everything up to `after`: in the run that was open then,
/// else with the next message. Without `after`, in the run that is open now.
///
/// # Errors
///
/// Errors of the thread.
pub fn resume_point(queue: &mut Queue, after: Option<i64>) -> Result<ResumePoint> {
    let Some(after) = after else {
        let (_, runs, newest) = open_runs(queue)?;
        let first = runs.in_order().first().copied();
        return Ok(first.map_or(ResumePoint { message: 0, after: newest }, |message| ResumePoint {
            message,
            after: message - 1,
        }));
    };
    let after = after.clamp(0, queue.newest()?.0);
    let next = ResumePoint { message: 0, after };
    let condition = "type = 'message' OR subtype IN ('run', 'error', 'cancelled')";
    let filter = Filter::new(condition, Scope::Reading)?;
    for id in queue.newest_matching(filter.as_ref(), after, 64)? {
        let Some(event) = history::event(queue, id)? else { continue };
        match event.entry {
            // The client received the message, but nothing of its run.
            Entry::Message(_) if id == after => return Ok(ResumePoint { message: id, after }),
            Entry::RunStarted { reply_to, .. } => return Ok(ResumePoint { message: reply_to, after }),
            _ if event.ends.is_some() => return Ok(next),
            _ => {}
        }
    }
    Ok(next)
}

/// A run, from a place in its session on.
pub struct Stream {
    gateway: Arc<Gateway>,
    cursor: Cursor,
    version: Version,
    thread_id: String,
    /// The client's name for the run; by default the message's.
    run_id: Option<String>,
    start: ResumePoint,
    /// From the run's message on.
    translator: Option<Translator>,
    ended: bool,
}

impl Stream {
    /// Starts to stream a run. `run_id` is the client's name for it; with `None`, the message's is used.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownSession`](crate::error::RequestError::UnknownSession); errors of the thread.
    pub async fn new(
        gateway: Arc<Gateway>,
        session: SessionId,
        version: Version,
        thread_id: String,
        run_id: Option<String>,
        start: ResumePoint,
    ) -> Result<Stream> {
        let live = gateway.hub.enter(session).await?;
        test_delay().await;
        // Events that the client already has are translated again, to know which message they left open.
        let from = if start.message > 0 { start.message - 1 } else { start.after };
        let cursor = Cursor::new(live, from);
        Ok(Stream { gateway, cursor, version, thread_id, run_id, start, translator: None, ended: false })
    }

    /// What is written next; `None` at the end. An error means that the run is not over: it aborts the
    /// connection, so that the client does not take this for the end of the run.
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        if self.ended {
            return None;
        }
        loop {
            let next = tokio::select! {
                next = timeout(KEEP_ALIVE_EVERY, self.cursor.next()) => next,
                () = self.gateway.shutting_down() => return Some(self.abort()),
            };
            let event = match next {
                Err(_) => return Some(Ok(Bytes::from_static(b": alive\n\n"))),
                Ok(Next::Gone) => return Some(self.abort()),
                Ok(Next::CaughtUp(_)) => continue,
                Ok(Next::Event(event)) => event,
            };
            let (output, run) = self.translate(&event);
            self.ended = run == Run::Ended;
            if event.id() > self.start.after && !output.is_empty() {
                return Some(Ok(written(event.id(), &output)));
            }
            if self.ended {
                return None;
            }
        }
    }

    fn abort(&mut self) -> io::Result<Bytes> {
        self.ended = true;
        Err(io::ErrorKind::ConnectionAborted.into())
    }

    fn translate(&mut self, event: &SessionEvent) -> (Vec<Value>, Run) {
        if self.translator.is_none() {
            if !matches!(event.entry, Entry::Message(_)) {
                return (Vec::new(), Run::GoesOn);
            }
            let run_id = self.run_id.clone().or_else(|| event.run_id.clone()).unwrap_or_default();
            self.translator = Some(Translator::new(self.version, self.thread_id.clone(), run_id, event.id()));
        }
        let translator = self.translator.as_mut();
        translator.map_or((Vec::new(), Run::GoesOn), |translator| translator.feed(event))
    }
}

impl IntoResponse for Stream {
    fn into_response(self) -> Response {
        let (sender, chunks) = mpsc::channel(1);
        tokio::spawn(self.feed(sender));
        let chunks = stream::unfold(chunks, |mut chunks| async move { Some((chunks.recv().await?, chunks)) });
        let headers = [
            (header::CONTENT_TYPE, "text/event-stream"),
            (header::CACHE_CONTROL, "no-cache, no-transform"),
            // Proxies must not collect the events: nginx does, unless told otherwise.
            (HeaderName::from_static("x-accel-buffering"), "no"),
        ];
        (headers, Body::from_stream(chunks)).into_response()
    }
}

impl Stream {
    /// Passes on what is written, each piece once the client has taken the one before it.
    async fn feed(mut self, chunks: mpsc::Sender<io::Result<Bytes>>) {
        loop {
            let room = match timeout(BEHIND_AFTER, chunks.reserve()).await {
                Ok(room) => room,
                // What was read ahead would be kept until the client reads again.
                Err(_) => {
                    self.cursor.forget();
                    chunks.reserve().await
                }
            };
            // It fails if the client is gone.
            let Ok(room) = room else { return };
            tokio::select! {
                next = self.next() => match next {
                    Some(next) => room.send(next),
                    None => return,
                },
                () = chunks.closed() => return,
            }
        }
    }
}

/// The AG-UI events of one stored event, as server-sent events.
fn written(id: i64, output: &[Value]) -> Bytes {
    let mut text = String::new();
    for (n, event) in output.iter().enumerate() {
        if n + 1 == output.len() {
            text += &format!("id: {id}\n");
        }
        text += &format!("data: {event}\n\n");
    }
    text.into()
}
