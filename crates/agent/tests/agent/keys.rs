//! The idempotency keys of the programs, and of others.

use thread_conversation::Entry;
use thread_testkit::{quoted, wait_until};

use crate::harness::{ADA, Talk};
use crate::sub_agents::{at_work, results};

/// Inserts events (source, content and key) directly into the database, as a program that knows nothing of keys may do.
fn insert(talk: &Talk, rows: &[(&str, &str, &str)]) {
    let script = "import json, sqlite3, sys\n\
        with sqlite3.connect(sys.argv[1] + '/events.db', timeout=60) as db:\n    \
        db.executemany(\"INSERT OR IGNORE INTO events (source, type, subtype, content, idempotency_key) \
        VALUES (?, 'record', 'note', ?, ?)\", json.load(open('rows.json')))";
    talk.write("insert.py", script);
    talk.write("rows.json", &serde_json::to_string(rows).unwrap());
    talk.sh("python3 insert.py \"$THREAD_DIR\"").ok();
}

/// Pushes an event of the agent's with an idempotency key, as any user may.
fn push_as_self(talk: &Talk, subtype: Option<&str>, content: &str, metadata: &str, key: &str) -> i64 {
    let kind = if subtype.is_some() { "record" } else { "message" };
    let words = ["push", "--source", "self", "--type", kind, "--content", content, "--metadata", metadata];
    let subtype = subtype.map(|subtype| ["--subtype", subtype]).unwrap_or(["--idempotency-key", key]);
    let key: &[&str] = if kind == "record" { &["--idempotency-key", key] } else { &[] };
    talk.thread(&[&words[..], &subtype, key].concat()).ok().trim().parse().unwrap()
}

/// Waits for the ending of the run of that message, which is stored after it.
fn ended(talk: &Talk, of: i64) -> Entry {
    talk.until(&format!("event {of} has no ending"), |entries| {
        let found = entries.iter().find(|(id, _, entry)| *id > of && entry.ends() == Some(of));
        found.map(|(.., entry)| entry.clone())
    })
}

fn answer(talk: &Talk, of: i64) -> String {
    match ended(talk, of) {
        Entry::Answer { answer, .. } => answer.content,
        other => panic!("event {of}: {other:?}\n{}", talk.log()),
    }
}

#[test]
fn a_user_cannot_take_the_key_of_an_ending() {
    let talk = Talk::with(&[], &["cat"]);
    let push = ["push", "--type", "record", "--content", "x", "--idempotency-key", "thread:end:2"];
    let refused = talk.thread(&push).fails(2);
    assert!(
        refused.contains("keys that begin with 'thread:' are made by the programs; choose another"),
        "{refused}"
    );
    let id = talk.say("hello");
    assert_eq!((id, talk.answer(id)), (1, "hello".to_owned()));
}

