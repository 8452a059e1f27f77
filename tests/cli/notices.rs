//! How waiting processes learn of a commit: within milliseconds after a push, within about a second
//! after another program's write, and at no cost while idle.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use thread_testkit::{PATIENCE, World, ids, skipped, wait_until};

use crate::live::{INSERT, Live, followed_peek, waits};

fn median_and_worst(mut times: Vec<Duration>) -> String {
    times.sort();
    let at = |part: usize| times[(times.len() * part / 100).min(times.len() - 1)];
    format!("median {:?}, p99 {:?}, worst {:?}", at(50), at(99), at(100))
}

/// Runs `insert` `rounds` times and measures how long each event takes to arrive.
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
fn a_push_is_noticed_at_once() {
    let (world, live) = followed_peek();
    let mut times = latencies(&live, 2, 40, || {
        world.push("x");
    });
    eprintln!("thread push: {}", median_and_worst(times.clone()));
    times.sort();
    // Without notices it would take about a second.
    assert!(times[times.len() / 2] < Duration::from_millis(700), "{times:?}");
}

#[test]
fn a_commit_of_another_program_is_noticed_without_a_push() {
    let (world, live) = followed_peek();
    let mut next = 2;
    let mut check = |name: &str, rounds: i64, insert: &mut dyn FnMut()| {
        eprintln!("{name}: {}", median_and_worst(latencies(&live, next, rounds, insert)));
        next += rounds;
    };
    let long_lived = world.db();
    check("a connection that stays open", 5, &mut || {
        long_lived.execute(INSERT, []).unwrap();
    });
    check("one that checkpoints", 3, &mut || {
        long_lived.execute(INSERT, []).unwrap();
        long_lived.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    });
    drop(long_lived);
    check("a connection for each", 3, &mut || {
        world.db().execute(INSERT, []).unwrap();
    });
    let sqlite3 = Path::new("/usr/bin/sqlite3");
    if sqlite3.exists() {
        let db = world.inbox().join("events.db");
        check("the sqlite3 program", 3, &mut || {
            let mut run = std::process::Command::new(sqlite3);
            assert!(run.arg(&db).arg(INSERT).status().unwrap().success());
        });
    } else {
        skipped("sqlite3");
    }
}

#[test]
fn a_hundred_followers_miss_nothing() {
    let world = World::with_thread();
    world.push("first");
    let all: Vec<Live> =
        (0..100).map(|_| Live::start(world.thread(["peek", "--tail", "1", "--follow"]))).collect();
    for live in &all {
        assert_eq!(live.next().0, 1);
    }
    let conn = world.db();
    for _ in 0..10 {
        conn.execute(INSERT, []).unwrap();
        world.push("x");
    }
    for live in &all {
        assert!(live.take(20).into_iter().eq(2..=21));
    }
}

#[test]
fn waiters_are_notified_when_the_jsonl_log_is_up_to_date_and_before_the_notifier_is_called() {
    let world = World::with_thread();
    world.script("bin/notifier", "[ -e inbox/run/_commit ] && cp inbox/events.jsonl told; exit 0");
    // The file is created again when it is touched, so its existence shows that notice was given.
    let told = world.inbox().join("run/_commit");
    fs::remove_file(&told).ok();
    let writer = world.inbox().join("run/_jsonl");
    let writer = File::options().read(true).write(true).create(true).truncate(false).open(writer).unwrap();
    writer.lock().unwrap();
    let push = world.thread(["push", "--source", "self", "--type", "record", "--content", "x"]).spawn();
    wait_until("the commit", || world.query("SELECT count(*) FROM events") == 1);
    assert!(!told.exists() && !world.path("told").exists(), "the JSONL log is not written yet");
    writer.unlock().unwrap();
    assert!(push.wait_with_output().unwrap().status.success());
    assert_eq!(ids(&world.read("told")), [1]);
}

#[test]
fn notices_without_events_print_nothing_and_delay_no_event() {
    let (world, live) = followed_peek();
    let touched = File::options().write(true).open(world.inbox().join("run/_commit")).unwrap();
    for id in 2..5 {
        for _ in 0..20_000 {
            touched.set_modified(std::time::SystemTime::now()).unwrap();
        }
        world.push("x");
        assert_eq!(live.next().0, id);
    }
    live.signal(Signal::TERM);
    assert_eq!(live.end().2, "");
}

/// Processor time in nanoseconds.
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

/// How often it slept until now.
fn sleeps(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.unwrap().trim().parse().unwrap()
}

#[test]
fn waiting_takes_no_processor_time() {
    let (world, live) = followed_peek();
    world.idle_consumer("bot", "content = 'never'");
    let waiter = Live::start(world.thread(["pop", "--consumer", "bot", "--resume", "--wait", "1h"]));
    wait_until("the second to wait", || waits(waiter.child.id()));
    for live in [&live, &waiter] {
        let pid = live.child.id();
        let mut spent = Vec::new();
        // The first interval may include the rest of the start-up.
        let low = (0..4).any(|_| {
            let (before, slept, began) = (cpu(pid), sleeps(pid), Instant::now());
            std::thread::sleep(Duration::from_secs(4));
            let (cpu, slept, seconds) =
                (cpu(pid) - before, sleeps(pid) - slept, began.elapsed().as_secs_f64());
            let (in_a_minute, a_second) = (cpu as f64 / 1e6 * 60.0 / seconds, slept as f64 / seconds);
            spent.push((in_a_minute, a_second));
            // One query a second takes 20 ms in a minute, and more when other processes evict the caches.
            in_a_minute <= 200.0 && a_second <= 3.0
        });
        eprintln!("an idle waiter, ms in a minute and sleeps in a second: {spent:?}");
        assert!(low, "{spent:?}");
    }
}

#[test]
fn without_notices_a_follower_polls() {
    for limit in ["max_inotify_instances", "max_inotify_watches"] {
        let world = World::with_thread();
        world.push("first");
        let script = format!("echo 0 >/proc/sys/user/{limit} || exit 77; exec thread peek --tail 1 --follow");
        let mut run = world.sh("exec /usr/bin/unshare -Ur /bin/sh -c \"$0\"").arg(script);
        run.command().env("THREAD_DIR", world.inbox());
        let live = Live::start(run);
        let Ok((_, line)) = live.lines.recv_timeout(PATIENCE) else {
            skipped(format_args!("the right to lower {limit}: {}", live.end().2));
            continue;
        };
        assert_eq!(ids(&line), [1]);
        // After one part of the setup is refused, the process also gives up the parts that succeeded.
        wait_until("it to be without notices", || {
            let fds = fs::read_dir(format!("/proc/{}/fd", live.child.id())).unwrap().flatten();
            let to = |fd: fs::DirEntry| fs::read_link(fd.path()).unwrap_or_default();
            !fds.map(to).any(|to| to.to_string_lossy().contains("inotify"))
        });
        let conn = world.db();
        let times = latencies(&live, 2, 20, || {
            conn.execute(INSERT, []).unwrap();
        });
        eprintln!("without notices: {}", median_and_worst(times));
    }
}
