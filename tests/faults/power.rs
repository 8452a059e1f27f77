//! Power cuts during pushes.
//!
//! `strace` records what a series of pushes writes, truncates, syncs, creates, renames and unlinks. Each prefix of the
//! recording is replayed into a fresh folder in every state that a disk may have after the cut: syncing a file makes
//! its bytes durable, syncing a directory makes its entries durable, and unsynced changes may or may not be there. What
//! the real binary finds in such a folder is compared with what had been acknowledged to the pushers by then.

mod disk;
mod record;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};

use rusqlite::Connection;
use rusqlite::config::DbConfig;
use serde_json::Value;
use thread::files::JSONL;
use thread::jsonl::STATE;
use thread_testkit::{World, long, quoted, wait_until};

use self::disk::{Dice, Disk, FATES, Fate, Found};
use self::record::{NameOp, Op, Recording, record};
use crate::inject::strace;

/// Set in the process that runs a series with the SQLite library; its value is the sync mode.
const SERIES: &str = "THREAD_FAULTS_SERIES";

/// What had been acknowledged to the pushers.
#[derive(Default, Clone)]
struct Told {
    events: Vec<Value>,
    batches: Vec<(i64, i64)>,
    cursor: i64,
    /// There was a prune, so events may be in the JSONL log alone.
    pruned: bool,
}

impl Told {
    fn hear(&mut self, answer: &Value) {
        let number = |name: &str| answer[name].as_i64();
        if number("id").is_some() {
            self.events.push(answer.clone());
        } else if let (Some(first), Some(last)) = (number("first_id"), number("last_id")) {
            self.batches.push((first, last));
        } else if let Some(cursor) = number("last_acked_id") {
            self.cursor = cursor;
        } else {
            assert!(number("count").is_some(), "an answer that is not understood: {answer}");
            self.pruned = true;
        }
    }
}

/// A folder for one check, in memory if possible, because the real disk does not matter here.
fn fresh_folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let made = tempfile::Builder::new().prefix("thread-cut").tempdir_in(memory);
    made.unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

/// Checks a state with the real binary and with plain SQLite. Returns the problems found.
fn check(found: &Found, told: &Told, inodes: &HashMap<u64, usize>, dice: &mut Dice) -> Vec<String> {
    let folder = fresh_folder();
    let dir = folder.path();
    for made in ["run", "logs/handlers"] {
        fs::create_dir_all(dir.join(made)).unwrap();
    }
    for (path, (_, bytes)) in found {
        fs::write(dir.join(path), bytes).unwrap();
    }
    if dice.coin() {
        // The WAL index may exist, with arbitrary contents.
        fs::write(dir.join("events.db-shm"), vec![dice.below(256) as u8; 32768]).unwrap();
    }
    reboot(dir, found, inodes);
    let mut wrong = Vec::new();
    let thread = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thread"));
        command.env_clear().env("THREAD_DIR", dir).env("THREAD_NOTIFIER", "off").args(args);
        command.stdin(Stdio::null()).output().unwrap()
    };
    if dice.below(4) == 0 {
        let output = thread(&["info", "--json"]);
        if !output.status.success() {
            wrong.push(format!("info: {}", String::from_utf8_lossy(&output.stderr)));
        }
    }
    let output = thread(&["push", "--source", "self", "--type", "message", "--content", "after the cut"]);
    if !output.status.success() || !output.stderr.is_empty() {
        wrong.push(format!("the next push: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let read = || -> rusqlite::Result<Vec<String>> {
        let conn = Connection::open(dir.join("events.db"))?;
        // This creates the temporary table `logged`, the contents of the log.
        let mut wrong = read_log(dir, &conn, told.pruned)?;
        let integrity: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
        if integrity != "ok" {
            wrong.push(format!("integrity: {integrity}"));
        }
        for event in &told.events {
            let sql = "SELECT count(*) FROM logged WHERE id = ? AND created_at = ? AND content = ?";
            let field = |name: &str| event[name].as_str().unwrap_or_default();
            let id = event["id"].as_i64().unwrap();
            let there: i64 =
                conn.query_row(sql, (id, field("created_at"), field("content")), |row| row.get(0))?;
            if there != 1 {
                wrong.push(format!("missing: event {id}, which was acknowledged"));
            }
        }
        for (first, last) in &told.batches {
            let sql = "SELECT count(*) FROM logged WHERE id BETWEEN ? AND ? AND content GLOB 'batch *'";
            let there: i64 = conn.query_row(sql, (first, last), |row| row.get(0))?;
            if there != last - first + 1 {
                wrong.push(format!("missing: of the batch {first} to {last}, {there} events are there"));
            }
        }
        // The content of each batch line includes the size of the batch.
        let sql = "SELECT substr(content, 1, instr(content, ':')), count(*) FROM logged \
                   WHERE content GLOB 'batch *' GROUP BY 1";
        let mut statement = conn.prepare(sql)?;
        let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))?;
        for row in rows {
            let (name, there) = row?;
            let size = name.trim_end_matches(':').rsplit(' ').next().and_then(|n| n.parse().ok());
            if size != Some(there) {
                wrong.push(format!("a part of a batch: {name} has {there} events"));
            }
        }
        let sql = "SELECT coalesce(max(last_acked_id), 0) FROM consumer_progress";
        let cursor: i64 = conn.query_row(sql, [], |row| row.get(0))?;
        if cursor < told.cursor {
            wrong.push(format!("missing: the cursor {}, it is at {cursor}", told.cursor));
        }
        Ok(wrong)
    };
    wrong.extend(read().unwrap_or_else(|e| vec![format!("unreadable: {e}")]));
    wrong
}

