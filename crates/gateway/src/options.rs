//! The command line.

// What stands here is the help, which shows brackets and backticks as they are.
#![allow(rustdoc::bare_urls)]

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;

/// Serve conversations with agents to many clients, over WebSocket and HTTP
///
/// Each session is a thread in its own directory under the root, and everything said in it is on disk
/// before any client sees it. The gateway itself holds only connections: it may be killed and restarted at
/// any moment, and agents keep running. docs/PROTOCOL.md describes the protocol for clients.
#[derive(Debug, Parser)]
#[command(name = "thread serve", version)]
pub struct Options {
    /// Where sessions live [default: $XDG_DATA_HOME/thread/sessions]
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,

    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:3336")]
    pub listen: SocketAddr,

    /// The agent for new sessions: a shell command
    #[arg(long, value_name = "PROGRAM")]
    pub agent: Option<String>,

    /// How to talk to the agent, as in `thread agent --protocol`
    #[arg(long, value_name = "P", default_value = "exec", requires = "agent")]
    pub protocol: String,

    /// Also give the agent to older sessions, at the next message in each
    #[arg(long, requires = "agent")]
    pub agent_for_all: bool,

    /// Require no token; allowed on a loopback address only
    #[arg(long)]
    pub no_auth: bool,

    /// Also admit pages of this origin, and its host name: https://chat.example.org
    #[arg(long, value_name = "ORIGIN")]
    pub origin: Vec<String>,

    /// Where to keep attachments: s3://bucket/prefix [default: the folder `storage` in the root]
    #[arg(long, value_name = "URL")]
    pub storage: Option<String>,

    /// Also accept attachments from this store, by their URLs: https://files.example.org
    #[arg(long, value_name = "ORIGIN")]
    pub storage_origin: Vec<String>,

    /// The most connections at a time; further ones are refused
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub max_connections: usize,
}
