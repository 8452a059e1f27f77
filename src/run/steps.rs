//! Steps: what a handler has done for an event, so that its next run for the same event continues there.
//!
//! A step is stored when it begins, with the key that its command gets, and again when it is done; each change is refused
//! if somebody else has changed it since. One that waits also marks its event in the consumer's row, in the same
//! transaction: whatever happens to the run from then on, the event sleeps when it ends (see
//! [`RunState::asleep`](crate::model::run::RunState::asleep)), and no further step of the run does anything. The mark is
//! taken away when the event is given to a handler again.

use std::hash::{BuildHasher, RandomState};
use std::ops::ControlFlow;

use chrono::Utc;

use super::{control, settle};
use crate::error::{Error, Result};
use crate::files::log::log;
use crate::model::filter::{Filter, Scope};
use crate::model::ledger::Sleep;
use crate::model::run::{Phase, Task};
use crate::model::step::{Kind, Step};
use crate::model::subscription::{ConsumerId, Subscription};
use crate::model::time::{self, Time};
use crate::queue::Queue;
use crate::store::{RunUpdate, ScanRange, StepChange, StepsOf};

/// The event for which steps are done.
#[derive(Debug, Clone, Copy)]
pub struct Of<'a> {
    pub consumer: &'a ConsumerId,
    pub event: i64,
    /// The claim by which the caller has the event, if it was taken by one.
    pub claim: Option<&'a str>,
}

impl Of<'_> {
    /// A step of the event that begins now.
    pub fn step(&self, name: &str, kind: Kind, words: &[&[u8]]) -> Step {
        Step::new(self.consumer, self.event, name, kind, words)
    }
}

/// What to do about a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// It was done before, and has printed this.
    Done(Vec<u8>),
    /// It is to be run, and then to be [finished](finish).
    Run(Box<Step>),
    /// Nothing: the event is to sleep first.
    Asleep(Sleep),
}

/// What a wait has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waited {
    /// It is over. What it prints.
    Done(Vec<u8>),
    /// No event came in time.
    TimedOut,
    /// The event sleeps from the end of its run on.
    Asleep(Sleep),
}

/// Begins a command.
///
/// # Errors
///
/// [`Error::UnknownConsumer`]; [`Error::OtherStep`] if another step with this name is done; [`Error::NotPending`] if the
/// event is not stored; [`Error::ClaimOver`].
pub fn begin(queue: &mut Queue, of: Of<'_>, step: &Step) -> Result<Begun> {
    loop {
        let current = queue.subscription(of.consumer)?;
        let found = find(queue, of, &step.name)?;
        if let Some(sleep) = asleep(queue, &current, of, &step.name)? {
            return Ok(Begun::Asleep(sleep));
        }
        let begun = match &found {
            Some(found) if found.kind != step.kind => return Err(other(found)),
            Some(found) if found.is_done() && !found.is_like(step) => return Err(other(found)),
            Some(found) if found.is_done() => return Ok(Begun::Done(found.result.clone())),
            // It may be another command now: nothing of the former is kept but the key.
            Some(found) => Step { key: found.key.clone(), since: found.since, ..step.clone() },
            None => {
                must_be_stored(queue, of)?;
                Step { key: new_key(), ..step.clone() }
            }
        };
        let change = change_of(of, found.as_ref(), begun.clone());
        if queue.store.change_step(&change)? {
            let revision = change.seen.unwrap_or(0).saturating_add(1);
            return Ok(Begun::Run(Box::new(Step { revision, ..begun })));
        }
    }
}

/// Stores what a command has printed, which was [begun](begin) by this caller and has succeeded. Returns how long the
/// event is to sleep first, in which case nothing is stored.
///
/// # Errors
///
/// [`Error::StepOver`] if another run has begun it since; [`Error::ClaimOver`], [`Error::Fenced`].
pub fn finish(queue: &mut Queue, of: Of<'_>, step: &Step, output: Vec<u8>) -> Result<Option<Sleep>> {
    let current = queue.subscription(of.consumer)?;
    if let Some(sleep) = asleep(queue, &current, of, &step.name)? {
        return Ok(Some(sleep));
    }
    let done = Step { ended: Some(Utc::now()), result: output, ..step.clone() };
    if !queue.store.change_step(&change_of(of, Some(step), done))? {
        return Err(Error::StepOver { name: step.name.clone(), id: of.event });
    }
    log!(queue, Info, "step: consumer={} id={} name={:?}", of.consumer, of.event, step.name);
    Ok(None)
}

