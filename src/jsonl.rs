//! `events.jsonl`, the human-readable log: a projection of the table.
//!
//! The sealed files followed by `events.jsonl` contain exactly the rows ever stored, by id, one line each. A
//! push does not append its own event: it takes the writer's lock and writes every row of the table past the
//! last line, including its own. So no line is missing, duplicated or out of order, however many processes
//! push at once and wherever one is killed.
//!
//! The writer stores its state in the lock file, `run/_jsonl`. As long as the log matches it (inode, length,
//! modification time), only new rows are read. Otherwise (a killed writer, an edit, a restored copy) the next
//! writer compares the file with the table from the beginning, truncates it at the first difference and
//! rewrites the rest. After a reboot it compares at least from the last synced length on.
//!
//! `events.jsonl` never holds a line without a row: `prune` seals it first. Sealed files are never written
//! again; only they contain lines of pruned rows.

mod state;
pub mod verify;

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

use state::{EventStamp, LogOffset, State};

use crate::error::{Error, IoContext, Result};
use crate::files::lock::Lock;
use crate::files::rotation::{self, MAX_LINES};
use crate::files::{Access, Files, JSONL, boot_id};
use crate::model::time::{self, Time};
use crate::store::Store;

/// The writer's lock file, which also stores its state.
pub const STATE: &str = "run/_jsonl";

/// Name prefix of sealed files.
const SEALED: &str = "events-";

/// How long to wait for another process that is writing the log.
const LOCK_TIMEOUT: Duration = Duration::from_secs(20);

/// The log is synced whenever about this many bytes were appended since the last sync. This bounds what is
/// compared with the table after a reboot.
const SYNC_STEP: u64 = 64 * 1024 * 1024;

/// Lines are written in pages of about this many bytes and at most this many rows.
const PAGE_BYTES: usize = 256 * 1024;
const PAGE_ROWS: usize = 1000;

/// Brings the log of a thread in a directory up to date with the table, sealing it first if it is long. Waits at
/// most `wait`, and never longer than 20 s, for another process that is writing it. `progress` is called with the
/// number of events written since its last call.
///
/// # Errors
///
/// The log may be behind or torn; the next call repairs it.
pub fn catch_up(
    files: &Files,
    store: &mut dyn Store,
    wait: Duration,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    with_writer(files, wait, |writer| {
        writer.compare(store)?;
        if writer.state.end.lines > MAX_LINES {
            writer.seal(store)?;
        }
        writer.append(store, progress)
    })
}

/// Brings the log up to date and syncs it; if it contains lines of events up to `upto`, also seals it, so
/// that these can be deleted from the table. Waits at most `wait`, and never longer than 20 s, for another process that
/// is writing the log.
pub fn seal_before_prune(files: &Files, store: &mut dyn Store, upto: i64, wait: Duration) -> Result<()> {
    with_writer(files, wait, |writer| {
        writer.compare(store)?;
        writer.append(store, &mut |_| {})?;
        if writer.state.end.lines > 0 && writer.state.base.id < upto {
            writer.seal(store)?;
            writer.keep_time(store)?;
            return writer.save(store);
        }
        writer.sync(store)
    })
}

/// Like [`seal_before_prune`], for a small part of a long work: does nothing if the lines are in sealed files already.
/// Most of a long log is synced before others have to wait.
pub fn seal_before_retention(files: &Files, store: &mut dyn Store, upto: i64, wait: Duration) -> Result<()> {
    let mut is_sealed = true;
    with_writer(files, wait, |writer| {
        writer.compare(store)?;
        is_sealed = writer.state.base.id >= upto;
        Ok(())
    })?;
    if is_sealed {
        return Ok(());
    }
    let path = files.path_of(JSONL);
    files.open_file(JSONL, Access::Append).and_then(|jsonl| jsonl.sync_data()).at("sync", &path)?;
    seal_before_prune(files, store, upto, wait)
}

/// Compares all of `events.jsonl` with the table, ignoring the stored state, truncates it at the first
/// difference, and writes the rest.
pub fn repair(files: &Files, store: &mut dyn Store) -> Result<()> {
    with_writer(files, LOCK_TIMEOUT, |writer| {
        writer.reset(store)?;
        writer.compare(store)?;
        writer.append(store, &mut |_| {})?;
        writer.keep_time(store)?;
        writer.sync(store)
    })
}

/// The sealed files, oldest first.
pub fn sealed(files: &Files) -> io::Result<Vec<String>> {
    rotation::names(files, "", SEALED, "jsonl")
}

/// Size of the log in bytes, including its sealed files.
pub fn size(files: &Files) -> u64 {
    let sealed = sealed(files).unwrap_or_default();
    sealed.iter().map(String::as_str).chain([JSONL]).map(|name| files.size(name)).sum()
}

