//! `thread workers`: who handles events.

use std::process::{Child, Command};

use serde_json::{Value, json};
use thread_testkit::{Signal, World, kill, kill_and_wait, send, wait_until};

/// What it prints with `--json`, an object a line.
fn workers(world: &World, words: &[&str]) -> Vec<Value> {
    let words = ["workers", "--json"].into_iter().chain(words.iter().copied());
    world.thread(words).quiet().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A running worker, which is killed when it is dropped.
struct Worker(Child);

impl Worker {
    fn start(world: &World, words: &[&str]) -> Worker {
        let words = ["dispatch", "--follow", "--grace", "0s"].into_iter().chain(words.iter().copied());
        let mut command: Command = world.thread(words).into_command();
        Worker(command.spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn ends(&mut self) {
        send(self.pid(), Signal::TERM);
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A handler that works until the file `done` is there.
const SLOW: &str = "echo $$ >>begun; while ! [ -e done ]; do sleep 0.02; done; cat >/dev/null";

#[test]
fn where_nobody_works_it_says_so() {
    let world = World::with_thread();
    let said = world.thread(["workers"]).quiet();
    assert_eq!(said, "no worker follows, and nothing is running; a push starts what is due\n");
    assert!(workers(&world, &[]).is_empty());
    world.thread(["workers", "-t", "nothing"]).fails(1);
    world.thread(["workers", "--root", "inbox"]).fails(2);
}

#[test]
fn a_worker_is_shown_with_its_runs_until_it_ends() {
    let world = World::with_thread();
    world.subscribe("bot", SLOW, &["--deliver", "stdin"]);
    let mut worker = Worker::start(&world, &[]);
    wait_until("the worker", || workers(&world, &[]).len() == 1);
    let shown = workers(&world, &[]).pop().unwrap();
    assert_eq!((&shown["kind"], &shown["pid"]), (&json!("worker"), &json!(worker.pid())));
    assert_eq!(
        (&shown["age_seconds"], &shown["lost"], &shown["runs"]),
        (&json!(0.0), &json!(false), &json!([]))
    );
    assert!(shown["host"].is_string() && shown["since"].as_str() <= shown["last_seen"].as_str());
    world.off(["push", "x"]).ok();
    wait_until("the run", || workers(&world, &[])[0]["runs"][0]["consumer_id"] == "bot");
    let shown = workers(&world, &[]);
    let run = &shown[0]["runs"][0];
    let about = ["attempt", "events", "upto"].map(|name| run[name].as_u64());
    assert_eq!((shown.len(), about), (1, [Some(1); 3]), "{shown:?}");
    assert!(run["seconds"].as_f64() >= Some(0.0) && run["thread"] == world.inbox().to_str().unwrap());
    let text = world.thread(["workers"]).quiet();
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].starts_with("worker host=") && lines[0].contains(&format!(" pid={} since=", worker.pid()))
    );
    assert!(lines[0].ends_with(" age=0s") && lines[1].starts_with("  run bot attempt=1 since="), "{text}");
    assert!(lines[1].contains(" for=") && lines[1].ends_with(" events=1 upto=1"), "{text}");
    world.write("done", "");
    world.wait_for_state("bot", "idle");
    wait_until("the end of the run", || workers(&world, &[])[0]["runs"] == json!([]));
    worker.ends();
    assert!(workers(&world, &[]).is_empty());
    assert_eq!(world.read("inbox/run/_workers"), "");
    assert_eq!(world.thread(["doctor"]).quiet(), "healthy\n");
}

#[test]
fn runs_without_a_worker_have_their_supervisor_or_else_their_handler() {
    let world = World::with_thread();
    world.subscribe("bot", SLOW, &["--deliver", "stdin"]);
    world.push("x");
    world.wait_for_file("begun");
    let shown = workers(&world, &[]);
    let supervisor = shown[0]["pid"].as_u64().unwrap() as u32;
    assert_eq!((shown.len(), &shown[0]["kind"]), (1, &json!("supervisor")), "{shown:?}");
    assert_eq!(shown[0]["runs"][0]["attempt"], 1);
    let handler: u32 = world.read("begun").trim().parse().unwrap();
    assert_ne!(supervisor, handler);
    // `info` knows the handler's process from the moment at which that is recorded.
    wait_until("the handler's record", || world.consumer("bot")["pid"] == handler);
    kill_and_wait(supervisor);
    let shown = workers(&world, &[]);
    let about = ["kind", "pid"].map(|name| shown[0][name].clone());
    assert_eq!((shown.len(), about), (1, [json!("handler"), json!(handler)]), "{shown:?}");
    kill(handler);
    wait_until("its end", || workers(&world, &[]).is_empty());
}

#[test]
fn a_worker_that_was_killed_is_gone_at_once_and_its_line_with_the_next_one() {
    let world = World::with_thread();
    let first = Worker::start(&world, &[]);
    let second = Worker::start(&world, &[]);
    wait_until("two workers", || workers(&world, &[]).len() == 2);
    let lines = || world.lines("inbox/run/_workers").len();
    drop((first, second));
    assert_eq!((workers(&world, &[]).len(), lines()), (0, 2));
    // A line that is only half there, or of another machine or container.
    let text = world.read("inbox/run/_workers");
    let elsewhere = text.lines().next().unwrap().replace("\"namespace\":", "\"namespace\":1");
    world.write("inbox/run/_workers", format!("{elsewhere}\n{text}{{\"process\":"));
    let shown = workers(&world, &[]);
    assert_eq!((shown.len(), &shown[0]["last_seen"], &shown[0]["lost"]), (1, &json!(null), &json!(false)));
    let third = Worker::start(&world, &[]);
    wait_until("the third", || workers(&world, &[]).iter().any(|one| one["pid"] == third.pid()));
    assert_eq!(lines(), 2);
}

#[test]
fn several_threads_are_shown_together() {
    let world = World::with_thread();
    world.thread(["init", "root/a"]).ok();
    world.thread(["init", "root/b"]).ok();
    let worker = Worker::start(&world, &["--root", "root"]);
    let all = ["--root", "root"];
    wait_until("the worker", || workers(&world, &all).first().is_some_and(|one| one["threads"] == 2));
    let shown = workers(&world, &all);
    assert_eq!((shown.len(), &shown[0]["pid"]), (1, &json!(worker.pid())));
    let both = workers(&world, &["-t", "root/b", "-t", "inbox"]);
    assert_eq!((both.len(), &both[0]["threads"]), (1, &json!(1)));
    assert!(workers(&world, &["-t", "inbox"]).is_empty());
    let text = world.thread(["workers", "--root", "root"]).quiet();
    assert!(text.ends_with(" threads=2\n"), "{text}");
}

#[test]
fn each_run_of_a_pool_is_shown() {
    let world = World::with_thread();
    let options = ["--deliver", "stdin", "--batch-size", "1", "--concurrency", "2"];
    world.subscribe("bot", SLOW, &options);
    world.thread(["push", "--lines"]).stdin("a\nb\nc\n").ok();
    wait_until("two runs", || world.lines("begun").len() == 2);
    let shown = workers(&world, &[]);
    let runs = shown[0]["runs"].as_array().unwrap();
    let about = |at: usize| ["attempt", "events", "upto"].map(|name| runs[at][name].clone());
    assert_eq!((shown.len(), runs.len()), (1, 2), "{shown:?}");
    assert_eq!([about(0), about(1)], [[json!(1), json!(1), json!(1)], [json!(1), json!(1), json!(2)]]);
    world.write("done", "");
    world.wait_until_quiet();
}
