//! `thread info --series`: how much was done when.

use serde_json::{Value, json};
use thread_testkit::{World, wait_until};

fn series(world: &World, options: &[&str]) -> Value {
    let shown = world.thread([&["info", "--json", "--series"], options].concat()).quiet();
    serde_json::from_str(&shown).unwrap()
}

/// The sum of the numbers of all periods.
fn sum(numbers: &Value) -> u64 {
    numbers.as_array().unwrap().iter().filter_map(Value::as_u64).sum()
}

/// What a consumer has handled, its failed attempts, and dead letters.
fn counts(world: &World, consumer: &str) -> [u64; 3] {
    let series = series(world, &["1d", consumer]);
    let [one] = &series["consumers"].as_array().unwrap()[..] else { panic!("{series}") };
    assert_eq!(one["consumer_id"], consumer);
    let counts = ["handled", "failed", "dead"].map(|name| sum(&one[name]));
    // A minute may end in between.
    let hour = &world.consumer(consumer)["last_hour"];
    assert_eq!(["handled", "failed", "dead"].map(|name| hour[name].as_u64().unwrap()), counts);
    counts
}

#[test]
fn runs_are_counted_by_their_events_and_failures() {
    let world = World::with_thread();
    let handler = "grep -q bad && exit 3; sleep 0.05";
    world.subscribe("bot", handler, &["--deliver", "stdin", "--backoff", "1ms", "--max-attempts", "2"]);
    world.off(["push", "--lines"]).stdin("a\nb\nc\n").ok();
    world.thread(["dispatch"]).quiet();
    world.wait_until_quiet();
    assert_eq!(counts(&world, "bot"), [3, 0, 0]);
    world.push("bad");
    world.wait_until_quiet();
    assert_eq!(counts(&world, "bot"), [3, 2, 1]);

    let series = series(&world, &["1h"]);
    assert_eq!((&series["step_seconds"], sum(&series["arrived"])), (&json!(60), 4));
    assert_eq!(series["arrived"].as_array().unwrap().len(), 60);
    let took = series["consumers"][0]["p95_ms"].as_array().unwrap().iter().find_map(Value::as_u64).unwrap();
    assert!(took >= 40, "{took}");
    let text = world.thread(["info", "--series", "1h"]).quiet();
    let arrived: u64 =
        text.lines().filter_map(|line| line.split_once(" arrived=")?.1.parse::<u64>().ok()).sum();
    assert!(arrived == 4 && text.contains(" bot handled="), "{text}");
}

#[test]
fn what_was_deleted_has_still_come() {
    let world = World::with_thread();
    world.off(["push", "--lines"]).stdin("a\n".repeat(20)).ok();
    world.thread(["prune", "--keep", "3"]).ok();
    world.push("x");
    assert_eq!(world.query("SELECT count(*) FROM events"), 4);
    for span in ["15m", "1h", "1d", "7d", "30d"] {
        assert_eq!(sum(&series(&world, &[span])["arrived"]), 21, "{span}");
    }
}

#[test]
fn what_is_acknowledged_by_hand_is_counted() {
    let world = World::with_thread();
    world.idle_consumer("all", "");
    world.idle_consumer("some", "content = 'b'");
    world.off(["push", "--lines"]).stdin("a\nb\na\nb\nb\n").ok();
    for consumer in ["all", "some"] {
        world.thread(["ack", consumer, "4"]).quiet();
        world.thread(["ack", consumer, "4"]).quiet();
        world.thread(["ack", consumer, "2"]).ends_with(0);
        world.thread(["seek", consumer, "latest"]).quiet();
    }
    assert_eq!((counts(&world, "all"), counts(&world, "some")), ([4, 0, 0], [2, 0, 0]));
}

#[test]
fn what_a_handler_acknowledges_during_its_run_is_counted_once() {
    let world = World::with_thread();
    let handler =
        "while read -r line; do id=${line#*:}; id=${id%%,*}; [ $id = 7 ] || thread ack $id >/dev/null; done";
    let options = ["--deliver", "stdin", "--filter"];
    world.subscribe("all", handler, &[&options[..], &["content <> 'x'"]].concat());
    world.subscribe("some", handler, &[&options[..], &["content = 'b'"]].concat());
    world.off(["push", "--lines"]).stdin("a\nb\na\nb\na\na\nb\n").ok();
    world.thread(["dispatch"]).quiet();
    world.wait_until_quiet();
    assert_eq!((counts(&world, "all"), counts(&world, "some")), ([7, 0, 0], [3, 0, 0]));
}

