//! Waking up events whose handlers wait for another event. The process that attends to the waits of a thread does so: its
//! [timer](super::timer) or a [worker](super::worker).
//!
//! It only looks whether there is such an event, and ends the sleep. The handler finds it again, and stores it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use chrono::Utc;

use super::control;
use crate::error::Result;
use crate::files::log::log;
use crate::model::filter::{Filter, Scope};
use crate::model::ledger::{Asleep, Ledger, LedgerChange};
use crate::model::run::{Phase, RunState};
use crate::model::step::Step;
use crate::model::subscription::{ConsumerId, Subscription};
use crate::queue::Queue;
use crate::store::{RunUpdate, ScanRange, StepChange, StepsOf};

/// How far a filter was evaluated is stored after so many ids.
const REMEMBER_AFTER: i64 = 4096;

/// What waits for events in a thread.
#[derive(Debug, Default)]
pub(super) struct Awaits {
    /// How far the filter of each was evaluated.
    seen: HashMap<(ConsumerId, i64, String), i64>,
}

/// Whether anything waits for an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaited {
    Nothing,
    /// All filters were evaluated on all events.
    Something,
    /// There was not enough time for that.
    More,
}

impl Awaits {
    /// Wakes up those for which an event has come, as far as there is time. The consumers are to be started then.
    pub fn look(&mut self, queue: &mut Queue, time: Duration) -> Result<Awaited> {
        let of = StepsOf { only_awaits: true, ..StepsOf::default() };
        let steps = if queue.store.has_steps()? { queue.store.steps(of)? } else { Vec::new() };
        if steps.is_empty() {
            self.seen.clear();
            return Ok(Awaited::Nothing);
        }
        let (end, newest) = (Instant::now() + time, queue.newest()?.0);
        let (mut awaited, mut consumer, mut seen) = (Awaited::Nothing, None, HashMap::new());
        for step in steps {
            if consumer.as_ref().is_none_or(|(name, _)| *name != step.consumer) {
                consumer = Some((step.consumer.clone(), Sleeper::load(queue, &step.consumer)?));
            }
            let Some((_, Some(sleeper))) = &consumer else { continue };
            if !sleeper.awaits(step.event_id) {
                continue;
            }
            let key = (step.consumer.clone(), step.event_id, step.name.clone());
            let mut upto = self.seen.get(&key).copied().unwrap_or(0).max(step.scanned);
            if awaited == Awaited::Nothing {
                awaited = Awaited::Something;
            }
            if upto < newest && Instant::now() >= end {
                awaited = Awaited::More;
            } else if upto < newest && evaluate(queue, &step, &mut upto, newest, end)? {
                // If somebody else changes the row first, that is seen at the next look.
                let is_awake = sleeper.wake(queue, step.event_id)?;
                log!(queue, Info, "await: consumer={} id={} is over", step.consumer, step.event_id);
                consumer = None;
                if !is_awake {
                    awaited = Awaited::More;
                }
            } else if upto < newest {
                awaited = Awaited::More;
            }
            seen.insert(key, upto);
        }
        self.seen = seen;
        Ok(awaited)
    }
}

/// Evaluates the filter of a step on further events. Returns whether one has come; `upto` is moved to where nothing
/// matches.
fn evaluate(queue: &mut Queue, step: &Step, upto: &mut i64, newest: i64, end: Instant) -> Result<bool> {
    let text = step.filter.as_deref().unwrap_or_default();
    // One that another program has stored may be broken. It matches nothing.
    let Ok(Some(filter)) = Filter::new(text, Scope::Subscription) else {
        *upto = newest;
        return Ok(false);
    };
    let range = ScanRange { after: *upto, upto: newest, most: 1, until: Some(end) };
    let scan = queue.store.scan(&filter, range)?;
    if let Some(id) = scan.ids.first() {
        *upto = id - 1;
        return Ok(true);
    }
    *upto = scan.upto.max(*upto);
    if *upto - step.scanned >= REMEMBER_AFTER {
        let scanned = Step { scanned: *upto, ..step.clone() };
        // Another process that changes it does so for a better reason.
        queue.store.change_step(&StepChange::to(Some(step), scanned))?;
    }
    Ok(false)
}

/// A consumer some of whose events may sleep.
struct Sleeper {
    current: Subscription,
    ledger: Ledger,
}

impl Sleeper {
    fn load(queue: &mut Queue, consumer: &ConsumerId) -> Result<Option<Sleeper>> {
        let Some(current) = queue.store.subscription(consumer)? else { return Ok(None) };
        // Read after the row, whose change would be noticed.
        let ledger = match current.options.finishes_singly() {
            true => queue.store.ledger(consumer)?,
            false => Ledger::default(),
        };
        Ok(Some(Sleeper { current, ledger }))
    }

    /// Whether the event sleeps, or will at the end of its run, until another event comes.
    fn awaits(&self, id: i64) -> bool {
        let (state, now) = (&self.current.state, Utc::now());
        let is_marked = state.asleep.get(&id).is_some_and(|sleep| sleep.awaits && sleep.until > now);
        let waits = self.ledger.waits().get(&id);
        let is_waiting = waits.is_some_and(|wait| wait.asleep == Asleep::Awaits && !wait.is_over(now));
        (is_marked && self.is_marking()) || is_waiting
    }

    /// Whether marks of the row count: a wait may have been ended otherwise.
    fn is_marking(&self) -> bool {
        let options = &self.current.options;
        matches!(self.current.state.phase, Phase::Running | Phase::Waiting) || options.is_taken_from()
    }

    /// Ends the sleep of an event. Returns whether that is stored.
    fn wake(&self, queue: &mut Queue, id: i64) -> Result<bool> {
        let (current, now) = (&self.current, Utc::now());
        let mut update = RunUpdate::state(current.state.clone());
        if let Some(sleep) = update.state.asleep.get_mut(&id) {
            sleep.until = now;
            if current.state.phase == Phase::Waiting && !current.options.finishes_singly() {
                update.state = RunState { next_try: Some(now), since: Some(now), ..update.state };
            }
        }
        if let Some(wait) = self.ledger.waits().get(&id) {
            let mut wait = wait.clone();
            (wait.since, wait.until) = (now, now);
            update.ledger = vec![LedgerChange::Wait { id, wait }];
        }
        let is_awake = queue.store.update_run(current, &update)?.is_some();
        control::notify_supervisors(queue);
        Ok(is_awake)
    }
}
