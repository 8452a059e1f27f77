//! Idempotency keys: under each, a thread stores one event.
//!
//! The keys that the programs make for themselves (such as `thread:end:5`, the end of the run of message 5) begin
//! with `thread:`. A key chosen by a user may not, so that it never collides with one of these. The rules are only
//! here: an event has an [`IdempotencyKey`], and there is no other way to make one.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

/// The prefix of keys that the programs make.
pub const RESERVED: &str = "thread:";

/// Maximum length of an idempotency key, in bytes: it is stored in an index.
pub const MAX_KEY: usize = 1024;

/// Maximum length of a key that a client of a gateway or of the MCP server chooses, in bytes: it becomes part of one of
/// the programs' keys.
pub const MAX_CLIENT_KEY: usize = 512;

/// A key under which a thread stores one event.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdempotencyKey<'a>(Cow<'a, str>);

/// Why a text is no idempotency key; completes "the event …".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKey {
    #[error("has an empty idempotency key")]
    Empty,
    #[error("has an idempotency key longer than {0} bytes")]
    TooLong(usize),
    #[error(
        "has the idempotency key '{}': keys that begin with '{RESERVED}' are made by the programs; choose another",
        .0.escape_debug()
    )]
    Reserved(String),
}

impl<'a> IdempotencyKey<'a> {
    /// A key chosen by a user: 1 to [`MAX_KEY`] bytes.
    ///
    /// # Errors
    ///
    /// It is empty, too long, or one that only the programs make.
    pub fn from_user(key: impl Into<Cow<'a, str>>) -> Result<IdempotencyKey<'a>, InvalidKey> {
        let key = key.into();
        match chosen(&key, MAX_KEY) {
            Some(problem) => Err(problem),
            None => Ok(IdempotencyKey(key)),
        }
    }
}

impl IdempotencyKey<'static> {
    /// A key of the programs: `thread:<kind>:<of>`.
    ///
    /// # Errors
    ///
    /// It is longer than [`MAX_KEY`].
    pub fn reserved(
        kind: &'static str,
        of: impl fmt::Display,
    ) -> Result<IdempotencyKey<'static>, InvalidKey> {
        let key = format!("{RESERVED}{kind}:{of}");
        match key.len() {
            ..=MAX_KEY => Ok(IdempotencyKey(key.into())),
            _ => Err(InvalidKey::TooLong(MAX_KEY)),
        }
    }

    /// A key of the programs about an event: `thread:<kind>:<id>`.
    pub fn of_event(kind: &'static str, id: i64) -> IdempotencyKey<'static> {
        IdempotencyKey(format!("{RESERVED}{kind}:{id}").into())
    }

    /// A key of the programs for what a client has sent under a key of 1 to [`MAX_CLIENT_KEY`] bytes.
    ///
    /// # Errors
    ///
    /// The client's key is empty, too long, or one that only the programs make.
    pub fn of_client(kind: &'static str, key: &str) -> Result<IdempotencyKey<'static>, InvalidKey> {
        match chosen(key, MAX_CLIENT_KEY) {
            Some(problem) => Err(problem),
            None => IdempotencyKey::reserved(kind, key),
        }
    }
}

/// What is wrong with a key chosen by a user.
fn chosen(key: &str, max: usize) -> Option<InvalidKey> {
    match key {
        "" => Some(InvalidKey::Empty),
        key if key.starts_with(RESERVED) => Some(InvalidKey::Reserved(key.to_owned())),
        key if key.len() > max => Some(InvalidKey::TooLong(max)),
        _ => None,
    }
}

impl IdempotencyKey<'_> {
    /// What version 0.2 and earlier stored a program's event under: the same without `thread:`. Any program could
    /// use such a key, so an event that has it may be something else.
    pub fn before_reserved(&self) -> Option<&str> {
        self.0.strip_prefix(RESERVED)
    }
}

impl Deref for IdempotencyKey<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_chosen_key_has_1_to_1024_bytes_and_is_none_of_the_programs() {
        let from_user = |key: &str| IdempotencyKey::from_user(key.to_owned());
        for key in
            ["k", "end:2", "thread", "Thread:x", " thread:x", "x thread:", "threads:1", &"k".repeat(MAX_KEY)]
        {
            assert_eq!(from_user(key).as_deref(), Ok(key));
            assert_eq!(from_user(key).unwrap().before_reserved(), None);
        }
        assert_eq!(from_user(""), Err(InvalidKey::Empty));
        assert_eq!(from_user(&"é".repeat(513)), Err(InvalidKey::TooLong(MAX_KEY)));
        for key in ["thread:", "thread:end:2", "thread:x", &format!("thread:{}", "x".repeat(MAX_KEY))] {
            assert_eq!(from_user(key), Err(InvalidKey::Reserved(key.into())));
            assert_eq!(IdempotencyKey::of_client("message", key), Err(InvalidKey::Reserved(key.into())));
        }
        assert_eq!(IdempotencyKey::of_client("message", ""), Err(InvalidKey::Empty));
        let long = "k".repeat(MAX_CLIENT_KEY + 1);
        assert_eq!(IdempotencyKey::of_client("message", &long), Err(InvalidKey::TooLong(MAX_CLIENT_KEY)));
    }

    #[test]
    fn the_programs_keys_have_a_name_space_of_their_own() {
        let end = IdempotencyKey::of_event("end", 5);
        assert_eq!((&*end, end.before_reserved()), ("thread:end:5", Some("end:5")));
        assert_eq!(IdempotencyKey::reserved("end", 5), Ok(end));
        assert_eq!(IdempotencyKey::of_client("message", "k").as_deref(), Ok("thread:message:k"));
        let long = "c".repeat(MAX_KEY);
        assert_eq!(IdempotencyKey::reserved("result", long), Err(InvalidKey::TooLong(MAX_KEY)));
    }

    proptest! {
        #[test]
        fn no_chosen_key_is_one_of_the_programs(rest in any::<String>(), id in any::<i64>()) {
            let own = IdempotencyKey::reserved("result", &rest).map(|key| key.to_string());
            for key in [own.unwrap_or_default(), IdempotencyKey::of_event("end", id).to_string()] {
                prop_assert!(IdempotencyKey::from_user(key).is_err());
            }
            if let Ok(key) = IdempotencyKey::from_user(rest) {
                prop_assert!(!key.starts_with(RESERVED));
            }
        }
    }
}
