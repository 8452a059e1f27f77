//! What every test stands on: a private folder with its own `PATH`, the real binary, and ways to
//! wait for a condition. Set-up lives here; facts live in the tests.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use serde_json::Value;
use tempfile::TempDir;

/// How long anything may take before a test gives up on it. Generous: machines are busy.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The programs a handler may use. Nothing else is on `PATH`, a notifier least of all.
const TOOLS: &[&str] = &[
    "awk", "basename", "bash", "cat", "chmod", "cp", "cut", "date", "dd", "echo", "env", "false", "fish",
    "flock", "grep", "head", "kill", "ln", "ls", "mkdir", "mkfifo", "mktemp", "mv", "nohup", "paste",
    "printf", "ps", "readlink", "rm", "rmdir", "script", "sed", "seq", "setpriv", "setsid", "sh", "sleep",
    "sort", "stat", "stty", "tail", "tee", "test", "tmux", "touch", "tr", "true", "truncate", "uniq", "wc",
    "xargs", "zsh",
];

/// A folder of its own with a `bin`, and one thread called `inbox` (made by [`World::with_thread`]).
pub struct World {
    root: TempDir,
}

impl World {
    /// An empty world.
    pub fn new() -> World {
        World::named("world")
    }

    /// An empty world whose folder has that name, for paths with awkward characters.
    pub fn named(name: &str) -> World {
        World::named_in(&std::env::temp_dir(), name)
    }

    /// An empty world below that folder.
    pub fn named_in(place: &Path, name: &str) -> World {
        let root = tempfile::Builder::new().prefix(name).tempdir_in(place).unwrap();
        let world = World { root };
        fs::create_dir(world.bin()).unwrap();
        symlink(env!("CARGO_BIN_EXE_thread"), world.bin().join("thread")).unwrap();
        for tool in TOOLS {
            let found = ["/bin", "/usr/bin", "/usr/local/bin"].map(|dir| Path::new(dir).join(tool));
            if let Some(path) = found.iter().find(|path| path.exists()) {
                symlink(path, world.bin().join(tool)).unwrap();
            }
        }
        world
    }

    /// A world with a thread in it.
    pub fn with_thread() -> World {
        let world = World::new();
        world.thread(["init", "inbox"]).ok();
        world
    }

    pub fn root(&self) -> &Path {
        self.root.path()
    }

    pub fn bin(&self) -> PathBuf {
        self.root().join("bin")
    }

    /// Puts one more program on `PATH`. Where the machine has none, says so and returns false.
    pub fn tool(&self, name: &str) -> bool {
        let found = ["/bin", "/usr/bin", "/usr/local/bin"].map(|dir| Path::new(dir).join(name));
        let Some(path) = found.iter().find(|path| path.exists()) else {
            skipped(format_args!("there is no {name}"));
            return false;
        };
        symlink(path, self.bin().join(name)).unwrap();
        true
    }

    /// Has a consumer `agent` run the handler that `thread guide` prints for a language, by the commands
    /// at its top. False, and a word about it, where the machine lacks the language.
    pub fn agent_of_the_guide(&self, language: &str) -> bool {
        let needed = match language {
            "bash" => "jq",
            "python" => "python3",
            other => other,
        };
        if !self.tool(needed) {
            return false;
        }
        let page = self.thread(["guide", "--handler", language]).quiet();
        let lines = page.lines().map(|line| line.trim_start_matches(['#', '/', ' ']));
        let commands: Vec<&str> = lines.skip_while(|line| !line.starts_with("thread ")).take(3).collect();
        let script = commands.join("\n");
        assert_eq!(self.sh(&script).quiet(), "agent\n", "{script}");
        true
    }

    /// The thread's directory.
    pub fn inbox(&self) -> PathBuf {
        self.root().join("inbox")
    }

