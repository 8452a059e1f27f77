//! The gateway's address and token, and the session used last.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tokio_tungstenite::tungstenite::http::uri::Authority;
use uuid::Uuid;

use crate::error::{Failure, Result};
use crate::options::Options;

/// The file in the gateway's root with the address it listens on.
const ADDRESS: &str = "address";

/// The file in the gateway's root with its token.
const TOKEN: &str = "token";

#[derive(Debug)]
pub struct Config {
    /// `ws://host:port/ws`
    pub url: String,
    pub token: Option<String>,
    /// The directory for this program's state; `None` if there is no home directory.
    pub state: Option<PathBuf>,
}

pub fn load(options: &Options) -> Result<Config> {
    let root =
        options.root.clone().or_else(|| Some(dir_of("XDG_DATA_HOME", ".local/share")?.join("sessions")));
    let url = match &options.url {
        Some(url) => websocket(url)?,
        None => websocket(&read(root.as_deref(), ADDRESS)?.ok_or_else(no_gateway)?)?,
    };
    let token = env::var("THREAD_TOKEN").ok().filter(|token| !token.is_empty());
    // The token of this machine's gateway must not be sent to another machine.
    let token = match token {
        None if options.url.is_none() || is_loopback(&url) => read(root.as_deref(), TOKEN)?,
        token => token,
    };
    Ok(Config { url, token, state: dir_of("XDG_STATE_HOME", ".local/state") })
}

fn no_gateway() -> Failure {
    Failure::new("no gateway has been started here", "start one with `thread serve`, or name one with --url")
}

/// The directory `thread` in one of the XDG directories.
fn dir_of(variable: &str, default: &str) -> Option<PathBuf> {
    let given = env::var_os(variable).map(PathBuf::from).filter(|dir| dir.is_absolute());
    let dir = given.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(default)))?;
    Some(dir.join("thread"))
}

fn read(root: Option<&Path>, name: &str) -> Result<Option<String>> {
    let Some(path) = root.map(|root| root.join(name)) else { return Ok(None) };
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Failure::new(
            format_args!("cannot read {}: {e}", path.display()),
            "run it as the user who started the gateway, or choose another root with --root",
        )),
    }
}

/// The URL of the gateway's WebSocket, from `host:port`, `http://…` or `ws://…`.
fn websocket(address: &str) -> Result<String> {
    let (scheme, rest) = address.split_once("://").unwrap_or(("ws", address));
    let scheme = match scheme {
        "http" | "ws" => "ws",
        _ => {
            let fix = "give http://HOST:PORT; for TLS, let a tunnel or proxy stand in between";
            return Err(Failure::usage(format_args!("'{address}' is not a gateway's address"), fix));
        }
    };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let authority: Option<Authority> = host.parse().ok();
    // A user name or password in the address would be ignored.
    let valid = authority.is_some_and(|authority| {
        let port = host.rsplit_once(':').map(|(_, port)| port).filter(|port| !port.ends_with(']'));
        !authority.host().is_empty() && !host.contains('@') && port.is_none() == authority.port().is_none()
    });
    if !valid {
        return Err(Failure::usage(
            format_args!("'{address}' is not a gateway's address"),
            "give http://HOST:PORT",
        ));
    }
    Ok(format!("{scheme}://{host}/ws"))
}

fn is_loopback(url: &str) -> bool {
    let host = url.trim_start_matches("ws://");
    ["localhost:", "127.", "[::1]"].iter().any(|own| host.starts_with(own))
}

impl Config {
    /// The session used last with this gateway.
    pub fn last_session(&self) -> Option<Uuid> {
        let text = fs::read_to_string(self.state.as_ref()?.join("chat-session")).ok()?;
        let (url, session) = text.trim().split_once(' ')?;
        if url == self.url { session.parse().ok() } else { None }
    }

    /// Remembers the session. If that fails, the next call does not continue it.
    pub fn remember(&self, session: &str) {
        if let Some(state) = &self.state {
            let _ = fs::create_dir_all(state);
            let _ = fs::write(state.join("chat-session"), format!("{} {session}\n", self.url));
        }
    }

    /// The file with the lines typed in conversations.
    pub fn history(&self) -> Option<PathBuf> {
        Some(self.state.as_ref()?.join("chat-history"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_understood_as_people_write_them() {
        for address in ["127.0.0.1:3336", "http://127.0.0.1:3336/", "ws://127.0.0.1:3336/ws?x=1"] {
            assert_eq!(websocket(address).unwrap(), "ws://127.0.0.1:3336/ws");
        }
        assert_eq!(websocket("https://example.org").unwrap_err().code, 2);
        assert_eq!(websocket("[::1]:3336").unwrap(), "ws://[::1]:3336/ws");
        assert_eq!(websocket("localhost").unwrap(), "ws://localhost/ws");
        for bad in
            ["", "http://", "a b:1", "http://me:secret@localhost:1", "127.0.0.1:99999", "localhost:", ":1"]
        {
            assert_eq!(websocket(bad).unwrap_err().code, 2, "{bad}");
        }
    }

    #[test]
    fn the_token_goes_to_this_machine_only() {
        assert!(is_loopback("ws://127.0.0.1:3336/ws") && is_loopback("ws://localhost:1/ws"));
        assert!(!is_loopback("ws://localhost.example.org:1/ws") && !is_loopback("ws://10.0.0.1:3336/ws"));
    }
}
