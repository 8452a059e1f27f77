use thread_testkit::{World, ids, snapshot, wait_until};

fn world() -> World {
    let world = World::with_thread();
    for (kind, content) in
        [("message", "plain"), ("record", r#"{"n":1}"#), ("message", r#"{"n":2}"#), ("record", "last")]
    {
        world.thread(["push", "--source", "self", "--type", kind, "--content", content]).quiet();
    }
    world
}

fn filtered(world: &World, filter: &str) -> Vec<i64> {
    ids(&world.thread(["peek", "--last-event-id", "0", "--filter", filter]).quiet())
}

#[test]
fn peek_prints_events_after_an_id() {
    let world = world();
    let peek = |id: &str| ids(&world.thread(["peek", "--last-event-id", id]).quiet());
    assert_eq!(peek("0"), [1, 2, 3, 4]);
    assert_eq!(peek("2"), [3, 4]);
    assert_eq!(peek("4"), [0; 0]);
    assert_eq!(peek("9223372036854775807"), [0; 0]);
}

#[test]
fn peek_changes_no_row_and_makes_no_file() {
    let world = world();
    let before = snapshot(&world.inbox());
    filtered(&world, "type = 'message'");
    let mut after = snapshot(&world.inbox());
    for (path, found) in before {
        // Opening the database may rebuild the WAL index.
        let same = path.ends_with("events.db-shm") || after[&path] == found;
        assert!(same, "{} changed", path.display());
        after.remove(&path);
    }
    assert!(after.keys().all(|path| path.ends_with("events.db-shm")), "{:?}", after.keys());
}

#[test]
fn filters_choose_and_limits_count_what_was_chosen() {
    let world = world();
    assert_eq!(filtered(&world, "type = 'message'"), [1, 3]);
    assert_eq!(filtered(&world, "json_valid(content) AND content ->> 'n' = 2 -- a remark"), [3]);
    assert_eq!(filtered(&world, "id > 1 AND datetime(created_at) > datetime('now', '-1 day')"), [2, 3, 4]);
    assert_eq!(filtered(&world, "-id = -2"), [2]);
    assert_eq!(filtered(&world, "0"), [0; 0]);
    assert_eq!(filtered(&world, "subtype"), [0; 0]);
    let run = world.thread(["peek", "--last-event-id", "0", "--limit", "1", "--filter", "type = 'record'"]);
    assert_eq!(ids(&run.quiet()), [2]);
}

#[test]
fn a_blank_filter_is_no_filter() {
    let world = world();
    for blank in ["", " ", "\t\n"] {
        assert_eq!(filtered(&world, blank), [1, 2, 3, 4]);
    }
}

#[test]
fn an_event_on_which_the_filter_errs_does_not_match_and_hides_nothing() {
    let world = world();
    assert_eq!(filtered(&world, "abs(-9223372036854775807 - (id = 1)) > 0"), [2, 3, 4]);
}

#[test]
fn an_invalid_filter_is_exit_2() {
    let world = world();
    for bad in [
        "type =",
        "type = \"message\"",
        "nosuch = 1",
        "1) OR (1",
        "1; DELETE FROM events",
        "1 ORDER BY id",
        "id IN (SELECT 1)",
        "id = ?1",
        "load_extension('x')",
        "1 /*",
        "--",
    ] {
        let error = world.thread(["peek", "--last-event-id", "0", "--filter", bad]).fails(2);
        assert!(error.contains("the filter "), "{bad}: {error}");
    }
    assert_eq!(world.query("SELECT count(*) FROM events"), 4);
}

#[test]
fn a_reader_that_closes_early_is_no_error() {
    let world = World::with_thread();
    let line = format!("{{\"source\":\"self\",\"type\":\"record\",\"content\":\"{}\"}}\n", "x".repeat(500));
    // Several times the capacity of a pipe.
    assert_eq!(world.off(["push", "--batch"]).stdin(line.repeat(5000)).quiet(), "5000\n");
    world.idle_consumer("bot", "");
    for command in ["peek --last-event-id 0", "pop --consumer bot --resume"] {
        let script = format!("{{ thread {command} --limit 5000; echo $? >code; }} | head -n 1 | wc -l");
        assert_eq!(world.sh(&script).quiet().trim(), "1");
        assert_eq!(world.read("code"), "0\n", "{command}");
    }
}

#[test]
fn all_of_many_events_come_in_order() {
    let world = World::with_thread();
    let batch: String = (1..=3000)
        .map(|n| {
            format!("{{\"source\":\"self\",\"type\":\"record\",\"content\":\"{}\"}}\n", "y".repeat(n % 700))
        })
        .collect();
    world.thread(["push", "--batch"]).stdin(batch).quiet();
    let all = world.thread(["peek", "--last-event-id", "0", "--limit", "99999"]).quiet();
    assert!(ids(&all).into_iter().eq(1..=3000));
    let odd =
        world.thread(["peek", "--last-event-id", "10", "--limit", "1200", "--filter", "id % 2"]).quiet();
    assert!(ids(&odd).into_iter().eq((11..).step_by(2).take(1200)));
}

#[test]
fn output_that_cannot_be_written_is_exit_1() {
    let world = world();
    let (_, stderr) = world.sh("thread peek --last-event-id 0 >/dev/full").ends_with(1);
    assert!(stderr.starts_with("Error: cannot write to stdout"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1);
}

#[test]
fn text_of_other_programs_that_is_no_text_is_still_one_json_line() {
    let world = world();
    world
        .db()
        .execute_batch(
            "INSERT INTO events (source, type, content) VALUES ('x', 'record', X'ff00fe'); \
             INSERT INTO events (source, type, content) VALUES ('x', 'odd', CAST(X'61ff' AS TEXT)); \
             INSERT INTO events (source, type, subtype, content) VALUES ('x', 'record', '', 7.5)",
        )
        .unwrap();
    let printed = world.thread(["peek", "--last-event-id", "4"]).quiet();
    assert_eq!(ids(&printed), [5, 6, 7]);
    let content = |at: usize| {
        let line: serde_json::Value = serde_json::from_str(printed.lines().nth(at).unwrap()).unwrap();
        line["content"].as_str().unwrap().to_owned()
    };
    assert_eq!([content(0), content(1), content(2)], ["\u{fffd}\0\u{fffd}", "a\u{fffd}", "7.5"]);
}

fn peek(world: &World, words: &[&str]) -> Vec<i64> {
    ids(&world.thread(["peek"].iter().chain(words)).quiet())
}

/// A thread with a dozen events, ten minutes apart, the last one now.
fn a_dozen() -> World {
    let world = World::with_thread();
    let lines: String = (1..=12).map(|n| format!("line {n}\n")).collect();
    world.thread(["push", "--lines", "--source", "internal:dm:default:ada"]).stdin(lines).quiet();
    let change = "UPDATE events SET source = CASE id % 2 WHEN 0 THEN source ELSE 'self' END,
        type = CASE id % 3 WHEN 0 THEN 'record' ELSE type END,
        created_at = strftime('%Y-%m-%dT%H:%M:%fZ', created_at, ((id - 12) * 10) || ' minutes')";
    world.db().execute(change, []).unwrap();
    world
}

#[test]
fn peek_alone_prints_the_last_ten() {
    let world = a_dozen();
    assert!(peek(&world, &[]).into_iter().eq(3..=12));
    assert_eq!(peek(&world, &["-n", "2"]), [11, 12]);
    assert_eq!(peek(&world, &["--limit", "2"]), [11, 12]);
    assert_eq!(peek(&world, &["--type", "record"]), [3, 6, 9, 12]);
    assert_eq!(peek(&world, &["-n", "2", "--type", "record"]), [9, 12]);
    assert!(peek(&world, &["-n", "11", "--limit", "3"]).into_iter().eq(2..=4));
    assert_eq!(World::with_thread().thread(["peek"]).quiet(), "");
}

#[test]
fn times_types_and_sources_choose_events_without_sql() {
    let world = a_dozen();
    let at = |id: i64| -> String {
        world.db().query_row("SELECT created_at FROM events WHERE id = ?1", [id], |row| row.get(0)).unwrap()
    };
    assert_eq!(peek(&world, &["--since", "25m"]), [10, 11, 12]);
    assert_eq!(peek(&world, &["--since", "2h", "--until", "85m"]), [1, 2, 3]);
    assert_eq!(peek(&world, &["--until", "95m"]), [1, 2]);
    assert_eq!(peek(&world, &["--since", &at(10), "--until", &at(11)]), [10]);
    assert_eq!(peek(&world, &["--since", &at(10), "--last-event-id", "11"]), [12]);
    assert_eq!(peek(&world, &["--since", "2000-01-01"]).len(), 12);
    assert_eq!(peek(&world, &["--since", "2000-01-01", "--limit", "2"]), [1, 2]);
    assert_eq!(peek(&world, &["--since", "2000-01-01", "-n", "2"]), [11, 12]);
    assert_eq!(peek(&world, &["--since", "2999-01-01"]), [0; 0]);
    assert_eq!(peek(&world, &["--source", "internal:*", "--type", "message"]), [2, 4, 8, 10]);
    assert_eq!(peek(&world, &["--source", "self", "--filter", "id > 8 OR id = 1 -- so"]), [1, 9, 11]);
    assert_eq!(peek(&world, &["--source", "it's*"]), [0; 0]);
    for wrong in [
        &["--since", "yesterday"][..],
        &["--since", ""],
        &["--type", "log"],
        &["--until", "1h", "--follow"],
        &["--source", &"x".repeat(257)],
        &["--source", "self", "--filter", "1) OR (1"],
        &["--pretty", "--parse"],
    ] {
        world.thread(["peek"].iter().chain(wrong)).fails(2);
    }
}

#[test]
fn a_default_limit_that_leaves_events_out_is_noted() {
    let world = World::with_thread();
    world.thread(["push", "--lines"]).stdin("x\n".repeat(101)).quiet();
    world.idle_consumer("all", "");
    let noted = |words: &[&str]| {
        let (stdout, stderr) = world.thread(words).ends_with(0);
        let note =
            "Note: there are more events; this is the default limit of 100, give --limit for another\n";
        assert!(["", note].contains(&&*stderr), "{stderr}");
        (ids(&stdout).len(), !stderr.is_empty())
    };
    assert_eq!(noted(&["peek", "--last-event-id", "0"]), (100, true));
    assert_eq!(noted(&["peek", "--last-event-id", "1"]), (100, false));
    assert_eq!(noted(&["peek", "--last-event-id", "0", "--filter", "id <> 7"]), (100, false));
    assert_eq!(noted(&["peek", "--last-event-id", "0", "--limit", "100"]), (100, false));
    assert_eq!(noted(&["peek"]), (10, false));
    // The next pop prints the rest.
    assert_eq!(noted(&["pop", "all", "--resume"]), (100, false));
}

#[test]
fn since_is_not_cut_short_at_a_hundred() {
    let world = World::with_thread();
    world.thread(["push", "--lines"]).stdin("x\n".repeat(150)).quiet();
    assert_eq!(peek(&world, &["--since", "1h"]).len(), 150);
}

#[test]
fn waiting_without_a_beginning_waits_for_what_is_new() {
    let world = a_dozen();
    assert_eq!(peek(&world, &["--wait", "50ms"]), [0; 0]);
    let waiting = world.thread(["peek", "--wait", "1h"]).spawn();
    // If a push comes before the wait begins, a later one ends it.
    let mut pushed = Vec::new();
    let mut waiting = Some(waiting);
    wait_until("the wait to end", || {
        pushed.push(world.push("new"));
        waiting.as_mut().unwrap().try_wait().unwrap().is_some()
    });
    let output = waiting.take().unwrap().wait_with_output().unwrap();
    let printed = ids(&String::from_utf8(output.stdout).unwrap());
    assert!(!printed.is_empty() && printed.iter().all(|id| pushed.contains(id)), "{printed:?}");
}

#[test]
fn nothing_to_print_is_exit_3_where_that_is_asked_for() {
    let world = a_dozen();
    world.idle_consumer("bot", "type = 'record'");
    for words in [
        &["peek", "--filter", "0"][..],
        &["peek", "--filter", "0", "--wait", "20ms"],
        &["peek", "--follow", "--wait", "20ms"],
        &["pop", "bot", "--last-event-id", "12"],
        &["pop", "bot", "--resume", "--wait", "20ms"],
    ] {
        let waits = words.contains(&"--wait");
        assert_eq!(world.thread(words).quiet(), "");
        let error = world.thread(words).arg("--fail-if-none").fails(3);
        let what = if waits { "no event came in time" } else { "there is no such event" };
        assert!(error.starts_with(&format!("Error: {what} - ")), "{error}");
    }
    assert_eq!(peek(&world, &["--fail-if-none", "-n", "1"]), [12]);
    assert_eq!(peek(&world, &["--fail-if-none", "-n", "1", "--wait", "5"]), [12]);
}

#[test]
fn content_that_is_json_can_be_printed_as_json() {
    let world = World::with_thread();
    for content in ["{\"n\": [1,\n 2.50]}", "true", "-7", "plain", "{broken", "\"text\"", "null", "01", ""] {
        world.thread(["push", "--source", "self", "--content", content]).quiet();
    }
    let parsed = world.thread(["peek", "--parse"]).quiet();
    let contents: Vec<&str> = parsed
        .lines()
        .map(|line| line.split_once("\"content\":").unwrap().1.strip_suffix('}').unwrap())
        .collect();
    let texts = ["\"plain\"", "\"{broken\"", "\"\\\"text\\\"\"", "\"null\"", "\"01\"", "\"\""];
    assert_eq!(contents[..3], ["{\"n\":[1,2.50]}", "true", "-7"]);
    assert_eq!(contents[3..], texts);
    // The output can be pushed as a batch.
    world.thread(["init", "copy"]).quiet();
    world.thread(["push", "-t", "copy", "--batch"]).stdin(parsed.clone()).quiet();
    assert_eq!(world.thread(["peek", "-t", "copy", "--parse"]).quiet().lines().count(), 9);
}

#[test]
fn pretty_is_for_people() {
    let world = World::with_thread();
    world
        .thread(["push", "--source", "self", "--type", "record", "--subtype", "toolcall", "-"])
        .arg("--meta")
        .arg("run_id=7")
        .stdin("{\"tool\":\"sh\",\"exit\":[0]}")
        .quiet();
    world.thread(["push", "--source", "external:x\u{202e}", "-"]).stdin("one\n\ttwo \x1b[2J\n").ok();
    let times: Vec<String> = {
        let events = world.thread(["peek"]).quiet();
        events.lines().map(|line| line.split('"').nth(5).unwrap().to_owned()).collect()
    };
    let expected = format!(
        "1  {}  self  record/toolcall\n    {{\n      \"tool\": \"sh\",\n      \"exit\": [\n        0\n      ]\n    }}\n    \
         metadata: {{\"run_id\":\"7\"}}\n\n2  {}  external:x\\u{{202e}}  message\n    one\n    \ttwo \\x1b[2J\n\n",
        times[0], times[1]
    );
    assert_eq!(world.thread(["peek", "--pretty"]).quiet(), expected);
    let coloured = world.thread(["peek", "--pretty", "-n", "1"]).env("CLICOLOR_FORCE", "1").quiet();
    assert!(coloured.starts_with("\x1b[1m2  "), "{coloured:?}");
}

#[test]
fn an_id_prints_that_event() {
    let world = World::with_thread();
    world.push("one");
    world.push("two\n");
    assert_eq!(world.thread(["peek", "2"]).quiet(), world.thread(["peek", "-n", "1"]).quiet());
    assert_eq!(world.thread(["peek", "1", "--format", "content"]).quiet(), "one\n");
    assert_eq!(world.thread(["peek", "2", "--format", "content"]).quiet(), "two\n");
    let error = world.thread(["peek", "3"]).fails(1);
    assert!(error.starts_with("Error: there is no event 3; the newest is 2 - "), "{error}");
    for other in
        [&["-n", "1"][..], &["--filter", "1"], &["--follow"], &["--since", "1h"], &["--subtype", "x"]]
    {
        world.thread(["peek", "1"]).args(other).fails(2);
    }
    world.thread(["peek", "one"]).fails(2);
}

#[test]
fn a_subtype_is_chosen_by_its_name() {
    let world = World::with_thread();
    for subtype in ["it's", "other", "it's"] {
        world.thread(["push", "--type", "record", "--subtype", subtype, "x"]).quiet();
    }
    world.push("without");
    assert_eq!(peek(&world, &["--subtype", "it's"]), [1, 3]);
    assert_eq!(peek(&world, &["--subtype", "it's", "--filter", "id > 1 OR 0", "--type", "record"]), [3]);
    assert_eq!(peek(&world, &["--subtype", ""]), [0; 0]);
}

#[test]
fn each_format_is_also_an_option() {
    let world = World::with_thread();
    world.push("{\"a\":1}");
    let peek = |options: &[&str]| world.thread(["peek"]).args(options).quiet();
    assert_eq!(peek(&["--format", "json"]), peek(&[]));
    assert_eq!(peek(&["--format", "parsed"]), peek(&["--parse"]));
    assert_eq!(peek(&["--format", "pretty"]), peek(&["--pretty"]));
    assert_eq!(peek(&["--format", "content"]), "{\"a\":1}\n");
    for twice in
        [&["--format", "json", "--pretty"][..], &["--parse", "--pretty"], &["--json", "--format", "content"]]
    {
        assert_eq!(world.thread(["peek"]).args(twice).output().status.code(), Some(2), "{twice:?}");
    }
}

#[test]
fn content_on_a_terminal_cannot_move_the_cursor() {
    let world = World::with_thread();
    world.thread(["push", "\u{1b}[2Jé\u{9b}"]).quiet();
    assert_eq!(world.thread(["peek", "--format", "content"]).quiet(), "\u{1b}[2Jé\u{9b}\n");
    let Some(run) = world.terminal(80, "thread peek --format content") else { return };
    assert_eq!(run.quiet(), "\\x1b[2Jé\\xc2\\x9b\n");
}

#[test]
fn since_takes_every_position() {
    let world = a_dozen();
    assert_eq!(peek(&world, &["--since", "beginning"]).len(), 12);
    assert_eq!(peek(&world, &["--since", "now"]), [0; 0]);
    assert_eq!(peek(&world, &["--since", "10"]), [11, 12]);
}
