//! Threads that are moved from a directory to a server, and back.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use thread_testkit::everything::{fill, insert_as_others_may, tables};
use thread_testkit::postgres::server;
use thread_testkit::{long, names, wait_until};

use crate::machine::Machine;

/// A machine with a thread in the directory `inbox` that has a row of every kind.
fn with_everything(location: &str) -> Machine {
    let machine = Machine::new(location);
    let inbox = machine.path("inbox").display().to_string();
    machine.ok(&["init", &inbox]);
    fill(&|args| machine.thread(args).env("THREAD_DIR", &inbox));
    machine
}

/// What `export` prints, without its header; consumers count as paused.
fn export(machine: &Machine, location: &str) -> Vec<String> {
    let printed = machine.ok(&["export", "-t", location]);
    let paused = |line: &str| line.replace("\"paused\":false,\"reason\"", "\"paused\":true,\"reason\"");
    printed.lines().skip(1).map(paused).collect()
}

/// The log may have been sealed, if its writer was killed.
fn log_is_exact(machine: &Machine, dir: &Path) {
    let mut files = names(dir);
    files.retain(|name| name.starts_with("events-") && name.ends_with(".jsonl"));
    files.push("events.jsonl".to_owned());
    let log: String = files.iter().map(|name| std::fs::read_to_string(dir.join(name)).unwrap()).collect();
    let dir = dir.display().to_string();
    assert_eq!(machine.ok(&["peek", "-t", &dir, "--last-event-id", "0", "--limit", "10000000"]), log);
}

#[test]
fn a_thread_is_the_same_there_and_back() {
    let Some(server) = server() else { return };
    let location = server.location_of("there", "inbox");
    let machine = with_everything(&location);
    let (inbox, back) = (machine.path("inbox"), machine.path("back"));
    let paths = [inbox.display().to_string(), back.display().to_string()];
    let there = machine.ok(&["clone", &paths[0], &location]);
    assert!(there.starts_with("event\t29\t"), "{there}");
    assert_eq!(machine.ok(&["clone", &location, &paths[1]]), there);
    assert_eq!(tables(&back), tables(&inbox));
    log_is_exact(&machine, &back);
    assert_eq!(export(&machine, &location), export(&machine, &paths[0]));
    // It continues there: keys, ids, and numbers of what is scheduled.
    machine.fails(1, &["push", "--idempotency-key", "later", "x"]);
    assert_eq!(
        machine.ok(&[
            "push",
            "--idempotency-key",
            "é\"",
            "customer 1",
            "--source",
            "self",
            "--type",
            "message"
        ]),
        "4\n"
    );
    assert_eq!(machine.ok(&["push", "x"]), "31\n");
    assert_eq!(machine.ok(&["push", "--in", "1h", "x"]), "s4\n");
    machine.ok(&["resume", "in-order"]);
    machine.ok(&["dispatch"]);
    wait_until("the handler", || machine.ok(&["info", "in-order"]).contains("last_acked_id: 31"));
    // And through a pipe, by one program into the other.
    let piped = server.location_of("there", "piped");
    machine.ok(&["init", &piped]);
    let export_of = machine.ok(&["export", "-t", &location]);
    machine.thread(&["import", "-t", &piped]).stdin(export_of).ends_with(0);
    assert_eq!(export(&machine, &piped), export(&machine, &location));
}

#[test]
fn a_thread_is_the_same_on_another_server_and_back() {
    let Some(server) = server() else { return };
    let location = server.location_of("here", "inbox");
    let machine = Machine::new(&location);
    machine.ok(&["init", &location]);
    fill(&|args| machine.thread(args));
    let (dir, other) = (machine.path("dir").display().to_string(), server.location_of("other", "inbox"));
    machine.ok(&["clone", &location, &dir]);
    machine.ok(&["clone", &dir, &other]);
    assert_eq!(export(&machine, &other), export(&machine, &location));
    log_is_exact(&machine, &machine.path("dir"));
}

