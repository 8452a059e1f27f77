//! Events that become events later, and schedules.
//!
//! The tables are made when something is scheduled for the first time, and `user_version` is raised then: an older
//! program would neither make the events nor know their idempotency keys.

use std::time::Duration;

use chrono::Utc;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::error::Doing;
use super::{migrate, tables, text_of};
use crate::error::{Error, Result};
use crate::model::event::{NewEvent, Type};
use crate::model::schedule::Schedule;
use crate::model::scheduled::{Due, NextDue, ScheduledEvent, ScheduledId};
use crate::model::time::{self, Time};
use crate::store::Stored;

const DOING: &str = "reading what is scheduled";

/// Makes the tables. Must be called inside a transaction.
///
/// `metadata` is that of the event, with the time at which it was scheduled. `delay_ms` is set if it was scheduled by a
/// duration. `schedule` is JSON: model::schedule::Schedule.
pub fn prepare(conn: &Connection) -> rusqlite::Result<()> {
    if has_tables(conn)? {
        return Ok(());
    }
    conn.execute_batch(
        "CREATE TABLE IF NOT EXISTS scheduled (
             id              INTEGER PRIMARY KEY AUTOINCREMENT,
             due             TEXT NOT NULL,
             delay_ms        INTEGER,
             source          TEXT NOT NULL,
             type            TEXT NOT NULL,
             subtype         TEXT,
             content         TEXT NOT NULL,
             metadata        TEXT NOT NULL,
             idempotency_key TEXT
         );
         CREATE INDEX IF NOT EXISTS idx_scheduled_due ON scheduled (due);
         CREATE INDEX IF NOT EXISTS idx_scheduled_delayed ON scheduled (due) WHERE delay_ms IS NOT NULL;
         CREATE UNIQUE INDEX IF NOT EXISTS idx_scheduled_key ON scheduled (idempotency_key)
             WHERE idempotency_key IS NOT NULL;
         CREATE TABLE IF NOT EXISTS schedules (
             name     TEXT NOT NULL PRIMARY KEY,
             schedule TEXT NOT NULL,
             revision INTEGER NOT NULL
         ) WITHOUT ROWID;",
    )?;
    migrate::raise_version(conn, migrate::TIME)
}

pub fn has_tables(conn: &Connection) -> rusqlite::Result<bool> {
    tables::has_table(conn, "schedules")
}

/// What was scheduled under the event's key. Must be called inside a transaction.
///
/// # Errors
///
/// [`Error::ScheduledKeyConflict`].
pub fn find(conn: &Connection, event: &NewEvent<'_>) -> Result<Option<Stored>> {
    let Some(key) = event.idempotency_key.as_deref() else { return Ok(None) };
    if !has_tables(conn).doing(DOING)? {
        return Ok(None);
    }
    let find = || {
        let mut find = conn.prepare_cached(
            "SELECT id, due, source IS ?2 AND type IS ?3 AND subtype IS ?4 AND content IS ?5, metadata \
             FROM scheduled WHERE idempotency_key = ?1",
        )?;
        let values = params![key, event.source, event.kind.as_str(), event.subtype, event.content];
        let found = find.query_row(values, |row| {
            let is_same = row.get::<_, bool>(2)? && event.has_metadata(text(row, 3)?.as_deref());
            Ok((ScheduledId(row.get(0)?), time_of(row, 1)?, is_same))
        });
        found.optional()
    };
    match find().doing(DOING)? {
        Some((id, due, true)) => Ok(Some(Stored::Scheduled { id, due, repeated: true })),
        Some((id, ..)) => Err(Error::ScheduledKeyConflict { key: key.to_owned(), id }),
        None => Ok(None),
    }
}

