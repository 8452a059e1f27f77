//! `--protocol ag-ui`: an agent of Pydantic AI behind AG-UI, in `fixtures/ag_ui_agent.py`.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use thread_conversation::{ClientInput, Entry, Permission, Run, ToolResult};
use thread_testkit::{clients, skipped, wait_until};

use crate::harness::Talk;

/// The server of the agent, which runs until this is dropped. Its requests are in the file `requests` of the world.
struct Server {
    process: Child,
    url: String,
}

impl Server {
    fn start(talk: &Talk, port: &str) -> Option<Server> {
        let python = clients::python().map_err(|needs| skipped(&needs)).ok()?;
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/ag_ui_agent.py");
        let mut command = Command::new(python);
        command.arg(program).arg("--log").arg(talk.path("requests")).args(["--port", port]);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut url = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut url).unwrap();
        Some(Server { process, url: url.trim().to_owned() })
    }

    fn port(&self) -> &str {
        self.url.trim_end_matches('/').rsplit(':').next().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// A conversation with the agent at this path.
fn talk_at(path: &str, more: &[&str]) -> Option<(Talk, Server)> {
    let talk = Talk::new();
    let server = Server::start(&talk, "0")?;
    talk.write("keys", "KEY=secret\n");
    let url = format!("{}{path}", server.url);
    talk.thread(&[&["agent", "install", "--protocol", "ag-ui", "--url", &url], more].concat()).ok();
    Some((talk, server))
}

/// What was sent to the agent so far.
fn requests(talk: &Talk) -> Vec<Value> {
    let line = |line: String| serde_json::from_str::<Value>(&line).unwrap();
    talk.lines("requests").into_iter().map(line).collect()
}

/// The messages of a request as `role: content`.
fn said(request: &Value) -> Vec<String> {
    let text = |message: &Value| {
        format!("{}: {}", message["role"].as_str().unwrap(), message["content"].as_str().unwrap_or_default())
    };
    request["body"]["messages"].as_array().unwrap().iter().map(text).collect()
}

fn ids(request: &Value) -> Vec<Value> {
    request["body"]["messages"].as_array().unwrap().iter().map(|message| message["id"].clone()).collect()
}

fn error_of(talk: &Talk, of: i64) -> String {
    match talk.ending(of) {
        Entry::Error { error, .. } => error,
        other => panic!("{other:?}\n{}", talk.log()),
    }
}

/// The failures of attempts.
fn failures(talk: &Talk) -> Vec<String> {
    let failure = |(.., entry): (i64, Option<String>, Entry)| match entry {
        Entry::Error { error, retryable: true, .. } => Some(error),
        _ => None,
    };
    talk.entries().into_iter().filter_map(failure).collect()
}

/// Waits for a request for permission that is none of these.
fn permission(talk: &Talk, known: &[&str]) -> Permission {
    talk.until("nothing was asked", |entries| {
        entries.iter().find_map(|(.., entry)| match entry {
            Entry::Permission(asked) if !known.contains(&&*asked.request_id) => Some(asked.clone()),
            _ => None,
        })
    })
}

#[test]
fn the_agent_is_given_the_whole_conversation_with_the_ids_it_knows() {
    let Some((talk, _server)) = talk_at("", &["--env-file", "keys", "--key-env", "KEY"]) else { return };
    let first = talk.say("hello");
    assert_eq!(talk.answer(first), "1: hello");
    assert!(talk.tokens(&format!("run_{first}")).len() <= 2);
    let second = talk.say("weather please");
    assert_eq!(talk.answer(second), "Let me look.\n\nThe tool says sun in Oslo");
    // Another adapter, another process.
    talk.thread(&["agent", "stop"]).ok();
    let third = talk.say("bye");
    assert_eq!(talk.answer(third), "3: bye");
    let asked = requests(&talk);
    assert_eq!(asked.len(), 3);
    assert_eq!(
        said(&asked[2]),
        [
            "user: hello",
            "reasoning: let me count",
            "assistant: 1: hello",
            "user: weather please",
            "assistant: Let me look.",
            "tool: sun in Oslo",
            "assistant: The tool says sun in Oslo",
            "user: bye"
        ]
    );
    let call = &asked[2]["body"]["messages"][4]["toolCalls"][0];
    assert_eq!((&call["id"], &call["function"]["name"]), (&json!("call_2"), &json!("weather")));
    assert_eq!(ids(&asked[2])[..4], ids(&asked[1]));
    let threads: Vec<&Value> = asked.iter().map(|request| &request["body"]["threadId"]).collect();
    assert!(threads.iter().all(|id| *id == threads[0] && id.as_str().is_some()), "{threads:?}");
    let runs: std::collections::BTreeSet<_> = asked.iter().map(|one| one["body"]["runId"].as_str()).collect();
    assert_eq!(runs.len(), 3);
    assert!(asked.iter().all(|request| request["key"] == "Bearer secret"), "{asked:?}");
    let thinks = talk
        .entries()
        .into_iter()
        .any(|(.., entry)| matches!(entry, Entry::Thinking { text, .. } if text == "let me count"));
    assert!(thinks);
    assert_eq!(talk.is_settled(), Ok(()));
    // What was said before is forgotten, also by an agent that remembers it under a name.
    let clear =
        ["push", "--source", crate::harness::ADA, "--type", "record", "--subtype", "clear", "--content", ""];
    talk.thread(&clear).ok();
    assert_eq!(talk.answer(talk.say("again")), "1: again");
    let last = requests(&talk).pop().unwrap();
    assert_ne!(&last["body"]["threadId"], threads[0]);
}

#[test]
fn the_client_has_tools_too() {
    let Some((talk, _server)) = talk_at("", &[]) else { return };
    let parameters = json!({ "type": "object", "properties": { "question": { "type": "string" } } });
    let tool = json!({ "name": "confirm", "description": "Ask the user", "parameters": parameters });
    let input = json!({ "run_input": { "tools": [tool], "state": { "count": 7 }, "context": [] } });
    let id = talk.say_with("client, are you sure?", &input.to_string());
    let called = talk.until("no call", |entries| {
        entries.iter().find_map(|(.., entry)| match entry {
            Entry::ToolCall(call) => Some(call.clone()),
            _ => None,
        })
    });
    assert_eq!((&*called.name, &called.arguments), ("confirm", &json!({ "question": "sure?" })));
    let run = Run { run_id: format!("run_{id}"), reply_to: id, attempt: 1, is_own: false };
    let result = ToolResult::new(&*called.call_id, "confirm", Ok(json!("very")));
    let event = run.client_tool_result("ada", &result, ClientInput::default());
    talk.queue().push_all(&mut |put| put(std::slice::from_ref(&event)).map(drop)).unwrap();
    assert_eq!(talk.answer(id), "The tool says very");
    let asked = requests(&talk);
    assert_eq!(asked.len(), 2);
    assert_eq!(said(&asked[1]), ["user: client, are you sure?", "assistant: ", "tool: very"]);
    assert_eq!(asked[1]["body"]["state"], json!({ "count": 7 }));
    assert_eq!(asked[1]["body"]["tools"][0]["name"], "confirm");
    assert_ne!(asked[0]["body"]["runId"], asked[1]["body"]["runId"]);
    assert_eq!(talk.is_settled(), Ok(()));
    // The whole exchange is in later requests.
    let next = talk.say("and");
    assert_eq!(talk.answer(next), "2: and");
    assert_eq!(said(&requests(&talk)[2])[2..4], ["tool: very", "assistant: The tool says very"]);
}

#[test]
fn an_interrupted_run_asks_for_permission() {
    let Some((talk, _server)) = talk_at("", &[]) else { return };
    let first = talk.say("delete it");
    let asked = permission(&talk, &[]);
    assert!(asked.title.contains("delete"), "{asked:?}");
    assert_eq!((asked.call_id.as_deref(), &asked.arguments), (Some("call_1"), &json!({ "name": "a.txt" })));
    assert!(!talk.path("requests.deleted").exists());
    crate::tools::permit(&talk, &asked.request_id, "allow");
    assert_eq!(talk.answer(first), "The tool says a.txt is deleted");
    let second = talk.say("delete it again");
    let again = permission(&talk, &[&asked.request_id]);
    crate::tools::permit(&talk, &again.request_id, "reject");
    let answer = talk.answer(second);
    assert!(answer.contains("denied"), "{answer}");
    assert_eq!(talk.lines("requests.deleted"), ["a.txt"]);
    let resumed: Vec<Value> = requests(&talk).iter().map(|one| one["body"]["resume"].clone()).collect();
    assert_eq!((resumed.len(), &resumed[1][0]["payload"]), (4, &json!({ "approved": true })));
    assert_eq!(talk.is_settled(), Ok(()));
}

#[test]
fn a_server_that_is_killed_is_asked_again() {
    let Some((talk, server)) = talk_at("", &["--attempts", "10"]) else { return };
    let port = server.port().to_owned();
    let id = talk.say("die");
    talk.until("it does not fail", |_| (!failures(&talk).is_empty()).then_some(()));
    drop(server);
    let Some(_server) = Server::start(&talk, &port) else { return };
    assert_eq!(talk.answer(id), "I am dying no more");
    assert!(
        failures(&talk)[0].contains("lost") || failures(&talk)[0].contains("broke off"),
        "{:?}",
        failures(&talk)
    );
    assert_eq!(talk.is_settled(), Ok(()));
}

#[test]
fn a_killed_adapter_is_followed_by_another() {
    let Some((talk, _server)) = talk_at("", &[]) else { return };
    let id = talk.say("wait");
    talk.until("it says nothing", |entries| {
        entries.iter().any(|(.., entry)| matches!(entry, Entry::Token { .. })).then_some(())
    });
    for (pid, line) in talk.everything() {
        if line.contains("/thread-agent\0") {
            thread_testkit::kill(pid);
        }
    }
    talk.write("requests.go", "");
    talk.thread(&["dispatch"]).ok();
    assert_eq!(talk.answer(id), "I wait no more");
    let asked = requests(&talk);
    assert_eq!(ids(&asked[0]), ids(asked.last().unwrap()));
    assert_eq!(talk.is_settled(), Ok(()));
}

#[test]
fn errors_of_the_server_are_told_and_some_are_tried_again() {
    let Some((talk, server)) = talk_at("busy", &[]) else { return };
    let began = Instant::now();
    let error = error_of(&talk, talk.say("x"));
    assert!(error.contains("refuses the request (422: the input is not understood)"), "{error}");
    assert!(failures(&talk)[0].contains("failed (503: later)"), "{:?}", failures(&talk));
    assert!(began.elapsed() >= Duration::from_secs(2), "Retry-After was not heeded");
    for (path, expected) in [
        ("moved", "redirects to"),
        ("page", "does not answer with AG-UI events"),
        ("nowhere", "has no agent"),
    ] {
        let url = format!("{}{path}", server.url);
        talk.thread(&["agent", "install", "--replace", "--protocol", "ag-ui", "--url", &url]).ok();
        let error = error_of(&talk, talk.say("x"));
        assert!(error.contains(expected) && !error.contains("secret"), "{error}");
    }
    talk.thread(&[
        "agent",
        "install",
        "--replace",
        "--attempts",
        "2",
        "--protocol",
        "ag-ui",
        "--url",
        &server.url,
    ])
    .ok();
    let error = error_of(&talk, talk.say("fail"));
    assert!(error.contains("failed: the model has a cold"), "{error}");
    assert_eq!(talk.is_settled(), Ok(()));
}

#[test]
fn a_run_can_be_cancelled() {
    let Some((talk, _server)) = talk_at("", &[]) else { return };
    let id = talk.say("wait");
    talk.until("it says nothing", |entries| {
        entries.iter().any(|(.., entry)| matches!(entry, Entry::Token { .. })).then_some(())
    });
    talk.cancel(&format!("run_{id}"));
    assert!(matches!(talk.ending(id), Entry::Cancelled { .. }));
    let next = talk.say("and now");
    assert_eq!(talk.answer(next), "2: and now");
    assert_eq!(said(requests(&talk).last().unwrap()), ["user: wait", "assistant: I wait", "user: and now"]);
    wait_until("it to be settled", || talk.is_settled().is_ok());
}

#[test]
fn options_that_do_not_fit_are_refused() {
    let talk = Talk::new();
    for (options, expected) in [
        (&["--protocol", "ag-ui", "--url", "localhost:8000"][..], "it must begin with http"),
        (&["--protocol", "ag-ui", "--url", "http://me:pw@a/"], "no password"),
        (&["--protocol", "ag-ui", "--url", "http://a/", "--model", "m"], "no --model"),
        (&["--protocol", "ag-ui", "--url", "http://a/", "--system", "f"], "only a model"),
        (&["--protocol", "ag-ui", "--", "cat"], "has a --url"),
        (&["--url", "http://a/"], "belong together"),
    ] {
        let error = talk.thread(&[&["agent", "install"], options].concat()).fails(2);
        assert!(error.contains(expected), "{error}");
    }
}
