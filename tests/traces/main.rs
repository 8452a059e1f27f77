//! Every state that real programs store while they are killed, checked against a model; see tests/FAULTS.md.

mod altered;
mod ends;
mod explain;
mod explore;
mod model;
mod pools;
mod record;
mod rows;
mod rules;
mod several;
mod singly;
mod waking;
mod workload;

use std::collections::BTreeMap;
use std::time::Duration;

use thread_testkit::long;

use crate::explain::{Checker, Steps};
use crate::explore::explore;
use crate::pools::{Claims, Pool};
use crate::rows::Stored;
use crate::rules::Action;
use crate::waking::Waking;

/// Checks all steps. Returns the checker before each, and what explains it.
fn follow(states: &[Stored], counts: bool) -> (Vec<Checker>, Vec<Steps>) {
    let (mut checkers, mut all) = (vec![Checker::new(counts)], Vec::new());
    for (at, pair) in states.windows(2).enumerate() {
        let mut checker = checkers[at].clone();
        match checker.step(&pair[0].thread, &pair[1]) {
            Ok(actions) => all.push(actions),
            Err(refused) => panic!("step {at}, {}: {}\n  {:?}", refused.consumer, refused.why, pair[1].runs),
        }
        checkers.push(checker);
    }
    (checkers, all)
}

/// The name of an action.
fn name(action: &Action) -> String {
    let text = format!("{action:?}");
    text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
}

/// Two steps that look like one: one in which nothing changes that the model knows, or two of a consumer of which one is not
/// counted, such as two acknowledgements, or one and the end of a run that acknowledges as much.
fn may_be_one(first: &Steps, second: &Steps) -> bool {
    let is_uncounted = |(_, action): &(String, Action)| {
        matches!(action, Action::Ack(_) | Action::Seek(_) | Action::Retry(_) | Action::Discard(_))
    };
    let of = |steps: &Steps| steps.first().map(|(consumer, _)| consumer.clone());
    first.is_empty()
        || second.is_empty()
        || (of(first) == of(second) && (first.iter().all(is_uncounted) || second.iter().all(is_uncounted)))
}

/// Takes out each step but the last. Returns how many were tried, how many were not missed, and which.
fn without_a_step(states: &[Stored], counts: bool) -> (usize, usize, BTreeMap<String, usize>) {
    let (checkers, steps) = follow(states, counts);
    let (mut missed, mut kinds) = (0, BTreeMap::new());
    for at in 1..states.len() - 1 {
        let mut merged = states[at + 1].clone();
        merged.events = [&states[at].events[..], &merged.events].concat();
        for (consumer, runs) in &mut merged.runs {
            *runs = [states[at].runs.get(consumer).map_or(&[][..], |runs| runs), runs].concat();
        }
        if checkers[at - 1].clone().step(&states[at - 1].thread, &merged).is_err() {
            continue;
        }
        missed += 1;
        assert!(
            !counts || may_be_one(&steps[at - 1], &steps[at]),
            "without step {}: {:?} and {:?}",
            at - 1,
            steps[at - 1],
            steps[at]
        );
        let names =
            |steps: &Steps| steps.iter().map(|(_, action)| name(action)).collect::<Vec<_>>().join("+");
        *kinds.entry(format!("{}, {}", names(&steps[at - 1]), names(&steps[at]))).or_default() += 1;
    }
    (states.len() - 2, missed, kinds)
}

#[test]
fn what_real_programs_store_is_explained_and_no_step_can_be_left_out() {
    let (rounds, time) = if long() { (12, 15) } else { (1, 4) };
    let (mut names, mut found): (BTreeMap<String, usize>, BTreeMap<&str, usize>) = Default::default();
    let (mut states, mut kills, mut tried, mut missed, mut weakly) = (0, 0, 0, 0, 0);
    for _ in 0..rounds {
        let (trace, counts) = workload::trace(Duration::from_secs(time));
        let (checkers, steps) = follow(&trace, true);
        for (_, action) in steps.iter().flatten() {
            *names.entry(name(action)).or_default() += 1;
        }
        let (all, not_missed, kinds) = without_a_step(&trace, true);
        println!("not missed: {kinds:?}");
        let (_, without_counts, kinds) = without_a_step(&trace, false);
        println!("without the count of changes: {kinds:?}");
        for error in altered::ERRORS {
            *found.entry(error.0).or_default() += altered::try_error(&trace, &checkers, *error);
        }
        (states, kills) = (states + trace.len(), kills + counts.kills);
        (tried, missed, weakly) = (tried + all, missed + not_missed, weakly + without_counts);
    }
    println!("{states} states, {kills} kills: {names:?}");
    println!("of {tried} steps taken out {missed} are not missed, {weakly} without the count of changes");
    println!("errors put in, and refused: {found:?}");
    let seeded = found.values().filter(|count| **count > 0).count();
    assert!(seeded >= 12, "{found:?}");
    assert!(names.len() > 10 && tried > 100, "{names:?}");
    assert!(weakly < tried / 2);
}

/// Takes the beginning of what is said.
fn short(refused: String) -> String {
    refused.chars().take(3000).collect()
}

#[test]
fn every_order_of_waking_and_running_is_sound() {
    use waking::Wrong;
    let quick = [(1, 1, (0, 0)), (0, 1, (1, 0))];
    let thorough = [(2, 1, (0, 0)), (0, 1, (1, 1)), (1, 1, (1, 0)), (1, 0, (0, 1)), (1, 0, (1, 1))];
    for (kills, failures, meddles) in quick.iter().chain(thorough.iter().filter(|_| long())).copied() {
        let states = explore(Waking::first(Wrong::Nothing, kills, failures, meddles)).map_err(short).unwrap();
        println!(
            "waking, with {kills} kills, {failures} failures, {meddles:?} stops and pauses: {states} states"
        );
        assert!(states > 3000, "{states}");
    }
    for (wrong, kills, failures, meddles) in [
        (Wrong::LooksFirst, 0, 0, (0, 0)),
        (Wrong::ForgetsOrphans, 1, 0, (0, 0)),
        (Wrong::NobodyWaits, 0, 1, (0, 0)),
        (Wrong::ForgetsStops, 0, 1, (1, 0)),
        (Wrong::TrustsTheDead, 1, 0, (0, 0)),
    ] {
        assert!(explore(Waking::first(wrong, kills, failures, meddles)).is_err(), "{wrong:?}");
    }
}

#[test]
fn every_order_of_a_pool_and_of_claims_is_sound() {
    use pools::Wrong;
    let (events, kills) = if long() { (4, 2) } else { (3, 1) };
    let pool = explore(Pool::first(Wrong::Nothing, events, kills, 1)).map_err(short).unwrap();
    let claims = explore(Claims::first(Wrong::Nothing, events, kills, 1)).map_err(short).unwrap();
    println!("a pool: {pool} states, claims: {claims} states");
    assert!(pool > 2000 && claims > 800, "{pool}, {claims}");
    for wrong in [Wrong::ForgetsOrphans, Wrong::StartsFirst, Wrong::NeverTakesOver] {
        assert!(explore(Pool::first(wrong, 3, 1, 0)).is_err(), "{wrong:?}");
    }
    for wrong in [Wrong::IgnoresTokens, Wrong::NeverOver] {
        assert!(explore(Claims::first(wrong, 3, 1, 0)).is_err(), "{wrong:?}");
    }
}
