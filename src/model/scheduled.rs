//! Events that are stored now and become events later.

use std::time::Duration;

use super::event::NewEvent;
use super::time::Time;

pub use super::due::{Due, ScheduledId, point_in_time};

/// An event that is stored, and is to become an event later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduledEvent {
    pub id: ScheduledId,
    pub due: Time,
    /// If it was asked for by a duration, that: setting the clock back does not prolong it.
    pub delay: Option<Duration>,
    /// As it will be stored, with `scheduled_at` in its metadata, but without its `created_at` and its key.
    pub event: NewEvent<'static>,
    /// Its idempotency key.
    pub key: Option<String>,
}

/// What of all that is to come is due first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextDue {
    /// The store's time.
    pub now: Time,
    /// When the first is due, if anything is to come.
    pub at: Option<Time>,
    /// The first of those that were asked for by a duration: when it is due, and how long it waits at most, whatever
    /// happens to the clock.
    pub delayed: Option<(Time, Duration)>,
}

impl NextDue {
    /// With something else that is to come.
    pub fn and(self, at: Time, longest: Option<Duration>) -> NextDue {
        let first = self.at.map_or(at, |first| first.min(at));
        let delayed = self.delayed.into_iter().chain(longest.map(|longest| (at, longest))).min();
        NextDue { at: Some(first), delayed, ..self }
    }

    /// How long until then.
    pub fn until(&self, at: Time) -> Duration {
        (at - self.now).to_std().unwrap_or_default()
    }
}

/// Which scheduled events are to become events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Those that are due by then, the first ones first.
    Upto(Time),
    /// Of these, those that were asked for by a duration.
    Delayed(Time),
    One(ScheduledId),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_first_is_the_first_of_all_and_of_those_with_a_duration() {
        let at = |second| Time::from_timestamp(second, 0).unwrap();
        let long = Duration::from_secs(60);
        let none = NextDue { now: at(10), at: None, delayed: None };
        let timed = none.and(at(30), None);
        assert_eq!(timed, NextDue { at: Some(at(30)), ..none });
        let delayed = timed.and(at(40), Some(long));
        assert_eq!(delayed, NextDue { now: at(10), at: Some(at(30)), delayed: Some((at(40), long)) });
        let first = delayed.and(at(20), Some(long));
        assert_eq!(first, NextDue { now: at(10), at: Some(at(20)), delayed: Some((at(20), long)) });
        assert_eq!(first.and(at(50), Some(long)), first);
        assert_eq!((first.until(at(30)), first.until(at(5))), (Duration::from_secs(20), Duration::ZERO));
    }
}
