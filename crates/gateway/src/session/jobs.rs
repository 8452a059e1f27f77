//! Blocking work on sessions: on threads of its own, and bounded, so that one session cannot hold up another.
//!
//! A session has one job that reads and one that writes at a time. Whoever waits for its turn occupies no
//! thread. A job that finds the database locked fails after [`BUSY`] and is tried again later, also without a
//! thread. Jobs of sessions never take the last [`RESERVED`] threads, which are for everything else: the list
//! of sessions, the health check; nor those of [`Jobs::looking`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use crate::error::{RequestError, Result};
use crate::session_id::SessionId;

pub use thread_sessions::root::BUSY;

/// The size of the pool of blocking threads.
pub const THREADS: usize = 40;

const RESERVED: usize = 8;

/// For looking at threads, which may take long.
const LOOKING: usize = 8;

/// How long a job is tried again in all, while the database is locked.
const PATIENCE: Duration = Duration::from_secs(60);

/// Pauses between two tries.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// What a job does to its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    Read,
    Write,
}

pub struct Jobs {
    sessions: Mutex<HashMap<(SessionId, Kind), Weak<Semaphore>>>,
    threads: Semaphore,
}

impl Default for Jobs {
    fn default() -> Jobs {
        Jobs { sessions: Mutex::default(), threads: Semaphore::new(THREADS - RESERVED - LOOKING) }
    }
}

impl Jobs {
    /// With threads of their own, for work that is to delay no session.
    pub fn looking() -> Jobs {
        Jobs { sessions: Mutex::default(), threads: Semaphore::new(LOOKING) }
    }

    /// Does work on a session. If the database is locked, the work is done again from its beginning, so it
    /// must not have stored anything before the step that fails.
    ///
    /// # Errors
    ///
    /// Errors of `work`. [`RequestError::Locked`]: the database was locked for a minute; nothing was stored.
    pub async fn run<T: Send + 'static>(
        &self,
        session: SessionId,
        kind: Kind,
        work: impl FnMut() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run_within(PATIENCE, session, kind, work).await
    }

    /// Like [`Jobs::run`]; while the database is locked, the work is tried again for at most `patience`.
    ///
    /// # Errors
    ///
    /// As [`Jobs::run`].
    pub async fn run_within<T: Send + 'static>(
        &self,
        patience: Duration,
        session: SessionId,
        kind: Kind,
        mut work: impl FnMut() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let turn = self.turns(session, kind);
        let (began, mut pause) = (Instant::now(), FIRST_PAUSE);
        loop {
            let done = {
                // Neither semaphore is ever closed.
                let _turn = turn.acquire().await;
                let _thread = self.threads.acquire().await;
                let done;
                (work, done) = blocking(move || {
                    let done = work();
                    Ok((work, done))
                })
                .await?;
                done
            };
            match done {
                Err(RequestError::Thread(e)) if e.is_locked() => {
                    if began.elapsed() >= patience {
                        return Err(RequestError::Locked);
                    }
                }
                done => return done,
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// The turns of a session's jobs of one kind.
    fn turns(&self, session: SessionId, kind: Kind) -> Arc<Semaphore> {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turns) = sessions.get(&(session, kind)).and_then(Weak::upgrade) {
            return turns;
        }
        if sessions.len() >= 1024 {
            sessions.retain(|_, turns| turns.strong_count() > 0);
        }
        let turns = Arc::new(Semaphore::new(1));
        sessions.insert((session, kind), Arc::downgrade(&turns));
        turns
    }
}

/// Does work that may block on the disk, but on no session's database for long.
///
/// # Errors
///
/// Errors of `work`.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        // `work` panicked, which has been reported on stderr, or the runtime is shutting down.
        Err(_) => Err(RequestError::Failed("the gateway could not do this".into())),
    }
}

#[cfg(test)]
mod tests;
