//! The consumer argument, and values that may follow it.

use std::ffi::OsString;

use clap::Args;

use super::opened::Opened;
use super::{Globals, environment, event_id};
use crate::failure::{Result, usage};
use crate::model::subscription::ConsumerId;
use crate::queue::Queue;
use crate::run::settle::Answer;

/// The consumer, as an argument or an option.
#[derive(Args)]
pub struct ConsumerArg {
    /// The consumer [default: $THREAD_CONSUMER]
    #[arg(value_name = "CONSUMER")]
    word: Option<String>,
    /// The same, as an option
    #[arg(long, value_name = "NAME", hide = true)]
    consumer: Option<String>,
}

/// A value given as an argument or with an option, but not both. `what` names it in errors: "event id".
pub fn one_of<T>(what: &str, word: Option<T>, option: &str, given: Option<T>) -> Result<Option<T>> {
    if word.is_some() && given.is_some() {
        return usage(
            format_args!("the {what} is given twice"),
            format_args!("give it as an argument or with {option}"),
        );
    }
    Ok(word.or(given))
}

/// Fails because a required value was not given.
pub fn missing<T>(what: &str, option: &str) -> Result<T> {
    usage(
        format_args!("no {what} given"),
        format_args!("give it after the consumer's name, or with {option}"),
    )
}

impl ConsumerArg {
    /// The name given by the argument, `--consumer` or `THREAD_CONSUMER`; `None` if none is.
    pub fn name(&self) -> Result<Option<String>> {
        let named = one_of("consumer", self.word.clone(), "--consumer", self.consumer.clone())?;
        let name = named.map(OsString::from).or_else(|| environment::variable("THREAD_CONSUMER"));
        match name.map(OsString::into_string).transpose() {
            Err(_) => usage("THREAD_CONSUMER is not UTF-8", "set it correctly"),
            Ok(Some(name)) if name.is_empty() => usage("the consumer's name is empty", "give its name"),
            Ok(name) => Ok(name),
        }
    }

    pub fn required(&self) -> Result<String> {
        let missing = || usage("no consumer given", "give its name, or set THREAD_CONSUMER");
        self.name()?.map_or_else(missing, Ok)
    }

    /// A consumer that should exist: any name that another program may have stored is accepted.
    pub fn existing(&self) -> Result<ConsumerId> {
        self.required().map(ConsumerId::stored)
    }

    /// Takes the first argument if `--consumer` names the consumer, so that the argument is another value.
    pub fn spare_word(&mut self) -> Option<String> {
        self.consumer.as_ref()?;
        self.word.take()
    }

    /// Takes the first argument if `--consumer` or `THREAD_CONSUMER` names the consumer.
    pub fn spare(&mut self) -> Option<String> {
        if self.is_known() { self.word.take() } else { None }
    }

    /// Whether no argument is needed to name the consumer.
    fn is_known(&self) -> bool {
        self.consumer.is_some() || environment::variable("THREAD_CONSUMER").is_some()
    }

    /// The event ids after the consumer's name, or all words if `--consumer` or `THREAD_CONSUMER` names the consumer and
    /// the first one is an event id, too.
    pub fn event_ids(&mut self, mut words: Vec<String>) -> Result<Vec<i64>> {
        let known = self.is_known();
        let is_id = self.word.as_deref().is_some_and(|word| event_id(word).is_ok());
        if known && (words.is_empty() || is_id) {
            words.splice(..0, self.word.take());
        }
        let parse = |word: String| {
            event_id(&word).or_else(|why| usage(format_args!("invalid event id '{word}'"), why))
        };
        words.into_iter().map(parse).collect()
    }

    /// The value after the consumer's name, or of its option. A single argument is that value, not the
    /// consumer, if `--consumer` or `THREAD_CONSUMER` names the consumer.
    pub fn value<T>(
        &mut self,
        what: &str,
        word: Option<String>,
        parse: fn(&str) -> std::result::Result<T, String>,
        option: &str,
        given: Option<T>,
    ) -> Result<Option<T>> {
        let known = self.is_known();
        let word = if word.is_none() && given.is_none() && known { self.word.take() } else { word };
        let invalid = |word, why| usage(format_args!("invalid {what} '{word}'"), why);
        let word = word.map(|word| parse(&word).or_else(|why| invalid(word, why))).transpose()?;
        one_of(what, word, option, given)
    }
}

/// An event that a consumer has not finished, and why.
#[derive(Args)]
pub struct FailedEvent {
    #[command(flatten)]
    consumer: ConsumerArg,
    /// The event
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// The same, as an option
    #[arg(long, value_name = "ID", value_parser = event_id, allow_negative_numbers = true, hide = true)]
    event_id: Option<i64>,
    /// Why, for its dead letter
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    pub error: String,
    /// The claim by which you have it [default: the newest one]
    #[arg(long, value_name = "TOKEN")]
    claim: Option<String>,
}

impl FailedEvent {
    /// What is said of the event.
    pub fn answer(&self, id: i64) -> Answer<'_> {
        Answer { id, claim: self.claim.as_deref(), error: &self.error }
    }

    /// Opens the thread. Returns it with the consumer, which finishes events singly, and the event.
    pub fn open(&mut self, globals: &Globals) -> Result<(Opened, ConsumerId, i64)> {
        let id = self.consumer.value("event id", self.id.take(), event_id, "--event-id", self.event_id)?;
        let id = id.map_or_else(|| missing("event id", "--event-id"), Ok)?;
        let consumer = self.consumer.existing()?;
        let mut queue = globals.open()?;
        must_finish_singly(&mut queue, &consumer)?;
        Ok((queue, consumer, id))
    }
}

/// Fails unless the consumer finishes events singly.
pub fn must_finish_singly(queue: &mut Queue, consumer: &ConsumerId) -> Result<()> {
    match queue.subscription(consumer)?.options.finishes_singly() {
        true => Ok(()),
        false => usage(
            format_args!(
                "'{consumer}' acknowledges everything up to one event, so no event is answered by itself"
            ),
            "subscribe it with --concurrency N or --deliver ndjson, or let its handler fail",
        ),
    }
}
