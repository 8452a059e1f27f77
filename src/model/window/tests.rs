use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::model::ledger::Asleep;

/// How an event is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum How {
    /// By a handler that is kept, which ends with its supervisor.
    Kept,
    /// By a run that claims it, and goes on without its supervisor.
    Claimed,
}

/// Handlers and their supervisor, of whom each may be killed at any moment, with a store that all outlive.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    how: How,
    handlers: usize,
    size: usize,
    /// So many keys, by the remainder of the id; 0 for none.
    keys: i64,
    /// The ids that match.
    matching: Vec<i64>,
    now: Time,
    stored: Ledger,
    /// What a server has after a crash.
    synced: Ledger,
    window: Window,
    single_upto: i64,
    /// Which handler has which event.
    given: BTreeMap<i64, usize>,
    /// Those at runs whose supervisor was killed.
    orphans: BTreeSet<i64>,
    acked: BTreeSet<i64>,
    order: Vec<i64>,
    /// Attempts at events in a row without an end.
    failed: BTreeMap<i64, u32>,
    /// How often the supervisor was killed.
    killed: u32,
}

impl World {
    fn new(how: How, handlers: usize, size: usize, keys: i64, matching: Vec<i64>) -> World {
        let options = World::options(how, handlers, size, keys);
        World {
            how,
            handlers,
            size,
            keys,
            matching,
            now: Time::UNIX_EPOCH,
            stored: Ledger::default(),
            synced: Ledger::default(),
            window: Window::new(Ledger::default(), &options, 0),
            single_upto: 0,
            given: BTreeMap::new(),
            orphans: BTreeSet::new(),
            acked: BTreeSet::new(),
            order: Vec::new(),
            failed: BTreeMap::new(),
            killed: 0,
        }
    }

    fn options(how: How, handlers: usize, size: usize, keys: i64) -> Options {
        Options {
            deliver: if how == How::Kept { Deliver::Ndjson } else { Deliver::Stdin },
            batch_size: size as u64,
            concurrency: u32::try_from(handlers).ok().filter(|handlers| *handlers > 1),
            key: (keys > 0).then(String::new),
            ..Options::default()
        }
    }

    fn key(&self, id: i64) -> Option<Key> {
        (self.keys > 0).then(|| (id % self.keys).to_string().into())
    }

    /// How many events a handler has.
    fn load(&self, handler: usize) -> usize {
        self.given.values().filter(|other| **other == handler).count()
    }

    /// The handler that has the fewest events, if it may have more.
    fn free(&self) -> Option<usize> {
        let free = (0..self.handlers).min_by_key(|handler| self.load(*handler))?;
        (self.load(free) < self.window.most_each()).then_some(free)
    }

    /// Gives a handler an event that it may have. Returns false if there is none.
    fn give_one(&mut self) -> bool {
        let busy = self.orphans.len();
        let Some(handler) = self.free().filter(|_| self.given.len() + busy < self.handlers * self.size)
        else {
            return false;
        };
        match self.window.turn(self.now) {
            Turn::Full | Turn::Wait(_) => false,
            Turn::Again(id) => {
                self.window.give_again(id);
                self.is_given(id, handler);
                true
            }
            Turn::Next => {
                let reached = self.window.reached();
                let Some(&id) = self.matching.iter().find(|id| **id > reached) else { return false };
                if self.window.found(id, self.key(id)) {
                    self.is_given(id, handler);
                }
                true
            }
        }
    }

    fn is_given(&mut self, id: i64, handler: usize) {
        assert!(!self.orphans.contains(&id), "{id} is given twice at once");
        assert!(self.given.insert(id, handler).is_none(), "{id} is given twice at once");
        assert!(!self.acked.contains(&id) || self.stored.finished_upto(id).is_none(), "{id} is finished");
        assert!(self.load(handler) <= self.size);
        if id <= self.single_upto {
            assert_eq!(self.load(handler), 1, "{id} is not given alone");
        }
        if let Some(key) = self.key(id) {
            let others = self.given.keys().chain(&self.orphans).filter(|other| **other != id);
            assert!(others.clone().all(|other| self.key(*other).as_ref() != Some(&key)), "two of {key}");
            let before = self.matching.iter().filter(|before| **before < id);
            let mut before = before.filter(|before| self.key(**before).as_ref() == Some(&key));
            // What a run has finished is stored with its claim.
            let ledger = if self.how == How::Kept { &self.stored } else { self.window.ledger() };
            let is_over = |id: &i64| ledger.finished_upto(*id).is_some();
            assert!(before.all(is_over), "{id} is before an older one of {key}");
        }
        if self.how == How::Claimed {
            self.window.claim(id, Claim { place: 1, since: self.now, ..Claim::default() });
            self.store();
        }
    }

    fn answer(&mut self, id: i64, acks: bool, wait: u64) {
        assert!(self.window.has_given(id));
        self.given.remove(&id);
        if acks {
            self.acked.insert(id);
            self.order.push(id);
            self.window.finish(id);
        } else {
            self.fails(id, wait);
        }
        assert_eq!(self.window.given(), self.given.len() + self.orphans.len());
    }

