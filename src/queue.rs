//! The API of a thread: open, push, read, wait, subscribe, acknowledge.
//!
//! Nothing here prints, reads the environment, handles signals or starts a process. Waking consumers is
//! separate: see [`run::wake`](fn@crate::run::wake).

pub mod backwards;
pub mod dead;
pub mod delivery;
mod expired;
pub mod figures;
mod init;
pub mod locations;
pub(crate) mod pending;
mod push;
pub(crate) mod retention;
pub mod scheduled;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::Stat;

use crate::error::{Error, Result};
use crate::files::log::{Level, log};
use crate::files::rotation;
use crate::files::watch::{LOOK_EVERY, Watcher};
use crate::files::{COMMIT, Files, HANDLER_LOGS};
use crate::model::closed::Closed;
use crate::model::event::{CappedRow, Event, Row};
use crate::model::filter::Filter;
use crate::model::location::Location;
use crate::model::position::Position;
use crate::model::run::{Run, Span};
use crate::model::subscription::{ConsumerId, NewSubscription, Subscription};
use crate::model::time::{self, Time};
use crate::pending::checked_filter;
use crate::sqlite::{BUSY_LIMIT, Sqlite};
use crate::store::{FilterFailure, Move, Moved, ScanRange, Store};

pub use self::init::NewThread;
pub use self::push::{Pushed, PushedEvent};

/// Maximum number of events per page when reading.
const PAGE_EVENTS: usize = 1000;

/// On so many events at most is a filter evaluated to count what is acknowledged.
const MOST_COUNTED: i64 = 1000;

/// An open thread. It can be sent between threads of the program; threads that work concurrently open one
/// each.
pub struct Queue {
    pub(crate) files: Files,
    pub(crate) store: Box<dyn Store>,
    /// How long operations wait for other writers.
    busy_limit: Duration,
    /// Events of the page that was read last on which the filter failed.
    failures: Vec<FilterFailure>,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Queue").field(self.location()).finish()
    }
}

/// A starting point for reading: the first event after this id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct After(pub i64);

/// What to read, and the position reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// Events up to this id have been read.
    pub after: i64,
    /// How many more events to read; `None` for no limit.
    pub limit: Option<u64>,
    pub filter: Option<Filter>,
}

impl From<After> for Selection {
    fn from(After(after): After) -> Selection {
        Selection { after, limit: None, filter: None }
    }
}

/// Whether more events may follow a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remaining {
    /// There may be more events.
    Some,
    None,
}

impl Queue {
    /// Creates a thread in the directory `path`, and its parents; existing files stay. Returns its absolute
    /// path. A location with a scheme is left to that scheme.
    ///
    /// # Errors
    ///
    /// [`Error::AlreadyAThread`], [`Error::Leftovers`], [`Error::UnknownScheme`]; those of the file system.
    pub fn init(path: impl AsRef<Path>) -> Result<PathBuf> {
        Queue::init_as(path, NewThread::default())
    }

    /// Like [`Queue::init`], for a thread of another kind.
    pub fn init_as(path: impl AsRef<Path>, new: NewThread) -> Result<PathBuf> {
        Ok(locations::create(&path.into(), new)?.as_os_str().into())
    }

    /// Opens a thread, by the path of its directory or by its location.
    ///
    /// # Errors
    ///
    /// [`Error::NotAThread`], [`Error::ForeignDatabase`], [`Error::NewerSchema`], [`Error::UnknownScheme`];
    /// those of the database.
    pub fn open(location: impl Into<Location>) -> Result<Queue> {
        Queue::open_waiting(location, BUSY_LIMIT)
    }

    /// Like [`Queue::open`], but operations, opening included, wait for other writers for at most `busy_limit`,
    /// instead of a minute. A push then fails with [`Error::is_locked`] and has stored nothing; the limit also
    /// applies to the lock of the JSONL log, which a stored event then no longer waits for. Reads never wait.
    pub fn open_waiting(location: impl Into<Location>, busy_limit: Duration) -> Result<Queue> {
        let (files, store) = locations::open(&location.into(), busy_limit)?;
        Ok(Queue { files, store, busy_limit, failures: Vec::new() })
    }

