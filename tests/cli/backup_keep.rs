//! `backup --keep`: deletes only backups of this same thread, and only those that are not in use.

use std::ffi::OsStr;
use std::fs;

use serde_json::{Value, json};
use thread_testkit::{World, names};

#[test]
fn all_but_the_newest_backups_of_this_thread_are_deleted() {
    let world = World::with_thread();
    world.idle_consumer("bot", "");
    world.push("x");
    world.thread(["init", "other"]).quiet();
    world.thread(["backup", "-t", "other", "backups/others"]).quiet();
    for name in ["b", "a", "used", "resumed", "c"] {
        world.thread(["backup"]).arg(format!("backups/{name}")).quiet();
    }
    let in_backup = |name: &str| world.path(format!("backups/{name}"));
    world
        .off(["push", "-t", "backups/used", "--source", "self", "--type", "message", "--content", "y"])
        .quiet();
    world.off(["resume", "-t", "backups/resumed", "bot"]).quiet();
    // Reading a backup does not count as using it.
    world.thread(["info", "-t", "backups/b"]).quiet();
    fs::create_dir(in_backup("mine")).unwrap();
    fs::write(in_backup("note"), "").unwrap();
    // A backup that appears twice, once through a symlink.
    std::os::unix::fs::symlink(in_backup("c"), in_backup("link")).unwrap();

    // A backup that was killed when it was almost complete.
    world.thread(["backup", "backups/killed"]).quiet();
    fs::rename(in_backup("killed"), in_backup("killed.partial-1")).unwrap();

    let words = ["backup", "backups/d", "--keep", "2", "--json"];
    let answer: Value = serde_json::from_str(&world.thread(words).quiet()).unwrap();
    let deleted = ["a", "b"].map(|name| in_backup(name).display().to_string());
    assert_eq!(answer["deleted"], json!(deleted));
    let left = ["c", "d", "killed.partial-1", "link", "mine", "note", "others", "resumed", "used"];
    assert_eq!(names(&world.path("backups")), left);
    let (stdout, stderr) = world.thread(["backup", "backups/e", "--keep", "1"]).ends_with(0);
    assert_eq!(stdout, format!("{}\n", in_backup("e").display()));
    let told = |name: &str| format!("Note: deleted the backup {}\n", in_backup(name).display());
    assert_eq!(stderr, told("d") + &told("c"));
    world.thread(["backup", "backups/f", "--keep", "0"]).fails(2);
    assert!(world.inbox().join("events.db").exists());
}

#[test]
fn threads_whose_paths_are_not_utf_8_keep_their_backups_apart() {
    use std::os::unix::ffi::OsStrExt;
    let world = World::new();
    let [one, other] = [b"non\xff", b"non\xfe"].map(|name| OsStr::from_bytes(name));
    let backup = |thread: &OsStr, place: &str| {
        let run = world.thread(["backup"]).arg(place).arg("--keep").arg("1").arg("-t").arg(thread);
        run.ends_with(0).0
    };
    for thread in [one, other] {
        world.thread(["init"]).arg(thread).ends_with(0);
    }
    backup(one, "backups/a");
    backup(other, "backups/b");
    assert_eq!(names(&world.path("backups")), ["a", "b"]);
    backup(one, "backups/c");
    assert_eq!(names(&world.path("backups")), ["b", "c"]);
}

#[test]
fn a_thread_restored_from_a_backup_does_not_count_as_a_backup() {
    let world = World::with_thread();
    world.push("x");
    world.thread(["backup", "backups/first"]).quiet();
    fs::remove_dir_all(world.inbox()).unwrap();
    fs::rename(world.path("backups/first"), world.inbox()).unwrap();
    for name in ["a", "b", "c"] {
        world.thread(["backup", "--keep", "1"]).arg(world.path(name)).ends_with(0);
    }
    assert!(world.inbox().join("events.db").exists());
    assert!(!world.path("b").exists() && world.path("c").exists());
    assert_eq!(world.query("SELECT count(*) FROM events"), 1);
}
