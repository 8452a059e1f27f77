//! `thread push`: storing events, then bringing the JSONL log up to date and waking consumers.

use clap::Args;
use serde_json::json;

use super::batch::Batch;
use super::error::{Failure, Result};
use super::event::EventArgs;
use super::progress::Progress;
use super::{Globals, environment, output, signals};
use crate::error::Error;
use crate::files::log::Level;
use crate::model::event::{Defaults, NewEvent};
use crate::queue::Queue;
use crate::run::dispatch::Dispatched;
use crate::run::wake::{self, Waking};
use crate::store::Stored;

/// Store an event, or a batch of them, and wake its consumers
///
/// Stores one event and prints its id. On exit 0 the event survives power loss. The JSONL log is then
/// brought up to date and consumers are woken; trouble with either is a warning, because the event is
/// stored and pushing it again would store it twice.
///
/// With --batch, stdin is NDJSON: one JSON object per line with source, type, content and optionally
/// subtype, metadata (an object) and idempotency_key; --source, --type and --subtype are defaults for
/// lines without them. Other keys are ignored, so `thread peek` pipes into `thread push --batch`. The
/// batch is stored whole or not at all; the number stored is printed.
#[derive(Args)]
#[command(override_usage = "\
thread push [OPTIONS] --source <S> --type <T> --content <TEXT>
       thread push [OPTIONS] --source <S> --type <T> --content-file <FILE>
       thread push [OPTIONS] --batch")]
#[command(after_help = "\
Examples:
  thread push --thread inbox --source self --type message --content 'Hello'
  git diff | thread push --thread inbox --source self --type record \\
    --subtype decision --content-file -
  jq -c '{content: .}' build.jsonl |
    thread push --thread inbox --batch --source ci --type record")]
pub struct Push {
    #[command(flatten)]
    event: EventArgs,
    /// Store many events, read as NDJSON from stdin
    #[arg(long, conflicts_with = "content_file")]
    batch: bool,
}

impl Push {
    pub fn run(self, globals: &Globals) -> Result<()> {
        if self.batch { self.push_batch(globals) } else { self.push_one(globals) }
    }

    fn push_one(self, globals: &Globals) -> Result<()> {
        let path = globals.path()?;
        let event = self.event.into_event()?;
        let mut queue = Queue::open(path)?;
        let stored = store(&mut queue, &event)?;
        confirm(match globals.json {
            true => stored.print_json(&event),
            false => output::line(stored.id),
        });
        Ok(())
    }

    fn push_batch(self, globals: &Globals) -> Result<()> {
        let interrupted = Failure::failed("interrupted, nothing was stored", "push the whole batch again");
        signals::on_interrupt(Some(&interrupted), globals.json)?;
        let mut queue = globals.open()?;
        let event = self.event;
        let defaults = Defaults { source: event.source, kind: event.kind, subtype: event.subtype };
        let mut batch = Batch::open(queue.files())?;
        let appended = queue.append(&mut |put| {
            batch.for_each(&defaults, &mut |event| put(event).map(drop))?;
            signals::defer();
            Ok(())
        })?;
        if let Some((count, line, form)) = batch.odd_sources {
            output::warn(match count {
                1 => format!("the source on line {line} does not fit the form {form}; stored as it is"),
                _ => format!(
                    "{count} sources do not fit their form, first on line {line}: {form}; stored as they are"
                ),
            });
        }
        if let Some(last_source) = &batch.last_source {
            queue.log_batch(&appended);
            let mut progress = Progress::of("writing events.jsonl", None);
            finish(&mut queue, last_source, &mut |events| progress.advance(events));
        }
        confirm(match globals.json {
            true => output::json(&json!({
                "count": appended.count,
                "first_id": appended.first_id,
                "last_id": appended.last_id,
            })),
            false => output::line(appended.count),
        });
        Ok(())
    }
}

/// One event that is stored, and what followed.
pub struct StoredEvent {
    pub id: i64,
    created_at: String,
    /// What became of the waking, in one word.
    dispatch: &'static str,
}

impl StoredEvent {
    fn print_json(&self, event: &NewEvent<'_>) -> Result<()> {
        let mut line = Vec::new();
        event.row(self.id, &self.created_at).write_json(&mut line);
        line.pop();
        line.extend_from_slice(format!(",\"dispatch\":\"{}\"}}\n", self.dispatch).as_bytes());
        output::bytes(&line).map(drop)
    }
}

/// Stores one event, brings the JSONL log up to date and wakes consumers. From the commit on, signals
/// wait.
pub fn store(queue: &mut Queue, event: &NewEvent<'_>) -> Result<StoredEvent> {
    if let Some(form) = event.source_warning() {
        output::warn(format_args!(
            "the source '{}' does not fit the form {form}; stored as it is",
            event.source
        ));
    }
    let mut stored = None;
    let appended = queue.append(&mut |put| {
        stored = Some(put(event)?);
        signals::defer();
        Ok(())
    })?;
    let (id, created_at, repeated) = match stored {
        Some(Stored::Repeated { id, created_at }) => (id, created_at, true),
        _ => (appended.last_id.unwrap_or_default(), appended.created_at, false),
    };
    queue.log_push(event, id, repeated);
    let dispatch = finish(queue, &event.source, &mut |_| {});
    Ok(StoredEvent { id, created_at, dispatch })
}

/// What follows a commit: the JSONL log, then the consumers. Whatever happens, the events stay stored.
/// Returns one word for what became of the waking.
fn finish(queue: &mut Queue, source: &str, progress: &mut dyn FnMut(u64)) -> &'static str {
    if let Err(e) = queue.publish(progress) {
        let advice = match e {
            Error::LogAhead(_) => "run `thread doctor --fix`",
            _ => "the next push brings the log up to date",
        };
        output::warn(format_args!("events.jsonl is behind: {e}; the event is stored; {advice}"));
    }
    match wake::wake(queue, &environment::launcher(), source) {
        Ok(Waking::Queued) => "queued",
        Ok(Waking::AlreadyQueued) => "already-queued",
        Ok(Waking::Off) => "off",
        Ok(Waking::LeftToOwner) => "left-to-owner",
        Ok(Waking::Dispatched(all)) => {
            let failed = all.iter().find_map(|(consumer, done)| match done {
                Dispatched::Failed(e) => Some((consumer, e)),
                _ => None,
            });
            let Some((consumer, e)) = failed else { return "embedded" };
            output::warn(format_args!("'{consumer}' was not woken: {e}; the event is stored"));
            "failed"
        }
        Err(e) => {
            queue.log(Level::Warn, format_args!("push: consumers were not woken: {e}"));
            output::warn(format_args!("consumers were not woken: {e}; the event is stored"));
            "failed"
        }
    }
}

/// An answer that cannot be printed must not make the caller push again.
fn confirm(printed: Result<()>) {
    if let Err(failure) = printed {
        output::warn(format_args!("{failure}; what was pushed is stored"));
    }
}
