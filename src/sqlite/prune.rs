//! Deletes old events, in steps short enough that no push waits long for one.

use std::time::Instant;

use rusqlite::{Connection, params};

use super::error::Doing;
use super::{Sqlite, consumers, figures, text_of};
use crate::error::Result;
use crate::model::figures::Deleted;
use crate::model::subscription::Subscription;
use crate::store::{PruneRange, PruneStep, Pruned};

/// Events listed per page.
const PAGE: usize = 500;

pub fn step(store: &mut Sqlite, range: &PruneRange<'_>) -> Result<PruneStep> {
    if range.dry_run {
        let page = list(&store.conn, range, range.after).doing("looking for old events")?;
        let mut pruned = Pruned::default();
        page.iter().for_each(|old| old.count(range, &mut pruned));
        return Ok(PruneStep::Upto(covered_upto(&page, range.upto), pruned));
    }
    store.transact("pruning", |conn| {
        if let Some(seen) = range.seen {
            let now = consumers::all(conn)?;
            if now.iter().any(|now| wants_more(now, seen, range.upto)) {
                return Ok(PruneStep::Overtaken);
            }
        }
        let (upto, pruned) = delete(conn, range)?;
        Ok(PruneStep::Upto(upto, pruned))
    })
}

/// Whether a subscription may have something pending up to `upto` that it did not have when `seen` was read.
fn wants_more(now: &Subscription, seen: &[Subscription], upto: i64) -> bool {
    let same = |then: &Subscription| {
        then.consumer == now.consumer && then.filter == now.filter && then.last_acked_id <= now.last_acked_id
    };
    now.last_acked_id < upto && !seen.iter().any(same)
}

fn delete(conn: &Connection, range: &PruneRange<'_>) -> rusqlite::Result<(i64, Pruned)> {
    let began = Instant::now();
    let (mut pruned, mut deleted) = (Pruned::default(), Deleted::default());
    let mut at = range.after;
    let mut delete = conn.prepare_cached("DELETE FROM events WHERE id = ?")?;
    'step: while at < range.upto {
        let page = list(conn, range, at)?;
        for old in &page {
            if at > range.after && began.elapsed() >= range.time {
                break 'step;
            }
            if range.dead_letters || !old.dead_letter {
                delete.execute([old.id])?;
                deleted.add(old.id, &old.created_at);
            }
            old.count(range, &mut pruned);
            at = old.id;
        }
        at = covered_upto(&page, range.upto);
    }
    deleted.counted().try_for_each(|one| figures::add(conn, &one))?;
    if range.dead_letters {
        // Includes dead letters whose event another program deleted.
        conn.execute(
            "DELETE FROM dead_letters WHERE event_id > ? AND event_id <= ? \
             AND event_id NOT IN (SELECT id FROM events)",
            [range.after, at],
        )?;
    }
    Ok((at, pruned))
}

/// An event in the range to prune.
struct OldEvent {
    id: i64,
    bytes: u64,
    dead_letter: bool,
    created_at: String,
}

impl OldEvent {
    fn count(&self, range: &PruneRange<'_>, pruned: &mut Pruned) {
        pruned.dead_letters += u64::from(self.dead_letter);
        if range.dead_letters || !self.dead_letter {
            pruned.events += 1;
            pruned.bytes += self.bytes;
        }
    }
}

/// The next events after `after`, at most [`PAGE`].
fn list(conn: &Connection, range: &PruneRange<'_>, after: i64) -> rusqlite::Result<Vec<OldEvent>> {
    let mut statement = conn.prepare_cached(
        "SELECT id, octet_length(content) + coalesce(octet_length(metadata), 0), \
                id IN (SELECT event_id FROM dead_letters), substr(created_at, 1, 64) \
         FROM events WHERE id > ? AND id <= ? AND (?3 IS NULL OR subtype = ?3) ORDER BY id LIMIT ?",
    )?;
    let rows = statement.query_map(params![after, range.upto, range.subtype, PAGE as i64], |row| {
        let bytes: i64 = row.get(1)?;
        let created_at = row.get_ref(3).map(text_of)?.unwrap_or_default();
        Ok(OldEvent { id: row.get(0)?, bytes: bytes.unsigned_abs(), dead_letter: row.get(2)?, created_at })
    })?;
    rows.collect()
}

/// The id up to which a page covers the range: its last event, or the end if the page is not full.
fn covered_upto(page: &[OldEvent], upto: i64) -> i64 {
    match page {
        [.., last] if page.len() == PAGE => last.id,
        _ => upto,
    }
}
