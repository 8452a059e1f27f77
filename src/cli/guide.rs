//! `thread guide`: pages for agents.

use clap::{Args, ValueEnum};

use super::error::Result;
use super::{Globals, output};

/// Print a short guide for an agent that is given a thread
///
/// A page of Markdown with what an agent has to know, made to be put into its context: how to push,
/// read and acknowledge events, what may happen twice, what the exit codes mean, and how to ask
/// another agent. The page for a handler is for an agent that thread itself starts.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread guide
  thread guide --for handler >AGENTS.md")]
pub struct Guide {
    /// Who is going to read it
    #[arg(long = "for", value_name = "READER", value_enum, default_value_t = Reader::Agent)]
    reader: Reader,
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
        let page = match self.reader {
            Reader::Agent => include_str!("guide/agent.md"),
            Reader::Handler => include_str!("guide/handler.md"),
        };
        output::bytes(page.as_bytes()).map(drop)
    }
}
