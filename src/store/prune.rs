//! Deleting old events, in steps so short that nobody who pushes waits long for one.

use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use super::{Store, subscriptions};
use crate::error::{Result, commit, database};
use crate::subscription::Subscription;

/// A step holds the write lock for about this long. A single event is deleted in one go, however
/// large it is.
const STEP_TIME: Duration = Duration::from_millis(40);

/// How many events are listed at a time.
const PAGE: usize = 500;

/// What was deleted, or would be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pruned {
    pub events: u64,
    /// The bytes of their content and metadata.
    pub bytes: u64,
    /// Events that are dead letters: left out, or, where these go too, among the events.
    pub dead_letters: u64,
}

/// What became of one step.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Everything up to this id is done with.
    Upto(i64, Pruned),
    /// A consumer wants more than it did when it was looked at. Nothing was deleted.
    Overtaken,
}

/// An event that may go.
struct Old {
    id: i64,
    bytes: u64,
    dead_letter: bool,
}

impl Store {
    /// Deletes the oldest events in `(after, upto]`, as many as one short transaction takes, and
    /// with them their dead letters if that is wished; else these are left out.
    ///
    /// `seen` are the subscriptions for which nothing up to `upto` is pending. Nothing is deleted
    /// when there is another one now, or one whose cursor was moved back.
    pub fn prune_step(
        &mut self,
        after: i64,
        upto: i64,
        seen: Option<&[Subscription]>,
        letters_too: bool,
    ) -> Result<Step> {
        let doing = "pruning";
        let failed = |e: rusqlite::Error| database(&e, doing);
        self.must_be_writable(doing)?;
        let transaction =
            self.conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let began = Instant::now();
        if let Some(seen) = seen {
            let now = subscriptions::all(&transaction).map_err(failed)?;
            if now.iter().any(|now| wants_more(now, seen, upto)) {
                return Ok(Step::Overtaken);
            }
        }
        let (reached, pruned) = delete(&transaction, after, upto, letters_too, began).map_err(failed)?;
        transaction.commit().map_err(|e| commit(&e, doing))?;
        Ok(Step::Upto(reached, pruned))
    }

    /// What [`Store::prune_step`] would delete in `(after, upto]`, a page at a time: how far the
    /// page goes, and what is in it.
    pub fn survey_step(&self, after: i64, upto: i64, letters_too: bool) -> Result<(i64, Pruned)> {
        let page = list(&self.conn, after, upto).map_err(|e| database(&e, "looking for old events"))?;
        let mut pruned = Pruned::default();
        for old in &page {
            pruned.add(old, letters_too);
        }
        Ok((reached(&page, upto), pruned))
    }

    /// Whether an event of that id is stored.
    pub fn has(&self, id: i64) -> Result<bool> {
        self.conn
            .prepare_cached("SELECT 1 FROM events WHERE id = ?")
            .and_then(|mut s| s.exists([id]))
            .map_err(|e| database(&e, "looking for an event"))
    }

    /// The oldest event after `id`, if there is one.
    pub fn first_after(&self, id: i64) -> Result<Option<i64>> {
        self.conn
            .prepare_cached("SELECT id FROM events WHERE id > ? ORDER BY id LIMIT 1")
            .and_then(|mut s| s.query_row([id], |row| row.get(0)).optional())
            .map_err(|e| database(&e, "looking for the next event"))
    }
}

impl Pruned {
    pub fn plus(self, more: Pruned) -> Pruned {
        Pruned {
            events: self.events + more.events,
            bytes: self.bytes + more.bytes,
            dead_letters: self.dead_letters + more.dead_letters,
        }
    }

    fn add(&mut self, old: &Old, letters_too: bool) {
        self.dead_letters += u64::from(old.dead_letter);
        if letters_too || !old.dead_letter {
            self.events += 1;
            self.bytes += old.bytes;
        }
    }
}

/// Whether a subscription may have something pending up to `upto` that it had not when it was seen.
fn wants_more(now: &Subscription, seen: &[Subscription], upto: i64) -> bool {
    let same = |then: &Subscription| {
        then.consumer == now.consumer && then.filter == now.filter && then.last_acked_id <= now.last_acked_id
    };
    now.last_acked_id < upto && !seen.iter().any(same)
}

fn delete(
    conn: &Connection,
    after: i64,
    upto: i64,
    letters_too: bool,
    began: Instant,
) -> rusqlite::Result<(i64, Pruned)> {
    let mut pruned = Pruned::default();
    let mut at = after;
    let mut delete = conn.prepare_cached("DELETE FROM events WHERE id = ?")?;
    'step: while at < upto {
        let page = list(conn, at, upto)?;
        for old in &page {
            if at > after && began.elapsed() >= STEP_TIME {
                break 'step;
            }
            if letters_too || !old.dead_letter {
                delete.execute([old.id])?;
            }
            pruned.add(old, letters_too);
            at = old.id;
        }
        at = reached(&page, upto);
    }
    if letters_too {
        // Also those whose event another program deleted.
        conn.execute("DELETE FROM dead_letters WHERE event_id > ? AND event_id <= ?", [after, at])?;
    }
    Ok((at, pruned))
}

/// The next events in `(after, upto]`, at most [`PAGE`] of them.
fn list(conn: &Connection, after: i64, upto: i64) -> rusqlite::Result<Vec<Old>> {
    let mut statement = conn.prepare_cached(
        "SELECT id, octet_length(content) + coalesce(octet_length(metadata), 0), \
                id IN (SELECT event_id FROM dead_letters) \
         FROM events WHERE id > ? AND id <= ? ORDER BY id LIMIT ?",
    )?;
    let rows = statement.query_map(params![after, upto, PAGE as i64], |row| {
        let bytes: i64 = row.get(1)?;
        Ok(Old { id: row.get(0)?, bytes: bytes.unsigned_abs(), dead_letter: row.get(2)? })
    })?;
    rows.collect()
}

/// How far a page goes: to its last event, or to the end when it is not full.
fn reached(page: &[Old], upto: i64) -> i64 {
    match page {
        [.., last] if page.len() == PAGE => last.id,
        _ => upto,
    }
}
