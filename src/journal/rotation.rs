//! Setting long files aside: `events.jsonl` and `logs/thread.log` follow the same rule.
//!
//! A rotated file bears the UTC time of its rotation, so that names sort in the order of their
//! contents, whatever the clock does: a time that is not later than the newest name's is moved on.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use chrono::{DateTime, NaiveDateTime, TimeDelta, Utc};
use serde::Deserialize;

use super::MAX_LINES;
use crate::files::Files;
use crate::lock::Lock;

const STAMP: &str = "%Y%m%d-%H%M%S";

/// No line of the log is shorter: a time, a level and two brackets each.
const SHORTEST_LOG_LINE: u64 = 34;

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

/// How many bytes the JSONL copy in `dir` takes, its older parts included.
pub fn copy_bytes(dir: &Path) -> u64 {
    let older = names(dir, "events-", "jsonl").unwrap_or_default();
    let all = older.iter().map(String::as_str).chain(["events.jsonl"]);
    all.filter_map(|name| fs::metadata(dir.join(name)).ok()).map(|file| file.len()).sum()
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

/// The id of the last whole line in the rotated copies; 0 when there is none. Somebody may have
/// emptied a file instead of deleting it: then the one before tells.
pub fn last_id(dir: &Path) -> io::Result<i64> {
    for name in names(dir, "events-", "jsonl")?.iter().rev() {
        if let Some(id) = last_id_of(&dir.join(name))? {
            return Ok(id);
        }
    }
    Ok(0)
}

pub fn last_id_of(path: &Path) -> io::Result<Option<i64>> {
    #[derive(Deserialize)]
    struct Line {
        id: i64,
    }
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut size = 64 * 1024;
    loop {
        let mut tail = Vec::new();
        file.seek(SeekFrom::Start(length.saturating_sub(size)))?;
        (&file).take(size).read_to_end(&mut tail)?;
        let lines = tail.split(|&b| b == b'\n').rev();
        if let Some(line) = lines.filter_map(|line| serde_json::from_slice::<Line>(line).ok()).next() {
            return Ok(Some(line.id));
        }
        if size >= length {
            return Ok(None);
        }
        size = size.saturating_mul(16);
    }
}

/// Sets the log aside when it is long. Counting costs nothing while the log is too small to hold
/// that many lines, and then only what has come since the last count.
pub fn rotate_log(files: &Files) -> io::Result<()> {
    let path = files.log();
    let long_enough = |length: u64| length > MAX_LINES * SHORTEST_LOG_LINE;
    if !fs::metadata(&path).is_ok_and(|log| long_enough(log.len())) {
        return Ok(());
    }
    // Somebody else who counts will do.
    let Some(lock) = Lock::try_take(files.open_lock(&files.run("_log"))?)? else { return Ok(()) };
    let mut log = match File::open(&path) {
        // Somebody else was faster, and set it aside.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
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
        lines += chunk[..read].iter().filter(|&&b| b == b'\n').count() as u64;
    }
    if lines > MAX_LINES && long_enough(about.len()) {
        set_aside(&path, "thread-", "log")?;
    } else {
        let mut memory = lock.file();
        memory.set_len(0)?;
        memory.seek(SeekFrom::Start(0))?;
        memory.write_all(format!("{} {length} {lines}\n", about.ino()).as_bytes())?;
    }
    lock.release();
    Ok(())
}