/// Makes the saved state of the JSONL log's writer look like one from an earlier boot, with the
/// log's new inode. In the worst case, assumed here, the log's length and mtime match the state.
fn reboot(dir: &Path, found: &Found, inodes: &HashMap<u64, usize>) {
    let path = dir.join(STATE);
    let text = fs::read_to_string(&path).unwrap_or_default();
    let mut lines = text.lines();
    let (Some(json), Some(sum)) = (lines.next(), lines.next()) else { return };
    if checksum(json) != sum {
        return;
    }
    let mut state: Value = serde_json::from_str(json).unwrap();
    let known = inodes.get(&state["inode"].as_u64().unwrap());
    if let Some((file, _)) = found.get(Path::new(JSONL))
        && known == Some(file)
    {
        let about = fs::metadata(dir.join(JSONL)).unwrap();
        state["inode"] = about.ino().into();
        state["modified"] = (about.mtime() * 1_000_000_000 + about.mtime_nsec()).into();
    } else {
        state["inode"] = 0.into();
    }
    state["boot"] = "00000000-0000-0000-0000-000000000000".into();
    let json = state.to_string();
    fs::write(path, format!("{json}\n{}\n", checksum(&json))).unwrap();
}

fn checksum(text: &str) -> String {
    let mut hasher = DefaultHasher::new();
    hasher.write(text.as_bytes());
    format!("{:016x}", hasher.finish())
}

