//! Handlers that are kept: `--deliver ndjson`.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::Path;

use thread_testkit::{World, is_running, kill_and_wait, quoted, wait_until};

/// Reads events as a shell can: `$id` is the id, `$line` the event.
const EACH: &str = "while read -r line; do id=${line#*:}; id=${id%%,*}; echo \"$id\" >>given;";

const ACK: &str = "echo \"{\\\"ack\\\":$id}\";";

fn subscribe(world: &World, handler: &str, options: &[&str]) {
    let options = [&["--deliver", "ndjson"], options].concat();
    world.subscribe("bot", handler, &options);
}

/// Answers each event by the first line of a `case` that matches it.
fn answering(world: &World, cases: &str, options: &[&str]) {
    subscribe(
        world,
        &format!("{EACH} case $line in {cases} *) {ACK}; esac; done").replace(";;;", ";;"),
        options,
    );
}

fn number(world: &World, key: &str) -> i64 {
    world.consumer("bot")[key].as_i64().unwrap()
}

fn finishes(world: &World, cursor: i64) {
    wait_until("the cursor", || number(world, "last_acked_id") == cursor && number(world, "pending") == 0);
}

fn given(world: &World) -> Vec<i64> {
    world.lines("given").iter().map(|id| id.parse().unwrap()).collect()
}

fn dead(world: &World) -> Vec<(i64, i64, String)> {
    let list = world.thread(["dead", "list", "bot", "--json"]).ok();
    let letters = list.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let of = |letter: Value| {
        let error = letter["last_error"].as_str().unwrap().to_owned();
        (letter["event_id"].as_i64().unwrap(), letter["attempts"].as_i64().unwrap(), error)
    };
    letters.map(of).collect()
}

fn handler_log(world: &World) -> String {
    world.read("inbox/logs/handlers/bot.log")
}

fn handler_pid(world: &World) -> u32 {
    let mut pid = None;
    wait_until("the handler's process", || {
        pid = world.run_state("bot", "$.handler.pid").as_u64();
        pid.is_some()
    });
    pid.unwrap() as u32
}

#[test]
fn one_process_gets_each_event_as_a_line_and_answers_it() {
    let world = World::with_thread();
    subscribe(&world, &format!("echo begin >>begun; {EACH} printf '%s\\n' \"$line\" >>got; {ACK} done"), &[]);
    for content in ["a", "b", "c"] {
        let id = world.push(content);
        finishes(&world, id);
    }
    assert_eq!((given(&world), world.lines("begun").len()), (vec![1, 2, 3], 1));
    let printed = world.thread(["peek", "--last-event-id", "0"]).ok();
    assert_eq!(world.read("got"), printed);
    assert_eq!(world.state("bot"), "running");
    // Nothing is left of what was finished in its place.
    assert_eq!(world.query("SELECT (SELECT count(*) FROM finished) + (SELECT count(*) FROM waits)"), 0);
}

#[test]
fn a_handler_without_work_is_ended_and_started_again() {
    let world = World::with_thread();
    subscribe(&world, &format!("{EACH} {ACK} done; echo end >>ended"), &["--idle", "100ms"]);
    for content in ["a", "b"] {
        let id = world.push(content);
        finishes(&world, id);
        wait_until("its end", || world.state("bot") == "idle");
    }
    assert_eq!((given(&world), world.lines("ended").len()), (vec![1, 2], 2));
    assert_eq!(number(&world, "runs_succeeded"), 2);
    assert_eq!(number(&world, "runs_failed"), 0);
}

#[test]
fn events_finish_in_any_order() {
    let world = World::with_thread();
    let batch: String = (1..=4).map(|n| format!("{n}\n")).collect();
    world.thread(["push", "--lines"]).stdin(batch).ok();
    // It answers the last ones first, and the first two when it is told to.
    let handler = "read -r a; read -r b; read -r c; read -r d; echo '{\"ack\":4}'; echo '{\"ack\":3}'; \
                   while ! [ -e go ]; do sleep 0.02; done; echo '{\"ack\":2}'; echo '{\"ack\":1}'; cat";
    subscribe(&world, handler, &[]);
    wait_until("two to be finished", || number(&world, "pending") == 2);
    assert_eq!(number(&world, "last_acked_id"), 0);
    assert_eq!(number(&world, "oldest_pending_id"), 1);
    assert_eq!(world.query("SELECT first_id * 10 + last_id FROM finished"), 34);
    world.write("go", "");
    finishes(&world, 4);
}

