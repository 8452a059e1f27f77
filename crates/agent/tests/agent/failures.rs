//! What happens when a process dies. Each test kills one kind of process for real.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use thread_agent::processes::Mark;
use thread_conversation::Entry;
use thread_testkit::PATIENCE;

use crate::harness::Talk;
use crate::sub_agents::{WORKS, at_work, nothing_is_left_running, parent, results};

/// How often each test is repeated.
pub fn times() -> usize {
    if thread_testkit::long() { 50 } else { 3 }
}

/// Kills these processes; panics if there are none.
#[track_caller]
fn kill(pids: impl IntoIterator<Item = u32>) {
    let killed = pids
        .into_iter()
        .filter(|pid| Pid::from_raw(*pid as i32).is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok()));
    assert!(killed.count() > 0, "there was nothing to kill");
}

/// Kills the agent program of a thread and everything it has started.
#[track_caller]
fn kill_marked(dir: &Path) {
    kill(Mark::thread(dir).processes());
}

/// Kills the processes of a thread whose command line contains `words`.
#[track_caller]
pub fn kill_with(talk: &Talk, dir: &Path, words: &str) {
    let told = format!("THREAD_DIR={}", dir.display());
    let is_of = |pid: u32, line: &str| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        line.split('\0').any(|word| Path::new(word) == dir)
            || environment.split(|&b| b == 0).any(|given| given == told.as_bytes())
    };
    let everything = talk.everything().into_iter();
    kill(everything.filter(|(pid, line)| line.contains(words) && is_of(*pid, line)).map(|(pid, _)| pid));
}

/// Text that only the command line of an adapter contains.
const ADAPTER: &str = "/thread-agent\0--protocol";
/// Text that only the command line of a supervisor contains.
const SUPERVISOR: &str = "\0_supervise\0";

/// Waits until `is_so` returns true.
fn until(what: &str, talk: &Talk, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what}\n{}", talk.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits for the ending of a message. Dispatches again and again, as later pushes would.
fn ending_by_dispatch(talk: &Talk, id: i64) -> Entry {
    talk.until("it is not answered", |entries| {
        let ended = entries.iter().find(|(.., entry)| entry.ends() == Some(id));
        if ended.is_none() {
            talk.thread(&["dispatch"]).ok();
        }
        ended.map(|(.., entry)| entry.clone())
    })
}

/// How many attempts a message has had.
fn attempts(talk: &Talk, id: i64) -> usize {
    let begins = |entry: &Entry| matches!(entry, Entry::RunStarted { reply_to, .. } if *reply_to == Some(id));
    talk.entries().iter().filter(|(.., entry)| begins(entry)).count()
}

/// A persistent agent whose tool is a process: it answers with the tool's exit code.
const WITH_TOOL: &str = r#"while IFS= read -r x; do
    echo '{"event":"tool_call","call_id":"c","name":"work"}'
    sh -c 'echo $$ >tool.new; mv tool.new tool; exec sleep 1000' 2>/dev/null
    rc=$?
    echo "{\"event\":\"tool_result\",\"call_id\":\"c\",\"error\":\"exit code $rc\"}"
    echo "{\"event\":\"final\",\"content\":\"the tool ended with $rc\"}"
done"#;

#[test]
fn a_tool_whose_process_dies_is_an_error_and_the_run_continues() {
    let talk = Talk::with(&["--protocol", "ndjson"], &["sh", "-c", WITH_TOOL]);
    for round in 0..times() {
        let id = talk.say("hello");
        until("the tool does not begin", &talk, || !talk.read("tool").is_empty());
        let pid = talk.read("tool").trim().parse().unwrap();
        std::fs::remove_file(talk.path("tool")).unwrap();
        kill([pid]);
        assert_eq!(talk.answer(id), "the tool ended with 137", "round {round}");
        assert_eq!(attempts(&talk, id), 1, "round {round}");
    }
    assert_eq!(results(&talk), vec![Err("exit code 137".to_owned()); times()]);
    assert_eq!(talk.is_settled(), Ok(()));
    nothing_is_left_running(&talk);
}

