//! Finishing events singly: what becomes of an event that a handler, or somebody by hand, has answered.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::Utc;

use super::control;
use crate::error::{Error, Result};
use crate::files::lock::Lock;
use crate::files::log::log;
use crate::model::figures::Figures;
use crate::model::ledger::{Asleep, Claim, EventWait, Ledger, LedgerChange};
use crate::model::run::{
    BAD_EVENT, ERROR_KEPT, Exit, Fate, NOT_NOW, Phase, Run, RunResult, RunState, end_of, fate,
};
use crate::model::subscription::{ConsumerId, Subscription};
use crate::model::time::Time;
use crate::model::window::Window;
use crate::pending::checked_filter;
use crate::queue::Queue;
use crate::store::{DeadLetterUpdate, RunUpdate};

/// What answers and the ends of runs change in the state of a consumer.
#[derive(Debug, Default, Clone)]
pub struct Tally {
    has_success: bool,
    failed: u64,
    /// Runs that succeeded.
    succeeded: u64,
    /// The last run: when it began and ended, and how.
    last: Option<(Time, Time, Exit)>,
    /// Events that have expired.
    expired: u64,
    /// Dead letters after the last success: judged by the handler, and others.
    dead: Vec<bool>,
    /// What is to be counted. The ends of runs on stdin are counted as such, not the failures at their events.
    pub figures: Figures,
}

impl Tally {
    pub fn applied_to(&self, state: &RunState) -> RunState {
        let mut state = state.clone();
        if self.has_success {
            (state.dead_streak, state.judged_streak) = (0, 0);
        }
        let state = self.runs_applied_to(&state);
        self.dead.iter().fold(state, |state, judged| state.with_dead_letter(*judged))
    }

    /// Changes only the counts of runs, and what is known of the last one.
    pub fn runs_applied_to(&self, state: &RunState) -> RunState {
        let state = self.last_applied_to(state);
        let (failed, succeeded) = (state.failed + self.failed, state.succeeded + self.succeeded);
        RunState { failed, succeeded, expired: state.expired + self.expired, ..state }
    }

    fn last_applied_to(&self, state: &RunState) -> RunState {
        match self.last {
            Some((began, ended, exit)) => {
                RunState { began: Some(began), ended: Some(ended), last_exit: Some(exit), ..state.clone() }
            }
            None => state.clone(),
        }
    }

    /// An event was acknowledged.
    pub fn success(&mut self) {
        self.has_success = true;
    }

    /// An event has expired.
    pub fn expire(&mut self) {
        self.expired += 1;
    }

    /// What is to be counted now.
    pub fn counted(&self) -> Option<(Time, Figures)> {
        Some((Utc::now(), self.figures.clone()))
    }

    pub fn has_expired(&self) -> bool {
        self.expired > 0
    }

    /// A run failed at several events together.
    pub fn failure(&mut self) {
        self.failed += 1;
    }

    /// A run has ended.
    pub fn ended(&mut self, began: Time, ended: Time, exit: Exit, succeeded: bool) {
        self.last = Some((began, ended, exit));
        self.succeeded += u64::from(succeeded);
    }
}

/// A failure at an event.
pub struct Failed {
    pub exit: Exit,
    /// Whether it was an attempt.
    pub counts: bool,
    /// The handler said that the event itself is bad.
    pub judged: bool,
    /// The wait before the next attempt, if not that of the consumer's backoff.
    pub delay: Option<Duration>,
    pub error: String,
    pub at: Time,
    /// For how long the handler had it, if that is known.
    pub took: Option<Duration>,
}

