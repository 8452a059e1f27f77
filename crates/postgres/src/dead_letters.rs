//! Dead letters: events on which a handler failed, kept apart so that they do not hold up the others.

use thread::Result;
use thread::model::run::{ERROR_KEPT, end_of};
use thread::model::subscription::{ConsumerId, DeadLetter};
use thread::model::time;
use thread::store::{DeadLetterUpdate, GIVEN_AGAIN};

use crate::link::{Param, Session, int, text};

pub fn list(session: &mut Session<'_>, consumer: Option<&ConsumerId>) -> Result<Vec<DeadLetter>> {
    let sql = "SELECT consumer_id, event_id, attempts, last_exit, last_error, parked_at, retry FROM @dead_letters \
               WHERE thread = $1 AND ($2::text IS NULL OR consumer_id = $2) ORDER BY consumer_id, event_id";
    let rows = session.rows(sql, &[text(&consumer.map(ConsumerId::as_str))])?;
    let map = |row: &postgres::Row| DeadLetter {
        consumer: ConsumerId::stored(row.get::<_, String>(0)),
        event_id: row.get(1),
        attempts: row.get(2),
        last_exit: row.get(3),
        last_error: row.get(4),
        parked_at: row.get(5),
        retry: row.get(6),
    };
    Ok(rows.iter().map(map).collect())
}

pub fn retry(session: &mut Session<'_>, consumer: &ConsumerId, events: Option<&[i64]>) -> Result<usize> {
    change(session, "UPDATE @dead_letters SET retry = true", consumer, events)
}

pub fn discard(session: &mut Session<'_>, consumer: &ConsumerId, events: Option<&[i64]>) -> Result<usize> {
    change(session, "DELETE FROM @dead_letters", consumer, events)
}

pub fn cancel_retries(session: &mut Session<'_>, consumer: &ConsumerId) -> Result<()> {
    let sql = "UPDATE @dead_letters SET retry = false WHERE thread = $1 AND consumer_id = $2 AND retry";
    session.rows(sql, &[text(&consumer.as_str())]).map(drop)
}

fn change(
    session: &mut Session<'_>,
    statement: &str,
    consumer: &ConsumerId,
    events: Option<&[i64]>,
) -> Result<usize> {
    let sql = format!(
        "{statement} WHERE thread = $1 AND consumer_id = $2 AND ($3::bigint IS NULL OR event_id = $3) RETURNING event_id"
    );
    let mut of = |event: Option<i64>| {
        let event: Param<'_> = (&event, postgres::types::Type::INT8);
        session.rows(&sql, &[text(&consumer.as_str()), event]).map(|rows| rows.len())
    };
    match events {
        Some(events) => events.iter().map(|event| of(Some(*event))).sum(),
        None => of(None),
    }
}

/// Applies the change of a dead letter that a finished run caused.
pub fn update(session: &mut Session<'_>, consumer: &ConsumerId, change: &DeadLetterUpdate) -> Result<()> {
    // An event that was pruned during its last run makes no dead letter: there is nothing to deliver.
    let insert = "INSERT INTO @dead_letters (thread, consumer_id, event_id, attempts, last_exit, last_error, parked_at) \
                  SELECT $1, $2, $3, $4, $5, $6, $7 \
                  WHERE EXISTS (SELECT 1 FROM @events WHERE thread = $1 AND id = $3) \
                  ON CONFLICT (thread, consumer_id, event_id) DO UPDATE \
                    SET attempts = $4, last_exit = $5, last_error = $6, parked_at = $7, retry = false";
    let fail_again = "UPDATE @dead_letters \
                      SET attempts = attempts + $4, last_exit = $5, last_error = $6, parked_at = $7, retry = false \
                      WHERE thread = $1 AND consumer_id = $2 AND event_id = $3";
    let (sql, event_id, attempts, exit, error, at) = match change {
        DeadLetterUpdate::Insert { event_id, attempts, exit, error, at } => {
            (insert, event_id, i64::from(*attempts), exit, error, at)
        }
        DeadLetterUpdate::FailedAgain { event_id, exit, error, at } => {
            (fail_again, event_id, 1, exit, error, at)
        }
        DeadLetterUpdate::Remove { event_id } => {
            return discard(session, consumer, Some(&[*event_id])).map(drop);
        }
        DeadLetterUpdate::Redo { event_id, at } => {
            let sql = "INSERT INTO @dead_letters (thread, consumer_id, event_id, attempts, last_error, parked_at, retry) \
                       SELECT $1, $2, $3, 0, $4, $5, true \
                       WHERE EXISTS (SELECT 1 FROM @events WHERE thread = $1 AND id = $3) \
                       ON CONFLICT (thread, consumer_id, event_id) DO UPDATE SET retry = true";
            let (consumer, at) = (consumer.as_str(), time::format(*at));
            let params = [text(&consumer), int(event_id), text(&GIVEN_AGAIN), text(&at)];
            return session.rows(sql, &params).map(drop);
        }
    };
    let exit = exit.code().map(i64::from);
    let exit: Param<'_> = (&exit, postgres::types::Type::INT8);
    // A text cannot contain U+0000 here, and this one is for people.
    let error = error.replace('\0', "\u{fffd}");
    let (consumer, error, at) = (consumer.as_str(), end_of(&error, ERROR_KEPT), time::format(*at));
    let params = [text(&consumer), int(event_id), int(&attempts), exit, text(&error), text(&at)];
    session.rows(sql, &params).map(drop)
}
