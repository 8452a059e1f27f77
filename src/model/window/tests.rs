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
    let long = thread_testkit::long();
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

fn key(name: &str) -> Option<Key> {
    Some(name.into())
}

fn keyed(deliver: Deliver, ahead: u64) -> Options {
    let key = Some(String::new());
    Options { deliver, batch_size: 1, concurrency: Some(9), key, ahead, ..Options::default() }
}

fn claimed() -> Claim {
    Claim { place: 1, ..Claim::default() }
}

fn ids(window: &Window) -> Vec<i64> {
    window.unanswered().collect()
}

#[test]
fn what_a_handler_left_unanswered_is_given_one_at_a_time() {
    let options = Options { deliver: Deliver::Ndjson, batch_size: 3, ..Options::default() };
    let mut window = Window::new(Ledger::default(), &options, 0);
    for id in [2, 4] {
        assert!(window.found(id, None));
    }
    assert_eq!((window.most_each(), window.is_alone(2)), (3, false));
    window.ended(&[2, 4]);
    window.ended(&[2]);
    window.ended(&[]);
    assert_eq!((window.single_upto(), window.most_each()), (4, 1));
    assert!(window.is_alone(2) && window.is_alone(4) && !window.is_alone(5));
    window.finish(2);
    assert_eq!(window.most_each(), 1);
    // Also by whoever comes later, until all of them are past.
    let mut later = Window::new(window.ledger().clone(), &options, 4);
    assert_eq!(later.most_each(), 1);
    assert!(later.found(4, None));
    assert_eq!(later.most_each(), 1);
    for window in [&mut window, &mut later] {
        window.finish(4);
        assert_eq!(window.most_each(), 3);
    }
}

#[test]
fn an_event_that_has_failed_is_given_alone_and_one_that_was_put_off_is_not() {
    for (attempts, deferred, is_alone) in [(1, 0, true), (1, 2, true), (0, 0, true), (0, 1, false)] {
        let wait = EventWait { attempts, deferred, ..EventWait::default() };
        let window = Window::new(Ledger::new(0, [], [(3, wait)], []), &keyed(Deliver::Stdin, 9), 0);
        assert_eq!((window.is_alone(3), window.is_alone(4)), (is_alone, false), "{attempts} {deferred}");
        assert_eq!((window.tried(3), window.tried(4)), ((attempts, deferred), (0, 0)));
        assert!(window.was_given(3) && !window.was_given(4));
    }
}

#[test]
fn options_that_were_changed_count_at_once() {
    let options = |batch_size, ahead| Options { batch_size, ahead, ..keyed(Deliver::Ndjson, 0) };
    let mut window = Window::new(Ledger::default(), &options(2, 2), 0);
    assert!(window.found(1, None) && window.found(2, None));
    assert_eq!((window.most_each(), window.turn(Time::UNIX_EPOCH)), (2, Turn::Full));
    window.adjust(&options(5, 3));
    assert_eq!((window.most_each(), window.turn(Time::UNIX_EPOCH)), (5, Turn::Next));
    // In order, there is one at a time.
    window.adjust(&Options { deliver: Deliver::Ndjson, batch_size: 1, ahead: 9, ..Options::default() });
    assert_eq!(window.turn(Time::UNIX_EPOCH), Turn::Full);
}

#[test]
fn the_next_of_a_key_waits_until_the_end_of_the_one_before_is_stored_if_the_handler_is_kept() {
    let now = Time::UNIX_EPOCH;
    for (deliver, is_kept) in [(Deliver::Ndjson, true), (Deliver::Stdin, false)] {
        let mut window = Window::new(Ledger::default(), &keyed(deliver, 9), 0);
        assert!(window.found(1, key("a")) && !window.found(2, key("a")) && window.found(3, key("b")));
        assert!(!window.found(4, key("a")));
        assert_eq!((window.waiting(), window.given(), ids(&window)), (2, 2, vec![1, 3]));
        window.finish(3);
        // Nobody waits for that key.
        assert!(!window.is_held_up());
        window.finish(1);
        assert_eq!(window.is_held_up(), is_kept);
        assert_eq!(window.turn(now), if is_kept { Turn::Next } else { Turn::Again(2) });
        // One that is found by then waits for it too.
        assert_eq!(window.found(5, key("b")), !is_kept);
        window.stored();
        assert!(!window.is_held_up() && window.changes().is_empty());
        assert_eq!(window.turn(now), Turn::Again(2));
        window.give_again(2);
        assert_eq!(window.turn(now), if is_kept { Turn::Again(5) } else { Turn::Next });
    }
}

