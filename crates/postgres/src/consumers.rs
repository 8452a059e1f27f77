//! Subscriptions, cursors, the recorded state of runs, and the last runs. Functions that change any of them are
//! called in a transaction that has the lock of the consumer.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::{Duration, UNIX_EPOCH};

use postgres::Row;
use thread::model::figures::{Counted, Figures};
use thread::model::run::{Crew, Crews, RUNS_KEPT, Run, RunState, TAIL_KEPT, end_of};
use thread::model::subscription::{ConsumerId, HeldLease, NewSubscription, ScanWatermark, Subscription};
use thread::model::time;
use thread::store::{FilterFailure, Move, Moved, RunUpdate, count_passed};
use thread::{Error, Result};

use crate::clock::now;
use crate::json::{from_json, to_json};
use crate::link::{Session, bytes, int, text};
use crate::machine::Machine;
use crate::revision::NEXT_REVISION;
use crate::{dead_letters, figures, lease, ledger, steps};

/// One subscription, or all.
pub fn list(session: &mut Session<'_>, consumer: Option<&ConsumerId>) -> Result<Vec<Subscription>> {
    let sql = "SELECT c.consumer_id, c.handler_cmd, c.filter, c.cwd, c.token, c.revision, c.scanned_filter, \
                      c.scanned_from, c.scanned_upto, c.filter_errors, c.filter_error_id, c.options, c.run, \
                      p.last_acked_id, c.rewinds, p.updated_at, d.dead, d.retry, \
                      l.holder, l.epoch, l.renewal, l.length_ms, l.host, \
                      (extract(epoch FROM clock_timestamp()) * 1000)::bigint - l.renewal, \
                      (SELECT max(version) FROM @versions) \
               FROM @consumers c LEFT JOIN @cursors p USING (thread, consumer_id) \
                    LEFT JOIN @leases l USING (thread, consumer_id) \
                    CROSS JOIN LATERAL (SELECT count(*) AS dead, count(*) FILTER (WHERE retry) AS retry \
                      FROM @dead_letters d WHERE d.thread = c.thread AND d.consumer_id = c.consumer_id) AS d \
               WHERE c.thread = $1 AND ($2::text IS NULL OR c.consumer_id = $2) ORDER BY c.consumer_id";
    let asked = now();
    let rows = session.rows(sql, &[text(&consumer.map(ConsumerId::as_str))])?;
    match rows.first() {
        Some(row) => session.known.note(row.get(24)),
        None => session.look_again()?,
    }
    let machine = Machine::of(session.target)?;
    let mut all = Vec::with_capacity(rows.len());
    for row in &rows {
        let mut subscription = map(row);
        let mut held_by = held_by(&machine, row, asked);
        let mut leases: Vec<HeldLease> = lease_of(row).into_iter().collect();
        let crews = &subscription.state.crews;
        // Reading all, as for people, also shows the lease of a machine that is alone.
        if crews.keys().any(|other| other != machine.id()) || (consumer.is_none() && !crews.is_empty()) {
            let asked = now();
            let all = lease::of_pool(session, &subscription.consumer)?;
            leases = all.iter().filter_map(held).collect();
            for lease in all.into_iter().filter(|lease| lease.is_held_elsewhere(&machine, asked)) {
                held_by.get_or_insert(lease.host);
                subscription.elsewhere.extend(lease.holder);
            }
        }
        let last: Option<String> = row.get(22);
        let ran_on = held_by.clone().or(last.filter(|host| *host != machine.host()));
        all.push(Subscription { held_by, ran_on, leases, ..subscription });
    }
    Ok(all)
}

/// The lease of the consumer's own row, if somebody has it.
fn stored_lease(row: &Row) -> Option<lease::Stored> {
    Some(lease::Stored {
        name: row.get(0),
        holder: Some(row.get::<_, Option<String>>(18)?),
        epoch: row.get(19),
        renewal: row.get(20),
        length_ms: row.get(21),
        host: row.get(22),
        age: row.get(23),
    })
}

/// The machine that has the lease, if that is another one and may be alive.
fn held_by(machine: &Machine, row: &Row, asked: i64) -> Option<String> {
    stored_lease(row).filter(|lease| lease.is_held_elsewhere(machine, asked)).map(|lease| lease.host)
}

/// The lease of a consumer's runs, if one machine has it for itself.
fn lease_of(row: &Row) -> Option<HeldLease> {
    let lease = stored_lease(row).filter(|lease| lease.holder.as_deref() != Some(lease::ALL))?;
    held(&lease).map(|held| HeldLease { machine: None, ..held })
}

