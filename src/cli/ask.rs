//! `thread ask`: pushing a question and waiting for its answer.
//!
//! The wait reads from the question's own id on, so it also finds an answer stored before the wait began.
//! The question stays stored whatever happens to the asking process.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use clap::Args;

use super::event::EventArgs;
use super::reading::{self, Woken};
use super::{Globals, output, push, signals};
use crate::error::Code;
use crate::failure::{Failure, Result, failed, timed_out};
use crate::model::duration;
use crate::model::event::{Event, Type};
use crate::model::filter::{Filter, Scope};
use crate::queue::{Queue, Remaining, Selection};

/// Push a question and print its answer
///
/// Pushes an event like `thread push`, waits for its answer, and prints the answer's content or, with
/// --json, the whole event. The answer is the first event with the question's id as reply_to in its
/// metadata, which is what `thread reply` sets; records with a subtype are traces of work and do not count.
/// Exits 3 if no answer came in time, or if there will be none because the agent gave up or was cancelled;
/// the question stays stored.
///
/// Run again with the same --idempotency-key, it does not push the question again, and prints at once an
/// answer that has come in the meantime.
#[derive(Args)]
#[command(after_help = "\
Example:
  thread ask -t inbox 'Ready?'")]
pub struct Ask {
    #[command(flatten)]
    event: EventArgs,
    /// How long to wait for the answer
    #[arg(long, value_name = "D", default_value = "2m", value_parser = duration::parse)]
    timeout: Duration,
}

impl Ask {
    pub fn run(self, globals: &Globals) -> Result<()> {
        let path = globals.location()?;
        let question = self.event.into_event(&path, None, None)?;
        let mut queue = Queue::open(path)?;
        // Exit 3 if this process is cut short: exit 0 would mean that there is an answer.
        let stored = push::store(&mut queue, &question, 3)?.0;
        if let Some((id, _)) = stored.scheduled {
            return failed(
                Code::NotAnswered,
                format_args!("the question is scheduled under that idempotency key already, as {id}"),
                "`thread scheduled now` makes it an event; then ask again",
            );
        }
        let id = stored.id;
        let interrupted = Failure::new(
            3,
            Code::Interrupted,
            format_args!("interrupted before an answer to event {id} came; the question stays stored"),
            format_args!("a later answer will show with `{}`", peek_for_answers(id)),
        );
        signals::allow(&interrupted, globals.json)?;
        let deadline = Instant::now() + self.timeout;
        let Some(answer) = wait_for_answer(&mut queue, id, deadline)? else { return Ok(()) };
        if answer.kind == Type::Record.as_str()
            && let Some(ending) = &answer.subtype
        {
            // Not exit 1, which would mean that the question is not stored.
            return Err(Failure::new(
                3,
                Code::NotAnswered,
                format_args!("event {id} was not answered ({ending}): {}", output::plain(&answer.content)),
                "the question stays stored; to ask again, use another key",
            ));
        }
        if globals.json {
            let mut line = Vec::new();
            answer.row().write_line(&mut line);
            return output::bytes(&line).map(drop);
        }
        let end = if answer.content.ends_with('\n') { "" } else { "\n" };
        output::UntrustedOutput::to_stdout().print(format!("{}{end}", answer.content).as_bytes()).map(drop)
    }
}

/// The filter for events that answer the event `id`.
fn about(id: i64) -> String {
    format!("metadata ->> 'reply_to' IN ({id}, '{id}')")
}

fn peek_for_answers(id: i64) -> String {
    format!("thread peek --last-event-id {id} --filter \"{}\"", about(id))
}

/// Returns the answer to the event `id`, or the record that there will be none; `None` if the reader of
/// stdout is gone.
fn wait_for_answer(queue: &mut Queue, id: i64, deadline: Instant) -> Result<Option<Event>> {
    let about_it = about(id);
    // The record of an agent that gave up for good.
    let given_up = "subtype = 'error' AND json_valid(content) AND content ->> 'retryable' = 0";
    let filter = format!(
        "(type = 'message' OR subtype IS NULL OR subtype = 'cancelled' OR {given_up}) AND {about_it}"
    );
    let filter = Filter::new(&filter, Scope::Reading)?;
    // Created before the first read, so that no commit between the read and the wait is missed.
    let watcher = queue.watcher();
    let mut selection = Selection { after: id, limit: None, filter };
    loop {
        let mut answer = None;
        let remaining = queue.read_page(&mut selection, &mut |row| {
            answer = Some(row.to_event());
            ControlFlow::Break(())
        })?;
        if answer.is_some() {
            return Ok(answer);
        }
        if remaining == Remaining::Some {
            continue;
        }
        match reading::wait(queue, &watcher, Some(deadline))? {
            Woken::Look => {}
            Woken::ReaderGone => return Ok(None),
            Woken::TimedOut => {
                return timed_out(
                    format_args!("no answer to event {id} came in time; the question stays stored"),
                    format_args!(
                        "see `thread info` for who should answer; a later answer will show with `{}`",
                        peek_for_answers(id)
                    ),
                );
            }
        }
    }
}
