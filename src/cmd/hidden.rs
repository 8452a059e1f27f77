//! Subcommands that this program starts itself as. They have a parser of their own, so that no help,
//! manual, completion or suggestion knows of them.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser};

use crate::cmd::mistakes;
use crate::error::Result;
use crate::files::Files;
use crate::log::{self, Level};
use crate::rule::Cause;
use crate::subscription::ConsumerId;
use crate::{supervisor, wake};

#[derive(Parser)]
#[command(name = "thread", disable_help_subcommand = true)]
enum Hidden {
    #[command(name = supervisor::COMMAND)]
    Supervise(Supervise),
    #[command(name = wake::COMMAND)]
    AskAgain(AskAgain),
}

/// Whether the first word is one of these commands.
pub fn is_meant(args: &[OsString]) -> bool {
    args.get(1).is_some_and(|word| word == supervisor::COMMAND || word == wake::COMMAND)
}

pub fn run(args: Vec<OsString>) -> Result<()> {
    let hidden = Hidden::try_parse_from(&args).map_err(|e| mistakes::explain(&e, &args))?;
    let (dir, what) = match &hidden {
        Hidden::Supervise(command) => (&command.thread, format!("supervise: consumer={}", command.consumer)),
        Hidden::AskAgain(command) => (&command.thread, "notifier: asking again:".to_owned()),
    };
    let files = Files::of(dir.clone());
    let done = crate::caught(|| match hidden {
        Hidden::Supervise(command) => command.run(),
        Hidden::AskAgain(command) => command.run(),
    });
    // Nobody reads what these print. Nothing may be written where a thread was.
    if let (Err(failure), Some(files)) = (&done, files)
        && files.still_there()
    {
        log::write(&files, Level::Error, format_args!("{what} {failure}"));
    }
    done
}

#[derive(Args)]
struct Supervise {
    #[arg(long)]
    thread: PathBuf,
    #[arg(long, allow_hyphen_values = true)]
    consumer: String,
    #[arg(long)]
    lock_fd: Option<i32>,
    #[arg(long, required_unless_present = "lock_fd")]
    on_call: bool,
    #[arg(long)]
    asked: bool,
}

impl Supervise {
    fn run(self) -> Result<()> {
        let cause = if self.asked { Cause::Asked } else { Cause::News };
        supervisor::run(&self.thread, &ConsumerId::stored(self.consumer), self.lock_fd, cause)
    }
}

#[derive(Args)]
struct AskAgain {
    #[arg(long)]
    thread: PathBuf,
    #[arg(long, allow_hyphen_values = true)]
    source: String,
    #[arg(long)]
    lock_fd: i32,
}

impl AskAgain {
    fn run(self) -> Result<()> {
        wake::ask_again(&self.thread, &self.source, self.lock_fd)
    }
}
