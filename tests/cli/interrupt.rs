//! Signals while a batch is pushed: before the commit nothing is stored, and the error says so;
//! after it, everything is stored.

use std::fs::{self, File};
use std::io::Write;
use std::process::{Child, Output};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use thread_testkit::{Dice, World, is_running, names, wait_until};

const LINE: &[u8] = b"{\"source\":\"self\",\"type\":\"record\",\"content\":\"some words\"}\n";

const NOTHING_STORED: &str = "Error: interrupted, nothing was stored - push the whole batch again\n";

const SIGNALS: [(Signal, i32); 3] = [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)];

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Waits until the process has installed its signal handlers.
fn wait_until_it_listens(child: &Child) {
    let path = format!("/proc/{}/status", child.id());
    wait_until("a handler of signals", || {
        let status = fs::read_to_string(&path).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0");
        u64::from_str_radix(caught.trim(), 16).unwrap() & 1 << (libc::SIGHUP - 1) != 0
    });
}

/// Pushes the file `big` in the world's folder.
fn push_big(world: &World) -> Child {
    world.sh("exec thread push --batch <big").spawn()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn assert_nothing_stored(world: &World, output: &Output, code: i32) {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    assert_eq!((text(&output.stdout), text(&output.stderr)), (String::new(), NOTHING_STORED.to_owned()));
    assert_eq!(world.query("SELECT count(*) FROM events"), 0);
    let kept = ["_commit", "_jsonl"];
    assert!(
        names(&world.inbox().join("run")).iter().all(|name| kept.contains(&name.as_str())),
        "a leftover in run/"
    );
}

/// Fails unless the thread is intact and still works.
#[track_caller]
fn assert_unharmed(world: &World) {
    assert_eq!(world.thread(["doctor"]).quiet(), "healthy\n");
    world.push("afterwards");
    world.assert_log_is_exact();
    assert_eq!(world.query("SELECT count(*) FROM events"), 1);
}

#[test]
fn a_signal_while_a_slow_pipe_is_read_stores_nothing_and_says_so() {
    for (signal, code) in SIGNALS {
        let world = World::with_thread();
        let mut child = world.thread(["push", "--batch"]).spawn();
        child.stdin.as_mut().unwrap().write_all(LINE).unwrap();
        wait_until_it_listens(&child);
        send(&child, signal);
        assert_nothing_stored(&world, &child.wait_with_output().unwrap(), code);
        assert_unharmed(&world);
    }
}

#[test]
fn with_json_the_error_is_json() {
    let world = World::with_thread();
    let child = world.thread(["push", "--batch", "--json"]).spawn();
    wait_until_it_listens(&child);
    send(&child, Signal::INT);
    // Stdin is closed only now: earlier, the end of input would be an empty batch.
    let output = child.wait_with_output().unwrap();
    let said = r#"{"error":"interrupted, nothing was stored","suggestion":"push the whole batch again","code":"interrupted"}"#;
    assert_eq!(text(&output.stderr), format!("{said}\n"));
    assert_eq!(output.status.code(), Some(130));
}

#[test]
fn a_signal_while_a_large_batch_is_spooled_leaves_nothing_behind() {
    let world = World::with_thread();
    let mut child = world.thread(["push", "--batch"]).spawn();
    child.stdin.as_mut().unwrap().write_all(&LINE.repeat(150_000)).unwrap();
    let fds = format!("/proc/{}/fd", child.id());
    wait_until("the file that has no name", || {
        let links = fs::read_dir(&fds).into_iter().flatten().flatten();
        let links: Vec<_> = links.filter_map(|fd| fs::read_link(fd.path()).ok()).collect();
        links
            .iter()
            .any(|to| to.starts_with(world.inbox().join("run")) && to.to_string_lossy().contains("(deleted)"))
    });
    send(&child, Signal::INT);
    assert_nothing_stored(&world, &child.wait_with_output().unwrap(), 130);
    assert_unharmed(&world);
}

#[test]
fn a_signal_during_the_transaction_stores_nothing_and_the_wal_it_leaves_does_no_harm() {
    let world = World::with_thread();
    world.write("big", LINE.repeat(500_000));
    let wal = world.inbox().join("events.db-wal");
    let length = || fs::metadata(&wal).map_or(0, |wal| wal.len());
    // A connection that stays open must not see the events either.
    let reader = world.db();
    let count = || reader.query_row("SELECT count(*) FROM events", [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(count(), 0);
    for (signal, code) in SIGNALS {
        let before = length();
        let child = push_big(&world);
        wait_until("a growing WAL", || length() > before.max(1024 * 1024) || !is_running(child.id()));
        send(&child, signal);
        assert_nothing_stored(&world, &child.wait_with_output().unwrap(), code);
        assert_eq!(count(), 0);
        // The next command finds a WAL that is empty or begins with frames that were rolled back.
        if signal == Signal::TERM {
            assert_eq!(world.thread(["doctor"]).quiet(), "healthy\n");
        }
        world.thread(["info"]).quiet();
    }
    drop(reader);
    assert_unharmed(&world);
    wait_until("a short WAL", || length() < 512 * 1024);
}

#[test]
fn a_signal_while_the_batch_waits_for_another_writer_stores_nothing() {
    let world = World::with_thread();
    let writer = world.db();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut child = world.thread(["push", "--batch"]).spawn();
    child.stdin.take().unwrap().write_all(LINE).unwrap();
    wait_until_it_listens(&child);
    send(&child, Signal::INT);
    let output = child.wait_with_output().unwrap();
    writer.execute_batch("ROLLBACK").unwrap();
    assert_nothing_stored(&world, &output, 130);
    assert_unharmed(&world);
}

#[test]
fn after_the_commit_a_signal_changes_nothing() {
    for (signal, _) in SIGNALS {
        let world = World::with_thread();
        world.push("first");
        world.subscribe("bot", "touch woken", &["--from", "new"]);
        // Holding this lock keeps the push from writing the JSONL log.
        let writer = File::options().read(true).write(true).open(world.inbox().join("run/_jsonl")).unwrap();
        writer.lock().unwrap();
        let mut child = world.thread(["push", "--batch"]).spawn();
        child.stdin.take().unwrap().write_all(&LINE.repeat(100)).unwrap();
        wait_until("the commit", || world.query("SELECT count(*) FROM events") == 101);
        send(&child, signal);
        send(&child, signal);
        assert!(child.try_wait().unwrap().is_none());
        writer.unlock().unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!((text(&output.stdout), text(&output.stderr)), ("100\n".to_owned(), String::new()));
        assert_eq!(output.status.code(), Some(0));
        world.wait_for_file("woken");
        world.assert_log_is_exact();
    }
}

#[test]
fn a_signal_that_was_ignored_stays_ignored() {
    let world = World::with_thread();
    let mut child = world.sh("trap '' INT; exec thread push --batch").spawn();
    wait_until_it_listens(&child);
    send(&child, Signal::INT);
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(LINE).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert_eq!((text(&output.stdout), output.status.code()), ("1\n".to_owned(), Some(0)));
}

#[test]
fn at_any_moment_a_signal_stores_all_of_a_batch_or_nothing() {
    const LINES: i64 = 4_000;
    let world = World::with_thread();
    world.write("big", LINE.repeat(LINES as usize));
    let began = Instant::now();
    world.sh("thread push --batch <big").quiet();
    let time = began.elapsed().as_micros() as u64;
    let mut dice = Dice::new();
    let (mut stored, mut dropped) = (LINES, 0);
    for round in 0..18 {
        let child = push_big(&world);
        wait_until_it_listens(&child);
        let moment = Duration::from_micros(dice.up_to(time));
        std::thread::sleep(moment);
        // The child may have exited already; it is not reaped before this.
        send(&child, SIGNALS[round % 3].0);
        let output = child.wait_with_output().unwrap();
        match output.status.code() {
            Some(0) => {
                assert_eq!(text(&output.stdout), format!("{LINES}\n"));
                stored += LINES;
            }
            code => {
                assert_eq!(code, Some(SIGNALS[round % 3].1), "{moment:?}: {output:?}");
                assert_eq!(
                    (text(&output.stdout), text(&output.stderr)),
                    (String::new(), NOTHING_STORED.into())
                );
                dropped += 1;
            }
        }
        assert_eq!(world.query("SELECT count(*) FROM events"), stored, "{moment:?}: {output:?}");
    }
    assert!(dropped > 0, "no signal came before the commit");
    assert_eq!(world.thread(["doctor"]).quiet(), "healthy\n");
    world.push("afterwards");
    world.assert_log_is_exact();
}
