//! `thread dispatch`: starting whoever has something pending.

use clap::Args;
use serde_json::json;

use crate::cmd::ThreadArg;
use crate::dispatch::{Outcome, dispatch};
use crate::error::Result;
use crate::output;
use crate::rule::Cause;

/// Start the handlers of all consumers that have something pending
///
/// Starts whoever has matching events past its cursor and is not running. Returns at once and
/// prints nothing, so that cron can run it. Pushes do this by themselves; it is for notifiers, for
/// THREAD_NOTIFIER=off, and after a crash.
#[derive(Args)]
#[command(after_help = "Example:\n  * * * * * thread dispatch --thread ~/agents/inbox")]
pub struct Dispatch {
    #[command(flatten)]
    thread: ThreadArg,
    /// Print what became of each consumer as JSON
    #[arg(long)]
    json: bool,
}

impl Dispatch {
    pub fn run(self) -> Result<()> {
        let mut thread = self.thread.open()?;
        let outcomes = dispatch(&mut thread, Cause::Asked)?;
        for (consumer, outcome) in &outcomes {
            if let Outcome::Broken(why) = outcome {
                output::warn(format_args!("the consumer '{consumer}' was not started: {why}"));
            }
        }
        if !self.json {
            return Ok(());
        }
        let consumers: Vec<_> = outcomes
            .iter()
            .map(|(consumer, outcome)| {
                let word = match outcome {
                    Outcome::Idle => "idle",
                    Outcome::Started => "started",
                    Outcome::Running => "running",
                    Outcome::Broken(_) => "broken",
                };
                json!({ "consumer_id": consumer.as_str(), "outcome": word })
            })
            .collect();
        output::json(&json!({ "consumers": consumers }))
    }
}
