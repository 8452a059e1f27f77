//! Sub-agents: what they do, and what is copied to their parent.

use std::path::PathBuf;
use std::process::Stdio;

use thread_agent::processes::Mark;
use thread_conversation::{Entry, SubAgent};
use thread_testkit::{wait_for, wait_until};

use crate::harness::Talk;

/// A parent whose agent passes its task to a sub-agent, and answers with the sub-agent's answer.
pub fn parent(sub: &str) -> Talk {
    let talk = Talk::new();
    let sub = talk.write_script("sub.sh", sub);
    let script = format!("thread agent run --name helper -- sh {sub} || echo 'no answer'");
    talk.install(&[], &["sh", "-c", &script]);
    talk
}

/// Works until it is ended.
pub const WORKS: &str = "read x; echo begun; sleep 1000";

pub fn subs(talk: &Talk) -> Vec<PathBuf> {
    thread_agent::sub_agent::threads_in(&talk.dir())
}

/// Waits until a sub-agent has printed something, and returns its thread's directory.
pub fn at_work(talk: &Talk) -> PathBuf {
    at_work_beside(talk, 0)
}

/// The same, when `others` sub-agents have printed something before.
fn at_work_beside(talk: &Talk, others: usize) -> PathBuf {
    let begun = |dir: &PathBuf| {
        let log = std::fs::read_to_string(dir.join("events.jsonl")).unwrap_or_default();
        log.contains("\"subtype\":\"token\"")
    };
    wait_for("a sub-agent to work", || subs(talk).into_iter().filter(begun).nth(others))
}

