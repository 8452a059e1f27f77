//! What users see: the answer on stdout, everything about it on stderr.
//!
//! The output of agents is untrusted: none of its control characters reach a terminal.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::process;

use serde_json::Value;
use unicode_width::UnicodeWidthChar;

use crate::client::Event;
use crate::error::Failure;

/// The width of a terminal if it is not known, in columns.
const WIDTH: usize = 80;

pub struct Screen {
    /// Every event as a line of JSON, and nothing else, on stdout.
    json: bool,
    out_is_terminal: bool,
    err_is_terminal: bool,
    /// Whether stdout ends in an incomplete line.
    in_line: bool,
}

impl Screen {
    pub fn new(json: bool) -> Screen {
        Screen {
            json,
            out_is_terminal: io::stdout().is_terminal(),
            err_is_terminal: io::stderr().is_terminal(),
            in_line: false,
        }
    }

    pub fn json(&self) -> bool {
        self.json
    }

    /// Prints an event of the session, with `--json`.
    pub fn event(&mut self, event: &Event) {
        if self.json {
            self.json_line(event);
        }
    }

    /// The same while a line is edited. Returns what the editor has to print if stdout is the terminal.
    pub fn event_at_prompt(&mut self, event: &Event) -> Option<String> {
        if self.out_is_terminal {
            return serde_json::to_string(event).ok();
        }
        self.event(event);
        None
    }

    fn json_line(&self, value: &impl serde::Serialize) {
        if let Ok(mut line) = serde_json::to_string(value) {
            line.push('\n');
            write(&line);
        }
    }

    /// Prints a piece of the answer.
    pub fn answer(&mut self, text: &str) {
        if self.json || text.is_empty() {
            return;
        }
        match self.out_is_terminal {
            true => write(&visible(text)),
            false => write(text),
        }
        self.in_line = !text.ends_with('\n');
    }

    /// Completes the line: the answer is over, or interrupted by something else.
    pub fn end_line(&mut self) {
        if !self.json && std::mem::take(&mut self.in_line) {
            write("\n");
        }
    }

    /// Prints a remark about the answer on stderr, on a line of its own.
    pub fn note(&mut self, text: impl Display) {
        if self.json {
            return;
        }
        if self.out_is_terminal {
            self.end_line();
        }
        let text = visible(&text.to_string()).replace('\n', " ");
        // A closed stderr is no reason to panic.
        let _ = match self.err_is_terminal {
            true => writeln!(io::stderr(), "\x1b[2m{}\x1b[0m", shortened(&text, width())),
            false => writeln!(io::stderr(), "{text}"),
        };
    }

    pub fn failure(&mut self, failure: &Failure) {
        if self.out_is_terminal {
            self.end_line();
        }
        let (what, fix) =
            (visible(&failure.what).replace('\n', " "), visible(&failure.fix).replace('\n', " "));
        let _ = match self.json {
            true => writeln!(io::stderr(), "{}", serde_json::json!({ "error": what, "suggestion": fix })),
            false => writeln!(io::stderr(), "Error: {what} - {fix}"),
        };
    }

    pub fn sessions(&mut self, sessions: &[Value]) {
        for session in sessions {
            if self.json {
                self.json_line(session);
                continue;
            }
            let text = |key: &str| visible(session[key].as_str().unwrap_or_default()).replace('\n', " ");
            let line = format!(
                "{}  {}  {:>4} messages  {}",
                text("id"),
                text("lastActivity"),
                session["messageCount"].as_u64().unwrap_or(0),
                text("title"),
            );
            self.line(&line);
        }
    }

    pub fn history(&mut self, messages: &[Value]) {
        for message in messages {
            if self.json {
                self.json_line(message);
                continue;
            }
            let role = message["role"].as_str().unwrap_or("?");
            self.answer(&format!("{role}: {}\n", content(&message["content"])));
        }
    }

    /// Prints a line, shortened to the width of the terminal.
    fn line(&self, line: &str) {
        match self.out_is_terminal {
            true => write(&format!("{}\n", shortened(line, width()))),
            false => write(&format!("{line}\n")),
        }
    }
}

/// The content of a message as text; parts are joined.
pub fn content(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts = parts.iter().map(|part| match part["text"].as_str() {
                Some(text) => text.to_owned(),
                None => format!("[{}]", part["type"].as_str().unwrap_or("attachment")),
            });
            texts.collect::<Vec<_>>().join("\n")
        }
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// Escapes control characters other than line feeds and tabs; removes carriage returns.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => shown.push(c),
            '\r' => {}
            c if c.is_control() => shown.extend(c.escape_unicode()),
            c => shown.push(c),
        }
    }
    shown
}

/// The beginning of a line that fits, with `…` if something is left out.
fn shortened(line: &str, width: usize) -> String {
    let columns = |c: char| c.width().unwrap_or(0);
    if line.chars().map(columns).sum::<usize>() <= width {
        return line.to_owned();
    }
    let mut left = width.saturating_sub(1);
    let fits = |c: &char| {
        let fits = columns(*c) <= left;
        left = left.saturating_sub(columns(*c));
        fits
    };
    line.chars().take_while(fits).chain(['…']).collect()
}

fn width() -> usize {
    terminal_size::terminal_size().map_or(WIDTH, |(width, _)| usize::from(width.0))
}

/// Writes to stdout and flushes, so that tokens are seen as they come. Exits if the reader has closed the
/// pipe; the run continues without this client.
fn write(text: &str) {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => process::exit(0),
        Err(e) => {
            let _ = writeln!(io::stderr(), "Error: cannot print the answer: {e} - check where stdout goes");
            process::exit(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_never_steered_by_an_agent() {
        assert_eq!(visible("a\x1b[2Jb\u{9b}c\td\n"), "a\\u{1b}[2Jb\\u{9b}c\td\n");
        assert_eq!(visible("one\r\ntwo"), "one\ntwo");
    }

    #[test]
    fn a_line_that_does_not_fit_says_so() {
        assert_eq!(shortened("hello", 5), "hello");
        assert_eq!(shortened("hello!", 5), "hell…");
        assert_eq!(shortened("日本語日本語", 6), "日本…");
    }

    #[test]
    fn parts_of_a_message_are_read_as_text() {
        let parts = serde_json::json!([{ "type": "text", "text": "see" }, { "type": "binary", "url": "x" }]);
        assert_eq!(content(&parts), "see\n[binary]");
    }
}
