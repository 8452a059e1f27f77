//! The consumers: can their subscriptions be carried out, and does somebody look after those that
//! have something pending.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use chrono::Utc;

use super::{Doctor, Finding};
use crate::dispatch::{self, Outcome};
use crate::error::{Failure, Result};
use crate::files::Files;
use crate::filter::Scope;
use crate::notifier::{self, Choice};
use crate::process::{self, Identity};
use crate::rule::{Action, Cause, Phase, decide};
use crate::store::Store;
use crate::subscription::{ConsumerId, Subscription};
use crate::supervisor;
use crate::thread::Thread;

const CHECK: &str = "consumer";

/// How long a consumer may seem to be left alone before it is: a push that has stored its event may
/// not have come to waking, and a supervisor that ended not to looking again.
const GRACE: Duration = Duration::from_secs(5);

/// How long the look for somebody at work pauses.
const PAUSE: Duration = Duration::from_millis(50);

/// What is wrong with a consumer that nobody looks after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    /// It should be started or waited for.
    Pending,
    /// It is recorded to run or to wait, and does not; nothing is pending.
    Stale,
}

pub fn check(doctor: &mut Doctor, thread: &mut Thread) {
    let checked = subscriptions(doctor, thread).and_then(|()| {
        let left = left_alone(thread)?;
        tell(doctor, thread, &left);
        Ok(())
    });
    if let Err(failure) = checked {
        doctor.tell(Finding::failed(CHECK, failure));
    }
}

/// Subscriptions that cannot be carried out.
fn subscriptions(doctor: &mut Doctor, thread: &mut Thread) -> Result<()> {
    for subscription in thread.store.subscriptions()? {
        if let Err(failure) = dispatch::checked_filter(thread, &subscription) {
            doctor.tell(Finding::failed("filter", failure));
        }
        if let Some(failure) = dispatch::defect(&subscription) {
            doctor.tell(Finding::failed("handler", failure));
        }
    }
    Ok(())
}

/// Consumers that nobody looks after, however long one waits for it.
fn left_alone(thread: &mut Thread) -> Result<BTreeMap<String, Left>> {
    let deadline = Instant::now() + GRACE;
    let mut left = look(thread)?;
    while !left.is_empty() && Instant::now() < deadline {
        std::thread::sleep(PAUSE);
        let now = look(thread)?;
        left.retain(|consumer, _| now.contains_key(consumer));
        for (consumer, how) in &mut left {
            *how = now.get(consumer).copied().unwrap_or(*how);
        }
    }
    Ok(left)
}

fn look(thread: &mut Thread) -> Result<BTreeMap<String, Left>> {
    let mut left = BTreeMap::new();
    for subscription in thread.store.subscriptions()? {
        let recorded = matches!(subscription.state.phase, Phase::Running | Phase::Waiting);
        let how = match is_due(&mut thread.store, &subscription)? {
            true => Left::Pending,
            false if recorded && !subscription.state.paused => Left::Stale,
            false => continue,
        };
        if !is_looked_after(&thread.files, &subscription) {
            left.insert(subscription.consumer.as_str().to_owned(), how);
        }
    }
    Ok(left)
}

/// Whether it is to be started, now or when a wait is over. Unlike a dispatch this writes nothing,
/// neither to the log nor about how far it looked.
fn is_due(store: &mut Store, subscription: &Subscription) -> Result<bool> {
    let text = subscription.filter_text().unwrap_or_default();
    if store.check_filter(text, Scope::Subscription).is_err() || dispatch::defect(subscription).is_some() {
        return Ok(false);
    }
    let letter = subscription.has_letter_to_retry();
    if !letter && store.look_without_memory(subscription)?.first_pending.is_none() {
        return Ok(false);
    }
    let newer =
        letter || store.look_without_memory(&dispatch::since_last_run(subscription))?.first_pending.is_some();
    let action = decide(&subscription.state, &subscription.policy, newer, Cause::News, Utc::now());
    Ok(action != Action::Rest)
}

/// Whether its supervisor or its handler runs, or anybody holds its lock.
fn is_looked_after(files: &Files, subscription: &Subscription) -> bool {
    let state = &subscription.state;
    [&state.supervisor, &state.handler].into_iter().flatten().any(Identity::is_alive)
        || process::holders_of(&files.consumer_lock(&subscription.consumer)).next().is_some()
}

fn tell(doctor: &mut Doctor, thread: &mut Thread, left: &BTreeMap<String, Left>) {
    if left.is_empty() {
        return;
    }
    let is_off = notifier::choice() == Choice::Off;
    let mut outcomes: Option<Result<Vec<(ConsumerId, Outcome)>>> = None;
    for (consumer, how) in left {
        match how {
            Left::Pending => {
                let problem = format!("'{consumer}' has events pending, and nobody runs or waits for it");
                let finding = match is_off {
                    true => Finding::warning(CHECK, format!("{problem}; waking is switched off")),
                    false => Finding::error(CHECK, problem),
                };
                doctor.found(finding.instead("run `thread dispatch`, or `thread doctor --fix`"), || {
                    let outcomes = outcomes.get_or_insert_with(|| dispatch::dispatch(thread, Cause::News));
                    started(outcomes, consumer)
                });
            }
            Left::Stale => {
                let problem = format!("'{consumer}' is recorded to run or to wait, but that process is gone");
                doctor.found(Finding::warning(CHECK, problem), || {
                    settle(thread, &ConsumerId::stored(consumer.as_str()))
                });
            }
        }
    }
}

/// What a dispatch came to for a consumer.
fn started(outcomes: &Result<Vec<(ConsumerId, Outcome)>>, consumer: &str) -> Result<String> {
    let outcomes = outcomes.as_ref().map_err(Failure::clone)?;
    match outcomes.iter().find(|(id, _)| id.as_str() == consumer) {
        Some((_, Outcome::Broken(why))) => Err(Failure::could_not(why, "see logs/thread.log")),
        _ => Ok("it was started".to_owned()),
    }
}

/// Has a supervisor settle a run that was cut off.
fn settle(thread: &mut Thread, consumer: &ConsumerId) -> Result<String> {
    if !thread.files.is_owner() {
        return Err(Failure::could_not("the thread belongs to another user", "run this as that user"));
    }
    let Some(lock) = dispatch::take_lock(thread, consumer)? else {
        return Ok("somebody looks after it now".to_owned());
    };
    let spawned = match thread.store.subscription(consumer) {
        Ok(Some(subscription)) => supervisor::spawn(thread, &subscription, &lock, Cause::News),
        Ok(None) => Err(Failure::could_not("it is subscribed no more", "look again")),
        Err(failure) => Err(failure),
    };
    if spawned.is_err() {
        lock.release();
    }
    spawned.map(|()| "its end was recorded".to_owned())
}
