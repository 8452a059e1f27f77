//! `thread agent` on a thread in PostgreSQL: the adapter is a handler like any other, started by a worker.

use std::fs;

use thread_testkit::{Models, World, kill, postgres::server, wait_until};

use crate::guards::running;
use crate::machine::Machine;

const ADA: &str = "external:web:main:dm:default:ada";

/// A machine with a worker and this agent, which is a shell script; `None` without a server.
fn with_agent(protocol: &str, script: &str) -> Option<Machine> {
    with(&["--protocol", protocol, "--idle", "1s", "--", "sh", "agent.sh"], script)
}

/// The same with all options of the agent.
fn with(options: &[&str], script: &str) -> Option<Machine> {
    let mut machine = Machine::new(&server()?.location());
    // `thread-agent` passes on to the program that knows such locations; both are next to this machine's `thread`.
    thread_testkit::program("thread-agent");
    machine.ok(&["init", &machine.location]);
    fs::write(machine.path("agent.sh"), script).unwrap();
    machine.ok(&[&["agent", "install"], options].concat());
    machine.start_worker(&["--lease", "4s"]);
    Some(machine)
}

fn say(machine: &Machine, text: &str) -> i64 {
    machine.ok(&["push", "--source", ADA, "--type", "message", text]).trim().parse().unwrap()
}

/// The content of the events that match.
fn told(machine: &Machine, filter: &str) -> Vec<String> {
    let events = machine.ok(&["peek", "--last-event-id", "0", "--limit", "1000", "--filter", filter]);
    let events = events.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    events.map(|event| event["content"].as_str().unwrap().to_owned()).collect()
}

fn answers(machine: &Machine) -> Vec<String> {
    told(machine, "source = 'self' AND type = 'message'")
}

#[test]
fn a_conversation_is_answered_in_order() {
    let script = "read x; [ \"$THREAD_DIR\" = \"$(cat location)\" ] && echo \"heard $x\"";
    let Some(machine) = with_agent("exec", script) else { return };
    fs::write(machine.path("location"), &machine.location).unwrap();
    for text in ["one", "two", "three"] {
        say(&machine, text);
    }
    wait_until("three answers", || answers(&machine).len() == 3);
    assert_eq!(answers(&machine), ["heard one\n", "heard two\n", "heard three\n"]);
    wait_until("its end", || {
        let info: serde_json::Value = serde_json::from_str(&machine.ok(&["info", "--json"])).unwrap();
        let agent = &info["subscriptions"][0];
        agent["state"] == "idle" && agent["pending"] == 0
    });
    // Commands that need a folder report it.
    let said = machine.fails(1, &["agent", "run", "--", "true"]);
    assert!(said.contains("is for threads in directories"), "{said}");
}

#[test]
fn a_run_can_be_cancelled_and_an_agent_stopped() {
    let script = "read x; case $x in long) echo $$ >began; exec sleep 1000;; *) echo \"$x done\";; esac";
    let Some(machine) = with_agent("exec", script) else { return };
    let long = say(&machine, "long");
    let begins = |machine: &Machine| {
        let began = || fs::read_to_string(machine.path("began")).unwrap_or_default();
        wait_until("the program", || began().ends_with('\n'));
        let pid = began().trim().to_owned();
        fs::remove_file(machine.path("began")).unwrap();
        pid
    };
    let is_there = |pid: &str| fs::exists(format!("/proc/{pid}")).unwrap();
    let pid = begins(&machine);
    let run = format!("run_id=run_{long}");
    machine.ok(&[
        "push",
        "--source",
        ADA,
        "--type",
        "record",
        "--subtype",
        "cancel",
        "--meta",
        &run,
        "enough",
    ]);
    wait_until("the program to end", || !is_there(&pid));
    wait_until("the record", || !told(&machine, "subtype = 'cancelled'").is_empty());
    say(&machine, "short");
    wait_until("the next answer", || answers(&machine) == ["short done\n"]);
    say(&machine, "long");
    let pid = begins(&machine);
    machine.ok(&["agent", "stop"]);
    assert!(!is_there(&pid));
}