#[test]
fn what_was_finished_out_of_order_is_not_given_again_after_a_kill() {
    let world = World::with_thread();
    world.thread(["push", "--lines"]).stdin("1\n2\n3\n").ok();
    subscribe(&world, "read -r a; read -r b; echo '{\"ack\":2}'; sleep 1000", &["--backoff", "1h"]);
    wait_until("one to be finished", || number(&world, "pending") == 2);
    world.kill_supervisor("bot");
    subscribe_again(&world, &format!("{EACH} {ACK} done"));
    finishes(&world, 3);
    let mut given = given(&world);
    given.sort_unstable();
    assert_eq!(given, [1, 3]);
}

fn subscribe_again(world: &World, handler: &str) {
    world.thread(["subscribe", "bot", handler, "--replace"]).ok();
    world.thread(["resume", "bot"]).ok();
}

#[test]
fn an_event_that_is_put_off_comes_again_and_holds_back_nothing() {
    let world = World::with_thread();
    answering(
        &world,
        "*later*) if [ -e seen ]; then echo '{\"ack\":1}'; else touch seen; echo '{\"nack\":1,\"delay\":\"1h\",\"error\":\"not yet\"}'; fi;;",
        &[],
    );
    world.push("later");
    world.push("b");
    wait_until("the other one", || number(&world, "pending") == 1);
    assert_eq!(number(&world, "last_acked_id"), 0);
    assert_eq!(world.query("SELECT attempts FROM waits WHERE event_id = 1"), 1);
    assert_eq!(world.query("SELECT count(*) FROM finished WHERE first_id = 2 AND last_id = 2"), 1);
    // By hand, it comes at once.
    world.thread(["nack", "bot", "1", "--delay", "0s", "--no-attempt"]).ok();
    finishes(&world, 2);
    assert_eq!(given(&world), [1, 2, 1]);
}

#[test]
fn after_its_attempts_an_event_is_a_dead_letter_and_a_rejected_one_at_once() {
    let world = World::with_thread();
    let cases = "*fails*) echo '{\"nack\":1,\"error\":\"no luck\"}';; *bad*) echo '{\"reject\":2,\"error\":\"no sense\"}';; *off*) echo '{\"nack\":3,\"attempt\":false}';;";
    answering(&world, cases, &["--backoff", "10ms", "--max-attempts", "3"]);
    for content in ["fails", "bad", "off", "good"] {
        world.push(content);
    }
    wait_until("two dead letters", || number(&world, "dead") == 2);
    let error = |text: &str| text.to_owned();
    assert_eq!(dead(&world), [(1, 3, error("no luck")), (2, 1, error("no sense"))]);
    // That one is put off as often as it likes.
    wait_until("many tries", || given(&world).iter().filter(|id| **id == 3).count() > 5);
    assert_eq!((number(&world, "dead"), number(&world, "pending")), (2, 1));
    // A dead letter is given alone, and its answer decides.
    world.thread(["dead", "retry", "bot", "1"]).ok();
    wait_until("it to fail again", || dead(&world)[0].1 == 4);
    let runs = world.thread(["info", "bot", "--runs", "--json"]).ok();
    let runs: Value = serde_json::from_str(&runs).unwrap();
    let results: Vec<_> = runs["runs"].as_array().unwrap().iter().map(|run| run["result"].clone()).collect();
    for result in ["failed", "dead", "deferred"] {
        assert!(results.contains(&result.into()), "{runs}");
    }
}

#[test]
fn the_event_that_ends_its_handler_is_found() {
    let world = World::with_thread();
    let batch: String =
        (1..=6).map(|n| if n == 4 { "kills\n".to_owned() } else { format!("{n}\n") }).collect();
    world.thread(["push", "--lines"]).stdin(batch).ok();
    // It has read all of them when it dies, and has answered none.
    let handler = format!(
        "[ -e twice ] || {{ touch twice; cat >/dev/null & sleep 0.5; exit 3; }}; {EACH} case $line in *kills*) kill -KILL $$;; *) {ACK}; esac; done"
    );
    subscribe(&world, &handler.replace(";; esac", "; esac"), &["--backoff", "10ms", "--max-attempts", "2"]);
    wait_until("the dead letter", || number(&world, "dead") == 1);
    assert_eq!(dead(&world)[0].0, 4);
    finishes(&world, 6);
    // Each of the others was acknowledged by its handler.
    let mut acked = given(&world);
    acked.dedup();
    acked.retain(|id| *id != 4);
    assert_eq!(acked, [1, 2, 3, 5, 6]);
}

