//! Holding the copy against the table, line by line, and writing it anew where it is wrong.
//!
//! Events never change and the copy only grows, so the comparison needs no lock: it takes one only
//! for a moment, to learn how much of the copy there is. Pushes go on meanwhile. Only when
//! something seems wrong is it looked at again under the lock, and what is wrong then is so.
//!
//! Three things are no fault. A line whose event is gone from the table, but was once there: events
//! are pruned, and the copy keeps them. A rotated file that is gone: people remove old ones. And
//! events that were stored a moment ago by a push that has not yet come to write them.
//!
//! A file is mended by writing it once more under another name, synced, and renaming it into
//! place, so that a crash leaves the old one or the new one.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Read, Seek, SeekFrom, Take, Write};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use serde::de::IgnoredAny;

use super::{
    MAX_LINES, PATIENCE, Place, State, known_base, modified, open_jsonl, read_state, rotation, write_state,
};
use crate::files::{self, Files};
use crate::lock::Lock;
use crate::process;
use crate::progress::Progress;
use crate::store::{Reading, Store};

/// How long a push that has stored its event may take to write it to the copy before the copy
/// counts as behind.
const GRACE: Duration = Duration::from_secs(5);

/// How long the look for a copy that catches up pauses.
const PAUSE: Duration = Duration::from_millis(20);

/// Lines up to this many bytes are read whole, longer ones only where the table has such.
const LINE: usize = 1024 * 1024;

/// As many bytes of rows are held at a time.
const PAGE: usize = 256 * 1024;

/// What the audit found.
#[derive(Debug, Default)]
pub struct Audit {
    /// The files that do not agree with the table, by name.
    pub faulty: Vec<(String, Faults)>,
    /// The note in `run/_journal` is spoilt, or speaks of another file than the one it fits.
    pub spoilt_note: bool,
    /// An earlier repair was killed and left its draft.
    pub stray_draft: bool,
}

impl Audit {
    pub fn is_fine(&self) -> bool {
        self.faulty.is_empty() && !self.spoilt_note && !self.stray_draft
    }
}

/// How one file of the copy differs from the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults {
    /// Lines that are no event's, or have another content than their event.
    pub wrong: u64,
    /// Lines of events that an earlier line has, or out of order.
    pub repeated: u64,
    /// Lines of events that the table has never given an id to.
    pub unknown: u64,
    /// Events that should have a line and have none.
    pub missing: u64,
    /// The last line has no end.
    pub torn: bool,
    /// The number of the line where the first of these was noticed, from 1.
    pub first: u64,
}

impl Faults {
    fn note(&mut self, line: u64) {
        if self.first == 0 {
            self.first = line;
        }
    }
}

/// Compares the copy with the table and changes nothing.
///
/// # Errors
///
/// The files or the table cannot be read, or another process holds the writer's lock for too long.
pub fn audit(files: &Files, store: &mut Store) -> anyhow::Result<Audit> {
    let stored = store.newest_id()?;
    let deadline = Instant::now() + GRACE;
    let snapshot = loop {
        let (lock, memory) = lock_to_read(files)?;
        let snapshot = Snapshot::take(files, store, memory.as_ref(), stored)?;
        release(lock);
        if !snapshot.is_behind || Instant::now() >= deadline {
            break snapshot;
        }
        std::thread::sleep(PAUSE);
    };
    let found = snapshot.walk(files, store)?;
    if found.is_fine() {
        return Ok(found);
    }
    // A repair may have been at work. Nobody writes while the lock is ours.
    let (lock, memory) = lock_to_read(files)?;
    let found = Snapshot::take(files, store, memory.as_ref(), stored)
        .and_then(|snapshot| snapshot.walk(files, store));
    release(lock);
    found
}

/// Writes those files anew that do not agree with the table, and the note about them. A file that
/// tells of events in a way that the table does not (that may be an older one that was put back) is
/// kept under another name as well; the answer is these names.
///
/// # Errors
///
/// Something cannot be read or written. What was not mended is as it was.
pub fn repair(files: &Files, store: &mut Store) -> anyhow::Result<Vec<PathBuf>> {
    let path = files.run("_journal");
    let file = files.open_lock(&path).with_context(|| format!("cannot open {}", path.display()))?;
    let lock = take(file)?;
    let done = repair_locked(files, store, lock.file());
    lock.release();
    done
}

