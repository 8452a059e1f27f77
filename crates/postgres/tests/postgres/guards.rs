//! No handler, nor a child of one, keeps running alongside its successor on another machine, whatever happens to its
//! supervisor.

use std::fs;
use std::time::Duration;

use thread_testkit::{Dice, Signal, kill, long, names, postgres::server, send, wait_for, wait_until};

use crate::connections::elected;
use crate::machine::Machine;

/// The handler takes a lock, which its children hold too, and notes if somebody else has it. In the first epoch a child
/// of its shell does the work, and neither ever ends.
const HANDLER: &str = "exec 9>work; flock -n 9 || echo beside >>out; echo begin $THREAD_EPOCH >>out; \
                       [ $THREAD_EPOCH = 1 ] && { sleep 1000 & wait; }; cat >/dev/null; echo done >>out";

/// Two machines, of which the first is at work; `None` without a server.
fn at_work(schema: &str) -> Option<(Machine, Machine)> {
    let location = server()?.location_of(schema, "inbox");
    let (mut one, other) = (Machine::new(&location), Machine::new(&location));
    one.ok(&["init", &location]);
    one.ok(&["subscribe", "bot", HANDLER, "--deliver", "stdin", "--backoff", "10ms"]);
    one.start_worker(&["--lease", "4s"]);
    one.ok(&["push", "x"]);
    wait_until("the handler", || lines(&one) == ["begin 1"]);
    wait_until("its child", || !running(&one, "sleep\x001000").is_empty());
    Some((one, other))
}

/// What the handlers of both machines wrote, in the folder of the one that subscribed.
fn lines(machine: &Machine) -> Vec<String> {
    fs::read_to_string(machine.path("out")).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// The processes of a machine with these words, separated by nul, in their command line.
pub fn running(machine: &Machine, words: &str) -> Vec<u32> {
    let line = |pid: &u32| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let has = |pid: &u32| String::from_utf8_lossy(&line(pid)).contains(words);
    machine.processes().into_iter().filter(has).collect()
}

fn log(machine: &Machine) -> String {
    fs::read_to_string(machine.base().join("logs/thread.log")).unwrap_or_default()
}

fn kill_all(machine: &Machine, words: &str) {
    let found = running(machine, words);
    assert!(!found.is_empty(), "{words}");
    found.into_iter().for_each(kill);
}

fn succeeds(one: &Machine, other: &mut Machine) {
    other.start_worker(&["--lease", "4s"]);
    wait_until("the other machine to take over", || other.bot("pending") == 0);
    assert_eq!(lines(one), ["begin 1", "begin 2", "done"]);
}

#[test]
fn children_of_a_handler_whose_supervisor_is_killed_are_gone_before_another_machine_begins() {
    let Some((one, mut other)) = at_work("killed") else { return };
    kill_all(&one, "thread\0dispatch");
    kill_all(&one, "\0_supervise\0");
    succeeds(&one, &mut other);
    assert!(running(&one, "sleep\x001000").is_empty());
    wait_until("the guard to end", || one.processes().is_empty());
    assert!(log(&one).contains("is killed: its supervisor is gone"), "{}", log(&one));
}

#[test]
fn a_handler_whose_supervisor_is_suspended_is_gone_before_another_machine_begins() {
    let Some((mut one, mut other)) = at_work("suspended") else { return };
    let supervisors = running(&one, "\0_supervise\0");
    supervisors.iter().for_each(|pid| send(*pid, Signal::STOP));
    succeeds(&one, &mut other);
    assert!(running(&one, "sleep\x001000").is_empty());
    assert!(log(&one).contains("is killed: the lease is ending"), "{}", log(&one));
    // It finds that it was replaced.
    supervisors.iter().for_each(|pid| send(*pid, Signal::CONT));
    wait_until("it to end", || running(&one, "\0_supervise\0").is_empty());
    assert_eq!((lines(&one).len(), other.bot("last_acked_id")), (3, 1.into()));
    other.ok(&["push", "y"]);
    wait_until("the next event", || other.bot("pending") == 0);
    assert_eq!(one.end_worker(), Some(0));
}

#[test]
fn a_supervisor_that_is_suspended_loses_its_lease_though_another_process_renews_those_of_the_machine() {
    let Some(server) = server() else { return };
    let location = server.location_of("lost", "inbox");
    let (mut one, mut other) = (Machine::new(&location), Machine::new(&location));
    one.ok(&["init", &location]);
    one.start_worker(&["--lease", "4s"]);
    one.ok(&["subscribe", "first", "echo begin >>first; exec sleep 2000"]);
    one.ok(&["push", "x"]);
    // Its supervisor is the one that renews.
    wait_until("the first handler", || one.path("first").exists());
    wait_for("one that renews", || elected(&one));
    one.ok(&["subscribe", "bot", HANDLER, "--deliver", "stdin", "--backoff", "10ms"]);
    one.ok(&["push", "y"]);
    wait_until("the second handler", || lines(&one) == ["begin 1"]);
    let leases = || {
        let state = one.path("state/thread");
        let folders = names(&state).into_iter().filter(|name| name.ends_with(".leases"));
        let files = folders.flat_map(|name| names(&state.join(name)));
        files.filter(|name| name.ends_with(".lease")).count()
    };
    wait_until("both leases to be known", || leases() == 2);
    let of_bot = running(&one, "\0bot\0");
    let suspended: Vec<u32> =
        running(&one, "\0_supervise\0").into_iter().filter(|pid| of_bot.contains(pid)).collect();
    assert_eq!(suspended.len(), 1);
    send(suspended[0], Signal::STOP);
    other.start_worker(&["--lease", "4s"]);
    wait_until("the other machine to take over", || other.bot("pending") == 0);
    assert_eq!(lines(&one)[..3], ["begin 1", "begin 2", "done"]);
    assert_eq!(fs::read_to_string(one.path("first")).unwrap(), "begin\n");
    send(suspended[0], Signal::CONT);
    one.kill();
}

#[test]
fn a_guard_that_is_killed_is_replaced_and_ignores_what_asks_it_to_end() {
    let Some((one, mut other)) = at_work("replaced") else { return };
    let guard = running(&one, "\0_guard\0");
    assert_eq!(guard.len(), 1);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        send(guard[0], signal);
    }
    kill(guard[0]);
    let another =
        wait_for("another guard", || running(&one, "\0_guard\0").into_iter().find(|pid| *pid != guard[0]));
    assert_eq!(lines(&one), ["begin 1"]);
    kill_all(&one, "thread\0dispatch");
    kill_all(&one, "\0_supervise\0");
    succeeds(&one, &mut other);
    wait_until("the guard to end", || !thread_testkit::is_running(another));
}

