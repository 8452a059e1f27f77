//! Real programs at work on a thread, while they are killed at random.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use thread_testkit::Dice;
use thread_testkit::{World, kill};

use crate::record::Recorder;
use crate::rows::{self, Stored};

const CONSUMERS: [&str; 5] = ["wake", "runs", "kept", "pool", "claims"];

/// So many events may be unfinished before no more are pushed.
const BACKLOG: i64 = 40;

/// Sets `how` to one of sixteen letters.
const CHANCE: &str = "read -r how </proc/sys/kernel/random/uuid; how=${how%\"${how#?}\"}";

const WAKE: &str = "last=$(thread pop wake --limit 3 | sed -n 's/^{\"id\":\\([0-9]*\\).*/\\1/p' | tail -n 1)
case $how in [012]) exit 1 ;; 3) sleep 0.1 ;; esac
[ -z \"$last\" ] || thread ack wake $last >/dev/null";

const RUNS: &str = "cat >/dev/null
case $how in [0123]) exit 1 ;; 4) exit 65 ;; 5) exit 75 ;; [67]) sleep 0.1 ;; 8) kill -9 $$ ;; esac";

const KEPT: &str = "while IFS= read -r line; do
    id=${line#*:}; id=${id%%,*}
    CHANCE
    case $how in
    [012]) echo \"{\\\"nack\\\":$id,\\\"delay\\\":\\\"20ms\\\"}\" ;;
    3) echo \"{\\\"reject\\\":$id}\" ;;
    4) echo \"{\\\"nack\\\":$id,\\\"delay\\\":\\\"20ms\\\",\\\"attempt\\\":false}\" ;;
    5) kill -9 $$ ;;
    *) echo \"{\\\"ack\\\":$id}\" ;;
    esac
done";

const CLAIMS: &str = "while [ ! -e over ]; do
    line=$(thread pop claims --claim 400ms --wait 100ms --limit 1) || { sleep 0.05; continue; }
    [ -n \"$line\" ] || continue
    id=${line#*:}; id=${id%%,*}; token=${line##*\\\"claim\\\":\\\"}; token=${token%%\\\"*}
    CHANCE
    case $how in
    0) thread nack claims $id --claim $token --delay 20ms ;;
    1) thread nack claims $id --claim $token --delay 20ms --no-attempt ;;
    2) thread reject claims $id --claim $token ;;
    3) thread claim claims $id 600ms --claim $token; thread ack claims $id --claim $token ;;
    4) ;;
    *) thread ack claims $id --claim $token ;;
    esac >/dev/null
done";

/// What happened, besides what is in the trace.
#[derive(Debug, Default)]
pub struct Counts {
    pub kills: i64,
}

/// The states that a thread went through in so much time.
pub fn trace(time: Duration) -> (Vec<Stored>, Counts) {
    let world = World::with_thread();
    subscribe(&world);
    let recorder = Recorder::begin(&world.inbox().join("events.db"));
    let (goes_on, pushed, kills) = (AtomicBool::new(true), AtomicI64::new(0), AtomicI64::new(0));
    let over = AtomicBool::new(false);
    std::thread::scope(|outer| {
        let (world, goes_on, pushed, over) = (&world, &goes_on, &pushed, &over);
        outer.spawn(move || pull(world, over));
        outer.spawn(move || pull(world, over));
        std::thread::scope(|scope| {
            scope.spawn(move || push(world, goes_on, pushed, Dice::new()));
            scope.spawn(move || push(world, goes_on, pushed, Dice::new()));
            scope.spawn(|| meddle(world, goes_on, Dice::new()));
            scope.spawn(|| strike(world, goes_on, &kills, Dice::new()));
            let end = Instant::now() + time;
            while Instant::now() < end {
                std::thread::sleep(Duration::from_millis(20));
            }
            goes_on.store(false, Ordering::SeqCst);
        });
        let is_settled = std::panic::catch_unwind(AssertUnwindSafe(|| settle(world)));
        // Whatever has happened, or nobody would ever see it.
        over.store(true, Ordering::SeqCst);
        world.write("over", "");
        is_settled.unwrap();
    });
    for consumer in CONSUMERS {
        world.thread(["stop", consumer]).output();
    }
    world.wait_until_quiet();
    let (mut states, mut last) = (Vec::new(), Stored::default());
    recorder.replay(&mut |conn| {
        last = rows::read(conn, &last);
        states.push(last.clone());
    });
    world.thread(["doctor"]).ok();
    (states, Counts { kills: kills.into_inner() })
}

fn subscribe(world: &World) {
    let script = |name: &str, text: &str| {
        let text = text.replace("CHANCE", CHANCE);
        world.script(name, &format!("echo $$ >>pids\n{text}"));
    };
    let chance = |text: &str| format!("CHANCE\n{text}");
    script("wake", &chance(WAKE));
    script("runs", &chance(RUNS));
    script("pool", &chance(RUNS));
    script("kept", KEPT);
    script("puller", CLAIMS);
    let quick = ["--backoff", "20ms,60ms", "--max-attempts", "3", "--stall-after", "3", "--probe", "300ms"];
    let subscribe = |name: &str, options: &[&str]| {
        let handler = format!("exec ./{name}");
        let handler: &[&str] = if name == "claims" { &["--no-handler"] } else { &[&handler] };
        world.thread([&["subscribe", name], handler, options, &quick].concat()).ok();
    };
    subscribe("wake", &["--filter", "type = 'record'"]);
    subscribe("runs", &["--deliver", "stdin", "--batch-size", "3"]);
    subscribe("kept", &["--deliver", "ndjson", "--batch-size", "3", "--key", "subtype", "--idle", "200ms"]);
    let pool = ["--deliver", "stdin", "--batch-size", "2", "--concurrency", "3", "--key", "subtype"];
    subscribe("pool", &pool);
    subscribe("claims", &["--concurrency", "3", "--key", "subtype", "--filter", "type = 'record'"]);
}