fn take(file: File) -> anyhow::Result<Lock> {
    Lock::take(file, PATIENCE)
        .context("cannot lock run/_journal")?
        .ok_or_else(|| anyhow!("another process has been writing events.jsonl for too long"))
}

/// The writer's lock, and the note in it. Neither where there is none: then nobody has written yet,
/// and looking makes no files.
fn lock_to_read(files: &Files) -> anyhow::Result<(Option<Lock>, Option<State>)> {
    match File::open(files.run("_journal")) {
        Ok(file) => {
            let lock = take(file)?;
            let state = read_state(lock.file());
            Ok((Some(lock), state))
        }
        Err(e) if e.kind() == ErrorKind::NotFound => Ok((None, None)),
        Err(e) => Err(e).context("cannot open run/_journal"),
    }
}

fn release(lock: Option<Lock>) {
    if let Some(lock) = lock {
        lock.release();
    }
}

/// What there was of the copy at one moment.
struct Snapshot {
    /// Rotated files, oldest first.
    rotated: Vec<String>,
    current: Option<Current>,
    base: Option<i64>,
    state: Option<State>,
    /// The note is there and says nothing.
    spoilt: bool,
    /// The copy has, or should have, the events up to this id.
    upto: i64,
    /// It has not yet come to what was stored when the audit began.
    is_behind: bool,
}

struct Current {
    file: File,
    about: fs::Metadata,
}

impl Snapshot {
    /// `stored` is the newest event when the audit began.
    fn take(files: &Files, store: &Store, state: Option<&State>, stored: i64) -> anyhow::Result<Snapshot> {
        let current = match File::open(files.jsonl()) {
            Ok(file) => Some(Current { about: file.metadata()?, file }),
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            Err(e) => return Err(e).context("cannot open events.jsonl"),
        };
        if current.as_ref().is_some_and(|current| !current.about.is_file()) {
            return Err(anyhow!("events.jsonl is no file"));
        }
        let rotated = rotation::names(files.dir(), "events-", "jsonl")?;
        let last = match &current {
            Some(_) => rotation::last_id_of(&files.jsonl())?,
            None => None,
        };
        let last = match last {
            Some(id) => id,
            None => rotation::last_id(files.dir())?,
        };
        let is_behind = last < stored;
        // What was stored later than that may not be written yet.
        let upto = if is_behind { stored } else { last.min(store.newest_id()?) };
        let spoilt = state.is_none() && fs::metadata(files.run("_journal")).is_ok_and(|note| note.len() > 0);
        let base = known_base(&state.cloned(), &rotated.last().cloned());
        Ok(Snapshot { rotated, current, base, state: state.cloned(), spoilt, upto, is_behind })
    }

    fn walk(mut self, files: &Files, store: &mut Store) -> anyhow::Result<Audit> {
        let mut found = Audit { spoilt_note: self.spoilt, ..Audit::default() };
        found.stray_draft = fs::symlink_metadata(draft_beside(files, &files.jsonl())).is_ok();
        let mut walk = Walk::new(store, self.upto)?;
        for (at, name) in self.rotated.iter().enumerate() {
            let file = match File::open(files.dir().join(name)) {
                // Removed since.
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                opened => opened.with_context(|| format!("cannot open {name}"))?,
            };
            let length = file.metadata()?.len();
            let mut walked = walk.file(&file, length, None)?;
            let next = walk.start_of_next(files, &self.rotated[at + 1..], self.base)?;
            walk.end_of_rotated(&mut walked, next, None)?;
            if walked.faults != Faults::default() {
                found.faulty.push((name.clone(), walked.faults));
            }
        }
        walk.enter_current(self.base);
        let walked = match self.current.take() {
            Some(current) => {
                let length = current.about.len();
                let mut walked = walk.file(&current.file, length, None)?;
                walk.rest(&mut walked, i64::MAX, None)?;
                if let Some(state) = &self.state
                    && walked.faults == Faults::default()
                    && state.inode == current.about.ino()
                    && state.modified == modified(&current.about)
                    && state.end.bytes == length
                    && state.end != walked.end
                {
                    found.spoilt_note = true;
                }
                walked
            }
            None => {
                let mut walked = Walked::default();
                walk.rest(&mut walked, i64::MAX, None)?;
                walked
            }
        };
        if walked.faults != Faults::default() {
            found.faulty.push(("events.jsonl".to_owned(), walked.faults));
        }
        Ok(found)
    }
}

