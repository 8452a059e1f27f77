//! Setting long files aside: the JSONL log, the log, and what handlers print follow the same rule.
//!
//! A rotated file bears the UTC time of its rotation, so that names sort in the order of their
//! contents, whatever the clock does: a time that is not later than the newest name's is moved on.

use std::io;
use std::path::Path;

use chrono::{Datelike, NaiveDateTime, TimeDelta, Utc};

use super::Files;

/// A file with more lines than this is set aside when the next push begins.
pub const MAX_LINES: u64 = 10_000;

const STAMP: &str = "%Y%m%d-%H%M%S";

/// The names `<stem><YYYYMMDD-HHmmss>.<extension>` in a directory of the thread, oldest first.
pub fn names(files: &Files, dir: &str, stem: &str, extension: &str) -> io::Result<Vec<String>> {
    let names = files.list(dir)?.into_iter().filter_map(|name| name.into_string().ok());
    let mut names: Vec<String> = names.filter(|name| stamp_of(name, stem, extension).is_some()).collect();
    names.sort();
    Ok(names)
}

fn stamp_of(name: &str, stem: &str, extension: &str) -> Option<NaiveDateTime> {
    let stamp = name.strip_prefix(stem)?.strip_suffix(extension)?.strip_suffix('.')?;
    (stamp.len() == 15).then(|| NaiveDateTime::parse_from_str(stamp, STAMP).ok()).flatten()
}

/// Renames a file to the next free such name beside it, and returns that. Nobody else may be rotating
/// the same file.
pub fn set_aside(files: &Files, name: &str, stem: &str, extension: &str) -> io::Result<String> {
    let dir = Path::new(name).parent().and_then(Path::to_str).unwrap_or_default();
    let taken = names(files, dir, stem, extension)?;
    let later = |name: &String| Some(stamp_of(name, stem, extension)? + TimeDelta::seconds(1));
    // A name at the end of all four-digit years has no later one.
    let after = taken.iter().filter_map(later).filter(|time| time.year() <= 9999).max();
    let mut time = after.map_or(Utc::now().naive_utc(), |after| after.max(Utc::now().naive_utc()));
    let aside = loop {
        let aside = format!("{stem}{}.{extension}", time.format(STAMP));
        if !taken.contains(&aside) {
            break aside;
        }
        time += TimeDelta::seconds(1);
    };
    files.rename(name, Path::new(dir).join(&aside))?;
    Ok(aside)
}
