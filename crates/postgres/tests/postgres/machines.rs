//! Several machines that share a thread: waking, leases, and the limits on a machine that was cut off.

use std::fs;
use std::time::{Duration, SystemTime};

use thread_testkit::{postgres::server, wait_until};

use crate::machine::{Machine, Proxy};

/// Two machines with the same thread; `None` without a server.
fn two() -> Option<(Machine, Machine)> {
    let location = server()?.location();
    let (one, other) = (Machine::new(&location), Machine::new(&location));
    one.ok(&["init", &location]);
    Some((one, other))
}

fn lines(machine: &Machine, name: &str) -> Vec<String> {
    fs::read_to_string(machine.path(name)).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[test]
fn what_is_pushed_on_one_machine_is_noticed_on_another() {
    let Some((one, mut other)) = two() else { return };
    other.start_worker(&[]);
    wait_until("the worker", || other.base().join("run/_commit").exists());
    // There are no consumers, so only the listener touches the file there.
    let touched = || fs::metadata(other.base().join("run/_commit")).unwrap().modified().unwrap();
    wait_until("a notice", || {
        let before: SystemTime = touched();
        one.ok(&["push", "x"]);
        std::thread::sleep(Duration::from_millis(50));
        touched() != before
    });
}

#[test]
fn a_push_starts_nothing_and_a_dispatch_does() {
    let Some((one, mut other)) = two() else { return };
    one.ok(&["subscribe", "bot", "cat >>out", "--deliver", "stdin"]);
    let pushed = one.ok(&["push", "--json", "x"]);
    assert!(pushed.contains(r#""dispatch":"left-to-workers""#), "{pushed}");
    assert_eq!((one.bot("pending"), one.bot("state")), (1.into(), "idle".into()));
    other.start_worker(&[]);
    wait_until("the event to be handled", || one.bot("pending") == 0);
    one.ok(&["push", "y"]);
    wait_until("the next one", || one.bot("pending") == 0);
    // The folder is that of the machine which subscribed.
    assert_eq!(lines(&one, "out").len(), 2);
    assert!(one.ok(&["logs", "bot"]).is_empty() && other.ok(&["logs", "bot"]).contains("attempt=1"));
    assert!(one.ok(&["peek", "--wait", "1s", "--last-event-id", "0"]).lines().count() == 2);
}

#[test]
fn of_two_machines_one_at_a_time_runs_a_consumer() {
    let Some((mut one, mut other)) = two() else { return };
    let handler = "mkdir busy || echo overlap >>out; cat >>out; sleep 0.02; rmdir busy";
    one.ok(&["subscribe", "bot", handler, "--deliver", "stdin", "--batch-size", "1"]);
    one.start_worker(&[]);
    other.start_worker(&[]);
    for n in 0..40 {
        if n % 2 == 0 { &one } else { &other }.ok(&["push", &n.to_string()]);
    }
    wait_until("all to be handled", || one.bot("pending") == 0 && one.bot("state") == "idle");
    let seen = lines(&one, "out");
    assert!(!seen.contains(&"overlap".to_owned()), "{seen:?}");
    assert_eq!(seen.len(), 40);
}

#[test]
fn a_run_is_stopped_from_another_machine_which_knows_its_host() {
    let Some((mut one, other)) = two() else { return };
    one.ok(&["subscribe", "bot", "echo $THREAD_EPOCH >began; exec sleep 1000"]);
    one.start_worker(&[]);
    one.ok(&["push", "x"]);
    wait_until("the handler", || lines(&one, "began") == ["1"]);
    wait_until("its record", || other.bot("state") == "running" && other.bot("host").is_string());
    // Another machine considers the run neither dead nor its own.
    other.ok(&["dispatch"]);
    other.ok(&["stop", "bot"]);
    assert_eq!((other.bot("state"), other.bot("reason")), ("stalled".into(), "stopped".into()));
}

#[test]
fn a_machine_that_is_cut_off_ends_its_handler_before_another_begins_and_writes_nothing_after_that() {
    let Some(server) = server() else { return };
    server.psql("CREATE ROLE cutoff SUPERUSER LOGIN PASSWORD 'secret'");
    let direct = server.location_of("cutoff", "inbox");
    let proxy = Proxy::to(server.port);
    let (mut one, mut other) = (Machine::new(&direct), Machine::new(&direct));
    one.location =
        format!("postgres://cutoff@127.0.0.1:{}/postgres?schema=cutoff&sslmode=disable#inbox", proxy.port);
    one.variables.push(("PGPASSWORD", "secret".to_owned()));
    other.ok(&["init", &direct]);
    let handler = "echo begin $THREAD_EPOCH >>out; trap 'echo end $THREAD_EPOCH >>out; exit 0' TERM; \
                   [ $THREAD_EPOCH = 1 ] && { sleep 1000 & wait; }; cat >/dev/null; echo done >>out";
    other.ok(&["subscribe", "bot", handler, "--deliver", "stdin"]);
    one.start_worker(&["--lease", "4s"]);
    one.ok(&["push", "x"]);
    wait_until("the first handler", || lines(&other, "out") == ["begin 1"]);
    let recorded = "SELECT run::json -> 'handler' ->> 'pid' IS NOT NULL FROM cutoff.consumers";
    wait_until("its record", || server.psql(recorded) == "t");
    proxy.cut();
    other.start_worker(&["--lease", "4s"]);
    wait_until("the other machine to take over", || other.bot("pending") == 0);
    assert_eq!(lines(&other, "out"), ["begin 1", "end 1", "begin 2", "done"]);
    other.ok(&["push", "y"]);
    wait_until("the second event", || other.bot("pending") == 0);
    other.ok(&["pause", "bot"]);
    other.kill();
    proxy.heal();
    one.ok(&["seek", "bot", "1"]);
    // The text that the old handler would write.
    let mut ack = one.command(&["ack", "bot", "2"]);
    ack.envs([("THREAD_CONSUMER", "bot"), ("THREAD_EPOCH", "1")]);
    let refused = ack.output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.starts_with("Error: another machine has taken over the runs of 'bot'"), "{said}");
    assert_eq!(one.bot("last_acked_id"), 1);
    one.ok(&["resume", "bot"]);
    wait_until("the first machine to go on", || one.bot("pending") == 0);
}

#[test]
fn runs_of_a_machine_without_power_move_to_another_once_the_lease_expires() {
    let Some((mut one, mut other)) = two() else { return };
    let handler = "echo begin $THREAD_EPOCH >>out; [ $THREAD_EPOCH = 1 ] && exec sleep 1000; cat >>out";
    one.ok(&["subscribe", "bot", handler, "--deliver", "stdin"]);
    one.start_worker(&["--lease", "4s"]);
    one.ok(&["push", "x"]);
    wait_until("the first handler", || lines(&one, "out") == ["begin 1"]);
    one.kill();
    assert_eq!(other.bot("pending"), 1);
    other.start_worker(&["--lease", "4s"]);
    wait_until("the other machine", || other.bot("pending") == 0);
    assert_eq!(lines(&one, "out").len(), 3);
}