    /// A thread whose database is open already.
    pub(crate) fn of(files: Files, store: Sqlite) -> Queue {
        Queue { files, store: Box::new(store), busy_limit: BUSY_LIMIT, failures: Vec::new() }
    }

    /// The thread's location.
    pub fn location(&self) -> &Location {
        self.files.location()
    }

    /// The thread's directory, absolute; for a thread in another location, its folder on this machine.
    pub fn path(&self) -> &Path {
        self.files.path()
    }

    /// The thread's directory, for `what` only a directory has.
    ///
    /// # Errors
    ///
    /// [`Error::OnlyInDirectory`].
    pub fn directory(&self, what: &'static str) -> Result<&Path> {
        self.location().dir().ok_or(Error::OnlyInDirectory(what))
    }

    pub fn files(&self) -> &Files {
        &self.files
    }

    /// Why nothing can be written to the thread, if that is so.
    pub fn closed(&mut self) -> Result<Option<Closed>> {
        self.store.closed()
    }

    /// The underlying store, for tests of the parts below this one.
    #[doc(hidden)]
    pub fn store(&mut self) -> &mut dyn Store {
        &mut *self.store
    }

    /// Writes a line to the thread's log.
    pub fn log(&self, level: Level, text: impl std::fmt::Display) {
        self.files.log(level, text);
    }

    /// The event with that id, if it is stored.
    pub fn event(&mut self, id: i64) -> Result<Option<Event>> {
        let mut found = None;
        self.store.read(id.saturating_sub(1), id, 1, &mut |row| {
            found = Some(row.to_event());
            ControlFlow::Break(())
        })?;
        Ok(found)
    }

    /// The event that was stored under that idempotency key.
    pub fn id_of_key(&mut self, key: &str) -> Result<Option<i64>> {
        self.store.id_of_key(key)
    }

    /// The `created_at` of an event; `None` if there is no such event.
    pub fn stored_at(&mut self, id: i64) -> Result<Option<String>> {
        self.store.stored_at(id)
    }

    /// The newest event up to that id, if one is stored.
    pub fn last_upto(&mut self, id: i64) -> Result<Option<i64>> {
        self.store.last_upto(id)
    }

    /// Whether that event is stored and matches a filter.
    pub fn matches(&mut self, id: i64, filter: &Filter) -> Result<bool> {
        let range = ScanRange { after: id.saturating_sub(1), upto: id, most: 1, until: None };
        Ok(!self.store.scan(filter, range)?.ids.is_empty())
    }

    /// Reads at most `most` bytes of an event's content, from the byte `offset` on, without loading the rest.
    /// Empty past its end; `None` if there is no such event.
    pub fn read_content(&mut self, id: i64, offset: u64, most: usize) -> Result<Option<Vec<u8>>> {
        self.store.read_content(id, offset, most)
    }

    /// Reads all events after an id, oldest first, into memory.
    pub fn read(&mut self, after: After, filter: Option<&Filter>) -> Result<Vec<Event>> {
        let mut selection = Selection { filter: filter.cloned(), ..after.into() };
        let mut events = Vec::new();
        while self.read_page(&mut selection, &mut |row| {
            events.push(row.to_event());
            ControlFlow::Continue(())
        })? == Remaining::Some
        {}
        Ok(events)
    }

