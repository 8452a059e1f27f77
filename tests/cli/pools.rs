//! Pools: `--concurrency` and `--key`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use thread_testkit::{World, is_running, kill_and_wait, wait_until};

/// Takes one event, notes that it begins, waits for a file `go` or `go-ID`, and notes that it ends.
const WAITS: &str = "id=$(sed 's/^{\"id\":\\([0-9]*\\),.*/\\1/'); echo \"begin $id\" >>seen; echo \"printed $id\"; \
                     until [ -e go ] || [ -e go-$id ]; do sleep 0.01; done; echo \"end $id\" >>seen;";

/// Takes one event, and notes it.
const NOTES: &str = "id=$(sed 's/^{\"id\":\\([0-9]*\\),.*/\\1/'); echo \"$id\" >>seen;";

/// As a handler that is kept.
const EACH: &str = "while read -r line; do id=${line#*:}; id=${id%%,*}; echo \"$id $$\" >>seen;";

const ACK: &str = "echo \"{\\\"ack\\\":$id}\";";

fn subscribe(world: &World, handler: &str, options: &[&str]) {
    let options = [&["--deliver", "stdin", "--batch-size", "1"], options].concat();
    world.subscribe("bot", handler, &options);
}

fn keep(world: &World, handler: &str, options: &[&str]) {
    let options = [&["--deliver", "ndjson"], options].concat();
    world.subscribe("bot", handler, &options);
}

/// Events whose keys are these.
fn push(world: &World, keys: &[&str]) {
    let lines: String = keys.iter().map(|key| format!("{}\n", json!({"content": {"key": key}}))).collect();
    world.thread(["push", "--batch"]).stdin(lines).ok();
}

const KEY: [&str; 2] = ["--key", "content ->> '$.key'"];

fn seen(world: &World) -> Vec<String> {
    world.lines("seen")
}

fn waits_for(world: &World, lines: &[&str]) {
    let sorted = |lines: &mut Vec<String>| lines.sort();
    let mut wanted: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
    sorted(&mut wanted);
    wait_until(&format!("{lines:?}"), || {
        let mut seen = seen(world);
        sorted(&mut seen);
        seen == wanted
    });
}

fn finishes(world: &World, cursor: i64) {
    wait_until("the cursor", || {
        let bot = world.consumer("bot");
        bot["last_acked_id"] == cursor && bot["pending"] == 0
    });
    is_clean(world);
}

/// Nothing is left of what was finished in its place.
fn is_clean(world: &World) {
    let tables = ["finished", "waits", "claims"];
    for table in tables {
        assert_eq!(world.query(&format!("SELECT count(*) FROM {table}")), 0, "{table}");
    }
}

/// The most runs that were at work at once: of all, and of those with the same key.
fn overlaps(world: &World, key: impl Fn(i64) -> i64) -> (usize, usize) {
    let (mut most, mut most_of_key, mut at_work) = (0, 0, Vec::new());
    for line in seen(world) {
        let (what, id) = line.split_once(' ').unwrap();
        let id: i64 = id.parse().unwrap();
        match what {
            "begin" => at_work.push(id),
            _ => at_work.retain(|other| *other != id),
        }
        most = most.max(at_work.len());
        most_of_key = most_of_key.max(at_work.iter().filter(|other| key(**other) == key(id)).count());
    }
    (most, most_of_key)
}

fn handler_pids(world: &World) -> Vec<u32> {
    let pids: BTreeMap<u32, ()> =
        seen(world).iter().map(|line| (line.split(' ').nth(1).unwrap().parse().unwrap(), ())).collect();
    pids.into_keys().collect()
}

#[test]
fn so_many_runs_at_once_as_there_are_places_each_with_its_own_events() {
    let world = World::with_thread();
    push(&world, &["a"; 7]);
    subscribe(&world, WAITS, &["--concurrency", "3"]);
    waits_for(&world, &["begin 1", "begin 2", "begin 3"]);
    assert_eq!(world.consumer("bot")["state"], "running");
    assert_eq!(world.query("SELECT sum(event_id) * 10 + count(*) FROM claims"), 63);
    // They finish in any order, and the next ones follow.
    world.write("go-2", "");
    waits_for(&world, &["begin 1", "begin 2", "begin 3", "end 2", "begin 4"]);
    assert_eq!(world.consumer("bot")["last_acked_id"], 0);
    assert_eq!(world.consumer("bot")["pending"], 6);
    let in_hand = json!({"in_flight": 3, "waiting": 0, "finished_ahead": 1, "waits": [], "is_full": false});
    wait_until("what is in hand", || world.consumer("bot")["in_hand"] == in_hand);
    let text = world.thread(["info", "--format", "text"]).quiet();
    assert!(text.contains("\n    in_hand: in_flight=3 waiting=0 finished_ahead=1\n"), "{text}");
    let metrics = world.thread(["info", "--format", "prometheus"]).quiet();
    let of = |name: &str| metrics.lines().find(|line| line.starts_with(name)).unwrap().rsplit(' ').next();
    assert_eq!((of("thread_consumer_in_flight{"), of("thread_consumer_waiting{")), (Some("3"), Some("0")));
    world.write("go", "");
    finishes(&world, 7);
    let (most, _) = overlaps(&world, |id| id);
    assert_eq!((most, seen(&world).len()), (3, 14));
    assert_eq!(world.consumer("bot")["runs_succeeded"], 7);
    wait_until("its end", || world.state("bot") == "idle");
}

