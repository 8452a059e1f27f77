//! What `doctor` finds, reports and repairs, one fault at a time.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rusqlite::Connection;
use serde_json::{Value, json};
use thread_testkit::{World, names, snapshot, wait_until};

const BY_FIX: &str = "run `thread doctor --fix`";

/// The findings of `doctor`, one a line. Checks that it exits 1 if any of them is an error.
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
    let told = |what: &str| format!("Error: {what} - follow the advice in each finding\n");
    assert_eq!(output.status.code(), Some(code), "{stdout}{stderr}");
    let told = match (errors, args.contains(&"--fix")) {
        (0, _) => String::new(),
        (1, false) => told("1 thing is wrong with the thread"),
        (n, false) => told(&format!("{n} things are wrong with the thread")),
        (1, true) => told("1 thing wrong with the thread cannot be repaired by --fix"),
        (n, true) => told(&format!("{n} things wrong with the thread cannot be repaired by --fix")),
    };
    assert_eq!(stderr, told, "{stdout}");
    lines
}

#[track_caller]
pub fn assert_healthy(world: &World) {
    assert_eq!(findings(world), ["healthy"]);
}

/// Expects exactly this finding, that `--fix` repairs it, and that the thread is healthy afterwards.
#[track_caller]
pub fn found_and_repaired(world: &World, level: &str, problem: &str, done: &str) {
    assert_eq!(findings(world), [format!("{level}: {problem} - {BY_FIX}")]);
    assert_eq!(examine(world, &["doctor", "--fix"]), [format!("repaired: {problem} - {done}")]);
    assert_healthy(world);
}

/// Expects exactly this finding, and that `--fix` reports it again.
#[track_caller]
pub fn found_and_not_repaired(world: &World, finding: &str) {
    assert_eq!(findings(world), [finding]);
    assert_eq!(examine(world, &["doctor", "--fix"]), [finding]);
}

fn chmod(world: &World, name: &str, mode: u32) {
    fs::set_permissions(world.path(name), fs::Permissions::from_mode(mode)).unwrap();
}

/// A thread with a few events and an idle consumer.
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
    // The WAL index records readers.
    let shm = world.path("inbox/events.db-shm");
    after.insert(shm.clone(), before[&shm].clone());
    assert!(before == after, "looking changed something");
    assert_eq!(examine(&world, &["doctor", "--fix"]), ["healthy"]);
}

#[test]
fn a_directory_that_is_no_thread_is_refused_as_by_any_command() {
    let world = World::new();
    fs::create_dir(world.inbox()).unwrap();
    for args in [&["doctor"][..], &["doctor", "--fix"]] {
        let error = world.thread(args).fails(1);
        assert!(error.contains("is not a thread") && error.contains("thread init"), "{error}");
    }
    assert_eq!(names(&world.inbox()), [""; 0]);
}

#[test]
fn findings_are_json_for_programs() {
    let world = with_events();
    fs::remove_dir_all(world.path("inbox/logs")).unwrap();
    let (stdout, stderr) = world.thread(["doctor", "--json"]).ends_with(1);
    let finding = json!({
        "check": "layout", "level": "error", "problem": "the directory logs/ is missing",
        "suggestion": BY_FIX, "repaired": false
    });
    let told: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(told, json!({ "healthy": false, "findings": [finding] }));
    assert!(stderr.starts_with("{\"error\":\"1 thing is wrong"), "{stderr}");
    let told: Value = serde_json::from_str(&world.thread(["doctor", "--fix", "--json"]).quiet()).unwrap();
    assert_eq!((&told["healthy"], &told["findings"][0]["repaired"]), (&json!(true), &json!(true)));
}

#[test]
fn missing_directories_are_recreated() {
    for name in ["run", "logs"] {
        let world = with_events();
        let mode = fs::metadata(world.inbox().join(name)).unwrap().permissions().mode();
        fs::remove_dir_all(world.inbox().join(name)).unwrap();
        found_and_repaired(&world, "error", &format!("the directory {name}/ is missing"), "it was recreated");
        assert_eq!(fs::metadata(world.inbox().join(name)).unwrap().permissions().mode(), mode);
    }
}

