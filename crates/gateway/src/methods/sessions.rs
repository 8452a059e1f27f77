//! Listing, making, entering, reading, naming, searching and removing sessions.

use serde::Deserialize;
use serde_json::{Value, json};

use super::within;
use crate::client::{Client, parse_session};
use crate::error::{RequestError, Result};
use crate::protocol::content;
use crate::session::id::SessionId;
use crate::session::search::{self, Period};
use crate::session::{blocking, history, speak};

/// How many messages `sessions.switch` shows.
const RECENT: usize = 20;

/// Longest title, in characters.
const TITLE: usize = 200;

#[derive(Deserialize)]
pub struct ListParams {
    limit: Option<u64>,
    offset: Option<u64>,
}

/// `sessions.list`.
pub async fn list(client: &mut Client, params: ListParams) -> Result<Value> {
    let limit = within("limit", params.limit, 10, 100)?;
    let offset = usize::try_from(params.offset.unwrap_or_default()).unwrap_or(usize::MAX);
    let gateway = client.gateway.clone();
    blocking(move || gateway.catalogue.page(&gateway.root, offset, limit)).await
}

#[derive(Deserialize)]
pub struct NewParams {
    title: Option<String>,
}

/// `sessions.new`.
pub async fn new(client: &mut Client, params: NewParams) -> Result<Value> {
    let title = params.title.map(|title| title_of(&title)).transpose()?;
    let session = create(client, title.clone()).await?;
    client.enter(session).await?;
    Ok(json!({
        "sessionId": session.to_string(),
        "title": title.unwrap_or_default(),
        "createdAt": thread::model::time::now(),
    }))
}

/// Makes a session, with a title if one is given.
///
/// # Errors
///
/// Those of making it.
pub async fn create(client: &Client, title: Option<String>) -> Result<SessionId> {
    let (gateway, speaker) = (client.gateway.clone(), client.speaker.clone());
    blocking(move || {
        let session = SessionId::random();
        gateway.root.make(session, gateway.agent())?;
        if let Some(title) = title {
            let mut queue = gateway.root.queue(session)?;
            speak::title(&mut queue, &gateway.launcher, &speaker.source(session), &title)?;
        }
        Ok(session)
    })
    .await
}

fn title_of(title: &str) -> Result<String> {
    let title = content::beginning(title, TITLE);
    if title.is_empty() { Err(RequestError::BadParams("'title' is empty".into())) } else { Ok(title) }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SwitchParams {
    session_id: String,
    after: Option<u64>,
}

/// `sessions.switch`.
pub async fn switch_to(client: &mut Client, params: SwitchParams) -> Result<Value> {
    switch(client, parse_session(&params.session_id)?, params.after).await
}

/// Enters a session. With `after`, every later event is sent first.
///
/// # Errors
///
/// [`RequestError::UnknownSession`]; those of the thread.
pub async fn switch(client: &mut Client, session: SessionId, after: Option<u64>) -> Result<Value> {
    match after {
        None => client.enter(session).await?,
        Some(after) => {
            let gateway = client.gateway.clone();
            // An id that was never given would keep back what comes next.
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

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryParams {
    session_id: Option<String>,
    limit: Option<u64>,
    before: Option<Value>,
}

/// `sessions.history`.
pub async fn history(client: &mut Client, params: HistoryParams) -> Result<Value> {
    let session = client.session_or_current(params.session_id.as_deref())?;
    let limit = within("limit", params.limit, 20, 200)?;
    let gateway = client.gateway.clone();
    blocking(move || {
        let mut queue = gateway.root.queue(session)?;
        let before = match &params.before {
            Some(place) => history::place(&mut queue, place)?,
            None => i64::MAX,
        };
        let page = history::before(&mut queue, before, limit)?;
        let messages: Vec<Value> =
            page.messages.iter().map(|event| history::shown(&gateway.storage, event)).collect();
        Ok(json!({ "messages": messages, "hasMore": page.has_more }))
    })
    .await
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RenameParams {
    session_id: String,
    title: String,
}

/// `sessions.rename`.
pub async fn rename(client: &mut Client, params: RenameParams) -> Result<Value> {
    let session = parse_session(&params.session_id)?;
    let title = title_of(&params.title)?;
    let payload = json!({ "sessionId": session.to_string(), "title": title });
    let (gateway, source) = (client.gateway.clone(), client.speaker.source(session));
    blocking(move || {
        let mut queue = gateway.root.queue(session)?;
        speak::title(&mut queue, &gateway.launcher, &source, &title)
    })
    .await?;
    Ok(payload)
}

#[derive(Deserialize)]
pub struct SearchParams {
    query: Option<String>,
    date_filter: Option<Period>,
    limit: Option<u64>,
}

/// `sessions.search`.
pub async fn search(client: &mut Client, params: SearchParams) -> Result<Value> {
    let limit = within("limit", params.limit, 10, 100)?;
    let gateway = client.gateway.clone();
    blocking(move || {
        search::search(&gateway.root, &gateway.catalogue, params.query.as_deref(), params.date_filter, limit)
    })
    .await
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeleteParams {
    session_id: String,
}

/// `sessions.delete`.
pub async fn delete(client: &mut Client, params: DeleteParams) -> Result<Value> {
    let session = parse_session(&params.session_id)?;
    let gateway = client.gateway.clone();
    blocking(move || gateway.root.delete(session)).await?;
    client.gateway.catalogue.forget(session);
    if let Some(follower) = client.gateway.hub.of(session) {
        follower.deleted();
        client.gateway.hub.forget(&follower);
    }
    Ok(json!({ "sessionId": session.to_string() }))
}
