use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Output;

use thread_testkit::{World, names, snapshot, wait_until};

#[test]
fn init_makes_the_layout_and_prints_the_absolute_path() {
    let world = World::new();
    let dir = world.path("a/b/inbox");
    assert_eq!(world.thread(["init", "a/x/../b/./inbox"]).quiet(), format!("{}\n", dir.display()));
    assert_eq!(names(&dir), ["events.db", "events.jsonl", "logs", "run"]);
    assert_eq!(fs::read_dir(dir.join("run")).unwrap().count(), 0);
    assert!(!world.path("a/x").exists(), "a folder that only the spelling named");
}

#[test]
fn second_init_refuses_and_changes_nothing() {
    let world = World::with_thread();
    world.push("kept");
    let before = snapshot(&world.inbox());
    let error = world.thread(["init", "inbox"]).fails(1);
    assert!(error.contains("is a thread already"), "{error}");
    assert_eq!(snapshot(&world.inbox()), before);
    assert_eq!(world.thread(["peek", "--last-event-id", "0"]).quiet().lines().count(), 1);
}

#[test]
fn init_answers_in_json_when_asked() {
    let world = World::new();
    let answer = format!("{{\"thread\":\"{}\"}}\n", world.inbox().display());
    assert_eq!(world.thread(["init", "--json", "inbox"]).quiet(), answer);
    let (stdout, stderr) = world.thread(["init", "--json", "inbox"]).ends_with(1);
    assert_eq!(stdout, "");
    let error: serde_json::Value = serde_json::from_str(&stderr).unwrap();
    assert!(error["error"].as_str().unwrap().contains("is a thread already"), "{error}");
}

#[test]
fn of_eight_inits_at_once_exactly_one_wins() {
    let world = World::new();
    let started: Vec<_> = (0..8).map(|_| world.thread(["init", "deep/inbox"]).spawn()).collect();
    let ended: Vec<Output> = started.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    let mut codes: Vec<_> = ended.iter().map(|output| output.status.code().unwrap()).collect();
    codes.sort_unstable();
    assert_eq!(codes, [0, 1, 1, 1, 1, 1, 1, 1], "{ended:?}");
    for loser in ended.iter().filter(|output| !output.status.success()) {
        let error = String::from_utf8_lossy(&loser.stderr);
        assert!(error.contains("is a thread already"), "{error}");
    }
    let dir = world.path("deep/inbox");
    assert_eq!(names(&dir), ["events.db", "events.jsonl", "logs", "run"]);
    assert_eq!(names(&dir.join("run")), [""; 0]);
    let pushed = world.thread(["push", "--source", "self", "--type", "record", "--content", "x"]);
    assert_eq!(pushed.env("THREAD_DIR", &dir).quiet(), "1\n");
}

#[test]
fn init_in_an_existing_directory_touches_nothing_else() {
    let world = World::new();
    fs::create_dir_all(world.path("inbox/run")).unwrap();
    fs::create_dir_all(world.path("inbox/src")).unwrap();
    for file in ["inbox/README.md", "inbox/run/mine.lock", "inbox/src/main.c", "inbox/.hidden"] {
        world.write(file, file);
        fs::set_permissions(world.path(file), fs::Permissions::from_mode(0o640)).unwrap();
    }
    fs::set_permissions(world.path("inbox/src"), fs::Permissions::from_mode(0o711)).unwrap();
    let before = snapshot(&world.inbox());
    world.thread(["init", "inbox"]).quiet();
    let mut after = snapshot(&world.inbox());
    for new in ["events.db", "events.jsonl", "logs"] {
        assert!(after.remove(&world.inbox().join(new)).is_some(), "no {new}");
    }
    assert_eq!(after, before);
}

