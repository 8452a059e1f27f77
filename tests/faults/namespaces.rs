//! One thread in two containers, whose PIDs mean nothing to each other. Commands claim nothing that
//! cannot be known across namespaces, requests still get through, and a consumer still has one run
//! at a time.

use std::fs;
use std::process::Child;

use serde_json::Value;
use thread_testkit::{Run, World, is_running, long, skipped, wait_until};

/// A PID namespace, with a process that keeps it alive. Dropping it kills all of its processes.
struct Container<'w> {
    world: &'w World,
    outside: Child,
    /// The PID of its first process, as seen from outside.
    first: u32,
}

impl<'w> Container<'w> {
    /// Prints a skip notice and returns `None` if that is not permitted.
    fn start(world: &'w World, name: &str) -> Option<Container<'w>> {
        let run = world.sh(&format!(
            "exec unshare --pid --fork --mount-proc --kill-child sh -c ': >{name}; exec sleep 100000'"
        ));
        let path = format!("{}:/usr/bin:/bin", world.bin().display());
        let mut outside = run.env("PATH", path).spawn();
        wait_until("the namespace", || world.path(name).exists() || !is_running(outside.id()));
        let Some(first) = child_of(outside.id()) else {
            outside.wait().unwrap();
            skipped("a PID namespace");
            return None;
        };
        Some(Container { world, outside, first })
    }

    /// A shell command inside the container.
    fn sh(&self, script: &str) -> Run {
        let enter =
            r#"exec /usr/bin/nsenter --pid --mount --target "$0" /bin/sh -c 'cd "$0"; eval "$1"' "$1" "$2""#;
        let run = self.world.sh(enter);
        run.arg(self.first.to_string()).arg(self.world.root()).arg(script).env("THREAD_NOTIFIER", "embedded")
    }

    fn state(&self, consumer: &str) -> Value {
        let info: Value = serde_json::from_str(&self.sh("thread info --json").quiet()).unwrap();
        let all = info["subscriptions"].as_array().unwrap();
        all.iter().find(|s| s["consumer_id"] == consumer).unwrap().clone()
    }

    /// Kills all of its processes at once, as the end of a container does.
    fn kill(&mut self) {
        self.outside.kill().unwrap();
        self.outside.wait().unwrap();
        wait_until("the namespace to be gone", || !is_running(self.first));
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        // It may have been killed already.
        drop(self.outside.kill());
        drop(self.outside.wait());
    }
}

fn child_of(parent: u32) -> Option<u32> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let mut pids = pids.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok());
    pids.find(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.rsplit(") ").next().map(|rest| rest.split(' ').collect::<Vec<_>>());
        fields.and_then(|fields| fields.get(1)?.parse::<u32>().ok()) == Some(parent)
    })
}

const PUSH: &str = "thread push --source self --type message --content x";

/// A thread that is used by two containers.
fn two_containers(world: &World) -> Option<[Container<'_>; 2]> {
    Some([Container::start(world, "a")?, Container::start(world, "b")?])
}

/// Starts a handler in this container that runs until the file `go` exists.
fn at_work_in(world: &World, container: &Container<'_>) {
    let handler = "echo $$ >>began; until [ -e go ]; do sleep 0.01; done; cat >>got";
    world.subscribe("bot", handler, &["--deliver", "stdin"]);
    container.sh(PUSH).quiet();
    wait_until("the run", || world.lines("began").len() == 1);
    wait_until("its record", || world.run_state("bot", "$.handler.pid") != Value::Null);
}

#[test]
fn a_run_in_another_container_is_shown_and_neither_started_twice_nor_repaired() {
    let world = World::with_thread();
    let Some([a, b]) = two_containers(&world) else { return };
    at_work_in(&world, &a);
    let state = b.state("bot");
    assert_eq!((&state["state"], &state["namespace"]), (&"running".into(), &"other".into()), "{state}");
    assert!(state.get("pid").is_none(), "{state}");
    assert!(a.state("bot")["pid"].is_u64());
    for doctor in ["thread doctor", "thread doctor --fix"] {
        assert_eq!(b.sh(doctor).quiet(), "healthy\n");
    }
    b.sh(PUSH).quiet();
    let dispatched: Value = serde_json::from_str(&b.sh("thread dispatch --json").quiet()).unwrap();
    assert_eq!(dispatched["consumers"][0]["outcome"], "running");
    world.sh(&format!("THREAD_NOTIFIER=embedded {PUSH}")).quiet();
    assert_eq!(world.lines("began").len(), 1);
    world.write("go", "");
    wait_until("all to be handled", || world.consumer("bot")["pending"] == 0);
    assert_eq!(world.lines("got").len(), 3);
}

