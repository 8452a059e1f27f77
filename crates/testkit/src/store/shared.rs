//! A store in memory that several queues of a process use.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once};

use thread::model::event::CappedRow;
use thread::model::figures::Counted;
use thread::model::filter::Filter;
use thread::model::ledger::Ledger;
use thread::model::location::Location;
use thread::model::run::Run;
use thread::model::schedule::Schedule;
use thread::model::scheduled::{NextDue, ScheduledEvent, ScheduledId, Which};
use thread::model::step::Step;
use thread::model::subscription::{ConsumerId, DeadLetter, NewSubscription, Subscription};
use thread::model::time::Time;
use thread::queue::locations::{Scheme, add};
use thread::store::{
    Appended, FilterFailure, Move, Moved, PruneRange, PruneStep, Put, RunUpdate, Scan, ScanRange, StepChange,
    StepsOf, Store,
};
use thread::{NewEvent, Result};

use super::memory::MemoryStore;

/// How locations of such stores begin.
const NAME: &str = "memory://";

/// A store in memory that several queues of a process use.
#[derive(Clone)]
pub struct SharedStore {
    store: Arc<Mutex<MemoryStore>>,
    /// Called before each operation, with its name.
    before: fn(&'static str),
    /// What an operation fails with, though it was done.
    after: fn(&'static str) -> Result<()>,
}

static PLACES: Mutex<BTreeMap<Location, SharedStore>> = Mutex::new(BTreeMap::new());

impl SharedStore {
    /// An empty store. `before` is called before each operation, with its name.
    pub fn new(before: fn(&'static str)) -> SharedStore {
        SharedStore { store: Arc::default(), before, after: |_| Ok(()) }
    }

    /// Calls `after` after each operation that was done, with its name: an error is that of the operation.
    pub fn failing(self, after: fn(&'static str) -> Result<()>) -> SharedStore {
        SharedStore { after, ..self }
    }

    /// From now on, a queue that is opened at the location with these other files uses it.
    pub fn put_at(&self, files: &Path) -> Location {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            add(Scheme {
                name: "memory",
                base: |location| Ok(PathBuf::from(location.as_os_str().to_str().unwrap().replace(NAME, ""))),
                open: |location, _| Ok(Box::new(PLACES.lock().unwrap()[location].clone())),
                init: |_| Ok(()),
                threads: |_| None,
                changes: |_| Vec::new(),
                listen: |_| {},
                leave: || {},
                spare: || {},
            });
        });
        let location = Location::from(PathBuf::from(format!("{NAME}{}", files.display())));
        PLACES.lock().unwrap().insert(location.clone(), self.clone());
        location
    }
}

macro_rules! delegate {
    ($(fn $name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        impl Store for SharedStore {
            $(fn $name(&mut self, $($argument: $kind),*) -> $result {
                (self.before)(stringify!($name));
                let done = self.store.lock().unwrap().$name($($argument),*)?;
                (self.after)(stringify!($name)).map(|()| done)
            })*
        }
    };
}

delegate! {
    fn append(feed: &mut dyn FnMut(&mut Put<'_>) -> Result<()>) -> Result<Appended>;
    fn read_capped(
        after: i64, upto: i64, limit: usize, cap: u64, take: &mut dyn FnMut(CappedRow<'_>) -> ControlFlow<()>
    ) -> Result<()>;
    fn read_content(id: i64, offset: u64, most: usize) -> Result<Option<Vec<u8>>>;
    fn scan(filter: &Filter, range: ScanRange) -> Result<Scan>;
    fn newest() -> Result<i64>;
    fn first_after(id: i64) -> Result<Option<i64>>;
    fn last_upto(id: i64) -> Result<Option<i64>>;
    fn first_since(time: &str) -> Result<Option<i64>>;
    fn stored_at(id: i64) -> Result<Option<String>>;
    fn id_of_key(key: &str) -> Result<Option<i64>>;
    fn count(after: i64, upto: i64) -> Result<u64>;
    fn subscriptions() -> Result<Vec<Subscription>>;
    fn subscription(consumer: &ConsumerId) -> Result<Option<Subscription>>;
    fn subscribe(new: &NewSubscription) -> Result<Option<Moved>>;
    fn unsubscribe(consumer: &ConsumerId) -> Result<Subscription>;
    fn move_cursor(consumer: &ConsumerId, id: i64, how: Move) -> Result<Moved>;
    fn acknowledge(consumer: &ConsumerId, id: i64, matching: Option<&[i64]>) -> Result<Moved>;
    fn update_run(seen: &Subscription, update: &RunUpdate) -> Result<Option<Subscription>>;
    fn ledger(consumer: &ConsumerId) -> Result<Ledger>;
    fn runs(consumer: &ConsumerId, most: usize) -> Result<Vec<Run>>;
    fn run(consumer: &ConsumerId, number: i64) -> Result<Option<Run>>;
    fn remember_scan(seen: &Subscription, upto: i64, failures: &[FilterFailure]) -> Result<usize>;
    fn read_dead_letters(
        consumer: Option<&ConsumerId>, take: &mut dyn FnMut(DeadLetter) -> ControlFlow<()>
    ) -> Result<()>;
    fn retry_dead_letters(consumer: &ConsumerId, events: Option<&[i64]>) -> Result<usize>;
    fn discard_dead_letters(consumer: &ConsumerId, events: Option<&[i64]>) -> Result<usize>;
    fn prune(range: &PruneRange<'_>) -> Result<PruneStep>;
    fn scheduled(after: Option<(Time, ScheduledId)>, most: usize) -> Result<Vec<ScheduledEvent>>;
    fn count_scheduled() -> Result<u64>;
    fn cancel_scheduled(id: ScheduledId) -> Result<bool>;
    fn next_scheduled() -> Result<Option<NextDue>>;
    fn make_scheduled(which: Which, most: usize) -> Result<Appended>;
    fn schedules() -> Result<Vec<Schedule>>;
    fn change_schedule(
        name: &str, seen: Option<&Schedule>, to: Option<&Schedule>, events: &[NewEvent<'_>]
    ) -> Result<Option<Appended>>;
    fn changes() -> Result<i64>;
    fn config() -> Result<BTreeMap<String, String>>;
    fn set_config(name: &str, value: Option<&str>) -> Result<bool>;
    fn has_steps() -> Result<bool>;
    fn read_steps(of: StepsOf<'_>, take: &mut dyn FnMut(Step) -> ControlFlow<()>) -> Result<()>;
    fn change_step(change: &StepChange) -> Result<bool>;
    fn forget_steps(now: Time, before: Time, most: usize) -> Result<(u64, bool)>;
    fn has_figures() -> Result<bool>;
    fn figures(from: i64) -> Result<Vec<Counted>>;
    fn merge_figures(now: Time, most: usize) -> Result<bool>;
}
