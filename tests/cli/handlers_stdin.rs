//! Events delivered on stdin: batches, what acknowledges them, and what happens when one fails.

use thread_testkit::{World, ids, wait_until};

fn stdin_world(handler: &str, options: &[&str]) -> World {
    let world = World::with_thread();
    let options: Vec<&str> = ["--deliver", "stdin"].iter().chain(options).copied().collect();
    world.subscribe("bot", handler, &options);
    world
}

/// Stores `count` events in one push. `content` makes the content from the number.
fn push_many(world: &World, count: usize, content: impl Fn(usize) -> String) {
    let line = |n| format!("{{\"source\":\"self\",\"type\":\"record\",\"content\":\"{}\"}}\n", content(n));
    let lines: String = (1..=count).map(line).collect();
    world.thread(["push", "--batch"]).stdin(lines).ok();
}

fn acked(world: &World) -> i64 {
    world.consumer("bot")["last_acked_id"].as_i64().unwrap()
}

#[test]
fn exit_0_acknowledges_the_batch_read_or_not() {
    for handler in ["true", "exec 0<&-; sleep 0.05", "head -n 1 > first", "cat > all"] {
        let world = stdin_world(handler, &["--batch-size", "10"]);
        push_many(&world, 25, |n| n.to_string());
        wait_until("all to be acknowledged", || acked(&world) == 25);
        world.wait_for_state("bot", "idle");
        world.wait_until_quiet();
        let runs = world.log().iter().filter(|line| line.contains("consumer=bot ended exit=0")).count();
        assert_eq!(runs, 3, "{handler}");
    }
}

#[test]
fn the_handler_gets_what_pop_would_print_oldest_first() {
    let world = stdin_world("cat >> got", &["--filter", "content <> '7'"]);
    push_many(&world, 30, |n| n.to_string());
    wait_until("all to be acknowledged", || acked(&world) == 30);
    let peek = world.thread(["peek", "--last-event-id", "0", "--filter", "content <> '7'"]).quiet();
    assert_eq!(world.read("got"), peek);
    assert_eq!(ids(&peek).len(), 29);
}

#[test]
fn a_batch_ends_at_a_mebibyte() {
    let world = stdin_world("wc -c >> sizes", &[]);
    push_many(&world, 30, |_| "x".repeat(100_000));
    wait_until("all to be acknowledged", || acked(&world) == 30);
    let sizes: Vec<usize> = world.lines("sizes").iter().map(|line| line.trim().parse().unwrap()).collect();
    assert_eq!(sizes.len(), 3, "{sizes:?}");
    assert!(sizes.iter().all(|&size| size < 1024 * 1024 + 101_000), "{sizes:?}");
}

#[test]
fn an_event_larger_than_a_batch_is_delivered_alone() {
    let world = stdin_world("wc -lc >> sizes", &[]);
    push_many(&world, 3, |n| if n == 2 { "y".repeat(3_000_000) } else { "small".to_owned() });
    wait_until("all to be acknowledged", || acked(&world) == 3);
    assert!(world.read("sizes").contains("3000"), "{}", world.read("sizes"));
}

#[test]
fn a_cursor_moved_back_during_the_run_is_not_overrun() {
    let world = stdin_world(
        "cat >> got; [ -e back ] && rm back && thread pop --last-event-id 0 > /dev/null; true",
        &["--backoff", "20ms"],
    );
    world.push("a");
    wait_until("the first", || acked(&world) == 1);
    world.write("back", "");
    push_many(&world, 2, |n| n.to_string());
    wait_until("all to be delivered again", || ids(&world.read("got")) == [1, 2, 3, 1, 2, 3]);
    wait_until("all to be acknowledged", || acked(&world) == 3);
    world.wait_for_state("bot", "idle");
}

#[test]
fn a_run_rewound_from_outside_acknowledges_nothing() {
    let world = stdin_world(
        "touch up; while [ ! -e go ]; do sleep 0.02; done; cat >> got",
        &["--from", "all", "--backoff", "20ms"],
    );
    world.write("go", "");
    push_many(&world, 2, |n| n.to_string());
    wait_until("the first two", || acked(&world) == 2);
    world.wait_until_quiet();
    for file in ["go", "up"] {
        std::fs::remove_file(world.path(file)).unwrap();
    }
    world.push("c");
    world.wait_for_file("up");
    let all = world.thread(["pop", "--consumer", "bot", "--last-event-id", "0"]).quiet();
    assert_eq!(ids(&all), [1, 2, 3]);
    world.write("go", "");
    wait_until("all again", || ids(&world.read("got")).ends_with(&[1, 2, 3]));
    wait_until("all to be acknowledged", || acked(&world) == 3);
}

