//! Supervisors that a push starts before it has stored its event.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::process::Child;

use rustix::process::{Pid, Signal, getsid, kill_process};

use crate::harness::{World, kill_and_wait, take_all, take_all_script, wait_until};

const PUSH: &[&str] = &["push", "--source", "self", "--type", "message", "--content", "x"];

/// The supervisors there are: process and consumer, sorted by consumer.
fn supervisors(world: &World) -> Vec<(u32, String)> {
    let mut found: Vec<(u32, String)> = world
        .processes()
        .into_iter()
        .filter_map(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let words: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
            let at = words.iter().position(|&word| word == b"--consumer")?;
            (words.get(1) == Some(&&b"_supervise"[..]))
                .then(|| (pid, String::from_utf8_lossy(words[at + 1]).into_owned()))
        })
        .collect();
    found.sort_by(|a, b| a.1.cmp(&b.1));
    found
}

fn consumers(world: &World) -> Vec<String> {
    supervisors(world).into_iter().map(|(_, consumer)| consumer).collect()
}

/// A push that waits for the database, which `conn` keeps, and has called whom it will call.
fn held_push(world: &World, conn: &rusqlite::Connection, calls: &[&str]) -> Child {
    conn.execute_batch("BEGIN IMMEDIATE").unwrap();
    let push = world.thread(PUSH).spawn();
    wait_until("supervisors on call", || consumers(world) == calls);
    push
}

#[test]
fn it_waits_for_the_event_and_then_starts_the_handler_once() {
    let world = World::with_thread();
    world.subscribe("bot", "cat >>got; until [ -e go ]; do sleep 0.01; done", &["--deliver", "stdin"]);
    let conn = world.db();
    let push = held_push(&world, &conn, &["bot"]);
    assert_eq!(world.read("got"), "");
    let [(pid, _)] = supervisors(&world)[..] else { panic!("one is on call") };
    conn.execute_batch("COMMIT").unwrap();
    assert!(push.wait_with_output().unwrap().status.success());
    // From the end of the push on, signals to its group do not reach it.
    let pid = Pid::from_raw(pid.cast_signed());
    assert_eq!(getsid(pid).ok(), pid);
    wait_until("the handler", || world.lines("got").len() == 1);
    world.write("go", "");
    world.wait_for_state("bot", "idle");
    world.wait_until_quiet();
    assert_eq!(world.lines("got").len(), 1);
    let spawned = world.log().iter().filter(|line| line.contains(" spawned ")).count();
    assert_eq!(spawned, 1, "{:?}", world.log());
}

#[test]
fn only_who_will_be_started_is_called() {
    let world = World::with_thread();
    take_all_script(&world);
    world.script("bin/linger", "touch up; until [ -e go ]; do sleep 0.01; done; take");
    world.subscribe("busy", "linger", &[]);
    world.push("first");
    world.wait_for_file("up");
    let x = |more: &str| format!("content = 'x' AND {more}");
    fs::create_dir(world.path("gone")).unwrap();
    world.subscribe("lost", "true", &["--cwd", "gone", "--filter", &x("1")]);
    fs::remove_dir(world.path("gone")).unwrap();
    world.subscribe("other", "true", &["--filter", &x("type = 'record'")]);
    world.subscribe("erring", "true", &["--filter", &x("json_extract(content, '$.a') = 1")]);
    world.subscribe("paused", "true", &["--filter", &x("1")]);
    world.thread(["pause", "--consumer", "paused"]).quiet();
    // The last in the order in which they are asked.
    world.subscribe("ready", "take", &["--filter", &x("type = 'message' AND id = 2")]);
    let conn = world.db();
    let push = held_push(&world, &conn, &["busy", "ready"]);
    conn.execute_batch("COMMIT").unwrap();
    assert!(push.wait_with_output().unwrap().status.success());
    wait_until("the one that was ready", || world.consumer("ready")["last_acked_id"] == 2);
    world.write("go", "");
    wait_until("the one that was busy", || world.consumer("busy")["last_acked_id"] == 2);
    world.wait_until_quiet();
}

#[test]
fn beyond_a_few_they_are_started_afterwards() {
    let world = World::with_thread();
    take_all_script(&world);
    let names = ["a", "b", "c", "d", "e", "f"];
    for name in names {
        take_all(&world, name);
    }
    let conn = world.db();
    let push = held_push(&world, &conn, &["a", "b", "c", "d"]);
    conn.execute_batch("COMMIT").unwrap();
    assert!(push.wait_with_output().unwrap().status.success());
    wait_until("all to be served", || names.iter().all(|name| world.consumer(name)["last_acked_id"] == 1));
    world.wait_until_quiet();
}

#[test]
fn of_many_pushes_at_once_one_has_supervisors_on_call() {
    let world = World::with_thread();
    take_all_script(&world);
    take_all(&world, "a");
    take_all(&world, "b");
    let conn = world.db();
    let mut pushes = vec![held_push(&world, &conn, &["a", "b"])];
    let waiting = |push: &Child| {
        let files = fs::read_dir(format!("/proc/{}/fd", push.id())).into_iter().flatten().flatten();
        files.map(|fd| fs::read_link(fd.path()).unwrap_or_default()).any(|file| file.ends_with("events.db"))
    };
    for _ in 0..7 {
        let push = world.thread(PUSH).spawn();
        wait_until("a push to wait for the database", || waiting(&push));
        pushes.push(push);
    }
    assert_eq!(consumers(&world), ["a", "b"]);
    conn.execute_batch("COMMIT").unwrap();
    for push in pushes {
        assert!(push.wait_with_output().unwrap().status.success());
    }
    wait_until("all to be served", || {
        ["a", "b"].iter().all(|name| world.consumer(name)["last_acked_id"] == 8)
    });
    world.wait_until_quiet();
}