#[test]
fn the_wait_that_ends_first_is_known_and_holds_back_its_key_only() {
    let (now, later) = (Time::UNIX_EPOCH, |seconds| Time::UNIX_EPOCH + Duration::from_secs(seconds));
    let wait = |seconds| EventWait { attempts: 1, since: now, until: later(seconds), ..EventWait::default() };
    let mut window = Window::new(Ledger::default(), &keyed(Deliver::Stdin, 9), 0);
    assert_eq!(window.next_end(), None);
    for (id, seconds) in [(1, 20), (2, 10)] {
        assert!(window.found(id, key(&id.to_string())));
        window.wait(id, wait(seconds));
    }
    assert!(!window.found(3, key("1")));
    assert_eq!((window.next_end(), window.turn(now)), (Some(later(10)), Turn::Next));
    assert_eq!(window.turn(later(10)), Turn::Again(2));
    window.give_again(2);
    window.give_again(2);
    assert_eq!((window.next_end(), window.given()), (Some(later(20)), 1));
    window.give_back(2);
    window.give_back(2);
    // As if it had never been given.
    assert_eq!((window.next_end(), window.given(), window.waiting()), (Some(later(10)), 0, 3));
    window.finish(1);
    window.finish(2);
    assert_eq!(window.turn(now), Turn::Again(3));
}

#[test]
fn what_need_not_wait_is_given_before_what_waits_though_the_clock_was_set_back() {
    let later = |seconds| Time::UNIX_EPOCH + Duration::from_secs(seconds);
    let wait = |since, until| EventWait { since: later(since), until: later(until), ..EventWait::default() };
    let mut window = Window::new(Ledger::default(), &keyed(Deliver::Stdin, 9), 0);
    assert!(window.found(1, key("a")) && window.found(2, key("b")));
    window.wait(1, wait(60, 60));
    // From here on the clock is a minute behind.
    window.wait(2, wait(0, 10));
    assert_eq!(window.turn(later(0)), Turn::Again(1));
    assert!(window.next_end() < Some(later(0)));
    window.give_again(1);
    assert_eq!((window.turn(later(0)), window.next_end()), (Turn::Next, Some(later(10))));
}

#[test]
fn what_waits_goes_back_with_the_clock_unless_a_handler_has_it_or_it_began_before() {
    let at = |seconds| Time::UNIX_EPOCH + Duration::from_secs(seconds);
    let wait = |since, until| EventWait { since: at(since), until: at(until), ..EventWait::default() };
    let waits = [(1, wait(90, 110)), (2, wait(20, 110)), (3, wait(90, 110)), (4, wait(80, 99))];
    let ledger = Ledger::new(0, [], waits.clone(), [(4, claimed())]);
    let mut window = Window::new(ledger.clone(), &keyed(Deliver::Stdin, 9), 0);
    for id in 1..=3 {
        assert!(!window.found(id, None));
    }
    window.set_back(chrono::TimeDelta::seconds(60), at(40));
    assert_eq!(window.next_end(), Some(at(50)));
    let mut expected = ledger;
    for id in [1, 3] {
        expected.apply(&LedgerChange::Wait { id, wait: wait(30, 50) });
    }
    assert_eq!(window.ledger(), &expected);
    assert_eq!(window.changes().len(), 2);
    assert_eq!((window.turn(at(49)), window.turn(at(50))), (Turn::Next, Turn::Again(1)));
}

#[test]
fn a_dead_letter_that_is_tried_once_more_has_its_key_for_itself() {
    let now = Time::UNIX_EPOCH;
    let ledger = Ledger::new(4, [], [], []);
    let mut window = Window::new(ledger, &keyed(Deliver::Ndjson, 9), 0);
    assert!(window.found(5, key("a")) && window.found(6, key("b")));
    window.give_back(6);
    // One that is not finished, and one whose key a handler has.
    assert!(!window.take(7, key("c")) && !window.take(1, key("a")));
    assert!(window.take(2, key("b")) && !window.take(2, None) && window.take(3, key("c")));
    assert_eq!((window.given(), ids(&window)), (3, vec![2, 3, 5]));
    // The one that was free is held back, and so is one that is found by then.
    assert_eq!((window.found(7, key("c")), window.turn(now)), (false, Turn::Next));
    window.claim(2, Claim { is_dead_letter: true, ..claimed() });
    window.drop_taken(2);
    window.drop_taken(2);
    assert_eq!(window.given(), 2);
    assert!(window.ledger().claims().is_empty());
    assert!(!window.take(2, key("b")), "that it is over is not stored");
    window.stored();
    assert_eq!(window.turn(now), Turn::Again(6));
    window.finish(5);
    assert!(!window.take(1, key("a")), "that the other is over is not stored");
    window.stored();
    assert!(window.take(1, key("a")));
}

