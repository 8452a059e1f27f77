//! `thread unsubscribe`: removing a consumer.

use clap::Args;
use serde_json::json;

use crate::cmd::{ConsumerArg, ThreadArg, unknown_consumer};
use crate::error::Result;
use crate::log::Level;
use crate::output;
use crate::supervisor;

/// Remove a consumer's subscription
///
/// A run under way finishes and is not followed by another. The cursor stays, so that
/// subscribing the same consumer again goes on where it stopped.
#[derive(Args)]
#[command(after_help = "Example:\n  thread unsubscribe --thread inbox --consumer bot")]
pub struct Unsubscribe {
    #[command(flatten)]
    thread: ThreadArg,
    #[command(flatten)]
    consumer: ConsumerArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Unsubscribe {
    pub fn run(self) -> Result<()> {
        let consumer = self.consumer.existing()?;
        let mut thread = self.thread.open()?;
        let removed = thread.store.unsubscribe(&consumer)?.ok_or_else(|| unknown_consumer(&consumer))?;
        // A wait between two attempts ends at once.
        supervisor::nudge(&removed);
        thread.log(Level::Info, format_args!("unsubscribe: consumer={consumer}"));
        if self.json {
            return output::json(&json!({ "consumer_id": consumer.as_str() }));
        }
        output::line(output::plain(consumer.as_str()))
    }
}
