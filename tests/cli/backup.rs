//! `backup`: what a backup of a thread in use contains, and what the command leaves alone.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use serde_json::{Value, json};
use thread_testkit::{Dice, World, ids, names, quoted, snapshot, wait_until};

use crate::doctor::assert_healthy;

fn push_many(world: &World, events: usize) {
    let line = "{\"source\":\"self\",\"type\":\"record\",\"content\":\"ten bytes.\"}\n";
    world.off(["push", "--batch"]).stdin(line.repeat(events)).quiet();
}

/// Makes a backup at `place` and returns its path.
#[track_caller]
fn back_up(world: &World, place: &str) -> String {
    let path = world.path(place).display().to_string();
    assert_eq!(world.thread(["backup", place]).quiet(), format!("{path}\n"));
    path
}

/// A command on the thread at `place`.
fn within(world: &World, place: &str, args: &[&str]) -> thread_testkit::Run {
    world.thread(args).arg("--thread").arg(world.path(place))
}

/// Swaps a backup for the thread while `check` runs.
fn restored<T>(world: &World, place: &str, check: impl FnOnce() -> T) -> T {
    fs::rename(world.inbox(), world.path("away")).unwrap();
    fs::rename(world.path(place), world.inbox()).unwrap();
    let checked = check();
    fs::rename(world.inbox(), world.path(place)).unwrap();
    fs::rename(world.path("away"), world.inbox()).unwrap();
    checked
}

/// Fails unless a backup is a healthy thread whose JSONL log matches its table. Returns its ids.
fn checked_ids(world: &World, place: &str) -> Vec<i64> {
    restored(world, place, || {
        assert_healthy(world);
        let sound = "SELECT count(*) FROM pragma_integrity_check WHERE integrity_check = 'ok'";
        assert_eq!(world.query(sound), 1);
        world.assert_log_is_exact();
        ids(&world.jsonl().join("\n"))
    })
}

/// All rows of a table, as text.
fn rows(dir: &Path, table: &str) -> Vec<Vec<String>> {
    let conn = Connection::open(dir.join("events.db")).unwrap();
    let mut statement = conn.prepare(&format!("SELECT * FROM {table}")).unwrap();
    let columns = statement.column_count();
    let rows = statement.query_map([], |row| {
        (0..columns).map(|column| row.get_ref(column).map(|value| format!("{value:?}"))).collect()
    });
    rows.unwrap().map(Result::unwrap).collect()
}

#[test]
fn a_backup_has_all_of_the_threads_data_and_no_state_of_the_machine() {
    let world = World::with_thread();
    push_many(&world, 5);
    let push = ["push", "--source", "self", "--type", "message", "--content", "six"];
    let keyed = [&push[..], &["--idempotency-key", "k-1", "--meta", "a=b"]].concat();
    assert_eq!(world.off(&keyed).quiet(), "6\n");
    let options = ["--deliver", "stdin", "--batch-size", "1", "--max-attempts", "1", "--backoff", "1s"];
    world.subscribe("bot", "echo no; exit 1", &[&options[..], &["--filter", "id = 1"]].concat());
    wait_until("a dead letter", || world.query("SELECT count(*) FROM dead_letters") == 1);
    world.wait_until_quiet();
    let rare = ["--filter", "id < 0", "--from", "new", "--timeout", "90s", "--cwd", "/"];
    world.subscribe("rare", "true", &rare);
    push_many(&world, 3);
    // The event that is a dead letter is not pruned.
    let pruned = world.off(["prune", "--before-id", "100"]).ends_with(0);
    assert_eq!(pruned.0, "8\n");
    world.off(["push", "--source", "self", "--type", "message", "--content", "ten"]).quiet();
    let done = world.off(["backup", "deep/er/one", "--json"]).quiet();
    let path = world.path("deep/er/one");
    let expected = json!({"path": path, "event_count": 2, "last_event_id": 10});
    assert_eq!(serde_json::from_str::<Value>(&done).unwrap(), expected);
    let there = names(&path);
    assert!(there[0].starts_with("events-2"), "no lines of the pruned events: {there:?}");
    assert_eq!(there[1..], ["events.db", "events.jsonl", "logs", "run"]);
    assert_eq!(names(&path.join("run")), ["_backup", "_jsonl"]);
    assert_eq!(names(&path.join("logs")), [""; 0]);
    assert_eq!(names(&world.path("deep/er")), ["one"]);
    for table in ["events", "subscriptions", "consumer_progress", "dead_letters", "sqlite_sequence"] {
        assert_eq!(rows(&path, table), rows(&world.inbox(), table), "{table}");
    }
    assert_eq!(rows(&path, "pragma_journal_mode"), [["Text([119, 97, 108])"]]);
    // Of a consumer, only the run state differs.
    let options = "(SELECT consumer_id, token, cwd, options, rewinds FROM consumers)";
    assert_eq!(rows(&path, options), rows(&world.inbox(), options));
    let lines = world.jsonl();
    assert_eq!(ids(&lines.join("\n")), (1..=10).collect::<Vec<i64>>());
    restored(&world, "deep/er/one", || {
        assert_eq!(world.jsonl(), lines);
        assert_healthy(&world);
    });
    let log = format!("[INFO] backup: path=\"{}\" count=2", path.display());
    assert_eq!(world.log().pop(), Some(log));
    // Ids of deleted events are not reused.
    restored(&world, "deep/er/one", || assert_eq!(world.push("eleven"), 11));
}

