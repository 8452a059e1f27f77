//! What clients write to a session: messages, cancellations, titles, answers to permission requests.
//!
//! A message is stored, and the consumers that wait for it are started, before its client gets the response.
//! If the gateway is killed before that, the client gets none, sends the message again with the same key, and
//! the stored one is found.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use thread::model::due::{Due, ScheduledId};
use thread::model::key::IdempotencyKey;
use thread::model::scheduled::ScheduledEvent;
use thread::model::time::Time;
use thread::queue::PushedEvent;
use thread::run::Launcher;
use thread::{Error, NewEvent, Queue};
use thread_conversation::{AgentOptions, Entry, Message, OptionChosen, Priority, Record, keys};
use thread_protocol::Content;
use thread_sessions::cancel::{cancel, cancel_run_of};
use thread_sessions::excerpt::echoed;
use thread_sessions::{RequestError, Result, SessionId, open_runs};
use uuid::Uuid;

use crate::storage::{Object, Storage, parts};

/// How many scheduled events are read at a time.
const AT_ONCE: usize = 1000;

/// A client, as the author of what it sends.
#[derive(Debug, Clone)]
pub struct Author {
    /// The client's id: its own, or one that was assigned.
    pub client: String,
    pub client_type: String,
}

/// A message of a client.
#[derive(Debug, Clone)]
pub struct ClientMessage {
    pub content: Content,
    pub priority: Priority,
    /// Keys of the client's choice, stored with the message.
    pub metadata: Map<String, Value>,
    /// Becomes part of the idempotency key: a second message with the same one is a resend.
    pub key: Option<String>,
    /// No other message is a resend, even if it says the same: it must have the same `message_id`.
    pub is_only: bool,
    /// An id for the run, if the client has chosen one.
    pub run_id: Option<String>,
    pub message_id: Option<String>,
    /// When it is to be sent, if that is later.
    pub due: Option<Due>,
    /// Files of this gateway that it shows.
    pub attachments: Vec<Object>,
}

/// A stored message.
#[derive(Debug, Clone)]
pub struct Accepted {
    /// Its id. If it is scheduled, the first id that it can get.
    pub event: i64,
    pub run_id: String,
    /// How many runs are ahead of it; `None` if its run is over, or there is no agent.
    pub position: Option<usize>,
    /// Its number, and when it is sent, if it is scheduled.
    pub scheduled: Option<(ScheduledId, Time)>,
}

impl Accepted {
    /// Whether other runs are ahead of it.
    pub fn waits(&self) -> bool {
        self.position.is_some_and(|position| position > 0)
    }
}

impl Author {
    /// The source of its events in a session.
    pub fn source(&self, session: SessionId) -> String {
        format!("external:gateway:{}:dm:{session}:{}", segment(&self.client_type), segment(&self.client))
    }
}

/// Half of a UUID, for ids that need only be unique in their session: they stand in each of its events.
pub fn short(id: Uuid) -> String {
    format!("{:016x}", id.as_u64_pair().1)
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
    mut content: Content,
    metadata: &mut Map<String, Value>,
) -> Result<(Content, Vec<Object>)> {
    let mut none = Vec::new();
    let parts = match &mut content {
        Content::Parts(parts) => parts,
        Content::Text(_) => &mut none,
    };
    let attachments = parts::extract(storage, own, parts, metadata)?;
    Ok((content, attachments))
}

/// The hand of an author in a session.
pub struct SessionWriter<'w> {
    pub queue: &'w mut Queue,
    pub launcher: &'w Launcher,
    pub storage: &'w Storage,
    pub session: SessionId,
    pub author: &'w Author,
}

