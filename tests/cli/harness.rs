//! Shared test harness: a private folder with its own `PATH`, the real binary, and helpers that
//! wait for a condition. Set-up lives here; expected values live in the tests.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use serde_json::Value;
use tempfile::TempDir;
pub use thread_testkit::skipped;

#[allow(dead_code, reason = "a part of it is for the tests of thread-postgres")]
#[path = "../../crates/postgres/tests/postgres/server.rs"]
mod server;

use self::server::server;

/// How long a test waits for anything before it fails. Generous, because machines may be busy.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// How long a wait for something in a world goes on when no process is left there that could bring it about.
const HOPELESS: Duration = Duration::from_secs(10);

/// How long a command may run before all processes of its world are killed, so that no test hangs.
fn longest_run() -> Duration {
    let long = std::env::var("THREAD_FAULTS").is_ok_and(|form| form == "long");
    if long { PATIENCE * 20 } else { PATIENCE * 3 }
}

/// The programs a handler may use. Nothing else is on `PATH`, in particular no notifier.
const TOOLS: &[&str] = &[
    "awk", "basename", "bash", "cat", "chmod", "cp", "cut", "date", "dd", "echo", "env", "false", "fish",
    "flock", "grep", "head", "kill", "ln", "ls", "mkdir", "mkfifo", "mktemp", "mv", "nohup", "paste",
    "printf", "ps", "readlink", "rm", "rmdir", "script", "sed", "seq", "setpriv", "setsid", "sh", "sleep",
    "sort", "stat", "stty", "tail", "tee", "test", "tmux", "touch", "tr", "true", "truncate", "uniq", "wc",
    "xargs", "zsh",
];

/// A temporary folder with a `bin`, and room for one thread called `inbox` (created by
/// [`World::with_thread`]).
pub struct World {
    root: TempDir,
    /// Where the thread is, if it is not in the directory `inbox`.
    location: Option<String>,
}

impl World {
    /// An empty world.
    pub fn new() -> World {
        World::named("world")
    }

    /// An empty world whose folder name starts with `name`, for paths with awkward characters.
    pub fn named(name: &str) -> World {
        World::named_in(&std::env::temp_dir(), name)
    }

    /// An empty world in the folder `location`.
    pub fn named_in(location: &Path, name: &str) -> World {
        let root = tempfile::Builder::new().prefix(name).tempdir_in(location).unwrap();
        let world = World { root, location: None };
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

    /// A world that contains a thread. With `THREAD_TEST_STORE=postgres` it is in PostgreSQL, for the tests
    /// that `tests/cli/on_postgres.txt` lists: those that are not about files and start no handlers.
    pub fn with_thread() -> World {
        let mut world = World::new();
        if std::env::var("THREAD_TEST_STORE").is_ok_and(|store| store == "postgres") {
            let server = server().expect("PostgreSQL is installed");
            thread_testkit::program("thread-postgres");
            world.location = Some(server.location());
        }
        let location = world.location.clone().unwrap_or_else(|| "inbox".to_owned());
        world.thread(["init", &location]).ok();
        world
    }

    /// What `THREAD_DIR` is set to.
    fn location(&self) -> OsString {
        self.location.clone().map_or_else(|| self.inbox().into(), OsString::from)
    }

    pub fn root(&self) -> &Path {
        self.root.path()
    }

    pub fn bin(&self) -> PathBuf {
        self.root().join("bin")
    }

    /// Links one more program into `PATH`. Prints a skip notice and returns false if the machine
    /// lacks it.
    pub fn tool(&self, name: &str) -> bool {
        let found = ["/bin", "/usr/bin", "/usr/local/bin"].map(|dir| Path::new(dir).join(name));
        let Some(path) = found.iter().find(|path| path.exists()) else {
            skipped(name);
            return false;
        };
        symlink(path, self.bin().join(name)).unwrap();
        true
    }

    /// Subscribes a consumer `agent` with the handler that `thread guide` prints for `language`, by
    /// running the commands at the top of that page. Prints a skip notice and returns false if the
    /// machine lacks the language.
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

    /// The path of a file in the world's folder.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.root().join(name)
    }

    /// The text of a file in the world's folder; empty if it does not exist.
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

    /// Creates an executable shell script.
    pub fn script(&self, name: impl AsRef<Path>, text: &str) -> PathBuf {
        let path = self.path(name);
        let mut write = self.sh("cat >\"$0\" && chmod 755 \"$0\"").arg(&path);
        // Written by another process: a child that a test in another thread forks while this
        // process has the file open for writing would keep it open, and running it would fail with
        // "text file busy".
        write.stdin = format!("#!/bin/sh\n{text}\n").into_bytes();
        write.quiet();
        path
    }

