//! Storing answers, and the end of a run.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use chrono::Utc;

use super::places::Place;
use super::{COLLECT, Closing, Pool, SYNC_EVERY, Supervisor, open};
use crate::error::Result;
use crate::files::log::{Quoted, log};
use crate::model::figures::Figures;
use crate::model::ledger::{Asleep, Ledger, LedgerChange};
use crate::model::run::{Deliver, Exit, Phase, Run, RunResult, RunState, STOPPED};
use crate::model::subscription::Subscription;
use crate::model::time::Time;
use crate::model::window::Window;
use crate::queue::Queue;
use crate::run::control;
use crate::run::settle::{Failed, Tally, fail};
use crate::store::{DeadLetterUpdate, RunUpdate};

/// What the consumer does after a run.
pub(super) enum Then {
    Idle,
    Wait(Time),
    Stall(String),
}

impl Supervisor<'_> {
    /// Records that the supervisor of handlers whose events finish singly was killed. The next one looks at those that
    /// are claimed. What a handler had that was kept is not known; if nothing was finished, the oldest event that is
    /// pending has used an attempt.
    pub(in crate::run::supervisor) fn record_abandoned_pool(
        &self,
        queue: &mut Queue,
        subscription: &Subscription,
    ) -> Result<Option<Subscription>> {
        if subscription.options.deliver != Deliver::Ndjson {
            // Runs that go on may have left theirs.
            let asleep = subscription.state.asleep.clone();
            let update = RunUpdate::state(RunState { asleep, ..subscription.state.idle() });
            return queue.store.update_run(subscription, &update);
        }
        let first = queue.scan_pending(subscription, None).ok().and_then(|scan| scan.first);
        let ledger = queue.store.ledger(self.consumer)?;
        let mut window = Window::new(ledger, &subscription.options, subscription.single_upto());
        // One that waits was not at the handler.
        let waits = |id: &i64| window.ledger().waits().get(id).is_some_and(|wait| !wait.is_over(Utc::now()));
        let first = first.filter(|id| !waits(id));
        if let Some(id) = first {
            window.found(id, None);
            window.give_again(id);
        }
        let mut update = RunUpdate::state(subscription.state.idle());
        let mut stalls = None;
        if subscription.last_acked_id == subscription.state.start_cursor {
            let mut tally = Tally::default();
            let failed = Failed {
                exit: Exit::Unknown,
                counts: true,
                judged: false,
                delay: None,
                error: String::new(),
                at: Utc::now(),
                took: None,
            };
            if let Some(id) = first {
                stalls = fail(
                    &mut window,
                    &mut tally,
                    subscription,
                    id,
                    failed,
                    &mut update.dead_letters,
                    &mut update.runs,
                );
            }
            update.state = tally.applied_to(&update.state);
            update.figures = tally.counted();
        }
        let (now, reached) = (Utc::now(), subscription.state.start_newest);
        update.state.single_upto =
            window.single_upto().max(reached.min(first.unwrap_or(0).saturating_add(1000)));
        update.state.ended = Some(now);
        update.state.last_exit = Some(Exit::Unknown);
        if let Some(why) = stalls {
            update.state.start_newest = queue.store.newest()?;
            update.state = update.state.stalled(&why);
        }
        update.runs.push(Run {
            number: 0,
            began: subscription.state.since.unwrap_or(now),
            ended: now,
            attempt: 1,
            events: None,
            upto: window.ledger().cursor(),
            result: RunResult::Unknown,
            exit: None,
            output: None,
            host: None,
            tail: None,
        });
        update.ledger = window.changes().to_vec();
        update.durable = true;
        queue.store.update_run(subscription, &update)
    }
}