/// An older program counts renewals instead of noting their times.
fn held(lease: &lease::Stored) -> Option<HeldLease> {
    const OLDEST: i64 = 1_000_000_000_000;
    let age = Duration::from_millis(u64::try_from(lease.age).unwrap_or(0));
    let renewal = u64::try_from(lease.renewal).ok().filter(|_| lease.renewal >= OLDEST)?;
    let renewed = UNIX_EPOCH + Duration::from_millis(renewal);
    Some(HeldLease { host: lease.host.clone(), machine: lease.holder.clone(), renewed: renewed.into(), age })
}

pub fn one(session: &mut Session<'_>, consumer: &ConsumerId) -> Result<Option<Subscription>> {
    Ok(list(session, Some(consumer))?.pop())
}

fn map(row: &Row) -> Subscription {
    let watermark = match (row.get(6), row.get(7), row.get(8)) {
        (Some(filter), Some(from), Some(upto)) => Some(ScanWatermark { filter, from, upto }),
        _ => None,
    };
    let cwd: Option<Vec<u8>> = row.get(3);
    Subscription {
        consumer: ConsumerId::stored(row.get::<_, String>(0)),
        handler_cmd: row.get(1),
        filter: row.get(2),
        cwd: cwd.map(|bytes| OsString::from_vec(bytes).into()),
        token: row.get(4),
        revision: row.get(5),
        watermark,
        filter_errors: row.get(9),
        filter_error_id: row.get(10),
        options: from_json(row.get(11)),
        state: from_json(row.get(12)),
        last_acked_id: row.get::<_, Option<i64>>(13).unwrap_or(0),
        rewinds: row.get(14),
        updated_at: row.get(15),
        dead: row.get(16),
        dead_to_retry: row.get(17),
        held_by: None,
        ran_on: None,
        elsewhere: Vec::new(),
        leases: Vec::new(),
    }
}

pub fn subscribe(session: &mut Session<'_>, new: &NewSubscription) -> Result<Option<Moved>> {
    let consumer = new.consumer.as_str();
    let run = match one(session, &new.consumer)? {
        None => at_work(session, new)?,
        Some(before) if new.replace && new.is_like(&before) => return seek(session, new),
        Some(before) if new.replace && new.adjusts(&before) => {
            ledger::drop_waits(session, &new.consumer)?;
            let sql = format!(
                "UPDATE @consumers SET options = $3, run = $4, revision = {NEXT_REVISION} \
                 WHERE thread = $1 AND consumer_id = $2"
            );
            let (options, run) = (to_json(&new.options), to_json(&before.state.adjusted()));
            session.rows(&sql, &[text(&consumer), text(&options), text(&run)])?;
            return seek(session, new);
        }
        Some(before) if new.replace => {
            remove(session, &new.consumer)?;
            ledger::drop_open(session, &new.consumer)?;
            Some(to_json(&before.state.replaced()))
        }
        Some(_) => return Err(Error::AlreadySubscribed(new.consumer.clone())),
    };
    let sql = "INSERT INTO @consumers (thread, consumer_id, handler_cmd, filter, cwd, options, run) \
               VALUES ($1, $2, $3, $4, $5, $6, $7)";
    let cwd = new.cwd.as_ref().map(|cwd| cwd.as_os_str().as_bytes());
    let options = to_json(&new.options);
    session.rows(
        sql,
        &[
            text(&consumer),
            text(&new.handler_cmd),
            text(&new.filter),
            bytes(&cwd),
            text(&options),
            text(&run),
        ],
    )?;
    seek(session, new)
}

/// The state of a new subscription, if machines are still at work for an earlier one.
fn at_work(session: &mut Session<'_>, new: &NewSubscription) -> Result<Option<String>> {
    let leases = lease::of_pool(session, &new.consumer)?;
    let crews: Crews =
        leases.into_iter().filter_map(|lease| Some((lease.holder?, Crew::default()))).collect();
    let state = RunState { crews, ..RunState::default() };
    Ok((!state.crews.is_empty()).then(|| to_json(&state)))
}

fn seek(session: &mut Session<'_>, new: &NewSubscription) -> Result<Option<Moved>> {
    new.from.map(|id| move_cursor(session, &new.consumer, id, Move::Seek)).transpose()
}

pub fn unsubscribe(session: &mut Session<'_>, consumer: &ConsumerId) -> Result<Subscription> {
    let removed = one(session, consumer)?.ok_or_else(|| Error::UnknownConsumer(consumer.clone()))?;
    remove(session, consumer)?;
    ledger::drop_open(session, consumer)?;
    Ok(removed)
}

