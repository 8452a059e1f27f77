//! A run as a stream of server-sent events.
//!
//! The AG-UI events of one stored event are written together, and the last of them has the stored event's id
//! as `id:`. A client that was disconnected resumes after the last id it received, without gaps or
//! duplicates. A stream whose run is not over is aborted: a clean end would be taken for success.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::Value;
use thread::Queue;
use thread_agent::conversation::Entry;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::translate::{Run, Translator, Version};
use crate::error::Result;
use crate::follow::feed::{Backlog, Delivery};
use crate::follow::tail::Tail;
use crate::gateway::Gateway;
use crate::session::history;
use crate::session::runs::Runs;
use crate::session_id::SessionId;

/// How often a comment is written to an idle stream, so that proxies do not close it.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);

/// How many chunks are buffered for a slow reader before the stream waits.
const BUFFERED: usize = 64;

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
        let (runs, newest) = Runs::of(queue)?;
        let first = runs.in_order().first().copied();
        return Ok(first.map_or(ResumePoint { message: 0, after: newest }, |message| ResumePoint {
            message,
            after: message - 1,
        }));
    };
    let after = after.clamp(0, queue.newest()?.0);
    let next = ResumePoint { message: 0, after };
    let condition = "type = 'message' OR subtype IN ('run', 'error', 'cancelled')";
    for id in history::newest_matching(queue, condition, after, 64)? {
        let Some(event) = history::event(queue, id)? else { continue };
        let (_, entry) = Entry::of(&event);
        match entry {
            // The client received the message, but nothing of its run.
            Entry::Message(_) if id == after => return Ok(ResumePoint { message: id, after }),
            Entry::RunStarted { reply_to, .. } => return Ok(ResumePoint { message: reply_to, after }),
            _ if entry.ends().is_some() => return Ok(next),
            _ => {}
        }
    }
    Ok(next)
}

pub struct Stream {
    chunks: mpsc::Receiver<io::Result<Bytes>>,
}

impl Stream {
    /// Starts to stream a run. `run_id` is the client's name for it; with `None`, the message's is used.
    pub fn new(
        gateway: Arc<Gateway>,
        session: SessionId,
        version: Version,
        thread_id: String,
        run_id: Option<String>,
        start: ResumePoint,
    ) -> Stream {
        let (sender, chunks) = mpsc::channel(BUFFERED);
        tokio::spawn(async move {
            let own = gateway.clone();
            let done = tokio::select! {
                done = feed(gateway, session, version, thread_id, run_id, start, &sender) => done,
                () = own.shutting_down() => Done::Aborted,
                () = sender.closed() => return,
            };
            if done == Done::Aborted {
                // Abort the connection, so that the client does not take this for the end of the run.
                drop(sender.send(Err(io::ErrorKind::ConnectionAborted.into())).await);
            }
        });
        Stream { chunks }
    }
}

impl IntoResponse for Stream {
    fn into_response(self) -> Response {
        let chunks =
            stream::unfold(self.chunks, |mut chunks| async move { Some((chunks.recv().await?, chunks)) });
        let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
        (headers, Body::from_stream(chunks)).into_response()
    }
}

/// Why a stream ended.
#[derive(Debug, PartialEq, Eq)]
enum Done {
    Ended,
    /// The run is not over.
    Aborted,
}

async fn feed(
    gateway: Arc<Gateway>,
    session: SessionId,
    version: Version,
    thread_id: String,
    run_id: Option<String>,
    start: ResumePoint,
    chunks: &mpsc::Sender<io::Result<Bytes>>,
) -> Done {
    // Events that the client already has are translated again, to know which message they left open.
    let from = if start.message > 0 { start.message - 1 } else { start.after };
    let mut tail = Tail::new(gateway.hub.clone(), session, from, Arc::<Backlog>::default());
    let mut translator = None;
    loop {
        let next = match timeout(KEEP_ALIVE_EVERY, tail.next()).await {
            Ok(Ok(Some(next))) => next,
            Ok(Ok(None) | Err(_)) => return Done::Aborted,
            Err(_) => {
                if chunks.send(Ok(Bytes::from_static(b": alive\n\n"))).await.is_err() {
                    return Done::Aborted;
                }
                continue;
            }
        };
        let translator = match &mut translator {
            Some(translator) => translator,
            None if !matches!(next.entry, Entry::Message(_)) => continue,
            None => {
                let run_id = run_id.clone().or_else(|| next.run_id.clone()).unwrap_or_default();
                translator.insert(Translator::new(version, thread_id.clone(), run_id, next.event.id))
            }
        };
        let (output, run) = translator.feed(&next.event, next.run_id.as_deref(), &next.entry);
        if next.event.id > start.after
            && !output.is_empty()
            && chunks.send(Ok(written(&next, &output))).await.is_err()
        {
            return Done::Aborted;
        }
        if run == Run::Ended {
            return Done::Ended;
        }
    }
}

/// The AG-UI events of one stored event, as server-sent events.
fn written(next: &Delivery, output: &[Value]) -> Bytes {
    let mut text = String::new();
    for (n, event) in output.iter().enumerate() {
        if n + 1 == output.len() {
            text += &format!("id: {}\n", next.event.id);
        }
        text += &format!("data: {event}\n\n");
    }
    text.into()
}
