//! Some of SQLite's functions in a form that filters may be trusted with.
//!
//! `instr` and the two-argument `trim`s of SQLite cost the product of their arguments' lengths, and
//! nothing can interrupt them half-way. Those here mean exactly the same at a cost that follows the
//! sum. The date functions ask SQLite itself, but refuse whatever might ask the clock or the time
//! zone, so that a subscription's filter gives one answer for ever.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memchr::memmem;
use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::limits::Limit;
use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, Error, params_from_iter};

use super::MAX_VALUE;

/// Functions of times that are pure for as long as no argument names the clock or the time zone.
pub const DATES: &[&str] = &["date", "datetime", "julianday", "strftime", "time", "timediff", "unixepoch"];

/// Longest set of characters to trim, in bytes.
const MAX_SET: usize = 256;

/// What a date function that might ask the clock fails with.
pub const ASKS_THE_CLOCK: &str = "may ask the clock or the time zone; a subscription's filter must not";

fn flags() -> FunctionFlags {
    FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC | FunctionFlags::SQLITE_INNOCUOUS
}

/// Puts the bounded functions in place of SQLite's own, for good.
pub fn bound(conn: &Connection) -> rusqlite::Result<()> {
    let side = Side::default();
    conn.create_scalar_function("instr", 2, flags(), move |call| instr(call, &side))?;
    for (name, left, right) in [("trim", true, true), ("ltrim", true, false), ("rtrim", false, true)] {
        let side = Side::default();
        conn.create_scalar_function(name, 2, flags(), move |call| trim(call, &side, left, right))?;
    }
    Ok(())
}

/// Whether the date functions of a connection refuse what might ask the clock.
///
/// A function that was replaced cannot be had back, so once they are, they are told what to do.
#[derive(Debug, Default)]
pub struct Dates {
    strict: Option<Arc<AtomicBool>>,
}

impl Dates {
    /// Makes the date functions of `conn` refuse what might ask the clock, or not.
    pub fn set_strict(&mut self, conn: &Connection, strict: bool) -> rusqlite::Result<()> {
        match &self.strict {
            Some(switch) => switch.store(strict, Ordering::Relaxed),
            None if strict => {
                let switch = Arc::new(AtomicBool::new(true));
                for name in DATES {
                    let arguments = if *name == "timediff" { 2 } else { -1 };
                    let (side, switch) = (Side::default(), Arc::clone(&switch));
                    conn.create_scalar_function(*name, arguments, flags(), move |call| {
                        if switch.load(Ordering::Relaxed) && asks_the_clock(name, call) {
                            return Err(Error::UserFunctionError(
                                format!("{name}() {ASKS_THE_CLOCK}").into(),
                            ));
                        }
                        side.ask(name, call)
                    })?;
                }
                self.strict = Some(switch);
            }
            None => {}
        }
        Ok(())
    }
}

/// What an argument of a date function is taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Format,
    Time,
    Modifier,
}

impl Role {
    /// The role of the argument at `position`, counted from 0.
    pub fn of(function: &str, position: usize) -> Role {
        match (function, position) {
            ("strftime", 0) => Role::Format,
            ("strftime", 1) | (_, 0) | ("timediff", _) => Role::Time,
            _ => Role::Modifier,
        }
    }

    /// Whether this text in this role makes SQLite look at the clock or the time zone. Like
    /// SQLite, it reads up to a NUL.
    pub fn asks_the_clock(self, text: &[u8]) -> bool {
        let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
        let words: &[&str] = match self {
            Role::Format => &[],
            Role::Time => &["now", "subsec", "subsecond"],
            Role::Modifier => &["localtime", "utc"],
        };
        words.iter().any(|word| text.eq_ignore_ascii_case(word.as_bytes()))
    }
}

/// Whether so few arguments mean "now".
pub fn lacks_a_time(function: &str, arguments: usize) -> bool {
    arguments <= usize::from(function == "strftime")
}

fn asks_the_clock(function: &str, call: &Context<'_>) -> bool {
    lacks_a_time(function, call.len())
        || (0..call.len()).any(|n| match call.get_raw(n) {
            ValueRef::Text(text) | ValueRef::Blob(text) => Role::of(function, n).asks_the_clock(text),
            _ => false,
        })
}

/// An empty database that answers for SQLite's own functions. Opened when it is first asked.
#[derive(Default)]
struct Side(RefCell<Option<Connection>>);

impl Side {
    fn with<T>(&self, ask: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> rusqlite::Result<T> {
        let mut slot = self.0.borrow_mut();
        let conn = match &mut *slot {
            Some(conn) => conn,
            empty => {
                let conn = Connection::open_in_memory()?;
                conn.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_VALUE)?;
                empty.insert(conn)
            }
        };
        ask(conn)
    }

