//! The command line.

use std::path::PathBuf;

use clap::Parser;
use uuid::Uuid;

/// Talk to an agent through the gateway `thread serve`
///
/// With a message, sends it and prints the answer. Without one, starts a conversation on a terminal;
/// elsewhere, stdin is the message. Continues the last session unless --session or --new is given.
///
/// The answer, and nothing else, goes to stdout: on a terminal as it arrives, elsewhere once it is complete. Tool
/// calls, the position in the queue and errors go to stderr. Ctrl-C cancels the run, and a second one quits. Exits
/// 0 after an answer, 1 after an error, 2 after a usage error, 130 after Ctrl-C.
#[derive(Debug, Parser)]
#[command(name = "thread chat", bin_name = "thread chat", version, max_term_width = 100)]
#[command(after_help = "\
Examples:
  thread chat 'What changed since yesterday?'
  git diff | thread chat -
  thread chat --new
  thread chat --sessions
  thread chat --session 6e0a5f9e-0d2b-4f43-9a53-5c9f6c0f6d0a --history 20")]
pub struct Options {
    /// The message; "-" reads it from stdin
    pub message: Option<String>,

    /// Continue this session
    #[arg(long, value_name = "ID", conflicts_with = "new")]
    pub session: Option<Uuid>,

    /// Start a new session
    #[arg(long)]
    pub new: bool,

    /// List the sessions, most recent first
    #[arg(long, conflicts_with_all = ["message", "history", "new", "session"])]
    pub sessions: bool,

    /// Print the last N messages first; without a message and not on a terminal, only those
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=200))]
    pub history: Option<u64>,

    /// Print every event as one line of JSON
    #[arg(long)]
    pub json: bool,

    /// The gateway's address [default: the one that `thread serve` has published]
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,

    /// Also trust the certificates in this file (PEM), for https
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,

    /// Where the gateway keeps its sessions [default: $XDG_DATA_HOME/thread/sessions]
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
}
