//! What a consumer has done about an event: the runs of its handler, its steps, and the waits between them.

use std::time::Instant;

use thread::model::ledger::Ledger;
use thread::model::run::{Phase, RUNS_KEPT, Run, RunResult, Task};
use thread::model::step::{Kind, Step};
use thread::model::subscription::{DeadLetter, Subscription};
use thread::model::time::{self, Time};
use thread::{Filter, Queue};
use thread_sessions::Result;

use super::super::dto::{BarEnd, BarKind, Event};
use super::super::{FILTER_TIME, dead, runs};
use super::tree::{Tree, short};

/// How many runs are shown that had the event, and how many are looked through for those that had it among others.
const SHOWN: usize = 100;
const BATCHES: usize = 50;

/// The event, and what the thread has about it.
pub struct About<'e> {
    pub event: &'e Event,
    pub now: Time,
    pub filter: Option<&'e Filter>,
    pub steps: Vec<&'e Step>,
    pub letter: Option<&'e DeadLetter>,
}

/// A run that had the event.
struct Shown {
    bar: usize,
    from: i64,
    to: i64,
}

/// Adds what a consumer has done. Returns whether there is more of it.
///
/// # Errors
///
/// Errors of the thread.
pub fn add(
    queue: &mut Queue,
    tree: &mut Tree,
    subscription: &Subscription,
    about: &About<'_>,
) -> Result<bool> {
    let (id, consumer) = (about.event.id, &subscription.consumer);
    let before = tree.len();
    let outer = tree.add(None, BarKind::Consumer, 0, consumer.as_str());
    let ledger = queue.store().ledger(consumer)?;
    let is_finished = ledger.finished_upto(id).is_some();
    let past = queue.runs(consumer, RUNS_KEPT)?;
    let mut had = those_with(queue, &past, is_finished, about)?;
    let is_cut = had.len() > SHOWN;
    had.drain(..had.len().saturating_sub(SHOWN));
    let mut at = 0;
    let mut shown = Vec::with_capacity(had.len());
    for run in had {
        let (from, to) = (tree.ms(run.began), tree.ms(run.ended));
        waited(tree, outer, at, from);
        let bar = tree.add(Some(outer), BarKind::Run, from, &format!("attempt {}", run.attempt.max(1)));
        tree.end(bar, to);
        let is_well = run.result == RunResult::Succeeded;
        let said = run.output.filter(|_| !is_well);
        let said = said.and_then(|place| runs::last_line(queue.files(), consumer, place));
        let kept = || run.tail.as_deref()?.lines().next_back().map(str::to_owned);
        let one = tree.bar(bar);
        one.given = said.or_else(kept).as_deref().map(short);
        (one.ended, one.run) = (BarEnd::of(run.result), Some(runs::id_of(run.began)));
        shown.push(Shown { bar, from, to });
        at = to;
    }
    let now =
        under_way(subscription, &ledger, is_finished, about).filter(|(since, ..)| tree.ms(*since) >= at);
    match now {
        Some((since, attempt)) => {
            let from = tree.ms(since);
            waited(tree, outer, at, from);
            let bar = tree.open(Some(outer), BarKind::Run, from, &format!("attempt {}", attempt.max(1)));
            // In a pool, the run's record begins with its claim.
            tree.bar(bar).run = ledger.claims().get(&id).is_none().then(|| runs::id_of(since));
            shown.push(Shown { bar, from, to: i64::MAX });
        }
        None if !is_finished => {
            let bar = tree.open(Some(outer), BarKind::Waiting, at, "");
            let wait = ledger.waits().get(&id).filter(|wait| !wait.is_over(about.now));
            let until = wait.and_then(|wait| wait.shown_until(about.now)).map(time::format);
            tree.bar(bar).given = until;
        }
        None => {}
    }
    for step in &about.steps {
        add_step(tree, outer, &shown, step);
    }
    if let Some(letter) = about.letter {
        let parked = tree.at(&letter.parked_at);
        let bar = tree.add(Some(outer), BarKind::Dead, parked, &dead::reason(letter));
        tree.bar(bar).ended = Some(BarEnd::Dead);
        tree.bar(outer).ended = Some(BarEnd::Dead);
        at = at.max(parked);
    }
    match now.is_some() || !is_finished {
        true => tree.bar(outer).is_open = true,
        // If its runs are not kept any more, nobody knows when it was done.
        false if shown.is_empty() && about.letter.is_none() => {}
        false => {
            tree.end(outer, at);
            if about.letter.is_none() {
                tree.add(Some(outer), BarKind::Done, at, "");
            }
        }
    }
    for bar in before..tree.len() {
        tree.bar(bar).consumer = Some(consumer.as_str().to_owned());
    }
    Ok(is_cut)
}

