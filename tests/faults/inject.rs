//! What `kill` and `disk` share: commands to disturb, each with the directory it starts from, and
//! `strace` to disturb them at one certain system call.
//!
//! A scene is brought back to its beginning before each fault, so the calls of a command are the
//! same every time and can be struck one after the other.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use rusqlite::{Connection, params};
use wait_timeout::ChildExt;

use crate::harness::{World, names};
use crate::{long, skipped};

/// Kinds of calls that change the disk. A question mark: not every processor has that call.
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

/// Longer than any command may take, above the minute that one waits for a lock.
const HANG: Duration = Duration::from_secs(110);

/// Where strace is, if it is there and may trace. Says loudly when not.
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
        skipped("strace is not there or may not trace; no fault was injected");
    }
    found.as_deref()
}

/// What a command is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Store this many events whose content begins with `victim`.
    Push(i64),
    /// Move the cursor of `bot` to this id and print what follows.
    Pop(i64),
    Init,
}

/// A command, and the directory as it is before.
pub struct Scene {
    pub name: &'static str,
    pub world: World,
    pub kind: Kind,
    args: Vec<String>,
    notifier: &'static str,
    /// Whether stdin is a pipe rather than a file.
    piped: bool,
    /// Events before, and the length and time of `events.jsonl`.
    rows: i64,
    log: Option<(u64, SystemTime)>,
}

/// How a disturbed command ended.
pub struct Ended {
    pub code: Option<i32>,
    pub killed: bool,
    pub stdout: String,
    pub stderr: String,
    /// The calls, one a line, with the files they were for.
    pub calls: Vec<String>,
}

impl Ended {
    /// The calls that were made to fail.
    pub fn failed(&self) -> Vec<&String> {
        self.calls.iter().filter(|call| call.contains("(INJECTED)")).collect()
    }
}

/// The call to strike.
pub struct Target {
    /// The call as it was when nothing was wrong, with the file it was for.
    pub call: String,
    /// strace counts each system call by itself: the number of this one, and where each of its
    /// kind would have stood next.
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

    /// Something else happens at this call: in strace's words, without `when`.
    pub fn strike(&self, what: &str) -> Vec<String> {
        vec![format!("{}:{what}:when={}", self.name, self.number)]
    }

