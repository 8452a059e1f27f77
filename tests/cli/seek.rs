use serde_json::Value;
use thread_testkit::{World, ids, take_all, wait_until};

/// Five events, one second apart, and a consumer of all of them.
fn world() -> World {
    let world = World::with_thread();
    for n in 1..=5 {
        world.push(&format!("event {n}"));
    }
    let set = "UPDATE events SET created_at = '2026-03-18T10:30:0' || id || '.500Z'";
    world.db().execute(set, []).unwrap();
    world.idle_consumer("bot", "");
    world
}

fn seek(world: &World, to: &str) -> String {
    world.off(["seek", "--consumer", "bot", "--to", to]).quiet()
}

fn next(world: &World) -> Vec<i64> {
    ids(&world.thread(["pop", "--consumer", "bot", "--resume"]).quiet())
}

#[test]
fn seek_moves_the_cursor_and_prints_its_position() {
    let world = world();
    let words = [("now", 5), ("beginning", 0), ("latest", 5), ("earliest", 0), ("new", 5), ("all", 0)];
    for (to, stands) in words.into_iter().chain([("3", 3), ("0", 0), ("5", 5)]) {
        assert_eq!(seek(&world, to), format!("{stands}\n"));
        assert_eq!(world.consumer("bot")["last_acked_id"], stands);
        assert!(next(&world).into_iter().eq(stands + 1..=5));
    }
}

#[test]
fn a_time_is_the_first_event_stored_then_or_later() {
    let world = world();
    for (to, first) in [
        ("2026-03-18T10:30:03.500Z", 3),
        ("2026-03-18T10:30:03.501Z", 4),
        ("2026-03-18T10:30:03Z", 3),
        ("2026-03-18T11:30:03.400+01:00", 3),
        ("2026-03-18T05:00:04.5-05:30", 4),
        ("1999-12-31T23:59:59Z", 1),
        ("2099-01-01T00:00:00Z", 6),
    ] {
        assert_eq!(seek(&world, to), format!("{}\n", first - 1), "{to}");
        assert!(next(&world).into_iter().eq(first..=5), "{to}");
    }
}

#[test]
fn ages_and_dates_mean_what_they_mean_to_peek() {
    let world = world();
    // Stored two hours, one hour and half an hour ago, and now.
    let ages = [(1, "-2 hours"), (2, "-1 hours"), (3, "-30 minutes"), (4, "-0 minutes"), (5, "-0 minutes")];
    for (id, ago) in ages {
        let sql = "UPDATE events SET created_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?2) WHERE id = ?1";
        world.db().execute(sql, (id, ago)).unwrap();
    }
    for (when, cursor) in [("3h", 0), ("90m", 1), ("45m", 2), ("10m", 3), ("1d", 0), ("2000-01-01", 0)] {
        assert_eq!(seek(&world, when), format!("{cursor}\n"), "{when}");
        let since = world.thread(["peek", "--since", when]).quiet();
        assert_eq!(ids(&since).first(), Some(&(cursor + 1)), "{when}");
        assert_eq!(next(&world), ids(&since), "{when}");
    }
    // A bare number is an event.
    assert_eq!(seek(&world, "2"), "2\n");
}

#[test]
fn json_names_the_consumer_and_the_cursor() {
    let world = world();
    let run = world.off(["seek", "--consumer", "bot", "--to", "2", "--json"]);
    let answer: Value = serde_json::from_str(&run.quiet()).unwrap();
    assert_eq!(answer, serde_json::json!({"consumer_id": "bot", "last_acked_id": 2}));
}

#[test]
fn a_position_past_the_end_is_the_end_so_that_nothing_future_is_skipped() {
    let world = world();
    let (stdout, stderr) = world.off(["seek", "--consumer", "bot", "--to", "99"]).ends_with(0);
    assert_eq!(stdout, "5\n");
    assert!(stderr.starts_with("Warning: event 99 does not exist yet"), "{stderr}");
    world.off(["push", "--source", "self", "--type", "record", "--content", "x"]).quiet();
    assert_eq!(next(&world), [6]);
}