fn repair_locked(files: &Files, store: &mut Store, memory: &File) -> anyhow::Result<Vec<PathBuf>> {
    let state = read_state(memory);
    let mut kept = Vec::new();
    let names = rotation::names(files.dir(), "events-", "jsonl")?;
    let base = known_base(&state, &names.last().cloned());
    let upto = store.newest_id()?;
    let mut walk = Walk::new(store, upto)?;
    for (at, name) in names.iter().enumerate() {
        let path = files.dir().join(name);
        let file = File::open(&path).with_context(|| format!("cannot open {name}"))?;
        let length = file.metadata()?.len();
        let start = walk.after;
        let mut walked = walk.file(&file, length, None)?;
        let next = walk.start_of_next(files, &names[at + 1..], base)?;
        walk.end_of_rotated(&mut walked, next, None)?;
        if walked.faults == Faults::default() {
            continue;
        }
        walk.restart(start);
        let mut draft = Draft::make(files, &path, &file)?;
        let mut again = walk.file(&file, length, Some(&mut draft))?;
        walk.end_of_rotated(&mut again, next, Some(&mut draft))?;
        kept.extend(draft.put_in_place(files, &path, walked.has_more)?);
    }
    let current = open_jsonl(files).context("cannot open events.jsonl")?;
    let length = current.metadata()?.len();
    walk.enter_current(base);
    let start = walk.after;
    let mut walked = walk.file(&current, length, None)?;
    walk.rest(&mut walked, i64::MAX, None)?;
    let path = files.jsonl();
    if walked.faults != Faults::default() {
        let keep = walked.has_more;
        walk.restart(start);
        let mut draft = Draft::make(files, &path, &current)?;
        walked = walk.file(&current, length, Some(&mut draft))?;
        walk.rest(&mut walked, i64::MAX, Some(&mut draft))?;
        walked.end = draft.end;
        kept.extend(draft.put_in_place(files, &path, keep)?);
    } else {
        current.sync_all()?;
        drop(fs::remove_file(draft_beside(files, &path)));
    }
    let about = fs::metadata(&path)?;
    let (end, rotated) = (walked.end, names.last().cloned());
    let state = State {
        boot: process::boot_id(),
        inode: about.ino(),
        modified: modified(&about),
        base: walked.base,
        rotated,
        end,
        synced: end,
    };
    write_state(memory, &state)?;
    Ok(kept)
}

/// One way through the copy and the table side by side.
struct Walk<'s> {
    rows: Rows<'s>,
    /// The newest id ever given.
    newest_ever: i64,
    /// The last event that had its line.
    after: i64,
    /// Whether events may lack a line before the first one of the file: a file that was rotated
    /// before this one may have been removed.
    gap_allowed: bool,
    progress: Progress,
}

/// What the way through one file came to.
#[derive(Debug, Default)]
struct Walked {
    faults: Faults,
    /// Some line tells of an event in a way that the table does not: nothing else may know of it.
    has_more: bool,
    /// The place after the last line.
    end: Place,
    /// The id after which the file begins.
    base: i64,
}

