//! The content of a message: text, or an array of content parts.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::MAX_NESTING;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Content {
    Text(String),
    /// At least one object with a `type`.
    Parts(#[cfg_attr(test, schemars(schema_with = "crate::schema::parts"))] Vec<Value>),
}

impl Content {
    /// The content for a text as it is stored: parts if it is a JSON array of parts that are nested at most
    /// [`MAX_NESTING`] deep, else text.
    pub fn stored(text: &str) -> Content {
        let parsed = text.starts_with('[').then(|| serde_json::from_str(text).ok()).flatten();
        let parts =
            parsed.and_then(parts).filter(|parts| parts.iter().all(|part| is_shallow(part, MAX_NESTING)));
        parts.map_or_else(|| Content::Text(text.to_owned()), Content::Parts)
    }

    /// The text to store.
    pub fn to_stored(&self) -> String {
        match self {
            Content::Text(text) => text.clone(),
            Content::Parts(parts) => Value::from_iter(parts.iter().cloned()).to_string(),
        }
    }

    /// The text alone: that of all parts that have one, a line break between two.
    pub fn text(&self) -> String {
        match self {
            Content::Text(text) => text.clone(),
            Content::Parts(parts) => {
                let texts = parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str));
                texts.collect::<Vec<_>>().join("\n")
            }
        }
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Content {
        Content::Text(text.to_owned())
    }
}

impl From<String> for Content {
    fn from(text: String) -> Content {
        Content::Text(text)
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Content, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        match serde_json::from_str(raw.get()) {
            Ok(Value::String(text)) => Ok(Content::Text(text)),
            Ok(value @ Value::Array(_)) => parts(value)
                .map(Content::Parts)
                .ok_or_else(|| D::Error::custom("the content has no parts, or a part without a 'type'")),
            Ok(_) => Err(D::Error::custom("the content is neither a text nor an array of parts")),
            Err(_) => Ok(Content::Text(raw.get().to_owned())),
        }
    }
}

/// The elements of an array, if there are any and each is an object with a `type`.
fn parts(value: Value) -> Option<Vec<Value>> {
    let Value::Array(parts) = value else { return None };
    let is_part = |part: &Value| part.get("type").is_some_and(Value::is_string);
    (!parts.is_empty() && parts.iter().all(is_part)).then_some(parts)
}

fn is_shallow(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(inner) => levels > 0 && inner.iter().all(|value| is_shallow(value, levels - 1)),
        Value::Object(inner) => levels > 0 && inner.values().all(|value| is_shallow(value, levels - 1)),
        _ => true,
    }
}

/// Reads any JSON. What cannot be held as a [`Value`], above all because it is nested too deep, becomes the
/// text that it is written as. For `#[serde(with)]`; needs to read from text, not through a buffer of serde's.
pub(crate) mod any {
    use super::*;

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Ok(serde_json::from_str(raw.get()).unwrap_or_else(|_| Value::String(raw.get().to_owned())))
    }

    /// The same for a key that may be absent; `null` is a value.
    pub fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
        deserialize(deserializer).map(Some)
    }

    /// The same for an object that may be absent or null. Anything else is as if it were absent.
    pub fn object<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<serde_json::Map<String, Value>>, D::Error> {
        Ok(match deserialize(deserializer)? {
            Value::Object(object) => Some(object),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(depth: usize) -> String {
        format!(r#"[{{"type":"x","y":{}{}}}]"#, "[".repeat(depth), "]".repeat(depth))
    }

    #[test]
    fn an_empty_array_is_a_level_too() {
        let shallow = |text: &str, levels| is_shallow(&serde_json::from_str(text).unwrap(), levels);
        assert!(shallow("1", 0) && shallow("[1]", 1) && shallow(r#"{"a":[]}"#, 2));
        assert!(!shallow("[]", 0) && !shallow("{}", 0) && !shallow(r#"{"a":[]}"#, 1));
    }

    #[test]
    fn an_array_is_parts_only_if_each_has_a_type() {
        let text = r#"[{"type":"text","text":"a"},{"type":"binary","url":"u"},{"type":"text","text":"b"}]"#;
        let content = Content::stored(text);
        assert_eq!((content.text().as_str(), content.to_stored().as_str()), ("a\nb", text));
        for plain in ["[1, 2]", "[]", "[", "text", r#"[{"text":"a"}]"#, r#"[{"type":1}]"#] {
            assert_eq!(Content::stored(plain), Content::Text(plain.to_owned()));
        }
    }

    #[test]
    fn parts_that_are_nested_too_deep_are_text() {
        assert!(matches!(Content::stored(&nested(MAX_NESTING - 1)), Content::Parts(_)));
        for depth in [MAX_NESTING, 200, 1_000_000] {
            assert_eq!(Content::stored(&nested(depth)), Content::Text(nested(depth)));
        }
        let objects =
            |depth| format!(r#"[{{"type":"x","y":{}1{}}}]"#, r#"{"z":"#.repeat(depth), "}".repeat(depth));
        assert!(matches!(Content::stored(&objects(MAX_NESTING - 1)), Content::Parts(_)));
        assert_eq!(Content::stored(&objects(MAX_NESTING)), Content::Text(objects(MAX_NESTING)));
    }

    #[test]
    fn what_is_no_content_is_refused() {
        for (json, why) in [
            ("1", "neither a text nor an array"),
            ("null", "neither a text nor an array"),
            ("{}", "neither a text nor an array"),
            ("[]", "no parts"),
            (r#"["a"]"#, "without a 'type'"),
        ] {
            let error = serde_json::from_str::<Content>(json).unwrap_err().to_string();
            assert!(error.contains(why), "{json}: {error}");
        }
    }
}
