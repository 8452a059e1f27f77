use clap::Args;

use crate::cmd::pop::print;
use crate::cmd::{ThreadArg, event_id, limit};
use crate::error::{Failure, Result};
use crate::filter::{Refusal, Scope};
use crate::store::Reading;

/// Print events without consuming them
///
/// Prints the events after --last-event-id, oldest first, one JSON object a line; with --filter,
/// only those that match. Needs no consumer and changes nothing.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread peek --thread inbox --last-event-id 0
  thread peek --thread inbox --last-event-id 0 \\
    --filter \"type = 'message' AND source LIKE 'internal:%'\"")]
pub struct Peek {
    #[command(flatten)]
    thread: ThreadArg,
    /// Print the events after this one; 0 for all
    #[arg(long, value_name = "ID", value_parser = event_id, allow_negative_numbers = true)]
    last_event_id: i64,
    /// The most events to print
    #[arg(long, value_name = "N", value_parser = limit, default_value = "100", allow_negative_numbers = true)]
    limit: u64,
    /// An SQL condition over id, created_at, source, type, subtype and content
    #[arg(long, value_name = "SQL", allow_hyphen_values = true)]
    filter: Option<String>,
    /// Print errors as JSON
    #[arg(long)]
    json: bool,
}

impl Peek {
    pub fn run(self) -> Result<()> {
        let mut thread = self.thread.open()?;
        let text = self.filter.unwrap_or_default();
        let filter =
            thread.store.check_filter(&text, Scope::Reading).map_err(|refusal| bad_filter(&refusal))?;
        print(
            &mut thread,
            Reading { after: self.last_event_id, left: Some(self.limit), filter: filter.as_ref() },
        )
    }
}

/// What is said of a filter that was just given and is none.
pub fn bad_filter(refusal: &Refusal) -> Failure {
    Failure::asked_wrongly(
        format_args!("the filter {refusal}"),
        "write one SQL condition over id, created_at, source, type, subtype and content",
    )
}
