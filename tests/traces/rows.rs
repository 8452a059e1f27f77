//! Reads the model's view of a thread from its tables.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use chrono::DateTime;
use rusqlite::{Connection, Row, params};
use serde_json::Value;

use crate::model::{
    Claim, Consumer, Ended, Event, Kind, Letter, Options, Phase, State, Task, Thread, Time, Wait, Why,
};

/// A state, and what came with it.
#[derive(Debug, Clone, Default)]
pub struct Stored {
    pub thread: Thread,
    /// The contents of events that are new in it, and the runs that are, by consumer.
    pub events: Vec<(i64, String)>,
    pub runs: BTreeMap<String, Vec<Ended>>,
    /// The options and the state of runs as text, which need not be read again.
    texts: BTreeMap<String, (String, String)>,
}

/// What is stored now, after what was stored `before`.
pub fn read(conn: &Connection, before: &Stored) -> Stored {
    let mut stored = Stored { thread: before.thread.clone(), ..Stored::default() };
    let after = before.thread.newest;
    stored.events = all(conn, "SELECT id, content FROM events WHERE id > ?1 ORDER BY id", &after, |row| {
        (get(row, 0), text(row, 1).unwrap_or_default())
    });
    stored.thread.newest = stored.events.last().map_or(after, |(id, _)| *id);
    let rows = all(
        conn,
        "SELECT s.consumer_id, coalesce(s.filter, '1'), c.token, c.options, coalesce(c.run, '{}'), c.revision, \
         c.rewinds, coalesce(p.last_acked_id, 0) FROM subscriptions s JOIN consumers c USING (consumer_id) \
         LEFT JOIN consumer_progress p USING (consumer_id) WHERE ?1 >= 0 ORDER BY 1",
        &0,
        |row| {
            let texts = [0, 1, 2, 3, 4].map(|at| text(row, at).unwrap_or_default());
            (texts, [5, 6, 7].map(|at| get(row, at)))
        },
    );
    for ([name, filter, token, options, run], [changes, rewinds, cursor]) in rows {
        let known = before.thread.consumers.get(&name);
        let mut consumer = known.cloned().unwrap_or_default();
        if before.texts.get(&name).is_none_or(|texts| (&texts.0, &texts.1) != (&options, &run)) {
            consumer.options = Rc::new(options_of(&json(&options)));
            consumer.state = state_of(&json(&run));
        }
        let key = json(&options)["key"].as_str().unwrap_or("NULL").to_owned();
        let sql = format!("SELECT id, {key}, created_at FROM events WHERE id > ?1 AND ({filter})");
        let past = if known.is_some() { after } else { 0 };
        let new = all(conn, &sql, &past, |row| {
            (get(row, 0), Event { key: text(row, 1), at: time(&text(row, 2).unwrap_or_default()) })
        });
        if !new.is_empty() {
            Rc::make_mut(&mut consumer.events).extend(new);
        }
        (consumer.token, consumer.changes, consumer.rewinds, consumer.cursor) =
            (token, changes, rewinds, cursor);
        let runs = all(
            conn,
            "SELECT number, run FROM runs WHERE consumer_id = ?1 ORDER BY number DESC LIMIT 200",
            &name,
            |row| (get(row, 0), text(row, 1).unwrap_or_default()),
        );
        let known = consumer.runs;
        let new = runs.into_iter().rev().filter(|(number, _)| *number > known);
        let new: Vec<Ended> = new.map(|(number, run)| ended_of(number, &json(&run))).collect();
        consumer.runs = new.last().map_or(known, |run| run.number);
        stored.runs.insert(name.clone(), new);
        ledger(conn, &name, &mut consumer);
        stored.texts.insert(name.clone(), (options, run));
        stored.thread.consumers.insert(name, consumer);
    }
    stored
}

fn ledger(conn: &Connection, name: &String, consumer: &mut Consumer) {
    let sql = "SELECT event_id, attempts, retry FROM dead_letters WHERE consumer_id = ?1";
    let letter = |row: &Row<'_>| (get(row, 0), Letter { attempts: get(row, 1), retry: get(row, 2) != 0 });
    consumer.letters = all(conn, sql, name, letter).into_iter().collect();
    if !consumer.options.kind.is_singly() {
        return;
    }
    let sql = "SELECT first_id, last_id FROM finished WHERE consumer_id = ?1 ORDER BY 1";
    let mut before = consumer.cursor;
    consumer.done = BTreeSet::new();
    for (first, last) in all(conn, sql, name, |row| (get(row, 0), get(row, 1))) {
        assert!(before + 1 < first && first <= last, "{name}: ranges that touch at {first}");
        before = last;
        consumer.done.extend(consumer.events.range(first..=last).map(|(id, _)| *id));
    }
    // An acknowledgement of just one event leaves out ids before it that the consumer is not to have. The cursor passes
    // them later.
    while let Some(next) = consumer.events.range(consumer.cursor + 1..).next().map(|(id, _)| *id)
        && consumer.done.remove(&next)
    {
        consumer.cursor = next;
    }
    let sql = "SELECT event_id, attempts, deferred, since, until FROM waits WHERE consumer_id = ?1";
    let wait = |row: &Row<'_>| {
        let time = |at| time(&text(row, at).unwrap_or_default());
        (get(row, 0), Wait { attempts: get(row, 1), deferred: get(row, 2), since: time(3), until: time(4) })
    };
    consumer.waits = all(conn, sql, name, wait).into_iter().collect();
    let sql = "SELECT event_id, place, since, token, until, dead_letter FROM claims WHERE consumer_id = ?1";
    let claim = |row: &Row<'_>| {
        let since = time(&text(row, 2).unwrap_or_default());
        let token = text(row, 3).map(|token| (token, get(row, 4)));
        (get(row, 0), Claim { place: get(row, 1), since, token, is_letter: get(row, 5) != 0 })
    };
    consumer.claims = all(conn, sql, name, claim).into_iter().collect();
}

