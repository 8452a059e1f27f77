//! Lines in the log about runs: when they begin and end, whoever has started them.
//!
//! They are read from the sessions that the worker has looked at, from the gateway's start on.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, SystemTime};

use thread::files::JSONL;
use thread::model::filter::Scope;
use thread::model::time;
use thread::queue::{Remaining, Selection};
use thread::{Event, Filter, Queue};
use thread_agent::conversation::Entry;

use super::event::{LARGE, SessionEvent};
use crate::error::Result;
use crate::session_id::SessionId;

/// How long to wait for other writers. What cannot be read now is read after the next change.
const BUSY: Duration = Duration::from_millis(20);

/// The events that begin a run, or may end one.
const EVENTS: &str =
    "subtype = 'run' OR source = 'self' AND (type = 'message' OR subtype IN ('error', 'cancelled'))";

pub struct Journal {
    since: SystemTime,
    /// The ids up to which sessions have been read.
    read: HashMap<SessionId, i64>,
}

impl Journal {
    /// A journal of what happens from now on.
    pub fn new() -> Journal {
        Journal { since: SystemTime::now(), read: HashMap::new() }
    }

    /// Logs what is new in a session. `started` is how many consumers the worker has started there.
    pub fn note(&mut self, path: &Path, started: usize) {
        let Some(session) = path.file_name().and_then(SessionId::parse_name) else { return };
        if started > 0 {
            tracing::info!(%session, "what was due has been started");
        }
        if let Err(e) = self.read(session, path) {
            tracing::debug!(%session, "the runs cannot be read now: {e}");
        }
    }

    fn read(&mut self, session: SessionId, path: &Path) -> Result<()> {
        let known = self.read.get(&session).copied();
        if known.is_none() && !is_active_since(path, self.since) {
            return Ok(());
        }
        let mut queue = Queue::open_waiting(path, BUSY)?;
        let after = known.map_or_else(|| queue.last_before(self.since.into()), Ok)?;
        let read = each(&mut queue, after, EVENTS, |queue, event| {
            line(queue, session, event)?;
            Ok(ControlFlow::Continue(()))
        })?;
        self.read.insert(session, read);
        Ok(())
    }
}

/// Whether something was stored in a thread since a time; no error if it is gone.
fn is_active_since(path: &Path, since: SystemTime) -> bool {
    let written = std::fs::metadata(path.join(JSONL)).and_then(|about| about.modified());
    // The file system's clock is a little behind.
    written.is_ok_and(|written| written + Duration::from_secs(1) >= since)
}

/// Reads the events after an id that match a filter. Returns the id up to which it has read.
fn each(
    queue: &mut Queue,
    after: i64,
    filter: &str,
    mut see: impl FnMut(&mut Queue, Event) -> Result<ControlFlow<()>>,
) -> Result<i64> {
    let mut selection = Selection { after, limit: None, filter: Filter::new(filter, Scope::Reading)? };
    loop {
        let mut page = Vec::new();
        let remaining = queue.read_page_capped(&mut selection, LARGE, &mut |capped| {
            page.push(capped.row.to_event());
            ControlFlow::Continue(())
        })?;
        for event in page {
            let id = event.id;
            if see(queue, event)?.is_break() {
                return Ok(id);
            }
        }
        if remaining == Remaining::None {
            return Ok(selection.after);
        }
    }
}

/// Logs an event, if a run begins or ends with it. A run has the `seq` of its message: the names of runs are what
/// clients say.
fn line(queue: &mut Queue, session: SessionId, event: Event) -> Result<()> {
    let SessionEvent { event, entry, ends, .. } = SessionEvent::new(queue, event, None)?;
    match (entry, ends) {
        (Entry::RunStarted { attempt, reply_to }, _) => {
            tracing::info!(%session, seq = reply_to, attempt, "a run begins");
        }
        (entry, Some(seq)) => {
            let outcome = match entry {
                Entry::Answer { .. } => "answered",
                Entry::Cancelled { .. } => "cancelled",
                _ => "failed",
            };
            let seconds = began(queue, seq)?.and_then(|began| {
                let took = time::parse(&event.created_at)? - time::parse(&began)?;
                Some(took.num_milliseconds() as f64 / 1000.0)
            });
            tracing::info!(%session, seq, outcome, seconds, "a run ends");
        }
        _ => {}
    }
    Ok(())
}

/// When the first attempt of a message's run began; `None` if there was none.
fn began(queue: &mut Queue, message: i64) -> Result<Option<String>> {
    let mut began = None;
    let filter = format!("subtype = 'run' AND metadata ->> 'reply_to' = {message}");
    each(queue, message, &filter, |_, event| {
        began = Some(event.created_at);
        Ok(ControlFlow::Break(()))
    })?;
    Ok(began)
}
