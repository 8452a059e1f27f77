//! Writes the JSON of events, for the JSONL log and for readers.

use std::borrow::Cow;

use serde::de::IgnoredAny;

/// JSON text without white space between tokens.
pub fn strip_white_space(json: &str) -> Cow<'_, str> {
    if !json.bytes().any(|byte| byte.is_ascii_whitespace()) {
        return Cow::Borrowed(json);
    }
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

/// Appends metadata. If another program stored something that is not a JSON object, it is written as a
/// string; white space, which could break the line, is removed.
pub fn write_object(out: &mut Vec<u8>, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) if text.starts_with('{') && serde_json::from_str::<IgnoredAny>(text).is_ok() => {
            out.extend_from_slice(strip_white_space(text).as_bytes());
        }
        _ => write_string(out, bytes),
    }
}

/// Appends a JSON string. Bytes that are not UTF-8 become replacement characters.
pub fn write_string(out: &mut Vec<u8>, bytes: &[u8]) {
    // Hot path: called for every event that is read or logged. Most text is plain, and a loop without early
    // exit is vectorised.
    if bytes.iter().fold(true, |plain, &byte| plain & is_plain(byte)) {
        out.push(b'"');
        out.extend_from_slice(bytes);
        out.push(b'"');
    } else {
        // On valid UTF-8, from_utf8 is much faster than from_utf8_lossy.
        let text = std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed);
        serde_json::to_writer(out, &text).expect("writing text to memory does not fail");
    }
}

/// Whether a byte is ASCII that needs no escape in a JSON string.
fn is_plain(byte: u8) -> bool {
    (0x20..0x80).contains(&byte) & (byte != b'"') & (byte != b'\\')
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
