//! The real program against a real gateway, with shell commands as agents, and in real terminals.

mod fake;
mod harness;
mod scripted;
mod tls;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use thread_testkit::{Signal, World, quoted, wait_until};

use harness::{Gateway, Terminal};

/// A line of `--json`.
fn event(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))
}

#[test]
fn one_message_prints_the_answer_and_nothing_else() {
    let gateway = Gateway::start("sed 's/^/you said: /'");
    let said = gateway.chat(["hello"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout), "you said: hello\n");
    assert_eq!(said.status.code(), Some(0));
}

#[test]
fn on_a_terminal_the_answer_is_printed_as_it_comes() {
    let gate = tempfile::tempdir().unwrap();
    let pass = gate.path().join("pass");
    let wait =
        format!("printf first; until test -e {}; do sleep 0.05; done; printf ' second'", quoted(&pass));
    let gateway = Gateway::start(&wait);
    let Some(terminal) = Terminal::run(&gateway, 80, "go") else { return };
    terminal.shows("first");
    assert!(!terminal.screen().contains("exit="));
    fs::write(&pass, "").unwrap();
    terminal.shows("first second\nexit=0");
}

#[test]
fn stdout_has_the_answer_without_the_output_of_failed_attempts() {
    let dir = tempfile::tempdir().unwrap();
    let tried = dir.path().join("tried");
    let gateway = Gateway::start(&format!(
        "if test -e {0}; then printf 'the full answer'; else touch {0}; printf 'the fu\\nhalf'; exit 3; fi",
        quoted(tried)
    ));
    let said = gateway.chat(["go"]).output().unwrap();
    let errors = String::from_utf8_lossy(&said.stderr).into_owned();
    assert_eq!(String::from_utf8_lossy(&said.stdout), "the full answer\n", "{errors}");
    assert!(errors.contains("  | the fu\n  | half\n") && errors.contains("; trying again\n"), "{errors}");
}

#[test]
fn a_message_that_begins_like_a_path_is_no_command() {
    let gateway = Gateway::start("cat");
    for (message, answer) in [("/etc/hosts is wrong", "/etc/hosts is wrong\n"), ("//help", "/help\n")] {
        let said = gateway.chat([message]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&said.stdout), answer);
    }
    let help = gateway.chat(["/help"]).output().unwrap();
    assert!(String::from_utf8_lossy(&help.stdout).contains("/new [@agent] [title]"));
}

#[test]
fn stdin_is_the_message_and_stdout_goes_into_a_pipe() {
    let gateway = Gateway::start("tr a-z A-Z");
    for message in [None, Some("-")] {
        let mut chat = gateway.chat(message);
        let mut chat = chat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        chat.stdin.take().unwrap().write_all(b"two\nlines\n").unwrap();
        let said = chat.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&said.stdout), "TWO\nLINES\n");
    }
}

#[test]
fn an_answer_that_is_six_times_as_long_as_json_is_printed_whole() {
    let gateway = Gateway::start(r"head -c 3000000 /dev/zero | tr '\0' '\001'");
    let said = gateway.chat(["go"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stderr), "");
    let (answer, end) = said.stdout.split_at(3_000_000);
    assert!(answer.iter().all(|byte| *byte == 1) && end == b"\n", "{} bytes", said.stdout.len());
}

#[test]
fn a_reader_that_closes_the_pipe_is_no_error() {
    let gateway = Gateway::start("yes | head -n 100000");
    let chat = format!("set -o pipefail; {} go | head -n 1", quoted(env!("CARGO_BIN_EXE_thread-chat")));
    assert_eq!(gateway.run("bash").arg("-c").arg(chat).quiet(), "y\n");
}

#[test]
fn an_agent_that_fails_is_exit_1_with_its_reason() {
    let gateway = Gateway::start("echo out of order >&2; exit 3");
    let said = gateway.chat(["hello"]).output().unwrap();
    let errors = String::from_utf8_lossy(&said.stderr).into_owned();
    assert_eq!(said.status.code(), Some(1), "{errors}");
    // What the program wrote is for its owner, in the session's log.
    assert!(errors.contains("Error: the agent program ended with exit code 3"), "{errors}");
    assert!(!errors.contains("out of order"), "{errors}");
}

