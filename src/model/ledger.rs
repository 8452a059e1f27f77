//! What a consumer has done with the events past its cursor, where events finish singly.
//!
//! The cursor is the last finished event before which nothing is unfinished. Past it, a ledger keeps what is finished,
//! as ranges of ids, the events that wait before they are tried again, and those that are claimed by a run. All of it
//! ends once the cursor has passed it.

use std::collections::BTreeMap;

use chrono::TimeDelta;
use serde::{Deserialize, Serialize};

use super::time::{Moment, Time};

/// An event that is tried again later.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct EventWait {
    /// Failed attempts at it so far.
    pub attempts: u32,
    /// How often in a row it was deferred, which is not an attempt.
    pub deferred: u32,
    /// From when to when it waits.
    pub since: Time,
    pub until: Time,
    pub asleep: Asleep,
}

impl EventWait {
    /// Until when it waits, unless that is without a limit.
    pub fn shown_until(&self, now: Time) -> Option<Time> {
        let sleep = Sleep { until: self.until, awaits: self.asleep == Asleep::Awaits };
        Some(self.until).filter(|_| !sleep.is_endless(now))
    }

    /// Whether it sleeps, instead of waiting for its next attempt.
    pub fn is_asleep(&self) -> bool {
        self.asleep != Asleep::No
    }

    /// Whether the wait is over. Setting the clock back must not prolong it.
    pub fn is_over(&self, now: Time) -> bool {
        self.left(now).is_zero()
    }

    /// How long it still waits.
    pub fn left(&self, now: Time) -> std::time::Duration {
        let longest = self.until - self.since;
        self.until.min(now + longest).signed_duration_since(now).to_std().unwrap_or_default()
    }
}

/// Until when an event sleeps that is at a handler now, and goes to sleep when its run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sleep {
    pub until: Time,
    /// It wakes up earlier if an event comes that it waits for.
    #[serde(default)]
    pub awaits: bool,
}

/// What waits for an event without a limit looks again after so long.
const FOREVER: TimeDelta = TimeDelta::days(3650);

impl Sleep {
    /// Without a limit, or until then.
    pub fn new(until: Option<Time>, now: Time, awaits: bool) -> Sleep {
        Sleep { until: until.unwrap_or(now + FOREVER), awaits }
    }

    /// Whether it was made without a limit, as far as that matters to people.
    pub fn is_endless(&self, now: Time) -> bool {
        self.awaits && self.until - now > FOREVER / 2
    }

    pub fn asleep(&self) -> Asleep {
        if self.awaits { Asleep::Awaits } else { Asleep::Sleeps }
    }
}

/// Whether an event that waits does so because its handler said so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Asleep {
    /// It waits for its next attempt.
    #[default]
    No,
    Sleeps,
    /// It wakes up earlier if an event comes that it waits for.
    Awaits,
}

impl Asleep {
    /// As it is stored.
    pub fn number(self) -> i64 {
        match self {
            Asleep::No => 0,
            Asleep::Sleeps => 1,
            Asleep::Awaits => 2,
        }
    }

    pub fn of_number(number: i64) -> Asleep {
        match number {
            1 => Asleep::Sleeps,
            2 => Asleep::Awaits,
            _ => Asleep::No,
        }
    }
}

/// That an event is a run's, or that of a program which has taken it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The place in the pool, counted from 1. Its lock is held as long as any process of the run is there. 0 if a program
    /// has taken the event.
    pub place: u32,
    /// Since when.
    pub since: Time,
    /// If a program has taken the event.
    pub taken: Option<Taken>,
    /// Where several machines share the places of a pool: the one whose place it is.
    pub machine: Option<String>,
    /// The event is a dead letter that is tried once more. It is finished, whatever becomes of it.
    pub is_dead_letter: bool,
}

