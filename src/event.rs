//! Events: what a program hands in ([`NewEvent`]), what the table holds ([`Event`]), and the one
//! line of JSON that both the JSONL copy and every reader print.
//!
//! This module owns the shape of that line and the rules for `source` and `type`. It knows nothing
//! of databases or files.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde_json::value::RawValue;

/// The two types of event. Anything else is refused.
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

    /// The type of that name, or nothing.
    pub fn parse(text: &str) -> Option<Type> {
        match text {
            "message" => Some(Type::Message),
            "record" => Some(Type::Record),
            _ => None,
        }
    }
}

/// An event that has not been stored yet: it has neither id nor time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent<'a> {
    pub source: Cow<'a, str>,
    pub kind: Type,
    pub subtype: Option<Cow<'a, str>>,
    pub content: Cow<'a, str>,
    /// A JSON object, compact.
    pub metadata: Option<Cow<'a, str>>,
    /// A second event of the same key is the same event, pushed again.
    pub idempotency_key: Option<Cow<'a, str>>,
}

/// Longest idempotency key, in bytes: it is kept in an index.
pub const MAX_KEY: usize = 1024;

/// Why something is not an event; completes "line 3 …" or "the event …".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfit(pub String);

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One line of a batch as it stands in the JSON. Keys that are not named here are ignored.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    source: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "type")]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    subtype: Option<Cow<'a, str>>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    #[serde(borrow)]
    idempotency_key: Option<Cow<'a, str>>,
}

impl<'a> NewEvent<'a> {
    /// Checks the parts of an event. Errors name the part at fault.
    pub fn new(
        source: impl Into<Cow<'a, str>>,
        kind: &str,
        subtype: Option<Cow<'a, str>>,
        content: impl Into<Cow<'a, str>>,
    ) -> Result<NewEvent<'a>, Unfit> {
        let source = source.into();
        if source.is_empty() {
            return Err(Unfit("has an empty source".into()));
        }
        let plain = |byte: u8| (0x20..0x7f).contains(&byte);
        if !source.bytes().all(plain) && source.chars().any(char::is_control) {
            return Err(Unfit("has control characters in its source".into()));
        }
        let kind = Type::parse(kind).ok_or_else(|| {
            Unfit(format!("has the type '{}', which is neither 'message' nor 'record'", kind.escape_debug()))
        })?;
        Ok(NewEvent { source, kind, subtype, content: content.into(), metadata: None, idempotency_key: None })
    }

    /// Adds metadata: the text of a JSON object.
    pub fn with_metadata(mut self, json: &str) -> Result<NewEvent<'a>, Unfit> {
        // Read for its rules only (an object, not nested too deeply); the text itself is kept, so
        // that numbers stay as they were written.
        serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(json)
            .map_err(|e| Unfit(format!("has metadata that is no JSON object ({})", plain_message(&e))))?;
        self.metadata = Some(Cow::Owned(without_blanks(json)));
        Ok(self)
    }

    /// Adds an idempotency key: some text, at most [`MAX_KEY`] bytes of it.
    pub fn with_key(mut self, key: impl Into<Cow<'a, str>>) -> Result<NewEvent<'a>, Unfit> {
        let key = key.into();
        if key.is_empty() {
            return Err(Unfit("has an empty idempotency key".into()));
        }
        if key.len() > MAX_KEY {
            return Err(Unfit(format!("has an idempotency key longer than {MAX_KEY} bytes")));
        }
        self.idempotency_key = Some(key);
        Ok(self)
    }

    /// The event as it is stored under that id and time.
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

    /// Whether a stored event is this one, pushed before.
    pub fn is_same(&self, stored: &Event) -> bool {
        let object =
            |json: &str| serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(json).ok();
        self.source == stored.source.as_str()
            && self.kind.as_str() == stored.kind
            && self.subtype.as_deref() == stored.subtype.as_deref()
            && self.content == stored.content.as_str()
            && self.metadata.as_deref().map(object) == stored.metadata.as_deref().map(object)
    }

    /// Reads one line of a batch: a JSON object with `source`, `type`, `content` and, if wanted,
    /// `subtype`, `metadata` and `idempotency_key`. A `content` that is not a string is kept as the JSON text it was written in.
    pub fn from_json(line: &'a [u8]) -> Result<NewEvent<'a>, Unfit> {
        let text = std::str::from_utf8(line).map_err(|_| Unfit("is not valid UTF-8".into()))?;
        // A JSON array would otherwise be taken for the fields in order.
        if !text.trim_start().starts_with('{') {
            return Err(Unfit("is not a JSON object".into()));
        }
        let line: Line<'a> = serde_json::from_str(text).map_err(|e| Unfit(explain_json(&e)))?;
        let missing = |key: &str| Unfit(format!("has no '{key}'"));
        let content = match line.content.map(RawValue::get) {
            // serde_json reads a null into an absent value, so both are told apart by the text.
            None if has_null_content(text) => return Err(Unfit("has 'content' null".into())),
            None => return Err(missing("content")),
            // Without an escape, the text is what stands between the quotes.
            Some(json) if json.starts_with('"') && memchr::memchr(b'\\', json.as_bytes()).is_none() => {
                Cow::Borrowed(&json[1..json.len() - 1])
            }
            Some(json) if json.starts_with('"') => {
                let text: Text<'a> = serde_json::from_str(json).map_err(|e| Unfit(explain_json(&e)))?;
                text.0
            }
            Some(json) => Cow::Borrowed(json),
        };
        let event = NewEvent::new(
            line.source.ok_or_else(|| missing("source"))?,
            &line.kind.ok_or_else(|| missing("type"))?,
            line.subtype,
            content,
        )?;
        let event = match line.metadata {
            Some(metadata) => event.with_metadata(metadata.get())?,
            None => event,
        };
        match line.idempotency_key {
            Some(key) => event.with_key(key),
            None => Ok(event),
        }
    }

    /// The warning a structured source deserves when it does not fit its form, if any.
    pub fn source_warning(&self) -> Option<&'static str> {
        source_warning(&self.source)
    }
}

