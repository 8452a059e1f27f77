//! The SQLite store of a thread.
//!
//! Contains all SQL on a thread's database. Acknowledged events are never lost: WAL with `synchronous=FULL`,
//! and every write in an immediate transaction. The WAL is kept small. This module knows nothing of the
//! thread's other files.

mod closed;
mod config;
mod consumers;
mod dead_letters;
mod due;
mod error;
mod events;
mod figures;
mod ledger;
pub mod maintenance;
mod migrate;
mod prune;
mod rows;
mod runs;
mod scan;
mod scheduled;
mod steps;
mod system_calls;
mod tables;
mod wal;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior};

use self::error::{Doing, Failed, commit};
use crate::error::{DatabaseErrorKind, Error, IoContext, Result, database};
use crate::files;
use crate::model::closed::Closed;
use crate::model::event::{CappedRow, NewEvent};
use crate::model::figures::Counted;
use crate::model::filter::Filter;
use crate::model::ledger::Ledger;
use crate::model::rows::{Table, Value, Values};
use crate::model::run::Run;
use crate::model::schedule::Schedule;
use crate::model::scheduled::{NextDue, ScheduledEvent, ScheduledId, Which};
use crate::model::step::Step;
use crate::model::subscription::{ConsumerId, DeadLetter, NewSubscription, Subscription};
use crate::model::time::Time;
use crate::store::{
    Appended, FilterFailure, Move, Moved, PruneRange, PruneStep, Put, Rewrite, RunUpdate, Scan, ScanRange,
    StepChange, StepsOf, Store,
};

/// How long an operation waits for other writers before it fails, unless the store was opened otherwise.
pub const BUSY_LIMIT: Duration = Duration::from_secs(60);

/// Maximum length of a database's path, in bytes: SQLite appends the suffixes of its own files.
const MAX_DB_PATH: usize = 504;

/// Initial wait between two tries to get the write lock.
const SHORT_WAIT: Duration = Duration::from_micros(500);

const OPEN_FLAGS: OpenFlags = OpenFlags::SQLITE_OPEN_READ_WRITE
    .union(OpenFlags::SQLITE_OPEN_NO_MUTEX)
    .union(OpenFlags::SQLITE_OPEN_NOFOLLOW);

/// An open database of a thread.
pub struct Sqlite {
    conn: Connection,
    path: PathBuf,
    wal: PathBuf,
    /// Background checkpoint started after a large batch.
    checkpoint_thread: Option<JoinHandle<()>>,
    /// Whether to checkpoint a long WAL when this is dropped.
    checkpoints: bool,
    /// The WAL was missing or empty on opening.
    new_wal: bool,
    /// The directory entry of the WAL is synced, and stays as it is as long as this connection is open.
    has_synced_entry: bool,
}

impl Sqlite {
    /// Creates a database at `path`, where there must be an empty file or none, and leaves it closed and
    /// complete in that one file. No part of the path may be a link. `small`: for small events, pushed one by one.
    pub fn create(path: &Path, small: bool) -> Result<()> {
        let doing = "making the database";
        let conn =
            Connection::open_with_flags(path, OPEN_FLAGS | OpenFlags::SQLITE_OPEN_CREATE).doing(doing)?;
        migrate::create(&conn, small).doing(doing)?;
        migrate::use_wal(&conn, path)?;
        // Closing the only connection checkpoints and removes the WAL, so the file is complete.
        conn.close().map_err(|(_, e)| e).doing(doing)
    }

    /// Opens the database of a thread, bringing an older schema up to date.
    ///
    /// # Errors
    ///
    /// The database is newer than this program or not a thread's; it is left untouched.
    pub fn open(path: &Path) -> Result<Sqlite> {
        Sqlite::open_waiting(path, BUSY_LIMIT)
    }

    /// Like [`Sqlite::open`]; every operation, opening included, waits for other writers for at most
    /// `busy_limit`.
    pub fn open_waiting(path: &Path, busy_limit: Duration) -> Result<Sqlite> {
        let mut store = Sqlite::connect(path, busy_limit)?;
        let accepted = migrate::bring_up_to_date(&mut store.conn, path);
        let mut store = store.if_accepted(accepted)?;
        store.checkpoints = true;
        Ok(store)
    }

