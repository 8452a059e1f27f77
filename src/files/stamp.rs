//! Detecting changes of a thread's database without opening it.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{DB, WAL, identity};
use crate::model::place::Place;

/// Upper bound for the granularity of file timestamps.
const CLOCK_STEP: Duration = Duration::from_millis(50);

/// Metadata of a database and its WAL. A commit by any program changes it, except perhaps shortly after
/// the previous one: see [`Stamp::is_fresh`]. For a thread that is not in a directory, any commit might have
/// happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Identifies the thread: see [`Files::home`](super::Files::home).
    pub home: (u64, u64),
    /// Inode, size in bytes and modification time of the WAL.
    wal: Option<(u64, i64, Duration)>,
}

impl Stamp {
    /// The stamp of the thread whose files are in `path`; `None` if there is none any more.
    pub fn of(place: &Place, path: &Path) -> Option<Stamp> {
        if place.dir().is_none() {
            let base = rustix::fs::stat(path).ok()?;
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            return Some(Stamp { home: identity(&base), wal: Some((0, 0, now)) });
        }
        let db = rustix::fs::lstat(path.join(DB)).ok()?;
        let wal = rustix::fs::lstat(path.join(WAL)).ok().map(|wal| {
            let seconds = u64::try_from(wal.st_mtime).unwrap_or(0);
            let modified = Duration::new(seconds, u32::try_from(wal.st_mtime_nsec).unwrap_or(0));
            (wal.st_ino, wal.st_size, modified)
        });
        Some(Stamp { home: identity(&db), wal })
    }

    /// When the WAL was changed last, since 1970; `None` without one.
    pub fn changed(&self) -> Option<Duration> {
        self.wal.map(|(_, _, modified)| modified)
    }

    /// Whether the last change is so recent that another one might not change the stamp.
    pub fn is_fresh(&self) -> bool {
        self.wal.is_some_and(|(_, _, modified)| is_fresh(UNIX_EPOCH + modified))
    }
}

/// Whether a file with this time may be changed without another time.
pub fn is_fresh(modified: SystemTime) -> bool {
    modified + CLOCK_STEP > SystemTime::now()
}
