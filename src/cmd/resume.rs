//! `thread resume`: letting a consumer be started again.

use clap::Args;

use crate::cmd::{OneConsumer, answer};
use crate::error::Result;
use crate::store::Store;
use crate::wake;

/// Let a paused, stalled or waiting consumer start afresh
///
/// Ends a pause, a stall or a wait between two attempts, forgets the attempts, and wakes the
/// consumer when something is pending.
#[derive(Args)]
#[command(after_help = "Example:\n  thread resume --thread inbox --consumer bot")]
pub struct Resume {
    #[command(flatten)]
    one: OneConsumer,
}

impl Resume {
    pub fn run(self) -> Result<()> {
        // A supervisor that waits goes on at once; where there is none, one is to be started.
        let (mut thread, consumer) = self.one.change("resume", Store::resume)?;
        wake::wake_consumer(&mut thread, &consumer);
        answer(&consumer, self.one.json)
    }
}
