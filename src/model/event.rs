//! Events: before they are stored ([`NewEvent`]), as stored ([`Event`]), and as the line of JSON that the
//! JSONL log contains and every reader prints.
//!
//! This module defines the form of that line and the rules for `source` and `type`.

mod batch;

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::Duration;

use serde::de::IgnoredAny;

pub use self::batch::Defaults;
use super::due::Due;
use super::json::{strip_white_space, write_object, write_string};
use super::key::{IdempotencyKey, InvalidKey};
use super::time::{self, Time};

/// Type of an event. Any other type is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// Something said between actors.
    Message,
    /// An actor's own trace.
    Record,
}

impl Type {
    pub fn as_str(self) -> &'static str {
        match self {
            Type::Message => "message",
            Type::Record => "record",
        }
    }

    /// The type of that name; `None` if there is no such type.
    pub fn parse(text: &str) -> Option<Type> {
        match text {
            "message" => Some(Type::Message),
            "record" => Some(Type::Record),
            _ => None,
        }
    }
}

/// The key in the metadata of an event that was scheduled, with the time at which that was asked for.
pub const SCHEDULED_AT: &str = "scheduled_at";

/// The key in the metadata of an event that expires, with the time at which it does. A consumer that was not given the
/// event by then passes over it.
pub const EXPIRES_AT: &str = "expires_at";

/// The longest metadata in which [`EXPIRES_AT`] is looked for, in bytes.
pub const LONGEST_EXPIRING: usize = 1024 * 1024;

/// An event that has not been stored yet, so it has no id and no time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent<'a> {
    pub source: Cow<'a, str>,
    pub kind: Type,
    pub subtype: Option<Cow<'a, str>>,
    pub content: Cow<'a, str>,
    /// A JSON object, compact.
    pub metadata: Option<Cow<'a, str>>,
    /// Pushing an event again with the same key stores nothing.
    pub idempotency_key: Option<IdempotencyKey<'a>>,
    /// The `created_at` to store it with, if it is a copy of an event of another thread; `None`: now. Copies are
    /// stored in the order of their times, before anything else is in the thread.
    pub created_at: Option<Cow<'a, str>>,
    /// When it is to become an event; `None`: now.
    pub due: Option<Due>,
}

/// Why something is not an event; completes "line 3 …" or "the event …".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidEvent(pub String);

impl From<InvalidKey> for InvalidEvent {
    fn from(problem: InvalidKey) -> InvalidEvent {
        InvalidEvent(problem.to_string())
    }
}

