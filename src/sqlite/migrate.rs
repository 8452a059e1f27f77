//! Making the schema, and bringing databases of the earlier implementation up to it.
//!
//! `schema.sql` is the whole truth. `user_version` stays 0 for as long as an older program does no
//! harm to a newer database; a higher one is refused.

use std::path::Path;
use std::time::Instant;

use rusqlite::{Connection, ErrorCode, TransactionBehavior};

use super::error::{Doing, failed};
use super::{BUSY_LIMIT, SHORT_WAIT, newest};
use crate::error::{Error, Result};

/// The newest `user_version` this program understands.
const VERSION: i64 = 0;

const SCHEMA: &str = include_str!("schema.sql");

/// Twice SQLite's own: a batch makes half as many writes of it, and a single push none more.
const PAGE_BYTES: u32 = 8192;

/// Columns of `events` that the earlier implementation does not have.
const LATER_COLUMNS: &[&str] = &["metadata", "idempotency_key"];

/// The tables and columns without which a database is not a thread's.
const BASE: &[(&str, &[&str])] = &[
    ("events", &["id", "created_at", "source", "type", "subtype", "content"]),
    ("subscriptions", &["consumer_id", "handler_cmd", "filter"]),
    ("consumer_progress", &["consumer_id", "last_acked_id", "updated_at"]),
];

/// Makes the tables in an empty database.
pub fn create(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch(&format!("PRAGMA page_size = {PAGE_BYTES}; BEGIN IMMEDIATE; {SCHEMA} COMMIT"))
}

/// Switches to WAL, which lasts, and checks that it took effect: some file systems cannot do it.
pub fn use_wal(conn: &Connection, path: &Path) -> Result<()> {
    let began = Instant::now();
    let switched = loop {
        match switch_to_wal(conn) {
            // Where two would wait for each other, SQLite turns one away without any waiting.
            Err(e)
                if e.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) && began.elapsed() < BUSY_LIMIT =>
            {
                std::thread::sleep(SHORT_WAIT);
            }
            done => break done,
        }
    };
    let mode = switched.doing("switching to write-ahead logging")?;
    if mode.eq_ignore_ascii_case("wal") { Ok(()) } else { Err(Error::NoWal { path: path.to_owned(), mode }) }
}

/// Returns the mode it came to.
fn switch_to_wal(conn: &Connection) -> rusqlite::Result<String> {
    let mut statement = conn.prepare("PRAGMA journal_mode = WAL")?;
    let mut rows = statement.query([])?;
    let mode = rows.next()?.map(|row| row.get(0)).transpose()?.unwrap_or_default();
    // The answer comes before the change is written, and only the end tells that writing failed.
    rows.next()?;
    Ok(mode)
}

/// Refuses what is not a thread's database or is newer than this program, untouched; adds what an
/// older one lacks, or makes up for it where one may only read.
pub fn bring_up_to_date(conn: &mut Connection, path: &Path) -> Result<()> {
    let doing = "opening the database";
    refuse_foreign(conn, path)?;
    let read_only = conn.is_readonly("main").doing(doing)?;
    match is_older(conn).doing(doing)? {
        false => {}
        true if read_only => create_compat_views(conn).doing("reading an older schema")?,
        true => migrate(conn).doing("bringing the schema up to date")?,
    }
    let mode: String = conn.query_row("PRAGMA journal_mode", [], |row| row.get(0)).doing(doing)?;
    if mode.eq_ignore_ascii_case("wal") || read_only { Ok(()) } else { use_wal(conn, path) }
}

/// Refuses what is not a thread's database or is newer than this program.
pub fn refuse_foreign(conn: &Connection, path: &Path) -> Result<()> {
    let failed = |e: rusqlite::Error| not_opened(e, path);
    let found: i64 = conn.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(failed)?;
    for (table, columns) in BASE {
        if !has(conn, table, columns).map_err(failed)? {
            return Err(Error::ForeignDatabase(path.to_owned()));
        }
    }
    if found > VERSION {
        return Err(Error::NewerSchema { path: path.to_owned(), found, known: VERSION });
    }
    Ok(())
}

/// Whether anything is missing that this program adds to a database of the earlier implementation.
pub fn is_older(conn: &Connection) -> rusqlite::Result<bool> {
    Ok(!(has(conn, "consumers", &["filter_error_id"])?
        && has(conn, "events", LATER_COLUMNS)?
        && has(conn, "dead_letters", &["retry"])?))
}

/// Whether there is such a table with these columns. Every command asks, so it is answered from what
/// SQLite remembers of the schema; what it does not remember is asked with a statement, for another
/// process may have added it since.
fn has(conn: &Connection, table: &str, columns: &[&str]) -> rusqlite::Result<bool> {
    for column in columns {
        if conn.column_exists(Some("main"), table, *column)? {
            continue;
        }
        match conn.prepare(&format!("SELECT {column} FROM main.{table}")) {
            Ok(_) => {}
            // The second where SQLite can point at the place in the SQL.
            Err(rusqlite::Error::SqliteFailure(e, _) | rusqlite::Error::SqlInputError { error: e, .. })
                if e.code == ErrorCode::Unknown =>
            {
                return Ok(false);
            }
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}

pub fn migrate(conn: &mut Connection) -> rusqlite::Result<()> {
    let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for column in LATER_COLUMNS {
        // Another process may have been first.
        if !has(&transaction, "events", &[column])? {
            transaction.execute_batch(&format!("ALTER TABLE events ADD COLUMN {column} TEXT"))?;
        }
    }
    transaction.execute_batch(SCHEMA)?;
    transaction.execute_batch(
        "INSERT OR IGNORE INTO consumers (consumer_id) SELECT consumer_id FROM subscriptions",
    )?;
    // A cursor that the earlier implementation let run ahead would hide the events up to it.
    transaction.execute(
        "UPDATE consumer_progress SET last_acked_id = ?1 WHERE last_acked_id > ?1",
        [newest(&transaction)?],
    )?;
    transaction.commit()
}

/// Lets a process that may only read a thread read an older one: whatever it lacks is created, empty, in this
/// connection's own temporary schema, where names are looked up first.
pub fn create_compat_views(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch("PRAGMA temp_store = MEMORY")?;
    if !has(conn, "events", LATER_COLUMNS)? {
        let sql =
            "CREATE TEMP VIEW events AS SELECT *, NULL AS metadata, NULL AS idempotency_key FROM main.events";
        conn.execute_batch(sql)?;
    }
    for table in ["consumers", "dead_letters"] {
        if !conn.table_exists(Some("main"), table)? {
            let create = format!("CREATE TABLE IF NOT EXISTS {table} (");
            let statement = SCHEMA.split_once(&create).and_then(|(_, rest)| rest.split_once(';'));
            let sql = format!("CREATE TEMP TABLE {table} ({}", statement.map_or("", |(columns, _)| columns));
            conn.execute_batch(&sql)?;
        }
    }
    Ok(())
}

/// The error for a file that could not be opened: it may be no database at all.
pub fn not_opened(error: rusqlite::Error, path: &Path) -> Error {
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => Error::ForeignDatabase(path.to_owned()),
        _ => failed(error, "opening the database"),
    }
}
