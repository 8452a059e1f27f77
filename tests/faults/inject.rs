//! Shared by `kill` and `disk`: commands to disturb, each with its initial directory, and `strace`
//! to inject faults at one specific system call.
//!
//! A scene is reset before each fault, so a command makes the same calls each time, and each can be
//! targeted in turn.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use rusqlite::{Connection, params};
use thread_testkit::{World, long, names, skipped};
use wait_timeout::ChildExt;

/// Groups of calls that change the disk. Not every processor has the calls marked with `?`.
pub const CALLS: &[&str] = &[
    "?pwrite64,write,?writev,?pwritev,?pwritev2",
    "fsync,fdatasync",
    "?rename,?renameat,?renameat2",
    "?ftruncate,?truncate",
    "?unlink,?unlinkat",
    "?open,?openat",
    "?link,?linkat",
    "?mkdir,?mkdirat",
];
pub const SYNCS: &str = CALLS[1];
const OPENS: &str = CALLS[5];

/// Longer than any command may take, which includes waiting a minute for a lock.
const HANG: Duration = Duration::from_secs(110);

/// The path of strace if it is installed and may trace. Prints a skip notice if not.
pub fn strace() -> Option<&'static Path> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let places = ["/usr/bin/strace", "/bin/strace", "/usr/local/bin/strace"].map(PathBuf::from);
        places.into_iter().find(|path| {
            let mut trial = std::process::Command::new(path);
            trial.args(["-qq", "-o", "/dev/null", "-e", "inject=fsync:error=EIO:when=1", "true"]);
            trial.stdout(Stdio::null()).stderr(Stdio::null());
            trial.status().is_ok_and(|status| status.success())
        })
    });
    if found.is_none() {
        skipped("strace that may trace");
    }
    found.as_deref()
}

/// The intended effect of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Store this many events whose content begins with `victim`.
    Push(i64),
    /// Move the cursor of `bot` to this id and print the events after it.
    Pop(i64),
    Init,
}

/// A command, and the directory before it runs.
pub struct Scene {
    pub name: &'static str,
    pub world: World,
    pub kind: Kind,
    args: Vec<String>,
    notifier: &'static str,
    /// Whether stdin is a pipe rather than a file.
    piped: bool,
    /// The number of events before, and the length and mtime of `events.jsonl`.
    rows: i64,
    log: Option<(u64, SystemTime)>,
}

/// The result of a disturbed command.
pub struct Ended {
    pub code: Option<i32>,
    pub killed: bool,
    pub stdout: String,
    pub stderr: String,
    /// The traced calls, one a line, with the paths of their file descriptors.
    pub calls: Vec<String>,
}

impl Ended {
    /// The calls at which a fault was injected.
    pub fn failed(&self) -> Vec<&String> {
        self.calls.iter().filter(|call| call.contains("(INJECTED)")).collect()
    }
}

/// The call to inject a fault at.
pub struct Target {
    /// The call as it was in the undisturbed run, with its path.
    pub call: String,
    /// strace numbers each system call separately: the number of this call, and for every call name
    /// the number of the first call from here on.
    name: String,
    number: usize,
    next: BTreeMap<String, usize>,
}

impl Target {
    pub fn new(calls: &[String], at: usize) -> Target {
        let mut next = BTreeMap::new();
        for (other, call) in calls.iter().enumerate() {
            let count = next.entry(name_of(call).unwrap().to_owned()).or_insert(1);
            *count += usize::from(other < at);
        }
        let name = name_of(&calls[at]).unwrap().to_owned();
        Target { call: calls[at].clone(), number: next[&name], name, next }
    }

    pub fn kill(&self) -> Vec<String> {
        vec![format!("{}:signal=KILL:when={}", self.name, self.number)]
    }

    pub fn hold_up(&self, milliseconds: u32) -> Vec<String> {
        vec![format!("{}:delay_enter={milliseconds}000:when={}", self.name, self.number)]
    }

    pub fn fail_once(&self, error: &str) -> Vec<String> {
        vec![format!("{}:error={error}:when={}", self.name, self.number)]
    }

    pub fn fail_from_now_on(&self, error: &str) -> Vec<String> {
        self.next.iter().map(|(name, number)| format!("{name}:error={error}:when={number}+")).collect()
    }

