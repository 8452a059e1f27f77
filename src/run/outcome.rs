//! Recording the end of a run: applying the rule for runs, in one transaction, with the start of the run that
//! follows at once, if one does.

use crate::error::{Error, Result};
use crate::files::Files;
use crate::files::log::{Quoted, log};
use crate::model::figures::Figures;
use crate::model::ledger::{LedgerChange, Sleep};
use crate::model::run::{
    Deliver, ERROR_KEPT, Ended, Exit, NOT_NOW, Outcome, Phase, Run, RunState, STOPPED, Span, Task,
    apply_outcome, end_of,
};
use crate::model::subscription::{NOTHING_ACKNOWLEDGED, Subscription};
use crate::model::time::Time;
use crate::pending::PendingScan;
use crate::queue::Queue;
use crate::store::{DeadLetterUpdate, RunUpdate};

/// How a run ended.
pub struct End<'a> {
    pub exit: Exit,
    /// The run was cut short because the supervisor got a signal to end.
    pub interrupted: bool,
    /// The last part of its output, and where all of it is.
    pub output: &'a str,
    pub span: Option<Span>,
    pub at: Time,
}

/// The run that follows at once on another.
pub struct Following {
    /// The state at its start.
    pub state: RunState,
    /// Whether the acknowledgements of the run before must survive a power cut.
    pub durable: bool,
}

/// Prepares the run that follows, for a consumer whose row will be this one, after a scan for its pending events.
pub type Follow<'f> = dyn FnMut(&mut Queue, &Subscription, &PendingScan) -> Option<Following> + 'f;

/// Applies the rule to a run that has ended, and records the result. Returns the updated subscription;
/// `None` if it was removed or replaced.
pub fn record_end(
    queue: &mut Queue,
    subscription: &Subscription,
    end: &End<'_>,
) -> Result<Option<Subscription>> {
    Ok(record_end_and_start(queue, subscription, end, false, &mut |_, _, _| None)?
        .map(|(recorded, _)| recorded))
}

/// Like [`record_end`]. If the rule allows another run at once and `follow` prepares one, its start is recorded in
/// the same transaction; returns whether that is so. `unsynced`: the acknowledgements of earlier runs are not
/// synced yet, and must be if no run follows.
pub fn record_end_and_start(
    queue: &mut Queue,
    subscription: &Subscription,
    end: &End<'_>,
    unsynced: bool,
    follow: &mut Follow<'_>,
) -> Result<Option<(Subscription, bool)>> {
    let End { exit, interrupted, output, span, at: now } = *end;
    loop {
        let current =
            queue.store.subscription(&subscription.consumer)?.filter(|now| now.is_same(subscription));
        let Some(current) = current else { return Ok(None) };
        let state = &current.state;
        if state.phase != Phase::Running || state.supervisor != subscription.state.supervisor {
            // An attempt that seemed to fail had succeeded, or another process recorded the end.
            return Ok(Some((current, false)));
        }
        let task = state.task.unwrap_or(Task::Wake);
        let asleep = fell_asleep(&current, task, exit);
        // It left a step unfinished, so that its exit code means nothing.
        let exit = if asleep.is_some() { Exit::Code(NOT_NOW) } else { exit };
        let rewound = current.rewinds != state.start_rewinds;
        let acknowledge = match (task, exit) {
            (Task::Batch(last) | Task::Single(last), Exit::Code(0)) if !rewound => Some(last),
            _ if !rewound => skipped(queue, &current)?,
            _ => None,
        };
        let cursor = acknowledge.unwrap_or(0).max(current.last_acked_id);
        let moved = Subscription { last_acked_id: cursor, ..current.clone() };
        let scan = scan_past(queue, &moved)?;
        let pending = scan.first.is_some() || moved.has_retry();
        // An interrupted run whose events are acknowledged anyway counts as complete.
        let interrupted = interrupted && acknowledge.is_none();
        let stopped = state.stop.is_some();
        let ended = Ended { task, exit, stopped, interrupted, cursor, rewound, pending, asleep, now };
        let counts = acknowledge.is_some_and(|upto| current.last_acked_id < upto);
        let counted = if counts { acknowledged_during(queue, &current)? } else { 0 };
        let mut update = end_update(&current, &ended, acknowledge, (output, span), scan.newest, counted);
        let may_follow = pending
            && !stopped
            && !interrupted
            && update.state.phase == Phase::Idle
            && update.dead_letters.is_empty();
        if stopped && task == Task::Pool {
            // What its runs had costs no attempt.
            let claims = queue.store.ledger(&current.consumer)?;
            let skips = state.stop.is_some_and(|stop| stop.skip);
            let over = |id: &i64| match skips {
                true => LedgerChange::Finish { first: *id, last: *id },
                false => LedgerChange::Claim { id: *id, claim: None },
            };
            update.ledger = claims.claims().keys().map(over).collect();
        }
        update.durable |= unsynced;
        let mut follows = false;
        if may_follow {
            let after = Subscription { state: update.state.clone(), ..moved };
            if let Some(following) = follow(queue, &after, &scan) {
                (update.state, update.durable) = (following.state, following.durable);
                follows = true;
            }
        }
        if let Some(updated) = queue.store.update_run(&current, &update)? {
            return Ok(Some((updated, follows)));
        }
    }
}

