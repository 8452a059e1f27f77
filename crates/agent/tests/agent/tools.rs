//! The tools of a model, from `fixtures/tools.py`.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use thread_conversation::{Entry, Permission, Record, ToolCall, ToolResult};
use thread_testkit::{Models, quoted, wait_until};

use crate::harness::{ADA, Talk};

const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tools.py");

/// What `--tools` takes for the server of tools `t`.
fn server(talk: &Talk) -> String {
    format!("t=python3 {} --log {}", quoted(SERVER), quoted(talk.path(log_of(talk))))
}

/// The file with the calls that a conversation's server of tools was given.
fn log_of(talk: &Talk) -> String {
    format!("{}.calls", talk.dir().file_name().unwrap().to_str().unwrap())
}

/// These calls, as `tool text`.
pub fn made(talk: &Talk) -> Vec<String> {
    talk.lines(log_of(talk))
}

/// A conversation with a model that does what it is told, and has tools.
pub fn talk_with(model: &str, more: &[&str]) -> Option<(Talk, Models)> {
    let talk = Talk::new();
    let log = talk.path("requests");
    let models = Models::start(["--log", log.to_str().unwrap()])?;
    install(&talk, &models, model, more);
    Some((talk, models))
}

pub fn install(talk: &Talk, models: &Models, model: &str, more: &[&str]) {
    let server = server(talk);
    let options = [
        "agent",
        "install",
        "--protocol",
        "openai",
        "--url",
        &models.url,
        "--model",
        model,
        "--tools",
        &server,
    ];
    talk.thread(&[&options[..], more].concat()).ok();
}

pub fn call(tool: &str, arguments: Value) -> Value {
    json!({ "name": format!("t__{tool}"), "arguments": arguments })
}

pub fn with_text(tool: &str, text: &str) -> Value {
    call(tool, json!({ "text": text }))
}

/// A message for the model `script` whose turns make these calls.
pub fn script(turns: &[&[Value]]) -> String {
    Value::from_iter(turns.iter().map(|calls| json!({ "calls": calls }))).to_string()
}

/// The bodies of the requests to the model so far.
pub fn requests(talk: &Talk) -> Vec<Value> {
    let line = |line: String| serde_json::from_str::<Value>(&line).unwrap()["body"].take();
    talk.lines("requests").into_iter().map(line).collect()
}

pub fn calls(talk: &Talk) -> Vec<ToolCall> {
    let entries = talk.entries().into_iter();
    entries
        .filter_map(|(.., entry)| if let Entry::ToolCall(call) = entry { Some(call) } else { None })
        .collect()
}

pub fn results(talk: &Talk) -> Vec<ToolResult> {
    let entries = talk.entries().into_iter();
    entries
        .filter_map(|(.., entry)| if let Entry::ToolResult(result) = entry { Some(result) } else { None })
        .collect()
}

pub fn permissions(talk: &Talk) -> Vec<Permission> {
    let entries = talk.entries().into_iter();
    entries
        .filter_map(|(.., entry)| if let Entry::Permission(asked) = entry { Some(asked) } else { None })
        .collect()
}

pub fn permit(talk: &Talk, request_id: &str, choice: &str) {
    let answer = json!({ "request_id": request_id, "choice": choice }).to_string();
    let words =
        ["push", "--source", ADA, "--type", "record", "--subtype", "permission_answer", "--content", &answer];
    talk.thread(&words).ok();
}

fn error_of(talk: &Talk, of: i64) -> String {
    match talk.ending(of) {
        Entry::Error { error, .. } => error,
        other => panic!("{other:?}\n{}", talk.log()),
    }
}