#[test]
fn a_long_thread_is_the_same_there_and_back_though_both_are_killed_at_ten_moments() {
    let Some(server) = server() else { return };
    let events = if long() { 1_000_000 } else { 12_000 };
    let location = server.location_of("long", "inbox");
    let machine = with_everything(&location);
    let path = |name: &str| machine.path(name).display().to_string();
    let line = |n: u32| {
        let key = if n.is_multiple_of(10) { format!(r#","idempotency_key":"k{n}""#) } else { String::new() };
        format!(r#"{{"source":"self","type":"record","content":"event {n}","metadata":{{"n":{n}}}{key}}}"#)
            + "\n"
    };
    let lines: String = (0..events).map(line).collect();
    machine.thread(&["push", "-t", &path("inbox"), "--batch"]).stdin(lines).ends_with(0);
    let began = Instant::now();
    machine.ok(&["clone", &path("inbox"), &server.location_of("long", "whole")]);
    let there = began.elapsed();
    let began = Instant::now();
    machine.ok(&["clone", &server.location_of("long", "whole"), &path("whole")]);
    let back = began.elapsed();
    eprintln!("{events} events: there in {there:.1?}, back in {back:.1?}");
    let expected = tables(&machine.path("inbox"));
    assert!(tables(&machine.path("whole")) == expected);
    log_is_exact(&machine, &machine.path("whole"));
    // Each is killed at later and later moments.
    let until_done = |from: &str, to: &str, whole: Duration| {
        for moment in 1..=10 {
            let mut child = machine.command(&["clone", from, to, "--move"]).spawn().unwrap();
            std::thread::sleep(whole * moment / 20);
            child.kill().unwrap();
            child.wait().unwrap();
        }
        // The session of one that was killed may still be there.
        wait_until("the thread to be moved", || {
            let moved = machine.run(&["clone", from, to, "--move"]);
            moved.status.success() || String::from_utf8_lossy(&moved.stderr).contains("was moved to")
        });
        let error = machine.fails(1, &["push", "-t", from, "x"]);
        assert!(error.contains(&format!("this thread was moved to {to}")), "{error}");
    };
    until_done(&path("inbox"), &location, there);
    assert_eq!(export(&machine, &location), export(&machine, &path("whole")));
    until_done(&location, &path("back"), back);
    assert!(tables(&machine.path("back")) == expected);
    log_is_exact(&machine, &machine.path("back"));
    machine.ok(&["push", "-t", &path("back"), "x"]);
}

#[test]
fn what_the_server_cannot_store_is_listed_before_anything_is_stored() {
    let Some(server) = server() else { return };
    let location = server.location_of("unstorable", "inbox");
    let machine = Machine::new(&location);
    let inbox = machine.path("inbox").display().to_string();
    machine.ok(&["init", &inbox]);
    let events = [
        r#"{"source":"self","type":"record","content":"fine \u0000"}"#.to_owned(),
        r#"{"source":"self","type":"record","content":"x","subtype":"a\u0000b"}"#.to_owned(),
    ];
    machine.thread(&["push", "-t", &inbox, "--batch"]).stdin(events.join("\n")).ends_with(0);
    insert_as_others_may(&machine.path("inbox"));
    let error = machine.fails(1, &["clone", &inbox, &location]);
    assert!(
        error.starts_with(
            "Error: 3 of the rows cannot be stored there: event 2 has a NUL character in its subtype; event 3 has more than \
             2600 bytes in its idempotency_key; event 4 has bytes in its content that are not UTF-8 - "
        ),
        "{error}"
    );
    // It is still empty, and open.
    let export = machine.ok(&["export", "-t", &inbox]);
    let error = machine.thread(&["import"]).stdin(export).fails(1);
    assert!(
        error.contains("line 3, event 2, has a NUL character in its subtype; line 4, event 3, has"),
        "{error}"
    );
    assert_eq!(machine.ok(&["push", "x"]), "1\n");
    // With --move, the source stays open.
    machine.fails(1, &["clone", &inbox, &server.location_of("unstorable", "other"), "--move"]);
    machine.ok(&["push", "-t", &inbox, "x"]);
}

#[test]
fn a_thread_that_was_moved_says_where_it_is() {
    let Some(server) = server() else { return };
    let location = server.location_of("moved", "inbox");
    let machine = with_everything(&location);
    let inbox = machine.path("inbox").display().to_string();
    machine.ok(&["clone", &inbox, &location, "--move"]);
    let error = machine.fails(1, &["push", "-t", &inbox, "x"]);
    assert!(error.contains(&format!("this thread was moved to {location}")), "{error}");
    // Back, and then the thread on the server says so.
    let back = machine.path("back").display().to_string();
    let before = export(&machine, &location);
    machine.ok(&["clone", &location, &back, "--move"]);
    assert_eq!(tables(&machine.path("back")), tables(&machine.path("inbox")));
    for words in [
        &["push", "x"][..],
        &["push", "--in", "1h", "x"],
        &["push", "--idempotency-key", "key-1", "x"],
        &["ack", "pull", "8"],
        &["seek", "in-order", "beginning"],
        &["resume", "in-order"],
        &["subscribe", "new", "cat"],
        &["unsubscribe", "in-order"],
        &["dead", "discard", "pull", "3"],
        &["config", "retention.age", "1d"],
        &["schedule", "pause", "daily"],
        &["schedule", "remove", "daily"],
        &["scheduled", "cancel", "s1"],
        &["scheduled", "now", "s1"],
        &["prune", "--keep", "1", "--force"],
    ] {
        let (_, error) = machine.thread(words).ends_with(1);
        assert!(error.contains(&format!("this thread was moved to {back}")), "{words:?}: {error}");
    }
    machine.ok(&["dispatch"]);
    assert_eq!(export(&machine, &location), before);
    assert_eq!(machine.ok(&["peek", "--tail", "1"]).lines().count(), 1);
    assert!(machine.ok(&["info"]).contains(&format!("\nMoved to: {back}\n")));
    assert!(machine.ok(&["doctor"]).contains(&format!("warning: this thread was moved to {back}")));
}

#[test]
fn what_a_push_was_told_is_stored_is_where_the_thread_was_moved_to() {
    let Some(server) = server() else { return };
    let location = server.location_of("pushed", "inbox");
    let mut machine = Machine::new(&location);
    machine.ok(&["init", &location]);
    let dir = machine.path("dir").display().to_string();
    machine.ok(&["subscribe", "bot", "cat >>seen", "--deliver", "stdin", "--batch-size", "3"]);
    machine.start_worker(&[]);
    // There, back to another thread on the server, and while the worker runs handlers.
    let other = server.location_of("pushed", "other");
    let mut all = BTreeSet::new();
    for (from, to) in [(&location, &dir), (&dir, &other)] {
        let (is_over, stored) = (AtomicBool::new(false), Mutex::new(BTreeSet::new()));
        std::thread::scope(|scope| {
            for pusher in 0..3 {
                let (machine, is_over, stored) = (&machine, &is_over, &stored);
                scope.spawn(move || {
                    for n in 0.. {
                        let content = format!("{from} {pusher} {n}");
                        let output = machine.run(&["push", "-t", from, "--source", "self", &content]);
                        let error = String::from_utf8_lossy(&output.stderr);
                        match output.status.code() {
                            Some(0) => drop(stored.lock().unwrap().insert(content)),
                            Some(1) if error.contains(&format!("this thread was moved to {to}")) => {
                                if is_over.load(Ordering::SeqCst) {
                                    return;
                                }
                            }
                            code => panic!("{code:?}: {error}"),
                        }
                    }
                });
            }
            wait_until("some events", || stored.lock().unwrap().len() > 30);
            let cloned = machine.run(&["clone", from, to, "--move"]);
            is_over.store(true, Ordering::SeqCst);
            assert!(cloned.status.success(), "{cloned:?}");
        });
        all.append(&mut stored.into_inner().unwrap());
        let events = machine.ok(&["peek", "-t", to, "--last-event-id", "0", "--limit", "100000"]);
        let events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let there: BTreeSet<String> =
            events.map(|event| event["content"].as_str().unwrap().to_owned()).collect();
        assert_eq!(there, all);
    }
    // Its handler continues where it was: each event once.
    machine.ok(&["resume", "-t", &other, "bot"]);
    machine.ok(&["dispatch", "-t", &other]);
    let is_done = || machine.ok(&["info", "-t", &other]).contains("pending: 0");
    wait_until("the handler", is_done);
    wait_until("all to be written", || {
        let seen = std::fs::read_to_string(machine.path("seen")).unwrap();
        seen.lines().count() == all.len()
    });
}
