//! Set-up for all tests: a folder with a thread in it, the real programs, and functions that wait for events. The
//! assertions are in the tests.

use std::ops::Deref;
use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use thread::{After, Event, Queue};
use thread_agent::processes::Mark;
use thread_conversation::{Entry, Message, Record};
use thread_testkit::{PATIENCE, Run, World, processes_in, quoted, wait_until};

/// The default source of messages.
pub const ADA: &str = "external:web:main:dm:default:ada";

/// A conversation in a world. The world is dropped with its last conversation.
pub struct Talk {
    world: Rc<World>,
    name: String,
}

impl Deref for Talk {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

/// The small agent in `fixtures`, which cargo builds with the tests.
pub fn fixture() -> String {
    let path = thread_testkit::program("thread-agent").with_file_name("examples/agent");
    assert!(path.exists(), "build it first: cargo build -p thread-agent --example agent");
    path.to_str().unwrap().to_owned()
}

impl Talk {
    /// A thread without an agent.
    pub fn new() -> Talk {
        let world = World::named("talk").with_system_path();
        Queue::init(world.path("talk")).unwrap();
        Talk { world: Rc::new(world), name: "talk".to_owned() }
    }

    /// Another thread without an agent, in the same world.
    pub fn beside(&self, name: &str) -> Talk {
        Queue::init(self.path(name)).unwrap();
        Talk { world: Rc::clone(&self.world), name: name.to_owned() }
    }

    /// A thread with this agent installed.
    pub fn with(options: &[&str], program: &[&str]) -> Talk {
        let talk = Talk::new();
        talk.install(options, program);
        talk
    }

    pub fn install(&self, options: &[&str], program: &[&str]) {
        self.thread(&[&["agent", "install"], options, &["--"], program].concat()).ok();
    }

    pub fn dir(&self) -> PathBuf {
        self.path(&self.name)
    }

    /// Writes a file in the world's folder, and returns its path.
    pub fn write(&self, name: &str, text: &str) -> String {
        self.world.write(name, text);
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Writes a script in the world's folder, and returns its path as a word for a shell.
    pub fn write_script(&self, name: &str, text: &str) -> String {
        quoted(self.write(name, text))
    }

    /// `thread` with these arguments, for this thread.
    pub fn thread(&self, words: &[&str]) -> Run {
        self.run("thread").args(words)
    }

    pub fn sh(&self, script: &str) -> Run {
        self.run("sh").arg("-c").arg(script)
    }

    fn run(&self, program: &str) -> Run {
        self.world.run(program).env("THREAD_DIR", self.dir()).env("THREAD_NOTIFIER", "embedded")
    }

    pub fn command(&self, program: &str) -> Command {
        self.run(program).into_command()
    }

    /// Runs `thread` with a variable in its environment that no agent may see.
    pub fn run_with_token(&self, words: &[&str]) {
        self.thread(words).env("THREAD_TOKEN", "secret").ok();
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
        wait_until("the agent to be idle", || self.thread(&["info"]).ok().contains("    state: idle"));
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
        let line = |pid: u32| {
            let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            (pid, String::from_utf8_lossy(&bytes).into_owned())
        };
        processes_in(&self.dir().to_string_lossy()).into_iter().map(line).collect()
    }

    /// The logs, for the message of a failed test.
    pub fn log(&self) -> String {
        let log = |file: &str| self.read(format!("{}/logs/{file}", self.name));
        format!("{}\n{}", log("thread.log"), log("handlers/agent.log"))
    }

    /// Checks that every message has one ending and no call is open; if not, says why.
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
                // A call may be stored again with corrected details.
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

/// Whether the machine lacks a program; if so, reports that the test is skipped.
pub fn lacks(program: &str) -> bool {
    let missing = thread_agent::launcher::on_path(program).is_none();
    if missing {
        thread_testkit::skipped(program);
    }
    missing
}