#[test]
fn the_last_session_is_continued_and_new_starts_another() {
    let gateway = Gateway::start("cat");
    let session_of = |args: &[&str]| {
        let said = gateway.chat(args.iter().copied().chain(["--json"])).output().unwrap();
        let lines = String::from_utf8(said.stdout).unwrap();
        let last =
            lines.lines().last().unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&said.stderr)));
        let event = event(last);
        assert_eq!(event["event"], "final", "{lines}");
        event["payload"]["sessionId"].as_str().unwrap().to_owned()
    };
    let first = session_of(&["one"]);
    assert_eq!(session_of(&["two"]), first);
    let second = session_of(&["three", "--new"]);
    assert_ne!(second, first);
    assert_eq!(session_of(&["four"]), second);
    assert_eq!(session_of(&["five", "--session", &first]), first);

    let listed = gateway.chat(["--sessions"]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let lines: Vec<&str> = listed.lines().collect();
    assert_eq!(lines.len(), 2, "{listed}");
    assert!(lines[0].starts_with(&first) && lines[0].ends_with("one"), "{listed}");
    assert!(lines[1].starts_with(&second) && lines[1].ends_with("three"), "{listed}");

    let history = gateway.chat(["--history", "2"]).stdin(Stdio::null()).output().unwrap();
    let history = String::from_utf8(history.stdout).unwrap();
    assert_eq!(history, "user: five\nassistant: five\n");
}

