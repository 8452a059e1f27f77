//! A pool whose places several machines share.
//!
//! The consumer's row says which machines work for it, and how many places each has. Each stores that an event is claimed
//! before it gives it, decided on what it knows; that is refused if another one has stored anything since, and then what
//! was to be given is decided again. A machine is gone once its lease is over: then another one takes over what it had.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::places::ONLY;
use super::recording::Then;
use super::{Pool, open};
use crate::error::Result;
use crate::files::log::log;
use crate::files::watch::LOOK_EVERY;
use crate::model::ledger::{Claim, Ledger};
use crate::model::run::{Crew, ProcessId, RunState, allotment};
use crate::model::subscription::Subscription;
use crate::run::control;
use crate::store::RunUpdate;

/// After a handler that is kept is lost without claims, so many events at most are given one at a time.
const SUSPECTS: i64 = 1000;

impl Pool<'_, '_> {
    /// What is stored of this machine, if others may have places of the pool too.
    fn crew(&self) -> Option<&Crew> {
        self.current.state.crews.get(self.supervisor.machine()?)
    }

    /// Whether other machines have a part in the pool, or may have had.
    pub(super) fn has_others(&self) -> bool {
        self.supervisor
            .machine()
            .is_some_and(|own| self.current.state.crews.keys().any(|machine| machine != own))
    }

    /// Whether others are at work on the same run.
    pub(super) fn is_joined(&self) -> bool {
        self.supervisor.machine().is_some() && self.supervisor.is_at_work_elsewhere(&self.current)
    }

    /// How many places it may have here.
    pub(super) fn most_places(&self) -> u32 {
        let all = self.current.options.concurrency.unwrap_or(ONLY);
        match self.supervisor.machine() {
            Some(own) => allotment(&self.current.state.crews, own, all),
            None => all,
        }
    }

    /// Whether it is known which events other machines have.
    pub(super) fn may_give(&self) -> bool {
        self.supervisor.machine().is_none_or(|own| self.current.may_give(own))
    }

    /// Whether handlers that are kept get events only once their claims are stored.
    pub(super) fn holds_lines(&self) -> bool {
        self.is_kept() && self.crew().is_some_and(|crew| crew.claims)
    }

    /// Whether the others know that one more handler is to be started; otherwise they are told.
    pub(super) fn has_reserved(&mut self) -> bool {
        let reserved = self.crew().map_or(0, |crew| crew.places);
        let is_reserved = !self.has_others() || self.places.len() < reserved as usize;
        if !is_reserved {
            self.asks = self.places() + 1;
        }
        is_reserved
    }

    fn places(&self) -> u32 {
        u32::try_from(self.places.len() + self.due.len()).unwrap_or(u32::MAX)
    }

    /// Whether it waits until others let go of places, or say what they have.
    pub(super) fn waits_for_others(&self) -> bool {
        self.has_others() && (self.wants || self.asks > 0 || !self.may_give())
    }

    /// Whether to look now whether other machines are gone.
    pub(super) fn looks_at_others(&mut self) -> bool {
        let every = self.supervisor.lease.as_ref().map_or(LOOK_EVERY, |lease| lease.length() / 16);
        let is_due = self.has_others() && self.looked_at_others.elapsed() >= every.max(LOOK_EVERY);
        if is_due {
            self.looked_at_others = Instant::now();
        }
        is_due
    }

    /// After a refusal, keeps other machines from changing anything until what is decided next is stored.
    pub(super) fn take_turn(&mut self) -> Result<()> {
        if !self.was_refused || !self.has_others() || self.is_void() {
            return Ok(());
        }
        let supervisor = self.supervisor;
        let queue = open(supervisor, &mut self.queue)?;
        supervisor.retrying(|| queue.store.hold(supervisor.consumer))?;
        self.look_again()
    }

    /// Claims what handlers that are kept are to get.
    pub(super) fn claim_given(&mut self) {
        let claims = self.is_kept() && self.crew_now().is_some_and(|crew| crew.claims || self.holds_lines());
        let Some(machine) = self.supervisor.machine().filter(|_| claims) else { return };
        let since = self.now();
        for place in &self.places {
            for id in place.given.keys() {
                if self.window.ledger().claims().contains_key(id) {
                    continue;
                }
                let (machine, is_dead_letter) = (Some(machine.to_owned()), place.dead == Some(*id));
                let claim = Claim { place: place.number, since, machine, is_dead_letter, taken: None };
                self.window.claim(*id, claim);
                if place.held.contains_key(id) {
                    self.unstored.insert(*id);
                }
                self.changed.get_or_insert_with(Instant::now);
            }
        }
    }

