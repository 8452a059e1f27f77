//! Ending a run on request, from another process.
//!
//! The request is written to the consumer's row, and the supervisor, the parent of the run, ends it. If the
//! supervisor was killed but its handler is still running, a process certainly belongs to the run in two
//! cases: it is in the process group of the recorded handler, whose first process is still there, or of which
//! another member holds the consumer's lock or has this thread and consumer in its environment; or it does both
//! itself. No other process is ever signalled. The same processes are ended, and the end of the run recorded, if
//! the supervisor is alive but has not acted on the request in time, because it is stopped or hangs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use chrono::Utc;
use rustix::process::Signal;

use super::control::{notify_supervisors, update};
use super::leftovers::{self, variables};
use super::outcome::{End, record_end, record_end_of_wait};
use super::process::{self, Ending, Liveness, handler_of, supervisor_of};
use crate::error::{Error, Result};
use crate::model::ledger::LedgerChange;
use crate::model::run::{Exit, Phase, ProcessId, RunState, StopRequest};
use crate::model::subscription::{ConsumerId, Subscription};
use crate::model::time::Time;
use crate::queue::Queue;
use crate::store::RunUpdate;

/// How long a consumer that is between two runs may take to start the next.
const BETWEEN_RUNS: Duration = Duration::from_millis(500);

/// How long a supervisor may take to respond, in addition to the time before KILL; and how long killed processes may
/// take to disappear if it does not.
const MARGIN: Duration = Duration::from_secs(5);

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
/// [`Error::UnknownConsumer`], [`Error::NotOwner`]; [`Error::NotHeard`] if its supervisor is in another PID namespace
/// and does not respond; [`Error::Unresponsive`] if it does not respond here, and the processes of the run cannot be
/// found or ended without it.
pub fn stop(queue: &mut Queue, consumer: &ConsumerId, request: StopRequest) -> Result<Stopped> {
    let pause = queue.location().backend().poll_interval;
    let mut stopping = Stopping::new(queue, consumer, request)?;
    loop {
        if let Some(stopped) = stopping.step(queue)? {
            return Ok(stopped);
        }
        std::thread::sleep(pause);
    }
}

/// A stop under way, for callers that do something else between two looks.
#[derive(Debug)]
pub struct Stopping {
    subscription: Subscription,
    request: StopRequest,
    began: Instant,
    asked: Option<Asked>,
    /// The stop is recorded. What is ended then: see [`Stopping::end_strangers`].
    strangers: Option<Strangers>,
}

/// A request that was made.
#[derive(Debug)]
struct Asked {
    /// The start time of the run or wait that it was made for.
    since: Option<Time>,
    at: Instant,
    /// The handler's first process, whose group is the run's. A process group id is not reused while the group has
    /// members, so this still holds after the process is gone.
    group: Option<ProcessId>,
    /// The processes of the run, once they are ended from here.
    ending: Option<Ending>,
}

impl Stopping {
    /// # Errors
    ///
    /// [`Error::UnknownConsumer`], [`Error::NotOwner`].
    pub fn new(queue: &mut Queue, consumer: &ConsumerId, request: StopRequest) -> Result<Stopping> {
        let subscription = queue.subscription(consumer)?;
        if !queue.files.is_owner() {
            return Err(Error::NotOwner(queue.location().clone()));
        }
        Ok(Stopping { subscription, request, began: Instant::now(), asked: None, strangers: None })
    }

