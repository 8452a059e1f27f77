//! Clients written by others, on stdio: the Python package `mcp`, in both generations of the protocol, the inspector's
//! command line, and an agent of the Agent Client Protocol that gets the tools from `thread agent --mcp`.
//!
//! They are installed by `thread-testkit` when a test first needs them.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use thread_conversation::ending_of;
use thread_testkit::{clients, missing, program, wait_for};

use crate::harness::{Root, Session};

fn here(name: &str) -> String {
    format!("{}/tests/clients/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// The Python that has the clients; `None`, and the test is skipped, if it cannot be installed.
fn python() -> Option<PathBuf> {
    clients::python().map_err(missing).ok()
}

/// The shell command of the agent that `calls.py` expects.
fn shouting() -> String {
    let text = std::fs::read_to_string(here("calls.py")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("AGENT = ")).unwrap();
    serde_json::from_str(line).unwrap()
}

#[test]
fn the_python_package_and_the_inspector_use_every_tool() {
    let Some(python) = python() else { return };
    let folder = match clients::npm("mcp") {
        Ok(folder) => folder.display().to_string(),
        Err(needs) => return missing(needs),
    };
    for (script, of) in [("stdio.py", "legacy"), ("stdio.py", "2026-07-28"), ("inspector.py", &folder)] {
        let root = Root::new();
        let session = root.session(1);
        session.agent(&shouting());
        session.reader();
        let script = root.run(&python).arg(here(script)).arg(of).args([&program("thread-mcp"), &root.dir()]);
        eprint!("{}", script.arg(&session.id).env("PYTHONDONTWRITEBYTECODE", "1").ends_with(0).0);
    }
}

/// Installs the agent that makes the calls it is asked for, with the tools.
fn scripted(python: &Path, root: &Root, session: &Session) -> PathBuf {
    let state = root.path("state");
    std::fs::create_dir_all(&state).unwrap();
    let python = python.display().to_string();
    let words = ["agent", "install", "--protocol", "acp", "--mcp", "--", &python, &here("agent.py")];
    session.thread(&[&words[..], &[state.to_str().unwrap()]].concat());
    state
}

/// Asks the agent for these calls, and returns their results.
fn tell(session: &Session, steps: &Value) -> Value {
    let id = session.message("external:web:main:dm:default:ada", &steps.to_string());
    session.thread(&["dispatch"]);
    let event = wait_for("the agent's answer", || ending_of(&mut session.queue(), id).unwrap());
    serde_json::from_str(&event.content).unwrap_or_else(|e| panic!("{e}: {}", event.content))
}

#[test]
fn an_agent_is_given_the_tools_and_uses_them() {
    let Some(python) = python() else { return };
    let root = Root::new();
    let (own, other) = (root.session(1), root.session(2));
    let state = scripted(&python, &root, &own);
    other.agent("cat >/dev/null; sleep 1000");
    other.message("external:web:main:dm:default:bob", "where are the backups?");
    other.thread(&["dispatch"]);
    let process = json!({ "session": "$1.processes.0.session", "process": "$1.processes.0.process" });
    let told = tell(
        &own,
        &json!([
            "tools",
            ["process_list", { "session": other.id }],
            ["process_cancel", process.clone()],
            ["sessions_search", { "query": "BACKUPS", "day": "today" }],
            ["sessions_search", { "day": "yesterday" }],
            ["sessions_get", { "session": other.id }],
            ["subagent_run", { "task": "[\"tools\", [\"process_list\", {}]]", "name": "helper" }],
            ["process_list", {}],
            ["info", {}],
        ]),
    );
    let all: Vec<&str> = told[0].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert_eq!(all.len(), 16, "{all:?}");
    assert!(all.contains(&"subagent_run") && !all.contains(&"subscribe"));
    assert_eq!(told[1]["processes"][0]["about"], "where are the backups?");
    assert_eq!(told[2]["requested"], true);
    // Its own prompt has the word too.
    let found = told[3]["sessions"].as_array().unwrap();
    assert!(found.iter().any(|one| one["session"] == other.id), "{found:?}");
    assert_eq!(told[4]["sessions"], json!([]));
    assert_eq!(told[5]["messages"][0]["content"], "where are the backups?");
    assert_eq!(told[6]["state"], "answered", "{}", told[6]);
    let inner: Value = serde_json::from_str(told[6]["text"].as_str().unwrap()).unwrap();
    let depth = inner[0].as_array().unwrap();
    assert!(depth.len() == 15 && !depth.contains(&json!("subagent_run")), "{depth:?}");
    assert!(told[7]["processes"].as_array().unwrap().iter().any(|one| one["session"] == own.id));
    assert_eq!(told[8]["thread"], own.id);
    let server = std::fs::read_to_string(state.join("server")).unwrap();
    assert!(server.starts_with("thread /") && server.contains("thread-mcp"), "{server}");
    // The sub-agent's calls are in the parent's thread.
    let events = own.queue().read(thread::After(0), None).unwrap();
    assert!(events.iter().any(|event| event.subtype.as_deref() == Some("sub_agent")));
}

#[test]
fn a_sub_agent_that_an_agent_starts_is_one_call() {
    let Some(python) = python() else { return };
    let root = Root::new();
    let own = root.session(1);
    scripted(&python, &root, &own);
    let task = "[[\"info\", {}]]";
    let told = tell(
        &own,
        &json!([
            ["subagent_run", { "task": task, "name": "helper" }],
            ["subagent_run", { "task": task, "background": true }],
        ]),
    );
    assert_eq!((&told[0]["state"], told.as_array().unwrap().len()), (&json!("answered"), 2), "{told}");
    let events = own.queue().read(thread::After(0), None).unwrap();
    let of = |subtype: &str| -> Vec<Value> {
        let events = events.iter().filter(|event| event.subtype.as_deref() == Some(subtype));
        events.map(|event| serde_json::from_str(&event.content).unwrap()).collect()
    };
    let (calls, results) = (of("toolcall"), of("toolresult"));
    assert_eq!((calls.len(), results.len()), (2, 2), "{calls:#?}\n{results:#?}");
    for (call, result) in calls.iter().zip(&results) {
        assert_eq!(
            (&call["name"], &call["call_id"]),
            (&json!("mcp__thread__subagent_run"), &result["call_id"])
        );
    }
    assert_eq!(results[0]["result"], told[0]["text"]);
    assert_eq!(results[1]["result"], json!({ "sub_agent": told[1]["process"], "status": "started" }));
    let copies = events.iter().filter(|event| event.subtype.as_deref() == Some("sub_agent"));
    for copy in copies {
        let metadata: Value = serde_json::from_str(copy.metadata.as_deref().unwrap()).unwrap();
        assert!(calls.iter().any(|call| call["call_id"] == metadata["parent_call_id"]), "{copy:?}");
    }
}

#[test]
fn an_agent_that_was_killed_is_given_the_tools_again() {
    let Some(python) = python() else { return };
    let root = Root::new();
    let own = root.session(1);
    let state = scripted(&python, &root, &own);
    assert_eq!(tell(&own, &json!([["info", {}]]))[0]["thread"], own.id);
    assert!(!state.join("loaded").exists());
    // Ends the program. The next message starts another, which loads the session.
    own.thread(&["stop", "--consumer", "agent"]);
    assert_eq!(tell(&own, &json!([["info", {}]]))[0]["thread"], own.id);
    assert!(state.join("loaded").exists());
}

#[test]
fn only_agents_of_the_protocol_are_given_tools() {
    let root = Root::new();
    let session = root.session(1);
    let words = ["agent", "install", "--mcp", "--", "cat"];
    let said = session.run(&words).fails(2);
    assert!(said.contains("--protocol acp"), "{said}");
}