#[test]
fn pushes_alone_keep_figures_from_growing() {
    let world = World::with_thread();
    world.idle_consumer("bot", "");
    world.push("a");
    world.thread(["ack", "bot", "1"]).quiet();
    world.db().execute("UPDATE figures SET at = at - 3 * 86400", []).unwrap();
    assert_eq!(world.query("SELECT count(*) FROM figures WHERE seconds = 60"), 1);
    // As if nobody had applied retention for long.
    world.wait_until_quiet();
    world.write("inbox/run/_retention", "");
    // By the push, or by a supervisor that it has started. Each leaves it to the other if that is at work in the database.
    // What the handlers of these pushes are counted with is new, and is not merged.
    wait_until("the figures to be merged", || {
        world.push("b");
        world.query("SELECT count(*) FROM figures WHERE seconds = 60 AND at < unixepoch() - 86400") == 0
    });
    assert_eq!(world.query("SELECT sum(handled) FROM figures"), 1);
}

#[test]
fn claims_are_counted_as_they_end() {
    let world = World::with_thread();
    world.off(["push", "--lines"]).stdin("a\n".repeat(9)).ok();
    world.thread(["subscribe", "team", "--no-handler", "--concurrency", "9", "--max-attempts", "1"]).quiet();
    world.thread(["pop", "team", "--claim", "1h", "--limit", "5"]).ok();
    world.thread(["ack", "team", "1", "3"]).quiet();
    world.thread(["ack", "team", "1"]).quiet();
    world.thread(["nack", "team", "2", "--no-attempt", "--delay", "1h"]).quiet();
    world.thread(["reject", "team", "4"]).quiet();
    assert_eq!(counts(&world, "team"), [2, 1, 1]);
    // As if the other claim had ended by itself; the next call notes that.
    world.db().execute("UPDATE claims SET until = 0", []).unwrap();
    world.thread(["pop", "team", "--claim", "1h"]).ok();
    assert_eq!(counts(&world, "team"), [2, 2, 2]);
    // All that is left: those that wait, that are taken and that nobody has.
    world.thread(["ack", "team", "--force", "99"]).quiet();
    assert_eq!(counts(&world, "team"), [7, 2, 2]);
}

#[test]
fn kept_handlers_are_counted_by_their_answers() {
    let world = World::with_thread();
    let handler = "while read -r line; do id=${line#*:}; id=${id%%,*}; case $line in *bad*) \
                   echo \"{\\\"reject\\\":$id}\";; *) echo \"{\\\"ack\\\":$id}\";; esac; done";
    world.subscribe("bot", handler, &["--deliver", "ndjson", "--idle", "10ms"]);
    world.off(["push", "--lines"]).stdin("a\nbad\nb\n").ok();
    world.thread(["dispatch"]).quiet();
    world.wait_until_quiet();
    assert_eq!(counts(&world, "bot"), [2, 1, 1]);
}

#[test]
fn a_span_is_one_of_five_and_goes_with_nothing_else() {
    let world = World::with_thread();
    for options in [&["2h"][..], &["1h", "--check"], &["1h", "--format", "text"], &["1h", "--root", "."]] {
        world.thread([&["info", "--series"], options].concat()).fails(2);
    }
    world.thread(["info", "nobody", "--series", "1h"]).fails(1);
}

#[test]
fn an_acknowledgement_counts_each_event_once() {
    let world = World::with_thread();
    world.off(["push", "--lines"]).stdin("x\n".repeat(4)).ok();
    world.off(["subscribe", "team", "--no-handler", "--concurrency", "3"]).quiet();
    world.off(["ack", "team", "3", "4", "9", "--force"]).quiet();
    assert_eq!(counts(&world, "team"), [4, 0, 0]);
}

#[test]
fn how_long_a_program_had_an_event_is_counted() {
    for (command, counted) in [("ack", [1, 0, 0]), ("reject", [0, 1, 1])] {
        let world = World::with_thread();
        world.push("x");
        world.off(["subscribe", "team", "--no-handler", "--concurrency", "3"]).quiet();
        world.off(["pop", "team", "--claim", "1h"]).ok();
        let minute_ago = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 minute')";
        world.db().execute(&format!("UPDATE claims SET since = {minute_ago}"), []).unwrap();
        world.off([command, "team", "1"]).quiet();
        assert_eq!(counts(&world, "team"), counted, "{command}");
        let series = series(&world, &["1d", "team"]);
        let took = &series["consumers"][0]["p95_ms"];
        let took = took.as_array().unwrap().iter().find_map(Value::as_u64);
        assert!(took.is_some_and(|took| took >= 50_000), "{command}: {took:?}");
    }
}
