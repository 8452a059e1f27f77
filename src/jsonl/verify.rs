//! Comparing the JSONL log with the table.

use std::fs::File;
use std::io::{self, BufRead, Read};
use std::ops::ControlFlow;
use std::path::Path;

use serde::de::IgnoredAny;

use super::state::{Place, State};
use super::{PAGE_ROWS, PATIENCE, STATE, base, reader, sealed, was_replaced};
use crate::error::{IoContext, Result};
use crate::files::lock::Lock;
use crate::files::{Access, Files, JSONL};
use crate::store::Store;

/// How every line begins.
const HEAD: &[u8] = b"{\"id\":";

/// What is wrong with the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// From this line of `events.jsonl` on (counted from 1), it is not the table.
    Differs { line: u64 },
    /// So many events have no line yet.
    Behind { events: u64 },
    /// Sealed files end with an event that the table does not have, or has another one in its place: an
    /// older database was put back.
    Ahead { last: i64 },
    /// A line of a sealed file (counted from 1) is not an event, or its id does not rise.
    Sealed { name: String, line: u64 },
}

impl Fault {
    /// Whether [`repair`](super::repair) removes it.
    pub fn can_be_repaired(&self) -> bool {
        !matches!(self, Fault::Sealed { .. })
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Differs { line } => write!(f, "{JSONL} differs from the table from line {line} on"),
            Fault::Behind { events: 1 } => write!(f, "{JSONL} lacks 1 event"),
            Fault::Behind { events } => write!(f, "{JSONL} lacks {events} events"),
            Fault::Ahead { last } => write!(
                f,
                "the sealed JSONL files end with an event {last} that is not the table's: an older events.db was put back"
            ),
            Fault::Sealed { name, line } => {
                write!(f, "line {line} of {name} is not an event whose id is higher than the one before")
            }
        }
    }
}

/// Compares the log with the table; nobody may write it meanwhile.
pub fn verify(files: &Files, store: &mut dyn Store) -> Result<Vec<Fault>> {
    let lock = Lock::take(files, STATE, PATIENCE)?;
    let mut faults = Vec::new();
    for name in sealed(files).at("list", files.path())? {
        let path = files.path_of(&name);
        let file = files.open_file(&name, Access::Read).at("open", &path)?;
        if let Some(line) = bad_line(&file).at("read", &path)? {
            faults.push(Fault::Sealed { name, line });
        }
    }
    let (base, _) = base(files, State::read(lock.file()).as_ref())?;
    if was_replaced(store, base.id, &base.time)? {
        faults.push(Fault::Ahead { last: base.id });
        return Ok(faults);
    }
    let start = Place { id: base.id, ..Place::default() };
    let path = files.path_of(JSONL);
    let (end, length) = match files.open_file(JSONL, Access::Read) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => (start, 0),
        opened => {
            let file = opened.at("open", &path)?;
            let length = file.metadata().at("look at", &path)?.len();
            (agreement(&file, &path, start, store)?, length)
        }
    };
    if end.bytes < length {
        faults.push(Fault::Differs { line: end.lines + 1 });
    } else if store.first_after(end.id)?.is_some() {
        let events = store.count_after(end.id)?;
        faults.push(Fault::Behind { events });
    }
    Ok(faults)
}

/// How far the lines from `start` on are the table's rows after it. `path` is the file's, for errors.
pub(super) fn agreement(file: &File, path: &Path, start: Place, store: &mut dyn Store) -> Result<Place> {
    let mut lines = reader(file, start.bytes).at("read", path)?;
    let mut place = start;
    let (mut line, mut found) = (Vec::new(), Vec::new());
    loop {
        let (mut agreed, mut failed) = (0, None);
        store.read(place.id, i64::MAX, PAGE_ROWS, &mut |row| {
            line.clear();
            row.write_line(&mut line);
            found.resize(line.len(), 0);
            match lines.read_exact(&mut found) {
                Ok(()) if found == line => {
                    place.pass(line.len(), row.id);
                    agreed += 1;
                    return ControlFlow::Continue(());
                }
                Err(e) if e.kind() != io::ErrorKind::UnexpectedEof => failed = Some(e),
                _ => {}
            }
            ControlFlow::Break(())
        })?;
        if let Some(e) = failed {
            return Err(e).at("read", path);
        }
        if agreed < PAGE_ROWS {
            return Ok(place);
        }
    }
}

/// The first line that is not an event with a higher id than the line before, counted from 1.
fn bad_line(file: &File) -> io::Result<Option<u64>> {
    let mut lines = reader(file, 0)?;
    let (mut number, mut last) = (0, 0);
    let mut line = Vec::new();
    loop {
        line.clear();
        // Garbage is not read into memory, however long it is: its beginning tells enough.
        (&mut lines).take(HEAD.len() as u64).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(None);
        }
        number += 1;
        if line != HEAD {
            return Ok(Some(number));
        }
        lines.read_until(b'\n', &mut line)?;
        let is_event = line.ends_with(b"}\n") && serde_json::from_slice::<IgnoredAny>(&line).is_ok();
        match head_of(&line) {
            Some((id, _)) if is_event && id > last => last = id,
            _ => return Ok(Some(number)),
        }
    }
}

/// The id at the beginning of a line, if it begins as an event does, and what follows `"created_at":`.
pub(super) fn head_of(line: &[u8]) -> Option<(i64, &[u8])> {
    let rest = line.strip_prefix(HEAD)?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (id, rest) = rest.split_at(digits);
    Some((std::str::from_utf8(id).ok()?.parse().ok()?, rest.strip_prefix(b",\"created_at\":")?))
}