    /// What SQLite's function of that name says.
    fn ask(&self, function: &str, call: &Context<'_>) -> rusqlite::Result<Answer> {
        let places = vec!["?"; call.len()].join(", ");
        self.with(|conn| {
            let mut statement = conn.prepare_cached(&format!("SELECT {function}({places})"))?;
            let arguments = (0..call.len()).map(|n| ToSqlOutput::Borrowed(call.get_raw(n)));
            statement.query_row(params_from_iter(arguments), |row| row.get_ref(0).map(Answer::from))
        })
    }

    /// An argument as text, as SQLite converts it; none for NULL.
    fn text(&self, value: ValueRef<'_>) -> rusqlite::Result<Option<Vec<u8>>> {
        Ok(match value {
            ValueRef::Null => None,
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(bytes.to_vec()),
            ValueRef::Integer(number) => Some(number.to_string().into_bytes()),
            ValueRef::Real(_) => self.with(|conn| {
                let mut statement = conn.prepare_cached("SELECT CAST(? AS TEXT)")?;
                statement.query_row([ToSqlOutput::Borrowed(value)], |row| {
                    row.get_ref(0)?.as_bytes_or_null().map(|b| b.map(<[u8]>::to_vec)).map_err(Error::from)
                })
            })?,
        })
    }
}

/// What a function answers. Text need not be UTF-8.
enum Answer {
    Null,
    Integer(i64),
    Real(f64),
    Text(Vec<u8>),
}

impl From<ValueRef<'_>> for Answer {
    fn from(value: ValueRef<'_>) -> Answer {
        match value {
            ValueRef::Null => Answer::Null,
            ValueRef::Integer(number) => Answer::Integer(number),
            ValueRef::Real(number) => Answer::Real(number),
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Answer::Text(bytes.to_vec()),
        }
    }
}

impl ToSql for Answer {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Answer::Null => ValueRef::Null,
            Answer::Integer(number) => ValueRef::Integer(*number),
            Answer::Real(number) => ValueRef::Real(*number),
            Answer::Text(bytes) => ValueRef::Text(bytes),
        }))
    }
}

/// `instr(X, Y)`: where Y begins in X, from 1, or 0. By byte in two blobs, else by character.
fn instr(call: &Context<'_>, side: &Side) -> rusqlite::Result<Option<i64>> {
    let (hay, needle) = (call.get_raw(0), call.get_raw(1));
    if let (ValueRef::Blob(hay), ValueRef::Blob(needle)) = (hay, needle) {
        return Ok(Some(memmem::find(hay, needle).map_or(0, |at| at as i64 + 1)));
    }
    if let (ValueRef::Text(hay), ValueRef::Text(needle)) = (hay, needle) {
        return Ok(Some(position(hay, needle)));
    }
    let (Some(hay), Some(needle)) = (side.text(hay)?, side.text(needle)?) else { return Ok(None) };
    Ok(Some(position(&hay, &needle)))
}

/// In characters. A text is looked into where a character begins, and at its very start.
fn position(hay: &[u8], needle: &[u8]) -> i64 {
    let continues = |byte: u8| byte & 0xc0 == 0x80;
    let at = match needle.first() {
        Some(&first) if continues(first) => hay.starts_with(needle).then_some(0),
        _ => memmem::find(hay, needle),
    };
    at.map_or(0, |at| {
        // An empty needle is found at 0, in an empty text too.
        let begun = hay.iter().take(at + 1).skip(1);
        1 + begun.filter(|&&byte| !continues(byte)).count() as i64
    })
}

/// `trim(X, Y)`, `ltrim(X, Y)` and `rtrim(X, Y)`: X without the characters of Y at its ends.
fn trim(call: &Context<'_>, side: &Side, left: bool, right: bool) -> rusqlite::Result<Answer> {
    let (Some(text), Some(set)) = (side.text(call.get_raw(0))?, side.text(call.get_raw(1))?) else {
        return Ok(Answer::Null);
    };
    if set.len() > MAX_SET {
        let why = format!("trims a set of {} bytes; at most {MAX_SET} are taken", set.len());
        return Err(Error::UserFunctionError(why.into()));
    }
    let set = characters(&set);
    let mut rest = text.as_slice();
    // By their first or last byte, so that few are tried at each place.
    let sorted = |key: fn(&[u8]) -> Option<&u8>| {
        let mut by_byte = vec![Vec::new(); 256];
        for character in &set {
            by_byte[usize::from(key(character).copied().unwrap_or_default())].push(*character);
        }
        by_byte
    };
    if left {
        let by_first = sorted(<[u8]>::first);
        while let Some(&first) = rest.first() {
            let Some(found) = by_first[usize::from(first)].iter().find(|c| rest.starts_with(c)) else {
                break;
            };
            rest = &rest[found.len()..];
        }
    }
    if right {
        let by_last = sorted(<[u8]>::last);
        while let Some(&last) = rest.last() {
            let Some(found) = by_last[usize::from(last)].iter().find(|c| rest.ends_with(c)) else { break };
            rest = &rest[..rest.len() - found.len()];
        }
    }
    Ok(Answer::Text(rest.to_vec()))
}

