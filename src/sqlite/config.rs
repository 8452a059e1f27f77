//! The settings of the thread.
//!
//! The table is made with the first setting, so that a thread without any costs a push no query. Older programs ignore
//! it.

use std::collections::BTreeMap;

use rusqlite::{Connection, params};

use super::{tables, text_of};

fn has_table(conn: &Connection) -> rusqlite::Result<bool> {
    tables::has_table(conn, "config")
}

pub fn load(conn: &Connection) -> rusqlite::Result<BTreeMap<String, String>> {
    if !has_table(conn)? {
        return Ok(BTreeMap::new());
    }
    // Others are private to the store.
    let mut statement =
        conn.prepare_cached("SELECT name, value FROM main.config WHERE substr(name, 1, 1) <> '_'")?;
    let pairs = statement.query_map([], |row| Ok((text_of(row.get_ref(0)?), text_of(row.get_ref(1)?))))?;
    pairs
        .map(|pair| pair.map(|(name, value)| (name.unwrap_or_default(), value.unwrap_or_default())))
        .collect()
}

/// Makes the table. Must be called inside a transaction.
pub fn prepare(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch(
        "CREATE TABLE IF NOT EXISTS config (name TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    )
}

/// Sets one or, without a value, removes it. Returns whether it was set before. Must be called inside a transaction.
pub fn set(conn: &Connection, name: &str, value: Option<&str>) -> rusqlite::Result<bool> {
    let is_set = has_table(conn)? && conn.execute("DELETE FROM config WHERE name = ?", [name])? > 0;
    if let Some(value) = value {
        prepare(conn)?;
        conn.execute("INSERT INTO config (name, value) VALUES (?, ?)", params![name, value])?;
    }
    Ok(is_set)
}
