//! Asking a filter about stored events, so that no single event can hold up the others.
//!
//! Events are asked about in ranges, at SQLite's full speed. Only when a range fails (the filter
//! errs on an event, or the range takes too long) are its events asked about one by one, each
//! under the limits: one that errs or exceeds them does not match, and its neighbours are judged
//! as if it were not there.
//!
//! What a look has learned is remembered with the subscription: see [`Mark`].

use std::time::{Duration, Instant};

use rusqlite::{OptionalExtension, params};

use super::{Counting, Store, text_of};
use crate::error::{Result, database};
use crate::event::{self, NewEvent};
use crate::filter::{self, Deadline, Filter, Scope};
use crate::subscription::{Mark, Subscription};

/// How many ids are asked about in one statement.
const RANGE: i64 = 4096;

/// How long one range may take before its events are asked about one by one.
const RANGE_TIME: Duration = Duration::from_millis(500);

/// How long the filter may take on one event.
const EVENT_TIME: Duration = Duration::from_millis(250);

/// How long a scan goes on before it stops to let its caller keep what was gained.
const SCAN_TIME: Duration = Duration::from_secs(1);

/// An event that is not stored yet is asked about only if its content and metadata are at most so many
/// bytes, and for so long.
const SMALL: usize = 4 * 1024;
const QUICK: Duration = Duration::from_millis(1);

/// A mark is written when it has moved this far; a shorter way is looked at again for less than
/// the writing costs.
const MARK_STEP: i64 = 256;

/// An event the filter could not judge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    pub id: i64,
    pub message: String,
}

/// What a scan found.
#[derive(Debug, Default)]
pub struct Scan {
    /// The matching ids, oldest first.
    pub ids: Vec<i64>,
    /// Everything up to this id was asked about.
    pub upto: i64,
    pub troubles: Vec<Trouble>,
}

/// What looking for a consumer's pending events found.
#[derive(Debug, Default)]
pub struct Look {
    /// The oldest matching event past the cursor.
    pub first_pending: Option<i64>,
    /// The newest id ever given, matching or not.
    pub newest: i64,
    /// Events the filter erred on, seen for the first time.
    pub troubles: Vec<Trouble>,
    /// The stored filter is no filter, and why. Nothing is then pending.
    pub broken_filter: Option<String>,
}

impl Store {
    /// Looks whether anything is pending for `subscription`, at a cost that follows what is new.
    pub fn look(&mut self, subscription: &Subscription) -> Result<Look> {
        self.look_from(subscription, true)
    }

    /// The same for a cursor that is not the stored one: nothing of it is remembered.
    pub fn look_without_memory(&mut self, subscription: &Subscription) -> Result<Look> {
        self.look_from(subscription, false)
    }

    fn look_from(&mut self, subscription: &Subscription, remember: bool) -> Result<Look> {
        let newest = self.newest_ever()?;
        let cursor = subscription.last_acked_id;
        let mut look = Look { newest, ..Look::default() };
        let Some(text) = subscription.filter_text() else {
            if newest > cursor {
                let next = self.conn.prepare_cached("SELECT min(id) FROM events WHERE id > ?");
                look.first_pending = next
                    .and_then(|mut s| s.query_row([cursor], |row| row.get(0)))
                    .map_err(|e| database(&e, "looking for pending events"))?;
            }
            return Ok(look);
        };
        let start = subscription.known_upto(cursor);
        if start >= newest {
            return Ok(look);
        }
        let filter = match self.check_filter(text, Scope::Subscription) {
            Ok(Some(filter)) => filter,
            Ok(None) => return Ok(look),
            Err(refusal) => {
                look.broken_filter = Some(refusal.to_string());
                return Ok(look);
            }
        };
        let (mut upto, mut remembered) = (start, start);
        while upto < newest && look.first_pending.is_none() {
            // In steps, so that a look that is cut short keeps the ground it gained.
            let end = newest.min(upto.saturating_add(16 * RANGE));
            let scan = self.scan(&filter, upto, end, 1)?;
            let slow = scan.ids.is_empty() && scan.upto < end;
            look.first_pending = scan.ids.first().copied();
            let gained = look.first_pending.map_or(scan.upto, |id| id - 1);
            let fresh: Vec<Trouble> = scan
                .troubles
                .into_iter()
                .filter(|t| t.id > subscription.filter_error_id && t.id <= gained)
                .collect();
            if remember && (gained.saturating_sub(remembered) >= MARK_STEP || !fresh.is_empty() || slow) {
                self.remember(subscription, text, gained, &fresh)?;
                remembered = gained;
            }
            look.troubles.extend(fresh);
            upto = gained.max(upto);
            if look.first_pending.is_none() && !slow {
                upto = self.before_next(upto, newest)?;
            }
        }
        Ok(look)
    }

