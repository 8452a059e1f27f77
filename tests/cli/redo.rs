//! `redo`: events that a handler has finished are given to it again, and nothing else is.

use thread_testkit::{World, wait_until};

/// What `handler.sh` writes of each event. It fails while the file `broken` exists.
const HANDLER: &str = "read -r line; test ! -e broken || { echo broken; exit 1; }; echo \"$line\" | sed 's/.*\"content\":\"\\([^\"]*\\)\".*/\\1/' >>got";

fn world_with(options: &[&str], handler: &str, events: usize) -> World {
    let world = World::with_thread();
    let all = [&["--max-attempts", "1", "--backoff", "10ms", "--filter", "content <> 'unwanted'"], options];
    world.subscribe("bot", handler, &all.concat());
    for n in 1..=events {
        world.push(&format!("e{n}"));
    }
    world.push("unwanted");
    wait_until("all to be handled", || world.lines("got").len() == events);
    world.wait_for_state("bot", "idle");
    world
}

fn info(world: &World, key: &str) -> serde_json::Value {
    world.consumer("bot")[key].clone()
}

#[test]
fn finished_events_are_given_again_each_alone() {
    for options in [
        &["--deliver", "stdin", "--batch-size", "1"][..],
        &["--deliver", "stdin", "--batch-size", "1", "--concurrency", "2"],
    ] {
        let world = world_with(options, HANDLER, 3);
        let cursor = info(&world, "last_acked_id");
        assert_eq!(world.thread(["redo", "bot", "1", "3"]).quiet(), "bot\n");
        wait_until("both", || world.lines("got").len() == 5 && info(&world, "dead") == 0);
        let mut again = world.lines("got").split_off(3);
        again.sort();
        assert_eq!(again, ["e1", "e3"]);
        assert_eq!(info(&world, "last_acked_id"), cursor);
        world.wait_until_quiet();
    }
}

#[test]
fn a_kept_handler_gets_it_again_too() {
    let handler = "while read -r line; do echo \"$line\" | sed 's/.*\"content\":\"\\([^\"]*\\)\".*/\\1/' >>got; \
                   echo \"{\\\"ack\\\":$(echo \"$line\" | sed 's/.*\"id\":\\([0-9]*\\).*/\\1/')}\"; done";
    let world = World::with_thread();
    world.subscribe("bot", handler, &["--deliver", "ndjson", "--idle", "1s"]);
    for n in 1..=3 {
        world.push(&format!("e{n}"));
    }
    wait_until("all to be handled", || info(&world, "pending") == 0 && world.lines("got").len() == 3);
    world.thread(["redo", "bot", "2"]).quiet();
    wait_until("it", || world.lines("got").len() == 4 && info(&world, "dead") == 0);
    assert_eq!(world.lines("got")[3], "e2");
    world.wait_until_quiet();
}

#[test]
fn one_that_fails_is_a_dead_letter() {
    let world = world_with(&["--deliver", "stdin", "--batch-size", "1"], HANDLER, 2);
    world.write("broken", "");
    world.thread(["redo", "--consumer", "bot", "2"]).quiet();
    wait_until("the failure", || {
        let list = world.thread(["dead", "list", "bot"]).quiet();
        list.starts_with("2  attempts=1 exit=1") && list.contains("broken") && !list.contains(" retry")
    });
    std::fs::remove_file(world.path("broken")).unwrap();
    // A dead letter is retried.
    world.thread(["redo", "bot", "2"]).quiet();
    wait_until("it", || world.lines("got").len() == 3 && info(&world, "dead") == 0);
    world.wait_until_quiet();
}

#[test]
fn what_cannot_be_given_again_is_refused_and_nothing_is_done() {
    let world = world_with(&["--deliver", "stdin", "--batch-size", "1"], HANDLER, 2);
    world.thread(["pause", "bot"]).quiet();
    let pending = world.push("e3");
    let refused = |ids: &[&str]| world.thread([&["redo", "bot"], ids].concat()).fails(1);
    assert!(refused(&["1", "3"]).contains("event 3 is not one of the events of 'bot'"));
    assert!(refused(&["1", "999"]).contains("event 999 is not one"));
    assert!(refused(&[&pending.to_string()]).contains("is still pending for 'bot'"));
    assert!(world.thread(["redo", "nobody", "1"]).fails(1).contains("nobody"));
    assert!(world.thread(["redo", "bot"]).fails(2).contains("no event id given"));
    assert!(world.thread(["redo", "bot", "x"]).fails(2).contains("invalid event id 'x'"));
    world.subscribe("popper", "true", &[]);
    world.thread(["seek", "popper", "latest"]).quiet();
    assert!(world.thread(["redo", "popper", "1"]).fails(1).contains("pops for itself"));
    assert_eq!((info(&world, "dead"), world.lines("got").len()), (0.into(), 2));
    let json = world.thread(["redo", "bot", "1", "--json"]).quiet();
    assert_eq!(json, "{\"consumer_id\":\"bot\",\"event_ids\":[1]}\n");
}
