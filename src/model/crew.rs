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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::run::{Crews, Options, RunState};
    use crate::model::subscription::NO_HANDLER;
    use crate::model::subscription::tests::subscription;
    use crate::model::time::Time;

    fn crew() -> Crew {
        Crew { since: Some(Time::default()), token: "t".into(), rewinds: 2, ..Crew::default() }
    }

    /// A pool at work, with these machines.
    fn pool<const N: usize>(crews: [(&str, Crew); N]) -> Subscription {
        let crews: Crews = crews.map(|(name, crew)| (name.to_owned(), crew)).into();
        let state =
            RunState { phase: Phase::Running, since: Some(Time::default()), crews, ..RunState::default() };
        let options = Options { concurrency: Some(2), ..Options::default() };
        Subscription { options, state, rewinds: 2, ..subscription() }
    }

    #[test]
    fn a_pool_is_shared_if_it_has_a_handler() {
        assert!(pool([]).is_shared_pool());
        assert!(!subscription().is_shared_pool());
        let options = Options { no_handler: true, ..pool([]).options };
        assert!(!Subscription { handler_cmd: NO_HANDLER.into(), options, ..pool([]) }.is_shared_pool());
    }

    #[test]
    fn only_a_machine_that_may_be_alive_has_an_event() {
        let shared = Subscription { elsewhere: vec!["b".into()], ..pool([]) };
        let at = |machine: Option<&str>| {
            shared.is_at_another_machine(&Claim { machine: machine.map(str::to_owned), ..Claim::default() })
        };
        assert_eq!([at(Some("b")), at(Some("a")), at(None)], [true, false, false]);
    }

    #[test]
    fn what_is_known_of_a_machine_holds_for_the_run_and_the_cursor_that_it_works_for() {
        let shared = pool([]);
        assert!(shared.is_current(&crew()));
        assert!(!shared.is_current(&Crew { since: None, ..crew() }));
        assert!(!shared.is_current(&Crew { rewinds: 1, ..crew() }));
        assert!(!shared.is_current(&Crew { token: "u".into(), ..crew() }));
        let state = RunState { phase: Phase::Idle, ..shared.state.clone() };
        assert!(!Subscription { state, ..shared }.is_current(&crew()));
    }

    #[test]
    fn a_machine_gives_events_if_all_store_what_they_give() {
        let silent = || Crew { claims: false, ..crew() };
        let old = || Crew { rewinds: 1, ..crew() };
        let probes = || Crew { probes: true, ..crew() };
        assert!(pool([("a", crew())]).may_give("a"));
        assert!(pool([("a", crew()), ("b", crew())]).may_give("a"));
        assert!(!pool([("b", crew())]).may_give("a"), "it has no part");
        assert!(!pool([("a", old())]).may_give("a"));
        // Alone, it need not store what it gives.
        assert!(pool([("a", silent())]).may_give("a"));
        assert!(!pool([("a", silent()), ("b", crew())]).may_give("a"));
        assert!(pool([("a", probes()), ("b", crew())]).may_give("a"));
        for other in [silent(), old(), probes()] {
            assert!(!pool([("a", crew()), ("b", other)]).may_give("a"));
        }
    }
}
