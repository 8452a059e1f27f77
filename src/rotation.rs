//! Setting long files aside: the copy, the log, and what handlers print follow the same rule.
//!
//! A rotated file bears the UTC time of its rotation, so that names sort in the order of their
//! contents, whatever the clock does: a time that is not later than the newest name's is moved on.

use std::fs;
use std::io;
use std::path::Path;

use chrono::{DateTime, NaiveDateTime, TimeDelta, Utc};

/// A file with more lines than this is set aside when the next push begins.
pub const MAX_LINES: u64 = 10_000;

const STAMP: &str = "%Y%m%d-%H%M%S";

/// The name of the newest `<stem><YYYYMMDD-HHmmss>.<extension>` in `dir`, if there is one.
pub fn newest(dir: &Path, stem: &str, extension: &str) -> io::Result<Option<String>> {
    Ok(names(dir, stem, extension)?.pop())
}

/// All such names, oldest first.
pub fn names(dir: &Path, stem: &str, extension: &str) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(names),
        entries => entries?,
    };
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if stamp_of(&name, stem, extension).is_some() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn stamp_of(name: &str, stem: &str, extension: &str) -> Option<NaiveDateTime> {
    let stamp = name.strip_prefix(stem)?.strip_suffix(extension)?.strip_suffix('.')?;
    (stamp.len() == 15).then(|| NaiveDateTime::parse_from_str(stamp, STAMP).ok()).flatten()
}

/// Renames `path` to the next free name beside it, and answers with that name. Nobody else may be
/// rotating the same file.
pub fn set_aside(path: &Path, stem: &str, extension: &str) -> io::Result<String> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    let mut time: DateTime<Utc> = Utc::now();
    if let Some(last) = newest(dir, stem, extension)?.and_then(|name| stamp_of(&name, stem, extension)) {
        time = time.max(last.and_utc() + TimeDelta::seconds(1));
    }
    let name = format!("{stem}{}.{extension}", time.format(STAMP));
    fs::rename(path, dir.join(&name))?;
    Ok(name)
}
