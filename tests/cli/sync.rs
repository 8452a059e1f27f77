//! `push --sync`: returns when the pushed events have been acknowledged.

use std::time::Instant;

use serde_json::Value;
use thread_testkit::{PATIENCE, Run, World, wait_until};

fn push(world: &World, content: &str, sync: &str) -> Run {
    let event = ["push", "--source", "self", "--type", "message", "--content", content];
    world.thread(event).arg(format!("--sync={sync}"))
}

/// The stored position of the cursor.
fn cursor(world: &World, consumer: &str) -> i64 {
    world.query(&format!("SELECT last_acked_id FROM consumer_progress WHERE consumer_id = '{consumer}'"))
}

#[test]
fn a_synced_push_returns_when_all_its_consumers_have_acknowledged() {
    let world = World::with_thread();
    // With a retry and a manual acknowledgement, not only runs that succeed at once.
    world.subscribe(
        "fed",
        "[ -e failed ] || { touch failed; exit 1; }; cat >>fed",
        &["--deliver", "stdin", "--backoff", "100ms"],
    );
    world.subscribe("woken", "thread pop --resume >>woken; thread ack --event-id 1", &[]);
    world.thread(["subscribe", "reader", "--no-handler"]).quiet();
    world.idle_consumer("else", "content = 'nobody says this'");
    world.idle_consumer("paused", "1");
    world.thread(["pause", "--consumer", "paused"]).quiet();
    assert_eq!(push(&world, "one", "2m").quiet(), "1\n");
    assert_eq!((cursor(&world, "fed"), cursor(&world, "woken")), (1, 1));
    assert!(!world.read("fed").is_empty() && !world.read("woken").is_empty());

    // A batch: waits for the last event that each consumer gets.
    let world = World::with_thread();
    world.subscribe("even", "cat >>even", &["--deliver", "stdin", "--filter", "id % 2 = 0"]);
    let line = "{\"source\":\"self\",\"type\":\"record\",\"content\":\"x\"}\n";
    let push = ["push", "--batch", "--sync", "2m", "--json"];
    let answer: Value = serde_json::from_str(&world.thread(push).stdin(line.repeat(9)).quiet()).unwrap();
    assert_eq!(answer["last_id"], 9);
    assert_eq!(cursor(&world, "even"), 8);
    assert_eq!(world.lines("even").len(), 4);
    // The push also waits for events that were stored earlier under the same keys.
    let keyed = ["one", "two"].map(|key| line.replace('}', &format!(",\"idempotency_key\":\"{key}\"}}")));
    for _ in 0..2 {
        world.off(["push", "--batch", "--sync", "100ms"]).stdin(keyed.concat()).ends_with(3);
    }
    assert_eq!(cursor(&world, "even"), 8);
    assert_eq!(world.thread(["push", "--batch", "--sync", "2m"]).stdin(keyed.concat()).quiet(), "0\n");
    assert_eq!((cursor(&world, "even"), world.lines("even").len()), (10, 5));
    // An empty batch has nothing to wait for.
    assert_eq!(world.thread(push).quiet(), "{\"count\":0,\"first_id\":null,\"last_id\":null}\n");
    world.wait_until_quiet();
}

#[test]
fn a_repeated_batch_does_not_wait_for_events_between_its_own() {
    let world = World::with_thread();
    let line = |content: &str| {
        format!(
            "{{\"source\":\"self\",\"type\":\"record\",\"content\":\"{content}\",\"idempotency_key\":\"{content}\"}}\n"
        )
    };
    for content in ["first", "other", "last"] {
        world.off(["push", "--batch"]).stdin(line(content)).quiet();
    }
    world.idle_consumer("bot", "content = 'other'");
    let again = line("first") + &line("last");
    assert_eq!(world.off(["push", "--batch", "--sync", "100ms"]).stdin(again).quiet(), "0\n");
    world.off(["push", "--batch", "--sync", "100ms"]).stdin(line("other")).ends_with(3);
}

