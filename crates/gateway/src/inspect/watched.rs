//! Reading watched state once a second, however many watch it.
//!
//! Each watched thing has a task that reads it and ends with its last watcher. A watcher gets the newest state when
//! it changes; nothing is queued.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use thread::files::stamp::Stamp;
use thread::{LOOK_EVERY, Queue};
use thread_sessions::root::BUSY;
use thread_sessions::{Kind, RequestError, Result};
use tokio::sync::watch;

use super::dto::{Summary, Thread, Trouble};
use super::overview::{Listing, explained};
use super::threads::{Target, ThreadId};
use super::{Inspector, state};

/// After how long a thread is looked at although its files have not changed.
const ANYWAY: Duration = Duration::from_secs(10);

/// Watchers of a thread, by its id; watchers of the list, without one.
#[derive(Default)]
pub struct Watched(Mutex<HashMap<Option<ThreadId>, watch::Sender<Seen>>>);

/// What was seen last.
#[derive(Clone)]
pub enum Seen {
    NotYet,
    List(Arc<Listing>),
    /// A thread, as JSON.
    Thread(Bytes),
    /// Nothing can be seen any more: why, and the error's code.
    Gone(String, &'static str),
}

/// A look at one thread.
#[derive(Default)]
struct Last {
    stamp: Option<Stamp>,
    at: Option<Instant>,
    is_moving: bool,
}

impl Inspector {
    /// Watches a thread; without an id, the list. What was seen last counts as new.
    pub fn watch(self: &Arc<Inspector>, id: Option<ThreadId>) -> watch::Receiver<Seen> {
        let mut all = self.all_watched();
        if let Some(sender) = all.get(&id) {
            let mut receiver = sender.subscribe();
            receiver.mark_changed();
            return receiver;
        }
        let (sender, receiver) = watch::channel(Seen::NotYet);
        all.insert(id.clone(), sender.clone());
        drop(all);
        tokio::spawn(self.clone().follow(id, sender));
        receiver
    }

    fn all_watched(&self) -> MutexGuard<'_, HashMap<Option<ThreadId>, watch::Sender<Seen>>> {
        self.watched.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread and its consumers.
    ///
    /// # Errors
    ///
    /// Errors of the thread.
    pub fn thread(&self, target: &Target, queue: &mut Queue) -> Result<Thread> {
        let session = self.session_of(queue, target);
        Ok(state::thread(target, session, self.read_only, queue)?.0)
    }

    /// Reads until there is no watcher left.
    async fn follow(self: Arc<Inspector>, id: Option<ThreadId>, sender: watch::Sender<Seen>) {
        let mut last = Last::default();
        loop {
            let began = Instant::now();
            let seen = match &id {
                None => match self.listing().await {
                    Ok(listing) => Some(Seen::List(listing)),
                    Err(e) => {
                        let code = e.code();
                        Some(Seen::Gone(explained(e), code))
                    }
                },
                Some(id) => self.look_again(id, &mut last).await,
            };
            let is_over = matches!(seen, Some(Seen::Gone(..)));
            if let Some(seen) = seen {
                sender.send_if_modified(|before| {
                    let is_new = seen.differs(before);
                    *before = seen;
                    is_new
                });
            }
            {
                let mut all = self.all_watched();
                if is_over || sender.receiver_count() == 0 {
                    all.remove(&id);
                    return;
                }
            }
            tokio::time::sleep(LOOK_EVERY.saturating_sub(began.elapsed()).max(LOOK_EVERY / 4)).await;
        }
    }

    /// Looks at a thread, if it may have changed.
    async fn look_again(self: &Arc<Inspector>, id: &ThreadId, last: &mut Last) -> Option<Seen> {
        let is_due = last.is_moving || last.at.is_none_or(|at| at.elapsed() >= ANYWAY);
        let known = last.stamp.filter(|_| !is_due);
        let (inspector, own) = (self.clone(), id.clone());
        match self.run(id, Kind::Read, move || inspector.look_closely(&own, known)).await {
            Ok(None) => None,
            Ok(Some((thread, stamp, is_moving))) => {
                *last = Last { stamp, at: Some(Instant::now()), is_moving };
                Some(Seen::Thread(written(&thread)))
            }
            Err(e @ RequestError::Unknown(_)) => Some(Seen::Gone(e.to_string(), e.code())),
            Err(e) => {
                *last = Last::default();
                let message = explained(e);
                let target = self.threads.find(id).ok()?;
                let summary =
                    Summary { error: Some(Trouble { message }), ..state::summary(&target, None, None) };
                let thread = Thread {
                    summary,
                    read_only: self.read_only,
                    size_bytes: 0,
                    first_at: None,
                    rate_by_hour: Vec::new(),
                    consumers_state: Vec::new(),
                    to_come: Vec::new(),
                };
                Some(Seen::Thread(written(&thread)))
            }
        }
    }

    /// Looks at a thread, unless its files are as they were. Also returns the state of its files, and whether it may
    /// change without them.
    fn look_closely(
        &self,
        id: &ThreadId,
        known: Option<Stamp>,
    ) -> Result<Option<(Thread, Option<Stamp>, bool)>> {
        let target = self.threads.find(id)?;
        let gone = || RequestError::Unknown(format!("the thread '{id}' is gone"));
        let stamp = target.stamp().ok_or_else(gone)?;
        let settled = Some(stamp).filter(|stamp| !stamp.is_fresh());
        if known.is_some() && known == Some(stamp) {
            return Ok(None);
        }
        self.count_opened();
        let mut queue = target.open(BUSY)?;
        let session = self.session_of(&mut queue, &target);
        let (thread, is_moving) = state::thread(&target, session, self.read_only, &mut queue)?;
        Ok(Some((thread, settled, is_moving)))
    }
}

impl Seen {
    fn differs(&self, before: &Seen) -> bool {
        match (self, before) {
            (Seen::List(now), Seen::List(before)) => now.version != before.version,
            (Seen::Thread(now), Seen::Thread(before)) => now != before,
            _ => true,
        }
    }
}

fn written(thread: &Thread) -> Bytes {
    serde_json::to_vec(thread).unwrap_or_default().into()
}
