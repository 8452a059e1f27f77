//! `thread info`: who is behind, and how the thread stands, in several forms.

use std::io::{self, IsTerminal};
use std::time::Duration;

use anstream::ColorChoice;
use chrono::{SubsecRound, Utc};
use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};

use crate::cmd::ThreadArg;
use crate::dispatch;
use crate::error::Result;
use crate::journal;
use crate::output::{self, plain};
use crate::process::{self, Identity};
use crate::rule::{Exit, Phase, Time, format_time, parse_time};
use crate::store::{Counting, Extent};
use crate::subscription::Subscription;
use crate::thread::Thread;

mod prometheus;
mod table;

/// Show what a thread holds and how far its consumers are
///
/// For each consumer: its state (idle, running, waiting, stalled or paused), how many matching
/// events are pending past its cursor and how long the oldest has been, when its last run ended and
/// how, and its dead letters. A terminal gets a table, anything else the lines of --format text.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread info --thread inbox
  thread info --thread inbox --json | jq '.subscriptions[].pending'
  thread info --thread inbox --format prometheus >inbox.prom")]
pub struct Info {
    #[command(flatten)]
    thread: ThreadArg,
    /// How to print it [default: table on a terminal, text elsewhere]
    #[arg(long, value_name = "FORMAT", value_enum)]
    format: Option<Format>,
    /// Print JSON, as --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Whether to colour the table
    ///
    /// auto: on a terminal, unless NO_COLOR, CLICOLOR=0 or TERM=dumb say no, or where
    /// CLICOLOR_FORCE says yes.
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = When::Auto)]
    color: When,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A few lines for each consumer, for scripts too
    Text,
    /// One line for each consumer, cut to the width of the terminal
    Table,
    /// One object
    Json,
    /// Metrics, such as node_exporter collects from text files
    Prometheus,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum When {
    Auto,
    Always,
    Never,
}

/// All that is shown, in whatever form.
#[derive(Debug)]
struct Report {
    /// The thread's path.
    thread: String,
    events: Extent,
    /// Of `events.db` alone, of its WAL, and of the JSONL copy with its older parts.
    database_bytes: u64,
    wal_bytes: u64,
    copy_bytes: u64,
    consumers: Vec<Consumer>,
    now: Time,
}

#[derive(Debug)]
struct Consumer {
    subscription: Subscription,
    situation: Situation,
}

/// What is shown of a consumer's runs: one word, and what goes with it.
#[derive(Debug, Default)]
struct Situation {
    state: &'static str,
    /// Named facts, in the order they are shown.
    facts: Vec<(&'static str, Value)>,
    pending: u64,
    /// The oldest pending event, and when it was stored.
    oldest: Option<(i64, Option<String>)>,
}

impl Info {
    pub fn run(self) -> Result<()> {
        match self.color {
            When::Auto => {}
            When::Always => ColorChoice::Always.write_global(),
            When::Never => ColorChoice::Never.write_global(),
        }
        let report = Report::of(&mut self.thread.open()?)?;
        let stdout = io::stdout();
        let usual = if stdout.is_terminal() { Format::Table } else { Format::Text };
        let text = match self.format.unwrap_or(if self.json { Format::Json } else { usual }) {
            Format::Json => return output::json(&report.to_json()),
            Format::Text => report.to_text(),
            Format::Prometheus => prometheus::render(&report),
            Format::Table => {
                // Whoever reads a pipe or a file cuts for themselves.
                let width = terminal_size::terminal_size_of(&stdout).map(|(width, _)| usize::from(width.0));
                let width = width.filter(|&width| width > 0).or(stdout.is_terminal().then_some(80));
                table::render(&report, width, output::coloured(&stdout))
            }
        };
        output::bytes(text.as_bytes()).map(drop)
    }
}

impl Report {
    fn of(thread: &mut Thread) -> Result<Report> {
        let size = |path| std::fs::metadata(path).map_or(0, |file| file.len());
        let subscriptions = thread.store.subscriptions()?;
        let mut counting = Counting::begin(&thread.store, subscriptions.len());
        let mut consumers = Vec::new();
        for subscription in subscriptions {
            let situation = situation(thread, &subscription, &mut counting)?;
            consumers.push(Consumer { subscription, situation });
        }
        Ok(Report {
            thread: thread.dir().to_string_lossy().into_owned(),
            events: counting.extent(&thread.store)?,
            database_bytes: size(thread.files.db()),
            wal_bytes: size(thread.files.wal()),
            copy_bytes: journal::copy_bytes(thread.dir()),
            consumers,
            now: Utc::now().trunc_subsecs(3),
        })
    }

    fn to_json(&self) -> Value {
        json!({
            "event_count": self.events.count,
            "subscriptions": self.consumers.iter().map(Consumer::to_json).collect::<Vec<_>>(),
            "thread": self.thread,
            "last_event_id": self.events.newest_ever,
            "database_bytes": self.database_bytes,
            "wal_bytes": self.wal_bytes,
            "copy_bytes": self.copy_bytes,
        })
    }

    /// The lines every text form begins with. Programs rely on them.
    fn headline(&self) -> String {
        format!(
            "Thread: {}\nEvents: {}\nSubscriptions: {}\n",
            plain(&self.thread),
            self.events.count,
            self.consumers.len()
        )
    }

    fn to_text(&self) -> String {
        let mut text = self.headline();
        for consumer in &self.consumers {
            consumer.write_text(&mut text);
        }
        text
    }
}

impl Consumer {
    /// How long the oldest pending event has been stored; never less than nothing, whatever the
    /// clocks did.
    fn oldest_age(&self, now: Time) -> Option<Duration> {
        let (_, stored_at) = self.situation.oldest.as_ref()?;
        let stored_at = parse_time(stored_at.as_deref()?)?;
        Some((now - stored_at).to_std().unwrap_or_default())
    }

