use std::fs;
use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};
use thread_testkit::{World, ids, names, wait_until};

const GOOD: &str = r#"{"source":"self","type":"record","content":"good"}"#;

fn count(world: &World) -> i64 {
    world.query("SELECT count(*) FROM events")
}

fn contents(world: &World) -> Vec<String> {
    let conn = world.db();
    let mut statement = conn.prepare("SELECT content FROM events ORDER BY id").unwrap();
    let rows = statement.query_map([], |row| row.get(0)).unwrap();
    rows.map(Result::unwrap).collect()
}

#[test]
fn batch_stores_all_lines_and_prints_their_number() {
    let world = World::with_thread();
    let lines = concat!(
        r#"{"source":"internal:dm:default:warden","type":"message","content":"one"}"#,
        "\n",
        r#"{"content":"two","created_at":{"deep":[1]},"subtype":"decision","type":"record","source":"self","id":99}"#,
        "\n",
        r#"{"source":"self","type":"record","subtype":null,"content":"thr\u00e9e\n\u0000"}"#,
        "\n",
    );
    assert_eq!(world.thread(["push", "--batch"]).stdin(lines).quiet(), "3\n");
    let printed = world.thread(["peek", "--last-event-id", "0"]).quiet();
    let parts: Vec<Value> = printed
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|e| json!([e["id"], e["source"], e["type"], e["subtype"], e["content"]]))
        .collect();
    assert_eq!(
        parts,
        [
            json!([1, "internal:dm:default:warden", "message", null, "one"]),
            json!([2, "self", "record", "decision", "two"]),
            json!([3, "self", "record", null, "thrée\n\0"]),
        ]
    );
    assert_eq!(world.log()[0], "[INFO] push batch: count=3 last_id=3");
    world.assert_log_is_exact();
}

#[test]
fn batch_answers_in_json_when_asked() {
    let world = World::with_thread();
    world.push("before");
    let run = world.thread(["push", "--batch", "--json"]).stdin(format!("{GOOD}\n{GOOD}\n"));
    assert_eq!(run.quiet(), "{\"count\":2,\"first_id\":2,\"last_id\":3}\n");
    let run = world.thread(["push", "--batch", "--json"]);
    assert_eq!(run.quiet(), "{\"count\":0,\"first_id\":null,\"last_id\":null}\n");
}

#[test]
fn a_bad_line_stores_nothing_wakes_nobody_and_is_named() {
    let world = World::with_thread();
    let notifier = world.script("asked", "touch was-asked");
    let bad: &[&[u8]] = &[
        b"not json",
        b"{",
        b"{\"source\":\"self\",\"type\":\"record\",\"content\":\"cut",
        b"{\"source\":\"self\",\"type\":\"record\",\"content\":\"x\"} {}",
        b"{\"source\":\"self\",\"type\":\"record\",\"content\":\"x\",}",
        b"[\"self\",\"record\",null,\"x\"]",
        b"\"text\"",
        b"42",
        b"null",
        b"true",
        b"{}",
        b"{\"source\":\"self\",\"type\":\"record\"}",
        b"{\"source\":\"self\",\"type\":\"record\",\"content\":null}",
        b"{\"source\":7,\"type\":\"record\",\"content\":\"x\"}",
        b"{\"source\":\"self\",\"type\":[\"record\"],\"content\":\"x\"}",
        b"{\"source\":\"self\",\"type\":\"record\",\"subtype\":1,\"content\":\"x\"}",
        b"{\"source\":\"\",\"type\":\"record\",\"content\":\"x\"}",
        b"{\"source\":\"a\\nb\",\"type\":\"record\",\"content\":\"x\"}",
        b"{\"source\":\"self\",\"type\":\"other\",\"content\":\"x\"}",
        b"{\"source\":\"self\",\"type\":\"record\",\"content\":\"x\",\"content\":\"y\"}",
        b"{\"source\":\"self\",\"type\":\"record\",\"content\":\"\\ud800\"}",
        b"{\"source\":\"self\",\"type\":\"record\",\"content\":\"\xff\"}",
        b"{\"source\":\"self\",\"type\":\"record\",\"content\":\"raw\x01control\"}",
        b"{\"source\":\"self\",\"type\":\"record\",\"content\":[1,]}",
        b"\xef\xbb\xbf{\"source\":\"self\",\"type\":\"record\",\"content\":\"a mark in the middle\"}",
        b"\x00",
    ];
    for line in bad {
        // After a good line, a blank one and another good one, and before a good one.
        let mut batch = format!("{GOOD}\n\n{GOOD}\n").into_bytes();
        batch.extend_from_slice(line);
        batch.extend_from_slice(format!("\n{GOOD}\n").as_bytes());
        let run = world.thread(["push", "--batch"]).env("THREAD_NOTIFIER", &notifier).stdin(batch);
        let error = run.fails(2);
        let shown = String::from_utf8_lossy(line);
        assert!(error.contains("line 4 of the batch "), "{shown}: {error}");
        assert!(error.contains("nothing was stored"), "{shown}: {error}");
        assert!(!error.chars().any(char::is_control), "{shown}: {error:?}");
    }
    assert_eq!(count(&world), 0);
    assert_eq!(world.query("SELECT count(*) FROM sqlite_sequence"), 0, "not even an id was used up");
    assert_eq!(world.read("inbox/events.jsonl"), "");
    assert!(!world.path("was-asked").exists());
    // The same notifier is called when events are stored.
    let run = world.thread(["push", "--batch"]).env("THREAD_NOTIFIER", &notifier).stdin(GOOD);
    assert_eq!(run.quiet(), "1\n");
    assert!(world.path("was-asked").exists());
}

