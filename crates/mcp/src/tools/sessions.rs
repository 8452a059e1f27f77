//! Tools for finding and reading sessions.

use std::path::Path;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use thread::model::filter::Scope as FilterScope;
use thread::{Filter, Queue};
use thread_conversation::{Entry, is_ending, text_of};
use thread_protocol::method::{DateFilter, SessionList, SessionSummary};
use thread_sessions::search::search as search_in;
use tokio_util::sync::CancellationToken;

use crate::problem::{Problem, Result};
use crate::scope::{Scope, Turn, open};
use crate::text::{self, CUT, PIECE};

/// How many sessions and messages are shown, by default and at most.
const SHOWN: usize = 10;
const MOST: usize = 50;

/// Messages, and what may be the end of a run without an answer.
const MESSAGES: &str = "type = 'message' OR subtype = 'cancelled' \
                        OR subtype = 'error' AND content LIKE '%\"retryable\":false%'";

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchArgs {
    /// Words, all of which occur in the title or messages, in any case; a "phrase" in quotes
    query: Option<String>,
    /// When it was last active
    #[schemars(with = "Option<String>", extend("enum" = ["today", "yesterday", "this_week", "last_week"]))]
    day: Option<DateFilter>,
    limit: Option<usize>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListArgs {
    limit: Option<usize>,
    offset: Option<usize>,
}

#[derive(Serialize, JsonSchema)]
pub struct Sessions {
    sessions: Vec<Session>,
    /// How many there are in all.
    total: u64,
    /// The search took too long, and has not seen all sessions: narrow it down.
    truncated: bool,
}

#[skip_serializing_none]
#[derive(Serialize, JsonSchema)]
pub struct Session {
    session: String,
    title: String,
    last_active: String,
    messages: u64,
    last_message: Option<String>,
    /// What its newest run does: `running`, `asks` for permission, `waiting`, or it has `failed`.
    state: Option<String>,
    /// The text that was found.
    matched: Option<String>,
}

impl From<SessionSummary> for Session {
    fn from(summary: SessionSummary) -> Session {
        Session {
            session: summary.id,
            title: summary.title,
            last_active: summary.last_activity,
            messages: summary.message_count,
            last_message: summary.last_message,
            state: summary.state.map(|state| state.as_str().to_owned()),
            matched: summary.matched,
        }
    }
}

impl From<SessionList> for Sessions {
    fn from(list: SessionList) -> Sessions {
        Sessions {
            sessions: list.sessions.into_iter().map(Session::from).collect(),
            total: list.total,
            truncated: list.truncated,
        }
    }
}

pub async fn search(scope: &Arc<Scope>, args: SearchArgs, _: &CancellationToken) -> Result<Sessions> {
    let limit = args.limit.unwrap_or(SHOWN).clamp(1, MOST);
    scope
        .blocking(Turn::Search, move |scope| {
            let query = args.query.as_deref();
            Ok(search_in(scope.root()?, &scope.catalogue, query, args.day, limit)?.into())
        })
        .await
}

pub async fn list(scope: &Arc<Scope>, args: ListArgs, _: &CancellationToken) -> Result<Sessions> {
    let limit = args.limit.unwrap_or(SHOWN).clamp(1, MOST);
    let offset = args.offset.unwrap_or(0);
    scope
        .blocking(Turn::List, move |scope| Ok(scope.catalogue.page(scope.root()?, offset, limit)?.into()))
        .await
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetArgs {
    pub session: Option<String>,
    /// Only messages with smaller ids
    before: Option<i64>,
    limit: Option<usize>,
}

#[derive(Serialize, JsonSchema)]
pub struct Conversation {
    session: String,
    title: String,
    /// Oldest first.
    messages: Vec<Said>,
    /// Whether there are older ones: `before` the first id.
    more: bool,
}

#[skip_serializing_none]
#[derive(Serialize, JsonSchema)]
pub struct Said {
    id: i64,
    /// `user`, `assistant`, or how a run ended without an answer: `error`, `cancelled`.
    role: &'static str,
    content: String,
    created_at: String,
    /// The content was cut: `peek` with `id` and this `offset` gives what follows.
    next_offset: Option<u64>,
    /// The answer so far, if the run ended without one.
    partial: Option<String>,
}

pub fn get(scope: &Scope, path: &Path, args: GetArgs) -> Result<Conversation> {
    let limit = args.limit.unwrap_or(SHOWN).clamp(1, MOST);
    let root = scope.root()?;
    let session = scope
        .session_of(path)
        .ok_or_else(|| Problem::new("this thread is no session", "name one; `sessions_list` shows them"))?;
    let summary = scope.catalogue.summary(root, &root.entry(session)?)?;
    let mut queue = open(path)?;
    let before = args.before.unwrap_or(i64::MAX);
    let (messages, more) = messages(&mut queue, before, limit)?;
    Ok(Conversation { session: session.to_string(), title: summary.title(), messages, more })
}

/// The last messages before an event, oldest first, and whether there are older ones.
fn messages(queue: &mut Queue, before: i64, limit: usize) -> Result<(Vec<Said>, bool)> {
    let filter = Filter::new(MESSAGES, FilterScope::Reading).map_err(thread::Error::from)?;
    let (mut said, mut length, mut upto) = (Vec::new(), 0, before.saturating_sub(1));
    let more = 'read: loop {
        let wanted = limit + 1 - said.len();
        let ids = queue.newest_matching(filter.as_ref(), upto, wanted)?;
        let is_all = ids.len() < wanted;
        for id in ids {
            upto = id - 1;
            let Some(message) = message(queue, id)? else { continue };
            length += message.content.len() + message.partial.as_ref().map_or(0, String::len);
            if said.len() == limit || length > PIECE && !said.is_empty() {
                break 'read true;
            }
            said.push(message);
        }
        if is_all {
            break false;
        }
    };
    said.reverse();
    Ok((said, more))
}

/// A message as it is shown; `None` for what only looks like an ending.
fn message(queue: &mut Queue, id: i64) -> Result<Option<Said>> {
    // Long contents are read only as far as they are shown, so what they hold is not parsed.
    let (beginning, rest) = text::piece(queue, id, 0, CUT)?;
    let mut event = text::without_long_content(queue, id)?;
    if event.as_ref().is_some_and(|event| event.kind == "record") {
        // The partial answer of an ended run is in the metadata, and may be long.
        event = queue.event(id)?;
    }
    let Some(event) = event else { return Ok(None) };
    let entry = Entry::of(&event);
    let role = match entry {
        Entry::Message(_) => "user",
        Entry::Answer { .. } => "assistant",
        Entry::Error { .. } if is_ending(queue, id, &entry)? => "error",
        Entry::Cancelled { .. } if is_ending(queue, id, &entry)? => "cancelled",
        _ => return Ok(None),
    };
    let (content, next_offset) = match &entry {
        _ if rest.is_some() => (beginning, rest),
        Entry::Error { error, .. } => text::cut(error),
        _ => text::cut(&text_of(&event.content)),
    };
    let partial = entry.ending().and_then(|ending| ending.partial).map(|partial| text::cut(partial).0);
    Ok(Some(Said { id, role, content, created_at: event.created_at, next_offset, partial }))
}
