//! The database: all SQL, all transactions, all mapping of rows.
//!
//! Keeps the promise that what is acknowledged is never lost: WAL with `synchronous=FULL`, every
//! write in an immediate transaction, and a WAL that is kept small. It knows nothing of the files
//! beside the database, and of processes only what is recorded about them.

mod ahead;
mod compact;
mod copy;
mod dead;
mod evaluate;
mod examine;
mod extent;
mod insert;
mod prune;
mod runs;
pub mod schema;
mod subscriptions;
mod wal;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior, params};

pub use ahead::Page;
pub use compact::Sizes;
pub use dead::Letter;
pub use evaluate::{Look, Trouble};
pub use examine::Astray;
pub use extent::{Counting, Extent};
pub use insert::{Inserted, Inserter, Stored};
pub use prune::{Pruned, Step};
pub use subscriptions::{NewSubscription, Subscribed};
pub use wal::fold_back;

use crate::error::{self, Result, database};
use crate::event::{self, Event, Row};
use crate::filter::{self, Checker, Dates, Filter, Refusal, Scope};
use crate::progress::Progress;
use crate::subscription::ConsumerId;

/// How long a command waits for other writers before it gives up.
const BUSY_LIMIT: Duration = Duration::from_secs(60);

/// How long it waits between two tries at first.
const SHORT_WAIT: Duration = Duration::from_micros(500);

/// A page of reading ends at about this many bytes, so that memory stays flat.
const PAGE_BYTES: usize = 256 * 1024;

/// A page of reading ends at this many events.
const PAGE_EVENTS: usize = 1000;

/// So many of its instructions SQLite carries out between two looks at the clock.
const INSTRUCTIONS: i32 = 10_000;

/// An open database of a thread.
pub struct Store {
    conn: Connection,
    /// What checks filters, made when the first is checked.
    checker: Option<Checker>,
    dates: Dates,
    path: PathBuf,
    wal: PathBuf,
    /// Whether a WAL that has grown long is folded back at the end.
    folds_wal: bool,
    /// The WAL had nothing in it yet: its name may not be on the disk.
    new_wal: bool,
}

/// Where a reading stands.
#[derive(Debug, Clone)]
pub struct Reading<'f> {
    /// Events up to this id are done with.
    pub after: i64,
    /// How many events may still be printed; none is no limit.
    pub left: Option<u64>,
    pub filter: Option<&'f Filter>,
}

/// What became of a wish to set a cursor.
#[derive(Debug, PartialEq, Eq)]
pub enum Moved {
    /// The cursor stands at this id.
    To(i64),
    /// It was asked past the newest id ever given, and stands at this one instead.
    Clamped(i64),
    /// It stands further on, at this id, and was left there.
    StandsAt(i64),
    /// There is no such consumer; nothing was recorded.
    UnknownConsumer,
}

impl Store {
    /// Makes a new database at `path`, which must not exist, and leaves it closed and whole in
    /// that one file.
    pub fn create(path: &Path) -> Result<()> {
        let doing = "making the database";
        let failed = |e: rusqlite::Error| database(&e, doing);
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = Connection::open_with_flags(path, flags).map_err(failed)?;
        schema::create(&conn).map_err(failed)?;
        schema::use_wal(&conn, path)?;
        // Closing as the only user checkpoints and removes the WAL: the file is then complete.
        conn.close().map_err(|(_, e)| failed(e))
    }

    /// Opens the database of a thread, bringing an older schema up to date. A database that is
    /// newer than this program, or not a thread's, is refused and left as it was.
    pub fn open(path: &Path) -> Result<Store> {
        let doing = "opening the database";
        let failed = |e: rusqlite::Error| database(&e, doing);
        let wal = wal::path_of(path);
        let had_wal = wal.exists();
        let new_wal = !std::fs::metadata(&wal).is_ok_and(|wal| wal.len() > 0);
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut conn = Connection::open_with_flags(path, flags).map_err(failed)?;
        configure(&mut conn).map_err(|e| schema::foreign_or(&e, path, doing))?;
        match schema::bring_up_to_date(&mut conn, path) {
            Ok(()) => {
                wal::keep(&conn).map_err(failed)?;
                Ok(Store {
                    conn,
                    checker: None,
                    dates: Dates::default(),
                    path: path.to_owned(),
                    wal,
                    folds_wal: true,
                    new_wal,
                })
            }
            Err(refused) => {
                // A WAL that was there stays as it is; one that only this look made goes again.
                if had_wal {
                    wal::keep(&conn).map_err(failed)?;
                }
                Err(refused)
            }
        }
    }