#[test]
fn only_answers_for_what_it_was_given_count() {
    let world = World::with_thread();
    world.thread(["push", "--lines"]).stdin("1\n2\n3\n").ok();
    let lines = [
        "{\"ack\":2}",
        "{\"ack\":2}",
        "{\"ack\":9}",
        "{\"nack\":-1}",
        "{\"ack\":\"1\"}",
        "{\"ack\":1,\"nack\":1}",
        "ack 1",
        "{\"ack\":1",
        "[{\"ack\":1}]",
        "{\"reject\":3,\"error\":7}",
        "{}",
    ];
    let lines: String = lines.map(|line| format!("{line}\n")).concat();
    world.write("lines", &lines);
    subscribe(
        &world,
        "read -r a; read -r b; read -r c; cat lines; printf '\\377\\0garbage' ; echo; touch said; cat",
        &[],
    );
    world.wait_for_file("said");
    wait_until("its log", || handler_log(&world).contains("garbage"));
    wait_until("the answer", || number(&world, "pending") == 2);
    let log = handler_log(&world);
    assert_eq!(log.matches("an answer for event").count(), 3, "{log}");
    assert_eq!(log.matches("=== not an answer: ").count(), 4, "{log}");
    assert!(log.contains("\nack 1\n"), "{log}");
    assert_eq!((number(&world, "pending"), number(&world, "dead")), (2, 0));
}

#[test]
fn a_line_without_an_end_is_output_and_takes_little_memory() {
    let world = World::with_thread();
    world.push("a");
    let handler = format!("head -c 30000000 /dev/zero | tr '\\0' x; {EACH} {ACK} done");
    subscribe(&world, &handler, &[]);
    // The answer is a part of that line, so it is none.
    wait_until("all of it", || {
        let logs = std::fs::read_dir(world.path("inbox/logs/handlers")).into_iter().flatten().flatten();
        logs.filter_map(|log| Some(log.metadata().ok()?.len())).sum::<u64>() > 10_000_000
            && given(&world) == [1]
    });
    assert_eq!(number(&world, "last_acked_id"), 0);
    world.push("b");
    wait_until("the next answer", || number(&world, "pending") == 1);
    let supervisor = world.run_state("bot", "$.supervisor.pid");
    let status = std::fs::read_to_string(format!("/proc/{supervisor}/status")).unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0 kB");
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 40_000, "{peak} kB");
}

#[test]
fn a_handler_that_does_not_answer_is_ended_after_its_time() {
    let world = World::with_thread();
    world.thread(["push", "--lines"]).stdin("1\n2\n").ok();
    subscribe(
        &world,
        "read -r a; read -r b; echo '{\"ack\":2}'; sleep 1000",
        &["--timeout", "300ms", "--max-attempts", "1"],
    );
    wait_until("the dead letter", || number(&world, "dead") == 1);
    assert_eq!(dead(&world)[0].0, 1);
    finishes(&world, 2);
    wait_until("its end", || world.state("bot") == "idle");
    assert_eq!(world.consumer("bot")["last_exit"], "timed out");
}

#[test]
fn a_handler_that_closes_its_pipes_or_leaves_a_child_is_ended_whole() {
    for (handler, why) in [
        ("exec >&-; sleep 1000 & wait", "closed"),
        ("exec <&-; sleep 1000 & wait", "closed"),
        ("(sleep 1000; echo '{\"ack\":1}') & exit 0", "left"),
    ] {
        let world = World::with_thread();
        world.push("a");
        subscribe(&world, handler, &["--max-attempts", "1"]);
        wait_until(why, || number(&world, "dead") == 1);
        wait_until("its end", || world.state("bot") == "idle");
        world.wait_until_quiet();
        assert_eq!(dead(&world)[0].0, 1, "{handler}");
    }
}

