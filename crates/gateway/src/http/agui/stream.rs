//! A run as a stream of server-sent events.
//!
//! The AG-UI events of one stored event are written together, and the last of them has the stored event's id
//! as `id:`. A client that was disconnected resumes after the last id it received, without gaps or
//! duplicates. A stream whose run is not over is aborted: a clean end would be taken for success.

use std::io;
use std::sync::Arc;

use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use thread::model::filter::Scope;
use thread::{Filter, Queue};
use thread_conversation::{Entry, Record};
use thread_sessions::{Result, SessionId, open_runs};
use tokio::time::timeout;

use super::respond::pending_input;
use super::translate::{PendingInput, Run, Start, Translator};
use super::writer::Version;
use crate::gateway::Gateway;
use crate::http::sse::{self, Source};
use crate::session::cursor::{Cursor, Next};
use crate::session::event::SessionEvent;
use crate::session::history;
use crate::session::live_session::Present;
use crate::session::write::SessionWriter;

/// Where a stream begins.
#[derive(Debug)]
pub struct Point {
    /// What it shows; `None` for the next run.
    pub start: Option<Start>,
    /// The client has received everything up to this event id.
    pub after: i64,
    /// What the run was waiting for when the client connected.
    pub pending: PendingInput,
    /// The client's name for the run; by default the run's.
    pub run_id: Option<String>,
    /// Whether a client that leaves before the stream ends cancels the run.
    pub cancels: bool,
}

/// Where to resume for a client that has received everything up to `after`: in the run that was open then,
/// else with the next run. Without `after`, in the run that is open now.
///
/// # Errors
///
/// Errors of the thread.
pub fn resume_point(queue: &mut Queue, after: Option<i64>) -> Result<Point> {
    let newest = queue.newest()?.0;
    let after = after.map(|after| after.clamp(0, newest));
    let start = match after {
        Some(after) => shown_at(queue, after)?,
        None => {
            let (_, runs, _) = open_runs(queue)?;
            runs.in_order().first().copied().map(Start::of_message)
        }
    };
    let pending = match start {
        Some(start) => pending_input(queue, start.message)?,
        None => PendingInput { upto: newest, ..PendingInput::default() },
    };
    let after = after.or(start.map(|start| start.shown)).unwrap_or(newest);
    let begun = start.map(|start| queue.event(start.event)).transpose()?.flatten();
    let run_id = begun.and_then(|event| Record::of(event).run_id);
    Ok(Point { start, after, pending, run_id, cancels: false })
}

/// What a client whose last event is `after` was shown; `None` if its run was over.
fn shown_at(queue: &mut Queue, after: i64) -> Result<Option<Start>> {
    let condition = "type = 'message' OR subtype IN ('run', 'continued', 'error', 'cancelled')";
    let filter = Filter::new(condition, Scope::Reading)?;
    for id in queue.newest_matching(filter.as_ref(), after, 64)? {
        let Some(event) = history::event(queue, id)? else { continue };
        match event.record.entry {
            // The client received the message, but nothing of its run.
            Entry::Message(_) if id == after => return Ok(Start::of(&event)),
            Entry::Continued { .. } => return Ok(Start::of(&event)),
            Entry::RunStarted { reply_to, .. } => {
                let reply_to = reply_to.unwrap_or(id);
                // An attempt may begin after a client has gone on with the run.
                let last = history::newest(queue, "subtype = 'continued'", id, 1)?.pop();
                let start = last.as_ref().and_then(Start::of).filter(|start| start.message == reply_to);
                return Ok(Some(start.unwrap_or(Start::of_message(reply_to))));
            }
            _ if event.ends.is_some() => return Ok(None),
            _ => {}
        }
    }
    Ok(None)
}

/// A run, from a place in its session on.
pub struct Stream {
    gateway: Arc<Gateway>,
    cursor: Cursor,
    version: Version,
    thread_id: String,
    after: i64,
    /// From the run's message on.
    translator: Option<Translator>,
    /// How many runs are ahead of this one, as last sent to the client.
    position: usize,
    /// Whether a client that leaves ends the run.
    cancels: bool,
    ended: bool,
}

impl Stream {
    /// Starts to stream a run.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownSession`](thread_sessions::RequestError::UnknownSession); errors of the thread.
    pub async fn new(
        gateway: Arc<Gateway>,
        session: SessionId,
        version: Version,
        thread_id: String,
        point: Point,
    ) -> Result<Stream> {
        let live = gateway.hub.enter(session).await?;
        let Point { start, after, pending, run_id, cancels } = point;
        // Events that the client already has are translated again, to determine what they left open.
        let cursor = Cursor::new(live, start.map_or(after, |start| start.message - 1));
        let mut stream = Stream {
            gateway,
            cursor,
            version,
            thread_id,
            after,
            translator: None,
            position: 0,
            cancels,
            ended: false,
        };
        stream.translator = start.map(|start| stream.translator(start, run_id.unwrap_or_default(), pending));
        Ok(stream)
    }

