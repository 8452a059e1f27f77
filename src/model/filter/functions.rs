//! Replacements for SQLite functions whose cost is the product of their arguments' lengths, on connections
//! that evaluate filters. A call of such a function cannot be interrupted.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};

use memchr::memmem;
use rusqlite::{Connection, Error, ffi};

use super::{MAX_COMPARED, MAX_PATTERN};

thread_local! {
    /// Work left for LIKE and GLOB on the event that this OS thread is evaluating; see [`MAX_COMPARED`].
    static COMPARE_BUDGET: Cell<u64> = const { Cell::new(0) };
}

/// Resets the limit on LIKE and GLOB. Must be called before each event.
pub(crate) fn begin_event() {
    COMPARE_BUDGET.set(MAX_COMPARED);
}

/// Installs the replacements on a connection.
pub(crate) fn install(conn: &Connection) -> rusqlite::Result<()> {
    define(conn, c"instr", 2, instr)?;
    define(conn, c"like", 2, compare::<false>)?;
    define(conn, c"like", 3, compare::<false>)?;
    define(conn, c"glob", 2, compare::<true>)
}

type Function = unsafe extern "C" fn(*mut ffi::sqlite3_context, c_int, *mut *mut ffi::sqlite3_value);

fn define(conn: &Connection, name: &CStr, arguments: c_int, function: Function) -> rusqlite::Result<()> {
    // Deliberately not SQLITE_DETERMINISTIC: SQLite would evaluate a call with constant arguments only on the
    // first event, which would then have less work left than the others.
    let flags = ffi::SQLITE_UTF8 | ffi::SQLITE_INNOCUOUS;
    // SAFETY: the connection is open, the name ends with a NUL, and the function needs no data.
    let code = unsafe {
        ffi::sqlite3_create_function_v2(
            conn.handle(),
            name.as_ptr(),
            arguments,
            flags,
            std::ptr::null_mut(),
            Some(function),
            None,
            None,
            None,
        )
    };
    if code == ffi::SQLITE_OK { Ok(()) } else { Err(Error::SqliteFailure(ffi::Error::new(code), None)) }
}

/// LIKE or GLOB with SQLite's semantics. Arguments: pattern, text and optionally an escape character.
unsafe extern "C" fn compare<const GLOB: bool>(
    context: *mut ffi::sqlite3_context,
    count: c_int,
    values: *mut *mut ffi::sqlite3_value,
) {
    // SAFETY: what SQLite passes is valid during the call, and its texts end with a NUL. A text may move
    // when its value is converted, so all are converted before the first is used.
    let fail = |why: &CStr| unsafe { ffi::sqlite3_result_error(context, why.as_ptr(), -1) };
    let text = |at| unsafe { ffi::sqlite3_value_text(*values.add(at)).cast::<c_char>() };
    let length = |at| unsafe { ffi::sqlite3_value_bytes(*values.add(at)) } as u64;
    let (pattern, value) = (text(0), text(1));
    if length(0) > MAX_PATTERN as u64 {
        return fail(c"LIKE or GLOB pattern too complex");
    }
    let mut escape = 0;
    if count == 3 {
        let character = text(2);
        if character.is_null() {
            return;
        }
        // SAFETY: as above.
        let character = unsafe { CStr::from_ptr(character) }.to_str().unwrap_or_default();
        let mut characters = character.chars();
        escape = match (characters.next(), characters.next()) {
            // SQLite allows these, and they lose their special meaning.
            (Some('%' | '_'), None) => return fail(c"ESCAPE takes neither % nor _"),
            (Some(one), None) => one.into(),
            _ => return fail(c"ESCAPE expression must be a single character"),
        };
    }
    if pattern.is_null() || value.is_null() {
        return;
    }
    match COMPARE_BUDGET.get().checked_sub(length(0) * length(1)) {
        Some(left) => COMPARE_BUDGET.set(left),
        None => return fail(c"LIKE and GLOB have too much to compare"),
    }
    // SAFETY: as above.
    unsafe {
        let differs = match GLOB {
            true => ffi::sqlite3_strglob(pattern, value),
            false => ffi::sqlite3_strlike(pattern, value, escape),
        };
        ffi::sqlite3_result_int(context, c_int::from(differs == 0));
    }
}