    /// An injection at this call, in strace's syntax without `when`.
    pub fn inject(&self, what: &str) -> Vec<String> {
        vec![format!("{}:{what}:when={}", self.name, self.number)]
    }

    /// An injection at this call and all later ones with these names.
    pub fn inject_from_now_on(&self, what: &str, names: &[&str]) -> Vec<String> {
        let struck = self.next.iter().filter(|(name, _)| names.contains(&name.as_str()));
        struck.map(|(name, number)| format!("{name}:{what}:when={number}+")).collect()
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

/// The name of the system call in a line of strace output.
fn name_of(line: &str) -> Option<&str> {
    let (name, _) = line.split_once('(')?;
    name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_').then_some(name)
}

/// The tables as the earlier implementation creates them.
pub const EARLIER_SCHEMA: &str = "\
    CREATE TABLE events (id INTEGER PRIMARY KEY AUTOINCREMENT, \
        created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ','now')), \
        source TEXT NOT NULL, type TEXT NOT NULL, subtype TEXT, content TEXT NOT NULL); \
    CREATE TABLE subscriptions (consumer_id TEXT NOT NULL PRIMARY KEY, handler_cmd TEXT NOT NULL, filter TEXT); \
    CREATE TABLE consumer_progress (consumer_id TEXT NOT NULL PRIMARY KEY, \
        last_acked_id INTEGER NOT NULL DEFAULT 0, updated_at TEXT NOT NULL);";

const PUSH: &[&str] = &["push", "--source", "self", "--type", "message", "--content", "victim"];

impl Scene {
    /// A push into a thread in use, which has a WAL.
    pub fn push() -> Scene {
        let world = World::with_thread();
        some_pushes(&world);
        Scene::new("push", world, Kind::Push(1), PUSH)
    }

    /// The first push after `init`.
    pub fn first_push() -> Scene {
        Scene::new("first push", World::with_thread(), Kind::Push(1), PUSH)
    }

    /// A push after which the WAL exceeds its limit and is checkpointed.
    pub fn large_push() -> Scene {
        let world = World::with_thread();
        some_pushes(&world);
        world.write("stdin", format!("victim{}", "x".repeat(1_200_000)));
        let args = ["push", "--source", "self", "--type", "record", "--content-file", "-"];
        Scene::new("large push", world, Kind::Push(1), &args)
    }

    pub fn batch() -> Scene {
        let world = World::with_thread();
        some_pushes(&world);
        world.write("stdin", batch(50, 600));
        Scene::new("batch", world, Kind::Push(50), &["push", "--batch"])
    }

    /// A batch that exceeds the page cache, so that much of it is in the WAL before the commit. From 16 events on,
    /// the cache would be eight times as large.
    pub fn large_batch() -> Scene {
        let world = World::with_thread();
        some_pushes(&world);
        world.write("stdin", batch(15, 250_000));
        Scene::new("large batch", world, Kind::Push(15), &["push", "--batch"])
    }

    /// A push that starts a new `events.jsonl`.
    pub fn rotation() -> Scene {
        let world = World::with_thread();
        let lines = "{\"source\":\"self\",\"type\":\"record\",\"content\":\"c\"}\n".repeat(10_000);
        world.off(["push", "--batch"]).stdin(lines).quiet();
        quiet_push(&world, "the line too many");
        Scene::new("rotation", world, Kind::Push(1), PUSH)
    }

    /// A push into a directory of the earlier implementation.
    pub fn migration() -> Scene {
        let world = World::new();
        for dir in ["inbox", "inbox/run", "inbox/logs"] {
            fs::create_dir(world.path(dir)).unwrap();
        }
        let conn = world.db();
        conn.execute_batch(EARLIER_SCHEMA).unwrap();
        conn.execute_batch("INSERT INTO subscriptions (consumer_id, handler_cmd) VALUES ('old-bot', 'true')")
            .unwrap();
        for n in 1..=3 {
            let insert = "INSERT INTO events (source, type, content) VALUES ('self', 'message', ?)";
            conn.execute(insert, params![format!("old {n}")]).unwrap();
        }
        drop(conn);
        world.write("inbox/events.jsonl", world.table_as_jsonl()[..2].join("\n") + "\n");
        Scene::new("migration", world, Kind::Push(1), PUSH)
    }

    pub fn pop() -> Scene {
        let world = World::with_thread();
        world.idle_consumer("bot", "");
        some_pushes(&world);
        Scene::new("pop", world, Kind::Pop(2), &["pop", "--consumer", "bot", "--last-event-id", "2"])
    }

    pub fn init() -> Scene {
        Scene::new("init", World::new(), Kind::Init, &["init", "inbox"])
    }

    pub fn new(name: &'static str, world: World, kind: Kind, args: &[&str]) -> Scene {
        let args = args.iter().map(|&arg| arg.to_owned()).collect();
        let (mut rows, mut log) = (0, None);
        if !world.path("stdin").exists() {
            world.write("stdin", "");
        }
        if world.inbox().exists() {
            fs::rename(world.inbox(), world.path("before")).unwrap();
            fs::rename(world.path("before/events.jsonl"), world.path("events.jsonl")).unwrap();
            let about = fs::metadata(world.path("events.jsonl")).unwrap();
            log = Some((about.len(), about.modified().unwrap()));
        }
        let mut scene = Scene { name, world, kind, args, notifier: "off", piped: false, rows, log };
        scene.begin();
        if scene.log.is_some() {
            rows = scene.world.query("SELECT count(*) FROM events");
        }
        scene.rows = rows;
        scene
    }

    /// Lets the push itself start the handlers.
    pub fn embedded(self) -> Scene {
        self.through("embedded")
    }

    /// Sets `THREAD_NOTIFIER`.
    pub fn through(mut self, notifier: &'static str) -> Scene {
        self.notifier = notifier;
        self
    }

    /// Feeds stdin through a pipe.
    pub fn piped(mut self, name: &'static str) -> Scene {
        (self.piped, self.name) = (true, name);
        self
    }

    /// Whether stdin is a pipe. The sizes of reads then vary, so a targeted call may not happen.
    pub fn is_piped(&self) -> bool {
        self.piped
    }

    /// Restores the initial directory.
    pub fn begin(&self) {
        let (before, inbox, kept) =
            (self.world.path("before"), self.world.inbox(), self.world.path("events.jsonl"));
        if inbox.exists() {
            let mut logs = names(&inbox);
            logs.retain(|name| name.ends_with(".jsonl"));
            // A sealed file sorts first.
            if let Some(log) = logs.first() {
                fs::rename(inbox.join(log), &kept).unwrap();
            }
            fs::remove_dir_all(&inbox).unwrap();
        }
        let Some((length, time)) = self.log else { return };
        copy_dir(&before, &inbox);
        // The JSONL log's state has its inode and mtime, so the same file is used each time. It is
        // only ever appended to or renamed; otherwise the tests fail.
        let jsonl = File::options().write(true).open(&kept).unwrap();
        jsonl.set_len(length).unwrap();
        jsonl.set_modified(time).unwrap();
        fs::rename(kept, inbox.join("events.jsonl")).unwrap();
    }

    /// Runs the command under strace, which traces `calls` and injects `faults`.
    pub fn disturbed(&self, calls: &str, faults: &[String]) -> Ended {
        self.end(self.start(calls, faults), faults)
    }

    /// Starts the command, so that the test can act while it runs.
    pub fn start(&self, calls: &str, faults: &[String]) -> Child {
        let world = &self.world;
        let mut run = world.sh("exec \"$0\" \"$@\"").env("THREAD_NOTIFIER", self.notifier);
        let file = |name: &str| File::create(world.path(name)).unwrap();
        let command = run.command();
        // Only the program itself; processes it leaves running are not traced.
        command.arg(strace().unwrap()).args(["-qq", "-y", "-s", "16", "-o"]).arg(world.path("calls"));
        command.arg("-e").arg(format!("trace={calls}"));
        for fault in faults {
            command.arg("-e").arg(format!("inject={fault}"));
        }
        command.arg(env!("CARGO_BIN_EXE_thread")).args(&self.args);
        command.stdout(file("stdout")).stderr(file("stderr"));
        let mut stdin = File::open(world.path("stdin")).unwrap();
        if self.piped {
            let (ours, mut theirs) = std::io::pipe().unwrap();
            command.stdin(ours);
            // Ends early if the reader is killed.
            std::thread::spawn(move || std::io::copy(&mut stdin, &mut theirs));
        } else {
            command.stdin(stdin);
        }
        command.spawn().unwrap()
    }

    /// Waits for the command to end.
    pub fn end(&self, mut child: Child, faults: &[String]) -> Ended {
        let world = &self.world;
        let status = child.wait_timeout(HANG).unwrap().unwrap_or_else(|| {
            panic!("{}: {faults:?} hangs: {}", self.name, world.read("calls"));
        });
        Ended {
            code: status.code(),
            killed: status.signal() == Some(9),
            stdout: world.read("stdout"),
            stderr: world.read("stderr"),
            calls: world.lines("calls").into_iter().filter(|line| name_of(line).is_some()).collect(),
        }
    }

    /// Runs the command under strace without faults.
    pub fn undisturbed(&self, calls: &str) -> Ended {
        self.begin();
        let ended = self.disturbed(calls, &[]);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{} undisturbed", self.name);
        ended
    }

    /// The calls of this group to inject faults at. Opens of the program's libraries are left out.
    /// From the middle of a long command only one call in `step` is taken: the first number is for
    /// the short form, the second for the long.
    pub fn targets(&self, calls: &str, step: (usize, usize)) -> Vec<Target> {
        let step = if long() { step.1 } else { step.0 };
        let ended = self.undisturbed(calls);
        let own_path = format!("\"{}/", self.world.root().display());
        let own = |call: &String| calls != OPENS || call.contains(&own_path);
        let all: Vec<usize> = (0..ended.calls.len()).filter(|&at| own(&ended.calls[at])).collect();
        // Always include the first and last few calls, because the guarantees depend on them most.
        let few = [8, 3, 1][usize::from(step > 10) + usize::from(step > 100)];
        let offset = std::process::id() as usize % step;
        let near = |at: usize| at < few || at + few >= all.len() || at % step == offset;
        let chosen = all.iter().enumerate().filter(|&(at, _)| near(at));
        chosen.map(|(_, &at)| Target::new(&ended.calls, at)).collect()
    }

    /// The number of events before the command.
    pub fn rows(&self) -> i64 {
        self.rows
    }

    /// The number of stored events of the disturbed push.
    pub fn stored(&self) -> i64 {
        self.world.query("SELECT count(*) FROM events WHERE substr(content, 1, 6) = 'victim'")
    }

    /// Checks what must hold after any fault, starting with a push that succeeds without warnings:
    /// the database is sound, earlier events are still there, batches are whole or absent, and the
    /// JSONL log matches the table. `how` is part of the failure messages.
    pub fn repair_and_check(&self, how: &str) {
        let world = &self.world;
        let (stdout, stderr) =
            world.off(["push", "--source", "self", "--type", "record", "--content", "next"]).ends_with(0);
        assert_eq!(stderr, "", "{how}: the next push complains");
        let all = world.query("SELECT count(*) FROM events");
        let conn = world.db();
        assert_sound(&conn, how);
        let stored = self.stored();
        match self.kind {
            Kind::Push(count) => assert!(stored == 0 || stored == count, "{how}: {stored} of {count} stored"),
            _ => assert_eq!(stored, 0),
        }
        assert_eq!(all, self.rows + stored + 1, "{how}: events were lost or doubled");
        // Ids are used once, in order.
        assert_eq!(stdout.trim().parse::<i64>().unwrap(), all, "{how}");
        if world.jsonl() != world.table_as_jsonl() {
            eprintln!("{how}:");
            world.assert_log_is_exact();
        }
        for name in names(&world.inbox()) {
            let known = ["events.db", "events.db-wal", "events.db-shm", "events.jsonl", "run", "logs"];
            let sealed = name.starts_with("events-") && name.ends_with(".jsonl");
            assert!(known.contains(&name.as_str()) || sealed, "{how}: {name} was left behind");
        }
    }
}

/// Fails unless the database is sound.
pub fn assert_sound(conn: &Connection, how: &str) {
    let answer: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(answer, "ok", "{how}");
}

pub fn quiet_push(world: &World, content: &str) {
    world.off(["push", "--source", "self", "--type", "message", "--content", content]).quiet();
}

fn some_pushes(world: &World) {
    for n in 0..3 {
        quiet_push(world, &format!("before {n}"));
    }
}

fn batch(lines: usize, length: usize) -> String {
    let content = "x".repeat(length);
    let line =
        |n| format!("{{\"source\":\"self\",\"type\":\"record\",\"content\":\"victim {n} {content}\"}}\n");
    (0..lines).map(line).collect()
}

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}
