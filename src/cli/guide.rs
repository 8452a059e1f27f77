//! `thread guide`: pages for agents, and example handlers.

use clap::{Args, ValueEnum};

use super::{Globals, output};
use crate::failure::Result;

/// Print a short guide for an agent that uses a thread
///
/// Prints a page of Markdown to put into an agent's context: how to push, read and acknowledge events, what
/// may happen twice, what the exit codes mean, and how to ask another agent. The page for a handler is for
/// an agent that thread itself starts.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread guide
  thread guide --for handler >AGENTS.md
  thread guide --handler python >agent.py")]
pub struct Guide {
    /// Who the guide is for
    #[arg(long = "for", value_name = "READER", value_enum, default_value_t = Reader::Agent)]
    reader: Reader,
    /// Instead, print a complete handler in this language that answers messages, as a starting point
    #[arg(long, value_name = "LANGUAGE", value_enum, conflicts_with = "reader")]
    handler: Option<Language>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Language {
    /// needs jq
    Bash,
    Python,
    Node,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Reader {
    /// an agent with a thread's directory at hand
    Agent,
    /// an agent that is run as a consumer's handler
    Handler,
}

impl Guide {
    pub fn run(self, _: &Globals) -> Result<()> {
        let page = match (self.handler, self.reader) {
            (None, Reader::Agent) => include_str!("guide/agent.md"),
            (None, Reader::Handler) => include_str!("guide/handler.md"),
            (Some(Language::Bash), _) => include_str!("guide/handler.bash"),
            (Some(Language::Python), _) => include_str!("guide/handler.py"),
            (Some(Language::Node), _) => include_str!("guide/handler.mjs"),
        };
        output::bytes(page.as_bytes()).map(drop)
    }
}
