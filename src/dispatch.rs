//! Who has something new, and starting its handler.
//!
//! For each subscription: is something pending? Then try its lock; if that is held, whoever holds
//! it looks again after letting go, so going away is safe. If it is free, look once more under the
//! lock, because the last run may have ended between the two, and hand the lock to a supervisor.

use crate::error::{Failure, Result};
use crate::lock::Lock;
use crate::log::{self, Level, Quoted};
use crate::store::Look;
use crate::subscription::{ConsumerId, Subscription};
use crate::supervisor;
use crate::thread::Thread;

/// What became of one consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing is pending.
    Idle,
    /// A supervisor was started; it starts the handler.
    Started,
    /// The lock is held: its holder will look again.
    Running,
    /// It could not be started; the log says why.
    Broken(String),
}

/// Starts the handler of every consumer that has something pending and is not running.
///
/// Trouble with one consumer is logged and does not keep the others from being started.
///
/// # Errors
///
/// Only when the subscriptions cannot be read, or the thread belongs to somebody else.
pub fn dispatch(thread: &mut Thread) -> Result<Vec<(ConsumerId, Outcome)>> {
    if !thread.files.is_owner() {
        return Err(Failure::could_not(
            format_args!(
                "{} belongs to another user, who alone may start its handlers",
                thread.dir().display()
            ),
            "run `thread dispatch` as that user",
        ));
    }
    let subscriptions = thread.store.subscriptions()?;
    Ok(subscriptions
        .into_iter()
        .map(|subscription| {
            let consumer = subscription.consumer.clone();
            let outcome =
                start_if_pending(thread, subscription).unwrap_or_else(|e| Outcome::Broken(e.to_string()));
            match &outcome {
                Outcome::Idle | Outcome::Started => {}
                Outcome::Running => {
                    thread
                        .log(Level::Info, format_args!("dispatch: consumer={consumer} skipped (lock held)"));
                }
                Outcome::Broken(why) => {
                    thread
                        .log(Level::Error, format_args!("dispatch: consumer={consumer} not started: {why}"));
                }
            }
            (consumer, outcome)
        })
        .collect())
}

fn start_if_pending(thread: &mut Thread, mut subscription: Subscription) -> Result<Outcome> {
    loop {
        if look(thread, &subscription)?.first_pending.is_none() {
            return Ok(Outcome::Idle);
        }
        let Some(lock) = take_lock(thread, &subscription.consumer)? else { return Ok(Outcome::Running) };
        let Some(current) = thread.store.subscription(&subscription.consumer)? else {
            lock.release();
            return Ok(Outcome::Idle);
        };
        if look(thread, &current)?.first_pending.is_some() {
            let spawned = supervisor::check_directory(&current)
                .and_then(|()| supervisor::spawn(thread, &current, &lock));
            if spawned.is_err() {
                lock.release();
            }
            return spawned.map(|()| Outcome::Started);
        }
        lock.release();
        // Something may have come while the lock was ours, and its pusher was turned away.
        subscription = current;
    }
}

/// Tries the consumer's lock.
pub fn take_lock(thread: &Thread, consumer: &ConsumerId) -> Result<Option<Lock>> {
    let path = thread.files.consumer_lock(consumer);
    thread.files.open_lock(&path).and_then(Lock::try_take).map_err(|e| {
        Failure::could_not(
            format_args!("cannot lock {}: {e}", path.display()),
            "check the permissions of run/",
        )
    })
}

/// Looks whether something is pending, and logs what the filter erred on.
///
/// # Errors
///
/// Database trouble, or a stored filter that is no filter.
pub fn look(thread: &mut Thread, subscription: &Subscription) -> Result<Look> {
    let look = thread.store.look(subscription)?;
    log_troubles(thread, subscription, &look);
    match look.broken_filter {
        Some(why) => Err(broken_filter(&subscription.consumer, &why)),
        None => Ok(look),
    }
}

/// What is said of a stored filter that is none.
pub fn broken_filter(consumer: &ConsumerId, why: &str) -> Failure {
    Failure::could_not(
        format_args!("the filter of '{consumer}' {why}"),
        format_args!(
            "`thread unsubscribe --consumer {consumer}`, then `thread subscribe` it with another filter"
        ),
    )
}

fn log_troubles(thread: &Thread, subscription: &Subscription, look: &Look) {
    // A filter that errs on everything must not fill the log: the first few tell the story.
    const SHOWN: usize = 10;
    for trouble in look.troubles.iter().take(SHOWN) {
        thread.log(
            Level::Warn,
            format_args!(
                "filter: consumer={} id={} does not match: error={}",
                subscription.consumer,
                trouble.id,
                Quoted(&trouble.message)
            ),
        );
    }
    if let (Some(last), true) = (look.troubles.last(), look.troubles.len() > SHOWN) {
        log::write(
            &thread.files,
            Level::Warn,
            format_args!(
                "filter: consumer={} erred on {} more events up to id={}",
                subscription.consumer,
                look.troubles.len() - SHOWN,
                last.id
            ),
        );
    }
}

/// Whether some consumer has something pending and nobody is recorded as taking care of it.
pub fn somebody_waits(thread: &mut Thread) -> Result<bool> {
    for subscription in thread.store.subscriptions()? {
        let cared_for = subscription.run.as_ref().is_some_and(|run| run.process.is_alive());
        // A broken filter waits for its owner, not for a dispatch.
        if !cared_for && thread.store.look(&subscription)?.first_pending.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}
