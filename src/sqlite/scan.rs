//! Evaluates a filter on stored events.
//!
//! One statement steps through the events and returns for each whether it matches. If the filter fails on an
//! event, the statement ends, and the next one begins after it. The event does not match, unless the filter failed
//! because a text is not JSON: then it is evaluated again, with functions that give NULL for that.

use std::ops::ControlFlow;
use std::time::Instant;

use rusqlite::limits::Limit;
use rusqlite::{Connection, ErrorCode, Statement, params};

use super::{events, first_after};
use crate::model::filter::{self, Filter};
use crate::store::{FilterFailure, Scan, ScanRange};

/// Maximum number of ids per statement, so that no read transaction lasts long.
const STEP: i64 = 64 * 1024;

/// At a deadline a statement is interrupted after at most so many instructions, any of which may have to parse
/// a MiB.
const CHECK_EVERY: i32 = 50;

pub fn scan(conn: &Connection, filter: &Filter, range: ScanRange) -> rusqlite::Result<Scan> {
    let mut scan = Scan { upto: range.after, ..Scan::default() };
    let limits = filter.set_limits(conn)?;
    let scanned = scan_steps(conn, filter, range, &mut scan);
    limits.set(conn)?;
    match scanned {
        Err(e) if e.sqlite_error_code() != Some(ErrorCode::OperationInterrupted) => Err(e),
        _ => Ok(scan),
    }
}

/// Like [`scan`], but the deadline also interrupts the evaluation of an event.
pub fn scan_strictly(conn: &mut Connection, filter: &Filter, range: ScanRange) -> rusqlite::Result<Scan> {
    if let Some(until) = range.until {
        conn.progress_handler(CHECK_EVERY, Some(move || Instant::now() >= until))?;
    }
    let scanned = scan(conn, filter, range);
    conn.progress_handler(0, None::<fn() -> bool>)?;
    scanned
}

fn scan_steps(conn: &Connection, filter: &Filter, range: ScanRange, scan: &mut Scan) -> rusqlite::Result<()> {
    let sql = format!("SELECT id, {} FROM events WHERE id > ? AND id <= ? ORDER BY id", filter.condition());
    let mut statement = conn.prepare_cached(&sql)?;
    while scan.upto < range.upto && scan.ids.len() < range.most {
        // One snapshot per step, because the event on which the filter failed must be found again.
        let _moment = conn.unchecked_transaction()?;
        let end = range.upto.min(scan.upto.saturating_add(STEP));
        match scan_step(&mut statement, range, end, scan) {
            Ok(ControlFlow::Continue(())) => scan.upto = end,
            Ok(ControlFlow::Break(())) => return Ok(()),
            Err(e) if filter::is_eval_error(&e) => {
                let Some(id) = first_after(conn, scan.upto)? else { return Err(e) };
                match evaluate_again(conn, filter, id, &e)? {
                    Ok(true) => scan.ids.push(id),
                    Ok(false) => {}
                    Err(message) => scan.failures.push(FilterFailure { id, message }),
                }
                scan.upto = id;
                if range.until.is_some_and(|until| Instant::now() >= until) {
                    return Ok(());
                }
            }
            Err(e) => return Err(e),
        }
        // Skip gaps in the ids in one step: other programs may leave gaps of any width.
        if scan.upto == end {
            let next = first_after(conn, end)?.unwrap_or(i64::MAX);
            scan.upto = range.upto.min(next - 1).max(end);
        }
    }
    Ok(())
}

/// The filter's result for an event on which it failed with `error`, or the message of the failure. It has a result if
/// it failed because a text is not JSON.
fn evaluate_again(
    conn: &Connection,
    filter: &Filter,
    id: i64,
    error: &rusqlite::Error,
) -> rusqlite::Result<Result<bool, String>> {
    if !filter::is_not_json(error) {
        return Ok(Err(filter::message(error)));
    }
    // The limits do not apply to reading the event.
    conn.set_limit(Limit::SQLITE_LIMIT_LENGTH, i32::MAX)?;
    let mut result = Ok(false);
    let read = events::read(conn, (id.saturating_sub(1), id), 1, u64::MAX, &mut |capped| {
        result = filter.matches(&capped.row).map_err(|e| e.0);
        ControlFlow::Break(())
    });
    filter.set_limits(conn)?;
    read.map(|()| result)
}

/// Evaluates the events up to `end`. Breaks on enough matches or at the deadline.
fn scan_step(
    statement: &mut Statement<'_>,
    range: ScanRange,
    end: i64,
    scan: &mut Scan,
) -> rusqlite::Result<ControlFlow<()>> {
    let mut rows = statement.query(params![scan.upto, end])?;
    loop {
        let Some(row) = rows.next()? else { return Ok(ControlFlow::Continue(())) };
        scan.upto = row.get(0)?;
        if row.get::<_, bool>(1)? {
            scan.ids.push(scan.upto);
            if scan.ids.len() == range.most {
                return Ok(ControlFlow::Break(()));
            }
        }
        if range.until.is_some_and(|until| Instant::now() >= until) {
            return Ok(ControlFlow::Break(()));
        }
    }
}