/// Applies the rule to an event that the handler failed on. Returns why the consumer stalls, if it does.
pub fn fail(
    window: &mut Window,
    tally: &mut Tally,
    current: &Subscription,
    id: i64,
    failed: Failed,
    dead_letters: &mut Vec<DeadLetterUpdate>,
    runs: &mut Vec<Run>,
) -> Option<String> {
    if window.ledger().finished_upto(id).is_some() {
        // By somebody else, in the meantime.
        window.finish(id);
        return None;
    }
    let Failed { mut exit, mut counts, mut judged, mut delay, error, at: now, took } = failed;
    let mut asleep = Asleep::No;
    if let Some(sleep) = current.state.asleep.get(&id).filter(|_| exit != Exit::TimedOut) {
        // It left a step unfinished, so that it does not matter how it ended.
        (exit, counts, judged) = (Exit::Code(NOT_NOW), false, false);
        delay = Some((sleep.until - now).to_std().unwrap_or_default());
        asleep = sleep.asleep();
    }
    let options = &current.options;
    let (attempts, deferred) = window.tried(id);
    let attempts = attempts.saturating_add(u32::from(counts));
    let fate =
        if counts { fate(&tally.applied_to(&current.state), options, attempts, judged) } else { Fate::Wait };
    let deferred = if counts || asleep != Asleep::No { 0 } else { deferred.saturating_add(1) };
    let wait = delay.unwrap_or_else(|| options.wait_after(if counts { attempts } else { deferred }));
    let until = match fate {
        Fate::Stall(_) => now,
        _ => now + wait,
    };
    let result = if counts { RunResult::Failed } else { RunResult::Deferred };
    let mut run = Run {
        number: 0,
        began: now,
        ended: now,
        attempt: attempts,
        events: Some(1),
        upto: id,
        result,
        exit: exit.code(),
        output: None,
        host: None,
        tail: result.tail(&error).filter(|_| exit != Exit::Unknown),
    };
    tally.failed += u64::from(counts);
    match counts {
        true => tally.figures.failed(fate == Fate::Dead, took),
        false => tally.figures.handled(0, took),
    }
    let stalls = match fate {
        Fate::Dead => {
            run.result = RunResult::Dead;
            let error = end_of(&error, ERROR_KEPT).to_owned();
            dead_letters.push(DeadLetterUpdate::Insert { event_id: id, attempts, exit, error, at: now });
            tally.dead.push(judged);
            window.finish(id);
            None
        }
        Fate::Wait => {
            window.wait(id, EventWait { attempts, deferred, since: now, until, asleep });
            None
        }
        Fate::Stall(why) => {
            window.wait(id, EventWait { attempts, deferred, since: now, until, asleep });
            Some(why)
        }
    };
    runs.push(run);
    stalls
}

/// Finishes exactly these events, and with `upto` all up to that one, for a consumer that finishes events singly. With a
/// `claim`, which is that of the only event, only if it is not over.
///
/// # Errors
///
/// [`Error::UnknownConsumer`], [`Error::ClaimOver`].
pub fn ack(
    queue: &mut Queue,
    consumer: &ConsumerId,
    ids: &[i64],
    upto: Option<i64>,
    claim: Option<&str>,
) -> Result<Subscription> {
    let all = upto.map(|last| LedgerChange::Finish { first: 1, last });
    let each = ids.iter().map(|id| LedgerChange::Finish { first: *id, last: *id });
    let finished: Vec<LedgerChange> = all.into_iter().chain(each).collect();
    let changed = change(queue, consumer, |queue, current, ledger| {
        if let Some((token, id)) = claim.zip(ids.first()) {
            must_be_held(queue, ledger, *id, token)?;
        }
        let mut update = RunUpdate { ledger: finished.clone(), ..RunUpdate::default() };
        let mut tally = Tally::default();
        count_finished(queue, current, ledger, (ids, upto), &mut tally.figures)?;
        update.figures = tally.counted();
        if current.options.is_taken_from() {
            tally.success();
            for id in
                ids.iter().filter(|id| ledger.claims().get(id).is_some_and(|claim| claim.is_dead_letter))
            {
                update.dead_letters.push(DeadLetterUpdate::Remove { event_id: *id });
                update.ledger.push(LedgerChange::Claim { id: *id, claim: None });
            }
        }
        let state = tally.applied_to(&current.state);
        // What was tried after a stall has worked.
        let is_over = current.options.is_taken_from() && state.phase == Phase::Stalled;
        let asleep = state.asleep.clone();
        update.state = if is_over { RunState { asleep, ..state.idle() } } else { state };
        if current.options.is_taken_from() {
            update.state.asleep.retain(|id, _| !ids.contains(id));
        }
        Ok(update)
    })?;
    log!(
        queue,
        Info,
        "ack: consumer={consumer} ids={ids:?} upto={upto:?} last_acked_id={}",
        changed.last_acked_id
    );
    Ok(changed)
}

