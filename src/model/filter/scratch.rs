//! An in-memory database with only the table `events`, for checking filters and evaluating them on single
//! events.
//!
//! The real table is not suitable for checking: SQLite also authorizes the default of every column that is
//! read, so that a filter on `created_at` would seem to call `strftime`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::mpsc::Receiver;

use rusqlite::config::DbConfig;
use rusqlite::hooks::{AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, Error, ErrorCode, params};

use super::authorizer::{Seen, authorizer};
use super::lenient;
use super::{
    Filter, FilterError, MAX_ARGUMENTS, MAX_DEPTH, MAX_INSTRUCTIONS, MAX_PATTERNS, MAX_TEXT, MAX_VALUE,
    Scope, message,
};
use crate::model::event::Row;

/// The columns of `events` that a filter may read.
const COLUMN_DEFS: &str = "id INTEGER PRIMARY KEY, created_at TEXT NOT NULL, source TEXT NOT NULL, type TEXT NOT NULL, \
                     subtype TEXT, content TEXT NOT NULL, metadata TEXT";

thread_local! {
    static SCRATCH: RefCell<Option<Connection>> = const { RefCell::new(None) };
    /// One whose JSON functions are replaced.
    static LENIENT: RefCell<Option<Connection>> = const { RefCell::new(None) };
    /// What [`check`] has accepted, at most [`REMEMBERED`] texts: it takes longer than evaluating a filter on many events.
    static ACCEPTED: RefCell<BTreeMap<(Scope, String), i32>> = const { RefCell::new(BTreeMap::new()) };
}

/// Those of a hundred consumers.
const REMEMBERED: usize = 100;

/// Calls `work` with this OS thread's scratch database, opening it if necessary.
fn with_scratch<T, E: From<Error>>(work: impl FnOnce(&mut Connection) -> Result<T, E>) -> Result<T, E> {
    SCRATCH.with_borrow_mut(|slot| match slot {
        Some(scratch) => work(scratch),
        none => work(none.insert(open()?)),
    })
}

/// Like [`with_scratch`], with the database in which what is not JSON gives NULL.
fn with_lenient<T>(work: impl FnOnce(&mut Connection) -> rusqlite::Result<T>) -> rusqlite::Result<T> {
    LENIENT.with_borrow_mut(|slot| match slot {
        Some(scratch) => work(scratch),
        none => {
            let scratch = open()?;
            lenient::replace_functions(&scratch)?;
            work(none.insert(scratch))
        }
    })
}

fn open() -> rusqlite::Result<Connection> {
    let scratch = Connection::open_in_memory()?;
    scratch.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DML, false)?;
    scratch.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DDL, false)?;
    // With two arguments, the cost of these is the product of their lengths.
    for name in ["trim", "ltrim", "rtrim"] {
        scratch.remove_function(name, 2)?;
    }
    // In one transaction that never ends, replacing the row takes half the time.
    scratch.execute_batch(&format!("CREATE TABLE events ({COLUMN_DEFS}); BEGIN"))?;
    scratch.set_limit(Limit::SQLITE_LIMIT_VDBE_OP, MAX_INSTRUCTIONS)?;
    scratch.set_limit(Limit::SQLITE_LIMIT_EXPR_DEPTH, MAX_DEPTH)?;
    scratch.set_limit(Limit::SQLITE_LIMIT_FUNCTION_ARG, MAX_ARGUMENTS)?;
    scratch.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_VALUE)?;
    Ok(scratch)
}

/// The event on which filters are checked.
const EXAMPLE: Row<'_> = Row {
    id: 1,
    created_at: b"2026-03-18T10:30:00.123Z",
    source: b"self",
    kind: b"message",
    subtype: None,
    content: b"{}",
    metadata: Some(b"{}"),
};

/// What precedes the text when it is checked.
const BEFORE: &str = "SELECT CASE WHEN\n";

