//! A checked filter: the only way from a user's text to SQL.
//!
//! A filter is one SQL expression over the columns of `events`. It is prepared twice, as a whole
//! WHERE clause and inside the brackets of a CHECK constraint: an expression survives both, whereas
//! text that tries to leave its brackets, to comment them out or to add a clause fails one of them.
//! What parses either way but reaches too far is stopped by SQLite's authorizer (another table, a
//! function that is not on the list) or by the constraint, which may hold no subquery. The
//! authorizer alone would not do: it is not asked about an EXISTS that becomes a join.
//!
//! Evaluating a filter on stored events, and what happens when it errs there, belongs to `store`.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rusqlite::config::DbConfig;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;

/// Longest filter text, in bytes.
pub const MAX_TEXT: usize = 64 * 1024;

/// Longest text a filter may read or make, in bytes; an event beyond it does not match.
///
/// SQLite cannot be interrupted inside one function call, so the cost of one call must be bounded
/// by its arguments: a LIKE costs at most about `MAX_VALUE * MAX_PATTERN` steps.
pub const MAX_VALUE: i32 = 4 * 1024 * 1024;

/// Longest LIKE or GLOB pattern, in bytes.
pub const MAX_PATTERN: i32 = 256;

/// The columns a filter may read.
const COLUMNS: &[&str] = &["id", "created_at", "source", "type", "subtype", "content", "metadata"];

/// Functions whose answer depends on nothing but their arguments and whose cost is bounded by the
/// length of these. Left out on purpose: everything that builds long values from short ones,
/// searches one long text for another, or looks outside the event.
const PURE_FUNCTIONS: &[&str] = &[
    "->",
    "->>",
    "abs",
    "ceil",
    "ceiling",
    "char",
    "coalesce",
    "concat",
    "floor",
    "glob",
    "hex",
    "if",
    "ifnull",
    "iif",
    "instr",
    "json",
    "json_array_length",
    "json_error_position",
    "json_extract",
    "json_quote",
    "json_type",
    "json_valid",
    "length",
    "like",
    "likelihood",
    "likely",
    "lower",
    "ltrim",
    "max",
    "min",
    "mod",
    "nullif",
    "octet_length",
    "round",
    "rtrim",
    "sign",
    "substr",
    "substring",
    "trim",
    "trunc",
    "typeof",
    "unicode",
    "unlikely",
    "upper",
];

/// Functions that may consult the clock: for reading only, never in a subscription.
const CLOCK_FUNCTIONS: &[&str] = &[
    "current_date",
    "current_time",
    "current_timestamp",
    "date",
    "datetime",
    "julianday",
    "strftime",
    "time",
    "timediff",
    "unixepoch",
];

/// What a filter is wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// One reading: the clock may be asked.
    Reading,
    /// A subscription: the same event must always get the same answer, because it is asked once.
    Subscription,
}

/// Why a text is no filter; completes "the filter …".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal(pub String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An SQL condition over the columns of `events` that was checked on the connection it is used on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    text: String,
}

impl Filter {
    /// Checks `text`, for use on `conn`. A blank text is no filter: `Ok(None)`.
    pub fn check(conn: &mut Connection, text: &str, scope: Scope) -> Result<Option<Filter>, Refusal> {
        if text.trim().is_empty() {
            return Ok(None);
        }
        if text.len() > MAX_TEXT {
            return Err(Refusal(format!("is {} bytes long; at most {MAX_TEXT} are taken", text.len())));
        }
        if text.contains('\0') {
            return Err(Refusal("contains a NUL character".into()));
        }
        let forbidden = Arc::new(Mutex::new(None));
        let judge = Judge { scope, selects: 0, forbidden: Arc::clone(&forbidden) };
        let mut scratch = scratch().map_err(does_not_compile)?;
        let bare = {
            let judged = Authorized::new(&mut scratch, judge);
            prepare_bare(judged.0, text)
        };
        if let Some(reason) = forbidden.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(Refusal(reason));
        }
        bare?;
        prepare_check(&scratch, text)?;
        let filter = Filter { text: text.to_owned() };
        let real = format!("SELECT 1 FROM events WHERE {}", filter.condition());
        conn.prepare(&real).map_err(does_not_compile)?;
        Ok(Some(filter))
    }

    /// The condition, in brackets, ready to stand behind `AND`.
    pub fn condition(&self) -> String {
        // The newline before the bracket ends a trailing comment.
        format!("(\n{}\n)", self.text)
    }
}

/// The columns of `events`, as a filter sees them.
const SHAPE: &str = "id INTEGER PRIMARY KEY, created_at TEXT NOT NULL, source TEXT NOT NULL, type TEXT NOT NULL, \
                     subtype TEXT, content TEXT NOT NULL, metadata TEXT";

/// A database with an empty `events` and nothing else, to ask the authorizer on. The real table
/// would not do: SQLite looks into the default of every column that is read, so that a filter on
/// `created_at` would seem to call `strftime`.
fn scratch() -> rusqlite::Result<Connection> {
    let conn = Connection::open_in_memory()?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DML, false)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DDL, false)?;
    conn.execute_batch(&format!("CREATE TABLE events ({SHAPE})"))?;
    Ok(conn)
}

