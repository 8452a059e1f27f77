//! The idempotency keys of a conversation's events, and what is stored under them.
//!
//! The keys are reserved for the programs ([`thread::model::key`]), but versions up to 0.2 used keys that any
//! program may use, and a program that writes to the database directly may use any. So an event counts as what its
//! content is, regardless of its key; and if the key of an event is taken by something else, the event is stored
//! under another one, its *spare key*.

use thread::model::key::{IdempotencyKey, InvalidKey};
use thread::{Error, Event, NewEvent, Queue, Result};

use crate::{Entry, Outcome, Record, Run, end_key};

/// The key of the result of a call.
///
/// # Errors
///
/// It is too long.
pub fn result_key(call_id: &str) -> Result<IdempotencyKey<'static>, InvalidKey> {
    IdempotencyKey::reserved("result", call_id)
}

/// The key of a sub-agent's event in its parent's thread.
///
/// # Errors
///
/// It is too long.
pub fn sub_key(sub_agent: &str, event_id: i64) -> Result<IdempotencyKey<'static>, InvalidKey> {
    IdempotencyKey::reserved("sub", format_args!("{sub_agent}:{event_id}"))
}

/// The key of the event that gives a conversation another agent, by the id of the move.
///
/// # Errors
///
/// It is too long.
pub fn moved_key(id: &str) -> Result<IdempotencyKey<'static>, InvalidKey> {
    IdempotencyKey::reserved("agent", id)
}

/// Begins each spare key: `thread:taken:end:5` is that of `thread:end:5`.
const TAKEN: &str = "taken";

fn spare_key(key: &IdempotencyKey<'_>) -> Result<IdempotencyKey<'static>, InvalidKey> {
    IdempotencyKey::reserved(TAKEN, key.before_reserved().unwrap_or(key))
}

/// The ids of the events that are stored under a key, its spare key and that of earlier versions, in ascending order.
fn stored_under(queue: &mut Queue, key: &IdempotencyKey<'_>) -> Result<Vec<i64>> {
    let mut ids = Vec::from_iter(queue.id_of_key(key)?);
    if let Ok(spare) = spare_key(key) {
        ids.extend(queue.id_of_key(&spare)?);
    }
    if let Some(before) = key.before_reserved() {
        ids.extend(queue.id_of_key(before)?);
    }
    ids.sort_unstable();
    Ok(ids)
}

/// The event that an earlier version has stored under its form of this key, if there is one. It may be anything.
///
/// # Errors
///
/// Those of the database.
pub fn stored_before(queue: &mut Queue, key: &IdempotencyKey<'_>) -> Result<Option<Event>> {
    let id = key.before_reserved().map(|before| queue.id_of_key(before)).transpose()?.flatten();
    Ok(id.map(|id| queue.event(id)).transpose()?.flatten())
}

/// Whether the event with this id is the ending that it looks like: the first one that is stored under a key of the
/// run's ending.
///
/// # Errors
///
/// Those of the database.
pub fn is_ending(queue: &mut Queue, event_id: i64, entry: &Entry) -> Result<bool> {
    let Some(of) = entry.ends().filter(|of| *of < event_id) else { return Ok(false) };
    let ids = stored_under(queue, &end_key(of))?;
    for id in ids.iter().take_while(|id| **id < event_id) {
        if queue.event(*id)?.is_some_and(|event| ends(&event, of)) {
            return Ok(false);
        }
    }
    Ok(ids.contains(&event_id))
}

/// The ending of the run that answers this event; `None` if it has none.
///
/// # Errors
///
/// Those of the database.
pub fn ending_of(queue: &mut Queue, of: i64) -> Result<Option<Event>> {
    for id in stored_under(queue, &end_key(of))? {
        if let Some(event) = queue.event(id)?.filter(|event| ends(event, of)) {
            return Ok(Some(event));
        }
    }
    Ok(None)
}

/// Whether an event has the form of an ending of the run that answers event `of`. An event that was there before
/// the message is not one.
fn ends(event: &Event, of: i64) -> bool {
    event.id > of && Entry::of(event).ends() == Some(of)
}

/// The newest result of a call that is stored under its key.
///
/// # Errors
///
/// Those of the database.
pub fn result_of(queue: &mut Queue, key: &IdempotencyKey<'_>, call_id: &str) -> Result<Option<i64>> {
    for id in stored_under(queue, key)?.into_iter().rev() {
        let entry = queue.event(id)?.map(|event| Entry::of(&event));
        if matches!(entry, Some(Entry::ToolResult(result)) if result.call_id == call_id) {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// Whether `stored` is what `event` would be, stored first by another process: there is only one.
pub fn stands_for(stored: &Event, event: &NewEvent<'_>) -> bool {
    let new = record_of(event).entry;
    match (Entry::of(stored), &new) {
        _ if new.ends().is_some_and(|of| ends(stored, of)) => true,
        (Entry::ToolResult(stored), Entry::ToolResult(new)) => stored.call_id == new.call_id,
        (Entry::SubAgent(stored), Entry::SubAgent(new)) => {
            (stored.sub_agent, stored.sub_event_id) == (new.sub_agent.clone(), new.sub_event_id)
        }
        (Entry::Summary { upto: stored, .. }, Entry::Summary { upto: new, .. }) => stored == *new,
        (Entry::Message(stored), Entry::Message(new)) => stored == *new,
        // The key is that of one move.
        (Entry::Moved(_), Entry::Moved(_)) => true,
        _ => false,
    }
}

/// Returns what to store if the key of an event belongs to `holder`: nothing if that stands for it, else the event
/// under its spare key. If an ending's key is taken, the run ends with an error instead, which says so and includes
/// the answer.
///
/// # Errors
///
/// [`Error::KeyConflict`]: it is the spare key that belongs to something else.
pub fn instead(event: NewEvent<'static>, holder: &Event) -> Result<Option<NewEvent<'static>>> {
    if stands_for(holder, &event) {
        return Ok(None);
    }
    let Some(key) = event.idempotency_key.clone() else { return Ok(Some(event)) };
    let is_spare = key
        .before_reserved()
        .is_some_and(|rest| rest.strip_prefix(TAKEN).is_some_and(|rest| rest.starts_with(':')));
    let spare = match spare_key(&key) {
        Ok(spare) if !is_spare => spare,
        _ => return Err(Error::KeyConflict { key: key.to_string(), id: holder.id }),
    };
    let Record { run_id, attempt, entry, .. } = record_of(&event);
    let Some(of) = entry.ends() else { return Ok(Some(event.keyed(spare))) };
    let is_own = match &entry {
        Entry::Answer { began, .. } | Entry::Error { began, .. } | Entry::Cancelled { began, .. } => {
            began.is_some()
        }
        _ => false,
    };
    let run = Run { run_id: run_id.unwrap_or_default(), reply_to: of, attempt, is_own };
    let said = entry.ending().and_then(|ending| match ending.outcome {
        Outcome::Answered => Some(ending.text),
        _ => ending.partial,
    });
    let id = holder.id;
    let error =
        format!("the idempotency key '{}' belongs to event {id}, which is not the end of this run", &*key);
    Ok(Some(run.failed(&error, said.unwrap_or_default()).keyed(spare)))
}

/// An event as it will be stored.
fn record_of(event: &NewEvent<'_>) -> Record {
    Record::of(event.row(i64::MAX, "").to_event())
}

#[cfg(test)]
mod tests;
