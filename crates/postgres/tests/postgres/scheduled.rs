//! Events that come later, and schedules, on a thread that several machines share.

use std::collections::BTreeSet;

use serde_json::Value;
use thread_testkit::{postgres::server, wait_until};

use crate::machine::Machine;

fn events(machine: &Machine) -> Vec<Value> {
    let printed = machine.ok(&["peek", "--last-event-id", "0", "--limit", "10000"]);
    printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn two_workers_make_each_event_once_and_one_is_killed_all_the_time() {
    let Some(server) = server() else { return };
    let location = server.location_of("later", "inbox");
    let (mut one, mut other) = (Machine::new(&location), Machine::new(&location));
    one.ok(&["init", &location]);
    one.start_worker(&[]);
    one.ok(&["schedule", "add", "tick", "--every", "100ms", "--catch-up", "all", "tick"]);
    for n in 0..40 {
        assert!(one.ok(&["push", "--in", &format!("{}ms", n * 30), &n.to_string()]).starts_with('s'));
        if n % 8 == 0 {
            other.revive_worker(&[]);
        }
        if n % 8 == 4 {
            other.kill();
        }
    }
    wait_until("all to come", || one.ok(&["scheduled"]).is_empty());
    one.ok(&["schedule", "remove", "tick"]);
    let (mut pushed, mut ticks) = (Vec::new(), Vec::new());
    for event in events(&one) {
        match event["metadata"]["scheduled_for"].as_str() {
            Some(time) => ticks.push(time.to_owned()),
            None => pushed.push(event["content"].as_str().unwrap().parse::<i64>().unwrap()),
        }
    }
    pushed.sort_unstable();
    assert_eq!(pushed, (0..40).collect::<Vec<_>>());
    assert!(ticks.len() > 5 && ticks.is_sorted(), "{ticks:?}");
    assert_eq!(ticks.iter().collect::<BTreeSet<_>>().len(), ticks.len(), "{ticks:?}");
}

#[test]
fn restarts_and_prunes_make_no_time_of_a_schedule_come_twice() {
    let Some(server) = server() else { return };
    let location = server.location_of("later_restarts", "inbox");
    let one = Machine::new(&location);
    one.ok(&["init", &location]);
    let add = |name: &str, catch_up: &str| {
        one.ok(&["schedule", "add", name, "--every", "50ms", "--catch-up", catch_up, "tick"]);
    };
    add("each", "all");
    add("one", "one");
    let mut machines = [Machine::new(&location), Machine::new(&location)];
    let mut ticks = Vec::new();
    for round in 0..if thread_testkit::long() { 50 } else { 8 } {
        machines.iter_mut().for_each(|machine| machine.revive_worker(&[]));
        let before = ticks.len();
        wait_until("an event", || {
            ticks.extend(take(&one));
            ticks.len() > before
        });
        machines[round % 2].kill();
    }
    let before = ticks.len();
    wait_until("one more", || {
        machines.iter_mut().for_each(|machine| machine.revive_worker(&[]));
        ticks.extend(take(&one));
        ticks.len() > before
    });
    for name in ["each", "one"] {
        let times: Vec<&String> = ticks.iter().filter(|(of, _)| of == name).map(|(_, time)| time).collect();
        assert_eq!(times.iter().collect::<BTreeSet<_>>().len(), times.len(), "{name}: {times:?}");
        assert!(times.is_sorted(), "{name}: {times:?}");
        if name == "each" {
            let time = |at: usize| thread::model::time::parse(times[at]).unwrap();
            let gap = |at: usize| (time(at) - time(at - 1)).num_milliseconds();
            assert!((1..times.len()).all(|at| gap(at) == 50), "{times:?}");
        }
    }
}

/// The names and times of the events that have come, which are pruned.
fn take(machine: &Machine) -> Vec<(String, String)> {
    let events = events(machine);
    let Some(last) = events.last() else { return Vec::new() };
    let next = (last["id"].as_i64().unwrap() + 1).to_string();
    machine.ok(&["prune", "--before-id", &next]);
    let text = |event: &Value, key: &str| event["metadata"][key].as_str().unwrap().to_owned();
    events.iter().map(|event| (text(event, "schedule"), text(event, "scheduled_for"))).collect()
}

#[test]
fn a_dispatch_makes_what_is_due_events_and_waits_for_the_rest() {
    let Some(server) = server() else { return };
    let location = server.location_of("later_dispatch", "inbox");
    let machine = Machine::new(&location);
    machine.ok(&["init", &location]);
    machine.ok(&["push", "--in", "0", "now"]);
    machine.ok(&["push", "--in", "2s", "--idempotency-key", "k", "soon"]);
    assert_eq!(events(&machine).len(), 0, "nobody makes them");
    machine.ok(&["dispatch"]);
    assert_eq!(events(&machine).len(), 1);
    wait_until("the timer to make the other", || events(&machine).len() == 2);
    assert_eq!(machine.ok(&["push", "--in", "2s", "--idempotency-key", "k", "soon"]), "2\n");
}

#[test]
fn handlers_are_not_given_what_has_expired() {
    let Some(server) = server() else { return };
    let kept = "while read -r line; do id=${line#*:}; id=${id%%,*}; echo $id >>out; echo \"{\\\"ack\\\":$id}\"; done";
    let once = "sed 's/^{\"id\":\\([0-9]*\\),.*/\\1/' >>out";
    for (name, handler, options) in [
        ("plain", once, &["--deliver", "stdin"][..]),
        ("pool", once, &["--deliver", "stdin", "--concurrency", "2", "--key", "'all'"]),
        ("kept", kept, &["--deliver", "ndjson"]),
    ] {
        let location = server.location_of("later_expired", name);
        let mut machine = Machine::new(&location);
        machine.ok(&["init", &location]);
        machine.ok(&[&["subscribe", "bot", handler][..], options].concat());
        let line = |content: &str, at: &str| {
            format!("{{\"content\":\"{content}\",\"metadata\":{{\"expires_at\":\"{at}\"}}}}\n")
        };
        let (past, future) = ("2026-01-01T00:00:00Z", "2099-01-01T00:00:00Z");
        let lines = [line("a", past), line("x", future), line("b", past), line("y", future)].concat();
        machine.ok_with_stdin(&["push", "--batch"], &lines);
        machine.start_worker(&[]);
        wait_until("all to be passed", || machine.bot("last_acked_id") == 4);
        assert_eq!(std::fs::read_to_string(machine.path("out")).unwrap(), "2\n4\n", "{name}");
        assert_eq!(machine.bot("expired"), 2, "{name}");
        machine.end_worker();
    }
}