#[test]
fn a_bad_line_is_reported_in_json_when_asked() {
    let world = World::with_thread();
    let (stdout, stderr) = world.thread(["push", "--batch", "--json"]).stdin("nope\n").ends_with(2);
    assert_eq!(stdout, "");
    let error: Value = serde_json::from_str(&stderr).unwrap();
    assert!(error["error"].as_str().unwrap().starts_with("line 1 of the batch "), "{error}");
}

#[test]
fn blank_lines_crlf_a_byte_order_mark_and_a_missing_last_newline_are_fine() {
    let world = World::with_thread();
    let batch = format!("\u{feff}{GOOD}\r\n\r\n\n   \t\n  {GOOD}  \r\n{GOOD}");
    assert_eq!(world.thread(["push", "--batch"]).stdin(batch).quiet(), "3\n");
    assert_eq!(contents(&world), ["good"; 3]);
    // Skipped lines count towards the line number in the message.
    let error = world.thread(["push", "--batch"]).stdin("\n\r\n \nbad").fails(2);
    assert!(error.contains("line 4 of the batch"), "{error}");
}

#[test]
fn content_that_is_not_text_is_kept_as_its_json() {
    let world = World::with_thread();
    let values = [
        r#"{"b": 1,  "a":[true, null] }"#,
        "[1, 2.50, \"x\"]",
        "12345678901234567890123456789.000",
        "-0",
        "1e400",
        "true",
        "false",
        "{}",
        r#"{"twice":1,"twice":2}"#,
    ];
    let batch: String = values
        .iter()
        .map(|value| format!("{{\"source\":\"self\",\"type\":\"record\",\"content\": {value} }}\n"))
        .collect();
    assert_eq!(world.thread(["push", "--batch"]).stdin(batch).quiet(), "9\n");
    assert_eq!(contents(&world), values);
}

#[test]
fn deep_json_neither_crashes_nor_is_cut() {
    let world = World::with_thread();
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    let batch = format!(
        "{{\"source\":\"self\",\"type\":\"record\",\"content\":{deep}}}\n\
         {{\"source\":\"self\",\"type\":\"record\",\"content\":\"x\",\"id\":{deep}}}\n"
    );
    assert_eq!(world.thread(["push", "--batch"]).stdin(batch).quiet(), "2\n");
    assert!(contents(&world) == [deep, "x".to_owned()], "the content came out differently");
    let torn = "{\"source\":".repeat(200_000);
    world.thread(["push", "--batch"]).stdin(torn).fails(2);
    world.assert_log_is_exact();
}

