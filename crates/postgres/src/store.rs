//! The store of a thread in PostgreSQL.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use thread::error::DatabaseErrorKind as Kind;
use thread::model::closed::Closed;
use thread::model::event::{CappedRow, NewEvent};
use thread::model::figures::Counted;
use thread::model::filter::Filter;
use thread::model::ledger::Ledger;
use thread::model::location::Location;
use thread::model::rows::{Table, Value, Values};
use thread::model::run::Run;
use thread::model::schedule::Schedule;
use thread::model::scheduled::{NextDue, ScheduledEvent, ScheduledId, Which};
use thread::model::step::Step;
use thread::model::subscription::{ConsumerId, DeadLetter, NewSubscription, Subscription};
use thread::model::time::{Moment, Time};
use thread::store::{
    Appended, FilterFailure, Leased, Move, Moved, Notice, PruneRange, PruneStep, Put, RecordedWorker,
    Refusal, Rewrite, RunUpdate, Scan, ScanRange, StepChange, StepsOf, Store,
};
use thread::{Error, Result};

use crate::connection::{Connection, PATIENT};
use crate::link::{Link, Locks, int, text};
use crate::location::Target;
use crate::{
    append, config, consumers, dead_letters, due, error, figures, known, lease, ledger, listen, migrate,
    prune, read, rows, scheduled, steps, workers,
};

/// Opens a thread.
pub fn open(location: &Location, busy_limit: Duration) -> Result<Box<dyn Store>> {
    let target = Target::of(location)?;
    let mut connection = Connection::take(&target.settings)?;
    let open = |connection: &mut Connection| {
        migrate::open(&mut connection.client, location, &target.schema, &target.thread)
    };
    let thread = match open(&mut connection) {
        // It was idle, and has been lost.
        Err(Error::Database(e)) if e.kind == Kind::Unreachable => {
            drop(connection);
            connection = Connection::open_in(&target.settings, PATIENT)?;
            open(&mut connection)?
        }
        opened => opened?,
    };
    let prefix = migrate::prefix(&target.schema);
    let mut link = Link::new(target, Some(connection), prefix, thread, busy_limit);
    link.give_back();
    Ok(Box::new(link))
}

/// Makes a thread, and the schema if it is missing.
pub fn create(location: &Location) -> Result<()> {
    let target = Target::of(location)?;
    let mut connection = Connection::take(&target.settings)?;
    migrate::create(&mut connection.client, location, &target.schema, &target.thread)?;
    connection.keep(&target.settings);
    Ok(())
}

/// All threads of the schema in `location`; `None` if that names one of them.
pub fn threads(location: &Location) -> Option<Result<Vec<Location>>> {
    // An invalid location is reported when it is used.
    let target = Target::of_any(location).ok().filter(|target| target.thread.is_empty())?;
    let list = || -> Result<Vec<Location>> {
        let mut connection = Connection::take(&target.settings)?;
        let names = migrate::threads(&mut connection.client, &target.schema)?;
        connection.keep(&target.settings);
        Ok(names.iter().map(|name| target.sibling(name)).collect())
    };
    Some(list())
}