    fn fails(&mut self, id: i64, wait: u64) {
        *self.failed.entry(id).or_default() += 1;
        let until = self.now + Duration::from_secs(wait);
        let (attempts, deferred) = self.window.tried(id);
        self.window.wait(
            id,
            EventWait { attempts: attempts + 1, deferred, since: self.now, until, ..EventWait::default() },
        );
    }

    fn store(&mut self) {
        self.synced = self.stored.clone();
        self.window.changes().iter().for_each(|change| self.stored.apply(change));
        self.window.stored();
        assert_eq!(self.window.ledger(), &self.stored);
        self.check();
    }

    /// Nothing is finished that was not acknowledged.
    fn check(&self) {
        for id in &self.matching {
            if self.stored.finished_upto(*id).is_some() {
                assert!(self.acked.contains(id), "{id} was not acknowledged");
            }
        }
    }

    /// A handler ends without an answer.
    fn kill_handler(&mut self, handler: usize) {
        let left: Vec<i64> =
            self.given.iter().filter(|(_, other)| **other == handler).map(|(id, _)| *id).collect();
        let Some((first, others)) = left.split_first() else { return };
        self.given.retain(|id, _| !left.contains(id));
        if self.how == How::Kept {
            self.window.ended(&left);
            self.single_upto = self.single_upto.max(left.last().copied().unwrap_or(0));
        }
        self.fails(*first, 0);
        others.iter().for_each(|id| self.window.give_back(*id));
        self.store();
    }

    fn kill_supervisor(&mut self) {
        self.killed += 1;
        let given = std::mem::take(&mut self.given);
        if self.how == How::Claimed {
            self.orphans.extend(given.keys());
        }
        let options = World::options(self.how, self.handlers, self.size, self.keys);
        self.window = Window::new(self.stored.clone(), &options, self.single_upto);
        // Runs whose ends were not stored.
        let over = self.stored.claims().keys().copied().filter(|id| !self.orphans.contains(id));
        over.collect::<Vec<_>>().into_iter().for_each(|id| self.fails(id, 0));
    }

    /// A run ends whose supervisor was killed. Nobody heard whether it succeeded.
    fn end_orphan(&mut self, id: i64) {
        if self.orphans.remove(&id) {
            self.fails(id, 0);
            self.store();
        }
    }

    /// Somebody acknowledges an event by hand.
    fn ack_by_hand(&mut self, id: i64) {
        self.acked.insert(id);
        self.stored.apply(&LedgerChange::Finish { first: id, last: id });
        self.synced = self.stored.clone();
        self.window.reload(self.stored.clone());
        self.given.retain(|id, _| self.window.has_given(*id));
        self.orphans.retain(|id| self.window.has_given(*id));
        assert_eq!(self.window.given(), self.given.len() + self.orphans.len());
    }

    /// The server loses what was stored last, and the supervisor notices.
    fn crash_server(&mut self) {
        if self.orphans.is_empty() {
            self.stored = self.synced.clone();
            self.window.reload(self.stored.clone());
            assert_eq!(self.window.given(), self.given.len());
            self.store();
        }
    }

    /// In the end, everything is handled.
    fn finish(mut self) {
        let last = self.matching.last().copied().unwrap_or(0);
        for _ in 0..200 {
            if self.stored.cursor() == last && self.orphans.is_empty() {
                break;
            }
            self.now += Duration::from_secs(30);
            let orphans = self.orphans.clone();
            orphans.into_iter().for_each(|id| self.end_orphan(id));
            while self.give_one() {}
            if let Some(id) = self.given.keys().next().copied() {
                self.answer(id, true, 0);
            }
            self.store();
        }
        assert!(self.matching.iter().all(|id| self.acked.contains(id)), "{self:?}");
        assert_eq!(self.stored.cursor(), last);
        assert!(self.stored.is_plain());
    }
}

#[derive(Debug, Clone)]
enum Step {
    Give,
    Answer(usize, bool, u64),
    Store,
    Time(u64),
    KillHandler(usize),
    KillSupervisor,
    CrashServer,
    EndOrphan(usize),
    ByHand(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Give),
        6 => (any::<usize>(), any::<bool>(), 0..20_u64).prop_map(|(at, acks, wait)| Step::Answer(at, acks, wait)),
        3 => Just(Step::Store),
        2 => (0..15_u64).prop_map(Step::Time),
        1 => (0..4_usize).prop_map(Step::KillHandler),
        1 => Just(Step::KillSupervisor),
        1 => Just(Step::CrashServer),
        2 => any::<usize>().prop_map(Step::EndOrphan),
        1 => any::<usize>().prop_map(Step::ByHand),
    ]
}

fn nth(mut ids: impl ExactSizeIterator<Item = i64>, at: usize) -> Option<i64> {
    let length = ids.len();
    ids.nth(at % length.max(1))
}

