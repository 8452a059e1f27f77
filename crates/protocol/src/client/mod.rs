//! A client that survives lost connections.
//!
//! It remembers which session it is in and the `seq` of the last event it has handed out. When the
//! connection is lost it dials again, enters that session after that `seq`, and repeats the request that
//! was under way, if doing it twice does no harm. So its user sees every event once, in order.

mod address;
mod connection;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::value::RawValue;
use thiserror::Error as ThisError;
use tokio::time::{sleep, timeout};
use tokio_tungstenite::Connector;

pub use self::address::Address;
use self::connection::{Connection, RESPONSE_TIMEOUT, silent, trusting};
use crate::event::{ErrorCode, Event, Frame};
use crate::incoming::{Incoming, Refusal, Unreadable};
use crate::method::{
    Agent, Connect, ConnectParams, Method, SessionsFork, SessionsNew, SessionsSwitch, SwitchParams,
};
use crate::{MAX_FRAME, VERSION, request};

/// The delay before dialling again doubles, from the first to the longest.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// How often a request is sent, at most.
pub const MAX_SENDS: u32 = 5;

/// Whom to connect to, and as whom.
#[derive(Debug, Clone)]
pub struct Settings {
    pub address: Address,
    pub token: Option<String>,
    /// What kind of client it is, 1 to 64 characters.
    pub client_type: String,
    /// 1 to 64 characters. The gateway recognizes the client by it after a reconnect.
    pub client_id: String,
    /// A file with certificates (PEM) of authorities that are trusted in addition to the system's.
    pub ca: Option<PathBuf>,
    /// For how long to try to reconnect.
    pub patience: Duration,
}

/// Something that came from the gateway without being asked for, or the news that it cannot be heard.
#[derive(Debug)]
pub enum Received {
    /// An event, and its frame as it came.
    Event(Box<Frame>, String),
    /// The frame of something that this version does not know.
    Unknown(String),
    /// To be shown; the client continues.
    Unreadable(Unreadable),
    /// The connection was lost, for this reason. The next call dials again.
    Lost(String),
}

