use crate::harness::{World, ids, snapshot};

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
        // The index of the WAL is rebuilt by whoever opens.
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
    assert_eq!(filtered(&world, "id > 1 AND created_at > datetime('now', '-1 day')"), [2, 3, 4]);
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
    assert_eq!(filtered(&world, "json_extract(content, '$.n') > 0"), [2, 3]);
}

#[test]
fn what_is_no_filter_is_exit_2() {
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
    // Several times what a pipe holds.
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