/// Waits until a time, or for an event: once it is over, the caller continues; before that, its run is to end.
///
/// # Errors
///
/// As [`begin`]; [`Error::InvalidFilter`].
pub fn wait(queue: &mut Queue, of: Of<'_>, step: &Step) -> Result<Waited> {
    // Most of the events are looked at before others have to wait.
    let mut reached = find(queue, of, &step.name)?.map_or(step.scanned, |found| found.scanned);
    if let Some(filter) = &step.filter {
        find_event(queue, filter, &mut reached)?;
    }
    let _turn = settle::take_turn(queue);
    loop {
        let current = queue.subscription(of.consumer)?;
        let found = find(queue, of, &step.name)?;
        if let Some(sleep) = asleep(queue, &current, of, &step.name)? {
            return Ok(Waited::Asleep(sleep));
        }
        let mut now = match &found {
            Some(found) if !found.is_like(step) => return Err(other(found)),
            Some(found) if found.timed_out => return Ok(Waited::TimedOut),
            Some(found) if found.is_done() => return Ok(Waited::Done(found.result.clone())),
            Some(found) => found.clone(),
            None => {
                must_be_stored(queue, of)?;
                step.clone()
            }
        };
        now.scanned = now.scanned.max(reached);
        let clock = Utc::now();
        now.follow_clock(clock);
        let is_over = now.is_over(clock);
        let came = match &now.filter {
            Some(filter) => {
                let found = find_event(queue, filter, &mut now.scanned)?;
                // Nobody may have looked in time. What has come since then is too late all the same.
                let in_time = |stored: &Option<Time>| now.until.is_none_or(|until| *stored <= Some(until));
                found.filter(|(_, stored)| in_time(stored)).map(|(line, _)| line)
            }
            None => is_over.then(Vec::new),
        };
        if came.is_some() || is_over {
            (now.ended, now.timed_out) = (Some(Utc::now()), came.is_none());
            now.result = came.unwrap_or_default();
            let (result, timed_out) = (now.result.clone(), now.timed_out);
            if queue.store.change_step(&change_of(of, found.as_ref(), now))? {
                return Ok(if timed_out { Waited::TimedOut } else { Waited::Done(result) });
            }
            continue;
        }
        let sleep = now.sleep(Utc::now());
        let change = change_of(of, found.as_ref(), now);
        let is_marked = match is_under_way(queue, &current, of.event)? {
            true => {
                let mut update = RunUpdate { step: Some(change), ..RunUpdate::state(current.state.clone()) };
                update.state.asleep.insert(of.event, sleep);
                update.durable = true;
                queue.store.update_run(&current, &update)?.is_some()
            }
            false => queue.store.change_step(&change)?,
        };
        if is_marked {
            log!(queue, Info, "{}: consumer={} id={}", step.kind.as_str(), of.consumer, of.event);
            control::notify_supervisors(queue);
            return Ok(Waited::Asleep(sleep));
        }
    }
}

/// Removes a step.
///
/// # Errors
///
/// [`Error::UnknownStep`].
pub fn forget(queue: &mut Queue, of: Of<'_>, name: &str) -> Result<()> {
    loop {
        let Some(found) = find(queue, of, name)? else {
            return Err(Error::UnknownStep { name: name.to_owned(), id: of.event });
        };
        if queue.store.change_step(&StepChange::remove(&found))? {
            log!(queue, Info, "step: consumer={} id={} name={name:?} forgotten", of.consumer, of.event);
            return Ok(());
        }
    }
}

fn find(queue: &mut Queue, of: Of<'_>, name: &str) -> Result<Option<Step>> {
    let (consumer, event, name) = (Some(of.consumer), Some(of.event), Some(name));
    let of = StepsOf { consumer, event, name, with_results: true, only_awaits: false };
    Ok(queue.store.steps(of)?.pop())
}

fn change_of(of: Of<'_>, seen: Option<&Step>, to: Step) -> StepChange {
    StepChange { claim: of.claim.map(str::to_owned), ..StepChange::to(seen, to) }
}

fn other(found: &Step) -> Error {
    let Step { name, event_id, kind, words, .. } = found.clone();
    Error::OtherStep { name, id: event_id, kind: kind.as_str(), words }
}

fn must_be_stored(queue: &mut Queue, of: Of<'_>) -> Result<()> {
    match queue.stored_at(of.event)? {
        Some(_) => Ok(()),
        None => Err(Error::NotPending { consumer: of.consumer.clone(), id: of.event }),
    }
}

