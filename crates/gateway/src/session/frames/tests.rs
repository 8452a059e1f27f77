use serde_json::json;
use thread::NewEvent;
use thread_conversation::{Answer, Choice, Permission, Priority, Status, SubAgent, ToolCall, ToolResult};
use thread_sessions::events::LARGE;

use super::*;
use crate::session::fixture::{Fixture, THEM, run};

const SESSION: &str = "6ba7b810-9dad-41d1-80b4-00c04fd430c8";
const AT: &str = "2026-03-18T10:30:00.123Z";

fn storage() -> (tempfile::TempDir, Storage) {
    let dir = tempfile::tempdir().unwrap();
    let storage = Storage::open(dir.path(), "http://gateway".into(), None, Vec::new()).unwrap();
    (dir, storage)
}

/// The frames of an event with the id 7, for the client `me` and for others.
fn both(event: SessionEvent) -> Option<[Value; 2]> {
    let (_dir, storage) = storage();
    let frames = of(&storage, SessionId::parse(SESSION).unwrap(), &event)?;
    Some(["me", "them"].map(|client| serde_json::from_str(frames.for_client(client)).unwrap()))
}

/// The frame of an event that is the same for all.
fn one(event: &NewEvent<'_>) -> Option<Value> {
    let [me, them] = both(SessionEvent::stored(7, event))?;
    assert_eq!(me, them);
    Some(me)
}

/// A frame of an event with the id 7.
fn frame(name: &str, run_id: Value, mut payload: Value) -> Value {
    payload["sessionId"] = SESSION.into();
    payload["runId"] = run_id;
    json!({ "type": "event", "event": name, "payload": payload, "seq": 7, "time": "2026-03-18T10:30:00.123Z" })
}

fn unkeyed(event: NewEvent<'static>) -> NewEvent<'static> {
    NewEvent { idempotency_key: None, ..event }
}

#[test]
fn each_kind_of_event_has_its_frame() {
    let run = run(3);
    let call = ToolCall::new("c", "grep", json!({ "for": "x" }));
    let done = ToolResult::new("c", "grep", Ok(json!(null)));
    let broken = ToolResult { outcome: Err("no".into()), ..done.clone() };
    let answer = Answer {
        content: "all".into(),
        message_id: Some("m".into()),
        total_tokens: Some(5),
        latency_ms: Some(9),
        stage: Some("last".into()),
    };
    let asked = Permission {
        request_id: "p".into(),
        title: "may I".into(),
        call_id: Some("c".into()),
        arguments: json!({}),
        details: "all".into(),
        choices: vec![Choice { id: "y".into(), name: "Yes".into(), kind: "allow_once".into() }],
        wait_ms: None,
    };
    let told = SubAgent {
        parent_call_id: "c".into(),
        attempt: 1,
        sub_agent: "s".into(),
        sub_event_id: 4,
        event: "status".into(),
        payload: json!("thinking"),
    };
    let said = |content: &str, id: &str| json!({ "role": "assistant", "content": content, "messageId": id, "timestamp": AT, "fromSelf": false, "source": "self" });
    let error =
        |code: &str, retryable: bool| json!({ "message": "oh", "errorCode": code, "retryable": retryable });
    let in_run = |event: NewEvent<'_>, name: &str, payload: Value| {
        assert_eq!(one(&event), Some(frame(name, json!("run_3"), payload)), "{event:?}");
    };
    in_run(run.started(), "status", json!({ "status": "started", "attempt": 1 }));
    in_run(run.status(Status::ExecutingTool), "status", json!({ "status": "executing_tool" }));
    in_run(run.token("m", "to"), "token", json!({ "content": "to", "delta": true, "messageId": "m" }));
    in_run(run.thinking("m", "hm"), "thinking", json!({ "content": "hm", "delta": true, "messageId": "m" }));
    in_run(
        run.tool_call(&call),
        "tool_call",
        json!({ "callId": "c", "toolName": "grep", "arguments": { "for": "x" } }),
    );
    in_run(
        run.tool_result(&done),
        "tool_result",
        json!({ "callId": "c", "toolName": "grep", "result": null }),
    );
    in_run(
        run.tool_result(&broken),
        "tool_result",
        json!({ "callId": "c", "toolName": "grep", "error": "no" }),
    );
    let last = json!({
        "messageId": "m", "content": "all", "totalTokens": 5, "latencyMs": 9, "stage": "last", "timestamp": AT,
    });
    in_run(run.answer(&answer), "final", last);
    in_run(unkeyed(run.answer(&answer)), "message", said("all", "m"));
    in_run(run.failed("oh", "so far"), "error", error("run_failed", false));
    in_run(unkeyed(run.failed("oh", "so far")), "error", error("reported", true));
    in_run(run.attempt_failed("oh", None), "error", error("attempt_failed", true));
    in_run(run.cancelled("by me", "so far"), "cancelled", json!({ "message": "by me" }));
    assert_eq!(one(&unkeyed(run.cancelled("by me", ""))), None, "it only looks like an ending");
    in_run(
        run.permission(&asked),
        "permission",
        json!({
            "requestId": "p", "title": "may I", "callId": "c", "arguments": {}, "details": "all",
            "choices": [{ "id": "y", "name": "Yes", "kind": "allow_once" }],
        }),
    );
    let task = json!({ "content": "look", "priority": "high", "status": "pending" });
    in_run(run.plan(&json!([task, "no task"])), "plan", json!({ "entries": [task] }));
    let no_run = |event: NewEvent<'_>, name: &str, payload: Value| {
        assert_eq!(one(&event), Some(frame(name, json!(null), payload)), "{event:?}");
    };
    let answered = thread_conversation::permission_answer(THEM, "p", "y").unwrap();
    no_run(answered, "permission", json!({ "requestId": "p", "choice": "y" }));
    let title = thread_conversation::title(THEM, &format!(" a\n{}", "b".repeat(300))).unwrap();
    no_run(title, "title", json!({ "title": format!("a {}", "b".repeat(198)) }));
    no_run(
        thread_conversation::sub_agent(&told),
        "sub_agent",
        json!({ "parentCallId": "c", "subAgent": "s", "event": "status", "payload": "thinking" }),
    );
    let command = json!({ "name": "compact", "description": "Makes it shorter", "hint": "how" });
    let commands = thread_conversation::commands(&json!([command, "no command", { "name": "x" }]));
    no_run(commands, "commands", json!({ "commands": [command] }));
    let unasked = NewEvent::message(thread_conversation::SELF, "by the way").unwrap();
    no_run(unasked, "message", said("by the way", "event_7"));
}

