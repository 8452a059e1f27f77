//! All printing. Data goes to stdout, everything else to stderr.
//!
//! Nothing here panics: stdout and stderr may be closed, full, or a pipe without a reader. A reader that closed the
//! pipe early is not an error.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use serde_json::json;

use super::{capture, environment};
use crate::failure::{Failure, Result, WithHint};
use crate::files::log::Escaped;

/// Whether stdout still has a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    There,
    /// The reader closed the pipe; nothing more to print.
    Gone,
}

/// Whether a progress line is on the terminal. Other output to it must clear the line first.
pub static PROGRESS_DRAWN: AtomicBool = AtomicBool::new(false);

/// Clears the terminal line.
pub const CLEAR_LINE: &str = "\r\x1b[K";

/// Prints bytes to stdout. On a terminal, the control characters that JSON allows in a string (DEL and U+0080
/// to U+009F) are written as its escapes.
pub fn bytes(data: &[u8]) -> Result<Reader> {
    if capture::out(data) {
        return Ok(Reader::There);
    }
    let mut stdout = environment::stdout().lock();
    let data = if stdout.is_terminal() { without_late_controls(data) } else { data.into() };
    match stdout.write_all(&data).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(Reader::There),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(e) => Err(e).with_hint("cannot write to stdout", "check where stdout goes"),
    }
}

fn without_late_controls(data: &[u8]) -> Cow<'_, [u8]> {
    let is_late = |c: char| ('\u{7f}'..='\u{9f}').contains(&c);
    if !data.utf8_chunks().any(|chunk| chunk.valid().contains(is_late)) {
        return data.into();
    }
    let mut safe = Vec::with_capacity(data.len());
    for chunk in data.utf8_chunks() {
        for c in chunk.valid().chars() {
            match is_late(c) {
                true => safe.extend(format!("\\u{:04x}", u32::from(c)).bytes()),
                false => safe.extend(c.encode_utf8(&mut [0; 4]).bytes()),
            }
        }
        safe.extend(chunk.invalid());
    }
    safe.into()
}

/// Prints untrusted bytes. On a terminal, control characters other than newlines and tabs are escaped, so
/// that they cannot move the cursor or colour the screen.
pub struct UntrustedOutput {
    to_terminal: bool,
    /// The last byte was [`C1_LEAD`]. It is held back until the next one shows whether this is a control
    /// character (U+0080 to U+009F).
    held_lead: bool,
}

/// The first byte of U+0080 to U+00BF in UTF-8.
const C1_LEAD: u8 = 0xc2;

impl UntrustedOutput {
    pub fn to_stdout() -> UntrustedOutput {
        UntrustedOutput { to_terminal: environment::stdout().is_terminal(), held_lead: false }
    }

    /// Prints the next chunk.
    pub fn print(&mut self, chunk: &[u8]) -> Result<Reader> {
        if self.to_terminal { bytes(&self.sanitize(chunk)) } else { bytes(chunk) }
    }

    fn sanitize(&mut self, chunk: &[u8]) -> Vec<u8> {
        let mut safe = Vec::with_capacity(chunk.len());
        for &byte in chunk {
            let held_lead = std::mem::replace(&mut self.held_lead, byte == C1_LEAD);
            if held_lead && matches!(byte, 0x80..=0x9f) {
                safe.extend([C1_LEAD, byte].escape_ascii());
                continue;
            }
            safe.extend(held_lead.then_some(C1_LEAD));
            match byte {
                C1_LEAD => (),
                b'\n' | b'\t' => safe.push(byte),
                _ if byte.is_ascii_control() => safe.extend(byte.escape_ascii()),
                _ => safe.push(byte),
            }
        }
        safe
    }
}

/// Untrusted bytes, as [`UntrustedOutput`] prints them on a terminal.
pub fn sanitized(bytes: &[u8]) -> Vec<u8> {
    UntrustedOutput { to_terminal: true, held_lead: false }.sanitize(bytes)
}

/// An untrusted line, as [`UntrustedOutput`] prints it on a terminal.
pub fn sanitize(line: &str) -> String {
    String::from_utf8_lossy(&sanitized(line.as_bytes())).into_owned()
}

/// Whether the reader of stdout is gone, determined without writing to it.
pub fn reader_is_gone() -> bool {
    if capture::is_on() {
        return false;
    }
    let stdout = environment::stdout();
    let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
    // A terminal or file never reports an error here.
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).ok();
    polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL)
}

