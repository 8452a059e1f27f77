//! `thread peek`: reading without consuming.

use std::ops::ControlFlow;

use std::io::IsTerminal;

use clap::{Args, ValueEnum};

use super::narrow::NarrowArgs;
use super::reading::ReadingArgs;
use super::{Globals, environment, event_id, limit, output, pretty};
use crate::error::Code;
use crate::failure::{Result, failed, usage};
use crate::model::event::Row;
use crate::model::filter::{Filter, Scope};
use crate::model::position::{Position, when};
use crate::model::time::{self, Time};
use crate::queue::{Queue, Selection};

/// How many events are printed without a starting point.
const TAIL: u64 = 10;

/// Print events without consuming them
///
/// Prints events, oldest first, one JSON object per line: the last ten, the last N (-n), or those after an
/// event or a time (--last-event-id, --since); --type, --subtype, --source, --meta, --until and --filter narrow them
/// down. With
/// an ID it prints that event.
/// Needs no consumer and changes nothing. With --follow or --wait, the default is only new ones.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread peek -t inbox -n 20 --follow
  thread peek -t inbox --since 1h --source 'internal:*' --pretty
  thread peek -t inbox 4 --format content
  thread peek -t inbox --since beginning --parse | jq .content.exit")]
pub struct Peek {
    /// This event alone
    #[arg(value_name = "ID", value_parser = event_id, allow_negative_numbers = true, conflicts_with_all =
          ["tail", "last_event_id", "since", "until", "kind", "subtype", "source", "meta", "filter", "limit", "wait", "follow"])]
    id: Option<i64>,
    /// The last N events [default: 10, if no other starting point is given]
    #[arg(short = 'n', long, value_name = "N", value_parser = limit, allow_negative_numbers = true)]
    tail: Option<u64>,
    /// The events after this id; 0 for all
    #[arg(long, value_name = "ID", value_parser = event_id, allow_negative_numbers = true)]
    last_event_id: Option<i64>,
    /// The events since then: 90s, 1h or 2d ago, a time like 2026-03-18T10:30:00Z or 2026-03-18 (UTC), or
    /// another position as for `thread seek`
    #[arg(long, value_name = "WHEN", value_parser = Position::parse, allow_negative_numbers = true)]
    since: Option<Position>,
    /// Only events before then
    #[arg(long, value_name = "WHEN", value_parser = when, conflicts_with = "follow")]
    until: Option<Time>,
    #[command(flatten)]
    narrow: NarrowArgs,
    #[command(flatten)]
    pub reading: ReadingArgs,
    /// How to print each event: json, content (only that), parsed or pretty [default: json]
    #[arg(long, value_name = "FORMAT", value_enum, hide_possible_values = true)]
    format: Option<Format>,
    /// Print JSON content as JSON rather than as a string, for jq '.content.x': --format parsed
    #[arg(long, conflicts_with_all = ["pretty", "format"])]
    parse: bool,
    /// Print in a human-readable form: --format pretty
    #[arg(long, conflicts_with = "format")]
    pub pretty: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// One JSON object per line
    Json,
    /// The same, with JSON content as JSON
    Parsed,
    /// Only the content, and a newline unless it ends with one
    Content,
    /// For people
    Pretty,
}

/// Whether a filter compares `created_at` and also uses a function that returns times in another format. A
/// heuristic: the two need not be compared with each other.
fn compares_two_forms_of_time(filter: &str) -> bool {
    let filter = filter.to_ascii_lowercase();
    let is_compared = |(at, name): (usize, &str)| {
        let (before, after) = (filter[..at].trim_end(), filter[at + name.len()..].trim_start());
        before.ends_with(['<', '>', '='])
            || after.starts_with(['<', '>', '=', '!'])
            || after.starts_with("between")
    };
    ["datetime(", "current_timestamp"].iter().any(|other| filter.contains(other))
        && filter.match_indices("created_at").any(is_compared)
}

