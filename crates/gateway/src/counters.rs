//! Counters for `status` and metrics, since the gateway was started.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Default)]
pub struct Counters {
    /// Open WebSockets.
    pub connections: Counter,
    pub accepted: Counter,
    pub refused: Counter,
    pub wrong_tokens: Counter,
}

#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts a WebSocket as open until it is dropped.
pub struct Counted(Arc<Counters>);

impl Counted {
    pub fn new(counters: &Arc<Counters>) -> Counted {
        counters.connections.count();
        counters.accepted.count();
        Counted(counters.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.0.fetch_sub(1, Ordering::Relaxed);
    }
}
