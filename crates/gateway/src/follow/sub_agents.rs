//! Relays the output of sub-agents while they work for an open call of the session's agent.
//!
//! Their threads are below the session's. What they do is copied to the session by their reporter; their
//! streamed output stays in their own threads, and is relayed from here so that users can watch them work.
//! Relayed frames are not events of the session: they have no `seq`, and later clients do not get them.

use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use axum::extract::ws::Utf8Bytes;
use serde_json::json;
use thread::model::filter::Scope;
use thread::queue::{Remaining, Selection};
use thread::{Filter, Queue};
use thread_agent::conversation::Entry;
use thread_agent::sub_agent::{Sub, threads_in};

use crate::error::Result;
use crate::log::log;
use crate::protocol::event::notice;
use crate::session::blocking;
use crate::session_id::SessionId;

/// How often the sub-agents' threads are polled.
const EVERY: Duration = Duration::from_millis(100);

/// By thread; `None` if the sub-agent works for no open call.
type Followed = HashMap<PathBuf, Option<Reader>>;

struct Reader {
    queue: Queue,
    sub: Sub,
    at: i64,
}

/// Relays the output of the sub-agents of open calls, until `open_calls` returns `None`.
pub async fn follow(
    session: SessionId,
    dir: PathBuf,
    open_calls: impl Fn() -> Option<HashSet<String>>,
    send: impl Fn(Vec<Utf8Bytes>),
) {
    let mut followed = Followed::new();
    while let Some(calls) = open_calls() {
        let dir = dir.clone();
        let read = blocking(move || {
            let mut frames = Vec::new();
            for thread in threads_in(&dir) {
                let reader = match followed.entry(thread) {
                    Occupied(known) => known.into_mut(),
                    // A thread that is still being created has no task yet, and is opened at a later poll.
                    Vacant(new) => match Reader::open(new.key()) {
                        Ok(reader) => new.insert(Some(reader)),
                        Err(_) => continue,
                    },
                };
                if reader.as_ref().is_some_and(|reader| !calls.contains(&reader.sub.call_id)) {
                    *reader = None;
                }
                if let Some(reader) = reader {
                    reader.read(session, &mut frames)?;
                }
            }
            Ok((followed, frames))
        });
        match read.await {
            Ok((read, frames)) => {
                followed = read;
                send(frames);
            }
            Err(e) => {
                log(format_args!("session {session}: a sub-agent cannot be read: {e}"));
                followed = Followed::new();
            }
        }
        tokio::time::sleep(EVERY).await;
    }
}

impl Reader {
    fn open(thread: &std::path::Path) -> Result<Reader> {
        let mut queue = Queue::open(thread)?;
        let sub = Sub::of(&mut queue)?;
        Ok(Reader { queue, sub, at: 0 })
    }

    fn read(&mut self, session: SessionId, frames: &mut Vec<Utf8Bytes>) -> Result<()> {
        let filter = Filter::new("source = 'self' AND subtype IN ('token', 'thinking')", Scope::Reading)?;
        let mut selection = Selection { after: self.at, limit: None, filter };
        let sub = &self.sub;
        while self.queue.read_page(&mut selection, &mut |row| {
            let (event, content) = match Entry::of(&row.to_event()).1 {
                Entry::Token { text, .. } => ("token", text),
                Entry::Thinking { text, .. } => ("thinking", text),
                _ => return ControlFlow::Continue(()),
            };
            let payload = json!({
                "parentCallId": sub.call_id,
                "subAgent": sub.id,
                "event": event,
                "payload": { "content": content, "delta": true },
            });
            frames.push(notice("sub_agent", payload, session, Some(&sub.run_id)).into());
            ControlFlow::Continue(())
        })? == Remaining::Some
        {}
        self.at = selection.after;
        Ok(())
    }
}
