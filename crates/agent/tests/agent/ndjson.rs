//! Persistent programs that speak lines of JSON.

use thread_agent::conversation::Entry;

use crate::harness::{Talk, fixture};

#[test]
fn a_program_keeps_running_and_remembers() {
    let talk = Talk::with(&["--protocol", "ndjson"], &[&fixture(), "README"]);
    talk.write("README", "a lock\nno key\nanother lock\n");
    let (first, second, third) = (talk.say("find lock"), talk.say("hello"), talk.say("who"));
    assert_eq!(talk.answer(first), "1. 2 lines say \"lock\", first README:1: a lock");
    assert_eq!(talk.answer(second), "2. you said: hello");
    assert_eq!(talk.answer(third), "3. ada (3)");
    assert_eq!(talk.processes().len(), 1);
    let entries = talk.entries();
    let called = |(.., entry): &&(i64, Option<String>, Entry)| matches!(entry, Entry::ToolCall(call) if call.name == "find");
    assert_eq!(entries.iter().filter(called).count(), 1);
    assert_eq!(talk.is_settled(), Ok(()));
}

/// Sends a hundred messages to a program whose process ends once and is killed once on the way. Returns the
/// answer to the last.
fn count_to_a_hundred(option: &str) -> String {
    let talk = Talk::with(&["--protocol", "ndjson", "--idle", "1s"], &[&fixture(), option]);
    let mut answer = String::new();
    for n in 1..=100 {
        let id = talk.say("x");
        answer = talk.answer(id);
        if n == 30 {
            talk.until_idle();
        }
        if n == 60 {
            for pid in talk.processes() {
                talk.sh(&format!("kill -9 {pid}")).ok();
            }
        }
    }
    assert_eq!(talk.is_settled(), Ok(()));
    answer
}

#[test]
fn its_memory_outlives_its_process_by_the_transcript() {
    assert_eq!(count_to_a_hundred("--remember"), "100. you said: x");
    assert_ne!(count_to_a_hundred("--forgetful"), "100. you said: x", "the check can fail");
}

#[test]
fn a_program_that_handles_int_keeps_running_after_an_interruption() {
    let talk = Talk::with(&["--protocol", "ndjson"], &[&fixture()]);
    let long = talk.say(&format!("slowly {}", "word ".repeat(1000)));
    let run = format!("run_{long}");
    talk.until("it says nothing", |_| (!talk.tokens(&run).is_empty()).then_some(()));
    let before = talk.processes();
    let now = talk.say_with("hello", r#"{"priority":"now"}"#);
    assert_eq!(talk.answer(now), "2. you said: hello");
    assert!(matches!(talk.ending(long), Entry::Cancelled { .. }));
    assert_eq!(talk.processes(), before);
}

#[test]
fn calls_that_are_open_when_the_program_dies_get_an_error() {
    let script = r#"read x; echo '{"event":"tool_call","call_id":"c","name":"t"}'; kill -9 $$"#;
    let talk = Talk::with(&["--protocol", "ndjson", "--attempts", "2"], &["sh", "-c", script]);
    let id = talk.say("x");
    assert!(matches!(talk.ending(id), Entry::Error { retryable: false, .. }));
    let errors = talk.entries().into_iter().filter_map(|(.., entry)| match entry {
        Entry::ToolResult(result) => result.outcome.err(),
        _ => None,
    });
    let killed = "the agent program was ended by signal 9";
    assert_eq!(errors.collect::<Vec<_>>(), [killed, killed]);
    assert_eq!(talk.is_settled(), Ok(()));
}

#[test]
fn no_result_comes_without_its_call() {
    // The call comes after the interruption, so neither it nor its result is pushed.
    let script = r#"trap 'echo "{\"event\":\"tool_call\",\"call_id\":\"late\"}"
        echo "{\"event\":\"tool_result\",\"call_id\":\"late\"}"; echo "{\"event\":\"error\",\"error\":\"x\"}"' INT
        read x; echo '{"event":"tool_result","call_id":"alone","result":1}'
        while :; do sleep 0.05; done"#;
    let talk = Talk::with(&["--protocol", "ndjson"], &["sh", "-c", script]);
    let id = talk.say("x");
    let told =
        |(.., entry): &(i64, Option<String>, Entry)| matches!(entry, Entry::ToolResult(_)).then_some(());
    talk.until("no result", |entries| entries.iter().find_map(told));
    talk.cancel(&format!("run_{id}"));
    assert!(matches!(talk.ending(id), Entry::Cancelled { .. }));
    assert_eq!(talk.is_settled(), Ok(()));
    assert_eq!(talk.entries().iter().filter_map(told).count(), 1);
}

#[test]
fn a_program_that_speaks_no_json_fails_its_attempts() {
    for script in ["echo hello; sleep 1000", r"printf '\377\000\n'; sleep 1000", "yes x"] {
        let talk = Talk::with(&["--protocol", "ndjson", "--attempts", "1"], &["sh", "-c", script]);
        let id = talk.say("x");
        let Entry::Error { error, .. } = talk.ending(id) else { panic!() };
        assert!(
            error.starts_with("the agent program printed a line that is not part of the protocol"),
            "{error}"
        );
        talk.until("it lives on", |_| talk.processes().is_empty().then_some(()));
    }
}

#[test]
fn of_two_results_of_one_call_the_first_is_stored() {
    let script = r#"read x; echo '{"event":"tool_call","call_id":"c","name":"t"}'
        printf '%s\n' '{"event":"tool_result","call_id":"c","result":1}' '{"event":"tool_result","call_id":"c","result":2}'
        echo '{"event":"final","content":"done"}'; read x"#;
    let talk = Talk::with(&["--protocol", "ndjson", "--idle", "1s"], &["sh", "-c", script]);
    let id = talk.say("x");
    assert_eq!(talk.answer(id), "done");
    let results = talk.entries().into_iter().filter_map(|(.., entry)| match entry {
        Entry::ToolResult(result) => result.outcome.ok(),
        _ => None,
    });
    assert_eq!(results.collect::<Vec<_>>(), [serde_json::json!(1)]);
    assert_eq!(talk.is_settled(), Ok(()));
}

#[test]
fn a_consumer_that_cannot_be_started_does_not_keep_others_from_what_the_agent_says() {
    let script = r#"read x; echo '{"event":"final","content":"done"}'; read x"#;
    let talk = Talk::with(&["--protocol", "ndjson", "--idle", "1s"], &["sh", "-c", script]);
    let said = ["--filter", "source = 'self' AND type = 'message'"];
    talk.sh("mkdir gone").ok();
    talk.thread(&[&["subscribe", "a-broken", "true", "--cwd", "gone"][..], &said].concat()).ok();
    talk.thread(&[&["subscribe", "b-sound", "touch heard"][..], &said].concat()).ok();
    talk.sh("rmdir gone").ok();
    let id = talk.say("x");
    assert_eq!(talk.answer(id), "done");
    talk.until("nobody heard it", |_| talk.path("heard").exists().then_some(()));
}