#[test]
fn an_idempotency_key_is_known_to_the_backup() {
    let world = World::with_thread();
    let push = ["push", "--source", "self", "--type", "message", "--content", "x", "--idempotency-key", "k"];
    world.off(push).quiet();
    back_up(&world, "copy");
    assert_eq!(within(&world, "copy", &push).quiet(), "1\n");
    assert_eq!(within(&world, "copy", &[&push[..8], &["other"]].concat()).quiet(), "2\n");
}

#[test]
fn the_lines_of_pruned_events_are_kept() {
    let world = World::with_thread();
    for _ in 0..3 {
        // The third push finds more than ten thousand lines and seals them.
        push_many(&world, 6000);
    }
    world.off(["prune", "--before-id", "12500"]).quiet();
    // A gap left by another program.
    world.db().execute("DELETE FROM events WHERE id = 17000", []).unwrap();
    push_many(&world, 500);
    let lines = world.jsonl();
    assert_eq!((lines.len(), world.query("SELECT count(*) FROM events")), (18_500, 6000));
    let push = ["push", "--source", "self", "--type", "message", "--content", "there"];
    let goes_on = |place: &str| {
        assert!(restored(&world, place, || world.jsonl()) == lines, "{place}");
        assert_eq!(within(&world, place, &push).quiet(), "18501\n");
        restored(&world, place, || {
            let there = world.jsonl();
            assert!(there[..18_500] == lines && there.len() == 18_501);
            assert_healthy(&world);
        });
    };
    back_up(&world, "copy");
    goes_on("copy");
    // Also when only log lines are left and no events.
    world.off(["prune", "--before-id", "20000", "--force"]).quiet();
    assert_eq!(world.query("SELECT count(*) FROM events"), 0);
    back_up(&world, "lines");
    goes_on("lines");
    assert!(world.jsonl() == lines);
    assert_healthy(&world);
}

#[test]
fn damage_to_the_log_does_not_reach_the_backup() {
    let world = World::with_thread();
    push_many(&world, 3);
    let lines = world.jsonl();
    let damaged = format!("\0\n{}\n{{\"id\":2,\"created_at\":\"20\n{}\n", lines[0], lines[2]);
    world.write("inbox/events.jsonl", &damaged);
    back_up(&world, "copy");
    assert_eq!(checked_ids(&world, "copy"), [1, 2, 3]);
    assert_eq!(world.read("inbox/events.jsonl"), damaged);
}

#[test]
fn an_empty_thread_can_be_backed_up_to_an_empty_directory() {
    let world = World::with_thread();
    fs::create_dir(world.path("empty")).unwrap();
    back_up(&world, "empty");
    assert_eq!(checked_ids(&world, "empty"), [0; 0]);
}

