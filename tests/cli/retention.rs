//! How much of its logs a thread keeps, and how sealed files of the JSONL log are deleted.

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
