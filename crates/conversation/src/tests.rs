use proptest::prelude::*;
use serde_json::json;
use thread::Event;

use super::*;

fn stored(event: &NewEvent<'_>, id: i64) -> Event {
    event.row(id, "2026-03-18T10:30:00.123Z").to_event()
}

fn record(event: &NewEvent<'_>) -> Record {
    Record::of(stored(event, 7))
}

fn read(event: &NewEvent<'_>) -> (Option<String>, Entry) {
    let Record { run_id, entry, .. } = record(event);
    (run_id, entry)
}

fn run() -> Run {
    Run { run_id: "r".into(), reply_to: 3, attempt: 2, is_own: false }
}

#[test]
fn a_message_reads_back_as_written() {
    let message = Message {
        content: "hello".into(),
        run_id: Some("run_x".into()),
        message_id: Some("m1".into()),
        priority: Priority::Now,
        client: Some("c1".into()),
        resume: true,
        other: Map::from_iter([("stage".to_owned(), json!({ "free": [1, 2] }))]),
    };
    let (run_id, entry) = read(&message.event("external:web:a:dm:b:c").unwrap());
    assert_eq!((run_id.as_deref(), entry), (Some("run_x"), Entry::Message(message)));
}

#[test]
fn a_message_without_metadata_begins_a_run_of_its_own_and_comes_next() {
    let (run_id, entry) = read(&Message::text("hi").event("external:web:a:dm:b:c").unwrap());
    assert_eq!((run_id.as_deref(), entry), (Some("run_7"), Entry::Message(Message::text("hi"))));
    for odd in [r#"{"priority":"soon","run_id":5}"#, r#"{"priority":{"now":null},"run_id":[]}"#] {
        let odd = NewEvent::message("x", "hi").unwrap().with_metadata(odd);
        let (run_id, entry) = read(&odd.unwrap());
        assert_eq!(run_id.as_deref(), Some("run_7"));
        assert!(matches!(entry, Entry::Message(Message { priority: Priority::Next, .. })));
    }
}

/// A model's turn.
fn turn() -> ModelTurn {
    let message = json!({ "role": "assistant", "content": "all" });
    ModelTurn {
        message: message.as_object().unwrap().clone(),
        finish_reason: "stop".into(),
        usage: json!({ "total_tokens": 5 }),
        model: "q".into(),
        ..ModelTurn::default()
    }
}

#[test]
fn a_turns_text_is_that_of_its_parts() {
    let text = |content: Value| {
        let message = Map::from_iter([("content".to_owned(), content)]);
        ModelTurn { message, ..turn() }.text()
    };
    assert_eq!((turn().text().as_str(), turn().total_tokens()), ("all", Some(5)));
    assert_eq!(text(json!([{ "type": "text", "text": "a" }, 5, { "text": "b" }])), "ab");
    assert_eq!(text(Value::Null), "");
    for (calls, has_calls) in [(json!([1]), true), (json!([]), false), (Value::Null, false)] {
        let message = Map::from_iter([("tool_calls".to_owned(), calls)]);
        assert_eq!(ModelTurn { message, ..turn() }.has_calls(), has_calls);
    }
}

