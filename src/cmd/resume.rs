//! `thread resume`: letting a consumer be started again.

use clap::Args;
use serde_json::json;

use crate::cmd::{ConsumerArg, ThreadArg, unknown_consumer};
use crate::error::Result;
use crate::log::Level;
use crate::{output, supervisor, wake};

/// Let a paused, stalled or waiting consumer start afresh
///
/// Ends a pause, a stall or a wait between two attempts, forgets the attempts, and wakes the
/// consumer when something is pending.
#[derive(Args)]
#[command(after_help = "Example:\n  thread resume --thread inbox --consumer bot")]
pub struct Resume {
    #[command(flatten)]
    thread: ThreadArg,
    #[command(flatten)]
    consumer: ConsumerArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Resume {
    pub fn run(self) -> Result<()> {
        let consumer = self.consumer.existing()?;
        let mut thread = self.thread.open()?;
        let resumed = thread.store.resume(&consumer)?.ok_or_else(|| unknown_consumer(&consumer))?;
        thread.log(Level::Info, format_args!("resume: consumer={consumer}"));
        // A supervisor that waits goes on at once; where there is none, one is to be started.
        supervisor::nudge(&resumed);
        wake::wake_consumer(&mut thread, &consumer);
        if self.json {
            return output::json(&json!({ "consumer_id": consumer.as_str() }));
        }
        output::line(output::plain(consumer.as_str()))
    }
}
