//! The benchmarks.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use thread_testkit::bench::{Pairs, Plan, figure, quantile, reap, run, run_shell, time};

use crate::peers::{Floor, Redis, Sqlite, is_there};
use crate::place::Place;

type Work = fn(&Plan, &Place);

pub const ALL: &[(&str, Work)] = &[
    ("start", start),
    ("push", push),
    ("floor", floor),
    ("batch", batch),
    ("read", read),
    ("consumers", consumers),
    ("growth", growth),
    ("wake", wake),
    ("runs", runs),
    ("kept", kept),
    ("watchdog", watchdog),
    ("crowd", crowd),
    ("followers", followers),
    ("backlog", backlog),
    ("claims", claims),
    ("time", due_on_time),
    ("retention", retention),
    ("redis", redis),
];

const MANY: u32 = 200_000;

fn start(plan: &Plan, place: &Place) {
    let work = "--version, sqlite3 --version";
    if is_there("sqlite3", work) {
        let theirs = || run(Command::new("sqlite3").arg("--version").stdout(Stdio::null())).wall;
        let ours = || run(&mut place.thread(["--version"])).wall;
        Pairs::measure(plan.pick(100, 400), ours, theirs).row(work, Some(0.65));
    }
    let size = fs::metadata(&plan.program).expect("the program is there").len();
    figure("size of the program", &megabytes(size), "", "<= 6 MB");
}

fn push(plan: &Plan, place: &Place) {
    let rounds = plan.pick(100, 400);
    let thread = place.new_thread(0);
    let mut push = place.push(&thread);
    let work = "push, sqlite3 INSERT";
    if is_there("sqlite3", work) {
        let mut insert = Sqlite::new(place).insert();
        Pairs::measure(rounds, || run(&mut push).wall, || run(&mut insert).wall).row(work, Some(0.75));
    }
    let busy = place.new_thread(0);
    run(&mut place.in_thread(
        &busy,
        ["subscribe", "--consumer", "busy", "--deliver", "wake", "--handler", "exec sleep 3600"],
    ));
    run(&mut place.push(&busy));
    let mut push_busy = place.push(&busy);
    let pairs = Pairs::measure(rounds, || run(&mut push_busy).wall, || run(&mut push).wall);
    run(&mut place.in_thread(&busy, ["stop", "--consumer", "busy"]));
    pairs.row("push while its consumer runs, push", Some(1.1));
}

/// A push against the least that it can cost: an empty process that overwrites as many bytes as a push writes, and syncs them.
fn floor(plan: &Plan, place: &Place) {
    let work = "push, an empty process that writes and syncs as much";
    if !is_there("cc", work) {
        return;
    }
    let thread = place.new_thread(0);
    let mut push = place.push(&thread);
    // The first ones make files.
    (0..5).for_each(|_| _ = run(&mut push));
    let before = written();
    run(&mut push);
    let bytes = written() - before;
    figure("bytes that a push writes", &bytes.to_string(), "", "");
    let floor = Floor::new(place, bytes);
    let ours = || run(&mut push).wall;
    Pairs::measure(plan.pick(100, 400), ours, || run(&mut floor.command()).wall).row(work, Some(2.2));
}

/// How many bytes this process and those that it has waited for have written.
fn written() -> u64 {
    let text = fs::read_to_string("/proc/self/io").expect("the kernel counts what is written");
    let line = text.lines().find_map(|line| line.strip_prefix("wchar: ")).expect("it says so");
    line.parse().expect("it is a number")
}

