//! The machines that share the places of a pool.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ProcessId, RunState, STOPPED};
use crate::model::time::Time;

/// What a machine does for a pool. It has a lease for that as long as it is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Crew {
    pub supervisor: Option<ProcessId>,
    /// As [`RunState::home`].
    pub home: Option<(u64, u64)>,
    /// When the pool began to work, and with which subscription and cursor: if these are others now, it is not known
    /// which events this machine's handlers have, and they finish nothing.
    pub since: Option<Time>,
    pub token: String,
    pub rewinds: i64,
    /// How many places it has.
    pub places: u32,
    /// It could use more.
    pub wants: bool,
    /// Whether it stores a claim before it gives an event. Otherwise others have to wait until it does.
    pub claims: bool,
    /// It tries one event after the consumer has stalled.
    pub probes: bool,
}

/// One of which nothing is known but that it is there.
impl Default for Crew {
    fn default() -> Crew {
        Crew {
            supervisor: None,
            home: None,
            since: None,
            token: String::new(),
            rewinds: 0,
            places: 0,
            wants: false,
            claims: true,
            probes: false,
        }
    }
}

/// All of them, by their machines.
pub type Crews = BTreeMap<String, Crew>;

/// How many places a machine may have of `all`: those that others do not have, and if some of them could use more, no
/// more than its share of what these and the machine itself may have. A machine that has more than that lets them go as
/// its runs end.
pub fn allotment(crews: &Crews, machine: &str, all: u32) -> u32 {
    let others = crews.iter().filter(|(other, _)| *other != machine);
    let places = |wants: bool| {
        let those = others.clone().filter(|(_, crew)| crew.wants == wants);
        those.fold(0_u32, |sum, (_, crew)| sum.saturating_add(crew.places))
    };
    // Those that have enough keep what they have.
    let shared = all.saturating_sub(places(false));
    let free = shared.saturating_sub(places(true));
    let wanting = others.clone().filter(|(_, crew)| crew.wants);
    let before = wanting.clone().filter(|(other, _)| other.as_str() < machine).count();
    let count = wanting.count() + 1;
    if count == 1 {
        return free;
    }
    let (count, before) = (count.try_into().unwrap_or(u32::MAX), before.try_into().unwrap_or(u32::MAX));
    free.min(shared / count + u32::from(before < shared % count))
}

impl RunState {
    /// Without any machine at work: what was decided about the consumer before still counts. `newest` is the newest
    /// event.
    pub fn left_by_all(&self, newest: i64) -> RunState {
        let why = if self.stop.is_some() { Some(STOPPED) } else { self.reason.as_deref() };
        let state = RunState { asleep: self.asleep.clone(), ..self.idle() };
        match why {
            Some(why) => RunState { start_newest: newest, ..state.stalled(why) },
            None => state,
        }
    }

    /// Without a machine. Where it was the last one, the run is over.
    pub fn without_crew(&self, machine: &str) -> RunState {
        let mut state = self.clone();
        state.crews.remove(machine);
        if let Some(next) =
            state.crews.values().find(|crew| crew.supervisor.is_some() && crew.since == state.since)
        {
            (state.supervisor, state.home) = (next.supervisor.clone(), next.home);
        }
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ledger::Sleep;
    use crate::model::run::{Phase, StopRequest};

    fn at(second: i64) -> Option<Time> {
        Time::from_timestamp(second, 0)
    }

    fn process(pid: u32) -> Option<ProcessId> {
        Some(ProcessId { pid, start: 1, boot: "b".into(), namespace: 2 })
    }

    #[test]
    fn a_run_goes_on_as_that_of_another_machine_with_a_supervisor_in_it() {
        let of = |pid, since| Crew {
            supervisor: process(pid),
            home: Some((7, pid.into())),
            since,
            ..Crew::default()
        };
        let nobody = Crew { supervisor: None, ..of(3, at(9)) };
        let crews = [("a", of(1, at(9))), ("b", of(2, at(8))), ("c", nobody), ("d", of(4, at(9)))];
        let crews: Crews = crews.map(|(name, crew)| (name.to_owned(), crew)).into();
        let (supervisor, home) = (process(1), Some((7, 1)));
        let state = RunState { since: at(9), supervisor, home, crews, ..RunState::default() };
        let left = state.without_crew("a");
        assert_eq!((left.supervisor.clone(), left.home), (process(4), Some((7, 4))));
        assert_eq!(left.crews.keys().collect::<Vec<_>>(), ["b", "c", "d"]);
        let left = left.without_crew("d");
        assert_eq!((left.supervisor.clone(), left.home), (process(4), Some((7, 4))));
        assert_eq!(
            RunState { crews: Crews::new(), ..left },
            RunState { crews: Crews::new(), ..state.without_crew("a") }
        );
    }

    #[test]
    fn what_was_decided_before_all_machines_left_still_counts() {
        let sleep = Sleep { until: Time::default(), awaits: false };
        let state =
            RunState { phase: Phase::Running, asleep: [(5, sleep)].into(), failed: 3, ..RunState::default() };
        let left = RunState { phase: Phase::Idle, ..state.clone() };
        assert_eq!(state.left_by_all(7), left);
        let stalled = |reason: &str| RunState {
            phase: Phase::Stalled,
            reason: Some(reason.to_owned()),
            start_newest: 7,
            ..left.clone()
        };
        let refused = RunState { reason: Some("why".into()), ..state };
        assert_eq!(refused.left_by_all(7), stalled("why"));
        let stopped = RunState { stop: Some(StopRequest::default()), ..refused };
        assert_eq!(stopped.left_by_all(7), stalled(STOPPED));
    }
}
