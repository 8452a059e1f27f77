//! Ending runs: `stop`, time limits, and which processes may be signalled at all.

use std::process::Stdio;

use rustix::process::{Pid, Signal};
use thread_testkit::{World, ids, is_running, kill_and_wait, wait_until};

/// A handler that ignores TERM, as do its child and its grandchild. Each records its pid.
const STUBBORN: &str = "trap '' TERM; echo $$ >> pids; \
    sh -c 'echo $$ >> pids; sh -c \"echo \\$\\$ >> pids; while :; do sleep 0.2; done\"; exit' & \
    while :; do sleep 0.2; done";

fn pids(world: &World) -> Vec<u32> {
    world.lines("pids").iter().map(|line| line.parse().unwrap()).collect()
}

/// The number of voluntary context switches of a process.
fn sleeps(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

fn stop(world: &World, options: &[&str]) -> String {
    let base = ["stop", "--consumer", "bot"];
    world.thread(base.iter().chain(options)).quiet()
}

fn assert_stopped(world: &World) {
    let info = world.consumer("bot");
    assert_eq!((&info["state"], &info["reason"]), (&"stalled".into(), &"stopped".into()), "{info}");
    assert_eq!(
        info.get("attempt").and_then(serde_json::Value::as_i64).unwrap_or(0),
        0,
        "it costs no attempt"
    );
}

#[test]
fn stop_returns_when_the_whole_group_is_gone() {
    let world = World::with_thread();
    world.subscribe("bot", STUBBORN, &[]);
    world.push("a");
    wait_until("all three", || pids(&world).len() == 3);
    assert_eq!(stop(&world, &["--kill-after", "300ms"]), "bot\n");
    assert!(pids(&world).iter().all(|&pid| !is_running(pid)));
    assert_stopped(&world);
    world.wait_until_quiet();
    assert_eq!(pids(&world).len(), 3, "it was not started again");
    let ended = "[INFO] dispatch: consumer=bot ended exit=137 signal=9 after=";
    assert!(world.log().iter().any(|line| line.starts_with(ended)), "{:?}", world.log());
}

#[test]
fn a_time_limit_ends_the_whole_group_too() {
    let world = World::with_thread();
    // The leader ends at TERM; the child does not, so the run lasts until KILL, 10 s later.
    let handler =
        "echo $$ >> pids; sh -c 'trap \"\" TERM; echo $$ >> pids; while :; do sleep 0.2; done' & wait";
    world.subscribe("bot", handler, &["--timeout", "200ms", "--backoff", "1d"]);
    world.push("a");
    world.wait_for_state("bot", "waiting");
    assert!(pids(&world).len() == 2 && pids(&world).iter().all(|&pid| !is_running(pid)));
    let log = world.log();
    let line = log.iter().find(|line| line.contains("consumer=bot ended")).unwrap();
    let after: f64 = line.split("after=").nth(1).unwrap().split('s').next().unwrap().parse().unwrap();
    assert!(line.contains("ended timed out after=") && after >= 10.0, "{line}");
    let info = world.consumer("bot");
    assert_eq!((&info["attempt"], &info["last_exit"]), (&1.into(), &"timed out".into()));
}

#[test]
fn a_run_that_timed_out_acknowledges_nothing_even_when_it_ends_with_0() {
    let world = World::with_thread();
    let handler = "trap 'exit 0' TERM; cat >> got; while :; do sleep 0.05; done";
    let options = ["--deliver", "stdin", "--timeout", "300ms", "--backoff", "10ms", "--max-attempts", "2"];
    world.subscribe("bot", handler, &options);
    world.push("a");
    wait_until("the dead letter", || world.consumer("bot")["dead"] == 1);
    assert_eq!(ids(&world.read("got")), [1, 1]);
    let list = world.thread(["dead", "list", "--consumer", "bot", "--json"]).quiet();
    assert!(list.contains("\"last_exit\":124,"), "{list}");
}

#[test]
fn stop_sends_its_signal_once() {
    let world = World::with_thread();
    let handler = "trap 'echo INT >> signals' INT; touch up; \
                   n=0; while [ $n -lt 40 ]; do sleep 0.02; n=$((n + 1)); done; exit 4";
    world.subscribe("bot", handler, &[]);
    world.push("a");
    world.wait_for_file("up");
    stop(&world, &["--signal", "int", "--kill-after", "1h"]);
    assert_eq!(world.lines("signals"), ["INT"]);
    assert_stopped(&world);
    assert_eq!(world.consumer("bot")["last_exit"], "exit=4");
}

#[test]
fn two_concurrent_stops_send_their_signals_once_each() {
    let world = World::with_thread();
    let handler = "trap 'echo TERM >> signals' TERM; trap 'echo INT >> signals' INT; touch up; \
                   until [ -e end ]; do sleep 0.02; done";
    world.subscribe("bot", handler, &[]);
    world.push("a");
    world.wait_for_file("up");
    let stops = ["term", "int"].map(|signal| {
        let stop =
            world.thread(["stop", "--consumer", "bot", "--kill-after", "1h", "--signal", signal]).spawn();
        let name = signal.to_uppercase();
        wait_until("the signal", || world.lines("signals").contains(&name));
        stop
    });
    // Each checks often enough that it would overwrite the other's request.
    for stop in &stops {
        let looks = || sleeps(stop.id());
        let before = looks();
        wait_until("it to look again", || looks() >= before + 10);
    }
    world.write("end", "");
    for stop in stops {
        assert_eq!(stop.wait_with_output().unwrap().stdout, b"bot\n");
    }
    assert_eq!(world.lines("signals"), ["TERM", "INT"]);
    assert_stopped(&world);
}

#[test]
fn a_zombie_that_nobody_reaps_does_not_keep_stop_waiting() {
    let world = World::with_thread();
    // The subshell leaves the group and becomes `sleep`, which never reaps its child, which is killed.
    let handler = "( sleep 1000 & exec setsid sleep 1000 ) & \
                   until read name </proc/$!/comm && [ $name = sleep ]; do sleep 0.01; done; touch up; wait";
    world.subscribe("bot", handler, &[]);
    world.push("a");
    world.wait_for_file("up");
    assert_eq!(stop(&world, &["--kill-after", "100ms"]), "bot\n");
    assert_stopped(&world);
}

#[test]
fn stop_ends_a_suspended_handler() {
    let world = World::with_thread();
    world.subscribe("bot", "touch up; kill -STOP $$; sleep 1000", &[]);
    world.push("a");
    world.wait_for_file("up");
    stop(&world, &["--kill-after", "1h"]);
    assert_stopped(&world);
}

#[test]
fn neither_what_came_before_the_stop_nor_dispatch_starts_it_again_but_a_newer_event_does_at_once() {
    let world = World::with_thread();
    world.subscribe("bot", "echo run >> runs; [ -e go ] || sleep 1000; cat >> got", &["--deliver", "stdin"]);
    world.push("a");
    wait_until("the run", || world.lines("runs").len() == 1);
    world.push("b");
    stop(&world, &[]);
    world.wait_until_quiet();
    assert_stopped(&world);
    assert_eq!(world.lines("runs").len(), 1);
    world.write("go", "");
    world.thread(["dispatch"]).quiet();
    world.wait_until_quiet();
    assert_stopped(&world);
    assert_eq!(world.lines("runs").len(), 1);
    world.push("c");
    wait_until("all of it", || ids(&world.read("got")) == [1, 2, 3]);
}

#[test]
fn stop_ends_a_wait_and_costs_no_attempt() {
    let world = World::with_thread();
    world.subscribe("bot", "echo run >> runs; exit 1", &["--backoff", "1d", "--max-attempts", "2"]);
    world.push("a");
    world.wait_for_state("bot", "waiting");
    assert_eq!(world.thread(["stop", "--consumer", "bot", "--json"]).quiet(), "{\"consumer_id\":\"bot\"}\n");
    let info = world.consumer("bot");
    assert_eq!((&info["state"], &info["reason"]), (&"stalled".into(), &"stopped".into()));
    assert_eq!(info["attempt"], 1, "the one that was made, and no other");
    world.wait_until_quiet();
    assert_eq!(world.lines("runs").len(), 1);
}

/// What a `stop` leaves that is killed as soon as it has asked.
fn ask_to_stop(world: &World) {
    let request = serde_json::json!({"signal": 15, "kill_after_ms": 1000, "skip": false});
    world.set_run_state("bot", "$.stop", request);
}

/// The wait may also just be over when `stop` asks.
#[test]
fn a_wait_that_is_to_be_stopped_is_not_followed_by_a_run() {
    let world = World::with_thread();
    world.subscribe("bot", "echo run >> runs; exit 1", &["--backoff", "1d"]);
    world.push("a");
    world.wait_for_state("bot", "waiting");
    ask_to_stop(&world);
    world.set_run_state("bot", "$.next_try", "2026-01-01T00:00:00Z");
    world.thread(["dispatch"]).ok();
    world.wait_for_state("bot", "stalled");
    assert_eq!(world.consumer("bot")["reason"], "stopped");
    assert_eq!(world.lines("runs").len(), 1);
}

#[test]
fn a_pool_that_is_to_be_stopped_is_stopped_though_its_supervisor_was_killed() {
    let world = World::with_thread();
    let handler = "read -r line; echo run >>runs; : >up; until [ -e go ]; do sleep 0.01; done";
    world.subscribe("bot", handler, &["--deliver", "stdin", "--concurrency", "1"]);
    world.push("a");
    world.wait_for_file("up");
    world.push("b");
    world.kill_supervisor("bot");
    ask_to_stop(&world);
    world.thread(["dispatch"]).ok();
    world.write("go", "");
    world.wait_for_state("bot", "stalled");
    assert_stopped(&world);
    assert_eq!(world.lines("runs").len(), 1);
    world.thread(["resume", "bot"]).quiet();
    world.wait_until("both to be handled", || world.consumer("bot")["last_acked_id"] == 2);
    world.wait_until_quiet();
}

/// The supervisor of a pool is killed, and a run goes on under the next one, which did not start it.
#[test]
fn stop_ends_the_runs_of_a_pool_that_go_on_under_the_next_supervisor() {
    let handler = "read -r line; echo $$ >>pids; sleep 1000";
    for waits in [false, true] {
        let world = World::with_thread();
        world.subscribe("bot", handler, &["--deliver", "stdin", "--concurrency", "1", "--max-attempts", "1"]);
        world.push("a");
        wait_until("the handler", || pids(&world).len() == 1);
        world.push("b");
        if waits {
            world.thread(["nack", "bot", "2", "--delay", "1h", "--no-attempt"]).quiet();
        }
        let first = world.run_state("bot", "$.supervisor.pid").as_u64();
        world.kill_supervisor("bot");
        world.thread(["dispatch"]).ok();
        let next = || world.run_state("bot", "$.supervisor.pid").as_u64();
        let is_taken_over = || match world.state("bot").as_str() {
            "running" => next().is_some_and(|pid| Some(pid) != first),
            _ => waits,
        };
        wait_until("the next supervisor", is_taken_over);
        assert!(is_running(pids(&world)[0]));
        assert_eq!(stop(&world, &[]), "bot\n");
        assert!(pids(&world).iter().all(|&pid| !is_running(pid)));
        assert_stopped(&world);
        assert_eq!(pids(&world).len(), 1);
        // That was no attempt.
        world.thread(["resume", "bot"]).quiet();
        wait_until("the event to be given again", || pids(&world).len() == 2);
        assert_eq!(world.consumer("bot")["dead"], 0);
        assert_eq!(stop(&world, &[]), "bot\n");
        world.wait_until_quiet();
    }
}

#[test]
fn stopping_a_retried_dead_letter_parks_it_as_it_was() {
    let world = World::with_thread();
    let handler = "echo run >> runs; [ -e hang ] && sleep 1000; exit 1";
    world.subscribe("bot", handler, &["--deliver", "stdin", "--max-attempts", "1", "--backoff", "10ms"]);
    world.push("a");
    wait_until("the dead letter", || world.consumer("bot")["dead"] == 1);
    world.wait_until_quiet();
    world.write("hang", "");
    world.thread(["dead", "retry", "--consumer", "bot", "--all"]).quiet();
    wait_until("the second run", || world.lines("runs").len() == 2);
    stop(&world, &["--kill-after", "100ms"]);
    world.wait_until_quiet();
    assert_eq!(world.lines("runs").len(), 2, "it was not started again");
    let list = world.thread(["dead", "list", "--consumer", "bot", "--json"]).quiet();
    assert!(list.contains("\"attempts\":1,") && list.contains("\"retry\":false"), "{list}");
}

#[test]
fn nothing_to_stop_is_exit_1() {
    let world = World::with_thread();
    world.subscribe("bot", "true", &["--backoff", "10ms", "--max-attempts", "1"]);
    let error = world.thread(["stop", "--consumer", "bot"]).fails(1);
    assert!(error.contains("'bot' is not running or waiting"), "{error}");
    world.push("a");
    world.wait_for_state("bot", "stalled");
    world.thread(["stop", "--consumer", "bot"]).fails(1);
    assert_eq!(world.consumer("bot")["reason"], "out of attempts", "nothing was changed");
    world.thread(["stop", "--consumer", "nobody"]).fails(1);
    for wrong in [["--signal", "NONE"], ["--signal", "STOP"], ["--signal", ""], ["--kill-after", "soon"]] {
        world.thread(["stop", "--consumer", "bot"].iter().chain(&wrong)).fails(2);
    }
}

/// Whether the running handler is recorded, which happens just after its start.
fn is_recorded(world: &World) -> bool {
    world.run_state("bot", "$.handler.pid").is_u64()
}

/// Creates an orphan: a stubborn handler whose supervisor was killed.
fn world_with_orphan(handler: &str, processes: usize) -> World {
    let world = World::with_thread();
    world.subscribe("bot", handler, &["--backoff", "1d"]);
    world.push("a");
    wait_until("the handler", || pids(&world).len() == processes);
    wait_until("the record of it", || is_recorded(&world));
    world.kill_supervisor("bot");
    world
}

#[test]
fn stop_ends_an_orphan_whose_supervisor_was_killed() {
    // The last of these processes closed its copy of the lock; it still belongs to the run.
    let closing = "bash -c 'echo $$ >> pids; for f in /proc/$$/fd/*; do n=${f##*/}; \
                   [ $n -gt 2 ] && eval \"exec $n>&-\"; done; trap \"\" TERM; while :; do sleep 0.2; done' & ";
    let world = world_with_orphan(&format!("{closing}{STUBBORN}"), 4);
    assert_eq!(world.state("bot"), "running");
    // A process that merely has the lock file open does not belong to the run.
    let lock = std::fs::File::open(world.inbox().join("run/bot.lock")).unwrap();
    let mut reader = world.sh("sleep 1000");
    reader.command().env("THREAD_CONSUMER", "bot").stdin(lock).stdout(Stdio::null()).stderr(Stdio::null());
    let mut reader = reader.command().spawn().unwrap();
    stop(&world, &["--kill-after", "300ms"]);
    assert!(pids(&world).iter().all(|&pid| !is_running(pid)));
    assert!(reader.try_wait().unwrap().is_none(), "a process that is not the run's was signalled");
    reader.kill().unwrap();
    reader.wait().unwrap();
    assert_stopped(&world);
}

#[test]
fn stop_ends_what_is_left_of_an_orphan_that_holds_the_lock() {
    let world = world_with_orphan("sh -c 'echo $$ >> pids; sleep 1000' & echo $$ >> pids; wait", 2);
    let leader = world.run_state("bot", "$.handler.pid").as_u64().unwrap();
    kill_and_wait(leader as u32);
    stop(&world, &["--kill-after", "300ms"]);
    assert!(pids(&world).iter().all(|&pid| !is_running(pid)));
}

#[test]
fn a_pid_that_now_belongs_to_another_process_is_never_signalled() {
    let world = world_with_orphan("echo $$ >> pids; sleep 1000", 1);
    for pid in world.processes() {
        kill_and_wait(pid);
    }
    // It is not one of this world's processes, so it ends by itself if this test fails.
    let mut innocent = std::process::Command::new("/bin/sleep");
    innocent.arg("100").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut innocent = innocent.spawn().unwrap();
    world.set_run_state("bot", "$.supervisor.pid", innocent.id());
    world.set_run_state("bot", "$.handler.pid", innocent.id());
    let info = world.consumer("bot");
    assert_eq!((&info["state"], &info["reason"]), (&"waiting".into(), &"interrupted".into()));
    world.thread(["resume", "--consumer", "bot"]).quiet();
    wait_until("the next run", || pids(&world).len() == 2);
    wait_until("the record of it", || is_recorded(&world));
    world.set_run_state("bot", "$.handler.pid", innocent.id());
    world.kill_supervisor("bot");
    for pid in world.processes() {
        kill_and_wait(pid);
    }
    world.set_run_state("bot", "$.supervisor.pid", innocent.id());
    stop(&world, &["--signal", "KILL", "--kill-after", "0s"]);
    assert!(innocent.try_wait().unwrap().is_none(), "an innocent process was signalled");
    innocent.kill().unwrap();
    innocent.wait().unwrap();
    assert_stopped(&world);
}

/// Suspends the supervisor of a consumer. Returns its pid.
fn suspend_supervisor(world: &World) -> u32 {
    // Or what attends to its wait.
    let supervisor = || world.run_state("bot", "$.supervisor.pid").as_u64().map(|pid| pid as u32);
    let pid = thread_testkit::wait_for("the supervisor", || supervisor().or_else(|| world.timer()));
    signal(pid, Signal::STOP);
    pid
}

fn signal(pid: u32, signal: Signal) {
    rustix::process::kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

#[test]
fn a_run_whose_supervisor_is_suspended_is_stopped_all_the_same() {
    let world = World::with_thread();
    world.subscribe("bot", STUBBORN, &[]);
    world.push("a");
    wait_until("all three", || pids(&world).len() == 3);
    wait_until("the record of it", || is_recorded(&world));
    let supervisor = suspend_supervisor(&world);
    assert_eq!(stop(&world, &["--kill-after", "100ms"]), "bot\n");
    assert!(pids(&world).iter().all(|&pid| !is_running(pid)));
    assert!(is_running(supervisor), "it is signalled only as far as it belongs to the run");
    assert_stopped(&world);
    // It finds the end on record, and starts what is due.
    world.push("b");
    signal(supervisor, Signal::CONT);
    wait_until("the next run", || pids(&world).len() == 6);
    assert_eq!(stop(&world, &["--kill-after", "100ms"]), "bot\n");
    assert_stopped(&world);
}

#[test]
fn a_wait_whose_supervisor_is_suspended_is_stopped_all_the_same() {
    let world = World::with_thread();
    world.subscribe("bot", "exit 1", &["--backoff", "1h"]);
    world.push("a");
    world.wait_for_state("bot", "waiting");
    let supervisor = suspend_supervisor(&world);
    assert_eq!(stop(&world, &["--kill-after", "100ms"]), "bot\n");
    let info = world.consumer("bot");
    assert_eq!((&info["state"], &info["reason"]), (&"stalled".into(), &"stopped".into()), "{info}");
    signal(supervisor, Signal::CONT);
    world.wait_until_quiet();
    assert_eq!(world.state("bot"), "stalled");
}

#[test]
fn a_suspended_supervisor_without_a_known_handler_is_reported() {
    let world = World::with_thread();
    world.subscribe("bot", "touch up; sleep 1000", &[]);
    world.push("a");
    world.wait_for_file("up");
    wait_until("the record of it", || is_recorded(&world));
    let supervisor = suspend_supervisor(&world);
    // As if it had been suspended before it recorded what it had started.
    world.set_run_state("bot", "$.handler", serde_json::Value::Null);
    let told = world.thread(["stop", "--consumer", "bot", "--kill-after", "100ms"]).fails(1);
    let what = format!(
        "Error: the supervisor of 'bot' (process {supervisor}) is alive but did not respond - continue it with \
         `kill -CONT {supervisor}`, or kill it, and stop the consumer again"
    );
    assert_eq!(told, what);
    assert_eq!(world.state("bot"), "running");
    assert!(world.run_state("bot", "$.stop").is_null(), "the request was withdrawn");
}

#[test]
fn a_run_of_the_thread_that_a_directory_was_copied_from_is_none_of_its_own() {
    let world = World::with_thread();
    world.subscribe(
        "bot",
        "echo $$ >>pids; until [ -e go ]; do sleep 0.01; done; thread ack --event-id 1",
        &[],
    );
    world.push("a");
    wait_until("the run", || pids(&world).len() == 1 && world.state("bot") == "running");
    world.sh("cp -r inbox copy").quiet();
    let in_copy = |words: &[&str]| world.thread(words).env("THREAD_DIR", world.path("copy"));
    let info = in_copy(&["info"]).quiet();
    assert!(!info.contains("state: running"), "{info}");
    // This ends the run that the copy has on record, but not the process.
    assert_eq!(in_copy(&["stop", "--consumer", "bot"]).quiet(), "bot\n");
    assert!(is_running(pids(&world)[0]) && world.state("bot") == "running");
    // The copy's own run begins although the original's is still under way.
    in_copy(&["push", "--source", "self", "--type", "message", "--content", "b"]).quiet();
    wait_until("the run of the copy", || pids(&world).len() == 2);
    assert_eq!(in_copy(&["stop", "--consumer", "bot"]).quiet(), "bot\n");
    assert!(is_running(pids(&world)[0]) && !is_running(pids(&world)[1]));
    world.write("go", "");
    wait_until("the end of the run", || world.consumer("bot")["last_acked_id"] == 1);
    world.wait_until_quiet();
}
