//! When and by which process the WAL is checkpointed.
//!
//! Closing the database does not always checkpoint: that would cost every push several syncs and briefly lock
//! readers out. A process that finds the WAL long on closing checkpoints it, if no other process prevents
//! that.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;

use super::error::Doing;
use super::{BUSY_LIMIT, Sqlite, system_calls, wait_for_others};
use crate::error::Result;

/// A WAL longer than so many pages is checkpointed by the process that notices. The first process to open the
/// database reads the whole WAL, so a long one slows down every command; a checkpoint costs two syncs.
const WAL_PAGES: u64 = 32;

/// How long a checkpoint between two steps waits for readers of old pages.
const CHECKPOINT_TIMEOUT: Duration = Duration::from_millis(100);

/// The path of a database's WAL.
pub fn path_of(db: &Path) -> PathBuf {
    let mut path = db.as_os_str().to_owned();
    path.push("-wal");
    path.into()
}

/// Length of a WAL in bytes; 0 if there is none.
pub fn length(wal: &Path) -> u64 {
    std::fs::symlink_metadata(wal).map_or(0, |wal| wal.len())
}

impl Sqlite {
    /// Sets whether the WAL is kept as it is when this connection is the last to close.
    pub(super) fn keep_wal(&self, keep: bool) -> rusqlite::Result<()> {
        self.conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keep).map(drop)
    }

    /// Checkpoints and truncates the WAL, unless others prevent it for longer than [`CHECKPOINT_TIMEOUT`]; then it
    /// is left to the next process.
    pub(super) fn checkpoint(&mut self) -> Result<()> {
        let doing = "checkpointing";
        // Don't use SQLite's own waiting: it would block writers.
        self.conn.busy_timeout(Duration::ZERO).doing(doing)?;
        let began = Instant::now();
        loop {
            // The passive checkpoint copies the pages without blocking writers; the other one only truncates.
            drop(self.conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())));
            if self.truncate_wal().unwrap_or(false) || began.elapsed() >= CHECKPOINT_TIMEOUT {
                return wait_for_others(&mut self.conn, BUSY_LIMIT).doing(doing);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Checkpoints and truncates the WAL. Returns false if another process prevented it.
    pub(super) fn truncate_wal(&self) -> rusqlite::Result<bool> {
        self.conn
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0))
            .map(|busy| busy == 0)
    }

    /// Starts checkpointing the WAL of a large batch in a background thread. If no thread can be spawned,
    /// closing checkpoints.
    pub(super) fn checkpoint_in_background(&mut self) {
        self.join_checkpoint();
        let path = self.path.clone();
        let checkpoint = move || {
            // Closing truncates the WAL: doing it here would wait for concurrent readers.
            if let Ok(store) = Sqlite::connect(&path, BUSY_LIMIT) {
                drop(store.conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())));
            }
        };
        self.checkpoint_thread = std::thread::Builder::new().spawn(checkpoint).ok();
    }

    fn join_checkpoint(&mut self) {
        if let Some(checkpoint) = self.checkpoint_thread.take() {
            drop(checkpoint.join());
        }
    }

    /// Its length does not say so: see [`system_calls`].
    pub(super) fn wal_is_long(&self) -> bool {
        // SQLite is not asked where no page is small enough.
        length(&self.wal) > WAL_PAGES * 512 && self.wal_pages().is_ok_and(|pages| pages >= WAL_PAGES)
    }

    /// How many pages are in the WAL, whether they are in the database too or not.
    fn wal_pages(&self) -> rusqlite::Result<u64> {
        let ask = "PRAGMA wal_checkpoint(NOOP)";
        self.conn.query_row(ask, [], |row| row.get::<_, i64>(1)).map(i64::unsigned_abs)
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        self.join_checkpoint();
        // For others that are open in this process, this costs one more sync at most.
        system_calls::set_synced(&self.wal, false);
        if self.checkpoints && self.wal_is_long() {
            // If readers or writers prevent it, the next process tries again.
            drop(self.conn.busy_timeout(Duration::ZERO));
            drop(self.truncate_wal());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::UNIX_EPOCH;

    use rusqlite::Connection;

    use super::*;
    use crate::files::stamp::Stamp;
    use crate::model::location::Location;

    fn insert(conn: &Connection, bytes: usize) {
        let sql = "INSERT INTO events (created_at, source, type, content) VALUES ('', 's', 'message', ?1)";
        conn.execute(sql, ["x".repeat(bytes)]).unwrap();
    }

    /// How many events somebody finds who opens the database with these files.
    fn count(files: &[&Path]) -> i64 {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            fs::copy(file, dir.path().join(file.file_name().unwrap())).unwrap();
        }
        let conn = Connection::open(dir.path().join("events.db")).unwrap();
        let sound: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(sound, "ok");
        conn.query_row("SELECT count(*) FROM events", [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn a_short_wal_keeps_its_length_and_has_no_content() {
        let dir = tempfile::tempdir().unwrap();
        let db = dir.path().join("events.db");
        Sqlite::create(&db, false).unwrap();
        let log = path_of(&db);
        let reader = Sqlite::open(&db).unwrap();
        let store = Sqlite::open(&db).unwrap();
        insert(&store.conn, 10_000);
        insert(&store.conn, 10_000);
        let before = length(&log);
        assert!(before > 20_000);
        assert!(store.truncate_wal().unwrap());
        assert_eq!(length(&log), before);
        assert_eq!(store.wal_pages().unwrap(), 0);
        // All is in the database itself, and what is left of the WAL is read by nobody.
        assert_eq!(count(&[&db]), 2);
        assert_eq!(count(&[&db, &log]), 2);
        // Shorter than what was there: whoever reads it stops where the old frames begin.
        insert(&reader.conn, 1);
        assert_eq!(length(&log), before);
        assert_eq!(count(&[&db, &log]), 3);
        drop((reader, store));
        insert(&Sqlite::open(&db).unwrap().conn, 1);
        assert_eq!(count(&[&db, &log]), 4);
    }

    #[test]
    fn a_long_wal_is_truncated() {
        let dir = tempfile::tempdir().unwrap();
        let db = dir.path().join("events.db");
        Sqlite::create(&db, false).unwrap();
        let store = Sqlite::open(&db).unwrap();
        insert(&store.conn, 1 << 20);
        assert!(store.wal_pages().unwrap() > 128);
        assert!(store.truncate_wal().unwrap());
        assert_eq!(length(&path_of(&db)), 0);
        assert_eq!(count(&[&db]), 1);
    }

    #[test]
    fn a_commit_is_noticed_though_no_wal_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let db = dir.path().join("events.db");
        Sqlite::create(&db, false).unwrap();
        fs::File::open(&db).unwrap().set_modified(UNIX_EPOCH).unwrap();
        let stamp = || Stamp::of(&Location::from(dir.path()), dir.path()).unwrap();
        let before = stamp();
        // As the sqlite3 program does, which removes the WAL on closing.
        let other = Connection::open(&db).unwrap();
        other
            .execute_batch("INSERT INTO events (source, type, content) VALUES ('s', 'message', '')")
            .unwrap();
        drop(other);
        assert!(!dir.path().join("events.db-wal").exists());
        assert_ne!(stamp(), before);
    }
}