    /// Whether a filter would match an event that is not stored, as far as that is told quickly. It is
    /// asked about again once it is stored: then ids and times are its own.
    pub fn would_match(&mut self, text: &str, event: &NewEvent<'_>) -> bool {
        if event.content.len() + event.metadata.as_ref().map_or(0, |metadata| metadata.len()) > SMALL {
            return false;
        }
        let Ok(Some(filter)) = self.check_filter(text, Scope::Subscription) else { return false };
        if filter.ready(&self.conn, &mut self.dates).is_err() {
            return false;
        }
        let limits = filter.limits(&self.conn);
        let sql = format!(
            "WITH events (id, created_at, source, type, subtype, content, metadata) AS \
             (VALUES ((SELECT seq + 1 FROM sqlite_sequence WHERE name = 'events'), ?, ?, ?, ?, ?, ?)) \
             SELECT 1 FROM events WHERE {}",
            filter.condition()
        );
        let told = {
            let deadline = Deadline::start(&mut self.conn, QUICK);
            let values = params![
                event::now(),
                event.source,
                event.kind.as_str(),
                event.subtype,
                event.content,
                event.metadata
            ];
            deadline.conn().query_row(&sql, values, |_| Ok(())).optional()
        };
        limits.widen(&self.conn);
        matches!(told, Ok(Some(())))
    }

    /// How many matching events lie past the cursor, given what a look has just found. A filter
    /// that is none matches nothing.
    pub fn count_pending(
        &mut self,
        subscription: &Subscription,
        look: &Look,
        counting: &mut Counting,
    ) -> Result<u64> {
        let Some(first) = look.first_pending else { return Ok(0) };
        let Some(text) = subscription.filter_text() else {
            // Where no id is missing, nothing need be read to know how many there are. Counting
            // would read the table's pages once more for every consumer that is behind.
            let extent = counting.extent(self)?;
            if extent.is_gapless() && first >= extent.oldest {
                return Ok(look.newest.max(first).abs_diff(first) + 1);
            }
            let count = self.conn.prepare_cached("SELECT count(*) FROM events WHERE id >= ?");
            return count
                .and_then(|mut s| s.query_row([first], |row| row.get::<_, i64>(0)))
                .map(i64::unsigned_abs)
                .map_err(|e| database(&e, "counting pending events"));
        };
        let Ok(Some(filter)) = self.check_filter(text, Scope::Subscription) else { return Ok(0) };
        let (mut count, mut upto) = (0, first - 1);
        while upto < look.newest {
            let scan = self.scan(&filter, upto, look.newest, RANGE as usize)?;
            count += scan.ids.len() as u64;
            upto = scan.upto;
        }
        Ok(count)
    }

    /// When an event was stored, as it is written there.
    pub fn created_at(&self, id: i64) -> Result<Option<String>> {
        self.conn
            .prepare_cached("SELECT created_at FROM events WHERE id = ?")
            .and_then(|mut s| s.query_row([id], |row| row.get_ref(0).map(text_of)).optional())
            .map(Option::flatten)
            .map_err(|e| database(&e, "reading an event's time"))
    }

