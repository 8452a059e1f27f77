//! Nonsense in every place that takes anything: no panic, no abort, no hang, and no exit code but
//! 0, 1 and 2.
//!
//! `FAULTS_SEED` repeats a run; each failure names its seed.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use thread::event::NewEvent;
use thread::filter::Scope;
use thread::store::Reading;
use thread::subscription::ConsumerId;
use thread::thread::Thread;
use thread::{batch::Batch, cmd, duration, journal, log};
use wait_timeout::ChildExt;

use crate::harness::{PATIENCE, World, wait_until};

fn long() -> bool {
    std::env::var("THREAD_FAULTS").is_ok_and(|form| form == "long")
}

/// That many times, or twenty times as often in the long form.
fn rounds(short: usize) -> usize {
    if long() { short * 20 } else { short }
}

struct Dice {
    seed: u64,
    state: u64,
}

impl Dice {
    fn new() -> Dice {
        let given = std::env::var("FAULTS_SEED").ok().and_then(|seed| seed.parse().ok());
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let seed = given.unwrap_or(now.as_nanos() as u64) | 1;
        Dice { seed, state: seed }
    }

    fn below(&mut self, end: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end.max(1)
    }

    fn of<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }

    /// Cut, doubled, overwritten or grown in a few places.
    fn spoil(&mut self, bytes: &mut Vec<u8>, scraps: &[&[u8]]) {
        for _ in 0..=self.below(3) {
            let at = self.below(bytes.len() + 1);
            match self.below(6) {
                0 => bytes.truncate(at),
                1 => bytes.splice(at..at, self.of(scraps).iter().copied()).for_each(drop),
                2 if at < bytes.len() => bytes[at] = self.below(256) as u8,
                3 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                4 => drop(bytes.drain(at..bytes.len().min(at + 1 + self.below(8)))),
                _ => {
                    let piece = bytes[at..bytes.len().min(at + self.below(20))].to_vec();
                    let to = self.below(bytes.len() + 1);
                    bytes.splice(to..to, piece);
                }
            }
        }
    }
}

/// Runs the binary to its end, which comes in time, by an exit, with one of the three codes.
#[track_caller]
fn ends_well(run: crate::harness::Run, stdin: &[u8], about: &str) -> i32 {
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
    assert!(!stderr.contains("a defect in thread") && !stderr.contains("panicked"), "{about}: {stderr}");
    match status.code() {
        Some(code @ 0..=2) => code,
        _ => panic!("{about}: {status}\n{stderr}"),
    }
}

#[test]
fn no_batch_line_makes_the_reader_panic() {
    let mut dice = Dice::new();
    let seeds: &[&[u8]] = &[
        br#"{"source":"self","type":"message","content":"x"}"#,
        br#"{"id":1,"created_at":"2026-03-18T10:30:00.123Z","source":"external:a:b:c:d:e","type":"record","subtype":null,"content":{"a":[1,2.5e3,true,null]}}"#,
        "{\"source\":\"é☃\",\"type\":\"message\",\"content\":\"\\u00e9\\ud83d\\ude00\"}".as_bytes(),
    ];
    let scraps: &[&[u8]] = &[
        b"{",
        b"}",
        b"[",
        b"]",
        b"\"",
        b"\\",
        b"\\u",
        b"\\ud800",
        b":",
        b",",
        b"null",
        b"\0",
        b"\xff",
        b"\xed\xa0\x80",
        b"1e999",
        b"-",
        b"\"source\":",
        b"\"content\":",
        b"\"type\":",
        b"\n",
        b"\r\n",
        b"\xef\xbb\xbf",
        b"99999999999999999999",
        b"[[[[[[[[[[[[[[[[",
    ];
    let room = tempfile::tempdir().unwrap();
    let (mut taken, all) = (0, rounds(20_000));
    for _ in 0..all {
        let mut line = dice.of(seeds).to_vec();
        dice.spoil(&mut line, scraps);
        if let Ok(event) = NewEvent::from_json(&line) {
            assert!(
                !event.source.is_empty() && !event.source.chars().any(char::is_control),
                "seed {}",
                dice.seed
            );
            event.source_warning();
        }
        let several = [line.as_slice(), b"\n", seeds[0], b"\n", &line].concat();
        if let Ok(batch) = Batch::read(several.as_slice(), room.path()) {
            let mut count = 0;
            batch
                .for_each(|_| {
                    count += 1;
                    Ok(())
                })
                .unwrap();
            assert!(count >= 1, "seed {}", dice.seed);
            taken += 1;
        }
    }
    // So deep that a reader that calls itself for each level would run out of stack.
    for (open, close) in [("[", "]"), ("{\"a\":", "}"), ("[{\"a\":", "}]")] {
        for depth in [127, 128, 1000, 1_000_000] {
            let deep = format!("{}1{}", open.repeat(depth), close.repeat(depth));
            for key in ["content", "source", "other"] {
                let line =
                    format!("{{\"source\":\"s\",\"type\":\"message\",\"content\":\"c\",\"{key}\":{deep}}}");
                drop(NewEvent::from_json(line.as_bytes()));
                drop(NewEvent::from_json(deep.as_bytes()));
            }
        }
    }
    eprintln!("{all} batches, {taken} of them taken");
    assert!(taken > all / 100 && taken < all, "the nonsense is too much or too little");
}