    /// Requests the stop, or checks on it. Returns at once; `None` if the run or wait is not over.
    ///
    /// # Errors
    ///
    /// As [`stop`].
    pub fn step(&mut self, queue: &mut Queue) -> Result<Option<Stopped>> {
        let consumer = &self.subscription.consumer;
        loop {
            let current = queue.store.subscription(consumer)?;
            let Some(current) = current.filter(|now| now.is_same(&self.subscription)) else {
                // Unsubscribed or replaced in the meantime: the run in question is over.
                let was_asked = self.asked.is_some();
                return Ok(Some(if was_asked { Stopped::Done } else { Stopped::NothingToStop }));
            };
            let state = &current.state;
            if !matches!(state.phase, Phase::Running | Phase::Waiting) {
                let starting = state.phase == Phase::Idle && self.began.elapsed() < BETWEEN_RUNS;
                if self.asked.is_some() || self.strangers.is_some() {
                    return self.end_strangers(queue, &current);
                }
                if state.phase == Phase::Idle && current.options.finishes_singly() {
                    // Only its events wait.
                    if queue.scan_pending(&current, None)?.wait.is_some() {
                        let state = RunState { stop: Some(self.request), ..state.clone() };
                        if record_end_of_wait(queue, &Subscription { state, ..current })?.is_some() {
                            notify_supervisors(queue);
                            self.strangers = Some(Strangers::default());
                        }
                        continue;
                    }
                }
                if !starting || process::holders_of_any(&queue.files, consumer).next().is_none() {
                    return Ok(Some(Stopped::NothingToStop));
                }
                return Ok(None);
            }
            if self.strangers.is_some() {
                // It was resumed.
                return Ok(Some(Stopped::Done));
            }
            let asked = match &mut self.asked {
                // That run or wait is over; another has started since.
                Some(asked) if asked.since != state.since && state.stop.is_none() => {
                    return Ok(Some(Stopped::Done));
                }
                Some(asked) if asked.since == state.since => asked,
                asked => {
                    // Once per run: do not overwrite a concurrent stop request.
                    if request_stop(queue, &current, self.request)? {
                        *asked =
                            Some(Asked { since: state.since, at: Instant::now(), group: None, ending: None });
                    }
                    continue;
                }
            };
            if handler_of(&queue.files, &current) == Liveness::Alive {
                asked.group = state.handler.clone();
            }
            // Another stop may have asked for less patience since.
            let request = state.stop.unwrap_or(self.request);
            let patience = Duration::from_millis(request.kill_after_ms).saturating_add(MARGIN);
            let supervisor = supervisor_of(&queue.files, &current);
            if supervisor != Liveness::Dead {
                notify_supervisors(queue);
                if asked.at.elapsed() <= patience {
                    return Ok(None);
                }
            }
            let is_known = state.handler.is_some() || state.phase == Phase::Waiting;
            let consumer = consumer.clone();
            let unheard = match (supervisor, &state.supervisor) {
                (Liveness::Unknown, _) => Some(Error::NotHeard(consumer)),
                (Liveness::Alive, Some(process))
                    if !is_known || asked.at.elapsed() > patience.saturating_add(MARGIN) =>
                {
                    Some(Error::Unresponsive { consumer, supervisor: process.pid })
                }
                _ => None,
            };
            if let Some(unheard) = unheard {
                withdraw_stop(queue, &current, request)?;
                return Err(unheard);
            }
            let left = left_of(queue, &current, asked.group.as_ref());
            if !left.is_empty() {
                let first = Signal::from_named_raw(request.signal).unwrap_or(Signal::TERM);
                let kill_after = match supervisor {
                    // They have had that time.
                    Liveness::Alive => Duration::ZERO,
                    _ => Duration::from_millis(request.kill_after_ms),
                };
                asked.ending.get_or_insert_default().signal(left, first, kill_after);
                return Ok(None);
            }
            record_stopped(queue, &current)?;
            // For what attends to the waits.
            notify_supervisors(queue);
        }
    }
}

