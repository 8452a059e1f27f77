//! What is known of sessions, to find the one that a client continues.
//!
//! A cache of [`Path`]s, made from the threads and checked against them before anything is stored: it can be lost at
//! any time, and what is missing in it only makes a session of its own. As in the list of sessions, a session is read
//! again when its log has changed, from where reading stopped.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use thread::Queue;
use thread_sessions::{Result, Root, SessionId, catalogue};

use super::path::{EVENTS, Path};
use crate::session::event::for_each;

/// How many sessions are looked at: those that were active last.
const SESSIONS: usize = 5000;

/// How many exchanges are kept in all.
const EXCHANGES: usize = 100_000;

/// How long a search reads sessions that it does not know.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// Time and size of a log when its session was read.
type Stamp = (SystemTime, u64);

/// The sessions that clients of this interface may continue.
#[derive(Default)]
pub struct Known(Mutex<HashMap<SessionId, (Stamp, Arc<Path>)>>);

/// Brings a path up to date.
///
/// # Errors
///
/// Errors of the thread.
pub fn update(path: &mut Path, queue: &mut Queue) -> Result<()> {
    if let Some(last) = path.exchanges.last()
        && queue.stored_at(last.message)?.as_ref() != Some(&last.at)
    {
        // It was deleted, or another session has the id now.
        *path = Path::default();
    }
    let after = path.upto;
    let upto = for_each(queue, after, EVENTS, &mut |event| path.note(&event.record, event.ends))?;
    path.upto = path.upto.max(upto);
    Ok(())
}

impl Known {
    /// What is known of a session, without looking whether it has changed.
    pub fn last(&self, session: SessionId) -> Path {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&session).map(|(_, path)| Path::clone(path)).unwrap_or_default()
    }

    /// The sessions of this interface, those that were active last first, and besides them the session `named`.
    ///
    /// # Errors
    ///
    /// The root cannot be read.
    pub fn all(&self, root: &Root, named: Option<SessionId>) -> Result<Vec<(SessionId, Arc<Path>)>> {
        let began = Instant::now();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = std::mem::take(&mut *known);
        let (mut found, mut room) = (Vec::new(), EXCHANGES);
        for (at, listed) in catalogue::entries(root)?.into_iter().enumerate() {
            let is_named = named == Some(listed.id);
            if at >= SESSIONS && !is_named {
                continue;
            }
            let stamp = (listed.active, listed.size);
            let path = match before.remove(&listed.id) {
                Some((then, path)) if then == stamp => path,
                _ if began.elapsed() > TIME_LIMIT && !is_named => continue,
                kept => {
                    let mut path = kept.map(|(_, path)| Path::clone(&path)).unwrap_or_default();
                    // It cannot be read now: it is no candidate now.
                    if root.queue(listed.id).and_then(|mut queue| update(&mut path, &mut queue)).is_err() {
                        continue;
                    }
                    Arc::new(path)
                }
            };
            if path.is_ours || is_named {
                found.push((listed.id, path.clone()));
            }
            let size = path.exchanges.len() + 1;
            if size <= room {
                room -= size;
                known.insert(listed.id, (stamp, path));
            }
        }
        Ok(found)
    }
}
