//! `thread sleep`: a handler's event sleeps for some time.

use std::time::Duration;

use chrono::Utc;
use clap::Args;

use super::step::{self, OfArgs, sleeps};
use super::{Globals, signals};
use crate::failure::Result;
use crate::model::duration;
use crate::model::step::{Kind, Step};
use crate::run::steps::{self, Waited};

/// Let an event sleep, and its handler continue here later
///
/// Until the time is over, it ends with exit 75, which under `set -e` ends the handler. The handler is then run again,
/// from its beginning; what it did by `thread step` is not repeated. The time counts from the first call. A sleep is no
/// attempt, and in a pool takes no place; without --concurrency it holds back the events after this one.
///
/// If a handler continues in spite of the exit code, its steps do nothing, and its own exit code does not count.
#[derive(Args)]
#[command(after_help = "Example:\n  thread sleep cool-off 1h")]
pub struct Sleep {
    /// Its name, like that of a step
    #[arg(value_name = "NAME", value_parser = step::name)]
    name: String,
    /// For how long, e.g. 30s, 1h or 2d
    #[arg(value_name = "D", value_parser = duration::parse)]
    length: Duration,
    #[command(flatten)]
    of: OfArgs,
}

impl Sleep {
    pub fn run(self, globals: &Globals) -> Result<()> {
        let (consumer, event) = (self.of.consumer()?, self.of.event()?);
        let of = self.of.of(&consumer, event);
        let words = duration::format(self.length);
        let new = of.step(&self.name, Kind::Sleep, &[words.as_bytes()]);
        let new = Step { until: Some(Utc::now() + self.length), ..new };
        let mut queue = globals.open()?;
        signals::defer();
        match steps::wait(&mut queue, of, &new)? {
            Waited::Done(_) | Waited::TimedOut => Ok(()),
            Waited::Asleep(sleep) => sleeps(of, &sleep),
        }
    }
}
