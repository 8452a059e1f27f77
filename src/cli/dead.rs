//! `thread dead`: events that a handler failed on until no attempts were left.

use clap::{Args, Subcommand};
use serde_json::json;

use super::opened::Opened;
use super::output::{self, Reader};
use super::{ConsumerArg, Globals, event_id, wake_consumer};
use crate::error::{Code, Error};
use crate::failure::{Result, failed, usage};
use crate::model::subscription::{ConsumerId, DeadLetter, Subscription};
use crate::queue::Queue;

/// List, retry or discard events that a handler kept failing on
///
/// When a consumer with --deliver stdin has failed on one event --max-attempts times, the event becomes a
/// dead letter and the consumer moves on. `retry` marks it for one more delivery, alone and before new events, and
/// returns at once: exit 0 of the handler removes the dead letter, anything else keeps it. The cursor is not moved.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread dead list -t inbox
  thread dead retry -t inbox bot 42")]
pub struct Dead {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// List the dead letters of a consumer, or of all consumers
    ///
    /// With --json it prints one JSON object per line.
    #[command(after_help = "Example:\n  thread dead list -t inbox bot --json")]
    List(Which),
    /// Print the events of dead letters, as `thread peek` does
    #[command(after_help = "Example:\n  thread dead show -t inbox bot 42")]
    Show(Which),
    /// Deliver dead letters again; with --all and no consumer, those of all consumers
    #[command(
        after_help = "Examples:\n  thread dead retry -t inbox bot 42\n  thread dead retry -t inbox --all"
    )]
    Retry(Which),
    /// Forget dead letters; the events themselves stay stored
    #[command(after_help = "Example:\n  thread dead discard -t inbox bot 42")]
    Discard(Which),
}

#[derive(Args)]
struct Which {
    #[command(flatten)]
    consumer: ConsumerArg,
    /// The event's id
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// The same, as an option
    #[arg(long, value_name = "ID", value_parser = event_id, allow_negative_numbers = true, conflicts_with = "all",
          hide = true)]
    event_id: Option<i64>,
    /// All dead letters of the consumer
    #[arg(long)]
    all: bool,
}

impl Dead {
    pub fn run(self, globals: &Globals) -> Result<()> {
        match self.what {
            What::List(which) => which.list(globals),
            What::Show(which) => which.show(globals),
            What::Retry(which) => which.retry(globals),
            What::Discard(which) => which.discard(globals),
        }
    }
}

impl Which {
    fn list(mut self, globals: &Globals) -> Result<()> {
        // A single argument is the consumer here, not an event id.
        let event = if self.id.is_some() { self.event()? } else { self.event_id };
        let consumer = self.consumer.name()?.map(ConsumerId::stored);
        let mut queue = globals.open()?;
        if let Some(consumer) = &consumer {
            check_known(&mut queue, consumer)?;
        }
        let mut text = String::new();
        for letter in dead_letters(&mut queue, consumer.as_ref(), event)? {
            text.push_str(&match globals.json {
                true => json!(letter).to_string() + "\n",
                false => text_line(&letter, consumer.is_none()),
            });
        }
        output::bytes(text.as_bytes()).map(drop)
    }

    fn show(self, globals: &Globals) -> Result<()> {
        let (mut queue, consumer, event) = self.open(globals)?;
        for letter in dead_letters(&mut queue, Some(&consumer), event)? {
            let Some(event) = queue.event(letter.event_id)? else { continue };
            let mut line = Vec::new();
            event.row().write_line(&mut line);
            if output::bytes(&line)? == Reader::Gone {
                break;
            }
        }
        Ok(())
    }

    fn retry(self, globals: &Globals) -> Result<()> {
        let can_retry = |one: &Subscription| one.options.retries_dead_letters();
        if self.all && self.consumer.name()?.is_none() {
            let mut queue = globals.open()?;
            let mut total = 0;
            for one in queue.store.subscriptions()? {
                if one.dead > 0 && can_retry(&one) {
                    total += retry(&mut queue, &one.consumer, None)?;
                }
            }
            return print_count(None, total, globals);
        }
        let (mut queue, consumer, event) = self.open(globals)?;
        if !can_retry(&queue.subscription(&consumer)?) {
            return failed(
                Code::Failed,
                format_args!(
                    "the consumer '{consumer}' pops for itself, so nothing can be delivered to it again"
                ),
                "`thread unsubscribe` it and subscribe it with --deliver stdin, or take the event with \
                 `thread dead show`",
            );
        }
        let count = retry(&mut queue, &consumer, event)?;
        print_count(Some(&consumer), count, globals)
    }

