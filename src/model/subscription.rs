//! Consumers and their subscriptions.
//!
//! A [`ConsumerId`] is checked when it is created, because it becomes a file name. Ids that other programs
//! stored in the table are accepted and get an encoded file name.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use sha1::{Digest, Sha1};

use super::run::{Deliver, Exit, Options, Phase, RunState};
use super::time::Time;

/// Maximum length of an id that `subscribe` accepts, in characters.
pub const MAX_ID: usize = 128;

/// The name of a consumer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct ConsumerId(String);

impl ConsumerId {
    /// Checks an id by the rule of `subscribe`: 1 to 128 characters of `A-Z a-z 0-9 . _ - : @`, beginning
    /// with a letter or digit.
    ///
    /// # Errors
    ///
    /// The violated rule; completes "the consumer name …".
    pub fn new(id: &str) -> Result<ConsumerId, &'static str> {
        if id.is_empty() {
            return Err("is empty");
        }
        if id.len() > MAX_ID {
            return Err("is longer than 128 characters");
        }
        if !id.as_bytes()[0].is_ascii_alphanumeric() {
            return Err("does not begin with a letter or digit");
        }
        if !id.bytes().all(is_plain) {
            return Err("has characters other than A-Z a-z 0-9 . _ - : @");
        }
        Ok(ConsumerId(id.to_owned()))
    }

    /// An unchecked id from the table, which any program may have written.
    pub fn stored(id: impl Into<String>) -> ConsumerId {
        ConsumerId(id.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The stem of this consumer's files: the id itself, or, for an id that `subscribe` would not accept, its
    /// percent-encoded form (shortened with a digest if it would be too long). If file names ignore case,
    /// capital letters are encoded as well. Distinct ids have distinct stems, and none begins with `_` or
    /// `.`.
    pub fn file_stem(&self, ignores_case: bool) -> String {
        let is_plain = |byte: u8| is_plain(byte) && !(ignores_case && byte.is_ascii_uppercase());
        if ConsumerId::new(&self.0).is_ok() && self.0.bytes().all(is_plain) {
            return self.0.clone();
        }
        let mut stem = String::from("%");
        for byte in self.0.bytes() {
            if is_plain(byte) {
                stem.push(byte as char);
            } else {
                stem.push_str(&format!("%{byte:02X}"));
            }
        }
        if stem.len() > 180 {
            let digest = Sha1::digest(self.0.as_bytes());
            stem.truncate(120);
            stem.push_str("%%");
            stem.extend(digest.iter().map(|b| format!("{b:02x}")));
        }
        stem
    }
}

impl fmt::Display for ConsumerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-:@".contains(&byte)
}

/// Parameters of `subscribe`.
#[derive(Debug, Clone)]
pub struct NewSubscription {
    pub consumer: ConsumerId,
    /// A shell command; not empty.
    pub handler_cmd: String,
    /// Already checked; `None` for no filter.
    pub filter: Option<String>,
    /// Where the handler runs: absolute, or relative to the thread's directory.
    pub cwd: Option<PathBuf>,
    pub options: Options,
    /// New position of the cursor; `None` keeps the stored one.
    pub from: Option<i64>,
    /// Replaces an existing subscription, keeping its cursor, dead letters and pause. An identical
    /// subscription is left unchanged.
    pub replace: bool,
}

/// The stored handler of a consumer that is never started because it reads by itself. To a shell, and to
/// other programs that start handlers, it is a command that does nothing.
pub const NO_HANDLER: &str = ":";

impl NewSubscription {
    /// Whether a subscription is identical to this one.
    pub fn is_like(&self, other: &Subscription) -> bool {
        self.handler_cmd == other.handler_cmd
            && self.filter.as_deref() == other.filter_text()
            && self.cwd == other.cwd
            && self.options == other.options
    }

    /// Whether it only changes numbers and durations of a subscription whose events finish singly. Runs under way go on
    /// then, and count.
    pub fn adjusts(&self, other: &Subscription) -> bool {
        let (new, old) = (&self.options, &other.options);
        let adjusted = NewSubscription {
            options: Options {
                concurrency: old.concurrency,
                batch_size: old.batch_size,
                ahead: old.ahead,
                max_attempts: old.max_attempts,
                stall_after: old.stall_after,
                probe: old.probe,
                backoff: old.backoff.clone(),
                idle: old.idle,
                timeout: old.timeout,
                ..new.clone()
            },
            ..self.clone()
        };
        let is_same_kind = old.finishes_singly() && new.is_pool() == old.is_pool();
        is_same_kind && new.finishes_singly() && adjusted.is_like(other)
    }
}

