//! The task of a connection that reads requests, and notices when its client is gone.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use thread_protocol::{Close, MAX_UNANSWERED, Request};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep_until;

use super::socket::{End, Reader};

/// How long a client may be silent, and how long if it does not read what is written to it.
const SILENCE: Duration = Duration::from_secs(60);
const SILENCE_BEHIND: Duration = Duration::from_secs(600);

/// What the two tasks of a connection share about its client.
pub struct Alive {
    times: Mutex<Times>,
    /// How many of its requests are unanswered.
    unanswered: AtomicUsize,
}

#[derive(Debug, Clone, Copy)]
struct Times {
    /// When something was received last, or a write that had to wait was done.
    heard: Instant,
    /// Whether a write waits for the client.
    behind: bool,
}

impl Default for Alive {
    fn default() -> Alive {
        let times = Times { heard: Instant::now(), behind: false };
        Alive { times: Mutex::new(times), unanswered: AtomicUsize::new(0) }
    }
}

impl Alive {
    fn heard(&self) {
        self.times().heard = Instant::now();
    }

    /// Notes that a write waits for the client, or no longer does.
    pub fn behind(&self, behind: bool) {
        *self.times() = Times { heard: Instant::now(), behind };
    }

    pub fn answered(&self) {
        self.unanswered.fetch_sub(1, Ordering::Relaxed);
    }

    /// When the client counts as gone, unless something happens.
    fn until(&self) -> Instant {
        let Times { heard, behind } = *self.times();
        heard + if behind { SILENCE_BEHIND } else { SILENCE }
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads requests until the connection ends or is stopped.
pub async fn read(
    mut reader: Reader,
    requests: mpsc::UnboundedSender<Request>,
    alive: Arc<Alive>,
    ending: oneshot::Sender<End>,
    mut stopped: oneshot::Receiver<()>,
) -> Reader {
    let end = loop {
        let received = tokio::select! {
            received = reader.next() => received,
            () = sleep_until(alive.until().into()) => match alive.until() <= Instant::now() {
                true => break End::Close(Close::Silent),
                false => continue,
            },
            _ = &mut stopped => return reader,
        };
        alive.heard();
        match received {
            Ok(None) => {}
            Ok(Some(text)) => match Request::parse(&text) {
                Ok(request) if alive.unanswered.fetch_add(1, Ordering::Relaxed) < MAX_UNANSWERED => {
                    // Fails only if no one answers any more.
                    requests.send(request).ok();
                }
                Ok(_) => break End::Close(Close::TooManyRequests),
                Err(malformed) => break End::Malformed(malformed),
            },
            Err(end) => break end,
        }
    };
    ending.send(end).ok();
    reader
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_does_not_read_may_be_silent_for_longer() {
        let alive = Alive::default();
        let in_range = |before: Instant, silence: Duration| {
            let until = alive.until();
            (before + silence..=Instant::now() + silence).contains(&until)
        };
        let before = Instant::now();
        alive.heard();
        assert!(in_range(before, SILENCE));
        let before = Instant::now();
        alive.behind(true);
        assert!(in_range(before, SILENCE_BEHIND));
        alive.heard();
        assert!(in_range(before, SILENCE_BEHIND), "a pong does not mean that it reads");
        let before = Instant::now();
        alive.behind(false);
        assert!(in_range(before, SILENCE), "it starts again once the write is done");
    }
}
