//! A session, which survives lost connections.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use uuid::Uuid;

use crate::client::{Client, Error, Event, TOO_LARGE};
use crate::config::Config;
use crate::error::{Failure, Result};
use crate::options::Options;

/// How long to try to reconnect.
const RECONNECT_FOR: Duration = Duration::from_secs(60);

/// The delay between two attempts doubles, from the first to the longest.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Which session to start with.
pub enum Start {
    /// None: the sessions are only listed.
    None,
    New,
    This(Uuid),
    Last,
}

impl From<&Options> for Start {
    fn from(options: &Options) -> Start {
        match options.session {
            _ if options.sessions => Start::None,
            Some(id) => Start::This(id),
            None if options.new => Start::New,
            None => Start::Last,
        }
    }
}

pub struct Session {
    pub config: Config,
    client: Client,
    client_id: String,
    /// The current session; empty before there is one.
    id: String,
    /// The `seq` of the last event that was seen.
    seq: i64,
}

impl Session {
    pub async fn open(config: Config, start: Start) -> Result<Session> {
        let client_id = Uuid::new_v4().to_string();
        let client = Client::connect(&config.url, config.token.as_deref(), &client_id).await;
        let client = client.map_err(|e| explain(&config, &e))?;
        let mut session = Session { config, client, client_id, id: String::new(), seq: 0 };
        match start {
            Start::None => {}
            Start::New => session.create().await?,
            Start::This(id) => session.switch(&id.to_string()).await?,
            Start::Last => match session.config.last_session() {
                // It may have been deleted meanwhile.
                Some(id) => {
                    match session.ask("sessions.switch", json!({ "sessionId": id.to_string() })).await {
                        Ok(switched) => session.entered(&switched),
                        Err(Error::Refused(why)) if is_unknown(&why) => session.create().await?,
                        Err(e) => return Err(explain(&session.config, &e)),
                    }
                }
                None => session.create().await?,
            },
        }
        Ok(session)
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    async fn create(&mut self) -> Result<()> {
        let made = self.get("sessions.new", json!({})).await?;
        self.entered(&made);
        Ok(())
    }

    async fn switch(&mut self, id: &str) -> Result<()> {
        let switched = self.get("sessions.switch", json!({ "sessionId": id })).await?;
        self.entered(&switched);
        Ok(())
    }

    fn entered(&mut self, payload: &Value) {
        self.id = payload["sessionId"].as_str().unwrap_or_default().to_owned();
        self.seq = payload["lastSeq"].as_i64().unwrap_or(0);
        self.config.remember(&self.id);
    }

    /// Notes that a command of the gateway has switched to another session, if it has.
    pub fn moved_to(&mut self, id: &str) {
        if !id.is_empty() && id != self.id {
            self.id = id.to_owned();
            self.seq = 0;
            self.config.remember(id);
        }
    }

    /// The latest sessions, as the gateway lists them.
    pub async fn list(&mut self) -> Result<Vec<Value>> {
        let mut list = self.get("sessions.list", json!({ "limit": 100 })).await?;
        Ok(std::mem::take(&mut list["sessions"]).as_array().cloned().unwrap_or_default())
    }

    /// The last messages, oldest first.
    pub async fn history(&mut self, count: u64) -> Result<Vec<Value>> {
        let params = json!({ "sessionId": self.id, "limit": count });
        let mut history = self.get("sessions.history", params).await?;
        Ok(std::mem::take(&mut history["messages"]).as_array().cloned().unwrap_or_default())
    }

    /// Sends a message. By its idempotency key it is stored once, even if it is sent again.
    pub async fn send(&mut self, text: &str) -> Result<Value> {
        let key = Uuid::new_v4().to_string();
        self.get("agent", json!({ "sessionId": self.id, "message": text, "idempotencyKey": key })).await
    }

    pub async fn cancel(&mut self, run: &str) -> Result<()> {
        self.get("agent.cancel", json!({ "sessionId": self.id, "runId": run })).await.map(drop)
    }

    pub async fn permit(&mut self, request: &str, choice: &str) -> Result<()> {
        let params = json!({ "sessionId": self.id, "requestId": request, "choice": choice });
        self.get("permission.answer", params).await.map(drop)
    }

    /// The next event of the session. After a lost connection, none is missing.
    pub async fn event(&mut self) -> Result<Event> {
        loop {
            match self.client.event().await {
                Ok(event) => {
                    self.moved_to(event.text("sessionId"));
                    if event.seq.is_some_and(|seq| seq <= self.seq) {
                        continue;
                    }
                    self.seq = event.seq.unwrap_or(self.seq);
                    return Ok(event);
                }
                Err(Error::Lost(_)) => self.reconnect_or_explain().await?,
                Err(e) => return Err(explain(&self.config, &e)),
            }
        }
    }

    /// Sends a request, again if the connection is lost. Every request made here may be repeated.
    async fn get(&mut self, method: &str, params: Value) -> Result<Value> {
        self.ask(method, params).await.map_err(|e| explain(&self.config, &e))
    }

    async fn ask(&mut self, method: &str, params: Value) -> std::result::Result<Value, Error> {
        loop {
            match self.client.request(method, params.clone()).await {
                Err(Error::Lost(_)) => self.reconnect().await?,
                answer => return answer,
            }
        }
    }

    async fn reconnect_or_explain(&mut self) -> Result<()> {
        self.reconnect().await.map_err(|e| explain(&self.config, &e))
    }

    /// Reconnects, and asks for the events after the last one that was seen.
    async fn reconnect(&mut self) -> std::result::Result<(), Error> {
        let began = Instant::now();
        let mut wait = FIRST_WAIT;
        loop {
            tokio::time::sleep(wait).await;
            match self.connect_once().await {
                Err(Error::Lost(_)) if began.elapsed() < RECONNECT_FOR => wait = (wait * 2).min(LONGEST_WAIT),
                done => return done,
            }
        }
    }

    async fn connect_once(&mut self) -> std::result::Result<(), Error> {
        let token = self.config.token.as_deref();
        self.client = Client::connect(&self.config.url, token, &self.client_id).await?;
        if !self.id.is_empty() {
            let params = json!({ "sessionId": self.id, "after": self.seq });
            self.client.request("sessions.switch", params).await?;
        }
        Ok(())
    }
}

/// What failed, and what to do about it.
fn explain(config: &Config, error: &Error) -> Failure {
    let url = &config.url;
    match error {
        Error::Lost(why) => {
            let fix = "start it with `thread serve`, or choose another with --url";
            Failure::new(format_args!("cannot reach the gateway at {url}: {why}"), fix)
        }
        Error::Closed { code: TOO_LARGE, .. } => Failure::new(
            "the message is larger than 1 MiB, more than the gateway takes",
            "send a shorter one, or use `thread push` in the session's directory",
        ),
        Error::Closed { .. } => Failure::new(error, NEEDS_TOKEN),
        Error::Forbidden => Failure::new(
            format_args!("the gateway does not serve {url} under this name"),
            "use its IP address, or start it with --origin and this name",
        ),
        Error::NotAGateway(why) => Failure::new(
            format_args!("what answers at {url} is not a gateway: {why}"),
            "choose the address that `thread serve` prints, with --url",
        ),
        Error::Refused(why) => {
            let fix = if why.contains("token") {
                NEEDS_TOKEN
            } else if is_unknown(why) {
                "`thread chat --sessions` lists the sessions"
            } else if why.contains("disk is full") {
                "free some space where the gateway keeps its sessions, then try again"
            } else {
                "try again, see what the gateway prints, or begin another session with --new"
            };
            Failure::new(format_args!("the gateway refused: {why}"), fix)
        }
    }
}

const NEEDS_TOKEN: &str = "set THREAD_TOKEN to the content of the file `token` in the gateway's root";

/// Whether the requested session does not exist.
fn is_unknown(why: &str) -> bool {
    why.starts_with("unknown session")
}