fn all<T>(
    conn: &Connection,
    sql: &str,
    parameter: &dyn rusqlite::ToSql,
    read: impl Fn(&Row<'_>) -> T,
) -> Vec<T> {
    let mut statement = conn.prepare_cached(sql).unwrap();
    let rows = statement.query_map(params![parameter], |row| Ok(read(row))).unwrap();
    rows.map(Result::unwrap).collect()
}

fn get(row: &Row<'_>, at: usize) -> i64 {
    row.get::<_, Option<i64>>(at).unwrap().unwrap_or(0)
}

fn text(row: &Row<'_>, at: usize) -> Option<String> {
    row.get(at).unwrap()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn time(text: &str) -> Time {
    DateTime::parse_from_rfc3339(text).unwrap().timestamp_micros()
}

fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}

fn options_of(json: &Value) -> Options {
    let pool = json["concurrency"].as_i64();
    let kind = match (json["deliver"].as_str(), json["no_handler"].as_bool(), pool) {
        (_, Some(true), Some(_)) => Kind::Claims,
        (Some("stdin"), _, Some(_)) => Kind::Pool,
        (Some("stdin"), _, None) => Kind::Runs,
        (Some("ndjson"), _, None) => Kind::Kept,
        (Some("wake"), _, None) => Kind::Wake,
        other => panic!("{other:?} is not in the model"),
    };
    let wait = |wait: &Value| number(&wait["secs"]) * 1_000_000 + number(&wait["nanos"]) / 1000;
    Options {
        kind,
        batch: number(&json["batch_size"]),
        attempts: json["max_attempts"].as_i64().filter(|most| *most < i64::from(u32::MAX)),
        stall_after: json["stall_after"].as_i64(),
        places: pool.unwrap_or(1),
        backoff: json["backoff"].as_array().unwrap().iter().map(wait).collect(),
        probe: json["probe"].is_object().then(|| wait(&json["probe"])),
    }
}

fn state_of(json: &Value) -> State {
    let process = |json: &Value| json["pid"].as_i64().map(|pid| format!("{pid}:{}", json["start"]));
    let at = |json: &Value| json.as_str().map(time);
    let of = |name: &str| number(&json[name]);
    let task = match &json["task"] {
        Value::String(name) if name == "pool" => Some(Task::Pool),
        Value::String(_) => Some(Task::Wake),
        Value::Object(fields) => fields.iter().next().map(|(name, id)| match name.as_str() {
            "batch" => Task::Batch(number(id)),
            "single" => Task::Single(number(id)),
            _ => Task::Letter(number(id)),
        }),
        _ => None,
    };
    State {
        phase: match json["phase"].as_str() {
            Some("running") => Phase::Running,
            Some("waiting") => Phase::Waiting,
            Some("stalled") => Phase::Stalled,
            _ => Phase::Idle,
        },
        paused: json["paused"].as_bool().unwrap_or(false),
        reason: json["reason"].as_str().map(|why| if why == "stopped" { Why::Stopped } else { Why::GaveUp }),
        attempts: of("attempts"),
        deferred: of("deferred"),
        next_try: at(&json["next_try"]),
        supervisor: process(&json["supervisor"]),
        handler: process(&json["handler"]),
        since: at(&json["since"]),
        ended: at(&json["ended"]),
        task,
        batch: of("batch"),
        start_cursor: of("start_cursor"),
        start_rewinds: of("start_rewinds"),
        start_newest: of("start_newest"),
        single_upto: of("single_upto"),
        dead_streak: of("dead_streak"),
        judged_streak: of("judged_streak"),
        stop: json["stop"].is_object().then(|| json["stop"]["skip"].as_bool().unwrap_or(false)),
        succeeded: of("succeeded"),
        failed: of("failed"),
        dead: of("dead_lettered"),
    }
}

fn ended_of(number: i64, json: &Value) -> Ended {
    let at = |name: &str| json[name].as_str().map_or(0, time);
    Ended {
        number,
        began: at("began"),
        ended: at("ended"),
        attempt: json["attempt"].as_i64().unwrap_or(0),
        events: json["events"].as_i64(),
        upto: json["upto"].as_i64().unwrap_or(0),
        result: json["result"].as_str().unwrap_or_default().to_owned(),
        exit: json["exit"].as_i64(),
    }
}