impl Pool<'_, '_> {
    /// Takes over what is stored. Returns false if the run is over for the store: the subscription or the cursor was
    /// changed, or another process has recorded its end.
    pub(super) fn accept(&mut self, now: Option<Subscription>) -> Result<bool> {
        let Some(now) = now else { return Ok(false) };
        let is_ours = now.is_same(&self.current)
            && now.rewinds == self.current.rewinds
            && now.state.phase == Phase::Running
            && self.is_ours(&now);
        if !is_ours {
            return Ok(false);
        }
        if now.revision != self.current.revision || now.last_acked_id != self.current.last_acked_id {
            let supervisor = self.supervisor;
            let queue = open(supervisor, &mut self.queue)?;
            let ledger = supervisor.retrying(|| queue.store.ledger(supervisor.consumer))?;
            match self.supervisor.machine() {
                Some(own) => self.share(ledger, own),
                None => self.reload(ledger),
            }
            if !self.window.changes().is_empty() {
                self.changed.get_or_insert_with(Instant::now);
            }
            self.is_exhausted = false;
            // What others have finished.
            let (window, kept) = (&self.window, self.places.iter_mut().filter(|place| place.pipes.is_some()));
            kept.for_each(|place| place.given.retain(|id, _| window.has_given(*id)));
        }
        if now.options != self.current.options {
            self.window.adjust(&now.options);
            self.is_exhausted = false;
            self.raise_limits(&now.options);
        }
        self.uses_steps |= !now.state.asleep.is_empty();
        self.current = now;
        if self.asks > self.most_places() {
            // Decided on old numbers. What still holds is stored at once: others may change the row all the time.
            self.asks = 0;
        }
        self.find_others_keys()?;
        self.note_places();
        if self.is_joined() {
            if self.is_kept() {
                self.window.ended(&[self.current.single_upto()]);
            }
            if let Some(why) = self.current.state.reason.clone().filter(|_| self.stalls.is_none()) {
                self.stall(why);
            }
        }
        self.close_surplus();
        Ok(true)
    }

    /// Takes over what others have stored. What they have put off is not given, unless a handler has it already.
    fn reload(&mut self, ledger: Ledger) {
        let wait_of = |window: &Window, id| window.ledger().waits().get(&id).cloned();
        let due = self.due.iter().flat_map(|due| &due.events);
        let known: Vec<_> = due.map(|id| (*id, wait_of(&self.window, *id))).collect();
        self.window.reload(ledger);
        for (id, wait) in known {
            if wait_of(&self.window, id) != wait {
                self.window.give_back(id);
            }
        }
    }

    /// Stores what has been collected long enough. What the ends of runs on stdin have changed is stored at once, with
    /// the claims of the next ones.
    pub(super) fn store_when_due(&mut self) -> Result<()> {
        let is_held = |place: &Place| !place.held.is_empty() && place.held.len() == place.given.len();
        // Others wait while this machine has its turn.
        let has_turn = std::mem::take(&mut self.was_refused);
        let waits = self.is_kept() && !has_turn && !self.places.iter().any(is_held);
        let collect = if waits { COLLECT } else { Duration::ZERO };
        if self.changed.is_some_and(|since| since.elapsed() >= collect) {
            self.store()?;
        }
        Ok(())
    }

    /// Stores what has changed.
    pub(super) fn store(&mut self) -> Result<()> {
        if self.changed.is_none() {
            return Ok(());
        }
        let durable = self.unsynced.is_some_and(|since| since.elapsed() >= SYNC_EVERY);
        let (batch, start_newest) = (self.window.given() as u64, self.window.reached());
        let state = RunState { batch, start_newest, ..self.tally.applied_to(&self.current.state) };
        self.record(state, durable)
    }

    /// Makes what is stored survive a power cut.
    pub(super) fn sync(&mut self) -> Result<()> {
        match self.unsynced {
            Some(_) => self.record(self.current.state.clone(), true),
            None => Ok(()),
        }
    }