#[test]
fn events_with_the_same_key_are_handled_in_order_and_one_at_a_time() {
    let world = World::with_thread();
    push(&world, &["a", "a", "b", "a", "b", "c"]);
    subscribe(&world, WAITS, &[&["--concurrency", "4"][..], &KEY].concat());
    waits_for(&world, &["begin 1", "begin 3", "begin 6"]);
    world.write("go-3", "");
    waits_for(&world, &["begin 1", "begin 3", "begin 6", "end 3", "begin 5"]);
    world.write("go", "");
    finishes(&world, 6);
    let keys = BTreeMap::from([(1, 1), (2, 1), (3, 2), (4, 1), (5, 2), (6, 3)]);
    assert_eq!(overlaps(&world, |id| keys[&id]).1, 1);
    let order: Vec<String> = seen(&world).into_iter().filter(|line| line.starts_with("begin")).collect();
    let of_a: Vec<&str> =
        order.iter().map(|line| &line[6..]).filter(|id| ["1", "2", "4"].contains(id)).collect();
    assert_eq!(of_a, ["1", "2", "4"]);
}

#[test]
fn an_event_that_waits_holds_back_only_those_with_its_key() {
    let world = World::with_thread();
    push(&world, &["a", "a", "b", "c", "a"]);
    let handler = format!("{NOTES} [ $id != 1 ] || [ -e mended ]");
    subscribe(&world, &handler, &[&["--concurrency", "2", "--backoff", "1h"][..], &KEY].concat());
    waits_for(&world, &["1", "3", "4"]);
    wait_until("the end", || world.state("bot") == "waiting");
    let bot = world.consumer("bot");
    assert_eq!((&bot["last_acked_id"], &bot["pending"]), (&json!(0), &json!(3)));
    let in_hand = &bot["in_hand"];
    assert_eq!((&in_hand["waiting"], &in_hand["finished_ahead"]), (&json!(1), &json!(2)));
    let wait = &in_hand["waits"][0];
    assert_eq!((&wait["event_id"], &wait["key"], &wait["attempt"]), (&json!(1), &json!("a"), &json!(1)));
    let line = format!("wait: event=1 key=a attempt=1 next_try={}\n", wait["next_try"].as_str().unwrap());
    assert!(world.thread(["info", "bot"]).quiet().contains(&line), "{line}");
    // What is pushed meanwhile does not wait either, unless it has the key.
    push(&world, &["a", "d"]);
    waits_for(&world, &["1", "3", "4", "7"]);
    wait_until("the end", || world.state("bot") == "waiting");
    world.write("mended", "");
    world.thread(["resume", "bot"]).ok();
    finishes(&world, 7);
    assert_eq!(seen(&world)[4..], ["1", "2", "5", "6"]);
}

#[test]
fn without_a_key_an_event_that_waits_holds_back_none() {
    let world = World::with_thread();
    push(&world, &["a"; 5]);
    let handler = format!("{NOTES} [ $id != 1 ] || [ -e mended ]");
    subscribe(&world, &handler, &["--concurrency", "2", "--backoff", "50ms", "--max-attempts", "never"]);
    wait_until("four to be finished", || world.consumer("bot")["pending"] == 1);
    assert_eq!(world.consumer("bot")["last_acked_id"], 0);
    world.write("mended", "");
    finishes(&world, 5);
}

#[test]
fn an_event_whose_key_is_null_or_fails_is_free_and_failures_are_counted() {
    let world = World::with_thread();
    for content in ["{}", "fails", "not JSON", "{\"key\":1}", "{\"key\":\"1\"}"] {
        world.push(content);
    }
    let key = "CASE content WHEN 'fails' THEN json_extract('{}', content) ELSE content ->> '$.key' END";
    subscribe(&world, WAITS, &["--concurrency", "8", "--key", key]);
    // As text, 1 and "1" are the same.
    waits_for(&world, &["begin 1", "begin 2", "begin 3", "begin 4"]);
    world.write("go", "");
    finishes(&world, 5);
    let bot = world.consumer("bot");
    assert_eq!((&bot["filter_errors"], &bot["last_filter_error_id"]), (&json!(1), &json!(2)));
    assert!(world.log().iter().any(|line| line.contains("key: consumer=bot id=2 has none")));
}

#[test]
fn of_a_batch_that_failed_each_event_is_tried_alone() {
    let world = World::with_thread();
    push(&world, &["a", "b", "c", "bad"]);
    let handler = "cat >got-$$; wc -l <got-$$ >>seen; ! grep -q bad got-$$";
    let options = ["--concurrency", "2", "--batch-size", "10", "--backoff", "10ms", "--max-attempts", "2"];
    world.subscribe("bot", handler, &[&["--deliver", "stdin"], &options[..]].concat());
    finishes(&world, 4);
    let sizes = seen(&world);
    assert_eq!((sizes[0].as_str(), sizes.len()), ("4", 6), "{sizes:?}");
    assert!(sizes[1..].iter().all(|size| size == "1"), "{sizes:?}");
    let letters = world.thread(["dead", "list", "bot", "--json"]).ok();
    let letter: Value = serde_json::from_str(letters.trim()).unwrap();
    assert_eq!((&letter["event_id"], &letter["attempts"]), (&json!(4), &json!(2)));
    // Together, and twice alone.
    assert_eq!(world.query("SELECT json_extract(run, '$.failed') FROM consumers"), 3);
    assert!(world.consumer("bot")["last_run_started_at"].is_string());
}

