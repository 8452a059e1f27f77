//! The JSONL log and `thread.log`: exact whatever happened to them, and rotated when long.

use std::fs::{self, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::Duration;

use chrono::{TimeDelta, Utc};
use thread_testkit::{Run, World, names, skipped, wait_until};

const STAMP: &str = "%Y%m%d-%H%M%S";

/// Pushes `count` small events in one batch.
fn push_many(world: &World, count: usize) {
    let line = r#"{"source":"s","type":"record","content":"c"}"#.to_owned() + "\n";
    let pushed = world.thread(["push", "--batch"]).stdin(line.repeat(count)).quiet();
    assert_eq!(pushed, format!("{count}\n"));
}

fn push(world: &World) -> Run {
    world.thread(["push", "--source", "self", "--type", "message", "--content", "hello"])
}

/// The rotated files of the log `stem`, oldest first.
fn rotated(world: &World, dir: &str, stem: &str) -> Vec<String> {
    let names = fs::read_dir(world.path(dir)).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name.starts_with(&format!("{stem}-"))).collect();
    names.sort();
    names
}

fn sealed(world: &World) -> Vec<String> {
    rotated(world, "inbox", "events")
}

fn mode(world: &World, name: &str) -> u32 {
    fs::metadata(world.path(name)).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_log_of_more_than_ten_thousand_lines_is_sealed_by_the_next_push() {
    let world = World::with_thread();
    push_many(&world, 10_000);
    world.push("the line that makes it long");
    assert_eq!(sealed(&world), [""; 0], "ten thousand lines were not too many");
    let before = Utc::now();
    push(&world).env("TZ", "AHEAD-14").quiet();
    let names = sealed(&world);
    assert_eq!(names.len(), 1);
    let named = |time: chrono::DateTime<Utc>| format!("events-{}.jsonl", time.format(STAMP));
    assert!((named(before)..=named(Utc::now())).contains(&names[0]), "{} is not UTC", names[0]);
    assert_eq!(world.lines(format!("inbox/{}", names[0])).len(), 10_001);
    assert_eq!(world.lines("inbox/events.jsonl").len(), 1);
    world.assert_log_is_exact();
}

#[test]
fn a_name_that_is_taken_gives_way_to_the_next_free_second() {
    let world = World::with_thread();
    push_many(&world, 10_001);
    let now = Utc::now();
    let name = |second: i64| format!("events-{}.jsonl", (now + TimeDelta::seconds(second)).format(STAMP));
    // More names than the test could take seconds.
    for second in 0..900 {
        world.write(format!("inbox/{}", name(second)), "");
    }
    push(&world).quiet();
    assert_eq!(sealed(&world).len(), 901);
    assert_eq!(sealed(&world)[900], name(900));
    assert!((0..900).all(|second| world.read(format!("inbox/{}", name(second))).is_empty()));
    world.assert_log_is_exact();
}

#[test]
fn names_sort_in_the_order_of_events_though_the_clock_went_back() {
    let world = World::with_thread();
    push_many(&world, 10_001);
    push_many(&world, 10_001);
    // As if it had been rotated while the clock was wrong.
    fs::rename(
        world.path(format!("inbox/{}", sealed(&world)[0])),
        world.path("inbox/events-20991231-235959.jsonl"),
    )
    .unwrap();
    world.push("after");
    assert_eq!(sealed(&world), ["events-20991231-235959.jsonl", "events-21000101-000000.jsonl"]);
    world.assert_log_is_exact();
}

#[test]
fn names_after_the_latest_possible_time_keep_their_form() {
    let world = World::with_thread();
    world.write("inbox/events-99991231-235959.jsonl", "");
    world.write("inbox/logs/thread-99991231-235959.log", "");
    for _ in 0..2 {
        push_many(&world, 10_001);
        let mut log = world.read("inbox/logs/thread.log");
        log.push_str(&"[2026-01-01T00:00:00.000Z] [INFO] a line like any other\n".repeat(10_001));
        world.write("inbox/logs/thread.log", log);
        push(&world).quiet();
    }
    for (dir, stem, extension) in [("inbox", "events", ".jsonl"), ("inbox/logs", "thread", ".log")] {
        let names = rotated(&world, dir, stem);
        assert_eq!(names.len(), 3, "{names:?}");
        for name in names {
            let stamp = name.strip_prefix(stem).and_then(|name| name.strip_suffix(extension)).unwrap();
            assert!(stamp.len() == 16 && !stamp.contains('+'), "{name}");
        }
    }
    world.assert_log_is_exact();
    assert_eq!(world.thread(["doctor"]).quiet(), "healthy\n");
}

#[test]
fn old_rotated_files_may_be_deleted() {
    let world = World::with_thread();
    for _ in 0..3 {
        push_many(&world, 10_001);
    }
    let first = world.path(format!("inbox/{}", sealed(&world)[0]));
    let second = world.path(format!("inbox/{}", sealed(&world)[1]));
    fs::remove_file(first).unwrap();
    world.push("one is gone");
    assert_eq!(world.jsonl(), world.table_as_jsonl()[10_001..]);
    // Even without the writer's saved state, deleted lines do not come back.
    fs::remove_file(world.inbox().join("run/_jsonl")).unwrap();
    world.push("forgotten");
    assert_eq!(world.jsonl(), world.table_as_jsonl()[10_001..]);
    fs::remove_file(second).unwrap();
    world.push("two are gone");
    assert_eq!(world.jsonl(), world.table_as_jsonl()[20_002..]);
}

#[test]
fn many_pushers_at_a_long_log_seal_it_once() {
    let world = World::with_thread();
    push_many(&world, 10_001);
    let pushers: Vec<_> = (0..10).map(|_| push(&world).spawn()).collect();
    for pusher in pushers {
        let output = pusher.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
    assert_eq!(sealed(&world).len(), 1);
    world.assert_log_is_exact();
}

#[test]
fn a_pusher_killed_anywhere_leaves_a_log_that_the_next_push_makes_exact() {
    let world = World::with_thread();
    world.write("content", "word ".repeat(4000));
    let mut acknowledged = Vec::new();
    let mut number: u64 = 1;
    for _ in 0..100 {
        let args = ["push", "--source", "self", "--type", "record", "--content-file", "content"];
        let [mut victim, witness] = [(); 2].map(|()| world.thread(args).spawn());
        // A different moment in each round: from before the start of main to after its end.
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_micros((number >> 33) % 20_000));
        victim.kill().unwrap();
        for child in [victim, witness] {
            let output = child.wait_with_output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stderr), "");
            acknowledged.extend(String::from_utf8(output.stdout).unwrap().trim().parse::<i64>());
        }
    }
    assert!(acknowledged.len() >= 100, "every witness is acknowledged");
    world.push("the last");
    world.assert_log_is_exact();
    for id in acknowledged {
        assert_eq!(world.query(&format!("SELECT count(*) FROM events WHERE id = {id}")), 1, "{id} was lost");
    }
    assert_eq!(sealed(&world), [""; 0]);
}

