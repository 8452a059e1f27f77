//! Blocking work, on a bounded number of threads, and in turns.
//!
//! Work keeps its thread and its turn until it is done, even if its client has left. Waiting for them takes no
//! thread, and ends with the client.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many turns are kept before unused ones are dropped.
const REMEMBERED: usize = 1024;

/// What work does to its thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    Read,
    Write,
}

/// So many blocking threads.
pub struct Threads(Arc<Semaphore>);

impl Threads {
    pub fn new(at_once: usize) -> Threads {
        Threads(Arc::new(Semaphore::new(at_once)))
    }

    /// Runs work on one of them. `None` if it panicked, which was reported on stderr, or the runtime is shutting
    /// down.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        // Never closed.
        let thread = self.0.clone().acquire_owned().await;
        let work = move || {
            let _thread = thread;
            work()
        };
        tokio::task::spawn_blocking(work).await.ok()
    }
}

/// One turn at a time for each key.
pub struct Keyed<K>(Mutex<HashMap<K, Weak<Semaphore>>>);

/// A turn, until it is dropped.
pub type Turn = OwnedSemaphorePermit;

impl<K> Default for Keyed<K> {
    fn default() -> Keyed<K> {
        Keyed(Mutex::default())
    }
}

impl<K: Eq + Hash> Keyed<K> {
    /// Waits for the turn of a key.
    ///
    /// # Panics
    ///
    /// Never: no semaphore is ever closed.
    pub async fn turn(&self, key: K) -> Turn {
        let turns = self.of(key);
        turns.acquire_owned().await.expect("it is never closed")
    }

    fn of(&self, key: K) -> Arc<Semaphore> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turns) = all.get(&key).and_then(Weak::upgrade) {
            return turns;
        }
        if all.len() >= REMEMBERED {
            all.retain(|_, turns| turns.strong_count() > 0);
        }
        let turns = Arc::new(Semaphore::new(1));
        all.insert(key, Arc::downgrade(&turns));
        turns
    }
}

/// Blocking threads for work that is done one piece at a time for each key.
pub struct Turns<K> {
    turns: Keyed<K>,
    threads: Threads,
}

impl<K: Eq + Hash> Turns<K> {
    pub fn new(at_once: usize) -> Turns<K> {
        Turns { turns: Keyed::default(), threads: Threads::new(at_once) }
    }

    /// Does work in the turn of its key. `None` as for [`Threads::run`].
    pub async fn run<T: Send + 'static>(
        &self,
        key: K,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let turn = self.turns.turn(key).await;
        let work = move || {
            let _turn = turn;
            work()
        };
        self.threads.run(work).await
    }
}

#[cfg(test)]
mod tests;
