//! Killed while a thread's retention is applied.

use thread_testkit::{World, ids};

use crate::inject::{CALLS, Kind, Scene, assert_sound, quiet_push, strace};

const PUSH: &[&str] = &["push", "--source", "self", "--type", "message", "--content", "victim"];

/// A thread that is to keep three of twelve events, of which a consumer has passed eight. Six are in a sealed file.
fn scene() -> Scene {
    let world = World::with_thread();
    world.off(["subscribe", "bot", "--no-handler"]).quiet();
    for n in 0..7 {
        quiet_push(&world, &format!("before {n}"));
    }
    world.off(["ack", "bot", "7"]).quiet();
    world.off(["prune", "--before-id", "2"]).quiet();
    for n in 7..12 {
        quiet_push(&world, &format!("before {n}"));
    }
    world.off(["ack", "bot", "8"]).quiet();
    world.off(["config", "retention.events", "3"]).quiet();
    Scene::new("push that applies retention", world, Kind::Push(1), PUSH)
}

/// All events and, for a line of the log, the ids.
fn stored(world: &World) -> Vec<i64> {
    ids(&world.table_as_jsonl().join("\n"))
}

#[test]
fn retention_killed_at_any_call_loses_nothing_that_a_consumer_needs_and_tears_nothing() {
    if strace().is_none() {
        return;
    }
    let scene = scene();
    let world = &scene.world;
    let (mut kills, mut after_deleting) = (0, 0);
    for calls in CALLS {
        for target in &scene.targets(calls, (2, 1)) {
            scene.begin();
            let ended = scene.disturbed(calls, &target.kill());
            let how = format!("killed at {}", target.call);
            assert!(ended.killed, "{how}: it was not; exit {:?} {}", ended.code, ended.stderr);
            kills += 1;
            after_deleting += u32::from(!stored(world).contains(&2));
            // The next push completes the log, and then goes on with what was begun.
            quiet_push(world, "next");
            assert_sound(&world.db(), &how);
            let left = stored(world);
            let needed: Vec<i64> = left.iter().copied().filter(|id| *id > 8).collect();
            let newest = *left.last().unwrap();
            assert_eq!(needed, (9..=newest).collect::<Vec<_>>(), "{how}");
            assert!(newest >= 13 && (ended.stdout.is_empty() || newest == 14), "{how}: {newest}");
            let (log, table) = (world.jsonl(), world.table_as_jsonl());
            assert!(table.iter().all(|line| log.contains(line)), "{how}: {log:?} lacks some of {table:?}");
            assert!(ids(&log.join("\n")).is_sorted_by(|a, b| a < b), "{how}: {log:?}");
            let current = world.lines("inbox/events.jsonl");
            assert!(current.iter().all(|line| table.contains(line)), "{how}: {current:?}");
            world.wait_until(&how, || {
                world.off(["push", "again", "--idempotency-key", "again"]).quiet();
                stored(world).first() == Some(&9)
            });
            assert_eq!(world.off(["doctor"]).quiet(), "healthy\n", "{how}");
        }
    }
    eprintln!("killed at a call: {kills} kills, {after_deleting} of them after events were deleted");
    assert!(kills > 20 && after_deleting > 3, "{kills}, {after_deleting}");
}
