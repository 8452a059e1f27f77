//! `logs/thread.log`: what happened, one line each.
//!
//! Logging never fails a command: what cannot be written is dropped. Lines cannot be forged:
//! control characters, which might begin a line of their own or colour a terminal, are escaped.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;

use crate::event;
use crate::files::Files;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Info,
    Warn,
    Error,
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Level::Info => "INFO",
            Level::Warn => "WARN",
            Level::Error => "ERROR",
        }
    }
}

/// Appends one line `[time] [LEVEL] text`.
pub fn write(files: &Files, level: Level, text: impl fmt::Display) {
    let line = format!("[{}] [{}] {}\n", event::now(), level.as_str(), Escaped(&text.to_string()));
    if let Ok(mut file) = files.open(&files.log(), OpenOptions::new().append(true)) {
        // One write, so that lines of several processes do not mix.
        drop(file.write_all(line.as_bytes()));
    }
}

/// Text with its control characters (and those that reorder text or end lines elsewhere) written
/// as escapes, so that it stays in its place on one line.
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut plain = 0;
        for (at, c) in self.0.char_indices() {
            if is_unsafe(c) {
                f.write_str(&self.0[plain..at])?;
                write!(f, "{}", c.escape_default())?;
                plain = at + c.len_utf8();
            }
        }
        f.write_str(&self.0[plain..])
    }
}

fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Text in double quotes, with quotes and backslashes escaped, for a field of a log line.
pub struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.replace('\\', "\\\\").replace('"', "\\\""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_text_can_leave_its_line() {
        assert_eq!(Escaped("a\nb\x1b[31m\u{202e}é").to_string(), "a\\nb\\u{1b}[31m\\u{202e}é");
        assert_eq!(Quoted("say \"a\\b\"").to_string(), r#""say \"a\\b\"""#);
    }
}
