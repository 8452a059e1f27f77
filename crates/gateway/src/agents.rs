//! The agents that sessions can have, by their names.

pub mod agent;
pub mod file;
pub mod seating;

use std::path::{Path, PathBuf};

use thread::Queue;
use thread::failure::Failure;
use thread::run::Launcher;
use thread_agent::seat::Seated;
use thread_agent::settings::{Settings, Stay};
use thread_protocol::method::AgentSummary;
use thread_sessions::{RequestError, Result, SessionId};

use self::agent::{Agent, Spec};
use self::seating::{Choice, Ready, consumer};

/// The agents that sessions can have.
#[derive(Debug, Default)]
pub struct Agents {
    /// A new session gets the first, unless it names another.
    all: Vec<Agent>,
    /// Whether older sessions get the options of today at their next message, or the first agent if they have another
    /// than these.
    for_all: bool,
}

impl Agents {
    /// The agents of a command line: those of `--agents`, of which `--agent` may name one, and that of `--agent`.
    ///
    /// # Errors
    ///
    /// The file cannot be used; an agent of the command line cannot be one.
    pub fn new(
        agent: Option<&str>,
        file: Option<&Path>,
        for_all: bool,
        (settings, stay): (&Settings, &Stay),
        cwd: &Path,
        launcher: &Launcher,
    ) -> Result<Agents, Failure> {
        let mut all: Vec<Agent> = match file {
            Some(file) => file::read(file, (settings, stay), cwd, launcher)?,
            None => Vec::new(),
        };
        let Some(line) = agent else { return Ok(Agents { all, for_all }) };
        if let Some(at) = all.iter().position(|agent| agent.name == line.trim()) {
            all[..=at].rotate_right(1);
            return Ok(Agents { all, for_all });
        }
        let agent = Agent::new(Spec::of_line(line, settings, stay, cwd.to_owned()), launcher)?;
        if let Some(other) = all.iter().find(|other| other.name == agent.name) {
            return Err(Failure::usage(
                format!("two agents are called '{}': that of --agent, and one of --agents", other.name),
                "give the one in the file another name, or name it with --agent to have it first",
            ));
        }
        all.insert(0, agent);
        Ok(Agents { all, for_all })
    }

    /// The agent of new sessions.
    pub fn first(&self) -> Option<&Agent> {
        self.all.first()
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The names, that of the first agent first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.all.iter().map(|agent| &*agent.name)
    }

    /// The names of the agents for titles and the like.
    pub fn tasks(&self) -> impl Iterator<Item = &str> {
        self.all.iter().filter_map(|agent| agent.task.as_ref()).map(|task| &*task.name)
    }

    /// The agent for titles and the like that belongs to this one.
    pub fn task_of(&self, name: &str) -> Option<&str> {
        self.find(name)?.task.as_ref().map(|task| &*task.name)
    }

    /// What clients learn of them.
    pub fn summaries(&self) -> Vec<AgentSummary> {
        self.all.iter().map(Agent::summary).collect()
    }

    fn find(&self, name: &str) -> Option<&Agent> {
        let tasks = self.all.iter().filter_map(|agent| agent.task.as_deref());
        self.all.iter().chain(tasks).find(|agent| agent.name == name)
    }

    /// The agent of that name.
    ///
    /// # Errors
    ///
    /// [`RequestError::BadParams`]: there is none.
    pub fn named(&self, name: &str) -> Result<&Agent> {
        self.find(name).ok_or_else(|| {
            let known: Vec<&str> = self.names().collect();
            RequestError::BadParams(match known.is_empty() {
                true => format!("there is no agent '{name}': this gateway has none"),
                false => format!("there is no agent '{name}'; there are: {}", known.join(", ")),
            })
        })
    }

    /// The agent of a new session. `None` if there is none, and none was named.
    ///
    /// # Errors
    ///
    /// There is no such agent, or it does not allow what was chosen; as [`Agent::seat`].
    pub fn seat(&self, session: SessionId, choice: &Choice) -> Result<Option<Ready>> {
        let agent = match &choice.agent {
            Some(name) => Some(self.named(name)?),
            None => self.first(),
        };
        match agent {
            Some(agent) => agent.seat(session, choice, None).map(Some),
            None if choice.is_empty() => Ok(None),
            None => Err(RequestError::BadParams("this gateway has no agent to choose anything for".into())),
        }
    }

    /// The same agent as that of another session, with what was chosen there, for a new one; the first if that session
    /// has none of these.
    ///
    /// # Errors
    ///
    /// Those of the other session's thread; as [`Agent::seat`].
    pub fn seat_like(&self, other: &mut Queue, session: SessionId) -> Result<Option<Ready>> {
        let (seated, choice) = Choice::of(other)?;
        match seated.seat.name.and_then(|name| self.find(&name)) {
            Some(agent) => agent.seat(session, &choice, None).map(Some),
            None => self.seat(session, &Choice::default()),
        }
    }

    /// With `--agent-for-all`: gives a session its agent as it is now, or the first one if it has none of these. A run
    /// of another agent continues to its end.
    ///
    /// # Errors
    ///
    /// Errors of the thread; as [`Agent::seat`].
    pub fn refresh(&self, queue: &mut Queue, session: SessionId) -> Result<()> {
        if !self.for_all {
            return Ok(());
        }
        let (Seated { seat, .. }, choice) = Choice::of(queue)?;
        let known = seat.name.as_ref().and_then(|name| self.find(name));
        let ready = match known.or(self.first()) {
            None => return Ok(()),
            Some(agent) if known.is_some() => agent.seat(session, &choice, seat.moved),
            Some(agent) => agent.seat(session, &Choice::default(), None),
        };
        let ready = match ready {
            Ok(ready) => ready,
            // What was chosen is not allowed any more, or gone: the session keeps what it has.
            Err(RequestError::BadParams(why)) => {
                tracing::warn!(%session, "the agent stays as it is: {why}");
                return Ok(());
            }
            Err(e) => return Err(e),
        };
        if queue.find_subscription(&consumer())?.is_none_or(|now| !ready.is_that_of(&now)) {
            ready.install(queue, 0, true)?;
        }
        Ok(())
    }
}

/// The directory `{session}` in a path.
pub const SESSION: &str = "{session}";

/// A path with the session's own directory in it.
pub fn of_session(path: &Path, session: SessionId) -> PathBuf {
    PathBuf::from(path.to_string_lossy().replace(SESSION, &session.to_string()))
}
