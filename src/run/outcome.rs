//! Recording the end of a run: what the rule for runs makes of it, in one transaction.

use crate::error::{Error, Result};
use crate::files::log::{Quoted, log};
use crate::model::run::{Deliver, Ended, Exit, Outcome, Phase, STOPPED, Task, apply_outcome};
use crate::model::subscription::{NOTHING_ACKNOWLEDGED, Subscription};
use crate::model::time::Time;
use crate::queue::Queue;
use crate::store::{DeadLetterUpdate, RunUpdate, Store};

/// How a run ended.
pub struct End<'a> {
    pub exit: Exit,
    /// The supervisor was told to end, and so the run was cut short.
    pub interrupted: bool,
    /// The end of its output.
    pub output: &'a str,
    pub at: Time,
}

/// Applies the rule to a run that has ended, and records what follows. Returns the subscription as
/// it then is; `None` when it is gone or was made anew.
pub fn record_end(
    queue: &mut Queue,
    subscription: &Subscription,
    end: &End<'_>,
) -> Result<Option<Subscription>> {
    let End { exit, interrupted, output, at: now } = *end;
    loop {
        let current =
            queue.store.subscription(&subscription.consumer)?.filter(|now| now.is_same(subscription));
        let Some(current) = current else { return Ok(None) };
        let state = &current.state;
        if state.phase != Phase::Running || state.supervisor != subscription.state.supervisor {
            // A try that seemed to fail had succeeded, or somebody else has recorded it.
            return Ok(Some(current));
        }
        let task = state.task.unwrap_or(Task::Wake);
        let rewound = current.rewinds != state.start_rewinds;
        let acknowledge = match (task, exit) {
            (Task::Batch(last) | Task::Single(last), Exit::Code(0)) if !rewound => Some(last),
            _ if !rewound => skipped(queue, &current)?,
            _ => None,
        };
        let cursor = acknowledge.unwrap_or(0).max(current.last_acked_id);
        let pending = is_pending(queue, &current, cursor)?;
        // One that has taken its events all the same has done what it was given.
        let interrupted = interrupted && acknowledge.is_none();
        let stopped = state.stop.is_some();
        let ended = Ended { task, exit, stopped, interrupted, cursor, rewound, pending, now };
        let newest = queue.store.newest()?;
        let update = end_update(&current, &ended, acknowledge, output, newest);
        if let Some(updated) = queue.store.update_run(&current, &update)? {
            return Ok(Some(updated));
        }
    }
}

/// Whether anything is pending past `cursor`, which the consumer is about to have, or a dead letter to be
/// delivered again. A broken filter matches nothing.
fn is_pending(queue: &mut Queue, subscription: &Subscription, cursor: i64) -> Result<bool> {
    let moved = Subscription { last_acked_id: cursor, ..subscription.clone() };
    match queue.look(&moved, None) {
        Err(Error::BrokenFilter { .. }) => Ok(moved.has_retry()),
        look => Ok(look?.first.is_some() || moved.has_retry()),
    }
}

/// Records that somebody stopped a wait: whatever has come by now, and the dead letters that were to be
/// delivered again, start the consumer no more. The run before it stays the last one, and no attempt is
/// given back. `None`, and nothing is recorded, if anything has changed.
pub fn record_end_of_wait(queue: &mut Queue, waiting: &Subscription) -> Result<Option<Subscription>> {
    let newest = queue.store.newest()?;
    let acknowledge = skipped(queue, waiting)?;
    let mut state = waiting.state.idle().stalled(STOPPED);
    state.start_newest = state.start_newest.max(newest);
    let update = RunUpdate { acknowledge, cancel_retries: true, durable: true, ..RunUpdate::state(state) };
    queue.store.update_run(waiting, &update)
}

/// The last event that was under way when a consumer was stopped, if it was requested to skip these:
/// what the run was given, or would be given again after the wait.
fn skipped(queue: &mut Queue, current: &Subscription) -> Result<Option<i64>> {
    let state = &current.state;
    if !state.stop.is_some_and(|stop| stop.skip) {
        return Ok(None);
    }
    Ok(match (state.phase, state.task) {
        (Phase::Running, Some(Task::Batch(last) | Task::Single(last))) => Some(last),
        (Phase::Running, Some(Task::DeadLetter(_))) => None,
        // A batch that failed as a whole.
        (Phase::Waiting, _) if state.attempts == 0 && current.single_upto() > current.last_acked_id => {
            Some(current.single_upto())
        }
        (Phase::Waiting, _) if current.options.deliver == Deliver::Stdin => queue.look(current, None)?.first,
        _ => Some(state.start_newest),
    })
}

/// Logs what became of a consumer by the end of a run.
pub fn log_outcome(queue: &Queue, before: &Subscription, after: &Subscription, task: Task) {
    let consumer = &after.consumer;
    if after.state.dead_lettered > before.state.dead_lettered
        && let Task::Single(id) = task
    {
        let attempts = before.state.attempts;
        log!(queue, Warn, "dispatch: consumer={consumer} id={id} is a dead letter attempts={attempts}");
    }
    if after.acknowledged_nothing() {
        log!(queue, Warn, "dispatch: consumer={consumer} {NOTHING_ACKNOWLEDGED}");
    }
    if after.state.phase == Phase::Stalled {
        let reason = Quoted(after.state.reason.as_deref().unwrap_or_default());
        log!(queue, Warn, "dispatch: consumer={consumer} stalled reason={reason}");
    }
}

/// What to record of a run that has ended.
fn end_update(
    current: &Subscription,
    ended: &Ended,
    acknowledge: Option<i64>,
    output: &str,
    newest: i64,
) -> RunUpdate {
    let Outcome { mut state, dead_letter } = apply_outcome(&current.state, &current.options, ended);
    if ended.stopped {
        state.start_newest = state.start_newest.max(newest);
    }
    let (exit, error, at) = (ended.exit, output.to_owned(), ended.now);
    let change = match (ended.task, dead_letter) {
        (Task::DeadLetter(event_id), _) if exit == Exit::Code(0) => {
            Some(DeadLetterUpdate::Remove { event_id })
        }
        (Task::DeadLetter(event_id), _) if !ended.stopped && !ended.interrupted => {
            Some(DeadLetterUpdate::FailedAgain { event_id, exit, error, at })
        }
        (_, Some((event_id, attempts))) => {
            Some(DeadLetterUpdate::Insert { event_id, attempts, exit, error, at })
        }
        _ => None,
    };
    RunUpdate {
        state,
        acknowledge: acknowledge.or(dead_letter.map(|(id, _)| id)),
        cancel_retries: ended.stopped,
        // An acknowledgement or a dead letter may not be forgotten; a lost wait is found again by
        // looking.
        durable: acknowledge.is_some() || change.is_some() || ended.stopped,
        dead_letter: change,
    }
}
