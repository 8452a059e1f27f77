//! Steps: `step`, `sleep` and `await`, by hand and in handlers. The scenarios of handlers are those by which other programs
//! with steps are tested.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use thread_testkit::{Run, World, kill_and_wait, wait_until};

/// A command that notes each time it runs, and prints something else each time.
const NOTES: &str = "echo ran >>$0-runs; echo $0-$(wc -l <$0-runs) $THREAD_STEP_KEY";

/// A consumer of single events, whose handler is this script.
fn handle(world: &World, script: &str, options: &[&str]) {
    world.write("handler", script);
    let base = ["--deliver", "stdin", "--batch-size", "1", "--backoff", "10ms"];
    world.subscribe("bot", "exec sh handler", &[&base, options].concat());
}

fn step(world: &World, name: &str) -> Run {
    world.off(["step", name, "--consumer", "bot", "--event", "1", "--", "sh", "-c", NOTES, name])
}

/// An event, and a consumer that is never started.
fn by_hand() -> World {
    let world = World::with_thread();
    world.push("order");
    world.idle_consumer("bot", "");
    world
}

fn steps(world: &World) -> Vec<Value> {
    let list = world.thread(["step", "--list", "--consumer", "bot", "--json"]).quiet();
    list.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Names and states.
fn states(world: &World) -> Vec<String> {
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    steps(world).iter().map(|step| format!("{} {}", word(&step["name"]), word(&step["state"]))).collect()
}

#[track_caller]
fn finishes(world: &World, cursor: i64) {
    world.wait_until(&format!("event {cursor} to be finished"), || {
        let bot = world.consumer("bot");
        bot["last_acked_id"] == cursor && bot["state"] == "idle"
    });
}

fn runs(world: &World) -> Vec<(String, Value, Value)> {
    let runs = world.thread(["info", "bot", "--runs", "--json"]).quiet();
    let runs: Value = serde_json::from_str(&runs).unwrap();
    let run = |run: &Value| {
        (run["result"].as_str().unwrap().to_owned(), run["exit"].clone(), run["attempt"].clone())
    };
    runs["runs"].as_array().unwrap().iter().map(run).collect()
}

#[test]
fn a_step_that_succeeded_prints_what_it_printed_and_runs_no_more() {
    let world = by_hand();
    let first = step(&world, "charge").quiet();
    let (text, key) = first.trim_end().split_once(' ').unwrap();
    assert!(text == "charge-1" && key.len() == 32, "{first}");
    assert_eq!(step(&world, "charge").quiet(), first);
    assert_eq!(world.lines("charge-runs").len(), 1);
    // Of each name, and of each event.
    assert!(step(&world, "mail").quiet().starts_with("mail-1 "));
    world.push("another");
    let other = ["step", "charge", "--consumer", "bot", "--event", "2", "--", "sh", "-c", NOTES, "charge"];
    let other = world.off(other).quiet();
    assert!(other.starts_with("charge-2 ") && !other.contains(key), "{other}");
    assert_eq!(states(&world), ["charge done", "mail done", "charge done"]);
}

#[test]
fn the_output_is_kept_byte_for_byte() {
    let world = by_hand();
    let printf = |name: &str, text: &str| {
        world.off(["step", name, "--consumer", "bot", "--event", "1", "--", "printf", text]).output().stdout
    };
    for (name, text, bytes) in
        [("empty", "", &b""[..]), ("zero", "a\\0b", b"a\0b"), ("binary", "\\377\\n\\n", b"\xff\n\n")]
    {
        assert_eq!(printf(name, text), bytes);
        assert_eq!(printf(name, text), bytes, "again");
    }
}

#[test]
fn a_step_that_failed_stores_nothing_and_has_the_exit_code_of_its_command() {
    let world = by_hand();
    let fails = "echo $THREAD_STEP_KEY >>keys; echo printed; [ -e ok ] || exit 7";
    let step = || world.off(["step", "a", "--consumer", "bot", "--event", "1", "--", "sh", "-c", fails]);
    assert_eq!(step().ends_with(7), ("printed\n".into(), String::new()));
    assert_eq!(states(&world), ["a begun"]);
    world.write("ok", "");
    assert_eq!(step().ends_with(0).0, "printed\n");
    let keys = world.lines("keys");
    assert!(keys.len() == 2 && keys[0] == keys[1] && keys[0].len() == 32, "{keys:?}");
    let run = |words: &[&str]| {
        world.off([&["step", "b", "--consumer", "bot", "--event", "1", "--"], words].concat())
    };
    assert_eq!(run(&["sh", "-c", "kill -9 $$"]).ends_with(137).1, "");
    let (_, missing) = run(&["./missing"]).ends_with(127);
    assert!(missing.starts_with("Error: cannot run ./missing: "), "{missing}");
    world.write("plain", "");
    run(&["./plain"]).ends_with(126);
    // It may be another command, as long as none has succeeded.
    assert_eq!(run(&["echo", "done"]).quiet(), "done\n");
}

#[test]
fn a_name_that_is_used_for_another_command_is_exit_2() {
    let world = by_hand();
    let run = |words: &[&str]| {
        world.off([&["step", "a", "--consumer", "bot", "--event", "1", "--"], words].concat())
    };
    run(&["echo", "x y"]).quiet();
    let error = run(&["echo", "x", "y"]).fails(2);
    assert!(error.contains("the step 'a' of event 1 is another one: step echo 'x y'"), "{error}");
    let sleep = world.off(["sleep", "a", "1h", "--consumer", "bot", "--event", "1"]);
    sleep.fails(2);
    world.off(["await", "a", "--subtype", "x", "--consumer", "bot", "--event", "1"]).fails(2);
    assert_eq!(run(&["echo", "x y"]).quiet(), "x y\n");
    world.off(["step", "--forget", "a", "--consumer", "bot", "--event", "1"]).quiet();
    assert_eq!(run(&["echo", "x", "y"]).quiet(), "x y\n");
}

#[test]
fn what_is_missing_or_wrong_is_a_usage_error_and_runs_nothing() {
    let world = by_hand();
    let of = ["--consumer", "bot", "--event", "1"];
    let touch = ["--", "touch", "ran"];
    let fails = |args: &[&[&str]], code: i32| world.off(args.concat()).fails(code);
    let error = fails(&[&["step", "a", "--consumer", "bot"], &touch], 2);
    assert!(error.contains("--deliver stdin --batch-size 1"), "{error}");
    fails(&[&["step", "a", "--event", "1"], &touch], 2);
    fails(&[&["step"], &of, &touch], 2);
    fails(&[&["step", "a"], &of], 2);
    fails(&[&["step", "a", "touch", "ran"], &of], 2);
    fails(&[&["step", ""], &of, &touch], 2);
    fails(&[&["step", "a\nb"], &of, &touch], 2);
    fails(&[&["step", "a", "--list"], &of], 2);
    fails(&[&["sleep", "a"], &of], 2);
    fails(&[&["sleep", "a", "soon"], &of], 2);
    fails(&[&["await", "a"], &of], 2);
    fails(&[&["await", "a", "--filter", "nonsense"], &of], 2);
    fails(&[&["await", "a", "--filter", "created_at < datetime('now')"], &of], 2);
    fails(&[&["await", "a", "--meta", "order"], &of], 2);
    assert_eq!(steps(&world), [] as [Value; 0]);
    // Of events and consumers that there are not.
    fails(&[&["step", "a", "--consumer", "bot", "--event", "9"], &touch], 1);
    fails(&[&["step", "a", "--consumer", "other", "--event", "1"], &touch], 1);
    fails(&[&["step", "--forget", "a"], &of], 1);
    assert!(!world.path("ran").exists());
    let id = world.off(["step", "a", "--consumer", "bot", "--", "true"]).env("THREAD_EVENT_ID", "x");
    assert!(id.fails(2).contains("THREAD_EVENT_ID"));
}

#[test]
fn more_than_a_mebibyte_is_not_stored() {
    let world = by_hand();
    let print = |name: &str, bytes: usize| {
        let script = format!("head -c {bytes} /dev/zero; echo ran >>ran");
        world.off(["step", name, "--consumer", "bot", "--event", "1", "--", "sh", "-c", &script])
    };
    assert_eq!(print("a", 1 << 20).output().stdout.len(), 1 << 20);
    assert_eq!(print("a", 1 << 20).output().stdout.len(), 1 << 20);
    let error = print("b", (1 << 20) + 1).fails(1);
    assert!(error.contains("more than 1 MiB"), "{error}");
    print("b", (1 << 20) + 1).fails(1);
    assert_eq!(world.lines("ran").len(), 3);
}

#[test]
fn a_process_that_a_step_leaves_in_the_background_holds_nothing_up() {
    let world = by_hand();
    let script = "sleep 1000 2>/dev/null & echo $!";
    let run = || world.off(["step", "a", "--consumer", "bot", "--event", "1", "--", "sh", "-c", script]);
    let began = Instant::now();
    let pid: u32 = run().quiet().trim().parse().unwrap();
    assert_eq!(run().quiet(), format!("{pid}\n"));
    assert!(began.elapsed() < Duration::from_secs(60));
    kill_and_wait(pid);
}

#[test]
fn of_two_that_do_the_same_step_at_once_the_later_one_stores_it() {
    let world = by_hand();
    let script = "echo >>began; until [ -e go-$1 ]; do sleep 0.01; done; echo $1";
    let run = |which: &str| {
        let words = ["step", "a", "--consumer", "bot", "--event", "1", "--", "sh", "-c", script, "", which];
        world.off(words).spawn()
    };
    let one = run("1");
    world.wait_until("the first", || world.lines("began").len() == 1);
    let other = run("2");
    world.wait_until("the second", || world.lines("began").len() == 2);
    world.write("go-1", "");
    let one = one.wait_with_output().unwrap();
    assert_eq!((one.status.code(), &one.stdout[..]), (Some(1), &b""[..]));
    assert!(String::from_utf8_lossy(&one.stderr).contains("was begun by another run since"));
    world.write("go-2", "");
    assert_eq!(other.wait_with_output().unwrap().stdout, b"2\n");
    assert_eq!(steps(&world).len(), 1);
}

#[test]
fn a_claim_that_is_anothers_stores_nothing() {
    let world = World::with_thread();
    world.push("order");
    world.off(["subscribe", "bot", "--no-handler", "--concurrency", "3"]).quiet();
    let take = || {
        let line = world.off(["pop", "bot", "--claim", "1h"]).quiet();
        serde_json::from_str::<Value>(&line).unwrap()["claim"].as_str().unwrap().to_owned()
    };
    let token = take();
    let step = |name: &str, token: &str, script: &str| {
        let of = ["--consumer", "bot", "--event", "1", "--claim", token];
        world.off([&["step", name], &of[..], &["--", "sh", "-c", script]].concat())
    };
    step("a", &token, "echo a").quiet();
    // Lost while the command runs.
    let lose = "thread nack bot 1 --delay 0s && thread pop bot --claim 1h >taken";
    let error = step("b", &token, lose).ends_with(1).1;
    assert!(error.contains("that claim of event 1 is over"), "{error}");
    assert_eq!(states(&world), ["a done", "b begun"]);
    step("b", &token, "touch ran").fails(1);
    assert!(!world.path("ran").exists());
    let taken: Value = serde_json::from_str(&world.read("taken")).unwrap();
    step("b", taken["claim"].as_str().unwrap(), "touch ran").quiet();
    world.off(["ack", "bot", "1"]).quiet();
}

#[test]
fn a_sleep_by_hand_is_exit_75_until_its_time_has_come() {
    let world = by_hand();
    let of = ["--consumer", "bot", "--event", "1"];
    let sleep = |name: &str, length: &str| world.off([&["sleep", name, length], &of[..]].concat());
    let began = Instant::now();
    let (_, note) = sleep("a", "1s").ends_with(75);
    assert!(note.starts_with("Note: event 1 sleeps until 20"), "{note}");
    // Nothing else goes on, and the first time counts.
    step(&world, "b").ends_with(75);
    assert_eq!(states(&world), ["a waiting"]);
    world.wait_until("the end of the sleep", || sleep("a", "1h").succeeds());
    assert!(began.elapsed() >= Duration::from_secs(1));
    sleep("a", "1h").quiet();
    step(&world, "b").quiet();
    sleep("none", "0s").quiet();
    assert_eq!(states(&world), ["a done", "b done", "none done"]);
}

#[test]
fn an_event_that_is_awaited_is_printed_each_time_the_same() {
    let world = by_hand();
    let of = ["--consumer", "bot", "--event", "2"];
    let awaits = |name: &str, words: &[&str]| world.off([&["await", name], &of[..], words].concat());
    world.off(["push", "--subtype", "approval", "before its own event"]).quiet();
    let words = ["--subtype", "approval", "--meta", "order=7"];
    let (printed, note) = awaits("a", &words).ends_with(75);
    assert_eq!(printed, "");
    assert!(note.contains("event 2 sleeps until another event comes"), "{note}");
    world.off(["push", "--subtype", "approval", "--meta", "order=8", "no"]).quiet();
    awaits("a", &words).ends_with(75);
    world.off(["push", "--subtype", "approval", "--metadata", "{\"order\":7}", "yes"]).quiet();
    world.off(["push", "--subtype", "approval", "--meta", "order=7", "later"]).quiet();
    let line = awaits("a", &words).quiet();
    assert_eq!(line.trim_end(), world.jsonl()[3]);
    assert_eq!(awaits("a", &words).quiet(), line);
    // Each name for itself, and by any of the words of `peek`.
    let all = ["--type", "message", "--source", "internal:*", "--filter", "content = 'later' -- that one"];
    assert_eq!(awaits("b", &all).quiet().trim_end(), world.jsonl()[4]);
    awaits("a", &all).fails(2);
    world.off(["prune", "--before-id", "9", "--force"]).ok();
    assert_eq!(awaits("a", &words).quiet(), line);
}

#[test]
fn a_wait_that_is_over_stays_over() {
    let world = by_hand();
    let of = ["--consumer", "bot", "--event", "1"];
    let awaits = |timeout: &str| {
        world.off([&["await", "a", "--subtype", "x", "--timeout", timeout], &of[..]].concat())
    };
    awaits("300ms").ends_with(75);
    let error = "no event came in time for 'a'";
    let mut said = String::new();
    world.wait_until("the end", || {
        let output = awaits("1h").output();
        said = String::from_utf8_lossy(&output.stderr).into_owned();
        output.status.code() == Some(3)
    });
    assert!(said.contains(error), "{said}");
    world.off(["push", "--subtype", "x", "too late"]).quiet();
    assert!(awaits("1h").fails(3).contains(error));
    assert_eq!(states(&world), ["a timed_out"]);
    // One that came in time, though nobody looked.
    let other = |timeout: &str| {
        world.off([&["await", "b", "--subtype", "x", "--timeout", timeout], &of[..]].concat())
    };
    assert!(other("0s").quiet().contains("too late"));
}

#[test]
fn steps_are_listed_and_forgotten() {
    let world = by_hand();
    step(&world, "a").quiet();
    world.off(["sleep", "b", "1h", "--consumer", "bot", "--event", "1"]).ends_with(75);
    let list = world.thread(["step", "--list"]).quiet();
    let lines: Vec<&str> = list.lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with("bot 1 a step done 20"), "{list}");
    assert!(lines[1].starts_with("bot 1 b sleep waiting 20") && lines[1].ends_with(" 1h"), "{list}");
    assert_eq!(world.thread(["step", "--list", "--event", "2"]).quiet(), "");
    assert_eq!(world.thread(["step", "--list", "--consumer", "other"]).quiet(), "");
    let all = steps(&world);
    assert_eq!((&all[0]["kind"], &all[0]["event_id"]), (&json!("step"), &json!(1)));
    assert_eq!(all[0]["key"].as_str().unwrap().len(), 32);
    assert_eq!((&all[1]["ended"], &all[1]["words"]), (&Value::Null, &json!("1h")));
    world.thread(["step", "--forget", "b", "--consumer", "bot", "--event", "1"]).quiet();
    world.thread(["step", "--forget", "b", "--consumer", "bot", "--event", "1"]).fails(1);
    assert_eq!(states(&world), ["a done"]);
}

