//! Steps on a thread that several machines share.

use std::fs;

use serde_json::{Value, json};
use thread_testkit::{postgres::Server, postgres::server, wait_until};

use crate::machine::Machine;

/// Two machines with the same thread.
fn two(server: &Server, schema: &str) -> (Machine, Machine) {
    let location = server.location_of(schema, "inbox");
    let (one, other) = (Machine::new(&location), Machine::new(&location));
    one.ok(&["init", &location]);
    (one, other)
}

/// Of a file in the folder of the machine that has subscribed.
fn lines(machine: &Machine, name: &str) -> Vec<String> {
    fs::read_to_string(machine.path(name)).unwrap_or_default().lines().map(str::to_owned).collect()
}

fn subscribe(machine: &Machine, script: &str, options: &[&str]) {
    fs::write(machine.path("handler"), script).unwrap();
    let single =
        ["--deliver", "stdin", "--batch-size", "1", "--filter", "subtype IS NULL", "--backoff", "10ms"];
    let words = ["subscribe", "bot", "exec sh handler"];
    machine.ok(&[&words[..], &single, options].concat());
}

fn states(machine: &Machine) -> Vec<String> {
    let list = machine.ok(&["step", "--list", "--json"]);
    let state = |line: &str| {
        let step: Value = serde_json::from_str(line).unwrap();
        format!("{} {}", step["name"].as_str().unwrap(), step["state"].as_str().unwrap())
    };
    list.lines().map(state).collect()
}

#[test]
fn a_step_that_was_stored_on_one_machine_is_known_on_another() {
    let Some(server) = server() else { return };
    for (schema, concurrency) in [("steps_one", &[][..]), ("steps_pool", &["--concurrency", "2"])] {
        let (mut one, mut other) = two(server, schema);
        let script = "set -e\nthread step pay -- sh -c 'echo $THREAD_STEP_KEY >>paid; printf \"a\\000\\377\"' >>printed\n\
                      thread step slow -- sh -c 'echo $THREAD_STEP_KEY >>keys; [ $(wc -l <keys) -gt 1 ] || exec sleep 1000'\n\
                      thread sleep nap 300ms\nthread await ok --subtype ok >>line";
        subscribe(&one, script, concurrency);
        one.start_worker(&["--lease", "4s"]);
        one.ok(&["push", "order"]);
        wait_until("the second step", || lines(&one, "keys").len() == 1);
        assert_eq!(states(&other), ["pay done", "slow begun"]);
        one.kill();
        other.start_worker(&["--lease", "4s"]);
        wait_until("the await", || states(&other).last().is_some_and(|last| last == "ok waiting"));
        one.ok(&["push", "--subtype", "ok", "yes"]);
        wait_until("the end", || other.bot("last_acked_id") == 1);
        assert_eq!(lines(&one, "paid").len(), 1);
        let keys = lines(&one, "keys");
        assert!(keys.len() == 2 && keys[0] == keys[1] && keys[0] != lines(&one, "paid")[0], "{keys:?}");
        let printed = fs::read(one.path("printed")).unwrap();
        assert!(printed.len() >= 9 && printed.chunks(3).all(|part| part == b"a\0\xff"), "{printed:?}");
        let awaited: Value = serde_json::from_str(&lines(&one, "line").concat()).unwrap();
        assert_eq!((&awaited["id"], &awaited["content"]), (&json!(2), &json!("yes")));
    }
}

#[test]
fn a_machine_that_was_overtaken_stores_no_step() {
    let Some(server) = server() else { return };
    let (mut one, mut other) = two(server, "steps_fence");
    subscribe(&other, "set -e\nthread step pay -- sh -c 'echo $THREAD_EPOCH >>paid; exec sleep 1000'", &[]);
    one.start_worker(&["--lease", "4s"]);
    one.ok(&["push", "order"]);
    wait_until("the step", || lines(&other, "paid") == ["1"]);
    one.kill();
    other.start_worker(&["--lease", "4s"]);
    wait_until("the other machine", || lines(&other, "paid") == ["1", "2"]);
    // What the old handler would do.
    for words in [
        &["step", "late", "--event", "1", "--", "true"][..],
        &["sleep", "nap", "1h", "--event", "1"],
        &["await", "ok", "--subtype", "ok", "--event", "1"],
    ] {
        let mut late = one.command(words);
        late.envs([("THREAD_CONSUMER", "bot"), ("THREAD_EPOCH", "1")]);
        let refused = late.output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(said.starts_with("Error: another machine has taken over the runs of 'bot'"), "{said}");
    }
    assert_eq!(states(&one), ["pay begun"]);
}

#[test]
fn sleeping_events_hold_no_places_of_a_pool_and_wake_up_without_a_worker() {
    let Some(server) = server() else { return };
    let (one, other) = two(server, "steps_places");
    let script = "set -e\nthread step pay -- sh -c 'echo $THREAD_EVENT_ID >>paid'\n\
                  thread await go --subtype go >/dev/null\nthread sleep nap 100ms\necho $THREAD_EVENT_ID >>seen";
    subscribe(&one, script, &["--concurrency", "1", "--ahead", "2"]);
    for _ in 0..4 {
        one.ok(&["push", "order"]);
    }
    one.ok(&["dispatch"]);
    wait_until("all to sleep", || other.bot("in_hand")["waiting"] == 4);
    other.ok(&["push", "--subtype", "go", "now"]);
    wait_until("all to wake up", || other.bot("last_acked_id") == 4);
    let sorted = |name: &str| {
        let mut lines = lines(&one, name);
        lines.sort();
        lines
    };
    assert_eq!(
        (sorted("paid"), sorted("seen")),
        (sorted("paid"), ["1", "2", "3", "4"].map(str::to_owned).to_vec())
    );
    assert_eq!(sorted("paid").len(), 4);
}

#[test]
fn a_kept_handler_does_steps() {
    let Some(server) = server() else { return };
    let (mut one, _) = two(server, "steps_kept");
    let handler = "while read -r line; do id=${line#*:}; id=${id%%,*}; \
                   thread step pay --event $id -- sh -c 'echo paid >>paid'; thread sleep nap 200ms --event $id; \
                   thread step mail --event $id -- sh -c 'echo mailed >>mailed'; echo \"{\\\"ack\\\":$id}\"; done";
    one.ok(&["subscribe", "bot", handler, "--deliver", "ndjson", "--concurrency", "2"]);
    one.start_worker(&[]);
    for _ in 0..3 {
        one.ok(&["push", "order"]);
    }
    wait_until("all three", || one.bot("last_acked_id") == 3);
    assert_eq!((lines(&one, "paid").len(), lines(&one, "mailed").len()), (3, 3));
}

#[test]
fn the_first_step_brings_the_schema_to_version_5() {
    let Some(server) = server() else { return };
    let (one, _) = two(server, "steps_version");
    one.ok(&["push", "order"]);
    one.ok(&["subscribe", "bot", "--no-handler", "--concurrency", "2"]);
    let version = || server.psql("SELECT max(version) FROM steps_version.versions");
    assert_eq!((one.ok(&["step", "--list"]), version()), (String::new(), "3".to_owned()));
    one.ok(&["step", "a", "--consumer", "bot", "--event", "1", "--", "true"]);
    assert_eq!(version(), "5");
    assert_eq!(states(&one), ["a done"]);
}