fn batch(plan: &Plan, place: &Place) {
    let input = place.events(MANY);
    let work = "push --batch of 200,000, sqlite3 .import";
    let mut peak = 0;
    let mut ours = || {
        let thread = place.new_thread(0);
        let run = run(&mut place.batch(&thread, &input));
        peak = run.peak;
        fs::remove_dir_all(thread).expect("the thread is removed");
        run.wall
    };
    if is_there("sqlite3", work) {
        let rows = place.rows(MANY);
        let theirs = || import(place, &rows);
        Pairs::measure(plan.pick(3, 9), &mut ours, theirs).row(work, Some(0.47));
    } else {
        ours();
    }
    figure("peak memory of that batch", &megabytes(peak), "", "<= 64 MB");
    let mut piped_peak = 0;
    let mut piped = || {
        let thread = place.new_thread(0);
        let lines = File::open(&input).expect("the input is there");
        let mut cat = Command::new("cat").stdin(lines).stdout(Stdio::piped()).spawn().expect("cat starts");
        let mut push = place.in_thread(&thread, ["push", "--batch"]);
        push.stdin(cat.stdout.take().expect("cat has a pipe"));
        let run = run(&mut push);
        cat.wait().expect("cat ends");
        piped_peak = run.peak;
        fs::remove_dir_all(thread).expect("the thread is removed");
        run.wall
    };
    if is_there("sqlite3", work) {
        let rows = place.rows(MANY);
        let theirs = || import(place, &rows);
        let pairs = Pairs::measure(plan.pick(3, 9), &mut piped, theirs);
        pairs.row("the same through a pipe, sqlite3 .import", Some(0.45));
    } else {
        piped();
    }
    figure("peak memory of the same through a pipe", &megabytes(piped_peak), "", "<= 64 MB");
    if plan.full {
        let work = "push --batch of 10,000,000, sqlite3 .import";
        let (thread, input) = (place.new_thread(0), place.events(10_000_000));
        let ours = run(&mut place.batch(&thread, &input));
        fs::remove_file(input).expect("the input is removed");
        fs::remove_dir_all(thread).expect("the thread is removed");
        figure("peak memory of a batch of 10,000,000", &megabytes(ours.peak), "", "<= 64 MB");
        if is_there("sqlite3", work) {
            let rows = place.rows(10_000_000);
            Pairs::of(vec![ours.wall], vec![import(place, &rows)]).row(work, Some(0.45));
        }
    }
}

/// Time that sqlite3 takes to import these rows into a database of the same schema.
fn import(place: &Place, rows: &Path) -> Duration {
    let sqlite = Sqlite::new(place);
    let run = run(&mut sqlite.import(rows));
    fs::remove_file(&sqlite.db).expect("the database is removed");
    run.wall
}

fn read(plan: &Plan, place: &Place) {
    let thread = place.new_thread(MANY);
    subscribe(place, &thread, "reader", "");
    let words = ["pop", "--consumer", "reader", "--last-event-id", "0", "--limit", "200000"];
    let work = "pop of 200,000, sqlite3 json_object";
    let mut peak = 0;
    let mut ours = || {
        let run = run(&mut place.in_thread(&thread, words));
        peak = run.peak;
        run.wall
    };
    if is_there("sqlite3", work) {
        let sqlite = Sqlite::new(place);
        run(&mut sqlite.import(&place.rows(MANY)));
        let theirs = || run(&mut sqlite.read()).wall;
        Pairs::measure(plan.pick(5, 15), &mut ours, theirs).row(work, Some(0.38));
    } else {
        ours();
    }
    figure("peak memory of that pop", &megabytes(peak), "", "<= 64 MB");
    let first_bytes: Vec<f64> = (0..plan.pick(15, 45))
        .map(|_| {
            let mut command = place.in_thread(&thread, words);
            let began = Instant::now();
            let mut child = command.stdout(Stdio::piped()).spawn().expect("pop starts");
            let mut pipe = child.stdout.take().expect("pop has a pipe");
            pipe.read_exact(&mut [0]).expect("pop prints something");
            let first = began.elapsed();
            drop(pipe);
            reap(child).expect("pop ends");
            first.as_secs_f64()
        })
        .collect();
    figure("first byte of that pop", &time(quantile(&first_bytes, 0.5)), "", "<= 10 ms");
}