    fn translator(&self, start: Start, run_id: String, pending: PendingInput) -> Translator {
        let (storage, session) = (self.gateway.storage.clone(), self.cursor.session());
        let content_url = move |id| storage.event_url(session, id);
        let point = (start, self.after);
        Translator::new(self.version, self.thread_id.clone(), run_id, point, pending, content_url)
    }

    /// Shows the run that an event begins, if it does. Returns whether the event is part of what is shown.
    async fn begin(&mut self, event: &SessionEvent) -> Result<bool> {
        let Some(mut start) = Start::of(event).filter(|start| start.event > self.after) else {
            return Ok(false);
        };
        start.shown = start.shown.max(self.after);
        let work = move |queue: &mut Queue| pending_input(queue, start.message);
        let pending = self.gateway.read(self.cursor.session(), work).await?;
        let run_id = event.record.run_id.clone().unwrap_or_default();
        self.translator = Some(self.translator(start, run_id, pending));
        self.position = 0;
        let is_message = start.event == start.message;
        if !is_message {
            // Read again from its message on, to determine what is open.
            self.after = start.shown;
            self.cursor.seek(start.message - 1);
        }
        Ok(is_message)
    }

    /// How many runs are before this one, if that has changed.
    fn queued(&mut self, present: &Present) -> Option<Value> {
        let translator = self.translator.as_mut()?;
        let message = translator.waits_for().filter(|message| *message <= present.upto)?;
        let position = present.order.iter().position(|other| *other == message)?;
        let is_new = std::mem::replace(&mut self.position, position) != position;
        (is_new && position > 0).then(|| translator.queued(position))
    }

    fn abort(&mut self) -> io::Result<Bytes> {
        self.ended = true;
        Err(io::ErrorKind::ConnectionAborted.into())
    }
}

impl Source for Stream {
    /// An error means that the run is not over.
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        if self.ended {
            return None;
        }
        loop {
            let next = tokio::select! {
                next = timeout(sse::KEEP_ALIVE_EVERY, self.cursor.next()) => next,
                () = self.gateway.shutting_down() => return Some(self.abort()),
            };
            let event = match next {
                Err(_) => return Some(Ok(Bytes::from_static(b": alive\n\n"))),
                Ok(Next::Gone) => return Some(self.abort()),
                Ok(Next::CaughtUp(present)) => match self.queued(&present) {
                    Some(event) => return Some(Ok(written(None, &[event]))),
                    None => continue,
                },
                Ok(Next::Event(event)) => event,
            };
            if self.translator.is_none() {
                match self.begin(&event).await {
                    Ok(true) => {}
                    Ok(false) => continue,
                    Err(e) => {
                        e.log("a stream of AG-UI");
                        return Some(self.abort());
                    }
                }
            }
            let Some(translator) = &mut self.translator else { continue };
            let begins_at = translator.start().event;
            let (output, run) = translator.feed(&event);
            if event.id() > self.after {
                self.ended = run == Run::Ended;
                if !output.is_empty() {
                    // A stream cannot be resumed before the event that begins it.
                    let id = Some(event.id()).filter(|id| *id >= begins_at);
                    return Some(Ok(written(id, &output)));
                }
                if self.ended {
                    return None;
                }
            } else if run == Run::Ended {
                // The client has seen the end, and waits for what begins next.
                self.translator = None;
            }
        }
    }

    fn forget(&mut self) {
        self.cursor.forget();
    }

    /// Cancels the run, because its client has left.
    async fn left(self) {
        let Some(message) = self.translator.as_ref().map(|translator| translator.start().message) else {
            return;
        };
        if !self.cancels || self.ended {
            return;
        }
        let (session, work) =
            (self.cursor.session(), move |to: &mut SessionWriter<'_>| to.cancel_run_of(message));
        if let Err(e) = self.gateway.write(session, super::author(), work).await {
            e.log("a run whose client left cannot be cancelled");
        }
    }
}

impl IntoResponse for Stream {
    fn into_response(self) -> Response {
        sse::of(self)
    }
}

/// The AG-UI events of one stored event, as server-sent events. The last of them has its id.
fn written(id: Option<i64>, output: &[Value]) -> Bytes {
    let mut text = String::new();
    for (n, event) in output.iter().enumerate() {
        if let Some(id) = id.filter(|_| n + 1 == output.len()) {
            text += &format!("id: {id}\n");
        }
        text += &format!("data: {event}\n\n");
    }
    text.into()
}