#[test]
fn a_model_uses_tools_and_each_step_is_stored_before_the_next() {
    let Some((talk, _models)) = talk_with("script", &[]) else { return };
    let id =
        talk.say(&script(&[&[with_text("look", "a"), with_text("look", "b")], &[with_text("look", "c")]]));
    assert_eq!(talk.answer(id), "c", "{}", talk.log());
    assert_eq!(talk.is_settled(), Ok(()));
    let kind = |event: thread::Event| {
        let record = Record::of(event);
        record.event.subtype.clone().unwrap_or_else(|| record.event.kind.clone())
    };
    let mut kinds: Vec<String> =
        talk.events().into_iter().map(kind).filter(|kind| kind != "status").collect();
    kinds.dedup();
    let expected = [
        "message",
        "run",
        "model",
        "toolcall",
        "toolresult",
        "model",
        "toolcall",
        "toolresult",
        "token",
        "model",
        "message",
    ];
    assert_eq!(kinds, expected);
    let names: Vec<String> = calls(&talk).into_iter().map(|call| call.name).collect();
    assert_eq!(names, ["t__look"; 3]);
    let requests = requests(&talk);
    assert_eq!(requests.len(), 3);
    let names: Vec<&str> = requests[0]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["function"]["name"].as_str().unwrap())
        .collect();
    assert!(names.contains(&"t__look") && names.contains(&"memory_set"), "{names:?}");
    let messages = requests[2]["messages"].as_array().unwrap();
    let roles: Vec<&str> = messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "tool", "assistant", "tool"]);
    assert_eq!((&messages[2]["tool_call_id"], &messages[2]["content"]), (&"call_0".into(), &"a".into()));
    let turns: Vec<_> = talk
        .entries()
        .into_iter()
        .filter_map(|(.., entry)| if let Entry::Model { turn, .. } = entry { Some(turn.tools) } else { None })
        .collect();
    assert!(turns.len() == 3 && turns[0].len() == 64 && turns[0] == turns[2], "{turns:?}");
    // What was done is remembered.
    let next = talk.say(&script(&[]));
    talk.answer(next);
    assert_eq!(self::requests(&talk)[3]["messages"].as_array().unwrap().len(), 8);
}

#[test]
fn what_goes_wrong_with_a_call_is_told_to_the_model() {
    let Some((talk, _models)) = talk_with("script", &["--permit", "allow", "--quiet", "2s"]) else { return };
    let long = "z".repeat(2000);
    let turn = [
        call("look", json!("{\"text\": oops")),
        json!({ "name": "nothing", "id": null }),
        json!({ "name": "", "id": "" }),
        with_text("fail", "it failed"),
        call("hang", json!({})),
        call("big", json!({ "bytes": 3_000_000 })),
        call("look", json!(format!("[\"{long}\"]"))),
    ];
    let id = talk.say(&script(&[&turn, &[call("crash", json!({}))], &[with_text("look", "after")]]));
    assert_eq!(talk.answer(id), "after", "{}", talk.log());
    let outcomes: Vec<_> = results(&talk).into_iter().map(|result| result.outcome).collect();
    let errors: Vec<String> = outcomes.iter().filter_map(|outcome| outcome.clone().err()).collect();
    let has = |text: &str| errors.iter().any(|error| error.contains(text));
    for text in [
        "the arguments are not a JSON object",
        "there is no tool 'nothing'",
        "there is no tool ''",
        "it failed",
        "the tool gave no result within 2s",
        "the server of this tool has ended; the call may have taken effect",
    ] {
        assert!(has(text), "{text}: {errors:?}");
    }
    let big =
        outcomes.iter().filter_map(|outcome| outcome.as_ref().ok()?.as_str()).find(|text| text.len() > 100);
    let big = big.unwrap();
    assert!(big.len() <= 1024 * 1024 && big.ends_with("[cut: 3000000 bytes in all]"), "{}", big.len());
    assert_eq!(talk.is_settled(), Ok(()));
    let crashes = made(&talk).iter().filter(|line| line.starts_with("crash")).count();
    assert_eq!(crashes, 1, "it is not marked, so it is made once");
}

#[test]
fn a_result_of_100_mb_is_cut_and_takes_little_memory() {
    let Some((talk, _models)) = talk_with("script", &[]) else { return };
    let id = talk.say(&script(&[&[call("big", json!({ "bytes": 100_000_000 }))]]));
    let answer = talk.answer(id);
    assert!(answer.starts_with("xxx") && answer.len() <= 1024 * 1024, "{}", answer.len());
    assert!(answer.contains("[cut: "), "{}", &answer[answer.len() - 100..]);
    let process = talk.everything().into_iter().find(|(_, line)| line.contains("\0_model\0")).unwrap().0;
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 100_000, "{peak} kB");
}

#[test]
fn a_tool_that_is_not_read_only_asks_as_permit_says() {
    let Some((talk, models)) = talk_with("script", &[]) else { return };
    let message = script(&[&[with_text("note", "a"), with_text("note", "b"), with_text("look", "c")]]);
    let id = talk.say(&message);
    let asked = talk.until("two requests", |_| Some(permissions(&talk)).filter(|asked| asked.len() == 2));
    assert_eq!((asked[0].title.as_str(), &asked[0].arguments), ("t__note", &json!({ "text": "a" })));
    // Calls that need no permission are made at once.
    talk.until("a result", |_| (results(&talk).len() == 1).then_some(()));
    permit(&talk, &asked[0].request_id, "nonsense");
    permit(&talk, &asked[0].request_id, "allow");
    permit(&talk, &asked[1].request_id, "reject");
    assert_eq!(talk.answer(id), "a | Error: permission was denied | c");
    assert_eq!(made(&talk).len(), 2);
    for (how, answer) in [
        ("allow", "a | b | c"),
        ("reject", "Error: permission was denied | Error: permission was denied | c"),
    ] {
        let other = talk.beside(how);
        install(&other, &models, "script", &["--permit", how]);
        let id = other.say(&message);
        assert_eq!(other.answer(id), answer);
        assert!(permissions(&other).is_empty());
    }
}

