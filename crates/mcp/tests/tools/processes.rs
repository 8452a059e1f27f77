//! Running processes: listing them, cancelling them, their expected wait, and sub-agents.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Client, Root, Session};

#[test]
fn what_runs_is_seen_and_cancelled() {
    let root = Root::new();
    let session = root.session(1);
    session.agent("cat >/dev/null; sleep 1000");
    let mut client = root.serve(&[]);
    let first = client.call("push", json!({ "session": session.id, "content": "the first of all" }));
    let second = client.call("push", json!({ "session": session.id, "content": "the second" }));
    assert_eq!((&first["run_id"], &first["runs_ahead"]), (&json!("run_1"), &json!(0)));
    assert_eq!(second["runs_ahead"], 1);
    let listed =
        client.until("process_list", &json!({}), |listed| listed["processes"][0]["state"] == "running");
    let processes = listed["processes"].as_array().unwrap();
    assert_eq!(processes[0]["about"], "the first of all");
    assert_eq!(processes[0]["session"], session.id);
    let (id, waits) = (&second["run_id"], &processes[1]);
    assert_eq!(
        (&waits["process"], &waits["state"], &waits["runs_ahead"]),
        (id, &json!("waiting"), &json!(1))
    );
    std::thread::sleep(Duration::from_millis(50));
    let status = |process: &Value| json!({ "session": session.id, "process": process });
    let running = client.call("process_status", status(&json!("run_1")));
    assert!(running["elapsed_ms"].as_u64().unwrap() >= 50 && running["attempts"] == 1, "{running}");
    for process in [id, &json!("run_1")] {
        assert_eq!(client.call("process_cancel", status(process))["requested"], true);
        let ended = client.until("process_status", &status(process), |status| status["state"] == "cancelled");
        assert!(ended["text"].as_str().unwrap().contains("internal:dm:default:mcp"), "{ended}");
    }
    assert_eq!(client.call("process_list", json!({}))["processes"], json!([]));
    let said = client.refusal("process_cancel", status(id));
    assert!(said.contains("process_list"), "{said}");
}

#[test]
fn an_answer_is_there_after_the_end() {
    let root = Root::new();
    let session = root.session(1);
    session.agent("tr a-z A-Z");
    let mut client = root.serve(&[]);
    let pushed = client.call("push", json!({ "session": session.id, "content": "shout" }));
    let status = json!({ "session": session.id, "process": pushed["run_id"] });
    let ended = client.until("process_status", &status, |status| status["state"] == "answered");
    assert_eq!(ended["text"], "SHOUT");
    let waited =
        client.call("wait", json!({ "session": session.id, "after": 0, "filter": "source = 'self'" }));
    assert_eq!(waited["timed_out"], false);
}

/// How long it takes until a waiting run has begun.
fn until_begun(client: &mut Client, session: &Session, process: &Value) -> Duration {
    let began = Instant::now();
    let asked = json!({ "session": session.id, "process": process });
    client.until("process_status", &asked, |status| status["state"] != "waiting");
    began.elapsed()
}

#[test]
fn the_wait_time_is_within_a_factor_of_two() {
    let root = Root::new();
    let session = root.session(1);
    session.agent("sleep $(cat)");
    let mut client = root.serve(&[]);
    let push = |client: &mut Client, seconds: &str| {
        client.call("push", json!({ "session": session.id, "content": seconds }))["run_id"].clone()
    };
    let asked = json!({ "session": session.id });
    assert_eq!(client.call("process_wait_time", asked.clone())["wait_ms"], 0);
    for _ in 0..2 {
        let run = push(&mut client, "2");
        let unknown = client.call("process_wait_time", asked.clone());
        assert_eq!(unknown["runs_ahead"], 1);
        let status = json!({ "session": session.id, "process": run });
        client.until("process_status", &status, |status| status["state"] == "answered");
    }
    for ahead in 1..=3 {
        // On a machine that is busy with other things, a run may take long to begin.
        let is_right = (0..3).any(|_| {
            let runs: Vec<Value> = (0..=ahead).map(|_| push(&mut client, "2")).collect();
            let last = runs.last().unwrap();
            let told = client.call("process_wait_time", json!({ "session": session.id, "process": last }));
            let happened = until_begun(&mut client, &session, last).as_secs_f64();
            let expected = told["wait_ms"].as_f64().unwrap() / 1000.0;
            println!("{ahead} ahead: {expected} s were expected, it took {happened} s");
            assert_eq!(told["runs_ahead"], ahead);
            assert!(told["last_durations_ms"].as_array().unwrap().len() >= 2, "{told}");
            assert!(told["typical_ms"].as_u64().unwrap() >= 2000, "{told}");
            client.call("process_cancel", json!({ "session": session.id, "process": last }));
            client.until("process_list", &asked, |listed| listed["processes"] == json!([]));
            expected < 2.0 * happened && happened < 2.0 * expected
        });
        assert!(is_right, "{ahead} ahead");
    }
    assert!(
        client
            .refusal("process_wait_time", json!({ "session": session.id, "process": "run_1" }))
            .contains("run_1")
    );
}

