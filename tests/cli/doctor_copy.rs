//! `doctor` and the JSONL copy: every way in which it can be wrong, what is no fault, and mending
//! while others are at work.

use std::fs;
use std::io::Write;

use crate::doctor::{assert_healthy, findings, found_and_mended};
use crate::harness::{Dice, World, names, wait_until};

const DONE: &str = "it was written anew from the table";

fn push_many(world: &World, count: usize) {
    let line = r#"{"source":"s","type":"record","content":"c"}"#.to_owned() + "\n";
    world.thread(["push", "--batch"]).stdin(line.repeat(count)).quiet();
}

/// Ten events and their copy.
fn with_ten() -> World {
    let world = World::with_thread();
    push_many(&world, 10);
    world
}

/// The copy's files, the current one last.
fn files(world: &World) -> Vec<String> {
    let all = names(&world.inbox()).into_iter().filter(|name| name.ends_with(".jsonl"));
    all.map(|name| format!("inbox/{name}")).collect()
}

fn change(world: &World, name: &str, change: impl FnOnce(&mut Vec<String>)) {
    let mut lines = world.lines(name);
    change(&mut lines);
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    world.write(name, text);
}

/// What is said where the file, as it was, is kept.
fn and_kept(world: &World) -> String {
    let kept = world.path("inbox/run/_unknown-1.jsonl").display().to_string();
    format!("{DONE}; as it was before, it is kept in {kept}")
}

#[track_caller]
fn mended(world: &World, name: &str, says: &str) {
    mended_so(world, name, says, DONE);
}

#[track_caller]
fn mended_so(world: &World, name: &str, says: &str, done: &str) {
    let problem = format!("{name} does not agree with the table: {says}");
    found_and_mended(world, "error", &problem, done);
    world.assert_copy_is_exact();
    world.push("another");
    world.assert_copy_is_exact();
    assert_healthy(world);
    assert!(!world.path("inbox/run/_draft.jsonl").exists());
}

#[test]
fn each_fault_of_a_line_is_found_and_mended() {
    type Change = fn(&mut Vec<String>);
    let table: [(Change, &str); 8] = [
        (|lines| drop(lines.remove(4)), "1 event has no line (from line 5 on)"),
        (|lines| drop(lines.drain(..4)), "4 events have no line (from line 1 on)"),
        (|lines| lines.insert(4, lines[3].clone()), "1 line is repeated or out of order (from line 5 on)"),
        (|lines| lines.insert(4, "hello".into()), "1 line is not its event (from line 5 on)"),
        (|lines| lines.insert(0, String::new()), "1 line is not its event (from line 1 on)"),
        (
            |lines| lines.swap(2, 3),
            "1 event has no line, 1 line is repeated or out of order (from line 3 on)",
        ),
        (|lines| lines.push(lines[2].clone()), "1 line is repeated or out of order (from line 11 on)"),
        (
            |lines| lines[9] = "x".repeat(3_000_000),
            "1 event has no line, 1 line is not its event (from line 10 on)",
        ),
    ];
    for (fault, says) in table {
        let world = with_ten();
        change(&world, "inbox/events.jsonl", fault);
        mended(&world, "events.jsonl", says);
    }
}

#[test]
fn events_that_only_the_copy_knows_are_kept_elsewhere() {
    let world = with_ten();
    world.sh("cp -r inbox older").quiet();
    world.push("only in the copy");
    world.sh("rm inbox/events.db*; cp older/events.db* inbox").quiet();
    world.push("under the same id");
    let before = world.read("inbox/events.jsonl");
    assert!(before.contains("only in the copy"));
    mended_so(&world, "events.jsonl", "1 line is not its event (from line 11 on)", &and_kept(&world));
    assert_eq!(world.read("inbox/run/_unknown-1.jsonl"), before);
}

#[test]
fn an_edit_that_leaves_length_and_time_as_they_were_is_found() {
    let world = with_ten();
    let path = world.path("inbox/events.jsonl");
    let time = fs::metadata(&path).unwrap().modified().unwrap();
    let text = world.read("inbox/events.jsonl").replacen("\"c\"", "\"d\"", 1);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    (&file).write_all(text.as_bytes()).unwrap();
    file.set_modified(time).unwrap();
    drop(file);
    // A push does not notice.
    world.push("another");
    mended_so(&world, "events.jsonl", "1 line is not its event (from line 1 on)", &and_kept(&world));
}

