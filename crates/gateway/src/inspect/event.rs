//! Reading one event, with long texts cut.

use std::ops::ControlFlow;

use serde_json::Value;
use thread::model::event::CappedRow;
use thread::queue::Selection;
use thread::{After, Queue};
use thread_sessions::{RequestError, Result};

use super::dto::Event;

/// How much of a text is shown in a list, in bytes.
pub const CUT: u64 = 4096;

/// An event as lists show it; `None` if it is not stored any more.
///
/// # Errors
///
/// Errors of the thread.
pub fn shown(queue: &mut Queue, id: i64) -> Result<Option<Event>> {
    read(queue, id, CUT)
}

/// An event with so many bytes of its content at most.
///
/// # Errors
///
/// Errors of the thread.
pub fn read(queue: &mut Queue, id: i64, most: u64) -> Result<Option<Event>> {
    let mut found = None;
    let mut selection = Selection { limit: Some(1), ..After(id.saturating_sub(1)).into() };
    queue.read_page_capped(&mut selection, most, &mut |capped| {
        found = (capped.row.id == id).then(|| form_of(&capped));
        ControlFlow::Break(())
    })?;
    let Some(mut event) = found else { return Ok(None) };
    complete(queue, &mut event, most)?;
    Ok(Some(event))
}

/// The error of an event that is not stored.
pub fn missing(id: i64) -> RequestError {
    RequestError::Unknown(format!("there is no event {id} in this thread, or it was deleted"))
}

/// An event without a content that is too long.
pub fn form_of(capped: &CappedRow<'_>) -> Event {
    let row = capped.row.to_event();
    let shown = capped.row.metadata.map_or(0, <[u8]>::len) as u64;
    let is_cut = shown < capped.metadata_len;
    let metadata = row.metadata.filter(|_| !is_cut);
    Event {
        id: row.id,
        created_at: row.created_at,
        source: row.source,
        kind: row.kind,
        subtype: row.subtype,
        content: row.content,
        content_bytes: capped.content_len,
        // Another program may have stored something that is not JSON.
        metadata: metadata.map(|text| serde_json::from_str(&text).unwrap_or(Value::String(text))),
        metadata_bytes: is_cut.then_some(capped.metadata_len),
    }
}

/// Adds the beginning of a content that was left out.
///
/// # Errors
///
/// Errors of the thread.
pub fn complete(queue: &mut Queue, event: &mut Event, most: u64) -> Result<()> {
    if event.content.is_empty() && event.content_bytes > 0 {
        let bytes = queue.read_content(event.id, 0, usize::try_from(most).unwrap_or(0))?.unwrap_or_default();
        event.content = String::from_utf8_lossy(up_to_a_character(&bytes)).into_owned();
    }
    Ok(())
}

/// Without a character at the end that is cut.
fn up_to_a_character(bytes: &[u8]) -> &[u8] {
    match std::str::from_utf8(bytes) {
        Err(e) if e.error_len().is_none() => &bytes[..e.valid_up_to()],
        _ => bytes,
    }
}
