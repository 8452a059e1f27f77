//! Holding the copy against the table, line by line.
//!
//! Events never change and the copy only grows, so the comparison needs no lock: it takes one only
//! for a moment, to learn how much of the copy there is. Pushes go on meanwhile. Only when
//! something seems wrong is it looked at again under the lock, and what is wrong then is so.
//!
//! Three things are no fault. A line whose event is gone from the table, but was once there: events
//! are pruned, and the copy keeps them. A rotated file that is gone: people remove old ones. And
//! events that were stored a moment ago by a push that has not yet come to write them.

mod repair;
mod walk;

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};

pub use repair::repair;

use super::{PATIENCE, State, known_base, lines, modified, read_state};
use crate::files::Files;
use crate::lock::Lock;
use crate::rotation;
use crate::store::Store;
pub use repair::draft_beside;
use walk::{Walk, Walked};

/// How long a push that has stored its event may take to write it to the copy before the copy
/// counts as behind.
const GRACE: Duration = Duration::from_secs(5);

/// How long the look for a copy that catches up pauses.
const PAUSE: Duration = Duration::from_millis(20);

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
    let stored = store.last_upto(i64::MAX)?;
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
            Some(_) => lines::last_id_of(&files.jsonl())?,
            None => None,
        };
        let last = match last {
            Some(id) => id,
            None => lines::last_id(files.dir())?,
        };
        let is_behind = last < stored;
        // What was stored later than that may not be written yet.
        let upto = if is_behind { stored } else { last.min(store.newest_ever()?) };
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
