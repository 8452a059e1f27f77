//! Two machines that share a pool, as a state machine of which every reachable state is checked. Deliberate errors in it
//! must be found.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::model::ledger::{Asleep, Claim, EventWait, Ledger, LedgerChange};
use crate::model::run::{Crew, Crews, Deliver, Options, allotment};
use crate::model::time::Time;
use crate::model::window::{Key, Turn, Window};

const MACHINES: [&str; 2] = ["a", "b"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// What another machine has stored since is taken over, but what was to be given is given all the same.
    KeepsWhatWasRefused,
    /// An event is given before it is stored that it is claimed.
    GivesFirst,
    /// Each machine counts only its own runs.
    CountsOwn,
    /// A lease is over while handlers are still at work.
    OverTooEarly,
    /// The next supervisor of a machine does not wait for the handlers of one that was killed.
    ForgetsOrphans,
    /// Nobody takes over what a machine had that is gone.
    NeverTakesOver,
}

/// What is explored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Given {
    /// How many runs there may be.
    places: u32,
    /// How many events there are, and keys.
    events: i64,
    keys: i64,
    /// What may happen so often.
    kills: u8,
    cuts: u8,
    failures: u8,
}

/// How many places a machine has, and whether it wants more.
type Part = Option<(u32, bool)>;

/// What a supervisor knows and has.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Local {
    window: Window,
    crews: [Part; 2],
    /// Somebody else has stored something since it looked.
    is_stale: bool,
    is_cut: bool,
    unstored: BTreeSet<i64>,
    /// The events at its handlers.
    at_work: BTreeSet<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    left: Given,
    ledger: Ledger,
    crews: [Part; 2],
    locals: [Option<Local>; 2],
    /// The events at handlers whose supervisor was killed.
    orphans: [BTreeSet<i64>; 2],
    is_over: [bool; 2],
    /// What handlers have succeeded with.
    done: BTreeSet<i64>,
    /// How often a supervisor may begin.
    begins: u8,
    is_broken: bool,
}

fn options(places: u32) -> Options {
    Options {
        deliver: Deliver::Stdin,
        batch_size: 1,
        concurrency: Some(places),
        key: Some(String::new()),
        ..Options::default()
    }
}

fn crews(parts: &[Part; 2]) -> Crews {
    let crew = |(places, wants)| Crew { places, wants, ..Crew::default() };
    MACHINES.iter().zip(parts).filter_map(|(name, part)| Some((name.to_string(), crew((*part)?)))).collect()
}

fn fail(window: &mut Window, id: i64) {
    let (attempts, deferred) = window.tried(id);
    // The wait is over at once, so that time does not matter.
    window.wait(id, EventWait { attempts: (attempts + 1).min(2), deferred, ..EventWait::default() });
}

impl World {
    fn first(left: Given) -> World {
        World {
            left,
            ledger: Ledger::default(),
            crews: [None; 2],
            locals: [None, None],
            orphans: Default::default(),
            is_over: [false; 2],
            done: BTreeSet::new(),
            begins: 2 + left.kills + left.cuts,
            is_broken: false,
        }
    }

    fn key(&self, id: i64) -> Option<Key> {
        Some((id % self.left.keys).to_string().into())
    }

    fn find_keys(&self, window: &mut Window) {
        for id in window.ledger().claims().keys().copied().collect::<Vec<_>>() {
            window.set_key(id, self.key(id));
        }
        window.arrange();
    }

    fn busy(&self) -> Vec<i64> {
        let locals = self.locals.iter().flatten().flat_map(|local| &local.at_work);
        locals.chain(self.orphans.iter().flatten()).copied().collect()
    }

    fn is_sound(&self) -> bool {
        let busy = self.busy();
        let keys: BTreeSet<_> = busy.iter().map(|id| self.key(*id)).collect();
        let is_done = |id: i64| self.done.contains(&id);
        // Neither two of one event or key at once, nor more than there may be, nor anything finished that is not.
        keys.len() == busy.len()
            && busy.len() <= self.left.places as usize
            && (1..=self.left.events).all(|id| self.ledger.finished_upto(id).is_none() || is_done(id))
            && !self.is_broken
    }

    /// Handlers of a machine begin with these.
    fn begin(&mut self, events: &BTreeSet<i64>) {
        let is_early =
            |id: i64| (1..id).any(|before| self.key(before) == self.key(id) && !self.done.contains(&before));
        self.is_broken |= events.iter().any(|id| is_early(*id));
    }

