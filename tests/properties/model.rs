//! Compares a thread with a simple in-memory model, over random histories.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestRunner;
use thread::files::JSONL;
use thread::files::rotation::MAX_LINES;
use thread::jsonl::{self, verify};
use thread::maintenance::prune::{Old, Request, prune};
use thread::model::event::{Defaults, NewEvent};
use thread::model::filter::{Filter, Scope};
use thread::model::subscription::ConsumerId;
use thread::pending::{self, CountLimits, Counted};
use thread::queue::{Remaining, Selection};
use thread::run::control;
use thread::store::{Move, Moved};
use thread::{After, Error, Queue};

use crate::world::{Parts, Place, cases, parts};

static STEPS: AtomicU64 = AtomicU64::new(0);
static CASES: AtomicU64 = AtomicU64::new(0);

/// A filter in SQL, and the same condition in Rust.
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
    (Some("created_at < '2000-01-01'"), |_, _| false),
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
    /// More events than fit into a JSONL file.
    Rotate,
    /// The id before which to prune, and whether to include pending events.
    Prune(Index, bool),
    Tear(usize),
    Reopen,
    /// Only looks; nothing may change.
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
    /// All events ever stored.
    events: Vec<Parts>,
    /// Ids of events deleted from the table.
    pruned: BTreeSet<i64>,
    /// JSONL lines of the pruned events.
    lines: BTreeMap<i64, Vec<u8>>,
    /// By consumer: its filter, and whether it is paused.
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

    /// Moves a cursor; a move to the same position is not recorded.
    fn set_cursor(&mut self, consumer: usize, id: i64) {
        if id != self.cursor(consumer) {
            self.cursors.insert(consumer, id);
        }
    }

    fn matching(&self, filter: usize, after: i64) -> Vec<i64> {
        let all = self.events.iter().zip(1..).filter(|&(e, id)| id > after && FILTERS[filter].1(id, e));
        all.map(|(_, id)| id).filter(|id| !self.pruned.contains(id)).collect()
    }

    /// The oldest event pending for any consumer.
    fn oldest_pending(&self) -> Option<i64> {
        let all = self.subscribed.iter();
        all.filter_map(|(&c, &(filter, _))| self.matching(filter, self.cursor(c)).first().copied()).min()
    }
}

