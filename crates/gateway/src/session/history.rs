//! The messages of a session, read from the end.

use serde_json::{Value, json};
use thread::model::filter::Scope;
use thread::store::ScanRange;
use thread::{After, Event, Filter, Queue};
use thread_agent::conversation::Entry;

use crate::error::{RequestError, Result};
use crate::protocol::content;
use crate::protocol::event::message_id;
use crate::storage::Storage;

/// How many ids one step backwards covers.
const STEP: i64 = 4096;

/// How much text a page has, in bytes, unless one message has more: messages may have up to 16 MiB.
const PAGE: usize = 1024 * 1024;

/// Messages of a session, and whether there are older ones.
pub struct Page {
    /// Oldest first.
    pub messages: Vec<Event>,
    pub has_more: bool,
}

/// The last `limit` messages before an event; fewer, but at least one, if they are large.
///
/// # Errors
///
/// Errors of the thread.
pub fn before(queue: &mut Queue, before: i64, limit: usize) -> Result<Page> {
    let wanted = limit + 1;
    let mut ids = newest_matching(queue, "type = 'message'", before - 1, wanted)?;
    let mut has_more = ids.len() == wanted;
    ids.truncate(limit);
    let (mut messages, mut size) = (Vec::with_capacity(ids.len()), 0);
    for id in ids {
        let Some(event) = event(queue, id)? else { continue };
        size += event.content.len();
        if size > PAGE && !messages.is_empty() {
            has_more = true;
            break;
        }
        messages.push(event);
    }
    messages.reverse();
    Ok(Page { messages, has_more })
}

/// One event.
pub fn event(queue: &mut Queue, id: i64) -> Result<Option<Event>> {
    let mut found = None;
    queue.store().read(id - 1, id, 1, &mut |row| {
        found = Some(row.to_event());
        std::ops::ControlFlow::Break(())
    })?;
    Ok(found)
}

/// The ids of the newest events up to `upto` that match, newest first. Reads backwards, so the cost depends
/// on how far back they are.
pub fn newest_matching(queue: &mut Queue, condition: &str, upto: i64, most: usize) -> Result<Vec<i64>> {
    let filter = Filter::new(condition, Scope::Reading)?;
    let filter = filter.ok_or_else(|| RequestError::Failed("an empty condition".into()))?;
    let After(newest) = queue.newest()?;
    let (mut upto, mut ids) = (upto.min(newest), Vec::new());
    while upto > 0 && ids.len() < most {
        let after = (upto - STEP).max(0);
        let range = ScanRange { after, upto, most: usize::MAX, until: None };
        ids.extend(queue.store().scan(&filter, range)?.ids.into_iter().rev());
        // Pruned events leave gaps of any width.
        upto = queue.store().last_upto(after)?.unwrap_or(0);
    }
    ids.truncate(most);
    Ok(ids)
}

/// The id of the event for a `seq` or the id of a message.
///
/// # Errors
///
/// The value is neither.
pub fn place(queue: &mut Queue, value: &Value) -> Result<i64> {
    let unknown = || RequestError::BadParams(format!("there is no message {value}"));
    if let Some(seq) = value.as_i64().filter(|seq| *seq > 0) {
        return Ok(seq);
    }
    let id = value.as_str().ok_or_else(unknown)?;
    if let Some(seq) = id.strip_prefix("event_").and_then(|seq| seq.parse().ok()) {
        return Ok(seq);
    }
    let quoted = id.replace('\'', "''");
    let condition = format!("type = 'message' AND metadata ->> 'message_id' = '{quoted}'");
    newest_matching(queue, &condition, i64::MAX, 1)?.first().copied().ok_or_else(unknown)
}

/// A message as `sessions.history` returns it.
pub fn shown(storage: &Storage, event: &Event) -> Value {
    let (_, entry) = Entry::of(event);
    json!({
        "id": message_id(event, &entry),
        "seq": event.id,
        "role": role(&entry),
        "content": content::shown(storage, &event.content),
        "timestamp": event.created_at,
    })
}

pub fn role(entry: &Entry) -> &'static str {
    if matches!(entry, Entry::Answer { .. }) { "assistant" } else { "user" }
}