/// The characters up to a NUL, cut as SQLite cuts them also where the text is not UTF-8.
fn characters(set: &[u8]) -> Vec<&[u8]> {
    let mut rest = set.split(|&byte| byte == 0).next().unwrap_or_default();
    let mut characters = Vec::new();
    while let Some(&first) = rest.first() {
        let more =
            if first >= 0xc0 { rest[1..].iter().take_while(|&&b| b & 0xc0 == 0x80).count() } else { 0 };
        let (character, after) = rest.split_at(1 + more);
        characters.push(character);
        rest = after;
    }
    characters
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::types::Value;

    fn values() -> Vec<Value> {
        let mut values = vec![Value::Null, Value::Integer(0), Value::Integer(-12), Value::Integer(i64::MIN)];
        values.extend([0.0, -0.0, 1.5, 1e20, 1e-7, 0.1, f64::INFINITY, 123_456_789.125].map(Value::Real));
        let texts: [&[u8]; 20] = [
            b"",
            b"a",
            b"b",
            b"ab",
            b"aab",
            b"abab",
            b"2",
            b".",
            b"e",
            b" ",
            "é".as_bytes(),
            "éa".as_bytes(),
            "aé☃é".as_bytes(),
            "☃".as_bytes(),
            b"\xa9",
            b"\xc3",
            b"\xc3\xa9\xa9",
            b"a\0b",
            b"\0",
            b"\x80\xff\xc3",
        ];
        values.extend(texts.map(|text| Value::Blob(text.to_vec())));
        values
    }

    /// Every pair of values, as blobs and as texts, against SQLite's own function.
    fn agrees(call: &str) {
        let (own, sqlite) = (Connection::open_in_memory().unwrap(), Connection::open_in_memory().unwrap());
        bound(&own).unwrap();
        for (x, y) in [("?1", "?2"), ("?1", "CAST(?2 AS TEXT)"), ("CAST(?1 AS TEXT)", "?2")]
            .into_iter()
            .chain([("CAST(?1 AS TEXT)", "CAST(?2 AS TEXT)")])
        {
            let sql = format!("SELECT typeof(r), CAST(r AS BLOB) FROM (SELECT {call}({x}, {y}) AS r)");
            for a in values() {
                for b in values() {
                    let ask = |conn: &Connection| {
                        conn.query_row(&sql, [&a, &b], |row| {
                            Ok((row.get::<_, String>(0)?, row.get::<_, Option<Vec<u8>>>(1)?))
                        })
                        .unwrap()
                    };
                    assert_eq!(ask(&own), ask(&sqlite), "{call}({a:?} {x}, {b:?} {y})");
                }
            }
        }
    }

    #[test]
    fn instr_means_what_sqlite_means() {
        agrees("instr");
    }

    #[test]
    fn trims_mean_what_sqlite_means() {
        for call in ["trim", "ltrim", "rtrim"] {
            agrees(call);
        }
    }

    #[test]
    fn strict_dates_answer_as_sqlite_and_never_ask_the_clock() {
        let (own, sqlite) = (Connection::open_in_memory().unwrap(), Connection::open_in_memory().unwrap());
        let mut dates = Dates::default();
        dates.set_strict(&own, true).unwrap();
        let ask = |conn: &Connection, call: &str| {
            conn.query_row(&format!("SELECT {call}"), [], |row| row.get::<_, Value>(0))
        };
        for call in [
            "date('2026-03-18T10:30:00.123Z')",
            "time(2461118.5)",
            "datetime(1773829800, 'unixepoch')",
            "datetime('2026-03-18 10:30', '+1 month', 'start of day')",
            "julianday('2026-03-18')",
            "strftime('%H:%M now', '2026-03-18T10:30:00Z')",
            "unixepoch('2026-03-18')",
            "date(NULL)",
            "timediff('2026-03-18', '2025-01-01')",
            "date('nonsense')",
            "datetime('2026-03-18', 'subsec')",
            "strftime('now', '2026-03-18')",
            "datetime(1773829800, 'auto')",
            "date('localtime')",
        ] {
            assert_eq!(ask(&own, call), ask(&sqlite, call), "{call}");
        }
        for call in [
            "date()",
            "date('now')",
            "time('NOW')",
            "datetime('now', '-1 day')",
            "strftime('%s')",
            "strftime('%s', 'now')",
            "julianday('subsec')",
            "unixepoch('subsecond')",
            "date(CAST(x'6e6f77' AS TEXT))",
            "date(x'6e6f77')",
            "date('now' || char(0) || 'x')",
            "date('2026-03-18', 'localtime')",
            "date('2026-03-18', '+1 day', 'UTC')",
            "timediff('2026-03-18', 'now')",
            "timediff('now', '2026-03-18')",
        ] {
            let refused = ask(&own, call).unwrap_err().to_string();
            assert!(refused.contains(ASKS_THE_CLOCK), "{call}: {refused}");
        }
        dates.set_strict(&own, false).unwrap();
        assert!(matches!(ask(&own, "date('now')"), Ok(Value::Text(_))));
    }
}
