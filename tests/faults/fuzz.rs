//! Random input wherever input is accepted: no panic, no abort, no hang, and no exit code but 0, 1
//! and 2. Parsing inside the library (batch lines, filters, names, durations, the JSONL log and its
//! state) is fuzzed in `tests/properties`.
//!
//! `FAULTS_SEED` repeats a run; each failure prints its seed.

use std::fs;
use std::io::{Read, Write};

use rusqlite::Connection;
use thread::store::Move;
use thread::{After, Error, Queue, jsonl, pending};
use thread_testkit::{PATIENCE, Run, World, long};
use wait_timeout::ChildExt;

use crate::damage::{kill_all_processes, replace_db};

pub struct Dice {
    pub seed: u64,
    state: u64,
}

impl Dice {
    pub fn new() -> Dice {
        let given = std::env::var("FAULTS_SEED").ok().and_then(|seed| seed.parse().ok());
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let seed = given.unwrap_or(now.as_nanos() as u64) | 1;
        Dice { seed, state: seed }
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end.max(1)
    }

    pub fn of<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}

/// Runs the binary and checks that it exits in time, without a signal, with one of the three codes.
#[track_caller]
pub fn ends_well(run: Run, stdin: &[u8], about: &str) -> i32 {
    let mut child = run.spawn();
    let mut input = child.stdin.take().unwrap();
    let stdin = stdin.to_vec();
    let writing = std::thread::spawn(move || drop(input.write_all(&stdin)));
    let reading = [
        Box::new(child.stdout.take().unwrap()) as Box<dyn Read + Send>,
        Box::new(child.stderr.take().unwrap()),
    ]
    .map(|mut pipe| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            pipe.read_to_end(&mut bytes).unwrap();
            String::from_utf8_lossy(&bytes).into_owned()
        })
    });
    let Some(status) = child.wait_timeout(PATIENCE).unwrap() else {
        child.kill().unwrap();
        panic!("{about}: hangs");
    };
    writing.join().unwrap();
    let [_, stderr] = reading.map(|reading| reading.join().unwrap());
    assert!(!stderr.contains("a bug in thread") && !stderr.contains("panicked"), "{about}: {stderr}");
    match status.code() {
        Some(code @ 0..=2) => code,
        _ => panic!("{about}: {status}\n{stderr}"),
    }
}

/// Fills a thread so that every table has rows.
pub fn full(world: &World) {
    let push = ["push", "--batch"];
    let line = |n: usize| {
        format!(
            "{{\"source\":\"s{n}\",\"type\":\"message\",\"content\":\"{}\"}}\n",
            "x".repeat(n * 37 % 9000)
        )
    };
    world.off(push).stdin((0..120).map(line).collect::<String>()).quiet();
    world.idle_consumer("bot", "content LIKE '%x%'");
    world.off(["subscribe", "--consumer", "all", "--handler", "true"]).quiet();
    world.off(["ack", "--consumer", "bot", "--event-id", "3"]).quiet();
    let all = ["--consumer", "all", "--event"];
    world.off([&["step", "a"], &all[..], &["4", "--", "echo", "done"]].concat()).quiet();
    world.off([&["await", "b", "--subtype", "never"], &all[..], &["6"]].concat()).ends_with(75);
    let db = world.db();
    db.execute_batch(
        "INSERT INTO dead_letters VALUES ('all', 5, 2, 1, 'oh', '2026-03-18T10:30:00.123Z', 0); \
         CREATE TABLE bulk AS SELECT content FROM events; DROP TABLE bulk; PRAGMA wal_checkpoint(TRUNCATE)",
    )
    .unwrap();
}

pub const COMMANDS: &[&[&str]] = &[
    &["info", "--json"],
    &["peek", "--last-event-id", "0", "--filter", "content > ''"],
    &["push", "--source", "self", "--type", "message", "--content", "c"],
    &["pop", "--consumer", "bot", "--last-event-id", "2"],
    &["ack", "--consumer", "all", "--event-id", "9"],
    &["dead", "list", "--consumer", "all", "--json"],
    &["dispatch"],
    &["pause", "--consumer", "all"],
    &["resume", "--consumer", "bot"],
    &["unsubscribe", "--consumer", "all"],
    &["subscribe", "--consumer", "new", "--handler", "true"],
    &["dead", "retry", "--consumer", "all", "--all"],
    &["seek", "--consumer", "bot", "--to", "earliest"],
    &["prune", "--before-id", "20", "--force"],
    &["step", "--list", "--json"],
    &["step", "a", "--consumer", "all", "--event", "4", "--", "echo", "done"],
];

