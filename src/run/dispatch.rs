//! Finding the consumers that have something pending, and starting their supervisors.
//!
//! For each subscription: is something pending, and does the rule for runs allow a run? Then try its
//! lock. If it is held, its holder looks again after releasing it, so it is safe to give up. If it is
//! free, pass it to a supervisor, which decides under the lock what to do: the last run may have ended
//! between the look and the lock.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use chrono::Utc;

use super::attend;
use super::launcher::Launcher;
use super::process::{self, Liveness};
use crate::error::{Error, Result};
use crate::files::Files;
use crate::files::lock::Lock;
use crate::files::log::log;
use crate::model::run::{self, Action, Phase, ProcessId, RunState};
use crate::model::subscription::{ConsumerId, Subscription};
use crate::model::time::{self, Time};
use crate::pending::{self, PendingScan};
use crate::queue::Queue;
use crate::store::RunUpdate;

/// How long a push or dispatch itself evaluates filters, for all consumers together. Longer backlogs
/// are left to a background process.
pub(super) const OWN_TIME: Duration = Duration::from_millis(20);

/// How long a machine that lacks something a handler needs leaves the consumer to other machines.
const LEFT: Duration = Duration::from_secs(60);

/// `start_newest` of a stalled consumer is moved forward once this many new events were scanned.
const REMEMBER_AFTER: i64 = 256;

/// The result of a dispatch for one consumer.
#[derive(Debug)]
pub enum Dispatched {
    /// Nothing is pending, or the rule for runs does not allow a run.
    Idle,
    /// A supervisor was started; it starts the handler immediately or after a wait.
    Started,
    /// The lock is held here; its holder will look again.
    LockHeld,
    /// Another machine has the consumer, or all of a pool's events that could be given now; it will look again.
    HeldElsewhere,
    /// This machine lacks something that the handler needs; for a while, only other machines start it.
    LeftToOthers,
    /// The backlog is long; a background process evaluates the filter on it.
    LeftToBackground,
    /// It is started after this wait,
    Waits(Wait),
    /// or, by a worker that limits its runs, once another run has ended.
    Queued,
    /// The subscription is invalid: its filter or handler is broken, or its working directory is gone.
    Broken(Error),
    /// It is due, but could not be started.
    Failed(Error),
}

/// What to do for a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextStep {
    /// Start nothing: nothing is pending, or the rule for runs does not allow a run.
    None {
        pending: bool,
    },
    Start(Start),
    /// Nothing here: what could be given now is at runs on other machines.
    Elsewhere,
    /// Time ran out before the filter was evaluated on all events.
    Unknown,
}

/// A run that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// The wait before it, if any.
    pub wait: Option<Wait>,
    /// The oldest pending event; `None` if only a dead letter has to be redelivered.
    pub first: Option<i64>,
    /// The newest event when the filter was evaluated.
    pub newest: i64,
    /// The consumer is stalled, and something newer than its last run ends that.
    pub ends_stall: bool,
}

/// A wait before a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    pub until: Time,
    /// From now to `until`.
    pub left: Duration,
    /// What was recorded, whatever has happened to the clock since: the end of the wait, or when a stalled consumer
    /// ended its last run.
    pub recorded: Option<Time>,
}

/// Starts the handler of every consumer that has something pending and is not running. A failure for
/// one consumer is logged; the others are still started.
///
/// # Errors
///
/// [`Error::NotOwner`]; if the subscriptions cannot be read, or nothing can be written.
pub fn dispatch(queue: &mut Queue, launcher: &Launcher) -> Result<Vec<(ConsumerId, Dispatched)>> {
    let all = queue.store.subscriptions()?;
    let all = start(queue, launcher, all, Some(OWN_TIME), Waits::Timer)?;
    log_skipped(&queue.files, &all);
    Ok(all)
}

/// Who attends to waits before runs.
pub(super) enum Waits<'s> {
    /// The thread's timer, which is started if it is not there.
    Timer,
    /// The caller, which may limit its runs: then as many are started as there are slots, and those that have waited
    /// longest come first. There should be no time limit then, because a background process knows no slots.
    Left(Option<&'s mut Slots>),
}

/// The runs that a worker may have at a time.
pub(super) struct Slots {
    pub most: usize,
    pub supervisors: Vec<ProcessId>,
}

impl Slots {
    /// Whether another run may be started.
    pub fn has_free(&mut self) -> bool {
        self.supervisors.retain(|process| process.liveness() != Liveness::Dead);
        self.supervisors.len() < self.most
    }
}

