//! `thread push`: storing events, then bringing the JSONL log up to date and waking consumers.

mod follow;

use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::Utc;
use clap::Args;
use serde_json::json;

use super::batch::{Batch, LineFormat};
use super::event::EventArgs;
use super::opened::Opened;
use super::progress::Progress;
use super::{Globals, environment, event_id, output, signals, socket};
use crate::error::{Code, Error};
use crate::failure::{Failure, Result, failed, usage};
use crate::files::log::log;
use crate::model::due::{Due, point_in_time};
use crate::model::duration;
use crate::model::event::{Defaults, NewEvent};
use crate::model::location::Location;
use crate::model::time;
use crate::queue::delivery::Delivery;
use crate::queue::scheduled::local_zone;
use crate::queue::{PushedEvent, Queue};
use crate::run::dispatch::Dispatched;
use crate::run::{self, Waking};
use crate::store::{Appended, Stored};

/// Store an event, or a batch of them, and wake its consumers
///
/// Stores one event and prints its id. On exit 0 the event survives power loss. The JSONL log is then
/// brought up to date and consumers are woken; a failure of either is only a warning, because the event is
/// stored and pushing it again would store it twice.
///
/// --lines skips empty lines. The JSON objects of a --batch, one per line, have content and optionally source,
/// type, subtype, metadata (an object), idempotency_key, expires, and in or at; the options are defaults for lines without them.
/// id and created_at are ignored, so `thread peek` pipes into `thread push --batch`; so are other keys, with
/// a warning. Both store everything or nothing, and print the number of events stored.
///
/// With --follow, which is for input that does not end soon, they store what has come every second or thousand lines,
/// and the rest at the end of the input or on TERM, INT or HUP. A line that cannot be stored is a warning, and exit 1
/// at the end. While the disk is full or the thread is locked or cannot be reached, it waits, and reads nothing more.
/// With --json it prints a line for each time that it has stored something. To lose nothing, end the program that writes
/// the lines, not this one: what it has written and this one has not read is lost with the pipe.
#[derive(Args)]
#[command(override_usage = "\
thread push [OPTIONS] <TEXT>
       thread push [OPTIONS] --content-file <FILE>
       thread push [OPTIONS] --lines [--follow]
       thread push [OPTIONS] --batch [--follow]")]
#[command(after_help = "\
Examples:
  thread push -t inbox 'Hello'
  git diff | thread push -t inbox --type record --subtype diff
  tail -F app.log | thread push -t inbox --lines --follow
  thread push -t inbox --in 30m --meta run_id=17 'Is it still down?'
  jq -c '{content: .}' build.jsonl |
    thread push -t inbox --batch --source ci --type record")]
pub struct Push {
    #[command(flatten)]
    event: EventArgs,
    /// Mark it as the answer to this event, by reply_to in its metadata
    #[arg(long, value_name = "ID", value_parser = event_id, allow_negative_numbers = true)]
    reply_to: Option<i64>,
    /// Then wait up to this long until every consumer whose filter matches has acknowledged it
    ///
    /// Exit 3: not in time; exit 1: it is a dead letter.
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    sync: Option<Duration>,
    #[command(flatten)]
    due: DueArgs,
    /// Store each line of stdin as an event
    #[arg(long, conflicts_with_all = ["text", "content", "content_file", "idempotency_key", "reply_to", "batch"])]
    lines: bool,
    /// Store many events, read as NDJSON from stdin
    #[arg(long, conflicts_with_all = ["text", "content_file", "meta", "metadata", "idempotency_key", "reply_to"])]
    batch: bool,
    /// Push through this socket of a worker
    ///
    /// That is, of `thread dispatch --follow --socket`, into its thread. Its directory need not be accessible.
    #[arg(long, value_name = "PATH", hide_short_help = true,
          conflicts_with_all = ["lines", "batch", "sync", "reply_to", "after", "at"])]
    socket: Option<PathBuf>,
    /// Store lines as they come, until the end or TERM
    #[arg(short, long, conflicts_with_all = ["sync", "text", "content_file", "idempotency_key", "reply_to"])]
    follow: bool,
}