fn consumers(plan: &Plan, place: &Place) {
    let thread_of = |events| {
        let thread = place.new_thread(events);
        for number in 0..100 {
            let filter = format!("type = 'message' AND content LIKE '%nobody says {number}%'");
            subscribe(place, &thread, &format!("c{number}"), &filter);
        }
        // Stores the scan watermarks, so that the measured commands need not scan the events. One look counts for a
        // second or so, which is not enough for all of them.
        loop {
            let output = place.in_thread(&thread, ["info", "--json"]).stdout(Stdio::piped()).output();
            if !String::from_utf8_lossy(&output.expect("info runs").stdout).contains("\"pending_at_least\"") {
                return thread;
            }
        }
    };
    let (large_size, large_name) = plan.pick((200_000, "200,000"), (1_000_000, "1,000,000"));
    let (small, large) = (thread_of(2_000), thread_of(large_size));
    let commands: [(&str, &[&str]); 3] = [
        ("dispatch", &["dispatch"]),
        ("pop", &["pop", "--consumer", "c7", "--last-event-id", "0"]),
        ("info", &["info", "--json"]),
    ];
    for (name, words) in commands {
        let once = |thread: &Path| run(&mut place.in_thread(thread, words.iter().copied())).wall;
        let pairs = Pairs::measure(plan.pick(10, 40), || once(&large), || once(&small));
        // `info` counts all events, so its time grows with their number.
        let goal = (name != "info").then_some(1.05);
        pairs.row(&format!("{name} with 100 idle filters, {large_name}, 2,000"), goal);
    }
}

fn growth(plan: &Plan, place: &Place) {
    let rounds = plan.pick(100, 400);
    let (size, name) = plan.pick((200_000, "200,000"), (5_000_000, "5,000,000"));
    let (large, small) = (place.new_thread(size), place.new_thread(0));
    let (mut push_large, mut push_small) = (place.push(&large), place.push(&small));
    // The first one seals the log.
    run(&mut push_large);
    let pairs = Pairs::measure(rounds, || run(&mut push_large).wall, || run(&mut push_small).wall);
    pairs.row(&format!("push into {name} events, into few"), Some(1.05));

    let mut times: [Vec<Duration>; 4] = Default::default();
    for _ in 0..plan.pick(10, 40) {
        let thread = place.new_thread(9_999);
        let mut push = place.push(&thread);
        // The first one after a batch begins a new WAL. The second makes the JSONL log one line too long.
        run(&mut push);
        for time in &mut times[..3] {
            time.push(run(&mut push).wall);
        }
        times[3].push(run(&mut push_small).wall);
        fs::remove_dir_all(thread).expect("the thread is removed");
    }
    let [before, at, after, plain] = times;
    for (name, times, goal) in
        [("just before", before, Some(1.15)), ("that rotates", at, None), ("just after", after, Some(1.15))]
    {
        let pairs = Pairs::of(times, plain.clone());
        pairs
            .row(&format!("push {name} a rotation, into few").replace("rotates a rotation", "rotates"), goal);
    }
}

fn wake(plan: &Plan, place: &Place) {
    let fifo = place.path("fifo");
    run(Command::new("mkfifo").arg(&fifo));
    // Opened for reading and writing, so that neither end blocks on open.
    let mut pipe = OpenOptions::new().read(true).write(true).open(&fifo).expect("the fifo opens");
    let handler = format!("echo >'{}'", fifo.display());
    let (woken, plain) = (place.new_thread(0), place.new_thread(0));
    let words = ["subscribe", "--consumer", "c", "--deliver", "stdin", "--handler", &handler];
    run(&mut place.in_thread(&woken, words));
    let mut wait_for_byte = |began: Instant| {
        pipe.read_exact(&mut [0]).expect("the fifo is read");
        began.elapsed()
    };
    let mut pairs = (Vec::new(), Vec::new());
    for _ in 0..plan.pick(50, 200) {
        let began = Instant::now();
        let child = place.push(&woken).spawn().expect("push starts");
        pairs.0.push(wait_for_byte(began));
        reap(child).expect("push ends");
        wait_until_idle(place, &woken);
        let began = Instant::now();
        run(&mut place.push(&plain));
        let sh = Command::new("sh").args(["-c", &handler]).spawn().expect("sh starts");
        pairs.1.push(wait_for_byte(began));
        reap(sh).expect("sh ends");
    }
    let pairs = Pairs::of(pairs.0, pairs.1);
    pairs.row("push to its handler's first act, push and sh -c", Some(1.3));
}