    /// Records a state with all that has changed.
    pub(super) fn record(&mut self, mut state: RunState, durable: bool) -> Result<()> {
        let supervisor = self.supervisor;
        while !self.is_void() {
            self.claim_given();
            // What others must not give has to survive a crash of the server.
            let durable = durable || (self.has_others() && !self.unstored.is_empty());
            let update = RunUpdate {
                state: self.with_crew(state.clone()),
                ledger: self.window.changes().to_vec(),
                dead_letters: self.dead_letters.clone(),
                runs: self.runs.clone(),
                figures: self.tally.counted(),
                durable,
                ..RunUpdate::default()
            };
            let queue = open(supervisor, &mut self.queue)?;
            if let Some(now) = supervisor.retrying(|| queue.store.update_run(&self.current, &update))? {
                let before = self.crew_known();
                self.current = now;
                self.tell_others(before)?;
                self.unsynced = if durable { None } else { self.unsynced.or_else(|| Some(Instant::now())) };
                break;
            }
            (self.was_refused, self.looks_again) = (true, true);
            let has_others = self.has_others();
            let queue = open(supervisor, &mut self.queue)?;
            if has_others {
                // They may be quicker, so that this machine would never have the newest row.
                supervisor.retrying(|| queue.store.hold(supervisor.consumer))?;
            }
            let now = supervisor.retrying(|| queue.store.subscription(supervisor.consumer))?;
            if !self.accept(now)? {
                // What was done is recorded at the end.
                self.close(Closing::Void);
            }
            state = RunState {
                start_newest: self.window.reached(),
                ..self.tally.applied_to(&self.current.state)
            };
        }
        if self.is_void() {
            (self.changed, self.unsynced) = (None, None);
            self.due.clear();
            return Ok(());
        }
        self.log_dead_letters();
        let is_awaiting = |change: &LedgerChange| match change {
            LedgerChange::Wait { wait, .. } => wait.asleep == Asleep::Awaits,
            _ => false,
        };
        if self.window.changes().iter().any(is_awaiting) {
            // This process ends other waits by itself.
            supervisor.attend()?;
        }
        self.window.stored();
        self.runs.clear();
        self.tally = Tally::default();
        self.changed = None;
        self.hand_out();
        Ok(())
    }

    /// Says which events became dead letters, once that is stored.
    pub(super) fn log_dead_letters(&mut self) {
        let consumer = self.supervisor.consumer;
        for letter in std::mem::take(&mut self.dead_letters) {
            if let DeadLetterUpdate::Insert { event_id, attempts, .. } = letter {
                log!(
                    self.supervisor.files,
                    Warn,
                    "dispatch: consumer={consumer} id={event_id} is a dead letter attempts={attempts}"
                );
            }
        }
    }

    /// Takes over what others have changed.
    pub(super) fn look_again(&mut self) -> Result<()> {
        let supervisor = self.supervisor;
        let queue = open(supervisor, &mut self.queue)?;
        let now = supervisor.retrying(|| queue.store.subscription(supervisor.consumer))?;
        if !self.accept(now)? {
            self.close(Closing::Void);
        }
        Ok(())
    }

    /// Records that no handler is at work any more.
    pub(super) fn ended(mut self) -> Result<()> {
        let supervisor = self.supervisor;
        if !self.is_void() {
            self.look_again()?;
        }
        let is_stopped = !self.is_void() && self.current.state.stop.is_some();
        if is_stopped {
            self.then = Then::Stall(STOPPED.to_owned());
        } else if let Some(why) = self.stalls.take() {
            self.then = Then::Stall(why);
        }
        let newest = match &self.then {
            _ if is_stopped => {
                let queue = open(supervisor, &mut self.queue)?;
                supervisor.retrying(|| queue.store.newest())?
            }
            // What came during the run is new.
            Then::Stall(_) => self.newest,
            Then::Idle | Then::Wait(_) => 0,
        };
        // The end of a wait was found by the same clock: one that was set back since would make it longer.
        let now = self.now();
        let finish = |pool: &Pool<'_, '_>| {
            let state = pool.tally.applied_to(&pool.current.state);
            let start_newest = pool.window.reached().max(newest);
            if pool.is_joined() {
                let start_newest = start_newest.max(state.start_newest);
                return pool.left_to_others(RunState { start_newest, ..state });
            }
            let state = RunState {
                single_upto: pool.window.single_upto(),
                start_newest,
                deferred: pool.deferred,
                ..pool.without_crew(state).idle()
            };
            match &pool.then {
                // It was asked for at the last moment.
                _ if pool.current.state.stop.is_some() => state.stalled(STOPPED),
                Then::Wait(until) if *until > now => {
                    RunState { phase: Phase::Waiting, since: Some(now), next_try: Some(*until), ..state }
                }
                Then::Idle | Then::Wait(_) => state,
                Then::Stall(why) => state.stalled(why),
            }
        };
        if self.is_void() || !self.record_end(&finish)? {
            self.record_void(Utc::now())?;
        }
        self.failed.map_or(Ok(()), Err)
    }