#[test]
fn lines_have_the_defaults_of_a_single_push() {
    let world = World::with_thread();
    let lines = "{\"content\":\"a\"}\n{\"content\":\"b\",\"source\":null,\"type\":null}\n";
    world.thread(["push", "--batch"]).stdin(lines).quiet();
    world.thread(["push", "c"]).quiet();
    world.thread(["push", "--batch"]).env("THREAD_CONSUMER", "bot").stdin("{\"content\":\"d\"}").quiet();
    let options = ["push", "--batch", "--source", "ci", "--type", "record", "--subtype", "build"];
    world.thread(options).stdin("{\"content\":\"e\"}\n{\"content\":\"f\",\"type\":\"message\"}").quiet();
    let printed = world.thread(["peek", "--last-event-id", "0"]).quiet();
    let parts: Vec<Value> = printed
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|e| json!([e["source"], e["type"], e["subtype"]]))
        .collect();
    let user = parts[2][0].clone();
    assert!(user.as_str().unwrap().starts_with("internal:dm:default:"), "{user}");
    assert_eq!(
        parts,
        [
            json!([user, "message", null]),
            json!([user, "message", null]),
            json!([user, "message", null]),
            json!(["self", "message", null]),
            json!(["ci", "record", "build"]),
            json!(["ci", "message", "build"]),
        ]
    );
}

#[test]
fn a_misspelt_key_is_refused_with_a_suggestion() {
    let world = World::with_thread();
    for (key, meant) in [
        ("idempotencykey", "idempotency_key"),
        ("idempotency-key", "idempotency_key"),
        ("idempotencyKey", "idempotency_key"),
        ("idempotncy_key", "idempotency_key"),
        ("meta", "metadata"),
        ("Metadata", "metadata"),
        ("sub_type", "subtype"),
        ("subtpye", "subtype"),
        ("sorce", "source"),
        ("tpye", "type"),
        ("contents", "content"),
    ] {
        let content = if meant == "content" { "" } else { ",\"content\":\"x\"" };
        let line = format!("{{\"id\":1,\"{key}\":\"x\"{content}}}\n");
        assert_eq!(
            world.thread(["push", "--batch"]).stdin(line).fails(2),
            format!(
                "Error: line 1 of the batch has the key '{key}', did you mean '{meant}'? - fix that line and push the \
                 whole batch again; nothing was stored"
            )
        );
    }
    // An unknown key that is merely similar to one that is present.
    let line = "{\"content\":\"x\",\"context\":1}\n{\"content\":\"y\",\"context\":2,\"run\":3}";
    assert_eq!(
        world.thread(["push", "--batch"]).stdin(line).warns(),
        "Warning: the key 'context' on line 1 means nothing here and was not stored\n"
    );
    assert_eq!(count(&world), 2);
}

#[test]
fn empty_input_does_nothing() {
    let world = World::with_thread();
    let notifier = world.script("asked", "touch was-asked");
    for nothing in ["", "\n", "\r\n  \n\n", "\u{feff}"] {
        let run = world.thread(["push", "--batch"]).env("THREAD_NOTIFIER", &notifier).stdin(nothing);
        assert_eq!(run.quiet(), "0\n");
    }
    assert_eq!(count(&world), 0);
    assert!(!world.path("was-asked").exists());
    assert_eq!(world.log(), [""; 0]);
}

#[test]
fn input_that_cannot_be_read_is_exit_1() {
    let world = World::with_thread();
    let error = world.sh("exec thread push --batch <inbox").fails(1);
    assert!(error.contains("cannot read the batch") && error.contains("nothing was stored"), "{error}");
    assert_eq!(count(&world), 0);
}

#[test]
fn what_peek_prints_can_be_pushed_as_a_batch() {
    let world = World::with_thread();
    for content in ["plain", "{\"json\":[1]}", "line\nline\n", "\u{1}\u{7f}é🦀\"\\", ""] {
        world
            .thread(["push", "--source", "internal:dm:default:x", "--type", "message", "--subtype", "s"])
            .arg("--content")
            .arg(content)
            .quiet();
    }
    world.push("no subtype");
    world.thread(["init", "copy"]).quiet();
    assert_eq!(world.sh("thread peek --last-event-id 0 | thread push --batch --thread copy").quiet(), "6\n");
    let without_time = |dir: &str| -> Vec<Value> {
        let run = world.thread(["peek", "--last-event-id", "0", "--thread", dir]).quiet();
        let events = run.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        events.map(|e| json!([e["id"], e["source"], e["type"], e["subtype"], e["content"]])).collect()
    };
    assert_eq!(without_time("copy"), without_time("inbox"));
    assert_eq!(without_time("copy").len(), 6);
}