    /// What is to be stored of this machine.
    fn crew_now(&self) -> Option<Crew> {
        let crew = self.crew()?.clone();
        let (places, wants) = (self.places().max(self.asks), self.wants && self.has_others());
        Some(Crew { places, wants, claims: self.has_others(), probes: self.is_probe, ..crew })
    }

    /// What others do not know of its places is stored.
    pub(super) fn note_places(&mut self) {
        if self.has_others() && self.crew_now().as_ref() != self.crew() {
            self.changed.get_or_insert_with(Instant::now);
        }
    }

    /// Adds to a state what others are to know.
    pub(super) fn with_crew(&self, mut state: RunState) -> RunState {
        if let Some((own, crew)) = self.supervisor.machine().zip(self.crew_now()) {
            state.crews.insert(own.to_owned(), crew);
        }
        if self.is_joined() {
            state.single_upto = state.single_upto.max(self.window.single_upto());
            state.reason = self.stalls.clone().or(state.reason);
        }
        state
    }

    /// The state without this machine, at the end of its part.
    pub(super) fn without_crew(&self, state: RunState) -> RunState {
        match self.supervisor.machine() {
            Some(own) => state.without_crew(own),
            None => state,
        }
    }

    /// The state that this machine leaves to others that are still at work.
    pub(super) fn left_to_others(&self, state: RunState) -> RunState {
        let why = match &self.then {
            Then::Stall(why) if state.stop.is_none() => Some(why.clone()),
            _ => None,
        };
        RunState { reason: why.or(state.reason.clone()), ..self.without_crew(self.with_crew(state)) }
    }

    /// Whether the row is one of this pool's run, in which this process has a part.
    pub(super) fn is_ours(&self, now: &Subscription) -> bool {
        match self.supervisor.machine() {
            Some(own) => now.state.crews.get(own).is_some_and(|crew| {
                now.is_current(crew) && crew.supervisor.as_ref() == Some(&ProcessId::own())
            }),
            None => now.state.supervisor == self.current.state.supervisor,
        }
    }

    /// Takes over what the store has, with what others have claimed since. What was not stored is not given.
    pub(super) fn share(&mut self, stored: Ledger, machine: &str) {
        let known = self.window.ledger().claims();
        let is_stored = |id: &i64| {
            let (stored, known) = (stored.claims().get(id), known.get(id));
            stored.zip(known).is_some_and(|(stored, known)| known.is_stored_as(stored))
        };
        // It may have been stored though that seemed to fail.
        self.unstored.retain(|id| !is_stored(id));
        let unstored = std::mem::take(&mut self.unstored);
        self.due.retain(|due| due.events.iter().all(|id| !unstored.contains(id)));
        for place in &mut self.places {
            place.given.retain(|id, _| !unstored.contains(id));
            place.held.retain(|id, _| !unstored.contains(id));
            place.dead.take_if(|id| unstored.contains(id));
        }
        let given = self.places.iter().flat_map(|place| place.given.keys().chain(&place.dead));
        let due = self.due.iter().flat_map(|due| &due.events);
        let mine: BTreeSet<i64> = given.chain(due).copied().collect();
        self.window.share(stored, &mine, machine);
        self.looks_again |= !unstored.is_empty();
        self.has_lost = true;
    }

    /// Finds the keys of events that are at other machines.
    pub(super) fn find_others_keys(&mut self) -> Result<()> {
        if self.key.is_none() {
            return Ok(());
        }
        let unknown = self.window.without_known_key();
        for id in &unknown {
            if let Some(key) = self.read_event(*id, &mut |_| {})? {
                self.window.set_key(*id, key);
            }
        }
        if !unknown.is_empty() {
            self.window.arrange();
        }
        Ok(())
    }

    /// Lets handlers have what is stored to be theirs.
    pub(super) fn hand_out(&mut self) {
        self.unstored.clear();
        let holds = self.holds_lines();
        for place in &mut self.places {
            for (id, line) in std::mem::take(&mut place.held) {
                match &mut place.pipes {
                    Some(pipes) if pipes.takes_input() => pipes.outbox().extend_from_slice(&line),
                    _ => {
                        place.take_back(id, &mut self.window);
                        self.changed.get_or_insert_with(Instant::now);
                    }
                }
            }
            place.holds = holds;
        }
    }

    /// What others know of this machine.
    pub(super) fn crew_known(&self) -> Option<Crew> {
        self.crew().cloned()
    }

