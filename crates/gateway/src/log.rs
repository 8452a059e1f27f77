//! Lines for the operator of the gateway, on stderr.
//!
//! Callers leave out tokens, signed URLs, and the content of messages.

use std::io::{self, Write};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// How many refusals are logged in each of these periods: unauthenticated clients must not fill the disk.
const REFUSALS: u32 = 20;
const REFUSALS_IN: Duration = Duration::from_secs(1);

/// Writes lines of this level and above from now on.
pub fn start(level: LevelFilter) {
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        .with_target(false)
        .with_timer(Clock)
        .with_writer(|| OneLine(io::stderr()));
    // Libraries would log the content of requests.
    let own = Targets::new().with_target(env!("CARGO_CRATE_NAME"), level);
    let own = own.with_target("thread_sessions", level);
    tracing_subscriber::registry().with(lines).with(own).init();
}

/// Logs that a request or a connection was refused. `route` is the pattern of the path, since a path has names
/// of files; empty if there is none.
pub fn refused(address: IpAddr, route: &str, reason: &str) {
    static LIMIT: Mutex<Option<Limit>> = Mutex::new(None);
    let now = Instant::now();
    let mut limit = LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
    let limit = limit.get_or_insert(Limit { since: now, lines: 0, left_out: 0 });
    if limit.may_write(now) {
        let left_out = std::mem::take(&mut limit.left_out);
        if left_out > 0 {
            tracing::warn!(left_out, "more was refused");
        }
        let route = Some(route).filter(|route| !route.is_empty());
        tracing::warn!(%address, route, reason, "refused");
    }
}

struct Limit {
    since: Instant,
    lines: u32,
    /// How many lines were left out since the last that was written.
    left_out: u64,
}

impl Limit {
    fn may_write(&mut self, now: Instant) -> bool {
        if now.saturating_duration_since(self.since) >= REFUSALS_IN {
            (self.since, self.lines) = (now, 0);
        }
        self.lines += 1;
        let may = self.lines <= REFUSALS;
        self.left_out += u64::from(!may);
        may
    }
}

struct Clock;

impl tracing_subscriber::fmt::time::FormatTime for Clock {
    fn format_time(&self, w: &mut tracing_subscriber::fmt::format::Writer<'_>) -> std::fmt::Result {
        write!(w, "{}", thread::model::time::now())
    }
}

/// Writes each event as one line without control characters: it may have text from a remote server.
struct OneLine<W>(W);

impl<W: Write> Write for OneLine<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = text.strip_suffix('\n').unwrap_or(&text).replace(char::is_control, " ");
        self.0.write_all((line + "\n").as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line() {
        let mut written = Vec::new();
        OneLine(&mut written).write_all("a\nb\u{1b}[2J\u{9b}c\n".as_bytes()).unwrap();
        assert_eq!(written, b"a b [2J c\n");
    }

    #[test]
    fn unauthenticated_clients_cannot_fill_the_log() {
        let start = Instant::now();
        let mut limit = Limit { since: start, lines: 0, left_out: 0 };
        let written = (0..1000).filter(|_| limit.may_write(start)).count();
        assert_eq!((written as u32, limit.left_out), (REFUSALS, 980));
        assert!(limit.may_write(start + REFUSALS_IN));
    }
}
