//! The contract of any store, one test per claim. Each test gets an empty store.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use thread::error::{Error, Result};
use thread::model::closed::Closed;
use thread::model::event::{Defaults, Event, NewEvent};
use thread::model::figures::Figures;
use thread::model::filter::{Filter, Scope};
use thread::model::key::{IdempotencyKey, InvalidKey};
use thread::model::ledger::{Asleep, Claim, EventWait, Ledger, LedgerChange, Sleep, Taken};
use thread::model::rows::{TABLES, Table, Value, Values};
use thread::model::run::{Deliver, Exit, Options, Phase, RUNS_KEPT, Run, RunResult, RunState, Span, Task};
use thread::model::schedule::{CatchUp, Schedule, Timing};
use thread::model::scheduled::{Due, ScheduledId, Which};
use thread::model::step::{Kind, Step};
use thread::model::subscription::{ConsumerId, DeadLetter, NewSubscription, ScanWatermark, Subscription};
use thread::model::time::{self, Moment};
use thread::store::{
    Appended, DeadLetterUpdate, FilterFailure, GIVEN_AGAIN, Move, Moved, PruneRange, PruneStep, Pruned,
    RunUpdate, Scan, ScanRange, StepChange, StepsOf, Store, Stored,
};

use crate::wait_until;

/// Defines a test for each claim, on a store created by the given expression.
#[macro_export]
macro_rules! conformance {
    ($fresh:expr) => {
        $crate::conformance! { $fresh;
            ids_rise_from_one_and_outlive_their_events
            an_event_is_read_back_unchanged
            events_of_one_append_have_the_same_time
            copies_keep_their_times
            an_empty_append_stores_nothing
            a_long_append_keeps_the_order
            an_append_is_all_or_nothing
            a_repeated_key_returns_the_first_id_and_time
            a_different_event_under_a_key_is_refused_with_the_whole_append
            a_key_lasts_as_long_as_its_event
            an_event_is_found_by_its_key
            keys_of_the_programs_are_stored_and_no_user_can_choose_one
            reading_respects_range_limit_and_break
            texts_over_a_cap_are_left_out_and_their_length_returned
            content_is_read_in_pieces
            events_are_found_by_id_and_time_and_counted
            acknowledging_never_goes_back_but_seeking_does
            cursors_stop_at_the_newest_id_ever_given
            rewinds_are_counted
            what_is_acknowledged_is_counted
            a_subscription_is_read_back_unchanged
            a_name_can_be_subscribed_only_once
            replacing_keeps_cursor_dead_letters_pause_and_counts
            replacing_by_an_identical_subscription_changes_nothing
            unsubscribing_keeps_cursor_and_dead_letters_but_nothing_else
            subscriptions_are_listed_by_name
            a_scan_agrees_with_the_filter_event_by_event
            a_scan_of_parts_is_a_scan_of_the_whole
            a_scan_stops_after_enough_matches
            a_scan_past_its_deadline_keeps_its_progress
            a_watermark_is_kept_with_its_subscription
            a_watermark_extends_the_one_it_adjoins
            a_watermark_of_an_earlier_subscription_is_ignored
            failures_of_a_filter_are_counted_once
            a_run_update_applies_to_the_state_that_was_read
            a_run_update_is_refused_after_any_change
            a_run_update_moves_the_cursor_and_makes_a_dead_letter_in_one_step
            events_finish_singly
            the_clock_of_claims_goes_on
            a_ledger_is_cleared_by_seek_and_keeps_what_is_finished_otherwise
            a_ledger_outlives_other_ways_of_delivery_but_no_seek_and_no_replacement_its_waits
            the_last_thousand_runs_are_kept
            a_run_is_found_by_its_number_with_what_is_kept_of_its_output
            dead_letters_are_made_retried_and_removed
            dead_letters_are_retried_and_discarded_by_event_or_all_together
            a_dead_letter_needs_its_event
            a_scheduled_event_is_none_until_it_is_due
            scheduled_events_become_events_in_the_order_in_which_they_are_due
            a_scheduled_event_has_its_key_from_the_beginning
            a_cancelled_event_frees_its_key_and_never_comes
            an_append_of_scheduled_events_is_all_or_nothing
            a_schedule_changes_only_from_what_was_seen_and_with_its_events
            what_is_due_first_is_known
            pruning_deletes_a_range_and_no_more
            pruning_can_be_limited_to_a_subtype
            pruning_keeps_dead_letters_unless_they_are_included
            a_dry_run_counts_and_changes_nothing
            pruning_stops_if_a_consumer_wants_more
            pruning_gets_somewhere_even_without_time
            settings_are_kept_by_name
            a_step_is_read_back_unchanged
            a_step_changes_only_from_what_was_seen
            a_step_changes_together_with_a_run_or_not_at_all
            a_step_is_refused_to_a_claim_that_is_anothers
            sleeping_events_wait_in_the_ledger
            steps_are_forgotten_some_time_after_their_events_are_finished
            a_closed_store_can_only_be_read_and_a_rewrite_is_all_or_nothing
            rows_are_read_in_pages_by_their_keys_and_put_as_they_are
        }
    };
    ($fresh:expr; $($claim:ident)*) => {
        $(#[test]
        fn $claim() {
            let mut fresh = $fresh;
            $crate::store::conformance::$claim(&mut *fresh.store);
        })*
    };
}

// Helpers.

pub fn message(content: &str) -> NewEvent<'_> {
    NewEvent::message("self", content).unwrap()
}

pub fn with_key<'e>(event: &NewEvent<'e>, key: &'e str) -> NewEvent<'e> {
    event.clone().with_key(key).unwrap()
}

/// Stores events in one append.
pub fn append(store: &mut dyn Store, events: &[NewEvent<'_>]) -> Result<Appended> {
    store.append(&mut |put| put(events).map(drop))
}

pub fn put(store: &mut dyn Store, event: &NewEvent<'_>) -> Result<Stored> {
    let mut stored = None;
    store.append(&mut |put| {
        stored = put(std::slice::from_ref(event))?.pop();
        Ok(())
    })?;
    Ok(stored.unwrap())
}

/// Stores `count` events, one per append.
pub fn fill(store: &mut dyn Store, count: usize) {
    for _ in 0..count {
        put(store, &message("x")).unwrap();
    }
}

pub fn events(store: &mut dyn Store) -> Vec<Event> {
    let mut events = Vec::new();
    store
        .read(0, i64::MAX, usize::MAX, &mut |row| {
            events.push(row.to_event());
            ControlFlow::Continue(())
        })
        .unwrap();
    events
}

fn ids(store: &mut dyn Store) -> Vec<i64> {
    events(store).iter().map(|event| event.id).collect()
}

pub fn name(text: &str) -> ConsumerId {
    ConsumerId::new(text).unwrap()
}

pub fn new_subscription(consumer: &str) -> NewSubscription {
    NewSubscription {
        consumer: name(consumer),
        handler_cmd: "true".to_owned(),
        filter: None,
        cwd: None,
        options: Options::default(),
        from: None,
        replace: false,
    }
}

fn subscribe(store: &mut dyn Store, consumer: &str) -> Subscription {
    store.subscribe(&new_subscription(consumer)).unwrap();
    get(store, consumer)
}

fn subscribe_with_filter(store: &mut dyn Store, consumer: &str, filter: &str) -> Subscription {
    store
        .subscribe(&NewSubscription { filter: Some(filter.to_owned()), ..new_subscription(consumer) })
        .unwrap();
    get(store, consumer)
}

fn get(store: &mut dyn Store, consumer: &str) -> Subscription {
    store.subscription(&name(consumer)).unwrap().unwrap()
}

fn seek(store: &mut dyn Store, consumer: &str, id: i64) {
    store.move_cursor(&name(consumer), id, Move::Seek).unwrap();
}

/// A change of a store: its description, and a function that performs it.
type Change<'c> = (&'c str, &'c dyn Fn(&mut dyn Store));

/// All observable content of a store, but its settings.
pub fn everything(store: &mut dyn Store) -> (i64, Vec<Event>, Vec<Subscription>, Vec<DeadLetter>) {
    (
        store.newest().unwrap(),
        events(store),
        store.subscriptions().unwrap(),
        store.dead_letters(None).unwrap(),
    )
}

pub fn filter(text: &str) -> Filter {
    Filter::new(text, Scope::Subscription).unwrap().unwrap()
}

pub fn all_of(store: &mut dyn Store) -> ScanRange {
    ScanRange { after: 0, upto: store.newest().unwrap(), most: usize::MAX, until: None }
}

pub fn noon() -> time::Time {
    time::parse("2026-03-18T12:00:00.000Z").unwrap()
}

fn running(attempts: u32) -> RunState {
    RunState { phase: Phase::Running, attempts, since: Some(noon()), ..RunState::default() }
}

fn insert(event_id: i64) -> DeadLetterUpdate {
    DeadLetterUpdate::Insert { event_id, attempts: 5, exit: Exit::Code(1), error: "no".into(), at: noon() }
}

/// Makes an event a dead letter, as the end of a run does.
fn make_dead(store: &mut dyn Store, consumer: &str, event_id: i64) {
    change_dead(store, consumer, insert(event_id));
}

fn change_dead(store: &mut dyn Store, consumer: &str, change: DeadLetterUpdate) {
    let seen = get(store, consumer);
    let update = RunUpdate { dead_letters: vec![change], ..RunUpdate::state(seen.state.clone()) };
    assert!(store.update_run(&seen, &update).unwrap().is_some());
}

pub const EVERYTHING: PruneRange<'static> = PruneRange {
    after: 0,
    upto: i64::MAX,
    subtype: None,
    dead_letters: true,
    seen: None,
    dry_run: false,
    time: Duration::from_millis(40),
};

/// Prunes in steps to the end of the range; `None` if a consumer may have more pending.
pub fn prune(store: &mut dyn Store, range: PruneRange<'_>) -> Option<Pruned> {
    let (mut pruned, mut after) = (Pruned::default(), range.after);
    loop {
        match store.prune(&PruneRange { after, ..range }).unwrap() {
            PruneStep::Overtaken => return None,
            PruneStep::Upto(upto, step) => {
                pruned += step;
                if upto >= range.upto {
                    return Some(pruned);
                }
                assert!(upto > after, "a step of pruning gets somewhere");
                after = upto;
            }
        }
    }
}

// Events.

pub fn ids_rise_from_one_and_outlive_their_events(store: &mut dyn Store) {
    assert_eq!(store.newest().unwrap(), 0);
    let appended = append(store, &[message("a"), message("b")]).unwrap();
    assert_eq!((appended.count, appended.first_id, appended.last_id), (2, Some(1), Some(2)));
    assert_eq!(put(store, &message("c")).unwrap(), Stored::New(3));
    prune(store, EVERYTHING).unwrap();
    assert_eq!((store.newest().unwrap(), ids(store)), (3, vec![]));
    assert_eq!(put(store, &message("d")).unwrap(), Stored::New(4));
    assert_eq!(ids(store), [4]);
}

