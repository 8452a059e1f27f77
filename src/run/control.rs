//! Pausing and resuming consumers, and notifying supervisors of changes.

use std::time::Duration;

use chrono::Utc;

use super::process::{Liveness, handler_of, supervisor_of};
use crate::error::{Error, Result};
use crate::files::{CONTROL, Files};
use crate::model::ledger::{EventWait, LedgerChange};
use crate::model::run::{Phase, RunState};
use crate::model::subscription::{ConsumerId, Subscription};
use crate::pending::checked_filter;
use crate::queue::Queue;
use crate::store::{DeadLetterUpdate, Notice, RunUpdate};

/// Notifies all supervisors of a thread that a consumer's row has changed. They watch a file rather
/// than handle signals, so that supervisors in another container are notified too.
pub fn notify_supervisors(queue: &mut Queue) {
    // If this fails, a supervisor still reads the row when its run or wait is over.
    drop(queue.files.touch(CONTROL));
    queue.store.announce(Notice::Asked);
}

/// Pauses a consumer. A run in progress continues.
///
/// # Errors
///
/// [`Error::UnknownConsumer`].
pub fn pause(queue: &mut Queue, consumer: &ConsumerId) -> Result<Subscription> {
    change(queue, consumer, Vec::new(), |_, current| RunState { paused: true, ..current.state.clone() })
}

/// Ends any wait, stall or pause, and resets the attempt counts. A run in progress continues.
///
/// # Errors
///
/// [`Error::UnknownConsumer`].
pub fn resume(queue: &mut Queue, consumer: &ConsumerId) -> Result<Subscription> {
    let waits = match queue.subscription(consumer)?.options.finishes_singly() {
        true => queue.store.ledger(consumer)?.waits().keys().copied().collect(),
        false => Vec::new(),
    };
    let now = Utc::now();
    let over = |id| {
        let wait = EventWait { since: now, until: now, ..EventWait::default() };
        LedgerChange::Wait { id, wait }
    };
    let ledger = waits.into_iter().map(over).collect();
    change(queue, consumer, ledger, |files, current| {
        let state = &current.state;
        let fresh = RunState {
            paused: false,
            attempts: 0,
            deferred: 0,
            reason: None,
            next_try: None,
            dead_streak: 0,
            judged_streak: 0,
            ..state.clone()
        };
        let under_way =
            supervisor_of(files, current) != Liveness::Dead || handler_of(files, current) != Liveness::Dead;
        match state.phase {
            Phase::Running if under_way => RunState { attempts: state.attempts.min(1), ..fresh },
            _ => RunState { phase: Phase::Idle, ..fresh },
        }
    })
}

/// Ends the wait of a single event, where events finish singly, and resets its attempts.
///
/// # Errors
///
/// [`Error::UnknownConsumer`]; [`Error::NotPending`] if it is finished, or not one of the consumer's.
pub fn resume_event(queue: &mut Queue, consumer: &ConsumerId, id: i64) -> Result<Subscription> {
    let ledger = queue.store.ledger(consumer)?;
    let subscription = queue.subscription(consumer)?;
    if !is_one_of(queue, &subscription, id)? || ledger.finished_upto(id).is_some() {
        return Err(Error::NotPending { consumer: consumer.clone(), id });
    }
    let now = Utc::now();
    let wait = EventWait { since: now, until: now, ..EventWait::default() };
    // Otherwise it does not wait.
    let over = ledger.waits().contains_key(&id).then_some(LedgerChange::Wait { id, wait });
    change(queue, consumer, over.into_iter().collect(), |_, current| current.state.clone())
}

/// Marks finished events to be given to the consumer once more, as dead letters are that are retried: each alone, and
/// without a change of the cursor. Call [`wake_consumer`](super::wake::wake_consumer) afterwards.
///
/// # Errors
///
/// [`Error::UnknownConsumer`], [`Error::PopsForItself`]; [`Error::NotItsEvent`] or [`Error::StillPending`] for one of the
/// events, and then none is marked.
pub fn redo(queue: &mut Queue, consumer: &ConsumerId, ids: &[i64]) -> Result<()> {
    let ledger = queue.store.ledger(consumer)?;
    let subscription = queue.subscription(consumer)?;
    if !subscription.options.retries_dead_letters() {
        return Err(Error::PopsForItself(consumer.clone()));
    }
    for &id in ids {
        let consumer = || consumer.clone();
        if !is_one_of(queue, &subscription, id)? {
            return Err(Error::NotItsEvent { consumer: consumer(), id });
        }
        if ledger.finished_upto(id).is_none() {
            return Err(Error::StillPending { consumer: consumer(), id });
        }
    }
    let at = Utc::now();
    let letters: Vec<_> = ids.iter().map(|&event_id| DeadLetterUpdate::Redo { event_id, at }).collect();
    let changed = update(queue, &subscription, |current| {
        let dead_letters = letters.clone();
        Some(RunUpdate { dead_letters, durable: true, ..RunUpdate::state(current.state.clone()) })
    })?;
    notify_supervisors(queue);
    changed.map(drop).ok_or_else(|| Error::UnknownConsumer(consumer.clone()))
}

/// Whether the event is stored, and the consumer wants it.
fn is_one_of(queue: &mut Queue, subscription: &Subscription, id: i64) -> Result<bool> {
    match checked_filter(subscription)? {
        Some(filter) => queue.matches(id, &filter),
        None => Ok(queue.stored_at(id)?.is_some()),
    }
}

fn change(
    queue: &mut Queue,
    consumer: &ConsumerId,
    ledger: Vec<LedgerChange>,
    change: impl Fn(&Files, &Subscription) -> RunState,
) -> Result<Subscription> {
    let seen = queue.subscription(consumer)?;
    let files = queue.files.clone();
    let changed = update(queue, &seen, |current| {
        let state = change(&files, current);
        Some(RunUpdate { ledger: ledger.clone(), durable: true, ..RunUpdate::state(state) })
    })?;
    notify_supervisors(queue);
    changed.ok_or_else(|| Error::UnknownConsumer(consumer.clone()))
}

/// Applies the update that `decide` returns for the current state of a subscription; retries if the row
/// changed in between. `None` if `decide` returns `None`, or the subscription was removed or replaced.
pub fn update(
    queue: &mut Queue,
    seen: &Subscription,
    mut decide: impl FnMut(&Subscription) -> Option<RunUpdate>,
) -> Result<Option<Subscription>> {
    loop {
        let current = queue.store.subscription(&seen.consumer)?.filter(|now| now.is_same(seen));
        let Some((current, update)) = current.and_then(|now| decide(&now).map(|update| (now, update))) else {
            queue.store.release();
            return Ok(None);
        };
        if let Some(updated) = queue.store.update_run(&current, &update)? {
            return Ok(Some(updated));
        }
        // A busy pool changes the row many times a second. Where nothing keeps others from it, that cannot happen forever.
        queue.store.hold(&seen.consumer)?;
        std::thread::sleep(Duration::from_millis(1));
    }
}
