//! `thread ack`: acknowledging events without reading more.

use clap::Args;
use serde_json::json;

use crate::cmd::{ConsumerArg, ThreadArg, cursor_after, event_id};
use crate::error::Result;
use crate::output;
use crate::store::Moved;

/// Acknowledge events without reading them
///
/// Moves the consumer's cursor forward to --event-id and prints where it stands. Never moves it
/// backwards: an id before the cursor is a warning and changes nothing.
#[derive(Args)]
#[command(after_help = "Example:\n  thread ack --thread inbox --consumer bot --event-id 42")]
pub struct Ack {
    #[command(flatten)]
    thread: ThreadArg,
    #[command(flatten)]
    consumer: ConsumerArg,
    /// The last event that was finished
    #[arg(long, value_name = "ID", value_parser = event_id, allow_negative_numbers = true)]
    event_id: i64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Ack {
    pub fn run(self) -> Result<()> {
        let consumer = self.consumer.existing()?;
        let mut thread = self.thread.open()?;
        let moved = thread.store.acknowledge(&consumer, self.event_id)?;
        if let Moved::StandsAt(at) = moved {
            output::warn(format_args!(
                "the cursor stands at {at} already and was not moved back; `thread pop --last-event-id` rewinds"
            ));
        }
        let at = cursor_after(moved, &consumer, self.event_id)?;
        if self.json {
            return output::json(&json!({ "consumer_id": consumer.as_str(), "last_acked_id": at }));
        }
        output::line(at)
    }
}
