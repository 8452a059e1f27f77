//! `thread resume`: ending a pause, a stall or a wait.

use clap::Args;
use serde_json::json;

use super::consumer::must_finish_singly;
use super::{ConsumerArg, Globals, event_id, output, print_consumer, wake_consumer};
use crate::error::Error;
use crate::failure::Result;
use crate::files::log::log;
use crate::model::subscription::ConsumerId;
use crate::queue::Queue;
use crate::run::control;

/// Let a paused, stalled or waiting consumer start afresh
///
/// Ends a pause, a stall or a wait between two attempts, resets the count of failed attempts, and wakes the
/// consumer if something is pending.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread resume -t inbox bot
  thread resume -t inbox mailer --event 17
  thread resume -t inbox --all")]
pub struct Resume {
    #[command(flatten)]
    consumer: ConsumerArg,
    /// All consumers
    #[arg(long, conflicts_with_all = ["word", "consumer"])]
    all: bool,
    /// Only end the wait of this event, for a pool or with --deliver ndjson
    #[arg(long, value_name = "ID", value_parser = event_id, conflicts_with = "all", allow_negative_numbers = true)]
    event: Option<i64>,
}

impl Resume {
    pub fn run(self, globals: &Globals) -> Result<()> {
        if !self.all {
            let consumer = self.consumer.existing()?;
            let mut queue = globals.open()?;
            match self.event {
                Some(id) => resume_event(&mut queue, &consumer, id)?,
                None => resume(&mut queue, &consumer)?,
            }
            return print_consumer(&consumer, globals);
        }
        let mut queue = globals.open()?;
        let subscriptions = queue.store.subscriptions()?;
        for one in &subscriptions {
            match resume(&mut queue, &one.consumer) {
                // Unsubscribed in the meantime.
                Err(Error::UnknownConsumer(_)) => {}
                done => done?,
            }
        }
        let names: Vec<&str> = subscriptions.iter().map(|one| one.consumer.as_str()).collect();
        match globals.json {
            true => output::line(json!({ "consumers": names })),
            false => names.iter().try_for_each(|name| output::line(output::plain(name))),
        }
    }
}

fn resume_event(queue: &mut Queue, consumer: &ConsumerId, id: i64) -> Result<()> {
    must_finish_singly(queue, consumer)?;
    control::resume_event(queue, consumer, id)?;
    log!(queue, Info, "resume: consumer={consumer} id={id}");
    wake_consumer(queue, consumer);
    Ok(())
}

fn resume(queue: &mut Queue, consumer: &ConsumerId) -> crate::error::Result<()> {
    control::resume(queue, consumer)?;
    log!(queue, Info, "resume: consumer={consumer}");
    // A waiting supervisor notices by itself; if there is none, this starts one.
    wake_consumer(queue, consumer);
    Ok(())
}