#[test]
fn everything_a_run_writes_reads_back() {
    let call = ToolCall::new("c", "grep", json!({ "for": "x" }));
    let done = ToolResult::new("c", "grep", Ok(json!([1])));
    let broken = ToolResult { outcome: Err("no such file".into()), ..done.clone() };
    let answer = Answer {
        content: "all".into(),
        message_id: Some("m".into()),
        total_tokens: Some(5),
        latency_ms: Some(9),
        stage: Some("final".into()),
    };
    let turn = turn();
    let asked = Permission {
        request_id: "p".into(),
        title: "may I".into(),
        call_id: Some("c".into()),
        arguments: json!({ "command": "ls" }),
        details: "all of them".into(),
        choices: vec![Choice { id: "y".into(), name: "Yes".into(), kind: "allow_once".into() }],
        wait_ms: None,
    };
    let told = SubAgent {
        parent_call_id: "c".into(),
        attempt: 2,
        sub_agent: "s".into(),
        sub_event_id: 4,
        event: "status".into(),
        payload: json!("thinking"),
    };
    let fork = Fork { session_id: "s".into(), title: "Fish".into(), before: Some(3) };
    let text = |text: &str| (text.to_owned(), Some("m".to_owned()));
    let ((token, m1), (thought, m2)) = (text("to"), text("hm"));
    let error = |retryable, interrupted_by| Entry::Error {
        error: "oh".into(),
        retryable,
        reply_to: Some(3),
        began: None,
        interrupted_by,
        partial: (!retryable).then(|| "so far".to_owned()),
    };
    let partial = Some("so far".to_owned());
    let choice = |id: &str| OptionChoice { id: id.into(), name: id.to_uppercase(), description: None };
    let chosen = OptionChosen { id: "mode".into(), value: "b".into() };
    let mode = AgentOption {
        id: "mode".into(),
        name: "Mode".into(),
        category: Some("mode".into()),
        current: "a".into(),
        choices: vec![choice("a"), choice("b")],
        ..AgentOption::default()
    };
    let all = AgentOptions { options: vec![mode], refused: Some("no".into()) };
    for (event, entry, in_run) in [
        (run().started(), Entry::RunStarted { attempt: 2, reply_to: Some(3) }, true),
        (run().token("m", "to"), Entry::Token { text: token, message_id: m1 }, true),
        (run().thinking("m", "hm"), Entry::Thinking { text: thought, message_id: m2 }, true),
        (run().tool_call(&call), Entry::ToolCall(call), true),
        (run().tool_result(&done), Entry::ToolResult(done), true),
        (run().tool_result(&broken), Entry::ToolResult(broken), true),
        (run().status(Status::ExecutingTool), Entry::Status(Status::ExecutingTool), true),
        (run().plan(&json!([{ "content": "look" }])), Entry::Plan(json!([{ "content": "look" }])), true),
        (run().state(&json!(null)), Entry::State(json!(null)), true),
        (run().state_delta(&json!([])), Entry::StateDelta(json!([])), true),
        (run().summary(3, "short"), Entry::Summary { text: "short".into(), upto: 3 }, true),
        (run().unsupported(&["tools"]), Entry::Unsupported(vec!["tools".into()]), true),
        (run().model("m", &turn), Entry::Model { turn: turn.clone(), message_id: Some("m".into()) }, true),
        (run().turn_cut("m"), Entry::TurnCut { message_id: Some("m".into()) }, true),
        (run().answer(&answer), Entry::Answer { answer, reply_to: Some(3), began: None }, true),
        (run().failed("oh", "so far"), error(false, None), true),
        (run().attempt_failed("oh", Some(9)), error(true, Some(9)), true),
        (
            run().cancelled("by me", "so far"),
            Entry::Cancelled { why: "by me".into(), reply_to: Some(3), began: None, partial },
            true,
        ),
        (cancel("external:a", "r", "enough").unwrap(), Entry::Cancel { why: "enough".into() }, true),
        (run().permission(&asked), Entry::Permission(asked), true),
        (
            permission_answer("x", "p", "y").unwrap(),
            Entry::PermissionAnswer(PermissionAnswer { request_id: "p".into(), choice: "y".into() }),
            false,
        ),
        (
            session("acp", "s1", 7),
            Entry::Session(Session { protocol: "acp".into(), session_id: "s1".into(), cleared: 7 }),
            false,
        ),
        (
            continued("x", "r", 3, 5, ClientInput::default(), end_key(3)).unwrap(),
            Entry::Continued { reply_to: 3, after: 5 },
            true,
        ),
        (title("x", "Fish").unwrap(), Entry::Title("Fish".into()), false),
        (forked("x", &fork).unwrap(), Entry::Forked(fork.clone()), false),
        (sub_agent(&told), Entry::SubAgent(told), false),
        (options(&all), Entry::Options(all.clone()), false),
        (option("x", &chosen).unwrap(), Entry::OptionChosen(chosen.clone()), false),
        (commands(&json!([{ "name": "compact" }])), Entry::Commands(json!([{ "name": "compact" }])), false),
    ] {
        assert_eq!(read(&event), (in_run.then(|| "r".to_owned()), entry), "{event:?}");
        let of_no_run = ["session", "commands", "options"];
        let by_agent =
            event.source == SELF && !of_no_run.iter().any(|no| event.subtype.as_deref() == Some(no));
        assert_eq!(record(&event).attempt, if by_agent { 2 } else { 0 }, "{event:?}");
    }
}

