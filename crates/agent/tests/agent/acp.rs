//! Agents of the Agent Client Protocol written by others, and one of ours for what theirs do not cover.

use std::path::PathBuf;
use std::time::Instant;

use thread_agent::conversation::Entry;

use crate::harness::Talk;

/// The folder of the protocol's packages, which `.ci/run` installs.
fn packages() -> Option<PathBuf> {
    let found = std::env::var_os("THREAD_TEST_ACP").map(PathBuf::from);
    if found.is_none() {
        eprintln!(
            "skipped: THREAD_TEST_ACP is not set to the folder of the protocol's packages (see .ci/run)"
        );
    }
    found
}

fn python(script: &str) -> Option<Vec<String>> {
    let packages = packages()?;
    let python = packages.join("venv/bin/python").display().to_string();
    Some(vec![python, packages.join("examples").join(script).display().to_string()])
}

fn node() -> Option<Vec<String>> {
    let example = "node_modules/@agentclientprotocol/sdk/dist/examples/agent.js";
    Some(vec!["node".to_owned(), packages()?.join(example).display().to_string()])
}

/// Our agent, which counts prompts and stores its state in the test's folder.
fn counting(talk: &Talk, options: &[&str]) -> Option<Vec<String>> {
    let mut words = python("")?;
    let state = talk.path("state");
    std::fs::create_dir_all(&state).unwrap();
    words[1] = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/agent/acp_agent.py").to_owned();
    words.push(state.display().to_string());
    words.extend(options.iter().map(|option| option.to_string()));
    Some(words)
}

fn install(talk: &Talk, options: &[&str], program: &[String]) {
    let program: Vec<&str> = program.iter().map(String::as_str).collect();
    talk.install(&[&["--protocol", "acp"], options].concat(), &program);
}

