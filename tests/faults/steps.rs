//! Steps, killed at every system call, and at random moments.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use thread_testkit::{Dice, World, kill, long, wait_until};

use crate::inject::{Ended, Kind, Scene, Target, strace};

/// Calls that end a process, or cannot be struck.
const NOT_STRUCK: [&str; 3] = ["exit_group", "execve", "rt_sigreturn"];

/// A command in the middle of a run of `bot` for the event 1, killed at its calls, one after the other; of the calls in the
/// middle only one in `step` in the short form. After each, `check` is called.
fn kill_at_every_call(name: &'static str, args: &[&str], step: usize, check: impl Fn(&World, &Ended, &str)) {
    if strace().is_none() {
        return;
    }
    let world = World::with_thread();
    world.off(["push", "--source", "self", "order"]).quiet();
    world.off(["push", "--source", "self", "--subtype", "approval", "yes"]).quiet();
    let single = ["--deliver", "stdin", "--batch-size", "1"];
    world.off([&["subscribe", "bot", "true"], &single[..]].concat()).quiet();
    // There is a step already, and the run is under way as far as the store knows.
    let of = ["--consumer", "bot", "--event", "1"];
    world.off([&["step", "first"], &of[..], &["--", "true"]].concat()).quiet();
    world.set_run_state("bot", "$", json!({"phase": "running", "task": {"single": 1}}));
    let scene = Scene::new(name, world, Kind::Push(0), args);
    let world = &scene.world;
    let forget = || ["keys", "runs"].map(|file| std::fs::remove_file(world.path(file)).ok());
    forget();
    let calls = {
        scene.begin();
        scene.disturbed("all", &[]).calls
    };
    let step = if long() { 1 } else { step };
    let (offset, mut kills) = (std::process::id() as usize % step, 0);
    for at in 0..calls.len() {
        let target = Target::new(&calls, at);
        let few = 6;
        let is_chosen = at % step == offset || at < few || at + few >= calls.len();
        if !is_chosen || NOT_STRUCK.contains(&target.name()) {
            continue;
        }
        scene.begin();
        forget();
        let ended = scene.disturbed("all", &target.kill());
        let how = format!("{name} killed at {}", target.call);
        // The numbers of some calls vary, such as those of waits.
        kills += usize::from(ended.killed);
        // The command may still be running.
        world.wait_until_quiet();
        check(world, &ended, &how);
    }
    eprintln!("{name}: {kills} kills");
    assert!(kills > 20, "{kills} kills");
}

