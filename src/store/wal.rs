//! The write-ahead log: when it is folded back into the database, and by whom.
//!
//! Closing the database does not fold it back, which would cost every push several syncs and shut
//! readers out for a moment. Whoever finds it long does, if nobody is in the way.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rusqlite::config::DbConfig;

use super::{Store, wait_for_others};
use crate::error::{Result, database};

/// A WAL longer than this is folded back into the database by whoever notices. Whoever opens the
/// database alone reads all of the WAL, so a long one costs every command something; folding it back
/// costs the one that does it two syncs.
const WAL_LIMIT: u64 = 256 * 1024;

/// One longer than this takes so long to fold back that it is worth a thread of its own.
const VERY_LONG: u64 = 4 * 1024 * 1024;

/// How long is waited for readers of the old pages, before it is left to the next process to
/// shorten the file.
const PATIENCE: Duration = Duration::from_secs(1);

/// The same between two steps.
const SHORT_PATIENCE: Duration = Duration::from_millis(100);

/// Where the WAL of a database is.
pub fn path_of(db: &Path) -> PathBuf {
    let mut path = db.as_os_str().to_owned();
    path.push("-wal");
    path.into()
}

/// Leaves the WAL as it is when this connection is closed.
pub fn keep(conn: &Connection) -> rusqlite::Result<()> {
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map(drop)
}

/// Folds back as much of the WAL as is in nobody's way, with a connection of its own. Whoever has it
/// done cuts the file when that is closed.
pub fn fold_back(path: &Path) -> Result<()> {
    let mut store = Store::open(path)?;
    store.folds_wal = false;
    store
        .conn
        .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
        .map_err(|e| database(&e, "folding back the WAL"))
}

impl Store {
    /// Folds the WAL back if it is long, before the next of many steps. Where somebody is in the way
    /// for long, it is left to whoever comes next.
    pub fn keep_wal_short(&mut self) -> Result<()> {
        if self.wal_is_longer(WAL_LIMIT) { self.fold_wal(SHORT_PATIENCE) } else { Ok(()) }
    }

    /// Folds the WAL back, so that the file on the disk is as long as the database.
    pub fn end_compacting(&mut self) -> Result<()> {
        self.fold_wal(PATIENCE)
    }

    /// From here on a commit does not fold back the WAL, however long it is: that can be left to
    /// [`fold_back`], for which nobody need wait.
    pub fn leave_folding(&mut self) -> Result<()> {
        let left = self.conn.execute_batch("PRAGMA wal_autocheckpoint = 0");
        left.map_err(|e| database(&e, "preparing a batch"))
    }

    fn fold_wal(&mut self, patience: Duration) -> Result<()> {
        let failed = |e: rusqlite::Error| database(&e, "folding back the WAL");
        // Not by SQLite's own waiting: that would keep writers out meanwhile.
        self.conn.busy_timeout(Duration::ZERO).map_err(failed)?;
        let began = Instant::now();
        loop {
            // The first does the work and lets others write; the second has nothing left but to cut.
            drop(self.conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())));
            if self.truncate_wal().unwrap_or(false) || began.elapsed() >= patience {
                return wait_for_others(&mut self.conn).map_err(failed);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Folds the WAL back and cuts it to nothing. False when somebody was in the way.
    pub(super) fn truncate_wal(&self) -> rusqlite::Result<bool> {
        self.conn
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0))
            .map(|busy| busy == 0)
    }

    /// Whether folding back the WAL takes long.
    pub fn wal_is_very_long(&self) -> bool {
        self.wal_is_longer(VERY_LONG)
    }

    fn wal_is_longer(&self, than: u64) -> bool {
        std::fs::metadata(&self.wal).is_ok_and(|wal| wal.len() > than)
    }
}

/// Folds a WAL that has grown long back into the database, if nobody is in the way.
impl Drop for Store {
    fn drop(&mut self) {
        if self.folds_wal && self.wal_is_longer(WAL_LIMIT) {
            // Readers or writers in the way are no trouble: the next process tries again.
            drop(self.conn.busy_timeout(Duration::ZERO));
            drop(self.truncate_wal());
        }
    }
}