impl SessionWriter<'_> {
    /// The source of what is written.
    pub fn source(&self) -> String {
        self.author.source(self.session)
    }

    /// Stores a message and wakes the agent. Its attachments belong to the session from then on.
    ///
    /// # Errors
    ///
    /// [`RequestError::KeyConflict`]; an attachment was deleted; errors of the thread.
    pub fn message(&mut self, sent: &ClientMessage) -> Result<Accepted> {
        let SessionWriter { queue, launcher, storage, session, author } = self;
        for object in &sent.attachments {
            storage.claim(object, *session).map_err(|e| match e.kind() {
                std::io::ErrorKind::NotFound => {
                    RequestError::BadParams("an attachment is refused: it was deleted".into())
                }
                _ => RequestError::Disk(storage.file_of(object), e),
            })?;
        }
        let made = |what: &str| {
            let id = sent.key.as_ref().map_or_else(Uuid::new_v4, |key| session.made_from(key));
            format!("{what}_{}", short(id))
        };
        let mut run_id = sent.run_id.clone().unwrap_or_else(|| made("run"));
        let message = Message {
            run_id: Some(run_id.clone()),
            message_id: Some(sent.message_id.clone().unwrap_or_else(|| made("msg"))),
            priority: sent.priority,
            client: Some(author.client.clone()),
            resume: sent.metadata.get("resume").and_then(Value::as_bool).unwrap_or_default(),
            other: sent.metadata.clone(),
            content: sent.content.to_stored(),
        };
        let mut event = message.event(&author.source(*session)).map_err(Error::from)?;
        let mut before = None;
        if let Some(key) = &sent.key {
            let key = IdempotencyKey::reserved("message", key).map_err(Error::from)?;
            if let Some(stored) = keys::stored_before(queue, &key)?.map(Record::of) {
                before = sent_before(&stored, &message, sent.is_only).map(|run_id| (stored.id(), run_id));
                // Otherwise it is a user's own key.
                if before.is_none() && stored.event.source.starts_with("external:gateway:") {
                    return Err(RequestError::KeyConflict(sent.key.clone().unwrap_or_default()));
                }
            }
            event = event.keyed(key);
        }
        if let Some(due) = sent.due {
            event = event.with_due(due).map_err(Error::from)?;
        }
        if let Some((id, before)) = before {
            thread::run::dispatch(queue, launcher)?;
            let (_, runs, _) = open_runs(queue)?;
            return Ok(Accepted { event: id, run_id: before, position: runs.position(id), scheduled: None });
        }
        // The first id that it can get if it is scheduled. Without `at`, it may have been scheduled before.
        let next = if sent.due.is_some() || sent.key.is_some() { queue.newest()?.0 + 1 } else { 0 };
        // A resend under another client id or with other metadata is another event: compare the content.
        let resent = |stored: Option<Record>| {
            let stored = stored.and_then(|stored| sent_before(&stored, &message, sent.is_only));
            // A gateway of another version may have made another id from the key.
            let stored = stored.filter(|stored| sent.run_id.as_ref().is_none_or(|run_id| run_id == stored));
            stored.ok_or_else(|| RequestError::KeyConflict(sent.key.clone().unwrap_or_default()))
        };
        let pushed = match thread::run::push(queue, launcher, &event) {
            Ok(PushedEvent { scheduled: scheduled @ Some(_), .. }) => {
                return Ok(Accepted { event: next, run_id, position: None, scheduled });
            }
            Ok(pushed) => pushed.id,
            Err(Error::KeyConflict { id, .. }) => {
                run_id = resent(queue.event(id)?.map(Record::of))?;
                id
            }
            Err(Error::ScheduledKeyConflict { id, .. }) => {
                // It may have been sent, or cancelled, since.
                let Some(ScheduledEvent { due, event, .. }) = scheduled(queue, id)? else {
                    return self.message(sent);
                };
                let run_id = resent(Some(Record::of(event.row(next, "").to_event())))?;
                return Ok(Accepted { event: next, run_id, position: None, scheduled: Some((id, due)) });
            }
            Err(e) => return Err(e.into()),
        };
        let (_, runs, _) = open_runs(queue)?;
        Ok(Accepted { event: pushed, run_id, position: runs.position(pushed), scheduled: None })
    }

    /// Sets the title of the session.
    ///
    /// # Errors
    ///
    /// Errors of the thread.
    pub fn title(&mut self, title: &str) -> Result<()> {
        let event = thread_conversation::title(&self.source(), title).map_err(Error::from)?;
        self.push(&event)
    }

    /// Makes the agent forget the conversation so far.
    ///
    /// # Errors
    ///
    /// Errors of the thread.
    pub fn clear(&mut self) -> Result<()> {
        let event = thread_conversation::clear(&self.source()).map_err(Error::from)?;
        self.push(&event)
    }

    /// Requests the end of a run: see [`cancel()`].
    ///
    /// # Errors
    ///
    /// As [`cancel()`].
    pub fn cancel(&mut self, run_id: Option<&str>) -> Result<Option<String>> {
        cancel(self.queue, self.launcher, &self.source(), run_id)
    }

    /// Requests the end of the run of a message, if it is open.
    ///
    /// # Errors
    ///
    /// Errors of the thread.
    pub fn cancel_run_of(&mut self, message: i64) -> Result<()> {
        cancel_run_of(self.queue, self.launcher, &self.source(), message)
    }

    /// Answers a permission request of the agent.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownPermission`]; the choice was not offered; errors of the thread.
    pub fn permission(&mut self, request_id: &str, choice: &str) -> Result<()> {
        let (_, runs, _) = open_runs(self.queue)?;
        let mut asked = runs.iter().flat_map(|run| &run.open_permissions);
        let asked = asked.find(|asked| asked.request_id == request_id);
        let asked = asked.ok_or_else(|| RequestError::UnknownPermission(request_id.to_owned()))?;
        if !asked.choices.iter().any(|offered| offered == choice) {
            return Err(RequestError::BadParams(format!("the choices are {}", asked.choices.join(", "))));
        }
        let event = thread_conversation::permission_answer(&self.source(), request_id, choice);
        self.push(&event.map_err(Error::from)?)
    }

    /// Chooses values of the agent's options, by their ids. `all` are those that it has, and has them then.
    ///
    /// # Errors
    ///
    /// There is no such option, or no such value of it; errors of the thread.
    pub fn choose(&mut self, all: &mut AgentOptions, wanted: &BTreeMap<String, String>) -> Result<()> {
        let mut chosen = Vec::new();
        for (id, value) in wanted {
            let choice = OptionChosen { id: id.clone(), value: value.clone() };
            match all.find(&choice) {
                Some(option) if option.current == *value => {}
                Some(_) => chosen.push(choice),
                None => return Err(RequestError::BadParams(no_such_value(all, &choice))),
            }
        }
        for choice in chosen {
            self.push(&thread_conversation::option(&self.source(), &choice).map_err(Error::from)?)?;
            all.choose(&choice);
        }
        Ok(())
    }

    /// Stores an event and wakes consumers and waiters.
    ///
    /// # Errors
    ///
    /// Errors of the thread.
    pub fn push(&mut self, event: &NewEvent<'_>) -> Result<()> {
        thread::run::push(self.queue, self.launcher, event)?;
        Ok(())
    }
}

