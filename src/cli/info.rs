//! `thread info`: what the thread holds and the state of its consumers, in several formats.

use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

use chrono::Utc;
use clap::{Args, ValueEnum};
use serde_json::json;

use super::output::{self, plain};
use super::progress::Progress;
use super::root::{RootArg, for_each};
use super::settings;
use super::{Globals, environment};
use crate::error::Error;
use crate::failure::{Result, usage};
use crate::files::DB;
use crate::maintenance::report::{
    ConsumerStatus, InHand, Report, SCHEDULED_UNATTENDED, Scheduled, WaitingEvent,
};
use crate::model::duration;
use crate::model::location::Location;
use crate::model::subscription::{ConsumerId, HeldLease, Subscription};
use crate::model::time;
use crate::pending::CountLimits;
use crate::queue::Queue;

pub(super) mod check;
mod prometheus;
mod runs;
mod series;
mod table;

/// Show what a thread holds and where its consumers stand
///
/// For each consumer: its state (idle, running, waiting, stalled or paused), how many events are pending
/// and how old the oldest is, when and how its last run ended, and its dead letters. Where counting takes
/// long, it says "at least N" after two seconds. For one consumer, it also shows every setting.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread info --thread inbox
  thread info --thread inbox bot
  thread info --thread inbox bot --runs | tail -n 5
  thread info --thread inbox bot --series 1d | tail -n 5
  thread info --thread inbox --json | jq '.subscriptions[].pending'
  thread info --root ~/agents --format prometheus >agents.prom
  thread info --thread inbox --check --max-pending 1000 --max-age 10m")]
pub struct Info {
    /// Only this consumer, with its settings
    #[arg(value_name = "CONSUMER", conflicts_with = "root")]
    consumer: Option<String>,
    /// How to print it [default: table on a terminal, text elsewhere; --json is --format json]
    #[arg(long, value_name = "FORMAT", value_enum)]
    format: Option<Format>,
    /// Its last runs instead, at most 1,000, the newest last
    #[arg(long, requires = "consumer", conflicts_with_all = ["format", "exact", "check"])]
    runs: bool,
    /// What came and what was done in this time instead, in periods: 15m, 1h, 1d, 7d or 30d
    #[arg(long, value_name = "SPAN", value_enum, hide_possible_values = true, conflicts_with_all = ["format", "exact", "check", "runs", "root"])]
    series: Option<series::Back>,
    /// Count everything that is pending, however long it takes
    #[arg(long)]
    exact: bool,
    #[command(flatten)]
    pub root: RootArg,
    #[command(flatten)]
    check: check::CheckArgs,
}

/// How long counting may take, for all consumers together.
const COUNT_FOR: Duration = Duration::from_millis(1500);

/// How long to wait for other writers, to remember how far a filter was evaluated.
const BUSY_LIMIT: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A few lines for each consumer, for scripts too
    Text,
    /// One line for each consumer, cut to the width of the terminal
    Table,
    /// One object
    Json,
    /// Metrics, as node_exporter's textfile collector reads them
    Prometheus,
}

impl Info {
    pub fn run(self, globals: &Globals) -> Result<()> {
        let stdout = environment::stdout();
        let format = match self.format {
            Some(format) if globals.json && format != Format::Json => {
                return usage("--json and --format cannot be used together", "give only one of them");
            }
            Some(format) => format,
            None if globals.json => Format::Json,
            None if stdout.is_terminal() && self.consumer.is_none() => Format::Table,
            None => Format::Text,
        };
        if self.check.check && matches!(self.format, Some(Format::Table | Format::Prometheus)) {
            return usage("--check prints text or JSON", "leave out --format, or give --json instead");
        }
        if let Some(threads) = self.root.threads(globals)? {
            return self.show_all(&threads, format);
        }
        let mut queue = Queue::open_waiting(globals.location()?, BUSY_LIMIT)?;
        let only = self.consumer.clone().map(ConsumerId::stored);
        if let Some(consumer) = only.as_ref().filter(|_| self.runs) {
            return runs::print(&mut queue, consumer, globals.json);
        }
        if let Some(back) = self.series {
            return series::print(&mut queue, only.as_ref(), back, globals.json, Utc::now());
        }
        let report = self.report(&mut queue, only.as_ref())?;
        if self.check.check {
            let needing = self.check.print(&mut queue, &report, None, format == Format::Json)?;
            return check::result(needing);
        }
        let text = match format {
            Format::Prometheus => prometheus::render(&[report]),
            format => self.text(&report, format),
        };
        output::bytes(text.as_bytes()).map(drop)
    }