    /// All that was stored by one machine is news to the others.
    fn stored(&mut self, by: usize) {
        for (at, local) in self.locals.iter_mut().enumerate() {
            if let Some(local) = local.as_mut().filter(|_| at != by) {
                local.is_stale = true;
            }
        }
    }

    fn with(&self, at: usize, local: Local) -> World {
        let mut after = self.clone();
        after.locals[at] = Some(local);
        after
    }

    fn steps(&self, wrong: Wrong) -> Vec<World> {
        let mut next = Vec::new();
        for at in 0..2 {
            match &self.locals[at] {
                None => self.without_supervisor(at, wrong, &mut next),
                Some(local) => self.with_supervisor(at, local, wrong, &mut next),
            }
        }
        next
    }

    fn without_supervisor(&self, at: usize, wrong: Wrong, next: &mut Vec<World>) {
        for id in &self.orphans[at] {
            let mut after = self.clone();
            after.orphans[at].remove(id);
            next.push(after);
        }
        let is_free = self.orphans[at].is_empty() || wrong == Wrong::ForgetsOrphans;
        if self.crews[at].is_some() && self.is_over[at] != is_free || wrong == Wrong::OverTooEarly {
            let mut after = self.clone();
            after.is_over[at] = true;
            next.push(after);
        }
        // Without any, another one begins some time.
        if is_free && (self.begins > 0 || self.locals.iter().all(Option::is_none)) {
            let mut after = self.clone();
            after.begins = self.begins.saturating_sub(1);
            (after.crews[at], after.is_over[at]) = (Some((0, false)), false);
            let mut window = Window::new(self.ledger.clone(), &options(self.left.places), 0);
            self.find_keys(&mut window);
            // Those of the supervisor before it.
            let own = |claim: &Claim| claim.machine.as_deref() == Some(MACHINES[at]);
            let lost = self.ledger.claims().iter().filter(|(_, claim)| own(claim));
            lost.for_each(|(id, _)| fail(&mut window, *id));
            let crews = after.crews;
            let (unstored, at_work) = Default::default();
            after.locals[at] =
                Some(Local { window, crews, is_stale: false, is_cut: false, unstored, at_work });
            after.stored(at);
            next.push(after);
        }
    }

    fn with_supervisor(&self, at: usize, local: &Local, wrong: Wrong, next: &mut Vec<World>) {
        for &id in &local.at_work {
            for succeeds in [true, false] {
                if !succeeds && self.left.failures == 0 {
                    continue;
                }
                let mut after = self.clone();
                let Some(local) = &mut after.locals[at] else { continue };
                local.at_work.remove(&id);
                if succeeds {
                    local.window.finish(id);
                    after.done.insert(id);
                } else {
                    fail(&mut local.window, id);
                    after.left.failures -= 1;
                }
                next.push(after);
            }
        }
        if self.left.kills > 0 {
            let mut after = self.clone();
            after.left.kills -= 1;
            after.orphans[at] = local.at_work.clone();
            after.locals[at] = None;
            next.push(after);
        }
        if local.is_cut {
            next.push(self.with(at, Local { is_cut: false, ..local.clone() }));
            // Its handlers are killed before its lease is over.
            let mut after = self.clone();
            after.is_over[at] = true;
            if wrong == Wrong::OverTooEarly {
                next.push(after.clone());
            }
            after.locals[at] = None;
            next.push(after);
            return;
        }
        if self.left.cuts > 0 {
            let mut after = self.with(at, Local { is_cut: true, ..local.clone() });
            after.left.cuts -= 1;
            next.push(after);
        }
        // Another machine has ended its part.
        if self.crews[at].is_none() {
            let mut after = self.clone();
            after.locals[at] = None;
            after.orphans[at] = local.at_work.clone();
            next.push(after);
            return;
        }
        let other = 1 - at;
        if self.is_over[other] && self.crews[other].is_some() {
            let mut after = self.clone();
            (after.crews[other], after.is_over[other]) = (None, false);
            after.stored(2);
            next.push(after);
        }
        if local.is_stale {
            next.push(self.refresh(at, local, wrong));
            return;
        }
        self.give(at, local, wrong, next);
        self.store(at, local, next);
        let of_lost =
            |claim: &Claim| local.crews[other].is_none() && claim.machine.as_deref() == Some(MACHINES[other]);
        let lost = local.window.ledger().claims().iter().filter(|(_, claim)| of_lost(claim));
        let lost: Vec<i64> = lost.map(|(id, _)| *id).collect();
        if !lost.is_empty() && local.window.changes().is_empty() && wrong != Wrong::NeverTakesOver {
            let mut local = local.clone();
            lost.iter().for_each(|id| fail(&mut local.window, *id));
            self.store(at, &local, next);
        }
        // It has nothing to do; others may have.
        if self.crews[other].is_some()
            && local.at_work.is_empty()
            && local.unstored.is_empty()
            && local.window.changes().is_empty()
        {
            let mut after = self.clone();
            (after.crews[at], after.locals[at]) = (None, None);
            after.stored(at);
            next.push(after);
        }
    }

