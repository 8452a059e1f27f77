//! Reading a batch from stdin and parsing it.
//!
//! A pipe is read to its end before the write transaction begins, so that a slow producer holds no lock:
//! into memory up to a few MiB, beyond that into an unlinked file in the thread's directory, so that memory
//! stays bounded and nothing is left behind. A file never blocks, so it is read inside the transaction.

use std::io::{self, BufRead, BufReader, Cursor, IsTerminal, Read, Seek, Write};
use std::time::Duration;

use chrono::Utc;
use rustix::fs::FileType;

use super::progress::Progress;
use super::stdin::{self, NoteIfSlow};
use super::{capture, environment, output};
use crate::error::{Code, Error};
use crate::failure::{Result, WithHint, failed};
use crate::files::Files;
use crate::model::event::{Defaults, InvalidEvent, NewEvent};

/// Input from a pipe beyond this many bytes goes to a file.
const IN_MEMORY: usize = 4 * 1024 * 1024;

const CHUNK: usize = 256 * 1024;

/// Lines are parsed and stored in pieces of about this many bytes.
const PIECE: usize = 64 * 1024;

/// The longest line of a batch, in bytes: SQLite allows no longer row.
const MAX_LINE: usize = 1_000_000_000;

/// The longest line of --lines, in bytes: storing one takes three times as much memory.
const MAX_PLAIN_LINE: usize = 16 * 1024 * 1024;

/// The lines of a batch, readable without blocking on the producer.
pub struct Batch {
    input: Box<dyn Read>,
    /// Length of `input` in bytes.
    length: u64,
    pub lines: Lines,
    /// The source of the last event; `None` if there was none.
    pub last_source: Option<String>,
}

/// The lines parsed so far.
#[derive(Clone, Default)]
pub struct Lines {
    pub number: u64,
    /// The first key that means nothing in a batch, and its line.
    unknown_key: Option<(String, u64)>,
}

/// How to read a line.
pub enum LineFormat {
    /// A JSON object, with defaults for missing fields.
    Json(Defaults),
    /// The content of an event that is otherwise a copy of this one, and expires after this time. Empty lines are
    /// skipped.
    Content(NewEvent<'static>, Option<Duration>),
}

impl LineFormat {
    /// The longest line, in bytes.
    pub fn max_line(&self) -> usize {
        match self {
            LineFormat::Json(_) => MAX_LINE,
            LineFormat::Content(..) => MAX_PLAIN_LINE,
        }
    }

    /// Parses a line; `None` if it is empty. Calls `unknown` with each key that means nothing.
    fn read<'a>(
        &'a self,
        line: &'a [u8],
        unknown: &mut dyn FnMut(&str),
    ) -> std::result::Result<Option<NewEvent<'a>>, InvalidEvent> {
        match self {
            LineFormat::Json(defaults) => match line.trim_ascii() {
                [] => Ok(None),
                text => NewEvent::from_json(text, defaults, unknown).map(Some),
            },
            LineFormat::Content(like, expires) => {
                let line = line.strip_suffix(b"\n").unwrap_or(line);
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                let text =
                    std::str::from_utf8(line).map_err(|_| InvalidEvent("is not valid UTF-8".into()))?;
                if text.is_empty() {
                    return Ok(None);
                }
                let event = NewEvent { content: text.into(), ..like.clone() };
                match expires {
                    Some(after) => event.with_expiry(*after, Utc::now()).map(Some),
                    None => Ok(Some(event)),
                }
            }
        }
    }
}

impl Lines {
    /// Parses the next line; `None` if it is empty.
    ///
    /// # Errors
    ///
    /// The line is not an event.
    pub fn parse<'a>(
        &mut self,
        mut line: &'a [u8],
        format: &'a LineFormat,
    ) -> std::result::Result<Option<NewEvent<'a>>, InvalidEvent> {
        self.number += 1;
        if self.number == 1 {
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        let (unknown_key, number) = (&mut self.unknown_key, self.number);
        match line.len() {
            length if length <= format.max_line() => format.read(line, &mut |key| {
                unknown_key.get_or_insert_with(|| (key.to_owned(), number));
            }),
            _ => Err(InvalidEvent(format!("is longer than {} bytes", format.max_line()))),
        }
    }

    /// Warns about a key that means nothing, unless that was done before.
    pub fn warn_of_unknown_key(&self, warned: &mut bool) {
        let Some((key, line)) = self.unknown_key.as_ref().filter(|_| !*warned) else { return };
        *warned = true;
        let key = output::plain(key);
        output::warn(format_args!("the key '{key}' on line {line} means nothing here and was not stored"));
    }
}