/// A backlog that is handled one event at a time, by a handler that does nothing, against as many shells, one after
/// another.
fn runs(plan: &Plan, place: &Place) {
    const EVENTS: u32 = 300;
    let words = ["subscribe", "--consumer", "c", "--deliver", "stdin", "--batch-size", "1", "--handler", ":"];
    let ours = || {
        let thread = place.new_thread(EVENTS);
        run(place.in_thread(&thread, words).env("THREAD_NOTIFIER", "off"));
        let began = Instant::now();
        run(&mut place.in_thread(&thread, ["dispatch"]));
        let last = format!("acked={EVENTS}\n");
        while !fs::read_to_string(thread.join("logs/thread.log")).is_ok_and(|log| log.ends_with(&last)) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let time = began.elapsed();
        // Its supervisor is about to end, and may have the folder open.
        wait_until_idle(place, &thread);
        fs::remove_dir_all(thread).ok();
        time
    };
    let output = File::create(place.path("output")).expect("a file for output");
    let theirs = || {
        let began = Instant::now();
        (0..EVENTS).for_each(|_| run_shell(c":", &output));
        began.elapsed()
    };
    let pairs = Pairs::measure(plan.pick(5, 15), ours, theirs);
    pairs.row("300 events one at a time, 300 times sh -c :", Some(2.0));
}

/// A backlog that is handled by one handler that is kept, against the same program that gets the same lines through a
/// pipe and answers to nobody.
fn kept(plan: &Plan, place: &Place) {
    let events = plan.pick(20_000, 100_000);
    const ANSWER: &str = r#"sed -u 's/^{"id":\([0-9]*\),.*/{"ack":\1}/'"#;
    let words = ["subscribe", "--consumer", "c", "--deliver", "ndjson", "--handler", ANSWER];
    let lines = place.path("lines");
    let mut rates = Vec::new();
    let ours = || {
        let thread = place.new_thread(events);
        run(place.in_thread(&thread, words).env("THREAD_NOTIFIER", "off"));
        let database = rusqlite::Connection::open(thread.join("events.db")).expect("the database opens");
        let cursor =
            || database.query_row("SELECT last_acked_id FROM consumer_progress", [], |row| row.get(0));
        let began = Instant::now();
        run(&mut place.in_thread(&thread, ["dispatch"]));
        while cursor() != Ok(events) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let time = began.elapsed();
        rates.push(f64::from(events) / time.as_secs_f64());
        let file = File::create(&lines).expect("a file for the events");
        run(place.in_thread(&thread, ["peek", "--last-event-id", "0", "--limit", "1000000"]).stdout(file));
        run(&mut place.in_thread(&thread, ["stop", "c"]));
        fs::remove_dir_all(thread).ok();
        time
    };
    let theirs = || {
        let command = format!("cat '{}' | {ANSWER} >'{}'", lines.display(), place.path("output").display());
        run(Command::new("sh").arg("-c").arg(command)).wall
    };
    let pairs = Pairs::measure(plan.pick(3, 9), ours, theirs);
    pairs.row(&format!("{events} events by a kept sed, and by sed at the end of a pipe"), None);
    rates.sort_by(f64::total_cmp);
    figure("events a second by a kept handler", &format!("{:.0}", rates[rates.len() / 2]), "", ">= 20,000");
}

