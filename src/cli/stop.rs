//! `thread stop`: ending a consumer's run or wait.

use std::time::Duration;

use clap::Args;
use signal_hook::consts::{SIGABRT, SIGALRM, SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::low_level::signal_name;

use super::{ConsumerArg, Globals, output, print_consumer};
use crate::error::Code;
use crate::failure::{Result, failed};
use crate::files::log::log;
use crate::model::duration;
use crate::model::run::StopRequest;
use crate::run::stop::{Stopped, stop};

/// End a consumer's run, or its wait between two attempts
///
/// Sends the signal to the whole process group of the run, and KILL to what is left after --kill-after.
/// Returns once the group is gone. The consumer is then stalled: the next matching event or `thread resume`
/// starts it again. This does not count as a failed attempt. Exits 1 if there is nothing to stop.
#[derive(Args)]
#[command(after_help = "Example:\n  thread stop -t inbox bot --kill-after 30s")]
pub struct Stop {
    #[command(flatten)]
    consumer: ConsumerArg,
    /// The first signal, by name or number
    #[arg(long, value_name = "SIGNAL", default_value = "TERM", value_parser = signal)]
    signal: i32,
    /// How long its processes have before they get KILL
    #[arg(long, value_name = "D", default_value = "10s", value_parser = duration::parse)]
    kill_after: Duration,
    /// Also acknowledge the events of that run or wait, so that they are not delivered again
    #[arg(long)]
    skip: bool,
}

const SIGNALS: [i32; 9] = [SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGKILL, SIGUSR1, SIGUSR2, SIGABRT, SIGALRM];

fn signal(text: &str) -> std::result::Result<i32, String> {
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let is_meant = |signal: &i32| {
        signal.to_string() == name || signal_name(*signal).is_some_and(|known| &known[3..] == name)
    };
    let known = SIGNALS.into_iter().find(is_meant);
    known.ok_or_else(|| "it must be one of TERM, INT, HUP, QUIT, KILL, USR1, USR2, ABRT, ALRM".to_owned())
}

impl Stop {
    pub fn run(self, globals: &Globals) -> Result<()> {
        let consumer = self.consumer.existing()?;
        let mut queue = globals.open()?;
        queue.subscription(&consumer)?;
        let Stop { signal, skip, .. } = self;
        log!(queue, Info, "stop: consumer={consumer} signal={signal}{}", if skip { " skip" } else { "" });
        let kill_after_ms = self.kill_after.as_millis() as u64;
        match stop(&mut queue, &consumer, StopRequest { signal, kill_after_ms, skip })? {
            Stopped::Done => print_consumer(&consumer, globals),
            Stopped::NothingToStop => failed(
                Code::NotRunning,
                format_args!("the consumer '{}' is not running or waiting", output::plain(consumer.as_str())),
                "see `thread info`; to keep it from being started, `thread pause` it",
            ),
        }
    }
}
