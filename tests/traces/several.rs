//! Explains a step of a consumer whose events finish singly.

use std::collections::BTreeSet;

use crate::explain::{begins, by_place, then};
use crate::model::{Claim, Consumer, Ended, Kind, Letter, Phase, Wait};
use crate::rules::Action;

pub fn candidates(from: &Consumer, to: &Consumer, ended: &[Ended]) -> Vec<Vec<Action>> {
    let (s, t) = (&from.state, &to.state);
    let mut actions = Vec::new();
    let is_closed = s.phase == Phase::Running && t.phase != Phase::Running;
    for id in from.letters.keys() {
        letter(*id, from, to, &mut actions);
    }
    // What ends makes room for what begins.
    let mut ids: Vec<i64> = from.events.keys().copied().filter(|id| !from.is_done(*id)).collect();
    ids.extend(from.claims.keys().filter(|id| from.is_done(**id)));
    for id in &ids {
        // It may have been a dead letter before, and have been given again after a seek.
        let is_dead = ended.iter().any(|run| run.result == "dead" && run.upto == *id);
        event(*id, from, to, is_dead, &mut actions);
    }
    if !runs_are_those(from, ended, &actions) {
        return Vec::new();
    }
    let noted = (s.succeeded, s.failed, s.batch, s.start_newest, s.single_upto, s.ended, s.deferred)
        != (t.succeeded, t.failed, t.batch, t.start_newest, t.single_upto, t.ended, t.deferred)
        || (s.dead_streak, s.judged_streak) != (t.dead_streak, t.judged_streak);
    let counted =
        t.succeeded - s.succeeded == ended.iter().filter(|run| run.result == "succeeded").count() as i64;
    if !counted {
        return Vec::new();
    }
    let begins = begins(t).filter(|_| t.phase == Phase::Running && s.phase != Phase::Running);
    let begins = begins.into_iter().collect::<Vec<_>>();
    if noted && begins.is_empty() {
        actions.push(Action::Notes(Box::new(t.clone())));
    }
    let is_over = from.options.kind == Kind::Claims && s.phase != t.phase;
    if is_closed || is_over {
        actions.push(Action::Closes(then(t)));
    }
    for (id, claim) in &to.claims {
        if from.claims.get(id).is_none_or(|before| is_another(before, claim)) {
            actions.push(Action::Claims(*id, claim.clone()));
        }
    }
    actions.extend(begins);
    vec![actions]
}

/// Whether another run, or another program, has it now.
fn is_another(before: &Claim, after: &Claim) -> bool {
    let token = |claim: &Claim| claim.token.clone().map(|(token, _)| token);
    (before.place, before.since, token(before)) != (after.place, after.since, token(after))
}

fn letter(id: i64, from: &Consumer, to: &Consumer, actions: &mut Vec<Action>) {
    let before = from.letters[&id];
    match to.letters.get(&id) {
        None => actions.push(Action::LetterDone(id)),
        Some(after) if *after == before => {}
        Some(Letter { attempts, retry: false }) if *attempts == before.attempts + 1 && before.retry => {
            actions.push(Action::LetterFails(id));
        }
        Some(_) => {}
    }
}

