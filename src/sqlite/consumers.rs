//! Subscriptions, cursors and the recorded state of runs.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use rusqlite::types::ToSql;
use rusqlite::{Connection, OptionalExtension, params};

use super::error::Failed;
use super::{bytes_of, dead_letters, figures, ledger, newest, runs, steps, text_of, unknown};
use crate::error::Error;
use crate::model::figures::{Counted, Figures};
use crate::model::filter::text_or_blob;
use crate::model::run::Run;
use crate::model::subscription::{ConsumerId, NewSubscription, ScanWatermark, Subscription};
use crate::model::time;
use crate::store::{FilterFailure, Move, Moved, RunUpdate, count_passed};

pub fn all(conn: &Connection) -> rusqlite::Result<Vec<Subscription>> {
    // The full statement costs more than checking whether there is any subscription.
    let any: bool = conn
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM subscriptions)")?
        .query_row([], |row| row.get(0))?;
    if !any {
        return Ok(Vec::new());
    }
    // Every text sorts before every BLOB. The upper bound is above any text, and above any BLOB that other
    // programs may have stored as a name.
    between(conn, &"", &[0xff_u8; 256])
}

pub fn one(conn: &Connection, consumer: &ConsumerId) -> rusqlite::Result<Option<Subscription>> {
    Ok(between(conn, &consumer.as_str(), &consumer.as_str())?.pop())
}

/// One statement serves both lookups, because preparing it takes longer than running it.
fn between(conn: &Connection, first: &dyn ToSql, last: &dyn ToSql) -> rusqlite::Result<Vec<Subscription>> {
    let mut statement = conn.prepare_cached(
        "SELECT s.consumer_id, s.handler_cmd, s.filter, c.cwd, c.token, c.revision, c.scanned_filter, \
                c.scanned_from, c.scanned_upto, c.filter_errors, c.filter_error_id, c.options, c.run, \
                p.last_acked_id, c.rewinds, p.updated_at, \
                (SELECT count(*) FROM dead_letters d WHERE d.consumer_id = s.consumer_id), \
                (SELECT count(*) FROM dead_letters d WHERE d.consumer_id = s.consumer_id AND d.retry) \
         FROM subscriptions s LEFT JOIN consumers c USING (consumer_id) \
                              LEFT JOIN consumer_progress p USING (consumer_id) \
         WHERE s.consumer_id BETWEEN ? AND ? ORDER BY s.consumer_id",
    )?;
    statement.query_map([first, last], map)?.collect()
}

fn map(row: &rusqlite::Row<'_>) -> rusqlite::Result<Subscription> {
    let text = |column: usize| row.get_ref(column).map(text_of);
    // Other programs may have stored something that is not a number; it must not hide the other rows.
    let number = |column: usize| row.get_ref(column).map(|value| value.as_i64().ok());
    let count = |column: usize| number(column).map(|n| n.unwrap_or(0));
    let watermark = match (text(6)?, number(7)?, number(8)?) {
        (Some(filter), Some(from), Some(upto)) => Some(ScanWatermark { filter, from, upto }),
        _ => None,
    };
    Ok(Subscription {
        consumer: ConsumerId::stored(text(0)?.unwrap_or_default()),
        handler_cmd: text(1)?.unwrap_or_default(),
        filter: text(2)?,
        cwd: row.get_ref(3).map(bytes_of)?.map(|bytes| PathBuf::from(OsString::from_vec(bytes.to_vec()))),
        token: text(4)?.unwrap_or_default(),
        revision: count(5)?,
        watermark,
        filter_errors: count(9)?,
        filter_error_id: count(10)?,
        options: from_json(text(11)?),
        state: from_json(text(12)?),
        last_acked_id: count(13)?.max(0),
        rewinds: count(14)?,
        updated_at: text(15)?,
        dead: count(16)?,
        dead_to_retry: count(17)?,
        held_by: None,
        ran_on: None,
        elsewhere: Vec::new(),
        leases: Vec::new(),
    })
}

