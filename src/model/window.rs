//! Which events a handler that is kept may be given, and which it has: the rule, without the handler.
//!
//! At most `size` events are unanswered at a time, and they finish in any order. With a size of one they are handled in
//! order: an event that waits holds back all after it. After a handler has ended with unanswered events, these are given
//! one at a time, so that the one that ends its handler is found.

use std::collections::{BTreeMap, BTreeSet};

use super::ledger::{EventWait, Ledger, LedgerChange};
use super::time::Time;

/// An event that is neither finished nor past.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Open {
    /// Nothing from here to the event matches, except the event.
    from: i64,
    /// The handler has it; otherwise it waits.
    is_given: bool,
}

/// What to give next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Nothing before an answer.
    Full,
    /// This event, whose wait is over.
    Again(i64),
    /// So many of the events after those that were looked at, the oldest first.
    Next(usize),
    /// Nothing before this time.
    Wait(Time),
}

/// The events at a handler that is kept.
#[derive(Debug, Clone)]
pub struct Window {
    size: usize,
    /// Up to this event, they are given one at a time.
    single_upto: i64,
    ledger: Ledger,
    /// All matching events up to here are finished or open.
    reached: i64,
    open: BTreeMap<i64, Open>,
    given: usize,
    /// The open events that wait, by the end of their wait.
    by_end: BTreeSet<(Time, i64)>,
    changes: Vec<LedgerChange>,
}

impl Window {
    /// The window of a handler that has just been started. `size` is at least 1.
    pub fn new(ledger: Ledger, size: usize, single_upto: i64) -> Window {
        Window {
            size,
            single_upto,
            reached: ledger.cursor(),
            ledger,
            open: BTreeMap::new(),
            given: 0,
            by_end: BTreeSet::new(),
            changes: Vec::new(),
        }
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// All matching events up to here were looked at.
    pub fn reached(&self) -> i64 {
        self.reached
    }

    /// Whether events are given one at a time for now.
    fn is_single(&self) -> bool {
        let first = self.open.keys().next().copied();
        self.size == 1 || self.reached < self.single_upto || first.is_some_and(|id| id <= self.single_upto)
    }

    pub fn turn(&self, now: Time) -> Turn {
        if self.given >= if self.is_single() { 1 } else { self.size } {
            return Turn::Full;
        }
        let again = match self.size {
            // In order: only the oldest.
            1 => self.open.keys().next().copied(),
            _ => self.by_end.first().map(|(_, id)| *id),
        };
        let wait = again.and_then(|id| Some((id, self.ledger.waits().get(&id)?)));
        match wait {
            Some((id, wait)) if wait.is_over(now) => Turn::Again(id),
            Some((_, wait)) if self.size == 1 => Turn::Wait(wait.until),
            _ => Turn::Next(if self.is_single() { 1 } else { self.size - self.given }),
        }
    }

    /// When the next wait ends, if the handler has nothing else to do.
    pub fn next_end(&self) -> Option<Time> {
        self.by_end.first().map(|(end, _)| *end)
    }

    /// The next matching event after those that were looked at. Returns whether it is to be given now.
    pub fn found(&mut self, id: i64) -> bool {
        let from = self.reached + 1;
        if let Some(last) = self.ledger.finished_upto(id) {
            // Nothing matches before it, so what is finished before and after the gap is one range.
            self.change(LedgerChange::Finish { first: from, last: id });
            self.reached = last.max(self.reached);
            return false;
        }
        self.reached = id;
        let wait = self.ledger.waits().get(&id).map(|wait| wait.until);
        self.open.insert(id, Open { from, is_given: wait.is_none() });
        match wait {
            Some(end) => drop(self.by_end.insert((end, id))),
            None => self.given += 1,
        }
        wait.is_none()
    }

    /// An event is taken as given, whatever is before it.
    pub fn adopt(&mut self, id: i64) {
        if self.open.insert(id, Open { from: id, is_given: true }).is_none_or(|open| !open.is_given) {
            self.given += 1;
        }
    }

    /// An event whose wait is over is given again.
    pub fn give_again(&mut self, id: i64) {
        if let Some(open) = self.open.get_mut(&id).filter(|open| !open.is_given) {
            open.is_given = true;
            self.given += 1;
        }
        self.by_end.retain(|(_, other)| *other != id);
    }

    /// Whether the handler has the event.
    pub fn has_given(&self, id: i64) -> bool {
        self.open.get(&id).is_some_and(|open| open.is_given)
    }

    /// The events that the handler has, ascending.
    pub fn unanswered(&self) -> impl Iterator<Item = i64> + '_ {
        self.open.iter().filter(|(_, open)| open.is_given).map(|(id, _)| *id)
    }

