//! Positional arguments: content, consumer, handler and event id without their options.

use serde_json::Value;
use thread_testkit::World;
use thread_testkit::users::{User, as_user, shared_world};

fn last(world: &World) -> Value {
    serde_json::from_str(world.thread(["peek", "--tail", "1"]).quiet().trim()).unwrap()
}

/// The user's name as it appears in a source.
fn user(world: &World) -> String {
    world.sh("id=$(ps -o user:32= -p $$); printf %s \"$id\"").quiet().trim().to_lowercase()
}

#[test]
fn a_word_is_a_message_from_the_user() {
    let world = World::with_thread();
    assert_eq!(world.thread(["push", "hello"]).quiet(), "1\n");
    let event = last(&world);
    assert_eq!(event["content"], "hello");
    assert_eq!(event["type"], "message");
    assert_eq!(event["source"], format!("internal:dm:default:{}", user(&world)));
    for words in [&["push", ""][..], &["push", "--", "-x"], &["push", "--type", "record", "--json", "x y"]] {
        world.thread(words).quiet();
    }
    assert_eq!(world.query("SELECT count(*) FROM events WHERE content IN ('', '-x', 'x y')"), 3);
}

#[test]
fn in_a_handler_the_source_is_the_agent_itself() {
    let world = World::with_thread();
    world.thread(["push", "hello"]).env("THREAD_CONSUMER", "bot").quiet();
    assert_eq!(last(&world)["source"], "self");
    world.thread(["push", "hello", "--source", "x"]).env("THREAD_CONSUMER", "bot").quiet();
    assert_eq!(last(&world)["source"], "x");
}

#[test]
fn a_user_whom_the_system_does_not_know_is_named_by_the_environment() {
    let Some(world) = shared_world() else { return };
    world.sh("chmod a+rwx .").quiet();
    let stranger = User { id: 54321, also: None };
    let push = |variables: &str| {
        world.thread(["init", "theirs"]).output();
        world.sh("chmod -R a+rwX theirs").quiet();
        as_user(&world, stranger, &format!("{variables} exec thread push -t theirs x")).ok();
        let event = world.thread(["peek", "-t", "theirs", "--tail", "1"]).quiet();
        serde_json::from_str::<Value>(event.trim()).unwrap()["source"].as_str().unwrap().to_owned()
    };
    assert_eq!(push("USER='Ada: L'"), "internal:dm:default:ada--l");
    assert_eq!(push("LOGNAME=ada"), "internal:dm:default:ada");
    assert_eq!(push(""), "internal:dm:default:54321");
}

#[test]
fn a_hyphen_reads_stdin_byte_for_byte() {
    let world = World::with_thread();
    world.thread(["push", "-"]).stdin("one\ntwo\n").quiet();
    assert_eq!(last(&world)["content"], "one\ntwo\n");
    let error = world.thread(["push", "-"]).stdin(*b"\xc3").fails(2);
    assert!(error.contains("from stdin is not UTF-8"), "{error}");
}

#[test]
fn the_option_content_takes_a_hyphen_literally_and_warns_at_a_pipe() {
    let world = World::with_thread();
    let warning = world.thread(["push", "--content", "-"]).stdin("piped").warns();
    assert!(warning.contains("`thread push -` reads"), "{warning}");
    assert_eq!(last(&world)["content"], "-");
    world.write("file", "text");
    assert_eq!(world.sh("thread push --content - <file").quiet(), "2\n");
    assert_eq!(world.sh("thread push --content - </dev/null").quiet(), "3\n");
}

#[test]
fn lines_are_the_contents_of_events() {
    let world = World::with_thread();
    let push = world.thread(["push", "--lines", "--source", "ci", "--subtype", "log", "--meta", "run=7"]);
    assert_eq!(push.stdin("one\n\n two \r\nthr\u{e9}e {\n\"4\"").quiet(), "4\n");
    let events = world.thread(["peek", "--last-event-id", "0"]).quiet();
    let events: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let contents: Vec<&str> = events.iter().map(|event| event["content"].as_str().unwrap()).collect();
    assert_eq!(contents, ["one", " two ", "thr\u{e9}e {", "\"4\""]);
    for event in &events {
        assert_eq!((&event["source"], &event["subtype"]), (&"ci".into(), &"log".into()));
        assert_eq!((&event["type"], &event["metadata"]["run"]), (&"message".into(), &"7".into()));
    }
    let count: Value = serde_json::from_str(&world.thread(["push", "--lines", "--json"]).quiet()).unwrap();
    assert_eq!(count["count"], 0);
    world.assert_log_is_exact();
}

