use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::Value;
use thread_testkit::{Run, World};

const ONE: [&str; 5] = ["push", "--source", "self", "--type", "record"];

fn push(world: &World) -> Run {
    world.thread(ONE)
}

fn content(world: &World, id: i64) -> String {
    world.db().query_row("SELECT content FROM events WHERE id = ?", [id], |row| row.get(0)).unwrap()
}

#[test]
fn push_prints_the_bare_id_and_stores_the_event() {
    let world = World::with_thread();
    let args = ["push", "--source", "internal:dm:default:warden", "--type", "message", "--content", "hi"];
    assert_eq!(world.thread(args).quiet(), "1\n");
    assert_eq!(push(&world).arg("--subtype").arg("toolcall").arg("--content").arg("").quiet(), "2\n");
    let lines: Vec<String> =
        world.thread(["peek", "--last-event-id", "0"]).quiet().lines().map(cut_time).collect();
    assert_eq!(
        lines,
        [
            r#"{"id":1,"source":"internal:dm:default:warden","type":"message","subtype":null,"content":"hi"}"#,
            r#"{"id":2,"source":"self","type":"record","subtype":"toolcall","content":""}"#
        ]
    );
    world.assert_log_is_exact();
}

/// The line without its timestamp, whose format is checked.
fn cut_time(line: &str) -> String {
    let (before, rest) = line.split_once("\"created_at\":\"").unwrap();
    let (time, after) = rest.split_once("\",").unwrap();
    let form: String = time.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert_eq!(form, "0000-00-00T00:00:00.000Z", "{line}");
    format!("{before}{after}")
}

#[test]
fn json_is_the_stored_event_and_the_outcome_of_the_wake_up() {
    let world = World::with_thread();
    let push = |notifier: &str| {
        let run = world.thread(ONE).arg("--content").arg("a \"b\"\n").arg("--json");
        run.env("THREAD_NOTIFIER", notifier).quiet()
    };
    let answer = push("embedded");
    assert_eq!(
        cut_time(&answer),
        concat!(
            r#"{"id":1,"source":"self","type":"record","subtype":null,"#,
            r#""content":"a \"b\"\n","dispatch":"embedded"}"#,
            "\n"
        )
    );
    let copy = &world.jsonl()[0];
    assert!(answer.starts_with(copy.strip_suffix('}').unwrap()), "{answer} is not the log's {copy}");
    assert!(push("off").ends_with(",\"dispatch\":\"off\"}\n"));
}

#[test]
fn content_from_a_file_is_kept_byte_for_byte() {
    let world = World::with_thread();
    let texts = [
        "one line\n",
        "",
        "\n\n",
        "no end",
        "a\0b\0",
        "\u{feff}é 🦀 \u{202e}\u{2028}\r\n",
        "`$(x)` \"'\\ \x1b[1m\x7f\t",
    ];
    for (at, text) in texts.iter().enumerate() {
        let id = at as i64 * 2 + 1;
        world.write("content", text);
        assert_eq!(push(&world).arg("--content-file").arg("content").quiet(), format!("{id}\n"));
        assert_eq!(push(&world).arg("--content-file=-").stdin(*text).quiet(), format!("{}\n", id + 1));
        assert_eq!(content(&world, id), *text);
        assert_eq!(content(&world, id + 1), *text);
    }
    let printed = world.thread(["peek", "--last-event-id", "0"]).quiet();
    let printed: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (at, text) in texts.iter().enumerate() {
        assert_eq!(printed[at * 2]["content"], **text);
    }
    world.assert_log_is_exact();
}

#[test]
fn content_of_five_megabytes_goes_through() {
    let world = World::with_thread();
    let text = "0123456789abcdé\n".repeat(5 * 1024 * 1024 / 17 + 1);
    assert!(text.len() >= 5 * 1024 * 1024);
    assert_eq!(push(&world).arg("--content-file").arg("-").stdin(text.as_str()).quiet(), "1\n");
    assert!(content(&world, 1) == text, "the content came out differently");
    world.assert_log_is_exact();
}

#[test]
fn content_that_is_not_utf8_is_refused() {
    let world = World::with_thread();
    world.write("content", b"good until \xff here");
    let error = push(&world).arg("--content-file").arg("content").fails(2);
    assert!(error.contains("not UTF-8 (byte 11)"), "{error}");
    push(&world).arg("--content-file").arg("-").stdin(*b"\xc3").fails(2);
    assert_eq!(world.query("SELECT count(*) FROM events"), 0);
}

#[test]
fn content_that_cannot_be_read_is_exit_1() {
    let world = World::with_thread();
    let error = push(&world).arg("--content-file").arg("nowhere.txt").fails(1);
    assert!(error.contains("nowhere.txt") && error.contains("nothing was stored"), "{error}");
    push(&world).arg("--content-file").arg(".").fails(1);
    assert_eq!(world.query("SELECT count(*) FROM events"), 0);
}

