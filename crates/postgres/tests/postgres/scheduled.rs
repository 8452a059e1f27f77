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
