//! Idempotency keys: repeating a push stores nothing twice.

use std::fs;

use rusqlite::Connection;
use serde_json::Value;
use thread_testkit::{Run, World, ids, take_all};

fn push(world: &World, key: &str, content: &str) -> Run {
    let run = world.thread(["push", "--source", "self", "--type", "record", "--content", content]);
    run.arg("--idempotency-key").arg(key)
}

fn count(world: &World) -> i64 {
    world.query("SELECT count(*) FROM events")
}

fn line(key: &str, content: &str) -> String {
    format!(
        "{{\"source\":\"self\",\"type\":\"record\",\"content\":\"{content}\",\"idempotency_key\":\"{key}\"}}\n"
    )
}

#[test]
fn the_second_push_prints_the_first_id_and_stores_nothing() {
    let world = World::with_thread();
    world.push("before");
    assert_eq!(push(&world, "k", "x").quiet(), "2\n");
    world.push("between");
    assert_eq!(push(&world, "k", "x").quiet(), "2\n");
    assert_eq!(push(&world, "another", "x").quiet(), "4\n");
    assert_eq!(push(&world, "K", "x").quiet(), "5\n", "case counts");
    assert_eq!(count(&world), 5);
    world.assert_log_is_exact();
    assert!(world.log().iter().any(|line| line.ends_with("id=2 repeated")), "{:?}", world.log());
}

#[test]
fn json_of_a_repeated_push_is_the_event_as_it_was_stored() {
    let world = World::with_thread();
    let json = || push(&world, "k", "x").arg("--meta").arg("a=b").arg("--json").quiet();
    let (first, second) = (json(), json());
    assert_eq!(second.replace(",\"repeated\":true", ""), first);
    assert_ne!(second, first);
    let event: Value = serde_json::from_str(&first).unwrap();
    assert_eq!((&event["id"], &event["metadata"]["a"]), (&1.into(), &"b".into()));
    assert!(event.get("idempotency_key").is_none());
}

#[test]
fn a_different_event_under_the_key_is_exit_1_and_stores_nothing() {
    let world = World::with_thread();
    let base =
        ["push", "--source", "self", "--type", "record", "--subtype", "s", "--content", "c", "--meta", "a=b"];
    let with = |at: usize, value: &str| {
        let mut args = base.map(str::to_owned);
        args[at] = value.to_owned();
        world.thread(args).arg("--idempotency-key").arg("k")
    };
    assert_eq!(with(0, "push").quiet(), "1\n");
    for (at, value) in [(2, "other"), (4, "message"), (6, "t"), (8, "d"), (8, ""), (10, "a=c"), (10, "b=b")] {
        assert_eq!(
            with(at, value).fails(1),
            "Error: the idempotency key 'k' belongs to event 1, which is different - \
             use a new key for a new event; nothing was stored"
        );
    }
    push(&world, "k", "c").fails(1);
    assert_eq!(count(&world), 1);
    assert_eq!(with(0, "push").quiet(), "1\n");
}

#[test]
fn metadata_is_compared_as_it_was_written_but_for_white_space() {
    let world = World::with_thread();
    for metadata in [
        "{\"a\":1,\"b\":{\"c\":10000000000000000000001}}",
        "{ \"a\":1, \"b\": {\"c\":10000000000000000000001} }",
    ] {
        assert_eq!(push(&world, "k", "x").arg("--metadata").arg(metadata).quiet(), "1\n");
    }
    push(&world, "k", "x").arg("--metadata").arg("{\"a\":1,\"b\":{\"c\":10000000000000000000002}}").fails(1);
    push(&world, "k", "x")
        .arg("--metadata")
        .arg("{\"a\":0,\"a\":1,\"b\":{\"c\":10000000000000000000001}}")
        .fails(1);
    push(&world, "k", "x").arg("--metadata").arg("{}").fails(1);
}

#[test]
fn of_ten_pushes_at_once_one_stores() {
    let world = World::with_thread();
    for round in 1..=3 {
        let key = format!("round {round}");
        let children: Vec<_> = (0..10).map(|_| push(&world, &key, "x").spawn()).collect();
        for child in children {
            let output = child.wait_with_output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{round}\n"));
            assert!(output.status.success() && output.stderr.is_empty());
        }
    }
    assert_eq!(count(&world), 3);
    world.assert_log_is_exact();
}

#[test]
fn a_repeated_push_repairs_the_log_and_wakes_consumers() {
    let world = World::with_thread();
    take_all(&world, "bot");
    push(&world, "k", "x").env("THREAD_NOTIFIER", "off").quiet();
    fs::remove_file(world.inbox().join("events.jsonl")).unwrap();
    assert!(world.lines("seen.bot").is_empty());
    let answer = push(&world, "k", "x").arg("--json").quiet();
    assert!(answer.contains("\"dispatch\":\"embedded\""), "{answer}");
    world.wait_until_quiet();
    world.assert_log_is_exact();
    assert_eq!(world.jsonl().len(), 1);
    assert_eq!(world.lines("seen.bot"), ["1"]);
}