    /// How the last run ended, where that is known in this program's words.
    fn last_exit(&self) -> Option<Exit> {
        self.subscription.state.last_exit.as_deref().and_then(Exit::parse)
    }

    fn to_json(&self) -> Value {
        let (s, situation) = (&self.subscription, &self.situation);
        let mut object = Map::new();
        let base = [
            ("consumer_id", json!(s.consumer.as_str())),
            ("handler_cmd", json!(s.handler_cmd)),
            ("filter", json!(s.filter)),
            ("last_acked_id", json!(s.last_acked_id)),
            ("updated_at", json!(s.updated_at)),
            ("deliver", json!(s.policy.deliver.as_str())),
            ("state", json!(situation.state)),
        ];
        let (oldest_id, oldest_at) = situation.oldest.clone().unzip();
        let counts = [
            ("pending", json!(situation.pending)),
            ("oldest_pending_id", json!(oldest_id)),
            ("oldest_pending_at", json!(oldest_at.flatten())),
            ("dead", json!(s.dead)),
            ("filter_errors", json!(s.filter_errors)),
            ("last_run_started_at", json!(s.state.began.map(format_time))),
            ("last_run_ended_at", json!(s.state.ended.map(format_time))),
            ("last_exit", json!(s.state.last_exit)),
            ("last_exit_code", json!(self.last_exit().and_then(Exit::code))),
        ];
        for (name, value) in base.into_iter().chain(situation.facts.clone()).chain(counts) {
            object.insert(name.to_owned(), value);
        }
        Value::Object(object)
    }

    fn write_text(&self, text: &mut String) {
        let (s, situation) = (&self.subscription, &self.situation);
        text.push_str(&format!("  - {}\n", plain(s.consumer.as_str())));
        let mut line = |name: &str, value: &str| text.push_str(&format!("    {name} {}\n", plain(value)));
        let mut state = situation.state.to_owned();
        for (name, value) in &situation.facts {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            state.push_str(&format!(" {name}={value}"));
        }
        line("handler:", &s.handler_cmd);
        line("filter: ", s.filter_text().unwrap_or("(none)"));
        line("last_acked_id:", &s.last_acked_id.to_string());
        line("updated_at:", s.updated_at.as_deref().unwrap_or("(never)"));
        line("state:", &state);
        line("pending:", &situation.pending.to_string());
        if let Some((_, Some(stored_at))) = &situation.oldest {
            line("oldest_pending:", stored_at);
        }
        if let (Some(ended), Some(how)) = (s.state.ended, &s.state.last_exit) {
            line("last_run:", &format!("{} {how}", format_time(ended)));
        }
        if s.dead > 0 {
            line("dead:", &s.dead.to_string());
        }
        if s.filter_errors > 0 {
            line("filter_errors:", &s.filter_errors.to_string());
        }
    }
}

fn situation(thread: &mut Thread, subscription: &Subscription, events: &mut Counting) -> Result<Situation> {
    let state = &subscription.state;
    let time = |time: Option<_>| time.map(format_time).map_or(Value::Null, Value::from);
    let alive = |process: &Option<Identity>| process.as_ref().is_some_and(Identity::is_alive);
    let broken = match dispatch::checked_filter(thread, subscription) {
        Err(failure) => Some(failure.what),
        Ok(_) => dispatch::defect(subscription).map(|failure| failure.what),
    };
    let (mut pending, mut oldest) = (0, None);
    if broken.is_none() {
        // Looking first remembers the ground that holds nothing, so that counting need not cross it.
        let look = dispatch::look(thread, subscription)?;
        pending = thread.store.count_pending(subscription, &look, events)?;
        if let Some(id) = look.first_pending {
            oldest = Some((id, thread.store.created_at(id)?));
        }
    }
    let interrupted = ("reason", json!("interrupted"));
    let waiting = |next_try: Value| vec![("attempt", json!(state.attempts)), ("next_try", next_try)];
    // The run's first process, or its supervisor; where both are gone or were never recorded, the
    // run lasts as long as somebody of it holds the lock.
    let at_work = || {
        let recorded = [&state.handler, &state.supervisor].into_iter().find(|process| alive(process));
        let lock = thread.files.consumer_lock(&subscription.consumer);
        recorded.cloned().flatten().or_else(|| process::holders_of(&lock).next()).map(|process| process.pid)
    };
    let running = if state.phase == Phase::Running { at_work() } else { None };
    let (word, mut facts) = match state.phase {
        Phase::Running if running.is_some() => (
            "running",
            vec![("pid", json!(running)), ("since", time(state.since)), ("attempt", json!(state.attempts))],
        ),
        _ if state.paused => ("paused", Vec::new()),
        _ if broken.is_some() => ("stalled", vec![("reason", json!(broken))]),
        Phase::Stalled => {
            ("stalled", vec![("reason", json!(state.reason)), ("attempt", json!(state.attempts))])
        }
        Phase::Waiting => {
            let mut facts = waiting(time(state.next_try));
            // None is recorded between a run and the wait after it.
            if state.supervisor.is_some() && !alive(&state.supervisor) {
                facts.push(interrupted);
            }
            ("waiting", facts)
        }
        // Its supervisor was killed: the next dispatch goes on from there.
        Phase::Running if pending > 0 => {
            let due = state.since.map(|since| since + subscription.policy.wait_after(state.attempts));
            let mut facts = waiting(time(due));
            facts.push(interrupted);
            ("waiting", facts)
        }
        Phase::Running | Phase::Idle => ("idle", Vec::new()),
    };
    facts.retain(|(_, value)| !value.is_null());
    Ok(Situation { state: word, facts, pending, oldest })
}
