//! The gateway's address and token, and the session used last.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thread_protocol::base_directory;
use thread_protocol::client::Address;
use uuid::Uuid;

use crate::error::{Failure, Result};
use crate::options::Options;

/// The file in the gateway's root with the address it listens on.
const ADDRESS: &str = "address";

/// The file in the gateway's root with its token.
const TOKEN: &str = "token";

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
    let root = options
        .root
        .clone()
        .or_else(|| Some(base_directory("XDG_DATA_HOME", ".local/share")?.join("thread/sessions")));
    let text = match &options.url {
        Some(url) => url.clone(),
        None => read(root.as_deref(), ADDRESS)?.ok_or_else(no_gateway)?,
    };
    let address = Address::parse(&text).ok_or_else(|| {
        Failure::usage(
            format_args!("'{text}' is not a gateway's address"),
            "give http://HOST:PORT or https://HOST",
        )
    })?;
    let token = env::var("THREAD_TOKEN").ok().filter(|token| !token.is_empty());
    // The token of this machine's gateway must not be sent to another machine.
    let token = match token {
        None if options.url.is_none() || address.is_loopback() => read(root.as_deref(), TOKEN)?,
        token => token,
    };
    let state = base_directory("XDG_STATE_HOME", ".local/state").map(|dir| dir.join("thread"));
    Ok(Config { address, token, ca: options.ca.clone(), state })
}

fn no_gateway() -> Failure {
    Failure::new(
        "no_gateway",
        "no gateway has been started here",
        "start one with `thread serve`, or name one with --url",
    )
}

fn read(root: Option<&Path>, name: &str) -> Result<Option<String>> {
    let Some(path) = root.map(|root| root.join(name)) else { return Ok(None) };
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Failure::new(
            "io",
            format_args!("cannot read {}: {e}", path.display()),
            "run it as the user who started the gateway, or choose another root with --root",
        )),
    }
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
