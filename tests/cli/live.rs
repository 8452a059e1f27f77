//! Waiting, following, and agents that live on a thread.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdout, ExitStatus};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::{PATIENCE, Run, World, ids, wait_until};

const INSERT: &str = "INSERT INTO events (source, type, content) VALUES ('self', 'message', 'x')";

/// A process at work, whose lines come in one by one.
struct Live {
    child: Child,
    lines: Receiver<(Instant, String)>,
}

impl Live {
    fn start(run: Run) -> Live {
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

    /// The id of the next event, and when it came.
    #[track_caller]
    fn next(&self) -> (i64, Instant) {
        let (at, line) = self.lines.recv_timeout(PATIENCE).expect("an event");
        (ids(&line)[0], at)
    }

    /// The ids of the next events.
    #[track_caller]
    fn take(&self, count: usize) -> Vec<i64> {
        (0..count).map(|_| self.next().0).collect()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end; what it still printed, and stderr.
    fn end(mut self) -> (ExitStatus, Vec<String>, String) {
        let mut stderr = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let status = self.child.wait().unwrap();
        (status, self.lines.iter().map(|(_, line)| line).collect(), stderr)
    }

    /// Waits for its end, which is exit 0 and quiet, with no further line.
    #[track_caller]
    fn ends_quietly(self) {
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

/// A world with one event, and a follower that has printed it: so it waits by now.
fn followed(args: &[&str]) -> (World, Live) {
    let world = World::with_thread();
    world.push("first");
    let live = Live::start(world.thread(args));
    assert_eq!(live.next().0, 1);
    (world, live)
}

fn followed_peek() -> (World, Live) {
    followed(&["peek", "--tail", "1", "--follow"])
}

/// Whether a process has begun to wait.
fn waits(pid: u32) -> bool {
    let holds_notices = fs::read_dir(format!("/proc/{pid}/fd")).is_ok_and(|fds| {
        fds.flatten()
            .any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.to_string_lossy().contains("inotify")))
    });
    holds_notices || fs::read_to_string(format!("/proc/{pid}/wchan")).is_ok_and(|at| at.contains("poll"))
}

fn median_and_worst(mut times: Vec<Duration>) -> String {
    times.sort();
    let at = |part: usize| times[(times.len() * part / 100).min(times.len() - 1)];
    format!("median {:?}, p99 {:?}, worst {:?}", at(50), at(99), at(100))
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
fn a_wait_needs_a_unit_and_a_place() {
    let world = World::with_thread();
    for args in [
        &["peek", "--last-event-id", "0", "--wait", "5"][..],
        &["peek", "--last-event-id", "0", "--wait", ""],
        &["peek", "--wait", "5s"],
        &["pop", "--consumer", "bot", "--follow"],
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
fn follow_goes_on_after_what_is_there() {
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
fn a_limit_ends_a_following() {
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
    let (world, live) = followed(&["peek", "--tail", "1", "--follow", "--wait", "1500ms"]);
    let mut last = Instant::now();
    // Each event comes in time, together they take longer than the idle time.
    let began = Instant::now();
    let mut next = 2;
    while began.elapsed() < idle * 2 {
        world.push("x");
        match live.lines.recv_timeout(PATIENCE) {
            Ok((at, line)) => {
                assert_eq!(ids(&line), [next]);
                (last, next) = (at, next + 1);
            }
            // So slow a machine that the time between two pushes was idle time.
            Err(_) => break,
        }
        assert!(next < 10_000);
        std::thread::sleep(Duration::from_millis(100));
    }
    live.ends_quietly();
    assert!(last.elapsed() + Duration::from_millis(50) >= idle, "it ended after {:?}", last.elapsed());
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
    assert!(live.take(12_004).into_iter().eq(2..=12_005), "through a rotation of the copy, too");
    assert!(fs::read_dir(world.inbox()).unwrap().count() > 5, "the copy was rotated");
}

#[test]
fn a_hundred_waiters_miss_nothing() {
    let world = World::with_thread();
    world.push("first");
    let all: Vec<Live> =
        (0..100).map(|_| Live::start(world.thread(["peek", "--tail", "1", "--follow"]))).collect();
    for live in &all {
        assert_eq!(live.next().0, 1);
    }
    let conn = world.db();
    for _ in 0..20 {
        conn.execute(INSERT, []).unwrap();
    }
    for live in &all {
        assert!(live.take(20).into_iter().eq(2..=21));
    }
}

/// Inserts by `insert`, `rounds` times; how long each took to come through.
fn latencies(live: &Live, from: i64, rounds: i64, mut insert: impl FnMut()) -> Vec<Duration> {
    (0..rounds)
        .map(|round| {
            insert();
            let committed = Instant::now();
            let (id, at) = live.next();
            assert_eq!(id, from + round);
            at.saturating_duration_since(committed)
        })
        .collect()
}

#[test]
fn a_commit_of_any_program_is_noticed_soon() {
    let (world, live) = followed_peek();
    let mut next = 2;
    let mut check = |name: &str, rounds: i64, insert: &mut dyn FnMut()| {
        let mut times = latencies(&live, next, rounds, insert);
        next += rounds;
        eprintln!("{name}: {}", median_and_worst(times.clone()));
        times.sort();
        // Without notices it would be a second.
        assert!(times[times.len() / 2] < Duration::from_millis(700), "{name}: {times:?}");
    };
    let long_lived = world.db();
    check("a connection that stays open", 200, &mut || {
        long_lived.execute(INSERT, []).unwrap();
    });
    check("one that checkpoints", 20, &mut || {
        long_lived.execute(INSERT, []).unwrap();
        long_lived.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    });
    check("one without syncs", 20, &mut || {
        long_lived.execute_batch(&format!("PRAGMA synchronous = OFF; {INSERT}")).unwrap();
    });
    check("a slow transaction", 3, &mut || {
        let written = format!("PRAGMA cache_size = 10; BEGIN IMMEDIATE; {INSERT}; CREATE TABLE t (x)");
        long_lived.execute_batch(&written).unwrap();
        long_lived.execute("INSERT INTO t VALUES (zeroblob(1000000))", []).unwrap();
        std::thread::sleep(Duration::from_millis(400));
        long_lived.execute_batch("DROP TABLE t; COMMIT").unwrap();
    });
    drop(long_lived);
    check("a connection for each", 20, &mut || {
        world.db().execute(INSERT, []).unwrap();
    });
    check("thread push", 20, &mut || {
        world.push("x");
    });
    let sqlite3 = Path::new("/usr/bin/sqlite3");
    if sqlite3.exists() {
        let db = world.inbox().join("events.db");
        check("the sqlite3 program", 10, &mut || {
            let mut run = std::process::Command::new(sqlite3);
            assert!(run.arg(&db).arg(INSERT).status().unwrap().success());
        });
    } else {
        eprintln!("SKIPPED: there is no sqlite3 program");
    }
}

#[test]
fn a_wal_that_is_not_there_yet_is_noticed_when_it_comes() {
    let world = World::with_thread();
    let remove_wal = |world: &World| {
        // The last connection to close folds the WAL back and removes it.
        world.db().execute_batch("PRAGMA user_version").unwrap();
        drop(world.db());
        assert!(!world.inbox().join("events.db-wal").exists());
    };
    world.push("first");
    remove_wal(&world);
    let live = Live::start(world.thread(["peek", "--follow"]));
    wait_until("the follower to wait", || waits(live.child.id()));
    for id in 2..5 {
        world.db().execute(INSERT, []).unwrap();
        assert_eq!(live.next().0, id);
    }
    drop(live);
    remove_wal(&world);
    let live = Live::start(world.thread(["peek", "--last-event-id", "4", "--wait", "1h"]));
    world.db().execute(INSERT, []).unwrap();
    assert_eq!(live.next().0, 5);
    live.ends_quietly();
}

/// Nanoseconds of processor time.
fn cpu(pid: u32) -> u64 {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
    let exact = fs::read_to_string(format!("/proc/{pid}/schedstat")).ok();
    let exact = exact.and_then(|text| text.split(' ').next().and_then(|ns| ns.parse().ok()));
    exact.filter(|&ns| ns > 0).unwrap_or_else(|| {
        let stat = read("stat");
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        let ticks = |at: usize| fields[at].parse::<u64>().unwrap();
        (ticks(11) + ticks(12)) * 10_000_000
    })
}

#[test]
fn waiting_takes_no_processor_time() {
    let (world, live) = followed_peek();
    world.idle_consumer("bot", "content = 'never'");
    let waiter = Live::start(world.thread(["pop", "--consumer", "bot", "--resume", "--wait", "1h"]));
    wait_until("the second to wait", || waits(waiter.child.id()));
    for live in [&live, &waiter] {
        let mut spent = Vec::new();
        // The first seconds may hold the rest of its start; a machine may be odd for a moment.
        let low = (0..4).any(|_| {
            let (before, began) = (cpu(live.child.id()), Instant::now());
            std::thread::sleep(Duration::from_secs(4));
            let in_a_minute =
                (cpu(live.child.id()) - before) as f64 / 1e6 * 60.0 / began.elapsed().as_secs_f64();
            spent.push(in_a_minute);
            in_a_minute <= 20.0
        });
        eprintln!("processor time of an idle waiter, ms in a minute: {spent:?}");
        assert!(low, "{spent:?} ms in a minute");
    }
}

#[test]
fn a_reader_that_goes_ends_it_also_when_nothing_comes() {
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
    // And when something comes to nobody.
    let (world, mut live) = followed(&["peek", "--tail", "1", "--follow"]);
    live.lines = channel().1;
    world.push("x");
    world.push("x");
    live.ends_quietly();
}

#[test]
fn an_interrupt_ends_it_at_once_and_quietly() {
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
        // Most of it is still to be printed, and nobody reads.
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
                "Error: {} was moved or removed - start again at its new place\n",
                world.inbox().display()
            )
        );
        assert!(!world.inbox().exists(), "nothing is made at the old place");
    }
}

#[test]
fn without_notices_it_asks() {
    for limit in ["max_inotify_instances", "max_inotify_watches"] {
        let world = World::with_thread();
        world.push("first");
        let script = format!("echo 0 >/proc/sys/user/{limit} || exit 77; exec thread peek --tail 1 --follow");
        let mut run = world.sh("exec /usr/bin/unshare -Ur /bin/sh -c \"$0\"").arg(script);
        run.command().env("THREAD_DIR", world.inbox());
        let live = Live::start(run);
        let Ok((_, line)) = live.lines.recv_timeout(PATIENCE) else {
            eprintln!("SKIPPED: {limit} cannot be lowered here: {}", live.end().2);
            continue;
        };
        assert_eq!(ids(&line), [1]);
        let fds = fs::read_dir(format!("/proc/{}/fd", live.child.id())).unwrap().flatten();
        let notices = fds
            .filter(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.to_string_lossy().contains("inotify")));
        assert_eq!(notices.count(), 0, "the limit holds");
        let conn = world.db();
        let times = latencies(&live, 2, 20, || {
            conn.execute(INSERT, []).unwrap();
        });
        eprintln!("without notices: {}", median_and_worst(times));
    }
}

// Agents that live on.

/// An agent that notes its pid and each event's id, and acknowledges.
const AGENT: &str = "echo begin $$ >>agent.log
while IFS= read -r event; do
    id=${event#*:}
    id=${id%%,*}
    echo \"$id $$\" >>agent.log
    thread ack --event-id \"$id\" >/dev/null
done
echo end $$ >>agent.log";

fn agent(world: &World, script: &str, handler: &str, options: &[&str]) {
    world.script("agent.sh", script);
    world.thread(["subscribe", "--consumer", "bot", "--handler", handler].iter().chain(options)).quiet();
}

/// The notes of the agents, without the pids, and the pids of those that began.
fn notes(world: &World) -> (Vec<String>, Vec<String>) {
    let lines = world.lines("agent.log");
    let words = |line: &String| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let firsts = lines.iter().map(|line| words(line)[0].clone()).collect();
    let begun = lines.iter().filter(|line| line.starts_with("begin")).map(|line| words(line)[1].clone());
    (firsts, begun.collect())
}

fn wait_for_notes(world: &World, expected: &[&str]) {
    wait_until(&format!("the notes {expected:?}"), || notes(world).0.len() >= expected.len());
    assert_eq!(notes(world).0, expected);
}

#[test]
fn one_agent_lives_across_many_events_and_the_next_push_starts_another() {
    let world = World::with_thread();
    agent(&world, AGENT, "thread pop --resume --follow --wait 4s | ./agent.sh", &[]);
    let mut expected = vec!["begin".to_owned()];
    for id in 1..=5 {
        world.push("x");
        expected.push(id.to_string());
        wait_until("the event to be noted", || notes(&world).0.len() >= expected.len());
        assert_eq!(notes(&world).0, expected, "fed each as it comes");
        wait_until("the cursor to follow", || world.consumer("bot")["last_acked_id"] == id);
    }
    assert_eq!(world.consumer("bot")["state"], "running");
    assert_eq!(notes(&world).1.len(), 1);
    world.wait_until_quiet();
    assert_eq!(world.consumer("bot")["state"], "idle");
    world.push("x");
    expected.extend(["end", "begin", "6"].map(str::to_owned));
    wait_until("another agent", || notes(&world).0.len() >= expected.len());
    assert_eq!(notes(&world).0, expected);
    let pids = notes(&world).1;
    assert_ne!(pids[0], pids[1]);
    assert!(world.log().iter().any(|line| line.contains("ended exit=0") && line.contains("acked=5")));
}

#[test]
fn what_a_living_agent_did_not_acknowledge_is_given_again_in_order() {
    let world = World::with_thread();
    let line = "{\"source\":\"self\",\"type\":\"record\",\"content\":\"x\"}\n";
    world.thread(["push", "--batch"]).stdin(line.repeat(4)).quiet();
    let script = format!(
        "if [ ! -e second ]; then
    echo begin $$ >>agent.log
    touch second
    for n in 1 2 3; do IFS= read -r event; id=${{event#*:}}; echo \"${{id%%,*}} $$\" >>agent.log; done
    thread ack --event-id 1
    exit
fi
{AGENT}"
    );
    // The agent goes while its feeder would wait for an hour.
    agent(&world, &script, "thread pop --resume --follow --wait 1h | ./agent.sh", &[]);
    wait_for_notes(&world, &["begin", "1", "2", "3", "begin", "2", "3", "4"]);
    wait_until("all to be acknowledged", || world.consumer("bot")["last_acked_id"] == 4);
    world.thread(["stop", "--consumer", "bot"]).quiet();
}

#[test]
fn a_living_agent_that_is_stopped_is_gone_and_stays_away() {
    let world = World::with_thread();
    agent(&world, AGENT, "thread pop --resume --follow | ./agent.sh", &[]);
    world.push("x");
    wait_until("the cursor to follow", || world.consumer("bot")["last_acked_id"] == 1);
    world.thread(["stop", "--consumer", "bot"]).quiet();
    world.wait_until_quiet();
    // Nothing was pending when it was stopped; it is asked for again by the next event.
    world.push("x");
    wait_for_notes(&world, &["begin", "1", "begin", "2"]);
    world.thread(["pause", "--consumer", "bot"]).quiet();
    assert_eq!(world.consumer("bot")["state"], "running", "a pause lets a run go on");
    world.thread(["stop", "--consumer", "bot"]).quiet();
    world.wait_until_quiet();
    world.push("x");
    world.wait_until_quiet();
    wait_for_notes(&world, &["begin", "1", "begin", "2"]);
}

#[test]
fn a_living_agent_is_ended_by_the_time_limit() {
    let world = World::with_thread();
    agent(&world, AGENT, "thread pop --resume --follow | ./agent.sh", &["--timeout", "1s"]);
    world.push("x");
    wait_until("the time limit", || world.log().iter().any(|line| line.contains("timed out")));
    world.wait_until_quiet();
    assert_eq!(world.consumer("bot")["last_acked_id"], 1);
    assert_eq!(world.consumer("bot")["state"], "idle");
}

#[test]
fn a_living_agent_that_crashes_does_not_leave_its_feeder_behind() {
    let world = World::with_thread();
    let script = "echo begin $$ >>agent.log
IFS= read -r event
[ -e second ] || { touch second; kill -9 $$; }
id=${event#*:}
echo \"${id%%,*} $$\" >>agent.log
thread ack --event-id \"${id%%,*}\" >/dev/null";
    let handler = "thread pop --resume --follow --wait 1h | ./agent.sh";
    agent(&world, script, handler, &["--backoff", "50ms"]);
    world.push("x");
    wait_for_notes(&world, &["begin", "begin", "1"]);
    world.wait_until_quiet();
    assert_eq!(world.consumer("bot")["last_acked_id"], 1);
    assert!(world.log().iter().any(|line| line.contains("ended exit=137")));
}

/// Between a thread and a program that answers each line with a line.
const TALK: &str = "mkfifo questions.$$ answers.$$
$1 <questions.$$ >answers.$$ &
exec 3>questions.$$ 4<answers.$$
rm questions.$$ answers.$$
while IFS= read -r event; do
    id=${event#*:}
    id=${id%%,*}
    question=${event#*'\"content\":\"'}
    printf '%s\\n' \"${question%%\\\"*}\" >&3
    IFS= read -r answer <&4
    thread push --source self --type record --content \"$answer\" --meta reply_to=\"$id\" >/dev/null
    thread ack --event-id \"$id\" >/dev/null
done";

/// Asks, and waits for the answer.
fn ask(world: &World, question: &str) -> String {
    let id = world.push(question).to_string();
    let filter = format!("type = 'record' AND metadata ->> 'reply_to' = '{id}'");
    let run = world.thread(["peek", "--last-event-id", &id, "--wait", "2m", "--filter", &filter]);
    let answer: Value = serde_json::from_str(&run.quiet()).unwrap();
    assert_eq!(answer["metadata"]["reply_to"], id);
    answer["content"].as_str().unwrap().to_owned()
}

fn converse(program: &str, dialogue: &[(&str, &str)]) {
    let world = World::with_thread();
    world.script("talk.sh", TALK);
    let handler = format!("thread pop --resume --follow --wait 2m | ./talk.sh '{program}'");
    let filter = ["--filter", "type = 'message'"];
    world
        .thread(["subscribe", "--consumer", "bot", "--handler", &handler].iter().copied().chain(filter))
        .quiet();
    for (question, answer) in dialogue {
        assert_eq!(ask(&world, question), *answer, "{program}: {question}");
    }
    let spawned = world.log().iter().filter(|line| line.contains("spawned")).count();
    eprintln!("{program}: {} questions, {spawned} process", dialogue.len());
    assert_eq!(spawned, 1, "{program}: one process answers all");
    wait_until("all to be acknowledged", || world.consumer("bot")["pending"] == 0);
    world.thread(["stop", "--consumer", "bot"]).output();
}

#[test]
fn a_real_program_holds_a_conversation() {
    // Each remembers what was said before, so one process answers all.
    if Path::new("/usr/bin/bc").exists() {
        converse(
            "/usr/bin/bc -q",
            &[("(x = 6)", "6"), ("x * 7", "42"), ("(x = x + 1)", "7"), ("2 ^ 70", "1180591620717411303424")],
        );
    } else {
        eprintln!("SKIPPED: there is no bc");
    }
}

#[test]
fn a_shell_loop_holds_a_conversation() {
    let world = World::new();
    let counter =
        world.script("counter", "n=0\nwhile IFS= read -r line; do n=$((n + 1)); echo \"$n $line\"; done");
    let counter = counter.to_string_lossy().into_owned();
    converse(&counter, &[("hello", "1 hello"), ("again", "2 again"), ("and again", "3 and again")]);
}