/// The value of a JSON column; the default if it is NULL or not in this program's form.
fn from_json<T: serde::de::DeserializeOwned + Default>(json: Option<String>) -> T {
    json.and_then(|json| serde_json::from_str(&json).ok()).unwrap_or_default()
}

fn to_json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("numbers and text always have a JSON form")
}

pub fn subscribe(conn: &Connection, new: &NewSubscription) -> Result<Option<Moved>, Failed> {
    let consumer = new.consumer.as_str();
    if new.options.finishes_singly() {
        ledger::prepare(conn)?;
    }
    let from = || new.from.map(|id| move_cursor(conn, &new.consumer, id, Move::Seek)).transpose();
    let run = match one(conn, &new.consumer)? {
        None => None,
        Some(before) if new.replace && new.is_like(&before) => return from(),
        Some(before) if new.replace && new.adjusts(&before) => {
            ledger::drop_waits(conn, &new.consumer)?;
            conn.execute(
                "UPDATE consumers SET options = ?2, run = ?3, revision = revision + 1 WHERE consumer_id = ?1",
                params![consumer, to_json(&new.options), to_json(&before.state.adjusted())],
            )?;
            return from();
        }
        Some(before) if new.replace => {
            conn.execute("DELETE FROM subscriptions WHERE consumer_id = ?", [consumer])?;
            ledger::drop_open(conn, &new.consumer)?;
            Some(to_json(&before.state.replaced()))
        }
        Some(_) => return Err(Error::AlreadySubscribed(new.consumer.clone()).into()),
    };
    conn.execute(
        "INSERT INTO subscriptions (consumer_id, handler_cmd, filter) VALUES (?, ?, ?)",
        params![consumer, new.handler_cmd, new.filter],
    )?;
    // A trigger has inserted the row.
    let cwd = new.cwd.as_deref().map(|cwd| text_or_blob(cwd.as_os_str().as_bytes()));
    conn.execute(
        "UPDATE consumers SET cwd = ?2, options = ?3, run = ?4 WHERE consumer_id = ?1",
        params![consumer, cwd, to_json(&new.options), run],
    )?;
    from()
}

pub fn unsubscribe(conn: &Connection, consumer: &ConsumerId) -> Result<Subscription, Failed> {
    let removed = one(conn, consumer)?.ok_or_else(|| unknown(consumer))?;
    ledger::drop_open(conn, consumer)?;
    conn.execute("DELETE FROM subscriptions WHERE consumer_id = ?", [consumer.as_str()])?;
    Ok(removed)
}

/// Moves a cursor. Must be called inside a transaction.
pub fn move_cursor(conn: &Connection, consumer: &ConsumerId, id: i64, how: Move) -> Result<Moved, Failed> {
    let (moved, target) = plan_move(conn, consumer, id, how)?;
    if let Some(target) = target {
        let mut statement = conn.prepare_cached(
            "INSERT INTO consumer_progress (consumer_id, last_acked_id, updated_at) VALUES (?1, ?2, ?3) \
             ON CONFLICT (consumer_id) DO UPDATE SET last_acked_id = ?2, updated_at = ?3",
        )?;
        statement.execute(params![consumer.as_str(), target, time::now()])?;
    }
    if how == Move::Seek {
        ledger::clear(conn, consumer)?;
    }
    Ok(moved)
}

/// The resulting cursor, and the id to write, if any.
pub fn plan_move(
    conn: &Connection,
    consumer: &ConsumerId,
    id: i64,
    how: Move,
) -> Result<(Moved, Option<i64>), Failed> {
    let mut statement = conn.prepare_cached(
        "SELECT (SELECT CAST(last_acked_id AS INTEGER) FROM consumer_progress p WHERE p.consumer_id = s.consumer_id) \
         FROM subscriptions s WHERE s.consumer_id = ?",
    )?;
    let stored = statement.query_row([consumer.as_str()], |row| row.get::<_, Option<i64>>(0)).optional()?;
    let at = stored.ok_or_else(|| unknown(consumer))?.unwrap_or(0);
    let target = id.max(0).min(newest(conn)?);
    let moved = if target < id { Moved::Clamped(target) } else { Moved::To(target) };
    Ok(if target < at && how == Move::Acknowledge {
        (Moved::Ahead(at), None)
    } else {
        (moved, (target != at).then_some(target))
    })
}

