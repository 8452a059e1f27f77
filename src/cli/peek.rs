//! `thread peek`: reading without consuming.

use clap::Args;

use super::error::{Failure, Result};
use super::reading::ReadingArgs;
use super::{Globals, event_id, limit};
use crate::error::Error;
use crate::model::filter::{Filter, Scope};
use crate::queue::Selection;

/// Print events without consuming them
///
/// Prints the events after --last-event-id, oldest first, one JSON object per line; with --filter,
/// only those that match. Needs no consumer and changes nothing. With --tail, begins with the last
/// events; with --follow, goes on printing as events come, by default from the end; with --wait,
/// when there is nothing yet, waits for the first event.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread peek --thread inbox --tail 20 --follow
  thread peek --thread inbox --last-event-id 0 \\
    --filter \"type = 'message' AND source LIKE 'internal:%'\"")]
pub struct Peek {
    /// Print the events after this one; 0 for all
    #[arg(long, value_name = "ID", value_parser = event_id, allow_negative_numbers = true)]
    last_event_id: Option<i64>,
    /// Begin with the last N events
    #[arg(long, value_name = "N", value_parser = limit, allow_negative_numbers = true)]
    tail: Option<u64>,
    #[command(flatten)]
    reading: ReadingArgs,
    /// An SQL condition over id, created_at, source, type, subtype, content and metadata
    #[arg(long, value_name = "SQL", allow_hyphen_values = true)]
    filter: Option<String>,
}

impl Peek {
    pub fn run(self, globals: &Globals) -> Result<()> {
        if self.last_event_id.is_none() && self.tail.is_none() && !self.reading.follow {
            return Err(Failure::usage(
                "no starting point given",
                "give --last-event-id <id> (0 for all), --tail <n>, or --follow for new events",
            ));
        }
        let mut queue = globals.open()?;
        let text = self.filter.unwrap_or_default();
        let filter = Filter::new(&text, Scope::Reading).map_err(Error::from)?;
        let after = match (self.last_event_id, self.tail) {
            (after, Some(count)) => queue.start_of_tail(filter.as_ref(), after.unwrap_or(0), count)?,
            (Some(after), None) => after,
            (None, None) => queue.store().newest()?,
        };
        // What was asked for by number is not cut short by a limit that nobody gave.
        let limit = self.reading.limit_or(self.tail);
        self.reading.print(&mut queue, Selection { after, limit, filter })
    }
}