#[test]
fn a_rewind_during_a_run_is_kept_though_the_run_has_acknowledged() {
    let handler = "cat >>got; [ -e calm ] && exit 0; thread ack --event-id 3; touch up; \
                   while [ ! -e go ]; do sleep 0.02; done";
    let world = stdin_world(handler, &[]);
    push_many(&world, 5, |n| n.to_string());
    world.wait_for_file("up");
    // The handler moved the cursor forward; this moves it back to where it was when the run began.
    world.thread(["seek", "--consumer", "bot", "--to", "earliest"]).quiet();
    world.write("calm", "");
    world.write("go", "");
    wait_until("all to be delivered again", || ids(&world.read("got")) == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5]);
    wait_until("all to be acknowledged", || acked(&world) == 5);
    world.wait_for_state("bot", "idle");
}

#[test]
fn a_run_that_outlives_its_subscription_changes_nothing() {
    let world = stdin_world("touch up; while [ ! -e go ]; do sleep 0.02; done; cat >> got", &[]);
    push_many(&world, 2, |n| n.to_string());
    world.wait_for_file("up");
    world.thread(["unsubscribe", "--consumer", "bot"]).ok();
    world.push("c");
    world.write("go", "");
    world.wait_until_quiet();
    assert_eq!(ids(&world.read("got")), [1, 2], "it was let finish, and not followed by another");
    assert_eq!(world.query("SELECT count(*) FROM consumer_progress"), 0);
}

#[test]
fn a_consumer_subscribed_again_during_a_run_gets_all_events_in_a_run_of_its_own() {
    let world = stdin_world("touch up; while [ ! -e go ]; do sleep 0.02; done; cat >> old", &[]);
    push_many(&world, 2, |n| n.to_string());
    world.wait_for_file("up");
    world.thread(["unsubscribe", "--consumer", "bot"]).ok();
    world.subscribe("bot", "cat >> new", &["--deliver", "stdin"]);
    assert_eq!(acked(&world), 0);
    assert_eq!(world.read("new"), "", "two runs of one consumer at a time");
    world.write("go", "");
    wait_until("the new one's run", || acked(&world) == 2);
    assert_eq!(ids(&world.read("new")), [1, 2]);
}

