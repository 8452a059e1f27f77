//! Blocking work on sessions: on dedicated threads, and bounded, so that one session cannot hold up another.
//!
//! A session has one job that reads and one that writes at a time, until that is done, even if the client that asked for
//! it has left. A job that waits for its turn occupies no thread. A job that finds the database locked fails after
//! [`BUSY`](thread_sessions::root::BUSY) and is tried again later, also without a thread. Work on sessions and other blocking work have their
//! own threads, so neither waits for the other.

use std::hash::Hash;
use std::time::{Duration, Instant};

use thread::model::exponential_backoff::ExponentialBackoff;
use thread_sessions::turns::{Threads, Turns};
use thread_sessions::{Kind, RequestError, Result, SessionId};

/// For jobs of sessions.
pub const SESSIONS: usize = 24;

/// For copying sessions, which may take long and delays no other work on the session that is copied.
const COPYING: usize = 2;

/// For looking at threads, which may take long and delays no session.
pub const LOOKING: usize = 8;

/// For lists and small things.
const LISTING: usize = 3;

/// For searches, which may take long.
const SEARCHING: usize = 3;

/// For files of attachments.
pub const STORAGE: usize = 4;

/// For figures on all sessions, the list of all threads, sweeping, and what the runtime does itself.
const REST: usize = 8;

/// The size of the pool of blocking threads: work that was given a permit never waits for a thread.
pub const THREADS: usize =
    SESSIONS + COPYING + LOOKING + LISTING + SEARCHING + STORAGE + REST + thread_mcp::scope::AT_ONCE;

/// How long a job is tried again in all, while the database is locked.
const PATIENCE: Duration = Duration::from_secs(60);

/// Pauses between two tries.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The pool for sessions, or for anything else with ids of this type.
pub struct BlockingPool<I = SessionId>(Turns<(I, Kind)>);

impl<I: Clone + Eq + Hash> BlockingPool<I> {
    /// A pool of so many threads.
    pub fn new(threads: usize) -> BlockingPool<I> {
        BlockingPool(Turns::new(threads))
    }

    /// Does work on a session. If the database is locked, the work is done again from its beginning, so it
    /// must not have stored anything before the step that fails.
    ///
    /// # Errors
    ///
    /// Errors of `work`. [`RequestError::Locked`]: the database was locked for a minute; nothing was stored.
    pub async fn run<T: Send + 'static>(
        &self,
        id: I,
        kind: Kind,
        work: impl FnMut() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run_within(PATIENCE, id, kind, work).await
    }

    /// Like [`BlockingPool::run`]; while the database is locked, the work is tried again for at most `patience`.
    ///
    /// # Errors
    ///
    /// As [`BlockingPool::run`].
    pub async fn run_within<T: Send + 'static>(
        &self,
        patience: Duration,
        id: I,
        kind: Kind,
        mut work: impl FnMut() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (began, mut backoff) = (Instant::now(), ExponentialBackoff::new(FIRST_PAUSE, LONGEST_PAUSE));
        loop {
            let once = move || {
                let done = work();
                (work, done)
            };
            let done;
            (work, done) = self.0.run((id.clone(), kind), once).await.ok_or_else(failed)?;
            match done {
                Err(RequestError::Thread(e)) if e.is_locked() => {
                    if began.elapsed() >= patience {
                        return Err(RequestError::Locked);
                    }
                }
                done => return done,
            }
            tokio::time::sleep(backoff.pause()).await;
        }
    }
}

/// Blocking work that is not on one session.
pub struct Common {
    pub lists: Threads,
    pub searches: Threads,
    pub figures: Threads,
    pub copies: BlockingPool,
}

impl Default for Common {
    fn default() -> Common {
        let [lists, searches, figures] = [LISTING, SEARCHING, 1].map(Threads::new);
        Common { lists, searches, figures, copies: BlockingPool::new(COPYING) }
    }
}

/// Does work that may block on the disk, but on no session's database for long.
///
/// # Errors
///
/// Errors of `work`.
pub async fn blocking<T: Send + 'static>(
    threads: &Threads,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    threads.run(work).await.ok_or_else(failed)?
}

/// The work panicked, which has been reported on stderr, or the runtime is shutting down.
fn failed() -> RequestError {
    RequestError::Failed("the gateway could not do this".into())
}

#[cfg(test)]
mod tests;
