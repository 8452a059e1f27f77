//! The last runs of each consumer.

use rusqlite::{Connection, OptionalExtension, params};

use super::{migrate, tables, text_of};
use crate::model::run::{RUNS_KEPT, Run};
use crate::model::subscription::ConsumerId;

/// Stores a run, as JSON, and forgets the oldest beyond [`RUNS_KEPT`]. Must be called inside a transaction.
pub fn insert(conn: &Connection, consumer: &ConsumerId, run: &str) -> rusqlite::Result<()> {
    let consumer = consumer.as_str();
    let insert = "INSERT INTO runs (consumer_id, number, run) \
                  SELECT ?1, coalesce(max(number), 0) + 1, ?2 FROM runs WHERE consumer_id = ?1 RETURNING number";
    let mut insert = match conn.prepare_cached(insert) {
        Ok(statement) => statement,
        Err(_) => {
            // A database of an earlier version has no such table; only this statement needs it.
            migrate::add_table(conn, "runs")?;
            conn.prepare_cached(insert)?
        }
    };
    let number: i64 = insert.query_row(params![consumer, run], |row| row.get(0))?;
    let last = number.saturating_sub(RUNS_KEPT as i64);
    conn.prepare_cached("DELETE FROM runs WHERE consumer_id = ? AND number <= ?")?
        .execute(params![consumer, last])?;
    Ok(())
}

pub fn list(conn: &Connection, consumer: &ConsumerId, most: usize) -> rusqlite::Result<Vec<Run>> {
    if !tables::has_table(conn, "runs")? {
        return Ok(Vec::new());
    }
    let mut statement =
        conn.prepare("SELECT number, run FROM runs WHERE consumer_id = ? ORDER BY number DESC LIMIT ?")?;
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let rows = statement.query_map(params![consumer.as_str(), most], read)?;
    let rows: Vec<Option<Run>> = rows.collect::<rusqlite::Result<_>>()?;
    Ok(rows.into_iter().rev().flatten().collect())
}

pub fn one(conn: &Connection, consumer: &ConsumerId, number: i64) -> rusqlite::Result<Option<Run>> {
    if !tables::has_table(conn, "runs")? {
        return Ok(None);
    }
    let mut statement = conn.prepare("SELECT number, run FROM runs WHERE consumer_id = ? AND number = ?")?;
    Ok(statement.query_row(params![consumer.as_str(), number], read).optional()?.flatten())
}

/// What another program may have stored in another form is left out.
fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Option<Run>> {
    let run: Option<Run> = row.get_ref(1).map(text_of)?.and_then(|json| serde_json::from_str(&json).ok());
    let number = row.get(0)?;
    Ok(run.map(|run| Run { number, ..run }))
}
