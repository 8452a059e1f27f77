//! `doctor` and the JSONL log: the ways it can be wrong, what is not a fault, a restored older
//! database, and repairs while other processes are active.

use std::fs;
use std::io::Write;
use std::time::{Duration, Instant};

use thread_testkit::{Dice, World, ids, names, skipped, wait_until};

use crate::doctor::{assert_healthy, findings, found_and_not_repaired, found_and_repaired};

const DONE: &str = "it was rewritten from the table";

fn push_many(world: &World, count: usize) {
    let line = r#"{"source":"s","type":"record","content":"c"}"#.to_owned() + "\n";
    world.thread(["push", "--batch"]).stdin(line.repeat(count)).quiet();
}

/// A thread with ten events and their log.
fn with_ten() -> World {
    let world = World::with_thread();
    push_many(&world, 10);
    world
}

/// The log's files, the current one last.
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

#[track_caller]
fn repaired(world: &World, says: &str) {
    found_and_repaired(world, "error", &format!("events.jsonl {says}"), DONE);
    world.assert_log_is_exact();
    world.push("another");
    world.assert_log_is_exact();
    assert_healthy(world);
}

#[track_caller]
fn differs_from(world: &World, line: usize) {
    repaired(world, &format!("differs from the table from line {line} on"));
}

#[test]
fn each_fault_of_a_line_is_found_and_repaired() {
    type Change = fn(&mut Vec<String>);
    let table: [(Change, usize); 9] = [
        (|lines| drop(lines.remove(4)), 5),
        (|lines| drop(lines.drain(..4)), 1),
        (|lines| lines.insert(4, lines[3].clone()), 5),
        (|lines| lines.insert(4, "hello".into()), 5),
        (|lines| lines.insert(0, String::new()), 1),
        (|lines| lines.swap(2, 3), 3),
        (|lines| lines.push(lines[2].clone()), 11),
        (|lines| lines[9] = "x".repeat(3_000_000), 10),
        // An event that never existed.
        (|lines| lines.push(lines[9].replace("\"id\":10", "\"id\":11")), 11),
    ];
    for (fault, line) in table {
        let world = with_ten();
        change(&world, "inbox/events.jsonl", fault);
        differs_from(&world, line);
    }
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
    differs_from(&world, 1);
}

#[test]
fn a_missing_and_a_torn_end_are_found() {
    let world = with_ten();
    change(&world, "inbox/events.jsonl", |lines| lines.truncate(9));
    repaired(&world, "lacks 1 event");
    let world = with_ten();
    let text = world.read("inbox/events.jsonl");
    world.write("inbox/events.jsonl", &text[..text.len() - 9]);
    differs_from(&world, 10);
    let world = with_ten();
    fs::remove_file(world.path("inbox/events.jsonl")).unwrap();
    repaired(&world, "lacks 10 events");
}

#[test]
fn a_tail_of_three_gigabytes_of_nothing_costs_no_memory() {
    for repair in ["thread doctor --fix", "thread push --source s --type record --content x"] {
        let world = with_ten();
        let (_, stderr) = world.sh("truncate -s 3G inbox/events.jsonl || echo no >&2").ends_with(0);
        if !stderr.is_empty() {
            return skipped("room for a file of three gigabytes");
        }
        let found = world.sh("ulimit -v 600000; thread doctor").ends_with(1);
        assert!(
            format!("{found:?}").contains("events.jsonl differs from the table from line 11 on"),
            "{found:?}"
        );
        world.sh(&format!("ulimit -v 600000; {repair}")).quiet();
        world.assert_log_is_exact();
        assert_healthy(&world);
    }
}

#[test]
fn rows_that_another_program_deleted_are_found() {
    let world = with_ten();
    world.db().execute_batch("DELETE FROM events WHERE id IN (3, 5)").unwrap();
    differs_from(&world, 3);
}

#[test]
fn what_was_pruned_is_no_fault_and_stays() {
    let world = with_ten();
    let all = world.jsonl();
    world.thread(["prune", "--before-id", "7"]).quiet();
    assert_healthy(&world);
    push_many(&world, 4);
    let later = world.table_as_jsonl()[4..].to_vec();
    change(&world, "inbox/events.jsonl", |lines| drop(lines.remove(1)));
    found_and_repaired(&world, "error", "events.jsonl differs from the table from line 2 on", DONE);
    assert_eq!(world.jsonl(), [all, later].concat());
}

#[test]
fn a_damaged_or_missing_state_is_no_fault() {
    for damage in ["echo garbage >", "printf '{}\\n0000\\n' >", "printf '{\"boot\":' >", ":>", "rm"] {
        let world = with_ten();
        world.thread(["prune", "--before-id", "5"]).quiet();
        push_many(&world, 5);
        let all = world.jsonl();
        world.sh(&format!("{damage} inbox/run/_jsonl")).quiet();
        assert_healthy(&world);
        world.push("another");
        assert!(world.jsonl().len() == 16 && world.jsonl()[..15] == all, "{damage}");
        assert_healthy(&world);
    }
}

