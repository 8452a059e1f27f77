//! The pipes to and from a handler that is kept.
//!
//! Nothing here blocks: what the handler does not read stays in memory, and what it writes is read as it comes.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use crate::model::answer::LONGEST;

/// How much is read at once, and how much between two looks at anything else.
const CHUNK: usize = 64 * 1024;
const MOST: usize = 16 * CHUNK;

/// The handler's ends of its pipes.
pub struct Ends {
    pub stdin: File,
    pub stdout: File,
    pub stderr: File,
}

/// The other ends.
pub struct Pipes {
    stdin: Option<File>,
    /// What is to be written to stdin, and how much of it was.
    outbox: Vec<u8>,
    written: usize,
    /// Stdin is closed once all is written.
    is_closing: bool,
    stdout: Source,
    stderr: Source,
}

struct Source {
    /// `None` once it has ended.
    pipe: Option<File>,
    /// The beginning of a line whose end has not come.
    line: Vec<u8>,
    /// The beginning of that line was too long to be kept.
    is_long: bool,
}

/// A part of what a handler wrote.
pub enum Output<'o> {
    /// A line of stdout, without its end.
    Line(&'o [u8]),
    /// Anything that is for people only.
    Text(&'o [u8]),
}

impl Pipes {
    pub fn new() -> io::Result<(Pipes, Ends)> {
        let pipe = |ours_reads: bool| {
            let (reader, writer) = io::pipe()?;
            let (reader, writer) = (File::from(OwnedFd::from(reader)), File::from(OwnedFd::from(writer)));
            let (ours, theirs) = if ours_reads { (reader, writer) } else { (writer, reader) };
            let flags = fcntl_getfl(&ours)?;
            fcntl_setfl(&ours, flags | OFlags::NONBLOCK)?;
            Ok::<_, io::Error>((ours, theirs))
        };
        let ((stdin, their_stdin), (stdout, their_stdout), (stderr, their_stderr)) =
            (pipe(false)?, pipe(true)?, pipe(true)?);
        let source = |pipe| Source { pipe: Some(pipe), line: Vec::new(), is_long: false };
        let pipes = Pipes {
            stdin: Some(stdin),
            outbox: Vec::new(),
            written: 0,
            is_closing: false,
            stdout: source(stdout),
            stderr: source(stderr),
        };
        Ok((pipes, Ends { stdin: their_stdin, stdout: their_stdout, stderr: their_stderr }))
    }

    /// Where lines for the handler are appended.
    pub fn outbox(&mut self) -> &mut Vec<u8> {
        &mut self.outbox
    }

    /// How many bytes the handler has not taken.
    pub fn untaken(&self) -> usize {
        self.outbox.len() - self.written
    }

    /// Writes what the handler takes now. If it has closed its stdin, the rest is dropped.
    pub fn write(&mut self) {
        self.stdin.take_if(|stdin| is_closed(stdin));
        while let Some(stdin) = self.stdin.as_mut().filter(|_| self.written < self.outbox.len()) {
            match stdin.write(&self.outbox[self.written..]) {
                Ok(taken) => self.written += taken,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.stdin = None,
            }
        }
        if self.stdin.is_none() || self.written == self.outbox.len() {
            self.outbox.clear();
            self.written = 0;
            if self.is_closing {
                self.stdin = None;
            }
        } else if self.written > self.outbox.len() / 2 {
            // While there is always more to give, it is never empty.
            self.outbox.drain(..self.written);
            self.written = 0;
        }
    }

    /// Whether the handler can be given anything.
    pub fn takes_input(&self) -> bool {
        self.stdin.is_some() && !self.is_closing
    }

    /// Whether the handler can answer.
    pub fn gives_output(&self) -> bool {
        self.stdout.pipe.is_some()
    }

    /// Closes stdin, once the handler has taken what it was given.
    pub fn close_stdin(&mut self) {
        self.is_closing = true;
        self.write();
    }

    /// Passes on what has come, a limited amount of it. Returns whether there may be more.
    pub fn read(&mut self, mut take: impl FnMut(Output<'_>)) -> bool {
        let more = self.stdout.read(&mut |part| take(part));
        let more_text = self.stderr.read(&mut |part| match part {
            Output::Line(line) => {
                take(Output::Text(line));
                take(Output::Text(b"\n"));
            }
            text => take(text),
        });
        more || more_text
    }

    /// What to wait for.
    pub fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let stdin = self.stdin.as_ref().filter(|_| self.untaken() > 0);
        let stdin = stdin.map(|stdin| PollFd::new(stdin, PollFlags::OUT));
        let sources = [&self.stdout, &self.stderr].into_iter().filter_map(|source| source.pipe.as_ref());
        stdin.into_iter().chain(sources.map(|pipe| PollFd::new(pipe, PollFlags::IN)))
    }
}

/// Whether the other end of a pipe that is written to is closed.
fn is_closed(pipe: &File) -> bool {
    let mut pipe = [PollFd::new(pipe, PollFlags::empty())];
    let ready = poll(&mut pipe, Some(&Timespec::default()));
    ready.is_ok_and(|ready| ready > 0) && pipe[0].revents().contains(PollFlags::ERR)
}

impl Source {
    fn read(&mut self, take: &mut dyn FnMut(Output<'_>)) -> bool {
        let mut room = [MaybeUninit::<u8>::uninit(); CHUNK];
        let mut total = 0;
        while let Some(pipe) = &self.pipe {
            if total >= MOST {
                return true;
            }
            match rustix::io::read(pipe, &mut room) {
                Ok((&mut [], _)) => {
                    self.pipe = None;
                    let rest = std::mem::take(&mut self.line);
                    if !rest.is_empty() {
                        take(Output::Line(&rest));
                    }
                }
                Ok((chunk, _)) => {
                    total += chunk.len();
                    self.split(chunk, take);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => self.pipe = None,
            }
        }
        false
    }

    fn split(&mut self, mut bytes: &[u8], take: &mut dyn FnMut(Output<'_>)) {
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            let (rest, line) = (&bytes[end + 1..], &bytes[..end]);
            if self.is_long {
                self.is_long = false;
                take(Output::Text(&bytes[..=end]));
            } else if self.line.is_empty() {
                take(Output::Line(line));
            } else {
                self.line.extend_from_slice(line);
                take(Output::Line(&self.line));
                self.line.clear();
            }
            bytes = rest;
        }
        if self.is_long {
            take(Output::Text(bytes));
            return;
        }
        self.line.extend_from_slice(bytes);
        if self.line.len() > LONGEST {
            // It cannot become an answer.
            self.is_long = true;
            take(Output::Text(&self.line));
            self.line.clear();
        }
    }
}
