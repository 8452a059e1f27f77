//! Database operations of `doctor` and `backup`, beyond the store's interface.

use std::path::Path;

use rusqlite::{Connection, Row, params};

use super::error::Doing;
use super::{BUSY_LIMIT, Sqlite, migrate, newest, text_of};
use crate::error::{DatabaseErrorKind, Result, database};
use crate::model::time;

/// Condition for invalid cursors. `?1` is the newest id ever assigned.
const STRAY_CURSOR: &str = "(typeof(last_acked_id) <> 'integer' OR last_acked_id > ?1 OR last_acked_id < 0)";

impl Sqlite {
    /// Opens a database for examination: writes are disabled, and an older schema is accepted and not
    /// migrated.
    ///
    /// # Errors
    ///
    /// It cannot be read, is not a thread's, or is newer than this program. It is left untouched.
    pub fn open_to_examine(path: &Path) -> Result<Sqlite> {
        let store = Sqlite::connect(path, BUSY_LIMIT)?;
        let accepted = migrate::refuse_foreign(&store.conn, path);
        let store = store.if_accepted(accepted)?;
        store.conn.execute_batch("PRAGMA query_only = ON").doing("opening the database")?;
        Ok(store)
    }

    /// Allows writes on this connection. To be called once the database was found intact.
    pub fn allow_writing(&mut self) -> Result<()> {
        let doing = "preparing to repair";
        self.must_be_writable(doing)?;
        self.conn.execute_batch("PRAGMA query_only = OFF").doing(doing)
    }

    /// SQLite's first hundred integrity errors; empty if the file is intact.
    pub fn integrity_errors(&self) -> Result<Vec<String>> {
        let ask = || -> rusqlite::Result<Vec<String>> {
            let mut statement = self.conn.prepare("PRAGMA main.integrity_check(100)")?;
            let lines = statement.query_map([], |row| row.get_ref(0).map(text_of))?;
            lines.map(|line| line.map(Option::unwrap_or_default)).collect()
        };
        let text = ask().doing("checking the database")?.join("\n");
        Ok(text.lines().filter(|line| *line != "ok").map(str::to_owned).collect())
    }

    /// Rebuilds all indexes from their tables.
    pub fn rebuild_indexes(&mut self) -> Result<()> {
        self.conn.execute_batch("REINDEX").doing("rebuilding the indexes")
    }

    /// Whether the schema is that of the earlier implementation.
    pub fn is_older(&self) -> Result<bool> {
        migrate::is_older(&self.conn).doing("reading the schema")
    }

    /// Names of missing indexes and triggers.
    pub fn missing_objects(&self) -> Result<Vec<String>> {
        let doing = "reading the schema";
        let fresh = Connection::open_in_memory().doing(doing)?;
        migrate::create(&fresh, false).doing(doing)?;
        let names = |conn: &Connection| -> rusqlite::Result<Vec<String>> {
            let sql =
                "SELECT name FROM main.sqlite_schema WHERE type IN ('index', 'trigger') AND sql IS NOT NULL";
            conn.prepare(sql)?.query_map([], |row| row.get(0))?.collect()
        };
        let present = names(&self.conn).doing(doing)?;
        Ok(names(&fresh).doing(doing)?.into_iter().filter(|name| !present.contains(name)).collect())
    }

    /// Migrates an older schema, and adds missing indexes and triggers.
    pub fn migrate(&mut self) -> Result<()> {
        migrate::migrate(&mut self.conn).doing("bringing the schema up to date")
    }

    /// Creates the missing parts of an older schema, for this connection only.
    pub fn create_compat_views(&mut self) -> Result<()> {
        // They are temporary, but `query_only` forbids creating them all the same.
        let made = self
            .conn
            .execute_batch("PRAGMA query_only = OFF")
            .and_then(|()| migrate::create_compat_views(&self.conn))
            .and_then(|()| self.conn.execute_batch("PRAGMA query_only = ON"));
        made.doing("reading an older schema")
    }

    /// The journal mode: `wal`, unless another program changed it.
    pub fn journal_mode(&self) -> Result<String> {
        self.conn
            .query_row("PRAGMA main.journal_mode", [], |row| row.get(0))
            .doing("reading the journal mode")
    }

    /// Switches back to write-ahead logging.
    ///
    /// # Errors
    ///
    /// [`NoWal`](crate::Error::NoWal); those of the database.
    pub fn use_wal(&mut self) -> Result<()> {
        migrate::use_wal(&self.conn, &self.path)
    }

    /// Cursors past the newest id ever assigned, negative, or not integers, as consumer and SQL literal.
    pub fn stray_cursors(&self) -> Result<Vec<(String, String)>> {
        let ask = || -> rusqlite::Result<Vec<(String, String)>> {
            // Of one moment: an event that is stored and acknowledged in between is no error.
            let _snapshot = self.conn.unchecked_transaction()?;
            let mut statement = self.conn.prepare(&format!(
                "SELECT consumer_id, quote(last_acked_id) FROM main.consumer_progress WHERE {STRAY_CURSOR} \
                 ORDER BY consumer_id"
            ))?;
            let text =
                |row: &Row<'_>, column| row.get_ref(column).map(text_of).map(Option::unwrap_or_default);
            let rows =
                statement.query_map([newest(&self.conn)?], |row| Ok((text(row, 0)?, text(row, 1)?)))?;
            rows.collect()
        };
        ask().doing("reading the cursors")
    }

    /// Clamps these cursors to the range from 0 to the newest id; sets those that are not integers to 0.
    pub fn repair_cursors(&mut self) -> Result<()> {
        let sql = format!(
            "UPDATE consumer_progress SET updated_at = ?2, last_acked_id = \
                    CASE WHEN typeof(last_acked_id) = 'integer' THEN max(0, min(last_acked_id, ?1)) ELSE 0 END \
             WHERE {STRAY_CURSOR}"
        );
        self.transact("repairing cursors", |conn| {
            conn.execute(&sql, params![newest(conn)?, time::now()])?;
            Ok(())
        })
    }

    /// Closes the database so that it is complete in its one file. No other connection may be open.
    pub fn close_whole(self) -> Result<()> {
        let doing = "completing the copy of the database";
        if !self.truncate_wal().doing(doing)? {
            return Err(database(DatabaseErrorKind::Other, doing, "another process is using it"));
        }
        // The WAL is empty now, so closing removes it.
        self.keep_wal(false).doing(doing)
    }
}
