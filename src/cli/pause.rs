//! `thread pause`: keeping a consumer from being started.

use clap::Args;

use super::{ConsumerArg, Globals, print_consumer};
use crate::failure::Result;
use crate::files::log::log;
use crate::run::control;

/// Keep a consumer from being started
///
/// A run under way continues. Events stay pending for it; `thread resume` wakes it.
#[derive(Args)]
#[command(after_help = "Example:\n  thread pause -t inbox bot")]
pub struct Pause {
    #[command(flatten)]
    consumer: ConsumerArg,
}

impl Pause {
    pub fn run(self, globals: &Globals) -> Result<()> {
        let consumer = self.consumer.existing()?;
        let mut queue = globals.open()?;
        control::pause(&mut queue, &consumer)?;
        log!(queue, Info, "pause: consumer={consumer}");
        print_consumer(&consumer, globals)
    }
}
