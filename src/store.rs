//! The interface of a store: a thread's events, subscriptions and cursors.
//!
//! [`sqlite`](crate::sqlite) implements it; `tests/store` has an in-memory store, and runs the conformance
//! tests on both. Every store must guarantee:
//!
//! * Ids are assigned in commit order; a reader that sees id n sees every smaller one. An id is never reused.
//! * Events that [`Store::append`] acknowledged are never lost, and events that it refused are not stored.
//! * [`Store::update_run`] is atomic and applies only to the state its caller read.
//!
//! All methods may wait for other writers, for up to a minute. Their errors, unless they say
//! otherwise, are those of the database.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::files;
use crate::model::closed::Closed;
use crate::model::event::{CappedRow, NewEvent, Row};
use crate::model::figures::{Counted, Figures};
use crate::model::filter::Filter;
use crate::model::ledger::{Ledger, LedgerChange};
use crate::model::location::Location;
use crate::model::rows::{Table, Value, Values};
use crate::model::run::{Exit, ProcessId, Run, RunState, StopRequest};
use crate::model::schedule::Schedule;
use crate::model::scheduled::{NextDue, ScheduledEvent, ScheduledId, Which};
use crate::model::step::Step;
use crate::model::subscription::{ConsumerId, DeadLetter, NewSubscription, Subscription};
use crate::model::time::{Moment, Time};

/// Result of an append transaction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Appended {
    pub count: u64,
    /// First and last id; both `None` if nothing was stored.
    pub first_id: Option<i64>,
    pub last_id: Option<i64>,
    /// The `created_at` of all events of the transaction, but those that bring their own.
    pub created_at: String,
    /// How many were stored to become events later, which are not counted above.
    pub scheduled: u64,
}

/// As in the thread's log.
impl fmt::Display for Appended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "count={} last_id={}", self.count, self.last_id.unwrap_or_default())
    }
}

/// Result of storing one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored {
    New(i64),
    /// It was stored before, under the same idempotency key.
    Repeated {
        id: i64,
        created_at: String,
    },
    /// It becomes an event at this time.
    Scheduled {
        id: ScheduledId,
        due: Time,
        /// It was stored before, under the same idempotency key.
        repeated: bool,
    },
}

/// Stores events inside a transaction. Returns the result for each.
///
/// # Errors
///
/// [`KeyConflict`](crate::Error::KeyConflict), [`ScheduledKeyConflict`](crate::Error::ScheduledKeyConflict): a different
/// event under the same key.
pub type Put<'p> = dyn FnMut(&[NewEvent<'_>]) -> Result<Vec<Stored>> + 'p;

/// The right to run a consumer's handlers, where several machines share a thread. Dropping it gives it back. What its
/// holder writes about the consumer is refused once another machine has taken it. Of a pool, each machine has one of its
/// own; it is not given back as long as the machine is among the consumer's [`Crews`](crate::model::run::Crews).
pub trait Lease: Send {
    /// Rises each time that a lease of the consumer is taken.
    fn epoch(&self) -> i64;

    /// If other machines may run the consumer at the same time: this one.
    fn machine(&self) -> Option<&str>;

    /// For how long it is taken, or renewed.
    fn length(&self) -> Duration;

    /// For how long from now no other machine can have it.
    fn left(&self) -> Duration;

    /// Whether [`COMMIT`](crate::files::COMMIT) is touched within about a second if there are new events, also without a
    /// notice. Otherwise the holder has to look for them.
    fn tells_of_events(&self) -> bool;

    /// The request to end the run of the subscription with this token, as far as it is known already. Never waits,
    /// because a handler may have to be ended soon; [`CONTROL`](crate::files::CONTROL) is touched when there is
    /// something new.
    fn stop_request(&self, token: &str) -> Option<StopRequest>;
}

/// Result of asking for a lease.
pub enum Leased {
    /// The locks of this machine are enough.
    NotNeeded,
    Taken(Box<dyn Lease>),
    /// Another machine has it.
    Elsewhere,
}

