//! The operations that `thread::Queue` adds to a store.

use std::cell::RefCell;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use thread::files::DB;
use thread::model::filter::{Filter, Scope};
use thread::model::location::Location;
use thread::model::run::Options;
use thread::model::subscription::NewSubscription;
use thread::queue::delivery::Delivery;
use thread::queue::{NewThread, Selection};
use thread::run::settle::{Answer, reject};
use thread::run::{self, Launcher, WakeBy};
use thread::{After, NewEvent, Queue};
use thread_testkit::store::SharedStore;
use thread_testkit::store::conformance::{name, new_subscription};

const SHORT: Duration = Duration::from_millis(200);

fn thread_with(contents: &[&str]) -> (TempDir, Queue) {
    let dir = tempfile::tempdir().unwrap();
    Queue::init(dir.path()).unwrap();
    let mut queue = Queue::open(dir.path()).unwrap();
    for content in contents {
        queue.push(&NewEvent::message("self", *content).unwrap()).unwrap();
    }
    (dir, queue)
}

fn filter(text: &str) -> Option<Filter> {
    Filter::new(text, Scope::Reading).unwrap()
}

/// Holds the write lock of a thread's database.
fn lock(dir: &Path) -> rusqlite::Connection {
    let other = rusqlite::Connection::open(dir.join(DB)).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    other
}

#[test]
fn an_event_is_found_by_its_id() {
    let (_dir, mut queue) = thread_with(&["a", "b"]);
    assert_eq!(queue.event(2).unwrap().unwrap().content, "b");
    for none in [0, 3, i64::MIN, i64::MAX] {
        assert_eq!(queue.event(none).unwrap(), None);
    }
}

#[test]
fn the_newest_matching_events_are_found_from_the_end() {
    let (dir, mut queue) = thread_with(&[]);
    // More than one step backwards, with a gap that pruned events left.
    let contents: Vec<String> = (1..=10_000).map(|n| (n % 7).to_string()).collect();
    let events: Vec<_> = contents.iter().map(|n| NewEvent::message("self", n).unwrap()).collect();
    queue.push_all(&mut |put| put(&events).map(drop)).unwrap();
    let other = rusqlite::Connection::open(dir.path().join(DB)).unwrap();
    other.execute("DELETE FROM events WHERE id BETWEEN 3000 AND 9000", []).unwrap();

    let sevens = filter("content = '0'");
    let expected: Vec<i64> =
        (1..=10_000).rev().filter(|n| n % 7 == 0 && !(3000..=9000).contains(n)).collect();
    let mut newest = |upto, most| queue.newest_matching(sevens.as_ref(), upto, most).unwrap();
    assert_eq!(newest(i64::MAX, usize::MAX), expected);
    assert_eq!(newest(i64::MAX, 3), expected[..3]);
    assert_eq!(newest(9996, 2), [9996, 9989]);
    assert_eq!(newest(9995, 1), [9989]);
    assert_eq!(newest(9001, 2), [2996, 2989]);
    assert_eq!(newest(6, 1), [0; 0]);
    assert_eq!(newest(i64::MAX, 0), [0; 0]);
    assert_eq!(queue.newest_matching(None, 9001, 2).unwrap(), [9001, 2999]);
    // The same with a time limit: the result says how far the search has got.
    let later = Instant::now() + Duration::from_secs(600);
    let mut until = |range, most| queue.newest_matching_until(sevens.as_ref(), range, most, later).unwrap();
    let found = until((0, i64::MAX), usize::MAX);
    assert_eq!((found.ids, found.from, found.is_cut_off, found.failures), (expected.clone(), 1, false, 0));
    for (range, most, ids, from) in [
        ((0, i64::MAX), 3, &expected[..3], expected[2]),
        ((0, 9001), 2, &[2996, 2989][..], 2989),
        ((9989, 9996), 9, &[9996], 9990),
        ((0, 6), 1, &[], 1),
        ((5000, 6000), 1, &[], 5001),
        ((20_000, i64::MAX), 1, &[], 20_001),
        ((0, i64::MIN), 1, &[], 1),
    ] {
        let found = until(range, most);
        assert_eq!((&found.ids[..], found.from, found.is_cut_off), (ids, from, false), "{range:?}");
    }
    let fails = filter("content = '0' OR json_extract('{}', 'x' || content) = 1");
    let found = queue.newest_matching_until(fails.as_ref(), (9990, 10_000), 9, later).unwrap();
    assert_eq!((found.ids, found.failures, found.failure.unwrap().id), (vec![9996], 9, 10_000));
    for count in [1, 2, 200, expected.len()] {
        let start = queue.start_of_tail(sevens.as_ref(), 0, count as u64).unwrap();
        assert_eq!(start, expected[count - 1] - 1);
    }
}