fn does_not_compile(error: rusqlite::Error) -> Refusal {
    Refusal(format!("does not compile: {}", message(&error)))
}

/// The text as a whole WHERE clause: a bracket too many has nothing to close.
fn prepare_bare(conn: &Connection, text: &str) -> Result<(), Refusal> {
    let statement =
        conn.prepare(&format!("SELECT 1 FROM events WHERE\n{text}\n")).map_err(does_not_compile)?;
    if statement.parameter_count() > 0 {
        return Err(Refusal("contains a parameter (?, :name, @name or $name)".into()));
    }
    Ok(())
}

/// The text in the brackets of a CHECK constraint, where SQLite itself allows one expression over
/// the columns and neither subqueries nor parameters. The statement is never run.
fn prepare_check(conn: &Connection, text: &str) -> Result<(), Refusal> {
    conn.prepare(&format!("CREATE TEMP TABLE events ({SHAPE}, CHECK (\n{text}\n))")).map(drop).map_err(|e| {
        match message(&e) {
            said if said.contains("subqueries prohibited") => Refusal("contains a subquery".into()),
            _ => does_not_compile(e),
        }
    })
}

/// SQLite's own words for an error, without the SQL that rusqlite adds to them.
pub fn message(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqlInputError { msg, .. } => msg.clone(),
        rusqlite::Error::SqliteFailure(_, Some(msg)) => msg.clone(),
        other => other.to_string(),
    }
}

/// A connection with an authorizer and narrower limits, both taken off again when it is dropped.
struct Authorized<'c>(&'c mut Connection, Limits);

impl<'c> Authorized<'c> {
    fn new(conn: &'c mut Connection, mut judge: Judge) -> Self {
        // Neither call can fail on an open connection.
        let set = conn.authorizer(Some(move |context: AuthContext<'_>| judge.decide(&context.action)));
        debug_assert!(set.is_ok());
        let limits = Limits::narrow(conn);
        Authorized(conn, limits)
    }
}

impl Drop for Authorized<'_> {
    fn drop(&mut self) {
        self.1.widen(self.0);
        let cleared = self.0.authorizer(None::<fn(AuthContext<'_>) -> Authorization>);
        debug_assert!(cleared.is_ok());
    }
}

struct Judge {
    scope: Scope,
    selects: u32,
    forbidden: Arc<Mutex<Option<String>>>,
}

impl Judge {
    fn decide(&mut self, action: &AuthAction<'_>) -> Authorization {
        let reason = match action {
            // One SELECT is ours.
            AuthAction::Select => {
                self.selects += 1;
                if self.selects == 1 {
                    return Authorization::Allow;
                }
                "contains a subquery".to_owned()
            }
            AuthAction::Read { table_name: "events", column_name }
                if column_name.is_empty() || COLUMNS.contains(column_name) =>
            {
                return Authorization::Allow;
            }
            AuthAction::Read { table_name, column_name } => {
                format!("reads {table_name}.{column_name}, which is not one of the event's fields")
            }
            AuthAction::Function { function_name } => {
                let name = function_name.to_ascii_lowercase();
                if PURE_FUNCTIONS.contains(&name.as_str()) {
                    return Authorization::Allow;
                }
                if CLOCK_FUNCTIONS.contains(&name.as_str()) {
                    if self.scope == Scope::Reading {
                        return Authorization::Allow;
                    }
                    format!("calls {name}(), which may ask the clock; a subscription's filter must not")
                } else {
                    format!("calls {name}(), which filters may not call")
                }
            }
            AuthAction::Recursive => "contains a recursive query".to_owned(),
            other => format!("does more than compare ({other:?})"),
        };
        self.forbidden.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
        Authorization::Deny
    }
}

/// The limits under which filters are prepared and evaluated, and how to restore the others.
pub struct Limits(Vec<(Limit, i32)>);

impl Limits {
    /// Narrows the connection's limits to those of filters.
    pub fn narrow(conn: &Connection) -> Limits {
        let narrow =
            [(Limit::SQLITE_LIMIT_LENGTH, MAX_VALUE), (Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, MAX_PATTERN)];
        // A limit that cannot be set (there is none such) would leave the default in force.
        Limits(
            narrow.into_iter().filter_map(|(l, n)| conn.set_limit(l, n).ok().map(|old| (l, old))).collect(),
        )
    }

    /// Puts the connection's own limits back.
    pub fn widen(&self, conn: &Connection) {
        for &(limit, old) in &self.0 {
            let restored = conn.set_limit(limit, old);
            debug_assert!(restored.is_ok());
        }
    }
}

/// Interrupts whatever the connection evaluates once this thread has computed for `time`, until
/// dropped. Only computing counts: on a busy machine, or in a process that was stopped for a while,
/// a harmless event must not be taken for one that exceeds its limit.
pub struct Deadline<'c>(&'c mut Connection);

impl<'c> Deadline<'c> {
    /// Starts the clock. It is looked at often, because one step may be a long search; the time of
    /// day first, which costs little and has passed whenever the other has.
    pub fn start(conn: &'c mut Connection, time: Duration) -> Deadline<'c> {
        let (began, end) = (Instant::now(), computed() + time);
        let set = conn.progress_handler(25, Some(move || began.elapsed() > time && computed() > end));
        debug_assert!(set.is_ok());
        Deadline(conn)
    }

    pub fn conn(&self) -> &Connection {
        self.0
    }
}

impl Drop for Deadline<'_> {
    fn drop(&mut self) {
        let cleared = self.0.progress_handler(0, None::<fn() -> bool>);
        debug_assert!(cleared.is_ok());
    }
}

/// How long this thread has computed so far.
fn computed() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conn() -> Connection {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(include_str!("store/schema.sql")).unwrap();
        conn.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_DQS_DML, false).unwrap();
        conn
    }

