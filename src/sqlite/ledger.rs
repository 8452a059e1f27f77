//! What consumers have done past their cursors, where events finish singly.
//!
//! The tables are made with the first such consumer, and `user_version` is raised then: an older program would take it
//! for one that pops.

use rusqlite::{Connection, params};

use super::{migrate, tables, text_of};
use crate::model::ledger::{Asleep, Claim, EventWait, Ledger, LedgerChange, Taken};
use crate::model::subscription::ConsumerId;
use crate::model::time::{self, Moment, Time};
use crate::store::RunUpdate;

/// Makes the tables. Must be called inside a transaction.
pub fn prepare(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch(
        "CREATE TABLE IF NOT EXISTS finished (
             consumer_id TEXT NOT NULL,
             first_id    INTEGER NOT NULL,
             last_id     INTEGER NOT NULL,
             PRIMARY KEY (consumer_id, first_id)
         ) WITHOUT ROWID;
         CREATE TABLE IF NOT EXISTS waits (
             consumer_id TEXT NOT NULL,
             event_id    INTEGER NOT NULL,
             attempts    INTEGER NOT NULL,
             deferred    INTEGER NOT NULL,
             since       TEXT NOT NULL,
             until       TEXT NOT NULL,
             asleep      INTEGER NOT NULL DEFAULT 0,
             PRIMARY KEY (consumer_id, event_id)
         ) WITHOUT ROWID;
         CREATE TABLE IF NOT EXISTS claims (
             consumer_id TEXT NOT NULL,
             event_id    INTEGER NOT NULL,
             place       INTEGER NOT NULL,
             since       TEXT NOT NULL,
             token       TEXT,
             clock       TEXT,
             until       INTEGER,
             dead_letter INTEGER NOT NULL DEFAULT 0,
             PRIMARY KEY (consumer_id, event_id)
         ) WITHOUT ROWID;",
    )?;
    migrate::raise_version(conn, migrate::SINGLY)
}

/// Adds a column that a database of an earlier version lacks.
pub fn add_asleep(conn: &Connection) -> rusqlite::Result<()> {
    if has_tables(conn)? && !has_asleep(conn)? {
        conn.execute_batch("ALTER TABLE waits ADD COLUMN asleep INTEGER NOT NULL DEFAULT 0")?;
    }
    Ok(())
}

pub fn has_asleep(conn: &Connection) -> rusqlite::Result<bool> {
    tables::has_column(conn, "waits", "asleep")
}

/// Whether a program has taken the event by this claim.
pub fn is_taken_by(conn: &Connection, consumer: &ConsumerId, id: i64, token: &str) -> rusqlite::Result<bool> {
    if !has_tables(conn)? {
        return Ok(false);
    }
    let sql = "SELECT 1 FROM claims WHERE consumer_id = ? AND event_id = ? AND token = ?";
    conn.prepare_cached(sql)?.exists(params![consumer.as_str(), id, token])
}

fn has_tables(conn: &Connection) -> rusqlite::Result<bool> {
    tables::has_table(conn, "claims")
}