/// Consumers in every state. Each handler records the thread that started it.
fn world_with_consumers() -> World {
    let world = World::with_thread();
    let start = |name: &str, then: &str, options: &[&str]| {
        let handler = format!("echo {name} \"$THREAD_DIR\" >>{}; {then}", quoted(world.path("started")));
        world.subscribe(name, &handler, options);
    };
    world.push("for all");
    start("busy", "while [ ! -e go ]; do sleep 0.01; done", &["--deliver", "stdin"]);
    start("waiting", "exit 1", &["--backoff", "1h"]);
    start("stalled", "exit 127", &["--max-attempts", "1"]);
    start("idle", "cat >/dev/null", &["--deliver", "stdin"]);
    start("paused", "true", &["--filter", "id > 1"]);
    world.off(["pause", "--consumer", "paused"]).quiet();
    world.off(["subscribe", "reader", "--no-handler"]).quiet();
    let last = [("busy", "running"), ("waiting", "waiting"), ("stalled", "stalled"), ("idle", "idle")];
    for (consumer, state) in last {
        world.wait_for_state(consumer, state);
    }
    wait_until("the last of them to become idle", || world.consumer("idle")["last_acked_id"] == 1);
    world
}

#[test]
fn all_consumers_of_a_backup_are_paused_and_only_a_resumed_one_is_started() {
    let world = world_with_consumers();
    let before = world.lines("started");
    back_up(&world, "copy");
    let info: Value = serde_json::from_str(&within(&world, "copy", &["info", "--json"]).quiet()).unwrap();
    let consumers = info["subscriptions"].as_array().unwrap();
    assert_eq!(consumers.len(), 6);
    for consumer in consumers {
        assert_eq!(consumer["state"], "paused", "{consumer}");
    }
    // The run that was under way does not count as a failure; the earlier ones do.
    restored(&world, "copy", || {
        let state = |consumer: &str| ["$.phase", "$.attempts"].map(|field| world.run_state(consumer, field));
        assert_eq!(state("busy"), [json!("idle"), json!(0)]);
        assert_eq!(state("stalled"), [json!("stalled"), json!(1)]);
        assert_eq!(state("waiting"), [json!("idle"), json!(1)]);
    });
    // In the copy no handler is started, not even by a notifier that runs every task.
    world.script("bin/notifier", "for command; do :; done; eval \"$command\" && echo >>asked");
    let push = ["push", "--source", "self", "--type", "message", "--content", "in the copy"];
    for notifier in ["auto", "embedded"] {
        within(&world, "copy", &push).env("THREAD_NOTIFIER", notifier).quiet();
        within(&world, "copy", &["dispatch"]).env("THREAD_NOTIFIER", notifier).quiet();
    }
    world.wait_for_file("asked");
    fs::remove_file(world.path("bin/notifier")).unwrap();
    within(&world, "copy", &["resume", "--consumer", "idle"]).quiet();
    let acked = || {
        let copy = Connection::open(world.path("copy/events.db")).unwrap();
        let sql = "SELECT last_acked_id FROM consumer_progress WHERE consumer_id = 'idle'";
        copy.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap()
    };
    wait_until("the resumed one to take them", || acked() == 3);
    // No other handler was started either.
    let resumed = format!("idle {}", world.path("copy").display());
    assert_eq!(world.lines("started"), [&before[..], &[resumed]].concat());
    world.write("go", "");
    wait_until("the run in the thread to end", || world.consumer("busy")["last_acked_id"] == 1);
}

#[test]
fn stop_in_a_backup_ends_no_run_of_the_thread() {
    let world = world_with_consumers();
    back_up(&world, "copy");
    assert_eq!(checked_ids(&world, "copy"), [1]);
    for consumer in ["busy", "waiting"] {
        let told = within(&world, "copy", &["stop", "--consumer", consumer]).fails(1);
        assert!(
            told.starts_with(&format!("Error: the consumer '{consumer}' is not running or waiting - ")),
            "{told}"
        );
        within(&world, "copy", &["unsubscribe", "--consumer", consumer]).quiet();
    }
    assert_eq!(world.state("waiting"), "waiting");
    assert_eq!(world.state("busy"), "running");
    world.write("go", "");
    wait_until("the run to end", || world.consumer("busy")["last_acked_id"] == 1);
    assert_eq!(world.consumer("busy")["last_exit"], "exit=0");
}