#[test]
fn no_filter_makes_the_check_panic_and_none_hangs() {
    let mut dice = Dice::new();
    let dir = tempfile::tempdir().unwrap();
    let mut thread = Thread::open(&Thread::init(&dir.path().join("inbox")).unwrap()).unwrap();
    for content in ["{\"a\":[1]}", "[", "now", "é\0x", "9"] {
        let event = NewEvent::new("self", "message", None, content).unwrap();
        thread.store.append(|inserter| inserter.insert(&event).map(drop)).unwrap();
    }
    let seeds: &[&[u8]] = &[
        b"type = 'message' AND source LIKE 'internal:%:warden'",
        b"json_extract(content, '$.a[0]') > 1 OR subtype IS NULL",
        b"date(created_at, '+1 day') = '2026-03-18'",
        b"CASE WHEN id IN (1, 2) THEN 1 ELSE content GLOB '*[a-z]*' END",
        b"trim(content, 'xy') || instr(content, 'a') <> strftime('%H', created_at)",
        b"content ->> '$.a' BETWEEN x'00' AND 1e3 -- x",
    ];
    let scraps: &[&[u8]] = &[
        b"(",
        b")",
        b"'",
        b"\"",
        b"--",
        b"/*",
        b"*/",
        b";",
        b",",
        b"NOT ",
        b" OR ",
        b" AND ",
        b"content",
        b"'now'",
        b"instr(",
        b"trim(",
        b"date(",
        b"strftime('%s',",
        b"SELECT ",
        b"?",
        b"\0",
        b"\xff",
        b"\xe2\x80\x98",
        b"9223372036854775808",
        b"->>",
        b"COLLATE ",
        b"IN ",
        b"x'",
        b"1e999",
        b"LIKE ",
        b"abs(-9223372036854775808)",
        b"[",
        b"]",
        b"`",
    ];
    let (mut taken, all) = (0, rounds(1_000));
    for _ in 0..all {
        let mut text = dice.of(seeds).to_vec();
        dice.spoil(&mut text, scraps);
        let text = String::from_utf8_lossy(&text).into_owned();
        let began = Instant::now();
        for scope in [Scope::Subscription, Scope::Reading] {
            if let Ok(Some(filter)) = thread.store.check_filter(&text, scope) {
                taken += 1;
                let reading = Reading { after: 0, left: None, filter: Some(&filter) };
                thread
                    .store
                    .read_all(reading)
                    .unwrap_or_else(|e| panic!("seed {}: {text:?}: {e}", dice.seed));
            }
        }
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "seed {}: {text:?} took {:?}",
            dice.seed,
            began.elapsed()
        );
    }
    eprintln!("{all} filters, {taken} taken");
    assert!(taken > all / 100, "the nonsense is too much");
}

