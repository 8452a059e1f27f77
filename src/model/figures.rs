//! How much consumers have done, and how many events came, counted by the minute and later by the hour.
//!
//! What a consumer has done is counted in the transaction that records it, so the counts are exact. Events are not
//! counted when they are stored: the table of events says when they came. What is deleted leaves its ids behind.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::time::Duration;

use chrono::{TimeDelta, Utc};

use super::run::{Run, RunResult};
use super::subscription::ConsumerId;
use super::time::Time;

/// The lengths of the periods that are counted, in seconds.
pub const MINUTE: i64 = 60;
pub const HOUR: i64 = 3600;

/// For how long minutes are kept apart. A little more than a day, because charts of a day begin before it.
const BY_MINUTE: TimeDelta = TimeDelta::hours(25);

/// For how long anything is kept.
const KEPT: TimeDelta = TimeDelta::days(30);

/// How much was done in a time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Figures {
    /// Events that were finished with success.
    pub handled: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Those of them after which the event was a dead letter.
    pub dead: u64,
    /// How long attempts took, as far as that is known.
    pub took: Durations,
}

impl Figures {
    pub fn is_empty(&self) -> bool {
        *self == Figures::default()
    }

    /// Counts events that were handled, perhaps in one attempt that took so long.
    pub fn handled(&mut self, events: u64, took: Option<Duration>) {
        self.handled += events;
        took.into_iter().for_each(|took| self.took.add(took));
    }

    /// Counts an attempt that failed.
    pub fn failed(&mut self, is_dead: bool, took: Option<Duration>) {
        self.failed += 1;
        self.dead += u64::from(is_dead);
        took.into_iter().for_each(|took| self.took.add(took));
    }

    /// What a run has done. What its handler has popped was counted when that was acknowledged.
    pub fn of_run(run: &Run) -> Figures {
        let mut figures = Figures::default();
        let took = Some(run.duration());
        match run.result {
            RunResult::Succeeded => figures.handled(run.events.unwrap_or(0), took),
            RunResult::Failed | RunResult::TimedOut | RunResult::Unknown => figures.failed(false, took),
            RunResult::Dead => figures.failed(true, took),
            RunResult::Stopped | RunResult::Deferred | RunResult::Interrupted => figures.handled(0, took),
        }
        figures
    }
}

impl AddAssign<&Figures> for Figures {
    fn add_assign(&mut self, more: &Figures) {
        self.handled += more.handled;
        self.failed += more.failed;
        self.dead += more.dead;
        self.took += &more.took;
    }
}

/// How many things took how long: buckets, each of which is larger than the one before by the square root of two.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Durations {
    pub count: u64,
    /// The sum, in milliseconds.
    pub ms: u64,
    /// How many are in each bucket, without empty ones at the end; at most [`Durations::BUCKETS`].
    pub buckets: Vec<u64>,
}

impl Durations {
    /// The last one begins at about nine days.
    pub const BUCKETS: usize = 60;

    pub fn add(&mut self, took: Duration) {
        let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let at = Durations::bucket(ms);
        if self.buckets.len() <= at {
            self.buckets.resize(at + 1, 0);
        }
        self.buckets[at] += 1;
        self.count += 1;
        self.ms = self.ms.saturating_add(ms);
    }

    /// 0 for nothing; for n milliseconds, one more than twice the logarithm of n to the base of two.
    fn bucket(ms: u64) -> usize {
        let Some(whole) = ms.checked_ilog2() else { return 0 };
        let has_half = u128::from(ms).pow(2) >= 1_u128 << (2 * whole + 1);
        (1 + 2 * whole as usize + usize::from(has_half)).min(Durations::BUCKETS - 1)
    }

    /// About how long so many percent took at most, in milliseconds: less than a fifth off. `None` if there are none.
    pub fn percentile(&self, percent: u64) -> Option<u64> {
        let total: u64 = self.buckets.iter().sum();
        let wanted = (total * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let at = self.buckets.iter().position(|count| {
            seen += count;
            seen >= wanted
        })?;
        Some(match at {
            0 => 0,
            // The middle, by the scale of the buckets.
            at => {
                let quarters = 2 * at - 1;
                // Powers would need the mathematical library, which every start of the program would load.
                let rest = if quarters % 4 == 1 { 1.189_207 } else { 1.681_793 };
                ((1_u64 << (quarters / 4)) as f64 * rest + 0.5) as u64
            }
        })
    }
}

impl AddAssign<&Durations> for Durations {
    fn add_assign(&mut self, more: &Durations) {
        self.count += more.count;
        self.ms = self.ms.saturating_add(more.ms);
        if self.buckets.len() < more.buckets.len() {
            self.buckets.resize(more.buckets.len(), 0);
        }
        self.buckets.iter_mut().zip(&more.buckets).for_each(|(own, more)| *own += more);
    }
}

/// What is stored of a consumer and a period, or of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// `None` for the thread itself, of which only events are counted.
    pub consumer: Option<ConsumerId>,
    /// When the period begins, in seconds since 1970, and how long it is: [`MINUTE`] or [`HOUR`].
    pub at: i64,
    pub seconds: i64,
    pub figures: Figures,
    /// The ids of the first and the last event that came in the period and was deleted.
    pub deleted: Option<(i64, i64)>,
}