#[test]
fn one_poisonous_event_among_a_thousand_delays_the_others_only_by_its_own_attempts() {
    let handler = "cat > in; if grep -q poison in && [ ! -e repaired ]; then echo cannot chew >&2; exit 7; fi; \
                   cat in >> got";
    let world = stdin_world(handler, &["--batch-size", "25", "--max-attempts", "3", "--backoff", "20ms"]);
    push_many(&world, 1000, |n| if n == 333 { "poison".to_owned() } else { n.to_string() });
    wait_until("all to be dealt with", || acked(&world) == 1000);
    world.wait_for_state("bot", "idle");
    world.wait_until_quiet();
    let sound: Vec<i64> = (1..=1000).filter(|&n| n != 333).collect();
    assert_eq!(ids(&world.read("got")), sound, "each once, in order");

    let list = world.thread(["dead", "list", "--consumer", "bot", "--json"]).quiet();
    let letter: serde_json::Value = serde_json::from_str(&list).unwrap();
    assert_eq!((&letter["event_id"], &letter["attempts"]), (&333.into(), &3.into()));
    assert_eq!((&letter["last_exit"], &letter["last_error"]), (&7.into(), &"cannot chew".into()));
    assert!(letter["parked_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(world.consumer("bot")["dead"], 1);
    assert!(
        world.log().contains(&"[WARN] dispatch: consumer=bot id=333 is a dead letter attempts=3".to_owned())
    );

    world.write("repaired", "");
    world.thread(["dead", "retry", "--consumer", "bot", "--event-id", "333"]).quiet();
    wait_until("the dead letter to be accepted", || world.consumer("bot")["dead"] == 0);
    assert_eq!(ids(&world.read("got")).last(), Some(&333));
    assert_eq!(acked(&world), 1000, "the cursor is not moved");
}

#[test]
fn an_outage_makes_so_many_dead_letters_and_then_stalls() {
    let world = stdin_world(
        "cat > in; [ -e network ] && cat in >> got",
        &["--max-attempts", "3", "--backoff", "10ms", "--batch-size", "3", "--stall-after", "2"],
    );
    push_many(&world, 10, |n| n.to_string());
    world.wait_for_state("bot", "stalled");
    world.wait_until_quiet();
    let info = world.consumer("bot");
    assert_eq!((&info["dead"], &info["last_acked_id"], &info["pending"]), (&2.into(), &2.into(), &8.into()));
    assert_eq!(info["reason"], "out of attempts after 2 dead letters without a success");
    let text = world.thread(["info"]).quiet();
    assert!(text.contains("    note: `thread resume bot` starts it again\n"), "{text}");
    // Another push during the outage creates no further dead letter.
    world.thread(["dispatch"]).quiet();
    world.push("11");
    world.wait_until_quiet();
    world.wait_for_state("bot", "stalled");
    assert_eq!(world.consumer("bot")["dead"], 2);
    world.write("network", "");
    world.push("12");
    wait_until("the backlog", || acked(&world) == 12);
    assert_eq!(ids(&world.read("got")), (3..=12).collect::<Vec<_>>());
    world.thread(["dead", "retry", "--consumer", "bot", "--all"]).quiet();
    wait_until("the dead letters", || world.consumer("bot")["dead"] == 0);
}

#[test]
fn events_judged_bad_are_set_aside_at_once_and_stall_nothing() {
    // Every second event is malformed; the default waits would take minutes for the first of them.
    let handler =
        "cat >in; echo >>runs; if grep -q bad in; then echo malformed >&2; exit 65; fi; cat in >>got";
    let world = stdin_world(handler, &["--max-attempts", "3"]);
    push_many(&world, 20, |n| if n % 2 == 0 { "bad".to_owned() } else { "good".to_owned() });
    wait_until("all to be dealt with", || acked(&world) == 20);
    world.wait_until_quiet();
    assert_eq!(ids(&world.read("got")), (1..=20).step_by(2).collect::<Vec<_>>());
    let consumer = world.consumer("bot");
    assert_eq!((&consumer["state"], &consumer["dead"]), (&"idle".into(), &10.into()));
    assert_eq!(world.lines("runs").len(), 21, "the batch once, and each event once");
    let list = world.thread(["dead", "list", "bot", "--json"]).quiet();
    let letters: Vec<serde_json::Value> =
        list.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for letter in &letters {
        assert_eq!((&letter["attempts"], &letter["last_exit"]), (&1.into(), &65.into()));
        assert_eq!(letter["last_error"], "malformed");
    }
    // A judgment repeated in a retry leaves it as it is.
    world.thread(["dead", "retry", "bot", "2"]).quiet();
    world.wait_until_quiet();
    assert_eq!(world.consumer("bot")["dead"], 10);
}

#[test]
fn a_success_between_them_lets_a_second_dead_letter_be_made() {
    let world = stdin_world(
        "cat > in; if grep -q bad in; then exit 1; fi; cat in >> got",
        &["--max-attempts", "2", "--backoff", "10ms"],
    );
    for content in ["bad", "good", "bad", "good"] {
        world.push(content);
    }
    wait_until("all to be dealt with", || acked(&world) == 4);
    world.wait_until_quiet();
    assert_eq!(ids(&world.read("got")), [2, 4]);
    assert_eq!(world.consumer("bot")["dead"], 2);
}

#[test]
fn what_comes_while_an_event_fails_alone_does_not_start_its_attempts_again() {
    let world = stdin_world(
        "cat > in; wc -l < in >> sizes; grep -q bad in || exit 0; touch failed; while [ ! -e go ]; do sleep 0.02; done; exit 1",
        &["--max-attempts", "3", "--backoff", "10ms"],
    );
    world.push("bad");
    world.wait_for_file("failed");
    world.push("good");
    world.write("go", "");
    wait_until("all to be dealt with", || acked(&world) == 2);
    world.wait_until_quiet();
    let sizes: Vec<String> = world.lines("sizes").iter().map(|line| line.trim().to_owned()).collect();
    assert_eq!(sizes, ["1", "1", "1", "1"], "three attempts alone, and then the other");
    let list = world.thread(["dead", "list", "--consumer", "bot", "--json"]).quiet();
    let letter: serde_json::Value = serde_json::from_str(&list).unwrap();
    assert_eq!((&letter["event_id"], &letter["attempts"]), (&1.into(), &3.into()));
}

#[test]
fn after_a_rewind_events_are_delivered_in_batches_again() {
    let world = stdin_world(
        "cat > in; wc -l < in >> sizes; [ -e calm ]",
        &["--max-attempts", "1", "--backoff", "10ms", "--stall-after", "1"],
    );
    push_many(&world, 6, |n| n.to_string());
    world.wait_for_state("bot", "stalled");
    world.wait_until_quiet();
    world.write("calm", "");
    world.write("sizes", "");
    world.thread(["seek", "--consumer", "bot", "--to", "earliest"]).quiet();
    world.thread(["resume", "--consumer", "bot"]).quiet();
    wait_until("all to be acknowledged", || acked(&world) == 6);
    world.wait_until_quiet();
    assert_eq!(world.read("sizes").trim(), "6");
}

#[test]
fn a_failing_batch_is_delivered_again_one_event_at_a_time() {
    let world = stdin_world(
        "wc -l >> sizes; exit 1",
        &["--max-attempts", "2", "--backoff", "10ms", "--batch-size", "4", "--stall-after", "1"],
    );
    push_many(&world, 4, |n| n.to_string());
    world.wait_for_state("bot", "stalled");
    world.wait_until_quiet();
    let sizes: Vec<String> = world.lines("sizes").iter().map(|line| line.trim().to_owned()).collect();
    // The batch; then the first event alone until it is dead; then the second alone until the stall.
    assert_eq!(sizes, ["4", "1", "1", "1", "1"]);
}
