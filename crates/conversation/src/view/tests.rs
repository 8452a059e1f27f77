use serde_json::{Value, json};
use thread::NewEvent;

use super::*;
use crate::{Answer, Choice, Message, Run};

/// Feeds a conversation, and returns what each event changed.
fn fold(events: &[NewEvent<'_>]) -> (RunView, Vec<String>) {
    let mut view = RunView::of(1);
    let mut changes = Vec::new();
    for (id, event) in (1..).zip(events) {
        let record = Record::of(event.row(id, "2026-03-18T10:30:00.123Z").to_event());
        view.begin(&record);
        changes.push(view.apply(&record).map_or("-".to_owned(), |change| told(&change)));
    }
    (view, changes)
}

/// A change in a few words.
fn told(change: &Change<'_>) -> String {
    match change {
        Change::Attempt { number, restored } => format!("attempt {number} {restored}"),
        Change::Text { text, .. } => format!("text {text}"),
        Change::Called { id, is_new, .. } => format!("call {id} {is_new}"),
        Change::Returned { id, ends, .. } => format!("result {id} {ends:?}"),
        Change::AttemptFailed { ends, .. } => format!("failed {ends:?}"),
        Change::Asked(asked) => format!("asked {}", asked.request_id),
        Change::Permitted(answer) => format!("permitted {}", answer.choice),
        Change::SubAgent { parent, did, .. } => format!("sub of {parent} {did:?}"),
        other => format!("{other:?}"),
    }
}

fn message() -> NewEvent<'static> {
    let other = json!({ "run_input": { "state": { "n": 1 } } }).as_object().cloned().unwrap_or_default();
    let message = Message { run_id: Some("r".into()), other, ..Message::text("hello") };
    message.event("external:web:main:dm:default:ada").unwrap()
}

fn run(attempt: u64) -> Run {
    Run { run_id: "r".into(), reply_to: 1, attempt, is_own: false }
}

fn call(id: &str) -> ToolCall {
    ToolCall::new(id, "ls", Value::Null)
}

fn result(id: &str) -> ToolResult {
    ToolResult::new(id, "ls", Ok("a".into()))
}

fn sub(attempt: u64, event: &str, payload: Value) -> NewEvent<'static> {
    let (parent_call_id, sub_agent, event) = ("c".into(), "s-1".into(), event.to_owned());
    crate::sub_agent(&SubAgent { parent_call_id, attempt, sub_agent, sub_event_id: 1, event, payload })
}

#[test]
fn a_call_of_a_later_attempt_is_another_and_only_the_first_result_counts() {
    let (view, changes) = fold(&[
        message(),
        run(1).started(),
        run(1).tool_call(&call("c")),
        run(1).tool_call(&call("c")),
        run(1).tool_result(&result("c")),
        run(1).tool_result(&result("c")),
        run(1).attempt_failed("killed", None),
        run(2).started(),
        run(2).tool_call(&call("c")),
        run(2).tool_result(&result("unknown")),
    ]);
    assert_eq!(
        changes[2..],
        [
            "call c true",
            "call c false",
            "result c []",
            "-",
            "failed []",
            "attempt 2 false",
            "call c.2 true",
            "-"
        ]
    );
    assert_eq!(view.open_calls().map(|(id, _)| id).collect::<Vec<_>>(), ["c.2"]);
    // The first attempt's has no number, and what only looks like one is none.
    for (made, is_it) in [("c", true), ("c.x", false)] {
        let made = run(1).tool_call(&call(made));
        let (_, changes) = fold(&[message(), run(1).started(), made, sub(0, "status", json!("done"))]);
        assert_eq!(changes[3].starts_with("sub of c [Began"), is_it, "{}", changes[3]);
    }
}

#[test]
fn what_belongs_to_another_run_changes_nothing() {
    let other = Run { run_id: "other".into(), ..run(1) };
    let before = run(1).token("m", "early");
    let (view, changes) =
        fold(&[message(), before, other.token("m", "x"), run(1).started(), other.token("m", "y")]);
    assert_eq!(changes, ["-"; 5]);
    assert!(view.has_started() && view.has_streamed(""));
    let later = Run { reply_to: 2, ..run(1) };
    let (view, _) = fold(&[message(), message(), later.started()]);
    assert!(!view.has_started());
}

