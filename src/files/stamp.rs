//! Detecting changes of a thread's database without opening it.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::Stat;

use super::{COMMIT, DB, WAL, identity};
use crate::model::location::Location;

/// Upper bound for the granularity of file timestamps.
const CLOCK_STEP: Duration = Duration::from_millis(50);

/// Metadata of a database and its WAL. A commit by any program changes it, except perhaps shortly after
/// the previous one: see [`Stamp::is_fresh`]. For a thread that is not in a directory, any commit might have
/// happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Identifies the thread: see [`Files::home`](super::Files::home).
    pub home: (u64, u64),
    /// Inode, size in bytes and modification time of the WAL, or of the database if there is no WAL: everything
    /// committed is then in the database.
    wal: (u64, i64, Duration),
    /// When `run/_commit` was touched last: a commit can be read only after its sync, which may take longer than
    /// [`Stamp::is_fresh`] says.
    touched: Duration,
}

impl Stamp {
    /// The stamp of the thread whose files are in `path`; `None` if it is gone.
    pub fn of(location: &Location, path: &Path) -> Option<Stamp> {
        #[cfg(all(test, target_os = "linux"))]
        if let Some(stamp) = super::simulated::system().and_then(|system| system.stamp(path)) {
            return stamp;
        }
        if !location.backend().has_database_file {
            let base = rustix::fs::stat(path).ok()?;
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            return Some(Stamp { home: identity(&base), wal: (0, 0, now), touched: now });
        }
        let db = rustix::fs::lstat(path.join(DB)).ok()?;
        let wal = rustix::fs::lstat(path.join(WAL)).unwrap_or(db);
        let touched = rustix::fs::lstat(path.join(COMMIT)).map_or(Duration::ZERO, |file| modified(&file));
        let wal = (wal.st_ino, wal.st_size, modified(&wal));
        Some(Stamp { home: identity(&db), wal, touched })
    }

    /// That of a thread whose database and WAL a test stands for: the size and time of the WAL, and when it was touched.
    #[cfg(all(test, target_os = "linux"))]
    pub(crate) fn simulated(home: (u64, u64), wal: (i64, Duration), touched: Duration) -> Stamp {
        Stamp { home, wal: (home.1, wal.0, wal.1), touched }
    }

    /// When the WAL was changed last, since 1970.
    pub fn changed(&self) -> Duration {
        self.wal.2
    }

    /// Whether the last change is so recent that another one might not change the stamp.
    pub fn is_fresh(&self) -> bool {
        is_fresh(UNIX_EPOCH + self.changed().max(self.touched))
    }
}

fn modified(file: &Stat) -> Duration {
    let seconds = u64::try_from(file.st_mtime).unwrap_or(0);
    Duration::new(seconds, u32::try_from(file.st_mtime_nsec).unwrap_or(0))
}

/// Whether a file with this time may be changed without another time.
pub fn is_fresh(modified: SystemTime) -> bool {
    modified + CLOCK_STEP > SystemTime::now()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Files;

    #[test]
    fn a_commit_that_was_synced_late_changes_the_stamp() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(DB), "").unwrap();
        std::fs::create_dir(dir.path().join("run")).unwrap();
        let stamp = || Stamp::of(&Location::from(dir.path()), dir.path()).unwrap();
        let written = stamp();
        assert_eq!(stamp(), written);
        Files::open(dir.path()).unwrap().touch(COMMIT).unwrap();
        assert_ne!(stamp(), written);
        assert_eq!(stamp().changed(), written.changed());
    }
}