/// Three sealed files of 10,001 lines, and five lines in the current file.
fn with_sealed() -> World {
    let world = World::with_thread();
    for _ in 0..3 {
        push_many(&world, 10_001);
    }
    push_many(&world, 5);
    assert_eq!(files(&world).len(), 4);
    world
}

#[test]
fn a_fault_in_a_sealed_file_is_reported_and_no_sealed_file_is_rewritten() {
    type Change = fn(&mut Vec<String>);
    let world = with_sealed();
    let files = files(&world);
    let (sealed, name) = (&files[1], files[1].trim_start_matches("inbox/"));
    let whole = world.read(sealed);
    let table: [(Change, usize); 5] = [
        (|lines| lines[500] = "nonsense".into(), 501),
        (|lines| lines.swap(2, 3), 4),
        (|lines| lines.insert(7, lines[7].clone()), 9),
        (|lines| lines[0] = lines[0].replace("\"id\"", "\"no\""), 1),
        (|lines| lines[10_000].truncate(30), 10_001),
    ];
    for (fault, line) in table {
        change(&world, sealed, fault);
        let damaged = world.read(sealed);
        found_and_not_repaired(
            &world,
            &format!(
                "error: line {line} of {name} is not an event whose id is higher than the one before - inspect \
                 that file, and edit or delete it by hand; sealed files are never rewritten"
            ),
        );
        assert!(world.read(sealed) == damaged);
        world.write(sealed, &whole);
    }
    world.assert_log_is_exact();
    assert_healthy(&world);
    // A line removed from a sealed file is no fault.
    change(&world, sealed, |lines| drop(lines.remove(500)));
    assert_healthy(&world);
}

#[test]
fn sealed_files_count_as_long_as_they_are_there() {
    let world = with_sealed();
    let (all, files) = (world.jsonl(), files(&world));
    for gone in [1, 0, 2] {
        fs::remove_file(world.path(&files[gone])).unwrap();
        assert_healthy(&world);
    }
    // A repair does not recreate the removed files.
    change(&world, &files[3], |lines| lines[2] = "nonsense".into());
    world.thread(["doctor", "--fix"]).quiet();
    assert!(world.jsonl() == all[30_003..]);
    world.push("another");
    assert_eq!(world.jsonl().len(), 6);
    assert_healthy(&world);
    // Without the files and the state, there is no trace of them.
    fs::remove_file(world.path("inbox/run/_jsonl")).unwrap();
    found_and_repaired(&world, "error", "events.jsonl differs from the table from line 1 on", DONE);
    world.assert_log_is_exact();
}

/// Inserts an event with an old timestamp that no later event shares, as another program would.
fn insert_old(world: &World, content: &str) {
    let sql = "INSERT INTO events (created_at, source, type, content) VALUES \
               ('2026-03-18T10:30:00.123Z', 'self', 'message', ?)";
    world.db().execute(sql, [content]).unwrap();
}

/// A world whose database with two events is saved as `aside.db`.
fn with_database_aside() -> World {
    let world = World::with_thread();
    push_many(&world, 2);
    world.db().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    world.sh("cp inbox/events.db aside.db").quiet();
    world
}

fn put_back(world: &World) {
    world.sh("rm inbox/events.db* && mv aside.db inbox/events.db").quiet();
}

#[test]
fn an_older_database_put_back_is_noticed_by_the_next_push() {
    for lost in [1, 4] {
        for by_doctor in [false, true] {
            let world = with_database_aside();
            for _ in 0..lost {
                insert_old(&world, "lost");
            }
            world.push("brings the log up to date");
            assert_eq!(world.jsonl().len(), lost + 3);
            put_back(&world);
            if by_doctor {
                differs_from(&world, 3);
            }
            world.push("under the id of another");
            world.assert_log_is_exact();
            assert_healthy(&world);
        }
    }
}

#[test]
fn one_lost_event_is_noticed_by_its_time_when_its_id_is_given_again() {
    let world = with_database_aside();
    insert_old(&world, "lost");
    // Pushes nothing, but updates the log.
    world.thread(["doctor", "--fix"]).quiet();
    assert_eq!(ids(&world.jsonl().join("\n")), [1, 2, 3]);
    put_back(&world);
    assert_eq!(world.push("under the id of the lost one"), 3);
    world.assert_log_is_exact();
    assert_healthy(&world);
}

