use serde_json::{Value, json};
use thread_protocol::Incoming;

use super::*;

/// The updates for events of the run `r`, as their JSON.
fn updates(events: &[(&str, Value)]) -> Vec<Value> {
    let mut transcript = Transcript::default();
    let mut shown = Vec::new();
    for (seq, (event, payload)) in (1..).zip(events) {
        let mut payload = payload.clone();
        payload["sessionId"] = "s".into();
        if payload.get("runId").is_none() {
            payload["runId"] = "r".into();
        }
        let frame = json!({ "type": "event", "event": event, "payload": payload, "seq": seq }).to_string();
        let Ok(Incoming::Event(frame)) = Incoming::parse(&frame) else { panic!("{frame}") };
        shown.extend(transcript.apply(&frame));
    }
    shown.iter().map(|update| serde_json::to_value(update).unwrap()).collect()
}

/// The kinds of updates, and their texts.
fn texts(events: &[(&str, Value)]) -> Vec<String> {
    let text = |update: &Value| {
        let kind = update["sessionUpdate"].as_str().unwrap_or_default();
        format!("{kind} {}", update["content"]["text"].as_str().unwrap_or_default().trim())
    };
    updates(events).iter().map(text).collect()
}

fn token(text: &str, message: &str) -> (&'static str, Value) {
    ("token", json!({ "content": text, "delta": true, "messageId": message }))
}

fn answer(content: Value, message: &str) -> (&'static str, Value) {
    let payload = json!({
        "messageId": message, "content": content, "totalTokens": null, "latencyMs": null, "stage": null,
        "timestamp": "t",
    });
    ("final", payload)
}

fn error(message: &str, code: &str, retryable: bool) -> (&'static str, Value) {
    ("error", json!({ "message": message, "errorCode": code, "retryable": retryable }))
}

fn started(attempt: u64) -> (&'static str, Value) {
    ("status", json!({ "status": "started", "attempt": attempt }))
}

fn call(id: &str, arguments: Value) -> (&'static str, Value) {
    ("tool_call", json!({ "callId": id, "toolName": "grep", "arguments": arguments }))
}

#[test]
fn an_answer_is_shown_once_whether_it_was_streamed_or_not() {
    let whole = ["agent_message_chunk Hello"];
    assert_eq!(texts(&[started(1), answer("Hello".into(), "m")]), whole);
    assert_eq!(texts(&[token("Hello", "m"), answer("Hello".into(), "m")]), whole);
    let pieces = ["agent_message_chunk Hel", "agent_message_chunk lo"];
    assert_eq!(texts(&[token("Hel", "m"), token("lo", "m"), answer("Hello".into(), "m")]), pieces);
    // Its last token was deleted, or it says something else.
    assert_eq!(texts(&[token("Hel", "m"), answer("Hello".into(), "m")]), pieces);
    let other = ["agent_message_chunk Hel", "agent_message_chunk Bye"];
    assert_eq!(texts(&[token("Hel", "m"), answer("Bye".into(), "m")]), other);
    // What a model said before it called its tools is no part of the answer.
    let turns = ["agent_message_chunk Hello", "agent_message_chunk Hello"];
    assert_eq!(texts(&[token("Hello", "m1"), answer("Hello".into(), "m2")]), turns);
    let ids = updates(&[token("Hel", "m"), answer("Hello".into(), "m")]);
    assert!(ids.iter().all(|update| update["messageId"] == "m"), "{ids:?}");
}

#[test]
fn an_answer_with_images_has_its_text_once_and_its_images() {
    let image =
        json!({ "type": "image", "source": { "type": "data", "value": "QQ==", "mimeType": "image/png" } });
    let parts = json!([{ "type": "text", "text": "Look" }, image]);
    let shown = updates(&[token("Look", "m"), answer(parts, "m")]);
    assert_eq!(shown.len(), 2);
    assert_eq!(shown[1]["content"], json!({ "type": "image", "data": "QQ==", "mimeType": "image/png" }));
}

#[test]
fn attempts_that_fail_or_are_cut_off_are_told_apart_from_the_answer() {
    assert_eq!(
        texts(&[
            started(1),
            token("Hal", "m1"),
            error("exit 3", "attempt_failed", true),
            started(2),
            token("Hal", "m2"),
            started(2),
            token("Hello", "m3"),
            answer("Hello".into(), "m3"),
        ]),
        [
            "agent_message_chunk Hal",
            "agent_thought_chunk This attempt has failed: exit 3. Another one follows.",
            "agent_message_chunk Hal",
            "agent_thought_chunk The answer was cut off. It begins again.",
            "agent_message_chunk Hello",
        ]
    );
    assert_eq!(texts(&[error("x", "run_failed", false)]), ["agent_thought_chunk Failed: x"]);
    assert_eq!(texts(&[error("x", "reported", true)]), ["agent_thought_chunk The agent reports: x"]);
    assert_eq!(
        texts(&[("cancelled", json!({ "message": "by x" }))]),
        ["agent_thought_chunk Cancelled: by x"]
    );
}