#[derive(Debug, ThisError)]
pub enum Error {
    /// The connection could not be made, or not be made again in time.
    #[error("{0}")]
    Lost(String),
    /// The connection was lost before the response; the request may have been carried out.
    #[error("{method} got no response, though it was sent {sent} times: {why}")]
    Unanswered { method: &'static str, sent: u32, why: String },
    /// The gateway refused a request.
    #[error("{0}")]
    Refused(Refusal),
    /// The request is larger than the gateway accepts; it was not sent.
    #[error("the request has {0} bytes, more than {MAX_FRAME}")]
    TooLarge(usize),
    /// A response that cannot be read.
    #[error("{0}")]
    Unreadable(#[from] Unreadable),
    /// A frame that is too large for this client; after a reconnect it would come again.
    #[error("{0}")]
    Oversized(String),
    /// The gateway does not accept this host name.
    #[error("403 Forbidden")]
    Forbidden,
    /// The server at this address is not a gateway.
    #[error("{0}")]
    NotAGateway(String),
    /// The server's certificate is not trusted.
    #[error("{0}")]
    Untrusted(String),
    /// The file with certificates of authorities cannot be used.
    #[error("{}: {why}", path.display())]
    Ca { path: PathBuf, why: String },
    /// The gateway closed the connection for a reason that a retry does not change.
    #[error("the gateway closed the connection: {reason} ({code})")]
    Closed { code: u16, reason: String },
}

pub struct Client {
    settings: Settings,
    tls: Connector,
    connection: Option<Connection>,
    /// When the connection was made, or lost.
    since: Instant,
    /// How long to wait before dialling again.
    wait: Duration,
    inbox: Inbox,
    /// How many requests were made: the last one's id.
    requests: u64,
}

impl Client {
    /// Connects, once.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub async fn connect(settings: Settings) -> Result<Client, Error> {
        let tls = if settings.address.is_tls { trusting(settings.ca.as_deref())? } else { Connector::Plain };
        let mut client = Client {
            settings,
            tls,
            connection: None,
            since: Instant::now(),
            wait: FIRST_WAIT,
            inbox: Inbox::default(),
            requests: 0,
        };
        client.dial().await?;
        Ok(client)
    }

    /// The session that the client is in.
    pub fn session(&self) -> Option<&str> {
        self.inbox.session.as_deref()
    }

    /// Sends a request and waits for its response. Frames received in the meantime are kept for
    /// [`Client::receive`]. If the connection is lost, the request is sent again after a reconnect, up to
    /// [`MAX_SENDS`] times, provided that it is [repeatable](Method::is_repeatable).
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub async fn call<M: Method>(&mut self, params: &M::Params) -> Result<M::Payload, Error> {
        self.requests += 1;
        let id = self.requests.to_string();
        let text = request::text::<M>(&id, params);
        if text.len() > MAX_FRAME {
            return Err(Error::TooLarge(text.len()));
        }
        let mut sent = 0;
        let payload = loop {
            self.reconnect().await?;
            let Some(connection) = &mut self.connection else { continue };
            sent += 1;
            match self.inbox.exchange(connection, &id, &text).await {
                Err(Error::Lost(why)) => {
                    self.lost(why.clone());
                    if sent == MAX_SENDS || !M::is_repeatable(params) {
                        return Err(Error::Unanswered { method: M::NAME, sent, why });
                    }
                }
                done => break done?,
            }
        };
        self.inbox.answered::<M>(&payload);
        serde_json::from_str(payload.get()).map_err(|e: serde_json::Error| {
            Unreadable { id: Some(id), why: e.to_string(), ..Unreadable::default() }.into()
        })
    }

    /// The next frame. Cancel-safe: nothing is lost if the future is dropped.
    ///
    /// # Errors
    ///
    /// The client cannot go on: see [`Error`].
    pub async fn receive(&mut self) -> Result<Received, Error> {
        loop {
            if let Some(received) = self.inbox.received.pop_front() {
                return Ok(received);
            }
            let Some(connection) = &mut self.connection else {
                // Which may bring something.
                self.reconnect().await?;
                continue;
            };
            match connection.receive().await {
                Ok(text) => drop(self.inbox.take(text)),
                Err(Error::Lost(why)) => self.lost(why),
                Err(e) => {
                    self.connection = None;
                    return Err(e);
                }
            }
        }
    }

    fn lost(&mut self, why: String) {
        self.connection = None;
        let was_stable = self.since.elapsed() >= LONGEST_WAIT;
        self.wait = if was_stable { FIRST_WAIT } else { longer(self.wait) };
        self.since = Instant::now();
        self.inbox.received.push_back(Received::Lost(why));
    }

    /// Dials until there is a connection, or patience ends.
    async fn reconnect(&mut self) -> Result<(), Error> {
        while self.connection.is_none() {
            sleep(self.wait).await;
            match self.dial().await {
                Err(Error::Lost(_)) if self.since.elapsed() < self.settings.patience => {
                    self.wait = longer(self.wait);
                }
                done => done?,
            }
        }
        Ok(())
    }

    /// Dials, and enters the session where the last connection left it.
    async fn dial(&mut self) -> Result<(), Error> {
        let mut connection = Connection::dial(&self.settings.address, self.tls.clone()).await?;
        let connect = ConnectParams {
            version: VERSION.to_owned(),
            client_type: self.settings.client_type.clone(),
            token: self.settings.token.clone(),
            client_id: Some(self.settings.client_id.clone()),
        };
        self.inbox
            .exchange(&mut connection, "connect", &request::text::<Connect>("connect", &connect))
            .await?;
        connection.is_admitted = true;
        if let Some(session_id) = self.inbox.session.clone() {
            let after = self.inbox.seq.and_then(|seq| seq.try_into().ok());
            let switch = request::text::<SessionsSwitch>("enter", &SwitchParams { session_id, after });
            let entered = self.inbox.exchange(&mut connection, "enter", &switch).await;
            if let Err(Error::Refused(_)) = entered {
                // It is gone. The next call need not fail for it.
                (self.inbox.session, self.inbox.seq) = (None, None);
            }
            self.inbox.answered::<SessionsSwitch>(&entered?);
        }
        self.connection = Some(connection);
        self.since = Instant::now();
        Ok(())
    }
}

fn longer(wait: Duration) -> Duration {
    (wait * 2).min(LONGEST_WAIT)
}

/// Frames received and not returned yet, and the position reached in the session.
#[derive(Default)]
struct Inbox {
    session: Option<String>,
    /// The `seq` of the last event; `None` if it is not known.
    seq: Option<i64>,
    received: VecDeque<Received>,
}

impl Inbox {
    /// Sends a request and waits for its response.
    async fn exchange(
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
    fn take(&mut self, text: String) -> Option<(String, Result<Box<RawValue>, Error>)> {
        let (seq, received) = match Incoming::parse(&text) {
            Ok(Incoming::Response { id, outcome }) => return Some((id, outcome.map_err(Error::Refused))),
            Err(unreadable @ Unreadable { id: Some(_), event: None, .. }) => {
                let id = unreadable.id.clone().unwrap_or_default();
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
    fn answered<M: Method>(&mut self, payload: &RawValue) {
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