impl<'s> Walk<'s> {
    fn new(store: &'s mut Store, upto: i64) -> anyhow::Result<Walk<'s>> {
        let newest_ever = store.newest_ever()?;
        let progress = Progress::of("checking events.jsonl", None);
        Ok(Walk { rows: Rows::after(store, 0, upto), newest_ever, after: 0, gap_allowed: true, progress })
    }

    /// Goes back.
    fn restart(&mut self, after: i64) {
        self.after = after;
        self.rows.restart(after);
    }

    /// Passes on to the current file, which begins after `base` where that is known.
    fn enter_current(&mut self, base: Option<i64>) {
        let Some(base) = base else { return };
        self.gap_allowed = false;
        if is_file_long(self.after, base) || self.after == 0 {
            self.restart(base.max(self.after));
        }
    }

    /// Goes through the first `length` bytes of a file, and writes what it should be to `draft`.
    fn file(&mut self, file: &File, length: u64, mut draft: Option<&mut Draft>) -> anyhow::Result<Walked> {
        let mut lines = Lines::of(file, length)?;
        let mut walked = Walked { base: self.after, ..Walked::default() };
        let faults = &mut walked.faults;
        let mut begun = false;
        while let Some(line) = lines.next(self.rows.peek()?.map_or(0, |(_, row)| row.len()))? {
            self.progress.advance(1);
            let Some(id) = line.id.filter(|_| line.is_whole) else {
                faults.note(lines.number);
                if line.is_whole {
                    faults.wrong += 1
                } else {
                    faults.torn = true
                }
                continue;
            };
            if id <= self.after {
                faults.note(lines.number);
                faults.repeated += 1;
                continue;
            }
            let verdict = self.judge(id, &lines.text, &line)?;
            if !matches!(verdict, Verdict::Right | Verdict::Pruned) {
                faults.note(lines.number);
            }
            match verdict {
                Verdict::Unknown => {
                    faults.unknown += 1;
                    walked.has_more = true;
                    continue;
                }
                Verdict::Wrong => {
                    faults.wrong += 1;
                    walked.has_more |= line.is_event(&lines.text);
                    // The event whose line this should be gets its own.
                    if self.rows.peek()?.is_some_and(|(next, _)| next == id) {
                        self.pass_row(draft.as_deref_mut())?;
                        begun = true;
                    }
                    continue;
                }
                Verdict::Right | Verdict::Pruned => {}
            }
            if !begun && self.gap_allowed && is_file_long(self.after, id - 1) {
                // As many lines before it as are spoilt were of this file.
                walked.base = id - 1 - i64::try_from(faults.wrong).unwrap_or(0);
                walked.base = walked.base.max(self.after);
                self.restart(walked.base);
            }
            begun = true;
            while self.rows.peek()?.is_some_and(|(next, _)| next < id) {
                faults.note(lines.number);
                faults.missing += 1;
                self.pass_row(draft.as_deref_mut())?;
            }
            if matches!(verdict, Verdict::Right) {
                self.pass_row(draft.as_deref_mut())?;
            } else {
                self.after = id;
                if let Some(draft) = &mut draft {
                    draft.line(id, &lines.text, &line)?;
                }
            }
        }
        walked.end = Place { bytes: length, lines: lines.number, id: self.after };
        Ok(walked)
    }

    /// The first event of the file after a rotated one, where that can be told: `later` are the
    /// rotated files that follow, and the current one begins after `base`.
    fn start_of_next(
        &mut self,
        files: &Files,
        later: &[String],
        base: Option<i64>,
    ) -> anyhow::Result<Option<i64>> {
        for name in later {
            let file = match File::open(files.dir().join(name)) {
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                opened => opened.with_context(|| format!("cannot open {name}"))?,
            };
            let mut lines = Lines::of(&file, file.metadata()?.len())?;
            // Somebody may have emptied a file instead of deleting it.
            let Some(line) = lines.next(0)? else { continue };
            return match line.id.filter(|_| line.is_whole) {
                Some(id) => Ok(self.rows.look_up(id, &lines.text)?.filter(|&same| same).map(|_| id)),
                None => Ok(None),
            };
        }
        Ok(base.map(|base| base.saturating_add(1)))
    }

    /// What a rotated file lacks at its end, before the event with which the next file begins. Where
    /// a whole file fits between the two, that was removed.
    fn end_of_rotated(
        &mut self,
        walked: &mut Walked,
        next: Option<i64>,
        draft: Option<&mut Draft>,
    ) -> anyhow::Result<()> {
        match next {
            Some(next) if !is_file_long(self.after, next - 1) => self.rest(walked, next, draft),
            _ => Ok(()),
        }
    }

    /// What the table has before the event `before`, and no line.
    fn rest(
        &mut self,
        walked: &mut Walked,
        before: i64,
        mut draft: Option<&mut Draft>,
    ) -> anyhow::Result<()> {
        while self.rows.peek()?.is_some_and(|(id, _)| id < before) {
            self.progress.advance(1);
            walked.faults.note(walked.end.lines + 1);
            walked.faults.missing += 1;
            self.pass_row(draft.as_deref_mut())?;
        }
        Ok(())
    }

    fn judge(&mut self, id: i64, text: &[u8], line: &Line) -> anyhow::Result<Verdict> {
        let next = self.rows.peek()?;
        let same = match next {
            Some((next, row)) if next == id => Some(row == text),
            Some((next, _)) if next < id => self.rows.look_up(id, text)?,
            _ => None,
        };
        Ok(match same {
            Some(true) => Verdict::Right,
            Some(false) => Verdict::Wrong,
            None if id > self.newest_ever => Verdict::Unknown,
            None if line.is_event(text) => Verdict::Pruned,
            None => Verdict::Wrong,
        })
    }

    /// Moves past the next row, and writes its line.
    fn pass_row(&mut self, draft: Option<&mut Draft>) -> anyhow::Result<()> {
        if let Some((id, row)) = self.rows.peek()? {
            if let Some(draft) = draft {
                draft.row(id, row)?;
            }
            self.after = id;
            self.rows.pass();
        }
        Ok(())
    }
}

/// What a line with an id is.
enum Verdict {
    /// Just its event.
    Right,
    /// An event's that is no longer stored.
    Pruned,
    Wrong,
    /// It was never stored in this table.
    Unknown,
}

/// Whether a whole rotated file fits between these ids: they are set aside with more lines only.
fn is_file_long(after: i64, upto: i64) -> bool {
    upto.saturating_sub(after).unsigned_abs() > MAX_LINES && upto > after
}

/// The rows of the table as lines, oldest first, a page at a time.
struct Rows<'s> {
    store: &'s mut Store,
    reading: Reading<'static>,
    upto: i64,
    more: bool,
    page: Vec<u8>,
    /// Where the lines of the page are that have not been passed.
    waiting: VecDeque<(i64, Range<usize>)>,
}

