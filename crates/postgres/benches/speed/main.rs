//! Speed of threads in PostgreSQL, as ratios to `psql`, `\copy` and `pgbench` that do the same work on the same server
//! in the same run, and next to Procrastinate, another queue in PostgreSQL.
//!
//! `cargo bench -p thread-postgres` takes a few minutes; `cargo bench -p thread-postgres -- push copy` runs the
//! benchmarks whose names contain one of these words. For Procrastinate, `THREAD_BENCH_PYTHON` names a Python that has
//! the packages `procrastinate` and `psycopg[binary,pool]`.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use thread::model::location::Location;
use thread::model::subscription::ConsumerId;
use thread::{NewEvent, Queue};
use thread_testkit::bench::{self, Pairs, Plan, figure, quantile, row, run, run_shell};
use thread_testkit::postgres::{self, Options};
use thread_testkit::wait_until;

/// The time of an event, as a push stores it.
const NOW: &str = r#"to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')"#;

const PUSHERS: usize = 32;
const THREADS: u64 = 1000;

/// Events of an hour in which one comes each second.
const HOUR: usize = 3600;

/// The default settings but for room for the log and an autovacuum that looks once a second. It syncs, unlike the server
/// of the tests.
const SETTINGS: [&str; 4] = ["fsync=on", "full_page_writes=on", "max_wal_size=8GB", "autovacuum_naptime=1s"];

fn main() {
    let plan = Plan::from_args(env!("CARGO_BIN_EXE_thread-postgres"));
    let Some(started) = postgres::Server::start_with(&Options { settings: &SETTINGS, ..Options::default() })
    else {
        return;
    };
    started.psql("CREATE DATABASE bench");
    started.psql("CREATE ROLE other LOGIN");
    let files = tempfile::Builder::new().prefix("thread-bench").tempdir().unwrap();
    let server = Server { files: files.path().to_owned(), program: plan.program.clone(), started };
    // Before there is any other thread.
    // SAFETY: no other thread reads the environment at this point.
    unsafe { std::env::set_var("XDG_STATE_HOME", server.files.join("state")) };
    thread::queue::locations::add(thread_postgres::SCHEME);
    plan.head(&format!("PostgreSQL {}", server.sql("SHOW server_version")));
    type Work = fn(&Server);
    let all: [(&str, Work); 6] = [
        ("push", push),
        ("copy", copy),
        ("pgbench", pgbench),
        ("latency", latency),
        ("neighbour", neighbour),
        ("flat", flat),
    ];
    for (name, work) in all {
        if plan.wants(name) {
            work(&server);
        }
    }
    println!("\nload at the end: {}", fs::read_to_string("/proc/loadavg").unwrap().trim());
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.1} ms", seconds * 1e3)
}

/// The server with a database `bench`, and the program to measure.
struct Server {
    started: postgres::Server,
    program: PathBuf,
    /// A folder for files.
    files: PathBuf,
}

fn content() -> String {
    "x".repeat(300)
}

impl Server {
    fn psql(&self) -> Command {
        self.started.client("bench")
    }

