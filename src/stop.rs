//! Ending a run on request, from outside.
//!
//! The request is written to the consumer's row, and its supervisor told to look: the supervisor is
//! the parent of the run and so the only one who can be certain about its processes. Where the
//! supervisor was killed and its handler lives on, the processes are found by what makes them
//! ours: they hold the consumer's lock file open, or are the recorded handler (pid, start time,
//! boot). Nothing else is ever signalled.

use std::time::{Duration, Instant};

use chrono::Utc;
use rustix::process::Signal;

use crate::error::Result;
use crate::process::{Identity, holders_of};
use crate::rule::{Phase, StopRequest};
use crate::subscription::Subscription;
use crate::supervisor;
use crate::thread::Thread;

/// How often the row and the processes are looked at.
const STEP: Duration = Duration::from_millis(10);

/// How long a consumer that is just between two runs may take to begin the next.
const BETWEEN_RUNS: Duration = Duration::from_millis(500);

/// Ends the run or the wait of a consumer, and returns when it is gone. False when there is
/// nothing to stop.
pub fn stop(thread: &mut Thread, subscription: &Subscription, request: StopRequest) -> Result<bool> {
    let began = Instant::now();
    let mut requested = false;
    loop {
        let current = thread.store.subscription(&subscription.consumer)?;
        let Some(current) =
            current.filter(|now| now.token == subscription.token || subscription.token.is_none())
        else {
            // Unsubscribed, or subscribed anew, meanwhile: the run that was meant is over.
            return Ok(requested);
        };
        match (current.state.phase, &current.state.supervisor) {
            (Phase::Running | Phase::Waiting, Some(supervisor)) if supervisor.is_alive() => {
                if current.state.stop != Some(request) {
                    requested |= thread.store.request_stop(&current, request)?;
                }
                supervisor::nudge(&current);
            }
            (Phase::Running | Phase::Waiting, _) => {
                end_orphans(thread, &current, request);
                thread.store.stopped(&current, Utc::now())?;
                return Ok(true);
            }
            (Phase::Idle | Phase::Stalled, _) if requested => return Ok(true),
            (Phase::Idle | Phase::Stalled, _) => {
                let starting = current.state.phase == Phase::Idle && began.elapsed() < BETWEEN_RUNS;
                if !starting || holders_of(&thread.files.consumer_lock(&current.consumer)).is_empty() {
                    return Ok(false);
                }
            }
        }
        std::thread::sleep(STEP);
    }
}

/// Ends what a killed supervisor left running.
fn end_orphans(thread: &Thread, subscription: &Subscription, request: StopRequest) {
    let lock = thread.files.consumer_lock(&subscription.consumer);
    let recorded = subscription.state.handler.clone();
    let orphans = || -> Vec<Identity> {
        let mut found = holders_of(&lock);
        found.extend(recorded.iter().filter(|handler| handler.is_alive()).cloned());
        found
    };
    let kill_at = Instant::now() + request.kill_after;
    let first = Signal::from_named_raw(request.signal).unwrap_or(Signal::TERM);
    let mut told: Vec<Identity> = Vec::new();
    loop {
        let left = orphans();
        if left.is_empty() {
            return;
        }
        let killing = Instant::now() >= kill_at;
        for process in left {
            // One that is gone by now is what was wanted.
            if killing {
                process.signal(Signal::KILL).ok();
            } else if !told.contains(&process) {
                process.signal(first).and_then(|()| process.signal(Signal::CONT)).ok();
                told.push(process);
            }
        }
        std::thread::sleep(STEP);
    }
}
