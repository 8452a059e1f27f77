//! Events that expire: `push --expires`.

use serde_json::{Value, json};
use thread_testkit::{World, ids, take_all, wait_until};

const LONG_AGO: &str = "2026-01-01T00:00:00.000Z";

/// Pushes events with these contents, together; those in capitals have expired already.
fn push(world: &World, contents: &[&str]) {
    let line = |content: &&str| {
        let is_expired = content.chars().all(char::is_uppercase);
        let metadata = if is_expired { json!({"expires_at": LONG_AGO}) } else { json!({}) };
        format!("{}\n", json!({"content": content, "metadata": metadata}))
    };
    world.thread(["push", "--batch"]).stdin(contents.iter().map(line).collect::<String>()).ok();
}

fn expired(world: &World, consumer: &str) -> i64 {
    world.consumer(consumer)["expired"].as_i64().unwrap()
}

/// All events expire now.
fn expire(world: &World) {
    let sql = "UPDATE events SET metadata = json_set(coalesce(metadata, '{}'), '$.expires_at', ?1)";
    world.db().execute(sql, [LONG_AGO]).unwrap();
}

fn metadata(world: &World, id: i64) -> Value {
    let printed = world.thread(["peek", "--last-event-id", &(id - 1).to_string(), "--limit", "1"]).quiet();
    serde_json::from_str::<Value>(&printed).unwrap()["metadata"].clone()
}

fn time(value: &Value) -> chrono::DateTime<chrono::Utc> {
    value.as_str().unwrap().parse().unwrap()
}

/// The lines in `seen`, once everything is finished.
fn seen(world: &World, cursor: i64) -> Vec<String> {
    wait_until("all to be finished", || {
        let bot = world.consumer("bot");
        bot["last_acked_id"] == cursor && bot["pending"] == 0
    });
    world.lines("seen")
}

const IDS: &str = "sed 's/^{\"id\":\\([0-9]*\\),.*/\\1/' >>seen";

#[test]
fn handlers_are_not_given_what_has_expired() {
    for options in [
        &["--deliver", "stdin"][..],
        &["--deliver", "stdin", "--batch-size", "1"],
        &["--deliver", "stdin", "--concurrency", "2"],
        &["--deliver", "stdin", "--concurrency", "2", "--key", "'all'"],
        &["--deliver", "stdin", "--filter", "content <> 'y'"],
    ] {
        let world = World::with_thread();
        world.subscribe("bot", IDS, options);
        push(&world, &["A", "x", "B", "C", "z", "D"]);
        let mut seen = seen(&world, 6);
        seen.sort();
        assert_eq!(seen, ["2", "5"], "{options:?}");
        assert_eq!(expired(&world, "bot"), 4, "{options:?}");
        push(&world, &["E"]);
        wait_until("the last", || expired(&world, "bot") == 5);
    }
}

#[test]
fn a_handler_that_is_kept_is_not_given_it_either() {
    let handler = "while read -r line; do id=${line#*:}; id=${id%%,*}; echo $id >>seen; echo \"{\\\"ack\\\":$id}\"; done";
    for options in [&[][..], &["--batch-size", "1"], &["--concurrency", "2", "--key", "'all'"]] {
        let world = World::with_thread();
        world.subscribe("bot", handler, &[&["--deliver", "ndjson"], options].concat());
        push(&world, &["A", "x", "B", "C", "z", "D"]);
        assert_eq!(seen(&world, 6), ["2", "5"], "{options:?}");
        assert_eq!(expired(&world, "bot"), 4, "{options:?}");
    }
}

#[test]
fn a_handler_that_pops_is_not_given_it() {
    let world = World::with_thread();
    take_all(&world, "bot");
    push(&world, &["A", "x", "B", "C", "z", "D"]);
    wait_until("all to be finished", || world.consumer("bot")["last_acked_id"] == 6);
    assert_eq!(world.lines("seen.bot"), ["2", "5"]);
    assert_eq!(expired(&world, "bot"), 4);
}