    fn refresh(&self, at: usize, local: &Local, wrong: Wrong) -> World {
        let mut local = Local { is_stale: false, crews: self.crews, ..local.clone() };
        if wrong == Wrong::KeepsWhatWasRefused {
            local.window.reload(self.ledger.clone());
        } else {
            local.unstored.clear();
            local.window.share(self.ledger.clone(), &local.at_work, MACHINES[at]);
        }
        self.find_keys(&mut local.window);
        self.with(at, local)
    }

    fn give(&self, at: usize, local: &Local, wrong: Wrong, next: &mut Vec<World>) {
        let known = crews(&local.crews);
        let all = if wrong == Wrong::CountsOwn {
            self.left.places
        } else {
            allotment(&known, MACHINES[at], self.left.places)
        };
        if local.at_work.len() + local.unstored.len() >= all as usize {
            return;
        }
        let mut local = local.clone();
        let id = match local.window.turn(Time::UNIX_EPOCH) {
            Turn::Full | Turn::Wait(_) => return,
            Turn::Again(id) => {
                local.window.give_again(id);
                id
            }
            Turn::Next => {
                let id = local.window.reached() + 1;
                if id > self.left.events {
                    return;
                }
                if !local.window.found(id, self.key(id)) {
                    next.push(self.with(at, local));
                    return;
                }
                id
            }
        };
        let machine = Some(MACHINES[at].to_owned());
        local.window.claim(id, Claim { place: 1, machine, ..Claim::default() });
        let mut after = self.clone();
        if wrong == Wrong::GivesFirst {
            after.begin(&BTreeSet::from([id]));
            local.at_work.insert(id);
        } else {
            local.unstored.insert(id);
        }
        after.locals[at] = Some(local);
        next.push(after);
    }

    /// Stores what has changed, and gives handlers what they are to have.
    fn store(&self, at: usize, local: &Local, next: &mut Vec<World>) {
        let mut local = local.clone();
        let mut after = self.clone();
        local.window.changes().iter().for_each(|change| after.ledger.apply(change));
        local.window.stored();
        let begun = std::mem::take(&mut local.unstored);
        after.begin(&begun);
        local.at_work.extend(begun);
        let places = local.at_work.len() as u32;
        let could_use_more = matches!(local.window.turn(Time::UNIX_EPOCH), Turn::Again(_));
        let is_full = places >= allotment(&crews(&local.crews), MACHINES[at], self.left.places);
        after.crews[at] = Some((places, could_use_more && is_full));
        local.crews = after.crews;
        after.locals[at] = Some(local);
        if (&after.ledger, &after.crews) != (&self.ledger, &self.crews) {
            after.stored(at);
        }
        if after != *self {
            next.push(after);
        }
    }
}

/// Explores all that can happen. Fails with a state that is not sound, or from which not everything can be handled.
fn explore(first: World, wrong: Wrong) -> Result<usize, Box<World>> {
    let mut numbers = HashMap::from([(first.clone(), 0)]);
    let (mut before, mut good): (Vec<Vec<usize>>, Vec<usize>) = (vec![Vec::new()], Vec::new());
    let mut left = vec![(0, first)];
    while let Some((number, world)) = left.pop() {
        if !world.is_sound() {
            return Err(Box::new(world));
        }
        if world.ledger.cursor() == world.left.events {
            good.push(number);
            continue;
        }
        for after in world.steps(wrong) {
            let new = numbers.len();
            let found = *numbers.entry(after.clone()).or_insert(new);
            if found == new {
                before.push(Vec::new());
                left.push((new, after));
            }
            before[found].push(number);
        }
    }
    let mut is_good = vec![false; before.len()];
    good.iter().for_each(|at| is_good[*at] = true);
    while let Some(at) = good.pop() {
        for &earlier in &before[at] {
            if !std::mem::replace(&mut is_good[earlier], true) {
                good.push(earlier);
            }
        }
    }
    match numbers.into_iter().find(|(_, number)| !is_good[*number]) {
        Some((stuck, _)) => Err(Box::new(stuck)),
        None => Ok(before.len()),
    }
}

