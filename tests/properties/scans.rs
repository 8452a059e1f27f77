//! However a scan is divided, its result agrees with evaluating the filter on each event alone.

use proptest::prelude::*;
use proptest::sample::Index;
use std::time::Instant;
use thread::After;
use thread::model::filter::Filter;
use thread::store::{FilterFailure, Scan, ScanRange};

use crate::filters::filter;
use crate::world::{Parts, Place, cases, parts};

/// Odd JSON and large events, which exceed a limit of some filters and make others fail.
fn odd_content() -> impl Strategy<Value = String> {
    let deep = |open: &str, depth| open.repeat(depth);
    prop_oneof![
        Just(r#"{"n":1,"n":2}"#.to_owned()),
        Just(r#"{"n":1e999,"k":-0.0}"#.to_owned()),
        Just(r#"{n: 'JSON5', k: +.5,}"#.to_owned()),
        Just(r#"{"n":"\ud800","k":"\u0000"}"#.to_owned()),
        Just("{\"n\":9223372036854775808}\n".to_owned()),
        Just(format!("{}7{}", deep("[", 900), deep("]", 900))),
        Just(format!("{}7{}", deep("{\"n\":", 2000), deep("}", 2000))),
        Just("9".repeat(5000)),
        Just("self".repeat(100)),
        Just(format!("{{\"n\":7,\"k\":\"{}\"}}", "y".repeat(600_000))),
        Just("x".repeat(1_100_000)),
        any::<String>(),
    ]
}

pub fn odd() -> impl Strategy<Value = Parts> {
    (parts(), odd_content()).prop_map(|(parts, content)| Parts { content, ..parts })
}

/// How to perform one part of a scan.
#[derive(Debug, Clone, Copy)]
struct How {
    /// Sort key for the order of the parts.
    order: u32,
    /// Maximum matches per call.
    most: usize,
    /// Use an expired deadline.
    late: bool,
}

fn how() -> impl Strategy<Value = How> {
    let most = prop_oneof![1..4usize, Just(usize::MAX)];
    (any::<u32>(), most, any::<bool>()).prop_map(|(order, most, late)| How { order, most, late })
}

fn asked_one_by_one(place: &mut Place, filter: &Filter) -> Scan {
    let mut scan = Scan { upto: place.queue.store().newest().unwrap(), ..Scan::default() };
    for event in place.queue.read(After(0), None).unwrap() {
        match filter.matches(&event.row()) {
            Ok(true) => scan.ids.push(event.id),
            Ok(false) => {}
            Err(e) => scan.failures.push(FilterFailure { id: event.id, message: e.0 }),
        }
    }
    scan
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn a_scan_in_any_parts_and_order_agrees_with_evaluating_each_event(
        common in prop::collection::vec(parts(), 1..40),
        odd in prop::collection::vec(odd(), 0..4),
        gaps in prop::collection::vec(any::<Index>(), 0..4),
        far: bool,
        filters in prop::collection::vec(filter(), 6),
        cuts in prop::collection::vec((any::<Index>(), how()), 0..6),
        last in how(),
    ) {
        let mut place = Place::new();
        place.store(&common);
        place.store(&odd);
        let newest = (common.len() + odd.len()) as i64;
        // Other programs may leave gaps of any width.
        let plain = place.plain();
        for gap in gaps {
            plain.execute("DELETE FROM events WHERE id = ?", [gap.index(newest as usize) as i64 + 1]).unwrap();
        }
        if far {
            let sql = "INSERT INTO events (id, source, type, content) VALUES (?, 'self', 'message', '7')";
            plain.execute(sql, [newest + 3_000_000_000]).unwrap();
        }
        let newest = place.queue.store().newest().unwrap();
        let mut ends: Vec<(i64, How)> =
            cuts.iter().map(|(at, how)| (at.index(newest as usize + 1) as i64, *how)).collect();
        ends.push((newest, last));
        ends.sort_by_key(|&(end, _)| end);
        let starts: Vec<i64> = std::iter::once(0).chain(ends.iter().map(|&(end, _)| end)).collect();
        let mut ranges: Vec<(i64, (i64, How))> = starts.into_iter().zip(ends).collect();
        ranges.sort_by_key(|(_, (_, how))| how.order);
        for filter in filters {
            let expected = asked_one_by_one(&mut place, &filter);
            let mut found = Scan { upto: newest, ..Scan::default() };
            for &(start, (end, how)) in &ranges {
                let mut after = start;
                while after < end {
                    let until = how.late.then(Instant::now);
                    let range = ScanRange { after, upto: end, most: how.most, until };
                    let scan = place.queue.store().scan(&filter, range).unwrap();
                    prop_assert!(after < scan.upto && scan.upto <= end, "{range:?} came to {}", scan.upto);
                    prop_assert!(scan.ids.len() <= how.most);
                    let ended = how.late || scan.ids.len() == how.most || scan.upto == end;
                    prop_assert!(ended, "{range:?} ended at {} for no reason", scan.upto);
                    found.ids.extend(scan.ids);
                    found.failures.extend(scan.failures);
                    after = scan.upto;
                }
            }
            found.ids.sort_unstable();
            found.failures.sort_by_key(|failure| failure.id);
            prop_assert!(found == expected, "{}:\nin parts:   {found:?}\none by one: {expected:?}", filter.text());
        }
    }
}
