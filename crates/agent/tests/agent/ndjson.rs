//! Persistent programs that speak lines of JSON.

use thread_conversation::Entry;

use crate::harness::{ADA, Talk, fixture};

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

#[test]
fn a_program_is_kept_also_after_a_run_that_took_longer_than_idle() {
    let script =
        r#"while read x; do sleep ${pause-3.2}; pause=0; echo '{"event":"final","content":"'$$'"}'; done"#;
    let talk = Talk::with(&["--protocol", "ndjson", "--idle", "3s"], &["sh", "-c", script]);
    let long = talk.say("long");
    let program = talk.answer(long);
    let next = talk.say("next");
    assert_eq!(talk.answer(next), program);
}

#[test]
fn what_another_program_stores_is_answered_too() {
    let talk = Talk::with(&["--protocol", "ndjson"], &[&fixture()]);
    let first = talk.say("hello");
    assert_eq!(talk.answer(first), "1. you said: hello");
    let insert = "import sqlite3\n\
        with sqlite3.connect('events.db') as db:\n    \
        db.execute(\"INSERT INTO events (source, type, content) VALUES ('other', 'message', 'again')\")\n    \
        print(db.execute('SELECT max(id) FROM events').fetchone()[0])";
    talk.write("insert.py", insert);
    let inserted = talk.sh("cd \"$THREAD_DIR\" && python3 \"$OLDPWD\"/insert.py").ok();
    assert_eq!(talk.answer(inserted.trim().parse().unwrap()), "2. you said: again");
    assert_eq!(talk.is_settled(), Ok(()));
}

/// Sends twenty messages to a program whose process ends once and is killed once on the way. Returns the
/// answer to the last.
fn count_to_twenty(option: &str) -> String {
    let talk = Talk::with(&["--protocol", "ndjson", "--idle", "1s"], &[&fixture(), option]);
    let mut answer = String::new();
    for n in 1..=20 {
        let id = talk.say("x");
        answer = talk.answer(id);
        if n == 6 {
            talk.until_idle();
        }
        if n == 12 {
            for pid in talk.processes() {
                // It may have ended by itself: on a busy machine, a second passes between two messages.
                talk.sh(&format!("kill -9 {pid} || true")).ok();
            }
        }
    }
    assert_eq!(talk.is_settled(), Ok(()));
    answer
}

