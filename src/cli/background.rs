//! The commands that this program starts itself as, in the background. They have a parser of their
//! own, so that no help, manual, completion or suggestion knows of them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use signal_hook::consts::SIGTERM;

use super::error::{Failure, Result, usage_error};
use super::{environment, signals};
use crate::files::Files;
use crate::files::log::log;
use crate::model::subscription::ConsumerId;
use crate::run::{supervisor, wake};

#[derive(Parser)]
#[command(name = "thread", disable_help_subcommand = true)]
enum Background {
    #[command(name = supervisor::COMMAND)]
    Supervise {
        #[arg(long)]
        thread: PathBuf,
        #[arg(long, allow_hyphen_values = true)]
        consumer: String,
        #[arg(long)]
        lock_fd: i32,
    },
    #[command(name = wake::COMMAND)]
    Wake {
        #[arg(long)]
        thread: PathBuf,
        #[arg(long)]
        delay_ms: u64,
        #[arg(long)]
        lock_fd: i32,
    },
}

/// Whether the first word is one of these commands.
pub fn is_internal(args: &[OsString]) -> bool {
    args.get(1).is_some_and(|word| word == supervisor::COMMAND || word == wake::COMMAND)
}

pub fn run(args: Vec<OsString>) -> Result<()> {
    let (files, done) = match Background::try_parse_from(&args).map_err(|e| usage_error(&e, "thread"))? {
        Background::Supervise { thread, consumer, lock_fd } => {
            let consumer = ConsumerId::stored(consumer);
            let shutdown = signals::as_requests(&[SIGTERM])?;
            // SAFETY: this process owns what was passed on to it.
            let work = || unsafe { supervisor::supervise(&thread, &consumer, lock_fd, &shutdown) };
            (Files::open(&thread).ok(), super::caught(|| work().map_err(Failure::from)))
        }
        Background::Wake { thread, delay_ms, lock_fd } => {
            let delay = Duration::from_millis(delay_ms);
            let launcher = environment::launcher();
            // SAFETY: as above.
            let work = || unsafe { wake::in_background(&thread, &launcher, delay, lock_fd) };
            (Files::open(&thread).ok(), super::caught(|| work().map_err(Failure::from)))
        }
    };
    // Nobody reads what these print. Nothing may be written where a thread was.
    if let Err(failure) = &done
        && let Some(files) = files.filter(Files::still_there)
    {
        log!(files, Error, "{}: {failure}", args[1].to_string_lossy());
    }
    done
}
