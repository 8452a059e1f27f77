//! How much was done when, and how many events came: see [`model::figures`](crate::model::figures).

use std::collections::BTreeMap;
use std::time::Duration;

use super::Queue;
use crate::error::Result;
use crate::model::figures::{Figures, HOUR, MINUTE};
use crate::model::subscription::{ConsumerId, Subscription};
use crate::model::time::{self, Time};

/// A time up to now, in periods of equal length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The length of a period, in seconds: a multiple of a minute and, if the time is longer than a day, of an hour.
    pub seconds: i64,
    /// How many there are; the last one is under way.
    pub periods: i64,
}

impl Span {
    pub const QUARTER: Span = Span { seconds: MINUTE, periods: 15 };
    pub const HOUR: Span = Span { seconds: MINUTE, periods: 60 };
    pub const DAY: Span = Span { seconds: 15 * MINUTE, periods: 96 };
    pub const WEEK: Span = Span { seconds: 2 * HOUR, periods: 84 };
    pub const MONTH: Span = Span { seconds: 6 * HOUR, periods: 120 };

    /// The period in which a time is, counted from 1970 on.
    fn period(self, time: Time) -> i64 {
        time.timestamp().div_euclid(self.seconds)
    }

    /// The first one.
    fn first(self, now: Time) -> i64 {
        self.period(now) - self.periods + 1
    }
}

/// How a thread and its consumers have done.
#[derive(Debug, Clone)]
pub struct Series {
    /// When the first period begins.
    pub from: Time,
    /// How long each is.
    pub step: Duration,
    /// How many events came in each, those included that were deleted since.
    pub arrived: Vec<u64>,
    /// What the consumers did that are subscribed, by name.
    pub consumers: Vec<(Subscription, Vec<Figures>)>,
}

/// Ids of events that came one after the other in one period: those after `after`, and up to `upto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Came {
    pub period: i64,
    pub after: i64,
    pub upto: i64,
}

impl Queue {
    /// How the thread and its consumers, or only one of them, have done. What was not counted, because an earlier program
    /// has recorded it, is missing. When events came is a little off if the clock was set back.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownConsumer`](crate::Error::UnknownConsumer).
    pub fn series(&mut self, only: Option<&ConsumerId>, span: Span, now: Time) -> Result<Series> {
        let subscriptions = match only {
            Some(consumer) => vec![self.subscription(consumer)?],
            None => self.subscriptions()?,
        };
        let (first, count) = (span.first(now), usize::try_from(span.periods).unwrap_or(0));
        let begin = first * span.seconds;
        let (mut of, mut deleted) = (BTreeMap::<ConsumerId, Vec<Figures>>::new(), Vec::new());
        for counted in self.store.figures(begin)? {
            let period = counted.at.div_euclid(span.seconds);
            let Some(n) = usize::try_from(period - first).ok().filter(|n| *n < count) else { continue };
            if let Some(consumer) = counted.consumer {
                of.entry(consumer).or_insert_with(|| vec![Figures::default(); count])[n] += &counted.figures;
            } else if let Some((lowest, highest)) = counted.deleted {
                deleted.push(Came { period, after: lowest - 1, upto: highest });
            }
        }
        let arrived = self.arrived(span, now, deleted)?;
        let consumers = subscriptions.into_iter().map(|one| {
            let own = of.remove(&one.consumer).unwrap_or_else(|| vec![Figures::default(); count]);
            (one, own)
        });
        let consumers = consumers.collect();
        let from = Time::from_timestamp(begin, 0).unwrap_or(now);
        Ok(Series { from, step: Duration::from_secs(span.seconds.unsigned_abs()), arrived, consumers })
    }

    /// How many events came in each period. `deleted`: those that are not in the table any more.
    fn arrived(&mut self, span: Span, now: Time, mut all: Vec<Came>) -> Result<Vec<u64>> {
        let first = span.first(now);
        if let Some(newest) = self.last_upto(i64::MAX)? {
            let oldest = self.store.first_after(0)?.unwrap_or(newest);
            let period = self.period_of(span, newest)?.unwrap_or(first);
            let ends = [
                Came { period: i64::MIN, after: 0, upto: oldest - 1 },
                Came { period, after: 0, upto: newest },
            ];
            self.came(span.seconds, ends, first, &mut |came| all.push(came))?;
        }
        // Ids are given without gaps: from the last one before the first period on, each came with the next that is known.
        all.retain(|came| came.period >= first);
        let mut upto = all.iter().map(|came| came.after).min().unwrap_or(0);
        let mut counts = vec![0; usize::try_from(span.periods).unwrap_or(0)];
        let mut last = BTreeMap::new();
        for came in all {
            let known = last.entry(came.period).or_insert(came.upto);
            *known = came.upto.max(*known);
        }
        for (period, last) in last {
            let Some(n) = usize::try_from(period - first).ok().filter(|n| *n < counts.len()) else {
                continue;
            };
            counts[n] = last.saturating_sub(upto).max(0).unsigned_abs();
            upto = last.max(upto);
        }
        Ok(counts)
    }

    fn period_of(&mut self, span: Span, id: i64) -> Result<Option<i64>> {
        Ok(self.stored_at(id)?.as_deref().and_then(time::parse).map(|at| span.period(at)))
    }

    /// Finds the periods, of so many seconds each, in which the events came after one position and up to another, without
    /// reading them all. Passes those in the period `first` or later, the oldest first.
    ///
    /// Times rise with ids, so a search finds the ids between which a period lies.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub fn came(
        &mut self,
        seconds: i64,
        [from, to]: [Came; 2],
        first: i64,
        take: &mut dyn FnMut(Came),
    ) -> Result<()> {
        if to.period < first || to.upto <= from.upto {
            return Ok(());
        }
        if from.period >= to.period || to.upto - from.upto == 1 {
            take(Came { after: from.upto, ..to });
            return Ok(());
        }
        let middle = from.upto + (to.upto - from.upto) / 2;
        let found = self.last_upto(middle)?.filter(|found| *found > from.upto);
        let Some(found) = found else {
            // Nothing is left of them.
            let next = self.store.first_after(middle)?.unwrap_or(to.upto).min(to.upto);
            return self.came(seconds, [Came { upto: next - 1, ..from }, to], first, take);
        };
        let span = Span { seconds, periods: 1 };
        let period = self.period_of(span, found)?.unwrap_or(from.period).clamp(from.period, to.period);
        let found = Came { period, after: 0, upto: found };
        self.came(seconds, [from, found], first, take)?;
        self.came(seconds, [found, to], first, take)
    }
}
