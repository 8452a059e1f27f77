//! Which events the handlers of a consumer may be given, and which they have: the rule, without the handlers.
//!
//! Each has at most `size` unanswered events at a time, and they finish in any order. Of events with the same key, only
//! the oldest unfinished one may be given; one that waits holds back those of its key. With a handler that is kept, so
//! does one that is finished, until that is stored: otherwise it could be given once more after the next. (The end of a
//! run is stored with the claims of the next.) A single handler with a `size` of 1 and no key gets all events in order:
//! while one waits, no other is looked at. After a handler that is kept has ended with unanswered events, these are given
//! one at a time, so that the one that ends its handler is found.

mod shared;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use chrono::TimeDelta;

use super::ledger::{Claim, EventWait, Ledger, LedgerChange};
use super::run::{Deliver, Options};
use super::time::Time;

/// What events have in common that are handled one after the other.
pub type Key = Rc<str>;

/// An event that is neither finished nor past.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Open {
    /// Nothing from here to the event matches, except the event.
    from: i64,
    /// A handler has it; otherwise it waits, or is held back.
    is_given: bool,
    key: Option<Key>,
    /// From when on it may be given, if it is not held back and no handler has it.
    ready: Option<Time>,
    /// It was finished before, and is tried once more.
    is_extra: bool,
}

impl Open {
    fn given(from: i64, key: Option<Key>) -> Open {
        Open { from, is_given: true, key, ready: None, is_extra: false }
    }
}

/// What to give next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Nothing before an answer.
    Full,
    /// This event, whose wait is over.
    Again(i64),
    /// Events after those that were looked at, the oldest first.
    Next,
    /// Nothing before this time.
    Wait(Time),
}

/// The events at the handlers of a consumer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Window {
    size: usize,
    in_order: bool,
    is_kept: bool,
    ahead: usize,
    /// Up to this event, they are given one at a time.
    single_upto: i64,
    ledger: Ledger,
    /// All matching events up to here are finished or open.
    reached: i64,
    /// How many events were passed over that are held back.
    passed: usize,
    open: BTreeMap<i64, Open>,
    given: usize,
    /// The open events of each key.
    keys: BTreeMap<Key, BTreeSet<i64>>,
    /// The open events that sleep: so many may be past what is looked at.
    asleep: BTreeSet<i64>,
    /// The open events that may be given, and from when on.
    by_end: BTreeSet<(Time, i64)>,
    /// Those of them whose wait has no length: they may be given whatever the clock says, which may have been set back.
    at_once: BTreeSet<(Time, i64)>,
    /// The keys whose next event may be given once the changes are stored.
    released: BTreeSet<Key>,
    changes: Vec<LedgerChange>,
}

/// Before any time.
const AT_ONCE: Time = Time::MIN_UTC;

impl Window {
    /// The window of handlers that are to be started, or, where events are claimed, are at work.
    pub fn new(ledger: Ledger, options: &Options, single_upto: i64) -> Window {
        let claimed = |(&id, claim): (&i64, &Claim)| {
            (id, Open { is_extra: claim.is_dead_letter, ..Open::given(id, None) })
        };
        let open: BTreeMap<i64, Open> = ledger.claims().iter().map(claimed).collect();
        let mut window = Window {
            size: 1,
            in_order: options.is_in_order(),
            is_kept: options.deliver == Deliver::Ndjson,
            ahead: 1,
            single_upto,
            reached: ledger.cursor(),
            passed: 0,
            ledger,
            given: open.len(),
            open,
            keys: BTreeMap::new(),
            asleep: BTreeSet::new(),
            by_end: BTreeSet::new(),
            at_once: BTreeSet::new(),
            released: BTreeSet::new(),
            changes: Vec::new(),
        };
        window.adjust(options);
        window
    }