    /// If the database was refused, removes a WAL that only this connection created; an existing WAL stays.
    fn if_accepted(self, accepted: Result<()>) -> Result<Sqlite> {
        if accepted.is_err() && self.new_wal {
            self.keep_wal(false).doing("opening the database")?;
        }
        accepted.map(|()| self)
    }

    fn connect(path: &Path, busy_limit: Duration) -> Result<Sqlite> {
        let doing = "opening the database";
        // The directory may be reached through links; the database itself may not be a link.
        let resolved = path.parent().and_then(|dir| dir.canonicalize().ok());
        let path = match (resolved, path.file_name()) {
            (Some(dir), Some(name)) => dir.join(name),
            _ => path.to_owned(),
        };
        let length = path.as_os_str().len();
        if length > MAX_DB_PATH {
            let path = path.parent().unwrap_or(&path).to_owned();
            return Err(Error::PathTooLong { length: path.as_os_str().len(), path });
        }
        let wal = wal::path_of(&path);
        let new_wal = wal::length(&wal) == 0;
        system_calls::set_synced(&wal, !new_wal);
        let mut conn = Connection::open_with_flags(&path, OPEN_FLAGS).doing(doing)?;
        configure(&mut conn, busy_limit).map_err(|e| migrate::not_opened(e, &path))?;
        let store = Sqlite {
            conn,
            path,
            wal,
            checkpoint_thread: None,
            checkpoints: false,
            new_wal,
            has_synced_entry: false,
        };
        store.keep_wal(true).doing(doing)?;
        Ok(store)
    }