/// Deletes the files sealed before that time or, in a dry run, only counts them. Returns their number and
/// total bytes. They are not recreated.
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

/// Deletes the sealed files of whose events none is left in the table. Returns their number and total bytes.
pub fn remove_sealed_of_deleted(files: &Files, store: &mut dyn Store) -> Result<(u64, u64)> {
    let (mut count, mut bytes, mut before) = (0, 0, 0);
    for name in sealed(files).at("list", files.path())? {
        let path = files.path_of(&name);
        let file = files.open_file(&name, Access::Read).at("open", &path)?;
        let Some(EventStamp { id: last, .. }) = last_event(&file).at("read", &path)? else { continue };
        if last <= store.newest()? && store.first_after(before)?.is_none_or(|left| left > last) {
            (count, bytes) = (count + 1, bytes + files.size(&name));
            files.remove(&name).at("delete", &path)?;
        }
        before = before.max(last);
    }
    Ok((count, bytes))
}

fn with_writer(
    files: &Files,
    wait: Duration,
    work: impl FnOnce(&mut Writer<'_>) -> Result<()>,
) -> Result<()> {
    if !files.location().backend().has_jsonl {
        return Ok(());
    }
    let lock = Lock::take(files, STATE, wait.min(LOCK_TIMEOUT))?;
    work(&mut Writer::open(files, lock.file())?)
}

struct Writer<'a> {
    files: &'a Files,
    /// The lock file, which stores the state.
    state_file: &'a File,
    jsonl: File,
    state: State,
}

