//! A pool of two, and programs that claim events by themselves, with all who may be killed: every order of their steps.
//! What is stored follows the rules of [`rules`](crate::rules). Waits are over at once, so that time does not matter.

use std::collections::{BTreeMap, BTreeSet};

use crate::explore::{World, consumer, is_allowed, must};
use crate::model::{Claim, Consumer, Kind, Phase, Task, Wait};
use crate::rules::{Action, Then};

/// Deliberate errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wrong {
    Nothing,
    /// The next supervisor does not wait for runs of one that was killed.
    ForgetsOrphans,
    /// A run begins before it is stored that its event is claimed.
    StartsFirst,
    /// What was claimed by a supervisor that was killed is left to nobody.
    NeverTakesOver,
    /// A program that has lost its claim may acknowledge all the same.
    IgnoresTokens,
    /// A claim never ends by itself.
    NeverOver,
}

/// The supervisor of a pool, its runs, and those of supervisors that were killed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pool {
    wrong: Wrong,
    stored: Consumer,
    newest: i64,
    is_supervised: bool,
    /// The event that is at work at each place.
    at_work: BTreeMap<i64, i64>,
    orphans: BTreeMap<i64, i64>,
    handled: BTreeSet<i64>,
    kills: u8,
    failures: u8,
}

impl Pool {
    pub fn first(wrong: Wrong, events: i64, kills: u8, failures: u8) -> Pool {
        Pool {
            wrong,
            stored: consumer(Kind::Pool, 1, events),
            newest: events,
            is_supervised: false,
            at_work: BTreeMap::new(),
            orphans: BTreeMap::new(),
            handled: BTreeSet::new(),
            kills,
            failures,
        }
    }

    fn must(&mut self, action: Action) {
        must(&mut self.stored, self.newest, action);
    }

    /// An attempt at an event is over without success.
    fn fails(&mut self, id: i64) {
        fail(&mut self.stored, self.newest, id);
    }

    fn supervise(&self, next: &mut Vec<Pool>) {
        for (&place, &id) in &self.at_work {
            let mut after = self.clone();
            after.at_work.remove(&place);
            let mut failed = after.clone();
            after.handled.insert(id);
            after.must(Action::Finishes(id));
            next.push(after);
            if self.failures > 0 {
                failed.failures -= 1;
                failed.fails(id);
                next.push(failed);
            }
        }
        let claims = &self.stored.claims;
        for (&id, claim) in claims.iter().filter(|(_, claim)| !self.at_work.contains_key(&claim.place)) {
            // Its own, of which the run has not begun, or that of a supervisor before it.
            let mut after = self.clone();
            if claim.since == 1 {
                after.at_work.insert(claim.place, id);
            } else if self.wrong == Wrong::NeverTakesOver
                || (self.orphans.contains_key(&claim.place) && self.wrong != Wrong::ForgetsOrphans)
            {
                continue;
            } else {
                after.fails(id);
            }
            next.push(after);
        }
        for place in 1..=2 {
            for id in self.stored.open() {
                let is_taken = self.orphans.contains_key(&place) || self.at_work.contains_key(&place);
                let claims = Action::Claims(id, Claim { place, since: 1, ..Claim::default() });
                if is_taken || !is_allowed(&self.stored, self.newest, &claims) {
                    continue;
                }
                let mut after = self.clone();
                after.must(claims);
                if self.wrong == Wrong::StartsFirst {
                    // Killed in between, nothing is known of its run.
                    let mut early = self.clone();
                    early.orphans.insert(place, id);
                    early.is_supervised = false;
                    next.push(early);
                }
                next.push(after);
            }
        }
        if self.at_work.is_empty() && self.stored.open().next().is_none() {
            let mut after = Pool { is_supervised: false, ..self.clone() };
            after.must(Action::Closes(Then::Idle));
            next.push(after);
        }
    }
}

fn fail(stored: &mut Consumer, newest: i64, id: i64) {
    let attempts = stored.waits.get(&id).map_or(0, |wait| wait.attempts) + 1;
    let wait = Wait { attempts, ..Wait::default() };
    let is_last = stored.options.attempts.is_some_and(|most| attempts >= most);
    must(stored, newest, if is_last { Action::Buries(id) } else { Action::Fails(id, wait) });
}

/// Whether these are never two of an event, or of a key.
fn are_apart(stored: &Consumer, events: impl Iterator<Item = i64>) -> bool {
    let mut keys = BTreeSet::new();
    events.into_iter().all(|id| keys.insert(stored.events[&id].key.clone()))
}

fn is_handled(stored: &Consumer, handled: &BTreeSet<i64>) -> bool {
    let mut done = stored.events.keys().filter(|id| stored.is_done(**id));
    done.all(|id| handled.contains(id) || stored.letters.contains_key(id))
}

impl World for Pool {
    fn steps(&self) -> Vec<Pool> {
        let mut next = Vec::new();
        if self.is_supervised {
            self.supervise(&mut next);
            if self.kills > 0 {
                let mut after = Pool { kills: self.kills - 1, is_supervised: false, ..self.clone() };
                let at_work = std::mem::take(&mut after.at_work);
                after.orphans.extend(at_work);
                next.push(after);
            }
        } else if self.stored.open().next().is_some() {
            let mut after = Pool { is_supervised: true, ..self.clone() };
            if self.stored.state.phase == Phase::Running {
                after.must(Action::Closes(Then::Idle));
            }
            // Those of the supervisor before it.
            after.stored.claims.values_mut().for_each(|claim| claim.since = 0);
            let (supervisor, task) = ("s".to_owned(), Task::Pool);
            after.must(Action::Begins { supervisor, at: 1, task, batch: 0, newest: self.newest });
            next.push(after);
        }
        for (&place, &id) in &self.orphans {
            let mut after = self.clone();
            after.orphans.remove(&place);
            next.push(after.clone());
            after.handled.insert(id);
            next.push(after);
        }
        next
    }

