//! A checked filter: the only way from a user's text to SQL.
//!
//! A filter is one SQL expression over the columns of `events`. It is compiled twice on a scratch
//! database in memory, once bare and once inside the brackets of a CHECK constraint: an expression
//! survives both, whereas text that tries to leave its brackets, to comment them out or to add a
//! clause fails one of them. Text that compiles both ways but reaches too far is stopped by SQLite's
//! authorizer (another table, a function that is not on the list) or by the constraint, which may
//! hold no subquery. The authorizer alone would not do: it is not asked about an EXISTS that becomes
//! a join.
//!
//! What a filter may cost is limited by counts, never by a clock, so that equal events get equal
//! answers: see the constants. For the same reason it is always evaluated in one form, hidden from
//! the query planner, which would otherwise decide in which order its parts are evaluated and so
//! which of them can fail.

use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::config::DbConfig;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::{Connection, Error, ErrorCode, params};

use super::event::Row;

pub(crate) mod functions;

/// Longest filter text, in bytes.
pub const MAX_TEXT: usize = 4 * 1024;

/// Longest value a filter may read or compute, in bytes; an event beyond it does not match.
pub const MAX_VALUE: i32 = 1024 * 1024;

/// Longest LIKE or GLOB pattern, and longest text to search for with `instr`, in bytes.
pub const MAX_PATTERN: usize = 256;

/// How much all LIKEs and GLOBs together may compare on one event, in bytes of a pattern times bytes of
/// the value. SQLite takes that many steps where a value nearly matches at each of its characters: about
/// a second. One pattern of the longest on two of the longest values.
pub const MAX_COMPARED: u64 = 512 * 1024 * 1024;

/// How deep an expression may be nested. Each level may hold a value of its own.
pub const MAX_DEPTH: i32 = 64;

/// How many arguments a function may have: `concat` and `json_extract` make their result before its length
/// is looked at.
const MAX_ARGUMENTS: i32 = 16;

/// How many instructions SQLite may compile a filter to. SQLite checks when it makes room for more
/// instructions, so somewhat fewer may be refused too.
pub const MAX_INSTRUCTIONS: i32 = 200;

/// The columns a filter may read.
const COLUMNS: &[&str] = &["id", "created_at", "source", "type", "subtype", "content", "metadata"];

/// Functions whose result depends on nothing but their arguments and whose cost is bounded by the
/// length of these. Left out on purpose: whatever builds long values from short ones, searches one
/// long text for another, or looks outside the event.
const PURE_FUNCTIONS: &[&str] = &[
    "->",
    "->>",
    "abs",
    "char",
    "coalesce",
    "concat",
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
    "nullif",
    "octet_length",
    "round",
    "rtrim",
    "sign",
    "substr",
    "substring",
    "trim",
    "typeof",
    "unicode",
    "unlikely",
    "upper",
];

/// Functions that may consult the clock or the time zone: for a single reading only.
const TIME_FUNCTIONS: &[&str] = &[
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

/// What a filter is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// One reading, which may use the clock.
    Reading,
    /// A subscription: the same event must always get the same answer, because it is asked once.
    Subscription,
}

/// Why a text is not a filter; completes "the filter …".
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilterError {
    Refused(String),
    /// It could not be checked, and may well be one.
    OutOfMemory,
}

/// Why a filter could not be evaluated on an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvalError(pub String);

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FilterError::Refused(why) => f.write_str(why),
            FilterError::OutOfMemory => f.write_str("could not be checked: memory ran out"),
        }
    }
}

impl fmt::Display for EvalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for FilterError {}

impl std::error::Error for EvalError {}

/// A checked SQL condition over the columns of `events`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    text: String,
}

impl Filter {
    /// Checks a text. A blank one is no filter: `Ok(None)`.
    ///
    /// # Errors
    ///
    /// It is not one expression over an event's columns, reaches beyond them, or exceeds the limits.
    pub fn new(text: &str, scope: Scope) -> Result<Option<Filter>, FilterError> {
        if text.trim().is_empty() {
            return Ok(None);
        }
        if text.len() > MAX_TEXT {
            return Err(FilterError::Refused(format!(
                "is {} bytes long; the limit is {MAX_TEXT}",
                text.len()
            )));
        }
        if text.contains('\0') {
            return Err(FilterError::Refused("contains a NUL character".into()));
        }
        let filter = Filter { text: text.to_owned() };
        with_scratch(|scratch| scratch.check(&filter, scope)).map_err(does_not_compile)??;
        Ok(Some(filter))
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// SQL that is 1 where the filter matches and 0 where it does not. The CASE hides the text from
    /// the query planner; the newline before the bracket ends a trailing comment.
    pub(crate) fn condition(&self) -> String {
        format!("CASE WHEN (\n{}\n) THEN 1 ELSE 0 END", self.text)
    }

    /// Whether an event matches.
    ///
    /// # Errors
    ///
    /// The filter fails on this event, or exceeds a limit on it. Such an event does not match.
    pub fn matches(&self, row: &Row<'_>) -> Result<bool, EvalError> {
        let answer = with_scratch(|scratch| scratch.ask(self, row));
        answer.and_then(|inner| inner).map_err(|e| EvalError(message(&e)))
    }
}

/// The limit on values, in force on a connection.
pub(crate) struct EvalLimit(i32);

impl EvalLimit {
    /// Narrows the limit of `conn`.
    pub fn begin(conn: &Connection) -> rusqlite::Result<EvalLimit> {
        conn.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_VALUE).map(EvalLimit)
    }