#[test]
fn a_killed_rotation_is_completed() {
    let world = World::with_thread();
    push_many(&world, 10_001);
    // The state that a writer leaves when it is killed right after the rename.
    fs::rename(world.path("inbox/events.jsonl"), world.path("inbox/events-20260318-103000.jsonl")).unwrap();
    world.push("next");
    assert_eq!(world.lines("inbox/events.jsonl").len(), 1);
    world.assert_log_is_exact();
}

#[test]
fn a_log_that_was_torn_edited_or_removed_is_repaired_by_the_next_push() {
    let world = World::with_thread();
    for damage in [
        "truncate -s -5 inbox/events.jsonl",
        "printf '{\"id\":99,' >> inbox/events.jsonl",
        "printf '\\0\\0\\0\\0' >> inbox/events.jsonl",
        "sed -i 2d inbox/events.jsonl",
        "tail -n 1 inbox/events.jsonl > line; cat line >> inbox/events.jsonl",
        ": > inbox/events.jsonl",
        "rm inbox/events.jsonl",
        "rm inbox/run/_jsonl",
        "rm inbox/events.jsonl inbox/run/_jsonl",
        "cp inbox/events.jsonl other; mv other inbox/events.jsonl",
    ] {
        for n in 0..3 {
            world.push(&format!("{damage} {n}"));
        }
        world.sh(damage).quiet();
        push(&world).quiet();
        world.assert_log_is_exact();
    }
}

