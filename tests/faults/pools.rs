//! Pools whose handlers, supervisors and timer are killed at any moment.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use thread_testkit::{World, wait_until};

use crate::kept::kill_in_turns;

/// Handles one event: holds a lock for it and one for its key, notes when it begins and ends, and fails sometimes.
const HANDLE: &str = r#"handle() {
    id=${1#*:}; id=${id%%,*}; key=${1##*key_}; key=${key%%_*}
    exec 8>"lock-$id" 9>"lock-key$key"
    flock -n 8 || echo "two of event $id" >>overlaps
    flock -n 9 || echo "two of key $key" >>overlaps
    echo "$key $id" >>begun
    case $id in
    *1) sleep 0.05 ;;
    *3) [ -e "seen$id" ] || { : >"seen$id"; return 75; } ;;
    *5) [ -e "failed$id" ] || { : >"failed$id"; return 1; } ;;
    *7) [ -e "died$id" ] || { : >"died$id"; kill -9 $$; } ;;
    esac
    echo "$id" >>done
    exec 8>&- 9>&-
}
echo $$ >>pids
"#;

const ONCE: &str = "read -r line; handle \"$line\"";

const KEPT: &str = r#"while IFS= read -r line; do
    handle "$line"; code=$?
    exec 8>&- 9>&-
    case $code in
    0) echo "{\"ack\":$id}" ;;
    75) echo "{\"nack\":$id,\"delay\":\"20ms\",\"attempt\":false}" ;;
    *) echo "{\"nack\":$id,\"delay\":\"20ms\"}" ;;
    esac
done"#;

/// Nothing overlapped, everything was done, in the order of its key, and nothing is left.
fn is_as_it_should(world: &World, pushed: i64, kills: impl std::fmt::Display) {
    assert_eq!(world.read("overlaps"), "", "after {kills} kills");
    let done: BTreeSet<i64> = world.lines("done").iter().map(|id| id.parse().unwrap()).collect();
    assert_eq!(done, (1..=pushed).collect(), "after {kills} kills");
    let mut newest = BTreeMap::new();
    for line in world.lines("begun") {
        let (key, id) = line.split_once(' ').unwrap();
        let id: i64 = id.parse().unwrap();
        let before = newest.insert(key.to_owned(), id).unwrap_or(0);
        assert!(before <= id, "of key {key}, {id} began after {before}");
    }
    assert_eq!(world.consumer("bot")["dead"], 0);
    // Each is finished once, however often it was given.
    assert_eq!(world.query("SELECT sum(handled) FROM figures"), pushed, "after {kills} kills");
    for table in ["finished", "waits", "claims"] {
        assert_eq!(world.query(&format!("SELECT count(*) FROM {table}")), 0, "{table}");
    }
}

fn pool_loses_nothing(deliver: &str, rest: &str, batch: &str) {
    let world = World::with_thread();
    world.script("handler", &format!("#!/bin/sh\n{HANDLE}{rest}\n"));
    let options = ["--deliver", deliver, "--concurrency", "8", "--key", "content", "--batch-size", batch];
    let patient = ["--backoff", "20ms", "--max-attempts", "never", "--idle", "200ms"];
    let patient = if deliver == "stdin" { &patient[..4] } else { &patient[..] };
    world.subscribe("bot", "exec ./handler", &[&options[..], patient].concat());
    let mut pushed = 0_i64;
    let push = || {
        // So many that there is always something to do, but not more and more.
        if pushed - world.consumer("bot")["last_acked_id"].as_i64().unwrap() < 100 {
            let lines: String = (0..5).map(|n| format!("key_{}_\n", (pushed + n) % 6)).collect();
            world.thread(["push", "--lines"]).stdin(lines).ok();
            pushed += 5;
        } else {
            world.thread(["dispatch"]).ok();
        }
    };
    let victims = || {
        let handler = world.lines("pids").last().and_then(|pid| pid.parse().ok());
        let supervisor = world.run_state("bot", "$.supervisor.pid").as_u64();
        vec![supervisor, handler, supervisor, world.timer().map(u64::from)]
    };
    let kills = kill_in_turns(11, push, victims);
    wait_until("all to be finished", || {
        world.thread(["dispatch"]).ok();
        world.consumer("bot")["last_acked_id"] == pushed
    });
    is_as_it_should(&world, pushed, kills);
    println!("{deliver}: {pushed} events, {kills} kills");
    world.thread(["stop", "bot"]).output();
    world.wait_until_quiet();
}

#[test]
fn a_pool_of_runs_loses_nothing_and_keeps_the_order_of_keys_whoever_is_killed() {
    pool_loses_nothing("stdin", ONCE, "1");
}

#[test]
fn a_pool_of_kept_handlers_loses_nothing_and_keeps_the_order_of_keys_whoever_is_killed() {
    pool_loses_nothing("ndjson", KEPT, "3");
}

/// Takes events by claims, and handles them like [`HANDLE`]; is killed with claims in hand.
const PULLER: &str = r#"while :; do
    line=$(thread pop bot --claim 1s --wait 10s) || { sleep 0.1; continue; }
    [ -n "$line" ] || continue
    handle "$line"; code=$?
    exec 8>&- 9>&-
    token=${line##*\"claim\":\"}; token=${token%%\"*}
    case $code in
    0) thread ack bot "$id" >/dev/null ;;
    75) thread nack bot "$id" --claim "$token" --delay 20ms --no-attempt >/dev/null ;;
    *) thread nack bot "$id" --claim "$token" --delay 20ms >/dev/null ;;
    esac
done
"#;

/// A program that outlives its claim is no failure of the queue, so those that are killed are killed with all they started.
#[test]
fn claims_lose_nothing_and_keep_the_order_of_keys_whoever_is_killed() {
    let world = World::with_thread();
    world.script("puller", &format!("#!/bin/sh\n{HANDLE}{PULLER}"));
    let options = ["--no-handler", "--concurrency", "4", "--key", "content"];
    let patient = ["--backoff", "20ms", "--max-attempts", "never"];
    world.thread([&["subscribe", "bot"][..], &options, &patient].concat()).quiet();
    let start = || {
        let mut command = world.run(world.path("puller")).env("THREAD_DIR", world.inbox()).into_command();
        command.process_group(0).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut pullers: Vec<_> = (0..6).map(|_| start()).collect();
    let (mut pushed, mut kills) = (0_i64, 0);
    let push = || {
        if pushed - world.consumer("bot")["last_acked_id"].as_i64().unwrap() < 60 {
            let lines: String = (0..5).map(|n| format!("key_{}_\n", (pushed + n) % 6)).collect();
            world.thread(["push", "--lines"]).stdin(lines).ok();
            pushed += 5;
        }
        let at = kills % pullers.len();
        end_group(&mut pullers[at]);
        pullers[at] = start();
        kills += 1;
    };
    kill_in_turns(13, push, || vec![None]);
    wait_until("all to be finished", || {
        // Some kill themselves.
        for puller in &mut pullers {
            if puller.try_wait().unwrap().is_some() {
                *puller = start();
            }
        }
        world.consumer("bot")["last_acked_id"] == pushed
    });
    pullers.iter_mut().for_each(end_group);
    is_as_it_should(&world, pushed, kills);
    println!("claims: {pushed} events, {kills} kills");
    world.wait_until_quiet();
}

/// With all that it started.
fn end_group(leader: &mut Child) {
    let group = Pid::from_child(leader);
    kill_process_group(group, Signal::KILL).ok();
    leader.wait().unwrap();
}
