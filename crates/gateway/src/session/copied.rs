//! Copies of messages, answers, and what was said before an answer was stopped.

use std::collections::HashMap;
use std::io;

use serde_json::{Map, Value};
use thread::{Error, Event, NewEvent};
use thread_conversation::end_key;
use thread_sessions::{RequestError, Result};

/// About how many bytes of messages are copied at a time.
pub(super) const PAGE_BYTES: usize = 1024 * 1024;

/// A copy of a message or of what ends its run, for another thread. `ids` are the new ids of the events that are copied.
pub(super) fn copy(
    event: Event,
    ids: &HashMap<i64, i64>,
    is_ending: bool,
    keep: &mut dyn FnMut(&Map<String, Value>) -> io::Result<()>,
) -> Result<NewEvent<'static>> {
    let mut metadata: Map<String, Value> =
        event.metadata.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    keep(&metadata).map_err(|e| RequestError::Failed(format!("an attachment cannot be kept: {e}")))?;
    let reply_to = metadata.get("reply_to").and_then(Value::as_i64).and_then(|id| ids.get(&id).copied());
    match reply_to {
        Some(id) => drop(metadata.insert("reply_to".into(), id.into())),
        None => drop(metadata.shift_remove("reply_to")),
    }
    // Of a run that the agent began itself, only the answer is copied.
    metadata.shift_remove("began");
    // It was taken there.
    metadata.shift_remove("usage");
    metadata.shift_remove("cost");
    let subtype = event.subtype.filter(|_| event.kind == "record").map(Into::into);
    let mut copy = NewEvent::new(event.source, &event.kind, subtype, event.content).map_err(Error::from)?;
    copy.metadata = (!metadata.is_empty()).then(|| Value::Object(metadata).to_string().into());
    copy.idempotency_key = reply_to.filter(|_| is_ending).map(end_key);
    copy.created_at = Some(event.created_at.into());
    Ok(copy)
}