    /// And something at this call and all later ones of these names.
    pub fn strike_from_now_on(&self, what: &str, names: &[&str]) -> Vec<String> {
        let struck = self.next.iter().filter(|(name, _)| names.contains(&name.as_str()));
        struck.map(|(name, number)| format!("{name}:{what}:when={number}+")).collect()
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

/// The system call that a line of strace tells of.
fn name_of(line: &str) -> Option<&str> {
    let (name, _) = line.split_once('(')?;
    name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_').then_some(name)
}

/// The tables as the earlier implementation makes them.
pub const EARLIER_SCHEMA: &str = "\
    CREATE TABLE events (id INTEGER PRIMARY KEY AUTOINCREMENT, \
        created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ','now')), \
        source TEXT NOT NULL, type TEXT NOT NULL, subtype TEXT, content TEXT NOT NULL); \
    CREATE TABLE subscriptions (consumer_id TEXT NOT NULL PRIMARY KEY, handler_cmd TEXT NOT NULL, filter TEXT); \
    CREATE TABLE consumer_progress (consumer_id TEXT NOT NULL PRIMARY KEY, \
        last_acked_id INTEGER NOT NULL DEFAULT 0, updated_at TEXT NOT NULL);";

const PUSH: &[&str] = &["push", "--source", "self", "--type", "message", "--content", "victim"];

impl Scene {
    /// A push into a thread that is in use: its write-ahead log is there.
    pub fn push() -> Scene {
        let world = World::with_thread();
        some_pushes(&world);
        Scene::new("push", world, Kind::Push(1), PUSH)
    }

    /// The first push after `init`.
    pub fn first_push() -> Scene {
        Scene::new("first push", World::with_thread(), Kind::Push(1), PUSH)
    }

    /// A push after which the write-ahead log is over its limit and is checkpointed.
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

    /// A batch that is too large for the page cache: much of it is in the WAL before the commit.
    pub fn large_batch() -> Scene {
        let world = World::with_thread();
        some_pushes(&world);
        world.write("stdin", batch(230, 80_000));
        Scene::new("large batch", world, Kind::Push(230), &["push", "--batch"])
    }

    /// A push that begins a new `events.jsonl`.
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

    /// Consumers are woken by the push itself.
    pub fn embedded(self) -> Scene {
        self.through("embedded")
    }

    /// What `THREAD_NOTIFIER` says.
    pub fn through(mut self, notifier: &'static str) -> Scene {
        self.notifier = notifier;
        self
    }

    /// What stdin holds comes through a pipe.
    pub fn piped(mut self, name: &'static str) -> Scene {
        (self.piped, self.name) = (true, name);
        self
    }

    /// A pipe is read in pieces that are not the same every time, so a call may not come.
    pub fn is_piped(&self) -> bool {
        self.piped
    }

    /// Puts everything back.
    pub fn begin(&self) {
        let (before, inbox, kept) =
            (self.world.path("before"), self.world.inbox(), self.world.path("events.jsonl"));
        if inbox.exists() {
            let mut logs = names(&inbox);
            logs.retain(|name| name.ends_with(".jsonl"));
            // A sealed one sorts first.
            if let Some(log) = logs.first() {
                fs::rename(inbox.join(log), &kept).unwrap();
            }
            fs::remove_dir_all(&inbox).unwrap();
        }
        let Some((length, time)) = self.log else { return };
        copy_dir(&before, &inbox);
        // The JSONL log is known by its inode and time, so it is the same file each time. It is only
        // ever appended to or renamed, or the tests of it fail.
        let jsonl = File::options().write(true).open(&kept).unwrap();
        jsonl.set_len(length).unwrap();
        jsonl.set_modified(time).unwrap();
        fs::rename(kept, inbox.join("events.jsonl")).unwrap();
    }

    /// Runs the command under strace, which watches `calls` and injects `faults`.
    pub fn disturbed(&self, calls: &str, faults: &[String]) -> Ended {
        self.end(self.start(calls, faults), faults)
    }

    /// Starts it, for something else to happen meanwhile.
    pub fn start(&self, calls: &str, faults: &[String]) -> Child {
        let world = &self.world;
        let mut run = world.sh("exec \"$0\" \"$@\"").env("THREAD_NOTIFIER", self.notifier);
        let file = |name: &str| File::create(world.path(name)).unwrap();
        let command = run.command();
        // The program itself; what it leaves running is not followed.
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
            // Ends early where whoever reads is killed.
            std::thread::spawn(move || std::io::copy(&mut stdin, &mut theirs));
        } else {
            command.stdin(stdin);
        }
        command.spawn().unwrap()
    }

    /// Waits for its end.
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

    /// Runs the command under a strace that only watches.
    pub fn undisturbed(&self, calls: &str) -> Ended {
        self.begin();
        let ended = self.disturbed(calls, &[]);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{} undisturbed", self.name);
        ended
    }

    /// Which of its calls of this kind to strike. Opening the program's libraries is none of its
    /// own. Of the many in the middle of a long command one in so many will do: a number for the
    /// short form and one for the long.
    pub fn targets(&self, calls: &str, step: (usize, usize)) -> Vec<Target> {
        let step = if long() { step.1 } else { step.0 };
        let ended = self.undisturbed(calls);
        let own_path = format!("\"{}/", self.world.root().display());
        let own = |call: &String| calls != OPENS || call.contains(&own_path);
        let all: Vec<usize> = (0..ended.calls.len()).filter(|&at| own(&ended.calls[at])).collect();
        // Always the first and last few: beginnings and ends are where the promises are made.
        let few = [8, 3, 1][usize::from(step > 10) + usize::from(step > 100)];
        let offset = std::process::id() as usize % step;
        let near = |at: usize| at < few || at + few >= all.len() || at % step == offset;
        let chosen = all.iter().enumerate().filter(|&(at, _)| near(at));
        chosen.map(|(_, &at)| Target::new(&ended.calls, at)).collect()
    }

    /// How many events there were before.
    pub fn rows(&self) -> i64 {
        self.rows
    }

    /// How many of the events of the disturbed push are stored.
    pub fn stored(&self) -> i64 {
        self.world.query("SELECT count(*) FROM events WHERE substr(content, 1, 6) = 'victim'")
    }

    /// Checks what must hold after any fault, with a push that finds nothing wrong: the database
    /// is sound, what was there before is there, batches are whole or absent, and the JSONL log is
    /// the table. `how` is said when it does not hold.
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
        // Ids are given once, in order.
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
