//! Many processes at once: every kind of command in fifty processes, and a reader that stops reading.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use thread_testkit::{World, ids, long, names, take_all_script};

/// Maximum size of the WAL of a thread that is not in use: a process that leaves more than 32 pages in it
/// checkpoints it, unless another process prevents that, and no more is kept. With fifty processes one nearly
/// always does, so there is no bound while they work.
const WAL_LIMIT: u64 = 512 * 1024;

/// The number of processes for each command, fifty in total.
const CROWD: &[(&str, usize)] =
    &[("push", 18), ("batch", 5), ("pop", 7), ("ack", 6), ("peek", 6), ("dispatch", 4), ("info", 4)];

fn wal(world: &World) -> u64 {
    fs::metadata(world.inbox().join("events.db-wal")).map_or(0, |wal| wal.len())
}

fn batch_of(count: usize, content: &str) -> String {
    let line = format!("{{\"source\":\"self\",\"type\":\"record\",\"content\":\"{content}\"}}\n");
    line.repeat(count)
}

#[test]
fn fifty_processes_at_once_never_fail_because_something_is_locked() {
    let time = Duration::from_secs(if long() { 60 } else { 8 });
    let world = World::with_thread();
    take_all_script(&world);
    world.idle_consumer("slow", "type = 'message'");
    world.thread(["pause", "--consumer", "slow"]).ok();
    // Long enough that the JSONL log is sealed during the test.
    world.off(["push", "--batch"]).stdin(batch_of(9_990, "before")).quiet();
    let handler = "mkdir busy || echo two >>overlap; take; rmdir busy";
    world.thread(["subscribe", "--consumer", "worker", "--handler", handler, "--from", "new"]).quiet();

    let begun = Instant::now();
    let longest: Mutex<BTreeMap<&str, (Duration, usize)>> = Mutex::new(BTreeMap::new());
    let stored = AtomicUsize::new(9_990);
    let largest_wal = AtomicU64::new(0);
    let one = |kind: &'static str, turn: usize| {
        let newest = stored.load(Ordering::Relaxed) as i64;
        let cursor = (newest - 200).max(0).to_string();
        let run = match kind {
            "push" => world.thread(["push", "--source", "self", "--type", "message", "--content", "x"]),
            "batch" => world.thread(["push", "--batch"]).stdin(batch_of(20, &"y".repeat(500))),
            "pop" if turn.is_multiple_of(2) => world.thread(["pop", "--consumer", "slow", "--resume"]),
            "pop" => world.thread(["pop", "--consumer", "slow", "--last-event-id", &cursor]),
            "ack" => world.thread(["ack", "--consumer", "slow", "--event-id", &cursor]),
            "peek" => world.thread([
                "peek",
                "--last-event-id",
                &cursor,
                "--limit",
                "100",
                "--filter",
                "type = 'message'",
            ]),
            "dispatch" => world.thread(["dispatch"]),
            _ => world.thread(["info", "--json"]),
        };
        let began = Instant::now();
        let (_, stderr) = run.ends_with(0);
        let took = began.elapsed();
        // The warning about an acknowledgement behind the cursor is expected.
        let expected = kind == "ack" && stderr.starts_with("Warning: the cursor is at");
        assert!(stderr.is_empty() || expected, "{kind}: {stderr}");
        match kind {
            "push" => stored.fetch_add(1, Ordering::Relaxed),
            "batch" => stored.fetch_add(20, Ordering::Relaxed),
            _ => 0,
        };
        let mut longest = longest.lock().unwrap();
        let entry = longest.entry(kind).or_default();
        *entry = (entry.0.max(took), entry.1 + 1);
        largest_wal.fetch_max(wal(&world), Ordering::Relaxed);
    };
    std::thread::scope(|scope| {
        for &(kind, count) in CROWD {
            for _ in 0..count {
                scope.spawn(move || {
                    let mut turn = 0;
                    while turn == 0 || begun.elapsed() < time {
                        one(kind, turn);
                        turn += 1;
                    }
                });
            }
        }
    });
    // There are no more pushes, and yet everything gets handled.
    world.wait_until_quiet();
    let worker = world.consumer("worker");
    assert!(!world.path("overlap").exists(), "two handlers of one consumer ran at once");
    assert_eq!((&worker["pending"], &worker["state"]), (&0.into(), &"idle".into()), "{worker}");
    world.off(["push", "--source", "self", "--type", "record", "--content", "the last"]).quiet();
    assert!(wal(&world) <= WAL_LIMIT, "the WAL stayed at {} bytes", wal(&world));

    let shown = longest.into_inner().unwrap();
    let shown: Vec<String> = shown
        .iter()
        .map(|(kind, (took, count))| format!("{kind} {:.2} s (of {count})", took.as_secs_f64()))
        .collect();
    let largest_wal = largest_wal.into_inner();
    eprintln!(
        "fifty processes for {} s, the longest of each: {}; largest WAL {} KiB",
        time.as_secs(),
        shown.join(", "),
        largest_wal / 1024
    );
    assert_eq!(world.query("SELECT count(*) FROM events"), stored.into_inner() as i64 + 1);
    world.assert_log_is_exact();
    assert!(names(&world.inbox()).iter().any(|name| name.starts_with("events-")), "nothing was sealed");
}

#[test]
fn a_reader_that_stops_reading_neither_stops_a_push_nor_holds_the_wal() {
    let rounds = if long() { 1000 } else { 60 };
    let world = World::with_thread();
    // Far more than fits into a pipe and one page of the query.
    let before = 3_000;
    world.off(["push", "--batch"]).stdin(batch_of(before, &"z".repeat(1_000))).quiet();
    let mut peek = world.thread(["peek", "--last-event-id", "0", "--limit", "1000000"]).spawn();
    // After the first byte the command is printing; from then on nobody reads its output.
    let mut first = [0];
    peek.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();

    let content = "w".repeat(40_000);
    let mut longest = Duration::ZERO;
    for _ in 0..rounds {
        let began = Instant::now();
        let words = ["push", "--source", "self", "--type", "message", "--content", &content];
        world.off(words).quiet();
        longest = longest.max(began.elapsed());
        // The same limit as for an unused thread: between two pages the reader blocks no checkpoint.
        assert!(wal(&world) <= WAL_LIMIT, "the WAL stands at {} bytes", wal(&world));
    }
    assert!(peek.try_wait().unwrap().is_none(), "the reader has ended, so it held nothing up");
    eprintln!(
        "a reader who does not read: {rounds} pushes of 40 kB, the longest {:.2} s",
        longest.as_secs_f64()
    );
    // The reader has lost nothing.
    let output = peek.wait_with_output().unwrap();
    let text = String::from_utf8([&first, &output.stdout[..]].concat()).unwrap();
    assert_eq!(ids(&text), (1..=(before + rounds) as i64).collect::<Vec<_>>());
}