#[test]
fn a_client_has_tools_too_and_may_answer_while_the_adapter_is_killed() {
    let Some((talk, _models)) = talk_with("script", &["--permit", "reject"]) else { return };
    let input = json!({ "run_input": {
        "tools": [
            { "name": "confirm", "description": "Ask the user", "parameters": { "type": "object" } },
            // The agent's own counts.
            { "name": "t__look", "description": "hidden" },
        ],
        "context": [{ "description": "the page", "value": "Settings" }],
    } });
    let calls_both = [json!({ "name": "confirm", "arguments": { "n": 1 } }), with_text("look", "seen")];
    let turns = script(&[&calls_both, &[json!({ "name": "confirm", "arguments": "nonsense" })]]);
    let id = talk.say_with(&turns, &input.to_string());
    let called = talk.until("no call", |_| calls(&talk).into_iter().find(|call| call.name == "confirm"));
    talk.until("no look", |_| (results(&talk).len() == 1).then_some(()));
    crate::tools_killed::kill(&talk, 0);
    let run =
        thread_conversation::Run { run_id: format!("run_{id}"), reply_to: id, attempt: 1, is_own: false };
    let result = ToolResult::new(&*called.call_id, "confirm", Ok(json!("yes")));
    let event = run.client_tool_result("ada", &result, thread_conversation::ClientInput::default());
    talk.queue().push_all(&mut |put| put(std::slice::from_ref(&event)).map(drop)).unwrap();
    talk.thread(&["dispatch"]).ok();
    // What cannot be read is an error for the model, and not for the client.
    let answer = talk.answer(id);
    assert!(answer.contains("the call was not made"), "{answer}");
    assert_eq!(made(&talk), ["look seen"]);
    let asked = requests(&talk);
    let tools = asked[0]["tools"].as_array().unwrap().iter();
    let named =
        tools.filter(|tool| ["confirm", "t__look"].map(Into::into).contains(&tool["function"]["name"]));
    let about: Vec<&Value> = named.map(|tool| &tool["function"]["description"]).collect();
    assert!(about.len() == 2 && about.iter().all(|about| **about != "hidden"), "{about:?}");
    let system = asked[0]["messages"][0]["content"].as_str().unwrap();
    assert!(system.ends_with("[the page]\nSettings\n"), "{system}");
    let tool = |message: &&Value| message["role"] == "tool";
    let heard: Vec<&Value> = asked[1]["messages"].as_array().unwrap().iter().filter(tool).collect();
    assert_eq!((&heard[0]["content"], &heard[1]["content"]), (&"yes".into(), &"seen".into()));
    let are_clients: Vec<bool> = talk
        .events()
        .into_iter()
        .map(Record::of)
        .filter_map(|record| match record.entry {
            Entry::ToolCall(_) => Some(record.for_client),
            _ => None,
        })
        .collect();
    assert_eq!(are_clients, [true, false, false]);
    assert_eq!(talk.is_settled(), Ok(()));
}

#[test]
fn a_model_sees_a_message_that_steers_before_its_next_turn() {
    let Some((talk, _models)) = talk_with("script", &["--permit", "allow"]) else { return };
    let slow = call("slow", json!({ "text": "seen", "seconds": 1 }));
    let first = talk.say(&script(&[&[slow], &[with_text("note", "too late")]]));
    talk.until("no call", |_| calls(&talk).pop());
    let queued = talk.say("[]");
    let steers = talk.say_with(r#"[{"say":"as you wish"}]"#, r#"{"priority":"steer"}"#);
    assert_eq!(talk.answer(steers), "as you wish");
    assert!(matches!(
        talk.ending(first),
        Entry::Answer { answer, .. } if answer.stage.as_deref() == Some("steered") && answer.content.is_empty()
    ));
    assert_eq!(made(&talk), ["slow seen"]);
    let last =
        requests(&talk).into_iter().rev().find(|asked| asked["messages"].as_array().unwrap().len() > 3);
    let roles: Vec<String> = last.unwrap()["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| {
            format!("{} {}", message["role"].as_str().unwrap(), message["content"].as_str().unwrap())
        })
        .collect();
    assert_eq!(roles[2..4], ["tool seen", "assistant (no answer)"], "{roles:?}");
    talk.ending(queued);
    assert_eq!(talk.is_settled(), Ok(()));
}