#[test]
fn rows_of_other_programs_reach_the_log_with_the_next_push() {
    let world = World::with_thread();
    world.push("ours");
    world
        .db()
        .execute_batch(
            "INSERT INTO events (source, type, content) VALUES ('theirs', 'message', 'a'); \
             INSERT INTO events (created_at, source, type, subtype, content) VALUES ('x', 'theirs', 'odd', '', '\"\\')",
        )
        .unwrap();
    world.push("ours again");
    assert_eq!(world.lines("inbox/events.jsonl").len(), 4);
    world.assert_log_is_exact();
}

#[test]
fn a_long_time_of_another_program_does_not_make_every_push_read_the_log() {
    let world = World::with_thread();
    let line = format!("{{\"source\":\"s\",\"type\":\"record\",\"content\":\"{}\"}}\n", "c".repeat(1000));
    world.thread(["push", "--batch"]).stdin(line.repeat(3000)).quiet();
    let insert = "INSERT INTO events (created_at, source, type, content) VALUES (?, 'other', 'record', 'x')";
    world.db().execute(insert, ["2026-03-18 ".repeat(1000)]).unwrap();
    // The second push stores nothing, so the foreign row stays the last one.
    let keyed = "thread push --source s --type record --content x --idempotency-key k >/dev/null";
    world.sh(keyed).quiet();
    world.db().execute(insert, ["2026-03-18 ".repeat(1000)]).unwrap();
    world.sh(keyed).quiet();
    // The shell's count of bytes read includes its reaped children.
    let read = world.sh(&format!("{keyed}; cat /proc/$$/io")).ok();
    let Some(read) = read.lines().find_map(|line| line.strip_prefix("rchar: ")) else {
        return skipped("a system that counts what processes read");
    };
    assert!(read.parse::<u64>().unwrap() < 1_500_000, "{read} bytes were read for one push");
    world.assert_log_is_exact();
}

