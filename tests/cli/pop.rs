use serde_json::Value;
use thread_testkit::{World, ids};

/// Five events, messages and records alternating, and a consumer of the messages.
fn world() -> World {
    let world = World::with_thread();
    for n in 1..=5 {
        let kind = if n % 2 == 1 { "message" } else { "record" };
        let content = format!("event {n}");
        world.off(["push", "--source", "self", "--type", kind, "--content", &content]).quiet();
    }
    world.idle_consumer("bot", "type = 'message'");
    world.idle_consumer("all", "");
    world
}

fn pop(world: &World, consumer: &str, from: &str) -> Vec<i64> {
    ids(&world.thread(["pop", "--consumer", consumer, "--last-event-id", from]).quiet())
}

fn progress_rows(world: &World) -> i64 {
    world.query("SELECT count(*) FROM consumer_progress")
}

fn cursor(world: &World, consumer: &str) -> i64 {
    world.consumer(consumer)["last_acked_id"].as_i64().unwrap()
}

#[test]
fn pop_prints_what_matches_past_the_cursor_oldest_first() {
    let world = world();
    assert_eq!(pop(&world, "bot", "0"), [1, 3, 5]);
    assert_eq!(pop(&world, "all", "0"), [1, 2, 3, 4, 5]);
    assert_eq!(pop(&world, "bot", "1"), [3, 5]);
    assert_eq!(pop(&world, "bot", "2"), [3, 5]);
    assert_eq!(pop(&world, "bot", "5"), [0; 0]);
}

#[test]
fn pop_prints_the_lines_of_the_log() {
    let world = world();
    let printed = world.thread(["pop", "--consumer", "all", "--last-event-id", "0"]).quiet();
    assert_eq!(printed.lines().collect::<Vec<_>>(), world.jsonl());
    assert!(printed.ends_with('\n'));
}

#[test]
fn pop_redelivers_until_acknowledged() {
    let world = world();
    for _ in 0..3 {
        assert_eq!(pop(&world, "bot", "1"), [3, 5]);
        assert_eq!(cursor(&world, "bot"), 1);
    }
    world.thread(["ack", "--consumer", "bot", "--event-id", "3"]).quiet();
    assert_eq!(ids(&world.thread(["pop", "--consumer", "bot", "--resume"]).quiet()), [5]);
}

#[test]
fn pop_with_an_older_id_rewinds() {
    let world = world();
    assert_eq!(pop(&world, "bot", "5"), [0; 0]);
    assert_eq!(cursor(&world, "bot"), 5);
    assert_eq!(pop(&world, "bot", "0"), [1, 3, 5]);
    assert_eq!(cursor(&world, "bot"), 0);
}

#[test]
fn cursors_are_each_consumers_own() {
    let world = world();
    pop(&world, "bot", "5");
    pop(&world, "all", "2");
    assert_eq!((cursor(&world, "bot"), cursor(&world, "all")), (5, 2));
}

#[test]
fn the_limit_counts_matching_events() {
    let world = world();
    let limited = |limit: &str| {
        ids(&world.thread(["pop", "--consumer", "bot", "--last-event-id", "0", "--limit", limit]).quiet())
    };
    assert_eq!(limited("1"), [1]);
    assert_eq!(limited("2"), [1, 3]);
    assert_eq!(limited("9223372036854775807"), [1, 3, 5]);
}

#[test]
fn a_hundred_events_are_printed_by_default() {
    let world = World::with_thread();
    let line = "{\"source\":\"self\",\"type\":\"record\",\"content\":\"x\"}\n";
    world.thread(["push", "--batch"]).stdin(line.repeat(150)).quiet();
    world.idle_consumer("bot", "");
    assert!(pop(&world, "bot", "0").into_iter().eq(1..=100));
    assert!(pop(&world, "bot", "100").into_iter().eq(101..=150));
}

#[test]
fn a_cursor_past_the_newest_event_is_clamped_so_that_nothing_future_is_skipped() {
    let world = world();
    let run = world.thread(["pop", "--consumer", "all", "--last-event-id", "9223372036854775807"]);
    let (stdout, stderr) = run.ends_with(0);
    assert_eq!(stdout, "");
    assert!(stderr.starts_with("Warning: ") && stderr.contains("is at 5"), "{stderr}");
    assert_eq!(cursor(&world, "all"), 5);
    world.off(["push", "--source", "self", "--type", "record", "--content", "x"]).quiet();
    assert_eq!(ids(&world.thread(["pop", "--consumer", "all", "--resume"]).quiet()), [6]);
}

