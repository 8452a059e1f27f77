//! How much was done when. The table is made when there is something to count; older programs count nothing.

use rusqlite::{Connection, Row, params};

use super::tables;
use crate::model::figures::{self, Counted, Durations, Figures, MINUTE};
use crate::model::subscription::ConsumerId;
use crate::model::time::Time;

/// `at` and `seconds` are when a period begins and how long it is. `took` is JSON: how many attempts are in each bucket
/// of [`Durations`]. The row of the thread itself has the empty name, and the ids of events that were deleted.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS figures (
     seconds     INTEGER NOT NULL,
     at          INTEGER NOT NULL,
     consumer_id TEXT NOT NULL,
     first_id    INTEGER,
     last_id     INTEGER,
     handled     INTEGER NOT NULL,
     failed      INTEGER NOT NULL,
     dead        INTEGER NOT NULL,
     runs        INTEGER NOT NULL,
     ms          INTEGER NOT NULL,
     took        TEXT NOT NULL,
     PRIMARY KEY (seconds, at, consumer_id)
 ) WITHOUT ROWID";

const COLUMNS: &str = "seconds, at, consumer_id, first_id, last_id, handled, failed, dead, runs, ms, took";

pub fn has_table(conn: &Connection) -> rusqlite::Result<bool> {
    tables::has_table(conn, "figures")
}

/// Counts. Must be called inside a transaction.
pub fn add(conn: &Connection, more: &Counted) -> rusqlite::Result<()> {
    let find = format!("SELECT {COLUMNS} FROM figures WHERE seconds = ? AND at = ? AND consumer_id = ?");
    let mut find = match conn.prepare_cached(&find) {
        Ok(statement) => statement,
        Err(_) => {
            conn.execute_batch(TABLE)?;
            conn.prepare_cached(&find)?
        }
    };
    let name = more.consumer.as_ref().map_or("", ConsumerId::as_str);
    let known = find.query_map(params![more.seconds, more.at, name], read)?.next().transpose()?;
    let all = match known {
        Some(mut known) => {
            known.add(more);
            known
        }
        None => more.clone(),
    };
    let (first, last) = all.deleted.unzip();
    let Figures { handled, failed, dead, took } = &all.figures;
    let buckets = serde_json::to_string(&took.buckets).unwrap_or_default();
    let [handled, failed, dead, runs, ms] = [*handled, *failed, *dead, took.count, took.ms]
        .map(|number| i64::try_from(number).unwrap_or(i64::MAX));
    conn.prepare_cached(&format!(
        "INSERT OR REPLACE INTO figures ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    ))?
    .execute(params![more.seconds, more.at, name, first, last, handled, failed, dead, runs, ms, buckets])
    .map(drop)
}

/// What another program may have stored in another form counts as nothing.
fn read(row: &Row<'_>) -> rusqlite::Result<Counted> {
    let number = |column: usize| row.get_ref(column).map(|value| value.as_i64().ok());
    let count = |column: usize| number(column).map(|n| n.unwrap_or(0).max(0).unsigned_abs());
    let text = |column: usize| row.get_ref(column).map(super::text_of);
    let buckets = text(10)?.and_then(|json| serde_json::from_str(&json).ok());
    let mut buckets: Vec<u64> = buckets.unwrap_or_default();
    buckets.truncate(Durations::BUCKETS);
    Ok(Counted {
        seconds: number(0)?.unwrap_or(MINUTE),
        at: number(1)?.unwrap_or(0),
        consumer: text(2)?.filter(|name| !name.is_empty()).map(ConsumerId::stored),
        deleted: number(3)?.zip(number(4)?),
        figures: Figures {
            handled: count(5)?,
            failed: count(6)?,
            dead: count(7)?,
            took: Durations { count: count(8)?, ms: count(9)?, buckets },
        },
    })
}

pub fn list(conn: &Connection, from: i64) -> rusqlite::Result<Vec<Counted>> {
    if !has_table(conn)? {
        return Ok(Vec::new());
    }
    let sql = format!("SELECT {COLUMNS} FROM figures WHERE seconds IN (60, 3600) AND at >= ?");
    conn.prepare_cached(&sql)?.query_map([from], read)?.collect()
}

/// Must be called inside a transaction.
pub fn merge(conn: &Connection, now: Time, most: usize) -> rusqlite::Result<bool> {
    if !has_table(conn)? {
        return Ok(false);
    }
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let delete = |seconds: i64, before: Time| -> rusqlite::Result<Vec<Counted>> {
        let mut statement = conn.prepare_cached(&format!(
            "DELETE FROM figures WHERE (seconds, at, consumer_id) IN \
               (SELECT seconds, at, consumer_id FROM figures WHERE seconds = ? AND at < ? LIMIT ?) \
             RETURNING {COLUMNS}"
        ))?;
        statement.query_map(params![seconds, before.timestamp(), most], read)?.collect()
    };
    let old = delete(figures::HOUR, figures::oldest_hour(now))?;
    let minutes = delete(MINUTE, figures::oldest_minute(now))?;
    let has_more = [&old, &minutes].iter().any(|rows| rows.len() as i64 == most);
    figures::by_hour(minutes).iter().try_for_each(|hour| add(conn, hour))?;
    Ok(has_more)
}
