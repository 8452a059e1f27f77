//! `thread peek`: reading without consuming.

use clap::Args;

use crate::cmd::reading::ReadingArgs;
use crate::cmd::{ThreadArg, event_id, limit};
use crate::error::{Failure, Result};
use crate::filter::{Refusal, Scope};
use crate::store::Reading;

/// Print events without consuming them
///
/// Prints the events after --last-event-id, oldest first, one JSON object a line; with --filter,
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
    #[command(flatten)]
    thread: ThreadArg,
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
    /// Print errors as JSON
    #[arg(long)]
    json: bool,
}

impl Peek {
    pub fn run(self) -> Result<()> {
        if self.last_event_id.is_none() && self.tail.is_none() && !self.reading.follow {
            return Err(Failure::asked_wrongly(
                "it is not said where to begin",
                "give --last-event-id <id> (0 for all), --tail <n>, or --follow for what comes",
            ));
        }
        let mut thread = self.thread.open()?;
        let text = self.filter.unwrap_or_default();
        let filter = thread.store.check_filter(&text, Scope::Reading).map_err(|e| bad_filter(&e))?;
        let after = match (self.last_event_id, self.tail) {
            (after, Some(count)) => thread.store.start_of_tail(filter.as_ref(), after.unwrap_or(0), count)?,
            (Some(after), None) => after,
            (None, None) => thread.store.newest_ever()?,
        };
        // What was asked for by number is not cut short by a limit that nobody gave.
        let limit = self.reading.limit_or(self.tail);
        self.reading.print(&mut thread, Reading { after, left: limit, filter: filter.as_ref() })
    }
}

/// What is said of a filter that was just given and is none.
pub fn bad_filter(refusal: &Refusal) -> Failure {
    Failure::asked_wrongly(
        format_args!("the filter {refusal}"),
        "write one SQL condition over id, created_at, source, type, subtype, content and metadata",
    )
}