    /// Passes the next events to `take`, until it breaks or a page is full, and advances `selection`. No read
    /// transaction stays open between pages, so a slow reader blocks nothing.
    pub fn read_page(
        &mut self,
        selection: &mut Selection,
        take: &mut dyn FnMut(Row<'_>) -> ControlFlow<()>,
    ) -> Result<Remaining> {
        self.read_page_capped(selection, u64::MAX, &mut |capped| take(capped.row))
    }

    /// Like [`Queue::read_page`], but leaves out every text longer than `cap` bytes, without loading it. The
    /// content can then be read in pieces: see [`Queue::read_content`].
    pub fn read_page_capped(
        &mut self,
        selection: &mut Selection,
        cap: u64,
        take: &mut dyn FnMut(CappedRow<'_>) -> ControlFlow<()>,
    ) -> Result<Remaining> {
        self.read_page_until(selection, cap, None, take)
    }

    /// Like [`Queue::read_page_capped`]. The filter may come from an untrusted client: its evaluation is cut off at
    /// `until`, if necessary in the middle of an event (though not within a single LIKE, GLOB or `instr`, which may
    /// take two seconds). The events found by then are a page like any other.
    ///
    /// # Errors
    ///
    /// [`Error::SlowFilter`] if not a single event was evaluated by then.
    pub fn read_page_until(
        &mut self,
        selection: &mut Selection,
        cap: u64,
        until: Option<Instant>,
        take: &mut dyn FnMut(CappedRow<'_>) -> ControlFlow<()>,
    ) -> Result<Remaining> {
        let Selection { after, limit, filter } = selection;
        let most = limit.map_or(PAGE_EVENTS, |limit| PAGE_EVENTS.min(limit as usize));
        if most == 0 {
            return Ok(Remaining::None);
        }
        let mut flow = ControlFlow::Continue(());
        let more = if let Some(filter) = filter {
            let newest = self.store.newest()?;
            let range = ScanRange { after: *after, upto: newest, most, until };
            let scan = match until {
                Some(_) => self.store.scan_strictly(filter, range)?,
                None => self.store.scan(filter, range)?,
            };
            if until.is_some() && scan.upto <= *after && *after < newest {
                return Err(Error::SlowFilter { after: *after });
            }
            self.failures = scan.failures;
            for id in scan.ids {
                self.store.read_capped(id - 1, id, 1, cap, &mut |row| {
                    *limit = limit.map(|limit| limit - 1);
                    flow = take(row);
                    flow
                })?;
                *after = id;
                if flow.is_break() {
                    break;
                }
            }
            if flow.is_continue() {
                *after = scan.upto.max(*after);
            }
            scan.upto < newest
        } else {
            let mut read = 0;
            self.store.read_capped(*after, i64::MAX, most, cap, &mut |capped| {
                *after = capped.row.id;
                *limit = limit.map(|limit| limit - 1);
                read += 1;
                flow = take(capped);
                flow
            })?;
            read == most
        };
        let more = (more || flow.is_break()) && *limit != Some(0);
        Ok(if more { Remaining::Some } else { Remaining::None })
    }

    /// The id before the first event stored at `time` or later; the newest id if there is no such event.
    pub fn last_before(&mut self, time: Time) -> Result<i64> {
        match self.store.first_since(&time::format(time))? {
            Some(first) => Ok(first - 1),
            None => self.store.newest(),
        }
    }

    /// Returns a watcher of commits, for event loops: see [`Watcher`].
    pub fn watcher(&self) -> Watcher {
        locations::listen(self.location());
        Watcher::new(&self.files, COMMIT)
    }

    /// The newest id ever assigned: the starting point for reading only new events.
    pub fn newest(&mut self) -> Result<After> {
        self.store.newest().map(After)
    }

    /// Waits until there is an event after `id`, for at most `timeout`. Returns whether there is one. Each
    /// call creates a new watcher; to wait repeatedly, use [`Queue::watcher`].
    ///
    /// # Errors
    ///
    /// [`Error::Moved`]; those of the database.
    pub fn wait(&mut self, After(id): After, timeout: Duration) -> Result<bool> {
        let watcher = self.watcher();
        let end = Instant::now() + timeout;
        loop {
            if self.store.first_after(id)?.is_some() {
                return Ok(true);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            self.files.must_be_there()?;
            watcher.wait(left.min(LOOK_EVERY), None);
        }
    }

    /// Registers a consumer. Returns where its cursor was moved to, if that was requested.
    ///
    /// # Errors
    ///
    /// [`Error::AlreadySubscribed`].
    pub fn subscribe(&mut self, new: &NewSubscription) -> Result<Option<Moved>> {
        self.store.subscribe(new)
    }

    /// Removes a subscription and returns it; its cursor, dead letters, past runs and last log stay, but not its
    /// rotated logs and its hold.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownConsumer`].
    pub fn unsubscribe(&mut self, consumer: &ConsumerId) -> Result<Subscription> {
        // First, so that nothing is held for one that is gone.
        if self.store.subscription(consumer)?.is_some() {
            self.set_hold(consumer.as_str(), None)?;
        }
        let removed = self.store.unsubscribe(consumer)?;
        let stem = self.files.rotated_handler_logs(consumer);
        if let Err(e) = rotation::remove_logs(&self.files, HANDLER_LOGS, &stem, 0) {
            log!(self, Warn, "unsubscribe: consumer={consumer} its rotated logs were not removed: {e}");
        }
        Ok(removed)
    }

    /// All subscriptions, by name.
    pub fn subscriptions(&mut self) -> Result<Vec<Subscription>> {
        self.store.subscriptions()
    }

    /// The subscription of a consumer, if there is one.
    pub fn find_subscription(&mut self, consumer: &ConsumerId) -> Result<Option<Subscription>> {
        self.store.subscription(consumer)
    }

    /// The newest `most` runs of a consumer that have ended, the oldest first; at most
    /// [`RUNS_KEPT`](crate::model::run::RUNS_KEPT) are kept. [`Run::output`] is a part of
    /// [`Files::handler_log`], and `None` if it is not there any more.
    pub fn runs(&mut self, consumer: &ConsumerId, most: usize) -> Result<Vec<Run>> {
        let mut runs = self.store.runs(consumer, most)?;
        let log = self.files.stat(self.files.handler_log(consumer)).ok();
        for run in &mut runs {
            run.output = run.output.filter(|span| log.as_ref().is_some_and(|log| is_in(log, span)));
        }
        Ok(runs)
    }

    /// One of the [`runs`](Queue::runs), if it is still kept. With what the store has of its output.
    pub fn run(&mut self, consumer: &ConsumerId, number: i64) -> Result<Option<Run>> {
        let mut run = self.store.run(consumer, number)?;
        let log = self.files.stat(self.files.handler_log(consumer)).ok();
        if let Some(run) = &mut run {
            run.output = run.output.filter(|span| log.as_ref().is_some_and(|log| is_in(log, span)));
        }
        Ok(run)
    }

    /// The subscription of a consumer.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownConsumer`].
    pub fn subscription(&mut self, consumer: &ConsumerId) -> Result<Subscription> {
        self.store.subscription(consumer)?.ok_or_else(|| Error::UnknownConsumer(consumer.clone()))
    }

    /// Acknowledges events up to `id`: moves the cursor forward, never backwards.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownConsumer`].
    pub fn acknowledge(&mut self, consumer: &ConsumerId, id: i64) -> Result<Moved> {
        let matching = match self.subscription(consumer)? {
            seen if seen.filter_text().is_some() => Some(self.matching_upto(&seen, id)?),
            _ => None,
        };
        self.store.acknowledge(consumer, id, matching.as_deref())
    }

    /// The events past the cursor and up to `id` that match, of the last [`MOST_COUNTED`] ids.
    pub(crate) fn matching_upto(&mut self, seen: &Subscription, id: i64) -> Result<Vec<i64>> {
        let upto = id.min(self.store.newest()?);
        let after = seen.scanned_upto(seen.last_acked_id).max(upto.saturating_sub(MOST_COUNTED));
        // A broken filter matches nothing.
        let Ok(Some(filter)) = checked_filter(seen) else { return Ok(Vec::new()) };
        if after >= upto {
            return Ok(Vec::new());
        }
        Ok(self.store.scan(&filter, ScanRange { after, upto, most: usize::MAX, until: None })?.ids)
    }

    /// Moves a cursor, backwards too. [`wake_consumer`](crate::run::wake::wake_consumer) has to follow. Also returns the
    /// id that was asked for.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownConsumer`].
    pub fn seek(&mut self, consumer: &ConsumerId, to: Position) -> Result<(Moved, i64)> {
        let id = self.id_at(to)?;
        let moved = self.store.move_cursor(consumer, id, Move::Seek)?;
        log!(self, Info, "seek: consumer={consumer} last_acked_id={}", moved.position());
        Ok((moved, id))
    }

    /// The id after which a position is.
    pub(crate) fn id_at(&mut self, position: Position) -> Result<i64> {
        match position {
            Position::Latest => self.store.newest(),
            Position::Event(id) => Ok(id),
            Position::Time(time) => self.last_before(time),
        }
    }
}

/// Whether a log still has a part that was once written to it.
fn is_in(log: &Stat, span: &Span) -> bool {
    let size = u64::try_from(log.st_size).unwrap_or(0);
    log.st_ino == span.file && span.offset.saturating_add(span.length) <= size
}