#[test]
fn the_filter_of_an_untrusted_client_is_cut_off_in_the_middle_of_an_event() {
    // The time for each value grows with its square.
    let (_dir, mut queue) = thread_with(&["short", &format!("[{}1]", "1,".repeat(400_000)), "last"]);
    let slow = ["json_extract(content, '$[399999]') = 2"; 12].join(" OR ");
    let slow =
        filter(&format!("content = 'short' OR (json_valid(content) AND ({slow})) OR content = 'last'"));
    let mut selection = Selection { filter: slow, ..After(0).into() };
    let mut page = |selection: &mut Selection, time: Duration| {
        let mut ids = Vec::new();
        let until = Instant::now() + time;
        let remaining = queue.read_page_until(selection, u64::MAX, Some(until), &mut |capped| {
            ids.push(capped.row.id);
            ControlFlow::Continue(())
        });
        remaining.map(|_| ids)
    };
    // The events found by then are a page.
    let mut whole = Vec::new();
    let began = Instant::now();
    while whole.len() < 2 {
        whole.extend(page(&mut selection, Duration::from_secs(600)).unwrap());
    }
    let took = began.elapsed();
    assert_eq!(whole, [1, 3]);
    selection.after = 0;
    // On a busy machine the time may be over before the first event was looked at.
    let first = std::iter::repeat_with(|| page(&mut selection, took / 8));
    let mut first = first.skip_while(|page| matches!(page, Err(thread::Error::SlowFilter { after: 0 })));
    assert_eq!(first.next().unwrap().unwrap(), [1]);
    drop(first);
    assert_eq!(selection.after, 1);
    let cut_off = page(&mut selection, took / 8).unwrap_err();
    assert!(matches!(cut_off, thread::Error::SlowFilter { after: 1 }), "{cut_off}");
    // The same backwards.
    let mut backwards = |upto| {
        queue.newest_matching_until(selection.filter.as_ref(), (0, upto), 9, Instant::now() + took / 8)
    };
    let last = std::iter::repeat_with(|| backwards(i64::MAX));
    let mut last = last.skip_while(|found| matches!(found, Err(thread::Error::SlowFilter { after: 2 })));
    let found = last.next().unwrap().unwrap();
    drop(last);
    assert_eq!((found.ids, found.from, found.is_cut_off), (vec![3], 3, true));
    assert!(matches!(backwards(2), Err(thread::Error::SlowFilter { after: 1 })));
    assert_eq!(backwards(1).unwrap().ids, [1]);
    // The queue still works.
    assert_eq!(queue.read(After(1), None).unwrap().len(), 2);
}

#[test]
fn a_push_into_a_locked_database_fails_within_its_limit_and_reads_continue() {
    let (dir, _) = thread_with(&["a"]);
    let other = lock(dir.path());
    let mut queue = Queue::open_waiting(dir.path(), SHORT).unwrap();
    let began = Instant::now();
    let error = queue.push(&NewEvent::message("self", "b").unwrap()).unwrap_err();
    assert!(error.is_locked() && error.may_pass(), "{error}");
    assert!((SHORT..SHORT * 50).contains(&began.elapsed()), "{:?}", began.elapsed());
    assert_eq!(queue.read(After(0), None).unwrap().len(), 1);
    drop(other);
    assert_eq!(queue.push(&NewEvent::message("self", "b").unwrap()).unwrap().id, 2);
}

#[test]
fn a_stored_event_waits_for_the_jsonl_log_no_longer_than_the_limit() {
    let (dir, _) = thread_with(&["a"]);
    let held = fs::File::open(dir.path().join("run/_jsonl")).unwrap();
    held.lock().unwrap();
    let mut queue = Queue::open_waiting(dir.path(), SHORT).unwrap();
    let began = Instant::now();
    let pushed = queue.push(&NewEvent::message("self", "b").unwrap()).unwrap();
    assert!(began.elapsed() < SHORT * 50, "{:?}", began.elapsed());
    assert!(pushed.id == 2 && pushed.log_behind.is_some(), "{pushed:?}");
    drop(held);
    assert!(queue.push(&NewEvent::message("self", "c").unwrap()).unwrap().log_behind.is_none());
    assert_eq!(fs::read_to_string(dir.path().join("events.jsonl")).unwrap().lines().count(), 3);
}

