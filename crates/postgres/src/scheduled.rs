//! Events that become events later, and schedules. The tables are made when something is scheduled for the first time.

use std::time::Duration;

use postgres::Row;
use postgres::types::Type;
use thread::model::event::{NewEvent, Type as Kind};
use thread::model::schedule::Schedule;
use thread::model::scheduled::{Due, NextDue, ScheduledEvent, ScheduledId};
use thread::model::time::{self, Time};
use thread::{Event, Result};

use crate::connection::Connection;
use crate::link::{Link, NOW, Session, int, text};
use crate::{known, migrate};

/// Makes sure that there are the tables, by a connection of its own: a transaction may be open.
pub fn prepare(store: &mut Link) -> Result<()> {
    if !store.known.schedules {
        let mut connection = Connection::take(&store.target.settings)?;
        migrate::raise_version(&mut connection.client, &store.target.schema, known::WITH_SCHEDULES)?;
        connection.keep(&store.target.settings);
        store.known.schedules = true;
    }
    Ok(())
}

/// What is known of an event that is scheduled under a key.
pub struct Known {
    pub id: ScheduledId,
    pub due: Time,
    /// Without id and time.
    pub event: Event,
}

const COLUMNS: &str = "id, due, delay_ms, source, type, subtype, content, metadata, idempotency_key";

fn time_of(row: &Row, column: usize) -> Time {
    row.get::<_, Option<&str>>(column).and_then(time::parse).unwrap_or_default()
}

fn content_of(row: &Row) -> String {
    String::from_utf8_lossy(row.get(6)).into_owned()
}

/// What is scheduled under these keys, each with its key.
pub fn under_keys(session: &mut Session<'_>, keys: &[&str]) -> Result<Vec<(String, Known)>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM @scheduled \
         WHERE thread = $1 AND idempotency_key IS NOT NULL AND idempotency_key = ANY($2)"
    );
    let rows = session.rows(&sql, &[(&keys, Type::TEXT_ARRAY)])?;
    let known = |row: &Row| {
        let event = Event {
            id: 0,
            created_at: String::new(),
            source: row.get(3),
            kind: row.get(4),
            subtype: row.get(5),
            content: content_of(row),
            metadata: row.get(7),
        };
        (row.get(8), Known { id: ScheduledId(row.get(0)), due: time_of(row, 1), event })
    };
    Ok(rows.iter().map(known).collect())
}

/// Numbers for so many events.
pub fn new_ids(session: &mut Session<'_>, count: usize) -> Result<Vec<ScheduledId>> {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let sql = "SELECT nextval($$@scheduled_ids$$) FROM generate_series(1, $2) WHERE $1 IS NOT NULL";
    let rows = session.rows(sql, &[int(&count)])?;
    Ok(rows.iter().map(|row| ScheduledId(row.get(0))).collect())
}

