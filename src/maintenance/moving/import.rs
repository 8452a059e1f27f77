//! Storing the rows of an export. It is read twice: all of it is checked before anything is stored.

use std::io::{BufRead, Read, Seek, SeekFrom};
use std::path::Path;

use super::Take;
use super::goal::Goal;
use crate::error::{Error, IoContext, Result};
use crate::files::log::log;
use crate::model::rows::line::{self, Line, MAX_LINE};
use crate::model::rows::{Order, Table, Tallies, Values, size};
use crate::model::subscription::ConsumerId;
use crate::queue::Queue;
use crate::store::Refusal;

/// Rows are stored in pieces of about this many bytes.
const PIECE_BYTES: usize = 4 * 1024 * 1024;

/// So many rows that cannot be stored are named.
pub(super) const EXAMPLES: usize = 10;

/// What was imported.
#[derive(Debug)]
pub struct Imported {
    pub rows: Tallies,
    /// The consumers, which are paused now and were not before.
    pub paused: Vec<ConsumerId>,
    /// As in [`Pushed`](crate::queue::Pushed).
    pub log_behind: Option<Error>,
}

/// Imports an export into an empty thread, or continues an import of the same one. `progress` is called with the number
/// of bytes that were read since its last call; it is read twice.
///
/// # Errors
///
/// [`Error::InvalidExport`], [`Error::Unstorable`], [`Error::NotEmpty`], [`Error::ImportUnfinished`]; nothing was stored.
/// Other errors may come when a part is stored; the same import then continues.
pub fn import(
    queue: &mut Queue,
    input: &mut (impl BufRead + Seek),
    progress: &mut dyn FnMut(u64),
) -> Result<Imported> {
    let path = Path::new("the export");
    let begin = input.stream_position().at("read", path)?;
    let (id, rows) = check(input, queue.store.refusal(), progress)?;
    input.seek(SeekFrom::Start(begin)).at("read", path)?;
    let (mut goal, mut paused) = (Goal::begin(queue, &id)?, Vec::new());
    let mut lines = Lines::new(input, progress);
    let (mut piece, mut bytes, mut next) = (Vec::new(), 0, None);
    while let Some(line) = lines.next()? {
        match line {
            Line::Row(table, row) if *table == *Table::events() => {
                if row[0].number() > goal.last {
                    bytes += size(&row);
                    piece.push(row);
                }
                if bytes >= PIECE_BYTES || piece.len() >= super::PIECE_ROWS {
                    goal.put_events(&std::mem::take(&mut piece))?;
                    bytes = 0;
                }
            }
            Line::Header { .. } => {}
            rest => {
                next = Some(rest);
                break;
            }
        }
    }
    goal.put_events(&piece)?;
    let of = |kind: &str| Table::of(kind).map_or(0, |table| rows.of(table).count);
    goal.put_rest(of("step") + of("wait") > 0, &mut |put| {
        put_rest(&mut lines, next.take(), &mut paused, put)
    })?;
    goal.compare(&rows)?;
    let log_behind = goal.open()?;
    log!(queue, Info, "import: events={}", rows.of(Table::events()).count);
    Ok(Imported { rows, paused, log_behind })
}

/// Passes on everything from `next` on.
fn put_rest(
    lines: &mut Lines<'_, impl BufRead>,
    mut next: Option<Line>,
    paused: &mut Vec<ConsumerId>,
    put: &mut Take<'_>,
) -> Result<()> {
    let (mut of, mut piece, mut bytes): (_, Vec<Values>, _) = (Table::events(), Vec::new(), 0);
    while let Some(Line::Row(table, row)) = next {
        if bytes >= PIECE_BYTES || *table != *of || piece.len() >= super::PIECE_ROWS {
            put(of, std::mem::take(&mut piece))?;
            (of, bytes) = (table, 0);
        }
        paused.extend(to_pause(table, &row));
        bytes += size(&row);
        piece.push(row);
        next = lines.next()?;
    }
    put(of, piece)
}