#[test]
fn the_newest_id_ever_given_counts_even_if_its_event_is_gone() {
    let world = world();
    world.db().execute("DELETE FROM events WHERE id > 1", []).unwrap();
    assert_eq!(pop(&world, "all", "5"), [0; 0]);
    assert_eq!(cursor(&world, "all"), 5);
    world.thread(["pop", "--consumer", "all", "--last-event-id", "6"]).warns();
    assert_eq!(cursor(&world, "all"), 5);
}

#[test]
fn on_an_empty_thread_any_cursor_is_clamped_to_nothing() {
    let world = World::with_thread();
    world.idle_consumer("bot", "");
    world.thread(["pop", "--consumer", "bot", "--last-event-id", "1"]).warns();
    assert_eq!(cursor(&world, "bot"), 0);
    world.off(["push", "--source", "self", "--type", "record", "--content", "x"]).quiet();
    assert_eq!(ids(&world.thread(["pop", "--consumer", "bot", "--resume"]).quiet()), [1]);
}

#[test]
fn resume_continues_from_the_stored_cursor_and_changes_nothing() {
    let world = world();
    let resume = || ids(&world.thread(["pop", "--consumer", "bot", "--resume"]).quiet());
    assert_eq!(resume(), [1, 3, 5]);
    assert_eq!(progress_rows(&world), 0);
    pop(&world, "bot", "1");
    world.db().execute("UPDATE consumer_progress SET updated_at = 'marked'", []).unwrap();
    assert_eq!(resume(), [3, 5]);
    assert_eq!(resume(), [3, 5]);
    assert_eq!(world.consumer("bot")["updated_at"], "marked");
}

#[test]
fn an_unknown_consumer_is_exit_1_and_records_nothing() {
    let world = world();
    for args in [&["--last-event-id", "3"][..], &["--last-event-id", "0"], &["--resume"]] {
        let mut run = world.thread(["pop", "--consumer", "nobody"]);
        run.command().args(args);
        let error = run.fails(1);
        assert!(error.contains("'nobody'"), "{error}");
    }
    assert_eq!(progress_rows(&world), 0);
}

#[test]
fn only_a_change_of_the_cursor_is_recorded() {
    let world = world();
    pop(&world, "bot", "0");
    assert_eq!(progress_rows(&world), 0);
    pop(&world, "bot", "3");
    let updated_at = world.consumer("bot")["updated_at"].as_str().unwrap().to_owned();
    assert!(updated_at.ends_with('Z') && updated_at.len() == 24, "{updated_at}");
    world.db().execute("UPDATE consumer_progress SET updated_at = 'marked'", []).unwrap();
    pop(&world, "bot", "3");
    assert_eq!(world.consumer("bot")["updated_at"], "marked");
    pop(&world, "bot", "5");
    assert_ne!(world.consumer("bot")["updated_at"], "marked");
}

#[test]
fn pop_alone_continues_at_the_cursor() {
    let world = world();
    let resumed = world.thread(["pop", "--consumer", "bot", "--resume"]).quiet();
    assert_eq!(world.thread(["pop", "bot"]).quiet(), resumed);
    assert!(!resumed.is_empty());
    world.thread(["pop", "--consumer", "bot", "--resume", "--last-event-id", "1"]).fails(2);
    assert_eq!(progress_rows(&world), 0);
}

#[test]
fn json_changes_only_how_errors_look() {
    let world = world();
    let plain = world.thread(["pop", "--consumer", "bot", "--last-event-id", "0"]).quiet();
    assert_eq!(world.thread(["pop", "--consumer", "bot", "--last-event-id", "0", "--json"]).quiet(), plain);
    let (_, stderr) = world.thread(["pop", "--consumer", "nobody", "--resume", "--json"]).ends_with(1);
    let error: Value = serde_json::from_str(&stderr).unwrap();
    assert_eq!(error["error"], "no consumer 'nobody' is subscribed");
    assert!(error["suggestion"].as_str().unwrap().contains("thread subscribe"), "{error}");
}