/// A worker that follows a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedWorker {
    pub process: ProcessId,
    /// The name of its machine.
    pub host: String,
    pub since: Time,
    /// When it was last seen, and how long ago that is; `None` if that is not known.
    pub seen: Option<(Time, Duration)>,
}

/// What other machines may wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// Events were stored.
    Stored,
    /// Something is asked of a consumer's supervisor.
    Asked,
}

/// In which of many threads something may be due.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changed {
    pub threads: Vec<Location>,
    /// These are all threads that there are, because it is not known what has happened in them since the last call.
    pub is_everything: bool,
}

/// Asks a server in which of its threads something has happened, of all of them at once.
pub trait Changes: Send {
    /// Threads of which something was committed since the last call that can make a handler due, or in which the right of
    /// another machine to run handlers is over; and perhaps others. No commit is missed, whatever the order in which
    /// transactions begin and end. The first call, and one after a failure, returns everything.
    fn ask(&mut self) -> Result<Changed>;
}

/// What asks for changes, and the locations of the threads that it covers, or of servers all of whose threads it covers.
pub type ChangesOf = (Vec<Location>, Box<dyn Changes>);

/// Which way a cursor may be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// Forward only.
    Acknowledge,
    /// Backwards too.
    Seek,
}

/// The position of a cursor after a request to move it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// At the requested id.
    To(i64),
    /// At the newest id ever assigned, because the request was past it.
    Clamped(i64),
    /// Unchanged at this id, which is past the requested one.
    Ahead(i64),
}

impl Moved {
    pub fn position(self) -> i64 {
        match self {
            Moved::To(id) | Moved::Clamped(id) | Moved::Ahead(id) => id,
        }
    }
}

/// How many of these events a cursor has passed that was moved on from `before`; without any, of all ids.
pub fn count_passed(before: i64, moved: Moved, matching: Option<&[i64]>) -> u64 {
    let passed = before + 1..=moved.position();
    match matching {
        Some(ids) => ids.iter().filter(|id| passed.contains(id)).count() as u64,
        None if passed.is_empty() => 0,
        None => moved.position().abs_diff(before),
    }
}

/// The events on which to evaluate a filter.
#[derive(Debug, Clone, Copy)]
pub struct ScanRange {
    /// Events after this id,
    pub after: i64,
    /// up to this one.
    pub upto: i64,
    /// Stop after this many matches.
    pub most: usize,
    /// Deadline, checked between two events.
    pub until: Option<Instant>,
}

/// Result of a scan.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Scan {
    /// The matching ids, oldest first.
    pub ids: Vec<i64>,
    /// The filter was evaluated on everything up to this id.
    pub upto: i64,
    /// Events on which the filter failed; they do not match.
    pub failures: Vec<FilterFailure>,
}

/// An event on which a filter failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterFailure {
    pub id: i64,
    pub message: String,
}

/// What to record about a consumer's runs, in one transaction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunUpdate {
    pub state: RunState,
    /// Moves the cursor forward to this event.
    pub acknowledge: Option<i64>,
    /// Of a consumer that finishes events singly. They may move the cursor forward, too.
    pub ledger: Vec<LedgerChange>,
    pub dead_letters: Vec<DeadLetterUpdate>,
    /// Cancels all pending retries of dead letters.
    pub cancel_retries: bool,
    /// A step that changes at the same time. If that is refused, nothing is recorded.
    pub step: Option<StepChange>,
    /// The runs that have ended. The oldest past [`RUNS_KEPT`](crate::model::run::RUNS_KEPT) are forgotten.
    pub runs: Vec<Run>,
    /// What is counted, and for which time.
    pub figures: Option<(Time, Figures)>,
    /// Whether it must survive a power cut.
    pub durable: bool,
}