#[test]
fn what_is_the_agents_own_is_shown_to_nobody() {
    for event in [
        thread_conversation::session("acp", "s", 0),
        thread_conversation::cancel(THEM, "run_3", "enough").unwrap(),
        NewEvent { source: THEM.into(), ..run(3).started() },
    ] {
        assert_eq!(one(&event), None, "{event:?}");
    }
}

#[test]
fn a_message_is_from_its_sender_alone() {
    let message = Message {
        message_id: Some("m1".into()),
        priority: Priority::Later,
        client: Some("me".into()),
        other: Map::from_iter([("stage".to_owned(), json!([1]))]),
        ..Message::text("hello")
    };
    let [me, them] = both(SessionEvent::stored(7, &message.event(THEM).unwrap())).unwrap();
    let expected = |from_self: bool| {
        let payload = json!({
            "role": "user", "content": "hello", "messageId": "m1", "timestamp": AT, "fromSelf": from_self,
            "source": THEM, "priority": "later", "metadata": { "stage": [1] },
        });
        frame("message", json!("run_7"), payload)
    };
    assert_eq!((me, them), (expected(true), expected(false)));

    let plain = one(&Message::text("hello").event(THEM).unwrap()).unwrap();
    let payload = json!({
        "role": "user", "content": "hello", "messageId": "event_7", "timestamp": AT, "fromSelf": false,
        "source": THEM,
    });
    assert_eq!(plain, frame("message", json!("run_7"), payload));
}

#[test]
fn parts_are_shown_as_parts_and_only_taken_attachments_are_signed() {
    let (_dir, storage) = storage();
    let url = "/storage/v1/object/sign/attachments/a.png";
    let content =
        json!([{ "type": "text", "text": "x" }, { "type": "binary", "mimeType": "image/png", "url": url }]);
    let shown = |taken: bool, source: &str| {
        let attachments = json!({ "bucket": "attachments", "path": "a.png" });
        let other = taken
            .then(|| (thread_agent::attachments::ATTACHMENTS.to_owned(), attachments))
            .into_iter()
            .collect();
        let message = Message { other, ..Message::text(content.to_string()) };
        let event = SessionEvent::stored(7, &message.event(source).unwrap());
        let Content::Parts(parts) = content_of(&storage, &event) else { panic!() };
        assert_eq!(parts[0], content[0]);
        parts[1]["url"].as_str().unwrap().to_owned()
    };
    assert!(shown(true, THEM).starts_with(&format!("http://gateway{url}?token=")));
    assert_eq!(shown(false, THEM), url, "any program can push that");
    assert_eq!(shown(true, thread_conversation::SELF), url, "an agent's");
}