    /// Refuses what would write where one may only read: the database says so itself, but not of
    /// an older one, for whose missing parts something else stands in.
    fn must_be_writable(&self, doing: &str) -> Result<()> {
        let read_only = self.conn.is_readonly("main").map_err(|e| database(&e, doing))?;
        if read_only { Err(error::read_only(doing)) } else { Ok(()) }
    }

    /// The newest id ever given, also when its event is gone; 0 when none was.
    pub fn newest_ever(&self) -> Result<i64> {
        newest_ever(&self.conn).map_err(|e| database(&e, "looking for the newest event"))
    }

    /// Changes whenever another connection has committed something.
    pub fn data_version(&self) -> Result<i64> {
        self.conn
            .prepare_cached("PRAGMA data_version")
            .and_then(|mut s| s.query_row([], |row| row.get(0)))
            .map_err(|e| database(&e, "asking for changes"))
    }

    /// The id of the last event before the first one stored at `time` or later; the newest id when
    /// there is none such.
    pub fn last_before(&self, time: &str) -> Result<i64> {
        let sql = "SELECT min(id) FROM events WHERE created_at >= ?";
        let first: Option<i64> = self
            .conn
            .query_row(sql, [time], |row| row.get(0))
            .map_err(|e| database(&e, "looking for a time"))?;
        first.map_or_else(|| self.newest_ever(), |first| Ok(first - 1))
    }

    /// The id after which the last `count` matching events begin, none of them up to `after`.
    pub fn start_of_tail(&mut self, filter: Option<&Filter>, after: i64, count: u64) -> Result<i64> {
        if let Some(filter) = filter {
            return self.start_of_matching_tail(filter, after, count);
        }
        let offset = i64::try_from(count).unwrap_or(i64::MAX);
        let sql = "SELECT id FROM events ORDER BY id DESC LIMIT 1 OFFSET ?";
        let before = self.conn.query_row(sql, [offset], |row| row.get(0)).optional();
        let before = before.map_err(|e| database(&e, "looking for the last events"))?;
        Ok(after.max(before.unwrap_or(0)))
    }

    /// Checks a filter against this database.
    pub fn check_filter(&mut self, text: &str, scope: Scope) -> std::result::Result<Option<Filter>, Refusal> {
        let checker = match &mut self.checker {
            Some(checker) => checker,
            none => none.insert(Checker::new().map_err(|e| Refusal(format!("cannot be checked: {e}")))?),
        };
        checker.check(&self.conn, text, scope)
    }

    /// Appends the next events to `page` as NDJSON and moves `reading` on. Ends after about 256 KiB
    /// with no read transaction open, so that a slow printer holds nothing up.
    ///
    /// The answer is whether there may be more.
    pub fn read_page(&mut self, reading: &mut Reading<'_>, page: &mut Vec<u8>) -> Result<bool> {
        self.read_rows(reading, |row| {
            row.write_line(page);
            page.len() < PAGE_BYTES
        })
    }