fn remove(session: &mut Session<'_>, consumer: &ConsumerId) -> Result<()> {
    let sql = "DELETE FROM @consumers WHERE thread = $1 AND consumer_id = $2";
    session.rows(sql, &[text(&consumer.as_str())]).map(drop)
}

pub fn move_cursor(session: &mut Session<'_>, consumer: &ConsumerId, id: i64, how: Move) -> Result<Moved> {
    lease::fence(session, consumer)?;
    let (moved, target) = plan_move(session, consumer, id, how)?;
    if let Some(target) = target {
        let sql = "WITH rewound AS (UPDATE @consumers SET rewinds = rewinds + 1 WHERE thread = $1 AND consumer_id = $2 \
                     AND $3 < (SELECT last_acked_id FROM @cursors WHERE thread = $1 AND consumer_id = $2)) \
                   INSERT INTO @cursors (thread, consumer_id, last_acked_id, updated_at) VALUES ($1, $2, $3, $4) \
                   ON CONFLICT (thread, consumer_id) DO UPDATE SET last_acked_id = $3, updated_at = $4";
        session.rows(sql, &[text(&consumer.as_str()), int(&target), text(&time::now())])?;
    }
    if how == Move::Seek {
        let is_kept = one(session, consumer)?.is_some_and(|now| now.options.finishes_singly());
        ledger::clear(session, consumer, is_kept)?;
    }
    Ok(moved)
}

/// Moves a cursor forward, and counts what it passes.
pub fn acknowledge(
    session: &mut Session<'_>,
    consumer: &ConsumerId,
    id: i64,
    matching: Option<&[i64]>,
) -> Result<Moved> {
    let sql = "SELECT last_acked_id FROM @cursors WHERE thread = $1 AND consumer_id = $2";
    let before = session.number(sql, &[text(&consumer.as_str())])?.unwrap_or(0);
    let moved = move_cursor(session, consumer, id, Move::Acknowledge)?;
    let mut counted = Figures::default();
    counted.handled(count_passed(before, moved, matching), None);
    if !counted.is_empty() {
        figures::add(session, &Counted::now(consumer, counted))?;
    }
    Ok(moved)
}

/// The resulting cursor, and the id to write, if any.
pub fn plan_move(
    session: &mut Session<'_>,
    consumer: &ConsumerId,
    id: i64,
    how: Move,
) -> Result<(Moved, Option<i64>)> {
    let sql = "SELECT (SELECT last_acked_id FROM @cursors WHERE thread = $1 AND consumer_id = $2), \
                      (SELECT newest FROM @counters WHERE thread IN ($1, -$1)) \
               FROM @consumers WHERE thread = $1 AND consumer_id = $2";
    let row = session.row(sql, &[text(&consumer.as_str())])?;
    let row = row.ok_or_else(|| Error::UnknownConsumer(consumer.clone()))?;
    let number = |column: usize| row.get::<_, Option<i64>>(column).unwrap_or(0);
    let (at, newest) = (number(0), number(1));
    let target = id.max(0).min(newest);
    let moved = if target < id { Moved::Clamped(target) } else { Moved::To(target) };
    Ok(if target < at && how == Move::Acknowledge {
        (Moved::Ahead(at), None)
    } else {
        (moved, (target != at).then_some(target))
    })
}

pub fn update_run(
    session: &mut Session<'_>,
    seen: &Subscription,
    update: &RunUpdate,
) -> Result<Option<Subscription>> {
    let consumer = &seen.consumer;
    let facts = |s: &Subscription| (s.revision, s.last_acked_id, s.rewinds, s.dead_to_retry);
    let current = one(session, consumer)?;
    if !current.is_some_and(|current| current.is_same(seen) && facts(&current) == facts(seen)) {
        return Ok(None);
    }
    lease::fence(session, consumer)?;
    if let Some(change) = &update.step
        && !steps::change(session, change)?
    {
        return Ok(None);
    }
    let sql = format!(
        "UPDATE @consumers SET run = $3, revision = {NEXT_REVISION} WHERE thread = $1 AND consumer_id = $2"
    );
    session.rows(&sql, &[text(&consumer.as_str()), text(&to_json(&update.state))])?;
    for change in &update.dead_letters {
        dead_letters::update(session, consumer, change)?;
    }
    for run in &update.runs {
        insert_run(session, consumer, run)?;
    }
    if let Some((at, counted)) = update.figures.as_ref().filter(|(_, counted)| !counted.is_empty()) {
        figures::add(session, &Counted::of(consumer, *at, counted.clone()))?;
    }
    if update.cancel_retries {
        dead_letters::cancel_retries(session, consumer)?;
    }
    if let Some(id) = update.acknowledge {
        move_cursor(session, consumer, id, Move::Acknowledge)?;
    }
    if seen.options.finishes_singly()
        && let Some(cursor) = ledger::apply(session, consumer, seen.last_acked_id, update)?
    {
        move_cursor(session, consumer, cursor, Move::Acknowledge)?;
    }
    one(session, consumer)
}