    /// Restores it.
    pub fn end(self, conn: &Connection) -> rusqlite::Result<()> {
        conn.set_limit(Limit::SQLITE_LIMIT_LENGTH, self.0).map(drop)
    }
}

/// Whether an evaluation failed because of the filter and the event, rather than the database. Memory
/// that runs out is neither's fault: another look will tell.
pub(crate) fn is_eval_error(error: &Error) -> bool {
    use ErrorCode::{ParameterOutOfRange, TooBig, TypeMismatch, Unknown};
    matches!(error.sqlite_error_code(), Some(Unknown | TooBig | TypeMismatch | ParameterOutOfRange))
}

/// SQLite's own words for an error, without the SQL that rusqlite adds to them.
pub(crate) fn message(error: &Error) -> String {
    match error {
        Error::SqlInputError { msg, .. } => msg.clone(),
        Error::SqliteFailure(_, Some(msg)) => msg.clone(),
        other => other.to_string(),
    }
}

fn does_not_compile(error: Error) -> FilterError {
    if is_out_of_memory(&error) {
        return FilterError::OutOfMemory;
    }
    FilterError::Refused(format!("does not compile: {}", message(&error)))
}

/// The columns of `events`, as a filter sees them.
const SHAPE: &str = "id INTEGER PRIMARY KEY, created_at TEXT NOT NULL, source TEXT NOT NULL, type TEXT NOT NULL, \
                     subtype TEXT, content TEXT NOT NULL, metadata TEXT";

thread_local! {
    static SCRATCH: RefCell<Option<Scratch>> = const { RefCell::new(None) };
}

/// Lends this thread's scratch database, opening it first if need be.
fn with_scratch<T>(work: impl FnOnce(&mut Scratch) -> T) -> rusqlite::Result<T> {
    SCRATCH.with_borrow_mut(|slot| {
        let scratch = match slot {
            Some(scratch) => scratch,
            none => none.insert(Scratch::open()?),
        };
        Ok(work(scratch))
    })
}

/// A database with `events` and nothing else, to check filters and to ask about single events. The
/// real table would not do for checking: SQLite looks into the default of every column that is read,
/// so that a filter on `created_at` would seem to call `strftime`.
struct Scratch(Connection);

