//! The agent of one session: what was chosen for it, and how the session comes to it or is moved to another.

use std::path::PathBuf;

use thread::model::subscription::{ConsumerId, Subscription};
use thread::run::Launcher;
use thread::{Error, Queue};
use thread_agent::install::Install;
use thread_agent::seat::{Seat, Seated, Setting};
use thread_agent::store::push_once;
use thread_conversation::CONSUMER;
use thread_protocol::method::Updated;
use thread_sessions::{RequestError, Result, SessionId};
use uuid::Uuid;

use super::Agents;

/// What was chosen for one session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// The name of the agent.
    pub agent: Option<String>,
    pub model: Option<String>,
    pub cwd: Option<String>,
}

impl Choice {
    pub fn is_empty(&self) -> bool {
        *self == Choice::default()
    }

    /// What a session's subscription says of its agent, and what was chosen there.
    ///
    /// # Errors
    ///
    /// Errors of the thread.
    pub fn of(queue: &mut Queue) -> Result<(Seated, Choice)> {
        let subscription = queue.find_subscription(&consumer())?;
        let seated = subscription.as_ref().map(|now| Seated::of(&now.handler_cmd)).unwrap_or_default();
        let cwd = subscription.and_then(|now| now.cwd).filter(|_| seated.seat.chose.contains(&Setting::Cwd));
        let choice = Choice {
            agent: seated.seat.name.clone(),
            model: seated.chosen_model().map(str::to_owned),
            cwd: cwd.map(|cwd| cwd.to_string_lossy().into_owned()),
        };
        Ok((seated, choice))
    }

    /// What a session has.
    pub fn updated(self, session: SessionId) -> Updated {
        let Choice { agent, model, cwd } = self;
        let (session_id, agent) = (session.to_string(), agent.unwrap_or_default());
        Updated { session_id, agent, model, cwd, options: Vec::new() }
    }
}

/// An agent as one session gets it.
#[derive(Debug, Clone)]
pub struct Ready {
    pub install: Install,
    pub seat: Seat,
    /// The model, if it was chosen for this session.
    pub model: Option<String>,
    pub launcher: Launcher,
}

impl Ready {
    /// Subscribes the agent in a thread whose first `said` events are past for it. With `replace`, it takes the place
    /// of the session's agent.
    ///
    /// # Errors
    ///
    /// Errors of the thread.
    pub fn install(&self, queue: &mut Queue, said: i64, replace: bool) -> Result<()> {
        let from = Some(said).filter(|said| *said > 0);
        let install = Install { from, replace, ..self.install.clone() };
        Ok(thread_agent::install(queue, &self.launcher, &install)?)
    }

    /// Whether a subscription is of this agent, with these options.
    pub fn is_that_of(&self, now: &Subscription) -> bool {
        let is_same = |handler: String| handler == now.handler_cmd;
        self.install.handler().is_ok_and(is_same) && now.cwd.as_ref() == Some(&self.install.cwd)
    }

    fn cwd(&self) -> String {
        self.install.cwd.to_string_lossy().into_owned()
    }

    fn updated(&self, session: SessionId) -> Updated {
        Updated {
            session_id: session.to_string(),
            agent: self.seat.name.clone().unwrap_or_default(),
            model: self.model.clone(),
            cwd: Some(self.cwd()).filter(|_| self.seat.chose.contains(&Setting::Cwd)),
            options: Vec::new(),
        }
    }
}

impl Agents {
    /// Gives a session another agent, or its own with other settings. `source` is who asks for it.
    ///
    /// The subscription changes first, and in one step: it has the id of the move. A process that finds that the event
    /// of the move is missing stores it: this, when the request is repeated, or the agent before it does anything. So a
    /// move is either not begun or will have happened, whatever is killed.
    ///
    /// # Errors
    ///
    /// There is no such agent, or it does not allow what was chosen; errors of the thread.
    pub fn update(
        &self,
        queue: &mut Queue,
        session: SessionId,
        source: &str,
        wanted: &Choice,
    ) -> Result<Updated> {
        let (Seated { seat, .. }, before) = Choice::of(queue)?;
        let choice = match &wanted.agent {
            Some(_) => wanted.clone(),
            None if wanted.is_empty() => {
                return Err(RequestError::BadParams("give 'agent', 'model' or 'cwd'".into()));
            }
            None => Choice {
                agent: before.agent,
                model: wanted.model.clone().or(before.model),
                cwd: wanted.cwd.clone().or(before.cwd),
            },
        };
        let Some(name) = &choice.agent else {
            let why = "this session has no agent of this gateway: name one as 'agent'";
            return Err(RequestError::BadParams(why.into()));
        };
        let agent = self.named(name)?;
        let mut ready = agent.seat(session, &choice, seat.moved)?;
        if queue.find_subscription(&consumer())?.is_none_or(|now| !ready.is_that_of(&now)) {
            ready = agent.seat(session, &choice, Some(Uuid::new_v4().to_string()))?;
            ready.install(queue, 0, true)?;
        }
        let event =
            ready.seat.event(source, ready.model.as_deref(), &ready.cwd()).map_err(RequestError::from)?;
        if let Some(event) = event {
            // It is there already if this request is repeated, or the agent was faster.
            match push_once(queue, &ready.launcher, event) {
                Ok(()) | Err(Error::KeyConflict { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(ready.updated(session))
    }
}

/// The consumer id of a session's agent.
pub fn consumer() -> ConsumerId {
    ConsumerId::stored(CONSUMER)
}

/// The error of a setting that an agent does not let a session choose.
pub fn not_allowed(agent: &str, setting: Setting) -> RequestError {
    let setting = setting.as_str();
    RequestError::BadParams(format!("'{setting}' cannot be chosen for the agent '{agent}'"))
}

/// The directory that a session has chosen: an existing one, below the agent's own.
///
/// # Errors
///
/// [`RequestError::BadParams`].
pub fn chosen_directory(own: &std::path::Path, chosen: &str) -> Result<PathBuf> {
    let bad = |why: &str| RequestError::BadParams(format!("'cwd' {why}"));
    let path = own.join(chosen);
    let path = path.canonicalize().map_err(|_| bad("is no directory of the gateway's machine"))?;
    let own = own.canonicalize().map_err(|_| bad("cannot be chosen now: the agent's directory is gone"))?;
    match path.is_dir() && path.starts_with(&own) {
        true => Ok(path),
        false => Err(bad("is not a directory below that of the agent")),
    }
}