/// Moves a cursor forward, and counts what it passes. Must be called inside a transaction.
pub fn acknowledge(
    conn: &Connection,
    consumer: &ConsumerId,
    id: i64,
    matching: Option<&[i64]>,
) -> Result<Moved, Failed> {
    let before = one(conn, consumer)?.map_or(0, |before| before.last_acked_id);
    let moved = move_cursor(conn, consumer, id, Move::Acknowledge)?;
    let mut counted = Figures::default();
    counted.handled(count_passed(before, moved, matching), None);
    if !counted.is_empty() {
        figures::add(conn, &Counted::now(consumer, counted))?;
    }
    Ok(moved)
}

pub fn update_run(
    conn: &Connection,
    seen: &Subscription,
    update: &RunUpdate,
) -> Result<Option<Subscription>, Failed> {
    let consumer = &seen.consumer;
    let facts = |s: &Subscription| (s.revision, s.last_acked_id, s.rewinds, s.dead_to_retry);
    let current = one(conn, consumer)?;
    if !current.is_some_and(|current| current.is_same(seen) && facts(&current) == facts(seen)) {
        return Ok(None);
    }
    if let Some(change) = &update.step
        && !steps::change(conn, change)?
    {
        return Ok(None);
    }
    // The row can be missing only for a read-only program.
    conn.prepare_cached("UPDATE consumers SET run = ?2, revision = revision + 1 WHERE consumer_id = ?1")?
        .execute(params![consumer.as_str(), to_json(&update.state)])?;
    for change in &update.dead_letters {
        dead_letters::update(conn, consumer, change)?;
    }
    for run in &update.runs {
        // The handler's log has its output.
        let run = Run { tail: None, ..run.clone() };
        runs::insert(conn, consumer, &to_json(&run))?;
    }
    if let Some((at, counted)) = update.figures.as_ref().filter(|(_, counted)| !counted.is_empty()) {
        figures::add(conn, &Counted::of(consumer, *at, counted.clone()))?;
    }
    if update.cancel_retries {
        dead_letters::cancel_retries(conn, consumer)?;
    }
    if let Some(id) = update.acknowledge {
        move_cursor(conn, consumer, id, Move::Acknowledge)?;
    }
    if seen.options.finishes_singly()
        && let Some(cursor) = ledger::apply(conn, consumer, seen.last_acked_id, update)?
    {
        move_cursor(conn, consumer, cursor, Move::Acknowledge)?;
    }
    Ok(one(conn, consumer)?)
}

pub fn remember_scan(
    conn: &Connection,
    seen: &Subscription,
    upto: i64,
    failures: &[FilterFailure],
) -> rusqlite::Result<usize> {
    let cursor = seen.last_acked_id;
    // Without a filter, there is nothing to be remembered but the failures, which are those of a key.
    let text = seen.filter_text();
    let from = match &seen.watermark {
        Some(mark) if Some(&*mark.filter) == text && mark.from <= cursor && mark.upto >= cursor => mark.from,
        _ => cursor,
    };
    let mut update = conn.prepare_cached(
        "UPDATE consumers SET scanned_filter = ?, scanned_from = ?, scanned_upto = ?, \
                filter_errors = filter_errors + ?, filter_error_id = max(filter_error_id, ?) \
         WHERE consumer_id = ? AND token = ?",
    )?;
    let consumer = seen.consumer.as_str();
    // Another process may have evaluated the filter on the same events in the meantime.
    let known = conn
        .prepare_cached("SELECT filter_error_id FROM consumers WHERE consumer_id = ?")?
        .query_row([consumer], |row| row.get(0))
        .optional()?
        .unwrap_or(0);
    let count = failures.iter().filter(|failure| failure.id > known).count();
    let newest = failures.last().map_or(0, |failure| failure.id);
    update.execute(params![text, from, upto, count as i64, newest, consumer, seen.token])?;
    Ok(count)
}
