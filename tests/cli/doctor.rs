//! What `doctor` finds, says and mends, one fault at a time.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rusqlite::Connection;
use serde_json::{Value, json};

use crate::harness::{World, names, snapshot, wait_until};

const BY_FIX: &str = "run `thread doctor --fix`";

/// What `doctor` says that is wrong: its lines, and exit 1 where one is an error.
#[track_caller]
pub fn findings(world: &World) -> Vec<String> {
    examine(world, &["doctor"])
}

#[track_caller]
fn examine(world: &World, args: &[&str]) -> Vec<String> {
    let output = world.thread(args).output();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    let lines: Vec<String> = stdout.lines().map(str::to_owned).collect();
    let errors = lines.iter().filter(|line| line.starts_with("error: ")).count();
    let code = i32::from(errors > 0);
    let told = |what: &str| format!("Error: {what} - do what is said beside each finding\n");
    assert_eq!(output.status.code(), Some(code), "{stdout}{stderr}");
    let told = match (errors, args.contains(&"--fix")) {
        (0, _) => String::new(),
        (1, false) => told("1 thing is wrong with the thread"),
        (n, false) => told(&format!("{n} things are wrong with the thread")),
        (1, true) => told("1 thing wrong with the thread cannot be mended by --fix"),
        (n, true) => told(&format!("{n} things wrong with the thread cannot be mended by --fix")),
    };
    assert_eq!(stderr, told, "{stdout}");
    lines
}

#[track_caller]
pub fn assert_healthy(world: &World) {
    assert_eq!(findings(world), ["healthy"]);
}

/// Expects just this finding, that looking changes nothing, that `--fix` mends it, and that all is
/// well then.
#[track_caller]
pub fn found_and_mended(world: &World, level: &str, problem: &str, done: &str) {
    assert_eq!(findings(world), [format!("{level}: {problem} - {BY_FIX}")]);
    assert_eq!(examine(world, &["doctor", "--fix"]), [format!("mended: {problem} - {done}")]);
    assert_healthy(world);
}

/// Expects just this finding, with `--fix` as without.
#[track_caller]
fn found_and_told(world: &World, finding: &str) {
    assert_eq!(findings(world), [finding]);
    assert_eq!(examine(world, &["doctor", "--fix"]), [finding]);
}

fn chmod(world: &World, name: &str, mode: u32) {
    fs::set_permissions(world.path(name), fs::Permissions::from_mode(mode)).unwrap();
}

/// A thread with a few events and a consumer that is at rest.
fn with_events() -> World {
    let world = World::with_thread();
    for content in ["one", "two", "three", "four", "five"] {
        world.push(content);
    }
    world.idle_consumer("bot", "");
    world.thread(["ack", "--consumer", "bot", "--event-id", "5"]).quiet();
    world
}

#[test]
fn a_healthy_thread_is_one_word_and_stays_as_it_is() {
    let world = World::with_thread();
    assert_healthy(&world);
    let world = with_events();
    let before = snapshot(&world.inbox());
    assert_healthy(&world);
    let told = world.thread(["doctor", "--json"]).quiet();
    assert_eq!(told, "{\"healthy\":true,\"findings\":[]}\n");
    let mut after = snapshot(&world.inbox());
    // The index of the log notes who reads.
    let shm = world.path("inbox/events.db-shm");
    after.insert(shm.clone(), before[&shm].clone());
    assert!(before == after, "looking changed something");
    assert_eq!(examine(&world, &["doctor", "--fix"]), ["healthy"]);
}

#[test]
fn what_is_no_thread_is_refused_as_by_any_command() {
    let world = World::new();
    fs::create_dir(world.inbox()).unwrap();
    for args in [&["doctor"][..], &["doctor", "--fix"]] {
        let error = world.thread(args).fails(1);
        assert!(error.contains("is not a thread") && error.contains("thread init"), "{error}");
    }
    assert_eq!(names(&world.inbox()), [""; 0]);
}

#[test]
fn findings_are_there_for_programs_too() {
    let world = with_events();
    fs::remove_dir_all(world.path("inbox/logs")).unwrap();
    let (stdout, stderr) = world.thread(["doctor", "--json"]).ends_with(1);
    let finding = json!({
        "check": "layout", "level": "error", "problem": "the folder logs/ is missing",
        "suggestion": BY_FIX, "mended": false
    });
    let told: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(told, json!({ "healthy": false, "findings": [finding] }));
    assert!(stderr.starts_with("{\"error\":\"1 thing is wrong"), "{stderr}");
    let told: Value = serde_json::from_str(&world.thread(["doctor", "--fix", "--json"]).quiet()).unwrap();
    assert_eq!((&told["healthy"], &told["findings"][0]["mended"]), (&json!(true), &json!(true)));
}