#[test]
fn a_handler_ends_with_its_supervisor_and_nothing_works_on_beside_the_next() {
    let world = World::with_thread();
    let alone = "exec 9>work; flock -n 9 || echo beside >>beside; sleep 1000 9>&9 &";
    subscribe(&world, &format!("{alone} {EACH} {ACK} done"), &["--backoff", "10ms"]);
    for round in 1..=4 {
        let id = world.push("a");
        finishes(&world, id);
        let handler = handler_pid(&world);
        if round % 2 == 0 {
            world.kill_supervisor("bot");
        } else {
            kill_process(Pid::from_raw(handler as i32).unwrap(), Signal::KILL).unwrap();
        }
        wait_until("its end", || !is_running(handler));
    }
    let id = world.push("a");
    wait_until("the last one", || {
        world.thread(["dispatch"]).ok();
        number(&world, "last_acked_id") == id
    });
    assert_eq!(world.read("beside"), "");
    kill_and_wait(handler_pid(&world));
}

#[test]
fn with_one_at_a_time_events_are_handled_in_order() {
    let world = World::with_thread();
    world.thread(["push", "--lines"]).stdin("1\n2\n3\n4\n").ok();
    let cases =
        "*\\\"2\\\"*) if [ -e seen ]; then echo '{\"ack\":2}'; else touch seen; echo '{\"nack\":2}'; fi;;";
    answering(&world, cases, &["--batch-size", "1", "--backoff", "200ms"]);
    finishes(&world, 4);
    assert_eq!(given(&world), [1, 2, 2, 3, 4]);
}

#[test]
fn pause_stop_seek_and_replace_while_a_handler_is_kept() {
    let world = World::with_thread();
    subscribe(&world, &format!("{EACH} {ACK} done; echo end >>ended"), &[]);
    finishes(&world, world.push("a"));
    world.thread(["pause", "bot"]).ok();
    wait_until("its end", || world.state("bot") == "paused");
    assert_eq!(world.lines("ended").len(), 1);
    world.push("b");
    world.thread(["resume", "bot"]).ok();
    finishes(&world, 2);
    // What it has answered before the cursor is moved back counts no more.
    world.thread(["seek", "bot", "earliest"]).ok();
    wait_until("all again", || given(&world).len() == 4);
    finishes(&world, 2);
    assert_eq!(given(&world), [1, 2, 1, 2]);
    world.thread(["subscribe", "bot", &format!("{EACH} echo new >>new; {ACK} done"), "--replace"]).ok();
    finishes(&world, world.push("c"));
    assert_eq!(world.read("new"), "new\n");
    world.thread(["stop", "bot"]).ok();
    assert_eq!(world.state("bot"), "stalled");
    finishes(&world, world.push("d"));
    world.thread(["unsubscribe", "bot"]).ok();
    world.wait_until_quiet();
    assert_eq!(number_of_dead(&world), 0);
}

fn number_of_dead(world: &World) -> i64 {
    world.query("SELECT count(*) FROM dead_letters")
}

#[test]
fn answers_by_hand() {
    let world = World::with_thread();
    world.thread(["push", "--lines"]).stdin("1\n2\n3\n4\n5\n").ok();
    subscribe(&world, "cat >/dev/null; :", &["--backoff", "1h"]);
    world.thread(["ack", "bot", "2", "4"]).quiet();
    assert_eq!((number(&world, "last_acked_id"), number(&world, "pending")), (0, 3));
    world.thread(["reject", "bot", "5", "--error", "of no use"]).ok();
    assert_eq!(dead(&world), [(5, 1, "of no use".to_owned())]);
    let error = world.thread(["nack", "bot", "5"]).fails(1);
    assert!(error.contains("event 5 is not pending for 'bot'"), "{error}");
    assert_eq!(world.thread(["ack", "bot", "1"]).ok(), "2\n");
    assert_eq!(world.thread(["ack", "bot", "3"]).ok(), "5\n");
    let error = world.thread(["ack", "bot", "6"]).fails(1);
    assert!(error.contains("event 6 does not exist yet"), "{error}");
    world.thread(["ack", "bot", "99", "--force"]).ok();
    let error = world.thread(["pop", "bot", "--last-event-id", "3"]).fails(1);
    assert!(error.contains("finishes each event by itself"), "{error}");
    world.thread(["pop", "bot", "--resume"]).ok();
    world.idle_consumer("plain", "");
    for words in [&["nack", "plain", "1"][..], &["reject", "plain", "1"], &["ack", "plain", "1", "2"]] {
        world.thread(words).fails(2);
    }
    world.thread(["stop", "bot"]).ok();
}