fn given(places: u32, (events, keys): (i64, i64), (kills, cuts, failures): (u8, u8, u8)) -> Given {
    Given { places, events, keys, kills, cuts, failures }
}

#[test]
fn two_machines_share_a_pool() {
    for given in [
        given(2, (3, 2), (0, 0, 0)),
        given(1, (2, 2), (1, 0, 0)),
        given(2, (2, 1), (1, 0, 0)),
        given(1, (2, 2), (0, 1, 0)),
    ] {
        let states = explore(World::first(given), Wrong::Nothing).unwrap();
        assert!(states > 1000, "{given:?}: {states}");
    }
}

#[test]
fn errors_in_sharing_are_found() {
    for (wrong, given) in [
        (Wrong::KeepsWhatWasRefused, given(2, (2, 2), (0, 0, 0))),
        (Wrong::GivesFirst, given(2, (2, 2), (0, 0, 0))),
        (Wrong::CountsOwn, given(1, (2, 2), (0, 0, 0))),
        (Wrong::OverTooEarly, given(2, (2, 2), (0, 1, 0))),
        (Wrong::ForgetsOrphans, given(2, (2, 2), (1, 0, 0))),
        (Wrong::NeverTakesOver, given(2, (2, 2), (0, 1, 0))),
    ] {
        assert!(explore(World::first(given), wrong).is_err(), "{wrong:?}");
    }
}

/// What is shared out is no more than there is, and somebody who wants more gets a share.
#[test]
fn places_are_shared_out() {
    for all in 0..8_u32 {
        for places in 0..=all {
            for wants in [false, true] {
                let crew = |places, wants| Crew { places, wants, ..Crew::default() };
                let all_crews: BTreeMap<String, Crew> =
                    [("a".to_owned(), crew(places, false)), ("b".to_owned(), crew(0, wants))].into();
                let (of_a, of_b) = (allotment(&all_crews, "a", all), allotment(&all_crews, "b", all));
                assert_eq!(of_b, all - places);
                assert_eq!(of_a, if wants { all.div_ceil(2) } else { all });
            }
        }
    }
    let three: Crews =
        ["a", "b", "c"].map(|name| (name.to_owned(), Crew { wants: true, ..Crew::default() })).into();
    assert_eq!(["a", "b", "c"].map(|name| allotment(&three, name, 8)), [3, 3, 2]);
    // One that has enough leaves the others the rest.
    let settled = Crew { places: 1, wants: false, ..Crew::default() };
    let idle = Crew { places: 0, ..settled.clone() };
    let with = |b: Crew| {
        Crews::from_iter(
            [("b".to_owned(), b)]
                .into_iter()
                .chain(three.clone().into_iter().filter(|(name, _)| name != "b")),
        )
    };
    let shares = |crews: &Crews| ["a", "c"].map(|name| allotment(crews, name, 8));
    assert_eq!((shares(&with(settled)), shares(&with(idle))), ([4, 3], [4, 4]));
}

/// What is finished in one range is passed at once.
#[test]
fn a_finished_range_is_passed_at_once() {
    let mut ledger = Ledger::default();
    ledger.apply(&LedgerChange::Finish { first: 2, last: 4 });
    let mut window = Window::new(ledger, &options(2), 0);
    let found: Vec<bool> = (1..=5).map(|id| window.found(id, None)).collect();
    assert_eq!(found, [true, false, false, false, true]);
    assert_eq!(window.changes(), [LedgerChange::Finish { first: 2, last: 2 }]);
}

