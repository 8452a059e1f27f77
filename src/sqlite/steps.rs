//! Steps: what handlers have done for events.
//!
//! The table is made with the first step, and `user_version` is raised then: an older program would acknowledge an event
//! whose handler has only gone to sleep.

use std::ops::ControlFlow;

use rusqlite::{Connection, Row, ToSql, params};

use super::error::Failed;
use super::{bytes_of, ledger, migrate, tables, text_of};
use crate::error::Error;
use crate::model::step::Step;
use crate::model::subscription::ConsumerId;
use crate::model::time::{self, Time};
use crate::store::{StepChange, StepsOf};

/// Makes the table. Must be called inside a transaction.
///
/// `step` is JSON: model::step::Step. `result` is what it prints. `over` is since when its event has been known to be
/// finished.
pub fn prepare(conn: &Connection) -> rusqlite::Result<()> {
    if has_table(conn)? {
        return Ok(());
    }
    conn.execute_batch(
        "CREATE TABLE IF NOT EXISTS steps (
             consumer_id TEXT NOT NULL,
             event_id    INTEGER NOT NULL,
             name        TEXT NOT NULL,
             revision    INTEGER NOT NULL,
             step        TEXT NOT NULL,
             result      BLOB,
             awaits      INTEGER NOT NULL,
             over        TEXT,
             PRIMARY KEY (consumer_id, event_id, name)
         );
         CREATE INDEX IF NOT EXISTS idx_steps_awaits ON steps (consumer_id, event_id) WHERE awaits;",
    )?;
    ledger::add_asleep(conn)?;
    migrate::raise_version(conn, migrate::STEPS)
}

pub fn has_table(conn: &Connection) -> rusqlite::Result<bool> {
    tables::has_table(conn, "steps")
}

pub fn read(
    conn: &Connection,
    of: StepsOf<'_>,
    take: &mut dyn FnMut(Step) -> ControlFlow<()>,
) -> rusqlite::Result<()> {
    if !has_table(conn)? {
        return Ok(());
    }
    let result = if of.with_results { "result" } else { "NULL" };
    let mut sql =
        format!("SELECT consumer_id, event_id, name, revision, step, {result} FROM steps WHERE true");
    let consumer = of.consumer.map(ConsumerId::as_str);
    let mut values: Vec<&dyn ToSql> = Vec::new();
    for (condition, value) in [
        (" AND consumer_id = ?", consumer.as_ref().map(|value| value as &dyn ToSql)),
        (" AND event_id = ?", of.event.as_ref().map(|value| value as &dyn ToSql)),
        (" AND name = ?", of.name.as_ref().map(|value| value as &dyn ToSql)),
    ] {
        if let Some(value) = value {
            sql.push_str(condition);
            values.push(value);
        }
    }
    if of.only_awaits {
        sql.push_str(" AND awaits");
    }
    sql.push_str(" ORDER BY consumer_id, event_id, rowid");
    let mut statement = conn.prepare_cached(&sql)?;
    let mut rows = statement.query(&values[..])?;
    while let Some(row) = rows.next()? {
        if let Some(step) = step_of(row)?
            && take(step).is_break()
        {
            break;
        }
    }
    Ok(())
}

/// What another program may have stored in another form is left out.
fn step_of(row: &Row<'_>) -> rusqlite::Result<Option<Step>> {
    let text = |column: usize| row.get_ref(column).map(text_of);
    let step = text(4)?.and_then(|json| serde_json::from_str::<Step>(&json).ok());
    let number = |column: usize| row.get_ref(column).map(|value| value.as_i64().ok());
    let (Some(step), Some(event_id), Some(revision)) = (step, number(1)?, number(3)?) else {
        return Ok(None);
    };
    Ok(Some(Step {
        consumer: ConsumerId::stored(text(0)?.unwrap_or_default()),
        event_id,
        name: text(2)?.unwrap_or_default(),
        revision,
        result: row.get_ref(5).map(bytes_of)?.unwrap_or_default().to_vec(),
        ..step
    }))
}

