//! Figures of consumers: how fast they were in their last runs, and, as the thread has counted it, how that has changed.

use chrono::TimeDelta;
use thread::Queue;
use thread::model::figures::Figures;
use thread::model::run::{Run, RunResult};
use thread::model::subscription::Subscription;
use thread::model::time::{self, Time};
use thread::queue::figures;
use thread_sessions::Result;

use super::dto::{ConsumerSeries, Recent, Series, Span};

/// How many of the last runs the present figures are made from, and of what time before the last one ended.
pub const RECENT: usize = 100;
const RECENTLY: TimeDelta = TimeDelta::minutes(15);

impl From<Span> for figures::Span {
    fn from(span: Span) -> figures::Span {
        match span {
            Span::Quarter => figures::Span::QUARTER,
            Span::Hour => figures::Span::HOUR,
            Span::Day => figures::Span::DAY,
            Span::Week => figures::Span::WEEK,
            Span::Month => figures::Span::MONTH,
        }
    }
}

/// The figures of the last runs, the oldest first; `None` if there are none.
pub fn recent(runs: &[Run], subscription: &Subscription) -> Option<Recent> {
    let last = runs.last()?;
    let from = last.ended - RECENTLY;
    let first = runs.iter().position(|run| run.ended >= from)?;
    let those = &runs[first..];
    // A few runs in a second say nothing about a minute.
    let minutes = ((last.ended - those[0].began).num_milliseconds() as f64 / 60_000.0).max(1.0);
    let handled: u64 = (first..runs.len()).map(|at| handled(runs, at, subscription)).sum();
    let mut took: Vec<u64> = those.iter().map(millis).collect();
    took.sort_unstable();
    Some(Recent {
        runs: those.len() as u64,
        failed: those.iter().filter(|run| has_failed(run)).count() as u64,
        p50_ms: part(&took, 50).unwrap_or(0),
        p95_ms: part(&took, 95).unwrap_or(0),
        per_minute: (handled as f64 / minutes * 100.0).round() / 100.0,
    })
}

fn millis(run: &Run) -> u64 {
    u64::try_from(run.duration().as_millis()).unwrap_or(u64::MAX)
}

fn has_failed(run: &Run) -> bool {
    matches!(run.result, RunResult::Failed | RunResult::Dead | RunResult::TimedOut | RunResult::Unknown)
}

/// The value below which so many percent of them lie.
fn part(sorted: &[u64], percent: usize) -> Option<u64> {
    sorted.get((sorted.len() * percent).div_ceil(100).saturating_sub(1)).copied()
}

/// How many events a run has handled. What a handler pops is counted by ids if it wants all of them, else as one.
fn handled(runs: &[Run], at: usize, subscription: &Subscription) -> u64 {
    let run = &runs[at];
    match run.events {
        Some(count) if run.result == RunResult::Succeeded => count,
        Some(_) => 0,
        None => {
            let before = at.checked_sub(1).map_or(run.upto, |before| runs[before].upto);
            let moved = run.upto.saturating_sub(before).max(0).unsigned_abs();
            if subscription.filter_text().is_some() { moved.min(1) } else { moved }
        }
    }
}

/// How a thread and its consumers have done in the last time.
///
/// # Errors
///
/// Errors of the thread.
pub fn of(queue: &mut Queue, span: Span, now: Time) -> Result<Series> {
    let series = queue.series(None, span.into(), now)?;
    let step_ms = u64::try_from(series.step.as_millis()).unwrap_or(u64::MAX);
    let consumers = series.consumers.iter().map(|(subscription, all)| consumer(subscription, all)).collect();
    Ok(Series { from: time::format(series.from), step_ms, arrived: series.arrived, consumers })
}

fn consumer(subscription: &Subscription, all: &[Figures]) -> ConsumerSeries {
    ConsumerSeries {
        name: subscription.consumer.as_str().to_owned(),
        wants_all: subscription.filter_text().is_none(),
        handled: all.iter().map(|one| one.handled).collect(),
        failed: all.iter().map(|one| one.failed).collect(),
        dead: all.iter().map(|one| one.dead).collect(),
        p50_ms: all.iter().map(|one| one.took.percentile(50)).collect(),
        p95_ms: all.iter().map(|one| one.took.percentile(95)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_few_values() {
        assert_eq!((part(&[], 50), part(&[7], 50), part(&[7], 95)), (None, Some(7), Some(7)));
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!((part(&hundred, 50), part(&hundred, 95)), (Some(50), Some(95)));
        assert_eq!((part(&[1, 2], 50), part(&[1, 2], 95)), (Some(1), Some(2)));
    }
}
