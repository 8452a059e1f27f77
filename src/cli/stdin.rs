//! Stdin: whether something is there to be read, and notes to a user who may wait for nothing.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags};

use super::{capture, environment, output};

/// How long a read may take before its note.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whether this process was started without a stdin. If it is closed, the runtime opens `/dev/null` for
/// reading and writing in its place, as do other programs that start one without a stdin; a shell's
/// `</dev/null` is for reading only.
///
/// A stdin open for writing only counts as closed too: the runtime reads it as empty.
pub fn is_closed() -> bool {
    if let Some(has_input) = capture::has_input() {
        return !has_input;
    }
    let null = rustix::fs::stat("/dev/null").map(|null| null.st_rdev);
    let stdin = rustix::fs::fstat(environment::stdin()).map(|stdin| stdin.st_rdev);
    let mode = rustix::fs::fcntl_getfl(environment::stdin()).map(|flags| flags & OFlags::RWMODE);
    mode == Ok(OFlags::WRONLY) || stdin.is_ok() && stdin == null && mode == Ok(OFlags::RDWR)
}

fn file_type() -> Option<FileType> {
    rustix::fs::fstat(environment::stdin()).ok().map(|about| FileType::from_raw_mode(about.st_mode))
}

pub fn is_a_pipe() -> bool {
    !capture::is_on() && file_type().is_some_and(|kind| kind.is_fifo())
}

/// Whether someone has connected stdin to something that has an end: a pipe, a socket or a file.
pub fn is_given() -> bool {
    capture::has_input().unwrap_or_else(is_connected)
}

fn is_connected() -> bool {
    file_type().is_some_and(|kind| kind.is_fifo() || kind.is_socket() || kind.is_file())
}

/// A note that appears once, if stdin has not ended after two seconds.
pub struct NoteIfSlow {
    /// `None` once it has appeared.
    due: Option<Instant>,
    text: &'static str,
}

impl NoteIfSlow {
    pub fn new(text: &'static str) -> NoteIfSlow {
        NoteIfSlow { due: Some(Instant::now() + PATIENCE), text }
    }

    /// Called before each read. Returns when that does not block, or once the note has appeared.
    pub fn before_read(&mut self) {
        let Some(due) = self.due else { return };
        let stdin = environment::stdin();
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                output::note(self.text);
                self.due = None;
                return;
            }
            let timeout = Timespec::try_from(left).ok();
            match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], timeout.as_ref()) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                // Reading tells what is wrong.
                Ok(_) | Err(_) => return,
            }
        }
    }
}
