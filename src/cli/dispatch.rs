//! `thread dispatch`: starting whoever has something pending.

use clap::Args;
use serde_json::json;

use super::error::Result;
use super::{Globals, environment, output, signals};
use crate::run::dispatch::{Dispatched, Effort, dispatch};

/// Start the handlers of all consumers that have something pending
///
/// Starts whoever has matching events past its cursor and is not running. Returns at once and
/// prints nothing, so that cron can run it. Pushes do this by themselves; it is for notifiers, for
/// THREAD_NOTIFIER=off, and after a crash. With --json it prints what became of each consumer.
#[derive(Args)]
#[command(after_help = "Example:\n  * * * * * thread dispatch --thread ~/agents/inbox")]
pub struct Dispatch {}

impl Dispatch {
    pub fn run(self, globals: &Globals) -> Result<()> {
        let mut queue = globals.open()?;
        signals::defer();
        let all = dispatch(&mut queue, &environment::launcher(), Effort::Quick)?;
        for (consumer, done) in &all {
            if let Dispatched::Broken(e) | Dispatched::Failed(e) = done {
                output::warn(format_args!("the consumer '{consumer}' was not started: {e}"));
            }
        }
        if !globals.json {
            return Ok(());
        }
        let consumers: Vec<_> = all
            .iter()
            .map(|(consumer, done)| json!({ "consumer_id": consumer.as_str(), "outcome": word(done) }))
            .collect();
        output::json(&json!({ "consumers": consumers }))
    }
}

fn word(done: &Dispatched) -> &'static str {
    match done {
        Dispatched::Idle => "idle",
        Dispatched::Started => "started",
        Dispatched::LockHeld => "running",
        Dispatched::LeftToBackground => "left-to-background",
        Dispatched::Broken(_) => "broken",
        Dispatched::Failed(_) => "failed",
    }
}