#[test]
fn a_push_that_has_answered_has_a_run_that_can_be_stopped() {
    let world = World::with_thread();
    world.subscribe("bot", "until [ -e go ]; do sleep 0.01; done", &[]);
    for round in 0..10 {
        world.push("x");
        world.thread(["stop", "--consumer", "bot"]).quiet();
        assert_eq!(world.state("bot"), "stalled", "{round}");
        world.thread(["ack", "--consumer", "bot", "--event-id", &(round + 1).to_string()]).quiet();
        world.thread(["resume", "--consumer", "bot"]).quiet();
    }
    world.wait_until_quiet();
}

#[test]
fn one_that_does_not_answer_is_done_without() {
    let world = World::with_thread();
    world.subscribe("bot", "cat >>got", &["--deliver", "stdin"]);
    let conn = world.db();
    let push = held_push(&world, &conn, &["bot"]);
    let stopped = Pid::from_raw(supervisors(&world)[0].0.cast_signed()).unwrap();
    kill_process(stopped, Signal::STOP).unwrap();
    conn.execute_batch("COMMIT").unwrap();
    assert!(push.wait_with_output().unwrap().status.success());
    wait_until("the event to be seen", || world.consumer("bot")["last_acked_id"] == 1);
    // It goes on when there is nothing left to do.
    kill_process(stopped, Signal::CONT).unwrap();
    world.wait_until_quiet();
    assert_eq!(world.lines("got").len(), 1);
}

#[test]
fn a_signal_that_its_pusher_had_blocked_does_not_reach_it() {
    let world = World::with_thread();
    take_all_script(&world);
    take_all(&world, "bot");
    world.off(["push", "--source", "self", "--type", "record", "--content", "x"]).quiet();
    let words = ["_supervise", "--consumer", "bot", "--on-call", "--thread"];
    let mut run = world.thread(words).arg(world.inbox());
    // SAFETY: only system calls that are safe between fork and exec.
    unsafe {
        run.command().pre_exec(|| {
            let mut all = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::sigprocmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::raise(signal);
            }
            Ok(())
        });
    }
    run.quiet();
    assert_eq!(world.consumer("bot")["last_acked_id"], 1);
    world.wait_until_quiet();
}

#[test]
fn a_push_that_is_killed_after_it_has_stored_still_wakes() {
    let world = World::with_thread();
    take_all_script(&world);
    take_all(&world, "bot");
    world.off(["push", "--source", "self", "--type", "record", "--content", "first"]).quiet();
    // Held up between the commit and the waking, by the lock of the copy.
    let copy = File::options().write(true).open(world.inbox().join("run/_journal")).unwrap();
    copy.lock().unwrap();
    let mut push = world.thread(PUSH).spawn();
    wait_until("the commit", || world.query("SELECT count(*) FROM events") == 2);
    assert_eq!(world.read("seen.bot"), "");
    kill_and_wait(push.id());
    push.wait().unwrap();
    wait_until("both to be seen", || world.consumer("bot")["last_acked_id"] == 2);
    drop(copy);
    world.wait_until_quiet();
}

#[test]
fn a_push_that_is_killed_before_it_has_stored_leaves_nothing_behind() {
    let world = World::with_thread();
    take_all_script(&world);
    take_all(&world, "bot");
    let conn = world.db();
    let mut push = held_push(&world, &conn, &["bot"]);
    kill_and_wait(push.id());
    push.wait().unwrap();
    world.wait_until_quiet();
    conn.execute_batch("ROLLBACK").unwrap();
    assert_eq!(world.read("seen.bot"), "");
    assert_eq!(world.push("x"), 1);
    wait_until("the event to be seen", || world.consumer("bot")["last_acked_id"] == 1);
    world.wait_until_quiet();
}

#[test]
fn one_that_is_killed_while_it_waits_is_replaced() {
    let world = World::with_thread();
    take_all_script(&world);
    take_all(&world, "bot");
    let conn = world.db();
    let push = held_push(&world, &conn, &["bot"]);
    kill_and_wait(supervisors(&world)[0].0);
    conn.execute_batch("COMMIT").unwrap();
    assert!(push.wait_with_output().unwrap().status.success());
    wait_until("the event to be seen", || world.consumer("bot")["last_acked_id"] == 1);
    world.wait_until_quiet();
}

#[test]
fn it_keeps_nothing_of_the_pushers_open() {
    let world = World::with_thread();
    let list = "for fd in /proc/$PPID/fd/*; do readlink $fd; done >fds; touch up";
    world.subscribe("bot", list, &[]);
    let push = "exec 3<bin 8<>stray 9>&1; thread push --source self --type message --content x";
    assert_eq!(world.sh(push).quiet(), "1\n");
    world.wait_for_file("up");
    let fds = world.lines("fds");
    assert!(fds.iter().any(|fd| fd.ends_with("inbox/run/bot.lock")), "{fds:?}");
    assert!(!fds.iter().any(|fd| fd.ends_with("/bin") || fd.ends_with("/stray")), "{fds:?}");
    // Nor the pipe to which the pusher wrote its answer.
    let pipes = fds.iter().filter(|fd| fd.starts_with("pipe:")).count();
    assert!(pipes <= 1, "{fds:?}");
    world.thread(["stop", "--consumer", "bot"]).output();
    world.wait_until_quiet();
}
