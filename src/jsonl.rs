//! `events.jsonl`, the log for people: a projection of the table.
//!
//! The sealed files and then `events.jsonl`, read in order, are exactly the rows that were ever
//! stored, by id, one line each. No push appends its own event: it takes the writer's
//! lock and writes whatever the table has beyond the last line, its own event and any others. So no
//! line is missing, duplicated or out of order, however many push at once and wherever one was killed.
//!
//! What the writer knows of the file is in the lock file itself, `run/_jsonl`. As long as the file is
//! just as that says (inode, length, modification time), only what is new is looked at. Anything
//! else (a writer that was killed, a hand that edited, a restored copy) makes the next writer compare
//! the file with the table from the beginning, cut it at the first difference and write the rest
//! again. After a reboot it compares from the last synced length on, at the least.
//!
//! `events.jsonl` never holds a line without a row: `prune` seals it first. Sealed files are never
//! written again; they alone have the lines of pruned rows.

mod state;
pub mod verify;

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

use state::{Base, Place, State};

use crate::error::{Error, IoContext, Result};
use crate::files::lock::Lock;
use crate::files::rotation::{self, MAX_LINES};
use crate::files::{Access, Files, JSONL, boot_id};
use crate::model::time::Time;
use crate::store::Store;

/// The writer's lock, which also holds what is known of the file.
pub const STATE: &str = "run/_jsonl";

/// What the names of sealed files begin with.
const SEALED: &str = "events-";

/// How long a push waits for another that is writing the log.
const PATIENCE: Duration = Duration::from_secs(20);

/// When this many bytes have been appended since the last sync, they are synced: after a reboot so many
/// at most are compared with the table.
const SYNC_STEP: u64 = 64 * 1024 * 1024;

/// Lines are written in pieces of about this many bytes, and of at most this many rows.
const PAGE_BYTES: usize = 256 * 1024;
const PAGE_ROWS: usize = 1000;

/// Brings the log up to date with the table, sealing it first when it is long. `progress` is told how
/// many more events have been written.
///
/// # Errors
///
/// The log is then behind or torn; the next call repairs it.
pub fn catch_up(files: &Files, store: &mut dyn Store, progress: &mut dyn FnMut(u64)) -> Result<()> {
    with_writer(files, |writer| {
        writer.compare(store)?;
        if writer.state.end.lines > MAX_LINES {
            writer.seal(store)?;
        }
        writer.append(store, progress)
    })
}

/// Brings the log up to date and has all of it on the disk; and where it holds lines of events up to
/// `upto`, seals it, so that these may be deleted from the table.
pub fn seal_before_prune(files: &Files, store: &mut dyn Store, upto: i64) -> Result<()> {
    with_writer(files, |writer| {
        writer.compare(store)?;
        writer.append(store, &mut |_| {})?;
        if writer.state.end.lines > 0 && writer.state.base.id < upto {
            writer.seal(store)?;
            return writer.save(store);
        }
        writer.sync(store)
    })
}

/// Compares all of `events.jsonl` with the table, whatever is known of it, cuts it at the first
/// difference, and writes the rest.
pub fn repair(files: &Files, store: &mut dyn Store) -> Result<()> {
    with_writer(files, |writer| {
        writer.start_over(store)?;
        writer.compare(store)?;
        writer.append(store, &mut |_| {})?;
        writer.sync(store)
    })
}

/// The sealed files, oldest first.
pub fn sealed(files: &Files) -> io::Result<Vec<String>> {
    rotation::names(files, "", SEALED, "jsonl")
}

/// How many bytes the log takes, its sealed files included.
pub fn size(files: &Files) -> u64 {
    let sealed = sealed(files).unwrap_or_default();
    sealed.iter().map(String::as_str).chain([JSONL]).map(|name| files.size(name)).sum()
}

/// Deletes the sealed files that were sealed before that time, or only counts them. Returns how many,
/// and their bytes. Nothing makes them again.
pub fn remove_sealed(files: &Files, before: Time, dry_run: bool) -> io::Result<(u64, u64)> {
    let (mut count, mut bytes) = (0, 0);
    for name in sealed(files)? {
        if rotation::time_of(&name, SEALED, "jsonl").is_some_and(|sealed| sealed < before) {
            (count, bytes) = (count + 1, bytes + files.size(&name));
            if !dry_run {
                files.remove(&name)?;
            }
        }
    }
    Ok((count, bytes))
}