impl Claim {
    /// Whether a stored claim is this one: the times that are stored are whole milliseconds.
    pub fn is_stored_as(&self, stored: &Claim) -> bool {
        let of = |claim: &Claim| (claim.place, claim.since.timestamp_millis());
        self.machine == stored.machine && of(self) == of(stored)
    }
}

/// The claim of a program that takes events by itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Taken {
    /// What its holder shows to prolong or end it.
    pub token: String,
    /// When it ends by itself.
    pub until: Moment,
}

impl Claim {
    /// The claim of a program that shows this token, or any if it shows none, unless its time is over.
    pub fn taken_by(&self, token: Option<&str>, now: &Moment) -> Option<&Taken> {
        let is_meant = |taken: &&Taken| token.is_none_or(|token| token == taken.token);
        self.taken.as_ref().filter(is_meant).filter(|taken| !taken.until.left(now).is_zero())
    }
}

/// A change of a ledger. Changes may be applied twice, and all of finished events in any order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LedgerChange {
    /// Nothing from `first` to `last`, both included, is unfinished.
    Finish { first: i64, last: i64 },
    /// The event waits, unless it is finished.
    Wait { id: i64, wait: EventWait },
    /// The event is claimed, unless it is finished and no dead letter, or is claimed no more.
    Claim { id: i64, claim: Option<Claim> },
}

/// The finished, waiting and claimed events past a cursor.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Ledger {
    cursor: i64,
    /// Last ids by first ids. Ranges neither overlap nor touch each other, nor the cursor.
    finished: BTreeMap<i64, i64>,
    waits: BTreeMap<i64, EventWait>,
    claims: BTreeMap<i64, Claim>,
}

impl Ledger {
    /// A ledger from what a store has. What is no longer past the cursor is dropped.
    pub fn new(
        cursor: i64,
        finished: impl IntoIterator<Item = (i64, i64)>,
        waits: impl IntoIterator<Item = (i64, EventWait)>,
        claims: impl IntoIterator<Item = (i64, Claim)>,
    ) -> Ledger {
        let mut ledger = Ledger { cursor, ..Ledger::default() };
        for (first, last) in finished {
            ledger.finish(first, last);
        }
        for (id, wait) in waits {
            ledger.apply(&LedgerChange::Wait { id, wait });
        }
        for (id, claim) in claims {
            ledger.apply(&LedgerChange::Claim { id, claim: Some(claim) });
        }
        ledger
    }

    /// The cursor: nothing up to it is unfinished.
    pub fn cursor(&self) -> i64 {
        self.cursor
    }

