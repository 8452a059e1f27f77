use clap::Args;

use crate::cmd::{ConsumerArg, ThreadArg, event_id, limit, unknown_consumer, warn_moved};
use crate::dispatch;
use crate::error::{Failure, Result};
use crate::output::{self, Reader};
use crate::store::{Moved, Reading};
use crate::thread::Thread;

/// Acknowledge what a consumer has done, and print what comes next
///
/// Records --last-event-id as the last event the consumer has finished, then prints the events
/// after it that match the consumer's filter, oldest first, one JSON object a line; nothing when
/// there are none. An event is given again until it is acknowledged. An id before the recorded one
/// rewinds. With --resume nothing is recorded: printing goes on from the stored cursor.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread pop --thread inbox --consumer bot --resume
  thread pop --thread inbox --consumer bot --last-event-id 42 --limit 10")]
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
    /// The most events to print
    #[arg(long, value_name = "N", value_parser = limit, default_value = "100", allow_negative_numbers = true)]
    limit: u64,
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
        if let Some(id) = self.last_event_id {
            match thread.store.set_cursor(&consumer, id)? {
                Moved::UnknownConsumer => return Err(unknown_consumer(&consumer)),
                moved => warn_moved(Some(moved), id),
            }
        }
        let subscription =
            thread.store.subscription(&consumer)?.ok_or_else(|| unknown_consumer(&consumer))?;
        let filter = dispatch::checked_filter(&mut thread, &subscription)?;
        let after = subscription.known_upto(subscription.last_acked_id);
        print(&mut thread, Reading { after, left: Some(self.limit), filter: filter.as_ref() })
    }
}

/// Prints events page by page, with no read transaction open while the reader takes his time.
pub fn print(thread: &mut Thread, mut reading: Reading<'_>) -> Result<()> {
    let mut page = Vec::new();
    loop {
        page.clear();
        let more = thread.store.read_page(&mut reading, &mut page)?;
        if (!page.is_empty() && output::bytes(&page)? == Reader::Gone) || !more {
            return Ok(());
        }
    }
}