impl Counted {
    /// What a consumer did at a time, where it is counted: by then, it may be long ago.
    pub fn of(consumer: &ConsumerId, time: Time, figures: Figures) -> Counted {
        let (at, seconds) = period(time, Utc::now());
        Counted { consumer: Some(consumer.clone()), at, seconds, figures, deleted: None }
    }

    /// What a consumer did just now.
    pub fn now(consumer: &ConsumerId, figures: Figures) -> Counted {
        Counted::of(consumer, Utc::now(), figures)
    }

    /// Adds what is stored of another part of the same period.
    pub fn add(&mut self, more: &Counted) {
        self.figures += &more.figures;
        self.deleted = match (self.deleted, more.deleted) {
            (Some((first, last)), Some((other, end))) => Some((first.min(other), last.max(end))),
            (own, more) => own.or(more),
        };
    }
}

/// Where what happened at a time is counted.
fn period(time: Time, now: Time) -> (i64, i64) {
    let seconds = if time < oldest_minute(now) { HOUR } else { MINUTE };
    (time.timestamp().div_euclid(seconds) * seconds, seconds)
}

/// Minutes that begin before this time are merged to hours. It is the beginning of an hour.
pub fn oldest_minute(now: Time) -> Time {
    hour_of(now - BY_MINUTE)
}

/// Hours that begin before this time are forgotten.
pub fn oldest_hour(now: Time) -> Time {
    hour_of(now - KEPT)
}

fn hour_of(time: Time) -> Time {
    Time::from_timestamp(time.timestamp().div_euclid(HOUR) * HOUR, 0).unwrap_or(time)
}

/// Merges what is stored of minutes to hours.
pub fn by_hour(minutes: impl IntoIterator<Item = Counted>) -> Vec<Counted> {
    let mut hours: BTreeMap<(i64, Option<ConsumerId>), Counted> = BTreeMap::new();
    for minute in minutes {
        let at = minute.at.div_euclid(HOUR) * HOUR;
        let hour = Counted { at, seconds: HOUR, ..minute };
        match hours.get_mut(&(at, hour.consumer.clone())) {
            Some(known) => known.add(&hour),
            None => drop(hours.insert((at, hour.consumer.clone()), hour)),
        }
    }
    hours.into_values().collect()
}

/// Collects which events are deleted, by when they came.
#[derive(Debug)]
pub struct Deleted {
    now: Time,
    /// The first and the last id, by the period.
    periods: BTreeMap<(i64, i64), (i64, i64)>,
    /// The minute of the last event, as text, and its period, which may be too long ago to be kept.
    last: (String, Option<(i64, i64)>),
}

impl Default for Deleted {
    fn default() -> Deleted {
        Deleted { now: Utc::now(), periods: BTreeMap::new(), last: (String::new(), None) }
    }
}

impl Deleted {
    /// `created_at` is as it is stored.
    pub fn add(&mut self, id: i64, created_at: &str) {
        // Up to the minutes: events come in order, so that few texts are parsed.
        let minute = created_at.get(..16).unwrap_or(created_at);
        if self.last.0 != minute {
            let time = super::time::parse(created_at).filter(|time| *time >= oldest_hour(self.now));
            self.last = (minute.to_owned(), time.map(|time| period(time, self.now)));
        }
        let Some(period) = self.last.1 else { return };
        let (first, last) = self.periods.entry(period).or_insert((id, id));
        (*first, *last) = ((*first).min(id), (*last).max(id));
    }

