//! Checks that subscriptions are valid, and that a process works for each consumer that is due.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use chrono::Utc;

use super::{Doctor, Finding};
use crate::error::Result;
use crate::model::run::Phase;
use crate::model::subscription::ConsumerId;
use crate::model::time;
use crate::pending;
use crate::queue::Queue;
use crate::run::WakeBy;
use crate::run::attend;
use crate::run::dispatch::{self, Dispatched};
use crate::run::due;
use crate::run::process::{AtWork, Liveness, at_work};

const CHECK: &str = "consumer";

/// How long a consumer may be due without a process before that is an error: a push may have stored its event
/// but not yet woken consumers, or a supervisor released the lock but not yet looked again.
const GRACE: Duration = Duration::from_secs(5);

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(50);

pub fn check(doctor: &mut Doctor<'_>, queue: &mut Queue) {
    if let Err(e) = scheduled(doctor, queue) {
        doctor.report(Finding::failed("scheduled", e));
    }
    let checked = subscriptions(doctor, queue).and_then(|()| unattended(queue));
    match checked {
        Ok(left) => report_unattended(doctor, queue, &left),
        Err(e) => doctor.report(Finding::failed(CHECK, e)),
    }
}

/// Reports broken subscriptions.
fn subscriptions(doctor: &mut Doctor<'_>, queue: &mut Queue) -> Result<()> {
    for subscription in queue.store.subscriptions()? {
        if let Err(e) = pending::checked_filter(&subscription) {
            doctor.report(Finding::failed("filter", e));
        }
        if let Err(e) = dispatch::check(&queue.files, &subscription) {
            doctor.report_lack(Finding::failed("handler", e));
        }
    }
    Ok(())
}

/// Checks that schedules are valid, and that a process waits for what is scheduled.
fn scheduled(doctor: &mut Doctor<'_>, queue: &mut Queue) -> Result<()> {
    const CHECK: &str = "scheduled";
    for schedule in queue.store.schedules()? {
        if let Some(problem) = schedule.problem(Utc::now()) {
            let problem = format!("the schedule '{}' makes no events: it {problem}", schedule.name);
            let advice = "`thread schedule remove` it and add it again, or install the time zones (tzdata)";
            doctor.report(Finding::error(CHECK, problem).advise(advice));
        }
    }
    let next = queue.next_due()?.filter(|next| !due::is_attended(queue, next));
    let Some(at) = next.and_then(|next| next.at) else { return Ok(()) };
    let launcher = doctor.launcher;
    let problem = format!("something is due at {}, and nothing waits for it", time::format(at));
    let finding = match launcher.waking {
        WakeBy::Nobody => Finding::warning(CHECK, format!("{problem}; waking is turned off")),
        _ => Finding::error(CHECK, problem),
    };
    if !queue.files.is_owner() {
        doctor.report(finding.advise("its owner's next `thread dispatch` waits for it"));
        return Ok(());
    }
    doctor.found(finding.advise("run `thread dispatch`, or `thread doctor --fix`"), || {
        due::make_due(queue, launcher).map(|()| "it is attended to again")
    });
    Ok(())
}

/// The consumers that are due and have no process working for them during all of [`GRACE`].
fn unattended(queue: &mut Queue) -> Result<BTreeSet<ConsumerId>> {
    let end = Instant::now() + GRACE;
    let mut left = look(queue)?;
    while !left.is_empty() && Instant::now() < end {
        std::thread::sleep(PAUSE);
        left = &left & &look(queue)?;
    }
    Ok(left)
}

fn look(queue: &mut Queue) -> Result<BTreeSet<ConsumerId>> {
    let mut left = BTreeSet::new();
    for subscription in queue.store.subscriptions()? {
        if subscription.state.phase == Phase::Stalled || subscription.held_by.is_some() {
            continue;
        }
        let Some(start) = dispatch::next_start(queue, &subscription)? else { continue };
        let is_attended = start.wait.is_some() && attend::attendance(&queue.files) != Liveness::Dead;
        if !is_attended && at_work(&queue.files, &subscription) == AtWork::Nobody {
            left.insert(subscription.consumer);
        }
    }
    Ok(left)
}

fn report_unattended(doctor: &mut Doctor<'_>, queue: &mut Queue, left: &BTreeSet<ConsumerId>) {
    let launcher = doctor.launcher;
    let mut dispatched: Vec<(ConsumerId, Dispatched)> = Vec::new();
    for consumer in left {
        let problem =
            format!("'{consumer}' has events pending, and nothing is running it or waiting to retry it");
        let finding = match launcher.waking {
            WakeBy::Nobody => Finding::warning(CHECK, format!("{problem}; waking is turned off")),
            _ => Finding::error(CHECK, problem),
        };
        if !queue.files.is_owner() {
            let advice = "its owner's next push or `thread dispatch` starts it; a worker of the owner's, `thread dispatch \
                          --follow`, starts what others push";
            doctor.report(finding.advise(advice));
            continue;
        }
        doctor.found(finding.advise("run `thread dispatch`, or `thread doctor --fix`"), || {
            if dispatched.is_empty() {
                dispatched = dispatch::dispatch(queue, launcher)?;
            }
            let at = dispatched.iter().position(|(id, _)| id == consumer);
            match at.map(|at| dispatched.swap_remove(at).1) {
                Some(Dispatched::Broken(e) | Dispatched::Failed(e)) => Err(e),
                Some(Dispatched::Started) => Ok("it was started"),
                Some(Dispatched::LeftToBackground) => Ok("a background process starts it"),
                Some(Dispatched::LockHeld | Dispatched::HeldElsewhere) => {
                    Ok("it has been started in the meantime")
                }
                Some(Dispatched::LeftToOthers) => Ok("it is left to other machines for now"),
                Some(Dispatched::Waits(_)) => Ok("its wait is attended to again"),
                Some(Dispatched::Idle | Dispatched::Queued) | None => Ok("nothing is due any more"),
            }
        });
    }
}
