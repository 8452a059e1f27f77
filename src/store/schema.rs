//! The schema, and bringing older databases up to it.
//!
//! The tables and their first columns are shared with other programs and never change. What this
//! program adds (nullable columns, an index, the table `dead_letters`) is looked for at every opening,
//! and what is missing is added in one transaction. `user_version` stays 0 for as long as
//! an older program does no harm to a newer database; a higher one is refused.

use std::path::Path;
use std::time::Instant;

use rusqlite::{Connection, TransactionBehavior};

use super::{BUSY_LIMIT, SHORT_WAIT, newest_ever};
use crate::error::{Failure, Result, database};

/// The newest `user_version` this program understands.
pub const VERSION: i64 = 0;

/// Columns that were added to `subscriptions`.
///
/// `cwd`: where the handler runs. `token`: tells a subscription from a later one of the same name.
/// `mark_*`: between `mark_from` and `mark_upto` nothing matches `mark_filter`. `filter_errors`,
/// `filter_error_id`: how often the filter erred, and the newest event it did so on. The rest is
/// what `subscribe` was asked for, and the state of runs: see [`crate::rule`].
const ADDED: &[(&str, &str)] = &[
    ("cwd", "TEXT"),
    ("token", "TEXT"),
    ("mark_filter", "TEXT"),
    ("mark_from", "INTEGER"),
    ("mark_upto", "INTEGER"),
    ("filter_errors", "INTEGER"),
    ("filter_error_id", "INTEGER"),
    ("deliver", "TEXT"),
    ("batch_size", "INTEGER"),
    ("max_attempts", "INTEGER"),
    ("backoff", "TEXT"),
    ("timeout_ms", "INTEGER"),
    ("phase", "TEXT"),
    ("paused", "INTEGER"),
    ("reason", "TEXT"),
    ("attempts", "INTEGER"),
    ("next_try", "TEXT"),
    ("run_boot", "TEXT"),
    ("run_pid", "INTEGER"),
    ("run_start", "INTEGER"),
    ("handler_pid", "INTEGER"),
    ("handler_start", "INTEGER"),
    ("run_since", "TEXT"),
    ("run_began", "TEXT"),
    ("run_ended", "TEXT"),
    ("run_exit", "TEXT"),
    ("run_task", "TEXT"),
    ("run_last", "INTEGER"),
    ("run_cursor", "INTEGER"),
    ("run_newest", "INTEGER"),
    ("narrow_upto", "INTEGER"),
    ("dead_streak", "INTEGER"),
    ("stop_signal", "INTEGER"),
    ("stop_kill_ms", "INTEGER"),
];

/// Columns that were added to `events`: a JSON object, and what makes a push repeatable.
const ADDED_TO_EVENTS: &[(&str, &str)] = &[("metadata", "TEXT"), ("idempotency_key", "TEXT")];

/// Events without a key cost it nothing.
pub const KEY_INDEX: &str = "CREATE UNIQUE INDEX IF NOT EXISTS idx_events_idempotency_key \
        ON events (idempotency_key) WHERE idempotency_key IS NOT NULL";

/// Events that a consumer could not be brought to accept. `retry` marks those to deliver again.
const DEAD_LETTERS: &str = "CREATE TABLE IF NOT EXISTS dead_letters (\
        consumer_id TEXT NOT NULL, event_id INTEGER NOT NULL, attempts INTEGER NOT NULL, last_exit INTEGER, \
        last_error TEXT, parked_at TEXT NOT NULL, retry INTEGER NOT NULL DEFAULT 0, \
        PRIMARY KEY (consumer_id, event_id)) WITHOUT ROWID";

/// The tables and columns without which a database is not a thread's.
const BASE: &[(&str, &[&str])] = &[
    ("events", &["id", "created_at", "source", "type", "subtype", "content"]),
    ("subscriptions", &["consumer_id", "handler_cmd", "filter"]),
    ("consumer_progress", &["consumer_id", "last_acked_id", "updated_at"]),
];

