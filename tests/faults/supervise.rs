//! Faults during a dispatcher's or supervisor's work: a removed subscription, a full disk, a locked
//! database, a clock that is set back, a delayed process.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use thread_testkit::preload::{self, Clock};
use thread_testkit::{Run, World, is_running, long, skipped, wait_until};

use crate::disk::{FILL, on_a_small_disk};
use crate::inject::strace;

const PUSH: &[&str] = &["push", "--source", "self", "--type", "message", "--content", "x"];

/// How long the disk is full or the database locked.
fn outage() -> Duration {
    Duration::from_secs(if long() { 65 } else { 3 })
}

/// Starts a command under strace, which injects a fault at its calls on `file`, and at those of its
/// child processes.
fn held_up(world: &World, args: &[&str], inject: &str, file: &str) -> Option<Child> {
    let strace = strace()?;
    let mut run = world.sh("exec \"$0\" \"$@\"");
    run.command().arg(strace).args(["-f", "-qq", "-o", "/dev/null", "-e"]).arg(format!("inject={inject}"));
    run.command().arg("-P").arg(file).arg(env!("CARGO_BIN_EXE_thread")).args(args);
    Some(run.spawn())
}

/// Whether any process holds the lock on `file`.
fn is_held(world: &World, file: &str) -> bool {
    let inode = fs::metadata(world.path(file)).unwrap().ino();
    fs::read_to_string("/proc/locks").unwrap().contains(&format!(":{inode} "))
}

fn pid_in(world: &World, file: &str) -> Pid {
    wait_until(file, || world.read(file).ends_with('\n'));
    Pid::from_raw(world.read(file).trim().parse().unwrap()).unwrap()
}

fn raw(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get() as u32
}

/// A backlog costs little more than the runs of its handler: no connection and no sync for each run.
#[test]
fn a_backlog_is_handled_with_one_connection_and_a_sync_a_second() {
    let Some(strace) = strace() else { return };
    const EVENTS: usize = 60;
    let world = World::with_thread();
    let lines = r#"{"source":"self","type":"message","content":"x"}"#.to_owned() + "\n";
    world.off(["push", "--batch"]).stdin(lines.repeat(EVENTS)).quiet();
    world.off(["subscribe", "bot", ":", "--deliver", "stdin", "--batch-size", "1"]).ok();
    let began = Instant::now();
    let mut run = world.sh("exec \"$0\" \"$@\"");
    run.command().arg(strace).args(["-f", "-qq", "-y", "-o", "calls", "-e", "trace=openat,fsync,fdatasync"]);
    run.command().arg(env!("CARGO_BIN_EXE_thread")).arg("dispatch");
    // It ends with the supervisor, which it traces too.
    run.ok();
    let seconds = began.elapsed().as_secs() as usize;
    let log = world.read("inbox/logs/thread.log");
    assert!(log.contains(&format!("acked={EVENTS}\n")), "{log}");
    let calls = world.read("calls");
    let count = |part: &str| calls.lines().filter(|line| line.contains(part)).count();
    let opened = count("events.db\", ");
    assert!((1..10).contains(&opened), "the database was opened {opened} times");
    let synced = count("sync(");
    assert!((1..12 + seconds).contains(&synced), "{synced} syncs in {seconds} s");
}

/// A supervisor holds the lock and finds that its subscription is gone. A new subscription made
/// before it unlocks is turned away, and no other command follows.
#[test]
fn a_supervisor_that_finds_its_subscription_gone_looks_again_after_letting_go() {
    let world = World::with_thread();
    world.off(PUSH).quiet();
    let subscribe = || {
        world
            .thread(["subscribe", "--consumer", "bot", "--handler", "cat >>got", "--deliver", "stdin"])
            .quiet();
    };
    subscribe();
    wait_until("the first to be handled", || world.consumer("bot")["last_acked_id"] == 1);
    world.wait_until_quiet();
    let lock = world.path("inbox/run/bot.lock");
    let mut turned_away = 0;
    for round in 0..if long() { 10 } else { 2 } {
        // Delays the dispatcher's lock, the supervisor's takeover and its unlock, before and after each.
        let inject = "flock:delay_enter=700000:delay_exit=700000";
        let Some(push) = held_up(&world, PUSH, inject, lock.to_str().unwrap()) else { return };
        wait_until("the dispatcher to have the lock", || is_held(&world, "inbox/run/bot.lock"));
        world.off(["unsubscribe", "--consumer", "bot"]).quiet();
        // By now the supervisor has looked, but not unlocked. Earlier or later, the race would not occur.
        std::thread::sleep(Duration::from_millis(2450));
        subscribe();
        assert!(push.wait_with_output().unwrap().status.success());
        let log = world.read("inbox/logs/thread.log");
        turned_away += usize::from(log.matches("skipped (lock held)").count() > turned_away);
        wait_until("the new subscription to be served", || world.consumer("bot")["pending"] == 0);
        world.wait_until_quiet();
        assert_eq!(world.lines("got").len(), round + 2);
    }
    eprintln!("a subscription made anew under a supervisor's lock: {turned_away} were turned away");
}