#[test]
fn a_missing_and_a_torn_end_are_found() {
    let world = with_ten();
    change(&world, "inbox/events.jsonl", |lines| lines.truncate(8));
    mended(&world, "events.jsonl", "2 events have no line (from line 9 on)");
    let world = with_ten();
    let text = world.read("inbox/events.jsonl");
    world.write("inbox/events.jsonl", &text[..text.len() - 9]);
    mended(&world, "events.jsonl", "1 event has no line, 1 line is torn (from line 10 on)");
    let world = with_ten();
    fs::remove_file(world.path("inbox/events.jsonl")).unwrap();
    mended(&world, "events.jsonl", "10 events have no line (from line 1 on)");
}

#[test]
fn lines_of_events_that_never_were_are_found_and_kept_elsewhere() {
    let world = with_ten();
    change(&world, "inbox/events.jsonl", |lines| lines.push(lines[9].replace("\"id\":10", "\"id\":11")));
    let before = world.read("inbox/events.jsonl");
    found_and_mended(
        &world,
        "error",
        "events.jsonl does not agree with the table: 1 line is of an event that was never stored here (from line 11 on)",
        &and_kept(&world),
    );
    assert_eq!(world.read("inbox/run/_unknown-1.jsonl"), before);
    world.push("eleven");
    world.assert_copy_is_exact();
}

#[test]
fn lines_of_deleted_events_are_no_fault_and_stay() {
    let world = with_ten();
    let all = world.jsonl();
    world.db().execute_batch("DELETE FROM events WHERE id < 7 AND id <> 3").unwrap();
    assert_healthy(&world);
    change(&world, "inbox/events.jsonl", |lines| {
        lines[2] = lines[2].replace("\"c\"", "\"d\"");
        lines.remove(8);
    });
    let says = "1 event has no line, 1 line is not its event (from line 3 on)";
    let problem = format!("events.jsonl does not agree with the table: {says}");
    found_and_mended(&world, "error", &problem, &and_kept(&world));
    assert_eq!(world.jsonl(), all);
}

#[test]
fn a_spoilt_note_is_found_and_mended() {
    for spoilt in ["garbage", "{}\n0000\n", "{\"boot\":"] {
        let world = with_ten();
        world.write("inbox/run/_journal", spoilt);
        found_and_mended(&world, "error", "run/_journal, the note about the copy, is spoilt", DONE);
        world.push("another");
        world.assert_copy_is_exact();
    }
    // None at all is that of a copy nobody has written yet.
    let world = with_ten();
    fs::remove_file(world.path("inbox/run/_journal")).unwrap();
    assert_healthy(&world);
    assert!(!world.path("inbox/run/_journal").exists());
}

#[test]
fn rotated_files_count_as_long_as_they_are_there() {
    let world = World::with_thread();
    for _ in 0..3 {
        push_many(&world, 10_001);
    }
    push_many(&world, 5);
    let all = world.jsonl();
    let names = files(&world);
    assert_eq!(names.len(), 4);
    assert_healthy(&world);
    // Wrong inside, and cut off at the end.
    change(&world, &names[1], |lines| {
        lines[500] = "nonsense".into();
        lines.truncate(10_000);
    });
    let name = |at: usize| names[at].trim_start_matches("inbox/");
    let says = "2 events have no line, 1 line is not its event (from line 501 on)";
    let problem = format!("{} does not agree with the table: {says}", name(1));
    found_and_mended(&world, "error", &problem, DONE);
    assert!(world.jsonl() == all, "the copy is not what it was");
    assert_healthy(&world);
    for gone in [1, 0, 2] {
        fs::remove_file(world.path(&names[gone])).unwrap();
        assert_healthy(&world);
    }
    // Nor does mending bring them back, with or without the note.
    change(&world, &names[3], |lines| lines[2] = "nonsense".into());
    fs::remove_file(world.path("inbox/run/_journal")).unwrap();
    world.thread(["doctor", "--fix"]).quiet();
    assert!(world.jsonl() == all[30_003..], "the current file is not what it was");
    world.push("another");
    assert_eq!(world.jsonl().len(), 6);
    assert_healthy(&world);
}

