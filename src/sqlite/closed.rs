//! Threads that are closed: they were moved, or an import into them is not complete.
//!
//! A bit of `user_version` says so, which each write transaction reads, and for which older programs refuse the thread.
//! A trigger keeps what writes the table without looking from storing events that nobody would read.

use rusqlite::{Connection, OptionalExtension};

use super::config;
use crate::model::closed::{CLOSED, Closed};

/// In `user_version`.
pub const BIT: i64 = 1 << 20;

/// Why the thread is closed, if it is.
pub fn load(conn: &Connection) -> rusqlite::Result<Option<Closed>> {
    let version: i64 = conn.prepare_cached("PRAGMA user_version")?.query_row([], |row| row.get(0))?;
    if version & BIT == 0 {
        return Ok(None);
    }
    let mut find = conn.prepare("SELECT value FROM main.config WHERE name = ?")?;
    let json: Option<String> = find.query_row([CLOSED], |row| row.get(0)).optional()?;
    Ok(Some(Closed::of_json(&json.unwrap_or_default())))
}

/// Must be called inside a transaction.
pub fn set(conn: &Connection, closed: Option<&Closed>) -> rusqlite::Result<()> {
    config::set(conn, CLOSED, closed.map(Closed::to_json).as_deref())?;
    conn.execute_batch("DROP TRIGGER IF EXISTS events_moved")?;
    if let Some(Closed::Moved { .. }) = closed {
        conn.execute_batch(
            "CREATE TRIGGER events_moved BEFORE INSERT ON events BEGIN \
             SELECT raise(ABORT, 'this thread was moved, as `thread info` says'); END",
        )?;
    }
    let version: i64 = conn.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let version = if closed.is_some() { version | BIT } else { version & !BIT };
    conn.pragma_update(None, "user_version", version)
}