/// Reads the JSONL log into the table `logged`. Returns its problems: it must have a line for every
/// id ever used, in order, and match the table for all events that still exist.
fn read_log(dir: &Path, conn: &Connection, pruned: bool) -> rusqlite::Result<Vec<String>> {
    let mut names: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.retain(|path| path.file_name().unwrap().to_string_lossy().starts_with("events-"));
    names.sort();
    names.push(dir.join(JSONL));
    let log: Vec<u8> = names.iter().flat_map(|path| fs::read(path).unwrap_or_default()).collect();
    let mut table = HashMap::new();
    let mut all =
        conn.prepare("SELECT id, created_at, source, type, subtype, content FROM events ORDER BY id")?;
    let mut rows = all.query([])?;
    while let Some(row) = rows.next()? {
        let id: i64 = row.get(0)?;
        let mut line = format!("{{\"id\":{id}");
        for (at, name) in ["created_at", "source", "type", "subtype", "content"].iter().enumerate() {
            let value: Option<String> = row.get(at + 1)?;
            line.push_str(&format!(",\"{name}\":{}", serde_json::to_string(&value).unwrap()));
        }
        table.insert(id, line + "}");
    }
    conn.execute_batch("CREATE TEMP TABLE logged (id, created_at, content)")?;
    let mut wrong = Vec::new();
    let mut last = 0;
    for line in String::from_utf8_lossy(&log).lines() {
        let event: Value = serde_json::from_str(line).unwrap_or_default();
        let field = |name: &str| event[name].as_str().unwrap_or_default();
        let id = event["id"].as_i64().unwrap_or(0);
        if id != last + 1 {
            wrong.push(format!("the JSONL log has {line:?} after event {last}"));
        }
        last = id;
        match table.remove(&id) {
            Some(row) if row == line => {}
            None if pruned => {}
            row => wrong.push(format!("the JSONL log has {line:?}, the table has {row:?}")),
        }
        let mut insert = conn.prepare_cached("INSERT INTO logged VALUES (?, ?, ?)")?;
        insert.execute((id, field("created_at"), field("content")))?;
    }
    if !table.is_empty() {
        wrong.push(format!("the JSONL log lacks {} of the table's events", table.len()));
    }
    Ok(wrong)
}

/// How many states of a recording are checked.
enum Depth {
    /// Every prefix in every way.
    Every,
    /// The prefixes around each sync and each answer, and this many others.
    Sample(usize),
}

/// Replays the recording. Returns the number of checks and the problems found.
fn play(recording: &Recording, depth: &Depth) -> (usize, Vec<String>) {
    let ops = &recording.ops;
    let mut chosen: BTreeMap<usize, Vec<Fate>> = BTreeMap::new();
    let mut dice = Dice(1);
    for upto in 0..=ops.len() {
        let rotating = FATES[upto % FATES.len()];
        let fates = match (depth, upto.checked_sub(1).map(|last| &ops[last]), ops.get(upto)) {
            (Depth::Every, ..) => FATES.to_vec(),
            (_, Some(Op::Answer(_)), _) => vec![Fate::Dropped, Fate::Some, Fate::Torn],
            (_, Some(Op::Sync { .. } | Op::SyncDir { .. }), _) => vec![Fate::Dropped],
            (_, _, Some(Op::Sync { .. } | Op::SyncDir { .. })) => vec![Fate::Some, rotating],
            (Depth::Sample(others), ..) if dice.below(ops.len()) < *others => vec![rotating],
            _ => Vec::new(),
        };
        chosen.insert(upto, fates);
    }
    let (send, receive) = mpsc::sync_channel::<(usize, Fate, Found, Told)>(4);
    let receive = Mutex::new(receive);
    let wrong = Mutex::new(Vec::new());
    let count = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let next = receive.lock().unwrap().recv();
                    let Ok((upto, fate, found, told)) = next else { return };
                    let mut dice = Dice(upto as u64);
                    let problems = check(&found, &told, &recording.inodes, &mut dice);
                    count.fetch_add(1, Ordering::Relaxed);
                    let problems = problems.iter().map(|p| format!("cut after {upto}, {fate:?}: {p}"));
                    wrong.lock().unwrap().extend(problems);
                }
            });
        }
        let mut disk = Disk::new(recording);
        let mut told = Told::default();
        for (upto, fates) in &chosen {
            for (turn, fate) in fates.iter().enumerate() {
                let mut dice = Dice((upto * FATES.len() + turn) as u64);
                send.send((*upto, *fate, disk.after_cut(*fate, &mut dice), told.clone())).unwrap();
            }
            if let Some(op) = ops.get(*upto) {
                disk.apply(op);
                if let Op::Answer(answer) = op {
                    told.hear(answer);
                }
            }
        }
        drop(send);
    });
    (count.into_inner(), wrong.into_inner().unwrap())
}

/// The thread's path without symlinks, as strace reports it.
fn inbox(world: &World) -> PathBuf {
    world.inbox().canonicalize().unwrap()
}