/// `instr(X, Y)`: the position of Y in X, from 1, or 0. In bytes for two BLOBs, else in characters.
unsafe extern "C" fn instr(
    context: *mut ffi::sqlite3_context,
    _: c_int,
    values: *mut *mut ffi::sqlite3_value,
) {
    // SAFETY: as in `compare`; `sqlite3_value_bytes` returns the length of the text or BLOB requested last.
    unsafe {
        let kind = |at| ffi::sqlite3_value_type(*values.add(at));
        let blobs = [kind(0), kind(1)] == [ffi::SQLITE_BLOB; 2];
        let start = |at| match blobs {
            true => ffi::sqlite3_value_blob(*values.add(at)).cast::<u8>(),
            false => ffi::sqlite3_value_text(*values.add(at)),
        };
        let (hay, needle) = (start(0), start(1));
        // A null pointer means NULL, except with two BLOBs, where it means an empty one.
        if !blobs && (hay.is_null() || needle.is_null()) {
            return;
        }
        let bytes = |start: *const u8, at| match ffi::sqlite3_value_bytes(*values.add(at)) {
            0 => &[][..],
            length => std::slice::from_raw_parts(start, length as usize),
        };
        let (hay, needle) = (bytes(hay, 0), bytes(needle, 1));
        if needle.len() > MAX_PATTERN {
            let why = format!("instr() searches for at most {MAX_PATTERN} bytes\0");
            return ffi::sqlite3_result_error(context, why.as_ptr().cast(), -1);
        }
        let position = memmem::find(hay, needle)
            .map_or(0, |at| 1 + hay[..at].iter().filter(|&&byte| blobs || byte & 0xc0 != 0x80).count());
        ffi::sqlite3_result_int64(context, position as i64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts that each expression has the same value with these functions as with SQLite's.
    fn same(expressions: impl IntoIterator<Item = String>) {
        let (ours, theirs) = (Connection::open_in_memory().unwrap(), Connection::open_in_memory().unwrap());
        install(&ours).unwrap();
        for expression in expressions {
            let sql = format!("SELECT {expression}");
            let ask = |conn: &Connection| {
                begin_event();
                conn.query_row(&sql, [], |row| row.get::<_, Option<i64>>(0))
                    .map_err(|e| super::super::message(&e))
            };
            assert_eq!(ask(&ours), ask(&theirs), "{sql}");
        }
    }

    fn pairs(values: &[&str], make: impl Fn(&str, &str) -> String) -> Vec<String> {
        values.iter().flat_map(|a| values.iter().map(|b| make(a, b)).collect::<Vec<_>>()).collect()
    }

    #[test]
    fn instr_means_what_sqlite_means() {
        let values = [
            "NULL",
            "0",
            "-12",
            "''",
            "'a'",
            "'aé☃é'",
            "'☃'",
            "'é'",
            "x'61c3a9'",
            "'2'",
            "x''",
            "1.5",
            "'.'",
            "-2e300",
            "'e+'",
        ];
        same(pairs(&values, |hay, needle| format!("instr({hay}, {needle})")));
    }

    #[test]
    fn like_and_glob_mean_what_sqlite_means() {
        let values = [
            "NULL",
            "0",
            "-12",
            "1.5",
            "'1%'",
            "'1.5'",
            "''",
            "'a'",
            "'A'",
            "'%A%'",
            "'_'",
            "'?'",
            "'*a'",
            "'[a-c]'",
            "'[^b]*'",
            "'a!%'",
            "'a%'",
            "'aé☃é'",
            "'%☃_'",
            "'*☃?'",
            "'É'",
            "x'61'",
            "x'6125'",
            "x''",
            "'%_%_'",
            "x'ff25'",
            "char(97,0,98)",
            "char(97,0,37)",
        ];
        same(pairs(&values, |value, pattern| format!("{value} LIKE {pattern}")));
        same(pairs(&values, |value, pattern| format!("{value} GLOB {pattern}")));
        same(pairs(&values, |pattern, value| format!("like({pattern}, {value})")));
        for escape in ["'!'", "'a'", "'☃'", "''", "'ab'", "NULL", "1", "x'21'"] {
            same(pairs(&values, |value, pattern| format!("{value} NOT LIKE {pattern} ESCAPE {escape}")));
        }
    }
}
