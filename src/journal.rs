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
//!
//! Rows that were pruned are in the copy alone. Their lines are known by their ids, which were given
//! once and are not in the table; a comparison passes over them, and nothing takes them away.

mod audit;
mod lines;
mod prepared;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use serde::{Deserialize, Serialize};
use sha1::{Digest, Sha1};

pub use audit::{Audit, Faults, audit, repair};
pub use lines::Lines;
pub use prepared::Prepared;

use crate::error::OrFix;
use crate::files::{self, Files};
use crate::lock::Lock;
use crate::process;
use crate::progress::Progress;
use crate::rotation::{self, MAX_LINES};
use crate::store::{Reading, Store};

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

impl Place {
    /// Moves on past a line.
    fn pass(&mut self, line: &[u8], id: i64) {
        *self = Place { bytes: self.bytes + line.len() as u64, lines: self.lines + 1, id };
    }
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
    catch_up_with(files, store, None)
}

/// The same where some of the lines were prepared.
///
/// # Errors
///
/// The same.
pub fn catch_up_with(files: &Files, store: &mut Store, prepared: Option<Prepared>) -> anyhow::Result<()> {
    write(files, store, |writer, store| writer.run(store, prepared))
}

/// The same, and has all of it on the disk: what the copy holds then may go from the table.
///
/// # Errors
///
/// Then nothing may go.
pub fn catch_up_and_sync(files: &Files, store: &mut Store) -> anyhow::Result<()> {
    write(files, store, |writer, store| {
        writer.run(store, None)?;
        writer.sync()
    })
}