#[test]
fn a_conversation_survives_any_key_of_a_user() {
    let talk = Talk::with(&["--idle", "0s"], &["cat"]);
    for n in 1..=6 {
        let push = ["push", "--source", ADA, "--type", "record", "--content", "x", "--idempotency-key"];
        talk.thread(&[&push[..], &[&format!("end:{}", n + 6)]].concat()).ok();
    }
    let first = talk.say("hello");
    assert_eq!((first, &*answer(&talk, first)), (7, "hello"));
    // An ending for a message that does not exist yet ends nothing either.
    let next = talk.queue().newest().unwrap().0 + 2;
    push_as_self(&talk, None, "early", &format!(r#"{{"reply_to":{next}}}"#), &format!("end:{next}"));
    let second = talk.say("again");
    assert_eq!((second, &*answer(&talk, second)), (next, "again"));
    talk.until_idle();
}

#[test]
fn a_run_whose_key_belongs_to_something_else_ends_with_an_error_that_says_so() {
    let talk = Talk::with(&["--idle", "0s"], &["cat"]);
    insert(&talk, &[(ADA, "not yours", "thread:end:2")]);
    let id = talk.say("hello");
    assert_eq!(id, 2);
    match ended(&talk, id) {
        Entry::Error { error, retryable: false, partial, .. } => {
            assert!(error.contains("'thread:end:2' belongs to event 1"), "{error}");
            assert_eq!(partial.as_deref(), Some("hello"), "what was answered is not lost");
        }
        other => panic!("{other:?}"),
    }
    let next = talk.say("again");
    assert_eq!(answer(&talk, next), "again");
    talk.until_idle();
    assert_eq!(talk.is_settled(), Ok(()));
    assert!(
        talk.log().contains("'thread:end:2' belongs to event 1, which is something else"),
        "{}",
        talk.log()
    );
}

#[test]
fn a_cancelled_run_whose_key_belongs_to_something_else_ends_too() {
    let talk = Talk::with(&["--idle", "0s"], &["sh", "-c", "echo begun; exec sleep 1000"]);
    insert(&talk, &[(ADA, "not yours", "thread:end:2")]);
    let id = talk.say("hello");
    let run = format!("run_{id}");
    talk.until("no output", |_| (talk.tokens(&run) == ["begun\n"]).then_some(()));
    talk.cancel(&run);
    assert!(matches!(ended(&talk, id), Entry::Error { retryable: false, .. }));
    talk.until_idle();
}

#[test]
fn an_adapter_that_has_no_key_left_fails_instead_of_trying_for_ever() {
    let talk = Talk::with(&["--idle", "0s"], &["cat"]);
    insert(&talk, &[(ADA, "x", "thread:end:3"), (ADA, "y", "thread:taken:end:3")]);
    assert_eq!(talk.say("hello"), 3);
    wait_until("the failure", || talk.log().contains("exit=1"));
    assert!(talk.log().contains("'thread:taken:end:3' belongs to event 2"), "{}", talk.log());
}

#[test]
fn an_ending_of_an_earlier_version_is_one() {
    let talk = Talk::new();
    let id = talk.say("hello");
    push_as_self(&talk, None, "hello from before", &format!(r#"{{"reply_to":{id}}}"#), &format!("end:{id}"));
    talk.install(&["--idle", "0s"], &["cat"]);
    let next = talk.say("again");
    assert_eq!((&*answer(&talk, id), &*answer(&talk, next)), ("hello from before", "again"));
    talk.until_idle();
    assert_eq!(talk.is_settled(), Ok(()));
}

#[test]
fn a_parent_gets_the_answer_of_a_sub_agent_whose_keys_belong_to_something_else() {
    let talk = Talk::new();
    let sub = talk
        .write_script("sub.sh", "read x; echo begun; until [ -e \"$GO\" ]; do sleep 0.01; done; echo \"$x\"");
    let go = quoted(talk.path("go"));
    let script = format!("export GO={go}; thread agent run --call c --name helper -- sh {sub}");
    talk.install(&[], &["sh", "-c", &script]);
    let id = talk.say("a task");
    let dir = at_work(&talk);
    let sub_id = dir.file_name().unwrap().to_str().unwrap();
    // Also keys that earlier versions made.
    let copies = (2..60).flat_map(|n| ["thread:", ""].map(|space| format!("{space}sub:{sub_id}:{n}")));
    let keys: Vec<String> = copies.collect();
    let mut rows: Vec<_> = keys.iter().map(|key| (ADA, "x", &**key)).collect();
    rows.extend(["thread:result:c", "result:c"].map(|key| (ADA, "no result", key)));
    // Existing copies keep their keys.
    rows.retain(|(.., key)| talk.queue().id_of_key(key).unwrap().is_none());
    insert(&talk, &rows);
    talk.write("go", "");
    assert_eq!(answer(&talk, id), "begun\na task\n");
    assert_eq!(results(&talk), [Ok("begun\na task\n".to_owned())]);
    talk.until("its end is not copied", |entries| {
        let is_end = |entry: &Entry| matches!(entry, Entry::SubAgent(told) if told.event == "final");
        (entries.iter().filter(|(.., entry)| is_end(entry)).count() == 1).then_some(())
    });
}

#[test]
fn a_result_that_an_earlier_version_has_stored_is_the_one_that_counts() {
    let talk = Talk::with(&[], &["cat"]);
    let result = r#"{"call_id":"c","name":"helper","result":"from before"}"#;
    push_as_self(&talk, Some("toolresult"), result, r#"{"run_id":"run_by_hand"}"#, "result:c");
    talk.sh("echo task | thread agent run --call c -- cat").ok();
    assert_eq!(results(&talk), [Ok("from before".to_owned())]);
}
