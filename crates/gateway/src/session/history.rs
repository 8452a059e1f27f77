//! The messages of a session, read from the end: messages, and how runs without an answer ended.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use thread::model::filter::Scope;
use thread::queue::{Remaining, Selection};
use thread::{After, Event, Filter, Queue};
use thread_conversation::{ClientInput, Entry, Record, SELF, Status, is_ending};
use thread_protocol::event::Role;
use thread_protocol::method::{HistoryEntry, MessageRef};
use thread_sessions::events::LARGE;
use thread_sessions::{Kind, Result, SessionId};
use tokio::time::timeout;

use super::budget::Share;
use super::context::Context;
use super::event::{LONGEST, SessionEvent};
use super::frames::{content_of, large_of, message_id, moved_metadata};
use super::message_ref::seq_of;
use crate::storage::Storage;

/// How much text a page has, in bytes, unless its only message has more; as much again of text between steps.
const PAGE: usize = 1024 * 1024;

/// The most tokens that a page of steps is made from.
const MAX_TOKENS: usize = 20_000;

/// How long to wait for room for a long answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Messages, and what may be the end of a run without an answer.
const ENTRIES: &str = "type = 'message' OR subtype IN ('cancelled', 'clear', 'agent') \
                       OR subtype = 'error' AND content LIKE '%\"retryable\":false%'";

/// What happened between messages.
const STEPS: &str = "type = 'record' AND subtype <> 'token'";

/// Messages of a session, and whether there are older ones.
pub struct Page {
    /// Oldest first. A content of more than [`LARGE`] bytes is left out, but that of an answer for which there
    /// is room.
    pub messages: Vec<SessionEvent>,
    pub has_more: bool,
    /// The length of the newest message, in bytes, if that is an answer for which there was no room.
    pub left_out: Option<u64>,
}

/// Messages as clients get them.
pub struct Entries {
    pub messages: Vec<HistoryEntry>,
    pub has_more: bool,
    /// To be kept until the client has them.
    pub share: Option<Share>,
}

/// The last `limit` messages before the event that `before` names. A long answer is a page by itself, and waits for
/// room.
///
/// # Errors
///
/// Errors of `before` and of the thread.
pub async fn read(
    context: &Arc<Context>,
    session: SessionId,
    before: Option<MessageRef>,
    limit: usize,
) -> Result<Entries> {
    let (mut room, mut share) = (LARGE, None);
    loop {
        let (own, message) = (context.clone(), before.clone());
        let work = move || {
            let mut queue = own.root.queue(session)?;
            let end = message.as_ref().map_or(Ok(i64::MAX), |at| seq_of(&mut queue, at))?;
            let page = self::before(&mut queue, end, limit, room)?;
            Ok((entries(&own.storage, session, &page.messages), page.has_more, page.left_out))
        };
        let (messages, has_more, left_out) = context.pool.run(session, Kind::Read, work).await?;
        match left_out {
            Some(bytes) if share.is_none() => {
                match timeout(PATIENCE, context.budget.share(Share::mib_for(bytes))).await {
                    Ok(granted) => (room, share) = (bytes, Some(granted)),
                    // Others have it, and do not read. The client gets the answer's size and URL.
                    Err(_) => return Ok(Entries { messages, has_more, share: None }),
                }
            }
            _ => return Ok(Entries { messages, has_more, share }),
        }
    }
}

/// The last `limit` messages before an event; fewer, but at least one, if they are large. An answer of more
/// than [`LARGE`] bytes is read only as the newest one, and only if it has at most `room` bytes.
///
/// # Errors
///
/// Errors of the thread.
pub fn before(queue: &mut Queue, before: i64, limit: usize, room: u64) -> Result<Page> {
    let (mut messages, mut size, mut upto) = (Vec::new(), 0, before.saturating_sub(1));
    let (mut left_out, mut has_more) = (None, true);
    let filter = Filter::new(ENTRIES, Scope::Reading)?;
    'page: while has_more {
        let wanted = limit + 1 - messages.len();
        let ids = queue.newest_matching(filter.as_ref(), upto, wanted)?;
        has_more = ids.len() == wanted;
        for id in ids {
            upto = id - 1;
            let Some(mut event) = event(queue, id)? else { continue };
            if let Some(bytes) = event.large.filter(|bytes| *bytes <= LONGEST)
                && is_ending(queue, id, &event.record.entry)?
            {
                if !messages.is_empty() {
                    has_more = true;
                    break 'page;
                }
                // There is no room for anything else.
                size = PAGE;
                match queue.event(id)?.filter(|_| bytes <= room) {
                    Some(whole) => event = SessionEvent::new(queue, whole, None)?,
                    None => left_out = Some(bytes),
                }
            }
            // What looks like the end of a run may be none.
            if event.ends.is_none()
                && !matches!(
                    event.record.entry,
                    Entry::Message(_) | Entry::Answer { .. } | Entry::Clear | Entry::Moved(_)
                )
            {
                continue;
            }
            size += event.record.event.content.len();
            if messages.len() == limit || size > PAGE && !messages.is_empty() {
                has_more = true;
                break 'page;
            }
            messages.push(event);
        }
    }
    messages.reverse();
    Ok(Page { messages, has_more, left_out })
}

