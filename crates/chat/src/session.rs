//! The session that is talked in: what this program asks of the gateway, and what its refusals mean.

use std::time::Duration;

use thread_protocol::client::{Client, Error, Explained, Received, Settings};
use thread_protocol::method::*;
use thread_protocol::{Content, Method, code};
use uuid::Uuid;

use crate::config::Config;
use crate::error::{Failure, Result};
use crate::options::Options;

/// How long to try to reconnect.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Session {
    pub config: Config,
    client: Client,
    /// The session that was remembered last.
    remembered: String,
}

impl Session {
    /// Connects, and enters the session that the options ask for: none if the sessions are only listed.
    pub async fn open(config: Config, options: &Options) -> Result<Session> {
        let settings = Settings {
            address: config.address.clone(),
            token: config.token.clone(),
            client_type: "terminal".to_owned(),
            client_id: Uuid::new_v4().to_string(),
            ca: config.ca.clone(),
            patience: PATIENCE,
        };
        let client = Client::connect(settings).await.map_err(|e| explain(&config, &e))?;
        let mut session = Session { config, client, remembered: String::new() };
        match options.session {
            _ if options.sessions => {}
            Some(id) => drop(session.call::<SessionsSwitch>(&switch(id)).await?),
            None if options.new => session.create().await?,
            None => match session.config.last_session() {
                // It may have been deleted in the meantime.
                Some(id) => match session.client.call::<SessionsSwitch>(&switch(id)).await {
                    Err(Error::Refused(why)) if why.code == code::UNKNOWN_SESSION => session.create().await?,
                    entered => drop(entered.map_err(|e| explain(&session.config, &e))?),
                },
                None => session.create().await?,
            },
        }
        session.remember();
        Ok(session)
    }

    /// Empty if there is none.
    pub fn id(&self) -> &str {
        self.client.session().unwrap_or_default()
    }

    async fn create(&mut self) -> Result<()> {
        self.call::<SessionsNew>(&NewParams::default()).await.map(drop)
    }

    /// Commands of the gateway may switch to another session.
    fn remember(&mut self) {
        let id = self.client.session().unwrap_or_default();
        if !id.is_empty() && id != self.remembered {
            self.config.remember(id);
            self.remembered = id.to_owned();
        }
    }

    /// The latest sessions, as the gateway lists them.
    pub async fn list(&mut self) -> Result<Vec<SessionSummary>> {
        let params = ListParams { limit: Some(100), offset: None };
        Ok(self.call::<SessionsList>(&params).await?.sessions)
    }

    /// The last messages, oldest first.
    pub async fn history(&mut self, count: u64) -> Result<Vec<HistoryEntry>> {
        let params =
            HistoryParams { session_id: Some(self.id().to_owned()), limit: Some(count), before: None };
        Ok(self.call::<SessionsHistory>(&params).await?.messages)
    }

    /// Sends a message. By its idempotency key it is stored once, even if it is sent again.
    pub async fn send(&mut self, text: &str) -> Result<Accepted> {
        if self.id().is_empty() {
            // It was deleted.
            self.create().await?;
        }
        let params = AgentParams {
            session_id: Some(self.id().to_owned()),
            message: Content::from(text),
            priority: None,
            metadata: None,
            idempotency_key: Some(Uuid::new_v4().to_string()),
            at: None,
        };
        self.call::<Agent>(&params).await
    }

    pub async fn cancel(&mut self, run: &str) -> Result<()> {
        let params = CancelParams { run_id: run.to_owned(), session_id: Some(self.id().to_owned()) };
        self.call::<AgentCancel>(&params).await.map(drop)
    }

    /// Answers a permission request.
    pub async fn permit(&mut self, request: &str, choice: &str) -> Result<()> {
        let params = PermissionAnswerParams {
            session_id: self.id().to_owned(),
            request_id: request.to_owned(),
            choice: choice.to_owned(),
        };
        self.call::<PermissionAnswer>(&params).await.map(drop)
    }

    /// The gateway's next message. Cancel-safe.
    pub async fn receive(&mut self) -> Result<Received> {
        let received = self.client.receive().await.map_err(|e| explain(&self.config, &e))?;
        self.remember();
        Ok(received)
    }

    async fn call<M: Method>(&mut self, params: &M::Params) -> Result<M::Payload> {
        let answer = self.client.call::<M>(params).await.map_err(|e| explain(&self.config, &e))?;
        self.remember();
        Ok(answer)
    }
}

fn switch(id: Uuid) -> SwitchParams {
    SwitchParams { session_id: id.to_string(), after: None }
}

/// What failed, and what to do about it.
fn explain(config: &Config, error: &Error) -> Failure {
    let begin = "begin another session with --new";
    let Explained { code, what, fix } = error.explain(&config.address, "thread chat", begin);
    Failure::new(code, what, fix)
}