/// Logs which consumers were due, but not started here.
pub(super) fn log_skipped(files: &Files, all: &[(ConsumerId, Dispatched)]) {
    for (consumer, done) in all {
        let why = match done {
            Dispatched::LockHeld | Dispatched::HeldElsewhere => "lock held",
            Dispatched::LeftToOthers => "left to other machines",
            _ => continue,
        };
        log!(files, Info, "dispatch: consumer={consumer} skipped ({why})");
    }
}

/// Starts the handlers of those of these consumers that are due, without logging which it skips. Filters are evaluated
/// for at most `time` (`None`: no limit); a background process does the rest.
///
/// # Errors
///
/// As [`dispatch`].
pub(super) fn start(
    queue: &mut Queue,
    launcher: &Launcher,
    mut subscriptions: Vec<Subscription>,
    mut time: Option<Duration>,
    waits: Waits<'_>,
) -> Result<Vec<(ConsumerId, Dispatched)>> {
    let attend = matches!(waits, Waits::Timer);
    let mut slots = if let Waits::Left(slots) = waits { slots } else { None };
    if !queue.files.is_owner() {
        return Err(Error::NotOwner(queue.location().clone()));
    }
    // Otherwise only the supervisors would notice, and their errors are not shown.
    queue.store.check_writable()?;
    if slots.is_some() {
        subscriptions.sort_by_key(|subscription| subscription.state.ended);
    }
    let mut all = Vec::new();
    for subscription in subscriptions {
        let consumer = subscription.consumer.clone();
        let done = match start_if_due(queue, launcher, &subscription, &mut time, slots.as_deref_mut()) {
            Ok(done) => done,
            // Said once, like a program that is missing here.
            Err(Error::BrokenSubscription(_)) if is_left_to_others(&queue.files, &consumer) => {
                Dispatched::LeftToOthers
            }
            Err(e @ (Error::BrokenFilter { .. } | Error::BrokenSubscription(_))) => Dispatched::Broken(e),
            Err(e) => Dispatched::Failed(e),
        };
        if let Dispatched::Broken(Error::BrokenSubscription(_)) = done
            && queue.location().backend().is_shared_by_machines
        {
            leave_to_others(&queue.files, &consumer);
        }
        if let Dispatched::Broken(e) | Dispatched::Failed(e) = &done {
            log!(queue, Error, "dispatch: consumer={consumer} not started: {e}");
        }
        all.push((consumer, done));
    }
    if all.iter().any(|(_, done)| matches!(done, Dispatched::LeftToBackground)) {
        launcher.start_background(&queue.files, Duration::ZERO)?;
    }
    if attend && all.iter().any(|(_, done)| matches!(done, Dispatched::Waits(_))) {
        attend::attend(&queue.files, launcher)?;
    }
    Ok(all)
}

/// Starts a supervisor for one consumer if it is due. The time spent on its filter is taken off `time`; starting a
/// process is not, which takes as long as the machine is busy.
fn start_if_due(
    queue: &mut Queue,
    launcher: &Launcher,
    subscription: &Subscription,
    time: &mut Option<Duration>,
    mut slots: Option<&mut Slots>,
) -> Result<Dispatched> {
    // The supervisor of handlers whose events finish singly looks at the events by itself, and again after it has let go
    // of the lock. Where many are held back, that takes longer than this.
    if subscription.options.finishes_singly()
        && subscription.state.phase == Phase::Running
        && process::supervisor_of(&queue.files, subscription) == Liveness::Alive
    {
        return Ok(Dispatched::LockHeld);
    }
    let began = Instant::now();
    let step = next_step(queue, subscription, time.map(|left| began + left));
    *time = time.map(|left| left.saturating_sub(began.elapsed()));
    match step? {
        NextStep::None { .. } => return Ok(Dispatched::Idle),
        NextStep::Unknown => return Ok(Dispatched::LeftToBackground),
        NextStep::Elsewhere => return Ok(Dispatched::HeldElsewhere),
        NextStep::Start(start @ Start { wait: Some(wait), .. }) => {
            record_wait(queue, subscription, start, wait)?;
            return Ok(Dispatched::Waits(wait));
        }
        NextStep::Start(_) => {}
    }
    if slots.as_mut().is_some_and(|slots| !slots.has_free()) {
        return Ok(Dispatched::Queued);
    }
    if subscription.held_by.is_some() && !subscription.is_shared_pool() {
        return Ok(Dispatched::HeldElsewhere);
    }
    let consumer = &subscription.consumer;
    if is_left_to_others(&queue.files, consumer) {
        return Ok(Dispatched::LeftToOthers);
    }
    let Some(lock) = try_lock(&queue.files, consumer)? else {
        return Ok(Dispatched::LockHeld);
    };
    // From then on the supervisor holds the lock through its own copy, and looks again after releasing it.
    let started = launcher.start_supervisor(&queue.files, consumer, &lock, slots.is_some())?;
    if let Some(slots) = slots {
        slots.supervisors.extend(started);
    }
    Ok(Dispatched::Started)
}

