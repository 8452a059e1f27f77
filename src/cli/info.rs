//! `thread info`: what the thread holds and the state of its consumers, in several formats.

use std::io::{self, IsTerminal};
use std::ops::Deref;
use std::path::Path;
use std::time::{Duration, Instant};

use chrono::Utc;
use clap::{Args, ValueEnum};
use rustix::fs::FileType;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::Globals;
use super::output::{self, plain};
use super::progress::Progress;
use super::settings;
use crate::error::Error;
use crate::failure::{Result, usage};
use crate::files::{DB, Files, WAL};
use crate::jsonl;
use crate::maintenance::report::{ConsumerStatus, EventRange, Limits};
use crate::model::run::Exit;
use crate::model::subscription::ConsumerId;
use crate::model::time::{self, Time};
use crate::pending::CountLimits;
use crate::queue::Queue;

mod check;
mod prometheus;
mod runs;
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
  thread info --thread inbox --json | jq '.subscriptions[].pending'
  thread info --thread inbox --format prometheus >inbox.prom
  thread info --thread inbox --check --max-pending 1000 --max-age 10m")]
pub struct Info {
    /// Only this consumer, with its settings
    #[arg(value_name = "CONSUMER")]
    consumer: Option<String>,
    /// How to print it [default: table on a terminal, text elsewhere; --json is --format json]
    #[arg(long, value_name = "FORMAT", value_enum)]
    format: Option<Format>,
    /// Its last runs instead, at most 1,000, the newest last
    #[arg(long, requires = "consumer", conflicts_with_all = ["format", "exact", "check"])]
    runs: bool,
    /// Count everything that is pending, however long it takes
    #[arg(long)]
    exact: bool,
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

/// The data of all formats; the fields are the keys of the JSON.
#[derive(Serialize)]
struct Report {
    /// The thread's path.
    thread: String,
    event_count: u64,
    /// The newest id ever assigned.
    last_event_id: i64,
    /// The same number, as the count of events ever stored.
    events_pushed: i64,
    subscriptions: Vec<Consumer>,
    /// Sizes of `events.db` alone, of its WAL, and of the JSONL log with its sealed files; null for a thread that is
    /// not in a directory, whose events share the tables of a server.
    database_bytes: Option<u64>,
    wal_bytes: Option<u64>,
    log_bytes: Option<u64>,
    /// Size of the files in `logs/`: `thread.log`, handler output, and rotated parts of both.
    logs_bytes: u64,
    /// Sum of the sizes that are known.
    disk_bytes: u64,
    #[serde(skip)]
    now: Time,
}

struct Consumer {
    status: ConsumerStatus,
    /// Whether to show its settings too.
    alone: bool,
    settings: Map<String, Value>,
}

impl Info {
    pub fn run(self, globals: &Globals) -> Result<()> {
        let stdout = io::stdout();
        let format = match self.format {
            Some(format) if globals.json && format != Format::Json => {
                return usage("--json and --format cannot be used together", "give only one of them");
            }
            Some(format) => format,
            None if globals.json => Format::Json,
            None if stdout.is_terminal() && self.consumer.is_none() => Format::Table,
            None => Format::Text,
        };
        let mut queue = Queue::open_waiting(globals.location()?, BUSY_LIMIT)?;
        let only = self.consumer.map(ConsumerId::stored);
        if let Some(consumer) = only.as_ref().filter(|_| self.runs) {
            return runs::print(&mut queue, consumer, globals.json);
        }
        let is_check = self.check.is_given();
        let until = (!self.exact && !is_check).then(|| Instant::now() + COUNT_FOR);
        let most = if is_check { self.check.most_to_count() } else { u64::MAX };
        let shown = self.exact && !is_check;
        let report = match Report::of(&mut queue, only.as_ref(), CountLimits { most, until }, shown) {
            Err(Error::UnknownConsumer(name)) if Path::new(name.as_str()).join(DB).exists() => {
                return usage(
                    format_args!("'{}' is a thread, not a consumer", plain(name.as_str())),
                    "give the thread with --thread",
                );
            }
            report => report?,
        };
        if is_check {
            if matches!(self.format, Some(Format::Table | Format::Prometheus)) {
                return usage("--check prints text or JSON", "leave out --format, or give --json instead");
            }
            return self.check.run(&mut queue, &report, format == Format::Json);
        }
        let text = match format {
            Format::Json => return output::line(json!(report)),
            Format::Text => {
                report.headline() + &report.subscriptions.iter().map(Consumer::to_text).collect::<String>()
            }
            Format::Prometheus => prometheus::render(&report),
            Format::Table => {
                // Nothing is cut if stdout is a pipe or a file.
                let width = terminal_size::terminal_size_of(&stdout).map(|(width, _)| width.0);
                let width = width.filter(|&width| width > 0).or(stdout.is_terminal().then_some(80));
                table::render(&report, width, output::coloured(&stdout))
            }
        };
        output::bytes(text.as_bytes()).map(drop)
    }
}

impl Report {
    /// `only`: leave out all other consumers. `shown`: draw progress.
    fn of(
        queue: &mut Queue,
        only: Option<&ConsumerId>,
        count: CountLimits,
        shown: bool,
    ) -> crate::Result<Report> {
        let range = EventRange::of(queue, u64::MAX)?;
        let limits = Limits { look_until: count.until, count, gapless: range.is_gapless() };
        let mut consumers = Vec::new();
        let subscriptions = match only {
            Some(consumer) => vec![queue.subscription(consumer)?],
            None => queue.store.subscriptions()?,
        };
        for subscription in subscriptions {
            let status = ConsumerStatus::of(queue, subscription, limits, &|total| {
                let mut progress = Progress::of("counting what is pending", Some(total)).only_if(shown);
                Box::new(move |ids| progress.advance(ids))
            })?;
            let (cwd, options) = (status.subscription.cwd.as_deref(), &status.subscription.options);
            let settings = settings::as_json(queue.files(), cwd, options);
            consumers.push(Consumer { status, alone: only.is_some(), settings });
        }
        let files = queue.files();
        let here = files.location().dir().is_some();
        let [database_bytes, wal_bytes, log_bytes] =
            [files.size(DB), files.size(WAL), jsonl::size(files)].map(|size| here.then_some(size));
        let logs_bytes = size_of_files(files, "logs") + size_of_files(files, "logs/handlers");
        Ok(Report {
            thread: queue.location().as_os_str().to_string_lossy().into_owned(),
            event_count: range.count,
            last_event_id: range.newest,
            events_pushed: range.newest,
            subscriptions: consumers,
            database_bytes,
            wal_bytes,
            log_bytes,
            logs_bytes,
            disk_bytes: [database_bytes, wal_bytes, log_bytes].into_iter().flatten().sum::<u64>()
                + logs_bytes,
            now: Utc::now(),
        })
    }