    fn fault(&self) -> Option<&'static str> {
        let at_work = self.at_work.values().chain(self.orphans.values());
        if !are_apart(&self.stored, at_work.copied()) {
            return Some("two of an event, or of a key, at once");
        }
        if self.at_work.len() + self.orphans.len() > 2 {
            return Some("more runs than there may be");
        }
        if !is_handled(&self.stored, &self.handled) {
            return Some("an event is finished that nobody has handled");
        }
        self.stored.must_be_sound(self.newest).err()
    }

    fn is_done(&self) -> bool {
        self.stored.open().next().is_none() && !self.is_supervised && self.orphans.is_empty()
    }
}

/// Programs that claim events, each for a time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Claims {
    wrong: Wrong,
    stored: Consumer,
    newest: i64,
    /// What each program has, and by which token.
    programs: [Option<(i64, i64)>; 2],
    /// How many tokens there were.
    tokens: i64,
    /// The tokens of claims whose time is over.
    over: BTreeSet<i64>,
    handled: BTreeSet<i64>,
    /// How often a claim ends by itself, or a program is killed.
    kills: u8,
    failures: u8,
    is_broken: bool,
}

impl Claims {
    pub fn first(wrong: Wrong, events: i64, kills: u8, failures: u8) -> Claims {
        Claims {
            wrong,
            stored: consumer(Kind::Claims, 1, events),
            newest: events,
            programs: [None; 2],
            tokens: 0,
            over: BTreeSet::new(),
            handled: BTreeSet::new(),
            kills,
            failures,
            is_broken: false,
        }
    }

    /// Whether a program has an event by a claim whose time is not over.
    fn has(&self, id: i64, token: i64) -> bool {
        let stored = self.stored.claims.get(&id).and_then(|claim| claim.token.as_ref());
        stored.is_some_and(|(of, _)| *of == token.to_string()) && !self.over.contains(&token)
    }

    /// A program takes the next event, and notes which claims are over.
    fn take(&self, at: usize, next: &mut Vec<Claims>) {
        let mut after = self.clone();
        for (id, claim) in &self.stored.claims {
            let token = claim.token.as_ref().and_then(|(token, _)| token.parse().ok());
            if token.is_some_and(|token| self.over.contains(&token)) {
                fail(&mut after.stored, self.newest, *id);
            }
        }
        let token = self.tokens + 1;
        let claims =
            |id| Action::Claims(id, Claim { token: Some((token.to_string(), 0)), ..Claim::default() });
        let first =
            after.stored.open().map(claims).find(|claims| is_allowed(&after.stored, self.newest, claims));
        if let Some(Action::Claims(id, claim)) = first {
            must(&mut after.stored, self.newest, Action::Claims(id, claim));
            (after.tokens, after.programs[at]) = (token, Some((id, token)));
        }
        if after != *self {
            next.push(after);
        }
    }

    /// A program has handled what it has, or failed.
    fn answer(&self, at: usize, (id, token): (i64, i64), next: &mut Vec<Claims>) {
        let mut after = self.clone();
        after.programs[at] = None;
        // What nobody may acknowledge any more is handled once more.
        let mut failed = after.clone();
        after.handled.insert(id);
        if self.has(id, token) || (self.wrong == Wrong::IgnoresTokens && !self.stored.is_done(id)) {
            after.is_broken = !self.has(id, token) && self.stored.claims.contains_key(&id);
            must(&mut after.stored, self.newest, Action::Finishes(id));
        }
        next.push(after);
        if self.failures > 0 && self.has(id, token) {
            failed.failures -= 1;
            fail(&mut failed.stored, self.newest, id);
            next.push(failed);
        }
    }
}

impl World for Claims {
    fn steps(&self) -> Vec<Claims> {
        let mut next = Vec::new();
        for at in 0..2 {
            match self.programs[at] {
                None => self.take(at, &mut next),
                Some(has) => {
                    self.answer(at, has, &mut next);
                    if self.kills > 0 {
                        let mut after = Claims { kills: self.kills - 1, ..self.clone() };
                        after.programs[at] = None;
                        next.push(after);
                    }
                }
            }
        }
        for claim in self.stored.claims.values() {
            let token = claim.token.as_ref().and_then(|(token, _)| token.parse().ok()).unwrap_or(0);
            let is_held = self.programs.iter().flatten().any(|(_, of)| *of == token);
            // That of a program that is gone, or one that takes too long.
            let may_end = !is_held || self.kills > 0;
            if may_end && !self.over.contains(&token) && self.wrong != Wrong::NeverOver {
                let mut after = Claims { kills: self.kills - u8::from(is_held), ..self.clone() };
                after.over.insert(token);
                next.push(after);
            }
        }
        next
    }

    fn fault(&self) -> Option<&'static str> {
        let valid = self.programs.iter().flatten().filter(|(id, token)| self.has(*id, *token));
        if !are_apart(&self.stored, valid.map(|(id, _)| *id)) {
            return Some("two of an event, or of a key, at once");
        }
        if self.is_broken {
            return Some("an event is acknowledged that another program has");
        }
        if !is_handled(&self.stored, &self.handled) {
            return Some("an event is finished that nobody has handled");
        }
        self.stored.must_be_sound(self.newest).err()
    }

    fn is_done(&self) -> bool {
        self.stored.open().next().is_none() && self.programs == [None; 2]
    }
}
