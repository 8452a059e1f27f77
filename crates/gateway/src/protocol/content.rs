//! The content of messages: text, or an array of content parts, stored as JSON.

use serde_json::Value;

use crate::storage::{self, Storage};

/// The content of a message as clients get it: an array of parts, with the URLs of attachments signed, or
/// the text.
pub fn shown(storage: &Storage, content: &str) -> Value {
    let mut shown = parts(content).map_or_else(|| Value::String(content.to_owned()), Value::Array);
    storage::parts::sign(storage, &mut shown);
    shown
}

/// The parts (objects with a `type`) of a content that is an array of them; `None` for text.
pub fn parts(content: &str) -> Option<Vec<Value>> {
    if !content.starts_with('[') {
        return None;
    }
    let parts: Vec<Value> = serde_json::from_str(content).ok()?;
    (!parts.is_empty() && parts.iter().all(is_part)).then_some(parts)
}

pub fn is_part(part: &Value) -> bool {
    part.get("type").is_some_and(Value::is_string)
}

/// The text of a message, without its other parts.
pub fn text(content: &str) -> String {
    let Some(parts) = parts(content) else { return content.to_owned() };
    let texts = parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str));
    texts.collect::<Vec<_>>().join("\n")
}

/// The first `most` characters of a text, on one line and without control characters.
pub fn beginning(text: &str, most: usize) -> String {
    let mut line = String::new();
    let mut blank = false;
    for c in text.trim().chars().take(4 * most) {
        if c.is_whitespace() || c.is_control() {
            blank = true;
            continue;
        }
        if blank && !line.is_empty() {
            line.push(' ');
        }
        blank = false;
        line.push(c);
    }
    line.chars().take(most).collect::<String>().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_is_parts_only_if_each_has_a_type() {
        assert_eq!(
            text(r#"[{"type":"text","text":"a"},{"type":"binary","url":"u"},{"type":"text","text":"b"}]"#),
            "a\nb"
        );
        for plain in ["[1, 2]", "[]", "[", "text", r#"[{"text":"a"}]"#] {
            assert_eq!(parts(plain), None);
        }
    }

    #[test]
    fn a_title_is_one_line() {
        assert_eq!(beginning("  a\n\tb\u{1b}[1m  c ", 60), "a b [1m c");
        assert_eq!(beginning("äöü äöü", 4), "äöü");
    }
}
