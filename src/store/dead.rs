//! Dead letters: events a consumer could not be brought to accept, kept apart so that what comes
//! after them is not held up.

use rusqlite::{Connection, OptionalExtension, params};

use super::{Store, text_of};
use crate::error::{Result, database};
use crate::rule::{Exit, Time, format_time};
use crate::subscription::ConsumerId;

/// The id of a letter's event. Another program may have written what is no number: such a letter is
/// found and removed by the same id, or it would be found again without end.
const EVENT: &str = "CAST(event_id AS INTEGER)";

/// A dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    pub consumer: ConsumerId,
    pub event_id: i64,
    pub attempts: i64,
    /// The last run's exit code: 128 and the signal's number for one that was killed, 124 for one
    /// that ran out of time; none when nobody saw its end.
    pub last_exit: Option<i64>,
    /// The end of the last run's output.
    pub last_error: String,
    pub parked_at: String,
    /// It is to be delivered again.
    pub retry: bool,
}

impl Store {
    /// A consumer's dead letters, oldest event first; or those of all, one consumer after the other.
    pub fn letters(&self, consumer: Option<&ConsumerId>) -> Result<Vec<Letter>> {
        let select = || -> rusqlite::Result<Vec<Letter>> {
            let mut statement = self.conn.prepare_cached(&format!(
                "SELECT {EVENT}, attempts, last_exit, last_error, parked_at, retry, consumer_id \
                 FROM dead_letters WHERE ?1 IS NULL OR consumer_id = ?1 ORDER BY consumer_id, event_id",
            ))?;
            let rows = statement.query_map([consumer.map(ConsumerId::as_str)], |row| {
                let number = |column: usize| row.get_ref(column).map(|value| value.as_i64().ok());
                Ok(Letter {
                    consumer: ConsumerId::stored(row.get_ref(6).map(text_of)?.unwrap_or_default()),
                    event_id: number(0)?.unwrap_or(0),
                    attempts: number(1)?.unwrap_or(0),
                    last_exit: number(2)?,
                    last_error: row.get_ref(3).map(text_of)?.unwrap_or_default(),
                    parked_at: row.get_ref(4).map(text_of)?.unwrap_or_default(),
                    retry: number(5)? == Some(1),
                })
            })?;
            rows.collect()
        };
        select().map_err(|e| database(&e, "reading the dead letters"))
    }

    /// The dead letter that is to be delivered again next, if any.
    pub fn letter_to_retry(&self, consumer: &ConsumerId) -> Result<Option<i64>> {
        self.conn
            .prepare_cached(&format!("SELECT min({EVENT}) FROM dead_letters WHERE consumer_id = ? AND retry"))
            .and_then(|mut s| s.query_row([consumer.as_str()], |row| row.get(0)).optional())
            .map(Option::flatten)
            .map_err(|e| database(&e, "reading the dead letters"))
    }

    /// Marks one dead letter, or all, to be delivered again. Answers with how many there were.
    pub fn retry_letters(&mut self, consumer: &ConsumerId, event: Option<i64>) -> Result<usize> {
        self.on_letters("UPDATE dead_letters SET retry = 1", consumer, event)
    }

    /// Throws away one dead letter, or all. Answers with how many there were.
    pub fn discard_letters(&mut self, consumer: &ConsumerId, event: Option<i64>) -> Result<usize> {
        self.on_letters("DELETE FROM dead_letters", consumer, event)
    }

    fn on_letters(&mut self, statement: &str, consumer: &ConsumerId, event: Option<i64>) -> Result<usize> {
        let sql = format!("{statement} WHERE consumer_id = ?1 AND (?2 IS NULL OR {EVENT} = ?2)");
        let done = self.conn.execute(&sql, params![consumer.as_str(), event]);
        done.map_err(|e| database(&e, "changing the dead letters"))
    }
}

pub(super) fn bury(
    conn: &Connection,
    consumer: &ConsumerId,
    id: i64,
    attempts: u32,
    exit: Exit,
    error: &str,
    now: Time,
) -> rusqlite::Result<()> {
    // An event that was pruned during its last run leaves no letter: there is nothing to deliver.
    conn.execute(
        "INSERT OR REPLACE INTO dead_letters (consumer_id, event_id, attempts, last_exit, last_error, parked_at) \
         SELECT ?1, ?2, ?3, ?4, ?5, ?6 WHERE EXISTS (SELECT 1 FROM events WHERE id = ?2)",
        params![consumer.as_str(), id, attempts, exit.code(), error, format_time(now)],
    )
    .map(drop)
}

pub(super) fn failed_again(
    conn: &Connection,
    consumer: &ConsumerId,
    id: i64,
    exit: Exit,
    error: &str,
    now: Time,
) -> rusqlite::Result<()> {
    let sql = format!(
        "UPDATE dead_letters SET attempts = attempts + 1, last_exit = ?, last_error = ?, parked_at = ?, retry = 0 \
         WHERE consumer_id = ? AND {EVENT} = ?"
    );
    conn.execute(&sql, params![exit.code(), error, format_time(now), consumer.as_str(), id]).map(drop)
}

pub(super) fn remove(conn: &Connection, consumer: &ConsumerId, id: i64) -> rusqlite::Result<()> {
    let sql = format!("DELETE FROM dead_letters WHERE consumer_id = ? AND {EVENT} = ?");
    conn.execute(&sql, params![consumer.as_str(), id]).map(drop)
}

/// Takes back every wish to deliver a dead letter again.
pub(super) fn retry_none(conn: &Connection, consumer: &ConsumerId) -> rusqlite::Result<()> {
    let sql = "UPDATE dead_letters SET retry = 0 WHERE consumer_id = ? AND retry";
    conn.execute(sql, [consumer.as_str()]).map(drop)
}
