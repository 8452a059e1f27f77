//! `dead`: listing, retrying and discarding events that a handler could not process.

use thread_testkit::{World, ids, wait_until};

/// A world with events 1 to 4, of which 1 and 3 are dead letters of `bot`. Its handler succeeds on
/// every event once the file `repaired` exists.
fn world_with_letters() -> World {
    let world = World::with_thread();
    let handler = "cat > in; echo run >> runs; \
                   if grep -q bad in && [ ! -e repaired ]; then echo first; echo 'second line' >&2; exit 9; fi; \
                   cat in >> got";
    let options = ["--deliver", "stdin", "--max-attempts", "1", "--backoff", "10ms", "--batch-size", "1"];
    world.subscribe("bot", handler, &options);
    for content in ["bad one", "good", "bad two", "good"] {
        world.push(content);
    }
    wait_until("all to be dealt with", || world.consumer("bot")["last_acked_id"] == 4);
    world.wait_for_state("bot", "idle");
    world.wait_until_quiet();
    world
}

#[test]
fn list_names_each_with_its_end() {
    let world = world_with_letters();
    let text = world.thread(["dead", "list", "--consumer", "bot"]).quiet();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[0].starts_with("1  attempts=1 exit=9 parked_at="), "{text}");
    assert!(lines[1].starts_with("3  ") && lines[1].ends_with("Z  second line"), "{text}");
    let one = world.thread(["dead", "list", "--consumer", "bot", "--event-id", "3", "--json"]).quiet();
    let letter: serde_json::Value = serde_json::from_str(&one).unwrap();
    let keys: Vec<&String> = letter.as_object().unwrap().keys().collect();
    assert_eq!(keys[..5], ["consumer_id", "event_id", "attempts", "last_exit", "last_error"]);
    assert_eq!(letter["last_error"], "first\nsecond line");
}

#[test]
fn show_prints_the_events() {
    let world = world_with_letters();
    let all = world.thread(["dead", "show", "--consumer", "bot", "--all"]).quiet();
    assert_eq!(ids(&all), [1, 3]);
    let one = world.thread(["dead", "show", "--consumer", "bot", "--event-id", "3"]).quiet();
    assert_eq!(one, world.thread(["peek", "--last-event-id", "2", "--limit", "1"]).quiet());
}

#[test]
fn a_retry_that_fails_parks_it_again_with_one_more_attempt() {
    let world = world_with_letters();
    let runs = world.lines("runs").len();
    assert_eq!(world.thread(["dead", "retry", "--consumer", "bot", "--event-id", "1"]).quiet(), "1\n");
    let attempts = || {
        let list = world.thread(["dead", "list", "--consumer", "bot", "--event-id", "1", "--json"]).quiet();
        serde_json::from_str::<serde_json::Value>(&list).unwrap()["attempts"].clone()
    };
    wait_until("the second attempt", || attempts() == 2);
    world.wait_until_quiet();
    let info = world.consumer("bot");
    assert_eq!(world.lines("runs").len(), runs + 1, "it gets exactly one run");
    assert_eq!(
        (&info["dead"], &info["last_acked_id"], &info["state"]),
        (&2.into(), &4.into(), &"idle".into())
    );
}

#[test]
fn a_retried_letter_runs_alone_and_before_new_events() {
    let world = world_with_letters();
    world.thread(["pause", "--consumer", "bot"]).quiet();
    world.push("new");
    world.write("repaired", "");
    assert_eq!(
        world.thread(["dead", "retry", "--consumer", "bot", "--all", "--json"]).quiet(),
        "{\"consumer_id\":\"bot\",\"count\":2}\n"
    );
    assert_eq!(world.lines("got").len(), 2, "a paused consumer is not started");
    let list = world.thread(["dead", "list", "--consumer", "bot"]).quiet();
    assert!(list.lines().all(|line| line.contains(" retry  ")), "{list}");
    world.thread(["resume", "--consumer", "bot"]).quiet();
    wait_until("all of it", || world.consumer("bot")["last_acked_id"] == 5);
    assert_eq!(ids(&world.read("got")), [2, 4, 1, 3, 5]);
    assert_eq!(world.thread(["dead", "list", "--consumer", "bot"]).quiet(), "");
}

#[test]
fn a_retry_wakes_the_consumer_also_where_its_answer_cannot_be_printed() {
    let world = world_with_letters();
    world.write("repaired", "");
    let (_, stderr) = world.sh("exec thread dead retry --consumer bot --all >/dev/full").ends_with(1);
    assert!(stderr.contains("cannot write to stdout"), "{stderr}");
    wait_until("both", || ids(&world.read("got")) == [2, 4, 1, 3]);
}

#[test]
fn dead_letters_with_invalid_ids_are_removed_by_a_retry() {
    let world = world_with_letters();
    world.write("repaired", "");
    for id in ["'odd'", "-1e30", "-9223372036854775808"] {
        let values = format!("('bot', {id}, 1, 9, '', '2026-03-18T10:30:00.123Z', 0)");
        world.db().execute(&format!("INSERT INTO dead_letters VALUES {values}"), []).unwrap();
    }
    assert_eq!(ids(&world.thread(["dead", "show", "--consumer", "bot", "--all"]).quiet()), [1, 3]);
    assert_eq!(world.thread(["dead", "retry", "--consumer", "bot", "--all"]).quiet(), "5\n");
    wait_until("both", || ids(&world.read("got")) == [2, 4, 1, 3]);
    world.wait_for_state("bot", "idle");
    world.wait_until_quiet();
    assert_eq!(world.thread(["dead", "list"]).quiet(), "");
}