    /// The ranges of finished ids past the cursor, first and last, ascending.
    pub fn finished(&self) -> impl Iterator<Item = (i64, i64)> + '_ {
        self.finished.iter().map(|(first, last)| (*first, *last))
    }

    /// The events that wait, ascending.
    pub fn waits(&self) -> &BTreeMap<i64, EventWait> {
        &self.waits
    }

    /// The events that are claimed, ascending. They may have waits, which say how often they were tried before.
    pub fn claims(&self) -> &BTreeMap<i64, Claim> {
        &self.claims
    }

    /// Whether the cursor alone says what is finished, and nothing past it waits or is claimed.
    pub fn is_plain(&self) -> bool {
        self.finished.is_empty() && self.waits.is_empty() && self.claims.is_empty()
    }

    pub fn apply(&mut self, change: &LedgerChange) {
        match change {
            LedgerChange::Finish { first, last } => self.finish(*first, *last),
            LedgerChange::Claim { id, claim: Some(claim) } if claim.is_dead_letter => {
                self.claims.insert(*id, claim.clone());
            }
            LedgerChange::Wait { id, .. } | LedgerChange::Claim { id, claim: Some(_) }
                if self.finished_upto(*id).is_some() => {}
            LedgerChange::Wait { id, wait } => drop(self.waits.insert(*id, wait.clone())),
            LedgerChange::Claim { id, claim: Some(claim) } => drop(self.claims.insert(*id, claim.clone())),
            LedgerChange::Claim { id, claim: None } => drop(self.claims.remove(id)),
        }
    }

    fn finish(&mut self, first: i64, last: i64) {
        if last < first || last <= self.cursor {
            return;
        }
        let (mut first, mut last) = (first, last);
        // Those that overlap it or touch it become one with it.
        while let Some((&other, &end)) = self.finished.range(..=last.saturating_add(1)).next_back()
            && end >= first.saturating_sub(1)
        {
            (first, last) = (first.min(other), last.max(end));
            self.finished.remove(&other);
        }
        if first <= self.cursor.saturating_add(1) {
            self.cursor = last;
        } else {
            self.finished.insert(first, last);
        }
        self.waits.extract_if(first..=last, |_, _| true).for_each(drop);
        self.claims.extract_if(first..=last, |_, claim| !claim.is_dead_letter).for_each(drop);
    }

    /// If this id is finished: the last one of the finished ids that follow it without a gap.
    pub fn finished_upto(&self, id: i64) -> Option<i64> {
        if id <= self.cursor {
            return Some(self.cursor);
        }
        self.finished.range(..=id).next_back().map(|(_, last)| *last).filter(|last| *last >= id)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_stored_claim_has_lost_its_microseconds() {
        let since = "2026-11-28T02:00:00.123456Z".parse().unwrap();
        let claim = Claim { place: 2, since, machine: Some("one".into()), ..Claim::default() };
        let stored = Claim { since: "2026-11-28T02:00:00.123Z".parse().unwrap(), ..claim.clone() };
        assert!(claim.is_stored_as(&stored));
        assert!(!claim.is_stored_as(&Claim { place: 3, ..stored.clone() }));
        assert!(!claim.is_stored_as(&Claim { machine: Some("two".into()), ..stored.clone() }));
        let later = "2026-11-28T02:00:00.124Z".parse().unwrap();
        assert!(!claim.is_stored_as(&Claim { since: later, ..stored }));
    }

    fn at(second: i64) -> Time {
        Time::from_timestamp(second, 0).unwrap()
    }

    #[test]
    fn a_sleep_without_a_limit_has_no_end_to_show() {
        let now = at(1_000_000);
        let shown = |sleep: Sleep| {
            let wait = EventWait { until: sleep.until, asleep: sleep.asleep(), ..EventWait::default() };
            assert_eq!(sleep.is_endless(now), wait.shown_until(now).is_none());
            wait.shown_until(now)
        };
        let soon = now + TimeDelta::days(1);
        let far = now + FOREVER / 2;
        assert_eq!(shown(Sleep::new(None, now, true)), None);
        assert_eq!(shown(Sleep::new(Some(soon), now, true)), Some(soon));
        assert_eq!(shown(Sleep::new(Some(far), now, true)), Some(far));
        assert_eq!(shown(Sleep::new(Some(far + TimeDelta::days(1)), now, true)), None);
        // What only sleeps always has an end.
        assert_eq!(shown(Sleep::new(None, now, false)), Some(now + FOREVER));
    }

    #[test]
    fn whether_an_event_sleeps_is_stored_as_a_number() {
        for (asleep, number, is_asleep) in
            [(Asleep::No, 0, false), (Asleep::Sleeps, 1, true), (Asleep::Awaits, 2, true)]
        {
            assert_eq!((asleep.number(), Asleep::of_number(number)), (number, asleep));
            assert_eq!(EventWait { asleep, ..EventWait::default() }.is_asleep(), is_asleep);
        }
        assert_eq!(Asleep::of_number(3), Asleep::No);
    }

    #[test]
    fn who_has_taken_an_event_shows_its_token_until_its_time_is_over() {
        let moment = |at| Moment { clock: "c".into(), at };
        let taken = Taken { token: "t".into(), until: moment(5) };
        let claim = Claim { taken: Some(taken.clone()), ..Claim::default() };
        for token in [Some("t"), None] {
            assert_eq!(claim.taken_by(token, &moment(4)), Some(&taken));
            assert_eq!(claim.taken_by(token, &moment(5)), None);
        }
        assert_eq!(claim.taken_by(Some("u"), &moment(4)), None);
        assert_eq!(Claim::default().taken_by(None, &moment(4)), None);
    }

    #[test]
    fn a_dead_letter_that_is_tried_once_more_is_claimed_though_it_is_finished() {
        let mut ledger = Ledger::new(5, [], [], []);
        assert!(ledger.is_plain());
        let claim = Claim { place: 1, is_dead_letter: true, ..Claim::default() };
        for id in [3, 8] {
            ledger.apply(&LedgerChange::Claim { id, claim: Some(claim.clone()) });
        }
        ledger.apply(&LedgerChange::Finish { first: 6, last: 8 });
        assert_eq!((ledger.cursor(), ledger.claims().keys().collect::<Vec<_>>()), (8, vec![&3, &8]));
        assert!(!ledger.is_plain());
    }

    #[test]
    fn a_ledger_is_plain_if_it_has_a_cursor_only() {
        let (wait, claim) = (EventWait::default(), Claim::default());
        assert!(!Ledger::new(5, [(8, 9)], [], []).is_plain());
        assert!(!Ledger::new(5, [], [(8, wait)], []).is_plain());
        assert!(!Ledger::new(5, [], [], [(8, claim)]).is_plain());
    }

    proptest! {
        /// Against a set of ids.
        #[test]
        fn ranges_are_the_finished_ids(
            cursor in 0..5_i64,
            changes in prop::collection::vec((1..30_i64, 0..6_i64, 0..4), 0..30),
        ) {
            let now = chrono::Utc::now();
            let mut ledger = Ledger { cursor, ..Ledger::default() };
            let mut model: BTreeSet<i64> = (1..=cursor).collect();
            let (mut waiting, mut claimed) = (BTreeSet::new(), BTreeSet::new());
            for (first, length, what) in changes {
                match what {
                    0 => {
                        ledger.apply(&LedgerChange::Finish { first, last: first + length });
                        model.extend(first..=first + length);
                    }
                    1 => {
                        let wait = EventWait { attempts: 1, since: now, until: now, ..EventWait::default() };
                        ledger.apply(&LedgerChange::Wait { id: first, wait });
                        waiting.insert(first);
                    }
                    2 => {
                        let claim = Some(Claim { place: 1, since: now, ..Claim::default() });
                        ledger.apply(&LedgerChange::Claim { id: first, claim });
                        claimed.insert(first);
                    }
                    _ => {
                        ledger.apply(&LedgerChange::Claim { id: first, claim: None });
                        claimed.remove(&first);
                    }
                }
                waiting.retain(|id| !model.contains(id));
                claimed.retain(|id| !model.contains(id));
                for id in 1..40 {
                    prop_assert_eq!(ledger.finished_upto(id).is_some(), model.contains(&id), "{}", id);
                }
                let first_gap = (1..).find(|id| !model.contains(id)).unwrap_or(0);
                prop_assert_eq!(ledger.cursor(), first_gap - 1);
                prop_assert_eq!(ledger.waits().keys().copied().collect::<BTreeSet<_>>(), waiting.clone());
                prop_assert_eq!(ledger.claims().keys().copied().collect::<BTreeSet<_>>(), claimed.clone());
                let mut before = ledger.cursor();
                for (first, last) in ledger.finished() {
                    prop_assert!(before + 1 < first && first <= last);
                    before = last;
                }
                let (waits, claims) = (ledger.waits().clone(), ledger.claims().clone());
                prop_assert_eq!(Ledger::new(ledger.cursor(), ledger.finished(), waits, claims), ledger.clone());
            }
        }
    }
}
