//! How much of its logs a thread keeps, how sealed files of the JSONL log are deleted, and what is deleted because `thread
//! config` says so.

use std::fs;

use serde_json::{Value, json};
use thread_testkit::{World, names};

const MIB: usize = 1024 * 1024;

/// Numbered lines of about `bytes` bytes in total.
fn lines(bytes: usize) -> String {
    (0..).map(|n| format!("line {n:>50}\n")).take(bytes / 56).collect()
}

/// The names of a log's rotated files, and the text of the last one.
fn set_aside(world: &World, dir: &str, stem: &str) -> (Vec<String>, String) {
    let all: Vec<String> =
        names(&world.inbox().join(dir)).into_iter().filter(|name| name.starts_with(stem)).collect();
    let last = world.read(format!("inbox/{dir}/{}", all.last().unwrap()));
    (all, last)
}

#[test]
fn of_thread_log_the_last_ten_parts_are_kept_and_the_end_of_each() {
    let world = World::with_thread();
    for n in 10..22 {
        world.write(format!("inbox/logs/thread-20260318-1030{n}.log"), "old\n");
    }
    let text = lines(11 * MIB);
    world.write("inbox/logs/thread.log", &text);
    world.push("x");
    let (all, last) = set_aside(&world, "logs", "thread-");
    assert_eq!(all.len(), 10);
    assert_eq!(all[0], "thread-20260318-103013.log");
    assert!(last.len() <= 10 * MIB && last.len() > 10 * MIB - 100, "{}", last.len());
    assert!(text.ends_with(&format!("\n{last}")), "whole lines, and the end of it");
    assert_eq!(world.log().len(), 1, "the push is in a new one");
    // A short log is not rotated.
    world.push("x");
    assert_eq!(set_aside(&world, "logs", "thread-").0, all);
}

#[test]
fn of_each_handlers_log_the_last_three_parts_are_kept() {
    let world = World::with_thread();
    fs::create_dir(world.path("inbox/logs/handlers")).unwrap();
    for n in 10..15 {
        world.write(format!("inbox/logs/handlers/bot~20260318-1030{n}.log"), "old\n");
    }
    world.write("inbox/logs/handlers/bot-2~20260318-103010.log", "another's\n");
    let text = lines(12 * MIB);
    world.write("inbox/logs/handlers/bot.log", &text);
    world.subscribe("bot", "cat", &["--deliver", "stdin"]);
    world.push("x");
    world.wait_until_quiet();
    let (all, last) = set_aside(&world, "logs/handlers", "bot~");
    assert_eq!((all.len(), all[0].as_str()), (3, "bot~20260318-103013.log"));
    assert!(last.len() <= 10 * MIB && text.ends_with(&format!("\n{last}")));
    assert_eq!(world.read("inbox/logs/handlers/bot-2~20260318-103010.log"), "another's\n");
    assert_eq!(world.lines("inbox/logs/handlers/bot.log").len(), 3);
}

#[test]
fn sealed_parts_of_the_jsonl_log_go_when_they_are_old_enough() {
    let world = World::with_thread();
    for _ in 0..4 {
        world.push("x");
    }
    world.thread(["prune", "--before-id", "2"]).quiet();
    let sealed = names(&world.inbox()).into_iter().find(|name| name.starts_with("events-")).unwrap();
    fs::rename(world.inbox().join(&sealed), world.inbox().join("events-20260318-103000.jsonl")).unwrap();
    world.push("x");
    world.thread(["prune", "--before-id", "6"]).quiet();
    world.push("x");
    let sealed =
        |world: &World| names(&world.inbox()).iter().filter(|name| name.starts_with("events-")).count();
    assert_eq!(sealed(&world), 2);
    let size = fs::metadata(world.inbox().join("events-20260318-103000.jsonl")).unwrap().len();

    let (stdout, stderr) = world.thread(["prune", "--sealed-older-than", "1h", "--dry-run"]).ends_with(0);
    assert_eq!(stdout, "0\n");
    let told = format!("Note: 1 sealed files of the JSONL log, {size} bytes, would be deleted\n");
    assert!(stderr.ends_with(&told), "{stderr}");
    assert_eq!(sealed(&world), 2);

    let words = ["prune", "--sealed-older-than", "1h", "--before-id", "7", "--json"];
    let done: Value = serde_json::from_str(&world.thread(words).quiet()).unwrap();
    assert_eq!(
        (&done["count"], &done["sealed_files"], &done["sealed_bytes"]),
        (&json!(1), &json!(1), &json!(size))
    );
    assert!(!world.inbox().join("events-20260318-103000.jsonl").exists());
    // The remaining lines are the end of the log, and the thread is healthy.
    world.push("x");
    let ids = thread_testkit::ids(&world.jsonl().join("\n"));
    assert_eq!(ids.last(), Some(&7));
    assert!(ids.is_sorted(), "{ids:?}");
    assert_eq!(world.thread(["doctor"]).quiet(), "healthy\n");
    for words in [&["prune"][..], &["prune", "--sealed-older-than", "1h", "--force"], &["prune", "--compact"]]
    {
        world.thread(words).fails(2);
    }
}

