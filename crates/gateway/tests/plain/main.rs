//! Tests the gateway with nothing but this workspace: the client of `thread-protocol`, and HTTP on plain sockets. The
//! scenarios of `gateway`, which use independent clients, go further.

mod harness;

use std::fs;

use serde_json::{Value, json};
use thread_protocol::client::Error;
use thread_protocol::event::{Event, RunStatus};
use thread_protocol::method::*;
use thread_protocol::{Content, method};
use thread_testkit::{Models, quoted};

use harness::{Gateway, Talk, tokens};

/// A shell command that prints a text when it begins, waits for a file, and prints another text.
fn waiting(gate: &std::path::Path, before: &str, after: &str) -> String {
    format!("printf '{before}'; until test -e {}; do sleep 0.02; done; printf '{after}'", quoted(gate))
}

/// Kinds of the events of a run, without repetitions.
fn kinds(events: &[Value]) -> Vec<&str> {
    let mut kinds: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    kinds.dedup();
    kinds
}

#[tokio::test]
async fn a_client_connects_with_the_token_alone() {
    let gateway = Gateway::start("cat");
    let mut talk = gateway.client().await;
    let status = talk.0.call::<method::Status>(&StatusParams { session_id: None }).await.unwrap();
    assert!(status.session.is_none());
    for token in [Some("wrong"), None] {
        let refused = gateway.connect("two", token).await.err().unwrap();
        assert!(matches!(refused, Error::Refused(_) | Error::Closed { code: 1008, .. }), "{refused:?}");
    }
}

#[test]
fn http_without_the_token_is_refused_in_json() {
    let gateway = Gateway::start("cat");
    for path in ["/api/v1/threads", "/api/v1/agent/history?threadId=x", "/mcp", "/metrics"] {
        let refused = gateway.ask_as_a_stranger("GET", path, &[], b"").json(401);
        assert!(refused["error"].as_str().unwrap().contains("the token is missing"), "{path}: {refused}");
    }
}

#[test]
fn a_page_of_another_origin_and_another_name_are_refused() {
    let gateway = Gateway::start("cat");
    for header in [("Origin", "https://elsewhere.example"), ("Host", "elsewhere.example")] {
        let refused = gateway.ask("GET", "/api/v1/threads", &[header], b"").json(403);
        assert!(refused["error"].is_string(), "{refused}");
    }
}

#[test]
fn its_health_is_shown_to_everybody_until_the_root_is_gone() {
    let gateway = Gateway::start("cat");
    let healthy = gateway.ask_as_a_stranger("GET", "/healthz", &[("Host", "elsewhere.example")], b"");
    assert_eq!((healthy.status, healthy.text().trim()), (200, "ok"));
    fs::rename(gateway.root(), gateway.path("away")).unwrap();
    assert_eq!(gateway.ask_as_a_stranger("GET", "/healthz", &[], b"").status, 503);
    fs::rename(gateway.path("away"), gateway.root()).unwrap();
}

#[test]
fn the_page_comes_without_the_token_and_without_what_it_protects() {
    let gateway = Gateway::start("cat");
    let page = gateway.ask_as_a_stranger("GET", "/", &[], b"");
    assert_eq!(page.status, 200);
    assert!(page.headers["content-type"].starts_with("text/html") && !page.text().contains(&gateway.token));
    assert!(page.headers.contains_key("content-security-policy"), "{:?}", page.headers);
    // The name of the agent is only in pages for requests with a login.
    assert!(!page.text().contains("data-agent"), "{}", page.text());
    let page = gateway.get("/");
    assert!(page.text().contains(" data-agent=\"cat\""), "{}", page.text());
}

