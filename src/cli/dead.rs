//! `thread dead`: events that a consumer's handler failed on until it was out of attempts.

use clap::{Args, Subcommand};
use serde_json::json;

use super::consumer::Second;
use super::error::{Failure, Result};
use super::output::{self, Reader};
use super::{ConsumerArg, Globals, event_id, wake_consumer};
use crate::error::Error;
use crate::files::log::log;
use crate::model::run::Deliver;
use crate::model::subscription::{ConsumerId, DeadLetter, Subscription};
use crate::queue::{Queue, Selection};

/// List, retry or discard events that a handler kept failing on
///
/// When a consumer with --deliver stdin has failed on one event --max-attempts times, the event becomes a
/// dead letter and the consumer moves on. `retry` delivers it once more, alone, before new events: exit 0
/// removes the dead letter, anything else keeps it. The cursor is not moved.
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
    #[arg(long, value_name = "ID", value_parser = event_id, allow_negative_numbers = true, conflicts_with = "all")]
    event_id: Option<i64>,
    /// All dead letters of the consumer
    #[arg(long)]
    all: bool,
}

impl Dead {
    pub fn run(self, globals: &Globals) -> Result<()> {
        match self.what {
            // A single word is the consumer here: the list is not of one event.
            What::List(which) if which.id.is_none() => which.list(globals),
            What::List(which) => which.read()?.list(globals),
            What::Show(which) => which.read()?.show(globals),
            What::Retry(which) => which.read()?.retry(globals),
            What::Discard(which) => which.read()?.discard(globals),
        }
    }
}

impl Which {
    /// With the event id where the words say it.
    fn read(mut self) -> Result<Which> {
        let id = Second { what: "event id", option: "event-id", given: self.event_id, word: self.id.take() };
        match (self.all, &id.word) {
            (true, Some(_)) => {
                Err(Failure::usage("both --all and an event id are given", "give one of them"))
            }
            (true, None) => Ok(self),
            (false, _) => {
                self.event_id = self.consumer.second(id, event_id)?;
                Ok(self)
            }
        }
    }

    fn list(&self, globals: &Globals) -> Result<()> {
        let consumer = self.consumer.name()?.map(ConsumerId::stored);
        let mut queue = globals.open()?;
        if let Some(consumer) = &consumer {
            check_known(&mut queue, consumer)?;
        }
        let mut text = String::new();
        for letter in self.dead_letters(&mut queue, consumer.as_ref())? {
            text.push_str(&match globals.json {
                true => json!(letter).to_string() + "\n",
                false => text_line(&letter, consumer.is_none()),
            });
        }
        output::bytes(text.as_bytes()).map(drop)
    }

    fn show(&self, globals: &Globals) -> Result<()> {
        self.selected()?;
        let (mut queue, consumer) = self.open(globals)?;
        for letter in self.dead_letters(&mut queue, Some(&consumer))? {
            let after = letter.event_id.saturating_sub(1);
            let mut selection = Selection { after, limit: Some(1), filter: None };
            let mut line = Vec::new();
            queue.read_lines(&mut selection, &mut line)?;
            // Else the event is gone, and this is the one after it.
            if selection.after == letter.event_id && output::bytes(&line)? == Reader::Gone {
                break;
            }
        }
        Ok(())
    }

    fn retry(&self, globals: &Globals) -> Result<()> {
        let event = self.selected()?;
        let everybody = self.all && self.consumer.name()?.is_none();
        let one = if everybody { None } else { Some(self.consumer.existing()?) };
        let mut queue = globals.open()?;
        let can_be_given = |subscription: &Subscription| subscription.options.deliver == Deliver::Stdin;
        let mut consumers = match &one {
            None => queue.store().subscriptions()?,
            Some(consumer) => {
                check_known(&mut queue, consumer)?;
                vec![queue.subscription(consumer)?]
            }
        };
        if let (Some(consumer), false) = (&one, consumers.iter().all(can_be_given)) {
            return Err(Failure::failed(
                format_args!(
                    "the consumer '{consumer}' pops for itself, so nothing can be delivered to it again"
                ),
                "`thread unsubscribe` it and subscribe it with --deliver stdin, or take the event with \
                 `thread dead show`",
            ));
        }
        consumers.retain(|one| !everybody || (one.dead > 0 && can_be_given(one)));
        let mut total = 0;
        for Subscription { consumer, .. } in consumers {
            let count = queue.store().retry_dead_letters(&consumer, event)?;
            self.record(&queue, &consumer, "retry", count)?;
            wake_consumer(&mut queue, &consumer);
            total += count;
        }
        print_count(one.as_ref(), total, globals)
    }

    fn discard(&self, globals: &Globals) -> Result<()> {
        let event = self.selected()?;
        let (mut queue, consumer) = self.open(globals)?;
        let count = queue.store().discard_dead_letters(&consumer, event)?;
        self.record(&queue, &consumer, "discard", count)?;
        print_count(Some(&consumer), count, globals)
    }

    fn open(&self, globals: &Globals) -> Result<(Queue, ConsumerId)> {
        let consumer = self.consumer.existing()?;
        let mut queue = globals.open()?;
        check_known(&mut queue, &consumer)?;
        Ok((queue, consumer))
    }

    /// The event that was given; `None` for all. One or the other is required.
    fn selected(&self) -> Result<Option<i64>> {
        if self.event_id.is_none() && !self.all {
            return Err(Failure::usage(
                "no dead letter given",
                "give its event id after the consumer's name, or --all",
            ));
        }
        Ok(self.event_id)
    }

    /// The dead letters of one consumer, or of all.
    fn dead_letters(&self, queue: &mut Queue, consumer: Option<&ConsumerId>) -> Result<Vec<DeadLetter>> {
        let mut letters = queue.store().dead_letters(consumer)?;
        if let Some(id) = self.event_id {
            letters.retain(|letter| letter.event_id == id);
            if letters.is_empty() {
                return Err(no_such_letter(consumer, id));
            }
        }
        Ok(letters)
    }

    /// Logs how many dead letters were changed.
    fn record(&self, queue: &Queue, consumer: &ConsumerId, what: &str, count: usize) -> Result<()> {
        if let (Some(id), 0) = (self.event_id, count) {
            return Err(no_such_letter(Some(consumer), id));
        }
        log!(queue, Info, "dead: consumer={consumer} {what} count={count}");
        Ok(())
    }
}

/// Fails unless the consumer is subscribed or has dead letters, which outlive their subscription.
fn check_known(queue: &mut Queue, consumer: &ConsumerId) -> Result<()> {
    let store = queue.store();
    if store.subscription(consumer)?.is_none() && store.dead_letters(Some(consumer))?.is_empty() {
        return Err(Error::UnknownConsumer(consumer.clone()).into());
    }
    Ok(())
}

fn no_such_letter(consumer: Option<&ConsumerId>, id: i64) -> Failure {
    let whose = consumer.map_or("any consumer".to_owned(), |consumer| format!("'{consumer}'"));
    Failure::failed(format_args!("event {id} is not a dead letter of {whose}"), "see `thread dead list`")
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
