//! `backup --root`: all threads below a directory, and the files next to them.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use serde_json::{Value, json};
use thread_testkit::{World, names, wait_until};

/// A root with two threads, one of which contains a third, and files next to them.
fn root(world: &World) {
    fs::create_dir(world.path("root")).unwrap();
    fs::set_permissions(world.path("root"), Permissions::from_mode(0o700)).unwrap();
    for thread in ["a", "b", "a/agents/sub"] {
        world.thread(["init", "--private"]).arg(world.path("root").join(thread)).ends_with(0);
        within(world, &format!("root/{thread}"), &["push", "--source", "self", thread]).quiet();
    }
    let subscribe = ["subscribe", "bot", "cat >>got", "--deliver", "stdin"];
    within(world, "root/b", &subscribe).env("THREAD_NOTIFIER", "off").quiet();
    fs::create_dir_all(world.path("root/storage/file/.sessions")).unwrap();
    world.write("root/storage/file/x.png", "an image");
    world.write("root/storage/file/.sessions/a", "");
    world.write("root/token", "secret");
    fs::set_permissions(world.path("root/token"), Permissions::from_mode(0o600)).unwrap();
    // A thread that is being created, a link to a thread, and a file that a user put into a thread.
    world.thread(["init"]).arg(world.path("root/.half-x")).ends_with(0);
    symlink(world.path("root/a"), world.path("root/link")).unwrap();
    world.write("root/a/notes", "mine");
}

fn within(world: &World, place: &str, args: &[&str]) -> thread_testkit::Run {
    world.thread(args).arg("--thread").arg(world.path(place))
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_backup_of_a_root_can_be_put_in_its_place() {
    let world = World::new();
    root(&world);
    let path = world.path("backups/one");
    let answer = world.thread(["backup", "--root", "root", "backups/one", "--json"]).quiet();
    let expected = json!({ "path": path, "threads": 3, "files": 3, "failed": [] });
    assert_eq!(serde_json::from_str::<Value>(&answer).unwrap(), expected);
    assert_eq!(names(&world.path("backups")), ["one"]);
    assert_eq!(names(&path), ["a", "b", "storage", "token"]);
    assert_eq!(names(&path.join("a")), ["agents", "events.db", "events.jsonl", "logs", "run"]);
    assert_eq!(names(&path.join("storage/file")), [".sessions", "x.png"]);
    assert_eq!(names(&path.join("storage/file/.sessions")), ["a"]);
    assert_eq!((world.read("backups/one/token"), mode(&path.join("token"))), ("secret".to_owned(), 0o600));
    for dir in ["", "a", "a/agents", "a/agents/sub"] {
        assert_eq!(mode(&path.join(dir)), mode(&world.path("root").join(dir)), "{dir}");
    }

    fs::rename(world.path("root"), world.path("broken")).unwrap();
    fs::rename(&path, world.path("root")).unwrap();
    for thread in ["a", "b", "a/agents/sub"] {
        let place = format!("root/{thread}");
        assert_eq!(within(&world, &place, &["doctor"]).quiet(), "healthy\n");
        let said = within(&world, &place, &["peek", "--last-event-id", "0"]).quiet();
        assert_eq!(serde_json::from_str::<Value>(&said).unwrap()["content"], thread);
    }
    // No handler is started before `resume`.
    let info: Value = serde_json::from_str(&within(&world, "root/b", &["info", "--json"]).quiet()).unwrap();
    assert_eq!(info["subscriptions"][0]["state"], "paused");
    within(&world, "root/b", &["resume", "--all"]).ok();
    wait_until("a run", || world.read("root/b/got").contains('b') || world.read("got").contains('b'));
    world.wait_until_quiet();
}

#[test]
fn a_thread_that_cannot_be_copied_does_not_prevent_copies_of_others() {
    let world = World::new();
    root(&world);
    fs::write(world.path("root/a/events.db"), "garbage".repeat(5000)).unwrap();
    for left in ["events.db-wal", "events.db-shm"] {
        fs::remove_file(world.path("root/a").join(left)).ok();
    }
    let (answer, told) = world.thread(["backup", "--root", "root", "one"]).ends_with(1);
    assert_eq!(answer, format!("{}\n", world.path("one").display()));
    let lines: Vec<&str> = told.lines().collect();
    let warning = format!("Warning: {} is not in the backup: ", world.path("root/a").display());
    assert!(lines.len() == 2 && lines[0].starts_with(&warning), "{told}");
    assert!(lines[1].starts_with("Error: 1 of 2 threads are not in the backup - "), "{told}");
    assert_eq!(names(&world.path("one")), ["b", "storage", "token"]);
}

#[test]
fn an_invalid_root_or_destination_is_refused() {
    let world = World::new();
    root(&world);
    let before = names(&world.path("root"));
    for (code, args) in [
        (2, ["--root", "root/a", "one"].as_slice()),
        (2, &["--root", "root", "one", "--keep", "3"]),
        (2, &["--root", "root", "one", "--thread", "root/a"]),
        (1, &["--root", "nowhere", "one"]),
        (1, &["--root", "root/token", "one"]),
        (1, &["--root", "root", "root"]),
        (1, &["--root", "root", "root/one"]),
    ] {
        world.thread(["backup"].iter().chain(args)).fails(code);
        assert!(!world.path("one").exists() && names(&world.path("root")) == before, "{args:?}");
    }
}

#[test]
fn a_killed_backup_of_a_root_leaves_nothing_that_the_next_one_does_not_delete() {
    let world = World::new();
    root(&world);
    for n in 0..30 {
        world.thread(["init"]).arg(world.path(format!("root/more-{n}"))).ends_with(0);
    }
    fs::create_dir_all(world.path("backups/mine.partial-abcdef")).unwrap();
    world.write("backups/mine.partial-abcdef/file", "");
    let backups = || names(&world.path("backups"));
    let mut child = world.thread(["backup", "--root", "root", "backups/one"]).spawn();
    wait_until("a beginning", || backups().iter().any(|name| name.starts_with("one")));
    child.kill().unwrap();
    child.wait().unwrap();
    let killed = backups();
    // It finished before the kill, or nothing has its name.
    let is_done = killed.contains(&"one".to_owned());
    assert_eq!(killed.len(), 2, "{killed:?}");
    world.thread(["backup", "--root", "root", "backups/two"]).quiet();
    let left: &[&str] =
        if is_done { &["mine.partial-abcdef", "one", "two"] } else { &["mine.partial-abcdef", "two"] };
    assert_eq!(backups(), left);
}
