//! What keeps a thread's events, subscriptions and cursors.
//!
//! [`sqlite`](crate::sqlite) implements this; `tests/store` has one in memory, and tries every claim on both.
//! What any store must not get wrong:
//!
//! * Ids are given in the order of commits; a reader that sees id n sees every smaller one. An id is
//!   never given twice.
//! * What [`Store::append`] acknowledged is never lost, and what it refused is not there.
//! * [`Store::update_run`] applies only to what its caller saw, all of it or nothing.
//!
//! All methods may wait for other writers, for up to a minute. Their errors, unless they say
//! otherwise, are those of the database.

use std::ops::ControlFlow;
use std::time::Instant;

use crate::error::Result;
use crate::model::event::{NewEvent, Row};
use crate::model::filter::Filter;
use crate::model::run::{Exit, RunState};
use crate::model::subscription::{ConsumerId, DeadLetter, NewSubscription, Subscription};
use crate::model::time::Time;

/// What a transaction of pushes stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Appended {
    pub count: u64,
    /// Both are `None` when nothing was stored.
    pub first_id: Option<i64>,
    pub last_id: Option<i64>,
    /// The one time that all events of the transaction bear.
    pub created_at: String,
}

/// What became of an event that was to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored {
    New(i64),
    /// It had been stored before, under the same idempotency key.
    Repeated {
        id: i64,
        created_at: String,
    },
}

/// Stores events inside a transaction. Returns what became of each.
///
/// # Errors
///
/// [`KeyConflict`](crate::Error::KeyConflict): a different event under the same key.
pub type Put<'p> = dyn FnMut(&[NewEvent<'_>]) -> Result<Vec<Stored>> + 'p;

/// Which way a cursor may be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// Forward only.
    Acknowledge,
    /// Backwards too.
    Seek,
}

/// Where a cursor stands after a request to move it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// At the requested id.
    To(i64),
    /// The request was past the newest id ever given; it is at this one instead.
    Clamped(i64),
    /// It was at this id already, further on, and was left there.
    Ahead(i64),
}

impl Moved {
    pub fn position(self) -> i64 {
        match self {
            Moved::To(id) | Moved::Clamped(id) | Moved::Ahead(id) => id,
        }
    }
}

/// The events a filter is to be asked about.
#[derive(Debug, Clone, Copy)]
pub struct ScanRange {
    /// Events after this id,
    pub after: i64,
    /// up to this one.
    pub upto: i64,
    /// Stop after so many matches.
    pub most: usize,
    /// Stop at this moment, between two events.
    pub until: Option<Instant>,
}

/// What a scan found.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Scan {
    /// The matching ids, oldest first.
    pub ids: Vec<i64>,
    /// Everything up to this id was asked about.
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunUpdate {
    pub state: RunState,
    /// Moves the cursor forward to this event.
    pub acknowledge: Option<i64>,
    pub dead_letter: Option<DeadLetterUpdate>,
    /// Takes back every request to deliver a dead letter again.
    pub cancel_retries: bool,
    /// Whether it must survive a power cut.
    pub durable: bool,
}

impl RunUpdate {
    /// A new state that a power cut may undo, and nothing else.
    pub fn state(state: RunState) -> RunUpdate {
        RunUpdate { state, acknowledge: None, dead_letter: None, cancel_retries: false, durable: false }
    }
}

/// A change of one dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeadLetterUpdate {
    /// The event becomes one (unless it is no longer stored).
    Insert { event_id: i64, attempts: u32, exit: Exit, error: String, at: Time },
    /// It was delivered again, and failed again.
    FailedAgain { event_id: i64, exit: Exit, error: String, at: Time },
    /// It was delivered again, and accepted.
    Remove { event_id: i64 },
}

/// Which events to delete, in one short step.
#[derive(Debug, Clone, Copy)]
pub struct PruneRange<'a> {
    pub after: i64,
    pub upto: i64,
    /// Only events of this subtype.
    pub subtype: Option<&'a str>,
    /// Also events that are dead letters, and the dead letters with them.
    pub dead_letters: bool,
    /// The subscriptions for which nothing in the range is pending. If there is another one now, or
    /// one whose cursor was moved back, nothing is deleted. `None` deletes in any case.
    pub seen: Option<&'a [Subscription]>,
    /// Only count.
    pub dry_run: bool,
}

/// What a prune step did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PruneStep {
    /// Everything up to this id is done.
    Upto(i64, Pruned),
    /// A consumer wants more than it did when it was looked at. Nothing was deleted.
    Overtaken,
}

/// What was deleted, or would be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pruned {
    pub events: u64,
    /// The bytes of their content and metadata.
    pub bytes: u64,
    /// Dead letters: left out, or, where they go too, among the events.
    pub dead_letters: u64,
}