pub fn load(conn: &Connection, consumer: &ConsumerId) -> rusqlite::Result<Ledger> {
    // All of one moment: what has gone from one table may have come to another one.
    let _moment = conn.unchecked_transaction()?;
    let consumer = consumer.as_str();
    let cursor = super::one(
        conn,
        "SELECT CAST(last_acked_id AS INTEGER) FROM consumer_progress WHERE consumer_id = ?",
        [consumer],
    )?;
    let cursor = cursor.unwrap_or(0);
    if !has_tables(conn)? {
        return Ok(Ledger::new(cursor, None, None, None));
    }
    let mut finished = conn
        .prepare_cached("SELECT first_id, last_id FROM finished WHERE consumer_id = ? ORDER BY first_id")?;
    let finished: Vec<(i64, i64)> = finished
        .query_map([consumer], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let asleep = if has_asleep(conn)? { "asleep" } else { "0" };
    let mut waits = conn.prepare_cached(&format!(
        "SELECT event_id, attempts, deferred, since, until, {asleep} FROM waits WHERE consumer_id = ? \
         ORDER BY event_id"
    ))?;
    let waits = waits.query_map([consumer], |row| {
        let (since, until) = (time_of(row, 3)?, time_of(row, 4)?);
        let asleep = Asleep::of_number(row.get(5)?);
        Ok((row.get(0)?, EventWait { attempts: row.get(1)?, deferred: row.get(2)?, since, until, asleep }))
    })?;
    let waits = waits.collect::<rusqlite::Result<Vec<_>>>()?;
    let mut claims = conn.prepare_cached(
        "SELECT event_id, place, since, token, clock, until, dead_letter FROM claims WHERE consumer_id = ? \
         ORDER BY event_id",
    )?;
    let claims = claims.query_map([consumer], |row| {
        let taken = match row.get::<_, Option<String>>(3)? {
            Some(token) => {
                let until = Moment { clock: row.get(4)?, at: row.get(5)? };
                Some(Taken { token, until })
            }
            None => None,
        };
        let (place, is_dead_letter) = (row.get(1)?, row.get(6)?);
        Ok((row.get(0)?, Claim { place, since: time_of(row, 2)?, taken, machine: None, is_dead_letter }))
    })?;
    Ok(Ledger::new(cursor, finished, waits, claims.collect::<rusqlite::Result<Vec<_>>>()?))
}

/// A time; one in the past if another program has stored it in another form.
fn time_of(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<Time> {
    let text = row.get_ref(column).map(text_of)?.unwrap_or_default();
    Ok(time::parse(&text).unwrap_or_default())
}

/// Says that an event is not finished, in a statement with the consumer and the event as its first parameters.
const IS_UNFINISHED: &str = "NOT EXISTS (SELECT 1 FROM (SELECT last_id FROM finished WHERE consumer_id = ?1 \
                             AND first_id <= ?2 ORDER BY first_id DESC LIMIT 1) WHERE last_id >= ?2)";

/// Records the changes of an update. Returns where the cursor is to be moved to, if anywhere. Must be called inside a
/// transaction.
pub fn apply(
    conn: &Connection,
    consumer: &ConsumerId,
    cursor: i64,
    update: &RunUpdate,
) -> rusqlite::Result<Option<i64>> {
    for change in &update.ledger {
        match change {
            LedgerChange::Finish { first, last } => finish(conn, consumer, *first, *last)?,
            LedgerChange::Wait { id, wait } => {
                let EventWait { attempts, deferred, since, until, asleep } = wait;
                if *asleep != Asleep::No {
                    add_asleep(conn)?;
                }
                let (column, value) = if has_asleep(conn)? { (", asleep", ", ?7") } else { ("", "") };
                let sql = format!(
                    "INSERT OR REPLACE INTO waits (consumer_id, event_id, attempts, deferred, since, until{column}) \
                     SELECT ?1, ?2, ?3, ?4, ?5, ?6{value} WHERE {IS_UNFINISHED} AND ?7 IS NOT NULL"
                );
                let (since, until) = (time::format(*since), time::format(*until));
                let wait = params![consumer.as_str(), id, attempts, deferred, since, until, asleep.number()];
                conn.prepare_cached(&sql)?.execute(wait)?;
            }
            LedgerChange::Claim { id, claim: Some(Claim { place, since, taken, is_dead_letter, .. }) } => {
                let sql = format!(
                    "INSERT OR REPLACE INTO claims (consumer_id, event_id, place, since, token, clock, until, dead_letter) \
                     SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8 WHERE ?8 OR {IS_UNFINISHED}"
                );
                let until = taken.as_ref().map(|taken| &taken.until);
                let token = taken.as_ref().map(|taken| &taken.token);
                let (clock, at) = (until.map(|until| &until.clock), until.map(|until| until.at));
                let (consumer, since) = (consumer.as_str(), time::format(*since));
                let claim = params![consumer, id, place, since, token, clock, at, is_dead_letter];
                conn.prepare_cached(&sql)?.execute(claim)?;
            }
            LedgerChange::Claim { id, claim: None } => {
                conn.prepare_cached("DELETE FROM claims WHERE consumer_id = ? AND event_id = ?")?
                    .execute(params![consumer.as_str(), id])?;
            }
        }
    }
    // An acknowledgement, too, may have reached a range.
    let cursor = update.acknowledge.unwrap_or(0).max(cursor);
    let sql = "SELECT last_id FROM finished WHERE consumer_id = ?1 AND first_id <= ?2 ORDER BY last_id DESC LIMIT 1";
    let reached =
        conn.prepare_cached(sql)?.query_map(params![consumer.as_str(), cursor + 1], |row| row.get(0))?.next();
    let reached = reached.transpose()?.unwrap_or(0).max(cursor);
    let past = params![consumer.as_str(), reached];
    conn.prepare_cached("DELETE FROM finished WHERE consumer_id = ? AND last_id <= ?")?.execute(past)?;
    conn.prepare_cached("DELETE FROM waits WHERE consumer_id = ? AND event_id <= ?")?.execute(past)?;
    unclaim(conn, consumer, 0, reached)?;
    Ok((reached > cursor).then_some(reached))
}

/// Dead letters are finished, and claimed all the same.
fn unclaim(conn: &Connection, consumer: &ConsumerId, first: i64, last: i64) -> rusqlite::Result<()> {
    let sql = "DELETE FROM claims WHERE consumer_id = ? AND event_id BETWEEN ? AND ? AND NOT dead_letter";
    conn.prepare_cached(sql)?.execute(params![consumer.as_str(), first, last]).map(drop)
}

/// Adds a range, which becomes one with those that it overlaps or touches.
fn finish(conn: &Connection, id: &ConsumerId, first: i64, last: i64) -> rusqlite::Result<()> {
    let consumer = id.as_str();
    let sql = "SELECT first_id, last_id FROM finished WHERE consumer_id = ?1 AND first_id <= ?2 ORDER BY first_id DESC";
    let mut others = conn.prepare_cached(sql)?;
    let mut others = others.query(params![consumer, last.saturating_add(1)])?;
    let (mut from, mut to) = (first, last);
    while let Some(other) = others.next()? {
        let (other_first, other_last): (i64, i64) = (other.get(0)?, other.get(1)?);
        if other_last < first.saturating_sub(1) {
            break;
        }
        (from, to) = (from.min(other_first), to.max(other_last));
    }
    let sql = "DELETE FROM finished WHERE consumer_id = ? AND first_id BETWEEN ? AND ?";
    conn.prepare_cached(sql)?.execute(params![consumer, from, to])?;
    conn.prepare_cached("INSERT INTO finished (consumer_id, first_id, last_id) VALUES (?, ?, ?)")?
        .execute(params![consumer, from, to])?;
    let sql = "DELETE FROM waits WHERE consumer_id = ? AND event_id BETWEEN ? AND ?";
    conn.prepare_cached(sql)?.execute(params![consumer, from, to])?;
    unclaim(conn, id, from, to)
}

/// Forgets everything: the cursor alone says what is finished.
pub fn clear(conn: &Connection, consumer: &ConsumerId) -> rusqlite::Result<()> {
    if has_tables(conn)? {
        conn.execute("DELETE FROM finished WHERE consumer_id = ?", [consumer.as_str()])?;
        drop_open(conn, consumer)?;
        // For a supervisor: what its handler has finishes nothing any more.
        conn.execute(
            "UPDATE consumers SET rewinds = rewinds + 1, revision = revision + 1 WHERE consumer_id = ? \
             AND (options ->> '$.deliver' = 'ndjson' OR options ->> '$.concurrency' IS NOT NULL)",
            [consumer.as_str()],
        )?;
    }
    Ok(())
}

/// Forgets waits and claims.
pub fn drop_open(conn: &Connection, consumer: &ConsumerId) -> rusqlite::Result<()> {
    drop_waits(conn, consumer)?;
    if has_tables(conn)? {
        conn.execute("DELETE FROM claims WHERE consumer_id = ?", [consumer.as_str()])?;
    }
    Ok(())
}

pub fn drop_waits(conn: &Connection, consumer: &ConsumerId) -> rusqlite::Result<()> {
    if has_tables(conn)? {
        conn.execute("DELETE FROM waits WHERE consumer_id = ?", [consumer.as_str()])?;
    }
    Ok(())
}
