//! Reading the lines of a batch.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use chrono::Utc;
use jiff::tz::TimeZone;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::{InvalidEvent, NewEvent, plain_message};
use crate::model::due::{Due, point_in_time};
use crate::model::duration;

/// Defaults for fields missing from the lines of a batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Defaults {
    pub source: Option<String>,
    pub kind: Option<String>,
    pub subtype: Option<String>,
    pub due: Option<Due>,
    /// After which time they expire, counted from when they are due.
    pub expires: Option<Duration>,
    /// The time zone of times without an offset. `None`: UTC.
    pub zone: Option<TimeZone>,
}

/// The keys of a batch line that have a meaning, and the others that `peek` prints.
const KEYS: [&str; 9] =
    ["source", "type", "subtype", "content", "metadata", "idempotency_key", "in", "at", "expires"];
const IGNORED_KEYS: [&str; 2] = ["id", "created_at"];

/// One line of a batch.
#[derive(Default)]
struct Line<'a> {
    source: Option<Text<'a>>,
    kind: Option<Text<'a>>,
    subtype: Option<Text<'a>>,
    content: Option<&'a RawValue>,
    metadata: Option<&'a RawValue>,
    idempotency_key: Option<Text<'a>>,
    after: Option<Text<'a>>,
    at: Option<Text<'a>>,
    expires: Option<Text<'a>>,
    /// Keys that mean nothing here.
    unknown: Vec<Cow<'a, str>>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Line<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Line<'a>, D::Error> {
        struct Keys;

        impl<'de> Visitor<'de> for Keys {
            type Value = Line<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an event")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Line<'de>, A::Error> {
                let mut line = Line::default();
                let mut seen = [false; KEYS.len()];
                while let Some(Text(key)) = map.next_key()? {
                    let known = KEYS.iter().position(|known| *known == key);
                    if let Some(at) = known
                        && std::mem::replace(&mut seen[at], true)
                    {
                        return Err(A::Error::duplicate_field(KEYS[at]));
                    }
                    match known {
                        Some(0) => line.source = map.next_value()?,
                        Some(1) => line.kind = map.next_value()?,
                        Some(2) => line.subtype = map.next_value()?,
                        Some(3) => line.content = Some(map.next_value()?),
                        Some(4) => line.metadata = map.next_value()?,
                        Some(5) => line.idempotency_key = map.next_value()?,
                        Some(6) => line.after = map.next_value()?,
                        Some(7) => line.at = map.next_value()?,
                        Some(_) => line.expires = map.next_value()?,
                        None => {
                            map.next_value::<IgnoredAny>()?;
                            if !IGNORED_KEYS.contains(&&*key) {
                                line.unknown.push(key);
                            }
                        }
                    }
                }
                Ok(line)
            }
        }

        from.deserialize_map(Keys)
    }
}

impl Line<'_> {
    /// An unknown key that was probably meant to be one that the line lacks.
    fn misspelt_key(&self) -> Option<(&str, &'static str)> {
        let lacks = |key: &str| match key {
            "source" => self.source.is_none(),
            "type" => self.kind.is_none(),
            "subtype" => self.subtype.is_none(),
            "content" => self.content.is_none(),
            "metadata" => self.metadata.is_none(),
            "idempotency_key" => self.idempotency_key.is_none(),
            "expires" => self.expires.is_none(),
            // Too short to tell.
            _ => false,
        };
        self.unknown.iter().find_map(|unknown| {
            let meant = KEYS.into_iter().find(|key| lacks(key) && is_near(unknown, key))?;
            Some((&**unknown, meant))
        })
    }
}

/// Whether a key is another spelling of `known`, or a typing error away from it.
fn is_near(key: &str, known: &str) -> bool {
    let bare = |key: &str| -> String {
        key.chars().filter(|c| !"_- ".contains(*c)).flat_map(char::to_lowercase).collect()
    };
    let (key, known) = (bare(key), bare(known));
    let other_name = matches!((&*key, &*known), ("meta", "metadata") | ("idempotency", "idempotencykey"));
    other_name || strsim::osa_distance(&key, &known) <= 1
}