#[test]
fn a_batch_has_at_most_one_event_of_a_key() {
    let world = World::with_thread();
    push(&world, &["a", "a", "b", "c", "b"]);
    let options = ["--concurrency", "1", "--batch-size", "10"];
    let handler = "wc -l >>seen";
    world.subscribe("bot", handler, &[&["--deliver", "stdin"], &options[..], &KEY].concat());
    finishes(&world, 5);
    assert_eq!(seen(&world), ["3", "2"]);
}

#[test]
fn a_bad_event_becomes_a_dead_letter_that_frees_its_key_and_is_retried_within_it() {
    let world = World::with_thread();
    push(&world, &["a", "a", "b"]);
    let handler = format!("{NOTES} [ $id != 1 ] || [ -e mended ] || exit 65");
    subscribe(&world, &handler, &[&["--concurrency", "2"][..], &KEY].concat());
    finishes(&world, 3);
    assert_eq!(world.consumer("bot")["dead"], 1);
    world.write("mended", "");
    world.thread(["dead", "retry", "bot", "1"]).ok();
    wait_until("the retry", || world.consumer("bot")["dead"] == 0);
    assert_eq!(seen(&world).iter().filter(|id| *id == "1").count(), 2);
    // While an event of its key is handled, the retry of a dead letter waits.
    let handler = format!("{WAITS} [ $id != 4 ] || [ -e mended-4 ] || exit 65");
    world.write("go-4", "");
    world.write("seen", "");
    world.subscribe("bot", &handler, &["--replace"]);
    push(&world, &["a", "a"]);
    waits_for(&world, &["begin 4", "end 4", "begin 5"]);
    world.thread(["dead", "retry", "bot", "4"]).ok();
    push(&world, &["b"]);
    waits_for(&world, &["begin 4", "end 4", "begin 5", "begin 6"]);
    world.write("mended-4", "");
    world.write("go", "");
    wait_until("the retry", || world.consumer("bot")["dead"] == 0);
    finishes(&world, 6);
    assert_eq!(overlaps(&world, |id| i64::from(id == 6)).1, 1);
}

#[test]
fn exit_75_puts_an_event_off_without_an_attempt() {
    let world = World::with_thread();
    push(&world, &["a", "b"]);
    let handler = format!("{NOTES} [ $id != 1 ] || [ -e mended ] || exit 75");
    subscribe(&world, &handler, &["--concurrency", "2", "--backoff", "20ms", "--max-attempts", "1"]);
    wait_until("several tries", || seen(&world).len() > 4);
    world.write("mended", "");
    finishes(&world, 2);
    assert_eq!(
        (&world.consumer("bot")["dead"], &world.consumer("bot")["runs_failed"]),
        (&json!(0), &json!(0))
    );
}

#[test]
fn runs_of_a_killed_supervisor_go_on_and_hold_their_own_events_only() {
    let world = World::with_thread();
    push(&world, &["a", "a", "b", "c", "c"]);
    let options = ["--concurrency", "3", "--backoff", "10ms"];
    subscribe(&world, WAITS, &[&options[..], &KEY].concat());
    waits_for(&world, &["begin 1", "begin 3", "begin 4"]);
    world.kill_supervisor("bot");
    world.thread(["dispatch"]).ok();
    // Three places are taken.
    wait_until("the next supervisor", || world.state("bot") == "running");
    // One run ends, though nobody hears how: its event is given again, and only it.
    world.write("go-4", "");
    wait_until("the end", || seen(&world).iter().filter(|line| *line == "begin 4").count() == 2);
    world.write("go", "");
    finishes(&world, 5);
    let begun = |id: &str| seen(&world).iter().filter(|line| **line == format!("begin {id}")).count();
    assert_eq!(["1", "2", "3", "4", "5"].map(begun), [2, 1, 2, 2, 1]);
    let keys = BTreeMap::from([(1, 1), (2, 1), (3, 2), (4, 3), (5, 3)]);
    assert_eq!(overlaps(&world, |id| keys[&id]).1, 1);
}

#[test]
fn what_a_run_prints_is_not_mixed_with_that_of_others() {
    let world = World::with_thread();
    push(&world, &["a", "b"]);
    let handler = format!("{WAITS} echo \"done $id\"; exit $(($id - 1))");
    subscribe(&world, &handler, &["--concurrency", "2", "--max-attempts", "1"]);
    waits_for(&world, &["begin 1", "begin 2"]);
    world.write("go", "");
    finishes(&world, 2);
    let log = world.read("inbox/logs/handlers/bot.log");
    let lines: Vec<&str> = log.lines().filter(|line| !line.starts_with("=== ")).collect();
    assert!(lines.windows(2).any(|two| two == ["printed 1", "done 1"]), "{log}");
    assert!(lines.windows(2).any(|two| two == ["printed 2", "done 2"]), "{log}");
    assert!(log.contains("event id=2 place="), "{log}");
    let dead = world.thread(["dead", "list", "bot", "--json"]).ok();
    let dead: Value = serde_json::from_str(dead.trim()).unwrap();
    assert_eq!(dead["last_error"], "printed 2\ndone 2");
    let runs = world.thread(["info", "bot", "--runs", "--json"]).ok();
    let span = |run: &Value| {
        let (from, length) = (run["log_offset"].as_u64().unwrap(), run["log_length"].as_u64().unwrap());
        log[from as usize..(from + length) as usize].to_owned()
    };
    let runs: Value = serde_json::from_str(&runs).unwrap();
    for run in runs["runs"].as_array().unwrap() {
        let id = &run["upto"];
        assert_eq!(span(run), format!("printed {id}\ndone {id}\n"));
    }
}