    /// Records the end of a run whose answers count no more. If the subscription was replaced, there is nothing to
    /// record.
    fn record_void(&mut self, now: Time) -> Result<()> {
        let supervisor = self.supervisor;
        let (runs, seen, tally) = (std::mem::take(&mut self.runs), &self.current, &self.tally);
        let queue = open(supervisor, &mut self.queue)?;
        supervisor
            .retrying(|| {
                let newest = queue.store.newest()?;
                control::update(queue, seen, |current| {
                    let own = supervisor.machine();
                    let is_ours = current.state.phase == Phase::Running
                        && match own {
                            Some(own) => current.state.crews.contains_key(own),
                            None => current.state.supervisor == seen.state.supervisor,
                        };
                    let state = own.map_or(current.state.clone(), |own| current.state.without_crew(own));
                    let left = Subscription { state, ..current.clone() };
                    let is_last = !supervisor.is_at_work_elsewhere(&left);
                    let state = if is_last { left.state.left_by_all(newest) } else { left.state };
                    // What sleeps was given by a run that counts no more.
                    let asleep = if is_last { BTreeMap::new() } else { state.asleep.clone() };
                    let state = RunState { ended: Some(now), asleep, ..tally.runs_applied_to(&state) };
                    let cancel_retries = is_last && current.state.stop.is_some();
                    // What it has answered may be given again.
                    let (runs, figures) = (runs.clone(), tally.counted());
                    let figures = figures.map(|(at, figures)| (at, Figures { handled: 0, ..figures }));
                    let update =
                        RunUpdate { runs, figures, cancel_retries, durable: true, ..RunUpdate::state(state) };
                    is_ours.then_some(update)
                })
            })
            .map(drop)
    }

    /// Records the end of the run with all that has changed. Returns false if its answers count no more.
    fn record_end(&mut self, finish: &dyn Fn(&Pool<'_, '_>) -> RunState) -> Result<bool> {
        let supervisor = self.supervisor;
        loop {
            let update = RunUpdate {
                state: finish(self),
                ledger: self.window.changes().to_vec(),
                dead_letters: self.dead_letters.clone(),
                runs: self.runs.clone(),
                figures: self.tally.counted(),
                cancel_retries: self.current.state.stop.is_some() && !self.is_joined(),
                durable: true,
                ..RunUpdate::default()
            };
            let queue = open(supervisor, &mut self.queue)?;
            if let Some(recorded) = supervisor.retrying(|| queue.store.update_run(&self.current, &update))? {
                if recorded.state.phase == Phase::Stalled {
                    let reason = Quoted(recorded.state.reason.as_deref().unwrap_or_default());
                    log!(
                        supervisor.files,
                        Warn,
                        "dispatch: consumer={} stalled reason={reason}",
                        supervisor.consumer
                    );
                }
                self.log_dead_letters();
                return Ok(true);
            }
            let now = supervisor.retrying(|| queue.store.subscription(supervisor.consumer))?;
            if !self.accept(now)? {
                return Ok(false);
            }
        }
    }
}