/// Stores events that are due later, in a transaction that has begun at `now`.
pub fn insert(
    session: &mut Session<'_>,
    events: &[(ScheduledId, Time, &NewEvent<'_>)],
    now: &str,
) -> Result<()> {
    let all = || events.iter();
    let ids: Vec<i64> = all().map(|(id, ..)| id.0).collect();
    let due: Vec<String> = all().map(|(_, due, _)| time::format(*due)).collect();
    let delays: Vec<Option<i64>> = all()
        .map(|(.., event)| match event.due {
            Some(Due::After(delay)) => i64::try_from(delay.as_millis()).ok(),
            _ => None,
        })
        .collect();
    let sources: Vec<&str> = all().map(|(.., event)| &*event.source).collect();
    let kinds: Vec<&str> = all().map(|(.., event)| event.kind.as_str()).collect();
    let subtypes: Vec<Option<&str>> = all().map(|(.., event)| event.subtype.as_deref()).collect();
    let contents: Vec<&[u8]> = all().map(|(.., event)| event.content.as_bytes()).collect();
    let metadata: Vec<String> = all().map(|(.., event)| event.metadata_scheduled(now)).collect();
    let keys: Vec<Option<&str>> = all().map(|(.., event)| event.idempotency_key.as_deref()).collect();
    let sql = format!(
        "INSERT INTO @scheduled (thread, {COLUMNS}) \
         SELECT $1, * FROM unnest($2, $3, $4, $5, $6, $7, $8, $9, $10)"
    );
    let values = [
        (&ids as _, Type::INT8_ARRAY),
        (&due as _, Type::TEXT_ARRAY),
        (&delays as _, Type::INT8_ARRAY),
        (&sources as _, Type::TEXT_ARRAY),
        (&kinds as _, Type::TEXT_ARRAY),
        (&subtypes as _, Type::TEXT_ARRAY),
        (&contents as _, Type::BYTEA_ARRAY),
        (&metadata as _, Type::TEXT_ARRAY),
        (&keys as _, Type::TEXT_ARRAY),
    ];
    session.rows(&sql, &values).map(drop)
}

pub fn list(
    session: &mut Session<'_>,
    after: Option<(Time, ScheduledId)>,
    most: usize,
) -> Result<Vec<ScheduledEvent>> {
    let (due, id) = after.map_or((String::new(), 0), |(due, id)| (time::format(due), id.0));
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let sql = format!(
        "SELECT {COLUMNS} FROM @scheduled WHERE thread = $1 AND (due, id) > ($2, $3) ORDER BY due, id LIMIT $4"
    );
    let rows = session.rows(&sql, &[text(&due), int(&id), int(&most)])?;
    let event = |row: &Row| ScheduledEvent {
        id: ScheduledId(row.get(0)),
        due: time_of(row, 1),
        delay: row.get::<_, Option<i64>>(2).map(|ms| Duration::from_millis(ms.unsigned_abs())),
        event: NewEvent {
            source: row.get::<_, String>(3).into(),
            kind: Kind::parse(row.get(4)).unwrap_or(Kind::Record),
            subtype: row.get::<_, Option<String>>(5).map(Into::into),
            content: content_of(row).into(),
            metadata: row.get::<_, Option<String>>(7).map(Into::into),
            idempotency_key: None,
            created_at: None,
            due: None,
        },
        key: row.get(8),
    };
    Ok(rows.iter().map(event).collect())
}

pub fn next(session: &mut Session<'_>) -> Result<Option<NextDue>> {
    let sql = format!(
        "SELECT {NOW}, (SELECT due FROM @scheduled WHERE thread = $1 ORDER BY due, id LIMIT 1), \
                delayed.due, delayed.delay_ms FROM (SELECT 1) AS one \
         LEFT JOIN LATERAL (SELECT due, delay_ms FROM @scheduled WHERE thread = $1 AND delay_ms IS NOT NULL \
                            ORDER BY due LIMIT 1) AS delayed ON true"
    );
    let Some(row) = session.row(&sql, &[])? else { return Ok(None) };
    let at = row.get::<_, Option<&str>>(1).map(|_| time_of(&row, 1));
    let delay: Option<i64> = row.get(3);
    let delayed = delay.map(|ms| (time_of(&row, 2), Duration::from_millis(ms.unsigned_abs())));
    Ok(Some(NextDue { now: time_of(&row, 0), at, delayed }))
}

pub fn list_schedules(session: &mut Session<'_>) -> Result<Vec<Schedule>> {
    let sql = "SELECT name, schedule, revision FROM @schedules WHERE thread = $1 ORDER BY name";
    let rows = session.rows(sql, &[])?;
    let schedule = |row: &Row| {
        let schedule: Schedule = serde_json::from_str(row.get(1)).ok()?;
        Some(Schedule { name: row.get(0), revision: row.get(2), ..schedule })
    };
    Ok(rows.iter().filter_map(schedule).collect())
}