#[test]
fn messages_are_those_of_others_of_the_agent_and_of_the_gateway() {
    let message = |role: &str, from_self: bool| {
        let payload = json!({
            "role": role, "content": "x", "messageId": "m", "timestamp": "t", "fromSelf": from_self,
        });
        ("message", payload)
    };
    assert_eq!(texts(&[message("user", false)]), ["user_message_chunk x"]);
    assert_eq!(texts(&[message("user", true)]), [""; 0]);
    assert_eq!(texts(&[message("assistant", false)]), ["agent_message_chunk x"]);
    assert_eq!(texts(&[message("system", false)]), ["agent_thought_chunk x"]);
}

#[test]
fn a_call_is_shown_corrected_and_done_with_what_it_has_changed() {
    let corrected = json!({
        "callId": "c", "toolName": "grep", "arguments": { "for": "y" }, "title": "Search", "kind": "search",
        "locations": [{ "path": "/a", "line": 3 }, { "nonsense": 1 }],
    });
    let diff = json!({ "type": "diff", "path": "/a", "oldText": "x", "newText": "y" });
    let result = json!({
        "callId": "c", "toolName": "grep", "result": { "ok": true },
        "content": [diff, { "type": "terminal", "terminalId": "t" }, { "type": "novelty" }],
    });
    let shown =
        updates(&[call("c", json!({ "for": "x" })), ("tool_call", corrected), ("tool_result", result)]);
    assert_eq!(
        shown,
        [
            json!({
                "sessionUpdate": "tool_call", "toolCallId": "r/c", "title": "grep", "name": "grep",
                "status": "in_progress", "rawInput": { "for": "x" },
            }),
            json!({
                "sessionUpdate": "tool_call_update", "toolCallId": "r/c", "title": "Search", "kind": "search",
                "locations": [{ "path": "/a", "line": 3 }], "rawInput": { "for": "y" },
            }),
            json!({
                "sessionUpdate": "tool_call_update", "toolCallId": "r/c", "status": "completed",
                "content": [diff], "rawOutput": { "ok": true },
            }),
        ]
    );
}

#[test]
fn results_are_text_too_and_errors_fail() {
    let text = |text: &str| json!([{ "type": "content", "content": { "type": "text", "text": text } }]);
    let done = |result: Value| {
        let shown = updates(&[call("c", Value::Null), ("tool_result", result)]);
        shown[1].clone()
    };
    let worked = done(json!({ "callId": "c", "toolName": "grep", "result": "found" }));
    assert_eq!((&worked["status"], &worked["content"]), (&json!("completed"), &text("found")));
    let failed = done(json!({ "callId": "c", "toolName": "grep", "error": "no" }));
    assert_eq!((&failed["status"], &failed["content"]), (&json!("failed"), &text("no")));
    // The call itself was too large.
    let large = json!({
        "source": "self", "type": "record", "subtype": "toolcall", "bytes": 2_000_000, "url": "/u",
    });
    let result = json!({ "callId": "c", "toolName": "grep", "result": "found" });
    let shown = updates(&[("large", large.clone()), ("tool_result", result)]);
    let kinds: Vec<&Value> = shown.iter().map(|update| &update["sessionUpdate"]).collect();
    assert_eq!(kinds, ["agent_thought_chunk", "tool_call", "tool_call_update"]);
    // Its result was.
    let shown = updates(&[call("c", Value::Null), ("large", large), answer("ok".into(), "m")]);
    assert_eq!((&shown[2]["toolCallId"], &shown[2]["status"]), (&json!("r/c"), &json!("completed")));
}

#[test]
fn calls_of_different_runs_and_of_sub_agents_have_different_ids() {
    let mut other = call("c", Value::Null);
    other.1["runId"] = "q".into();
    let sub = |event: &str, payload: Value| {
        (
            "sub_agent",
            json!({ "parentCallId": "c", "subAgent": "scout-0011", "event": event, "payload": payload }),
        )
    };
    let shown = updates(&[
        call("c", Value::Null),
        other,
        sub("tool_call", json!({ "call_id": "c", "name": "ls", "arguments": {} })),
        sub("tool_result", json!({ "call_id": "c", "name": "ls", "error": "no" })),
        sub("token", json!({ "content": "x" })),
    ]);
    let told: Vec<String> = shown
        .iter()
        .map(|update| format!("{} {} {}", update["toolCallId"], update["title"], update["status"]))
        .collect();
    assert_eq!(
        told,
        [
            r#""r/c" "grep" "in_progress""#,
            r#""q/c" "grep" "in_progress""#,
            r#""r/scout-0011/c" "scout: ls" "in_progress""#,
            r#""r/scout-0011/c" null "failed""#,
        ]
    );
}