#[test]
fn what_is_held_back_is_noted_with_the_event_that_does_so() {
    let wait = EventWait { until: Time::UNIX_EPOCH + Duration::from_secs(9), ..EventWait::default() };
    let ledger = Ledger::new(0, [], [(2, wait)], [(1, claimed())]);
    let mut window = Window::new(ledger, &keyed(Deliver::Stdin, 99), 0);
    assert_eq!(window.without_known_key(), Vec::<i64>::new(), "nothing after it was looked at");
    window.set_key(1, key("a"));
    for (id, name) in [(1, "a"), (2, "b"), (3, "a"), (4, "b"), (5, "a")] {
        assert!(!window.found(id, key(name)));
    }
    let held = |window: &Window| {
        let (by, count) = window.held()?;
        Some((by.into_iter().map(|(key, id)| (key.to_string(), id)).collect::<Vec<_>>(), count))
    };
    let both = vec![("a".to_owned(), 1), ("b".to_owned(), 2)];
    assert_eq!(held(&window), Some((both, 3)));
    assert_eq!(["a", "b", "c"].map(|key| window.first_of(key)), [Some(1), Some(2), None]);
    // An event that a handler has without a claim holds back the next, but not for others.
    assert!(window.found(6, key("c")));
    assert!(held(&window).is_some());
    assert!(!window.found(7, key("c")));
    assert_eq!(held(&window), None);
    window.claim(6, claimed());
    assert_eq!(held(&window).map(|(_, count)| count), Some(4));
    // It is free, and not held back.
    window.give_back(6);
    assert_eq!(held(&window), None);
    assert_eq!(window.ledger().claims().keys().collect::<Vec<_>>(), [&1]);
}

#[test]
fn events_that_are_held_back_are_passed_over_and_those_that_wait_among_them_are_not() {
    let wait = EventWait { until: Time::UNIX_EPOCH, ..EventWait::default() };
    let waits = [(5, wait.clone()), (7, wait.clone()), (8, wait)];
    let ledger = Ledger::new(0, [], waits, [(1, claimed())]);
    let mut window = Window::new(ledger, &keyed(Deliver::Stdin, 6), 0);
    window.set_key(1, key("a"));
    assert!(window.may_pass(4) && !window.may_pass(5));
    for (id, name) in [(1, "a"), (5, "a"), (7, "b"), (8, "b")] {
        window.waits(id, key(name));
    }
    window.pass(9, 1);
    assert_eq!((window.reached(), window.given(), window.waiting()), (9, 1, 3));
    // The others are held back.
    assert_eq!(window.turn(Time::UNIX_EPOCH), Turn::Again(7));
    window.give_again(7);
    assert_eq!(window.turn(Time::UNIX_EPOCH), Turn::Next);
    window.pass(3, 2);
    assert_eq!((window.reached(), window.turn(Time::UNIX_EPOCH)), (9, Turn::Full));
    // The finished ones are those alone.
    window.finish(7);
    assert_eq!(window.ledger().finished().collect::<Vec<_>>(), [(7, 7)]);
}

#[test]
fn the_keys_of_claims_are_asked_for_once_events_after_them_were_looked_at() {
    let dead = Claim { is_dead_letter: true, ..claimed() };
    let ledger = Ledger::new(3, [], [], [(2, dead), (5, claimed()), (7, claimed())]);
    let mut window = Window::new(ledger, &keyed(Deliver::Stdin, 9), 0);
    assert_eq!((window.without_known_key(), window.given()), (vec![2], 3));
    window.pass(5, 0);
    assert_eq!(window.without_known_key(), [2, 5]);
    window.set_key(2, key("a"));
    assert_eq!(window.without_known_key(), [5]);
    window.set_key(6, key("b"));
    assert_eq!(window.first_of("b"), None, "nobody has it");
    window.wait(5, EventWait::default());
    assert_eq!(window.without_known_key(), Vec::<i64>::new());
    assert!(!window.found(6, key("a")), "the dead letter has its key");
    // One is known once it is found, and then finishes with the gap before it.
    assert!(!window.found(7, key("b")) && !window.found(8, key("b")));
    window.finish(7);
    assert_eq!(window.turn(Time::UNIX_EPOCH), Turn::Again(8));
    assert_eq!(window.ledger().finished().collect::<Vec<_>>(), [(7, 7)]);
    let mut window = Window::new(Ledger::new(3, [], [], [(5, claimed())]), &keyed(Deliver::Stdin, 9), 0);
    assert!(!window.found(5, key("a")) && !window.found(6, key("a")));
    window.finish(5);
    assert_eq!((window.ledger().cursor(), window.turn(Time::UNIX_EPOCH)), (5, Turn::Again(6)));
}