/// A wait, if there was any.
fn waited(tree: &mut Tree, outer: usize, from: i64, to: i64) {
    if to > from {
        let bar = tree.add(Some(outer), BarKind::Waiting, from, "");
        tree.end(bar, to);
    }
}

fn add_step(tree: &mut Tree, outer: usize, shown: &[Shown], step: &Step) {
    let from = tree.ms(step.since);
    let kind = match step.kind {
        Kind::Step => BarKind::Step,
        Kind::Sleep => BarKind::Sleep,
        Kind::Await => BarKind::Await,
    };
    // What is waited for lasts longer than the run that began it.
    let inside = shown.iter().rev().find(|run| run.from <= from && from <= run.to).map(|run| run.bar);
    let inside = inside.filter(|_| kind == BarKind::Step).unwrap_or(outer);
    let bar = tree.add(Some(inside), kind, from, &step.name);
    match step.ended {
        Some(ended) => {
            let ended = tree.ms(ended);
            tree.end(bar, ended);
        }
        None => tree.bar(bar).is_open = true,
    }
    let one = tree.bar(bar);
    one.given = Some(short(&step.words));
    one.ended = step.timed_out.then_some(BarEnd::TimedOut);
}

/// The run under way that has the event: since when, and the number of its attempt.
fn under_way(
    subscription: &Subscription,
    ledger: &Ledger,
    is_finished: bool,
    about: &About<'_>,
) -> Option<(Time, u32)> {
    let id = about.event.id;
    if let Some(claim) = ledger.claims().get(&id) {
        return Some((claim.since, ledger.waits().get(&id).map_or(0, |wait| wait.attempts) + 1));
    }
    let state = &subscription.state;
    let has_it = match state.task? {
        Task::Single(task) | Task::DeadLetter(task) => task == id,
        Task::Batch(last) => !is_finished && id <= last,
        // Whatever it takes; of a pool, only the claim says it.
        Task::Wake => !is_finished && subscription.last_acked_id < id && id <= state.start_newest,
        Task::Pool => false,
    };
    (state.phase == Phase::Running && has_it).then_some((state.since?, state.attempts))
}

/// The past runs that had the event, the first first.
fn those_with<'r>(
    queue: &mut Queue,
    past: &'r [Run],
    is_finished: bool,
    about: &About<'_>,
) -> Result<Vec<&'r Run>> {
    let (id, stored) = (about.event.id, &about.event.created_at);
    let is_later = |run: &&Run| time::format(run.ended) >= *stored;
    let (mut had, mut looked) = (Vec::new(), 0);
    for (n, run) in past.iter().enumerate().filter(|(_, run)| is_later(run)) {
        let has_it = match run.events {
            Some(1) => run.upto == id,
            Some(count) if run.upto >= id && looked < BATCHES => {
                looked += 1;
                is_among(queue, about.filter, (id, run.upto), count)?
            }
            Some(_) => false,
            // A handler that pops takes what it likes: the one after which the event was finished, and those that
            // failed just before.
            None if run.upto >= id && is_finished => {
                if had.iter().any(|had: &&Run| had.events.is_none() && had.upto >= id) {
                    continue;
                }
                let failed = past[..n].iter().rev().take(run.attempt.saturating_sub(1) as usize);
                let failed = failed.take_while(|run| run.result != RunResult::Succeeded && run.upto < id);
                let mut failed: Vec<&Run> = failed.filter(is_later).collect();
                failed.reverse();
                had.extend(failed);
                true
            }
            None => false,
        };
        had.extend(has_it.then_some(run));
    }
    Ok(had)
}

/// Whether an event is among the last `count` that match up to another one.
fn is_among(queue: &mut Queue, filter: Option<&Filter>, (id, upto): (i64, i64), count: u64) -> Result<bool> {
    let most = usize::try_from(count).unwrap_or(usize::MAX).min(1000);
    let until = Instant::now() + FILTER_TIME / 10;
    match queue.newest_matching_until(filter, (id - 1, upto), most, until) {
        Ok(found) => Ok(found.ids.contains(&id)),
        Err(thread::Error::SlowFilter { .. }) => Ok(false),
        Err(e) => Err(e.into()),
    }
}