impl Scratch {
    fn open() -> rusqlite::Result<Scratch> {
        let conn = Connection::open_in_memory()?;
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DML, false)?;
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DDL, false)?;
        functions::install(&conn)?;
        // With two arguments, these cost the product of their lengths.
        for name in ["trim", "ltrim", "rtrim"] {
            conn.remove_function(name, 2)?;
        }
        conn.execute_batch(&format!(
            "CREATE TABLE events ({SHAPE}); \
             INSERT INTO events VALUES (1, '2026-03-18T10:30:00.123Z', 'self', 'message', NULL, '{{}}', '{{}}')"
        ))?;
        conn.set_limit(Limit::SQLITE_LIMIT_VDBE_OP, MAX_INSTRUCTIONS)?;
        conn.set_limit(Limit::SQLITE_LIMIT_EXPR_DEPTH, MAX_DEPTH)?;
        conn.set_limit(Limit::SQLITE_LIMIT_FUNCTION_ARG, MAX_ARGUMENTS)?;
        EvalLimit::begin(&conn)?;
        Ok(Scratch(conn))
    }

    fn check(&mut self, filter: &Filter, scope: Scope) -> Result<(), FilterError> {
        let found = Arc::new(Mutex::new(None));
        let mut judge = Judge { scope, selects: 0, found: Arc::clone(&found) };
        let authorizer = move |context: AuthContext<'_>| judge.decide(&context.action);
        self.0.authorizer(Some(authorizer)).map_err(does_not_compile)?;
        // Outside of any bracket: one too many has nothing to close.
        let sql = format!("SELECT CASE WHEN\n{}\nTHEN 1 END FROM events", filter.text);
        let parameters = self.0.prepare(&sql).map(|bare| bare.parameter_count());
        self.0.authorizer(None::<fn(AuthContext<'_>) -> Authorization>).map_err(does_not_compile)?;
        if let Some(reason) = found.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(FilterError::Refused(reason));
        }
        if parameters.map_err(|e| not_compiled(&self.0, &sql, e))? > 0 {
            return Err(FilterError::Refused("contains a parameter (?, :name, @name or $name)".into()));
        }
        compile_check(&self.0, &filter.text)?;
        self.try_out(filter)
    }

    /// Asks about the row that is there, for what would fail on every other too.
    fn try_out(&self, filter: &Filter) -> Result<(), FilterError> {
        let sql = format!("SELECT {} FROM events", filter.condition());
        let mut statement = self.0.prepare(&sql).map_err(|e| not_compiled(&self.0, &sql, e))?;
        functions::begin_event();
        match statement.exists([]) {
            Err(e) if message(&e).contains("pattern too complex") => Err(FilterError::Refused(format!(
                "has a LIKE or GLOB pattern of more than {MAX_PATTERN} bytes"
            ))),
            Err(e) if is_out_of_memory(&e) => Err(FilterError::OutOfMemory),
            _ => Ok(()),
        }
    }

    fn ask(&mut self, filter: &Filter, row: &Row<'_>) -> rusqlite::Result<bool> {
        // Storing the event is not what is limited.
        self.0.set_limit(Limit::SQLITE_LIMIT_LENGTH, i32::MAX)?;
        let stored = self.store(row);
        self.0.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_VALUE)?;
        stored?;
        let sql = format!("SELECT {} FROM events", filter.condition());
        functions::begin_event();
        self.0.prepare_cached(&sql)?.query_row([], |row| row.get(0))
    }

    fn store(&self, row: &Row<'_>) -> rusqlite::Result<()> {
        self.0.prepare_cached("DELETE FROM events")?.execute([])?;
        // What is not UTF-8 stays what it is in the real table: bytes.
        let value = |bytes: Option<&[u8]>| match bytes.map(std::str::from_utf8) {
            Some(Ok(text)) => rusqlite::types::Value::Text(text.to_owned()),
            Some(Err(_)) => rusqlite::types::Value::Blob(bytes.unwrap_or_default().to_owned()),
            None => rusqlite::types::Value::Null,
        };
        let mut insert = self.0.prepare_cached("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)")?;
        insert.execute(params![
            row.id,
            value(Some(row.created_at)),
            value(Some(row.source)),
            value(Some(row.kind)),
            value(row.subtype),
            value(Some(row.content)),
            value(row.metadata)
        ])?;
        Ok(())
    }
}

/// The text in the brackets of a CHECK constraint, where SQLite itself allows one expression over
/// the columns and neither subqueries nor parameters. The statement is never run.
fn compile_check(conn: &Connection, text: &str) -> Result<(), FilterError> {
    let sql = format!("CREATE TEMP TABLE events ({SHAPE}, CHECK (\n{text}\n))");
    conn.prepare(&sql).map(drop).map_err(|e| match message(&e) {
        said if said.contains("subqueries prohibited") => FilterError::Refused("contains a subquery".into()),
        _ => does_not_compile(e),
    })
}

/// Why a statement did not compile. SQLite calls a statement of too many instructions one for which
/// memory ran out: that is what compiles without the limit, and with it fails again.
fn not_compiled(conn: &Connection, sql: &str, error: Error) -> FilterError {
    if !is_out_of_memory(&error) {
        return does_not_compile(error);
    }
    let compile = |limit| {
        conn.set_limit(Limit::SQLITE_LIMIT_VDBE_OP, limit)?;
        conn.prepare(sql).map(drop)
    };
    match (compile(i32::MAX), compile(MAX_INSTRUCTIONS)) {
        (Ok(()), Err(_)) => FilterError::Refused(format!(
            "is too complex: it compiles to more than {MAX_INSTRUCTIONS} instructions"
        )),
        _ => FilterError::OutOfMemory,
    }
}

fn is_out_of_memory(error: &Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::OutOfMemory)
}