fn assert_sound(what: &str, recording: &Recording, depth: &Depth) {
    let syncs = recording.ops.iter().filter(|op| matches!(op, Op::Sync { .. } | Op::SyncDir { .. })).count();
    let answers = recording.ops.iter().filter(|op| matches!(op, Op::Answer(_))).count();
    let (count, wrong) = play(recording, depth);
    eprintln!(
        "power cut, {what}: {} steps, {syncs} syncs, {answers} answers; {count} cuts looked at",
        recording.ops.len()
    );
    let shown: Vec<&String> = wrong.iter().take(20).collect();
    assert!(wrong.is_empty(), "{} faults in {count} checks: {shown:#?}", wrong.len());
}

fn batch(world: &World, number: usize, size: usize, padding: usize) {
    let padding = "x".repeat(padding);
    let line = |at| {
        format!(r#"{{"source":"self","type":"record","content":"batch {number} of {size}: {at} {padding}"}}"#)
    };
    let lines: Vec<String> = (0..size).map(line).collect();
    world.write(format!("batch-{number}"), lines.join("\n"));
}

fn push_off(world: &World) -> i64 {
    let words = ["push", "--source", "self", "--type", "message", "--content", "before"];
    world.off(words).quiet().trim().parse().unwrap()
}

const PUSH: &str = "thread push --source self --type message --json --content";

#[test]
fn what_a_push_acknowledged_survives_a_power_cut_at_any_moment() {
    if strace().is_none() {
        return;
    }
    let world = World::with_thread();
    world.idle_consumer("bot", "");
    batch(&world, 1, 7, 10);
    batch(&world, 2, 40, 300);
    let long_text = "y".repeat(20_000);
    // The series begins when the WAL is nearly full.
    let (mut stored, wal) = (0, world.inbox().join("events.db-wal"));
    while fs::metadata(&wal).map_or(0, |wal| wal.len()) < 200_000 {
        stored = push_off(&world);
    }
    for number in 3..=6 {
        batch(&world, number, 4, 1000);
    }
    let script = format!(
        "set -e\n\
         for i in 1 2 3; do {PUSH} \"event $i\"; done\n\
         thread push --batch --json <batch-1\n\
         thread ack --consumer bot --event-id {} --json\n\
         {PUSH} {long_text}\n\
         for i in 3 4 5 6; do thread push --batch --json <batch-$i; {PUSH} \"between $i\"; done\n\
         thread ack --consumer bot --event-id {} --json\n\
         for i in 1 2 3; do {PUSH} \"after $i\"; done\n\
         thread push --batch --json <batch-2\n\
         {PUSH} last",
        stored + 5,
        stored + 20,
    );
    world.write("series", script);
    let recording = record(&world, &inbox(&world), &["sh", "series"], &[]);
    // Its length stays: only its header is emptied.
    let emptied = |op: &Op| matches!(op, Op::Write { at: 0, bytes, .. } if *bytes == [0; 32]);
    assert!(recording.ops.iter().any(emptied), "no checkpoint emptied the WAL");
    assert_sound(
        "pushes and batches over a checkpoint",
        &recording,
        &if long() { Depth::Every } else { Depth::Sample(150) },
    );
}

/// Commands other than a push may create the WAL, and some of them sync nothing.
#[test]
fn a_wal_that_another_command_began_survives_a_power_cut_at_any_moment() {
    const TEST: &str = "power::a_wal_that_another_command_began_survives_a_power_cut_at_any_moment";
    if let Ok(mode) = std::env::var(SERIES) {
        return series(&mode, false);
    }
    if strace().is_none() {
        return;
    }
    let subscribe = "thread subscribe bot true --deliver wake --filter \"json_extract('{}', content) = 1\"";
    let own = std::env::current_exe().unwrap();
    let other = format!("{SERIES}=NORMAL {} --exact {TEST} --nocapture", quoted(own));
    let begins = [
        ("a subscription", subscribe),
        ("a look at a filter that fails", "thread info"),
        ("events of a program that syncs less", &other),
    ];
    for (name, begin) in begins {
        let world = World::with_thread();
        if begin != subscribe {
            world.sh(subscribe).ok();
            push_off(&world);
            // A plain SQLite connection removes the WAL when it is the last to close.
            world.query("SELECT count(*) FROM events");
        }
        assert!(
            !world.inbox().join("events.db-wal").exists(),
            "the recording must include the creation of the WAL"
        );
        let pushes = format!("for i in 1 2 3; do {PUSH} \"event $i\"; done");
        world.write("series", format!("set -e\n{begin} >begun 2>&1\n{pushes}"));
        let recording = record(&world, &inbox(&world), &["sh", "series"], &[]);
        let is_wal =
            |op: &Op| matches!(op, Op::Name(NameOp::Create { path, .. }) if path.ends_with("events.db-wal"));
        assert!(recording.ops.iter().any(is_wal), "no command created the WAL");
        let depth = if begin == other && !long() { Depth::Sample(60) } else { Depth::Every };
        assert_sound(&format!("pushes after {name}"), &recording, &depth);
    }
}

/// Every deleted event has its line in a sealed file, on the disk.
#[test]
fn a_prune_loses_no_line_of_the_log_to_a_power_cut_at_any_moment() {
    if strace().is_none() {
        return;
    }
    let world = World::with_thread();
    batch(&world, 1, 7, 10);
    let prune = "thread prune --json --dry-run --before-id 1; thread prune --before-id";
    let script = format!(
        "set -e\n\
         {PUSH} first\n\
         thread push --batch --json <batch-1\n\
         {prune} 5 >pruned\n\
         for i in 1 2; do {PUSH} \"event $i\"; done\n\
         {prune} 10 >pruned\n\
         {PUSH} last"
    );
    world.write("series", script);
    let recording = record(&world, &inbox(&world), &["sh", "series"], &[]);
    let depth = if long() { Depth::Every } else { Depth::Sample(50) };
    assert_sound("prunes", &recording, &depth);
    let renamed = |op: &&Op| matches!(op, Op::Name(NameOp::Rename { .. }));
    assert_eq!(recording.ops.iter().filter(renamed).count(), 2, "the log was not sealed");
}

#[test]
fn a_rotation_of_the_log_survives_a_power_cut_at_any_moment() {
    if strace().is_none() {
        return;
    }
    let world = World::with_thread();
    batch(&world, 1, 10_000, 1);
    world.off(["push", "--batch"]).stdin(fs::read(world.path("batch-1")).unwrap()).quiet();
    let script = format!("set -e\nfor i in 1 2 3 4; do {PUSH} \"event $i\"; done");
    world.write("series", script);
    let recording = record(&world, &inbox(&world), &["sh", "series"], &[]);
    let renamed = |op: &Op| matches!(op, Op::Name(NameOp::Rename { .. }));
    assert!(recording.ops.iter().any(renamed), "nothing was renamed");
    let depth = if long() { Depth::Every } else { Depth::Sample(10) };
    assert_sound("a rotation", &recording, &depth);
}

/// The ends of runs that are followed by others are not synced; that of the last one is, and so is what it acknowledged.
#[test]
fn what_a_backlog_s_last_run_acknowledged_survives_a_power_cut_at_any_moment() {
    if strace().is_none() {
        return;
    }
    let world = World::with_thread();
    world.off(["subscribe", "bot", ":", "--deliver", "stdin", "--batch-size", "1"]).ok();
    // Makes the folder of its log.
    world.thread(["push", "--source", "self", "--type", "message", "--content", "before"]).quiet();
    let log = |acked: usize| format!("acked={acked}\n");
    wait_until("the first run", || world.read("inbox/logs/thread.log").ends_with(&log(1)));
    world.wait_until_quiet();
    // Few enough that the WAL stays short: a checkpoint would sync it.
    batch(&world, 1, 2, 10);
    let script = "set -e\n\
                  thread push --batch --json <batch-1\n\
                  thread dispatch\n\
                  until grep -q 'acked=3$' \"$THREAD_DIR/logs/thread.log\"; do sleep 0.1; done\n\
                  echo '{\"last_acked_id\":3}'\n";
    world.write("series", script);
    let recording = record(&world, &inbox(&world), &["sh", "series"], &[]);
    let depth = if long() { Depth::Every } else { Depth::Sample(60) };
    assert_sound("a backlog", &recording, &depth);
}

#[test]
fn what_was_taken_and_acknowledged_survives_a_power_cut_at_any_moment() {
    if strace().is_none() {
        return;
    }
    let world = World::with_thread();
    world.off(["subscribe", "bot", "--no-handler", "--concurrency", "3"]).ok();
    let take = "thread pop bot --claim 1h >taken";
    let told = |cursor: i64| format!("echo '{{\"last_acked_id\":{cursor}}}'");
    let script = format!(
        "set -e\n\
         for i in 1 2 3 4; do {PUSH} \"event $i\"; done\n\
         {take}; thread ack bot 1; {}\n\
         {take}; {take}; thread ack bot 3; thread reject bot 2; {}\n",
        told(1),
        told(3),
    );
    world.write("series", script);
    let recording = record(&world, &inbox(&world), &["sh", "series"], &[]);
    let depth = if long() { Depth::Every } else { Depth::Sample(60) };
    assert_sound("claims", &recording, &depth);
}

/// Records this test in a separate process, which runs a series with the SQLite library in that sync mode.
fn series_in_a_process(test: &str, mode: &str) -> Recording {
    let world = World::with_thread();
    let own = std::env::current_exe().unwrap();
    let words = [own.to_str().unwrap(), "--exact", test, "--nocapture"];
    record(&world, &inbox(&world), &words, &[(SERIES, mode.to_owned())])
}

/// The series that this process runs. It may tell what it has stored, which is then taken for acknowledged.
fn series(mode: &str, tells: bool) {
    let path = Path::new(&std::env::var_os("THREAD_DIR").unwrap()).join("events.db");
    for i in 1..=12 {
        let conn = Connection::open(&path).unwrap();
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).unwrap();
        conn.execute_batch(&format!("PRAGMA synchronous = {mode}")).unwrap();
        let sql = "INSERT INTO events (source, type, content) VALUES ('self', 'message', ?) \
                   RETURNING json_object('id', id, 'created_at', created_at, 'content', content)";
        let mut statement = conn.prepare(sql).unwrap();
        let mut rows = statement.query([format!("event {i}")]).unwrap();
        let answer: String = rows.next().unwrap().unwrap().get(0).unwrap();
        assert!(rows.next().unwrap().is_none());
        drop(rows);
        drop(statement);
        conn.close().unwrap();
        if tells {
            rustix::io::write(rustix::stdio::stdout(), format!("{answer}\n").as_bytes()).unwrap();
        }
    }
}

#[test]
fn the_checker_of_power_cuts_sees_what_a_weaker_sync_loses() {
    const TEST: &str = "power::the_checker_of_power_cuts_sees_what_a_weaker_sync_loses";
    if let Ok(mode) = std::env::var(SERIES) {
        return series(&mode, true);
    }
    if strace().is_none() {
        return;
    }
    let full = series_in_a_process(TEST, "FULL");
    let (count, wrong) = play(&full, &Depth::Sample(20));
    assert!(wrong.is_empty() && count > 0, "{wrong:#?}");
    assert_eq!(full.ops.iter().filter(|op| matches!(op, Op::Answer(_))).count(), 12);

    let normal = series_in_a_process(TEST, "NORMAL");
    let (count, wrong) = play(&normal, &Depth::Sample(20));
    let missing = wrong.iter().filter(|problem| problem.contains("missing: event")).count();
    eprintln!("power cut, synchronous=NORMAL: {missing} losses seen in {count} cuts, as they should be");
    assert!(missing >= 12, "a weaker sync went unnoticed: {wrong:#?}");
    // It may lose events, but must not damage anything: losses are the only problems.
    assert!(wrong.iter().all(|problem| problem.contains("missing: event")), "{wrong:#?}");
}
