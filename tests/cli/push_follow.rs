//! `push --lines --follow` and `push --batch --follow`: lines are stored while more of them come.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Output};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde_json::{Value, json};
use thread_testkit::{World, wait_until};

fn follow(world: &World, options: &[&str]) -> (Child, ChildStdin) {
    let mut child = world.thread(["push", "--follow"]).args(options).spawn();
    let stdin = child.stdin.take().unwrap();
    (child, stdin)
}

fn contents(world: &World) -> Vec<String> {
    let printed = world.thread(["peek", "--last-event-id", "0", "--limit", "100000", "--format", "content"]);
    printed.quiet().lines().map(str::to_owned).collect()
}

fn wait_for_events(world: &World, count: usize) {
    wait_until("the events", || contents(world).len() == count);
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Waits until the process has read all that is in the pipe.
fn wait_until_read(stdin: &ChildStdin) {
    wait_until("an empty pipe", || rustix::io::ioctl_fionread(stdin).unwrap() == 0);
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn assert_ended(output: &Output, code: i32, stdout: &str, stderr: &str) {
    let ended = (output.status.code(), text(&output.stdout), text(&output.stderr));
    assert_eq!(ended, (Some(code), stdout.to_owned(), stderr.to_owned()));
}

#[test]
fn lines_are_stored_and_delivered_while_the_input_goes_on() {
    let world = World::with_thread();
    world.subscribe("bot", "cat >> got", &["--deliver", "stdin"]);
    let (child, mut stdin) = follow(&world, &["--lines"]);
    stdin.write_all(b"one\ntwo\n").unwrap();
    wait_for_events(&world, 2);
    wait_until("delivery", || world.lines("got").len() == 2);
    // A line is an event once it is whole, or once the input ends.
    stdin.write_all(b"three\nfo").unwrap();
    wait_for_events(&world, 3);
    stdin.write_all(b"ur").unwrap();
    drop(stdin);
    assert_ended(&child.wait_with_output().unwrap(), 0, "4\n", "");
    assert_eq!(contents(&world), ["one", "two", "three", "four"]);
    world.wait_until_quiet();
    assert_eq!(world.lines("got").len(), 4);
    world.assert_log_is_exact();
}

#[test]
fn json_reports_what_each_transaction_stored() {
    let world = World::with_thread();
    let (mut child, mut stdin) = follow(&world, &["--batch", "--json"]);
    let mut printed = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut answer = |lines: &[u8]| -> Value {
        stdin.write_all(lines).unwrap();
        serde_json::from_str(&printed.next().unwrap().unwrap()).unwrap()
    };
    let known = b"{\"content\":\"a\",\"idempotency_key\":\"k\"}\n";
    assert_eq!(answer(known), json!({ "count": 1, "first_id": 1, "last_id": 1, "lines": 1 }));
    assert_eq!(answer(known), json!({ "count": 0, "first_id": null, "last_id": null, "lines": 2 }));
    assert_eq!(
        answer(b"\n{\"content\":{\"b\":1}}\n"),
        json!({ "count": 1, "first_id": 2, "last_id": 2, "lines": 4 })
    );
    drop(stdin);
    assert!(printed.next().is_none());
    assert_ended(&child.wait_with_output().unwrap(), 0, "", "");
    assert_eq!(contents(&world), ["a", "{\"b\":1}"]);
}

#[test]
fn a_signal_stores_what_has_come_and_is_exit_0() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let world = World::with_thread();
        let (child, mut stdin) = follow(&world, &["--lines"]);
        stdin.write_all(b"first\n").unwrap();
        wait_for_events(&world, 1);
        let many: String = (0..500).map(|n| format!("line {n}\n")).collect();
        stdin.write_all(many.as_bytes()).unwrap();
        stdin.write_all(b"unfinished").unwrap();
        send(&child, signal);
        assert_ended(&child.wait_with_output().unwrap(), 0, "502\n", "");
        let stored = contents(&world);
        let expected = (0..500).map(|n| format!("line {n}"));
        assert!(stored[1..501].iter().cloned().eq(expected), "{stored:?}");
        assert_eq!((stored.len(), &*stored[501]), (502, "unfinished"));
    }
}

#[test]
fn many_lines_are_stored_once_and_in_order() {
    let world = World::with_thread();
    let lines: String = (0..50_000).map(|n| format!("{n}\n")).collect();
    assert_eq!(world.thread(["push", "--lines", "--follow"]).stdin(lines).quiet(), "50000\n");
    assert!(contents(&world).into_iter().eq((0..50_000).map(|n| n.to_string())));
    let commits = world.log().iter().filter(|line| line.contains("push batch")).count();
    assert!(commits > 1, "{commits}");
    world.assert_log_is_exact();
}

#[test]
fn a_line_that_cannot_be_stored_is_named_and_the_others_are_stored() {
    let world = World::with_thread();
    let (stdout, stderr) =
        world.thread(["push", "--lines", "--follow"]).stdin(b"a\n\xff\nb\n\xfe\n".to_vec()).ends_with(1);
    assert_eq!(stdout, "2\n");
    assert_eq!(
        stderr,
        "Warning: line 2 is not valid UTF-8; it was not stored, nor was line 4\n\
         Error: 2 lines were not stored, the first of them line 2; all others are - correct what writes them, \
         and push these again\n"
    );
    assert_eq!(contents(&world), ["a", "b"]);

    let long = "x".repeat(17 << 20);
    let run = world.thread(["push", "--lines", "--follow"]).stdin(format!("c\n{long}\nd\n"));
    let (_, stderr) = run.ends_with(1);
    assert!(stderr.contains("line 2 is longer than 16777216 bytes; it was not stored\n"), "{stderr}");
    assert_eq!(contents(&world), ["a", "b", "c", "d"]);
}

