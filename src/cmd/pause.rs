//! `thread pause`: keeping a consumer from being started.

use clap::Args;

use crate::cmd::{OneConsumer, answer};
use crate::error::Result;
use crate::store::Store;

/// Keep a consumer from being started
///
/// A run under way goes on. Events are kept for it; `thread resume` wakes it.
#[derive(Args)]
#[command(after_help = "Example:\n  thread pause --thread inbox --consumer bot")]
pub struct Pause {
    #[command(flatten)]
    one: OneConsumer,
}

impl Pause {
    pub fn run(self) -> Result<()> {
        let (_, consumer) = self.one.change("pause", Store::pause)?;
        answer(&consumer, self.one.json)
    }
}
