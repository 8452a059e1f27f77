//! Steps: what handlers have done for events. The table is made with the first one.

use postgres::Row;
use postgres::types::Type;
use thread::model::step::Step;
use thread::model::subscription::ConsumerId;
use thread::model::time::{self, Time};
use thread::store::{StepChange, StepsOf};
use thread::{Error, Result};

use crate::connection::Connection;
use crate::json::to_json;
use crate::link::{Link, Param, Session, bytes, int, text};
use crate::{known, lease, migrate};

/// Makes sure that there is the table, by a connection of its own.
pub fn prepare(store: &mut Link) -> Result<()> {
    if !store.known.steps {
        let mut connection = Connection::take(&store.target.settings)?;
        migrate::raise_version(&mut connection.client, &store.target.schema, known::WITH_STEPS)?;
        connection.keep(&store.target.settings);
        (store.known.steps, store.known.schedules) = (true, true);
    }
    Ok(())
}

pub fn list(session: &mut Session<'_>, of: StepsOf<'_>) -> Result<Vec<Step>> {
    let result = if of.with_results { "result" } else { "NULL::bytea" };
    let sql = format!(
        "SELECT consumer_id, event_id, name, revision, step, {result} FROM @steps \
         WHERE thread = $1 AND ($2::text IS NULL OR consumer_id = $2) AND ($3::bigint IS NULL OR event_id = $3) \
           AND ($4::text IS NULL OR name = $4) AND (awaits OR NOT $5) ORDER BY consumer_id, event_id, number"
    );
    let consumer = of.consumer.map(ConsumerId::as_str);
    let event: Param<'_> = (&of.event, Type::INT8);
    let only: Param<'_> = (&of.only_awaits, Type::BOOL);
    let rows = session.rows(&sql, &[text(&consumer), event, text(&of.name), only])?;
    Ok(rows.iter().filter_map(step_of).collect())
}

/// What another program may have stored in another form is left out.
fn step_of(row: &Row) -> Option<Step> {
    let step: Step = serde_json::from_str(row.get(4)).ok()?;
    Some(Step {
        consumer: ConsumerId::stored(row.get::<_, String>(0)),
        event_id: row.get(1),
        name: row.get(2),
        revision: row.get(3),
        result: row.get::<_, Option<Vec<u8>>>(5).unwrap_or_default(),
        ..step
    })
}

/// Applies a change. Returns whether the step was as it was seen. Called in a transaction that has the lock of the
/// consumer.
pub fn change(session: &mut Session<'_>, change: &StepChange) -> Result<bool> {
    lease::fence(session, &change.consumer)?;
    let StepChange { event_id, name, seen, to, claim, .. } = change;
    let consumer = change.consumer.as_str();
    if let Some(token) = claim {
        let sql = "SELECT 1::bigint FROM @claims WHERE thread = $1 AND consumer_id = $2 AND event_id = $3 AND token = $4";
        if session.number(sql, &[text(&consumer), int(event_id), text(token)])?.is_none() {
            return Err(Error::ClaimOver { id: *event_id });
        }
    }
    let seen = seen.unwrap_or(0);
    let of = [text(&consumer), int(event_id), text(name), int(&seen)];
    let changed = match to {
        Some(to) => {
            let (json, result) = (to_json(to), to.is_done().then_some(&to.result));
            let awaits = to.awaits();
            let mut values = of.to_vec();
            values.extend([text(&json), bytes(&result), (&awaits as _, Type::BOOL)]);
            let event = Some(*event_id);
            let same =
                StepsOf { consumer: Some(&change.consumer), event, name: Some(name), ..StepsOf::default() };
            let sql = match seen {
                // What another program may have stored in another form is nothing that anybody has seen.
                0 if list(session, same)?.is_empty() => {
                    "INSERT INTO @steps (thread, consumer_id, event_id, name, revision, step, result, awaits) \
                     VALUES ($1, $2, $3, $4, $5 + 1, $6, $7, $8) ON CONFLICT (thread, consumer_id, event_id, name) \
                     DO UPDATE SET revision = $5 + 1, step = $6, result = $7, awaits = $8, over = NULL RETURNING 1::bigint"
                }
                _ => {
                    "UPDATE @steps SET revision = $5 + 1, step = $6, result = $7, awaits = $8, over = NULL \
                     WHERE thread = $1 AND consumer_id = $2 AND event_id = $3 AND name = $4 AND revision = $5 \
                     RETURNING 1::bigint"
                }
            };
            session.number(sql, &values)?
        }
        None => {
            let sql = "DELETE FROM @steps WHERE thread = $1 AND consumer_id = $2 AND event_id = $3 AND name = $4 \
                       AND revision = $5 RETURNING 1::bigint";
            session.number(sql, &of)?
        }
    };
    Ok(changed.is_some())
}

/// Says that the event of a step is finished.
const IS_FINISHED: &str = "(NOT EXISTS (SELECT 1 FROM @consumers c WHERE c.thread = s.thread AND c.consumer_id = s.consumer_id) \
     OR ((event_id <= coalesce((SELECT last_acked_id FROM @cursors p \
                                WHERE p.thread = s.thread AND p.consumer_id = s.consumer_id), 0) \
          OR EXISTS (SELECT 1 FROM @finished f WHERE f.thread = s.thread AND f.consumer_id = s.consumer_id \
                     AND f.first_id <= s.event_id AND f.last_id >= s.event_id)) \
         AND NOT EXISTS (SELECT 1 FROM @dead_letters d WHERE d.thread = s.thread \
                         AND d.consumer_id = s.consumer_id AND d.event_id = s.event_id)))";

pub fn forget(session: &mut Session<'_>, now: Time, before: Time, most: usize) -> Result<(u64, bool)> {
    let (now, before) = (time::format(now), time::format(before));
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let some = |condition: &str| {
        format!(
            "thread = $1 AND number IN (SELECT number FROM @steps s WHERE thread = $1 AND {condition} LIMIT $2)"
        )
    };
    let again = some(&format!("over IS NOT NULL AND $3::text IS NOT NULL AND NOT {IS_FINISHED}"));
    let again = format!("UPDATE @steps SET over = NULL WHERE {again} RETURNING 1");
    let noted = some(&format!("over IS NULL AND {IS_FINISHED}"));
    let noted = format!("UPDATE @steps SET over = $3 WHERE {noted} RETURNING 1");
    let deleted = format!("DELETE FROM @steps WHERE {} RETURNING 1", some("over < $3"));
    let mut counts = [0; 3];
    for (count, (sql, time)) in counts.iter_mut().zip([(again, &now), (noted, &now), (deleted, &before)]) {
        *count = session.rows(&sql, &[int(&most), text(time)])?.len();
    }
    Ok((counts[2] as u64, counts.iter().any(|count| *count as i64 == most)))
}