    /// All events that `reading` still covers. For programs with enough memory.
    pub fn read_all(&mut self, mut reading: Reading<'_>) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        while self.read_rows(&mut reading, |row| {
            events.push(row.to_event());
            true
        })? {}
        Ok(events)
    }

    /// Hands the next events to `take`, until it answers false or a page is full. The answer is
    /// whether there may be more.
    pub fn read_rows(
        &mut self,
        reading: &mut Reading<'_>,
        mut take: impl FnMut(Row<'_>) -> bool,
    ) -> Result<bool> {
        if reading.left == Some(0) {
            return Ok(false);
        }
        let most =
            reading.left.map_or(PAGE_EVENTS, |left| PAGE_EVENTS.min(left.try_into().unwrap_or(usize::MAX)));
        match reading.filter {
            None => self.read_range(reading, i64::MAX, most, &mut take),
            Some(filter) => {
                let newest = self.newest_ever()?;
                let scan = self.scan(filter, reading.after, newest, most)?;
                for &id in &scan.ids {
                    let mut one = Reading { after: id - 1, left: reading.left, filter: None };
                    let mut go_on = true;
                    self.read_range(&mut one, id, 1, &mut |row| {
                        go_on = take(row);
                        go_on
                    })?;
                    (reading.left, reading.after) = (one.left, id);
                    if !go_on || reading.left == Some(0) {
                        return Ok(reading.left != Some(0));
                    }
                }
                reading.after = reading.after.max(scan.upto);
                Ok(reading.left != Some(0) && scan.upto < newest)
            }
        }
    }

    /// Reads ids in `(reading.after, upto]`, `most` of them. False when these are exhausted.
    fn read_range(
        &self,
        reading: &mut Reading<'_>,
        upto: i64,
        most: usize,
        take: &mut impl FnMut(Row<'_>) -> bool,
    ) -> Result<bool> {
        let failed = |e: rusqlite::Error| database(&e, "reading events");
        let mut statement = self
            .conn
            .prepare_cached(
                "SELECT id, created_at, source, type, subtype, content, metadata FROM events \
                 WHERE id > ? AND id <= ? ORDER BY id LIMIT ?",
            )
            .map_err(failed)?;
        let mut rows = statement.query(params![reading.after, upto, most as i64]).map_err(failed)?;
        let mut taken = 0;
        while let Some(row) = rows.next().map_err(failed)? {
            let row = row_of(row).map_err(failed)?;
            let id = row.id;
            let go_on = take(row);
            taken += 1;
            reading.after = id;
            reading.left = reading.left.map(|left| left.saturating_sub(1));
            if !go_on {
                return Ok(reading.left != Some(0));
            }
        }
        Ok(taken == most && reading.left != Some(0))
    }

    /// Sets a subscribed consumer's cursor to `id`, backwards too.
    pub fn set_cursor(&mut self, consumer: &ConsumerId, id: i64) -> Result<Moved> {
        self.move_cursor(consumer, id, true)
    }

    /// Moves a subscribed consumer's cursor forward to `id`, never backwards.
    pub fn acknowledge(&mut self, consumer: &ConsumerId, id: i64) -> Result<Moved> {
        self.move_cursor(consumer, id, false)
    }

    /// Shows on a terminal that it goes on, while `work` lets SQLite work for long.
    fn shown<T>(
        &mut self,
        what: &'static str,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        let mut progress = Progress::of(what, None);
        self.conn.progress_handler(
            INSTRUCTIONS,
            Some(move || {
                progress.tick();
                false
            }),
        )?;
        let done = work(&self.conn);
        // The line goes with the handler.
        self.conn.progress_handler(0, None::<fn() -> bool>)?;
        done
    }

    fn move_cursor(&mut self, consumer: &ConsumerId, id: i64, backwards: bool) -> Result<Moved> {
        let failed = |e: rusqlite::Error| database(&e, "recording the cursor");
        // Asking first keeps a poll that moves nothing from waiting for the write lock.
        if let Verdict::Settled(moved) = judge_move(&self.conn, consumer, id, backwards).map_err(failed)? {
            return Ok(moved);
        }
        let transaction =
            self.conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let moved = move_in(&transaction, consumer, id, backwards).map_err(failed)?;
        transaction.commit().map_err(failed)?;
        Ok(moved)
    }
}

/// An event's columns, in the order every statement here selects them.
fn row_of<'r>(row: &'r rusqlite::Row<'_>) -> rusqlite::Result<Row<'r>> {
    let bytes = |column: usize| row.get_ref(column).map(bytes_of);
    Ok(Row {
        id: row.get(0)?,
        created_at: bytes(1)?.unwrap_or_default(),
        source: bytes(2)?.unwrap_or_default(),
        kind: bytes(3)?.unwrap_or_default(),
        subtype: bytes(4)?,
        content: bytes(5)?.unwrap_or_default(),
        metadata: bytes(6)?,
    })
}

/// The newest id ever given, also when its event is gone.
fn newest_ever(conn: &Connection) -> rusqlite::Result<i64> {
    conn.prepare_cached(
        "SELECT max(coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0), \
                    coalesce((SELECT max(id) FROM events), 0))",
    )?
    .query_row([], |row| row.get(0))
}

/// What a wish to move a cursor comes to, judged on one snapshot.
enum Verdict {
    /// Nothing is to be written.
    Settled(Moved),
    /// The cursor is to be set to this id.
    Write(Moved, i64),
}

/// Moves a cursor inside a transaction that was begun already.
fn move_in(conn: &Connection, consumer: &ConsumerId, id: i64, backwards: bool) -> rusqlite::Result<Moved> {
    let (moved, target) = match judge_move(conn, consumer, id, backwards)? {
        Verdict::Settled(moved) => return Ok(moved),
        Verdict::Write(moved, target) => (moved, target),
    };
    conn.execute(
        "INSERT INTO consumer_progress (consumer_id, last_acked_id, updated_at) VALUES (?1, ?2, ?3) \
         ON CONFLICT (consumer_id) DO UPDATE SET last_acked_id = ?2, updated_at = ?3",
        params![consumer.as_str(), target, event::now()],
    )?;
    Ok(moved)
}

fn judge_move(
    conn: &Connection,
    consumer: &ConsumerId,
    id: i64,
    backwards: bool,
) -> rusqlite::Result<Verdict> {
    let mut statement = conn.prepare_cached(
        "SELECT (SELECT CAST(last_acked_id AS INTEGER) FROM consumer_progress p WHERE p.consumer_id = s.consumer_id) \
         FROM subscriptions s WHERE s.consumer_id = ?",
    )?;
    let stored = statement.query_row([consumer.as_str()], |row| row.get::<_, Option<i64>>(0)).optional()?;
    let Some(stored) = stored else { return Ok(Verdict::Settled(Moved::UnknownConsumer)) };
    let newest = newest_ever(conn)?;
    let at = stored.unwrap_or(0);
    let target = id.min(newest);
    let moved = if target < id { Moved::Clamped(target) } else { Moved::To(target) };
    Ok(if target < at && !backwards {
        Verdict::Settled(Moved::StandsAt(at))
    } else if target == at {
        Verdict::Settled(moved)
    } else {
        Verdict::Write(moved, target)
    })
}

/// The bytes of a text or blob. Other programs may have stored either.
fn bytes_of(value: ValueRef<'_>) -> Option<&[u8]> {
    match value {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(bytes),
        ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) => None,
    }
}

fn text_of(value: ValueRef<'_>) -> Option<String> {
    bytes_of(value).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

/// Waits for other writers in short, even steps. SQLite's own back-off grows to a tenth of a
/// second, so that whoever waited longest is the last to notice a free database.
fn wait_for_others(conn: &mut Connection) -> rusqlite::Result<()> {
    let mut began = Instant::now();
    conn.busy_handler(Some(move |times| {
        if times == 0 {
            began = Instant::now();
        }
        std::thread::sleep(if times < 200 { SHORT_WAIT } else { 10 * SHORT_WAIT });
        began.elapsed() < BUSY_LIMIT
    }))
}

fn configure(conn: &mut Connection) -> rusqlite::Result<()> {
    wait_for_others(conn)?;
    filter::bound(conn)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DML, false)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DDL, false)?;
    // Otherwise a LIMIT of one that is bound has its statement prepared a second time.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    conn.execute_batch("PRAGMA synchronous = FULL; PRAGMA cell_size_check = ON")
}
