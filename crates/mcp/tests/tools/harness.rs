//! Set-up for all tests: a root with sessions, a server, and a client that speaks the protocol line by line. The
//! assertions are in the tests.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::ops::Deref;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Stdio};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use thread::{NewEvent, Queue};
use thread_testkit::{PATIENCE, Run, Signal, World, send, wait_for};

/// A folder of sessions in a world.
pub struct Root(Rc<World>);

impl Deref for Root {
    type Target = World;

    fn deref(&self) -> &World {
        &self.0
    }
}

impl Root {
    pub fn new() -> Root {
        let world = World::named("mcp").with_system_path();
        std::fs::DirBuilder::new().mode(0o700).create(world.path("root")).unwrap();
        Root(Rc::new(world))
    }

    pub fn dir(&self) -> PathBuf {
        self.path("root").canonicalize().unwrap()
    }

    /// A new session, whose id contains the number.
    pub fn session(&self, number: u32) -> Session {
        let id = format!("00000000-0000-4000-8000-{number:012}");
        let path = Queue::init(self.dir().join(&id)).unwrap();
        Session { id, path, world: Rc::clone(&self.0) }
    }

    /// A server for all sessions.
    pub fn serve(&self, options: &[&str]) -> Client {
        let dir = self.dir().display().to_string();
        Client::start(self, &[&["--root", &dir], options].concat())
    }
}

/// A session, or any other thread.
pub struct Session {
    pub id: String,
    pub path: PathBuf,
    world: Rc<World>,
}

impl Session {
    pub fn queue(&self) -> Queue {
        Queue::open(&self.path).unwrap()
    }

    pub fn message(&self, source: &str, text: &str) -> i64 {
        self.queue().push(&NewEvent::message(source.to_owned(), text.to_owned()).unwrap()).unwrap().id
    }

    /// `thread` for this thread.
    pub fn run(&self, words: &[&str]) -> Run {
        command(&self.world, "thread").env("THREAD_DIR", &self.path).args(words)
    }

    /// Runs `thread` for this thread, and returns what it printed.
    pub fn thread(&self, words: &[&str]) -> String {
        self.run(words).ok()
    }

    /// A server for this thread alone.
    pub fn serve(&self, options: &[&str]) -> Client {
        Client::start(&self.world, &[&["--thread", self.path.to_str().unwrap()], options].concat())
    }

    /// Installs an agent that is run for each message.
    pub fn agent(&self, script: &str) {
        self.thread(&["agent", "install", "--", "sh", "-c", script]);
    }

    /// Registers `reader`, a consumer that reads for itself.
    pub fn reader(&self) {
        self.thread(&["subscribe", "reader", "--no-handler"]);
    }
}

/// A program of the workspace.
pub fn command(world: &World, program: &str) -> Run {
    world.run(thread_testkit::program(program)).env("THREAD_NOTIFIER", "embedded")
}

/// A client of one server.
pub struct Client {
    pub child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<Value>,
    answers: HashMap<u64, Value>,
    last: u64,
}

impl Client {
    pub fn start(world: &World, options: &[&str]) -> Client {
        let mut child = command(world, "thread-mcp")
            .args(options)
            .into_command()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut client = Client { child, stdin, lines, answers: HashMap::new(), last: 0 };
        let about = json!({
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": { "name": "test", "version": "1" },
        });
        client.request("initialize", about);
        client.notify("notifications/initialized", json!({}));
        client
    }

    pub fn send(&mut self, method: &str, params: Value) -> u64 {
        self.last += 1;
        self.line(json!({ "jsonrpc": "2.0", "id": self.last, "method": method, "params": params }));
        self.last
    }

    pub fn notify(&mut self, method: &str, params: Value) {
        self.line(json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    pub fn line(&mut self, message: impl std::fmt::Display) {
        let stdin = self.stdin.as_mut().unwrap();
        writeln!(stdin, "{message}").unwrap();
        stdin.flush().unwrap();
    }

    /// The response to a request.
    pub fn response(&mut self, id: u64) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(answer) = self.answers.remove(&id) {
                return answer;
            }
            let left = end.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).expect("no response");
            if let Some(id) = line["id"].as_u64() {
                self.answers.insert(id, line);
            }
        }
    }

    /// Whether there is a response after a while.
    pub fn has_response(&mut self, id: u64, within: Duration) -> bool {
        while let Ok(line) = self.lines.recv_timeout(within) {
            if let Some(id) = line["id"].as_u64() {
                self.answers.insert(id, line);
            }
        }
        self.answers.contains_key(&id)
    }

    pub fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params);
        let response = self.response(id);
        assert!(response["error"].is_null(), "{response}");
        response["result"].clone()
    }

    pub fn tools(&mut self) -> Vec<Value> {
        self.request("tools/list", json!({}))["tools"].as_array().unwrap().clone()
    }

    pub fn names(&mut self) -> Vec<String> {
        self.tools().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    }

    pub fn begin(&mut self, tool: &str, arguments: Value) -> u64 {
        self.send("tools/call", json!({ "name": tool, "arguments": arguments }))
    }

    /// The result of a tool call that succeeds.
    pub fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let id = self.begin(tool, arguments);
        let response = self.response(id);
        let result = &response["result"];
        assert!(result["isError"] != true && result.is_object(), "{tool}: {response}");
        result["structuredContent"].clone()
    }

    /// The error of a tool call that is refused.
    pub fn refusal(&mut self, tool: &str, arguments: Value) -> String {
        let id = self.begin(tool, arguments);
        let response = self.response(id);
        assert_eq!(response["result"]["isError"], true, "{tool}: {response}");
        let text = response["result"]["content"][0]["text"].as_str().unwrap().to_owned();
        assert!(text.contains(" - "), "it does not say what to do: {text}");
        text
    }

    /// The memory of the server, in kB.
    pub fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// The processor time that the server has used.
    pub fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Duration::from_millis(ticks * 10)
    }

    /// How many threads the server watches.
    pub fn watched(&self) -> usize {
        let files = std::fs::read_dir(format!("/proc/{}/fdinfo", self.child.id())).unwrap().flatten();
        let about = files.filter_map(|file| std::fs::read_to_string(file.path()).ok());
        about.map(|about| about.matches("inotify wd:").count()).sum()
    }

    /// Calls a tool until its result is as wanted.
    pub fn until(&mut self, tool: &str, arguments: &Value, is: impl Fn(&Value) -> bool) -> Value {
        wait_for(tool, || Some(self.call(tool, arguments.clone())).filter(&is))
    }

    /// Closes stdin, and waits for the end.
    pub fn close(&mut self) -> bool {
        self.stdin = None;
        self.has_ended()
    }

    /// Asks the server to end, and waits for that.
    pub fn terminate(&mut self) -> bool {
        send(self.child.id(), Signal::TERM);
        self.has_ended()
    }

    fn has_ended(&mut self) -> bool {
        wait_for("the server to end", || self.child.try_wait().unwrap()).success()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
