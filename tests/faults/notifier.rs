//! A notifier is never trusted: one that loses tasks, or runs none, costs a second and nothing else.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Child;
use std::time::{Duration, Instant};

use thread_testkit::{Dice, Run, World, long, wait_until};

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/notifier");

/// How soon an event must reach its handler, whatever the notifier does.
const SOON: Duration = Duration::from_secs(2);

/// The daemon of the test notifier. Killed when dropped.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        // Does nothing if it has ended already.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The number of this program's background processes.
fn in_background(world: &World) -> usize {
    let words = |pid: &u32| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let ours = |pid: &u32| {
        let words = String::from_utf8_lossy(&words(pid)).into_owned();
        words.contains("\0_wake\0") || words.contains("\0_supervise\0")
    };
    world.processes().iter().filter(|pid| ours(pid)).count()
}

/// Pushes to an idle consumer through a notifier in the given `NOTIFIER_MOOD`.
fn pushes_in_mood(mood: &str, pushes: usize) {
    let world = World::with_thread();
    symlink(FIXTURE, world.bin().join("notifier")).unwrap();
    fs::create_dir(world.path("tasks")).unwrap();
    let moody = |run: Run| run.env("NOTIFIER_HOME", world.path("tasks")).env("NOTIFIER_MOOD", mood);
    // Two consumers that unrelated pushes must not start again: one is out of attempts, one was
    // stopped with an event pending.
    let push = |kind: &str, content: &str| {
        world.thread(["push", "--source", "self", "--type", kind, "--content", content])
    };
    let record = "type = 'record'";
    world.subscribe("quitter", "echo >>quits; exit 1", &["--filter", record, "--max-attempts", "1"]);
    world.subscribe("stopped", "echo >>stops; touch up; sleep 1000", &["--filter", record]);
    push("record", "for two").env("THREAD_NOTIFIER", "embedded").quiet();
    world.wait_for_file("up");
    world.thread(["stop", "--consumer", "stopped"]).quiet();
    world.wait_for_state("quitter", "stalled");
    world.wait_until_quiet();

    let handler = "mkdir busy || echo two >>overlap; cat >>got; rmdir busy";
    world.subscribe(
        "worker",
        handler,
        &["--deliver", "stdin", "--from", "new", "--filter", "type = 'message'"],
    );
    let _daemon = (mood != "swallows").then(|| Daemon(moody(world.sh("exec notifier daemon")).spawn()));
    let mut dice = Dice::new();
    let mut times = Vec::new();
    for number in 1..=pushes {
        let began = Instant::now();
        moody(push("message", "x")).quiet();
        wait_until("the event to be handled", || {
            world.lines("got").len() == number && !world.path("busy").exists()
        });
        times.push(began.elapsed());
        wait_until("the consumer to be idle", || world.run_state("worker", "$.phase") == "idle");
        std::thread::sleep(Duration::from_micros(dice.up_to(40_000)));
    }
    let last = Instant::now();
    wait_until("the background to be empty", || in_background(&world) == 0);
    let left = last.elapsed();

    let newest = world.query("SELECT max(id) FROM events");
    assert_eq!(
        thread_testkit::ids(&world.read("got")),
        (2..=newest).collect::<Vec<_>>(),
        "each once, in order"
    );
    assert!(!world.path("overlap").exists(), "two handlers of one consumer ran at once");
    assert_eq!(
        (world.lines("quits").len(), world.lines("stops").len()),
        (1, 1),
        "a stalled or stopped consumer was started again"
    );
    let asked = world.lines("tasks/asked").len();
    assert_eq!(asked, pushes, "the notifier is asked once for each push");
    times.sort();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64();
    eprintln!(
        "a notifier that {mood}: {pushes} pushes, half within {:.3} s, nine in ten within {:.3} s, all within \
         {:.3} s; nothing left {:.1} s after the last",
        at(0.5),
        at(0.9),
        at(1.0),
        left.as_secs_f64()
    );
    // With all other tests running in parallel, the timing would mean nothing.
    if long() {
        assert!(*times.last().unwrap() <= SOON, "an event took {:?}", times.last());
        assert!(left <= Duration::from_secs(5), "something was left for {left:?}");
    }
}

fn number(short: usize) -> usize {
    if long() { 300 } else { short }
}

#[test]
fn every_push_reaches_an_idle_consumer_through_a_notifier_that_works() {
    pushes_in_mood("works", number(20));
}

#[test]
fn every_push_reaches_an_idle_consumer_through_a_notifier_that_loses_every_seventh_task() {
    pushes_in_mood("loses", number(22));
}

#[test]
fn every_push_reaches_an_idle_consumer_through_a_notifier_that_runs_nothing() {
    pushes_in_mood("swallows", number(6));
}