#[tokio::test]
async fn an_answer_streams_and_its_end_has_the_whole() {
    let gate = tempfile::tempdir().unwrap();
    let pass = gate.path().join("pass");
    let gateway = Gateway::start(&waiting(&pass, "one ", "two"));
    let mut talk = gateway.client().await;
    let session = talk.begins("talk").await;
    let accepted = talk.says("go").await;
    assert_eq!((accepted.status, accepted.session_id.as_deref()), (Acceptance::Accepted, Some(&*session)));
    let run_id = accepted.run_id.unwrap();
    let mut seen = talk.until(|frame| matches!(&frame.event, Event::Token(_))).await;
    // The program prints the rest only now.
    fs::write(&pass, "").unwrap();
    seen.extend(talk.until_the_end_of(&run_id).await);
    assert_eq!(tokens(&seen), "one two");
    let Event::Final(end) = &seen.last().unwrap().event else { panic!("{seen:#?}") };
    assert_eq!(end.content, Content::from("one two"));
    assert!(seen.iter().any(|frame| matches!(&frame.event, Event::Message(said) if said.from_self)));
    let started =
        |event: &Event| matches!(event, Event::Status(status) if status.status == RunStatus::Started);
    assert_eq!(seen.iter().filter(|frame| started(&frame.event)).count(), 1);
    let seqs: Vec<i64> = seen.iter().filter_map(|frame| frame.seq).collect();
    assert!(seqs.is_sorted_by(|a, b| a < b), "{seqs:?}");
}

#[tokio::test]
async fn a_waiting_message_gets_its_position_and_can_be_cancelled() {
    let gate = tempfile::tempdir().unwrap();
    let pass = gate.path().join("pass");
    let gateway = Gateway::start(&waiting(&pass, "begun", "done"));
    let mut talk = gateway.client().await;
    talk.begins("talk").await;
    let first = talk.says("first").await.run_id.unwrap();
    talk.until(|frame| matches!(&frame.event, Event::Token(_))).await;
    let second = talk.says("second").await;
    assert_eq!(second.status, Acceptance::Queued);
    let second = second.run_id.unwrap();
    let seen = talk.until(|frame| matches!(&frame.event, Event::Queued(_))).await;
    assert!(
        matches!(&seen.last().unwrap().event, Event::Queued(queued) if queued.position == 1),
        "{seen:#?}"
    );
    talk.0.call::<AgentCancel>(&CancelParams { run_id: second.clone(), session_id: None }).await.unwrap();
    let seen = talk.until_the_end_of(&second).await;
    assert!(matches!(&seen.last().unwrap().event, Event::Cancelled(_)), "{seen:#?}");
    fs::write(&pass, "").unwrap();
    let seen = talk.until_the_end_of(&first).await;
    assert!(
        matches!(&seen.last().unwrap().event, Event::Final(end) if end.content == Content::from("begundone"))
    );
}

#[tokio::test]
async fn a_cancelled_run_ends_with_its_program() {
    let gateway = Gateway::start("printf begun; exec sleep 1000");
    let mut talk = gateway.client().await;
    talk.begins("talk").await;
    let run_id = talk.says("go").await.run_id.unwrap();
    talk.until(|frame| matches!(&frame.event, Event::Token(_))).await;
    talk.0.call::<AgentCancel>(&CancelParams { run_id: run_id.clone(), session_id: None }).await.unwrap();
    let seen = talk.until_the_end_of(&run_id).await;
    assert!(matches!(&seen.last().unwrap().event, Event::Cancelled(_)), "{seen:#?}");
}

#[tokio::test]
async fn a_program_that_fails_is_an_error_that_ends_the_run() {
    let gateway = Gateway::with(&["--agent", "printf half; exit 3", "--attempts", "1"]);
    let mut talk = gateway.client().await;
    talk.begins("talk").await;
    let run_id = talk.says("go").await.run_id.unwrap();
    let seen = talk.until_the_end_of(&run_id).await;
    let Event::Error(error) = &seen.last().unwrap().event else { panic!("{seen:#?}") };
    assert!(error.message.contains("exit code 3"), "{error:?}");
}

#[tokio::test]
async fn a_model_is_an_agent_and_begins_again_if_it_is_killed() {
    let Some(models) = Models::start([""; 0]) else { return };
    let gateway = Gateway::with(&["--agent", &format!("openai:{}#slow", models.url), "--attempts", "1"]);
    let page = gateway.get("/");
    assert!(page.text().contains(" data-agent=\"slow\""), "{}", page.text());
    let mut talk = gateway.client().await;
    let session = talk.begins("talk").await;
    let run_id = talk.says("one two three four five six").await.run_id.unwrap();
    talk.until(|frame| matches!(&frame.event, Event::Token(_))).await;
    kill_adapters(&gateway.root().join(session));
    let seen = talk.until_the_end_of(&run_id).await;
    let begins = |frame: &thread_protocol::event::Frame| matches!(&frame.event, Event::Status(status) if status.status == RunStatus::Started && status.attempt == Some(1));
    let again = seen.iter().rposition(begins).unwrap();
    assert_eq!(tokens(&seen[again..]), "one two three four five six");
    let Event::Final(end) = &seen.last().unwrap().event else { panic!("{seen:#?}") };
    assert_eq!(end.content, Content::from("one two three four five six"));
    assert!(!seen.iter().any(|frame| matches!(&frame.event, Event::Error(_))), "{seen:#?}");
}

