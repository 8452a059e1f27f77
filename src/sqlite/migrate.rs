//! Creates the schema, and migrates databases of the earlier implementation to it.
//!
//! `schema.sql` defines the whole schema. `user_version` stays 0 as long as older programs can safely use a
//! newer database; a higher version is refused.

use std::path::Path;
use std::time::Instant;

use rusqlite::{Connection, ErrorCode, TransactionBehavior};

use super::closed::BIT as CLOSED;
use super::error::{Doing, failed};
use super::{BUSY_LIMIT, SHORT_WAIT, newest};
use crate::error::{Error, Result};

/// The newest `user_version` this program understands.
const VERSION: i64 = STEPS;

/// Some consumer finishes events singly.
pub const SINGLY: i64 = 1;

/// Something is scheduled, or was.
pub const TIME: i64 = 2;

/// Some handler has done a step.
pub const STEPS: i64 = 3;

const SCHEMA: &str = include_str!("schema.sql");

/// Twice SQLite's default: halves the number of writes of a batch, and costs a single push nothing.
const PAGE_BYTES: u32 = 8192;

/// A push writes four pages to the WAL, however small its event is, and an empty database has fourteen. With pages
/// of 2 KiB, a long answer stored piece by piece writes a quarter as much.
const SMALL_PAGE_BYTES: u32 = 2048;

/// Columns of `events` that the earlier implementation does not have.
const LATER_COLUMNS: &[&str] = &["metadata", "idempotency_key"];

/// Tables and columns that every thread's database has.
const REQUIRED: &[(&str, &[&str])] = &[
    ("events", &["id", "created_at", "source", "type", "subtype", "content"]),
    ("subscriptions", &["consumer_id", "handler_cmd", "filter"]),
    ("consumer_progress", &["consumer_id", "last_acked_id", "updated_at"]),
];

/// Creates the schema in an empty database.
pub fn create(conn: &Connection, small: bool) -> rusqlite::Result<()> {
    let page_bytes = if small { SMALL_PAGE_BYTES } else { PAGE_BYTES };
    conn.execute_batch(&format!("PRAGMA page_size = {page_bytes}; BEGIN IMMEDIATE; {SCHEMA} COMMIT"))
}

/// Switches to WAL mode, which is persistent, and checks that it took effect: some file systems do not
/// support it.
pub fn use_wal(conn: &Connection, path: &Path) -> Result<()> {
    let began = Instant::now();
    let switched = loop {
        match switch_to_wal(conn) {
            // To avoid a deadlock, SQLite fails one of two processes at once, without calling the busy
            // handler.
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

/// Returns the resulting journal mode.
fn switch_to_wal(conn: &Connection) -> rusqlite::Result<String> {
    let mut statement = conn.prepare("PRAGMA journal_mode = WAL")?;
    let mut rows = statement.query([])?;
    let mode = rows.next()?.map(|row| row.get(0)).transpose()?.unwrap_or_default();
    // SQLite returns the row before it writes the change; a failed write is reported only by the next step.
    rows.next()?;
    Ok(mode)
}

/// Refuses a database that is not a thread's or is newer than this program, leaving it untouched. Migrates an
/// older one; if it is read-only, creates temporary replacements for what is missing.
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

/// Refuses a database that is not a thread's or is newer than this program.
pub fn refuse_foreign(conn: &Connection, path: &Path) -> Result<()> {
    let failed = |e: rusqlite::Error| not_opened(e, path);
    let found: i64 = conn.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(failed)?;
    for (table, columns) in REQUIRED {
        if !has(conn, table, columns).map_err(failed)? {
            return Err(Error::ForeignDatabase(path.to_owned()));
        }
    }
    if found & !CLOSED > VERSION {
        return Err(Error::NewerSchema { path: path.to_owned(), found, known: VERSION });
    }
    Ok(())
}

/// Makes programs that do not know this version refuse the thread.
pub fn raise_version(conn: &Connection, to: i64) -> rusqlite::Result<()> {
    let found: i64 = conn.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if found & !CLOSED < to { conn.pragma_update(None, "user_version", to | found & CLOSED) } else { Ok(()) }
}

/// Whether the database lacks anything that this program adds to one of the earlier implementation.
pub fn is_older(conn: &Connection) -> rusqlite::Result<bool> {
    Ok(!(has(conn, "consumers", &["filter_error_id"])?
        && has(conn, "events", LATER_COLUMNS)?
        && has(conn, "dead_letters", &["retry"])?))
}

/// Whether the table exists with these columns. Every command asks, so the first source is SQLite's cached
/// schema. A column that is not in it is checked with a statement, because another process may have added it
/// since.
fn has(conn: &Connection, table: &str, columns: &[&str]) -> rusqlite::Result<bool> {
    for column in columns {
        if conn.column_exists(Some("main"), table, *column)? {
            continue;
        }
        match conn.prepare(&format!("SELECT {column} FROM main.{table}")) {
            Ok(_) => {}
            // The second variant is used if SQLite reports the position in the SQL.
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
        // Another process may have added it in the meantime.
        if !has(&transaction, "events", &[column])? {
            transaction.execute_batch(&format!("ALTER TABLE events ADD COLUMN {column} TEXT"))?;
        }
    }
    transaction.execute_batch(SCHEMA)?;
    transaction.execute_batch(
        "INSERT OR IGNORE INTO consumers (consumer_id) SELECT consumer_id FROM subscriptions",
    )?;
    // The earlier implementation allowed cursors past the newest event; they would hide future events.
    transaction.execute(
        "UPDATE consumer_progress SET last_acked_id = ?1 WHERE last_acked_id > ?1",
        [newest(&transaction)?],
    )?;
    transaction.commit()
}

/// Lets a read-only process read an older database: creates what is missing, empty, in this connection's
/// temporary schema, which takes precedence in name lookups.
pub fn create_compat_views(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch("PRAGMA temp_store = MEMORY")?;
    if !has(conn, "events", LATER_COLUMNS)? {
        let sql =
            "CREATE TEMP VIEW events AS SELECT *, NULL AS metadata, NULL AS idempotency_key FROM main.events";
        conn.execute_batch(sql)?;
    }
    for table in ["consumers", "dead_letters"] {
        if !conn.table_exists(Some("main"), table)? {
            conn.execute_batch(&format!("CREATE TEMP TABLE {table} ({}", columns_of(table)))?;
        }
    }
    Ok(())
}

/// Adds a table that an older database may lack.
pub fn add_table(conn: &Connection, table: &str) -> rusqlite::Result<()> {
    conn.execute_batch(&format!("CREATE TABLE IF NOT EXISTS {table} ({}", columns_of(table)))
}

/// What follows the opening bracket in the statement that creates a table.
fn columns_of(table: &str) -> &'static str {
    let create = format!("CREATE TABLE IF NOT EXISTS {table} (");
    let statement = SCHEMA.split_once(&create).and_then(|(_, rest)| rest.split_once(';'));
    statement.map_or("", |(columns, _)| columns)
}

/// The error for a file that could not be opened; it may not be a database at all.
pub fn not_opened(error: rusqlite::Error, path: &Path) -> Error {
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => Error::ForeignDatabase(path.to_owned()),
        _ => failed(error, "opening the database"),
    }
}