/// What happened between messages: the last `limit` events between two ids; fewer, but at least one, if they are
/// large. Text of the agent between two of them is one token, as far as there is room. (Its last text is the end of
/// the answer.)
///
/// # Errors
///
/// Errors of the thread.
pub fn steps(queue: &mut Queue, after: i64, before: i64, limit: usize) -> Result<Page> {
    let filter = Filter::new(STEPS, Scope::Reading)?;
    let ids = queue.newest_matching(filter.as_ref(), before.saturating_sub(1), limit + 1)?;
    let (mut messages, mut size, mut has_more) = (Vec::new(), 0, false);
    for id in ids.into_iter().take_while(|id| *id > after) {
        let Some(event) = event(queue, id)? else { continue };
        size += event.record.event.content.len();
        if messages.len() == limit || size > PAGE && !messages.is_empty() {
            has_more = true;
            break;
        }
        messages.push(event);
    }
    messages.reverse();
    // Events of others do not divide the agent's text, so a page does not begin there either.
    let others = messages.iter().take_while(|step| !is_agents(step)).count();
    if has_more && others < messages.len() {
        messages.drain(..others);
    }
    let mut text = Text { bytes: PAGE, tokens: MAX_TOKENS };
    let mut from = messages.first().filter(|_| has_more).map_or(after, SessionEvent::id);
    let mut all = Vec::with_capacity(messages.len());
    for step in messages {
        if is_agents(&step) {
            let is_last = step.ends.is_some() || step.record.entry == Entry::Status(Status::Done);
            if !is_last {
                text.between(queue, (from, step.id()), &mut all)?;
            }
            from = step.id();
        }
        all.push(step);
    }
    text.between(queue, (from, before), &mut all)?;
    // Text is placed where it begins.
    all.sort_by_key(SessionEvent::id);
    Ok(Page { messages: all, has_more, left_out: None })
}

/// Whether a step is one of the agent's own.
fn is_agents(step: &SessionEvent) -> bool {
    step.record.event.source == SELF
}

/// How much more text may be read.
struct Text {
    bytes: usize,
    tokens: usize,
}

impl Text {
    /// Reads the text between two events, with the pieces of a message joined.
    fn between(
        &mut self,
        queue: &mut Queue,
        (after, before): (i64, i64),
        all: &mut Vec<SessionEvent>,
    ) -> Result<()> {
        let mut said: Vec<(Option<String>, Entry, Event)> = Vec::new();
        let mut next = Selection::from(After(after));
        let mut is_over = before - after <= 1;
        while !is_over {
            let remaining = queue.read_page_capped(&mut next, LARGE, &mut |capped| {
                let row = &capped.row;
                is_over = row.id >= before || self.tokens == 0 || self.bytes < row.content.len();
                if is_over {
                    return ControlFlow::Break(());
                }
                let Record { event, run_id, entry, .. } = Record::of(row.to_event());
                if let Entry::Token { text, message_id } = &entry {
                    self.tokens -= 1;
                    self.bytes -= text.len();
                    match said.last_mut() {
                        Some((run, Entry::Token { message_id: of, .. }, first))
                            if *run == run_id && of == message_id =>
                        {
                            first.content.push_str(text);
                        }
                        _ => said.push((run_id, entry, event)),
                    }
                }
                ControlFlow::Continue(())
            })?;
            is_over |= remaining == Remaining::None;
        }
        for (.., event) in said {
            all.push(SessionEvent::new(queue, event, None)?);
        }
        Ok(())
    }
}

/// The newest events up to an id that match a condition, the newest first; large ones without their content.
///
/// # Errors
///
/// Errors of the thread; a condition that is no filter.
pub fn newest(queue: &mut Queue, condition: &str, upto: i64, most: usize) -> Result<Vec<SessionEvent>> {
    let filter = Filter::new(condition, Scope::Reading)?;
    let ids = queue.newest_matching(filter.as_ref(), upto, most)?;
    let events = ids.into_iter().map(|id| event(queue, id));
    events.filter_map(Result::transpose).collect()
}

/// One event; without its content if that is large.
///
/// # Errors
///
/// Errors of the thread.
pub fn event(queue: &mut Queue, id: i64) -> Result<Option<SessionEvent>> {
    let mut found = None;
    let mut next = Selection { limit: Some(1), ..After(id.saturating_sub(1)).into() };
    queue.read_page_capped(&mut next, LARGE, &mut |capped| {
        let large = (capped.content_len > LARGE).then_some(capped.content_len);
        found = (capped.row.id == id).then(|| (capped.row.to_event(), large));
        ControlFlow::Break(())
    })?;
    found.map(|(event, large)| SessionEvent::new(queue, event, large)).transpose()
}

/// Messages as clients get them.
pub fn entries(storage: &Storage, session: SessionId, messages: &[SessionEvent]) -> Vec<HistoryEntry> {
    messages.iter().map(|message| entry(storage, session, message)).collect()
}

fn entry(storage: &Storage, session: SessionId, stored: &SessionEvent) -> HistoryEntry {
    let SessionEvent { record, .. } = stored;
    let mut metadata = record.metadata();
    let (role, reply_to) = match &record.entry {
        Entry::Answer { reply_to, .. } => (Role::Assistant, *reply_to),
        Entry::Error { error, reply_to, .. } => {
            metadata.insert("error".to_owned(), error.clone().into());
            (Role::Error, *reply_to)
        }
        Entry::Cancelled { why, reply_to, .. } => {
            metadata.insert("why".to_owned(), why.clone().into());
            (Role::Cancelled, *reply_to)
        }
        Entry::Clear => (Role::System, None),
        Entry::Moved(moved) => {
            metadata = moved_metadata(moved);
            (Role::System, None)
        }
        _ => (Role::User, None),
    };
    // It is the content.
    metadata.shift_remove("partial");
    // For the agent alone, and as large as it likes.
    metadata.shift_remove(ClientInput::KEY);
    HistoryEntry {
        id: message_id(stored),
        seq: stored.id(),
        role,
        content: content_of(storage, stored),
        timestamp: record.event.created_at.clone(),
        source: record.event.source.clone(),
        run_id: record.run_id.clone(),
        reply_to,
        metadata: Some(metadata),
        large: large_of(storage, session, stored),
    }
}
