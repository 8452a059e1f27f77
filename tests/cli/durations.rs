//! Durations on the command line: units, sums, and plain numbers of seconds.

use std::time::{Duration, Instant};

use thread_testkit::World;

#[test]
fn weeks_sums_and_bare_seconds_are_durations() {
    let world = World::with_thread();
    let subscribe = ["subscribe", "--consumer", "bot", "--handler", "true", "--json"];
    let options = ["--timeout", "2w", "--backoff", "90,2w,1h30m,500ms"];
    let answer = world.thread(subscribe.iter().chain(&options)).quiet();
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((&answer["timeout"], &answer["backoff"]), (&"14d".into(), &"1m30s,14d,1h30m,500ms".into()));
    world.thread(["prune", "--older-than", "2w", "--dry-run"]).ok();
    world.thread(["stop", "--consumer", "bot", "--kill-after", "2"]).fails(1);
}

#[test]
fn a_bare_number_is_seconds() {
    let world = World::with_thread();
    let began = Instant::now();
    assert_eq!(world.thread(["peek", "--last-event-id", "0", "--wait", "1"]).quiet(), "");
    assert!(began.elapsed() >= Duration::from_secs(1));
}

#[test]
fn other_words_are_usage_errors() {
    let world = World::with_thread();
    for wrong in ["", "soon", "w", "1.5", "-1", "2 w", "2W", "1y", "5min", "20y", "99999999999999999999"] {
        let option = format!("--wait={wrong}");
        let error = world.thread(["peek", "--last-event-id", "0", &option]).fails(2);
        assert!(error.ends_with("see `thread peek --help`"), "{error}");
    }
}
