use std::fs;

use crate::harness::World;

#[test]
fn init_makes_the_layout_and_prints_the_absolute_path() {
    let world = World::new();
    let dir = world.path("a/b/inbox");
    assert_eq!(world.thread(["init", "a/x/../b/./inbox"]).quiet(), format!("{}\n", dir.display()));
    let mut names: Vec<_> =
        fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["events.db", "events.jsonl", "logs", "run"]);
    assert_eq!(fs::read_dir(dir.join("run")).unwrap().count(), 0);
}

#[test]
fn second_init_refuses_and_changes_nothing() {
    let world = World::with_thread();
    world.push("kept");
    let before = fs::read(world.inbox().join("events.db")).unwrap();
    let error = world.thread(["init", "inbox"]).fails(1);
    assert!(error.contains("is a thread already"), "{error}");
    assert_eq!(fs::read(world.inbox().join("events.db")).unwrap(), before);
    assert_eq!(world.thread(["peek", "--last-event-id", "0"]).quiet().lines().count(), 1);
}
