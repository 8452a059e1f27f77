//! This machine among those that share the places of a pool.

use super::Supervisor;
use crate::error::Result;
use crate::files::log::log;
use crate::model::run::{Crew, Phase, ProcessId, RunState};
use crate::model::subscription::Subscription;
use crate::queue::Queue;
use crate::run::control;
use crate::store::RunUpdate;

/// What became of crews that are over.
pub(super) enum Crews {
    /// There were none.
    Settled,
    /// The row has changed.
    Changed,
    /// Processes of an earlier supervisor are there.
    Busy,
}

impl Supervisor<'_> {
    /// This machine, if others may run the consumer at the same time.
    pub(super) fn machine(&self) -> Option<&str> {
        self.lease.as_ref().and_then(|lease| lease.machine())
    }

    /// Whether a machine is at work for a pool, with which this one works together.
    pub(super) fn is_at_work_elsewhere(&self, subscription: &Subscription) -> bool {
        let own = self.machine();
        let mut others = subscription.state.crews.iter().filter(|(machine, _)| Some(machine.as_str()) != own);
        others.any(|(_, crew)| subscription.is_current(crew))
    }

    /// This machine's entry for a pool at which it begins to work.
    pub(super) fn crew(&self, subscription: &Subscription, state: &RunState) -> Crew {
        Crew {
            supervisor: Some(ProcessId::own()),
            home: Some(self.files.home()),
            since: state.since,
            token: subscription.token.clone(),
            rewinds: subscription.rewinds,
            claims: !state.crews.is_empty(),
            // A stalled consumer tries one event first.
            probes: subscription.state.phase == Phase::Stalled,
            ..Crew::default()
        }
    }

    /// Makes this machine one of those that are at work for a pool. They may change the row all the time, so each row is
    /// only asked whether it still may join; to find out again what is due would take too long. `None` if it may not.
    pub(super) fn join(&self, queue: &mut Queue, found: &Subscription) -> Result<Option<Subscription>> {
        let Some(own) = self.machine() else { return Ok(None) };
        control::update(queue, found, |current| {
            let is_as_found = current.rewinds == found.rewinds && !current.state.crews.contains_key(own);
            let is_ending = current.state.stop.is_some() || current.state.reason.is_some();
            if !is_as_found || is_ending || current.state.paused || !self.is_at_work_elsewhere(current) {
                return None;
            }
            let mut state = current.state.clone();
            state.crews.insert(own.to_owned(), self.crew(current, &state));
            // Others have to see that it was there, whatever becomes of the server.
            Some(RunUpdate { durable: true, ..RunUpdate::state(state) })
        })
    }

    /// Removes the crews whose leases are over, and that of a supervisor of this machine which was killed.
    pub(super) fn end_crews(&self, queue: &mut Queue, subscription: &Subscription) -> Result<Crews> {
        let Some(own) = self.machine() else { return Ok(Crews::Settled) };
        if subscription.state.crews.contains_key(own) {
            self.end_rest(subscription);
            if self.has_pool() {
                return Ok(Crews::Busy);
            }
            self.remove_crew(queue, subscription, own)?;
            return Ok(Crews::Changed);
        }
        let is_over = |machine: &&String| !subscription.elsewhere.contains(machine);
        if let Some(machine) = subscription.state.crews.keys().find(is_over)
            && queue.store.end_lease(self.consumer, machine)?
        {
            self.remove_crew(queue, subscription, machine)?;
            return Ok(Crews::Changed);
        }
        Ok(Crews::Settled)
    }

    /// Without the last one, the run is over. What it had is claimed; of a handler that was kept, that may not be so.
    fn remove_crew(&self, queue: &mut Queue, subscription: &Subscription, machine: &str) -> Result<()> {
        let consumer = self.consumer;
        log!(queue, Warn, "dispatch: consumer={consumer} machine={machine} is gone");
        let claims = subscription.state.crews.get(machine).is_some_and(|crew| crew.claims);
        let state = subscription.state.without_crew(machine);
        let left = Subscription { state, ..subscription.clone() };
        let is_last = left.state.phase == Phase::Running && !self.is_at_work_elsewhere(&left);
        let state = match is_last {
            true if !claims => return self.record_abandoned(queue, &left).map(drop),
            true => left.state.left_by_all(queue.store.newest()?),
            false => left.state,
        };
        queue.store.update_run(subscription, &RunUpdate::state(state)).map(drop)
    }

    /// Ends this machine's part in a pool, once no handler of it is left. Otherwise its lease is over after its time, or
    /// ended by the next supervisor.
    pub(super) fn leave(&self) {
        let Some(own) = self.machine() else { return };
        if self.has_pool() {
            return;
        }
        let left = self.open().and_then(|mut queue| {
            let Some(seen) = queue.store.subscription(self.consumer)? else { return Ok(()) };
            let newest = queue.store.newest()?;
            control::update(&mut queue, &seen, |current| {
                let is_among = current.state.crews.contains_key(own);
                let state = current.state.without_crew(own);
                let left = Subscription { state, ..current.clone() };
                let is_last = left.state.phase == Phase::Running && !self.is_at_work_elsewhere(&left);
                let state = if is_last { left.state.left_by_all(newest) } else { left.state };
                is_among.then(|| RunUpdate::state(state))
            })
            .map(drop)
        });
        if let Err(e) = left {
            log!(self.files, Warn, "dispatch: consumer={} does not leave the pool: {e}", self.consumer);
        }
    }
}
