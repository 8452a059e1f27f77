//! A gateway for each test, and its clients: that of the crate `thread-protocol`, and HTTP on a plain socket.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use serde_json::Value;
use thread_protocol::client::{Address, Client, Error, Received, Settings};
use thread_protocol::event::{Event, Frame};
use thread_protocol::method::{Accepted, Agent, AgentParams, NewParams, SessionsNew};
use thread_testkit::{PATIENCE, Run, World, program};

pub struct Gateway {
    /// A folder outside of the root, where agents have files.
    world: World,
    options: Vec<String>,
    process: Child,
    pub port: u16,
    pub token: String,
}

impl Deref for Gateway {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl Gateway {
    /// A gateway whose agent is a shell command.
    pub fn start(agent: &str) -> Gateway {
        Gateway::with(&["--agent", agent])
    }

    pub fn with(options: &[&str]) -> Gateway {
        let world = World::named("gateway").with_system_path();
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        let (process, port, token) = spawn(&world, &options, 0);
        Gateway { world, options, process, port, token }
    }

    /// A gateway that a script of the shell starts.
    pub fn by(script: &str) -> Gateway {
        let world = World::named("gateway").with_system_path();
        let run = world.run("sh").args(["-c", script]);
        let (process, port, token) = begin(&world, run);
        Gateway { world, options: Vec::new(), process, port, token }
    }

    pub fn root(&self) -> PathBuf {
        self.path("root")
    }

    /// Kills it, and starts it again on the same port.
    pub fn is_killed_and_started_again(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        let (process, port, token) = spawn(&self.world, &self.options, self.port);
        assert_eq!((port, &token), (self.port, &self.token));
        self.process = process;
    }

    pub async fn client(&self) -> Talk {
        Talk(self.connect("one", Some(&self.token)).await.unwrap())
    }

    /// Another client, with another client id.
    pub async fn connect(&self, id: &str, token: Option<&str>) -> Result<Client, Error> {
        Client::connect(Settings {
            address: Address::parse(&format!("127.0.0.1:{}", self.port)).unwrap(),
            token: token.map(str::to_owned),
            client_type: "test".to_owned(),
            client_id: id.to_owned(),
            ca: None,
            patience: PATIENCE,
        })
        .await
    }

    /// A request with the token.
    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let bearer = format!("Bearer {}", self.token);
        self.ask_as_a_stranger(method, path, &[&[("Authorization", &*bearer)], headers].concat(), body)
    }

    pub fn ask_as_a_stranger(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        let mut socket = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            head += &format!("Host: 127.0.0.1:{}\r\n", self.port);
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += &format!("Content-Length: {}\r\n\r\n", body.len());
        socket.write_all(&[head.as_bytes(), body].concat()).unwrap();
        let mut bytes = Vec::new();
        socket.read_to_end(&mut bytes).unwrap();
        Answer::parse(&bytes)
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], b"")
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, &[("Content-Type", "application/json")], body.to_string().as_bytes())
    }

    /// Runs `thread` for a session or another thread, and returns what it printed.
    pub fn thread(&self, thread: &Path, words: &[&str]) -> String {
        self.run(program("thread")).args(words).env("THREAD_DIR", thread).ok()
    }
}

/// Starts it.
fn spawn(world: &World, options: &[String], port: u16) -> (Child, u16, String) {
    let serve = world.run(program("thread-serve")).arg("--root").arg(world.path("root"));
    begin(world, serve.args(["--listen", &format!("127.0.0.1:{port}")]).args(options))
}

/// Runs a command that starts it. Returns the process, its port and its token, which its link has.
fn begin(world: &World, run: Run) -> (Child, u16, String) {
    let log = std::fs::File::options().create(true).append(true).open(world.path("log")).unwrap();
    let mut command = run.env("THREAD_NOTIFIER", "embedded").into_command();
    let mut process = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
    let link = |line: String| {
        let (port, token) = line.trim().strip_prefix("http://127.0.0.1:")?.split_once("/#token=")?;
        Some((port.parse().unwrap(), token.to_owned()))
    };
    let (port, token) = lines.find_map(link).unwrap_or_else(|| panic!("{}", world.read("log")));
    // The pipe stays open for whatever else the command has started.
    std::thread::spawn(move || lines.for_each(drop));
    (process, port, token)
}

/// The client of `thread-protocol`.
pub struct Talk(pub Client);

impl Talk {
    /// Makes a session and enters it. Returns its id.
    pub async fn begins(&mut self, title: &str) -> String {
        let made = self
            .0
            .call::<SessionsNew>(&NewParams { title: Some(title.to_owned()), ..NewParams::default() })
            .await
            .unwrap();
        made.session_id
    }

    pub async fn says(&mut self, text: &str) -> Accepted {
        let message = AgentParams {
            session_id: None,
            message: text.into(),
            priority: None,
            metadata: None,
            idempotency_key: None,
            at: None,
        };
        self.0.call::<Agent>(&message).await.unwrap()
    }

    /// All events up to the first that is wanted, which is the last of them.
    pub async fn until(&mut self, wanted: impl Fn(&Frame) -> bool) -> Vec<Frame> {
        let mut seen = Vec::new();
        loop {
            match tokio::time::timeout(PATIENCE, self.0.receive()).await {
                Ok(Ok(Received::Event(frame, _))) => seen.push(*frame),
                Ok(Ok(Received::Lost(_))) => {}
                other => panic!("{other:?} after {seen:#?}"),
            }
            if seen.last().is_some_and(&wanted) {
                return seen;
            }
        }
    }

    /// All events up to the end of a run.
    pub async fn until_the_end_of(&mut self, run_id: &str) -> Vec<Frame> {
        let ends = |event: &Event| match event {
            Event::Final(_) | Event::Cancelled(_) => true,
            Event::Error(error) => !error.retryable,
            _ => false,
        };
        self.until(|frame| frame.run_id.as_deref() == Some(run_id) && ends(&frame.event)).await
    }
}

/// The text of the tokens, together.
pub fn tokens(frames: &[Frame]) -> String {
    let text = |frame: &Frame| match &frame.event {
        Event::Token(token) => Some(token.content.clone()),
        _ => None,
    };
    frames.iter().filter_map(text).collect()
}

/// The answer to a request over HTTP.
pub struct Answer {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Answer {
    fn parse(bytes: &[u8]) -> Answer {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
        let head = std::str::from_utf8(&bytes[..end]).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|code| code.parse().ok());
        let header = |line: &str| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.to_ascii_lowercase(), value.to_owned())
        };
        let headers: BTreeMap<_, _> = lines.map(header).collect();
        let mut body = bytes[end + 4..].to_vec();
        if headers.get("transfer-encoding").is_some_and(|encoding| encoding == "chunked") {
            body = unchunked(&body);
        }
        Answer { status: status.expect("a status"), headers, body }
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The JSON of an answer with this status.
    #[track_caller]
    pub fn json(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// The data of server-sent events, each as JSON.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        assert_eq!(
            (self.status, &*self.headers["content-type"]),
            (200, "text/event-stream"),
            "{}",
            self.text()
        );
        let text = self.text();
        let data =
            text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| !data.is_empty());
        data.map(|data| serde_json::from_str(data).unwrap()).collect()
    }
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|two| two == b"\r\n").expect("the size of a chunk");
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&rest[end + 2..end + 2 + size]);
        rest = &rest[end + 2 + size + 2..];
    }
}