#[test]
fn the_first_step_raises_the_version() {
    let world = by_hand();
    let version = || world.query("SELECT user_version FROM pragma_user_version");
    world.thread(["step", "--list"]).quiet();
    assert_eq!(version(), 0);
    step(&world, "a").quiet();
    assert_eq!(version(), 3);
}

#[test]
fn a_handler_of_single_events_knows_its_event() {
    let world = World::with_thread();
    handle(&world, "echo ${THREAD_EVENT_ID:-none} >>seen", &[]);
    world.push("a");
    world.push("b");
    finishes(&world, 2);
    world.subscribe("bot", "exec sh handler", &["--replace", "--batch-size", "5"]);
    world.push("c");
    finishes(&world, 3);
    world.subscribe("bot", "exec sh handler", &["--replace", "--batch-size", "1", "--concurrency", "2"]);
    world.push("d");
    finishes(&world, 4);
    assert_eq!(world.lines("seen"), ["1", "2", "none", "4"]);
}

#[test]
fn only_steps_that_are_not_done_run_again() {
    for concurrency in [&[][..], &["--concurrency", "2"]] {
        let world = World::with_thread();
        let script = "set -e\necho >>attempts\n\
                      one=$(thread step one -- sh -c 'echo one >>ran; echo 1')\n\
                      two=$(thread step two -- sh -c 'echo two >>ran; echo 2')\n\
                      [ $(wc -l <attempts) -gt 1 ]\n\
                      three=$(thread step three -- sh -c 'echo three >>ran; echo 3')\n\
                      echo $one$two$three >>results";
        handle(&world, script, concurrency);
        world.push("order");
        finishes(&world, 1);
        assert_eq!(world.lines("ran"), ["one", "two", "three"]);
        assert_eq!(world.lines("results"), ["123"]);
        let results: Vec<_> = runs(&world).into_iter().map(|(result, ..)| result).collect();
        assert_eq!(results, ["failed", "succeeded"]);
    }
}

