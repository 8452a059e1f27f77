//! The gateway's address and token, and the session used last.

use std::env;
use std::fs;
use std::path::PathBuf;

use thread_protocol::base_directory;
use thread_protocol::client::{Address, Found, NotFound, find};
use uuid::Uuid;

use crate::error::{Failure, Result};
use crate::options::Options;

#[derive(Debug)]
pub struct Config {
    pub address: Address,
    pub token: Option<String>,
    /// A file with certificates of authorities.
    pub ca: Option<PathBuf>,
    /// The directory for this program's state; `None` if there is no home directory.
    pub state: Option<PathBuf>,
}

pub fn load(options: &Options) -> Result<Config> {
    let found = find(options.root.as_deref(), options.url.as_deref(), env::var("THREAD_TOKEN").ok());
    let Found { address, token, .. } = found.map_err(|e| match &e {
        NotFound::NoGateway => Failure::new("no_gateway", &e, e.fix()),
        NotFound::NoAddress(_) => Failure::usage(&e, e.fix()),
        NotFound::Unreadable { .. } => Failure::new("io", &e, e.fix()),
    })?;
    let state = base_directory("XDG_STATE_HOME", ".local/state").map(|dir| dir.join("thread"));
    Ok(Config { address, token, ca: options.ca.clone(), state })
}

impl Config {
    /// The session used last with this gateway.
    pub fn last_session(&self) -> Option<Uuid> {
        let text = fs::read_to_string(self.state.as_ref()?.join("chat-session")).ok()?;
        let (url, session) = text.trim().split_once(' ')?;
        if url == self.address.to_string() { session.parse().ok() } else { None }
    }

    /// Remembers the session. If that fails, the next call does not continue it.
    pub fn remember(&self, session: &str) {
        if let Some(state) = &self.state {
            let _ = fs::create_dir_all(state);
            let _ = fs::write(state.join("chat-session"), format!("{} {session}\n", self.address));
        }
    }

    /// The file with the lines typed in conversations.
    pub fn history(&self) -> Option<PathBuf> {
        Some(self.state.as_ref()?.join("chat-history"))
    }
}