    /// Notifies others if they may wait for what was stored.
    pub(super) fn tell_others(&mut self, before: Option<Crew>) -> Result<()> {
        let Some((before, crew)) = before.zip(self.crew_known()) else { return Ok(()) };
        self.looks_again |= crew.places > before.places || (crew.claims && !before.claims);
        let are_waiting = self.current.state.crews.values().any(|other| other.wants);
        let has_news = (crew.claims && !before.claims)
            || (before.probes && !crew.probes)
            || (crew.wants && !before.wants)
            || (are_waiting && crew.places < before.places);
        if has_news && self.has_others() {
            control::notify_supervisors(open(self.supervisor, &mut self.queue)?);
        }
        Ok(())
    }

    /// Ends the part of machines whose leases are over. Returns whether there were any.
    pub(super) fn end_lost(&mut self) -> Result<bool> {
        let Some(own) = self.supervisor.machine() else { return Ok(false) };
        let is_lost = |machine: &&String| *machine != own && !self.current.elsewhere.contains(machine);
        let Some(lost) = self.current.state.crews.keys().find(is_lost).cloned() else { return Ok(false) };
        let supervisor = self.supervisor;
        let queue = open(supervisor, &mut self.queue)?;
        if !supervisor.retrying(|| queue.store.end_lease(supervisor.consumer, &lost))? {
            return Ok(false);
        }
        log!(supervisor.files, Warn, "dispatch: consumer={} machine={lost} is gone", supervisor.consumer);
        self.store()?;
        if self.is_kept() && self.current.state.crews.get(&lost).is_some_and(|crew| !crew.claims) {
            let upto = self.window.ledger().cursor().saturating_add(SUSPECTS);
            self.window.ended(&[self.current.state.start_newest.min(upto)]);
        }
        // Unless it has come back.
        let is_gone = |now: &Subscription| !now.elsewhere.contains(&lost);
        while !self.is_void() && self.current.state.crews.contains_key(&lost) && is_gone(&self.current) {
            self.record(self.current.state.without_crew(&lost), true)?;
        }
        self.has_lost = true;
        Ok(true)
    }

    /// The events of machines that are gone, by machine and place.
    fn lost(&self, own: &str) -> BTreeMap<(String, u32), Vec<i64>> {
        let mut lost: BTreeMap<(String, u32), Vec<i64>> = BTreeMap::new();
        let is_gone = |machine: &String| machine != own && !self.current.state.crews.contains_key(machine);
        for (id, claim) in self.window.ledger().claims() {
            if let Some(machine) = claim.machine.clone().filter(is_gone) {
                lost.entry((machine, claim.place)).or_default().push(*id);
            }
        }
        lost
    }

    /// Takes over the events of machines that are gone.
    pub(super) fn take_over(&mut self) -> Result<()> {
        let Some(own) = self.supervisor.machine().filter(|_| self.has_lost && !self.is_void()) else {
            return Ok(());
        };
        self.has_lost = false;
        for of in self.lost(own).into_keys() {
            // Others may do the same, so what comes of it is stored by itself, or not at all.
            self.store()?;
            if self.is_void() {
                self.has_lost = true;
                return Ok(());
            }
            // Others may have taken them over by now, or the machine may be back.
            let Some(events) = self.lost(own).remove(&of) else { continue };
            let (machine, place) = of;
            let supervisor = self.supervisor;
            let (files, consumer) = (supervisor.files, supervisor.consumer);
            log!(files, Warn, "dispatch: consumer={consumer} machine={machine} place={place} is taken over");
            let (before, closing) = (self.window.clone(), self.closing);
            self.abandoned(events);
            let state = self.with_crew(self.tally.applied_to(&self.current.state));
            let update = RunUpdate {
                ledger: self.window.changes().to_vec(),
                dead_letters: self.dead_letters.clone(),
                runs: self.runs.clone(),
                figures: self.tally.counted(),
                durable: true,
                ..RunUpdate::state(state)
            };
            let queue = open(supervisor, &mut self.queue)?;
            let stored = supervisor.retrying(|| queue.store.update_run(&self.current, &update))?;
            let is_stored = stored.is_some();
            match stored {
                Some(now) => {
                    self.current = now;
                    self.log_dead_letters();
                    self.window.stored();
                }
                None => {
                    (self.window, self.closing) = (before, closing);
                    self.dead_letters.clear();
                    self.stalls = None;
                }
            }
            self.runs.clear();
            (self.tally, self.changed) = (Default::default(), None);
            if !is_stored {
                self.has_lost = true;
                return self.look_again();
            }
            // Without others, lines are not held until something is stored.
            self.hand_out();
        }
        Ok(())
    }
}