/// What starting the watchdog of a notifier adds to a push: pushes through a notifier that exits 0, with no
/// watchdog running, against the same while one is running.
fn watchdog(plan: &Plan, place: &Place) {
    let notifier = place.path("yes-notifier");
    fs::write(&notifier, "#!/bin/sh\nexit 0\n").expect("the notifier is written");
    run(Command::new("chmod").arg("755").arg(&notifier));
    let (thread, busy) = (place.new_thread(0), place.new_thread(0));
    let through = |thread: &Path| {
        let mut push = place.push(thread);
        push.env("THREAD_NOTIFIER", &notifier);
        push
    };
    // A running watchdog holds this lock.
    let lock = OpenOptions::new().create(true).truncate(false).write(true).open(busy.join("run/_wake.lock"));
    let lock = lock.expect("the lock opens");
    lock.try_lock().expect("nobody holds it");
    let (mut first, mut next) = (through(&thread), through(&busy));
    // A round has two pauses, so that the previous watchdog, which runs for a second, has exited. Both sides
    // pause, because a process starts more slowly after one.
    let after_a_while = |push: &mut Command| {
        std::thread::sleep(Duration::from_millis(650));
        run(push).wall
    };
    let pairs = Pairs::measure(plan.pick(15, 60), || after_a_while(&mut first), || after_a_while(&mut next));
    let (with, without) = pairs.medians();
    figure("a push that starts the watchdog, longer by", &time((with - without).max(0.0)), "", "<= 1 ms");
}

fn wait_until_idle(place: &Place, thread: &Path) {
    loop {
        let mut info = place.in_thread(thread, ["info", "--json"]);
        let output = info.stdout(Stdio::piped()).output().expect("info runs");
        let text = String::from_utf8_lossy(&output.stdout);
        if text.contains("\"state\":\"idle\"") {
            return;
        }
    }
}

fn crowd(plan: &Plan, place: &Place) {
    for (count, each) in [(8, plan.pick(25, 100)), (64, plan.pick(4, 15))] {
        let thread = place.new_thread(0);
        let mut waits = Vec::new();
        let mut ours = || together(count, each, &mut waits, || place.push(&thread));
        let work = format!("{count} that push, {count} that INSERT with sqlite3");
        if is_there("sqlite3", &work) {
            let sqlite = Sqlite::new(place);
            let theirs = || together(count, each, &mut Vec::new(), || sqlite.insert_patiently());
            Pairs::measure(plan.pick(3, 9), &mut ours, theirs).row(&work, Some(0.9));
        } else {
            ours();
        }
        let (median, longest) = (quantile(&waits, 0.5), quantile(&waits, 1.0));
        let longest = format!("{:.1}", longest / median);
        figure(&format!("longest of these {count} at once to the median"), &longest, "", "<= 20");
    }
}

/// Runs so many sequences of `each` commands in parallel. Returns the total time, and adds that of each command
/// to `waits`, in seconds.
fn together(count: usize, each: usize, waits: &mut Vec<f64>, command: impl Fn() -> Command) -> Duration {
    let began = Instant::now();
    let mut sequences: Vec<Vec<Command>> =
        (0..count).map(|_| (0..each).map(|_| command()).collect()).collect();
    std::thread::scope(|scope| {
        let threads: Vec<_> = sequences
            .iter_mut()
            .map(|sequence| {
                scope.spawn(|| sequence.iter_mut().map(|c| run(c).wall.as_secs_f64()).collect::<Vec<_>>())
            })
            .collect();
        for thread in threads {
            waits.extend(thread.join().expect("a sequence of commands ends"));
        }
    });
    began.elapsed()
}