#[test]
fn odd_batches_are_logged_as_they_are_stored() {
    let world = World::with_thread();
    let event = |rest: &str| format!("{{\"source\":\"self\",\"type\":\"record\",{rest}}}\n");
    let odd = [
        event(r#""content":"\u0000\u001f\u2028\ud83d\ude00 \" \\ \/""#),
        event(r#""content":"","subtype":"","metadata":{ "a" : [ 1.50 , 1e40 ] ,"b":"\u00e9 \n" }"#),
        event(r#""content":{"deep" : [null, true]},"subtype":null"#),
        event(r#""content":" é ","metadata":{}"#),
    ]
    .concat();
    world.write("odd", &odd);
    assert_eq!(world.sh("thread push --batch <odd").quiet(), "4\n");
    world.assert_log_is_exact();
    // Some of these are stored already and get no new id.
    let keyed = |key: u32| event(&format!("\"content\":\"{key}\",\"idempotency_key\":\"{key}\""));
    world.write("first", format!("{}{}", odd.lines().nth(3).unwrap(), "\n") + &keyed(1) + &keyed(2));
    assert_eq!(world.sh("thread push --batch <first").quiet(), "3\n");
    let plain = event("\"content\":\"plain\"").repeat(40);
    world.write("again", plain.clone() + &keyed(3) + &keyed(1) + &keyed(2) + &plain + &keyed(3));
    assert_eq!(world.sh("thread push --batch <again").quiet(), "81\n");
    world.write("begins", keyed(2) + &plain + &keyed(4));
    assert_eq!(world.sh("thread push --batch <begins").quiet(), "41\n");
    world.assert_log_is_exact();
    let long = event(&format!("\"content\":\"{}\"", "x".repeat(1024 * 1024))).repeat(70);
    world.write("long", long);
    assert_eq!(world.sh("thread push --batch <long").quiet(), "70\n");
    world.assert_log_is_exact();
    assert_eq!(names(&world.path("inbox/run")), ["_commit", "_jsonl"]);
}

#[test]
fn pushes_that_wait_for_the_log_are_logged_in_order() {
    let world = World::with_thread();
    push(&world).quiet();
    let line = "{\"source\":\"self\",\"type\":\"record\",\"content\":\"batch\"}\n";
    world.write("batch", line.repeat(1000));
    let copy = fs::File::options().write(true).open(world.inbox().join("run/_jsonl")).unwrap();
    let stored = |count: i64| {
        wait_until("events to be stored", || world.query("SELECT count(*) FROM events") == count);
    };
    for round in 0..5 {
        copy.lock().unwrap();
        let before = world.query("SELECT count(*) FROM events");
        // A row that another program inserted without writing it to the log.
        world
            .db()
            .execute("INSERT INTO events (source, type, content) VALUES ('s', 'record', 'row')", [])
            .unwrap();
        let batch = world.sh("exec thread push --batch <batch").spawn();
        stored(before + 1001);
        let single = push(&world).spawn();
        stored(before + 1002);
        let other = world.sh("exec thread push --batch <batch").spawn();
        stored(before + 2002);
        // Any of them may get the lock first.
        copy.unlock().unwrap();
        for child in [batch, single, other] {
            let ended = child.wait_with_output().unwrap();
            assert!(ended.status.success() && ended.stderr.is_empty(), "{round}: {ended:?}");
        }
        world.assert_log_is_exact();
    }
}

#[test]
fn new_files_take_the_permission_bits_of_the_database() {
    let world = World::with_thread();
    for bits in [0o600, 0o660, 0o664, 0o666, 0o640] {
        fs::set_permissions(world.inbox().join("events.db"), fs::Permissions::from_mode(bits)).unwrap();
        world.sh("rm -f inbox/events.jsonl inbox/run/* inbox/logs/*").quiet();
        for umask in ["077", "000"] {
            world.sh(&format!("umask {umask}; thread push --source s --type record --content c")).quiet();
            for name in ["inbox/events.jsonl", "inbox/logs/thread.log"] {
                // Others never get write permission.
                assert_eq!(mode(&world, name), bits & !0o002, "{name} beside a database of mode {bits:o}");
            }
            // A lock is for those who may write.
            let lock = if bits & 0o020 != 0 { 0o660 } else { 0o600 };
            assert_eq!(mode(&world, "inbox/run/_jsonl"), lock, "beside a database of mode {bits:o}");
        }
    }
    world.assert_log_is_exact();
}

#[test]
fn a_log_that_is_a_link_is_refused_and_what_it_leads_to_is_left_alone() {
    let world = World::with_thread();
    world.push("before");
    fs::rename(world.path("inbox/events.jsonl"), world.path("elsewhere")).unwrap();
    symlink(world.path("elsewhere"), world.path("inbox/events.jsonl")).unwrap();
    let warning = push(&world).warns();
    assert!(warning.contains("inbox/events.jsonl: it is a symbolic link"), "{warning}");
    assert_eq!(world.lines("elsewhere").len(), 1);
    fs::remove_file(world.path("inbox/events.jsonl")).unwrap();
    world.push("after");
    world.assert_log_is_exact();
}

#[test]
fn a_log_that_cannot_be_written_is_a_warning_and_the_event_is_stored() {
    let world = World::with_thread();
    world.push("first");
    fs::remove_file(world.path("inbox/events.jsonl")).unwrap();
    fs::create_dir(world.path("inbox/events.jsonl")).unwrap();
    let (stdout, stderr) = push(&world).ends_with(0);
    assert_eq!(stdout, "2\n");
    assert!(stderr.starts_with("Warning: events.jsonl is behind: cannot open "), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(world.log().iter().any(|line| line.starts_with("[WARN] push: events.jsonl is behind")));
    fs::remove_dir(world.path("inbox/events.jsonl")).unwrap();
    push(&world).quiet();
    assert_eq!(world.lines("inbox/events.jsonl").len(), 3);
    world.assert_log_is_exact();
}

#[test]
fn a_read_only_log_stops_nobody_from_pushing() {
    let world = World::with_thread();
    world.push("first");
    let set = |bits| fs::set_permissions(world.path("inbox/events.jsonl"), fs::Permissions::from_mode(bits));
    set(0o444).unwrap();
    // Root ignores permission bits.
    if rustix::process::geteuid().is_root() {
        push(&world).quiet();
    } else {
        push(&world).warns();
    }
    set(0o644).unwrap();
    push(&world).quiet();
    assert_eq!(world.lines("inbox/events.jsonl").len(), 3);
    world.assert_log_is_exact();
}

#[test]
fn a_thread_copied_with_its_directory_is_a_thread_of_its_own() {
    let world = World::with_thread();
    push_many(&world, 10_001);
    world.push("in both");
    world.sh("cp -r inbox other").quiet();
    world.push("only here");
    world
        .thread(["push", "--thread", "other", "--source", "s", "--type", "record", "--content", "there"])
        .quiet();
    world.assert_log_is_exact();
    let here = world.jsonl();
    fs::rename(world.inbox(), world.path("moved")).unwrap();
    fs::rename(world.path("other"), world.inbox()).unwrap();
    world.assert_log_is_exact();
    let there = world.jsonl();
    assert_eq!(here[..10_002], there[..10_002]);
    assert_ne!(here[10_002..], there[10_002..]);
    world.push("at the new place");
    world.assert_log_is_exact();
}

const LOG_LINE: &str = "[2026-03-18T10:30:00.123Z] [INFO] dispatch: by hand\n";

#[test]
fn a_thread_log_of_more_than_ten_thousand_lines_is_rotated_by_the_next_push() {
    let world = World::with_thread();
    let logs = || rotated(&world, "inbox/logs", "thread");
    world.write("inbox/logs/thread.log", LOG_LINE.repeat(10_000));
    push(&world).quiet();
    assert_eq!(logs(), [""; 0], "ten thousand lines were not too many");
    // Lines that were already counted are not read again, so removing some does not change the count.
    let path = world.path("inbox/logs/thread.log");
    let mut log = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mut text = String::new();
    log.read_to_string(&mut text).unwrap();
    log.seek(SeekFrom::Start(0)).unwrap();
    log.write_all(text[..LOG_LINE.len() * 5000].replace('\n', " ").as_bytes()).unwrap();
    let before = Utc::now();
    push(&world).quiet();
    let names = logs();
    assert_eq!(names.len(), 1);
    let named = |time: chrono::DateTime<Utc>| format!("thread-{}.log", time.format(STAMP));
    assert!((named(before)..=named(Utc::now())).contains(&names[0]), "{}", names[0]);
    assert_eq!(world.lines(format!("inbox/logs/{}", names[0])).len(), 5001);
    assert_eq!(world.log(), ["[INFO] push: source=self type=message id=2"]);
    push(&world).quiet();
    assert_eq!(logs(), names);
}

#[test]
fn a_log_is_counted_again_when_the_stored_count_is_unusable() {
    let world = World::with_thread();
    for state in ["", "garbage", "1 2 3", "-1", "99999999999999999999 1 1"] {
        world.write("inbox/logs/thread.log", LOG_LINE.repeat(10_001));
        world.write("inbox/run/_log", state);
        let before = rotated(&world, "inbox/logs", "thread").len();
        push(&world).quiet();
        assert_eq!(rotated(&world, "inbox/logs", "thread").len(), before + 1, "with {state:?}");
        assert_eq!(world.log().len(), 1);
    }
}

#[test]
fn an_older_database_put_back_next_to_a_newer_log_is_logged_again() {
    let world = World::with_thread();
    for n in 1..=3 {
        world.push(&format!("kept {n}"));
    }
    // A copy of the database file alone, as a careless backup would make it.
    world.db().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    fs::copy(world.path("inbox/events.db"), world.path("saved.db")).unwrap();
    for n in 4..=9 {
        world.push(&format!("lost {n}"));
    }
    for name in ["events.db-wal", "events.db-shm"] {
        fs::remove_file(world.path("inbox").join(name)).unwrap();
    }
    fs::copy(world.path("saved.db"), world.path("inbox/events.db")).unwrap();
    assert_eq!(world.push("new 4"), 4);
    world.assert_log_is_exact();
    assert_eq!(world.push("new 5"), 5);
    world.assert_log_is_exact();
}