/// Lets `what` write the copy, under the lock.
fn write(
    files: &Files,
    store: &mut Store,
    what: impl FnOnce(&mut Writer<'_>, &mut Store) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let path = files.run("_journal");
    let lock = files
        .open_lock(&path)
        .and_then(|file| Lock::take(file, PATIENCE))
        .with_context(|| format!("cannot lock {}", path.display()))?
        .ok_or_else(|| anyhow!("another process has been writing events.jsonl for too long"))?;
    let result = Writer::open(files, lock.file()).and_then(|mut writer| what(&mut writer, store));
    lock.release();
    result.with_context(|| format!("cannot write {}", files.jsonl().display()))
}

/// The rotated files of the copy in `dir`, oldest first.
pub fn rotated(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let names = rotation::names(dir, "events-", "jsonl")?;
    Ok(names.into_iter().map(|name| dir.join(name)).collect())
}

/// How many bytes the copy in `dir` takes, its older parts included.
pub fn copy_bytes(dir: &Path) -> u64 {
    let older = rotation::names(dir, "events-", "jsonl").unwrap_or_default();
    let all = older.iter().map(String::as_str).chain(["events.jsonl"]);
    all.filter_map(|name| fs::metadata(dir.join(name)).ok()).map(|file| file.len()).sum()
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
            None => lines::last_id(files.dir())?,
        };
        let start = Place { id: base, ..Place::default() };
        let state = State { boot, inode: about.ino(), modified: 0, base, rotated, end: start, synced: start };
        Ok(Writer { files, memory, jsonl, state })
    }

    fn run(&mut self, store: &mut Store, prepared: Option<Prepared>) -> anyhow::Result<()> {
        self.keep_what_agrees(store)?;
        if self.state.end.lines > MAX_LINES {
            self.rotate()?;
        }
        let before = self.state.end;
        if let Some(prepared) = prepared {
            self.append_prepared(store, prepared)?;
        }
        self.append(store, i64::MAX)?;
        if self.state.end == before && before.id > store.newest_ever()? {
            // An older database was put back: the copy tells of events that it does not know.
            let start = Place { id: self.state.base, ..Place::default() };
            (self.state.end, self.state.synced) = (start, start);
            self.keep_what_agrees(store)?;
            self.append(store, i64::MAX)?;
        }
        self.remember()
    }

    /// Compares what lies past the known place with the table, and cuts off or writes again what
    /// does not agree.
    fn keep_what_agrees(&mut self, store: &mut Store) -> anyhow::Result<()> {
        let length = self.jsonl.metadata()?.len();
        if length == self.state.end.bytes {
            return Ok(());
        }
        // Asked first: what is stored from now on is a row, whatever a line says.
        let newest = store.newest_ever()?;
        let mut lines = Lines::after(self.jsonl.try_clone()?, self.state.end.bytes)?;
        if self.compare(store, &mut lines, newest)? && self.state.end.bytes == length {
            return Ok(());
        }
        if lines.any(|id| Ok((self.state.end.id < id && id <= newest) && !store.has(id)?))? {
            self.write_anew(store, newest)
        } else {
            self.jsonl.set_len(self.state.end.bytes).map_err(Into::into)
        }
    }

    /// Moves the end on as far as the lines agree with the table. False when some line does not.
    fn compare(&mut self, store: &mut Store, lines: &mut Lines, newest: i64) -> anyhow::Result<bool> {
        let end = &mut self.state.end;
        let mut reading = Reading { after: end.id, left: None, filter: None };
        let mut line = Vec::new();
        let mut agrees = Ok(true);
        loop {
            let more = store.read_rows(&mut reading, |row| {
                line.clear();
                row.write_line(&mut line);
                agrees = pass_pruned(end, lines, row.id - 1).and_then(|()| Ok(lines.peek()? == line));
                if let Ok(true) = agrees {
                    end.pass(&line, row.id);
                    lines.next();
                }
                matches!(agrees, Ok(true))
            })?;
            if !agrees.as_ref().is_ok_and(|&agrees| agrees) {
                return Ok(agrees?);
            }
            if !more {
                pass_pruned(end, lines, newest)?;
                return Ok(true);
            }
        }
    }

    /// Writes the file anew, because lines of pruned rows stand behind a place that does not agree:
    /// what agrees, and from there on the rows and those lines, in order. Under another name first,
    /// so that a kill leaves either file whole.
    fn write_anew(&mut self, store: &mut Store, newest: i64) -> anyhow::Result<()> {
        let draft_path = audit::draft_beside(self.files, &self.files.jsonl());
        // It may be a link.
        let path = fs::canonicalize(self.files.jsonl())?;
        let draft = self.files.open(&draft_path, OpenOptions::new().read(true).append(true))?;
        draft.set_len(0)?;
        let copy = std::mem::replace(&mut self.jsonl, draft);
        (&copy).seek(SeekFrom::Start(0))?;
        io::copy(&mut (&copy).take(self.state.end.bytes), &mut self.jsonl)?;
        let mut lines = Lines::after(copy.try_clone()?, self.state.end.bytes)?;
        while !lines.peek()?.is_empty() {
            if let Some(id) = lines.id()
                && self.state.end.id < id
                && id <= newest
                && !store.has(id)?
            {
                self.append(store, id)?;
                self.jsonl.write_all(lines.peek()?)?;
                self.state.end.pass(lines.peek()?, id);
            }
            lines.next();
        }
        self.jsonl.sync_all()?;
        fs::rename(&draft_path, &path)?;
        files::sync(path.parent().unwrap_or(self.files.dir()))?;
        self.state.inode = self.jsonl.metadata()?.ino();
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

    /// Writes what the table has beyond the last line, up to this id.
    fn append(&mut self, store: &mut Store, upto: i64) -> anyhow::Result<()> {
        let mut page = Vec::new();
        let mut reading = Reading { after: self.state.end.id, left: None, filter: None };
        let mut progress = None;
        loop {
            page.clear();
            let (mut end, mut past) = (self.state.end, false);
            let more = store.read_rows(&mut reading, |row| {
                past = row.id > upto;
                if past {
                    return false;
                }
                let start = page.len();
                row.write_line(&mut page);
                end.pass(&page[start..], row.id);
                page.len() < 256 * 1024
            })?;
            self.jsonl.write_all(&page)?;
            self.state.end = end;
            if !more || past {
                break;
            }
            let progress = progress.get_or_insert_with(|| {
                let newest = store.newest_ever().ok().map(|newest| newest.min(upto).abs_diff(end.id));
                Progress::of("copying to events.jsonl", newest)
            });
            self.append_far(store, &mut reading, upto, progress)?;
        }
        if self.state.end.bytes - self.state.synced.bytes >= SYNC_STEP {
            self.jsonl.sync_data()?;
            self.state.synced = self.state.end;
        }
        Ok(())
    }

    /// Writes what comes before these lines, and then these, unless somebody else was quicker.
    fn append_prepared(&mut self, store: &mut Store, mut prepared: Prepared) -> anyhow::Result<()> {
        self.append(store, prepared.first - 1)?;
        let end = self.state.end;
        if end.id < prepared.first {
            if prepared.write_to(&mut self.jsonl).is_err() {
                // Without the room that they take themselves there may be enough for the copy.
                drop(prepared);
                return self.jsonl.set_len(end.bytes).map_err(Into::into);
            }
            let lines = end.lines + prepared.last.abs_diff(prepared.first) + 1;
            self.state.end = Place { bytes: end.bytes + prepared.bytes, lines, id: prepared.last };
        }
        Ok(())
    }

    /// Writes much, where there is much, in one go.
    fn append_far(
        &mut self,
        store: &mut Store,
        reading: &mut Reading<'_>,
        upto: i64,
        progress: &mut Progress,
    ) -> anyhow::Result<()> {
        let Some(far) = store.far_ahead(reading)?.map(|far| far.min(upto)) else { return Ok(()) };
        let (jsonl, end) = (&mut self.jsonl, &mut self.state.end);
        store.read_in_turns(reading.after, far, |page| {
            jsonl.write_all(&page.lines).or_fix("cannot write the copy", "check the disk")?;
            progress.advance(page.last_id.abs_diff(end.id));
            progress.tick();
            *end = Place {
                bytes: end.bytes + page.lines.len() as u64,
                lines: end.lines + page.events,
                id: page.last_id,
            };
            Ok(true)
        })?;
        reading.after = far;
        Ok(())
    }

    /// Has the copy on the disk, under its name.
    fn sync(&mut self) -> anyhow::Result<()> {
        self.jsonl.sync_all()?;
        files::sync(self.files.dir())?;
        self.state.synced = self.state.end;
        self.remember()
    }

    /// Stores what is known. A torn state is recognised by its checksum and costs a comparison.
    fn remember(&mut self) -> anyhow::Result<()> {
        self.state.modified = modified(&self.jsonl.metadata()?);
        write_state(self.memory, &self.state)
    }
}

/// Passes over the lines of rows that are in the table no more, up to this id.
fn pass_pruned(end: &mut Place, lines: &mut Lines, upto: i64) -> io::Result<()> {
    while !lines.peek()?.is_empty() {
        match lines.id() {
            Some(id) if end.id < id && id <= upto => end.pass(lines.peek()?, id),
            _ => return Ok(()),
        }
        lines.next();
    }
    Ok(())
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
