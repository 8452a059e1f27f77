//! `thread reject`: making an event a dead letter.

use clap::Args;

use super::consumer::FailedEvent;
use super::{Globals, print_cursor};
use crate::failure::Result;
use crate::run::settle;

/// Make an event a dead letter at once
///
/// For a pool, a consumer with --deliver ndjson, or an event that was taken with `thread pop --claim`: the event can never be handled. `thread dead` lists it.
#[derive(Args)]
#[command(after_help = "Example:\n  thread reject -t inbox mailer 42 --error 'no such address'")]
pub struct Reject {
    #[command(flatten)]
    event: FailedEvent,
}

impl Reject {
    pub fn run(mut self, globals: &Globals) -> Result<()> {
        let (mut queue, consumer, id) = self.event.open(globals)?;
        let after = settle::reject(&mut queue, &consumer, self.event.answer(id))?;
        print_cursor(&consumer, after.last_acked_id, globals)
    }
}