/// The event of a run that has ended, if it sleeps now.
fn fell_asleep(current: &Subscription, task: Task, exit: Exit) -> Option<(i64, Sleep)> {
    if exit == Exit::TimedOut {
        return None;
    }
    // Somebody else may have acknowledged it.
    let is_pending = |id: i64| id > current.last_acked_id || task == Task::DeadLetter(id);
    let mut asleep = current.state.asleep.iter().filter(|(id, _)| is_pending(**id));
    asleep.next().map(|(id, sleep)| (*id, *sleep))
}

/// Scans for events past the cursor that is about to be recorded. A broken filter matches nothing.
fn scan_past(queue: &mut Queue, moved: &Subscription) -> Result<PendingScan> {
    match queue.scan_pending(moved, None) {
        Err(Error::BrokenFilter { .. }) => {
            Ok(PendingScan { newest: queue.store.newest()?, ..PendingScan::default() })
        }
        scan => scan,
    }
}

/// Records that a wait was stopped: events stored so far, and dead letters due for redelivery, no longer start the
/// consumer. The previous run remains the last one, and its attempt still counts. `None` if anything has changed;
/// then nothing is recorded.
pub fn record_end_of_wait(queue: &mut Queue, waiting: &Subscription) -> Result<Option<Subscription>> {
    let newest = queue.store.newest()?;
    let mut state = waiting.state.idle().stalled(STOPPED);
    state.start_newest = state.start_newest.max(newest);
    let mut update = RunUpdate { cancel_retries: true, durable: true, ..RunUpdate::state(state) };
    if !waiting.options.finishes_singly() {
        update.acknowledge = skipped(queue, waiting)?;
    } else if waiting.state.stop.is_some_and(|stop| stop.skip) {
        let waits = queue.store.ledger(&waiting.consumer)?;
        update.ledger =
            waits.waits().keys().map(|id| LedgerChange::Finish { first: *id, last: *id }).collect();
    }
    queue.store.update_run(waiting, &update)
}