#[test]
fn a_step_that_failed_runs_again_in_the_next_attempt() {
    let world = World::with_thread();
    let script = "set -e\nthread step a -- sh -c 'echo $THREAD_STEP_KEY >>ran; [ $(wc -l <ran) -gt 2 ]'";
    handle(&world, script, &[]);
    world.push("order");
    finishes(&world, 1);
    let keys = world.lines("ran");
    assert!(keys.len() == 3 && keys.iter().all(|key| *key == keys[0]), "{keys:?}");
}

#[test]
fn a_step_that_fails_each_time_makes_a_dead_letter_whose_retry_goes_on_where_it_was() {
    let world = World::with_thread();
    let script =
        "set -e\nthread step a -- sh -c 'echo a >>ran'\nthread step b -- sh -c 'echo b >>ran; [ -e ok ]'";
    handle(&world, script, &["--max-attempts", "2"]);
    world.push("order");
    finishes(&world, 1);
    assert_eq!(world.lines("ran"), ["a", "b", "b"]);
    assert!(world.thread(["dead", "list", "bot"]).quiet().starts_with("1  attempts=2 "));
    world.write("ok", "");
    world.thread(["dead", "retry", "bot", "1"]).ok();
    world.wait_until("the retry", || world.thread(["dead", "list", "bot"]).quiet().is_empty());
    assert_eq!(world.lines("ran"), ["a", "b", "b", "b"]);
}