/// The results of calls, in order.
pub fn results(talk: &Talk) -> Vec<Result<String, String>> {
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

#[test]
fn what_a_sub_agent_takes_counts_for_its_parent() {
    let talk = Talk::new();
    let sub = r#"read x; echo '{"event":"final","content":"done","cost":{"amount":0.5,"currency":"USD"}}'"#;
    let sub = talk.write_script("sub.sh", sub);
    let script = format!("thread agent run --protocol ndjson -- sh {sub}");
    talk.install(&["--budget", "0.75"], &["sh", "-c", &script]);
    for text in ["a", "b"] {
        let id = talk.say(text);
        assert_eq!(talk.answer(id), "done\n");
    }
    // It is copied a little later than the answer comes.
    let taken = |talk: &Talk| {
        let records = talk.events().into_iter().map(thread_conversation::Record::of);
        records.map(|record| record.spent.cost.amount).sum::<f64>()
    };
    wait_until("what was taken to be copied", || taken(&talk) >= 1.0);
    let third = talk.say("c");
    let Entry::Error { error, .. } = talk.ending(third) else { panic!() };
    assert!(error.contains("1 USD of 0.75"), "{error}");
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

pub fn nothing_is_left_running(talk: &Talk) {
    talk.thread(&["agent", "stop"]).ok();
    wait_until("all processes to end", || talk.everything().is_empty());
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
    nothing_is_left_running(&talk);
}

#[test]
fn the_program_of_the_parent_is_the_default_and_depth_is_one() {
    let talk = Talk::new();
    // In a sub-agent's thread, which is in the folder of its parent's, the program answers itself.
    let script = "read x; case $THREAD_DIR in */agents/*) \
                  echo deeper | thread agent run 2>&1 | cut -d: -f1-2; echo below;; *) echo $x | thread agent run;; esac";
    talk.install(&[], &["sh", "-c", script]);
    let id = talk.say("hello");
    assert_eq!(
        talk.answer(id),
        "Error: a sub-agent cannot have sub-agents of its own - do the task here, or leave it to the parent\nbelow\n"
    );
    assert_eq!(subs(&talk).len(), 1);
    nothing_is_left_running(&talk);
}

#[test]
fn sub_agents_work_side_by_side() {
    let talk = Talk::new();
    // Each waits for the other, so they would never end if run one after the other.
    let sub = talk.write_script(
        "sub.sh",
        "read me; touch $me; until [ -e a ] && [ -e b ]; do sleep 0.05; done; echo $me",
    );
    let script = format!(
        "(echo a | thread agent run --call ca -- sh {sub}) & echo b | thread agent run --call cb -- sh {sub}; wait"
    );
    talk.install(&[], &["sh", "-c", &script]);
    let id = talk.say("x");
    let mut lines: Vec<String> = talk.answer(id).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["a", "b"]);
    nothing_is_left_running(&talk);
}

#[test]
fn a_background_sub_agent_reports_by_itself() {
    let talk = Talk::new();
    let sub = talk.write_script("sub.sh", "read x; until [ -e go ]; do sleep 0.05; done; echo done: $x");
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
    nothing_is_left_running(&talk);
}

#[test]
fn cancelling_a_run_ends_its_sub_agents() {
    let talk = parent(WORKS);
    let id = talk.say("hello");
    let dir = at_work(&talk);
    talk.cancel(&format!("run_{id}"));
    assert!(matches!(talk.ending(id), Entry::Cancelled { .. }));
    wait_until("the sub-agent to end", || Mark::thread(&dir).processes().is_empty());
    assert_eq!(talk.is_settled(), Ok(()));
    nothing_is_left_running(&talk);
}

#[test]
fn an_answer_ends_sub_agents_still_at_work_but_not_those_in_the_background() {
    for background in ["", "--background"] {
        let talk = Talk::new();
        let sub = talk
            .write_script("sub.sh", "read x; echo begun; until [ -e go ]; do sleep 0.05; done; echo done");
        let script = format!(
            "read x; case $x in begun*) exit;; esac; echo $x | thread agent run {background} -- sh {sub} >/dev/null 2>&1 & \
             until [ -e answer ]; do sleep 0.02; done; echo answer"
        );
        talk.install(&[], &["sh", "-c", &script]);
        let id = talk.say("hello");
        let dir = at_work(&talk);
        talk.write("answer", "");
        assert_eq!(talk.answer(id), "answer\n");
        if background.is_empty() {
            assert_eq!(results(&talk), [Err("the answer came without it".to_owned())]);
            wait_until("the sub-agent to end", || Mark::thread(&dir).processes().is_empty());
            assert_eq!(talk.is_settled(), Ok(()));
        } else {
            talk.write("go", "");
            let reports =
                |entry: &Entry| matches!(entry, Entry::Message(said) if said.content == "begun\ndone\n");
            talk.until("no report", |entries| entries.iter().any(|(.., entry)| reports(entry)).then_some(()));
        }
        nothing_is_left_running(&talk);
    }
}

#[test]
fn a_persistent_program_starts_sub_agents_for_its_current_run() {
    let talk = Talk::new();
    let sub =
        talk.write_script("sub.sh", "read x; case $x in *work*) echo begun; sleep 1000;; *) echo $x;; esac");
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
    nothing_is_left_running(&talk);
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
    nothing_is_left_running(&talk);
}

/// A worker in the foreground, ended with its test.
struct Worker(std::process::Child);

impl Worker {
    fn start(talk: &Talk, words: &[&str]) -> Worker {
        let mut command = talk.command("thread");
        command.args(["dispatch", "--follow"]).args(words).stdout(Stdio::null()).stderr(Stdio::null());
        Worker(command.spawn().unwrap())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[test]
fn a_worker_restarts_a_background_sub_agent_whose_processes_were_all_killed() {
    for by_root in [false, true] {
        let talk = Talk::new();
        let sub = talk.write_script("sub.sh", WORKS);
        let script = format!(
            "read x; case $x in failed*) echo heard;; *) thread agent run --background --name helper -- sh {sub};; esac"
        );
        talk.install(&[], &["sh", "-c", &script]);
        let id = talk.say("hello");
        talk.answer(id);
        at_work(&talk);
        wait_until("all processes to end", || {
            let left = talk.everything();
            left.iter().for_each(|(pid, _)| thread_testkit::kill(*pid));
            left.is_empty()
        });
        let root = talk.path("");
        let _worker = match by_root {
            true => Worker::start(&talk, &["--root", root.to_str().unwrap()]),
            false => Worker::start(&talk, &[]),
        };
        let heard = |entries: &[(i64, Option<String>, Entry)]| -> Vec<i64> {
            let said = entries.iter().filter_map(|(id, _, entry)| match entry {
                Entry::Message(message) if message.content.starts_with("failed: ") => Some(*id),
                _ => None,
            });
            said.collect()
        };
        let told = talk.until("the parent hears nothing", |entries| heard(entries).first().copied());
        assert_eq!(talk.answer(told), "heard\n");
        assert_eq!(heard(&talk.entries()).len(), 1);
        assert_eq!(talk.is_settled(), Ok(()));
    }
}