#[test]
fn no_id_number_span_or_source_makes_its_reader_panic() {
    let mut dice = Dice::new();
    let seeds: &[&[u8]] = &[
        b"worker-1",
        b"9223372036854775807",
        b"1h30m",
        b"1s,5s,2m",
        b"external:a:b:c:d:e",
        "é☃\u{202e}".as_bytes(),
        b"",
    ];
    let scraps: &[&[u8]] = &[
        b"/",
        b"..",
        b"\0",
        b"%",
        b"\xff",
        b":",
        b"-",
        b"9999999999999999999999",
        b"ms",
        b"d",
        b" ",
        "１".as_bytes(),
        b"\n",
    ];
    let all = rounds(20_000);
    for _ in 0..all {
        let mut text = dice.of(seeds).to_vec();
        dice.spoil(&mut text, scraps);
        let text = String::from_utf8_lossy(&text);
        let stem = ConsumerId::stored(text.as_ref()).file_stem();
        let fine = !stem.is_empty()
            && !stem.contains(['/', '\0', '\n'])
            && !stem.starts_with(['.', '_', '-'])
            && stem.len() < 200;
        assert!(fine, "seed {}: {text:?} becomes {stem:?}", dice.seed);
        if ConsumerId::new(&text).is_ok() {
            assert_eq!(stem, text, "seed {}", dice.seed);
        }
        if let Ok(id) = cmd::event_id(&text) {
            assert!(id >= 0, "seed {}: {text:?}", dice.seed);
        }
        drop((cmd::limit(&text), duration::parse(&text), duration::parse_positive(&text)));
        if let Ok(spans) = duration::parse_list(&text) {
            assert_eq!(
                duration::parse_list(&duration::format_list(&spans)),
                Ok(spans),
                "seed {}: {text:?}",
                dice.seed
            );
        }
        thread::event::source_warning(&text);
    }
    eprintln!("{all} words");
}

#[test]
fn no_copy_and_no_state_file_makes_the_writer_panic_and_the_copy_is_mended() {
    let mut dice = Dice::new();
    let dir = tempfile::tempdir().unwrap();
    let inbox = Thread::init(&dir.path().join("inbox")).unwrap();
    let mut thread = Thread::open(&inbox).unwrap();
    let push = |thread: &mut Thread| {
        let event = NewEvent::new("self", "message", None, "{\"a\":\"é\"}").unwrap();
        thread.store.append(|inserter| inserter.insert(&event).map(drop)).unwrap();
    };
    let scraps: &[&[u8]] = &[
        b"\n",
        b"{\"id\":1}",
        b"{\"id\":9223372036854775807}\n",
        b"\xff\0",
        b"{",
        b"\"bytes\":18446744073709551615",
        b"-1",
        b"[[[[[[[[",
        b"\"boot\":\"\"",
        b"99999999999999999999 1 1",
        b"null",
    ];
    // The copy grows with each round, and is often read whole.
    let all = if long() { 1_500 } else { 300 };
    for round in 0..all {
        push(&mut thread);
        let names: &[&str] = &["events.jsonl", "run/_journal", "logs/thread.log", "run/_log"];
        for _ in 0..=dice.below(2) {
            let path = inbox.join(dice.of(names));
            let mut bytes = fs::read(&path).unwrap_or_default();
            match dice.below(12) {
                0 => bytes = b"[".repeat(200_000),
                1 => bytes.clear(),
                2 => bytes = (0..dice.below(3000)).map(|_| dice.below(256) as u8).collect(),
                _ => dice.spoil(&mut bytes, scraps),
            }
            // In place, as an editor that kept the inode would, or as another file.
            if dice.below(3) == 0 {
                fs::remove_file(&path).ok();
            }
            fs::write(&path, bytes).unwrap();
        }
        thread.log(log::Level::Info, "nonsense");
        journal::catch_up(&thread.files, &mut thread.store)
            .unwrap_or_else(|e| panic!("seed {}: {e:?}", dice.seed));
        let mut table = Vec::new();
        thread
            .store
            .read_rows(&mut Reading { after: 0, left: None, filter: None }, |row| {
                row.write_line(&mut table);
                true
            })
            .unwrap();
        if round < 900 {
            assert!(
                fs::read(inbox.join("events.jsonl")).unwrap() == table,
                "seed {}: round {round}: the copy is not the table",
                dice.seed
            );
        }
    }
    eprintln!("{all} spoilt copies and states mended");
}

