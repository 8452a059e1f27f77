//! `thread info` for people: one line for each consumer, as wide as the terminal at most.
//!
//! What others wrote is escaped and measured as a terminal shows it, so that wide characters keep
//! the columns straight.

use std::time::Duration;

use anstyle::{AnsiColor, Style};
use unicode_width::UnicodeWidthStr;

use super::{Consumer, Report};
use crate::duration;
use crate::output::{plain, styled};
use crate::rule::{Exit, Time, parse_time};

const PLAIN: Style = Style::new();
const BOLD: Style = Style::new().bold();
const GREEN: Style = AnsiColor::Green.on_default();
const YELLOW: Style = AnsiColor::Yellow.on_default();
const RED: Style = AnsiColor::Red.on_default();
const CYAN: Style = AnsiColor::Cyan.on_default();

/// What stands where there is nothing to say.
const NOTHING: &str = "-";

/// Between two columns.
const GAP: &str = "  ";

/// A column that gives way is not made narrower than this; a name stays recognisable.
const LEAST: usize = 8;
const LEAST_NAME: usize = 12;

struct Column {
    title: &'static str,
    /// Numbers stand at the right.
    right: bool,
    cells: Vec<Cell>,
    width: usize,
}

struct Cell {
    text: String,
    style: Style,
}

/// The table, with the thread's own figures above it and below it why consumers stand still.
/// Nothing is cut when there is no `limit` to the width.
pub fn render(report: &Report, limit: Option<usize>, coloured: bool) -> String {
    let mut text = report.headline();
    text.push_str(&format!(
        "Last event: {}\nDatabase: {}, copy {}\n",
        report.events.newest_ever,
        size(report.database_bytes + report.wal_bytes),
        size(report.copy_bytes)
    ));
    if report.consumers.is_empty() {
        return text;
    }
    let columns = fit(columns(report), limit);
    text.push('\n');
    let titles = columns.iter().map(|column| (column, column.title, BOLD));
    write_line(&mut text, titles, coloured);
    for row in 0..report.consumers.len() {
        let cells = columns.iter().map(|column| {
            let cell = &column.cells[row];
            (column, cell.text.as_str(), cell.style)
        });
        write_line(&mut text, cells, coloured);
    }
    let mut notes = report.consumers.iter().filter_map(|consumer| note(consumer, report.now)).peekable();
    if notes.peek().is_some() {
        text.push('\n');
    }
    for note in notes {
        text.push_str(&format!("{}\n", plain(&note)));
    }
    text
}

fn columns(report: &Report) -> Vec<Column> {
    let column = |title: &'static str, right: bool, cell: &dyn Fn(&Consumer) -> (String, Style)| {
        let cells: Vec<Cell> = report
            .consumers
            .iter()
            .map(cell)
            .map(|(text, style)| Cell { text: plain(&text).to_string(), style })
            .collect();
        let width = cells.iter().map(|cell| cell.text.width()).max().unwrap_or(0).max(title.width());
        Column { title, right, cells, width }
    };
    let number = |n: i64, style| if n == 0 { ("0".to_owned(), PLAIN) } else { (n.to_string(), style) };
    let rough = |span: Option<Duration>| (span.map_or(NOTHING.to_owned(), duration::rough), PLAIN);
    vec![
        column("CONSUMER", false, &|c| (c.subscription.consumer.as_str().to_owned(), PLAIN)),
        column("STATE", false, &|c| (c.situation.state.to_owned(), colour_of(c.situation.state))),
        column("PENDING", true, &|c| (c.situation.pending.to_string(), PLAIN)),
        column("OLDEST", true, &|c| rough(c.oldest_age(report.now))),
        column("LAST RUN", true, &|c| {
            rough(c.subscription.state.ended.map(|ended| (report.now - ended).to_std().unwrap_or_default()))
        }),
        column("RESULT", false, &result),
        column("TRIES", true, &|c| number(c.subscription.state.attempts.into(), YELLOW)),
        column("DEAD", true, &|c| number(c.subscription.dead, RED)),
        column("HANDLER", false, &|c| (c.subscription.handler_cmd.clone(), PLAIN)),
        column("FILTER", false, &|c| {
            (c.subscription.filter_text().unwrap_or(NOTHING).trim().to_owned(), PLAIN)
        }),
    ]
}

fn colour_of(state: &str) -> Style {
    match state {
        "running" => GREEN,
        "waiting" => YELLOW,
        "stalled" => RED,
        "paused" => CYAN,
        _ => PLAIN,
    }
}

fn result(consumer: &Consumer) -> (String, Style) {
    let Some(written) = &consumer.subscription.state.last_exit else { return (NOTHING.to_owned(), PLAIN) };
    match consumer.last_exit() {
        Some(Exit::Code(0)) => ("ok".to_owned(), PLAIN),
        Some(Exit::Code(code)) => (format!("exit {code}"), RED),
        Some(Exit::Signal(signal)) => (format!("signal {signal}"), RED),
        Some(Exit::TimedOut) => ("timed out".to_owned(), RED),
        Some(Exit::Unknown) => ("unknown".to_owned(), YELLOW),
        None => (written.clone(), PLAIN),
    }
}