    fn sql(&self, sql: &str) -> String {
        let output = self.psql().args(["-c", sql]).output().unwrap();
        assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    /// A new thread, in the schema `thread` that all of them share.
    fn thread(&self, name: &str) -> String {
        let (dir, port) = (self.started.dir.display(), self.started.port);
        let location = format!("postgres:///bench?host={dir}&port={port}&user=postgres#{name}");
        (thread_postgres::SCHEME.init)(&Location::from(&location)).unwrap();
        location
    }

    fn number_of(&self, name: &str) -> String {
        self.sql(&format!("SELECT thread FROM thread.threads WHERE name = '{name}'"))
    }

    /// The command line, on a machine of its own.
    fn command(&self, location: &str, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).env("THREAD_DIR", location).env("XDG_STATE_HOME", self.files.join("machine"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).current_dir(&self.files);
        command
    }

    fn worker(&self, location: &str) -> Worker {
        let child = self.command(location, &["dispatch", "--follow"]).spawn().unwrap();
        Worker { child }
    }

    /// The bytes that were written to the log so far.
    fn wal(&self) -> f64 {
        self.sql("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").parse().unwrap()
    }

    fn cursor(&self, thread: &str) -> u64 {
        let sql =
            format!("SELECT coalesce(max(last_acked_id), 0) FROM thread.cursors WHERE thread = {thread}");
        self.sql(&sql).parse().unwrap()
    }

    /// Dead rows and bytes of the tables of a schema.
    fn dead_and_bytes(&self, schema: &str) -> (u64, u64) {
        let sql = format!(
            "SELECT coalesce(sum(n_dead_tup), 0) || ' ' || coalesce(sum(pg_total_relation_size(relid)), 0) \
             FROM pg_stat_user_tables WHERE schemaname = '{schema}'"
        );
        // Statistics are reported once a second.
        std::thread::sleep(Duration::from_millis(1500));
        let answer = self.sql(&sql);
        let (dead, bytes) = answer.split_once(' ').unwrap();
        (dead.parse().unwrap(), bytes.parse().unwrap())
    }
}

struct Worker {
    child: Child,
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(Command::new("kill").arg(self.child.id().to_string()).status());
        self.child.wait().unwrap();
    }
}

/// One event, by a process of its own: against one by psql, with the same counter row, in one statement.
fn push(server: &Server) {
    let (location, _) = (server.thread("push"), server.thread("psql"));
    let number = server.number_of("psql");
    let text = content();
    let sql = format!(
        "WITH counter AS (UPDATE thread.counters SET newest = newest + 1 WHERE thread = {number} \
                          RETURNING newest, {NOW} AS now) \
         INSERT INTO thread.events (thread, id, created_at, source, type, content) \
         SELECT {number}, newest, now, 'self', 'message', '{text}'::bytea FROM counter"
    );
    let pairs = Pairs::measure(
        40,
        || run(&mut server.command(&location, &["push", "--content", &text])).wall,
        || run(server.psql().args(["-c", &sql])).wall,
    );
    pairs.row("push, against psql -c INSERT with a counter row", Some(1.2));
}

/// A batch from a file: against psql's \copy of the same rows.
fn copy(server: &Server) {
    const LINES: usize = 200_000;
    let lines = server.files.join("lines");
    let rows = server.files.join("rows");
    let line = format!("{{\"source\":\"self\",\"type\":\"message\",\"content\":\"{}\"}}\n", content());
    fs::write(&lines, line.repeat(LINES)).unwrap();
    let mut n = 0;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        n += 1;
        let location = server.thread(&format!("batch{n}"));
        server.sql("CHECKPOINT");
        let mut command = server.command(&location, &["push", "--batch"]);
        ours.push(run(command.stdin(fs::File::open(&lines).unwrap())).wall);
        let name = format!("copy{n}");
        server.thread(&name);
        let number = server.number_of(&name);
        let mut file = std::io::BufWriter::new(fs::File::create(&rows).unwrap());
        for id in 1..=LINES {
            let text = content();
            writeln!(file, "{number}\t{id}\t2026-03-18T10:30:00.123Z\tself\t\\N\tmessage\t{text}\t\\N\t\\N")
                .unwrap();
        }
        drop(file);
        server.sql("CHECKPOINT");
        let script = format!(
            "BEGIN;\nUPDATE thread.counters SET newest = {LINES} WHERE thread = {number};\n\
             \\copy thread.events (thread, id, created_at, source, subtype, type, content, metadata, idempotency_key) \
             from '{}'\nCOMMIT;\n",
            rows.display()
        );
        let path = server.files.join("copy.sql");
        fs::write(&path, script).unwrap();
        theirs.push(run(server.psql().arg("-f").arg(&path)).wall);
        server.sql("TRUNCATE thread.events");
    }
    Pairs::of(ours, theirs).row("push --batch of 200,000 without keys, against \\copy", Some(1.2));
}

