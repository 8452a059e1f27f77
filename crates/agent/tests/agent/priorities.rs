//! The order of messages by priority, and cancels.

use std::time::{Duration, Instant};

use thread_conversation::Entry;

use crate::harness::Talk;

/// Works until a signal ends it.
const LISTENS: &str = "read x; case $x in long*) echo begun; sleep 1000 & wait;; *) echo \"$x\";; esac";
/// Continues to work, whatever signal it gets except KILL.
const IGNORES: &str = "trap '' INT TERM; read x; case $x in long*) echo begun; while :; do sleep 1; done;; *) echo \"$x\";; esac";

fn order(talk: &Talk) -> Vec<i64> {
    let started = |(.., entry): (i64, Option<String>, Entry)| match entry {
        Entry::RunStarted { reply_to, .. } => reply_to,
        _ => None,
    };
    talk.entries().into_iter().filter_map(started).collect()
}

fn cancelled(talk: &Talk, id: i64) -> String {
    match talk.ending(id) {
        Entry::Cancelled { why, .. } => why,
        other => panic!("{other:?}\n{}", talk.log()),
    }
}

/// Waits until the program of a run has printed something.
fn printed(talk: &Talk, id: i64) {
    let run = format!("run_{id}");
    talk.until("it printed nothing", |_| (!talk.tokens(&run).is_empty()).then_some(()));
}

#[test]
fn next_comes_in_order_and_later_when_nothing_else_is_there() {
    let program = "read x; until [ -e go ]; do sleep 0.01; done; echo $x";
    let talk = Talk::with(&["--idle", "0s"], &["sh", "-c", program]);
    let first = talk.say("first");
    talk.begun(first);
    let later = talk.say_with("later", r#"{"priority":"later"}"#);
    let next = talk.say("next");
    let odd = talk.say_with("odd", r#"{"priority":"whenever"}"#);
    talk.write("go", "");
    talk.answer(later);
    assert_eq!(order(&talk), [first, next, odd, later]);
    talk.until_idle();
    assert_eq!(talk.cursor(), odd.max(later));
}

#[test]
fn now_interrupts_at_once_a_program_that_listens() {
    let talk = Talk::with(&[], &["sh", "-c", LISTENS]);
    let long = talk.say("long");
    printed(&talk, long);
    let waiting = talk.say("waiting");
    let began = Instant::now();
    let now = talk.say_with("now", r#"{"priority":"now"}"#);
    assert_eq!(cancelled(&talk, long), format!("interrupted by event {now} from {}", crate::harness::ADA));
    eprintln!("interrupted after {:?}", began.elapsed());
    assert_eq!(talk.answer(now), "now\n");
    assert_eq!(talk.answer(waiting), "waiting\n");
    assert_eq!(order(&talk), [long, now, waiting]);
    assert_eq!(talk.is_settled(), Ok(()));
}

#[test]
fn now_interrupts_within_seconds_a_program_that_ignores_everything() {
    let talk = Talk::with(&[], &["sh", "-c", IGNORES]);
    let long = talk.say("long");
    printed(&talk, long);
    let began = Instant::now();
    let now = talk.say_with("now", r#"{"priority":"now"}"#);
    assert!(cancelled(&talk, long).starts_with("interrupted by "));
    let took = began.elapsed();
    // An idle machine takes less than five seconds; a busy one may take longer.
    assert!(took >= Duration::from_millis(4500), "it had its time: {took:?}");
    eprintln!("interrupted after {took:?}");
    assert_eq!(talk.answer(now), "now\n");
}

#[test]
fn an_interrupted_run_with_resume_is_tried_again_after_now() {
    let script =
        "read x; if [ $x = long ] && mkdir once 2>/dev/null; then echo begun; sleep 1000 & wait; fi; echo $x";
    let talk = Talk::with(&[], &["sh", "-c", script]);
    let long = talk.say_with("long", r#"{"resume":true,"priority":"later"}"#);
    printed(&talk, long);
    let next = talk.say("next");
    let now = talk.say_with("now", r#"{"priority":"now"}"#);
    assert_eq!(talk.answer(long), "long\n");
    assert_eq!(talk.answer(next), "next\n");
    assert_eq!(order(&talk), [long, now, long, next]);
    let interrupted = |entry: &Entry| matches!(entry, Entry::Error { retryable: true, interrupted_by, .. } if *interrupted_by == Some(now));
    assert!(talk.entries().iter().any(|(.., entry)| interrupted(entry)));
}

#[test]
fn a_cancel_ends_the_run_under_way_and_leaves_the_queue() {
    let talk = Talk::with(&[], &["sh", "-c", LISTENS]);
    let long = talk.say("long");
    printed(&talk, long);
    let next = talk.say("next");
    talk.cancel(&format!("run_{long}"));
    assert_eq!(cancelled(&talk, long), format!("cancelled by {}: enough", crate::harness::ADA));
    assert_eq!(talk.answer(next), "next\n");
    assert!(talk.processes().is_empty());
}

#[test]
fn a_cancel_keeps_a_queued_run_from_starting_and_ignores_a_finished_one() {
    let talk = Talk::with(&["--idle", "0s"], &["sh", "-c", LISTENS]);
    let over = talk.say("over");
    assert_eq!(talk.answer(over), "over\n");
    let long = talk.say("long");
    printed(&talk, long);
    let queued = talk.say_with("queued", r#"{"run_id":"q"}"#);
    talk.cancel("q");
    let last = talk.cancel(&format!("run_{over}"));
    assert!(cancelled(&talk, queued).starts_with("cancelled by "));
    talk.cancel(&format!("run_{long}"));
    cancelled(&talk, long);
    talk.until_idle();
    assert_eq!(order(&talk), [over, long]);
    assert_eq!(talk.is_settled(), Ok(()));
    assert!(talk.cursor() >= last);
}

#[test]
fn now_and_cancel_end_a_run_that_waits_for_its_next_attempt() {
    let script = "read x; case $x in bad) exit 1;; *) echo $x;; esac";
    let talk = Talk::with(&["--attempts", "9"], &["sh", "-c", script]);
    let bad = talk.say("bad");
    let failed = |n| {
        talk.until("it did not fail", |entries| {
            let failed = |entry: &Entry| matches!(entry, Entry::Error { retryable: true, .. });
            (entries.iter().filter(|(.., entry)| failed(entry)).count() >= n).then_some(())
        });
    };
    failed(2);
    let now = talk.say_with("now", r#"{"priority":"now"}"#);
    assert!(cancelled(&talk, bad).starts_with("interrupted by "));
    assert_eq!(talk.answer(now), "now\n");
    let bad = talk.say("bad");
    failed(4);
    talk.cancel(&format!("run_{bad}"));
    assert!(cancelled(&talk, bad).starts_with("cancelled by "));
}

#[test]
fn stopping_the_consumer_ends_the_program_and_says_so() {
    let talk = Talk::with(&[], &["sh", "-c", IGNORES]);
    let long = talk.say("long");
    printed(&talk, long);
    talk.thread(&["stop", "--consumer", "agent"]).ok();
    assert!(talk.processes().is_empty());
    let stopped = |entry: &Entry| matches!(entry, Entry::Error { error, retryable: true, .. } if error == "the agent was stopped");
    assert!(talk.entries().iter().any(|(.., entry)| stopped(entry)), "{}", talk.log());
}
