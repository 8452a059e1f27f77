//! What is counted for `status` and for metrics, since the gateway was started.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::session::runs::Change;

#[derive(Default)]
pub struct Counters {
    connections: AtomicUsize,
    accepted: AtomicU64,
    refused: AtomicU64,
    wrong_tokens: AtomicU64,
    answered: AtomicU64,
    failed: AtomicU64,
    cancelled: AtomicU64,
}

/// A connection that is counted for as long as this lives.
pub struct Counted(std::sync::Arc<crate::gateway::Gateway>);

impl Counted {
    pub fn new(gateway: &std::sync::Arc<crate::gateway::Gateway>) -> Counted {
        gateway.counters.connections.fetch_add(1, Ordering::Relaxed);
        gateway.counters.accepted.fetch_add(1, Ordering::Relaxed);
        Counted(gateway.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.counters.connections.fetch_sub(1, Ordering::Relaxed);
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

    pub fn runs(&self, changes: &[Change]) {
        for change in changes {
            let counter = match change {
                Change::Answered => &self.answered,
                Change::Failed => &self.failed,
                Change::Cancelled => &self.cancelled,
                Change::Spoken | Change::Begun => continue,
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}
