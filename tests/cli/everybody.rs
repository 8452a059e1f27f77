//! Commands for all consumers at once, and `stop --skip`.

use serde_json::{Value, json};
use thread_testkit::{World, wait_until};

#[test]
fn all_consumers_are_resumed_at_once() {
    let world = World::with_thread();
    for name in ["a", "b"] {
        world.idle_consumer(name, "");
        world.thread(["pause", name]).quiet();
    }
    world.subscribe("stalled", "exit 127", &[]);
    world.push("x");
    world.wait_for_state("stalled", "stalled");
    assert_eq!(world.off(["resume", "--all"]).quiet(), "a\nb\nstalled\n");
    assert_eq!(["a", "b", "stalled"].map(|name| world.state(name)), ["idle", "idle", "idle"]);
    let answer: Value = serde_json::from_str(&world.off(["resume", "--all", "--json"]).quiet()).unwrap();
    assert_eq!(answer, json!({"consumers": ["a", "b", "stalled"]}));
    world.thread(["resume", "a", "--all"]).fails(2);
    // Inside a handler, --all still means all consumers.
    assert_eq!(world.off(["resume", "--all"]).env("THREAD_CONSUMER", "a").quiet(), "a\nb\nstalled\n");
}

#[test]
fn the_dead_letters_of_all_consumers_are_retried_at_once() {
    let world = World::with_thread();
    for name in ["a", "b"] {
        let options = ["--deliver", "stdin", "--max-attempts", "1"];
        world.subscribe(name, "[ -e fine ] && cat >/dev/null", &options);
    }
    world.push("x");
    world.wait_until_quiet();
    world.idle_consumer("reader", "");
    let dead = |name: &str| world.consumer(name)["dead"].as_i64().unwrap();
    assert_eq!((dead("a"), dead("b")), (1, 1));
    world.write("fine", "");
    assert_eq!(world.thread(["dead", "retry", "--all"]).quiet(), "2\n");
    wait_until("all to be taken", || (dead("a"), dead("b")) == (0, 0));
    let answer: Value =
        serde_json::from_str(&world.thread(["dead", "retry", "--all", "--json"]).quiet()).unwrap();
    assert_eq!(answer, json!({"consumer_id": null, "count": 0}));
    // `dead discard` has no --all: each consumer must be named.
    world.thread(["dead", "discard", "--all"]).fails(2);
}

/// A thread with three events and a consumer that is running this handler.
fn at_work(handler: &str, options: &[&str]) -> World {
    let world = World::with_thread();
    for n in 1..=3 {
        world.off(["push", "--source", "self", "--type", "message", "--content", &n.to_string()]).quiet();
    }
    world.subscribe("bot", handler, options);
    world.wait_for_file("began");
    world
}

fn cursor(world: &World) -> i64 {
    world.consumer("bot")["last_acked_id"].as_i64().unwrap()
}

#[test]
fn a_run_under_way_is_skipped_on_request_only() {
    let stdin: &[&str] = &["--deliver", "stdin", "--batch-size", "2"];
    for (options, skipped) in [(stdin, 2), (&[][..], 3)] {
        let world = at_work("touch began; exec sleep 1000", options);
        world.thread(["stop", "bot"]).quiet();
        assert_eq!((cursor(&world), world.state("bot").as_str()), (0, "stalled"));
        std::fs::remove_file(world.path("began")).unwrap();
        world.thread(["resume", "bot"]).quiet();
        world.wait_for_file("began");
        world.wait_for_state("bot", "running");
        world.thread(["stop", "bot", "--skip"]).quiet();
        assert_eq!((cursor(&world), world.state("bot").as_str()), (skipped, "stalled"), "{options:?}");
        assert_eq!(world.consumer("bot")["reason"], "stopped");
    }
}

#[test]
fn a_batch_that_waits_for_its_retry_is_skipped_on_request() {
    let single: &[&str] = &["--deliver", "stdin", "--batch-size", "1", "--backoff", "1h"];
    let batch: &[&str] = &["--deliver", "stdin", "--batch-size", "2", "--backoff", "1h"];
    let wake: &[&str] = &["--backoff", "1h"];
    for (options, skipped) in [(single, 1), (batch, 2), (wake, 3)] {
        let world = at_work("touch began; exit 1", options);
        world.wait_for_state("bot", "waiting");
        world.thread(["stop", "bot", "--skip"]).quiet();
        assert_eq!((cursor(&world), world.state("bot").as_str()), (skipped, "stalled"), "{options:?}");
    }
}

#[test]
fn a_run_whose_supervisor_was_killed_is_skipped_on_request() {
    let world = at_work("touch began; exec sleep 1000", &["--deliver", "stdin"]);
    wait_until("the handler's record", || !world.run_state("bot", "$.handler").is_null());
    world.kill_supervisor("bot");
    world.thread(["stop", "bot", "--skip"]).quiet();
    assert_eq!((cursor(&world), world.state("bot").as_str()), (3, "stalled"));
    world.wait_until_quiet();
}
