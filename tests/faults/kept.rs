//! Handlers that are kept, killed at any moment, with their supervisors and what attends to their waits.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use thread_testkit::{World, kill, long, wait_until};

/// Holds a lock, as do its children; notes each event before it answers, and answers some in another order, some later,
/// some never.
const HANDLER: &str = r#"exec 9>busy
flock -n 9 || echo overlap >>overlaps
sleep 1000 9>&9 &
held=
while IFS= read -r line; do
    id=${line#*:}; id=${id%%,*}
    case $id in
    *3) [ -e "seen$id" ] || { : >"seen$id"; echo "{\"nack\":$id,\"delay\":\"20ms\",\"attempt\":false}"; continue; } ;;
    *5) [ -e "held$id" ] || { : >"held$id"; held="$held $id"; continue; } ;;
    *7) [ -e "died$id" ] || { : >"died$id"; kill -9 $$; } ;;
    esac
    for one in $id $held; do echo $one >>acked; echo "{\"ack\":$one}"; done
    held=
done
for one in $held; do echo $one >>acked; echo "{\"ack\":$one}"; done"#;

#[test]
fn a_kept_handler_loses_nothing_whoever_is_killed_and_never_has_a_second_beside_it() {
    let world = World::with_thread();
    world.script("handler", &format!("#!/bin/sh\n{HANDLER}\n"));
    let patient =
        ["--deliver", "ndjson", "--backoff", "20ms", "--max-attempts", "never", "--batch-size", "8"];
    world.subscribe(
        "bot",
        "exec ./handler",
        &[&patient[..], &["--idle", "200ms", "--timeout", "1s"]].concat(),
    );
    let mut pushed = 0;
    let push = || {
        world.thread(["push", "--lines"]).stdin("a\nb\nc\nd\ne\n").ok();
        pushed += 5;
    };
    let victims = || {
        let of = |field: &str| world.run_state("bot", field).as_u64();
        vec![of("$.supervisor.pid"), of("$.handler.pid"), world.timer().map(u64::from)]
    };
    let kills = kill_in_turns(7, push, victims);
    wait_until("all to be finished", || {
        world.thread(["dispatch"]).ok();
        world.consumer("bot")["last_acked_id"] == pushed
    });
    assert_eq!(world.read("overlaps"), "", "after {kills} kills");
    let acked: BTreeSet<i64> = world.lines("acked").iter().map(|id| id.parse().unwrap()).collect();
    assert_eq!(acked, (1..=pushed).collect(), "after {kills} kills");
    assert_eq!(world.consumer("bot")["dead"], 0);
    assert_eq!(world.query("SELECT (SELECT count(*) FROM finished) + (SELECT count(*) FROM waits)"), 0);
    println!("{pushed} events, {kills} kills");
    world.thread(["stop", "bot"]).output();
    world.wait_until_quiet();
}

/// Kills one of the `victims` after another, at random moments, for 8 s (long: 300 s). Calls `push` before each. Returns
/// how many were killed.
pub fn kill_in_turns(seed: u64, mut push: impl FnMut(), victims: impl Fn() -> Vec<Option<u64>>) -> u32 {
    let end = Instant::now() + Duration::from_secs(if long() { 300 } else { 8 });
    let (mut kills, mut dice) = (0, seed);
    while Instant::now() < end {
        push();
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_micros(dice >> 48));
        let victims = victims();
        if let Some(pid) = victims[(dice >> 33) as usize % victims.len()] {
            kill(pid as u32);
            kills += 1;
        }
    }
    kills
}
