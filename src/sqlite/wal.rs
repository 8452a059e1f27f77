//! The write-ahead log: when it is checkpointed, and by whom.
//!
//! Closing the database does not checkpoint: that would cost every push several syncs and shut
//! readers out for a moment. A process that finds the log long does it, if no other is in the way.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;

use super::error::Doing;
use super::{BUSY_LIMIT, Sqlite, wait_for_others};
use crate::error::Result;

/// A WAL longer than this is checkpointed by the process that notices. The first to open the database reads
/// all of the WAL, so a long one costs every command something; a checkpoint costs two syncs.
const WAL_LIMIT: u64 = 256 * 1024;

/// How long a checkpoint between two steps waits for readers of the old pages.
const PATIENCE: Duration = Duration::from_millis(100);

/// Where the WAL of a database is.
pub fn path_of(db: &Path) -> PathBuf {
    let mut path = db.as_os_str().to_owned();
    path.push("-wal");
    path.into()
}

/// How long a WAL is, in bytes; 0 if there is none.
pub fn length(wal: &Path) -> u64 {
    std::fs::symlink_metadata(wal).map_or(0, |wal| wal.len())
}

impl Sqlite {
    /// Whether the WAL stays as it is when this connection is closed as the last one.
    pub(super) fn keep_wal(&self, keep: bool) -> rusqlite::Result<()> {
        self.conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keep).map(drop)
    }

    /// Checkpoints the WAL if it is long, before the next of many steps. Where somebody is in the way
    /// for long, it is left to the next process.
    pub fn keep_wal_short(&mut self) -> Result<()> {
        if self.wal_is_long() { self.checkpoint() } else { Ok(()) }
    }

    /// Checkpoints the WAL and truncates it, if nobody is in the way for long.
    pub(super) fn checkpoint(&mut self) -> Result<()> {
        let doing = "checkpointing";
        // Not by SQLite's own waiting: that would keep writers out meanwhile.
        self.conn.busy_timeout(Duration::ZERO).doing(doing)?;
        let began = Instant::now();
        loop {
            // The first does the work and lets others write; the second only truncates.
            drop(self.conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())));
            if self.truncate_wal().unwrap_or(false) || began.elapsed() >= PATIENCE {
                return wait_for_others(&mut self.conn, BUSY_LIMIT).doing(doing);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Checkpoints the WAL and truncates it. Returns false when somebody was in the way.
    pub(super) fn truncate_wal(&self) -> rusqlite::Result<bool> {
        self.conn
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0))
            .map(|busy| busy == 0)
    }

    /// Begins to checkpoint what a large batch left in the WAL, beside whatever this connection does
    /// next. Where no thread is to be had, closing does all of it.
    pub(super) fn checkpoint_beside(&mut self) {
        self.join_checkpoint();
        let path = self.path.clone();
        let checkpoint = move || {
            // Truncating is left to closing: it would wait for the readers that this runs beside.
            if let Ok(store) = Sqlite::connect(&path) {
                drop(store.conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())));
            }
        };
        self.beside = std::thread::Builder::new().spawn(checkpoint).ok();
    }

    fn join_checkpoint(&mut self) {
        if let Some(beside) = self.beside.take() {
            drop(beside.join());
        }
    }

    fn wal_is_long(&self) -> bool {
        length(&self.wal) > WAL_LIMIT
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        self.join_checkpoint();
        if self.checkpoints && self.wal_is_long() {
            // Readers or writers in the way are no trouble: the next process tries again.
            drop(self.conn.busy_timeout(Duration::ZERO));
            drop(self.truncate_wal());
        }
    }
}
