//! What must hold in every schedule.

use std::rc::Rc;
use std::time::Duration;

use chrono::Utc;
use thread_testkit::simulation::clock::{self, MILLISECOND, SECOND};

use super::processes::Kind;
use super::state::Worker;
use super::world::World;
use crate::model::run::{self, Action};

/// Since when a consumer has been due, while the worker could have started it.
#[derive(Debug, Clone, Copy)]
pub struct Due {
    since: u64,
    /// How long the worker had been busy by then.
    busy: u64,
    /// When the worker was given a notice since then, and how long it had been busy.
    noticed: Option<(u64, u64)>,
}

/// How long a worker may take beyond what it waits for.
const SLACK: u64 = 150 * MILLISECOND;

/// How long it may take after a notice.
const AFTER_NOTICE: u64 = 60 * MILLISECOND;

/// How long a starter may take, which tries locks at every other check only.
const STARTER: u64 = 4 * SECOND;

/// The longest pause after a failure.
const LONGEST_PAUSE: u64 = 61 * SECOND;

/// How long a worker may take to end, besides the grace of handlers.
const LAST_GRACE: u64 = 5 * SECOND;

impl World {
    /// The worker has been given a notice.
    pub fn notices_are_taken(&self, watches: &[i32]) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let at = (clock::now(), state.busy);
        for thread in &mut state.threads {
            // One that has moved is found by the next check.
            let is_known = thread.moved.is_none_or(|moved| clock::now() > moved + SECOND + SLACK);
            if is_known && thread.watch.is_some_and(|watch| watches.contains(&watch)) {
                for due in thread.consumers.iter_mut().filter_map(|consumer| consumer.due.as_mut()) {
                    due.noticed.get_or_insert(at);
                }
            }
        }
    }

    /// A consumer that is due is started in time. Called after time has passed, and before.
    pub fn check_due(self: &Rc<Self>) {
        let mut pending = Vec::new();
        for mut store in self.stores() {
            use crate::store::Store;
            let (newest, now) = (store.newest().unwrap(), Utc::now());
            let all = store.subscriptions().unwrap().into_iter().map(|row| {
                let is_due = run::decide(&row.state, &row.options, true, now) == Action::Start;
                is_due && row.last_acked_id < newest
            });
            pending.push(all.collect::<Vec<bool>>());
        }
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let Some(worker) = state.worker.as_ref().filter(|worker| worker.asked.is_empty()) else {
            state.threads.iter_mut().flat_map(|thread| &mut thread.consumers).for_each(|one| one.due = None);
            return;
        };
        let is_full = worker.most.is_some_and(|most| runs_of(&state.processes, worker.number) >= most);
        let is_starter = worker.is_starter;
        for (at, thread) in state.threads.iter_mut().enumerate() {
            let is_there = thread.place.is_some() && !thread.leaves && thread.fails == 0 && !state.is_away;
            for (number, consumer) in thread.consumers.iter_mut().enumerate() {
                let is_of =
                    |process: &super::processes::Process| process.consumer.as_ref() == Some(&consumer.id);
                let mut processes = state.processes.iter().filter(|process| process.thread == at);
                let is_held = processes.any(|process| is_of(process) && process.lock.is_some());
                if !is_there || is_full || is_held || !pending[at][number] || state.spawn_fails > 0 {
                    consumer.due = None;
                    continue;
                }
                let new = Due { since: clock::now(), busy: state.busy, noticed: None };
                let due = consumer.due.get_or_insert(new);
                let most = match thread.failed {
                    // Failed looks are tried again in growing pauses.
                    Some(failed) if clock::now() < failed + 2 * LONGEST_PAUSE => LONGEST_PAUSE,
                    _ if is_starter => STARTER,
                    _ => SECOND,
                };
                let since =
                    |(since, busy): (u64, u64)| (clock::now() - since).saturating_sub(state.busy - busy);
                let waited = since((due.since, due.busy));
                assert!(
                    waited <= most + SLACK,
                    "consumer {number} of thread {at} has been due for {} ms, and nobody starts it",
                    waited / MILLISECOND
                );
                let noticed = due.noticed.filter(|_| !is_starter && thread.failed.is_none()).map(since);
                assert!(
                    noticed.is_none_or(|after| after <= AFTER_NOTICE),
                    "consumer {number} of thread {at} is due, and was not started after a notice"
                );
            }
        }
    }

    /// A process was started.
    pub fn may_start(&self, number: i64) {
        let state = self.state.borrow();
        let Some(worker) = state.worker.as_ref() else { return };
        let process = state.processes.iter().find(|process| process.number == number).unwrap();
        if process.parent != Some(worker.number) {
            return;
        }
        assert!(!worker.has_waited, "{:?} is started although the worker is to end", process.kind);
        if process.kind == Kind::Supervisor {
            assert_eq!(process.for_worker, worker.most.is_some());
            let runs = runs_of(&state.processes, worker.number);
            assert!(worker.most.is_none_or(|most| runs <= most), "{runs} runs are under way");
        }
    }

    /// A process is asked to end by the worker.
    pub fn may_signal(&self, number: i64) {
        let state = self.state.borrow();
        let worker = state.worker.as_ref().expect("only a worker signals");
        let Some(process) = state.processes.iter().find(|process| process.number == number) else { return };
        assert_eq!(process.parent, Some(worker.number), "a process of others is ended");
        let is_over = clock::now() >= worker.asked[0] + worker.grace || worker.asked.len() > 1;
        assert!(process.terms == 0 || is_over, "a run is ended before its time");
    }

    /// A worker has ended by itself.
    pub fn has_ended(&self, worker: &Worker, began: u64, busy: u64) {
        let state = self.state.borrow();
        assert!(worker.is_stopping, "it ends, and does not say so");
        let asked = *worker.asked.first().expect("nobody has asked it to end");
        let took = (clock::now() - asked.max(began)).saturating_sub(state.busy - busy);
        let most = worker.grace + LAST_GRACE;
        assert!(took <= most + SLACK, "it takes {} ms to end", took / MILLISECOND);
        if took < most {
            let mut left = state.processes.iter().filter(|process| !process.was_killed);
            let left = left.find(|process| process.parent == Some(worker.number));
            assert!(left.is_none(), "it has left {}", left.unwrap().number);
        }
    }

    /// Whether all events were handled, and nothing is under way.
    pub fn is_done(self: &Rc<Self>) -> bool {
        use crate::store::Store;

        {
            let state = self.state.borrow();
            if !state.is_calm || !state.processes.is_empty() {
                return false;
            }
            if state.agenda.all().any(|what| !matches!(what, super::state::What::Process(_))) {
                return false;
            }
        }
        self.stores().iter_mut().all(|store| {
            let newest = store.newest().unwrap();
            let rows = store.subscriptions().unwrap();
            rows.iter().all(|row| row.last_acked_id == newest) && store.count_scheduled().unwrap() == 0
        })
    }

    /// So long it may be calm until all is done.
    pub fn check_calm(&self) {
        let state = self.state.borrow();
        let most = u64::try_from(Duration::from_secs(300).as_nanos()).unwrap();
        let is_late = state.is_calm && clock::now() - state.calm_since > most;
        assert!(!is_late, "it takes too long until nothing is left");
    }
}

/// How many runs a worker has.
fn runs_of(processes: &[super::processes::Process], worker: i64) -> usize {
    let is_run = |process: &&super::processes::Process| {
        process.kind == Kind::Supervisor && process.parent == Some(worker) && !process.was_killed
    };
    processes.iter().filter(is_run).count()
}