#[test]
fn a_tool_that_waits_for_a_sub_agent_and_dies_is_an_error_and_the_run_continues() {
    for round in 0..times() {
        let talk = parent(WORKS);
        let id = talk.say("hello");
        at_work(&talk);
        kill_with(&talk, &talk.dir(), "agent\0run\0");
        assert_eq!(talk.answer(id), "no answer\n", "round {round}");
        assert_eq!(attempts(&talk, id), 1, "round {round}");
        assert_eq!(talk.is_settled(), Ok(()), "round {round}");
        nothing_is_left_running(&talk);
    }
}

/// Kills a process of a sub-agent; its call must fail and its parent must continue.
fn a_dead_sub_agent_is_an_error(kill: impl Fn(&Talk, &Path)) {
    for round in 0..times() {
        let talk = parent(WORKS);
        let id = talk.say("hello");
        let dir = at_work(&talk);
        kill(&talk, &dir);
        assert_eq!(talk.answer(id), "no answer\n", "round {round}");
        let results = results(&talk);
        assert!(matches!(&results[..], [Err(_)]), "round {round}: {results:?}");
        assert_eq!(attempts(&talk, id), 1, "round {round}");
        assert_eq!(talk.is_settled(), Ok(()), "round {round}");
        nothing_is_left_running(&talk);
    }
}

#[test]
fn a_sub_agent_whose_program_dies_is_an_error_and_the_parent_continues() {
    a_dead_sub_agent_is_an_error(|_, dir| kill_marked(dir));
}

#[test]
fn a_sub_agent_whose_adapter_dies_is_an_error_and_the_parent_continues() {
    a_dead_sub_agent_is_an_error(|talk, dir| kill_with(talk, dir, ADAPTER));
}

/// Kills a process of an agent that waits for a sub-agent: the call must be closed, the sub-agent ended, and the next
/// attempt must answer.
fn a_dead_agent_is_tried_again(kill: impl Fn(&Talk)) {
    for round in 0..times() {
        let talk = Talk::new();
        let sub = talk.write_script("sub.sh", WORKS);
        let script = format!(
            "read x; if mkdir once 2>/dev/null; then echo $x | thread agent run -- sh {sub}; else echo again; fi"
        );
        talk.install(&[], &["sh", "-c", &script]);
        let id = talk.say("hello");
        let dir = at_work(&talk);
        kill(&talk);
        let ending = ending_by_dispatch(&talk, id);
        assert!(
            matches!(&ending, Entry::Answer { answer, .. } if answer.content == "again\n"),
            "round {round}: {ending:?}\n{}",
            talk.log()
        );
        assert_eq!(attempts(&talk, id), 2, "round {round}");
        assert!(matches!(&results(&talk)[..], [Err(_)]), "round {round}: {:?}", results(&talk));
        assert_eq!(talk.is_settled(), Ok(()), "round {round}");
        until("the sub-agent works on", &talk, || Mark::thread(&dir).processes().is_empty());
        nothing_is_left_running(&talk);
    }
}

#[test]
fn an_agent_program_that_dies_is_tried_again() {
    a_dead_agent_is_tried_again(|talk| kill_marked(talk.queue().path()));
}

#[test]
fn an_adapter_that_dies_is_followed_by_another() {
    a_dead_agent_is_tried_again(|talk| kill_with(talk, &talk.dir(), ADAPTER));
}

#[test]
fn an_attempt_of_a_killed_adapter_counts_and_what_it_said_is_kept() {
    let script = "read x; echo said $$; sleep 1000";
    let talk = Talk::with(&["--attempts", "2"], &["sh", "-c", script]);
    let id = talk.say("hello");
    let run = format!("run_{id}");
    for attempt in 1..=2 {
        talk.until("it says nothing", |_| (talk.tokens(&run).len() == attempt).then_some(()));
        kill_with(&talk, &talk.dir(), ADAPTER);
    }
    let Entry::Error { error, retryable: false, partial, .. } = ending_by_dispatch(&talk, id) else {
        panic!()
    };
    assert_eq!(error, "the adapter was killed or the agent program failed in each of 2 attempts");
    assert_eq!(partial, talk.tokens(&run).pop());
    assert_eq!(attempts(&talk, id), 2);
    assert_eq!(talk.is_settled(), Ok(()));
    nothing_is_left_running(&talk);
}

