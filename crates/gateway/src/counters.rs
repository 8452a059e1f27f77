//! What is counted for `status` and for metrics, since the gateway was started.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

#[derive(Default)]
pub struct Counters {
    connections: AtomicUsize,
    accepted: AtomicU64,
    refused: AtomicU64,
    wrong_tokens: AtomicU64,
}

/// A connection that is counted for as long as this lives.
pub struct Counted(Arc<Counters>);

impl Counted {
    pub fn new(counters: &Arc<Counters>) -> Counted {
        counters.connections.fetch_add(1, Ordering::Relaxed);
        counters.accepted.fetch_add(1, Ordering::Relaxed);
        Counted(counters.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Counters {
    /// WebSockets that are open.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub fn wrong_token(&self) {
        self.wrong_tokens.fetch_add(1, Ordering::Relaxed);
    }

    pub fn all(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            accepted: read(&self.accepted),
            refused: read(&self.refused),
            wrong_tokens: read(&self.wrong_tokens),
        }
    }
}

/// What was counted.
pub struct Counts {
    pub accepted: u64,
    pub refused: u64,
    pub wrong_tokens: u64,
}