    fn refusal(text: &str) -> String {
        Filter::check(&mut conn(), text, Scope::Subscription).unwrap_err().0
    }

    #[test]
    fn useful_filters_pass() {
        let mut conn = conn();
        for text in [
            "type = 'message'",
            "type = 'message' AND source LIKE 'internal:%:warden'",
            "content ->> '$.kind' IN ('a', 'b') OR subtype IS NULL",
            "json_valid(content) AND json_extract(content, '$.n') BETWEEN 1 AND 5 -- numbers only",
            "id % 2 = 0",
            "1",
            "CASE WHEN type = 'record' THEN subtype = 'decision' ELSE 1 END",
            "(id, type) = (1, 'record')",
            "source GLOB 'external:*' COLLATE NOCASE",
            "events.source = 'self' /* mine */",
            "created_at >= '2026-03-18' AND length(created_at) = 24",
        ] {
            let checked = Filter::check(&mut conn, text, Scope::Subscription);
            assert!(matches!(checked, Ok(Some(_))), "{text}: {checked:?}");
        }
        assert_eq!(Filter::check(&mut conn, " \n\t", Scope::Subscription), Ok(None));
        // The connection is as free as before.
        conn.query_row("SELECT count(*) FROM subscriptions", [], |r| r.get::<_, i64>(0)).unwrap();
    }

    #[test]
    fn what_would_escape_its_brackets_is_refused() {
        for text in [
            "1) OR (1",
            "1) --",
            "1 /*",
            "1 ORDER BY id",
            "1 LIMIT 5",
            "1 UNION SELECT 1",
            "1; DROP TABLE events",
            "1 GROUP BY id",
            "type =",
            "type = 'x",
            "--",
            "/* */",
            "1, 2",
            "(1, 2)",
            ")",
            "1) AND (1 -- \n",
        ] {
            assert!(!refusal(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn what_reaches_beyond_the_event_is_refused_by_name() {
        assert!(refusal("(SELECT 1)").contains("subquery"));
        assert!(refusal("EXISTS (SELECT 1 FROM events)").contains("subquery"));
        assert!(
            refusal("id IN (WITH RECURSIVE r(n) AS (SELECT 1 UNION SELECT n+1 FROM r) SELECT n FROM r)")
                .len()
                > 5
        );
        assert!(refusal("id = ?1").contains("parameter"));
        assert!(refusal("id = :x").contains("parameter"));
        assert!(refusal("load_extension('x')").contains("load_extension()"));
        assert!(refusal("randomblob(10) IS NULL").contains("randomblob()"));
        assert!(refusal("random() > 0").contains("random()"));
        assert!(refusal("created_at > datetime('now')").contains("clock"));
        assert!(refusal("created_at > CURRENT_TIMESTAMP").contains("clock"));
        assert!(refusal("source = \"message\"").contains("no such column"));
        assert!(refusal("0 IN pragma_user_version").len() > 5);
        assert!(refusal("id IN subscriptions").len() > 5);
        assert!(refusal("count(*) > 1").contains("count") || refusal("count(*) > 1").contains("aggregate"));
        assert!(refusal("row_number() OVER () = 1").len() > 5);
        assert!(refusal(&format!("source = '{}'", "x".repeat(MAX_TEXT))).contains("bytes"));
    }

    #[test]
    fn a_reading_may_ask_the_clock() {
        let text = "created_at > strftime('%Y', 'now')";
        assert!(matches!(Filter::check(&mut conn(), text, Scope::Reading), Ok(Some(_))));
    }

    #[test]
    fn a_deadline_counts_what_is_computed_and_not_what_is_slept() {
        let mut conn = conn();
        let count = |deadline: &Deadline<'_>, to: u32| {
            let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) SELECT max(i) FROM n";
            deadline.conn().query_row(sql, [to], |row| row.get::<_, u32>(0))
        };
        let deadline = Deadline::start(&mut conn, Duration::from_millis(200));
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(count(&deadline, 5000), Ok(5000));
        let interrupted = count(&deadline, u32::MAX).unwrap_err();
        assert_eq!(interrupted.sqlite_error_code(), Some(rusqlite::ErrorCode::OperationInterrupted));
    }
}