#[test]
fn what_was_streamed_is_that_of_the_last_attempt() {
    let events =
        [message(), run(1).started(), run(1).token("m", "lost"), run(2).started(), run(2).token("m", "ab")];
    let (view, changes) = fold(&[&events[..], &[run(2).token("m", ""), run(2).token("m", "c")]].concat());
    assert_eq!(changes[2..], ["text lost", "attempt 2 false", "text ab", "-", "text c"]);
    assert!(view.has_streamed("abc") && !view.has_streamed("ab"));
}

#[test]
fn the_answer_of_a_model_is_what_its_last_turn_says() {
    let turn = |calls: Value| {
        let message = json!({ "role": "assistant", "content": "let me see", "tool_calls": calls });
        crate::ModelTurn { message: message.as_object().unwrap().clone(), ..Default::default() }
    };
    let events = [
        message(),
        run(1).started(),
        run(1).token("m", "let me see"),
        run(1).model("m", &turn(json!([{ "id": "c" }]))),
        run(1).token("m_2", "done"),
    ];
    let (view, changes) = fold(&events);
    assert_eq!(changes[2..], ["text let me see", "-", "text done"]);
    assert!(view.has_streamed("done"));
    let (view, _) = fold(&[&events[..4], &[run(1).model("m", &turn(json!([])))]].concat());
    assert!(view.has_streamed(""));
}

#[test]
fn the_text_of_a_turn_that_was_cut_does_not_count() {
    let (view, changes) = fold(&[
        message(),
        run(1).started(),
        run(1).token("m", "lo"),
        run(1).turn_cut("m"),
        run(1).token("m_2", "ab"),
    ]);
    assert_eq!(changes[2..], ["text lo", "attempt 1 false", "text ab"]);
    assert!(view.has_streamed("ab"));
}

#[test]
fn what_else_an_agent_does_is_told_as_it_is() {
    let (_, changes) = fold(&[
        message(),
        run(1).started(),
        run(1).thinking("m", "hm"),
        run(1).thinking("m", ""),
        run(1).status(Status::Done),
        run(1).plan(&json!([1])),
        run(1).state_delta(&json!([2])),
        run(1).unsupported(&["state"]),
    ]);
    assert_eq!(
        changes[2..],
        [
            "Thinking(\"hm\")",
            "-",
            "Status(Done)",
            "Plan(Array [Number(1)])",
            "StateDelta(Array [Number(2)])",
            "Unsupported([\"state\"])",
        ]
    );
}

#[test]
fn the_state_of_a_failed_attempt_is_undone() {
    let set = |state: &mut Value| {
        *state = json!(3);
        Ok::<_, ()>(())
    };
    assert_eq!(fold(&[message()]).0.state, json!({ "n": 1 }));
    assert_eq!(fold(&[Message::text("hello").event("x").unwrap()]).0.state, json!({}));
    assert_eq!(RunView::of(1).state, json!({}));
    let state = run(1).state(&json!({ "n": 2 }));
    let failed = run(1).attempt_failed("x", None);
    let (view, changes) =
        fold(&[message(), run(1).started(), state.clone(), failed.clone(), run(2).started()]);
    assert_eq!((&*changes[4], view.state), ("attempt 2 true", json!({ "n": 1 })));
    let client = run(1).client_tool_result("web", &result("c"), ClientInput::of(&Default::default()));
    let begun = [message(), run(1).started(), state, client];
    let given = ClientInput(json!({ "state": { "n": 4 } }).as_object().cloned().unwrap_or_default());
    let given = run(1).client_tool_result("web", &result("c"), given);
    assert_eq!(fold(&[&begun[..], &[given]].concat()).0.state, json!({ "n": 4 }));
    let (mut view, _) = fold(&begun[..2]);
    let restart = Record::of(run(2).started().row(9, "2026-03-18T10:30:00.123Z").to_event());
    assert_eq!(view.patch(set), Ok(()));
    let restored = Change::Attempt { number: 2, restored: true };
    assert_eq!((view.apply(&restart), &view.state), (Some(restored), &json!({ "n": 1 })));
    let (mut view, _) = fold(&begun);
    assert_eq!(view.state, json!({ "n": 2 }));
    assert_eq!(view.patch(|_| Err("no")), Err("no"));
    assert_eq!(view.patch(set), Ok(()));
    assert_eq!(view.state, 3);
}