#[test]
fn info_shows_how_much_space_a_thread_takes() {
    let world = World::with_thread();
    world.subscribe("bot", "cat", &["--deliver", "stdin"]);
    world.push("x");
    world.wait_until_quiet();
    let info: Value = serde_json::from_str(&world.thread(["info", "--json"]).quiet()).unwrap();
    let size = |name: &str| fs::metadata(world.inbox().join(name)).unwrap().len();
    let logs = size("logs/thread.log") + size("logs/handlers/bot.log");
    assert_eq!(info["logs_bytes"], json!(logs));
    let parts = ["database_bytes", "wal_bytes", "log_bytes", "logs_bytes"];
    let sum: u64 = parts.iter().map(|name| info[name].as_u64().unwrap()).sum();
    assert_eq!(info["disk_bytes"], json!(sum));
    let table = world.thread(["info", "--format", "table"]).quiet();
    assert!(table.contains("\nDisk: ") && table.contains(", logs "), "{table}");
}

// Retention, as `thread config` says.

/// A world with so many events, which keeps the newest three. The first pass is not yet due.
fn world_that_keeps_three(events: usize) -> World {
    let world = World::with_thread();
    push_many(&world, events);
    world.thread(["config", "retention.events", "3"]).quiet();
    world
}

fn push_many(world: &World, events: usize) {
    world.off(["push", "--lines"]).stdin("ten bytes.\n".repeat(events)).quiet();
}

/// Pushes one event, and finds that nobody else has applied retention for long.
fn push_long_after(world: &World) {
    world.write("inbox/run/_retention", "");
    push_until_over(world);
}

/// Pushes one event. Repeats that push, which stores nothing, until a pass is over: each does a piece, and under load a
/// piece may be a single event.
fn push_until_over(world: &World) {
    let key = world.query("SELECT max(id) FROM events").to_string();
    world.wait_until("the pass", || {
        world.off(["push", "new", "--idempotency-key", &key]).quiet();
        is_over(world)
    });
}

/// Whether a pass over all events is noted as over. It may have deleted everything before that.
fn is_over(world: &World) -> bool {
    let text = world.read("inbox/run/_retention");
    let state: Value = serde_json::from_str(text.lines().next().unwrap_or_default()).unwrap_or_default();
    state["upto"] == 0 && state["newest"] == world.query("SELECT max(id) FROM events")
}