/// A key that nobody else has.
fn new_key() -> String {
    let part = || RandomState::new().hash_one(std::process::id());
    format!("{:016x}{:016x}", part(), part())
}

/// Whether the event is at a handler, or was taken by a program.
fn is_under_way(queue: &mut Queue, current: &Subscription, id: i64) -> Result<bool> {
    let state = &current.state;
    Ok(match state.task {
        _ if current.options.is_taken_from() => {
            queue.store.ledger(&current.consumer)?.claims().contains_key(&id)
        }
        _ if state.phase != Phase::Running => false,
        Some(Task::Single(own) | Task::DeadLetter(own)) => own == id,
        Some(Task::Batch(last)) => (state.start_cursor + 1..=last).contains(&id),
        // Which of them are at handlers is not stored. The mark of another is taken away before it is given to one.
        Some(Task::Pool) => true,
        Some(Task::Wake) | None => false,
    })
}

/// Whether the event is to sleep before anything else is done for it, but for the step with this name.
fn asleep(queue: &mut Queue, current: &Subscription, of: Of<'_>, name: &str) -> Result<Option<Sleep>> {
    if is_under_way(queue, current, of.event)? {
        // By an earlier step of the same run. What this waits for may have come since.
        return Ok(current.state.asleep.get(&of.event).copied());
    }
    let now = Utc::now();
    let steps = StepsOf { consumer: Some(of.consumer), event: Some(of.event), ..StepsOf::default() };
    let other = queue.store.steps(steps)?.into_iter().find(|step| step.name != name && step.holds(now));
    Ok(other.map(|step| step.sleep(now)))
}

/// The line of the first event after one that matches, and when it was stored. The one is moved to where nothing before it
/// does.
fn find_event(queue: &mut Queue, filter: &str, after: &mut i64) -> Result<Option<(Vec<u8>, Option<Time>)>> {
    let Some(filter) = Filter::new(filter, Scope::Subscription)? else { return Ok(None) };
    loop {
        let newest = queue.newest()?.0;
        if *after >= newest {
            return Ok(None);
        }
        let range = ScanRange { after: *after, upto: newest, most: 1, until: None };
        let scan = queue.store.scan(&filter, range)?;
        let Some(id) = scan.ids.first().copied() else {
            *after = scan.upto;
            continue;
        };
        *after = id - 1;
        let mut line = None;
        queue.store.read(id - 1, id, 1, &mut |row| {
            let mut text = Vec::new();
            row.write_line(&mut text);
            line = Some((text, std::str::from_utf8(row.created_at).ok().and_then(time::parse)));
            ControlFlow::Break(())
        })?;
        if line.is_some() {
            return Ok(line);
        }
        // It was pruned in between.
        *after = id;
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use thread_testkit::simulation::clock;

    use super::*;
    use crate::model::event::NewEvent;
    use crate::model::run::Options;
    use crate::model::subscription::{NO_HANDLER, NewSubscription};

    #[test]
    fn a_clock_that_is_set_back_prolongs_a_sleep_by_its_length_only() {
        let _clocks = clock::simulate_clocks(|_| {});
        let dir = tempfile::tempdir().unwrap();
        let mut queue = Queue::open(Queue::init(dir.path()).unwrap()).unwrap();
        queue.push(&NewEvent::new("s", "message", None, "x").unwrap()).unwrap();
        let consumer = ConsumerId::new("c").unwrap();
        let new = NewSubscription {
            consumer: consumer.clone(),
            handler_cmd: NO_HANDLER.into(),
            filter: None,
            cwd: None,
            options: Options { concurrency: Some(2), no_handler: true, ..Options::default() },
            from: None,
            replace: false,
        };
        queue.subscribe(&new).unwrap();
        let of = Of { consumer: &consumer, event: 1, claim: None };
        let length = chrono::TimeDelta::seconds(5);
        let look = |queue: &mut Queue| {
            let mut step = of.step("nap", Kind::Sleep, &[b"5s"]);
            step.until = Some(step.since + length);
            match wait(queue, of, &step).unwrap() {
                Waited::Asleep(sleep) => Some(sleep.until - Utc::now()),
                Waited::Done(_) => None,
                Waited::TimedOut => panic!("it awaits nothing"),
            }
        };
        assert_eq!(look(&mut queue), Some(length));
        clock::set_time_of_day(clock::time_of_day() - 3600 * clock::SECOND);
        clock::pass(5 * clock::SECOND);
        assert_eq!(look(&mut queue), Some(length));
        clock::pass(5 * clock::SECOND);
        assert_eq!(look(&mut queue), None);
    }
}
