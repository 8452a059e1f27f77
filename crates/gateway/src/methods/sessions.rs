//! Listing, creating, entering, reading, renaming, searching and deleting sessions.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::actions::{create, switch};
use crate::client::{Client, parse_session};
use crate::error::{RequestError, Result};
use crate::protocol::content;
use crate::session::search::{self, Period};
use crate::session::{blocking, history, speak};

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
    if let Some(follower) = client.gateway.hub.follower(session) {
        follower.deleted();
        client.gateway.hub.forget(&follower);
    }
    Ok(json!({ "sessionId": session.to_string() }))
}

/// A number from 1 to `most`, or its default.
fn within(name: &str, value: Option<u64>, default: usize, most: usize) -> Result<usize> {
    match value.map(usize::try_from) {
        None => Ok(default),
        Some(Ok(value)) if (1..=most).contains(&value) => Ok(value),
        Some(_) => Err(RequestError::BadParams(format!("'{name}' must be 1 to {most}"))),
    }
}