#[test]
fn a_request_is_open_until_a_choice_of_it_is_made_or_the_attempt_fails() {
    let asked = |id: &str| Permission {
        request_id: id.into(),
        title: "may I".into(),
        call_id: Some("c".into()),
        arguments: Value::Null,
        details: String::new(),
        choices: vec![Choice { id: "y".into(), name: "Yes".into(), kind: "allow_once".into() }],
        wait_ms: None,
    };
    let answer = |id, choice| crate::permission_answer("x", id, choice).unwrap();
    let (view, changes) = fold(&[
        message(),
        run(1).started(),
        run(1).permission(&asked("p")),
        run(1).tool_call(&call("c")),
        run(1).permission(&asked("q")),
        answer("p", "z"),
        answer("p", "y"),
        answer("p", "y"),
    ]);
    assert_eq!(changes[2..], ["asked p", "call c true", "asked q", "-", "permitted y", "-"]);
    let open: Vec<_> =
        view.asked().map(|one| (one.event_id, one.call_id.as_deref(), one.call_is_known)).collect();
    assert_eq!(open, [(5, Some("c"), true)]);
    assert_eq!(view.request("q").map(|one| one.event_id), Some(5));
    assert!(view.request("p").is_none());
    let (view, _) = fold(&[message(), run(1).started(), run(1).permission(&asked("p"))]);
    assert_eq!(view.request("p").map(|one| one.call_is_known), Some(false));
    let failed = run(1).attempt_failed("x", None);
    let (view, _) = fold(&[message(), run(1).started(), run(1).permission(&asked("p")), failed]);
    assert_eq!(view.asked().count(), 0);
}

