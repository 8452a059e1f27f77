//! Writing JSON: what goes into every line of the JSONL log, and out to every reader.

use serde::de::IgnoredAny;

/// JSON text without the white space between its parts.
pub fn without_blanks(json: &str) -> String {
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

/// Metadata as stored. Whatever another program stored that is not a JSON object becomes a string,
/// and white space that would break the line is removed.
pub fn write_object(out: &mut Vec<u8>, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) if text.starts_with('{') && serde_json::from_str::<IgnoredAny>(text).is_ok() => {
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

/// Appends what goes between the quotes of a JSON string. Bytes that are not UTF-8 become
/// replacement characters.
///
/// Every event that is read or logged comes through here, so plain stretches are copied whole.
pub fn write_escaped(out: &mut Vec<u8>, bytes: &[u8]) {
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
    // Without an early end, so that the compiler looks at all bytes of a chunk at once.
    let all_plain = |chunk: &[u8; 32]| chunk.iter().fold(true, |plain, &byte| plain & is_plain(byte));
    let (chunks, _) = text.as_chunks();
    let whole = chunks.iter().take_while(|chunk| all_plain(chunk)).count() * 32;
    let rest = &text[whole..];
    whole + rest.iter().position(|&byte| !is_plain(byte)).unwrap_or(rest.len())
}

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
