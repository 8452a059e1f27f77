//! Moving a thread: exporting its rows, importing them, and copying them from one thread to another.
//!
//! The events are copied first, in pieces, while the thread is in use: they never change. What is left is read at one
//! moment, and stored in one transaction. Until all of it is there and was compared, the other thread is closed, so
//! nobody can use half of it, and a process that begins again continues after the last event that is there.

mod copy;
mod export;
mod goal;
mod import;

pub use self::copy::{Copied, Step, copy};
pub use self::export::export;
pub use self::import::{Imported, import};

use super::backup;
use crate::error::Result;
use crate::model::location::Location;
use crate::model::rows::{TABLES, Table, Value, Values};
use crate::queue::Queue;
use crate::store::Store;

/// The rows of a piece, at most.
const PIECE_ROWS: usize = 10_000;

/// Takes rows of a table.
type Take<'t> = dyn FnMut(&'static Table, Vec<Values>) -> Result<()> + 't;

/// Passes the rows of a table to `take`, in pieces.
fn read_table(
    store: &mut dyn Store,
    table: &'static Table,
    after: Option<Vec<Value>>,
    take: &mut Take<'_>,
) -> Result<()> {
    let mut after = after;
    loop {
        let rows = store.read_rows(table, after.as_deref(), PIECE_ROWS)?;
        let Some(last) = rows.last() else { return Ok(()) };
        after = Some(table.key_of(last).to_vec());
        take(table, rows)?;
    }
}

/// Passes the events after this id to `take`.
fn read_events(store: &mut dyn Store, after: i64, take: &mut Take<'_>) -> Result<()> {
    read_table(store, Table::events(), Some(vec![Value::Number(after)]), take)
}

/// Passes the events after this id to `take`, but not those that are stored as quickly as they are read: twice, those that
/// were there when it began.
fn read_most_events(store: &mut dyn Store, after: i64, take: &mut Take<'_>) -> Result<()> {
    let mut after = after;
    for _ in 0..2 {
        let newest = store.newest()?;
        while after < newest {
            let rows = store.read_rows(Table::events(), Some(&[Value::Number(after)]), PIECE_ROWS)?;
            let Some(last) = rows.last() else { break };
            after = last[0].number();
            take(Table::events(), rows)?;
        }
    }
    Ok(())
}

/// Refuses a location inside the thread, whose directory must contain only its own files.
///
/// # Errors
///
/// [`Error::InsideThread`](crate::Error::InsideThread).
pub fn refuse_inside(from: &Queue, to: &Location) -> Result<()> {
    match (from.location().dir(), to.dir()) {
        (Some(from), Some(to)) => backup::refuse_inside(from, to),
        _ => Ok(()),
    }
}

/// Passes all rows but the events to `take`.
fn read_rest(store: &mut dyn Store, take: &mut Take<'_>) -> Result<()> {
    TABLES.iter().skip(1).try_for_each(|table| read_table(store, table, None, take))
}