#[test]
fn lines_are_stored_all_or_none() {
    let world = World::with_thread();
    let error = world.thread(["push", "--lines"]).stdin(*b"good\n\xc3\n").fails(2);
    assert!(error.starts_with("Error: line 2 of the batch is not valid UTF-8 - "), "{error}");
    for clash in [&["--batch"][..], &["--content", "x"], &["word"], &["--idempotency-key", "k"]] {
        world.thread(["push", "--lines"].iter().chain(clash)).stdin("x").fails(2);
    }
    assert_eq!(world.query("SELECT count(*) FROM events"), 0);
}

#[test]
fn a_line_that_would_take_much_memory_is_refused() {
    let world = World::with_thread();
    let line = |length: usize| format!("short\n{}\nshort\n", "x".repeat(length));
    let most = 16 * 1024 * 1024;
    assert_eq!(
        world.thread(["push", "--lines"]).stdin(line(most)).fails(2),
        "Error: line 2 of the batch is longer than 16777216 bytes - fix that line and push the whole batch again; \
         nothing was stored"
    );
    assert_eq!(world.query("SELECT count(*) FROM events"), 0);
    assert_eq!(world.thread(["push", "--lines"]).stdin(line(most - 1)).quiet(), "3\n");
}

#[test]
fn an_unknown_type_suggests_a_subtype() {
    let world = World::with_thread();
    let error = world.thread(["push", "--type", "log", "x"]).fails(2);
    assert!(error.contains("'log' is neither message nor record") && error.contains("--subtype"), "{error}");
}

#[test]
fn consumers_handlers_and_ids_are_words() {
    let world = World::with_thread();
    world.script("fail.sh", "cat >/dev/null; exit 3");
    let subscribe = ["subscribe", "bot", "./fail.sh", "--deliver", "stdin", "--max-attempts", "1"];
    assert_eq!(world.off(subscribe).quiet(), "bot\n");
    world.off(["push", "--lines"]).stdin("one\ntwo\n").quiet();
    assert_eq!(world.off(["pause", "bot"]).quiet(), "bot\n");
    assert_eq!(world.off(["ack", "bot", "1"]).quiet(), "1\n");
    assert_eq!(world.off(["seek", "bot", "earliest"]).quiet(), "0\n");
    assert_eq!(world.off(["pop", "bot", "--resume"]).quiet().lines().count(), 2);
    assert_eq!(world.off(["ack", "bot", "--event-id", "1"]).quiet(), "1\n");
    assert_eq!(world.thread(["resume", "bot"]).quiet(), "bot\n");
    world.wait_until_quiet();
    let logs = world.thread(["logs", "bot"]).quiet();
    assert!(logs.contains("ended exit=3"), "{logs}");
    assert_eq!(world.thread(["dead", "list", "bot"]).quiet().lines().count(), 1);
    assert!(world.thread(["dead", "show", "bot", "2"]).quiet().contains("\"content\":\"two\""));
    assert_eq!(world.thread(["dead", "discard", "bot", "2"]).quiet(), "1\n");
    world.thread(["stop", "bot"]).fails(1);
    assert_eq!(world.thread(["unsubscribe", "bot"]).quiet(), "bot\n");
}

#[test]
fn if_the_consumer_is_known_a_single_word_is_the_next_argument() {
    let world = World::with_thread();
    world.off(["subscribe", "--consumer", "bot", "true"]).quiet();
    world.off(["push", "--lines"]).stdin("one\ntwo\nthree\n").quiet();
    let here = |words: &[&str]| world.off(words).env("THREAD_CONSUMER", "bot");
    assert_eq!(here(&["ack", "1"]).quiet(), "1\n");
    assert_eq!(world.off(["ack", "--consumer", "bot", "2"]).quiet(), "2\n");
    assert_eq!(here(&["seek", "1"]).quiet(), "1\n");
    assert_eq!(here(&["ack", "bot", "3"]).quiet(), "3\n");
    assert_eq!(here(&["dead", "list", "bot"]).quiet(), "");
    here(&["subscribe", "other", "true"]).quiet();
    // `subscribe` never takes the consumer's name from the environment.
    let error = here(&["subscribe", "true"]).fails(2);
    assert!(error.contains("no handler given"), "{error}");
}