/// A change is not applied to what another machine has claimed since.
#[test]
fn what_another_machine_has_claimed_is_not_finished() {
    let mut window = Window::new(Ledger::default(), &options(2), 0);
    for id in 1..=3 {
        window.found(id, None);
        window.finish(id);
    }
    let mut ledger = Ledger::default();
    let claim = Some(Claim { place: 1, machine: Some("b".to_owned()), ..Claim::default() });
    ledger.apply(&LedgerChange::Claim { id: 2, claim });
    window.share(ledger, &BTreeSet::new(), "a");
    assert_eq!((window.ledger().cursor(), window.ledger().finished().collect::<Vec<_>>()), (1, vec![(3, 3)]));
    assert!(window.has_given(2));
}

fn claim(machine: &str) -> Claim {
    Claim { place: 1, machine: Some(machine.to_owned()), ..Claim::default() }
}

fn finished(window: &Window) -> Vec<(i64, i64)> {
    window.ledger().finished().collect()
}

fn unanswered(window: &Window) -> Vec<i64> {
    window.unanswered().collect()
}

#[test]
fn what_was_decided_counts_but_for_events_that_another_machine_has_claimed_since() {
    // One was at a handler of this machine whose supervisor was killed.
    let orphan = (9, claim("a"));
    let mut window = Window::new(Ledger::new(0, [], [], [orphan.clone()]), &options(9), 0);
    for id in [2, 4, 6, 8] {
        assert!(window.found(id, None));
    }
    assert!(!window.found(9, None) && window.found(10, None));
    window.finish(4);
    window.finish(8);
    fail(&mut window, 6);
    fail(&mut window, 9);
    window.claim(10, claim("a"));
    let theirs = [6, 8, 11].map(|id| (id, claim("b")));
    window.share(Ledger::new(0, [], [], theirs.into_iter().chain([orphan])), &[2].into(), "a");
    assert_eq!(finished(&window), [(3, 4), (7, 7)]);
    assert_eq!(window.ledger().waits().keys().collect::<Vec<_>>(), [&9]);
    assert_eq!(window.ledger().claims().keys().collect::<Vec<_>>(), [&6, &8, &11]);
    assert_eq!((unanswered(&window), window.given()), (vec![2, 6, 8, 11], 4));
    assert_eq!((window.turn(Time::UNIX_EPOCH), window.waiting()), (Turn::Again(10), 2));
    // It was looked at up to here only.
    assert_eq!((window.reached(), window.without_known_key()), (10, vec![6, 8]));
    // What another machine has finished by then is finished with the gap before it, if that is known.
    window.share(Ledger::new(0, [(2, 2), (11, 11)], [], []), &[].into(), "a");
    assert_eq!((window.ledger().cursor(), finished(&window)), (4, vec![(7, 7), (11, 11)]));
    assert_eq!((unanswered(&window), window.waiting()), (vec![], 4));
}

#[test]
fn what_a_server_has_lost_is_finished_all_the_same_but_for_what_others_have() {
    for (theirs, left) in [
        (vec![], vec![]),
        (vec![1, 4, 9], vec![(2, 3), (5, 5), (8, 8), (11, 12), (14, 14)]),
        (vec![2, 8], vec![(3, 5), (9, 9), (11, 12), (14, 14)]),
        (vec![6], vec![(8, 9), (11, 12), (14, 14)]),
    ] {
        let mut window = Window::new(Ledger::new(5, [(8, 9), (11, 12), (14, 14)], [], []), &options(9), 0);
        let claims: Vec<_> = theirs.iter().map(|id| (*id, claim("b"))).collect();
        window.share(Ledger::new(0, [(11, 11)], [], claims), &[].into(), "a");
        let all: Vec<i64> = (1..17).filter(|id| window.ledger().finished_upto(*id).is_some()).collect();
        let is_left = |id: &i64| ![6, 7, 10, 13, 15, 16].contains(id) && !theirs.contains(id);
        assert_eq!(all, (1..17).filter(is_left).collect::<Vec<_>>(), "{theirs:?}");
        let is_empty =
            |change: &LedgerChange| matches!(change, LedgerChange::Finish { first, last } if last < first);
        assert!(!window.changes().iter().any(is_empty));
        // What is stored by then is no change.
        let stored = window.ledger().clone();
        window.stored();
        window.share(stored, &[].into(), "a");
        assert_eq!(window.changes(), []);
        if !theirs.is_empty() {
            assert_eq!(finished(&window), left, "{theirs:?}");
        }
    }
}

