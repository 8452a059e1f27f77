//! Figures of consumers, from their last runs: how fast they are now, and how that has changed.
//!
//! Runs are kept as long as there are not too many newer ones, so a busy consumer is known for a shorter time: what a
//! series says begins at its `known_since`.

use chrono::TimeDelta;
use thread::Queue;
use thread::model::run::{RUNS_KEPT, Run, RunResult};
use thread::model::subscription::Subscription;
use thread::model::time::{self, Time};
use thread_sessions::Result;

use super::dto::{ConsumerSeries, Recent, Series, Span};
use super::rate::Rate;

/// How many of the last runs the present figures are made from, and of what time before the last one ended.
pub const RECENT: usize = 100;
const RECENTLY: TimeDelta = TimeDelta::minutes(15);

impl Span {
    /// How long a period is, in seconds, and how many there are.
    fn periods(self) -> (i64, i64) {
        match self {
            Span::Quarter => (15, 60),
            Span::Hour => (60, 60),
            Span::Day => (900, 96),
            Span::Week => (7200, 84),
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
    let (seconds, periods) = span.periods();
    let mut rate = Rate::new(seconds, periods);
    rate.update(queue, now)?;
    let arrived = rate.series(now);
    let first = now.timestamp().div_euclid(seconds) - periods + 1;
    let from = Time::from_timestamp(first * seconds, 0).unwrap_or(now);
    let mut consumers = Vec::new();
    for subscription in queue.subscriptions()? {
        let runs = queue.runs(&subscription.consumer, RUNS_KEPT)?;
        consumers.push(consumer(&runs, &subscription, (seconds, first, arrived.len())));
    }
    let step_ms = seconds.unsigned_abs() * 1000;
    Ok(Series { from: time::format(from), step_ms, arrived, consumers })
}

fn consumer(
    runs: &[Run],
    subscription: &Subscription,
    (seconds, first, periods): (i64, i64, usize),
) -> ConsumerSeries {
    let mut series = ConsumerSeries {
        name: subscription.consumer.as_str().to_owned(),
        wants_all: subscription.filter_text().is_none(),
        known_since: runs.first().filter(|_| runs.len() >= RUNS_KEPT).map(|run| time::format(run.ended)),
        handled: vec![0; periods],
        failed: vec![0; periods],
        dead: vec![0; periods],
        p50_ms: vec![None; periods],
        p95_ms: vec![None; periods],
    };
    let mut took = vec![Vec::new(); periods];
    for (at, run) in runs.iter().enumerate() {
        let period = run.ended.timestamp().div_euclid(seconds) - first;
        let Some(n) = usize::try_from(period).ok().filter(|n| *n < periods) else { continue };
        series.handled[n] += handled(runs, at, subscription);
        series.failed[n] += u64::from(has_failed(run));
        series.dead[n] += u64::from(run.result == RunResult::Dead);
        took[n].push(millis(run));
    }
    for (n, took) in took.iter_mut().enumerate() {
        took.sort_unstable();
        (series.p50_ms[n], series.p95_ms[n]) = (part(took, 50), part(took, 95));
    }
    series
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