    /// The id after which the last `count` matches begin: asked backwards, range by range.
    pub(super) fn start_of_matching_tail(&mut self, filter: &Filter, after: i64, count: u64) -> Result<i64> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let mut upto = self.last_upto(i64::MAX)?;
        let mut found = 0;
        while upto > after {
            let start = after.max(upto.saturating_sub(RANGE));
            let mut ids = Vec::new();
            let mut scanned = start;
            while scanned < upto {
                let scan = self.scan(filter, scanned, upto, usize::MAX)?;
                ids.extend(scan.ids);
                scanned = scan.upto;
            }
            if found + ids.len() >= count {
                return Ok(ids[ids.len() - (count - found)] - 1);
            }
            found += ids.len();
            // What was pruned leaves gaps of any width.
            upto = self.last_upto(start)?;
        }
        Ok(after)
    }

    /// The newest event up to `id`; 0 when there is none.
    pub fn last_upto(&self, id: i64) -> Result<i64> {
        self.conn
            .prepare_cached("SELECT coalesce(max(id), 0) FROM events WHERE id <= ?")
            .and_then(|mut s| s.query_row([id], |row| row.get(0)))
            .map_err(|e| database(&e, "looking for the last events"))
    }

    /// Stores that nothing up to `upto` matches. Not synced: forgetting a mark costs a second look,
    /// and whoever may only read has to look a second time.
    fn remember(
        &mut self,
        subscription: &Subscription,
        text: &str,
        upto: i64,
        troubles: &[Trouble],
    ) -> Result<()> {
        if self.conn.is_readonly("main").map_err(|e| database(&e, "remembering what a filter was asked"))? {
            return Ok(());
        }
        let from = match &subscription.mark {
            Some(mark)
                if mark.filter == text
                    && mark.from <= subscription.last_acked_id
                    && mark.upto >= subscription.last_acked_id =>
            {
                mark.from
            }
            _ => subscription.last_acked_id,
        };
        let mark = Mark { filter: text.to_owned(), from, upto };
        let newest_error = troubles.last().map_or(subscription.filter_error_id, |t| t.id);
        self.unsynced(|conn| {
            conn.execute(
                "UPDATE subscriptions SET mark_filter = ?, mark_from = ?, mark_upto = ?, \
                        filter_errors = coalesce(filter_errors, 0) + ?, \
                        filter_error_id = max(coalesce(filter_error_id, 0), ?) \
                 WHERE consumer_id = ? AND filter = ? AND token IS ?",
                params![
                    mark.filter,
                    mark.from,
                    mark.upto,
                    troubles.len() as i64,
                    newest_error,
                    subscription.consumer.as_str(),
                    text,
                    subscription.token
                ],
            )
        })
        .map(drop)
        .map_err(|e| database(&e, "remembering what a filter was asked"))
    }

    /// Commits without a sync: for what may be forgotten in a power cut.
    fn unsynced<T>(
        &mut self,
        write: impl FnOnce(&rusqlite::Connection) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.conn.execute_batch("PRAGMA synchronous = NORMAL")?;
        let written = write(&self.conn);
        self.conn.execute_batch("PRAGMA synchronous = FULL")?;
        written
    }

    /// The first `most` matching ids in `(after, upto]`, or in as much of that as a slow filter gets
    /// through in [`SCAN_TIME`].
    pub(super) fn scan(&mut self, filter: &Filter, after: i64, upto: i64, most: usize) -> Result<Scan> {
        let mut scan = Scan { upto: after, ..Scan::default() };
        filter.ready(&self.conn, &mut self.dates).map_err(|e| database(&e, "asking a filter"))?;
        let limits = filter.limits(&self.conn);
        let scanned = self.scan_ranges(filter, upto, most, &mut scan);
        limits.widen(&self.conn);
        scanned.map(|()| scan)
    }

    fn scan_ranges(&mut self, filter: &Filter, upto: i64, most: usize, scan: &mut Scan) -> Result<()> {
        let range = format!(
            "SELECT id FROM events WHERE id > ? AND id <= ? AND {} ORDER BY id LIMIT ?",
            filter.condition()
        );
        let began = Instant::now();
        while scan.upto < upto && scan.ids.len() < most && began.elapsed() < SCAN_TIME {
            let end = upto.min(scan.upto.saturating_add(RANGE));
            let left = most - scan.ids.len();
            let found = {
                let deadline = Deadline::start(&mut self.conn, RANGE_TIME);
                let statement = deadline.conn().prepare_cached(&range);
                statement.and_then(|mut s| {
                    s.query_map(params![scan.upto, end, left as i64], |row| row.get(0))?
                        .collect::<rusqlite::Result<Vec<i64>>>()
                })
            };
            match found {
                Ok(ids) => {
                    scan.upto = match ids[..] {
                        [.., last] if ids.len() == left => last,
                        [] => self.before_next(end, upto)?,
                        _ => end,
                    };
                    scan.ids.extend(ids);
                }
                Err(e) if is_the_filters_fault(&e) => self.scan_one_by_one(filter, end, most, began, scan)?,
                Err(e) => return Err(database(&e, "asking a filter")),
            }
        }
        Ok(())
    }

    /// The last id up to `upto` before an event comes after `id`. Other programs may leave gaps of
    /// any width, and these must not be crossed step by step.
    fn before_next(&self, id: i64, upto: i64) -> Result<i64> {
        let next = self.conn.prepare_cached("SELECT min(id) FROM events WHERE id > ?");
        let next: Option<i64> = next
            .and_then(|mut s| s.query_row([id], |row| row.get(0)))
            .map_err(|e| database(&e, "looking for the next event"))?;
        Ok(next.map_or(upto, |next| upto.min(next - 1)).max(id))
    }

    fn scan_one_by_one(
        &mut self,
        filter: &Filter,
        end: i64,
        most: usize,
        began: Instant,
        scan: &mut Scan,
    ) -> Result<()> {
        let failed = |e: rusqlite::Error| database(&e, "asking a filter");
        let ids: Vec<i64> = self
            .conn
            .prepare_cached("SELECT id FROM events WHERE id > ? AND id <= ? ORDER BY id")
            .and_then(|mut s| s.query_map(params![scan.upto, end], |row| row.get(0))?.collect())
            .map_err(failed)?;
        let one = format!("SELECT 1 FROM events WHERE id = ? AND {}", filter.condition());
        for (asked, id) in ids.into_iter().enumerate() {
            if scan.ids.len() == most || (asked > 0 && began.elapsed() >= SCAN_TIME) {
                return Ok(());
            }
            let answer = {
                let deadline = Deadline::start(&mut self.conn, EVENT_TIME);
                let statement = deadline.conn().prepare_cached(&one);
                statement.and_then(|mut s| s.query_row([id], |_| Ok(())).optional())
            };
            match answer {
                Ok(Some(())) => scan.ids.push(id),
                Ok(None) => {}
                Err(e) if is_the_filters_fault(&e) => {
                    scan.troubles.push(Trouble { id, message: filter::message(&e) });
                }
                Err(e) => return Err(failed(e)),
            }
            scan.upto = id;
        }
        if scan.ids.len() < most {
            scan.upto = end;
        }
        Ok(())
    }
}

/// Whether an evaluation failed because of the filter and the event rather than the database.
fn is_the_filters_fault(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::*;
    matches!(
        error.sqlite_error_code(),
        Some(Unknown | TooBig | OperationInterrupted | OutOfMemory | TypeMismatch | ParameterOutOfRange)
    )
}