#[test]
fn the_options_of_a_single_push_are_ignored() {
    let world = World::with_thread();
    let run = world.thread(["push", "--batch", "--source", "\n", "--type", "nonsense", "--content", "x"]);
    assert_eq!(run.stdin(GOOD).quiet(), "1\n");
    assert_eq!(contents(&world), ["good"]);
    assert_eq!(world.query("SELECT count(*) FROM events WHERE source = 'self' AND type = 'record'"), 1);
}

#[test]
fn a_large_batch_waits_in_an_unlinked_file_and_holds_no_lock() {
    let world = World::with_thread();
    let mut child = world.thread(["push", "--batch"]).spawn();
    let mut stdin = child.stdin.take().unwrap();
    let long = "x".repeat(1000);
    for n in 0..9000 {
        writeln!(stdin, "{{\"source\":\"self\",\"type\":\"record\",\"content\":\"{n} {long}\"}}").unwrap();
    }
    // Nine million bytes do not fit into a pipe, so most of them have been read by now.
    let fds = format!("/proc/{}/fd", child.id());
    let in_thread =
        |link: &Path| link.starts_with(world.inbox()) && link.to_string_lossy().ends_with(" (deleted)");
    wait_until("the spool", || {
        let links = fs::read_dir(&fds).unwrap().filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
        links.into_iter().any(|link| in_thread(&link))
    });
    assert_eq!(world.push("overtakes"), 1);
    assert_eq!(names(&world.inbox().join("run")).iter().filter(|name| name.contains("tmp")).count(), 0);
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(output.stdout, b"9000\n");
    assert_eq!(count(&world), 9001);
    let expected = (0..9000).map(|n| format!("{n} {long}"));
    assert!(contents(&world).into_iter().skip(1).eq(expected), "the spool mixed up its events");
    world.assert_log_is_exact();
}

#[test]
fn what_fits_into_memory_needs_no_other_place() {
    let world = World::with_thread();
    // Files in /proc report a length of zero.
    assert_eq!(world.sh("thread push --lines </proc/version").quiet(), "1\n");
    std::fs::remove_dir_all(world.path("inbox/run")).unwrap();
    let (stdout, _) = world.sh("echo two | thread push --lines").ends_with(0);
    assert_eq!((stdout.as_str(), count(&world)), ("1\n", 2));
}

#[test]
fn a_bad_line_far_down_a_large_batch_stores_nothing() {
    let world = World::with_thread();
    let long = "x".repeat(1000);
    let good = format!("{{\"source\":\"self\",\"type\":\"record\",\"content\":\"{long}\"}}\n");
    let error = world.thread(["push", "--batch"]).stdin(good.repeat(6000) + "{}\n").fails(2);
    assert!(error.contains("line 6001 of the batch"), "{error}");
    assert_eq!(count(&world), 0);
    assert_eq!(names(&world.inbox().join("run")), [""; 0]);
}

#[test]
fn a_producer_that_stops_half_way_through_a_line_holds_nobody_up() {
    let world = World::with_thread();
    let fifo = world.path("slow");
    world.sh("mkfifo slow").quiet();
    let child = world.sh("exec thread push --batch <slow").spawn();
    let mut slow = fs::File::options().write(true).open(fifo).unwrap();
    // This is more than fits into a pipe, so the batch is being read when the write returns.
    slow.write_all(format!("{GOOD}\n").repeat(5000).as_bytes()).unwrap();
    slow.write_all(&GOOD.as_bytes()[..20]).unwrap();
    assert_eq!(world.push("first"), 1);
    let batch = world.thread(["push", "--batch"]).stdin(format!("{GOOD}\n{GOOD}\n")).quiet();
    assert_eq!(batch, "2\n");
    slow.write_all(&GOOD.as_bytes()[20..]).unwrap();
    drop(slow);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"5001\n"[..]));
    let all = world.thread(["peek", "--last-event-id", "0", "--limit", "9999"]).quiet();
    assert!(ids(&all).into_iter().eq(1..=5004));
    world.assert_log_is_exact();
}

