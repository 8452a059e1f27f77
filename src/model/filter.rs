//! Checked filters, the only way for a user's text to become SQL.
//!
//! A filter is one SQL expression over the columns of `events`. It is compiled twice on an in-memory scratch
//! database, once without parentheses and once inside those of a CHECK constraint. An expression compiles
//! both ways, whereas text that tries to close its parentheses, to comment them out or to add a clause fails
//! in one of them. Text that compiles both ways but accesses too much is refused by SQLite's authorizer
//! (another table, a function that is not on the list) or by the constraint, which must not contain
//! subqueries. The authorizer alone would not suffice: it is not called for an EXISTS that becomes a join.
//!
//! The cost of a filter is limited by counts, never by time, so that equal events get equal results: see the
//! constants. For the same reason it is always evaluated in one form, hidden from the query planner, which
//! could otherwise change the order of evaluation and so which parts can fail.

use rusqlite::limits::Limit;
use rusqlite::{Connection, Error, ErrorCode};

use super::event::Row;

mod authorizer;
mod lenient;
mod scratch;

pub(crate) use self::lenient::is_not_json;
pub(crate) use self::scratch::text_or_blob;

/// Maximum length of a filter's text, in bytes.
const MAX_TEXT: usize = 4 * 1024;

/// Maximum length of a value that a filter may read or compute, in bytes; an event that exceeds it does not
/// match.
pub(crate) const MAX_VALUE: i32 = 1024 * 1024;

/// Maximum length of all LIKE and GLOB patterns of a filter together, in bytes; each may have an equal share.
/// SQLite takes as many steps as pattern and value multiplied, about 1.7 s with values of [`MAX_VALUE`], if a
/// value nearly matches at each character.
const MAX_PATTERNS: i32 = 1024;

/// Maximum nesting depth of an expression. Each level may hold a value in memory.
const MAX_DEPTH: i32 = 64;

/// Maximum number of arguments of a function: `concat` and `json_extract` build their result before its
/// length is checked.
const MAX_ARGUMENTS: i32 = 16;

/// Maximum number of instructions that a filter compiles to. SQLite checks when it allocates room for more
/// instructions, so slightly fewer may be refused too.
const MAX_INSTRUCTIONS: i32 = 200;

/// What a filter is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// A single read, which may use the clock.
    Reading,
    /// A subscription: an event must always get the same result, because the filter is evaluated on it only
    /// once.
    Subscription,
}

/// Why a text was not accepted as a filter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// What is wrong; completes "the filter …".
    #[error("{0}")]
    Invalid(String),
    /// Memory ran out; the text may be a valid filter.
    #[error("could not be checked: memory ran out")]
    OutOfMemory,
}

/// Why a filter could not be evaluated on an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EvalError(pub String);

/// A checked SQL condition over the columns of `events`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    text: String,
    /// Maximum length of each LIKE and GLOB pattern, in bytes.
    max_pattern: i32,
}

impl Filter {
    /// Checks a text. Blank text is no filter: `Ok(None)`.
    ///
    /// # Errors
    ///
    /// The text is not a single expression over an event's columns, accesses something else, or exceeds the
    /// limits; or memory ran out.
    pub fn new(text: &str, scope: Scope) -> Result<Option<Filter>, FilterError> {
        if text.trim().is_empty() {
            return Ok(None);
        }
        let max_pattern = scratch::check(text, scope)?;
        Ok(Some(Filter { text: text.to_owned(), max_pattern }))
    }