    /// The binary with these arguments, in the world's folder, with `THREAD_DIR` set to the inbox.
    pub fn thread<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Run {
        let mut run = self.run(env!("CARGO_BIN_EXE_thread"));
        run.command.args(args).env("THREAD_DIR", self.location());
        run
    }

    /// A shell command in the world's folder, with the world's `PATH`.
    pub fn sh(&self, script: &str) -> Run {
        let mut run = self.run("/bin/sh");
        run.command.arg("-c").arg(script).env("THREAD_DIR", self.location());
        run
    }

    /// A shell command whose stdout and stderr are a terminal with this many columns. Prints a skip
    /// notice and returns `None` if the system has no `script` or `stty`.
    pub fn terminal(&self, columns: u32, command: &str) -> Option<Run> {
        if !self.bin().join("script").exists() || !self.bin().join("stty").exists() {
            skipped("script and stty");
            return None;
        }
        // No CR before LF, so that the output is exactly what the command wrote.
        let command = format!("stty rows 24 cols {columns} -onlcr; {command}");
        let run = self.sh("exec script -qe -E never -c \"$0\" /dev/null").arg(command);
        Some(run.env("TERM", "xterm").env("SHELL", "/bin/sh"))
    }

    fn run(&self, program: &str) -> Run {
        let mut command = Command::new(program);
        command.env_clear().env("PATH", self.bin()).env("HOME", self.root()).env("TMPDIR", self.root());
        command.env("LC_ALL", "C.UTF-8").current_dir(self.root());
        reset_signals(&mut command);
        Run { command, stdin: Vec::new(), root: self.root().to_string_lossy().into_owned() }
    }

    /// Pushes one message from `self` and returns its id.
    pub fn push(&self, content: &str) -> i64 {
        self.thread(["push", "--source", "self", "--type", "message", "--content", content])
            .ok()
            .trim()
            .parse()
            .unwrap()
    }

    /// The thread's database, opened directly and not through the binary.
    pub fn db(&self) -> Connection {
        let conn = Connection::open(self.inbox().join("events.db")).unwrap();
        conn.busy_timeout(PATIENCE).unwrap();
        conn
    }

    /// One number from the database.
    pub fn query(&self, sql: &str) -> i64 {
        if let Some(location) = &self.location {
            // Its schema has no other thread.
            let schema = location.split_once("schema=").and_then(|(_, rest)| rest.split_once('#')).unwrap().0;
            let sql = sql.replace("consumer_progress", "cursors").replace("subscriptions", "consumers");
            return server().unwrap().psql(&format!("SET search_path = {schema}; {sql}")).parse().unwrap();
        }
        self.db().query_row(sql, [], |row| row.get(0)).unwrap()
    }

    /// The entry of one consumer in `info --json`.
    pub fn consumer(&self, name: &str) -> Value {
        let info: Value = serde_json::from_str(&self.thread(["info", "--json"]).ok()).unwrap();
        let all = info["subscriptions"].as_array().unwrap().iter();
        all.clone()
            .find(|s| s["consumer_id"] == name)
            .unwrap_or_else(|| panic!("no {name} in {info}"))
            .clone()
    }