#[test]
fn a_dead_letter_can_sleep() {
    for concurrency in [&[][..], &["--concurrency", "2"]] {
        let world = World::with_thread();
        let script = "set -e\n[ -e ok ]\nthread sleep nap 300ms\nthread step a -- sh -c 'echo a >>ran'";
        handle(&world, script, &[&["--max-attempts", "1"], concurrency].concat());
        world.push("order");
        finishes(&world, 1);
        world.write("ok", "");
        world.thread(["dead", "retry", "bot", "1"]).ok();
        world.wait_until("the retry", || world.thread(["dead", "list", "bot"]).quiet().is_empty());
        assert_eq!(world.lines("ran"), ["a"]);
        let attempts = runs(&world).into_iter().filter(|(result, ..)| *result == "deferred").count();
        assert!(attempts >= 1);
    }
}

#[test]
fn a_sleep_ends_the_run_and_is_no_attempt() {
    for concurrency in [&[][..], &["--concurrency", "2"]] {
        let world = World::with_thread();
        let script = "set -e\necho $(date +%s%N) >>began\nthread sleep first 300ms\n\
                      thread step between -- sh -c 'echo >>ran'\nthread sleep second 300ms\necho >>done";
        handle(&world, script, &[&["--max-attempts", "1"], concurrency].concat());
        world.push("order");
        finishes(&world, 1);
        assert_eq!(
            (world.lines("began").len(), world.lines("ran").len(), world.lines("done").len()),
            (3, 1, 1)
        );
        let began: Vec<u64> = world.lines("began").iter().map(|time| time.parse().unwrap()).collect();
        for pair in began.windows(2) {
            assert!(pair[1] - pair[0] >= 300_000_000, "{began:?}");
        }
        let each: Vec<_> = runs(&world).into_iter().map(|(result, _, attempt)| (result, attempt)).collect();
        let run = |result: &str| (result.to_owned(), json!(1));
        assert_eq!(each, [run("deferred"), run("deferred"), run("succeeded")]);
    }
}

#[test]
fn an_event_wakes_up_when_what_it_awaits_has_come() {
    for concurrency in [&[][..], &["--concurrency", "2"]] {
        let world = World::with_thread();
        let script = "set -e\necho >>began\nthread await approval --subtype approval --meta order=7 >line\ncat line >>seen";
        handle(&world, script, &[&["--filter", "subtype IS NULL"], concurrency].concat());
        world.push("order");
        world.wait_until("the sleep", || {
            let bot = world.consumer("bot");
            bot["state"] == "waiting" || bot["in_hand"]["waiting"] == 1
        });
        world.thread(["push", "--subtype", "approval", "--meta", "order=8", "no"]).quiet();
        // It is asleep until the right one comes.
        assert_eq!(world.lines("began").len(), 1);
        let began = Instant::now();
        world.thread(["push", "--subtype", "approval", "--meta", "order=7", "yes"]).quiet();
        finishes(&world, 1);
        assert!(began.elapsed() < Duration::from_secs(30));
        assert_eq!(world.read("seen").trim_end(), world.jsonl()[2]);
        assert_eq!(world.lines("began").len(), 2);
    }
}