#[test]
fn a_file_in_the_place_of_a_directory_is_reported() {
    let world = with_events();
    fs::remove_dir_all(world.path("inbox/logs")).unwrap();
    world.write("inbox/logs", "mine");
    let away = world.path("inbox/logs").display().to_string();
    found_and_not_repaired(
        &world,
        &format!("error: logs cannot be used: it is not a directory - move {away} away, then {BY_FIX}"),
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
            "every user of this machine may write to {shown}, and could run commands as the thread's owner"
        );
        found_and_repaired(&world, "error", &problem, "others can no longer write it");
        assert_eq!(fs::metadata(world.path(name)).unwrap().permissions().mode() & 0o777, mode & !0o002);
    }
}

#[test]
fn a_thread_in_a_directory_that_is_open_to_all_should_be_moved() {
    let world = with_events();
    chmod(&world, "inbox", 0o1777);
    let root = world.inbox().display().to_string();
    found_and_not_repaired(
        &world,
        &format!(
            "error: every user of this machine may write to {root}, and could run commands as the thread's owner - \
             move the thread to a directory of its own"
        ),
    );
    // `--fix` leaves the mode alone: the directory could be /tmp.
    assert_eq!(fs::metadata(world.inbox()).unwrap().permissions().mode() & 0o7777, 0o1777);
}

#[test]
fn a_directory_above_that_is_open_to_all_is_a_warning() {
    let world = with_events();
    let root = fs::canonicalize(world.root()).unwrap().display().to_string();
    chmod(&world, "", 0o777);
    let warning = format!(
        "warning: every user of this machine may write to {root}, and could replace the thread - \
         move the thread to a directory that only its users may write to"
    );
    for words in [&["doctor"][..], &["doctor", "--fix"]] {
        assert_eq!(world.thread(words).ok(), format!("{warning}\n"));
    }
    // With the sticky bit, as on /tmp, it is harmless.
    chmod(&world, "", 0o1777);
    assert_healthy(&world);
    chmod(&world, "", 0o700);
}

#[test]
fn files_that_may_be_somebody_elses_are_reported_and_left_alone() {
    let sealed = "events-20260318-103000.jsonl";
    for (name, make, odd) in [
        ("run/trap.lock", "ln -s", "it is a symbolic link"),
        ("logs/trap.log", "ln", "it has a second name elsewhere (a hard link)"),
        ("run/trap.lock", "rm \"$0\" && mkfifo \"$0\" && mv", "it is a FIFO"),
        ("events.jsonl", "rm inbox/events.jsonl && ln -s", "it is a symbolic link"),
        (sealed, "ln -s", "it is a symbolic link"),
        (sealed, "rm \"$0\" && mkdir \"$0\" && mv", "it is a directory"),
    ] {
        let world = with_events();
        world.write("elsewhere", "somebody's");
        chmod(&world, "elsewhere", 0o666);
        let trap = world.inbox().join(name);
        world.sh(&format!("{make} \"$0\" \"$1\"")).arg(world.path("elsewhere")).arg(&trap).quiet();
        let about = || fs::metadata(world.path("elsewhere")).map(|about| about.permissions().mode() & 0o777);
        let before = about().ok();
        found_and_not_repaired(
            &world,
            &format!(
                "error: {name} cannot be used: {odd}, not a file of the thread's own - move {} away, then {BY_FIX}",
                trap.display()
            ),
        );
        assert_eq!(about().ok(), before);
        assert!(before.is_none() || world.read("elsewhere") == "somebody's");
        fs::rename(&trap, world.path("away")).unwrap();
        examine(&world, &["doctor", "--fix"]);
        assert_healthy(&world);
    }
}

/// Gives the thread to another user, if the test has the privilege. Returns whether it has.
fn give_away(world: &World) -> bool {
    let may = rustix::process::geteuid().is_root();
    for path in snapshot(&world.inbox()).into_keys().chain([world.inbox()]).filter(|_| may) {
        std::os::unix::fs::chown(path, Some(4711), Some(4711)).unwrap();
    }
    may
}

