//! Errors that are put into a trace, each of which must be refused.

use crate::explain::Checker;
use crate::model::{Claim, Consumer, Kind, Phase, Task, Why};
use crate::rows::Stored;

/// Alters the second of two states, if it is one for that.
type Alter = fn(&Stored, &mut Stored) -> bool;

/// What is wrong then.
pub const ERRORS: &[(&str, Alter)] = &[
    ("two runs at once", |before, after| {
        first(before, after, |was, is| {
            let runs = was.state.phase == Phase::Running && is.state.phase == Phase::Running && *was == *is;
            is.state.supervisor = Some("1:1".to_owned());
            is.state.since = is.state.since.map(|since| since + 1);
            runs
        })
    }),
    ("a cursor that goes back without a seek", |before, after| {
        first(before, after, |was, is| {
            is.cursor = was.cursor - 1;
            was.cursor > 0 && is.rewinds == was.rewinds
        })
    }),
    ("an acknowledgement past the newest event", |before, after| {
        let newest = after.thread.newest;
        first(before, after, |was, is| {
            is.cursor = newest + 1;
            was.options.kind == Kind::Wake
        })
    }),
    ("an event that is claimed twice", |before, after| {
        first(before, after, |was, is| {
            let Some((id, claim)) = was.claims.iter().find(|(_, claim)| claim.token.is_some()) else {
                return false;
            };
            let until = claim.token.as_ref().map_or(0, |(_, until)| *until);
            let token = Some(("another".to_owned(), until + 100));
            is.claims.insert(*id, Claim { token, since: claim.since + 5000, ..claim.clone() });
            is.changes = was.changes + 1;
            !is.is_done(*id) && was.waits == is.waits
        })
    }),
    ("two claims of a key", |before, after| {
        first(before, after, |was, is| {
            let Some((id, claim)) = is.claims.iter().next().map(|(id, claim)| (*id, claim.clone())) else {
                return false;
            };
            let key = is.events[&id].key.clone();
            let other = is.open().find(|other| *other != id && is.events[other].key == key);
            let Some(other) = other.filter(|other| !is.claims.contains_key(other)) else { return false };
            is.claims.insert(other, claim);
            was.options.kind.is_singly()
        })
    }),
    ("a run that ends twice", |before, after| {
        for (name, runs) in &mut after.runs {
            if let Some(mut run) = before.runs.get(name).and_then(|runs| runs.last()).cloned()
                && run.began < run.ended
                && runs.is_empty()
                && let Some(consumer) = after.thread.consumers.get_mut(name)
            {
                run.number += 1;
                runs.push(run);
                consumer.runs += 1;
                return true;
            }
        }
        false
    }),
    ("an event that is finished while a run has it", |before, after| {
        first(before, after, |was, is| {
            let Some(id) = is.claims.keys().next().copied() else { return false };
            is.done.insert(id);
            was.claims.contains_key(&id) && !is.claims[&id].is_letter
        })
    }),
    ("an attempt that is not counted", |before, after| {
        first(before, after, |was, is| {
            let begins = was.state.phase != Phase::Running && is.state.phase == Phase::Running;
            is.state.attempts -= 1;
            begins && was.options.kind == Kind::Runs
        })
    }),
    ("a wait that ends early", |before, after| {
        first(before, after, |was, is| {
            let next = was.state.next_try.filter(|_| was.state.phase == Phase::Waiting);
            is.state.since = next.map(|next| next - 5000);
            next.is_some() && is.state.phase == Phase::Running
        })
    }),
    ("a dead letter that is lost", |before, after| {
        first(before, after, |was, is| {
            let new = is.letters.keys().find(|id| !was.letters.contains_key(id)).copied();
            new.is_some_and(|id| is.letters.remove(&id).is_some())
        })
    }),
    ("a consumer that is paused, and begins", |before, after| {
        first(before, after, |was, is| {
            let begins = was.state.phase != Phase::Running && is.state.phase == Phase::Running;
            is.state.paused = true;
            begins
        })
    }),
    ("half of a batch", |_, after| after.events.len() > 1 && after.events.pop().is_some()),
    ("an id that is left out", |_, after| {
        after.events.iter_mut().for_each(|(id, _)| *id += 1);
        !after.events.is_empty()
    }),
    ("a change that is not counted", |before, after| {
        first(before, after, |was, is| {
            let counted = is.changes > was.changes && is.state != was.state;
            is.changes = was.changes;
            counted
        })
    }),
    ("events that are not the oldest", |before, after| {
        first(before, after, |was, is| {
            let begins = was.state.phase != Phase::Running && is.state.phase == Phase::Running;
            is.state.task = is.state.task.map(|task| match task {
                Task::Single(id) => Task::Single(id + 1),
                task => task,
            });
            begins && was.options.kind == Kind::Runs && matches!(is.state.task, Some(Task::Single(_)))
        })
    }),
    ("an attempt too many", |before, after| {
        first(before, after, |was, is| {
            let mut new = is.waits.iter_mut().filter(|(id, wait)| was.waits.get(id) != Some(wait));
            // After a resume, it may be the number that was known before.
            let is_fresh = |id: &i64| was.waits.get(id).is_none_or(|wait| wait.attempts > 0);
            let failed = new.find(|(id, wait)| wait.attempts > 0 && wait.until > wait.since && is_fresh(id));
            failed.map(|(_, wait)| wait.attempts += 1).is_some()
        })
    }),
    ("a wait that is forgotten", |before, after| {
        first(before, after, |was, is| {
            let id = is.waits.iter().find(|(id, wait)| was.waits.get(id) != Some(wait)).map(|(id, _)| *id);
            id.is_some_and(|id| is.waits.remove(&id).is_some()) && was.claims.len() == is.claims.len() + 1
        })
    }),
    ("a token that is used twice", |before, after| {
        first(before, after, |was, is| {
            let Some(token) = was.claims.values().find_map(|claim| claim.token.clone()) else { return false };
            let new = is.claims.iter_mut().find(|(id, _)| !was.claims.contains_key(id));
            new.map(|(_, claim)| claim.token = Some(token)).is_some()
        })
    }),
    ("a rewind of nobody", |before, after| {
        first(before, after, |was, is| {
            let is_seek = was.state == is.state && was != is;
            is.rewinds += 1;
            !is_seek && was.cursor <= is.cursor
        })
    }),
    ("a stall for no reason", |before, after| {
        first(before, after, |was, is| {
            let idle = was.state.phase == Phase::Running && is.state.phase == Phase::Idle;
            (is.state.phase, is.state.reason) = (Phase::Stalled, Some(Why::Stopped));
            idle && was.options.kind == Kind::Runs
        })
    }),
];

/// Alters the first consumer that is one for it.
fn first(before: &Stored, after: &mut Stored, alter: impl Fn(&Consumer, &mut Consumer) -> bool) -> bool {
    for (name, is) in &mut after.thread.consumers {
        let (was, mut altered) = (&before.thread.consumers[name], is.clone());
        if alter(was, &mut altered) && altered != *is {
            *is = altered;
            return true;
        }
    }
    false
}

/// How often an error could be put into a trace; fails if it is not refused once.
pub fn try_error(states: &[Stored], checkers: &[Checker], (what, alter): (&str, Alter)) -> usize {
    let mut tried = 0;
    for (at, pair) in states.windows(2).enumerate() {
        let mut altered = pair[1].clone();
        if alter(&pair[0], &mut altered) {
            tried += 1;
            let done = checkers[at].clone().step(&pair[0].thread, &altered);
            assert!(done.is_err(), "step {at}: {what} is taken for {done:?}");
        }
        if tried == 20 {
            break;
        }
    }
    tried
}