/// Applies a change. Returns whether the step was as it was seen. Must be called inside a transaction.
pub fn change(conn: &Connection, change: &StepChange) -> Result<bool, Failed> {
    prepare(conn)?;
    let StepChange { event_id, name, seen, to, claim, .. } = change;
    let consumer = change.consumer.as_str();
    if let Some(token) = claim
        && !ledger::is_taken_by(conn, &change.consumer, *event_id, token)?
    {
        return Err(Error::ClaimOver { id: *event_id }.into());
    }
    let of = "consumer_id = ?1 AND event_id = ?2 AND name = ?3";
    let changed = match (seen, to) {
        (seen, Some(to)) => {
            let json = serde_json::to_string(to).unwrap_or_default();
            let result = to.is_done().then_some(&to.result);
            match seen {
                Some(seen) => {
                    let sql = format!(
                        "UPDATE steps SET revision = ?4 + 1, step = ?5, result = ?6, awaits = ?7, over = NULL \
                         WHERE {of} AND revision = ?4"
                    );
                    let values = params![consumer, event_id, name, seen, json, result, to.awaits()];
                    conn.prepare_cached(&sql)?.execute(values)?
                }
                None => {
                    // What another program may have stored in another form is nothing that anybody has seen.
                    let or = if is_readable(conn, change)? { "IGNORE" } else { "REPLACE" };
                    let sql = format!(
                        "INSERT OR {or} INTO steps (consumer_id, event_id, name, revision, step, result, awaits) \
                         VALUES (?1, ?2, ?3, 1, ?4, ?5, ?6)"
                    );
                    let values = params![consumer, event_id, name, json, result, to.awaits()];
                    conn.prepare_cached(&sql)?.execute(values)?
                }
            }
        }
        (Some(seen), None) => {
            let sql = format!("DELETE FROM steps WHERE {of} AND revision = ?4");
            conn.prepare_cached(&sql)?.execute(params![consumer, event_id, name, seen])?
        }
        (None, None) => 1,
    };
    Ok(changed > 0)
}

/// Whether there is such a step in a form that this program understands.
fn is_readable(conn: &Connection, change: &StepChange) -> rusqlite::Result<bool> {
    let (consumer, event, name) = (Some(&change.consumer), Some(change.event_id), Some(change.name.as_str()));
    let mut is_there = false;
    read(conn, StepsOf { consumer, event, name, ..StepsOf::default() }, &mut |_| {
        is_there = true;
        ControlFlow::Break(())
    })?;
    Ok(is_there)
}

/// Says that the event of a step is finished.
const IS_FINISHED: &str = "(NOT EXISTS (SELECT 1 FROM subscriptions s WHERE s.consumer_id = steps.consumer_id) \
     OR ((event_id <= coalesce((SELECT CAST(last_acked_id AS INTEGER) FROM consumer_progress p \
                                WHERE p.consumer_id = steps.consumer_id), 0) FINISHED) \
         AND NOT EXISTS (SELECT 1 FROM dead_letters d \
                         WHERE d.consumer_id = steps.consumer_id AND d.event_id = steps.event_id)))";

/// Where events finish singly.
const IS_IN_RANGE: &str = "OR EXISTS (SELECT 1 FROM finished f WHERE f.consumer_id = steps.consumer_id \
     AND f.first_id <= steps.event_id AND f.last_id >= steps.event_id)";

/// Must be called inside a transaction.
pub fn forget(conn: &Connection, now: Time, before: Time, most: usize) -> rusqlite::Result<(u64, bool)> {
    if !has_table(conn)? {
        return Ok((0, false));
    }
    let has_ranges = tables::has_table(conn, "finished")?;
    let is_finished = IS_FINISHED.replace("FINISHED", if has_ranges { IS_IN_RANGE } else { "" });
    let (now, before) = (time::format(now), time::format(before));
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let some = |condition: &str| format!("rowid IN (SELECT rowid FROM steps WHERE {condition} LIMIT ?1)");
    let execute = |sql: String, time: &str| conn.execute(&sql, params![most, time]);
    let again = some(&format!("over IS NOT NULL AND ?2 = '' AND NOT {is_finished}"));
    let again = execute(format!("UPDATE steps SET over = NULL WHERE {again}"), "")?;
    let noted = some(&format!("over IS NULL AND {is_finished}"));
    let noted = execute(format!("UPDATE steps SET over = ?2 WHERE {noted}"), &now)?;
    let deleted = execute(format!("DELETE FROM steps WHERE {}", some("over < ?2")), &before)?;
    let is_full = [again, noted, deleted].iter().any(|count| *count as i64 == most);
    Ok((deleted as u64, is_full))
}
