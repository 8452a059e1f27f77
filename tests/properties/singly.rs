//! What may be given of events that finish singly, in any state of theirs, agrees with what each event says alone.

use std::ops::ControlFlow;
use std::time::Instant;

use chrono::{TimeDelta, Utc};
use proptest::prelude::*;
use thread::NewEvent;
use thread::model::filter::Filter;
use thread::model::ledger::{Asleep, Claim, EventWait, LedgerChange};
use thread::model::run::{Deliver, Options};
use thread::model::subscription::{ConsumerId, NewSubscription, Subscription};
use thread::model::time::Time;
use thread::pending::{self, CountLimits};
use thread::store::{Move, RunUpdate, Store};
use thread_testkit::store::MemoryStore;

use crate::world::cases;

/// What has become of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Finished,
    /// For so many minutes, if it is not over.
    Waits(i64),
    Sleeps(i64),
    /// At a run of another machine, which may be gone.
    Claimed {
        is_there: bool,
    },
}

/// An event and what it is keyed by, if by anything.
type One = (State, Option<&'static str>);

fn one() -> impl Strategy<Value = One> {
    let state = prop_oneof![
        2 => Just(State::Free),
        3 => Just(State::Finished),
        4 => (-1..4_i64).prop_map(State::Waits),
        2 => (-1..4_i64).prop_map(State::Sleeps),
        3 => any::<bool>().prop_map(|is_there| State::Claimed { is_there }),
    ];
    (state, prop::option::of(prop::sample::select(&["a", "b"][..])))
}

fn change(id: i64, state: State, now: Time) -> Option<LedgerChange> {
    let wait = |minutes: i64, asleep| {
        let (since, until) = (now - TimeDelta::hours(1), now + TimeDelta::minutes(minutes));
        LedgerChange::Wait { id, wait: EventWait { since, until, asleep, ..EventWait::default() } }
    };
    match state {
        State::Free => None,
        State::Finished => Some(LedgerChange::Finish { first: id, last: id }),
        State::Waits(minutes) => Some(wait(minutes, Asleep::No)),
        State::Sleeps(minutes) => Some(wait(minutes, Asleep::Sleeps)),
        State::Claimed { is_there } => {
            let machine = Some(if is_there { "there" } else { "gone" }.to_owned());
            Some(LedgerChange::Claim { id, claim: Some(Claim { place: 1, machine, ..Claim::default() }) })
        }
    }
}

/// A consumer of all these events.
fn store(all: &[One], options: Options, filter: Option<&str>, now: Time) -> (MemoryStore, Subscription) {
    let mut store = MemoryStore::default();
    let consumer = ConsumerId::new("bot").unwrap();
    let (handler_cmd, filter) = ("true".to_owned(), filter.map(str::to_owned));
    let new =
        NewSubscription { consumer, handler_cmd, filter, cwd: None, options, from: None, replace: false };
    store.subscribe(&new).unwrap();
    let events = all.iter().map(|(_, key)| NewEvent::new("s", "record", key.map(Into::into), "x").unwrap());
    let events: Vec<_> = events.collect();
    store.append(&mut |put| put(&events).map(drop)).unwrap();
    let seen = store.subscription(&new.consumer).unwrap().unwrap();
    let ledger = (1..).zip(all).filter_map(|(id, (state, _))| change(id, *state, now)).collect();
    let update = RunUpdate { ledger, ..RunUpdate::state(seen.state.clone()) };
    let stored = store.update_run(&seen, &update).unwrap().unwrap();
    (store, Subscription { elsewhere: vec!["there".to_owned()], ..stored })
}

/// On every fourth event it cannot be evaluated.
const FAILING: &str = "id % 3 <> 0 AND abs(-9223372036854775807 - (id % 4 = 0)) > 0";

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn the_oldest_event_that_may_be_given_is_found(
        all in prop::collection::vec(one(), 1..24),
        ahead in prop_oneof![1..6_u64, Just(10_000)],
        (is_keyed, is_filtered, is_in_order, is_late, fails) in any::<(bool, bool, bool, bool, bool)>(),
    ) {
        let now = Utc::now();
        let options = Options {
            deliver: Deliver::Ndjson,
            batch_size: if is_in_order { 1 } else { 2 },
            key: is_keyed.then(|| "subtype".to_owned()),
            ahead,
            ..Options::default()
        };
        let is_in_order = options.is_in_order();
        let fails = is_filtered && fails;
        let filter = match (is_filtered, fails) {
            (false, _) => None,
            (true, false) => Some("id % 3 <> 0"),
            (true, true) => Some(FAILING),
        };
        let (mut store, consumer) = store(&all, options, filter, now);
        let is_failing = |id: i64| fails && id % 3 != 0 && id % 4 == 0;
        let matches = |id: i64| !is_filtered || (id % 3 != 0 && !is_failing(id));
        let unfinished: Vec<(i64, One)> = (1..)
            .zip(all.iter().copied())
            .filter(|(id, (state, _))| *state != State::Finished && matches(*id))
            .collect();
        let first = unfinished.first().map(|(id, _)| *id);

        // Those that are looked at: so many that do not sleep.
        let (mut looked, mut count) = (Vec::new(), 0);
        for one in &unfinished {
            if count == ahead {
                break;
            }
            looked.push(*one);
            count += u64::from(!matches!(one.1.0, State::Sleeps(_)));
        }
        let until = |state: State| match state {
            State::Waits(minutes) | State::Sleeps(minutes) if minutes > 0 => Some(minutes),
            _ => None,
        };
        let is_there = |state: State| state == State::Claimed { is_there: true };
        let is_stuck = |state: State| until(state).is_some() || is_there(state);
        let key = |(_, key): One| key.filter(|_| is_keyed);
        let is_held = |at: usize| {
            looked[..at].iter().any(|(_, before)| {
                is_stuck(before.0) && (key(*before).is_some() && key(*before) == key(looked[at].1))
            })
        };
        let waits_in_order = |at: usize| is_in_order && looked[..at].iter().any(|(_, one)| until(one.0).is_some());
        let next: Vec<usize> = (0..looked.len()).filter(|at| !is_held(*at) && !waits_in_order(*at)).collect();
        let free = next.iter().any(|at| !is_stuck(looked[*at].1.0));

        let deadline = is_late.then(Instant::now);
        let found = pending::scan(&mut store, &consumer, deadline, false).unwrap();
        prop_assert!(is_late || !found.cut_short);
        prop_assert_eq!(found.newest, all.len() as i64);
        let is_open = found.cut_short && found.first.is_none();
        prop_assert!(found.first == first || is_open, "{:?}, not {:?}", found, first);
        let failed: Vec<i64> = found.failures.iter().map(|failure| failure.id).collect();
        prop_assert!(failed.is_sorted_by(|one, next| one < next), "{:?}", failed);
        prop_assert!(failed.iter().all(|id| is_failing(*id) && *id <= found.newest), "{:?}", failed);
        // Those before the first one were all looked at, but for what is finished.
        let mut before = (1..first.unwrap_or(found.newest + 1)).zip(&all);
        let is_noted = |(id, (state, _)): (i64, &One)| {
            !is_failing(id) || *state == State::Finished || failed.contains(&id)
        };
        prop_assert!(is_open || before.all(is_noted), "{:?}", failed);
        // Each is recorded once.
        let again = pending::scan(&mut store, &consumer, None, true).unwrap();
        prop_assert!(is_late || again == found, "{:?}, not {:?}", again, found);
        let stored = store.subscription(&consumer.consumer).unwrap().unwrap();
        let recorded = again.failures.last().map_or(0, |failure| failure.id);
        prop_assert_eq!((stored.filter_errors, stored.filter_error_id), (again.failures.len() as i64, recorded));
        let stored = Subscription { elsewhere: consumer.elsewhere.clone(), ..stored };
        let then = pending::scan(&mut store, &stored, None, true).unwrap();
        prop_assert!(then.failures.is_empty() && then.first == first, "{:?}", then);
        if !found.cut_short {
            let wait = found.wait.map(|wait| (wait.until - now).num_minutes());
            let expected = next.iter().filter_map(|at| until(looked[*at].1.0)).min();
            prop_assert_eq!(wait, expected.filter(|_| !free));
            let elsewhere = next.iter().any(|at| is_there(looked[*at].1.0));
            prop_assert_eq!(found.is_elsewhere, elsewhere && !free);
            prop_assert!(!found.is_full || (wait.is_some() && count >= ahead));
        }
        if let Some(first) = first {
            let counted = pending::count(&mut store, &consumer, first, true, CountLimits::NONE, &mut |_| {});
            prop_assert_eq!(counted.unwrap().events, unfinished.len() as u64);
        }
    }
}

