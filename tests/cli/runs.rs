//! `thread info CONSUMER --runs`: the record of a consumer's last runs.

use serde_json::{Value, json};
use thread_testkit::{World, wait_until};

fn runs(world: &World) -> Vec<Value> {
    let shown = world.thread(["info", "bot", "--runs", "--json"]).quiet();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["consumer_id"], "bot");
    shown["runs"].as_array().unwrap().clone()
}

fn wait_for_runs(world: &World, number: usize) -> Vec<Value> {
    wait_until("the runs to end", || runs(world).len() >= number);
    runs(world)
}

/// What the handler printed in a run, cut from its log.
fn output(world: &World, run: &Value) -> String {
    let log = world.read("inbox/logs/handlers/bot.log");
    let (offset, length) = (run["log_offset"].as_u64().unwrap(), run["log_length"].as_u64().unwrap());
    log[offset as usize..(offset + length) as usize].to_owned()
}

#[test]
fn each_run_is_shown_with_what_it_got_and_how_it_ended() {
    let world = World::with_thread();
    let handler = "cat >/dev/null; echo \"run of $$\"; [ -e ready ] || { : >ready; exit 7; }";
    world.subscribe("bot", handler, &["--deliver", "stdin", "--backoff", "10ms"]);
    world.off(["push", "--lines"]).stdin("a\nb\n").ok();
    world.thread(["dispatch"]).quiet();
    // Together, then each alone.
    wait_for_runs(&world, 3);
    world.wait_until_quiet();
    let runs = runs(&world);
    let about = |run: &Value| ["result", "exit", "attempt", "events", "upto"].map(|name| run[name].clone());
    assert_eq!(about(&runs[0]), [json!("failed"), json!(7), json!(1), json!(2), json!(2)]);
    assert_eq!(about(&runs[1]), [json!("succeeded"), json!(0), json!(1), json!(1), json!(1)]);
    assert_eq!(about(&runs[2]), [json!("succeeded"), json!(0), json!(1), json!(1), json!(2)]);
    for run in &runs {
        let printed = output(&world, run);
        assert!(printed.starts_with("run of ") && printed.ends_with('\n'), "{printed:?}");
        assert!(run["began"].as_str() <= run["ended"].as_str() && run["seconds"].as_f64() >= Some(0.0));
    }
    let began = runs[0]["began"].as_str().unwrap();
    let shown = world.thread(["info", "bot", "--runs"]).quiet();
    let first = shown.lines().next().unwrap();
    assert!(first.starts_with(&format!("{began} after=")), "{first}");
    let (offset, length) = (&runs[0]["log_offset"], &runs[0]["log_length"]);
    let rest =
        format!(" failed exit=7 attempt=1 events=2 upto=2 log_offset={offset} log_length={length} run=1");
    assert!(first.ends_with(&rest), "{first}");
    assert_eq!(shown.lines().count(), 3);
}

#[test]
fn runs_end_in_one_of_several_ways() {
    let world = World::with_thread();
    world.subscribe("bot", "sleep 60", &["--timeout", "50ms", "--backoff", "1h"]);
    world.push("x");
    let run = wait_for_runs(&world, 1).pop().unwrap();
    assert_eq!(
        (&run["result"], &run["exit"], &run["events"]),
        (&json!("timed_out"), &json!(124), &json!(null))
    );
    world.subscribe("bot", ": >begun; sleep 60", &["--replace", "--timeout", "none"]);
    world.wait_for_file("begun");
    world.thread(["stop", "bot"]).quiet();
    assert_eq!(wait_for_runs(&world, 2)[1]["result"], "stopped");
    let judged = ["--replace", "--deliver", "stdin"];
    world.subscribe("bot", "exit 65", &judged);
    let run = wait_for_runs(&world, 3).pop().unwrap();
    assert_eq!((&run["result"], &run["exit"], &run["upto"]), (&json!("dead"), &json!(65), &json!(1)));
    // They outlive the subscription.
    world.thread(["unsubscribe", "bot"]).ok();
    assert_eq!(runs(&world).len(), 3);
    world.thread(["info", "nobody", "--runs"]).fails(1);
    world.thread(["info", "--runs"]).fails(2);
}

