//! Following sessions: one reader for each that somebody is in, from disk, for all who are in it.
//!
//! A follower holds what it has read up to and who is in the session; all else is in the thread. It
//! reads what is new when its bell rings and hands it to everybody, in the order of ids. A client that
//! comes in learns, under the same lock, how far the others have got: what is before that it reads
//! itself, what is after comes by its feed, so nothing is missing and nothing comes twice.

pub mod feed;
pub mod follower;
pub mod notices;
pub mod sub_agents;
pub mod tail;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::Result;
use crate::session_id::SessionId;
use feed::Backlog;
use follower::{Context, Follower, Membership, follow};

/// The followers at work.
pub struct Hub {
    pub context: Arc<Context>,
    followers: Mutex<HashMap<SessionId, Arc<Follower>>>,
}

impl Hub {
    /// Nobody is followed yet.
    pub fn new(context: Context) -> Hub {
        Hub { context: Arc::new(context), followers: Mutex::default() }
    }

    /// Enters a session: what comes from now on goes to the returned feed.
    ///
    /// # Errors
    ///
    /// [`UnknownSession`](crate::error::RequestError::UnknownSession); those of the thread.
    pub async fn join(self: &Arc<Hub>, session: SessionId, backlog: Arc<Backlog>) -> Result<Membership> {
        loop {
            let follower = self.all().get(&session).cloned();
            let follower = match follower {
                Some(follower) => follower,
                None => {
                    let started = self.start(session).await?;
                    // Somebody else may have been quicker: then this one ends again.
                    self.all().entry(session).or_insert(started).clone()
                }
            };
            // One that has just ended, since everybody had left, is replaced.
            if let Some(membership) = follower.enter(backlog.clone()) {
                return Ok(membership);
            }
            self.forget(&follower);
        }
    }

    async fn start(self: &Arc<Hub>, session: SessionId) -> Result<Arc<Follower>> {
        let (follower, queue) = Follower::new(&self.context, session).await?;
        let (hub, started) = (self.clone(), follower.clone());
        tokio::spawn(async move {
            follow(&hub.context, &started, queue).await;
            hub.forget(&started);
        });
        Ok(follower)
    }

    /// The follower of a session, if somebody is in it.
    pub fn of(&self, session: SessionId) -> Option<Arc<Follower>> {
        self.all().get(&session).cloned()
    }

    pub fn everybody(&self) -> Vec<Arc<Follower>> {
        self.all().values().cloned().collect()
    }

    pub fn forget(&self, follower: &Arc<Follower>) {
        let mut all = self.all();
        if all.get(&follower.session).is_some_and(|other| Arc::ptr_eq(other, follower)) {
            all.remove(&follower.session);
        }
    }

    fn all(&self) -> std::sync::MutexGuard<'_, HashMap<SessionId, Arc<Follower>>> {
        self.followers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
