//! What has come over the connections and was not handed out yet.

use std::collections::VecDeque;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::timeout;

use super::connection::{Connection, RESPONSE_TIMEOUT, silent};
use super::{Error, Received};
use crate::event::{ErrorCode, Event};
use crate::incoming::{Incoming, Unreadable};
use crate::method::{Agent, Method, SessionsFork, SessionsNew, SessionsSwitch, SwitchParams, Switched};
use crate::request;

/// The id of the request that enters a session.
const ENTER: &str = "enter";

/// Frames received and not returned yet, and the position reached in the session.
#[derive(Default)]
pub struct Inbox {
    pub session: Option<String>,
    /// The `seq` of the last event; `None` if it is not known.
    pub seq: Option<i64>,
    pub received: VecDeque<Received>,
    /// The session is being entered: what was missed comes before the response to [`ENTER`].
    pub is_entering: bool,
    /// Whether [`Received::Entered`] is waited for.
    pub announces: bool,
    /// Why the session was not entered.
    pub not_entered: Option<Error>,
}

impl Inbox {
    /// The request that enters the session where the last connection left it.
    pub fn request(&self) -> String {
        let session_id = self.session.clone().unwrap_or_default();
        let after = self.seq.and_then(|seq| seq.try_into().ok());
        request::text::<SessionsSwitch>(ENTER, &SwitchParams { session_id, after })
    }

    /// Takes in the response to that.
    fn entered(&mut self, outcome: Result<Box<RawValue>, Error>) {
        self.is_entering = false;
        let announces = std::mem::take(&mut self.announces);
        match outcome {
            Ok(payload) => {
                self.answered::<SessionsSwitch>(&payload);
                match serde_json::from_str::<Switched>(payload.get()) {
                    Ok(switched) if announces => {
                        self.received.push_back(Received::Entered(Box::new(switched)));
                    }
                    Err(e) if announces => {
                        let why = e.to_string();
                        self.not_entered = Some(
                            Unreadable { id: Some(ENTER.to_owned()), why, ..Unreadable::default() }.into(),
                        );
                    }
                    _ => {}
                }
            }
            Err(e) => {
                if matches!(e, Error::Refused(_)) {
                    // It is gone. The next call need not fail for it.
                    (self.session, self.seq) = (None, None);
                }
                self.not_entered = Some(e);
            }
        }
    }

    /// Sends a request and waits for its response.
    pub async fn exchange(
        &mut self,
        connection: &mut Connection,
        request: &str,
        text: &str,
    ) -> Result<Box<RawValue>, Error> {
        connection.send(text).await?;
        loop {
            // Many events may come first over a slow connection, so the limit is for each frame.
            let received = timeout(RESPONSE_TIMEOUT, connection.receive()).await;
            let Some((id, outcome)) = self.take(received.map_err(|_| silent())??) else { continue };
            if id == request {
                return outcome;
            }
        }
    }

    /// Takes in a frame. Returns it if it is a response.
    pub fn take(&mut self, text: String) -> Option<(String, Result<Box<RawValue>, Error>)> {
        let (seq, received) = match Incoming::parse(&text) {
            Ok(Incoming::Response { id, outcome }) if id == ENTER => {
                self.entered(outcome.map_err(Error::Refused));
                return None;
            }
            Ok(Incoming::Response { id, outcome }) => return Some((id, outcome.map_err(Error::Refused))),
            Err(unreadable @ Unreadable { id: Some(_), event: None, .. }) => {
                let id = unreadable.id.clone().unwrap_or_default();
                if id == ENTER {
                    self.entered(Err(unreadable.into()));
                    return None;
                }
                return Some((id, Err(unreadable.into())));
            }
            Ok(Incoming::Event(frame)) => {
                if frame.session_id.is_some() && frame.session_id != self.session {
                    (self.session, self.seq) = (frame.session_id.clone(), None);
                }
                if matches!(&frame.event, Event::Error(error) if error.error_code == ErrorCode::SessionDeleted)
                {
                    (self.session, self.seq) = (None, None);
                }
                (frame.seq, Received::Event(frame, text))
            }
            Ok(Incoming::Unknown { seq }) => (seq, Received::Unknown(text)),
            Err(unreadable) => (unreadable.seq, Received::Unreadable(unreadable)),
        };
        // It may come twice: once live, and once when the session is entered again.
        if seq.is_none() || seq > self.seq {
            self.seq = seq.or(self.seq);
            self.received.push_back(received);
        }
        None
    }

    /// Notes what a response says about the session that the client is in.
    pub fn answered<M: Method>(&mut self, payload: &RawValue) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Entered {
            session_id: Option<String>,
            last_seq: Option<i64>,
        }
        let enters = [Agent::NAME, SessionsNew::NAME, SessionsFork::NAME, SessionsSwitch::NAME];
        if !enters.contains(&M::NAME) {
            return;
        }
        if let Ok(Entered { session_id: Some(session), last_seq }) = serde_json::from_str(payload.get())
            && (last_seq.is_some() || self.session.as_ref() != Some(&session))
        {
            let is_new = M::NAME == SessionsNew::NAME;
            (self.session, self.seq) = (Some(session), last_seq.or(is_new.then_some(0)));
        }
    }
}