    /// Takes over options that were changed.
    pub fn adjust(&mut self, options: &Options) {
        let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        (self.size, self.ahead) = (number(options.batch_size), number(options.ahead));
        self.in_order = options.is_in_order();
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// All matching events up to here were looked at.
    pub fn reached(&self) -> i64 {
        self.reached
    }

    /// How many events a handler may have at a time for now.
    pub fn most_each(&self) -> usize {
        let first = self.open.keys().next().copied();
        let is_single = self.reached < self.single_upto || first.is_some_and(|id| id <= self.single_upto);
        if is_single { 1 } else { self.size }
    }

    /// Whether an event is given to a handler that has no other.
    pub fn is_alone(&self, id: i64) -> bool {
        let failed = |wait: &EventWait| wait.attempts > 0 || wait.deferred == 0;
        id <= self.single_upto || self.ledger.waits().get(&id).is_some_and(failed)
    }

    /// What a handler may be given that has fewer events than it may.
    pub fn turn(&self, now: Time) -> Turn {
        let first = self.by_end.first();
        let is_over =
            |(_, id): &&(Time, i64)| self.ledger.waits().get(id).is_none_or(|wait| wait.is_over(now));
        if let Some((_, id)) = first.filter(is_over).or(self.at_once.first()) {
            return Turn::Again(*id);
        }
        match first {
            Some((end, _)) if self.in_order => Turn::Wait(*end),
            None if self.in_order && !self.open.is_empty() => Turn::Full,
            _ if self.is_far_ahead() => Turn::Full,
            _ => Turn::Next,
        }
    }

    /// Whether more may be given once the changes are stored.
    pub fn is_held_up(&self) -> bool {
        self.released.iter().any(|key| self.keys.get(key).is_some_and(|same| !same.is_empty()))
    }

    /// Whether so many events are unfinished that no further ones are looked at.
    pub fn is_far_ahead(&self) -> bool {
        self.open.len() + self.passed - self.asleep.len() >= self.ahead
    }

    /// How many events wait, or are held back.
    pub fn waiting(&self) -> usize {
        self.open.len() - self.given
    }

    /// When the next wait ends, if the handlers have nothing else to do.
    pub fn next_end(&self) -> Option<Time> {
        match self.at_once.is_empty() {
            true => self.by_end.first().map(|(end, _)| *end),
            false => Some(AT_ONCE),
        }
    }

    /// The next matching event after those that were looked at. Returns whether it is to be given now.
    pub fn found(&mut self, id: i64, key: Option<Key>) -> bool {
        let from = self.reached + 1;
        if id < from {
            // It is one of a range of finished ones, of which all were passed at once.
            return false;
        }
        if let Some(last) = self.ledger.finished_upto(id) {
            // Nothing matches before it, so what is finished before and after the gap is one range.
            self.change(LedgerChange::Finish { first: from, last: id });
            self.reached = last.max(self.reached);
            return false;
        }
        self.reached = id;
        let is_first = key.as_ref().is_none_or(|key| {
            let same = self.keys.entry(key.clone()).or_default();
            same.insert(id);
            same.first() == Some(&id) && !self.released.contains(key)
        });
        if let Some(open) = self.open.get_mut(&id) {
            // It is claimed.
            (open.from, open.key) = (from, key);
            return false;
        }
        let wait = self.ledger.waits().get(&id).map(|wait| wait.until);
        let is_given = is_first && wait.is_none();
        self.given += usize::from(is_given);
        self.open.insert(id, Open { is_given, ..Open::given(from, key) });
        if is_first && !is_given {
            self.set_ready(id);
        }
        self.note_sleep(id);
        is_given
    }

    /// Passes over events of which all are known up to this one: those that are claimed, those that [wait](Window::waits),
    /// and so many others, which are held back.
    pub fn pass(&mut self, upto: i64, held: usize) {
        self.reached = upto.max(self.reached);
        self.passed = held;
    }

    /// Whether so many more may be passed over.
    pub fn may_pass(&self, held: usize) -> bool {
        self.open.len() + held < self.ahead
    }

    /// An event among those that are passed over waits. They have to come in their order.
    pub fn waits(&mut self, id: i64, key: Option<Key>) {
        if self.open.contains_key(&id) {
            return;
        }
        let is_first = key.as_ref().is_none_or(|key| {
            let same = self.keys.entry(key.clone()).or_default();
            same.insert(id);
            same.first() == Some(&id)
        });
        self.open.insert(id, Open { is_given: false, ..Open::given(id, key) });
        if is_first {
            self.set_ready(id);
        }
        self.note_sleep(id);
    }

    /// The oldest known event with this key that is not finished.
    pub fn first_of(&self, key: &str) -> Option<i64> {
        self.keys.get(key)?.first().copied()
    }

    /// The keys of events that are held back, each with the event that holds them back, and how many such events there
    /// are. `None` if one is held back by nothing that the ledger has.
    pub fn held(&self) -> Option<(BTreeMap<Key, i64>, usize)> {
        let (mut holders, mut count) = (BTreeMap::new(), 0);
        for (id, open) in &self.open {
            if open.is_given || self.ledger.waits().contains_key(id) {
                continue;
            }
            let key = open.key.as_ref()?;
            let holder = self.first_of(key)?;
            if !self.ledger.claims().contains_key(&holder) && !self.ledger.waits().contains_key(&holder) {
                return None;
            }
            count += 1;
            holders.insert(key.clone(), holder);
        }
        Some((holders, count))
    }

    /// The key of an event that is claimed.
    pub fn set_key(&mut self, id: i64, key: Option<Key>) {
        let Some(open) = self.open.get_mut(&id) else { return };
        if let Some(key) = &key {
            self.keys.entry(key.clone()).or_default().insert(id);
        }
        open.key = key;
    }

    /// An event is taken as given, whatever is before it.
    pub fn adopt(&mut self, id: i64) {
        if self.open.insert(id, Open::given(id, None)).is_none_or(|open| !open.is_given) {
            self.given += 1;
        }
    }

    /// An event that is finished, but tried once more, is given to a handler, and holds back those of its key. Returns
    /// false if a handler has one of these.
    pub fn take(&mut self, id: i64, key: Option<Key>) -> bool {
        let same = key.as_ref().and_then(|key| self.keys.get(key)).cloned().unwrap_or_default();
        // One that the cursor was moved back over is given like any other.
        let is_unfinished = self.ledger.finished_upto(id).is_none();
        let is_released = key.as_ref().is_some_and(|key| self.released.contains(key));
        if is_unfinished
            || is_released
            || same.iter().any(|id| self.has_given(*id))
            || self.open.contains_key(&id)
        {
            return false;
        }
        for other in same {
            self.set_unready(other);
        }
        if let Some(key) = &key {
            self.keys.entry(key.clone()).or_default().insert(id);
        }
        self.open.insert(id, Open { is_extra: true, ..Open::given(id, key) });
        self.given += 1;
        true
    }

    /// A handler no longer has an event that it was given with [`Window::take`].
    pub fn drop_taken(&mut self, id: i64) {
        if let Some(open) = self.open.remove(&id) {
            self.given -= 1;
            self.unclaim(id);
            self.is_over(id, open);
        }
    }

    /// An event whose wait is over is given again.
    pub fn give_again(&mut self, id: i64) {
        let Some(open) = self.open.get_mut(&id).filter(|open| !open.is_given) else { return };
        open.is_given = true;
        self.set_unready(id);
        self.given += 1;
        self.asleep.remove(&id);
    }

    /// Notes whether an open event sleeps.
    fn note_sleep(&mut self, id: i64) {
        let is_open = self.open.get(&id).is_some_and(|open| !open.is_given);
        match is_open && self.ledger.waits().get(&id).is_some_and(EventWait::is_asleep) {
            true => self.asleep.insert(id),
            false => self.asleep.remove(&id),
        };
    }

    /// An event that a handler had is to be given again, as if it had never been given.
    pub fn give_back(&mut self, id: i64) {
        let Some(open) = self.open.get_mut(&id).filter(|open| open.is_given) else { return };
        open.is_given = false;
        self.given -= 1;
        self.unclaim(id);
        self.set_ready(id);
        self.note_sleep(id);
    }

    fn unclaim(&mut self, id: i64) {
        if self.ledger.claims().contains_key(&id) {
            self.change(LedgerChange::Claim { id, claim: None });
        }
    }

    /// An event that is given is claimed.
    pub fn claim(&mut self, id: i64, claim: Claim) {
        self.change(LedgerChange::Claim { id, claim: Some(claim) });
    }

    /// An event may be given once its wait is over.
    fn set_ready(&mut self, id: i64) {
        self.set_unready(id);
        let Some(open) = self.open.get_mut(&id) else { return };
        let wait = self.ledger.waits().get(&id);
        let end = wait.map_or(AT_ONCE, |wait| wait.until);
        open.ready = Some(end);
        self.by_end.insert((end, id));
        if wait.is_some_and(|wait| wait.until <= wait.since) {
            self.at_once.insert((end, id));
        }
    }

    /// An event is not to be given for now.
    fn set_unready(&mut self, id: i64) {
        if let Some(end) = self.open.get_mut(&id).and_then(|open| open.ready.take()) {
            self.by_end.remove(&(end, id));
            self.at_once.remove(&(end, id));
        }
    }

    /// Whether a handler has the event.
    pub fn has_given(&self, id: i64) -> bool {
        self.open.get(&id).is_some_and(|open| open.is_given)
    }

    /// The events that handlers have, ascending.
    pub fn unanswered(&self) -> impl Iterator<Item = i64> + '_ {
        self.open.iter().filter(|(_, open)| open.is_given).map(|(id, _)| *id)
    }