/// A thread with something in every table.
fn full(world: &World) {
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
    let db = world.db();
    db.execute_batch(
        "INSERT INTO dead_letters VALUES ('all', 5, 2, 1, 'oh', '2026-03-18T10:30:00.123Z', 0); \
         CREATE TABLE bulk AS SELECT content FROM events; DROP TABLE bulk; PRAGMA wal_checkpoint(TRUNCATE)",
    )
    .unwrap();
}

const COMMANDS: &[&[&str]] = &[
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
            fs::write(&db, &sound).unwrap();
            for suffix in ["events.db-wal", "events.db-shm"] {
                fs::remove_file(world.inbox().join(suffix)).ok();
            }
            let which = if table == "events" { "id = 7" } else { "consumer_id = 'all'" };
            let done = {
                let conn = Connection::open(&db).unwrap();
                conn.execute(&format!("UPDATE {table} SET {column} = {value} WHERE {which}"), [])
            };
            // Some the schema itself refuses.
            if done.is_err() {
                continue;
            }
            let about = format!("seed {}: {table}.{column} = {value}", dice.seed);
            // In the process first, which is quick, then one or all of the commands.
            {
                let mut thread = Thread::open(&world.inbox()).unwrap();
                let all = thread.store.subscriptions().unwrap_or_else(|e| panic!("{about}: {e}"));
                assert!(all.iter().any(|s| s.consumer.as_str() == "bot"), "{about}: another is hidden");
                for subscription in &all {
                    thread.store.look(subscription).unwrap_or_else(|e| panic!("{about}: {e}"));
                    drop(
                        thread
                            .store
                            .letters(Some(&subscription.consumer))
                            .unwrap_or_else(|e| panic!("{about}: {e}")),
                    );
                    thread
                        .store
                        .set_cursor(&subscription.consumer, 4)
                        .unwrap_or_else(|e| panic!("{about}: {e}"));
                }
                thread.store.read_all(Reading { after: 0, left: None, filter: None }).unwrap();
                journal::catch_up(&thread.files, &mut thread.store)
                    .unwrap_or_else(|e| panic!("{about}: {e:?}"));
            }
            tried += 1;
            let few = if long() { COMMANDS } else { &[*dice.of(&COMMANDS.iter().collect::<Vec<_>>())][..] };
            for command in few.iter().filter(|_| long() || tried % 4 == 0) {
                ends_well(world.off(*command), b"", &format!("{about}: {command:?}"));
                if *command == ["dispatch"] {
                    calm(&world);
                }
                runs += 1;
            }
        }
    }
    eprintln!("{tried} odd values in {} columns, {runs} runs", columns.len());
    assert!(tried > 500 && runs > 100, "only {tried} values and {runs} runs");
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
        "info",
        "init",
        "dispatch",
        "pause",
        "resume",
        "stop",
        "dead",
        "logs",
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
        // Something sensible, with a few of its words changed.
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

/// What a page of an SQLite file holds, by its first byte.
fn kind(db: &[u8], page: usize, size: usize) -> u8 {
    db[page * size + if page == 0 { 100 } else { 0 }]
}

