//! Sending messages.

use serde_json::Value;
use thread::Error;
use thread::model::due::Due;
use thread::model::key::{IdempotencyKey, InvalidKey};
use thread::model::time;
use thread_conversation::Priority;
use thread_protocol::Content;
use thread_protocol::method::{self, Acceptance, Accepted, AgentParams};
use thread_sessions::excerpt::echoed;
use thread_sessions::{RequestError, Result, SessionId};

use super::caller::{Caller, Reply, Then, parse_session};
use super::commands::{self, Command, Parsed};
use super::methods::{Effect, Handler};
use super::sessions;
use crate::agents::seating::Choice;
use crate::http::attachments::{inline_bytes, is_inline, store_inline};
use crate::http::error::HttpError;
use crate::session::write::{self, ClientMessage, SessionWriter};

/// The most files that a message may have in it.
const MOST_FILES: usize = 64;

/// Metadata keys that the gateway sets itself.
const RESERVED: &[&str] = &["run_id", "message_id", "client", "priority", "reply_to"];

impl Handler for method::Agent {
    /// Of the commands, most change nothing.
    fn effect(params: &AgentParams) -> Effect {
        let Content::Text(text) = &params.message else { return Effect::Writes };
        match commands::parse(text) {
            Parsed::Command(Command::New(_) | Command::Cancel | Command::Clear) | Parsed::Text(_) => {
                Effect::Writes
            }
            Parsed::Command(_) => Effect::Moves,
        }
    }

    async fn handle(caller: &Caller, params: AgentParams) -> Result<Reply<Accepted>> {
        let mut content = params.message;
        if let Content::Text(text) = &content {
            match commands::parse(text) {
                Parsed::Command(_) if params.at.is_some() => {
                    let what = "a command is carried out at once; leave 'at' out, or send a message";
                    return Err(RequestError::BadParams(what.into()));
                }
                Parsed::Command(command) => return Ok(commands::execute(caller, command).await),
                Parsed::Text(text) if text.trim().is_empty() => {
                    return Err(RequestError::BadParams("'message' is empty".into()));
                }
                Parsed::Text(text) => content = Content::Text(text.to_owned()),
            }
        }
        let due = params.at.as_deref().map(due_at).transpose()?;
        let named = params.session_id.as_deref().map(parse_session).transpose()?;
        let key = key_of(params.idempotency_key, named)?;
        let mut metadata = params.metadata.unwrap_or_default();
        for reserved in RESERVED {
            metadata.shift_remove(*reserved);
        }
        let mut session = named.or(caller.session);
        if let Content::Parts(parts) = &mut content
            && parts.iter().any(is_inline)
        {
            // What is refused makes no session.
            let (files, others): (Vec<Value>, Vec<Value>) = parts.iter().cloned().partition(is_inline);
            if files.len() > MOST_FILES {
                let what = format!("there are {} files in it, and {MOST_FILES} are the most", files.len());
                return Err(RequestError::BadParams(what));
            }
            files.iter().try_for_each(|part| inline_bytes(part).map(drop)).map_err(as_request_error)?;
            let (storage, origins) = (&caller.gateway.storage, &caller.origins);
            write::extract_attachments(storage, origins, Content::Parts(others), &mut metadata.clone())?;
            // The one to which the files belong.
            let owner = match session {
                Some(session) => session,
                None => sessions::create(caller, None, Choice::default()).await?,
            };
            caller.gateway.hub.enter(owner).await?;
            for part in parts {
                store_inline(&caller.gateway, owner, part).await.map_err(as_request_error)?;
            }
            session = Some(owner);
        }
        let (content, attachments) =
            write::extract_attachments(&caller.gateway.storage, &caller.origins, content, &mut metadata)?;
        let priority = params.priority.and_then(|word| Priority::of(word.as_str())).unwrap_or_default();
        let message = ClientMessage {
            content,
            priority,
            metadata,
            key,
            is_only: false,
            run_id: None,
            message_id: None,
            due,
            attachments,
        };
        let session = match session {
            Some(session) => session,
            None => sessions::create(caller, None, Choice::default()).await?,
        };
        // Read before the message is stored: then its run is noticed at once.
        let live = caller.gateway.hub.enter(session).await?;
        let gateway = caller.gateway.clone();
        let send = move |to: &mut SessionWriter<'_>| {
            gateway.agents.refresh(to.queue, session)?;
            to.message(&message)
        };
        let accepted = caller.write(session, send).await?;
        let (scheduled, scheduled_at) =
            accepted.scheduled.map(|(id, at)| (id.to_string(), time::format(at))).unzip();
        let status = match accepted.waits() {
            _ if scheduled.is_some() => Acceptance::Scheduled,
            true => Acceptance::Queued,
            false => Acceptance::Accepted,
        };
        let (run_id, session_id) = (Some(accepted.run_id.clone()), Some(session.to_string()));
        let payload = Accepted { run_id, session_id, status, scheduled, scheduled_at };
        let reply = match caller.hears(session) {
            true => Reply::from(payload),
            // It sees the session from its own message on.
            false => Reply::at(payload, live, accepted.event - 1),
        };
        Ok(Reply { then: Then::Queued(session, accepted), ..reply })
    }
}

fn due_at(text: &str) -> Result<Due> {
    let wrong = || {
        let what = format!("'at' is '{}'; give a time like 2026-03-18T10:30:00Z", echoed(text));
        RequestError::BadParams(what)
    };
    Ok(Due::At(time::parse(text).ok_or_else(wrong)?))
}

fn as_request_error(HttpError { status, error, .. }: HttpError) -> RequestError {
    if status.is_client_error() { RequestError::BadParams(error) } else { RequestError::Failed(error) }
}

fn key_of(key: Option<String>, session: Option<SessionId>) -> Result<Option<String>> {
    let bad = |what: &str| Err(RequestError::BadParams(format!("'idempotencyKey' {what}")));
    let Some(key) = key else { return Ok(None) };
    if session.is_none() {
        return bad("needs a 'sessionId'");
    }
    match IdempotencyKey::of_client("message", &key) {
        Ok(_) => Ok(Some(key)),
        Err(e @ InvalidKey::Reserved(_)) => Err(Error::from(e).into()),
        Err(_) => bad("must be 1 to 512 bytes"),
    }
}