fn id(consumer: usize) -> ConsumerId {
    ConsumerId::new(["bot", "a:b@c", "9"][consumer]).unwrap()
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

/// Stores the events of these lines in one transaction.
fn push_batch(place: &mut Place, lines: &[String]) -> thread::Result<u64> {
    let defaults = Defaults::default();
    let pushed = place.queue.push_all(&mut |put| {
        for (line, number) in lines.iter().zip(1..) {
            let event = NewEvent::from_json(line.as_bytes(), &defaults, &mut |_| {});
            put(&[event.map_err(|problem| Error::InvalidLine { line: number, problem })?])?;
        }
        Ok(())
    })?;
    assert!(pushed.log_behind.is_none(), "{pushed:?}");
    Ok(pushed.appended.count)
}

/// The ids of the next matching events, as a pop reads them.
fn pop(place: &mut Place, after: i64, limit: u64, filter: Option<&str>) -> Vec<i64> {
    let filter = Filter::new(filter.unwrap_or(""), Scope::Subscription).unwrap();
    let mut selection = Selection { limit: Some(limit), filter, ..After(after).into() };
    let mut ids = Vec::new();
    while place
        .queue
        .read_page(&mut selection, &mut |row| {
            ids.push(row.id);
            ControlFlow::Continue(())
        })
        .unwrap()
        == Remaining::Some
    {}
    ids
}

fn run(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut place = Place::new();
    let mut model = Model::default();
    CASES.fetch_add(1, Ordering::Relaxed);
    for step in steps {
        STEPS.fetch_add(1, Ordering::Relaxed);
        match step.clone() {
            Step::Init => {
                let again = Queue::init(place.queue.path());
                prop_assert!(matches!(again, Err(Error::AlreadyAThread(_))), "{again:?}");
            }
            Step::Push(parts) => {
                let pushed = place.queue.push(&parts.event()).unwrap();
                model.events.push(parts);
                prop_assert_eq!((pushed.id, pushed.log_behind.is_none()), (model.newest(), true));
            }
            Step::Batch(all, bad) => {
                let mut lines: Vec<String> = all.iter().map(line).collect();
                if let Some(at) = bad {
                    lines.insert(at.min(all.len()), "{\"source\":\"\"}\n".into());
                }
                match (push_batch(&mut place, &lines), bad) {
                    (Ok(count), None) => {
                        prop_assert_eq!(count, all.len() as u64);
                        model.events.extend(all);
                    }
                    (Err(Error::InvalidLine { line, .. }), Some(at)) => {
                        prop_assert_eq!(line, at.min(all.len()) as u64 + 1);
                    }
                    (pushed, _) => return Err(TestCaseError::fail(format!("{pushed:?}"))),
                }
            }
            Step::Pop(c, at, limit) => {
                let at = at.index(model.newest() as usize + 1) as i64;
                move_cursor(&mut place, &mut model, c, at, Move::Seek)?;
                if let Some(&(filter, _)) = model.subscribed.get(&c) {
                    let mut expected = model.matching(filter, at);
                    expected.truncate(limit as usize);
                    prop_assert_eq!(pop(&mut place, at, limit, FILTERS[filter].0), expected);
                }
            }
            Step::Acknowledge(c, at) => {
                let at = at.index(model.newest() as usize + 1) as i64;
                move_cursor(&mut place, &mut model, c, at, Move::Acknowledge)?;
            }
            Step::Rewind(c) => move_cursor(&mut place, &mut model, c, 0, Move::Seek)?,
            Step::TooFar(c) => {
                let far = model.newest() + 1000;
                move_cursor(&mut place, &mut model, c, far, Move::Seek)?;
            }
            Step::Subscribe(c, filter, from) => {
                let from = from.map(|at| at.index(model.newest() as usize + 1) as i64);
                let done = place.subscribe(&id(c), FILTERS[filter].0, from);
                let known = model.subscribed.contains_key(&c);
                if known {
                    prop_assert!(matches!(done, Err(Error::AlreadySubscribed(_))), "{done:?}");
                } else {
                    prop_assert_eq!(done.unwrap(), from.map(Moved::To));
                    model.subscribed.insert(c, (filter, false));
                    if let Some(from) = from {
                        model.set_cursor(c, from);
                    }
                }
            }
            Step::Unsubscribe(c) => {
                let gone = place.queue.store().unsubscribe(&id(c));
                prop_assert_eq!(gone.is_ok(), model.subscribed.remove(&c).is_some());
            }
            Step::Pause(c) => {
                let paused = control::pause(&mut place.queue, &id(c));
                prop_assert_eq!(paused.is_ok(), model.subscribed.contains_key(&c));
                model.subscribed.entry(c).and_modify(|s| s.1 = true);
            }
            Step::Resume(c) => {
                let resumed = control::resume(&mut place.queue, &id(c));
                prop_assert_eq!(resumed.is_ok(), model.subscribed.contains_key(&c));
                model.subscribed.entry(c).and_modify(|s| s.1 = false);
            }
            Step::Rotate => {
                let many = vec![Parts::record("many"); MAX_LINES as usize + 1];
                place.store(&many);
                model.events.extend(many);
                place.catch_up().unwrap();
            }
            Step::Prune(at, force) => {
                let before = at.index(model.newest() as usize + 1) as i64 + 1;
                let held = if force { None } else { model.oldest_pending().filter(|&id| id < before) };
                let upto = held.unwrap_or(before) - 1;
                let events = place.queue.read(After(0), None).unwrap();
                let request = Request { old: Old::BeforeId(before), subtype: None, force, dry_run: false };
                let report = prune(&mut place.queue, &request, &mut |_| {}).unwrap();
                prop_assert!(report.failed.is_none(), "{report:?}");
                prop_assert_eq!(report.held.map(|held| held.at), held);
                let gone = events.iter().filter(|event| event.id <= upto);
                prop_assert_eq!(report.pruned.events, gone.clone().count() as u64);
                for event in gone {
                    event.row().write_line(model.lines.entry(event.id).or_default());
                    model.pruned.insert(event.id);
                }
            }
            Step::Tear(bytes) => {
                if let Ok(file) = fs::OpenOptions::new().write(true).open(place.path(JSONL)) {
                    let length = file.metadata().unwrap().len();
                    file.set_len(length.saturating_sub(bytes as u64)).unwrap();
                }
            }
            Step::Reopen => place.reopen(),
            Step::Look => {}
        }
        agree(&mut place, &model)?;
    }
    // At the end compare everything, including the JSONL log, after reopening.
    place.reopen();
    place.catch_up().unwrap();
    let events = place.queue.read(After(0), None).unwrap();
    let left = model.events.iter().zip(1..).filter(|(_, id)| !model.pruned.contains(id));
    prop_assert_eq!(events.len(), left.clone().count());
    for (event, (parts, id)) in events.iter().zip(left) {
        prop_assert_eq!(event.id, id);
        let stored =
            (event.source.as_str(), event.kind.as_str(), event.subtype.as_deref(), event.content.as_str());
        prop_assert_eq!(stored, (&*parts.source, parts.kind, parts.subtype.as_deref(), &*parts.content));
        event.row().write_line(model.lines.entry(id).or_default());
    }
    let files = place.queue.files().clone();
    let names = jsonl::sealed(&files).unwrap().into_iter().chain([JSONL.to_owned()]);
    let log: Vec<u8> = names.flat_map(|name| fs::read(files.path_of(name)).unwrap()).collect();
    let lines: Vec<u8> = model.lines.into_values().flatten().collect();
    prop_assert!(log == lines, "the JSONL log is not all that was ever stored");
    prop_assert_eq!(verify::verify(&files, place.queue.store()).unwrap(), []);
    Ok(())
}

fn move_cursor(
    place: &mut Place,
    model: &mut Model,
    c: usize,
    to: i64,
    how: Move,
) -> Result<(), TestCaseError> {
    let moved = place.queue.store().move_cursor(&id(c), to, how);
    if !model.subscribed.contains_key(&c) {
        prop_assert!(matches!(moved, Err(Error::UnknownConsumer(_))), "{moved:?}");
        return Ok(());
    }
    let stands = model.cursor(c);
    let expected = match model.newest() {
        _ if to < stands && how == Move::Acknowledge => Moved::Ahead(stands),
        newest if to > newest => Moved::Clamped(newest),
        _ => Moved::To(to),
    };
    prop_assert_eq!(moved.unwrap(), expected);
    model.set_cursor(c, expected.position());
    Ok(())
}

/// Asserts that the thread's observable state matches the model.
fn agree(place: &mut Place, model: &Model) -> Result<(), TestCaseError> {
    prop_assert_eq!(place.queue.store().newest().unwrap(), model.newest());
    let count = (model.events.len() - model.pruned.len()) as u64;
    prop_assert_eq!(place.queue.store().count(0, i64::MAX).unwrap(), count);
    prop_assert_eq!(place.queue.store().subscriptions().unwrap().len(), model.subscribed.len());
    // Only a change of a cursor writes its row.
    let rows = "SELECT count(*) FROM consumer_progress";
    let rows: i64 = place.plain().query_row(rows, [], |row| row.get(0)).unwrap();
    prop_assert_eq!(rows, model.cursors.len() as i64);
    for (&c, &(filter, paused)) in &model.subscribed {
        let subscription = place.subscription(&id(c));
        prop_assert_eq!(subscription.filter.as_deref(), FILTERS[filter].0);
        prop_assert_eq!(subscription.state.paused, paused);
        prop_assert_eq!(subscription.last_acked_id, model.cursor(c));
        let pending = model.matching(filter, model.cursor(c));
        let first = place.look(&subscription).first;
        prop_assert_eq!(first, pending.first().copied());
        if let Some(first) = first {
            let gapless = model.pruned.is_empty();
            let store = place.queue.store();
            let counted =
                pending::count(store, &subscription, first, gapless, CountLimits::NONE, &mut |_| {}).unwrap();
            prop_assert_eq!(counted, Counted { events: pending.len() as u64, at_least: false });
        }
    }
    Ok(())
}

#[test]
fn a_thread_behaves_like_a_simple_model() {
    let histories = prop::collection::vec(step(), 1..60);
    TestRunner::new(cases(30)).run(&histories, run).unwrap_or_else(|e| panic!("{e}"));
    eprintln!("{} cases, {} steps", CASES.load(Ordering::Relaxed), STEPS.load(Ordering::Relaxed));
}