#[test]
fn what_is_not_acknowledged_in_time_is_stored_all_the_same() {
    let world = World::with_thread();
    world.idle_consumer("bot", "type = 'message'");
    world.idle_consumer("cat", "type = 'message'");
    let late = |run: Run, code| {
        let (stdout, stderr) = run.env("THREAD_NOTIFIER", "off").ends_with(code);
        (stdout, stderr)
    };
    let (stdout, stderr) = late(push(&world, "one", "100ms"), 3);
    assert_eq!(stdout, "1\n", "the id is printed before the wait");
    assert!(
        stderr.starts_with("Error: not acknowledged in time by 'bot', 'cat'; what was pushed is stored - ")
    );
    assert_eq!(world.query("SELECT count(*) FROM events"), 1);
    // Repeating a push after its acknowledgement returns at once.
    world.thread(["ack", "--consumer", "bot", "--event-id", "1"]).quiet();
    let keyed = |content: &str| push(&world, content, "0").arg("--idempotency-key").arg("k");
    let (_, stderr) = late(keyed("two"), 3);
    assert!(stderr.contains("by 'bot', 'cat';"), "{stderr}");
    world.thread(["ack", "--consumer", "bot", "--event-id", "2"]).quiet();
    // The push does not wait for a consumer that was unsubscribed.
    world.thread(["unsubscribe", "--consumer", "cat"]).quiet();
    assert_eq!(late(keyed("two"), 0).0, "2\n");
    // The acknowledgement counts even if the push itself starts no handlers.
    let child = push(&world, "three", "10m").env("THREAD_NOTIFIER", "off").spawn();
    wait_until("the event", || world.query("SELECT count(*) FROM events") == 3);
    world.thread(["ack", "--consumer", "bot", "--event-id", "3"]).quiet();
    assert!(child.wait_with_output().unwrap().status.success());
    push(&world, "x", "soon").fails(2);
    assert_eq!(world.query("SELECT count(*) FROM events"), 3);
}

#[test]
fn a_dead_letter_ends_a_synced_push() {
    let world = World::with_thread();
    world.subscribe("bot", "exit 1", &["--deliver", "stdin", "--max-attempts", "1"]);
    let begun = Instant::now();
    let (stdout, stderr) = push(&world, "one", "1h").ends_with(1);
    assert!(begun.elapsed() < PATIENCE);
    assert_eq!(stdout, "1\n");
    assert!(stderr.starts_with("Error: event 1 is a dead letter of 'bot'; what was pushed is stored - "));
    let (_, stderr) = push(&world, "two", "1h").arg("--json").ends_with(1);
    assert!(stderr.ends_with(",\"code\":\"dead_letter\"}\n"), "{stderr}");
    // A push that times out has a different answer.
    world.thread(["pause", "bot"]).quiet();
    world.subscribe("late", "exit 1", &["--deliver", "stdin", "--backoff", "1h"]);
    let (_, stderr) = push(&world, "three", "100ms").arg("--json").ends_with(3);
    assert!(stderr.ends_with(",\"code\":\"timed_out\"}\n"), "{stderr}");
    world.thread(["unsubscribe", "late"]).quiet();
    world.wait_until_quiet();
}

#[test]
fn a_synced_push_can_be_interrupted_while_it_waits() {
    let world = World::with_thread();
    world.idle_consumer("bot", "1");
    for (n, batch) in [false, true].into_iter().enumerate() {
        let run = if batch {
            let line = "{\"source\":\"self\",\"type\":\"record\",\"content\":\"x\"}\n";
            world.write("batch", line);
            world.sh("exec thread push --batch --sync 10m <batch")
        } else {
            push(&world, "one", "10m")
        };
        let child = run.env("THREAD_NOTIFIER", "off").spawn();
        wait_until("the event", || world.query("SELECT count(*) FROM events") == n as i64 + 1);
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(128 + libc::SIGTERM));
        assert_eq!(
            String::from_utf8(ended.stderr).unwrap(),
            "Error: interrupted before it was known to be acknowledged; what was pushed is stored - see `thread info`, \
             and do not push it again\n"
        );
    }
    world.assert_log_is_exact();
}

#[test]
fn a_repeated_push_says_that_it_is_one() {
    let world = World::with_thread();
    let push = |content: &str, key: &str| {
        let run = world.thread(["push", "--source", "self", "--type", "record", "--json"]);
        let run = run.arg("--content").arg(content).arg("--idempotency-key").arg(key);
        serde_json::from_str::<Value>(&run.quiet()).unwrap()
    };
    assert_eq!(push("a", "1")["repeated"], Value::Null);
    let again = push("a", "1");
    assert_eq!((&again["id"], &again["repeated"]), (&1.into(), &true.into()));
    assert_eq!(push("a", "2")["repeated"], Value::Null);
}
