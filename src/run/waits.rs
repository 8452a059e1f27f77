//! Waits that are measured by a clock that nobody sets.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use chrono::Utc;

use super::control;
use super::dispatch::Wait;
use crate::error::Result;
use crate::model::ledger::{EventWait, Ledger, LedgerChange};
use crate::model::run::{Phase, RunState};
use crate::model::subscription::ConsumerId;
use crate::model::time::Time;
use crate::queue::Queue;
use crate::store::RunUpdate;

/// By how much the two clocks may disagree without the time of day having been set.
pub(super) const DRIFT: Duration = Duration::from_millis(500);

/// When the waits that a process attends to end by the monotonic clock.
#[derive(Debug, Default)]
pub struct Ends {
    /// Those of this look, and of the one before.
    ends: HashMap<(ConsumerId, Option<Time>), Instant>,
    before: HashMap<(ConsumerId, Option<Time>), Instant>,
}

impl Ends {
    /// Begins a look at what waits.
    pub fn look(&mut self) {
        self.before = std::mem::take(&mut self.ends);
    }

    /// How long a wait still takes. One that would take longer because the time of day was set back is ended now.
    ///
    /// # Errors
    ///
    /// It cannot be ended.
    pub fn left(&mut self, queue: &mut Queue, consumer: &ConsumerId, wait: Wait) -> Result<Duration> {
        let (now, key) = (Instant::now(), (consumer.clone(), wait.recorded));
        let end = self.before.get(&key).copied().unwrap_or(now + wait.left);
        self.ends.insert(key, end);
        if end > now {
            return Ok(end - now);
        }
        if wait.left > DRIFT || end + DRIFT <= now {
            end_now(queue, consumer, wait)?;
            return Ok(Duration::ZERO);
        }
        Ok(wait.left)
    }
}

/// Ends a wait now, if it is still there.
fn end_now(queue: &mut Queue, consumer: &ConsumerId, wait: Wait) -> Result<()> {
    let Some(seen) = queue.store.subscription(consumer)? else { return Ok(()) };
    let ledger = match seen.options.finishes_singly() {
        true => queue.store.ledger(consumer)?,
        false => Ledger::default(),
    };
    let now = Utc::now();
    control::update(queue, &seen, |current| {
        let (state, options) = (&current.state, &current.options);
        let mut update = RunUpdate::state(match state.phase {
            Phase::Waiting if state.next_try == wait.recorded => {
                RunState { next_try: Some(now), since: Some(now), ..state.clone() }
            }
            Phase::Stalled if state.ended == wait.recorded => {
                let longest = options.longest_wait().max(options.probe.unwrap_or_default());
                RunState { ended: Some(now - longest), ..state.clone() }
            }
            _ => state.clone(),
        });
        for (id, event) in ledger.waits().iter().filter(|(_, event)| Some(event.until) == wait.recorded) {
            let wait = EventWait { since: now, until: now, ..event.clone() };
            update.ledger.push(LedgerChange::Wait { id: *id, wait });
        }
        (update.state != *state || !update.ledger.is_empty()).then_some(update)
    })?;
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use thread_testkit::simulation::clock;

    use super::*;
    use crate::model::event::NewEvent;
    use crate::model::ledger::Asleep;
    use crate::model::run::Options;
    use crate::model::subscription::{NO_HANDLER, NewSubscription};

    #[test]
    fn a_wait_ends_in_time_though_the_clock_was_set_back() {
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
        for (left, later) in [(10 * clock::SECOND, 0), (100 * clock::MILLISECOND, 500 * clock::MILLISECOND)] {
            let left = Duration::from_nanos(left);
            let seen = queue.subscription(&consumer).unwrap();
            let (since, until) = (Utc::now(), Utc::now() + left);
            let state = RunState {
                phase: Phase::Waiting,
                since: Some(since),
                next_try: Some(until),
                ..seen.state.clone()
            };
            let wait = EventWait { attempts: 1, deferred: 0, since, until, asleep: Asleep::No };
            let ledger = vec![LedgerChange::Wait { id: 1, wait }];
            let update = RunUpdate { ledger, ..RunUpdate::state(state) };
            queue.store.update_run(&seen, &update).unwrap().unwrap();
            let wait = Wait { until, left, recorded: Some(until) };
            let stored = |queue: &mut Queue| {
                let of_event = queue.store.ledger(&consumer).unwrap().waits()[&1].until;
                (queue.subscription(&consumer).unwrap().state.next_try, of_event)
            };
            let mut ends = Ends::default();
            let mut looks = |queue: &mut Queue, after: u64| {
                clock::pass(after);
                ends.look();
                ends.left(queue, &consumer, wait).unwrap()
            };
            assert_eq!(looks(&mut queue, 0), left);
            clock::set_time_of_day(clock::time_of_day() - 3600 * clock::SECOND);
            assert_eq!(looks(&mut queue, clock::MILLISECOND), left - Duration::from_millis(1));
            assert_eq!(stored(&mut queue), (Some(until), until));
            looks(&mut queue, clock::nanoseconds(left));
            assert_eq!(looks(&mut queue, later), Duration::ZERO);
            assert_eq!(stored(&mut queue), (Some(Utc::now()), Utc::now()));
        }
    }
}