#[derive(Args)]
pub struct DueArgs {
    /// Make it an event after this time; prints s17
    ///
    /// That is its number for `thread scheduled`, not an id.
    #[arg(long = "in", value_name = "D", value_parser = duration::parse, conflicts_with = "sync")]
    after: Option<Duration>,
    /// The same, at a time like '2026-03-18 10:30'
    ///
    /// In this machine's time zone, or RFC 3339: 2026-03-18T10:30:00Z.
    #[arg(long, value_name = "TIME", conflicts_with_all = ["after", "sync"])]
    at: Option<String>,
}

impl DueArgs {
    fn due(&self) -> Result<Option<Due>> {
        let at = self.at.as_deref().map(|at| point_in_time(at, &local_zone()));
        match at.transpose() {
            Ok(at) => Ok(self.after.map(Due::After).or(at.map(Due::At))),
            Err(problem) => {
                usage(format_args!("--at {problem}"), "see `thread push --help`; nothing was stored")
            }
        }
    }
}

impl Push {
    /// Whether it may take long after it has stored something, or waits for input.
    pub fn waits(&self) -> bool {
        self.sync.is_some() || self.follow || self.socket.is_some()
    }

    pub fn run(self, globals: &Globals) -> Result<()> {
        if let Some(path) = &self.socket {
            return push_through(path, self.event, globals);
        }
        if self.batch || self.lines {
            return self.push_many(globals);
        }
        if self.follow {
            return usage("--follow stores the lines of stdin", "add --lines or --batch");
        }
        let due = self.due.due()?;
        let (mut queue, id) = push_one(self.event, self.reply_to, due, globals)?;
        apply_retention(&mut queue, id, 1);
        wait_for_delivery(&mut queue, self.sync, &[(id, id)], globals)
    }

