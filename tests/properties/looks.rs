//! Searches for pending events, reads and scans in any order and grouping agree with evaluating the filter on each
//! event alone.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::sample::Index;
use thread::model::event::Event;
use thread::model::filter::{Filter, Scope};
use thread::model::run::{Deliver, Options};
use thread::model::subscription::{ConsumerId, NewSubscription};
use thread::pending::{self, CountLimits, PendingScan};
use thread::queue::{Remaining, Selection};
use thread::store::{FilterFailure, Move, ScanRange, Store};
use thread::{After, Queue};
use thread_testkit::store::MemoryStore;

use crate::filters::filter;
use crate::scans::odd;
use crate::world::{Parts, Place, cases, parts};

const CONSUMERS: usize = 2;
const FILTERS: usize = 3;

#[derive(Debug, Clone)]
enum Step {
    Push(Vec<Parts>),
    /// This many non-matching events, over which watermarks advance.
    Fill(usize),
    Seek(usize, Index),
    Acknowledge(usize, Index),
    /// Subscribes again, with another filter.
    Subscribe(usize, usize),
    /// Looks for pending events as a dispatch does (`late`: with an expired deadline), optionally without storing the
    /// watermark.
    Look {
        consumer: usize,
        late: bool,
        remember: bool,
    },
    /// Reads from a consumer's watermark on.
    Pop(usize, Option<u64>),
    Peek {
        filter: usize,
        after: Index,
        limit: Option<u64>,
        page: usize,
    },
    Tail(usize, u64),
    /// Continues reading from its last position.
    Follow(usize),
    Scan {
        filter: usize,
        ends: (Index, Index),
        most: usize,
        late: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let (c, f, at) = (0..CONSUMERS, 0..FILTERS, any::<Index>());
    let most = || prop_oneof![1..4usize, Just(usize::MAX)];
    let limit = || prop::option::of(1..9u64);
    let large = Just(Parts::record("y".repeat(60_000)));
    let push = prop_oneof![8 => parts().boxed(), 2 => odd().boxed(), 1 => large.boxed()];
    prop_oneof![
        6 => prop::collection::vec(push, 1..12).prop_map(Step::Push),
        2 => (250..300usize).prop_map(Step::Fill),
        6 => (c.clone(), at.clone()).prop_map(|(c, at)| Step::Seek(c, at)),
        3 => (c.clone(), at.clone()).prop_map(|(c, at)| Step::Acknowledge(c, at)),
        1 => (c.clone(), f.clone()).prop_map(|(c, f)| Step::Subscribe(c, f)),
        12 => (c.clone(), any::<bool>(), prop::bool::weighted(0.8))
            .prop_map(|(consumer, late, remember)| Step::Look { consumer, late, remember }),
        4 => (c, limit()).prop_map(|(c, limit)| Step::Pop(c, limit)),
        3 => (f.clone(), at.clone(), limit(), 1..6usize)
            .prop_map(|(filter, after, limit, page)| Step::Peek { filter, after, limit, page }),
        2 => (f.clone(), 0..6u64).prop_map(|(f, count)| Step::Tail(f, count)),
        3 => f.clone().prop_map(Step::Follow),
        3 => (f, (at.clone(), at), most(), any::<bool>())
            .prop_map(|(filter, ends, most, late)| Step::Scan { filter, ends, most, late }),
    ]
}

/// Includes two filters with much to compare on the largest events: one exceeds the limit, the other would
/// only if the work on the previous event were counted too. Both are fast nevertheless.
fn any_filter() -> impl Strategy<Value = Filter> {
    let near_the_limit = |count: usize| {
        let text = vec![format!("content LIKE 'q{}'", "_".repeat(255)); count].join(" OR ");
        Just(Filter::new(&format!("{text} OR id % 3 = 0"), Scope::Subscription).unwrap().unwrap())
    };
    prop_oneof![6 => filter(), 1 => near_the_limit(3), 1 => near_the_limit(4)]
}

/// Result of a filter on an event.
type Answer = Result<bool, String>;

/// Evaluates each filter on each event alone: newest first, on an OS thread that has evaluated nothing else.
fn ask(filters: &[Filter], events: Vec<Event>) -> Vec<BTreeMap<i64, Answer>> {
    let filters = filters.to_vec();
    let asking = std::thread::spawn(move || {
        let about = |filter: &Filter, event: &Event| filter.matches(&event.row()).map_err(|e| e.0);
        let of = |filter| events.iter().rev().map(|event| (event.id, about(filter, event))).collect();
        filters.iter().map(of).collect()
    });
    asking.join().unwrap()
}

/// The expected results for a store.
#[derive(Default)]
struct Truth {
    answers: Vec<BTreeMap<i64, Answer>>,
    newest: i64,
}

impl Truth {
    fn learn(&mut self, store: &mut dyn Store, filters: &[Filter]) {
        let mut events = Vec::new();
        store
            .read(self.newest, i64::MAX, usize::MAX, &mut |row| {
                events.push(row.to_event());
                ControlFlow::Continue(())
            })
            .unwrap();
        self.newest += events.len() as i64;
        self.answers.resize_with(filters.len(), BTreeMap::new);
        if events.is_empty() {
            return;
        }
        for (known, new) in self.answers.iter_mut().zip(ask(filters, events)) {
            known.extend(new);
        }
    }

