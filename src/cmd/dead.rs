//! `thread dead`: events that a consumer could not be brought to accept.

use clap::{Args, Subcommand};
use serde_json::json;

use crate::cmd::{ConsumerArg, ThreadArg, event_id, unknown_consumer};
use crate::error::{Failure, Result};
use crate::log::Level;
use crate::output;
use crate::rule::Deliver;
use crate::store::{Letter, Reading};
use crate::subscription::ConsumerId;
use crate::thread::Thread;
use crate::wake;

/// See, retry or discard events that a handler could not take
///
/// A consumer with --deliver stdin that fails on one event --max-attempts times moves on, and the
/// event becomes a dead letter. `retry` delivers it once more, alone, before new events; the
/// handler's exit code decides what becomes of it. The cursor is not moved.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread dead list --thread inbox
  thread dead retry --thread inbox --consumer bot --event-id 42")]
pub struct Dead {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// List the dead letters, of all consumers where none is named
    ///
    /// With --json it prints one object a line.
    #[command(after_help = "Example:\n  thread dead list --thread inbox --consumer bot --json")]
    List(Which),
    /// Print dead events, as `thread peek` would
    #[command(after_help = "Example:\n  thread dead show --thread inbox --consumer bot --event-id 42")]
    Show(Which),
    /// Deliver again
    #[command(after_help = "Example:\n  thread dead retry --thread inbox --consumer bot --all")]
    Retry(Which),
    /// Throw away; the events themselves stay stored
    #[command(after_help = "Example:\n  thread dead discard --thread inbox --consumer bot --event-id 42")]
    Discard(Which),
}

#[derive(Args)]
struct Which {
    #[command(flatten)]
    thread: ThreadArg,
    #[command(flatten)]
    consumer: ConsumerArg,
    /// The dead letter of this event
    #[arg(long, value_name = "ID", value_parser = event_id, allow_negative_numbers = true, conflicts_with = "all")]
    event_id: Option<i64>,
    /// All dead letters of the consumer
    #[arg(long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Dead {
    pub fn run(self) -> Result<()> {
        match self.what {
            What::List(which) => which.list(),
            What::Show(which) => which.show(),
            What::Retry(which) => which.retry(),
            What::Discard(which) => which.discard(),
        }
    }
}

impl Which {
    fn open(&self) -> Result<(Thread, ConsumerId)> {
        let consumer = self.consumer.existing()?;
        let thread = self.thread.open()?;
        must_be_known(&thread, &consumer)?;
        Ok((thread, consumer))
    }

    /// Of one consumer, or of all.
    fn letters(&self, thread: &Thread, consumer: Option<&ConsumerId>) -> Result<Vec<Letter>> {
        let mut letters = thread.store.letters(consumer)?;
        if let Some(id) = self.event_id {
            letters.retain(|letter| letter.event_id == id);
            if letters.is_empty() {
                return Err(no_such_letter(consumer, id));
            }
        }
        Ok(letters)
    }

    /// The event that was named; none for all. One or the other must be said.
    fn named(&self) -> Result<Option<i64>> {
        if self.event_id.is_none() && !self.all {
            return Err(Failure::asked_wrongly("no dead letter is named", "give --event-id <id> or --all"));
        }
        Ok(self.event_id)
    }

    fn list(&self) -> Result<()> {
        let consumer = self.consumer.name_if_given()?.map(ConsumerId::stored);
        let thread = self.thread.open()?;
        if let Some(consumer) = &consumer {
            must_be_known(&thread, consumer)?;
        }
        let mut text = String::new();
        for letter in self.letters(&thread, consumer.as_ref())? {
            if self.json {
                let object = json!({
                    "consumer_id": letter.consumer.as_str(),
                    "event_id": letter.event_id,
                    "attempts": letter.attempts,
                    "last_exit": letter.last_exit,
                    "last_error": letter.last_error,
                    "parked_at": letter.parked_at,
                    "retry": letter.retry,
                });
                text.push_str(&format!("{object}\n"));
                continue;
            }
            if consumer.is_none() {
                text.push_str(&format!("{}  ", output::plain(letter.consumer.as_str())));
            }
            let exit = letter.last_exit.map_or("unknown".to_owned(), |code| code.to_string());
            let last_line = letter.last_error.lines().last().unwrap_or_default();
            text.push_str(&format!(
                "{}  attempts={} exit={exit} parked_at={}{}  {}\n",
                letter.event_id,
                letter.attempts,
                output::plain(&letter.parked_at),
                if letter.retry { " retry" } else { "" },
                output::plain(last_line)
            ));
        }
        output::bytes(text.as_bytes()).map(drop)
    }

    fn show(&self) -> Result<()> {
        self.named()?;
        let (mut thread, consumer) = self.open()?;
        for letter in self.letters(&thread, Some(&consumer))? {
            let mut page = Vec::new();
            let mut reading =
                Reading { after: letter.event_id.saturating_sub(1), left: Some(1), filter: None };
            thread.store.read_page(&mut reading, &mut page)?;
            if reading.after == letter.event_id && output::bytes(&page)? == output::Reader::Gone {
                break;
            }
        }
        Ok(())
    }

    fn retry(&self) -> Result<()> {
        let named = self.named()?;
        let (mut thread, consumer) = self.open()?;
        let subscription =
            thread.store.subscription(&consumer)?.ok_or_else(|| unknown_consumer(&consumer))?;
        if subscription.policy.deliver != Deliver::Stdin {
            return Err(Failure::could_not(
                format_args!(
                    "the consumer '{consumer}' pops for itself, so nothing can be delivered to it again"
                ),
                "`thread unsubscribe` it and subscribe it with --deliver stdin, or take the event with \
                 `thread dead show`",
            ));
        }
        let count = thread.store.retry_letters(&consumer, named)?;
        self.record(&thread, &consumer, "retry", count)?;
        wake::wake_consumer(&mut thread, &consumer);
        self.print(&consumer, count)
    }

    fn discard(&self) -> Result<()> {
        let named = self.named()?;
        let (mut thread, consumer) = self.open()?;
        let count = thread.store.discard_letters(&consumer, named)?;
        self.record(&thread, &consumer, "discard", count)?;
        self.print(&consumer, count)
    }

    /// Logs how many dead letters were changed.
    fn record(&self, thread: &Thread, consumer: &ConsumerId, what: &str, count: usize) -> Result<()> {
        if let (Some(id), 0) = (self.event_id, count) {
            return Err(no_such_letter(Some(consumer), id));
        }
        thread.log(Level::Info, format_args!("dead: consumer={consumer} {what} count={count}"));
        Ok(())
    }

    fn print(&self, consumer: &ConsumerId, count: usize) -> Result<()> {
        if self.json {
            return output::json(&json!({ "consumer_id": consumer.as_str(), "count": count }));
        }
        output::line(count)
    }
}

/// Dead letters outlive their subscription.
fn must_be_known(thread: &Thread, consumer: &ConsumerId) -> Result<()> {
    if thread.store.subscription(consumer)?.is_none() && thread.store.letters(Some(consumer))?.is_empty() {
        return Err(unknown_consumer(consumer));
    }
    Ok(())
}

fn no_such_letter(consumer: Option<&ConsumerId>, id: i64) -> Failure {
    let whose = consumer.map_or("any consumer".to_owned(), |consumer| format!("'{consumer}'"));
    Failure::could_not(format_args!("event {id} is no dead letter of {whose}"), "see `thread dead list`")
}