#[test]
fn a_server_has_a_folder_and_few_variables_and_ends_with_the_model() {
    const KEY: &str = "sk-00-no-tool-may-see";
    let talk = Talk::new();
    let Some(models) = Models::start([""; 0]) else { return };
    let file = talk.write("keys.env", &format!("MY_KEY={KEY}\nOTHER={KEY}\n"));
    install(&talk, &models, "script", &["--idle", "1s", "--key-env", "MY_KEY", "--env-file", &file]);
    let words = ["push", "--source", ADA, "--type", "message", "--content"];
    let message = script(&[&[call("about", json!({}))]]);
    let push =
        talk.thread(&[&words[..], &[&message]].concat()).env("SOME_SECRET", KEY).env("THREAD_TOKEN", KEY);
    let id = push.ok().trim().parse().unwrap();
    let answer = talk.answer(id);
    assert!(!answer.contains(KEY), "{answer}");
    let about: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(about["folder"].as_str(), talk.dir().canonicalize().unwrap().join("work").to_str());
    let variables = about["environment"].as_object().unwrap();
    assert!(variables.contains_key("PATH") && variables.contains_key("THREAD_DIR"), "{variables:?}");
    wait_until("the server to end", || {
        !talk.everything().iter().any(|(_, line)| line.contains("tools.py\0"))
    });
}

