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

/// The part of a text around the first match of `query`, which is in lower case, with `context` characters on
/// either side.
pub fn around(text: &str, query: &str, context: usize) -> Option<String> {
    let lower = text.to_lowercase();
    let at = lower.find(query)?;
    // Lower case may be longer or shorter, so the position is only approximate.
    let before = lower[..at].chars().count().saturating_sub(context);
    let most = 2 * context + query.chars().count();
    let piece: String = text.chars().skip(before).take(most).collect();
    Some(beginning(&piece, most))
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
    fn what_matched_is_shown_with_what_stands_around_it() {
        let text = format!("{} The Needle {}", "a ".repeat(100), "b ".repeat(100));
        let piece = around(&text, "needle", 40).unwrap();
        assert!(piece.contains("The Needle b") && piece.chars().count() <= 86, "{piece}");
        assert_eq!(around(&text, "pin", 40), None);
        assert_eq!(around("ÄÖÜ", "öü", 40).as_deref(), Some("ÄÖÜ"));
    }
}
