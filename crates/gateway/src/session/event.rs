//! The events of a session as its readers get them: read once, parsed once, made into frames once.
//!
//! What readers get depends on the stored event alone, so it is the same whether it comes from memory or from
//! disk. Whether an event ends its run is a fact about the event, too: it does if it is stored under its
//! run's end key.

use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

use thread::queue::{Remaining, Selection};
use thread::{After, Event, Filter, Queue};
use thread_conversation::runs::Noted;
use thread_conversation::{Entry, Record};
use thread_sessions::Result;
use thread_sessions::events::{LARGE, matches, matches_capped};
use tokio_tungstenite::tungstenite::Utf8Bytes;

use super::budget::Share;

/// The longest content of an ending that is read, in bytes: an answer may have 16 MiB.
pub const LONGEST: u64 = 17 * 1024 * 1024;

/// About how many bytes of content and metadata a page has.
const PAGE_BYTES: usize = 256 * 1024;

/// The most events of a page.
const PAGE_EVENTS: u64 = 1000;

/// A stored event.
#[derive(Debug)]
pub struct SessionEvent {
    /// Its content is empty if it is [`large`](SessionEvent::large).
    pub record: Record,
    /// The message whose run this event ends.
    pub ends: Option<i64>,
    /// The length of a content that was not read, in bytes.
    pub large: Option<u64>,
    frames: OnceLock<Option<Frames>>,
}

/// An event as frames.
#[derive(Debug)]
pub struct Frames {
    others: Utf8Bytes,
    /// The client that caused the event, and its frame.
    own: Option<(String, Utf8Bytes)>,
}

impl Frames {
    /// `own` is the client that caused the event, and its frame.
    pub fn new(others: Utf8Bytes, own: Option<(String, Utf8Bytes)>) -> Frames {
        Frames { others, own }
    }

    /// The frame for a client.
    pub fn for_client(&self, client: &str) -> &Utf8Bytes {
        match &self.own {
            Some((own, frame)) if own == client => frame,
            _ => &self.others,
        }
    }
}

/// Consecutive events of a session.
#[derive(Debug)]
pub struct Page {
    pub events: Vec<Arc<SessionEvent>>,
    /// The page has every event up to this id.
    pub upto: i64,
    /// Whether there may be more after it.
    pub more: bool,
    /// The page's share of the budget, while it exists.
    pub _share: Option<Share>,
}

/// The result of reading.
pub enum Reading {
    Page(Page),
    /// The next event is an ending of that many bytes, which needs room first.
    LongEnding(u64),
}

impl SessionEvent {
    /// Parses an event. `large` is the length of a content that was left out; then `event` has none.
    ///
    /// # Errors
    ///
    /// Errors of the thread.
    pub fn new(queue: &mut Queue, event: Event, large: Option<u64>) -> Result<SessionEvent> {
        let record = Record::of(event);
        let is_ending = thread_conversation::is_ending(queue, record.id(), &record.entry)?;
        let ends = record.entry.ends().filter(|_| is_ending);
        Ok(SessionEvent { record, ends, large, frames: OnceLock::new() })
    }

    /// An event as it will be stored.
    #[cfg(test)]
    pub fn stored(id: i64, new: &thread::NewEvent<'_>) -> SessionEvent {
        let record = Record::of(new.row(id, "2026-03-18T10:30:00.123Z").to_event());
        let key = new.idempotency_key.as_ref();
        let ends = record.entry.ends().filter(|of| key == Some(&thread_conversation::end_key(*of)));
        SessionEvent { record, ends, large: None, frames: OnceLock::new() }
    }

    pub fn id(&self) -> i64 {
        self.record.id()
    }

    /// The form that the session's open runs take. `is_pending`: it matches the filter of the session's agent.
    pub fn noted(&self, is_pending: bool) -> Noted<'_> {
        Noted { record: &self.record, is_pending, is_ending: self.ends.is_some() }
    }

    /// The event as frames, made on first use; `None` if clients do not see it.
    pub fn frames(&self, make: impl FnOnce(&SessionEvent) -> Option<Frames>) -> Option<&Frames> {
        self.frames.get_or_init(|| make(self)).as_ref()
    }

    /// About how many bytes of memory it takes, with its frames.
    pub fn size(&self) -> usize {
        let event = &self.record.event;
        3 * event.content.len() + event.metadata.as_ref().map_or(0, String::len) + 512
    }
}

/// A row of a page.
struct Read {
    event: Event,
    large: Option<u64>,
    /// Whether it matches the filter; `None` if the whole event is needed to decide.
    is_pending: Option<bool>,
}

/// Reads all events after an id that match a condition: see [`thread_sessions::events::for_each`].
///
/// # Errors
///
/// Errors of the thread; a condition that is no filter.
pub fn for_each(
    queue: &mut Queue,
    after: i64,
    condition: &str,
    note: &mut dyn FnMut(&SessionEvent),
) -> Result<i64> {
    thread_sessions::events::for_each(queue, after, condition, None, &mut |queue, event, _| {
        note(&SessionEvent::new(queue, event, None)?);
        Ok(())
    })
}

/// Reads the next page after an id, and which of its events match a filter (`None` matches all). An ending of
/// more than [`LARGE`] bytes is read only as the first event of a page, and only if it has at most `room`
/// bytes.
///
/// # Errors
///
/// Errors of the thread.
pub fn read(
    queue: &mut Queue,
    after: i64,
    room: u64,
    filter: Option<&Filter>,
) -> Result<(Reading, Vec<bool>)> {
    // Events up to this one that are not found have been pruned.
    let newest = queue.newest()?.0;
    let mut selection = Selection { limit: Some(PAGE_EVENTS), ..After(after).into() };
    let (mut rows, mut size) = (Vec::new(), 0);
    let remaining = queue.read_page_capped(&mut selection, LARGE, &mut |capped| {
        let is_pending = matches_capped(filter, &capped);
        let large = (capped.content_len > LARGE).then_some(capped.content_len);
        size += capped.row.content.len() + capped.row.metadata.map_or(0, <[u8]>::len);
        rows.push(Read { event: capped.row.to_event(), large, is_pending });
        if size < PAGE_BYTES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    let more = remaining == Remaining::Some || size >= PAGE_BYTES || rows.len() == PAGE_EVENTS as usize;
    let mut page = Page { events: Vec::with_capacity(rows.len()), upto: after, more, _share: None };
    let mut pending = Vec::with_capacity(rows.len());
    for Read { mut event, mut large, is_pending } in rows {
        if let Some(bytes) = large.filter(|bytes| *bytes <= LONGEST)
            && thread_conversation::is_ending(queue, event.id, &Entry::of(&event))?
        {
            // On a page of its own.
            page.more = true;
            if !page.events.is_empty() {
                break;
            }
            if bytes > room {
                return Ok((Reading::LongEnding(bytes), pending));
            }
            if let Some(whole) = queue.event(event.id)? {
                (event, large) = (whole, None);
            }
        }
        let is_long = event.content.len() as u64 > LARGE;
        page.upto = event.id;
        pending.push(matches(queue, filter, event.id, is_pending)?);
        page.events.push(Arc::new(SessionEvent::new(queue, event, large)?));
        if is_long {
            page.more = true;
            break;
        }
    }
    if !page.more {
        page.upto = page.upto.max(newest);
    }
    Ok((Reading::Page(page), pending))
}

#[cfg(test)]
mod tests;
