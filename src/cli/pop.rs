//! `thread pop`: acknowledging finished events and reading the next ones.

use std::ops::ControlFlow;
use std::time::Duration;

use clap::Args;

use super::reading::ReadingArgs;
use super::{ConsumerArg, Globals, event_id, output, warn_if_clamped};
use crate::error::Code;
use crate::failure::{Result, failed};
use crate::model::duration;
use crate::pending::checked_filter;
use crate::queue::Selection;
use crate::store::Move;

/// Print a consumer's next events, and record which are done
///
/// Prints the events after the consumer's cursor that match its filter, oldest first, one JSON object per line; nothing
/// if there are none. An event is printed again until it is acknowledged: by `thread ack`, or by --last-event-id, which
/// first records the last event that the consumer has finished. An id before the recorded one rewinds. --follow does
/// not move the cursor, so acknowledge finished events with `thread ack`.
///
/// With --claim, several programs share a consumer (see --no-handler of `thread subscribe`): each event is printed for one
/// of them, with the token of its claim, and for nobody else until the time is over. `thread ack`, `nack` and `reject`
/// end a claim, `thread claim` prolongs it. One that ends by itself is a failed attempt.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread pop -t inbox bot
  thread pop -t inbox bot --last-event-id 42 --limit 10
  thread pop -t inbox bot --follow --wait 10m
  thread pop -t inbox team --claim 1m --wait 20s")]
pub struct Pop {
    #[command(flatten)]
    consumer: ConsumerArg,
    /// First record this as the last event the consumer has finished; 0 for none
    #[arg(long, value_name = "ID", value_parser = event_id, allow_negative_numbers = true,
          conflicts_with_all = ["resume", "claim"])]
    last_event_id: Option<i64>,
    /// Continue at the stored cursor, which is the default
    #[arg(long)]
    resume: bool,
    /// Take the next event, or up to --limit, for so long, e.g. 1m
    #[arg(long, value_name = "D", value_parser = duration::parse_positive, conflicts_with_all = ["resume", "follow"])]
    claim: Option<Duration>,
    #[command(flatten)]
    pub reading: ReadingArgs,
}

impl Pop {
    pub fn run(self, globals: &Globals) -> Result<()> {
        if let Some(length) = self.claim {
            let consumer = self.consumer.existing()?;
            let mut queue = globals.open()?;
            return self.reading.print_claimed(&mut queue, &consumer, length);
        }
        let consumer = self.consumer.existing()?;
        let mut queue = globals.open()?;
        let mut subscription = queue.subscription(&consumer)?;
        // Before the cursor moves: a consumer with a broken filter cannot have finished anything.
        let filter = checked_filter(&subscription)?;
        if self.last_event_id.is_some() && subscription.options.finishes_singly() {
            return failed(
                Code::Failed,
                format_args!(
                    "'{consumer}' finishes each event by itself, so its cursor is not set by reading"
                ),
                "leave it out to read, and use `thread ack` with the id of each event that is done",
            );
        }
        if let Some(id) = self.last_event_id {
            warn_if_clamped(queue.store.move_cursor(&consumer, id, Move::Seek)?, id);
            subscription = queue.subscription(&consumer)?;
        }
        if subscription.options.is_taken_from() {
            output::note(format_args!(
                "nothing is taken without --claim, and programs may have taken or finished some of these"
            ));
        }
        let (mut printed, mut expire, mut last) = (false, false, 0);
        loop {
            let after = subscription.scanned_upto(subscription.last_acked_id);
            let limit = self.reading.limit_or_default();
            let mut selection = Selection { after, limit, filter: filter.clone() };
            let mut is_cut = false;
            printed |= self.reading.print_all(&mut queue, &mut selection, &mut |row, page| {
                if !subscription.options.finishes_singly() && subscription.passes_over(row) {
                    // Events up to it are printed; the next command passes over it, and counts it.
                    is_cut = !self.reading.follow;
                    return if is_cut { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
                }
                expire |= row.expires_at().is_some();
                last = row.id;
                row.write_line(page);
                ControlFlow::Continue(())
            })?;
            if !is_cut || printed {
                break;
            }
            queue.pass_over(&subscription)?;
            subscription = queue.subscription(&consumer)?;
        }
        if expire && !subscription.options.finishes_singly() {
            queue.note_given(&subscription, last)?;
        }
        if printed { Ok(()) } else { self.reading.none_printed() }
    }
}
