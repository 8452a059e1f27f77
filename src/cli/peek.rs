//! `thread peek`: reading without consuming.

use clap::Args;

use super::reading::{ReadingArgs, Write};
use super::{Globals, event_id, limit, output, pretty};
use crate::failure::Result;
use crate::model::filter::{Filter, Scope};
use crate::model::position::when;
use crate::model::time::{self, Time};
use crate::queue::{Queue, Selection};

/// How many events are printed without a starting point.
const TAIL: u64 = 10;

/// The longest GLOB pattern that a filter may have, in bytes.
const MAX_PATTERN: usize = 256;

/// Print events without consuming them
///
/// Prints events, oldest first, one JSON object per line: the last ten, the last N (-n), or those after an
/// event or a time (--last-event-id, --since); --type, --source, --until and --filter narrow them down.
/// Needs no consumer and changes nothing. With --follow or --wait, the default is only new ones.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread peek -t inbox -n 20 --follow
  thread peek -t inbox --since 1h --source 'internal:*' --pretty
  thread peek -t inbox --last-event-id 0 --parse | jq .content.exit")]
pub struct Peek {
    /// The last N events [default: 10, if no other starting point is given]
    #[arg(short = 'n', long, value_name = "N", value_parser = limit, allow_negative_numbers = true)]
    tail: Option<u64>,
    /// The events after this id; 0 for all
    #[arg(long, value_name = "ID", value_parser = event_id, allow_negative_numbers = true)]
    last_event_id: Option<i64>,
    /// The events since then: 90s, 1h or 2d ago, or a time like 2026-03-18T10:30:00Z or 2026-03-18 (UTC)
    #[arg(long, value_name = "WHEN", value_parser = when)]
    since: Option<Time>,
    /// Only events before then
    #[arg(long, value_name = "WHEN", value_parser = when, conflicts_with = "follow")]
    until: Option<Time>,
    /// Only events of this type: message or record
    #[arg(long = "type", value_name = "TYPE", value_parser = ["message", "record"], hide_possible_values = true)]
    kind: Option<String>,
    /// Only from sources that match this shell pattern: internal:*
    #[arg(long, value_name = "GLOB", value_parser = pattern, allow_hyphen_values = true)]
    source: Option<String>,
    /// An SQL condition over id, created_at, source, type, subtype, content and metadata
    #[arg(long, value_name = "SQL", allow_hyphen_values = true)]
    filter: Option<String>,
    #[command(flatten)]
    reading: ReadingArgs,
    /// Print JSON content as JSON rather than as a string, for jq '.content.x'
    #[arg(long, conflicts_with = "pretty")]
    parse: bool,
    /// Print in a human-readable form
    #[arg(long)]
    pretty: bool,
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

fn pattern(text: &str) -> std::result::Result<String, String> {
    match text.len() {
        ..=MAX_PATTERN => Ok(text.to_owned()),
        _ => Err(format!("a pattern has at most {MAX_PATTERN} bytes")),
    }
}

impl Peek {
    pub fn run(self, globals: &Globals) -> Result<()> {
        let mut queue = globals.open()?;
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
        let write: Write = match (self.parse, self.pretty) {
            (_, true) => pretty::write,
            (true, _) => |row, page| row.write_parsed_line(page),
            _ => |row, page| row.write_line(page),
        };
        let cut_noted = self.reading.limit.is_none() && tail.is_none();
        self.reading.print(&mut queue, Selection { after, limit, filter }, write, cut_noted)
    }

    /// The id after which to start, according to --since and --last-event-id; `None` without either.
    fn start(&self, queue: &mut Queue) -> Result<Option<i64>> {
        let Some(since) = self.since else { return Ok(self.last_event_id) };
        Ok(Some(queue.last_before(since)?.max(self.last_event_id.unwrap_or(0))))
    }

    /// The filter of --filter and of the options that narrow the events down.
    fn combined_filter(&self) -> Result<Option<Filter>> {
        let text = self.filter.as_deref().unwrap_or_default();
        // Checked on its own, so that errors quote the text as the user wrote it.
        let given = Filter::new(text, Scope::Reading)?;
        if compares_two_forms_of_time(text) {
            output::warn(
                "created_at is written 2026-03-18T10:30:00.123Z and datetime() writes 2026-03-18 10:30:00, so \
                 comparing them gives wrong results; give --since or --until, or compare datetime(created_at)",
            );
        }
        let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
        let conditions = [
            self.since.map(|time| format!("created_at >= '{}'", time::format(time))),
            self.until.map(|time| format!("created_at < '{}'", time::format(time))),
            self.kind.as_deref().map(|kind| format!("type = '{kind}'")),
            self.source.as_deref().map(|pattern| format!("source GLOB {}", quoted(pattern))),
        ];
        let mut conditions: Vec<String> = conditions.into_iter().flatten().collect();
        if conditions.is_empty() {
            return Ok(given);
        }
        conditions.extend(given.map(|filter| format!("(\n{}\n)", filter.text())));
        Ok(Filter::new(&conditions.join(" AND "), Scope::Reading)?)
    }
}
