//! Finding and reading conversations.

use std::fs::File;
use std::time::{Duration, SystemTime};

use serde_json::json;

use crate::harness::Root;

#[test]
fn sessions_are_found_by_word_and_by_day() {
    let root = Root::new();
    let (old, new) = (root.session(1), root.session(2));
    old.message("external:a", "Where are the BACKUPS kept?");
    old.message("self", "On the other disk.");
    new.message("external:a", "How are the backups tested?");
    let yesterday = SystemTime::now() - Duration::from_secs(24 * 3600);
    File::options()
        .append(true)
        .open(old.path.join("events.jsonl"))
        .unwrap()
        .set_modified(yesterday)
        .unwrap();
    let mut client = root.serve(&[]);
    let mut found = |arguments| {
        let result = client.call("sessions_search", arguments);
        let sessions = result["sessions"].as_array().unwrap().clone();
        sessions.into_iter().map(|one| one["session"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(found(json!({ "query": "backups" })), [new.id.as_str(), &old.id]);
    assert_eq!(found(json!({ "query": "backups", "day": "yesterday" })), [old.id.as_str()]);
    assert_eq!(found(json!({ "day": "today" })), [new.id.as_str()]);
    assert_eq!(found(json!({ "query": "other disk" })), [old.id.as_str()]);
    assert!(found(json!({ "query": "nothing of the kind" })).is_empty());
    assert_eq!(found(json!({})).len(), 2);
    let result = client.call("sessions_search", json!({ "query": "other DISK" }));
    assert_eq!(result["sessions"][0]["matched"], "On the other disk.");
    assert_eq!(result["sessions"][0]["title"], "Where are the BACKUPS kept?");
    let said = client.refusal("sessions_search", json!({ "day": "tomorrow" }));
    assert!(said.contains("yesterday"), "{said}");
    let listed = client.call("sessions_list", json!({ "limit": 1, "offset": 1 }));
    assert_eq!((&listed["total"], &listed["sessions"][0]["session"]), (&json!(2), &json!(old.id)));
}

#[test]
fn a_conversation_is_read_from_its_end() {
    let root = Root::new();
    let session = root.session(1);
    for n in 1..=15 {
        session.message(if n % 2 == 0 { "self" } else { "external:a" }, &format!("message {n}"));
    }
    session.message("external:a", &"long ".repeat(1000));
    session.message("external:a", r#"[{"type":"text","text":"in parts"}]"#);
    let mut client = root.serve(&[]);
    let got = client.call("sessions_get", json!({ "session": session.id, "limit": 3 }));
    assert_eq!((&got["title"], &got["more"]), (&json!("message 1"), &json!(true)));
    let messages = got["messages"].as_array().unwrap();
    assert_eq!((&messages[0]["content"], &messages[0]["role"]), (&json!("message 15"), &json!("user")));
    assert_eq!(messages[2]["content"], "in parts");
    let offset = messages[1]["next_offset"].as_u64().unwrap();
    let rest = client.call("peek", json!({ "session": session.id, "id": 16, "offset": offset }));
    assert_eq!(rest["events"][0]["content"].as_str().unwrap().len() as u64, 5000 - offset);
    let older = client.call("sessions_get", json!({ "session": session.id, "before": 3 }));
    let older_messages = older["messages"].as_array().unwrap();
    assert_eq!((older_messages.len(), &older["more"]), (2, &json!(false)));
    assert_eq!(older_messages[1]["role"], "assistant");
}

#[test]
fn partial_output_of_a_failed_or_cancelled_run_is_shown() {
    let root = Root::new();
    let session = root.session(1);
    // Longer than what is shown, and than the part of other events that is read.
    session.agent(
        "if [ \"$(cat)\" = fail ]; then code=1; fi; printf '%05000d' 0; [ $code ] && exit 1; sleep 1000",
    );
    let mut client = root.serve(&[]);
    let push = |client: &mut crate::harness::Client, content| {
        let run = client.call("push", json!({ "session": session.id, "content": content }))["run_id"].clone();
        json!({ "session": session.id, "process": run })
    };
    let failed = push(&mut client, "fail");
    client.until("process_status", &failed, |status| status["state"] == "failed");
    let cancelled = push(&mut client, "go on");
    let run = cancelled["process"].as_str().unwrap();
    let filter = format!("subtype = 'token' AND metadata ->> 'run_id' = '{run}'");
    let waited = json!({ "session": session.id, "after": 0, "filter": filter });
    client.until("wait", &waited, |waited| waited["events"] != json!([]));
    client.call("process_cancel", cancelled.clone());
    client.until("process_status", &cancelled, |status| status["state"] == "cancelled");
    for process in [failed, cancelled] {
        let partial = client.call("process_status", process)["partial"].clone();
        assert_eq!(partial, "0".repeat(2000));
    }
    let got = client.call("sessions_get", json!({ "session": session.id }));
    let messages = got["messages"].as_array().unwrap();
    let roles: Vec<&str> = messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "error", "user", "cancelled"]);
    assert!(messages[1]["content"].as_str().unwrap().contains("exit code 1"), "{}", messages[1]);
    assert_eq!(messages[3]["partial"], "0".repeat(2000));
}