impl Rows<'_> {
    fn after(store: &mut Store, after: i64, upto: i64) -> Rows<'_> {
        let reading = Reading { after, left: None, filter: None };
        Rows { store, reading, upto, more: true, page: Vec::new(), waiting: VecDeque::new() }
    }

    fn restart(&mut self, after: i64) {
        self.reading.after = after;
        self.waiting.clear();
        self.more = true;
    }

    fn peek(&mut self) -> anyhow::Result<Option<(i64, &[u8])>> {
        while self.waiting.is_empty() && self.more {
            self.page.clear();
            let (page, waiting, upto) = (&mut self.page, &mut self.waiting, self.upto);
            let mut is_past = false;
            let more = self.store.read_rows(&mut self.reading, |row| {
                is_past = row.id > upto;
                if !is_past {
                    let start = page.len();
                    row.write_line(page);
                    waiting.push_back((row.id, start..page.len()));
                }
                !is_past && page.len() < PAGE
            })?;
            self.more = more && !is_past;
        }
        Ok(self.waiting.front().map(|(id, range)| (*id, &self.page[range.clone()])))
    }

    fn pass(&mut self) {
        self.waiting.pop_front();
    }

    /// Whether the line of that event is this text; nothing when there is no such event.
    fn look_up(&mut self, id: i64, text: &[u8]) -> anyhow::Result<Option<bool>> {
        let mut one = Reading { after: id - 1, left: Some(1), filter: None };
        let (mut same, mut line) = (None, Vec::new());
        self.store.read_rows(&mut one, |row| {
            if row.id == id {
                row.write_line(&mut line);
                same = Some(line == text);
            }
            false
        })?;
        Ok(same)
    }
}

/// The lines of a file, whatever it holds, in bounded memory.
struct Lines<'f> {
    reader: BufReader<Take<&'f File>>,
    /// The line read last, from 1; its text is cut off when it is longer than any line should be.
    number: u64,
    text: Vec<u8>,
    offset: u64,
}

/// What is known of the line read last.
struct Line {
    offset: u64,
    length: u64,
    /// Whether it ends in a newline.
    is_whole: bool,
    /// The event it says it is.
    id: Option<i64>,
}

