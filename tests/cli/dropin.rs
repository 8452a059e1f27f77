//! A directory created by the earlier implementation opens here, and its SQL statements still work
//! on a directory of this one. Its schema and statements are written out by hand, so that the code
//! under test cannot hide a difference.

use std::fs;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, params};
use thread_testkit::{World, ids, names, wait_until};

const SCHEMA: &str = "
    CREATE TABLE events (
      id INTEGER PRIMARY KEY AUTOINCREMENT,
      created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ','now')),
      source TEXT NOT NULL,
      type TEXT NOT NULL,
      subtype TEXT,
      content TEXT NOT NULL
    );
    CREATE INDEX idx_events_source ON events(source);
    CREATE INDEX idx_events_type ON events(type);
    CREATE TABLE subscriptions (
      consumer_id TEXT NOT NULL PRIMARY KEY,
      handler_cmd TEXT NOT NULL,
      filter TEXT
    );
    CREATE TABLE consumer_progress (
      consumer_id TEXT NOT NULL PRIMARY KEY,
      last_acked_id INTEGER NOT NULL DEFAULT 0,
      updated_at TEXT NOT NULL
    );";
const PUSH: &str = "INSERT INTO events (source, type, subtype, content) VALUES (?, ?, ?, ?)";
const SUBSCRIBE: &str = "INSERT INTO subscriptions (consumer_id, handler_cmd, filter) VALUES (?, ?, ?)";
const PROGRESS: &str = "INSERT INTO consumer_progress (consumer_id, last_acked_id, updated_at) VALUES (?, ?, ?) \
     ON CONFLICT(consumer_id) DO UPDATE SET last_acked_id = excluded.last_acked_id, updated_at = excluded.updated_at";

/// A directory as the earlier implementation leaves it: three events, two of them in the JSONL log,
/// and a consumer that has handled the first. The connection is still open.
fn old_thread(journal_mode: &str) -> (World, Connection) {
    let world = World::new();
    for dir in ["inbox", "inbox/run", "inbox/logs"] {
        fs::create_dir(world.path(dir)).unwrap();
    }
    let conn = Connection::open(world.inbox().join("events.db")).unwrap();
    let mode: String =
        conn.query_row(&format!("PRAGMA journal_mode = {journal_mode}"), [], |row| row.get(0)).unwrap();
    assert_eq!(mode, journal_mode);
    conn.execute_batch(SCHEMA).unwrap();
    for n in 1..=3 {
        conn.execute(PUSH, params!["self", "message", None::<String>, format!("old {n}")]).unwrap();
    }
    conn.execute(SUBSCRIBE, params!["old-bot", "true", "type = 'message'"]).unwrap();
    conn.execute(PROGRESS, params!["old-bot", 1, "2026-03-18T10:30:00.123Z"]).unwrap();
    world.write("inbox/events.jsonl", world.table_as_jsonl()[..2].join("\n") + "\n");
    (world, conn)
}

/// Checks that everything still works on an old thread.
fn assert_works(world: &World) {
    let info = world.thread(["info"]).quiet();
    for line in [
        "Events: 3",
        "Subscriptions: 1",
        "  - old-bot",
        "    handler: true",
        "    filter:  type = 'message'",
        "    last_acked_id: 1",
        "    updated_at: 2026-03-18T10:30:00.123Z",
    ] {
        assert!(info.lines().any(|l| l == line), "no {line:?} in\n{info}");
    }
    let popped = world.thread(["pop", "--consumer", "old-bot", "--last-event-id", "1"]).quiet();
    assert_eq!(ids(&popped), [2, 3]);
    let args = ["push", "--source", "self", "--type", "record", "--content", "new"];
    assert_eq!(world.off(args).quiet(), "4\n");
    assert_eq!(world.jsonl().len(), 4);
    world.assert_log_is_exact();
    world.thread(["ack", "--consumer", "old-bot", "--event-id", "4"]).quiet();
    world.thread(["unsubscribe", "--consumer", "old-bot"]).quiet();
    world.idle_consumer("old-bot", "");
    assert_eq!(world.consumer("old-bot")["last_acked_id"], 4);
    let mode: String = world.db().query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap();
    assert_eq!(mode, "wal");
    assert_eq!(world.query("SELECT count(*) FROM pragma_integrity_check WHERE integrity_check = 'ok'"), 1);
}

