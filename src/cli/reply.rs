//! `thread reply`: pushing the answer to an event.

use clap::Args;

use super::event::EventArgs;
use super::push::push_one;
use super::{Globals, environment, event_id};
use crate::failure::{Result, usage};

/// Push the answer to an event
///
/// Pushes an event like `thread push`, with the id of the event it answers as reply_to in its metadata,
/// where `thread ask` looks for it. Prints the answer's own id.
#[derive(Args)]
#[command(after_help = "\
Example:
  thread reply -t inbox --to 3 'Yes'")]
pub struct Reply {
    /// The event to answer [default: $THREAD_EVENT_ID]
    #[arg(long, value_name = "ID", value_parser = event_id, allow_negative_numbers = true)]
    to: Option<i64>,
    #[command(flatten)]
    event: EventArgs,
}

impl Reply {
    pub fn run(self, globals: &Globals) -> Result<()> {
        let to = self.to.map_or_else(event_from_environment, Ok)?;
        push_one(self.event, Some(to), None, globals).map(drop)
    }
}

/// The event id in `THREAD_EVENT_ID`.
fn event_from_environment() -> Result<i64> {
    let Some(text) = environment::variable("THREAD_EVENT_ID") else {
        return usage("no event to answer was given", "give its id with --to; nothing was stored");
    };
    let id = text.to_str().and_then(|text| event_id(text).ok());
    let hint = "set it correctly, or give --to; nothing was stored";
    id.map_or_else(|| usage("THREAD_EVENT_ID is not an event id", hint), Ok)
}