/// Records that a consumer that was stalled waits now.
pub(super) fn record_wait(
    queue: &mut Queue,
    subscription: &Subscription,
    start: Start,
    wait: Wait,
) -> Result<()> {
    if start.ends_stall {
        let state = RunState {
            phase: Phase::Waiting,
            next_try: Some(wait.until),
            since: Some(wait.until - wait.left),
            ..subscription.state.clone()
        };
        // If the row has changed, its next reader sees that.
        if queue.store.update_run(subscription, &RunUpdate::state(state))?.is_some() {
            log_wait(queue, subscription, wait);
        }
    }
    Ok(())
}

pub(super) fn log_wait(queue: &Queue, subscription: &Subscription, wait: Wait) {
    let (consumer, until) = (&subscription.consumer, time::format(wait.until));
    let attempts = subscription.state.attempts;
    log!(queue, Info, "dispatch: consumer={consumer} waiting until={until} attempts={attempts}");
}

/// Tries to take a consumer's lock; `None` if it is held. The caller has made sure that this machine does not leave the
/// consumer to others.
pub fn try_lock(files: &Files, consumer: &ConsumerId) -> Result<Option<Lock>> {
    Lock::try_take(files, files.consumer_lock(consumer))
}

/// Leaves a consumer to other machines for [`LEFT`], because this one lacks what its handler needs.
pub(super) fn leave_to_others(files: &Files, consumer: &ConsumerId) {
    drop(files.touch(left_mark(files, consumer)));
}

/// Whether this machine leaves a consumer to others for now.
pub(super) fn is_left_to_others(files: &Files, consumer: &ConsumerId) -> bool {
    if !files.location().backend().is_shared_by_machines {
        return false;
    }
    let Ok(mark) = files.stat(left_mark(files, consumer)) else { return false };
    let age = Utc::now().timestamp() - mark.st_mtime;
    (0..LEFT.as_secs().cast_signed()).contains(&age)
}

/// The file whose modification time is when it began.
fn left_mark(files: &Files, consumer: &ConsumerId) -> PathBuf {
    files.consumer_lock(consumer).with_extension("left")
}

/// Returns what to do for a consumer now. Filters are evaluated until `until` at the latest.
///
/// # Errors
///
/// [`Error::BrokenFilter`], [`Error::BrokenSubscription`]; database errors.
pub fn next_step(queue: &mut Queue, subscription: &Subscription, until: Option<Instant>) -> Result<NextStep> {
    step(queue, subscription, until, true)
}

/// The run that is due for a consumer, now or after a wait; `None` if the subscription is broken. Unlike a dispatch, this
/// writes neither to the log nor to the database.
pub fn next_start(queue: &mut Queue, subscription: &Subscription) -> Result<Option<Start>> {
    match step(queue, subscription, None, false) {
        Err(Error::BrokenFilter { .. } | Error::BrokenSubscription(_)) => Ok(None),
        step => Ok(if let NextStep::Start(start) = step? { Some(start) } else { None }),
    }
}

/// Returns what to do for a consumer; with `remember`, stores how far events were scanned.
fn step(
    queue: &mut Queue,
    subscription: &Subscription,
    until: Option<Instant>,
    remember: bool,
) -> Result<NextStep> {
    if !subscription.has_handler() {
        return Ok(NextStep::None { pending: false });
    }
    // Evaluating a filter on a single event may take seconds.
    if subscription.filter_text().is_some() && until.is_some_and(|until| Instant::now() >= until) {
        return Ok(NextStep::Unknown);
    }
    let scan = match remember {
        true => queue.scan_pending(subscription, until)?,
        false => pending::scan(&mut *queue.store, subscription, until, false)?,
    };
    step_after(queue, subscription, &scan, until, remember)
}

/// The run of a consumer that is due at once, after a scan for its pending events.
pub(super) fn run_after(
    queue: &mut Queue,
    subscription: &Subscription,
    scan: &PendingScan,
) -> Result<Option<Start>> {
    match step_after(queue, subscription, scan, None, true)? {
        NextStep::Start(start) if start.wait.is_none() => Ok(Some(start)),
        _ => Ok(None),
    }
}

