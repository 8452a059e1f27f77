//! Pauses after a session could not be read: longer ones each time, and one line in the log.

use std::time::Duration;

use thread::model::exponential_backoff::ExponentialBackoff;
use thread_sessions::{RequestError, SessionId};

const FIRST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(10);

/// Failures since a session was last read.
pub struct ReadFailures(ExponentialBackoff);

impl ReadFailures {
    pub const fn none() -> ReadFailures {
        ReadFailures(ExponentialBackoff::new(FIRST, LONGEST))
    }

    /// Waits until it is time to try again.
    pub async fn failed(&mut self, session: SessionId, error: &RequestError) {
        if self.0.is_first() {
            tracing::error!("session {session}: cannot be read: {error}");
        }
        tokio::time::sleep(self.0.pause()).await;
    }

    pub fn worked(&mut self) {
        self.0.reset();
    }
}