/// Why a consumer stands still, and what its filter could not judge.
fn note(consumer: &Consumer, now: Time) -> Option<String> {
    let fact = |name: &str| consumer.situation.facts.iter().find(|(n, _)| *n == name)?.1.as_str();
    let mut parts = Vec::new();
    if let Some(reason) = fact("reason") {
        parts.push(reason.to_owned());
    }
    if let Some(at) = fact("next_try").and_then(parse_time) {
        let next =
            (at - now).to_std().map_or("due".to_owned(), |left| format!("in {}", duration::rough(left)));
        parts.push(format!("next try {next}"));
    }
    match consumer.subscription.filter_errors {
        ..=0 => {}
        1 => parts.push("its filter erred on 1 event".to_owned()),
        n => parts.push(format!("its filter erred on {n} events")),
    }
    let name = consumer.subscription.consumer.as_str();
    (!parts.is_empty()).then(|| format!("{name}: {}", parts.join(", ")))
}

/// Makes the columns fit. The filter and the handler, which stand last, share what room the others
/// leave, and go when that is too little; then names are cut.
fn fit(mut columns: Vec<Column>, limit: Option<usize>) -> Vec<Column> {
    let Some(limit) = limit else { return columns };
    let total = |columns: &[Column]| columns.iter().map(|c| c.width + GAP.len()).sum::<usize>() - GAP.len();
    let mut yielding = columns.split_off(columns.len() - 2);
    while !yielding.is_empty() {
        let gaps = yielding.len() * GAP.len();
        let room = limit.saturating_sub(total(&columns) + gaps);
        if room >= yielding.len() * LEAST {
            share(&mut yielding, room);
            columns.append(&mut yielding);
            return columns;
        }
        yielding.pop();
    }
    let over = total(&columns).saturating_sub(limit);
    let name = &mut columns[0].width;
    *name = (*name).min(name.saturating_sub(over).max(LEAST_NAME));
    columns
}

/// Gives each column an equal part of the room; what one does not need is the next one's.
fn share(columns: &mut [Column], mut room: usize) {
    let mut by_width: Vec<&mut Column> = columns.iter_mut().collect();
    by_width.sort_by_key(|column| column.width);
    let mut left = by_width.len();
    for column in by_width {
        column.width = column.width.min(room / left);
        room -= column.width;
        left -= 1;
    }
}

fn write_line<'a>(
    text: &mut String,
    cells: impl Iterator<Item = (&'a Column, &'a str, Style)>,
    coloured: bool,
) {
    let mut line = String::new();
    // Blanks wait until something comes after them: a line ends where its text ends.
    let mut blanks = 0;
    for (column, cell, style) in cells {
        let shown = cut(cell, column.width);
        let padding = column.width.saturating_sub(shown.width());
        let (before, after) = if column.right { (padding, 0) } else { (0, padding) };
        line.extend(std::iter::repeat_n(' ', blanks + before));
        line.push_str(&styled(shown, style, coloured && style != PLAIN));
        blanks = after + GAP.len();
    }
    text.push_str(&line);
    text.push('\n');
}

/// At most so many columns of a text; one that was cut ends in an ellipsis.
fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    // Characters change each other's width, so it is the text so far that is measured. The limit
    // is for text that heaps marks on one letter.
    let ends = text.char_indices().take(4 * width).map(|(at, c)| at + c.len_utf8());
    let end = ends.take_while(|&end| text[..end].width() < width).last().unwrap_or(0);
    // Half of a joined character would join the ellipsis.
    format!("{}…", text[..end].trim_end_matches('\u{200d}'))
}

fn size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let mut size = bytes as f64;
    let mut unit = "B";
    for larger in units {
        if size < 1024.0 {
            break;
        }
        (size, unit) = (size / 1024.0, larger);
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{size:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_by_what_a_terminal_shows() {
        for (text, width, shown) in [
            ("worker", 6, "worker"),
            ("worker", 5, "work…"),
            ("漢字漢字", 8, "漢字漢字"),
            ("漢字漢字", 7, "漢字漢…"),
            ("漢字漢字", 6, "漢字…"),
            ("e\u{301}e\u{301}e\u{301}", 2, "e\u{301}…"),
            ("👩\u{200d}🚀👩\u{200d}🚀", 3, "👩\u{200d}🚀…"),
            ("☎\u{fe0f}☎\u{fe0f}", 2, "☎…"),
        ] {
            assert_eq!(cut(text, width), shown);
            assert!(cut(text, width).width() <= width);
        }
    }

    #[test]
    fn sizes_have_one_unit() {
        for (bytes, text) in
            [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (45_056, "44.0 KiB"), (3 << 40, "3.0 TiB")]
        {
            assert_eq!(size(bytes), text);
        }
    }
}
