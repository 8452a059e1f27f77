//! `thread claim`: prolonging the time for which an event is taken.

use clap::Args;

use super::{ConsumerArg, Globals, event_id};
use crate::failure::{Result, usage};
use crate::model::duration;
use crate::run::claims;

/// Keep an event longer that was taken with `thread pop --claim`
///
/// Its claim ends after the given time from now on, instead of when it would have. Nothing is printed.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread claim -t inbox team 42 5m
  thread claim -t inbox team 42 5m --claim 1f0c52ab93d7e604")]
pub struct Claim {
    #[command(flatten)]
    consumer: ConsumerArg,
    /// The event, and how long to keep it from now on, e.g. 30s or 5m
    #[arg(value_names = ["ID", "D"], num_args = 0..=2)]
    words: Vec<String>,
    /// The claim, as `pop` printed it; an older one is refused [default: the newest one]
    #[arg(long, value_name = "TOKEN")]
    claim: Option<String>,
}

impl Claim {
    pub fn run(mut self, globals: &Globals) -> Result<()> {
        if self.words.len() < 2 {
            self.words.splice(..0, self.consumer.spare());
        }
        let [id, length] = &self.words[..] else {
            return usage("no event and time given", "give the event's id and how long to keep it: 42 5m");
        };
        let id = event_id(id).or_else(|why| usage(format_args!("invalid event id '{id}'"), why))?;
        let length = duration::parse_positive(length)
            .or_else(|why| usage(why, "say how long to keep the event, e.g. 5m"))?;
        let consumer = self.consumer.existing()?;
        let mut queue = globals.open()?;
        claims::prolong(&mut queue, &consumer, id, length, self.claim.as_deref())?;
        Ok(())
    }
}