#[test]
fn a_backup_can_take_the_place_of_the_thread() {
    let world = World::with_thread();
    world.subscribe("bot", "cat >>got", &["--deliver", "stdin"]);
    world.off(["push", "--source", "self", "--type", "message", "--content", "one"]).quiet();
    back_up(&world, "copy");
    fs::remove_dir_all(world.inbox()).unwrap();
    fs::rename(world.path("copy"), world.inbox()).unwrap();
    world.push("two");
    assert_eq!(world.consumer("bot")["pending"], 2);
    world.thread(["resume", "--consumer", "bot"]).quiet();
    wait_until("both to be taken", || world.consumer("bot")["last_acked_id"] == 2);
    assert_eq!(ids(&world.read("got")), [1, 2]);
    world.wait_until_quiet();
    assert_healthy(&world);
}

#[test]
fn backups_in_a_storm_of_pushes_miss_nothing_that_was_acknowledged() {
    let world = World::with_thread();
    push_many(&world, 9_000);
    let acked = Mutex::new((1..=9_000).collect::<Vec<i64>>());
    let over = AtomicBool::new(false);
    let storm = |batch: bool| {
        while !over.load(Ordering::Relaxed) {
            let line = "{\"source\":\"s\",\"type\":\"record\",\"content\":\"x\"}\n";
            let new: Vec<i64> = if batch {
                let run = world.off(["push", "--batch", "--json"]).stdin(line.repeat(700));
                let answer: Value = serde_json::from_str(&run.quiet()).unwrap();
                (answer["first_id"].as_i64().unwrap()..=answer["last_id"].as_i64().unwrap()).collect()
            } else {
                let push = ["push", "--source", "s", "--type", "message", "--content", "y"];
                vec![world.off(push).quiet().trim().parse().unwrap()]
            };
            acked.lock().unwrap().extend(new);
        }
    };
    let backups: Vec<(String, Vec<i64>)> = std::thread::scope(|scope| {
        for batch in [true, false, false] {
            scope.spawn(move || storm(batch));
        }
        let backups = (0..5).map(|n| {
            let count = acked.lock().unwrap().len();
            wait_until("more to be pushed", || acked.lock().unwrap().len() > count);
            let before = acked.lock().unwrap().clone();
            back_up(&world, &format!("copy-{n}"));
            (format!("copy-{n}"), before)
        });
        let backups = backups.collect();
        over.store(true, Ordering::Relaxed);
        backups
    });
    for (place, mut before) in backups {
        before.sort();
        let held = checked_ids(&world, &place);
        let missing: Vec<&i64> = before.iter().filter(|id| held.binary_search(id).is_err()).collect();
        assert!(missing.is_empty(), "{place} lacks {missing:?}");
        assert_eq!(held, (1..=held.len() as i64).collect::<Vec<_>>());
    }
    assert_healthy(&world);
}

/// The names that unfinished backups to `place` left behind.
fn leftovers(world: &World, place: &str) -> Vec<String> {
    let partial = format!("{place}.partial-");
    names(world.root()).into_iter().filter(|name| name.starts_with(&partial)).collect()
}

#[test]
fn only_abandoned_copies_are_deleted() {
    let world = World::with_thread();
    let remains = |name: &str| {
        std::fs::create_dir(world.path(name)).unwrap();
        world.write(format!("{name}/events.db"), "half");
    };
    for name in ["a.partial-AbC123", "b.partial-AbC123", "b.partial-1", "c.partial-AbC123"] {
        remains(name);
    }
    world.write("c.partial-AbC123/letter.txt", "of the user's own");
    world.write("d.partial-AbC123", "a file");
    // Locked, as by a running backup.
    let held = std::fs::File::open(world.path("b.partial-AbC123")).unwrap();
    held.lock().unwrap();
    back_up(&world, "one");
    let left = || names(world.root()).into_iter().filter(|name| name.contains("partial")).collect::<Vec<_>>();
    let kept = ["b.partial-1", "b.partial-AbC123", "c.partial-AbC123", "d.partial-AbC123"];
    assert_eq!(left(), kept);
    drop(held);
    // A process that another test starts at this moment has it too, until it executes its program.
    wait_until("it to be unlocked", || {
        std::fs::File::open(world.path("b.partial-AbC123")).unwrap().try_lock().is_ok()
    });
    back_up(&world, "two");
    assert_eq!(left(), ["b.partial-1", "c.partial-AbC123", "d.partial-AbC123"]);
    let log = world.read("inbox/logs/thread.log");
    assert_eq!(log.matches("backup: deleted unfinished path=").count(), 2, "{log}");
}