/// A JSON string, borrowed when it holds no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Tells whether the object has a `content` key at all; called only when its value read as null.
fn has_null_content(text: &str) -> bool {
    #[derive(Deserialize)]
    struct Content {
        #[serde(rename = "content")]
        _content: serde::de::IgnoredAny,
    }
    serde_json::from_str::<Content>(text).is_ok()
}

/// serde_json's message without the line number, which is always 1 and would mislead.
fn plain_message(error: &serde_json::Error) -> String {
    error.to_string().split(" at line ").next().unwrap_or_default().to_owned()
}

/// JSON text without the blanks between its parts.
fn without_blanks(json: &str) -> String {
    let (mut in_string, mut escaped) = (false, false);
    json.chars()
        .filter(|&c| {
            let blank = !in_string && matches!(c, ' ' | '\t' | '\n' | '\r');
            if escaped {
                escaped = false;
            } else if in_string && c == '\\' {
                escaped = true;
            } else if c == '"' {
                in_string = !in_string;
            }
            !blank
        })
        .collect()
}

fn explain_json(error: &serde_json::Error) -> String {
    let message = plain_message(error);
    match error.classify() {
        serde_json::error::Category::Data => format!("has a wrong value: {message}"),
        _ => format!("is not valid JSON (column {}: {message})", error.column()),
    }
}

/// Checks the structured forms `external:…` (five segments) and `internal:…` (three).
///
/// Such a source that does not fit is stored all the same; the answer is the form to use.
pub fn source_warning(source: &str) -> Option<&'static str> {
    let (form, segments, rest) = if let Some(rest) = source.strip_prefix("external:") {
        ("external:<channel_type>:<channel_id>:<session_type>:<session_id>:<peer_id>", 5, rest)
    } else if let Some(rest) = source.strip_prefix("internal:") {
        ("internal:<session_type>:<session_id>:<agent_id>", 3, rest)
    } else {
        return None;
    };
    let fits = rest.split(':').count() == segments
        && rest.split(':').all(|segment| !segment.is_empty() && !segment.chars().any(char::is_uppercase));
    (!fits).then_some(form)
}

/// A stored event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// From 1, rising in the order of storing.
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

