//! `thread resume`: ending a pause, a stall or a wait.

use clap::Args;
use serde_json::json;

use super::{ConsumerArg, Globals, output, print_consumer, wake_consumer};
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
#[command(after_help = "Examples:\n  thread resume -t inbox bot\n  thread resume -t inbox --all")]
pub struct Resume {
    #[command(flatten)]
    consumer: ConsumerArg,
    /// All consumers
    #[arg(long, conflicts_with_all = ["word", "consumer"])]
    all: bool,
}

impl Resume {
    pub fn run(self, globals: &Globals) -> Result<()> {
        if !self.all {
            let consumer = self.consumer.existing()?;
            resume(&mut globals.open()?, &consumer)?;
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

fn resume(queue: &mut Queue, consumer: &ConsumerId) -> crate::error::Result<()> {
    control::resume(queue, consumer)?;
    log!(queue, Info, "resume: consumer={consumer}");
    // A waiting supervisor notices by itself; if there is none, this starts one.
    wake_consumer(queue, consumer);
    Ok(())
}
