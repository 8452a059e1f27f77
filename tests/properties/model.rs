//! A thread against a plain model of it in memory, through random histories.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use proptest::sample::Index;
use thread::batch::Batch;
use thread::filter::Scope;
use thread::journal;
use thread::prune::{Old, Plan};
use thread::store::{Counting, Moved, Reading, Subscribed};
use thread::subscription::ConsumerId;
use thread::thread::Thread;

use crate::world::{Parts, Place, cases, parts};

static STEPS: AtomicU64 = AtomicU64::new(0);
static CASES: AtomicU64 = AtomicU64::new(0);

/// A filter and what it means, said twice: in SQL and in Rust.
type Meaning = fn(i64, &Parts) -> bool;
const FILTERS: &[(Option<&str>, Meaning)] = &[
    (None, |_, _| true),
    (Some("type = 'message'"), |_, e| e.kind == "message"),
    (Some("source = 'self' OR subtype IS NULL"), |_, e| e.source == "self" || e.subtype.is_none()),
    (Some("id % 3 = 0 AND type <> 'message'"), |id, e| id % 3 == 0 && e.kind != "message"),
    (Some("instr(content, 'text') > 0"), |_, e| e.content.contains("text")),
    (Some("subtype IN ('toolcall', '10') -- some"), |_, e| {
        matches!(e.subtype.as_deref(), Some("toolcall" | "10"))
    }),
    (Some("date(created_at) < '2000-01-01'"), |_, _| false),
];

#[derive(Debug, Clone)]
enum Step {
    Init,
    Push(Parts),
    Batch(Vec<Parts>, Option<usize>),
    Pop(usize, Index, u64),
    Acknowledge(usize, Index),
    Rewind(usize),
    TooFar(usize),
    Subscribe(usize, usize, Option<Index>),
    Unsubscribe(usize),
    Pause(usize),
    Resume(usize),
    /// More than a file of the copy takes.
    Rotate,
    /// Before that id; also what is pending?
    Prune(Index, bool),
    Tear(usize),
    Reopen,
    /// Another program's reader of the directory: nothing may change.
    Look,
}

fn step() -> impl Strategy<Value = Step> {
    let c = 0..3usize;
    prop_oneof![
        20 => Just(Step::Init),
        120 => parts().prop_map(Step::Push),
        60 => (prop::collection::vec(parts(), 0..8), prop::option::weighted(0.3, 0..8usize)).prop_map(|(p, bad)| Step::Batch(p, bad)),
        120 => (c.clone(), any::<Index>(), 1..9u64).prop_map(|(c, at, limit)| Step::Pop(c, at, limit)),
        100 => (c.clone(), any::<Index>()).prop_map(|(c, at)| Step::Acknowledge(c, at)),
        40 => c.clone().prop_map(Step::Rewind),
        20 => c.clone().prop_map(Step::TooFar),
        100 => (c.clone(), 0..FILTERS.len(), prop::option::of(any::<Index>())).prop_map(|(c, f, from)| Step::Subscribe(c, f, from)),
        30 => c.clone().prop_map(Step::Unsubscribe),
        30 => c.clone().prop_map(Step::Pause),
        30 => c.prop_map(Step::Resume),
        2 => Just(Step::Rotate),
        40 => (any::<Index>(), prop::bool::weighted(0.2)).prop_map(|(at, force)| Step::Prune(at, force)),
        60 => (1..200usize).prop_map(Step::Tear),
        60 => Just(Step::Reopen),
        40 => Just(Step::Look),
    ]
}

#[derive(Default)]
struct Model {
    /// All that were ever stored.
    events: Vec<Parts>,
    /// Those that are in the table no more.
    pruned: BTreeSet<i64>,
    /// Their lines, as far as they are in the copy.
    lines: BTreeMap<i64, Vec<u8>>,
    /// Filter and whether it is paused.
    subscribed: BTreeMap<usize, (usize, bool)>,
    cursors: BTreeMap<usize, i64>,
}

impl Model {
    fn newest(&self) -> i64 {
        self.events.len() as i64
    }

    fn cursor(&self, consumer: usize) -> i64 {
        self.cursors.get(&consumer).copied().unwrap_or(0)
    }

    fn matching(&self, filter: usize, after: i64) -> Vec<i64> {
        let all = self.events.iter().zip(1..).filter(|&(e, id)| id > after && FILTERS[filter].1(id, e));
        all.map(|(_, id)| id).filter(|id| !self.pruned.contains(id)).collect()
    }

    /// The oldest event that any consumer is still to be given.
    fn oldest_pending(&self) -> Option<i64> {
        let all = self.subscribed.iter();
        all.filter_map(|(&c, &(filter, _))| self.matching(filter, self.cursor(c)).first().copied()).min()
    }
}

fn id(consumer: usize) -> ConsumerId {
    ConsumerId::new(["bot", "a:b@c", "9"][consumer]).unwrap()
}

fn catch_up(place: &mut Place) {
    journal::catch_up(&place.thread.files, &mut place.thread.store).unwrap();
}

