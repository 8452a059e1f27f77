//! `prune`: which events it deletes, what prevents that, and that the JSONL log keeps their lines.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};
use thread_testkit::{Dice, World, ids, names, wait_until};

/// A world with `events` events.
fn world_with(events: usize) -> World {
    let world = World::with_thread();
    push_many(&world, events);
    world
}

fn push_many(world: &World, events: usize) {
    let line = "{\"source\":\"self\",\"type\":\"record\",\"content\":\"ten bytes.\"}\n";
    world.off(["push", "--batch"]).stdin(line.repeat(events)).quiet();
}

fn push(world: &World) {
    world.off(["push", "--source", "self", "--type", "message", "--content", "new"]).quiet();
}

fn stored(world: &World) -> Vec<i64> {
    let conn = world.db();
    let mut statement = conn.prepare("SELECT id FROM events ORDER BY id").unwrap();
    statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

/// The output of `prune --json`.
#[track_caller]
fn answer(world: &World, options: &[&str]) -> Value {
    let run = world.off(["prune", "--json"].iter().chain(options));
    serde_json::from_str(&run.quiet()).unwrap()
}

/// Fails unless the JSONL log has the lines stored before, followed by those stored now.
#[track_caller]
fn assert_log_keeps(world: &World, before: &[String]) {
    let lines = before.iter().cloned().chain(world.table_as_jsonl());
    let all: BTreeMap<i64, String> = lines.map(|line| (ids(&line)[0], line)).collect();
    assert_eq!(world.jsonl(), all.into_values().collect::<Vec<_>>());
}

fn assert_sound(world: &World) {
    assert_eq!(world.query("SELECT count(*) FROM pragma_integrity_check WHERE integrity_check = 'ok'"), 1);
}

#[test]
fn events_with_smaller_ids_go_and_their_lines_stay() {
    let world = world_with(10);
    let before = world.table_as_jsonl();
    assert_eq!(world.off(["prune", "--before-id", "1"]).quiet(), "0\n");
    assert_eq!(world.off(["prune", "--before-id", "6"]).quiet(), "5\n");
    assert_eq!(stored(&world), [6, 7, 8, 9, 10]);
    assert_eq!(world.off(["prune", "--before-id", "6"]).quiet(), "0\n");
    assert_eq!(world.jsonl(), before);
    push(&world);
    assert_log_keeps(&world, &before);
    assert_eq!(world.log()[1], "[INFO] prune: count=5 bytes=50");
}

#[test]
fn the_log_keeps_the_time_of_its_newest_event() {
    let world = world_with(3);
    let spoken = world.query("SELECT CAST(strftime('%s', created_at) AS INTEGER) FROM events WHERE id = 3");
    let spoken = UNIX_EPOCH + Duration::from_secs(spoken.unsigned_abs());
    let log = world.inbox().join("events.jsonl");
    let written = || fs::metadata(&log).unwrap().modified().unwrap();
    let is_kept = || written().duration_since(spoken).is_ok_and(|late| late < Duration::from_secs(1));
    // Later than the event, as far as the file system knows.
    let touch = || fs::File::open(&log).unwrap().set_modified(spoken + Duration::from_secs(60)).unwrap();
    touch();
    world.off(["prune", "--before-id", "2"]).quiet();
    assert!(is_kept(), "{:?}", written());
    fs::write(&log, "torn").unwrap();
    touch();
    world.off(["doctor", "--fix"]).ok();
    assert!(is_kept(), "{:?}", written());
}

#[test]
fn no_id_is_given_twice_also_when_all_are_gone() {
    let world = world_with(3);
    let before = world.table_as_jsonl();
    world.idle_consumer("bot", "");
    assert_eq!(world.off(["prune", "--before-id", "9223372036854775807", "--force"]).quiet(), "3\n");
    assert_eq!(stored(&world), [0; 0]);
    let seek = world.off(["seek", "--consumer", "bot", "--to", "latest"]).quiet();
    assert_eq!(seek, "3\n", "the newest id ever given");
    push(&world);
    assert_eq!(stored(&world), [4]);
    assert_log_keeps(&world, &before);
    assert_eq!(ids(&world.thread(["pop", "--consumer", "bot", "--resume"]).quiet()), [4]);
}

#[test]
fn a_dry_run_says_the_same_and_changes_nothing() {
    let world = world_with(10);
    world.idle_consumer("bot", "");
    world.off(["ack", "--consumer", "bot", "--event-id", "4"]).quiet();
    let stop = "Warning: stopped before event 5, which is pending for 'bot'; `thread seek` it past that or \
                `thread unsubscribe` it if it is done with these, or prune with --force\n";
    let note = "Note: nothing was deleted; it would free 40 bytes of content and metadata\n";
    let dry = ["prune", "--before-id", "8", "--dry-run"];
    assert_eq!(world.off(dry).ends_with(0), ("4\n".into(), format!("{note}{stop}")));
    let mut expected = json!({"count": 4, "bytes": 40, "dead_letters": 0, "stopped_at": 5,
                              "consumer_id": "bot", "hold": null, "dry_run": true});
    assert_eq!(answer(&world, &dry[1..]), expected);
    assert_eq!(answer(&world, &["--older-than", "0s", "--dry-run", "--compact"]), expected);
    assert_eq!(stored(&world).len(), 10);
    expected["dry_run"] = false.into();
    assert_eq!(answer(&world, &dry[1..3]), expected);
    assert_eq!(world.off(&dry[..3]).ends_with(0), ("0\n".into(), stop.into()));
    assert_eq!(stored(&world), [5, 6, 7, 8, 9, 10]);
}

#[test]
fn what_is_pending_for_any_consumer_holds_it_back() {
    let world = world_with(10);
    let held = |at: i64, by: &str| {
        let found = answer(&world, &["--before-id", "100", "--dry-run"]);
        assert_eq!((&found["stopped_at"], &found["consumer_id"]), (&json!(at), &json!(by)), "{found}");
        assert_eq!(found["count"], at - 1);
    };
    world.idle_consumer("none", "type = 'message'");
    assert_eq!(answer(&world, &["--before-id", "100", "--dry-run"])["stopped_at"], Value::Null);
    world.idle_consumer("late", "id >= 9");
    held(9, "late");
    world.idle_consumer("errs", "id = 8 OR abs(-9223372036854775807 - (id = 2)) = 0");
    held(8, "errs");
    world.idle_consumer("paused", "id = 7");
    world.off(["pause", "--consumer", "paused"]).quiet();
    held(7, "paused");
    world.subscribe("stalled", "exit 127", &["--filter", "id = 6"]);
    world.wait_for_state("stalled", "stalled");
    held(6, "stalled");
    // In mid-batch: the handler has the events on stdin, and nothing is acknowledged before it ends.
    let handler = "while [ ! -e go ]; do sleep 0.01; done";
    world.subscribe("busy", handler, &["--filter", "id >= 5", "--deliver", "stdin"]);
    world.wait_for_state("busy", "running");
    held(5, "busy");
    // It is unknown what a broken filter would match.
    world.idle_consumer("broken", "id = 10");
    world
        .db()
        .execute_batch(
            "UPDATE subscriptions SET filter = 'nosuch = 1' WHERE consumer_id = 'broken'; \
             INSERT INTO consumer_progress VALUES ('broken', 2, '2026-03-18T10:30:00.123Z')",
        )
        .unwrap();
    held(3, "broken");
    world.off(["unsubscribe", "--consumer", "broken"]).quiet();
    held(5, "busy");
    world.write("go", "");
    wait_until("the run to end", || world.consumer("busy")["last_acked_id"] == 10);
    held(6, "stalled");
    assert_eq!(world.off(["prune", "--before-id", "100", "--force"]).quiet(), "10\n");
    for consumer in ["late", "errs", "paused", "stalled", "busy"] {
        assert_eq!(world.consumer(consumer)["pending"], 0, "{consumer}");
    }
    world.wait_until_quiet();
}

#[test]
fn dead_letters_stay_unless_forced() {
    let world = World::with_thread();
    let options = ["--deliver", "stdin", "--max-attempts", "1", "--backoff", "10ms", "--batch-size", "1"];
    world.subscribe("bot", "! grep bad", &options);
    for content in ["good", "bad", "good", "bad", "good"] {
        world.push(content);
    }
    wait_until("all to be dealt with", || world.consumer("bot")["last_acked_id"] == 5);
    world.wait_until_quiet();
    let before = world.table_as_jsonl();
    // Dead letters outlive their subscription.
    world.off(["unsubscribe", "--consumer", "bot"]).quiet();
    let note = "Note: 2 events were left out: they are dead letters (see `thread dead list`)\n";
    let (stdout, stderr) = world.off(["prune", "--before-id", "6"]).ends_with(0);
    assert_eq!((stdout.as_str(), stderr.as_str()), ("3\n", note));
    assert_eq!(stored(&world), [2, 4]);
    assert_eq!(ids(&world.thread(["dead", "show", "--consumer", "bot", "--all"]).quiet()), [2, 4]);
    fs::remove_file(world.path("inbox/run/_jsonl")).unwrap();
    push(&world);
    assert_log_keeps(&world, &before);

    world.off(["subscribe", "--consumer", "bot", "--handler", "true", "--deliver", "stdin"]).quiet();
    let notes = |args: &[&str]| world.off(["prune", "--before-id"].iter().chain(args)).ends_with(0).1;
    let one = "Note: 1 event was left out: it is a dead letter (see `thread dead list`)\n";
    assert_eq!(notes(&["4"]), one);
    let dry = notes(&["6", "--force", "--dry-run"]);
    assert!(dry.ends_with("\nNote: 2 of these events are dead letters, and would go too\n"), "{dry}");
    let forced = answer(&world, &["--before-id", "4", "--force"]);
    assert_eq!((&forced["count"], &forced["dead_letters"]), (&json!(1), &json!(1)));
    let letters = world.thread(["dead", "list", "--consumer", "bot"]).quiet();
    assert!(letters.starts_with("4  ") && letters.lines().count() == 1, "{letters}");
    let error = world.off(["dead", "retry", "--consumer", "bot", "--event-id", "2"]).fails(1);
    assert!(error.contains("event 2 is not a dead letter of 'bot'"), "{error}");
    assert_eq!(notes(&["6", "--force"]), "Note: 1 of these events was a dead letter\n");
}

#[test]
fn an_event_pruned_while_its_handler_fails_on_it_leaves_no_dead_letter() {
    let world = World::with_thread();
    let handler = "touch started; while [ ! -e go ]; do sleep 0.01; done; exit 1";
    world.subscribe("bot", handler, &["--deliver", "stdin", "--max-attempts", "1"]);
    world.push("bad");
    world.wait_for_file("started");
    assert_eq!(world.off(["prune", "--before-id", "2", "--force"]).quiet(), "1\n");
    world.write("go", "");
    world.wait_until_quiet();
    assert_eq!(world.thread(["dead", "list", "--consumer", "bot"]).quiet(), "");
    assert_eq!(world.query("SELECT count(*) FROM dead_letters"), 0);
}

#[test]
fn events_pruned_before_a_failure_are_reported() {
    let world = world_with(4);
    // Deleting the first event takes longer than one transaction may, and deleting the second fails.
    world
        .db()
        .execute_batch(
            "CREATE TRIGGER slow BEFORE DELETE ON events WHEN old.id = 1 BEGIN SELECT max(x) FROM \
             (WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 2000000) SELECT x FROM n); END; \
             CREATE TRIGGER never BEFORE DELETE ON events WHEN old.id = 2 BEGIN SELECT RAISE(ABORT, 'it stays'); END",
        )
        .unwrap();
    // What needs no space is freed first, also where the rest fails, as on a full disk.
    world.write("inbox/events-20260101-000000.jsonl", "");
    let error = world.off(["prune", "--before-id", "4", "--sealed-older-than", "1d"]).fails(1);
    let said =
        "it stays; 1 sealed file had been deleted before that; 1 event had been deleted before that - ";
    assert!(error.contains(said), "{error}");
    assert!(!world.path("inbox/events-20260101-000000.jsonl").exists());
    assert_eq!(stored(&world), [2, 3, 4]);
    assert_eq!(world.log().last().unwrap(), "[INFO] prune: count=1 bytes=10");
}

#[test]
fn age_counts_up_to_the_first_event_that_is_younger() {
    let world = world_with(6);
    let age = |ids: &str, text: &str| {
        world
            .db()
            .execute(&format!("UPDATE events SET created_at = {text} WHERE id IN ({ids})"), [])
            .unwrap();
    };
    let old = |age: &str| answer(&world, &["--older-than", age, "--dry-run"])["count"].clone();
    let ago = |hours: i64| format!("strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-{hours} hours')");
    age("1", &ago(60));
    age("2", &ago(50));
    // Stored while the clock was set back: it counts as no older than the events before it.
    age("3", &ago(20));
    age("4", &ago(49));
    age("5", &ago(1));
    assert_eq!(old("3d"), 0);
    assert_eq!(old("2d"), 2);
    assert_eq!(old("19h59m"), 4);
    assert_eq!((old("30m"), old("1800")), (json!(5), json!(5)));
    assert_eq!(old("0ms"), 6);
    // An event with a future timestamp holds up pruning by age, but not by id.
    age("2", "'2999-01-01T00:00:00.000Z'");
    assert_eq!(old("0ms"), 1);
    assert_eq!(answer(&world, &["--before-id", "5"])["count"], 4);
    assert_eq!(world.off(["prune", "--older-than", "30m"]).quiet(), "1\n");
    assert_eq!(stored(&world), [6]);
}

#[test]
fn all_but_the_newest_can_be_deleted() {
    let world = world_with(6);
    let before = world.table_as_jsonl();
    let keep = |number: &str| world.off(["prune", "--keep", number]).quiet();
    assert_eq!((keep("7"), keep("6")), ("0\n".into(), "0\n".into()));
    assert_eq!(keep("4"), "2\n");
    assert_eq!(stored(&world), [3, 4, 5, 6]);
    // Events are counted, so gaps in the ids do not matter.
    world.db().execute("DELETE FROM events WHERE id = 5", []).unwrap();
    assert_eq!(answer(&world, &["--keep", "2", "--dry-run"])["count"], 1);
    assert_eq!(keep("2"), "1\n");
    assert_eq!(stored(&world), [4, 6]);
    assert_eq!(keep("9223372036854775807"), "0\n");
    world.idle_consumer("bot", "id = 4");
    let (stdout, stderr) = world.off(["prune", "--keep", "1"]).ends_with(0);
    assert!(stdout == "0\n" && stderr.starts_with("Warning: stopped before event 4, "), "{stderr}");
    assert_eq!(world.off(["prune", "--keep", "1", "--force"]).quiet(), "1\n");
    assert_eq!(stored(&world), [6]);
    assert_eq!(world.jsonl(), before);
}

/// Ten events of which every second one is a token: 2, 4, 6, 8, 10.
fn world_with_tokens() -> World {
    let world = World::with_thread();
    let other = "{\"source\":\"self\",\"type\":\"record\",\"content\":\"ten bytes.\"}\n";
    let token = other.replace("\"type\"", "\"subtype\":\"it's a token\",\"type\"");
    world.off(["push", "--batch"]).stdin((other.to_owned() + &token).repeat(5)).quiet();
    world
}

#[test]
fn a_subtype_limits_the_pruned_events() {
    let subtype = ["--subtype", "it's a token"];
    for (old, left) in [
        (["--before-id", "7"], &[1, 3, 5, 7, 8, 9, 10][..]),
        (["--older-than", "0s"], &[1, 3, 5, 7, 9]),
        // Keeps the newest of this subtype.
        (["--keep", "2"], &[1, 3, 5, 7, 8, 9, 10]),
        (["--keep", "5"], &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
    ] {
        let world = world_with_tokens();
        let before = world.table_as_jsonl();
        let count = 10 - left.len();
        let prune = [&old[..], &subtype].concat();
        assert_eq!(answer(&world, &[&prune[..], &["--dry-run"]].concat())["count"], count, "{old:?}");
        assert_eq!(answer(&world, &prune)["count"], count, "{old:?}");
        assert_eq!(stored(&world), left, "{old:?}");
        assert_eq!(answer(&world, &prune)["count"], 0, "{old:?}");
        push(&world);
        assert_log_keeps(&world, &before);
    }
    let world = world_with_tokens();
    for none in ["token", "it's a token ", "%", ""] {
        assert_eq!(world.off(["prune", "--before-id", "100", "--subtype", none]).quiet(), "0\n", "{none:?}");
    }
    assert_eq!(stored(&world).len(), 10);
}

#[test]
fn only_dead_letters_of_the_subtype_are_concerned() {
    let world = world_with_tokens();
    let letters = |ids: &[i64]| {
        let sql = "SELECT group_concat(event_id) FROM (SELECT event_id FROM dead_letters ORDER BY event_id)";
        let found: String = world.db().query_row(sql, [], |row| row.get(0)).unwrap();
        assert_eq!(found, ids.iter().map(i64::to_string).collect::<Vec<_>>().join(","));
    };
    for id in [3, 4, 8] {
        let sql = "INSERT INTO dead_letters VALUES ('bot', ?, 1, 1, '', '2026-03-18T10:30:00.123Z', 0)";
        world.db().execute(sql, [id]).unwrap();
    }
    // An event pending for a consumer stops the prune from there on.
    world.idle_consumer("late", "id = 7");
    let prune = ["prune", "--keep", "1", "--subtype", "it's a token"];
    let left_out = "Note: 1 event was left out: it is a dead letter (see `thread dead list`)\n";
    let held = "Warning: stopped before event 7, which is pending for 'late'; `thread seek` it past that or \
                `thread unsubscribe` it if it is done with these, or prune with --force\n";
    assert_eq!(world.off(prune).ends_with(0), ("2\n".into(), format!("{left_out}{held}")));
    assert_eq!(stored(&world), [1, 3, 4, 5, 7, 8, 9, 10]);
    letters(&[3, 4, 8]);
    let forced = [&prune[1..], &["--force"]].concat();
    let done = answer(&world, &forced);
    assert_eq!((&done["count"], &done["dead_letters"]), (&json!(2), &json!(2)));
    assert_eq!(stored(&world), [1, 3, 5, 7, 9, 10]);
    letters(&[3]);
    // Dead letters are kept in addition to the newest ones.
    let (stdout, stderr) = world.off(["prune", "--keep", "2"]).ends_with(0);
    assert_eq!((stdout.as_str(), stderr.starts_with(left_out)), ("2\n", true), "{stderr}");
    assert_eq!(stored(&world), [3, 7, 9, 10]);
}

#[test]
fn usage_errors_delete_nothing() {
    let world = world_with(3);
    let none = "nothing says which events to delete - give one of --before-id, --older-than and --keep, or only \
                --sealed-older-than";
    for (args, says) in [
        (&[][..], none),
        (&["--force", "--compact"], none),
        (&["--subtype", "token"], none),
        (&["--before-id", "3", "--older-than", "1d"], "cannot be used with"),
        (&["--before-id", "3", "--keep", "1"], "cannot be used with"),
        (&["--keep", "1", "--older-than", "1d", "--subtype", "token"], "cannot be used with"),
        (&["--before-id", "0"], "1 or more"),
        (&["--before-id", "-1"], "1 or more"),
        (&["--before-id", "1.5"], "1 or more"),
        (&["--before-id", "9223372036854775808"], "1 or more"),
        (&["--keep", "0"], "1 or more"),
        (&["--keep", "-1"], "1 or more"),
        (&["--keep", "1.5"], "1 or more"),
        (&["--keep", "9223372036854775808"], "1 or more"),
        (&["--keep", ""], ""),
        (&["--older-than", "-1d"], "is not a duration"),
        (&["--older-than", "1y"], "is not a duration"),
        (&["--older-than", ""], ""),
    ] {
        let error = world.off(["prune"].iter().chain(args)).fails(2);
        assert!(error.contains(says), "{args:?}: {error}");
    }
    assert_eq!(stored(&world), [1, 2, 3]);
}

#[test]
fn an_event_that_cannot_be_logged_is_not_pruned() {
    for (odd, why) in [
        ("mkdir inbox/events.jsonl", "it is a directory, not a file of the thread's own"),
        (": >far; ln -s ../far inbox/events.jsonl", "it is a symbolic link, not a file of the thread's own"),
    ] {
        let world = world_with(3);
        let before = world.table_as_jsonl();
        fs::remove_file(world.path("inbox/events.jsonl")).unwrap();
        world.sh(odd).quiet();
        let error = world.off(["prune", "--before-id", "3", "--force"]).fails(1);
        let path = world.path("inbox/events.jsonl");
        assert!(error.starts_with(&format!("Error: cannot open {}: {why} - ", path.display())), "{error}");
        assert_eq!(stored(&world), [1, 2, 3]);
        assert_eq!(world.read("far"), "");
        world.sh("mv inbox/events.jsonl away").quiet();
        assert_eq!(world.off(["prune", "--before-id", "3"]).quiet(), "2\n");
        assert_eq!(world.jsonl(), before);
    }
}

#[test]
fn rows_of_other_programs_get_their_lines_before_they_go() {
    let world = world_with(1);
    let insert = "INSERT INTO events (source, type, content) VALUES ('theirs', 'message', 'a')";
    world.db().execute(insert, []).unwrap();
    let before = world.table_as_jsonl();
    assert_eq!(world.off(["prune", "--before-id", "10"]).quiet(), "2\n");
    assert_eq!(world.jsonl(), before);
}

/// The sealed files of the log.
fn sealed(world: &World) -> Vec<String> {
    let names = names(&world.inbox()).into_iter().filter(|name| name.starts_with("events-"));
    names.map(|name| format!("inbox/{name}")).collect()
}

#[test]
fn the_log_is_sealed_only_if_something_in_it_goes() {
    let world = world_with(6);
    let current = || world.lines("inbox/events.jsonl").len();
    world.idle_consumer("bot", "");
    for nothing in [&["--before-id", "1"][..], &["--older-than", "1h"], &["--keep", "6"]] {
        assert_eq!(answer(&world, nothing)["count"], 0);
    }
    // Nor by a dry run that finds something, nor when a consumer holds everything back.
    assert_eq!(answer(&world, &["--before-id", "4", "--force", "--dry-run"])["count"], 3);
    assert_eq!(answer(&world, &["--before-id", "4"])["stopped_at"], 1);
    assert_eq!((sealed(&world).len(), current()), (0, 6));
    assert_eq!(answer(&world, &["--before-id", "4", "--force"])["count"], 3);
    assert_eq!((sealed(&world).len(), current()), (1, 0));
    // The deleted events' lines are in a sealed file already, so nothing is sealed again.
    push(&world);
    assert_eq!(answer(&world, &["--before-id", "7", "--force"])["count"], 3);
    assert_eq!((sealed(&world).len(), current()), (1, 1));
    assert_eq!(answer(&world, &["--before-id", "8", "--force"])["count"], 1);
    assert_eq!((sealed(&world).len(), current()), (2, 0));
    assert_eq!(ids(&world.jsonl().join("\n")), [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_damaged_log_is_repaired_and_keeps_the_lines_of_pruned_events() {
    let world = world_with(12);
    let before = world.table_as_jsonl();
    world.off(["prune", "--before-id", "10"]).ends_with(0);
    let file = sealed(&world).remove(0);
    let kept = world.read(&file);
    push_many(&world, 5);
    for damage in [
        "truncate -s -5 inbox/events.jsonl",
        "printf '{\"id\":99,' >> inbox/events.jsonl",
        "printf '{\"id\":99,\"created_at\":\"x\"}\\n' >> inbox/events.jsonl",
        "printf '\\0\\0\\0\\0' >> inbox/events.jsonl",
        "head -n 2 inbox/events.jsonl > lines; cat lines >> inbox/events.jsonl",
        "rm inbox/run/_jsonl",
        "touch inbox/events.jsonl",
        "cp inbox/events.jsonl other; mv other inbox/events.jsonl",
        "sed -i '2s/./X/' inbox/events.jsonl",
        "sed -i '2s/.*/\"/' inbox/events.jsonl",
        "sed -i 2d inbox/events.jsonl",
        "rm inbox/events.jsonl",
        "rm inbox/events.jsonl inbox/run/_jsonl",
    ] {
        world.sh(damage).quiet();
        push(&world);
        assert_log_keeps(&world, &before);
        assert_eq!(sealed(&world), [&*file], "{damage}");
        assert!(world.read(&file) == kept, "{damage}");
    }
    let names = names(&world.inbox());
    assert!(
        names.iter().all(|name| name.starts_with("events") || name == "logs" || name == "run"),
        "{names:?}"
    );
}

#[test]
fn a_removed_log_is_rebuilt_from_the_table() {
    let world = world_with(5);
    world.off(["prune", "--before-id", "4"]).quiet();
    world.sh("rm inbox/events*.jsonl inbox/run/_jsonl").quiet();
    push(&world);
    assert_eq!(stored(&world), [4, 5, 6]);
    world.assert_log_is_exact();
}

#[test]
fn sealing_continues_where_everything_was_pruned() {
    let world = world_with(10_001);
    let before = world.table_as_jsonl();
    assert_eq!(world.off(["prune", "--before-id", "100000"]).quiet(), "10001\n");
    push(&world);
    assert_eq!(world.lines("inbox/events.jsonl").len(), 1);
    assert_log_keeps(&world, &before);
    let before = world.jsonl();
    fs::remove_file(world.path("inbox/run/_jsonl")).unwrap();
    world.off(["prune", "--before-id", "100000"]).quiet();
    push(&world);
    assert_log_keeps(&world, &before);
}

#[test]
fn readers_continue_past_pruned_events() {
    let world = world_with(10);
    world.idle_consumer("bot", "");
    world.off(["ack", "--consumer", "bot", "--event-id", "6"]).quiet();
    world.off(["prune", "--before-id", "6"]).quiet();
    assert_eq!(ids(&world.thread(["peek", "--last-event-id", "0"]).quiet()), [6, 7, 8, 9, 10]);
    assert_eq!(ids(&world.thread(["peek", "--tail", "7"]).quiet()), [6, 7, 8, 9, 10]);
    let tail = ["peek", "--tail", "9", "--filter", "id % 2 = 0"];
    assert_eq!(ids(&world.thread(tail).quiet()), [6, 8, 10]);
    let info: Value = serde_json::from_str(&world.thread(["info", "--json"]).quiet()).unwrap();
    assert_eq!((&info["event_count"], &info["subscriptions"][0]["pending"]), (&json!(5), &json!(4)));
    let pop = ["pop", "--consumer", "bot", "--last-event-id", "2"];
    assert_eq!(ids(&world.thread(pop).quiet()), [6, 7, 8, 9, 10]);
    assert_eq!(world.consumer("bot")["last_acked_id"], 2);
    assert_eq!(world.off(["seek", "--consumer", "bot", "--to", "4"]).quiet(), "4\n");
    assert_eq!(world.consumer("bot")["pending"], 5);
}

#[test]
fn a_tail_is_found_across_any_gap() {
    let world = world_with(3);
    world.db().execute("UPDATE sqlite_sequence SET seq = 4000000000000", []).unwrap();
    push(&world);
    let tail = ["peek", "--tail", "2", "--filter", "id > 0"];
    assert_eq!(ids(&world.thread(tail).quiet()), [3, 4_000_000_000_001]);
    world.off(["prune", "--before-id", "3"]).quiet();
    let tail = ["peek", "--tail", "9", "--filter", "id > 0"];
    assert_eq!(ids(&world.thread(tail).quiet()), [3, 4_000_000_000_001]);
}

#[test]
fn a_follower_is_not_affected_by_a_prune() {
    let world = world_with(3);
    let mut child = world.thread(["peek", "--last-event-id", "0", "--follow"]).spawn();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || ids(&lines.next().unwrap().unwrap())[0];
    assert_eq!([next(), next(), next()], [1, 2, 3]);
    assert_eq!(world.off(["prune", "--before-id", "10"]).quiet(), "3\n");
    push(&world);
    assert_eq!(next(), 4);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn an_idempotency_key_goes_with_its_event() {
    let world = World::with_thread();
    let push = ["push", "--source", "s", "--type", "record", "--content", "x", "--idempotency-key", "k"];
    assert_eq!(world.off(push).quiet(), "1\n");
    assert_eq!(world.off(push).quiet(), "1\n");
    world.off(["prune", "--before-id", "2"]).quiet();
    assert_eq!(world.off(push).quiet(), "2\n");
}

#[test]
fn a_consumer_that_subscribes_later_still_gets_the_remaining_events() {
    let world = world_with(6);
    world.idle_consumer("bot", "");
    world.off(["prune", "--before-id", "4", "--force"]).quiet();
    world.idle_consumer("new", "");
    assert_eq!(answer(&world, &["--before-id", "100"])["stopped_at"], 4);
    assert_eq!(ids(&world.thread(["pop", "--consumer", "new", "--resume"]).quiet()), [4, 5, 6]);
}

#[test]
fn space_is_given_back_to_the_file_system() {
    let world = World::with_thread();
    world.write("content", "word ".repeat(40_000));
    for _ in 0..12 {
        world.off(["push", "--source", "s", "--type", "record", "--content-file", "content"]).quiet();
    }
    // Another connection has the database open all the time.
    let reader = world.db();
    let count = || reader.query_row("SELECT count(*) FROM events", [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(count(), 12);
    let (left, before) = (world.table_as_jsonl()[10..].to_vec(), world.table_as_jsonl());
    let done = answer(&world, &["--before-id", "11", "--compact"]);
    assert_eq!((&done["count"], &done["bytes"]), (&json!(10), &json!(2_000_000)));
    let (large, small) = (done["size_before"].as_u64().unwrap(), done["size_after"].as_u64().unwrap());
    assert!(large > 2_400_000 && small < 550_000, "{done}");
    assert_eq!(fs::metadata(world.path("inbox/events.db")).unwrap().len(), small);
    assert_eq!(count(), 2);
    assert_eq!(world.table_as_jsonl(), left);
    assert_eq!(world.query("SELECT seq FROM sqlite_sequence WHERE name = 'events'"), 12);
    assert_sound(&world);
    push(&world);
    assert_log_keeps(&world, &before);
    assert_eq!(stored(&world), [11, 12, 13]);
    let (_, stderr) = world.off(["prune", "--before-id", "1", "--compact"]).ends_with(0);
    let size = fs::metadata(world.path("inbox/events.db")).unwrap().len();
    assert_eq!(stderr, format!("Note: events.db had {size} bytes and has {size} now\n"));
}

#[test]
fn pushers_and_consumers_at_work_lose_nothing_to_it() {
    let world = world_with(30_000);
    let before = world.table_as_jsonl();
    world.idle_consumer("bot", "");
    world.off(["ack", "--consumer", "bot", "--event-id", "29000"]).quiet();
    // Without it, the last process to close the database would remove the WAL.
    let open = world.db();
    open.query_row("SELECT count(*) FROM events", [], |_| Ok(())).unwrap();
    let script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do \
                      thread push --source s --type message --content \"$i\" || exit 1; done";
    let pushers: Vec<_> = (0..3).map(|_| world.sh(script).env("THREAD_NOTIFIER", "off").spawn()).collect();
    let done = answer(&world, &["--before-id", "100000"]);
    assert_eq!((&done["count"], &done["stopped_at"]), (&json!(29_000), &json!(29_001)));
    let mut acknowledged = Vec::new();
    for pusher in pushers {
        let output = pusher.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        acknowledged.extend(text.lines().map(|id| id.parse::<i64>().unwrap()));
    }
    acknowledged.sort_unstable();
    assert_eq!(acknowledged, (30_001..=30_036).collect::<Vec<_>>());
    assert_eq!(stored(&world), (29_001..=30_036).collect::<Vec<_>>());
    push(&world);
    assert_log_keeps(&world, &before);
    let wal = fs::metadata(world.path("inbox/events.db-wal")).unwrap().len();
    assert!(wal < 8 * 1024 * 1024, "the WAL has {wal} bytes");
}

#[test]
fn a_cursor_moved_back_during_a_prune_keeps_its_events() {
    // A prune may end before the test can act, so try several times.
    assert!((0..20).any(|_| is_kept_from_going_on()), "no prune could be met at work");
}

/// Moves a cursor back during a prune. Returns false if the prune had already finished.
fn is_kept_from_going_on() -> bool {
    let world = world_with(50_000);
    world.idle_consumer("bot", "");
    world.off(["ack", "--consumer", "bot", "--event-id", "50000"]).quiet();
    let prune = world.off(["prune", "--before-id", "50001", "--json"]).spawn();
    wait_until("the first to go", || world.query("SELECT coalesce(min(id), 2) FROM events") > 1);
    // Read in the same transaction, to know what was there at that moment.
    let conn = world.db();
    conn.execute_batch("BEGIN IMMEDIATE; UPDATE consumer_progress SET last_acked_id = 0").unwrap();
    let oldest: Option<i64> = conn.query_row("SELECT min(id) FROM events", [], |row| row.get(0)).unwrap();
    conn.execute_batch("COMMIT").unwrap();
    let output = prune.wait_with_output().unwrap();
    let Some(oldest) = oldest else { return false };
    let done: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&done["stopped_at"], &done["count"]), (&json!(oldest), &json!(oldest - 1)));
    assert_eq!(world.query("SELECT min(id) FROM events"), oldest);
    true
}

#[test]
fn a_prune_killed_at_any_moment_leaves_the_thread_whole_and_the_next_one_continues() {
    let world = world_with(40_000);
    let before = world.table_as_jsonl();
    world.idle_consumer("bot", "");
    world.off(["ack", "--consumer", "bot", "--event-id", "39900"]).quiet();
    let mut dice = Dice::new();
    for round in 0..10 {
        let mut prune = world.off(["prune", "--before-id", "100000", "--compact"]).spawn();
        std::thread::sleep(Duration::from_micros(dice.up_to(120_000)));
        prune.kill().unwrap();
        prune.wait().unwrap();
        assert_sound(&world);
        let left = stored(&world);
        assert!(left.len() >= 100 && left.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{dice:?} {round}");
        assert_eq!(left.last(), Some(&(40_000 + round)), "{dice:?}");
        push(&world);
    }
    let done = answer(&world, &["--before-id", "100000", "--compact"]);
    assert_eq!(done["stopped_at"], 39_901, "{dice:?}");
    assert_eq!(stored(&world), (39_901..=40_010).collect::<Vec<_>>());
    assert_eq!(world.consumer("bot")["pending"], 110);
    assert_log_keeps(&world, &before);
    assert_sound(&world);
}