impl<'a> NewEvent<'a> {
    /// Creates a message, the common case.
    ///
    /// # Errors
    ///
    /// `source` is empty or contains control characters.
    pub fn message(
        source: impl Into<Cow<'a, str>>,
        content: impl Into<Cow<'a, str>>,
    ) -> Result<NewEvent<'a>, InvalidEvent> {
        NewEvent::new(source, "message", None, content)
    }

    /// Creates an event from checked parts. `kind` is `message` or `record`.
    ///
    /// # Errors
    ///
    /// A part is invalid; the error says which.
    pub fn new(
        source: impl Into<Cow<'a, str>>,
        kind: &str,
        subtype: Option<Cow<'a, str>>,
        content: impl Into<Cow<'a, str>>,
    ) -> Result<NewEvent<'a>, InvalidEvent> {
        let source = source.into();
        if source.is_empty() {
            return Err(InvalidEvent("has an empty source".into()));
        }
        let plain = |byte: u8| (0x20..0x7f).contains(&byte);
        if !source.bytes().all(plain) && source.chars().any(char::is_control) {
            return Err(InvalidEvent("has control characters in its source".into()));
        }
        let kind = Type::parse(kind).ok_or_else(|| {
            let kind = kind.escape_debug();
            InvalidEvent(format!("has the type '{kind}', which is neither 'message' nor 'record'"))
        })?;
        Ok(NewEvent {
            source,
            kind,
            subtype,
            content: content.into(),
            metadata: None,
            idempotency_key: None,
            created_at: None,
            due: None,
        })
    }

    /// Adds metadata: the text of a JSON object.
    ///
    /// # Errors
    ///
    /// It is not a JSON object.
    pub fn with_metadata(mut self, json: &str) -> Result<NewEvent<'a>, InvalidEvent> {
        // Parsed only to check it: the text is stored as written, so numbers keep their digits.
        serde_json::from_str::<HashMap<Cow<'_, str>, IgnoredAny>>(json).map_err(|e| {
            InvalidEvent(format!("has metadata that is not a JSON object ({})", plain_message(&e)))
        })?;
        self.metadata = Some(Cow::Owned(strip_white_space(json).into_owned()));
        Ok(self)
    }

    /// Adds the id of the event being answered to the metadata, as `reply_to`.
    ///
    /// # Errors
    ///
    /// The metadata has `reply_to` already.
    pub fn with_reply_to(self, id: i64) -> Result<NewEvent<'a>, InvalidEvent> {
        self.with_own("reply_to", &id.to_string())
    }

    /// Schedules it: it becomes an event when it is due.
    ///
    /// # Errors
    ///
    /// The metadata has [`SCHEDULED_AT`] already.
    pub fn with_due(self, due: Due) -> Result<NewEvent<'a>, InvalidEvent> {
        self.must_lack(SCHEDULED_AT)?;
        Ok(NewEvent { due: Some(due), ..self })
    }

    /// Lets it expire after this time, counted from when it is due.
    ///
    /// # Errors
    ///
    /// The metadata has [`EXPIRES_AT`] already.
    pub fn with_expiry(self, after: Duration, now: Time) -> Result<NewEvent<'a>, InvalidEvent> {
        // Does not overflow: durations are at most ten years.
        let at = time::format(self.due_at(now).unwrap_or(now) + after);
        self.with_own(EXPIRES_AT, &format!("\"{at}\""))
    }

    /// Adds metadata of this program's own, as JSON.
    ///
    /// # Errors
    ///
    /// The metadata has the name already.
    pub(crate) fn with_own(self, name: &str, json: &str) -> Result<NewEvent<'a>, InvalidEvent> {
        self.must_lack(name)?;
        let metadata = Some(Cow::Owned(self.metadata_with(name, json)));
        Ok(NewEvent { metadata, ..self })
    }

    fn must_lack(&self, name: &str) -> Result<(), InvalidEvent> {
        let object = self.metadata.as_deref().unwrap_or("{}");
        let keys: HashMap<Cow<'_, str>, IgnoredAny> = serde_json::from_str(object).unwrap_or_default();
        if keys.contains_key(name) {
            return Err(InvalidEvent(format!("has {name} in its metadata already")));
        }
        Ok(())
    }

    /// Edited as text, so that existing numbers keep their digits.
    fn metadata_with(&self, name: &str, json: &str) -> String {
        let object = self.metadata.as_deref().unwrap_or("{}");
        let rest = object.strip_suffix('}').unwrap_or(object);
        let comma = if rest == "{" { "" } else { "," };
        format!("{rest}{comma}\"{name}\":{json}}}")
    }

    /// The metadata that it is scheduled with, at this time, as [`model::time`](super::time) writes it.
    pub fn metadata_scheduled(&self, now: &str) -> String {
        self.metadata_with(SCHEDULED_AT, &format!("\"{now}\""))
    }

    /// Whether it has this metadata, apart from when it was scheduled and when it expires.
    pub fn has_metadata(&self, stored: Option<&str>) -> bool {
        let own = self.metadata.as_deref();
        own == stored
            || stored.is_some_and(|stored| {
                let lasting = without_time(stored, SCHEDULED_AT);
                let own = own.unwrap_or("{}");
                (lasting != stored && lasting == own)
                    || (own.contains(EXPIRES_AT)
                        && lasting.contains(EXPIRES_AT)
                        && without_time(&lasting, EXPIRES_AT) == without_time(own, EXPIRES_AT))
            })
    }

    /// When it is due, if it is scheduled at this time.
    pub fn due_at(&self, now: Time) -> Option<Time> {
        Some(match self.due? {
            // Does not overflow: durations are at most ten years.
            Due::After(delay) => now + delay,
            Due::At(time) => time,
        })
    }

    /// Adds an idempotency key chosen by a user.
    ///
    /// # Errors
    ///
    /// Those of [`IdempotencyKey::from_user`].
    pub fn with_key(self, key: impl Into<Cow<'a, str>>) -> Result<NewEvent<'a>, InvalidKey> {
        Ok(self.keyed(IdempotencyKey::from_user(key)?))
    }

    /// Adds an idempotency key.
    pub fn keyed(self, key: IdempotencyKey<'a>) -> NewEvent<'a> {
        NewEvent { idempotency_key: Some(key), ..self }
    }

    /// The event as stored with the given id and time.
    pub fn row<'r>(&'r self, id: i64, created_at: &'r str) -> Row<'r> {
        Row {
            id,
            created_at: created_at.as_bytes(),
            source: self.source.as_bytes(),
            kind: self.kind.as_str().as_bytes(),
            subtype: self.subtype.as_deref().map(str::as_bytes),
            content: self.content.as_bytes(),
            metadata: self.metadata.as_deref().map(str::as_bytes),
        }
    }

    /// Whether a stored event equals this one. Metadata is compared as text, so numbers differ even if only
    /// in digits that a float cannot hold. When it was scheduled makes no difference.
    pub fn is_same(&self, stored: &Event) -> bool {
        self.source == stored.source.as_str()
            && self.kind.as_str() == stored.kind
            && self.subtype.as_deref() == stored.subtype.as_deref()
            && self.content == stored.content.as_str()
            && self.has_metadata(stored.metadata.as_deref())
    }
}

/// A JSON object without the key `name`, if that is the last one and its value a time.
fn without_time<'o>(object: &'o str, name: &str) -> Cow<'o, str> {
    let without = || {
        let (before, value) = object.rsplit_once(&format!("\"{name}\":\""))?;
        time::parse(value.strip_suffix("\"}")?)?;
        Some(format!("{}}}", before.strip_suffix(',').unwrap_or(before)))
    };
    without().map_or(Cow::Borrowed(object), Cow::Owned)
}

