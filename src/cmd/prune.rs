//! `thread prune`: deleting old events.

use std::time::Duration;

use chrono::Utc;
use clap::Args;
use serde_json::{Value, json};

use crate::cmd::{ThreadArg, event_id};
use crate::error::{Failure, Result};
use crate::prune::{self, Held, Old, Plan};
use crate::store::{Pruned, Sizes};
use crate::{duration, output};

/// Delete old events that nobody needs any more
///
/// Prints how many. Stops before the oldest event that is still pending for a subscribed consumer,
/// and leaves out dead letters; --force deletes these too. events.jsonl keeps the lines of all of
/// them. Others may push meanwhile.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread prune --thread inbox --older-than 30d --dry-run
  thread prune --thread inbox --before-id 1000 --compact")]
pub struct Prune {
    #[command(flatten)]
    thread: ThreadArg,
    /// Delete events with a smaller id
    #[arg(long, value_name = "ID", value_parser = first_to_stay, allow_negative_numbers = true,
          conflicts_with = "older_than")]
    before_id: Option<i64>,
    /// Delete the events before the first one that is younger than this
    #[arg(long, value_name = "D", value_parser = duration::parse, allow_hyphen_values = true)]
    older_than: Option<Duration>,
    /// Delete nothing, only say what would be deleted
    #[arg(long)]
    dry_run: bool,
    /// Also what is pending, and dead letters
    #[arg(long)]
    force: bool,
    /// Afterwards give the free space in events.db back to the file system
    #[arg(long)]
    compact: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn first_to_stay(text: &str) -> std::result::Result<i64, String> {
    let id = event_id(text).ok().filter(|&id| id >= 1);
    id.ok_or_else(|| "it is the id of an event, a whole number, 1 or more".to_owned())
}

impl Prune {
    pub fn run(self) -> Result<()> {
        let old = self.old()?;
        let mut thread = self.thread.open()?;
        let mut plan = Plan::make(&mut thread, old, self.force)?;
        if self.dry_run {
            let found = plan.survey(&thread)?;
            return self.print(found, plan.held(), None);
        }
        let pruned = plan.carry_out(&mut thread)?;
        let sizes = if self.compact { Some(prune::compact(&mut thread, pruned)?) } else { None };
        self.print(pruned, plan.held(), sizes)
    }

    fn old(&self) -> Result<Old> {
        match (self.before_id, self.older_than) {
            (Some(id), _) => Ok(Old::BeforeId(id)),
            // Spans are at most ten years, so there is such a time.
            (None, Some(age)) => Ok(Old::StoredBefore(Utc::now() - age)),
            (None, None) => Err(Failure::asked_wrongly(
                "it is not said which events are old",
                "give --before-id <id> or --older-than <duration>, and --dry-run to see what would go",
            )),
        }
    }

    fn print(&self, pruned: Pruned, held: Option<&Held>, sizes: Option<Sizes>) -> Result<()> {
        if self.json {
            return output::json(&self.as_json(pruned, held, sizes));
        }
        if self.dry_run {
            output::note(format_args!(
                "nothing was deleted; it would free {} bytes of content and metadata",
                pruned.bytes
            ));
        }
        if pruned.dead_letters > 0 {
            output::note(self.about_dead_letters(pruned.dead_letters));
        }
        if let Some(Held { at, consumer }) = held {
            output::warn(format_args!(
                "stopped before event {at}, which is pending for '{consumer}'; `thread seek` it past that or \
                 `thread unsubscribe` it if it is done with these, or prune with --force"
            ));
        }
        if let Some(Sizes { before, after }) = sizes {
            output::note(format_args!("events.db had {before} bytes and has {after} now"));
        }
        output::line(pruned.events)
    }

    fn about_dead_letters(&self, number: u64) -> String {
        match (self.force, self.dry_run, number) {
            (false, _, 1) => "1 event was left out: it is a dead letter (see `thread dead list`)".to_owned(),
            (false, _, n) => {
                format!("{n} events were left out: they are dead letters (see `thread dead list`)")
            }
            (true, true, 1) => "1 of these events is a dead letter, and would go too".to_owned(),
            (true, true, n) => format!("{n} of these events are dead letters, and would go too"),
            (true, false, 1) => "1 of these events was a dead letter".to_owned(),
            (true, false, n) => format!("{n} of these events were dead letters"),
        }
    }

    fn as_json(&self, pruned: Pruned, held: Option<&Held>, sizes: Option<Sizes>) -> Value {
        let mut object = json!({
            "count": pruned.events,
            "bytes": pruned.bytes,
            "dead_letters": pruned.dead_letters,
            "stopped_at": held.map(|held| held.at),
            "consumer_id": held.map(|held| held.consumer.as_str()),
            "dry_run": self.dry_run,
        });
        if let Some(Sizes { before, after }) = sizes {
            object["size_before"] = before.into();
            object["size_after"] = after.into();
        }
        object
    }
}
