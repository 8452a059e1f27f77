//! Pauses after a session could not be read: longer ones each time, and one line in the log.

use std::time::Duration;

use crate::error::RequestError;
use crate::session_id::SessionId;

const FIRST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(10);

/// Failures since a session was last read. The default is none.
#[derive(Default)]
pub struct Backoff(Option<Duration>);

impl Backoff {
    /// Waits until it is time to try again.
    pub async fn failed(&mut self, session: SessionId, error: &RequestError) {
        let pause = match self.0 {
            Some(last) => (last * 2).min(LONGEST),
            None => {
                tracing::error!("session {session}: cannot be read: {error}");
                FIRST
            }
        };
        self.0 = Some(pause);
        tokio::time::sleep(pause).await;
    }

    pub fn worked(&mut self) {
        self.0 = None;
    }
}
