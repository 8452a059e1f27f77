//! Event metadata: data about an event besides its content.

use serde_json::{Value, json};
use thread_testkit::{Run, World, ids};

fn push(world: &World, options: &[&str]) -> Run {
    world.thread(["push", "--source", "self", "--type", "record", "--content", "x"].iter().chain(options))
}

/// The metadata of the newest event, as stored.
fn stored(world: &World) -> Option<String> {
    world
        .db()
        .query_row("SELECT metadata FROM events ORDER BY id DESC LIMIT 1", [], |row| row.get(0))
        .unwrap()
}

#[test]
fn meta_makes_an_object_of_strings() {
    let world = World::with_thread();
    for (options, object) in [
        (&["--meta", "run_id=17"][..], json!({"run_id": "17"})),
        (&["--meta", "a=1", "--meta", "b=2", "--meta", "c=3"], json!({"a": "1", "b": "2", "c": "3"})),
        (&["--meta", "empty="], json!({"empty": ""})),
        (&["--meta", "eq=a=b=c"], json!({"eq": "a=b=c"})),
        (&["--meta", "quote=\"\\\n"], json!({"quote": "\"\\\n"})),
        (&["--meta", "ключ=ценность"], json!({"ключ": "ценность"})),
        (&["--meta=-x=-y"], json!({"-x": "-y"})),
    ] {
        push(&world, options).quiet();
        let text = stored(&world).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), object);
        assert!(!text.contains(": ") && !text.contains('\n'), "{text}");
    }
    world.assert_log_is_exact();
}

#[test]
fn meta_takes_one_value_and_leaves_the_text() {
    let world = World::with_thread();
    world.thread(["push", "--meta", "a=b", "text"]).quiet();
    assert_eq!(stored(&world).as_deref(), Some(r#"{"a":"b"}"#));
    world.thread(["push", "--meta", "a=b", "c=d", "text"]).fails(2);
}

#[test]
fn meta_that_is_no_key_and_value_is_exit_2_and_stores_nothing() {
    let world = World::with_thread();
    for options in [
        &["--meta", "novalue"][..],
        &["--meta", "=value"],
        &["--meta", ""],
        &["--meta", "a=1", "--meta", "a=1"],
        &["--meta"],
        &["--meta", "a=1", "--metadata", "{}"],
    ] {
        push(&world, options).fails(2);
    }
    assert_eq!(world.query("SELECT count(*) FROM events"), 0);
}

#[test]
fn metadata_is_a_json_object_kept_as_it_was_written() {
    let world = World::with_thread();
    for (given, kept) in [
        ("{}", "{}"),
        // Beyond the range of floating-point numbers, but valid JSON.
        ("{\"n\": 1e999, \"m\": -1E+400}", "{\"n\":1e999,\"m\":-1E+400}"),
        (
            "{ \"n\" : 1.50 , \"big\":12345678901234567890123 }",
            "{\"n\":1.50,\"big\":12345678901234567890123}",
        ),
        ("\n{\"a\":\n[1, 2, {\"b\": null}]}\n", "{\"a\":[1,2,{\"b\":null}]}"),
        ("{\"s\":\" two  blanks, a \\\" and \\\\\"}", "{\"s\":\" two  blanks, a \\\" and \\\\\"}"),
    ] {
        push(&world, &["--metadata", given]).quiet();
        assert_eq!(stored(&world).as_deref(), Some(kept));
    }
    let printed = world.thread(["peek", "--last-event-id", "0"]).quiet();
    assert_eq!(printed.lines().collect::<Vec<_>>(), world.jsonl());
    world.assert_log_is_exact();
}

#[test]
fn metadata_that_is_no_object_is_exit_2_and_stores_nothing() {
    let world = World::with_thread();
    for bad in ["", "1", "[]", "null", "\"text\"", "{", "{}{}", "{a:1}", "{'a':1}", "{\"a\":1,}"] {
        let error = push(&world, &["--metadata", bad]).fails(2);
        assert!(error.contains("not a JSON object") && error.ends_with("nothing was stored"), "{error}");
    }
    for bad in ["1", "[]", "\"{}\"", "true"] {
        let batch =
            format!("{{\"source\":\"s\",\"type\":\"record\",\"content\":\"x\",\"metadata\":{bad}}}\n");
        let error = world.thread(["push", "--batch"]).stdin(batch).fails(2);
        assert!(error.contains("line 1") && error.contains("not a JSON object"), "{error}");
    }
    assert_eq!(world.query("SELECT count(*) FROM events"), 0);
}

#[test]
fn metadata_is_printed_after_the_content_and_only_if_there_is_any() {
    let world = World::with_thread();
    push(&world, &[]).quiet();
    push(&world, &["--meta", "a=b"]).quiet();
    let printed = world.thread(["peek", "--last-event-id", "0"]).quiet();
    let lines: Vec<&str> = printed.lines().collect();
    assert!(lines[0].ends_with("\"subtype\":null,\"content\":\"x\"}"), "{}", lines[0]);
    assert!(lines[1].ends_with("\"content\":\"x\",\"metadata\":{\"a\":\"b\"}}"), "{}", lines[1]);
    assert_eq!(lines, world.jsonl());
    let json = push(&world, &["--meta", "a=b", "--json"]).quiet();
    assert!(json.contains("\"content\":\"x\",\"metadata\":{\"a\":\"b\"},\"dispatch\":"), "{json}");
}

#[test]
fn batch_lines_may_have_metadata() {
    let world = World::with_thread();
    let line = |metadata: &str| {
        format!("{{\"source\":\"s\",\"type\":\"record\",\"metadata\":{metadata},\"content\":\"x\"}}\n")
    };
    let batch = [line("{\"run_id\": \"a\"}"), line("null"), line("{}")].concat();
    assert_eq!(world.thread(["push", "--batch"]).stdin(batch).quiet(), "3\n");
    let all: Vec<Option<String>> = world
        .db()
        .prepare("SELECT metadata FROM events ORDER BY id")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(all, [Some("{\"run_id\":\"a\"}".to_owned()), None, Some("{}".to_owned())]);
    world.assert_log_is_exact();
}

#[test]
fn filters_can_use_metadata() {
    let world = World::with_thread();
    push(&world, &[]).quiet();
    push(&world, &["--meta", "run_id=run_17", "--meta", "stage=plan"]).quiet();
    push(&world, &["--metadata", "{\"run_id\":\"run_18\",\"latency_ms\":250}"]).quiet();
    let peek =
        |filter: &str| ids(&world.thread(["peek", "--last-event-id", "0", "--filter", filter]).quiet());
    assert_eq!(peek("metadata ->> 'run_id' = 'run_17'"), [2]);
    assert_eq!(peek("metadata ->> 'latency_ms' > 100"), [3]);
    assert_eq!(peek("metadata IS NULL"), [1]);
    world.idle_consumer("bot", "metadata ->> 'stage' = 'plan'");
    assert_eq!(ids(&world.thread(["pop", "--consumer", "bot", "--resume"]).quiet()), [2]);
}

#[test]
fn a_handler_gets_metadata_on_stdin() {
    let world = World::with_thread();
    world.thread(["subscribe", "--consumer", "bot", "--deliver", "stdin", "--handler", "cat >got"]).quiet();
    push(&world, &["--meta", "reply_to=7"]).quiet();
    world.wait_until_quiet();
    assert_eq!(world.lines("got"), world.jsonl());
    assert!(world.read("got").contains("\"metadata\":{\"reply_to\":\"7\"}"));
}

#[test]
fn metadata_survives_peek_into_push() {
    let world = World::with_thread();
    world.thread(["init", "other"]).quiet();
    push(&world, &["--metadata", "{\"n\":1.0,\"s\":\"é\\n\",\"o\":{}}"]).quiet();
    push(&world, &[]).quiet();
    let printed = world.thread(["peek", "--last-event-id", "0"]).quiet();
    world.thread(["push", "--batch", "--thread", "other"]).stdin(printed.clone()).quiet();
    let copied = world.thread(["peek", "--last-event-id", "0", "--thread", "other"]).quiet();
    let without_times = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split_once("\"source\"").unwrap().1.to_owned()).collect()
    };
    assert_eq!(without_times(&copied), without_times(&printed));
}