#[test]
fn a_pause_lets_runs_finish_and_a_stop_ends_all() {
    let world = World::with_thread();
    push(&world, &["a"; 5]);
    subscribe(&world, WAITS, &["--concurrency", "2"]);
    waits_for(&world, &["begin 1", "begin 2"]);
    world.thread(["pause", "bot"]).ok();
    world.write("go-1", "");
    world.write("go-2", "");
    world.wait_for_state("bot", "paused");
    waits_for(&world, &["begin 1", "begin 2", "end 1", "end 2"]);
    assert_eq!(world.consumer("bot")["last_acked_id"], 2);
    world.thread(["resume", "bot"]).ok();
    waits_for(&world, &["begin 1", "begin 2", "end 1", "end 2", "begin 3", "begin 4"]);
    world.thread(["stop", "bot"]).ok();
    let bot = world.consumer("bot");
    assert_eq!(
        (&bot["state"], &bot["last_acked_id"], &bot["pending"]),
        (&json!("stalled"), &json!(2), &json!(3))
    );
    assert_eq!(world.query("SELECT count(*) FROM claims"), 0);
    // It cost no attempt.
    assert_eq!(world.query("SELECT count(*) FROM waits"), 0);
    world.write("go", "");
    world.thread(["resume", "bot"]).ok();
    finishes(&world, 5);
}

#[test]
fn a_stop_can_skip_what_is_at_work() {
    let world = World::with_thread();
    push(&world, &["a"; 3]);
    subscribe(&world, WAITS, &["--concurrency", "2"]);
    waits_for(&world, &["begin 1", "begin 2"]);
    world.thread(["stop", "bot", "--skip"]).ok();
    assert_eq!(world.consumer("bot")["last_acked_id"], 2);
    world.write("go", "");
    world.thread(["resume", "bot"]).ok();
    finishes(&world, 3);
}

#[test]
fn a_stop_ends_runs_whose_supervisor_was_killed() {
    let world = World::with_thread();
    push(&world, &["a"; 2]);
    subscribe(&world, WAITS, &["--concurrency", "2"]);
    waits_for(&world, &["begin 1", "begin 2"]);
    world.kill_supervisor("bot");
    world.thread(["stop", "bot"]).ok();
    assert_eq!(world.state("bot"), "stalled");
    world.wait_until_quiet();
    // It cost no attempt.
    assert_eq!(world.query("SELECT (SELECT count(*) FROM claims) + (SELECT count(*) FROM waits)"), 0);
    world.write("go", "");
    world.thread(["resume", "bot"]).ok();
    finishes(&world, 2);
}

#[test]
fn after_a_seek_runs_under_way_finish_nothing() {
    let world = World::with_thread();
    push(&world, &["a"; 3]);
    subscribe(&world, WAITS, &["--concurrency", "2"]);
    waits_for(&world, &["begin 1", "begin 2"]);
    world.thread(["seek", "bot", "0"]).ok();
    world.write("go", "");
    finishes(&world, 3);
    let begun = |id: &str| seen(&world).iter().filter(|line| **line == format!("begin {id}")).count();
    assert_eq!(["1", "2", "3"].map(begun), [2, 2, 1]);
}

#[test]
fn a_replacement_begins_when_the_runs_of_the_former_are_over() {
    let world = World::with_thread();
    push(&world, &["a"; 4]);
    subscribe(&world, WAITS, &["--concurrency", "2"]);
    waits_for(&world, &["begin 1", "begin 2"]);
    world.subscribe("bot", WAITS, &["--replace", "--concurrency", "4", "--filter", "id > 0"]);
    push(&world, &["a"]);
    world.write("go-1", "");
    waits_for(&world, &["begin 1", "begin 2", "end 1"]);
    world.write("go", "");
    finishes(&world, 5);
    assert!(overlaps(&world, |id| id).1 <= 1);
}

#[test]
fn places_are_added_and_removed_while_runs_are_under_way_and_count() {
    let world = World::with_thread();
    push(&world, &["a"; 8]);
    subscribe(&world, WAITS, &["--concurrency", "2"]);
    waits_for(&world, &["begin 1", "begin 2"]);
    world.subscribe("bot", WAITS, &["--replace", "--concurrency", "4"]);
    waits_for(&world, &["begin 1", "begin 2", "begin 3", "begin 4"]);
    world.subscribe("bot", WAITS, &["--replace", "--concurrency", "1"]);
    for id in [1, 2, 3] {
        world.write(format!("go-{id}"), "");
        wait_until("the end of a run", || seen(&world).contains(&format!("end {id}")));
    }
    wait_until("three to be finished", || world.consumer("bot")["last_acked_id"] == 3);
    assert_eq!(seen(&world).len(), 7, "{:?}", seen(&world));
    world.write("go", "");
    finishes(&world, 8);
    assert_eq!(seen(&world).len(), 16, "{:?}", seen(&world));
    // Kept handlers, too.
    let handler = format!("{EACH} until [ -e on ]; do sleep 0.01; done; {ACK} done");
    world.write("seen", "");
    world.subscribe("bot", &handler, &["--replace", "--deliver", "ndjson", "--concurrency", "2"]);
    push(&world, &["a"; 4]);
    wait_until("two handlers", || handler_pids(&world).len() == 2);
    world.subscribe("bot", &handler, &["--replace", "--concurrency", "3"]);
    wait_until("three handlers", || handler_pids(&world).len() == 3);
    world.write("on", "");
    finishes(&world, 12);
    assert_eq!(seen(&world).len(), 4, "{:?}", seen(&world));
}

