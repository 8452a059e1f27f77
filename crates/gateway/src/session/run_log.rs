//! Log lines about runs: when they begin and end, whatever started them.
//!
//! They come from the sessions that the starter has checked, from the gateway's start on. A run is named by the
//! `seq` of its message, because run ids are chosen by clients.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use thread::Queue;
use thread::files::JSONL;
use thread::model::time;
use thread_conversation::Entry;
use thread_sessions::{Result, SessionId};

use super::event::for_each;

/// The events that begin a run, or may end one.
const EVENTS: &str =
    "subtype = 'run' OR source = 'self' AND (type = 'message' OR subtype IN ('error', 'cancelled'))";

pub struct RunLog {
    since: SystemTime,
    sessions: HashMap<SessionId, Read>,
}

/// What is known of a session.
struct Read {
    /// The id up to which it has been read.
    upto: i64,
    /// When the runs began that have not ended, by their messages.
    began: HashMap<i64, String>,
}

/// What happened to a run.
enum Happened {
    Begins { seq: i64, attempt: u64, at: String },
    Ends { seq: i64, outcome: &'static str, at: String },
}

impl RunLog {
    /// A log of what happens from now on.
    pub fn new() -> RunLog {
        RunLog { since: SystemTime::now(), sessions: HashMap::new() }
    }

    /// Logs what is new in a session. `started` is how many consumers the starter has started there. Anything that
    /// cannot be read now is read after the next change.
    pub fn note(&mut self, queue: &mut Queue, started: usize) {
        let Some(session) = queue.path().file_name().and_then(SessionId::parse_name) else { return };
        if started > 0 {
            tracing::info!(%session, "what was due has been started");
        }
        if let Err(e) = self.read(session, queue) {
            tracing::debug!(%session, "the runs cannot be read now: {e}");
        }
    }

    fn read(&mut self, session: SessionId, queue: &mut Queue) -> Result<()> {
        let known = self.sessions.get_mut(&session);
        if known.is_none() && !is_active_since(queue.path(), self.since) {
            return Ok(());
        }
        let read = match known {
            Some(read) => read,
            None => {
                let upto = queue.last_before(self.since.into())?;
                self.sessions.entry(session).or_insert(Read { upto, began: HashMap::new() })
            }
        };
        let mut found = Vec::new();
        read.upto = for_each(queue, read.upto, EVENTS, &mut |event| {
            let (at, entry) = (event.record.event.created_at.clone(), &event.record.entry);
            found.extend(match (entry, event.ends.zip(entry.ending())) {
                (Entry::RunStarted { attempt, reply_to }, _) => {
                    let seq = reply_to.unwrap_or(event.id());
                    Some(Happened::Begins { seq, attempt: *attempt, at })
                }
                (_, Some((seq, ending))) => {
                    Some(Happened::Ends { seq, outcome: ending.outcome.as_str(), at })
                }
                _ => None,
            });
        })?;
        for happened in found {
            match happened {
                Happened::Begins { seq, attempt, at } => {
                    tracing::info!(%session, seq, attempt, "a run begins");
                    read.began.entry(seq).or_insert(at);
                }
                Happened::Ends { seq, outcome, at } => {
                    let began = match read.began.remove(&seq) {
                        Some(began) => Some(began),
                        None => began_before(queue, seq)?,
                    };
                    let seconds = began.and_then(|began| {
                        let took = time::parse(&at)? - time::parse(&began)?;
                        Some(took.num_milliseconds() as f64 / 1000.0)
                    });
                    tracing::info!(%session, seq, outcome, seconds, "a run ends");
                }
            }
        }
        Ok(())
    }
}

/// Whether something was stored in a thread since a time; no error if it is gone.
fn is_active_since(path: &Path, since: SystemTime) -> bool {
    let written = std::fs::metadata(path.join(JSONL)).and_then(|about| about.modified());
    // The file system's clock is a little behind.
    written.is_ok_and(|written| written + Duration::from_secs(1) >= since)
}

/// When a message's run began, if that was before the log began; `None` if it never did.
fn began_before(queue: &mut Queue, seq: i64) -> Result<Option<String>> {
    let mut began = None;
    // One that the agent began itself is known by the event that began it.
    let condition = format!("subtype = 'run' AND (metadata ->> 'reply_to' = {seq} OR id = {seq})");
    for_each(queue, seq - 1, &condition, &mut |event| {
        began.get_or_insert_with(|| event.record.event.created_at.clone());
    })?;
    Ok(began)
}
