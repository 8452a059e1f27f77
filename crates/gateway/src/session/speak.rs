//! What clients write to a session: messages, cancellations, titles, answers to permission requests.
//!
//! A message is stored, and the consumers that wait for it are started, before its client gets the response.
//! If the gateway is killed before that, the client gets none, sends the message again with the same key, and
//! the stored one is found.

use serde_json::{Map, Value};
use thread::run::Launcher;
use thread::{Error, Event, NewEvent, Queue};
use thread_agent::conversation::{self, Entry, Message, Priority};
use uuid::Uuid;

use super::history;
use super::runs::Runs;
use crate::error::{RequestError, Result};
use crate::protocol::content;
use crate::session_id::SessionId;
use crate::storage::{Storage, parts};

/// Longest idempotency key, in bytes.
pub const MAX_KEY: usize = 512;

/// A client, as the author of what it sends.
#[derive(Debug, Clone)]
pub struct Speaker {
    /// The client's id: its own, or one that was assigned.
    pub client: String,
    pub client_type: String,
}

/// A message of a client.
#[derive(Debug, Clone)]
pub struct ClientMessage {
    /// Text, or the JSON text of content parts.
    pub content: String,
    pub priority: Priority,
    /// Keys of the client's choice, stored with the message.
    pub metadata: Map<String, Value>,
    /// Idempotency key: a second message with the same key is a resend.
    pub key: Option<String>,
    /// An id for the run, if the client has chosen one.
    pub run_id: Option<String>,
    pub message_id: Option<String>,
}

/// A stored message.
#[derive(Debug, Clone)]
pub struct Accepted {
    pub event: i64,
    pub run_id: String,
    /// How many runs are ahead of it; `None` if its run is over, or there is no agent.
    pub position: Option<usize>,
}

impl Speaker {
    /// The source of its events in a session.
    pub fn source(&self, session: SessionId) -> String {
        format!("external:gateway:{}:dm:{session}:{}", segment(&self.client_type), segment(&self.client))
    }
}

/// A text as a segment of a source: lower case, without colons.
fn segment(text: &str) -> String {
    let plain =
        |c: char| if c.is_ascii_alphanumeric() || "-_.@/".contains(c) { c.to_ascii_lowercase() } else { '-' };
    let segment: String = text.chars().take(64).map(plain).collect();
    if segment.is_empty() { "default".to_owned() } else { segment }
}

/// Extracts the attachments of a message, as [`parts::extract`] does.
///
/// # Errors
///
/// An attachment is refused.
pub fn extract_attachments(
    storage: &Storage,
    own: &[String],
    content: &mut String,
    metadata: &mut Map<String, Value>,
) -> Result<()> {
    let mut parts = content::parts(content).unwrap_or_default();
    parts::extract(storage, own, &mut parts, metadata)?;
    if !parts.is_empty() {
        *content = Value::Array(parts).to_string();
    }
    Ok(())
}

/// Stores a message and wakes the agent.
///
/// # Errors
///
/// [`RequestError::KeyConflict`]; errors of the thread.
pub fn message(
    queue: &mut Queue,
    launcher: &Launcher,
    session: SessionId,
    speaker: &Speaker,
    sent: ClientMessage,
) -> Result<Accepted> {
    let made = |what: &str| match &sent.key {
        Some(key) => format!("{what}_{}", session.made_from(key)),
        None => format!("{what}_{}", Uuid::new_v4()),
    };
    let run_id = sent.run_id.clone().unwrap_or_else(|| made("run"));
    let message = Message {
        run_id: Some(run_id.clone()),
        message_id: Some(sent.message_id.clone().unwrap_or_else(|| made("msg"))),
        priority: sent.priority,
        client: Some(speaker.client.clone()),
        resume: sent.metadata.get("resume").and_then(Value::as_bool).unwrap_or_default(),
        other: sent.metadata,
        content: sent.content,
    };
    let mut event = message.event(&speaker.source(session)).map_err(Error::from)?;
    if let Some(key) = &sent.key {
        event = event.with_key(format!("message:{key}")).map_err(Error::from)?;
    }
    let pushed = match queue.push(&event) {
        Ok(pushed) => pushed.id,
        // A resend under another client id or with other metadata is another event: compare what was said.
        Err(Error::KeyConflict { id, .. }) => match history::event(queue, id)? {
            Some(stored) if is_resend(&stored, &message) => id,
            _ => return Err(RequestError::KeyConflict(sent.key.unwrap_or_default())),
        },
        Err(e) => return Err(e.into()),
    };
    wake(queue, launcher, &event.source);
    let (runs, _) = Runs::of(queue)?;
    Ok(Accepted { event: pushed, run_id, position: runs.position(pushed) })
}