#[test]
fn a_consumer_that_is_no_pool_any_more_waits_for_runs_that_go_on() {
    let world = World::with_thread();
    push(&world, &["a"; 3]);
    subscribe(&world, WAITS, &["--concurrency", "2"]);
    waits_for(&world, &["begin 1", "begin 2"]);
    world.kill_supervisor("bot");
    world.thread(["unsubscribe", "bot"]).ok();
    subscribe(&world, WAITS, &[]);
    world.write("go-1", "");
    waits_for(&world, &["begin 1", "begin 2", "end 1"]);
    world.write("go", "");
    wait_until("the cursor", || world.consumer("bot")["last_acked_id"] == 3);
    assert!(overlaps(&world, |id| id).1 <= 1, "{:?}", seen(&world));
}

#[test]
fn a_handler_that_cannot_be_run_stalls_the_pool_and_costs_no_attempt() {
    let world = World::with_thread();
    push(&world, &["a"; 5]);
    subscribe(&world, "./missing", &["--concurrency", "2"]);
    world.wait_for_state("bot", "stalled");
    let bot = world.consumer("bot");
    assert_eq!((&bot["last_acked_id"], &bot["pending"], &bot["dead"]), (&json!(0), &json!(5), &json!(0)));
    world.script("missing", "#!/bin/sh\ncat >/dev/null\n");
    world.thread(["resume", "bot"]).ok();
    finishes(&world, 5);
}

#[test]
fn dead_letters_in_a_row_stall_a_pool_and_it_then_tries_one_event() {
    let world = World::with_thread();
    push(&world, &["a"; 9]);
    let handler = format!("{NOTES} [ -e mended ]");
    let options = ["--concurrency", "3", "--max-attempts", "1", "--stall-after", "2", "--probe", "200ms"];
    subscribe(&world, &handler, &[&options[..], &["--backoff", "1h"]].concat());
    world.wait_for_state("bot", "stalled");
    assert_eq!(world.consumer("bot")["dead"], 2);
    let tried = seen(&world).len();
    // A probe may have begun since: it is of an event that was tried before.
    let events: BTreeSet<String> = seen(&world).into_iter().collect();
    assert!((3..=5).contains(&events.len()), "{:?}", seen(&world));
    // One event each time.
    wait_until("two probes", || seen(&world).len() >= tried + 2);
    world.write("mended", "");
    wait_until("the rest", || world.consumer("bot")["pending"] == 0);
    assert_eq!(world.consumer("bot")["dead"], 2);
}

#[test]
fn a_run_that_takes_too_long_is_ended_and_others_are_not() {
    let world = World::with_thread();
    push(&world, &["a", "b"]);
    let handler = format!("{NOTES} [ $id != 1 ] || exec sleep 1000");
    let options = ["--concurrency", "2", "--timeout", "300ms", "--max-attempts", "1"];
    subscribe(&world, &handler, &options);
    finishes(&world, 2);
    let dead = world.thread(["dead", "list", "bot", "--json"]).ok();
    let dead: Value = serde_json::from_str(dead.trim()).unwrap();
    assert_eq!((&dead["event_id"], &dead["last_exit"]), (&json!(1), &json!(124)));
}

#[test]
fn single_events_are_finished_and_put_off_by_hand_also_those_at_work() {
    let world = World::with_thread();
    push(&world, &["a"; 4]);
    subscribe(&world, WAITS, &["--concurrency", "2"]);
    waits_for(&world, &["begin 1", "begin 2"]);
    world.thread(["ack", "bot", "3"]).ok();
    world.thread(["nack", "bot", "4", "--delay", "1h"]).ok();
    // Its run goes on, and its end decides.
    world.thread(["nack", "bot", "1", "--delay", "1h"]).ok();
    world.write("go", "");
    wait_until("all but one", || world.consumer("bot")["pending"] == 1);
    assert_eq!(world.consumer("bot")["last_acked_id"], 3);
    wait_until("the wait", || world.state("bot") == "waiting");
    world.thread(["reject", "bot", "4"]).ok();
    finishes(&world, 4);
    assert_eq!(world.consumer("bot")["dead"], 1);
    assert_eq!(seen(&world).len(), 4);
}

#[test]
fn the_wait_of_a_single_event_is_ended_by_hand() {
    let world = World::with_thread();
    push(&world, &["a"; 3]);
    let handler = format!("{NOTES} [ $id = 2 ] || [ -e mended ]");
    subscribe(&world, &handler, &["--concurrency", "2", "--backoff", "1h"]);
    wait_until("the end", || world.state("bot") == "waiting");
    world.write("mended", "");
    let error = world.thread(["resume", "bot", "--event", "99"]).fails(1);
    assert!(error.contains("99"), "{error}");
    world.thread(["resume", "bot", "--event", "3"]).ok();
    wait_until("its end", || world.consumer("bot")["pending"] == 1);
    assert_eq!(seen(&world)[3..], ["3"]);
    let error = world.thread(["resume", "bot", "--event", "3"]).fails(1);
    assert!(error.contains("3"), "{error}");
    world.off(["subscribe", "other", "cat", "--deliver", "stdin"]).ok();
    let error = world.thread(["resume", "other", "--event", "1"]).fails(2);
    assert!(error.contains("--concurrency N"), "{error}");
}

