//! What must hold in every schedule.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use chrono::Utc;
use thread_testkit::say;
use thread_testkit::simulation::clock::{self, MILLISECOND, SECOND};

use super::handlers::{Handler, Says};
use super::state::{Role, State};
use super::world::World;
use crate::model::run::{BAD_EVENT, Deliver, Exit, Options, Phase, ProcessId};
use crate::store::Store;

/// What is known without asking the store.
#[derive(Debug, Default)]
pub struct Rules {
    /// The key of each event.
    pub keys: BTreeMap<i64, u64>,
    /// What handlers have said that they have done, since the cursor was set.
    pub done: BTreeSet<i64>,
    /// What handlers have said to be bad.
    judged: BTreeSet<i64>,
    /// The dead letters that were made.
    dead: BTreeSet<i64>,
    /// The cursor was set to here.
    set_to: i64,
    /// What somebody has acknowledged by hand.
    by_hand: BTreeSet<i64>,
    /// A stop was to acknowledge what handlers have.
    pub skips: bool,
    /// How often each event was given.
    given: BTreeMap<i64, u32>,
    /// When the wait of an event is over, at the earliest.
    not_before: BTreeMap<i64, u64>,
    /// How often it is not known what was given: a process was killed, or a handler ended that is kept.
    unclear: u32,
    /// The most places and the largest size so far.
    most: (usize, usize),
}

impl Rules {
    pub fn new(options: &Options) -> Rules {
        let mut rules = Rules::default();
        rules.were_adjusted(options);
        rules
    }

    pub fn were_adjusted(&mut self, options: &Options) {
        let places = options.concurrency.unwrap_or(1) as usize;
        self.most = (self.most.0.max(places), self.most.1.max(options.batch_size as usize));
        self.waits_are_over();
    }

    /// Somebody has acknowledged an event. Returns whether it is a dead letter.
    pub fn was_acknowledged(&mut self, id: i64) -> bool {
        self.done.insert(id);
        self.by_hand.insert(id);
        self.dead.contains(&id)
    }

    /// Somebody has put off an event that nobody has.
    pub fn is_put_off(&mut self, id: i64, wait: Duration) {
        self.not_before.insert(id, clock::now() + wait.as_nanos() as u64);
    }

    /// Waits are ended, or it is not known when they end.
    pub fn waits_are_over(&mut self) {
        self.not_before.clear();
    }

    pub fn was_killed(&mut self) {
        self.unclear += 1;
        self.waits_are_over();
    }
}

impl State {
    /// The cursor was set. `is_void`: what handlers have said is forgotten.
    pub fn cursor_was_set(&mut self, to: i64, is_void: bool) {
        self.rules.waits_are_over();
        self.rules.set_to = if is_void { to } else { to.max(self.rules.set_to) };
        for handler in &mut self.handlers {
            // Moved forward, it is progress.
            handler.is_without_wait = true;
            handler.is_void |= is_void;
        }
        if is_void {
            self.rules.done.clear();
        }
    }

    /// A handler that is kept has answered.
    pub fn has_answered(&mut self, at: usize, id: i64, says: Says) {
        let handler = &mut self.handlers[at];
        handler.has.remove(&id);
        if handler.is_void || handler.is_orphan {
            return;
        }
        match says {
            Says::Ack => _ = self.rules.done.insert(id),
            Says::Reject => _ = self.rules.judged.insert(id),
            // Then it is dead, or the consumer is stalled.
            Says::Nack
                if self.rules.given.get(&id).is_some_and(|given| *given >= self.options.max_attempts) => {}
            Says::Nack | Says::Later => {
                let wait = if says == Says::Nack { 1 } else { 2 };
                self.rules.not_before.insert(id, clock::now() + wait * SECOND);
            }
        }
    }

    /// A handler has ended.
    pub fn has_ended(&mut self, handler: &Handler, exit: Exit) {
        self.rules.unclear += u32::from(handler.is_kept());
        if handler.is_kept() && (!self.options.is_pool() || self.was_asked) {
            // For how long it has put off a dead letter is not stored: the consumer waits, but not longer than once.
            let Rules { not_before, dead, .. } = &mut self.rules;
            not_before.retain(|id, _| !dead.contains(id));
        }
        if handler.is_void || handler.is_kept() {
            return;
        }
        match exit {
            Exit::Code(0) => self.rules.done.extend(&handler.has),
            Exit::Code(BAD_EVENT) => self.rules.judged.extend(&handler.has),
            Exit::Code(1) if !self.may.cut_short() && handler.ends.is_none() && !handler.is_without_wait => {
                let until = clock::now() + SECOND;
                self.rules.not_before.extend(handler.has.iter().map(|id| (*id, until)));
            }
            _ => {}
        }
    }
}

