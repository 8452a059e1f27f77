//! Storing events.
//!
//! The first event of a transaction takes the thread's counter row, which is then held until the commit. So ids are
//! in the order of commits and without gaps, and no other transaction stores an event under the same key in the
//! meantime.

use std::collections::HashMap;

use postgres::Row;
use postgres::types::Type;
use thread::model::event::{InvalidEvent, NewEvent};
use thread::model::scheduled::ScheduledId;
use thread::model::time::{self, Time};
use thread::store::{Appended, Put, Stored};
use thread::{Error, Event, Result};

use crate::copy::{self, Copy};
use crate::error;
use crate::link::{Link, Locks, NOW, Session, bytes, int, text};
use crate::read::{EVENT, event_of};
use crate::scheduled::{self, Known};

const DOING: &str = "storing";

pub const COLUMNS: &str = "thread, id, created_at, source, type, subtype, content, metadata, idempotency_key";

pub fn append(store: &mut Link, feed: &mut dyn FnMut(&mut Put<'_>) -> Result<()>) -> Result<Appended> {
    in_transaction(store, |inserter| feed(&mut |events| inserter.put(events)))
}

/// Runs `work` in a transaction in which events are stored.
pub fn in_transaction(
    store: &mut Link,
    work: impl FnOnce(&mut Inserter<'_>) -> Result<()>,
) -> Result<Appended> {
    let mut inserter = Inserter {
        store,
        begun: false,
        next: None,
        copy: None,
        is_behind: false,
        appended: Appended::default(),
    };
    let fed = work(&mut inserter);
    let copied = inserter.end_copy(fed.is_ok());
    let fed = fed.and(copied).and_then(|()| inserter.write_counter());
    let Inserter { store, begun, appended, .. } = inserter;
    match begun {
        true => store.end(DOING, fed.map(|()| appended)),
        false => fed.map(|()| appended),
    }
}

/// Stores events inside a transaction, which begins with the first one.
pub struct Inserter<'s> {
    store: &'s mut Link,
    begun: bool,
    /// The id of the next event, once the counter row is locked.
    next: Option<i64>,
    /// Has the connection.
    copy: Option<Copy>,
    /// The counter row does not have that number yet.
    is_behind: bool,
    appended: Appended,
}

impl Inserter<'_> {
    pub fn put(&mut self, events: &[NewEvent<'_>]) -> Result<Vec<Stored>> {
        if events.is_empty() {
            return Ok(Vec::new());
        }
        refuse_nul(events)?;
        if events.iter().any(|event| event.due.is_some()) {
            scheduled::prepare(self.store)?;
        }
        self.begin()?;
        let is_plain = |event: &NewEvent<'_>| {
            event.idempotency_key.is_none() && event.created_at.is_none() && event.due.is_none()
        };
        match events {
            // One round trip, with nothing between the lock and the event.
            [event] if is_plain(event) && self.next.is_none() => Ok(vec![self.put_first(event)?]),
            _ => self.put_many(events),
        }
    }

    fn begin(&mut self) -> Result<()> {
        if !self.begun {
            self.store.begin(DOING, Locks::None, true)?;
            self.begun = true;
        }
        Ok(())
    }

    /// The newest id and the time of the transaction, which others cannot change any more.
    pub fn position(&mut self) -> Result<(i64, String)> {
        self.begin()?;
        self.lock()?;
        Ok((self.next.unwrap_or_default() - 1, self.appended.created_at.clone()))
    }

    /// Counts events that were stored by a statement of the caller.
    pub fn count_stored(&mut self, count: i64) {
        self.is_behind |= count > 0;
        (0..count).for_each(|_| drop(self.count()));
    }

    fn put_first(&mut self, event: &NewEvent<'_>) -> Result<Stored> {
        let sql = format!(
            "WITH counter AS (UPDATE @counters SET newest = newest + 1 WHERE thread = $1 \
                              RETURNING newest, {NOW} AS now, to_regclass($$@schedules$$) IS NOT NULL AS later), \
                  stored AS (INSERT INTO @events ({COLUMNS}) \
                             SELECT $1, newest, now, $2, $3, $4, $5, $6, NULL FROM counter) \
             SELECT newest, now, later FROM counter"
        );
        let content = event.content.as_bytes();
        let row = self.session().row(
            &sql,
            &[
                text(&event.source),
                text(&event.kind.as_str()),
                text(&event.subtype),
                bytes(&content),
                text(&event.metadata),
            ],
        )?;
        let row = self.found(row)?;
        let id: i64 = row.get(0);
        self.next = Some(id);
        self.appended.created_at = row.get(1);
        self.store.known.schedules = row.get(2);
        Ok(self.count())
    }

    /// The counter row. It is elsewhere if the thread is closed.
    fn found(&mut self, row: Option<Row>) -> Result<Row> {
        match row {
            Some(row) => Ok(row),
            None => Err(self.session().closed()?.map_or_else(error::gone, Error::from)),
        }
    }

    fn put_many(&mut self, events: &[NewEvent<'_>]) -> Result<Vec<Stored>> {
        self.lock()?;
        let known = self.stored_under_keys(events)?;
        let later = self.scheduled_under_keys(events)?;
        // Of this call, by key.
        let mut own: HashMap<&str, (i64, &NewEvent<'_>)> = HashMap::new();
        let mut own_later: HashMap<&str, (ScheduledId, Time, &NewEvent<'_>)> = HashMap::new();
        let mut later_ids = self.new_ids(events)?.into_iter();
        let (mut new, mut new_later) = (Vec::new(), Vec::new());
        let mut stored = Vec::with_capacity(events.len());
        for event in events {
            let key = event.idempotency_key.as_deref();
            let scheduled = key.and_then(|key| match (own_later.get(key), later.get(key)) {
                (Some((id, due, first)), _) => Some((*id, *due, is_equal(first, event))),
                (None, Some(found)) => Some((found.id, found.due, event.is_same(&found.event))),
                (None, None) => None,
            });
            match scheduled {
                Some((id, due, true)) => {
                    stored.push(Stored::Scheduled { id, due, repeated: true });
                    continue;
                }
                Some((id, ..)) => {
                    let key = key.unwrap_or_default().to_owned();
                    return Err(Error::ScheduledKeyConflict { key, id });
                }
                None => {}
            }
            let before =
                event.idempotency_key.as_deref().and_then(|key| match (own.get(key), known.get(key)) {
                    (Some((id, first)), _) => {
                        Some((*id, self.time_of(first).to_owned(), is_equal(first, event)))
                    }
                    (None, Some(found)) => Some((found.id, found.created_at.clone(), event.is_same(found))),
                    (None, None) => None,
                });
            stored.push(match before {
                Some((id, created_at, true)) => Stored::Repeated { id, created_at },
                Some((id, _, false)) => {
                    let key = event.idempotency_key.as_deref().unwrap_or_default().to_owned();
                    return Err(Error::KeyConflict { key, id });
                }
                None if event.due.is_some() => {
                    let now = time::parse(&self.appended.created_at).unwrap_or_default();
                    let due = event.due_at(now).unwrap_or(now);
                    let id = later_ids.next().unwrap_or(ScheduledId(0));
                    if let Some(key) = key {
                        own_later.insert(key, (id, due, event));
                    }
                    self.appended.scheduled += 1;
                    new_later.push((id, due, event));
                    Stored::Scheduled { id, due, repeated: false }
                }
                None => {
                    let one = self.count();
                    let id = self.next.unwrap_or_default() - 1;
                    if let Some(key) = event.idempotency_key.as_deref() {
                        own.insert(key, (id, event));
                    }
                    new.push((id, event));
                    one
                }
            });
        }
        if !new.is_empty() {
            self.is_behind = true;
            self.copy(&new)?;
        }
        if !new_later.is_empty() {
            self.end_copy(true)?;
            let now = self.appended.created_at.clone();
            scheduled::insert(&mut self.session(), &new_later, &now)?;
        }
        Ok(stored)
    }

    /// Takes the counter row. An UPDATE, because its result is determined after the wait for the lock.
    fn lock(&mut self) -> Result<()> {
        if self.next.is_some() {
            return Ok(());
        }
        // Something may have been scheduled for the first time since the thread was opened.
        let sql = format!(
            "UPDATE @counters SET newest = newest WHERE thread = $1 \
             RETURNING newest, {NOW}, to_regclass($$@schedules$$) IS NOT NULL"
        );
        let row = self.session().row(&sql, &[])?;
        let row = self.found(row)?;
        self.store.known.schedules = row.get(2);
        self.next = Some(row.get::<_, i64>(0) + 1);
        self.appended.created_at = row.get(1);
        Ok(())
    }

    /// The `created_at` of a new event.
    fn time_of<'e>(&'e self, event: &'e NewEvent<'_>) -> &'e str {
        event.created_at.as_deref().unwrap_or(&self.appended.created_at)
    }

    /// Counts a stored event. Before that, `next` is its id.
    fn count(&mut self) -> Stored {
        let id = self.next.unwrap_or_default();
        self.next = Some(id + 1);
        self.appended.count += 1;
        self.appended.first_id.get_or_insert(id);
        self.appended.last_id = Some(id);
        Stored::New(id)
    }

    /// The events stored before under the keys of these.
    fn stored_under_keys(&mut self, events: &[NewEvent<'_>]) -> Result<HashMap<String, Event>> {
        let keys: Vec<&str> = events.iter().filter_map(|event| event.idempotency_key.as_deref()).collect();
        if keys.is_empty() {
            return Ok(HashMap::new());
        }
        // Which may also be of this batch.
        self.end_copy(true)?;
        let sql = format!(
            "SELECT {EVENT}, idempotency_key FROM @events \
             WHERE thread = $1 AND idempotency_key IS NOT NULL AND idempotency_key = ANY($2)"
        );
        let rows = self.session().rows(&sql, &[(&keys, Type::TEXT_ARRAY)])?;
        Ok(rows.iter().map(|row| (row.get("idempotency_key"), event_of(row).row.to_event())).collect())
    }

    /// What is scheduled under the keys of these.
    fn scheduled_under_keys(&mut self, events: &[NewEvent<'_>]) -> Result<HashMap<String, Known>> {
        let keys: Vec<&str> = events.iter().filter_map(|event| event.idempotency_key.as_deref()).collect();
        if keys.is_empty() || !self.store.known.schedules {
            return Ok(HashMap::new());
        }
        Ok(scheduled::under_keys(&mut self.session(), &keys)?.into_iter().collect())
    }

    /// Numbers for those that are due later.
    fn new_ids(&mut self, events: &[NewEvent<'_>]) -> Result<Vec<ScheduledId>> {
        let count = events.iter().filter(|event| event.due.is_some()).count();
        if count == 0 {
            return Ok(Vec::new());
        }
        self.end_copy(true)?;
        scheduled::new_ids(&mut self.session(), count)
    }

    /// Sends new events, by the COPY in progress.
    fn copy(&mut self, new: &[(i64, &NewEvent<'_>)]) -> Result<()> {
        let thread = self.store.thread;
        let mut rows = Vec::with_capacity(new.iter().map(|(_, event)| event.content.len() + 200).sum());
        for (id, event) in new {
            let row: [Option<&[u8]>; 9] = [
                Some(&thread.to_be_bytes()),
                Some(&id.to_be_bytes()),
                Some(self.time_of(event).as_bytes()),
                Some(event.source.as_bytes()),
                Some(event.kind.as_str().as_bytes()),
                event.subtype.as_deref().map(str::as_bytes),
                Some(event.content.as_bytes()),
                event.metadata.as_deref().map(str::as_bytes),
                event.idempotency_key.as_deref().map(str::as_bytes),
            ];
            copy::write_row(&mut rows, &row).map_err(|_| error::too_large())?;
        }
        let copy = match &mut self.copy {
            Some(copy) => copy,
            None => {
                let sql = format!("COPY @events ({COLUMNS}) FROM STDIN (FORMAT binary)");
                let (connection, sql) = self.store.lend(&sql);
                self.copy.insert(Copy::begin(connection, sql, DOING)?)
            }
        };
        match copy.send(rows) {
            true => Ok(()),
            false => self.end_copy(true),
        }
    }

    /// Ends the COPY in progress. What it sent is stored if `keep`; if not, the transaction has failed.
    fn end_copy(&mut self, keep: bool) -> Result<()> {
        let Some(copy) = self.copy.take() else { return Ok(()) };
        let (connection, copied) = copy.end(keep);
        self.store.take_back(connection);
        copied
    }

    fn write_counter(&mut self) -> Result<()> {
        let Some(newest) = self.next.map(|next| next - 1).filter(|_| self.is_behind) else { return Ok(()) };
        self.session().rows("UPDATE @counters SET newest = $2 WHERE thread = $1", &[int(&newest)]).map(drop)
    }

    pub fn session(&mut self) -> Session<'_> {
        self.store.in_transaction(DOING)
    }
}

fn is_equal(one: &NewEvent<'_>, other: &NewEvent<'_>) -> bool {
    one.source == other.source
        && one.kind == other.kind
        && one.subtype == other.subtype
        && one.content == other.content
        && one.metadata == other.metadata
}

/// The server knows no U+0000 in a text; in the content, which is bytes, it does.
fn refuse_nul(events: &[NewEvent<'_>]) -> Result<()> {
    for event in events {
        let (subtype, key) = (event.subtype.as_deref(), event.idempotency_key.as_deref());
        for (what, text) in [("subtype", subtype), ("idempotency key", key)] {
            if text.is_some_and(|text| text.contains('\0')) {
                return Err(InvalidEvent(format!(
                    "has a NUL character in its {what}, which PostgreSQL cannot store"
                ))
                .into());
            }
        }
    }
    Ok(())
}
