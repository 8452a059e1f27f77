//! Relays the output of sub-agents while they work for an open call of the session's agent.
//!
//! Their threads are below the session's. What they do is copied to the session by their reporter; their streamed
//! output stays in their own threads, and is relayed from here so that users can watch them work. It is not an
//! event of the session: later readers do not get it.

use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Weak;
use std::time::Duration;

use serde_json::json;
use thread::model::filter::Scope;
use thread::queue::{Remaining, Selection};
use thread::{Filter, Queue};
use thread_agent::sub_agent::{Sub, threads_in};
use thread_conversation::{Entry, shown_call_id};
use thread_protocol::event::SubAgent;
use thread_sessions::events::LARGE;
use thread_sessions::root::BUSY;
use thread_sessions::{Kind, Result, SessionId};
use tokio_tungstenite::tungstenite::Utf8Bytes;

use super::frames::notice;
use super::live_session::LiveSession;

/// How often the sub-agents' threads are polled.
const EVERY: Duration = Duration::from_millis(100);

/// By thread; `None` if the sub-agent works for no open call.
type Followed = HashMap<PathBuf, Option<Reader>>;

struct Reader {
    queue: Queue,
    sub: Sub,
    at: i64,
}

/// Relays the output of the sub-agents of open calls, while there are any and the session, whose directory is
/// `dir`, has readers.
pub async fn relay(live: Weak<LiveSession>, dir: PathBuf) {
    let mut followed = Followed::new();
    while let Some(session) = live.upgrade() {
        let Some((calls, inherited)) = session.calls_to_relay() else { return };
        let (id, dir, mut held) = (session.session, dir.clone(), Some(followed));
        let job = move || {
            let (mut followed, mut output) = (held.take().unwrap_or_default(), Vec::new());
            for thread in threads_in(&dir) {
                let reader = match followed.entry(thread) {
                    Occupied(known) => known.into_mut(),
                    // A thread that is still being created has no task yet, and is opened at a later poll.
                    Vacant(new) => match Reader::open(new.key(), &inherited) {
                        Ok(reader) => new.insert(Some(reader)),
                        Err(_) => continue,
                    },
                };
                if reader.as_ref().is_some_and(|reader| !calls.contains(&reader.sub.call_id)) {
                    *reader = None;
                }
                if let Some(reader) = reader
                    && let Err(e) = reader.read(id, &mut output)
                {
                    tracing::error!("session {id}: a sub-agent cannot be read: {e}");
                }
            }
            Ok((followed, output))
        };
        let Ok((read, output)) = session.context.pool.run(id, Kind::Read, job).await else { return };
        followed = read;
        session.relay(output);
        drop(session);
        tokio::time::sleep(EVERY).await;
    }
}

impl Reader {
    /// `inherited` are the calls whose sub-agents were running before there was a reader: their output so far may
    /// have been relayed already.
    fn open(thread: &Path, inherited: &HashSet<String>) -> Result<Reader> {
        let mut queue = Queue::open_waiting(thread, BUSY)?;
        let sub = Sub::of(&mut queue)?;
        let at = if inherited.contains(&sub.call_id) { queue.newest()?.0 } else { 0 };
        Ok(Reader { queue, sub, at })
    }

    fn read(&mut self, session: SessionId, output: &mut Vec<(String, Utf8Bytes)>) -> Result<()> {
        let filter = Filter::new("source = 'self' AND subtype IN ('token', 'thinking')", Scope::Reading)?;
        let mut selection = Selection { after: self.at, limit: None, filter };
        let sub = &self.sub;
        loop {
            let remaining = self.queue.read_page_capped(&mut selection, LARGE, &mut |capped| {
                let (event, content) = match Entry::of(&capped.row.to_event()) {
                    Entry::Token { text, .. } => ("token", text),
                    Entry::Thinking { text, .. } => ("thinking", text),
                    _ => return ControlFlow::Continue(()),
                };
                let told = SubAgent {
                    parent_call_id: shown_call_id(&sub.call_id, sub.attempt),
                    sub_agent: sub.id.clone(),
                    event: event.to_owned(),
                    payload: json!({ "content": content, "delta": true }),
                };
                output.push((sub.call_id.clone(), notice(told, Some(session), Some(&sub.run_id))));
                ControlFlow::Continue(())
            })?;
            self.at = selection.after;
            if remaining == Remaining::None {
                return Ok(());
            }
        }
    }
}
