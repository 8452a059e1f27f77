//! Many processes at once: nothing fails, no event is lost, and the JSONL log always matches the table.

use std::collections::BTreeSet;
use std::fs;
use std::process::Child;

use thread_testkit::{World, ids, take_all, wait_until};

/// Starts shell scripts that wait for each other, so that they run at the same time.
fn together(world: &World, scripts: impl IntoIterator<Item = String>) -> Vec<Child> {
    let children = scripts.into_iter().map(|script| {
        world.sh(&format!("set -e; until [ -e start ]; do sleep 0.01; done; {script}")).spawn()
    });
    let children: Vec<Child> = children.collect();
    world.write("start", "");
    children
}

/// Waits for all of them; each must succeed without warnings. Returns what they printed.
fn all_succeed(children: Vec<Child>) -> Vec<String> {
    let ends = children.into_iter().map(|child| child.wait_with_output().unwrap());
    let outputs: Vec<_> = ends.collect();
    let printed = outputs.into_iter().map(|output| {
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    });
    printed.collect()
}

fn pushes(count: u32, content: &str) -> String {
    let push = "thread push --source self --type message --content";
    format!("for i in $(seq {count}); do {push} \"{content} $i\"; done")
}

fn ndjson(count: usize) -> String {
    "{\"source\":\"batch\",\"type\":\"record\",\"content\":\"x\"}\n".repeat(count)
}

/// The names of the rotated files, sorted.
fn rotated(world: &World) -> Vec<String> {
    let names = fs::read_dir(world.inbox()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("events-")).collect();
    names.sort();
    names
}

#[test]
fn sixteen_processes_push_at_once_and_nothing_is_lost() {
    let world = World::with_thread();
    let children = together(&world, (0..16).map(|who| pushes(20, &format!("pusher {who}"))));
    let printed = all_succeed(children);
    let mut seen = BTreeSet::new();
    for one in &printed {
        let own: Vec<i64> = one.lines().map(|id| id.parse().unwrap()).collect();
        assert_eq!(own.len(), 20);
        assert!(own.is_sorted(), "each pusher's ids rise: {own:?}");
        seen.extend(own);
    }
    assert_eq!(seen, (1..=320).collect());
    world.assert_log_is_exact();
    // Each pusher's order is kept, and the stored content is what it pushed.
    for (who, one) in printed.iter().enumerate() {
        for (i, id) in one.lines().enumerate() {
            let sql =
                format!("SELECT count(*) FROM events WHERE id = {id} AND content = 'pusher {who} {}'", i + 1);
            assert_eq!(world.query(&sql), 1);
        }
    }
    let log = world.log();
    assert_eq!(log.iter().filter(|line| line.starts_with("[INFO] push: ")).count(), 320);
    assert_eq!(log.len(), 320, "nothing else happened: {log:?}");
}

#[test]
fn batches_stay_whole_between_single_pushes() {
    let world = World::with_thread();
    world.write("batch", ndjson(50));
    let batches = (0..4).map(|_| "for i in $(seq 5); do thread push --batch --json <batch; done".to_owned());
    let singles = (0..4).map(|who| pushes(10, &format!("single {who}")));
    let children = together(&world, batches.chain(singles));
    let printed = all_succeed(children);
    for answer in printed[..4].iter().flat_map(|one| one.lines()) {
        let answer: serde_json::Value = serde_json::from_str(answer).unwrap();
        let (first, last) = (answer["first_id"].as_i64().unwrap(), answer["last_id"].as_i64().unwrap());
        assert_eq!((answer["count"].as_i64(), last - first), (Some(50), 49));
        let sql =
            format!("SELECT count(*) FROM events WHERE id BETWEEN {first} AND {last} AND source = 'batch'");
        assert_eq!(world.query(&sql), 50);
    }
    assert_eq!(world.query("SELECT count(*) FROM events"), 4 * 5 * 50 + 4 * 10);
    world.assert_log_is_exact();
}

#[test]
fn everything_at_once_works_and_consumers_see_all() {
    let world = World::with_thread();
    for consumer in ["a", "b"] {
        take_all(&world, consumer);
    }
    // A consumer whose handler never runs; the test reads for it.
    let words = ["subscribe", "--consumer", "reader", "--handler", "true", "--filter", "type = 'record'"];
    world.thread(words).quiet();
    world.write("batch", ndjson(7));
    let repeat = |what: &str| format!("for i in $(seq 12); do {what}; done");
    let scripts = [
        pushes(12, "one"),
        pushes(12, "two"),
        pushes(12, "three"),
        repeat("thread push --batch <batch"),
        repeat("thread push --batch <batch"),
        repeat("thread pop --consumer reader --last-event-id 0 --limit 5"),
        repeat("thread peek --last-event-id $i --limit 20"),
        repeat("thread peek --last-event-id 0 --limit 1000 --filter \"source = 'batch'\""),
        repeat("thread info --json"),
        repeat("thread dispatch"),
        repeat("thread dispatch"),
    ];
    let printed = all_succeed(together(&world, scripts));
    for peeked in &printed[5..8] {
        // Every line is a whole event, and each reader sees them in order.
        let all = ids(peeked);
        assert!(all.iter().all(|id| (1..=204).contains(id)));
    }
    for info in printed[8].lines() {
        let info: serde_json::Value = serde_json::from_str(info).unwrap();
        assert_eq!(info["subscriptions"].as_array().unwrap().len(), 3);
    }
    let total = 3 * 12 + 2 * 12 * 7;
    assert_eq!(world.query("SELECT count(*) FROM events"), total);
    for consumer in ["a", "b"] {
        let name = format!("seen.{consumer}");
        wait_until("all to be handled", || world.lines(&name).len() as i64 >= total);
        assert_eq!(world.lines(&name), (1..=total).map(|id| id.to_string()).collect::<Vec<_>>());
    }
    world.assert_log_is_exact();
}