/// Read from the table, because commands may be killed.
fn cursor(world: &World, consumer: &str) -> i64 {
    let sql = "SELECT coalesce(max(last_acked_id), 0) FROM consumer_progress WHERE consumer_id = ";
    world.query(&format!("{sql}'{consumer}'"))
}

fn newest(world: &World) -> i64 {
    world.query("SELECT coalesce(max(id), 0) FROM events")
}

fn unfinished(world: &World) -> i64 {
    let cursors = CONSUMERS.map(|consumer| cursor(world, consumer));
    newest(world) - cursors.into_iter().min().unwrap_or(0)
}

/// Programs that claim events, of which another one begins as soon as one was killed.
fn pull(world: &World, over: &AtomicBool) {
    while !over.load(Ordering::SeqCst) {
        world.run(world.path("puller")).env("THREAD_DIR", world.inbox()).output();
    }
}

/// Each event says of how many it was pushed with, and with which number.
fn push(world: &World, goes_on: &AtomicBool, pushed: &AtomicI64, mut dice: Dice) {
    while goes_on.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(dice.up_to(60)));
        if unfinished(world) > BACKLOG {
            continue;
        }
        let kind = if dice.up_to(2) == 0 { "message" } else { "record" };
        let count = if dice.up_to(3) == 0 { 1 + dice.up_to(4) } else { 1 };
        let batch = pushed.fetch_add(1, Ordering::SeqCst);
        let lines: Vec<String> = (1..=count).map(|n| format!("{batch}: {n} of {count}")).collect();
        let key = format!("k{}", dice.up_to(3));
        let options = ["push", "--lines", "--source", "test", "--type", kind, "--subtype", &key];
        world.thread(options).stdin(lines.join("\n")).output();
    }
}

/// What people do.
fn meddle(world: &World, goes_on: &AtomicBool, mut dice: Dice) {
    while goes_on.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(dice.up_to(30)));
        let consumer = CONSUMERS[dice.up_to(4) as usize];
        let run = |arguments: &[&str]| {
            world.thread(arguments).output();
        };
        let near = |dice: &mut Dice| (newest(world) - dice.up_to(20) as i64).max(1).to_string();
        match dice.up_to(15) {
            0 => {
                run(&["pause", consumer]);
                std::thread::sleep(Duration::from_millis(dice.up_to(80)));
                run(&["resume", consumer]);
            }
            1 | 2 => run(&["resume", consumer]),
            3 => {
                run(&["stop", consumer, "--kill-after", "50ms"]);
                run(&["resume", consumer]);
            }
            4 => {
                run(&["stop", consumer, "--skip", "--kill-after", "50ms"]);
                run(&["resume", consumer]);
            }
            5 => {
                let cursor = cursor(world, consumer);
                run(&["seek", consumer, &(cursor - dice.up_to(6) as i64).max(0).to_string()]);
            }
            6 | 7 => run(&["ack", ["kept", "pool", "claims"][dice.up_to(2) as usize], &near(&mut dice)]),
            8 => run(&["nack", ["kept", "pool", "claims"][dice.up_to(2) as usize], &near(&mut dice)]),
            9 => run(&["dead", "retry", consumer, "--all"]),
            10 => run(&["dead", "discard", consumer, "--all"]),
            _ => run(&["dispatch"]),
        }
    }
}

/// Kills processes, half of the time handlers.
fn strike(world: &World, goes_on: &AtomicBool, kills: &AtomicI64, mut dice: Dice) {
    while goes_on.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(20 + dice.up_to(120)));
        let handlers = world.lines("pids");
        let recent = handlers.len().saturating_sub(1 + dice.up_to(3) as usize);
        let all = world.processes();
        let victim = match dice.up_to(1) {
            0 => handlers.get(recent).and_then(|pid| pid.parse().ok()).filter(|pid| all.contains(pid)),
            _ => all.get(dice.up_to(all.len().max(1) as u64 - 1) as usize).copied(),
        };
        if let Some(pid) = victim {
            kill(pid);
            kills.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Waits until everything is finished.
fn settle(world: &World) {
    thread_testkit::wait_until("everything to be finished", || {
        for consumer in CONSUMERS {
            // It is given up, or whoever paused it was killed.
            if world.run_state(consumer, "$.phase") == "stalled"
                || world.run_state(consumer, "$.paused") == true
            {
                world.thread(["resume", consumer]).output();
            }
        }
        world.thread(["dispatch"]).output();
        std::thread::sleep(Duration::from_millis(50));
        CONSUMERS.iter().all(|consumer| world.consumer(consumer)["pending"] == 0)
    });
}
