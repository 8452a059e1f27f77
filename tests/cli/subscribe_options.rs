//! The options of `subscribe` for how and where a handler runs.

use thread_testkit::{World, wait_until};

fn subscribe<'a>(options: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
    ["subscribe", "--consumer", "bot", "--handler", "true"].into_iter().chain(options.iter().copied())
}

#[test]
fn malformed_values_are_refused_and_nothing_is_subscribed() {
    let world = World::with_thread();
    for (option, values) in [
        ("--deliver", &["", "Wake", "pipe", "stdin,wake"][..]),
        ("--batch-size", &["0", "-1", "1.5", "12abc", "", "99999999999999999999"]),
        ("--max-attempts", &["0", "-1", "1.5", "x", "", "4294967296"]),
        ("--backoff", &["", ",", "1s,", "-1s", "1.5s", "1 s", "1s;2s", "forever"]),
        ("--timeout", &["", "0s", "0ms", "0", "-1s", "1y", "99999999d"]),
        ("--from", &["", "All", "-1", "1.5", "12abc", "99999999999999999999", "2026-13-01"]),
    ] {
        for value in values {
            let error = world.thread(subscribe(&[&format!("{option}={value}")])).fails(2);
            assert!(error.contains(option), "{option}={value}: {error}");
        }
    }
    assert_eq!(world.query("SELECT count(*) FROM subscriptions"), 0);
}

#[test]
fn durations_are_taken_in_all_units_and_combined() {
    let world = World::with_thread();
    let options = ["--backoff", "500ms,10s, 5m,2h,1d,1h30m", "--timeout", "1m500ms", "--deliver", "stdin"];
    let more = ["--batch-size", "7", "--max-attempts", "3", "--json"];
    let options: Vec<&str> = options.iter().chain(&more).copied().collect();
    let shown: serde_json::Value = serde_json::from_str(&world.thread(subscribe(&options)).quiet()).unwrap();
    assert_eq!(shown["backoff"], "500ms,10s,5m,2h,1d,1h30m");
    assert_eq!(shown["timeout"], "1m500ms");
    assert_eq!((&shown["batch_size"], &shown["max_attempts"]), (&7.into(), &3.into()));
    assert_eq!(shown["deliver"], "stdin");
}

#[test]
fn from_sets_the_cursor() {
    let world = World::with_thread();
    for n in 1..=5 {
        world.push(&n.to_string());
    }
    let cursor_after = |from: &[&str]| {
        world.thread(subscribe(from)).ok();
        wait_until("it to rest", || world.processes().is_empty());
        let cursor = world.consumer("bot")["last_acked_id"].as_i64().unwrap();
        world.thread(["unsubscribe", "--consumer", "bot"]).ok();
        world.wait_until_quiet();
        cursor
    };
    let off = |from: &[&str]| {
        let base: Vec<&str> = subscribe(from).collect();
        world.thread(base).env("THREAD_NOTIFIER", "off").ok();
        let cursor = world.consumer("bot")["last_acked_id"].as_i64().unwrap();
        world.thread(["unsubscribe", "--consumer", "bot"]).ok();
        cursor
    };
    assert_eq!(off(&[]), 0, "a new consumer begins at 0");
    assert_eq!(off(&["--from", "3"]), 3);
    assert_eq!(off(&[]), 3, "stored progress goes on");
    assert_eq!(off(&["--from", "all"]), 0);
    assert_eq!(off(&["--from", "new"]), 5);
    assert_eq!(off(&["--from", "now"]), 5);
    assert_eq!(off(&["--from", "beginning"]), 0);
    assert_eq!(off(&["--from", "1h"]), 0);
    assert_eq!(off(&["--from", "2099-01-01"]), 5);
    assert_eq!(off(&["--from", "0"]), 0);
    assert_eq!(cursor_after(&["--from", "new"]), 5);
    let warning = world.thread(subscribe(&["--from", "9"])).warns();
    assert!(warning.contains("event 9 does not exist yet; the cursor is at 5"), "{warning}");
}

#[test]
fn from_an_id_delivers_what_comes_after_it() {
    let world = World::with_thread();
    for n in 1..=5 {
        world.push(&n.to_string());
    }
    world.subscribe("bot", "cat >> got", &["--deliver", "stdin", "--from", "3"]);
    wait_until("the rest", || thread_testkit::ids(&world.read("got")) == [4, 5]);
}

#[test]
fn the_handler_runs_where_subscribe_was_run_or_in_the_given_directory() {
    let world = World::with_thread();
    std::fs::create_dir_all(world.path("a/b")).unwrap();
    let handler = "pwd > where; cat > in";
    let base = ["subscribe", "--handler", handler, "--deliver", "stdin", "--consumer"];
    world.thread(base.iter().chain(&["here"])).dir(world.path("a")).ok();
    world.thread(base.iter().chain(&["told", "--cwd", "b"])).dir(world.path("a")).ok();
    world.push("x");
    wait_until("both", || world.path("a/where").exists() && world.path("a/b/where").exists());
    let error = world.thread(subscribe(&["--cwd", "nowhere"])).fails(1);
    assert!(error.contains("nowhere is not a directory"), "{error}");
    world.write("file", "");
    world.thread(subscribe(&["--cwd", "file"])).fails(1);
}
