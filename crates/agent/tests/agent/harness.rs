//! Set-up for all tests: a folder with a thread in it, the real programs, and ways to wait for events. What
//! is true or false is asserted in the tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use thread::{After, Event, Queue};
use thread_agent::processes::Mark;
use thread_conversation::{Entry, Message, Record};

/// How long anything may take before a test gives up on it. Generous: machines are busy.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The default source of messages.
pub const ADA: &str = "external:web:main:dm:default:ada";

/// A conversation in a folder, which is deleted with the last of those in it.
pub struct Talk {
    root: Rc<TempDir>,
    name: String,
}

/// What a command printed, and how it ended.
#[derive(Debug)]
pub struct Ran {
    pub stdout: String,
    pub stderr: String,
    pub code: i32,
}

/// The folder of the programs, which are built into the same one.
fn programs() -> PathBuf {
    thread_testkit::program("thread");
    Path::new(env!("CARGO_BIN_EXE_thread-agent")).parent().unwrap().to_owned()
}

/// The small agent in `fixtures`, which cargo builds with the tests.
pub fn fixture() -> String {
    let path = programs().join("examples/agent");
    assert!(path.exists(), "build it first: cargo build -p thread-agent --example agent");
    path.to_str().unwrap().to_owned()
}

impl Talk {
    /// A thread without an agent.
    pub fn new() -> Talk {
        let root = tempfile::Builder::new().prefix("talk").tempdir().unwrap();
        Queue::init(root.path().join("talk")).unwrap();
        Talk { root: Rc::new(root), name: "talk".to_owned() }
    }

    /// Another thread without an agent, in the same folder.
    pub fn beside(&self, name: &str) -> Talk {
        Queue::init(self.path(name)).unwrap();
        Talk { root: Rc::clone(&self.root), name: name.to_owned() }
    }

    /// A thread with this agent installed.
    pub fn with(options: &[&str], program: &[&str]) -> Talk {
        let talk = Talk::new();
        talk.install(options, program);
        talk
    }

    pub fn install(&self, options: &[&str], program: &[&str]) {
        let mut words = vec!["agent", "install"];
        words.extend(options);
        words.push("--");
        words.extend(program);
        self.thread(&words).ok();
    }

