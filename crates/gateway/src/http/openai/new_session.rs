//! Sessions for conversations that continue in none that is there.

use std::sync::Arc;

use thread::{Error, NewEvent};
use thread_conversation::{Answer, Fork, Message, Run};
use thread_protocol::Content;
use thread_sessions::{Kind, RequestError, SessionId};

use super::asked::{Begun, Request, author, taken};
use super::attempt::{Aim, Tried, attempt};
use super::error::Result;
use super::path::About;
use crate::agents::seating::Choice;
use crate::gateway::Gateway;
use crate::session::root::{Copying, create_with_messages, fork};

/// Continues in a copy of what a session has before a message.
///
/// # Errors
///
/// Errors of the threads.
pub async fn copied(
    gateway: &Arc<Gateway>,
    from: SessionId,
    before: i64,
    request: &Request,
    content: &Content,
) -> Result<Begun> {
    let session = SessionId::random();
    let own = gateway.clone();
    let source = author(request.user.as_deref()).source(session);
    let work = move || {
        let title = own.catalogue.summary(&own.root, &own.root.entry(from)?)?.title();
        let before = format!("event_{before}");
        let copying =
            Copying { before: Some(&before), step: None, title: None, title_there: &title, source: &source };
        fork(&own.root, from, session, copying, &own.agents, &own.storage)
    };
    gateway.common.copies.run(from, Kind::Read, work).await?;
    // Nobody else knows it.
    match attempt(gateway, session, request, content, Aim::End).await? {
        Tried::Begun(start) => Ok(Begun { session, start }),
        _ => Err(RequestError::NotNow(format!("session '{session}' was just changed")).into()),
    }
}

/// Continues in a session that begins with what the client has brought.
///
/// # Errors
///
/// A file is refused; errors of the threads.
pub async fn brought(gateway: &Arc<Gateway>, request: &Request, content: &Content) -> Result<Begun> {
    let named = request.chat.as_deref().map(SessionId::named);
    let is_free = |id: &SessionId| !gateway.root.path_of(*id).join(thread::files::DB).exists();
    if let Some(session) = named.filter(is_free) {
        create(gateway, session, request).await?;
        // Another request may have made it at the same time.
        if let Tried::Begun(start) = attempt(gateway, session, request, content, Aim::Shown).await? {
            return Ok(Begun { session, start });
        }
    }
    begun_in(gateway, SessionId::random(), request, content).await
}

/// Begins in a new session, with what the client has brought.
///
/// # Errors
///
/// A file is refused; errors of the threads.
pub async fn begun_in(
    gateway: &Arc<Gateway>,
    session: SessionId,
    request: &Request,
    content: &Content,
) -> Result<Begun> {
    create(gateway, session, request).await?;
    match attempt(gateway, session, request, content, Aim::End).await? {
        Tried::Begun(start) => Ok(Begun { session, start }),
        _ => Err(RequestError::NotNow(format!("session '{session}' was just changed")).into()),
    }
}

/// Makes a session that begins with what the client has brought.
async fn create(gateway: &Arc<Gateway>, session: SessionId, request: &Request) -> Result<()> {
    let source = author(request.user.as_deref()).source(session);
    let about = About { user: request.user.clone(), chat: request.chat.clone(), ..About::default() };
    let (mut events, mut files) = (Vec::new(), Vec::new());
    for exchange in &request.conversation.past {
        let said = match &exchange.user {
            Some(said) => Some(taken(gateway, session, request, said.clone()).await?),
            None => None,
        };
        let said = said.map(|(content, mut metadata, named)| {
            files.extend(named);
            about.put(&mut metadata);
            Message { content: content.to_stored(), other: metadata, ..Message::default() }
        });
        push_exchange(&mut events, &source, said, exchange.whole_answer()).map_err(RequestError::from)?;
    }
    if !events.is_empty() {
        let fork = Fork { session_id: String::new(), title: String::new(), before: None };
        let forked = thread_conversation::forked(&source, &fork).map_err(Error::from);
        events.push(forked.map_err(RequestError::from)?);
    }
    let own = gateway.clone();
    let choice = Choice { agent: Some(request.model.clone()), ..Choice::default() };
    let work = move || {
        for file in &files {
            own.storage.claim(file, session).map_err(|e| RequestError::Disk(own.storage.file_of(file), e))?;
        }
        let agent = own.agents.seat(session, &choice)?;
        create_with_messages(&own.root, session, agent.as_ref(), &events)
    };
    Ok(gateway.pool().run(session, Kind::Write, work).await?)
}

/// Adds what was said before, as a session has it: a message, and the answer under its key.
fn push_exchange(
    events: &mut Vec<NewEvent<'static>>,
    source: &str,
    said: Option<Message>,
    answer: String,
) -> std::result::Result<(), Error> {
    let mut run = Run { is_own: true, ..Run::default() };
    if let Some(message) = said {
        events.push(message.event(source)?);
        let id = events.len() as i64;
        run = Run { run_id: thread_conversation::run_id_of(id), reply_to: id, attempt: 0, is_own: false };
    }
    if !answer.is_empty() {
        let is_first = run.is_own;
        let mut event = run.answer(&Answer { content: answer, ..Answer::default() });
        if is_first {
            // It answers nothing, and ends no run.
            (event.metadata, event.idempotency_key) = (None, None);
        }
        events.push(event);
    }
    Ok(())
}