fn line(parts: &Parts) -> String {
    let text = |text: &str| serde_json::to_string(text).unwrap();
    let subtype = parts.subtype.as_deref().map_or("null".to_owned(), text);
    let (source, content) = (text(&parts.source), text(&parts.content));
    format!(
        "{{\"source\":{source},\"type\":\"{}\",\"subtype\":{subtype},\"content\":{content}}}\n",
        parts.kind
    )
}

fn run(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut place = Place::new();
    let mut model = Model::default();
    CASES.fetch_add(1, Ordering::Relaxed);
    for step in steps {
        STEPS.fetch_add(1, Ordering::Relaxed);
        let mut pushed = false;
        match step.clone() {
            Step::Init => prop_assert!(Thread::init(&place.dir()).is_err(), "it is a thread already"),
            Step::Push(parts) => {
                place.push(std::slice::from_ref(&parts));
                model.events.push(parts);
                pushed = true;
            }
            Step::Batch(all, bad) => {
                let mut lines: Vec<String> = all.iter().map(line).collect();
                if let Some(at) = bad {
                    lines.insert(at.min(all.len()), "{\"source\":\"\"}\n".into());
                }
                let read = Batch::read(lines.concat().as_bytes(), &place.dir());
                prop_assert_eq!(read.is_err(), bad.is_some());
                if let Ok(batch) = read {
                    let stored = place
                        .thread
                        .store
                        .append(|inserter| batch.for_each(|event| inserter.insert(event).map(drop)))
                        .unwrap();
                    let first = (!all.is_empty()).then_some(model.newest() + 1);
                    prop_assert_eq!((stored.count, stored.first_id), (all.len() as u64, first));
                    model.events.extend(all);
                    pushed = true;
                }
            }
            Step::Pop(c, at, limit) => {
                let at = at.index(model.newest() as usize + 1) as i64;
                let moved = place.thread.store.set_cursor(&id(c), at).unwrap();
                let Some(&(filter, _)) = model.subscribed.get(&c) else {
                    prop_assert_eq!(moved, Moved::UnknownConsumer);
                    continue;
                };
                prop_assert_eq!(moved, Moved::To(at));
                model.cursors.insert(c, at);
                let text = FILTERS[filter].0.unwrap_or("");
                let checked = place.thread.store.check_filter(text, Scope::Subscription).unwrap();
                let read = place.read(Reading { after: at, left: Some(limit), filter: checked.as_ref() });
                let mut expected = model.matching(filter, at);
                expected.truncate(limit as usize);
                prop_assert_eq!(read, expected);
            }
            Step::Acknowledge(c, at) => {
                let at = at.index(model.newest() as usize + 1) as i64;
                let expected = match model.cursor(c) {
                    _ if !model.subscribed.contains_key(&c) => Moved::UnknownConsumer,
                    stands if at < stands => Moved::StandsAt(stands),
                    _ => {
                        model.cursors.insert(c, at);
                        Moved::To(at)
                    }
                };
                prop_assert_eq!(place.thread.store.acknowledge(&id(c), at).unwrap(), expected);
            }
            Step::Rewind(c) => {
                if model.subscribed.contains_key(&c) {
                    model.cursors.insert(c, 0);
                }
                place.thread.store.set_cursor(&id(c), 0).unwrap();
            }
            Step::TooFar(c) => {
                let far = model.newest() + 1000;
                let moved = place.thread.store.set_cursor(&id(c), far).unwrap();
                if model.subscribed.contains_key(&c) {
                    prop_assert_eq!(moved, Moved::Clamped(model.newest()));
                    model.cursors.insert(c, model.newest());
                }
            }
            Step::Subscribe(c, filter, from) => {
                let from = from.map(|at| at.index(model.newest() as usize + 1) as i64);
                let done = place.subscribe_from(&id(c), FILTERS[filter].0, from);
                let stood = model.subscribed.contains_key(&c);
                prop_assert_eq!(
                    done,
                    if stood { Subscribed::Exists } else { Subscribed::Added(from.map(Moved::To)) }
                );
                if !stood {
                    model.cursors.extend(from.map(|from| (c, from)));
                }
                model.subscribed.entry(c).or_insert((filter, false));
            }
            Step::Unsubscribe(c) => {
                let gone = place.thread.store.unsubscribe(&id(c)).unwrap();
                prop_assert_eq!(gone.is_some(), model.subscribed.remove(&c).is_some());
            }
            Step::Pause(c) => {
                place.thread.store.pause(&id(c)).unwrap();
                model.subscribed.entry(c).and_modify(|s| s.1 = true);
            }
            Step::Resume(c) => {
                place.thread.store.resume(&id(c)).unwrap();
                model.subscribed.entry(c).and_modify(|s| s.1 = false);
            }
            Step::Rotate => {
                let common =
                    Parts { source: "self".into(), kind: "record", subtype: None, content: "many".into() };
                let many = vec![common; thread::rotation::MAX_LINES as usize + 1];
                place.push(&many);
                model.events.extend(many);
                pushed = true;
            }
            Step::Prune(at, force) => {
                let before = at.index(model.newest() as usize + 1) as i64 + 1;
                let held = if force { None } else { model.oldest_pending().filter(|&id| id < before) };
                let upto = held.unwrap_or(before) - 1;
                let mut plan = Plan::make(&mut place.thread, Old::BeforeId(before), force).unwrap();
                prop_assert_eq!(plan.held().map(|held| held.at), held);
                let events =
                    place.thread.store.read_all(Reading { after: 0, left: None, filter: None }).unwrap();
                let pruned = plan.carry_out(&mut place.thread).unwrap();
                let gone = events.iter().filter(|event| event.id <= upto);
                prop_assert_eq!(pruned.events, gone.clone().count() as u64);
                for event in gone {
                    event.row().write_line(model.lines.entry(event.id).or_default());
                    model.pruned.insert(event.id);
                }
            }
            Step::Tear(bytes) => {
                let path = place.thread.files.jsonl();
                let length = fs::metadata(&path).map_or(0, |file| file.len());
                if length > 0 {
                    let left = length.saturating_sub(bytes as u64);
                    let mut end = 0;
                    for line in fs::read(&path).unwrap().split_inclusive(|&b| b == b'\n') {
                        end += line.len() as u64;
                        // The line of a pruned event cannot be had again.
                        if end > left {
                            model.lines.retain(|_, kept| kept != line);
                        }
                    }
                    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
                    file.set_len(left).unwrap();
                }
            }
            Step::Reopen => place.thread = Thread::open(&place.dir()).unwrap(),
            Step::Look => {}
        }
        if pushed {
            catch_up(&mut place);
        }
        agree(&mut place, &model)?;
    }
    // And at the end the whole of it, also the copy, opened anew.
    place.thread = Thread::open(&place.dir()).unwrap();
    catch_up(&mut place);
    let events = place.thread.store.read_all(Reading { after: 0, left: None, filter: None }).unwrap();
    let left = model.events.iter().zip(1..).filter(|(_, id)| !model.pruned.contains(id));
    prop_assert_eq!(events.len(), left.clone().count());
    for (event, (parts, id)) in events.iter().zip(left) {
        prop_assert_eq!(event.id, id);
        let stored =
            (event.source.as_str(), event.kind.as_str(), event.subtype.as_deref(), event.content.as_str());
        prop_assert_eq!(stored, (&*parts.source, parts.kind, parts.subtype.as_deref(), &*parts.content));
        event.row().write_line(model.lines.entry(id).or_default());
    }
    let mut names: Vec<_> = fs::read_dir(place.dir()).unwrap().map(|e| e.unwrap().path()).collect();
    names.retain(|path| path.extension().is_some_and(|e| e == "jsonl") && !path.ends_with("events.jsonl"));
    names.sort();
    names.push(place.thread.files.jsonl());
    let copy: Vec<u8> = names.iter().flat_map(|path| fs::read(path).unwrap_or_default()).collect();
    let lines: Vec<u8> = model.lines.into_values().flatten().collect();
    prop_assert!(copy == lines, "the copy is not the table and what was pruned");
    Ok(())
}