#[test]
fn an_event_that_another_program_inserts_wakes_up_who_awaits_it() {
    let world = World::with_thread();
    handle(&world, "set -e\nthread await x --subtype x", &["--filter", "subtype IS NULL"]);
    world.push("order");
    world.wait_for_state("bot", "waiting");
    let insert = "INSERT INTO events (source, type, subtype, content) VALUES ('self', 'message', 'x', 'y')";
    world.db().execute(insert, []).unwrap();
    finishes(&world, 1);
}

#[test]
fn an_await_times_out_in_a_handler() {
    let world = World::with_thread();
    let script = "set -e\nif line=$(thread await x --subtype x --timeout 300ms); then echo came >>seen; else\n\
                  code=$?; [ $code = 3 ] || exit $code; thread step late -- sh -c 'echo late >>seen'; fi";
    handle(&world, script, &["--max-attempts", "1"]);
    world.push("order");
    finishes(&world, 1);
    assert_eq!(world.lines("seen"), ["late"]);
}

#[test]
fn several_events_wait_for_the_same_one_and_hold_no_places() {
    let world = World::with_thread();
    let script = "set -e\nthread await go --subtype go >/dev/null\necho $THREAD_EVENT_ID >>seen";
    handle(&world, script, &["--concurrency", "1", "--ahead", "2", "--filter", "subtype IS NULL"]);
    for _ in 0..5 {
        world.push("order");
    }
    // All of them sleep, though there is one place, and two may be unfinished.
    world.wait_until("all to sleep", || world.consumer("bot")["in_hand"]["waiting"] == 5);
    world.thread(["push", "--subtype", "go", "now"]).quiet();
    finishes(&world, 5);
    let mut seen = world.lines("seen");
    seen.sort();
    assert_eq!(seen, ["1", "2", "3", "4", "5"]);
}

#[test]
fn without_a_pool_a_sleeping_event_holds_back_those_after_it() {
    let world = World::with_thread();
    let script = "set -e\necho begin $THREAD_EVENT_ID >>seen\n[ $THREAD_EVENT_ID = 2 ] || thread sleep a 300ms\n\
                  echo end $THREAD_EVENT_ID >>seen";
    world.write("handler", script);
    let words = ["subscribe", "bot", "sh handler", "--deliver", "stdin", "--batch-size", "1"];
    let (_, note) = world.thread(words).ends_with(0);
    assert!(note.contains("holds back those after it"), "{note}");
    world.thread(["subscribe", "pool", ":", "--deliver", "stdin", "--concurrency", "2"]).quiet();
    world.thread(["push", "--lines"]).stdin("a\nb\n").ok();
    finishes(&world, 2);
    assert_eq!(world.lines("seen"), ["begin 1", "begin 1", "end 1", "begin 2", "end 2"]);
}

#[test]
fn a_script_that_swallows_exit_75_pays_nothing_twice_and_skips_nothing() {
    for (concurrency, exit) in [(&[][..], "0"), (&["--concurrency", "2"], "0"), (&[], "1"), (&[], "65")] {
        let world = World::with_thread();
        // It looks at no exit code, and has its own.
        let script = format!(
            "echo >>began\nthread step pay -- sh -c 'echo paid >>ran'\nthread sleep a 200ms\n\
             line=$(thread await ok --subtype ok)\n\
             thread step mail -- sh -c 'echo \"$0\" >>mails' \"$line\"\n\
             [ -s mails ] && exit 0\nexit {exit}"
        );
        let options = [&["--filter", "subtype IS NULL", "--max-attempts", "1"], concurrency].concat();
        handle(&world, &script, &options);
        world.push("order");
        world.wait_until("the second wait", || states(&world).contains(&"ok waiting".to_owned()));
        world.thread(["push", "--subtype", "ok", "yes"]).quiet();
        finishes(&world, 1);
        assert_eq!(world.lines("ran"), ["paid"]);
        assert_eq!(world.lines("mails"), [world.jsonl()[1].clone()]);
        assert_eq!(world.consumer("bot")["dead"], 0);
        for (result, code, attempt) in runs(&world).iter().take(2) {
            assert_eq!((result.as_str(), code, attempt), ("deferred", &json!(75), &json!(1)));
        }
    }
}

#[test]
fn what_is_awaited_may_come_while_the_run_goes_on_and_the_run_is_over_all_the_same() {
    let world = World::with_thread();
    let script = "thread await ok --subtype ok >line || {\n\
                  thread push --subtype ok came\nthread await ok --subtype ok >line\n\
                  thread step a -- sh -c 'echo \"$0\" >>seen' \"$(cat line)\"\nexit 0; }\n\
                  thread step a -- sh -c 'echo \"$0\" >>seen' \"$(cat line)\"";
    handle(&world, script, &["--filter", "subtype IS NULL"]);
    world.push("order");
    finishes(&world, 1);
    assert_eq!(world.lines("seen"), [world.jsonl()[1].clone()]);
}

#[test]
fn a_rewind_keeps_what_was_done() {
    let world = World::with_thread();
    handle(&world, "set -e\necho >>began\nthread step a -- sh -c 'echo >>ran'", &[]);
    world.push("order");
    finishes(&world, 1);
    world.thread(["seek", "bot", "beginning"]).ok();
    world.wait_until("the second run", || world.lines("began").len() == 2);
    finishes(&world, 1);
    assert_eq!(world.lines("ran").len(), 1);
    world.thread(["step", "--forget", "a", "--consumer", "bot", "--event", "1"]).quiet();
    world.thread(["seek", "bot", "beginning"]).ok();
    world.wait_until("the third run", || world.lines("began").len() == 3);
    finishes(&world, 1);
    assert_eq!(world.lines("ran").len(), 2);
}