    /// How many events handlers have.
    pub fn given(&self) -> usize {
        self.given
    }

    /// Whether an event that nobody has was given before, as far as that is known.
    pub fn was_given(&self, id: i64) -> bool {
        self.ledger.waits().contains_key(&id)
    }

    /// The failed attempts at an event so far, and how often in a row it was deferred.
    pub fn tried(&self, id: i64) -> (u32, u32) {
        self.ledger.waits().get(&id).map_or((0, 0), |wait| (wait.attempts, wait.deferred))
    }

    /// An event that a handler had is finished.
    pub fn finish(&mut self, id: i64) {
        self.set_unready(id);
        let Some(open) = self.open.remove(&id) else { return };
        self.given -= usize::from(open.is_given);
        self.change(LedgerChange::Finish { first: open.from, last: id });
        self.is_over(id, open);
    }

    /// Lets the next event of its key be given once that is stored.
    fn is_over(&mut self, id: i64, open: Open) {
        self.asleep.remove(&id);
        let Some(key) = open.key else { return };
        if let Some(same) = self.keys.get_mut(&key) {
            same.remove(&id);
            match self.is_kept {
                true => _ = self.released.insert(key),
                false => self.release(&key),
            }
        }
    }

    /// Lets the next event of a key be given.
    fn release(&mut self, key: &Key) {
        match self.keys.get(key).and_then(|same| same.first().copied()) {
            None => drop(self.keys.remove(key)),
            Some(next) if !self.has_given(next) => self.set_ready(next),
            Some(_) => {}
        }
    }

