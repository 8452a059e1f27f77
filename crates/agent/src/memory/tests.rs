use proptest::prelude::*;
use serde_json::Map;
use thread::NewEvent;
use thread_conversation::{Answer, Fork, Run, clear, end_key, forked};

use super::*;

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
    let mut memory = Memory::default();
    for (id, event) in (1..).zip(events) {
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
    let Some(Step::Ask { messages, number }) = memory(&events).next(7) else { panic!() };
    let user = |text: &str| json!({ "role": "user", "content": text });
    let expected = vec![user("a"), Value::Object(turn("one").message), user("b")];
    assert_eq!((messages, number), (expected, 1));
    // The turn was stored, and the answer was not.
    let stored = Step::Answer { turn: Box::new(turn("one")), message_id: Some("m_2".into()) };
    assert_eq!(memory(&events[..5]).next(1), Some(stored));
    assert!(matches!(memory(&events[..4]).next(1), Some(Step::Ask { number: 2, .. })));
    assert!(matches!(memory(&events[..3]).next(1), Some(Step::Ask { number: 1, .. })));
    assert_eq!(memory(&events).next(2), None);
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
        asked(memory(&events).next(12)),
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
    let message = json!({ "role": "assistant", "content": null, "tool_calls": [{ "id": "c" }] });
    let turn = ModelTurn { message: message.as_object().unwrap().clone(), ..ModelTurn::default() };
    let events = [
        ask("a"),
        run(1, 1).started(),
        run(1, 1).model("m", &turn),
        run(1, 1).failed("no tools", ""),
        ask("b"),
    ];
    let Some(Step::Ask { messages, .. }) = memory(&events).next(5) else { panic!() };
    assert_eq!(messages[1], json!({ "role": "assistant", "content": "" }));
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
    assert_eq!(asked(memory(&events).next(3)), said(&[("user", "waits")]));
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
    assert_eq!(asked(memory(&events).next(5)), said(&prompt));
}

#[test]
fn files_are_named() {
    let files = json!([{ "bucket": "b", "path": "x/plan.pdf" }, { "path": "evil\nname" }, 5]);
    let other = Map::from_iter([(attachments::ATTACHMENTS.to_owned(), files)]);
    let event = Message { other, ..Message::text("see") }.event(ADA).unwrap();
    let text = "see\nAttached, but not shown to you: plan.pdf\nAttached, but not shown to you: evil name\n";
    assert_eq!(asked(memory(&[event]).next(1)), said(&[("user", text)]));
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
                    let Some(Step::Answer { turn, .. }) = begun.next(*of) else { panic!("{begun:?}") };
                    prop_assert_eq!(&turn.text(), reply);
                }
                None => prop_assert_eq!(&asked(begun.next(*of)), prompt),
            }
        }
    }
}