impl<'f> Lines<'f> {
    fn of(mut file: &'f File, length: u64) -> io::Result<Lines<'f>> {
        file.seek(SeekFrom::Start(0))?;
        let reader = BufReader::with_capacity(64 * 1024, file.take(length));
        Ok(Lines { reader, number: 0, text: Vec::new(), offset: 0 })
    }

    /// Reads the next line; `expected` is how long the line is that should come.
    fn next(&mut self, expected: usize) -> io::Result<Option<Line>> {
        let most = expected.max(LINE) as u64;
        self.text.clear();
        let mut length = (&mut self.reader).take(most).read_until(b'\n', &mut self.text)? as u64;
        if length == 0 {
            return Ok(None);
        }
        let mut is_whole = self.text.ends_with(b"\n");
        while !is_whole && length >= most {
            let buffer = self.reader.fill_buf()?;
            if buffer.is_empty() {
                break;
            }
            let end = memchr::memchr(b'\n', buffer);
            let used = end.map_or(buffer.len(), |end| end + 1);
            is_whole = end.is_some();
            self.reader.consume(used);
            length += used as u64;
        }
        let line = Line { offset: self.offset, length, is_whole, id: id_of(&self.text) };
        self.offset += length;
        self.number += 1;
        Ok(Some(line))
    }
}

impl Line {
    /// Whether it has the form of an event, as far as it was read.
    fn is_event(&self, text: &[u8]) -> bool {
        self.length > text.len() as u64 || serde_json::from_slice::<IgnoredAny>(text).is_ok()
    }
}

/// The id at the beginning of an event's line.
fn id_of(line: &[u8]) -> Option<i64> {
    let rest = line.strip_prefix(b"{\"id\":")?;
    let end = memchr::memchr(b',', rest)?;
    rest[end..].strip_prefix(b",\"created_at\":\"")?;
    let id: i64 = std::str::from_utf8(&rest[..end]).ok()?.parse().ok()?;
    (id > 0).then_some(id)
}

/// A file that is written anew.
struct Draft {
    path: PathBuf,
    to: BufWriter<File>,
    /// The file it is to replace.
    old: File,
    end: Place,
}

impl Draft {
    fn make(files: &Files, target: &Path, old: &File) -> anyhow::Result<Draft> {
        let path = draft_beside(files, target);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e.into()),
            _ => {}
        }
        let to = files
            .open(&path, OpenOptions::new().write(true))
            .with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Draft {
            path,
            to: BufWriter::with_capacity(PAGE, to),
            old: old.try_clone()?,
            end: Place::default(),
        })
    }

    fn row(&mut self, id: i64, line: &[u8]) -> io::Result<()> {
        self.wrote(id, line.len() as u64);
        self.to.write_all(line)
    }

    /// A line of the old file as it stands there.
    fn line(&mut self, id: i64, text: &[u8], line: &Line) -> io::Result<()> {
        self.wrote(id, line.length);
        self.to.write_all(text)?;
        let mut at = line.offset + text.len() as u64;
        let end = line.offset + line.length;
        let mut part = vec![0; 64 * 1024];
        while at < end {
            let most = part.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
            // At an offset: the descriptor's own place is that of the reader of lines.
            let read = std::os::unix::fs::FileExt::read_at(&self.old, &mut part[..most], at)?;
            if read == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            self.to.write_all(&part[..read])?;
            at += read as u64;
        }
        Ok(())
    }

    fn wrote(&mut self, id: i64, length: u64) {
        self.end = Place { bytes: self.end.bytes + length, lines: self.end.lines + 1, id };
    }

    /// Puts the draft in the place of the old file, which is kept under another name if `keep`.
    fn put_in_place(self, files: &Files, target: &Path, keep: bool) -> anyhow::Result<Option<PathBuf>> {
        let to = self.to.into_inner().map_err(io::IntoInnerError::into_error)?;
        to.sync_all()?;
        let target = fs::canonicalize(target)?;
        let kept = if keep { Some(keep_old(files, &target)?) } else { None };
        fs::rename(&self.path, &target).with_context(|| format!("cannot replace {}", target.display()))?;
        files::sync(target.parent().unwrap_or(files.dir()))?;
        Ok(kept)
    }
}

/// Gives the old file a second name in `run/` that nothing else uses.
fn keep_old(files: &Files, target: &Path) -> anyhow::Result<PathBuf> {
    for number in 1.. {
        let path = files.run(&format!("_unknown-{number}.jsonl"));
        match fs::hard_link(target, &path) {
            Ok(()) => {
                files::sync(&files.run(""))?;
                return Ok(path);
            }
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => {
                return Err(e).with_context(|| format!("cannot keep the old file as {}", path.display()));
            }
        }
    }
    Err(anyhow!("no name is free in run/"))
}

/// Where a file of the copy is written anew: in `run/`, or, where the copy is a link to elsewhere,
/// there, because files are renamed only within one file system.
fn draft_beside(files: &Files, target: &Path) -> PathBuf {
    let elsewhere = fs::canonicalize(target).ok().filter(|real| {
        let home = fs::canonicalize(files.dir()).ok();
        fs::symlink_metadata(target).is_ok_and(|file| file.is_symlink()) && real.parent() != home.as_deref()
    });
    match elsewhere {
        Some(real) => real.with_extension("jsonl-draft"),
        None => files.run("_draft.jsonl"),
    }
}