/// Kills the adapters in a folder, with the processes that ask models.
fn kill_adapters(folder: &std::path::Path) {
    for pid in thread_testkit::processes_in(&folder.to_string_lossy()) {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&line).contains("/thread-agent\0") {
            thread_testkit::kill(pid);
        }
    }
}

#[test]
fn a_models_turn_that_is_cut_off_is_another_message_for_an_ag_ui_client() {
    let Some(models) = Models::start([""; 0]) else { return };
    let gateway = Gateway::with(&["--agent", &format!("openai:{}#slow", models.url)]);
    let root = gateway.root();
    let killer = std::thread::spawn(move || {
        let log = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("events.jsonl")).ok();
        let has_token =
            || fs::read_dir(&root).unwrap().flatten().filter_map(log).any(|log| log.contains("\"token\""));
        thread_testkit::wait_until("a piece of the answer", has_token);
        kill_adapters(&root);
    });
    let input = json!({
        "protocolVersion": "1.0", "threadId": "plain", "runId": "r1", "tools": [], "context": [], "state": {},
        "messages": [{ "id": "m1", "role": "user", "content": "one two three four" }],
    });
    let events = gateway.post("/api/v1/agent/run", &input).events();
    killer.join().unwrap();
    let texts: Vec<&Value> = events.iter().filter(|event| event["type"] == "TEXT_MESSAGE_START").collect();
    assert_eq!(texts.len(), 2, "{events:#?}");
    let last = &texts[1]["messageId"];
    assert_ne!(last, &texts[0]["messageId"]);
    let of_last =
        events.iter().filter(|event| event["type"] == "TEXT_MESSAGE_CONTENT" && event["messageId"] == *last);
    let text: String = of_last.map(|event| event["delta"].as_str().unwrap()).collect();
    assert_eq!(text, "one two three four");
    assert!(events.iter().any(|event| event["type"] == "CUSTOM" && event["name"] == "thread.attempt"));
}

#[tokio::test]
async fn the_two_lines_of_the_readme_are_a_chat() {
    if thread_agent::launcher::on_path("python3").is_none() {
        return thread_testkit::skipped("python3");
    }
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let readme = fs::read_to_string(format!("{folder}/README.md")).unwrap();
    let mut blocks = readme.split("```sh\n").filter_map(|block| block.split_once("```"));
    let (lines, _) = blocks.find(|(block, _)| block.starts_with("python3 fixtures/model.py")).unwrap();
    assert_eq!(lines.lines().count(), 2);
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let lines = lines
        .replace("fixtures/", &format!("{}/fixtures/", quoted(folder)))
        .replace("8808", &port.to_string());
    let gateway = Gateway::by(&format!("{} --root root --listen 127.0.0.1:0", lines.trim_end()));
    let mut talk = gateway.client().await;
    talk.begins("talk").await;
    let run_id = talk.says("hello").await.run_id.unwrap();
    let seen = talk.until_the_end_of(&run_id).await;
    let Event::Final(end) = &seen.last().unwrap().event else { panic!("{seen:#?}") };
    assert_eq!(end.content, Content::from("hello"));
}

#[test]
fn a_model_without_a_name_is_refused() {
    let world = thread_testkit::World::named("gateway").with_system_path();
    for (agent, why) in [
        ("openai:http://127.0.0.1:9/v1", "names no model"),
        ("openai:127.0.0.1:9#m", "it is not a URL"),
        ("openai:http://me:pw@host/v1#m", "a key is given by --key-env"),
        ("ag-ui:host", "it is not a URL"),
        ("ag-ui:http://me:pw@host/", "a key is given by --key-env"),
    ] {
        let serve = world.run(thread_testkit::program("thread-serve"));
        let error = serve.args(["--root", "root", "--listen", "127.0.0.1:0", "--agent", agent]).fails(2);
        assert!(error.contains(why), "{error}");
    }
}