#[test]
fn an_adapter_and_its_supervisor_that_die_are_followed_by_the_next_dispatch() {
    a_dead_agent_is_tried_again(|talk| {
        kill_with(talk, &talk.dir(), SUPERVISOR);
        kill_with(talk, &talk.dir(), ADAPTER);
    });
}

#[test]
fn a_supervisor_that_dies_disturbs_no_run_and_the_next_push_starts_another() {
    for round in 0..times() {
        let script =
            "read x; case $x in long) echo begun; until [ -e go ]; do sleep 0.02; done;; esac; echo $x";
        let talk = Talk::with(&["--idle", "0s"], &["sh", "-c", script]);
        let long = talk.say("long");
        let run = format!("run_{long}");
        talk.until("it says nothing", |_| (!talk.tokens(&run).is_empty()).then_some(()));
        kill_with(&talk, &talk.dir(), SUPERVISOR);
        let during = talk.say("during");
        talk.write("go", "");
        assert_eq!(talk.answer(long), "begun\nlong\n", "round {round}");
        assert_eq!(talk.answer(during), "during\n", "round {round}");
        // No supervisor is left, so the end of the handler's run is not recorded.
        until("the adapter stays", &talk, || talk.everything().is_empty());
        // An exiting process is no longer found, but closes its files a moment later.
        let lock = std::fs::File::open(talk.dir().join("run/agent.lock")).unwrap();
        until("its lock is held", &talk, || lock.try_lock().is_ok());
        drop(lock);
        let after = talk.say("after");
        assert_eq!(talk.answer(after), "after\n", "round {round}");
        assert_eq!([long, during, after].map(|id| attempts(&talk, id)), [1; 3], "round {round}");
        talk.until_idle();
        assert_eq!(talk.cursor(), after, "round {round}");
        assert_eq!(talk.is_settled(), Ok(()), "round {round}");
        nothing_is_left_running(&talk);
    }
}

#[test]
fn killing_all_processes_of_one_session_does_not_affect_another() {
    // Both wait for a sub-agent.
    let sub = "read x; echo begun; until [ -e go ]; do sleep 0.02; done; echo $x";
    for round in 0..times() {
        let [mut dies, mut lives] = [parent(sub), parent(sub)];
        if round % 2 == 1 {
            std::mem::swap(&mut dies, &mut lives);
        }
        let (lost, kept) = (dies.say("lost"), lives.say("kept"));
        at_work(&dies);
        at_work(&lives);
        // The adapters of the agent and of its sub-agent, and the tool between them.
        let adapters = || -> Vec<u32> {
            let is_one = |line: &str| line.contains(ADAPTER) || line.contains("agent\0run\0");
            lives.everything().into_iter().filter(|(_, line)| is_one(line)).map(|(pid, _)| pid).collect()
        };
        let before = adapters();
        until("they live on", &dies, || {
            let everything = dies.everything();
            everything.iter().for_each(|(pid, _)| {
                Pid::from_raw(*pid as i32).and_then(|pid| kill_process(pid, Signal::KILL).ok());
            });
            everything.is_empty()
        });
        assert_eq!((adapters(), before.len()), (before, 3), "round {round}");
        lives.write("go", "");
        assert_eq!(lives.answer(kept), "begun\nkept\n", "round {round}");
        assert_eq!(
            (attempts(&lives, kept), results(&lives)),
            (1, vec![Ok("begun\nkept\n".to_owned())]),
            "round {round}"
        );
        assert_eq!(lives.is_settled(), Ok(()), "round {round}");
        // The killed session has lost nothing either.
        dies.write("go", "");
        let ending = ending_by_dispatch(&dies, lost);
        assert!(
            matches!(&ending, Entry::Answer { answer, .. } if answer.content == "begun\nlost\n"),
            "round {round}: {ending:?}"
        );
        assert_eq!(attempts(&dies, lost), 2, "round {round}");
        assert_eq!(dies.is_settled(), Ok(()), "round {round}");
        nothing_is_left_running(&dies);
        nothing_is_left_running(&lives);
    }
}