    /// Checks the expression that is the key of events, under the rules for filters.
    ///
    /// # Errors
    ///
    /// As for [`Filter::new`].
    pub fn new_key(text: &str) -> Result<Option<Filter>, FilterError> {
        let key = Filter::new(text, Scope::Subscription)?;
        key.iter().try_for_each(scratch::check_value)?;
        Ok(key)
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// SQL that is 1 if the filter matches and 0 if it does not. The CASE hides the text from the query
    /// planner; the newline before the parenthesis ends a trailing comment.
    pub(crate) fn condition(&self) -> String {
        format!("CASE WHEN (\n{}\n) THEN 1 ELSE 0 END", self.text)
    }

    /// A statement that returns its value for the event, as text.
    fn value_statement(&self) -> String {
        let value = format!("SELECT CASE WHEN 1 THEN (\n{}\n) END AS value FROM events", self.text);
        format!("SELECT CAST(value AS TEXT) FROM ({value})")
    }

    /// Sets the limits under which the filter is evaluated on a connection. Returns those that were set before.
    pub(crate) fn set_limits(&self, conn: &Connection) -> rusqlite::Result<Limits> {
        Limits { value: MAX_VALUE, pattern: self.max_pattern }.set(conn)
    }

    /// The expression's value for an event, as text; `None` if it is NULL.
    ///
    /// # Errors
    ///
    /// As for [`Filter::matches`].
    pub fn value(&self, row: &Row<'_>) -> Result<Option<String>, EvalError> {
        scratch::value(self, row).map_err(|e| EvalError(message(&e)))
    }

    /// Whether an event matches. A JSON function of text that is not JSON is NULL.
    ///
    /// # Errors
    ///
    /// The filter fails on this event, or exceeds a limit on it. Such an event does not match.
    pub fn matches(&self, row: &Row<'_>) -> Result<bool, EvalError> {
        scratch::evaluate(self, row).map_err(|e| EvalError(message(&e)))
    }
}

/// Maximum lengths on a connection, in bytes: of any value, and of a LIKE or GLOB pattern.
pub(crate) struct Limits {
    value: i32,
    pattern: i32,
}

impl Limits {
    /// Returns those that were set before.
    pub(crate) fn set(&self, conn: &Connection) -> rusqlite::Result<Limits> {
        Ok(Limits {
            value: conn.set_limit(Limit::SQLITE_LIMIT_LENGTH, self.value)?,
            pattern: conn.set_limit(Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, self.pattern)?,
        })
    }
}

/// Whether an evaluation failed because of the filter and the event, rather than the database. Running out of
/// memory does not count: the evaluation is repeated later.
pub(crate) fn is_eval_error(error: &Error) -> bool {
    use ErrorCode::{ParameterOutOfRange, TooBig, TypeMismatch, Unknown};
    matches!(error.sqlite_error_code(), Some(Unknown | TooBig | TypeMismatch | ParameterOutOfRange))
}

/// SQLite's message for an error, without the SQL that rusqlite adds.
pub(crate) fn message(error: &Error) -> String {
    match error {
        Error::SqlInputError { msg, .. } => msg.clone(),
        Error::SqliteFailure(_, Some(msg)) => msg.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::event::Event;

    fn refusal(text: &str) -> String {
        match Filter::new(text, Scope::Subscription) {
            Err(FilterError::Invalid(reason)) => reason,
            other => panic!("{text}: {other:?}"),
        }
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
    fn accessing_more_than_the_event_is_refused_by_name() {
        assert!(refusal("(SELECT 1)").contains("subquery"));
        assert!(refusal("EXISTS (SELECT 1 FROM events)").contains("subquery"));
        assert!(refusal("id = ?1").contains("parameter"));
        assert!(refusal("id = :x").contains("parameter"));
        assert!(refusal("load_extension('x')").contains("load_extension"));
        assert!(refusal("randomblob(10) IS NULL").contains("randomblob()"));
        assert!(refusal("random() > 0").contains("random()"));
        assert!(refusal("created_at > datetime('now')").contains("clock"));
        assert!(refusal("date(created_at) = '2026-03-18'").contains("clock"));
        assert!(refusal("created_at > CURRENT_TIMESTAMP").contains("clock"));
        assert!(refusal("source = \"message\"").contains("no such column"));
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
        // The column is a level too, and so is the CASE around the text.
        let nested = |operators: usize| format!("{}id", "~ ".repeat(operators));
        assert!(matches!(Filter::new(&nested(62), Scope::Subscription), Ok(Some(_))));
        assert!(refusal(&nested(63)).contains("depth"));
        let largest = |arguments: usize| format!("max({}) = 1", vec!["id"; arguments].join(","));
        assert!(matches!(Filter::new(&largest(16), Scope::Subscription), Ok(Some(_))));
        assert!(refusal(&largest(17)).contains("too many arguments"));
        for (word, count, most) in [("LIKE", 1, 1024), ("LIKE", 2, 512), ("GLOB", 2, 512), ("LIKE", 30, 34)] {
            let like = |length: usize| {
                let patterns = vec![format!("content {word} '{}'", "a".repeat(length)); count];
                patterns.join(" AND 0 OR ")
            };
            assert!(matches!(Filter::new(&like(most), Scope::Subscription), Ok(Some(_))), "{count}");
            assert!(refusal(&like(most + 1)).contains(&format!("of more than {most} bytes")), "{count}");
        }
    }

    #[test]
    fn a_filter_matches_single_events() {
        let matches = |text: &str, event: &Event| {
            Filter::new(text, Scope::Subscription).unwrap().unwrap().matches(&event.row())
        };
        assert_eq!(matches("id = '7' AND type = 'message'", &event("")), Ok(true));
        assert_eq!(matches("content ->> '$.n' > 1", &event(r#"{"n":2}"#)), Ok(true));
        assert_eq!(matches("content ->> '$.n' > 1", &event("{}")), Ok(false));
        assert!(
            matches("json_extract(content, 'n') > 1", &event("{}")).unwrap_err().0.contains("bad JSON path")
        );
        assert_eq!(matches("json_valid(content) AND content ->> '$.n' > 1", &event("x")), Ok(false));
        let large = event(&"x".repeat(MAX_VALUE as usize + 1));
        assert_eq!(matches("type = 'message'", &large), Ok(true));
        assert!(matches("content LIKE 'y%'", &large).unwrap_err().0.contains("too big"));
    }

    #[test]
    fn what_is_not_json_gives_null() {
        let matches = |text: &str, content: &str| {
            let metadata = Some(r#"{"a":{"b":[1]}}"#.to_owned());
            let event = Event { metadata, ..event(content) };
            Filter::new(text, Scope::Subscription).unwrap().unwrap().matches(&event.row())
        };
        for text in [
            "content ->> '$.n' = 1",
            "json_extract(content, '$.n', '$.m') = '[1,2]'",
            "content -> '$.n' ->> '$.m' = 1",
            "json_type(content) = 'object' OR json_type(content, '$.n') = 'integer'",
            "json_array_length(content) = 0 OR json_array_length(content, '$.n') = 1",
            "json(content) = '{}'",
            "NOT content ->> '$.n' = 1",
        ] {
            for content in ["", "words", "{\"n\":", "{\"n\":1"] {
                assert_eq!(matches(text, content), Ok(false), "{text}: {content}");
            }
        }
        for text in [
            "content ->> '$.n' IS NULL",
            "content ->> '$.n' = 1 OR content LIKE 'wo%'",
            "content LIKE 'wo%' OR content ->> '$.n' = 1",
            // What is JSON in the same event is read as ever.
            "content ->> 'n' IS NULL AND metadata ->> '$.a.b[0]' = 1 AND json_type(metadata, '$.a') = 'object'",
            "content ->> 'n' IS NULL AND metadata -> 'a' = '{\"b\":[1]}' AND json_quote(metadata -> 'a') = '{\"b\":[1]}'",
            "content ->> 'n' IS NULL AND json_array_length(metadata, '$.a.b') = 1",
        ] {
            assert_eq!(matches(text, "words"), Ok(true), "{text}");
        }
        // Other failures are failures as before.
        assert!(matches("content ->> 'n' IS NULL AND json_extract(metadata, 'n') = 1", "words").is_err());
        let key = Filter::new_key("content ->> 'n'").unwrap().unwrap();
        assert_eq!(key.value(&event("words").row()), Ok(None));
    }

    #[test]
    fn a_pattern_of_an_event_has_the_same_limit() {
        let text = ["content LIKE source"; 4].join(" OR ");
        let filter = Filter::new(&text, Scope::Subscription).unwrap().unwrap();
        let matches =
            |length: usize| filter.matches(&Event { source: "x".repeat(length), ..event("") }.row());
        assert_eq!(matches(256), Ok(false));
        assert!(matches(257).unwrap_err().0.contains("pattern too complex"));
        // It is no reason to refuse another filter.
        assert!(Filter::new(&format!("{text} OR 0"), Scope::Subscription).is_ok());
    }
}
