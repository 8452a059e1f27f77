//! Counters for `status` and metrics, since the gateway was started.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

#[derive(Default)]
pub struct Counters {
    connections: AtomicUsize,
    accepted: AtomicU64,
    refused: AtomicU64,
    wrong_tokens: AtomicU64,
}

/// Counts a WebSocket as open until it is dropped.
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
    /// The number of open WebSockets.
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

/// The values of the counters.
pub struct Counts {
    pub accepted: u64,
    pub refused: u64,
    pub wrong_tokens: u64,
}