#[test]
fn retention_takes_nothing_that_the_next_prompt_of_a_model_needs() {
    let world = World::named("prompts");
    let log = world.path("requests");
    let Some(models) = Models::start(["--log", log.to_str().unwrap()]) else { return };
    let options = ["--protocol", "openai", "--url", &models.url, "--model", "echo", "--idle", "0s"];
    let Some(machine) = with(&options, "") else { return };
    let count = || told(&machine, "1 = 1").len();
    for (n, text) in ["one", "two", "three"].iter().enumerate() {
        say(&machine, text);
        wait_until("an answer", || answers(&machine).len() == n + 1);
        // A setting that has changed is applied at once.
        machine.ok(&["config", "retention.events", &format!("{}", n + 1)]);
        let state = machine.base().join("run/_retention");
        let applied = format!("events: Some({})", n + 1);
        wait_until("the pass", || fs::read_to_string(&state).is_ok_and(|state| state.contains(&applied)));
    }
    assert_eq!(machine.ok(&["config", "hold.agent"]), "1\n");
    assert_eq!(told(&machine, "id = 1"), ["one"]);
    let last = world.lines("requests").pop().unwrap();
    let last: serde_json::Value = serde_json::from_str(&last).unwrap();
    let said = last["body"]["messages"].as_array().unwrap().iter();
    let said: Vec<&str> = said.map(|message| message["content"].as_str().unwrap()).collect();
    assert_eq!(said, ["one", "one", "two", "two", "three"]);
    machine.ok(&["unsubscribe", "agent"]);
    machine.ok(&["config", "retention.events", "1"]);
    wait_until("the last pass", || count() == 1);
}

#[test]
fn a_model_is_given_what_was_said_and_continues_after_a_kill() {
    let Some(models) = Models::start([""; 0]) else { return };
    let options = ["--protocol", "openai", "--url", &models.url, "--model", "slow", "--attempts", "1"];
    let Some(machine) = with(&options, "") else { return };
    say(&machine, "one two three four");
    wait_until("a piece of the answer", || !told(&machine, "subtype = 'token'").is_empty());
    for pid in machine.processes() {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&line).contains("/thread-agent-postgres\0") {
            kill(pid);
        }
    }
    wait_until("an answer", || !answers(&machine).is_empty());
    say(&machine, "five");
    wait_until("the next answer", || answers(&machine).len() == 2);
    assert_eq!(answers(&machine), ["one two three four", "five"]);
    assert_eq!(told(&machine, "subtype IN ('run', 'turn_cut')").len(), 3);
    assert_eq!(told(&machine, "subtype = 'model'").len(), 2);
}

#[test]
fn after_its_adapter_was_killed_an_agent_continues_and_answers_once() {
    let script = "read x; echo >began; [ -e go ] || sleep 1000; echo heard";
    let Some(machine) = with_agent("exec", script) else { return };
    say(&machine, "one");
    wait_until("the program", || machine.path("began").exists());
    let adapters = || -> Vec<u32> {
        let is_one = |pid: &u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line)
                .split('\0')
                .next()
                .is_some_and(|program| program.ends_with("/thread-agent-postgres"))
        };
        machine.processes().into_iter().filter(is_one).collect()
    };
    let found = adapters();
    assert!(!found.is_empty());
    fs::write(machine.path("go"), "").unwrap();
    found.into_iter().for_each(kill);
    wait_until("an answer", || !answers(&machine).is_empty());
    say(&machine, "two");
    wait_until("the next answer", || answers(&machine).len() == 2);
    assert_eq!(answers(&machine), ["heard\n"; 2]);
}

/// It has a process group of its own, and not the consumer's lock.
#[test]
fn an_agent_ends_with_the_supervisor_of_its_adapter_so_that_another_machine_may_begin() {
    let Some(machine) = with_agent("exec", "read x; echo >began; exec sleep 1000") else { return };
    say(&machine, "one");
    wait_until("the program", || machine.path("began").exists());
    for words in ["thread\0dispatch", "\0_supervise\0"] {
        let found = running(&machine, words);
        assert!(!found.is_empty(), "{words}");
        found.into_iter().for_each(kill);
    }
    wait_until("all to end", || machine.processes().is_empty());
}
