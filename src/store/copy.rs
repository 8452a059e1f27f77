//! A copy of the database while others write to it, and making a thread at rest of that copy.
//!
//! `VACUUM INTO` reads in one read transaction: it holds everything that was committed before,
//! keeps no writer waiting, and never begins again because somebody wrote. While it lasts the WAL
//! grows by what others write; whoever closes next folds that back. Free pages, and what deleted
//! rows left in them, do not come along.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{OptionalExtension, ToSql};

use super::{Store, newest_ever};
use crate::error::{Failure, Result, database};

impl Store {
    /// Copies the database as it stands now into the empty file at `path`. The copy is not synced.
    pub fn copy_to(&mut self, path: &Path) -> Result<()> {
        self.conn
            .execute("VACUUM main INTO ?", [RawText(path.as_os_str().as_bytes())])
            .map(drop)
            .map_err(|e| database(&e, "copying the database"))
    }

    /// Pauses every consumer of a copy, and forgets the runs and waits of the original: they are no
    /// business of the copy, and a run that is under way there costs no attempt here.
    pub fn pause_all(&mut self) -> Result<()> {
        let sql = "UPDATE subscriptions SET paused = 1, \
             attempts = CASE WHEN phase = 'running' AND coalesce(run_task, '') <> 'letter' \
                             THEN max(coalesce(attempts, 0) - 1, 0) ELSE attempts END, \
             phase = CASE WHEN phase IN ('running', 'waiting') THEN NULL ELSE phase END, \
             next_try = NULL, run_boot = NULL, run_pid = NULL, run_start = NULL, handler_pid = NULL, \
             handler_start = NULL, run_since = NULL, run_task = NULL, run_last = NULL, \
             stop_signal = NULL, stop_kill_ms = NULL";
        self.conn.execute(sql, []).map(drop).map_err(|e| database(&e, "pausing the consumers of the copy"))
    }

    /// The id from which on no id is missing; nothing when none was ever missing. Ids before it may
    /// have been pruned.
    pub fn end_of_gaps(&self) -> Result<Option<i64>> {
        let failed = |e: rusqlite::Error| database(&e, "looking for pruned events");
        let ever = newest_ever(&self.conn).map_err(failed)?;
        if self.last_upto(i64::MAX)? < ever {
            return Ok(Some(ever.saturating_add(1)));
        }
        let sql = "SELECT id FROM events e WHERE id > 1 \
                   AND NOT EXISTS (SELECT 1 FROM events b WHERE b.id = e.id - 1) ORDER BY id DESC LIMIT 1";
        self.conn.query_row(sql, [], |row| row.get(0)).optional().map_err(failed)
    }

    /// Closes the database so that it is whole in its one file. Nobody else may be using it.
    pub fn close_whole(self) -> Result<()> {
        let doing = "completing the copy of the database";
        let failed = |e: rusqlite::Error| database(&e, doing);
        if !self.truncate_wal().map_err(failed)? {
            return Err(Failure::could_not(
                format_args!("somebody else uses the database while {doing}"),
                "leave the unfinished copy alone, and try again",
            ));
        }
        // With nothing in it any more, closing removes the WAL.
        self.conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false).map(drop).map_err(failed)
    }
}

/// Text as SQLite takes it, which for a path need not be UTF-8.
struct RawText<'a>(&'a [u8]);

impl ToSql for RawText<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(self.0)))
    }
}
