//! A thread that has a row of every kind, and what its tables have, read without the program.

use std::path::Path;

use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags};
use thread::model::run::RunState;

use crate::{Run, wait_until};

/// Fills an empty thread. `thread` is a command on it.
pub fn fill(thread: &dyn Fn(&[&str]) -> Run) {
    let ok = |args: &[&str]| thread(args).ends_with(0).0;
    let events = [
        r#"{"source":"self","type":"record","content":"line\nbreak \"é\" \ud83d\ude00 \u007f","subtype":"s"}"#,
        r#"{"source":"self","type":"message","content":"nul \u0000 in the content","idempotency_key":"key-1"}"#,
        r#"{"source":"a:b","type":"message","content":"","metadata":{"hex":"ff","n":1.50,"kind":"event"}}"#,
        r#"{"source":"self","type":"message","content":"customer 1","idempotency_key":"é\""}"#,
    ];
    let more = (5..=30).map(|n| format!(r#"{{"source":"self","type":"message","content":"event {n}"}}"#));
    let batch = events.map(str::to_owned).into_iter().chain(more).collect::<Vec<_>>().join("\n");
    thread(&["push", "--batch"]).stdin(batch).ends_with(0);
    // A gap at the beginning, and at the end: the newest id has no event.
    ok(&["prune", "--before-id", "2", "--force"]);
    ok(&[
        "subscribe",
        "in-order",
        "cat",
        "--deliver",
        "stdin",
        "--filter",
        "type = 'message'",
        "--env",
        "A=b c",
    ]);
    ok(&["ack", "in-order", "7"]);
    ok(&["subscribe", "kept", "exit 1", "--deliver", "ndjson", "--backoff", "1h", "--timeout", "5s"]);
    ok(&["pause", "kept"]);
    ok(&["subscribe", "forgotten", "--no-handler"]);
    ok(&["ack", "forgotten", "9"]);
    ok(&["unsubscribe", "forgotten"]);
    // Finished past its cursor, waiting, claimed, and a dead letter.
    let pool = ["subscribe", "taken", "--no-handler", "--concurrency", "9", "--key", "source"];
    ok(&[&pool[..], &["--filter", "id > 4"]].concat());
    ok(&["subscribe", "pull", "--no-handler", "--concurrency", "9", "--ahead", "500"]);
    ok(&["pop", "pull", "--claim", "1h", "--limit", "6"]);
    ok(&["ack", "pull", "4", "6"]);
    ok(&["nack", "pull", "5", "--delay", "1h", "--error", "not now"]);
    ok(&["reject", "pull", "3", "--error", "bad"]);
    ok(&["dead", "retry", "pull", "3"]);
    // Steps: of an event that sleeps until another comes, and of one that is done.
    ok(&["subscribe", "steps", "--no-handler", "--concurrency", "9"]);
    ok(&["pop", "steps", "--claim", "1h", "--limit", "2"]);
    let step = ["step", "charge", "--consumer", "steps", "--event", "3", "--", "printf", "a\\0b\\377"];
    thread(&step).output();
    thread(&["await", "approval", "--consumer", "steps", "--event", "2", "--subtype", "approval"])
        .ends_with(75);
    ok(&["nack", "steps", "2"]);
    ok(&["ack", "steps", "3"]);
    // A run that is kept, and one that failed.
    ok(&["subscribe", "ran", "exit 3", "--deliver", "stdin", "--batch-size", "5", "--backoff", "1h"]);
    ok(&["dispatch"]);
    wait_until("the runs to end", || {
        let info: serde_json::Value = serde_json::from_str(&ok(&["info", "--json"])).unwrap();
        info["subscriptions"].as_array().unwrap().iter().all(|one| one["state"] != "running")
    });
    ok(&["config", "retention.events", "1000000"]);
    ok(&["push", "--in", "2h", "--idempotency-key", "later", "--meta", "a=b", "later"]);
    ok(&["push", "--at", "2099-01-01T00:00:00Z", "much later"]);
    ok(&["push", "--in", "1h", "cancelled"]);
    ok(&["scheduled", "cancel", "s3"]);
    ok(&["schedule", "add", "daily", "--cron", "0 9 * * 1-5", "--tz", "Europe/Berlin", "good morning"]);
    ok(&["schedule", "add", "paused", "--every", "15m", "--catch-up", "none", "x"]);
    ok(&["schedule", "pause", "paused"]);
}

/// All that is moved of a thread in a directory, a line for each row, as its tables have it. States of consumers count as
/// paused, as they are in another thread.
pub fn tables(dir: &Path) -> Vec<String> {
    let conn = Connection::open_with_flags(dir.join("events.db"), OpenFlags::SQLITE_OPEN_READ_WRITE).unwrap();
    let mut rows = Vec::new();
    for (table, columns) in [
        ("events", "*"),
        ("subscriptions", "*"),
        (
            "consumers",
            "consumer_id, cwd, options, rewinds, filter_errors, filter_error_id, coalesce(run, '{}')",
        ),
        ("consumer_progress", "*"),
        ("finished", "*"),
        ("waits", "consumer_id, event_id, attempts, deferred, since, until, asleep"),
        ("steps", "*"),
        ("dead_letters", "*"),
        ("runs", "consumer_id, number, json_remove(run, '$.output')"),
        ("scheduled", "*"),
        ("schedules", "*"),
        ("config", "*"),
        ("sqlite_sequence", "*"),
    ] {
        // Some are made when they are needed for the first time.
        if !conn.table_exists(None, table).unwrap() {
            continue;
        }
        let mut statement = conn.prepare(&format!("SELECT {columns} FROM {table} ORDER BY 1, 2")).unwrap();
        let count = statement.column_count();
        let found = statement.query_map([], |row| {
            let count = if table == "consumers" { count - 1 } else { count };
            let values =
                (0..count).map(|at| row.get::<_, Value>(at)).collect::<rusqlite::Result<Vec<_>>>()?;
            let run = (table == "consumers").then(|| row.get::<_, String>(count)).transpose()?;
            let run = run.map(|run| serde_json::from_str::<RunState>(&run).unwrap());
            // Waits and runs under way are not moved.
            let run = run.map(|run| RunState { paused: true, ..run.idle() });
            Ok(format!("{table} {values:?} {run:?}"))
        });
        rows.extend(found.unwrap().map(Result::unwrap).filter(|row| !row.contains("\"_closed\"")));
    }
    rows
}

/// Stores an event with a long key, and one whose content is not UTF-8, as another program may.
pub fn insert_as_others_may(dir: &Path) {
    let conn = Connection::open_with_flags(dir.join("events.db"), OpenFlags::SQLITE_OPEN_READ_WRITE).unwrap();
    let insert =
        "INSERT INTO events (source, type, content, idempotency_key) VALUES ('self', 'record', ?, ?)";
    conn.execute(insert, ("x", "k".repeat(3000))).unwrap();
    conn.execute(insert, (b"\xff".as_slice(), None::<String>)).unwrap();
}
