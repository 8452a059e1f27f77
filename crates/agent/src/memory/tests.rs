use proptest::prelude::*;
use serde_json::Map;
use thread::NewEvent;
use thread_conversation::{Answer, Fork, Run, clear, end_key, forked};

use super::*;

/// How many turns a run may take.
const TURNS: u64 = 5;

const MOST: Limits = Limits { turns: TURNS, context: None, besides: 0, yields: false };

const ADA: &str = "external:web:main:dm:default:ada";

fn turn(text: &str) -> ModelTurn {
    let message = json!({ "role": "assistant", "content": text, "reasoning": "hm" });
    ModelTurn {
        message: message.as_object().unwrap().clone(),
        finish_reason: "stop".into(),
        ..ModelTurn::default()
    }
}

fn run(of: i64, attempt: u64) -> Run {
    Run { run_id: format!("run_{of}"), reply_to: of, attempt, is_own: false }
}

fn ask(text: &str) -> NewEvent<'static> {
    Message::text(text).event(ADA).unwrap()
}

/// The memory of these events, of which the first has the id 1. What looks like an ending is one.
fn memory(events: &[NewEvent<'_>]) -> Memory {
    memory_from(1, events)
}

/// The same without the events before that id.
fn memory_from(first: i64, events: &[NewEvent<'_>]) -> Memory {
    let mut memory = Memory::default();
    for (id, event) in (1..).zip(events).filter(|(id, _)| *id >= first) {
        let record = Record::of(event.row(id, "2026-03-18T10:30:00.123Z").to_event());
        memory.note(&record, record.entry.ends().is_some());
    }
    memory
}

/// The roles and contents of a prompt.
type Said = Vec<(String, String)>;

fn asked(step: Option<Step>) -> Said {
    let Some(Step::Ask { messages, .. }) = step else { panic!("{step:?}") };
    let text = |message: &Value, key: &str| message[key].as_str().unwrap().to_owned();
    messages.iter().map(|message| (text(message, "role"), text(message, "content"))).collect()
}

fn said(prompt: &[(&str, &str)]) -> Said {
    prompt.iter().map(|(role, text)| ((*role).to_owned(), (*text).to_owned())).collect()
}

#[test]
fn a_turn_is_remembered_as_the_model_sent_it() {
    let answer = Answer { content: "one".into(), ..Answer::default() };
    let events = [
        ask("a"),
        run(1, 1).started(),
        run(1, 1).token("m", "lost"),
        run(1, 1).turn_cut("m"),
        run(1, 1).model("m_2", &turn("one")),
        run(1, 1).answer(&answer),
        ask("b"),
    ];
    let Some(Step::Ask { messages, number }) = memory(&events).next(7, MOST) else { panic!() };
    let user = |text: &str| json!({ "role": "user", "content": text });
    let expected = vec![user("a"), Value::Object(turn("one").message), user("b")];
    assert_eq!((messages, number), (expected, 1));
    // The turn was stored, and the answer was not.
    let stored = Step::Answer { turn: Box::new(turn("one")), message_id: Some("m_2".into()) };
    assert_eq!(memory(&events[..5]).next(1, MOST), Some(stored));
    assert!(matches!(memory(&events[..4]).next(1, MOST), Some(Step::Ask { number: 2, .. })));
    assert!(matches!(memory(&events[..3]).next(1, MOST), Some(Step::Ask { number: 1, .. })));
    assert_eq!(memory(&events).next(2, MOST), None);
}

#[test]
fn another_agents_answers_and_runs_without_one_have_their_place() {
    let answer = |text: &str| Answer { content: text.into(), ..Answer::default() };
    let events = [
        ask("a"),
        ask("withdrawn"),
        ask("c"),
        run(1, 1).started(),
        run(2, 0).cancelled("by me", ""),
        run(1, 1).answer(&answer("of another")),
        run(3, 1).started(),
        run(3, 1).cancelled("by me", "so f"),
        ask("d"),
        run(9, 1).started(),
        run(9, 1).failed("no", ""),
        ask("e"),
    ];
    assert_eq!(
        asked(memory(&events).next(12, MOST)),
        said(&[
            ("user", "a"),
            ("assistant", "of another"),
            ("user", "c"),
            ("assistant", "so f"),
            ("user", "d"),
            ("assistant", NO_ANSWER),
            ("user", "e")
        ])
    );
}

#[test]
fn a_turn_without_text_has_some_in_a_prompt() {
    let message = json!({ "role": "assistant", "content": null, "reasoning": "hm" });
    let turn = ModelTurn { message: message.as_object().unwrap().clone(), ..ModelTurn::default() };
    let events =
        [ask("a"), run(1, 1).started(), run(1, 1).model("m", &turn), run(1, 1).failed("no", ""), ask("b")];
    let Some(Step::Ask { messages, .. }) = memory(&events).next(5, MOST) else { panic!() };
    assert_eq!(messages[1], json!({ "role": "assistant", "content": "", "reasoning": "hm" }));
}

/// A turn that makes these calls.
fn calling(calls: Value) -> ModelTurn {
    let message = json!({ "role": "assistant", "content": null, "tool_calls": calls });
    let message = message.as_object().unwrap().clone();
    // Some servers say `stop`.
    ModelTurn { message, finish_reason: "stop".into(), ..ModelTurn::default() }
}

fn call(id: &str, name: &str, arguments: &str) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
}

fn due(step: Option<Step>) -> Vec<DueCall> {
    match step {
        Some(Step::Call(due)) => due,
        other => panic!("{other:?}"),
    }
}

fn result(call_id: &str, outcome: Result<&str, &str>) -> thread_conversation::ToolResult {
    let outcome = outcome.map(Value::from).map_err(str::to_owned);
    thread_conversation::ToolResult::new(call_id, "t", outcome)
}

#[test]
fn calls_that_are_broken_have_an_id_and_a_reason() {
    let calls = json!([
        call("same", "a", "{\"x\":1}"),
        call("same", "b", "{oops"),
        call("", "c", ""),
        { "function": { "name": "d", "arguments": { "y": 2 } } },
        5,
        call("f", "f", "[1]"),
    ]);
    let events = [ask("a"), run(1, 1).started(), run(1, 1).model("m", &calling(calls))];
    let due = due(memory(&events).next(1, MOST));
    let ids: Vec<_> = due.iter().map(|due| due.call.call_id.as_str()).collect();
    assert_eq!(ids, ["call_3_1", "call_3_2", "call_3_3", "call_3_4", "call_3_5", "call_3_6"]);
    let hindered: Vec<bool> = due.iter().map(|due| due.hindrance.is_some()).collect();
    assert_eq!(hindered, [false, true, false, false, false, true]);
    assert_eq!((&due[0].call.arguments, &due[3].call.arguments), (&json!({ "x": 1 }), &json!({ "y": 2 })));
    assert!(due[1].hindrance.as_ref().unwrap().ends_with("{oops"));
    let results = ids.iter().map(|id| run(1, 1).tool_result(&result(id, Ok("r"))));
    let events: Vec<_> = events.iter().cloned().chain(results).collect();
    let Some(Step::Ask { messages, .. }) = memory(&events).next(1, MOST) else { panic!() };
    let sent = messages[1]["tool_calls"].as_array().unwrap();
    let ids: Vec<_> = sent.iter().map(|call| call["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["same", "call_3_2", "call_3_3", "call_3_4", "call_3_5", "f"]);
    for (call, result) in sent.iter().zip(&messages[2..]) {
        assert_eq!((&call["id"], &call["type"]), (&result["tool_call_id"], &"function".into()));
        let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
        assert!(arguments.is_object(), "{call}");
    }
}

#[test]
fn only_so_many_calls_of_a_turn_are_made() {
    let calls: Vec<Value> = (0..10_000).map(|n| call(&format!("c{n}"), "a", "{}")).collect();
    let events = [ask("a"), run(1, 1).started(), run(1, 1).model("m", &calling(calls.into()))];
    let due = due(memory(&events).next(1, MOST));
    assert_eq!((due.len(), due.iter().filter(|due| due.hindrance.is_none()).count()), (10_000, 128));
}

#[test]
fn a_call_has_come_as_far_as_the_thread_says() {
    let asks = |attempt: u64| {
        let choices =
            vec![thread_conversation::Choice { id: "allow".into(), name: "A".into(), kind: String::new() }];
        run(1, attempt).permission(&thread_conversation::Permission {
            request_id: format!("p{attempt}"),
            title: "t".into(),
            call_id: Some("call_3_1".into()),
            arguments: Value::Null,
            details: String::new(),
            choices,
            wait_ms: None,
        })
    };
    let answer = |choice: &str| thread_conversation::permission_answer(ADA, "p1", choice).unwrap();
    let made = run(1, 1).tool_call(&ToolCall::new("call_3_1", "a", json!({})));
    let events = [
        ask("a"),
        run(1, 1).started(),
        run(1, 1).model("m", &calling(json!([call("x", "a", "{}")]))),
        asks(1),
        answer("nonsense"),
        answer("allow"),
        made.clone(),
        made,
        run(1, 1).tool_result(&result("call_3_1", Err("no"))),
    ];
    let stage = |upto: usize| due(memory(&events[..upto]).next(1, MOST))[0].stage.clone();
    let asked =
        |choice: Option<&str>| Stage::Asked { request_id: "p1".into(), choice: choice.map(str::to_owned) };
    assert_eq!((stage(3), stage(4), stage(5)), (Stage::New, asked(None), asked(None)));
    assert_eq!((stage(6), stage(7)), (asked(Some("allow")), Stage::Begun { times: 1, event_id: 7 }));
    assert_eq!(stage(8), Stage::Begun { times: 2, event_id: 8 });
    let Some(Step::Ask { messages, .. }) = memory(&events).next(1, MOST) else { panic!() };
    assert_eq!(messages[2], json!({ "role": "tool", "tool_call_id": "x", "content": "Error: no" }));
    // A request is closed with its attempt.
    let again = [&events[..4], &[run(1, 1).attempt_failed("by", Some(9)), run(1, 2).started()]].concat();
    assert_eq!(due(memory(&again).next(1, MOST))[0].stage, Stage::New);
}

#[test]
fn a_run_has_only_so_many_turns_and_what_it_did_is_remembered() {
    let mut events = vec![ask("a"), run(1, 1).started()];
    for turn in 1..=TURNS {
        assert!(matches!(memory(&events).next(1, MOST), Some(Step::Ask { number, .. }) if number == turn));
        events.push(run(1, 1).model("m", &calling(json!([call("x", "a", "{}")]))));
        if turn < TURNS {
            assert_eq!(due(memory(&events).next(1, MOST)).len(), 1);
            events.push(run(1, 1).tool_result(&result(&format!("call_{}_1", events.len()), Ok("r"))));
        }
    }
    assert_eq!(memory(&events).next(1, MOST), Some(Step::GiveUp(TURNS)));
    events.extend([run(1, 1).failed("too many", ""), ask("b")]);
    let Some(Step::Ask { messages, .. }) = memory(&events).next(events.len() as i64, MOST) else { panic!() };
    let roles: Vec<_> = messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles[..3], ["user", "assistant", "tool"]);
    assert_eq!(roles[roles.len() - 3..], ["tool", "assistant", "user"]);
    assert_eq!(messages[messages.len() - 3]["content"], "Error: the call was not made");
}

#[test]
fn what_was_said_before_a_clear_is_forgotten() {
    let answer = |text: &str| Answer { content: text.into(), ..Answer::default() };
    let events = [
        ask("a"),
        run(1, 1).started(),
        ask("waits"),
        clear(ADA).unwrap(),
        run(1, 1).answer(&answer("late")),
        run(3, 1).started(),
    ];
    assert_eq!(asked(memory(&events).next(3, MOST)), said(&[("user", "waits")]));
}

#[test]
fn a_copy_begins_with_what_was_said_in_the_original() {
    let fork = Fork { session_id: "s".into(), title: String::new(), before: None };
    let answer = |of: i64, text: &str| {
        let metadata = json!({ "reply_to": of }).to_string();
        NewEvent::message("self", text.to_owned())
            .unwrap()
            .with_metadata(&metadata)
            .unwrap()
            .keyed(end_key(of))
    };
    let events = [ask("a"), answer(1, "one"), ask("b"), forked(ADA, &fork).unwrap(), ask("c")];
    let prompt =
        [("user", "a"), ("assistant", "one"), ("user", "b"), ("assistant", NO_ANSWER), ("user", "c")];
    assert_eq!(asked(memory(&events).next(5, MOST)), said(&prompt));
}

#[test]
fn files_are_named() {
    let files = json!([{ "bucket": "b", "path": "x/plan.pdf" }, { "path": "evil\nname" }, 5]);
    let other = Map::from_iter([(attachments::ATTACHMENTS.to_owned(), files)]);
    let event = Message { other, ..Message::text("see") }.event(ADA).unwrap();
    let text = "see\nAttached, but not shown to you: plan.pdf\nAttached, but not shown to you: evil name\n";
    assert_eq!(asked(memory(&[event]).next(1, MOST)), said(&[("user", text)]));
}

/// What happens in a conversation, one run after another.
#[derive(Debug, Clone)]
enum Happens {
    /// A run that is answered after so many turns that were cut off, and so many failed attempts.
    Answered {
        cut: u64,
        failed: u64,
    },
    Cancelled {
        cut: u64,
    },
    Cleared,
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        (0..3u64, 0..3u64).prop_map(|(cut, failed)| Happens::Answered { cut, failed }),
        (0..3u64).prop_map(|cut| Happens::Cancelled { cut }),
        Just(Happens::Cleared),
    ]
}

proptest! {
    /// Wherever a conversation is cut off, the next step is the same as it was there when nothing had been cut off or
    /// failed: it depends on finished turns alone.
    #[test]
    fn any_beginning_of_a_conversation_leads_to_the_same_next_step(
        script in prop::collection::vec(happens(), 1..8),
        queued in any::<bool>(),
    ) {
        // The events, each with the message whose run is open then, its prompt, and its turn if that is stored.
        let mut events: Vec<NewEvent<'static>> = Vec::new();
        let mut states: Vec<Option<(i64, Said, Option<String>)>> = Vec::new();
        let mut past = Said::new();
        for (number, one) in script.iter().enumerate() {
            if matches!(one, Happens::Cleared) {
                past.clear();
                events.push(clear(ADA).unwrap());
                states.push(None);
                continue;
            }
            let (text, reply) = (format!("question {number}"), format!("answer {number}"));
            events.push(ask(&text));
            let of = events.len() as i64;
            states.push(None);
            let prompt = [past.clone(), said(&[("user", &text)])].concat();
            let mut push = |event: NewEvent<'static>, stored: Option<&str>| {
                events.push(event);
                states.push(Some((of, prompt.clone(), stored.map(str::to_owned))));
            };
            if queued {
                // Its run never begins.
                push(ask("later"), None);
            }
            let (cut, failed) = match one {
                Happens::Answered { cut, failed } => (*cut, *failed),
                Happens::Cancelled { cut } => (*cut, 0),
                Happens::Cleared => unreachable!(),
            };
            for attempt in 1..=failed {
                push(run(of, attempt).started(), None);
                push(run(of, attempt).token("m", "lost"), None);
                push(run(of, attempt).attempt_failed("down", None), None);
            }
            let run = run(of, failed + 1);
            push(run.started(), None);
            for _ in 0..cut {
                push(run.token("m", "lost"), None);
                push(run.turn_cut("m"), None);
            }
            push(run.token("m", "half"), None);
            let kept = match one {
                Happens::Cancelled { .. } => {
                    push(run.cancelled("by me", "half"), None);
                    "half".to_owned()
                }
                _ => {
                    push(run.model("m", &turn(&reply)), Some(&reply));
                    let answer = Answer { content: reply.clone(), ..Answer::default() };
                    push(run.answer(&answer), Some(&reply));
                    reply
                }
            };
            // It is over.
            if let Some(last) = states.last_mut() {
                *last = None;
            }
            past.extend(said(&[("user", &text), ("assistant", &kept)]));
        }
        for (at, state) in states.iter().enumerate() {
            let Some((of, prompt, stored)) = state else { continue };
            let begun = memory(&events[..=at]);
            match stored {
                Some(reply) => {
                    let Some(Step::Answer { turn, .. }) = begun.next(*of, MOST) else { panic!("{begun:?}") };
                    prop_assert_eq!(&turn.text(), reply);
                }
                None => prop_assert_eq!(&asked(begun.next(*of, MOST)), prompt),
            }
            // A message that nobody has begun to answer is pending, and so kept anyway.
            let kept = memory_from(begun.needed_from(0).min(*of), &events[..=at]);
            prop_assert_eq!(kept.next(*of, MOST), begun.next(*of, MOST));
        }
    }
}