    pub fn counted(&self) -> impl Iterator<Item = Counted> + '_ {
        self.periods.iter().map(|(&(at, seconds), &deleted)| Counted {
            consumer: None,
            at,
            seconds,
            figures: Figures::default(),
            deleted: Some(deleted),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(all: &[u64]) -> Durations {
        let mut durations = Durations::default();
        all.iter().for_each(|ms| durations.add(Duration::from_millis(*ms)));
        durations
    }

    #[test]
    fn buckets_are_in_order_and_none_is_too_large() {
        let mut before = 0;
        for ms in 0..100_000 {
            let at = Durations::bucket(ms);
            assert!(at >= before, "{ms}");
            before = at;
        }
        assert_eq!(Durations::bucket(u64::MAX), Durations::BUCKETS - 1);
        assert_eq!(of(&[u64::MAX, 1]).count, 2);
    }

    #[test]
    fn percentiles_are_less_than_a_fifth_off() {
        assert_eq!((of(&[]).percentile(50), of(&[0]).percentile(95)), (None, Some(0)));
        assert_eq!((of(&[1]).percentile(50), of(&[1000]).percentile(50)), (Some(1), Some(861)));
        let all: Vec<u64> = (1..=10_000).map(|n| n * 7).collect();
        for percent in [1, 50, 95, 100] {
            let (found, exact) = (of(&all).percentile(percent).unwrap() as f64, (percent * 700) as f64);
            assert!((found / exact - 1.0).abs() < 0.2, "{percent}: {found}, not {exact}");
        }
        let mut twice = of(&[1, 1000]);
        twice += &of(&[1000, 1_000_000]);
        assert_eq!(twice, of(&[1, 1000, 1000, 1_000_000]));
    }

    #[test]
    fn a_run_is_counted_by_its_result() {
        let began = Time::default();
        let run = |result, events| Run {
            number: 1,
            began,
            ended: began + TimeDelta::milliseconds(7),
            attempt: 1,
            events,
            upto: 9,
            result,
            exit: None,
            output: None,
            host: None,
            tail: None,
        };
        for (result, events, (handled, failed, dead)) in [
            (RunResult::Succeeded, Some(3), (3, 0, 0)),
            (RunResult::Succeeded, None, (0, 0, 0)),
            (RunResult::Failed, Some(3), (0, 1, 0)),
            (RunResult::Dead, Some(1), (0, 1, 1)),
            (RunResult::Stopped, Some(3), (0, 0, 0)),
        ] {
            let figures = Figures { handled, failed, dead, took: of(&[7]) };
            assert_eq!(Figures::of_run(&run(result, events)), figures, "{result:?}");
        }
    }

    #[test]
    fn minutes_are_merged_to_hours_by_their_consumers() {
        let minute = |consumer: Option<&str>, at, (handled, is_dead): (u64, bool), deleted| {
            let mut figures = Figures::default();
            figures.handled(handled, Some(Duration::from_millis(handled)));
            figures.failed(is_dead, None);
            Counted { consumer: consumer.map(ConsumerId::stored), at, seconds: MINUTE, figures, deleted }
        };
        let hours = by_hour([
            minute(Some("a"), 3 * HOUR, (1, true), None),
            minute(None, 3 * HOUR + MINUTE, (0, false), Some((5, 9))),
            minute(Some("a"), 4 * HOUR - MINUTE, (2, true), None),
            minute(None, 3 * HOUR, (0, false), Some((3, 4))),
            minute(Some("a"), 4 * HOUR, (4, false), None),
        ]);
        let figures = |handled, failed, dead, took: &[u64]| Figures { handled, failed, dead, took: of(took) };
        let hour = |consumer: Option<&str>, at, figures, deleted| Counted {
            consumer: consumer.map(ConsumerId::stored),
            at,
            seconds: HOUR,
            figures,
            deleted,
        };
        assert_eq!(
            hours,
            [
                hour(None, 3 * HOUR, figures(0, 2, 0, &[0, 0]), Some((3, 9))),
                hour(Some("a"), 3 * HOUR, figures(3, 2, 2, &[1, 2]), None),
                hour(Some("a"), 4 * HOUR, figures(4, 1, 0, &[4]), None),
            ]
        );
        assert!(Figures::default().is_empty() && !hours[0].figures.is_empty());
    }

    #[test]
    fn minutes_of_long_ago_are_hours() {
        let now = super::super::time::parse("2026-03-18T10:30:20.000Z").unwrap();
        assert_eq!(period(now, now), (now.timestamp() - 20, MINUTE));
        assert_eq!(period(now - TimeDelta::hours(25), now).1, MINUTE);
        let oldest = oldest_minute(now);
        assert_eq!((period(oldest, now).1, period(oldest - TimeDelta::seconds(1), now).1), (MINUTE, HOUR));
        let (at, seconds) = period(now - TimeDelta::hours(26), now);
        assert_eq!((at % HOUR, seconds), (0, HOUR));
        let mut deleted = Deleted { now, ..Deleted::default() };
        for (id, at) in [(1, "2026-01-01T00:00:00.000Z"), (5, "2026-03-18T10:30:01.000Z"), (7, "no time")] {
            deleted.add(id, at);
        }
        let all: Vec<_> = deleted.counted().map(|one| (one.at, one.deleted)).collect();
        assert_eq!(all, [(now.timestamp() - 20, Some((5, 5)))]);
    }
}