impl World {
    /// A handler is given these events.
    pub fn are_given(self: &Rc<Self>, pid: i32, ids: &[i64]) {
        let (row, ledger) = (self.row(), self.store().ledger(&self.consumer).unwrap());
        // The cursor was set since it was decided to give them.
        let is_void = row.state.start_rewinds != row.rewinds;
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        if !ids.is_empty() {
            say!("handler {pid} is given {ids:?}");
        }
        let (places, size) = state.rules.most;
        assert!(state.handlers.len() <= places, "{} handlers are at work", state.handlers.len());
        for &id in ids {
            let is_finished = |id: i64| ledger.finished_upto(id).is_some();
            let rules = &state.rules;
            let is_known = rules.dead.contains(&id) || rules.by_hand.contains(&id) || id <= rules.set_to;
            assert!(!is_finished(id) || is_known, "{id} is finished, and given again");
            if is_finished(id) && rules.by_hand.contains(&id) && !rules.dead.contains(&id) {
                // It was acknowledged by hand on its way: its key is free.
                *state.rules.given.entry(id).or_default() += 1;
                continue;
            }
            let any_order = is_void || is_finished(id) || rules.dead.contains(&id);
            let elsewhere = state.handlers.iter().find(|handler| handler.has.contains(&id));
            assert!(elsewhere.is_none(), "{id} is at two handlers");
            let (options, keys) = (&state.options, &state.rules.keys);
            if options.key.is_some() {
                let same = |other: &i64| keys[other] == keys[&id];
                let mut all = state.handlers.iter().flat_map(|handler| &handler.has);
                assert!(!all.any(same), "two of the key of {id} are at handlers");
                let mut before = (1..id).filter(same);
                assert!(any_order || before.all(is_finished), "{id} is given before an older one of its key");
            } else if !options.is_pool() && (options.deliver == Deliver::Stdin || options.is_in_order()) {
                let mut before = (1..id).filter(|other| !ids.contains(other));
                // If the handler is kept, after the answer, which may not be stored yet.
                let is_out = |id| rules.given.get(&id).is_some_and(|given| *given >= options.max_attempts);
                let is_answered = |id| rules.done.contains(&id) || rules.judged.contains(&id) || is_out(id);
                let is_kept = options.deliver == Deliver::Ndjson;
                let is_over = |id| is_finished(id) || (is_kept && is_answered(id));
                assert!(any_order || before.all(is_over), "{id} is given before an older one");
            }
            let early = state.rules.not_before.get(&id).filter(|at| **at > clock::now());
            let early = early.map(|at| (at - clock::now()) / MILLISECOND);
            assert!(early.is_none(), "{id} is given {early:?} ms before its wait is over");
            *state.rules.given.entry(id).or_default() += 1;
            let handler = state.handlers.iter_mut().find(|handler| handler.pid == pid).unwrap();
            handler.has.insert(id);
            handler.is_void |= is_void;
            assert!(handler.has.len() <= size, "handler {pid} has {:?}", handler.has);
        }
    }

    /// What is stored is what handlers have said, and no more.
    pub fn check(self: &Rc<Self>) {
        let mut store = self.store();
        let ledger = store.ledger(&self.consumer).unwrap();
        let letters = store.dead_letters(Some(&self.consumer)).unwrap();
        let newest = store.newest().unwrap();
        let mut state = self.state.borrow_mut();
        let max_attempts = i64::from(state.options.max_attempts);
        let is_claimed_first = state.options.deliver == Deliver::Ndjson || state.options.is_pool();
        let rules = &mut state.rules;
        for letter in letters {
            let (id, attempts) = (letter.event_id, letter.attempts);
            let given = rules.given.get(&id).copied().unwrap_or(0);
            let most = i64::from(given + rules.unclear);
            assert!(attempts <= most, "{id} was given {given} times, and is dead after {attempts}");
            let is_due = attempts >= max_attempts || rules.judged.contains(&id);
            assert!(is_due, "{id} is dead after {attempts} attempts");
            rules.dead.insert(id);
        }
        // What a kept handler had that has ended before it read that, or what a pool had claimed for a run that did not begin.
        let mut unread = if rules.skips && is_claimed_first { rules.most.0 * rules.most.1 } else { 0 };
        for id in (1..=newest).filter(|id| ledger.finished_upto(*id).is_some()) {
            let is_skipped = rules.skips && rules.given.contains_key(&id);
            let is_over = rules.done.contains(&id) || rules.dead.contains(&id) || id <= rules.set_to;
            if !is_over && !is_skipped {
                assert!(unread > 0, "{id} is finished, and nobody has said so");
                unread -= 1;
            }
        }
    }

    /// A process is about to wait for long, and no handler has anything to do: then nothing may be left that could be
    /// given.
    pub fn nobody_sleeps_over(self: &Rc<Self>, timeout: u64) {
        let is_supervisor = matches!(self.state.borrow().role, Some((Role::Supervisor, _)));
        if !is_supervisor || timeout < 100 * MILLISECOND {
            return;
        }
        let (row, mut store) = (self.row(), self.store());
        let ledger = store.ledger(&self.consumer).unwrap();
        let waits = ledger.waits().values().any(|wait| !wait.is_over(Utc::now()));
        let is_held = row.state.paused || row.state.stop.is_some() || row.dead_to_retry > 0;
        if row.state.phase != Phase::Running || is_held || waits {
            return;
        }
        let newest = store.newest().unwrap();
        let left: Vec<i64> = (1..=newest).filter(|id| ledger.finished_upto(*id).is_none()).collect();
        assert!(
            left.is_empty(),
            "a supervisor waits for {} ms, though {left:?} are left",
            timeout / MILLISECOND
        );
    }

    /// At the end.
    pub fn nothing_is_left(self: &Rc<Self>) {
        self.check();
        let (row, mut store) = (self.row(), self.store());
        let ledger = store.ledger(&self.consumer).unwrap();
        let newest = store.newest().unwrap();
        let left: Vec<i64> = (1..=newest).filter(|id| ledger.finished_upto(*id).is_none()).collect();
        assert!(left.is_empty(), "{left:?} are left, and nobody attends to them");
        assert_eq!(row.dead_to_retry, 0, "dead letters are left that were to be tried again");
        assert!(ledger.is_plain(), "{ledger:?}");
        // A supervisor that is killed once all is acknowledged leaves that for the next one to see.
        let is_alive = |process: &ProcessId| self.state.borrow().alive.contains(&process.start);
        let at_work = row.state.supervisor.filter(is_alive);
        assert!(row.state.phase != Phase::Running || at_work.is_none(), "{at_work:?} is left");
        assert!(self.state.borrow().handlers.is_empty(), "handlers are left");
    }
}