#[tokio::test]
async fn of_a_large_event_its_size_and_address_are_shown() {
    let mut fixture = Fixture::new();
    let long = "x".repeat(LARGE as usize + LARGE as usize / 2);
    let bytes = long.len();
    let message = fixture.say(long.clone());
    let token = fixture.push(&run(message).token("m", long.clone()));
    let unkeyed = fixture.push(&unkeyed(run(message).answer(&Answer { content: long, ..Answer::default() })));
    let url = |id: i64| format!("http://gateway/api/v1/sessions/{}/events/{id}/content", fixture.session);
    let shown = async |id: i64| {
        let stored = fixture.stored(id).await;
        let frames = of(&fixture.context.storage, fixture.session, &stored).unwrap();
        let mut frame: Value = serde_json::from_str(frames.for_client("me")).unwrap();
        let payload = frame["payload"].as_object_mut().unwrap();
        for key in ["sessionId", "runId", "timestamp"] {
            payload.shift_remove(key);
        }
        (frame["event"].take(), frame["payload"].take())
    };
    let placeholder = |role: &str, id: i64| {
        json!({
            "role": role, "content": "(1.5 MiB, too large to be shown here)", "messageId": format!("event_{id}"),
            "fromSelf": false, "source": if role == "user" { THEM } else { "self" },
            "large": { "bytes": bytes, "url": url(id) },
        })
    };
    assert_eq!(shown(message).await, (json!("message"), placeholder("user", message)));
    assert_eq!(shown(unkeyed).await, (json!("message"), placeholder("assistant", unkeyed)));
    let large =
        json!({ "source": "self", "type": "record", "subtype": "token", "bytes": bytes, "url": url(token) });
    assert_eq!(shown(token).await, (json!("large"), large));
}

#[test]
fn a_notice_has_no_number() {
    let session = SessionId::parse(SESSION);
    let clients = || frame::Clients { clients: 2 };
    let text = notice(clients(), session, Some("r"));
    let payload = json!({ "clients": 2, "sessionId": SESSION, "runId": "r" });
    let expected = json!({ "type": "event", "event": "clients", "payload": payload });
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
    let nowhere: Value = serde_json::from_str(&notice(clients(), None, None)).unwrap();
    assert_eq!(nowhere["payload"], json!({ "clients": 2, "sessionId": null, "runId": null }));
}

#[test]
fn what_a_run_had_said_is_the_content_of_its_ending() {
    let (_dir, storage) = storage();
    let content = |event: NewEvent<'static>| content_of(&storage, &SessionEvent::stored(7, &event));
    assert_eq!(content(run(3).failed("oh", "so far")), Content::from("so far"));
    assert_eq!(content(run(3).cancelled("oh", "so far")), Content::from("so far"));
    assert_eq!(content(run(3).cancelled("oh", "")), Content::from(""));
    assert_eq!(content(run(3).answer(&Answer { content: "a".into(), ..Answer::default() })), "a".into());
    assert_eq!(content(run(3).token("m", "x")), Content::from(""));
}

#[tokio::test]
async fn an_answer_that_is_too_long_to_be_read_is_a_placeholder() {
    let mut fixture = Fixture::new();
    let message = fixture.say("x");
    let answer = fixture.answer(message, "a".repeat(crate::session::event::LONGEST as usize + 1));
    let stored = fixture.stored(answer).await;
    let frames = of(&fixture.context.storage, fixture.session, &stored).unwrap();
    let frame: Value = serde_json::from_str(frames.for_client("me")).unwrap();
    assert_eq!((&frame["event"], &frame["payload"]["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!(frame["payload"]["large"]["bytes"], 17 * 1024 * 1024 + 1);
}

#[test]
fn the_design_shows_the_frame_of_a_call() {
    let (_dir, storage) = storage();
    let call = ToolCall::new("c", "grep", json!({ "for": "x" }));
    let run = thread_conversation::Run { run_id: "r".into(), reply_to: 1, attempt: 2, is_own: false };
    let stored = SessionEvent::stored(3, &run.tool_call(&call));
    let frames = of(&storage, SessionId::parse(SESSION).unwrap(), &stored).unwrap();
    let frame = frames.for_client("them").as_str();
    assert!(include_str!("../../../../../docs/DESIGN.md").contains(&format!("\n{frame}\n")), "{frame}");
}