#[test]
fn a_database_of_an_earlier_version_gets_the_record_with_its_first_run() {
    let world = World::with_thread();
    world.db().execute_batch("DROP TABLE runs").unwrap();
    let tables = || world.query("SELECT count(*) FROM sqlite_schema WHERE name = 'runs'");
    world.subscribe("bot", "cat >/dev/null", &["--deliver", "stdin"]);
    assert_eq!(world.thread(["doctor"]).quiet(), "healthy\n");
    assert_eq!(runs(&world), [json!(null); 0]);
    world.off(["push", "x"]).ok();
    assert_eq!(tables(), 0);
    world.thread(["dispatch"]).quiet();
    assert_eq!(wait_for_runs(&world, 1)[0]["result"], "succeeded");
    assert_eq!(tables(), 1);
    world.thread(["backup", "copy"]).quiet();
    let copied = world.thread(["info", "-t", "copy", "bot", "--runs"]).quiet();
    // The handler's log is not copied.
    assert!(copied.ends_with(" succeeded exit=0 attempt=1 events=1 upto=1 run=1\n"), "{copied}");
}

#[test]
fn output_that_was_rotated_away_has_no_place_in_the_log() {
    let world = World::with_thread();
    world.subscribe("bot", "cat >/dev/null; echo out", &["--deliver", "stdin"]);
    world.push("x");
    assert_eq!(output(&world, &wait_for_runs(&world, 1)[0]), "out\n");
    std::fs::rename(world.path("inbox/logs/handlers/bot.log"), world.path("inbox/logs/handlers/bot~1.log"))
        .unwrap();
    world.push("y");
    let runs = wait_for_runs(&world, 2);
    assert_eq!(runs[0]["log_offset"], json!(null));
    assert_eq!(output(&world, &runs[1]), "out\n");
}

#[test]
fn what_a_run_printed_is_cut_from_the_log_by_its_number() {
    let world = World::with_thread();
    let handler =
        "cat >/dev/null; echo \"run of $$\"; printf 'no newline'; [ -e ready ] || { : >ready; exit 7; }";
    world.subscribe("bot", handler, &["--deliver", "stdin", "--backoff", "10ms"]);
    world.push("x");
    let runs = wait_for_runs(&world, 2);
    let logs = |number: &str| world.thread(["logs", "bot", "--run", number]);
    for (run, number) in runs.iter().zip(["1", "2"]) {
        assert_eq!(run["run"].to_string(), number);
        // The log has a newline before the line that follows.
        let printed = output(&world, run);
        assert!(printed.starts_with("run of ") && printed.ends_with("no newline"), "{printed:?}");
        assert_eq!(logs(number).quiet(), printed);
    }
    assert_ne!(logs("1").quiet(), logs("2").quiet());
    assert_eq!(logs("last").quiet(), logs("2").quiet());
    let said = logs("3").fails(1);
    assert!(said.contains("there is no run 3 of 'bot' - `thread info bot --runs` lists"), "{said}");
    logs("0").fails(2);
    world.thread(["logs", "bot", "--run", "1", "--tail", "2"]).fails(2);
    world.thread(["logs", "nobody", "--run", "1"]).fails(1);
    // The log of another run at the same place is not taken for it.
    let log = world.read("inbox/logs/handlers/bot.log");
    world.write("inbox/logs/handlers/bot.log", "x".repeat(log.len()));
    let said = logs("2").fails(1);
    assert!(
        said.contains("the log has no output of run 2 of 'bot', or no longer, as it was rotated"),
        "{said}"
    );
    // A run outlives its subscription.
    world.thread(["unsubscribe", "bot"]).ok();
    logs("2").fails(1);
    // Nothing is kept in the database besides.
    assert_eq!(world.query("SELECT count(*) FROM runs WHERE run LIKE '%tail%' OR run LIKE '%run of%'"), 0);
}
