//! Finds the session that a request continues, or makes one, and stores what the client says.
//!
//! The end of a session is continued once: the idempotency key of a message names what it follows. If that is taken, or
//! the client continues from a place before the end, a copy is made of what it shows. If no session has that, a new one
//! begins with what the client brings.

use std::sync::Arc;
use std::time::Duration;

use thread::Queue;
use thread::model::time;
use thread_conversation::{ClientInput, Priority, Record};
use thread_protocol::Content;
use thread_sessions::{Kind, RequestError, SessionId};
use uuid::Uuid;

use super::calls::answer_calls;
use super::conversation::{Asks, Conversation, Exchange};
use super::error::{OpenAiError, Result};
use super::known::update;
use super::matching::{Fit, fit};
use super::new_session::{brought, copied};
use super::path::{About, Path, handed};
use super::text::{Digest, normal};
use crate::agent::Agent;
use crate::gateway::Gateway;
use crate::http::agui::translate::Start;
use crate::http::attachments::store_inline;
use crate::session::blocking_pool::blocking;
use crate::session::write::{Author, ClientMessage, extract_attachments, short};
use crate::storage::Object;

/// The client type of these clients, and the client of a request that names no user.
pub const CLIENT: &str = "openai";

/// How many sessions with the same texts are tried.
const TRIED: usize = 8;

/// How long after its end a run is still the one that a client asks for again.
const ENDED: Duration = Duration::from_secs(10 * 60);

/// What a client asks for.
#[derive(Debug, Clone)]
pub struct Request {
    pub conversation: Conversation,
    /// The client's functions, as AG-UI names them.
    pub tools: Vec<serde_json::Value>,
    pub user: Option<String>,
    /// The client's name for the conversation.
    pub chat: Option<String>,
    pub body: Digest,
    /// The client has sent this before, and got no answer.
    pub is_retry: bool,
    /// The gateway's origins, as this client sees it.
    pub own: Vec<String>,
    /// It continues after the run of this message, whatever else it brings.
    pub after: Option<(SessionId, i64)>,
    /// The name of the agent.
    pub model: String,
    /// The response that it continues.
    pub previous: Option<String>,
    pub background: bool,
}

/// A run, as far as a client is shown it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begun {
    pub session: SessionId,
    pub start: Start,
}

/// Where in a session the message belongs.
#[derive(Debug, Clone, Copy)]
pub enum Aim {
    /// After what the client shows.
    Shown,
    /// After the run of a message.
    After(i64),
    /// At the end.
    End,
}

/// What became of an attempt to continue a session.
pub enum Tried {
    Begun(Start),
    /// The place is not the end, or was just taken: a copy of what is before this message continues.
    Copy {
        before: i64,
    },
    /// The session is not what the client shows, or cannot be copied.
    Other,
}

pub fn author(user: Option<&str>) -> Author {
    Author { client: user.unwrap_or(CLIENT).into(), client_type: CLIENT.into() }
}

/// The address of a session on the gateway's page.
pub fn link(gateway: &Gateway, session: SessionId) -> String {
    format!("{}/#/s/{session}", gateway.storage.base)
}

/// Stores what a client says, or finds the run that it asks for again.
///
/// # Errors
///
/// The request is wrong; errors of the threads.
pub async fn begin(gateway: &Arc<Gateway>, agent: &Agent, request: Request) -> Result<Begun> {
    let content = match &request.conversation.asks {
        Asks::Results(results) => return answer_calls(gateway, &request, results).await,
        Asks::Message(content) => content.clone(),
    };
    if request.is_retry
        && let Some(begun) = under_way(gateway, &request).await?
    {
        return Ok(begun);
    }
    let (aim, candidates) = match request.after {
        Some((session, message)) => (Aim::After(message), vec![session]),
        None => (Aim::Shown, candidates(gateway, &request).await?),
    };
    for session in candidates {
        match attempt(gateway, session, &request, &content, aim).await? {
            Tried::Begun(start) => return Ok(Begun { session, start }),
            Tried::Copy { before } => {
                return copied(gateway, agent, session, before, &request, &content).await;
            }
            Tried::Other => {}
        }
    }
    if request.after.is_some() {
        let what = "the session no longer has the run of that response - begin a new conversation";
        return Err(OpenAiError::of_param("previous_response_id", what));
    }
    brought(gateway, agent, &request, &content).await
}

