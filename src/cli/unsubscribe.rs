//! `thread unsubscribe`: removing a consumer.

use clap::Args;

use super::{ConsumerArg, Globals, print_consumer};
use crate::failure::Result;
use crate::files::log::log;
use crate::run::control::notify_supervisors;

/// Remove a consumer's subscription
///
/// A run under way finishes and is not followed by another; a handler that is kept has ten seconds for that. The cursor
/// and dead letters stay: if it is subscribed again, the consumer continues at its cursor. `thread logs` still shows what
/// the handler printed last; older, rotated output is removed.
#[derive(Args)]
#[command(after_help = "Example:\n  thread unsubscribe -t inbox bot")]
pub struct Unsubscribe {
    #[command(flatten)]
    consumer: ConsumerArg,
}

impl Unsubscribe {
    pub fn run(self, globals: &Globals) -> Result<()> {
        let consumer = self.consumer.existing()?;
        let mut queue = globals.open()?;
        queue.unsubscribe(&consumer)?;
        log!(queue, Info, "unsubscribe: consumer={consumer}");
        // Ends a wait between two attempts.
        notify_supervisors(&mut queue);
        print_consumer(&consumer, globals)
    }
}