#[test]
fn no_more_than_so_many_events_are_unfinished_ahead() {
    let world = World::with_thread();
    push(&world, &["a"; 6]);
    let handler = format!("{NOTES} [ -e mended ]");
    let options = ["--concurrency", "2", "--ahead", "3", "--backoff", "1h"];
    subscribe(&world, &handler, &options);
    wait_until("the end", || world.state("bot") == "waiting");
    waits_for(&world, &["1", "2", "3"]);
    let text = world.thread(["info", "bot"]).quiet();
    assert!(text.contains("note: nothing new starts: 3 events are unfinished"), "{text}");
    // Neither does it try again and again.
    push(&world, &["a"]);
    world.thread(["dispatch"]).ok();
    wait_until("the end", || world.state("bot") == "waiting");
    assert_eq!(seen(&world).len(), 3);
    world.write("mended", "");
    world.thread(["resume", "bot"]).ok();
    finishes(&world, 7);
}

#[test]
fn kept_handlers_share_the_events_and_answer_for_their_own_only() {
    let world = World::with_thread();
    push(&world, &["a", "b", "c", "a", "b", "c"]);
    // Each waits before its first answer, so each gets some.
    let handler = format!("{EACH} until [ -e go ]; do sleep 0.01; done; echo '{{\"ack\":7}}'; {ACK} done");
    keep(&world, &handler, &[&["--concurrency", "3"][..], &KEY].concat());
    wait_until("three handlers", || seen(&world).len() == 3);
    assert_eq!(handler_pids(&world).len(), 3);
    world.write("go", "");
    finishes(&world, 6);
    assert_eq!(world.state("bot"), "running");
    let mut ids: Vec<i64> =
        seen(&world).iter().map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2, 3, 4, 5, 6]);
    assert!(
        world.read("inbox/logs/handlers/bot.log").contains("an answer for event 7, which it does not have")
    );
}

#[test]
fn a_kept_handler_of_a_pool_that_is_killed_loses_nothing_and_the_others_go_on() {
    let world = World::with_thread();
    push(&world, &["a", "b"]);
    let handler = format!("{EACH} until [ -e go ] || [ -e go-$id ]; do sleep 0.01; done; {ACK} done");
    keep(&world, &handler, &["--concurrency", "2", "--backoff", "10ms"]);
    wait_until("two handlers", || handler_pids(&world).len() == 2);
    let line = seen(&world).into_iter().find(|line| line.starts_with("1 ")).unwrap();
    kill_and_wait(line[2..].parse().unwrap());
    wait_until("another", || seen(&world).iter().filter(|line| line.starts_with("1 ")).count() == 2);
    assert_eq!(seen(&world).iter().filter(|line| line.starts_with("2 ")).count(), 1);
    world.write("go", "");
    finishes(&world, 2);
}

#[test]
fn kept_handlers_end_with_their_supervisor_before_others_begin() {
    let world = World::with_thread();
    push(&world, &["a", "b", "c"]);
    let handler = format!("{EACH} until [ -e go ]; do sleep 0.01; done; {ACK} done");
    keep(&world, &handler, &["--concurrency", "3", "--backoff", "10ms"]);
    wait_until("three handlers", || handler_pids(&world).len() == 3);
    let before = handler_pids(&world);
    world.kill_supervisor("bot");
    world.thread(["dispatch"]).ok();
    wait_until("three others", || handler_pids(&world).len() == 6);
    assert!(before.iter().all(|pid| !is_running(*pid)));
    world.write("go", "");
    finishes(&world, 3);
}

#[test]
fn kept_handlers_that_end_without_an_answer_are_not_started_again_and_again() {
    let world = World::with_thread();
    push(&world, &["a"; 3]);
    keep(&world, "echo begin >>seen; exit 1", &["--concurrency", "2", "--backoff", "1h"]);
    wait_until("the end", || world.state("bot") == "waiting");
    assert!(seen(&world).len() <= 2, "{:?}", seen(&world));
}

#[test]
fn a_kept_handler_is_started_only_if_there_is_an_event_for_it() {
    let world = World::with_thread();
    push(&world, &["a", "b"]);
    let handler = format!("echo $$ >>started; {EACH} until [ -e go ]; do sleep 0.01; done; {ACK} done");
    keep(&world, &handler, &["--concurrency", "4", "--idle", "100ms"]);
    wait_until("two handlers", || seen(&world).len() == 2);
    push(&world, &["c"]);
    wait_until("a third one", || seen(&world).len() == 3);
    world.write("go", "");
    finishes(&world, 3);
    wait_until("their end", || world.state("bot") == "idle");
    assert_eq!(world.lines("started").len(), 3);
}

#[test]
fn idle_handlers_of_a_pool_end_and_come_back() {
    let world = World::with_thread();
    keep(&world, &format!("{EACH} sleep 0.1; {ACK} done"), &["--concurrency", "2", "--idle", "100ms"]);
    for round in 1..=2 {
        push(&world, &["a", "b"]);
        finishes(&world, 2 * round);
        wait_until("their end", || world.state("bot") == "idle");
    }
    assert_eq!(handler_pids(&world).len(), 4);
}

#[test]
fn a_thread_with_a_pool_is_refused_by_older_programs() {
    let world = World::with_thread();
    assert_eq!(world.query("PRAGMA user_version"), 0);
    subscribe(&world, "cat", &["--concurrency", "2"]);
    assert_eq!(world.query("PRAGMA user_version"), 1);
}