#[test]
fn a_sync_push_waits_for_its_own_event() {
    let world = World::with_thread();
    answering(&world, "*later*) echo '{\"nack\":1,\"delay\":\"1h\"}';; *bad*) echo '{\"reject\":3}';;", &[]);
    world.push("later");
    wait_until("it to be put off", || world.query("SELECT count(*) FROM waits") == 1);
    assert_eq!(world.thread(["push", "good", "--sync", "1m"]).ok(), "2\n");
    let (_, error) = world.thread(["push", "bad", "--sync", "1m"]).ends_with(1);
    assert!(error.contains("dead letter"), "{error}");
}

#[test]
fn a_thread_has_another_version_only_once_an_event_may_finish_singly() {
    let world = World::with_thread();
    world.subscribe("plain", "cat", &["--deliver", "stdin"]);
    assert_eq!(world.query("PRAGMA user_version"), 0);
    assert_eq!(world.query("SELECT count(*) FROM sqlite_master WHERE name IN ('finished', 'waits')"), 0);
    subscribe(&world, "cat", &[]);
    assert_eq!(world.query("PRAGMA user_version"), 1);
    assert_eq!(world.thread(["doctor"]).ok(), "healthy\n");
}

#[test]
fn a_handler_that_cannot_work_now_costs_events_nothing() {
    let world = World::with_thread();
    let options = ["--deliver", "stdin", "--backoff", "10ms", "--max-attempts", "1"];
    world.subscribe("bot", "echo try >>tries; [ -e up ] || exit 75; cat >>got", &options);
    world.push("a");
    wait_until("many tries", || world.lines("tries").len() > 5);
    assert_eq!((number(&world, "dead"), number(&world, "runs_failed")), (0, 0));
    assert!(["waiting", "running"].contains(&world.state("bot").as_str()));
    world.write("up", "");
    finishes(&world, 1);
    assert_eq!(number(&world, "dead"), 0);
}

#[test]
fn attempts_at_an_event_are_not_those_at_the_next() {
    let world = World::with_thread();
    let options = ["--deliver", "stdin", "--batch-size", "1", "--backoff", "1h", "--max-attempts", "2"];
    world.subscribe("bot", "exit 1", &options);
    world.push("a");
    world.push("b");
    wait_until("the wait", || world.state("bot") == "waiting");
    world.thread(["ack", "bot", "1"]).ok();
    world.set_run_state("bot", "$.next_try", "2026-01-01T00:00:00Z");
    world.thread(["dispatch"]).ok();
    wait_until("the next one to be tried", || number(&world, "runs_failed") == 2);
    wait_until("the wait", || world.state("bot") == "waiting");
    assert_eq!((number(&world, "dead"), world.run_state("bot", "$.attempts").as_i64()), (0, Some(1)));
}

#[test]
fn a_stalled_consumer_probes_one_event() {
    let world = World::with_thread();
    let options = ["--deliver", "stdin", "--probe", "300ms"];
    world.subscribe("bot", "cat >>got; [ -e there ] || exit 127", &options);
    world.thread(["push", "--lines"]).stdin("1\n2\n3\n").ok();
    wait_until("some probes", || {
        world.lines("got").iter().filter(|line| line.contains("\"id\":1,")).count() >= 3
    });
    assert_eq!((number(&world, "dead"), number(&world, "last_acked_id")), (0, 0));
    world.write("there", "");
    finishes(&world, 3);
    // The first run had all of them, those that probed one.
    let tries = world.lines("got").iter().filter(|line| line.contains("\"id\":2,")).count();
    assert_eq!(tries, 2, "{:?}", world.lines("got"));
}