#[test]
fn a_prompt_that_is_too_long_begins_with_a_summary() {
    let mut events = Vec::new();
    for n in 0..5 {
        let id = events.len() as i64 + 1;
        let answer = Answer { content: format!("answer {n} {}", "x".repeat(400)), ..Answer::default() };
        events.extend([ask(&format!("question {n}")), run(id, 1).started(), run(id, 1).answer(&answer)]);
    }
    let last = events.len() as i64 + 1;
    events.extend([ask("now"), run(last, 1).started()]);
    let limits = Limits { context: Some(500), ..MOST };
    let Some(Step::Summarise { upto, messages }) = memory(&events).next(last, limits) else { panic!() };
    assert_eq!((upto % 3, messages.len()), (0, 1), "whole runs are covered");
    let text = messages[0]["content"].as_str().unwrap();
    assert!(
        text.contains("question 0") && text.contains("answer 0") && !text.contains("question 4"),
        "{text}"
    );
    let kept = |events: &[NewEvent<'_>], of: i64| {
        let first = memory(events).needed_from(0);
        assert_eq!(memory_from(first, events).next(of, limits), memory(events).next(of, limits));
        first
    };
    assert_eq!(kept(&events, last), 1, "without a summary everything is needed");
    events.push(run(last, 1).summary(upto, "in short"));
    assert_eq!(kept(&events, last), upto + 1, "the first message that it does not cover");
    let Some(Step::Ask { messages, .. }) = memory(&events).next(last, limits) else { panic!() };
    let first = messages[0]["content"].as_str().unwrap();
    let question = upto / 3;
    assert!(first.contains("in short") && first.ends_with(&format!("question {question}")), "{first}");
    assert_eq!(messages.last().unwrap()["content"], "now");
    // Turns of the run itself are covered with their results.
    let calls = json!([call("x", "a", "{}"), call("y", "a", "{}")]);
    for _ in 0..3 {
        let id = events.len() + 1;
        events.push(run(last, 1).model("m", &calling(calls.clone())));
        for n in [1, 2] {
            let text = "y".repeat(300);
            events.push(run(last, 1).tool_result(&result(&format!("call_{id}_{n}"), Ok(&text))));
        }
    }
    let mut covered = upto;
    let messages = loop {
        match memory(&events).next(last, limits) {
            Some(Step::Summarise { upto, .. }) => {
                assert!(upto > covered, "each covers more than the one before");
                covered = upto;
                events.push(run(last, 1).summary(upto, "shorter"));
                assert_eq!(kept(&events, last), last, "it covers a part of the run under way");
            }
            Some(Step::Ask { messages, .. }) => break messages,
            other => panic!("{other:?}"),
        }
    };
    assert!(covered > last, "{covered}");
    let first = messages[0]["content"].as_str().unwrap();
    assert!(first.contains("shorter") && !first.contains("in short") && first.ends_with("now"), "{first}");
    assert!(messages[1..].iter().step_by(3).all(|message| message["role"] == "assistant"), "{messages:?}");
    // What was said before a clear is in no summary.
    let answer = Answer { content: "done".into(), ..Answer::default() };
    events.extend([run(last, 1).answer(&answer), clear(ADA).unwrap(), ask("again")]);
    let id = events.len() as i64;
    assert_eq!(asked(memory(&events).next(id, limits)), said(&[("user", "again")]));
    assert_eq!(kept(&events, id), id - 1);
}