#[test]
fn what_others_have_stored_is_taken_over() {
    let options = keyed(Deliver::Stdin, 9);
    let wait = |attempts| EventWait { attempts, until: Time::UNIX_EPOCH, ..EventWait::default() };
    let before = Ledger::new(0, [(9, 9)], [(2, wait(1))], [(1, claimed()), (2, claimed()), (3, claimed())]);
    let mut window = Window::new(before, &options, 0);
    for id in 1..=5 {
        window.found(id, None);
    }
    window.finish(5);
    // The server has lost the claims, and what was finished. One event waits since, by hand; another is finished.
    let stored = Ledger::new(0, [(3, 3)], [(2, wait(2))], []);
    window.reload(stored);
    assert_eq!(window.ledger().claims().keys().collect::<Vec<_>>(), [&1]);
    assert_eq!(window.ledger().finished().collect::<Vec<_>>(), [(3, 3), (5, 5), (9, 9)]);
    assert_eq!((ids(&window), window.given()), (vec![1, 2, 4], 3));
    // What had been finished up to the cursor is not forgotten either.
    window.finish(1);
    window.reload(Ledger::default());
    assert_eq!(window.ledger().cursor(), 1);
}

#[test]
fn an_event_that_is_adopted_is_given() {
    let mut window = Window::new(Ledger::default(), &keyed(Deliver::Stdin, 9), 0);
    window.adopt(7);
    window.adopt(7);
    assert_eq!((window.given(), ids(&window)), (1, vec![7]));
    window.give_back(7);
    window.adopt(7);
    assert_eq!(window.given(), 1);
    window.finish(7);
    assert_eq!(window.changes(), [LedgerChange::Finish { first: 7, last: 7 }]);
}

#[test]
fn an_event_finishes_with_the_gap_before_it() {
    let mut window = Window::new(Ledger::new(0, [(6, 8)], [], []), &keyed(Deliver::Ndjson, 9), 0);
    assert!(window.found(3, None) && window.found(5, None));
    window.finish(5);
    // One that is finished goes on up to the next.
    assert!(!window.found(7, None) && !window.found(8, None));
    assert_eq!(window.reached(), 8);
    assert!(window.found(11, None));
    window.finish(11);
    assert_eq!(window.ledger().finished().collect::<Vec<_>>(), [(4, 11)]);
    window.finish(3);
    assert_eq!((window.ledger().cursor(), window.given()), (11, 0));
    window.wait(3, EventWait::default());
    assert!(window.ledger().is_plain());
}

#[test]
fn in_order_an_event_that_waits_is_waited_for() {
    let (now, until) = (Time::UNIX_EPOCH, Time::UNIX_EPOCH + Duration::from_secs(9));
    let options = Options { deliver: Deliver::Ndjson, batch_size: 1, ahead: 9, ..Options::default() };
    let wait = EventWait { attempts: 1, since: now, until, ..EventWait::default() };
    let ledger = Ledger::new(0, [], [(2, wait.clone())], []);
    let mut window = Window::new(ledger, &options, 0);
    assert_eq!(window.turn(now), Turn::Next);
    assert!(window.found(1, None));
    assert_eq!(window.turn(now), Turn::Full);
    window.claim(1, claimed());
    window.wait(1, wait);
    assert!(window.ledger().claims().is_empty());
    assert_eq!((window.turn(now), window.turn(until)), (Turn::Wait(until), Turn::Again(1)));
    window.give_again(1);
    window.finish(1);
    // One that waits from before.
    assert!(!window.found(2, None));
    assert_eq!((window.turn(now), window.turn(until)), (Turn::Wait(until), Turn::Again(2)));
}

