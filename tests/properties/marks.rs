//! What is remembered of a filter saves work and never hides a match.

use proptest::prelude::*;
use thread::filter::Scope;
use thread::store::Reading;
use thread::subscription::ConsumerId;

use crate::world::{Parts, Place, cases, matching};

/// Rare matches, so that marks have far to go; one errs on some events, one is no filter.
const FILTERS: &[Option<&str>] = &[
    Some("content = 'rare'"),
    Some("content LIKE 'RARE' AND type = 'message'"),
    Some("json_extract(content, '$') = 5"),
    Some("id % 1009 = 0"),
    Some("0"),
    Some("  "),
    None,
];

#[derive(Debug, Clone)]
enum Step {
    /// That many common events, and perhaps a rare one in their midst.
    Push(usize, Option<&'static str>),
    Cursor(prop::sample::Index),
    Rewind,
    ToTheEnd,
    /// Another program changes the filter under the subscription.
    ChangeFilter(usize),
    Subscribe(usize),
    Look,
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
    ]
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn no_mark_ever_hides_a_match(steps in prop::collection::vec(step(), 1..30)) {
        let mut place = Place::new();
        let consumer = ConsumerId::new("bot").unwrap();
        place.subscribe(&consumer, FILTERS[0]);
        let (mut filter, mut newest) = (FILTERS[0], 0);
        for step in steps {
            match step {
                Step::Push(count, rare) => {
                    let common = Parts { source: "s".into(), kind: "message", subtype: None, content: "0".into() };
                    let mut events = vec![common; count];
                    if let Some(rare) = rare {
                        events[count / 2].content = rare.into();
                    }
                    place.push(&events);
                    newest += count as i64;
                }
                Step::Cursor(at) => {
                    place.thread.store.set_cursor(&consumer, at.index(newest as usize + 1) as i64).unwrap();
                }
                Step::Rewind => drop(place.thread.store.set_cursor(&consumer, 0).unwrap()),
                Step::ToTheEnd => drop(place.thread.store.acknowledge(&consumer, newest).unwrap()),
                Step::ChangeFilter(n) => {
                    filter = FILTERS[n];
                    place.plain().execute("UPDATE subscriptions SET filter = ?", [filter]).unwrap();
                }
                Step::Subscribe(n) => {
                    filter = FILTERS[n];
                    prop_assert!(place.thread.store.unsubscribe(&consumer).unwrap().is_some());
                    place.subscribe(&consumer, filter);
                }
                Step::Look => {}
            }
            let real = filter.filter(|text| !text.trim().is_empty());
            let subscription = place.thread.store.subscription(&consumer).unwrap().unwrap();
            let mut expected = matching(&place.plain(), real);
            expected.retain(|&id| id > subscription.last_acked_id);
            // As a dispatch looks, and then, with what that has remembered, as a pop reads.
            let look = place.thread.store.look(&subscription).unwrap();
            prop_assert_eq!(look.first_pending, expected.first().copied(), "{:?}", filter);
            prop_assert_eq!(look.newest, newest);
            prop_assert_eq!(look.broken_filter, None);
            let subscription = place.thread.store.subscription(&consumer).unwrap().unwrap();
            let checked = place.thread.store.check_filter(real.unwrap_or(""), Scope::Subscription).unwrap();
            let after = subscription.known_upto(subscription.last_acked_id);
            let read = place.read(Reading { after, left: None, filter: checked.as_ref() });
            prop_assert_eq!(read, expected, "{:?} with {:?}", filter, subscription.mark);
        }
    }
}

#[test]
fn a_look_that_finds_nothing_is_remembered_and_troubles_are_told_once() {
    let mut place = Place::new();
    let consumer = ConsumerId::new("bot").unwrap();
    let filter = "json_extract(content, '$') = 5";
    place.subscribe(&consumer, Some(filter));
    let event = |content: &str| Parts {
        source: "s".into(),
        kind: "record",
        subtype: None,
        content: content.to_owned(),
    };
    let mut events = vec![event("1"); 1000];
    events[499] = event("not json");
    place.push(&events);
    let look = |place: &mut Place| {
        let subscription = place.thread.store.subscription(&consumer).unwrap().unwrap();
        let troubles = place.thread.store.look(&subscription).unwrap().troubles;
        troubles.into_iter().map(|trouble| trouble.id).collect::<Vec<_>>()
    };
    assert_eq!(look(&mut place), [500]);
    let subscription = place.thread.store.subscription(&consumer).unwrap().unwrap();
    assert_eq!((subscription.known_upto(0), subscription.filter_errors), (1000, 1));
    // Somebody spoils an old event: whoever looked at it again would say so.
    place.plain().execute("UPDATE events SET content = 'spoilt' WHERE id = 700", []).unwrap();
    assert_eq!(look(&mut place), [0i64; 0]);
}

#[test]
fn a_look_that_takes_long_keeps_the_ground_it_has_gained() {
    let mut place = Place::new();
    let consumer = ConsumerId::new("bot").unwrap();
    // Slow, but within the limits: many searches of a long text that all end at its end.
    let search = format!("content LIKE '%{}b'", "a".repeat(20));
    let filter = vec![search; 2].join(" OR ");
    place.subscribe(&consumer, Some(&filter));
    let content = "a".repeat(100_000);
    let event = Parts { source: "s".into(), kind: "record", subtype: None, content };
    place.push(&vec![event; 200]);
    let subscription = place.thread.store.subscription(&consumer).unwrap().unwrap();
    let plain = place.plain();
    let looking = std::thread::spawn(move || place.thread.store.look(&subscription).unwrap());
    let mark = || {
        let sql = "SELECT coalesce(mark_upto, 0) FROM subscriptions";
        plain.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap()
    };
    while mark() == 0 {
        assert!(!looking.is_finished(), "nothing was kept on the way");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(mark() < 200, "it was kept at the end alone");
    let look = looking.join().unwrap();
    assert_eq!((look.first_pending, look.troubles.len()), (None, 0));
}