#[test]
fn a_directory_of_the_earlier_implementation_opens_and_works() {
    for journal_mode in ["delete", "wal", "truncate", "persist"] {
        let (world, conn) = old_thread(journal_mode);
        drop(conn);
        assert_eq!(world.query("PRAGMA user_version"), 0);
        assert_works(&world);
    }
}

#[test]
fn an_old_directory_can_be_pruned() {
    for journal_mode in ["delete", "wal"] {
        let (world, conn) = old_thread(journal_mode);
        drop(conn);
        let before = world.table_as_jsonl();
        let prune = ["prune", "--before-id", "100", "--json", "--compact"];
        let done: serde_json::Value = serde_json::from_str(&world.off(prune).quiet()).unwrap();
        assert_eq!((&done["count"], &done["stopped_at"]), (&1.into(), &2.into()));
        assert_eq!(world.jsonl(), before);
        let conn = Connection::open(world.inbox().join("events.db")).unwrap();
        conn.execute(PUSH, params!["self", "message", None::<String>, "from the old one"]).unwrap();
        drop(conn);
        assert_eq!(world.push("from the new one"), 5);
        assert_eq!(world.jsonl(), [&before[..1], &world.table_as_jsonl()].concat());
        assert_eq!(
            world.query("SELECT count(*) FROM pragma_integrity_check WHERE integrity_check = 'ok'"),
            1
        );
    }
}

#[test]
fn events_that_are_only_in_the_old_wal_are_read() {
    let (world, conn) = old_thread("wal");
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).unwrap();
    drop(conn);
    assert!(fs::metadata(world.path("inbox/events.db-wal")).unwrap().len() > 0);
    assert_works(&world);
}

#[test]
fn the_earlier_implementation_may_still_have_the_directory_open() {
    let (world, conn) = old_thread("wal");
    let mut push = conn.prepare(PUSH).unwrap();
    assert_works(&world);
    push.execute(params!["self", "record", "toolcall", "from the old one"]).unwrap();
    assert_eq!(world.push("from the new one"), 6);
    world.assert_log_is_exact();
}

#[test]
fn many_may_open_an_old_directory_for_the_first_time_at_once() {
    for journal_mode in ["delete", "wal"] {
        let (world, conn) = old_thread(journal_mode);
        drop(conn);
        let args = ["push", "--source", "self", "--type", "record", "--content", "x"];
        let started: Vec<_> = (0..8).map(|_| world.off(args).spawn()).collect();
        for child in started {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            assert_eq!(output.stderr, b"");
        }
        assert_eq!(world.query("SELECT count(*) FROM events"), 11);
        world.assert_log_is_exact();
    }
}

