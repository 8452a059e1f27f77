//! How much was done when. The table is made with a new schema, or in an older one when there is something to count.
//!
//! It is outside of the schema's versions: programs that do not know it need not be refused. A role that may not use it
//! counts nothing.

use postgres::Row;
use postgres::types::Type;
use thread::Result;
use thread::model::figures::{self, Counted, Durations, Figures, MINUTE};
use thread::model::subscription::ConsumerId;
use thread::model::time::Time;

use crate::connection::Connection;
use crate::link::{Link, Param, Session, int, lock_key, text};
use crate::migrate;

const COLUMNS: &str = "seconds, at, consumer_id, first_id, last_id, handled, failed, dead, runs, ms, took";

/// Makes sure that there is the table, if that is possible, by a connection of its own.
pub fn prepare(link: &mut Link) {
    if link.known.figures || std::mem::replace(&mut link.has_tried_figures, true) {
        return;
    }
    let Ok(mut connection) = Connection::take(&link.target.settings) else { return };
    let prefix = migrate::prefix(&link.target.schema);
    let is_usable = format!("SELECT {}", migrate::HAS_FIGURES).replace('@', &prefix);
    let ask = |connection: &mut Connection| {
        connection.client.query_typed(&is_usable, &[]).is_ok_and(|rows| rows[0].get(0))
    };
    link.known.figures = ask(&mut connection);
    if !link.known.figures {
        // Without the lock, two processes that make it at once would disturb each other.
        let lock = lock_key(&[&link.target.schema, "schema"]);
        let make =
            format!("SELECT pg_advisory_xact_lock({lock}); {}", migrate::FIGURES.replace('@', &prefix));
        // A role that may not do so leaves it to the owner of the schema.
        let made = connection.client.batch_execute(&make);
        link.known.figures = made.is_ok() && ask(&mut connection);
    }
    connection.keep(&link.target.settings);
}

/// Counts, in a transaction that excludes others who count for the same consumer.
pub fn add(session: &mut Session<'_>, more: &Counted) -> Result<()> {
    if !session.known.figures {
        return Ok(());
    }
    let name = more.consumer.as_ref().map_or("", ConsumerId::as_str);
    let (first, last) = more.deleted.unzip();
    let Figures { handled, failed, dead, took } = &more.figures;
    let number = |number: &u64| i64::try_from(*number).unwrap_or(i64::MAX);
    let [handled, failed, dead, runs, ms] = [handled, failed, dead, &took.count, &took.ms].map(number);
    let buckets: Vec<i64> = took.buckets.iter().map(number).collect();
    let sql = format!(
        "INSERT INTO @figures AS f (thread, {COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) \
         ON CONFLICT (thread, seconds, at, consumer_id) DO UPDATE SET \
           first_id = least(f.first_id, EXCLUDED.first_id), last_id = greatest(f.last_id, EXCLUDED.last_id), \
           handled = f.handled + EXCLUDED.handled, failed = f.failed + EXCLUDED.failed, \
           dead = f.dead + EXCLUDED.dead, runs = f.runs + EXCLUDED.runs, ms = f.ms + EXCLUDED.ms, \
           took = ARRAY(SELECT coalesce(a, 0) + coalesce(b, 0) \
                        FROM unnest(f.took, EXCLUDED.took) WITH ORDINALITY AS t (a, b, n) ORDER BY n)"
    );
    let id = |id| -> Param<'_> { (id, Type::INT8) };
    session
        .rows(
            &sql,
            &[
                int(&more.seconds),
                int(&more.at),
                text(&name),
                id(&first),
                id(&last),
                int(&handled),
                int(&failed),
                int(&dead),
                int(&runs),
                int(&ms),
                (&buckets, Type::INT8_ARRAY),
            ],
        )
        .map(drop)
}

pub fn list(session: &mut Session<'_>, from: i64) -> Result<Vec<Counted>> {
    // For a role that may only read, there is no table that it may use.
    let may_read = "SELECT ($1::bigint IS NOT NULL AND has_table_privilege(to_regclass($$@figures$$), 'SELECT'))::int::int8";
    if !session.known.figures && session.number(may_read, &[])? != Some(1) {
        return Ok(Vec::new());
    }
    let sql =
        format!("SELECT {COLUMNS} FROM @figures WHERE thread = $1 AND seconds IN (60, 3600) AND at >= $2");
    Ok(session.rows(&sql, &[int(&from)])?.iter().map(read).collect())
}

fn read(row: &Row) -> Counted {
    let count = |column: usize| row.get::<_, i64>(column).max(0).unsigned_abs();
    let mut buckets: Vec<u64> =
        row.get::<_, Vec<i64>>(10).into_iter().map(|n| n.max(0).unsigned_abs()).collect();
    buckets.truncate(Durations::BUCKETS);
    let name: String = row.get(2);
    Counted {
        seconds: row.get(0),
        at: row.get(1),
        consumer: (!name.is_empty()).then(|| ConsumerId::stored(name)),
        deleted: row.get::<_, Option<i64>>(3).zip(row.get(4)),
        figures: Figures {
            handled: count(5),
            failed: count(6),
            dead: count(7),
            took: Durations { count: count(8), ms: count(9), buckets },
        },
    }
}

/// Called in a transaction that excludes changes of consumers.
pub fn merge(session: &mut Session<'_>, now: Time, most: usize) -> Result<bool> {
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let mut delete = |seconds: i64, before: Time| -> Result<Vec<Counted>> {
        let sql = format!(
            "DELETE FROM @figures WHERE thread = $1 AND (seconds, at, consumer_id) IN \
               (SELECT seconds, at, consumer_id FROM @figures WHERE thread = $1 AND seconds = $2 AND at < $3 LIMIT $4) \
             RETURNING {COLUMNS}"
        );
        let before = before.timestamp();
        Ok(session.rows(&sql, &[int(&seconds), int(&before), int(&most)])?.iter().map(read).collect())
    };
    let old = delete(figures::HOUR, figures::oldest_hour(now))?;
    let minutes = delete(MINUTE, figures::oldest_minute(now))?;
    let has_more = [&old, &minutes].iter().any(|rows| rows.len() as i64 == most);
    for hour in figures::by_hour(minutes) {
        add(session, &hour)?;
    }
    Ok(has_more)
}