/// However many wait, what is past them is found, unless they are too many.
#[test]
fn what_is_past_many_that_wait_is_found() {
    let now = Utc::now();
    for (waiting, ahead, expected) in [(700, 10_000, None), (700, 700, Some(true)), (700, 701, None)] {
        let mut all = vec![(State::Waits(3), None); waiting];
        all.push((State::Free, None));
        let options = Options { deliver: Deliver::Ndjson, batch_size: 2, ahead, ..Options::default() };
        let (mut store, consumer) = store(&all, options, None, now);
        let found = pending::scan(&mut store, &consumer, None, false).unwrap();
        assert_eq!((found.wait.is_some(), found.is_full), (expected.is_some(), expected.is_some()));
        assert_eq!(found.first, Some(1));
    }
}

#[test]
fn a_deadline_ends_a_look_at_many_that_wait_but_not_before_the_first() {
    let now = Utc::now();
    let all = vec![(State::Waits(3), None); 700];
    for (filter, first, cut_short) in
        [(None, 1, true), (Some("id % 3 = 0"), 3, true), (None, 1, false), (Some("id % 3 = 0"), 3, false)]
    {
        let options =
            Options { deliver: Deliver::Ndjson, batch_size: 2, ahead: 10_000, ..Options::default() };
        let (mut store, consumer) = store(&all, options, filter, now);
        let until = cut_short.then(Instant::now);
        let mut found = pending::scan(&mut store, &consumer, until, false).unwrap();
        // Each look gets further, though its deadline is always over.
        let mut upto = 0;
        while found.first.is_none() && found.cut_short && upto < 10 {
            upto += 1;
            let later = Subscription { last_acked_id: upto, ..consumer.clone() };
            found = pending::scan(&mut store, &later, until, false).unwrap();
        }
        assert_eq!((found.first, found.cut_short), (Some(first), cut_short), "{filter:?}");
        assert!(!found.is_full && found.failures.is_empty());
    }
}

