//! Programs that are run once for each message.

use thread_conversation::{Entry, Record};
use thread_testkit::wait_until;

use crate::harness::{Talk, lacks};

#[test]
fn what_a_shell_pipeline_prints_is_the_answer() {
    let talk = Talk::with(&["--idle", "0s"], &["sh", "-c", "tr a-z A-Z | sed 's/^/> /'"]);
    let first = talk.say("hello");
    let second = talk.say(r#"[{"type":"text","text":"in"},{"type":"text","text":"parts"}]"#);
    assert_eq!(talk.answer(first), "> HELLO");
    assert_eq!(talk.answer(second), "> IN\n> PARTS");
    talk.until_idle();
    assert_eq!(talk.is_settled(), Ok(()));
    assert_eq!(talk.cursor(), second);
}

#[test]
fn python_and_node_are_streamed_as_they_print() {
    let python = "import os,sys,time\nprint(sys.stdin.read(), flush=True)\n\
                  while not os.path.exists('go'): time.sleep(0.01)\nprint('gone')";
    let node = "process.stdin.on('data',d=>console.log(''+d));const look=()=>\
                require('fs').existsSync('go')?console.log('gone'):setTimeout(look,10);look()";
    for (program, option, script) in [("python3", "-c", python), ("node", "-e", node)] {
        if lacks(program) {
            continue;
        }
        let talk = Talk::with(&[], &[program, option, script]);
        let id = talk.say("hello");
        let run = format!("run_{id}");
        talk.until("nothing is streamed", |_| (talk.tokens(&run).concat() == "hello\n").then_some(()));
        talk.write("go", "");
        assert_eq!(talk.answer(id), "hello\ngone\n");
        assert_eq!(talk.tokens(&run).concat(), "hello\ngone\n");
    }
}

#[test]
fn what_is_printed_within_20_milliseconds_is_one_token() {
    let script =
        "echo 0; until [ -e go ]; do sleep 0.01; done; for n in $(seq 200); do echo $n; sleep 0.002; done";
    let talk = Talk::with(&[], &["sh", "-c", script]);
    let id = talk.say("x");
    let run = format!("run_{id}");
    talk.until("the first is not stored at once", |_| (talk.tokens(&run) == ["0\n"]).then_some(()));
    talk.write("go", "");
    let answer = talk.answer(id);
    let events = talk.events();
    let tokens: Vec<_> = events.iter().filter(|event| event.subtype.as_deref() == Some("token")).collect();
    assert_eq!(tokens.iter().map(|token| &*token.content).collect::<String>(), answer);
    let time = |at: usize| thread::model::time::parse(&tokens[at].created_at).unwrap();
    // The rest at the end is stored without a wait. Times are rounded to milliseconds.
    let gaps: Vec<i64> =
        (2..tokens.len()).map(|at| (time(at - 1) - time(at - 2)).num_milliseconds()).collect();
    assert!(gaps.len() > 5 && gaps.iter().all(|gap| *gap >= 19), "{gaps:?}");
    // Stored batches have no line in `thread.log`: the events themselves are the record.
    assert!(!talk.log().contains("push batch"), "{}", talk.log());
}

#[test]
fn no_token_is_longer_than_256_kib() {
    let talk = Talk::with(&[], &["sh", "-c", "yes é | head -c 6000000 | tr -d '\\n'"]);
    let id = talk.say("x");
    let answer = talk.answer(id);
    assert_eq!(answer, "é".repeat(2_000_000));
    let tokens = talk.tokens(&format!("run_{id}"));
    assert_eq!(tokens.concat(), answer);
    let longest = tokens.iter().map(String::len).max();
    assert!(longest <= Some(256 * 1024) && longest > Some(100_000), "{longest:?}");
}

#[test]
fn a_character_that_comes_in_two_reads_is_whole() {
    let talk = Talk::with(
        &[],
        &["sh", "-c", r"printf 'a\342\202'; until [ -e go ]; do sleep 0.01; done; printf '\254b\377'"],
    );
    let id = talk.say("x");
    let run = format!("run_{id}");
    talk.until("nothing is streamed", |_| (!talk.tokens(&run).is_empty()).then_some(()));
    talk.write("go", "");
    assert_eq!(talk.answer(id), "a€b\u{fffd}");
    assert_eq!(talk.tokens(&run), ["a", "€b\u{fffd}"]);
}

#[test]
fn the_program_gets_its_environment_but_no_secrets_and_no_lock() {
    let talk = Talk::new();
    let keys = talk.write("keys.env", "# for the agent\nexport API_KEY='a b'\n");
    let script = "echo $THREAD_DIR $THREAD_RUN_ID $THREAD_EVENT_ID $API_KEY $THREAD_TOKEN; ls -l /proc/self/fd | \
                  grep -c run/agent.lock";
    let program = ["sh", "-c", script];
    talk.install(&["--env-file", &keys], &program);
    assert!(!talk.thread(&["info"]).ok().contains("a b"), "secrets are not written into the thread");
    std::fs::write(&keys, "API_KEY=new").unwrap();
    let words = ["push", "--source", "x", "--type", "message", "--content", "hi", "--meta", "run_id=mine"];
    talk.run_with_token(&words);
    let dir = talk.queue().path().display().to_string();
    // The consumer's lock is not among its descriptors, so grep counts none and fails the pipeline.
    let error = talk.until("no error", |entries| {
        entries.iter().find_map(|(_, run, entry)| match entry {
            Entry::Error { error, .. } => Some((run.clone(), error.clone())),
            _ => None,
        })
    });
    assert_eq!(error, (Some("mine".into()), "the agent program ended with exit code 1".into()));
    assert_eq!(talk.tokens("mine")[0].lines().next(), Some(format!("{dir} mine 1 new").as_str()));
}

#[test]
fn a_failure_is_tried_again_and_then_final_and_its_stderr_is_in_the_log() {
    let talk = Talk::with(
        &["--attempts", "2"],
        &["sh", "-c", "echo part; echo broken by $THREAD_RUN_ID >&2; exit 3"],
    );
    let id = talk.say("x");
    let Entry::Error { error, retryable, .. } = talk.ending(id) else { panic!() };
    assert_eq!((error.as_str(), retryable), ("the agent program ended with exit code 3", false));
    assert_eq!(talk.read("talk/logs/handlers/agent.log").matches("broken by run_1").count(), 2);
    let attempts: Vec<u64> = talk
        .entries()
        .iter()
        .filter_map(|(.., entry)| match entry {
            Entry::RunStarted { attempt, .. } => Some(*attempt),
            _ => None,
        })
        .collect();
    assert_eq!(attempts, [1, 2]);
    assert_eq!(talk.is_settled(), Ok(()));
}

#[test]
fn partial_output_of_a_failed_or_cancelled_run_is_kept_with_its_ending() {
    let talk = Talk::with(
        &["--attempts", "2"],
        &["sh", "-c", "read x; echo $x $$; case $x in wait) sleep 1000;; esac; exit 3"],
    );
    let said_last = |run_id: &str| talk.tokens(run_id).pop();
    let failed = talk.say("fail");
    let Entry::Error { partial, .. } = talk.ending(failed) else { panic!() };
    assert_eq!(
        (talk.tokens(&format!("run_{failed}")).len(), partial),
        (2, said_last(&format!("run_{failed}")))
    );
    let long = talk.say("wait");
    let run = format!("run_{long}");
    talk.until("it says nothing", |_| said_last(&run));
    talk.cancel(&run);
    let Entry::Cancelled { partial, .. } = talk.ending(long) else { panic!() };
    assert_eq!(partial, said_last(&run));
}

#[test]
fn every_event_of_an_attempt_says_which_one_it_is() {
    let talk = Talk::with(&["--attempts", "2"], &["sh", "-c", "echo part; exit 3"]);
    let id = talk.say("x");
    talk.ending(id);
    let told: Vec<(String, u64)> = talk
        .events()
        .into_iter()
        .filter(|event| event.id != id)
        .map(|event| (event.subtype.clone().unwrap(), Record::of(event).attempt))
        .collect();
    let attempt =
        |number| ["run", "status", "status", "token", "error"].map(|what| (what.to_owned(), number));
    assert_eq!(told, [attempt(1), attempt(2)].concat());
}

#[test]
fn a_message_that_somebody_else_acknowledges_is_not_run() {
    let talk = Talk::with(&[], &["sh", "-c", "read x; until [ -e go ]; do sleep 0.01; done; echo $x"]);
    let (first, second) = (talk.say("first"), talk.say("second"));
    talk.begun(first);
    talk.thread(&["ack", "--consumer", "agent", "--event-id", &second.to_string()]).ok();
    let third = talk.say("third");
    talk.write("go", "");
    assert_eq!([talk.answer(first), talk.answer(third)], ["first\n", "third\n"]);
    assert!(talk.entries().iter().all(|(.., entry)| entry.ends() != Some(second)), "{}", talk.log());
}

#[test]
fn a_program_that_is_missing_is_a_final_error_at_once() {
    let talk = Talk::with(&[], &["/nowhere/agent"]);
    let (first, second) = (talk.say("x"), talk.say("y"));
    for id in [first, second] {
        let Entry::Error { error, retryable: false, .. } = talk.ending(id) else { panic!() };
        assert!(error.starts_with("the agent program '/nowhere/agent' cannot be run: "), "{error}");
    }
    let begun = talk.entries().iter().filter(|(.., e)| matches!(e, Entry::RunStarted { .. })).count();
    assert_eq!(begun, 2);
}

#[test]
fn an_answer_of_more_than_16_mib_is_an_error_and_a_gigabyte_is_not_waited_for() {
    let talk = Talk::with(&[], &["sh", "-c", "head -c 1073741824 /dev/zero | tr '\\0' x; sleep 1000"]);
    let id = talk.say("x");
    let Entry::Error { error, retryable: false, .. } = talk.ending(id) else { panic!() };
    assert_eq!(error, "the answer is longer than 16 MiB");
    assert!(talk.processes().is_empty());
}

#[test]
fn invalid_utf8_in_output_becomes_replacement_characters() {
    let talk = Talk::with(&[], &["sh", "-c", r"printf 'a\000\377\376z'"]);
    let id = talk.say("x");
    assert_eq!(talk.answer(id), "a\0\u{fffd}\u{fffd}z");
}

#[test]
fn a_program_that_never_answers_is_ended_and_tried_again() {
    let talk = Talk::with(&["--quiet", "300ms", "--attempts", "1"], &["sleep", "1000"]);
    let id = talk.say("x");
    let Entry::Error { error, .. } = talk.ending(id) else { panic!() };
    assert_eq!(error, "the agent program printed nothing for 300ms");
    assert!(talk.processes().is_empty());
}

#[test]
fn a_flood_of_stderr_fills_neither_log_nor_memory() {
    let flood = "head -c 100000000 /dev/zero | tr '\\0' e >&2; echo done";
    let talk = Talk::with(&[], &["sh", "-c", flood]);
    let id = talk.say("x");
    assert_eq!(talk.answer(id), "done\n");
    let log = std::fs::metadata(talk.path("talk/logs/handlers/agent.log")).unwrap().len();
    assert!(log < 1_000_000, "{log}");
}

#[test]
fn background_processes_of_a_program_delay_nothing() {
    let talk = Talk::with(&["--idle", "0s"], &["sh", "-c", "sleep 1000 & echo started"]);
    let id = talk.say("x");
    assert_eq!(talk.answer(id), "started\n");
    let next = talk.say("y");
    assert_eq!(talk.answer(next), "started\n");
    talk.until_idle();
}

#[test]
fn a_message_that_has_its_ending_is_not_answered_again() {
    let talk = Talk::with(&["--idle", "0s"], &["cat"]);
    let ids: Vec<i64> = (0..3).map(|n| talk.say(&n.to_string())).collect();
    ids.iter().for_each(|id| drop(talk.answer(*id)));
    talk.until_idle();
    let before = talk.events().len();
    talk.thread(&["seek", "--consumer", "agent", "--to", "earliest"]).ok();
    wait_until("the cursor to move", || talk.cursor() == ids[2]);
    assert_eq!(talk.events().len(), before);
    let last = talk.say("last");
    assert_eq!(talk.answer(last), "last");
    talk.until_idle();
    assert_eq!(talk.is_settled(), Ok(()));
    let more: Vec<_> = talk.entries().split_off(before);
    assert!(more.iter().all(|(_, run, _)| run.as_ref() == Some(&format!("run_{last}"))), "{more:?}");
}

#[test]
fn the_adapter_ends_when_nothing_is_left_to_do_and_misses_no_message() {
    let talk = Talk::with(&[], &["cat"]);
    for n in 0..50 {
        // Each message comes while the adapter of the previous one is ending.
        let id = talk.say(&n.to_string());
        assert_eq!(talk.answer(id), n.to_string());
    }
    talk.until_idle();
    // The consumer is idle a moment before its supervisor has ended.
    wait_until("all processes to end", || talk.everything().is_empty());
}

#[test]
fn other_consumers_are_woken_by_what_the_agent_says() {
    let talk = Talk::with(&[], &["cat"]);
    let filter = "type = 'message' AND source = 'self'";
    let words =
        ["subscribe", "--consumer", "out", "--deliver", "stdin", "--handler", "cat >>out", "--filter"];
    talk.thread(&[&words[..], &[filter]].concat()).ok();
    let id = talk.say("hello");
    talk.answer(id);
    wait_until("the event", || talk.read("out").contains("\"content\":\"hello\""));
}

#[test]
fn an_answer_that_somebody_else_pushes_does_not_end_the_run() {
    let talk = Talk::new();
    let forge =
        "thread push --source self --type message --content theirs --meta reply_to=1 --meta run_id=run_1";
    let agent = talk.write("agent.sh", &format!("read x; {forge} >/dev/null; echo mine"));
    talk.install(&[], &["sh", &agent]);
    assert_eq!(talk.say("hello"), 1);
    assert_eq!(talk.answer(1), "theirs");
    talk.until_idle();
    let answers = talk.entries().into_iter().filter_map(|(.., entry)| match entry {
        Entry::Answer { answer, reply_to: Some(1), .. } => Some(answer.content),
        _ => None,
    });
    assert_eq!(answers.collect::<Vec<_>>(), ["theirs", "mine\n"]);
    assert_eq!(talk.cursor(), 1);
}

#[test]
fn a_program_sees_the_message_alone_unless_it_is_given_the_transcript() {
    let talk = Talk::with(&[], &["cat"]);
    for text in ["one", "two"] {
        let id = talk.say(text);
        assert_eq!(talk.answer(id), text);
    }
    talk.thread(&["unsubscribe", "--consumer", "agent"]).ok();
    talk.install(&["--transcript=3"], &["cat"]);
    let id = talk.say("three");
    let so_far = "[assistant]\none\n\n[user]\ntwo\n\n[assistant]\ntwo\n";
    let whole = |so_far: &str, next: &str| {
        format!(
            "The conversation so far, from an earlier session:\n\n{so_far}\nThe next message follows.\n\n{next}"
        )
    };
    assert_eq!(talk.answer(id), whole(so_far, "three"));
    talk.thread(&["unsubscribe", "--consumer", "agent"]).ok();
    talk.install(&["--transcript"], &["sh", "-c", "wc -l"]);
    let id = talk.say("four");
    let lines = whole(
        &format!("[user]\none\n\n{so_far}\n[user]\nthree\n\n[assistant]\n{}\n", whole(so_far, "three")),
        "four",
    );
    assert_eq!(talk.answer(id).trim(), lines.matches('\n').count().to_string());
}

#[test]
fn a_program_that_is_kept_running_needs_no_transcript() {
    let talk = Talk::new();
    let words = ["agent", "install", "--protocol", "ndjson", "--transcript", "--", "cat"];
    assert!(talk.thread(&words).fails(2).contains("leave out --transcript"));
}