#[test]
fn files_that_the_owner_may_not_use_are_given_to_him() {
    let world = with_events();
    // Root can access everything, so give the thread to another user.
    if give_away(&world) {
        assert_healthy(&world);
        std::os::unix::fs::chown(world.path("inbox/run/_jsonl"), Some(0), Some(0)).unwrap();
    }
    chmod(&world, "inbox/run/_jsonl", 0o444);
    let problem = "the owner of the thread cannot read and write run/_jsonl";
    found_and_repaired(&world, "error", problem, "now the owner can");
}

#[test]
fn a_file_of_another_user_that_the_owner_cannot_read_is_not_given_to_him() {
    let world = with_events();
    if !give_away(&world) {
        return;
    }
    let path = world.path("inbox/run/mine");
    fs::write(&path, "somebody's").unwrap();
    chmod(&world, "inbox/run/mine", 0o600);
    found_and_not_repaired(
        &world,
        &format!(
            "error: the owner of the thread cannot read and write run/mine - if it belongs to the thread, \
             `chown 4711 {}`",
            path.display()
        ),
    );
    let about = fs::metadata(&path).unwrap();
    assert_eq!((std::os::unix::fs::MetadataExt::uid(&about), about.permissions().mode() & 0o777), (0, 0o600));
}

#[test]
fn a_thread_that_is_for_reading_only_can_be_examined() {
    let world = with_events();
    for (path, (mode, _)) in snapshot(&world.inbox()) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode & 0o555)).unwrap();
    }
    chmod(&world, "inbox", 0o555);
    assert_healthy(&world);
    for name in ["inbox", "inbox/run", "inbox/logs"] {
        chmod(&world, name, 0o755);
    }
}

