//! `thread prune`: deleting old events.

use std::time::Duration;

use chrono::Utc;
use clap::Args;
use serde_json::{Value, json};

use super::progress::Progress;
use super::root::{RootArg, for_each};
use super::{Globals, limit, output};
use crate::failure::{Failure, Result, usage};
use crate::maintenance::prune::{self, Held, HeldBy, Old, Report, Request};
use crate::model::duration;
use crate::model::location::Location;
use crate::queue::Queue;
use crate::store::Pruned;

/// Delete old events that no consumer still needs
///
/// Prints how many were deleted. Stops before the oldest event that is still pending for a subscribed
/// consumer, or that is held (see `thread config --help`; not with --subtype), and leaves dead letters
/// alone; --force deletes them all. The sealed JSONL files keep the lines of
/// deleted events. Other programs may push while it runs.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread prune --thread inbox --older-than 30d --dry-run
  thread prune --thread inbox --keep 100000 --compact
  thread prune --thread inbox --older-than 1d --subtype token
  thread prune --thread inbox --older-than 30d --sealed-older-than 90d
  thread prune --root ~/agents --older-than 30d")]
pub struct Prune {
    /// Delete events with a smaller id
    #[arg(long, value_name = "ID", value_parser = limit, allow_negative_numbers = true, group = "old")]
    before_id: Option<u64>,
    /// Delete events before the first one that is younger than this
    #[arg(long, value_name = "D", value_parser = duration::parse, allow_hyphen_values = true, group = "old")]
    older_than: Option<Duration>,
    /// Delete all but the newest N events
    #[arg(long, value_name = "N", value_parser = limit, allow_negative_numbers = true, group = "old")]
    keep: Option<u64>,
    /// Delete the parts of the JSONL log that were sealed longer ago than this; may be given alone
    #[arg(long, value_name = "D", value_parser = duration::parse, allow_hyphen_values = true)]
    sealed_older_than: Option<Duration>,
    /// Only events of this subtype
    #[arg(long, value_name = "SUBTYPE")]
    subtype: Option<String>,
    /// Delete nothing; print what would be deleted
    #[arg(long)]
    dry_run: bool,
    /// Also delete pending and held events, and dead letters
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    pub root: RootArg,
    /// Then return the free space in events.db to the file system; other programs wait until it is done
    #[arg(long)]
    compact: bool,
}

/// Two sizes or counts; `None` if not requested.
type Pair = Option<(u64, u64)>;

impl Prune {
    pub fn run(self, globals: &Globals) -> Result<()> {
        let old = match (self.before_id, self.older_than, self.keep) {
            (Some(id), ..) => Old::BeforeId(id as i64),
            // Does not overflow: durations are at most ten years.
            (_, Some(age), _) => Old::StoredBefore(Utc::now() - age),
            (.., Some(keep)) => Old::AllButNewest(keep),
            _ if self.sealed_older_than.is_none() || self.subtype.is_some() || self.force => {
                return usage(
                    "nothing says which events to delete",
                    "give one of --before-id, --older-than and --keep, or only --sealed-older-than",
                );
            }
            // No event has a smaller id: prunes only sealed files.
            _ => Old::BeforeId(1),
        };
        let Some(threads) = self.root.threads(globals)? else {
            return self.prune(old, &globals.location()?, None, globals);
        };
        if matches!(old, Old::BeforeId(2..)) {
            return usage("each thread has its own ids", "give --older-than or --keep with --root");
        }
        for_each(&threads, |thread| self.prune(old, thread, Some(thread), globals))
    }