/// serde_json's message without the line number, which is always 1 and would mislead.
fn plain_message(error: &serde_json::Error) -> String {
    error.to_string().split(" at line ").next().unwrap_or_default().to_owned()
}

/// The content as compact JSON if it is an object, an array, a number or a boolean; else `None`.
pub fn parsed(content: &[u8]) -> Option<Cow<'_, str>> {
    let text = std::str::from_utf8(content).ok()?;
    let may_be = text.trim_start().starts_with(|c: char| "{[-tf".contains(c) || c.is_ascii_digit());
    (may_be && serde_json::from_str::<IgnoredAny>(text).is_ok()).then(|| strip_white_space(text))
}

/// A stored event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// From 1, rising in the order of commits.
    pub id: i64,
    /// ISO 8601, UTC, milliseconds: `2026-03-18T10:30:00.123Z`.
    pub created_at: String,
    pub source: String,
    pub kind: String,
    pub subtype: Option<String>,
    pub content: String,
    /// A JSON object.
    pub metadata: Option<String>,
}

/// The columns of a stored event, borrowed.
///
/// Bytes rather than text: other programs write the table too, and nothing stops them from storing
/// a BLOB or broken UTF-8, which is printed with replacement characters.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    pub id: i64,
    pub created_at: &'a [u8],
    pub source: &'a [u8],
    pub kind: &'a [u8],
    pub subtype: Option<&'a [u8]>,
    pub content: &'a [u8],
    pub metadata: Option<&'a [u8]>,
}

/// A stored event as [`Store::read_capped`](crate::store::Store::read_capped) passes it.
#[derive(Debug, Clone, Copy)]
pub struct CappedRow<'a> {
    /// Texts longer than the cap are empty here; a subtype longer than it is absent.
    pub row: Row<'a>,
    /// Length of the stored content, in bytes.
    pub content_len: u64,
    /// Length of the stored metadata, in bytes; 0 without metadata.
    pub metadata_len: u64,
}

