//! Untrusted text, made safe for a terminal: it cannot control the terminal, hide or reorder anything.

use std::fmt::Write;

/// For reading: escapes control characters other than line feeds and tabs, and format characters other
/// than the two joiners, which some scripts cannot do without. Removes carriage returns.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' | '\u{200c}' | '\u{200d}' => shown.push(c),
            '\r' => {}
            c if c.is_control() || is_format(c) => shown.extend(c.escape_unicode()),
            c => shown.push(c),
        }
    }
    shown
}

/// The same on one line.
pub fn on_one_line(text: &str) -> String {
    visible(text).replace('\n', " ")
}

/// How many blanks in a row are shown one by one.
const MANY: usize = 16;

/// For judging, character by character: also escapes what leaves no trace on the screen, and counts blanks
/// and line breaks that follow each other. Nothing is left out.
pub fn verbatim(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let (run, after) = rest.split_at(rest.len() - rest.trim_start_matches(c).len());
        let count = run.chars().count();
        match c {
            '\n' if count > 1 => shown += &format!("\n[{count} line breaks]\n"),
            ' ' if count > MANY => shown += &format!("[{count} blanks]"),
            ' ' if count > 1 => shown += &"␣".repeat(count),
            c if leaves_no_trace(c) && count > MANY => {
                shown += &format!("[{count} times {}]", c.escape_unicode());
            }
            c if leaves_no_trace(c) => shown += &c.escape_unicode().to_string().repeat(count),
            _ => shown += run,
        }
        rest = after;
    }
    shown
}

/// A line of JSON: the same value, with nothing in it that a terminal would act on.
pub fn json(line: &str) -> String {
    let mut shown = String::with_capacity(line.len());
    for c in line.chars() {
        if c.is_control() || is_format(c) {
            // These occur in strings only: a line of JSON has no line breaks.
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(shown, "\\u{unit:04x}");
            }
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Format characters and separators of lines and paragraphs: the categories Cf, Zl and Zp.
fn is_format(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{600}'..='\u{605}'
            | '\u{61c}'
            | '\u{6dd}'
            | '\u{70f}'
            | '\u{890}'..='\u{891}'
            | '\u{8e2}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{110bd}'
            | '\u{110cd}'
            | '\u{13430}'..='\u{1343f}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

/// Controls other than the line feed, format characters, blanks other than the space, and characters that
/// are drawn as nothing.
fn leaves_no_trace(c: char) -> bool {
    ((c.is_control() || c.is_whitespace()) && ![' ', '\n'].contains(&c))
        || is_format(c)
        || matches!(
            c,
            '\u{34f}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{2800}'
                | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{ffa0}'
                | '\u{fff0}'..='\u{fff8}'
                | '\u{e0080}'..='\u{e0fff}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_never_steered_by_an_agent() {
        assert_eq!(visible("a\x1b[2Jb\u{9b}c\u{7f}\td\n"), "a\\u{1b}[2Jb\\u{9b}c\\u{7f}\td\n");
        assert_eq!(visible("one\r\ntwo"), "one\ntwo");
        assert_eq!(visible("user\u{202e}nimda\u{2028}\u{feff}"), "user\\u{202e}nimda\\u{2028}\\u{feff}");
        assert_eq!(visible("\u{1f468}\u{200d}\u{1f469}"), "\u{1f468}\u{200d}\u{1f469}");
        assert_eq!(on_one_line("a\nb\u{7}"), "a b\\u{7}");
    }

    #[test]
    fn what_is_judged_is_seen_character_by_character() {
        for (text, shown) in [
            ("ls -l", "ls -l"),
            ("a  b   c", "a␣␣b␣␣␣c"),
            ("ls\ncat", "ls\ncat"),
            ("a\n\n\nb", "a\n[3 line breaks]\nb"),
            ("a\tb\rc", r"a\u{9}b\u{d}c"),
            ("a\u{a0}b\u{3000}c\u{2800}", r"a\u{a0}b\u{3000}c\u{2800}"),
            ("\u{202e}x\u{2066}y\u{200b}z\u{200d}\u{e0041}", r"\u{202e}x\u{2066}y\u{200b}z\u{200d}\u{e0041}"),
            ("a\u{fe0f}\u{3164}", r"a\u{fe0f}\u{3164}"),
            ("\x1b[1m\u{9b}", r"\u{1b}[1m\u{9b}"),
            ("äöü 日本 éé", "äöü 日本 éé"),
        ] {
            assert_eq!(verbatim(text), shown, "{text:?}");
        }
        let hidden = format!("ls -l{}; rm -rf ~{}", " ".repeat(200), "\u{200b}".repeat(17));
        assert_eq!(verbatim(&hidden), r"ls -l[200 blanks]; rm -rf ~[17 times \u{200b}]");
        let (blanks, joiners) = (" ".repeat(16), "\u{200d}".repeat(16));
        assert_eq!(verbatim(&blanks), "␣".repeat(16));
        assert_eq!(verbatim(&joiners), r"\u{200d}".repeat(16));
        // Nothing that can be seen is left out, however long it is.
        let long = "x".repeat(100_000);
        assert_eq!(verbatim(&long), long);
    }

    #[test]
    fn a_line_of_json_keeps_its_value() {
        let value = "a\u{7f}\u{9b}\u{202e}\u{1d173}\u{e0041}ä\u{1f600}";
        let line = serde_json::to_string(value).unwrap();
        let shown = json(&line);
        assert_eq!(shown, "\"a\\u007f\\u009b\\u202e\\ud834\\udd73\\udb40\\udc41ä\u{1f600}\"");
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), value);
    }
}
