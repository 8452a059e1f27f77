//! Making what is due events, on time. The process that attends to the waits of a thread does so: its
//! [timer](super::timer) or a [worker](super::worker).

use std::time::{Duration, Instant};

use chrono::TimeDelta;

use super::attend;
use super::launcher::{Launcher, WakeBy};
use super::process::Liveness;
use crate::error::Result;
use crate::files::watch::LOOK_EVERY;
use crate::files::{COMMIT, CONTROL};
use crate::model::scheduled::NextDue;
use crate::model::time::Time;
use crate::queue::Queue;
use crate::store::Notice;

/// So many steps of making events are followed by a look at the consumers.
const STEPS: usize = 20;

/// When the next event that was asked for by a duration is due by the monotonic clock, whatever happens to the time of
/// day.
#[derive(Debug, Default)]
pub(super) struct NextEvent {
    end: Option<(Time, Instant)>,
}

impl NextEvent {
    /// Makes what is due events. The consumers are to be started then. Returns how long until this has to be called
    /// again; `None` if nothing is scheduled. `hears_of_changes`: it is called again when anything has changed.
    pub fn make(&mut self, queue: &mut Queue, hears_of_changes: bool) -> Result<Option<Duration>> {
        for _ in 0..STEPS {
            let Some(next) = queue.next_due()? else {
                self.end = None;
                return Ok(None);
            };
            let now = Instant::now();
            let known = self.end.filter(|(at, _)| next.delayed.is_some_and(|(first, _)| first == *at));
            self.end = known.or(next.delayed.map(|(at, longest)| (at, now + next.until(at).min(longest))));
            let passed = self.end.filter(|(_, end)| *end <= now).map(|(at, _)| at);
            if !queue.make_due(&next, passed)? {
                let left = next.at.map_or(Duration::MAX, |at| next.until(at));
                let left = self.end.map_or(left, |(_, end)| left.min(end.saturating_duration_since(now)));
                // Another machine may schedule something that is due before.
                let is_shared = queue.location().backend().is_shared_by_machines;
                let looks_again = is_shared && !hears_of_changes;
                return Ok(Some(if looks_again { left.min(LOOK_EVERY) } else { left }));
            }
        }
        Ok(Some(Duration::ZERO))
    }
}

/// Makes what is due events, and makes sure that somebody attends to what is scheduled for later.
/// [`dispatch`](super::dispatch()) should follow.
///
/// # Errors
///
/// Those of the store; if the timer cannot be started.
pub fn make_due(queue: &mut Queue, launcher: &Launcher) -> Result<()> {
    while let Some(left) = NextEvent::default().make(queue, false)? {
        if !left.is_zero() {
            return attend::attend(&queue.files, launcher);
        }
    }
    Ok(())
}

/// What is overdue by this much is attended to by no machine.
const OVERDUE: TimeDelta = TimeDelta::seconds(10);

/// How long who attends to it may take to say so.
const STARTS_WITHIN: Duration = Duration::from_millis(300);

/// Whether somebody makes what is due next an event, as far as that can be known here.
pub fn is_attended(queue: &Queue, next: &NextDue) -> bool {
    // Nobody knows what other machines run.
    if queue.location().backend().is_shared_by_machines {
        return next.at.is_none_or(|at| next.now - at < OVERDUE);
    }
    let end = Instant::now() + STARTS_WITHIN;
    while attend::attendance(&queue.files) == Liveness::Dead {
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Makes sure that somebody attends to what was scheduled just now, unless only a dispatch may start processes.
///
/// # Errors
///
/// The timer cannot be started.
pub fn attend_to_scheduled(queue: &mut Queue, launcher: &Launcher) -> Result<()> {
    let is_left_to_others = !queue.location().backend().wakes_on_push || launcher.waking == WakeBy::Nobody;
    if !is_left_to_others && queue.files.is_owner() {
        return attend::attend(&queue.files, launcher);
    }
    // For those who are there already.
    drop(queue.files.touch(CONTROL));
    drop(queue.files.touch(COMMIT));
    queue.store.announce(Notice::Stored);
    Ok(())
}
