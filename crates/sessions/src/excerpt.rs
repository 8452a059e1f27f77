//! Short pieces of long texts, for lists.

/// The longest title, in characters.
pub const TITLE: usize = 200;

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

/// What a client has sent, as an error shows it: its first 100 characters, those that cannot be seen escaped.
pub fn echoed(text: &str) -> String {
    let mut rest = text.chars();
    let beginning: String = rest.by_ref().take(100).collect();
    let end = if rest.next().is_some() { "…" } else { "" };
    format!("{}{end}", beginning.escape_debug())
}

/// How much text precedes a match in an excerpt: little enough that the match is visible in a narrow list.
const BEFORE: usize = 16;

/// The part of a text around the first match of `query`, from the beginning of a word on, with at most `after` characters
/// behind it. `lower` is the text in lower case, as `query` is.
pub fn around(text: &str, lower: &str, query: &str, after: usize) -> Option<String> {
    let at = lower.find(query)?;
    // Lower case may be longer or shorter, so the position is only approximate.
    let at = lower[..at].chars().count();
    let start = at.saturating_sub(BEFORE);
    let piece: String = text.chars().skip(start).take(at - start + query.chars().count() + after).collect();
    if start == 0 {
        return Some(beginning(&piece, piece.len()));
    }
    // From the next word on, if one begins before the match.
    let before = piece.chars().take(at - start).collect::<String>();
    let word = before.find(char::is_whitespace).unwrap_or(0);
    Some(format!("…{}", beginning(&piece[word..], piece.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_is_one_line() {
        assert_eq!(beginning("  a\n\tb\u{1b}[1m  c ", 60), "a b [1m c");
        assert_eq!(beginning("äöü äöü", 4), "äöü");
    }

    #[test]
    fn what_is_echoed_is_short_and_can_be_seen() {
        assert_eq!(echoed("tomorrow"), "tomorrow");
        assert_eq!(echoed("a\u{1b}[1m\nb"), "a\\u{1b}[1m\\nb");
        assert_eq!(echoed(&"ä".repeat(101)), format!("{}…", "ä".repeat(100)));
    }

    #[test]
    fn what_matched_is_shown_with_what_stands_around_it() {
        let found = |text: &str, query: &str, after| around(text, &text.to_lowercase(), query, after);
        let text = format!("{} who may not read The Needle {}", "a ".repeat(100), "b ".repeat(100));
        assert_eq!(found(&text, "needle", 8).as_deref(), Some("…not read The Needle b b b b"));
        assert_eq!(found(&text, "pin", 40), None);
        assert_eq!(found("ÄÖÜ", "öü", 40).as_deref(), Some("ÄÖÜ"));
        assert_eq!(found("the owner", "owner", 40).as_deref(), Some("the owner"));
        assert_eq!(found(&"x".repeat(100), "xx", 3).as_deref(), Some("xxxxx"));
        let long = format!("{}needle", "x".repeat(100));
        assert_eq!(found(&long, "needle", 3), Some(format!("…{}needle", "x".repeat(16))));
    }
}
