//! What consumers have done past their cursors, where events finish singly. The tables are there as soon as one does.

use postgres::types::Type;
use thread::Result;
use thread::model::ledger::{Asleep, Claim, EventWait, Ledger, LedgerChange, Taken};
use thread::model::subscription::ConsumerId;
use thread::model::time::{self, Moment};
use thread::store::RunUpdate;

use crate::link::{Session, int, text};
use crate::revision::NEXT_REVISION;

pub fn load(session: &mut Session<'_>, consumer: &ConsumerId) -> Result<Ledger> {
    // In one statement, so that all is of one moment: what has gone from one table may have come to another one. A schema
    // without steps lacks the column `asleep`.
    let sql = "SELECT 0, coalesce(max(last_acked_id), 0), 0::int8, 0::int8, 0::int8, '', '', false FROM @cursors \
                 WHERE thread = $1 AND consumer_id = $2 \
               UNION ALL SELECT 1, first_id, last_id, 0, 0, '', '', false FROM @finished \
                 WHERE thread = $1 AND consumer_id = $2 \
               UNION ALL SELECT 2, event_id, attempts, deferred, coalesce((to_jsonb(w) ->> 'asleep')::int8, 0), since, \
                 until, false FROM @waits AS w WHERE thread = $1 AND consumer_id = $2 \
               UNION ALL SELECT 3, event_id, place, coalesce(until, 0), 0, since, token, dead_letter FROM @claims \
                 WHERE thread = $1 AND consumer_id = $2";
    let (mut cursor, mut finished, mut waits, mut claims) = (0, Vec::new(), Vec::new(), Vec::new());
    for row in session.rows(sql, &[text(&consumer.as_str())])? {
        let number = |column: usize| u32::try_from(row.get::<_, i64>(column)).unwrap_or(u32::MAX);
        let time = |column: usize| time::parse(row.get(column)).unwrap_or_default();
        let id = row.get(1);
        match row.get::<_, i32>(0) {
            0 => cursor = id,
            1 => finished.push((id, row.get(2))),
            2 => {
                let (attempts, deferred, asleep) = (number(2), number(3), Asleep::of_number(row.get(4)));
                let (since, until) = (time(5), time(6));
                waits.push((id, EventWait { attempts, deferred, since, until, asleep }));
            }
            _ => {
                let (place, token) = (number(2), row.get::<_, Option<String>>(6));
                // A place is that of a machine.
                let (machine, token) = if place > 0 { (token, None) } else { (None, token) };
                let until = Moment { clock: String::new(), at: row.get(3) };
                let taken = token.map(|token| Taken { token, until });
                claims
                    .push((id, Claim { place, since: time(5), taken, machine, is_dead_letter: row.get(7) }));
            }
        }
    }
    Ok(Ledger::new(cursor, finished, waits, claims))
}

/// Says that the event $3 is not finished.
const IS_UNFINISHED: &str = "NOT EXISTS (SELECT 1 FROM @finished WHERE thread = $1 AND consumer_id = $2 \
                             AND first_id <= $3 AND last_id >= $3)";

