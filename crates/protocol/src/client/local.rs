//! Where a gateway on this machine has left its address and its token.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error as ThisError;

use super::Address;
use crate::base_directory;

/// The file in a gateway's root with the address that it listens on.
const ADDRESS: &str = "address";

/// The file in a gateway's root with its token.
const TOKEN: &str = "token";

/// A gateway.
#[derive(Debug)]
pub struct Found {
    pub address: Address,
    pub token: Option<String>,
    /// Where it keeps its sessions, if it is the one that has left its address there.
    pub root: Option<PathBuf>,
}

/// Why there is none.
#[derive(Debug, ThisError)]
pub enum NotFound {
    #[error("no gateway has been started here")]
    NoGateway,
    #[error("'{0}' is not a gateway's address")]
    NoAddress(String),
    #[error("cannot read {}: {why}", path.display())]
    Unreadable { path: PathBuf, why: io::Error },
}

impl NotFound {
    /// What to do about it, with the options `--url` and `--root`.
    pub fn fix(&self) -> &'static str {
        match self {
            NotFound::NoGateway => "start one with `thread serve`, or name one with --url",
            NotFound::NoAddress(_) => "give http://HOST:PORT or https://HOST",
            NotFound::Unreadable { .. } => {
                "run it as the user who started the gateway, or choose another root with --root"
            }
        }
    }
}

/// The root that was named, or the default one; `None` without a home directory.
fn root_or_default(root: Option<&Path>) -> Option<PathBuf> {
    let default = || Some(base_directory("XDG_DATA_HOME", ".local/share")?.join("thread/sessions"));
    root.map(Path::to_owned).or_else(default)
}

/// The gateway at `url`, or the one that has left its address in the root. The token is the given one or else, if the
/// gateway is on this machine, the one in the root: it must not be sent to another machine.
///
/// # Errors
///
/// There is no address, or what is found cannot be used.
pub fn find(root: Option<&Path>, url: Option<&str>, token: Option<String>) -> Result<Found, NotFound> {
    let root = root_or_default(root);
    let text = match url {
        Some(url) => url.to_owned(),
        None => read(root.as_deref(), ADDRESS)?.ok_or(NotFound::NoGateway)?,
    };
    let address = Address::parse(&text).ok_or(NotFound::NoAddress(text))?;
    let token = match token.filter(|token| !token.is_empty()) {
        None if url.is_none() || address.is_loopback() => read(root.as_deref(), TOKEN)?,
        token => token,
    };
    // A gateway that is named may have any other root.
    let root = root.filter(|_| url.is_none());
    Ok(Found { address, token, root })
}

fn read(root: Option<&Path>, name: &str) -> Result<Option<String>, NotFound> {
    let Some(path) = root.map(|root| root.join(name)) else { return Ok(None) };
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(why) => Err(NotFound::Unreadable { path, why }),
    }
}