    pub fn dir(&self) -> PathBuf {
        self.root.path().join(&self.name)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    pub fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Runs `thread` with these arguments, in the folder, for this thread.
    pub fn thread(&self, words: &[&str]) -> Ran {
        self.run(self.command("thread").args(words))
    }

    pub fn sh(&self, script: &str) -> Ran {
        self.run(self.command("sh").arg("-c").arg(script))
    }

    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{path}", programs().display()));
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"THREAD_") {
                command.env_remove(name);
            }
        }
        command
            .env("THREAD_DIR", self.dir())
            .env("THREAD_NOTIFIER", "embedded")
            .current_dir(self.root.path());
        command
    }

    /// Runs `thread` with a variable in its environment that no agent may see.
    pub fn run_with_token(&self, words: &[&str]) {
        self.run(self.command("thread").env("THREAD_TOKEN", "secret").args(words)).ok();
    }

    fn run(&self, command: &mut Command) -> Ran {
        let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = piped.spawn().unwrap();
        let pid = child.id().to_string();
        let (done, ended) = mpsc::channel();
        std::thread::spawn(move || done.send(child.wait_with_output()));
        let Ok(output) = ended.recv_timeout(PATIENCE * 3) else {
            Command::new("kill").args(["-KILL", &pid]).status().unwrap();
            panic!("it does not end: {command:?}");
        };
        let Output { status, stdout, stderr } = output.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ran { stdout: text(stdout), stderr: text(stderr), code: status.code().unwrap_or(-1) }
    }

    /// Pushes a message, and returns its id.
    pub fn say(&self, text: &str) -> i64 {
        self.say_with(text, "{}")
    }

    /// The same with metadata.
    pub fn say_with(&self, text: &str, metadata: &str) -> i64 {
        let words = ["push", "--source", ADA, "--type", "message", "--content", text, "--metadata", metadata];
        self.thread(&words).ok().trim().parse().unwrap()
    }

    pub fn cancel(&self, run_id: &str) -> i64 {
        let run = format!("run_id={run_id}");
        let words =
            ["push", "--source", ADA, "--type", "record", "--subtype", "cancel", "--content", "enough"];
        self.thread(&[&words[..], &["--meta", &run]].concat()).ok().trim().parse().unwrap()
    }

    pub fn queue(&self) -> Queue {
        Queue::open(self.dir()).unwrap()
    }

    pub fn events(&self) -> Vec<Event> {
        self.queue().read(After(0), None).unwrap()
    }

    /// All events, parsed, with their ids and run ids.
    pub fn entries(&self) -> Vec<(i64, Option<String>, Entry)> {
        let entry = |event: Event| {
            let Record { event, run_id, entry, .. } = Record::of(event);
            (event.id, run_id, entry)
        };
        self.events().into_iter().map(entry).collect()
    }

    /// Waits until `is_so` returns something about the conversation.
    pub fn until<T>(
        &self,
        what: &str,
        mut is_so: impl FnMut(&[(i64, Option<String>, Entry)]) -> Option<T>,
    ) -> T {
        let mut queue = self.queue();
        let end = Instant::now() + PATIENCE;
        loop {
            let newest = queue.newest().unwrap();
            if let Some(found) = is_so(&self.entries()) {
                return found;
            }
            if Instant::now() > end {
                panic!("{what}: {:#?}\n{}", self.entries(), self.log());
            }
            queue.wait(newest, Duration::from_secs(1)).unwrap();
        }
    }

    /// Waits for the ending of the run of that message.
    pub fn ending(&self, of: i64) -> Entry {
        self.until(&format!("event {of} has no ending"), |entries| {
            entries.iter().find(|(.., entry)| entry.ends() == Some(of)).map(|(.., entry)| entry.clone())
        })
    }

    /// Waits for the answer to that message.
    pub fn answer(&self, to: i64) -> String {
        match self.ending(to) {
            Entry::Answer { answer, .. } => answer.content,
            other => panic!("event {to} got no answer but {other:?}\n{}", self.log()),
        }
    }

    /// Waits until an attempt to answer that message has begun, and returns the id of that event.
    pub fn begun(&self, to: i64) -> i64 {
        self.until(&format!("no run of event {to} began"), |entries| {
            let begins =
                |entry: &Entry| matches!(entry, Entry::RunStarted { reply_to, .. } if *reply_to == Some(to));
            entries.iter().find(|(.., entry)| begins(entry)).map(|(id, ..)| *id)
        })
    }

    /// The texts of a run's tokens, in order.
    pub fn tokens(&self, run_id: &str) -> Vec<String> {
        let of_run = |(_, run, entry): (i64, Option<String>, Entry)| match entry {
            Entry::Token { text, .. } if run.as_deref() == Some(run_id) => Some(text),
            _ => None,
        };
        self.entries().into_iter().filter_map(of_run).collect()
    }

    /// Waits until the agent's handler has ended.
    pub fn until_idle(&self) {
        let end = Instant::now() + PATIENCE;
        while !self.thread(&["info"]).ok().contains("    state: idle") {
            assert!(Instant::now() < end, "the agent stays: {}", self.thread(&["info"]).ok());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn cursor(&self) -> i64 {
        let consumer = thread::model::subscription::ConsumerId::stored("agent");
        self.queue().subscription(&consumer).unwrap().last_acked_id
    }

    /// The processes of the agent program.
    pub fn processes(&self) -> Vec<u32> {
        Mark::thread(self.queue().path()).processes()
    }

    /// All processes for this thread or one below it: pids and command lines, with a NUL after each word.
    pub fn everything(&self) -> Vec<(u32, String)> {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let dir = self.dir().display().to_string();
        let read = |pid: u32, what: &str| {
            let bytes = std::fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        pids.filter(|pid| *pid != std::process::id())
            .map(|pid| (pid, read(pid, "cmdline")))
            .filter(|(pid, line)| {
                let told = format!("THREAD_DIR={dir}");
                line.contains(&dir) || read(*pid, "environ").split('\0').any(|given| given.starts_with(&told))
            })
            .collect()
    }

    /// The logs, for the message of a failed test.
    pub fn log(&self) -> String {
        let log = |file: &str| self.read(&format!("{}/logs/{file}", self.name));
        format!("{}\n{}", log("thread.log"), log("handlers/agent.log"))
    }

    /// Whether every message has one ending and no call is open; if not, why.
    pub fn is_settled(&self) -> Result<(), String> {
        let entries = self.entries();
        for (id, _, entry) in &entries {
            if let Entry::Message(Message { .. }) = entry {
                let endings = entries.iter().filter(|(.., entry)| entry.ends() == Some(*id)).count();
                if endings != 1 {
                    return Err(format!("event {id} has {endings} endings"));
                }
            }
        }
        let mut open: Vec<(Option<String>, String)> = Vec::new();
        for (_, run_id, entry) in entries {
            match entry {
                // A call may be stored again, corrected.
                Entry::ToolCall(call) if open.contains(&(run_id.clone(), call.call_id.clone())) => {}
                Entry::ToolCall(call) => open.push((run_id, call.call_id)),
                Entry::ToolResult(result) => {
                    let call = (run_id, result.call_id);
                    let at = open.iter().position(|one| *one == call).ok_or("a result without its call")?;
                    open.remove(at);
                }
                _ => {}
            }
        }
        if open.is_empty() { Ok(()) } else { Err(format!("calls are open: {open:?}")) }
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        if !self.dir().join("events.db").exists() {
            return;
        }
        // No process may outlive its test.
        self.thread(&["unsubscribe", "--consumer", "agent"]);
        let mark = Mark::thread(self.dir());
        let end = Instant::now() + PATIENCE;
        loop {
            drop(mark.kill(Duration::from_secs(10)));
            let left = self.everything();
            if left.is_empty() || Instant::now() > end {
                return;
            }
            for pid in left.into_iter().filter_map(|(pid, _)| rustix::process::Pid::from_raw(pid as i32)) {
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Ran {
    /// What it printed; it must have succeeded.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.stdout
    }

    /// Its stderr; it must have ended with this exit code.
    #[track_caller]
    pub fn fails(self, code: i32) -> String {
        assert_eq!(self.code, code, "{self:?}");
        assert!(self.stderr.starts_with("Error: ") && self.stderr.contains(" - "), "{self:?}");
        self.stderr
    }
}

/// Whether the machine lacks a program; if so, says that the test is skipped.
pub fn lacks(program: &str) -> bool {
    let missing = thread_agent::launcher::on_path(program).is_none();
    if missing {
        thread_testkit::skipped(program);
    }
    missing
}