#[tokio::test]
async fn a_message_that_is_sent_twice_is_stored_once() {
    let gateway = Gateway::start("cat");
    let mut talk = gateway.client().await;
    let session = talk.begins("talk").await;
    let message = AgentParams {
        session_id: Some(session.clone()),
        message: "hello".into(),
        priority: None,
        metadata: None,
        idempotency_key: Some("the same".to_owned()),
        at: None,
    };
    let run_id = talk.0.call::<Agent>(&message).await.unwrap().run_id.unwrap();
    talk.until_the_end_of(&run_id).await;
    assert_eq!(talk.0.call::<Agent>(&message).await.unwrap().run_id.unwrap(), run_id);
    let page = talk.0.call::<SessionsHistory>(&HistoryParams::default()).await.unwrap();
    assert_eq!(page.messages.len(), 2, "{page:#?}");
}

#[tokio::test]
async fn messages_are_read_page_by_page() {
    let gateway = Gateway::start("sed 's/^/you said: /'");
    let mut talk = gateway.client().await;
    talk.begins("talk").await;
    for text in ["one", "two", "three"] {
        let run_id = talk.says(text).await.run_id.unwrap();
        talk.until_the_end_of(&run_id).await;
    }
    let (mut said, mut before) = (Vec::new(), None);
    loop {
        let params = HistoryParams { limit: Some(2), before, ..HistoryParams::default() };
        let page = talk.0.call::<SessionsHistory>(&params).await.unwrap();
        before = Some(method::MessageRef::Seq(page.messages[0].seq.try_into().unwrap()));
        said.splice(0..0, page.messages.into_iter().map(|entry| entry.content));
        if !page.has_more {
            break;
        }
    }
    let expected = ["one", "you said: one", "two", "you said: two", "three", "you said: three"];
    assert_eq!(said, expected.map(Content::from));
}

#[tokio::test]
async fn sessions_are_listed_named_searched_copied_and_deleted() {
    let gateway = Gateway::start("cat");
    let mut talk = gateway.client().await;
    let first = talk.begins("first").await;
    let run_id = talk.says("where is the harbour?").await.run_id.unwrap();
    talk.until_the_end_of(&run_id).await;
    let params =
        ForkParams { session_id: first.clone(), before: None, step: None, title: Some("copy".to_owned()) };
    let copy = talk.0.call::<SessionsFork>(&params).await.unwrap().session_id;
    let entered = SwitchParams { session_id: copy.clone(), after: None };
    let entered = talk.0.call::<SessionsSwitch>(&entered).await.unwrap();
    assert_eq!(entered.recent_messages.len(), 2, "{entered:#?}");
    assert_eq!(entered.forked_from.unwrap().session_id, first);

    let rename = RenameParams { session_id: first.clone(), title: "ships".to_owned() };
    talk.0.call::<SessionsRename>(&rename).await.unwrap();
    let found = SearchParams { query: Some("SHIPS".to_owned()), ..SearchParams::default() };
    let found = talk.0.call::<SessionsSearch>(&found).await.unwrap();
    assert_eq!(found.sessions.iter().map(|one| &one.id).collect::<Vec<_>>(), [&first]);
    let found = SearchParams { query: Some("harbour".to_owned()), ..SearchParams::default() };
    assert_eq!(talk.0.call::<SessionsSearch>(&found).await.unwrap().total, 2);

    talk.0.call::<SessionsDelete>(&DeleteParams { session_id: first }).await.unwrap();
    let listed = talk.0.call::<SessionsList>(&ListParams::default()).await.unwrap();
    assert_eq!(listed.sessions.iter().map(|one| &*one.title).collect::<Vec<_>>(), ["copy"]);
}