/// Whether stdout is a file or a device like /dev/null, so that its content cannot appear on a terminal: it
/// is neither a terminal nor a pipe to a program that may print to one.
pub fn stdout_is_off_terminal() -> bool {
    rustix::fs::fstat(environment::stdout()).is_ok_and(|about| match FileType::from_raw_mode(about.st_mode) {
        FileType::RegularFile => true,
        FileType::CharacterDevice => !environment::stdout().is_terminal(),
        _ => false,
    })
}

/// Prints one line to stdout.
pub fn line(text: impl fmt::Display) -> Result<()> {
    bytes(format!("{text}\n").as_bytes()).map(drop)
}

/// Whether to colour output to this stream: on a terminal, unless `NO_COLOR`,
/// `CLICOLOR=0` or `TERM=dumb` is set; anywhere with `CLICOLOR_FORCE`.
pub fn coloured<S: RawStream>(stream: &S) -> bool {
    AutoStream::choice(stream) != ColorChoice::Never
}

/// The text, in `style` if `coloured`.
pub fn styled(text: impl fmt::Display, style: Style, coloured: bool) -> String {
    if coloured { format!("{style}{text}{style:#}") } else { text.to_string() }
}

/// Prints help to stdout, in colour if [`coloured`].
pub fn help(text: &clap::builder::StyledStr) -> Result<()> {
    let coloured = coloured(&environment::stdout());
    bytes(if coloured { text.ansi().to_string() } else { text.to_string() }.as_bytes()).map(drop)
}

/// Untrusted text with its control characters escaped, safe for a terminal.
pub fn plain(text: &str) -> Escaped<'_> {
    Escaped(text)
}

/// Prints a warning to stderr.
pub fn warn(text: impl fmt::Display) {
    to_stderr(&format!("Warning: {}\n", Escaped(&text.to_string())));
}

/// Turns a failure to print the result of what is `done` into a warning: the caller must not do it again.
pub fn confirm(printed: Result<()>, done: &str) {
    if let Err(failure) = printed {
        warn(format_args!("{failure}; {done}"));
    }
}

/// Prints a note to stderr: information that needs no action.
pub fn note(text: impl fmt::Display) {
    to_stderr(&format!("Note: {}\n", Escaped(&text.to_string())));
}

/// A failure in one line, with its newline: for people, or as JSON.
pub fn failure_line(failure: &Failure, as_json: bool) -> String {
    if as_json {
        return json!({ "error": failure.what, "suggestion": failure.hint, "code": failure.code.as_str() })
            .to_string()
            + "\n";
    }
    let label = styled("Error:", AnsiColor::Red.on_default().bold(), coloured(&environment::stderr()));
    format!("{label} {}\n", Escaped(&failure.to_string()))
}

/// Prints trusted text to stderr.
pub fn to_stderr(text: &str) {
    if capture::notice(text) {
        return;
    }
    // The next drawing shows the progress again.
    let clear = if PROGRESS_DRAWN.swap(false, Ordering::SeqCst) { CLEAR_LINE } else { "" };
    // There is nowhere left to report that this failed.
    drop(environment::stderr().write_all(format!("{clear}{text}").as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_on_a_terminal_has_no_control_characters() {
        let safe =
            |text: &str| String::from_utf8(without_late_controls(text.as_bytes()).into_owned()).unwrap();
        assert_eq!(safe("\"é\u{7f}€\u{80}\u{9f}\u{a0}\"\n"), "\"é\\u007f€\\u0080\\u009f\u{a0}\"\n");
        assert_eq!(safe("\u{1b}[1mbold"), "\u{1b}[1mbold");
    }

    #[test]
    fn control_characters_in_untrusted_text_are_escaped() {
        let sanitized = |chunks: &[&[u8]]| {
            let mut output = UntrustedOutput { to_terminal: true, held_lead: false };
            String::from_utf8(chunks.iter().flat_map(|chunk| output.sanitize(chunk)).collect()).unwrap()
        };
        assert_eq!(sanitized(&[b"a\tb\n\x1b[2J\r\x07\x7f\0"]), "a\tb\n\\x1b[2J\\r\\x07\\x7f\\x00");
        assert_eq!(sanitized(&["é €\u{a0}À\u{80}\u{9f}²".as_bytes()]), "é €\u{a0}À\\xc2\\x80\\xc2\\x9f²");
        assert_eq!(sanitized(&[b"x\xc2", b"", b"\x9b2J\xc2", b"\xa9"]), "x\\xc2\\x9b2J©");
    }
}