#[test]
fn settings_of_pools_are_shown_and_bad_ones_refused() {
    let world = World::with_thread();
    let refused = |options: &[&str], with: &str| {
        let all = [&["subscribe", "other", "cat"], options].concat();
        let error = world.thread(all).fails(2);
        assert!(error.contains(with), "{error}");
    };
    refused(&["--concurrency", "2"], "add --deliver stdin or --deliver ndjson");
    refused(&["--concurrency", "0", "--deliver", "stdin"], "--concurrency");
    refused(&["--concurrency", "1001", "--deliver", "stdin"], "at most 1000");
    refused(&["--key", "source", "--deliver", "stdin"], "add --concurrency N");
    refused(&["--ahead", "5"], "add --concurrency N");
    refused(&["--key", "source = ", "--concurrency", "2", "--deliver", "stdin"], "--key does not compile");
    refused(
        &["--key", "(SELECT 1)", "--concurrency", "2", "--deliver", "stdin"],
        "--key contains a subquery",
    );
    subscribe(&world, "cat", &[&["--concurrency", "2", "--ahead", "7"][..], &KEY].concat());
    let bot = world.consumer("bot");
    assert_eq!((&bot["concurrency"], &bot["key"], &bot["ahead"]), (&json!(2), &json!(KEY[1]), &json!(7)));
}

/// The events that a run has at the moment.
fn at_work(world: &World) -> Vec<i64> {
    let mut at_work = Vec::new();
    for line in seen(world) {
        match line.split_once(' ').unwrap() {
            ("begin", id) => at_work.push(id.parse().unwrap()),
            (_, id) => {
                let id: i64 = id.parse().unwrap();
                at_work.remove(at_work.iter().position(|other| *other == id).unwrap());
            }
        }
        let mut once = at_work.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), at_work.len(), "{:?}", seen(world));
    }
    at_work
}

#[test]
fn after_a_seek_nothing_is_given_beside_runs_of_a_killed_supervisor() {
    for change in ["seek", "replace"] {
        let world = World::with_thread();
        push(&world, &["a"; 3]);
        subscribe(&world, WAITS, &["--concurrency", "3"]);
        waits_for(&world, &["begin 1", "begin 2", "begin 3"]);
        world.kill_supervisor("bot");
        match change {
            "seek" => drop(world.thread(["seek", "bot", "0"]).ok()),
            _ => world.subscribe("bot", WAITS, &["--replace", "--filter", "id > 0"]),
        }
        world.thread(["dispatch"]).ok();
        for id in 1..=3 {
            world.write(format!("go-{id}"), "");
            wait_until("the end of a run", || seen(&world).contains(&format!("end {id}")));
            at_work(&world);
        }
        world.thread(["dispatch"]).ok();
        finishes(&world, 3);
        at_work(&world);
        assert_eq!(seen(&world).len(), 12, "{change}");
    }
}

#[test]
fn a_dead_letter_that_is_retried_holds_its_key_though_its_supervisor_is_killed() {
    let world = World::with_thread();
    push(&world, &["a"]);
    let handler = format!("[ -e retried ] || exit 65; {WAITS}");
    subscribe(&world, &handler, &[&["--concurrency", "3"][..], &KEY].concat());
    wait_until("the dead letter", || world.consumer("bot")["dead"] == 1);
    world.write("retried", "");
    world.thread(["dead", "retry", "bot", "1"]).ok();
    waits_for(&world, &["begin 1"]);
    world.kill_supervisor("bot");
    push(&world, &["a"]);
    world.thread(["dispatch"]).ok();
    wait_until("the next supervisor", || world.state("bot") == "running");
    world.write("go", "");
    finishes(&world, 2);
    wait_until("the retry", || world.consumer("bot")["dead"] == 0);
    assert!(overlaps(&world, |_| 1).1 == 1, "{:?}", seen(&world));
}

#[test]
fn an_event_whose_run_was_abandoned_keeps_its_key() {
    let world = World::with_thread();
    push(&world, &["a", "a"]);
    let handler = format!("[ -e retried ] || {{ grep -q '\"id\":1,' && exit 65; }}; {WAITS}");
    let handler = handler.replace("grep -q", "tee input | grep -q").replace("$(sed", "$(cat input - | sed");
    subscribe(&world, &handler, &[&["--concurrency", "3", "--backoff", "1ms"][..], &KEY].concat());
    waits_for(&world, &["begin 2"]);
    world.write("retried", "");
    let run = world.query("SELECT count(*) FROM claims");
    assert_eq!(run, 1);
    world.kill_supervisor("bot");
    world.write("go-2", "");
    waits_for(&world, &["begin 2", "end 2"]);
    world.write("input", "");
    std::fs::remove_file(world.path("go-2")).unwrap();
    world.thread(["dead", "retry", "bot", "1"]).ok();
    world.thread(["dispatch"]).ok();
    wait_until("one of them", || seen(&world).len() >= 3);
    world.write("go", "");
    finishes(&world, 2);
    wait_until("the retry", || world.consumer("bot")["dead"] == 0);
    assert!(overlaps(&world, |_| 1).1 == 1, "{:?}", seen(&world));
}

#[test]
fn a_dead_letter_that_is_put_off_holds_back_nothing() {
    let world = World::with_thread();
    push(&world, &["a"]);
    let handler = format!("{NOTES} [ $id != 1 ] || {{ [ -e retried ] && exit 75; exit 65; }}");
    subscribe(&world, &handler, &["--concurrency", "2", "--backoff", "1h"]);
    wait_until("the dead letter", || world.consumer("bot")["dead"] == 1);
    world.write("retried", "");
    world.thread(["dead", "retry", "bot", "1"]).ok();
    waits_for(&world, &["1", "1"]);
    push(&world, &["b", "c"]);
    finishes(&world, 3);
    assert_eq!((seen(&world).len(), &world.consumer("bot")["dead"]), (4, &json!(1)));
}