pub fn an_event_is_read_back_unchanged(store: &mut dyn Store) {
    let long = "é".repeat(700_000);
    let sent = [
        NewEvent::new("external:irc:a:dm:b:c", "message", None, "hello").unwrap(),
        NewEvent::new("self", "record", Some("toolcall".into()), "").unwrap(),
        NewEvent::new("s", "record", Some("".into()), "nul\0, \r\n, ☃ and \u{10ffff}").unwrap(),
        message(&long).with_metadata(r#"{ "n": 1.10, "deep": {"k": [1, " "]} }"#).unwrap(),
    ];
    let appended = append(store, &sent).unwrap();
    let stored = events(store);
    for ((id, sent), stored) in (1..).zip(&sent).zip(&stored) {
        assert_eq!(*stored, sent.row(id, &appended.created_at).to_event());
        assert!(sent.is_same(stored));
    }
    assert_eq!(stored.len(), sent.len());
    assert_eq!(stored[3].metadata.as_deref(), Some(r#"{"n":1.10,"deep":{"k":[1," "]}}"#));
}

pub fn events_of_one_append_have_the_same_time(store: &mut dyn Store) {
    let before = time::now();
    let appended = append(store, &[message("a"), message("b")]).unwrap();
    assert!(before <= appended.created_at && appended.created_at <= time::now());
    assert_eq!(time::format(time::parse(&appended.created_at).unwrap()), appended.created_at);
    assert!(events(store).iter().all(|event| event.created_at == appended.created_at));
}

pub fn copies_keep_their_times(store: &mut dyn Store) {
    // More than are stored at once, with and without keys.
    let time = |n: usize| format!("2020-01-01T00:00:{n:02}.000Z");
    let contents: Vec<String> = (0..40).map(|n| n.to_string()).collect();
    let copy = |n: usize| {
        let copy = NewEvent { created_at: Some(time(n).into()), ..message(&contents[n]) };
        if n.is_multiple_of(7) { with_key(&copy, &contents[n]) } else { copy }
    };
    let copies: Vec<NewEvent<'_>> = (0..40).map(copy).collect();
    append(store, &copies).unwrap();
    let appended = append(store, &[message("new")]).unwrap();
    let times: Vec<String> = events(store).into_iter().map(|event| event.created_at).collect();
    let expected: Vec<String> = (0..40).map(time).chain([appended.created_at]).collect();
    assert_eq!(times, expected);
    assert_eq!(store.first_since(&time(20)).unwrap(), Some(21));
    let again = put(store, &copy(7)).unwrap();
    assert_eq!(again, Stored::Repeated { id: 8, created_at: time(7) });
}

pub fn an_empty_append_stores_nothing(store: &mut dyn Store) {
    let appended = append(store, &[]).unwrap();
    assert_eq!((appended.count, appended.first_id, appended.last_id), (0, None, None));
    assert_eq!((store.newest().unwrap(), ids(store)), (0, vec![]));
}

pub fn a_long_append_keeps_the_order(store: &mut dyn Store) {
    fill(store, 5);
    prune(store, EVERYTHING).unwrap();
    // Every fortieth event has a key and is put twice: in immediate succession, and again later.
    let keyed = |n: i64| NewEvent::message("self", n.to_string()).unwrap().with_key(format!("k{n}")).unwrap();
    let mut put_as: Vec<(NewEvent<'_>, i64)> = Vec::new();
    for n in 6..=505 {
        if n % 40 == 0 {
            let again = [n, n, n - 80].into_iter().filter(|again| *again > 5);
            put_as.extend(again.map(|again| (keyed(again), again)));
        } else {
            put_as.push((NewEvent::message("self", n.to_string()).unwrap(), n));
        }
    }
    let appended = store
        .append(&mut |put| {
            let mut rest = &put_as[..];
            for many in [1, 15, 16, 17, 31, 1, 200, usize::MAX] {
                let (some, later) = rest.split_at(many.min(rest.len()));
                rest = later;
                let (events, ids): (Vec<_>, Vec<_>) = some.iter().cloned().unzip();
                let id_of = |stored: &Stored| match *stored {
                    Stored::New(id) | Stored::Repeated { id, .. } => id,
                    Stored::Scheduled { .. } => unreachable!(),
                };
                assert_eq!(put(&events)?.iter().map(id_of).collect::<Vec<_>>(), ids);
            }
            Ok(())
        })
        .unwrap();
    assert_eq!((appended.count, appended.first_id, appended.last_id), (500, Some(6), Some(505)));
    let stored = events(store);
    assert_eq!(stored.len(), 500);
    assert!(stored.iter().all(|event| event.content == event.id.to_string()));
    // An event that fails refuses the whole append.
    let refused = store.append(&mut |put| {
        let mut more = vec![message("x"); 50];
        more.push(with_key(&message("different"), "k80"));
        put(&more).map(drop)
    });
    assert!(matches!(refused, Err(Error::KeyConflict { id: 80, .. })));
    assert_eq!((store.newest().unwrap(), events(store)), (505, stored));
}

pub fn an_append_is_all_or_nothing(store: &mut dyn Store) {
    fill(store, 1);
    let before = everything(store);
    let refused = store.append(&mut |put| {
        assert_eq!(put(&[message("a")])?, [Stored::New(2)]);
        assert_eq!(put(&[with_key(&message("b"), "k")])?, [Stored::New(3)]);
        Err(Error::Other("enough".into()))
    });
    assert_eq!(refused.unwrap_err().to_string(), "enough");
    assert_eq!(everything(store), before);
    // Its key is still free.
    let id = before.0 + 1;
    assert_eq!(put(store, &with_key(&message("c"), "k")).unwrap(), Stored::New(id));
    assert_eq!(ids(store), [1, id]);
}

pub fn a_repeated_key_returns_the_first_id_and_time(store: &mut dyn Store) {
    let event = with_key(&message("a"), "k").with_metadata(r#"{"n": 1}"#).unwrap();
    let first = append(store, std::slice::from_ref(&event)).unwrap();
    fill(store, 1);
    let before = everything(store);
    let again = put(store, &event).unwrap();
    assert_eq!(again, Stored::Repeated { id: 1, created_at: first.created_at });
    let again = append(store, &[event.clone(), event.clone()]).unwrap();
    assert_eq!((again.count, again.first_id, again.last_id), (0, None, None));
    assert_eq!(everything(store), before);
    // Also within one append, and together with new events.
    let other = with_key(&message("b"), "l");
    let mixed = append(store, &[event, other.clone(), other, message("c")]).unwrap();
    assert_eq!((mixed.count, mixed.first_id, mixed.last_id), (2, Some(3), Some(4)));
}

pub fn a_different_event_under_a_key_is_refused_with_the_whole_append(store: &mut dyn Store) {
    let plain = NewEvent::new("s", "record", Some("t".into()), "c").unwrap();
    let first = plain.clone().with_metadata(r#"{"n":1}"#).unwrap();
    put(store, &with_key(&first, "k")).unwrap();
    let before = everything(store);
    let different = [
        NewEvent { source: "S".into(), ..first.clone() },
        NewEvent { kind: thread::model::event::Type::Message, ..first.clone() },
        NewEvent { subtype: None, ..first.clone() },
        NewEvent { subtype: Some("".into()), ..first.clone() },
        NewEvent { content: "c ".into(), ..first.clone() },
        // The same number, but a different text.
        plain.clone().with_metadata(r#"{"n":1.0}"#).unwrap(),
        plain,
    ];
    for event in different {
        let refused = append(store, &[message("beside"), with_key(&event, "k"), message("after")]);
        assert!(matches!(refused, Err(Error::KeyConflict { key, id: 1 }) if key == "k"), "{event:?}");
        assert_eq!(everything(store), before);
    }
    assert!(matches!(put(store, &with_key(&first, "k")).unwrap(), Stored::Repeated { id: 1, .. }));
}

pub fn a_key_lasts_as_long_as_its_event(store: &mut dyn Store) {
    put(store, &with_key(&message("a"), "k")).unwrap();
    put(store, &with_key(&message("b"), "l")).unwrap();
    prune(store, PruneRange { upto: 1, ..EVERYTHING }).unwrap();
    assert_eq!(put(store, &with_key(&message("other"), "k")).unwrap(), Stored::New(3));
    assert!(matches!(put(store, &with_key(&message("b"), "l")).unwrap(), Stored::Repeated { id: 2, .. }));
}

pub fn an_event_is_found_by_its_key(store: &mut dyn Store) {
    put(store, &message("a")).unwrap();
    put(store, &with_key(&message("b"), "k")).unwrap();
    assert_eq!((store.id_of_key("k").unwrap(), store.id_of_key("l").unwrap()), (Some(2), None));
    prune(store, PruneRange { upto: 2, ..EVERYTHING }).unwrap();
    assert_eq!(store.id_of_key("k").unwrap(), None);
}

pub fn keys_of_the_programs_are_stored_and_no_user_can_choose_one(store: &mut dyn Store) {
    put(store, &with_key(&message("a user's"), "end:5")).unwrap();
    let own = message("a program's").keyed(IdempotencyKey::of_event("end", 5));
    assert_eq!(put(store, &own).unwrap(), Stored::New(2));
    assert!(matches!(put(store, &own).unwrap(), Stored::Repeated { id: 2, .. }));
    let other = message("another").keyed(IdempotencyKey::of_event("end", 5));
    let refused = put(store, &other);
    assert!(matches!(refused, Err(Error::KeyConflict { key, id: 2 }) if key == "thread:end:5"));
    let before = everything(store);
    for key in ["thread:end:5", "thread:end:6", "thread:result:c", "thread:"] {
        let chosen = message("a user's").with_key(key);
        assert_eq!(chosen, Err(InvalidKey::Reserved(key.to_owned())));
        let line = format!(r#"{{"source":"s","type":"message","content":"x","idempotency_key":"{key}"}}"#);
        let defaults = Defaults::default();
        assert!(NewEvent::from_json(line.as_bytes(), &defaults, &mut |_| ()).is_err());
    }
    assert_eq!(everything(store), before);
    let ids = ["end:5", "thread:end:5", "thread:end:6"].map(|key| store.id_of_key(key).unwrap());
    assert_eq!(ids, [Some(1), Some(2), None]);
}

pub fn reading_respects_range_limit_and_break(store: &mut dyn Store) {
    fill(store, 6);
    prune(store, PruneRange { after: 2, upto: 3, ..EVERYTHING }).unwrap();
    let mut read = |after, upto, limit, stop_after| {
        let mut ids = Vec::new();
        store
            .read(after, upto, limit, &mut |row| {
                ids.push(row.id);
                if ids.len() == stop_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
        ids
    };
    const ALL: usize = usize::MAX;
    assert_eq!(read(0, i64::MAX, ALL, 0), [1, 2, 4, 5, 6]);
    assert_eq!(read(1, 5, ALL, 0), [2, 4, 5]);
    assert_eq!(read(2, i64::MAX, 2, 0), [4, 5]);
    assert_eq!(read(0, i64::MAX, ALL, 3), [1, 2, 4]);
    for nothing in [read(6, i64::MAX, ALL, 0), read(2, 3, ALL, 0), read(5, 1, ALL, 0), read(0, 9, 0, 0)] {
        assert!(nothing.is_empty(), "{nothing:?}");
    }
}

pub fn texts_over_a_cap_are_left_out_and_their_length_returned(store: &mut dyn Store) {
    let object = format!(r#"{{"k":"{}"}}"#, "m".repeat(92));
    let long = "é".repeat(51);
    let sent = [
        message(&long[..100]),
        message(&long).with_metadata(r#"{"k":1}"#).unwrap(),
        message("short").with_metadata(&object).unwrap(),
        NewEvent::new("s".repeat(101), "record", Some(Cow::from("t".repeat(101))), "").unwrap(),
    ];
    append(store, &sent).unwrap();
    let whole = events(store);
    let mut read = Vec::new();
    store
        .read_capped(0, i64::MAX, usize::MAX, 100, &mut |capped| {
            read.push((capped.row.to_event(), capped.content_len, capped.metadata_len, capped.is_whole()));
            ControlFlow::Continue(())
        })
        .unwrap();
    let cut = |event: &Event| Event { content: String::new(), ..event.clone() };
    assert_eq!(read[0], (whole[0].clone(), 100, 0, true));
    assert_eq!(read[1], (cut(&whole[1]), 102, 7, false));
    assert_eq!(object.len(), 100);
    assert_eq!(read[2], (whole[2].clone(), 5, 100, true));
    let unnamed = Event { source: String::new(), subtype: None, ..whole[3].clone() };
    assert_eq!(read[3], (unnamed, 0, 0, true));
    // A shorter cap leaves out the metadata too.
    let mut metadata = None;
    store
        .read_capped(2, 3, 1, 99, &mut |capped| {
            metadata = Some((capped.row.metadata.map(<[u8]>::len), capped.metadata_len, capped.is_whole()));
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(metadata, Some((Some(0), 100, false)));
}

pub fn content_is_read_in_pieces(store: &mut dyn Store) {
    // Longer than one page of SQLite's.
    let content: String = (0..3000).map(|n| format!("{n},")).collect();
    append(store, &[message("a"), message(&content), message("")]).unwrap();
    for (offset, most) in [(0, 10), (7, 0), (5000, 1), (4000, 9000), (0, usize::MAX), (13_889, 5)] {
        let rest = &content.as_bytes()[content.len().min(offset)..];
        let piece = store.read_content(2, offset as u64, most).unwrap().unwrap();
        assert!(piece == rest[..rest.len().min(most)], "{offset}, {most}: {} bytes", piece.len());
    }
    for past in [content.len() as u64, u64::MAX] {
        assert_eq!(store.read_content(2, past, 10).unwrap().as_deref(), Some(&b""[..]));
    }
    assert_eq!(store.read_content(3, 0, 10).unwrap().as_deref(), Some(&b""[..]));
    for none in [0, 4, -1, i64::MAX, i64::MIN] {
        assert_eq!(store.read_content(none, 0, 10).unwrap(), None);
    }
}

pub fn events_are_found_by_id_and_time_and_counted(store: &mut dyn Store) {
    assert_eq!((store.first_after(0).unwrap(), store.count(0, i64::MAX).unwrap()), (None, 0));
    assert_eq!(store.first_since("").unwrap(), None);
    fill(store, 2);
    // Wait for the clock to advance; otherwise the next event may have the same time.
    let second = events(store)[1].created_at.clone();
    while time::now() == second {
        std::hint::spin_loop();
    }
    fill(store, 3);
    prune(store, PruneRange { after: 2, upto: 3, ..EVERYTHING }).unwrap();
    let stored = events(store);
    assert_eq!(store.newest().unwrap(), 5);
    let found =
        [0, 1, 2, 3, 4, 5, 9].map(|id| (store.first_after(id).unwrap(), store.count(id, i64::MAX).unwrap()));
    let expected =
        [(Some(1), 4), (Some(2), 3), (Some(4), 2), (Some(4), 2), (Some(5), 1), (None, 0), (None, 0)];
    assert_eq!(found, expected);
    assert_eq!(store.first_since(&stored[0].created_at).unwrap(), Some(1));
    assert_eq!(store.first_since(&stored[2].created_at).unwrap(), Some(4));
    assert_eq!(store.first_since("2026").unwrap(), Some(1));
    assert_eq!(store.first_since("9999-01-01T00:00:00.000Z").unwrap(), None);
}

// Cursors and subscriptions.

pub fn acknowledging_never_goes_back_but_seeking_does(store: &mut dyn Store) {
    fill(store, 9);
    let fresh = subscribe(store, "c");
    assert_eq!((fresh.last_acked_id, fresh.updated_at), (0, None));
    let moves = [
        (Move::Acknowledge, 4, Moved::To(4)),
        (Move::Acknowledge, 4, Moved::To(4)),
        (Move::Acknowledge, 2, Moved::Ahead(4)),
        (Move::Acknowledge, 0, Moved::Ahead(4)),
        (Move::Seek, 2, Moved::To(2)),
        (Move::Seek, 7, Moved::To(7)),
        (Move::Seek, 0, Moved::To(0)),
    ];
    for (how, id, expected) in moves {
        let moved = store.move_cursor(&name("c"), id, how).unwrap();
        assert_eq!(moved, expected);
        let stored = get(store, "c");
        assert_eq!(stored.last_acked_id, moved.position());
        assert!(time::parse(&stored.updated_at.unwrap()).is_some());
    }
    for how in [Move::Acknowledge, Move::Seek] {
        let unknown = store.move_cursor(&name("other"), 1, how);
        assert!(matches!(unknown, Err(Error::UnknownConsumer(other)) if other == name("other")));
    }
    assert_eq!(store.subscription(&name("other")).unwrap(), None);
}

pub fn cursors_stop_at_the_newest_id_ever_given(store: &mut dyn Store) {
    subscribe(store, "c");
    assert_eq!(store.move_cursor(&name("c"), 3, Move::Acknowledge).unwrap(), Moved::Clamped(0));
    fill(store, 4);
    prune(store, EVERYTHING).unwrap();
    for how in [Move::Acknowledge, Move::Seek, Move::Acknowledge] {
        assert_eq!(store.move_cursor(&name("c"), i64::MAX, how).unwrap(), Moved::Clamped(4));
        assert_eq!(get(store, "c").last_acked_id, 4);
    }
    assert_eq!(store.move_cursor(&name("c"), 4, Move::Acknowledge).unwrap(), Moved::To(4));
    let far = NewSubscription { from: Some(9), ..new_subscription("d") };
    assert_eq!(store.subscribe(&far).unwrap(), Some(Moved::Clamped(4)));
}

pub fn rewinds_are_counted(store: &mut dyn Store) {
    fill(store, 9);
    subscribe(store, "c");
    for (how, id, rewinds) in [
        (Move::Seek, 6, 0),
        (Move::Seek, 6, 0),
        (Move::Acknowledge, 3, 0),
        (Move::Seek, 5, 1),
        (Move::Acknowledge, 9, 1),
        (Move::Seek, 0, 2),
    ] {
        store.move_cursor(&name("c"), id, how).unwrap();
        assert_eq!(get(store, "c").rewinds, rewinds, "{how:?} to {id}");
    }
}

pub fn what_is_acknowledged_is_counted(store: &mut dyn Store) {
    fill(store, 10);
    subscribe(store, "c");
    assert!(store.acknowledge(&name("d"), 1, None).is_err());
    let steps: [(i64, Option<&[i64]>, Moved); 5] = [
        (4, None, Moved::To(4)),
        (4, None, Moved::To(4)),
        (2, None, Moved::Ahead(4)),
        (9, Some(&[3, 5, 9]), Moved::To(9)),
        (99, None, Moved::Clamped(10)),
    ];
    for (id, matching, moved) in steps {
        assert_eq!(store.acknowledge(&name("c"), id, matching).unwrap(), moved);
    }
    // Other ways to move a cursor handle nothing.
    store.move_cursor(&name("c"), 1, Move::Seek).unwrap();
    store.move_cursor(&name("c"), 8, Move::Acknowledge).unwrap();
    let counted = store.figures(0).unwrap();
    assert_eq!(counted.iter().map(|one| one.figures.handled).sum::<u64>(), 4 + 2 + 1);
    assert!(counted.iter().all(|one| one.consumer == Some(name("c"))) && store.has_figures().unwrap());
    assert_eq!(store.figures(i64::MAX).unwrap(), []);
}

pub fn a_subscription_is_read_back_unchanged(store: &mut dyn Store) {
    use std::os::unix::ffi::OsStrExt;
    fill(store, 3);
    let options = Options {
        deliver: Deliver::Stdin,
        batch_size: 7,
        max_attempts: 2,
        stall_after: None,
        probe: Some(Duration::from_secs(7)),
        idle: Duration::from_secs(8),
        backoff: vec![Duration::from_millis(1), Duration::from_secs(90)],
        timeout: Some(Duration::from_millis(1500)),
        env: [("KEY".to_owned(), "=".to_owned())].into(),
        clear_env: true,
        no_handler: true,
        concurrency: None,
        key: Some("content ->> '$.key'".to_owned()),
        ahead: 77,
    };
    let not_text = std::path::Path::new(std::ffi::OsStr::from_bytes(b"/tmp/\xff"));
    let new = NewSubscription {
        consumer: name("c"),
        handler_cmd: "echo 'é\n'".to_owned(),
        filter: Some("type = 'message' -- mine".to_owned()),
        cwd: Some(not_text.to_owned()),
        options,
        from: Some(2),
        replace: false,
    };
    assert_eq!(store.subscribe(&new).unwrap(), Some(Moved::To(2)));
    let stored = get(store, "c");
    assert_eq!(stored.consumer, new.consumer);
    assert_eq!((&stored.handler_cmd, &stored.filter), (&new.handler_cmd, &new.filter));
    assert_eq!((&stored.cwd, &stored.options), (&new.cwd, &new.options));
    assert_eq!((stored.last_acked_id, stored.rewinds, stored.revision), (2, 0, 0));
    assert_eq!((&stored.state, &stored.watermark), (&RunState::default(), &None));
    assert_eq!((stored.filter_errors, stored.dead, stored.dead_to_retry), (0, 0, 0));
    let cwd = Some("/home/u".into());
    store.subscribe(&NewSubscription { cwd, filter: Some(" \n".into()), ..new_subscription("d") }).unwrap();
    let stored = get(store, "d");
    assert_eq!(stored.cwd.as_deref(), Some("/home/u".as_ref()));
    assert_eq!((stored.filter.as_deref(), stored.filter_text()), (Some(" \n"), None));
}

pub fn a_name_can_be_subscribed_only_once(store: &mut dyn Store) {
    fill(store, 3);
    subscribe(store, "c");
    let before = everything(store);
    let again = NewSubscription {
        handler_cmd: "false".into(),
        filter: Some("1".into()),
        from: Some(2),
        ..new_subscription("c")
    };
    assert!(matches!(store.subscribe(&again), Err(Error::AlreadySubscribed(c)) if c == name("c")));
    assert_eq!(everything(store), before);
    let unknown = store.unsubscribe(&name("d"));
    assert!(matches!(unknown, Err(Error::UnknownConsumer(d)) if d == name("d")));
    assert_eq!(everything(store), before);
}

pub fn replacing_keeps_cursor_dead_letters_pause_and_counts(store: &mut dyn Store) {
    fill(store, 6);
    subscribe_with_filter(store, "c", "id > 5");
    seek(store, "c", 5);
    seek(store, "c", 3);
    make_dead(store, "c", 2);
    let seen = get(store, "c");
    let state = RunState { paused: true, succeeded: 4, failed: 2, dead_lettered: 1, ..running(2) };
    store.update_run(&seen, &RunUpdate::state(state)).unwrap().unwrap();
    let seen = get(store, "c");
    store.remember_scan(&seen, 4, &[FilterFailure { id: 4, message: "no".into() }]).unwrap();
    let last = get(store, "c");
    let other = Options { deliver: Deliver::Stdin, ..Options::default() };
    let new = NewSubscription {
        handler_cmd: "false".into(),
        options: other.clone(),
        replace: true,
        ..new_subscription("c")
    };
    assert_eq!(store.subscribe(&new).unwrap(), None);
    let again = get(store, "c");
    assert!(!again.is_same(&last) && again.token != last.token);
    let fresh = Subscription {
        handler_cmd: "false".into(),
        filter: None,
        options: other,
        token: again.token.clone(),
        revision: 0,
        rewinds: 0,
        watermark: None,
        filter_errors: 0,
        filter_error_id: 0,
        state: RunState { paused: true, succeeded: 4, failed: 2, dead_lettered: 1, ..RunState::default() },
        ..last.clone()
    };
    assert_eq!(again, fresh);
    assert_eq!((again.last_acked_id, again.dead), (3, 1));
    assert_eq!(store.update_run(&last, &RunUpdate::state(RunState::default())).unwrap(), None);
    // If the name is not subscribed, `replace` just subscribes.
    let new = NewSubscription { from: Some(5), replace: true, ..new_subscription("d") };
    assert_eq!(store.subscribe(&new).unwrap(), Some(Moved::To(5)));
    assert_eq!(get(store, "d").handler_cmd, "true");
}

pub fn replacing_by_an_identical_subscription_changes_nothing(store: &mut dyn Store) {
    fill(store, 6);
    subscribe_with_filter(store, "c", " ");
    seek(store, "c", 5);
    let seen = get(store, "c");
    store.update_run(&seen, &RunUpdate::state(running(2))).unwrap().unwrap();
    let before = everything(store);
    let same = NewSubscription { replace: true, ..new_subscription("c") };
    assert_eq!(store.subscribe(&same).unwrap(), None);
    assert_eq!(everything(store), before);
    // Except the cursor, if `from` is given.
    let back = NewSubscription { from: Some(1), ..same };
    assert_eq!(store.subscribe(&back).unwrap(), Some(Moved::To(1)));
    let now = get(store, "c");
    assert_eq!((now.last_acked_id, now.token, now.state), (1, seen.token, running(2)));
}

pub fn unsubscribing_keeps_cursor_and_dead_letters_but_nothing_else(store: &mut dyn Store) {
    fill(store, 6);
    subscribe_with_filter(store, "c", "id > 5");
    seek(store, "c", 5);
    seek(store, "c", 3);
    make_dead(store, "c", 2);
    let seen = get(store, "c");
    store.update_run(&seen, &RunUpdate::state(running(2))).unwrap().unwrap();
    let seen = get(store, "c");
    store.remember_scan(&seen, 4, &[FilterFailure { id: 4, message: "no".into() }]).unwrap();
    let last = get(store, "c");
    assert_eq!(store.unsubscribe(&name("c")).unwrap(), last);
    assert_eq!(store.subscription(&name("c")).unwrap(), None);
    assert_eq!(store.subscriptions().unwrap(), []);
    assert_eq!(store.dead_letters(Some(&name("c"))).unwrap().len(), 1);

    let again = subscribe(store, "c");
    assert_ne!(again.token, last.token);
    assert!(!again.token.is_empty() && !again.is_same(&last));
    let fresh = Subscription {
        filter: None,
        token: again.token.clone(),
        revision: 0,
        rewinds: 0,
        watermark: None,
        filter_errors: 0,
        filter_error_id: 0,
        state: RunState::default(),
        ..last
    };
    assert_eq!(again, fresh);
    assert_eq!((again.last_acked_id, again.dead), (3, 1));
    store.unsubscribe(&name("c")).unwrap();
    // A `from` before the stored cursor counts as a rewind.
    let back = NewSubscription { from: Some(1), ..new_subscription("c") };
    assert_eq!(store.subscribe(&back).unwrap(), Some(Moved::To(1)));
    assert_eq!((get(store, "c").last_acked_id, get(store, "c").rewinds), (1, 1));
}

pub fn subscriptions_are_listed_by_name(store: &mut dyn Store) {
    assert_eq!(store.subscriptions().unwrap(), []);
    for consumer in ["b", "a", "B", "a.b", "a-b"] {
        subscribe(store, consumer);
    }
    let listed = store.subscriptions().unwrap();
    let names: Vec<&str> = listed.iter().map(|subscription| subscription.consumer.as_str()).collect();
    assert_eq!(names, ["B", "a", "a-b", "a.b", "b"]);
    for subscription in listed {
        assert_eq!(store.subscription(&subscription.consumer).unwrap(), Some(subscription));
    }
}

// Filters.

/// Filters that fail on some of [`fill_for_filters`], and some that do not.
pub const FILTERS: &[&str] = &[
    "1",
    "NULL",
    "type = 'message'",
    "subtype IS NULL AND source = 'self'",
    "subtype",
    "id % 3 = 1",
    "id = '4'",
    "content = 5",
    "content > 5",
    "content ->> '$.n' > 1",
    "json_extract(content, '$.n') BETWEEN 1 AND 5",
    "id < 4 OR content ->> '$.n' = 2",
    "content ->> '$.n' = 2 AND id > 4",
    "NOT json_valid(content) OR content ->> '$.n' = 2",
    "metadata ->> 'run_id' = 'r1' -- mine",
    "metadata IS NOT NULL",
    "source LIKE content",
    "source GLOB content",
    "instr(content, source) > 0",
    "instr(source, content) > 0",
    "length(content || content) > 8",
    "octet_length(content) > 1000",
    "lower(content) LIKE '%é%'",
    "source LIKE 'internal:%:b' COLLATE NOCASE",
    "created_at >= '2026' AND length(created_at) = 24",
];

/// Events on which filters differ or fail.
pub fn fill_for_filters(store: &mut dyn Store) {
    let (large, middle, long) = ("x".repeat(1_100_000), "y".repeat(600_000), "self".repeat(100));
    let contents = [
        "5",
        "not JSON",
        r#"{"n":2}"#,
        r#"{"n":"2"}"#,
        "",
        "[1",
        "05",
        "5.0",
        "☃é",
        "SELF",
        "%",
        "*",
        r#"{"n":null}"#,
        "a\0b",
        &large,
        &middle,
        &long,
        r#"{"n":3}"#,
        "-1e400",
    ];
    let sources = ["self", "internal:dm:a:b", "external:irc:x:dm:y:5"];
    let subtypes = [None, Some("1"), Some("decision"), Some("0.0")];
    for (n, content) in contents.iter().enumerate() {
        let kind = if n % 2 == 0 { "message" } else { "record" };
        let subtype = subtypes[n % subtypes.len()].map(Into::into);
        let event = NewEvent::new(sources[n % sources.len()], kind, subtype, *content).unwrap();
        let event = match n % 5 {
            1 => event.with_metadata(r#"{"run_id":"r1"}"#).unwrap(),
            2 => event.with_metadata("{}").unwrap(),
            _ => event,
        };
        put(store, &event).unwrap();
        if n == 7 {
            // Leaves a gap in the ids.
            let newest = store.newest().unwrap();
            prune(store, PruneRange { after: newest - 1, upto: newest, ..EVERYTHING }).unwrap();
        }
    }
}

fn asked_one_by_one(store: &mut dyn Store, filter: &Filter) -> Scan {
    let mut scan = Scan { upto: store.newest().unwrap(), ..Scan::default() };
    for event in events(store) {
        match filter.matches(&event.row()) {
            Ok(true) => scan.ids.push(event.id),
            Ok(false) => {}
            Err(e) => scan.failures.push(FilterFailure { id: event.id, message: e.0 }),
        }
    }
    scan
}

pub fn a_scan_agrees_with_the_filter_event_by_event(store: &mut dyn Store) {
    fill_for_filters(store);
    let range = all_of(store);
    let (mut failing, mut hidden) = (0, 0);
    for text in FILTERS {
        let filter = filter(text);
        let expected = asked_one_by_one(store, &filter);
        let scan = store.scan(&filter, range).unwrap();
        assert_eq!(scan, expected, "{text}");
        failing += usize::from(!scan.failures.is_empty());
        let first = scan.failures.first().map_or(i64::MAX, |failure| failure.id);
        hidden += usize::from(scan.ids.iter().any(|id| *id > first));
    }
    assert!(failing > 3 && hidden > 3, "{failing} filters fail on an event, {hidden} match a later one");
}

pub fn a_scan_of_parts_is_a_scan_of_the_whole(store: &mut dyn Store) {
    fill_for_filters(store);
    let range = all_of(store);
    for text in FILTERS {
        let filter = filter(text);
        let whole = store.scan(&filter, range).unwrap();
        for middle in 0..=range.upto {
            let mut parts = store.scan(&filter, ScanRange { upto: middle, ..range }).unwrap();
            assert_eq!(parts.upto, middle);
            let rest = store.scan(&filter, ScanRange { after: middle, ..range }).unwrap();
            parts.ids.extend(rest.ids);
            parts.failures.extend(rest.failures);
            parts.upto = rest.upto;
            assert_eq!(parts, whole, "{text}, divided at {middle}");
        }
    }
}

pub fn a_scan_stops_after_enough_matches(store: &mut dyn Store) {
    fill_for_filters(store);
    let range = all_of(store);
    for text in FILTERS {
        let filter = filter(text);
        let whole = store.scan(&filter, range).unwrap();
        for most in 1..4 {
            let scan = store.scan(&filter, ScanRange { most, ..range }).unwrap();
            let enough = whole.ids.len() >= most;
            let upto = if enough { whole.ids[most - 1] } else { range.upto };
            let expected = Scan {
                ids: whole.ids.iter().copied().take(most).collect(),
                upto,
                failures: whole.failures.iter().filter(|failure| failure.id <= upto).cloned().collect(),
            };
            assert_eq!(scan, expected, "{text}, at most {most}");
        }
    }
    let none = store.scan(&filter("1"), ScanRange { most: 0, ..range }).unwrap();
    assert_eq!(none, Scan::default());
}

pub fn a_scan_past_its_deadline_keeps_its_progress(store: &mut dyn Store) {
    fill_for_filters(store);
    fill(store, 40);
    let range = all_of(store);
    for text in FILTERS {
        let filter = filter(text);
        let mut parts = Scan::default();
        while parts.upto < range.upto {
            let late = ScanRange { after: parts.upto, until: Some(Instant::now()), ..range };
            let scan = store.scan(&filter, late).unwrap();
            assert!(scan.upto > parts.upto, "{text}: no ground was gained after {}", parts.upto);
            parts.ids.extend(scan.ids);
            parts.failures.extend(scan.failures);
            parts.upto = scan.upto;
        }
        assert_eq!(parts, store.scan(&filter, range).unwrap(), "{text}");
    }
}

pub fn a_watermark_is_kept_with_its_subscription(store: &mut dyn Store) {
    fill(store, 20);
    let seen = subscribe_with_filter(store, "c", "id > 15");
    store.remember_scan(&seen, 10, &[]).unwrap();
    let mark = ScanWatermark { filter: "id > 15".into(), from: 0, upto: 10 };
    assert_eq!(get(store, "c"), Subscription { watermark: Some(mark.clone()), ..seen });
    // Other changes keep it, and it determines where a reader starts.
    store.move_cursor(&name("c"), 5, Move::Acknowledge).unwrap();
    let seen = get(store, "c");
    let updated = store.update_run(&seen, &RunUpdate::state(running(1))).unwrap().unwrap();
    assert_eq!(updated.watermark.as_ref(), Some(&mark));
    assert_eq!([0, 5, 10, 12].map(|cursor| updated.scanned_upto(cursor)), [10, 10, 10, 12]);
    // Without a filter there is no watermark.
    let blank = subscribe_with_filter(store, "d", " ");
    store.remember_scan(&blank, 10, &[]).unwrap();
    assert_eq!(get(store, "d"), blank);
    // Failures are counted all the same: those of a key.
    store.remember_scan(&blank, 10, &[FilterFailure { id: 7, message: "no".into() }]).unwrap();
    assert_eq!(get(store, "d"), Subscription { filter_errors: 1, filter_error_id: 7, ..blank });
}

pub fn a_watermark_extends_the_one_it_adjoins(store: &mut dyn Store) {
    fill(store, 20);
    let mark = |store: &mut dyn Store, cursor, upto| {
        seek(store, "c", cursor);
        let seen = get(store, "c");
        store.remember_scan(&seen, upto, &[]).unwrap();
        let mark = get(store, "c").watermark.unwrap();
        (mark.from, mark.upto)
    };
    subscribe_with_filter(store, "c", "id > 19");
    assert_eq!(mark(store, 4, 8), (4, 8));
    assert_eq!(mark(store, 8, 10), (4, 10));
    assert_eq!(mark(store, 6, 12), (4, 12));
    // Nothing is known between 12 and 15.
    assert_eq!(mark(store, 15, 17), (15, 17));
    assert_eq!(get(store, "c").scanned_upto(14), 14);
    assert_eq!(mark(store, 2, 3), (2, 3));
}

pub fn a_watermark_of_an_earlier_subscription_is_ignored(store: &mut dyn Store) {
    fill(store, 5);
    let earlier = subscribe_with_filter(store, "c", "id > 9");
    store.unsubscribe(&name("c")).unwrap();
    let failures = [FilterFailure { id: 2, message: "no".into() }];
    store.remember_scan(&earlier, 5, &failures).unwrap();
    assert_eq!(store.subscriptions().unwrap(), []);
    let again = subscribe_with_filter(store, "c", "id > 1");
    store.remember_scan(&earlier, 5, &failures).unwrap();
    assert_eq!(get(store, "c"), again);
}

pub fn failures_of_a_filter_are_counted_once(store: &mut dyn Store) {
    fill(store, 9);
    let seen = subscribe_with_filter(store, "c", "content ->> '$' = 1");
    let mut recorded = |upto, ids: &[i64]| {
        let failure = |&id: &i64| FilterFailure { id, message: "malformed JSON".into() };
        let failures: Vec<_> = ids.iter().map(failure).collect();
        let first_seen = store.remember_scan(&seen, upto, &failures).unwrap();
        let stored = get(store, "c");
        (first_seen, stored.filter_errors, stored.filter_error_id)
    };
    assert_eq!(recorded(5, &[2, 4]), (2, 2, 4));
    assert_eq!(recorded(6, &[]), (0, 2, 4));
    // Also if recorded by another reader of the same subscription.
    assert_eq!(recorded(7, &[2, 4, 7]), (1, 3, 7));
    assert_eq!(recorded(6, &[2, 4]), (0, 3, 7));
}

// Runs and dead letters.

pub fn a_run_update_applies_to_the_state_that_was_read(store: &mut dyn Store) {
    fill(store, 3);
    let seen = subscribe_with_filter(store, "c", "id > 2");
    let state = RunState {
        paused: true,
        reason: Some("stopped".into()),
        task: Some(Task::Batch(3)),
        last_exit: Some(Exit::Signal(9)),
        home: Some((u64::MAX, 1)),
        start_cursor: 2,
        ..running(2)
    };
    for durable in [true, false] {
        let seen = get(store, "c");
        // None of these changes concerns the runs.
        store.remember_scan(&seen, 1, &[]).unwrap();
        fill(store, 1);
        let update = RunUpdate { durable, ..RunUpdate::state(state.clone()) };
        let updated = store.update_run(&seen, &update).unwrap().unwrap();
        assert_eq!(updated, get(store, "c"));
        assert_eq!(updated.state, state);
        assert_ne!(updated.revision, seen.revision);
    }
    assert_eq!((get(store, "c").token, get(store, "c").last_acked_id), (seen.token, 0));
}

pub fn a_run_update_is_refused_after_any_change(store: &mut dyn Store) {
    fill(store, 9);
    subscribe(store, "c");
    seek(store, "c", 5);
    make_dead(store, "c", 1);
    let subscribe_again = |store: &mut dyn Store| {
        store.unsubscribe(&name("c")).unwrap();
        subscribe(store, "c");
    };
    let changes: [Change<'_>; 8] = [
        ("its state", &|store| {
            let seen = get(store, "c");
            store.update_run(&seen, &RunUpdate::state(seen.state.clone())).unwrap().unwrap();
        }),
        ("its cursor", &|store| {
            store.move_cursor(&name("c"), 6, Move::Acknowledge).unwrap();
        }),
        ("back and forth", &|store| {
            seek(store, "c", 2);
            seek(store, "c", 6);
        }),
        ("a dead letter to retry", &|store| {
            store.retry_dead_letters(&name("c"), Some(&[1])).unwrap();
        }),
        ("and not", &|store| {
            store.discard_dead_letters(&name("c"), None).unwrap();
        }),
        ("subscribed again", &subscribe_again),
        // Only the token differs.
        ("and again", &subscribe_again),
        ("unsubscribed", &|store| drop(store.unsubscribe(&name("c")).unwrap())),
    ];
    for (what, change) in changes {
        let seen = get(store, "c");
        change(store);
        let before = everything(store);
        let update = RunUpdate {
            acknowledge: Some(8),
            dead_letters: vec![insert(7)],
            cancel_retries: true,
            ledger: vec![LedgerChange::Finish { first: 1, last: 9 }],
            step: None,
            figures: Some((noon(), Figures { handled: 1, ..Figures::default() })),
            runs: vec![finished(3)],
            durable: true,
            state: running(3),
        };
        assert_eq!(store.update_run(&seen, &update).unwrap(), None, "{what}");
        assert_eq!(everything(store), before, "{what}");
    }
}

pub fn a_run_update_moves_the_cursor_and_makes_a_dead_letter_in_one_step(store: &mut dyn Store) {
    fill(store, 6);
    let seen = subscribe(store, "c");
    let update = RunUpdate {
        acknowledge: Some(4),
        dead_letters: vec![insert(4)],
        ..RunUpdate::state(RunState::default())
    };
    let updated = store.update_run(&seen, &update).unwrap().unwrap();
    assert_eq!((updated.last_acked_id, updated.dead), (4, 1));
    assert_ne!(updated.revision, seen.revision);
    assert_eq!(updated, get(store, "c"));
    // Never backwards, and never past the newest.
    for (id, cursor) in [(2, 4), (99, 6)] {
        let seen = get(store, "c");
        let update = RunUpdate { acknowledge: Some(id), ..RunUpdate::state(seen.state.clone()) };
        let updated = store.update_run(&seen, &update).unwrap().unwrap();
        assert_eq!((updated.last_acked_id, updated.rewinds), (cursor, 0));
    }
    store.retry_dead_letters(&name("c"), None).unwrap();
    let seen = get(store, "c");
    assert_eq!(seen.dead_to_retry, 1);
    let update = RunUpdate { cancel_retries: true, ..RunUpdate::state(seen.state.clone()) };
    let updated = store.update_run(&seen, &update).unwrap().unwrap();
    assert_eq!((updated.dead, updated.dead_to_retry), (1, 0));
}

fn subscribe_singly(store: &mut dyn Store) -> Subscription {
    let options = Options { deliver: Deliver::Ndjson, ..Options::default() };
    store.subscribe(&NewSubscription { options, ..new_subscription("c") }).unwrap();
    get(store, "c")
}

fn finish(first: i64, last: i64) -> LedgerChange {
    LedgerChange::Finish { first, last }
}

fn wait(id: i64, attempts: u32) -> LedgerChange {
    let until = noon() + Duration::from_secs(u64::from(attempts));
    LedgerChange::Wait {
        id,
        wait: EventWait { attempts, deferred: 7, since: noon(), until, ..EventWait::default() },
    }
}

fn claim(id: i64, place: u32) -> LedgerChange {
    let since = noon() + Duration::from_millis(u64::from(place));
    LedgerChange::Claim { id, claim: Some(Claim { place, since, ..Claim::default() }) }
}

/// That of a program.
fn taken(id: i64, at: i64, is_dead_letter: bool) -> LedgerChange {
    let until = Moment { clock: String::new(), at };
    let taken = Some(Taken { token: format!("token {at}"), until });
    LedgerChange::Claim {
        id,
        claim: Some(Claim { place: 0, since: noon(), taken, machine: None, is_dead_letter }),
    }
}

fn unclaim(id: i64) -> LedgerChange {
    LedgerChange::Claim { id, claim: None }
}

/// Any changes, in any order: each store has what the model has.
pub fn events_finish_singly(store: &mut dyn Store) {
    fill(store, 40);
    subscribe_singly(store);
    assert_eq!(store.ledger(&name("c")).unwrap(), Ledger::default());
    let mut model = Ledger::default();
    let steps = [
        vec![finish(3, 3), wait(2, 1)],
        vec![finish(5, 7), finish(4, 4)],
        vec![wait(5, 9), wait(9, 2), wait(9, 3)],
        vec![claim(5, 1), claim(9, 2), claim(11, 3), claim(13, 4), claim(14, 5), claim(33, 8)],
        vec![claim(9, 1), unclaim(13), unclaim(13), wait(14, 1), claim(14, 2), wait(14, 2), unclaim(40)],
        vec![finish(20, 25), finish(18, 19), finish(26, 26), finish(22, 30)],
        vec![taken(28, 1, false), taken(34, 2, false), taken(34, 3, false), taken(36, i64::MAX, false)],
        // A dead letter is finished, and taken all the same.
        vec![taken(21, 4, true), taken(12, 5, true), taken(32, 6, false), unclaim(36)],
        vec![finish(10, 17), finish(20, 21)],
        vec![finish(1, 1)],
        vec![finish(2, 2)],
        vec![finish(12, 12), wait(33, 1), unclaim(12)],
        vec![finish(8, 9), finish(35, 35)],
        vec![finish(31, 40)],
    ];
    for changes in steps {
        let seen = get(store, "c");
        let update = RunUpdate { ledger: changes.clone(), ..RunUpdate::state(running(1)) };
        let updated = store.update_run(&seen, &update).unwrap().unwrap();
        changes.iter().for_each(|change| model.apply(change));
        assert_eq!(store.ledger(&name("c")).unwrap(), model, "{changes:?}");
        assert_eq!(updated.last_acked_id, model.cursor(), "{changes:?}");
        assert_eq!(updated, get(store, "c"));
    }
    assert_eq!(model.claims().keys().collect::<Vec<_>>(), [&21]);
    assert_eq!(store.ledger(&name("c")).unwrap().claims(), model.claims());
    store.move_cursor(&name("c"), 40, Move::Seek).unwrap();
    assert_eq!(store.ledger(&name("c")).unwrap(), Ledger::new(40, None, None, None));
}

/// Whatever another connection changes while a ledger is read, all of it is of one moment.
pub fn a_ledger_is_of_one_moment(open: impl Fn() -> Box<dyn Store> + Sync) {
    let mut writer = open();
    fill(&mut *writer, 1);
    subscribe_singly(&mut *writer);
    let mut turn = |changes| {
        let (seen, state) = (get(&mut *writer, "c"), RunUpdate::state(running(1)));
        assert!(writer.update_run(&seen, &RunUpdate { ledger: changes, ..state }).unwrap().is_some());
    };
    turn(vec![wait(1, 1), claim(1, 1)]);
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| {
            let mut reader = open();
            (0..1000).find_map(|_| {
                let ledger = reader.ledger(&name("c")).unwrap();
                // The place of the claim is the number of attempts before it.
                let place = ledger.claims().get(&1).map(|claim| claim.place);
                let is_torn = place.is_some_and(|place| place != ledger.waits()[&1].attempts);
                is_torn.then_some(ledger)
            })
        });
        for attempts in 2.. {
            turn(vec![wait(1, attempts), unclaim(1)]);
            turn(vec![claim(1, attempts)]);
            if reads.is_finished() {
                break;
            }
        }
        assert_eq!(reads.join().unwrap(), None);
    });
}

/// Time passes by the clock of claims, and all who look at a store see the same one.
pub fn the_clock_of_claims_goes_on(store: &mut dyn Store) {
    let first = store.clock().unwrap();
    wait_until("a millisecond", || store.clock().unwrap().at > first.at);
    assert_eq!(store.clock().unwrap().clock, first.clock);
    assert_eq!(first.after(Duration::from_millis(7)).left(&first), Duration::from_millis(7));
    assert!(first.left(&store.clock().unwrap()).is_zero());
}

pub fn a_ledger_is_cleared_by_seek_and_keeps_what_is_finished_otherwise(store: &mut dyn Store) {
    fill(store, 9);
    let seen = subscribe_singly(store);
    let changes = vec![finish(3, 5), wait(7, 1), claim(6, 1), claim(1, 2)];
    let update = RunUpdate { ledger: changes, ..RunUpdate::state(running(1)) };
    let before = store.update_run(&seen, &update).unwrap().unwrap();
    // An acknowledgement that reaches a range goes on to its end.
    let update = RunUpdate { acknowledge: Some(2), ..RunUpdate::state(running(1)) };
    let updated = store.update_run(&before, &update).unwrap().unwrap();
    assert_eq!(updated.last_acked_id, 5);
    let update = RunUpdate { ledger: vec![finish(7, 8)], ..RunUpdate::state(running(1)) };
    store.update_run(&updated, &RunUpdate { ledger: vec![wait(9, 1)], ..update }).unwrap().unwrap();
    assert_eq!(store.ledger(&name("c")).unwrap().claims().keys().collect::<Vec<_>>(), [&6]);
    let seen = get(store, "c");
    let update = RunUpdate { ledger: vec![finish(8, 8)], ..RunUpdate::state(running(1)) };
    store.update_run(&seen, &update).unwrap().unwrap();
    store.unsubscribe(&name("c")).unwrap();
    subscribe_singly(store);
    let kept = store.ledger(&name("c")).unwrap();
    assert_eq!(
        (kept.cursor(), kept.finished().collect::<Vec<_>>(), kept.waits().len(), kept.claims().len()),
        (5, vec![(8, 8)], 0, 0)
    );
    // Also to where the cursor is.
    let rewinds = get(store, "c").rewinds;
    store.move_cursor(&name("c"), 5, Move::Seek).unwrap();
    assert_eq!(store.ledger(&name("c")).unwrap(), Ledger::new(5, None, None, None));
    assert!(get(store, "c").rewinds > rewinds);
}

pub fn a_ledger_outlives_other_ways_of_delivery_but_no_seek_and_no_replacement_its_waits(
    store: &mut dyn Store,
) {
    fill(store, 9);
    let seen = subscribe_singly(store);
    let changes = vec![finish(3, 5), wait(7, 1), claim(8, 1)];
    let update = RunUpdate { ledger: changes, ..RunUpdate::state(running(1)) };
    store.update_run(&seen, &update).unwrap().unwrap();
    let kept = NewSubscription {
        options: Options { deliver: Deliver::Ndjson, ..Options::default() },
        replace: true,
        ..new_subscription("c")
    };
    let other = NewSubscription { replace: true, ..new_subscription("c") };
    store.subscribe(&other).unwrap();
    store.subscribe(&kept).unwrap();
    assert_eq!(store.ledger(&name("c")).unwrap(), Ledger::new(0, vec![(3, 5)], None, None));
    store.subscribe(&other).unwrap();
    store.move_cursor(&name("c"), 0, Move::Seek).unwrap();
    store.subscribe(&kept).unwrap();
    assert_eq!(store.ledger(&name("c")).unwrap(), Ledger::default());
    // A pool finishes events singly, too.
    let pool = NewSubscription {
        options: Options { deliver: Deliver::Stdin, concurrency: Some(2), ..Options::default() },
        ..kept
    };
    store.subscribe(&pool).unwrap();
    let (seen, rewinds) = (get(store, "c"), get(store, "c").rewinds);
    let update = RunUpdate { ledger: vec![claim(2, 1)], ..RunUpdate::state(running(1)) };
    store.update_run(&seen, &update).unwrap().unwrap();
    assert_eq!(store.ledger(&name("c")).unwrap().claims().len(), 1);
    // If only numbers are changed, runs under way keep what they have; waits are over.
    let (seen, waits) = (get(store, "c"), vec![wait(3, 2)]);
    store.update_run(&seen, &RunUpdate { ledger: waits, ..RunUpdate::state(running(4)) }).unwrap().unwrap();
    let options = Options { concurrency: Some(7), batch_size: 3, ..pool.options.clone() };
    store.subscribe(&NewSubscription { options: options.clone(), ..pool }).unwrap();
    let now = get(store, "c");
    assert_eq!((&now.token, &now.options, now.state.attempts), (&seen.token, &options, 0));
    assert!(now.revision != seen.revision && now.state.phase == running(4).phase);
    let kept = store.ledger(&name("c")).unwrap();
    assert_eq!((kept.claims().len(), kept.waits().len()), (1, 0));
    store.move_cursor(&name("c"), 0, Move::Seek).unwrap();
    assert_eq!(store.ledger(&name("c")).unwrap(), Ledger::default());
    assert!(get(store, "c").rewinds > rewinds);
}

/// A run that has ended, different for each number.
fn finished(number: u32) -> Run {
    let span = Span { file: 7, offset: number.into(), length: 5 };
    Run {
        number: 0,
        began: noon(),
        ended: noon(),
        attempt: number,
        events: number.is_multiple_of(2).then_some(2),
        upto: number.into(),
        result: RunResult::TimedOut,
        exit: Some(124),
        output: number.is_multiple_of(2).then_some(span),
        host: None,
        tail: number.is_multiple_of(2).then(|| tail(number)),
    }
}

/// What a run has printed: nothing that a store may not like.
fn tail(number: u32) -> String {
    format!("\u{1}\t\"é,\"tail\":\"{number}\\")
}

/// The runs as a store lists them, without what it says about the machine.
fn listed(store: &mut dyn Store, consumer: &str, most: usize) -> Vec<Run> {
    let runs = store.runs(&name(consumer), most).unwrap();
    runs.into_iter().map(|run| Run { host: None, ..run }).collect()
}

pub fn the_last_thousand_runs_are_kept(store: &mut dyn Store) {
    subscribe(store, "c");
    subscribe(store, "d");
    assert_eq!(listed(store, "c", RUNS_KEPT), []);
    let kept = |place: u32, number| Run { number: place.into(), tail: None, ..finished(number) };
    let end_run = |store: &mut dyn Store, consumer: &str, number| {
        let seen = get(store, consumer);
        let update = RunUpdate { runs: vec![finished(number)], ..RunUpdate::state(RunState::default()) };
        store.update_run(&seen, &update).unwrap().unwrap();
    };
    for number in 1..=RUNS_KEPT as u32 + 3 {
        end_run(store, "c", number);
    }
    end_run(store, "d", 1);
    let all: Vec<Run> = (4..=RUNS_KEPT as u32 + 3).map(|number| kept(number, number)).collect();
    assert_eq!(listed(store, "c", usize::MAX), all);
    assert_eq!(listed(store, "c", 2), all[RUNS_KEPT - 2..]);
    assert_eq!(listed(store, "d", 2), [kept(1, 1)]);
    // They outlive the subscription.
    store.unsubscribe(&name("c")).unwrap();
    subscribe(store, "c");
    end_run(store, "c", 9);
    assert_eq!(listed(store, "c", 2), [all[RUNS_KEPT - 1].clone(), kept(RUNS_KEPT as u32 + 4, 9)]);
}

pub fn a_run_is_found_by_its_number_with_what_is_kept_of_its_output(store: &mut dyn Store) {
    let seen = subscribe(store, "c");
    assert_eq!(store.run(&name("c"), 1).unwrap(), None);
    let runs = vec![finished(1), finished(2), Run { tail: Some("a\0b".into()), ..finished(3) }];
    store.update_run(&seen, &RunUpdate { runs, ..RunUpdate::state(RunState::default()) }).unwrap().unwrap();
    let run = |store: &mut dyn Store, number| store.run(&name("c"), number).unwrap();
    for number in [-1, 0, 4, i64::MAX] {
        assert_eq!(run(store, number), None, "{number}");
    }
    let second = run(store, 2).unwrap();
    let expected = Run { number: 2, host: second.host.clone(), tail: second.tail.clone(), ..finished(2) };
    assert_eq!(second, expected);
    // A store of one machine need not keep it.
    assert!([None, Some(tail(2))].contains(&second.tail), "{second:?}");
    assert_eq!(run(store, 1).unwrap().tail, None);
    let third = run(store, 3).unwrap().tail;
    assert!(third.is_none_or(|tail| tail.starts_with('a') && tail.ends_with('b')));
}

pub fn dead_letters_are_made_retried_and_removed(store: &mut dyn Store) {
    fill(store, 6);
    subscribe(store, "c");
    subscribe(store, "b");
    for (consumer, id) in [("c", 5), ("c", 2), ("b", 5)] {
        make_dead(store, consumer, id);
    }
    let dead = |consumer, event_id| DeadLetter {
        consumer: name(consumer),
        event_id,
        attempts: 5,
        last_exit: Some(1),
        last_error: "no".into(),
        parked_at: time::format(noon()),
        retry: false,
    };
    let listed = store.dead_letters(Some(&name("c"))).unwrap();
    assert_eq!(listed, [dead("c", 2), dead("c", 5)]);
    assert_eq!(store.dead_letters(None).unwrap(), [dead("b", 5), dead("c", 2), dead("c", 5)]);
    assert_eq!(store.dead_letters(Some(&name("a"))).unwrap(), []);

    store.retry_dead_letters(&name("c"), None).unwrap();
    let at = noon() + Duration::from_millis(1234);
    let failed = |event_id, exit| DeadLetterUpdate::FailedAgain { event_id, exit, error: "again".into(), at };
    change_dead(store, "c", failed(2, Exit::Unknown));
    change_dead(store, "c", failed(3, Exit::TimedOut));
    let again = DeadLetter {
        attempts: 6,
        last_exit: None,
        last_error: "again".into(),
        parked_at: "2026-03-18T12:00:01.234Z".into(),
        ..dead("c", 2)
    };
    let waiting = DeadLetter { retry: true, ..dead("c", 5) };
    assert_eq!(store.dead_letters(Some(&name("c"))).unwrap(), [again.clone(), waiting]);
    // Made again, it starts with a new count of attempts.
    make_dead(store, "c", 5);
    assert_eq!(store.dead_letters(Some(&name("c"))).unwrap(), [again.clone(), dead("c", 5)]);
    change_dead(store, "c", DeadLetterUpdate::Remove { event_id: 5 });
    change_dead(store, "c", DeadLetterUpdate::Remove { event_id: 6 });
    assert_eq!(store.dead_letters(None).unwrap(), [dead("b", 5), again.clone()]);
    // An event that is given again is one at once, and keeps what is known of it.
    for event_id in [2, 3, 99] {
        change_dead(store, "c", DeadLetterUpdate::Redo { event_id, at: noon() });
    }
    let given = DeadLetter {
        attempts: 0,
        last_exit: None,
        last_error: GIVEN_AGAIN.into(),
        retry: true,
        ..dead("c", 3)
    };
    let retried = DeadLetter { retry: true, ..again };
    assert_eq!(store.dead_letters(Some(&name("c"))).unwrap(), [retried, given]);
    assert_eq!(get(store, "c").dead_to_retry, 2);
}

pub fn dead_letters_are_retried_and_discarded_by_event_or_all_together(store: &mut dyn Store) {
    fill(store, 6);
    for consumer in ["b", "c"] {
        subscribe(store, consumer);
        (1..=3).for_each(|id| make_dead(store, consumer, id));
    }
    let c = &name("c");
    let counts = |store: &mut dyn Store| (get(store, "c").dead, get(store, "c").dead_to_retry);
    assert_eq!(store.retry_dead_letters(c, Some(&[2])).unwrap(), 1);
    assert_eq!(store.retry_dead_letters(c, Some(&[5])).unwrap(), 0);
    assert_eq!(counts(store), (3, 1));
    assert_eq!(store.retry_dead_letters(c, None).unwrap(), 3);
    assert_eq!(counts(store), (3, 3));
    assert_eq!(store.discard_dead_letters(c, Some(&[2])).unwrap(), 1);
    assert_eq!(store.discard_dead_letters(c, Some(&[2])).unwrap(), 0);
    assert_eq!(counts(store), (2, 2));
    // They outlive the subscription.
    store.unsubscribe(c).unwrap();
    assert_eq!(store.retry_dead_letters(c, None).unwrap(), 2);
    assert_eq!(store.discard_dead_letters(c, None).unwrap(), 2);
    assert_eq!(store.discard_dead_letters(&name("a"), None).unwrap(), 0);
    assert_eq!((get(store, "b").dead, get(store, "b").dead_to_retry), (3, 0));
    assert_eq!(ids(store).len(), 6);
    // Of some events, in one step.
    let b = &name("b");
    assert_eq!(store.retry_dead_letters(b, Some(&[1, 3, 5])).unwrap(), 2);
    assert_eq!((get(store, "b").dead, get(store, "b").dead_to_retry), (3, 2));
    assert_eq!(store.discard_dead_letters(b, Some(&[3, 2, 3, 6])).unwrap(), 2);
    assert_eq!(store.discard_dead_letters(b, Some(&[])).unwrap(), 0);
    let mut first = None;
    let take = &mut |letter: DeadLetter| {
        first = Some((letter.consumer, letter.event_id));
        ControlFlow::Break(())
    };
    store.read_dead_letters(None, take).unwrap();
    assert_eq!(first, Some((name("b"), 1)));
}

pub fn a_dead_letter_needs_its_event(store: &mut dyn Store) {
    fill(store, 3);
    subscribe(store, "c");
    prune(store, PruneRange { upto: 1, ..EVERYTHING }).unwrap();
    for id in [1, 9] {
        let before = get(store, "c").revision;
        make_dead(store, "c", id);
        assert_ne!(get(store, "c").revision, before);
    }
    assert_eq!(store.dead_letters(None).unwrap(), []);
}

// Pruning.

fn later<'e>(content: &'e str, delay: Duration) -> NewEvent<'e> {
    message(content).with_due(Due::After(delay)).unwrap()
}

const HOUR: Duration = Duration::from_secs(3600);

fn scheduled_id(stored: Stored) -> ScheduledId {
    match stored {
        Stored::Scheduled { id, repeated: false, .. } => id,
        stored => panic!("{stored:?}"),
    }
}

pub fn a_scheduled_event_is_none_until_it_is_due(store: &mut dyn Store) {
    assert_eq!((store.scheduled(None, 9).unwrap(), store.count_scheduled().unwrap()), (vec![], 0));
    assert_eq!(store.make_scheduled(Which::Upto(chrono::Utc::now() + HOUR), 9).unwrap().count, 0);
    let event = later("x", HOUR).with_metadata(r#"{"a":1}"#).unwrap();
    let id = scheduled_id(put(store, &event).unwrap());
    assert_eq!((events(store), store.newest().unwrap()), (vec![], 0));
    let listed = store.scheduled(None, 9).unwrap();
    let [one] = &listed[..] else { panic!("{listed:?}") };
    assert_eq!((one.id, one.delay, &*one.event.content, one.key.as_deref()), (id, Some(HOUR), "x", None));
    let left = (one.due - chrono::Utc::now()).num_seconds();
    assert!((3500..=3601).contains(&left), "{left}");
    assert_eq!(store.make_scheduled(Which::Upto(one.due - Duration::from_millis(1)), 9).unwrap().count, 0);
    let made = store.make_scheduled(Which::Upto(one.due), 9).unwrap();
    assert_eq!((made.count, made.first_id, made.last_id), (1, Some(1), Some(1)));
    let stored = events(store).pop().unwrap();
    assert_eq!((stored.id, stored.created_at, &*stored.content), (1, made.created_at, "x"));
    assert_eq!(stored.metadata, one.event.metadata.clone().map(Into::into));
    let metadata = stored.metadata.unwrap();
    assert!(metadata.starts_with(r#"{"a":1,"scheduled_at":"20"#), "{metadata}");
    assert_eq!(store.count_scheduled().unwrap(), 0);
    assert_eq!(put(store, &message("y")).unwrap(), Stored::New(2));
}

pub fn scheduled_events_become_events_in_the_order_in_which_they_are_due(store: &mut dyn Store) {
    put(store, &message("first")).unwrap();
    let delays = [5, 3, 9, 3, 7, 1, 4];
    let names: Vec<String> = delays.iter().enumerate().map(|(at, delay)| format!("{delay}.{at}")).collect();
    let all: Vec<_> = delays.iter().zip(&names).map(|(delay, name)| later(name, HOUR * *delay)).collect();
    // With an event that is none of them in between.
    let mut mixed = all.clone();
    mixed.insert(3, message("now"));
    let appended = append(store, &mixed).unwrap();
    assert_eq!((appended.count, appended.scheduled, appended.last_id), (1, 7, Some(2)));
    let first = store.scheduled(None, 2).unwrap();
    let last = first.last().unwrap();
    assert_eq!(store.scheduled(Some((last.due, last.id)), 9).unwrap().len(), 5);
    let upto = chrono::Utc::now() + HOUR * 6;
    assert_eq!(store.make_scheduled(Which::Upto(upto), 2).unwrap().last_id, Some(4));
    assert_eq!(store.make_scheduled(Which::Upto(upto), 9).unwrap().last_id, Some(7));
    let nine = scheduled_at(store, "9.2");
    assert_eq!(store.make_scheduled(Which::One(nine), 9).unwrap().last_id, Some(8));
    assert_eq!(store.make_scheduled(Which::One(nine), 9).unwrap().last_id, None);
    let contents: Vec<String> = events(store).into_iter().map(|event| event.content).collect();
    assert_eq!(contents, ["first", "now", "1.5", "3.1", "3.3", "4.6", "5.0", "9.2"]);
    assert_eq!(store.count_scheduled().unwrap(), 1);
}

fn scheduled_at(store: &mut dyn Store, content: &str) -> ScheduledId {
    let all = store.scheduled(None, usize::MAX).unwrap();
    all.iter().find(|one| one.event.content == content).unwrap().id
}

pub fn a_scheduled_event_has_its_key_from_the_beginning(store: &mut dyn Store) {
    let event = later("x", HOUR);
    let keyed = with_key(&event, "k");
    let id = scheduled_id(put(store, &keyed).unwrap());
    // When it is due is not compared, nor whether.
    for again in [keyed.clone(), with_key(&later("x", HOUR * 2), "k"), with_key(&message("x"), "k")] {
        let repeated = put(store, &again).unwrap();
        assert!(matches!(repeated, Stored::Scheduled { id: same, repeated: true, .. } if same == id));
    }
    for other in [with_key(&later("y", HOUR), "k"), with_key(&message("y"), "k")] {
        let refused = put(store, &other);
        assert!(
            matches!(refused, Err(Error::ScheduledKeyConflict { key, id: same }) if key == "k" && same == id)
        );
    }
    store.make_scheduled(Which::One(id), 1).unwrap();
    for again in [keyed.clone(), with_key(&message("x"), "k")] {
        assert!(matches!(put(store, &again).unwrap(), Stored::Repeated { id: 1, .. }));
    }
    assert!(matches!(put(store, &with_key(&message("y"), "k")), Err(Error::KeyConflict { id: 1, .. })));
    assert_eq!(store.id_of_key("k").unwrap(), Some(1));
    // Two of one append.
    let twice =
        [with_key(&event, "l"), with_key(&event, "l"), with_key(&message("x"), "m"), with_key(&event, "m")];
    let appended = append(store, &twice).unwrap();
    assert_eq!((appended.count, appended.scheduled), (1, 1));
}

pub fn a_cancelled_event_frees_its_key_and_never_comes(store: &mut dyn Store) {
    assert!(!store.cancel_scheduled(ScheduledId(1)).unwrap());
    let keyed = with_key(&later("x", HOUR), "k").clone();
    let id = scheduled_id(put(store, &keyed).unwrap());
    assert!(store.cancel_scheduled(id).unwrap());
    assert!(!store.cancel_scheduled(id).unwrap());
    assert_eq!(store.make_scheduled(Which::One(id), 1).unwrap().count, 0);
    let next = scheduled_id(put(store, &with_key(&later("y", HOUR), "k")).unwrap());
    assert!(next > id, "{next} after {id}");
}

pub fn an_append_of_scheduled_events_is_all_or_nothing(store: &mut dyn Store) {
    put(store, &with_key(&message("x"), "k")).unwrap();
    let refused = append(store, &[later("a", HOUR), message("b"), with_key(&later("c", HOUR), "k")]);
    assert!(matches!(refused, Err(Error::KeyConflict { id: 1, .. })), "{refused:?}");
    assert_eq!((store.count_scheduled().unwrap(), ids(store)), (0, vec![1]));
}

fn schedule(name: &str, next: time::Time) -> Schedule {
    Schedule {
        name: name.to_owned(),
        revision: 0,
        timing: Timing::Every(HOUR),
        catch_up: CatchUp::One,
        paused: false,
        source: "self".to_owned(),
        kind: "message".to_owned(),
        subtype: None,
        content: "tick".to_owned(),
        metadata: None,
        expires: None,
        last: None,
        next: Some(next),
    }
}

pub fn a_schedule_changes_only_from_what_was_seen_and_with_its_events(store: &mut dyn Store) {
    assert_eq!(store.schedules().unwrap(), []);
    let now = time::parse("2026-03-18T10:30:00Z").unwrap();
    let new = schedule("b", now);
    assert!(store.change_schedule("b", None, Some(&new), &[]).unwrap().is_some());
    assert!(store.change_schedule("b", None, Some(&new), &[]).unwrap().is_none(), "it is there");
    assert!(store.change_schedule("a", None, Some(&schedule("a", now)), &[]).unwrap().is_some());
    let all = store.schedules().unwrap();
    let names: Vec<&str> = all.iter().map(|one| &*one.name).collect();
    assert_eq!(names, ["a", "b"]);
    let seen = &all[1];
    assert_eq!(*seen, Schedule { revision: seen.revision, ..new.clone() });
    let (times, to) = seen.due(now).unwrap();
    let event = seen.event(times[0]).unwrap();
    let made = store.change_schedule("b", Some(seen), Some(&to), std::slice::from_ref(&event)).unwrap();
    assert_eq!(made.unwrap().last_id, Some(1));
    // A caller that saw it before is late.
    assert_eq!(store.change_schedule("b", Some(seen), Some(&to), &[event]).unwrap(), None);
    assert_eq!(ids(store), [1]);
    let now_is = store.schedules().unwrap().remove(1);
    assert_eq!((now_is.last, now_is.next), (Some(now), Some(now + HOUR)));
    assert!(store.change_schedule("b", Some(&now_is), None, &[]).unwrap().is_some());
    assert_eq!(store.change_schedule("b", Some(&now_is), Some(&now_is), &[]).unwrap(), None);
    assert_eq!(store.schedules().unwrap().len(), 1);
}

pub fn what_is_due_first_is_known(store: &mut dyn Store) {
    assert_eq!(store.next_scheduled().unwrap(), None);
    let [early, late] =
        ["2026-03-18T10:30:00Z", "2100-01-01T00:00:00Z"].map(|text| time::parse(text).unwrap());
    for time in [late, early] {
        put(store, &message("x").with_due(Due::At(time)).unwrap()).unwrap();
    }
    let next = store.next_scheduled().unwrap().unwrap();
    assert_eq!((next.at, next.delayed), (Some(early), None));
    assert!((next.now - chrono::Utc::now()).num_seconds().abs() < 60);
    put(store, &later("x", HOUR * 2)).unwrap();
    put(store, &later("x", HOUR)).unwrap();
    let next = store.next_scheduled().unwrap().unwrap();
    let due = store.scheduled(Some((early, ScheduledId(i64::MAX))), 1).unwrap()[0].due;
    assert_eq!((next.at, next.delayed), (Some(early), Some((due, HOUR))));
    // Only what was asked for by a duration.
    assert_eq!(store.make_scheduled(Which::Delayed(due), 9).unwrap().count, 1);
    assert_eq!(store.next_scheduled().unwrap().unwrap().at, Some(early));
    assert_eq!(store.make_scheduled(Which::Upto(early), 9).unwrap().count, 1);
    assert_eq!(store.make_scheduled(Which::Delayed(late), 9).unwrap().count, 1);
    let last = store.next_scheduled().unwrap().unwrap();
    assert_eq!((last.at, last.delayed), (Some(late), None));
    store.make_scheduled(Which::Upto(late), 9).unwrap();
    assert_eq!(store.next_scheduled().unwrap().unwrap().at, None);
}

pub fn pruning_deletes_a_range_and_no_more(store: &mut dyn Store) {
    append(store, &[message("é"), message("ab").with_metadata(r#"{"a":1}"#).unwrap()]).unwrap();
    fill(store, 1200);
    let pruned = prune(store, PruneRange { after: 0, upto: 2, ..EVERYTHING }).unwrap();
    assert_eq!(pruned, Pruned { events: 2, bytes: 2 + 2 + 7, dead_letters: 0 });
    let pruned = prune(store, PruneRange { after: 100, upto: 1100, ..EVERYTHING }).unwrap();
    assert_eq!(pruned, Pruned { events: 1000, bytes: 1000, dead_letters: 0 });
    let left: Vec<i64> = (3..=100).chain(1101..=1202).collect();
    assert_eq!(ids(store), left);
    assert_eq!(prune(store, EVERYTHING).unwrap().events, 200);
    assert_eq!(prune(store, EVERYTHING).unwrap(), Pruned::default());
    assert_eq!((store.newest().unwrap(), ids(store)), (1202, vec![]));
}

pub fn pruning_can_be_limited_to_a_subtype(store: &mut dyn Store) {
    for subtype in [Some("a"), None, Some("b"), Some("a"), Some("")] {
        put(store, &NewEvent::new("s", "record", subtype.map(Into::into), "c").unwrap()).unwrap();
    }
    assert_eq!(prune(store, PruneRange { subtype: Some("a"), ..EVERYTHING }).unwrap().events, 2);
    assert_eq!(ids(store), [2, 3, 5]);
    assert_eq!(prune(store, PruneRange { subtype: Some(""), ..EVERYTHING }).unwrap().events, 1);
    assert_eq!(ids(store), [2, 3]);
}

pub fn pruning_keeps_dead_letters_unless_they_are_included(store: &mut dyn Store) {
    fill(store, 6);
    for (consumer, id) in [("b", 2), ("c", 2), ("c", 4)] {
        if store.subscription(&name(consumer)).unwrap().is_none() {
            subscribe(store, consumer);
        }
        make_dead(store, consumer, id);
    }
    let pruned = prune(store, PruneRange { upto: 5, dead_letters: false, ..EVERYTHING }).unwrap();
    assert_eq!(pruned, Pruned { events: 3, bytes: 3, dead_letters: 2 });
    assert_eq!((ids(store), store.dead_letters(None).unwrap().len()), (vec![2, 4, 6], 3));
    let pruned = prune(store, PruneRange { upto: 3, ..EVERYTHING }).unwrap();
    assert_eq!(pruned, Pruned { events: 1, bytes: 1, dead_letters: 1 });
    assert_eq!((ids(store), store.dead_letters(None).unwrap().len()), (vec![4, 6], 1));
}

pub fn a_dry_run_counts_and_changes_nothing(store: &mut dyn Store) {
    fill(store, 700);
    subscribe(store, "c");
    make_dead(store, "c", 3);
    let before = everything(store);
    for dead_letters in [false, true] {
        let range = PruneRange { upto: 600, dead_letters, ..EVERYTHING };
        let counted = prune(store, PruneRange { dry_run: true, ..range }).unwrap();
        let events = if dead_letters { 600 } else { 599 };
        assert_eq!(counted, Pruned { events, bytes: events, dead_letters: 1 });
        assert_eq!(everything(store), before);
    }
    let range = PruneRange { upto: 600, ..EVERYTHING };
    let counted = prune(store, PruneRange { dry_run: true, ..range }).unwrap();
    assert_eq!(prune(store, range).unwrap(), counted);
}

pub fn pruning_stops_if_a_consumer_wants_more(store: &mut dyn Store) {
    fill(store, 9);
    subscribe(store, "c");
    seek(store, "c", 4);
    let seen = store.subscriptions().unwrap();
    let range = PruneRange { upto: 5, seen: Some(&seen), ..EVERYTHING };
    let changes: [Change<'_>; 3] = [
        ("went back", &|store| seek(store, "c", 3)),
        ("came", &|store| drop(subscribe(store, "d"))),
        ("has another filter", &|store| {
            store.unsubscribe(&name("c")).unwrap();
            subscribe_with_filter(store, "c", "id = 5");
        }),
    ];
    for (what, change) in changes {
        change(store);
        let before = everything(store);
        assert_eq!(store.prune(&range).unwrap(), PruneStep::Overtaken, "one {what}");
        assert_eq!(everything(store), before);
        // Undo the change that made the consumer want more.
        if store.subscription(&name("d")).unwrap().is_some() {
            store.unsubscribe(&name("d")).unwrap();
        }
        seek(store, "c", 4);
    }
    // A new consumer past the range has nothing pending in it, and one that moved forward has no more than
    // before.
    seek(store, "c", 5);
    store.subscribe(&NewSubscription { from: Some(9), ..new_subscription("e") }).unwrap();
    assert!(prune(store, PruneRange { upto: 3, ..range }).is_some());
    store.unsubscribe(&name("c")).unwrap();
    subscribe(store, "c");
    assert!(prune(store, range).is_some());
    assert_eq!(ids(store), [6, 7, 8, 9]);
    // Without `seen`, subscriptions are not checked.
    seek(store, "c", 0);
    assert!(prune(store, PruneRange { seen: None, ..range }).is_some());
}

/// As often as it takes, in the smallest steps.
pub fn pruning_gets_somewhere_even_without_time(store: &mut dyn Store) {
    fill(store, 9);
    subscribe(store, "c");
    for id in [1, 2, 5] {
        make_dead(store, "c", id);
    }
    let range = PruneRange { upto: 8, dead_letters: false, time: Duration::ZERO, ..EVERYTHING };
    assert_eq!(prune(store, range).unwrap(), Pruned { events: 5, bytes: 5, dead_letters: 3 });
    assert_eq!(ids(store), [1, 2, 5, 9]);
}

// Settings.

pub fn settings_are_kept_by_name(store: &mut dyn Store) {
    let of = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    assert_eq!(store.config().unwrap(), of(&[]));
    assert!(!store.set_config("a.b", None).unwrap());
    assert!(!store.set_config("a.b", Some("1")).unwrap());
    assert!(!store.set_config("a", Some("é ' \\ %")).unwrap());
    assert!(store.set_config("a.b", Some("2")).unwrap());
    assert_eq!(store.config().unwrap(), of(&[("a", "é ' \\ %"), ("a.b", "2")]));
    assert!(store.set_config("a", None).unwrap());
    assert!(!store.set_config("a", None).unwrap());
    assert_eq!(store.config().unwrap(), of(&[("a.b", "2")]));
    // Other facts are not changed.
    fill(store, 1);
    assert_eq!(store.config().unwrap().len(), 1);
    assert_eq!(ids(store), [1]);
}

/// A step of the consumer `c`, as it begins.
pub fn new_step(event: i64, step: &str, kind: Kind) -> Step {
    let new = Step::new(&name("c"), event, step, kind, &[b"echo", b"x y"]);
    Step { key: "a key".to_owned(), since: noon(), ..new }
}

fn done(step: &Step, result: &[u8]) -> Step {
    Step { ended: Some(noon()), result: result.to_owned(), ..step.clone() }
}

/// Adds it, and returns it as it is stored.
fn add_step(store: &mut dyn Store, step: &Step) -> Step {
    assert!(store.change_step(&StepChange::to(None, step.clone())).unwrap());
    step_of(store, step).unwrap()
}

fn step_of(store: &mut dyn Store, step: &Step) -> Option<Step> {
    let (consumer, event, name) = (Some(&step.consumer), Some(step.event_id), Some(step.name.as_str()));
    let of = StepsOf { consumer, event, name, with_results: true, only_awaits: false };
    store.steps(of).unwrap().pop()
}

fn step_names(store: &mut dyn Store, of: StepsOf<'_>) -> Vec<(i64, String)> {
    store.steps(of).unwrap().into_iter().map(|step| (step.event_id, step.name)).collect()
}

pub fn a_step_is_read_back_unchanged(store: &mut dyn Store) {
    fill(store, 3);
    subscribe(store, "c");
    assert!(!store.has_steps().unwrap());
    assert_eq!(store.steps(StepsOf::default()).unwrap(), []);
    let first = add_step(store, &new_step(2, "é \u{1f600}'\"", Kind::Step));
    assert!(store.has_steps().unwrap());
    assert_eq!(first, Step { revision: first.revision, ..new_step(2, "é \u{1f600}'\"", Kind::Step) });
    let result = [b"\0\xff\n".to_vec(), vec![7; 1 << 20]].concat();
    assert!(store.change_step(&StepChange::to(Some(&first), done(&first, &result))).unwrap());
    let stored = step_of(store, &first).unwrap();
    assert_eq!(stored, Step { revision: stored.revision, ..done(&first, &result) });
    assert_ne!(stored.revision, first.revision);
    let waits = Step { until: Some(noon()), scanned: 7, timed_out: true, ..new_step(1, "w", Kind::Await) };
    let waits = Step { filter: Some("id = 1".to_owned()), key: String::new(), ..waits };
    let waits = add_step(store, &waits);
    add_step(store, &new_step(2, "a", Kind::Sleep));
    add_step(store, &Step { consumer: name("b"), ..new_step(9, "a", Kind::Await) });
    // By consumer, event, and in the order in which they were begun; without results unless they are asked for.
    let all = store.steps(StepsOf::default()).unwrap();
    let names: Vec<_> = all.iter().map(|step| (step.event_id, step.name.as_str())).collect();
    assert_eq!(names, [(9, "a"), (1, "w"), (2, "é \u{1f600}'\""), (2, "a")]);
    assert!(all.iter().all(|step| step.result.is_empty()));
    assert_eq!(all[1], waits);
    let mut of = |consumer: Option<&ConsumerId>, event, only_awaits| {
        step_names(store, StepsOf { consumer, event, only_awaits, ..StepsOf::default() })
    };
    let c = name("c");
    assert_eq!(of(Some(&c), Some(1), false), [(1, "w".to_owned())]);
    assert_eq!(of(Some(&c), None, true), [(1, "w".to_owned())]);
    assert_eq!(of(None, None, true), [(9, "a".to_owned()), (1, "w".to_owned())]);
    assert!(store.change_step(&StepChange::to(Some(&waits), done(&waits, b"line"))).unwrap());
    let of = StepsOf { consumer: Some(&c), only_awaits: true, ..StepsOf::default() };
    assert_eq!(step_names(store, of), [], "it is over");
}

pub fn a_step_changes_only_from_what_was_seen(store: &mut dyn Store) {
    fill(store, 1);
    subscribe(store, "c");
    let first = add_step(store, &new_step(1, "a", Kind::Step));
    let mut refused = |change: StepChange| {
        assert!(!store.change_step(&change).unwrap());
        assert_eq!(step_of(store, &first).as_ref(), Some(&first));
    };
    refused(StepChange::to(None, done(&first, b"new")));
    let old = Step { revision: first.revision + 1, ..first.clone() };
    refused(StepChange::to(Some(&old), done(&first, b"later")));
    refused(StepChange::remove(&old));
    assert!(store.change_step(&StepChange::to(Some(&first), first.clone())).unwrap());
    // It was begun again since.
    assert!(!store.change_step(&StepChange::to(Some(&first), done(&first, b"late"))).unwrap());
    let second = step_of(store, &first).unwrap();
    assert_eq!(second.result, b"");
    assert!(store.change_step(&StepChange::remove(&second)).unwrap());
    assert_eq!(step_of(store, &first), None);
    assert!(!store.change_step(&StepChange::to(Some(&second), done(&first, b"gone"))).unwrap());
    add_step(store, &first);
}

pub fn a_step_changes_together_with_a_run_or_not_at_all(store: &mut dyn Store) {
    fill(store, 1);
    let seen = subscribe(store, "c");
    let sleep = new_step(1, "nap", Kind::Sleep);
    let mut state = running(1);
    state.asleep.insert(1, Sleep { until: noon(), awaits: true });
    let update = |change| RunUpdate { step: Some(change), ..RunUpdate::state(state.clone()) };
    let updated = store.update_run(&seen, &update(StepChange::to(None, sleep.clone()))).unwrap().unwrap();
    assert_eq!(updated.state, state);
    let stored = step_of(store, &sleep).unwrap();
    // Of the two, one is not as it was seen.
    let change = StepChange::to(Some(&stored), done(&stored, b""));
    assert_eq!(store.update_run(&seen, &update(change)).unwrap(), None);
    assert_eq!(store.update_run(&updated, &update(StepChange::to(None, sleep.clone()))).unwrap(), None);
    assert_eq!((step_of(store, &sleep), get(store, "c")), (Some(stored), updated));
}

pub fn a_step_is_refused_to_a_claim_that_is_anothers(store: &mut dyn Store) {
    fill(store, 2);
    let seen = subscribe_singly(store);
    let update = RunUpdate { ledger: vec![taken(1, 5, false)], ..RunUpdate::state(running(1)) };
    store.update_run(&seen, &update).unwrap().unwrap();
    let by = |token: &str, event| StepChange {
        claim: Some(token.to_owned()),
        ..StepChange::to(None, new_step(event, "a", Kind::Step))
    };
    for (token, event) in [("token 6", 1), ("", 1), ("token 5", 2)] {
        assert!(matches!(store.change_step(&by(token, event)), Err(Error::ClaimOver { id }) if id == event));
    }
    assert_eq!(store.steps(StepsOf::default()).unwrap(), []);
    assert!(store.change_step(&by("token 5", 1)).unwrap());
}

pub fn sleeping_events_wait_in_the_ledger(store: &mut dyn Store) {
    fill(store, 4);
    subscribe_singly(store);
    add_step(store, &new_step(1, "a", Kind::Await));
    for asleep in [Asleep::Sleeps, Asleep::Awaits, Asleep::No, Asleep::Awaits] {
        let seen = get(store, "c");
        let LedgerChange::Wait { id, wait } = wait(2, 1) else { return };
        let change = LedgerChange::Wait { id, wait: EventWait { asleep, ..wait } };
        let update = RunUpdate { ledger: vec![change], ..RunUpdate::state(running(1)) };
        store.update_run(&seen, &update).unwrap().unwrap();
        assert_eq!(store.ledger(&name("c")).unwrap().waits()[&2].asleep, asleep);
    }
}

pub fn steps_are_forgotten_some_time_after_their_events_are_finished(store: &mut dyn Store) {
    fill(store, 9);
    let at = |seconds: u64| noon() + Duration::from_secs(seconds);
    assert_eq!(store.forget_steps(at(0), at(0), 9).unwrap(), (0, false));
    let seen = subscribe_singly(store);
    for event in 1..=6 {
        add_step(store, &new_step(event, "a", Kind::Step));
    }
    let update = RunUpdate { ledger: vec![finish(1, 2), finish(4, 4)], ..RunUpdate::state(running(1)) };
    store.update_run(&seen, &update).unwrap().unwrap();
    make_dead(store, "c", 2);
    let left = |store: &mut dyn Store| -> Vec<i64> {
        store.steps(StepsOf::default()).unwrap().iter().map(|step| step.event_id).collect()
    };
    // The first time, it is only noted that some are finished.
    store.forget_steps(at(10), at(0), 99).unwrap();
    assert_eq!(left(store), [1, 2, 3, 4, 5, 6]);
    store.forget_steps(at(20), at(10), 99).unwrap();
    assert_eq!(left(store), [1, 2, 3, 4, 5, 6]);
    assert_eq!(store.forget_steps(at(21), at(11), 99).unwrap().0, 2);
    assert_eq!(left(store), [2, 3, 5, 6]);
    store.discard_dead_letters(&name("c"), None).unwrap();
    store.move_cursor(&name("c"), 5, Move::Acknowledge).unwrap();
    store.forget_steps(at(30), at(20), 99).unwrap();
    // After a rewind they are needed again.
    seek(store, "c", 0);
    assert_eq!(store.forget_steps(at(50), at(40), 99).unwrap().0, 0);
    store.move_cursor(&name("c"), 5, Move::Acknowledge).unwrap();
    store.forget_steps(at(51), at(41), 99).unwrap();
    assert_eq!(left(store), [2, 3, 5, 6]);
    assert_eq!(store.forget_steps(at(70), at(60), 99).unwrap().0, 3);
    assert_eq!(left(store), [6]);
    // Nobody needs those of a consumer that is gone.
    store.unsubscribe(&name("c")).unwrap();
    store.forget_steps(at(80), at(70), 99).unwrap();
    assert_eq!(store.forget_steps(at(100), at(90), 99).unwrap(), (1, false));
    assert_eq!(left(store), [] as [i64; 0]);
}

/// Whether rows of this store can be moved.
fn is_movable(store: &mut dyn Store) -> bool {
    store.read_rows(Table::events(), None, 1).is_ok()
}

pub fn a_closed_store_can_only_be_read_and_a_rewrite_is_all_or_nothing(store: &mut dyn Store) {
    if !is_movable(store) {
        return;
    }
    fill(store, 3);
    let seen = subscribe(store, "c");
    let before = everything(store);
    let closed = Closed::Moved { to: "elsewhere".to_owned() };
    // A rewrite that fails changes nothing.
    let failed = store.rewrite(&mut |rewrite| {
        rewrite.set_closed(Some(&closed))?;
        rewrite.clear(Table::events())?;
        Err(Error::Other("no".to_owned()))
    });
    assert!(failed.is_err());
    assert_eq!((store.closed().unwrap(), everything(store)), (None, before.clone()));
    store
        .rewrite(&mut |rewrite| {
            assert_eq!(rewrite.closed()?, None);
            rewrite.set_closed(Some(&closed))
        })
        .unwrap();
    assert_eq!(store.closed().unwrap(), Some(closed.clone()));
    let config = store.config().unwrap();
    let daily = Timing::Every(Duration::from_secs(60));
    let daily = Schedule::of("s".to_owned(), daily, CatchUp::One, &message("x"));
    let later = NewEvent { due: Some(Due::After(Duration::from_secs(60))), ..message("x") };
    let refused = [
        put(store, &message("x")).map(drop),
        put(store, &with_key(&message("x"), "k")).map(drop),
        put(store, &later).map(drop),
        append(store, &[message("x"), message("y")]).map(drop),
        store.subscribe(&new_subscription("d")).map(drop),
        store.unsubscribe(&name("c")).map(drop),
        store.move_cursor(&name("c"), 2, Move::Acknowledge).map(drop),
        store.move_cursor(&name("c"), 0, Move::Seek).map(drop),
        store.update_run(&seen, &RunUpdate::state(running(1))).map(drop),
        store.retry_dead_letters(&name("c"), None).map(drop),
        store.discard_dead_letters(&name("c"), None).map(drop),
        store.set_config("a", Some("b")).map(drop),
        store.change_schedule("s", None, Some(&daily), &[]).map(drop),
    ];
    for (at, refused) in refused.into_iter().enumerate() {
        let is_meant = matches!(&refused, Err(Error::MovedTo(to)) if to == "elsewhere");
        assert!(is_meant, "{at}: {refused:?}");
    }
    // What cannot be remembered is no failure.
    store.remember_scan(&seen, 3, &[]).unwrap();
    assert_eq!((everything(store), store.newest().unwrap()), (before.clone(), 3));
    assert_eq!(store.config().unwrap(), config);
    store.rewrite(&mut |rewrite| rewrite.set_closed(None)).unwrap();
    assert_eq!((store.closed().unwrap(), everything(store)), (None, before));
    assert_eq!(put(store, &message("x")).unwrap(), Stored::New(4));
}

pub fn rows_are_read_in_pages_by_their_keys_and_put_as_they_are(store: &mut dyn Store) {
    if !is_movable(store) {
        return;
    }
    for table in TABLES.iter().filter(|table| table.kind != "thread") {
        assert_eq!(store.read_rows(table, None, 9).unwrap(), Vec::<Values>::new(), "{}", table.kind);
    }
    let event = |id: i64, content: &str| {
        let text = |text: &str| Value::Text(text.to_owned());
        let kind = if id % 2 == 0 { "message" } else { "record" };
        vec![
            Value::Number(id),
            text("some time"),
            text("a"),
            text(kind),
            Value::Null,
            text(content),
            text("{\"a\":1}"),
            Value::Text(format!("k{id}")),
        ]
    };
    let rows = [event(3, "x"), event(5, "a\0b"), event(90, &"y".repeat(5_000_000)), event(91, "z")];
    store.rewrite(&mut |rewrite| rewrite.put(Table::events(), &rows)).unwrap();
    let mut read = Vec::new();
    loop {
        let after = read.last().map(|row: &Values| row[0].clone());
        let page = store.read_rows(Table::events(), after.as_ref().map(std::slice::from_ref), 2).unwrap();
        assert!(page.len() <= 2);
        if page.is_empty() {
            break;
        }
        read.extend(page);
    }
    assert_eq!(read.len(), rows.len());
    assert!(read == rows);
    // A page ends with the row that makes it long.
    assert_eq!(store.read_rows(Table::events(), None, 9).unwrap().len(), 3);
    assert_eq!((store.newest().unwrap(), ids(store)), (91, vec![3, 5, 90, 91]));
    assert_eq!(store.id_of_key("k5").unwrap(), Some(5));
    // The numbers go on after the last ones, though nothing has them any more.
    let thread = Table::of("thread").unwrap();
    let last = vec![Value::Number(100), Value::Number(17)];
    store
        .rewrite(&mut |rewrite| {
            rewrite.clear(Table::events())?;
            rewrite.put(thread, std::slice::from_ref(&last))
        })
        .unwrap();
    assert_eq!(store.read_rows(thread, None, 9).unwrap(), [last]);
    assert_eq!(put(store, &message("x")).unwrap(), Stored::New(101));
    let later = NewEvent { due: Some(Due::After(Duration::from_secs(60))), ..message("x") };
    assert!(matches!(put(store, &later).unwrap(), Stored::Scheduled { id, .. } if id.0 > 17));
    // A snapshot sees what was there when it began.
    store
        .in_snapshot(&mut |store| {
            assert_eq!(store.read_rows(Table::events(), None, 9)?.len(), 1);
            Ok(())
        })
        .unwrap();
    put(store, &message("y")).unwrap();
}
