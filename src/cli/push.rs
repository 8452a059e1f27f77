//! `thread push`: storing events, then bringing the JSONL log up to date and waking consumers.

use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::batch::{Batch, Form};
use super::error::{Failure, Result};
use super::event::EventArgs;
use super::progress::Progress;
use super::{Globals, environment, event_id, output, signals};
use crate::error::Error;
use crate::files::log::log;
use crate::model::duration;
use crate::model::event::{Defaults, NewEvent};
use crate::queue::delivery::Delivery;
use crate::queue::{PushedEvent, Queue};
use crate::run::dispatch::Dispatched;
use crate::run::wake::{self, Waking};
use crate::store::{Appended, Stored};

/// Store an event, or a batch of them, and wake its consumers
///
/// Stores one event and prints its id. On exit 0 the event survives power loss. The JSONL log is then
/// brought up to date and consumers are woken; a failure of either is only a warning, because the event is
/// stored and pushing it again would store it twice.
///
/// With --lines, each line of stdin becomes an event with that line as its content; empty lines are
/// skipped. With --batch, stdin is NDJSON: one JSON object per line with source, type, content and
/// optionally subtype, metadata (an object) and idempotency_key; --source, --type and --subtype are
/// defaults for lines without them. Other keys are ignored, so `thread peek` pipes into `thread push
/// --batch`. Both store everything or nothing, and print the number of events stored.
#[derive(Args)]
#[command(override_usage = "\
thread push [OPTIONS] <TEXT>
       thread push [OPTIONS] -
       thread push [OPTIONS] --content-file <FILE>
       thread push [OPTIONS] --lines
       thread push [OPTIONS] --batch")]
#[command(after_help = "\
Examples:
  thread push -t inbox 'Hello'
  git diff | thread push -t inbox --type record --subtype diff -
  jq -c '{content: .}' build.jsonl |
    thread push -t inbox --batch --source ci --type record")]
pub struct Push {
    #[command(flatten)]
    event: EventArgs,
    /// Mark it as the answer to this event, by reply_to in its metadata
    #[arg(long, value_name = "ID", value_parser = event_id, allow_negative_numbers = true)]
    reply_to: Option<i64>,
    /// Then wait up to this long until every consumer whose filter matches has acknowledged it
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    sync: Option<Duration>,
    /// Store each line of stdin as an event
    #[arg(long, conflicts_with_all = ["text", "content", "content_file", "idempotency_key", "reply_to", "batch"])]
    lines: bool,
    /// Store many events, read as NDJSON from stdin
    #[arg(long, conflicts_with_all = ["text", "content_file", "meta", "metadata", "idempotency_key", "reply_to"])]
    batch: bool,
}

impl Push {
    pub fn run(self, globals: &Globals) -> Result<()> {
        if self.batch || self.lines { self.push_many(globals) } else { self.push_one(globals) }
    }

    fn push_one(self, globals: &Globals) -> Result<()> {
        let path = globals.path()?;
        let event = self.event.into_event(self.reply_to)?;
        let mut queue = Queue::open(path)?;
        check_answered(&mut queue, self.reply_to)?;
        let stored = store(&mut queue, &event, |id| lay_aside(id, globals))?;
        stored.print(&event, globals);
        wait_for_delivery(&mut queue, self.sync, &[(stored.id, stored.id)])
    }

    fn push_many(self, globals: &Globals) -> Result<()> {
        let interrupted = Failure::failed("interrupted, nothing was stored", "push the whole batch again");
        signals::on_interrupt(Some(&interrupted), globals.json)?;
        let mut queue = globals.open()?;
        let event = self.event;
        let form = match self.lines {
            true => Form::Lines(event.without_content()?),
            false => Form::Json(Defaults { source: event.source, kind: event.kind, subtype: event.subtype }),
        };
        let mut batch = Batch::open(queue.files())?;
        // Events that were there already, as ranges of ids: others may lie between them.
        let mut repeated: Vec<(i64, i64)> = Vec::new();
        let appended = queue.append(&mut |put| {
            batch.for_each(&form, &mut |events| {
                for stored in put(events)? {
                    if let Stored::Repeated { id, .. } = stored {
                        match repeated.last_mut() {
                            Some((_, last)) if *last == id - 1 => *last = id,
                            _ => repeated.push((id, id)),
                        }
                    }
                }
                Ok(())
            })?;
            signals::defer();
            Ok(())
        });
        let appended = match appended {
            // That event went with the rest of the batch.
            Err(Error::KeyConflict { key, id }) if queue.newest()?.0 < id => {
                return Err(Failure::failed(
                    format_args!("two different events of the batch have the idempotency key '{key}'"),
                    "use a new key for a new event; nothing was stored",
                ));
            }
            appended => appended?,
        };
        let Appended { count, first_id, last_id, .. } = appended;
        match (globals.json, first_id.zip(last_id)) {
            (true, Some((first, last))) => signals::stored(
                0,
                format_args!("{{\"count\":{count},\"first_id\":{first},\"last_id\":{last}}}\n"),
            ),
            (true, None) => {
                signals::stored(0, format_args!("{{\"count\":0,\"first_id\":null,\"last_id\":null}}\n"))
            }
            (false, _) => signals::stored(0, format_args!("{count}\n")),
        }
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
        confirm(globals.print(count, json!({ "count": count, "first_id": first_id, "last_id": last_id })));
        let ranges: Vec<_> = first_id.zip(last_id).into_iter().chain(repeated).collect();
        wait_for_delivery(&mut queue, self.sync, &ranges)
    }
}