/// Counts what an acknowledgement finishes that was not finished before.
fn count_finished(
    queue: &mut Queue,
    current: &Subscription,
    ledger: &Ledger,
    (ids, upto): (&[i64], Option<i64>),
    figures: &mut Figures,
) -> Result<()> {
    let (cursor, now) = (ledger.cursor(), Utc::now());
    if let Some(last) = upto.filter(|last| *last > cursor) {
        let count = if current.filter_text().is_some() {
            let is_open = |id: &&i64| ledger.finished_upto(**id).is_none();
            queue.matching_upto(current, last)?.iter().filter(is_open).count() as u64
        } else {
            let ahead = ledger.finished().map(|(first, end)| (end.min(last) - first + 1).max(0));
            (last - cursor - ahead.sum::<i64>()).max(0).unsigned_abs()
        };
        figures.handled(count, None);
    }
    for id in ids.iter().filter(|id| upto.is_none_or(|last| **id > last)).collect::<BTreeSet<_>>() {
        let claim = ledger.claims().get(id);
        if ledger.finished_upto(*id).is_none() || claim.is_some_and(|claim| claim.is_dead_letter) {
            figures.handled(1, claim.and_then(|claim| taken_for(claim, now)));
        }
    }
    Ok(())
}

/// For how long a program has had an event, if it has taken it.
pub(super) fn taken_for(claim: &Claim, now: Time) -> Option<Duration> {
    claim.taken.as_ref().and((now - claim.since).to_std().ok())
}

/// What somebody says of an event that they have not finished.
#[derive(Debug, Clone, Copy)]
pub struct Answer<'a> {
    pub id: i64,
    /// The claim by which they have it; without one, the newest is meant.
    pub claim: Option<&'a str>,
    pub error: &'a str,
}

/// Puts an event off: it is given again after `delay`, or after the next wait of the consumer's backoff. `counts`: that
/// is an attempt, and the last one makes it a dead letter.
///
/// # Errors
///
/// [`Error::UnknownConsumer`], [`Error::NotPending`], [`Error::ClaimOver`].
pub fn nack(
    queue: &mut Queue,
    consumer: &ConsumerId,
    answer: Answer<'_>,
    delay: Option<Duration>,
    counts: bool,
) -> Result<Subscription> {
    let exit = Exit::Code(if counts { 1 } else { NOT_NOW });
    let changed = fail_by_hand(queue, consumer, answer, || Failed {
        exit,
        counts,
        judged: false,
        delay,
        error: answer.error.to_owned(),
        at: Utc::now(),
        took: None,
    })?;
    log!(queue, Info, "nack: consumer={consumer} id={}", answer.id);
    Ok(changed)
}

/// Makes an event a dead letter.
///
/// # Errors
///
/// As for [`nack`].
pub fn reject(queue: &mut Queue, consumer: &ConsumerId, answer: Answer<'_>) -> Result<Subscription> {
    let changed = fail_by_hand(queue, consumer, answer, || {
        let (exit, error) = (Exit::Code(BAD_EVENT), answer.error.to_owned());
        Failed { exit, counts: true, judged: true, delay: None, error, at: Utc::now(), took: None }
    })?;
    log!(queue, Info, "reject: consumer={consumer} id={}", answer.id);
    Ok(changed)
}

