//! Continuing a session, if it is what the client shows and nobody else has continued it.

use std::sync::Arc;

use thread::Queue;
use thread_conversation::{ClientInput, Priority, Record};
use thread_protocol::Content;
use thread_sessions::{Kind, RequestError, SessionId};
use uuid::Uuid;

use super::asked::{CLIENT, Request, author, taken};
use super::conversation::Exchange;
use super::error::{OpenAiError, Result};
use super::known::update;
use super::matching::{Fit, fit};
use super::path::{About, Path, handed};
use super::text::normal;
use crate::agents::seating::Choice;
use crate::gateway::Gateway;
use crate::http::agui::translate::Start;
use crate::session::write::{Author, ClientMessage, short};

/// The most that is handed to the agent with a message, in bytes of JSON.
const MAX_HANDED: usize = 1024 * 1024;

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
    let wanted = request.is_named.then(|| request.model.clone());
    let work = move || {
        let mut queue = own.root.queue(session)?;
        let mut path = own.known.last(session);
        update(&mut path, &mut queue)?;
        let has_chat = about.chat.is_some();
        let Some(fit) = place(&mut queue, &path, &past, aim, has_chat)? else { return Ok(Tried::Other) };
        let copy = |path: &Path| match path.exchanges.get(fit.at) {
            Some(next) if fit.can_be_copied => Tried::Copy { before: next.message },
            _ => Tried::Other,
        };
        if !fit.is_end {
            return Ok(copy(&path));
        }
        // Writes of a gateway to a session come one after another, so the message goes here, unless another gateway on the root
        // is faster. Only then is the session moved for nothing.
        move_to(&own, &mut queue, session, &author, wanted.as_deref())?;
        own.agents.refresh(&mut queue, session)?;
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

/// Moves a session to the agent that a request names, if it has another.
fn move_to(
    gateway: &Gateway,
    queue: &mut Queue,
    session: SessionId,
    author: &Author,
    wanted: Option<&str>,
) -> thread_sessions::Result<()> {
    let Some(wanted) = wanted else { return Ok(()) };
    let (_, now) = Choice::of(queue)?;
    // A session whose agent has no name is not of this gateway's choosing.
    if now.agent.is_none_or(|now| now == wanted) {
        return Ok(());
    }
    let choice = Choice { agent: Some(wanted.to_owned()), ..Choice::default() };
    gateway.agents.update(queue, session, &author.source(session), &choice).map(|_| ())
}

/// The place in a session, as its thread has it now. `has_chat`: the client has named the conversation.
fn place(
    queue: &mut Queue,
    path: &Path,
    past: &[Exchange],
    aim: Aim,
    has_chat: bool,
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
        if beginning.is_empty() {
            return exchange.may_begin_with(beginning, has_chat);
        }
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
    if serde_json::to_string(&handed.0).is_ok_and(|text| text.len() > MAX_HANDED) {
        let what = "the tools and instructions have more than 1 MiB - send less of them";
        return Err(OpenAiError::of_param("tools", what));
    }
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
        due: None,
        attachments,
    })
}