#[test]
fn content_from_a_stdin_that_is_closed_is_no_empty_event() {
    let world = World::with_thread();
    let push = "thread push --source s --type message --content-file -";
    let error = world.sh(&format!("{push} <&-")).fails(1);
    assert!(error.contains("stdin, which is closed") && error.contains("nothing was stored"), "{error}");
    assert_eq!(world.query("SELECT count(*) FROM events"), 0);
    // An explicit empty input is accepted.
    assert_eq!(world.sh(&format!("{push} </dev/null")).quiet(), "1\n");
    assert_eq!(world.sh("thread push --source s --type message --content '' <&-").quiet(), "2\n");
    // A closed stdin is not an empty batch either.
    for push in ["thread push --batch", "thread push --lines"] {
        let error = world.sh(&format!("{push} <&-")).fails(1);
        assert!(error.contains("stdin, which is closed") && error.contains("nothing was stored"), "{error}");
        assert_eq!(world.sh(&format!("{push} </dev/null")).quiet(), "0\n");
    }
    // An input that cannot be read does not count as empty.
    world.write("written", "{}");
    for push in [push, "thread push --batch", "thread push --lines"] {
        for only_written in ["0>/dev/null", "0>>written"] {
            let error = world.sh(&format!("{push} {only_written}")).fails(1);
            assert!(error.contains("cannot read") && error.contains("nothing was stored"), "{error}");
        }
    }
    assert_eq!(world.query("SELECT count(*) FROM events"), 2);
}

#[test]
fn values_may_begin_with_a_hyphen() {
    let world = World::with_thread();
    let args = ["push", "--source", "-s", "--type", "record", "--subtype", "-u", "--content", "--content"];
    assert_eq!(world.thread(args).quiet(), "1\n");
    let line = world.jsonl().remove(0);
    assert!(
        line.ends_with(r#""source":"-s","type":"record","subtype":"-u","content":"--content"}"#),
        "{line}"
    );
}

#[test]
fn any_source_is_stored_without_a_word() {
    let world = World::with_thread();
    for source in ["external:webhook:shop", "internal:", "anything at all: yes"] {
        world.thread(["push", "--source", source, "x"]).quiet();
    }
    let odd = r#"{"source":"external:x","content":"odd"}"#;
    assert_eq!(world.thread(["push", "--batch"]).stdin(odd).quiet(), "1\n");
}

#[test]
fn without_content_it_is_read_from_a_pipe_or_a_file() {
    let world = World::with_thread();
    let content = || world.thread(["peek", "-n", "1", "--format", "content"]).quiet();
    world.thread(["push"]).stdin("piped\n").quiet();
    assert_eq!(content(), "piped\n");
    world.write("file", "from a file");
    world.sh("thread push --type record <file").quiet();
    assert_eq!(content(), "from a file\n");
    world.thread(["push", "given"]).stdin("not read").quiet();
    assert_eq!(content(), "given\n");
    // A pipe in which nothing comes, and what is no pipe, are no content.
    for nothing in ["true | thread push", "thread push </dev/null", "thread push <&-"] {
        let error = world.sh(nothing).fails(2);
        assert!(error.starts_with("Error: the event has no content - "), "{nothing}: {error}");
    }
    // An empty event must be asked for.
    world.sh("true | thread push -").quiet();
    assert_eq!(content(), "\n");
}

#[test]
fn a_note_says_that_content_is_awaited() {
    let world = World::with_thread();
    let mut child = world.thread(["push"]).spawn();
    let stdin = child.stdin.take().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "Note: waiting for stdin, which is to be the event's content");
    drop(stdin);
    assert_eq!(child.wait().unwrap().code(), Some(2));
}

#[test]
fn a_wrong_type_or_source_is_refused() {
    let world = World::with_thread();
    for (source, kind) in [
        ("self", "Message"),
        ("self", "event"),
        ("self", ""),
        ("self", "message "),
        ("self", "a\nb"),
        ("", "message"),
        ("a\nb", "message"),
        ("a\tb", "message"),
        ("a\u{85}b", "message"),
        ("\x1b[31mred", "message"),
    ] {
        let error = world.thread(["push", "--source", source, "--type", kind, "--content", "x"]).fails(2);
        assert!(!error.chars().any(char::is_control), "{error:?}");
    }
    assert_eq!(world.query("SELECT count(*) FROM events"), 0);
}

