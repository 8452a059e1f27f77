//! Dead letters: events on which a handler failed, kept apart so that they do not hold up the others.

use std::ops::ControlFlow;

use rusqlite::{Connection, params};

use super::text_of;
use crate::model::subscription::{ConsumerId, DeadLetter};
use crate::model::time;
use crate::store::{DeadLetterUpdate, GIVEN_AGAIN};

/// The event's id as an integer. Another program may have stored something else; lookups must use the same cast as
/// removal, or such a dead letter would be found again forever.
const EVENT: &str = "CAST(event_id AS INTEGER)";

/// Passes dead letters to `take`, until it breaks; ordered by consumer and event.
pub fn read(
    conn: &Connection,
    consumer: Option<&ConsumerId>,
    take: &mut dyn FnMut(DeadLetter) -> ControlFlow<()>,
) -> rusqlite::Result<()> {
    let mut statement = conn.prepare_cached(&format!(
        "SELECT {EVENT}, attempts, last_exit, last_error, parked_at, retry, consumer_id \
         FROM dead_letters WHERE ?1 IS NULL OR consumer_id = ?1 ORDER BY consumer_id, event_id",
    ))?;
    let rows = statement.query_map([consumer.map(ConsumerId::as_str)], |row| {
        let number = |column: usize| row.get_ref(column).map(|value| value.as_i64().ok());
        let text = |column: usize| row.get_ref(column).map(|value| text_of(value).unwrap_or_default());
        Ok(DeadLetter {
            consumer: ConsumerId::stored(text(6)?),
            event_id: number(0)?.unwrap_or(0),
            attempts: number(1)?.unwrap_or(0),
            last_exit: number(2)?,
            last_error: text(3)?,
            parked_at: text(4)?,
            retry: number(5)?.unwrap_or(0) != 0,
        })
    })?;
    for letter in rows {
        if take(letter?).is_break() {
            break;
        }
    }
    Ok(())
}

pub fn retry(conn: &Connection, consumer: &ConsumerId, events: Option<&[i64]>) -> rusqlite::Result<usize> {
    change(conn, "UPDATE dead_letters SET retry = 1", consumer, events)
}

pub fn discard(conn: &Connection, consumer: &ConsumerId, events: Option<&[i64]>) -> rusqlite::Result<usize> {
    change(conn, "DELETE FROM dead_letters", consumer, events)
}

pub fn cancel_retries(conn: &Connection, consumer: &ConsumerId) -> rusqlite::Result<usize> {
    let sql = "UPDATE dead_letters SET retry = 0 WHERE consumer_id = ? AND retry";
    conn.execute(sql, [consumer.as_str()])
}

fn change(
    conn: &Connection,
    statement: &str,
    consumer: &ConsumerId,
    events: Option<&[i64]>,
) -> rusqlite::Result<usize> {
    let sql = format!("{statement} WHERE consumer_id = ?1 AND (?2 IS NULL OR {EVENT} = ?2)");
    let mut change = conn.prepare(&sql)?;
    let mut of = |event: Option<i64>| change.execute(params![consumer.as_str(), event]);
    match events {
        Some(events) => events.iter().map(|event| of(Some(*event))).sum(),
        None => of(None),
    }
}

/// Applies the change of a dead letter that a finished run caused.
pub fn update(conn: &Connection, consumer: &ConsumerId, change: &DeadLetterUpdate) -> rusqlite::Result<()> {
    match change {
        // An event that was pruned during its last run makes no dead letter: there is nothing to deliver.
        DeadLetterUpdate::Insert { event_id, attempts, exit, error, at } => conn.execute(
            "INSERT OR REPLACE INTO dead_letters (consumer_id, event_id, attempts, last_exit, last_error, parked_at) \
             SELECT ?1, ?2, ?3, ?4, ?5, ?6 WHERE EXISTS (SELECT 1 FROM events WHERE id = ?2)",
            params![consumer.as_str(), event_id, attempts, exit.code(), error, time::format(*at)],
        ),
        DeadLetterUpdate::FailedAgain { event_id, exit, error, at } => conn.execute(
            &format!(
                "UPDATE dead_letters SET attempts = attempts + 1, last_exit = ?, last_error = ?, parked_at = ?, \
                        retry = 0 WHERE consumer_id = ? AND {EVENT} = ?"
            ),
            params![exit.code(), error, time::format(*at), consumer.as_str(), event_id],
        ),
        DeadLetterUpdate::Remove { event_id } => discard(conn, consumer, Some(&[*event_id])),
        DeadLetterUpdate::Redo { event_id, .. } if retry(conn, consumer, Some(&[*event_id]))? > 0 => Ok(1),
        DeadLetterUpdate::Redo { event_id, at } => conn.execute(
            "INSERT INTO dead_letters (consumer_id, event_id, attempts, last_error, parked_at, retry) \
             SELECT ?1, ?2, 0, ?3, ?4, 1 WHERE EXISTS (SELECT 1 FROM events WHERE id = ?2)",
            params![consumer.as_str(), event_id, GIVEN_AGAIN, time::format(*at)],
        ),
    }
    .map(drop)
}