/// Many pushers that open a thread, push and close it again, over persistent connections: against pgbench, which sends
/// the same statements in the same messages.
fn pgbench(server: &Server) {
    const TIME: Duration = Duration::from_secs(5);
    let locations: Vec<String> = (0..THREADS).map(|n| server.thread(&format!("many{n}"))).collect();
    let first: u64 = server.number_of("many0").parse().unwrap();
    let text = content();
    let script = format!(
        r#"\set n random(0, {last})
\set t :n + {first}
SELECT current_setting('server_version_num')::bigint, (SELECT max(version) FROM thread.versions), (SELECT thread FROM thread.threads WHERE name = 'many' || :n);
BEGIN ISOLATION LEVEL READ COMMITTED \; SET LOCAL lock_timeout = 60000 \; SET LOCAL idle_in_transaction_session_timeout = '1min' \; SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off';
WITH counter AS (UPDATE thread.counters SET newest = newest + 1 WHERE thread = :t RETURNING newest, {NOW_} AS now), stored AS (INSERT INTO thread.events (thread, id, created_at, source, type, subtype, content, metadata, idempotency_key) SELECT :t, newest, now, 'self', 'message', NULL, '{text}'::bytea, NULL, NULL FROM counter) SELECT newest, now FROM counter;
COMMIT;
BEGIN \; SET LOCAL synchronous_commit = off \; NOTIFY bench_notices, 'emany' \; COMMIT;
"#,
        last = THREADS - 1,
        // pgbench takes a word after a colon for a variable.
        NOW_ = "to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24 MI SS.MS')",
    );
    let path = server.files.join("script.sql");
    fs::write(&path, script).unwrap();
    let theirs = || -> f64 {
        let mut pgbench = Command::new(server.started.bin.join("pgbench"));
        pgbench.args(["-n", "-M", "simple", "-U", "postgres", "-c", &PUSHERS.to_string(), "-j", "2"]);
        pgbench.args(["-T", &TIME.as_secs().to_string(), "-p", &server.started.port.to_string(), "-h"]);
        let output = pgbench.arg(&server.started.dir).arg("-f").arg(&path).arg("bench").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let tps = said.lines().find_map(|line| line.strip_prefix("tps = ")).unwrap();
        tps.split(' ').next().unwrap().parse().unwrap()
    };
    let ours = || -> f64 {
        let (done, count) = (AtomicBool::new(false), AtomicU64::new(0));
        let began = Instant::now();
        std::thread::scope(|scope| {
            for pusher in 0..PUSHERS {
                let (done, count, locations, text) = (&done, &count, &locations, &text);
                scope.spawn(move || {
                    let event = NewEvent::new("self", "message", None, text.as_str()).unwrap();
                    let mut random = pusher as u64;
                    while !done.load(Ordering::Relaxed) {
                        // Knuth's generator, whose upper half is random enough.
                        random = random
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1_442_695_040_888_963_407);
                        let location = &locations[((random >> 33) % THREADS) as usize];
                        Queue::open(location).unwrap().push(&event).unwrap();
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            std::thread::sleep(TIME);
            done.store(true, Ordering::Relaxed);
        });
        count.into_inner() as f64 / began.elapsed().as_secs_f64()
    };
    // Which also connects.
    let _warm_up = (ours(), theirs());
    let (mut rates, mut others) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        rates.push(ours());
        others.push(theirs());
    }
    let rate = |rates: &[f64]| format!("{:.0} /s", quantile(rates, 0.5));
    let ratio = bench::ratio(&rates, &others);
    row("32 pushers on 1,000 threads, against pgbench", &rate(&rates), &rate(&others), ratio, ">= 0.85");
}

/// From the beginning of a push, on an open connection, to the first command of its handler, which a worker on another
/// connection starts.
fn latency(server: &Server) {
    let location = server.thread("latency");
    let mut queue = Queue::open(&location).unwrap();
    let handler = "date +%s%N >acted.new; mv acted.new acted";
    run(&mut server.command(&location, &["subscribe", "bot", handler, "--deliver", "stdin"]));
    let _worker = server.worker(&location);
    let acted = server.files.join("acted");
    let number = server.number_of("latency");
    let mut times = Vec::new();
    let event = NewEvent::new("self", "message", None, "x").unwrap();
    for n in 0..31 {
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as f64;
        queue.push(&event).unwrap();
        wait_until("the handler", || acted.exists());
        let at: f64 = fs::read_to_string(&acted).unwrap().trim().parse().unwrap();
        fs::remove_file(&acted).unwrap();
        wait_until("the acknowledgement", || server.cursor(&number) == n + 1);
        // The run ends, and its process.
        let sql =
            format!("SELECT count(*) FROM thread.leases WHERE thread = {number} AND holder IS NOT NULL");
        wait_until("the end of the run", || server.sql(&sql) == "0");
        std::thread::sleep(Duration::from_millis(50));
        // The first one waits for the worker's start.
        if n > 0 {
            times.push((at - began) / 1e9);
        }
    }
    let [low, median, high] = [0.25, 0.5, 0.75].map(|part| milliseconds(quantile(&times, part)));
    figure("push to the first act of its handler, which is `date`", &median, "", "<= 20 ms");
    figure("  quartiles", &low, &high, "");
}

/// End to end: an hour's worth of events, each pushed alone, and then handled, here and by Procrastinate.
fn neighbour(server: &Server) {
    let location = server.thread("hour");
    let number = server.number_of("hour");
    server.sql("ALTER SYSTEM SET autovacuum = off");
    server.sql("SELECT pg_reload_conf()");
    server.sql("VACUUM");
    let (dead_before, _) = server.dead_and_bytes("thread");
    let before = server.wal();
    let mut queue = Queue::open(&location).unwrap();
    let text = content();
    let event = NewEvent::new("self", "message", None, text.as_str()).unwrap();
    let began = Instant::now();
    for _ in 0..HOUR {
        queue.push(&event).unwrap();
    }
    let pushed = HOUR as f64 / began.elapsed().as_secs_f64();
    run(&mut server.command(&location, &["subscribe", "bot", "cat >/dev/null", "--deliver", "stdin"]));
    let handle = |upto: usize| -> f64 {
        let began = Instant::now();
        let _worker = server.worker(&location);
        wait_until("all to be handled", || server.cursor(&number) >= upto as u64);
        began.elapsed().as_secs_f64()
    };
    let handled = HOUR as f64 / handle(HOUR);
    let wal = (server.wal() - before) / HOUR as f64;
    let (dead, _) = server.dead_and_bytes("thread");
    let dead = dead.saturating_sub(dead_before);
    // One event for each run: what a shell command and its bookkeeping cost.
    const ALONE: usize = 200;
    for _ in 0..ALONE {
        queue.push(&event).unwrap();
    }
    run(&mut server.command(&location, &["unsubscribe", "bot"]));
    let alone = ["subscribe", "bot", "cat >/dev/null", "--deliver", "stdin", "--batch-size", "1"];
    run(&mut server.command(&location, &alone));
    let alone = ALONE as f64 / handle(HOUR + ALONE);
    // From the first run's start to the last one's end, without that of the worker.
    let runs = queue.store().runs(&ConsumerId::stored("bot"), ALONE).unwrap();
    let each = (runs[ALONE - 1].ended - runs[0].began).as_seconds_f64() / ALONE as f64;
    let began = Instant::now();
    let output = fs::File::create("/dev/null").unwrap();
    (0..ALONE).for_each(|_| run_shell(c"cat </dev/null >/dev/null", &output));
    let shell = began.elapsed().as_secs_f64() / ALONE as f64;

    let theirs = procrastinate(server);
    let theirs = |name: &str| theirs.as_ref().map(|found| found[name].as_f64().unwrap());
    let other = |name: &str, unit: &str| {
        theirs(name).map_or_else(|| "-".to_owned(), |value| format!("{value:.0}{unit}"))
    };
    println!("Procrastinate 3, its handlers functions in the worker's process; ours are shell commands:");
    figure("  events pushed a second, one after another", &format!("{pushed:.0}"), &other("pushed", ""), "");
    figure(
        "  events handled a second, by a worker that starts",
        &format!("{handled:.0}"),
        &other("handled", ""),
        "",
    );
    figure("  the same with one event for each run", &format!("{alone:.0}"), "", "");
    let more = format!("{} - {}", milliseconds(each), milliseconds(shell));
    figure("  such a run, less its shell alone", &more, "", "6 ms");
    let act = theirs("latency").map_or_else(|| "-".to_owned(), milliseconds);
    figure("  push to the handler's act", "above", &act, "");
    figure("  bytes of WAL for each event", &format!("{wal:.0}"), &other("wal", ""), "");
    let hour = "  dead rows after 3,600 events, without autovacuum";
    figure(hour, &dead.to_string(), &other("dead", ""), "");
    server.sql("ALTER SYSTEM RESET autovacuum");
    server.sql("SELECT pg_reload_conf()");
}

/// The results of its script; `None`, with a notice, if it is not installed.
fn procrastinate(server: &Server) -> Option<serde_json::Value> {
    let python = std::env::var_os("THREAD_BENCH_PYTHON").map_or_else(|| "python3".into(), PathBuf::from);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/speed/neighbour.py");
    server.sql(
        "CREATE SCHEMA other; ALTER ROLE other SET search_path = other; GRANT ALL ON SCHEMA other TO other",
    );
    let connection =
        format!("host={} port={} user=other dbname=bench", server.started.dir.display(), server.started.port);
    let before = server.wal();
    let output = Command::new(python).arg(script).arg(connection).arg(HOUR.to_string()).output().ok()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        println!("SKIPPED: Procrastinate: {}", said.lines().last().unwrap_or_default());
        return None;
    }
    let mut found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    found["wal"] = ((server.wal() - before) / HOUR as f64).into();
    found["dead"] = server.dead_and_bytes("other").0.into();
    Some(found)
}

/// Tables under load, with prune and autovacuum: their size after three rounds and after ten.
fn flat(server: &Server) {
    const ROUND: usize = 20_000;
    let location = server.thread("flat");
    server.sql("TRUNCATE thread.events");
    let lines = server.files.join("round");
    let line = format!("{{\"source\":\"self\",\"type\":\"message\",\"content\":\"{}\"}}\n", content());
    fs::write(&lines, line.repeat(ROUND)).unwrap();
    run(&mut server.command(&location, &["subscribe", "bot", "cat >/dev/null", "--deliver", "stdin"]));
    let number = server.number_of("flat");
    let _worker = server.worker(&location);
    let vacuums = || -> u64 {
        let sql = "SELECT autovacuum_count FROM pg_stat_user_tables WHERE schemaname = 'thread' AND relname = 'events'";
        server.sql(sql).parse().unwrap()
    };
    let mut sizes = Vec::new();
    for round in 1..=10 {
        let mut command = server.command(&location, &["push", "--batch"]);
        run(command.stdin(fs::File::open(&lines).unwrap()));
        wait_until("the events", || server.cursor(&number) == (round * ROUND) as u64);
        let before = vacuums();
        run(&mut server.command(&location, &["prune", "--keep", "1000"]));
        wait_until("autovacuum", || vacuums() > before);
        sizes.push(server.dead_and_bytes("thread").1 as f64 / 1e6);
    }
    let work = "MB of all tables after 3 and 10 rounds of 20,000 events";
    let (third, tenth) = (sizes[2], sizes[9]);
    figure(work, &format!("{tenth:.1}"), &format!("{third:.1}"), "flat");
}