    fn matching(&self, filter: usize, after: i64, upto: i64) -> Vec<i64> {
        let answers = self.answers[filter].range(after + 1..upto.max(after) + 1);
        answers.filter(|(_, answer)| **answer == Ok(true)).map(|(&id, _)| id).collect()
    }

    fn failures(&self, filter: usize, after: i64, upto: i64) -> Vec<FilterFailure> {
        let failure = |(&id, answer): (&i64, &Answer)| {
            answer.clone().err().map(|message| FilterFailure { id, message })
        };
        self.answers[filter].range(after + 1..upto.max(after) + 1).filter_map(failure).collect()
    }

    /// Whether a look is right about what is pending after `cursor`.
    fn holds(&self, filter: usize, cursor: i64, look: &PendingScan, late: bool) -> bool {
        let first = self.matching(filter, cursor, self.newest).first().copied();
        let failures = self.failures(filter, cursor, self.newest);
        (if look.cut_short { late && look.first.is_none() } else { look.first == first })
            && look.failures.iter().all(|failure| failures.contains(failure))
    }
}

fn id(consumer: usize) -> ConsumerId {
    ConsumerId::new(["bot", "other"][consumer]).unwrap()
}

fn subscription(consumer: usize, filter: &Filter) -> NewSubscription {
    NewSubscription {
        consumer: id(consumer),
        handler_cmd: "true".to_owned(),
        filter: Some(filter.text().to_owned()),
        cwd: None,
        options: Options::default(),
        from: None,
        replace: false,
    }
}

/// Reads all of a selection, `page` events at a time.
fn read(place: &mut Place, selection: &mut Selection, page: usize) -> Vec<i64> {
    let mut ids = Vec::new();
    loop {
        let before = ids.len();
        let remaining = place.queue.read_page(selection, &mut |row| {
            ids.push(row.id);
            if ids.len() - before < page { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        if remaining.unwrap() == Remaining::None {
            return ids;
        }
    }
}

fn run(filters: &[Filter], steps: Vec<Step>) -> Result<(), TestCaseError> {
    let (mut place, mut memory) = (Place::new(), MemoryStore::default());
    let mut truths = [Truth::default(), Truth::default()];
    // The filter of each consumer, and the position of each follower.
    let mut filter_of = [0, 1];
    let mut followers = filters
        .iter()
        .map(|filter| (Selection { filter: Some(filter.clone()), ..After(0).into() }, Vec::new()))
        .collect::<Vec<_>>();
    for consumer in 0..CONSUMERS {
        let new = subscription(consumer, &filters[filter_of[consumer]]);
        place.queue.store().subscribe(&new).unwrap();
        memory.subscribe(&new).unwrap();
    }
    for step in steps {
        for (side, truth) in truths.iter_mut().enumerate() {
            let in_memory = side == 1;
            let store: &mut dyn Store = if in_memory { &mut memory } else { place.queue.store() };
            truth.learn(store, filters);
            let newest = truth.newest;
            let place_of = |at: &Index| at.index(newest as usize + 1) as i64;
            match &step {
                Step::Push(parts) => {
                    let put_all = |put: &mut thread::store::Put<'_>| {
                        parts.iter().try_for_each(|parts| put(&[parts.event()]).map(drop))
                    };
                    store.append(&mut |put| put_all(put)).unwrap();
                }
                Step::Fill(count) => {
                    let common = Parts::record("0");
                    let put_all =
                        |put: &mut thread::store::Put<'_>| put(&vec![common.event(); *count]).map(drop);
                    store.append(&mut |put| put_all(put)).unwrap();
                }
                Step::Seek(consumer, at) => {
                    store.move_cursor(&id(*consumer), place_of(at), Move::Seek).unwrap();
                }
                Step::Acknowledge(consumer, at) => {
                    store.move_cursor(&id(*consumer), place_of(at), Move::Acknowledge).unwrap();
                }
                Step::Subscribe(consumer, filter) => {
                    store.unsubscribe(&id(*consumer)).unwrap();
                    store.subscribe(&subscription(*consumer, &filters[*filter])).unwrap();
                    filter_of[*consumer] = *filter;
                }
                Step::Look { consumer, late, remember } => {
                    let subscription = store.subscription(&id(*consumer)).unwrap().unwrap();
                    let until = late.then(Instant::now);
                    let look = pending::scan(store, &subscription, until, *remember).unwrap();
                    let (filter, cursor) = (filter_of[*consumer], subscription.last_acked_id);
                    prop_assert!(
                        truth.holds(filter, cursor, &look, *late),
                        "{side}: {look:?} after {cursor}, where {:?} match",
                        truth.matching(filter, cursor, newest)
                    );
                }
                Step::Pop(consumer, limit) => {
                    let subscription = store.subscription(&id(*consumer)).unwrap().unwrap();
                    let (filter, cursor) = (filter_of[*consumer], subscription.last_acked_id);
                    let mut expected = truth.matching(filter, cursor, newest);
                    if let Some(&first) = expected.first() {
                        let count =
                            pending::count(store, &subscription, first, true, CountLimits::NONE, &mut |_| {})
                                .unwrap()
                                .events;
                        prop_assert_eq!(count, expected.len() as u64);
                    }
                    let after = subscription.scanned_upto(cursor);
                    let found = if in_memory {
                        let range = ScanRange { after, upto: newest, most: usize::MAX, until: None };
                        let mut ids = store.scan(&filters[filter], range).unwrap().ids;
                        ids.truncate(limit.unwrap_or(u64::MAX) as usize);
                        ids
                    } else {
                        let filter = Some(filters[filter].clone());
                        read(&mut place, &mut Selection { after, limit: *limit, filter }, usize::MAX)
                    };
                    expected.truncate(limit.unwrap_or(u64::MAX) as usize);
                    prop_assert_eq!(found, expected, "{}: with {:?}", side, subscription.watermark);
                }
                Step::Scan { filter, ends, most, late } => {
                    let (one, other) = (place_of(&ends.0), place_of(&ends.1));
                    let (after, upto) = (one.min(other), one.max(other));
                    let range = ScanRange { after, upto, most: *most, until: late.then(Instant::now) };
                    let scan = store.scan(&filters[*filter], range).unwrap();
                    prop_assert!(*late || scan.upto == upto || scan.ids.len() == *most);
                    prop_assert_eq!(
                        scan.ids,
                        truth.matching(*filter, after, scan.upto),
                        "{}: {:?}",
                        side,
                        range
                    );
                    prop_assert_eq!(scan.failures, truth.failures(*filter, after, scan.upto));
                }
                // Not operations of a bare store.
                Step::Peek { .. } | Step::Tail(..) | Step::Follow(_) if in_memory => {}
                Step::Peek { filter, after, limit, page } => {
                    let after = place_of(after);
                    let mut expected = truth.matching(*filter, after, newest);
                    expected.truncate(limit.unwrap_or(u64::MAX) as usize);
                    let filter = Some(filters[*filter].clone());
                    let found = read(&mut place, &mut Selection { after, limit: *limit, filter }, *page);
                    prop_assert_eq!(found, expected, "in pages of {}", page);
                }
                Step::Tail(filter, count) => {
                    let all = truth.matching(*filter, 0, newest);
                    let start = place.queue.start_of_tail(Some(&filters[*filter]), 0, *count).unwrap();
                    let tail = all.len().saturating_sub(*count as usize);
                    prop_assert_eq!(truth.matching(*filter, start, newest), &all[tail..]);
                }
                Step::Follow(filter) => {
                    let (selection, seen) = &mut followers[*filter];
                    seen.extend(read(&mut place, selection, usize::MAX));
                    prop_assert_eq!(&*seen, &truth.matching(*filter, 0, newest), "followed");
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(12))]

    #[test]
    fn looks_in_any_order_and_grouping_agree_with_evaluating_each_event(
        filters in prop::collection::vec(any_filter(), FILTERS),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        run(&filters, steps)?;
    }
}

/// Other programs may leave gaps of any width, over which a look does not go step by step.
#[test]
fn what_comes_after_a_wide_gap_is_found_and_counted() {
    let mut place = Place::new();
    place.store(&[Parts::record("0")]);
    let sql = "INSERT INTO events (id, source, type, content) VALUES (?, 's', 'record', '1')";
    place.plain().execute(sql, [200_000]).unwrap();
    place.subscribe(&id(0), Some("content = '1'"), Some(0)).unwrap();
    place.subscribe(&id(1), None, Some(0)).unwrap();
    let filtered = place.subscription(&id(0));
    assert_eq!(place.look(&filtered).first, Some(200_000));
    let all = place.subscription(&id(1));
    for (most, events, at_least) in [(1, 1, true), (2, 2, false)] {
        let limits = CountLimits { most, until: None };
        let counted = pending::count(place.queue.store(), &all, 1, false, limits, &mut |_| {}).unwrap();
        assert_eq!((counted.events, counted.at_least), (events, at_least));
    }
}

/// That an event made the filter fail is recorded by the next look; any other error is that of the look.
#[test]
fn a_look_that_cannot_record_anything_is_right_if_the_database_is_locked() {
    let failing = "id = abs(-9223372036854775807 - 1)";
    for deliver in [Deliver::Wake, Deliver::Ndjson] {
        let mut place = Place::new();
        place.store(&[Parts::record("0")]);
        let options = Options { deliver, batch_size: 2, ..Options::default() };
        let new = subscription(0, &Filter::new(failing, Scope::Subscription).unwrap().unwrap());
        place.queue.subscribe(&NewSubscription { options, from: Some(0), ..new }).unwrap();
        if deliver == Deliver::Ndjson {
            // Not only the cursor says what is finished.
            place.plain().execute("INSERT INTO finished VALUES ('bot', 9, 9)", []).unwrap();
        }
        let mut queue = Queue::open_waiting(place.queue.path(), Duration::from_millis(20)).unwrap();
        let consumer = queue.subscription(&id(0)).unwrap();
        let other = place.plain();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let found = pending::scan(queue.store(), &consumer, None, true).unwrap();
        assert!(found.first.is_none() && found.failures.is_empty(), "{deliver:?}: {found:?}");
        other
            .execute_batch(
                "ROLLBACK; CREATE TRIGGER refused BEFORE UPDATE ON consumers BEGIN SELECT RAISE(ABORT, 'no'); END",
            )
            .unwrap();
        assert!(pending::scan(queue.store(), &consumer, None, true).is_err(), "{deliver:?}");
        other.execute_batch("DROP TRIGGER refused").unwrap();
        let found = pending::scan(queue.store(), &consumer, None, true).unwrap();
        assert_eq!(found.failures.len(), 1, "{deliver:?}");
    }
}