#[test]
fn missing_and_clashing_arguments_are_exit_2() {
    let world = World::with_thread();
    for args in [
        &["push"][..],
        &["push", "--source", "self", "--type", "record"],
        &["push", "--source", "self", "--type", "record", "--content", "x", "--content-file", "f"],
        &["push", "--source", "self", "--type", "record", "--content", "x", "--content", "y"],
        &["push", "--source", "self", "--type", "record", "--content"],
        &["push", "--source", "self", "--type", "record", "--content", "x", "more"],
        &["push", "--source", "self", "--type", "record", "--content", "x", "--colour"],
        &["push", "--batch", "--content-file", "f"],
        &["push", "--batch", "--meta", "a=b"],
        &["push", "--batch", "--metadata", "{}"],
        &["push", "--batch", "--idempotency-key", "k"],
    ] {
        world.thread(args).fails(2);
    }
    assert_eq!(world.query("SELECT count(*) FROM events"), 0);
}

#[test]
fn an_answer_that_cannot_be_printed_is_a_warning_because_the_event_is_stored() {
    let world = World::with_thread();
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    for (at, args) in
        [&["--content", "x"][..], &["--content", "x", "--json"], &["--batch"]].iter().enumerate()
    {
        let mut run = push(&world);
        run.command().args(*args).stdin(Stdio::piped()).stdout(full()).stderr(Stdio::piped());
        let mut child = run.command().spawn().unwrap();
        let line = "{\"source\":\"self\",\"type\":\"record\",\"content\":\"x\"}\n";
        // Only the batch reads stdin; the other commands may have exited already.
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), line.as_bytes()).ok();
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        assert!(stderr.starts_with("Warning: ") && stderr.contains("stored"), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert_eq!(world.query("SELECT count(*) FROM events"), at as i64 + 1);
    }
}

#[test]
fn a_closed_stdout_does_not_fail_a_push() {
    let world = World::with_thread();
    let command = "thread push --source self --type record --content x";
    world.sh(&format!("{command} >&-")).ends_with(0);
    world.sh(&format!("{command} 2>&- >&- <&-")).ends_with(0);
    // The reader is gone before anything is printed.
    world.sh(&format!("mkfifo gone; sleep 0.01 <gone & exec >gone; wait; {command}")).quiet();
    assert_eq!(world.query("SELECT count(*) FROM events"), 3);
    assert_eq!(world.query("SELECT count(*) FROM events WHERE content = 'x'"), 3);
    world.assert_log_is_exact();
}

#[test]
fn a_log_that_cannot_be_written_is_a_warning_and_the_next_push_repairs_it() {
    for in_the_way in ["inbox/events.jsonl", "inbox/run/_jsonl"] {
        let world = World::with_thread();
        assert_eq!(world.push("before"), 1);
        fs::remove_file(world.path(in_the_way)).unwrap();
        fs::create_dir(world.path(in_the_way)).unwrap();
        let run = push(&world).arg("--content").arg("during");
        let (stdout, stderr) = run.ends_with(0);
        assert_eq!(stdout, "2\n");
        assert!(stderr.starts_with("Warning: events.jsonl is behind"), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        let logged = world.log();
        assert!(
            logged.iter().any(|line| line.starts_with("[WARN] push: events.jsonl is behind")),
            "{logged:?}"
        );
        fs::remove_dir(world.path(in_the_way)).unwrap();
        assert_eq!(push(&world).arg("--content").arg("after").quiet(), "3\n");
        assert_eq!(world.jsonl().len(), 3);
        world.assert_log_is_exact();
    }
}

#[test]
fn a_batch_is_stored_though_the_log_cannot_be_written() {
    let world = World::with_thread();
    fs::remove_file(world.path("inbox/events.jsonl")).unwrap();
    fs::create_dir(world.path("inbox/events.jsonl")).unwrap();
    let line = "{\"source\":\"self\",\"type\":\"record\",\"content\":\"x\"}\n";
    let (stdout, stderr) = world.thread(["push", "--batch"]).stdin(line.repeat(3)).ends_with(0);
    assert_eq!(stdout, "3\n");
    assert!(stderr.starts_with("Warning: "), "{stderr}");
    fs::remove_dir(world.path("inbox/events.jsonl")).unwrap();
    assert_eq!(world.push("after"), 4);
    world.assert_log_is_exact();
}

#[test]
fn a_push_without_a_log_is_still_a_push() {
    let world = World::with_thread();
    fs::remove_dir(world.inbox().join("logs")).unwrap();
    assert_eq!(push(&world).arg("--content").arg("x").quiet(), "1\n");
    world.assert_log_is_exact();
}

#[test]
fn the_log_says_who_pushed_what() {
    let world = World::with_thread();
    let source = "external:telegram:tg-main:dm:alice:alice";
    world.thread(["push", "--source", source, "--type", "message", "--content", "secret"]).quiet();
    assert_eq!(world.log()[0], format!("[INFO] push: source={source} type=message id=1"));
    assert!(!world.read("inbox/logs/thread.log").contains("secret"));
}