fn with_writer(files: &Files, work: impl FnOnce(&mut Writer<'_>) -> Result<()>) -> Result<()> {
    let lock = Lock::take(files, STATE, PATIENCE)?;
    work(&mut Writer::open(files, lock.file())?)
}

struct Writer<'a> {
    files: &'a Files,
    /// The lock file, which holds the state.
    note: &'a File,
    jsonl: File,
    state: State,
}

impl<'a> Writer<'a> {
    /// Opens the log and finds out how much of it is known to be right.
    fn open(files: &'a Files, note: &'a File) -> Result<Writer<'a>> {
        let jsonl = files.open_file(JSONL, Access::Append).at("open", &files.path_of(JSONL))?;
        let about = jsonl.metadata().at("look at", &files.path_of(JSONL))?;
        let state = match State::read(note) {
            Some(mut known) if known.describes(&about) => {
                let boot = boot_id();
                if known.boot != boot {
                    // What was not synced before a reboot may be anything now.
                    (known.boot, known.end, known.end_time) = (boot, known.synced, String::new());
                }
                known
            }
            known => {
                let (base, sealed) = base(files, known.as_ref())?;
                State::at_start(base, sealed)
            }
        };
        Ok(Writer { files, note, jsonl, state })
    }

    /// Forgets what is known of the file. Where the sealed files end after the newest event, it begins
    /// with the oldest one.
    fn start_over(&mut self, store: &mut dyn Store) -> Result<()> {
        let (base, sealed) = base(self.files, Some(&self.state))?;
        let base = if was_replaced(store, base.id, &base.time)? { Base::default() } else { base };
        self.state = State::at_start(base, sealed);
        Ok(())
    }

    /// Compares what lies past the known place with the table, and cuts off what does not agree.
    fn compare(&mut self, store: &mut dyn Store) -> Result<()> {
        let State { base, end, end_time, .. } = &self.state;
        if was_replaced(store, base.id, &base.time)? {
            return Err(Error::LogAhead(base.id));
        }
        if was_replaced(store, end.id, end_time)? {
            let start = Place { id: base.id, ..Place::default() };
            (self.state.end, self.state.synced) = (start, start);
        }
        let path = self.files.path_of(JSONL);
        let length = self.jsonl.metadata().at("look at", &path)?.len();
        if length == self.state.end.bytes {
            return Ok(());
        }
        let file = self.jsonl.try_clone().at("open", &path)?;
        self.state.end = verify::agreement(&file, &path, self.state.end, store)?;
        if self.state.end.bytes < length {
            self.jsonl.set_len(self.state.end.bytes).at("truncate", &path)?;
        }
        Ok(())
    }

    /// Writes what the table has beyond the last line.
    fn append(&mut self, store: &mut dyn Store, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let path = self.files.path_of(JSONL);
        let mut page = Vec::new();
        loop {
            page.clear();
            let (mut end, mut rows) = (self.state.end, 0);
            store.read(end.id, i64::MAX, PAGE_ROWS, &mut |row| {
                let start = page.len();
                row.write_line(&mut page);
                end.pass(page.len() - start, row.id);
                rows += 1;
                if page.len() < PAGE_BYTES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            if rows == 0 {
                break;
            }
            self.jsonl.write_all(&page).at("write", &path)?;
            self.state.end = end;
            progress(rows as u64);
            if rows < PAGE_ROWS && page.len() < PAGE_BYTES {
                break;
            }
        }
        if self.state.end.bytes - self.state.synced.bytes >= SYNC_STEP {
            self.jsonl.sync_data().at("sync", &path)?;
            self.state.synced = self.state.end;
        }
        self.save(store)
    }

    /// Sets the file aside, synced, under the current time, and begins a new one.
    fn seal(&mut self, store: &mut dyn Store) -> Result<()> {
        let path = self.files.path_of(JSONL);
        self.jsonl.sync_all().at("sync", &path)?;
        let name = rotation::set_aside(self.files, JSONL, SEALED, "jsonl").at("rename", &path)?;
        // The new file must not be known before the renaming is certain.
        self.files.sync_dir("").at("sync", self.files.path())?;
        self.jsonl = self.files.open_file(JSONL, Access::Append).at("open", &path)?;
        let id = self.state.end.id;
        self.state = State::at_start(Base { id, time: time_of(store, id)? }, Some(name));
        Ok(())
    }

    /// Has the log on the disk, under its name.
    fn sync(&mut self, store: &mut dyn Store) -> Result<()> {
        self.jsonl.sync_all().at("sync", &self.files.path_of(JSONL))?;
        self.files.sync_dir("").at("sync", self.files.path())?;
        self.state.synced = self.state.end;
        self.save(store)
    }

    /// Stores what is known. A torn state is recognised by its checksum and costs a comparison.
    fn save(&mut self, store: &mut dyn Store) -> Result<()> {
        self.state.end_time = time_of(store, self.state.end.id)?;
        let about = self.jsonl.metadata().at("look at", &self.files.path_of(JSONL))?;
        (self.state.inode, self.state.modified) = (about.ino(), state::modified(&about));
        self.state.write(self.note).at("write", &self.files.path_of(STATE))
    }
}

/// Whether the log tells of an event that the table does not have, or has another one in its place:
/// then an older database was put back. An event that was pruned is no such case.
pub(crate) fn was_replaced(store: &mut dyn Store, id: i64, time: &str) -> Result<bool> {
    if id > store.newest()? {
        return Ok(true);
    }
    Ok(!time.is_empty() && store.stored_at(id)?.is_some_and(|stored| stored != time))
}

/// The time of an event as it is remembered; empty where it cannot be compared.
fn time_of(store: &mut dyn Store, id: i64) -> Result<String> {
    Ok(store.stored_at(id)?.filter(|time| is_comparable(time)).unwrap_or_default())
}

/// Only a time as this program writes it is remembered: other programs may store any text, of any
/// length, and what is known of the log has to stay small.
fn is_comparable(time: &str) -> bool {
    time.len() == 24
}

/// The event after which `events.jsonl` begins, and the newest sealed file.
fn base(files: &Files, known: Option<&State>) -> Result<(Base, Option<String>)> {
    let sealed = sealed(files).at("list", files.path())?.pop();
    let base = match known.filter(|known| sealed <= known.sealed) {
        // Nothing was sealed since; people may have removed old files.
        Some(known) => known.base.clone(),
        None => last_sealed(files)?,
    };
    Ok((base, sealed))
}

/// The event of the last line in the sealed files. Somebody may have emptied a file instead of deleting
/// it: then the one before tells.
fn last_sealed(files: &Files) -> Result<Base> {
    for name in sealed(files).at("list", files.path())?.iter().rev() {
        let path = files.path_of(name);
        let file = files.open_file(name, Access::Read).at("open", &path)?;
        if let Some(last) = last_event(&file).at("read", &path)? {
            return Ok(last);
        }
    }
    Ok(Base::default())
}

/// The event of the last whole line of a file. Reads backwards, and of each line only the beginning.
pub(crate) fn last_event(file: &File) -> io::Result<Option<Base>> {
    const CHUNK: u64 = 64 * 1024;
    let mut line_end = None;
    let mut at = file.metadata()?.len();
    while at > 0 {
        let start = at.saturating_sub(CHUNK);
        let mut chunk = vec![0; (at - start) as usize];
        file.read_exact_at(&mut chunk, start)?;
        for newline in memchr::memrchr_iter(b'\n', &chunk).map(|n| start + n as u64) {
            if line_end.is_some()
                && let Some(event) = event_at(file, newline + 1)?
            {
                return Ok(Some(event));
            }
            line_end = Some(newline);
        }
        at = start;
    }
    if line_end.is_some() { event_at(file, 0) } else { Ok(None) }
}

/// The event of the line that begins at this place.
fn event_at(file: &File, at: u64) -> io::Result<Option<Base>> {
    let mut head = [0; 128];
    let read = file.read_at(&mut head, at)?;
    Ok(verify::head_of(&head[..read]).map(|(id, rest)| {
        let time = rest.strip_prefix(b"\"").and_then(|rest| rest.split(|&b| b == b'"').next());
        let time = time.and_then(|time| std::str::from_utf8(time).ok()).filter(|time| is_comparable(time));
        Base { id, time: time.unwrap_or_default().to_owned() }
    }))
}

/// A reader of the log from a place on.
fn reader(file: &File, at: u64) -> io::Result<BufReader<impl Read>> {
    let mut file = file.try_clone()?;
    file.seek(SeekFrom::Start(at))?;
    Ok(BufReader::with_capacity(64 * 1024, file))
}
