//! Programs that take events with keys, compared with a simple model.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};
use thread::Queue;
use thread::model::run::Options;
use thread::model::subscription::NewSubscription;
use thread::run::claims;
use thread::run::settle::{self, Answer};
use thread::store::{Move, PruneRange, PruneStep};

use super::conformance::{append, message, name, new_subscription};

/// `-` has no key, and `skip` does not match.
const KEYS: [&str; 5] = ["a", "b", "c", "-", "skip"];

const PLACES: u32 = 500;

const LONG: Duration = Duration::from_secs(60 * 60);

#[derive(Debug, Clone)]
enum Op {
    Push(&'static str, usize),
    Take(u64),
    /// Of those that are taken, the one at this place.
    Ack(usize),
    /// The same of those that are not taken.
    AckByHand(usize),
    /// Either of them, for long or not.
    Nack(usize, bool),
    NackByHand(usize, bool),
    Reject(usize),
    /// Back, by so many events.
    Seek(i64),
    /// Deletes so many of the events that come before all that are taken, whether they are finished or not.
    Prune(i64),
    /// Subscribes again, for another number of places and back, or with another key and back. What waits waits no longer;
    /// with another key, nothing is taken any more.
    Replace(bool),
}

fn op() -> impl Strategy<Value = Op> {
    let key = || prop::sample::select(&KEYS[..]);
    let most = prop_oneof![4 => Just(1), 2 => 2..6_u64, 1 => Just(u64::from(PLACES))];
    let place = || any::<usize>();
    prop_oneof![
        2 => (key(), 1..8_usize).prop_map(|(key, count)| Op::Push(key, count)),
        2 => (key(), 70..100_usize).prop_map(|(key, count)| Op::Push(key, count)),
        8 => most.prop_map(Op::Take),
        5 => place().prop_map(Op::Ack),
        1 => place().prop_map(Op::AckByHand),
        2 => (place(), any::<bool>()).prop_map(|(place, long)| Op::Nack(place, long)),
        1 => (place(), any::<bool>()).prop_map(|(place, long)| Op::NackByHand(place, long)),
        1 => place().prop_map(Op::Reject),
        1 => (1..300_i64).prop_map(Op::Seek),
        1 => (1..150_i64).prop_map(Op::Prune),
        1 => any::<bool>().prop_map(Op::Replace),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Is {
    Free,
    Taken,
    Waiting,
    Finished,
}

/// The events that match, each with its key.
#[derive(Debug, Default)]
struct Model {
    all: BTreeMap<i64, (Option<&'static str>, Is)>,
}

impl Model {
    fn of(&self, wanted: Is) -> Vec<i64> {
        self.all.iter().filter(|(_, (_, is))| *is == wanted).map(|(id, _)| *id).collect()
    }

    fn set(&mut self, id: i64, to: Is) {
        self.all.get_mut(&id).unwrap().1 = to;
    }

    /// Those that may be taken: of each key, only the oldest unfinished one.
    fn legal(&self) -> BTreeSet<i64> {
        let (mut seen, mut legal) = (BTreeSet::new(), BTreeSet::new());
        for (id, (key, is)) in self.all.iter().filter(|(_, (_, is))| *is != Is::Finished) {
            let is_first = key.is_none_or(|key| seen.insert(key));
            if is_first && *is == Is::Free {
                legal.insert(*id);
            }
        }
        legal
    }
}

/// Takes, finishes and puts off events at random: what is taken is the oldest of its key, and as many are as there are.
/// `fresh` returns an empty thread, or `None` if the machine lacks something.
///
/// # Panics
///
/// If one was given that may not be, or fewer than might have been.
pub fn the_oldest_of_each_key_is_taken(cases: u32, fresh: impl Fn() -> Option<Queue>) {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(cases);
    let seed = RngSeed::Fixed(20_260_318);
    let config = Config { cases, rng_seed: seed, failure_persistence: None, ..Config::default() };
    let ops = prop::collection::vec(op(), 1..40);
    proptest!(config, |(ops in ops, ahead in prop::sample::select(vec![200, 10_000]), filtered in any::<bool>())| {
        let Some(mut queue) = fresh() else { return Ok(()) };
        queue.subscribe(&subscription((ahead, filtered), PLACES)).unwrap();
        let mut model = Model::default();
        for op in ops {
            run(&mut queue, &op, &mut model, (ahead, filtered))?;
        }
        // In the end, nothing is forgotten.
        let open = [model.of(Is::Waiting), model.of(Is::Taken)].concat();
        settle::ack(&mut queue, &name("c"), &open, None, None).unwrap();
        open.into_iter().for_each(|id| model.set(id, Is::Finished));
        for _ in 0..10 {
            let taken = take(&mut queue, &mut model, u64::from(PLACES), (ahead, filtered))?;
            prop_assert!(!taken.is_empty() || model.legal().is_empty());
            settle::ack(&mut queue, &name("c"), &taken, None, None).unwrap();
            taken.into_iter().for_each(|id| model.set(id, Is::Finished));
        }
    });
}

fn subscription((ahead, filtered): (u64, bool), places: u32) -> NewSubscription {
    let options = Options {
        no_handler: true,
        concurrency: Some(places),
        key: Some("nullif(content, '-')".to_owned()),
        ahead,
        ..Options::default()
    };
    let filter = filtered.then(|| "content <> 'skip'".to_owned());
    NewSubscription { options, filter, ..new_subscription("c") }
}

fn take(
    queue: &mut Queue,
    model: &mut Model,
    most: u64,
    (ahead, _): (u64, bool),
) -> Result<Vec<i64>, TestCaseError> {
    let takings = claims::take(queue, &name("c"), most, LONG).unwrap();
    let lines = takings.lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let ids: Vec<i64> = lines.map(id_of).collect();
    let legal = model.legal();
    for id in &ids {
        prop_assert!(legal.contains(id), "{} was given, and not one of {:?}", id, legal);
    }
    let room = u64::from(PLACES) - model.of(Is::Taken).len() as u64;
    let expected = most.min(room).min(legal.len() as u64);
    let unfinished = model.all.len() - model.of(Is::Finished).len();
    if (unfinished as u64) < ahead {
        prop_assert_eq!(ids.len() as u64, expected, "{:?} of {:?}", ids, legal);
    }
    for id in &ids {
        let upto = model.all.range(..=id).filter(|(_, (_, is))| *is != Is::Finished).count() as u64;
        prop_assert!(upto <= ahead, "{} was given, and {} before it are unfinished", id, upto - 1);
    }
    ids.iter().for_each(|id| model.set(*id, Is::Taken));
    Ok(ids)
}

fn id_of(line: &[u8]) -> i64 {
    serde_json::from_slice::<serde_json::Value>(line).unwrap()["id"].as_i64().unwrap()
}

fn run(queue: &mut Queue, op: &Op, model: &mut Model, how: (u64, bool)) -> Result<(), TestCaseError> {
    let consumer = name("c");
    let some = |all: Vec<i64>, place: usize| all.get(place % all.len().max(1)).copied();
    let answer = |id| Answer { id, claim: None, error: "" };
    match *op {
        Op::Push(key, count) => {
            let appended = append(queue.store(), &vec![message(key); count]).unwrap();
            for id in appended.first_id.unwrap()..=appended.last_id.unwrap() {
                if !(how.1 && key == "skip") {
                    model.all.insert(id, (Some(key).filter(|key| *key != "-"), Is::Free));
                }
            }
        }
        Op::Take(most) => drop(take(queue, model, most, how)?),
        Op::Ack(place) => {
            if let Some(id) = some(model.of(Is::Taken), place) {
                settle::ack(queue, &consumer, &[id], None, None).unwrap();
                model.set(id, Is::Finished);
            }
        }
        Op::AckByHand(place) => {
            if let Some(id) = some(model.of(Is::Free), place) {
                settle::ack(queue, &consumer, &[id], None, None).unwrap();
                model.set(id, Is::Finished);
            }
        }
        Op::Nack(place, is_long) | Op::NackByHand(place, is_long) => {
            let from = if matches!(op, Op::Nack(..)) { Is::Taken } else { Is::Free };
            if let Some(id) = some(model.of(from), place) {
                let delay = Some(if is_long { LONG } else { Duration::ZERO });
                settle::nack(queue, &consumer, answer(id), delay, false).unwrap();
                model.set(id, if is_long { Is::Waiting } else { Is::Free });
            }
        }
        Op::Reject(place) => {
            if let Some(id) = some(model.of(Is::Taken), place) {
                settle::reject(queue, &consumer, answer(id)).unwrap();
                model.set(id, Is::Finished);
            }
        }
        Op::Seek(by) => {
            let to = (queue.subscription(&consumer).unwrap().last_acked_id - by).max(0);
            queue.store().move_cursor(&consumer, to, Move::Seek).unwrap();
            for (id, (_, is)) in &mut model.all {
                *is = if *id <= to { Is::Finished } else { Is::Free };
            }
        }
        Op::Prune(count) => {
            let first_taken = model.of(Is::Taken).first().copied().unwrap_or(i64::MAX);
            let newest = queue.store().newest().unwrap();
            let before = queue.store().first_after(0).unwrap().unwrap_or(newest);
            let upto = (before + count - 1).min(first_taken - 1).min(newest);
            let all = PruneRange {
                after: 0,
                upto,
                subtype: None,
                dead_letters: true,
                seen: None,
                dry_run: false,
                time: LONG,
            };
            let done = queue.store().prune(&all).unwrap();
            prop_assert!(matches!(done, PruneStep::Upto(reached, _) if reached >= upto), "{:?}", done);
            model.all.retain(|id, _| *id > upto);
        }
        Op::Replace(has_other_key) => {
            let key = Some("content".to_owned()).filter(|_| has_other_key);
            for (places, key) in [(PLACES + 1, key), (PLACES, None)] {
                let new = subscription(how, places);
                let options = Options { key: key.or(new.options.key.clone()), ..new.options.clone() };
                queue.subscribe(&NewSubscription { replace: true, options, ..new }).unwrap();
            }
            let ends = |is: Is| is == Is::Waiting || is == Is::Taken && has_other_key;
            for (_, is) in model.all.values_mut().filter(|(_, is)| ends(*is)) {
                *is = Is::Free;
            }
        }
    }
    Ok(())
}
