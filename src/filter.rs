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

mod functions;
mod literals;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rusqlite::config::DbConfig;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;

pub use functions::{Dates, bound};

/// Longest filter text, in bytes.
pub const MAX_TEXT: usize = 64 * 1024;

/// A text longer than this, in bytes, is kept from SQLite's planner, which takes seconds over a
/// thousand ORs. Shorter ones may use the indexes.
const PLANNED: usize = 1024;

/// Longest text a filter may read or make, in bytes; an event beyond it does not match.
///
/// SQLite cannot be interrupted inside one function call, so the cost of one call must be bounded
/// by its arguments: a LIKE costs at most about `MAX_VALUE * MAX_PATTERN` steps.
pub const MAX_VALUE: i32 = 4 * 1024 * 1024;

/// How much work a filter may be and still read values of `MAX_VALUE`, in fields and functions named.
///
/// SQLite looks at the clock between rows and not between what it does for one row, so all of that
/// together must be bounded, and nothing costs much without naming a value or making one. A filter that
/// is more work reads only shorter values, in proportion. A LIKE counts once more for every four bytes
/// of its pattern, a GLOB for every two.
pub const MAX_WORK: i32 = 64;

/// Longest LIKE or GLOB pattern, in bytes.
pub const MAX_PATTERN: i32 = 256;

/// Most arguments of one function call: `json_extract` reads its whole text for each of its paths.
pub const MAX_ARGUMENTS: i32 = 64;

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

/// Functions that do nothing but consult the clock: for reading only, never in a subscription.
const CLOCK_FUNCTIONS: &[&str] = &["current_date", "current_time", "current_timestamp"];

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
    /// Whether it calls date functions, and if so, whether these must not ask the clock.
    strict_dates: Option<bool>,
    /// The longest value it may read or make, in bytes.
    longest: i32,
}

impl Filter {
    /// Checks one text, for use on `conn`; see [`Checker::check`].
    pub fn check(conn: &mut Connection, text: &str, scope: Scope) -> Result<Option<Filter>, Refusal> {
        Checker::new().map_err(does_not_compile)?.check(conn, text, scope)
    }

    /// The condition, in brackets, ready to stand behind `AND`.
    pub fn condition(&self) -> String {
        // The newline before the bracket ends a trailing comment. Behind a plus the planner sees
        // one value and looks no further.
        let plus = if self.text.len() > PLANNED { "+" } else { "" };
        format!("{plus}(\n{}\n)", self.text)
    }

    /// Narrows the limits of the connection it is about to be asked on.
    pub fn limits(&self, conn: &Connection) -> Limits {
        Limits::narrow(conn, self.longest)
    }

    /// Readies the functions of a connection on which [`bound`] was called for this filter.
    pub fn ready(&self, conn: &Connection, dates: &mut Dates) -> rusqlite::Result<()> {
        self.strict_dates.map_or(Ok(()), |strict| dates.set_strict(conn, strict))
    }
}

/// Checks filters, one after another, on a scratch database of its own.
#[derive(Debug)]
pub struct Checker {
    scratch: Connection,
    dates: Dates,
}

impl Checker {
    /// Opens the scratch database.
    pub fn new() -> rusqlite::Result<Checker> {
        Ok(Checker { scratch: scratch()?, dates: Dates::default() })
    }