fn is_resend(stored: &Event, message: &Message) -> bool {
    let (run_id, Entry::Message(other)) = Entry::of(stored) else { return false };
    other.content == message.content && other.priority == message.priority && run_id == message.run_id
}

/// Requests the cancellation of a run.
///
/// # Errors
///
/// [`RequestError::UnknownRun`]; errors of the thread.
pub fn cancel(queue: &mut Queue, launcher: &Launcher, source: &str, run_id: &str) -> Result<()> {
    let (runs, _) = Runs::of(queue)?;
    if runs.with_id(run_id).next().is_none() {
        return Err(RequestError::UnknownRun(run_id.to_owned()));
    }
    let event = conversation::cancel(source, run_id, "requested by a client").map_err(Error::from)?;
    push(queue, launcher, &event)
}

/// Sets the title of a session.
///
/// # Errors
///
/// Errors of the thread.
pub fn title(queue: &mut Queue, launcher: &Launcher, source: &str, title: &str) -> Result<()> {
    let event = conversation::title(source, title).map_err(Error::from)?;
    push(queue, launcher, &event)
}

/// Answers a permission request of the agent.
///
/// # Errors
///
/// [`RequestError::UnknownPermission`]; the choice was not offered; errors of the thread.
pub fn permission(
    queue: &mut Queue,
    launcher: &Launcher,
    source: &str,
    request_id: &str,
    choice: &str,
) -> Result<()> {
    let unknown = || RequestError::UnknownPermission(request_id.to_owned());
    let ids =
        history::newest_matching(queue, "subtype IN ('permission', 'permission_answer')", i64::MAX, 1000)?;
    let mut asked = None;
    for id in ids {
        match history::event(queue, id)?.map(|event| Entry::of(&event).1) {
            Some(Entry::PermissionAnswer { request_id: answered, .. }) if answered == request_id => {
                return Err(unknown());
            }
            Some(Entry::Permission(permission)) if permission.request_id == request_id => {
                asked = Some(permission);
                break;
            }
            _ => {}
        }
    }
    let asked = asked.ok_or_else(unknown)?;
    if !asked.choices.iter().any(|offered| offered.id == choice) {
        let offered: Vec<&str> = asked.choices.iter().map(|offered| &*offered.id).collect();
        return Err(RequestError::BadParams(format!("the choices are {}", offered.join(", "))));
    }
    let event = conversation::permission_answer(source, request_id, choice).map_err(Error::from)?;
    push(queue, launcher, &event)
}

fn push(queue: &mut Queue, launcher: &Launcher, event: &NewEvent<'_>) -> Result<()> {
    queue.push(event)?;
    wake(queue, launcher, &event.source);
    Ok(())
}

/// Starts the consumers that have something pending. A failure is logged in the thread; the next push tries
/// again.
pub fn wake(queue: &mut Queue, launcher: &Launcher, source: &str) {
    if let Err(e) = thread::run::wake(queue, launcher, source) {
        queue.log(thread::files::log::Level::Warn, format_args!("wake: {e}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_client_makes_a_source_of_the_right_form() {
        for (client, client_type) in [("Ada:1", "Web UI"), ("", ""), ("ß\n", "x"), (&*"a".repeat(500), "cli")]
        {
            let speaker = Speaker { client: client.into(), client_type: client_type.into() };
            let source = speaker.source(SessionId::random());
            assert_eq!(thread::model::event::source_warning(&source), None, "{source}");
        }
    }
}
