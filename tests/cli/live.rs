//! Waiting, following, and long-lived agents on a thread.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, ExitStatus};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use thread_testkit::{PATIENCE, Run, World, ids, wait_until};

pub const INSERT: &str = "INSERT INTO events (source, type, content) VALUES ('self', 'message', 'x')";

/// A running process whose output lines are received one by one.
pub struct Live {
    pub child: Child,
    pub lines: Receiver<(Instant, String)>,
}

impl Live {
    pub fn start(run: Run) -> Live {
        let mut child = run.spawn();
        drop(child.stdin.take());
        let (send, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if send.send((Instant::now(), line)).is_err() {
                    return;
                }
            }
        });
        Live { child, lines }
    }

    /// The id of the next event, and when it arrived.
    #[track_caller]
    pub fn next(&self) -> (i64, Instant) {
        let (at, line) = self.lines.recv_timeout(PATIENCE).expect("an event");
        (ids(&line)[0], at)
    }

    /// The ids of the next events.
    #[track_caller]
    pub fn take(&self, count: usize) -> Vec<i64> {
        (0..count).map(|_| self.next().0).collect()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the process to end. Returns its status, the remaining lines, and stderr.
    pub fn end(mut self) -> (ExitStatus, Vec<String>, String) {
        let mut stderr = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let status = self.child.wait().unwrap();
        (status, self.lines.iter().map(|(_, line)| line).collect(), stderr)
    }

    /// Waits for the process to end with exit 0, no further lines and nothing on stderr.
    #[track_caller]
    pub fn ends_quietly(self) {
        let (status, lines, stderr) = self.end();
        assert_eq!((status.code(), lines, stderr.as_str()), (Some(0), Vec::new(), ""));
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A world with one event, and a follower that has printed it and so is about to wait.
fn followed(args: &[&str]) -> (World, Live) {
    let world = World::with_thread();
    world.push("first");
    let live = Live::start(world.thread(args));
    assert_eq!(live.next().0, 1);
    (world, live)
}

pub fn followed_peek() -> (World, Live) {
    followed(&["peek", "--tail", "1", "--follow"])
}

/// Whether a process has begun to wait.
pub fn waits(pid: u32) -> bool {
    let holds_notices = fs::read_dir(format!("/proc/{pid}/fd")).is_ok_and(|fds| {
        fds.flatten()
            .any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.to_string_lossy().contains("inotify")))
    });
    holds_notices || fs::read_to_string(format!("/proc/{pid}/wchan")).is_ok_and(|at| at.contains("poll"))
}

#[test]
fn wait_ends_at_the_first_event_that_matches() {
    let world = World::with_thread();
    world.idle_consumer("bot", "content LIKE 'b%'");
    let peek = Live::start(world.thread([
        "peek",
        "--last-event-id",
        "0",
        "--wait",
        "1h",
        "--filter",
        "content LIKE 'b%'",
    ]));
    let pop = Live::start(world.thread(["pop", "--consumer", "bot", "--resume", "--wait", "1h"]));
    wait_until("both to wait", || waits(peek.child.id()) && waits(pop.child.id()));
    for content in ["a", "b"] {
        world.off(["push", "--source", "self", "--type", "record", "--content", content]).quiet();
    }
    for live in [peek, pop] {
        assert_eq!(live.next().0, 2);
        live.ends_quietly();
    }
    assert_eq!(world.query("SELECT count(*) FROM consumer_progress"), 0);
}

#[test]
fn wait_does_not_wait_when_there_is_something() {
    let world = World::with_thread();
    world.push("x");
    world.idle_consumer("bot", "");
    for args in [
        &["peek", "--last-event-id", "0", "--wait", "1h"][..],
        &["peek", "--tail", "5", "--wait", "1h"],
        &["pop", "--consumer", "bot", "--last-event-id", "0", "--wait", "1h"],
    ] {
        assert_eq!(ids(&world.thread(args).quiet()), [1]);
    }
}

#[test]
fn wait_prints_nothing_when_its_time_is_up() {
    let world = World::with_thread();
    world.push("x");
    world.idle_consumer("bot", "");
    for args in [
        &["peek", "--last-event-id", "1", "--wait", "300ms"][..],
        &["peek", "--last-event-id", "0", "--filter", "content = 'y'", "--wait", "300ms"],
        &["pop", "--consumer", "bot", "--last-event-id", "1", "--wait", "300ms"],
        &["peek", "--follow", "--wait", "300ms"],
    ] {
        let began = Instant::now();
        assert_eq!(world.thread(args).quiet(), "");
        assert!(began.elapsed() >= Duration::from_millis(300), "{args:?}");
    }
    assert_eq!(world.consumer("bot")["last_acked_id"], 1);
}