/// If the stop request said to skip events, the last one to skip: the last event that the run was given, or
/// that would be delivered again after the wait.
fn skipped(queue: &mut Queue, current: &Subscription) -> Result<Option<i64>> {
    let state = &current.state;
    if !state.stop.is_some_and(|stop| stop.skip) {
        return Ok(None);
    }
    Ok(match (state.phase, state.task) {
        (Phase::Running, Some(Task::Batch(last) | Task::Single(last))) => Some(last),
        (Phase::Running, Some(Task::DeadLetter(_) | Task::Pool)) => None,
        // A batch that failed as a whole.
        (Phase::Waiting, _) if state.attempts == 0 && current.single_upto() > current.last_acked_id => {
            Some(current.single_upto())
        }
        (Phase::Waiting, _) if current.options.deliver == Deliver::Stdin => {
            queue.scan_pending(current, None)?.first
        }
        _ => Some(state.start_newest),
    })
}

/// Logs how the end of a run changed the consumer.
pub fn log_outcome(files: &Files, before: &Subscription, after: &Subscription, task: Task) {
    let consumer = &after.consumer;
    if after.state.dead_lettered > before.state.dead_lettered
        && let Task::Single(id) = task
    {
        let attempts = before.state.attempts;
        log!(files, Warn, "dispatch: consumer={consumer} id={id} is a dead letter attempts={attempts}");
    }
    if after.acknowledged_nothing() {
        log!(files, Warn, "dispatch: consumer={consumer} {NOTHING_ACKNOWLEDGED}");
    }
    if after.state.phase == Phase::Stalled {
        let reason = Quoted(after.state.reason.as_deref().unwrap_or_default());
        log!(files, Warn, "dispatch: consumer={consumer} stalled reason={reason}");
    }
}

/// How many events were acknowledged during the run, and counted then.
fn acknowledged_during(queue: &mut Queue, current: &Subscription) -> Result<u64> {
    let (start, now) = (current.state.start_cursor, current.last_acked_id);
    if now <= start || current.filter_text().is_none() {
        return Ok((now - start).max(0).unsigned_abs());
    }
    let before = Subscription { last_acked_id: start, ..current.clone() };
    Ok(queue.matching_upto(&before, now)?.len() as u64)
}

/// `counted`: see [`acknowledged_during`].
fn end_update(
    current: &Subscription,
    ended: &Ended,
    acknowledge: Option<i64>,
    (output, span): (&str, Option<Span>),
    newest: i64,
    counted: u64,
) -> RunUpdate {
    let Outcome { mut state, dead_letter } = apply_outcome(&current.state, &current.options, ended);
    if ended.stopped {
        state.start_newest = state.start_newest.max(newest);
    }
    let (exit, error, at) = (ended.exit, end_of(output, ERROR_KEPT).to_owned(), ended.now);
    let change = match (ended.task, dead_letter) {
        (Task::DeadLetter(event_id), _) if exit == Exit::Code(0) => {
            Some(DeadLetterUpdate::Remove { event_id })
        }
        (Task::DeadLetter(event_id), _) if !ended.stopped && !ended.interrupted && !ended.is_deferred() => {
            Some(DeadLetterUpdate::FailedAgain { event_id, exit, error, at })
        }
        (_, Some((event_id, attempts))) => {
            Some(DeadLetterUpdate::Insert { event_id, attempts, exit, error, at })
        }
        _ => None,
    };
    let run = Run::of(&current.state, ended, dead_letter.is_some(), (output, span));
    let events = run.events.map(|events| match ended.task {
        Task::DeadLetter(_) => events,
        // It was moved back or on in the meantime.
        _ if acknowledge.is_none() || current.last_acked_id >= run.upto => 0,
        _ => events.saturating_sub(counted),
    });
    RunUpdate {
        state,
        figures: Some((ended.now, Figures::of_run(&Run { events, ..run.clone() }))),
        runs: vec![run],
        acknowledge: acknowledge.or(dead_letter.map(|(id, _)| id)),
        cancel_retries: ended.stopped,
        // An acknowledgement or a dead letter must survive a power cut; the next look determines a lost wait
        // again.
        durable: acknowledge.is_some() || change.is_some() || ended.stopped,
        dead_letters: change.into_iter().collect(),
        ledger: Vec::new(),
        step: None,
    }
}