#[test]
fn duplicate_and_missing_arguments_are_usage_errors() {
    let world = World::with_thread();
    world.idle_consumer("bot", "");
    for (words, what) in [
        (&["ack", "bot"][..], "no event id given"),
        (&["ack", "1", "--event-id", "1"], "no consumer"),
        (&["ack", "bot", "x"], "invalid event id 'x'"),
        (&["ack", "bot", "1", "--event-id", "1"], "the event id is given twice"),
        (&["ack", "bot", "1", "--consumer", "bot"], "the consumer is given twice"),
        (&["ack", ""], "no event id given"),
        (&["stop", ""], "the consumer's name is empty"),
        (&["stop"], "no consumer given"),
        (&["stop", "bot", "bot"], "unexpected argument"),
        (&["seek", "bot", "yesterday"], "invalid position 'yesterday'"),
        (&["subscribe", "bot"], "no handler given"),
        (&["subscribe", "bot", "true", "--handler", "true"], "the handler is given twice"),
        (&["subscribe", "bot", " "], "the handler is empty"),
        (&["dead", "show", "bot"], "no dead letter given"),
        (&["dead", "show", "bot", "1", "--all"], "both --all and an event id"),
    ] {
        let code = if what == "no consumer" { 1 } else { 2 };
        let error = world.thread(words).fails(code);
        assert!(error.starts_with(&format!("Error: {what}")), "{words:?}: {error}");
    }
}

#[test]
fn suggestions_name_no_hidden_alias() {
    let world = World::with_thread();
    for (typed, meant) in
        [("unsbu", "unsubscribe"), ("statsu", "info"), ("kil", "stop"), ("dead-leters", "dead")]
    {
        let error = world.thread([typed]).fails(2);
        assert!(error.contains(&format!("did you mean '{meant}'?")), "{typed}: {error}");
    }
}

#[test]
fn the_logs_of_the_only_consumer_need_no_name() {
    let world = World::with_thread();
    let none = world.thread(["logs"]).fails(2);
    assert!(none.starts_with("Error: no consumer is subscribed - "), "{none}");
    world.subscribe("bot", "echo hello; cat", &["--deliver", "stdin"]);
    world.push("x");
    world.wait_for_state("bot", "idle");
    world.wait_until_quiet();
    assert!(world.thread(["logs"]).quiet().contains("hello"));
    world.idle_consumer("ada", "");
    assert_eq!(world.thread(["logs"]).fails(2), "Error: no consumer given - give one of ada, bot");
}

#[test]
fn a_handler_that_pushes_elsewhere_is_named_as_the_source() {
    let world = World::with_thread();
    world.thread(["init", "other"]).quiet();
    let source = |words: &[&str], thread: &str| {
        let run = world.thread(words).arg("--thread").arg(thread).env("THREAD_CONSUMER", "Bot 1");
        let id = run.env("THREAD_NOTIFIER", "off").quiet();
        let db = rusqlite::Connection::open(world.path(thread).join("events.db")).unwrap();
        let sql = "SELECT source FROM events WHERE id = ?";
        db.query_row(sql, [id.trim().parse::<i64>().unwrap()], |row| row.get::<_, String>(0)).unwrap()
    };
    std::os::unix::fs::symlink("inbox", world.path("link")).unwrap();
    assert_eq!(source(&["push", "x"], "inbox"), "self");
    assert_eq!(source(&["push", "x"], "link"), "self");
    assert_eq!(source(&["push", "x"], "other"), "internal:dm:inbox:bot-1");
    assert_eq!(source(&["reply", "--to", "1", "x"], "other"), "internal:dm:inbox:bot-1");
    assert_eq!(source(&["push", "--source", "self", "x"], "other"), "self");
}
