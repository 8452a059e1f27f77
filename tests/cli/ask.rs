//! `thread ask` and `thread reply`: a question and its answer.

use std::os::unix::process::ExitStatusExt;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use thread_testkit::{Run, World, wait_until};

/// Asks from outside, with the source `internal:dm:default:ada`.
fn ask(world: &World, question: &str, timeout: &str) -> Run {
    let who = ["--source", "internal:dm:default:ada", "--type", "message"];
    world.thread(["ask", "--timeout", timeout].iter().chain(&who)).arg("--content").arg(question)
}

fn reply(world: &World, to: i64, answer: &str) -> Run {
    let run = world.thread(["reply", "--source", "self", "--type", "message", "--content", answer]);
    run.arg("--to").arg(to.to_string())
}

/// Subscribes a consumer that answers each message with its number.
fn answering_consumer(world: &World) {
    let script = "while IFS= read -r event; do
    id=${event#*:}
    id=${id%%,*}
    thread reply --to \"$id\" --source self --type record --content \"answer to $id\" >/dev/null || exit 1
done";
    world.script("agent.sh", script);
    world.subscribe("agent", "./agent.sh", &["--deliver", "stdin", "--filter", "type = 'message'"]);
}

#[test]
fn ask_prints_the_content_of_the_answer() {
    let world = World::with_thread();
    answering_consumer(&world);
    assert_eq!(ask(&world, "One?", "2m").quiet(), "answer to 1\n");
    let answer: Value = serde_json::from_str(&ask(&world, "Two?", "2m").arg("--json").quiet()).unwrap();
    assert_eq!((&answer["id"], &answer["content"]), (&4.into(), &"answer to 3".into()));
    assert_eq!(answer["metadata"], serde_json::json!({ "reply_to": 3 }));
    world.assert_log_is_exact();
}

#[test]
fn an_answer_names_the_question_by_number_or_text_and_progress_events_are_not_answers() {
    let world = World::with_thread();
    let answers = [
        (r#"{"reply_to":1}"#, "record", None),
        (r#"{"reply_to":"1"}"#, "message", None),
        (r#"{"stage":"x","reply_to":1}"#, "message", Some("final")),
    ];
    for (n, (metadata, kind, subtype)) in answers.into_iter().enumerate() {
        let world = World::with_thread();
        let question = || ask(&world, "?", "0").arg("--idempotency-key").arg("q");
        question().fails(3);
        let push = |metadata: &str, kind: &str, subtype: Option<&str>, content: &str| {
            let run = world.thread(["push", "--source", "self", "--type", kind, "--content", content]);
            let run = run.arg("--metadata").arg(metadata);
            subtype.into_iter().fold(run, |run, subtype| run.arg("--subtype").arg(subtype)).quiet()
        };
        for other in [r#"{"reply_to":11}"#, r#"{"reply_to":"one"}"#, r#"{"reply_to":[1]}"#, "{}"] {
            push(other, kind, subtype, "another's");
        }
        push(r#"{"reply_to":1}"#, "record", Some("run"), "the work begins");
        question().fails(3);
        push(metadata, kind, subtype, &format!("answer {n}"));
        push(metadata, kind, subtype, "a second answer");
        assert_eq!(question().quiet(), format!("answer {n}\n"));
    }
    // A reply that already ends in a newline gets no second one.
    ask(&world, "?", "0").arg("--idempotency-key").arg("q").fails(3);
    reply(&world, 1, "").quiet();
    assert_eq!(ask(&world, "?", "0").arg("--idempotency-key").arg("q").quiet(), "\n");
    ask(&world, "??", "0").arg("--idempotency-key").arg("r").fails(3);
    reply(&world, 3, "two\nlines\n").quiet();
    assert_eq!(ask(&world, "??", "0").arg("--idempotency-key").arg("r").quiet(), "two\nlines\n");
}

#[test]
fn without_an_answer_it_ends_in_time_and_the_question_stays() {
    let world = World::with_thread();
    let error = ask(&world, "Anybody?", "100ms").fails(3);
    assert!(error.starts_with("Error: no answer to event 1 came in time; the question stays stored - "));
    let (stdout, stderr) = ask(&world, "Anybody?", "0").arg("--json").ends_with(3);
    let error: Value = serde_json::from_str(&stderr).unwrap();
    assert!(stdout.is_empty() && error["error"].as_str().unwrap().starts_with("no answer to event 2"));
    // The hint in the message finds a late answer.
    reply(&world, 2, "Late.").quiet();
    let hint = error["suggestion"].as_str().unwrap();
    let command = hint.split('`').rfind(|part| part.starts_with("thread peek")).unwrap();
    assert!(world.sh(command).quiet().contains(r#""content":"Late.""#), "{command}");
    // A usage error is reported before the question is stored.
    ask(&world, "x", "soon").fails(2);
    world.thread(["ask", "--source", "self", "--type", "message"]).fails(2);
}

#[test]
fn an_agent_that_gives_up_ends_the_ask() {
    let endings = [
        ("error", r#"{"error":"no model","retryable":false}"#, true),
        ("cancelled", "by ada", true),
        ("error", r#"{"error":"no model","retryable":true}"#, false),
        ("error", "plain text", false),
    ];
    for (subtype, content, ends) in endings {
        let world = World::with_thread();
        ask(&world, "?", "0").arg("--idempotency-key").arg("q").fails(3);
        let record = ["push", "--type", "record", "--subtype", subtype, "--reply-to", "1", content];
        world.thread(record).quiet();
        let again = ask(&world, "?", "0").arg("--idempotency-key").arg("q");
        let told = match ends {
            true => format!("Error: event 1 was not answered ({subtype}): {content} - "),
            false => "Error: no answer to event 1 came in time;".to_owned(),
        };
        let error = again.fails(3);
        assert!(error.starts_with(&told), "{error}");
    }
}

#[test]
fn an_answer_that_comes_before_the_wait_begins_is_found() {
    let world = World::with_thread();
    // The notifier runs during the push, so its answer arrives before the wait begins.
    let answer = "thread reply --to 1 --source self --type message --content 'At once'";
    let notifier = world.script("notifier.sh", &format!("THREAD_NOTIFIER=off {answer}"));
    let run = ask(&world, "Quick?", "0").env("THREAD_NOTIFIER", notifier);
    assert_eq!(run.quiet(), "At once\n");
}

#[test]
fn a_killed_ask_loses_nothing_but_its_waiting() {
    let world = World::with_thread();
    for (n, signal) in [(0, Signal::KILL), (1, Signal::TERM), (2, Signal::INT)] {
        let key = format!("key {n}");
        let child = ask(&world, "Well?", "10m").arg("--idempotency-key").arg(&key).spawn();
        let question = 1 + 2 * n;
        wait_until("the question", || world.query("SELECT count(*) FROM events") == question);
        // Once the push is done, signals interrupt the wait.
        kill_process(Pid::from_child(&child), signal).unwrap();
        let ended = child.wait_with_output().unwrap();
        if signal == Signal::KILL {
            assert_eq!(ended.status.signal(), Some(libc::SIGKILL));
        } else {
            assert_eq!(ended.status.code(), Some(128 + signal.as_raw()));
            let told = String::from_utf8(ended.stderr).unwrap();
            let start = format!(
                "Error: interrupted before an answer to event {question} came; the question stays stored - a later \
                 answer will show with `thread peek --last-event-id {question} "
            );
            assert!(told.starts_with(&start), "{told}");
        }
        reply(&world, question, "Yes").quiet();
        assert_eq!(ask(&world, "Well?", "0").arg("--idempotency-key").arg(&key).quiet(), "Yes\n");
    }
    world.wait_until_quiet();
    world.assert_log_is_exact();
}

#[test]
fn an_ask_ends_when_nobody_reads_its_answer() {
    let world = World::with_thread();
    let mut child = ask(&world, "Well?", "10m").spawn();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn reply_says_which_event_it_answers() {
    let world = World::with_thread();
    world.push("question");
    let metadata = |id: i64| {
        let sql = "SELECT metadata FROM events WHERE id = ?";
        world.db().query_row(sql, [id], |row| row.get::<_, String>(0)).unwrap()
    };
    assert_eq!(reply(&world, 1, "a").quiet(), "2\n");
    assert_eq!(metadata(2), r#"{"reply_to":1}"#);
    reply(&world, 1, "b").arg("--metadata").arg(r#"{"n": 1.50, "o": {}}"#).quiet();
    assert_eq!(metadata(3), r#"{"n":1.50,"o":{},"reply_to":1}"#);
    let push = ["push", "--source", "self", "--type", "message", "--content", "c", "--reply-to", "3"];
    world.thread(push).arg("--meta").arg("stage=plan").quiet();
    assert_eq!(metadata(4), r#"{"stage":"plan","reply_to":3}"#);

    let bare = || world.thread(["reply", "--source", "self", "--type", "message", "--content", "d"]);
    assert_eq!(
        bare().fails(2),
        "Error: no event to answer was given - give its id with --to; nothing was stored"
    );
    bare().env("THREAD_EVENT_ID", "x").fails(2);
    bare().env("THREAD_EVENT_ID", "").fails(2);
    assert_eq!(bare().env("THREAD_EVENT_ID", "4").quiet(), "5\n");
    assert_eq!(metadata(5), r#"{"reply_to":4}"#);
    assert_eq!(
        reply(&world, 6, "e").fails(1),
        "Error: there is no event 6 to answer; the newest is 5 - give the id of the question; nothing was stored"
    );
    reply(&world, 0, "e").fails(1);
    reply(&world, 1, "e").arg("--meta").arg("reply_to=1").fails(2);
    world.thread(["push", "--batch", "--reply-to", "1"]).fails(2);
    assert_eq!(world.query("SELECT count(*) FROM events"), 5);
    // A pruned question can still be answered: its asker may still be waiting.
    world.thread(["prune", "--before-id", "5"]).quiet();
    assert_eq!(reply(&world, 1, "f").quiet(), "6\n");
}
