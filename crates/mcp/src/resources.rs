//! Threads as resources: `thread://<path>/events`, the last events, a line of JSON for each.
//!
//! The path is that of the server's own thread, or the id of a session.

use std::path::PathBuf;
use std::sync::Arc;

use rmcp::model::Resource;
use thread_sessions::catalogue;

use crate::problem::{Problem, Result};
use crate::scope::{Scope, Turn, open};
use crate::text;

/// How many events a resource has at most, and how many sessions are listed.
const EVENTS: u64 = 100;
const SESSIONS: usize = 20;

pub const MIME: &str = "application/x-ndjson";
pub const TEMPLATE: &str = "thread://{session}/events";

/// The server's own thread, and the sessions that were active last.
pub async fn list(scope: &Arc<Scope>) -> Result<Vec<Resource>> {
    scope
        .blocking(Turn::List, |scope| {
            let own = scope.thread.iter().map(|path| {
                let title = path.file_name().map(|name| name.to_string_lossy().into_owned());
                resource(&path.display(), title.unwrap_or_default())
            });
            let mut resources: Vec<Resource> = own.collect();
            if let Some(root) = &scope.root {
                for listed in catalogue::entries(root)?.iter().take(SESSIONS) {
                    let summary = scope.catalogue.summary(root, listed).unwrap_or_default();
                    resources.push(resource(&listed.id, summary.title()));
                }
            }
            Ok(resources)
        })
        .await
}

fn resource(path: &dyn std::fmt::Display, title: String) -> Resource {
    Resource::new(uri(path), title).with_mime_type(MIME)
}

fn uri(path: &dyn std::fmt::Display) -> String {
    format!("thread://{path}/events")
}

/// The last events of a thread.
pub async fn read(scope: &Arc<Scope>, uri: String) -> Result<String> {
    let path = path_of(scope, &uri)?;
    scope
        .blocking(Turn::Read(path.clone()), move |_| {
            let mut queue = open(&path)?;
            let (events, _) = text::tail(&mut queue, EVENTS)?;
            let lines = events.iter().filter_map(|event| serde_json::to_string(event).ok());
            Ok(lines.map(|line| line + "\n").collect())
        })
        .await
}

fn path_of(scope: &Scope, wanted: &str) -> Result<PathBuf> {
    if let Some(own) = scope.thread.as_ref().filter(|own| uri(&own.display()) == wanted) {
        return Ok(own.clone());
    }
    let session = wanted.strip_prefix("thread://").and_then(|rest| rest.strip_suffix("/events"));
    let session = session.filter(|_| scope.root.is_some());
    let unknown = || Problem::new("there is no such resource", "see resources/list");
    scope.path_of(Some(session.ok_or_else(unknown)?))
}