/// Text that is borrowed if it contains no escape. Serde borrows a `Cow` in a struct, but not one in an
/// `Option`.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'a> NewEvent<'a> {
    /// Reads one line of a batch: a JSON object with `source`, `type`, `content` and optionally
    /// `subtype`, `metadata`, `idempotency_key`, `expires`, and `in` or `at`. A `content` that is not a string is stored as the
    /// JSON text it was written as. Calls `unknown` with each other key.
    ///
    /// # Errors
    ///
    /// The line is not such an object, or has a key that is nearly one of these.
    pub fn from_json(
        line: &'a [u8],
        defaults: &'a Defaults,
        unknown: &mut dyn FnMut(&str),
    ) -> Result<NewEvent<'a>, InvalidEvent> {
        let text = std::str::from_utf8(line).map_err(|_| InvalidEvent("is not valid UTF-8".into()))?;
        // Serde would take a JSON array for the fields in order.
        if !text.trim_start().starts_with('{') {
            return Err(InvalidEvent("is not a JSON object".into()));
        }
        let line: Line<'a> = serde_json::from_str(text).map_err(|e| InvalidEvent(explain_json(&e)))?;
        if let Some((key, meant)) = line.misspelt_key() {
            let key = key.escape_debug();
            return Err(InvalidEvent(format!("has the key '{key}', did you mean '{meant}'?")));
        }
        line.unknown.iter().for_each(|key| unknown(key));
        let missing = |key: &str| InvalidEvent(format!("has no '{key}'"));
        let content = match line.content.ok_or_else(|| missing("content"))?.get() {
            "null" => return Err(InvalidEvent("has 'content' null".into())),
            // Without an escape, the text is what is between the quotes.
            json if json.starts_with('"') && memchr::memchr(b'\\', json.as_bytes()).is_none() => {
                Cow::Borrowed(&json[1..json.len() - 1])
            }
            json if json.starts_with('"') => {
                Cow::Owned(serde_json::from_str(json).map_err(|e| InvalidEvent(explain_json(&e)))?)
            }
            json => Cow::Borrowed(json),
        };
        let or = |value: Option<Text<'a>>, default: &'a Option<String>| {
            value.map(|Text(text)| text).or_else(|| default.as_deref().map(Cow::Borrowed))
        };
        let event = NewEvent::new(
            or(line.source, &defaults.source).ok_or_else(|| missing("source"))?,
            &or(line.kind, &defaults.kind).ok_or_else(|| missing("type"))?,
            or(line.subtype, &defaults.subtype),
            content,
        )?;
        let event = match line.metadata {
            Some(metadata) => event.with_metadata(metadata.get())?,
            None => event,
        };
        let due = match (line.after, line.at) {
            (Some(_), Some(_)) => return Err(InvalidEvent("has both 'in' and 'at'".into())),
            (Some(Text(after)), None) => Some(Due::After(duration::parse(&after).map_err(wrong("in"))?)),
            (None, Some(Text(at))) => {
                let zone = defaults.zone.clone().unwrap_or(TimeZone::UTC);
                Some(Due::At(point_in_time(&at, &zone).map_err(wrong("at"))?))
            }
            (None, None) => defaults.due,
        };
        let event = match due {
            Some(due) => event.with_due(due)?,
            None => event,
        };
        let expires = match line.expires {
            Some(Text(after)) => Some(duration::parse(&after).map_err(wrong("expires"))?),
            None => defaults.expires,
        };
        let event = match expires {
            Some(after) => event.with_expiry(after, Utc::now())?,
            None => event,
        };
        match line.idempotency_key {
            Some(Text(key)) => Ok(event.with_key(key)?),
            None => Ok(event),
        }
    }
}

fn wrong(key: &'static str) -> impl Fn(String) -> InvalidEvent {
    move |problem| InvalidEvent(format!("has a wrong value for '{key}': {problem}"))
}

fn explain_json(error: &serde_json::Error) -> String {
    let message = plain_message(error);
    match error.classify() {
        serde_json::error::Category::Data => format!("has a wrong value: {message}"),
        _ => format!("is not valid JSON (column {}: {message})", error.column()),
    }
}
