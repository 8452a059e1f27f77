//! `push --in` and `--at`, and `thread scheduled`.

use std::time::{Duration, Instant};

use serde_json::Value;
use thread_testkit::preload::{self, Clock};
use thread_testkit::{World, is_running, kill_and_wait, take_all, wait_until};

/// The events, as `peek` prints them.
fn events(world: &World) -> Vec<Value> {
    let printed = world.thread(["peek", "--last-event-id", "0", "--limit", "100000"]).quiet();
    printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn contents(world: &World) -> Vec<String> {
    events(world).iter().map(|event| event["content"].as_str().unwrap().to_owned()).collect()
}

fn time(value: &Value) -> chrono::DateTime<chrono::Utc> {
    value.as_str().unwrap().parse().unwrap()
}

fn scheduled(world: &World) -> Vec<Value> {
    let printed = world.thread(["scheduled", "--json"]).quiet();
    printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_scheduled_event_comes_when_it_is_due_and_wakes_its_consumer() {
    let world = World::with_thread();
    take_all(&world, "bot");
    assert_eq!(world.thread(["push", "--in", "700ms", "--meta", "a=b", "later"]).quiet(), "s1\n");
    let [listed] = &scheduled(&world)[..] else { panic!() };
    assert_eq!((&listed["scheduled_id"], &listed["content"]), (&"s1".into(), &"later".into()));
    assert_eq!(world.push("now"), 1);
    world.wait_until("the event to come and be handled", || world.lines("seen.bot") == ["1", "2"]);
    assert_eq!(world.thread(["scheduled"]).quiet(), "");
    let event = events(&world).pop().unwrap();
    assert_eq!(
        (&event["id"], &event["content"], &event["metadata"]["a"]),
        (&2.into(), &"later".into(), &"b".into())
    );
    let waited = time(&event["created_at"]) - time(&event["metadata"]["scheduled_at"]);
    assert!(waited.num_milliseconds() >= 700, "{event}");
    assert_eq!(event["metadata"]["scheduled_at"], listed["metadata"]["scheduled_at"]);
    world.wait_until_quiet();
    world.assert_log_is_exact();
    assert!(world.timer().is_none(), "nothing waits any more");
}

#[test]
fn waiters_and_followers_see_what_comes() {
    let world = World::with_thread();
    world.thread(["push", "--in", "300ms", "x"]).quiet();
    let printed = world.thread(["peek", "--last-event-id", "0", "--wait", "30s"]).quiet();
    assert!(printed.starts_with("{\"id\":1,"), "{printed}");
}

#[test]
fn a_time_may_be_of_this_machines_zone() {
    let world = World::with_thread();
    let push = |at: &str| world.thread(["push", "--at", at, "x"]).env("TZ", "Europe/Berlin");
    for at in ["2099-07-01 10:30", "2099-07-01T08:30:00Z", "2099-07-01T04:30:00.000-04:00"] {
        push(at).quiet();
    }
    for one in scheduled(&world) {
        assert_eq!(one["due_at"], "2099-07-01T08:30:00.000Z");
    }
    let json: Value = serde_json::from_str(&push("2099-07-01 10:30").arg("--json").quiet()).unwrap();
    assert_eq!(json, serde_json::json!({"scheduled_id": "s4", "due_at": "2099-07-01T08:30:00.000Z"}));
    for (at, says) in [
        ("2027-03-28 02:30", "does not exist in Europe/Berlin"),
        ("2027-10-31 02:30", "comes twice in Europe/Berlin"),
        ("10:30", "is not a time"),
        ("soon", "is not a time"),
    ] {
        let error = push(at).fails(2);
        assert!(error.contains(says), "{error}");
    }
    assert_eq!(scheduled(&world).len(), 4);
    // What has passed is due at once.
    push("2020-01-01 10:30").quiet();
    wait_until("it to come", || !events(&world).is_empty());
    for words in [&["push", "--in", "1h", "--at", "2099-01-01 10:30", "x"][..], &["push", "--in", "x", "x"]] {
        world.thread(words).fails(2);
    }
    world.thread(["push", "--in", "1h", "--sync", "1s", "x"]).fails(2);
    let error = world.thread(["push", "--in", "1h", "--meta", "scheduled_at=x", "x"]).fails(2);
    assert!(error.contains("has scheduled_at in its metadata already"), "{error}");
}

#[test]
fn a_key_is_taken_from_now_on_and_cancelling_frees_it() {
    let world = World::with_thread();
    let push = |content: &str| world.thread(["push", "--in", "1h", "--idempotency-key", "k", content]);
    assert_eq!(push("x").quiet(), "s1\n");
    assert_eq!(push("x").quiet(), "s1\n");
    let error = push("y").fails(1);
    assert!(error.contains("belongs to the scheduled event s1, which is different"), "{error}");
    assert_eq!(world.thread(["push", "--idempotency-key", "k", "x"]).quiet(), "s1\n");
    assert_eq!(world.thread(["scheduled", "cancel", "s1"]).quiet(), "s1\n");
    let error = world.thread(["scheduled", "cancel", "s1"]).fails(1);
    assert!(error.contains("there is no scheduled event s1"), "{error}");
    assert_eq!(push("y").quiet(), "s2\n");
    assert_eq!(world.thread(["scheduled", "now", "s2"]).quiet(), "1\n");
    assert_eq!(push("y").quiet(), "1\n");
    world.thread(["scheduled", "now", "s2"]).fails(1);
    world.thread(["scheduled", "now", "2"]).fails(2);
    assert_eq!(contents(&world), ["y"]);
    world.assert_log_is_exact();
}

#[test]
fn lines_of_a_batch_may_be_for_later() {
    let world = World::with_thread();
    let batch = "{\"content\":\"a\",\"in\":\"2h\"}\n{\"content\":\"b\"}\n\
                 {\"content\":\"c\",\"at\":\"2099-01-01T00:00:00Z\"}\n{\"content\":\"d\",\"in\":\"1h\"}\n";
    assert_eq!(world.thread(["push", "--batch"]).stdin(batch).quiet(), "4\n");
    assert_eq!(contents(&world), ["b"]);
    let all: Vec<_> =
        scheduled(&world).iter().map(|one| one["content"].as_str().unwrap().to_owned()).collect();
    assert_eq!(all, ["d", "a", "c"]);
    let json = world.thread(["push", "--batch", "--json", "--in", "3h"]).stdin("{\"content\":\"e\"}").quiet();
    assert_eq!(json, "{\"count\":1,\"first_id\":null,\"last_id\":null,\"scheduled\":1}\n");
    assert_eq!(world.thread(["push", "--lines", "--in", "3h"]).stdin("f\n\ng\n").quiet(), "2\n");
    assert_eq!(scheduled(&world).len(), 6);
    for (line, says) in [
        (
            "{\"content\":\"x\",\"in\":\"soon\"}",
            "line 1 of the batch has a wrong value for 'in': 'soon' is not a duration",
        ),
        ("{\"content\":\"x\",\"at\":\"soon\"}", "has a wrong value for 'at': 'soon' is not a time"),
        ("{\"content\":\"x\",\"at\":\"2099-01-01 10:00\",\"in\":\"1h\"}", "has both 'in' and 'at'"),
    ] {
        let error = world.thread(["push", "--batch"]).stdin(line).fails(2);
        assert!(error.contains(says), "{error}");
    }
    // A short key that nobody knows is no misspelt one.
    let (_, stderr) = world.thread(["push", "--batch"]).stdin("{\"content\":\"x\",\"t\":1}").ends_with(0);
    assert!(stderr.contains("the key 't'"), "{stderr}");
}

#[test]
fn many_that_are_due_at_once_come_in_order_and_all() {
    let world = World::with_thread();
    world.idle_consumer("bot", "");
    let batch: String = (0..2500).map(|n| format!("{{\"content\":\"{n}\",\"in\":\"1h\"}}\n")).collect();
    world.thread(["push", "--batch"]).stdin(batch).quiet();
    let past = "UPDATE scheduled SET due = '2026-03-18T10:30:00.' || substr('000' || (id % 1000), -3) || 'Z'";
    world.db().execute(past, []).unwrap();
    world.thread(["dispatch"]).quiet();
    assert_eq!(world.query("SELECT count(*) FROM events"), 2500);
    let mut expected: Vec<i64> = (1..=2500).collect();
    expected.sort_by_key(|id| (id % 1000, *id));
    let expected: Vec<String> = expected.iter().map(|id| (id - 1).to_string()).collect();
    assert_eq!(contents(&world), expected);
    assert_eq!(world.query("SELECT count(*) FROM scheduled"), 0);
    world.assert_log_is_exact();
}

#[test]
fn each_comes_once_whoever_is_killed() {
    let world = World::with_thread();
    let (mut all, mut killed) = (0, 0);
    // Under load, a round is over before many are killed.
    while killed < 4 {
        let batch: String =
            (0..50).map(|n| format!("{{\"content\":\"{}\",\"in\":\"{}ms\"}}\n", all + n, n * 40)).collect();
        world.thread(["push", "--batch"]).stdin(batch).quiet();
        all += 50;
        while world.query("SELECT count(*) FROM scheduled") > 0 {
            if let Some(pid) = world.timer().filter(|pid| is_running(*pid)) {
                kill_and_wait(pid);
                killed += 1;
            }
            // Two at once.
            let two: Vec<_> = (0..2).map(|_| world.thread(["dispatch"]).spawn()).collect();
            two.into_iter().for_each(|one| assert!(one.wait_with_output().unwrap().status.success()));
        }
    }
    let mut came: Vec<usize> = contents(&world).iter().map(|content| content.parse().unwrap()).collect();
    assert!(came.is_sorted(), "{came:?}");
    came.dedup();
    assert_eq!(came, (0..all).collect::<Vec<_>>());
    world.thread(["push", "--in", "0", "x"]).quiet();
    // The log follows the table.
    wait_until("the last one", || world.jsonl().len() == all + 1);
    world.assert_log_is_exact();
}

#[test]
fn a_worker_makes_what_is_due_events() {
    let world = World::with_thread();
    take_all(&world, "bot");
    let mut worker = world.off(["dispatch", "--follow"]).spawn();
    for n in 1..=3 {
        world.off(["push", "--in", "200ms", "x"]).quiet();
        let expected: Vec<String> = (1..=n).map(|id| id.to_string()).collect();
        world.wait_until("it to be handled", || world.lines("seen.bot") == expected);
    }
    worker.kill().unwrap();
    worker.wait().unwrap();
}

#[test]
fn without_anybody_who_waits_info_and_doctor_say_so_and_dispatch_helps() {
    let world = World::with_thread();
    assert!(!world.thread(["info"]).quiet().contains("Scheduled"));
    world.off(["push", "--in", "1h", "x"]).quiet();
    let info = world.thread(["info"]).quiet();
    assert!(info.contains("Scheduled: 1, and 0 schedules, the next due 20"), "{info}");
    assert!(info.contains("Note: nothing makes what is due events: run `thread dispatch`"), "{info}");
    let json: Value = serde_json::from_str(&world.thread(["info", "--json"]).quiet()).unwrap();
    assert_eq!((&json["scheduled"]["events"], &json["scheduled"]["is_attended"]), (&1.into(), &false.into()));
    let (found, _) = world.thread(["info", "--check"]).ends_with(1);
    assert!(found.starts_with("scheduled: unattended (nothing makes what is due events: "), "{found}");
    let (found, _) = world.thread(["info", "--check", "--json"]).ends_with(1);
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!((&found["healthy"], &found["scheduled"][0]["check"]), (&false.into(), &"unattended".into()));
    assert!(world.thread(["ls"]).quiet().ends_with("0          0  scheduled: unattended\n"));
    let (found, _) = world.thread(["doctor"]).ends_with(1);
    assert!(found.contains("something is due at 20"), "{found}");
    world.thread(["doctor", "--fix"]).ends_with(0);
    assert!(!world.thread(["info"]).quiet().contains("Note:"));
    world.thread(["info", "--check"]).quiet();
    kill_and_wait(world.timer().unwrap());
    world.thread(["dispatch"]).quiet();
    assert!(!world.thread(["info"]).quiet().contains("Note:"));
    assert_eq!(world.thread(["doctor"]).ends_with(0).1, "");
}

#[test]
fn older_programs_refuse_a_thread_in_which_something_is_scheduled() {
    let world = World::with_thread();
    world.push("x");
    world.thread(["scheduled"]).quiet();
    world.thread(["scheduled", "cancel", "s1"]).fails(1);
    let version = || world.query("SELECT user_version FROM pragma_user_version");
    let tables = || world.query("SELECT count(*) FROM sqlite_schema WHERE name LIKE 'schedule%'");
    assert_eq!((version(), tables()), (0, 0));
    world.off(["push", "--in", "1h", "x"]).quiet();
    assert_eq!((version(), tables()), (2, 2));
    // A pool does not lower it.
    world.off(["subscribe", "pool", "cat", "--deliver", "stdin", "--concurrency", "2"]).quiet();
    assert_eq!(version(), 2);
}

#[test]
fn backups_have_what_is_scheduled_and_pruning_leaves_it() {
    let world = World::with_thread();
    world.push("old");
    world.off(["push", "--in", "1h", "x"]).quiet();
    world.off(["prune", "--before-id", "1000", "--force"]).ends_with(0);
    assert_eq!((events(&world).len(), scheduled(&world).len()), (0, 1));
    world.off(["backup", "copy"]).ends_with(0);
    assert_eq!(world.off(["scheduled", "--thread", "copy"]).quiet(), world.off(["scheduled"]).quiet());
}

#[test]
fn a_duration_passes_though_the_clock_is_set_back_and_a_point_in_time_waits_for_the_clock() {
    let Some(library) = preload::library() else { return };
    let world = World::with_thread();
    let clock = Clock::new(world.path("clock"));
    let stepped = |words: &[&str]| {
        let run = world.thread(words).envs(preload::variables(library));
        run.env("STEPPED_CLOCK", clock.path()).quiet()
    };
    stepped(&["push", "--in", "3s", "duration"]);
    wait_until("the timer to be there", || world.timer().is_some());
    let at = (chrono::Utc::now() + Duration::from_secs(2)).to_rfc3339();
    stepped(&["push", "--at", &at, "point"]);
    clock.step(-3600);
    let began = Instant::now();
    wait_until("the duration to pass", || contents(&world).contains(&"duration".to_owned()));
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!(contents(&world), ["duration"]);
    // Forward by a day, of the right time.
    clock.step(86_400);
    wait_until("the point in time", || contents(&world) == ["duration", "point"]);
    world.wait_until_quiet();
    assert_eq!(contents(&world), ["duration", "point"]);
}

#[test]
fn a_hundred_thousand_scheduled_events_cost_a_push_nothing() {
    let world = World::with_thread();
    let push = || {
        let times = (0..15).map(|_| {
            let began = Instant::now();
            world.off(["push", "x"]).quiet();
            began.elapsed()
        });
        times.min().unwrap()
    };
    let before = push();
    let batch = "{\"content\":\"x\",\"in\":\"1h\"}\n".repeat(100_000);
    world.off(["push", "--batch"]).stdin(batch).quiet();
    let after = push();
    assert!(after < before * 2 + Duration::from_millis(5), "{before:?} before, {after:?} after");
}
