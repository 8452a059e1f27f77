//! Stores and reads events.

use std::ops::ControlFlow;

use rusqlite::types::ToSql;
use rusqlite::{Connection, MAIN_DB, OptionalExtension, params};

use super::error::{Doing, commit};
use super::{Sqlite, bytes_of, newest, one, scheduled, text_of};
use crate::error::{Error, Result};
use crate::model::event::{CappedRow, NewEvent, Row};
use crate::model::time;
use crate::store::{Appended, Put, Stored};

/// Events of a batch per INSERT. What SQLite does once per statement (reading and writing the last id,
/// opening the indexes) costs as much as storing an event.
const ROWS_PER_INSERT: usize = 16;

/// SQLite's page cache for a batch, in KiB: the default of 2 MB spills constantly. Reads keep the default,
/// which fits into the CPU cache and is faster.
const CACHE_KIB: u32 = 16_000;

/// With more events than this, the checkpoint runs in a background thread.
const LARGE_BATCH: u64 = 10_000;

pub fn append(store: &mut Sqlite, feed: &mut dyn FnMut(&mut Put<'_>) -> Result<()>) -> Result<Appended> {
    in_transaction(store, &mut |inserter| feed(&mut |events| inserter.put(events)))
}

/// Runs `work` in a transaction in which events are stored.
pub fn in_transaction(
    store: &mut Sqlite,
    work: &mut dyn FnMut(&mut Inserter<'_>) -> Result<()>,
) -> Result<Appended> {
    let doing = "storing";
    let transaction = store.write(doing)?;
    let appended = Appended { created_at: time::now(), ..Appended::default() };
    let next_id = newest(&transaction).doing(doing)?.saturating_add(1);
    let mut inserter = Inserter { conn: &transaction, next_id, appended };
    work(&mut inserter)?;
    let appended = inserter.appended;
    if appended.count <= LARGE_BATCH {
        transaction.commit().map_err(|e| commit(e, doing))?;
        return Ok(appended);
    }
    // Otherwise SQLite would checkpoint before the commit returns.
    let checkpoint_at = |pages: u32| format!("PRAGMA wal_autocheckpoint = {pages}");
    transaction.execute_batch(&checkpoint_at(0)).doing(doing)?;
    let committed = transaction.commit().map_err(|e| commit(e, doing));
    drop(store.conn.execute_batch(&checkpoint_at(1000)));
    committed?;
    store.checkpoint_in_background();
    Ok(appended)
}

/// Stores events inside a transaction.
pub struct Inserter<'t> {
    pub conn: &'t Connection,
    /// The id of the next event.
    next_id: i64,
    pub appended: Appended,
}

impl Inserter<'_> {
    pub fn put(&mut self, events: &[NewEvent<'_>]) -> Result<Vec<Stored>> {
        let doing = "storing";
        if events.len() >= ROWS_PER_INSERT {
            self.conn.execute_batch(&format!("PRAGMA cache_size = -{CACHE_KIB}")).doing(doing)?;
        }
        let mut stored = Vec::with_capacity(events.len());
        for group in events.chunks(ROWS_PER_INSERT) {
            // An event with a key may be a duplicate, even of the event just before it; a copy has its own time.
            let is_plain = |event: &NewEvent<'_>| {
                event.idempotency_key.is_none() && event.created_at.is_none() && event.due.is_none()
            };
            if group.len() == ROWS_PER_INSERT && group.iter().all(is_plain) {
                self.insert(group).doing(doing)?;
                stored.extend(group.iter().map(|_| self.count()));
                continue;
            }
            for event in group {
                stored.push(match find(self.conn, event).doing(doing)? {
                    Some((id, created_at, true)) => Stored::Repeated { id, created_at },
                    Some((id, _, false)) => {
                        let key = event.idempotency_key.as_deref().unwrap_or_default().to_owned();
                        return Err(Error::KeyConflict { key, id });
                    }
                    None => match scheduled::find(self.conn, event)? {
                        Some(scheduled) => scheduled,
                        None if event.due.is_some() => {
                            self.appended.scheduled += 1;
                            scheduled::insert(self.conn, &self.appended.created_at, event).doing(doing)?
                        }
                        None => {
                            self.insert(std::slice::from_ref(event)).doing(doing)?;
                            self.count()
                        }
                    },
                });
            }
        }
        Ok(stored)
    }

    /// Counts a stored event and returns its id.
    pub fn count(&mut self) -> Stored {
        let id = self.next_id;
        self.next_id += 1;
        self.appended.count += 1;
        self.appended.first_id.get_or_insert(id);
        self.appended.last_id = Some(id);
        Stored::New(id)
    }

    /// Stores the events with one statement. They have the same time.
    fn insert(&self, events: &[NewEvent<'_>]) -> rusqlite::Result<()> {
        // Few events have one of the last two columns.
        let plain = events.iter().all(|event| event.metadata.is_none() && event.idempotency_key.is_none());
        let (columns, row) = if plain {
            ("", "(?1, ?, ?, ?, ?)")
        } else {
            (", metadata, idempotency_key", "(?1, ?, ?, ?, ?, ?, ?)")
        };
        let rows = vec![row; events.len()].join(", ");
        // "OR FAIL" saves SQLite the statement journal for undoing this statement alone: any failure here
        // rolls back the whole transaction.
        let mut insert = self.conn.prepare_cached(&format!(
            "INSERT OR FAIL INTO events (created_at, source, type, subtype, content{columns}) VALUES {rows}"
        ))?;
        let own = events.first().and_then(|event| event.created_at.as_deref());
        insert.raw_bind_parameter(1, own.unwrap_or(&self.appended.created_at))?;
        let mut next = 2;
        let mut bind = |value: &dyn ToSql| {
            next += 1;
            insert.raw_bind_parameter(next - 1, value)
        };
        for event in events {
            bind(&event.source)?;
            bind(&event.kind.as_str())?;
            bind(&event.subtype)?;
            bind(&event.content)?;
            if !plain {
                bind(&event.metadata)?;
                bind(&event.idempotency_key.as_deref())?;
            }
        }
        insert.raw_execute().map(drop)
    }
}

/// Id and time of the event stored under the same key, and whether it is equal. SQLite compares, because the
/// content may be large.
fn find(conn: &Connection, event: &NewEvent<'_>) -> rusqlite::Result<Option<(i64, String, bool)>> {
    if event.idempotency_key.is_none() {
        return Ok(None);
    }
    let mut find = conn.prepare_cached(
        "SELECT id, created_at, source IS ?2 AND type IS ?3 AND subtype IS ?4 AND content IS ?5, metadata \
         FROM events WHERE idempotency_key = ?1",
    )?;
    let values = params![
        event.idempotency_key.as_deref(),
        event.source,
        event.kind.as_str(),
        event.subtype,
        event.content
    ];
    let found = find.query_row(values, |row| {
        let metadata = row.get_ref(3).map(text_of)?;
        let is_same = row.get::<_, bool>(2)? && event.has_metadata(metadata.as_deref());
        Ok((row.get(0)?, row.get(1)?, is_same))
    });
    found.optional()
}

/// Reads the events with ids in `(after, upto]`, without their texts longer than `cap` bytes: SQLite takes
/// a length from the row's header, and loads a long text only if its value is asked for.
pub fn read(
    conn: &Connection,
    (after, upto): (i64, i64),
    limit: usize,
    cap: u64,
    take: &mut dyn FnMut(CappedRow<'_>) -> ControlFlow<()>,
) -> rusqlite::Result<()> {
    let texts = ["created_at", "source", "type", "subtype", "content", "metadata"];
    // SQLite knows no larger one.
    let cap = i64::try_from(cap).ok();
    let columns = match cap {
        Some(cap) => {
            let capped = texts.map(|text| format!("CASE WHEN octet_length({text}) <= {cap} THEN {text} END"));
            format!("{}, octet_length(content), octet_length(metadata)", capped.join(", "))
        }
        // A tenth faster.
        None => texts.join(", "),
    };
    let sql = format!("SELECT id, {columns} FROM events WHERE id > ? AND id <= ? ORDER BY id");
    let mut statement = conn.prepare_cached(&sql)?;
    let mut rows = statement.query([after, upto])?;
    for _ in 0..limit {
        let Some(row) = rows.next()? else { break };
        let bytes = |column: usize| row.get_ref(column).map(bytes_of);
        let length = |column: usize| row.get::<_, Option<i64>>(column).map(|n| n.map(i64::unsigned_abs));
        let (content, metadata) = (bytes(5)?, bytes(6)?);
        let (content_len, metadata_len) = match cap {
            None => (content.map_or(0, <[u8]>::len) as u64, metadata.map(|text| text.len() as u64)),
            Some(_) => (length(7)?.unwrap_or(0), length(8)?),
        };
        let event = Row {
            id: row.get(0)?,
            created_at: bytes(1)?.unwrap_or_default(),
            source: bytes(2)?.unwrap_or_default(),
            kind: bytes(3)?.unwrap_or_default(),
            subtype: bytes(4)?,
            content: content.unwrap_or_default(),
            metadata: metadata.or(metadata_len.map(|_| &b""[..])),
        };
        let capped = CappedRow { row: event, content_len, metadata_len: metadata_len.unwrap_or(0) };
        if take(capped).is_break() {
            break;
        }
    }
    Ok(())
}

pub fn read_content(
    conn: &Connection,
    id: i64,
    offset: u64,
    most: usize,
) -> rusqlite::Result<Option<Vec<u8>>> {
    // One snapshot: the event may be pruned at any time.
    let _moment = conn.unchecked_transaction()?;
    if one(conn, "SELECT id FROM events WHERE id = ?", [id])?.is_none() {
        return Ok(None);
    }
    let content = conn.blob_open(MAIN_DB, "events", "content", id, true)?;
    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
    let mut piece = vec![0; most.min(content.len() - start)];
    content.read_at_exact(&mut piece, start)?;
    Ok(Some(piece))
}
