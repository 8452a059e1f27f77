//! What methods of the protocol and commands have in common: creating and entering a session, sending a
//! message, cancelling a run, the status.

use serde_json::{Value, json};

use crate::client::Client;
use crate::error::Result;
use crate::session::runs::Runs;
use crate::session::speak::{self as disk, Accepted, ClientMessage};
use crate::session::{blocking, history};
use crate::session_id::SessionId;

/// How many messages `sessions.switch` returns.
const RECENT: usize = 20;

/// The result of a request.
pub struct Reply {
    pub payload: Value,
    /// Frames for this client alone, sent after the response.
    pub then: Vec<String>,
}

impl From<Value> for Reply {
    fn from(payload: Value) -> Reply {
        Reply { payload, then: Vec::new() }
    }
}

/// Creates a session, with a title if one is given.
///
/// # Errors
///
/// Errors of [`Root::create`](crate::session::root::Root::create) and of storing the title.
pub async fn create(client: &Client, title: Option<String>) -> Result<SessionId> {
    let (gateway, speaker) = (client.gateway.clone(), client.speaker.clone());
    blocking(move || {
        let session = SessionId::random();
        gateway.root.create(session, gateway.agent())?;
        if let Some(title) = title {
            let mut queue = gateway.root.queue(session)?;
            disk::title(&mut queue, &gateway.launcher, &speaker.source(session), &title)?;
        }
        Ok(session)
    })
    .await
}

/// Enters a session. With `after`, every later event is sent first.
///
/// # Errors
///
/// [`UnknownSession`](crate::error::RequestError::UnknownSession); errors of the thread.
pub async fn switch(client: &mut Client, session: SessionId, after: Option<u64>) -> Result<Value> {
    match after {
        None => client.enter(session).await?,
        Some(after) => {
            let gateway = client.gateway.clone();
            // An id that does not exist yet would suppress the next events.
            let newest = blocking(move || Ok(gateway.root.queue(session)?.newest()?.0)).await?;
            client.enter_after(session, i64::try_from(after).unwrap_or(i64::MAX).min(newest)).await?;
        }
    }
    let (gateway, last) = (client.gateway.clone(), client.last_seq());
    let (title, recent) = blocking(move || {
        let mut queue = gateway.root.queue(session)?;
        let listed = gateway.root.entry(session)?;
        let title = gateway.catalogue.summary(&gateway.root, &listed)?.title();
        let recent = history::before(&mut queue, last + 1, RECENT)?.messages;
        Ok((title, recent.iter().map(|event| history::shown(&gateway.storage, event)).collect::<Vec<_>>()))
    })
    .await?;
    let active = client.membership().and_then(|membership| {
        membership.follower().with_runs(|runs| runs.active().map(|(_, run)| run.run_id.clone()))
    });
    Ok(json!({
        "sessionId": session.to_string(),
        "title": title,
        "recentMessages": recent,
        "lastSeq": last,
        "activeRun": active,
    }))
}

/// Stores a message of a client.
///
/// # Errors
///
/// As [`disk::message`].
pub async fn send_message(client: &Client, session: SessionId, message: ClientMessage) -> Result<Accepted> {
    let (gateway, speaker) = (client.gateway.clone(), client.speaker.clone());
    blocking(move || {
        let mut queue = gateway.root.queue(session)?;
        if let Some(agent) = gateway.agent_for_all() {
            agent.replace(&mut queue)?;
        }
        disk::message(&mut queue, &gateway.launcher, session, &speaker, message)
    })
    .await
}

/// Requests the cancellation of a run, by default of the active one. Returns its id; `None` if there is none.
///
/// # Errors
///
/// [`UnknownRun`](crate::error::RequestError::UnknownRun); errors of the thread.
pub async fn cancel(client: &Client, session: SessionId, run_id: Option<String>) -> Result<Option<String>> {
    let (gateway, source) = (client.gateway.clone(), client.speaker.source(session));
    blocking(move || {
        let mut queue = gateway.root.queue(session)?;
        let run_id = match run_id {
            Some(run_id) => run_id,
            None => {
                let (runs, _) = Runs::of(&mut queue)?;
                match runs.active() {
                    Some((_, run)) => run.run_id.clone(),
                    None => return Ok(None),
                }
            }
        };
        disk::cancel(&mut queue, &gateway.launcher, &source, &run_id)?;
        Ok(Some(run_id))
    })
    .await
}

/// The status of the gateway, and of a session: the given one, or the one that the client is in.
///
/// # Errors
///
/// Errors of the thread.
pub async fn status(client: &Client, session: Option<SessionId>) -> Result<Value> {
    let gateway = client.gateway.clone();
    let mut status = json!({
        "gateway": {
            "version": env!("CARGO_PKG_VERSION"),
            "uptime": gateway.started.elapsed().as_secs(),
            "activeConnections": gateway.counters.connections(),
            "activeSessions": gateway.hub.followers().len(),
        },
        "session": null,
    });
    let Some(session) = session.or(client.session()) else { return Ok(status) };
    let clients = gateway.hub.follower(session).map_or(0, |follower| follower.clients());
    status["session"] = blocking(move || {
        let mut queue = gateway.root.queue(session)?;
        let (runs, _) = Runs::of(&mut queue)?;
        let summary = gateway.catalogue.summary(&gateway.root, &gateway.root.entry(session)?)?;
        Ok(json!({
            "id": session.to_string(),
            "messageCount": summary.messages,
            "queuedRequests": runs.queued(),
            "activeRun": runs.active().map(|(_, run)| &run.run_id),
            "clients": clients,
        }))
    })
    .await?;
    Ok(status)
}