#[test]
fn the_examples_of_kept_handlers_answer_each_event() {
    for (program, file) in [("jq", "kept.sh"), ("python3", "kept.py"), ("node", "kept.mjs")] {
        let world = World::with_thread();
        if !world.tool(program) {
            continue;
        }
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(file);
        assert!(std::fs::read_to_string(&example).unwrap().lines().count() <= 25, "{file}");
        subscribe(&world, &quoted(&example), &[]);
        for content in [r#"{"item":"tea","count":2}"#, "no order", r#"{"item":"ham\u2028","count":1}"#] {
            world.push(content);
        }
        finishes(&world, 3);
        assert_eq!(dead(&world).iter().map(|(id, ..)| *id).collect::<Vec<_>>(), [2], "{file}");
        // Node.js handles them at the same time.
        let mut total = world.lines("total.txt");
        total.sort();
        assert_eq!(total, ["ham\u{2028} 1", "tea 2"], "{file}");
        // Nothing comes twice after its work is done, and it ends with its stdin.
        world.thread(["pause", "bot"]).ok();
        wait_until("its end", || world.state("bot") == "paused");
        assert_eq!(world.consumer("bot")["last_exit"], "exit=0", "{file}");
    }
}

fn results(world: &World) -> Vec<String> {
    let runs: Value = serde_json::from_str(&world.thread(["info", "bot", "--runs", "--json"]).ok()).unwrap();
    let runs = runs["runs"].as_array().unwrap().iter();
    runs.map(|run| run["result"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_seek_ends_the_handler_and_costs_no_attempt() {
    let world = World::with_thread();
    // The second event gets no answer from the first handler.
    let handler = format!("{EACH} [ $id = 2 ] && [ ! -e go ] && continue; {ACK} done");
    subscribe(&world, &handler, &["--max-attempts", "1"]);
    world.thread(["push", "--lines"]).stdin("1\n2\n").ok();
    wait_until("the first answer", || number(&world, "last_acked_id") == 1 && given(&world).len() == 2);
    world.write("go", "");
    world.thread(["seek", "bot", "earliest"]).ok();
    finishes(&world, 2);
    assert_eq!(given(&world), [1, 2, 1, 2]);
    assert_eq!((number(&world, "dead"), number(&world, "runs_failed")), (0, 0));
    assert_eq!(results(&world), ["interrupted"]);
    assert!(!world.log().iter().any(|line| line.contains("abandoned")), "{:?}", world.log());
}

#[test]
fn a_handler_that_ends_with_exit_0_before_it_has_answered_has_failed() {
    let world = World::with_thread();
    subscribe(&world, "read -r line", &["--max-attempts", "1"]);
    world.push("a");
    wait_until("the dead letter", || number(&world, "dead") == 1);
    wait_until("its end", || world.state("bot") == "idle");
    assert_eq!(number(&world, "runs_succeeded"), 0);
    assert!(!results(&world).contains(&"succeeded".to_owned()), "{:?}", results(&world));
}

#[test]
fn events_on_which_the_filter_fails_are_counted_while_the_handler_is_kept() {
    let world = World::with_thread();
    let filter = "CASE WHEN content = 'broken' THEN json_extract('{}', content) ELSE 1 END";
    subscribe(&world, &format!("{EACH} {ACK} done"), &["--filter", filter]);
    for (content, failures) in [("a", 0), ("broken", 1), ("b", 1), ("broken", 2), ("c", 2)] {
        world.push(content);
        wait_until("the next one", || number(&world, "filter_errors") == failures);
    }
    finishes(&world, 5);
    assert_eq!(given(&world), [1, 3, 5]);
    let logged = world.log().iter().filter(|line| line.contains("filter: consumer=bot id=")).count();
    assert_eq!(logged, 2, "{:?}", world.log());
}

fn state(world: &World) -> String {
    world.consumer("bot")["state"].as_str().unwrap().to_owned()
}

fn starts(world: &World) -> usize {
    world.log().iter().filter(|line| line.contains("consumer=bot spawned")).count()
}

fn push_many(world: &World, count: usize) {
    world.off(["push", "--lines"]).stdin("x\n".repeat(count)).ok();
}

/// A look by somebody else changes nothing.
fn stays_stalled(world: &World) {
    wait_until("it to stall", || state(world) == "stalled");
    let before = starts(world);
    world.thread(["dispatch"]).ok();
    world.wait_until_quiet();
    assert_eq!((state(world), starts(world)), ("stalled".to_owned(), before));
    // Something new is tried.
    world.push("new");
    wait_until("a start", || starts(world) > before);
}

#[test]
fn a_stop_and_a_stall_hold_for_a_backlog_that_the_handler_has_not_seen() {
    let world = World::with_thread();
    push_many(&world, 5);
    subscribe(&world, "exec sleep 1000", &["--batch-size", "2"]);
    handler_pid(&world);
    world.thread(["stop", "bot"]).ok();
    stays_stalled(&world);
    world.thread(["stop", "bot"]).ok();

    for (handler, options) in [
        ("while read -r e; do id=${e#*:}; echo \"{\\\"nack\\\":${id%%,*}}\"; done", ["--stall-after", "1"]),
        ("read -r e; exit 1", ["--stall-after", "1"]),
        ("/nonexistent", ["--stall-after", "10"]),
    ] {
        let world = World::with_thread();
        push_many(&world, 6);
        let options =
            [&options[..], &["--batch-size", "1", "--max-attempts", "1", "--backoff", "10ms"]].concat();
        subscribe(&world, handler, &options);
        stays_stalled(&world);
    }
}

#[test]
fn a_stop_ends_the_wait_of_a_run_and_those_of_events() {
    for handler in ["read -r e; exit 1", "read -r e; echo '{\"nack\":1,\"delay\":\"1h\"}'; cat"] {
        let world = World::with_thread();
        world.push("a");
        subscribe(&world, handler, &["--backoff", "1h", "--idle", "10ms"]);
        world.wait_until("it to wait", || state(&world) == "waiting");
        assert_eq!(world.consumer("bot")["attempt"], 1);
        world.thread(["stop", "bot"]).ok();
        assert_eq!((state(&world).as_str(), number(&world, "pending")), ("stalled", 1));
        world.thread(["resume", "bot"]).ok();
        world.wait_until("it to wait again", || state(&world) == "waiting");
        world.thread(["stop", "bot", "--skip"]).ok();
        assert_eq!((state(&world).as_str(), number(&world, "pending")), ("stalled", 0));
    }
}

#[test]
fn a_replacement_forgets_the_waits_of_events() {
    let world = World::with_thread();
    subscribe(&world, "read -r e; echo '{\"nack\":1,\"delay\":\"1h\"}'; cat", &["--idle", "10ms"]);
    world.push("a");
    world.wait_until("it to wait", || state(&world) == "waiting");
    subscribe(&world, "read -r e; echo '{\"ack\":1}'; cat", &["--replace"]);
    finishes(&world, 1);
}

#[test]
fn a_dead_letter_that_is_put_off_is_not_delivered_again_at_once() {
    for (handler, by) in [
        ("read -r e; exit 75", "1h"),
        ("read -r e; echo '{\"nack\":1,\"attempt\":false,\"delay\":\"1h\"}'; exit 0", "1h"),
    ] {
        let world = World::with_thread();
        subscribe(&world, "read -r e; echo '{\"reject\":1}'; cat", &["--idle", "10ms"]);
        world.push("a");
        wait_until("the dead letter", || number(&world, "dead") == 1);
        world.wait_until_quiet();
        subscribe(&world, handler, &["--replace", "--backoff", by]);
        let before = starts(&world);
        world.thread(["dead", "retry", "bot", "1"]).ok();
        world.wait_until("it to wait", || state(&world) == "waiting");
        world.thread(["dispatch"]).ok();
        assert_eq!(starts(&world), before + 1, "{handler}");
        assert_eq!(dead(&world)[0].1, 1, "{handler}");
    }
}

#[test]
fn a_handler_that_ends_before_it_reads_anything_uses_an_attempt_each_time() {
    let world = World::with_thread();
    subscribe(&world, "exit 1", &["--backoff", "1h", "--max-attempts", "never"]);
    world.push("a");
    for times in 1..=10 {
        world.wait_until("it to wait", || state(&world) == "waiting" && starts(&world) == times);
        world.thread(["resume", "bot"]).ok();
    }
    assert!(world.log().iter().all(|line| !line.contains("unanswered=0")));
}

#[test]
fn an_event_is_not_held_back_behind_those_at_the_handler() {
    let world = World::with_thread();
    subscribe(&world, &format!("{EACH} done"), &["--batch-size", "4"]);
    push_many(&world, 3);
    world.thread(["dispatch"]).ok();
    wait_until("three", || given(&world).len() == 3);
    world.push("fourth");
    wait_until("the fourth", || given(&world) == [1, 2, 3, 4]);
    world.thread(["stop", "bot"]).ok();
}

#[test]
fn an_end_after_a_request_costs_no_attempt_however_it_ends() {
    let world = World::with_thread();
    let one = ["--max-attempts", "1", "--backoff", "1h"];
    // Whoever reads to the end and then fails was asked to end.
    subscribe(&world, "while read -r e; do touch read; done; exit 1", &one);
    world.push("a");
    world.wait_for_file("read");
    world.thread(["pause", "bot"]).ok();
    wait_until("its end", || world.run_state("bot", "$.phase") == "idle");
    assert_eq!((number(&world, "pending"), number(&world, "dead")), (1, 0));

    subscribe(&world, "trap 'exit 143' TERM; read -r e; while :; do sleep 0.01; done", &["--replace"]);
    world.thread(["resume", "bot"]).ok();
    handler_pid(&world);
    wait_until("its event", || world.log().iter().filter(|line| line.contains("spawned")).count() == 2);
    let supervisor = world.run_state("bot", "$.supervisor.pid").as_u64().unwrap();
    let supervisor = Pid::from_raw(i32::try_from(supervisor).unwrap()).unwrap();
    kill_process(supervisor, Signal::TERM).unwrap();
    wait_until("the first request", || world.log().iter().any(|line| line.contains("ends after this run")));
    kill_process(supervisor, Signal::TERM).ok();
    world.wait_until_quiet();
    assert_eq!((number(&world, "pending"), number(&world, "dead")), (1, 0));
}

#[test]
fn a_handler_may_acknowledge_by_hand() {
    let world = World::with_thread();
    // More than it may hold.
    subscribe(&world, &format!("{EACH} thread ack bot $id >/dev/null; done"), &["--batch-size", "2"]);
    push_many(&world, 7);
    world.thread(["dispatch"]).ok();
    finishes(&world, 7);
    assert_eq!(given(&world), (1..=7).collect::<Vec<_>>());
    world.thread(["unsubscribe", "bot"]).ok();
    world.wait_until_quiet();

    // It fails at what is left, and not at what it has acknowledged.
    subscribe(&world, "read -r a; read -r b; thread ack bot 8 >/dev/null; exit 1", &["--max-attempts", "1"]);
    push_many(&world, 2);
    world.thread(["dispatch"]).ok();
    wait_until("the dead letter", || number(&world, "dead") == 1);
    assert_eq!(dead(&world).iter().map(|letter| letter.0).collect::<Vec<_>>(), [9]);
}

#[test]
fn an_acknowledgement_beyond_the_newest_event_is_of_all() {
    let world = World::with_thread();
    subscribe(&world, "exec sleep 1000", &[]);
    world.thread(["pause", "bot"]).ok();
    push_many(&world, 5);
    world.thread(["ack", "bot", "99"]).fails(1);
    world.thread(["ack", "bot", "99", "--force"]).ok();
    assert_eq!((number(&world, "pending"), number(&world, "last_acked_id")), (0, 5));
}

#[test]
fn a_handler_finishes_what_it_does_when_its_answers_count_no_more() {
    for change in [
        &["seek", "bot", "latest"][..],
        &["unsubscribe", "bot"],
        &["subscribe", "bot", "cat", "--replace", "--deliver", "stdin"],
    ] {
        let world = World::with_thread();
        subscribe(
            &world,
            "while read -r e; do touch begun; until [ -e go ]; do sleep 0.01; done; touch done; done",
            &[],
        );
        world.push("a");
        world.wait_for_file("begun");
        world.thread(change).ok();
        world.write("go", "");
        world.wait_for_file("done");
        world.wait_until_quiet();
    }
}

#[test]
fn a_stop_is_heard_after_a_seek() {
    let world = World::with_thread();
    subscribe(&world, "trap '' TERM; read -r e; while :; do sleep 0.1; done", &[]);
    world.push("a");
    let handler = handler_pid(&world);
    world.thread(["seek", "bot", "earliest"]).ok();
    world.thread(["stop", "bot", "--kill-after", "10ms"]).ok();
    assert!(!is_running(handler));
    assert_eq!((state(&world).as_str(), number(&world, "pending")), ("stalled", 1));
}
