//! `thread stop`: ending a consumer's run or wait.

use std::time::Duration;

use clap::Args;
use rustix::process::Signal;

use crate::cmd::{ConsumerArg, ThreadArg, answer, subscribed};
use crate::duration;
use crate::error::{Failure, Result};
use crate::log::Level;
use crate::output;
use crate::rule::StopRequest;
use crate::stop::stop;

/// End a consumer's run, or its wait between two attempts
///
/// The whole process group of the run gets the signal, and KILL when it is not gone after
/// --kill-after. Returns when it is gone. The consumer is then stalled: the next matching event,
/// `thread dispatch` or `thread resume` starts it again. No attempt is counted. When there is
/// nothing to stop, exit 1.
#[derive(Args)]
#[command(after_help = "Example:\n  thread stop --thread inbox --consumer bot --kill-after 30s")]
pub struct Stop {
    #[command(flatten)]
    thread: ThreadArg,
    #[command(flatten)]
    consumer: ConsumerArg,
    /// The first signal, by name or number
    #[arg(long, value_name = "SIGNAL", default_value = "TERM", value_parser = signal)]
    signal: i32,
    /// How long its processes have before they are killed
    #[arg(long, value_name = "D", default_value = "10s", value_parser = duration::parse)]
    kill_after: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn signal(text: &str) -> std::result::Result<i32, String> {
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let known = [
        ("TERM", Signal::TERM),
        ("INT", Signal::INT),
        ("HUP", Signal::HUP),
        ("QUIT", Signal::QUIT),
        ("KILL", Signal::KILL),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
        ("ABRT", Signal::ABORT),
        ("ALRM", Signal::ALARM),
    ];
    let found = known.iter().find(|(known, signal)| *known == name || signal.as_raw().to_string() == name);
    found
        .map(|(_, signal)| signal.as_raw())
        .ok_or_else(|| "it is one of TERM, INT, HUP, QUIT, KILL, USR1, USR2, ABRT, ALRM".to_owned())
}

impl Stop {
    pub fn run(self) -> Result<()> {
        let consumer = self.consumer.existing()?;
        let mut thread = self.thread.open()?;
        let subscription = subscribed(&thread, &consumer)?;
        if !thread.files.is_owner() {
            return Err(Failure::could_not(
                format_args!(
                    "{} belongs to another user, whose handlers only he may stop",
                    thread.dir().display()
                ),
                "run `thread stop` as that user, or `thread pause` the consumer",
            ));
        }
        thread.log(Level::Info, format_args!("stop: consumer={consumer} signal={}", self.signal));
        let request = StopRequest { signal: self.signal, kill_after: self.kill_after };
        if !stop(&mut thread, &subscription, request)? {
            return Err(Failure::could_not(
                format_args!("the consumer '{}' neither runs nor waits", output::plain(consumer.as_str())),
                "see `thread info`; to keep it from being started, `thread pause` it",
            ));
        }
        answer(&consumer, self.json)
    }
}