#[test]
fn pop_passes_over_it() {
    let world = World::with_thread();
    world.thread(["subscribe", "bot", "--no-handler"]).quiet();
    push(&world, &["A", "B", "x", "C", "z"]);
    let pop = |last: &[&str]| ids(&world.thread([&["pop", "bot"], last].concat()).quiet());
    // It ends before the next one that has expired.
    assert_eq!(pop(&[]), [3]);
    assert_eq!(expired(&world, "bot"), 2);
    assert_eq!(pop(&["--last-event-id", "3"]), [5]);
    assert_eq!(expired(&world, "bot"), 3);
    assert_eq!(pop(&["--last-event-id", "5"]), Vec::<i64>::new());
    world.thread(["pop", "bot", "--fail-if-none"]).fails(3);
    push(&world, &["D"]);
    world.thread(["pop", "bot", "--fail-if-none"]).fails(3);
    assert_eq!((expired(&world, "bot"), &world.consumer("bot")["last_acked_id"]), (4, &json!(6)));
    assert!(world.thread(["info"]).quiet().contains("expired: 4\n"));
}

#[test]
fn what_was_given_once_does_not_expire() {
    let world = World::with_thread();
    world.thread(["subscribe", "bot", "--no-handler"]).quiet();
    world.thread(["push", "--expires", "1h", "x"]).quiet();
    world.thread(["push", "y"]).quiet();
    assert_eq!(ids(&world.thread(["pop", "bot"]).quiet()), [1, 2]);
    world.push("z");
    expire(&world);
    assert_eq!(ids(&world.thread(["pop", "bot"]).quiet()), [1, 2]);
    assert_eq!(world.thread(["pop", "bot", "--last-event-id", "2"]).quiet(), "");
    assert_eq!(expired(&world, "bot"), 1);
}

#[test]
fn a_retry_is_given_what_has_expired_since() {
    for options in [&["--deliver", "stdin"][..], &["--deliver", "stdin", "--concurrency", "2"]] {
        let world = World::with_thread();
        let handler = format!("{IDS}; [ -e go ]");
        world.thread(["push", "--expires", "1h", "x"]).quiet();
        world.subscribe("bot", &handler, &[options, &["--backoff", "1h"]].concat());
        world.thread(["dispatch"]).ok();
        wait_until("the first attempt", || world.consumer("bot")["runs_failed"] == 1);
        expire(&world);
        std::fs::write(world.path("go"), "").unwrap();
        world.thread(["resume", "bot"]).ok();
        assert_eq!(seen(&world, 1), ["1", "1"], "{options:?}");
        assert_eq!(expired(&world, "bot"), 0);
    }
}

#[test]
fn what_was_claimed_once_does_not_expire() {
    let world = World::with_thread();
    world.thread(["subscribe", "bot", "--no-handler", "--concurrency", "9"]).quiet();
    push(&world, &["A", "x"]);
    let take = || ids(&world.thread(["pop", "bot", "--claim", "1h", "--limit", "9"]).quiet());
    assert_eq!(take(), [2]);
    assert_eq!(expired(&world, "bot"), 1);
    world.push("y");
    expire(&world);
    world.thread(["nack", "bot", "2", "--delay", "0s"]).quiet();
    assert_eq!(take(), [2]);
    assert_eq!(expired(&world, "bot"), 2);
    world.thread(["ack", "bot", "2"]).quiet();
    assert_eq!(world.consumer("bot")["last_acked_id"], 3);
}

#[test]
fn a_held_back_event_may_expire() {
    let world = World::with_thread();
    let options = ["subscribe", "bot", "--no-handler", "--concurrency", "9", "--key", "'all'"];
    world.thread(options).quiet();
    push(&world, &["x", "y", "z"]);
    let take = || ids(&world.thread(["pop", "bot", "--claim", "1h", "--limit", "9"]).quiet());
    assert_eq!(take(), [1]);
    expire(&world);
    world.thread(["ack", "bot", "1"]).quiet();
    assert_eq!(take(), Vec::<i64>::new());
    assert_eq!((expired(&world, "bot"), &world.consumer("bot")["last_acked_id"]), (2, &json!(3)));
}