    /// All lines of the JSONL log: the sealed files by name, then the current one. Elsewhere, the events.
    pub fn jsonl(&self) -> Vec<String> {
        if self.location.is_some() {
            return self.table_as_jsonl();
        }
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

    /// The expected JSONL log: the table's rows, converted to JSON independently of the binary.
    pub fn table_as_jsonl(&self) -> Vec<String> {
        if self.location.is_some() {
            // Nothing else there prints all of it.
            let all = self.thread(["peek", "--last-event-id", "0", "--limit", "1000000"]).ok();
            return all.lines().map(str::to_owned).collect();
        }
        let conn = self.db();
        // The earlier implementation's schema has no such column until a command upgrades it.
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

    /// Fails unless the log matches the table exactly.
    pub fn assert_log_is_exact(&self) {
        if self.location.is_some() {
            return;
        }
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

    /// The lines of `thread.log` without their timestamps.
    pub fn log(&self) -> Vec<String> {
        let text = self.read("inbox/logs/thread.log");
        text.lines().map(|line| line.split_once("] ").map_or(line, |(_, rest)| rest).to_owned()).collect()
    }

    /// Processes that belong to this world: their command line, working directory or environment
    /// contains its folder's path.
    pub fn processes(&self) -> Vec<u32> {
        processes_in(&self.root().to_string_lossy())
    }

    /// Waits until no process of this world runs or holds a lock.
    pub fn wait_until_quiet(&self) {
        // Twice in a row: when process ids wrap around, a process that ends during a look through /proc can
        // leave behind one with a smaller id, which that look has passed already.
        let mut quiet = 0;
        wait_until("all processes to end", || {
            quiet = if self.processes().is_empty() && !one_is_ending() { quiet + 1 } else { 0 };
            quiet == 2
        });
    }

    /// Like [`World::thread`], but with the notifier off, so no handler is started.
    pub fn off<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Run {
        self.thread(args).env("THREAD_NOTIFIER", "off")
    }

    /// Subscribes a consumer whose handler is never started: the test itself reads for it.
    pub fn idle_consumer(&self, name: &str, filter: &str) {
        self.off(["subscribe", "--consumer", name, "--handler", "true", "--filter", filter]).quiet();
    }

    /// Subscribes a consumer with these additional options.
    #[track_caller]
    pub fn subscribe(&self, consumer: &str, handler: &str, options: &[&str]) {
        let base = ["subscribe", "--consumer", consumer, "--handler", handler];
        self.thread(base.iter().chain(options)).ok();
    }

    /// The consumer's state as reported by `info`.
    pub fn state(&self, consumer: &str) -> String {
        self.consumer(consumer)["state"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    pub fn wait_for_state(&self, consumer: &str, state: &str) {
        self.wait_until(&format!("{consumer} to be {state}"), || self.state(consumer) == state);
    }

    /// Waits until a file exists; handlers create files to report their progress.
    #[track_caller]
    pub fn wait_for_file(&self, name: &str) {
        self.wait_until(&format!("the file {name}"), || self.path(name).exists());
    }

    /// Like [`wait_until`], for what processes of this world bring about: without any, it gives up sooner.
    #[track_caller]
    pub fn wait_until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let began = Instant::now();
        let (mut looked, mut lived) = (began, began);
        while !condition() {
            if looked.elapsed() > Duration::from_secs(1) {
                looked = Instant::now();
                if !self.processes().is_empty() {
                    lived = looked;
                }
            }
            assert!(lived.elapsed() < HOPELESS, "waited for {what}, and no process is left");
            assert!(began.elapsed() < PATIENCE, "timed out waiting for {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A field of a consumer's recorded run state, as a JSON path into `model::run::RunState`, such
    /// as `$.supervisor.pid`. Null if it is not set.
    pub fn run_state(&self, consumer: &str, field: &str) -> Value {
        let sql = "SELECT coalesce(run, '{}') -> ?2 FROM consumers WHERE consumer_id = ?1";
        let json: Option<String> =
            self.db().query_row(sql, [consumer, field], |row| row.get(0)).unwrap_or_default();
        json.map_or(Value::Null, |json| serde_json::from_str(&json).unwrap())
    }

    /// Overwrites such a field; no process is notified.
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
        // Between a run and the wait after it, no supervisor is recorded for a moment.
        wait_until(&format!("{consumer} to have a supervisor"), || pid() != 0);
        kill_and_wait(pid());
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Kill whatever the test left running, also when it failed.
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let left = self.processes();
            if left.is_empty() || Instant::now() > end {
                return;
            }
            left.into_iter().for_each(kill);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// All processes that belong to the world in the folder `root`, except this one.
fn processes_in(root: &str) -> Vec<u32> {
    let own = std::process::id();
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    pids.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok())
        .filter(|&pid| pid != own && lives_in(pid, root))
        .collect()
}

fn kill(pid: u32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
    }
}

/// Gives the command default signal dispositions: a test run in the background (`cmd &` in a script, nohup)
/// inherits ignored signals.
pub fn reset_signals(command: &mut Command) {
    let reset = || {
        for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: may be called between fork and exec, and takes no pointer.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: the closure makes no other calls.
    unsafe { command.pre_exec(reset) };
}

/// Kills all processes of the world in the folder `root` if the process `pid`, which was started there, runs
/// for [`longest_run`]. A test that waits for it, or reads what it prints, then fails instead of hanging.
fn limit(pid: u32, root: &str) {
    static RUNNING: Mutex<Vec<(Instant, u32, String)>> = Mutex::new(Vec::new());
    static WATCH: Once = Once::new();
    RUNNING.lock().unwrap().push((Instant::now() + longest_run(), pid, root.to_owned()));
    WATCH.call_once(|| {
        std::thread::spawn(|| {
            loop {
                std::thread::sleep(Duration::from_secs(1));
                let mut running = RUNNING.lock().unwrap();
                running.retain(|(_, pid, root)| lives_in(*pid, root));
                for (_, pid, root) in running.iter().filter(|(end, ..)| *end < Instant::now()) {
                    drop(writeln!(std::io::stderr(), "process {pid} in {root} ran for too long"));
                    processes_in(root).into_iter().for_each(kill);
                }
            }
        });
    });
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

/// Whether a process of this program, in any world, is exiting. It has already released its command
/// line and environment, but maybe not its locks: a killed supervisor can take tens of
/// milliseconds.
fn one_is_ending() -> bool {
    const EXITING: u32 = 4;
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    pids.filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok()).any(|entry| {
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let Some((name, rest)) = stat.rsplit_once(") ") else { return false };
        let fields: Vec<&str> = rest.split(' ').collect();
        let flags = fields.get(6).and_then(|flags| flags.parse::<u32>().ok()).unwrap_or(0);
        // Supervisors are started through `/proc/self/exe`.
        let ours = name.ends_with("(exe") || name.ends_with("(thread");
        ours && flags & EXITING != 0 && !matches!(fields[0], "Z" | "X")
    })
}

/// A command to be run.
pub struct Run {
    command: Command,
    stdin: Vec<u8>,
    /// The world's folder.
    root: String,
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

    /// The command itself, for settings this builder does not offer.
    pub fn command(&mut self) -> &mut Command {
        &mut self.command
    }

    /// Runs the command to its end.
    pub fn output(mut self) -> Output {
        let mut child = self.spawn_piped();
        let mut pipe = child.stdin.take().unwrap();
        let stdin = std::mem::take(&mut self.stdin);
        // Written while the output is read; otherwise full pipes would block both processes.
        let writer = std::thread::spawn(move || pipe.write_all(&stdin).ok());
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        output
    }

    fn spawn_piped(&mut self) -> Child {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = self.command.spawn().unwrap();
        limit(child.id(), &self.root);
        child
    }

    /// Starts the command and leaves it running, with stdin, stdout and stderr as pipes.
    pub fn spawn(mut self) -> Child {
        self.spawn_piped()
    }

    /// Runs the command, expects exit 0, and returns stdout.
    #[track_caller]
    pub fn ok(self) -> String {
        let (stdout, stderr) = self.ends_with(0);
        assert!(!stderr.contains("Error"), "{stderr}");
        stdout
    }

    /// Runs the command, expects exit 0 and nothing on stderr but [`POPS`], and returns stdout.
    #[track_caller]
    pub fn quiet(self) -> String {
        let (stdout, stderr) = self.ends_with(0);
        assert_eq!(stderr.replace(POPS, ""), "");
        stdout
    }

    /// Runs the command, expects exit 0 with a warning, and returns the warning.
    #[track_caller]
    pub fn warns(self) -> String {
        let (_, stderr) = self.ends_with(0);
        assert!(stderr.starts_with("Warning: "), "no warning in {stderr:?}");
        stderr
    }

    /// Runs the command and expects this exit code, nothing on stdout, and one line of the form
    /// `Error: <what> - <how to fix>` on stderr, which it returns.
    #[track_caller]
    pub fn fails(self, code: i32) -> String {
        let (stdout, stderr) = self.ends_with(code);
        assert_eq!(stdout, "", "a failure prints no data");
        let line = stderr.strip_suffix('\n').unwrap_or_else(|| panic!("no whole line in {stderr:?}"));
        assert!(!line.contains('\n'), "more than one line: {stderr}");
        assert!(line.starts_with("Error: ") && line.contains(" - "), "not of the form: {stderr}");
        line.to_owned()
    }

    /// Runs the command, expects this exit code, and returns stdout and stderr.
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

/// What `subscribe` notes about a handler such as `true`, which many tests use.
pub const POPS: &str = "Note: the handler gets no events on stdin: it has to take them with `thread pop`, and \
     acknowledge them with `thread ack`; give --deliver stdin for events on stdin, where exit 0 acknowledges\n";

/// Waits for a condition; panics with its description after [`PATIENCE`].
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process is running. A zombie is not.
pub fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

/// Sends SIGKILL to a process and waits until it has ended.
pub fn kill_and_wait(pid: u32) {
    kill(pid);
    wait_until("a killed process to be gone", || !is_running(pid));
}

/// The ids of NDJSON lines.
pub fn ids(ndjson: &str) -> Vec<i64> {
    ndjson.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].as_i64().unwrap()).collect()
}

/// Puts a handler `take` on `PATH`. It pops until nothing is left, acknowledges what it popped, and
/// appends the ids to `seen.<consumer>`.
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

/// Subscribes a consumer that handles every event; see [`take_all_script`].
pub fn take_all(world: &World, consumer: &str) {
    take_all_script(world);
    world.thread(["subscribe", "--handler", "take", "--consumer", consumer]).quiet();
}

/// A random number generator seeded from the clock. Tests print it when they fail.
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

/// Copies the binary to `path`. Done by another process, for the reason given in [`World::script`].
pub fn copy_program(world: &World, path: &Path) {
    world.sh("exec cp \"$0\" \"$1\"").arg(env!("CARGO_BIN_EXE_thread")).arg(path).quiet();
}

/// A path or a text as one word for a shell.
pub fn quoted(text: impl AsRef<OsStr>) -> String {
    shlex::try_quote(text.as_ref().to_str().unwrap()).unwrap().into_owned()
}

/// Everything below a directory: each entry's path and mode, and the bytes of regular files.
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
