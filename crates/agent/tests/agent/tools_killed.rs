//! A conversation of 20 calls in which the adapter, the process that asks the model, or the server of tools is killed at
//! every event.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use thread_conversation::Entry;

use crate::harness::Talk;
use crate::tools::{call, calls, install, made, permissions, permit, results, script, talk_with, with_text};

/// Kills processes of the agent: the adapter, the process that asks the model, or the servers of tools.
pub fn kill(talk: &Talk, which: usize) {
    let is_one = |line: &str| {
        let is_adapter = line.contains("/thread-agent\0");
        match which {
            0 => is_adapter,
            1 => is_adapter && !line.contains("\0_model\0"),
            2 => line.contains("\0_model\0"),
            _ => line.contains("tools.py\0"),
        }
    };
    for (pid, _) in talk.everything().iter().filter(|(_, line)| is_one(line)) {
        thread_testkit::kill(*pid);
    }
}

#[test]
fn a_kill_at_any_event_makes_no_call_twice() {
    // 20 calls in 6 turns: alone, parallel, some that ask, some that may not be made twice.
    let named = |tool: &str, n: usize| with_text(tool, &format!("{tool}{n}"));
    let slow = |n: usize| call("slow", json!({ "text": format!("slow{n}"), "seconds": 0.05 }));
    let turns: Vec<Vec<Value>> = vec![
        vec![named("look", 1)],
        vec![named("note", 2), named("look", 3), slow(4), named("put", 5)],
        vec![named("note", 6)],
        vec![slow(7), slow(8), named("look", 9), named("note", 10), named("put", 11), named("look", 12)],
        vec![named("put", 13), slow(14)],
        vec![
            named("look", 15),
            named("look", 16),
            named("note", 17),
            slow(18),
            named("put", 19),
            named("fail", 20),
        ],
    ];
    let message = script(&turns.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let Some((first, models)) = talk_with("script", &["--attempts", "1"]) else { return };
    // How many events a run has that is left alone.
    let run = |talk: &Talk, kill_at: Option<(usize, usize)>| {
        let id = talk.say(&message);
        let mut killed = false;
        let (mut answered, mut queue) = (Vec::new(), talk.queue());
        let end = Instant::now() + Duration::from_secs(180);
        loop {
            let newest = queue.newest().unwrap();
            if let Some((_, which)) = kill_at.filter(|(at, _)| !killed && newest.0 >= *at as i64) {
                kill(talk, which);
                killed = true;
            }
            for asked in permissions(talk) {
                if !answered.contains(&asked.request_id) {
                    permit(talk, &asked.request_id, "allow");
                    answered.push(asked.request_id);
                }
            }
            if talk.entries().iter().any(|(.., entry)| entry.ends() == Some(id)) {
                break;
            }
            assert!(Instant::now() < end, "{kill_at:?}: {:#?}\n{}", talk.entries(), talk.log());
            if killed {
                // As cron does. Without it, the supervisor waits before it starts another adapter.
                talk.thread(&["dispatch"]).ok();
            }
            queue.wait(newest, Duration::from_millis(200)).unwrap();
        }
        check(talk, id, kill_at);
    };
    run(&first, None);
    let events = first.events().len();
    assert_eq!((calls(&first).len(), results(&first).len()), (20, 20), "{}", first.log());
    let long = thread_testkit::long();
    // Every event in the long form; the short one takes a sample that differs in what is killed.
    let step = if long { 1 } else { 9 };
    for (n, at) in (2..events).step_by(step).enumerate() {
        for which in 0..4 {
            if !long && which != n % 4 {
                continue;
            }
            let talk = first.beside(&format!("k{at}-{which}"));
            install(&talk, &models, "script", &["--attempts", "1"]);
            run(&talk, Some((at, which)));
            talk.thread(&["agent", "stop"]).ok();
        }
    }
}

/// Checks that each call that has an answer was made once, and none twice that may not be.
fn check(talk: &Talk, id: i64, kill_at: Option<(usize, usize)>) {
    let context = || format!("{kill_at:?}: {:#?}\n{}", talk.entries(), talk.log());
    assert!(matches!(talk.ending(id), Entry::Answer { .. }), "{}", context());
    assert_eq!(talk.is_settled(), Ok(()), "{}", context());
    let made = made(talk);
    let begun = made.iter().fold(BTreeMap::<&str, usize>::new(), |mut all, line| {
        *all.entry(line).or_default() += 1;
        all
    });
    let results = results(talk);
    assert_eq!(results.len(), 20, "{}", context());
    for call in calls(talk) {
        let text = call.arguments["text"].as_str().unwrap();
        let tool = call.name.trim_start_matches("t__");
        let times = begun.get(format!("{tool} {text}").as_str()).copied().unwrap_or_default();
        let result = results.iter().find(|result| result.call_id == call.call_id).unwrap();
        let may_repeat = ["look", "put", "fail"].contains(&tool);
        match &result.outcome {
            Ok(answer) => {
                assert_eq!(answer, text, "{}", context());
                assert!(
                    times == 1 || may_repeat && times <= 3,
                    "{text} was made {times} times: {}",
                    context()
                );
            }
            Err(error) if tool == "fail" => assert_eq!(error, text),
            Err(error) => {
                assert!(!may_repeat && times <= 1, "{text} was made {times} times: {error} {}", context());
                assert!(error.contains("may have taken effect"), "{error}");
            }
        }
    }
}
