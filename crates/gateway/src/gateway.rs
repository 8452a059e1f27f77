//! State shared by all connections. None of it has to outlive the process.

use std::sync::Arc;
use std::time::Instant;

use thread::run::Launcher;
use tokio::sync::watch;

use crate::access::origin::Origins;
use crate::access::proxy::Proxies;
use crate::access::token::Token;
use crate::agent::Agent;
use crate::counters::Counters;
use crate::look::Look;
use crate::session::catalogue::Catalogue;
use crate::session::hub::Hub;
use crate::session::jobs::Jobs;
use crate::session::root::Root;
use crate::session::tallies::Tallies;
use crate::storage::Storage;

pub struct Gateway {
    pub root: Arc<Root>,
    /// `None` with `--no-auth`: every request is allowed.
    pub token: Option<Token>,
    pub origins: Origins,
    pub proxies: Proxies,
    /// The port it listens on, which is part of the cookie's name.
    pub port: u16,
    /// The agent of new sessions.
    pub agent: Option<Agent>,
    pub agent_for_all: bool,
    pub launcher: Launcher,
    pub hub: Hub,
    pub catalogue: Arc<Catalogue>,
    pub look: Arc<Look>,
    /// Whether clients may only look.
    pub read_only: bool,
    pub tallies: Tallies,
    pub storage: Arc<Storage>,
    pub counters: Arc<Counters>,
    pub started: Instant,
    /// True once the shutdown has started.
    pub shutdown: watch::Receiver<bool>,
}

impl Gateway {
    /// Whether a token is the right one, or none is required.
    pub fn admits(&self, offered: &str) -> bool {
        self.token.as_ref().is_none_or(|token| token.matches(offered))
    }

    /// Blocking work on sessions.
    pub fn jobs(&self) -> &Jobs {
        &self.hub.context.jobs
    }

    /// Waits until the shutdown starts.
    pub async fn shutting_down(&self) {
        // An error means that the sender was dropped, which only happens after the shutdown has started.
        drop(self.shutdown.clone().wait_for(|started| *started).await.map(|started| *started));
    }

    /// The agent to give to older sessions, too, with `--agent-for-all`.
    pub fn agent_for_all(&self) -> Option<&Agent> {
        self.agent.as_ref().filter(|_| self.agent_for_all)
    }
}