    /// How many events the handler has.
    pub fn given(&self) -> usize {
        self.given
    }

    /// The failed attempts at an event so far, and how often in a row it was deferred.
    pub fn tried(&self, id: i64) -> (u32, u32) {
        self.ledger.waits().get(&id).map_or((0, 0), |wait| (wait.attempts, wait.deferred))
    }

    /// An event that the handler had is finished.
    pub fn finish(&mut self, id: i64) {
        let Some(open) = self.open.remove(&id) else { return };
        self.given -= usize::from(open.is_given);
        self.change(LedgerChange::Finish { first: open.from, last: id });
    }

    /// An event that the handler had waits before it is given again.
    pub fn wait(&mut self, id: i64, wait: EventWait) {
        if self.ledger.finished_upto(id).is_some() {
            // By somebody else, in the meantime.
            return self.finish(id);
        }
        let Some(open) = self.open.get_mut(&id) else { return };
        self.given -= usize::from(std::mem::take(&mut open.is_given));
        self.by_end.insert((wait.until, id));
        self.change(LedgerChange::Wait { id, wait });
    }

    fn change(&mut self, change: LedgerChange) {
        self.ledger.apply(&change);
        match (self.changes.last_mut(), &change) {
            (Some(LedgerChange::Finish { last: end, .. }), LedgerChange::Finish { first, last })
                if *first == end.saturating_add(1) =>
            {
                *end = *last;
            }
            _ => self.changes.push(change),
        }
    }

    /// What has changed and is not stored.
    pub fn changes(&self) -> &[LedgerChange] {
        &self.changes
    }

    /// All changes are stored.
    pub fn stored(&mut self) {
        self.changes.clear();
    }

    /// What the store has now, after others have changed it.
    pub fn reload(&mut self, ledger: Ledger) {
        self.ledger = ledger;
        for change in std::mem::take(&mut self.changes) {
            self.change(change);
        }
        self.by_end.clear();
        // Somebody else may have finished an event that waits, or one that the handler has.
        let ledger = &self.ledger;
        let is_over = |id: &i64, open: &mut Open| match open.is_given {
            true => ledger.finished_upto(*id).is_some(),
            false => !ledger.waits().contains_key(id),
        };
        let over: Vec<(i64, Open)> = self.open.extract_if(.., is_over).collect();
        for (last, Open { from: first, is_given }) in over {
            self.given -= usize::from(is_given);
            self.change(LedgerChange::Finish { first, last });
        }
        let ledger = &self.ledger;
        let waiting = self.open.iter().filter(|(_, open)| !open.is_given);
        let ends = waiting.filter_map(|(id, _)| Some((ledger.waits().get(id)?.until, *id)));
        self.by_end.extend(ends);
    }

    /// The handler has ended: returns what it had and did not answer, ascending. These are given one at a time from now
    /// on.
    pub fn ended(&mut self) -> Vec<i64> {
        let left: Vec<i64> = self.unanswered().collect();
        self.single_upto = self.single_upto.max(left.last().copied().unwrap_or(0));
        left
    }

