//! `thread nack`: putting an event off.

use std::time::Duration;

use clap::Args;

use super::consumer::FailedEvent;
use super::{Globals, print_cursor, wake_consumer};
use crate::failure::Result;
use crate::model::duration;
use crate::run::settle;

/// Put an event off: it is delivered again later
///
/// For a pool, a consumer with --deliver ndjson, or an event that was taken with `thread pop --claim`. The event is delivered again after --delay, or after the next wait of the
/// consumer's --backoff. It has used one of its --max-attempts, unless --no-attempt is given; after the last one it
/// becomes a dead letter (see `thread dead`).
#[derive(Args)]
#[command(after_help = "Example:\n  thread nack -t inbox mailer 42 --delay 10m --error 'mailbox full'")]
pub struct Nack {
    #[command(flatten)]
    event: FailedEvent,
    /// When to deliver it again [default: the next wait of --backoff]
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    delay: Option<Duration>,
    /// This was no attempt
    #[arg(long)]
    no_attempt: bool,
}

impl Nack {
    pub fn run(mut self, globals: &Globals) -> Result<()> {
        let (mut queue, consumer, id) = self.event.open(globals)?;
        let after = settle::nack(&mut queue, &consumer, self.event.answer(id), self.delay, !self.no_attempt)?;
        wake_consumer(&mut queue, &consumer);
        print_cursor(&consumer, after.last_acked_id, globals)
    }
}