#[test]
fn of_two_claims_with_the_same_key_neither_is_given_once_more() {
    let ledger = Ledger::new(0, [], [], [(1, claimed()), (2, claimed())]);
    let mut window = Window::new(ledger, &keyed(Deliver::Stdin, 9), 0);
    window.set_key(1, key("a"));
    window.set_key(2, key("a"));
    window.finish(1);
    assert_eq!((window.turn(Time::UNIX_EPOCH), ids(&window)), (Turn::Next, vec![2]));
}

#[test]
fn what_is_finished_does_not_wait_and_is_stored_as_few_ranges() {
    let dead = Claim { is_dead_letter: true, ..claimed() };
    let mut window = Window::new(Ledger::new(3, [], [], [(2, dead)]), &keyed(Deliver::Stdin, 9), 0);
    window.reload(window.ledger().clone());
    assert_eq!(ids(&window), [2]);
    window.wait(2, EventWait::default());
    assert_eq!((window.given(), window.waiting(), window.turn(Time::UNIX_EPOCH)), (0, 0, Turn::Next));
    let mut window = Window::new(Ledger::default(), &keyed(Deliver::Stdin, 9), 0);
    for id in 1..=6 {
        assert!(window.found(id, None));
    }
    for id in [1, 2, 3, 5, 6] {
        window.finish(id);
    }
    let range = |first, last| LedgerChange::Finish { first, last };
    assert_eq!(window.changes(), [range(1, 3), range(5, 6)]);
}

#[test]
fn what_is_stored_already_is_no_change_and_what_is_not_counts_further_on() {
    let wait = |seconds: u64, asleep| {
        let until = Time::UNIX_EPOCH + Duration::from_secs(seconds);
        EventWait { attempts: 1, since: Time::UNIX_EPOCH, until, asleep, ..EventWait::default() }
    };
    let waits = [(2, wait(20, Asleep::No)), (7, wait(30, Asleep::Sleeps))];
    let ledger = Ledger::new(1, [(4, 5), (9, 12)], waits, [(3, claimed())]);
    let mut window = Window::new(ledger.clone(), &keyed(Deliver::Stdin, 3), 0);
    for id in 2..=8 {
        window.found(id, None);
    }
    window.give_back(6);
    // 2, 3, 6 and 8; the other sleeps.
    assert!(window.is_far_ahead());
    window.finish(8);
    window.stored();
    let ledger = Ledger::new(1, [(4, 5), (8, 12)], ledger.waits().clone(), ledger.claims().clone());
    window.reload(ledger.clone());
    assert_eq!(window.changes(), []);
    assert_eq!(window.ledger(), &ledger);
    // What waits is what others have said by then; one of them is over, and another wakes up.
    let waits = [(2, wait(40, Asleep::No)), (7, wait(10, Asleep::No))];
    let later = Ledger::new(1, [(4, 6), (8, 10)], waits, [(3, claimed())]);
    window.reload(later);
    let range = |first, last| LedgerChange::Finish { first, last };
    assert_eq!(window.changes(), [range(8, 12), range(6, 6)]);
    assert_eq!(window.next_end(), Some(wait(10, Asleep::No).until));
    assert!(window.is_far_ahead(), "2, 3 and 7");
    window.stored();
    window.finish(7);
    window.wait(3, wait(50, Asleep::No));
    window.reload(window.ledger().clone());
    assert_eq!(window.next_end(), Some(wait(40, Asleep::No).until));
    window.reload(Ledger::new(1, [(4, 6), (8, 12)], [(2, wait(40, Asleep::No))], [(3, claimed())]));
    assert_eq!(window.ledger().waits().keys().collect::<Vec<_>>(), [&2, &3]);
    assert_eq!((window.ledger().claims().len(), window.given()), (0, 0));
}

#[test]
fn one_that_sleeps_is_counted_as_soon_as_it_is_given_and_forgotten_once_it_is_over() {
    let sleeps = EventWait { asleep: Asleep::Sleeps, ..EventWait::default() };
    let ledger = Ledger::new(0, [], [(3, sleeps.clone()), (5, sleeps)], [(1, claimed())]);
    let mut window = Window::new(ledger, &keyed(Deliver::Stdin, 2), 0);
    window.waits(3, None);
    window.waits(5, None);
    assert!(!window.is_far_ahead());
    window.give_again(3);
    assert!(window.is_far_ahead());
    window.give_back(3);
    assert!(!window.is_far_ahead());
    window.finish(3);
    assert!(!window.is_far_ahead());
    window.pass(6, 1);
    assert!(window.is_far_ahead());
}
