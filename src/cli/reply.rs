//! `thread reply`: pushing the answer to an event.

use clap::Args;

use super::error::{Failure, Result};
use super::event::EventArgs;
use super::{Globals, environment, event_id, push};
use crate::queue::Queue;

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
        let to = self.to.map_or_else(event_of_the_run, Ok)?;
        let path = globals.path()?;
        let answer = self.event.into_event(Some(to))?;
        let mut queue = Queue::open(path)?;
        push::check_answered(&mut queue, Some(to))?;
        push::store(&mut queue, &answer, |id| push::lay_aside(id, globals))?.print(&answer, globals);
        Ok(())
    }
}

/// The event that this process was started for, if `THREAD_EVENT_ID` says so.
fn event_of_the_run() -> Result<i64> {
    let missing =
        || Failure::usage("no event to answer was given", "give its id with --to; nothing was stored");
    let text = environment::variable("THREAD_EVENT_ID").ok_or_else(missing)?;
    let id = text.to_str().and_then(|text| event_id(text).ok());
    id.ok_or_else(|| {
        Failure::usage(
            "THREAD_EVENT_ID is not an event id",
            "set it correctly, or give --to; nothing was stored",
        )
    })
}
