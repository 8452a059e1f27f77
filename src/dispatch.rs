//! Who has something new, and starting its handler.
//!
//! For each subscription: is something pending, and does the rule for runs allow a run? Then try
//! its lock; if that is held, whoever holds it looks again after letting go, so going away is safe.
//! If it is free, look once more under the lock, because the last run may have ended between the
//! two, and hand the lock to a supervisor.

use chrono::Utc;

use crate::error::{Failure, Result};
use crate::filter::{Filter, Scope};
use crate::interrupt::PutOff;
use crate::lock::Lock;
use crate::log::{Level, Quoted};
use crate::rule::{Action, Cause, Phase, Time, decide};
use crate::store::Look;
use crate::subscription::{ConsumerId, Subscription};
use crate::supervisor;
use crate::thread::Thread;

/// What became of one consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing is pending, or it is not to be started.
    Idle,
    /// A supervisor was started; it starts the handler, at once or when its wait is over.
    Started,
    /// The lock is held: its holder will look again.
    Running,
    /// It could not be started; the log says why.
    Broken(String),
}

/// What is to be done for a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Rest {
        pending: bool,
    },
    Start {
        /// The newest event at the time of the look.
        newest: i64,
    },
    WaitUntil(Time),
}

/// Starts the handler of every consumer that has something pending and is not running.
///
/// Trouble with one consumer is logged and does not keep the others from being started.
///
/// # Errors
///
/// Only when the subscriptions cannot be read, or the thread belongs to somebody else.
pub fn dispatch(thread: &mut Thread, cause: Cause) -> Result<Vec<(ConsumerId, Outcome)>> {
    dispatch_others(thread, cause, &[])
}

/// The same but for consumers whose supervisors were `called`.
pub fn dispatch_others(
    thread: &mut Thread,
    cause: Cause,
    called: &[ConsumerId],
) -> Result<Vec<(ConsumerId, Outcome)>> {
    if !thread.files.is_owner() {
        return Err(Failure::could_not(
            format_args!(
                "{} belongs to another user, who alone may start its handlers",
                thread.dir().display()
            ),
            "run `thread dispatch` as that user",
        ));
    }
    let mut outcomes = Vec::new();
    for subscription in thread.store.subscriptions()? {
        let consumer = subscription.consumer.clone();
        if called.contains(&consumer) {
            outcomes.push((consumer, Outcome::Started));
            continue;
        }
        let started = start_if_pending(thread, subscription, cause);
        let outcome = started.unwrap_or_else(|failure| Outcome::Broken(failure.to_string()));
        match &outcome {
            Outcome::Idle | Outcome::Started => {}
            Outcome::Running => log_turned_away(thread, &consumer),
            Outcome::Broken(why) => {
                thread.log(Level::Error, format_args!("dispatch: consumer={consumer} not started: {why}"));
            }
        }
        outcomes.push((consumer, outcome));
    }
    Ok(outcomes)
}

/// Whether a consumer neither runs nor waits nor stands still, as far as its row tells.
pub fn is_idle(subscription: &Subscription) -> bool {
    subscription.state.phase == Phase::Idle && !subscription.state.paused
}

/// Notes that a consumer was left to whoever holds its lock.
pub fn log_turned_away(thread: &Thread, consumer: &ConsumerId) {
    thread.log(Level::Info, format_args!("dispatch: consumer={consumer} skipped (lock held)"));
}

fn start_if_pending(thread: &mut Thread, mut subscription: Subscription, cause: Cause) -> Result<Outcome> {
    // From the first lock to the last look.
    let mut signals = None;
    loop {
        if let Step::Rest { .. } = next_step(thread, &subscription, cause)? {
            return Ok(Outcome::Idle);
        }
        signals.get_or_insert_with(PutOff::begin);
        let Some(lock) = take_lock(thread, &subscription.consumer)? else { return Ok(Outcome::Running) };
        let started = start_locked(thread, &subscription, cause, &lock);
        if let Ok(Ok(())) = started {
            // The supervisor holds it now, through its own copy.
            return Ok(Outcome::Started);
        }
        lock.release();
        match started? {
            Ok(()) | Err(None) => return Ok(Outcome::Idle),
            // Something may have come while the lock was ours, and its pusher was turned away.
            Err(Some(current)) => subscription = *current,
        }
    }
}

/// Starts a supervisor under the lock, unless there is nothing to be done any more: then the
/// subscription as it stands, if it does, is the inner error.
fn start_locked(
    thread: &mut Thread,
    seen: &Subscription,
    cause: Cause,
    lock: &Lock,
) -> Result<std::result::Result<(), Option<Box<Subscription>>>> {
    let Some(current) = thread.store.subscription(&seen.consumer)? else { return Ok(Err(None)) };
    match next_step(thread, &current, cause)? {
        Step::Rest { .. } => Ok(Err(Some(Box::new(current)))),
        Step::Start { .. } | Step::WaitUntil(_) => supervisor::spawn(thread, &current, lock, cause).map(Ok),
    }
}

/// Tries the consumer's lock.
pub fn take_lock(thread: &Thread, consumer: &ConsumerId) -> Result<Option<Lock>> {
    Lock::try_take_in(&thread.files, &thread.files.consumer_lock(consumer))
}

