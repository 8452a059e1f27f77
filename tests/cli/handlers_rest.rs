//! What a handler leaves when it fails or its supervisor is killed does not work on beside the next attempt.

use rustix::process::{Pid, Signal, kill_process};
use thread_testkit::{World, is_running, kill_and_wait, wait_until};

/// Takes a lock, which children of the handler hold too, and notes if somebody else has it.
const ALONE: &str = "exec 9>work; flock -n 9 || echo beside >>out; echo begin >>out;";

fn subscribe(world: &World, handler: &str) {
    let options = ["--deliver", "stdin", "--backoff", "10ms", "--max-attempts", "3"];
    world.subscribe("bot", &format!("{ALONE} {handler}"), &options);
}

fn pid(world: &World, name: &str) -> u32 {
    wait_until(name, || world.read(name).ends_with('\n'));
    world.read(name).trim().parse().unwrap()
}

fn send(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

#[test]
fn what_a_failed_handler_left_is_gone_before_the_next_attempt() {
    for fails in ["kill -KILL $$", "exit 1"] {
        let world = World::with_thread();
        let handler = format!("[ -e left ] && exit 0; sleep 1000 & echo $! >left; {fails}");
        subscribe(&world, &handler);
        world.push("a");
        wait_until("both attempts", || {
            world.lines("out").len() >= 2 && world.consumer("bot")["pending"] == 0
        });
        assert_eq!(world.lines("out"), ["begin", "begin"], "{fails}");
        assert!(!is_running(pid(&world, "left")), "{fails}");
        let log = world.read("inbox/logs/thread.log");
        assert!(log.contains("consumer=bot failed, and left processes behind, which are ended"), "{log}");
    }
}

#[test]
fn what_a_handler_left_stays_after_exit_0() {
    let world = World::with_thread();
    world.subscribe("bot", "sleep 1000 & echo $! >left", &["--deliver", "stdin"]);
    world.push("a");
    wait_until("its end", || world.consumer("bot")["pending"] == 0);
    world.wait_for_state("bot", "idle");
    assert!(is_running(pid(&world, "left")));
    kill_and_wait(pid(&world, "left"));
}

#[test]
fn stop_ends_what_is_left_of_a_handler_whose_shell_was_killed() {
    let world = World::with_thread();
    let child = "sh -c 'trap \"\" TERM; echo $$ >left; while :; do sleep 0.2; done' &";
    subscribe(&world, &format!("{child} echo $$ >shell; wait"));
    world.push("a");
    let (left, shell) = (pid(&world, "left"), pid(&world, "shell"));
    send(shell, Signal::KILL);
    wait_until("the end of the shell", || !is_running(shell));
    world.thread(["stop", "--consumer", "bot", "--kill-after", "100ms"]).ok();
    assert!(!is_running(left));
    assert_eq!((world.state("bot"), world.lines("out").len()), ("stalled".to_owned(), 1));
}

#[test]
fn stop_ends_what_is_left_without_the_lock_of_a_handler_whose_shell_and_supervisor_were_killed() {
    let world = World::with_thread();
    // The lock has one of these numbers.
    let child = "sh -c 'exec 3>&- 4>&-; trap \"\" TERM; echo $$ >left; while :; do sleep 0.2; done' &";
    subscribe(&world, &format!("{child} echo $$ >shell; wait"));
    world.push("a");
    let (left, shell) = (pid(&world, "left"), pid(&world, "shell"));
    wait_until("the record of it", || world.run_state("bot", "$.handler.pid") == shell);
    world.kill_supervisor("bot");
    kill_and_wait(shell);
    assert!(is_running(left));
    world.thread(["stop", "--consumer", "bot", "--kill-after", "100ms"]).ok();
    assert!(!is_running(left));
}

#[test]
fn what_an_abandoned_run_left_without_the_lock_is_gone_before_the_next_attempt() {
    for shell_dies in [false, true] {
        let world = World::with_thread();
        let child = "sh -c 'echo $$ >left; sleep 1000' 3>&- 4>&- & echo $$ >shell; exec 3>&- 4>&-; wait";
        subscribe(&world, &format!("[ -e left ] && exit 0; {child}"));
        world.push("a");
        let (left, shell) = (pid(&world, "left"), pid(&world, "shell"));
        wait_until("the record of it", || world.run_state("bot", "$.handler.pid") == shell);
        world.kill_supervisor("bot");
        if shell_dies {
            kill_and_wait(shell);
        }
        world.push("b");
        wait_until("the next attempt", || world.consumer("bot")["pending"] == 0);
        let out = world.lines("out");
        assert!(!out.contains(&"beside".to_owned()) && out.len() >= 2, "{out:?}");
        assert!(!is_running(left) && !is_running(shell));
    }
}
