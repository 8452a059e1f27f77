//! `logs`: the output of handlers, and the lines around each run.

use std::io::{BufRead, BufReader};

use thread_testkit::{World, wait_until};

/// The handler's log without timestamps.
fn log(world: &World) -> Vec<String> {
    let text = world.thread(["logs", "--consumer", "bot"]).quiet();
    text.lines().map(untimed).collect()
}

fn untimed(line: &str) -> String {
    match line.strip_prefix("=== ") {
        Some(note) => {
            let note = note.split_once(' ').unwrap().1;
            format!("=== {}", note.split(" after=").next().unwrap())
        }
        None => line.to_owned(),
    }
}

#[test]
fn each_run_stands_between_two_lines() {
    let world = World::with_thread();
    let handler = "cat > in; echo out; echo err >&2; printf 'no newline'; [ -e fine ]";
    world.subscribe("bot", handler, &["--deliver", "stdin", "--backoff", "10ms", "--max-attempts", "2"]);
    assert_eq!(world.thread(["logs", "--consumer", "bot"]).quiet(), "");
    world.push("a");
    wait_until("the dead letter", || world.consumer("bot")["dead"] == 1);
    world.wait_until_quiet();
    let run = |begin: &str, end: &str| [begin, "out", "err", "no newline", end].map(str::to_owned).to_vec();
    let failed = "=== ended exit=1";
    let mut expected = run("=== begins attempt=1 event id=1", failed);
    expected.extend(run("=== begins attempt=2 event id=1", failed));
    assert_eq!(log(&world), expected);
    world.write("fine", "");
    world.thread(["dead", "retry", "--consumer", "bot", "--all"]).quiet();
    world.wait_until_quiet();
    expected.extend(run("=== begins attempt=0 dead letter id=1", "=== ended exit=0"));
    assert_eq!(log(&world), expected);
    let lines = "{\"source\":\"self\",\"type\":\"record\",\"content\":\"x\"}\n".repeat(3);
    world.thread(["push", "--batch"]).stdin(lines).ok();
    world.wait_until_quiet();
    expected.extend(run("=== begins attempt=1 events upto=4", "=== ended exit=0"));
    assert_eq!(log(&world), expected);
}

#[test]
fn tail_counts_lines_from_the_end_also_an_unfinished_one() {
    let world = World::with_thread();
    world.subscribe("bot", "true", &[]);
    world.push("a");
    world.wait_for_state("bot", "waiting");
    world.thread(["unsubscribe", "--consumer", "bot"]).ok();
    let tail = |n: &str| world.thread(["logs", "--consumer", "bot", "--tail", n]).quiet();
    let path = "inbox/logs/handlers/bot.log";
    world.write(path, "one\ntwo\nthree\n");
    assert_eq!(
        (tail("1"), tail("2"), tail("9")),
        ("three\n".into(), "two\nthree\n".into(), world.read(path))
    );
    world.write(path, "one\ntwo\nthree");
    assert_eq!((tail("1"), tail("2")), ("three".into(), "two\nthree".into()));
    let long = format!("first\n{}\nlast\n", "x".repeat(300_000));
    world.write(path, &long);
    assert_eq!(tail("1"), "last\n");
    assert_eq!(tail("2"), long[6..]);
    assert_eq!(tail("3"), long);
    world.write(path, "");
    assert_eq!(tail("1"), "");
    for wrong in ["0", "-1", "x", ""] {
        world.thread(["logs", "--consumer", "bot", "--tail", wrong]).fails(2);
    }
    world.thread(["logs", "--consumer", "nobody"]).fails(1);
}

#[test]
fn garbage_bytes_come_out_as_they_went_in() {
    let world = World::with_thread();
    world.subscribe("bot", "cat garbage; cat > in", &["--deliver", "stdin"]);
    let garbage: Vec<u8> = (0..=255).collect();
    world.write("garbage", &garbage);
    world.push("a");
    wait_until("the run", || world.consumer("bot")["last_acked_id"] == 1);
    let shown = world.thread(["logs", "--consumer", "bot"]).output().stdout;
    assert!(shown.windows(256).any(|window| window == garbage));
}

#[test]
fn garbage_in_a_dead_letters_error_is_shown_as_text() {
    let world = World::with_thread();
    let handler = "printf '\\377\\033[31mred\\n'; exit 1";
    world.subscribe("bot", handler, &["--deliver", "stdin", "--backoff", "10ms", "--max-attempts", "1"]);
    world.push("a");
    wait_until("the dead letter", || world.consumer("bot")["dead"] == 1);
    let text = world.thread(["dead", "list", "--consumer", "bot"]).quiet();
    assert!(text.ends_with("\u{fffd}\\u{1b}[31mred\n"), "{text:?}");
}