/// The consumer of a row, if it is one that is not paused.
pub(super) fn to_pause(table: &Table, row: &Values) -> Option<ConsumerId> {
    let is_one = table.kind == "consumer" && !is_paused(&row[5].text());
    is_one.then(|| ConsumerId::stored(row[0].text()))
}

fn is_paused(run: &str) -> bool {
    serde_json::from_str(run).is_ok_and(|run: crate::model::run::RunState| run.paused)
}

/// Checks an export from its header to its end. Returns what distinguishes it, and how many rows it has.
fn check(
    input: &mut impl BufRead,
    refusal: Option<Refusal>,
    progress: &mut dyn FnMut(u64),
) -> Result<(String, Tallies)> {
    let mut lines = Lines::new(input, progress);
    let Some(Line::Header { id }) = lines.next()? else {
        return Err(lines.wrong("is not the header of an export"));
    };
    let (mut order, mut rows) = (Order::default(), Tallies::default());
    let (mut count, mut examples) = (0, Vec::new());
    let end = loop {
        match lines.next()? {
            Some(Line::Row(table, row)) => {
                order.check(table, &row).map_err(|problem| lines.wrong(problem))?;
                rows.add(table, &row);
                if let Some(why) = refusal.and_then(|refusal| refusal(table, &row)) {
                    count += 1;
                    if examples.len() < EXAMPLES {
                        examples.push(format!("line {}, {}, {why}", lines.number, table.name_of(&row)));
                    }
                }
            }
            Some(Line::Header { .. }) => return Err(lines.wrong("is a second header")),
            Some(Line::End(end)) => break end,
            None => return Err(lines.wrong("is missing: the export was cut off")),
        }
    };
    order.end().map_err(|problem| lines.wrong(problem))?;
    for (table, found) in rows.iter() {
        let said = end.of(table);
        if said.count != found.count {
            let (said, found) = (said.count, found.count);
            return Err(lines.wrong(format!(
                "says that there are {said} rows of the kind {}, and there are {found}",
                table.kind
            )));
        }
        if said != found {
            return Err(lines.wrong(format!(
                "has another digest for the rows of the kind {}: one was changed",
                table.kind
            )));
        }
    }
    if lines.next()?.is_some() {
        return Err(lines.wrong("comes after the end"));
    }
    match count {
        0 => Ok((id, rows)),
        count => Err(Error::Unstorable { count, examples }),
    }
}

/// The lines of an export.
struct Lines<'i, I> {
    input: &'i mut I,
    progress: &'i mut dyn FnMut(u64),
    number: u64,
    line: Vec<u8>,
    unreported: u64,
}

/// After so many bytes, the progress is reported.
const REPORT: u64 = 1024 * 1024;

impl<'i, I: BufRead> Lines<'i, I> {
    fn new(input: &'i mut I, progress: &'i mut dyn FnMut(u64)) -> Lines<'i, I> {
        Lines { input, progress, number: 0, line: Vec::new(), unreported: 0 }
    }

    /// An error in the line that was read last, or the one that is missing.
    fn wrong(&self, problem: impl Into<String>) -> Error {
        Error::InvalidExport { line: self.number, problem: problem.into() }
    }

    fn next(&mut self) -> Result<Option<Line>> {
        self.number += 1;
        self.line.clear();
        // A long line is given back.
        self.line.shrink_to(PIECE_BYTES);
        let most = MAX_LINE as u64 + 2;
        let read = self.input.take(most).read_until(b'\n', &mut self.line);
        let read = read.at("read", Path::new("the export"))?;
        self.unreported += read as u64;
        if self.unreported >= REPORT {
            (self.progress)(std::mem::take(&mut self.unreported));
        }
        match self.line.strip_suffix(b"\n") {
            _ if read == 0 => Ok(None),
            None if self.line.len() > MAX_LINE => Err(self.wrong(format!("is longer than {MAX_LINE} bytes"))),
            None => Err(self.wrong("ends in the middle: the export was cut off")),
            Some(line) => line::parse(line).map(Some).map_err(|problem| self.wrong(problem)),
        }
    }
}