#[test]
fn a_run_that_ends_on_a_full_disk_is_recorded_when_there_is_space_again() {
    ends_on_a_full_disk("");
}

#[test]
fn a_run_of_a_pool_that_ends_on_a_full_disk_is_recorded_when_there_is_space_again() {
    ends_on_a_full_disk("--concurrency 2");
}

fn ends_on_a_full_disk(options: &str) {
    let world = World::new();
    let seconds = outage().as_secs();
    let script = format!(
        "export THREAD_DIR=\"$PWD/inbox\" THREAD_NOTIFIER=embedded\n\
         thread init inbox >/dev/null\n\
         thread subscribe --consumer bot --deliver stdin --max-attempts 1 {options} --handler \
             'cat >>got; echo $PPID >supervisor; while [ ! -e go ]; do sleep 0.05; done'\n\
         thread push --source s --type message --content one >/dev/null\n\
         while [ ! -s supervisor ]; do sleep 0.05; done\n\
         {FILL}\n\
         touch go; sleep {seconds}\n\
         kill -0 $(cat supervisor) && echo yes >alive\n\
         rm inbox/filler inbox/filler2\n\
         n=0; while [ $n -lt 600 ] && kill -0 $(cat supervisor) 2>/dev/null; do n=$((n+1)); sleep 0.1; done\n\
         thread info --json >informed; thread dispatch; sleep 0.5"
    );
    if !on_a_small_disk(&world, &script) {
        return;
    }
    assert_eq!(world.read("alive"), "yes\n", "the supervisor gave up");
    assert_eq!(world.lines("got").len(), 1, "it was run once");
    let info: serde_json::Value = serde_json::from_str(&world.read("informed")).unwrap();
    let bot = &info["subscriptions"][0];
    assert_eq!((&bot["state"], &bot["last_acked_id"], &bot["dead"]), (&"idle".into(), &1.into(), &0.into()));
    assert_eq!(bot["last_exit_code"], 0, "{bot}");
}

#[test]
fn a_run_whose_stdin_has_no_room_on_the_disk_starts_when_there_is_space_again() {
    has_no_room_for_stdin("");
}

#[test]
fn a_run_of_a_pool_whose_stdin_has_no_room_on_the_disk_starts_when_there_is_space_again() {
    has_no_room_for_stdin("--concurrency 2");
}

fn has_no_room_for_stdin(options: &str) {
    let world = World::new();
    let seconds = outage().as_secs();
    let script = format!(
        "export THREAD_DIR=\"$PWD/inbox\"\n\
         thread init inbox >/dev/null\n\
         thread subscribe --consumer bot --deliver stdin {options} --handler 'cat >>got; echo $PPID >supervisor'\n\
         thread push --source s --type message --content \"$(printf %90000s x)\" >/dev/null\n\
         {FILL}\n\
         thread dispatch >dispatched 2>&1; sleep {seconds}\n\
         [ -e got ] && echo early >early\n\
         rm inbox/filler inbox/filler2\n\
         n=0; while [ $n -lt 600 ] && ! [ -s supervisor ]; do n=$((n+1)); sleep 0.1; done\n\
         n=0; while [ $n -lt 600 ] && kill -0 $(cat supervisor) 2>/dev/null; do n=$((n+1)); sleep 0.1; done\n\
         thread info --json >informed"
    );
    if !on_a_small_disk(&world, &script) {
        return;
    }
    assert!(!world.path("early").exists(), "there was room");
    assert_eq!(world.lines("got").len(), 1, "{:?} {:?}", world.read("dispatched"), world.log());
    // A pool stores its claims first.
    let tried = |line: &String| match options {
        "" => line.starts_with("[WARN] supervise: consumer=bot tries again: cannot write"),
        _ => line.contains("consumer=bot tries again: "),
    };
    assert!(world.log().iter().any(tried), "{:?}", world.log());
    let info: serde_json::Value = serde_json::from_str(&world.read("informed")).unwrap();
    let bot = &info["subscriptions"][0];
    assert_eq!(
        (&bot["state"], &bot["last_acked_id"], &bot["pending"]),
        (&"idle".into(), &1.into(), &0.into())
    );
}

