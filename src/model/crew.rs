//! What a machine knows of the others that work for a pool.

use super::ledger::Claim;
use super::run::{Crew, Phase};
use super::subscription::Subscription;

impl Subscription {
    /// Whether several machines may work for it at once.
    pub fn is_shared_pool(&self) -> bool {
        self.options.is_pool() && self.has_handler()
    }

    /// Whether an event is at a run of another machine, which may be alive.
    pub fn is_at_another_machine(&self, claim: &Claim) -> bool {
        claim.machine.as_ref().is_some_and(|machine| self.elsewhere.contains(machine))
    }

    /// Whether what is known of a machine's handlers holds.
    pub fn is_current(&self, crew: &Crew) -> bool {
        let is_same =
            (crew.since, crew.rewinds) == (self.state.since, self.rewinds) && crew.token == self.token;
        is_same && self.state.phase == Phase::Running
    }

    /// Whether this machine may give events: it is known which ones the others have.
    pub fn may_give(&self, machine: &str) -> bool {
        let others = || self.state.crews.iter().filter(|(other, _)| *other != machine).map(|(_, crew)| crew);
        let stores = |crew: &Crew| self.is_current(crew) && crew.claims && !crew.probes;
        let own = self.state.crews.get(machine);
        own.is_some_and(|own| self.is_current(own) && (own.claims || others().next().is_none()))
            && others().all(stores)
    }
}
