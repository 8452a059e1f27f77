//! The tools on offer, their size in tokens, and how the program is started.

use serde_json::{Value, json};

use crate::harness::{Client, Root, command};

const QUEUE: [&str; 8] =
    ["push", "peek", "wait", "ack", "info", "schedule_create", "schedule_list", "schedule_cancel"];
const SESSIONS: [&str; 3] = ["sessions_search", "sessions_list", "sessions_get"];
const PROCESSES: [&str; 5] =
    ["process_list", "process_status", "process_cancel", "process_wait_time", "subagent_run"];

#[test]
fn tools_are_those_of_what_the_server_is_for() {
    let root = Root::new();
    let session = root.session(1);
    assert_eq!(session.serve(&[]).names(), QUEUE);
    let both: Vec<&str> = QUEUE.into_iter().chain(SESSIONS).chain(PROCESSES).collect();
    assert_eq!(root.serve(&[]).names(), both);
    assert_eq!(session.serve(&["--sessions"]).names(), both);
    let mut allowed = session.serve(&["--allow-subscribe"]);
    assert_eq!(allowed.names(), [&QUEUE[..], &["subscribe"]].concat());
}

#[test]
fn a_sub_agent_has_no_sub_agents() {
    let root = Root::new();
    let session = root.session(1);
    let path = session.path.join("agents/helper-1");
    thread::Queue::init(&path).unwrap();
    let mut client = Client::start(&root, &["--thread", path.to_str().unwrap(), "--sessions"]);
    let names = client.names();
    assert!(names.contains(&"sessions_get".to_owned()) && !names.contains(&"subagent_run".to_owned()));
    let id = client.begin("subagent_run", json!({ "session": session.id, "task": "x" }));
    assert_eq!(client.response(id)["error"]["code"], -32602);
}

#[test]
fn all_tools_together_cost_at_most_2000_tokens() {
    let root = Root::new();
    let session = root.session(1);
    let path = session.path.to_str().unwrap();
    for options in [&["--allow-subscribe"][..], &["--thread", path, "--allow-subscribe"]] {
        let tools = root.serve(options).tools();
        let mut bytes = 0;
        for tool in &tools {
            let about = tool["description"].as_str().unwrap();
            assert!(about.chars().count() <= 300, "{about}");
            assert!(tool["outputSchema"]["properties"].is_object(), "{tool}");
            bytes +=
                tool["name"].as_str().unwrap().len() + about.len() + tool["inputSchema"].to_string().len();
        }
        println!("{} tools cost {} tokens", tools.len(), bytes / 4);
        assert!(bytes / 4 <= 2000, "{} tokens", bytes / 4);
    }
}

#[test]
fn a_session_has_to_be_named_where_there_is_none() {
    let root = Root::new();
    let session = root.session(1);
    let path = session.path.to_str().unwrap();
    let schema = |client: &mut Client| {
        let tools = client.tools();
        tools.iter().find(|tool| tool["name"] == "push").unwrap()["inputSchema"].clone()
    };
    assert_eq!(schema(&mut root.serve(&[]))["required"], json!(["session", "content"]));
    let both = schema(&mut root.serve(&["--thread", path]));
    assert_eq!(both["required"], json!(["content"]));
    assert!(both["properties"]["session"].is_object());
    assert_eq!(schema(&mut session.serve(&[]))["properties"]["session"], Value::Null);
    let said = root.serve(&[]).refusal("info", json!({}));
    assert!(said.contains("sessions_list"), "{said}");
}

#[test]
fn results_fit_their_schemas() {
    let root = Root::new();
    let session = root.session(1);
    session.message("external:a", "hello");
    let mut client = root.serve(&[]);
    let tools = client.tools();
    let arguments = json!({ "session": session.id });
    for name in ["peek", "info", "sessions_list", "sessions_get", "process_list", "process_wait_time"] {
        let given = if name == "sessions_list" { json!({}) } else { arguments.clone() };
        let result = client.call(name, given);
        let schema = &tools.iter().find(|tool| tool["name"] == name).unwrap()["outputSchema"];
        for key in result.as_object().unwrap().keys() {
            assert!(schema["properties"].get(key).is_some(), "{name}: {key}");
        }
        for key in schema["required"].as_array().unwrap() {
            assert!(result.get(key.as_str().unwrap()).is_some(), "{name}: {key}");
        }
    }
}

#[test]
fn threads_are_resources() {
    let root = Root::new();
    let session = root.session(1);
    session.message("external:a", "hello");
    let mut client = root.serve(&["--thread", session.path.to_str().unwrap()]);
    let listed = client.request("resources/list", json!({}));
    let own = format!("thread://{}/events", session.path.display());
    let by_id = format!("thread://{}/events", session.id);
    let uris: Vec<&str> =
        listed["resources"].as_array().unwrap().iter().map(|one| one["uri"].as_str().unwrap()).collect();
    assert_eq!(uris, [own.as_str(), &by_id]);
    for uri in [own, by_id] {
        let read = client.request("resources/read", json!({ "uri": uri }));
        let text = read["contents"][0]["text"].as_str().unwrap();
        let event: Value = serde_json::from_str(text.trim()).unwrap();
        assert_eq!(event["content"], "hello");
    }
    for uri in ["thread:///etc/events", "thread://../x/events", "file:///etc/passwd", "thread:///events", ""]
    {
        let id = client.send("resources/read", json!({ "uri": uri }));
        assert!(client.response(id)["error"].is_object(), "{uri}");
    }
}

#[test]
fn a_wrong_start_says_what_to_do() {
    let root = Root::new();
    let (missing, file) = (root.path("missing"), root.path("file"));
    std::fs::write(&file, "").unwrap();
    for (options, code) in [
        (vec![], 2),
        (vec!["--thread".into(), missing.clone()], 1),
        (vec!["--root".into(), missing], 1),
        (vec!["--root".into(), file], 1),
        (vec!["--thread".into(), "postgres://host/database".into()], 2),
        (vec!["--no-such".into()], 2),
    ] {
        command(&root, "thread-mcp").args(&options).dir("/").fails(code);
    }
    let told = command(&root, "thread").args(["mcp", "--version"]).ok();
    assert_eq!(told.trim(), concat!("thread mcp ", env!("CARGO_PKG_VERSION")));
}

#[test]
fn it_ends_with_its_client() {
    let root = Root::new();
    let session = root.session(1);
    let mut client = root.serve(&[]);
    client.begin("wait", json!({ "session": session.id }));
    assert!(client.close());
}