    fn discard(self, globals: &Globals) -> Result<()> {
        let (mut queue, consumer, event) = self.open(globals)?;
        let count = queue.discard_dead_letters(&consumer, event.as_ref().map(std::slice::from_ref))?;
        check_found(&consumer, event, count)?;
        print_count(Some(&consumer), count, globals)
    }

    /// Opens the thread for a command on one dead letter of a consumer or, if the id is `None`, on all.
    fn open(mut self, globals: &Globals) -> Result<(Opened, ConsumerId, Option<i64>)> {
        let event = self.event()?;
        if event.is_none() && !self.all {
            return usage("no dead letter given", "give its event id after the consumer's name, or --all");
        }
        let consumer = self.consumer.existing()?;
        let mut queue = globals.open()?;
        check_known(&mut queue, &consumer)?;
        Ok((queue, consumer, event))
    }

    /// The given event id, if any.
    fn event(&mut self) -> Result<Option<i64>> {
        match (self.all, self.id.take()) {
            (true, Some(_)) => usage("both --all and an event id are given", "give one of them"),
            (true, None) => Ok(None),
            (false, word) => self.consumer.value("event id", word, event_id, "--event-id", self.event_id),
        }
    }
}

/// The dead letters of `consumer`, or of all consumers; only that of `event`, if given.
fn dead_letters(
    queue: &mut Queue,
    consumer: Option<&ConsumerId>,
    event: Option<i64>,
) -> Result<Vec<DeadLetter>> {
    let mut letters = queue.store.dead_letters(consumer)?;
    letters.retain(|letter| event.is_none_or(|id| letter.event_id == id));
    match event {
        Some(id) if letters.is_empty() => no_such_letter(consumer, id),
        _ => Ok(letters),
    }
}

/// Marks dead letters for another delivery, and wakes the consumer. Returns their number.
fn retry(queue: &mut Queue, consumer: &ConsumerId, event: Option<i64>) -> Result<usize> {
    let count = queue.retry_dead_letters(consumer, event.as_ref().map(std::slice::from_ref))?;
    check_found(consumer, event, count)?;
    wake_consumer(queue, consumer);
    Ok(count)
}

/// Fails if `event` is not a dead letter: then none was changed.
fn check_found(consumer: &ConsumerId, event: Option<i64>, count: usize) -> Result<()> {
    match (event, count) {
        (Some(id), 0) => no_such_letter(Some(consumer), id),
        _ => Ok(()),
    }
}

/// Fails unless the consumer is subscribed or has dead letters, which outlive their subscription.
fn check_known(queue: &mut Queue, consumer: &ConsumerId) -> Result<()> {
    let store = &mut *queue.store;
    if store.subscription(consumer)?.is_none() && store.dead_letters(Some(consumer))?.is_empty() {
        return Err(Error::UnknownConsumer(consumer.clone()).into());
    }
    Ok(())
}

fn no_such_letter<T>(consumer: Option<&ConsumerId>, id: i64) -> Result<T> {
    let whose = consumer.map_or("any consumer".to_owned(), |consumer| format!("'{consumer}'"));
    failed(
        Code::NotADeadLetter,
        format_args!("event {id} is not a dead letter of {whose}"),
        "see `thread dead list`",
    )
}

fn text_line(letter: &DeadLetter, with_name: bool) -> String {
    let name =
        if with_name { format!("{}  ", output::plain(letter.consumer.as_str())) } else { String::new() };
    let exit = letter.last_exit.map_or("unknown".to_owned(), |code| code.to_string());
    format!(
        "{name}{}  attempts={} exit={exit} parked_at={}{}  {}\n",
        letter.event_id,
        letter.attempts,
        output::plain(&letter.parked_at),
        if letter.retry { " retry" } else { "" },
        output::plain(letter.last_error.lines().last().unwrap_or_default())
    )
}

fn print_count(consumer: Option<&ConsumerId>, count: usize, globals: &Globals) -> Result<()> {
    globals.print(count, json!({ "consumer_id": consumer.map(ConsumerId::as_str), "count": count }))
}