#[test]
fn a_batch_counts_what_it_stored() {
    let world = World::with_thread();
    let batch = |lines: &[String]| world.thread(["push", "--batch", "--json"]).stdin(lines.concat()).quiet();
    let plain = "{\"source\":\"self\",\"type\":\"record\",\"content\":\"x\"}\n".to_owned();
    let answer = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let three = [line("a", "x"), plain.clone(), line("b", "x")];
    assert_eq!(answer(&batch(&three)), serde_json::json!({"count": 3, "first_id": 1, "last_id": 3}));
    assert_eq!(answer(&batch(&three)), serde_json::json!({"count": 1, "first_id": 4, "last_id": 4}));
    let known = [line("a", "x"), line("b", "x")];
    assert_eq!(answer(&batch(&known)), serde_json::json!({"count": 0, "first_id": null, "last_id": null}));
    let twice = [line("c", "x"), line("c", "x")];
    assert_eq!(answer(&batch(&twice)), serde_json::json!({"count": 1, "first_id": 5, "last_id": 5}));
    assert_eq!(world.thread(["push", "--batch"]).stdin(known.concat()).quiet(), "0\n");
    assert_eq!(count(&world), 5);
    world.assert_log_is_exact();
}

#[test]
fn a_conflict_in_a_batch_stores_nothing() {
    let world = World::with_thread();
    push(&world, "k", "x").quiet();
    for lines in [[line("new", "x"), line("k", "other")], [line("n", "x"), line("n", "y")]] {
        let error = world.thread(["push", "--batch"]).stdin(lines.concat()).fails(1);
        assert!(error.contains("idempotency key") && error.ends_with("nothing was stored"), "{error}");
    }
    assert_eq!(count(&world), 1);
    assert_eq!(push(&world, "new", "y").quiet(), "2\n", "its key is free");
    // Neither of the two events is stored.
    let twice = line("twice", "one") + &line("twice", "two");
    let error = world.thread(["push", "--batch"]).stdin(twice).fails(1);
    assert!(error.contains("two different events of the batch have the idempotency key 'twice'"), "{error}");
    assert_eq!(count(&world), 2);
}

#[test]
fn a_repeated_batch_repairs_the_log() {
    let world = World::with_thread();
    let batch = || world.thread(["push", "--batch"]).stdin(line("a", "x") + &line("b", "x")).quiet();
    batch();
    world.write("inbox/events.jsonl", "");
    assert_eq!(batch(), "0\n");
    world.assert_log_is_exact();
}

#[test]
fn keys_are_some_text_of_at_most_1024_bytes() {
    let world = World::with_thread();
    let longest = "é".repeat(512);
    assert_eq!(push(&world, &longest, "x").quiet(), "1\n");
    assert_eq!(push(&world, &longest, "x").quiet(), "1\n");
    for (key, says) in [(format!("{longest}a"), "longer than 1024 bytes"), (String::new(), "empty")] {
        let error = push(&world, &key, "x").fails(2);
        assert!(error.contains(says) && error.ends_with("nothing was stored"), "{error}");
        let error = world.thread(["push", "--batch"]).stdin(line(&key, "x")).fails(2);
        assert!(error.contains("line 1") && error.contains(says), "{error}");
    }
    let number = "{\"source\":\"self\",\"type\":\"record\",\"content\":\"x\",\"idempotency_key\":7}\n";
    world.thread(["push", "--batch"]).stdin(number).fails(2);
    assert_eq!(push(&world, "-k 'x' {}", "x").quiet(), "2\n");
    assert_eq!(count(&world), 2);
}

#[test]
fn a_key_lasts_as_long_as_its_event() {
    let world = World::with_thread();
    push(&world, "k", "x").quiet();
    world.db().execute("DELETE FROM events", []).unwrap();
    assert_eq!(push(&world, "k", "something else").quiet(), "2\n");
}

#[test]
fn what_peek_prints_can_be_pushed_again_without_keys() {
    let world = World::with_thread();
    push(&world, "k", "x").quiet();
    let printed = world.thread(["peek", "--last-event-id", "0"]).quiet();
    assert_eq!(world.thread(["push", "--batch"]).stdin(printed).quiet(), "1\n");
    assert_eq!(ids(&world.thread(["peek", "--last-event-id", "0"]).quiet()), [1, 2]);
}

#[test]
fn an_older_directory_learns_of_keys_and_metadata() {
    let world = World::with_thread();
    world.push("old");
    // A directory as left by a program without keys and metadata.
    let conn = world.db();
    conn.execute_batch(
        "DROP INDEX idx_events_idempotency_key; ALTER TABLE events DROP COLUMN idempotency_key; \
         ALTER TABLE events DROP COLUMN metadata",
    )
    .unwrap();
    drop(conn);
    assert_eq!(push(&world, "k", "x").arg("--meta").arg("a=b").quiet(), "2\n");
    assert_eq!(push(&world, "k", "x").arg("--meta").arg("a=b").quiet(), "2\n");
    // Such a program can still insert.
    let sql = "INSERT INTO events (source, type, subtype, content) VALUES ('self', 'record', NULL, 'x')";
    for _ in 0..2 {
        Connection::open(world.inbox().join("events.db")).unwrap().execute(sql, []).unwrap();
    }
    assert_eq!(ids(&world.thread(["peek", "--last-event-id", "0"]).quiet()), [1, 2, 3, 4]);
    assert_eq!(world.query("PRAGMA user_version"), 0);
    world.push("x");
    world.assert_log_is_exact();
}