proptest! {
    /// Whatever is killed and whatever is answered: nothing is given twice at once, nothing is finished that nobody
    /// acknowledged, nothing is forgotten, and no order of a key is broken.
    #[test]
    fn every_event_is_handled(
        how in prop_oneof![Just(How::Kept), Just(How::Claimed)],
        handlers in 1..4_usize,
        size in 1..5_usize,
        keys in 0..4_i64,
        matching in prop::collection::btree_set(1..40_i64, 0..15),
        steps in prop::collection::vec(step(), 0..80),
    ) {
        let mut world = World::new(how, handlers, size, keys, matching.into_iter().collect());
        let mut in_order = handlers == 1 && size == 1;
        for step in steps {
            match step {
                Step::Give => while world.give_one() {},
                Step::Answer(at, acks, wait) => {
                    if let Some(id) = nth(world.given.keys().copied(), at) {
                        world.answer(id, acks, wait);
                    }
                }
                Step::Store => world.store(),
                Step::Time(seconds) => world.now += Duration::from_secs(seconds),
                Step::KillHandler(handler) => world.kill_handler(handler),
                Step::KillSupervisor => {
                    in_order = false;
                    world.kill_supervisor();
                }
                Step::CrashServer => world.crash_server(),
                Step::EndOrphan(at) => {
                    if let Some(id) = nth(world.orphans.clone().into_iter(), at) {
                        world.end_orphan(id);
                    }
                }
                Step::ByHand(at) => {
                    in_order = false;
                    if let Some(id) = nth(world.matching.iter().copied(), at) {
                        world.ack_by_hand(id);
                    }
                }
            }
            world.check();
        }
        if in_order && keys <= 1 {
            prop_assert!(world.order.is_sorted());
        }
        world.finish();
    }
}

/// Two handlers, three events, two keys: everything that can happen, in every order. Without keys, the short form has two
/// events.
#[test]
fn pools_are_explored_exhaustively() {
    let long = std::env::var_os("THREAD_FAULTS").is_some_and(|form| form == "long");
    let all: [(_, _, i64, _); 4] = [
        (How::Kept, 0, if long { 3 } else { 2 }, 500),
        (How::Kept, 2, 3, 10_000),
        (How::Claimed, 0, if long { 3 } else { 2 }, 500),
        (How::Claimed, 2, 3, 10_000),
    ];
    for (how, keys, events, states) in all {
        let mut left = vec![World::new(how, 2, 1, keys, (1..=events).collect())];
        let mut seen = HashSet::new();
        while let Some(world) = left.pop() {
            if !seen.insert(world.clone()) {
                continue;
            }
            world.check();
            world.clone().finish();
            let mut next = |change: &dyn Fn(&mut World)| {
                let mut after = world.clone();
                change(&mut after);
                // In which order they were acknowledged makes no difference from here on.
                after.order.clear();
                left.push(after);
            };
            next(&|world| _ = world.give_one());
            next(&World::store);
            for id in world.given.keys().copied() {
                next(&|world| world.answer(id, true, 0));
                if !world.failed.contains_key(&id) {
                    next(&|world| world.answer(id, false, 5));
                }
            }
            for id in world.orphans.iter().copied() {
                if world.failed.get(&id).is_none_or(|failed| *failed < 2) {
                    next(&|world| world.end_orphan(id));
                }
            }
            for handler in 0..2 {
                if world.given.iter().any(|(id, of)| *of == handler && !world.failed.contains_key(id)) {
                    next(&|world| world.kill_handler(handler));
                }
            }
            let matters = !world.given.is_empty() || !world.window.changes().is_empty();
            if matters && world.killed < 1 {
                next(&World::kill_supervisor);
            }
            if world.now == Time::UNIX_EPOCH {
                next(&|world| world.now += Duration::from_secs(5));
            }
        }
        assert!(seen.len() > states, "{how:?}, {keys} keys: {}", seen.len());
    }
}

#[test]
fn those_that_sleep_do_not_count_as_unfinished() {
    let now = Time::UNIX_EPOCH;
    let options = Options { concurrency: Some(1), batch_size: 1, ahead: 2, ..Options::default() };
    let mut window = Window::new(Ledger::default(), &options, 0);
    let until = now + Duration::from_secs(60);
    let wait = |asleep| EventWait { since: now, until, asleep, ..EventWait::default() };
    for id in 1..=5 {
        assert_eq!(window.turn(now), Turn::Next);
        assert!(window.found(id, None));
        window.wait(id, wait(if id % 2 == 0 { Asleep::Sleeps } else { Asleep::Awaits }));
    }
    assert!(!window.is_far_ahead());
    // Others count, and those that wake up.
    assert!(window.found(6, None));
    window.wait(6, wait(Asleep::No));
    assert!(!window.is_far_ahead());
    assert_eq!(window.turn(until), Turn::Again(1));
    window.give_again(1);
    assert!(window.is_far_ahead());
    // Nor do they for who comes later.
    let mut later = Window::new(window.ledger().clone(), &options, 0);
    for id in 1..=6 {
        assert!(!later.is_far_ahead());
        assert!(!later.found(id, None));
    }
    window.finish(1);
    assert!(!window.is_far_ahead());
    window.reload(window.ledger().clone());
    assert!(!window.is_far_ahead());
    assert_eq!(window.turn(now), Turn::Next);
}
