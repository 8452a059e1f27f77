//! `thread pause`: keeping a consumer from being started.

use clap::Args;
use serde_json::json;

use crate::cmd::{ConsumerArg, ThreadArg, unknown_consumer};
use crate::error::Result;
use crate::log::Level;
use crate::{output, supervisor};

/// Keep a consumer from being started
///
/// A run under way goes on. Events are kept for it; `thread resume` wakes it.
#[derive(Args)]
#[command(after_help = "Example:\n  thread pause --thread inbox --consumer bot")]
pub struct Pause {
    #[command(flatten)]
    thread: ThreadArg,
    #[command(flatten)]
    consumer: ConsumerArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Pause {
    pub fn run(self) -> Result<()> {
        let consumer = self.consumer.existing()?;
        let mut thread = self.thread.open()?;
        let paused = thread.store.pause(&consumer)?.ok_or_else(|| unknown_consumer(&consumer))?;
        thread.log(Level::Info, format_args!("pause: consumer={consumer}"));
        supervisor::nudge(&paused);
        if self.json {
            return output::json(&json!({ "consumer_id": consumer.as_str() }));
        }
        output::line(output::plain(consumer.as_str()))
    }
}
