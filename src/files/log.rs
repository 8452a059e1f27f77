//! The thread's log, `logs/thread.log`, one line per entry.
//!
//! Logging never fails a command: lines that cannot be written are dropped. Lines cannot be forged:
//! control characters, which could start a new line or control the terminal, are escaped.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};

use super::lock::Lock;
use super::rotation::{self, MAX_LINES, MAX_LOG};
use super::{Access, Files, LOG};
use crate::error::IoContext;
use crate::model::time;

/// Lower bound for the length of a line, in bytes: the time and the level, each in brackets.
const SHORTEST_LINE: u64 = 34;

/// How many rotated logs are kept.
const KEPT: usize = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Info,
    Warn,
    Error,
}

impl Files {
    /// Appends one line `[time] [LEVEL] text` to the thread's log.
    pub fn log(&self, level: Level, text: impl fmt::Display) {
        #[cfg(all(test, target_os = "linux"))]
        if super::simulated::system().is_some() {
            return;
        }
        let level = format!("{level:?}").to_uppercase();
        let mut line = format!("[{}] [{level}] {}\n", time::now(), Escaped(&text.to_string()));
        if let Ok(mut file) = self.open_file(LOG, Access::Append) {
            // A full disk may have cut the last line short.
            let mut last = *b"\n";
            let end = file.metadata().map_or(0, |log| log.len());
            if end > 0 && file.read_at(&mut last, end - 1).is_ok() && last != *b"\n" {
                line.insert(0, '\n');
            }
            // A single write, so that lines of several processes do not mix.
            drop(file.write_all(line.as_bytes()));
        }
    }
}

/// Writes a line to a thread's log: `log!(queue, Warn, "push: {e}")`.
macro_rules! log {
    ($thread:expr, $level:ident, $($text:tt)+) => {
        $thread.log($crate::files::log::Level::$level, format_args!($($text)+))
    };
}
pub(crate) use log;

/// Rotates the log if it has more than [`MAX_LINES`] lines or [`MAX_LOG`] bytes. Lines are counted
/// only once the log is large enough to hold that many, and then only those written since the last count.
pub fn rotate(files: &Files) -> io::Result<()> {
    let long_enough = |length: u64| length > MAX_LINES * SHORTEST_LINE;
    if !long_enough(files.size(LOG)) {
        return Ok(());
    }
    // If the lock is held, another process is counting already.
    let Some(lock) = Lock::try_take_file(files.open_lock("run/_log")?)? else { return Ok(()) };
    // Otherwise, another process has just rotated it.
    let Some(mut log) = files.open_file(LOG, Access::Read).if_there()? else { return Ok(()) };
    let about = log.metadata()?;
    let mut text = String::new();
    lock.file().take(256).read_to_string(&mut text)?;
    let known: Vec<u64> = text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect();
    let (mut length, mut lines) = match known[..] {
        [inode, length, lines] if inode == about.ino() && length <= about.len() => (length, lines),
        _ => (0, 0),
    };
    log.seek(SeekFrom::Start(length))?;
    let mut chunk = vec![0; 64 * 1024];
    loop {
        let read = log.read(&mut chunk)?;
        if read == 0 {
            break;
        }
        length += read as u64;
        lines += memchr::memchr_iter(b'\n', &chunk[..read]).count() as u64;
    }
    if (lines > MAX_LINES && long_enough(about.len())) || about.len() > MAX_LOG {
        rotation::set_log_aside(files, LOG, "thread-", KEPT)?;
    } else {
        lock.file().set_len(0)?;
        lock.file().write_all_at(format!("{} {length} {lines}\n", about.ino()).as_bytes(), 0)?;
    }
    lock.release();
    Ok(())
}

/// Text with control characters, line separators and characters that reorder text escaped, so that it
/// stays on one line.
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match is_unsafe(c) {
            true => write!(f, "{}", c.escape_default()),
            false => write!(f, "{c}"),
        })
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

/// The longest command in a line, in bytes: one is written for each run of a handler.
const LONGEST_COMMAND: usize = 64;

/// A command for a line of the log, without the middle of a long one.
pub fn abridged(command: &str) -> Cow<'_, str> {
    if command.len() <= LONGEST_COMMAND {
        return command.into();
    }
    let begin = command.floor_char_boundary(LONGEST_COMMAND / 2);
    let end = command.ceil_char_boundary(command.len() - LONGEST_COMMAND / 2);
    format!("{}…{}", &command[..begin], &command[end..]).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_command_the_beginning_and_the_end_are_logged() {
        let whole = "é".repeat(LONGEST_COMMAND / 2);
        assert_eq!(abridged(&whole), whole);
        let long = format!("PATH={} exec {}agent --fast", "/bin:".repeat(100), "é".repeat(99));
        let shown = abridged(&long);
        assert!(shown.starts_with("PATH=/bin:/bin:") && shown.ends_with("éagent --fast"), "{shown}");
        assert!(shown.contains('…') && shown.len() <= LONGEST_COMMAND + '…'.len_utf8(), "{shown}");
    }

    #[test]
    fn a_line_that_was_cut_short_is_not_joined_with_the_next() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("logs")).unwrap();
        std::fs::write(root.path().join("events.db"), "").unwrap();
        let files = Files::open(root.path()).unwrap();
        files.log(Level::Info, "first");
        files.open_file(LOG, Access::Append).unwrap().write_all(b"[2026-01-01T00:0").unwrap();
        files.log(Level::Info, "second");
        files.log(Level::Info, "third");
        let log = std::fs::read_to_string(files.path_of(LOG)).unwrap();
        let ends: Vec<&str> = log.lines().map(|line| line.rsplit(' ').next().unwrap()).collect();
        assert_eq!(ends, ["first", "[2026-01-01T00:0", "second", "third"]);
        assert!(log.ends_with("third\n"));
    }
}