#[test]
fn missing_folders_are_made_again() {
    for name in ["run", "logs"] {
        let world = with_events();
        let mode = fs::metadata(world.inbox().join(name)).unwrap().permissions().mode();
        fs::remove_dir_all(world.inbox().join(name)).unwrap();
        found_and_mended(&world, "error", &format!("the folder {name}/ is missing"), "it was made again");
        assert_eq!(fs::metadata(world.inbox().join(name)).unwrap().permissions().mode(), mode);
    }
}

#[test]
fn a_file_in_the_place_of_a_folder_is_told() {
    let world = with_events();
    fs::remove_dir_all(world.path("inbox/logs")).unwrap();
    world.write("inbox/logs", "mine");
    let away = world.path("inbox/logs").display().to_string();
    found_and_told(
        &world,
        &format!("error: logs is no folder - move {away} away, then run `thread doctor --fix`"),
    );
    assert_eq!(world.read("inbox/logs"), "mine");
}

#[test]
fn files_that_others_may_write_are_closed_to_them() {
    for (name, shown, mode) in [
        ("inbox", None, 0o777),
        ("inbox/run", Some("run"), 0o777),
        ("inbox/events.db", Some("events.db"), 0o666),
        ("inbox/logs/thread.log", Some("logs/thread.log"), 0o646),
    ] {
        let world = with_events();
        chmod(&world, name, mode);
        let shown = shown.map_or_else(|| world.inbox().display().to_string(), str::to_owned);
        let problem = format!(
            "anybody on this machine may write {shown}, and so have commands run as the thread's owner"
        );
        found_and_mended(&world, "error", &problem, "others may not write it any more");
        assert_eq!(fs::metadata(world.path(name)).unwrap().permissions().mode() & 0o777, mode & !0o002);
    }
}

#[test]
fn what_a_link_leads_to_is_left_alone() {
    let world = with_events();
    world.write("elsewhere", "somebody's");
    chmod(&world, "elsewhere", 0o666);
    std::os::unix::fs::symlink(world.path("elsewhere"), world.path("inbox/run/trap.lock")).unwrap();
    assert_eq!(examine(&world, &["doctor", "--fix"]), ["healthy"]);
    assert_eq!(fs::metadata(world.path("elsewhere")).unwrap().permissions().mode() & 0o777, 0o666);
}

#[test]
fn files_that_the_owner_may_not_use_are_given_to_him() {
    let world = with_events();
    if rustix::process::geteuid().is_root() {
        // Root may use everything, so the thread is somebody else's.
        for name in [
            "",
            "run",
            "logs",
            "events.db",
            "events.db-wal",
            "events.db-shm",
            "events.jsonl",
            "run/_journal",
            "logs/thread.log",
        ] {
            std::os::unix::fs::chown(world.inbox().join(name), Some(4711), Some(4711)).unwrap();
        }
        assert_healthy(&world);
        std::os::unix::fs::chown(world.path("inbox/run/_journal"), Some(0), Some(0)).unwrap();
    }
    chmod(&world, "inbox/run/_journal", 0o400);
    let problem = "the owner of the thread may not read and write run/_journal";
    found_and_mended(&world, "error", problem, "the owner may do so now");
}

#[test]
fn a_thread_that_is_for_reading_only_can_be_examined() {
    let world = with_events();
    for name in
        ["events.db", "events.db-wal", "events.db-shm", "events.jsonl", "run/_journal", "logs/thread.log"]
    {
        chmod(&world, &format!("inbox/{name}"), 0o444);
    }
    for name in ["inbox/run", "inbox/logs", "inbox"] {
        chmod(&world, name, 0o555);
    }
    assert_healthy(&world);
    for name in ["inbox", "inbox/run", "inbox/logs"] {
        chmod(&world, name, 0o755);
    }
}