    fn push_many(self, globals: &Globals) -> Result<()> {
        if self.follow {
            let location = globals.location()?;
            return follow::follow(
                &location,
                &line_format(self.lines, self.event, self.due.due()?, &location)?,
                globals.json,
            );
        }
        let interrupted = Failure::new(
            1,
            Code::Interrupted,
            "interrupted, nothing was stored",
            "push the whole batch again",
        );
        signals::on_interrupt(Some(&interrupted), globals.json)?;
        let mut queue = globals.open()?;
        let format = line_format(self.lines, self.event, self.due.due()?, queue.location())?;
        let mut batch = Batch::open(queue.files())?;
        // Events stored before under the same key, as ranges of ids: unrelated events may lie between them.
        let mut repeated: Vec<(i64, i64)> = Vec::new();
        let appended = queue.append(&mut |put| {
            batch.for_each(&format, &mut |events| {
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
            // The conflicting event was in this batch, and was rolled back with it.
            Err(Error::KeyConflict { key, id }) if queue.newest()?.0 < id => {
                return failed(
                    Code::IdempotencyConflict,
                    format_args!("two different events of the batch have the idempotency key '{key}'"),
                    "use a new key for a new event; nothing was stored",
                );
            }
            appended => appended?,
        };
        let Appended { count, first_id, last_id, scheduled, .. } = appended;
        signals::set_stored(0);
        batch.lines.warn_of_unknown_key(&mut false);
        if let Some(last_source) = &batch.last_source {
            log!(queue, Info, "push batch: {appended}");
            let mut progress = Progress::of("writing events.jsonl", None);
            finish(&mut queue, last_source, &mut |events| progress.advance(events));
        }
        let mut object = json!({ "count": count + scheduled, "first_id": first_id, "last_id": last_id });
        if scheduled > 0 {
            attend(&mut queue);
            object["scheduled"] = scheduled.into();
        }
        let printed = globals.print(count + scheduled, object);
        output::confirm(printed, "what was pushed is stored");
        if let Some(last) = last_id {
            apply_retention(&mut queue, last, count);
        }
        let ranges: Vec<_> = first_id.zip(last_id).into_iter().chain(repeated).collect();
        wait_for_delivery(&mut queue, self.sync, &ranges, globals)
    }
}

fn line_format(of_text: bool, event: EventArgs, due: Option<Due>, thread: &Location) -> Result<LineFormat> {
    if !of_text {
        return Ok(LineFormat::Json(Defaults { due, ..event.defaults(thread) }));
    }
    let like = event.without_content(thread)?;
    let like = match due {
        Some(due) => like.with_due(due)?,
        None => like,
    };
    // What would be refused for each line is refused now.
    if let Some(after) = event.expires {
        like.clone().with_expiry(after, Utc::now())?;
    }
    Ok(LineFormat::Content(like, event.expires))
}

/// Stores one event, as the answer to `reply_to` if that is given, and prints its id. Returns the open
/// queue and the id.
pub fn push_one(
    event: EventArgs,
    reply_to: Option<i64>,
    due: Option<Due>,
    globals: &Globals,
) -> Result<(Opened, i64)> {
    let path = globals.location()?;
    let event = event.into_event(&path, reply_to, due)?;
    let mut queue = Opened::open(path)?;
    if let Some(id) = reply_to {
        let newest = queue.store.newest()?;
        // Otherwise a later event with this id would appear to be answered.
        if !(1..=newest).contains(&id) {
            return failed(
                Code::UnknownEvent,
                format_args!("there is no event {id} to answer; the newest is {newest}"),
                "give the id of the question; nothing was stored",
            );
        }
    }
    let (stored, dispatch) = store(&mut queue, &event, 0)?;
    print(&event, &stored, dispatch, globals);
    Ok((queue, stored.id))
}

/// Prints what was stored.
fn print(event: &NewEvent<'_>, stored: &PushedEvent, dispatch: &str, globals: &Globals) {
    let printed = match (stored.scheduled, globals.json) {
        (Some((id, due)), true) => {
            let mut object = json!({ "scheduled_id": id.to_string(), "due_at": time::format(due) });
            if stored.repeated {
                object["repeated"] = true.into();
            }
            output::line(object)
        }
        (Some((id, _)), false) => output::line(id),
        (None, true) => {
            let mut line = Vec::new();
            event.row(stored.id, &stored.created_at).write_json(&mut line);
            line.pop();
            let repeated = if stored.repeated { ",\"repeated\":true" } else { "" };
            line.extend_from_slice(format!(",\"dispatch\":\"{dispatch}\"{repeated}}}\n").as_bytes());
            output::bytes(&line).map(drop)
        }
        (None, false) => output::line(stored.id),
    };
    output::confirm(printed, "what was pushed is stored");
}

/// Pushes an event through a worker's socket, into the thread of the worker.
fn push_through(path: &Path, event: EventArgs, globals: &Globals) -> Result<()> {
    if !globals.thread.is_empty() {
        return usage(
            "--thread and --socket cannot be used together",
            "leave out --thread: the worker knows which it is",
        );
    }
    let event = event.into_event(&Location::from(path), None, None)?;
    let stored = socket::push(path, &event)?;
    signals::set_stored(0);
    print(&event, &stored, "left-to-workers", globals);
    Ok(())
}

/// Stores one event, brings the JSONL log up to date and wakes consumers. From the commit on, signals are
/// blocked and nothing may fail; `code` is the exit code if something does. Also returns one word for how the
/// consumers were woken.
pub fn store(queue: &mut Queue, event: &NewEvent<'_>, code: u8) -> Result<(PushedEvent, &'static str)> {
    let stored = queue.append_one(event, signals::defer)?;
    signals::set_stored(code);
    if stored.scheduled.is_some() {
        attend(queue);
        return Ok((stored, "later"));
    }
    let dispatch = finish(queue, &event.source, &mut |_| {});
    Ok((stored, dispatch))
}

/// Makes sure that somebody makes what was scheduled events. A failure is a warning: it is stored.
pub fn attend(queue: &mut Queue) {
    if let Err(e) = run::due::attend_to_scheduled(queue, &environment::launcher()) {
        log!(queue, Warn, "push: nobody attends to what is scheduled: {e}");
        output::warn(format_args!(
            "nothing waits until it is due: {e}; it is stored; run `thread dispatch` then"
        ));
    }
}

/// With --sync, waits until the events of each range, from its first to its last id, are acknowledged.
fn wait_for_delivery(
    queue: &mut Queue,
    sync: Option<Duration>,
    ranges: &[(i64, i64)],
    globals: &Globals,
) -> Result<()> {
    let Some(timeout) = sync else { return Ok(()) };
    signals::set_stored(3);
    let interrupted = Failure::new(
        3,
        Code::Interrupted,
        "interrupted before it was known to be acknowledged; what was pushed is stored",
        "see `thread info`, and do not push it again",
    );
    signals::allow(&interrupted, globals.json)?;
    let recipients = ranges.iter().map(|&(first, last)| queue.recipients(first, last));
    let recipients: crate::Result<Vec<_>> = recipients.collect();
    let (exit, code, what) = match recipients.and_then(|all| queue.wait_for_delivery(all.concat(), timeout)) {
        Ok(Delivery::Acknowledged) => return Ok(()),
        Ok(Delivery::Pending(late)) => {
            let names: Vec<String> = late.iter().map(|consumer| format!("'{consumer}'")).collect();
            (3, Code::TimedOut, format!("not acknowledged in time by {}", names.join(", ")))
        }
        Ok(Delivery::Dead { consumer, event_id }) => {
            signals::set_stored(1);
            (1, Code::DeadLetter, format!("event {event_id} is a dead letter of '{consumer}'"))
        }
        // Not exit 1: nothing has failed for certain.
        Err(e) => (3, e.code(), format!("cannot tell whether it was acknowledged: {e}")),
    };
    Err(Failure::new(
        exit,
        code,
        format_args!("{what}; what was pushed is stored"),
        "see `thread info` and `thread logs`, and do not push it again",
    ))
}

/// Applies the thread's retention if nobody else has for long, after the push of `count` events, the last of which has
/// the id `last`. A failure is only logged: nobody asked for it here.
fn apply_retention(queue: &mut Queue, last: i64, count: u64) {
    if let Err(e) = queue.apply_retention_after_push(last, count)
        && !e.may_pass()
    {
        log!(queue, Warn, "retention: {e}");
    }
}

/// What became of the steps after a commit.
#[derive(Default, PartialEq, Eq)]
struct Aftermath {
    /// How the consumers were woken.
    word: &'static str,
    warnings: Vec<String>,
    note: Option<&'static str>,
}

impl Aftermath {
    fn print(&self) {
        self.warnings.iter().for_each(output::warn);
        self.note.iter().for_each(output::note);
    }
}

/// The steps after a commit: the JSONL log, then waking consumers. Failures are warnings, because the
/// events are stored. Returns one word for how the consumers were woken.
pub fn finish(queue: &mut Queue, source: &str, progress: &mut dyn FnMut(u64)) -> &'static str {
    let aftermath = take_further_steps(queue, source, progress);
    aftermath.print();
    aftermath.word
}

/// [`finish`], without printing.
fn take_further_steps(queue: &mut Queue, source: &str, progress: &mut dyn FnMut(u64)) -> Aftermath {
    let finished = run::finish(queue, &environment::launcher(), source, progress);
    let mut warnings = Vec::new();
    if let Some(e) = finished.log_behind {
        let advice = match e {
            Error::LogAhead(_) => "run `thread doctor --fix`",
            _ => "the next push brings the log up to date",
        };
        warnings.push(format!("events.jsonl is behind: {e}; the event is stored; {advice}"));
    }
    let mut note = None;
    let word = match finished.waking {
        Ok(Waking::Queued) => "queued",
        Ok(Waking::AlreadyQueued) => "already-queued",
        Ok(Waking::Off) => "off",
        Ok(Waking::LeftToWorkers) => "left-to-workers",
        Ok(Waking::LeftToOwner) => {
            if queue.store.subscriptions().is_ok_and(|all| !all.is_empty()) {
                note = Some("the thread is another user's, whose next push or dispatch starts the handlers");
            }
            "left-to-owner"
        }
        Ok(Waking::Dispatched(all)) => {
            let failed = all.iter().find_map(|(consumer, done)| match done {
                Dispatched::Failed(e) => Some((consumer, e)),
                _ => None,
            });
            match failed {
                None => "embedded",
                Some((consumer, e)) => {
                    warnings.push(format!("'{consumer}' was not woken: {e}; the event is stored"));
                    "failed"
                }
            }
        }
        Err(e) => {
            warnings.push(format!("consumers were not woken: {e}; the event is stored"));
            "failed"
        }
    };
    Aftermath { word, warnings, note }
}