fn fail_by_hand(
    queue: &mut Queue,
    consumer: &ConsumerId,
    answer: Answer<'_>,
    failed: impl Fn() -> Failed,
) -> Result<Subscription> {
    let id = answer.id;
    change(queue, consumer, |queue, current, ledger| {
        let claim = ledger.claims().get(&id);
        if let Some(token) = answer.claim {
            must_be_held(queue, ledger, id, token)?;
        }
        let (mut update, mut tally) = (RunUpdate::default(), Tally::default());
        let took = claim.and_then(|claim| taken_for(claim, Utc::now()));
        if claim.is_some_and(|claim| claim.is_dead_letter) {
            let Failed { exit, error, at, counts, .. } = failed();
            // Put off without an attempt, it stays marked.
            if counts {
                tally.figures.failed(true, took);
                update.figures = tally.counted();
                update.dead_letters.push(DeadLetterUpdate::FailedAgain { event_id: id, exit, error, at });
            }
            update.ledger.push(LedgerChange::Claim { id, claim: None });
            update.state = current.state.clone();
            return Ok(update);
        }
        let is_one = match checked_filter(current)? {
            Some(filter) => queue.matches(id, &filter)?,
            None => queue.event(id)?.is_some(),
        };
        if !is_one || ledger.finished_upto(id).is_some() {
            return Err(Error::NotPending { consumer: consumer.clone(), id });
        }
        // If a run has it, that keeps it.
        let taken = claim.filter(|claim| claim.taken.is_some()).map(|claim| (id, claim.clone()));
        let failed = Failed { took, ..failed() };
        let mut current = current.clone();
        if failed.judged {
            // The caller knows better than its steps.
            current.state.asleep.remove(&id);
        }
        let current = &current;
        let ledger = Ledger::new(ledger.cursor(), ledger.finished(), ledger.waits().clone(), taken);
        let mut window = Window::new(ledger, &current.options, 0);
        window.adopt(id);
        let stalls =
            fail(&mut window, &mut tally, current, id, failed, &mut update.dead_letters, &mut update.runs);
        update.figures = tally.counted();
        let state = tally.applied_to(&current.state);
        update.state = match stalls {
            // The handler of a run under way meets its own limit.
            Some(why) if state.supervisor.is_none() => {
                let ended = if current.options.is_taken_from() { Some(Utc::now()) } else { state.ended };
                RunState { start_newest: queue.store.newest()?, ended, ..state.stalled(&why) }
            }
            _ => state,
        };
        if current.options.is_taken_from() {
            update.state.asleep.remove(&id);
        }
        update.ledger = window.changes().to_vec();
        Ok(update)
    })
}

fn must_be_held(queue: &mut Queue, ledger: &Ledger, id: i64, token: &str) -> Result<()> {
    let now = queue.store.clock()?;
    match ledger.claims().get(&id).and_then(|claim| claim.taken_by(Some(token), &now)) {
        Some(_) => Ok(()),
        None => Err(Error::ClaimOver { id }),
    }
}

/// The lock of a process that takes events or answers for one by hand.
const TURN: &str = "run/_turn";

/// How long to wait for it.
const TURN_WAIT: Duration = Duration::from_secs(5);

/// Lets one process of this machine after the other change a consumer's row. Nothing depends on that, because a change is
/// refused if another came first; but of two hundred at once, each would be refused again and again.
pub(super) fn take_turn(queue: &Queue) -> Option<Lock> {
    Lock::take(&queue.files, TURN, TURN_WAIT).ok()
}

/// Stores what `decide` makes of a consumer's row and ledger, and again if they have changed in between.
pub(super) fn change(
    queue: &mut Queue,
    consumer: &ConsumerId,
    mut decide: impl FnMut(&mut Queue, &Subscription, &Ledger) -> Result<RunUpdate>,
) -> Result<Subscription> {
    let _turn = take_turn(queue);
    let changed = change_in_turn(queue, consumer, &mut decide);
    queue.store.release();
    changed
}

fn change_in_turn(
    queue: &mut Queue,
    consumer: &ConsumerId,
    decide: &mut impl FnMut(&mut Queue, &Subscription, &Ledger) -> Result<RunUpdate>,
) -> Result<Subscription> {
    loop {
        let current = queue.subscription(consumer)?;
        // Read after the row, whose change would be noticed.
        let ledger = queue.store.ledger(consumer)?;
        let update = RunUpdate { durable: true, ..decide(queue, &current, &ledger)? };
        if let Some(changed) = queue.store.update_run(&current, &update)? {
            control::notify_supervisors(queue);
            return Ok(changed);
        }
        // Another process changed the row first. Where nothing keeps others from it, that cannot happen forever.
        queue.store.hold(consumer)?;
        std::thread::sleep(Duration::from_millis(1));
    }
}