impl RunUpdate {
    /// Changes the state only; a power cut may undo it.
    pub fn state(state: RunState) -> RunUpdate {
        RunUpdate { state, ..RunUpdate::default() }
    }
}

/// A change of a step, which is refused if somebody else has changed it since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepChange {
    pub consumer: ConsumerId,
    pub event_id: i64,
    pub name: String,
    /// The revision that was seen; `None` if there was no such step.
    pub seen: Option<i64>,
    /// What it is to be; `None` removes it.
    pub to: Option<Step>,
    /// The claim by which the caller has the event, if it was taken by one: the change fails if somebody else has it.
    pub claim: Option<String>,
}

impl StepChange {
    /// From what was seen to this one.
    pub fn to(seen: Option<&Step>, to: Step) -> StepChange {
        let Step { consumer, event_id, name, .. } = to.clone();
        StepChange {
            consumer,
            event_id,
            name,
            seen: seen.map(|seen| seen.revision),
            to: Some(to),
            claim: None,
        }
    }

    /// Removes it.
    pub fn remove(seen: &Step) -> StepChange {
        StepChange { to: None, ..StepChange::to(Some(seen), seen.clone()) }
    }
}

/// Which steps to read.
#[derive(Debug, Clone, Copy, Default)]
pub struct StepsOf<'a> {
    pub consumer: Option<&'a ConsumerId>,
    pub event: Option<i64>,
    pub name: Option<&'a str>,
    /// Only those that wait for an event.
    pub only_awaits: bool,
    /// Also what they print. Otherwise it is empty.
    pub with_results: bool,
}

/// A change of one dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeadLetterUpdate {
    /// The event becomes a dead letter, unless it is no longer stored.
    Insert { event_id: i64, attempts: u32, exit: Exit, error: String, at: Time },
    /// A retry failed.
    FailedAgain { event_id: i64, exit: Exit, error: String, at: Time },
    /// A retry succeeded.
    Remove { event_id: i64 },
    /// The finished event becomes a dead letter that is to be retried, unless it is no longer stored. One that is there
    /// already is to be retried.
    Redo { event_id: i64, at: Time },
}

/// The error of a dead letter that is none yet: it is only given again.
pub const GIVEN_AGAIN: &str = "given again by `thread redo`";

/// The events to delete in one prune step.
#[derive(Debug, Clone, Copy)]
pub struct PruneRange<'a> {
    pub after: i64,
    pub upto: i64,
    /// Only events of this subtype.
    pub subtype: Option<&'a str>,
    /// Also delete events that are dead letters, together with the dead letters.
    pub dead_letters: bool,
    /// The subscriptions for which nothing in the range is pending. If one was added since, or a cursor was
    /// moved back, nothing is deleted. `None` deletes unconditionally.
    pub seen: Option<&'a [Subscription]>,
    /// Only count.
    pub dry_run: bool,
    /// For about how long a step may exclude other writers, at most. A single event is deleted in one step, however
    /// large it is.
    pub time: Duration,
}

/// Result of a prune step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PruneStep {
    /// Everything in the range up to this id was processed.
    Upto(i64, Pruned),
    /// A consumer may have more pending than when `seen` was read. Nothing was deleted.
    Overtaken,
}

/// What was deleted or, in a dry run, would be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pruned {
    pub events: u64,
    /// The bytes of their content and metadata.
    pub bytes: u64,
    /// Dead letters in the range: kept, or, if they are deleted too, included in `events`.
    pub dead_letters: u64,
}

impl std::ops::AddAssign for Pruned {
    fn add_assign(&mut self, more: Pruned) {
        self.events += more.events;
        self.bytes += more.bytes;
        self.dead_letters += more.dead_letters;
    }
}

/// Writes rows as they are, in a transaction that excludes all other changes of the thread, and that a closed thread
/// allows too.
pub trait Rewrite {
    fn closed(&mut self) -> Result<Option<Closed>>;