/// A turn of a generated run: how many calls it makes, and what happens while they are made.
#[derive(Debug, Clone)]
struct Taken {
    calls: usize,
    /// For each call, how often it is stored before its result.
    made: Vec<u64>,
    /// The order in which results come.
    order: Vec<usize>,
    cut: bool,
    failed: bool,
}

fn taken() -> impl Strategy<Value = Taken> {
    (1..4usize).prop_flat_map(|calls| {
        let order = Just((0..calls).collect::<Vec<_>>()).prop_shuffle();
        let made = prop::collection::vec(0..3u64, calls);
        (made, order, any::<bool>(), any::<bool>()).prop_map(move |(made, order, cut, failed)| Taken {
            calls,
            made,
            order,
            cut,
            failed,
        })
    })
}

proptest! {
    /// Wherever a run is cut off, what is next follows from the turns, the calls that were made and their results, and
    /// from nothing else that has happened: not from kills, failures, and in which order results came.
    #[test]
    fn any_beginning_of_a_run_with_calls_leads_to_the_same_next_step(script in prop::collection::vec(taken(), 1..4)) {
        let mut events = vec![ask("a")];
        let mut attempt = 1;
        events.push(run(1, attempt).started());
        let mut prompt = vec![json!({ "role": "user", "content": "a" })];
        // What must be next after so many events: the prompt, or the ids of the calls that are due.
        let mut expected: Vec<Option<Result<Vec<Value>, Vec<String>>>> = vec![None, Some(Ok(prompt.clone()))];
        for taken in &script {
            if taken.failed {
                events.extend([run(1, attempt).attempt_failed("down", None), run(1, attempt + 1).started()]);
                attempt += 1;
                expected.extend([Some(Ok(prompt.clone())), Some(Ok(prompt.clone()))]);
            }
            let run = run(1, attempt);
            if taken.cut {
                events.extend([run.token("m", "half"), run.turn_cut("m")]);
                expected.extend([Some(Ok(prompt.clone())), Some(Ok(prompt.clone()))]);
            }
            let calls: Vec<Value> = (0..taken.calls).map(|n| call(&format!("c{n}"), "t", "{}")).collect();
            let turn = calling(calls.into());
            events.push(run.model("m", &turn));
            let id = events.len();
            let mut due: Vec<String> = (1..=taken.calls).map(|n| format!("call_{id}_{n}")).collect();
            expected.push(Some(Err(due.clone())));
            let all = due.clone();
            for (call_id, times) in all.iter().zip(&taken.made) {
                for _ in 0..*times {
                    events.push(run.tool_call(&ToolCall::new(&**call_id, "t", json!({}))));
                    expected.push(Some(Err(due.clone())));
                }
            }
            let mut message = turn.message.clone();
            message.insert("content".into(), "".into());
            prompt.push(Value::Object(message));
            for n in 0..taken.calls {
                let (id, content) = (format!("c{n}"), format!("result {n}"));
                prompt.push(json!({ "role": "tool", "tool_call_id": id, "content": content }));
            }
            for at in &taken.order {
                events.push(run.tool_result(&result(&all[*at], Ok(&format!("result {at}")))));
                due.retain(|id| *id != all[*at]);
                expected.push(Some(if due.is_empty() { Ok(prompt.clone()) } else { Err(due.clone()) }));
            }
        }
        for (at, expected) in expected.iter().enumerate() {
            let Some(expected) = expected else { continue };
            let next = match memory(&events[..=at]).next(1, MOST) {
                Some(Step::Ask { messages, .. }) => Ok(messages),
                Some(Step::Call(due)) => Err(due.into_iter().map(|due| due.call.call_id).collect()),
                other => panic!("{other:?}"),
            };
            prop_assert_eq!(&next, expected);
        }
    }
}