#[test]
fn discard_throws_the_letter_away_and_keeps_the_event() {
    let world = world_with_letters();
    assert_eq!(world.thread(["dead", "discard", "--consumer", "bot", "--event-id", "1"]).quiet(), "1\n");
    assert_eq!(world.consumer("bot")["dead"], 1);
    assert_eq!(world.thread(["dead", "discard", "--consumer", "bot", "--all"]).quiet(), "1\n");
    assert_eq!(world.thread(["dead", "discard", "--consumer", "bot", "--all"]).quiet(), "0\n");
    assert_eq!(world.query("SELECT count(*) FROM events"), 4);
    assert_eq!(world.processes().len(), 0);
}

#[test]
fn usage_errors_and_missing_letters_are_reported() {
    let world = world_with_letters();
    for what in ["show", "retry", "discard"] {
        world.thread(["dead", what, "--consumer", "bot"]).fails(2);
        world.thread(["dead", what, "--consumer", "bot", "--event-id", "2"]).fails(1);
        world.thread(["dead", what, "--consumer", "bot", "--event-id", "x"]).fails(2);
        world.thread(["dead", what, "--consumer", "bot", "--event-id", "1", "--all"]).fails(2);
        world.thread(["dead", what, "--consumer", "nobody", "--all"]).fails(1);
    }
    world.thread(["dead", "list", "--consumer", "nobody"]).fails(1);
    world.thread(["dead", "list", "--consumer", "bot", "--event-id", "2"]).fails(1);
    world.subscribe("popper", "true", &["--from", "new"]);
    let error = world.thread(["dead", "retry", "--consumer", "popper", "--all"]).fails(1);
    assert!(error.contains("pops for itself") && error.contains("`thread unsubscribe` it and"), "{error}");
    assert_eq!(world.consumer("bot")["dead"], 2, "nothing was changed");
}

#[test]
fn a_dead_letter_to_be_retried_starts_a_consumer_that_is_subscribed_again() {
    let world = world_with_letters();
    world.thread(["pause", "--consumer", "bot"]).quiet();
    world.thread(["dead", "retry", "--consumer", "bot", "--all"]).quiet();
    world.thread(["unsubscribe", "--consumer", "bot"]).quiet();
    world.subscribe("bot", "cat >> later", &["--deliver", "stdin"]);
    wait_until("both", || ids(&world.read("later")) == [1, 3]);
}

#[test]
fn list_without_a_name_is_for_all_consumers() {
    let world = World::with_thread();
    assert_eq!(world.thread(["dead", "list"]).quiet(), "");
    assert_eq!(world.thread(["dead", "list", "--json"]).quiet(), "");
    let letter = "INSERT INTO dead_letters VALUES (?1, ?2, 1, 9, 'no', '2026-03-18T10:30:00.123Z', 0)";
    for (consumer, id) in [("bot", 10), ("bot", 9), ("\x1b[2J", 9)] {
        world.db().execute(letter, rusqlite::params![consumer, id]).unwrap();
    }
    let about = "attempts=1 exit=9 parked_at=2026-03-18T10:30:00.123Z  no\n";
    let odd = format!("\\u{{1b}}[2J  9  {about}");
    let all = format!("{odd}bot  9  {about}bot  10  {about}");
    assert_eq!(world.thread(["dead", "list"]).quiet(), all);
    assert_eq!(world.thread(["dead", "list", "--all"]).quiet(), all);
    let ninth = world.thread(["dead", "list", "--event-id", "9"]).quiet();
    assert_eq!(ninth, format!("{odd}bot  9  {about}"));
    let json = world.thread(["dead", "list", "--json"]).quiet();
    let names: Vec<String> = json
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["consumer_id"].to_string())
        .collect();
    assert_eq!(names, ["\"\\u001b[2J\"", "\"bot\"", "\"bot\""]);

    let error = world.thread(["dead", "list", "--event-id", "8"]).fails(1);
    assert_eq!(error, "Error: event 8 is not a dead letter of any consumer - see `thread dead list`");
    let named = world.thread(["dead", "list"]).env("THREAD_CONSUMER", "bot").quiet();
    assert_eq!(named, format!("9  {about}10  {about}"));
    assert!(world.thread(["dead", "list", "--consumer", ""]).fails(2).contains("is empty"));
    for what in ["show", "discard"] {
        assert!(world.thread(["dead", what, "--all"]).fails(2).contains("no consumer given"));
    }
}

#[test]
fn letters_outlive_their_subscription() {
    let world = world_with_letters();
    world.thread(["unsubscribe", "--consumer", "bot"]).ok();
    assert_eq!(world.thread(["dead", "list", "--consumer", "bot"]).quiet().lines().count(), 2);
    world.thread(["dead", "retry", "--consumer", "bot", "--all"]).fails(1);
    world.subscribe("bot", "cat >> later", &["--deliver", "stdin"]);
    world.thread(["dead", "retry", "--consumer", "bot", "--all"]).quiet();
    wait_until("both", || ids(&world.read("later")) == [1, 3]);
}