#[test]
fn an_init_that_was_killed_can_be_run_again() {
    let world = World::new();
    fs::create_dir_all(world.path("inbox/run")).unwrap();
    for stray in ["run/_init.db", "run/_init.db-wal", "run/_init.db-shm", "run/_init.db-journal"] {
        world.write(format!("inbox/{stray}"), "half of something");
    }
    world.write("inbox/run/_init.lock", "");
    world.write("inbox/events.jsonl", "");
    // The remains of a killed `init` are not a thread.
    world.thread(["info"]).fails(1);
    world.thread(["init", "inbox"]).quiet();
    assert_eq!(names(&world.inbox().join("run")), [""; 0]);
    assert_eq!(world.push("works"), 1);
    assert_eq!(world.query("SELECT count(*) FROM pragma_integrity_check WHERE integrity_check = 'ok'"), 1);
    world.assert_log_is_exact();
}

#[test]
fn the_remains_of_an_old_thread_are_refused_and_left_alone() {
    for remains in ["events.db-wal", "events.db-journal", "events.jsonl", "events-20260318-103000.jsonl"] {
        let world = World::new();
        fs::create_dir(world.inbox()).unwrap();
        world.write(format!("inbox/{remains}"), "{\"id\":1}\n");
        let before = snapshot(&world.inbox());
        let error = world.thread(["init", "inbox"]).fails(1);
        assert!(error.contains(&format!("inbox/{remains} exists but events.db does not")), "{error}");
        assert_eq!(snapshot(&world.inbox()), before, "{remains}");
    }
}

#[test]
fn the_umask_rules_who_may_use_the_thread_but_others_never_write() {
    // The umask, and the modes of directories, files and lock files.
    let table = [("000", 0o775, 0o664, 0o660), ("022", 0o755, 0o644, 0o600), ("077", 0o700, 0o600, 0o600)];
    for (umask, directory, file, lock) in table {
        let world = World::new();
        world.sh(&format!("umask {umask}; thread init inbox")).quiet();
        let handler = "thread ack --event-id 1";
        world.thread(["subscribe", "--consumer", "bot", "--handler", handler]).quiet();
        // Files created later follow the database's mode, not the umask of the process that creates them.
        world.sh("umask 027; thread push --source self --type record --content x").quiet();
        world.wait_until_quiet();
        assert!(world.inbox().join("run/bot.lock").exists());
        for (path, (mode, _)) in snapshot(&world.inbox()) {
            let name = path.file_name().unwrap().to_string_lossy();
            let expected = match () {
                () if path.is_dir() => directory,
                () if name.ends_with(".lock") || name == "_jsonl" || name == "_retention" => lock,
                () => file,
            };
            assert_eq!(mode & 0o7777, expected, "{} under umask {umask}", path.display());
        }
        let mode = fs::metadata(world.inbox()).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, directory, "the thread under umask {umask}");
    }
}

#[test]
fn init_where_it_cannot_be_done_says_so() {
    let world = World::new();
    world.write("file", "");
    assert!(world.thread(["init", "file"]).fails(1).contains("cannot make"));
    assert!(world.thread(["init", "file/inbox"]).fails(1).contains("cannot make"));
    assert_eq!(world.read("file"), "");
    world.thread(["init", ""]).fails(2);
    world.thread(["init"]).fails(2);
    world.thread(["init", "one", "two"]).fails(2);
    world.thread(["init", "--thread", "inbox"]).fails(2);
    assert_eq!(names(world.root()), ["bin", "file"]);
}

#[test]
fn init_goes_through_a_symlink_and_keeps_its_name() {
    let world = World::new();
    fs::create_dir(world.path("real")).unwrap();
    symlink("real", world.inbox()).unwrap();
    assert_eq!(world.thread(["init", "inbox"]).quiet(), format!("{}\n", world.inbox().display()));
    assert!(world.path("real/events.db").exists());
    assert!(world.inbox().is_symlink());
}

