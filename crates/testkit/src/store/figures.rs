//! What is counted, compared with a simple model.

use std::time::Duration;

use chrono::{TimeDelta, Utc};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};
use thread::model::figures::Figures;
use thread::model::run::RunState;
use thread::model::time::{self, Time};
use thread::queue::figures::Span;
use thread::store::{PruneRange, RunUpdate};
use thread::{NewEvent, Queue};

use super::conformance::{EVERYTHING, append, message, name, new_subscription, prune};

const SPANS: [Span; 5] = [Span::QUARTER, Span::HOUR, Span::DAY, Span::WEEK, Span::MONTH];
const CONSUMERS: [&str; 2] = ["a", "b"];

#[derive(Debug, Clone)]
enum Op {
    /// So many events come.
    Push(usize, Option<&'static str>),
    /// A consumer ends runs that took so long, each with this number of events; or they fail, and are perhaps dead.
    Run(usize, Vec<(Duration, Result<u64, bool>)>),
    /// Deletes some of the oldest events, in percent, perhaps only of one subtype.
    Prune(i64, Option<&'static str>),
    /// Merges at most so many rows.
    Merge(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let subtype = || prop::option::of(prop::sample::select(vec!["x", "y"]));
    let took = prop_oneof![Just(0), 1..100_u64, 1..10_000_000_u64].prop_map(Duration::from_millis);
    let run = (took, prop_oneof![3 => (0..20_u64).prop_map(Ok), 1 => any::<bool>().prop_map(Err)]);
    prop_oneof![
        6 => (1..30_usize, subtype()).prop_map(|(count, subtype)| Op::Push(count, subtype)),
        6 => (0..CONSUMERS.len(), prop::collection::vec(run, 1..4)).prop_map(|(who, runs)| Op::Run(who, runs)),
        2 => (0..=100_i64, subtype()).prop_map(|(percent, subtype)| Op::Prune(percent, subtype)),
        1 => (1..50_usize).prop_map(Op::Merge),
    ]
}

/// How long before now each operation happens, in milliseconds: the oldest first.
fn ops() -> impl Strategy<Value = Vec<(i64, Op)>> {
    let ago = prop_oneof![
        3 => 0..20 * 60 * 1000_i64,
        3 => 0..30 * 60 * 60 * 1000_i64,
        2 => 0..35 * 24 * 60 * 60 * 1000_i64,
    ];
    prop::collection::vec((ago, op()), 1..60).prop_map(|mut ops| {
        ops.sort_by_key(|(ago, _)| -ago);
        ops
    })
}

/// Stores events, ends runs, deletes and merges at random, and compares what is counted with what happened. `fresh`
/// returns an empty thread, or `None` if the machine lacks something.
///
/// # Panics
///
/// If they differ.
pub fn figures_are_those_of_a_model(cases: u32, fresh: impl Fn() -> Option<Queue>) {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(cases);
    let seed = RngSeed::Fixed(20_260_318);
    let config = Config { cases, rng_seed: seed, failure_persistence: None, ..Config::default() };
    proptest!(config, |(ops in ops())| {
        let Some(mut queue) = fresh() else { return Ok(()) };
        let base = Utc::now();
        let (mut pushed, mut done): (Vec<Time>, Vec<(usize, Time, Figures)>) = Default::default();
        for consumer in CONSUMERS {
            queue.store().subscribe(&new_subscription(consumer)).unwrap();
        }
        for (ago, op) in &ops {
            run(&mut queue, op, base - TimeDelta::milliseconds(*ago), &mut pushed, &mut done);
        }
        for span in SPANS {
            let now = Utc::now();
            let series = queue.series(None, span, now).unwrap();
            let (first, periods) = (now.timestamp().div_euclid(span.seconds) - span.periods + 1, span.periods as usize);
            let period = |time: Time| usize::try_from(time.timestamp().div_euclid(span.seconds) - first).ok();
            let mut arrived = vec![0; periods];
            pushed.iter().filter_map(|at| period(*at)).for_each(|n| arrived[n] += 1);
            prop_assert_eq!(&series.arrived, &arrived, "{:?}", span);
            for (who, (subscription, figures)) in series.consumers.iter().enumerate() {
                prop_assert_eq!(subscription.consumer.as_str(), CONSUMERS[who]);
                let mut expected = vec![Figures::default(); periods];
                for (_, at, one) in done.iter().filter(|(of, _, _)| *of == who) {
                    if let Some(n) = period(*at) {
                        expected[n] += one;
                    }
                }
                prop_assert_eq!(figures, &expected, "{:?}", span);
            }
        }
        // All minutes of the last day, a row for each hour before it, of two consumers and the thread.
        while queue.store().merge_figures(Utc::now(), 100).unwrap() {}
        let rows = queue.store().figures(0).unwrap();
        let minutes = rows.iter().filter(|row| row.at < (Utc::now() - TimeDelta::hours(27)).timestamp());
        prop_assert!(minutes.clone().all(|row| row.seconds == 3600), "{:?}", minutes);
        prop_assert!(rows.iter().all(|row| row.at > (base - TimeDelta::hours(30 * 24 + 1)).timestamp()));
    });
}

fn run(queue: &mut Queue, op: &Op, at: Time, pushed: &mut Vec<Time>, done: &mut Vec<(usize, Time, Figures)>) {
    match op {
        Op::Push(count, subtype) => {
            let event = message("x");
            let subtype = subtype.map(Into::into);
            let event = NewEvent { created_at: Some(time::format(at).into()), subtype, ..event };
            append(queue.store(), &vec![event; *count]).unwrap();
            pushed.extend(vec![at; *count]);
        }
        Op::Run(who, runs) => {
            let mut figures = Figures::default();
            for (took, result) in runs {
                match result {
                    Ok(events) => figures.handled(*events, Some(*took)),
                    Err(is_dead) => figures.failed(*is_dead, Some(*took)),
                }
            }
            let seen = queue.store().subscription(&name(CONSUMERS[*who])).unwrap().unwrap();
            let update =
                RunUpdate { figures: Some((at, figures.clone())), ..RunUpdate::state(RunState::default()) };
            let store = queue.store();
            assert!(store.update_run(&seen, &update).unwrap().is_some());
            // What is refused is not counted.
            assert!(store.update_run(&seen, &update).unwrap().is_none());
            done.push((*who, at, figures));
        }
        Op::Prune(percent, subtype) => {
            let upto = queue.store().newest().unwrap() * percent / 100;
            let range = PruneRange { upto, subtype: *subtype, ..EVERYTHING };
            prune(queue.store(), PruneRange { dry_run: true, ..range });
            prune(queue.store(), range);
        }
        Op::Merge(most) => {
            queue.store().merge_figures(Utc::now(), *most).unwrap();
        }
    }
}
