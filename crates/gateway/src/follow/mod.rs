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
use crate::gateway::Gateway;
use crate::session::id::SessionId;
use feed::Backlog;
use follower::{Follower, Membership};

/// The followers at work.
#[derive(Default)]
pub struct Hub(Mutex<HashMap<SessionId, Arc<Follower>>>);

impl Hub {
    /// Enters a session: what comes from now on goes to the returned feed.
    ///
    /// # Errors
    ///
    /// [`UnknownSession`](crate::error::RequestError::UnknownSession); those of the thread.
    pub async fn join(
        &self,
        gateway: &Arc<Gateway>,
        session: SessionId,
        backlog: Arc<Backlog>,
    ) -> Result<Membership> {
        loop {
            let follower = self.all().get(&session).cloned();
            let follower = match follower {
                Some(follower) => follower,
                None => {
                    let started = Follower::start(gateway, session).await?;
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
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
