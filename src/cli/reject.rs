//! `thread reject`: making an event a dead letter.

use clap::Args;

use super::consumer::{missing, must_finish_singly};
use super::{ConsumerArg, Globals, event_id, print_cursor};
use crate::failure::Result;
use crate::run::settle;

/// Make an event a dead letter at once
///
/// For a consumer with --deliver ndjson: the event can never be handled. `thread dead` lists it.
#[derive(Args)]
#[command(after_help = "Example:\n  thread reject -t inbox mailer 42 --error 'no such address'")]
pub struct Reject {
    #[command(flatten)]
    consumer: ConsumerArg,
    /// The event
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// The same, as an option
    #[arg(long, value_name = "ID", value_parser = event_id, allow_negative_numbers = true, hide = true)]
    event_id: Option<i64>,
    /// Why, for the dead letter
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    error: String,
}

impl Reject {
    pub fn run(mut self, globals: &Globals) -> Result<()> {
        let id = self.consumer.value("event id", self.id, event_id, "--event-id", self.event_id)?;
        let id = id.map_or_else(|| missing("event id", "--event-id"), Ok)?;
        let consumer = self.consumer.existing()?;
        let mut queue = globals.open()?;
        must_finish_singly(&mut queue, &consumer)?;
        let after = settle::reject(&mut queue, &consumer, id, &self.error)?;
        print_cursor(&consumer, after.last_acked_id, globals)
    }
}