#[test]
fn a_run_that_ends_while_the_database_is_locked_is_recorded_afterwards() {
    let world = World::with_thread();
    let handler = "cat >>got; echo $PPID >supervisor; while [ ! -e go ]; do sleep 0.05; done";
    world.subscribe("bot", handler, &["--deliver", "stdin", "--max-attempts", "1"]);
    world.push("one");
    let supervisor = pid_in(&world, "supervisor");
    let conn = world.db();
    // An exclusive lock, so that others cannot even read.
    conn.execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; DELETE FROM events WHERE 0")
        .unwrap();
    world.write("go", "");
    std::thread::sleep(outage());
    assert!(is_running(raw(supervisor)), "the supervisor gave up");
    conn.execute_batch("COMMIT").unwrap();
    drop(conn);
    wait_until("the supervisor to end", || !is_running(raw(supervisor)));
    let bot = world.consumer("bot");
    assert_eq!((&bot["state"], &bot["last_acked_id"]), (&"idle".into(), &1.into()), "{bot}");
    world.wait_until_quiet();
    assert_eq!((world.lines("got").len(), &bot["dead"]), (1, &0.into()));
}

/// The database is locked when the watchdog wants to check on the notifier, a second after it
/// accepted the task.
#[test]
fn a_watchdog_waits_for_a_database_that_is_locked() {
    let world = World::with_thread();
    world.script("bin/notifier", "exit 0");
    world.subscribe("bot", "cat >>got", &["--deliver", "stdin"]);
    world.thread(PUSH).quiet();
    let conn = world.db();
    conn.execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; DELETE FROM events WHERE 0")
        .unwrap();
    std::thread::sleep(outage());
    conn.execute_batch("COMMIT").unwrap();
    drop(conn);
    wait_until("the event to be handled", || world.lines("got").len() == 1);
    world.wait_until_quiet();
}

/// The watchdog has dispatched, but not released its lock yet.
#[test]
fn a_push_that_the_watchdog_turns_away_is_served_all_the_same() {
    let world = World::with_thread();
    world.script("bin/notifier", "exit 0");
    world.subscribe("bot", "cat >>got; echo $PPID >>supervisors", &["--deliver", "stdin"]);
    world.thread(PUSH).quiet();
    wait_until("the first to be handled", || world.lines("supervisors").len() == 1);
    world.wait_until_quiet();
    let lock = world.path("inbox/run/_wake.lock");
    let Some(push) = held_up(&world, PUSH, "flock:delay_enter=1500000", lock.to_str().unwrap()) else {
        return;
    };
    wait_until("the second to be handled", || world.lines("supervisors").len() == 2);
    let supervisor: u32 = world.lines("supervisors")[1].parse().unwrap();
    wait_until("only the watchdog to be left", || !is_running(supervisor));
    world.thread(PUSH).quiet();
    let turned_away = is_held(&world, "inbox/run/_wake.lock");
    wait_until("the third to be handled", || world.lines("got").len() == 3);
    assert!(push.wait_with_output().unwrap().status.success());
    world.wait_until_quiet();
    eprintln!("a push under the watchdog's lock: {} turned away", if turned_away { "it was" } else { "not" });
}

#[test]
fn a_supervisor_that_cannot_be_started_is_reported_and_the_next_push_starts_one() {
    let Some(strace) = strace() else { return };
    let world = World::with_thread();
    world.off(["subscribe", "--consumer", "bot", "--handler", "cat >>got", "--deliver", "stdin"]).quiet();
    for (id, call) in [(1, "?clone,?clone3,?fork,?vfork:error=EAGAIN"), (2, "socketpair,?pipe2:error=EMFILE")]
    {
        let mut run: Run = world.sh("exec \"$0\" \"$@\"");
        run.command().arg(strace).args(["-qq", "-o", "/dev/null", "-e"]).arg(format!("inject={call}"));
        run.command().arg(env!("CARGO_BIN_EXE_thread")).args(PUSH).arg("--json");
        let (stdout, stderr) = run.ends_with(0);
        let answer: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!((&answer["id"], &answer["dispatch"]), (&id.into(), &"failed".into()), "{call}");
        assert!(stderr.starts_with("Warning: 'bot' was not woken: cannot start a supervisor: "), "{stderr}");
        assert!(stderr.ends_with("; the event is stored\n"), "{stderr}");
        let log = world.log();
        let said = |line: &String| line.starts_with("[ERROR] dispatch: consumer=bot not started: ");
        assert_eq!(log.iter().filter(|line| said(line)).count(), id, "{log:?}");
    }
    world.wait_until_quiet();
    assert!(!world.path("got").exists());
    world.push("y");
    wait_until("all three to be handled", || world.lines("got").len() == 3);
}