/// One event that is stored, and what followed.
pub struct StoredEvent {
    pub id: i64,
    created_at: String,
    /// Its idempotency key found it stored already.
    repeated: bool,
    /// What became of the waking, in one word.
    dispatch: &'static str,
}

impl StoredEvent {
    /// Prints the answer to a push.
    pub fn print(&self, event: &NewEvent<'_>, globals: &Globals) {
        confirm(match globals.json {
            true => self.print_json(event),
            false => output::line(self.id),
        });
    }

    fn print_json(&self, event: &NewEvent<'_>) -> Result<()> {
        let mut line = Vec::new();
        event.row(self.id, &self.created_at).write_json(&mut line);
        line.pop();
        let repeated = if self.repeated { ",\"repeated\":true" } else { "" };
        line.extend_from_slice(format!(",\"dispatch\":\"{}\"{repeated}}}\n", self.dispatch).as_bytes());
        output::bytes(&line).map(drop)
    }
}

/// Refuses an answer to an event that does not exist yet: it would be taken for that of another.
pub fn check_answered(queue: &mut Queue, id: Option<i64>) -> Result<()> {
    let Some(id) = id else { return Ok(()) };
    let newest = queue.store().newest()?;
    if (1..=newest).contains(&id) {
        return Ok(());
    }
    Err(Failure::failed(
        format_args!("there is no event {id} to answer; the newest is {newest}"),
        "give the id of the question; nothing was stored",
    ))
}

/// Prepares what to print should memory run out.
pub fn lay_aside(id: i64, globals: &Globals) {
    match globals.json {
        true => signals::stored(0, format_args!("{{\"id\":{id},\"dispatch\":\"failed\"}}\n")),
        false => signals::stored(0, format_args!("{id}\n")),
    }
}

/// Stores one event, brings the JSONL log up to date and wakes consumers. From the commit on, signals
/// wait, and nothing may fail: `committed` is told the id.
pub fn store(queue: &mut Queue, event: &NewEvent<'_>, committed: impl FnOnce(i64)) -> Result<StoredEvent> {
    if let Some(form) = event.source_warning() {
        output::warn(format_args!(
            "the source '{}' does not fit the form {form}; stored as it is",
            event.source
        ));
    }
    let PushedEvent { id, created_at, repeated, .. } = queue.append_one(event, signals::defer)?;
    committed(id);
    queue.log_push(event, id, repeated);
    let dispatch = finish(queue, &event.source, &mut |_| {});
    Ok(StoredEvent { id, created_at, repeated, dispatch })
}

/// Waits, if that was requested, until what was stored is acknowledged: the events from the first to the last
/// id of each range.
fn wait_for_delivery(queue: &mut Queue, sync: Option<Duration>, ranges: &[(i64, i64)]) -> Result<()> {
    let Some(timeout) = sync else { return Ok(()) };
    signals::answered(3);
    signals::allow();
    let recipients = ranges.iter().map(|&(first, last)| queue.recipients(first, last));
    let recipients: crate::Result<Vec<_>> = recipients.collect();
    let what = match recipients.and_then(|all| queue.wait_for_delivery(all.concat(), timeout)) {
        Ok(Delivery::Acknowledged) => return Ok(()),
        Ok(Delivery::Pending(late)) => {
            let names: Vec<String> = late.iter().map(|consumer| format!("'{consumer}'")).collect();
            format!("not acknowledged in time by {}", names.join(", "))
        }
        Ok(Delivery::Dead { consumer, event_id }) => {
            format!("event {event_id} is a dead letter of '{consumer}'")
        }
        // Not exit 1: that would say that nothing is stored.
        Err(e) => format!("cannot tell whether it was acknowledged: {e}"),
    };
    Err(Failure::timed_out(
        format_args!("{what}; what was pushed is stored"),
        "see `thread info` and `thread logs`, and do not push it again",
    ))
}

/// What follows a commit: the JSONL log, then the consumers. Whatever happens, the events stay stored.
/// Returns one word for how they were woken.
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
        Ok(Waking::LeftToOwner) => {
            if queue.store().subscriptions().is_ok_and(|all| !all.is_empty()) {
                output::note("the thread is another user's, whose next push or dispatch starts the handlers");
            }
            "left-to-owner"
        }
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
            log!(queue, Warn, "push: consumers were not woken: {e}");
            output::warn(format_args!("consumers were not woken: {e}; the event is stored"));
            "failed"
        }
    }
}

/// An answer that cannot be printed must not make the caller push again.
fn confirm(printed: Result<()>) {
    signals::answered(0);
    if let Err(failure) = printed {
        output::warn(format_args!("{failure}; what was pushed is stored"));
    }
}