/// Fails if this process was started without a stdin.
pub fn must_have_input() -> Result<()> {
    match stdin::is_closed() {
        false => Ok(()),
        true => failed(
            Code::Io,
            "cannot read the batch from stdin, which is closed or not connected to anything",
            "give it a file or a pipe; nothing was stored",
        ),
    }
}

impl Batch {
    /// Uses stdin directly if it is a file, else reads it to its end.
    pub fn open(files: &Files) -> Result<Batch> {
        must_have_input()?;
        if let Some(input) = capture::take_input() {
            let length = input.len() as u64;
            let input = Box::new(Cursor::new(input));
            return Ok(Batch { input, length, lines: Lines::default(), last_source: None });
        }
        let (input, length) = match length_of_file(&environment::stdin()) {
            Some(length) => (Box::new(environment::stdin()) as Box<dyn Read>, length),
            None => spool(files)?,
        };
        Ok(Batch { input, length, lines: Lines::default(), last_source: None })
    }

    /// Passes the events to `take`, in order, some at a time.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidLine`] for the first line that is not an event, counted from 1, blank lines
    /// included; read errors, and those of `take`.
    pub fn for_each(
        &mut self,
        format: &LineFormat,
        take: &mut dyn FnMut(&[NewEvent<'_>]) -> crate::Result<()>,
    ) -> crate::Result<()> {
        let mut input = BufReader::with_capacity(CHUNK, &mut self.input);
        let mut progress = Progress::of("storing the batch", Some(self.length));
        let (mut text, mut ends) = (Vec::new(), Vec::new());
        loop {
            text.clear();
            ends.clear();
            while text.len() < PIECE && read_line(&mut input, &mut text, format.max_line())? {
                ends.push(text.len());
            }
            if ends.is_empty() {
                return Ok(());
            }
            let mut events = Vec::with_capacity(ends.len());
            let mut start = 0;
            for &end in &ends {
                let event = self.lines.parse(&text[start..end], format);
                let line = self.lines.number;
                events.extend(event.map_err(|problem| Error::InvalidLine { line, problem })?);
                start = end;
            }
            if let Some(last) = events.last() {
                self.last_source = Some(last.source.clone().into_owned());
            }
            take(&events)?;
            progress.advance(text.len() as u64);
        }
    }
}

/// Appends a line, or the beginning of one that is too long. Returns false at the end of the input.
fn read_line(input: &mut impl BufRead, text: &mut Vec<u8>, max_line: usize) -> crate::Result<bool> {
    let read = input.take(max_line as u64 + 1).read_until(b'\n', text);
    read.map(|read| read > 0)
        .map_err(|e| Error::Other(format!("cannot read the batch, nothing was stored: {e}")))
}

/// The unread bytes of a regular file. `None` if stdin is not one, or has length 0: it may be generated by
/// the kernel, and reading it may block.
fn length_of_file(stdin: &io::Stdin) -> Option<u64> {
    let about = rustix::fs::fstat(stdin).ok()?;
    let is_file = FileType::from_raw_mode(about.st_mode).is_file();
    let size = u64::try_from(about.st_size).ok().filter(|size| is_file && *size > 0)?;
    Some(size.saturating_sub(rustix::fs::tell(stdin).unwrap_or(0)))
}

/// Reads stdin to its end. Returns a reader of what was read, and its length in bytes.
fn spool(files: &Files) -> Result<(Box<dyn Read>, u64)> {
    let (cannot_keep, hint) =
        ("cannot keep the batch, nothing was stored", "free some space, then push again");
    let mut stdin = environment::stdin().lock();
    // No progress between the lines of a user who types.
    let mut progress = Progress::of("reading the batch", None).only_if(!environment::stdin().is_terminal());
    let (mut chunk, mut length) = (vec![0; CHUNK], 0);
    let (mut memory, mut file) = (Vec::new(), None);
    let mut note =
        NoteIfSlow::new("nothing is stored before the end of the input; --follow stores lines as they come");
    loop {
        note.before_read();
        let read = match stdin.read(&mut chunk) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            read => read.with_hint("cannot read the batch, nothing was stored", "push again")?,
        };
        if read == 0 {
            break;
        }
        memory.extend_from_slice(&chunk[..read]);
        if memory.len() > IN_MEMORY && file.is_none() {
            file = Some(files.make_unnamed_file("run").with_hint(cannot_keep, hint)?);
        }
        if let Some(file) = &mut file {
            file.write_all(&memory).with_hint(cannot_keep, hint)?;
            memory.clear();
        }
        length += read as u64;
        progress.advance(memchr::memchr_iter(b'\n', &chunk[..read]).count() as u64);
    }
    let Some(mut file) = file else { return Ok((Box::new(Cursor::new(memory)), length)) };
    file.rewind().with_hint(cannot_keep, hint)?;
    Ok((Box::new(file), length))
}
