//! Events as they are shown: short, with the way to get the rest.

use std::ops::ControlFlow;
use std::time::Instant;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use thread::queue::{Remaining, Selection};
use thread::{After, Event, Queue};

use crate::problem::Result;

/// How much of a content is shown in a list, in bytes.
pub const CUT: usize = 2000;

/// How much of one content is shown that was asked for, in bytes.
pub const PIECE: usize = 20_000;

/// A stored event.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Shown {
    pub id: i64,
    pub created_at: String,
    pub source: String,
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subtype: Option<String>,
    pub content: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Map<String, Value>>,
    /// The content was cut: `peek` with `id` and this `offset` gives what follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_offset: Option<u64>,
}

/// A part of an event's content from that byte on, and where the rest begins.
pub fn piece(queue: &mut Queue, id: i64, offset: u64, most: usize) -> Result<(String, Option<u64>)> {
    // Whether there is more shows in one byte more; a character may have four.
    let bytes = queue.read_content(id, offset, most + 4)?.unwrap_or_default();
    if bytes.len() <= most {
        return Ok((String::from_utf8_lossy(&bytes).into_owned(), None));
    }
    let end = (most.saturating_sub(3)..=most).rev().find(|at| bytes[*at] & 0xC0 != 0x80).unwrap_or(most);
    Ok((String::from_utf8_lossy(&bytes[..end]).into_owned(), Some(offset + end as u64)))
}

/// The beginning of a text, and where the rest begins.
pub fn cut(text: &str) -> (String, Option<u64>) {
    let end = text.floor_char_boundary(CUT);
    (text[..end].to_owned(), (end < text.len()).then_some(end as u64))
}

/// An event of a page. A text that is longer than [`CUT`] is missing in it.
fn shown(queue: &mut Queue, event: Event, content_len: u64) -> Result<Shown> {
    let (content, next_offset) = match content_len > CUT as u64 {
        true => piece(queue, event.id, 0, CUT)?,
        false => (event.content, None),
    };
    Ok(Shown {
        id: event.id,
        created_at: event.created_at,
        source: event.source,
        kind: event.kind,
        subtype: event.subtype,
        content,
        metadata: event.metadata.and_then(|text| serde_json::from_str(&text).ok()),
        next_offset,
    })
}

/// Reads a page of events, and moves the selection on. A filter is evaluated until that moment.
pub fn read(queue: &mut Queue, selection: &mut Selection, until: Instant) -> Result<(Vec<Shown>, bool)> {
    let mut rows = Vec::new();
    let remaining = queue.read_page_until(selection, CUT as u64, until, &mut |capped| {
        rows.push((capped.row.to_event(), capped.content_len));
        ControlFlow::Continue(())
    })?;
    let events =
        rows.into_iter().map(|(event, length)| shown(queue, event, length)).collect::<Result<_>>()?;
    Ok((events, remaining == Remaining::Some))
}

/// An event, without its content if that is longer than [`CUT`].
pub fn without_long_content(queue: &mut Queue, id: i64) -> Result<Option<Event>> {
    let mut found = None;
    let mut selection = Selection { limit: Some(1), ..After(id.saturating_sub(1)).into() };
    queue.read_page_capped(&mut selection, CUT as u64, &mut |capped| {
        found = (capped.row.id == id).then(|| capped.row.to_event());
        ControlFlow::Break(())
    })?;
    Ok(found)
}