#[test]
fn what_other_programs_stored_there_breaks_no_line() {
    let world = World::with_thread();
    let conn = world.db();
    let insert = |metadata: &dyn rusqlite::ToSql| {
        let sql = "INSERT INTO events (source, type, content, metadata) VALUES ('self', 'record', 'x', ?)";
        conn.execute(sql, [metadata]).unwrap();
    };
    insert(&"{\n  \"pretty\": [1,\n 2]\n}");
    insert(&"not JSON\n");
    insert(&"[1, 2]");
    insert(&"");
    insert(&7);
    insert(&b"\xff{}".as_slice());
    insert(&"{\"half\":");
    push(&world, &["--meta", "a=b"]).quiet();
    let printed = world.thread(["peek", "--last-event-id", "0"]).quiet();
    let metadata: Vec<Value> = printed
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap().get("metadata").cloned().unwrap_or_default())
        .collect();
    assert_eq!(
        metadata,
        [
            json!({"pretty": [1, 2]}),
            json!("not JSON\n"),
            json!("[1, 2]"),
            json!(""),
            json!("7"),
            json!("\u{fffd}{}"),
            json!("{\"half\":"),
            json!({"a": "b"}),
        ]
    );
    assert_eq!(printed.lines().collect::<Vec<_>>(), world.jsonl());
    // An event on which the filter fails does not match; the other events are not affected.
    let filter = ["peek", "--last-event-id", "0", "--filter", "metadata ->> 'a' = 'b'"];
    assert_eq!(ids(&world.thread(filter).quiet()), [8]);
}