#[test]
fn a_damaged_database_makes_it_fail_and_never_panic_or_hang() {
    let world = World::with_thread();
    full(&world);
    let path = world.inbox().join("events.db");
    let sound = fs::read(&path).unwrap();
    let size = usize::from(u16::from_be_bytes([sound[16], sound[17]]));
    let pages = sound.len() / size;
    let mut kinds: Vec<u8> = (0..pages).map(|page| kind(&sound, page, size)).collect();
    kinds.sort();
    kinds.dedup();
    // Interior and leaf pages of tables and indexes; the rest are overflow and free pages.
    assert!([2, 5, 10, 13].iter().filter(|kind| kinds.contains(kind)).count() >= 3, "{kinds:?}");
    let mut damaged: Vec<(String, Vec<u8>)> = Vec::new();
    for length in [
        0,
        1,
        15,
        16,
        99,
        100,
        101,
        size - 1,
        size,
        size + 1,
        size * 2,
        sound.len() / 2,
        sound.len() - size,
        sound.len() - 1,
    ] {
        damaged.push((format!("cut to {length} bytes"), sound[..length].to_vec()));
    }
    let mut dice = Dice::new();
    // The first of each kind, and some more.
    let firsts: Vec<usize> =
        kinds.iter().map(|k| (0..pages).find(|&p| kind(&sound, p, size) == *k).unwrap()).collect();
    for page in firsts
        .into_iter()
        .chain((0..if long() { 60 } else { 20 }).map(|_| dice.below(pages)).collect::<Vec<_>>())
    {
        for way in 0..4 {
            let mut db = sound.clone();
            let whole = &mut db[page * size..(page + 1) * size];
            match way {
                0 => whole.fill(0),
                1 => (0..8).for_each(|_| whole[dice.below(12)] = dice.below(256) as u8),
                2 => (0..20).for_each(|_| whole[dice.below(size)] ^= 1 << dice.below(8)),
                _ => whole.iter_mut().for_each(|byte| *byte = dice.below(256) as u8),
            }
            damaged.push((format!("seed {}: page {page} of {pages}, way {way}", dice.seed), db));
        }
    }
    for byte in 0..100 {
        let mut db = sound.clone();
        db[byte] ^= 0xff;
        damaged.push((format!("header byte {byte}"), db));
    }
    let (mut runs, mut codes) = (0, [0; 3]);
    for (about, db) in &damaged {
        replace_db(&path, db);
        let few = if long() {
            COMMANDS
        } else {
            &[COMMANDS[runs % 6], COMMANDS[(runs / 2 + 3) % COMMANDS.len()]][..]
        };
        for command in few {
            codes[ends_well(world.off(*command), b"", &format!("{about}: {command:?}")) as usize] += 1;
            if *command == ["dispatch"] {
                calm(&world);
            }
            runs += 1;
        }
    }
    eprintln!("{} damaged databases, {runs} runs: exit codes 0, 1, 2: {codes:?}", damaged.len());
    assert!(codes[1] > runs / 5, "too little was noticed: {codes:?}");
    // And a damaged WAL: what it does not vouch for is not there.
    replace_db(&path, &sound);
    for way in 0..if long() { 200 } else { 20 } {
        replace_db(&path, &sound);
        world.off(COMMANDS[2]).quiet();
        let wal = world.inbox().join("events.db-wal");
        let mut bytes = fs::read(&wal).unwrap();
        match way % 3 {
            0 => bytes.truncate(dice.below(bytes.len())),
            _ => dice.spoil(&mut bytes, &[b"\0\0\0\0", b"\xff\xff"]),
        }
        fs::write(&wal, bytes).unwrap();
        ends_well(world.off(["info"]), b"", &format!("seed {}: damaged WAL", dice.seed));
        ends_well(world.off(COMMANDS[2]), b"", &format!("seed {}: damaged WAL, push", dice.seed));
    }
}

/// Ends what a dispatch has left standing beside a handler: the file is about to change under it,
/// which only its tables are to survive.
fn calm(world: &World) {
    wait_until("supervisors to end", || {
        let left = world.processes();
        for pid in &left {
            if let Some(pid) = rustix::process::Pid::from_raw(*pid as i32) {
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
            }
        }
        left.is_empty()
    });
}

fn replace_db(path: &Path, bytes: &[u8]) {
    for suffix in ["-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        fs::remove_file(name).ok();
    }
    fs::write(path, bytes).unwrap();
}