#[test]
fn a_killed_backup_leaves_nothing_under_its_name() {
    let world = World::with_thread();
    push_many(&world, 2000);
    let table = world.table_as_jsonl();
    let began = Instant::now();
    back_up(&world, "whole");
    let whole = began.elapsed().as_micros() as u64;
    let mut dice = Dice::new();
    let mut killed = 0;
    for round in 0.. {
        if round >= 12 && killed > 0 {
            break;
        }
        assert!(round < 100, "none was killed half-way: {dice:?}");
        let place = format!("copy-{round}");
        let mut child = world.off(["backup", &place]).spawn();
        std::thread::sleep(Duration::from_micros(dice.up_to(whole * 5 / 4)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(world.table_as_jsonl(), table);
        let left = leftovers(&world, &place);
        killed += usize::from(!left.is_empty());
        if world.path(&place).exists() {
            assert_eq!(left, [""; 0], "{place}: both");
        } else {
            // The next backup there deletes the leftovers.
            back_up(&world, &place);
            assert_eq!(leftovers(&world, &place), [""; 0], "{place}");
        }
        assert_eq!(checked_ids(&world, &place).len(), 2000, "{place}");
    }
    assert_healthy(&world);
}

#[test]
fn a_failed_backup_leaves_nothing() {
    let world = World::with_thread();
    push_many(&world, 3);
    fs::create_dir(world.path("inbox/events-20260318-103000.jsonl")).unwrap();
    let error = world.off(["backup", "deep/er/one"]).fails(1);
    assert!(error.contains("events-20260318-103000.jsonl: "), "{error}");
    assert_eq!(names(&world.path("deep/er")), [""; 0]);
}

#[test]
fn a_backup_whose_name_cannot_be_printed_is_complete() {
    let world = World::with_thread();
    push_many(&world, 3);
    let (_, stderr) = world.sh("exec thread backup there >/dev/full").ends_with(0);
    assert!(stderr.starts_with("Warning: ") && stderr.contains("the backup is complete"), "{stderr}");
    assert_eq!(checked_ids(&world, "there"), [1, 2, 3]);
}

#[test]
fn of_two_backups_to_the_same_place_one_succeeds() {
    let world = World::with_thread();
    push_many(&world, 3000);
    for round in 0..5 {
        let place = format!("copy-{round}");
        let both = [(); 2].map(|()| world.off(["backup", &place]).spawn());
        let ends = both.map(|child| child.wait_with_output().unwrap());
        let good = ends.iter().filter(|end| end.status.success()).count();
        assert_eq!(good, 1, "{ends:?}");
        let refused = ends.iter().find(|end| !end.status.success()).map(|end| end.stderr.clone()).unwrap();
        let refused = String::from_utf8(refused).unwrap();
        assert!(refused.ends_with("exists and is not an empty directory - name a new directory\n"));
        assert_eq!(checked_ids(&world, &place).len(), 3000);
        assert_eq!(leftovers(&world, &place), [""; 0]);
    }
}

#[test]
fn an_existing_destination_is_refused_and_left_alone() {
    let world = World::with_thread();
    world.push("one");
    fs::create_dir(world.path("full")).unwrap();
    world.write("full/mine", "mine");
    world.write("file", "mine");
    std::os::unix::fs::symlink("empty", world.path("link")).unwrap();
    fs::create_dir(world.path("empty")).unwrap();
    let before = snapshot(world.root());
    let root = world.root().display();
    let refused = |place: &str, why: &str| {
        let told = world.off(["backup", place]).fails(1);
        assert_eq!(told, format!("Error: {root}/{why}"));
    };
    for place in ["full", "inbox", "file", "link"] {
        let why = "exists and is not an empty directory - name a new directory";
        refused(place, &format!("{place} {why}"));
    }
    for (place, path) in [("inbox/backups/one", "inbox/backups/one"), ("./x/../inbox/one", "inbox/one")] {
        let why = "is inside the thread - name a directory elsewhere, best on another disk";
        refused(place, &format!("{path} {why}"));
    }
    world.off(["backup", ""]).fails(2);
    world.off(["backup"]).fails(2);
    // Readers may touch the WAL and its index.
    let of_sqlite = |path: &Path| path.to_string_lossy().contains("events.db-");
    let kept = |all: std::collections::BTreeMap<std::path::PathBuf, (u32, Vec<u8>)>| {
        all.into_iter().filter(|(path, _)| !of_sqlite(path)).collect::<Vec<_>>()
    };
    assert_eq!(kept(snapshot(world.root())), kept(before));
}

#[test]
fn a_backup_has_the_permissions_of_its_thread() {
    let world = World::with_thread();
    world.push("one");
    let mode = |name: &str| fs::metadata(world.path(name)).unwrap().permissions().mode() & 0o777;
    let chmod = |name: &str, mode: u32| {
        fs::set_permissions(world.path(name), Permissions::from_mode(mode)).unwrap();
    };
    for (n, (dir, db)) in [(0o700, 0o664), (0o750, 0o640), (0o775, 0o600)].into_iter().enumerate() {
        chmod("inbox", dir);
        chmod("inbox/events.db", db);
        let place = format!("copy-{n}");
        world.sh("umask 077; exec thread backup \"$0\"").arg(&place).quiet();
        assert_eq!(mode(&place), dir);
        for file in ["events.db", "events.jsonl"] {
            assert_eq!(mode(&format!("{place}/{file}")), db, "{file}");
        }
        assert_eq!(mode(&format!("{place}/run/_jsonl")), if db == 0o664 { 0o660 } else { 0o600 });
    }
}

#[test]
fn a_thread_of_the_earlier_implementation_is_backed_up_in_the_new_form() {
    let world = World::new();
    fs::create_dir(world.inbox()).unwrap();
    world
        .db()
        .execute_batch(
            "CREATE TABLE events (id INTEGER PRIMARY KEY AUTOINCREMENT, created_at TEXT NOT NULL DEFAULT \
               (strftime('%Y-%m-%dT%H:%M:%fZ','now')), source TEXT NOT NULL, type TEXT NOT NULL, \
               subtype TEXT, content TEXT NOT NULL); \
             CREATE TABLE subscriptions (consumer_id TEXT NOT NULL PRIMARY KEY, handler_cmd TEXT NOT NULL, \
               filter TEXT); \
             CREATE TABLE consumer_progress (consumer_id TEXT NOT NULL PRIMARY KEY, \
               last_acked_id INTEGER NOT NULL DEFAULT 0, updated_at TEXT NOT NULL); \
             INSERT INTO events (source, type, content) VALUES ('self', 'message', 'old'); \
             INSERT INTO subscriptions VALUES ('old-bot', 'touch ran', NULL);",
        )
        .unwrap();
    back_up(&world, "copy");
    assert_eq!(checked_ids(&world, "copy"), [1]);
    restored(&world, "copy", || {
        assert_eq!(world.state("old-bot"), "paused");
        assert_eq!(world.push("new"), 2);
        world.assert_log_is_exact();
    });
    assert!(!world.path("ran").exists());
}

#[test]
fn a_backup_to_a_path_below_a_file_is_refused() {
    let world = World::with_thread();
    let before = names(world.root());
    for args in [&["backup"][..], &["backup", "--root", "."]] {
        let error = world.thread(args).arg("postgres://queue@db.example/agents#copy").fails(2);
        assert_eq!(
            error,
            "Error: a backup is made in a directory, not in a location that begins with postgres:// - name a directory; \
             `thread clone` copies the thread to another location"
        );
    }
    assert_eq!(names(world.root()), before);
}
