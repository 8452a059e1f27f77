//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueHint};

/// Give an editor the conversations of the gateway `thread serve`
///
/// An agent of the Agent Client Protocol, version 1, on stdin and stdout; editors start it. Its sessions are those of the
/// gateway. The agent keeps working when the editor ends, and what it did is shown when the session is loaded again.
/// docs/ACP.md describes how to configure editors.
#[derive(Debug, Parser)]
#[command(name = "thread acp", bin_name = "thread acp", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Options {
    /// The gateway's address [default: the one that `thread serve` has published]
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,

    /// Where the gateway keeps its sessions [default: $XDG_DATA_HOME/thread/sessions]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub root: Option<PathBuf>,

    /// The agent of new sessions, one of those in `thread serve --agents FILE` [default: the first]
    #[arg(long, value_name = "NAME")]
    pub agent: Option<String>,

    /// Also trust the certificates in this file (PEM), for https
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub ca: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  thread acp
  thread acp --agent reviewer
  THREAD_TOKEN=... thread acp --url https://chat.example.org";