/// A subscription with its cursor and the state of its runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Subscription {
    pub consumer: ConsumerId,
    pub handler_cmd: String,
    /// As stored; blank means none. Not checked yet, because any program may have written it.
    pub filter: Option<String>,
    /// Where the handler runs: absolute, or relative to the thread's directory. `None` means where the
    /// dispatcher runs.
    pub cwd: Option<PathBuf>,
    /// Distinguishes this subscription from a later one with the same name.
    pub token: String,
    /// Incremented on each change of `state`.
    pub revision: i64,
    /// Range of events already known not to match.
    pub watermark: Option<ScanWatermark>,
    /// Number of events on which the filter failed, and the newest of them.
    pub filter_errors: i64,
    pub filter_error_id: i64,
    pub options: Options,
    pub state: RunState,
    /// Number of dead letters, and of those marked for a retry.
    pub dead: i64,
    pub dead_to_retry: i64,
    /// The cursor: the newest event the consumer has acknowledged.
    pub last_acked_id: i64,
    /// How often the cursor was moved back.
    pub rewinds: i64,
    /// When the cursor last changed, if ever.
    pub updated_at: Option<String>,
    /// The machine that has the lease of its runs, if that is another one and may be alive.
    pub held_by: Option<String>,
    /// The machine that had the lease last, if that is not this one.
    pub ran_on: Option<String>,
    /// Who has the lease of its runs, and since when it was not renewed. Several machines may have one of a pool each.
    pub leases: Vec<HeldLease>,
    /// Of the machines that work for a pool, those other than this one whose leases are not over.
    pub elsewhere: Vec<String>,
}

/// The lease of a consumer's runs, where several machines share the thread. Its holder may be gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldLease {
    /// The name of the machine that has it.
    pub host: String,
    /// Of a pool: the machine's key among [`RunState::crews`](super::run::RunState::crews).
    pub machine: Option<String>,
    /// When it was last renewed, by the server's clock, and how long ago that is.
    pub renewed: Time,
    pub age: Duration,
}

/// Records that nothing between `from` and `upto` matches `filter`.
///
/// Events never change and a subscription's filter is deterministic, so this stays true while the filter's text is
/// the same. It does not cover ids up to `from`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanWatermark {
    pub filter: String,
    pub from: i64,
    pub upto: i64,
}

impl Subscription {
    /// The filter, unless it is blank.
    pub fn filter_text(&self) -> Option<&str> {
        self.filter.as_deref().filter(|text| !text.trim().is_empty())
    }

    /// How many places of a pool the machine with this lease has.
    pub fn places_of(&self, lease: &HeldLease) -> Option<u32> {
        lease.machine.as_ref().and_then(|machine| self.state.crews.get(machine)).map(|crew| crew.places)
    }

    /// Whether its handler pops for itself and its last run ended with exit 0 but acknowledged nothing. The
    /// author probably expected exit 0 to acknowledge.
    pub fn acknowledged_nothing(&self) -> bool {
        let state = &self.state;
        self.options.deliver == Deliver::Wake
            && state.phase != Phase::Running
            && state.attempts > 0
            && state.last_exit == Some(Exit::Code(0))
            && self.last_acked_id <= state.start_cursor
    }

    /// Whether it has a command to start. `:` alone does not decide: it may have been given as a real
    /// handler, and other programs may have changed the row since.
    pub fn has_handler(&self) -> bool {
        !self.options.no_handler || self.handler_cmd != NO_HANDLER
    }

    /// The id up to which a reader at `cursor` need not evaluate the filter.
    pub fn scanned_upto(&self, cursor: i64) -> i64 {
        match (&self.watermark, self.filter_text()) {
            (Some(mark), Some(text)) if mark.filter == text && mark.from <= cursor => cursor.max(mark.upto),
            _ => cursor,
        }
    }

    /// Events up to this id are delivered one at a time, because a run with them failed. 0 after a rewind,
    /// since there may be many events up to that id.
    pub fn single_upto(&self) -> i64 {
        if self.rewinds == self.state.start_rewinds { self.state.single_upto } else { 0 }
    }

    /// Whether a dead letter is marked for a retry and can be delivered, which takes a handler that is given its events.
    pub fn has_retry(&self) -> bool {
        self.dead_to_retry > 0 && self.options.retries_dead_letters()
    }

    /// Whether `other` is the same subscription rather than a new one with the same name.
    pub fn is_same(&self, other: &Subscription) -> bool {
        self.token == other.token && self.handler_cmd == other.handler_cmd
    }
}

/// The message for a handler that [acknowledged nothing](Subscription::acknowledged_nothing).
pub const NOTHING_ACKNOWLEDGED: &str = "exit 0, but nothing was acknowledged: `thread ack` what is done, or subscribe \
     with --deliver stdin, where exit 0 acknowledges";

/// A dead letter: an event that a consumer's handler failed on until it was out of attempts. As JSON, it is
/// what `thread dead list` prints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeadLetter {
    #[serde(rename = "consumer_id")]
    pub consumer: ConsumerId,
    pub event_id: i64,
    pub attempts: i64,
    /// The last run's exit code: 128 plus the signal's number if it was killed, 124 if it exceeded its time
    /// limit; `None` if unknown.
    pub last_exit: Option<i64>,
    /// The end of the last run's output.
    pub last_error: String,
    pub parked_at: String,
    /// Marked for a retry.
    pub retry: bool,
}

#[cfg(test)]
pub(in crate::model) mod tests;
