//! `thread ack`: acknowledging events without reading more.

use clap::Args;

use super::consumer::missing;
use super::{ConsumerArg, Globals, event_id, output, print_cursor, warn_if_clamped};
use crate::error::{Code, Error};
use crate::failure::{Result, failed, usage};
use crate::run::settle;
use crate::store::Moved;

/// Acknowledge events without reading them
///
/// Moves the consumer's cursor forward to the event and prints its position. Never moves it back: for an id
/// before the cursor it warns and changes nothing.
///
/// In a pool, with --deliver ndjson, and for events that were taken with `thread pop --claim`, it finishes exactly the
/// events that are given. The position that it prints is then that of the last event before which nothing is unfinished.
#[derive(Args)]
#[command(after_help = "Examples:\n  thread ack -t inbox bot 42\n  thread ack 42           # in a handler")]
pub struct Ack {
    #[command(flatten)]
    consumer: ConsumerArg,
    /// The last event the consumer has finished; in a pool or with --deliver ndjson, each of them
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// The same, as an option
    #[arg(long, value_name = "ID", value_parser = event_id, allow_negative_numbers = true, hide = true)]
    event_id: Option<i64>,
    /// Acknowledge everything if the id is beyond the newest event
    #[arg(long)]
    force: bool,
    /// The claim by which you have the event; refused if somebody else has it by now
    #[arg(long, value_name = "TOKEN", conflicts_with = "force")]
    claim: Option<String>,
}

impl Ack {
    pub fn run(mut self, globals: &Globals) -> Result<()> {
        let mut ids = match self.event_id {
            Some(id) if self.ids.is_empty() => vec![id],
            Some(_) => {
                return usage("the event id is given twice", "give it as an argument or with --event-id");
            }
            None => self.consumer.event_ids(self.ids)?,
        };
        let Some(&id) = ids.first() else { return missing("event id", "--event-id") };
        let consumer = self.consumer.existing()?;
        let mut queue = globals.open()?;
        let subscription = queue.subscription(&consumer)?;
        let newest = queue.store.newest()?;
        if let Some(beyond) = ids.iter().find(|id| **id > newest).filter(|_| !self.force) {
            return failed(
                Code::UnknownEvent,
                format_args!("event {beyond} does not exist yet: the newest one is {newest}"),
                "give an id that was printed, or --force for all that are stored",
            );
        }
        if subscription.options.finishes_singly() {
            let all = ids.iter().any(|id| *id > newest).then_some(newest);
            ids.retain(|id| *id <= newest);
            if self.claim.is_some() && ids.len() > 1 {
                return usage("--claim is for one event", "acknowledge each with its own claim");
            }
            let after = settle::ack(&mut queue, &consumer, &ids, all, self.claim.as_deref())?;
            return print_cursor(&consumer, after.last_acked_id, globals);
        }
        if self.claim.is_some() {
            return Err(Error::NoClaims(consumer).into());
        }
        if ids.len() > 1 {
            return usage(
                format_args!("several events, but '{consumer}' acknowledges everything up to one"),
                "give the last of them",
            );
        }
        let moved = queue.acknowledge(&consumer, id)?;
        warn_if_clamped(moved, id);
        if let Moved::Ahead(at) = moved {
            output::warn(format_args!(
                "the cursor is at {at} already and was not moved back; `thread seek` moves it back"
            ));
        }
        print_cursor(&consumer, moved.position(), globals)
    }
}
