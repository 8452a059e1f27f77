//! `events.jsonl`, the copy for people: a projection of the table.
//!
//! The rotated files and then `events.jsonl`, read in order, are exactly the rows that were ever
//! stored, by id, one line each. Nobody appends "his" event. Whoever pushed takes the writer's
//! lock and writes whatever the table has beyond the last line, his own event and anybody else's:
//! so no line is missing, doubled or out of order, however many push at once and wherever one was
//! killed.
//!
//! What the writer knows of the file stands in the lock file itself, `run/_journal`. As long as the
//! file is just as that says (inode, length, modification time), only what is new is looked at.
//! Anything else — a writer that was killed, a hand that edited, a restored copy — makes the next
//! writer compare the file with the table from the beginning, keep what agrees and write the rest
//! again. After a reboot it compares from the last synced length on, at the least.

mod audit;
mod rotation;

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use serde::{Deserialize, Serialize};
use sha1::{Digest, Sha1};

pub use audit::{Audit, Faults, audit, repair};
pub use rotation::{copy_bytes, rotate_log, set_aside};

use crate::files::{self, Files};
use crate::lock::Lock;
use crate::process;
use crate::store::{Reading, Store};

/// A file with more lines than this is rotated when the next push begins.
pub const MAX_LINES: u64 = 10_000;

/// How long a push waits for another that is writing the copy.
const PATIENCE: Duration = Duration::from_secs(20);

/// When this many bytes have been appended since the last sync, they are synced.
const SYNC_STEP: u64 = 1024 * 1024;

/// A place in `events.jsonl`: everything before it agrees with the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Place {
    bytes: u64,
    lines: u64,
    /// The id of the last event before it.
    id: i64,
}

/// What the last writer knew. Of no use when it does not fit the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    boot: String,
    inode: u64,
    /// Modification time in nanoseconds since 1970.
    modified: i64,
    /// The id of the last event in the rotated files; this file begins after it.
    base: i64,
    /// The newest rotated file when this was written.
    rotated: Option<String>,
    end: Place,
    synced: Place,
}

/// Brings the copy up to date with the table, rotating it first when it is long.
///
/// # Errors
///
/// The copy is then behind or torn; the next call mends it.
pub fn catch_up(files: &Files, store: &mut Store) -> anyhow::Result<()> {
    let path = files.run("_journal");
    let lock = files
        .open_lock(&path)
        .and_then(|file| Lock::take(file, PATIENCE))
        .with_context(|| format!("cannot lock {}", path.display()))?
        .ok_or_else(|| anyhow!("another process has been writing events.jsonl for too long"))?;
    let result = Writer::open(files, lock.file()).and_then(|mut writer| writer.run(store));
    lock.release();
    result.with_context(|| format!("cannot write {}", files.jsonl().display()))
}

/// The rotated files of the copy in `dir`, oldest first.
pub fn rotated(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let names = rotation::names(dir, "events-", "jsonl")?;
    Ok(names.into_iter().map(|name| dir.join(name)).collect())
}

/// The first file in `dir` that holds lines of a copy, if any does.
pub fn lines_in(dir: &Path) -> Option<PathBuf> {
    let current = dir.join("events.jsonl");
    if std::fs::metadata(&current).is_ok_and(|file| file.len() > 0) {
        return Some(current);
    }
    rotation::newest(dir, "events-", "jsonl").ok().flatten().map(|name| dir.join(name))
}

struct Writer<'a> {
    files: &'a Files,
    /// The lock file, which holds the state.
    memory: &'a File,
    jsonl: File,
    state: State,
}

