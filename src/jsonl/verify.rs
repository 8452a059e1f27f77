//! Compares the JSONL log with the table.

use std::fs::File;
use std::io::{self, BufRead, Read};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use serde::de::IgnoredAny;

use super::state::{LogOffset, State};
use super::{LOCK_TIMEOUT, PAGE_ROWS, STATE, base_event, reader, sealed, was_replaced};
use crate::error::{Error, IoContext, Result};
use crate::files::lock::Lock;
use crate::files::{Access, Files, JSONL, refuse_odd};
use crate::store::Store;

/// The beginning of every line.
const HEAD: &[u8] = b"{\"id\":";

/// A defect of the log. Lines are counted from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("{JSONL} differs from the table from line {line} on")]
    Differs { line: u64 },
    #[error("{JSONL} lacks {events} event{}", if *events == 1 { "" } else { "s" })]
    Behind { events: u64 },
    #[error("{}", Error::LogAhead(*.last))]
    Ahead { last: i64 },
    #[error("line {line} of {name} is not an event whose id is higher than the one before")]
    Sealed { name: String, line: u64 },
}

impl Fault {
    /// Whether [`repair`](super::repair) fixes it.
    pub fn can_be_repaired(&self) -> bool {
        !matches!(self, Fault::Sealed { .. })
    }
}

/// How often the log is compared by a user who may not hold its lock, and the pause in between: a fault counts only
/// if no writer repairs it in the meantime.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(100);

/// Compares the log with the table, holding the writer's lock if this user may take it.
pub fn verify(files: &Files, store: &mut dyn Store) -> Result<Vec<Fault>> {
    let lock = match Lock::take(files, STATE, LOCK_TIMEOUT) {
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => {
            // A link in its place is a finding, whatever it points to.
            if let Ok(found) = files.stat(STATE) {
                refuse_odd(&found).at("lock", &files.path_of(STATE))?;
            }
            None
        }
        taken => Some(taken?),
    };
    for _ in 1..TRIES {
        let faults = compare(files, store, lock.as_ref())?;
        if lock.is_some() || faults.is_empty() {
            return Ok(faults);
        }
        std::thread::sleep(PAUSE);
    }
    compare(files, store, lock.as_ref())
}

fn compare(files: &Files, store: &mut dyn Store, lock: Option<&Lock>) -> Result<Vec<Fault>> {
    let mut faults = Vec::new();
    for name in sealed(files).at("list", files.path())? {
        let path = files.path_of(&name);
        let file = files.open_file(&name, Access::Read).at("open", &path)?;
        if let Some(line) = first_bad_line(&file).at("read", &path)? {
            faults.push(Fault::Sealed { name, line });
        }
    }
    let (base, _) = base_event(files, lock.and_then(|lock| State::read(lock.file())).as_ref())?;
    if was_replaced(store, base.id, &base.time)? {
        faults.push(Fault::Ahead { last: base.id });
        return Ok(faults);
    }
    let start = LogOffset { id: base.id, ..LogOffset::default() };
    let path = files.path_of(JSONL);
    let (end, length) = match files.open_file(JSONL, Access::Read).if_there().at("open", &path)? {
        None => (start, 0),
        Some(file) => {
            let length = file.metadata().at("look at", &path)?.len();
            (matching_prefix(&file, &path, start, store)?, length)
        }
    };
    if end.bytes < length {
        faults.push(Fault::Differs { line: end.lines + 1 });
    } else if store.first_after(end.id)?.is_some() {
        let events = store.count(end.id, i64::MAX)?;
        faults.push(Fault::Behind { events });
    }
    Ok(faults)
}

/// Returns the offset up to which the lines from `start` on match the table's rows. `path` is for errors.
pub(super) fn matching_prefix(
    file: &File,
    path: &Path,
    start: LogOffset,
    store: &mut dyn Store,
) -> Result<LogOffset> {
    let mut lines = reader(file, start.bytes).at("read", path)?;
    let mut offset = start;
    let (mut line, mut found) = (Vec::new(), Vec::new());
    loop {
        let (mut agreed, mut failed) = (0, None);
        store.read(offset.id, i64::MAX, PAGE_ROWS, &mut |row| {
            line.clear();
            row.write_line(&mut line);
            found.resize(line.len(), 0);
            match lines.read_exact(&mut found) {
                Ok(()) if found == line => {
                    offset.advance(line.len(), row.id);
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
            return Ok(offset);
        }
    }
}

/// The first line that is not an event with a higher id than the line before, counted from 1.
fn first_bad_line(file: &File) -> io::Result<Option<u64>> {
    let mut lines = reader(file, 0)?;
    let (mut number, mut last) = (0, 0);
    let mut line = Vec::new();
    loop {
        line.clear();
        // Read only the beginning at first, so that garbage of any length is not read into memory.
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
        match parse_head(&line) {
            Some((id, _)) if is_event && id > last => last = id,
            _ => return Ok(Some(number)),
        }
    }
}

/// The id in a line that begins like an event, and what follows `"created_at":`; else `None`.
pub(super) fn parse_head(line: &[u8]) -> Option<(i64, &[u8])> {
    let rest = line.strip_prefix(HEAD)?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (id, rest) = rest.split_at(digits);
    Some((std::str::from_utf8(id).ok()?.parse().ok()?, rest.strip_prefix(b",\"created_at\":")?))
}