impl Store for Link {
    fn append(&mut self, feed: &mut dyn FnMut(&mut Put<'_>) -> Result<()>) -> Result<Appended> {
        append::append(self, feed)
    }

    fn read_capped(
        &mut self,
        after: i64,
        upto: i64,
        limit: usize,
        cap: u64,
        take: &mut dyn FnMut(CappedRow<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut page = read::Page { after, upto, limit };
        while let Some(rows) = self.reading("reading events", |session| page.next(session, cap))? {
            for row in &rows {
                if take(read::event_of(row)).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn read_content(&mut self, id: i64, offset: u64, most: usize) -> Result<Option<Vec<u8>>> {
        self.reading("reading an event's content", |session| read::content(session, id, offset, most))
    }

    fn scan(&mut self, filter: &Filter, range: ScanRange) -> Result<Scan> {
        let mut scanner = read::Scanner::new(filter, range);
        while !scanner.is_done {
            let rows = self.reading("evaluating a filter", |session| scanner.page(session))?;
            scanner.take(&rows);
        }
        Ok(scanner.scan)
    }

    fn newest(&mut self) -> Result<i64> {
        self.reading("looking for the newest event", |session| session.newest())
    }

    fn first_after(&mut self, id: i64) -> Result<Option<i64>> {
        let sql = "SELECT id FROM @events WHERE thread = $1 AND id > $2 ORDER BY id LIMIT 1";
        self.reading("looking for the next event", |s| s.number(sql, &[int(&id)]))
    }

    fn last_upto(&mut self, id: i64) -> Result<Option<i64>> {
        let sql = "SELECT id FROM @events WHERE thread = $1 AND id <= $2 ORDER BY id DESC LIMIT 1";
        self.reading("looking for the last events", |s| s.number(sql, &[int(&id)]))
    }

    fn first_since(&mut self, time: &str) -> Result<Option<i64>> {
        let sql = "SELECT id FROM @events WHERE thread = $1 AND created_at >= $2 ORDER BY id LIMIT 1";
        self.reading("looking for a time", |s| s.number(sql, &[text(&time)]))
    }

    fn stored_at(&mut self, id: i64) -> Result<Option<String>> {
        let sql = "SELECT created_at FROM @events WHERE thread = $1 AND id = $2";
        let row = self.reading("reading an event's time", |s| s.row(sql, &[int(&id)]))?;
        Ok(row.map(|row| row.get(0)))
    }

    fn id_of_key(&mut self, key: &str) -> Result<Option<i64>> {
        if key.contains('\0') {
            return Ok(None);
        }
        let sql = "SELECT id FROM @events WHERE thread = $1 AND idempotency_key = $2";
        self.reading("looking for an idempotency key", |s| s.number(sql, &[text(&key)]))
    }

    fn count(&mut self, after: i64, upto: i64) -> Result<u64> {
        let sql = "SELECT count(*) FROM @events WHERE thread = $1 AND id > $2 AND id <= $3";
        let count = self.reading("counting the events", |s| s.number(sql, &[int(&after), int(&upto)]))?;
        Ok(count.unwrap_or(0).unsigned_abs())
    }

    fn subscriptions(&mut self) -> Result<Vec<Subscription>> {
        self.reading("reading the subscriptions", |session| consumers::list(session, None))
    }

    fn subscription(&mut self, consumer: &ConsumerId) -> Result<Option<Subscription>> {
        self.reading("reading the subscriptions", |session| consumers::one(session, consumer))
    }

    fn subscribe(&mut self, new: &NewSubscription) -> Result<Option<Moved>> {
        if new.options.finishes_singly() {
            let schema = self.target.schema.clone();
            migrate::raise_version(&mut self.connection()?.client, &schema, known::WITH_LEDGERS)?;
        }
        let locks = Locks::Consumer(&new.consumer);
        self.transact("subscribing", locks, true, |session| consumers::subscribe(session, new))
    }

    fn unsubscribe(&mut self, consumer: &ConsumerId) -> Result<Subscription> {
        let locks = Locks::Consumer(consumer);
        self.transact("unsubscribing", locks, true, |session| consumers::unsubscribe(session, consumer))
    }

    fn move_cursor(&mut self, consumer: &ConsumerId, id: i64, how: Move) -> Result<Moved> {
        let doing = "recording the cursor";
        // Check first, so that a poll that moves nothing waits for no lock.
        match self.reading(doing, |session| consumers::plan_move(session, consumer, id, how))? {
            (moved, None) if how == Move::Acknowledge => Ok(moved),
            _ => self.transact(doing, Locks::Consumer(consumer), true, |session| {
                consumers::move_cursor(session, consumer, id, how)
            }),
        }
    }

    fn acknowledge(&mut self, consumer: &ConsumerId, id: i64, matching: Option<&[i64]>) -> Result<Moved> {
        let doing = "recording the cursor";
        // As above.
        match self.reading(doing, |session| consumers::plan_move(session, consumer, id, Move::Acknowledge))? {
            (moved, None) => Ok(moved),
            _ => {
                figures::prepare(self);
                self.transact(doing, Locks::Consumer(consumer), true, |session| {
                    consumers::acknowledge(session, consumer, id, matching)
                })
            }
        }
    }

    fn update_run(&mut self, seen: &Subscription, update: &RunUpdate) -> Result<Option<Subscription>> {
        if update.step.is_some() {
            steps::prepare(self)?;
        }
        if update.figures.as_ref().is_some_and(|(_, counted)| !counted.is_empty()) {
            figures::prepare(self);
        }
        let locks = Locks::Consumer(&seen.consumer);
        self.transact("recording the state of a consumer", locks, update.durable, |session| {
            consumers::update_run(session, seen, update)
        })
    }

    fn ledger(&mut self, consumer: &ConsumerId) -> Result<Ledger> {
        self.reading("reading what is finished", |session| ledger::load(session, consumer))
    }

    fn runs(&mut self, consumer: &ConsumerId, most: usize) -> Result<Vec<Run>> {
        self.reading("reading the runs", |session| consumers::runs(session, consumer, most))
    }

    fn run(&mut self, consumer: &ConsumerId, number: i64) -> Result<Option<Run>> {
        self.reading("reading the runs", |session| consumers::run(session, consumer, number))
    }

    fn remember_scan(&mut self, seen: &Subscription, upto: i64, failures: &[FilterFailure]) -> Result<usize> {
        let doing = "remembering how far a filter was evaluated";
        let remembered = self.transact(doing, Locks::Consumer(&seen.consumer), false, |session| {
            consumers::remember_scan(session, seen, upto, failures)
        });
        match remembered {
            // A role that may only read evaluates the filter again next time.
            Err(Error::Database(e)) if matches!(e.kind, Kind::ReadOnly | Kind::Permission) => {
                Ok(failures.len())
            }
            Err(Error::MovedTo(_) | Error::ImportUnfinished) => Ok(failures.len()),
            remembered => remembered,
        }
    }

    fn read_dead_letters(
        &mut self,
        consumer: Option<&ConsumerId>,
        take: &mut dyn FnMut(DeadLetter) -> ControlFlow<()>,
    ) -> Result<()> {
        let all =
            self.reading("reading the dead letters", |session| dead_letters::list(session, consumer))?;
        // Where it breaks makes no difference.
        let _ = all.into_iter().try_for_each(take);
        Ok(())
    }

    fn retry_dead_letters(&mut self, consumer: &ConsumerId, events: Option<&[i64]>) -> Result<usize> {
        self.transact("changing the dead letters", Locks::Consumer(consumer), true, |session| {
            dead_letters::retry(session, consumer, events)
        })
    }

    fn discard_dead_letters(&mut self, consumer: &ConsumerId, events: Option<&[i64]>) -> Result<usize> {
        self.transact("changing the dead letters", Locks::Consumer(consumer), true, |session| {
            dead_letters::discard(session, consumer, events)
        })
    }

    fn prepare_steps(&mut self) -> Result<()> {
        steps::prepare(self)
    }

    fn has_steps(&mut self) -> Result<bool> {
        Ok(self.known.steps)
    }

    fn read_steps(&mut self, of: StepsOf<'_>, take: &mut dyn FnMut(Step) -> ControlFlow<()>) -> Result<()> {
        self.look_again()?;
        if !self.known.steps {
            return Ok(());
        }
        let all = self.reading("reading the steps", |session| steps::list(session, of))?;
        // Where it breaks makes no difference.
        let _ = all.into_iter().try_for_each(take);
        Ok(())
    }

    fn change_step(&mut self, change: &StepChange) -> Result<bool> {
        steps::prepare(self)?;
        let locks = Locks::Consumer(&change.consumer);
        self.transact("storing a step", locks, true, |session| steps::change(session, change))
    }

    fn forget_steps(&mut self, now: Time, before: Time, most: usize) -> Result<(u64, bool)> {
        if !self.known.steps {
            return Ok((0, false));
        }
        let doing = "deleting old steps";
        self.transact(doing, Locks::None, false, |session| steps::forget(session, now, before, most))
    }

    fn has_figures(&mut self) -> Result<bool> {
        Ok(self.known.figures)
    }

    fn figures(&mut self, from: i64) -> Result<Vec<Counted>> {
        self.reading("reading the figures", |session| figures::list(session, from))
    }

    fn merge_figures(&mut self, now: Time, most: usize) -> Result<bool> {
        if !self.known.figures {
            return Ok(false);
        }
        let doing = "merging figures";
        self.transact(doing, Locks::Consumers, false, |session| figures::merge(session, now, most))
    }

    fn config(&mut self) -> Result<BTreeMap<String, String>> {
        self.reading("reading the settings", config::load)
    }

    fn set_config(&mut self, name: &str, value: Option<&str>) -> Result<bool> {
        self.transact("changing the settings", Locks::Consumers, true, |session| {
            config::set(session, name, value)
        })
    }

    fn prune(&mut self, range: &PruneRange<'_>) -> Result<PruneStep> {
        let doing = "pruning";
        match range.dry_run {
            true => self.reading(doing, |session| prune::count(session, range)),
            false => {
                figures::prepare(self);
                self.transact(doing, Locks::Consumers, true, |session| prune::step(session, range))
            }
        }
    }

    fn take_lease(&mut self, consumer: &ConsumerId, length: Duration) -> Result<Leased> {
        lease::take(self, consumer, length, |session| {
            Ok(consumers::one(session, consumer)?.is_some_and(|now| now.is_shared_pool()))
        })
    }

    fn end_lease(&mut self, consumer: &ConsumerId, machine: &str) -> Result<bool> {
        lease::end(self, consumer, machine)
    }

    fn hold(&mut self, consumer: &ConsumerId) -> Result<()> {
        Link::hold(self, consumer)
    }

    fn release(&mut self) {
        Link::release(self);
    }

    fn record_worker(&mut self, of_all: bool) -> Result<()> {
        workers::record(self, of_all)
    }

    fn workers(&mut self) -> Result<Vec<RecordedWorker>> {
        self.reading("listing the workers", workers::list)
    }

    fn check_writable(&mut self) -> Result<()> {
        let doing = "starting handlers";
        let sql = "SELECT 1::bigint WHERE current_setting('transaction_read_only') = 'on'";
        match self.reading(doing, |s| s.number(sql, &[]))? {
            Some(_) => Err(error::database(Kind::ReadOnly, doing, String::new(), error::READ_ONLY)),
            None => Ok(()),
        }
    }

    fn announce(&mut self, what: Notice) {
        let sql = listen::announcement(&self.target, what);
        self.try_out(&sql);
    }

    fn clock(&mut self) -> Result<Moment> {
        let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::int8";
        let at = self.reading("asking for the time", |s| s.number(sql, &[]))?.unwrap_or(0);
        Ok(Moment { clock: String::new(), at })
    }

    fn scheduled(&mut self, after: Option<(Time, ScheduledId)>, most: usize) -> Result<Vec<ScheduledEvent>> {
        self.look_again()?;
        match self.known.schedules {
            true => {
                self.reading("reading what is scheduled", |session| scheduled::list(session, after, most))
            }
            false => Ok(Vec::new()),
        }
    }

    fn count_scheduled(&mut self) -> Result<u64> {
        self.look_again()?;
        if !self.known.schedules {
            return Ok(0);
        }
        let sql = "SELECT count(*) FROM @scheduled WHERE thread = $1";
        let count = self.reading("counting what is scheduled", |s| s.number(sql, &[]))?;
        Ok(count.unwrap_or(0).unsigned_abs())
    }

    fn cancel_scheduled(&mut self, id: ScheduledId) -> Result<bool> {
        self.look_again()?;
        if !self.known.schedules {
            return Ok(false);
        }
        let sql = "DELETE FROM @scheduled WHERE thread = $1 AND id = $2 RETURNING id";
        let doing = "cancelling a scheduled event";
        let cancelled = self.transact(doing, Locks::Consumers, true, |s| s.number(sql, &[int(&id.0)]))?;
        Ok(cancelled.is_some())
    }

    fn next_scheduled(&mut self) -> Result<Option<NextDue>> {
        match self.known.schedules {
            true => self.reading("reading what is scheduled", scheduled::next),
            false => Ok(None),
        }
    }

    fn make_scheduled(&mut self, which: Which, most: usize) -> Result<Appended> {
        match self.known.schedules {
            true => due::make(self, which, most),
            false => Ok(Appended::default()),
        }
    }

    fn schedules(&mut self) -> Result<Vec<Schedule>> {
        self.look_again()?;
        match self.known.schedules {
            true => self.reading("reading the schedules", scheduled::list_schedules),
            false => Ok(Vec::new()),
        }
    }

    fn change_schedule(
        &mut self,
        name: &str,
        seen: Option<&Schedule>,
        to: Option<&Schedule>,
        events: &[NewEvent<'_>],
    ) -> Result<Option<Appended>> {
        due::change_schedule(self, name, seen, to, events)
    }

    fn closed(&mut self) -> Result<Option<Closed>> {
        self.reading("opening the thread", |session| session.closed())
    }

    fn read_rows(
        &mut self,
        table: &'static Table,
        after: Option<&[Value]>,
        most: usize,
    ) -> Result<Vec<Values>> {
        self.reading("reading rows", |session| rows::read(session, table, after, most))
    }

    fn in_snapshot(&mut self, work: &mut dyn FnMut(&mut dyn Store) -> Result<()>) -> Result<()> {
        Link::in_snapshot(self, |link| work(link))
    }

    fn rewrite(&mut self, work: &mut dyn FnMut(&mut dyn Rewrite) -> Result<()>) -> Result<()> {
        rows::rewrite(self, work)
    }

    fn refusal(&self) -> Option<Refusal> {
        Some(rows::refusal)
    }

    fn changes(&mut self) -> Result<i64> {
        // It changes with every commit on the server.
        let sql = "SELECT hashtextextended(pg_current_snapshot()::text, 0)";
        Ok(self.reading("asking for changes", |s| s.number(sql, &[]))?.unwrap_or(0))
    }
}