#[test]
fn a_wait_needs_a_duration_and_a_starting_point() {
    let world = World::with_thread();
    for args in [
        &["peek", "--last-event-id", "0", "--wait", "soon"][..],
        &["peek", "--last-event-id", "0", "--wait", ""],
        &["peek", "--tail", "0"],
    ] {
        world.thread(args).fails(2);
    }
}

#[test]
fn peek_follow_alone_begins_at_the_end() {
    let world = World::with_thread();
    world.push("old");
    let live = Live::start(world.thread(["peek", "-f"]));
    wait_until("the follower to wait", || waits(live.child.id()));
    world.push("new");
    assert_eq!(live.next().0, 2);
    world.push("newer");
    assert_eq!(live.next().0, 3);
}

#[test]
fn follow_continues_after_the_existing_events() {
    let world = World::with_thread();
    let line = "{\"source\":\"self\",\"type\":\"record\",\"content\":\"x\"}\n";
    world.thread(["push", "--batch"]).stdin(line.repeat(250)).quiet();
    let live = Live::start(world.thread(["peek", "--last-event-id", "100", "--follow"]));
    assert!(live.take(150).into_iter().eq(101..=250), "no limit is set by following");
    world.push("x");
    assert_eq!(live.next().0, 251);
}

#[test]
fn pop_follow_leaves_the_cursor_to_ack() {
    let world = World::with_thread();
    world.idle_consumer("bot", "");
    let live = Live::start(world.thread(["pop", "--consumer", "bot", "--resume", "--follow"]));
    let push = || world.off(["push", "--source", "self", "--type", "record", "--content", "x"]).quiet();
    for id in 1..=3 {
        push();
        assert_eq!(live.next().0, id);
    }
    assert_eq!(world.consumer("bot")["last_acked_id"], 0);
    world.thread(["ack", "--consumer", "bot", "--event-id", "2"]).quiet();
    push();
    assert_eq!(live.next().0, 4, "an acknowledgement prints nothing again");
    assert_eq!(world.consumer("bot")["last_acked_id"], 2);
    drop(live);
    assert_eq!(ids(&world.thread(["pop", "--consumer", "bot", "--resume"]).quiet()), [3, 4]);
}

#[test]
fn a_limit_ends_a_follower() {
    let (world, live) = followed(&["peek", "--last-event-id", "0", "--follow", "--limit", "3"]);
    for _ in 0..4 {
        world.push("x");
    }
    assert_eq!(live.take(2), [2, 3]);
    live.ends_quietly();
}

#[test]
fn wait_with_follow_ends_after_idle_time_and_not_before() {
    let idle = Duration::from_millis(1500);
    // It prints an event at some time after the push began.
    let mut last = Instant::now();
    let (world, live) = followed(&["peek", "--tail", "1", "--follow", "--wait", "1500ms"]);
    // Each event arrives before the idle time is over; all of them together take longer than it.
    let began = Instant::now();
    let mut next = 2;
    while began.elapsed() < idle * 2 {
        let pushed = Instant::now();
        world.push("x");
        match live.lines.recv_timeout(PATIENCE) {
            Ok((_, line)) => {
                assert_eq!(ids(&line), [next]);
                (last, next) = (pushed, next + 1);
            }
            // On a very slow machine, the idle time may pass between two pushes.
            Err(_) => break,
        }
        assert!(next < 10_000);
        std::thread::sleep(Duration::from_millis(100));
    }
    live.ends_quietly();
    assert!(last.elapsed() >= idle, "it ended after {:?}", last.elapsed());
}

#[test]
fn tail_is_the_last_that_match() {
    let world = World::with_thread();
    let batch: String = (1..=3000)
        .map(|n| format!("{{\"source\":\"s{}\",\"type\":\"record\",\"content\":\"x\"}}\n", n % 3))
        .collect();
    world.thread(["push", "--batch"]).stdin(batch).quiet();
    let peek = |args: &[&str]| ids(&world.thread(["peek"].iter().chain(args)).quiet());
    assert_eq!(peek(&["--tail", "2"]), [2999, 3000]);
    assert!(peek(&["--tail", "150"]).into_iter().eq(2851..=3000), "what was asked for is not cut to 100");
    assert_eq!(peek(&["--tail", "3", "--limit", "2"]), [2998, 2999]);
    assert_eq!(peek(&["--tail", "5", "--last-event-id", "2998"]), [2999, 3000]);
    assert_eq!(peek(&["--tail", "2", "--filter", "source = 's1'"]), [2995, 2998]);
    assert_eq!(peek(&["--tail", "9", "--filter", "id IN (1, 7, 2900)"]), [1, 7, 2900]);
    assert_eq!(peek(&["--tail", "9", "--filter", "id IN (1, 7, 2900)", "--last-event-id", "1"]), [7, 2900]);
    assert_eq!(peek(&["--tail", "9", "--filter", "source = 'none'"]), [0; 0]);
    assert_eq!(peek(&["--tail", "9223372036854775807"]).len(), 3000);
    let empty = World::with_thread();
    assert_eq!(empty.thread(["peek", "--tail", "5"]).quiet(), "");
}