    /// Closes the thread, or opens it again.
    fn set_closed(&mut self, closed: Option<&Closed>) -> Result<()>;

    fn put(&mut self, table: &'static Table, rows: &[Values]) -> Result<()>;

    /// Deletes all rows of a table.
    fn clear(&mut self, table: &'static Table) -> Result<()>;
}

/// Says why a row cannot be stored; completes "event 3 …".
pub type Refusal = fn(&'static Table, &[Value]) -> Option<String>;

pub trait Store: Send {
    /// Stores what `feed` puts, in one transaction: all or nothing. When this returns, the events
    /// survive a power cut.
    ///
    /// # Errors
    ///
    /// Those of `feed`; [`OutcomeUnknown`](crate::error::DatabaseErrorKind::OutcomeUnknown) if the last step
    /// of the commit failed.
    fn append(&mut self, feed: &mut dyn FnMut(&mut Put<'_>) -> Result<()>) -> Result<Appended>;

    /// Passes the events with ids in `(after, upto]` to `take`, oldest first, until it breaks or `limit` is
    /// reached.
    fn read(
        &mut self,
        after: i64,
        upto: i64,
        limit: usize,
        take: &mut dyn FnMut(Row<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.read_capped(after, upto, limit, u64::MAX, &mut |capped| take(capped.row))
    }

    /// Like [`Store::read`], but leaves out every text longer than `cap` bytes, without loading it.
    fn read_capped(
        &mut self,
        after: i64,
        upto: i64,
        limit: usize,
        cap: u64,
        take: &mut dyn FnMut(CappedRow<'_>) -> ControlFlow<()>,
    ) -> Result<()>;

    /// Reads at most `most` bytes of an event's content, from the byte `offset` on, without loading the rest.
    /// Empty past its end; `None` if there is no such event.
    fn read_content(&mut self, id: i64, offset: u64, most: usize) -> Result<Option<Vec<u8>>>;

    /// Evaluates a filter on events, oldest first. Each is evaluated by itself, so a failure on one does not
    /// hide another.
    fn scan(&mut self, filter: &Filter, range: ScanRange) -> Result<Scan>;

    /// Like [`Store::scan`], but the deadline also cuts off an event that is being evaluated. That event is not
    /// covered by the scan then, so it may cover none.
    fn scan_strictly(&mut self, filter: &Filter, range: ScanRange) -> Result<Scan> {
        self.scan(filter, range)
    }

    /// The newest id ever assigned, even if its event was deleted; 0 if none was.
    fn newest(&mut self) -> Result<i64>;

    /// The oldest event after that id.
    fn first_after(&mut self, id: i64) -> Result<Option<i64>>;

    /// The newest event up to that id.
    fn last_upto(&mut self, id: i64) -> Result<Option<i64>>;

    /// The oldest event stored at that time (as [`model::time`](crate::model::time) writes it) or
    /// later.
    fn first_since(&mut self, time: &str) -> Result<Option<i64>>;

    /// The `created_at` of an event as stored; `None` if there is no such event.
    fn stored_at(&mut self, id: i64) -> Result<Option<String>>;

    /// The event stored under that idempotency key.
    fn id_of_key(&mut self, key: &str) -> Result<Option<i64>>;

    /// How many events have ids in `(after, upto]`.
    fn count(&mut self, after: i64, upto: i64) -> Result<u64>;

    /// All subscriptions, by name.
    fn subscriptions(&mut self) -> Result<Vec<Subscription>>;

    fn subscription(&mut self, consumer: &ConsumerId) -> Result<Option<Subscription>>;

    /// Registers a consumer. Returns where its cursor was moved to, if that was requested.
    ///
    /// # Errors
    ///
    /// [`AlreadySubscribed`](crate::Error::AlreadySubscribed).
    fn subscribe(&mut self, new: &NewSubscription) -> Result<Option<Moved>>;

    /// Removes a subscription and returns it; its cursor and dead letters stay.
    ///
    /// # Errors
    ///
    /// [`UnknownConsumer`](crate::Error::UnknownConsumer).
    fn unsubscribe(&mut self, consumer: &ConsumerId) -> Result<Subscription>;

    /// Moves a cursor, never past the newest id ever assigned.
    ///
    /// # Errors
    ///
    /// [`UnknownConsumer`](crate::Error::UnknownConsumer).
    fn move_cursor(&mut self, consumer: &ConsumerId, id: i64, how: Move) -> Result<Moved>;

    /// Acknowledges as [`Store::move_cursor`] does, and counts as handled what the cursor passes: those of `matching`, or
    /// if that is `None`, every id.
    ///
    /// # Errors
    ///
    /// [`UnknownConsumer`](crate::Error::UnknownConsumer).
    fn acknowledge(&mut self, consumer: &ConsumerId, id: i64, matching: Option<&[i64]>) -> Result<Moved>;

    /// Records a change of a consumer's runs if its state, cursor and pending retries of dead letters have
    /// not changed since `seen` was read. Returns the updated subscription; `None`, with nothing recorded, if
    /// anything had changed.
    fn update_run(&mut self, seen: &Subscription, update: &RunUpdate) -> Result<Option<Subscription>>;

    /// What a consumer that finishes events singly has done past its cursor. It outlives its subscription, except for
    /// the waits; [`Move::Seek`] clears it.
    fn ledger(&mut self, consumer: &ConsumerId) -> Result<Ledger>;

    /// The newest `most` runs of a consumer, the oldest first; they outlive its subscription. Without what was kept of
    /// their output.
    fn runs(&mut self, consumer: &ConsumerId, most: usize) -> Result<Vec<Run>>;

    /// The run of a consumer with this number, if it is still kept. With the end of its output, if several machines
    /// share the thread: in a directory, all of it is in the log.
    fn run(&mut self, consumer: &ConsumerId, number: i64) -> Result<Option<Run>>;

    /// Records that nothing between the cursor of `seen` and `upto` matches its filter, if it has one, and the events on
    /// which the filter or the key failed, oldest first. A power cut may undo it. Returns how many of the failures,
    /// counted from the end, had not been recorded before.
    fn remember_scan(&mut self, seen: &Subscription, upto: i64, failures: &[FilterFailure]) -> Result<usize>;

    /// Passes the dead letters of one consumer, or of all consumers, to `take`, until it breaks; ordered by
    /// consumer and event.
    fn read_dead_letters(
        &mut self,
        consumer: Option<&ConsumerId>,
        take: &mut dyn FnMut(DeadLetter) -> ControlFlow<()>,
    ) -> Result<()>;

    /// The dead letters of one consumer, or of all consumers, ordered by consumer and event.
    fn dead_letters(&mut self, consumer: Option<&ConsumerId>) -> Result<Vec<DeadLetter>> {
        let mut all = Vec::new();
        self.read_dead_letters(consumer, &mut |letter| {
            all.push(letter);
            ControlFlow::Continue(())
        })?;
        Ok(all)
    }

    /// Marks the dead letters of these events, or all of a consumer, for a retry, in one step. Returns how many.
    fn retry_dead_letters(&mut self, consumer: &ConsumerId, events: Option<&[i64]>) -> Result<usize>;

    /// Removes the dead letters of these events, or all of a consumer, in one step; the events stay. Returns how
    /// many.
    fn discard_dead_letters(&mut self, consumer: &ConsumerId, events: Option<&[i64]>) -> Result<usize>;

    /// Makes room for steps, where the first one does so in a transaction of its own.
    fn prepare_steps(&mut self) -> Result<()> {
        Ok(())
    }

    /// Whether any step was ever stored; if not, that is known without a question.
    fn has_steps(&mut self) -> Result<bool>;

    /// Passes steps to `take`, until it breaks; ordered by consumer, event and when they were begun.
    fn read_steps(&mut self, of: StepsOf<'_>, take: &mut dyn FnMut(Step) -> ControlFlow<()>) -> Result<()>;

    /// These steps.
    fn steps(&mut self, of: StepsOf<'_>) -> Result<Vec<Step>> {
        let mut all = Vec::new();
        self.read_steps(of, &mut |step| {
            all.push(step);
            ControlFlow::Continue(())
        })?;
        Ok(all)
    }

    /// Adds, changes or removes a step, if it is as it was seen. Returns whether it was. As durable as
    /// [`Store::append`].
    ///
    /// # Errors
    ///
    /// [`ClaimOver`](crate::Error::ClaimOver), [`Fenced`](crate::Error::Fenced).
    fn change_step(&mut self, change: &StepChange) -> Result<bool>;

    /// Notes for at most `most` steps since when their events have been finished, and deletes as many of those for which
    /// that is longer ago than `before`. An event is finished if its consumer is done with it or not subscribed any more;
    /// that of a dead letter is not. Returns how many were deleted, and whether there may be more to do.
    fn forget_steps(&mut self, now: Time, before: Time, most: usize) -> Result<(u64, bool)>;

    /// Whether anything was ever counted.
    fn has_figures(&mut self) -> Result<bool>;

    /// What is counted of the periods that begin at `from` (in seconds since 1970) or later, of the thread and of all
    /// consumers, even if they are not subscribed any more. An hour may be there together with some of its minutes.
    fn figures(&mut self, from: i64) -> Result<Vec<Counted>>;

    /// Merges at most `most` minutes to hours, and forgets as many hours that are too old: see
    /// [`figures`](crate::model::figures). A power cut may undo it. Returns whether there may be more to do.
    fn merge_figures(&mut self, now: Time, most: usize) -> Result<bool>;

    /// The settings of the thread, by name.
    fn config(&mut self) -> Result<BTreeMap<String, String>>;

    /// Sets one of them or, without a value, removes it. Returns whether it was set before.
    fn set_config(&mut self, name: &str, value: Option<&str>) -> Result<bool>;

    /// Deletes the oldest events of a range, as many as fit into one short transaction, which also counts when they came.
    fn prune(&mut self, range: &PruneRange<'_>) -> Result<PruneStep>;

    /// The time by which claims end: on a clock that nobody sets, or that of the server that all machines share.
    fn clock(&mut self) -> Result<Moment> {
        Ok(files::since_boot())
    }

    /// The scheduled events after this one, in the order in which they are due; `None`: from the first on.
    fn scheduled(&mut self, after: Option<(Time, ScheduledId)>, most: usize) -> Result<Vec<ScheduledEvent>>;

    fn count_scheduled(&mut self) -> Result<u64>;

    /// Forgets a scheduled event, and frees its key. Returns whether it was there.
    fn cancel_scheduled(&mut self, id: ScheduledId) -> Result<bool>;

    /// Which scheduled event is due first. `None`, without a question, if nothing was ever scheduled, schedules included.
    fn next_scheduled(&mut self) -> Result<Option<NextDue>>;

    /// Makes at most `most` scheduled events events, in one transaction. As durable as [`Store::append`].
    fn make_scheduled(&mut self, which: Which, most: usize) -> Result<Appended>;

    /// All schedules, by name.
    fn schedules(&mut self) -> Result<Vec<Schedule>>;

    /// Adds, changes or removes the schedule of this name, and stores events, in one transaction: if it is as it was
    /// `seen`. `None`, with nothing stored, if it is not. As durable as [`Store::append`].
    fn change_schedule(
        &mut self,
        name: &str,
        seen: Option<&Schedule>,
        to: Option<&Schedule>,
        events: &[NewEvent<'_>],
    ) -> Result<Option<Appended>>;

    /// A number that changes whenever another connection commits.
    fn changes(&mut self) -> Result<i64>;

    /// Takes the lease of a consumer's runs for this machine, whose lock of the consumer the caller holds. It is
    /// renewed until it is dropped.
    fn take_lease(&mut self, _consumer: &ConsumerId, _length: Duration) -> Result<Leased> {
        Ok(Leased::NotNeeded)
    }

    /// Ends the lease that another machine has of a pool, if it is [over](Subscription::elsewhere): what that machine
    /// writes about the consumer is refused from then on. Returns whether it is over.
    fn end_lease(&mut self, _consumer: &ConsumerId, _machine: &str) -> Result<bool> {
        Ok(true)
    }

    /// Keeps others from changing a consumer until the next write of this process, or [`Store::release`]: so that what is
    /// decided on the row that is read next will not be refused. Where this is not needed, it does nothing.
    fn hold(&mut self, _consumer: &ConsumerId) -> Result<()> {
        Ok(())
    }

    /// Lets others change the consumer again.
    fn release(&mut self) {}

    /// Fails if nothing can be written here for now, as on a standby.
    fn check_writable(&mut self) -> Result<()> {
        Ok(())
    }

    /// Records, where several machines share the thread, that this process is a worker that follows it, or with `of_all`
    /// all threads of its server. Called at each look; it is written at most once a minute, and what fails is an error
    /// only at first.
    fn record_worker(&mut self, _of_all: bool) -> Result<()> {
        Ok(())
    }

    /// The workers that have recorded that they follow the thread, those that began first at the beginning. Some may be
    /// gone; after a day, the others forget them.
    fn workers(&mut self) -> Result<Vec<RecordedWorker>> {
        Ok(Vec::new())
    }

    /// Notifies waiters on other machines. A hint that may be lost: they also look once a second.
    fn announce(&mut self, _what: Notice) {}

    /// Why nothing can be written, if that is so: all other methods that write then fail, with
    /// [`MovedTo`](crate::Error::MovedTo) or [`ImportUnfinished`](crate::Error::ImportUnfinished).
    fn closed(&mut self) -> Result<Option<Closed>> {
        Ok(None)
    }

    /// The rows of a table after the one with this key, in the order of their keys, without what is not moved: at most
    /// `most`, fewer if they are long, and none only at the end.
    ///
    /// # Errors
    ///
    /// [`Error::Other`]: threads of this kind cannot be moved.
    fn read_rows(
        &mut self,
        _table: &'static Table,
        _after: Option<&[Value]>,
        _most: usize,
    ) -> Result<Vec<Values>> {
        Err(cannot_be_moved())
    }

    /// Calls `work` with this store, which then reads what was stored at one moment.
    fn in_snapshot(&mut self, _work: &mut dyn FnMut(&mut dyn Store) -> Result<()>) -> Result<()> {
        Err(cannot_be_moved())
    }

    /// Changes rows as they are, in one transaction, as durable as [`Store::append`].
    fn rewrite(&mut self, _work: &mut dyn FnMut(&mut dyn Rewrite) -> Result<()>) -> Result<()> {
        Err(cannot_be_moved())
    }

    /// Which rows of other stores it cannot store; `None`: it can store all.
    fn refusal(&self) -> Option<Refusal> {
        None
    }

    /// Called between the steps of a long operation.
    fn tidy(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns the space of deleted events.
    ///
    /// # Errors
    ///
    /// [`OnlyInDirectory`](crate::Error::OnlyInDirectory).
    fn compact(&mut self) -> Result<()> {
        Err(Error::OnlyInDirectory("--compact"))
    }

    /// Copies a snapshot of the database into the empty file at `path`, without a sync.
    ///
    /// # Errors
    ///
    /// [`OnlyInDirectory`](crate::Error::OnlyInDirectory).
    fn copy_to(&mut self, _path: &Path) -> Result<()> {
        Err(Error::OnlyInDirectory("backup"))
    }
}

fn cannot_be_moved() -> Error {
    Error::Other("threads of this kind cannot be moved".to_owned())
}