impl CappedRow<'_> {
    /// Whether content and metadata are complete.
    pub fn is_whole(&self) -> bool {
        self.row.content.len() as u64 == self.content_len
            && self.row.metadata.map_or(0, <[u8]>::len) as u64 == self.metadata_len
    }
}

impl Row<'_> {
    /// When it expires, if it does. A value that is no time in RFC 3339 means nothing, nor does one in metadata of more
    /// than [`LONGEST_EXPIRING`] bytes.
    pub fn expires_at(&self) -> Option<Time> {
        #[derive(serde::Deserialize)]
        struct Metadata {
            expires_at: String,
        }

        let metadata = self.metadata.filter(|metadata| metadata.len() <= LONGEST_EXPIRING)?;
        memchr::memmem::find(metadata, EXPIRES_AT.as_bytes())?;
        time::parse(&serde_json::from_slice::<Metadata>(metadata).ok()?.expires_at)
    }

    /// Whether it has expired by then.
    pub fn is_expired(&self, now: Time) -> bool {
        self.expires_at().is_some_and(|at| at <= now)
    }

    /// Appends the event as one compact JSON object, keys in the order of the columns, no newline.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        self.write_with(None, out);
    }

    /// `json`: the content as JSON, instead of a string.
    fn write_with(&self, json: Option<&str>, out: &mut Vec<u8>) {
        out.reserve(self.content.len() + self.source.len() + 192);
        out.extend_from_slice(b"{\"id\":");
        out.extend_from_slice(itoa::Buffer::new().format(self.id).as_bytes());
        out.extend_from_slice(b",\"created_at\":");
        write_string(out, self.created_at);
        out.extend_from_slice(b",\"source\":");
        write_string(out, self.source);
        out.extend_from_slice(b",\"type\":");
        write_string(out, self.kind);
        out.extend_from_slice(b",\"subtype\":");
        match self.subtype {
            Some(subtype) => write_string(out, subtype),
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(b",\"content\":");
        match json {
            Some(json) => out.extend_from_slice(json.as_bytes()),
            None => write_string(out, self.content),
        }
        if let Some(metadata) = self.metadata {
            out.extend_from_slice(b",\"metadata\":");
            write_object(out, metadata);
        }
        out.push(b'}');
    }

    /// Appends the event as one line of NDJSON.
    pub fn write_line(&self, out: &mut Vec<u8>) {
        self.write_json(out);
        out.push(b'\n');
    }

    /// Like [`Row::write_line`], with the token of a claim as the last key, `claim`. It must need no escapes.
    pub fn write_claimed_line(&self, token: &str, out: &mut Vec<u8>) {
        self.write_json(out);
        out.pop();
        out.extend_from_slice(format!(",\"claim\":\"{token}\"}}\n").as_bytes());
    }

    /// Like [`Row::write_line`], but writes content that is a JSON object, array, number or boolean as JSON,
    /// as a line of a batch may have it.
    pub fn write_parsed_line(&self, out: &mut Vec<u8>) {
        self.write_with(parsed(self.content).as_deref(), out);
        out.push(b'\n');
    }

    pub fn to_event(&self) -> Event {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Event {
            id: self.id,
            created_at: text(self.created_at),
            source: text(self.source),
            kind: text(self.kind),
            subtype: self.subtype.map(text),
            content: text(self.content),
            metadata: self.metadata.map(text),
        }
    }
}

impl Event {
    pub fn row(&self) -> Row<'_> {
        Row {
            id: self.id,
            created_at: self.created_at.as_bytes(),
            source: self.source.as_bytes(),
            kind: self.kind.as_bytes(),
            subtype: self.subtype.as_deref().map(str::as_bytes),
            content: self.content.as_bytes(),
            metadata: self.metadata.as_deref().map(str::as_bytes),
        }
    }
}