#[test]
fn resume_ends_no_sleep_and_stop_ends_it_for_good() {
    let world = World::with_thread();
    handle(&world, "set -e\necho >>began\nthread sleep a 1h\necho >>done", &[]);
    world.push("order");
    world.wait_for_state("bot", "waiting");
    world.thread(["resume", "bot"]).ok();
    world.wait_until("the second run", || world.lines("began").len() == 2);
    world.wait_for_state("bot", "waiting");
    world.thread(["stop", "bot"]).ok();
    assert_eq!(world.state("bot"), "stalled");
    world.thread(["step", "--forget", "a", "--consumer", "bot", "--event", "1"]).quiet();
    world.thread(["subscribe", "bot", "true", "--replace", "--deliver", "stdin"]).ok();
    finishes(&world, 1);
}

#[test]
fn a_sleep_goes_on_after_its_timer_was_killed() {
    let world = World::with_thread();
    handle(&world, "set -e\nthread sleep a 4s\necho >>done", &[]);
    world.push("order");
    world.wait_for_state("bot", "waiting");
    let mut timer = None;
    wait_until("the timer", || {
        timer = world.timer();
        timer.is_some()
    });
    kill_and_wait(timer.unwrap());
    world.thread(["dispatch"]).quiet();
    finishes(&world, 1);
}

#[test]
fn a_worker_wakes_up_what_sleeps() {
    let world = World::with_thread();
    let mut worker = world.thread(["dispatch", "--follow"]).into_command().spawn().unwrap();
    handle(
        &world,
        "set -e\nthread sleep a 300ms\nthread await x --subtype x",
        &["--filter", "subtype IS NULL"],
    );
    world.off(["push", "order"]).quiet();
    world.wait_until("the await", || states(&world).contains(&"x waiting".to_owned()));
    world.off(["push", "--subtype", "x", "y"]).quiet();
    finishes(&world, 1);
    worker.kill().unwrap();
    worker.wait().unwrap();
}

#[test]
fn a_handler_that_is_kept_can_do_steps() {
    let world = World::with_thread();
    // Acknowledges whatever happens; one that sleeps comes again all the same.
    let handler = "while read -r line; do id=${line#*:}; id=${id%%,*}; echo $id >>given; export THREAD_EVENT_ID=$id; \
                   thread step pay -- sh -c 'echo $0 >>paid' $id; thread sleep a 300ms; \
                   thread await ok --subtype ok >&2; \
                   thread step mail -- sh -c 'echo $0 >>mailed' $id; echo \"{\\\"ack\\\":$id}\"; done";
    world.subscribe("bot", handler, &["--deliver", "ndjson", "--filter", "subtype IS NULL"]);
    world.thread(["push", "--lines"]).stdin("a\nb\n").ok();
    world.wait_until("both waits", || {
        states(&world).iter().filter(|state| *state == "ok waiting").count() == 2
    });
    assert_eq!(world.lines("mailed").len(), 0);
    world.thread(["push", "--subtype", "ok", "yes"]).quiet();
    world.wait_until("both", || world.consumer("bot")["last_acked_id"] == 2);
    let sorted = |name: &str| {
        let mut lines = world.lines(name);
        lines.sort();
        lines
    };
    assert_eq!(
        (sorted("paid"), sorted("mailed")),
        (vec!["1".into(), "2".into()], vec!["1".into(), "2".into()])
    );
    assert!(world.lines("given").len() >= 6);
    assert_eq!(world.consumer("bot")["dead"], 0);
}

#[test]
fn an_agents_turn_as_a_pool_finishes_each_event_once() {
    let world = World::with_thread();
    let script = "set -e\nfor tool in a b c; do thread step $tool -- sh -c 'echo $0 $1 >>called' $tool $THREAD_EVENT_ID; \
                  thread sleep after-$tool 50ms; done";
    handle(&world, script, &["--concurrency", "3"]);
    world.thread(["push", "--lines"]).stdin("1\n2\n3\n4\n5\n6\n").ok();
    finishes(&world, 6);
    let mut called = world.lines("called");
    called.sort();
    let all: Vec<String> =
        ["a", "b", "c"].iter().flat_map(|tool| (1..=6).map(move |id| format!("{tool} {id}"))).collect();
    assert_eq!(called, all);
}

#[test]
fn steps_are_deleted_some_time_after_their_events_are_finished() {
    let world = by_hand();
    step(&world, "a").quiet();
    let pass = |length: &str| {
        world.off(["config", "retention.steps", length]).quiet();
        world.off(["dispatch"]).quiet();
    };
    pass("1ms");
    pass("2ms");
    assert_eq!(states(&world), ["a done"], "its event is not finished");
    world.off(["ack", "bot", "1"]).quiet();
    pass("1h");
    pass("2h");
    assert_eq!(states(&world), ["a done"], "not for long");
    // A rewind makes it needed again.
    world.off(["seek", "bot", "beginning"]).quiet();
    pass("1ms");
    world.off(["ack", "bot", "1"]).quiet();
    world
        .db()
        .execute("INSERT INTO dead_letters VALUES ('bot', 1, 1, 1, '', '2026-03-18T10:30:00.123Z', 0)", [])
        .unwrap();
    pass("2ms");
    pass("1ms");
    assert_eq!(states(&world), ["a done"], "it is a dead letter");
    world.off(["dead", "discard", "bot", "1"]).ok();
    pass("2ms");
    pass("1ms");
    assert_eq!(states(&world), [] as [String; 0]);
    assert!(world.log().iter().any(|line| line.ends_with("retention: steps=1")));
}