/// One on which the key fails has none, and holds nothing back.
#[test]
fn an_event_whose_key_cannot_be_evaluated_has_none() {
    let key =
        Filter::new_key("coalesce(subtype, abs(-9223372036854775807 - (id % 2 = 1)))").unwrap().unwrap();
    let all = [
        (State::Waits(3), None),
        (State::Waits(3), Some("a")),
        (State::Free, None),
        (State::Free, Some("a")),
    ];
    let (mut store, _) = store(&all, Options::default(), None, Utc::now());
    let (mut keys, mut failures) = (Vec::new(), Vec::new());
    store
        .read_capped(0, 4, 4, u64::MAX, &mut |capped| {
            keys.push(pending::key_of(&key, &capped.row, &mut failures).is_some());
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(keys, [false, true, false, true]);
    assert_eq!(failures.iter().map(|failure| failure.id).collect::<Vec<_>>(), [1, 3]);
    assert!(failures.iter().all(|failure| failure.message.contains("integer overflow")), "{failures:?}");
}

/// A look whose deadline is over ends after some events, and says so, but looks at what it has read.
#[test]
fn a_look_past_its_deadline_is_cut_short_unless_it_has_found_something() {
    let options = Options { deliver: Deliver::Ndjson, batch_size: 2, ..Options::default() };
    let until = Some(Instant::now());
    let mut all = vec![(State::Free, None); 700];
    all[0].0 = State::Sleeps(3);
    all[699].0 = State::Waits(3);
    for (filter, first, cut_short) in [("id = 700", None, true), ("id > 0", Some(1), false)] {
        let (mut store, consumer) = store(&all, options.clone(), Some(filter), Utc::now());
        let found = pending::scan(&mut store, &consumer, until, false).unwrap();
        assert_eq!((found.first, found.cut_short), (first, cut_short), "{filter}");
    }
}

/// Also by a look that records nothing.
#[test]
fn an_event_on_which_the_filter_failed_is_reported_once() {
    for state in [State::Free, State::Waits(3)] {
        let all = [(state, None); 8];
        let options = Options { deliver: Deliver::Ndjson, batch_size: 2, ..Options::default() };
        let (mut store, consumer) = store(&all, options, Some(FAILING), Utc::now());
        let consumer = consumer.consumer;
        // The next one is such an event.
        store.move_cursor(&consumer, 3, Move::Seek).unwrap();
        let seen = store.subscription(&consumer).unwrap().unwrap();
        let recorded = pending::scan(&mut store, &seen, None, true).unwrap();
        assert_eq!((recorded.first, recorded.failures[0].id), (Some(5), 4));
        // As if nothing were known of where it looked.
        let seen = store.subscription(&consumer).unwrap().unwrap();
        let again =
            pending::scan(&mut store, &Subscription { watermark: None, ..seen }, None, false).unwrap();
        assert_eq!((again.first, again.failures), (recorded.first, Vec::new()), "{state:?}");
    }
}