#[test]
fn a_sub_agent_answers() {
    let root = Root::new();
    let session = root.session(1);
    session.agent("tr a-z A-Z");
    let mut client = root.serve(&[]);
    let done = client.call("subagent_run", json!({ "session": session.id, "task": "shout", "name": "loud" }));
    assert_eq!((&done["state"], &done["text"]), (&json!("answered"), &json!("SHOUT")));
    let id = done["process"].as_str().unwrap();
    assert!(id.starts_with("loud-"), "{id}");
    let events = session.queue().read(thread::After(0), None).unwrap();
    let subtypes: Vec<&str> = events.iter().filter_map(|event| event.subtype.as_deref()).collect();
    assert!(subtypes.contains(&"toolcall") && subtypes.contains(&"toolresult"), "{subtypes:?}");
    let background = json!({ "session": session.id, "task": "later", "background": true });
    let started = client.call("subagent_run", background);
    let status = json!({ "session": session.id, "process": started["process"] });
    client.until("process_status", &status, |status| status["text"] == "LATER");
    // It comes as a message too.
    let waited = json!({ "session": session.id, "after": 0, "filter": "source LIKE 'internal:agent:%'" });
    client.until("wait", &waited, |waited| waited["events"][0]["content"] == "LATER");
    assert!(
        client
            .refusal("subagent_run", json!({ "session": session.id, "task": "x", "name": "../x" }))
            .contains("name")
    );
    let without = root.session(2);
    assert!(client.refusal("subagent_run", json!({ "session": without.id, "task": "x" })).contains("agent"));
}

#[test]
fn a_sub_agent_that_nobody_waits_for_ends() {
    let root = Root::new();
    let session = root.session(1);
    session.agent("cat >/dev/null; sleep 1000");
    let mut client = root.serve(&[]);
    let running = |client: &mut Client| {
        let asked = json!({ "session": session.id });
        let listed = client.until("process_list", &asked, |listed| listed["processes"] != json!([]));
        listed["processes"][0].clone()
    };
    // Its request is cancelled.
    let id = client.begin("subagent_run", json!({ "session": session.id, "task": "wait for ever" }));
    let first = running(&mut client);
    assert_eq!((&first["kind"], &first["about"]), (&json!("sub_agent"), &json!("wait for ever")));
    client.notify("notifications/cancelled", json!({ "requestId": id }));
    let status = |process: &Value| json!({ "session": session.id, "process": process["process"] });
    client.until("process_status", &status(&first), |status| status["state"] == "cancelled");
    // It is cancelled itself, by its id.
    let id = client.begin("subagent_run", json!({ "session": session.id, "task": "again" }));
    let second = running(&mut client);
    assert_eq!(client.call("process_cancel", status(&second))["requested"], true);
    let told = client.response(id)["result"]["structuredContent"].clone();
    assert_eq!(told["state"], "cancelled", "{told}");
    client.until("process_list", &json!({}), |listed| listed["processes"] == json!([]));
    // Its client is gone, or ends the server.
    for is_gone in [true, false] {
        let mut host = root.serve(&[]);
        host.begin("subagent_run", json!({ "session": session.id, "task": "once more" }));
        let third = running(&mut client);
        match is_gone {
            true => assert!(host.close()),
            false => assert!(host.terminate()),
        }
        client.until("process_status", &status(&third), |status| status["state"] == "cancelled");
    }
}