    /// A file in the world's folder.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.root().join(name)
    }

    /// Its text; empty when it is not there.
    pub fn read(&self, name: impl AsRef<Path>) -> String {
        fs::read(self.path(name))
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    pub fn lines(&self, name: impl AsRef<Path>) -> Vec<String> {
        self.read(name).lines().map(str::to_owned).collect()
    }

    pub fn write(&self, name: impl AsRef<Path>, text: impl AsRef<[u8]>) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Makes an executable shell script.
    pub fn script(&self, name: impl AsRef<Path>, text: &str) -> PathBuf {
        let path = self.path(name);
        let mut write = self.sh("cat >\"$0\" && chmod 755 \"$0\"").arg(&path);
        // By another process: a child that a neighbouring test forks while the file is open for
        // writing here would hold it open, and running it would fail with "text file busy".
        write.stdin = format!("#!/bin/sh\n{text}\n").into_bytes();
        write.quiet();
        path
    }

    /// The binary with these arguments, in the world's folder, with `THREAD_DIR` naming the inbox.
    pub fn thread<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Run {
        let mut run = self.run(env!("CARGO_BIN_EXE_thread"));
        run.command.args(args).env("THREAD_DIR", self.inbox());
        run
    }

    /// A shell command in the world's folder, with its `PATH`.
    pub fn sh(&self, script: &str) -> Run {
        let mut run = self.run("/bin/sh");
        run.command.arg("-c").arg(script).env("THREAD_DIR", self.inbox());
        run
    }

    /// A shell command in a terminal of that many columns, which is stdout and stderr to it. None,
    /// and a word about it, where the system has no `script`.
    pub fn terminal(&self, columns: u32, command: &str) -> Option<Run> {
        if !self.bin().join("script").exists() || !self.bin().join("stty").exists() {
            skipped("a terminal needs `script` and `stty`");
            return None;
        }
        // No line ends of a terminal, so that output is what the command wrote.
        let command = format!("stty rows 24 cols {columns} -onlcr; {command}");
        let run = self.sh("exec script -qe -E never -c \"$0\" /dev/null").arg(command);
        Some(run.env("TERM", "xterm").env("SHELL", "/bin/sh"))
    }

    fn run(&self, program: &str) -> Run {
        let mut command = Command::new(program);
        command.env_clear().env("PATH", self.bin()).env("HOME", self.root()).env("TMPDIR", self.root());
        command.env("LC_ALL", "C.UTF-8").current_dir(self.root());
        Run { command, stdin: Vec::new() }
    }

    /// Pushes one message from `self` and returns its id.
    pub fn push(&self, content: &str) -> i64 {
        self.thread(["push", "--source", "self", "--type", "message", "--content", content])
            .ok()
            .trim()
            .parse()
            .unwrap()
    }

    /// The thread's database, opened beside the binary's back.
    pub fn db(&self) -> Connection {
        let conn = Connection::open(self.inbox().join("events.db")).unwrap();
        conn.busy_timeout(PATIENCE).unwrap();
        conn
    }

    /// One number from the database.
    pub fn query(&self, sql: &str) -> i64 {
        self.db().query_row(sql, [], |row| row.get(0)).unwrap()
    }

    /// `info --json` of that consumer.
    pub fn consumer(&self, name: &str) -> Value {
        let info: Value = serde_json::from_str(&self.thread(["info", "--json"]).ok()).unwrap();
        let all = info["subscriptions"].as_array().unwrap().iter();
        all.clone()
            .find(|s| s["consumer_id"] == name)
            .unwrap_or_else(|| panic!("no {name} in {info}"))
            .clone()
    }

    /// All lines of the JSONL log: the sealed files by name, then the current one.
    pub fn jsonl(&self) -> Vec<String> {
        let mut rotated: Vec<PathBuf> = fs::read_dir(self.inbox())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("events-"))
            .collect();
        rotated.sort();
        rotated.push(self.inbox().join("events.jsonl"));
        let text: String = rotated.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
        assert!(text.is_empty() || text.ends_with('\n'), "the log ends in a torn line");
        text.lines().map(str::to_owned).collect()
    }

    /// What the log must be: the table's rows, made into JSON independently of the binary.
    pub fn table_as_jsonl(&self) -> Vec<String> {
        let conn = self.db();
        // An older directory that nothing has opened yet has no such column.
        let metadata = if conn.prepare("SELECT metadata FROM events").is_ok() { "metadata" } else { "NULL" };
        let sql = format!(
            "SELECT id, created_at, source, type, subtype, content, {metadata} FROM events ORDER BY id"
        );
        let mut statement = conn.prepare(&sql).unwrap();
        let rows = statement.query_map([], |row| {
            let text = |column| row.get::<_, Option<String>>(column);
            let json = |text: Option<String>| serde_json::to_string(&text).unwrap();
            let metadata = text(6)?.map_or(String::new(), |object| format!(",\"metadata\":{object}"));
            Ok(format!(
                "{{\"id\":{},\"created_at\":{},\"source\":{},\"type\":{},\"subtype\":{},\"content\":{}{metadata}}}",
                row.get::<_, i64>(0)?,
                json(text(1)?),
                json(text(2)?),
                json(text(3)?),
                json(text(4)?),
                json(text(5)?)
            ))
        });
        rows.unwrap().map(Result::unwrap).collect()
    }

    /// Fails unless the log is exactly the table.
    pub fn assert_log_is_exact(&self) {
        let (copy, table) = (self.jsonl(), self.table_as_jsonl());
        if copy != table {
            let at = copy.iter().zip(&table).position(|(a, b)| a != b).unwrap_or(copy.len().min(table.len()));
            panic!(
                "the log ({} lines) is not the table ({} rows); first difference at line {}:\nlog:   {:?}\ntable: {:?}",
                copy.len(),
                table.len(),
                at + 1,
                copy.get(at),
                table.get(at)
            );
        }
    }

    /// The lines of `thread.log`, without their times.
    pub fn log(&self) -> Vec<String> {
        let text = self.read("inbox/logs/thread.log");
        text.lines().map(|line| line.split_once("] ").map_or(line, |(_, rest)| rest).to_owned()).collect()
    }

    /// Processes that live in this world: their command line, working directory or environment
    /// names its folder.
    pub fn processes(&self) -> Vec<u32> {
        let needle = self.root().to_string_lossy().into_owned();
        let own = std::process::id();
        let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
        pids.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok())
            .filter(|&pid| pid != own && lives_in(pid, &needle))
            .collect()
    }

    /// Waits until nothing that was started here runs any more, or holds a lock any more.
    pub fn wait_until_quiet(&self) {
        wait_until("all processes to end", || self.processes().is_empty() && !one_is_ending());
    }

    /// Like [`World::thread`], but nobody is woken.
    pub fn off<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Run {
        self.thread(args).env("THREAD_NOTIFIER", "off")
    }

    /// Subscribes a consumer that is never started: the test itself reads for it.
    pub fn idle_consumer(&self, name: &str, filter: &str) {
        self.off(["subscribe", "--consumer", name, "--handler", "true", "--filter", filter]).quiet();
    }

    /// Subscribes a consumer with these further options.
    #[track_caller]
    pub fn subscribe(&self, consumer: &str, handler: &str, options: &[&str]) {
        let base = ["subscribe", "--consumer", consumer, "--handler", handler];
        self.thread(base.iter().chain(options)).ok();
    }

    /// The one word `info` has for a consumer.
    pub fn state(&self, consumer: &str) -> String {
        self.consumer(consumer)["state"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    pub fn wait_for_state(&self, consumer: &str, state: &str) {
        wait_until(&format!("{consumer} to be {state}"), || self.state(consumer) == state);
    }

    /// Waits until a file is there, which a handler makes to say how far it is.
    #[track_caller]
    pub fn wait_for_file(&self, name: &str) {
        wait_until(&format!("the file {name}"), || self.path(name).exists());
    }

    /// A field of what is recorded about a consumer's runs, by its path in the JSON form of
    /// `model::run::RunState`: `$.supervisor.pid`. Null if there is none.
    pub fn run_state(&self, consumer: &str, field: &str) -> Value {
        let sql = "SELECT coalesce(run, '{}') -> ?2 FROM consumers WHERE consumer_id = ?1";
        let json: Option<String> =
            self.db().query_row(sql, [consumer, field], |row| row.get(0)).unwrap_or_default();
        json.map_or(Value::Null, |json| serde_json::from_str(&json).unwrap())
    }

    /// Overwrites such a field, of which no process hears.
    pub fn set_run_state(&self, consumer: &str, field: &str, value: impl Into<Value>) {
        let sql =
            "UPDATE consumers SET run = json_set(coalesce(run, '{}'), ?2, json(?3)) WHERE consumer_id = ?1";
        let changed = self.db().execute(sql, [consumer, field, &value.into().to_string()]).unwrap();
        assert_eq!(changed, 1, "no consumer {consumer}");
    }

    /// Kills the recorded supervisor of a consumer, as a crash would, and waits until it is gone.
    #[track_caller]
    pub fn kill_supervisor(&self, consumer: &str) {
        let pid = || self.run_state(consumer, "$.supervisor.pid").as_u64().unwrap_or(0) as u32;
        // Between a run and the wait after it there is none for a moment.
        wait_until(&format!("{consumer} to have a supervisor"), || pid() != 0);
        kill_and_wait(pid());
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Whatever a test left running ends with it, the failed ones' too.
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let left = self.processes();
            if left.is_empty() || Instant::now() > end {
                return;
            }
            for pid in left {
                if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
                    rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn lives_in(pid: u32, needle: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    if matches!(state, None | Some('Z' | 'X')) {
        return false;
    }
    let holds = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).contains(needle);
    fs::read(format!("/proc/{pid}/environ")).is_ok_and(holds)
        || fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(holds)
        || fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.to_string_lossy().contains(needle))
}

/// Whether a process of this program, in whatever world, is just being taken down. It has given back
/// what tells its world, but maybe not its locks: a killed supervisor can take tens of milliseconds.
fn one_is_ending() -> bool {
    const EXITING: u32 = 4;
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    pids.filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok()).any(|entry| {
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let Some((name, rest)) = stat.rsplit_once(") ") else { return false };
        let fields: Vec<&str> = rest.split(' ').collect();
        let flags = fields.get(6).and_then(|flags| flags.parse::<u32>().ok()).unwrap_or(0);
        // A supervisor was started by way of `/proc/self/exe`.
        let ours = name.ends_with("(exe") || name.ends_with("(thread");
        ours && flags & EXITING != 0 && !matches!(fields[0], "Z" | "X")
    })
}

/// A command about to be run.
pub struct Run {
    command: Command,
    stdin: Vec<u8>,
}

impl Run {
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Run {
        self.command.arg(arg);
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Run {
        self.command.env(name, value);
        self
    }

    pub fn env_remove(mut self, name: &str) -> Run {
        self.command.env_remove(name);
        self
    }

    pub fn dir(mut self, dir: impl AsRef<Path>) -> Run {
        self.command.current_dir(dir);
        self
    }

    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Run {
        self.stdin = bytes.into();
        self
    }

    /// The command itself, for what this builder does not offer.
    pub fn command(&mut self) -> &mut Command {
        &mut self.command
    }

    /// Runs it to its end.
    pub fn output(mut self) -> Output {
        let mut child = self.spawn_piped();
        let mut pipe = child.stdin.take().unwrap();
        let stdin = std::mem::take(&mut self.stdin);
        // Beside the reading, or a full pipe would stop both.
        let writer = std::thread::spawn(move || pipe.write_all(&stdin).ok());
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        output
    }

    fn spawn_piped(&mut self) -> Child {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.command.spawn().unwrap()
    }

    /// Starts it and leaves it running, with stdin and stdout as pipes.
    pub fn spawn(mut self) -> Child {
        self.spawn_piped()
    }

    /// Runs it, expects exit 0, and answers with stdout.
    #[track_caller]
    pub fn ok(self) -> String {
        let (stdout, stderr) = self.ends_with(0);
        assert!(!stderr.contains("Error"), "{stderr}");
        stdout
    }

    /// Runs it, expects exit 0 and nothing on stderr, and answers with stdout.
    #[track_caller]
    pub fn quiet(self) -> String {
        let (stdout, stderr) = self.ends_with(0);
        assert_eq!(stderr, "");
        stdout
    }

    /// Runs it, expects exit 0 with a warning, and answers with the warning.
    #[track_caller]
    pub fn warns(self) -> String {
        let (_, stderr) = self.ends_with(0);
        assert!(stderr.starts_with("Warning: "), "no warning in {stderr:?}");
        stderr
    }

    /// Runs it, expects this exit code, nothing on stdout, and one line of the agreed form on
    /// stderr, which is the answer.
    #[track_caller]
    pub fn fails(self, code: i32) -> String {
        let (stdout, stderr) = self.ends_with(code);
        assert_eq!(stdout, "", "a failure prints no data");
        let line = stderr.strip_suffix('\n').unwrap_or_else(|| panic!("no whole line in {stderr:?}"));
        assert!(!line.contains('\n'), "more than one line: {stderr}");
        assert!(line.starts_with("Error: ") && line.contains(" - "), "not of the form: {stderr}");
        line.to_owned()
    }

    /// Runs it and expects this exit code; answers with stdout and stderr.
    #[track_caller]
    pub fn ends_with(self, code: i32) -> (String, String) {
        let shown = format!("{:?}", self.command);
        let output = self.output();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(
            output.status.code(),
            Some(code),
            "{shown}\n--- {}\n--- stdout\n{stdout}\n--- stderr\n{stderr}",
            output.status
        );
        (stdout, stderr)
    }
}

/// Says aloud why a test is left out.
pub fn skipped(why: impl std::fmt::Display) {
    // Past the test runner, which keeps what a test that passes prints to itself.
    drop(writeln!(std::io::stderr(), "SKIPPED: {why}"));
}

/// Waits for a condition; fails with its name when it does not come.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process runs; a zombie does not.
pub fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

/// Kills a process with -9 and waits until it runs no more.
pub fn kill_and_wait(pid: u32) {
    let target = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(target, rustix::process::Signal::KILL).ok();
    wait_until("a killed process to be gone", || !is_running(pid));
}

/// The ids of NDJSON lines.
pub fn ids(ndjson: &str) -> Vec<i64> {
    ndjson.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].as_i64().unwrap()).collect()
}

