//! `info --check`: exit 1 and one line for each consumer that needs attention, and no output at all
//! if none does.

use serde_json::{Value, json};
use thread_testkit::{World, take_all, wait_until};

/// The output of `info --check` with these options; `None` for a healthy thread.
#[track_caller]
fn check(world: &World, options: &[&str]) -> Option<String> {
    let output = world.thread(["info", "--check"].iter().chain(options)).output();
    let (stdout, stderr) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    match output.status.code() {
        Some(0) => {
            assert_eq!((stdout.as_str(), stderr.as_str()), ("", ""));
            None
        }
        Some(1) => {
            let count = stdout.lines().count();
            let said =
                if count == 1 { "1 consumer needs".to_owned() } else { format!("{count} consumers need") };
            assert_eq!(stderr, format!("Error: {said} attention - see `thread info` and `thread logs`\n"));
            Some(stdout)
        }
        code => panic!("{code:?}: {stdout}{stderr}"),
    }
}

#[track_caller]
fn assert_says(world: &World, options: &[&str], lines: &str) {
    assert_eq!(check(world, options).as_deref(), Some(lines), "{options:?}");
}

#[test]
fn a_healthy_thread_under_load_has_nothing_to_say() {
    let world = World::with_thread();
    take_all(&world, "worker");
    world.idle_consumer("reader", "type = 'record'");
    let load = "for i in $(seq 30); do thread push --source self --type message --content x >/dev/null; done";
    let mut pushes = world.sh(load).spawn();
    let limits = ["--max-pending", "1000", "--max-age", "1h", "--max-rate", "100000/m"];
    while pushes.try_wait().unwrap().is_none() {
        assert_eq!(check(&world, &[]), None);
        assert_eq!(check(&world, &limits), None);
    }
    world.wait_until_quiet();
    assert_eq!(check(&world, &limits), None);
    let json: Value = serde_json::from_str(&world.thread(["info", "--check", "--json"]).quiet()).unwrap();
    assert_eq!(json, json!({"healthy": true, "consumers": []}));
}

#[test]
fn a_consumer_that_makes_no_progress_is_reported() {
    let world = World::with_thread();
    world.subscribe("broken", "no-such-program", &[]);
    world.subscribe("failing", "false", &["--max-attempts", "1"]);
    world.idle_consumer("resting", "");
    world.push("x");
    world.wait_for_state("broken", "stalled");
    world.wait_for_state("failing", "stalled");
    world.thread(["pause", "--consumer", "resting"]).quiet();
    assert_says(
        &world,
        &[],
        "broken: stalled (the handler cannot be run (exit 127))\n\
         failing: stalled (out of attempts)\n\
         resting: paused\n",
    );
    // A consumer whose directory is gone is stalled, and its backlog is still reported.
    std::fs::create_dir(world.path("work")).unwrap();
    world.off(["subscribe", "--consumer", "worker", "--handler", "cat", "--cwd", "work"]).quiet();
    std::fs::remove_dir(world.path("work")).unwrap();
    assert_eq!(world.consumer("worker")["pending"], 1);
    let said = check(&world, &["--max-pending", "5"]).unwrap();
    assert!(said.contains("worker: stalled (the working directory of 'worker'"), "{said}");
}

#[test]
fn a_consumer_that_only_fails_is_reported_before_it_is_given_up() {
    let world = World::with_thread();
    let options = ["--deliver", "stdin", "--backoff", "10ms,10ms,1h", "--max-attempts", "9"];
    world.subscribe("broken", "! grep bad", &options);
    world.push("bad");
    wait_until("three attempts", || world.consumer("broken")["last_hour"]["failed"] == 3);
    assert_says(&world, &[], "broken: failing (3 attempts failed in the last hour, and none succeeded)\n");
    // Among others that succeed, it only waits.
    world.thread(["stop", "--consumer", "broken", "--skip"]).quiet();
    world.push("good");
    world.wait_until_quiet();
    world.push("bad");
    wait_until("three more attempts", || world.consumer("broken")["last_hour"]["failed"] == 6);
    assert_eq!(check(&world, &[]), None);
}

#[test]
fn a_consumer_that_does_not_keep_up_is_reported() {
    let world = World::with_thread();
    world.idle_consumer("reader", "");
    for _ in 0..3 {
        world.off(["push", "--source", "self", "--type", "message", "--content", "x"]).quiet();
    }
    assert_eq!(check(&world, &["--max-pending", "3", "--max-age", "1h"]), None);
    assert_says(&world, &["--max-pending", "2"], "reader: behind (3 events pending, more than 2)\n");
    world.db().execute("UPDATE events SET created_at = '2026-03-18T10:30:00.123Z' WHERE id = 1", []).unwrap();
    let said = check(&world, &["--max-age", "1h30m"]).unwrap();
    assert!(said.starts_with("reader: old (the oldest pending event is "), "{said}");
    assert!(said.ends_with(" old, more than 1h30m)\n"), "{said}");
    let said = check(&world, &[]).unwrap();
    assert!(said.starts_with("reader: unattended (3 events pending for "), "{said}");
    assert!(said.ends_with(", and nothing is running it or waiting to retry it)\n"), "{said}");
    world.thread(["ack", "--consumer", "reader", "--event-id", "3"]).quiet();
    assert_eq!(check(&world, &["--max-age", "1h", "--max-pending", "1"]), None);
}