#[test]
fn subscribing_at_once_has_one_winner() {
    let world = World::with_thread();
    let subscribe = |who| {
        format!(
            "if thread subscribe --consumer worker --handler 'true {who}' >/dev/null 2>&1; then echo {who}; else [ $? = 1 ]; fi"
        )
    };
    let printed = all_succeed(together(&world, (0..8).map(subscribe)));
    let winners: Vec<&str> = printed.iter().flat_map(|one| one.lines()).collect();
    assert_eq!(winners.len(), 1, "{printed:?}");
    assert_eq!(world.consumer("worker")["handler_cmd"], format!("true {}", winners[0]));
}

#[test]
fn acknowledging_at_once_ends_at_the_furthest() {
    let world = World::with_thread();
    world.thread(["push", "--batch"]).stdin(ndjson(200)).quiet();
    let words = ["subscribe", "--consumer", "reader", "--handler", "true", "--filter", "type = 'message'"];
    world.thread(words).quiet();
    // Each process acknowledges every eighth id; an acknowledgement behind the cursor warns and
    // changes nothing.
    let acks = (1..=8).map(|who| {
        format!(
            "for i in $(seq {who} 8 200); do thread ack --consumer reader --event-id $i 2>/dev/null; done"
        )
    });
    all_succeed(together(&world, acks));
    assert_eq!(world.consumer("reader")["last_acked_id"], 200);
}

#[test]
fn the_log_is_rotated_when_a_push_finds_more_than_ten_thousand_lines() {
    let world = World::with_thread();
    assert_eq!(world.thread(["push", "--batch"]).stdin(ndjson(10_000)).quiet(), "10000\n");
    world.push("finds 10,000 and stays");
    assert_eq!(rotated(&world), Vec::<String>::new());
    assert_eq!(world.lines("inbox/events.jsonl").len(), 10_001);
    world.push("finds 10,001 and rotates");
    let names = rotated(&world);
    assert_eq!(names.len(), 1);
    let shape: String = names[0].chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert_eq!(shape, "events-00000000-000000.jsonl");
    assert_eq!(world.lines(format!("inbox/{}", names[0])).len(), 10_001);
    assert_eq!(world.lines("inbox/events.jsonl").len(), 1);
    world.assert_log_is_exact();
}

#[test]
fn the_log_is_rotated_once_under_concurrent_pushers() {
    let world = World::with_thread();
    world.thread(["push", "--batch"]).stdin(ndjson(9_960)).quiet();
    let printed = all_succeed(together(&world, (0..16).map(|who| pushes(6, &format!("pusher {who}")))));
    let seen: BTreeSet<i64> =
        printed.iter().flat_map(|one| one.lines()).map(|id| id.parse().unwrap()).collect();
    assert_eq!(seen, (9_961..=9_960 + 96).collect());
    let names = rotated(&world);
    assert_eq!(names.len(), 1, "{names:?}");
    let lines = world.lines(format!("inbox/{}", names[0])).len();
    // At most sixteen pushers can have stored their event when the log's writer exceeds the limit.
    assert!((10_001..=10_016).contains(&lines), "{lines} lines");
    world.assert_log_is_exact();
}

#[test]
fn rotations_within_one_second_get_different_names_in_order() {
    let world = World::with_thread();
    for _ in 0..4 {
        world.thread(["push", "--batch"]).stdin(ndjson(10_001)).quiet();
    }
    world.push("last");
    assert_eq!(rotated(&world).len(), 4);
    world.assert_log_is_exact();
    assert_eq!(world.lines("inbox/events.jsonl").len(), 1);
}

#[test]
fn the_log_stays_bounded_and_whole_under_concurrent_pushers() {
    let world = World::with_thread();
    let line = "[2026-01-01T00:00:00.000Z] [INFO] old\n";
    world.write("inbox/logs/thread.log", line.repeat(10_001));
    all_succeed(together(&world, (0..8).map(|who| pushes(5, &format!("pusher {who}")))));
    let names = fs::read_dir(world.inbox().join("logs")).unwrap();
    let names: Vec<String> = names.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    let old: Vec<&String> = names.iter().filter(|name| *name != "thread.log").collect();
    assert_eq!(old.len(), 1, "{names:?}");
    let all =
        world.lines(format!("inbox/logs/{}", old[0])).into_iter().chain(world.lines("inbox/logs/thread.log"));
    let pushed: BTreeSet<String> = all
        .filter_map(|line| {
            line.split_once("[INFO] push: source=self type=message id=").map(|(_, id)| id.to_owned())
        })
        .collect();
    assert_eq!(pushed, (1..=40).map(|id| id.to_string()).collect());
}