impl std::ops::AddAssign for Pruned {
    fn add_assign(&mut self, more: Pruned) {
        self.events += more.events;
        self.bytes += more.bytes;
        self.dead_letters += more.dead_letters;
    }
}

pub trait Store {
    /// Stores what `feed` puts, in one transaction: all or nothing. When this returns, the events
    /// survive a power cut.
    ///
    /// # Errors
    ///
    /// Those of `feed`; [`OutcomeUnknown`](crate::error::DatabaseErrorKind::OutcomeUnknown) when the
    /// last step of the commit failed.
    fn append(&mut self, feed: &mut dyn FnMut(&mut Put<'_>) -> Result<()>) -> Result<Appended>;

    /// Hands the events with ids in `(after, upto]` to `take`, oldest first, until it breaks or
    /// there have been `limit`.
    fn read(
        &mut self,
        after: i64,
        upto: i64,
        limit: usize,
        take: &mut dyn FnMut(Row<'_>) -> ControlFlow<()>,
    ) -> Result<()>;

    /// Asks a filter about events, one by one and oldest first, so that none can hold up another.
    fn scan(&mut self, filter: &Filter, range: ScanRange) -> Result<Scan>;

    /// The newest id ever given, also when its event is gone; 0 when none was.
    fn newest(&mut self) -> Result<i64>;

    /// The oldest event after that id.
    fn first_after(&mut self, id: i64) -> Result<Option<i64>>;

    /// The newest event up to that id.
    fn last_upto(&mut self, id: i64) -> Result<Option<i64>>;

    /// The oldest event stored at that time (as [`model::time`](crate::model::time) writes it) or
    /// later.
    fn first_since(&mut self, time: &str) -> Result<Option<i64>>;

    /// The `created_at` of an event, as it is stored; `None` when there is no such event.
    fn stored_at(&mut self, id: i64) -> Result<Option<String>>;

    /// The event stored under that idempotency key.
    fn id_of_key(&mut self, key: &str) -> Result<Option<i64>>;

    /// How many events there are after that id.
    fn count_after(&mut self, id: i64) -> Result<u64>;

    /// All subscriptions, by name.
    fn subscriptions(&mut self) -> Result<Vec<Subscription>>;

    fn subscription(&mut self, consumer: &ConsumerId) -> Result<Option<Subscription>>;

    /// Registers a consumer. Returns where its cursor was moved to, if that was requested.
    ///
    /// # Errors
    ///
    /// [`AlreadySubscribed`](crate::Error::AlreadySubscribed).
    fn subscribe(&mut self, new: &NewSubscription) -> Result<Option<Moved>>;

    /// Removes a subscription; its cursor and its dead letters stay. Returns what was removed.
    ///
    /// # Errors
    ///
    /// [`UnknownConsumer`](crate::Error::UnknownConsumer).
    fn unsubscribe(&mut self, consumer: &ConsumerId) -> Result<Subscription>;

    /// Moves a cursor, never past the newest id ever given.
    ///
    /// # Errors
    ///
    /// [`UnknownConsumer`](crate::Error::UnknownConsumer).
    fn move_cursor(&mut self, consumer: &ConsumerId, id: i64, how: Move) -> Result<Moved>;

    /// Records a change of a consumer's runs, provided nothing about the consumer has changed since
    /// `seen` was read: neither its state, nor its cursor, nor its dead letters to retry. Returns the
    /// subscription as it then is; `None`, and nothing is recorded, if anything had changed.
    fn update_run(&mut self, seen: &Subscription, update: &RunUpdate) -> Result<Option<Subscription>>;

    /// Remembers that between the cursor of `seen` and `upto` nothing matches its filter, and on
    /// which events the filter failed, oldest first. A power cut may undo it. Returns how many of the
    /// failures, the last ones, nobody had recorded before.
    fn remember_scan(&mut self, seen: &Subscription, upto: i64, failures: &[FilterFailure]) -> Result<usize>;

    /// A consumer's dead letters, oldest event first; or those of all, one consumer after the other.
    fn dead_letters(&mut self, consumer: Option<&ConsumerId>) -> Result<Vec<DeadLetter>>;

    /// Marks one dead letter, or all of a consumer, to be delivered again. Returns how many.
    fn retry_dead_letters(&mut self, consumer: &ConsumerId, event: Option<i64>) -> Result<usize>;

    /// Removes one dead letter, or all of a consumer; the events stay. Returns how many.
    fn discard_dead_letters(&mut self, consumer: &ConsumerId, event: Option<i64>) -> Result<usize>;

    /// Deletes the oldest events of a range, as many as one short transaction takes.
    fn prune(&mut self, range: &PruneRange<'_>) -> Result<PruneStep>;

    /// A number that differs whenever another connection has committed something.
    fn changes(&mut self) -> Result<i64>;
}