#[test]
fn what_a_killed_init_left_is_removed() {
    let world = with_events();
    world.write("inbox/run/_init.lock", "");
    world.write("inbox/run/_init.db", "half");
    let problem = "an init that was killed left run/_init.lock, run/_init.db";
    found_and_mended(&world, "warning", problem, "it was removed");
    assert_eq!(names(&world.path("inbox/run")), ["_journal"]);
}

#[test]
fn a_database_that_is_none_is_told_and_left_alone() {
    for (bytes, says) in [
        (&b"dear diary\n".repeat(500)[..], "is not a thread's database"),
        (b"", "is not a thread's database"),
    ] {
        let world = World::with_thread();
        fs::write(world.path("inbox/events.db"), bytes).unwrap();
        for args in [&["doctor"][..], &["doctor", "--fix"]] {
            let lines = examine(&world, args);
            assert!(lines.len() == 1 && lines[0].contains(says), "{lines:?}");
            assert_eq!(fs::read(world.path("inbox/events.db")).unwrap(), bytes);
        }
    }
}

#[test]
fn a_newer_schema_is_told_and_left_alone() {
    let world = with_events();
    world.db().execute_batch("PRAGMA user_version = 99").unwrap();
    let db = world.inbox().join("events.db").display().to_string();
    found_and_told(
        &world,
        &format!(
            "error: {db} has schema version 99, newer than the 0 known here - use a newer version of thread; \
             nothing was changed"
        ),
    );
}

#[test]
fn a_damaged_database_is_told_and_never_written() {
    let world = World::with_thread();
    let line = r#"{"source":"s","type":"record","content":"some text to fill a page"}"#.to_owned() + "\n";
    world.thread(["push", "--batch"]).stdin(line.repeat(2000)).quiet();
    // All of it in the one file.
    let conn = world.db();
    let root: i64 =
        conn.query_row("SELECT rootpage FROM sqlite_schema WHERE name = 'events'", [], |r| r.get(0)).unwrap();
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    drop(conn);
    let db = world.path("inbox/events.db");
    let whole = fs::read(&db).unwrap();
    let page = 4096;
    // The root of the table, a page in the middle, and the end of the file.
    for damage in ["root", "middle", "cut"] {
        let mut bytes = whole.clone();
        match damage {
            "root" => bytes[(root as usize - 1) * page..][..page].fill(0xff),
            "middle" => bytes[(root as usize + 12) * page..][..page].fill(0x5a),
            _ => bytes.truncate(whole.len() - 7 * page),
        }
        fs::write(&db, &bytes).unwrap();
        for args in [&["doctor"][..], &["doctor", "--fix"]] {
            let lines = examine(&world, args);
            assert_eq!(lines.len(), 1, "{damage}: {lines:?}");
            assert!(lines[0].starts_with("error: the database is damaged"), "{damage}: {lines:?}");
            assert!(lines[0].contains(".recover"), "{damage}: {lines:?}");
            assert!(fs::read(&db).unwrap() == bytes, "{damage}: the database was written to");
        }
    }
    fs::write(&db, whole).unwrap();
    assert_healthy(&world);
}

#[test]
fn an_index_that_lies_is_rebuilt() {
    let world = with_events();
    let conn = world.db();
    // Swapping what two indexes hold is damage that no page notices.
    conn.execute_batch(
        "INSERT INTO events (source, type, content) VALUES ('z', 'message', 'x'); PRAGMA writable_schema = ON; \
         UPDATE sqlite_schema SET rootpage = (SELECT sum(rootpage) FROM sqlite_schema \
            WHERE name IN ('idx_events_source', 'idx_events_type')) - rootpage \
         WHERE name IN ('idx_events_source', 'idx_events_type');",
    )
    .unwrap();
    drop(conn);
    world.thread(["push", "--source", "self", "--type", "record", "--content", "mends the copy"]).ok();
    world.thread(["ack", "--consumer", "bot", "--event-id", "99"]).warns();
    let lines = findings(&world);
    let problem = |index: &str| format!("the index {index} does not agree with its table");
    let (source, kind) = (problem("idx_events_source"), problem("idx_events_type"));
    assert_eq!(lines, [format!("error: {source} - {BY_FIX}"), format!("error: {kind} - {BY_FIX}")]);
    let mended = [format!("mended: {source} - it was rebuilt"), format!("mended: {kind} - it was rebuilt")];
    assert_eq!(examine(&world, &["doctor", "--fix"]), mended);
    assert_healthy(&world);
}

