//! Sub-agents: what they tell their parent, and what follows when something dies.

use std::path::PathBuf;
use std::process::Stdio;

use thread_agent::conversation::{Entry, SubAgent};

use crate::harness::{PATIENCE, Talk};

/// How often each row of the failure table is tried.
fn times() -> usize {
    match std::env::var("THREAD_FAULTS").as_deref() {
        Ok("long") => 50,
        _ => 2,
    }
}

/// A parent whose agent hands its task to a sub-agent and says what that said.
fn parent(sub: &str) -> Talk {
    let talk = Talk::new();
    let sub = talk.write("sub.sh", sub);
    let script = format!("thread agent run --name helper -- sh {sub} || echo 'no answer'");
    talk.install(&[], &["sh", "-c", &script]);
    talk
}

/// Works until it is ended.
const WORKS: &str = "read x; echo begun; sleep 1000";

fn subs(talk: &Talk) -> Vec<PathBuf> {
    thread_agent::sub_agent::threads_in(&talk.dir())
}

/// Waits for a sub-agent at work; its thread.
fn at_work(talk: &Talk) -> PathBuf {
    at_work_beside(talk, 0)
}

/// The same, beside so many that have done something.
fn at_work_beside(talk: &Talk, others: usize) -> PathBuf {
    let end = std::time::Instant::now() + PATIENCE;
    loop {
        let begun = |dir: &PathBuf| {
            let log = std::fs::read_to_string(dir.join("events.jsonl")).unwrap_or_default();
            log.contains("\"subtype\":\"token\"")
        };
        if let Some(dir) = subs(talk).into_iter().filter(begun).nth(others) {
            return dir;
        }
        assert!(std::time::Instant::now() < end, "no sub-agent works\n{}", talk.log());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// The results of calls, in order.
fn results(talk: &Talk) -> Vec<Result<String, String>> {
    talk.entries()
        .into_iter()
        .filter_map(|(.., entry)| match entry {
            Entry::ToolResult(result) => {
                Some(result.outcome.map(|value| value.as_str().unwrap_or("").to_owned()))
            }
            _ => None,
        })
        .collect()
}

fn told(talk: &Talk) -> Vec<SubAgent> {
    talk.entries()
        .into_iter()
        .filter_map(|(.., entry)| match entry {
            Entry::SubAgent(told) => Some(told),
            _ => None,
        })
        .collect()
}

fn kill_marked(talk: &Talk, dir: &std::path::Path) {
    for pid in thread_agent::marked::Mark::thread(dir).processes() {
        talk.sh(&format!("kill -9 {pid} 2>/dev/null || :")).ok();
    }
}

/// Kills the processes of a thread whose words have this.
fn kill_with(talk: &Talk, dir: &std::path::Path, words: &str) {
    let told = format!("THREAD_DIR={}", dir.display());
    for (pid, line) in talk.everything() {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let is_of = environment.split(|&b| b == 0).any(|given| given == told.as_bytes());
        if (is_of || line.contains(&*dir.to_string_lossy())) && line.contains(words) {
            talk.sh(&format!("kill -9 {pid} 2>/dev/null || :")).ok();
        }
    }
}

fn nothing_lives_on(talk: &Talk) {
    talk.thread(&["agent", "stop"]).ok();
    let end = std::time::Instant::now() + PATIENCE;
    while !talk.everything().is_empty() {
        assert!(std::time::Instant::now() < end, "these live on: {:?}", talk.everything());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn the_answer_of_a_sub_agent_is_the_result_of_the_call() {
    let talk = parent("tr a-z A-Z");
    let id = talk.say("hello");
    assert_eq!(talk.answer(id), "HELLO\n");
    assert_eq!(results(&talk), [Ok("HELLO".to_owned())]);
    talk.until("the ending is not told", |_| {
        told(&talk).iter().any(|told| told.event == "final").then_some(())
    });
    let told = told(&talk);
    let calls: Vec<String> = talk
        .entries()
        .into_iter()
        .filter_map(|(.., entry)| match entry {
            Entry::ToolCall(call) => Some(call.call_id),
            _ => None,
        })
        .collect();
    assert!(told.iter().all(|told| calls == [told.parent_call_id.clone()]));
    assert!(told.iter().all(|told| subs(&talk)[0].ends_with(&told.sub_agent)));
    assert_eq!(talk.is_settled(), Ok(()));
    nothing_lives_on(&talk);
}

#[test]
fn the_program_of_the_parent_is_the_default_and_depth_is_one() {
    let talk = Talk::new();
    // A sub-agent's thread is below another's: there, it answers itself.
    let script = "read x; case $THREAD_DIR in */agents/*) \
                  echo deeper | thread agent run 2>&1 | cut -d: -f1-2; echo below;; *) echo $x | thread agent run;; esac";
    talk.install(&[], &["sh", "-c", script]);
    let id = talk.say("hello");
    assert_eq!(
        talk.answer(id),
        "Error: a sub-agent cannot have sub-agents of its own - do the task here, or leave it to the parent\nbelow\n"
    );
    assert_eq!(subs(&talk).len(), 1);
    nothing_lives_on(&talk);
}

#[test]
fn sub_agents_work_side_by_side() {
    let talk = Talk::new();
    // Each waits for the other, so one after the other would never end.
    let sub =
        talk.write("sub.sh", "read me; touch $me; until [ -e a ] && [ -e b ]; do sleep 0.05; done; echo $me");
    let script = format!(
        "(echo a | thread agent run --call ca -- sh {sub}) & echo b | thread agent run --call cb -- sh {sub}; wait"
    );
    talk.install(&[], &["sh", "-c", &script]);
    let id = talk.say("x");
    let mut lines: Vec<String> = talk.answer(id).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["a", "b"]);
    nothing_lives_on(&talk);
}

#[test]
fn one_in_the_background_reports_by_itself() {
    let talk = Talk::new();
    let sub = talk.write("sub.sh", "read x; until [ -e go ]; do sleep 0.05; done; echo done: $x");
    let script = format!(
        "read x; case $x in done*) echo \"heard $x\";; *) echo $x | thread agent run --background -- sh {sub};; esac"
    );
    talk.install(&[], &["sh", "-c", &script]);
    let id = talk.say("task");
    let sub_id = talk.answer(id);
    talk.write("go", "");
    let report = talk.until("no report", |entries| {
        entries.iter().find_map(|(id, _, entry)| match entry {
            Entry::Message(message) if message.content == "done: task\n" => Some((*id, message.clone())),
            _ => None,
        })
    });
    assert_eq!(report.1.priority.as_str(), "later");
    assert_eq!(report.1.other["sub_agent"], sub_id.trim());
    assert_eq!(talk.answer(report.0), "heard done: task\n");
    assert_eq!(talk.is_settled(), Ok(()));
    nothing_lives_on(&talk);
}

#[test]
fn a_sub_agent_whose_program_or_adapter_dies_is_an_error_and_the_parent_goes_on() {
    for round in 0..times() {
        for victim in ["its program", "its adapter"] {
            let talk = parent(WORKS);
            let id = talk.say("hello");
            let dir = at_work(&talk);
            match victim {
                "its program" => kill_marked(&talk, &dir),
                _ => kill_with(&talk, &dir, "/thread-agent\0--protocol"),
            }
            assert_eq!(talk.answer(id), "no answer\n", "round {round}: {victim}");
            let results = results(&talk);
            assert!(matches!(&results[..], [Err(_)]), "round {round}: {victim}: {results:?}");
            assert_eq!(talk.is_settled(), Ok(()), "round {round}: {victim}");
            nothing_lives_on(&talk);
        }
    }
}

#[test]
fn a_tool_that_dies_is_an_error_of_its_agent_and_the_run_goes_on() {
    for _ in 0..times() {
        let talk = parent(WORKS);
        let id = talk.say("hello");
        at_work(&talk);
        kill_with(&talk, &talk.dir(), "agent\0run\0");
        assert_eq!(talk.answer(id), "no answer\n");
        assert_eq!(talk.is_settled(), Ok(()));
        nothing_lives_on(&talk);
    }
}

#[test]
fn an_agent_or_adapter_that_dies_ends_its_sub_agents_and_is_tried_again() {
    for round in 0..times() {
        for victim in ["the agent", "the adapter", "the supervisor and the adapter"] {
            let talk = Talk::new();
            let sub = talk.write("sub.sh", WORKS);
            let script = format!(
                "read x; if mkdir once 2>/dev/null; then echo $x | thread agent run -- sh {sub}; else echo again; fi"
            );
            talk.install(&[], &["sh", "-c", &script]);
            let id = talk.say("hello");
            let dir = at_work(&talk);
            match victim {
                "the agent" => kill_marked(&talk, talk.queue().path()),
                "the adapter" => kill_with(&talk, &talk.dir(), "/thread-agent\0--protocol"),
                _ => {
                    kill_with(&talk, &talk.dir(), "\0_supervise\0");
                    kill_with(&talk, &talk.dir(), "/thread-agent\0--protocol");
                    talk.thread(&["dispatch"]).ok();
                }
            }
            let answered = talk.until("it is not answered", |entries| {
                let ended = entries.iter().find(|(.., entry)| entry.ends() == Some(id));
                if ended.is_none() {
                    talk.thread(&["dispatch"]).ok();
                }
                ended.map(|(.., entry)| entry.clone())
            });
            assert!(
                matches!(&answered, Entry::Answer { answer, .. } if answer.content == "again\n"),
                "round {round}, {victim}: {answered:?}"
            );
            assert_eq!(talk.is_settled(), Ok(()), "round {round}, {victim}");
            let end = std::time::Instant::now() + PATIENCE;
            while !thread_agent::marked::Mark::thread(&dir).processes().is_empty() {
                assert!(std::time::Instant::now() < end, "round {round}, {victim}: the sub-agent works on");
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            nothing_lives_on(&talk);
        }
    }
}

#[test]
fn cancelling_a_run_ends_its_sub_agents() {
    let talk = parent(WORKS);
    let id = talk.say("hello");
    let dir = at_work(&talk);
    talk.cancel(&format!("run_{id}"));
    assert!(matches!(talk.ending(id), Entry::Cancelled { .. }));
    let end = std::time::Instant::now() + PATIENCE;
    while !thread_agent::marked::Mark::thread(&dir).processes().is_empty() {
        assert!(std::time::Instant::now() < end, "the sub-agent works on");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(talk.is_settled(), Ok(()));
    nothing_lives_on(&talk);
}

#[test]
fn a_program_that_is_kept_has_sub_agents_of_the_run_it_works_on() {
    let talk = Talk::new();
    let sub = talk.write("sub.sh", "read x; case $x in *work*) echo begun; sleep 1000;; *) echo $x;; esac");
    let script = format!(
        "while IFS= read -r x; do echo \"$x\" | sed 's/.*content\":\"//; s/\".*//' | thread agent run -- sh {sub} >/dev/null; \
         echo '{{\"event\":\"final\",\"content\":\"done\"}}'; done"
    );
    talk.install(&["--protocol", "ndjson"], &["sh", "-c", &script]);
    let first = talk.say("hello");
    assert_eq!(talk.answer(first), "done");
    let second = talk.say("work");
    at_work_beside(&talk, 1);
    let run = format!("run_{second}");
    let calls = talk.entries();
    let of_second = |(_, of, entry): &&(i64, Option<String>, Entry)| {
        matches!(entry, Entry::ToolCall(_)) && of.as_deref() == Some(&run)
    };
    assert_eq!(calls.iter().filter(of_second).count(), 1);
    talk.cancel(&run);
    assert!(matches!(talk.ending(second), Entry::Cancelled { .. }));
    assert_eq!(talk.is_settled(), Ok(()));
    nothing_lives_on(&talk);
}

#[test]
fn stop_leaves_no_process_also_of_those_that_left_their_session() {
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

/// Leaves its session and forgets who it is, with the number of its process in a file.
const HIDES: &str = "mkdir -p hidden; env -i PATH=$PATH setsid sh -c 'trap \"\" INT TERM HUP; echo $$ >hidden/$$; exec sleep 1000' & \
                     until [ -e hidden/$! ]; do sleep 0.01; done; ";

/// Those that hide and still run.
fn hidden(talk: &Talk) -> Vec<String> {
    let files = std::fs::read_dir(talk.path("hidden")).into_iter().flatten().flatten();
    let pids = files.map(|file| file.file_name().into_string().unwrap());
    let lives =
        |pid: &String| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty());
    pids.filter(lives).collect()
}

#[test]
fn stop_finds_also_what_hides() {
    // In the background of an agent, of a sub-agent, and of a run that is over.
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
fn what_a_failed_attempt_hides_is_ended_and_what_an_answer_leaves_is_not() {
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
        // All that a program which is kept has started belongs to it.
        assert_eq!(hidden(&talk), if options.is_empty() { left } else { Vec::new() });
        talk.thread(&["agent", "stop"]).ok();
        assert_eq!(hidden(&talk), Vec::<String>::new());
    }
}

#[test]
fn what_a_killed_adapter_leaves_hidden_is_ended_by_the_next() {
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
    nothing_lives_on(&talk);
}

#[test]
fn a_sub_agent_that_nobody_waits_for_any_more_is_cancelled() {
    let talk = Talk::with(&[], &["cat"]);
    let sub = talk.write("sub.sh", WORKS);
    let mut command = talk.command("thread");
    command.args(["agent", "run", "--", "sh", &sub]).stdin(Stdio::null()).stdout(Stdio::null());
    let mut waits = command.stderr(Stdio::null()).spawn().unwrap();
    at_work(&talk);
    talk.sh(&format!("kill -INT {}", waits.id())).ok();
    assert_eq!(waits.wait().unwrap().code(), Some(130));
    talk.until("no result", |_| (!results(&talk).is_empty()).then_some(()));
    nothing_lives_on(&talk);
}