/// What can be asked of the thread is what the model says.
fn agree(place: &mut Place, model: &Model) -> Result<(), TestCaseError> {
    prop_assert_eq!(place.thread.store.newest_ever().unwrap(), model.newest());
    prop_assert_eq!(place.thread.store.count().unwrap(), (model.events.len() - model.pruned.len()) as u64);
    let all = place.thread.store.subscriptions().unwrap();
    prop_assert_eq!(all.len(), model.subscribed.len());
    for (&c, &(filter, paused)) in &model.subscribed {
        let subscription = place.thread.store.subscription(&id(c)).unwrap().unwrap();
        prop_assert_eq!(subscription.filter.as_deref(), FILTERS[filter].0);
        prop_assert_eq!(subscription.state.paused, paused);
        prop_assert_eq!(subscription.last_acked_id, model.cursor(c));
        let pending = model.matching(filter, model.cursor(c));
        prop_assert_eq!(
            place.thread.store.look(&subscription).unwrap().first_pending,
            pending.first().copied()
        );
        let subscription = place.thread.store.subscription(&id(c)).unwrap().unwrap();
        let store = &mut place.thread.store;
        let (look, mut counting) = (store.look(&subscription).unwrap(), Counting::begin(store, 1));
        prop_assert_eq!(
            store.count_pending(&subscription, &look, &mut counting).unwrap(),
            pending.len() as u64
        );
    }
    Ok(())
}

#[test]
fn a_thread_does_what_a_plain_model_does() {
    let long = std::env::var("THREAD_FAULTS").is_ok_and(|form| form == "long");
    let mut runner = proptest::test_runner::TestRunner::new(cases(if long { 300 } else { 25 }));
    let histories = prop::collection::vec(step(), 1..if long { 80 } else { 50 });
    runner.run(&histories, run).unwrap_or_else(|e| panic!("{e}"));
    eprintln!("{} cases, {} steps", CASES.load(Ordering::Relaxed), STEPS.load(Ordering::Relaxed));
}
