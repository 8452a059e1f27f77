//! Agents of the Agent Client Protocol written by others, and one of our own for what those do not cover.

use std::path::PathBuf;
use std::time::Instant;

use thread_conversation::{Entry, Record};
use thread_testkit::{clients, missing};

use serde_json::json;

use crate::harness::{Talk, lacks};

/// An installed client; `None`, and the test is skipped, if it could not be installed.
fn found(installed: Result<PathBuf, String>) -> Option<PathBuf> {
    installed.map_err(missing).ok()
}

fn python(script: &str) -> Option<Vec<String>> {
    let (python, examples) = (found(clients::python())?, found(clients::acp_examples())?);
    Some([python, examples.join(script)].map(|path| path.display().to_string()).to_vec())
}

fn node() -> Option<Vec<String>> {
    let example = "node_modules/@agentclientprotocol/sdk/dist/examples/agent.js";
    Some(vec!["node".to_owned(), found(clients::npm("acp"))?.join(example).display().to_string()])
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

fn answer_permission(talk: &Talk, answer: &(String, String)) {
    answer_permission_from("x", talk, answer);
}

fn answer_permission_from(source: &str, talk: &Talk, (request_id, choice): &(String, String)) {
    let content = serde_json::json!({ "request_id": request_id, "choice": choice }).to_string();
    let words =
        ["push", "--source", source, "--type", "record", "--subtype", "permission_answer", "--content"];
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

/// A talk with an agent that plays these steps, a list for each prompt: see `player.py`.
fn plays(options: &[&str], prompts: &[serde_json::Value]) -> Option<Talk> {
    plays_in(Talk::new(), options, prompts)
}

fn plays_in(talk: Talk, options: &[&str], prompts: &[serde_json::Value]) -> Option<Talk> {
    if lacks("python3") {
        return None;
    }
    let lines: Vec<String> = prompts.iter().map(|steps| steps.to_string()).collect();
    let steps = talk.write("steps", &lines.join("\n"));
    let player = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/agent/player.py");
    install(&talk, options, &["python3", player, &steps].map(str::to_owned));
    Some(talk)
}

fn chunk(content: serde_json::Value) -> serde_json::Value {
    json!({ "update": { "sessionUpdate": "agent_message_chunk", "content": content } })
}

fn call(kind: &str, mut call: serde_json::Value) -> serde_json::Value {
    call["sessionUpdate"] = kind.into();
    json!({ "update": call })
}

/// The calls and results of a talk, as text.
fn calls(talk: &Talk) -> Vec<String> {
    let told = |(.., entry): (i64, Option<String>, Entry)| match entry {
        Entry::ToolCall(call) => Some(format!("{}: {} {}", call.call_id, call.name, call.arguments)),
        Entry::ToolResult(result) => Some(format!("{}= {:?}", result.call_id, result.outcome)),
        Entry::Permission(asked) => {
            Some(format!("{}? {} {} {}", asked.call_id?, asked.title, asked.arguments, asked.details))
        }
        _ => None,
    };
    talk.entries().into_iter().filter_map(told).collect()
}

#[test]
fn a_call_is_stored_when_its_details_are_known_or_it_begins_and_is_corrected() {
    let begins =
        |id: &str| call("tool_call", json!({ "toolCallId": id, "title": "Terminal", "rawInput": {} }));
    let update = |id: &str, more: serde_json::Value| {
        let mut all = more;
        all["toolCallId"] = id.into();
        call("tool_call_update", all)
    };
    let steps = json!([
        begins("a"),
        update("a", json!({ "title": "`ls -la`", "rawInput": { "command": "ls -la" } })),
        update("a", json!({ "status": "in_progress" })),
        update("a", json!({ "status": "completed", "rawOutput": "two files" })),
        update("a", json!({ "title": "too late" })),
        begins("b"),
        update("b", json!({ "status": "in_progress" })),
        update("b", json!({ "rawInput": { "command": "pwd" } })),
        update("b", json!({ "status": "failed" })),
        begins("c"),
        { "stop": "end_turn" },
    ]);
    let Some(talk) = plays(&[], &[steps]) else { return };
    let id = talk.say("x");
    assert_eq!(talk.answer(id), "");
    assert_eq!(
        calls(&talk),
        [
            r#"a: Terminal {"command":"ls -la"}"#,
            r#"a= Ok(String("two files"))"#,
            "b: Terminal {}",
            r#"b: Terminal {"command":"pwd"}"#,
            r#"b= Err("the tool failed")"#,
            "c: Terminal {}",
            r#"c= Err("the answer came without it")"#,
        ]
    );
    // All but the last came from the program.
    let events = talk.events().into_iter().filter(|event| event.subtype.as_deref() == Some("toolresult"));
    assert_eq!(events.map(|event| Record::of(event).unreported).collect::<Vec<_>>(), [false, false, true]);
    assert_eq!(talk.is_settled(), Ok(()));
}

#[test]
fn a_request_for_permission_has_all_that_is_to_be_judged() {
    let change = json!([{ "type": "diff", "path": "/a", "oldText": "x", "newText": "y" }]);
    let steps = json!([
        call("tool_call", json!({ "toolCallId": "c", "title": "Terminal", "rawInput": {} })),
        asks(json!({ "toolCallId": "c", "title": "`rm -r /`", "rawInput": { "command": "rm -r /" }, "content": change })),
        { "stop": "end_turn" },
    ]);
    let Some(talk) = plays(&[], &[steps]) else { return };
    let id = talk.say("x");
    answer_permission(&talk, &asked(&talk, id, "allow_once"));
    assert_eq!(talk.answer(id), "yes");
    let change = r#"{"type":"diff","path":"/a","oldText":"x","newText":"y"}"#;
    assert_eq!(
        calls(&talk)[..2],
        [
            r#"c: Terminal {"command":"rm -r /"}"#.to_owned(),
            format!(r#"c? `rm -r /` {{"command":"rm -r /"}} {change}"#)
        ]
    );
}

#[test]
fn plans_images_and_the_reason_of_the_end_are_kept() {
    let text = |text: &str| chunk(json!({ "type": "text", "text": text }));
    let image = json!({ "type": "image", "mimeType": "image/png", "data": "iVBO" });
    let entry = json!({ "content": "look", "priority": "high", "status": "pending" });
    let pictures = json!([
        { "update": { "sessionUpdate": "plan", "entries": [entry] } },
        text("see: "), chunk(image), text("that"), { "stop": "end_turn" },
    ]);
    let cut = json!([text("and th"), { "stop": "max_tokens" }]);
    let Some(talk) = plays(&[], &[pictures, cut]) else { return };
    let first = talk.say("x");
    let parts = json!([
        { "type": "text", "text": "see: " },
        { "type": "image", "source": { "type": "data", "value": "iVBO", "mimeType": "image/png" } },
        { "type": "text", "text": "that" },
    ]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&talk.answer(first)).unwrap(), parts);
    assert!(talk.entries().iter().any(|(.., told)| *told == Entry::Plan(json!([entry]))));
    let second = talk.say("y");
    let Entry::Answer { answer, .. } = talk.ending(second) else { panic!() };
    assert_eq!((answer.content.as_str(), answer.stage.as_deref()), ("and th", Some("max_tokens")));
}

#[test]
fn the_messages_of_a_turn_are_paragraphs_of_one_answer() {
    let text = |message: Option<&str>, text: &str| {
        let mut chunk = chunk(json!({ "type": "text", "text": text }));
        if let Some(message) = message {
            chunk["update"]["messageId"] = message.into();
        }
        chunk
    };
    let (one, two) = (Some("m1"), Some("m2"));
    let steps = json!([
        text(one, "I "), text(one, "look."), text(None, " Yes."), text(one, " So."), text(two, "It "),
        text(two, "works."), { "stop": "end_turn" },
    ]);
    let next = json!([text(Some("m3"), "Bye."), { "stop": "end_turn" }]);
    let Some(talk) = plays(&[], &[steps, next]) else { return };
    let (first, second) = (talk.say("x"), talk.say("y"));
    assert_eq!(talk.answer(first), "I look. Yes. So.\n\nIt works.");
    assert_eq!(talk.answer(second), "Bye.");
}

#[test]
fn the_agents_commands_are_kept_whenever_they_change() {
    let said = |names: &[&str]| {
        let command = |name: &&str| json!({ "name": name, "description": "d", "input": { "hint": "h" } });
        let commands: Vec<_> = names.iter().map(command).chain([json!({ "name": 7 })]).collect();
        json!({ "update": { "sessionUpdate": "available_commands_update", "availableCommands": commands } })
    };
    let answer = chunk(json!({ "type": "text", "text": "x" }));
    let steps = |names: &[&str]| json!([said(names), said(names), answer, { "stop": "end_turn" }]);
    let kept = |talk: &Talk| {
        let commands = |(.., entry): (i64, Option<String>, Entry)| match entry {
            Entry::Commands(commands) => Some(commands),
            _ => None,
        };
        talk.entries().into_iter().filter_map(commands).collect::<Vec<_>>()
    };
    let command = |name: &str| json!({ "name": name, "description": "d", "hint": "h" });
    let Some(talk) = plays(&[], &[steps(&["a"]), steps(&["a", "b"])]) else { return };
    for text in ["x", "y"] {
        let id = talk.say(text);
        talk.answer(id);
    }
    assert_eq!(kept(&talk), [json!([command("a")]), json!([command("a"), command("b")])]);
    // Each process says them; they are kept once.
    let Some(talk) = plays(&["--idle", "0s"], &[steps(&["a"])]) else { return };
    for text in ["x", "y"] {
        let id = talk.say(text);
        talk.answer(id);
        talk.until_idle();
    }
    assert_eq!(kept(&talk), [json!([command("a")])]);
}

fn asks(call: serde_json::Value) -> serde_json::Value {
    let options = json!([
        { "optionId": "yes", "name": "Yes", "kind": "allow_once" },
        { "optionId": "no", "name": "No", "kind": "reject_once" },
    ]);
    json!({ "ask": { "toolCall": call, "options": options } })
}

#[test]
fn an_agent_cannot_answer_its_own_request() {
    let steps = json!([asks(json!({ "toolCallId": "c", "title": "rm" })), { "stop": "end_turn" }]);
    let Some(talk) = plays(&[], &[steps]) else { return };
    let id = talk.say("x");
    let (request_id, _) = asked(&talk, id, "allow_once");
    answer_permission_from("self", &talk, &(request_id.clone(), "yes".into()));
    answer_permission(&talk, &(request_id, "no".into()));
    assert_eq!(talk.answer(id), "no");
}

#[test]
fn a_request_that_the_agent_takes_back_is_closed() {
    let talk = Talk::new();
    let (taken_back, over) = (talk.path("taken back"), talk.path("over"));
    let mut ask = asks(json!({ "toolCallId": "c", "title": "rm" }));
    ask["until"] = taken_back.to_str().into();
    let steps = json!([ask, { "wait": over }, { "stop": "end_turn" }]);
    let Some(talk) = plays_in(talk, &[], &[steps]) else { return };
    let id = talk.say("x");
    let (request_id, choice) = asked(&talk, id, "allow_once");
    talk.write("taken back", "");
    let withdrawn = |talk: &Talk| {
        talk.until("it is not withdrawn", |entries| {
            entries.iter().find_map(|(_, run, entry)| match entry {
                Entry::PermissionAnswer(answer) => Some((run.clone(), answer.clone())),
                _ => None,
            })
        })
    };
    let (run, answer) = withdrawn(&talk);
    assert_eq!(run, Some(format!("run_{id}")));
    assert_eq!((answer.request_id, answer.choice.as_str()), (request_id.clone(), ""));
    // It is too late for an answer.
    answer_permission(&talk, &(request_id, choice));
    talk.write("over", "");
    assert_eq!(talk.answer(id), "cancelled");
    assert_eq!(talk.is_settled(), Ok(()));
}

#[test]
fn a_request_waits_as_long_as_it_is_told_to() {
    let steps = json!([asks(json!({ "toolCallId": "c", "title": "rm" })), { "stop": "end_turn" }]);
    let Some(talk) = plays(&["--permit-wait", "300ms"], std::slice::from_ref(&steps)) else { return };
    let id = talk.say("x");
    let began = Instant::now();
    assert_eq!(talk.answer(id), "no");
    assert!(began.elapsed().as_secs() < 200);
    let Some(talk) = plays(&["--permit-wait", "off"], &[steps]) else { return };
    let id = talk.say("x");
    let (request_id, _) = asked(&talk, id, "allow_once");
    let waits = talk.entries().into_iter().find_map(|(.., entry)| match entry {
        Entry::Permission(asked) => Some(asked.wait()),
        _ => None,
    });
    assert_eq!(waits, Some(None));
    answer_permission(&talk, &(request_id, "yes".into()));
    assert_eq!(talk.answer(id), "yes");
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

/// Sends eight messages to our agent, whose process ends once and is killed once on the way. Returns the
/// answer to the last.
fn count_to_eight(options: &[&str]) -> Option<String> {
    let talk = Talk::new();
    let agent = counting(&talk, options)?;
    install(&talk, &["--idle", "1s"], &agent);
    let mut answer = String::new();
    for n in 1..=8 {
        let id = talk.say(&format!("message {n}"));
        answer = talk.answer(id);
        if n == 3 {
            talk.until_idle();
        }
        if n == 5 {
            for pid in talk.processes() {
                talk.sh(&format!("kill -9 {pid}")).ok();
            }
        }
    }
    Some(answer)
}

#[test]
fn an_agent_keeps_counting_by_its_session() {
    let Some(answer) = count_to_eight(&[]) else { return };
    assert_eq!(answer, "8. message 8");
}

#[test]
fn an_agent_that_cannot_load_a_session_keeps_counting_by_the_transcript() {
    let Some(answer) = count_to_eight(&["--no-load"]) else { return };
    assert_eq!(answer, "8. message 8");
}

#[test]
fn an_agent_that_forgets_both_does_not_keep_counting() {
    for options in [&["--forgetful"][..], &["--forgetful", "--no-load"]] {
        let Some(answer) = count_to_eight(options) else { return };
        assert_ne!(answer, "8. message 8");
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

/// The runs that the agent began itself: the ids of the events that began them.
fn unasked(talk: &Talk, count: usize) -> Vec<i64> {
    talk.until("it begins no run itself", |entries| {
        let began = entries.iter().filter_map(|(id, _, entry)| match entry {
            Entry::RunStarted { reply_to: None, .. } => Some(*id),
            _ => None,
        });
        Some(began.collect::<Vec<_>>()).filter(|began| began.len() >= count)
    })
}

#[test]
fn what_an_agent_says_after_its_answer_is_a_run_of_its_own() {
    let talk = Talk::new();
    let Some(agent) = counting(&talk, &[]) else { return };
    // Background work keeps the program alive: otherwise it would have been ended as idle.
    install(&talk, &["--idle", "200ms"], &agent);
    let id = talk.say("later 3 the task is done");
    assert!(talk.answer(id).starts_with("1. later"));
    let began = unasked(&talk, 1)[0];
    assert_eq!(talk.answer(began), "the task is done");
    let event = talk.events().into_iter().find(|event| event.id == began).unwrap();
    assert!(!event.metadata.unwrap().contains("reply_to"));
    let run_id = talk.entries().into_iter().find(|(id, ..)| *id == began).unwrap().1.unwrap();
    assert_eq!(talk.tokens(&run_id).concat(), "the task is done");
    let call = r#"task: task {"say":"the task is done"}"#;
    let closed = r#"task= Err("the answer came without it")"#;
    assert_eq!(calls(&talk), [call, closed, call, r#"task= Ok(String("done"))"#]);
    assert_eq!(talk.is_settled(), Ok(()));
    // Now the program is idle and is ended.
    talk.until_idle();
    let next = talk.say("again");
    assert_eq!(talk.answer(next), "2. again");
}

#[test]
fn what_an_agent_says_unasked_is_no_part_of_the_next_answer() {
    let talk = Talk::new();
    let Some(agent) = counting(&talk, &[]) else { return };
    install(&talk, &[], &agent);
    let first = talk.say("chatter 2");
    assert_eq!(talk.answer(first), "1. chatter 2");
    unasked(&talk, 1);
    let second = talk.say("and now?");
    assert_eq!(talk.answer(second), "2. and now?");
    let began = unasked(&talk, 1);
    assert_eq!(began.len(), 1);
    assert!(talk.answer(began[0]).starts_with("word word "));
    assert_eq!(talk.is_settled(), Ok(()));
}

#[test]
fn a_run_that_the_agent_began_itself_ends_once_if_anything_is_killed_in_it() {
    for victim in ["program", "adapter"] {
        let talk = Talk::new();
        let Some(agent) = counting(&talk, &[]) else { return };
        install(&talk, &[], &agent);
        let first = talk.say("chatter 1000");
        talk.answer(first);
        let began = unasked(&talk, 1)[0];
        talk.until("it says nothing", |entries| {
            let said = entries.iter().filter_map(|(id, _, entry)| match entry {
                Entry::Token { text, .. } if *id > began => Some(text.as_str()),
                _ => None,
            });
            said.collect::<String>().starts_with("word ").then_some(())
        });
        let pids = match victim {
            "program" => talk.processes(),
            _ => {
                let all = talk.everything().into_iter();
                all.filter(|(_, line)| line.contains("thread-agent\0--")).map(|(pid, _)| pid).collect()
            }
        };
        assert!(!pids.is_empty(), "{:?}", talk.everything());
        for pid in pids {
            thread_testkit::kill(pid);
        }
        let second = talk.say("go on");
        assert!(talk.answer(second).ends_with("go on"));
        match talk.ending(began) {
            Entry::Error { retryable: false, partial: Some(said), .. } => assert!(said.starts_with("word ")),
            other => panic!("{victim}: {other:?}"),
        }
        assert_eq!(talk.is_settled(), Ok(()));
    }
}

#[test]
fn a_run_that_the_agent_began_itself_can_be_cancelled() {
    let talk = Talk::new();
    let Some(agent) = counting(&talk, &[]) else { return };
    install(&talk, &[], &agent);
    let first = talk.say("chatter 5");
    talk.answer(first);
    let began = unasked(&talk, 1)[0];
    let run_id = talk.entries().into_iter().find(|(id, ..)| *id == began).unwrap().1.unwrap();
    talk.cancel(&run_id);
    assert!(matches!(talk.ending(began), Entry::Cancelled { .. }));
    assert!(!talk.processes().is_empty(), "the agent is kept");
}

#[test]
fn the_session_that_an_agent_begins_itself_is_the_one_that_is_loaded() {
    let talk = Talk::new();
    let Some(agent) = counting(&talk, &[]) else { return };
    install(&talk, &["--idle", "1s"], &agent);
    let mut answer = String::new();
    for text in ["one", "two", "/clear", "three"] {
        let id = talk.say(text);
        answer = talk.answer(id);
    }
    assert_eq!(answer, "1. three");
    talk.until_idle();
    let id = talk.say("four");
    assert_eq!(talk.answer(id), "2. four");
}

#[test]
fn a_clear_starts_over_without_the_earlier_conversation() {
    for options in [&[][..], &["--no-load"]] {
        let talk = Talk::new();
        let Some(agent) = counting(&talk, options) else { return };
        install(&talk, &["--idle", "1s"], &agent);
        for text in ["one", "two"] {
            let id = talk.say(text);
            talk.answer(id);
        }
        let clear = ["push", "--source", "x", "--type", "record", "--subtype", "clear", "--content", ""];
        talk.thread(&clear).ok();
        let id = talk.say("three");
        assert_eq!(talk.answer(id), "1. three", "{options:?}");
        talk.until_idle();
        let id = talk.say("four");
        assert_eq!(talk.answer(id), "2. four", "{options:?}");
        // `/clear` works also while no program runs.
        talk.until_idle();
        talk.thread(&clear).ok();
        let id = talk.say("five");
        assert_eq!(talk.answer(id), "1. five", "{options:?}");
    }
}

#[test]
fn a_session_is_resumed_where_it_cannot_be_loaded() {
    let talk = Talk::new();
    let Some(agent) = counting(&talk, &["--no-load", "--resume"]) else { return };
    install(&talk, &["--idle", "1s"], &agent);
    let id = talk.say("one");
    assert_eq!(talk.answer(id), "1. one");
    talk.until_idle();
    let id = talk.say("two");
    assert_eq!(talk.answer(id), "2. two");
    assert!(!talk.read("state/resumed").is_empty());
}

#[test]
fn a_call_keeps_the_name_of_its_tool_its_title_kind_places_and_changes() {
    let diff = json!({ "type": "diff", "path": "/a", "oldText": "x", "newText": "y" });
    let steps = json!([
        call("tool_call", json!({ "toolCallId": "a", "title": "bash", "kind": "execute", "rawInput": {} })),
        call("tool_call_update", json!({ "toolCallId": "a", "title": "pwd; rm -f zz", "rawInput": { "command": "pwd" },
            "locations": [{ "path": "/a", "line": 3 }] })),
        call("tool_call_update", json!({ "toolCallId": "a", "status": "completed", "content": [diff] })),
        call("tool_call", json!({ "toolCallId": "b", "title": "`ls`", "rawInput": { "command": "ls" },
            "_meta": { "claudeCode": { "toolName": "Bash" } } })),
        call("tool_call_update", json!({ "toolCallId": "b", "status": "failed", "rawOutput": "no" })),
        { "stop": "end_turn" },
    ]);
    let Some(talk) = plays(&[], &[steps]) else { return };
    let id = talk.say("x");
    talk.answer(id);
    let stored = |subtype: &str| -> Vec<serde_json::Value> {
        let of_kind = talk.events().into_iter().filter(|event| event.subtype.as_deref() == Some(subtype));
        of_kind.map(|event| serde_json::from_str(&event.content).unwrap()).collect()
    };
    assert_eq!(
        stored("toolcall"),
        [
            json!({ "call_id": "a", "name": "bash", "arguments": { "command": "pwd" }, "title": "pwd; rm -f zz",
                "kind": "execute", "locations": [{ "path": "/a", "line": 3 }] }),
            json!({ "call_id": "b", "name": "Bash", "arguments": { "command": "ls" }, "title": "`ls`", "kind": "other" }),
        ]
    );
    let results = stored("toolresult");
    assert_eq!((&results[0]["name"], &results[0]["content"]), (&json!("bash"), &json!([diff])));
    assert_eq!(results[1], json!({ "call_id": "b", "name": "Bash", "error": "\"no\"" }));
}

/// Waits until the agent has begun to work on the first message, and says another in the middle of it.
fn steered(talk: &Talk, work: &str) -> (i64, i64) {
    let first = talk.say(work);
    talk.until("it does not work", |_| (!talk.tokens(&format!("run_{first}")).is_empty()).then_some(()));
    (first, talk.say_with("use the other file", r#"{"priority":"steer"}"#))
}

/// The ids of the messages that were given to the agent in the middle of a run.
fn given_ahead(talk: &Talk) -> Vec<i64> {
    let events = talk.events().into_iter().filter(|event| event.subtype.as_deref() == Some("steered"));
    let content = |event: thread::Event| serde_json::from_str::<serde_json::Value>(&event.content).unwrap();
    events.map(|event| content(event)["message"].as_i64().unwrap()).collect()
}

#[test]
fn an_agent_that_takes_prompts_ahead_is_steered() {
    let talk = Talk::new();
    let Some(agent) = counting(&talk, &["--queue"]) else { return };
    install(&talk, &[], &agent);
    let (first, second) = steered(&talk, "work");
    assert_eq!(talk.answer(first), "1. working");
    assert_eq!(talk.answer(second), "2. use the other file");
    assert_eq!(given_ahead(&talk), [second]);
    assert_eq!(talk.answer(talk.say("next")), "3. next");
    // A cancel takes both from the agent, and the second is given to it again.
    let (first, second) = steered(&talk, "long");
    talk.until("it is not steered", |_| given_ahead(&talk).contains(&second).then_some(()));
    talk.cancel(&format!("run_{first}"));
    assert!(matches!(talk.ending(first), Entry::Cancelled { .. }));
    assert!(talk.answer(second).ends_with(". use the other file"));
    assert_eq!(talk.is_settled(), Ok(()));
}

#[test]
fn what_was_given_ahead_is_answered_though_the_adapter_was_killed() {
    let talk = Talk::new();
    let Some(agent) = counting(&talk, &["--queue"]) else { return };
    install(&talk, &[], &agent);
    let (first, second) = steered(&talk, "work");
    talk.until("it is not steered", |_| given_ahead(&talk).contains(&second).then_some(()));
    crate::tools_killed::kill(&talk, 0);
    talk.thread(&["dispatch"]).ok();
    assert!(talk.answer(first).ends_with(". working"));
    assert!(talk.answer(second).ends_with(". use the other file"));
    assert_eq!(talk.is_settled(), Ok(()));
}

#[test]
fn an_agent_that_takes_no_prompt_ahead_gets_it_next() {
    let talk = Talk::new();
    let Some(agent) = counting(&talk, &[]) else { return };
    install(&talk, &[], &agent);
    let first = talk.say("long");
    talk.until("it does not work", |_| (!talk.tokens(&format!("run_{first}")).is_empty()).then_some(()));
    let (next, steers) = (talk.say("next"), talk.say_with("steer", r#"{"priority":"steer"}"#));
    talk.cancel(&format!("run_{first}"));
    assert_eq!((talk.answer(steers), talk.answer(next)), ("2. steer".into(), "3. next".into()));
    assert!(given_ahead(&talk).is_empty());
}
