//! Retention, and what the next prompt of a model is made of.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use thread_conversation::Entry;
use thread_testkit::wait_until;

use crate::harness::{ADA, Talk};
use crate::tools::{call, made, requests, script, talk_with, with_text};
use crate::tools_killed::kill;

/// Applies the thread's retention now.
fn retain(talk: &Talk) {
    talk.until_idle();
    talk.write("talk/run/_retention", "");
    let mut state = String::new();
    // Where another process is at work in the database, a dispatch leaves it to the next one.
    wait_until("retention to be applied", || {
        talk.thread(&["dispatch"]).ok();
        state = talk.read("talk/run/_retention");
        !state.is_empty()
    });
    let state: Value = serde_json::from_str(state.lines().next().unwrap()).unwrap();
    assert_eq!((&state["upto"], &state["newest"]), (&json!(0), &json!(talk.queue().newest().unwrap().0)));
}

/// The ids of the events that are still stored.
fn stored(talk: &Talk) -> Vec<i64> {
    talk.events().iter().map(|event| event.id).collect()
}

fn held(talk: &Talk) -> Option<i64> {
    talk.queue().hold("agent").unwrap()
}

/// What the model was asked, with the ids of calls by their order: they are made of ids of events.
fn prompts(talk: &Talk) -> Vec<String> {
    let mut ids: BTreeMap<String, usize> = BTreeMap::new();
    let mut name = |id: &mut Value| {
        let known = ids.len();
        if let Some(text) = id.as_str() {
            *id = (*ids.entry(text.to_owned()).or_insert(known)).into();
        }
    };
    let mut prompts = Vec::new();
    for mut request in requests(talk) {
        for message in request["messages"].as_array_mut().unwrap() {
            if let Some(id) = message.get_mut("tool_call_id") {
                name(id);
            }
            for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
                name(&mut call["id"]);
            }
        }
        prompts.push(request["messages"].to_string());
    }
    prompts
}

/// A conversation of several turns with tools, whose adapter is killed while a call is made, and ends after each run.
/// `between` is called in between, when nothing runs.
fn conversation(between: &dyn Fn(&Talk)) -> Option<Talk> {
    let (talk, _models) = talk_with("script", &["--attempts", "1", "--permit", "allow", "--idle", "0s"])?;
    let first =
        talk.say(&script(&[&[with_text("look", "a"), with_text("note", "b")], &[with_text("look", "c")]]));
    assert_eq!(talk.answer(first), "c", "{}", talk.log());
    between(&talk);
    let slow = call("slow", json!({ "text": "d", "seconds": 600 }));
    let second = talk.say(&script(&[&[with_text("look", "e"), slow], &[with_text("look", "f")]]));
    wait_until("the call that takes long", || made(&talk).contains(&"slow d".to_owned()));
    talk.until("the result of the other", |entries| {
        entries.iter().filter(|(.., entry)| matches!(entry, Entry::ToolResult(_))).nth(3).map(drop)
    });
    kill(&talk, 0);
    wait_until("the run to end", || {
        talk.thread(&["dispatch"]).ok();
        talk.entries().iter().any(|(.., entry)| entry.ends() == Some(second))
    });
    assert_eq!(talk.answer(second), "f", "{}", talk.log());
    between(&talk);
    let third = talk.say(&script(&[&[with_text("look", "g")]]));
    assert_eq!(talk.answer(third), "g", "{}", talk.log());
    between(&talk);
    Some(talk)
}

#[test]
fn retention_takes_nothing_that_the_next_prompt_of_a_model_needs() {
    let Some(left_alone) = conversation(&|_| ()) else { return };
    let kept = conversation(&|talk| {
        talk.thread(&["config", "retention.events", "1"]).ok();
        retain(talk);
    });
    let Some(kept) = kept else { return };
    assert_eq!(prompts(&kept), prompts(&left_alone));
    assert_eq!(prompts(&kept).len(), 8);
    assert_eq!((held(&kept), stored(&kept)[0]), (Some(1), 1));
    // An order by hand neither, but one that names what is to go, or is forced.
    let newest = kept.queue().newest().unwrap().0;
    let error = kept.thread(&["prune", "--keep", "1"]).ends_with(0).1;
    assert!(error.contains("stopped before event 1, which 'agent' needs"), "{error}");
    kept.thread(&["prune", "--keep", "1", "--subtype", "status"]).ok();
    let is_status = |entry: &Entry| matches!(entry, Entry::Status(_));
    assert_eq!(kept.entries().iter().filter(|(.., entry)| is_status(entry)).count(), 1);
    kept.thread(&["config", "--unset", "hold.agent"]).ok();
    retain(&kept);
    assert_eq!(stored(&kept), [newest], "nothing else had kept them");
}

#[test]
fn what_a_summary_covers_is_taken() {
    let long = "many words ".repeat(60);
    let say = |talk: &Talk, n: u64| {
        let id = talk.say(&format!("{n}: {long}"));
        assert!(talk.answer(id).contains(&format!("{n}: ")), "{}", talk.log());
    };
    let talks = [false, true].map(|takes| {
        let (talk, models) = talk_with("echo", &["--context", "2048", "--idle", "0s"])?;
        for n in 0..8 {
            say(&talk, n);
            if takes {
                talk.thread(&["config", "retention.events", "1"]).ok();
                retain(&talk);
            }
        }
        Some((talk, models))
    });
    let [Some((left_alone, _)), Some((kept, _models))] = talks else { return };
    assert_eq!(prompts(&kept), prompts(&left_alone));
    let first = held(&kept).unwrap();
    assert_eq!(stored(&kept)[0], first);
    assert!(first > 1, "{:?}", stored(&kept));
    // What was said before it is cleared, once another message was answered.
    kept.thread(&["push", "--source", ADA, "--type", "record", "--subtype", "clear", "--content", ""]).ok();
    let cleared = kept.queue().newest().unwrap().0;
    let id = kept.say("again");
    assert_eq!(kept.answer(id), "again");
    retain(&kept);
    assert_eq!((held(&kept), stored(&kept)[0]), (Some(cleared), cleared));
}

#[test]
fn the_hold_is_there_from_the_beginning_and_goes_with_the_agent() {
    let Some((talk, models)) = talk_with("echo", &[]) else { return };
    assert_eq!(held(&talk), Some(1));
    // A conversation from before there were holds.
    talk.queue().set_hold("agent", None).unwrap();
    let id = talk.say("hello");
    assert_eq!((talk.answer(id), held(&talk)), ("hello".to_owned(), Some(1)));
    // One that refuses to come changes nothing.
    talk.thread(&["agent", "install", "--", "cat"]).fails(1);
    assert_eq!(held(&talk), Some(1));
    talk.thread(&["agent", "install", "--replace", "--", "cat"]).ok();
    assert_eq!(held(&talk), None, "a program does not remember by the thread");
    let options = ["--protocol", "openai", "--url", &models.url, "--model", "echo"];
    talk.thread(&[&["agent", "install", "--replace"], &options[..]].concat()).ok();
    assert_eq!(held(&talk), Some(1));
    talk.thread(&["unsubscribe", "agent"]).ok();
    assert_eq!(held(&talk), None);
}