/// The run that a client asks for again.
async fn under_way(gateway: &Arc<Gateway>, request: &Request) -> Result<Option<Begun>> {
    let (own, body, user) = (gateway.clone(), request.body, request.user.clone());
    let all = blocking(&gateway.common.lists, move || own.known.all(&own.root, None)).await?;
    let recent = |at: &str| time::parse(at).is_some_and(|at| at + ENDED > chrono::Utc::now());
    let found = all.iter().filter(|(_, path)| path.user == user).find_map(|(session, path)| {
        let last = path.exchanges.last()?;
        let is_it = last.body == Some(body) && (last.is_open || recent(&last.ended_at));
        is_it.then_some(Begun { session: *session, start: Start::of_message(last.message) })
    });
    Ok(found)
}

/// The sessions that have what the client shows, the best ones first.
async fn candidates(gateway: &Arc<Gateway>, request: &Request) -> Result<Vec<SessionId>> {
    let named = request.chat.as_deref().map(SessionId::named);
    if named.is_none() && request.conversation.past.is_empty() {
        return Ok(Vec::new());
    }
    let own = gateway.clone();
    let all = blocking(&gateway.common.lists, move || own.known.all(&own.root, named)).await?;
    let is_candidate = |session: SessionId, path: &Path| match &request.chat {
        Some(_) if named == Some(session) => true,
        Some(chat) => path.chat.as_ref() == Some(chat) && path.user == request.user,
        None => path.user == request.user,
    };
    let past = &request.conversation.past;
    let fits = all.into_iter().filter(|(session, path)| is_candidate(*session, path));
    let mut fits: Vec<(SessionId, Fit)> = fits
        .filter_map(|(session, path)| {
            let fit = fit(past, &path, &mut |exchange, beginning| exchange.may_begin_with(beginning))?;
            Some((session, fit))
        })
        // Nothing was said: that is no place to continue, unless it has that name.
        .filter(|(session, fit)| !past.is_empty() || fit.is_end && named == Some(*session))
        .collect();
    // A stable sort: those that were active last stay first.
    fits.sort_by_key(|(_, fit)| std::cmp::Reverse(fit.rank()));
    Ok(fits.into_iter().take(TRIED).map(|(session, _)| session).collect())
}

/// Continues a session, if the place is its end.
///
/// # Errors
///
/// A file is refused; errors of the thread.
pub async fn attempt(
    gateway: &Arc<Gateway>,
    session: SessionId,
    request: &Request,
    content: &Content,
    aim: Aim,
) -> Result<Tried> {
    let about = About {
        user: request.user.clone(),
        chat: request.chat.clone(),
        body: Some(request.body),
        before: None,
        model: Some(request.model.clone()),
        previous: request.previous.clone(),
        background: request.background,
    };
    let message = message(gateway, session, request, content.clone()).await?;
    let (own, author) = (gateway.clone(), author(request.user.as_deref()));
    let past = request.conversation.past.clone();
    let work = move || {
        let mut queue = own.root.queue(session)?;
        let mut path = own.known.last(session);
        update(&mut path, &mut queue)?;
        let Some(fit) = place(&mut queue, &path, &past, aim)? else { return Ok(Tried::Other) };
        let copy = |path: &Path| match path.exchanges.get(fit.at) {
            Some(next) if fit.can_be_copied => Tried::Copy { before: next.message },
            _ => Tried::Other,
        };
        if !fit.is_end {
            return Ok(copy(&path));
        }
        if let Some(agent) = own.agent_for_all() {
            agent.replace(&mut queue)?;
        }
        let mut message = message.clone();
        message.key = Some(format!("{CLIENT}:{}", fit.follows(&path)));
        let is_open = fit.at.checked_sub(1).is_some_and(|last| path.exchanges[last].is_open);
        // Who has stopped reading says something else; who names a response waits for it.
        let interrupts = is_open && matches!(aim, Aim::Shown);
        message.priority = if interrupts { Priority::Now } else { Priority::Next };
        About { before: fit.beginning, ..about.clone() }.put(&mut message.metadata);
        let mut writer = own.writer(&mut queue, session, &author);
        let event = match writer.message(&message) {
            Ok(accepted) => accepted.event,
            Err(RequestError::KeyConflict(_)) => {
                update(&mut path, &mut queue)?;
                return Ok(copy(&path));
            }
            Err(e) => return Err(e),
        };
        update(&mut path, writer.queue)?;
        if path.exchanges.get(fit.at).is_none_or(|next| next.message == event) {
            return Ok(Tried::Begun(Start::of_message(event)));
        }
        // Somebody without such a key has spoken at the same moment.
        writer.cancel_run_of(event)?;
        Ok(copy(&path))
    };
    match gateway.pool().run(session, Kind::Write, work).await {
        // It was deleted in the meantime.
        Err(RequestError::UnknownSession(_)) => Ok(Tried::Other),
        tried => Ok(tried?),
    }
}

