//! Ending a run on request, from another process.
//!
//! The request is written to the consumer's row, and the supervisor, the parent of the run, ends it. If the
//! supervisor was killed but its handler is still running, a process certainly belongs to the run in two
//! cases: it is in the process group of the recorded handler, which is still the same process; or it holds
//! the consumer's lock and has this thread and consumer in its environment. No other process is ever
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
use crate::store::RunUpdate;

/// Polling interval for the row and the processes.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The same where each look asks a server.
const POLL_SERVER: Duration = Duration::from_millis(200);

/// How long a consumer that is between two runs may take to start the next.
const BETWEEN_RUNS: Duration = Duration::from_millis(500);

/// How long a supervisor in another container may take to respond, in addition to the time before KILL.
const REMOTE_MARGIN: Duration = Duration::from_secs(5);

/// The result of a request to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// The run or wait is over.
    Done,
    /// There was neither.
    NothingToStop,
}

/// Ends the run or wait of a consumer, and returns when it is over.
///
/// # Errors
///
/// [`Error::UnknownConsumer`], [`Error::NotOwner`]; [`Error::NotHeard`] if its supervisor is in another PID
/// namespace and does not respond.
pub fn stop(queue: &mut Queue, consumer: &ConsumerId, request: StopRequest) -> Result<Stopped> {
    let subscription = queue.subscription(consumer)?;
    if !queue.files.is_owner() {
        return Err(Error::NotOwner(queue.place().clone()));
    }
    let began = Instant::now();
    // The start time of the run or wait that the request was made for.
    let mut asked: Option<Option<Time>> = None;
    loop {
        let current = queue.store.subscription(consumer)?;
        let Some(current) = current.filter(|now| now.is_same(&subscription)) else {
            // Unsubscribed or replaced in the meantime: the run in question is over.
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
            // That run or wait is over; another has started since.
            return Ok(Stopped::Done);
        } else if asked != Some(state.since) {
            // Once per run: do not overwrite a concurrent stop request.
            if request_stop(queue, &current, request)? {
                asked = Some(state.since);
            }
            continue;
        } else if supervisor_of(&queue.files, &current) == Liveness::Dead {
            end_orphans(queue, &current, request);
            record_stopped(queue, &current)?;
        } else {
            notify_supervisors(queue);
            let patience = Duration::from_millis(request.kill_after_ms).saturating_add(REMOTE_MARGIN);
            if supervisor_of(&queue.files, &current) == Liveness::Unknown && began.elapsed() > patience {
                withdraw_stop(queue, &current, request)?;
                return Err(Error::NotHeard(consumer.clone()));
            }
        }
        std::thread::sleep(if queue.place().dir().is_some() { POLL_INTERVAL } else { POLL_SERVER });
    }
}

/// Asks the supervisor to end the run or wait. Returns false if it is already over.
fn request_stop(queue: &mut Queue, subscription: &Subscription, request: StopRequest) -> Result<bool> {
    let requested = update(queue, subscription, |current| {
        let busy = matches!(current.state.phase, Phase::Running | Phase::Waiting);
        let state = RunState { stop: Some(request), ..current.state.clone() };
        busy.then(|| RunUpdate { durable: true, ..RunUpdate::state(state) })
    })?;
    Ok(requested.is_some())
}

/// Withdraws a request that no supervisor acted on. Otherwise it would stall the consumer later, when
/// another supervisor takes over from the one that is gone.
fn withdraw_stop(queue: &mut Queue, subscription: &Subscription, request: StopRequest) -> Result<()> {
    update(queue, subscription, |current| {
        let state = &current.state;
        let ours = state.stop == Some(request) && state.since == subscription.state.since;
        let state = RunState { stop: None, ..state.clone() };
        ours.then(|| RunUpdate { durable: true, ..RunUpdate::state(state) })
    })
    .map(drop)
}

/// Records the end of a run or wait whose supervisor is dead, unless another process has done so.
fn record_stopped(queue: &mut Queue, subscription: &Subscription) -> Result<()> {
    match subscription.state.phase {
        Phase::Waiting => record_end_of_wait(queue, subscription).map(drop),
        _ => {
            let end = End { exit: Exit::Unknown, interrupted: false, output: "", span: None, at: Utc::now() };
            record_end(queue, subscription, &end).map(drop)
        }
    }
}

/// Ends the processes that a killed supervisor left running.
fn end_orphans(queue: &Queue, subscription: &Subscription, request: StopRequest) {
    let lock = queue.files.consumer_lock(&subscription.consumer);
    let variable = |name: &str, value: &[u8]| [name.as_bytes(), b"=", value].concat();
    let run_variables = [
        variable("THREAD_DIR", queue.place().as_os_str().as_bytes()),
        variable("THREAD_CONSUMER", subscription.consumer.as_str().as_bytes()),
    ];
    // A process group id is not reused while the group has members, so the group is still the run's.
    let state = &subscription.state;
    let handler = state.handler.clone().filter(|_| handler_of(&queue.files, subscription) == Liveness::Alive);
    let orphans = || -> Vec<ProcessId> {
        let holders =
            process::holders_of(&queue.files, &lock).filter(|p| process::was_given(p.pid, &run_variables));
        let members = handler.iter().flat_map(|handler| process::members_of(handler.pid));
        holders.chain(members).collect()
    };
    let first = Signal::from_named_raw(request.signal).unwrap_or(Signal::TERM);
    process::end(orphans, first, Duration::from_millis(request.kill_after_ms), Duration::MAX);
}