fn insert_run(session: &mut Session<'_>, consumer: &ConsumerId, run: &Run) -> Result<()> {
    let host = Some(Machine::of(session.target)?.host());
    // A text cannot contain U+0000 here, and this one is for people.
    let tail = run.tail.as_ref().map(|tail| tail.replace('\0', "\u{fffd}"));
    let tail = tail.map(|tail| end_of(&tail, TAIL_KEPT).to_owned());
    let run = to_json(&Run { host, tail, ..run.clone() });
    let sql = "INSERT INTO @runs (thread, consumer_id, number, run) \
               SELECT $1, $2, coalesce(max(number), 0) + 1, $3 FROM @runs WHERE thread = $1 AND consumer_id = $2 \
               RETURNING number";
    let number = session.number(sql, &[text(&consumer.as_str()), text(&run)])?.unwrap_or(0);
    let last = number.saturating_sub(RUNS_KEPT as i64);
    let sql = "DELETE FROM @runs WHERE thread = $1 AND consumer_id = $2 AND number <= $3";
    session.rows(sql, &[text(&consumer.as_str()), int(&last)]).map(drop)
}

pub fn runs(session: &mut Session<'_>, consumer: &ConsumerId, most: usize) -> Result<Vec<Run>> {
    // Without the last field, which may be long: there are a thousand runs.
    let sql = "SELECT number, split_part(run, $4, 1) || CASE WHEN strpos(run, $4) > 0 THEN '}' ELSE '' END \
               FROM @runs WHERE thread = $1 AND consumer_id = $2 ORDER BY number DESC LIMIT $3";
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let rows = session.rows(sql, &[text(&consumer.as_str()), int(&most), text(&",\"tail\":\"")])?;
    Ok(rows.iter().rev().filter_map(read_run).collect())
}

pub fn run(session: &mut Session<'_>, consumer: &ConsumerId, number: i64) -> Result<Option<Run>> {
    let sql = "SELECT number, run FROM @runs WHERE thread = $1 AND consumer_id = $2 AND number = $3";
    let row = session.row(sql, &[text(&consumer.as_str()), int(&number)])?;
    Ok(row.as_ref().and_then(read_run))
}

/// What another program may have stored in another form is left out.
fn read_run(row: &Row) -> Option<Run> {
    let run: Run = serde_json::from_str(row.get(1)).ok()?;
    Some(Run { number: row.get(0), ..run })
}

pub fn remember_scan(
    session: &mut Session<'_>,
    seen: &Subscription,
    upto: i64,
    failures: &[FilterFailure],
) -> Result<usize> {
    let cursor = seen.last_acked_id;
    // Without a filter, there is nothing to be remembered but the failures, which are those of a key.
    let filter = seen.filter_text();
    let from = match &seen.watermark {
        Some(mark) if Some(&*mark.filter) == filter && mark.from <= cursor && mark.upto >= cursor => {
            mark.from
        }
        _ => cursor,
    };
    let consumer = seen.consumer.as_str();
    // Another process may have evaluated the filter on the same events in the meantime.
    let sql = "SELECT filter_error_id FROM @consumers WHERE thread = $1 AND consumer_id = $2";
    let known = session.number(sql, &[text(&consumer)])?.unwrap_or(0);
    let count = failures.iter().filter(|failure| failure.id > known).count();
    let newest = failures.last().map_or(0, |failure| failure.id);
    let sql = "UPDATE @consumers SET scanned_filter = $4, scanned_from = $5, scanned_upto = $6, \
                      filter_errors = filter_errors + $7, filter_error_id = greatest(filter_error_id, $8) \
               WHERE thread = $1 AND consumer_id = $2 AND token = $3";
    session.rows(
        sql,
        &[
            text(&consumer),
            text(&seen.token),
            text(&filter),
            int(&from),
            int(&upto),
            int(&(count as i64)),
            int(&newest),
        ],
    )?;
    Ok(count)
}