    /// The first lines of the text and of the table. Programs rely on them.
    fn headline(&self) -> String {
        let (thread, events, consumers) = (plain(&self.thread), self.event_count, self.subscriptions.len());
        format!("Thread: {thread}\nEvents: {events}\nSubscriptions: {consumers}\n")
    }
}

impl Deref for Consumer {
    type Target = ConsumerStatus;

    fn deref(&self) -> &ConsumerStatus {
        &self.status
    }
}

impl Consumer {
    /// The number of pending events, for people.
    fn pending_text(&self) -> String {
        let at_least = if self.pending.at_least { "at least " } else { "" };
        format!("{at_least}{}", self.pending.events)
    }

    fn as_json(&self) -> Value {
        let s = &self.subscription;
        let (oldest_id, oldest_at) = self.oldest.clone().unzip();
        let mut object = json!({
            "consumer_id": s.consumer.as_str(),
            "handler_cmd": s.handler_cmd,
            "filter": s.filter,
            "last_acked_id": s.last_acked_id,
            "updated_at": s.updated_at,
            "state": self.state,
            "unattended": self.is_unattended(),
            "pending": (!self.pending.at_least).then_some(self.pending.events),
            "oldest_pending_id": oldest_id,
            "oldest_pending_at": oldest_at.flatten(),
            "dead": s.dead,
            "filter_errors": s.filter_errors,
            "last_filter_error_id": (s.filter_errors > 0).then_some(s.filter_error_id),
            "runs_succeeded": s.state.succeeded,
            "runs_failed": s.state.failed,
            "dead_letters_made": s.state.dead_lettered,
            "last_run_started_at": s.state.began.map(time::format),
            "last_run_ended_at": s.state.ended.map(time::format),
            "last_exit": s.state.last_exit.map(|exit| exit.to_string()),
            "last_exit_code": s.state.last_exit.and_then(Exit::code),
        });
        if self.pending.at_least {
            object["pending_at_least"] = self.pending.events.into();
        }
        for (name, value) in &self.settings {
            object[name] = value.clone();
        }
        for (name, value) in &self.facts {
            object[name] = value.clone();
        }
        object
    }

    fn to_text(&self) -> String {
        let s = &self.subscription;
        let mut state = self.state.to_owned();
        for (name, value) in &self.facts {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            state.push_str(&format!(" {name}={value}"));
        }
        let handler = if s.has_handler() { &s.handler_cmd } else { "(none)" };
        let last_run = s.state.ended.zip(s.state.last_exit);
        let filter_errors = || format!("{} last_id={}", s.filter_errors, s.filter_error_id);
        let lines = [
            ("handler:", Some(handler.to_owned())),
            ("filter: ", Some(s.filter_text().unwrap_or("(none)").to_owned())),
            ("last_acked_id:", Some(s.last_acked_id.to_string())),
            ("updated_at:", Some(s.updated_at.as_deref().unwrap_or("(never)").to_owned())),
            ("state:", Some(state)),
            ("pending:", Some(self.pending_text())),
            ("oldest_pending:", self.oldest.as_ref().and_then(|(_, stored_at)| stored_at.clone())),
            ("last_run:", last_run.map(|(ended, exit)| format!("{} {exit}", time::format(ended)))),
            ("dead:", (s.dead > 0).then(|| s.dead.to_string())),
            ("filter_errors:", (s.filter_errors > 0).then(filter_errors)),
        ];
        let mut text = format!("  - {}\n", plain(s.consumer.as_str()));
        let mut line = |name: &str, value: &str| text.push_str(&format!("    {name} {}\n", plain(value)));
        for (name, value) in lines {
            if let Some(value) = value {
                line(name, &value);
            }
        }
        for note in self.notes() {
            line("note:", &note);
        }
        for (name, value) in self.settings.iter().filter(|_| self.alone) {
            line(&format!("{name}:"), &settings::as_text(name, value));
        }
        text
    }
}

impl Serialize for Consumer {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        self.as_json().serialize(to)
    }
}

/// Total size of the regular files in a directory of the thread, in bytes.
fn size_of_files(files: &Files, dir: &str) -> u64 {
    let names = files.list(dir).unwrap_or_default();
    let stats = names.iter().filter_map(|name| files.stat(Path::new(dir).join(name)).ok());
    let of_files = stats.filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
    of_files.map(|stat| u64::try_from(stat.st_size).unwrap_or(0)).sum()
}