/// Puts a handler `take` on `PATH`. It pops until nothing is left, acknowledges what it popped,
/// and notes the ids in `seen.<consumer>`.
pub fn take_all_script(world: &World) {
    world.script(
        "bin/take",
        "last=$THREAD_LAST_ACKED_ID\n\
         while events=$(thread pop --consumer \"$THREAD_CONSUMER\" --last-event-id \"$last\") && [ -n \"$events\" ]; do\n\
             ids=$(printf '%s\\n' \"$events\" | sed 's/^{\"id\":\\([0-9]*\\),.*/\\1/')\n\
             printf '%s\\n' \"$ids\" >>\"seen.$THREAD_CONSUMER\"\n\
             last=${ids##*[!0-9]}\n\
         done",
    );
}

/// Subscribes a consumer that takes everything; see [`take_all_script`].
pub fn take_all(world: &World, consumer: &str) {
    take_all_script(world);
    world.thread(["subscribe", "--handler", "take", "--consumer", consumer]).quiet();
}

/// Numbers that differ from run to run. Shown when a test fails.
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new() -> Dice {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        Dice(now.as_nanos() as u64 | 1)
    }

    /// A number from 0 to `most`.
    pub fn up_to(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % (most + 1)
    }
}

/// A copy of the binary at `path`. Made by another process, for the reason told at
/// [`World::script`].
pub fn copy_program(world: &World, path: &Path) {
    world.sh("exec cp \"$0\" \"$1\"").arg(env!("CARGO_BIN_EXE_thread")).arg(path).quiet();
}

/// Everything below a directory: each entry's path, mode, and a file's bytes.
pub fn snapshot(dir: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let about = fs::symlink_metadata(&path).unwrap();
        if about.is_dir() {
            all.extend(snapshot(&path));
        }
        let bytes = if about.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        all.insert(path, (about.permissions().mode(), bytes));
    }
    all
}

/// The names in a directory, sorted.
pub fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