#[test]
fn stop_and_resume_work_across_containers() {
    let world = World::with_thread();
    let Some([a, b]) = two_containers(&world) else { return };
    at_work_in(&world, &a);
    assert_eq!(b.sh("thread stop --consumer bot").quiet(), "bot\n");
    let left = || a.sh("ps -eo args= | grep -c '[e]cho . >>began'").output().stdout;
    assert_eq!(String::from_utf8(left()).unwrap(), "0\n", "the handler lives on");
    let state = b.state("bot");
    assert_eq!((&state["state"], &state["reason"]), (&"stalled".into(), &"stopped".into()), "{state}");
    assert_eq!(world.lines("got").len(), 0);

    world.subscribe("late", "[ -e go ] && cat >>late", &["--deliver", "stdin", "--backoff", "1h"]);
    a.sh("thread dispatch").quiet();
    wait_until("the wait", || b.state("late")["state"] == "waiting");
    let state = b.state("late");
    assert_eq!((&state["namespace"], &state["reason"]), (&"other".into(), &Value::Null), "{state}");
    assert_eq!(b.sh("thread doctor").quiet(), "healthy\n");
    world.write("go", "");
    b.sh("THREAD_NOTIFIER=off thread resume --consumer late").quiet();
    wait_until("the next attempt", || world.lines("late").len() == 1);
    wait_until("its end", || b.state("late")["state"] == "idle");
}

#[test]
fn after_the_end_of_a_container_stop_says_that_it_does_not_know_and_dispatch_takes_over() {
    let world = World::with_thread();
    let Some([mut a, b]) = two_containers(&world) else { return };
    at_work_in(&world, &a);
    a.kill();
    // From here it cannot be known whether the container's processes are alive.
    assert_eq!(b.state("bot")["namespace"], "other");
    let error = b.sh("thread stop --consumer bot --kill-after 0s").fails(1);
    let told = "Error: 'bot' runs elsewhere (on another machine or in a container), which did not respond - stop it there; \
                if that is gone, the next push or `thread dispatch` takes over";
    assert_eq!(error, told);
    assert_eq!(b.sh("thread doctor").quiet(), "healthy\n");
    world.write("go", "");
    b.sh("thread dispatch").quiet();
    wait_until("the run in the other container", || b.state("bot")["pending"] == 0);
    wait_until("its end", || b.state("bot")["state"] == "idle");
    assert_eq!((world.lines("began").len(), world.lines("got").len()), (2, 1));
}

#[test]
fn pushes_from_two_containers_and_outside_run_a_consumer_once_at_a_time() {
    let rounds = if long() { 200 } else { 20 };
    let world = World::with_thread();
    let Some([a, b]) = two_containers(&world) else { return };
    let handler = "mkdir busy || echo overlap >>overlaps; cat >>got; sleep 0.005; rmdir busy";
    world.subscribe("bot", handler, &["--deliver", "stdin"]);
    let pushes = format!("for i in $(seq {rounds}); do {PUSH} >/dev/null || echo failed; done");
    std::thread::scope(|scope| {
        let outside = || world.sh(&pushes).env("THREAD_NOTIFIER", "embedded");
        for run in [a.sh(&pushes), b.sh(&pushes), outside()] {
            scope.spawn(|| assert_eq!(run.quiet(), ""));
        }
        for _ in 0..5 {
            for container in [&a, &b] {
                assert_eq!(container.sh("thread doctor").quiet(), "healthy\n");
            }
        }
    });
    wait_until("all to be handled", || world.consumer("bot")["pending"] == 0);
    wait_until("the last run to end", || world.state("bot") == "idle");
    let ids = thread_testkit::ids(&world.read("got"));
    assert_eq!(ids, (1..=3 * rounds).collect::<Vec<i64>>());
    assert!(!world.path("overlaps").exists());
    world.assert_log_is_exact();
}