/// Refuses text that is not a single expression over an event's columns, or that exceeds the limits. Returns the
/// maximum length of each of its LIKE and GLOB patterns.
pub fn check(text: &str, scope: Scope) -> Result<i32, FilterError> {
    if text.len() > MAX_TEXT {
        return Err(refused(format!("is {} bytes long; the limit is {MAX_TEXT}", text.len())));
    }
    if text.contains('\0') {
        return Err(refused("contains a NUL character"));
    }
    let of_text = (scope, text.to_owned());
    if let Some(max_pattern) = ACCEPTED.with_borrow(|accepted| accepted.get(&of_text).copied()) {
        return Ok(max_pattern);
    }
    let max_pattern = with_scratch(|scratch| {
        // What is accepted may not depend on which event was evaluated last.
        store(scratch, &EXAMPLE)?;
        let (authorizer, seen) = authorizer(scope);
        scratch.authorizer(Some(authorizer))?;
        // Not inside parentheses, so that a surplus closing one is a syntax error.
        let sql = format!("{BEFORE}{text}\nTHEN 1 END FROM events");
        let tried = try_out(scratch, &sql, &seen);
        scratch.authorizer(None::<fn(AuthContext<'_>) -> Authorization>)?;
        let max_pattern = tried.map_err(|e| not_compiled(scratch, &sql, text, e))??;
        check_in_brackets(scratch, text)?;
        Ok::<_, FilterError>(max_pattern)
    })?;
    ACCEPTED.with_borrow_mut(|accepted| {
        if accepted.len() >= REMEMBERED {
            accepted.clear();
        }
        accepted.insert(of_text, max_pattern);
    });
    Ok(max_pattern)
}

/// Compiles the filter, and evaluates it on the row that is there, [`EXAMPLE`], to detect a pattern that is too long for
/// every row. Returns the maximum length of its patterns.
///
/// # Errors
///
/// The outer error: the statement does not compile.
fn try_out(
    scratch: &Connection,
    sql: &str,
    seen: &Receiver<Seen>,
) -> rusqlite::Result<Result<i32, FilterError>> {
    let prepared = scratch.prepare(sql);
    let mut patterns = 0;
    for one in seen.try_iter() {
        match one {
            Seen::Pattern => patterns += 1,
            Seen::Denied(reason) => return Ok(Err(refused(reason))),
        }
    }
    let mut statement = prepared?;
    if statement.parameter_count() > 0 {
        return Ok(Err(refused("contains a parameter (?, :name, @name or $name)")));
    }
    let max_pattern = MAX_PATTERNS / patterns.max(1);
    scratch.set_limit(Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, max_pattern)?;
    Ok(match statement.exists([]) {
        Err(e) if message(&e).contains("pattern too complex") => {
            Err(refused(format!("has a LIKE or GLOB pattern of more than {max_pattern} bytes")))
        }
        Err(e) if is_out_of_memory(&e) => Err(FilterError::OutOfMemory),
        _ => Ok(max_pattern),
    })
}

/// Compiles the text in the parentheses of a CHECK constraint, where SQLite itself allows only one expression
/// over the columns, without subqueries and parameters. The statement is never executed.
fn check_in_brackets(scratch: &Connection, text: &str) -> Result<(), FilterError> {
    let sql = format!("CREATE TEMP TABLE events ({COLUMN_DEFS}, CHECK (\n{text}\n))");
    scratch.prepare(&sql).map(drop).map_err(|e| match message(&e) {
        said if said.contains("subqueries prohibited") => refused("contains a subquery"),
        _ => e.into(),
    })
}

/// Whether an event matches, or the evaluation's error.
pub fn evaluate(filter: &Filter, row: &Row<'_>) -> rusqlite::Result<bool> {
    select(filter, row, &format!("SELECT {} FROM events", filter.condition()), |row| row.get(0))
}

/// The expression's value as text, or the evaluation's error.
pub fn value(filter: &Filter, row: &Row<'_>) -> rusqlite::Result<Option<String>> {
    // What comes from a BLOB may not be UTF-8.
    let text = |row: &rusqlite::Row<'_>| {
        Ok(row.get_ref(0)?.as_bytes_or_null()?.map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
    };
    select(filter, row, &filter.value_statement(), text)
}

/// Checks that the expression is not too complex for its value to be read.
pub fn check_value(filter: &Filter) -> Result<(), FilterError> {
    let sql = filter.value_statement();
    with_scratch(|scratch| {
        scratch.prepare_cached(&sql).map(drop).map_err(|e| not_compiled(scratch, &sql, filter.text(), e))
    })
}

fn select<T>(
    filter: &Filter,
    row: &Row<'_>,
    sql: &str,
    read: impl Fn(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    let select = |scratch: &mut Connection| {
        // The limit does not apply to storing the event.
        scratch.set_limit(Limit::SQLITE_LIMIT_LENGTH, i32::MAX)?;
        let stored = store(scratch, row);
        filter.set_limits(scratch)?;
        stored?;
        scratch.prepare_cached(sql)?.query_row([], &read)
    };
    match with_scratch(select) {
        Err(e) if lenient::is_not_json(&e) => with_lenient(select),
        selected => selected,
    }
}

/// Puts the event in the place of the only row, if there is one.
fn store(scratch: &Connection, row: &Row<'_>) -> rusqlite::Result<()> {
    // An UPDATE that changes the id would take longer.
    scratch.prepare_cached("DELETE FROM events")?.execute([])?;
    scratch.prepare_cached("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)")?.execute(params![
        row.id,
        text_or_blob(row.created_at),
        text_or_blob(row.source),
        text_or_blob(row.kind),
        row.subtype.map(text_or_blob),
        text_or_blob(row.content),
        row.metadata.map(text_or_blob)
    ])?;
    Ok(())
}

/// Text, or a BLOB if the bytes are not UTF-8.
pub fn text_or_blob(bytes: &[u8]) -> ToSqlOutput<'_> {
    ToSqlOutput::Borrowed(std::str::from_utf8(bytes).map_or(ValueRef::Blob(bytes), ValueRef::from))
}

fn refused(why: impl Into<String>) -> FilterError {
    FilterError::Invalid(why.into())
}

impl From<Error> for FilterError {
    fn from(error: Error) -> FilterError {
        match is_out_of_memory(&error) {
            true => FilterError::OutOfMemory,
            false => refused(format!("does not compile: {}", message(&error))),
        }
    }
}

/// Why a statement did not compile. SQLite reports too many instructions as out of memory. To tell them
/// apart: with too many instructions, it compiles without the limit and fails again with it.
fn not_compiled(scratch: &Connection, sql: &str, text: &str, error: Error) -> FilterError {
    if !is_out_of_memory(&error) {
        return refused_at(text, &error).unwrap_or_else(|| error.into());
    }
    let compile = |limit| {
        scratch.set_limit(Limit::SQLITE_LIMIT_VDBE_OP, limit)?;
        scratch.prepare(sql).map(drop)
    };
    match (compile(i32::MAX), compile(MAX_INSTRUCTIONS)) {
        (Ok(()), Err(_)) => {
            refused(format!("is too complex: it compiles to more than {MAX_INSTRUCTIONS} instructions"))
        }
        _ => FilterError::OutOfMemory,
    }
}

/// What to say about an error whose message would quote what surrounds the text; `None` for any other.
fn refused_at(text: &str, error: &Error) -> Option<FilterError> {
    let Error::SqlInputError { msg, offset, .. } = error else { return None };
    let at = usize::try_from(*offset).ok()?.checked_sub(BEFORE.len())?;
    match text.get(at..).unwrap_or_default() {
        rest if rest.trim_end().is_empty() => Some(refused(
            "does not compile: it ends too early, where a value or a closing bracket is missing",
        )),
        rest if msg.starts_with("unrecognized token") && rest.starts_with(['\'', '"', '`', '[']) => {
            let start: String = rest.chars().take(20).collect();
            Some(refused(format!("does not compile: the quote that begins with {start} is not closed")))
        }
        _ => None,
    }
}

fn is_out_of_memory(error: &Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::OutOfMemory)
}
