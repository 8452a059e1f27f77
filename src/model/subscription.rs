//! Consumers and what they subscribed to.
//!
//! A [`ConsumerId`] is checked once, where it is made up, because it becomes a file name. Ids that
//! other programs wrote into the table are accepted as they are and get an encoded file name.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;
use sha1::{Digest, Sha1};

use super::run::{Deliver, Exit, Options, Phase, RunState};

/// Longest id `subscribe` accepts, in characters.
pub const MAX_ID: usize = 128;

/// The name of a consumer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct ConsumerId(String);

impl ConsumerId {
    /// An id as `subscribe` accepts it: 1 to 128 characters of `A-Z a-z 0-9 . _ - : @`, beginning
    /// with a letter or digit.
    ///
    /// # Errors
    ///
    /// The rule that is broken; completes "the consumer name …".
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

    /// An id that is in the table, whoever wrote it there.
    pub fn stored(id: impl Into<String>) -> ConsumerId {
        ConsumerId(id.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The stem of this consumer's files: the id itself, or, for an id that `subscribe` would not
    /// accept, its percent-encoded form (shortened with a digest when it would be too long). Where file
    /// names ignore case, capital letters are encoded as well. Distinct ids have distinct stems, and none
    /// begins with `_` or `.`.
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

/// What `subscribe` is given.
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
    /// Where to set the cursor; `None` keeps what is stored.
    pub from: Option<i64>,
    /// A subscription of that name is replaced. It keeps its cursor, its dead letters and a pause; one
    /// that says the same is left as it is.
    pub replace: bool,
}

/// The handler of a consumer that nobody starts, because it reads for itself. To a shell, and to other
/// programs that start handlers, it is a command that does nothing.
pub const NO_HANDLER: &str = ":";

impl NewSubscription {
    /// Whether that subscription says the same.
    pub fn is_like(&self, other: &Subscription) -> bool {
        self.handler_cmd == other.handler_cmd
            && self.filter.as_deref() == other.filter_text()
            && self.cwd == other.cwd
            && self.options == other.options
    }
}

/// A subscription, with the cursor and the state of runs that belong to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Subscription {
    pub consumer: ConsumerId,
    pub handler_cmd: String,
    /// As it was given; blank means none. It has not been checked on this connection.
    pub filter: Option<String>,
    /// Where the handler runs: absolute, or relative to the thread's directory. `None` means where the
    /// dispatcher runs.
    pub cwd: Option<PathBuf>,
    /// Distinguishes this subscription from a later one of the same name.
    pub token: String,
    /// Rises with each change of `state`.
    pub revision: i64,
    /// What is already known not to match.
    pub watermark: Option<ScanWatermark>,
    /// How many events the filter failed on, and the newest of them.
    pub filter_errors: i64,
    pub filter_error_id: i64,
    pub options: Options,
    pub state: RunState,
    /// Dead letters, and how many of them are to be delivered again.
    pub dead: i64,
    pub dead_to_retry: i64,
    /// The cursor: the newest event the consumer has finished with.
    pub last_acked_id: i64,
    /// How often the cursor was moved back.
    pub rewinds: i64,
    /// When the cursor last changed, if ever.
    pub updated_at: Option<String>,
}

/// "Between `from` and `upto` nothing matches `filter`."
///
/// Events never change and a subscription's filter is deterministic, so this stays true for as
/// long as the filter text does. It says nothing about ids up to `from`.
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

    /// Whether its handler, which pops for itself, last ended with exit 0 and had acknowledged nothing, as
    /// one does that takes exit 0 for an acknowledgement.
    pub fn acknowledged_nothing(&self) -> bool {
        let state = &self.state;
        self.options.deliver == Deliver::Wake
            && state.phase != Phase::Running
            && state.attempts > 0
            && state.last_exit == Some(Exit::Code(0))
            && self.last_acked_id <= state.start_cursor
    }

    /// Whether it has a command to start. Somebody may have given `:` as a real handler, or put one in
    /// the row since.
    pub fn has_handler(&self) -> bool {
        !self.options.no_handler || self.handler_cmd != NO_HANDLER
    }

    /// The id after which a match is still possible for a reader at `cursor`.
    pub fn scanned_upto(&self, cursor: i64) -> i64 {
        match (&self.watermark, self.filter_text()) {
            (Some(mark), Some(text)) if mark.filter == text && mark.from <= cursor => cursor.max(mark.upto),
            _ => cursor,
        }
    }

    /// Events up to this id are delivered one at a time, because a run that was given them failed. After a
    /// rewind that no longer counts: it may be a long way to that id.
    pub fn single_upto(&self) -> i64 {
        if self.rewinds == self.state.start_rewinds { self.state.single_upto } else { 0 }
    }

    /// Whether a dead letter is to be delivered again. Only a handler fed on stdin can take it.
    pub fn has_retry(&self) -> bool {
        self.dead_to_retry > 0 && self.options.deliver == Deliver::Stdin
    }

    /// Whether `other` is this very subscription and not one made anew under the same name.
    pub fn is_same(&self, other: &Subscription) -> bool {
        self.token == other.token && self.handler_cmd == other.handler_cmd
    }
}

/// What is said of a handler that [acknowledged nothing](Subscription::acknowledged_nothing).
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
    /// The last run's exit code: 128 and the signal's number for one that was killed, 124 for one
    /// that exceeded its time limit; `None` when nobody saw its end.
    pub last_exit: Option<i64>,
    /// The end of the last run's output.
    pub last_error: String,
    pub parked_at: String,
    /// It is to be delivered again.
    pub retry: bool,
}