/// What is to be done for a consumer now.
///
/// # Errors
///
/// Database trouble, or a subscription that cannot be carried out: see [`defect`].
pub fn next_step(thread: &mut Thread, subscription: &Subscription, cause: Cause) -> Result<Step> {
    let look = look(thread, subscription)?;
    if look.first_pending.is_none() && !subscription.has_letter_to_retry() {
        return Ok(Step::Rest { pending: false });
    }
    if let Some(failure) = defect(subscription) {
        return Err(failure);
    }
    let stalled =
        subscription.state.phase == Phase::Stalled && cause == Cause::News && !subscription.state.paused;
    let newer = stalled && has_newer(thread, subscription)?;
    Ok(match decide(&subscription.state, &subscription.policy, newer, cause, Utc::now()) {
        Action::Rest => Step::Rest { pending: true },
        Action::Start => Step::Start { newest: look.newest },
        Action::WaitUntil(time) => Step::WaitUntil(time),
    })
}

/// Whether something matching has come since a stalled consumer's last run, or a dead letter is to
/// be delivered again.
fn has_newer(thread: &mut Thread, subscription: &Subscription) -> Result<bool> {
    if subscription.has_letter_to_retry() {
        return Ok(true);
    }
    let later = since_last_run(subscription);
    let since = later.last_acked_id;
    let found = thread.store.look_without_memory(&later)?;
    if found.first_pending.is_none() && found.newest - since >= 256 {
        // So that the next look need not go the same way again.
        thread.store.remember_newest(subscription, found.newest)?;
    }
    Ok(found.first_pending.is_some())
}

/// A consumer as if it had finished with all that was there when its last run began.
pub fn since_last_run(subscription: &Subscription) -> Subscription {
    let since = subscription.state.run_newest.max(subscription.last_acked_id);
    Subscription { last_acked_id: since, mark: None, ..subscription.clone() }
}

/// Why a subscription cannot be carried out, apart from its filter.
pub fn defect(subscription: &Subscription) -> Option<Failure> {
    let consumer = &subscription.consumer;
    if subscription.handler_cmd.trim().is_empty() {
        return Some(Failure::could_not(
            format_args!("the handler of '{consumer}' is empty"),
            "`thread unsubscribe` it, then `thread subscribe` it with another handler",
        ));
    }
    match &subscription.cwd {
        Some(cwd) if !cwd.is_dir() => Some(Failure::could_not(
            format_args!("the working directory of '{consumer}', {}, is gone", cwd.display()),
            "make that directory again, or `thread unsubscribe` it and subscribe it from another",
        )),
        _ => None,
    }
}

/// Whether anything is pending. A filter that is none matches nothing.
pub fn is_pending(thread: &mut Thread, subscription: &Subscription) -> Result<bool> {
    let look = look_leniently(thread, subscription)?;
    Ok(look.first_pending.is_some() || subscription.has_letter_to_retry())
}

/// Looks whether something is pending, and logs what the filter erred on.
///
/// # Errors
///
/// Database trouble, or a stored filter that is no filter.
pub fn look(thread: &mut Thread, subscription: &Subscription) -> Result<Look> {
    let look = look_leniently(thread, subscription)?;
    match look.broken_filter {
        Some(why) => Err(broken_filter(&subscription.consumer, &why)),
        None => Ok(look),
    }
}

/// The same where a filter that is none matches nothing. Whoever looks must log, because what the
/// filter erred on is told only once.
pub fn look_leniently(thread: &mut Thread, subscription: &Subscription) -> Result<Look> {
    let look = thread.store.look(subscription)?;
    log_troubles(thread, subscription, &look);
    Ok(look)
}

/// The filter of a subscription, checked again: other programs write the table too.
pub fn checked_filter(thread: &mut Thread, subscription: &Subscription) -> Result<Option<Filter>> {
    let text = subscription.filter_text().unwrap_or_default();
    let checked = thread.store.check_filter(text, Scope::Subscription);
    checked.map_err(|refusal| broken_filter(&subscription.consumer, &refusal.0))
}

/// What is said of a stored filter that is none.
fn broken_filter(consumer: &ConsumerId, why: &str) -> Failure {
    Failure::could_not(
        format_args!("the filter of '{consumer}' {why}"),
        "`thread unsubscribe` it, then `thread subscribe` it with another filter",
    )
}

fn log_troubles(thread: &Thread, subscription: &Subscription, look: &Look) {
    // A filter that errs on everything must not fill the log: the first few tell the story.
    const SHOWN: usize = 10;
    let consumer = &subscription.consumer;
    for trouble in look.troubles.iter().take(SHOWN) {
        let error = Quoted(&trouble.message);
        thread.log(
            Level::Warn,
            format_args!("filter: consumer={consumer} id={} does not match: error={error}", trouble.id),
        );
    }
    if let Some(last) = look.troubles.get(SHOWN..).and_then(<[_]>::last) {
        let more = look.troubles.len() - SHOWN;
        thread.log(
            Level::Warn,
            format_args!("filter: consumer={consumer} erred on {more} more events up to id={}", last.id),
        );
    }
}

/// Whether some consumer is to be started and nobody is recorded as taking care of it.
pub fn somebody_waits(thread: &mut Thread) -> Result<bool> {
    for subscription in thread.store.subscriptions()? {
        let cared_for =
            subscription.state.supervisor.as_ref().is_some_and(|supervisor| supervisor.is_alive());
        // A broken subscription waits for its owner, not for a dispatch.
        let step = if cared_for { None } else { next_step(thread, &subscription, Cause::News).ok() };
        if matches!(step, Some(Step::Start { .. } | Step::WaitUntil(_))) {
            return Ok(true);
        }
    }
    Ok(false)
}
