//! `thread session`: the same commands, by one process.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout};

use serde_json::{Value, json};
use thread_testkit::{Signal, World, send};

/// A running session. Killed when dropped.
struct Session {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Session {
    fn start(world: &World) -> Session {
        let mut child = world.thread(["session"]).spawn();
        let (requests, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut session = Session { child, requests, answers: BufReader::new(answers) };
        assert_eq!(session.line()["version"], env!("CARGO_PKG_VERSION"));
        session
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"))
    }

    fn send(&mut self, line: &str) -> Value {
        writeln!(self.requests, "{line}").unwrap();
        self.line()
    }

    fn ask(&mut self, args: &[&str]) -> Value {
        self.send(&json!({ "id": args, "args": args }).to_string())
    }

    /// What a command that succeeds prints.
    #[track_caller]
    fn out(&mut self, args: &[&str]) -> Value {
        let answer = self.ask(args);
        assert_eq!((&answer["id"], &answer["exit"]), (&json!(args), &json!(0)), "{answer}");
        answer["out"].clone()
    }

    #[track_caller]
    fn fails(&mut self, args: &[&str], exit: i32, code: &str) -> String {
        let answer = self.ask(args);
        assert_eq!((&answer["exit"], &answer["code"]), (&json!(exit), &json!(code)), "{answer}");
        assert!(answer["suggestion"].is_string(), "{answer}");
        answer["error"].as_str().unwrap().to_owned()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn it_answers_what_the_commands_print_as_json() {
    let world = World::with_thread();
    let mut session = Session::start(&world);
    assert_eq!(
        session.out(&["subscribe", "team", "--no-handler", "--concurrency", "3"])[0]["consumer_id"],
        "team"
    );
    for id in 1..4 {
        let stored = session.out(&["push", "a \"word\"\nand \u{2028} more", "--meta", "n=1"]);
        assert_eq!(stored[0]["id"], id);
        assert_eq!(stored[0].as_object().unwrap().keys().next_back().unwrap(), "dispatch");
    }
    let claim = session.out(&["pop", "team", "--claim", "1h"])[0]["claim"].as_str().unwrap().to_owned();
    let after = json!([{ "consumer_id": "team", "last_acked_id": 1 }]);
    assert_eq!(session.out(&["ack", "team", "1", "--claim", &claim]), after);
    assert_eq!(session.out(&["reject", "team", "2", "--error", "why"])[0]["last_acked_id"], 2);
    assert_eq!(session.out(&["config", "retention.age", "7d"])[0]["retention.age"], "7d");
    let read: [&[&str]; 8] = [
        &["peek", "--last-event-id", "0"],
        &["peek", "--tail", "1", "--parse"],
        &["peek", "--filter", "id = 77"],
        &["pop", "team", "--resume"],
        &["dead", "list"],
        &["dead", "show", "team", "2"],
        &["config"],
        &["scheduled"],
    ];
    for args in read {
        let printed = world.thread(args).arg("--json").ok();
        let printed: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(session.out(args), json!(printed), "{args:?}");
    }
}

#[test]
fn input_takes_the_place_of_stdin() {
    let world = World::with_thread();
    let mut session = Session::start(&world);
    let lines = "{\"content\":\"1\"}\n{\"content\":\"2\",\"odd\":1}\n";
    let answer = session.send(&json!({"args": ["push", "--batch"], "input": lines}).to_string());
    assert_eq!(answer["out"], json!([{"count": 2, "first_id": 1, "last_id": 2}]));
    assert_eq!(answer["id"], Value::Null);
    assert!(answer["notices"][0].as_str().unwrap().starts_with("Warning: the key 'odd'"), "{answer}");
    for text in ["", "three\n"] {
        session.send(&json!({"args": ["push", "-"], "input": text}).to_string());
        assert_eq!(session.out(&["peek", "--tail", "1"])[0]["content"], text);
    }
    // The requests themselves are nobody's input.
    session.fails(&["push", "-"], 1, "io");
    session.fails(&["push"], 2, "usage");
    session.fails(&["push", "--batch"], 1, "io");
    assert_eq!(world.query("SELECT count(*) FROM events"), 4);
}

#[test]
fn whatever_is_wrong_with_a_request_the_next_one_is_answered() {
    let world = World::with_thread();
    let mut session = Session::start(&world);
    let wrong = [
        "nonsense",
        "[]",
        "{}",
        "{\"args\":[1]}",
        "{\"args\":[],\"odd\":1}",
        "{\"args\":[\"push\"",
        "\u{feff}",
    ];
    for line in wrong {
        let answer = session.send(line);
        assert_eq!((&answer["exit"], &answer["code"]), (&json!(2), &json!("usage")), "{line}: {answer}");
    }
    let refused: [&[&str]; 16] = [
        &[],
        &["frobnicate"],
        &["push", "--frobnicate"],
        &["push", "--help"],
        &["push", "x", "--thread", "other"],
        &["-C", "/", "push", "x"],
        &["push", "x", "--sync", "1m"],
        &["push", "--lines", "--follow"],
        &["peek", "--follow"],
        &["peek", "--pretty"],
        &["pop", "bot", "--wait", "1m"],
        &["ask", "x"],
        &["step", "one", "--", "true"],
        &["dispatch", "--follow"],
        &["session"],
        &["export"],
    ];
    for args in refused {
        session.fails(args, 2, "usage");
    }
    session.fails(&["ack", "nobody", "1"], 1, "unknown_consumer");
    session.fails(&["peek", "--filter", "nosuch = 1"], 2, "filter_invalid");
    session.fails(&["peek", "77"], 1, "unknown_event");
    let late = session.fails(&["peek", "--filter", "id = 77", "--fail-if-none"], 3, "timed_out");
    assert_eq!(late, "there is no such event");
    assert_eq!(session.out(&["push", "x"])[0]["id"], 1);
}

#[test]
fn an_event_that_sleeps_is_exit_75_without_an_error() {
    let world = World::with_thread();
    let mut session = Session::start(&world);
    session.out(&["subscribe", "bot", "cat", "--deliver", "ndjson"]);
    session.out(&["pause", "bot"]);
    session.out(&["push", "x"]);
    let asleep = session.ask(&["sleep", "a-while", "1h", "--consumer", "bot", "--event", "1"]);
    assert_eq!((&asleep["exit"], asleep.get("error")), (&json!(75), None), "{asleep}");
    assert_eq!(session.out(&["step", "--list"])[0]["state"], "waiting");
}

#[test]
fn it_sees_what_others_have_made_since() {
    let world = World::with_thread();
    let mut session = Session::start(&world);
    session.out(&["subscribe", "bot", "cat", "--deliver", "stdin", "--batch-size", "1"]);
    session.out(&["pause", "bot"]);
    session.out(&["push", "x"]);
    // The first of their kind make tables.
    world.thread(["config", "retention.age", "7d"]).quiet();
    assert_eq!(session.out(&["config"])[0]["retention.age"], "7d");
    world.thread(["sleep", "a-while", "1h", "--consumer", "bot", "--event", "1"]).ends_with(75);
    assert_eq!(session.out(&["step", "--list"])[0]["state"], "waiting");
    world.thread(["schedule", "add", "often", "--every", "1h", "x"]).quiet();
    assert_eq!(session.out(&["schedule", "list"])[0]["name"], "often");
}

#[test]
fn it_wakes_handlers_and_keeps_none_of_their_processes() {
    let world = World::with_thread();
    let mut session = Session::start(&world);
    session.out(&["subscribe", "bot", "cat >>got", "--deliver", "stdin"]);
    for n in 1..4 {
        session.out(&["push", "x"]);
        world.wait_until("the handler", || world.lines("got").len() == n);
        world.wait_until("its end", || world.consumer("bot")["state"] == "idle");
    }
    // The next command reaps what has ended.
    world.wait_until("no zombie", || {
        session.out(&["peek", "--tail", "1"]);
        let children = format!("/proc/{0}/task/{0}/children", session.child.id());
        fs::read_to_string(children).unwrap().trim().is_empty()
    });
    // The session is the only one left.
    drop(session);
    world.wait_until_quiet();
}

#[test]
fn it_notices_that_the_thread_was_moved() {
    let world = World::with_thread();
    let mut session = Session::start(&world);
    session.out(&["push", "x"]);
    fs::rename(world.inbox(), world.path("away")).unwrap();
    session.fails(&["push", "x"], 1, "not_a_thread");
    fs::rename(world.path("away"), world.inbox()).unwrap();
    assert_eq!(session.out(&["push", "x"])[0]["id"], 2);
    world.thread(["init", "second"]).ok();
    fs::rename(world.inbox(), world.path("away")).unwrap();
    fs::rename(world.path("second"), world.inbox()).unwrap();
    assert_eq!(session.out(&["push", "x"])[0]["id"], 1);
}

#[test]
fn it_ends_with_its_input_and_by_a_signal() {
    let world = World::with_thread();
    world.run("thread").args(["session", "-t", "nowhere"]).fails(1);
    let request = "{\"args\":[\"push\",\"x\"]}";
    let whole = world.thread(["session"]).stdin(format!("{request}\n\n{request}")).quiet();
    assert_eq!(whole.lines().count(), 3);
    let mut session = Session::start(&world);
    assert_eq!(session.out(&["push", "x"])[0]["id"], 3);
    send(session.child.id(), Signal::TERM);
    assert_eq!(session.child.wait().unwrap().signal(), Some(15));
}