impl<'a> Writer<'a> {
    /// Opens the log and determines how much of it is known to match the table.
    fn open(files: &'a Files, state_file: &'a File) -> Result<Writer<'a>> {
        let jsonl = files.open_file(JSONL, Access::Append).at("open", &files.path_of(JSONL))?;
        let metadata = jsonl.metadata().at("look at", &files.path_of(JSONL))?;
        let state = match State::read(state_file) {
            Some(mut known) if known.describes(&metadata) => {
                let boot = boot_id();
                if known.boot != boot {
                    // After a reboot, unsynced bytes may contain anything.
                    (known.boot, known.end, known.end_time) = (boot, known.synced, String::new());
                }
                known
            }
            known => {
                let (base, sealed) = base_event(files, known.as_ref())?;
                State::at_start(base, sealed)
            }
        };
        Ok(Writer { files, state_file, jsonl, state })
    }

    /// Discards the stored state. If the sealed files do not match the table, the log restarts with the
    /// oldest event.
    fn reset(&mut self, store: &mut dyn Store) -> Result<()> {
        let (base, sealed) = base_event(self.files, Some(&self.state))?;
        let base = if was_replaced(store, base.id, &base.time)? { EventStamp::default() } else { base };
        self.state = State::at_start(base, sealed);
        Ok(())
    }

    /// Compares the lines past the verified offset with the table, and truncates the log at the first
    /// difference.
    fn compare(&mut self, store: &mut dyn Store) -> Result<()> {
        let State { base, end, end_time, .. } = &self.state;
        if was_replaced(store, base.id, &base.time)? {
            return Err(Error::LogAhead(base.id));
        }
        if was_replaced(store, end.id, end_time)? {
            let start = LogOffset { id: base.id, ..LogOffset::default() };
            (self.state.end, self.state.synced) = (start, start);
        }
        let path = self.files.path_of(JSONL);
        let length = self.jsonl.metadata().at("look at", &path)?.len();
        if length == self.state.end.bytes {
            return Ok(());
        }
        let file = self.jsonl.try_clone().at("open", &path)?;
        self.state.end = verify::matching_prefix(&file, &path, self.state.end, store)?;
        if self.state.end.bytes < length {
            self.jsonl.set_len(self.state.end.bytes).at("truncate", &path)?;
        }
        Ok(())
    }

    /// Writes the rows past the last line.
    fn append(&mut self, store: &mut dyn Store, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let path = self.files.path_of(JSONL);
        let mut page = Vec::new();
        loop {
            page.clear();
            let (mut end, mut rows) = (self.state.end, 0);
            store.read(end.id, i64::MAX, PAGE_ROWS, &mut |row| {
                let start = page.len();
                row.write_line(&mut page);
                end.advance(page.len() - start, row.id);
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

    /// Syncs the file, renames it to a name with the current time, and starts a new one.
    fn seal(&mut self, store: &mut dyn Store) -> Result<()> {
        let path = self.files.path_of(JSONL);
        self.jsonl.sync_all().at("sync", &path)?;
        let name = rotation::set_aside(self.files, JSONL, SEALED, "jsonl").at("rename", &path)?;
        // The rename must be durable before the state describes the new file.
        self.files.sync_dir("").at("sync", self.files.path())?;
        self.jsonl = self.files.open_file(JSONL, Access::Append).at("open", &path)?;
        let id = self.state.end.id;
        self.state = State::at_start(EventStamp { id, time: time_of(store, id)? }, Some(name));
        Ok(())
    }

    /// Gives the log the time of its newest event, as if nothing else had written it: readers take it for the
    /// time of the thread's last activity.
    fn keep_time(&mut self, store: &mut dyn Store) -> Result<()> {
        let stored = store.stored_at(self.state.end.id)?;
        let Some(stored) = stored.and_then(|text| time::parse(&text)) else { return Ok(()) };
        self.jsonl.set_modified(stored.into()).at("set the time of", &self.files.path_of(JSONL))
    }

    /// Syncs the log and its directory entry.
    fn sync(&mut self, store: &mut dyn Store) -> Result<()> {
        self.jsonl.sync_all().at("sync", &self.files.path_of(JSONL))?;
        self.files.sync_dir("").at("sync", self.files.path())?;
        self.state.synced = self.state.end;
        self.save(store)
    }

    /// Stores the state. A torn state is detected by its checksum and only costs a comparison.
    fn save(&mut self, store: &mut dyn Store) -> Result<()> {
        self.state.end_time = time_of(store, self.state.end.id)?;
        let metadata = self.jsonl.metadata().at("look at", &self.files.path_of(JSONL))?;
        (self.state.inode, self.state.modified) = (metadata.ino(), state::modified(&metadata));
        self.state.write(self.state_file).at("write", &self.files.path_of(STATE))
    }
}

/// Whether an event in the log is not in the table or differs there, because an older database was restored.
/// A pruned event does not count.
pub(crate) fn was_replaced(store: &mut dyn Store, id: i64, time: &str) -> Result<bool> {
    if id > store.newest()? {
        return Ok(true);
    }
    Ok(!time.is_empty() && store.stored_at(id)?.is_some_and(|stored| stored != time))
}

/// The `created_at` to store for an event; empty if it cannot be compared.
fn time_of(store: &mut dyn Store, id: i64) -> Result<String> {
    Ok(store.stored_at(id)?.filter(|time| is_comparable(time)).unwrap_or_default())
}

/// Whether a time has the length of those this program writes. Other programs may store text of any length,
/// and the state must stay small.
fn is_comparable(time: &str) -> bool {
    time.len() == 24
}

/// The last event before `events.jsonl` begins, and the newest sealed file.
fn base_event(files: &Files, known: Option<&State>) -> Result<(EventStamp, Option<String>)> {
    let sealed = sealed(files).at("list", files.path())?.pop();
    let base = match known.filter(|known| sealed <= known.sealed) {
        // No file was sealed since; old ones may have been removed.
        Some(known) => known.base.clone(),
        None => last_sealed(files)?,
    };
    Ok((base, sealed))
}

/// The event of the last line in the sealed files. A file may have been emptied instead of deleted; then the
/// one before it counts.
fn last_sealed(files: &Files) -> Result<EventStamp> {
    for name in sealed(files).at("list", files.path())?.iter().rev() {
        let path = files.path_of(name);
        let file = files.open_file(name, Access::Read).at("open", &path)?;
        if let Some(last) = last_event(&file).at("read", &path)? {
            return Ok(last);
        }
    }
    Ok(EventStamp::default())
}

/// The event of the last complete line of a file. Reads backwards, and only the beginning of each line.
pub(crate) fn last_event(file: &File) -> io::Result<Option<EventStamp>> {
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

/// The event of the line that begins at offset `at`.
fn event_at(file: &File, at: u64) -> io::Result<Option<EventStamp>> {
    let mut head = [0; 128];
    let read = file.read_at(&mut head, at)?;
    Ok(verify::parse_head(&head[..read]).map(|(id, rest)| {
        let time = rest.strip_prefix(b"\"").and_then(|rest| rest.split(|&b| b == b'"').next());
        let time = time.and_then(|time| std::str::from_utf8(time).ok()).filter(|time| is_comparable(time));
        EventStamp { id, time: time.unwrap_or_default().to_owned() }
    }))
}

/// A buffered reader of the log from offset `at`.
fn reader(file: &File, at: u64) -> io::Result<BufReader<impl Read>> {
    let mut file = file.try_clone()?;
    file.seek(SeekFrom::Start(at))?;
    Ok(BufReader::with_capacity(64 * 1024, file))
}