#[test]
fn it_counts_from_the_push_or_from_when_it_is_due() {
    let world = World::with_thread();
    let before = chrono::Utc::now();
    world.thread(["push", "--expires", "1h", "--meta", "a=b", "x"]).quiet();
    let found = metadata(&world, 1);
    let left = time(&found["expires_at"]) - before;
    assert!(left >= chrono::TimeDelta::hours(1) && left < chrono::TimeDelta::hours(2), "{found}");
    assert_eq!(found["a"], "b");
    world.thread(["push", "--at", "2099-07-01T10:00:00Z", "--expires", "90s", "x"]).quiet();
    let listed: Value = serde_json::from_str(&world.thread(["scheduled", "--json"]).quiet()).unwrap();
    assert_eq!(listed["metadata"]["expires_at"], "2099-07-01T10:01:30.000Z");
    world.thread(["push", "--lines", "--expires", "1h"]).stdin("a\nb\n").quiet();
    let line = json!({"content": "c", "expires": "2h"}).to_string();
    world.thread(["push", "--batch", "--expires", "1h"]).stdin(line).quiet();
    for (id, hours) in [(2, 1), (3, 1), (4, 2)] {
        let left = time(&metadata(&world, id)["expires_at"]) - before;
        assert_eq!(left.num_hours(), hours, "{id}");
    }
    world.assert_log_is_exact();
}

#[test]
fn a_repeat_under_the_same_key_is_stored_once() {
    let world = World::with_thread();
    let push = |options: &[&str]| {
        world.thread([&["push", "--idempotency-key", "k", "--meta", "a=b", "x"], options].concat())
    };
    assert_eq!(push(&["--expires", "1h"]).quiet(), "1\n");
    assert_eq!(push(&["--expires", "1h"]).quiet(), "1\n");
    assert_eq!(push(&["--expires", "2h"]).quiet(), "1\n");
    let error = push(&[]).fails(1);
    assert!(error.contains("idempotency key 'k'"), "{error}");
}

#[test]
fn the_events_of_a_schedule_expire_after_their_times() {
    let world = World::with_thread();
    let add = ["schedule", "add", "s", "--every", "200ms", "--expires", "1h", "x"];
    world.thread(add).quiet();
    let listed: Value = serde_json::from_str(&world.thread(["schedule", "list", "--json"]).quiet()).unwrap();
    assert_eq!(listed["expires"], "1h");
    wait_until("an event", || !world.thread(["peek"]).quiet().is_empty());
    world.thread(["schedule", "remove", "s"]).quiet();
    let found = metadata(&world, 1);
    let left = time(&found["expires_at"]) - time(&found["scheduled_for"]);
    assert_eq!(left, chrono::TimeDelta::hours(1), "{found}");
}

#[test]
fn what_is_no_time_means_nothing() {
    let world = World::with_thread();
    world.subscribe("bot", IDS, &["--deliver", "stdin"]);
    let metadata =
        [json!({"expires_at": "soon"}), json!({"expires_at": 5}), json!({"x": {"expires_at": LONG_AGO}})];
    let lines = metadata.map(|metadata| format!("{}\n", json!({"content": "x", "metadata": metadata})));
    world.thread(["push", "--batch"]).stdin(lines.concat()).ok();
    assert_eq!(seen(&world, 3), ["1", "2", "3"]);
    for wrong in ["soon", "-1h", "1y2"] {
        world.thread(["push", "--expires", wrong, "x"]).fails(2);
    }
    let twice = ["push", "--expires", "1h", "--meta", "expires_at=x", "x"];
    assert!(world.thread(twice).fails(2).contains("has expires_at in its metadata already"));
}