#[test]
fn a_copy_that_is_a_link_is_mended_where_it_is() {
    let world = with_ten();
    fs::create_dir(world.path("elsewhere")).unwrap();
    fs::rename(world.path("inbox/events.jsonl"), world.path("elsewhere/copy.jsonl")).unwrap();
    std::os::unix::fs::symlink("../elsewhere/copy.jsonl", world.path("inbox/events.jsonl")).unwrap();
    assert_healthy(&world);
    change(&world, "elsewhere/copy.jsonl", |lines| drop(lines.remove(3)));
    mended(&world, "events.jsonl", "1 event has no line (from line 4 on)");
    assert!(world.path("inbox/events.jsonl").is_symlink());
    assert_eq!(names(&world.path("elsewhere")), ["copy.jsonl"]);
}

#[test]
fn what_a_killed_repair_left_is_removed() {
    let world = with_ten();
    world.write("inbox/run/_draft.jsonl", "half a line");
    found_and_mended(&world, "warning", "a repair of the copy that was killed left its draft in run/", DONE);
    assert_eq!(names(&world.path("inbox/run")), ["_journal"]);
}

#[test]
fn a_storm_of_pushes_batches_and_reads_is_no_fault() {
    let world = World::with_thread();
    world.subscribe(
        "bot",
        "thread pop --resume --limit 1000 >/dev/null; thread ack --event-id 1000000 2>/dev/null",
        &[],
    );
    world.subscribe("fed", "cat >/dev/null", &["--deliver", "stdin", "--filter", "type = 'record'"]);
    let storm = "while ! [ -e end ]; do thread push --source self --type message --content \"$$\" >/dev/null || exit 1; done";
    let batches = "while ! [ -e end ]; do seq 500 | sed 's/.*/{\"source\":\"s\",\"type\":\"record\",\"content\":\"&\"}/' | \
                   thread push --batch >/dev/null || exit 1; done";
    let running: Vec<_> = [storm, storm, storm, batches].map(|script| world.sh(script).spawn()).into();
    // With the first rotations in it.
    for turn in 0.. {
        assert_healthy(&world);
        if turn >= 15 && files(&world).len() >= 3 {
            break;
        }
    }
    world.write("end", "");
    for child in running {
        assert!(child.wait_with_output().unwrap().status.success());
    }
    world.wait_until_quiet();
    assert_healthy(&world);
    world.assert_copy_is_exact();
}

#[test]
fn mending_in_a_storm_disturbs_nobody() {
    let world = with_ten();
    let storm = "while ! [ -e end ]; do thread push --source self --type message --content x || exit 1; done";
    let running: Vec<_> = [storm, storm].map(|script| world.sh(script).spawn()).into();
    for _ in 0..5 {
        // An old line: no push notices.
        let path = world.path("inbox/events.jsonl");
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"#", 0).unwrap();
        world.thread(["doctor", "--fix"]).quiet();
    }
    world.write("end", "");
    let mut pushed = 10;
    for child in running {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        pushed += String::from_utf8(output.stdout).unwrap().lines().count() as i64;
    }
    assert_eq!(world.query("SELECT count(*) FROM events"), pushed);
    world.push("another");
    world.assert_copy_is_exact();
    assert_healthy(&world);
}

#[test]
fn a_repair_that_is_killed_leaves_the_thread_whole() {
    let world = World::with_thread();
    push_many(&world, 10_001);
    push_many(&world, 9_000);
    let all = world.jsonl();
    let rotated = files(&world)[0].clone();
    let mut dice = Dice::new();
    let mut killed = 0;
    for _ in 0..30 {
        for name in [rotated.as_str(), "inbox/events.jsonl"] {
            change(&world, name, |lines| lines[20] = "nonsense".into());
        }
        world.db().execute_batch("UPDATE sqlite_sequence SET seq = 7").unwrap();
        let mut repair = world.thread(["doctor", "--fix"]).spawn();
        std::thread::sleep(std::time::Duration::from_micros(dice.up_to(400_000)));
        repair.kill().unwrap();
        killed += i32::from(!repair.wait().unwrap().success());
        assert_eq!(world.query("SELECT count(*) FROM events"), all.len() as i64);
        // Each file is the old one or the new one, and never less.
        for (name, lines) in [(rotated.as_str(), &all[..10_001]), ("inbox/events.jsonl", &all[10_001..])] {
            let found = world.lines(name);
            assert_eq!(found.len(), lines.len(), "{dice:?}");
            assert!(found.iter().zip(lines).all(|(a, b)| a == b || a == "nonsense"), "{dice:?}");
        }
        world.thread(["doctor", "--fix"]).quiet();
        assert!(world.jsonl() == all, "{dice:?}");
    }
    wait_until("a look at the thread", || findings(&world) == ["healthy"]);
    assert!(killed > 0, "none was killed at work: {dice:?}");
}