/// How many columns and tables stand beside those of the earlier implementation. It rises with each
/// addition, so two programs with the same number make the same threads.
pub fn additions() -> usize {
    let dead_letters = 1;
    ADDED.len() + ADDED_TO_EVENTS.len() + dead_letters
}

/// Makes the tables in an empty database.
pub fn create(conn: &Connection) -> rusqlite::Result<()> {
    // Only an empty database can be told so. It costs a push nothing, a large one a thirtieth more of
    // WAL, and lets `prune --compact` give space back while others push.
    conn.execute_batch("PRAGMA auto_vacuum = INCREMENTAL")?;
    conn.execute_batch("BEGIN IMMEDIATE")?;
    conn.execute_batch(include_str!("schema.sql"))?;
    add(conn)?;
    conn.execute_batch("COMMIT")
}

/// Switches to WAL, which lasts, and checks that it took effect: some file systems cannot do it.
pub fn use_wal(conn: &Connection, path: &Path) -> Result<()> {
    let began = Instant::now();
    let switched = loop {
        match switch_to_wal(conn) {
            // Where two would wait for each other, SQLite turns one away without any waiting.
            Err(e) if is_busy(&e) && began.elapsed() < BUSY_LIMIT => std::thread::sleep(SHORT_WAIT),
            done => break done,
        }
    };
    let mode = switched.map_err(|e| database(&e, "switching to write-ahead logging"))?;
    if mode.eq_ignore_ascii_case("wal") {
        return Ok(());
    }
    Err(Failure::could_not(
        format_args!("{} cannot use write-ahead logging (it stays in mode '{mode}')", path.display()),
        "keep the thread on a local file system",
    ))
}

fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy)
}

/// The mode it came to.
fn switch_to_wal(conn: &Connection) -> rusqlite::Result<String> {
    let mut statement = conn.prepare("PRAGMA journal_mode = WAL")?;
    let mut rows = statement.query([])?;
    let mode = rows.next()?.map(|row| row.get(0)).transpose()?.unwrap_or_default();
    // The answer comes before the change is written, and only the end tells that writing failed.
    rows.next()?;
    Ok(mode)
}

/// Refuses what is not a thread's database or is newer than this program, untouched; adds the
/// columns that an older one lacks, or makes up for them where it may only be read.
pub fn bring_up_to_date(conn: &mut Connection, path: &Path) -> Result<()> {
    refuse_strangers(conn, path)?;
    let failed = |e: rusqlite::Error| database(&e, "opening the database");
    let read_only = conn.is_readonly("main").map_err(failed)?;
    match is_older(conn).map_err(failed)? {
        false => {}
        true if read_only => stand_in(conn).map_err(|e| database(&e, "reading an older schema"))?,
        true => migrate(conn).map_err(|e| database(&e, "bringing the schema up to date"))?,
    }
    let mode: String = conn.query_row("PRAGMA journal_mode", [], |row| row.get(0)).map_err(failed)?;
    if mode.eq_ignore_ascii_case("wal") || read_only { Ok(()) } else { use_wal(conn, path) }
}

/// Refuses what is not a thread's database or is newer than this program.
pub fn refuse_strangers(conn: &Connection, path: &Path) -> Result<()> {
    let failed = |e: rusqlite::Error| foreign_or(&e, path, "opening the database");
    let version: i64 = conn.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(failed)?;
    for (table, columns) in BASE {
        if !has(conn, table, columns.iter().copied()).map_err(failed)? {
            return Err(foreign(path));
        }
    }
    if version > VERSION {
        return Err(Failure::could_not(
            format_args!(
                "{} has schema version {version}, newer than the {VERSION} known here",
                path.display()
            ),
            "use a newer version of thread; nothing was changed",
        ));
    }
    Ok(())
}

