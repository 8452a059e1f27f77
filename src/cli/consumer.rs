//! Naming a consumer, and what may stand after its name.

use clap::Args;

use super::environment;
use super::error::{Failure, Result};
use crate::model::subscription::ConsumerId;

/// Names the consumer.
#[derive(Args)]
pub struct ConsumerArg {
    /// The consumer [default: $THREAD_CONSUMER]
    #[arg(value_name = "CONSUMER")]
    word: Option<String>,
    /// The same, as an option
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
}

/// What commands take after the consumer's name, or from an option of its own.
pub struct Second<'a, T> {
    /// What it is: "event id".
    pub what: &'a str,
    /// The option that gives it, without its dashes.
    pub option: &'a str,
    pub given: Option<T>,
    pub word: Option<String>,
}

impl ConsumerArg {
    /// The name given by a word, `--consumer` or `THREAD_CONSUMER`, if any.
    pub fn name(&self) -> Result<Option<String>> {
        if self.word.is_some() && self.consumer.is_some() {
            return Err(Failure::usage(
                "the consumer is given twice",
                "give it as an argument or with --consumer",
            ));
        }
        let name = self.word.clone().or_else(|| self.consumer.clone());
        match name.map(Ok).or_else(from_environment).transpose()? {
            Some(name) if name.is_empty() => {
                Err(Failure::usage("the consumer's name is empty", "give its name"))
            }
            name => Ok(name),
        }
    }

    /// A consumer that is expected to exist: any name that may be in the table.
    pub fn existing(&self) -> Result<ConsumerId> {
        self.required().map(ConsumerId::stored)
    }

    pub fn required(&self) -> Result<String> {
        let missing = || Failure::usage("no consumer given", "give its name, or set THREAD_CONSUMER");
        self.name()?.ok_or_else(missing)
    }

    /// Refuses a consumer that is named where --all means all consumers.
    pub fn refuse_beside_all(&self) -> Result<()> {
        match self.word.is_some() || self.consumer.is_some() {
            true => Err(Failure::usage("both a consumer and --all are given", "give one of them")),
            false => Ok(()),
        }
    }

    /// The only word, if `--consumer` gives the consumer, so that the word is something else.
    pub fn spare_word(&mut self) -> Option<String> {
        self.consumer.as_ref().and(self.word.take())
    }

    /// Reads what stands after the consumer's name, or its option. A single word is that value, not the
    /// consumer, if `--consumer` or `THREAD_CONSUMER` gives the consumer. `None` if it is not given.
    pub fn second<T>(
        &mut self,
        second: Second<'_, T>,
        parse: fn(&str) -> std::result::Result<T, String>,
    ) -> Result<Option<T>> {
        let Second { what, option, given, mut word } = second;
        let known = self.consumer.is_some() || environment::variable("THREAD_CONSUMER").is_some();
        if word.is_none() && given.is_none() && known {
            word = self.word.take();
        }
        match (given, word) {
            (Some(_), Some(_)) => Err(Failure::usage(
                format_args!("the {what} is given twice"),
                format_args!("give it as an argument or with --{option}"),
            )),
            (None, Some(word)) => parse(&word)
                .map(Some)
                .map_err(|why| Failure::usage(format_args!("invalid {what} '{word}'"), why)),
            (given, None) => Ok(given),
        }
    }

    /// The same, where it must be given.
    pub fn required_second<T>(
        &mut self,
        second: Second<'_, T>,
        parse: fn(&str) -> std::result::Result<T, String>,
    ) -> Result<T> {
        let missing = Failure::usage(
            format_args!("no {} given", second.what),
            format_args!("give it after the consumer's name, or with --{}", second.option),
        );
        self.second(second, parse)?.ok_or(missing)
    }
}

fn from_environment() -> Option<Result<String>> {
    let name = environment::variable("THREAD_CONSUMER")?;
    Some(name.into_string().map_err(|_| Failure::usage("THREAD_CONSUMER is not UTF-8", "set it correctly")))
}