#[test]
fn its_memory_outlives_its_process_by_the_transcript() {
    assert_eq!(count_to_twenty("--remember"), "20. you said: x");
    assert_ne!(count_to_twenty("--forgetful"), "20. you said: x", "the check can fail");
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
fn what_comes_before_another_event_is_stored_before_it() {
    let script = r#"read x; for n in a b c; do for t in 1 2; do echo '{"event":"token","content":"'$n$t'"}'; done
        echo '{"event":"tool_call","call_id":"'$n'"}'; echo '{"event":"tool_result","call_id":"'$n'"}'; done
        until [ -e go ]; do sleep 0.01; done; echo '{"event":"final"}'; read x"#;
    let talk = Talk::with(&["--protocol", "ndjson"], &["sh", "-c", script]);
    let id = talk.say("x");
    let last = |(.., entry): &(i64, Option<String>, Entry)| matches!(entry, Entry::ToolResult(result) if result.call_id == "c");
    talk.until("no result", |entries| entries.iter().any(last).then_some(()));
    let mut order = String::new();
    for (.., entry) in talk.entries() {
        match entry {
            Entry::Token { text, .. } => order += &text,
            Entry::ToolCall(call) => order += &format!("({})", call.call_id),
            _ => {}
        }
    }
    assert_eq!(order, "a1a2(a)b1b2(b)c1c2(c)");
    talk.write("go", "");
    assert_eq!(talk.answer(id), "a1a2b1b2c1c2");
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
fn a_long_error_is_short_for_clients_and_whole_in_the_log() {
    let script = r#"read x; printf '{"event":"error","error":"it'; head -c 5000 /dev/zero | tr '\0' x; echo ' ends"}'"#;
    let talk = Talk::with(&["--protocol", "ndjson"], &["sh", "-c", script]);
    let id = talk.say("x");
    let Entry::Error { error, .. } = talk.ending(id) else { panic!() };
    assert_eq!(error, format!("it{}…", "x".repeat(998)));
    assert!(talk.log().contains(&format!("it{} ends", "x".repeat(5000))));
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

/// Says `final` twice to the message `twice`, and something after a message `late`, once a file exists. Its answers
/// name the message and its own process.
const STRAYS: &str = r#"n=0; while IFS= read -r x; do
    text=${x#*'"content":"'}; text=${text%%'"'*}
    said="{\"event\":\"final\",\"content\":\"$text by $$\"}"
    case $text in twice) printf '%s\n%s\n' "$said" "$said";; *) printf '%s\n' "$said";; esac
    case $text in late) (until [ -e go ]; do sleep 0.01; done; echo '{"event":"token","content":"stray"}'; touch gone) & ;; esac
done"#;

#[test]
fn an_answer_never_reaches_the_wrong_message() {
    let talk = Talk::with(&["--protocol", "ndjson"], &["sh", "-c", STRAYS]);
    let mut programs = Vec::new();
    for text in ["one", "twice", "three", "four", "late", "six"] {
        if text == "six" {
            talk.write("go", "");
            talk.until("it does not stray", |_| talk.path("gone").exists().then_some(()));
        }
        let id = talk.say(text);
        let answer = talk.answer(id);
        let (said, program) = answer.split_once(" by ").unwrap();
        assert_eq!(said, text, "{}", talk.log());
        programs.push(program.to_owned());
    }
    // A program that has strayed is ended before the next message; until then its process is kept.
    assert_eq!(programs[0], programs[1]);
    assert_eq!(programs[2..5], [&*programs[2], &*programs[2], &*programs[2]]);
    programs.dedup();
    assert_eq!(programs.len(), 3, "{programs:?}");
    assert_eq!(talk.is_settled(), Ok(()));
}

#[test]
fn a_line_that_names_an_earlier_run_is_dropped_and_disturbs_nothing() {
    let script = r#"while IFS= read -r x; do run=${x#*'"run_id":"'}; run=${run%%'"'*}
        printf '{"event":"final","content":"%s","run_id":"%s"}\n' $run $run
        printf '{"event":"final","content":"again","run_id":"%s"}\n' $run; done"#;
    let talk = Talk::with(&["--protocol", "ndjson"], &["sh", "-c", script]);
    let first = talk.say("x");
    assert_eq!(talk.answer(first), format!("run_{first}"));
    let program = talk.processes();
    let second = talk.say("x");
    assert_eq!(talk.answer(second), format!("run_{second}"));
    assert_eq!(talk.processes(), program);
}

#[test]
fn a_result_of_more_than_a_mebibyte_is_cut() {
    let script = r#"read x; echo '{"event":"tool_call","call_id":"c","name":"t"}'
        printf '{"event":"tool_result","call_id":"c","result":"'; head -c 3000000 /dev/zero | tr '\0' x; echo '"}'
        echo '{"event":"final","content":"done"}'; read x"#;
    let talk = Talk::with(&["--protocol", "ndjson"], &["sh", "-c", script]);
    let id = talk.say("x");
    assert_eq!(talk.answer(id), "done");
    let kept = crate::sub_agents::results(&talk).remove(0).unwrap();
    assert_eq!(kept, format!("{}\n[cut: 3000000 bytes in all]", "x".repeat(1024 * 1024)));
}

#[test]
fn a_run_stores_so_many_bytes_and_no_more() {
    let thinks = r#"yes '{"event":"thinking","content":"0123456789012345678901234567890123456789"}'"#;
    let results = r#"seq 1000 | while read n; do printf '{"event":"tool_result","call_id":"%s","result":"' $n
        head -c 100000 /dev/zero | tr '\0' x; echo '"}'; done; sleep 1000"#;
    for script in [thinks, results] {
        let options = ["--protocol", "ndjson", "--max-output", "1MiB"];
        let talk = Talk::with(&options, &["sh", "-c", script]);
        let id = talk.say("x");
        let Entry::Error { error, retryable: false, .. } = talk.ending(id) else { panic!() };
        assert_eq!(error, "the agent program wrote more than 1048576 bytes or 100000 events for one message");
        let stored: usize = talk.events().iter().map(|event| event.content.len()).sum();
        assert!((900_000..1_100_000).contains(&stored), "{stored}");
        assert_eq!(talk.is_settled(), Ok(()));
        assert_eq!(talk.processes(), Vec::<u32>::new());
    }
}

#[test]
fn a_run_stores_so_many_events_and_no_more() {
    let changes = r#"yes '{"event":"status","content":"streaming"}
{"event":"status","content":"thinking"}'"#;
    let talk = Talk::with(&["--protocol", "ndjson"], &["sh", "-c", changes]);
    talk.say("x");
    // Waits without reading all events again and again.
    let error = "thread peek --last-event-id 0 --wait 2m --filter \"subtype = 'error'\"";
    assert!(talk.sh(error).ok().contains("100000 events for one message"), "{}", talk.log());
    let events = talk.events().len();
    assert!((99_990..=100_010).contains(&events), "{events}");
}

#[test]
fn a_clients_tools_reach_the_program_and_the_result_of_a_call_comes_as_a_line() {
    let script = r#"read x; echo "$x" >given; echo '{"event":"tool_call","call_id":"c1","name":"color"}'
        read x; echo "$x" >heard; echo '{"event":"final","content":"thanks"}'; read x"#;
    let talk = Talk::with(&["--protocol", "ndjson"], &["sh", "-c", script]);
    let tools = r#"{"run_input":{"tools":[{"name":"color"}],"forwarded_props":{"a":1}}}"#;
    let id = talk.say_with("x", tools);
    let call = talk.until("no call", |entries| {
        entries.iter().find(|(.., entry)| matches!(entry, Entry::ToolCall(_))).map(|(id, ..)| *id)
    });
    let metadata = format!(r#"{{"run_id":"run_{id}","attempt":1,"client":"test"}}"#);
    talk.thread(&[
        "push",
        "--source",
        "self",
        "--type",
        "record",
        "--subtype",
        "toolresult",
        "--metadata",
        &metadata,
        "--idempotency-key",
        "result:c1",
        "--content",
        r#"{"call_id":"c1","name":"color","result":"blue"}"#,
    ])
    .ok();
    assert_eq!(talk.answer(id), "thanks");
    let line = |name: &str| serde_json::from_str::<serde_json::Value>(&talk.read(name)).unwrap();
    let given = line("given");
    assert_eq!((&given["tools"][0]["name"], &given["forwarded_props"]["a"]), (&"color".into(), &1.into()));
    assert!(given["metadata"].get("run_input").is_none(), "{given}");
    let heard = line("heard");
    assert_eq!((&heard["event"], &heard["result"]), (&"tool_result".into(), &"blue".into()));
    assert!(call > id);
}

#[test]
fn a_call_of_a_clients_tool_gets_an_error_when_another_message_comes() {
    let script = r#"read x; echo '{"event":"tool_call","call_id":"c1","name":"color"}'
        read x; echo "$x" >heard; echo '{"event":"final"}'; read x; echo '{"event":"final","content":"next"}'; read x"#;
    let talk = Talk::with(&["--protocol", "ndjson"], &["sh", "-c", script]);
    talk.say_with("x", r#"{"run_input":{"tools":[{"name":"color"}]}}"#);
    let called = |(.., entry): &(i64, Option<String>, Entry)| matches!(entry, Entry::ToolCall(_));
    talk.until("no call", |entries| entries.iter().any(called).then_some(()));
    talk.say_with("a pulse", r#"{"priority":"later"}"#);
    let next = talk.say("go on");
    assert_eq!(talk.answer(next), "next");
    assert!(talk.read("heard").contains("the user went on without it"), "{}", talk.read("heard"));
}

#[test]
fn a_line_has_metadata_only_if_the_message_has() {
    let script =
        r#"while read -r x; do printf '%s\n' "$x" >> lines; echo '{"event":"final","content":"done"}'; done"#;
    let talk = Talk::with(&["--protocol", "ndjson"], &["sh", "-c", script]);
    let without = talk.thread(&["push", "--source", ADA, "--content", "plain"]).ok().trim().parse().unwrap();
    assert_eq!(talk.answer(without), "done");
    let with = talk.say_with("more", r#"{"a":1}"#);
    assert_eq!(talk.answer(with), "done");
    let lines = talk.read("lines");
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines[0].get("metadata"), &lines[1]["metadata"]), (None, &serde_json::json!({ "a": 1 })));
}

#[test]
fn a_result_without_a_name_has_that_of_its_call_or_none() {
    let script = r#"read x; echo '{"event":"tool_call","call_id":"c","name":"find"}'
        echo '{"event":"tool_result","call_id":"c","result":1}'; echo '{"event":"tool_result","call_id":"d","result":2}'
        echo '{"event":"final","content":"done"}'; read x"#;
    let talk = Talk::with(&["--protocol", "ndjson", "--idle", "1s"], &["sh", "-c", script]);
    let id = talk.say("x");
    assert_eq!(talk.answer(id), "done");
    let results = talk.events().into_iter().filter(|event| event.subtype.as_deref() == Some("toolresult"));
    let results: Vec<serde_json::Value> =
        results.map(|event| serde_json::from_str(&event.content).unwrap()).collect();
    let expected = [
        serde_json::json!({ "call_id": "c", "name": "find", "result": 1 }),
        serde_json::json!({ "call_id": "d", "result": 2 }),
    ];
    assert_eq!(results, expected);
}
