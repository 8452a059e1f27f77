//! `thread unsubscribe`: removing a consumer.

use clap::Args;

use crate::cmd::{OneConsumer, answer};
use crate::error::Result;
use crate::store::Store;

/// Remove a consumer's subscription
///
/// A run under way finishes and is not followed by another. The cursor stays, so that
/// subscribing the same consumer again goes on where it stopped.
#[derive(Args)]
#[command(after_help = "Example:\n  thread unsubscribe --thread inbox --consumer bot")]
pub struct Unsubscribe {
    #[command(flatten)]
    one: OneConsumer,
}

impl Unsubscribe {
    pub fn run(self) -> Result<()> {
        // A wait between two attempts ends at once.
        let (_, consumer) = self.one.change("unsubscribe", Store::unsubscribe)?;
        answer(&consumer, self.one.json)
    }
}
