//! Deletes old events, in short transactions.

use postgres::Row;
use postgres::types::Type;
use thread::Result;
use thread::model::figures::Deleted;
use thread::model::subscription::Subscription;
use thread::store::{PruneRange, PruneStep, Pruned};

use crate::link::{Session, int, text};
use crate::{consumers, figures};

/// Events of a step.
const PAGE: usize = 500;

/// Counts what the next step would delete.
pub fn count(session: &mut Session<'_>, range: &PruneRange<'_>) -> Result<PruneStep> {
    let page = list(session, range)?;
    Ok(PruneStep::Upto(page.upto, page.pruned))
}

/// Deletes what is next. Called in a transaction that excludes changes of consumers.
pub fn step(session: &mut Session<'_>, range: &PruneRange<'_>) -> Result<PruneStep> {
    if let Some(seen) = range.seen {
        let now = consumers::list(session, None)?;
        if now.iter().any(|now| wants_more(now, seen, range.upto)) {
            return Ok(PruneStep::Overtaken);
        }
    }
    let page = list(session, range)?;
    let sql = "DELETE FROM @events WHERE thread = $1 AND id = ANY($2)";
    session.rows(sql, &[(&page.ids, Type::INT8_ARRAY)])?;
    for counted in page.deleted.counted() {
        figures::add(session, &counted)?;
    }
    if range.dead_letters {
        let sql = "DELETE FROM @dead_letters d WHERE thread = $1 AND event_id > $2 AND event_id <= $3 \
                   AND NOT EXISTS (SELECT 1 FROM @events e WHERE e.thread = $1 AND e.id = d.event_id)";
        session.rows(sql, &[int(&range.after), int(&page.upto)])?;
    }
    Ok(PruneStep::Upto(page.upto, page.pruned))
}

/// Whether a subscription may have something pending up to `upto` that it did not have when `seen` was read.
fn wants_more(now: &Subscription, seen: &[Subscription], upto: i64) -> bool {
    let same = |then: &Subscription| {
        then.consumer == now.consumer && then.filter == now.filter && then.last_acked_id <= now.last_acked_id
    };
    now.last_acked_id < upto && !seen.iter().any(same)
}

/// What one step deletes.
struct Page {
    ids: Vec<i64>,
    /// Everything up to this id is in the step.
    upto: i64,
    pruned: Pruned,
    deleted: Deleted,
}

fn list(session: &mut Session<'_>, range: &PruneRange<'_>) -> Result<Page> {
    let sql = "SELECT id, (octet_length(content) + coalesce(octet_length(metadata), 0))::bigint, \
                      EXISTS (SELECT 1 FROM @dead_letters d WHERE d.thread = $1 AND d.event_id = e.id), left(created_at, 64) \
               FROM @events e WHERE thread = $1 AND id > $2 AND id <= $3 AND ($4::text IS NULL OR subtype = $4) \
               ORDER BY id LIMIT $5";
    let rows = session
        .rows(sql, &[int(&range.after), int(&range.upto), text(&range.subtype), int(&(PAGE as i64))])?;
    let upto = match rows.last() {
        Some(last) if rows.len() == PAGE => last.get(0),
        _ => range.upto.max(range.after),
    };
    let mut page = Page { ids: Vec::new(), upto, pruned: Pruned::default(), deleted: Deleted::default() };
    for row in &rows {
        page.add(row, range);
    }
    Ok(page)
}

impl Page {
    fn add(&mut self, row: &Row, range: &PruneRange<'_>) {
        let is_dead: bool = row.get(2);
        self.pruned.dead_letters += u64::from(is_dead);
        if range.dead_letters || !is_dead {
            self.ids.push(row.get(0));
            self.deleted.add(row.get(0), row.get(3));
            self.pruned.events += 1;
            self.pruned.bytes += row.get::<_, i64>(1).unsigned_abs();
        }
    }
}