#[test]
fn a_push_that_cannot_wake_has_stored_its_event() {
    let (dir, mut queue) = thread_with(&[]);
    queue.subscribe(&new_subscription("bot")).unwrap();
    let launcher = Launcher { program: dir.path().join("missing"), waking: WakeBy::Dispatch };
    let pushed = run::push(&mut queue, &launcher, &NewEvent::message("self", "a").unwrap()).unwrap();
    assert_eq!((pushed.id, pushed.log_behind.is_none()), (1, true));
    assert_eq!(queue.event(1).unwrap().unwrap().content, "a");
    let log = fs::read_to_string(dir.path().join("logs/thread.log")).unwrap();
    assert!(log.contains("push: source=self type=message id=1\n"), "{log}");
    assert!(log.contains("cannot start a supervisor"), "{log}");
}

#[test]
fn a_thread_for_small_events_takes_little_space_and_is_like_any_other() {
    let dirs = [false, true].map(|small| {
        let dir = tempfile::tempdir().unwrap();
        Queue::init_as(dir.path(), NewThread { small, ..NewThread::default() }).unwrap();
        dir
    });
    let [plain, small] = dirs.each_ref().map(|dir| fs::metadata(dir.path().join(DB)).unwrap().len());
    assert!(small * 3 < plain, "{small} of {plain} bytes");
    let [plain, small] = dirs.each_ref().map(|dir| {
        let mut queue = Queue::open(dir.path()).unwrap();
        for n in 0..20 {
            let long = "x".repeat(if n % 2 == 0 { 20 } else { 3500 });
            queue.push(&NewEvent::message("self", long).unwrap()).unwrap();
        }
        queue.push(&NewEvent::message("self", "y".repeat(1 << 20)).unwrap()).unwrap();
        let events = queue.read(After(0), None).unwrap();
        events.into_iter().map(|event| event.content).collect::<Vec<_>>()
    });
    assert_eq!(small, plain);
}

/// The thread that [`a_huge_event_is_listed_without_being_loaded`] reads in a separate process.
const THREAD: &str = "THREAD_WITH_HUGE_EVENT";
const HUGE: usize = 80_000_000;

#[test]
fn a_huge_event_is_listed_without_being_loaded() {
    if let Some(dir) = std::env::var_os(THREAD) {
        return list_huge_event(Path::new(&dir));
    }
    let (dir, mut queue) = thread_with(&[]);
    queue
        .push(&NewEvent::message("self", "x".repeat(HUGE)).unwrap().with_metadata(r#"{"k":1}"#).unwrap())
        .unwrap();
    drop(queue);
    let name = "queue::a_huge_event_is_listed_without_being_loaded";
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(THREAD, dir.path())
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && shown.contains("1 passed"), "{shown}");
}

fn list_huge_event(dir: &Path) {
    let mut queue = Queue::open(dir).unwrap();
    for filter in [None, filter("type = 'message'")] {
        let mut selection = Selection { filter, ..After(0).into() };
        let mut seen = Vec::new();
        queue
            .read_page_capped(&mut selection, 1 << 20, &mut |capped| {
                let metadata = capped.row.metadata.map(<[u8]>::to_vec);
                seen.push((capped.row.id, capped.content_len, capped.row.content.len(), metadata));
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(seen, [(1, HUGE as u64, 0, Some(br#"{"k":1}"#.to_vec()))]);
    }
    let piece = queue.read_content(1, HUGE as u64 - 5, 1000).unwrap().unwrap();
    assert_eq!(piece, b"xxxxx");
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 32 * 1024, "took {peak} KiB");
}

#[test]
fn a_dead_letter_that_is_made_while_a_push_looks_at_it_is_none_that_was_acknowledged() {
    thread_local! {
        static PLACE: RefCell<Option<Location>> = const { RefCell::new(None) };
    }
    let dir = tempfile::tempdir().unwrap();
    // Between the look at the subscription and the one at what is finished.
    let store = SharedStore::new(|operation| {
        if operation == "ledger"
            && let Some(location) = PLACE.take()
        {
            let answer = Answer { id: 2, claim: None, error: "no" };
            reject(&mut Queue::open(location).unwrap(), &name("bot"), answer).unwrap();
        }
    });
    let location = store.put_at(dir.path());
    let mut queue = Queue::open(location.clone()).unwrap();
    let options = Options { concurrency: Some(2), ..Options::default() };
    queue.subscribe(&NewSubscription { options, ..new_subscription("bot") }).unwrap();
    for content in ["stays", "is rejected"] {
        queue.push(&NewEvent::message("self", content).unwrap()).unwrap();
    }
    let recipients = queue.recipients(2, 2).unwrap();
    PLACE.set(Some(location));
    let delivery = queue.wait_for_delivery(recipients, SHORT).unwrap();
    assert_eq!(delivery, Delivery::Dead { consumer: name("bot"), event_id: 2 });
}