#[test]
fn an_init_if_missing_may_be_repeated() {
    let world = World::new();
    let path = format!("{}\n", world.inbox().display());
    let init = || world.thread(["init", "--if-missing", "./inbox"]);
    assert_eq!(init().quiet(), path);
    world.push("kept");
    assert_eq!(init().quiet(), path);
    let json: serde_json::Value = serde_json::from_str(&init().arg("--json").quiet()).unwrap();
    assert_eq!(json["thread"], path.trim());
    assert_eq!(world.lines("inbox/events.jsonl").len(), 1);
    // A directory that only looks like a thread is not one.
    world.sh("mkdir other; echo text >other/events.db").quiet();
    world.thread(["init", "--if-missing", "other"]).fails(1);
    world.sh("mkdir remains; echo line >remains/events.jsonl").quiet();
    world.thread(["init", "--if-missing", "remains"]).fails(1);
}

/// A path of exactly `length` bytes in the world's folder.
fn long_path(world: &World, length: usize) -> PathBuf {
    let mut path = world.root().as_os_str().to_owned();
    while path.len() + 101 < length {
        path.push(format!("/{}", "d".repeat(99)));
    }
    let name = "n".repeat(length - path.len() - 1);
    PathBuf::from(path).join(name)
}

#[test]
fn a_path_that_is_too_long_is_refused_and_nothing_is_made() {
    let world = World::new();
    let told = |length: usize, path: &Path| {
        let path = path.display();
        format!(
            "Error: the path {path} is {length} bytes long, and SQLite takes no more than 480 - \
             choose a shorter path; nothing was made or changed"
        )
    };
    for length in [481, 499, 512, 800] {
        let path = long_path(&world, length);
        assert_eq!(world.thread(["init"]).arg(&path).fails(1), told(length, &path));
        assert_eq!(names(world.root()), ["bin"], "{length}");
    }
    let path = long_path(&world, 480);
    let there = |words: &[&str]| world.thread(words).env("THREAD_DIR", &path);
    world.thread(["init"]).arg(&path).quiet();
    there(&["subscribe", "--consumer", &"c".repeat(128), "--deliver", "stdin", "--handler", "cat >>got"])
        .quiet();
    there(&["push", "--source", "self", "--type", "message", "--content", "x"]).quiet();
    wait_until("the event to be handled", || world.read("got").lines().count() == 1);
    world.wait_until_quiet();
    assert_eq!(there(&["doctor"]).quiet(), "healthy\n");

    // A short symlink to a long path does not help.
    let longer = path.join("e".repeat(90));
    fs::create_dir(&longer).unwrap();
    symlink(&longer, world.path("short")).unwrap();
    assert_eq!(world.thread(["init", "short"]).fails(1), told(571, &world.path("short")));
    assert_eq!(names(&longer), [""; 0]);
    // Moving a thread there does not help either.
    world.thread(["init", "inbox"]).quiet();
    fs::rename(world.inbox(), longer.join("t")).unwrap();
    let moved = fs::canonicalize(&longer).unwrap().join("t");
    let peek = world.thread(["peek", "--last-event-id", "0"]).env("THREAD_DIR", world.path("short/t"));
    assert_eq!(peek.fails(1), told(573, &moved));
}

#[test]
fn a_private_thread_is_open_to_nobody_else_whatever_the_umask() {
    let world = World::new();
    world.sh("umask 002 && thread init --private a/b").quiet();
    let push = "umask 002 && thread push --source self --type message --content x";
    let thread = world.path("a/b");
    world.sh("umask 002 && thread subscribe bot cat --deliver stdin").env("THREAD_DIR", &thread).quiet();
    world.sh(push).env("THREAD_DIR", &thread).quiet();
    world.wait_until_quiet();
    let all = snapshot(&thread);
    assert!(all.keys().any(|path| path.ends_with("logs/handlers/bot.log")), "{:?}", all.keys());
    for (path, (mode, _)) in &all {
        assert_eq!(mode & 0o077, 0, "{}: {mode:o}", path.display());
    }
    let mode = |path: &str| fs::metadata(world.path(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("a/b"), mode("a")), (0o700, 0o775));
}
