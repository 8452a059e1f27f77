//! `thread await`: a handler's event sleeps until another event comes.

use std::time::Duration;

use chrono::Utc;
use clap::Args;

use super::narrow::NarrowArgs;
use super::step::{self, OfArgs, sleeps};
use super::{Globals, output, signals};
use crate::failure::{Result, timed_out, usage};
use crate::model::duration;
use crate::model::filter::Scope;
use crate::model::step::{Kind, Step};
use crate::run::steps::{self, Waited};

/// Let an event sleep until another event comes, and print that
///
/// The other event is the first one after the handler's own that matches all options. Until it comes, this ends with exit
/// 75, like `thread sleep`. From then on it prints that event, in the form of `peek`, each time the same. If none has come
/// after --timeout, counted from the first call, it ends with exit 3, each time.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread await approval --subtype approval --meta order=\"$order\" --timeout 2d
  thread await paid --filter \"subtype = 'paid' AND content ->> '$.order' = 17\"")]
pub struct Await {
    /// Its name, like that of a step
    #[arg(value_name = "NAME", value_parser = step::name)]
    name: String,
    #[command(flatten)]
    narrow: NarrowArgs,
    /// How long to wait at most
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    timeout: Option<Duration>,
    #[command(flatten)]
    of: OfArgs,
}

impl Await {
    pub fn run(self, globals: &Globals) -> Result<()> {
        if self.narrow.is_empty() {
            return usage(
                "nothing says what to wait for",
                "give --type, --subtype, --source, --meta or --filter; any event: --filter true",
            );
        }
        let (consumer, event) = (self.of.consumer()?, self.of.event()?);
        let of = self.of.of(&consumer, event);
        // Like that of a subscription: what matches must not depend on when it is looked at.
        let filter = self.narrow.combined(Vec::new(), Scope::Subscription)?;
        let filter = filter.map(|filter| filter.text().to_owned()).unwrap_or_default();
        let new = of.step(&self.name, Kind::Await, &[filter.as_bytes()]);
        let until = self.timeout.map(|timeout| Utc::now() + timeout);
        let new = Step { until, filter: Some(filter), ..new };
        let mut queue = globals.open()?;
        signals::defer();
        match steps::wait(&mut queue, of, &new)? {
            Waited::Done(line) => output::bytes(&line).map(drop),
            Waited::TimedOut => timed_out(
                format_args!("no event came in time for '{}'", output::plain(&self.name)),
                "let the handler do what is to be done then",
            ),
            Waited::Asleep(sleep) => sleeps(of, &sleep),
        }
    }
}
