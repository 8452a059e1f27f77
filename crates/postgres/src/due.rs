//! Making events of what is due. The process that does so holds the thread's counter row, so no two machines do so at
//! once.

use thread::Result;
use thread::model::event::NewEvent;
use thread::model::schedule::Schedule;
use thread::model::scheduled::Which;
use thread::model::time;
use thread::store::Appended;

use crate::link::{Link, int, text};
use crate::{append, scheduled};

pub fn make(store: &mut Link, which: Which, most: usize) -> Result<Appended> {
    append::in_transaction(store, |inserter| {
        let (condition, due, id) = match which {
            Which::Upto(time) => ("due <= $2", time::format(time), 0),
            Which::Delayed(time) => ("delay_ms IS NOT NULL AND due <= $2", time::format(time), 0),
            Which::One(id) => ("id = $3", String::new(), id.0),
        };
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        // What another program has stored under the same key since stays.
        let sql = format!(
            "WITH made AS (DELETE FROM @scheduled WHERE thread = $1 AND id = ANY(ARRAY(\
                 SELECT id FROM @scheduled WHERE thread = $1 AND {condition} AND $2 IS NOT NULL AND $3 IS NOT NULL \
                 ORDER BY due, id LIMIT $4)) RETURNING *), \
             numbered AS (SELECT *, row_number() OVER (ORDER BY due, id) AS number FROM made WHERE NOT EXISTS (\
                 SELECT 1 FROM @events e WHERE e.thread = $1 AND e.idempotency_key = made.idempotency_key)), \
             stored AS (INSERT INTO @events ({}) \
                 SELECT $1, $5 + number, $6, source, type, subtype, content, metadata, idempotency_key FROM numbered) \
             SELECT count(*) FROM numbered",
            append::COLUMNS
        );
        let (newest, now) = inserter.position()?;
        let values = [text(&due), int(&id), int(&most), int(&newest), text(&now)];
        let made = inserter.session().number(&sql, &values)?.unwrap_or(0);
        inserter.count_stored(made);
        Ok(())
    })
}

pub fn change_schedule(
    store: &mut Link,
    name: &str,
    seen: Option<&Schedule>,
    to: Option<&Schedule>,
    events: &[NewEvent<'_>],
) -> Result<Option<Appended>> {
    scheduled::prepare(store)?;
    let mut is_current = false;
    let appended = append::in_transaction(store, |inserter| {
        inserter.position()?;
        let mut session = inserter.session();
        let sql = "SELECT revision FROM @schedules WHERE thread = $1 AND name = $2";
        let revision = session.number(sql, &[text(&name)])?;
        is_current = revision == seen.map(|seen| seen.revision);
        if !is_current {
            return Ok(());
        }
        match to {
            Some(to) => {
                let json = serde_json::to_string(to).unwrap_or_default();
                let revision = revision.unwrap_or(0) + 1;
                let sql = "INSERT INTO @schedules (thread, name, schedule, revision) VALUES ($1, $2, $3, $4) \
                           ON CONFLICT (thread, name) DO UPDATE SET schedule = $3, revision = $4";
                session.rows(sql, &[text(&name), text(&json), int(&revision)])?;
            }
            None => {
                let sql = "DELETE FROM @schedules WHERE thread = $1 AND name = $2";
                session.rows(sql, &[text(&name)])?;
            }
        }
        inserter.put(events).map(drop)
    })?;
    Ok(is_current.then_some(appended))
}
