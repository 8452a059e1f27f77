//! Pages of events, and one event with what consumers did with it.

use std::ops::ControlFlow;
use std::time::Instant;

use chrono::Utc;
use thread::model::filter::Scope;
use thread::model::run::{RUNS_KEPT, Run, RunResult};
use thread::model::step::Step;
use thread::model::time;
use thread::pending::checked_filter;
use thread::queue::Selection;
use thread::store::StepsOf;
use thread::{After, Filter, Queue};
use thread_sessions::Result;

use super::dto::{
    self, DeadLetter, EventDetail, EventPage, EventStep, FilterFailures, Handled, Handling, HandlingWait,
    Incomplete,
};
use super::threads::Target;
use super::{FILTER_TIME, dead, event, runs};

/// How much of the content of one event is shown, in bytes.
const WHOLE: u64 = 1024 * 1024;

/// A filter in a request.
///
/// # Errors
///
/// It is none.
pub fn filter(text: Option<&str>) -> Result<Option<Filter>> {
    Ok(Filter::new(text.unwrap_or_default(), Scope::Reading)?)
}

/// A page of events, newest first.
///
/// # Errors
///
/// The filter is too slow for a single event; errors of the thread.
pub fn page(
    queue: &mut Queue,
    before: Option<i64>,
    after: Option<i64>,
    limit: usize,
    filter: Option<&Filter>,
) -> Result<EventPage> {
    let upto = before.map_or(i64::MAX, |before| before.saturating_sub(1));
    let after = after.unwrap_or(0).max(0);
    let found = queue.newest_matching_until(filter, (after, upto), limit, Instant::now() + FILTER_TIME)?;
    let mut events = Vec::with_capacity(found.ids.len());
    for id in &found.ids {
        events.extend(event::shown(queue, *id)?);
    }
    let more = found.is_cut_off || found.ids.len() == limit && queue.last_upto(found.from - 1)? > Some(after);
    let incomplete = found
        .is_cut_off
        .then(|| Incomplete { reason: "the filter takes long".to_owned(), searched_to: found.from });
    let filter_failures =
        found.failure.map(|failure| FilterFailures { events: found.failures, message: failure.message });
    Ok(EventPage { events, next_before: more.then_some(found.from), incomplete, filter_failures })
}

/// One event, and what consumers did with it.
///
/// # Errors
///
/// There is no such event; errors of the thread.
pub fn detail(
    queue: &mut Queue,
    target: &Target,
    id: i64,
    url_of: &dyn Fn(&str, i64) -> String,
) -> Result<EventDetail> {
    let event = event::read(queue, id, WHOLE)?.ok_or_else(|| event::missing(id))?;
    let dead: Vec<DeadLetter> =
        dead::of_event(queue, id)?.into_iter().map(|letter| dead::form_of(letter, None)).collect();
    let mut next = None;
    let mut selection = Selection { limit: Some(1), ..After(id).into() };
    queue.read_page_capped(&mut selection, 0, &mut |capped| {
        next = Some(capped.row.id);
        ControlFlow::Break(())
    })?;
    Ok(EventDetail {
        content_url: url_of(&target.id.to_string(), id),
        previous: queue.last_upto(id.saturating_sub(1))?,
        next,
        handled: handled(queue, &event, &dead)?,
        dead,
        steps: steps(queue, id)?,
        event,
    })
}

/// What handlers have done for an event, the first first.
fn steps(queue: &mut Queue, id: i64) -> Result<Vec<EventStep>> {
    let now = Utc::now();
    let mut all = queue.store().steps(StepsOf { event: Some(id), ..StepsOf::default() })?;
    all.sort_by_key(|step| step.since);
    let form = |step: Step| EventStep {
        consumer: step.consumer.as_str().to_owned(),
        kind: step.kind.as_str().to_owned(),
        state: step.state(now).to_owned(),
        began: time::format(step.since),
        ended: step.ended.map(time::format),
        until: step.until.map(time::format),
        name: step.name,
        words: step.words,
    };
    Ok(all.into_iter().map(form).collect())
}

/// What the consumers have done with an event.
fn handled(queue: &mut Queue, event: &dto::Event, dead: &[DeadLetter]) -> Result<Vec<Handled>> {
    let (mut all, now) = (Vec::new(), Utc::now());
    for subscription in queue.subscriptions()? {
        // A filter that is broken matches nothing.
        let Ok(filter) = checked_filter(&subscription) else { continue };
        if let Some(filter) = filter
            && !queue.matches(event.id, &filter)?
        {
            continue;
        }
        let name = subscription.consumer.as_str();
        let ledger = queue.store().ledger(&subscription.consumer)?;
        let outcome = match ledger.finished_upto(event.id).is_some() {
            _ if dead.iter().any(|letter| letter.consumer == name) => Handling::Dead,
            true => Handling::Acknowledged,
            false => Handling::Pending,
        };
        let past = queue.runs(&subscription.consumer, RUNS_KEPT)?;
        let run = run_of(&past, event).filter(|_| outcome != Handling::Pending);
        let run = run.map(|run| runs::id_of(run.began));
        let wait = ledger.waits().get(&event.id).filter(|wait| !wait.is_over(now)).map(|wait| HandlingWait {
            attempts: wait.attempts,
            until: wait.shown_until(now).map(time::format),
            is_asleep: wait.is_asleep(),
        });
        all.push(Handled { consumer: name.to_owned(), outcome, run, wait });
    }
    Ok(all)
}

/// The run after which an event was acknowledged or a dead letter.
fn run_of<'r>(past: &'r [Run], event: &dto::Event) -> Option<&'r Run> {
    let is_later = |run: &&Run| time::format(run.ended) >= event.created_at;
    let done = |run: &&Run| {
        // A handler that pops may have acknowledged it whatever its end.
        let is_end = matches!(run.result, RunResult::Succeeded | RunResult::Dead) || run.events.is_none();
        run.upto >= event.id && is_end
    };
    let first = past.iter().filter(is_later).find(done)?;
    // The first run that is known may not be the first that there was.
    let is_oldest = std::ptr::eq(first, &past[0]) && past.len() == RUNS_KEPT;
    (!is_oldest || first.upto == event.id).then_some(first)
}