#[test]
fn the_examples_of_the_python_package_answer() {
    let Some(agent) = python("agent.py") else { return };
    let talk = Talk::new();
    install(&talk, &[], &agent);
    let (first, second) = (talk.say("hello"), talk.say(r#"[{"type":"text","text":"in parts"}]"#));
    assert_eq!(talk.answer(first), "Client sent:hello");
    assert_eq!(talk.answer(second), "Client sent:in parts");
    let Some(agent) = python("echo_agent.py") else { return };
    let talk = Talk::new();
    install(&talk, &[], &agent);
    let id = talk.say("hello");
    assert_eq!(talk.answer(id), "hello");
    assert_eq!(talk.is_settled(), Ok(()));
}

/// Waits for a request for permission after that event, and returns its id and its choice of that kind.
fn asked(talk: &Talk, after: i64, kind: &str) -> (String, String) {
    talk.until("it does not ask", |entries| {
        entries.iter().find_map(|(id, _, entry)| match entry {
            Entry::Permission(asked) if *id > after => {
                let choice = asked.choices.iter().find(|choice| choice.kind == kind)?;
                Some((asked.request_id.clone(), choice.id.clone()))
            }
            _ => None,
        })
    })
}

fn answer_permission(talk: &Talk, (request_id, choice): &(String, String)) {
    let content = serde_json::json!({ "request_id": request_id, "choice": choice }).to_string();
    let words = ["push", "--source", "x", "--type", "record", "--subtype", "permission_answer", "--content"];
    talk.thread(&[&words[..], &[&content]].concat()).ok();
}

#[test]
fn the_example_of_the_npm_package_calls_tools_and_asks() {
    let Some(agent) = node() else { return };
    let talk = Talk::new();
    install(&talk, &[], &agent);
    let first = talk.say("change it");
    answer_permission(&talk, &asked(&talk, first, "allow_once"));
    assert!(talk.answer(first).ends_with("The changes have been applied."));
    // The agent uses the same call ids in each run.
    let second = talk.say("and again");
    answer_permission(&talk, &asked(&talk, second, "reject_once"));
    assert!(talk.answer(second).ends_with("I'll skip the configuration update."));
    let calls: Vec<(String, bool)> = talk
        .entries()
        .into_iter()
        .filter_map(|(.., entry)| match entry {
            Entry::ToolResult(result) => Some((result.call_id, result.outcome.is_ok())),
            _ => None,
        })
        .collect();
    let call = |id: &str, ok| (id.to_owned(), ok);
    assert_eq!(
        calls,
        [call("call_1", true), call("call_2", true), call("call_1", true), call("call_2", false)]
    );
    assert_eq!(talk.is_settled(), Ok(()));
}

#[test]
fn permission_may_be_given_or_refused_beforehand() {
    let Some(agent) = node() else { return };
    for (how, end) in [("allow", "have been applied."), ("reject", "skip the configuration update.")] {
        let talk = Talk::new();
        install(&talk, &["--permit", how], &agent);
        let id = talk.say("change it");
        assert!(talk.answer(id).ends_with(end));
        assert!(!talk.entries().iter().any(|(.., entry)| matches!(entry, Entry::Permission(_))));
    }
}

#[test]
fn a_cancel_reaches_an_agent_that_waits_for_permission() {
    let Some(agent) = node() else { return };
    let talk = Talk::new();
    install(&talk, &[], &agent);
    let id = talk.say("change it");
    asked(&talk, id, "allow_once");
    talk.cancel(&format!("run_{id}"));
    assert!(matches!(talk.ending(id), Entry::Cancelled { .. }));
    assert_eq!(talk.is_settled(), Ok(()));
    assert!(!talk.processes().is_empty(), "the agent is kept");
}

#[test]
fn now_interrupts_an_agent_by_its_protocol_and_it_keeps_its_memory() {
    let talk = Talk::new();
    let Some(agent) = counting(&talk, &[]) else { return };
    install(&talk, &[], &agent);
    let long = talk.say("long");
    let run = format!("run_{long}");
    talk.until("it printed nothing", |_| (!talk.tokens(&run).is_empty()).then_some(()));
    let began = Instant::now();
    let now = talk.say_with("now", r#"{"priority":"now"}"#);
    assert!(matches!(talk.ending(long), Entry::Cancelled { .. }));
    eprintln!("interrupted after {:?}", began.elapsed());
    assert_eq!(talk.answer(now), "2. now");
}

/// Sends a hundred messages to our agent, whose process ends once and is killed once on the way. Returns the
/// answer to the last.
fn count_to_a_hundred(options: &[&str]) -> Option<String> {
    let talk = Talk::new();
    let agent = counting(&talk, options)?;
    install(&talk, &["--idle", "1s"], &agent);
    let mut answer = String::new();
    for n in 1..=100 {
        let id = talk.say(&format!("message {n}"));
        answer = talk.answer(id);
        if n == 30 {
            talk.until_idle();
        }
        if n == 60 {
            for pid in talk.processes() {
                talk.sh(&format!("kill -9 {pid}")).ok();
            }
        }
    }
    Some(answer)
}

#[test]
fn an_agent_keeps_counting_by_its_session() {
    let Some(answer) = count_to_a_hundred(&[]) else { return };
    assert_eq!(answer, "100. message 100");
}

#[test]
fn an_agent_that_cannot_load_a_session_keeps_counting_by_the_transcript() {
    let Some(answer) = count_to_a_hundred(&["--no-load"]) else { return };
    assert_eq!(answer, "100. message 100");
}

#[test]
fn an_agent_that_forgets_both_does_not_keep_counting() {
    for options in [&["--forgetful"][..], &["--forgetful", "--no-load"]] {
        let Some(answer) = count_to_a_hundred(options) else { return };
        assert_ne!(answer, "100. message 100");
    }
}

#[test]
fn another_version_of_the_protocol_is_a_final_error() {
    let script = r#"read x; printf '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":7}}\n'; sleep 1000"#;
    let talk = Talk::with(&["--protocol", "acp"], &["sh", "-c", script]);
    let id = talk.say("x");
    let Entry::Error { error, retryable: false, .. } = talk.ending(id) else { panic!() };
    assert_eq!(error, "the agent speaks version 7 of the Agent Client Protocol; this is version 1");
}

#[test]
fn a_program_that_speaks_something_else_is_an_error() {
    for (script, says) in [
        ("cat", "this client does not support initialize"),
        ("yes hello", "does not speak the Agent Client Protocol: hello"),
        ("read x; echo '{\"id\":1,\"result\":5}'; cat", "does not fit the Agent Client Protocol"),
        ("echo hello", "ended with exit code 0"),
    ] {
        let talk = Talk::with(&["--protocol", "acp", "--attempts", "1"], &["sh", "-c", script]);
        let id = talk.say("x");
        let Entry::Error { error, retryable: false, .. } = talk.ending(id) else { panic!() };
        assert!(error.contains(says), "{script}: {error}");
    }
}
