//! Finds the session that a request continues, or makes one, and stores what the client says.
//!
//! The end of a session is continued once: the idempotency key of a message names what it follows. If that is taken, or
//! the client continues from a place before the end, a copy is made of what it shows. If no session has that, a new one
//! begins with what the client brings.

use std::sync::Arc;
use std::time::Duration;

use thread::model::time;
use thread_sessions::SessionId;

use super::asked::{Begun, Request};
use super::attempt::{Aim, Tried, attempt};
use super::calls::answer_calls;
use super::conversation::Asks;
use super::error::{OpenAiError, Result};
use super::matching::fit;
use super::new_session::{begun_in, brought, copied};
use super::path::Path;
use crate::gateway::Gateway;
use crate::http::agui::translate::Start;
use crate::session::blocking_pool::blocking;

/// How many sessions with the same texts are tried.
const TRIED: usize = 8;

/// How long after its end a run is still the one that a client asks for again.
const ENDED: Duration = Duration::from_secs(10 * 60);

/// Stores what a client says, or finds the run that it asks for again.
///
/// # Errors
///
/// The request is wrong; errors of the threads.
pub async fn begin(gateway: &Arc<Gateway>, request: Request) -> Result<Begun> {
    let content = match &request.conversation.asks {
        Asks::Results(results) => return answer_calls(gateway, &request, results).await,
        Asks::Message(content) => content.clone(),
    };
    if request.is_task {
        return begun_in(gateway, SessionId::hidden(), &request, &content).await;
    }
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
                return copied(gateway, session, before, &request, &content).await;
            }
            Tried::Other => {}
        }
    }
    if request.after.is_some() {
        let what = "the session no longer has the run of that response - begin a new conversation";
        return Err(OpenAiError::of_param("previous_response_id", what));
    }
    brought(gateway, &request, &content).await
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
    let mut fits: Vec<_> = fits
        .filter_map(|(session, path)| {
            let fit = fit(past, &path, &mut |exchange, beginning| {
                exchange.may_begin_with(beginning, request.chat.is_some())
            })?;
            Some((session, fit, fit.rank(path.model.as_ref() == Some(&request.model))))
        })
        // Nothing was said: that is no place to continue, unless it has that name.
        .filter(|(session, fit, _)| !past.is_empty() || fit.is_end && named == Some(*session))
        .collect();
    // A stable sort: those that were active last stay first.
    fits.sort_by_key(|(.., rank)| std::cmp::Reverse(*rank));
    Ok(fits.into_iter().take(TRIED).map(|(session, ..)| session).collect())
}