    /// Checks `text`, for use on `conn`. A blank text is no filter: `Ok(None)`.
    pub fn check(&mut self, conn: &Connection, text: &str, scope: Scope) -> Result<Option<Filter>, Refusal> {
        if text.trim().is_empty() {
            return Ok(None);
        }
        if text.len() > MAX_TEXT {
            return Err(Refusal(format!("is {} bytes long; at most {MAX_TEXT} are taken", text.len())));
        }
        if text.contains('\0') {
            return Err(Refusal("contains a NUL character".into()));
        }
        let found = Arc::new(Mutex::new(Found::default()));
        let judge = Judge { scope, selects: 0, found: Arc::clone(&found) };
        let bare = {
            let judged = Authorized::new(&mut self.scratch, judge);
            prepare_bare(judged.0, text)
        };
        let found = std::mem::take(&mut *found.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(reason) = found.forbidden {
            return Err(Refusal(reason));
        }
        bare?;
        prepare_check(&self.scratch, text)?;
        let strict = scope == Scope::Subscription;
        let work = literals::work(text);
        let longest = MAX_VALUE.min((i64::from(MAX_VALUE) * i64::from(MAX_WORK) / work.max(1)) as i32);
        let filter = Filter { text: text.to_owned(), strict_dates: found.dates.then_some(strict), longest };
        let hopeless = literals::long_pattern(text)
            .or_else(|| if strict && found.dates { literals::clock(text) } else { None });
        if let Some(reason) = hopeless {
            return Err(Refusal(reason));
        }
        self.try_out(&filter)?;
        let real = format!("SELECT 1 FROM events WHERE {}", filter.condition());
        conn.prepare(&real).map_err(does_not_compile)?;
        Ok(Some(filter))
    }

    /// Asks about a made-up event, for what would fail on every other too. Where the filter does
    /// not come to it, the events themselves are the test.
    fn try_out(&mut self, filter: &Filter) -> Result<(), Refusal> {
        filter.ready(&self.scratch, &mut self.dates).map_err(does_not_compile)?;
        let limits = filter.limits(&self.scratch);
        let answer = {
            let deadline = Deadline::start(&mut self.scratch, TRYING_TIME);
            let sql = format!("SELECT 1 FROM events WHERE {}", filter.condition());
            deadline.conn().prepare(&sql).and_then(|mut statement| statement.exists([]))
        };
        limits.widen(&self.scratch);
        match answer.map_err(|e| message(&e)) {
            Err(said) if said.contains("pattern too complex") => {
                Err(Refusal(format!("has a LIKE or GLOB pattern of more than {MAX_PATTERN} bytes")))
            }
            Err(said) if said.contains(functions::ASKS_THE_CLOCK) => Err(Refusal(format!("calls {said}"))),
            _ => Ok(()),
        }
    }
}

/// The columns of `events`, as a filter sees them.
const SHAPE: &str = "id INTEGER PRIMARY KEY, created_at TEXT NOT NULL, source TEXT NOT NULL, type TEXT NOT NULL, \
                     subtype TEXT, content TEXT NOT NULL, metadata TEXT";

/// How long a filter may take on the event it is tried out on.
const TRYING_TIME: Duration = Duration::from_millis(100);

/// A database with `events` and nothing else, to ask the authorizer on. The real table
/// would not do: SQLite looks into the default of every column that is read, so that a filter on
/// `created_at` would seem to call `strftime`.
fn scratch() -> rusqlite::Result<Connection> {
    let conn = Connection::open_in_memory()?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DML, false)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DDL, false)?;
    bound(&conn)?;
    conn.execute_batch(&format!(
        "CREATE TABLE events ({SHAPE}); \
         INSERT INTO events VALUES (1, '2026-03-18T10:30:00.123Z', 'self', 'message', NULL, '{{}}', '{{}}')"
    ))?;
    Ok(conn)
}

fn does_not_compile(error: rusqlite::Error) -> Refusal {
    Refusal(format!("does not compile: {}", message(&error)))
}

/// The text outside of any bracket: one too many has nothing to close. A short one stands as a
/// whole WHERE clause, which gives the plainest messages, a long one where nothing is planned.
fn prepare_bare(conn: &Connection, text: &str) -> Result<(), Refusal> {
    let sql = if text.len() > PLANNED {
        format!("SELECT CASE WHEN\n{text}\nTHEN 1 END FROM events")
    } else {
        format!("SELECT 1 FROM events WHERE\n{text}\n")
    };
    let statement = conn.prepare(&sql).map_err(does_not_compile)?;
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
        let limits = Limits::narrow(conn, MAX_VALUE);
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
    found: Arc<Mutex<Found>>,
}

/// What a filter reaches for.
#[derive(Default)]
struct Found {
    /// The first thing it may not.
    forbidden: Option<String>,
    dates: bool,
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
                if functions::DATES.contains(&name.as_str()) {
                    self.found.lock().unwrap_or_else(PoisonError::into_inner).dates = true;
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
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.forbidden.get_or_insert(reason);
        Authorization::Deny
    }
}

/// The limits under which filters are prepared and evaluated, and how to restore the others.
pub struct Limits(Vec<(Limit, i32)>);

impl Limits {
    /// Narrows the connection's limits to those of filters, and values to `longest` bytes.
    pub fn narrow(conn: &Connection, longest: i32) -> Limits {
        let narrow = [
            (Limit::SQLITE_LIMIT_LENGTH, longest),
            (Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, MAX_PATTERN),
            (Limit::SQLITE_LIMIT_FUNCTION_ARG, MAX_ARGUMENTS),
        ];
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
        assert!(refusal("load_extension('x')").contains("load_extension"));
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