/// A push while a hundred processes follow the thread, against one without followers.
fn followers(plan: &Plan, place: &Place) {
    let (watched, plain) = (place.new_thread(0), place.new_thread(0));
    let mut followers: Vec<_> = (0..100)
        .map(|_| {
            let mut follow = place.in_thread(&watched, ["peek", "--follow"]);
            follow.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("peek starts")
        })
        .collect();
    let (mut push, mut push_plain) = (place.push(&watched), place.push(&plain));
    for (pause, name) in [(80, "80 ms apart"), (10, "10 ms apart")] {
        let ours = |push: &mut Command| {
            std::thread::sleep(Duration::from_millis(pause));
            run(push).wall
        };
        let pairs = Pairs::measure(plan.pick(50, 200), || ours(&mut push), || ours(&mut push_plain));
        pairs.row(&format!("push with 100 followers {name}, without"), Some(1.2));
    }
    for follower in &mut followers {
        follower.kill().and_then(|()| follower.wait()).expect("peek ends");
    }
}

/// The push after a large batch, with new filters that match none of its events.
fn backlog(plan: &Plan, place: &Place) {
    let (size, name) = plan.pick((200_000, "200,000"), (1_000_000, "1,000,000"));
    let thread = place.new_thread(size);
    for number in 0..20 {
        let filter = format!("type = 'message' AND content LIKE '%nobody says {number}%'");
        subscribe(place, &thread, &format!("c{number}"), &filter);
    }
    // Otherwise the first push waits until the batch's log is on disk, with or without filters.
    let log = File::open(thread.join("events.jsonl")).expect("there is a log");
    log.sync_all().expect("the log is synced");
    let times: Vec<f64> =
        (0..plan.pick(5, 10)).map(|_| run(&mut place.push(&thread)).wall.as_secs_f64()).collect();
    let work = format!("longest push with 20 new filters, {name} events");
    figure(&work, &time(quantile(&times, 1.0)), "", "<= 50 ms");
}

/// Programs take events of other keys, past many that one key holds back.
fn claims(plan: &Plan, place: &Place) {
    let thread = |held: usize| {
        let thread = place.new_thread(0);
        let words = ["subscribe", "c", "--no-handler", "--concurrency", "1000", "--key", "content"];
        run(&mut place.in_thread(&thread, words));
        let input = place.path("claims.ndjson");
        let line = |content: &str| {
            format!("{{\"source\":\"self\",\"type\":\"message\",\"content\":\"{content}\"}}\n")
        };
        let others: String = (0..1000).map(|number| line(&number.to_string())).collect();
        fs::write(&input, line("held").repeat(held + 1) + &others).expect("the input is written");
        run(&mut place.batch(&thread, &input));
        // The first one holds the others back; the next one finds that out.
        for _ in 0..2 {
            run(&mut place.in_thread(&thread, ["pop", "c", "--claim", "1h"]));
        }
        thread
    };
    let (behind, plain) = (thread(9000), thread(0));
    let pop = |thread: &Path| run(&mut place.in_thread(thread, ["pop", "c", "--claim", "1h"])).wall;
    let pairs = Pairs::measure(plan.pick(50, 200), || pop(&behind), || pop(&plain));
    pairs.row("pop --claim, 9,000 events held back; none", Some(1.1));
}

/// How late scheduled events become events, among 100,000 that are due much later.
fn due_on_time(plan: &Plan, place: &Place) {
    let thread = place.new_thread(0);
    let much_later = place.path("later.ndjson");
    let line = "{\"source\":\"self\",\"type\":\"message\",\"content\":\"x\",\"in\":\"9d\"}\n";
    fs::write(&much_later, line.repeat(100_000)).expect("the input is written");
    run(&mut place.batch(&thread, &much_later));
    let late = |_| {
        let now = || jiff::Timestamp::now().as_millisecond();
        run(&mut place.in_thread(&thread, ["push", "--in", "200ms", "soon"]));
        let due = now() + 200;
        run(&mut place.in_thread(&thread, ["peek", "--last-event-id", "0", "--limit", "1", "--wait", "10s"]));
        let came = now();
        // The next wait is for the next one.
        run(&mut place.in_thread(&thread, ["prune", "--keep", "1"]));
        Duration::from_millis(u64::try_from(came - due).unwrap_or(0)).as_secs_f64()
    };
    let times: Vec<f64> = (0..plan.pick(30, 200)).map(late).collect();
    figure("a scheduled event comes late by, median", &time(quantile(&times, 0.5)), "", "<= 20 ms");
    figure("the same, longest", &time(quantile(&times, 1.0)), "", "<= 50 ms");
}

