//! `thread ack`: acknowledging events without reading more.

use clap::Args;

use super::consumer::missing;
use super::{ConsumerArg, Globals, event_id, output, print_cursor, warn_if_clamped};
use crate::failure::Result;
use crate::store::Moved;

/// Acknowledge events without reading them
///
/// Moves the consumer's cursor forward to the event and prints its position. Never moves it back: for an id
/// before the cursor it warns and changes nothing.
#[derive(Args)]
#[command(after_help = "Examples:\n  thread ack -t inbox bot 42\n  thread ack 42           # in a handler")]
pub struct Ack {
    #[command(flatten)]
    consumer: ConsumerArg,
    /// The last event the consumer has finished
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// The same, as an option
    #[arg(long, value_name = "ID", value_parser = event_id, allow_negative_numbers = true, hide = true)]
    event_id: Option<i64>,
}

impl Ack {
    pub fn run(mut self, globals: &Globals) -> Result<()> {
        let id = self.consumer.value("event id", self.id, event_id, "--event-id", self.event_id)?;
        let id = id.map_or_else(|| missing("event id", "--event-id"), Ok)?;
        let consumer = self.consumer.existing()?;
        let mut queue = globals.open()?;
        let moved = queue.acknowledge(&consumer, id)?;
        warn_if_clamped(moved, id);
        if let Moved::Ahead(at) = moved {
            output::warn(format_args!(
                "the cursor is at {at} already and was not moved back; `thread seek` moves it back"
            ));
        }
        print_cursor(&consumer, moved.position(), globals)
    }
}