/// The columns of a stored event as they lie in the table, borrowed.
///
/// Bytes rather than text, because other programs write the table too and nothing stops them from
/// storing a BLOB or broken UTF-8; what is not UTF-8 is printed with replacement characters.
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

impl Row<'_> {
    /// Appends the event as one compact JSON object, keys in the order of the columns, no newline.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        out.reserve(self.content.len() + self.source.len() + 192);
        out.extend_from_slice(b"{\"id\":");
        out.extend_from_slice(itoa::Buffer::new().format(self.id).as_bytes());
        out.extend_from_slice(b",\"created_at\":\"");
        write_escaped(out, self.created_at);
        out.extend_from_slice(b"\",\"source\":\"");
        write_escaped(out, self.source);
        out.extend_from_slice(b"\",\"type\":\"");
        write_escaped(out, self.kind);
        match self.subtype {
            Some(subtype) => {
                out.extend_from_slice(b"\",\"subtype\":\"");
                write_escaped(out, subtype);
                out.extend_from_slice(b"\",\"content\":\"");
            }
            None => out.extend_from_slice(b"\",\"subtype\":null,\"content\":\""),
        }
        write_escaped(out, self.content);
        out.push(b'"');
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

/// Metadata as it stands; what another program stored there that is no JSON object becomes a string,
/// and blanks that would break the line go.
fn write_object(out: &mut Vec<u8>, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) if text.starts_with('{') && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() => {
            out.extend_from_slice(without_blanks(text).as_bytes());
        }
        _ => write_string(out, bytes),
    }
}

/// Appends a JSON string.
fn write_string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    write_escaped(out, bytes);
    out.push(b'"');
}

/// Appends what stands between the quotes of a JSON string. Bytes that are no UTF-8 become
/// replacement characters.
///
/// Every event that is read or copied comes through here, so plain stretches are moved whole.
fn write_escaped(out: &mut Vec<u8>, bytes: &[u8]) {
    let (plain, rest) = bytes.split_at(plain_length(bytes));
    out.extend_from_slice(plain);
    if rest.is_empty() {
        return;
    }
    let text = String::from_utf8_lossy(rest);
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0c => out.extend_from_slice(b"\\f"),
            control @ ..0x20 => {
                out.extend_from_slice(b"\\u00");
                out.extend([control >> 4, control & 15].map(|digit| b"0123456789abcdef"[usize::from(digit)]));
            }
            // Part of a character beyond ASCII, or ASCII after such a one.
            other => out.push(other),
        }
        let (plain, after) = after.split_at(plain_length(after));
        out.extend_from_slice(plain);
        rest = after;
    }
}

/// How many bytes at the beginning are ASCII that stands in a JSON string as it is.
fn plain_length(text: &[u8]) -> usize {
    let (words, _) = text.as_chunks::<8>();
    let whole = words.iter().take_while(|word| is_plain(**word)).count() * 8;
    let rest = &text[whole..];
    whole + rest.iter().position(|&byte| !is_plain([byte; 8])).unwrap_or(rest.len())
}

/// Whether eight bytes are all plain, asked at once: a byte's highest bit tells that it is not.
fn is_plain(bytes: [u8; 8]) -> bool {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGH: u64 = ONES << 7;
    let word = u64::from_ne_bytes(bytes);
    let below = |word: u64, limit: u64| word.wrapping_sub(ONES * limit) & !word;
    let is = |byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
    (word | below(word, 0x20) | is(b'"') | is(b'\\')) & HIGH == 0
}