/// What has become of an event that was not finished.
fn event(id: i64, from: &Consumer, to: &Consumer, is_dead: bool, actions: &mut Vec<Action>) {
    let (had, has) = (from.claims.get(&id), to.claims.get(&id));
    let is_over = had.is_some_and(|had| has.is_none_or(|has| is_another(had, has)));
    if from.is_done(id) {
        // A dead letter, of which more is said there.
        let is_said = actions
            .iter()
            .any(|action| matches!(action, Action::LetterDone(of) | Action::LetterFails(of) if *of == id));
        if is_over && !is_said {
            actions.push(Action::GivesBack(id));
        }
        prolonged(id, from, to, actions);
        return;
    }
    if to.is_done(id) {
        let is_new = to.letters.get(&id).is_some_and(|letter| from.letters.get(&id) != Some(letter));
        let is_buried = is_new || (is_dead && to.letters.contains_key(&id));
        let known = from.waits.get(&id).map_or(0, |wait| wait.attempts) + 1;
        actions.push(match to.letters.get(&id).filter(|_| is_buried) {
            Some(letter) if letter.attempts == known => Action::Buries(id),
            Some(letter) => Action::BuriesAsKnown(id, letter.attempts),
            None => Action::Finishes(id),
        });
        return;
    }
    let before = from.waits.get(&id).copied().unwrap_or_default();
    match to.waits.get(&id) {
        Some(after) if from.waits.get(&id) != Some(after) => {
            let by_hand = from.options.kind == Kind::Pool && had.is_some() && !is_over;
            let action = Box::new(waits(from.options.kind, id, before, *after));
            actions.push(if by_hand { Action::ByHand(id, action) } else { *action });
        }
        _ if is_over => actions.push(Action::GivesBack(id)),
        _ => {}
    }
    prolonged(id, from, to, actions);
}

fn prolonged(id: i64, from: &Consumer, to: &Consumer, actions: &mut Vec<Action>) {
    if let (Some(had), Some(has)) = (from.claims.get(&id), to.claims.get(&id))
        && !is_another(had, has)
        && had != has
        && let Some((_, until)) = &has.token
    {
        actions.push(Action::Prolongs(id, *until));
    }
}

fn waits(kind: Kind, id: i64, before: Wait, after: Wait) -> Action {
    match (after.attempts - before.attempts, after.deferred - before.deferred) {
        (1, _) if after.deferred == 0 => Action::Fails(id, after),
        (0, 1) => Action::PutsOff(id, after),
        (0, _) if after.deferred == 0 && kind == Kind::Pool => Action::SetsApart(id, after),
        _ => Action::AsKnown(id, after),
    }
}

/// Whether what became of the events is what the runs that have ended say.
fn runs_are_those(from: &Consumer, ended: &[Ended], actions: &[Action]) -> bool {
    // A failure at one event is a run of its own, unless it is that of a run which had it.
    let mut failed: BTreeSet<i64> = BTreeSet::new();
    let (mut finished, mut back) = (BTreeSet::new(), BTreeSet::new());
    for action in actions {
        match action {
            Action::Fails(id, _) | Action::AsKnown(id, _) | Action::SetsApart(id, _) => failed.insert(*id),
            Action::PutsOff(id, _) | Action::Buries(id) | Action::ByHand(id, _) => failed.insert(*id),
            Action::BuriesAsKnown(id, _) => failed.insert(*id),
            Action::Finishes(id) => finished.insert(*id),
            Action::GivesBack(id) => back.insert(*id),
            _ => true,
        };
    }
    let mut places = by_place(from);
    for run in ended {
        let is_one_event = run.began == run.ended && failed.remove(&run.upto);
        if is_one_event || from.options.kind != Kind::Pool || run.events.is_none() {
            // What a handler that is kept had is not known.
            continue;
        }
        let place = places.iter().find(|(_, events)| events.contains(&run.upto)).map(|(place, _)| *place);
        let Some(events) = place.and_then(|place| places.remove(&place)) else {
            // Dead letters are not claimed, others may have finished the event, and a seek ends all claims.
            let is_rewound = from.rewinds != from.state.start_rewinds;
            if is_rewound || from.is_done(run.upto) || from.letters.contains_key(&run.upto) {
                continue;
            }
            return false;
        };
        let all_are = |of: &BTreeSet<i64>| events.iter().all(|id| of.contains(id));
        let is_said = match run.result.as_str() {
            "succeeded" => all_are(&finished),
            "stopped" => all_are(&finished) || all_are(&back),
            "interrupted" => all_are(&back),
            _ => all_are(&failed) && events.iter().all(|id| failed.remove(id)),
        };
        if !is_said || run.events.is_none_or(|count| (events.len() as i64) > count) {
            return false;
        }
    }
    // The stop of a wait is none, nor is a wait that is over.
    failed.is_empty()
}