#[test]
fn a_file_that_is_not_a_database_is_reported_and_left_alone() {
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
fn a_newer_schema_is_reported_and_left_alone() {
    let world = with_events();
    world.db().execute_batch("PRAGMA user_version = 99").unwrap();
    let db = world.inbox().join("events.db").display().to_string();
    found_and_not_repaired(
        &world,
        &format!(
            "error: {db} has schema version 99, newer than the 3 known here - use a newer version of thread; \
             nothing was changed"
        ),
    );
}

#[test]
fn a_damaged_database_is_reported_and_never_written() {
    let world = World::with_thread();
    let line = r#"{"source":"s","type":"record","content":"some text to fill a page"}"#.to_owned() + "\n";
    world.thread(["push", "--batch"]).stdin(line.repeat(2000)).quiet();
    // Everything in a single file, without a WAL.
    let conn = world.db();
    let root: i64 =
        conn.query_row("SELECT rootpage FROM sqlite_schema WHERE name = 'events'", [], |r| r.get(0)).unwrap();
    let page: u32 = conn.query_row("PRAGMA page_size", [], |row| row.get(0)).unwrap();
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    drop(conn);
    let db = world.path("inbox/events.db");
    let whole = fs::read(&db).unwrap();
    let page = page as usize;
    // The root page of the table, a page in the middle, and the end of the file.
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
fn an_index_that_does_not_agree_with_its_table_is_rebuilt() {
    let world = with_events();
    let conn = world.db();
    // Swapping the contents of two indexes is damage that no single page shows.
    conn.execute_batch(
        "INSERT INTO events (source, type, content) VALUES ('z', 'message', 'x'); PRAGMA writable_schema = ON; \
         UPDATE sqlite_schema SET rootpage = (SELECT sum(rootpage) FROM sqlite_schema \
            WHERE name IN ('idx_events_source', 'idx_events_type')) - rootpage \
         WHERE name IN ('idx_events_source', 'idx_events_type');",
    )
    .unwrap();
    drop(conn);
    world
        .thread(["push", "--source", "self", "--type", "record", "--content", "brings the log up to date"])
        .ok();
    world.thread(["ack", "--consumer", "bot", "--event-id", "99", "--force"]).warns();
    let lines = findings(&world);
    let problem = |index: &str| format!("the index {index} does not agree with its table");
    let (source, kind) = (problem("idx_events_source"), problem("idx_events_type"));
    assert_eq!(lines, [format!("error: {source} - {BY_FIX}"), format!("error: {kind} - {BY_FIX}")]);
    let repaired = [source, kind].map(|problem| format!("repaired: {problem} - it was rebuilt"));
    assert_eq!(examine(&world, &["doctor", "--fix"]), repaired);
    assert_healthy(&world);
}

#[test]
fn missing_indexes_and_triggers_are_recreated() {
    for (kind, name) in [
        ("INDEX", "idx_events_source"),
        ("INDEX", "idx_events_type"),
        ("INDEX", "idx_events_idempotency_key"),
        ("TRIGGER", "consumers_subscribed"),
        ("TRIGGER", "consumers_unsubscribed"),
        ("TRIGGER", "consumers_rewound"),
    ] {
        let world = with_events();
        world.db().execute_batch(&format!("DROP {kind} {name}")).unwrap();
        found_and_repaired(&world, "error", &format!("the schema lacks {name}"), "it was recreated");
    }
}

#[test]
fn an_index_that_cannot_be_created_is_reported() {
    let world = with_events();
    let sql =
        "DROP INDEX idx_events_idempotency_key; UPDATE events SET idempotency_key = 'same' WHERE id < 3";
    world.db().execute_batch(sql).unwrap();
    let problem = "the schema lacks idx_events_idempotency_key";
    assert_eq!(findings(&world), [format!("error: {problem} - {BY_FIX}")]);
    let lines = examine(&world, &["doctor", "--fix"]);
    assert!(lines.len() == 1 && lines[0].contains("it could not be repaired: "), "{lines:?}");
    assert_eq!(world.query("SELECT count(*) FROM events"), 5);
}

#[test]
fn an_older_schema_is_a_warning_and_is_brought_up_to_date() {
    let world = World::new();
    fs::create_dir_all(world.path("inbox/run")).unwrap();
    fs::create_dir_all(world.path("inbox/logs")).unwrap();
    let conn = Connection::open(world.path("inbox/events.db")).unwrap();
    // The schema of the earlier implementation.
    conn.execute_batch(
        "PRAGMA journal_mode = WAL; \
         CREATE TABLE events (id INTEGER PRIMARY KEY AUTOINCREMENT, created_at TEXT NOT NULL DEFAULT \
           (strftime('%Y-%m-%dT%H:%M:%fZ','now')), source TEXT NOT NULL, type TEXT NOT NULL, subtype TEXT, \
           content TEXT NOT NULL); \
         CREATE INDEX idx_events_source ON events(source); CREATE INDEX idx_events_type ON events(type); \
         CREATE TABLE subscriptions (consumer_id TEXT NOT NULL PRIMARY KEY, handler_cmd TEXT NOT NULL, \
           filter TEXT); \
         CREATE TABLE consumer_progress (consumer_id TEXT NOT NULL PRIMARY KEY, \
           last_acked_id INTEGER NOT NULL DEFAULT 0, updated_at TEXT NOT NULL);",
    )
    .unwrap();
    drop(conn);
    let problem = "the schema is an older one; the next command brings it up to date";
    let is_older = || world.db().prepare("SELECT token FROM consumers").is_err();
    assert!(is_older());
    found_and_repaired(&world, "warning", problem, "it was brought up to date");
    assert!(!is_older());
}

#[test]
fn another_journal_mode_is_switched_back() {
    let world = with_events();
    world.db().query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(())).unwrap();
    let problem = "the database is in mode 'delete', not in write-ahead logging";
    found_and_repaired(&world, "warning", problem, "it was switched");
}

#[test]
fn cursors_that_point_nowhere_are_set_back() {
    let done = "it was set to the newest event, or to 0 if it was not a number";
    for (value, shown, then) in [("99", "99", 5), ("-3", "-3", 0), ("'soon'", "'soon'", 0)] {
        let world = with_events();
        // So that nothing becomes pending.
        world.thread(["pause", "--consumer", "bot"]).quiet();
        world.db().execute_batch(&format!("UPDATE consumer_progress SET last_acked_id = {value}")).unwrap();
        let problem = format!("the cursor of 'bot' is {shown}, but the newest event ever was 5");
        found_and_repaired(&world, "error", &problem, done);
        assert_eq!(world.query("SELECT last_acked_id FROM consumer_progress"), then);
    }
}

#[test]
fn pruned_events_and_cursors_of_the_unsubscribed_are_no_fault() {
    let world = with_events();
    world.thread(["unsubscribe", "--consumer", "bot"]).quiet();
    world.thread(["prune", "--before-id", "5"]).quiet();
    assert_healthy(&world);
}

#[test]
fn subscriptions_that_cannot_work_are_reported() {
    let world = with_events();
    let set = |sql: &str| world.db().execute_batch(&format!("UPDATE subscriptions SET {sql}")).unwrap();
    set("filter = 'gone = 1'");
    let lines = findings(&world);
    assert!(lines.len() == 1 && lines[0].starts_with("error: the filter of 'bot' "), "{lines:?}");
    assert!(lines[0].ends_with(" - `thread unsubscribe` it, then `thread subscribe` it with another filter"));
    assert_eq!(examine(&world, &["doctor", "--fix"]), lines);
    set("filter = NULL, handler_cmd = ' '");
    found_and_not_repaired(
        &world,
        "error: the handler of 'bot' is empty - fix that, or `thread unsubscribe` it and \
         subscribe it again",
    );
    // A missing program follows from the missing directory and is not reported separately.
    set("handler_cmd = './agent.sh'");
    world.db().execute_batch("UPDATE consumers SET cwd = '/no/such/place'").unwrap();
    found_and_not_repaired(
        &world,
        "error: the working directory of 'bot', /no/such/place, is gone - fix that, or \
         `thread unsubscribe` it and subscribe it again",
    );
}

#[test]
fn missing_programs_are_reported() {
    let world = with_events();
    world.script("here.sh", "true");
    world.write("text", "");
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
    for (handler, word) in [
        ("gone --fast | cat", "gone"),
        ("./text", "./text"),
        ("/no/such/agent x", "/no/such/agent"),
        ("/", "/"),
    ] {
        set(handler).unwrap();
        let problem = format!("the handler of 'bot' begins with '{word}', which the shell cannot run");
        found_and_not_repaired(&world, &format!("error: {problem} - {fix}"));
    }
}

#[test]
fn a_notifier_that_cannot_be_run_is_reported() {
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
}

#[test]
fn a_consumer_that_was_left_alone_is_started() {
    let world = with_events();
    world.off(["subscribe", "--consumer", "late", "--handler", "cat >got", "--deliver", "stdin"]).quiet();
    let problem = "'late' has events pending, and nothing is running it or waiting to retry it";
    let fix = "run `thread dispatch`, or `thread doctor --fix`";
    assert_eq!(findings(&world), [format!("error: {problem} - {fix}")]);
    let off = world.off(["doctor"]).quiet();
    assert_eq!(off, format!("warning: {problem}; waking is turned off - {fix}\n"));
    assert_eq!(examine(&world, &["doctor", "--fix"]), [format!("repaired: {problem} - it was started")]);
    wait_until("the handler to have run", || world.consumer("late")["last_acked_id"] == 5);
    assert_eq!(world.lines("got").len(), 5);
    assert_healthy(&world);
}

#[test]
fn idle_and_busy_consumers_are_no_finding() {
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
    // A run whose supervisor is gone is still under way.
    world.kill_supervisor("busy");
    assert_healthy(&world);
    world.write("end", "");
    world.thread(["stop", "--consumer", "waits"]).quiet();
    assert_eq!(findings(&world).len(), 1, "the run that was cut off is pending again");
    world.thread(["pause", "--consumer", "busy"]).quiet();
    assert_healthy(&world);
}

/// Kills a consumer's supervisor during its backoff.
fn kill_waiting(world: &World, consumer: &str) {
    world.wait_for_state(consumer, "waiting");
    world.kill_supervisor(consumer);
}

#[test]
fn a_backoff_without_a_supervisor_is_continued() {
    let world = with_events();
    world.subscribe("bot-2", "false", &["--backoff", "1h"]);
    kill_waiting(&world, "bot-2");
    let problem = "'bot-2' has events pending, and nothing is running it or waiting to retry it";
    assert_eq!(
        findings(&world),
        [format!("error: {problem} - run `thread dispatch`, or `thread doctor --fix`")]
    );
    assert_eq!(
        examine(&world, &["doctor", "--fix"]),
        [format!("repaired: {problem} - its wait is attended to again")]
    );
    wait_until("a supervisor to wait", || findings(&world) == ["healthy"]);
    assert_eq!(world.state("bot-2"), "waiting");
    world.thread(["stop", "--consumer", "bot-2"]).quiet();
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
