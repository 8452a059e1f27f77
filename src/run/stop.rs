//! Ending a run on request, from outside.
//!
//! The request is written to the consumer's row, and its supervisor, the parent of the run, ends it. If the
//! supervisor was killed and its handler lives on, a process certainly belongs to the run in two cases: it is
//! in the process group of the recorded handler, which is still the same process; or it holds the consumer's
//! lock and was told in its environment that it works for this consumer of this thread. Nothing else is ever
//! signalled.

use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use chrono::Utc;
use rustix::process::Signal;

use super::control::{notify_supervisors, update};
use super::outcome::{End, record_end, record_end_of_wait};
use super::process::{self, Liveness, handler_of, supervisor_of};
use crate::error::{Error, Result};
use crate::model::run::{Exit, Phase, ProcessId, RunState, StopRequest};
use crate::model::subscription::{ConsumerId, Subscription};
use crate::model::time::Time;
use crate::queue::Queue;
use crate::store::{RunUpdate, Store};

/// How often the row and the processes are looked at.
const STEP: Duration = Duration::from_millis(10);

/// How long a consumer that is just between two runs may take to begin the next.
const BETWEEN_RUNS: Duration = Duration::from_millis(500);

/// How much longer than the run's processes are given a supervisor in another container may take.
const ELSEWHERE: Duration = Duration::from_secs(5);

/// What came of a request to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// The run or wait is over.
    Done,
    /// There was none.
    NothingToStop,
}

/// Ends the run or the wait of a consumer, and returns when it is gone.
///
/// # Errors
///
/// [`Error::UnknownConsumer`], [`Error::NotOwner`]; when its supervisor is in another PID namespace
/// and does not answer.
pub fn stop(queue: &mut Queue, consumer: &ConsumerId, request: StopRequest) -> Result<Stopped> {
    let subscription = queue.subscription(consumer)?;
    if !queue.files.is_owner() {
        return Err(Error::NotOwner(queue.path().to_owned()));
    }
    let began = Instant::now();
    // When the run or wait began that was asked to end.
    let mut asked: Option<Option<Time>> = None;
    loop {
        let current = queue.store.subscription(consumer)?;
        let Some(current) = current.filter(|now| now.is_same(&subscription)) else {
            // Unsubscribed, or subscribed anew, meanwhile: the run that was meant is over.
            return Ok(if asked.is_some() { Stopped::Done } else { Stopped::NothingToStop });
        };
        let state = &current.state;
        if !matches!(state.phase, Phase::Running | Phase::Waiting) {
            let starting = state.phase == Phase::Idle && began.elapsed() < BETWEEN_RUNS;
            if asked.is_some() {
                return Ok(Stopped::Done);
            }
            if !starting
                || process::holders_of(&queue.files, &queue.files.consumer_lock(consumer)).next().is_none()
            {
                return Ok(Stopped::NothingToStop);
            }
        } else if state.stop.is_none() && asked.is_some_and(|since| since != state.since) {
            // Something new has started the next one since.
            return Ok(Stopped::Done);
        } else if asked != Some(state.since) {
            // Once for each run: another who asks as well, in another way, is not fought.
            if request_stop(queue, &current, request)? {
                asked = Some(state.since);
            }
            continue;
        } else if supervisor_of(&queue.files, state) == Liveness::Dead {
            end_orphans(queue, &current, request);
            record_stopped(queue, &current)?;
        } else {
            notify_supervisors(&queue.files);
            let patience = Duration::from_millis(request.kill_after_ms).saturating_add(ELSEWHERE);
            if supervisor_of(&queue.files, state) == Liveness::Unknown && began.elapsed() > patience {
                withdraw_stop(queue, &current, request)?;
                return Err(Error::NotHeard(consumer.clone()));
            }
        }
        std::thread::sleep(STEP);
    }
}

/// Asks the supervisor of a run or a wait to end it. Returns false when there is none any more.
fn request_stop(queue: &mut Queue, subscription: &Subscription, request: StopRequest) -> Result<bool> {
    let requested = update(&mut queue.store, subscription, |current| {
        let busy = matches!(current.state.phase, Phase::Running | Phase::Waiting);
        let state = RunState { stop: Some(request), ..current.state.clone() };
        busy.then(|| RunUpdate { durable: true, ..RunUpdate::state(state) })
    })?;
    Ok(requested.is_some())
}

/// Takes a request back that nobody followed. Left there, it would stall the consumer later, when
/// somebody takes over from a supervisor that is gone.
fn withdraw_stop(queue: &mut Queue, subscription: &Subscription, request: StopRequest) -> Result<()> {
    update(&mut queue.store, subscription, |current| {
        let state = &current.state;
        let ours = state.stop == Some(request) && state.since == subscription.state.since;
        let state = RunState { stop: None, ..state.clone() };
        ours.then(|| RunUpdate { durable: true, ..RunUpdate::state(state) })
    })
    .map(drop)
}

/// Records the end of a run or a wait whose supervisor is dead, unless somebody else has done so.
fn record_stopped(queue: &mut Queue, subscription: &Subscription) -> Result<()> {
    match subscription.state.phase {
        Phase::Waiting => record_end_of_wait(queue, subscription).map(drop),
        _ => {
            let end = End { exit: Exit::Unknown, interrupted: false, output: "", at: Utc::now() };
            record_end(queue, subscription, &end).map(drop)
        }
    }
}

/// Ends what a killed supervisor left running.
fn end_orphans(queue: &Queue, subscription: &Subscription, request: StopRequest) {
    let lock = queue.files.consumer_lock(&subscription.consumer);
    let variable = |name: &str, value: &[u8]| [name.as_bytes(), b"=", value].concat();
    let told_who_it_is = [
        variable("THREAD_DIR", queue.path().as_os_str().as_bytes()),
        variable("THREAD_CONSUMER", subscription.consumer.as_str().as_bytes()),
    ];
    // A group that was the run's at first stays so for as long as it has members.
    let state = &subscription.state;
    let handler = state.handler.clone().filter(|_| handler_of(&queue.files, state) == Liveness::Alive);
    let orphans = || -> Vec<ProcessId> {
        let holders =
            process::holders_of(&queue.files, &lock).filter(|p| process::was_given(p.pid, &told_who_it_is));
        let mut found: Vec<ProcessId> = holders.collect();
        if let Some(handler) = &handler {
            found.extend(process::members_of(handler.pid));
        }
        found
    };
    let kill_at = Instant::now() + Duration::from_millis(request.kill_after_ms);
    let first = Signal::from_named_raw(request.signal).unwrap_or(Signal::TERM);
    let mut told: Vec<ProcessId> = Vec::new();
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