#[test]
fn a_gateway_that_is_killed_and_comes_back_loses_nothing() {
    let gate = tempfile::tempdir().unwrap();
    let pass = gate.path().join("pass");
    let wait = format!("printf 'one '; until test -e {}; do sleep 0.05; done; printf two", quoted(&pass));
    let mut gateway = Gateway::start(&wait);
    let mut chat = gateway.chat(["go", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(chat.stdout.take().unwrap()).lines().map(|line| event(&line.unwrap()));
    let mut events = Vec::new();
    while events.last().is_none_or(|event: &Value| event["event"] != "token") {
        events.push(lines.next().unwrap());
    }
    gateway.kill();
    fs::write(&pass, "").unwrap();
    gateway.restart();
    events.extend(lines);
    let tokens = events.iter().filter(|event| event["event"] == "token");
    let text: String = tokens.map(|event| event["payload"]["content"].as_str().unwrap()).collect();
    assert_eq!(text, "one two");
    assert_eq!(events.last().unwrap()["payload"]["content"], "one two");
    let seqs: Vec<i64> = events.iter().filter_map(|event| event["seq"].as_i64()).collect();
    assert!(seqs.is_sorted_by(|a, b| a < b), "{seqs:?}");
    assert!(chat.wait().unwrap().success());
}

/// An agent that works for ever, and the file that it makes when it begins.
fn busy(dir: &Path) -> (String, PathBuf) {
    let begun = dir.join("begun");
    (format!("touch {}; exec sleep 1000", quoted(&begun)), begun)
}

#[test]
fn a_session_that_is_removed_while_its_agent_works_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, begun) = busy(dir.path());
    let gateway = Gateway::start(&agent);
    let chat = gateway.chat(["go"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the agent to work", || begun.exists());
    let listed = gateway.chat(["--sessions"]).output().unwrap();
    let session = gateway.root().join(String::from_utf8(listed.stdout).unwrap().split(' ').next().unwrap());
    let away = gateway.root().join("away");
    fs::rename(&session, &away).unwrap();
    let said = harness::ends(chat);
    // Moved back, so that the harness stops its agent.
    fs::rename(&away, &session).unwrap();
    let errors = String::from_utf8_lossy(&said.stderr).into_owned();
    assert_eq!(said.status.code(), Some(1), "{errors}");
    assert!(errors.contains("the session was deleted - "), "{errors}");
}

#[test]
fn ctrl_c_cancels_the_run_and_is_exit_130() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, begun) = busy(dir.path());
    let gateway = Gateway::start(&agent);
    let chat = gateway.chat(["go"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the agent to work", || begun.exists());
    thread_testkit::send(chat.id(), Signal::INT);
    let said = harness::ends(chat);
    let errors = String::from_utf8_lossy(&said.stderr).into_owned();
    assert_eq!(said.status.code(), Some(130), "{errors}");
    assert!(errors.contains("cancelled"), "{errors}");
}

#[test]
fn errors_before_the_first_message_say_what_to_do() {
    let world = World::new();
    let nobody = harness::chat_in(&world, ["hello"]).output().unwrap();
    assert_eq!(
        (nobody.status.code(), String::from_utf8_lossy(&nobody.stderr).as_ref()),
        (
            Some(1),
            "Error: no gateway has been started here - start one with `thread serve`, or name one with --url\n"
        )
    );
    // A directory, since root may read every file.
    fs::create_dir_all(world.path("root/address")).unwrap();
    let root = world.path("root");
    let unreadable = harness::chat_in(&world, ["hello", "--root"]).arg(&root).output().unwrap();
    let errors = String::from_utf8_lossy(&unreadable.stderr).into_owned();
    assert!(unreadable.status.code() == Some(1) && errors.contains("Error: cannot read "), "{errors}");

    let gateway = Gateway::start("cat");
    for (args, code, error) in [
        (vec!["hello", "--url", "ftp://example.org"], 2, "is not a gateway's address"),
        (vec!["  "], 2, "the message is empty"),
        (vec!["hello", "--session", "6e0a5f9e-0d2b-4f43-9a53-5c9f6c0f6d0a"], 1, "the gateway refused"),
        (vec!["hello", "--session", "x"], 2, "invalid value"),
        (vec!["hello", "--nonsense"], 2, "see `thread chat --help`"),
        (vec!["hello", "--history", "0"], 2, "0 is not in 1..=200"),
        (vec!["hello", "--url", "127.0.0.1:1"], 1, "cannot reach the gateway"),
        (vec!["hello", "--url", "me:secret@127.0.0.1:1"], 2, "is not a gateway's address"),
    ] {
        let said = gateway.chat(args.clone()).output().unwrap();
        let errors = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(said.status.code(), Some(code), "{args:?}: {errors}");
        assert!(errors.contains(error), "{args:?}: {errors}");
        assert!(errors.starts_with("Error: ") && errors.contains(" - "), "{args:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{args:?}: {errors}");
    }
    let mut chat = gateway.chat(["-"]);
    let mut chat = chat.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    chat.stdin.take().unwrap().write_all(&vec![b'x'; 8 * 1024 * 1024]).unwrap();
    let said = harness::ends(chat);
    let errors = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.status.code() == Some(1) && errors.contains("larger than 1 MiB"), "{errors}");

    let wrong = gateway.chat(["hello"]).env("THREAD_TOKEN", "wrong").output().unwrap();
    let errors = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(wrong.status.code() == Some(1) && errors.contains("- set THREAD_TOKEN"), "{errors}");
}

#[test]
fn a_server_that_is_not_a_gateway_is_reported_as_such() {
    let world = World::new();
    for (answer, error) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", "is not a gateway: it answered 200"),
        ("HTTP/1.1 301 Moved\r\nlocation: https://x/\r\ncontent-length: 0\r\n\r\n", "is not a gateway"),
        ("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n", "does not serve"),
        ("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n", "cannot reach the gateway"),
        ("SSH-2.0-OpenSSH_9.9\r\n", "is not a gateway"),
        ("", "cannot reach the gateway"),
    ] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let mut head = [0; 4096];
            let _ = client.read(&mut head).unwrap();
            client.write_all(answer.as_bytes()).unwrap();
        });
        let said = harness::chat_in(&world, ["hello", "--url", &url]).output().unwrap();
        server.join().unwrap();
        let errors = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(said.status.code(), Some(1), "{answer}: {errors}");
        assert!(errors.contains(error) && errors.contains(" - "), "{answer}: {errors}");
    }
}

#[test]
fn a_last_session_that_is_gone_is_replaced_and_one_that_is_damaged_is_not() {
    let gateway = Gateway::start("cat");
    let session = || {
        let listed = gateway.chat(["--sessions"]).output().unwrap();
        String::from_utf8(listed.stdout).unwrap().split(' ').next().unwrap().to_owned()
    };
    assert!(gateway.chat(["one"]).output().unwrap().status.success());
    let first = session();
    fs::write(gateway.root().join(&first).join("events.db"), "damaged").unwrap();
    let said = gateway.chat(["two"]).output().unwrap();
    let errors = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.status.code() == Some(1) && errors.contains("--new"), "{errors}");
    assert_eq!(session(), first);
    fs::remove_dir_all(gateway.root().join(&first)).unwrap();
    let said = gateway.chat(["three"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout), "three\n");
    assert_ne!(session(), first);
}