#[test]
fn the_handler_in_python_works_as_the_page_says() {
    let world = World::with_thread();
    if !world.tool("python3") {
        return;
    }
    let page = crate::usage::page("docs/STEPS.md");
    let block = crate::usage::blocks(&page).into_iter().find(|block| block.language == "python").unwrap();
    world.write("kept.py", block.text);
    world.subscribe("bot", "exec python3 kept.py", &["--deliver", "ndjson", "--concurrency", "2"]);
    world.thread(["push", "--lines"]).stdin("a\nb\nc\n").ok();
    world.wait_until("all three", || world.consumer("bot")["last_acked_id"] == 3);
    assert_eq!(world.lines("paid.txt"), ["paid"; 3]);
    assert_eq!(world.lines("sent.txt"), ["receipt"; 3]);
    assert_eq!(world.consumer("bot")["dead"], 0);
}

#[test]
fn runs_name_the_steps_that_were_done_in_them() {
    let world = World::with_thread();
    let script =
        "set -e\nthread step a -- true\nthread step b -- true\nthread sleep c 200ms\nthread step d -- true";
    handle(&world, script, &[]);
    world.push("order");
    finishes(&world, 1);
    let runs = world.thread(["info", "bot", "--runs", "--json"]).quiet();
    let runs: Value = serde_json::from_str(&runs).unwrap();
    let steps: Vec<&Value> = runs["runs"].as_array().unwrap().iter().map(|run| &run["steps"]).collect();
    assert_eq!(steps, [&json!(["a", "b"]), &json!(["c", "d"])]);
    assert!(world.thread(["info", "bot", "--runs"]).quiet().contains(" steps=a,b"));
}

#[test]
fn info_says_what_sleeps_and_how_long() {
    for concurrency in [&[][..], &["--concurrency", "2"]] {
        let world = World::with_thread();
        let script = "set -e\nthread sleep nap 4s\nthread await x --subtype x";
        handle(&world, script, &[&["--filter", "subtype IS NULL"], concurrency].concat());
        world.push("order");
        let mut asleep = Value::Null;
        let mut sleeps = |with_time: bool| {
            world.wait_until("the sleep", || {
                asleep = world.consumer("bot");
                let is_asleep = asleep["state"] == "waiting" && asleep["asleep"] == true;
                is_asleep && asleep["next_try"].is_string() == with_time
            });
        };
        sleeps(true);
        // Not the end of the first sleep, which has no time either for a moment.
        let awaits = |line: &String| line.contains("await: consumer=bot id=1");
        world.wait_until("the next step", || world.log().iter().any(awaits));
        sleeps(false);
        assert_eq!((&asleep["state"], &asleep["attempt"]), (&json!("waiting"), &json!(0)));
        assert!(world.thread(["info", "bot"]).quiet().contains("state: waiting attempt=0 asleep=true\n"));
        if !concurrency.is_empty() {
            let waits = &asleep["in_hand"]["waits"][0];
            assert_eq!(waits, &json!({"event_id": 1, "attempt": 0, "asleep": true, "next_try": null}));
        }
    }
}

#[test]
fn rejecting_by_hand_counts_though_the_event_sleeps() {
    let world = World::with_thread();
    world.push("order");
    world.off(["subscribe", "bot", "--no-handler", "--concurrency", "1", "--backoff", "1h"]).quiet();
    let of = ["--consumer", "bot", "--event", "1"];
    let take = || world.off(["pop", "bot", "--claim", "1h"]).quiet();
    assert!(!take().is_empty());
    world.off([&["sleep", "nap", "200ms"], &of[..]].concat()).ends_with(75);
    // No attempt, and as long as the sleep.
    world.off(["nack", "bot", "1"]).quiet();
    let waits = &world.consumer("bot")["in_hand"]["waits"][0];
    assert_eq!((&waits["attempt"], &waits["asleep"]), (&json!(0), &json!(true)));
    world.wait_until("the end", || !take().is_empty());
    world.off([&["sleep", "nap", "200ms"], &of[..]].concat()).quiet();
    world.off([&["sleep", "other", "1h"], &of[..]].concat()).ends_with(75);
    world.off(["reject", "bot", "1"]).quiet();
    assert_eq!(world.consumer("bot")["dead"], 1);
}

#[test]
fn a_pool_of_an_earlier_version_gets_what_it_lacks() {
    let world = World::with_thread();
    handle(
        &world,
        "set -e\nthread await x --subtype x\necho >>done",
        &["--concurrency", "2", "--filter", "subtype IS NULL"],
    );
    // As version 1 made it, with an event that waits.
    world
        .db()
        .execute_batch(
            "ALTER TABLE waits DROP COLUMN asleep; PRAGMA user_version = 1; \
             INSERT INTO waits VALUES ('bot', 1, 2, 0, '2026-03-18T10:30:00.000Z', '2026-03-18T10:30:00.000Z')",
        )
        .unwrap();
    world.off(["push", "order"]).quiet();
    assert_eq!(world.consumer("bot")["in_hand"]["waits"][0]["attempt"], 2);
    world.off(["nack", "bot", "1", "--delay", "0s"]).quiet();
    world.thread(["dispatch"]).quiet();
    world.wait_until("the sleep", || world.consumer("bot")["asleep"] == true);
    assert_eq!(world.query("SELECT user_version FROM pragma_user_version"), 3);
    assert_eq!(world.consumer("bot")["in_hand"]["waits"][0]["attempt"], 3);
    world.thread(["push", "--subtype", "x", "y"]).quiet();
    finishes(&world, 1);
}

