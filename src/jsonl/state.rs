//! What the last writer of `events.jsonl` knew about it, kept in its lock file.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use serde::{Deserialize, Serialize};
use sha1::{Digest, Sha1};

use crate::files::boot_id;

/// A place in `events.jsonl`: everything before it agrees with the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Place {
    pub bytes: u64,
    pub lines: u64,
    /// The id of the last event before it.
    pub id: i64,
}

impl Place {
    /// Moves on past a line of that length, its newline included.
    pub fn pass(&mut self, length: usize, id: i64) {
        *self = Place { bytes: self.bytes + length as u64, lines: self.lines + 1, id };
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct State {
    pub boot: String,
    pub inode: u64,
    /// Modification time in nanoseconds since 1970.
    pub modified: i64,
    /// The last event in the sealed files; this file begins after it.
    pub base: Base,
    /// The newest sealed file when this was written.
    pub sealed: Option<String>,
    pub end: Place,
    /// The `created_at` of the event at `end`.
    pub end_time: String,
    pub synced: Place,
}

/// An event, by its id (0: none) and its `created_at` (empty: not known). The time tells whether an
/// older database was put back and has given the id again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    pub id: i64,
    pub time: String,
}

impl State {
    /// Of a file of which nothing is known but where it begins.
    pub fn at_start(base: Base, sealed: Option<String>) -> State {
        let start = Place { id: base.id, ..Place::default() };
        State { boot: boot_id(), base, sealed, end: start, synced: start, ..State::default() }
    }

    /// Whether the file is just as this says.
    pub fn describes(&self, about: &Metadata) -> bool {
        self.inode == about.ino() && self.end.bytes == about.len() && self.modified == modified(about)
    }

    /// The state in a lock file; `None` when there is none that is whole.
    pub fn read(note: &File) -> Option<State> {
        let mut bytes = [0; 2048];
        let length = note.read_at(&mut bytes, 0).ok()?;
        let text = std::str::from_utf8(&bytes[..length]).ok()?;
        let mut lines = text.lines();
        let (json, sum) = (lines.next()?, lines.next()?);
        if checksum(json) == sum { serde_json::from_str(json).ok() } else { None }
    }

    pub fn write(&self, note: &File) -> io::Result<()> {
        let json = serde_json::to_string(self)?;
        note.write_all_at(format!("{json}\n{}\n", checksum(&json)).as_bytes(), 0)
    }
}

pub fn modified(about: &Metadata) -> i64 {
    about.mtime().wrapping_mul(1_000_000_000).wrapping_add(about.mtime_nsec())
}

fn checksum(text: &str) -> String {
    Sha1::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}