#[test]
fn plans_titles_and_moves_are_told() {
    let entry = json!({ "content": "p", "priority": "high", "status": "in_progress" });
    let new = json!({ "content": "q", "priority": "urgent", "status": "pending" });
    let shown = updates(&[
        ("plan", json!({ "entries": [entry, new] })),
        ("title", json!({ "title": "T" })),
        ("clients", json!({ "clients": 2 })),
    ]);
    assert_eq!(
        shown,
        [
            json!({ "sessionUpdate": "plan", "entries": [entry] }),
            json!({ "sessionUpdate": "session_info_update", "title": "T" }),
        ]
    );
    let moved = json!({
        "role": "system", "content": "x", "messageId": "m", "timestamp": "t", "fromSelf": false,
        "metadata": { "agent": "b" },
    });
    let moved: Message = serde_json::from_value(moved).unwrap();
    assert_eq!(moved_to(&Event::from(moved)), Some("b"));
}

#[test]
fn the_agents_commands_follow_those_of_the_gateway_until_another_agent_comes() {
    let command = |name: &str| json!({ "name": name, "description": "d", "hint": "h" });
    let moved = json!({
        "role": "system", "content": "x", "messageId": "m", "timestamp": "t", "fromSelf": false,
        "metadata": { "agent": "b" },
    });
    let shown = updates(&[
        ("commands", json!({ "commands": [command("compact"), command("clear")] })),
        ("message", moved),
    ]);
    let names = |update: &Value| -> Vec<String> {
        let commands = update["availableCommands"].as_array().into_iter().flatten();
        commands.map(|command| command["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&shown[0]), ["clear", "status", "compact"]);
    let own = json!({ "name": "compact", "description": "d", "input": { "hint": "h" } });
    assert_eq!(shown[0]["availableCommands"][2], own);
    assert_eq!(names(&shown[2]), ["clear", "status"]);
}

#[test]
fn a_run_ends_as_its_agent_says() {
    let ending = |(event, payload): (&str, Value)| {
        let frame = json!({ "type": "event", "event": event, "payload": payload, "seq": 1 }).to_string();
        let Ok(Incoming::Event(frame)) = Incoming::parse(&frame) else { panic!("{frame}") };
        Ending::of(&frame.event)
    };
    let answered = |stage: Value| {
        let (event, mut payload) = answer("x".into(), "m");
        payload["stage"] = stage;
        ending((event, payload))
    };
    for (stage, reason) in [
        (Value::Null, StopReason::EndTurn),
        ("max_tokens".into(), StopReason::MaxTokens),
        ("max_turn_requests".into(), StopReason::MaxTurnRequests),
        ("something".into(), StopReason::EndTurn),
    ] {
        assert_eq!(answered(stage), Some(Ending::Answered(reason, None)));
    }
    let (event, mut payload) = answer("x".into(), "m");
    payload["usage"] =
        json!({ "inputTokens": 5, "outputTokens": 2, "cachedTokens": 3, "reasoningTokens": 0 });
    let usage = Usage::new(7, 5, 2).cached_read_tokens(3);
    assert_eq!(ending((event, payload)), Some(Ending::Answered(StopReason::EndTurn, Some(usage))));
    assert_eq!(ending(("cancelled", json!({ "message": "x" }))), Some(Ending::Cancelled));
    assert_eq!(ending(error("x", "run_failed", false)), Some(Ending::Failed("x".to_owned())));
    assert_eq!(ending(error("x", "attempt_failed", true)), None);
    assert_eq!(ending(started(1)), None);
}

#[test]
fn the_details_of_a_request_for_permission_show_changes_to_files() {
    let diff = json!({ "type": "diff", "path": "/a", "oldText": "x", "newText": "y" });
    let shown = serde_json::to_value(calls::details(&format!("Change it\n{diff}\n{{\n"))).unwrap();
    let text = json!({ "type": "content", "content": { "type": "text", "text": "Change it\n{" } });
    assert_eq!(shown, json!([diff, text]));
    assert!(calls::details("").is_empty());
}
