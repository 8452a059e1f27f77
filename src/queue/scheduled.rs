//! Making what is due events: scheduled events, and those of schedules.

use jiff::tz::TimeZone;

use super::Queue;
use crate::error::{Error, Result};
use crate::files::log::log;
use crate::model::schedule::Schedule;
use crate::model::scheduled::{NextDue, ScheduledEvent, ScheduledId, Which};
use crate::model::time::Time;
use crate::store::Appended;

/// Scheduled events that become events in one transaction: short enough for a push to wait for it.
const MOST_AT_ONCE: usize = 500;

/// The time zone of this machine; UTC if it has none.
pub fn local_zone() -> TimeZone {
    TimeZone::try_system().unwrap_or(TimeZone::UTC)
}

impl Queue {
    /// How many scheduled events there are.
    pub fn count_scheduled(&mut self) -> Result<u64> {
        self.store.count_scheduled()
    }

    /// The scheduled events after this one, in the order in which they are due; `None`: from the first on.
    pub fn scheduled(
        &mut self,
        after: Option<(Time, ScheduledId)>,
        most: usize,
    ) -> Result<Vec<ScheduledEvent>> {
        self.store.scheduled(after, most)
    }

    /// Forgets a scheduled event, and frees its idempotency key. Returns whether it was there.
    pub fn cancel_scheduled(&mut self, id: ScheduledId) -> Result<bool> {
        let is_there = self.store.cancel_scheduled(id)?;
        if is_there {
            log!(self, Info, "scheduled: cancelled {id}");
        }
        Ok(is_there)
    }

    /// Makes a scheduled event an event now. [`Queue::publish`] must follow. Nothing is stored if it is not there.
    pub fn make_scheduled_now(&mut self, id: ScheduledId) -> Result<Appended> {
        let made = self.store.make_scheduled(Which::One(id), 1)?;
        if let Some(event) = made.last_id {
            log!(self, Info, "scheduled: {id} became id={event}");
        }
        Ok(made)
    }

    /// All schedules, by name.
    pub fn schedules(&mut self) -> Result<Vec<Schedule>> {
        self.store.schedules()
    }

    /// Adds a schedule. Returns false, with nothing changed, if there is one of that name.
    pub fn add_schedule(&mut self, schedule: &Schedule) -> Result<bool> {
        let mut is_new = true;
        self.change_schedule(&schedule.name, &mut |seen| {
            is_new = seen.is_none();
            Ok(Some(seen.unwrap_or(schedule).clone()))
        })?;
        Ok(is_new)
    }

    /// Changes a schedule, again if another process is quicker: to what `change` returns, which is given the schedule
    /// as it is. Returns it as it was.
    ///
    /// # Errors
    ///
    /// Those of `change`.
    pub fn change_schedule(
        &mut self,
        name: &str,
        change: &mut dyn FnMut(Option<&Schedule>) -> Result<Option<Schedule>>,
    ) -> Result<Option<Schedule>> {
        loop {
            let seen = self.store.schedules()?.into_iter().find(|schedule| schedule.name == name);
            let to = change(seen.as_ref())?;
            if seen.is_none() && to.is_none() {
                return Ok(None);
            }
            if self.store.change_schedule(name, seen.as_ref(), to.as_ref(), &[])?.is_some() {
                return Ok(seen);
            }
        }
    }

    /// What is due first of all that is to come. `None` if nothing is.
    pub(crate) fn next_due(&mut self) -> Result<Option<NextDue>> {
        let Some(mut next) = self.store.next_scheduled()? else { return Ok(None) };
        for schedule in self.store.schedules()? {
            if let Some(at) = schedule.next.filter(|_| !schedule.paused) {
                next = next.and(at, schedule.timing.longest());
            }
        }
        // Of a closed thread, nothing becomes an event.
        if next.at.is_none() || self.store.closed()?.is_some() {
            return Ok(None);
        }
        Ok(Some(next))
    }

    /// Makes a part of what is due events, and brings the JSONL log up to date. Returns whether anything was done.
    /// `next` is what is due first. `passed`: what is due by then and was asked for by a duration is due, whatever the
    /// clock shows.
    pub(crate) fn make_due(&mut self, next: &NextDue, passed: Option<Time>) -> Result<bool> {
        let mut stored = 0;
        let upto = next.at.filter(|at| *at <= next.now).map(|_| Which::Upto(next.now));
        for which in upto.into_iter().chain(passed.map(Which::Delayed)) {
            let made = self.store.make_scheduled(which, MOST_AT_ONCE)?;
            if made.count > 0 {
                log!(self, Info, "scheduled: {made}");
            }
            stored += made.count;
        }
        let mut is_changed = stored > 0;
        for seen in self.store.schedules()? {
            let passed = passed.filter(|_| seen.timing.longest().is_some());
            if let Some(made) =
                self.make_due_of(&seen, passed.map_or(next.now, |passed| passed.max(next.now)))?
            {
                stored += made.count;
                is_changed = true;
            }
        }
        if stored > 0 {
            self.publish(&mut |_| {});
        }
        Ok(is_changed)
    }

    /// Makes the events of one schedule. `None` if nothing is due, or another process was quicker.
    fn make_due_of(&mut self, seen: &Schedule, upto: Time) -> Result<Option<Appended>> {
        let name = &seen.name;
        let broken = || seen.next.filter(|next| !seen.paused && *next <= upto).and(seen.problem(upto));
        if let Some(problem) = broken() {
            // Otherwise it would be tried again all the time.
            log!(self, Error, "schedule: '{name}' is paused: it {problem}");
            let paused = Schedule { paused: true, ..seen.clone() };
            return self.store.change_schedule(name, Some(seen), Some(&paused), &[]);
        }
        let Some((times, to)) = seen.due(upto) else { return Ok(None) };
        let events: std::result::Result<Vec<_>, _> = times.iter().map(|time| seen.event(*time)).collect();
        let made = self.store.change_schedule(name, Some(seen), Some(&to), &events.map_err(Error::from)?)?;
        if let Some(made) = made.as_ref().filter(|made| made.count > 0) {
            log!(self, Info, "schedule: '{name}' {made}");
        }
        Ok(made)
    }
}
