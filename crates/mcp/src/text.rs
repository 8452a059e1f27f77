//! Events as they are shown: short, with the way to get the rest.

use std::ops::ControlFlow;
use std::time::Instant;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use serde_with::skip_serializing_none;
use thread::queue::{Remaining, Selection};
use thread::{After, Event, Queue};

use crate::problem::Result;

/// How much of a content is shown in a list, in bytes.
pub const CUT: usize = 2000;

/// How much of one content is shown that was asked for, in bytes, and about how much a list shows in all: hosts
/// refuse longer results.
pub const PIECE: usize = 20_000;

/// A stored event.
#[skip_serializing_none]
#[derive(Debug, Serialize, JsonSchema)]
pub struct Shown {
    pub id: i64,
    pub created_at: String,
    pub source: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub subtype: Option<String>,
    pub content: String,
    pub metadata: Option<Map<String, Value>>,
    /// The content was cut: `peek` with `id` and this `offset` gives what follows.
    pub next_offset: Option<u64>,
    #[serde(skip)]
    size: usize,
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

/// How much an event takes in a list. A text that is longer than [`CUT`] is missing in it.
fn size(event: &Event, content_len: u64) -> usize {
    let (metadata, content) = (event.metadata.as_ref().map_or(0, String::len), CUT.min(content_len as usize));
    event.source.len() + metadata + content
}

/// An event of a page. A text that is longer than [`CUT`] is missing in it.
fn shown(queue: &mut Queue, event: Event, content_len: u64) -> Result<Shown> {
    let size = size(&event, content_len);
    let (content, next_offset) = match content_len > CUT as u64 {
        true => piece(queue, event.id, 0, CUT)?,
        false => (event.content, None),
    };
    Ok(Shown {
        size,
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

/// Reads a page of events, and moves the selection on. A filter is evaluated until that moment. The page ends
/// early when it is longer than [`PIECE`].
pub fn read(queue: &mut Queue, selection: &mut Selection, until: Instant) -> Result<(Vec<Shown>, bool)> {
    let (mut rows, mut length) = (Vec::new(), 0);
    let remaining = queue.read_page_until(selection, CUT as u64, Some(until), &mut |capped| {
        let event = capped.row.to_event();
        length += size(&event, capped.content_len);
        rows.push((event, capped.content_len));
        if length < PIECE { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    let events =
        rows.into_iter().map(|(event, length)| shown(queue, event, length)).collect::<Result<_>>()?;
    Ok((events, remaining == Remaining::Some))
}

/// Reads the last events, as many as fit into [`PIECE`], and the id of the newest.
pub fn tail(queue: &mut Queue, limit: u64) -> Result<(Vec<Shown>, i64)> {
    let after = queue.start_of_tail(None, 0, limit)?;
    let mut selection = Selection { after, limit: Some(limit), filter: None };
    let (mut events, mut more) = (Vec::new(), true);
    while more {
        let page;
        (page, more) = read(queue, &mut selection, Instant::now())?;
        events.extend(page);
    }
    let mut length: usize = events.iter().map(|event: &Shown| event.size).sum();
    let too_many = events.iter().take_while(|event| {
        let is_too_long = length > PIECE;
        length -= event.size;
        is_too_long
    });
    let too_many = too_many.count().min(events.len().saturating_sub(1));
    events.drain(..too_many);
    Ok((events, selection.after))
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