#[tokio::test]
async fn two_clients_in_a_session_see_the_same() {
    let gateway = Gateway::start("cat");
    let mut one = gateway.client().await;
    let session_id = one.begins("talk").await;
    let mut two = Talk(gateway.connect("two", Some(&gateway.token)).await.unwrap());
    two.0.call::<SessionsSwitch>(&SwitchParams { session_id, after: None }).await.unwrap();
    let run_id = one.says("hello").await.run_id.unwrap();
    let stored = |frames: Vec<thread_protocol::event::Frame>| {
        let frames = frames.into_iter().filter(|frame| frame.seq.is_some());
        frames.map(|frame| (frame.seq, frame.event.name())).collect::<Vec<_>>()
    };
    let (seen, other) = (one.until_the_end_of(&run_id).await, two.until_the_end_of(&run_id).await);
    assert_eq!(stored(seen), stored(other));
}

#[tokio::test]
async fn a_gateway_that_is_killed_during_an_answer_leaves_no_gap() {
    let gate = tempfile::tempdir().unwrap();
    let pass = gate.path().join("pass");
    let mut gateway = Gateway::start(&waiting(&pass, "one ", "two"));
    let mut talk = gateway.client().await;
    let session_id = talk.begins("talk").await;
    let run_id = talk.says("go").await.run_id.unwrap();
    let mut seen = talk.until(|frame| matches!(&frame.event, Event::Token(_))).await;
    gateway.is_killed_and_started_again();
    fs::write(&pass, "").unwrap();
    // It connects again, and enters the session after what it has seen.
    seen.extend(talk.until_the_end_of(&run_id).await);
    assert_eq!(tokens(&seen), "one two");
    let seqs: Vec<i64> = seen.iter().filter_map(|frame| frame.seq).collect();
    assert!(seqs.is_sorted_by(|a, b| a < b), "{seqs:?}");

    // Another client that enters after any of them gets the others.
    for after in [seqs[0], seqs[seqs.len() / 2]] {
        let mut other = Talk(gateway.connect("two", Some(&gateway.token)).await.unwrap());
        let switch = SwitchParams { session_id: session_id.clone(), after: Some(after.try_into().unwrap()) };
        other.0.call::<SessionsSwitch>(&switch).await.unwrap();
        let rest: Vec<i64> =
            other.until_the_end_of(&run_id).await.iter().filter_map(|frame| frame.seq).collect();
        assert_eq!(
            rest,
            seqs.iter().copied().filter(|seq| *seq > after).collect::<Vec<_>>(),
            "after {after}"
        );
    }
}

#[test]
fn an_ag_ui_run_is_a_stream_of_events_over_http() {
    let gateway = Gateway::start("sed 's/^/you said: /'");
    let input = json!({
        "protocolVersion": "1.0", "threadId": "plain", "runId": "r1", "tools": [], "context": [], "state": {},
        "messages": [{ "id": "m1", "role": "user", "content": "hello" }],
    });
    let events = gateway.post("/api/v1/agent/run", &input).events();
    let kinds = kinds(&events);
    assert_eq!((kinds[0], *kinds.last().unwrap()), ("RUN_STARTED", "RUN_FINISHED"), "{events:#?}");
    let deltas = events.iter().filter(|event| event["type"] == "TEXT_MESSAGE_CONTENT");
    let text: String = deltas.map(|event| event["delta"].as_str().unwrap()).collect();
    assert_eq!(text.trim_end(), "you said: hello");
    assert_eq!(events[0]["runId"], "r1");
    let history = gateway.get("/api/v1/agent/history?threadId=plain").json(200);
    let roles: Vec<&Value> = history["messages"].as_array().unwrap().iter().map(|one| &one["role"]).collect();
    assert_eq!(roles, ["user", "assistant"]);
}

#[test]
fn an_ag_ui_run_that_is_asked_for_twice_is_one_run() {
    let gateway = Gateway::start("cat");
    let input = |text: &str| {
        json!({
            "threadId": "plain", "runId": "r1", "tools": [], "context": [],
            "messages": [{ "id": "m1", "role": "user", "content": text }],
        })
    };
    for _ in 0..2 {
        let events = gateway.post("/api/v1/agent/run", &input("hello")).events();
        assert_eq!(events.last().unwrap()["type"], "RUN_FINISHED", "{events:#?}");
    }
    let history = gateway.get("/api/v1/agent/history?threadId=plain").json(200);
    assert_eq!(history["messages"].as_array().unwrap().len(), 2, "{history}");
    let refused = gateway.post("/api/v1/agent/run", &input("something else")).json(409);
    assert!(refused["error"].is_string(), "{refused}");
}

