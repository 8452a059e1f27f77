//! How the gateway and a session are.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::client::{Client, parse_session};
use crate::error::Result;
use crate::session::blocking;
use crate::session::runs::Runs;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusParams {
    session_id: Option<String>,
}

/// `status`.
pub async fn status(client: &mut Client, params: StatusParams) -> Result<Value> {
    let gateway = client.gateway.clone();
    let mut status = json!({
        "gateway": {
            "version": env!("CARGO_PKG_VERSION"),
            "uptime": gateway.started.elapsed().as_secs(),
            "activeConnections": gateway.counters.connections(),
            "activeSessions": gateway.hub.everybody().len(),
        },
        "session": null,
    });
    let session = match params.session_id.as_deref() {
        Some(text) => parse_session(text)?,
        None => match client.session() {
            Some(session) => session,
            None => return Ok(status),
        },
    };
    let clients = gateway.hub.of(session).map_or(0, |follower| follower.clients());
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