/// Decides what a filter may reach for, and remembers the first thing that it may not.
struct Judge {
    scope: Scope,
    selects: u32,
    found: Arc<Mutex<Option<String>>>,
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
                match (TIME_FUNCTIONS.contains(&name.as_str()), self.scope) {
                    (true, Scope::Reading) => return Authorization::Allow,
                    (true, Scope::Subscription) => format!(
                        "calls {name}(), which may use the clock; compare created_at as text instead, as in \
                         created_at >= '2026-01-01'"
                    ),
                    (false, _) => format!("calls {name}(), which filters may not call"),
                }
            }
            AuthAction::Recursive => "contains a recursive query".to_owned(),
            other => format!("does more than compare ({other:?})"),
        };
        self.found.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
        Authorization::Deny
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::event::Event;

    fn refusal(text: &str) -> String {
        Filter::new(text, Scope::Subscription).unwrap_err().to_string()
    }

    fn event(content: &str) -> Event {
        Event {
            id: 7,
            created_at: "2026-03-18T10:30:00.123Z".into(),
            source: "self".into(),
            kind: "message".into(),
            subtype: None,
            content: content.into(),
            metadata: None,
        }
    }

    #[test]
    fn useful_filters_pass() {
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
            "instr(trim(content), 'urgent') > 0",
        ] {
            let checked = Filter::new(text, Scope::Subscription);
            assert!(matches!(checked, Ok(Some(_))), "{text}: {checked:?}");
        }
        assert_eq!(Filter::new(" \n\t", Scope::Subscription), Ok(None));
    }

    #[test]
    fn text_that_would_escape_its_brackets_is_refused() {
        for text in [
            "1) OR (1",
            "1) --",
            "1 /*",
            "1 ORDER BY id",
            "1 LIMIT 5",
            "1 UNION SELECT 1",
            "1; DROP TABLE events",
            "1 GROUP BY id",
            "1 THEN 1 END FROM events WHERE CASE WHEN 1",
            "1 THEN 1 WHEN 2",
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
    fn reaching_beyond_the_event_is_refused_by_name() {
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
        assert!(refusal("date(created_at) = '2026-03-18'").contains("clock"));
        assert!(refusal("created_at > CURRENT_TIMESTAMP").contains("clock"));
        assert!(refusal("source = \"message\"").contains("no such column"));
        assert!(refusal("0 IN pragma_user_version").len() > 5);
        assert!(refusal("id IN subscriptions").len() > 5);
        assert!(refusal("count(*) > 1").contains("count") || refusal("count(*) > 1").contains("aggregate"));
        assert!(refusal("row_number() OVER () = 1").len() > 5);
        assert!(refusal("trim(content, content) = ''").contains("trim"));
    }

    #[test]
    fn limits_are_counted_when_the_filter_is_given() {
        assert!(refusal(&format!("source = '{}'", "x".repeat(MAX_TEXT))).contains("bytes"));
        let arrows = format!("content{} = 1", " -> '$'".repeat(500));
        assert!(refusal(&arrows).contains("too complex") || refusal(&arrows).contains("depth"), "{arrows}");
        let ors = vec!["id = content"; 200].join(" OR ");
        assert!(refusal(&ors).contains("too complex") || refusal(&ors).contains("depth"));
        let columns = format!("id IN ({})", vec!["content"; 400].join(","));
        assert!(refusal(&columns).contains("too complex"));
        assert!(refusal(&format!("max({}) = 1", vec!["id"; 17].join(","))).contains("too many arguments"));
        assert!(refusal(&format!("content LIKE '{}'", "a".repeat(257))).contains("256 bytes"));
    }

    #[test]
    fn a_reading_may_use_the_clock() {
        let text = "created_at > strftime('%Y', 'now')";
        assert!(matches!(Filter::new(text, Scope::Reading), Ok(Some(_))));
    }

    #[test]
    fn a_filter_matches_single_events() {
        let matches = |text: &str, event: &Event| {
            Filter::new(text, Scope::Subscription).unwrap().unwrap().matches(&event.row())
        };
        assert_eq!(matches("id = '7' AND type = 'message'", &event("")), Ok(true));
        assert_eq!(matches("content ->> '$.n' > 1", &event(r#"{"n":2}"#)), Ok(true));
        assert_eq!(matches("content ->> '$.n' > 1", &event("{}")), Ok(false));
        assert!(matches("content ->> '$.n' > 1", &event("not JSON")).is_err());
        assert_eq!(matches("json_valid(content) AND content ->> '$.n' > 1", &event("x")), Ok(false));
        let large = event(&"x".repeat(MAX_VALUE as usize + 1));
        assert_eq!(matches("type = 'message'", &large), Ok(true));
        assert!(matches("content LIKE 'y%'", &large).unwrap_err().0.contains("too big"));
    }

    #[test]
    fn what_like_and_glob_compare_is_limited_on_each_event_and_not_more_on_the_next() {
        let matches = |count: usize, event: &Event| {
            let text = vec!["content LIKE source OR content GLOB subtype"; count].join(" OR ");
            Filter::new(&text, Scope::Subscription).unwrap().unwrap().matches(&event.row())
        };
        // Both nearly match at each character.
        let large = |length: usize| Event {
            source: format!("%a{}b", "_".repeat(253)),
            subtype: Some(format!("*a{}b", "?".repeat(253))),
            ..event(&"a".repeat(length))
        };
        let most = large(1024 * 1024);
        for _ in 0..2 {
            assert_eq!(matches(1, &most), Ok(false));
        }
        for _ in 0..2 {
            assert!(matches(2, &most).unwrap_err().0.contains("too much to compare"));
        }
        assert_eq!(matches(19, &large(50_000)), Ok(false));
    }
}