/// Whether anything is missing that this program adds to an older database.
pub fn is_older(conn: &Connection) -> rusqlite::Result<bool> {
    let names = |columns: &'static [(&str, &str)]| columns.iter().map(|(name, _)| *name);
    Ok(!(has(conn, "subscriptions", names(ADDED))?
        && has(conn, "events", names(ADDED_TO_EVENTS))?
        && has(conn, "dead_letters", ["retry"])?))
}

/// Whether there is such a table with these columns. Every command asks, and a statement that names
/// them all takes SQLite several times as long as what it remembers of the schema. What it does not
/// remember is asked with a statement, for another process may have added it since.
fn has<'a>(
    conn: &Connection,
    table: &str,
    columns: impl IntoIterator<Item = &'a str>,
) -> rusqlite::Result<bool> {
    for column in columns {
        if conn.column_exists(Some("main"), table, column)? {
            continue;
        }
        match conn.prepare(&format!("SELECT {column} FROM main.{table}")) {
            Ok(_) => {}
            Err(e) if lacks_something(&e) => return Ok(false),
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}

/// Whether a statement failed to prepare because a table or column is not there.
fn lacks_something(error: &rusqlite::Error) -> bool {
    // Two forms of the same: the second when SQLite can point at the place in the SQL.
    match error {
        rusqlite::Error::SqliteFailure(error, _) | rusqlite::Error::SqlInputError { error, .. } => {
            error.code == rusqlite::ErrorCode::Unknown
        }
        _ => false,
    }
}

pub fn migrate(conn: &mut Connection) -> rusqlite::Result<()> {
    let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    add(&transaction)?;
    transaction.execute_batch(
        "CREATE INDEX IF NOT EXISTS idx_events_source ON events (source); \
         CREATE INDEX IF NOT EXISTS idx_events_type ON events (type);",
    )?;
    // A cursor that an older program let run ahead would hide the events up to it.
    transaction.execute(
        "UPDATE consumer_progress SET last_acked_id = ?1 WHERE last_acked_id > ?1",
        [newest_ever(&transaction)?],
    )?;
    transaction.commit()
}

/// Adds whatever is not there. Another process may have been first.
fn add(conn: &Connection) -> rusqlite::Result<()> {
    for (table, columns) in [("subscriptions", ADDED), ("events", ADDED_TO_EVENTS)] {
        for (name, kind) in columns {
            if !has(conn, table, [*name])? {
                conn.execute_batch(&format!("ALTER TABLE {table} ADD COLUMN {name} {kind}"))?;
            }
        }
    }
    conn.execute_batch(KEY_INDEX)?;
    conn.execute_batch(DEAD_LETTERS)
}

/// Lets whoever may only read a thread read an older one: what it lacks stands, empty, in this
/// connection's own temporary schema, where names are looked up first.
pub fn stand_in(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch("PRAGMA temp_store = MEMORY")?;
    for (table, added) in [("subscriptions", ADDED), ("events", ADDED_TO_EVENTS)] {
        let mut columns = String::from("*");
        for (name, _) in added {
            if !has(conn, table, [*name])? {
                columns.push_str(&format!(", NULL AS {name}"));
            }
        }
        conn.execute_batch(&format!("CREATE TEMP VIEW {table} AS SELECT {columns} FROM main.{table}"))?;
    }
    if !has(conn, "dead_letters", ["retry"])? {
        conn.execute_batch(&DEAD_LETTERS.replacen("CREATE TABLE", "CREATE TEMP TABLE", 1))?;
    }
    Ok(())
}

/// What is said of a file that could not be opened: it may be no database at all.
pub fn foreign_or(error: &rusqlite::Error, path: &Path, doing: &str) -> Failure {
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::NotADatabase) => foreign(path),
        _ => database(error, doing),
    }
}

fn foreign(path: &Path) -> Failure {
    Failure::could_not(
        format_args!("{} is not a thread's database", path.display()),
        "name a directory made by `thread init <path>`; nothing was changed",
    )
}