/// The place in a session, as its thread has it now.
fn place(
    queue: &mut Queue,
    path: &Path,
    past: &[Exchange],
    aim: Aim,
) -> thread_sessions::Result<Option<Fit>> {
    let all = path.exchanges.len();
    let at = |at: usize| Fit {
        at,
        is_end: at == all && !path.is_too_long,
        equal_users: 0,
        beginning: None,
        can_be_copied: true,
    };
    match aim {
        Aim::End => return Ok(Some(at(all))),
        Aim::After(message) => {
            let found = path.exchanges.iter().position(|one| one.message == message);
            return Ok(found.map(|found| at(found + 1)));
        }
        Aim::Shown => {}
    }
    let mut failed = None;
    let found = fit(past, path, &mut |exchange, beginning| {
        if exchange.is_open {
            return normal(path.said_so_far(exchange.message)).starts_with(beginning);
        }
        match answers(queue, exchange.message) {
            Ok(texts) => texts.iter().any(|text| normal(text).starts_with(beginning)),
            Err(e) => {
                failed = Some(e);
                false
            }
        }
    });
    match failed {
        Some(e) => Err(e),
        None => Ok(found),
    }
}

/// What was said in answer to a message: as it is stored, and as far as its pieces are there, as it was shown.
fn answers(queue: &mut Queue, message: i64) -> thread_sessions::Result<Vec<String>> {
    let Some(ending) = thread_conversation::ending_of(queue, message)? else { return Ok(Vec::new()) };
    let record = Record::of(ending);
    let stored = record.entry.ending().and_then(|ending| match ending.outcome {
        thread_conversation::Outcome::Answered => Some(thread_conversation::text_of(ending.text)),
        _ => ending.partial.map(str::to_owned),
    });
    let mut before = Path::default();
    let mut shown = None;
    crate::session::event::for_each(queue, message - 1, super::path::EVENTS, &mut |event| {
        if event.ends == Some(message) {
            shown = Some(before.said_so_far(message).to_owned());
        }
        if shown.is_none() {
            before.note(&event.record, event.ends);
        }
    })?;
    Ok(stored.into_iter().chain(shown).collect())
}

/// A message for a session, with its files stored.
async fn message(
    gateway: &Arc<Gateway>,
    session: SessionId,
    request: &Request,
    content: Content,
) -> Result<ClientMessage> {
    let (content, mut metadata, attachments) = taken(gateway, session, request, content).await?;
    let handed = handed(request.tools.clone(), &request.conversation.instructions);
    if !handed.is_empty() {
        metadata.insert(ClientInput::KEY.to_owned(), handed.0.into());
    }
    Ok(ClientMessage {
        content,
        priority: Priority::Next,
        metadata,
        key: None,
        is_only: true,
        run_id: None,
        message_id: Some(format!("msg_{}", short(Uuid::new_v4()))),
        attachments,
    })
}

/// Stores the files in a content. Returns what remains of it, the metadata that names them, and the files.
///
/// # Errors
///
/// It cannot be stored, or is refused.
pub async fn taken(
    gateway: &Arc<Gateway>,
    session: SessionId,
    request: &Request,
    mut content: Content,
) -> Result<(Content, serde_json::Map<String, serde_json::Value>, Vec<Object>)> {
    if let Content::Parts(parts) = &mut content {
        for part in parts {
            store_inline(gateway, session, part).await?;
        }
    }
    let mut own = request.own.clone();
    own.push(gateway.storage.base.clone());
    let mut metadata = serde_json::Map::new();
    let (content, files) = extract_attachments(&gateway.storage, &own, content, &mut metadata)?;
    Ok((content, metadata, files))
}