#[test]
fn claims_of_this_machines_handlers_that_a_server_has_lost_are_made_once_more() {
    let wait = |attempts| EventWait { attempts, ..EventWait::default() };
    let claims = [1, 2, 3, 4].map(|id| (id, claim("a")));
    let mut window = Window::new(Ledger::new(0, [], [(2, wait(1))], claims), &options(9), 0);
    // Of two of them somebody has said by hand that they wait.
    let stored = Ledger::new(0, [], [(2, wait(1)), (3, wait(1))], []);
    window.share(stored, &[1, 2, 3].into(), "a");
    assert_eq!(window.ledger().claims().keys().collect::<Vec<_>>(), [&1, &2]);
    assert_eq!(window.changes().len(), 2);
    // The last one is not at a handler, and nobody has it.
    assert_eq!((unanswered(&window), window.turn(Time::UNIX_EPOCH)), (vec![1, 2, 3], Turn::Again(4)));
    // Those that are stored are not changed.
    let mut window = Window::new(window.ledger().clone(), &options(9), 0);
    window.share(window.ledger().clone(), &[1, 2].into(), "a");
    assert_eq!(window.changes(), []);
}

#[test]
fn dead_letters_that_are_tried_once_more_are_those_at_handlers() {
    let mut window = Window::new(Ledger::new(5, [(7, 9)], [], []), &options(9), 0);
    assert!(window.found(6, Some("k".into())));
    assert!(window.take(1, None) && window.take(2, None));
    let dead = |id| (id, Claim { is_dead_letter: true, ..claim("b") });
    window.share(Ledger::new(5, [(7, 9)], [], [dead(3), dead(8)]), &[1].into(), "a");
    assert_eq!((unanswered(&window), window.turn(Time::UNIX_EPOCH)), (vec![1, 3, 8], Turn::Again(6)));
    assert_eq!(window.without_known_key(), [3, 8]);
    // One with the key of an event that is free holds that back, whichever is older.
    for id in [3, 8] {
        window.set_key(id, Some("k".into()));
        window.arrange();
        assert_eq!((window.turn(Time::UNIX_EPOCH), window.given()), (Turn::Next, 3));
        window.share(Ledger::new(5, [(7, 9)], [], [dead(3), dead(8)]), &[1].into(), "a");
        assert!(!window.without_known_key().contains(&id), "it is known further on");
        window.share(Ledger::new(5, [(7, 9)], [], []), &[1].into(), "a");
        assert_eq!((unanswered(&window), window.turn(Time::UNIX_EPOCH)), (vec![1], Turn::Again(6)));
        window.share(Ledger::new(5, [(7, 9)], [], [dead(3), dead(8)]), &[1].into(), "a");
    }
}

#[test]
fn what_is_free_after_others_have_stored_something_is_what_it_is_without_them() {
    let sleeps = EventWait { asleep: Asleep::Sleeps, until: Time::MAX_UTC, ..EventWait::default() };
    let kept = Options { deliver: Deliver::Ndjson, ahead: 1, ..options(9) };
    let found = || {
        let mut window = Window::new(Ledger::default(), &kept, 0);
        assert!(window.found(1, Some("k".into())) && !window.found(2, Some("k".into())));
        window
    };
    let now = Time::UNIX_EPOCH;
    let waits = || [(2, sleeps.clone())];
    let mut window = found();
    window.finish(1);
    window.share(Ledger::new(0, [], waits(), []), &[].into(), "a");
    assert!(!window.is_far_ahead(), "it sleeps");
    window.share(Ledger::new(0, [], waits(), [(2, claim("b"))]), &[].into(), "a");
    assert!(window.is_far_ahead(), "it is at a handler");
    window.share(Ledger::new(0, [], waits(), []), &[].into(), "a");
    window.share(Ledger::new(0, [(2, 2)], [], []), &[].into(), "a");
    assert!(!window.is_far_ahead());
    assert!(window.found(3, None) && window.is_far_ahead(), "it counts no more");
    // Kept handlers get the next of a key once the end of the one before is stored,
    let mut window = found();
    window.finish(1);
    window.share(Ledger::default(), &[].into(), "a");
    assert_eq!(window.turn(now), Turn::Full);
    window.stored();
    assert_eq!(window.turn(now), Turn::Again(2));
    // and of two that nobody has, the older one.
    let mut window = found();
    window.share(Ledger::default(), &[].into(), "a");
    assert_eq!(window.turn(now), Turn::Again(1));
    window.give_again(1);
    assert_eq!(window.turn(now), Turn::Full);
}
