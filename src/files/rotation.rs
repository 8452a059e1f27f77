//! Rotating long files: the JSONL log, the thread's log and the logs of handlers follow the same rule.
//!
//! A rotated file's name contains the UTC time of its rotation. Names sort in the order of their contents
//! even if the clock is set back: each time is at least a second later than the newest existing one.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use chrono::{Datelike, NaiveDateTime, TimeDelta, Utc};

use super::{Access, Files};
use crate::model::time::Time;

/// A file with more lines than this is rotated by the next push.
pub const MAX_LINES: u64 = 10_000;

/// How many bytes are kept of a rotated log: its end, in whole lines.
pub const MAX_LOG: u64 = 10 * 1024 * 1024;

const TIME_FORMAT: &str = "%Y%m%d-%H%M%S";

/// The names `<stem><YYYYMMDD-HHmmss>.<extension>` in a directory of the thread, oldest first.
pub fn names(files: &Files, dir: &str, stem: &str, extension: &str) -> io::Result<Vec<String>> {
    let names = files.list(dir)?.into_iter().filter_map(|name| name.into_string().ok());
    let mut names: Vec<String> = names.filter(|name| time_of(name, stem, extension).is_some()).collect();
    names.sort();
    Ok(names)
}

/// The time in the name of a rotated file; `None` for any other name.
pub fn time_of(name: &str, stem: &str, extension: &str) -> Option<Time> {
    let stamp = name.strip_prefix(stem)?.strip_suffix(extension)?.strip_suffix('.')?;
    let time = NaiveDateTime::parse_from_str(stamp, TIME_FORMAT).ok().filter(|_| stamp.len() == 15);
    Some(time?.and_utc())
}

/// Rotates a log, as [`set_aside`] does, cuts it to [`MAX_LOG`], and removes all but the newest `keep`
/// rotated logs.
pub fn set_log_aside(files: &Files, name: &str, stem: &str, keep: usize) -> io::Result<()> {
    let dir = Path::new(name).parent().unwrap_or(Path::new(""));
    let aside = set_aside(files, name, stem, "log")?;
    keep_end(files, &dir.join(aside))?;
    remove_logs(files, &dir.to_string_lossy(), stem, keep)
}

/// Removes all but the newest `keep` rotated logs of a stem.
pub fn remove_logs(files: &Files, dir: &str, stem: &str, keep: usize) -> io::Result<()> {
    let all = names(files, dir, stem, "log")?;
    let old = all.len().saturating_sub(keep);
    all[..old].iter().try_for_each(|old| files.remove(Path::new(dir).join(old)))
}

/// Cuts a log to its last whole lines, at most [`MAX_LOG`] bytes. In place, because a process that a handler
/// left behind may still be writing to it.
fn keep_end(files: &Files, name: &Path) -> io::Result<()> {
    let mut log = files.open_file(name, Access::Append)?;
    let length = log.metadata()?.len();
    if length <= MAX_LOG {
        return Ok(());
    }
    log.seek(SeekFrom::Start(length - MAX_LOG))?;
    let mut end = Vec::new();
    (&log).take(MAX_LOG).read_to_end(&mut end)?;
    let line = memchr::memchr(b'\n', &end).map_or(0, |at| at + 1);
    log.set_len(0)?;
    log.write_all(&end[line..])
}

/// Renames a file to the next free name for a rotated one, in the same directory, and returns that name. The
/// caller must ensure that no other process is rotating the same file.
pub fn set_aside(files: &Files, name: &str, stem: &str, extension: &str) -> io::Result<String> {
    let dir = Path::new(name).parent().and_then(Path::to_str).unwrap_or_default();
    let taken = names(files, dir, stem, extension)?;
    let later = |name: &String| Some(time_of(name, stem, extension)? + TimeDelta::seconds(1));
    // There is no later name after the end of the year 9999.
    let later = taken.iter().filter_map(later).filter(|time| time.year() <= 9999);
    let mut time = later.fold(Utc::now(), Time::max);
    let named = |time: Time| format!("{stem}{}.{extension}", time.format(TIME_FORMAT));
    while taken.contains(&named(time)) {
        time += TimeDelta::seconds(1);
    }
    let aside = named(time);
    files.rename(name, Path::new(dir).join(&aside))?;
    Ok(aside)
}