#[test]
fn a_conflicting_key_keeps_nothing_else_from_being_stored() {
    let world = World::with_thread();
    let line =
        |content: &str, key: &str| format!("{{\"content\":\"{content}\",\"idempotency_key\":\"{key}\"}}\n");
    let batch = line("a", "k") + &line("b", "k") + &line("c", "l") + "nonsense\n" + &line("d", "m");
    let (stdout, stderr) = world.thread(["push", "--batch", "--follow"]).stdin(batch).ends_with(1);
    assert_eq!(stdout, "3\n");
    let said: Vec<&str> = stderr.lines().collect();
    assert_eq!(
        said[0],
        "Warning: line 2 has the idempotency key 'k' of event 1, which is different; it was not stored"
    );
    assert_eq!(said[1], "Warning: line 4 is not a JSON object; it was not stored");
    assert_eq!(contents(&world), ["a", "c", "d"]);
}

/// Starts it so that it can write no file beyond 64 KiB, and pushes more than that.
fn follow_without_room(world: &World) -> (Child, ChildStdin) {
    let mut child = world.sh("ulimit -Sf 128; exec thread push --lines --follow").spawn();
    let mut stdin = child.stdin.take().unwrap();
    let large: String = (0..100).map(|n| format!("{n} {}\n", "x".repeat(2000))).collect();
    stdin.write_all(b"first\n").unwrap();
    wait_for_events(world, 1);
    stdin.write_all(large.as_bytes()).unwrap();
    wait_until_read(&stdin);
    (child, stdin)
}

#[test]
fn while_the_disk_is_full_lines_wait() {
    let world = World::with_thread();
    let (mut child, stdin) = follow_without_room(&world);
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    let warning = said.next().unwrap().unwrap();
    assert!(
        warning.starts_with("Warning: nothing is stored from line 2 on for now, and nothing more is read: ")
    );
    let room = Rlimit { current: None, maximum: None };
    prlimit(Some(Pid::from_child(&child)), Resource::Fsize, room).unwrap();
    wait_for_events(&world, 101);
    assert_eq!(said.next().unwrap().unwrap(), "Note: the lines are stored again, up to line 101");
    drop(stdin);
    assert_ended(&child.wait_with_output().unwrap(), 0, "101\n", "");
    assert!(contents(&world)[1..].iter().enumerate().all(|(n, line)| line.starts_with(&format!("{n} x"))));
    world.assert_log_is_exact();
}

#[test]
fn a_signal_while_the_disk_is_full_says_which_lines_are_not_stored() {
    let world = World::with_thread();
    let (mut child, mut stdin) = follow_without_room(&world);
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(said.next().unwrap().unwrap().starts_with("Warning: "));
    // Never read, because it waits.
    stdin.write_all(b"late\n").unwrap();
    send(&child, Signal::TERM);
    let error = said.next().unwrap().unwrap();
    let expected = "Error: not stored: lines 2 to 101; 1 event before that is, event 1: the disk ";
    assert!(error.starts_with(expected), "{error}");
    assert_ended(&child.wait_with_output().unwrap(), 1, "", "");
    assert_eq!(contents(&world), ["first"]);
}

#[test]
fn a_thread_that_is_gone_ends_it_with_the_lines_that_are_not_stored() {
    let world = World::with_thread();
    let (child, mut stdin) = follow(&world, &["--lines"]);
    stdin.write_all(b"one\n").unwrap();
    wait_for_events(&world, 1);
    fs::rename(world.inbox(), world.path("elsewhere")).unwrap();
    stdin.write_all(b"two\nthree\nunfin").unwrap();
    let output = child.wait_with_output().unwrap();
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    let expected =
        "Error: not stored: lines 2 to 3, nor is the unfinished line after that; 1 event before that";
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn it_needs_lines_and_a_thread() {
    let world = World::with_thread();
    assert!(world.thread(["push", "--follow", "x"]).fails(2).contains("--follow"));
    assert!(world.thread(["push", "--follow"]).fails(2).contains("add --lines or --batch"));
    assert!(world.thread(["push", "--lines", "--follow", "--sync", "1s"]).fails(2).contains("--sync"));
    let error = world.thread(["push", "--lines", "--follow", "-t", "nowhere"]).stdin("x\n").fails(1);
    assert!(error.contains("nowhere is not a thread"), "{error}");
    // Input that ends is no trouble.
    assert_eq!(world.thread(["push", "--lines", "--follow"]).quiet(), "0\n");
}

#[test]
fn without_follow_a_note_says_why_nothing_is_stored() {
    let world = World::with_thread();
    let mut child = world.thread(["push", "--lines"]).spawn();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"one\n").unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    assert_eq!(
        said.next().unwrap().unwrap(),
        "Note: nothing is stored before the end of the input; --follow stores lines as they come"
    );
    stdin.write_all(b"two\n").unwrap();
    drop(stdin);
    assert!(said.next().is_none(), "once is enough");
    assert_ended(&child.wait_with_output().unwrap(), 0, "2\n", "");
}