fn write_content(row: &Row<'_>, page: &mut Vec<u8>) {
    page.extend_from_slice(row.content);
    if !row.content.ends_with(b"\n") {
        page.push(b'\n');
    }
}

impl Peek {
    pub fn run(self, globals: &Globals) -> Result<()> {
        let write = self.writer(globals)?;
        let mut queue = globals.open()?;
        if let Some(id) = self.id {
            let Some(event) = queue.event(id)? else {
                let newest = queue.newest()?.0;
                return failed(
                    Code::UnknownEvent,
                    format_args!("there is no event {id}; the newest is {newest}"),
                    "see `thread peek` for those that there are",
                );
            };
            let mut printed = Vec::new();
            write(&event.row(), &mut printed);
            return output::bytes(&printed).map(drop);
        }
        let filter = self.combined_filter()?;
        let has_start = self.last_event_id.is_some() || self.since.is_some();
        let waits = self.reading.follow || self.reading.wait.is_some();
        // Without a starting point, --limit is the number of last events.
        let tail = self.tail.or_else(|| (!has_start && !waits).then(|| self.reading.limit.unwrap_or(TAIL)));
        let after = match (self.start(&mut queue)?, tail) {
            (after, Some(count)) => queue.start_of_tail(filter.as_ref(), after.unwrap_or(0), count)?,
            (Some(after), None) => after,
            (None, None) => queue.store.newest()?,
        };
        // The default limit does not apply to --tail and --since.
        let limit = match tail {
            _ if self.since.is_some() => self.reading.limit,
            Some(_) if !self.reading.follow => self.reading.limit.or(tail),
            _ => self.reading.limit_or_default(),
        };
        let cut_noted = self.reading.limit.is_none() && tail.is_none();
        self.reading.print(
            &mut queue,
            Selection { after, limit, filter },
            &mut |row, page| {
                write(row, page);
                ControlFlow::Continue(())
            },
            cut_noted,
        )
    }

    fn writer(&self, globals: &Globals) -> Result<fn(&Row<'_>, &mut Vec<u8>)> {
        Ok(match self.format {
            Some(Format::Content | Format::Pretty) if globals.json => {
                return usage("--json and --format cannot be used together", "give only one of them");
            }
            Some(Format::Content) if environment::stdout().is_terminal() => |row, page| {
                let mut content = Vec::new();
                write_content(row, &mut content);
                page.extend_from_slice(&output::sanitized(&content));
            },
            Some(Format::Content) => write_content,
            Some(Format::Pretty) => pretty::write,
            Some(Format::Parsed) => |row, page| row.write_parsed_line(page),
            None if self.pretty => pretty::write,
            None if self.parse => |row, page| row.write_parsed_line(page),
            Some(Format::Json) | None => |row, page| row.write_line(page),
        })
    }

    /// The id after which to start, according to --since and --last-event-id; `None` without either.
    fn start(&self, queue: &mut Queue) -> Result<Option<i64>> {
        let Some(since) = self.since else { return Ok(self.last_event_id) };
        Ok(Some(queue.id_at(since)?.max(self.last_event_id.unwrap_or(0))))
    }

    /// The filter of the options that narrow the events down.
    fn combined_filter(&self) -> Result<Option<Filter>> {
        if self.narrow.filter.as_deref().is_some_and(compares_two_forms_of_time) {
            output::warn(
                "created_at is written 2026-03-18T10:30:00.123Z and datetime() writes 2026-03-18 10:30:00, so \
                 comparing them gives wrong results; give --since or --until, or compare datetime(created_at)",
            );
        }
        let since = match self.since {
            Some(Position::Time(time)) => Some(time),
            _ => None,
        };
        let conditions = [
            since.map(|time| format!("created_at >= '{}'", time::format(time))),
            self.until.map(|time| format!("created_at < '{}'", time::format(time))),
        ];
        self.narrow.combined(conditions.into_iter().flatten().collect(), Scope::Reading)
    }
}
