//! What became of an event: what each consumer has done about it, and when.

mod agent;
mod consumer;
mod tree;

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use chrono::Utc;
use thread::model::run::RUNS_KEPT;
use thread::model::subscription::ConsumerId;
use thread::model::time;
use thread::pending::checked_filter;
use thread::queue::{Remaining, Selection};
use thread::store::StepsOf;
use thread::{After, Queue};
use thread_conversation::{CONSUMER, Entry, Record, ending_of};
use thread_sessions::Result;

use self::agent::Agent;
use self::consumer::About;
use self::tree::Tree;
use super::dto::{BarKind, Trace};
use super::threads::{Target, ThreadId};
use super::{dead, event, runs};

/// How many events of an agent's run are read, for how long, and how many bars are shown.
const READ: usize = 50_000;
const READ_FOR: Duration = Duration::from_secs(2);
const BARS: usize = 2000;

/// Longer contents are not read, in bytes: results of tools have 1 MiB and their names at most.
const LONG: u64 = 1024 * 1024 + 4096;

/// What became of an event.
///
/// # Errors
///
/// There is no such event; errors of the thread.
pub fn of(queue: &mut Queue, target: &Target, id: i64) -> Result<Trace> {
    let event = event::shown(queue, id)?.ok_or_else(|| event::missing(id))?;
    let now = Utc::now();
    let mut tree = Tree::since(time::parse(&event.created_at).unwrap_or(now));
    let session = match &target.id {
        ThreadId::Session(session) => Some(session.to_string()),
        _ => None,
    };
    let letters = dead::of_event(queue, id)?;
    let steps = queue.store().steps(StepsOf { event: Some(id), ..StepsOf::default() })?;
    let mut is_truncated = false;
    for subscription in queue.subscriptions()? {
        // A filter that is broken matches nothing.
        let Ok(filter) = checked_filter(&subscription) else { continue };
        let is_wanted = match &filter {
            Some(filter) => queue.matches(id, filter)?,
            None => true,
        };
        let is_agent = subscription.consumer.as_str() == CONSUMER;
        if is_agent && let Some(cut) = agent_run(queue, &mut tree, id, is_wanted, session.as_deref())? {
            is_truncated |= cut;
        } else if is_wanted {
            let name = &subscription.consumer;
            let about = About {
                event: &event,
                now,
                filter: filter.as_ref(),
                steps: steps.iter().filter(|step| step.consumer == *name).collect(),
                letter: letters.iter().find(|letter| letter.consumer == *name),
            };
            is_truncated |= consumer::add(queue, &mut tree, &subscription, &about)?;
        }
    }
    let now_ms = tree.ms(now);
    let mut bars = tree.flattened();
    is_truncated |= bars.len() > BARS;
    bars.truncate(BARS);
    Ok(Trace { event, now_ms, bars, is_truncated })
}

/// Adds the run of an agent that answers an event, or that it has begun itself. Returns whether there is more of it than
/// what was read; `None` if there is no such run.
fn agent_run(
    queue: &mut Queue,
    tree: &mut Tree,
    id: i64,
    is_wanted: bool,
    session: Option<&str>,
) -> Result<Option<bool>> {
    let entry = queue.event(id)?.map(|event| Entry::of(&event));
    match entry {
        Some(Entry::RunStarted { reply_to: None, .. }) => {}
        Some(Entry::Message(_)) if is_wanted => {}
        _ => return Ok(None),
    }
    let ending = ending_of(queue, id)?.map(|event| event.id);
    let before = tree.len();
    let mut agent = Agent::new(tree, (id, ending), session);
    let (mut read, mut is_over, mut is_cut) = (0, false, false);
    let until = Instant::now() + READ_FOR;
    let mut selection = Selection::from(After(id.saturating_sub(1)));
    while !is_over
        && queue.read_page_capped(&mut selection, LONG, &mut |capped| {
            read += 1;
            is_cut = read > READ || agent.bars() > BARS || Instant::now() >= until;
            is_over = is_cut || agent.take(&Record::of(capped.row.to_event()));
            if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })? == Remaining::Some
    {}
    // A handler of that name that is no agent answers nothing.
    if !agent.has_begun() && ending.is_none() && session.is_none() {
        tree.forget(before);
        return Ok(None);
    }
    // What its program printed is kept with the run of its process.
    let past = queue.runs(&ConsumerId::stored(CONSUMER.to_owned()), RUNS_KEPT)?;
    for bar in before..tree.len() {
        if tree.bar(bar).kind == BarKind::Attempt {
            let at = tree.bar(bar).at_ms;
            let found = past.iter().rev().find(|run| tree.ms(run.began) <= at && at <= tree.ms(run.ended));
            let run = found.map(|run| runs::id_of(run.began));
            tree.bar(bar).run = run;
        }
        tree.bar(bar).consumer = Some(CONSUMER.to_owned());
    }
    Ok(Some(is_cut))
}
