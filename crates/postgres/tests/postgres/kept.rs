//! Handlers that are kept, on threads that several machines share.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;
use thread_testkit::{kill_and_wait, postgres::server, wait_until};

use crate::machine::Machine;

/// Answers each event, after it has noted that it has it; and notes if another one is at work.
const HANDLER: &str = "exec 9>busy; flock -n 9 || echo overlap >>out; while read -r line; do id=${line#*:}; \
                       id=${id%%,*}; echo $id >>out; case $line in *later*) [ -e up ] || { \
                       echo \"{\\\"nack\\\":$id,\\\"delay\\\":\\\"100ms\\\"}\"; continue; };; esac; \
                       echo \"{\\\"ack\\\":$id}\"; done";

fn given(machine: &Machine) -> Vec<String> {
    fs::read_to_string(machine.path("out")).unwrap_or_default().lines().map(str::to_owned).collect()
}

fn supervisors(machine: &Machine) -> Vec<u32> {
    let status: Value = serde_json::from_str(&machine.ok(&["info", "bot", "--json"])).unwrap();
    let pid = status["subscriptions"][0]["pid"].as_u64();
    pid.map(|pid| pid as u32).into_iter().collect()
}

#[test]
fn a_kept_handler_works_on_one_machine_at_a_time_whoever_is_killed() {
    let Some(server) = server() else { return };
    let location = server.location();
    let (mut one, mut other) = (Machine::new(&location), Machine::new(&location));
    one.ok(&["init", &location]);
    one.ok(&[
        "subscribe",
        "bot",
        HANDLER,
        "--deliver",
        "ndjson",
        "--backoff",
        "50ms",
        "--max-attempts",
        "never",
    ]);
    one.start_worker(&["--lease", "4s"]);
    other.start_worker(&["--lease", "4s"]);
    let mut pushed = 0;
    for round in 0..4 {
        for machine in [&one, &other] {
            machine.ok(&["push", if round == 1 { "later" } else { "now" }]);
            pushed += 1;
        }
        if round == 1 {
            // One waits, and holds back no other.
            wait_until("some tries", || given(&one).len() > 6);
            assert!(one.bot("pending") == 2, "{:?}", one.ok(&["info", "bot"]));
            fs::write(one.path("up"), "").unwrap();
        }
        wait_until("all to be handled", || one.bot("pending") == 0);
        let machine = if round % 2 == 0 { &one } else { &other };
        supervisors(machine).into_iter().for_each(kill_and_wait);
    }
    let given = given(&one);
    assert!(!given.contains(&"overlap".to_owned()), "{given:?}");
    let ids: BTreeSet<i64> = given.iter().map(|id| id.parse().unwrap()).collect();
    assert_eq!(ids, (1..=pushed).collect());
    assert_eq!((one.bot("dead"), one.bot("last_acked_id")), (0.into(), pushed.into()));
    // Unless the last one was killed, it has a handler.
    drop(one.run(&["stop", "bot"]));
}

#[test]
fn a_schema_has_another_version_only_once_an_event_may_finish_singly() {
    let Some(server) = server() else { return };
    let location = server.location_of("kept_version", "inbox");
    let machine = Machine::new(&location);
    machine.ok(&["init", &location]);
    machine.ok(&["subscribe", "plain", "cat", "--deliver", "stdin"]);
    let version = || server.psql("SELECT max(version) FROM kept_version.versions").trim().to_owned();
    assert_eq!(version(), "2");
    machine.ok(&["subscribe", "bot", "cat", "--deliver", "ndjson"]);
    assert_eq!(version(), "3");
    machine.ok(&["push", "a"]);
    assert_eq!(machine.ok(&["ack", "bot", "1"]), "1\n");
}