    /// Shows all threads, one after the other.
    fn show_all(&self, threads: &[Location], format: Format) -> Result<()> {
        let (mut shown, mut needing, mut metrics) = (0, check::Needing::default(), Vec::new());
        let done = for_each(threads, |thread| {
            let mut queue = Queue::open_waiting(thread, BUSY_LIMIT)?;
            let report = self.report(&mut queue, None)?;
            if self.check.check {
                needing += self.check.print(&mut queue, &report, Some(thread), format == Format::Json)?;
                return Ok(());
            }
            if format == Format::Prometheus {
                metrics.push(report);
                return Ok(());
            }
            let gap = if shown > 0 && format != Format::Json { "\n" } else { "" };
            shown += 1;
            output::bytes((gap.to_owned() + &self.text(&report, format)).as_bytes()).map(drop)
        });
        if !metrics.is_empty() {
            output::bytes(prometheus::render(&metrics).as_bytes())?;
        }
        done.and_then(|()| check::result(needing))
    }

    fn report(&self, queue: &mut Queue, only: Option<&ConsumerId>) -> Result<Report> {
        let is_check = self.check.check;
        let until = (!self.exact && !is_check).then(|| Instant::now() + COUNT_FOR);
        let most = if is_check { self.check.most_to_count() } else { u64::MAX };
        let shown = self.exact && !is_check;
        let progress = |total| -> Box<dyn FnMut(u64)> {
            let mut progress = Progress::of("counting what is pending", Some(total)).only_if(shown);
            Box::new(move |ids| progress.advance(ids))
        };
        match Report::of(queue, only, CountLimits { most, until }, &progress) {
            Err(Error::UnknownConsumer(name)) if Path::new(name.as_str()).join(DB).exists() => usage(
                format_args!("'{}' is a thread, not a consumer", plain(name.as_str())),
                "give the thread with --thread",
            ),
            report => Ok(report?),
        }
    }

    /// The report in a format for one thread.
    fn text(&self, report: &Report, format: Format) -> String {
        match format {
            Format::Json => format!("{}\n", json!(report)),
            Format::Table => {
                let stdout = environment::stdout();
                // Nothing is cut if stdout is a pipe or a file.
                let width = terminal_size::terminal_size_of(&stdout).map(|(width, _)| width.0);
                let width = width.filter(|&width| width > 0).or(stdout.is_terminal().then_some(80));
                table::render(report, width, output::coloured(&stdout))
            }
            Format::Text | Format::Prometheus => {
                let alone = self.consumer.is_some();
                let consumers = report.subscriptions.iter().map(|one| consumer(one, alone));
                headline(report) + &consumers.collect::<String>()
            }
        }
    }
}

/// The first lines of the text and of the table. Programs rely on them.
fn headline(report: &Report) -> String {
    let (thread, events, consumers) = (plain(&report.thread), report.event_count, report.subscriptions.len());
    let scheduled = report.scheduled.as_ref().map(scheduled).unwrap_or_default();
    let moved = report.moved_to.as_ref().map(|to| format!("Moved to: {}\n", plain(to)));
    let unfinished = report.import_unfinished.then(|| format!("Note: {}\n", Error::ImportUnfinished));
    let closed = moved.or(unfinished).unwrap_or_default();
    format!("Thread: {thread}\nEvents: {events}\nSubscriptions: {consumers}\n{closed}{scheduled}")
}

fn scheduled(Scheduled { events, schedules, next_due_at, is_attended }: &Scheduled) -> String {
    let next = next_due_at.map(|next| format!(", the next due {}", time::format(next)));
    let (next, s) = (next.unwrap_or_default(), if *schedules == 1 { "" } else { "s" });
    let note = match is_attended {
        true => String::new(),
        false => format!("Note: {SCHEDULED_UNATTENDED}\n"),
    };
    format!("Scheduled: {events}, and {schedules} schedule{s}{next}\n{note}")
}

