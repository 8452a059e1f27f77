//! `dispatch --follow --socket`: a worker's socket that takes pushes and nothing else, and `push --socket`.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Child;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use thread_testkit::{World, ids, wait_for};

/// A worker with a socket. Killed when dropped.
struct Worker(Child);

impl Worker {
    fn start(world: &World) -> Worker {
        let worker = world.thread(["dispatch", "--follow", "--socket", "in.sock"]).spawn();
        world.wait_until("the socket", || UnixStream::connect(world.path("in.sock")).is_ok());
        Worker(worker)
    }

    /// Ends it by TERM.
    fn ends(&mut self) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A client that has the program's folder, but not the thread's.
fn through(world: &World, words: &[&str]) -> thread_testkit::Run {
    world.run("thread").args(["push", "--socket", "in.sock"].iter().chain(words))
}

struct Client {
    stream: UnixStream,
    answers: BufReader<UnixStream>,
}

impl Client {
    fn of(world: &World) -> Client {
        let stream = UnixStream::connect(world.path("in.sock")).unwrap();
        Client { answers: BufReader::new(stream.try_clone().unwrap()), stream }
    }

    fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
    }

    fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"))
    }

    fn ask(&mut self, line: &str) -> Value {
        self.send(format!("{line}\n"));
        self.answer()
    }

    fn is_closed(&mut self) -> bool {
        self.answers.read_to_end(&mut Vec::new()).is_ok_and(|read| read == 0)
    }
}

#[test]
fn an_event_is_stored_and_handled_as_if_it_were_pushed_into_the_thread() {
    let world = World::with_thread();
    world.subscribe("bot", "cat >>seen", &["--deliver", "stdin"]);
    let mut worker = Worker::start(&world);
    assert_eq!(
        through(&world, &["Hello", "--source", "cron", "--meta", "a=1", "--subtype", "s"]).quiet(),
        "1\n"
    );
    let key = ["again", "--type", "record", "--idempotency-key", "k", "--json"];
    let first: Value = serde_json::from_str(&through(&world, &key).quiet()).unwrap();
    let second: Value = serde_json::from_str(&through(&world, &key).quiet()).unwrap();
    assert_eq!(
        (&first["id"], &first["content"], &first["type"]),
        (&json!(2), &json!("again"), &json!("record"))
    );
    assert_eq!((&second["id"], &second["repeated"]), (&json!(2), &json!(true)));
    assert_eq!(first["created_at"], second["created_at"]);
    world.wait_until("the handler", || ids(&world.read("seen")) == [1, 2]);
    let all: Vec<Value> = world.jsonl().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&all[0]["source"], &all[0]["metadata"]), (&json!("cron"), &json!({ "a": "1" })));
    assert_eq!(all[0]["subtype"], "s");
    // The pusher's own name, which only it can know.
    let own = world.thread(["push", "x", "--json"]).quiet();
    assert_eq!(all[1]["source"], serde_json::from_str::<Value>(&own).unwrap()["source"]);
    world.assert_log_is_exact();
    let found = fs::symlink_metadata(world.path("in.sock")).unwrap();
    assert!(found.file_type().is_socket());
    assert_eq!(found.permissions().mode() & 0o777, 0o660);
    worker.ends();
    assert!(!world.path("in.sock").exists());
    let error = through(&world, &["late"]).fails(1);
    assert!(error.starts_with("Error: cannot connect to in.sock"), "{error}");
}

