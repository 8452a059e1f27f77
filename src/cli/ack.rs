//! `thread ack`: acknowledging events without reading more.

use clap::Args;
use serde_json::json;

use super::error::Result;
use super::{ConsumerArg, Globals, event_id, output, warn_if_clamped};
use crate::store::Moved;

/// Acknowledge events without reading them
///
/// Moves the consumer's cursor forward to --event-id and prints its position. Never moves it
/// backwards: an id before the cursor is a warning and changes nothing.
#[derive(Args)]
#[command(after_help = "Example:\n  thread ack --thread inbox --consumer bot --event-id 42")]
pub struct Ack {
    #[command(flatten)]
    consumer: ConsumerArg,
    /// The last event that was finished
    #[arg(long, value_name = "ID", value_parser = event_id, allow_negative_numbers = true)]
    event_id: i64,
}

impl Ack {
    pub fn run(self, globals: &Globals) -> Result<()> {
        let consumer = self.consumer.existing()?;
        let mut queue = globals.open()?;
        let moved = queue.acknowledge(&consumer, self.event_id)?;
        warn_if_clamped(moved, self.event_id);
        if let Moved::Ahead(at) = moved {
            output::warn(format_args!(
                "the cursor is at {at} already and was not moved back; `thread seek` moves it back"
            ));
        }
        let at = moved.position();
        if globals.json {
            return output::json(&json!({ "consumer_id": consumer.as_str(), "last_acked_id": at }));
        }
        output::line(at)
    }
}