/// Records the changes of an update. Returns where the cursor is to be moved to, if anywhere.
pub fn apply(
    session: &mut Session<'_>,
    consumer: &ConsumerId,
    cursor: i64,
    update: &RunUpdate,
) -> Result<Option<i64>> {
    let name = consumer.as_str();
    for change in &update.ledger {
        match change {
            LedgerChange::Finish { first, last } => {
                // Those that it overlaps or touches become one with it.
                let sql = "WITH others AS (DELETE FROM @finished WHERE thread = $1 AND consumer_id = $2 \
                             AND first_id <= $4 + 1 AND last_id >= $3 - 1 RETURNING first_id, last_id), \
                           over AS (DELETE FROM @waits WHERE thread = $1 AND consumer_id = $2 \
                             AND event_id BETWEEN $3 AND $4), \
                           unclaimed AS (DELETE FROM @claims WHERE thread = $1 AND consumer_id = $2 \
                             AND event_id BETWEEN $3 AND $4 AND NOT dead_letter) \
                           INSERT INTO @finished (thread, consumer_id, first_id, last_id) \
                           SELECT $1, $2, least($3, min(first_id)), greatest($4, max(last_id)) FROM others";
                session.rows(sql, &[text(&name), int(first), int(last)])?;
            }
            LedgerChange::Wait { id, wait } => {
                // A schema without steps lacks the column.
                let asleep = wait.asleep.number();
                let (column, value, set) = match session.known.steps || asleep != 0 {
                    true => (", asleep", ", $8", ", asleep = $8"),
                    false => ("", "", ""),
                };
                let sql = format!(
                    "INSERT INTO @waits (thread, consumer_id, event_id, attempts, deferred, since, until{column}) \
                     SELECT $1, $2, $3, $4, $5, $6, $7{value} WHERE {IS_UNFINISHED} AND $8::int8 IS NOT NULL \
                     ON CONFLICT (thread, consumer_id, event_id) DO UPDATE \
                     SET attempts = $4, deferred = $5, since = $6, until = $7{set}"
                );
                let (attempts, deferred) = (i64::from(wait.attempts), i64::from(wait.deferred));
                let (since, until) = (time::format(wait.since), time::format(wait.until));
                let (attempts, deferred) = (int(&attempts), int(&deferred));
                let (since, until) = (text(&since), text(&until));
                let wait = [text(&name), int(id), attempts, deferred, since, until, int(&asleep)];
                session.rows(&sql, &wait)?;
            }
            LedgerChange::Claim { id, claim: Some(claim) } => {
                let Claim { place, since, taken, machine, is_dead_letter } = claim;
                let sql = format!(
                    "INSERT INTO @claims (thread, consumer_id, event_id, place, since, token, until, dead_letter) \
                     SELECT $1, $2, $3, $4, $5, $6, $7, $8 WHERE $8 OR {IS_UNFINISHED} \
                     ON CONFLICT (thread, consumer_id, event_id) DO UPDATE \
                     SET place = $4, since = $5, token = $6, until = $7, dead_letter = $8"
                );
                let (place, since) = (i64::from(*place), time::format(*since));
                let token = taken.as_ref().map(|taken| &taken.token).or(machine.as_ref());
                let until = taken.as_ref().map(|taken| taken.until.at);
                let claim = [
                    text(&name),
                    int(id),
                    int(&place),
                    text(&since),
                    (&token as _, Type::TEXT),
                    (&until as _, Type::INT8),
                    (is_dead_letter as _, Type::BOOL),
                ];
                session.rows(&sql, &claim)?;
            }
            LedgerChange::Claim { id, claim: None } => {
                let sql = "DELETE FROM @claims WHERE thread = $1 AND consumer_id = $2 AND event_id = $3";
                session.rows(sql, &[text(&name), int(id)])?;
            }
        }
    }
    let cursor = update.acknowledge.unwrap_or(0).max(cursor);
    let sql = "SELECT max(last_id) FROM @finished WHERE thread = $1 AND consumer_id = $2 AND first_id <= $3";
    let reached =
        session.number(sql, &[text(&name), int(&cursor.saturating_add(1))])?.unwrap_or(0).max(cursor);
    let sql = "WITH past AS (DELETE FROM @finished WHERE thread = $1 AND consumer_id = $2 AND last_id <= $3), \
               unclaimed AS (DELETE FROM @claims WHERE thread = $1 AND consumer_id = $2 AND event_id <= $3 \
                 AND NOT dead_letter) \
               DELETE FROM @waits WHERE thread = $1 AND consumer_id = $2 AND event_id <= $3";
    session.rows(sql, &[text(&name), int(&reached)])?;
    Ok((reached > cursor).then_some(reached))
}

fn has_tables(session: &mut Session<'_>) -> Result<bool> {
    let sql = "SELECT ($1::text IS NOT NULL AND to_regclass($$@claims$$) IS NOT NULL)::int::int8";
    Ok(session.number(sql, &[])? == Some(1))
}

/// Forgets everything: the cursor alone says what is finished. `is_kept`: the consumer finishes events singly now.
pub fn clear(session: &mut Session<'_>, consumer: &ConsumerId, is_kept: bool) -> Result<()> {
    if !has_tables(session)? {
        return Ok(());
    }
    let name = consumer.as_str();
    let sql = "DELETE FROM @finished WHERE thread = $1 AND consumer_id = $2";
    session.rows(sql, &[text(&name)])?;
    drop_open(session, consumer)?;
    if is_kept {
        // For a supervisor: what its handler has finishes nothing any more.
        let sql = format!(
            "UPDATE @consumers SET rewinds = rewinds + 1, revision = {NEXT_REVISION} \
             WHERE thread = $1 AND consumer_id = $2"
        );
        session.rows(&sql, &[text(&name)])?;
    }
    Ok(())
}

pub fn drop_waits(session: &mut Session<'_>, consumer: &ConsumerId) -> Result<()> {
    if !has_tables(session)? {
        return Ok(());
    }
    let sql = "DELETE FROM @waits WHERE thread = $1 AND consumer_id = $2";
    session.rows(sql, &[text(&consumer.as_str())]).map(drop)
}

/// Forgets waits and claims.
pub fn drop_open(session: &mut Session<'_>, consumer: &ConsumerId) -> Result<()> {
    if !has_tables(session)? {
        return Ok(());
    }
    let sql = "WITH unclaimed AS (DELETE FROM @claims WHERE thread = $1 AND consumer_id = $2) \
               DELETE FROM @waits WHERE thread = $1 AND consumer_id = $2";
    session.rows(sql, &[text(&consumer.as_str())]).map(drop)
}
