//! `thread agent stop`, and processes that are hard to find.

use thread_agent::conversation::Entry;

use crate::failures::{kill_with, times};
use crate::harness::Talk;
use crate::sub_agents::{WORKS, at_work, nothing_is_left_running, parent, results};

#[test]
fn stop_ends_also_processes_that_left_their_session() {
    for _ in 0..times() {
        let leaver = "setsid sh -c 'trap \"\" INT TERM HUP; setsid sleep 1000 & sleep 1000' & ";
        let talk = parent(&format!("{leaver} {WORKS}"));
        let id = talk.say("hello");
        at_work(&talk);
        talk.thread(&["agent", "stop"]).ok();
        let left = talk.everything();
        assert!(left.is_empty(), "{left:?}");
        let stopped = |(.., entry): &(i64, Option<String>, Entry)| {
            matches!(entry, Entry::Error { retryable: true, .. })
        };
        assert!(talk.entries().iter().any(stopped), "event {id}: {}", talk.log());
        assert_eq!(results(&talk).len(), 1);
        assert_eq!(talk.thread(&["agent", "stop"]).code, 0, "twice is no error");
    }
}

/// Starts a process that leaves its session and clears its environment. A file is named after its pid.
const HIDES: &str = "mkdir -p hidden; env -i PATH=$PATH setsid sh -c 'trap \"\" INT TERM HUP; echo $$ >hidden/$$; exec sleep 1000' & \
                     until [ -e hidden/$! ]; do sleep 0.01; done; ";

/// The pids of those that still run.
fn hidden(talk: &Talk) -> Vec<String> {
    let files = std::fs::read_dir(talk.path("hidden")).into_iter().flatten().flatten();
    let pids = files.map(|file| file.file_name().into_string().unwrap());
    let lives =
        |pid: &String| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty());
    pids.filter(lives).collect()
}

#[test]
fn stop_ends_also_processes_that_cleared_their_environment() {
    // Left in the background by an agent, by a sub-agent, and by a run that is over.
    let talk = Talk::new();
    let sub = talk.write("sub.sh", &format!("{HIDES} {WORKS}"));
    let script = format!("read x; {HIDES} case $x in work) echo task | thread agent run -- sh {sub};; esac");
    talk.install(&[], &["sh", "-c", &script]);
    let over = talk.say("over");
    assert_eq!(talk.answer(over), "");
    assert_eq!(hidden(&talk).len(), 1, "what a run leaves in the background is left alone");
    talk.say("work");
    at_work(&talk);
    assert_eq!(hidden(&talk).len(), 3);
    talk.thread(&["agent", "stop"]).ok();
    assert_eq!((hidden(&talk), talk.everything()), (Vec::new(), Vec::new()));
}

#[test]
fn hidden_processes_of_a_failed_attempt_are_killed_and_those_of_an_answered_one_are_not() {
    for options in [&[][..], &["--protocol", "ndjson"]] {
        let talk = Talk::new();
        let done = match options {
            [] => "echo done",
            _ => r#"echo '{"event":"final","content":"done"}'"#,
        };
        let script =
            format!("while read x; do {HIDES} case $x in *fails*) break;; esac; {done}; done; exit 1");
        let once = format!("read x; {HIDES} case $x in *fails*) exit 1;; esac; {done}");
        let script = if options.is_empty() { once } else { script };
        talk.install(&[options, &["--attempts", "1"]].concat(), &["sh", "-c", &script]);
        let first = talk.say("works");
        assert_eq!(talk.answer(first).trim(), "done");
        let left = hidden(&talk);
        assert_eq!(left.len(), 1);
        let second = talk.say("fails");
        assert!(matches!(talk.ending(second), Entry::Error { .. }));
        // What a persistent program has started is ended with it.
        assert_eq!(hidden(&talk), if options.is_empty() { left } else { Vec::new() });
        talk.thread(&["agent", "stop"]).ok();
        assert_eq!(hidden(&talk), Vec::<String>::new());
    }
}

#[test]
fn the_next_adapter_kills_hidden_processes_of_a_killed_one() {
    let talk = Talk::new();
    let script = format!(
        "read x; if mkdir once 2>/dev/null; then {HIDES} echo begun; sleep 1000; else ls hidden | wc -l; fi"
    );
    talk.install(&[], &["sh", "-c", &script]);
    let id = talk.say("x");
    let run = format!("run_{id}");
    talk.until("it says nothing", |_| (!talk.tokens(&run).is_empty()).then_some(()));
    assert_eq!(hidden(&talk).len(), 1);
    kill_with(&talk, &talk.dir(), "/thread-agent\0--protocol");
    assert_eq!(talk.answer(id).trim(), "1");
    assert_eq!(hidden(&talk), Vec::<String>::new());
    nothing_is_left_running(&talk);
}

#[test]
fn stop_ends_also_agents_that_are_started_again_meanwhile() {
    for _ in 0..times() {
        let talk = Talk::new();
        // Each sub-agent's report is a message that starts the next sub-agent.
        let script = "read x; case $THREAD_DIR in */agents/*) echo again;; *) echo $x | thread agent run --background;; esac";
        talk.install(&["--idle", "0s"], &["sh", "-c", script]);
        talk.say("hello");
        talk.until("no report", |entries| {
            let reports = |entry: &Entry| matches!(entry, Entry::Message(said) if said.content == "again\n");
            (entries.iter().filter(|(.., entry)| reports(entry)).count() > 1).then_some(())
        });
        talk.thread(&["agent", "stop"]).ok();
        assert_eq!(talk.everything(), Vec::new());
    }
}
