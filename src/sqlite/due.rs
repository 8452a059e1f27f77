//! Making events of what is due.

use rusqlite::types::ToSql;
use rusqlite::{OptionalExtension, params};

use super::error::Doing;
use super::{Sqlite, events, scheduled};
use crate::error::Result;
use crate::model::event::NewEvent;
use crate::model::schedule::Schedule;
use crate::model::scheduled::Which;
use crate::model::time;
use crate::store::Appended;

const DOING: &str = "reading what is scheduled";

pub fn make(store: &mut Sqlite, which: Which, most: usize) -> Result<Appended> {
    if !scheduled::has_tables(&store.conn).doing(DOING)? {
        return Ok(Appended::default());
    }
    events::in_transaction(store, &mut |inserter| {
        let (condition, value): (_, Box<dyn ToSql>) = match which {
            Which::Upto(time) => ("due <= ?1 ORDER BY due, id", Box::new(time::format(time))),
            Which::Delayed(time) => {
                ("delay_ms IS NOT NULL AND due <= ?1 ORDER BY due, id", Box::new(time::format(time)))
            }
            Which::One(id) => ("id = ?1", Box::new(id.0)),
        };
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        // What another program has stored under the same key since stays.
        let insert = format!(
            "INSERT OR IGNORE INTO events (created_at, source, type, subtype, content, metadata, idempotency_key) \
             SELECT ?3, source, type, subtype, content, metadata, idempotency_key FROM scheduled \
             WHERE {condition} LIMIT ?2"
        );
        let delete = format!(
            "DELETE FROM scheduled WHERE id IN (SELECT id FROM scheduled WHERE {condition} LIMIT ?2)"
        );
        let created_at = inserter.appended.created_at.clone();
        let conn = inserter.conn;
        let made = conn
            .prepare_cached(&insert)
            .and_then(|mut insert| insert.execute(params![value, most, created_at]))
            .doing("storing what is due")?;
        conn.prepare_cached(&delete)
            .and_then(|mut delete| delete.execute(params![value, most]))
            .doing("storing what is due")?;
        (0..made).for_each(|_| drop(inserter.count()));
        Ok(())
    })
}

pub fn change(
    store: &mut Sqlite,
    name: &str,
    seen: Option<&Schedule>,
    to: Option<&Schedule>,
    events: &[NewEvent<'_>],
) -> Result<Option<Appended>> {
    let mut is_current = false;
    let appended = events::in_transaction(store, &mut |inserter| {
        let conn = inserter.conn;
        scheduled::prepare(conn).doing(DOING)?;
        let revision: Option<i64> = conn
            .query_row("SELECT revision FROM schedules WHERE name = ?", [name], |row| row.get(0))
            .optional()
            .doing(DOING)?;
        is_current = revision == seen.map(|seen| seen.revision);
        if !is_current {
            return Ok(());
        }
        let changed = match to {
            Some(to) => {
                let json = serde_json::to_string(to).unwrap_or_default();
                conn.execute(
                    "INSERT OR REPLACE INTO schedules (name, schedule, revision) VALUES (?, ?, ?)",
                    params![name, json, revision.unwrap_or(0) + 1],
                )
            }
            None => conn.execute("DELETE FROM schedules WHERE name = ?", [name]),
        };
        changed.doing("changing a schedule")?;
        inserter.put(events).map(drop)
    })?;
    Ok(is_current.then_some(appended))
}
