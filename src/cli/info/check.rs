//! `thread info --check`: which consumers need attention, and why.

use std::time::Duration;

use clap::Args;
use serde_json::json;

use crate::cli::number::{count, limit};
use crate::cli::output::{self, plain};
use crate::error::Code;
use crate::failure::{Result, failed};
use crate::maintenance::report::{ConsumerStatus, Problem, Report, SCHEDULED_UNATTENDED, events_text};
use crate::model::duration;
use crate::model::location::Location;
use crate::model::time::Time;
use crate::pending;
use crate::queue::Queue;
use crate::store::ScanRange;

/// Numbers of pending events are exact up to this one.
const COUNTED: u64 = 10_000;

#[derive(Args, Default)]
pub struct CheckArgs {
    /// Print only a line for each consumer that needs attention; exit 1 if there is one
    ///
    /// A consumer needs attention if it is stalled or paused, has dead letters, is at work and has failed at least
    /// three times in the last hour while nothing succeeded, has a filter that failed on events, has had something
    /// pending for a minute with nothing running or waiting (without a handler, if nothing was taken for five
    /// minutes), keeps the thread from deleting what it is not to keep any more (see `thread config`), or exceeds
    /// one of the limits below.
    #[arg(long)]
    pub check: bool,
    /// With --check: the most events that may be pending for a consumer
    #[arg(long, value_name = "N", value_parser = count, requires = "check", allow_negative_numbers = true)]
    max_pending: Option<u64>,
    /// With --check: how long an event may be pending
    #[arg(long, value_name = "D", value_parser = duration::parse, requires = "check")]
    max_age: Option<Duration>,
    /// With --check: the highest rate of events for a consumer: 90/s, 600/m, 1000/h or 5/10s
    #[arg(long, value_name = "N/D", value_parser = rate, requires = "check")]
    max_rate: Option<Rate>,
}

/// At most `events` in a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rate {
    events: u64,
    during: Duration,
}

fn rate(text: &str) -> std::result::Result<Rate, String> {
    let parsed = text.split_once('/').and_then(|(events, during)| {
        let one = if during.starts_with(|c: char| c.is_ascii_alphabetic()) { "1" } else { "" };
        let during = duration::parse_positive(&format!("{one}{during}")).ok()?;
        Some(Rate { events: limit(events).ok()?, during })
    });
    parsed.ok_or_else(|| format!("'{text}' is not a rate such as 90/s, 600/m, 1000/h or 5/10s"))
}

impl CheckArgs {
    /// How many pending events have to be counted.
    pub fn most_to_count(&self) -> u64 {
        self.max_pending.map_or(COUNTED, |most| most.saturating_add(1).max(COUNTED))
    }

    /// Prints the consumers that need attention, and what is scheduled if that does, with the thread's `name` if that is
    /// given. Returns what does.
    pub fn print(
        &self,
        queue: &mut Queue,
        report: &Report,
        name: Option<&Location>,
        as_json: bool,
    ) -> Result<Needing> {
        let label = name.map(|name| format!("{}: ", plain(&name.to_string()))).unwrap_or_default();
        let (mut values, mut lines) = (Vec::new(), String::new());
        for consumer in &report.subscriptions {
            let problems = self.problems(queue, consumer, report.now)?;
            if problems.is_empty() {
                continue;
            }
            let consumer_id = consumer.subscription.consumer.as_str();
            let described = problems.iter().map(|(word, about)| match about.as_str() {
                "" => (*word).to_owned(),
                about => format!("{word} ({about})"),
            });
            let described = described.collect::<Vec<_>>().join(", ");
            lines.push_str(&format!("{label}{}: {}\n", plain(consumer_id), plain(&described)));
            let problems = problems.iter().map(|(word, about)| json!({ "check": word, "problem": about }));
            values.push(json!({ "consumer_id": consumer_id, "problems": problems.collect::<Vec<_>>() }));
        }
        let in_vain = report.is_scheduled_in_vain();
        if in_vain {
            lines.push_str(&format!("{label}scheduled: unattended ({SCHEDULED_UNATTENDED})\n"));
        }
        let needing = Needing { consumers: values.len(), scheduled: in_vain };
        if as_json {
            let mut facts = json!({ "healthy": values.is_empty() && !in_vain, "consumers": values });
            if in_vain {
                facts["scheduled"] = json!([{ "check": "unattended", "problem": SCHEDULED_UNATTENDED }]);
            }
            if let Some(name) = name {
                facts["thread"] = name.to_string().into();
            }
            output::line(facts)?;
        } else {
            output::bytes(lines.as_bytes())?;
        }
        Ok(needing)
    }

    /// Why a consumer needs attention.
    pub fn problems(&self, queue: &mut Queue, consumer: &ConsumerStatus, now: Time) -> Result<Vec<Problem>> {
        let mut problems = consumer.problems(now);
        let (age, pending) = (consumer.oldest_age(now).unwrap_or_default(), consumer.pending_text());
        if let Some(most) = self.max_pending.filter(|&most| consumer.pending.events > most) {
            problems.push(("behind", format!("{pending} pending, more than {most}")));
        }
        if let Some(most) = self.max_age {
            problems.retain(|(word, _)| *word != "unattended");
            if age > most {
                let (age, most) = (duration::rough(age), duration::format(most));
                problems.push(("old", format!("the oldest pending event is {age} old, more than {most}")));
            }
        }
        if let Some(rate) = self.max_rate
            && has_more(queue, consumer, rate, now)?
        {
            let during = duration::format(rate.during);
            problems
                .push(("rate", format!("more than {} came in the last {during}", events_text(rate.events))));
        }
        Ok(problems)
    }
}

/// What needs attention.
#[derive(Debug, Clone, Copy, Default)]
pub struct Needing {
    consumers: usize,
    /// What is scheduled in some thread.
    scheduled: bool,
}

impl std::ops::AddAssign for Needing {
    fn add_assign(&mut self, more: Needing) {
        self.consumers += more.consumers;
        self.scheduled |= more.scheduled;
    }
}

/// Fails if something needs attention.
pub fn result(needing: Needing) -> Result<()> {
    let what = match (needing.consumers, needing.scheduled) {
        (0, false) => return Ok(()),
        (0, true) => "what is scheduled needs attention".to_owned(),
        (1, _) => "1 consumer needs attention".to_owned(),
        (n, _) => format!("{n} consumers need attention"),
    };
    failed(Code::Unhealthy, what, "see `thread info` and `thread logs`")
}

/// Whether a consumer was sent events at more than this rate, up to now.
fn has_more(queue: &mut Queue, consumer: &ConsumerStatus, rate: Rate, now: Time) -> Result<bool> {
    let Ok(filter) = pending::checked_filter(&consumer.subscription) else { return Ok(false) };
    let after = queue.about_last_before(now - rate.during)?;
    let store = &mut *queue.store;
    let Some(filter) = filter else { return Ok(store.count(after, i64::MAX)? > rate.events) };
    let most = usize::try_from(rate.events).unwrap_or(usize::MAX).saturating_add(1);
    let range = ScanRange { after, upto: store.newest()?, most, until: None };
    Ok(store.scan(&filter, range)?.ids.len() == most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_and_a_time() {
        let of = |events, seconds| Ok(Rate { events, during: Duration::from_secs(seconds) });
        assert_eq!((rate("90/s"), rate("600/m"), rate("5/10s")), (of(90, 1), of(600, 60), of(5, 10)));
        for bad in ["", "90", "/s", "0/s", "90/", "9/0s", "9/x", "-1/s", "1/s/s"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }
}