#[test]
fn what_a_client_hands_over_and_answers_is_known_as_such() {
    let input = |fields: Value| ClientInput(fields.as_object().unwrap().clone());
    let given = input(json!({ "tools": [{ "name": "color" }, 1], "state": 2, "other": 3 }));
    let other = Map::from_iter([(ClientInput::KEY.to_owned(), Value::Object(given.0.clone()))]);
    let event = Message { other, ..Message::text("hi") }.event("external:web:a:dm:b:c").unwrap();
    assert_eq!(record(&event).input(), given);
    assert_eq!(given.tools().collect::<Vec<_>>(), ["color"]);
    assert_eq!(given.fields().map(|(field, _)| field).collect::<Vec<_>>(), ["tools", "state"]);
    let call = ToolCall::new("c", "color", Value::Null);
    let result = ToolResult::new("c", "color", Ok("blue".into()));
    for (event, is_clients) in [
        (run().tool_call(&call), false),
        (run().client_tool_call(&call), true),
        (run().tool_result(&result), false),
        (run().client_tool_result("web", &result, given.clone()), true),
    ] {
        let record = record(&event);
        assert_eq!(record.for_client || record.from_client, is_clients, "{event:?}");
        assert_eq!((record.attempt, record.shown_call_id().as_deref()), (2, Some("c.2")));
        assert!(!record.unreported);
    }
    assert!(record(&run().unreported_result(&result)).unreported);
    // Nobody else can say so.
    let pushed = NewEvent::new("external:x", "record", Some("toolresult".into()), "{}").unwrap();
    let pushed = pushed.with_metadata(r#"{"client":"web","for_client":true}"#).unwrap();
    assert!(!record(&pushed).for_client && !record(&pushed).from_client);
    assert_eq!(
        ["c", "c", "c.2"],
        [0, 1, 2].map(|attempt| shown_call_id("c", attempt)).each_ref().map(|id| &**id)
    );
}

#[test]
fn what_a_failed_run_had_said_is_kept_up_to_a_mebibyte() {
    let long = "é".repeat(MAX_PARTIAL);
    for event in [run().failed("x", &long), run().cancelled("x", &long)] {
        let (Entry::Error { partial, .. } | Entry::Cancelled { partial, .. }) = read(&event).1 else {
            panic!("{event:?}")
        };
        assert_eq!(partial, Some("é".repeat(MAX_PARTIAL / 2)));
    }
    let none = run().cancelled("x", "");
    assert!(!none.metadata.unwrap().contains("partial"));
}

#[test]
fn of_a_result_that_is_too_long_the_beginning_is_kept_with_a_note() {
    let long = "é".repeat(MAX_RESULT);
    let result = |outcome| ToolResult::new("c", "t", outcome);
    let kept = format!("{}\n[cut: 2097152 bytes in all]", "é".repeat(MAX_RESULT / 2));
    let read_back = |outcome| match read(&run().tool_result(&result(outcome))).1 {
        Entry::ToolResult(result) => result.outcome,
        other => panic!("{other:?}"),
    };
    assert_eq!(read_back(Ok(long.clone().into())), Ok(kept.clone().into()));
    assert_eq!(read_back(Err(long)), Err(kept));
    let list = json!(vec!["x"; MAX_RESULT]);
    let Ok(Value::String(text)) = read_back(Ok(list)) else { panic!() };
    assert!(text.starts_with(r#"["x","x","#) && text.ends_with("\n[cut: 4194305 bytes in all]"));
    let short = Ok(json!("é".repeat(MAX_RESULT / 2)));
    assert_eq!(read_back(short.clone()), short);
    // With its brackets and quotes it is just as long as it may be.
    let full = json!(["x".repeat(MAX_RESULT - 4)]);
    assert_eq!(read_back(Ok(full.clone())), Ok(full.clone()));
    let full = ToolResult { content: full, ..result(Ok(Value::Null)) };
    assert_eq!(read(&run().tool_result(&full)).1, Entry::ToolResult(full));
}

#[test]
fn an_event_outside_of_any_attempt_says_none() {
    let queued = Run { attempt: 0, ..run() }.cancelled("x", "");
    assert_eq!(record(&queued).attempt, 0);
    let theirs = Message { other: Map::from_iter([("attempt".to_owned(), 5.into())]), ..Message::text("x") };
    assert_eq!(record(&theirs.event("external:x").unwrap()).attempt, 0);
}

#[test]
fn only_endings_have_the_end_key() {
    let ending = |event: NewEvent<'static>| event.idempotency_key.map(|key| key.to_string());
    for event in [run().answer(&Answer::default()), run().failed("x", ""), run().cancelled("x", "")] {
        assert_eq!(read(&event).1.ends(), Some(3));
        assert_eq!(ending(event).as_deref(), Some("thread:end:3"));
    }
    for event in [run().started(), run().attempt_failed("x", None), run().token("m", "x")] {
        assert_eq!(read(&event).1.ends(), None);
        assert_eq!(ending(event), None);
    }
}

#[test]
fn only_self_starts_or_ends_a_run() {
    for event in [run().started(), run().cancelled("x", ""), run().failed("x", ""), session("acp", "s", 0)] {
        let theirs = NewEvent { source: "external:web:a:dm:b:c".into(), ..event };
        assert_eq!(read(&theirs).1, Entry::Other);
    }
}

#[test]
fn an_answer_of_the_agent_to_its_own_request_is_none() {
    assert_eq!(read(&permission_answer(SELF, "p", "y").unwrap()).1, Entry::Other);
}

#[test]
fn a_request_is_closed_by_any_of_its_choices_and_waits_as_long_as_it_says() {
    for (request_id, choice, closes) in
        [("p", "y", true), ("p", "n", true), ("p", "", true), ("p", "z", false), ("q", "y", false)]
    {
        let answer = PermissionAnswer { request_id: request_id.into(), choice: choice.into() };
        assert_eq!(answer.closes("p", ["y", "n"].into_iter()), closes, "{answer:?}");
    }
    for (kind, is_rejection) in [("allow_once", false), ("reject_once", true), ("reject_always", true)] {
        let choice = Choice { id: "a".into(), name: "A".into(), kind: kind.into() };
        assert_eq!(choice.is_rejection(), is_rejection);
    }
    for wait_ms in [None, Some(5)] {
        let asked: Permission =
            serde_json::from_value(json!({ "request_id": "p", "choices": [], "wait_ms": wait_ms })).unwrap();
        assert_eq!(asked.wait(), wait_ms.map(std::time::Duration::from_millis));
    }
}

#[test]
fn only_the_agent_withdraws_a_request() {
    let withdrawn = PermissionAnswer { request_id: "p".into(), choice: String::new() };
    assert_eq!(read(&run().permission_withdrawn("p")).1, Entry::PermissionAnswer(withdrawn));
    assert_eq!(read(&permission_answer("x", "p", "").unwrap()).1, Entry::Other);
}

#[test]
fn the_text_of_content_parts_is_extracted() {
    assert_eq!(text_of("plain"), "plain");
    assert_eq!(text_of("[1, 2]"), "[1, 2]");
    assert_eq!(text_of("[not json"), "[not json");
    let parts = r#"[{"type":"text","text":"a"},{"type":"binary","url":"u"},{"type":"text","text":"b"}]"#;
    assert_eq!(text_of(parts), "a\nb");
}

proptest! {
    #[test]
    fn no_event_makes_the_parser_panic(
        kind in "message|record",
        source in "self|external:x",
        subtype in proptest::option::of(
            "run|token|toolcall|toolresult|status|error|cancelled|cancel|permission|permission_answer|session|sub_agent"
        ),
        content in "\\PC*|\\{\"(error|attempt|call_id|choices|payload)\":(1|null|\"x\"|\\[\\{\\}\\])\\}",
        metadata in proptest::option::of(
            "\\PC*|\\{\"(run_id|reply_to|priority|sub_event_id)\":(1|-1|null|\"x\"|[0-9]{30})\\}"
        ),
    ) {
        let event = Event { id: 1, created_at: String::new(), source, kind, subtype, content, metadata };
        let entry = Entry::of(&event);
        prop_assert!(event.source == "self" || entry.ends().is_none());
    }
}

/// The log and readers that are not Rust get these bytes.
#[test]
fn each_event_is_written_with_its_keys_in_this_order() {
    let own = Run { is_own: true, ..run() };
    let input = |json: Value| ClientInput(json.as_object().unwrap().clone());
    let call = ToolCall {
        title: Some("t".into()),
        kind: Some("k".into()),
        locations: json!([{ "path": "p" }]),
        ..ToolCall::new("c", "ls", json!({ "z": 1, "a": 1.5 }))
    };
    let result = ToolResult { content: json!([1]), ..ToolResult::new("c", "ls", Ok(Value::Null)) };
    let answer = Answer {
        content: "all".into(),
        message_id: Some("m".into()),
        total_tokens: Some(5),
        latency_ms: Some(9),
        stage: Some("s".into()),
    };
    let turn = turn();
    let asked = Permission {
        request_id: "p".into(),
        title: "may I".into(),
        call_id: None,
        arguments: Value::Null,
        details: String::new(),
        choices: vec![Choice { id: "y".into(), name: "Yes".into(), kind: "allow_once".into() }],
        wait_ms: None,
    };
    let told = SubAgent {
        parent_call_id: "c".into(),
        attempt: 2,
        sub_agent: "s".into(),
        sub_event_id: 4,
        event: "status".into(),
        payload: Value::Null,
    };
    let other = json!({ "run_id": "x", "free": 1, "resume": false, "reply_to": 3 });
    let message = Message {
        message_id: Some("m".into()),
        run_id: Some("r".into()),
        priority: Priority::Later,
        client: Some("c".into()),
        resume: true,
        other: other.as_object().unwrap().clone(),
        ..Message::text("hi")
    };
    let fork = Fork { session_id: "s".into(), title: "Fish".into(), before: None };
    let state = input(json!({ "state": 1 }));
    for (event, content, metadata) in [
        (
            run().started(),
            r#"{"status":"started","attempt":2}"#,
            r#"{"run_id":"r","attempt":2,"reply_to":3}"#,
        ),
        (own.started(), r#"{"status":"started","attempt":2}"#, r#"{"run_id":"r","attempt":2}"#),
        (run().token("m", "x"), "x", r#"{"run_id":"r","attempt":2,"message_id":"m"}"#),
        (
            run().client_tool_call(&call),
            r#"{"call_id":"c","name":"ls","arguments":{"z":1,"a":1.5},"title":"t","kind":"k","locations":[{"path":"p"}]}"#,
            r#"{"run_id":"r","attempt":2,"for_client":true}"#,
        ),
        (
            run().tool_call(&ToolCall::new("c", "", Value::Null)),
            r#"{"call_id":"c","name":"","arguments":null}"#,
            r#"{"run_id":"r","attempt":2}"#,
        ),
        (
            run().client_tool_result("web", &result, state.clone()),
            r#"{"call_id":"c","name":"ls","result":null,"content":[1]}"#,
            r#"{"run_id":"r","attempt":2,"client":"web","run_input":{"state":1}}"#,
        ),
        (
            run().unreported_result(&ToolResult::new("c", "", Err("no".into()))),
            r#"{"call_id":"c","error":"no"}"#,
            r#"{"run_id":"r","attempt":2,"unreported":true}"#,
        ),
        (
            run().model("m", &turn),
            r#"{"message":{"role":"assistant","content":"all"},"finish_reason":"stop","usage":{"total_tokens":5},"model":"q"}"#,
            r#"{"run_id":"r","attempt":2,"message_id":"m"}"#,
        ),
        (run().turn_cut("m"), "", r#"{"run_id":"r","attempt":2,"message_id":"m"}"#),
        (
            run().answer(&answer),
            "all",
            r#"{"run_id":"r","attempt":2,"message_id":"m","reply_to":3,"total_tokens":5,"latency_ms":9,"stage":"s"}"#,
        ),
        (
            own.failed("oh", "so"),
            r#"{"error":"oh","retryable":false}"#,
            r#"{"run_id":"r","attempt":2,"began":3,"partial":"so"}"#,
        ),
        (
            run().attempt_failed("oh", Some(9)),
            r#"{"error":"oh","retryable":true}"#,
            r#"{"run_id":"r","attempt":2,"reply_to":3,"interrupted_by":9}"#,
        ),
        (
            run().permission(&asked),
            r#"{"request_id":"p","title":"may I","call_id":null,"arguments":null,"details":"","choices":[{"id":"y","name":"Yes","kind":"allow_once"}]}"#,
            r#"{"run_id":"r","attempt":2}"#,
        ),
        (permission_answer("x", "p", "y").unwrap(), r#"{"request_id":"p","choice":"y"}"#, ""),
        (
            run().permission_withdrawn("p"),
            r#"{"request_id":"p","choice":""}"#,
            r#"{"run_id":"r","attempt":2}"#,
        ),
        (session("acp", "s", 0), r#"{"protocol":"acp","session_id":"s"}"#, ""),
        (session("acp", "s", 7), r#"{"protocol":"acp","session_id":"s","cleared":7}"#, ""),
        (forked("x", &fork).unwrap(), r#"{"session_id":"s","title":"Fish","before":null}"#, ""),
        (
            continued("x", "r", 3, 5, state, end_key(3)).unwrap(),
            "",
            r#"{"run_id":"r","reply_to":3,"after":5,"run_input":{"state":1}}"#,
        ),
        (
            sub_agent(&told),
            r#"{"event":"status","payload":null}"#,
            r#"{"parent_call_id":"c","sub_agent":"s","sub_event_id":4,"attempt":2}"#,
        ),
        (
            message.event("x").unwrap(),
            "hi",
            r#"{"run_id":"r","message_id":"m","priority":"later","client":"c","resume":true,"free":1,"reply_to":3}"#,
        ),
        (Message::text("hi").event("x").unwrap(), "hi", ""),
    ] {
        assert_eq!((&*event.content, event.metadata.as_deref().unwrap_or_default()), (content, metadata));
    }
}

#[test]
fn what_has_another_type_counts_as_not_given() {
    let read = |subtype: &str, content: &str, metadata: &str| {
        let event =
            NewEvent::new(SELF, "record", Some(subtype.to_owned().into()), content.to_owned()).unwrap();
        record(&event.with_metadata(metadata).unwrap())
    };
    let call = r#"{"call_id":"c","name":5,"title":{},"kind":null,"locations":"x","free":1}"#;
    let metadata = r#"{"run_id":5,"attempt":-1,"for_client":"true","reply_to":"7","message_id":""}"#;
    let record = read("toolcall", call, metadata);
    assert_eq!(record.entry, Entry::ToolCall(ToolCall::new("c", "", Value::Null)));
    assert_eq!((record.run_id, record.attempt, record.for_client), (None, 0, true));
    let located = read("toolcall", r#"{"call_id":"c","locations":[{"path":"p"}]}"#, "{}");
    let locations = json!([{ "path": "p" }]);
    assert!(matches!(located.entry, Entry::ToolCall(call) if call.locations == locations));
    let result = |content| match read("toolresult", content, "{}").entry {
        Entry::ToolResult(result) => Some(result.outcome),
        _ => None,
    };
    assert_eq!(result(r#"{"call_id":"c","error":null,"content":5}"#), Some(Ok(Value::Null)));
    assert_eq!(result(r#"{"call_id":"c","error":{"a":1},"result":2}"#), Some(Err(r#"{"a":1}"#.into())));
    assert_eq!(result(r#"{"call_id":5}"#), None);
    assert_eq!(result(r#"["c"]"#), None);
    let choices =
        r#"{"request_id":"p","choices":[5,["a","b","c"],{"id":"a"},{"id":"a","name":"b","kind":5}]}"#;
    let Entry::Permission(asked) = read("permission", choices, "{}").entry else { panic!() };
    assert_eq!(asked.choices, [Choice { id: "a".into(), name: "b".into(), kind: String::new() }]);
    assert_eq!(read("permission", r#"{"request_id":"p","choices":{}}"#, "{}").entry, Entry::Other);
    assert!(matches!(
        read("error", r#"{"error":5,"retryable":"true"}"#, r#"{"reply_to":"7","began":{}}"#).entry,
        Entry::Error { error, retryable: false, reply_to: Some(7), began: None, .. } if error.is_empty()
    ));
    assert_eq!(read("error", "[]", "{}").entry, Entry::Other);
    // The last of two keys counts.
    let twice = r#"{"call_id":"a","call_id":"b"}"#;
    assert!(matches!(read("toolcall", twice, "{}").entry, Entry::ToolCall(call) if call.call_id == "b"));
}

/// What docs/DESIGN.md says of a call, for the tests of its outputs as well.
#[test]
fn the_design_shows_a_call_as_it_is_stored() {
    let design = include_str!("../../../docs/DESIGN.md");
    let event = Run { reply_to: 1, ..run() }.tool_call(&ToolCall::new("c", "grep", json!({ "for": "x" })));
    assert!(design.contains(&format!("\n{}\n{}\n", event.content, event.metadata.as_deref().unwrap())));
    assert_eq!(record(&event).shown_call_id().as_deref(), Some("c.2"));
    let (parent_call_id, sub_agent, event) = ("c".into(), "s".into(), "status".into());
    let told =
        SubAgent { parent_call_id, attempt: 2, sub_agent, sub_event_id: 4, event, payload: Value::Null };
    assert_eq!(record(&super::sub_agent(&told)).shown_call_id().as_deref(), Some("c.2"));
}

#[test]
fn a_choice_counts_if_it_can_be() {
    let content = r#"{"options":[{"id":"m","name":"M","current":"a","choices":[{"id":"a","name":"A"},{"id":"b","name":"B"}]}]}"#;
    let mut all: AgentOptions = serde_json::from_str(content).unwrap();
    let chosen = |id: &str, value: &str| OptionChosen { id: id.into(), value: value.into() };
    for (id, value, current) in
        [("m", "c", "a"), ("n", "b", "a"), ("m", "b", "b"), ("m", "", "b"), ("m", "a", "a")]
    {
        all.choose(&chosen(id, value));
        assert_eq!(all.options[0].current, current, "{id} {value}");
    }
}

fn own_record(subtype: &str, content: &str) -> NewEvent<'static> {
    NewEvent::new(SELF, "record", Some(subtype.to_owned().into()), content.to_owned()).unwrap()
}

#[test]
fn a_run_id_is_one_that_fits_into_an_environment() {
    let long = "x".repeat(MAX_RUN_ID);
    for (run_id, is_kept) in
        [(long.as_str(), true), (&format!("{long}x"), false), ("", false), ("a\nb", false), ("ä b", true)]
    {
        let metadata = json!({ "run_id": run_id }).to_string();
        let event = NewEvent::message("x", "hi").unwrap().with_metadata(&metadata).unwrap();
        assert_eq!(read(&event).0.as_deref(), Some(if is_kept { run_id } else { "run_7" }));
    }
}

#[test]
fn only_true_is_yes() {
    for (resume, expected) in
        [(json!(true), true), (json!("true"), true), (json!(1), false), (json!("yes"), false)]
    {
        let metadata = json!({ "resume": resume }).to_string();
        let event = NewEvent::message("x", "hi").unwrap().with_metadata(&metadata).unwrap();
        assert!(matches!(read(&event).1, Entry::Message(message) if message.resume == expected), "{resume}");
    }
}

#[test]
fn content_parts_are_objects_with_a_type_and_there_is_one() {
    for (content, is_parts) in [
        (r#"[{"type":"text","text":"a"}]"#, true),
        (r#" [{"type":"text"},{"type":"image"}]"#, true),
        ("[]", false),
        (r#"[{"type":"text"},{"text":"a"}]"#, false),
        (r#"[{"type":5}]"#, false),
        ("[not JSON]", false),
        ("text", false),
    ] {
        assert_eq!(parts_of(content).is_some(), is_parts, "{content}");
    }
}

#[test]
fn a_list_that_is_none_makes_no_record() {
    for (subtype, key) in
        [("plan", "entries"), ("state_delta", "delta"), ("commands", "commands"), ("messages", "messages")]
    {
        for (list, is_one) in [(json!([]), true), (json!({}), false), (json!("x"), false)] {
            let content = json!({ key: list }).to_string();
            let entry = read(&own_record(subtype, &content)).1;
            assert_eq!(entry != Entry::Other, is_one, "{subtype} {content}");
        }
    }
}

#[test]
fn a_record_belongs_to_the_attempt_that_wrote_it() {
    let token = record(&run().token("m", "x"));
    assert!(run().has(&token));
    assert!(!Run { attempt: 1, ..run() }.has(&token));
    assert!(!Run { run_id: "s".into(), ..run() }.has(&token));
    let (own, other) = (Run::own(), Run::own());
    assert!(own.is_own && own.attempt == 1 && own.run_id != other.run_id && own.run_id.starts_with("run_"));
}

#[test]
fn a_run_ends_with_its_answer_or_why_there_is_none() {
    let answer = Answer { content: "yes".into(), ..Answer::default() };
    let ending = |event: &NewEvent<'_>| {
        let (_, entry) = read(event);
        entry.ending().map(|end| (end.outcome, end.text.to_owned(), end.partial.map(str::to_owned)))
    };
    let said = Some("said".to_owned());
    assert_eq!(ending(&run().answer(&answer)), Some((Outcome::Answered, "yes".into(), None)));
    assert_eq!(ending(&run().failed("why", "said")), Some((Outcome::Failed, "why".into(), said)));
    let cancelled = run().cancelled("why", "");
    assert_eq!(ending(&cancelled), Some((Outcome::Cancelled, "why".into(), None)));
    assert_eq!(ending(&run().attempt_failed("why", None)), None);
    assert_eq!(ending(&run().started()), None);
}

#[test]
fn only_the_agent_says_that_it_has_not_been_told_a_result() {
    for (source, expected) in [(SELF, true), ("x", false)] {
        let event = NewEvent::message(source, "hi").unwrap().with_metadata(r#"{"unreported":true}"#);
        let record = record(&event.unwrap());
        assert_eq!((record.unreported, record.metadata().len()), (expected, 1));
    }
    assert_eq!(read(&NewEvent::new("x", "record", Some("clear".into()), "").unwrap()).1, Entry::Clear);
}