    /// Begins a write transaction.
    fn write(&mut self, doing: &'static str) -> Result<rusqlite::Transaction<'_>> {
        self.must_be_writable(doing)?;
        let transaction = self.conn.transaction_with_behavior(TransactionBehavior::Immediate).doing(doing)?;
        if !self.has_synced_entry {
            // Not as it was on opening: another program may have been the last to close the WAL it deleted since.
            if wal::length(&self.wal) == 0
                && let Some(dir) = self.wal.parent()
            {
                files::sync_dir(dir).at("sync the directory", dir)?;
            }
            self.has_synced_entry = true;
            system_calls::set_synced(&self.wal, true);
        }
        match closed::load(&transaction).doing(doing)? {
            Some(closed) => Err(closed.into()),
            None => Ok(transaction),
        }
    }

    /// Runs `work` in a write transaction, which is rolled back if it fails.
    fn transact<T>(
        &mut self,
        doing: &'static str,
        work: impl FnOnce(&Connection) -> Result<T, Failed>,
    ) -> Result<T> {
        let transaction = self.write(doing)?;
        let done = work(&transaction).doing(doing)?;
        transaction.commit().map_err(|e| commit(e, doing))?;
        Ok(done)
    }

    /// Fails on a read-only database. SQLite would report that itself, except for writes to the temporary
    /// tables that replace the missing parts of an older schema.
    fn must_be_writable(&self, doing: &'static str) -> Result<()> {
        match self.conn.is_readonly("main").doing(doing)? {
            true => Err(database(DatabaseErrorKind::ReadOnly, doing, "")),
            false => Ok(()),
        }
    }

    /// Commits the writes of `work` without a sync, for changes that a power cut may undo.
    fn without_sync<T>(&mut self, work: impl FnOnce(&mut Sqlite) -> Result<T>) -> Result<T> {
        let doing = "changing how commits are synced";
        self.conn.execute_batch("PRAGMA synchronous = NORMAL").doing(doing)?;
        let done = work(self);
        self.conn.execute_batch("PRAGMA synchronous = FULL").doing(doing)?;
        done
    }
}

impl Store for Sqlite {
    fn append(&mut self, feed: &mut dyn FnMut(&mut Put<'_>) -> Result<()>) -> Result<Appended> {
        events::append(self, feed)
    }

    fn read_capped(
        &mut self,
        after: i64,
        upto: i64,
        limit: usize,
        cap: u64,
        take: &mut dyn FnMut(CappedRow<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        events::read(&self.conn, (after, upto), limit, cap, take).doing("reading events")
    }

    fn read_content(&mut self, id: i64, offset: u64, most: usize) -> Result<Option<Vec<u8>>> {
        events::read_content(&self.conn, id, offset, most).doing("reading an event's content")
    }

    fn scan(&mut self, filter: &Filter, range: ScanRange) -> Result<Scan> {
        scan::scan(&self.conn, filter, range).doing("evaluating a filter")
    }

    fn scan_strictly(&mut self, filter: &Filter, range: ScanRange) -> Result<Scan> {
        scan::scan_strictly(&mut self.conn, filter, range).doing("evaluating a filter")
    }

    fn newest(&mut self) -> Result<i64> {
        newest(&self.conn).doing("looking for the newest event")
    }

    fn first_after(&mut self, id: i64) -> Result<Option<i64>> {
        first_after(&self.conn, id).doing("looking for the next event")
    }

    fn last_upto(&mut self, id: i64) -> Result<Option<i64>> {
        let sql = "SELECT id FROM events WHERE id <= ? ORDER BY id DESC LIMIT 1";
        one(&self.conn, sql, [id]).doing("looking for the last events")
    }

    fn first_since(&mut self, time: &str) -> Result<Option<i64>> {
        let sql = "SELECT min(id) FROM events WHERE created_at >= ?";
        self.conn.query_row(sql, [time], |row| row.get(0)).doing("looking for a time")
    }

    fn stored_at(&mut self, id: i64) -> Result<Option<String>> {
        let time = self.conn.prepare_cached("SELECT created_at FROM events WHERE id = ?");
        let time = time.and_then(|mut s| s.query_row([id], |row| row.get_ref(0).map(text_of)).optional());
        time.map(Option::flatten).doing("reading an event's time")
    }

    fn id_of_key(&mut self, key: &str) -> Result<Option<i64>> {
        let sql = "SELECT id FROM events WHERE idempotency_key = ?";
        one(&self.conn, sql, [key]).doing("looking for an idempotency key")
    }

    fn count(&mut self, after: i64, upto: i64) -> Result<u64> {
        // Without a condition SQLite reads the smallest index instead of the table.
        let sql = "SELECT count(*) FROM events";
        let count = match (after, upto) {
            (..=0, i64::MAX) => self.conn.query_row(sql, [], |row| row.get::<_, i64>(0)),
            _ => {
                let sql = format!("{sql} WHERE id > ? AND id <= ?");
                self.conn.query_row(&sql, [after, upto], |row| row.get(0))
            }
        };
        count.map(i64::unsigned_abs).doing("counting the events")
    }

    fn subscriptions(&mut self) -> Result<Vec<Subscription>> {
        consumers::all(&self.conn).doing("reading the subscriptions")
    }

    fn subscription(&mut self, consumer: &ConsumerId) -> Result<Option<Subscription>> {
        consumers::one(&self.conn, consumer).doing("reading the subscriptions")
    }

    fn subscribe(&mut self, new: &NewSubscription) -> Result<Option<Moved>> {
        self.transact("subscribing", |conn| consumers::subscribe(conn, new))
    }

    fn unsubscribe(&mut self, consumer: &ConsumerId) -> Result<Subscription> {
        self.transact("unsubscribing", |conn| consumers::unsubscribe(conn, consumer))
    }

    fn move_cursor(&mut self, consumer: &ConsumerId, id: i64, how: Move) -> Result<Moved> {
        let doing = "recording the cursor";
        // Check first, so that a poll that moves nothing does not wait for the write lock.
        match consumers::plan_move(&self.conn, consumer, id, how).doing(doing)? {
            (moved, None) if how == Move::Acknowledge => Ok(moved),
            _ => self.transact(doing, |conn| consumers::move_cursor(conn, consumer, id, how)),
        }
    }

    fn acknowledge(&mut self, consumer: &ConsumerId, id: i64, matching: Option<&[i64]>) -> Result<Moved> {
        let doing = "recording the cursor";
        // As above.
        match consumers::plan_move(&self.conn, consumer, id, Move::Acknowledge).doing(doing)? {
            (moved, None) => Ok(moved),
            _ => self.transact(doing, |conn| consumers::acknowledge(conn, consumer, id, matching)),
        }
    }

    fn update_run(&mut self, seen: &Subscription, update: &RunUpdate) -> Result<Option<Subscription>> {
        let record = |store: &mut Sqlite| {
            let doing = "recording the state of a consumer";
            store.transact(doing, |conn| consumers::update_run(conn, seen, update))
        };
        if update.durable { record(self) } else { self.without_sync(record) }
    }

    fn ledger(&mut self, consumer: &ConsumerId) -> Result<Ledger> {
        ledger::load(&self.conn, consumer).doing("reading what is finished")
    }

    fn runs(&mut self, consumer: &ConsumerId, most: usize) -> Result<Vec<Run>> {
        runs::list(&self.conn, consumer, most).doing("reading the runs")
    }

    fn run(&mut self, consumer: &ConsumerId, number: i64) -> Result<Option<Run>> {
        runs::one(&self.conn, consumer, number).doing("reading the runs")
    }

    fn remember_scan(&mut self, seen: &Subscription, upto: i64, failures: &[FilterFailure]) -> Result<usize> {
        let doing = "remembering how far a filter was evaluated";
        // It cannot be recorded then, and the filter is evaluated again next time.
        if self.conn.is_readonly("main").doing(doing)? || closed::load(&self.conn).doing(doing)?.is_some() {
            return Ok(failures.len());
        }
        self.without_sync(|store| {
            store.transact(doing, |conn| Ok(consumers::remember_scan(conn, seen, upto, failures)?))
        })
    }

    fn read_dead_letters(
        &mut self,
        consumer: Option<&ConsumerId>,
        take: &mut dyn FnMut(DeadLetter) -> ControlFlow<()>,
    ) -> Result<()> {
        dead_letters::read(&self.conn, consumer, take).doing("reading the dead letters")
    }

    fn retry_dead_letters(&mut self, consumer: &ConsumerId, events: Option<&[i64]>) -> Result<usize> {
        self.transact("changing the dead letters", |conn| Ok(dead_letters::retry(conn, consumer, events)?))
    }

    fn discard_dead_letters(&mut self, consumer: &ConsumerId, events: Option<&[i64]>) -> Result<usize> {
        self.transact("changing the dead letters", |conn| Ok(dead_letters::discard(conn, consumer, events)?))
    }

    fn has_steps(&mut self) -> Result<bool> {
        steps::has_table(&self.conn).doing("looking for steps")
    }

    fn read_steps(&mut self, of: StepsOf<'_>, take: &mut dyn FnMut(Step) -> ControlFlow<()>) -> Result<()> {
        steps::read(&self.conn, of, take).doing("reading the steps")
    }

    fn change_step(&mut self, change: &StepChange) -> Result<bool> {
        self.transact("storing a step", |conn| steps::change(conn, change))
    }

    fn forget_steps(&mut self, now: Time, before: Time, most: usize) -> Result<(u64, bool)> {
        self.without_sync(|store| {
            store.transact("deleting old steps", |conn| Ok(steps::forget(conn, now, before, most)?))
        })
    }

    fn has_figures(&mut self) -> Result<bool> {
        figures::has_table(&self.conn).doing("reading the figures")
    }

    fn figures(&mut self, from: i64) -> Result<Vec<Counted>> {
        figures::list(&self.conn, from).doing("reading the figures")
    }

    fn merge_figures(&mut self, now: Time, most: usize) -> Result<bool> {
        self.without_sync(|store| {
            store.transact("merging figures", |conn| Ok(figures::merge(conn, now, most)?))
        })
    }

    fn config(&mut self) -> Result<BTreeMap<String, String>> {
        config::load(&self.conn).doing("reading the settings")
    }

    fn set_config(&mut self, name: &str, value: Option<&str>) -> Result<bool> {
        self.transact("changing the settings", |conn| Ok(config::set(conn, name, value)?))
    }

    fn prune(&mut self, range: &PruneRange<'_>) -> Result<PruneStep> {
        prune::step(self, range)
    }

    fn scheduled(&mut self, after: Option<(Time, ScheduledId)>, most: usize) -> Result<Vec<ScheduledEvent>> {
        scheduled::list(&self.conn, after, most).doing("reading what is scheduled")
    }

    fn count_scheduled(&mut self) -> Result<u64> {
        scheduled::count(&self.conn).doing("counting what is scheduled")
    }

    fn cancel_scheduled(&mut self, id: ScheduledId) -> Result<bool> {
        self.transact("cancelling a scheduled event", |conn| Ok(scheduled::cancel(conn, id)?))
    }

    fn next_scheduled(&mut self) -> Result<Option<NextDue>> {
        scheduled::next(&self.conn).doing("reading what is scheduled")
    }

    fn make_scheduled(&mut self, which: Which, most: usize) -> Result<Appended> {
        due::make(self, which, most)
    }

    fn schedules(&mut self) -> Result<Vec<Schedule>> {
        scheduled::schedules(&self.conn).doing("reading the schedules")
    }

    fn change_schedule(
        &mut self,
        name: &str,
        seen: Option<&Schedule>,
        to: Option<&Schedule>,
        events: &[NewEvent<'_>],
    ) -> Result<Option<Appended>> {
        due::change(self, name, seen, to, events)
    }

    fn changes(&mut self) -> Result<i64> {
        self.conn
            .prepare_cached("PRAGMA data_version")
            .and_then(|mut s| s.query_row([], |row| row.get(0)))
            .doing("asking for changes")
    }

    fn closed(&mut self) -> Result<Option<Closed>> {
        closed::load(&self.conn).doing("opening the thread")
    }

    fn read_rows(
        &mut self,
        table: &'static Table,
        after: Option<&[Value]>,
        most: usize,
    ) -> Result<Vec<Values>> {
        rows::read(&self.conn, table, after, most).doing("reading rows")
    }

    fn in_snapshot(&mut self, work: &mut dyn FnMut(&mut dyn Store) -> Result<()>) -> Result<()> {
        let doing = "reading rows";
        self.conn.execute_batch("BEGIN").doing(doing)?;
        let worked = work(self);
        self.conn.execute_batch("COMMIT").doing(doing)?;
        worked
    }

    fn rewrite(&mut self, work: &mut dyn FnMut(&mut dyn Rewrite) -> Result<()>) -> Result<()> {
        rows::rewrite(self, work)
    }

    fn tidy(&mut self) -> Result<()> {
        if self.wal_is_long() { self.checkpoint() } else { Ok(()) }
    }

    fn compact(&mut self) -> Result<()> {
        let doing = "compacting the database";
        self.must_be_writable(doing)?;
        self.conn.execute_batch("VACUUM").doing(doing)?;
        // The file shrinks only at the checkpoint.
        self.checkpoint()
    }

    fn copy_to(&mut self, path: &Path) -> Result<()> {
        // It reads in one transaction, blocks no writer, and never restarts because of a concurrent write. The path is
        // bound as raw text, because it need not be UTF-8.
        let path = ToSqlOutput::Borrowed(ValueRef::Text(path.as_os_str().as_bytes()));
        self.conn.execute("VACUUM main INTO ?", [path]).map(drop).doing("copying the database")
    }
}

/// The newest id ever assigned, even if its event was deleted; 0 if none was.
fn newest(conn: &Connection) -> rusqlite::Result<i64> {
    conn.prepare_cached(
        "SELECT max(coalesce((SELECT CAST(seq AS INTEGER) FROM sqlite_sequence WHERE name = 'events'), 0), \
                    coalesce((SELECT max(id) FROM events), 0))",
    )?
    .query_row([], |row| row.get(0))
}

fn first_after(conn: &Connection, id: i64) -> rusqlite::Result<Option<i64>> {
    one(conn, "SELECT id FROM events WHERE id > ? ORDER BY id LIMIT 1", [id])
}

/// The integer in the statement's first row; `None` if there is no row.
fn one(conn: &Connection, sql: &str, with: [impl ToSql; 1]) -> rusqlite::Result<Option<i64>> {
    conn.prepare_cached(sql)?.query_row(with, |row| row.get(0)).optional()
}

/// The bytes of a text or BLOB. Other programs may have stored either.
fn bytes_of(value: ValueRef<'_>) -> Option<&[u8]> {
    value.as_bytes().ok()
}

fn text_of(value: ValueRef<'_>) -> Option<String> {
    bytes_of(value).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

fn configure(conn: &mut Connection, busy_limit: Duration) -> rusqlite::Result<()> {
    wait_for_others(conn, busy_limit)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DML, false)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DDL, false)?;
    conn.execute_batch("PRAGMA synchronous = FULL; PRAGMA cell_size_check = ON")
}

/// Waits for other writers in short, even steps. SQLite's own backoff grows to 100 ms, so the process that
/// has waited longest would be the last to notice that the lock is free.
fn wait_for_others(conn: &mut Connection, limit: Duration) -> rusqlite::Result<()> {
    let mut began = Instant::now();
    conn.busy_handler(Some(move |times| {
        if times == 0 {
            began = Instant::now();
        }
        std::thread::sleep(if times < 200 { SHORT_WAIT } else { 10 * SHORT_WAIT });
        began.elapsed() < limit
    }))
}

/// The error for a consumer that is not subscribed.
fn unknown(consumer: &ConsumerId) -> Error {
    Error::UnknownConsumer(consumer.clone())
}