#[test]
fn the_earlier_statements_work_on_a_new_thread() {
    let world = World::with_thread();
    assert_eq!(world.push("ours"), 1);
    let conn = world.db();
    let columns = |table: &str| -> Vec<String> {
        let mut statement = conn.prepare(&format!("SELECT name FROM pragma_table_info('{table}')")).unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    assert_eq!(columns("events")[..6], ["id", "created_at", "source", "type", "subtype", "content"]);
    assert_eq!(columns("subscriptions")[..3], ["consumer_id", "handler_cmd", "filter"]);
    assert_eq!(columns("consumer_progress")[..3], ["consumer_id", "last_acked_id", "updated_at"]);
    assert_eq!(world.query("PRAGMA user_version"), 0);

    conn.execute(PUSH, params!["internal:dm:default:x", "message", None::<String>, "théirs\n"]).unwrap();
    conn.execute(PUSH, params!["self", "record", "decision", "theirs too"]).unwrap();
    conn.execute(SUBSCRIBE, params!["theirs", "true", None::<String>]).unwrap();
    for (id, time) in [(1, "2026-03-18T10:30:00.123Z"), (2, "2026-03-18T10:30:01.000Z")] {
        conn.execute(PROGRESS, params!["theirs", id, time]).unwrap();
    }
    let consumer = world.consumer("theirs");
    assert_eq!((&consumer["last_acked_id"], &consumer["handler_cmd"]), (&2.into(), &"true".into()));
    assert_eq!(consumer["updated_at"], "2026-03-18T10:30:01.000Z");
    assert_eq!(ids(&world.thread(["pop", "--consumer", "theirs", "--resume"]).quiet()), [3]);
    // The next push adds the externally inserted event to the log.
    let args = ["push", "--source", "self", "--type", "message", "--content", "ours again"];
    assert_eq!(world.off(args).quiet(), "4\n");
    assert_eq!(world.jsonl().len(), 4);
    world.assert_log_is_exact();
}

#[test]
fn an_event_of_another_program_wakes_at_the_next_dispatch() {
    let world = World::with_thread();
    let handler = "thread pop --resume >got && thread ack --event-id 1";
    world.thread(["subscribe", "--consumer", "bot", "--handler", handler]).quiet();
    world.db().execute(PUSH, params!["self", "message", None::<String>, "theirs"]).unwrap();
    world.thread(["dispatch"]).quiet();
    wait_until("the handler to acknowledge", || world.consumer("bot")["last_acked_id"] == 1);
    assert!(world.read("got").contains("\"content\":\"theirs\""));
    world.wait_until_quiet();
}

#[test]
fn consumers_with_odd_names_are_dispatched() {
    let (world, conn) = old_thread("delete");
    let long = "ö/".repeat(300);
    let odd =
        ["über agent/1", "../../escape", "_jsonl", ".hidden", "-x", "%41", "a\nb", "*", "", long.as_str()];
    let handler = "id=$(thread pop --resume | tail -n 1 | sed 's/^{\"id\":\\([0-9]*\\),.*/\\1/'); thread ack --event-id $id";
    conn.execute("DELETE FROM subscriptions", []).unwrap();
    for name in odd.iter().filter(|name| !name.is_empty()) {
        conn.execute(SUBSCRIBE, params![name, handler, None::<String>]).unwrap();
    }
    drop(conn);
    assert_eq!(world.push("wakes all"), 4);
    let done = "SELECT count(*) FROM consumer_progress JOIN subscriptions USING (consumer_id) WHERE last_acked_id = 4";
    wait_until("all of them to acknowledge", || world.query(done) == 9);
    world.wait_until_quiet();
    let locks = names(&world.inbox().join("run"));
    assert_eq!(
        locks.iter().filter(|name| name.ends_with(".lock") && name.starts_with('%')).count(),
        9,
        "{locks:?}"
    );
    assert_eq!(names(world.root()), ["bin", "inbox"]);
    world.assert_log_is_exact();
    // Each name also works on the command line.
    for name in odd.iter().filter(|name| !name.is_empty()) {
        let run = world.thread(["unsubscribe"]).arg(format!("--consumer={name}"));
        run.quiet();
    }
    assert_eq!(world.query("SELECT count(*) FROM subscriptions"), 0);
}

#[test]
fn what_scripts_parse_looks_as_before() {
    let world = World::with_thread();
    let args = ["push", "--source", "self", "--type", "message", "--content", "{\"a\":1}"];
    assert_eq!(world.off(args).quiet(), "1\n");
    world.idle_consumer("bot", "type = 'message'");
    let popped = world.thread(["pop", "--consumer", "bot", "--last-event-id", "0"]).quiet();
    assert!(popped.starts_with("{\"id\":1,\"created_at\":\""), "{popped}");
    let rest = r#","source":"self","type":"message","subtype":null,"content":"{\"a\":1}"}"#;
    assert!(popped.ends_with(&format!("{rest}\n")), "{popped}");
    let info = world.thread(["info"]).quiet();
    let expected =
        ["Events: 1", "Subscriptions: 1", "  - bot", "    handler: true", "    filter:  type = 'message'"];
    assert_eq!(info.lines().filter(|line| expected.contains(line)).count(), 5, "{info}");
    assert!(world.thread(["init", "inbox"]).fails(1).starts_with("Error: "));
}