    /// An event that a handler had waits before it is given again.
    pub fn wait(&mut self, id: i64, wait: EventWait) {
        if self.ledger.finished_upto(id).is_some() {
            // By somebody else, in the meantime.
            return self.finish(id);
        }
        let Some(open) = self.open.get_mut(&id) else { return };
        self.given -= usize::from(std::mem::take(&mut open.is_given));
        self.change(LedgerChange::Wait { id, wait });
        self.unclaim(id);
        self.set_ready(id);
        self.note_sleep(id);
    }

    /// The clock was set back: what has waited since later than that, and nobody has, began and ends so much earlier.
    pub fn set_back(&mut self, by: TimeDelta, since: Time) {
        let waits =
            self.ledger.waits().iter().filter(|(id, wait)| wait.since > since && !self.has_given(**id));
        let waits: Vec<(i64, EventWait)> = waits.map(|(id, wait)| (*id, wait.clone())).collect();
        for (id, wait) in waits {
            let wait = EventWait { since: wait.since - by, until: wait.until - by, ..wait };
            self.change(LedgerChange::Wait { id, wait });
            if self.open.get(&id).is_some_and(|open| open.ready.is_some()) {
                self.set_ready(id);
            }
        }
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
        std::mem::take(&mut self.released).iter().for_each(|key| self.release(key));
    }

    /// What the store has now, after others have changed it, or after a crash of a server that has lost what was stored
    /// last. What is known to be finished stays so: otherwise an event could be given again after its successors.
    pub fn reload(&mut self, ledger: Ledger) {
        let known = std::mem::replace(&mut self.ledger, ledger);
        let upto_cursor = (self.ledger.cursor().saturating_add(1), known.cursor());
        for (first, last) in std::iter::once(upto_cursor).chain(known.finished()) {
            if first <= last && self.ledger.finished_upto(first).is_none_or(|upto| upto < last) {
                self.change(LedgerChange::Finish { first, last });
            }
        }
        for (id, claim) in known.claims() {
            // Otherwise, somebody has let it wait by hand.
            let is_untouched = self.ledger.waits().get(id) == known.waits().get(id);
            if self.has_given(*id) && is_untouched && !self.ledger.claims().contains_key(id) {
                self.change(LedgerChange::Claim { id: *id, claim: Some(claim.clone()) });
            }
        }
        for change in std::mem::take(&mut self.changes) {
            self.change(change);
        }
        // Somebody else may have finished an event that waits, or one that a handler has.
        let is_over =
            |(id, open): &(&i64, &Open)| !open.is_extra && self.ledger.finished_upto(**id).is_some();
        let finished: Vec<i64> = self.open.iter().filter(is_over).map(|(id, _)| *id).collect();
        finished.into_iter().for_each(|id| self.finish(id));
        let waiting: Vec<i64> = self.by_end.iter().map(|(_, id)| *id).collect();
        waiting.into_iter().for_each(|id| {
            self.set_ready(id);
            self.note_sleep(id);
        });
    }

    /// A handler that was kept has ended without answers to these events, ascending: they are given one at a time from
    /// now on.
    pub fn ended(&mut self, left: &[i64]) {
        self.single_upto = self.single_upto.max(left.last().copied().unwrap_or(0));
    }

    pub fn single_upto(&self) -> i64 {
        self.single_upto
    }
}

#[cfg(test)]
mod tests;
