//! The state of the last writer of `events.jsonl`, stored in its lock file.

use std::fs::{File, Metadata};
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use serde::{Deserialize, Serialize};

use crate::files::boot_id;

/// An offset in `events.jsonl`; everything before it matches the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LogOffset {
    pub bytes: u64,
    pub lines: u64,
    /// Id of the last event before the offset.
    pub id: i64,
}

impl LogOffset {
    /// Advances past a line of `length` bytes, including its newline.
    pub fn advance(&mut self, length: usize, id: i64) {
        *self = LogOffset { bytes: self.bytes + length as u64, lines: self.lines + 1, id };
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct State {
    pub boot: String,
    pub inode: u64,
    /// Modification time in nanoseconds since 1970.
    pub modified: i64,
    /// The last event in the sealed files; this file begins after it.
    pub base: EventStamp,
    /// The newest sealed file at the time this was written.
    pub sealed: Option<String>,
    pub end: LogOffset,
    /// The `created_at` of the event at `end`.
    pub end_time: String,
    pub synced: LogOffset,
}

/// An event's id (0: none) and `created_at` (empty: unknown). The time reveals an id that was assigned again
/// after an older database was restored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventStamp {
    pub id: i64,
    pub time: String,
}

impl State {
    /// The state of a file of which only the beginning is known.
    pub fn at_start(base: EventStamp, sealed: Option<String>) -> State {
        let start = LogOffset { id: base.id, ..LogOffset::default() };
        State { boot: boot_id(), base, sealed, end: start, synced: start, ..State::default() }
    }

    /// Whether the file still matches the recorded inode, length and modification time.
    pub fn describes(&self, metadata: &Metadata) -> bool {
        self.inode == metadata.ino()
            && self.end.bytes == metadata.len()
            && self.modified == modified(metadata)
    }

    /// Reads the state from a lock file; `None` if it is missing or torn.
    pub fn read(state_file: &File) -> Option<State> {
        let mut bytes = [0; 2048];
        let length = state_file.read_at(&mut bytes, 0).ok()?;
        let text = std::str::from_utf8(&bytes[..length]).ok()?;
        let mut lines = text.lines();
        let (json, sum) = (lines.next()?, lines.next()?);
        if checksum(json) == sum { serde_json::from_str(json).ok() } else { None }
    }

    pub fn write(&self, state_file: &File) -> io::Result<()> {
        let json = serde_json::to_string(self)?;
        state_file.write_all_at(format!("{json}\n{}\n", checksum(&json)).as_bytes(), 0)
    }
}

pub fn modified(metadata: &Metadata) -> i64 {
    metadata.mtime().wrapping_mul(1_000_000_000).wrapping_add(metadata.mtime_nsec())
}

/// Another program may have been built with another hash, which costs a comparison. A cryptographic one takes longer: the
/// first use asks the processor what it can do, for which a virtual machine stops.
fn checksum(text: &str) -> String {
    let mut hasher = DefaultHasher::new();
    hasher.write(text.as_bytes());
    format!("{:016x}", hasher.finish())
}
