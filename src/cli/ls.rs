//! `thread ls`: all threads below a place.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{Args, ValueHint};
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Row, Table};
use serde_json::{Value, json};

use super::consumer::one_of;
use super::info::check::CheckArgs;
use super::output::{self, plain};
use super::root::{RootArg, list};
use super::{Globals, environment};
use crate::error::Code;
use crate::failure::{Failure, Result, failed};
use crate::maintenance::report::Report;
use crate::model::location::Location;
use crate::pending::CountLimits;
use crate::queue::Queue;

/// How long counting what is pending may take, in each thread.
const COUNT_FOR: Duration = Duration::from_millis(500);

/// How long to wait for other writers, to remember how far a filter was evaluated.
const BUSY_LIMIT: Duration = Duration::from_millis(50);

/// List threads, and what needs attention in them
///
/// Lists all threads below a directory, however deep, or all in a database, sorted by name: how many events and
/// consumers each has, and which consumers need attention, for the reasons of `thread info --check`. Links, and names in
/// the directory that begin with a dot, are left out. With --json it prints an object for each thread.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread ls
  thread ls ~/agents
  thread ls --json ~/agents | jq -r .thread")]
pub struct Ls {
    /// Below which directory, or in which database [default: this directory]
    #[arg(value_name = "PLACE", value_hint = ValueHint::DirPath,
        value_parser = PathBufValueParser::new().map(Location::from))]
    place: Option<Location>,
    #[command(flatten)]
    root: RootArg,
}

impl Ls {
    /// The place that is named, if one is.
    pub fn place(&self) -> Option<&Location> {
        self.place.as_ref().or(self.root.root.as_ref())
    }

    pub fn run(self, globals: &Globals) -> Result<()> {
        let place = one_of("place", self.place, "--root", self.root.root)?;
        // --thread, too, can name a database.
        let place = place.or_else(|| globals.thread.last().cloned()).unwrap_or_else(|| Location::from("."));
        let threads = list(&place)?;
        let seen: Vec<_> = threads.iter().map(|thread| (thread, Seen::of(thread))).collect();
        if globals.json {
            let lines: String =
                seen.iter().map(|(thread, seen)| format!("{}\n", as_json(thread, seen))).collect();
            output::bytes(lines.as_bytes()).map(drop)?;
        } else if !seen.is_empty() {
            output::bytes(as_table(&seen).as_bytes()).map(drop)?;
        }
        match seen.iter().filter(|(_, seen)| seen.is_err()).count() {
            0 => Ok(()),
            unread => failed(
                Code::Failed,
                format_args!("{unread} of {} threads cannot be read", threads.len()),
                "check them with `thread doctor`",
            ),
        }
    }
}

/// What is listed of a thread.
struct Seen {
    report: Report,
    /// For each consumer, why it needs attention.
    problems: Vec<Vec<(&'static str, String)>>,
}

impl Seen {
    fn of(thread: &Location) -> Result<Seen> {
        let mut queue = Queue::open_waiting(thread, BUSY_LIMIT)?;
        let check = CheckArgs::default();
        let limits = CountLimits { most: check.most_to_count(), until: Some(Instant::now() + COUNT_FOR) };
        let report = Report::of(&mut queue, None, limits, &|_| Box::new(|_| ()))?;
        let problems = report.subscriptions.iter().map(|one| check.problems(&mut queue, one, report.now));
        Ok(Seen { problems: problems.collect::<Result<_>>()?, report })
    }
}

fn as_json(thread: &Location, seen: &Result<Seen>) -> Value {
    let Seen { report, problems } = match seen {
        Ok(seen) => seen,
        Err(Failure { what, code, .. }) => {
            return json!({ "thread": thread.as_os_str().to_string_lossy(), "error": what, "code": code.as_str() });
        }
    };
    let consumers = report.subscriptions.iter().zip(problems).map(|(consumer, problems)| {
        let status = json!(consumer);
        let problems = problems.iter().map(|(word, about)| json!({ "check": word, "problem": about }));
        let mut object = json!({ "problems": problems.collect::<Vec<_>>() });
        for key in ["consumer_id", "state", "pending", "pending_at_least", "dead"] {
            if let Some(value) = status.get(key) {
                object[key] = value.clone();
            }
        }
        object
    });
    json!({
        "thread": report.thread,
        "event_count": report.event_count,
        "last_event_id": report.last_event_id,
        "consumers": consumers.collect::<Vec<_>>(),
        "needs_attention": report.is_scheduled_in_vain() || problems.iter().any(|problems| !problems.is_empty()),
    })
}

fn as_table(all: &[(&Location, Result<Seen>)]) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_truncation_indicator("…");
    table.set_header(one_line(["THREAD", "EVENTS", "CONSUMERS", "NEEDS ATTENTION"].map(str::to_owned)));
    for (thread, seen) in all {
        let name = plain(&thread.to_string()).to_string();
        table.add_row(one_line(match seen {
            Ok(Seen { report, problems }) => {
                let consumers =
                    report.subscriptions.iter().zip(problems).filter(|(_, problems)| !problems.is_empty());
                let attention = consumers.map(|(consumer, problems)| {
                    let words: Vec<&str> = problems.iter().map(|(word, _)| *word).collect();
                    format!("{}: {}", plain(consumer.subscription.consumer.as_str()), words.join(", "))
                });
                let in_vain = report.is_scheduled_in_vain().then(|| "scheduled: unattended".to_owned());
                let attention: Vec<String> = attention.chain(in_vain).collect();
                let consumers = report.subscriptions.len().to_string();
                [name, report.event_count.to_string(), consumers, attention.join("; ")]
            }
            Err(failure) => [name, "?".into(), "?".into(), plain(&failure.what).to_string()],
        }));
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if matches!(index, 1 | 2) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let stdout = environment::stdout();
    let width = terminal_size::terminal_size_of(&stdout).map(|(width, _)| width.0).filter(|width| *width > 0);
    if let Some(width) = width.or(stdout.is_terminal().then_some(80)) {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// A row whose cells are cut with an ellipsis rather than wrapped.
fn one_line(cells: [String; 4]) -> Row {
    let mut row = Row::from(cells);
    row.max_height(1);
    row
}
