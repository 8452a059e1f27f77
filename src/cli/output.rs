//! All printing. Data goes to stdout, everything else to stderr.
//!
//! Nothing here panics: stdout and stderr may be closed, full, or a pipe whose reader has gone. A
//! reader that left early has what it wanted and is not an error.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::AtomicBool;

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use serde_json::json;

use super::error::{Failure, Result, WithHint};
use crate::files::log::Escaped;

/// Whether anybody still reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    There,
    /// The pipe was closed: there is no point in printing more.
    Gone,
}

/// Whether a progress line is on the terminal now, which is to be cleared first by whatever else is written there.
pub static PROGRESS_DRAWN: AtomicBool = AtomicBool::new(false);

/// Clears the line.
pub const CLEAR_LINE: &str = "\r\x1b[K";

/// Prints bytes to stdout.
pub fn bytes(data: &[u8]) -> Result<Reader> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(data).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(Reader::There),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(e) => Err(e).with_hint("cannot write to stdout", "check where stdout goes"),
    }
}

/// What others wrote, printed as it is. On a terminal its control characters, other than line ends
/// and tabs, stand as text, so that nothing in it moves the cursor or colours the screen.
pub struct Foreign {
    to_terminal: bool,
    /// [`BEGIN`] came last. It waits for what follows: to U+009F these are control characters too.
    begun: bool,
}

/// What U+0080 to U+00BF begin with in UTF-8.
const BEGIN: u8 = 0xc2;

impl Foreign {
    pub fn to_stdout() -> Foreign {
        Foreign { to_terminal: io::stdout().is_terminal(), begun: false }
    }

    /// Prints what comes next.
    pub fn print(&mut self, chunk: &[u8]) -> Result<Reader> {
        if self.to_terminal { bytes(&self.tamed(chunk)) } else { bytes(chunk) }
    }

    fn tamed(&mut self, chunk: &[u8]) -> Vec<u8> {
        let mut tamed = Vec::with_capacity(chunk.len());
        for &byte in chunk {
            let begun = std::mem::replace(&mut self.begun, byte == BEGIN);
            if begun && matches!(byte, 0x80..=0x9f) {
                tamed.extend([BEGIN, byte].escape_ascii());
                continue;
            }
            tamed.extend(begun.then_some(BEGIN));
            match byte {
                BEGIN => (),
                b'\n' | b'\t' => tamed.push(byte),
                _ if byte.is_ascii_control() => tamed.extend(byte.escape_ascii()),
                _ => tamed.push(byte),
            }
        }
        tamed
    }
}

/// One line that others wrote, as [`Foreign`] prints it on a terminal.
pub fn tame(line: &str) -> String {
    let tamed = Foreign { to_terminal: true, begun: false }.tamed(line.as_bytes());
    String::from_utf8_lossy(&tamed).into_owned()
}

/// Whether the reader of stdout has gone, which is noticed without writing to it.
pub fn reader_is_gone() -> bool {
    let stdout = io::stdout();
    let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
    // A terminal or file never reports an error here.
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).ok();
    polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL)
}

/// Whether what is printed to stdout is seen by nobody now: it goes to a file, say, and neither to
/// a terminal nor through a pipe to a program that may well print to one.
pub fn is_put_away() -> bool {
    rustix::fs::fstat(io::stdout()).is_ok_and(|about| match FileType::from_raw_mode(about.st_mode) {
        FileType::RegularFile => true,
        FileType::CharacterDevice => !io::stdout().is_terminal(),
        _ => false,
    })
}

/// Prints one line to stdout.
pub fn line(text: impl fmt::Display) -> Result<()> {
    bytes(format!("{text}\n").as_bytes()).map(drop)
}

/// Whether to colour what goes to this stream: on a terminal, unless `NO_COLOR`, `CLICOLOR` or
/// `TERM=dumb` say no, or `CLICOLOR_FORCE` says yes; `--color` decides before them.
pub fn coloured<S: RawStream>(stream: &S) -> bool {
    AutoStream::choice(stream) != ColorChoice::Never
}

/// Text in a style, where it is to be coloured.
pub fn styled(text: impl fmt::Display, style: Style, coloured: bool) -> String {
    if coloured { format!("{style}{text}{style:#}") } else { text.to_string() }
}

/// Prints help to stdout, in colour where that is a terminal.
pub fn help(text: &clap::builder::StyledStr) -> Result<()> {
    let coloured = coloured(&io::stdout());
    bytes(if coloured { text.ansi().to_string() } else { text.to_string() }.as_bytes()).map(drop)
}

/// Text of others, made fit for a terminal: nothing in it moves the cursor or colours the line.
pub fn plain(text: &str) -> Escaped<'_> {
    Escaped(text)
}

/// Prints a warning to stderr.
pub fn warn(text: impl fmt::Display) {
    to_stderr(&format!("Warning: {}\n", Escaped(&text.to_string())));
}

/// Prints to stderr what is good to know and no cause for concern.
pub fn note(text: impl fmt::Display) {
    to_stderr(&format!("Note: {}\n", Escaped(&text.to_string())));
}

/// Prints a failure to stderr, in one line: for people, or as JSON.
pub fn failure(failure: &Failure, as_json: bool) {
    to_stderr(&failure_line(failure, as_json));
}

/// That line, with its end.
pub fn failure_line(failure: &Failure, as_json: bool) -> String {
    if as_json {
        return json!({ "error": failure.what, "suggestion": failure.hint }).to_string() + "\n";
    }
    let label = styled("Error:", AnsiColor::Red.on_default().bold(), coloured(&io::stderr()));
    format!("{label} {}\n", Escaped(&failure.to_string()))
}

/// Prints text of ours to stderr.
pub fn to_stderr(text: &str) {
    // There is nowhere left to say that this failed.
    drop(io::stderr().write_all(text.as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_others_wrote_drives_the_terminal() {
        let tamed = |chunks: &[&[u8]]| {
            let mut foreign = Foreign { to_terminal: true, begun: false };
            String::from_utf8(chunks.iter().flat_map(|chunk| foreign.tamed(chunk)).collect()).unwrap()
        };
        assert_eq!(tamed(&[b"a\tb\n\x1b[2J\r\x07\x7f\0"]), "a\tb\n\\x1b[2J\\r\\x07\\x7f\\x00");
        assert_eq!(tamed(&["é €\u{a0}À\u{80}\u{9f}²".as_bytes()]), "é €\u{a0}À\\xc2\\x80\\xc2\\x9f²");
        assert_eq!(tamed(&[b"x\xc2", b"", b"\x9b2J\xc2", b"\xa9"]), "x\\xc2\\x9b2J©");
    }
}
