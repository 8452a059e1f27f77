//! Pools, on threads that several machines share.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::Value;
use thread_testkit::{kill_and_wait, postgres::server, wait_until};

use crate::machine::Machine;

/// Handles one event: locks it and its key, and notes what it does.
const HANDLE: &str = "handle() { id=${1#*:}; id=${id%%,*}; key=${1##*key_}; key=${key%%_*}; exec 8>lock-$id 9>lock-key$key; \
                      flock -n 8 && flock -n 9 || echo overlap >>out; echo \"$key $id\" >>out; sleep 0.02; exec 8>&- 9>&-; };";

fn works_on_one_machine_at_a_time(schema: &str, handler: &str, deliver: &str) {
    let Some(server) = server() else { return };
    let location = server.location_of(schema, "inbox");
    let (mut one, mut other) = (Machine::new(&location), Machine::new(&location));
    one.ok(&["init", &location]);
    let handler = format!("{HANDLE} {handler}");
    let options = ["--deliver", deliver, "--batch-size", "1", "--concurrency", "3", "--key", "content"];
    let patient = ["--backoff", "50ms", "--max-attempts", "never"];
    one.ok(&[&["subscribe", "bot", &handler][..], &options, &patient].concat());
    one.start_worker(&["--lease", "4s"]);
    other.start_worker(&["--lease", "4s"]);
    let mut pushed = 0;
    for round in 0..4 {
        for key in 0..8 {
            one.ok(&["push", &format!("key_{}_", key % 4)]);
            pushed += 1;
        }
        let machine = if round % 2 == 0 { &one } else { &other };
        let status: Value = serde_json::from_str(&machine.ok(&["info", "bot", "--json"])).unwrap();
        if let Some(pid) = status["subscriptions"][0]["pid"].as_u64() {
            kill_and_wait(pid as u32);
        }
    }
    wait_until("all to be handled", || one.bot("pending") == 0);
    let out = fs::read_to_string(one.path("out")).unwrap();
    let mut newest = BTreeMap::new();
    let mut ids = BTreeSet::new();
    for line in out.lines() {
        let (key, id) = line.split_once(' ').unwrap_or_else(|| panic!("{line} in {out}"));
        let id: i64 = id.parse().unwrap();
        ids.insert(id);
        let before = newest.insert(key.to_owned(), id).unwrap_or(0);
        assert!(before <= id, "of key {key}, {id} began after {before}");
    }
    assert_eq!(ids, (1..=pushed).collect());
    assert_eq!((one.bot("dead"), one.bot("last_acked_id")), (0.into(), pushed.into()));
    drop(one.run(&["stop", "bot"]));
}

#[test]
fn runs_of_a_pool_are_on_one_machine_at_a_time_whoever_is_killed() {
    works_on_one_machine_at_a_time("pool_runs", "read -r line; handle \"$line\"", "stdin");
}

#[test]
fn kept_handlers_of_a_pool_are_on_one_machine_at_a_time_whoever_is_killed() {
    let handler = "while read -r line; do handle \"$line\"; echo \"{\\\"ack\\\":$id}\"; done";
    works_on_one_machine_at_a_time("pool_kept", handler, "ndjson");
}
