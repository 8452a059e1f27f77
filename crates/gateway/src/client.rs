//! A connected client: the session it is in, and what it asked.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::error::{RequestError, Result};
use crate::follow::feed::{Live, Order, Told};
use crate::follow::follower::Membership;
use crate::follow::tail::Tail;
use crate::gateway::Gateway;
use crate::outbox::Outbox;
use crate::protocol::event::notice;
use crate::session::speak::{Accepted, Speaker};
use crate::session_id::SessionId;

pub struct Client {
    pub gateway: Arc<Gateway>,
    pub speaker: Speaker,
    /// The gateway's own origin, as this client knows it.
    pub origins: Vec<String>,
    outbox: Outbox,
    current: Option<Membership>,
    /// The client has been told up to this event of the current session.
    told: i64,
    /// Its messages whose runs have not begun, by their events.
    asked: HashMap<i64, Asked>,
    /// The last list that a command made.
    pub listed: Vec<SessionId>,
}

/// A message that waits for its turn.
struct Asked {
    request: String,
    run_id: String,
    position: usize,
}

impl Client {
    pub fn new(gateway: Arc<Gateway>, outbox: Outbox, speaker: Speaker, origin: String) -> Client {
        let origins = vec![origin];
        Client {
            gateway,
            speaker,
            origins,
            outbox,
            current: None,
            told: 0,
            asked: HashMap::new(),
            listed: Vec::new(),
        }
    }

    /// What comes next in the session it is in; never, if it is in none. `None` when its thread is gone.
    pub async fn next(&mut self) -> Option<Live> {
        match &mut self.current {
            Some(membership) => membership.feed.next().await,
            None => std::future::pending().await,
        }
    }

    pub fn send(&self, frame: String) {
        self.outbox.send(frame);
    }

    /// Tells the client what came.
    pub fn pass_on(&mut self, live: Live) {
        match live {
            Live::Event(told) => self.tell(&told),
            Live::Order(order) => self.reorder(&order),
            Live::Notice(frame) => self.outbox.send(frame),
            Live::Deleted => {
                if let Some(session) = self.session() {
                    let payload = json!({ "message": "the session was removed", "errorCode": "session_deleted", "retryable": false });
                    self.outbox.send(notice("error", payload, session, None));
                }
                self.leave();
            }
        }
    }

    fn tell(&mut self, told: &Told) {
        // What it has read from disk itself comes by the feed, too, if the follower was behind.
        if told.event.id <= self.told {
            return;
        }
        self.told = told.event.id;
        if let Some(frame) = told.frame_for(&self.speaker.client) {
            self.outbox.send(frame);
        }
    }

    /// The session it is in.
    pub fn session(&self) -> Option<SessionId> {
        self.current.as_ref().map(|membership| membership.session)
    }

    pub fn membership(&self) -> Option<&Membership> {
        self.current.as_ref()
    }

    /// The session that a request names, or else the one it is in.
    ///
    /// # Errors
    ///
    /// [`RequestError::NoSession`], [`RequestError::UnknownSession`].
    pub fn session_or_current(&self, named: Option<&str>) -> Result<SessionId> {
        match named {
            Some(text) => parse_session(text),
            None => self.session().ok_or(RequestError::NoSession),
        }
    }

    /// Is in no session any more.
    pub fn leave(&mut self) {
        self.current = None;
        self.asked.clear();
    }

    /// Enters a session, unless it is there. Whatever is stored from now on is passed on.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownSession`], and the client stays where it is; those of the thread.
    pub async fn enter(&mut self, session: SessionId) -> Result<()> {
        if self.session() == Some(session) {
            return Ok(());
        }
        let membership = self.join(session).await?;
        self.leave();
        self.told = membership.upto;
        self.current = Some(membership);
        Ok(())
    }

    /// Enters a session, also the one it is in, and sends it every event after an id.
    ///
    /// # Errors
    ///
    /// As [`Client::enter`]. Where it fails, the client is in no session.
    pub async fn enter_after(&mut self, session: SessionId, after: i64) -> Result<()> {
        // Nothing of the session it was in comes in between.
        self.leave();
        self.told = after;
        let mut tail = Tail::new(self.gateway.hub.clone(), session, after, self.outbox.backlog.clone());
        while let Some(told) = tail.stored().await? {
            self.tell(&told);
            if !tail.has_entered() {
                self.outbox.drained().await;
            }
        }
        // If the follower is behind what was sent, its feed repeats it.
        (self.current, self.told) = tail.into_membership();
        Ok(())
    }

    async fn join(&self, session: SessionId) -> Result<Membership> {
        self.gateway.hub.join(session, self.outbox.backlog.clone()).await
    }

    /// The last event that the client was told of.
    pub fn last_seq(&self) -> i64 {
        self.told
    }

    /// Remembers a message of the client that waits for its turn. Returns what to tell it.
    pub fn queued(&mut self, request: &str, accepted: &Accepted) -> Option<String> {
        let position = accepted.position.filter(|position| *position > 0)?;
        let asked = Asked { request: request.to_owned(), run_id: accepted.run_id.clone(), position };
        let frame = self.session().map(|session| asked.frame(session));
        self.asked.insert(accepted.event, asked);
        frame
    }

    fn reorder(&mut self, order: &Order) {
        let Some(session) = self.session() else { return };
        let outbox = &self.outbox;
        self.asked.retain(|event, asked| {
            // It was stored after the order was made.
            if *event > order.upto {
                return true;
            }
            match order.ids.iter().position(|id| id == event) {
                None | Some(0) => false,
                Some(position) => {
                    if position != asked.position {
                        asked.position = position;
                        outbox.send(asked.frame(session));
                    }
                    true
                }
            }
        });
    }
}

impl Asked {
    fn frame(&self, session: SessionId) -> String {
        let others = if self.position == 1 { "run is" } else { "runs are" };
        let payload: Value = json!({
            "requestId": self.request,
            "position": self.position,
            "message": format!("{} {others} before this one", self.position),
        });
        notice("queued", payload, session, Some(&self.run_id))
    }
}

/// # Errors
///
/// [`RequestError::UnknownSession`]: it is no session's id.
pub fn parse_session(text: &str) -> Result<SessionId> {
    SessionId::parse(text).ok_or_else(|| RequestError::UnknownSession(text.to_owned()))
}
