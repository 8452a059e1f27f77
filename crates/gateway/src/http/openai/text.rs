//! The normal form in which texts of a conversation are compared.

use sha2::{Digest as _, Sha256};
use unicode_normalization::UnicodeNormalization;

/// What chat programs add to answers, or hide of them, with everything in it.
const HIDDEN: [&str; 2] = ["think", "details"];

/// Half of the SHA-256 of a text in normal form.
pub type Digest = [u8; 16];

/// A text in normal form: composed (NFC), without `<think>…</think>` and `<details>…</details>`, and with a single
/// space for each white space, none at both ends.
pub fn normal(text: &str) -> String {
    let text = HIDDEN.iter().fold(text.to_owned(), |text, tag| without(&text, tag));
    let composed: String = text.nfc().collect();
    composed.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The digest of a text that is in normal form.
pub fn digest(normal: &str) -> Digest {
    digest_of(normal.as_bytes())
}

pub fn digest_of(bytes: &[u8]) -> Digest {
    let mut half = Digest::default();
    half.copy_from_slice(&Sha256::digest(bytes)[..16]);
    half
}

/// The digest in hexadecimal digits.
pub fn hex(digest: Digest) -> String {
    format!("{:032x}", u128::from_be_bytes(digest))
}

/// The inverse of [`hex`].
pub fn unhex(text: &str) -> Option<Digest> {
    (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok()).flatten().map(u128::to_be_bytes)
}

/// A text without the elements of a name. One that is not closed reaches to the end: a text may be the beginning of
/// another.
fn without(text: &str, tag: &str) -> String {
    let (mut kept, mut depth, mut rest) = (String::with_capacity(text.len()), 0_usize, text);
    while let Some(at) = rest.find('<') {
        if depth == 0 {
            kept.push_str(&rest[..at]);
        }
        rest = &rest[at..];
        let closes = rest.starts_with("</");
        let name = &rest[if closes { 2 } else { 1 }..];
        let is_tag = name.get(..tag.len()).is_some_and(|name| name.eq_ignore_ascii_case(tag))
            && name[tag.len()..].starts_with(|c: char| c == '>' || c.is_whitespace());
        // A closing tag without an opening one is text.
        if !is_tag || closes && depth == 0 {
            if depth == 0 {
                kept.push('<');
            }
            rest = &rest[1..];
            continue;
        }
        depth = if closes { depth - 1 } else { depth + 1 };
        rest = rest.find('>').map_or("", |end| &rest[end + 1..]);
    }
    if depth == 0 {
        kept.push_str(rest);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_chat_programs_change_makes_no_difference() {
        for same in [
            "Hello, wörld!",
            "  Hello,\r\n\twörld!\n",
            "Hello, wo\u{308}rld!",
            "<think>\nhm <b>\n</think>Hello, wörld!",
            "<details type=\"reasoning\" done=\"true\">\n<summary>Thought</summary>\nhm\n</details>\nHello, wörld!",
            "<details><details></details>x</details>Hello, <THINK>so</THINK>wörld!",
        ] {
            assert_eq!(normal(same), "Hello, wörld!", "{same:?}");
        }
    }

    #[test]
    fn everything_else_makes_one() {
        for text in
            ["a < b", "</think>a", "<thinker>a</thinker>", "<détails>", "<", "a<details", "x </details> y"]
        {
            assert_eq!(normal(text), text);
        }
        assert_eq!(normal("a <think>b"), "a");
        assert_ne!(digest("a b"), digest("ab"));
        assert_eq!(unhex(&hex(digest("a"))), Some(digest("a")));
        assert_eq!(unhex("x"), None);
    }
}