#[test]
fn a_run_that_has_gone_to_sleep_costs_no_attempt_though_its_supervisor_was_killed() {
    for concurrency in [&[][..], &["--concurrency", "2"]] {
        let world = World::with_thread();
        let script = "echo >>began\nif [ $(wc -l <began) = 1 ]; then until [ -e go ]; do sleep 0.01; done; fi\n\
                      thread sleep nap 300ms || exit\necho >>done";
        handle(&world, script, &[&["--max-attempts", "1"], concurrency].concat());
        world.push("order");
        world.wait_for_file("began");
        world.kill_supervisor("bot");
        world.write("go", "");
        // On a slow machine, it may be over already.
        world.wait_until("the sleep", || states(&world) == ["nap waiting"] || states(&world) == ["nap due"]);
        world.wait_until("the end", || {
            world.thread(["dispatch"]).ok();
            world.lines("done").len() == 1
        });
        finishes(&world, 1);
        assert_eq!((world.lines("began").len(), world.consumer("bot")["dead"].clone()), (2, json!(0)));
    }
}

#[test]
fn an_event_that_came_after_the_time_was_over_is_too_late_though_nobody_looked() {
    let world = World::with_thread();
    world.thread(["subscribe", "bot", "--no-handler"]).quiet();
    world.push("x");
    let wait = ["await", "ok", "--consumer", "bot", "--event", "1", "--subtype", "ok", "--timeout", "300ms"];
    world.thread(wait).ends_with(75);
    let until =
        world.query("SELECT CAST(unixepoch(step ->> '$.until', 'subsec') * 1000 AS INTEGER) FROM steps");
    wait_until("the time to be over", || chrono::Utc::now().timestamp_millis() > until);
    world.thread(["push", "--subtype", "ok", "late"]).quiet();
    world.thread(wait).ends_with(3);
    world.thread(wait).ends_with(3);
}

#[test]
fn a_name_that_is_used_for_a_sleep_is_none_for_a_command() {
    let world = by_hand();
    world.off(["sleep", "a", "1h", "--consumer", "bot", "--event", "1"]).ends_with(75);
    step(&world, "a").fails(2);
    assert_eq!(states(&world), ["a waiting"]);
}

#[test]
fn what_sleeps_for_another_event_or_consumer_holds_nothing_up() {
    let world = by_hand();
    world.push("another");
    world.idle_consumer("other", "");
    world.off(["sleep", "nap", "1h", "--consumer", "bot", "--event", "2"]).ends_with(75);
    world.off(["sleep", "nap", "1h", "--consumer", "other", "--event", "1"]).ends_with(75);
    step(&world, "a").ok();
    world.off(["sleep", "nap", "1h", "--consumer", "bot", "--event", "1"]).ends_with(75);
    step(&world, "b").ends_with(75);
}

#[test]
fn a_step_that_cannot_be_read_is_done_anew_and_one_that_is_begun_again_is_as_old_as_it_was() {
    let world = by_hand();
    world.push("another");
    world.idle_consumer("other", "");
    for [name, consumer, event] in
        [["a", "bot", "1"], ["b", "bot", "1"], ["a", "bot", "2"], ["a", "other", "1"]]
    {
        world.off(["step", name, "--consumer", consumer, "--event", event, "--", "true"]).quiet();
    }
    let is_a = "consumer_id = 'bot' AND event_id = 1 AND name = 'a'";
    world.db().execute(&format!("UPDATE steps SET step = 'x' WHERE {is_a}"), []).unwrap();
    world.off(["step", "a", "--consumer", "bot", "--event", "1", "--", "false"]).ends_with(1);
    let old = "2020-01-01T00:00:00Z";
    world
        .db()
        .execute(&format!("UPDATE steps SET step = json_set(step, '$.since', '{old}') WHERE {is_a}"), [])
        .unwrap();
    world.off(["step", "a", "--consumer", "bot", "--event", "1", "--", "true"]).quiet();
    assert_eq!(
        world.query(&format!("SELECT json_extract(step, '$.since') = '{old}' FROM steps WHERE {is_a}")),
        1
    );
    assert_eq!(states(&world).len(), 3);
}

#[test]
fn the_sleep_of_an_event_lasts_until_it_is_acknowledged_whatever_becomes_of_others() {
    let world = World::with_thread();
    world.off(["push", "--lines"]).stdin("x\n".repeat(4)).ok();
    let options = ["--concurrency", "4", "--max-attempts", "1", "--stall-after", "1"];
    world.off([&["subscribe", "bot", "--no-handler"], &options[..]].concat()).quiet();
    world.off(["pop", "bot", "--claim", "1h", "--limit", "4"]).ok();
    for event in ["1", "4"] {
        world.off(["sleep", "nap", "1h", "--consumer", "bot", "--event", event]).ends_with(75);
    }
    world.off(["nack", "bot", "2"]).quiet();
    world.off(["nack", "bot", "3"]).quiet();
    assert_eq!(world.state("bot"), "stalled");
    let marks = |ids: &str| {
        let sql =
            "SELECT (SELECT group_concat(key) FROM json_each(run, '$.asleep')) = '{ids}' FROM consumers";
        assert_eq!(world.query(&sql.replace("{ids}", ids)), 1, "{ids}");
    };
    marks("1,4");
    world.off(["ack", "bot", "4"]).quiet();
    assert_eq!(world.state("bot"), "idle");
    marks("1");
    world.off(["nack", "bot", "1"]).quiet();
    assert_eq!(world.query("SELECT asleep FROM waits WHERE event_id = 1"), 1);
}