#[test]
fn a_database_older_than_the_last_sealed_file_is_reported_until_it_is_repaired() {
    // The following pushes reuse the last id of the sealed file (1), or do not reach it yet (4).
    for lost in [1, 4] {
        let world = with_database_aside();
        (0..lost).for_each(|_| insert_old(&world, "lost"));
        let last = 2 + lost;
        assert_eq!(world.thread(["prune", "--before-id", "3"]).quiet(), "2\n");
        put_back(&world);
        let sealed = world.read(&files(&world)[0]);
        assert_eq!((files(&world).len(), sealed.lines().count()), (2, last));

        // The pushed event is stored; its line is written after the repair.
        let ahead = format!(
            "the sealed JSONL files end with event {last}, which the table lacks or has differently: an older \
             events.db was restored"
        );
        let push = ["push", "--source", "self", "--type", "message", "--content", "x"];
        for _ in 0..2 {
            let warning = world.thread(push).warns();
            let told = "Warning: events.jsonl is behind: ";
            assert!(warning.starts_with(&format!("{told}{ahead}; the event is stored; ")), "{warning}");
            assert!(warning.ends_with("run `thread doctor --fix`\n"), "{warning}");
        }
        assert_eq!(world.read("inbox/events.jsonl"), "");
        // Prune deletes no events whose lines could not be written.
        let error = world.thread(["prune", "--before-id", "3"]).fails(1);
        assert_eq!(error, format!("Error: {ahead} - run `thread doctor --fix`"));

        found_and_repaired(&world, "error", &ahead, DONE);
        let exact = || assert_eq!(world.lines("inbox/events.jsonl"), world.table_as_jsonl());
        exact();
        assert_eq!(world.table_as_jsonl().len(), 4);
        world.thread(push).quiet();
        exact();
        assert_eq!(world.read(&files(&world)[0]), sealed);

        // Sealing and backups work again; a backup has a single log file.
        world.thread(["backup", "copy"]).quiet();
        let copy = names(&world.path("copy"));
        assert_eq!(copy, ["events.db", "events.jsonl", "logs", "run"]);
        assert_eq!(world.lines("copy/events.jsonl"), world.table_as_jsonl());
        let before = world.table_as_jsonl();
        world.thread(["prune", "--before-id", "4"]).quiet();
        assert_eq!(world.lines(&files(&world)[1]), before);
        world.thread(push).quiet();
        assert_eq!(ids(&world.read("inbox/events.jsonl")), [6]);
        assert_healthy(&world);
    }
}

#[test]
fn a_storm_of_pushes_batches_and_reads_is_no_fault() {
    let world = World::with_thread();
    world.subscribe(
        "bot",
        "thread pop --resume --limit 1000 >/dev/null; thread ack --event-id 1000000 --force 2>/dev/null",
        &[],
    );
    world.subscribe("fed", "cat >/dev/null", &["--deliver", "stdin", "--filter", "type = 'record'"]);
    let storm = "while ! [ -e end ]; do thread push --source self --type message --content \"$$\" >/dev/null || exit 1; done";
    let batches = "while ! [ -e end ]; do seq 500 | sed 's/.*/{\"source\":\"s\",\"type\":\"record\",\"content\":\"&\"}/' | \
                   thread push --batch >/dev/null || exit 1; done";
    let running: Vec<_> = [storm, storm, storm, batches].map(|script| world.sh(script).spawn()).into();
    // Runs until the log was rotated several times.
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
    world.assert_log_is_exact();
}

#[test]
fn a_repair_in_a_storm_of_pushes_makes_no_push_fail() {
    let world = with_ten();
    let storm = "while ! [ -e end ]; do thread push --source self --type message --content x || exit 1; done";
    let running: Vec<_> = [storm, storm].map(|script| world.sh(script).spawn()).into();
    for _ in 0..5 {
        // The first line, which no push compares.
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
    world.assert_log_is_exact();
    assert_healthy(&world);
}

#[test]
fn a_repair_that_is_killed_leaves_the_thread_whole() {
    let world = World::with_thread();
    push_many(&world, 10_001);
    push_many(&world, 1_000);
    let all = world.jsonl();
    let damage = || {
        change(&world, "inbox/events.jsonl", |lines| lines[20] = "nonsense".into());
        world.db().execute_batch("UPDATE sqlite_sequence SET seq = 7").unwrap();
        world.read("inbox/events.jsonl")
    };
    damage();
    let began = Instant::now();
    world.thread(["doctor", "--fix"]).quiet();
    let whole = began.elapsed().as_micros() as u64;
    let exact: String = all[10_001..].iter().map(|line| format!("{line}\n")).collect();
    assert_eq!(world.read("inbox/events.jsonl"), exact);
    let sealed = world.read(&files(&world)[0]);
    let mut dice = Dice::new();
    let mut killed = 0;
    for round in 0.. {
        if round >= 6 && killed > 0 {
            break;
        }
        assert!(round < 100, "none was killed at work: {dice:?}");
        let damaged = damage();
        let mut repair = world.thread(["doctor", "--fix"]).spawn();
        std::thread::sleep(Duration::from_micros(dice.up_to(whole)));
        repair.kill().unwrap();
        killed += i32::from(!repair.wait().unwrap().success());
        assert_eq!(world.query("SELECT count(*) FROM events"), all.len() as i64);
        // The file is the old one, or a prefix of the rewritten one.
        let found = world.read("inbox/events.jsonl");
        assert!(found == damaged || exact.starts_with(&found), "{dice:?}");
        world.thread(["doctor", "--fix"]).quiet();
        assert!(world.read("inbox/events.jsonl") == exact, "{dice:?}");
        assert!(world.read(&files(&world)[0]) == sealed, "{dice:?}");
    }
    wait_until("a look at the thread", || findings(&world) == ["healthy"]);
}