/// The number of pending events, for people.
fn pending(status: &ConsumerStatus) -> String {
    let at_least = if status.pending.at_least { "at least " } else { "" };
    format!("{at_least}{}", status.pending.events)
}

/// What a consumer has in hand, unless that is nothing.
fn in_hand(in_hand: &InHand) -> Option<String> {
    let InHand { in_flight, waiting, finished_ahead, .. } = in_hand;
    let text = format!("in_flight={in_flight} waiting={waiting} finished_ahead={finished_ahead}");
    (in_flight + waiting + finished_ahead > 0).then_some(text)
}

/// Who has the lease of its runs.
fn lease(subscription: &Subscription, lease: &HeldLease) -> String {
    let HeldLease { host, renewed, age, .. } = lease;
    let places = subscription.places_of(lease).map(|places| format!(" places={places}"));
    let (places, renewed, age) = (places.unwrap_or_default(), time::format(*renewed), duration::rough(*age));
    format!("host={host}{places} renewed={renewed} age={age}")
}

/// An event that waits.
fn wait(WaitingEvent { event_id, key, attempt, asleep, next_try }: &WaitingEvent) -> String {
    let key = key.as_ref().map(|key| format!(" key={key}")).unwrap_or_default();
    let asleep = if *asleep { " asleep=true" } else { "" };
    let next_try = next_try.map(|at| format!(" next_try={}", time::format(at))).unwrap_or_default();
    format!("event={event_id}{key} attempt={attempt}{asleep}{next_try}")
}

/// A consumer as text. `alone`: with its settings.
fn consumer(status: &ConsumerStatus, alone: bool) -> String {
    let s = &status.subscription;
    let details = json!(status.state);
    let details = details.as_object().into_iter().flatten();
    let details = details.map(|(name, value)| format!(" {name}={}", settings::as_text(name, value)));
    let state = format!("{}{}", status.state.word(), details.collect::<String>());
    let handler = if s.has_handler() { &s.handler_cmd } else { "(none)" };
    let last_run = s.state.ended.zip(s.state.last_exit);
    let filter_errors = || format!("{} last_id={}", s.filter_errors, s.filter_error_id);
    let lines = [
        ("handler:", Some(handler.to_owned())),
        ("filter: ", Some(s.filter_text().unwrap_or("(none)").to_owned())),
        ("last_acked_id:", Some(s.last_acked_id.to_string())),
        ("updated_at:", Some(s.updated_at.as_deref().unwrap_or("(never)").to_owned())),
        ("state:", Some(state)),
    ];
    let leases = s.leases.iter().map(|one| ("lease:", Some(lease(s, one))));
    let counts = [
        ("pending:", Some(pending(status))),
        ("in_hand:", status.in_hand.as_ref().and_then(in_hand)),
        ("oldest_pending:", status.oldest.as_ref().and_then(|(_, stored_at)| stored_at.clone())),
        ("last_run:", last_run.map(|(ended, exit)| format!("{} {exit}", time::format(ended)))),
        ("dead:", (s.dead > 0).then(|| s.dead.to_string())),
        ("expired:", (s.state.expired > 0).then(|| s.state.expired.to_string())),
        ("filter_errors:", (s.filter_errors > 0).then(filter_errors)),
    ];
    let mut text = format!("  - {}\n", plain(s.consumer.as_str()));
    let mut line = |name: &str, value: &str| text.push_str(&format!("    {name} {}\n", plain(value)));
    for (name, value) in lines.into_iter().chain(leases).chain(counts) {
        if let Some(value) = value {
            line(name, &value);
        }
    }
    for one in status.in_hand.iter().filter(|_| alone).flat_map(|in_hand| &in_hand.waits) {
        line("wait:", &wait(one));
    }
    for note in status.notes() {
        line("note:", &note);
    }
    for (name, value) in status.settings.iter().filter(|_| alone) {
        line(&format!("{name}:"), &settings::as_text(name, value));
    }
    text
}
