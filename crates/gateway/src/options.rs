//! The command line.

#![allow(rustdoc::bare_urls, reason = "the doc comments are the help text, where URLs appear as they are")]

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crate::webhooks::HookOption;
use clap::{ArgGroup, Parser};
use thread::model::duration;
use thread_agent::settings::{Settings, Stay};
use tracing::level_filters::LevelFilter;

const EXAMPLES: &str = "\
Examples:
  thread serve --agent 'llm -m local'
  thread serve --agent openai:http://localhost:11434/v1#qwen3
  thread serve --agent ag-ui:http://localhost:8000/
  thread serve --agents agents.toml --agent helper --permit-wait 1h

agents.toml:
  [[agent]]
  name = \"helper\"
  command = \"claude-code-acp\"
  protocol = \"acp\"
  cwd = \"work/{session}\"";

/// Serve conversations with agents to many clients, over WebSocket and HTTP
///
/// Each session is a thread in its own directory under the root, and every event is on disk before any
/// client sees it. The gateway's own state is only its connections: it may be killed and restarted at any
/// time, and agents keep running. docs/PROTOCOL.md describes the protocol for clients.
#[derive(Debug, Parser)]
#[command(name = "thread serve", bin_name = "thread serve", version, max_term_width = 100)]
// A client that may write to the gateway can start programs, so their number is limited.
// A model is named by --agent.
#[command(mut_arg("url", |url| url.hide(true)), mut_arg("model", |model| model.hide(true)))]
#[command(group = ArgGroup::new("who").multiple(true))]
#[command(mut_arg("url", |url| url.conflicts_with("program")))]
#[command(after_help = "Example:\n  thread serve --agent openai:http://localhost:11434/v1#qwen3", after_long_help = EXAMPLES)]
#[command(mut_arg("max_agents", |limit| limit.default_value("100")))]
pub struct Options {
    /// Where sessions live [default: $XDG_DATA_HOME/thread/sessions]
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,

    /// Where to listen: an IP address, or localhost, and a port; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:3336", value_parser = address)]
    pub listen: SocketAddr,

    /// The agent for new sessions: a shell command, such as 'llm -m local' or 'cat notes - | llm', a model, such as
    /// openai:http://localhost:11434/v1#qwen3, or an agent that speaks AG-UI, such as ag-ui:http://localhost:8000/
    // The id is that of the program in `thread agent`, which the options of both require.
    #[arg(id = "program", long = "agent", value_name = "COMMAND", group = "who")]
    pub agent: Option<String>,

    /// Agents with names, to choose from: a TOML file with a table for each. New sessions get the first,
    /// or the one that --agent names
    #[arg(long, value_name = "FILE", group = "who")]
    pub agents: Option<PathBuf>,

    #[command(flatten)]
    pub settings: Settings,

    #[command(flatten)]
    pub stay: Stay,

    /// Also give the agent to older sessions, with these options, at the next message in each
    #[arg(long, requires = "who")]
    #[arg(hide_short_help = true)]
    pub agent_for_all: bool,

    /// Delete tokens and thinking of runs that ended longer ago than this, and sealed logs of that age; off:
    /// keep them
    #[arg(long, value_name = "D", default_value = "1d", value_parser = keep_stream)]
    #[arg(hide_short_help = true)]
    pub keep_stream: KeepStream,

    /// Also show this thread, under its name or another: a queue without agents, for example; nothing is started there
    #[arg(long, value_name = "[NAME=]DIR")]
    pub thread: Vec<PathBuf>,

    /// Take webhooks at /hooks/NAME into a thread of --thread: NAME=SENDER:SECRET_ENV:THREAD
    ///
    /// SENDER is github, stripe or standard (standardwebhooks.com), and SECRET_ENV the environment variable with the secret
    /// that signs them. The signature is all that a sender needs.
    #[arg(long, value_name = "HOOK", value_parser = HookOption::parse)]
    pub hook: Vec<HookOption>,

    /// Refuse whatever would change something: sessions and threads can only be looked at
    #[arg(long)]
    pub read_only: bool,

    /// Require no token; allowed on a loopback address only
    #[arg(long)]
    pub no_auth: bool,

    /// The address under which clients come, by a proxy: https://chat.example.org
    ///
    /// Links and URLs that are handed out begin with it, and its pages are the gateway's own.
    #[arg(long, value_name = "URL")]
    pub public_url: Option<String>,

    /// A proxy whose X-Forwarded-For is trusted, by its IP address
    #[arg(long, value_name = "ADDRESS")]
    #[arg(hide_short_help = true)]
    pub trusted_proxy: Vec<IpAddr>,

    /// Also admit pages of this origin, and its host name: https://app.example.org
    #[arg(long, value_name = "ORIGIN")]
    #[arg(hide_short_help = true)]
    pub origin: Vec<String>,

    /// Where to keep attachments: s3://bucket/prefix [default: the folder `storage` in the root]
    #[arg(long, value_name = "URL")]
    #[arg(hide_short_help = true)]
    pub storage: Option<String>,

    /// Also accept attachments from this store, by their URLs: https://files.example.org
    #[arg(long, value_name = "ORIGIN")]
    #[arg(hide_short_help = true)]
    pub storage_origin: Vec<String>,

    /// The most connections at a time, but never more than half the limit on open files; further ones are
    /// refused
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    #[arg(hide_short_help = true)]
    pub max_connections: u32,

    /// What to log on stderr, one line each: off, error, warn (refused requests, too), info (runs, too), debug
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = level)]
    pub log: LevelFilter,
}

/// How long the stream of a run is kept after its end; `None`: for ever.
#[derive(Debug, Clone, Copy)]
pub struct KeepStream(pub Option<Duration>);

fn keep_stream(text: &str) -> Result<KeepStream, String> {
    match text {
        "off" => Ok(KeepStream(None)),
        text => duration::parse_positive(text).map(|keep| KeepStream(Some(keep))),
    }
}

fn level(text: &str) -> Result<LevelFilter, String> {
    let levels = [
        ("off", LevelFilter::OFF),
        ("error", LevelFilter::ERROR),
        ("warn", LevelFilter::WARN),
        ("info", LevelFilter::INFO),
        ("debug", LevelFilter::DEBUG),
    ];
    let found = levels.into_iter().find(|(name, _)| *name == text).map(|(_, level)| level);
    found.ok_or_else(|| "not one of off, error, warn, info and debug".to_owned())
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let local = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
    let parsed = local.as_deref().unwrap_or(text).parse();
    parsed.map_err(|_| "not an IP address and a port, such as 127.0.0.1:3336".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_short_help_fits_a_screen() {
        let help = Options::command().term_width(80).render_help().to_string();
        assert!(help.lines().count() <= 60, "{} lines:\n{help}", help.lines().count());
    }
}
