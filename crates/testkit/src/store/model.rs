//! Any sequence of operations has the same results on every store.
//!
//! Values that stores choose themselves, times, tokens and revisions, are normalised before comparing.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::slice;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};
use thread::error::{Error, Result};
use thread::model::event::NewEvent;
use thread::model::run::{Deliver, Exit, Options, Phase, RunState};
use thread::model::subscription::{NewSubscription, Subscription};
use thread::pending::{self, CountLimits};
use thread::store::{DeadLetterUpdate, FilterFailure, Move, PruneRange, RunUpdate, ScanRange, Store, Stored};

use super::Fresh;
use super::conformance::{EVERYTHING, FILTERS, events, filter, name, new_subscription, noon, prune};

/// An event made of a few fixed values, so that keys collide and filters match some of the events.
#[derive(Debug, Clone)]
struct Parts {
    source: &'static str,
    kind: &'static str,
    subtype: Option<&'static str>,
    content: &'static str,
    metadata: Option<&'static str>,
    key: Option<&'static str>,
}

#[derive(Debug, Clone)]
enum Op {
    /// The feed fails after this many events, if there are that many.
    Append(Vec<Parts>, usize),
    Read {
        after: i64,
        upto: i64,
        limit: usize,
        stop_after: usize,
    },
    Scan {
        filter: usize,
        after: i64,
        upto: i64,
        most: usize,
    },
    /// Looks for pending events, and stores the watermark.
    Look(&'static str),
    Subscribe {
        consumer: &'static str,
        filter: Option<usize>,
        deliver: Deliver,
        from: Option<i64>,
        replace: bool,
    },
    Unsubscribe(&'static str),
    Move(&'static str, i64, Move),
    /// Based on a subscription as it is now, or as it was `ago` steps before.
    UpdateRun {
        consumer: &'static str,
        ago: usize,
        update: Box<RunUpdate>,
    },
    Remember {
        consumer: &'static str,
        ago: usize,
        upto: i64,
        failures: Vec<i64>,
    },
    Retry(&'static str, Option<i64>),
    Discard(&'static str, Option<i64>),
    /// `seen`: use the subscriptions as they were this many steps before.
    Prune {
        after: i64,
        upto: i64,
        subtype: Option<&'static str>,
        dead_letters: bool,
        seen: Option<usize>,
        dry_run: bool,
    },
    /// Opens a new connection, if the store has connections.
    Reopen,
}

fn parts() -> impl Strategy<Value = Parts> {
    let pick = prop::sample::select::<&'static str>;
    (
        pick(vec!["self", "internal:dm:a:b"]),
        pick(vec!["message", "record"]),
        prop::option::of(pick(vec!["1", "decision", ""])),
        pick(vec!["", "5", "no JSON", r#"{"n":2}"#, r#"{"n":3}"#, "☃é", "self"]),
        prop::option::weighted(0.3, pick(vec!["{}", r#"{"run_id":"r1"}"#])),
        prop::option::weighted(0.4, pick(vec!["k", "l", "m"])),
    )
        .prop_map(|(source, kind, subtype, content, metadata, key)| Parts {
            source,
            kind,
            subtype,
            content,
            metadata,
            key,
        })
}

fn consumer() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "b"])
}

/// Ids of existing, deleted or future events.
fn id() -> impl Strategy<Value = i64> {
    prop_oneof![10 => 0..16_i64, 1 => Just(i64::MAX)]
}

fn exit() -> impl Strategy<Value = Exit> {
    prop::sample::select(vec![Exit::Code(1), Exit::Signal(9), Exit::TimedOut, Exit::Unknown])
}

fn dead_letter() -> impl Strategy<Value = DeadLetterUpdate> {
    (id(), 1..4_u32, exit(), 0..9_u64, 0..5).prop_map(|(event_id, attempts, exit, after, which)| {
        let (error, at) = (format!("error {after}"), noon() + Duration::from_millis(after));
        match which {
            0 => DeadLetterUpdate::Remove { event_id },
            1 => DeadLetterUpdate::FailedAgain { event_id, exit, error, at },
            2 => DeadLetterUpdate::Redo { event_id, at },
            _ => DeadLetterUpdate::Insert { event_id, attempts, exit, error, at },
        }
    })
}

fn run_update() -> impl Strategy<Value = RunUpdate> {
    let phase = prop::sample::select(vec![Phase::Idle, Phase::Running, Phase::Waiting, Phase::Stalled]);
    let state = (phase, any::<bool>(), 0..4_u32, prop::option::of(exit())).prop_map(
        |(phase, paused, attempts, last_exit)| RunState {
            phase,
            paused,
            attempts,
            last_exit,
            since: Some(noon()),
            ..RunState::default()
        },
    );
    let acknowledge = prop::option::weighted(0.3, id());
    let dead_letter = prop::option::weighted(0.5, dead_letter());
    (state, acknowledge, dead_letter, prop::bool::weighted(0.2), any::<bool>()).prop_map(
        |(state, acknowledge, dead_letter, cancel_retries, durable)| RunUpdate {
            state,
            acknowledge,
            ledger: Vec::new(),
            dead_letters: dead_letter.into_iter().collect(),
            cancel_retries,
            step: None,
            runs: Vec::new(),
            figures: None,
            durable,
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    let deliver = prop::sample::select(vec![Deliver::Wake, Deliver::Stdin]);
    let how = prop::sample::select(vec![Move::Acknowledge, Move::Seek]);
    let some_filter = 0..FILTERS.len();
    let ago = prop_oneof![4 => Just(0_usize), 1 => 1..4_usize];
    let most = prop_oneof![0..5_usize, Just(usize::MAX)];
    let subtype = prop::option::weighted(0.3, prop::sample::select(vec!["1", "decision"]));
    let flag = prop::bool::weighted(0.3);
    let one_or_all = || prop::option::weighted(0.6, id());
    prop_oneof![
        5 => (prop::collection::vec(parts(), 0..4), 0..12_usize).prop_map(|(parts, fail)| Op::Append(parts, fail)),
        1 => (prop::collection::vec(parts(), 15..40), 0..120_usize).prop_map(|(parts, fail)| Op::Append(parts, fail)),
        1 => (id(), id(), most.clone(), 0..5_usize)
            .prop_map(|(after, upto, limit, stop_after)| Op::Read { after, upto, limit, stop_after }),
        2 => (some_filter.clone(), id(), id(), most)
            .prop_map(|(filter, after, upto, most)| Op::Scan { filter, after, upto, most }),
        3 => consumer().prop_map(Op::Look),
        3 => (consumer(), prop::option::of(some_filter), deliver, prop::option::of(id()), flag)
            .prop_map(|(consumer, filter, deliver, from, replace)| {
                Op::Subscribe { consumer, filter, deliver, from, replace }
            }),
        1 => consumer().prop_map(Op::Unsubscribe),
        4 => (consumer(), id(), how).prop_map(|(consumer, id, how)| Op::Move(consumer, id, how)),
        5 => (consumer(), ago.clone(), run_update())
            .prop_map(|(consumer, ago, update)| Op::UpdateRun { consumer, ago, update: Box::new(update) }),
        2 => (consumer(), ago.clone(), id(), prop::collection::vec(id(), 0..3))
            .prop_map(|(consumer, ago, upto, failures)| Op::Remember { consumer, ago, upto, failures }),
        2 => (consumer(), one_or_all()).prop_map(|(consumer, id)| Op::Retry(consumer, id)),
        1 => (consumer(), one_or_all()).prop_map(|(consumer, id)| Op::Discard(consumer, id)),
        2 => (id(), id(), subtype, flag, prop::option::of(ago), flag).prop_map(
            |(after, upto, subtype, dead_letters, seen, dry_run)| {
                Op::Prune { after, upto, subtype, dead_letters, seen, dry_run }
            },
        ),
        1 => Just(Op::Reopen),
    ]
}

/// Initial operations, so that most of the later ones have an effect.
fn beginning() -> Vec<Op> {
    let parts = |content| Parts {
        source: "self",
        kind: "message",
        subtype: Some("decision"),
        content,
        metadata: None,
        key: (content == "5").then_some("k"),
    };
    let insert = |event_id| DeadLetterUpdate::Insert {
        event_id,
        attempts: 1,
        exit: Exit::Code(1),
        error: String::new(),
        at: noon(),
    };
    let make_dead = |consumer, event_id| {
        let update =
            RunUpdate { dead_letters: vec![insert(event_id)], ..RunUpdate::state(RunState::default()) };
        Op::UpdateRun { consumer, ago: 0, update: Box::new(update) }
    };
    let subscribe = |consumer, filter| {
        let (deliver, from) = (Deliver::Stdin, Some(2));
        Op::Subscribe { consumer, filter, deliver, from, replace: false }
    };
    vec![
        Op::Append(["5", "no JSON", r#"{"n":2}"#, "self", "", "☃é"].map(parts).to_vec(), usize::MAX),
        subscribe("a", None),
        subscribe("b", Some(9)),
        make_dead("a", 1),
        make_dead("b", 3),
    ]
}

/// A store, and what a caller has read from it.
struct World {
    fresh: Fresh,
    /// The subscriptions after each step, newest last.
    history: Vec<Vec<Subscription>>,
    /// Number of each token, in order of appearance.
    tokens: HashMap<String, usize>,
    /// The same of the revisions of each.
    revisions: HashMap<(String, i64), i64>,
}

impl World {
    fn new(fresh: Fresh) -> World {
        World { fresh, history: vec![Vec::new()], tokens: HashMap::new(), revisions: HashMap::new() }
    }

    fn ago(&self, steps: usize) -> &[Subscription] {
        &self.history[self.history.len().saturating_sub(steps + 1)]
    }

    fn seen(&self, consumer: &str, ago: usize) -> Option<Subscription> {
        self.ago(ago).iter().find(|subscription| subscription.consumer.as_str() == consumer).cloned()
    }

    /// Normalises the values that a store chooses.
    fn plain(&mut self, subscription: Subscription) -> Subscription {
        let next = self.tokens.len();
        let token = self.tokens.entry(subscription.token.clone()).or_insert(next).to_string();
        let next = self.revisions.len() as i64;
        let revision = *self.revisions.entry((token.clone(), subscription.revision)).or_insert(next);
        let updated_at = subscription.updated_at.map(|_| "then".to_owned());
        Subscription { token, revision, updated_at, ..subscription }
    }

    /// Performs an operation. Returns its result and all observable content of the store.
    fn run(&mut self, op: &Op) -> String {
        let result = match self.apply(op) {
            Ok(result) => result,
            Err(
                e @ (Error::KeyConflict { .. } | Error::AlreadySubscribed(_) | Error::UnknownConsumer(_)),
            ) => e.to_string(),
            Err(Error::Other(told)) => told,
            Err(e) => panic!("{op:?}: {e}"),
        };
        let store = &mut *self.fresh.store;
        let mut stored = events(store);
        stored.iter_mut().for_each(|event| event.created_at = String::new());
        let counts: Vec<_> =
            (0..16).map(|id| (store.first_after(id).unwrap(), store.count(id, i64::MAX).unwrap())).collect();
        let (newest, dead) = (store.newest().unwrap(), store.dead_letters(None).unwrap());
        let subscriptions = store.subscriptions().unwrap();
        for subscription in &subscriptions {
            let consumer = &subscription.consumer;
            assert_eq!(store.subscription(consumer).unwrap().as_ref(), Some(subscription));
            let own: Vec<_> = dead.iter().filter(|dead| dead.consumer == *consumer).cloned().collect();
            assert_eq!(store.dead_letters(Some(consumer)).unwrap(), own);
        }
        self.history.push(subscriptions.clone());
        let subscriptions: Vec<_> = subscriptions.into_iter().map(|s| self.plain(s)).collect();
        format!("{result}\n{newest} {counts:?}\n{stored:?}\n{subscriptions:#?}\n{dead:?}")
    }

    fn apply(&mut self, op: &Op) -> Result<String> {
        let store = &mut *self.fresh.store;
        Ok(match op.clone() {
            Op::Append(parts, fail) => append(store, &parts, fail)?,
            Op::Read { after, upto, limit, stop_after } => {
                let mut ids = Vec::new();
                store.read(after, upto, limit, &mut |row| {
                    ids.push(row.id);
                    if ids.len() == stop_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                })?;
                format!("{ids:?}")
            }
            Op::Scan { filter: text, after, upto, most } => {
                let upto = upto.min(store.newest()?);
                let scan =
                    store.scan(&filter(FILTERS[text]), ScanRange { after, upto, most, until: None })?;
                // `upto` is unspecified if there was nothing to evaluate.
                format!("{:?} {:?} {}", scan.ids, scan.failures, scan.upto.max(after))
            }
            Op::Look(consumer) => match store.subscription(&name(consumer))? {
                Some(subscription) => {
                    let look = pending::scan(store, &subscription, None, true)?;
                    let count = match look.first {
                        Some(first) => {
                            let limits = CountLimits::NONE;
                            pending::count(store, &subscription, first, false, limits, &mut |_| {})?.events
                        }
                        None => 0,
                    };
                    format!("{look:?}, {count} pending")
                }
                None => String::new(),
            },
            Op::Subscribe { consumer, filter, deliver, from, replace } => {
                let new = NewSubscription {
                    filter: filter.map(|filter| FILTERS[filter].to_owned()),
                    options: Options { deliver, ..Options::default() },
                    from,
                    replace,
                    ..new_subscription(consumer)
                };
                format!("{:?}", store.subscribe(&new)?)
            }
            Op::Unsubscribe(consumer) => {
                let removed = store.unsubscribe(&name(consumer))?;
                format!("{:?}", self.plain(removed))
            }
            Op::Move(consumer, id, how) => format!("{:?}", store.move_cursor(&name(consumer), id, how)?),
            Op::UpdateRun { consumer, ago, update } => match self.seen(consumer, ago) {
                Some(seen) => {
                    let updated = self.fresh.store.update_run(&seen, &update)?;
                    format!("{:?}", updated.map(|updated| self.plain(updated)))
                }
                None => String::new(),
            },
            Op::Remember { consumer, ago, upto, failures } => {
                if let Some(seen) = self.seen(consumer, ago) {
                    let failure = |&id: &i64| FilterFailure { id, message: "no".to_owned() };
                    let failures: Vec<_> = failures.iter().map(failure).collect();
                    self.fresh.store.remember_scan(&seen, upto, &failures)?;
                }
                String::new()
            }
            Op::Retry(consumer, event) => {
                store.retry_dead_letters(&name(consumer), event.as_ref().map(slice::from_ref))?.to_string()
            }
            Op::Discard(consumer, event) => {
                store.discard_dead_letters(&name(consumer), event.as_ref().map(slice::from_ref))?.to_string()
            }
            Op::Prune { after, upto, subtype, dead_letters, seen, dry_run } => {
                let seen = seen.map(|ago| self.ago(ago).to_owned());
                let seen = seen.as_deref();
                let range = PruneRange { after, upto, subtype, dead_letters, seen, dry_run, ..EVERYTHING };
                format!("{:?}", prune(&mut *self.fresh.store, range))
            }
            Op::Reopen => {
                if let Some(reopen) = &self.fresh.reopen {
                    self.fresh.store = reopen();
                }
                String::new()
            }
        })
    }
}

fn append(store: &mut dyn Store, parts: &[Parts], fail: usize) -> Result<String> {
    let mut told = Vec::new();
    let appended = store.append(&mut |put| {
        for (n, parts) in parts.iter().enumerate() {
            if n == fail {
                return Err(Error::Other("the feed failed".to_owned()));
            }
            let event =
                NewEvent::new(parts.source, parts.kind, parts.subtype.map(Into::into), parts.content)?;
            let event = match parts.metadata {
                Some(metadata) => event.with_metadata(metadata)?,
                None => event,
            };
            let event = match parts.key {
                Some(key) => event.with_key(key)?,
                None => event,
            };
            told.extend(put(&[event])?);
        }
        Ok(())
    })?;
    let stored = events(store);
    for stored_as in &mut told {
        let (Stored::New(id) | Stored::Repeated { id, .. }) = *stored_as else { continue };
        let event = stored.iter().find(|event| event.id == id).expect("what was stored is there");
        match stored_as {
            Stored::New(_) => assert_eq!(event.created_at, appended.created_at),
            Stored::Repeated { created_at, .. } => {
                assert_eq!(event.created_at, std::mem::take(created_at));
            }
            Stored::Scheduled { .. } => {}
        }
    }
    Ok(format!("{told:?} {} {:?} {:?}", appended.count, appended.first_id, appended.last_id))
}

/// Compares two stores after random sequences of operations, in `cases` cases or in `PROPTEST_CASES`. `stores` returns
/// two empty stores, or `None` if the machine lacks something.
///
/// # Panics
///
/// If they differ.
pub fn all_stores_behave_the_same(cases: u32, stores: impl Fn() -> Option<[Fresh; 2]>) {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(cases);
    let seed = RngSeed::Fixed(20_260_318);
    let config = Config { cases, rng_seed: seed, failure_persistence: None, ..Config::default() };
    proptest!(config, |(ops in prop::collection::vec(op(), 1..60))| {
        let Some(stores) = stores() else { return Ok(()) };
        let mut worlds = stores.map(World::new);
        for (step, op) in beginning().iter().chain(&ops).enumerate() {
            let [memory, other] = &mut worlds;
            let (expected, actual) = (memory.run(op), other.run(op));
            prop_assert!(
                expected == actual,
                "after step {step}, {op:?}\nin memory: {expected}\nin the other: {actual}"
            );
        }
    });
}