impl<'a> Writer<'a> {
    /// Opens the copy and finds out how much of it is known to be right.
    fn open(files: &'a Files, memory: &'a File) -> anyhow::Result<Writer<'a>> {
        let remembered = read_state(memory);
        let jsonl = open_jsonl(files)?;
        let about = jsonl.metadata()?;
        let boot = process::boot_id();
        if let Some(state) = &remembered
            && state.inode == about.ino()
        {
            let untouched = state.end.bytes == about.len() && state.modified == modified(&about);
            // Even then, what was not synced before a reboot may be anything now.
            let end = if state.boot == boot { state.end } else { state.synced };
            if untouched {
                let state = State { boot, end, ..state.clone() };
                return Ok(Writer { files, memory, jsonl, state });
            }
        }
        let rotated = rotation::newest(files.dir(), "events-", "jsonl")?;
        let base = match known_base(&remembered, &rotated) {
            Some(base) => base,
            None => rotation::last_id(files.dir())?,
        };
        let start = Place { id: base, ..Place::default() };
        let state = State { boot, inode: about.ino(), modified: 0, base, rotated, end: start, synced: start };
        Ok(Writer { files, memory, jsonl, state })
    }

    fn run(&mut self, store: &mut Store) -> anyhow::Result<()> {
        self.keep_what_agrees(store)?;
        if self.state.end.lines > MAX_LINES {
            self.rotate()?;
        }
        self.append(store)?;
        self.remember()
    }

    /// Compares what lies past the known place with the table and cuts off what does not agree.
    fn keep_what_agrees(&mut self, store: &mut Store) -> anyhow::Result<()> {
        let length = self.jsonl.metadata()?.len();
        if length == self.state.end.bytes {
            return Ok(());
        }
        self.jsonl.seek(SeekFrom::Start(self.state.end.bytes))?;
        let mut found = BufReader::with_capacity(64 * 1024, &self.jsonl);
        let (mut line, mut there) = (Vec::new(), Vec::new());
        let mut reading = Reading { after: self.state.end.id, left: None, filter: None };
        let mut trouble = None;
        let mut agrees = true;
        while agrees {
            let end = &mut self.state.end;
            let more = store.read_rows(&mut reading, |row| {
                line.clear();
                row.write_line(&mut line);
                there.resize(line.len(), 0);
                agrees = match found.read_exact(&mut there) {
                    Ok(()) => there == line,
                    Err(e) => {
                        trouble = (e.kind() != io::ErrorKind::UnexpectedEof).then_some(e);
                        false
                    }
                };
                if agrees {
                    *end = Place { bytes: end.bytes + line.len() as u64, lines: end.lines + 1, id: row.id };
                }
                agrees
            })?;
            if !more {
                break;
            }
        }
        if let Some(e) = trouble {
            return Err(e.into());
        }
        if self.state.end.bytes < length {
            self.jsonl.set_len(self.state.end.bytes)?;
        }
        Ok(())
    }

    /// Puts the file aside, synced, under the time of day, and begins a new one.
    fn rotate(&mut self) -> anyhow::Result<()> {
        self.jsonl.sync_all()?;
        let name = rotation::set_aside(&self.files.jsonl(), "events-", "jsonl")?;
        // The new file must not be known before the renaming is certain.
        files::sync(self.files.dir())?;
        self.jsonl = open_jsonl(self.files)?;
        let start = Place { id: self.state.end.id, ..Place::default() };
        self.state.inode = self.jsonl.metadata()?.ino();
        self.state.base = start.id;
        self.state.rotated = Some(name);
        (self.state.end, self.state.synced) = (start, start);
        Ok(())
    }

    /// Writes what the table has beyond the last line.
    fn append(&mut self, store: &mut Store) -> anyhow::Result<()> {
        let mut page = Vec::new();
        let mut reading = Reading { after: self.state.end.id, left: None, filter: None };
        loop {
            page.clear();
            let mut lines = 0;
            let more = store.read_rows(&mut reading, |row| {
                row.write_line(&mut page);
                lines += 1;
                page.len() < 256 * 1024
            })?;
            self.jsonl.write_all(&page)?;
            let end = &mut self.state.end;
            *end =
                Place { bytes: end.bytes + page.len() as u64, lines: end.lines + lines, id: reading.after };
            if !more {
                break;
            }
        }
        if self.state.end.bytes - self.state.synced.bytes >= SYNC_STEP {
            self.jsonl.sync_data()?;
            self.state.synced = self.state.end;
        }
        Ok(())
    }

    /// Stores what is known. A torn state is recognised by its checksum and costs a comparison.
    fn remember(&mut self) -> anyhow::Result<()> {
        self.state.modified = modified(&self.jsonl.metadata()?);
        write_state(self.memory, &self.state)
    }
}

/// The id after which `events.jsonl` begins, as far as the last writer's note still tells: no file
/// was rotated since. People may have removed old ones.
fn known_base(remembered: &Option<State>, rotated: &Option<String>) -> Option<i64> {
    remembered.as_ref().filter(|state| *rotated <= state.rotated).map(|state| state.base)
}

fn open_jsonl(files: &Files) -> io::Result<File> {
    // Appending, so that even a writer that is wrong about the end overwrites nothing.
    files.open(&files.jsonl(), OpenOptions::new().read(true).append(true))
}

fn modified(about: &std::fs::Metadata) -> i64 {
    about.mtime().wrapping_mul(1_000_000_000).wrapping_add(about.mtime_nsec())
}

fn read_state(memory: &File) -> Option<State> {
    let mut bytes = [0; 2048];
    let length = memory.read_at(&mut bytes, 0).ok()?;
    let text = std::str::from_utf8(&bytes[..length]).ok()?;
    let mut lines = text.lines();
    let (json, sum) = (lines.next()?, lines.next()?);
    if checksum(json) != sum { None } else { serde_json::from_str(json).ok() }
}

fn write_state(memory: &File, state: &State) -> anyhow::Result<()> {
    let json = serde_json::to_string(state)?;
    memory.write_all_at(format!("{json}\n{}\n", checksum(&json)).as_bytes(), 0)?;
    Ok(())
}

fn checksum(text: &str) -> String {
    Sha1::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}