fn again(world: &World, args: &[&str]) -> (Option<i32>, String) {
    let output = world.off(args).output();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

fn stored(world: &World, name: &str) -> Option<Value> {
    let list = world.off(["step", "--list", "--json", "--event", "1"]).quiet();
    let steps = list.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    steps.into_iter().find(|step| step["name"] == name)
}

#[test]
fn a_step_killed_at_any_call_is_not_lost_once_it_is_stored_and_never_runs_again_then() {
    let script = "echo $THREAD_STEP_KEY >>keys; echo answer $(wc -l <keys)";
    let args = ["step", "a", "--consumer", "bot", "--event", "1", "--", "sh", "-c", script];
    kill_at_every_call("step", &args, 8, |world, ended, how| {
        let (is_done, ran) =
            (stored(world, "a").is_some_and(|a| a["state"] == "done"), world.lines("keys").len());
        assert!(is_done || ended.stdout.is_empty(), "{how}: it was printed before it was stored");
        let (code, printed) = again(world, &args);
        let runs = if is_done { ran } else { ran + 1 };
        assert_eq!((code, printed.trim_end()), (Some(0), &*format!("answer {runs}")), "{how}");
        assert!(ended.stdout.is_empty() || ended.stdout == printed, "{how}");
        assert_eq!(again(world, &args), (Some(0), printed), "{how}");
        let keys = world.lines("keys");
        assert_eq!(keys.len(), runs, "{how}");
        assert!(keys.iter().all(|key| *key == keys[0] && key.len() == 32), "{how}: {keys:?}");
        assert_eq!(stored(world, "a").unwrap()["key"], *keys[0], "{how}");
    });
}

#[test]
fn a_sleep_killed_at_any_call_is_begun_and_marked_together_or_not_at_all() {
    let args = ["sleep", "nap", "1h", "--consumer", "bot", "--event", "1"];
    let step = ["step", "a", "--consumer", "bot", "--event", "1", "--", "sh", "-c", "echo ran >>runs"];
    kill_at_every_call("sleep", &args, 5, |world, _, how| {
        let marked = !world.run_state("bot", "$.asleep").is_null();
        assert_eq!(stored(world, "nap").is_some(), marked, "{how}");
        if marked {
            assert_eq!(again(world, &step).0, Some(75), "{how}");
        }
        let before = stored(world, "nap");
        assert_eq!(again(world, &args), (Some(75), String::new()), "{how}");
        let after = stored(world, "nap").unwrap();
        if let Some(before) = before {
            assert_eq!(before["until"], after["until"], "{how}: it was prolonged");
        }
        assert_eq!(again(world, &step).0, Some(75), "{how}");
        assert_eq!(world.lines("runs").len(), 0, "{how}");
    });
}

#[test]
fn an_await_killed_at_any_call_finds_the_same_event() {
    let args = ["await", "ok", "--subtype", "approval", "--consumer", "bot", "--event", "1"];
    kill_at_every_call("await", &args, 5, |world, ended, how| {
        let line = format!("{}\n", world.jsonl()[1]);
        assert!(ended.stdout.is_empty() || ended.stdout == line, "{how}");
        assert!(world.run_state("bot", "$.asleep").is_null(), "{how}");
        assert_eq!(again(world, &args), (Some(0), line.clone()), "{how}");
        assert_eq!(again(world, &args), (Some(0), line), "{how}");
    });
}

/// A turn of an agent with three tools, which also has to wait.
const AGENT: &str = r#"set -e
turn=$THREAD_EVENT_ID
for tool in search read write; do
    answer=$(thread step "$tool" -- sh ./tool "$tool" "$turn")
    echo "saw $tool $turn $answer" >>log
    thread sleep "after-$tool" 10ms
done
thread step reply -- sh ./tool reply "$turn" >/dev/null
echo "done $turn" >>log
"#;

const TOOL: &str = r#"echo "call $1 $2 $THREAD_STEP_KEY" >>log
sleep 0.01
echo "$1-$2-$$"
"#;

#[test]
fn an_agent_killed_at_random_calls_each_tool_that_had_answered_exactly_once() {
    for concurrency in [&[][..], &["--concurrency", "3"]] {
        turns(concurrency, if long() { 200 } else { 25 });
    }
}

fn turns(concurrency: &[&str], kills: usize) {
    let world = World::with_thread();
    world.write("agent", AGENT);
    world.write("tool", TOOL);
    let patient = ["--deliver", "stdin", "--batch-size", "1", "--backoff", "10ms", "--max-attempts", "never"];
    world.subscribe("bot", "exec sh ./agent", &[&patient[..], concurrency].concat());
    let mut dice = Dice::new();
    let (mut pushed, mut killed) = (0, 0);
    let cursor = || world.consumer("bot")["last_acked_id"].as_i64().unwrap();
    let end = Instant::now() + Duration::from_secs(600);
    while killed < kills && Instant::now() < end {
        if pushed - cursor() < 5 {
            world.thread(["push", "--lines"]).stdin("a\nb\nc\n").ok();
            pushed += 3;
        }
        std::thread::sleep(Duration::from_millis(dice.up_to(60)));
        let processes = world.processes();
        if !processes.is_empty() {
            kill(processes[dice.up_to(processes.len() as u64 - 1) as usize]);
            killed += 1;
        }
        if dice.up_to(2) == 0 {
            world.thread(["dispatch"]).ok();
        }
    }
    wait_until("all turns", || {
        world.thread(["dispatch"]).ok();
        std::thread::sleep(Duration::from_millis(50));
        cursor() == pushed
    });
    world.wait_until_quiet();
    let mut answers: BTreeMap<(String, String), String> = BTreeMap::new();
    let mut keys: BTreeMap<(String, String), String> = BTreeMap::new();
    let mut done = BTreeMap::new();
    for line in world.lines("log") {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["call", tool, turn, key] => {
                let of = (tool.to_owned(), turn.to_owned());
                assert!(!answers.contains_key(&of), "{line}: it had answered");
                assert_eq!(keys.entry(of).or_insert_with(|| key.to_owned()), key, "{line}");
            }
            ["saw", tool, turn, answer] => {
                let of = (tool.to_owned(), turn.to_owned());
                assert_eq!(answers.entry(of).or_insert_with(|| answer.to_owned()), answer, "{line}");
            }
            ["done", turn] => *done.entry(turn.to_owned()).or_insert(0) += 1,
            _ => panic!("a torn line: {line}"),
        }
    }
    assert_eq!((answers.len() as i64, done.len() as i64), (3 * pushed, pushed));
    eprintln!("{concurrency:?}: {killed} kills in {pushed} turns");
}
