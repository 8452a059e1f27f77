//! Long-lived agents: one process that receives many events.

use std::path::Path;

use serde_json::Value;
use thread_testkit::{World, quoted, skipped, wait_until};

/// An agent that logs its pid and each event's id, and acknowledges the event.
const AGENT: &str = "echo begin $$ >>agent.log
while IFS= read -r event; do
    id=${event#*:}
    id=${id%%,*}
    echo \"$id $$\" >>agent.log
    thread ack --event-id \"$id\" >/dev/null
done
echo end $$ >>agent.log";

fn agent(world: &World, script: &str, handler: &str, options: &[&str]) {
    world.script("agent.sh", script);
    world.thread(["subscribe", "--consumer", "bot", "--handler", handler].iter().chain(options)).quiet();
}

/// The first word of each line in the agents' log, and the pids of the agents that started.
fn notes(world: &World) -> (Vec<String>, Vec<String>) {
    let lines = world.lines("agent.log");
    let words = |line: &String| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let firsts = lines.iter().map(|line| words(line)[0].clone()).collect();
    let begun = lines.iter().filter(|line| line.starts_with("begin")).map(|line| words(line)[1].clone());
    (firsts, begun.collect())
}

fn wait_for_notes(world: &World, expected: &[&str]) {
    wait_until(&format!("the notes {expected:?}"), || notes(world).0.len() >= expected.len());
    assert_eq!(notes(world).0, expected);
}

#[test]
fn one_agent_lives_across_many_events_and_the_next_push_starts_another() {
    let world = World::with_thread();
    agent(&world, AGENT, "thread pop --resume --follow --wait 4s | ./agent.sh", &[]);
    let mut expected = vec!["begin".to_owned()];
    for id in 1..=5 {
        world.push("x");
        expected.push(id.to_string());
        wait_until("the event to be noted", || notes(&world).0.len() >= expected.len());
        assert_eq!(notes(&world).0, expected, "fed each as it comes");
        wait_until("the cursor to follow", || world.consumer("bot")["last_acked_id"] == id);
    }
    assert_eq!(world.consumer("bot")["state"], "running");
    assert_eq!(notes(&world).1.len(), 1);
    world.wait_until_quiet();
    assert_eq!(world.consumer("bot")["state"], "idle");
    world.push("x");
    expected.extend(["end", "begin", "6"].map(str::to_owned));
    wait_until("another agent", || notes(&world).0.len() >= expected.len());
    assert_eq!(notes(&world).0, expected);
    let pids = notes(&world).1;
    assert_ne!(pids[0], pids[1]);
    assert!(world.log().iter().any(|line| line.contains("ended exit=0") && line.contains("acked=5")));
}

#[test]
fn what_a_living_agent_did_not_acknowledge_is_given_again_in_order() {
    let world = World::with_thread();
    let line = "{\"source\":\"self\",\"type\":\"record\",\"content\":\"x\"}\n";
    world.thread(["push", "--batch"]).stdin(line.repeat(4)).quiet();
    let script = format!(
        "if [ ! -e second ]; then
    echo begin $$ >>agent.log
    touch second
    for n in 1 2 3; do IFS= read -r event; id=${{event#*:}}; echo \"${{id%%,*}} $$\" >>agent.log; done
    thread ack --event-id 1
    exit
fi
{AGENT}"
    );
    // The agent exits while the `pop` that feeds it would wait for an hour.
    agent(&world, &script, "thread pop --resume --follow --wait 1h | ./agent.sh", &[]);
    wait_for_notes(&world, &["begin", "1", "2", "3", "begin", "2", "3", "4"]);
    wait_until("all to be acknowledged", || world.consumer("bot")["last_acked_id"] == 4);
    world.thread(["stop", "--consumer", "bot"]).quiet();
}

#[test]
fn a_long_lived_agent_that_is_stopped_is_not_started_again() {
    let world = World::with_thread();
    agent(&world, AGENT, "thread pop --resume --follow | ./agent.sh", &[]);
    world.push("x");
    wait_until("the cursor to follow", || world.consumer("bot")["last_acked_id"] == 1);
    world.thread(["stop", "--consumer", "bot"]).quiet();
    world.wait_until_quiet();
    // Nothing was pending when it was stopped, so the next event starts it again.
    world.push("x");
    wait_for_notes(&world, &["begin", "1", "begin", "2"]);
    world.thread(["pause", "--consumer", "bot"]).quiet();
    assert_eq!(world.consumer("bot")["state"], "running", "a pause lets a run go on");
    world.thread(["stop", "--consumer", "bot"]).quiet();
    world.wait_until_quiet();
    world.push("x");
    world.wait_until_quiet();
    wait_for_notes(&world, &["begin", "1", "begin", "2"]);
}

#[test]
fn a_living_agent_is_ended_by_the_time_limit() {
    let world = World::with_thread();
    agent(&world, AGENT, "thread pop --resume --follow | ./agent.sh", &["--timeout", "1s"]);
    world.push("x");
    wait_until("the time limit", || world.log().iter().any(|line| line.contains("timed out")));
    world.wait_until_quiet();
    assert_eq!(world.consumer("bot")["last_acked_id"], 1);
    assert_eq!(world.consumer("bot")["state"], "idle");
}

#[test]
fn a_living_agent_that_crashes_does_not_leave_its_feeder_behind() {
    let world = World::with_thread();
    let script = "echo begin $$ >>agent.log
IFS= read -r event
[ -e second ] || { touch second; kill -9 $$; }
id=${event#*:}
echo \"${id%%,*} $$\" >>agent.log
thread ack --event-id \"${id%%,*}\" >/dev/null";
    let handler = "thread pop --resume --follow --wait 1h | ./agent.sh";
    agent(&world, script, handler, &["--backoff", "50ms"]);
    world.push("x");
    wait_for_notes(&world, &["begin", "begin", "1"]);
    world.wait_until_quiet();
    assert_eq!(world.consumer("bot")["last_acked_id"], 1);
    assert!(world.log().iter().any(|line| line.contains("ended exit=137")));
}

/// Connects a thread to a program that answers each input line with one output line.
const TALK: &str = "mkfifo questions.$$ answers.$$
eval \"$1\" <questions.$$ >answers.$$ &
exec 3>questions.$$ 4<answers.$$
rm questions.$$ answers.$$
while IFS= read -r event; do
    id=${event#*:}
    id=${id%%,*}
    question=${event#*'\"content\":\"'}
    printf '%s\\n' \"${question%%\\\"*}\" >&3
    IFS= read -r answer <&4
    thread push --source self --type record --content \"$answer\" --meta reply_to=\"$id\" >/dev/null
    thread ack --event-id \"$id\" >/dev/null
done";

/// Pushes a question and waits for the answer.
fn ask(world: &World, question: &str) -> String {
    let id = world.push(question).to_string();
    let filter = format!("type = 'record' AND metadata ->> 'reply_to' = '{id}'");
    let run = world.thread(["peek", "--last-event-id", &id, "--wait", "2m", "--filter", &filter]);
    let answer: Value = serde_json::from_str(&run.quiet()).unwrap();
    assert_eq!(answer["metadata"]["reply_to"], id);
    answer["content"].as_str().unwrap().to_owned()
}

fn converse(program: &str, dialogue: &[(&str, &str)]) {
    let world = World::with_thread();
    world.script("talk.sh", TALK);
    let handler = format!("thread pop --resume --follow --wait 2m | ./talk.sh {}", quoted(program));
    let filter = ["--filter", "type = 'message'"];
    world
        .thread(["subscribe", "--consumer", "bot", "--handler", &handler].iter().copied().chain(filter))
        .quiet();
    for (question, answer) in dialogue {
        assert_eq!(ask(&world, question), *answer, "{program}: {question}");
    }
    let spawned = world.log().iter().filter(|line| line.contains("spawned")).count();
    eprintln!("{program}: {} questions, {spawned} process", dialogue.len());
    assert_eq!(spawned, 1, "{program}: one process answers all");
    wait_until("all to be acknowledged", || world.consumer("bot")["pending"] == 0);
    world.thread(["stop", "--consumer", "bot"]).output();
}

#[test]
fn a_real_program_holds_a_conversation() {
    // Each program keeps state from earlier questions, so the same process must answer all of them.
    if Path::new("/usr/bin/bc").exists() {
        converse(
            "/usr/bin/bc -q",
            &[("(x = 6)", "6"), ("x * 7", "42"), ("(x = x + 1)", "7"), ("2 ^ 70", "1180591620717411303424")],
        );
    } else {
        skipped("bc");
    }
}

#[test]
fn a_shell_loop_holds_a_conversation() {
    let world = World::new();
    let counter =
        world.script("counter", "n=0\nwhile IFS= read -r line; do n=$((n + 1)); echo \"$n $line\"; done");
    converse(&quoted(counter), &[("hello", "1 hello"), ("again", "2 again"), ("and again", "3 and again")]);
}