#[test]
fn missing_and_foreign_indexes_are_made_anew() {
    for name in ["idx_events_source", "idx_events_type", "idx_events_idempotency_key"] {
        for other in ["", &format!("CREATE INDEX {name} ON events (content)")] {
            let world = with_events();
            world.db().execute_batch(&format!("DROP INDEX {name}; {other}")).unwrap();
            let problem = format!("the index {name} is missing or not as it should be");
            found_and_mended(&world, "error", &problem, "it was made anew");
        }
    }
}

#[test]
fn an_index_that_cannot_be_made_is_told() {
    let world = with_events();
    let sql =
        "DROP INDEX idx_events_idempotency_key; UPDATE events SET idempotency_key = 'same' WHERE id < 3";
    world.db().execute_batch(sql).unwrap();
    let problem = "the index idx_events_idempotency_key is missing or not as it should be";
    assert_eq!(findings(&world), [format!("error: {problem} - {BY_FIX}")]);
    let lines = examine(&world, &["doctor", "--fix"]);
    assert!(lines.len() == 1 && lines[0].contains("it could not be mended: "), "{lines:?}");
    assert_eq!(world.query("SELECT count(*) FROM events"), 5);
}

#[test]
fn an_older_schema_is_a_warning_and_is_brought_up_to_date() {
    let world = World::new();
    fs::create_dir_all(world.path("inbox/run")).unwrap();
    fs::create_dir_all(world.path("inbox/logs")).unwrap();
    let conn = Connection::open(world.path("inbox/events.db")).unwrap();
    let schema = include_str!("../../src/store/schema.sql");
    conn.execute_batch(&format!("PRAGMA journal_mode = WAL; {schema}")).unwrap();
    drop(conn);
    let problem = "the schema is an older one; the next command brings it up to date";
    let before = world.db().prepare("SELECT token FROM subscriptions").is_err();
    found_and_mended(&world, "warning", problem, "it was brought up to date");
    assert!(before && world.db().prepare("SELECT token FROM subscriptions").is_ok());
}

#[test]
fn another_journal_mode_is_switched_back() {
    let world = with_events();
    world.db().query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(())).unwrap();
    let problem = "the database is in mode 'delete', not in write-ahead logging";
    found_and_mended(&world, "warning", problem, "it was switched");
}

#[test]
fn a_sequence_behind_the_events_is_set_to_the_newest() {
    for sql in ["UPDATE sqlite_sequence SET seq = 2", "DELETE FROM sqlite_sequence"] {
        let world = with_events();
        world.db().execute_batch(sql).unwrap();
        let last = if sql.starts_with("UPDATE") { 2 } else { 0 };
        let problem =
            format!("sqlite_sequence says that {last} is the last id given, but there are later events");
        found_and_mended(&world, "error", &problem, "it was set to the newest id");
        assert_eq!(world.query("SELECT seq FROM sqlite_sequence WHERE name = 'events'"), 5);
    }
}

#[test]
fn ids_that_could_be_given_twice_are_told() {
    let world = World::new();
    fs::create_dir_all(world.path("inbox/run")).unwrap();
    fs::create_dir_all(world.path("inbox/logs")).unwrap();
    let schema = include_str!("../../src/store/schema.sql").replace(" AUTOINCREMENT", "");
    let conn = Connection::open(world.path("inbox/events.db")).unwrap();
    // Another table has the sequence that SQLite keeps.
    let other = "CREATE TABLE other (id INTEGER PRIMARY KEY AUTOINCREMENT)";
    conn.execute_batch(&format!("PRAGMA journal_mode = WAL; {schema}; {other}")).unwrap();
    drop(conn);
    world.push("x");
    let lines = findings(&world);
    assert!(lines.len() == 1 && lines[0].contains("without AUTOINCREMENT"), "{lines:?}");
}

#[test]
fn cursors_that_point_nowhere_are_set_back() {
    let done = "it was set to the newest event, or, if it was no number, to 0";
    for (value, shown, then) in [("99", "99", 5), ("-3", "-3", 0), ("'soon'", "'soon'", 0)] {
        let world = with_events();
        // Nothing becomes pending.
        world.thread(["pause", "--consumer", "bot"]).quiet();
        world.db().execute_batch(&format!("UPDATE consumer_progress SET last_acked_id = {value}")).unwrap();
        let problem = format!("the cursor of 'bot' is {shown}, but the newest event ever was 5");
        found_and_mended(&world, "error", &problem, done);
        assert_eq!(world.query("SELECT last_acked_id FROM consumer_progress"), then);
    }
}

