//! `thread agent stop`, and processes that are hard to find.

use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;

use thread_conversation::Entry;

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
        assert!(talk.thread(&["agent", "stop"]).succeeds(), "twice is no error");
    }
}

/// Starts a process that leaves its session and clears its environment. A file is named after its pid.
const HIDES: &str = "mkdir -p hidden; env -i PATH=\"$PATH\" setsid sh -c 'trap \"\" INT TERM HUP; echo $$ >hidden/$$; exec sleep 1000' & \
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
    // Left in the background by an agent and by its sub-agent.
    let talk = Talk::new();
    let sub = talk.write_script("sub.sh", &format!("{HIDES} {WORKS}"));
    let script = format!("read x; {HIDES} echo task | thread agent run -- sh {sub}");
    talk.install(&[], &["sh", "-c", &script]);
    talk.say("work");
    at_work(&talk);
    assert_eq!(hidden(&talk).len(), 2);
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
        assert_eq!(hidden(&talk), if options.is_empty() { left.clone() } else { Vec::new() });
        if options.is_empty() {
            talk.sh(&format!("kill -9 {}", left[0])).ok();
        }
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
fn stop_also_ends_agents_that_are_started_while_it_works() {
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

#[test]
fn no_message_is_started_while_the_consumer_is_paused() {
    for options in [&[][..], &["--protocol", "ndjson"]] {
        let script = match options {
            [] => "read x; until [ -e go ]; do sleep 0.01; done; echo done",
            _ => {
                r#"while read x; do until [ -e go ]; do sleep 0.01; done; echo '{"event":"final","content":"done"}'; done"#
            }
        };
        let talk = Talk::with(options, &["sh", "-c", script]);
        let (first, second) = (talk.say("first"), talk.say("second"));
        talk.begun(first);
        talk.thread(&["pause", "--consumer", "agent"]).ok();
        talk.write("go", "");
        assert_eq!(talk.answer(first).trim(), "done");
        talk.until("the adapter stays", |_| talk.everything().is_empty().then_some(()));
        let of_second = |entries: &[(i64, Option<String>, Entry)]| {
            entries.iter().filter(|(_, run, _)| *run == Some(format!("run_{second}"))).count()
        };
        assert_eq!(of_second(&talk.entries()), 1, "only the message itself");
        talk.thread(&["resume", "--consumer", "agent"]).ok();
        assert_eq!(talk.answer(second).trim(), "done");
    }
}

#[test]
fn stop_waits_for_a_process_that_is_about_to_start_the_agent() {
    let talk = Talk::with(&[], &["sh", "-c", "sleep 1000"]);
    let queue = talk.queue();
    let name = queue.files().consumer_lock(&thread::model::subscription::ConsumerId::stored("agent"));
    // As a push that has not yet started the supervisor.
    let lock = thread::files::lock::Lock::try_take(queue.files(), &name).unwrap().unwrap();
    let id = talk.say("hello");
    let mut stop = talk.command("thread").args(["agent", "stop"]).spawn().unwrap();
    let path = talk.queue().path().join(&name);
    let tries = |pid: u32| {
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.filter_map(|fd| std::fs::read_link(fd.path()).ok()).any(|file| file == path)
    };
    while !tries(stop.id()) {
        assert!(stop.try_wait().unwrap().is_none(), "it returned while the agent was being started");
    }
    // The supervisor gets the lock itself, so that it is never free.
    let passed = lock.file().try_clone().unwrap();
    let fd = passed.as_raw_fd().to_string();
    let mut supervisor = talk.command("thread");
    supervisor.args(["_supervise", "--consumer", "agent", "--lock-fd", &fd, "--thread"]);
    supervisor.arg(talk.queue().path());
    // SAFETY: after the fork, it only makes a system call.
    unsafe {
        supervisor.pre_exec(move || Ok(rustix::io::fcntl_setfd(&passed, rustix::io::FdFlags::empty())?))
    };
    let mut supervisor = supervisor.spawn().unwrap();
    drop(lock);
    assert!(stop.wait().unwrap().success());
    supervisor.wait().unwrap();
    assert_eq!(talk.everything(), Vec::new());
    let ended = talk.entries().iter().any(|(.., entry)| entry.ends() == Some(id));
    assert!(!ended, "its message waits for the next one");
}