/// Pushes into a thread that keeps its last 10,000 events, and into one that keeps all.
fn retention(plan: &Plan, place: &Place) {
    let (kept, plain) = (place.new_thread(30_000), place.new_thread(30_000));
    run(&mut place.in_thread(&kept, ["config", "retention.events", "10000"]));
    let input = place.events(500);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    // Each round has a batch, after which events are due to be deleted, and single pushes during that.
    for _ in 0..plan.pick(25, 100) {
        for (thread, times) in [(&kept, &mut ours), (&plain, &mut theirs)] {
            run(&mut place.batch(thread, &input));
            times.extend((0..20).map(|_| run(&mut place.push(thread)).wall.as_secs_f64()));
        }
    }
    for (which, part) in [("median", 0.5), ("99 of 100", 0.99), ("longest", 1.0)] {
        let (ours, theirs) = (quantile(&ours, part), quantile(&theirs, part));
        let work = format!("push under retention, longer by ({which})");
        figure(&work, &time((ours - theirs).max(0.0)), &time(theirs), "<= 10 ms");
    }
}

fn redis(plan: &Plan, place: &Place) {
    let work = "push, redis XADD with AOF always";
    if !is_there("redis-server", work) || !is_there("redis-cli", work) {
        return;
    }
    let redis = Redis::start(place);
    let thread = place.new_thread(0);
    let add = || {
        redis.command(["XADD", "one", "*", "source", "self", "type", "message", "content", "What is new?"])
    };
    let mut one = add();
    let ours = || run(&mut place.push(&thread)).wall;
    Pairs::measure(plan.pick(50, 200), ours, || run(&mut one).wall).row(work, None);
    let each = plan.pick(4, 15);
    let ours = || together(64, each, &mut Vec::new(), || place.push(&thread));
    let theirs = || together(64, each, &mut Vec::new(), add);
    Pairs::measure(plan.pick(3, 9), ours, theirs).row("64 that push, 64 redis XADD with AOF always", None);

    let (input, commands) = (place.events(MANY), place.path("commands"));
    let lines = fs::read_to_string(&input).expect("the input is there");
    let mut file = std::io::BufWriter::new(File::create(&commands).expect("a file for commands"));
    for line in lines.lines() {
        let length = line.len();
        write!(file, "*5\r\n$4\r\nXADD\r\n$4\r\nmany\r\n$1\r\n*\r\n$5\r\nevent\r\n${length}\r\n{line}\r\n")
            .expect("commands are written");
    }
    file.flush().expect("commands are written");
    let mut full = place.new_thread(0);
    let pairs = Pairs::measure(
        plan.pick(2, 5),
        || {
            full = place.new_thread(0);
            run(&mut place.batch(&full, &input)).wall
        },
        || {
            run(&mut redis.command(["DEL", "many"]));
            let commands = File::open(&commands).expect("the commands are there");
            run(redis.command(["--pipe"]).stdin(commands)).wall
        },
    );
    pairs.row("push --batch of 200,000, redis-cli --pipe", None);
    let mut peek = place.in_thread(&full, ["peek", "--last-event-id", "0", "--limit", "200000"]);
    let mut range = redis.command(["XRANGE", "many", "-", "+"]);
    let pairs = Pairs::measure(plan.pick(3, 9), || run(&mut peek).wall, || run(&mut range).wall);
    pairs.row("peek of 200,000, redis XRANGE", None);
}

fn subscribe(place: &Place, thread: &Path, consumer: &str, filter: &str) {
    let words =
        ["subscribe", "--consumer", consumer, "--deliver", "wake", "--handler", "true", "--filter", filter];
    run(place.in_thread(thread, words).env("THREAD_NOTIFIER", "off"));
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
