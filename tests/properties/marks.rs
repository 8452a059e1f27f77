//! Watermarks of filters save work and never hide a match.

use std::time::Instant;

use proptest::prelude::*;
use thread::model::filter::{Filter, Scope};
use thread::model::subscription::{ConsumerId, Subscription};
use thread::pending::{self, PendingScan};
use thread::store::Move;

use crate::world::{Parts, Place, cases, matching};

/// A filter that fails on content that is not JSON.
const FAILS: &str =
    "content = '5' OR json_extract('{}', CASE WHEN json_valid(content) THEN '$' ELSE content END) = 5";

/// Filters with rare matches, so that watermarks advance far; one fails on some events, and two are no
/// filter.
const FILTERS: &[Option<&str>] = &[
    Some("content = 'rare'"),
    Some("content LIKE 'RARE' AND type = 'message'"),
    Some(FAILS),
    Some("id % 1009 = 0"),
    Some("0"),
    Some("  "),
    None,
];

#[derive(Debug, Clone)]
enum Step {
    /// This many common events, and perhaps a rare one in the middle.
    Push(usize, Option<&'static str>),
    Cursor(prop::sample::Index),
    Rewind,
    ToTheEnd,
    /// Another program changes the filter under the subscription.
    ChangeFilter(usize),
    Subscribe(usize),
    Look,
    /// A look with an expired deadline.
    ShortLook,
}

fn step() -> impl Strategy<Value = Step> {
    let rare = prop::option::weighted(0.3, prop::sample::select(&["rare", "5", "not json", "6"][..]));
    prop_oneof![
        4 => (prop_oneof![1..20usize, 200..700usize], rare).prop_map(|(n, rare)| Step::Push(n, rare)),
        3 => any::<prop::sample::Index>().prop_map(Step::Cursor),
        1 => Just(Step::Rewind),
        2 => Just(Step::ToTheEnd),
        2 => (0..FILTERS.len()).prop_map(Step::ChangeFilter),
        1 => (0..FILTERS.len()).prop_map(Step::Subscribe),
        4 => Just(Step::Look),
        2 => Just(Step::ShortLook),
    ]
}

fn bot() -> ConsumerId {
    ConsumerId::new("bot").unwrap()
}

fn short_look(place: &mut Place, subscription: &Subscription) -> PendingScan {
    pending::scan(place.queue.store(), subscription, Some(Instant::now()), true).unwrap()
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn no_watermark_ever_hides_a_match(steps in prop::collection::vec(step(), 1..30)) {
        let mut place = Place::new();
        let consumer = bot();
        place.subscribe(&consumer, FILTERS[0], None).unwrap();
        let (mut filter, mut newest) = (FILTERS[0], 0);
        for step in steps {
            let mut in_short = false;
            match step {
                Step::Push(count, rare) => {
                    let mut events = vec![Parts { kind: "message", ..Parts::record("0") }; count];
                    if let Some(rare) = rare {
                        events[count / 2].content = rare.into();
                    }
                    place.store(&events);
                    newest += count as i64;
                }
                Step::Cursor(at) => {
                    let at = at.index(newest as usize + 1) as i64;
                    place.queue.store().move_cursor(&consumer, at, Move::Seek).unwrap();
                }
                Step::Rewind => drop(place.queue.store().move_cursor(&consumer, 0, Move::Seek).unwrap()),
                Step::ToTheEnd => drop(place.queue.acknowledge(&consumer, newest).unwrap()),
                Step::ChangeFilter(n) => {
                    filter = FILTERS[n];
                    place.plain().execute("UPDATE subscriptions SET filter = ?", [filter]).unwrap();
                }
                Step::Subscribe(n) => {
                    filter = FILTERS[n];
                    place.queue.store().unsubscribe(&consumer).unwrap();
                    place.subscribe(&consumer, filter, None).unwrap();
                }
                Step::Look => {}
                Step::ShortLook => in_short = true,
            }
            let real = filter.filter(|text| !text.trim().is_empty());
            let mut expected = matching(&place.plain(), real);
            let mut subscription = place.subscription(&consumer);
            expected.retain(|&id| id > subscription.last_acked_id);
            if in_short {
                let look = short_look(&mut place, &subscription);
                prop_assert!(look.cut_short || look.first == expected.first().copied());
                subscription = place.subscription(&consumer);
            }
            // Looks for pending events as a dispatch does, and then reads as a pop does, from the stored watermark on.
            let look = place.look(&subscription);
            prop_assert_eq!(look.first, expected.first().copied(), "{:?}", filter);
            prop_assert_eq!((look.newest, look.cut_short), (newest, false));
            let subscription = place.subscription(&consumer);
            let checked = Filter::new(real.unwrap_or(""), Scope::Subscription).unwrap();
            let after = subscription.scanned_upto(subscription.last_acked_id);
            let read = place.read(after, checked.as_ref());
            prop_assert_eq!(read, expected, "{:?} with {:?}", filter, subscription.watermark);
        }
    }
}

#[test]
fn a_look_without_a_match_is_recorded_and_failures_are_reported_once() {
    let mut place = Place::new();
    place.subscribe(&bot(), Some(FAILS), None).unwrap();
    let mut events = vec![Parts::record("1"); 1000];
    events[499] = Parts::record("not json");
    place.store(&events);
    let look = |place: &mut Place| {
        let subscription = place.subscription(&bot());
        place.look(&subscription).failures.into_iter().map(|failure| failure.id).collect::<Vec<_>>()
    };
    assert_eq!(look(&mut place), [500]);
    let subscription = place.subscription(&bot());
    assert_eq!((subscription.scanned_upto(0), subscription.filter_errors), (1000, 1));
    // Corrupt an old event: evaluating the filter on it again would report a failure.
    place.plain().execute("UPDATE events SET content = 'spoilt' WHERE id = 700", []).unwrap();
    assert_eq!(look(&mut place), [0i64; 0]);
    // Without a failure it is recorded once that is worth a write.
    for (more, recorded) in [(255, 1000), (1, 1256)] {
        place.store(&vec![Parts::record("1"); more]);
        look(&mut place);
        assert_eq!(place.subscription(&bot()).scanned_upto(0), recorded);
    }
}

#[test]
fn a_look_past_its_deadline_keeps_its_progress() {
    let mut place = Place::new();
    place.subscribe(&bot(), Some("content = 'rare'"), None).unwrap();
    let mut events = vec![Parts::record("common"); 200];
    events.push(Parts::record("rare"));
    place.store(&events);
    let mut looks = 0;
    let mut gained = 0;
    let found = loop {
        let subscription = place.subscription(&bot());
        let look = short_look(&mut place, &subscription);
        looks += 1;
        if !look.cut_short {
            break look.first;
        }
        let upto = place.subscription(&bot()).scanned_upto(0);
        assert!(upto > gained, "nothing was gained after {gained}");
        gained = upto;
    };
    assert_eq!(found, Some(201));
    assert!(looks > 1, "it was never cut short");
}
