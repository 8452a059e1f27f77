//! Following sessions: one reader for each session with clients, shared by all of them.
//!
//! A follower holds its position and its members; everything else is in the thread. When it is notified, it
//! reads the new events and sends them to all members, in the order of ids. A client that enters gets the
//! follower's position under the same lock: it reads earlier events itself, and later ones come by its feed,
//! so there are no gaps and no duplicates.

pub mod feed;
pub mod follower;
pub mod sub_agents;
pub mod tail;
pub mod watcher;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::Result;
use crate::session_id::SessionId;
use feed::Backlog;
use follower::{Context, Follower, Membership, follow};

/// The running followers.
pub struct Hub {
    pub context: Arc<Context>,
    followers: Mutex<HashMap<SessionId, Arc<Follower>>>,
}

impl Hub {
    /// A hub without followers.
    pub fn new(context: Context) -> Hub {
        Hub { context: Arc::new(context), followers: Mutex::default() }
    }

    /// Enters a session: events from now on come by the feed of the returned membership.
    ///
    /// # Errors
    ///
    /// [`UnknownSession`](crate::error::RequestError::UnknownSession); errors of the thread.
    pub async fn join(self: &Arc<Hub>, session: SessionId, backlog: Arc<Backlog>) -> Result<Membership> {
        loop {
            let follower = self.all().get(&session).cloned();
            let follower = match follower {
                Some(follower) => follower,
                None => {
                    let started = self.start(session).await?;
                    // Another task may have inserted one first: then this one ends without members.
                    self.all().entry(session).or_insert(started).clone()
                }
            };
            // One that has just ended for lack of members is replaced.
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

    /// The follower of a session, if there is one.
    pub fn follower(&self, session: SessionId) -> Option<Arc<Follower>> {
        self.all().get(&session).cloned()
    }

    pub fn followers(&self) -> Vec<Arc<Follower>> {
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