#[test]
fn an_attachment_comes_back_by_its_signed_url_alone() {
    let gateway = Gateway::start("cat");
    let body = "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"my notes.txt\"\r\n\
                Content-Type: text/html\r\n\r\nplain words\r\n--x--\r\n";
    let form = ("Content-Type", "multipart/form-data; boundary=x");
    let stored = gateway.ask("POST", "/api/v1/agent/attachments", &[form], body.as_bytes()).json(200);
    // The type follows from the bytes, not from what the client says.
    assert_eq!(stored["mime_type"], "text/plain", "{stored}");
    let url = stored["url"].as_str().unwrap();
    let path = url.strip_prefix(&format!("http://127.0.0.1:{}", gateway.port)).unwrap();
    let fetched = gateway.ask_as_a_stranger("GET", path, &[], b"");
    assert_eq!((fetched.status, fetched.text().as_str()), (200, "plain words"));
    assert_eq!(fetched.headers["x-content-type-options"], "nosniff");
    let (unsigned, _) = path.split_once("?token=").unwrap();
    for path in [unsigned.to_owned(), format!("{unsigned}?token=x"), path[..path.len() - 4].to_owned()] {
        let refused = gateway.ask_as_a_stranger("GET", &path, &[], b"");
        assert!((400..=403).contains(&refused.status), "{path}: {} {}", refused.status, refused.text());
    }
}

#[test]
fn threads_without_agents_are_read_and_pushed_to_over_http() {
    let inbox = tempfile::tempdir().unwrap();
    let dir = inbox.path().join("inbox");
    let dir = dir.to_str().unwrap();
    thread::Queue::init(dir).unwrap();
    let gateway = Gateway::with(&["--thread", dir]);
    gateway.thread(dir.as_ref(), &["subscribe", "reader", "--no-handler"]);
    gateway.thread(dir.as_ref(), &["push", "first"]);
    let listed = gateway.get("/api/v1/threads").json(200);
    assert_eq!(listed["threads"][0]["id"], "inbox", "{listed}");
    let shown = gateway.get("/api/v1/threads/inbox").json(200);
    assert_eq!(shown["consumers_state"][0]["name"], "reader", "{shown}");
    let event = json!({ "source": "self", "type": "message", "content": "second" });
    gateway.post("/api/v1/threads/inbox/events", &event).json(201);
    let events = gateway.get("/api/v1/threads/inbox/events").json(200);
    let contents: Vec<&Value> =
        events["events"].as_array().unwrap().iter().map(|event| &event["content"]).collect();
    assert_eq!(contents, ["second", "first"]);
    assert_eq!(
        gateway.get("/api/v1/threads/nothing").json(404)["error"].as_str().map(str::is_empty),
        Some(false)
    );
}

#[test]
fn an_mcp_client_finds_the_tools_over_http() {
    let gateway = Gateway::start("cat");
    let ask = |session: Option<&str>, message: Value| {
        let json = [("Content-Type", "application/json"), ("Accept", "application/json, text/event-stream")];
        let session = session.map(|id| ("Mcp-Session-Id", id));
        let headers: Vec<_> = json.into_iter().chain(session).collect();
        gateway.ask("POST", "/mcp", &headers, message.to_string().as_bytes())
    };
    let answer = |answer: harness::Answer| match &*answer.headers["content-type"] {
        "application/json" => answer.json(200),
        _ => answer.events().into_iter().find(|one| one.get("id").is_some()).unwrap(),
    };
    let about = json!({
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" },
    });
    let begun = ask(None, json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about }));
    let session = begun.headers["mcp-session-id"].clone();
    assert!(answer(begun)["result"]["serverInfo"]["name"].is_string());
    let began = ask(Some(&session), json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
    assert_eq!(began.status, 202, "{}", began.text());
    let listed = answer(ask(
        Some(&session),
        json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {} }),
    ));
    let tools = listed["result"]["tools"].as_array().unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"sessions_search") && names.contains(&"push"), "{names:?}");
}
