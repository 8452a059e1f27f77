//! What users see: the answer on stdout, everything about it on stderr.
//!
//! The output of agents is untrusted: none of its control characters reach a terminal.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::process;

use thread_protocol::client::UNREADABLE;
use thread_protocol::method::{HistoryEntry, SessionSummary};
use thread_protocol::{Content, Unreadable};
use unicode_width::UnicodeWidthChar;

use crate::error::Failure;
use crate::visible::{self, on_one_line, visible};

/// The width of a terminal if it is not known, in columns.
const WIDTH: usize = 80;

/// The mark of a quoted line.
const QUOTED: &str = "  | ";

/// A quotation with more lines than this may not fit on the screen.
const MANY: usize = 20;

pub struct Screen {
    /// Every event as a line of JSON, and nothing else, on stdout.
    pub json: bool,
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

    /// Whether the answer is shown as it comes. Elsewhere an attempt that fails could not be taken back.
    pub fn streams(&self) -> bool {
        self.out_is_terminal && !self.json
    }

    /// Whether a user can be asked: questions are shown on stderr.
    pub fn can_ask(&self) -> bool {
        self.err_is_terminal && !self.json && io::stdin().is_terminal()
    }

    /// Prints the frame of an event, with `--json`.
    pub fn frame(&mut self, text: &str) {
        if self.json {
            write(&format!("{}\n", self.json_line(text)));
        }
    }

    /// The same while a line is edited. Returns what the editor has to print if stdout is the terminal.
    pub fn frame_at_prompt(&mut self, text: &str) -> Option<String> {
        if self.out_is_terminal {
            return Some(self.json_line(text));
        }
        self.frame(text);
        None
    }

    fn json_line(&self, text: &str) -> String {
        // Between tokens, line breaks are only blanks; within strings there are none.
        let line = text.replace(['\n', '\r'], " ");
        if self.out_is_terminal { visible::json(&line) } else { line }
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

    /// Prints a remark about the answer on stderr, on a line of its own, shortened to the terminal.
    pub fn note(&mut self, text: impl Display) {
        let text = on_one_line(&text.to_string());
        let text = if self.err_is_terminal { shortened(&text, width()) } else { text };
        self.remark(&text);
    }

    /// Prints text that must be read in full on stderr: nothing is left out, and every line is marked, so that it
    /// cannot be mistaken for this program's own.
    pub fn quote(&mut self, text: &str) {
        let room = if self.err_is_terminal { width().saturating_sub(QUOTED.len()) } else { usize::MAX };
        let mut lines = 0;
        for line in text.split('\n').flat_map(|line| folded(line, room)) {
            self.remark(&format!("{QUOTED}{line}"));
            lines += 1;
        }
        if lines > MANY {
            self.note(format_args!("these were {lines} lines"));
        }
    }

    fn remark(&mut self, line: &str) {
        if self.json {
            return;
        }
        if self.out_is_terminal {
            self.end_line();
        }
        // A closed stderr is no reason to panic.
        let _ = match self.err_is_terminal {
            true => writeln!(io::stderr(), "\x1b[2m{line}\x1b[0m"),
            false => writeln!(io::stderr(), "{line}"),
        };
    }

    pub fn failure(&mut self, failure: &Failure) {
        if self.out_is_terminal {
            self.end_line();
        }
        let (what, fix) = (on_one_line(&failure.what), on_one_line(&failure.fix));
        let _ = match self.json {
            true => writeln!(
                io::stderr(),
                "{}",
                serde_json::json!({ "error": what, "suggestion": fix, "code": failure.code })
            ),
            false => writeln!(io::stderr(), "Error: {what} - {fix}"),
        };
    }

    /// Reports a frame that cannot be read.
    pub fn unreadable(&mut self, error: &Unreadable) {
        self.failure(&Failure::new(UNREADABLE, error, "use the `thread chat` of the gateway's version"));
    }

    pub fn sessions(&mut self, sessions: &[SessionSummary]) {
        for session in sessions {
            if self.json {
                self.value(session);
                continue;
            }
            let line = format!(
                "{}  {}  {:>4} messages  {}",
                session.id, session.last_activity, session.message_count, session.title
            );
            let line = on_one_line(&line);
            let line = if self.out_is_terminal { shortened(&line, width()) } else { line };
            write(&format!("{line}\n"));
        }
    }

    pub fn history(&mut self, entries: &[HistoryEntry]) {
        for entry in entries {
            if self.json {
                self.value(entry);
                continue;
            }
            let mut text = content(&entry.content);
            if let Some(large) = &entry.large {
                text.push_str(&format!(" [{} bytes: {}]", large.bytes, large.url));
            }
            self.answer(&format!("{}: {text}\n", entry.role));
        }
    }

    fn value(&mut self, value: &impl serde::Serialize) {
        if let Ok(text) = serde_json::to_string(value) {
            self.frame(&text);
        }
    }
}

/// The content of a message as text; parts are joined.
pub fn content(content: &Content) -> String {
    match content {
        Content::Text(text) => text.clone(),
        Content::Parts(parts) => {
            let texts = parts.iter().map(|part| match part["text"].as_str() {
                Some(text) => text.to_owned(),
                None => format!("[{}]", part["type"].as_str().unwrap_or("attachment")),
            });
            texts.collect::<Vec<_>>().join("\n")
        }
    }
}

/// A line in pieces of at most so many columns.
fn folded(line: &str, columns: usize) -> Vec<String> {
    let (mut pieces, mut used) = (vec![String::new()], 0);
    for c in line.chars() {
        let wide = c.width().unwrap_or(0);
        if used + wide > columns && used > 0 {
            pieces.push(String::new());
            used = 0;
        }
        used += wide;
        pieces.last_mut().expect("there is one").push(c);
    }
    pieces
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

/// Writes to stdout and flushes, so that tokens appear as they arrive. Exits if the reader has closed the pipe; the
/// run continues without this client.
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
    fn a_line_that_does_not_fit_says_so() {
        assert_eq!(shortened("hello", 5), "hello");
        assert_eq!(shortened("hello!", 5), "hell…");
        assert_eq!(shortened("日本語日本語", 6), "日本…");
    }

    #[test]
    fn a_line_is_folded_without_loss() {
        assert_eq!(folded("", 3), [""]);
        assert_eq!(folded("abcdefg", 3), ["abc", "def", "g"]);
        assert_eq!(folded("日本語", 3), ["日", "本", "語"]);
        assert_eq!(folded("日本", 1), ["日", "本"]);
    }

    #[test]
    fn parts_of_a_message_are_read_as_text() {
        let parts = Content::stored(r#"[{"type":"text","text":"see"},{"type":"binary","url":"x"}]"#);
        assert_eq!(content(&parts), "see\n[binary]");
    }
}
