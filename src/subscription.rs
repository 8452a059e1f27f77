//! Consumers and what they subscribed to.
//!
//! A [`ConsumerId`] is checked once, when it is made up, because it becomes a file name. Ids that
//! other programs wrote into the table are taken as they are and get an encoded file name.

use std::fmt;
use std::path::PathBuf;

use sha1::{Digest, Sha1};

use crate::rule::{Deliver, Policy, State};

/// Longest id `subscribe` takes, in characters.
pub const MAX_ID: usize = 128;

/// The name of a consumer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConsumerId(String);

impl ConsumerId {
    /// An id as `subscribe` takes it: 1 to 128 characters of `A-Z a-z 0-9 . _ - : @`, beginning
    /// with a letter or digit. The error says which rule is broken.
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

    /// An id that stands in the table, whoever wrote it there.
    pub fn stored(id: impl Into<String>) -> ConsumerId {
        ConsumerId(id.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The stem of this consumer's files: the id itself, or, for an id that `subscribe` would not
    /// take, its percent-encoded form (shortened with a digest when it would be too long).
    /// Distinct ids have distinct stems, and none begins with `_` or `.`.
    pub fn file_stem(&self) -> String {
        if ConsumerId::new(&self.0).is_ok() {
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

/// A row of `subscriptions`, with the cursor that belongs to it.
#[derive(Debug, Clone)]
pub struct Subscription {
    pub consumer: ConsumerId,
    pub handler_cmd: String,
    /// As it was given; blank means none. It has not been checked on this connection.
    pub filter: Option<String>,
    /// Where the handler runs; none means where the dispatcher runs.
    pub cwd: Option<PathBuf>,
    /// Tells this subscription from a later one of the same consumer. Rows that other programs
    /// wrote have none until their first run.
    pub token: Option<String>,
    /// What is already known not to match.
    pub mark: Option<Mark>,
    /// How many events the filter erred on, and the newest of them.
    pub filter_errors: i64,
    pub filter_error_id: i64,
    pub policy: Policy,
    pub state: State,
    /// Dead letters, and those of them that are to be delivered again.
    pub dead: i64,
    pub dead_to_retry: i64,
    /// The newest event the consumer has finished with.
    pub last_acked_id: i64,
    /// When the cursor last changed, if ever.
    pub updated_at: Option<String>,
}

/// "Between `from` and `upto` nothing matches `filter`."
///
/// Events never change and a subscription's filter is deterministic, so this stays true for as
/// long as the filter text does. It says nothing about ids up to `from`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    pub filter: String,
    pub from: i64,
    pub upto: i64,
}

impl Subscription {
    /// The filter, unless it is blank.
    pub fn filter_text(&self) -> Option<&str> {
        self.filter.as_deref().filter(|text| !text.trim().is_empty())
    }

    /// The id after which a match is still possible for a reader at `cursor`.
    pub fn known_upto(&self, cursor: i64) -> i64 {
        match (&self.mark, self.filter_text()) {
            (Some(mark), Some(text)) if mark.filter == text && mark.from <= cursor => cursor.max(mark.upto),
            _ => cursor,
        }
    }

    /// Whether a dead letter is to be delivered again. Only a handler fed on stdin can take it.
    pub fn has_letter_to_retry(&self) -> bool {
        self.dead_to_retry > 0 && self.policy.deliver == Deliver::Stdin
    }

    /// Whether `other` is this very subscription and not one made anew under the same name.
    pub fn is_same(&self, other: &Subscription) -> bool {
        self.token.is_some() && self.token == other.token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_checked_once_and_name_files() {
        for fine in ["a", "worker-1", "A.b_c:d@e", "9"] {
            assert_eq!(ConsumerId::new(fine).unwrap().file_stem(), fine);
        }
        for bad in ["", ".a", "_a", "-a", "a/b", "a b", "é", "a\n", "..", &"x".repeat(129)] {
            assert!(ConsumerId::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn foreign_ids_get_distinct_harmless_file_names() {
        let ids =
            ["", "../x", "a b", "a%20b", "%a b", "_journal", ".", "é", &"x".repeat(500), &"x".repeat(501)];
        let stems: Vec<String> = ids.iter().map(|id| ConsumerId::stored(*id).file_stem()).collect();
        for (id, stem) in ids.iter().zip(&stems) {
            assert!(stem.starts_with('%') && !stem.contains('/') && stem.len() <= 180, "{id:?}: {stem}");
        }
        let distinct: std::collections::HashSet<_> = stems.iter().collect();
        assert_eq!(distinct.len(), stems.len());
    }
}