#[test]
fn thousands_of_events_between_two_looks_come_once_and_in_order() {
    let (world, live) = followed_peek();
    let line = "{\"source\":\"self\",\"type\":\"record\",\"content\":\"x\"}\n";
    for _ in 0..4 {
        world.thread(["push", "--batch"]).stdin(line.repeat(3000)).quiet();
        world.push("x");
    }
    assert!(live.take(12_004).into_iter().eq(2..=12_005), "through a rotation of the JSONL log, too");
    assert!(fs::read_dir(world.inbox()).unwrap().count() > 5, "the JSONL log was rotated");
}

#[test]
fn a_follower_ends_with_its_reader_even_if_no_event_comes() {
    let world = World::with_thread();
    world.push("x");
    world.idle_consumer("bot", "");
    for args in [
        &["peek", "--follow"][..],
        &["peek", "--last-event-id", "1", "--wait", "1h"],
        &["pop", "--consumer", "bot", "--last-event-id", "1", "--follow"],
        &["pop", "--consumer", "bot", "--resume", "--wait", "1h"],
    ] {
        let mut child = world.thread(args).spawn();
        wait_until("it to wait", || waits(child.id()));
        let gone = Instant::now();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{args:?}");
        eprintln!("ended {:?} after its reader", gone.elapsed());
    }
    // The follower also ends if its reader is gone when the next event arrives.
    let (world, mut live) = followed(&["peek", "--tail", "1", "--follow"]);
    live.lines = channel().1;
    world.push("x");
    world.push("x");
    live.ends_quietly();
}

#[test]
fn an_interrupt_ends_a_follower_at_once_and_quietly() {
    let (_world, live) = followed_peek();
    live.signal(Signal::INT);
    let (status, lines, stderr) = live.end();
    assert_eq!((status.signal(), lines.len(), stderr.as_str()), (Some(2), 0, ""));
}

#[test]
fn a_slow_reader_holds_no_read_transaction() {
    let world = World::with_thread();
    let line =
        format!("{{\"source\":\"self\",\"type\":\"record\",\"content\":\"{}\"}}\n", "x".repeat(10_000));
    world.thread(["push", "--batch"]).stdin(line.repeat(500)).quiet();
    for args in [
        &["peek", "--last-event-id", "0", "--follow"][..],
        &["peek", "--last-event-id", "0", "--follow", "--filter", "type = 'record'"],
    ] {
        let mut child = world.thread(args).spawn();
        let mut stdout: BufReader<ChildStdout> = BufReader::new(child.stdout.take().unwrap());
        let mut first = String::new();
        stdout.read_line(&mut first).unwrap();
        assert_eq!(ids(&first), [1]);
        // Most of the output is still to be printed, and nobody reads it.
        let conn = world.db();
        conn.busy_timeout(Duration::ZERO).unwrap();
        conn.execute(INSERT, []).unwrap();
        wait_until("a truncating checkpoint to succeed", || {
            let row = conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))
            });
            row.unwrap() == (0, 0)
        });
        let last = if args.contains(&"--filter") { 500 } else { world.query("SELECT max(id) FROM events") };
        let rest: Vec<i64> =
            stdout.lines().take(last as usize - 1).map(|line| ids(&line.unwrap())[0]).collect();
        assert!(rest.into_iter().eq(2..=last));
        child.kill().ok();
        child.wait().unwrap();
    }
}

#[test]
fn a_thread_that_is_moved_or_removed_ends_the_waiting() {
    for remove in [false, true] {
        let (world, live) = followed_peek();
        if remove {
            fs::remove_dir_all(world.inbox()).unwrap();
        } else {
            fs::rename(world.inbox(), world.path("elsewhere")).unwrap();
        }
        let (status, lines, stderr) = live.end();
        assert_eq!((status.code(), lines.len()), (Some(1), 0));
        assert_eq!(
            stderr,
            format!(
                "Error: {} was moved or removed - run the command again with its new path\n",
                world.inbox().display()
            )
        );
        assert!(!world.inbox().exists(), "nothing is made at the old place");
    }
}
