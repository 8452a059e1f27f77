//! Explores all that can happen, by the same rules that traces are checked against.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::hash::Hash;
use std::rc::Rc;

use crate::model::{Consumer, Event, Kind, Options, Time};
use crate::rules::{Action, apply};

/// Something of which all states are explored.
pub trait World: Clone + Eq + Hash + Debug {
    /// What may be next.
    fn steps(&self) -> Vec<Self>;

    /// Why this state must not be.
    fn fault(&self) -> Option<&'static str>;

    /// Whether nothing is left to do.
    fn is_done(&self) -> bool;
}

/// How many states there are. Fails with one that must not be, or from which no state can be reached in which nothing is
/// left to do.
pub fn explore<W: World>(first: W) -> Result<usize, String> {
    let mut numbers = HashMap::from([(first.clone(), 0)]);
    let (mut before, mut good): (Vec<Vec<usize>>, Vec<usize>) = (vec![Vec::new()], Vec::new());
    let mut left = vec![(0, first)];
    while let Some((number, world)) = left.pop() {
        if let Some(fault) = world.fault() {
            return Err(format!("{fault}: {world:?}"));
        }
        let steps = world.steps();
        if world.is_done() {
            good.push(number);
        } else if steps.is_empty() {
            return Err(format!("it ends with something left to do: {world:?}"));
        }
        for after in steps {
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
        Some((stuck, _)) => Err(format!("what is left is never done: {stuck:?}")),
        None => Ok(before.len()),
    }
}

/// What a wait takes.
pub const STEP: Time = 1_000_000;

/// A consumer of these events, of which an event has the key of every second one after it.
pub fn consumer(kind: Kind, batch: i64, events: i64) -> Consumer {
    let options = Options {
        kind,
        batch,
        attempts: Some(2),
        stall_after: Some(1),
        places: if kind.is_singly() { 2 } else { 1 },
        backoff: vec![STEP],
        probe: None,
    };
    let event = |id: i64| (id, Event { key: Some((id % 2).to_string()), at: 0 });
    let events: BTreeMap<i64, Event> = (1..=events).map(event).collect();
    Consumer { options: Rc::new(options), events: Rc::new(events), ..Consumer::default() }
}

/// Does what must be allowed.
pub fn must(consumer: &mut Consumer, newest: i64, action: Action) {
    if let Err(why) = apply(consumer, newest, &action) {
        panic!("{action:?}: {why}, after {consumer:?}");
    }
}

pub fn is_allowed(consumer: &Consumer, newest: i64, action: &Action) -> bool {
    apply(&mut consumer.clone(), newest, action).is_ok()
}
