//! The thread into which rows are moved. It is closed until all of them are there.

use super::{PIECE_ROWS, Take, read_events, read_rest};
use crate::error::{Error, Result};
use crate::model::closed::Closed;
use crate::model::rows::{TABLES, Table, Tallies, Tally, Value, Values};
use crate::queue::Queue;
use crate::run::control;
use crate::store::{Rewrite, Store};

pub struct Goal<'q> {
    queue: &'q mut Queue,
    origin: String,
    /// Of the events that are stored.
    pub events: Tally,
    /// The last of them.
    pub last: i64,
}

impl<'q> Goal<'q> {
    /// Begins, or continues. `origin` distinguishes what is moved from everything else.
    ///
    /// # Errors
    ///
    /// [`Error::NotEmpty`]; [`Error::ImportUnfinished`] if that is another one.
    pub fn begin(queue: &'q mut Queue, origin: &str) -> Result<Goal<'q>> {
        let location = queue.location().clone();
        let is_empty = is_empty(&mut *queue.store)?;
        let mut events = Tally::default();
        queue.store.rewrite(&mut |rewrite| match rewrite.closed()? {
            Some(Closed::Importing { origin: other, events: stored }) if other == origin => {
                events = stored;
                Ok(())
            }
            Some(closed) => Err(closed.into()),
            None if is_empty => rewrite.set_closed(Some(&importing(origin, events))),
            None => Err(Error::NotEmpty(location.clone())),
        })?;
        // Nobody else can store anything from now on, but somebody may have just before.
        let last = queue.store.newest()?;
        if events.count == 0 && last > 0 {
            queue.store.rewrite(&mut |rewrite| rewrite.set_closed(None))?;
            return Err(Error::NotEmpty(location));
        }
        Ok(Goal { queue, origin: origin.to_owned(), events, last })
    }

    /// Stores events, which follow those that are there.
    pub fn put_events(&mut self, rows: &[Values]) -> Result<()> {
        let Some(last) = rows.last() else { return Ok(()) };
        let mut events = self.events;
        rows.iter().for_each(|row| events.add(Table::events(), row));
        let (before, after) = (importing(&self.origin, self.events), importing(&self.origin, events));
        self.queue.store.rewrite(&mut |rewrite| {
            must_be(rewrite, &before)?;
            rewrite.put(Table::events(), rows)?;
            rewrite.set_closed(Some(&after))
        })?;
        (self.events, self.last) = (events, last[0].number());
        self.queue.store.tidy()
    }

    /// Stores everything else, in one transaction. `feed` passes it on. `has_steps`: there may be steps, or events that
    /// sleep.
    pub fn put_rest(
        &mut self,
        has_steps: bool,
        feed: &mut dyn FnMut(&mut Take<'_>) -> Result<()>,
    ) -> Result<()> {
        if has_steps {
            self.queue.store.prepare_steps()?;
        }
        let state = importing(&self.origin, self.events);
        self.queue.store.rewrite(&mut |rewrite| {
            must_be(rewrite, &state)?;
            // An earlier attempt may have left some.
            TABLES.iter().skip(1).try_for_each(|table| rewrite.clear(table))?;
            feed(&mut |table, mut rows| {
                if let Some(arrive) = table.arrive {
                    rows.iter_mut().for_each(arrive);
                }
                rewrite.put(table, &rows)
            })
        })
    }

    /// Reads everything back, and compares it with what was to be moved.
    ///
    /// # Errors
    ///
    /// [`Error::Other`]: it differs, and stays closed.
    pub fn compare(&mut self, moved: &Tallies) -> Result<()> {
        let mut found = Tallies::default();
        let store = &mut *self.queue.store;
        let mut add = |table: &'static Table, rows: Vec<Values>| {
            rows.iter().for_each(|row| found.add(table, row));
            Ok(())
        };
        read_events(store, 0, &mut add)?;
        read_rest(store, &mut add)?;
        for (table, expected) in moved.iter() {
            let found = found.of(table);
            if found != expected {
                return Err(Error::Other(format!(
                    "the rows of the kind {} differ: {} with the digest {} were to be moved, and {} with {} are there, \
                     which stays closed",
                    table.kind, expected.count, expected.digest, found.count, found.digest
                )));
            }
        }
        Ok(())
    }

    /// Opens it to everybody. Returns why the JSONL log is behind, if it is.
    pub fn open(self) -> Result<Option<Error>> {
        let state = importing(&self.origin, self.events);
        // Before it is open: if this is interrupted, it is repeated.
        let log_behind = self.queue.publish(&mut |_| {});
        self.queue.store.rewrite(&mut |rewrite| {
            must_be(rewrite, &state)?;
            rewrite.set_closed(None)
        })?;
        control::notify_supervisors(self.queue);
        Ok(log_behind)
    }
}

fn importing(origin: &str, events: Tally) -> Closed {
    Closed::Importing { origin: origin.to_owned(), events }
}

/// Fails if another process continues it too.
fn must_be(rewrite: &mut dyn Rewrite, state: &Closed) -> Result<()> {
    match rewrite.closed()? {
        Some(now) if now == *state => Ok(()),
        _ => Err(Error::Other("another process imports into this thread as well".to_owned())),
    }
}

/// Whether there is nothing in a thread, and never was an event.
pub fn is_empty(store: &mut dyn Store) -> Result<bool> {
    for table in TABLES {
        let rows = store.read_rows(table, None, PIECE_ROWS)?;
        if rows.iter().any(|row| table.kind != "thread" || row.iter().any(|n| *n != Value::Number(0))) {
            return Ok(false);
        }
    }
    Ok(true)
}