/// Stores an event that is due later. `at` is the time of the transaction.
pub fn insert(conn: &Connection, at: &str, event: &NewEvent<'_>) -> rusqlite::Result<Stored> {
    prepare(conn)?;
    let now = time::parse(at).unwrap_or_default();
    let due = event.due_at(now).unwrap_or(now);
    let delay = match event.due {
        Some(Due::After(delay)) => Some(i64::try_from(delay.as_millis()).unwrap_or(i64::MAX)),
        _ => None,
    };
    let mut insert = conn.prepare_cached(
        "INSERT INTO scheduled (due, delay_ms, source, type, subtype, content, metadata, idempotency_key) \
         VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    )?;
    let id = insert.insert(params![
        time::format(due),
        delay,
        event.source,
        event.kind.as_str(),
        event.subtype,
        event.content,
        event.metadata_scheduled(at),
        event.idempotency_key.as_deref()
    ])?;
    Ok(Stored::Scheduled { id: ScheduledId(id), due, repeated: false })
}

pub fn list(
    conn: &Connection,
    after: Option<(Time, ScheduledId)>,
    most: usize,
) -> rusqlite::Result<Vec<ScheduledEvent>> {
    if !has_tables(conn)? {
        return Ok(Vec::new());
    }
    let (due, id) = after.map_or((String::new(), 0), |(due, id)| (time::format(due), id.0));
    let mut statement = conn.prepare_cached(
        "SELECT id, due, delay_ms, source, type, subtype, content, metadata, idempotency_key FROM scheduled \
         WHERE (due, id) > (?, ?) ORDER BY due, id LIMIT ?",
    )?;
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let rows = statement.query_map(params![due, id, most], |row| {
        let delay: Option<i64> = row.get(2)?;
        let event = ScheduledEvent {
            id: ScheduledId(row.get(0)?),
            due: time_of(row, 1)?,
            delay: delay.map(|ms| Duration::from_millis(ms.unsigned_abs())),
            event: NewEvent {
                source: text(row, 3)?.unwrap_or_default().into(),
                kind: Type::parse(&text(row, 4)?.unwrap_or_default()).unwrap_or(Type::Record),
                subtype: text(row, 5)?.map(Into::into),
                content: text(row, 6)?.unwrap_or_default().into(),
                metadata: text(row, 7)?.map(Into::into),
                idempotency_key: None,
                created_at: None,
                due: None,
            },
            key: text(row, 8)?,
        };
        Ok(event)
    })?;
    rows.collect()
}

pub fn count(conn: &Connection) -> rusqlite::Result<u64> {
    match has_tables(conn)? {
        true => conn.query_row("SELECT count(*) FROM scheduled", [], |row| row.get::<_, i64>(0)),
        false => Ok(0),
    }
    .map(i64::unsigned_abs)
}

pub fn cancel(conn: &Connection, id: ScheduledId) -> rusqlite::Result<bool> {
    Ok(has_tables(conn)? && conn.execute("DELETE FROM scheduled WHERE id = ?", [id.0])? > 0)
}

pub fn next(conn: &Connection) -> rusqlite::Result<Option<NextDue>> {
    if !has_tables(conn)? {
        return Ok(None);
    }
    let at = conn
        .prepare_cached("SELECT due FROM scheduled ORDER BY due LIMIT 1")?
        .query_row([], |row| time_of(row, 0))
        .optional()?;
    let delayed = conn
        .prepare_cached(
            "SELECT due, delay_ms FROM scheduled WHERE delay_ms IS NOT NULL ORDER BY due LIMIT 1",
        )?
        .query_row([], |row| {
            Ok((time_of(row, 0)?, Duration::from_millis(row.get::<_, i64>(1)?.unsigned_abs())))
        })
        .optional()?;
    Ok(Some(NextDue { now: Utc::now(), at, delayed }))
}

pub fn schedules(conn: &Connection) -> rusqlite::Result<Vec<Schedule>> {
    if !has_tables(conn)? {
        return Ok(Vec::new());
    }
    let mut statement = conn.prepare("SELECT name, schedule, revision FROM schedules ORDER BY name")?;
    let rows = statement
        .query_map([], |row| Ok((text(row, 0)?.unwrap_or_default(), text(row, 1)?, row.get::<_, i64>(2)?)))?;
    let rows: Vec<(String, Option<String>, i64)> = rows.collect::<rusqlite::Result<_>>()?;
    // What another program may have stored in another form is left out.
    let schedule = |(name, json, revision): (String, Option<String>, i64)| {
        let schedule: Schedule = serde_json::from_str(&json?).ok()?;
        Some(Schedule { name, revision, ..schedule })
    };
    Ok(rows.into_iter().filter_map(schedule).collect())
}

fn text(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<String>> {
    row.get_ref(column).map(text_of)
}

/// A time; one in the past if another program has stored it in another form.
fn time_of(row: &Row<'_>, column: usize) -> rusqlite::Result<Time> {
    Ok(time::parse(&text(row, column)?.unwrap_or_default()).unwrap_or_default())
}
