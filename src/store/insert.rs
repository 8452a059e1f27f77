//! Storing new events: one transaction for a push or a whole batch, synced before it is believed.

use rusqlite::{Connection, OptionalExtension, Statement, TransactionBehavior, params};

use super::{Store, newest_ever, row_of};
use crate::error::{Failure, OrFix, Result, commit, database};
use crate::event::{self, Event, NewEvent};
use crate::files;

/// How many events of a batch one statement stores. What SQLite does once a statement (finding and
/// writing the last id, opening the indexes) costs as much as storing an event.
const TOGETHER: usize = 16;

/// What a transaction of pushes stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stored {
    pub count: u64,
    /// Neither id is there when nothing was stored.
    pub first_id: Option<i64>,
    pub last_id: Option<i64>,
    /// The one time that all events of the transaction bear.
    pub created_at: String,
}

/// What became of an event that was to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inserted {
    New(i64),
    /// It had been stored before, under the same idempotency key.
    Before(Box<Event>),
}

impl Store {
    /// Stores what `feed` hands to the [`Inserter`], all or nothing, synced.
    pub fn append(&mut self, feed: impl FnOnce(&mut Inserter<'_>) -> Result<()>) -> Result<Stored> {
        let doing = "storing";
        let failed = |e: rusqlite::Error| database(&e, doing);
        self.must_be_writable(doing)?;
        let transaction =
            self.conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        if self.new_wal
            && let Some(dir) = self.wal.parent()
        {
            // SQLite syncs the directory too, but takes no notice when that fails.
            files::sync_if_possible(dir).or_fix(
                "the disk failed to sync the directory, nothing was stored",
                "check the disk, then push again",
            )?;
        }
        let stored = {
            let stored = Stored { created_at: event::now(), ..Stored::default() };
            let single = transaction.prepare(STORE_ONE).map_err(failed)?;
            let mut inserter = Inserter { conn: &transaction, single, many: None, waiting: 0, stored };
            feed(&mut inserter)?;
            inserter.flush().map_err(failed)?;
            inserter.stored
        };
        transaction.commit().map_err(|e| commit(&e, doing))?;
        Ok(stored)
    }
}

/// Stores events inside one transaction.
pub struct Inserter<'t> {
    conn: &'t Connection,
    single: Statement<'t>,
    /// Stores [`TOGETHER`] events; made when there are that many.
    many: Option<Statement<'t>>,
    /// How many events are bound to `many` and not stored yet.
    waiting: usize,
    stored: Stored,
}

impl Inserter<'_> {
    /// The id that the next event will be given, and the time that all will bear.
    pub fn next(&self) -> Result<(i64, &str)> {
        let newest = newest_ever(self.conn).map_err(|e| database(&e, "storing"))?;
        Ok((newest.saturating_add(1), &self.stored.created_at))
    }

    /// Stores one event, unless its idempotency key says that it is stored already.
    ///
    /// # Errors
    ///
    /// A different event under the same key; database trouble.
    pub fn insert(&mut self, event: &NewEvent<'_>) -> Result<Inserted> {
        let failed = |e: rusqlite::Error| database(&e, "storing");
        self.flush().map_err(failed)?;
        if let Some(key) = &event.idempotency_key
            && let Some(before) = self.find(key).map_err(failed)?
        {
            if event.is_same(&before) {
                return Ok(Inserted::Before(Box::new(before)));
            }
            return Err(Failure::could_not(
                format_args!(
                    "the idempotency key '{key}' belongs to event {}, which is another one",
                    before.id
                ),
                "use a new key for a new event; nothing was stored",
            ));
        }
        let id = self
            .single
            .insert(params![
                self.stored.created_at,
                event.source,
                event.kind.as_str(),
                event.subtype,
                event.content,
                event.metadata,
                event.idempotency_key
            ])
            .map_err(failed)?;
        self.count(1, id);
        Ok(Inserted::New(id))
    }

    /// The same for one event of many: it may be stored later, together with the next ones.
    pub fn insert_soon(&mut self, event: &NewEvent<'_>) -> Result<()> {
        // A key must be looked for among all that came before.
        if event.idempotency_key.is_some() || self.stored.count < TOGETHER as u64 {
            return self.insert(event).map(drop);
        }
        self.bind(event).map_err(|e| database(&e, "storing"))
    }

    fn bind(&mut self, event: &NewEvent<'_>) -> rusqlite::Result<()> {
        let many = match &mut self.many {
            Some(many) => many,
            none => {
                let many = none.insert(self.conn.prepare(&store_many())?);
                many.raw_bind_parameter(1, &self.stored.created_at)?;
                many
            }
        };
        let first = 3 + self.waiting * 5;
        many.raw_bind_parameter(first, &event.source)?;
        many.raw_bind_parameter(first + 1, event.kind.as_str())?;
        many.raw_bind_parameter(first + 2, &event.subtype)?;
        many.raw_bind_parameter(first + 3, &event.content)?;
        many.raw_bind_parameter(first + 4, &event.metadata)?;
        self.waiting += 1;
        if self.waiting == TOGETHER { self.flush() } else { Ok(()) }
    }

    /// Stores the events that wait.
    fn flush(&mut self) -> rusqlite::Result<()> {
        let Some(many) = self.many.as_mut().filter(|_| self.waiting > 0) else { return Ok(()) };
        many.raw_bind_parameter(2, self.waiting as i64)?;
        many.raw_execute()?;
        let count = std::mem::take(&mut self.waiting) as u64;
        self.count(count, self.conn.last_insert_rowid());
        Ok(())
    }

    /// Adds `count` events that were stored, the last of them with this id. The first are stored
    /// singly, so the first id is right.
    fn count(&mut self, count: u64, last_id: i64) {
        self.stored.count += count;
        self.stored.first_id.get_or_insert(last_id);
        self.stored.last_id = Some(last_id);
    }

    fn find(&self, key: &str) -> rusqlite::Result<Option<Event>> {
        let sql = "SELECT id, created_at, source, type, subtype, content, metadata FROM events \
                   WHERE idempotency_key = ?";
        let mut statement = self.conn.prepare_cached(sql)?;
        statement.query_row([key], |row| row_of(row).map(|row| row.to_event())).optional()
    }
}

const STORE_ONE: &str = "INSERT INTO events \
    (created_at, source, type, subtype, content, metadata, idempotency_key) VALUES (?, ?, ?, ?, ?, ?, ?)";

/// SQL that stores up to [`TOGETHER`] events of the time ?1; ?2 says how many. "OR FAIL" spares SQLite
/// the journal by which it would undo this statement alone: whatever fails here undoes everything.
fn store_many() -> String {
    let row = |row: usize| {
        let [a, b, c, d, e] = [0, 1, 2, 3, 4].map(|field| 3 + row * 5 + field);
        format!("SELECT ?1, ?{a}, ?{b}, ?{c}, ?{d}, ?{e} WHERE ?2 > {row}")
    };
    let rows: Vec<String> = (0..TOGETHER).map(row).collect();
    format!(
        "INSERT OR FAIL INTO events (created_at, source, type, subtype, content, metadata) {}",
        rows.join(" UNION ALL ")
    )
}