/// Why something cannot be chosen.
fn no_such_value(all: &AgentOptions, OptionChosen { id, value }: &OptionChosen) -> String {
    let found = all.options.iter().find(|option| option.id == *id);
    let (id, value) = (echoed(id), echoed(value));
    match found {
        Some(option) => {
            let ids: Vec<&str> = option.choices.iter().map(|choice| &*choice.id).collect();
            format!("the option '{id}' cannot be '{value}'; it can be: {}", ids.join(", "))
        }
        None => format!("the agent of this session has no option '{id}'"),
    }
}

/// The scheduled event of this number, if it is still there.
fn scheduled(queue: &mut Queue, id: ScheduledId) -> thread::Result<Option<ScheduledEvent>> {
    let mut after = None;
    loop {
        let page = queue.scheduled(after, AT_ONCE)?;
        after = page.last().map(|last| (last.due, last.id));
        let is_last = page.len() < AT_ONCE;
        let found = page.into_iter().find(|scheduled| scheduled.id == id);
        if found.is_some() || is_last {
            return Ok(found);
        }
    }
}

/// The run of the stored message, if `message` has the same content, and if it must, the same id.
fn sent_before(stored: &Record, message: &Message, is_only: bool) -> Option<String> {
    let Entry::Message(other) = &stored.entry else { return None };
    let is_same = other.content == message.content
        && other.priority == message.priority
        && (!is_only || other.message_id == message.message_id);
    stored.run_id.clone().filter(|_| is_same)
}

#[cfg(test)]
mod schedules;
#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_of_a_session_are_short_and_each_is_another() {
        let session = SessionId::random();
        let ids =
            (0..10_000).map(|_| Uuid::new_v4()).chain((0..10_000).map(|n| session.made_from(n.to_string())));
        let ids: HashSet<String> = ids.map(short).collect();
        assert_eq!(ids.len(), 20_000);
        assert!(ids.iter().all(|id| id.len() == 16), "{ids:?}");
        assert_eq!(short(session.made_from("key")), short(session.made_from("key")));
    }
}
