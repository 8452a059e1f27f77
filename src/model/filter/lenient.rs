//! SQLite's JSON functions, but NULL for text that is not JSON.
//!
//! SQLite's own fail on such text, and so would a filter such as `content ->> '$.event' = 'order'` on each plain message.
//! They are what a filter is evaluated with first. Only on an event on which they fail for this reason, it is evaluated
//! again with these replacements, which call SQLite's own on another connection.

use std::cell::RefCell;

use rusqlite::functions::{Context, FunctionFlags, SubType};
use rusqlite::types::{ToSqlOutput, Value};
use rusqlite::{Connection, Error, params_from_iter};

use super::message;

/// The functions that fail on text that is not JSON, and their numbers of arguments; -1 for any.
const FUNCTIONS: [(&str, i32); 8] = [
    ("->", 2),
    ("->>", 2),
    ("json", 1),
    ("json_array_length", 1),
    ("json_array_length", 2),
    ("json_extract", -1),
    ("json_type", 1),
    ("json_type", 2),
];

/// The subtype of a text that is JSON for other functions.
const JSON: SubType = Some(b'J' as u32);

thread_local! {
    /// A connection that has SQLite's own functions.
    static ORIGINAL: RefCell<Option<Connection>> = const { RefCell::new(None) };
}

/// Whether an evaluation failed because a text is not JSON.
pub fn is_not_json(error: &Error) -> bool {
    message(error) == "malformed JSON"
}

/// Replaces the JSON functions of a connection.
pub fn replace_functions(conn: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8
        | FunctionFlags::SQLITE_DETERMINISTIC
        | FunctionFlags::SQLITE_RESULT_SUBTYPE;
    for (name, arguments) in FUNCTIONS {
        conn.create_scalar_function(name, arguments, flags, move |context| call(name, context))?;
    }
    Ok(())
}

fn call(name: &str, context: &Context<'_>) -> rusqlite::Result<(Value, SubType)> {
    let sql = match name {
        "->" | "->>" => format!("SELECT ?1 {name} ?2"),
        _ => {
            let all: Vec<String> = (1..=context.len()).map(|number| format!("?{number}")).collect();
            format!("SELECT {name}({})", all.join(", "))
        }
    };
    let arguments = (0..context.len()).map(|at| ToSqlOutput::Borrowed(context.get_raw(at)));
    let result = ORIGINAL.with_borrow_mut(|slot| {
        let original = match slot {
            Some(original) => original,
            none => none.insert(Connection::open_in_memory()?),
        };
        let mut statement = original.prepare_cached(&sql)?;
        statement.query_row(params_from_iter(arguments), |row| row.get::<_, Value>(0))
    });
    match result {
        Ok(value) => {
            let is_json = matches!(name, "->" | "json") && value != Value::Null;
            Ok((value, is_json.then_some(JSON).flatten()))
        }
        Err(e) if is_not_json(&e) => Ok((Value::Null, None)),
        Err(e) => Err(e),
    }
}