#[test]
fn each_line_is_answered_and_a_bad_one_stores_nothing() {
    let world = World::with_thread();
    let _worker = Worker::start(&world);
    let mut client = Client::of(&world);
    assert_eq!(client.ask(r#"{"source":"s","content":"a"}"#)["id"], 1);
    for (line, code, said) in [
        ("nonsense", "event_invalid", "is not a JSON object"),
        (r#"{"content":"a"}"#, "event_invalid", "has no 'source'"),
        (r#"{"source":"s"}"#, "event_invalid", "has no 'content'"),
        (r#"{"source":"s","content":"a","idempotency_key":"thread:end:1"}"#, "event_invalid", "thread:"),
        (r#"{"source":"s","content":"a","type":"command"}"#, "event_invalid", "command"),
        (r#"["subscribe","bot","true"]"#, "event_invalid", "is not a JSON object"),
        ("subscribe bot 'touch pwned'", "event_invalid", "is not a JSON object"),
    ] {
        let answer = client.ask(line);
        assert_eq!(answer["code"], code, "{line}: {answer}");
        assert!(answer["error"].as_str().unwrap().contains(said), "{line}: {answer}");
        assert_eq!(answer["id"], Value::Null);
    }
    client.send([&b"{\"source\":\"s\",\"content\":\"\xff\"}\n"[..]].concat());
    assert_eq!(client.answer()["code"], "event_invalid");
    // Blank lines are skipped, several may come together, and the last one needs no newline.
    client.send("\n\r\n{\"source\":\"s\",\"content\":\"b\"}\n{\"source\":\"s\",\"content\":\"c\"}\n{\"source\":\"s\",");
    client.send("\"content\":\"d\"}");
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!([0; 3].map(|_| client.answer()["id"].clone()), [2, 3, 4].map(Value::from));
    assert!(client.is_closed());
    assert_eq!(world.query("SELECT count(*) FROM events"), 4);
}

#[test]
fn clients_that_are_slow_silent_or_many_hold_up_nobody() {
    let world = World::with_thread();
    let mut worker = Worker::start(&world);
    let mut long = Client::of(&world);
    // It is refused before it has sent all.
    long.stream.write_all(&vec![b'x'; 1_100_000]).ok();
    assert_eq!(long.answer()["code"], "too_large");
    drop(long);
    let mut half = Client::of(&world);
    half.send("{\"source\":\"s\",");
    let mut silent: Vec<Client> = Vec::new();
    let mut refused = world.wait_for_refusal(&mut silent);
    assert_eq!(refused["code"].take(), "locked");
    let error = through(&world, &["x"]).fails(1);
    assert!(error.contains("64 connections are open") && error.contains("nothing was stored"), "{error}");
    // The worker works on, and those who are connected, too.
    world.subscribe("bot", "cat >>seen", &["--deliver", "stdin"]);
    world.off(["push", "directly"]).quiet();
    world.wait_until("the handler", || ids(&world.read("seen")) == [1]);
    half.send("\"content\":\"b\"}\n");
    assert_eq!(half.answer()["id"], 2);
    drop(silent);
    world.wait_until("a free place", || through(&world, &["y"]).succeeds());
    worker.ends();
}

trait Refusal {
    fn wait_for_refusal(&self, silent: &mut Vec<Client>) -> Value;
}

impl Refusal for World {
    /// Connects until it is refused, and returns the answer. Others do not get one, as they are silent.
    fn wait_for_refusal(&self, silent: &mut Vec<Client>) -> Value {
        loop {
            assert!(silent.len() < 80, "nobody is refused");
            let mut client = Client::of(self);
            // The first ones certainly get no answer.
            let patience = if silent.len() < 60 { 1 } else { 5000 };
            client.stream.set_read_timeout(Some(std::time::Duration::from_millis(patience))).unwrap();
            let mut line = String::new();
            if client.answers.read_line(&mut line).is_ok() {
                return serde_json::from_str(&line).unwrap();
            }
            silent.push(client);
        }
    }
}

#[test]
fn a_socket_is_taken_over_from_a_killed_worker_but_nothing_else_is_replaced() {
    let world = World::with_thread();
    let worker = Worker::start(&world);
    let words = |path| ["dispatch", "--follow", "--socket", path];
    let error = world.thread(words("in.sock")).fails(1);
    assert!(error.contains("another process listens at in.sock"), "{error}");
    // Not before all its threads have ended, which hold the socket open.
    drop(worker);
    assert!(world.path("in.sock").exists());
    let _worker = Worker::start(&world);
    assert_eq!(through(&world, &["x"]).quiet(), "1\n");
    world.write("file", "kept");
    let error = world.thread(words("file")).fails(1);
    assert!(error.contains("file is there, and no socket"), "{error}");
    assert_eq!(world.read("file"), "kept");
    world.thread(words("no/such/folder")).fails(1);
}

#[test]
fn its_group_can_be_given() {
    let world = World::with_thread();
    let own = fs::metadata(world.root()).unwrap().gid().to_string();
    let error =
        world.thread(["dispatch", "--follow", "--socket", "in.sock", "--socket-group", "nobodies"]).fails(2);
    assert!(error.contains("there is no group 'nobodies'"), "{error}");
    let words = ["dispatch", "--follow", "--socket", "in.sock", "--socket-group", &own];
    let _worker = Worker(world.thread(words).spawn());
    world.wait_until("the socket", || UnixStream::connect(world.path("in.sock")).is_ok());
    assert_eq!(fs::metadata(world.path("in.sock")).unwrap().gid().to_string(), own);
}

#[test]
fn a_worker_that_does_not_answer_leaves_the_outcome_unknown() {
    let world = World::with_thread();
    let listener = UnixListener::bind(world.path("in.sock")).unwrap();
    let push = through(&world, &["x"]).spawn();
    drop(listener.accept().unwrap());
    let ended = push.wait_with_output().unwrap();
    let stderr = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("it is unknown whether the event was stored"), "{stderr}");
}

#[test]
fn what_a_socket_cannot_do_is_a_usage_error() {
    let world = World::with_thread();
    for words in [
        &["push", "--socket", "in.sock", "--lines"][..],
        &["push", "--socket", "in.sock", "x", "--sync", "1s"],
        &["push", "--socket", "in.sock", "x", "--reply-to", "1"],
        &["push", "--socket", "in.sock", "x", "--thread", "inbox"],
        &["push", "--socket", "in.sock", "x", "--type", "command"],
        &["dispatch", "--socket", "in.sock"],
        &["dispatch", "--follow", "--socket", "in.sock", "--root", "."],
        &["dispatch", "--follow", "--socket", "in.sock", "--thread", "inbox", "--thread", "inbox"],
        &["dispatch", "--follow", "--socket-group", "0"],
    ] {
        world.thread(words).fails(2);
    }
    assert!(!world.path("in.sock").exists());
}

#[test]
fn two_hundred_that_push_at_once_are_all_served() {
    let world = World::with_thread();
    let mut worker = Worker::start(&world);
    let ask = |n: usize| {
        let mut stream = UnixStream::connect(world.path("in.sock")).unwrap();
        stream
            .write_all(format!("{}\n", json!({ "source": "self", "content": n.to_string() })).as_bytes())
            .unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        serde_json::from_str::<Value>(&answer).unwrap()
    };
    let push = |n: usize| {
        // There are at most 64 connections; on a slow machine some have to try again.
        let stored =
            wait_for("a free connection", || Some(ask(n)).filter(|answer| answer["code"] != "locked"));
        assert!(stored["id"].is_i64(), "{stored}");
    };
    std::thread::scope(|scope| {
        for n in 0..200 {
            scope.spawn(move || push(n));
        }
    });
    assert_eq!(world.query("SELECT count(DISTINCT content) FROM events"), 200);
    worker.ends();
}