/// Now, as events and logs write it.
pub fn now() -> String {
    chrono::Utc::now().format("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unfit(line: &str) -> String {
        NewEvent::from_json(line.as_bytes()).unwrap_err().0
    }

    #[test]
    fn content_that_is_not_a_string_keeps_its_json_text() {
        for (json, stored) in [
            (r#""plain""#, "plain"),
            (r#""a\n\u00e9""#, "a\né"),
            (r#"{"b": 1, "a":[2]}"#, r#"{"b": 1, "a":[2]}"#),
            ("[1,2]", "[1,2]"),
            ("12345678901234567890123.50", "12345678901234567890123.50"),
            ("true", "true"),
        ] {
            let line = format!(r#"{{"source":"s","type":"record","content":{json}}}"#);
            assert_eq!(NewEvent::from_json(line.as_bytes()).unwrap().content, stored);
        }
    }

    #[test]
    fn strings_are_written_as_serde_json_writes_them() {
        let mut texts: Vec<String> = (0..=0x2ff).filter_map(char::from_u32).map(String::from).collect();
        for length in 0..40 {
            texts.push("x".repeat(length) + "\"\n" + &"é\u{1}\\".repeat(length));
        }
        for text in texts {
            let mut written = Vec::new();
            write_string(&mut written, text.as_bytes());
            assert_eq!(written, serde_json::to_vec(&text).unwrap(), "{text:?}");
        }
        let mut written = Vec::new();
        write_string(&mut written, b"a\xff\"\xc3");
        assert_eq!(written, "\"a\u{fffd}\\\"\u{fffd}\"".as_bytes());
    }

    #[test]
    fn every_kind_of_bad_line_says_what_is_wrong() {
        assert_eq!(unfit("[1]"), "is not a JSON object");
        assert_eq!(unfit("nonsense"), "is not a JSON object");
        assert!(unfit(r#"{"source":"#).starts_with("is not valid JSON"));
        assert_eq!(unfit(r#"{"type":"record","content":"c"}"#), "has no 'source'");
        assert_eq!(unfit(r#"{"source":"s","content":"c"}"#), "has no 'type'");
        assert_eq!(unfit(r#"{"source":"s","type":"record"}"#), "has no 'content'");
        assert_eq!(unfit(r#"{"source":"s","type":"record","content":null}"#), "has 'content' null");
        assert!(unfit(r#"{"source":1,"type":"record","content":"c"}"#).starts_with("has a wrong value"));
        assert!(
            unfit(r#"{"source":"s","type":"x","content":"c"}"#).contains("neither 'message' nor 'record'")
        );
        assert_eq!(unfit(r#"{"source":"","type":"record","content":"c"}"#), "has an empty source");
        assert!(unfit("{\"source\":\"a\\nb\",\"type\":\"record\",\"content\":\"c\"}").contains("control"));
        assert!(unfit(r#"{"source":"a","source":"b","type":"record","content":"c"}"#).contains("duplicate"));
    }

    #[test]
    fn deeply_nested_content_is_only_text() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let line = format!(r#"{{"source":"s","type":"record","content":{deep},"other":{deep}}}"#);
        assert_eq!(NewEvent::from_json(line.as_bytes()).unwrap().content, deep);
    }

    #[test]
    fn metadata_is_a_compact_object_with_its_numbers_as_written() {
        let line =
            r#"{"source":"s","type":"record","content":"c","metadata":{ "a b" : "x \" y", "n": 1.50 }}"#;
        let event = NewEvent::from_json(line.as_bytes()).unwrap();
        assert_eq!(event.metadata.as_deref(), Some(r#"{"a b":"x \" y","n":1.50}"#));
        for bad in ["1", "[]", "\"x\"", "true", &"{\"a\":".repeat(500)] {
            let line = format!(r#"{{"source":"s","type":"record","content":"c","metadata":{bad}}}"#);
            assert!(NewEvent::from_json(line.as_bytes()).is_err(), "{bad}");
        }
        assert!(
            unfit(r#"{"source":"s","type":"record","content":"c","metadata":[]}"#).contains("no JSON object")
        );
        assert!(
            unfit(r#"{"source":"s","type":"record","content":"c","idempotency_key":""}"#).contains("empty")
        );
    }

    #[test]
    fn structured_sources_are_checked_against_their_form() {
        for fine in [
            "external:telegram:tg-main:group:grp-123/topic-456:alice",
            "internal:dm:default:warden",
            "self",
            "Anything: else",
            "external",
        ] {
            assert_eq!(source_warning(fine), None, "{fine}");
        }
        for odd in ["external:a:b", "internal:dm:default:Warden", "internal:dm::x", "internal:a:b:c:d"] {
            assert!(source_warning(odd).is_some(), "{odd}");
        }
    }
}
