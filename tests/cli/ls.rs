//! `ls`, and `--root` of `info`, `prune` and `doctor`: all threads below a directory.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::{Value, json};
use thread_testkit::World;

/// Three threads below `root`, one of them in another: `a` with a paused consumer and two events, `a/agents/sub`, and
/// `b`. What is not to be found is also there.
fn world() -> World {
    let world = World::new();
    for thread in ["root/b", "root/a", "root/a/agents/sub", "root/.hidden"] {
        world.thread(["init", thread]).quiet();
    }
    let off =
        |args: &[&str]| world.thread(args).env("THREAD_NOTIFIER", "off").env("THREAD_DIR", "root/a").quiet();
    off(&["subscribe", "--deliver", "stdin", "bot", "cat"]);
    off(&["pause", "bot"]);
    off(&["push", "one"]);
    off(&["push", "two"]);
    fs::create_dir(world.path("root/empty")).unwrap();
    symlink(world.path("root/b"), world.path("root/link")).unwrap();
    world
}

/// A directory that looks like a thread and is none.
fn add_damaged(world: &World) {
    fs::create_dir(world.path("root/broken")).unwrap();
    world.write("root/broken/events.db", "no database\n".repeat(100));
}

fn lines_of(json: &str) -> Vec<Value> {
    json.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn all_threads_below_a_directory_are_listed_with_what_needs_attention() {
    let world = world();
    let table = "THREAD             EVENTS  CONSUMERS  NEEDS ATTENTION\n\
                 root/a                  2          1  bot: paused\n\
                 root/a/agents/sub       0          0\n\
                 root/b                  0          0\n";
    assert_eq!(world.thread(["ls", "root"]).quiet(), table);
    assert_eq!(world.thread(["ls", "--root", "root"]).quiet(), table);
    assert_eq!(world.thread(["list", "root"]).quiet(), table);
    // From within, where they are as `ls` would name them.
    let here = world.thread(["ls"]).dir(world.path("root")).quiet();
    let names: Vec<&str> = here.lines().skip(1).map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(names, ["a", "a/agents/sub", "b"]);
    // A thread is listed with those in it.
    assert!(world.thread(["ls", "root/a"]).quiet().lines().nth(2).unwrap().starts_with("root/a/agents/sub "));
}

#[test]
fn as_json_each_thread_is_an_object() {
    let world = world();
    let all = lines_of(&world.thread(["ls", "root", "--json"]).quiet());
    let bot = json!({
        "consumer_id": "bot", "state": "paused", "pending": 2, "dead": 0,
        "problems": [{ "check": "paused", "problem": "" }],
    });
    let thread = |name: &str| world.path("root").join(name).to_string_lossy().into_owned();
    assert_eq!(
        all[0],
        json!({
            "thread": thread("a"), "event_count": 2, "last_event_id": 2, "consumers": [bot],
            "needs_attention": true,
        })
    );
    let rest: Vec<&Value> = all[1..].iter().map(|one| &one["thread"]).collect();
    assert_eq!(rest, [&json!(thread("a/agents/sub")), &json!(thread("b"))]);
    assert_eq!(all[2]["needs_attention"], false);
}

#[test]
fn where_nothing_is_nothing_is_listed() {
    let world = world();
    assert_eq!(world.thread(["ls", "root/empty"]).quiet(), "");
    assert_eq!(world.thread(["ls", "root/empty", "--json"]).quiet(), "");
    let error = world.thread(["ls", "nowhere"]).fails(1);
    assert!(error.starts_with("Error: cannot read nowhere: "), "{error}");
    world.thread(["ls", "root", "--root", "root"]).fails(2);
}

#[test]
fn a_thread_that_cannot_be_read_hides_no_other() {
    let world = world();
    add_damaged(&world);
    let (stdout, stderr) = world.thread(["ls", "root"]).ends_with(1);
    let row = stdout.lines().find(|line| line.starts_with("root/broken ")).unwrap();
    assert!(row.ends_with("is not a thread's database"), "{stdout}");
    assert_eq!(stdout.lines().count(), 5, "{stdout}");
    assert_eq!(stderr, "Error: 1 of 4 threads cannot be read - check them with `thread doctor`\n");
    let (stdout, _) = world.thread(["ls", "root", "--json"]).ends_with(1);
    assert_eq!(lines_of(&stdout)[3]["code"], "foreign_database");
}

#[test]
fn info_shows_all_threads_below_a_root() {
    let world = world();
    let of = |thread: &str, args: &[&str]| world.thread(["info", "-t", thread]).args(args).quiet();
    let threads = ["root/a", "root/a/agents/sub", "root/b"];
    let texts: Vec<String> = threads.iter().map(|thread| of(thread, &[])).collect();
    assert_eq!(world.thread(["info", "--root", "root"]).quiet(), texts.join("\n"));
    let names =
        |objects: Vec<Value>| objects.into_iter().map(|one| one["thread"].clone()).collect::<Vec<_>>();
    let objects = lines_of(&world.thread(["info", "--root", "root", "--json"]).quiet());
    let expected = threads.iter().flat_map(|thread| lines_of(&of(thread, &["--json"])));
    assert_eq!(names(objects), names(expected.collect()));
    // Each metric once, with the samples of all threads.
    let metrics = world.thread(["info", "--root", "root", "--format", "prometheus"]).quiet();
    assert_eq!(metrics.matches("# TYPE thread_events gauge\n").count(), 1);
    assert_eq!(metrics.lines().filter(|line| line.starts_with("thread_events{")).count(), 3);
    assert_eq!(metrics.lines().filter(|line| line.starts_with("thread_consumer_paused{")).count(), 1);
}

#[test]
fn info_checks_all_threads_below_a_root() {
    let world = world();
    let (stdout, stderr) = world.thread(["info", "--root", "root", "--check"]).ends_with(1);
    assert_eq!(stdout, "root/a: bot: paused\n");
    assert_eq!(stderr, "Error: 1 consumer needs attention - see `thread info` and `thread logs`\n");
    let (stdout, _) = world.thread(["info", "--root", "root", "--check", "--json"]).ends_with(1);
    let healthy: Vec<_> =
        lines_of(&stdout).into_iter().map(|one| (one["thread"].clone(), one["healthy"].clone())).collect();
    let expected = [("root/a", false), ("root/a/agents/sub", true), ("root/b", true)];
    assert_eq!(healthy, expected.map(|(thread, healthy)| (json!(thread), json!(healthy))));
    world.thread(["resume", "bot", "-t", "root/a"]).env("THREAD_NOTIFIER", "off").ok();
    assert_eq!(world.thread(["info", "--root", "root", "--check"]).quiet(), "");
}

#[test]
fn doctor_examines_all_threads_below_a_root() {
    let world = world();
    let healthy = "root/a: healthy\nroot/a/agents/sub: healthy\nroot/b: healthy\n";
    assert_eq!(world.thread(["doctor", "--root", "root"]).quiet(), healthy);
    let log = world.path("root/a/events.jsonl");
    fs::write(&log, "").unwrap();
    let (stdout, stderr) = world.thread(["doctor", "--root", "root"]).ends_with(1);
    assert!(stdout.starts_with("root/a: error: ") && stdout.contains("\nroot/b: healthy\n"), "{stdout}");
    assert_eq!(stderr, "Error: 1 thing is wrong with the threads - follow the advice in each finding\n");
    let fixed = world.thread(["doctor", "--root", "root", "--fix", "--json"]).quiet();
    let fixed = lines_of(&fixed);
    assert_eq!((&fixed[0]["thread"], &fixed[0]["findings"][0]["repaired"]), (&json!("root/a"), &json!(true)));
    assert_eq!(world.thread(["doctor", "--root", "root"]).quiet(), healthy);
}

#[test]
fn prune_deletes_in_all_threads_below_a_root() {
    let world = world();
    world.thread(["push", "--lines", "-t", "root/b"]).stdin("1\n2\n3\n").quiet();
    let prune = |args: &[&str]| world.thread(["prune", "--root", "root"]).args(args);
    let (stdout, stderr) = prune(&["--keep", "1"]).ends_with(0);
    assert_eq!(stdout, "root/a: 0\nroot/a/agents/sub: 0\nroot/b: 2\n");
    assert!(
        stderr.starts_with("Warning: root/a: stopped before event 1, which is pending for 'bot'; "),
        "{stderr}"
    );
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    let objects = lines_of(&prune(&["--keep", "1", "--force", "--json"]).quiet());
    let counts: Vec<_> =
        objects.iter().map(|one| (one["thread"].as_str().unwrap(), one["count"].as_u64())).collect();
    assert_eq!(counts, [("root/a", Some(1)), ("root/a/agents/sub", Some(0)), ("root/b", Some(0))]);
    assert!(prune(&["--before-id", "2"]).fails(2).contains("--older-than or --keep"));
}

#[test]
fn a_thread_that_cannot_be_used_keeps_no_other_from_it() {
    let world = world();
    add_damaged(&world);
    for (command, printed) in [(&["info", "--json"][..], 3), (&["doctor"], 6), (&["prune", "--keep", "9"], 3)]
    {
        let (stdout, stderr) = world.thread(command).args(["--root", "root"]).ends_with(1);
        assert_eq!(stdout.lines().count(), printed, "{command:?}: {stdout}{stderr}");
        if printed == 3 {
            assert!(stderr.starts_with("Warning: root/broken: "), "{command:?}: {stderr}");
            assert!(stderr.contains("it failed in 1 of 4 threads"), "{command:?}: {stderr}");
        }
    }
}

#[test]
fn a_root_excludes_a_thread_and_is_none() {
    let world = world();
    for command in [&["info"][..], &["doctor"], &["prune", "--keep", "1"]] {
        let within = |root: &str| world.thread(command).args(["--root", root]);
        assert!(within("root/a").fails(2).contains("root/a is a thread itself"));
        assert!(within("root").args(["-t", "root/a"]).fails(2).contains("exclude each other"));
        assert!(within("nowhere").fails(1).contains("cannot read nowhere"));
    }
    world.thread(["info", "bot", "--root", "root"]).fails(2);
}