#[test]
fn a_sub_agent_ends_once_with_its_own_end_or_that_of_its_call_or_attempt() {
    let begun = || {
        vec![message(), run(1).started(), run(1).tool_call(&call("c")), sub(1, "status", json!("thinking"))]
    };
    let with = |more: &[NewEvent<'static>]| fold(&[&begun()[..], more].concat());
    let (view, changes) = with(&[]);
    assert_eq!(changes[3], r#"sub of c [Began, Status(String("thinking"))]"#);
    assert_eq!(view.open_sub_agents().collect::<Vec<_>>(), [("s-1", "c")]);
    let end = sub(1, "final", json!({ "content": "done" }));
    let (view, changes) = with(&[end.clone(), run(1).tool_result(&result("c")), end.clone()]);
    assert_eq!(changes[4..], [r#"sub of c [Answered(Some(String("done")))]"#, "result c []", "sub of c []"]);
    assert_eq!(view.open_sub_agents().count(), 0);
    let (_, changes) = with(&[run(1).tool_result(&result("c")), end.clone()]);
    assert_eq!(changes[4..], [r#"result c ["s-1"]"#, "sub of c []"]);
    let (_, changes) = with(&[run(1).attempt_failed("x", None)]);
    assert_eq!(changes[4], r#"failed ["s-1"]"#);
    // It continues in the background.
    let started = ToolResult::new("c", "x", Ok(json!({ "sub_agent": "s-1", "status": "started" })));
    let (view, _) = with(&[run(1).tool_result(&started)]);
    assert_eq!(view.open_sub_agents().count(), 1);
    // It did not say so, or that was another call.
    for outcome in
        [json!({ "sub_agent": "s-1", "status": "done" }), json!({ "sub_agent": 1, "status": "started" })]
    {
        let (view, _) = with(&[run(1).tool_result(&ToolResult::new("c", "x", Ok(outcome)))]);
        assert_eq!(view.open_sub_agents().count(), 0);
    }
    let (view, _) = with(&[run(1).tool_call(&call("d")), run(1).tool_result(&result("d"))]);
    assert_eq!(view.open_sub_agents().count(), 1);
    // It fails, and goes on if that was an attempt of several.
    for (event, payload, change, is_open) in [
        ("error", json!({ "error": "no", "retryable": true }), r#"AttemptFailed("no")"#, true),
        ("error", json!({ "error": "no", "retryable": false }), r#"Failed("no")"#, false),
        ("cancelled", json!({ "message": "by x" }), r#"Cancelled("by x")"#, false),
    ] {
        let (view, changes) = with(&[sub(1, event, payload)]);
        assert_eq!(changes[4], format!("sub of c [{change}]"));
        assert_eq!(view.open_sub_agents().count() == 1, is_open, "{change}");
    }
    // All of it is told late.
    let (_, changes) = fold(&[&begun()[..3], &[run(1).tool_result(&result("c")), end]].concat());
    assert_eq!(changes[4], "sub of c [Began, Answered(None)]");
}

#[test]
fn the_calls_of_a_sub_agent_are_its_own_and_its_parent_is_found_without_the_attempt() {
    let nested = json!({ "call_id": "c", "name": "ls", "arguments": {} });
    let (view, changes) = fold(&[
        message(),
        run(2).started(),
        run(2).tool_call(&call("c")),
        sub(0, "tool_call", nested),
        sub(0, "tool_result", json!({ "call_id": "c", "result": 1 })),
        sub(1, "status", json!("done")),
    ]);
    assert!(changes[3].starts_with(r#"sub of c.2 [Began, Called { id: "s-1/c""#), "{}", changes[3]);
    assert!(changes[4].starts_with(r#"sub of c.2 [Returned { id: "s-1/c""#), "{}", changes[4]);
    assert_eq!(changes[5], "-", "there is no such call in the first attempt");
    assert_eq!(view.open_calls().map(|(id, _)| id).collect::<Vec<_>>(), ["c.2"]);
    // The first attempt's has no number, and what only looks like one is none.
    for (made, is_it) in [("c", true), ("c.x", false)] {
        let made = run(1).tool_call(&call(made));
        let (_, changes) = fold(&[message(), run(1).started(), made, sub(0, "status", json!("done"))]);
        assert_eq!(changes[3].starts_with("sub of c [Began"), is_it, "{}", changes[3]);
    }
}

#[test]
fn a_run_that_the_agent_began_itself_is_known_by_that_event() {
    let own = Run { run_id: "o".into(), reply_to: 1, attempt: 1, is_own: true };
    let answer = Answer { content: "x".into(), ..Answer::default() };
    let (view, changes) = fold(&[own.started(), own.token("m", "x"), own.answer(&answer)]);
    assert_eq!(changes, ["-", "text x", "-"]);
    assert!(view.has_streamed("x"));
}

#[test]
fn whatever_the_order_each_call_and_sub_agent_ends_at_most_once() {
    let pieces: Vec<NewEvent<'static>> = vec![
        run(1).started(),
        run(1).tool_call(&call("c")),
        run(1).tool_result(&result("c")),
        sub(1, "status", json!("thinking")),
        sub(1, "final", json!({ "content": "done" })),
        run(1).attempt_failed("x", None),
    ];
    // All sequences of four.
    for n in 0..6_usize.pow(4) {
        let picked: Vec<_> = (0..4).map(|digit| pieces[n / 6_usize.pow(digit) % 6].clone()).collect();
        let (view, changes) = fold(&[&[message()][..], &picked].concat());
        let count = |what: &str| changes.iter().filter(|change| change.contains(what)).count();
        assert!(count("result c") <= 1 && count("call c true") <= 1, "{changes:?}");
        assert!(count(r#"["s-1"]"#) + count("Answered") <= 1, "{changes:?}");
        assert!(view.open_sub_agents().count() + count(r#"["s-1"]"#) + count("Answered") <= 1, "{changes:?}");
    }
}