#[test]
fn a_server_is_reached_by_its_url_too_and_one_that_is_missing_is_told() {
    let talk = Talk::new();
    let log = talk.path("requests");
    let Some(models) = Models::start(["--log", log.to_str().unwrap()]) else { return };
    let mut command = Command::new("python3");
    command
        .args([SERVER, "--http", "--log", talk.path(log_of(&talk)).to_str().unwrap()])
        .stdout(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let mut url = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let far = format!("t={}", url.trim());
    let options = [
        "agent",
        "install",
        "--protocol",
        "openai",
        "--url",
        &models.url,
        "--model",
        "script",
        "--tools",
        &far,
        "--tools",
        "gone=/no/such/program",
        "--tools",
        "http://127.0.0.1:9/mcp",
    ];
    talk.thread(&options).ok();
    let id = talk.say(&script(&[&[with_text("look", "far"), json!({ "name": "gone__x" })]]));
    let answer = talk.answer(id);
    drop(process.kill());
    drop(process.wait());
    assert_eq!(answer, "far | Error: there is no tool 'gone__x'", "{}", talk.log());
    let said: String = talk
        .entries()
        .into_iter()
        .filter_map(|(.., entry)| if let Entry::Thinking { text, .. } = entry { Some(text) } else { None })
        .collect();
    assert!(
        said.contains("there are no tools of 'gone=/no/such/program': '/no/such/program' cannot be run"),
        "{said}"
    );
    assert!(said.contains("there are no tools of 'http://127.0.0.1:9/mcp'"), "{said}");
}

#[test]
fn a_model_that_refuses_tools_is_asked_without_them() {
    let Some((talk, _models)) = talk_with("toolless", &[]) else { return };
    let id = talk.say("hello");
    assert_eq!(talk.answer(id), "hello", "{}", talk.log());
    let given: Vec<bool> = requests(&talk).iter().map(|request| request.get("tools").is_some()).collect();
    assert_eq!(given, [true, false]);
    let said = talk.entries().into_iter().any(
        |(.., entry)| matches!(entry, Entry::Thinking { text, .. } if text.contains("The model refuses tools")),
    );
    assert!(said);
}

#[test]
fn a_run_has_only_so_many_turns() {
    let Some((talk, _models)) = talk_with("tireless", &["--max-turns", "3"]) else { return };
    let id = talk.say("go");
    let expected = "the model has taken 3 turns without giving an answer, and may take no more (--max-turns)";
    assert_eq!(error_of(&talk, id), expected);
    assert_eq!(requests(&talk).len(), 3);
    assert_eq!(talk.is_settled(), Ok(()));
}

#[test]
fn a_stored_result_resets_the_count_of_failures() {
    let Some((talk, _models)) = talk_with("script", &["--attempts", "2"]) else { return };
    let turn = |text: &str| json!({ "calls": [with_text("look", text)], "fail": 1 });
    let id = talk.say(&json!([turn("a"), turn("b"), turn("c")]).to_string());
    assert_eq!(talk.answer(id), "c", "{}", talk.log());
    let failed = talk.entries().iter().filter(|(.., entry)| matches!(entry, Entry::Error { .. })).count();
    assert_eq!((failed, made(&talk)), (3, ["look a", "look b", "look c"].map(str::to_owned).to_vec()));
}

#[test]
fn ten_thousand_calls_in_a_turn_end_no_run() {
    let Some((talk, _models)) = talk_with("script", &[]) else { return };
    let calls = json!({ "calls": [call("look", json!({}))], "times": 10_000 });
    let id = talk.say(&json!([calls, { "say": "done" }]).to_string());
    assert_eq!(talk.answer(id), "done", "{}", talk.log());
    assert_eq!((made(&talk).len(), results(&talk).len()), (128, 10_000));
    assert_eq!(talk.is_settled(), Ok(()));
}

#[test]
fn a_cancelled_run_stops_its_tools() {
    let Some((talk, _models)) = talk_with("script", &[]) else { return };
    let id = talk.say(&script(&[&[call("hang", json!({})), with_text("note", "never")]]));
    talk.until("the call", |_| (!calls(&talk).is_empty() && !permissions(&talk).is_empty()).then_some(()));
    let began = Instant::now();
    talk.cancel(&format!("run_{id}"));
    assert!(matches!(talk.ending(id), Entry::Cancelled { .. }));
    assert!(began.elapsed() < Duration::from_secs(60));
    assert_eq!(talk.is_settled(), Ok(()));
    let next = talk.say(&script(&[&[with_text("look", "again")]]));
    assert_eq!(talk.answer(next), "again", "{}", talk.log());
    assert!(!made(&talk).contains(&"note never".to_owned()));
}

#[test]
fn notes_are_kept_for_all_conversations_of_a_folder() {
    let Some((talk, models)) = talk_with("script", &[]) else { return };
    let set = json!({ "name": "memory_set", "arguments": { "key": "name", "value": "Ada" } });
    let id = talk.say(&json!([{ "calls": [set] }]).to_string());
    assert_eq!(talk.answer(id), r#"{"key":"name","version":1}"#, "{}", talk.log());
    let other = talk.beside("other");
    install(&other, &models, "script", &[]);
    let id = other
        .say(&json!([{ "calls": [{ "name": "memory_get", "arguments": { "key": "name" } }] }]).to_string());
    assert_eq!(other.answer(id), r#"{"key":"name","value":"Ada","version":1}"#);
    let system = requests(&talk).pop().unwrap()["messages"][0].clone();
    assert_eq!(system["role"], "system");
    assert!(system["content"].as_str().unwrap().contains("Ada"), "{system}");
    let notes = other.entries().into_iter().find_map(|(.., entry)| match entry {
        Entry::Model { turn, .. } => Some(turn.notes),
        _ => None,
    });
    assert_eq!(notes, Some(1));
}

/// The summaries of a conversation, with the last events that they cover.
fn summaries(talk: &Talk) -> Vec<(i64, String)> {
    let entries = talk.entries().into_iter();
    entries
        .filter_map(
            |(.., entry)| if let Entry::Summary { text, upto } = entry { Some((upto, text)) } else { None },
        )
        .collect()
}

#[test]
fn a_conversation_that_is_too_long_goes_on_with_a_summary() {
    // The limit is given, or the model says it: it refuses more than 1000 tokens.
    for (model, options) in [("echo", &["--context", "2048"][..]), ("small", &[])] {
        let Some((talk, _models)) = talk_with(model, options) else { return };
        let long = "many words ".repeat(60);
        for n in 0..8 {
            let id = talk.say(&format!("{n}: {long}"));
            assert!(talk.answer(id).contains(&format!("{n}: ")), "{}", talk.log());
        }
        let summaries = summaries(&talk);
        assert!(!summaries.is_empty(), "{model}");
        assert!(summaries.is_sorted_by(|(a, _), (b, _)| a < b), "{summaries:?}");
        let last = requests(&talk).pop().unwrap();
        let size = last["messages"].to_string().len();
        assert!(size < 2048 * 4, "{model}: {size}");
        assert!(last["messages"][0].to_string().contains("A summary, which you have written"), "{last}");
        assert_eq!(talk.is_settled(), Ok(()));
        let failed = talk.entries().iter().any(|(.., entry)| matches!(entry, Entry::Error { .. }));
        assert!(!failed, "no attempt fails for that: {:?}", talk.entries());
    }
}
