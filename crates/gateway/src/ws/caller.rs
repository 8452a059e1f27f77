//! A request's view of its connection, and what it asks of it.
//!
//! A request is carried out with a copy of its connection's state and, except for
//! the last list, changes nothing there itself, so events can
//! be written at the same time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use thread_sessions::{RequestError, Result, SessionId};
use tokio_tungstenite::tungstenite::Utf8Bytes;

use super::watched::Change;
use crate::gateway::Gateway;
use crate::session::budget::Share;
use crate::session::live_session::LiveSession;
use crate::session::write::{Accepted, Author, SessionWriter};

/// The connection that a request comes from.
#[derive(Clone)]
pub struct Caller {
    pub gateway: Arc<Gateway>,
    pub author: Author,
    /// The gateway's own origins as the client names them.
    pub origins: Vec<String>,
    /// The session that it is in.
    pub session: Option<SessionId>,
    /// The id of the last event that it has of that session.
    pub position: Option<i64>,
    /// Where it is in the sessions that it hears besides that one.
    pub watched: Arc<HashMap<SessionId, i64>>,
    /// The last result of `/sessions`, of all requests of the connection.
    pub last_list: Arc<Mutex<Vec<SessionId>>>,
}

/// A request that was carried out, and its response as it is written.
pub struct Done {
    pub id: String,
    pub reply: Reply<Utf8Bytes>,
}

/// Where a connection reads from once a request is answered.
#[derive(Default)]
pub enum Subscribe {
    #[default]
    Stay,
    At {
        live: Arc<LiveSession>,
        position: i64,
        /// The event after which the response is written; `None` writes it before all events.
        respond_after: Option<i64>,
    },
}

/// What follows the response.
#[derive(Default)]
pub enum Then {
    #[default]
    Nothing,
    /// A frame for this client alone.
    Send(Utf8Bytes),
    /// A message was stored: how many runs are ahead of it, if it waits.
    Queued(SessionId, Accepted),
    /// What the response takes of the budget is given back.
    Release(Share),
    /// Hears other sessions from then on.
    Watch(Change),
}

/// The outcome of a method.
pub struct Reply<P> {
    pub payload: P,
    pub subscribe: Subscribe,
    pub then: Then,
}

impl<P> From<P> for Reply<P> {
    fn from(payload: P) -> Reply<P> {
        Reply { payload, subscribe: Subscribe::Stay, then: Then::Nothing }
    }
}

impl<P> Reply<P> {
    /// The connection is in the session at `position` from then on.
    pub fn at(payload: P, live: Arc<LiveSession>, position: i64) -> Reply<P> {
        Reply { subscribe: Subscribe::At { live, position, respond_after: None }, ..payload.into() }
    }
}

impl Caller {
    /// The session that a request names, or else the current one.
    ///
    /// # Errors
    ///
    /// [`RequestError::NoSession`], [`RequestError::UnknownSession`].
    pub fn session_or_current(&self, named: Option<&str>) -> Result<SessionId> {
        match named {
            Some(text) => parse_session(text),
            None => self.session.ok_or(RequestError::NoSession),
        }
    }

    /// The id of the last event that it has of a session, if it is there or hears it.
    pub fn position_in(&self, session: SessionId) -> Option<i64> {
        let here = self.position.filter(|_| self.session == Some(session));
        here.or_else(|| self.watched.get(&session).copied())
    }

    /// Whether it gets the events of a session.
    pub fn hears(&self, session: SessionId) -> bool {
        self.session == Some(session) || self.watched.contains_key(&session)
    }

    /// Writes what the client sends to a session.
    ///
    /// # Errors
    ///
    /// As [`Gateway::write`].
    pub async fn write<T: Send + 'static>(
        &self,
        session: SessionId,
        work: impl FnMut(&mut SessionWriter<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.gateway.write(session, self.author.clone(), work).await
    }
}

/// # Errors
///
/// [`RequestError::UnknownSession`]: the text is not a session id.
pub fn parse_session(text: &str) -> Result<SessionId> {
    SessionId::parse(text).ok_or_else(|| RequestError::UnknownSession(text.to_owned()))
}