#[test]
fn a_batch_from_a_file_is_stored_whole_or_not_at_all() {
    let world = World::with_thread();
    let line = |n: usize| {
        let content = format!("{n}{}", "x".repeat(n % 300));
        json!({"source": "self", "type": "record", "content": content, "metadata": {"n": n}}).to_string()
    };
    let lines: Vec<String> = (1..=20_000).map(line).collect();
    let text = lines.join("\n");
    world.write("good.ndjson", &text);
    world.write("bad.ndjson", format!("{text}\n{{\"source\":\"self\"}}\n"));

    // When the bad line is read, most of the others have already been passed to the database.
    let complaint = world.sh("thread push --batch < bad.ndjson").fails(2);
    assert!(complaint.starts_with("Error: line 20001 of the batch has no 'content'"), "{complaint}");
    assert_eq!((count(&world), world.jsonl().len()), (0, 0));
    let answer = world.sh("thread push --batch --json < good.ndjson").quiet();
    assert_eq!(answer, "{\"count\":20000,\"first_id\":1,\"last_id\":20000}\n");
    world.assert_log_is_exact();
    let stored = contents(&world);
    assert!(stored.iter().zip(&lines).all(|(stored, line)| line.contains(stored.as_str())));
    assert_eq!(world.query("SELECT count(*) FROM events WHERE metadata ->> 'n' = id"), 20_000);

    world.write("empty.ndjson", "\n\n");
    assert_eq!(world.sh("thread push --batch < empty.ndjson").quiet(), "0\n");
}

#[test]
fn keyed_and_keyless_events_of_one_batch_keep_their_order() {
    let world = World::with_thread();
    let lines: String = (1..=200)
        .map(|n| {
            let key =
                if n % 7 == 0 { format!(",\"idempotency_key\":\"k{}\"", n / 14) } else { String::new() };
            let content = if n % 7 == 0 { format!("k{}", n / 14) } else { n.to_string() };
            format!("{{\"source\":\"self\",\"type\":\"record\",\"content\":\"{content}\"{key}}}\n")
        })
        .collect();
    let mut seen = std::collections::HashSet::new();
    let wanted: Vec<String> = (1..=200)
        .map(|n| if n % 7 == 0 { format!("k{}", n / 14) } else { n.to_string() })
        .filter(|content| !content.starts_with('k') || seen.insert(content.clone()))
        .collect();
    let answer = world.thread(["push", "--batch", "--json"]).stdin(lines).quiet();
    let number = wanted.len();
    assert_eq!(answer, format!("{{\"count\":{number},\"first_id\":1,\"last_id\":{number}}}\n"));
    assert_eq!(contents(&world), wanted);
    world.assert_log_is_exact();
}

#[test]
fn many_events_are_read_and_copied_in_order_with_gaps_and_limits() {
    let world = World::with_thread();
    let lines: String = (1..=30_000)
        .map(|n| {
            let content = "\\n é\\\"".repeat(n % 40);
            format!("{{\"source\":\"self\",\"type\":\"record\",\"content\":\"{n}{content}\"}}\n")
        })
        .collect();
    world.write("lines.ndjson", lines);
    world.sh("thread push --batch < lines.ndjson").quiet();
    world.assert_log_is_exact();
    // The state `prune` leaves when it keeps dead letters.
    world.db().execute_batch("DELETE FROM events WHERE id % 3 = 0 AND id < 25000").unwrap();
    let table = world.table_as_jsonl();
    world.idle_consumer("reader", "");
    for limit in [1, 8_191, 8_192, 9_000, 100_000] {
        let limit_text = limit.to_string();
        let args = ["pop", "--consumer", "reader", "--last-event-id", "10", "--limit", &limit_text];
        let printed = world.thread(args).quiet();
        let wanted: Vec<&String> = table.iter().skip(7).take(limit).collect();
        assert!(printed.lines().eq(wanted), "--limit {limit}");
    }
    let first = world.sh("thread peek --last-event-id 0 --limit 30000 | head -n 1").quiet();
    assert_eq!(first.trim_end(), table[0]);
}

#[test]
fn a_gap_of_any_width_among_many_events_is_crossed_at_once() {
    let world = World::with_thread();
    // Written by another program, and not in the JSONL log yet.
    world
        .db()
        .execute_batch(
            "WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n LIMIT 12000) \
             INSERT INTO events (id, source, type, content) \
             SELECT id + iif(id > 6000, 4000000000000, 0), 'self', 'record', id FROM n",
        )
        .unwrap();
    assert_eq!(world.push("beyond"), 4_000_000_012_001);
    world.assert_log_is_exact();
    world.idle_consumer("reader", "");
    let printed =
        world.thread(["pop", "--consumer", "reader", "--last-event-id", "0", "--limit", "20000"]).quiet();
    let read = ids(&printed);
    assert!(read.iter().copied().eq((1..=6000).chain(4_000_000_006_001..=4_000_000_012_001)));
}