    pub fn single_upto(&self) -> i64 {
        self.single_upto
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    /// A handler and its supervisor, of whom each may be killed at any moment, with a store that both outlive.
    struct World {
        size: usize,
        /// The ids that match.
        matching: Vec<i64>,
        now: Time,
        stored: Ledger,
        window: Window,
        single_upto: i64,
        /// What the handler has.
        given: BTreeSet<i64>,
        acked: BTreeSet<i64>,
        order: Vec<i64>,
    }

    impl World {
        fn new(size: usize, matching: Vec<i64>) -> World {
            let window = Window::new(Ledger::default(), size, 0);
            World {
                size,
                matching,
                now: chrono::Utc::now(),
                stored: Ledger::default(),
                window,
                single_upto: 0,
                given: BTreeSet::new(),
                acked: BTreeSet::new(),
                order: Vec::new(),
            }
        }

        /// Gives the handler what it may have.
        fn give(&mut self) {
            loop {
                match self.window.turn(self.now) {
                    Turn::Full | Turn::Wait(_) => break,
                    Turn::Again(id) => {
                        self.window.give_again(id);
                        self.is_given(id);
                    }
                    Turn::Next(room) => {
                        assert!(room > 0);
                        let reached = self.window.reached();
                        let Some(&id) = self.matching.iter().find(|id| **id > reached) else { break };
                        if self.window.found(id) {
                            self.is_given(id);
                        }
                    }
                }
            }
        }

        fn is_given(&mut self, id: i64) {
            assert!(self.given.insert(id), "{id} is given twice at once");
            assert!(self.given.len() <= self.size);
            if id <= self.single_upto {
                assert_eq!(self.given.len(), 1, "{id} is not given alone");
            }
        }

        fn answer(&mut self, at: usize, acks: bool, wait: u64) {
            let Some(&id) = self.given.iter().nth(at % self.given.len().max(1)) else { return };
            assert!(self.window.has_given(id));
            self.given.remove(&id);
            if acks {
                self.acked.insert(id);
                self.order.push(id);
                self.window.finish(id);
            } else {
                let until = self.now + Duration::from_secs(wait);
                let (attempts, deferred) = self.window.tried(id);
                self.window.wait(id, EventWait { attempts: attempts + 1, deferred, since: self.now, until });
            }
            assert_eq!(self.window.given(), self.given.len());
        }

        fn store(&mut self) {
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

        fn kill_handler(&mut self) {
            let left = self.window.ended();
            assert_eq!(left, self.given.iter().copied().collect::<Vec<_>>());
            self.single_upto = self.single_upto.max(left.last().copied().unwrap_or(0));
            self.store();
            self.start();
        }

        fn kill_supervisor(&mut self) {
            self.start();
        }

        fn start(&mut self) {
            self.given.clear();
            self.window = Window::new(self.stored.clone(), self.size, self.single_upto);
        }

        /// Somebody acknowledges an event by hand.
        fn ack_by_hand(&mut self, at: usize) {
            let Some(&id) = self.matching.get(at % self.matching.len().max(1)) else { return };
            self.acked.insert(id);
            self.stored.apply(&LedgerChange::Finish { first: id, last: id });
            self.window.reload(self.stored.clone());
            self.given.retain(|id| self.stored.finished_upto(*id).is_none());
            assert_eq!(self.window.given(), self.given.len());
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Give,
        Answer(usize, bool, u64),
        Store,
        Time(u64),
        KillHandler,
        KillSupervisor,
        ByHand(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => Just(Step::Give),
            6 => (any::<usize>(), any::<bool>(), 0..20_u64).prop_map(|(at, acks, wait)| Step::Answer(at, acks, wait)),
            3 => Just(Step::Store),
            2 => (0..15_u64).prop_map(Step::Time),
            1 => Just(Step::KillHandler),
            1 => Just(Step::KillSupervisor),
            1 => any::<usize>().prop_map(Step::ByHand),
        ]
    }

    proptest! {
        /// Whoever is killed and whatever is answered: nothing is given twice at once, nothing is finished that nobody
        /// acknowledged, and nothing is forgotten.
        #[test]
        fn every_event_is_handled(
            size in 1..5_usize,
            matching in prop::collection::btree_set(1..40_i64, 0..15),
            steps in prop::collection::vec(step(), 0..80),
        ) {
            let mut world = World::new(size, matching.into_iter().collect());
            let mut killed = false;
            for step in steps {
                match step {
                    Step::Give => world.give(),
                    Step::Answer(at, acks, wait) => world.answer(at, acks, wait),
                    Step::Store => world.store(),
                    Step::Time(seconds) => world.now += Duration::from_secs(seconds),
                    Step::KillHandler => world.kill_handler(),
                    Step::KillSupervisor => {
                        killed = true;
                        world.kill_supervisor();
                    }
                    Step::ByHand(at) => {
                        killed = true;
                        world.ack_by_hand(at);
                    }
                }
                world.check();
            }
            for _ in 0..200 {
                world.now += Duration::from_secs(30);
                world.give();
                world.answer(0, true, 0);
                world.store();
            }
            prop_assert!(world.matching.iter().all(|id| world.acked.contains(id)));
            prop_assert_eq!(world.stored.cursor(), world.matching.last().copied().unwrap_or(0));
            prop_assert_eq!(world.stored.finished().count() + world.stored.waits().len(), 0);
            if size == 1 && !killed {
                prop_assert!(world.order.is_sorted());
            }
        }
    }
}