impl Stopping {
    /// Ends the runs of a pool whose supervisor was killed, once the stop is recorded: the next supervisor waits for them,
    /// but has not started them. Their events are given back, without an attempt.
    fn end_strangers(&mut self, queue: &mut Queue, stopped: &Subscription) -> Result<Option<Stopped>> {
        let (events, left) = strangers_of(queue, stopped)?;
        // As long as nothing has changed, nothing was started since the stop.
        let current = queue.store.subscription(&stopped.consumer)?;
        if current.is_none_or(|now| now.token != stopped.token || now.revision != stopped.revision) {
            return Ok(None);
        }
        let Strangers { began, ending, given_back } = self.strangers.get_or_insert_default();
        if left.is_empty() {
            if given_back.is_empty() {
                return Ok(Some(Stopped::Done));
            }
            let free = |id: &i64| LedgerChange::Claim { id: *id, claim: None };
            let ledger =
                std::mem::take(given_back).iter().filter(|id| events.contains(id)).map(free).collect();
            let update = RunUpdate { ledger, durable: true, ..RunUpdate::state(stopped.state.clone()) };
            // If the row has changed, the next supervisor does so, with an attempt.
            queue.store.update_run(stopped, &update)?;
            return Ok(None);
        }
        let kill_after = Duration::from_millis(self.request.kill_after_ms);
        if began.elapsed() > kill_after.saturating_add(MARGIN) {
            return Err(Error::NotEnded { consumer: stopped.consumer.clone(), process: left[0].1.pid });
        }
        let first = Signal::from_named_raw(self.request.signal).unwrap_or(Signal::TERM);
        given_back.extend(left.iter().flat_map(|(ids, _)| ids));
        ending.signal(left.into_iter().map(|(_, process)| process).collect(), first, kill_after);
        Ok(None)
    }
}

/// What ends the runs that another supervisor has started.
#[derive(Debug)]
struct Strangers {
    began: Instant,
    ending: Ending,
    /// The events that they had.
    given_back: BTreeSet<i64>,
}

impl Default for Strangers {
    fn default() -> Strangers {
        Strangers { began: Instant::now(), ending: Ending::default(), given_back: BTreeSet::new() }
    }
}

/// The events that runs of a pool have, and the processes of those runs that hold the locks of their places, each with the
/// events of its run.
#[expect(clippy::type_complexity, reason = "a pair, once")]
fn strangers_of(
    queue: &mut Queue,
    subscription: &Subscription,
) -> Result<(BTreeSet<i64>, Vec<(Vec<i64>, ProcessId)>)> {
    if !subscription.options.is_pool() || subscription.options.no_handler {
        return Ok((BTreeSet::new(), Vec::new()));
    }
    let consumer = &subscription.consumer;
    let mut places: BTreeMap<u32, Vec<i64>> = BTreeMap::new();
    for (id, claim) in queue.store.ledger(consumer)?.claims() {
        if claim.taken.is_none() {
            places.entry(claim.place).or_default().push(*id);
        }
    }
    let given = variables(queue.location(), consumer);
    let mut left = Vec::new();
    for (place, events) in &places {
        let holders = process::holders_of(&queue.files, &queue.files.place_lock(consumer, *place));
        for run in holders.filter(|holder| process::was_given(holder.pid, &given)) {
            let members = process::members_of(run.pid).into_iter().chain([run]);
            left.extend(members.map(|process| (events.clone(), process)));
        }
    }
    Ok((places.into_values().flatten().collect(), left))
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

/// Records the end of a run or wait whose supervisor is dead or does not respond, unless another process has done so.
fn record_stopped(queue: &mut Queue, subscription: &Subscription) -> Result<()> {
    match subscription.state.phase {
        Phase::Waiting => record_end_of_wait(queue, subscription).map(drop),
        _ => {
            let end = End { exit: Exit::Unknown, interrupted: false, output: "", span: None, at: Utc::now() };
            record_end(queue, subscription, &end).map(drop)
        }
    }
}

/// The processes of a run that still run, other than its supervisor.
fn left_of(queue: &Queue, subscription: &Subscription, group: Option<&ProcessId>) -> Vec<ProcessId> {
    let given = variables(queue.location(), &subscription.consumer);
    // A push from a handler passes these variables on to the supervisors that it starts.
    let supervisor = subscription.state.supervisor.as_ref().map(|process| process.pid);
    let holders: Vec<ProcessId> = process::holders_of_any(&queue.files, &subscription.consumer)
        .filter(|holder| Some(holder.pid) != supervisor)
        .collect();
    let members = match group {
        Some(handler) => process::members_of(handler.pid),
        // Its first process may have ended before the others.
        None => leftovers::of_handler(&queue.files, subscription, |pid| holders.iter().any(|h| h.pid == pid)),
    };
    holders.into_iter().filter(|holder| process::was_given(holder.pid, &given)).chain(members).collect()
}
