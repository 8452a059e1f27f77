//! `thread agent install`: subscribing an agent to a thread.

use std::path::PathBuf;

use crate::install::{self, Install};
use crate::seat::Seat;
use crate::settings::{Settings, Stay};
use clap::{Args, ValueHint};
use serde_json::json;
use thread::Error;
use thread::model::subscription::ConsumerId;
use thread_conversation::CONSUMER;

use super::{Failure, Globals, Result, current_directory, find_launcher, open, print};

/// Subscribe an agent that answers the messages of a thread
///
/// Subscribes a consumer whose handler is `thread agent` with this program, the current PATH and the
/// variables of --env-file, so that a push from cron starts the same agent. It runs in the current
/// directory. Messages that are pending are answered at once.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread agent install --thread talk -- llm -m local
  thread agent install --thread talk --env-file keys.env -- claude -p
  thread agent install --thread talk --protocol openai --url http://localhost:11434/v1 --model qwen3 \
    --tools 'npx -y @modelcontextprotocol/server-filesystem .'
  thread agent install --thread talk --protocol ag-ui --url http://localhost:8000/
  thread agent install --thread talk --replace --permit-wait 1h --protocol acp -- claude-code-acp")]
pub struct Command {
    /// The consumer's name
    #[arg(long, value_name = "NAME", default_value = CONSUMER)]
    consumer: String,
    /// Take the place of the agent that the consumer has: a run under way continues to its end
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    seat: Seat,
    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    stay: Stay,
    /// The agent program and its arguments
    #[arg(last = true, group = "who", required_unless_present = "url", value_name = "PROGRAM", value_hint = ValueHint::CommandWithArguments)]
    program: Vec<String>,
}

impl Command {
    pub fn run(self, globals: &Globals) -> Result<()> {
        let consumer = ConsumerId::new(&self.consumer).map_err(|why| {
            Failure::usage(
                format_args!("the consumer name '{}' {why}", self.consumer),
                "use 1 to 128 of A-Z a-z 0-9 . _ - : @, beginning with a letter or digit",
            )
        })?;
        let cwd = current_directory()?;
        let settings = self.settings.located(&cwd)?;
        let mut queue = open(globals.thread.clone())?;
        let env_file = settings.env_file.as_ref().map(|file| readable(&cwd.join(file))).transpose()?;
        let options = [self.seat.words(), settings.words(), self.stay.words()].concat();
        let replace = self.replace;
        let install = Install { consumer, options, env_file, replace, ..Install::new(self.program, cwd) };
        let launcher = find_launcher()?;
        install::install(&mut queue, &launcher, &install).map_err(|e| match &e {
            Error::AlreadySubscribed(name) => {
                let hint = format_args!(
                    "give --replace to take its place, or name another than '{name}' with --consumer"
                );
                Failure::failed(&e, hint)
            }
            _ => e.into(),
        })?;
        match globals.json {
            true => {
                print(json!({ "consumer_id": install.consumer.as_str(), "handler_cmd": install.handler()? }))
            }
            false => print(&install.consumer),
        }
    }
}

/// Returns the file's path if the file can be read.
pub fn readable(file: &std::path::Path) -> Result<PathBuf> {
    std::fs::File::open(file).map_err(|e| {
        Failure::failed(
            format_args!("cannot read {}: {e}", file.display()),
            "check the file, then install again",
        )
    })?;
    Ok(file.to_owned())
}
