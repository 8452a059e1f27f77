//! Ending a run on request, from outside.
//!
//! The request is written to the consumer's row, and its supervisor told to look: the supervisor is
//! the parent of the run and so the only one who can be certain about its processes. Where the
//! supervisor was killed and its handler lives on, two things make a process certainly the run's.
//! It belongs to the process group of the recorded handler, which is still the same process (pid,
//! start time, boot); or it holds the consumer's lock and was told, in its environment, that it
//! works for this consumer of this thread. Nothing else is ever signalled: not a leftover of an
//! earlier run (the lock was taken from it), nor somebody who merely opened the lock file.

use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use chrono::Utc;
use rustix::process::Signal;

use crate::error::Result;
use crate::process::{self, Identity};
use crate::rule::{Phase, StopRequest, Time};
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
    // When the run or wait began that was asked to end.
    let mut asked: Option<Option<Time>> = None;
    loop {
        let current = thread.store.subscription(&subscription.consumer)?;
        let Some(current) =
            current.filter(|now| now.token == subscription.token || subscription.token.is_none())
        else {
            // Unsubscribed, or subscribed anew, meanwhile: the run that was meant is over.
            return Ok(asked.is_some());
        };
        match (current.state.phase, &current.state.supervisor) {
            (Phase::Running | Phase::Waiting, _)
                if current.state.stop.is_none()
                    && asked.is_some_and(|since| since != current.state.since) =>
            {
                // Something new has started the next one since.
                return Ok(true);
            }
            (Phase::Running | Phase::Waiting, Some(supervisor)) if supervisor.is_alive() => {
                // Once for each run: another who asks as well, in another way, is not fought.
                if asked != Some(current.state.since) && thread.store.request_stop(&current, request)? {
                    asked = Some(current.state.since);
                }
                supervisor::nudge(&current);
            }
            (Phase::Running | Phase::Waiting, _) => {
                end_orphans(thread, &current, request);
                if thread.store.stopped(&current, Utc::now())? {
                    return Ok(true);
                }
                // Somebody has begun to look after it meanwhile, and is to be asked.
            }
            (Phase::Idle | Phase::Stalled, _) if asked.is_some() => return Ok(true),
            (Phase::Idle | Phase::Stalled, _) => {
                let starting = current.state.phase == Phase::Idle && began.elapsed() < BETWEEN_RUNS;
                let lock = thread.files.consumer_lock(&current.consumer);
                if !starting || process::holders_of(&lock).next().is_none() {
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
    let variable = |name: &str, value: &[u8]| [name.as_bytes(), b"=", value].concat();
    let told_who_it_is = [
        variable("THREAD_DIR", thread.dir().as_os_str().as_bytes()),
        variable("THREAD_CONSUMER", subscription.consumer.as_str().as_bytes()),
    ];
    // A group that was the run's at first stays so for as long as it has members.
    let handler = subscription.state.handler.clone().filter(Identity::is_alive);
    let orphans = || -> Vec<Identity> {
        let holders = process::holders_of(&lock).filter(|p| process::was_given(p.pid, &told_who_it_is));
        let mut found: Vec<Identity> = holders.collect();
        if let Some(handler) = &handler {
            found.extend(process::members_of(handler.pid));
            found.extend(Some(handler.clone()).filter(Identity::is_alive));
        }
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