fn step_after(
    queue: &mut Queue,
    subscription: &Subscription,
    scan: &PendingScan,
    until: Option<Instant>,
    remember: bool,
) -> Result<NextStep> {
    if scan.first.is_none() && !subscription.has_retry() {
        return Ok(if scan.cut_short { NextStep::Unknown } else { NextStep::None { pending: false } });
    }
    check(&queue.files, subscription)?;
    let state = &subscription.state;
    let newer = match state.phase {
        Phase::Stalled if !state.paused => match has_newer(queue, subscription, until, remember)? {
            Some(newer) => newer,
            None => return Ok(NextStep::Unknown),
        },
        _ => false,
    };
    let is_ending = state.stop.is_some() || state.reason.is_some();
    let may_join = !(state.phase == Phase::Running && is_ending) || subscription.elsewhere.is_empty();
    let retries = subscription.has_retry() && !retries_elsewhere(queue, subscription)?;
    if !may_join || (!retries && scan.wait.is_none() && (scan.is_elsewhere || scan.first.is_none())) {
        return Ok(NextStep::Elsewhere);
    }
    let now = Utc::now();
    let until = |until: Time, recorded: Option<Time>| {
        let left = (until - now).to_std().unwrap_or_default();
        Wait { until, left, recorded }
    };
    let wait = match run::decide(state, &subscription.options, newer, now) {
        Action::None => return Ok(NextStep::None { pending: true }),
        // Unless the events wait.
        Action::Start if retries => None,
        Action::Start => scan.wait.as_ref().map(|wait| until(now + wait.left(now), Some(wait.until))),
        Action::WaitUntil(time) => {
            let is_stalled = state.phase == Phase::Stalled;
            Some(until(time, if is_stalled { state.ended } else { state.next_try }))
        }
    };
    Ok(NextStep::Start(Start { wait, first: scan.first, newest: scan.newest, ends_stall: newer }))
}

/// Whether all dead letters that are to be tried once more are at runs on other machines.
fn retries_elsewhere(queue: &mut Queue, subscription: &Subscription) -> Result<bool> {
    if subscription.elsewhere.is_empty() {
        return Ok(false);
    }
    let letters = queue.store.dead_letters(Some(&subscription.consumer))?;
    let ledger = queue.store.ledger(&subscription.consumer)?;
    let is_there =
        |id: &i64| ledger.claims().get(id).is_some_and(|claim| subscription.is_at_another_machine(claim));
    Ok(letters.iter().filter(|letter| letter.retry).all(|letter| is_there(&letter.event_id)))
}

/// Whether a matching event has arrived since a stalled consumer's last run, or a dead letter has to be
/// redelivered. `None` if time ran out.
fn has_newer(
    queue: &mut Queue,
    subscription: &Subscription,
    until: Option<Instant>,
    remember: bool,
) -> Result<Option<bool>> {
    if subscription.has_retry() {
        return Ok(Some(true));
    }
    // As if the consumer had acknowledged everything that existed when its last run began.
    let since = subscription.state.start_newest.max(subscription.last_acked_id);
    let later = Subscription { last_acked_id: since, ..subscription.clone() };
    let scan = pending::scan(&mut *queue.store, &later, until, false)?;
    if scan.cut_short {
        return Ok(None);
    }
    if remember && scan.first.is_none() && scan.newest - since >= REMEMBER_AFTER {
        // So that the next look does not scan the same events again.
        let state = RunState { start_newest: scan.newest, ..subscription.state.clone() };
        queue.store.update_run(subscription, &RunUpdate::state(state))?;
    }
    Ok(Some(scan.first.is_some()))
}

/// Checks everything a run needs except the filter: the handler and the working directory.
///
/// # Errors
///
/// [`Error::BrokenSubscription`].
pub fn check(files: &Files, subscription: &Subscription) -> Result<()> {
    let consumer = &subscription.consumer;
    if subscription.handler_cmd.trim().is_empty() {
        return Err(Error::BrokenSubscription(format!("the handler of '{consumer}' is empty")));
    }
    match subscription.cwd.as_deref().map(|cwd| files.resolve(cwd)) {
        Some(cwd) if !cwd.is_dir() => Err(Error::BrokenSubscription(format!(
            "the working directory of '{consumer}', {}, is gone",
            cwd.display()
        ))),
        _ => Ok(()),
    }
}
