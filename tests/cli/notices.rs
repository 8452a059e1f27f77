//! How those who wait learn of a commit: any program's, soon, and at no cost while nothing happens.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{PATIENCE, World, ids, wait_until};
use crate::live::{INSERT, Live, followed_peek, waits};

fn median_and_worst(mut times: Vec<Duration>) -> String {
    times.sort();
    let at = |part: usize| times[(times.len() * part / 100).min(times.len() - 1)];
    format!("median {:?}, p99 {:?}, worst {:?}", at(50), at(99), at(100))
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

/// Followers of a thread with one event, which they have printed.
fn crowd(world: &World, count: usize) -> Vec<Live> {
    world.push("first");
    let all: Vec<Live> =
        (0..count).map(|_| Live::start(world.thread(["peek", "--tail", "1", "--follow"]))).collect();
    for live in &all {
        assert_eq!(live.next().0, 1);
    }
    all
}

/// Which of them leads, once one does: it has the file of the lock open for writing.
fn leader(all: &[Live]) -> usize {
    let leads = |live: &Live| {
        let of = |what: &str| format!("/proc/{}/{what}", live.child.id());
        fs::read_dir(of("fd")).unwrap().flatten().any(|fd| {
            let at = fs::read_link(fd.path()).unwrap_or_default();
            let name = fd.file_name();
            let about = fs::read_to_string(of("fdinfo") + "/" + &name.to_string_lossy()).unwrap_or_default();
            let flags = about.lines().find_map(|line| line.strip_prefix("flags:")).unwrap_or("0").trim();
            at.ends_with("run/_waiters.lock") && flags.ends_with('1')
        })
    };
    let mut found = None;
    wait_until("one to lead", || {
        found = all.iter().position(leads);
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn a_hundred_miss_nothing() {
    let world = World::with_thread();
    let all = crowd(&world, 100);
    let conn = world.db();
    for _ in 0..20 {
        conn.execute(INSERT, []).unwrap();
    }
    for live in &all {
        assert!(live.take(20).into_iter().eq(2..=21));
    }
}

#[test]
fn who_leads_may_be_killed() {
    let world = World::with_thread();
    let mut all = crowd(&world, 4);
    let conn = world.db();
    for id in 2..4 {
        let mut leader = all.remove(leader(&all));
        leader.child.kill().unwrap();
        leader.child.wait().unwrap();
        conn.execute(INSERT, []).unwrap();
        for live in &all {
            assert_eq!(live.next().0, id);
        }
    }
}

#[test]
fn who_leads_may_be_stopped() {
    let world = World::with_thread();
    let mut all = crowd(&world, 3);
    let stopped = all.remove(leader(&all));
    stopped.signal(Signal::STOP);
    let conn = world.db();
    let mut times = latencies(&all[0], 2, 20, || {
        conn.execute(INSERT, []).unwrap();
    });
    eprintln!("with a leader that is stopped: {}", median_and_worst(times.clone()));
    times.sort();
    // What nobody tells of takes up to a second.
    assert!(times[times.len() / 2] < Duration::from_millis(300), "{times:?}");
    assert!(all[1].take(20).into_iter().eq(2..22));
    stopped.signal(Signal::CONT);
    assert!(stopped.take(20).into_iter().eq(2..22));
}

#[test]
fn many_who_close_the_wal_tire_nobody() {
    let (world, live) = followed_peek();
    for id in 2..5 {
        world.db().execute(INSERT, []).unwrap();
        for _ in 0..3000 {
            drop(OpenOptions::new().write(true).open(world.inbox().join("events.db-wal")));
        }
        assert_eq!(live.next().0, id);
    }
    live.signal(Signal::TERM);
    assert_eq!(live.end().2, "");
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
        // What it could begin with it gives up when the rest is refused.
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