#[test]
fn old_events_that_nobody_takes_from_a_consumer_without_a_handler_are_reported() {
    let world = World::with_thread();
    world.thread(["subscribe", "--consumer", "reader", "--no-handler"]).quiet();
    world.off(["push", "--source", "self", "--type", "message", "--content", "x"]).quiet();
    world.off(["push", "--source", "self", "--type", "message", "--content", "y"]).quiet();
    assert_eq!(check(&world, &[]), None);
    world.db().execute("UPDATE events SET created_at = '2026-03-18T10:30:00.123Z'", []).unwrap();
    let said = check(&world, &[]).unwrap();
    assert!(said.starts_with("reader: unattended (2 events pending, and not taken for "), "{said}");
    assert_eq!(check(&world, &["--max-pending", "2", "--max-age", "80000h"]), None);
    // A reader has just taken one.
    world.thread(["ack", "--consumer", "reader", "--event-id", "1"]).quiet();
    assert_eq!(check(&world, &[]), None);
}

#[test]
fn dead_letters_and_events_on_which_a_filter_failed_are_reported() {
    let world = World::with_thread();
    let options = ["--deliver", "stdin", "--max-attempts", "1", "--filter", "content = 'bad'"];
    world.subscribe("shop", "exit 3", &options);
    world.push("bad");
    wait_until("a dead letter", || world.consumer("shop")["dead"] == 1);
    assert_says(&world, &[], "shop: dead (1 event, see `thread dead list`)\n");
    world.idle_consumer("reader", "content NOT IN ('words', '{}') AND json_extract('{}', content) = 1");
    world.push("no JSON");
    assert_says(
        &world,
        &[],
        "reader: filter (it failed on 2 events, the last of them 2; thread.log says why)\nshop: dead (1 event, see `thread dead list`)\n",
    );
    let json: Value =
        serde_json::from_str(&world.thread(["info", "--check", "--json"]).ends_with(1).0).unwrap();
    let reader = json!({"check": "filter", "problem": "it failed on 2 events, the last of them 2; thread.log says why"});
    assert_eq!((&json["healthy"], &json["consumers"][0]["consumer_id"]), (&json!(false), &json!("reader")));
    assert_eq!(json["consumers"][0]["problems"], json!([reader]));
    assert_eq!(world.consumer("reader")["last_filter_error_id"], 2);
    let text = world.thread(["info"]).quiet();
    assert!(text.contains("    filter_errors: 2 last_id=2\n"), "{text}");
}

#[test]
fn events_that_come_too_fast_are_reported_for_their_consumers() {
    let world = World::with_thread();
    world.idle_consumer("all", "");
    world.idle_consumer("records", "type = 'record'");
    world.idle_consumer("messages", "type = 'message'");
    // Old events do not count, whatever their position.
    let insert = "INSERT INTO events (source, type, content, created_at) VALUES ('self', ?1, 'x', ?2)";
    for _ in 0..20 {
        world.db().execute(insert, ["message", "2026-03-18T10:30:00.123Z"]).unwrap();
    }
    let batch: String =
        (0..10).map(|_| "{\"source\":\"self\",\"type\":\"message\",\"content\":\"x\"}\n").collect();
    world.off(["push", "--batch"]).stdin(batch).quiet();
    world.thread(["prune", "--before-id", "3", "--force"]).ends_with(0);
    for name in ["all", "records", "messages"] {
        world.thread(["ack", "--consumer", name, "--event-id", "30"]).quiet();
    }
    assert_eq!(check(&world, &["--max-rate", "10/d"]), None);
    assert_says(
        &world,
        &["--max-rate", "9/d"],
        "all: rate (more than 9 events came in the last 1d)\n\
         messages: rate (more than 9 events came in the last 1d)\n",
    );
}

#[test]
fn counters_only_rise() {
    let world = World::with_thread();
    let options = ["--deliver", "stdin", "--max-attempts", "1", "--batch-size", "1"];
    world.subscribe("shop", "! grep bad", &options);
    let counters = || {
        let shop = world.consumer("shop");
        ["runs_succeeded", "runs_failed", "dead_letters_made"].map(|name| shop[name].as_u64().unwrap())
    };
    assert_eq!(counters(), [0, 0, 0]);
    for content in ["good", "bad", "good"] {
        world.push(content);
        world.wait_until_quiet();
    }
    assert_eq!(counters(), [2, 1, 1]);
    world.thread(["dead", "discard", "--consumer", "shop", "--all"]).quiet();
    world.thread(["prune", "--before-id", "3"]).quiet();
    assert_eq!(counters(), [2, 1, 1]);
    let info: Value = serde_json::from_str(&world.thread(["info", "--json"]).quiet()).unwrap();
    assert_eq!((&info["events_pushed"], &info["event_count"]), (&json!(3), &json!(1)));
}

#[test]
fn limits_need_a_check_and_are_numbers() {
    let world = World::with_thread();
    for options in [
        &["--max-pending", "1"][..],
        &["--check", "--max-pending", "-1"],
        &["--check", "--max-age", "x"],
        &["--check", "--max-rate", "90"],
        &["--check", "--format", "prometheus"],
    ] {
        world.thread(["info"].iter().chain(options)).fails(2);
    }
}

#[test]
fn nothing_at_all_may_be_pending_with_a_limit_of_0() {
    let world = World::with_thread();
    world.idle_consumer("bot", "");
    assert_eq!(check(&world, &["--max-pending", "0"]), None);
    world.off(["push", "x"]).quiet();
    assert_says(&world, &["--max-pending", "0"], "bot: behind (1 event pending, more than 0)\n");
}
