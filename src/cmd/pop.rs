//! `thread pop`: acknowledging what is done and reading what comes next.

use clap::Args;

use crate::cmd::reading::ReadingArgs;
use crate::cmd::{ConsumerArg, ThreadArg, cursor_after, event_id, subscribed};
use crate::dispatch;
use crate::error::{Failure, Result};
use crate::store::Reading;

/// Print a consumer's next events, and record which it has done
///
/// Records --last-event-id as the last event the consumer has finished, then prints the events
/// after it that match the consumer's filter, oldest first, one JSON object a line; nothing when
/// there are none. An event is given again until it is acknowledged. An id before the recorded one
/// rewinds. With --resume nothing is recorded: printing goes on from the stored cursor.
///
/// With --wait, when there is nothing yet, waits for the first event. With --follow, goes on
/// printing as events come; the cursor stays, so say `thread ack` for what is done.
#[derive(Args)]
#[command(override_usage = "\
thread pop [OPTIONS] --consumer <NAME> --resume
       thread pop [OPTIONS] --consumer <NAME> --last-event-id <ID>")]
#[command(after_help = "\
Examples:
  thread pop --thread inbox --consumer bot --resume
  thread pop --thread inbox --consumer bot --last-event-id 42 --limit 10
  thread pop --thread inbox --consumer bot --resume --follow --wait 10m")]
pub struct Pop {
    #[command(flatten)]
    thread: ThreadArg,
    #[command(flatten)]
    consumer: ConsumerArg,
    /// The last event that was finished; 0 for none
    #[arg(long, value_name = "ID", value_parser = event_id, allow_negative_numbers = true,
          conflicts_with = "resume")]
    last_event_id: Option<i64>,
    /// Go on from the stored cursor and change nothing
    #[arg(long)]
    resume: bool,
    #[command(flatten)]
    reading: ReadingArgs,
    /// Print errors as JSON
    #[arg(long)]
    json: bool,
}

impl Pop {
    pub fn run(self) -> Result<()> {
        if self.last_event_id.is_none() && !self.resume {
            return Err(Failure::asked_wrongly(
                "it is not said where to begin",
                "give --last-event-id <id>, or --resume to go on from the stored cursor",
            ));
        }
        let consumer = self.consumer.existing()?;
        let mut thread = self.thread.open()?;
        let subscription = subscribed(&thread, &consumer)?;
        // Before anything is recorded: a consumer whose filter is broken has not finished anything.
        let filter = dispatch::checked_filter(&mut thread, &subscription)?;
        let subscription = match self.last_event_id {
            None => subscription,
            Some(id) => {
                cursor_after(thread.store.set_cursor(&consumer, id)?, &consumer, id)?;
                subscribed(&thread, &consumer)?
            }
        };
        let after = subscription.known_upto(subscription.last_acked_id);
        self.reading
            .print(&mut thread, Reading { after, left: self.reading.limit_or(None), filter: filter.as_ref() })
    }
}