#[test]
fn an_event_that_is_a_dead_letter_and_pending_again_is_not_forgotten() {
    let world = World::with_thread();
    push(&world, &["a", "b"]);
    let handler = format!("{NOTES} [ $id != 1 ] || [ -e mended ] || exit 65");
    subscribe(&world, &handler, &["--concurrency", "2"]);
    finishes(&world, 2);
    world.thread(["pause", "bot"]).ok();
    world.thread(["seek", "bot", "0"]).ok();
    world.thread(["dead", "retry", "bot", "1"]).ok();
    world.write("mended", "");
    world.thread(["resume", "bot"]).ok();
    finishes(&world, 2);
    wait_until("the retry", || world.consumer("bot")["dead"] == 0);
}

#[test]
fn a_stalled_pool_of_kept_handlers_tries_one_event() {
    let world = World::with_thread();
    push(&world, &["a"; 6]);
    let handler = format!("{EACH} if [ -e mended ]; then {ACK} else echo \"{{\\\"nack\\\":$id}}\"; fi; done");
    let options = ["--concurrency", "3", "--max-attempts", "1", "--stall-after", "2", "--probe", "1s"];
    keep(&world, &handler, &[&options[..], &["--backoff", "1h"]].concat());
    world.wait_for_state("bot", "stalled");
    let tried = seen(&world).len();
    wait_until("a probe", || seen(&world).len() > tried);
    world.wait_for_state("bot", "stalled");
    assert_eq!(seen(&world).len(), tried + 1, "{:?}", seen(&world));
    world.write("mended", "");
    wait_until("the rest", || world.consumer("bot")["pending"] == 0);
}

#[test]
fn a_pool_that_is_resumed_goes_on_beside_a_long_run() {
    let world = World::with_thread();
    push(&world, &["a"; 4]);
    subscribe(&world, WAITS, &["--concurrency", "2"]);
    waits_for(&world, &["begin 1", "begin 2"]);
    world.thread(["pause", "bot"]).ok();
    world.thread(["resume", "bot"]).ok();
    world.write("go-2", "");
    waits_for(&world, &["begin 1", "begin 2", "end 2", "begin 3"]);
    world.write("go", "");
    finishes(&world, 4);
}

#[test]
fn runs_that_end_after_a_seek_are_recorded() {
    let world = World::with_thread();
    push(&world, &["a", "b"]);
    subscribe(&world, WAITS, &["--concurrency", "2"]);
    waits_for(&world, &["begin 1", "begin 2"]);
    world.thread(["pause", "bot"]).ok();
    world.thread(["seek", "bot", "0"]).ok();
    world.write("go", "");
    world.wait_for_state("bot", "paused");
    let runs = || {
        let runs = world.thread(["info", "bot", "--runs", "--json"]).ok();
        serde_json::from_str::<Value>(&runs).unwrap()["runs"].as_array().unwrap().len()
    };
    wait_until("both runs", || runs() == 2);
    assert_eq!(world.consumer("bot")["runs_succeeded"], 2);
}

#[test]
fn what_is_left_of_a_batch_was_not_alone() {
    let world = World::with_thread();
    push(&world, &["a", "b"]);
    let handler = "cat >got-$$; wc -l <got-$$ >>seen; [ -e second ] && exit 0; until [ -e go ]; do sleep 0.01; done; exit 65";
    world.subscribe("bot", handler, &["--deliver", "stdin", "--concurrency", "1", "--batch-size", "2"]);
    waits_for(&world, &["2"]);
    world.thread(["ack", "bot", "2"]).ok();
    world.write("second", "");
    world.write("go", "");
    finishes(&world, 2);
    assert_eq!((seen(&world), &world.consumer("bot")["dead"]), (vec!["2".to_owned(), "1".into()], &json!(0)));
}

#[test]
fn a_pool_works_with_as_many_files_as_it_may_open() {
    let world = World::with_thread();
    push(&world, &["a"; 60]);
    let subscribe =
        "thread subscribe bot 'cat >>got; sleep 0.3' --deliver stdin --batch-size 1 --concurrency 50";
    world.sh(&format!("ulimit -n 64 && {subscribe}")).ok();
    finishes(&world, 60);
    assert_eq!(world.lines("got").len(), 60);
}

#[test]
fn an_acknowledgement_by_hand_ends_no_stall_of_a_pool() {
    let world = World::with_thread();
    push(&world, &["a"; 3]);
    let options = ["--concurrency", "1", "--max-attempts", "1", "--stall-after", "1", "--backoff", "1h"];
    subscribe(&world, "exit 1", &options);
    world.wait_for_state("bot", "stalled");
    world.thread(["ack", "bot", "3"]).ok();
    assert_eq!(world.state("bot"), "stalled");
}

#[test]
fn what_fails_by_hand_stalls_no_pool_that_is_at_work() {
    let world = World::with_thread();
    push(&world, &["a"; 4]);
    subscribe(&world, WAITS, &["--concurrency", "2", "--max-attempts", "1", "--stall-after", "1"]);
    waits_for(&world, &["begin 1", "begin 2"]);
    world.thread(["nack", "bot", "3"]).ok();
    world.thread(["nack", "bot", "4"]).ok();
    assert_eq!(world.state("bot"), "running");
    world.write("go", "");
    finishes(&world, 4);
}