#[test]
fn following_shows_what_comes_also_across_a_log_that_was_set_aside() {
    let world = World::with_thread();
    let handler =
        "cat > in; [ -e large ] && head -c 11000000 /dev/zero | tr '\\0' x && echo; echo marker; true";
    world.subscribe("bot", handler, &["--deliver", "stdin"]);
    world.push("a");
    world.wait_until_quiet();
    let mut follower = world.thread(["logs", "--consumer", "bot", "-f", "--tail", "1"]).spawn();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    let mut next = move || untimed(&lines.next().unwrap().unwrap());
    assert_eq!(next(), "=== ended exit=0");
    world.write("large", "");
    world.push("b");
    assert_eq!(next(), "=== begins attempt=1 event id=2");
    assert_eq!(next().len(), 11_000_000);
    assert_eq!((next(), next()), ("marker".into(), "=== ended exit=0".into()));
    wait_until("the second", || world.consumer("bot")["last_acked_id"] == 2);
    std::fs::remove_file(world.path("large")).unwrap();
    world.push("c");
    assert_eq!(next(), "=== begins attempt=1 event id=3");
    assert_eq!((next(), next()), ("marker".into(), "=== ended exit=0".into()));
    let names: Vec<String> = std::fs::read_dir(world.inbox().join("logs/handlers"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names.len(), 2);
    assert!(names.iter().any(|name| name.starts_with("bot~2") && name.ends_with(".log")), "{names:?}");
    // The reader goes away, and no more output comes.
    drop(next);
    wait_until("the follower to end", || follower.try_wait().unwrap().is_some());
    assert!(follower.wait().unwrap().success());
}

#[test]
fn only_on_a_terminal_do_control_characters_stand_as_text() {
    let world = World::with_thread();
    let text = "one\ttwo \x1b[31mé\u{9b}2J\r\n";
    std::fs::create_dir_all(world.path("inbox/logs/handlers")).unwrap();
    world.write("inbox/logs/handlers/bot.log", text);
    assert_eq!(world.thread(["logs", "--consumer", "bot"]).quiet(), text);
    let Some(run) = world.terminal(80, "thread logs --consumer bot") else { return };
    assert_eq!(run.ok(), "one\ttwo \\x1b[31mé\\xc2\\x9b2J\\r\n");
}

#[test]
fn following_waits_for_a_log_that_does_not_exist_yet() {
    let world = World::with_thread();
    world.subscribe("bot", "echo hello; cat > in", &["--deliver", "stdin"]);
    let mut follower = world.thread(["logs", "--consumer", "bot", "--follow"]).spawn();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    world.push("a");
    assert_eq!(untimed(&lines.next().unwrap().unwrap()), "=== begins attempt=1 event id=1");
    assert_eq!(lines.next().unwrap().unwrap(), "hello");
    drop(lines);
    wait_until("the follower to end", || follower.try_wait().unwrap().is_some());
}

#[test]
fn a_hundred_megabytes_of_output_cost_the_supervisor_no_memory() {
    let world = World::with_thread();
    // The second run inspects the supervisor, which also ran the first.
    let handler = "cat > in; echo $PPID >> supervisors; grep VmHWM /proc/$PPID/status >> peak; \
                   [ -e done ] || head -c 100000000 /dev/zero | tr '\\0' '\\n'; touch done";
    let options = ["--deliver", "stdin", "--batch-size", "1"];
    let lines = "{\"source\":\"self\",\"type\":\"record\",\"content\":\"x\"}\n".repeat(2);
    world.thread(["push", "--batch"]).stdin(lines).ok();
    world.subscribe("bot", handler, &options);
    wait_until("both", || world.consumer("bot")["last_acked_id"] == 2);
    let supervisors = world.lines("supervisors");
    assert_eq!(supervisors[0], supervisors[1]);
    let peak = world.lines("peak")[1].clone();
    let kilobytes: u64 = peak.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(kilobytes < 50_000, "{peak}");
}

#[test]
fn rotated_logs_go_with_the_subscription_and_the_last_one_stays() {
    let world = World::with_thread();
    for name in ["bot", "bot2"] {
        world.subscribe(name, "true", &[]);
    }
    std::fs::create_dir_all(world.root().join("inbox/logs/handlers")).unwrap();
    world.write("inbox/logs/handlers/bot.log", "last\n");
    let rotated = |name: &str| format!("inbox/logs/handlers/{name}~20260101-000000.log");
    for name in ["bot", "bot2"] {
        world.write(rotated(name), "old\n");
    }
    world.thread(["unsubscribe", "bot"]).quiet();
    let there = |name: &str| world.root().join(rotated(name)).exists();
    assert_eq!((there("bot"), there("bot2")), (false, true));
    assert_eq!(world.thread(["logs", "bot"]).quiet(), "last\n");
}
