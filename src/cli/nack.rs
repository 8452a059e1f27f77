//! `thread nack`: putting an event off.

use std::time::Duration;

use clap::Args;

use super::consumer::{missing, must_finish_singly};
use super::{ConsumerArg, Globals, event_id, print_cursor, wake_consumer};
use crate::failure::Result;
use crate::model::duration;
use crate::run::settle;

/// Put an event off: it is delivered again later
///
/// For a consumer with --deliver ndjson. The event is delivered again after --delay, or after the next wait of the
/// consumer's --backoff. It has used one of its --max-attempts, unless --no-attempt is given; after the last one it
/// becomes a dead letter (see `thread dead`).
#[derive(Args)]
#[command(after_help = "Example:\n  thread nack -t inbox mailer 42 --delay 10m --error 'mailbox full'")]
pub struct Nack {
    #[command(flatten)]
    consumer: ConsumerArg,
    /// The event
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// The same, as an option
    #[arg(long, value_name = "ID", value_parser = event_id, allow_negative_numbers = true, hide = true)]
    event_id: Option<i64>,
    /// When to deliver it again [default: the next wait of --backoff]
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    delay: Option<Duration>,
    /// Why, for its dead letter
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    error: String,
    /// This was no attempt
    #[arg(long)]
    no_attempt: bool,
}

impl Nack {
    pub fn run(mut self, globals: &Globals) -> Result<()> {
        let id = self.consumer.value("event id", self.id, event_id, "--event-id", self.event_id)?;
        let id = id.map_or_else(|| missing("event id", "--event-id"), Ok)?;
        let consumer = self.consumer.existing()?;
        let mut queue = globals.open()?;
        must_finish_singly(&mut queue, &consumer)?;
        let after = settle::nack(&mut queue, &consumer, id, self.delay, !self.no_attempt, &self.error)?;
        wake_consumer(&mut queue, &consumer);
        print_cursor(&consumer, after.last_acked_id, globals)
    }
}