#[test]
fn rows_of_other_tools_with_odd_types_stop_no_command_and_hide_no_other_consumer() {
    let world = World::with_thread();
    full(&world);
    let db = world.inbox().join("events.db");
    let sound = fs::read(&db).unwrap();
    let odd = [
        "NULL",
        "x''",
        "x'ff00fe'",
        "CAST(x'ff' AS TEXT)",
        "-1",
        "9223372036854775807",
        "-9223372036854775808",
        "1.5",
        "9e999",
        "'abc'",
        "''",
        "'12abc'",
        "char(0) || 'a'",
        "'../../x'",
        "replace(hex(zeroblob(3000)), '0', 'é')",
    ];
    let mut runs = 0;
    let columns: Vec<(String, String)> = {
        let conn = Connection::open(&db).unwrap();
        let mut all = conn
            .prepare("SELECT m.name, c.name FROM sqlite_schema m, pragma_table_info(m.name) c WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite%'")
            .unwrap();
        let rows = all.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        rows.map(Result::unwrap).collect()
    };
    let mut dice = Dice::new();
    let mut tried = 0;
    for (table, column) in &columns {
        for value in odd {
            replace_db(&world, &sound);
            let which = if table == "events" { "id = 7" } else { "consumer_id = 'all'" };
            let done = {
                let conn = Connection::open(&db).unwrap();
                conn.execute(&format!("UPDATE {table} SET {column} = {value} WHERE {which}"), [])
            };
            // The schema itself rejects some values.
            if done.is_err() {
                continue;
            }
            let about = format!("seed {}: {table}.{column} = {value}", dice.seed);
            // First inside this process, which is fast, then by one or all of the commands.
            {
                let mut queue = Queue::open(world.inbox()).unwrap();
                let files = queue.files().clone();
                let mut use_all = || -> thread::Result<()> {
                    let all = queue.store().subscriptions()?;
                    assert!(all.iter().any(|s| s.consumer.as_str() == "bot"), "{about}: another is hidden");
                    for subscription in &all {
                        match pending::scan(queue.store(), subscription, None, true) {
                            Err(Error::BrokenFilter { .. }) => {}
                            look => drop(look?),
                        }
                        queue.store().dead_letters(Some(&subscription.consumer))?;
                        match queue.store().move_cursor(&subscription.consumer, 4, Move::Seek) {
                            // A name stored as a BLOB does not equal its text.
                            Err(Error::UnknownConsumer(_)) => {}
                            moved => drop(moved?),
                        }
                    }
                    queue.read(After(0), None)?;
                    jsonl::catch_up(&files, queue.store(), std::time::Duration::MAX, &mut |_| {})
                };
                use_all().unwrap_or_else(|e| panic!("{about}: {e}"));
            }
            tried += 1;
            let few = if long() { COMMANDS } else { &[*dice.of(&COMMANDS.iter().collect::<Vec<_>>())][..] };
            for command in few.iter().filter(|_| long() || tried % 4 == 0) {
                ends_well(world.off(*command), b"", &format!("{about}: {command:?}"));
                if *command == ["dispatch"] {
                    kill_all_processes(&world);
                }
                runs += 1;
            }
        }
    }
    eprintln!("{tried} odd values in {} columns, {runs} runs", columns.len());
    assert!(tried > 400 && runs > 100, "only {tried} values and {runs} runs");
}

#[test]
fn no_arguments_make_it_panic_or_hang() {
    let world = World::with_thread();
    world.idle_consumer("bot", "type = 'message'");
    world.write("file", "text");
    let words = [
        "push",
        "pop",
        "peek",
        "subscribe",
        "unsubscribe",
        "ack",
        "ls",
        "info",
        "init",
        "dispatch",
        "workers",
        "pause",
        "resume",
        "stop",
        "dead",
        "logs",
        "seek",
        "prune",
        "config",
        "export",
        "import",
        "clone",
        "--move",
        "doctor",
        "session",
        "--root",
        "--to",
        "latest",
        "--keep",
        "--fix",
        "list",
        "show",
        "retry",
        "discard",
        "--consumer",
        "bot",
        "new",
        "--last-event-id",
        "0",
        "1",
        "--limit",
        "--filter",
        "type = 'x'",
        "1) OR (1",
        "--json",
        "--source",
        "self",
        "--type",
        "message",
        "record",
        "--content",
        "x",
        "--content-file",
        "-",
        "file",
        "nowhere",
        "--batch",
        "--handler",
        "true",
        "--thread",
        "inbox",
        ".",
        "",
        "--help",
        "-h",
        "--version",
        "--verbose",
        "--",
        "-",
        "--event-id",
        "--all",
        "-1",
        "99999999999999999999",
        "--resume",
        "--tail",
        "--signal",
        "TERM",
        "KILL",
        "--kill-after",
        "1s",
        "--timeout",
        "--backoff",
        "1s,2s",
        "--max-attempts",
        "--batch-size",
        "--deliver",
        "stdin",
        "wake",
        "--from",
        "all",
        "--cwd",
        "/",
        "--nonsense",
        "é",
        "\u{202e}",
        "a\nb",
        "--consumer=",
        "--limit=0",
        "=",
        "help",
    ];
    let mut dice = Dice::new();
    let (all, mut codes) = (if long() { 3_000 } else { 200 }, [0; 3]);
    for _ in 0..all {
        // A sensible command line with a few of its words changed.
        let mut args: Vec<std::ffi::OsString> = match dice.below(8) {
            0 => vec![dice.of(&words).into()],
            _ => COMMANDS[dice.below(COMMANDS.len())].iter().map(Into::into).collect(),
        };
        for _ in 0..dice.below(4) {
            let (at, word) = (dice.below(args.len() + 1), dice.of(&words).into());
            match dice.below(6) {
                0 => args.insert(at, word),
                1 => drop(args.splice(at..args.len().min(at + 1), [])),
                2 => args.insert(at, std::os::unix::ffi::OsStringExt::from_vec(vec![0xff, b'a', 0x80])),
                3 => args.insert(at, "x".repeat(100_000).into()),
                4 => args.truncate(at.max(1)),
                _ => drop(args.splice(at..args.len().min(at + 1), [word])),
            }
        }
        let about = format!(
            "seed {}: {:?}",
            dice.seed,
            args.iter().map(|a| a.to_string_lossy().chars().take(40).collect::<String>()).collect::<Vec<_>>()
        );
        let stdin: &[u8] = dice.of(&[
            &b""[..],
            b"{\"source\":\"s\",\"type\":\"message\",\"content\":1}\n",
            b"\xff\xfe",
            b"{",
        ]);
        codes[ends_well(world.off(args), stdin, &about) as usize] += 1;
    }
    eprintln!("{all} argument vectors: exit codes 0, 1, 2: {codes:?}");
    assert!(codes.iter().all(|&count| count > 0), "{codes:?}");
}