#[test]
fn a_memory_of_events_that_never_were_is_forgotten() {
    let world = with_events();
    world.db().execute_batch("UPDATE subscriptions SET filter = 'id > 2', mark_filter = 'id > 2', mark_from = 0, mark_upto = 50").unwrap();
    let problem = "'bot' is recorded to have been looked at up to event 50, but the newest ever was 5, so new \
                   events would not wake it";
    found_and_mended(&world, "error", problem, "it was forgotten");
    assert_eq!(world.query("SELECT mark_upto IS NULL FROM subscriptions"), 1);
}

#[test]
fn events_that_were_deleted_and_cursors_of_the_unsubscribed_are_no_fault() {
    let world = with_events();
    world.thread(["unsubscribe", "--consumer", "bot"]).quiet();
    world.db().execute_batch("DELETE FROM events WHERE id IN (1, 2, 4, 5)").unwrap();
    assert_healthy(&world);
}

#[test]
fn filters_and_subscriptions_that_no_longer_hold_are_told() {
    let world = with_events();
    let set = |sql: &str| world.db().execute_batch(&format!("UPDATE subscriptions SET {sql}")).unwrap();
    set("filter = 'gone = 1'");
    let lines = findings(&world);
    assert!(lines.len() == 1 && lines[0].starts_with("error: the filter of 'bot' "), "{lines:?}");
    assert!(lines[0].ends_with(" - `thread unsubscribe` it, then `thread subscribe` it with another filter"));
    assert_eq!(examine(&world, &["doctor", "--fix"]), lines);
    set("filter = NULL, handler_cmd = ' '");
    found_and_told(
        &world,
        "error: the handler of 'bot' is empty - `thread unsubscribe` it, then `thread subscribe` it with \
         another handler",
    );
    // That its program is not there either follows from it.
    set("handler_cmd = './agent.sh', cwd = '/no/such/place'");
    found_and_told(
        &world,
        "error: the working directory of 'bot', /no/such/place, is gone - make that directory again, or \
         `thread unsubscribe` it and subscribe it from another",
    );
}

#[test]
fn programs_that_are_gone_are_told() {
    let world = with_events();
    world.script("here.sh", "true");
    let set =
        |handler: &str| world.db().execute("UPDATE subscriptions SET handler_cmd = ?", [handler]).map(drop);
    for fine in [
        "cat",
        "./here.sh x",
        "cd /nowhere && gone",
        "gone; true",
        "$GONE",
        "'here.sh",
        "if gone; then :; fi",
    ] {
        set(fine).unwrap();
        assert_healthy(&world);
    }
    let fix = "install it, or `thread unsubscribe` it, then `thread subscribe` it with another handler";
    for (handler, says) in [
        ("gone --fast | cat", "begins with 'gone', which is not on PATH"),
        ("./gone.sh", "begins with './gone.sh', which is not there or cannot be run"),
        (
            "'/no such/place/agent' x",
            "begins with '/no such/place/agent', which is not there or cannot be run",
        ),
    ] {
        set(handler).unwrap();
        found_and_told(&world, &format!("error: the handler of 'bot' {says} - {fix}"));
    }
    set("cat | thread push --batch").unwrap();
    fs::remove_file(world.bin().join("thread")).unwrap();
    found_and_told(
        &world,
        "warning: the handler of 'bot' speaks of `thread`, which is not on PATH - add its directory to the PATH of \
         whoever pushes",
    );
}

#[test]
fn a_notifier_that_cannot_be_run_is_told() {
    let world = with_events();
    let with = |notifier: &str| world.thread(["doctor"]).env("THREAD_NOTIFIER", notifier);
    for fine in ["off", "embedded", "cat", "/bin/sh"] {
        with(fine).quiet();
    }
    for bad in ["gone", "/no/such/notifier"] {
        let (stdout, _) = with(bad).ends_with(1);
        let fix = "set THREAD_NOTIFIER to a program that can be run, to `embedded` or to `off`";
        assert_eq!(stdout, format!("error: the notifier {bad} cannot be run - {fix}\n"));
    }
    world.write("bin/notifier", "text");
    chmod(&world, "bin/notifier", 0o644);
    let path = world.bin().join("notifier").display().to_string();
    found_and_told(
        &world,
        &format!(
            "warning: {path} is on PATH but cannot be run, so pushes dispatch themselves - `chmod +x {path}`, or \
             remove it"
        ),
    );
}

