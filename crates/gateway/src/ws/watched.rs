//! The sessions that a connection hears besides the one that it is in.
//!
//! Each has a cursor, as the session that the connection is in. Only one of them at a time holds events that were read
//! ahead, however many there are, so a client that is behind in all of them takes no more memory than in one.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use thread_sessions::SessionId;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::gateway::Gateway;
use crate::session::bell::Bell;
use crate::session::blocking_pool::blocking;
use crate::session::cursor::{Cursor, Next};
use crate::session::live_session::LiveSession;

/// The most sessions that a connection hears.
pub const MOST: usize = 1000;

/// How many new sessions wait to be heard.
const WAITING: usize = 16;

/// What a request changes.
pub enum Change {
    /// Hears these, from a position on; one that is heard already goes there only if it was asked for.
    Hear { sessions: Vec<Heard>, all: bool },
    /// Hears these no longer; `None`: none of all.
    Leave(Option<Vec<SessionId>>),
}

/// A session to be heard.
pub struct Heard {
    pub live: Arc<LiveSession>,
    pub position: i64,
    /// Whether the client has said where it is.
    pub is_asked: bool,
}

/// The sessions that a connection hears.
#[derive(Default)]
pub struct Watched {
    /// All of them, also the one that the connection is in, whose cursor is elsewhere.
    ids: HashSet<SessionId>,
    cursors: HashMap<SessionId, Cursor>,
    bell: Arc<Bell>,
    /// Those that may have something, in the order in which they get their turns.
    ready: VecDeque<SessionId>,
    /// New sessions, if all are heard.
    discovery: Option<Discovery>,
}

struct Discovery {
    found: mpsc::Receiver<Arc<LiveSession>>,
    task: AbortHandle,
}

impl Drop for Discovery {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What comes next in these sessions.
pub enum Heeded {
    Next(SessionId, Next),
    /// A new session, which is heard from its beginning.
    Found(Arc<LiveSession>),
}

impl Watched {
    pub fn has(&self, session: SessionId) -> bool {
        self.ids.contains(&session)
    }

    /// Where the client is in these sessions, without the one that it is in.
    pub fn positions(&self) -> HashMap<SessionId, i64> {
        self.cursors.iter().map(|(session, cursor)| (*session, cursor.position())).collect()
    }

    pub fn cursor(&self, session: SessionId) -> Option<&Cursor> {
        self.cursors.get(&session)
    }

    /// Hears a session. Returns false if there are too many.
    pub fn hear(&mut self, live: Arc<LiveSession>, position: i64, seeks: bool) -> bool {
        let session = live.session;
        if let Some(cursor) = self.cursors.get_mut(&session).filter(|cursor| cursor.is_in(&live)) {
            if seeks {
                cursor.seek(position);
                self.bell.ring(session);
            }
            return true;
        }
        if self.ids.len() >= MOST && !self.ids.contains(&session) {
            return false;
        }
        self.ids.insert(session);
        self.put(Cursor::new(live, position));
        true
    }

    /// The connection enters a session: its cursor, if it is heard. It stays one that is heard.
    pub fn enter(&mut self, session: SessionId) -> Option<Cursor> {
        if self.discovery.is_some() && self.ids.len() < MOST {
            self.ids.insert(session);
        }
        self.cursors.remove(&session)
    }

    /// The session that the connection is in is heard from now on.
    pub fn stays(&mut self, session: SessionId) {
        self.ids.insert(session);
    }

    /// The connection has left a session; if it is heard, its events go on.
    pub fn left(&mut self, cursor: Cursor) {
        if self.ids.contains(&cursor.session()) {
            self.put(cursor.of_nobody());
        }
    }

    fn put(&mut self, mut cursor: Cursor) {
        cursor.forget();
        cursor.ring_at_change(&self.bell);
        self.cursors.insert(cursor.session(), cursor);
    }

    /// Hears a session no longer.
    pub fn leave(&mut self, session: SessionId) {
        self.ids.remove(&session);
        self.cursors.remove(&session);
    }

    /// Hears nothing.
    pub fn leave_all(&mut self) {
        *self = Watched::default();
    }

    /// Hears all sessions that appear from now on, but those that are heard already.
    pub fn discover(&mut self, gateway: &Arc<Gateway>) {
        if self.discovery.is_some() {
            return;
        }
        let (sender, found) = mpsc::channel(WAITING);
        let task = tokio::spawn(discover(gateway.clone(), self.ids.clone(), sender)).abort_handle();
        self.discovery = Some(Discovery { found, task });
    }

    /// Drops events that were read ahead: the client cannot take them now.
    pub fn forget(&mut self) {
        if let Some(cursor) = self.ready.front().and_then(|session| self.cursors.get_mut(session)) {
            cursor.forget();
        }
    }

    /// Waits for what comes next. May be dropped at any time: nothing is lost.
    pub async fn next(&mut self) -> Heeded {
        loop {
            let Some(session) = self.ready.front().copied() else {
                let found = async {
                    match &mut self.discovery {
                        Some(discovery) => discovery.found.recv().await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    session = self.bell.next() => self.ready.push_back(session),
                    Some(live) = found => return Heeded::Found(live),
                }
                continue;
            };
            let next = match self.cursors.get_mut(&session) {
                Some(cursor) => cursor.next_now().await.map(|next| (next, cursor.has_more())),
                None => None,
            };
            match next {
                Some((next, true)) => return Heeded::Next(session, next),
                Some((next, false)) => {
                    // It is the turn of another; this one may have more.
                    self.ready.pop_front();
                    self.ready.push_back(session);
                    return Heeded::Next(session, next);
                }
                None => drop(self.ready.pop_front()),
            }
        }
    }
}

/// Finds sessions that appear in the root, no matter who makes them.
async fn discover(
    gateway: Arc<Gateway>,
    mut known: HashSet<SessionId>,
    found: mpsc::Sender<Arc<LiveSession>>,
) {
    loop {
        tokio::time::sleep(thread::LOOK_EVERY).await;
        let root = gateway.root.clone();
        let list = move || root.entries().map_err(|e| root.failed(e));
        let Ok(entries) = blocking(&gateway.common.lists, list).await else { continue };
        for id in
            entries.into_iter().map(|listed| listed.id).filter(|id| !known.contains(id)).collect::<Vec<_>>()
        {
            // One that cannot be read now is tried again.
            if let Ok(live) = gateway.hub.enter(id).await {
                known.insert(id);
                if found.send(live).await.is_err() {
                    return;
                }
            }
        }
    }
}