/// The time limit passes while the supervisor is stopped; the run had ended in time.
#[test]
fn a_run_that_ended_in_time_succeeds_though_its_supervisor_was_held_up_past_the_time_limit() {
    let world = World::with_thread();
    let handler = "echo $$ >handler; echo $PPID >supervisor; while [ ! -e go ]; do sleep 0.02; done";
    let limit = Duration::from_secs(3);
    world.subscribe("bot", handler, &["--deliver", "stdin", "--max-attempts", "1", "--timeout", "3s"]);
    let began = Instant::now();
    world.push("x");
    let (supervisor, handler) = (pid_in(&world, "supervisor"), pid_in(&world, "handler"));
    kill_process(supervisor, Signal::STOP).unwrap();
    world.write("go", "");
    // A zombie, because its supervisor is stopped.
    wait_until("the handler to end", || !is_running(raw(handler)));
    let in_time = began.elapsed() < limit;
    std::thread::sleep(limit.saturating_sub(began.elapsed()) + Duration::from_millis(300));
    kill_process(supervisor, Signal::CONT).unwrap();
    world.wait_until_quiet();
    if !in_time {
        return skipped("a machine on which a run ends within three seconds");
    }
    let bot = world.consumer("bot");
    assert_eq!((&bot["last_acked_id"], &bot["dead"], &bot["state"]), (&1.into(), &0.into(), &"idle".into()));
}

#[test]
fn a_clock_that_is_set_back_does_not_prolong_a_wait() {
    let Some(library) = preload::library() else { return };
    let world = World::with_thread();
    let clock = Clock::new(world.path("clock"));
    let stepped = |run: Run| run.envs(preload::variables(library)).env("STEPPED_CLOCK", clock.path());
    world.off(PUSH).quiet();
    for (consumer, step) in [("a", -20), ("b", -3_600), ("c", -7 * 86_400)] {
        clock.step(0);
        // The first backoff is short; later ones are so long that taking one by mistake fails the test.
        let subscribe = ["subscribe", "--backoff", "3s,2h", "--max-attempts", "9", "--consumer", consumer];
        let handler = format!("echo >>{consumer}; exit 1");
        stepped(world.thread(subscribe).arg("--handler").arg(handler)).quiet();
        let waits = format!("consumer={consumer} waiting until=");
        wait_until("the wait", || world.log().iter().any(|line| line.contains(&waits)));
        clock.step(step);
        wait_until("the run after it", || world.lines(consumer).len() == 2);
        world.thread(["unsubscribe", "--consumer", consumer]).quiet();
        world.wait_until_quiet();
    }
}

/// `info` reads a row that says "running" and then checks the process, which has ended in between.
#[test]
fn info_does_not_call_a_run_interrupted_that_ends_while_it_looks() {
    let world = World::with_thread();
    let handler = "echo $$ >handler; while [ ! -e go ]; do sleep 0.02; done; cat >>got";
    world.subscribe("bot", handler, &["--deliver", "stdin"]);
    for round in 1..=if long() { 10 } else { 2 } {
        for file in ["go", "handler"] {
            fs::remove_file(world.path(file)).ok();
        }
        world.push("x");
        let handler = pid_in(&world, "handler");
        wait_until("the run to be recorded", || world.consumer("bot")["state"] == "running");
        let stat = format!("/proc/{}/stat", raw(handler));
        let inject = "openat:delay_enter=1500000";
        let Some(info) = held_up(&world, &["info", "--json"], inject, &stat) else { return };
        // By now it has read the row. If not, it sees the end of the run and is correct as well.
        std::thread::sleep(Duration::from_millis(500));
        world.write("go", "");
        wait_until("the run to end", || !is_running(raw(handler)) && world.consumer("bot")["pending"] == 0);
        let output = info.wait_with_output().unwrap();
        let info: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let bot = &info["subscriptions"][0];
        assert_eq!(bot.get("reason"), None, "{round}: {bot}");
        assert!(["idle", "running"].contains(&bot["state"].as_str().unwrap()), "{round}: {bot}");
        world.wait_until_quiet();
    }
}
