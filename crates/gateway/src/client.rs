//! A connected client: its current session, and its queued messages.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::error::{RequestError, Result};
use crate::follow::feed::{Delivery, Order, Update};
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
    /// The gateway's own origin as the client reaches it.
    pub origins: Vec<String>,
    outbox: Outbox,
    current: Option<Membership>,
    /// The client's position in the current session: it is only sent events with a larger id.
    position: i64,
    /// Its messages whose runs have not started, by event id.
    queued: HashMap<i64, QueuedMessage>,
    /// The last result of `/sessions`.
    pub last_list: Vec<SessionId>,
}

/// A queued message.
struct QueuedMessage {
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
            position: 0,
            queued: HashMap::new(),
            last_list: Vec::new(),
        }
    }

    /// Waits for the next update of the current session; forever, if there is none. `None` if the follower
    /// has dropped the client: the session is gone, or the client's backlog too large.
    pub async fn next(&mut self) -> Option<Update> {
        match &mut self.current {
            Some(membership) => membership.feed.next().await,
            None => std::future::pending().await,
        }
    }

    pub fn send(&self, frame: String) {
        self.outbox.send(frame);
    }

    /// Sends an update to the client.
    pub fn forward(&mut self, update: Update) {
        match update {
            Update::Event(delivery) => self.send_event(&delivery),
            Update::Order(order) => self.update_positions(&order),
            Update::Notice(frame) => self.outbox.send(frame),
            Update::Deleted => {
                if let Some(session) = self.session() {
                    let payload = json!({ "message": "the session was removed", "errorCode": "session_deleted", "retryable": false });
                    self.outbox.send(notice("error", payload, session, None));
                }
                self.leave();
            }
        }
    }

    fn send_event(&mut self, delivery: &Delivery) {
        // If the follower is behind, the feed repeats events that were already read from disk.
        if delivery.event.id <= self.position {
            return;
        }
        self.position = delivery.event.id;
        if let Some(frame) = delivery.frame_for(&self.speaker.client) {
            self.outbox.send(frame);
        }
    }

    /// The current session.
    pub fn session(&self) -> Option<SessionId> {
        self.current.as_ref().map(|membership| membership.session)
    }

    pub fn membership(&self) -> Option<&Membership> {
        self.current.as_ref()
    }

    /// The session that a request names, or else the current one.
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

    /// Leaves the current session.
    pub fn leave(&mut self) {
        self.current = None;
        self.queued.clear();
    }

    /// Enters a session, unless it is the current one. Events stored from now on are sent to the client.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownSession`]; errors of the thread. The client stays in the current session then.
    pub async fn enter(&mut self, session: SessionId) -> Result<()> {
        if self.session() == Some(session) {
            return Ok(());
        }
        let membership = self.join(session).await?;
        self.leave();
        self.position = membership.upto;
        self.current = Some(membership);
        Ok(())
    }

    /// Enters a session, even if it is the current one, and sends every event after an id.
    ///
    /// # Errors
    ///
    /// As [`Client::enter`], but the client is in no session afterwards.
    pub async fn enter_after(&mut self, session: SessionId, after: i64) -> Result<()> {
        // So that no event of the current session is sent in between.
        self.leave();
        self.position = after;
        let mut tail = Tail::new(self.gateway.hub.clone(), session, after, self.outbox.backlog.clone());
        while let Some(delivery) = tail.stored().await? {
            self.send_event(&delivery);
            if !tail.has_entered() {
                self.outbox.drained().await;
            }
        }
        // If the follower is behind what was sent, the feed repeats it.
        (self.current, self.position) = tail.into_membership();
        Ok(())
    }

    async fn join(&self, session: SessionId) -> Result<Membership> {
        self.gateway.hub.join(session, self.outbox.backlog.clone()).await
    }

    /// The client's position in the current session: events with a larger id are still to be sent.
    pub fn last_seq(&self) -> i64 {
        self.position
    }

    /// Remembers a message if it is queued. Returns the frame that says so.
    pub fn queued(&mut self, request: &str, accepted: &Accepted) -> Option<String> {
        let position = accepted.position.filter(|position| *position > 0)?;
        let queued = QueuedMessage { request: request.to_owned(), run_id: accepted.run_id.clone(), position };
        let frame = self.session().map(|session| queued.frame(session));
        self.queued.insert(accepted.event, queued);
        frame
    }

    fn update_positions(&mut self, order: &Order) {
        let Some(session) = self.session() else { return };
        let outbox = &self.outbox;
        self.queued.retain(|event, queued| {
            // Stored after the order was computed.
            if *event > order.upto {
                return true;
            }
            match order.ids.iter().position(|id| id == event) {
                None | Some(0) => false,
                Some(position) => {
                    if position != queued.position {
                        queued.position = position;
                        outbox.send(queued.frame(session));
                    }
                    true
                }
            }
        });
    }
}

impl QueuedMessage {
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
/// [`RequestError::UnknownSession`]: the text is not a session id.
pub fn parse_session(text: &str) -> Result<SessionId> {
    SessionId::parse(text).ok_or_else(|| RequestError::UnknownSession(text.to_owned()))
}
