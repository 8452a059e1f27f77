//! `thread resume`: letting a consumer be started again.

use clap::Args;

use super::error::Result;
use super::{ConsumerArg, Globals, print_consumer, wake_consumer};
use crate::files::log::Level;
use crate::run::control;

/// Let a paused, stalled or waiting consumer start afresh
///
/// Ends a pause, a stall or a wait between two attempts, resets the count of failed attempts, and wakes the
/// consumer if something is pending.
#[derive(Args)]
#[command(after_help = "Example:\n  thread resume -t inbox bot")]
pub struct Resume {
    #[command(flatten)]
    consumer: ConsumerArg,
}

impl Resume {
    pub fn run(self, globals: &Globals) -> Result<()> {
        let consumer = self.consumer.existing()?;
        let mut queue = globals.open()?;
        control::resume(&mut queue, &consumer)?;
        queue.log(Level::Info, format_args!("resume: consumer={consumer}"));
        // A supervisor that waits goes on by itself; where there is none, one has to be started.
        wake_consumer(&mut queue, &consumer);
        print_consumer(&consumer, globals)
    }
}
