//! How many events were stored when, without reading them all.
//!
//! If the clock was set back, or ids are missing, the figures are a little off.

use std::collections::BTreeMap;

use thread::Queue;
use thread::model::time::{self, Time};
use thread::queue::figures::Came;
use thread_sessions::Result;

/// Numbers of events in the last periods of equal length.
#[derive(Debug, Clone)]
pub struct Rate {
    /// The length of a period, in seconds.
    seconds: i64,
    periods: i64,
    /// The id up to which events are counted, and its period.
    upto: (i64, i64),
    counts: BTreeMap<i64, u64>,
}

impl Rate {
    /// The last 30 minutes.
    pub fn by_minute() -> Rate {
        Rate::new(60, 30)
    }

    /// The last 24 hours.
    pub fn by_hour() -> Rate {
        Rate::new(3600, 24)
    }

    /// So many periods of so many seconds.
    pub fn new(seconds: i64, periods: i64) -> Rate {
        Rate { seconds, periods, upto: (0, i64::MIN), counts: BTreeMap::new() }
    }

    /// Counts what is new in the thread.
    ///
    /// # Errors
    ///
    /// Errors of the thread.
    pub fn update(&mut self, queue: &mut Queue, now: Time) -> Result<()> {
        let first = now.timestamp().div_euclid(self.seconds) - self.periods + 1;
        self.counts.retain(|period, _| *period >= first);
        let Some(newest) = queue.last_upto(i64::MAX)?.filter(|newest| *newest > self.upto.0) else {
            return Ok(());
        };
        let ends = [
            Came { period: self.upto.1, after: 0, upto: self.upto.0 },
            Came { period: self.period_of(queue, newest)?.unwrap_or(self.upto.1), after: 0, upto: newest },
        ];
        let counts = &mut self.counts;
        queue.came(self.seconds, ends, first, &mut |came| {
            *counts.entry(came.period).or_default() += came.upto.abs_diff(came.after);
        })?;
        self.upto = (newest, ends[1].period);
        Ok(())
    }

    /// The numbers, the oldest first; the last is of the period under way.
    pub fn series(&self, now: Time) -> Vec<u64> {
        let last = now.timestamp().div_euclid(self.seconds);
        (last - self.periods + 1..=last).map(|at| self.counts.get(&at).copied().unwrap_or(0)).collect()
    }

    fn period_of(&self, queue: &mut Queue, id: i64) -> Result<Option<i64>> {
        let at = queue.stored_at(id)?.as_deref().and_then(time::parse);
        Ok(at.map(|at| at.timestamp().div_euclid(self.seconds)))
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    #[test]
    fn events_are_counted_in_their_minutes() {
        let dir = tempfile::tempdir().unwrap();
        Queue::init(dir.path().join("t")).unwrap();
        let mut queue = Queue::open(dir.path().join("t")).unwrap();
        let now = time::parse("2026-03-18T10:30:20.000Z").unwrap();
        let database = rusqlite::Connection::open(dir.path().join("t/events.db")).unwrap();
        let store = |minutes_ago: i64, count: i64| {
            let at = time::format(now - TimeDelta::minutes(minutes_ago));
            for _ in 0..count {
                let sql =
                    "INSERT INTO events (created_at, source, type, content) VALUES (?, 'self', 'record', '')";
                database.execute(sql, [&at]).unwrap();
            }
        };
        let mut rate = Rate::by_minute();
        rate.update(&mut queue, now).unwrap();
        assert_eq!(rate.series(now), [0; 30]);
        for (minutes_ago, count) in [(5000, 40), (31, 3), (29, 7), (28, 1), (10, 100), (1, 2)] {
            store(minutes_ago, count);
        }
        rate.update(&mut queue, now).unwrap();
        let of = |rate: &Rate, now| -> Vec<(usize, u64)> {
            rate.series(now).into_iter().enumerate().filter(|(_, count)| *count > 0).collect()
        };
        assert_eq!(of(&rate, now), [(0, 7), (1, 1), (19, 100), (28, 2)]);
        // Only what is new is counted, and gaps are passed over.
        store(0, 4);
        database.execute("DELETE FROM events WHERE id BETWEEN 60 AND 70", []).unwrap();
        rate.update(&mut queue, now).unwrap();
        assert_eq!(of(&rate, now), [(0, 7), (1, 1), (19, 100), (28, 2), (29, 4)]);
        let later = now + TimeDelta::minutes(2);
        rate.update(&mut queue, later).unwrap();
        assert_eq!(of(&rate, later), [(17, 100), (26, 2), (27, 4)]);
        let mut hours = Rate::by_hour();
        hours.update(&mut queue, now).unwrap();
        // All since ten o'clock, minus those deleted; and none from three days ago.
        let stored: u64 = hours.series(now).iter().sum();
        assert!((106..=117).contains(&stored), "{stored}");
    }
}