#[test]
fn a_run_whose_guards_are_killed_again_and_again_is_ended_and_costs_no_attempt() {
    let Some((mut one, _other)) = at_work("unguarded") else { return };
    wait_until("the end of the run", || {
        running(&one, "\0_guard\0").into_iter().for_each(kill);
        log(&one).contains("is ended: cannot start the guard of the handler: it ends again and again")
    });
    wait_until("the next run", || one.bot("pending") == 0);
    assert_eq!(lines(&one), ["begin 1", "begin 2", "done"]);
    assert!(log(&one).contains(" interrupted"), "{}", log(&one));
    assert_eq!(one.end_worker(), Some(0));
}

#[test]
fn what_a_handler_left_after_exit_0_is_not_the_guards_to_end() {
    let Some(server) = server() else { return };
    let location = server.location_of("left", "inbox");
    let mut machine = Machine::new(&location);
    machine.ok(&["init", &location]);
    machine.ok(&[
        "subscribe",
        "bot",
        "cat >/dev/null; sleep 1000 & echo $THREAD_EPOCH >>out",
        "--deliver",
        "stdin",
    ]);
    machine.start_worker(&[]);
    machine.ok(&["push", "x"]);
    wait_until("its end", || machine.bot("pending") == 0);
    wait_until("the supervisor and the guard to end", || {
        running(&machine, "\0_supervise\0").is_empty() && running(&machine, "\0_guard\0").is_empty()
    });
    assert_eq!(running(&machine, "sleep\x001000").len(), 1);
    machine.kill();
}

/// What left the group of the handler, but has its lock.
#[test]
fn a_child_that_left_the_group_but_holds_the_lock_is_ended_too() {
    let Some(server) = server() else { return };
    let location = server.location_of("setsid", "inbox");
    let mut machine = Machine::new(&location);
    machine.ok(&["init", &location]);
    machine.ok(&["subscribe", "bot", "setsid sleep 1000 & echo begin >>out; wait", "--deliver", "stdin"]);
    machine.start_worker(&["--lease", "4s"]);
    machine.ok(&["push", "x"]);
    wait_until("the handler", || lines(&machine) == ["begin"]);
    wait_until("its child", || !running(&machine, "sleep\x001000").is_empty());
    kill_all(&machine, "thread\0dispatch");
    kill_all(&machine, "\0_supervise\0");
    wait_until("all to end", || machine.processes().is_empty());
}

/// Also between the start of a handler and the moment at which its supervisor knows of it.
#[test]
fn at_whatever_moment_a_supervisor_is_killed_nothing_of_its_handler_is_left() {
    let Some(server) = server() else { return };
    let location = server.location_of("moments", "inbox");
    let machine = Machine::new(&location);
    machine.ok(&["init", &location]);
    let options = ["--deliver", "stdin", "--backoff", "1ms", "--max-attempts", "1000"];
    machine.ok(&[&["subscribe", "bot", "echo begin >>out; sleep 1000 & wait"], &options[..]].concat());
    machine.ok(&["push", "x"]);
    let (mut dice, mut rounds) = (Dice::new(), 0);
    // Until some were killed before their handler began, and some after that.
    let (mut before, mut after) = (0, 0);
    while rounds < if long() { 200 } else { 10 } || before == 0 || after == 0 {
        rounds += 1;
        let begun = lines(&machine).len();
        machine.ok(&["dispatch"]);
        std::thread::sleep(Duration::from_millis(dice.up_to(if after == 0 {
            150 + 20 * rounds
        } else {
            150
        })));
        wait_until("all to end", || {
            running(&machine, "\0_supervise\0").into_iter().for_each(kill);
            machine.processes().is_empty()
        });
        *if lines(&machine).len() > begun { &mut after } else { &mut before } += 1;
    }
    eprintln!("supervisors killed: {before} before their handler began, {after} after that");
}