#[test]
fn a_conversation_in_a_terminal_wide_and_narrow() {
    let gateway = Gateway::start("sed 's/^/echo: /'");
    for columns in [20, 40, 160] {
        let Some(terminal) = Terminal::start(&gateway, columns, "") else { return };
        terminal.types("hello there", &["Enter"]);
        terminal.shows("echo: hello there");
        terminal.prompts();
        terminal.types("/help", &["Enter"]);
        terminal.shows("/history");
        terminal.prompts();
        // The previous line, recalled from the history.
        terminal.types("", &["Up", "Up", "Enter"]);
        wait_until("the answer to come twice", || {
            terminal.screen().matches("echo: hello there").count() >= 2
        });
        terminal.prompts();
        terminal.types("", &["C-d"]);
        terminal.shows("exit=0");
    }
}

#[test]
fn a_conversation_goes_where_stdout_goes_and_its_prompt_to_the_terminal() {
    let gateway = Gateway::start("cat");
    let dir = tempfile::tempdir().unwrap();
    let (text, json) = (dir.path().join("text"), dir.path().join("json"));
    for (options, file) in [("", &text), ("--json", &json)] {
        let options = format!("{options} >{}", quoted(file));
        let Some(terminal) = Terminal::start(&gateway, 80, &options) else { return };
        for line in ["one", "two"] {
            terminal.types(line, &["Enter"]);
            wait_until("the answer in the file", || {
                fs::read_to_string(file).is_ok_and(|said| said.contains(line))
            });
            terminal.prompts();
        }
        terminal.types("", &["C-d"]);
        terminal.shows("exit=0");
    }
    assert_eq!(fs::read_to_string(text).unwrap(), "one\ntwo\n");
    let lines = fs::read_to_string(json).unwrap();
    let events: Vec<Value> = lines.lines().map(event).collect();
    let finals = events.iter().filter(|event| event["event"] == "final");
    let answers: Vec<&str> = finals.map(|event| event["payload"]["content"].as_str().unwrap()).collect();
    assert_eq!(answers, ["one", "two"]);
    let seqs: Vec<i64> = events.iter().filter_map(|event| event["seq"].as_i64()).collect();
    assert!(seqs.is_sorted_by(|a, b| a < b), "{seqs:?}");
}

#[test]
fn in_a_terminal_ctrl_c_cancels_a_run_and_the_conversation_continues() {
    let gateway = Gateway::start("read line; echo \"got $line\"; test \"$line\" = quick || exec sleep 1000");
    let Some(terminal) = Terminal::start(&gateway, 100, "") else { return };
    terminal.types("slow", &["Enter"]);
    terminal.shows("got slow");
    terminal.types("", &["C-c"]);
    terminal.shows("cancelled");
    terminal.prompts();
    terminal.types("quick", &["Enter"]);
    terminal.shows("got quick");
    terminal.prompts();
    terminal.types("", &["C-d"]);
    terminal.shows("exit=0");
}

#[test]
fn an_agent_cannot_steer_the_terminal() {
    // The last two are a control sequence introducer and DEL; raw, they are valid JSON.
    let gateway = Gateway::start(r"printf 'before\033[2J\033]0;owned\007after\302\2332J\177'");
    let Some(json) = Terminal::run(&gateway, 100, "x --json") else { return };
    json.shows("exit=0");
    assert!(
        json.screen().contains(r"before\u001b[2J\u001b]0;owned\u0007after\u009b2J\u007f"),
        "{}",
        json.screen()
    );
    let Some(terminal) = Terminal::start(&gateway, 100, "") else { return };
    terminal.types("x", &["Enter"]);
    terminal.shows(r"before\u{1b}[2J\u{1b}]0;owned\u{7}after\u{9b}2J\u{7f}");
    terminal.prompts();
    terminal.types("", &["C-d"]);
    terminal.shows("exit=0");
}

#[test]
fn it_says_its_version() {
    let said = Command::new(env!("CARGO_BIN_EXE_thread-chat")).arg("--version").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout), format!("thread chat {}\n", env!("CARGO_PKG_VERSION")));
}
