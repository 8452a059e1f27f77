//! Setting long files aside: the JSONL log, the log, and what handlers print follow the same rule.
//!
//! A rotated file's name has the UTC time of its rotation, so that names sort in the order of their
//! contents, whatever the clock does: a time that is not later than the newest name's is moved on.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use chrono::{Datelike, NaiveDateTime, TimeDelta, Utc};

use super::{Access, Files};
use crate::model::time::Time;

/// A file with more lines than this is set aside when the next push begins.
pub const MAX_LINES: u64 = 10_000;

/// How much is kept of a log that is set aside: its last bytes, in whole lines.
pub const MAX_LOG: u64 = 10 * 1024 * 1024;

const STAMP: &str = "%Y%m%d-%H%M%S";

/// The names `<stem><YYYYMMDD-HHmmss>.<extension>` in a directory of the thread, oldest first.
pub fn names(files: &Files, dir: &str, stem: &str, extension: &str) -> io::Result<Vec<String>> {
    let names = files.list(dir)?.into_iter().filter_map(|name| name.into_string().ok());
    let mut names: Vec<String> = names.filter(|name| time_of(name, stem, extension).is_some()).collect();
    names.sort();
    Ok(names)
}

/// When such a file was set aside, as its name says; `None` for any other name.
pub fn time_of(name: &str, stem: &str, extension: &str) -> Option<Time> {
    let stamp = name.strip_prefix(stem)?.strip_suffix(extension)?.strip_suffix('.')?;
    let time = NaiveDateTime::parse_from_str(stamp, STAMP).ok().filter(|_| stamp.len() == 15);
    Some(time?.and_utc())
}

/// Sets a log aside, as [`set_aside`] does, and keeps the newest `keep` of those that were, each with
/// [`MAX_LOG`] of its end.
pub fn set_log_aside(files: &Files, name: &str, stem: &str, keep: usize) -> io::Result<()> {
    let dir = Path::new(name).parent().unwrap_or(Path::new(""));
    let aside = set_aside(files, name, stem, "log")?;
    keep_end(files, &dir.join(aside))?;
    let all = names(files, &dir.to_string_lossy(), stem, "log")?;
    let old = all.len().saturating_sub(keep);
    all[..old].iter().try_for_each(|old| files.remove(dir.join(old)))
}

/// Cuts a log to the last whole lines that [`MAX_LOG`] holds. In place, because a process that a handler
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

/// Renames a file to the next free such name beside it, and returns that. Nobody else may be rotating
/// the same file.
pub fn set_aside(files: &Files, name: &str, stem: &str, extension: &str) -> io::Result<String> {
    let dir = Path::new(name).parent().and_then(Path::to_str).unwrap_or_default();
    let taken = names(files, dir, stem, extension)?;
    let later = |name: &String| Some(time_of(name, stem, extension)? + TimeDelta::seconds(1));
    // A name at the end of all four-digit years has no later one.
    let later = taken.iter().filter_map(later).filter(|time| time.year() <= 9999);
    let mut time = later.fold(Utc::now(), Time::max);
    let named = |time: Time| format!("{stem}{}.{extension}", time.format(STAMP));
    while taken.contains(&named(time)) {
        time += TimeDelta::seconds(1);
    }
    let aside = named(time);
    files.rename(name, Path::new(dir).join(&aside))?;
    Ok(aside)
}
