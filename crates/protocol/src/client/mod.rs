//! A client that survives lost connections.
//!
//! It remembers which session it is in and the `seq` of the last event it has handed out. When the
//! connection is lost it dials again, enters that session after that `seq`, and repeats the request that
//! was under way, if doing it twice does no harm. So its user sees every event once, in order.

mod address;
mod connection;
mod explain;
mod inbox;
mod local;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use thiserror::Error as ThisError;
use tokio::time::sleep;
use tokio_tungstenite::Connector;

pub use self::address::Address;
use self::connection::{Connection, trusting};
pub use self::explain::{Explained, UNREADABLE, usage};
use self::inbox::Inbox;
pub use self::local::{Found, NotFound, find};
use crate::event::Frame;
use crate::incoming::{Refusal, Unreadable};
use crate::method::{AgentSummary, Connect, ConnectParams, Connected, Method, Switched};
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
    /// What [`Client::enter`] asked for is done: every event that was stored before has been handed out.
    Entered(Box<Switched>),
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
    /// When the connection was made and its session entered, or lost.
    since: Instant,
    /// How long to wait before dialling again.
    wait: Duration,
    inbox: Inbox,
    /// The agents that the gateway last said it has.
    agents: Vec<AgentSummary>,
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
            agents: Vec::new(),
            requests: 0,
        };
        client.dial().await?;
        Ok(client)
    }

    /// The session that the client is in.
    pub fn session(&self) -> Option<&str> {
        self.inbox.session.as_deref()
    }

    /// The agents that a session can have, the default first.
    pub fn agents(&self) -> &[AgentSummary] {
        &self.agents
    }

    /// Enters a session. [`Client::receive`] hands out its stored events with a larger `seq` than `after` one by one,
    /// then [`Received::Entered`], then what is new. Unlike a call of `sessions.switch`, nothing has to be kept
    /// until then. If the session is refused, `receive` says so.
    pub async fn enter(&mut self, session: &str, after: i64) {
        (self.inbox.session, self.inbox.seq) = (Some(session.to_owned()), Some(after));
        self.inbox.announces = true;
        // Without a connection, dialling enters it.
        if let Some(connection) = &mut self.connection {
            let sent = connection.send(&self.inbox.request()).await;
            self.inbox.is_entering = true;
            if let Err(e) = sent {
                self.lost(e.to_string());
            }
        }
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
            while self.inbox.is_entering && self.connection.is_some() {
                self.read().await?;
            }
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
            self.reconnect().await?;
            self.read().await?;
        }
    }

    /// Reads a frame into the inbox. Cancel-safe.
    async fn read(&mut self) -> Result<(), Error> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let was_entering = self.inbox.is_entering;
        let read = connection.receive().await.map(|text| drop(self.inbox.take(text)));
        match read {
            Ok(()) => {
                if was_entering && !self.inbox.is_entering {
                    self.since = Instant::now();
                }
            }
            // A gateway that ends whenever the session is entered is not tried for ever.
            Err(Error::Lost(why)) if was_entering && self.since.elapsed() >= self.settings.patience => {
                (self.connection, self.inbox.is_entering) = (None, false);
                return Err(Error::Lost(why));
            }
            Err(Error::Lost(why)) => self.lost(why),
            Err(e) => {
                self.connection = None;
                return Err(e);
            }
        }
        match self.inbox.not_entered.take() {
            Some(e) => {
                self.connection = None;
                Err(e)
            }
            None => Ok(()),
        }
    }

    fn lost(&mut self, why: String) {
        self.connection = None;
        let was_stable = self.since.elapsed() >= LONGEST_WAIT;
        self.wait = if was_stable { FIRST_WAIT } else { longer(self.wait) };
        if !std::mem::take(&mut self.inbox.is_entering) {
            self.since = Instant::now();
        }
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
        let connected = self
            .inbox
            .exchange(&mut connection, "connect", &request::text::<Connect>("connect", &connect))
            .await?;
        if let Ok(connected) = serde_json::from_str::<Connected>(connected.get()) {
            self.agents = connected.agents;
        }
        connection.is_admitted = true;
        if self.inbox.session.is_some() {
            // What was missed is not waited for here, since there may be much of it.
            connection.send(&self.inbox.request()).await?;
            self.inbox.is_entering = true;
        } else {
            self.since = Instant::now();
        }
        self.connection = Some(connection);
        Ok(())
    }
}

fn longer(wait: Duration) -> Duration {
    (wait * 2).min(LONGEST_WAIT)
}