fn stored(world: &World) -> Vec<i64> {
    let conn = world.db();
    let mut statement = conn.prepare("SELECT id FROM events ORDER BY id").unwrap();
    statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

/// Fails unless the thread is sound and each event is in its log.
#[track_caller]
fn assert_sound(world: &World) {
    assert_eq!(world.thread(["doctor"]).quiet(), "healthy\n");
    let (log, table) = (world.jsonl(), world.table_as_jsonl());
    let missing: Vec<_> = table.iter().filter(|line| !log.contains(line)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let current = world.lines("inbox/events.jsonl");
    assert!(current.iter().all(|line| table.contains(line)), "a line of a deleted event");
}

/// The state of the last pass: its end, as seconds before now, and the newest event then.
fn set_last_pass(world: &World, seconds_ago: i64, newest: i64) {
    let path = "inbox/run/_retention";
    let mut state: Value = serde_json::from_str(world.read(path).lines().next().unwrap()).unwrap();
    state["at"] = json!(state["at"].as_i64().unwrap() - seconds_ago);
    state["newest"] = json!(newest);
    world.write(path, format!("{state}\n"));
}

#[test]
fn nothing_is_deleted_for_an_hour_after_a_pass_but_then_by_a_push_that_nobody_else_relieves() {
    let world = world_that_keeps_three(9);
    push_until_over(&world);
    assert_eq!(stored(&world), [8, 9, 10]);
    assert_eq!(world.log().last().unwrap(), "[INFO] retention: events=7 bytes=70 files=0 file_bytes=0");
    push_many(&world, 5);
    assert_eq!(stored(&world).len(), 8);
    // Somebody else may come for another hour.
    set_last_pass(&world, 5000, 10);
    push_many(&world, 1);
    assert_eq!(stored(&world).len(), 9);
    set_last_pass(&world, 2300, 10);
    push_until_over(&world);
    assert_eq!(stored(&world), [15, 16, 17]);
    assert_sound(&world);
}

#[test]
fn twenty_thousand_events_later_a_push_deletes_too() {
    let world = world_that_keeps_three(9);
    push_until_over(&world);
    set_last_pass(&world, 0, -19_989);
    push_until_over(&world);
    assert_eq!(stored(&world).len(), 3, "from -19989 to 11");
}

#[test]
fn what_a_consumer_has_not_passed_and_dead_letters_stay() {
    let world = world_that_keeps_three(20);
    world.off(["subscribe", "all", "--no-handler"]).quiet();
    world.off(["subscribe", "some", "--no-handler", "--filter", "id = 9 OR id = 12"]).quiet();
    push_long_after(&world);
    assert_eq!(stored(&world), (1..=21).collect::<Vec<_>>());
    world.off(["ack", "all", "10"]).quiet();
    let dead =
        "INSERT INTO dead_letters (consumer_id, event_id, attempts, parked_at) VALUES ('gone', 4, 1, '')";
    world.db().execute_batch(dead).unwrap();
    push_long_after(&world);
    assert_eq!(stored(&world), [&[4][..], &(9..=22).collect::<Vec<_>>()].concat(), "`some` needs event 9");
    assert_sound(&world);
    world.off(["ack", "some", "9"]).quiet();
    push_long_after(&world);
    assert_eq!(stored(&world), [&[4][..], &(11..=23).collect::<Vec<_>>()].concat(), "`all` needs event 11");
    world.off(["unsubscribe", "all"]).quiet();
    world.off(["unsubscribe", "some"]).quiet();
    push_long_after(&world);
    assert_eq!(stored(&world), [4, 22, 23, 24]);
    assert_sound(&world);
    world.db().execute_batch("DELETE FROM dead_letters").unwrap();
    push_long_after(&world);
    assert_eq!(stored(&world), [23, 24, 25]);
    assert_sound(&world);
}

#[test]
fn events_of_an_age_go_up_to_the_first_younger_one() {
    let world = World::with_thread();
    push_many(&world, 1200);
    world.thread(["config", "retention.age", "1h"]).quiet();
    let old = "UPDATE events SET created_at = '2026-03-18T10:30:00.000Z' WHERE id <= 1100 OR id = 1150";
    world.db().execute_batch(old).unwrap();
    // The log has other times. It is written again.
    fs::remove_file(world.inbox().join("events.jsonl")).unwrap();
    push_long_after(&world);
    assert_eq!(stored(&world), (1101..=1201).collect::<Vec<_>>());
    assert_sound(&world);
}

#[test]
fn a_worker_applies_it_as_soon_as_it_is_set_and_a_dispatch_does() {
    let world = World::with_thread();
    push_many(&world, 2000);
    world.subscribe("bot", "cat >/dev/null", &["--deliver", "stdin", "--from", "new"]);
    let worker = world.thread(["dispatch", "--follow"]).spawn();
    world.wait_until("the worker", || world.log().iter().any(|line| line.contains("a worker follows")));
    world.thread(["config", "retention.events", "3"]).quiet();
    world.wait_until("the pass", || stored(&world) == [1998, 1999, 2000] && is_over(&world));
    thread_testkit::kill_and_wait(worker.id());
    drop(worker.wait_with_output());
    push_many(&world, 5);
    world.thread(["dispatch"]).quiet();
    world.wait_until("the run", || world.consumer("bot")["last_acked_id"] == 2005);
    world.wait_until_quiet();
    assert_eq!(stored(&world).len(), 8, "it is not due");
    set_last_pass(&world, 3601, 2000);
    world.thread(["dispatch"]).quiet();
    assert_eq!(stored(&world), [2003, 2004, 2005]);
    assert_sound(&world);
}

#[test]
fn a_supervisor_applies_it_after_its_runs() {
    for options in [&["--deliver", "stdin"][..], &["--deliver", "stdin", "--concurrency", "2"]] {
        let world = world_that_keeps_three(9);
        push_until_over(&world);
        push_many(&world, 90);
        world.subscribe("bot", "cat >/dev/null", options);
        world.wait_until("the runs", || world.consumer("bot")["last_acked_id"] == 100);
        world.wait_until_quiet();
        assert_eq!(stored(&world).len(), 93, "it is not due");
        set_last_pass(&world, 3601, 10);
        world.push("one more");
        world.wait_until("the pass", || stored(&world) == [99, 100, 101]);
        world.wait_until_quiet();
        assert_sound(&world);
    }
}

#[test]
fn without_a_consumer_the_files_stop_growing() {
    let world = World::with_thread();
    world.thread(["config", "retention.events", "1000"]).quiet();
    let mut sizes = Vec::new();
    for _ in 0..12 {
        push_many(&world, 5000);
        let count = |text: &str| names(&world.inbox()).iter().filter(|name| name.starts_with(text)).count();
        assert!(count("events-") <= 4, "{:?}", names(&world.inbox()));
        let size = |name: &String| fs::metadata(world.inbox().join(name)).unwrap().len();
        sizes.push(
            names(&world.inbox()).iter().filter(|name| name.starts_with("events")).map(size).sum::<u64>(),
        );
        assert!(stored(&world).len() <= 1000 + 25_000, "{}", stored(&world).len());
    }
    let (before, after) = (sizes[..8].iter().max().unwrap(), sizes[8..].iter().max().unwrap());
    assert!(after <= &(before + before / 4), "{sizes:?}");
    assert_sound(&world);
}

#[test]
fn sealed_parts_of_the_jsonl_log_go_with_the_last_of_their_events() {
    let world = world_that_keeps_three(9);
    let sealed = || names(&world.inbox()).iter().filter(|name| name.starts_with("events-")).count();
    push_long_after(&world);
    assert_eq!((sealed(), world.jsonl().len()), (1, 10), "events 8 to 10 are in it");
    push_many(&world, 2);
    push_long_after(&world);
    assert_eq!((sealed(), stored(&world)), (0, vec![11, 12, 13]));
    assert_eq!(world.jsonl(), world.table_as_jsonl());
}

#[test]
fn with_an_age_of_logs_they_go_by_that() {
    let world = world_that_keeps_three(9);
    world.subscribe("bot", "cat >/dev/null", &["--deliver", "stdin"]);
    world.wait_until_quiet();
    world.thread(["config", "retention.logs", "1h"]).quiet();
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(7200);
    let logs = [
        "logs/thread-20260318-103010.log",
        "logs/handlers/bot~20260318-103010.log",
        "logs/handlers/gone.log",
    ];
    for name in logs.iter().chain(&["logs/handlers/new.log", "logs/handlers/of-a-user.txt"]) {
        fs::write(world.inbox().join(name), "x\n").unwrap();
    }
    for name in
        logs.iter().chain(&["logs/handlers/bot.log", "logs/thread.log", "logs/handlers/of-a-user.txt"])
    {
        fs::File::open(world.inbox().join(name)).unwrap().set_modified(old).unwrap();
    }
    fs::write(world.inbox().join("events-20260318-103000.jsonl"), "").unwrap();
    push_long_after(&world);
    for name in logs {
        assert!(!world.inbox().join(name).exists(), "{name}");
    }
    let mut left = names(&world.inbox().join("logs/handlers"));
    left.sort();
    assert_eq!(left, ["bot.log", "new.log", "of-a-user.txt"]);
    let sealed: Vec<_> =
        names(&world.inbox()).into_iter().filter(|name| name.starts_with("events-")).collect();
    assert_eq!(sealed.len(), 1, "the one that is new: {sealed:?}");
    world.off(["unsubscribe", "bot"]).quiet();
    push_many(&world, 5);
    push_long_after(&world);
    assert_eq!((world.jsonl().len(), stored(&world).len()), (16, 3), "the lines stay longer than the events");
    assert_sound(&world);
}

#[test]
fn a_forgotten_consumer_is_named() {
    let world = world_that_keeps_three(5);
    world.idle_consumer("lost", "");
    let problem = |world: &World| world.thread(["info", "--check"]).output().status.code();
    assert_eq!(world.consumer("lost")["holds_retention"], false);
    push_many(&world, 2);
    assert_eq!(world.consumer("lost")["holds_retention"], true, "event 1 of 7, where 6 are twice as many");
    let (stdout, _) = world.thread(["info", "--check"]).ends_with(1);
    assert!(stdout.starts_with("lost: ") && stdout.contains("retention (keeps the thread"), "{stdout}");
    let text = world.thread(["info", "lost"]).quiet();
    assert!(text.contains("note: keeps the thread from deleting events"), "{text}");
    world.thread(["config", "--unset", "retention.events"]).quiet();
    world.thread(["config", "retention.age", "1h"]).quiet();
    assert_eq!(world.consumer("lost")["holds_retention"], false);
    let older = |hours: &str| {
        let sql = "UPDATE events SET created_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?) WHERE id = 1";
        world.db().execute(sql, [hours]).unwrap();
    };
    older("-119 minutes");
    assert_eq!(world.consumer("lost")["holds_retention"], false);
    older("-121 minutes");
    assert_eq!(world.consumer("lost")["holds_retention"], true);
    world.off(["ack", "lost", "7"]).quiet();
    assert_eq!(world.consumer("lost")["holds_retention"], false);
    assert_eq!(problem(&world), Some(0));
}

#[test]
fn what_is_held_stays_and_so_does_all_after_it() {
    let world = world_that_keeps_three(10);
    world.thread(["subscribe", "reader", "--no-handler"]).quiet();
    world.thread(["ack", "reader", "10"]).quiet();
    world.thread(["config", "hold.other", "8"]).quiet();
    world.thread(["config", "hold.reader", "6"]).quiet();
    push_long_after(&world);
    assert_eq!(stored(&world), [6, 7, 8, 9, 10, 11]);
    assert_eq!(world.consumer("reader")["holds_retention"], false);
    assert_sound(&world);

    // By hand, unless what is to go is named.
    let (stdout, stderr) = world.thread(["prune", "--keep", "1"]).ends_with(0);
    let told = "Warning: stopped before event 6, which 'reader' needs, with all after it (the setting hold.reader); prune \
                with --subtype or --force to delete such events too\n";
    assert_eq!((stdout.as_str(), stderr.as_str()), ("0\n", told));
    let json = world.thread(["prune", "--keep", "1", "--json"]).ends_with(0).0;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["stopped_at"], &json["consumer_id"], &json["hold"]),
        (&json!(6), &Value::Null, &json!("reader"))
    );
    world.off(["push", "x", "--subtype", "token"]).quiet();
    world.off(["push", "x", "--subtype", "token"]).quiet();
    world.thread(["ack", "reader", "13"]).quiet();
    assert_eq!(world.thread(["prune", "--keep", "1", "--subtype", "token"]).ends_with(0).0, "1\n");
    assert_eq!(stored(&world), [6, 7, 8, 9, 10, 11, 13]);

    // It goes with its consumer; then the next one counts.
    world.thread(["unsubscribe", "reader"]).quiet();
    assert_eq!(world.thread(["config"]).quiet(), "hold.other=8\nretention.events=3\n");
    push_long_after(&world);
    assert_eq!(stored(&world), [8, 9, 10, 11, 13, 14]);
    assert_eq!(world.thread(["prune", "--keep", "1", "--force"]).quiet(), "5\n");
}

#[test]
fn a_push_applies_a_setting_that_has_changed_since_the_last_pass() {
    let world = World::with_thread();
    world.off(["subscribe", "bot", "--no-handler"]).quiet();
    // A pass ends: there are figures to merge.
    for id in ["1", "2", "3"] {
        world.off(["push", "--source", "self", "--type", "message", "x"]).quiet();
        world.off(["ack", "bot", id]).quiet();
    }
    assert!(world.read("inbox/run/_retention").contains("events: None"));
    world.off(["config", "retention.events", "1"]).quiet();
    world.off(["push", "--source", "self", "--type", "message", "x"]).quiet();
    assert_eq!(world.table_as_jsonl().len(), 1);
}
