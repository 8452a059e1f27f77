//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;

/// A gateway to conversations with agents: sessions for many clients, over WebSocket and HTTP
///
/// A session is a thread in a directory of its own under the root; all that is said in it is on disk
/// before anybody is told. The gateway keeps nothing but connections: it may be killed, and started
/// again, at any moment, while runs go on. docs/PROTOCOL.md says how clients talk to it.
#[derive(Debug, Parser)]
#[command(name = "thread serve", version)]
pub struct Options {
    /// Where sessions live [default: $XDG_DATA_HOME/thread/sessions]
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,

    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:3336")]
    pub listen: SocketAddr,

    /// The agent of sessions that are made here: a shell command
    #[arg(long, value_name = "PROGRAM")]
    pub agent: Option<String>,

    /// How the agent is spoken to, as `thread agent --protocol` has it
    #[arg(long, value_name = "P", default_value = "exec", requires = "agent")]
    pub protocol: String,

    /// Give the agent to older sessions too, when somebody next speaks in them
    #[arg(long, requires = "agent")]
    pub agent_for_all: bool,

    /// Let everybody in who can reach a loopback address
    #[arg(long)]
    pub no_auth: bool,

    /// Admit pages of another origin, too, and its host name: https://chat.example.org
    #[arg(long, value_name = "ORIGIN")]
    pub origin: Vec<String>,

    /// Keep attachments elsewhere: s3://bucket/prefix [default: the folder storage below the root]
    #[arg(long, value_name = "URL")]
    pub storage: Option<String>,

    /// Take attachments of another store, too, by their urls: https://files.example.org
    #[arg(long, value_name = "ORIGIN")]
    pub storage_origin: Vec<String>,

    /// Most connections at a time; more are refused
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub max_connections: usize,
}