#[test]
fn latest_on_an_empty_thread_is_the_beginning() {
    let world = World::with_thread();
    world.idle_consumer("bot", "");
    for to in ["latest", "earliest", "2026-03-18T10:30:00Z"] {
        assert_eq!(seek(&world, to), "0\n");
    }
}

#[test]
fn an_invalid_position_is_exit_2_and_moves_nothing() {
    let world = world();
    seek(&world, "3");
    for to in ["", "-1", "1.5", "Now", "Earliest", "2026-03-18 10:30", "10x", "10:30", "2026-13-01T00:00:00Z"]
    {
        let error = world.off(["seek", "--consumer", "bot", "--to", to]).fails(2);
        assert!(error.contains("--to"), "{error}");
    }
    world.off(["seek", "--consumer", "bot"]).fails(2);
    world.off(["seek", "--to", "1"]).fails(2);
    assert_eq!(world.consumer("bot")["last_acked_id"], 3);
}

#[test]
fn an_unknown_consumer_is_exit_1() {
    let world = world();
    let error = world.off(["seek", "--consumer", "nobody", "--to", "1"]).fails(1);
    assert!(error.contains("'nobody'"), "{error}");
    assert_eq!(world.query("SELECT count(*) FROM consumer_progress"), 0);
}

#[test]
fn seeking_back_wakes_the_consumer_and_seeking_forward_does_not() {
    let world = World::with_thread();
    for _ in 0..3 {
        world.push("x");
    }
    take_all(&world, "bot");
    wait_until("the first run", || world.lines("seen.bot").len() == 3);
    world.wait_until_quiet();
    let spawned = |world: &World| world.log().iter().filter(|line| line.contains("spawned")).count();
    assert_eq!(world.thread(["seek", "--consumer", "bot", "--to", "3"]).quiet(), "3\n");
    world.wait_until_quiet();
    assert_eq!(spawned(&world), 1, "nothing is pending");
    assert_eq!(world.thread(["seek", "--consumer", "bot", "--to", "1"]).quiet(), "1\n");
    world.wait_until_quiet();
    assert_eq!(world.lines("seen.bot"), ["1", "2", "3", "2", "3"]);
    assert_eq!(spawned(&world), 2);
    assert!(world.log().contains(&"[INFO] seek: consumer=bot last_acked_id=1".to_owned()));
}

#[test]
fn seek_moves_a_consumer_that_cannot_be_woken_and_warns() {
    let world = World::with_thread();
    world.push("x");
    std::fs::create_dir(world.path("work")).unwrap();
    let subscribe = ["subscribe", "--consumer", "bot", "--handler", "true", "--cwd", "work", "--from", "new"];
    world.thread(subscribe).quiet();
    std::fs::remove_dir(world.path("work")).unwrap();
    let (moved, warning) = world.thread(["seek", "--consumer", "bot", "--to", "earliest"]).ends_with(0);
    assert_eq!(moved, "0\n");
    assert!(warning.starts_with("Warning: 'bot' was not woken: the working directory"), "{warning}");
    assert_eq!(world.consumer("bot")["last_acked_id"], 0);
}

#[test]
fn seeking_back_starts_nothing_if_waking_is_off_or_the_consumer_is_paused() {
    let world = World::with_thread();
    world.push("x");
    take_all(&world, "bot");
    wait_until("the first run", || world.lines("seen.bot").len() == 1);
    world.wait_until_quiet();
    seek(&world, "earliest");
    world.thread(["pause", "--consumer", "bot"]).quiet();
    assert_eq!(world.thread(["seek", "--consumer", "bot", "--to", "earliest"]).quiet(), "0\n");
    world.wait_until_quiet();
    assert_eq!(world.lines("seen.bot"), ["1"]);
}

#[test]
fn seeking_to_the_current_position_changes_nothing() {
    let world = world();
    seek(&world, "3");
    world.db().execute("UPDATE consumer_progress SET updated_at = 'marked'", []).unwrap();
    assert_eq!(seek(&world, "3"), "3\n");
    assert_eq!(world.consumer("bot")["updated_at"], "marked");
}