    /// Prunes a thread, and says what it did, with its `name` if that is given.
    fn prune(&self, old: Old, thread: &Location, name: Option<&Location>, globals: &Globals) -> Result<()> {
        let mut queue = Queue::open(thread)?;
        let name = name.map(|name| format!("{}: ", output::plain(&name.to_string()))).unwrap_or_default();
        if self.compact {
            // Before anything is deleted.
            queue.directory("--compact")?;
        }
        let Prune { force, dry_run, .. } = *self;
        let request = Request { old, subtype: self.subtype.as_deref(), force, dry_run };
        // The steps that need no space come first: on a full disk, only they can make room for the others.
        let freed = self.prune_sealed(&mut queue)?;
        let mut progress = Progress::of("deleting old events", None);
        let pruned = prune::prune(&mut queue, &request, &mut |events| progress.advance(events));
        drop(progress);
        let mut report = pruned.map_err(|e| after_deleting(e.into(), freed, 0))?;
        let further = report.failed.take().map_or_else(|| self.compact_and_prune_sealed(&mut queue), Err);
        let Pruned { events, bytes, dead_letters } = report.pruned;
        let (sizes, sealed) = further.map_err(|e| after_deleting(e.into(), freed, events))?;
        let sealed = freed.zip(sealed).map(|((files, bytes), more)| (files + more.0, bytes + more.1));
        if globals.json {
            let mut facts = self.as_json(&report, sealed, sizes);
            if !name.is_empty() {
                facts["thread"] = thread.to_string().into();
            }
            return output::line(facts);
        }
        if dry_run {
            output::note(format_args!(
                "{name}nothing was deleted; it would free {bytes} bytes of content and metadata"
            ));
        }
        if dead_letters > 0 {
            output::note(name.clone() + &self.about_dead_letters(dead_letters));
        }
        match &report.held {
            Some(Held { at, by: HeldBy::Pending(consumer) }) => output::warn(format_args!(
                "{name}stopped before event {at}, which is pending for '{consumer}'; `thread seek` it past that or \
                 `thread unsubscribe` it if it is done with these, or prune with --force"
            )),
            Some(Held { at, by: HeldBy::Hold(holder) }) => output::warn(format_args!(
                "{name}stopped before event {at}, which '{}' needs, with all after it (the setting hold.{0}); prune \
                 with --subtype or --force to delete such events too",
                output::plain(holder)
            )),
            None => {}
        }
        if let Some((before, after)) = sizes {
            output::note(format_args!("{name}events.db had {before} bytes and has {after} now"));
        }
        if let Some((files, bytes)) = sealed {
            let done = if dry_run { "would be" } else { "were" };
            output::note(format_args!(
                "{name}{files} sealed files of the JSONL log, {bytes} bytes, {done} deleted"
            ));
        }
        output::line(format_args!("{name}{events}"))
    }

    /// Deletes sealed files that have become old. Returns their number and their bytes.
    fn prune_sealed(&self, queue: &mut Queue) -> crate::Result<Pair> {
        let before = self.sealed_older_than.map(|age| Utc::now() - age);
        before.map(|before| prune::prune_sealed(queue, before, self.dry_run)).transpose()
    }

    /// The steps after deleting events: compacting, and deleting files that were sealed in the process and are
    /// already old. Returns the size of `events.db` in bytes before and after --compact, and the number of sealed
    /// files and their bytes.
    fn compact_and_prune_sealed(&self, queue: &mut Queue) -> crate::Result<(Pair, Pair)> {
        let compacts = self.compact && !self.dry_run;
        let sizes = if compacts { Some(prune::compact(queue)?) } else { None };
        let sealed =
            if self.dry_run { self.sealed_older_than.map(|_| (0, 0)) } else { self.prune_sealed(queue)? };
        Ok((sizes, sealed))
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

    fn as_json(&self, report: &Report, sealed: Pair, sizes: Pair) -> Value {
        let held = report.held.as_ref();
        let mut object = json!({
            "count": report.pruned.events,
            "bytes": report.pruned.bytes,
            "dead_letters": report.pruned.dead_letters,
            "stopped_at": held.map(|held| held.at),
            "consumer_id": held.and_then(|held| match &held.by {
                HeldBy::Pending(consumer) => Some(consumer.as_str()),
                HeldBy::Hold(_) => None,
            }),
            "hold": held.and_then(|held| match &held.by {
                HeldBy::Pending(_) => None,
                HeldBy::Hold(holder) => Some(holder.as_str()),
            }),
            "dry_run": self.dry_run,
        });
        if let Some((files, bytes)) = sealed {
            object["sealed_files"] = files.into();
            object["sealed_bytes"] = bytes.into();
        }
        if let Some((before, after)) = sizes {
            object["size_before"] = before.into();
            object["size_after"] = after.into();
        }
        object
    }
}

/// Adds to a failure what was already deleted: sealed files, and events.
fn after_deleting(failure: Failure, sealed: Pair, events: u64) -> Failure {
    let deleted = |count: u64, one: &str, several: &str| match count {
        0 => None,
        1 => Some(format!("1 {one} had been deleted before that")),
        n => Some(format!("{n} {several} had been deleted before that")),
    };
    let files = sealed.map_or(0, |(files, _)| files);
    let parts = [deleted(files, "sealed file", "sealed files"), deleted(events, "event", "events")];
    let what = parts.into_iter().flatten().fold(failure.what, |what, part| format!("{what}; {part}"));
    Failure { what, ..failure }
}