#[test]
fn a_consumer_that_nobody_looks_after_is_started() {
    let world = with_events();
    world.off(["subscribe", "--consumer", "late", "--handler", "cat >got", "--deliver", "stdin"]).quiet();
    let problem = "'late' has events pending, and nobody runs or waits for it";
    let fix = "run `thread dispatch`, or `thread doctor --fix`";
    assert_eq!(findings(&world), [format!("error: {problem} - {fix}")]);
    let off = world.off(["doctor"]).quiet();
    assert_eq!(off, format!("warning: {problem}; waking is switched off - {fix}\n"));
    assert_eq!(examine(&world, &["doctor", "--fix"]), [format!("mended: {problem} - it was started")]);
    wait_until("the handler to have run", || world.consumer("late")["last_acked_id"] == 5);
    assert_eq!(world.lines("got").len(), 5);
    assert_healthy(&world);
}

#[test]
fn consumers_at_rest_or_at_work_are_no_finding() {
    let world = with_events();
    world.subscribe(
        "busy",
        "touch busy.on; while ! [ -e end ]; do sleep 0.01; done; false",
        &["--max-attempts", "1"],
    );
    world.subscribe("waits", "false", &["--backoff", "1h"]);
    world.subscribe("stalled", "false", &["--max-attempts", "1"]);
    world.off(["subscribe", "--consumer", "paused", "--handler", "false"]).quiet();
    world.off(["pause", "--consumer", "paused"]).quiet();
    world.wait_for_file("busy.on");
    world.wait_for_state("waits", "waiting");
    world.wait_for_state("stalled", "stalled");
    assert_healthy(&world);
    // One whose supervisor is gone runs on all the same.
    world.kill_supervisor("busy");
    assert_healthy(&world);
    world.write("end", "");
    world.thread(["stop", "--consumer", "waits"]).quiet();
    assert_eq!(findings(&world).len(), 1, "the run that was cut off is pending again");
    world.thread(["pause", "--consumer", "busy"]).quiet();
    assert_healthy(&world);
}

/// Kills the supervisor of a consumer in its wait.
fn kill_waiting(world: &World, consumer: &str) {
    world.wait_for_state(consumer, "waiting");
    world.kill_supervisor(consumer);
}

#[test]
fn a_wait_that_nobody_waits_out_is_taken_up_again() {
    let world = with_events();
    world.subscribe("bot-2", "false", &["--backoff", "1h"]);
    kill_waiting(&world, "bot-2");
    let problem = "'bot-2' has events pending, and nobody runs or waits for it";
    assert_eq!(
        findings(&world),
        [format!("error: {problem} - run `thread dispatch`, or `thread doctor --fix`")]
    );
    assert_eq!(examine(&world, &["doctor", "--fix"]), [format!("mended: {problem} - it was started")]);
    wait_until("somebody to wait", || findings(&world) == ["healthy"]);
    assert_eq!(world.state("bot-2"), "waiting");
    world.thread(["stop", "--consumer", "bot-2"]).quiet();
}

#[test]
fn a_record_of_a_run_that_is_gone_is_settled() {
    let world = with_events();
    world.subscribe("bot-2", "false", &["--backoff", "1h"]);
    kill_waiting(&world, "bot-2");
    world.thread(["ack", "--consumer", "bot-2", "--event-id", "5"]).quiet();
    let problem = "'bot-2' is recorded to run or to wait, but that process is gone";
    found_and_mended(&world, "warning", problem, "its end was recorded");
    wait_until("the record to be settled", || {
        world.query("SELECT phase IS NULL FROM subscriptions WHERE consumer_id = 'bot-2'") == 1
    });
}

#[test]
fn nothing_in_a_finding_can_forge_a_line() {
    let world = with_events();
    let evil = "x\nhealthy\r\x1b[2J";
    world.db().execute("UPDATE subscriptions SET consumer_id = ?1, handler_cmd = 'gone'", [evil]).unwrap();
    world.db().execute("UPDATE consumer_progress SET consumer_id = ?1", [evil]).unwrap();
    let lines = findings(&world);
    assert!(lines.len() == 1 && !lines[0].contains(char::is_control), "{lines:?}");
}
