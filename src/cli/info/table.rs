//! `thread info` as a table: one line for each consumer, no wider than the terminal.

use anstyle::{AnsiColor, Style};
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Row, Table};

use super::{headline, pending};
use crate::cli::output::{plain, styled};
use crate::maintenance::report::{ConsumerState, ConsumerStatus, InHand, Report};
use crate::model::duration::rough;
use crate::model::run::Exit;
use crate::model::time::Time;

const TITLES: [&str; 6] = ["CONSUMER", "STATE", "PENDING", "OLDEST", "DEAD", "LAST RUN"];
const NUMBERS: [usize; 3] = [2, 3, 4];

/// The table, with the thread's totals above it and notes on consumers below. Lines are cut to `width`
/// terminal columns, if given.
pub fn render(report: &Report, width: Option<u16>, coloured: bool) -> String {
    let mut text = headline(report);
    let [logs, disk] = [report.disk.logs_bytes, report.disk.disk_bytes].map(size);
    let parts = match (report.disk.database_bytes, report.disk.wal_bytes, report.disk.log_bytes) {
        (Some(database), Some(wal), Some(log)) => {
            format!("database {}, JSONL log {}, logs {logs}", size(database + wal), size(log))
        }
        _ => "logs on this machine".to_owned(),
    };
    text.push_str(&format!("Last event: {}\nDisk: {disk} ({parts})\n", report.last_event_id));
    if report.subscriptions.is_empty() {
        return text;
    }
    text.push('\n');
    let mut table = Table::new();
    table.load_preset(NOTHING).set_truncation_indicator("…").set_header(one_line(TITLES.map(str::to_owned)));
    table.add_rows(report.subscriptions.iter().map(|consumer| row(consumer, report.now)));
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if NUMBERS.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    if let Some(width) = width {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
    let styles = report.subscriptions.iter().map(|consumer| style_of(&consumer.state));
    for (line, style) in table.lines().zip(std::iter::once(Style::new().bold()).chain(styles)) {
        text.push_str(&format!("{}\n", styled(line.trim_end(), style, coloured)));
    }
    let notes = report.subscriptions.iter().filter_map(|consumer| note(consumer, report.now));
    for (index, note) in notes.enumerate() {
        let gap = if index == 0 { "\n" } else { "" };
        text.push_str(&format!("{gap}{}\n", plain(&note)));
    }
    text
}

fn row(consumer: &ConsumerStatus, now: Time) -> Row {
    let nothing = || "-".to_owned();
    let state = &consumer.subscription.state;
    let last_run = state.ended.zip(state.last_exit).map(|(ended, exit)| {
        let how = if exit == Exit::Code(0) { "ok".to_owned() } else { exit.to_string() };
        format!("{} ago, {how}", rough((now - ended).to_std().unwrap_or_default()))
    });
    one_line([
        plain(consumer.subscription.consumer.as_str()).to_string(),
        consumer.state.word().to_owned(),
        pending(consumer),
        consumer.oldest_age(now).map_or_else(nothing, rough),
        consumer.subscription.dead.to_string(),
        last_run.unwrap_or_else(nothing),
    ])
}

/// A row whose cells are cut with an ellipsis rather than wrapped.
fn one_line(cells: [String; 6]) -> Row {
    let mut row = Row::from(cells);
    row.max_height(1);
    row
}

fn style_of(state: &ConsumerState) -> Style {
    match state {
        ConsumerState::Idle => Style::new(),
        ConsumerState::Running { .. } => AnsiColor::Green.on_default(),
        ConsumerState::Waiting { .. } => AnsiColor::Yellow.on_default(),
        ConsumerState::Stalled { .. } => AnsiColor::Red.on_default(),
        ConsumerState::Paused => AnsiColor::Cyan.on_default(),
    }
}

/// Why a consumer is not progressing, and on how many events its filter failed; `None` if neither applies.
fn note(consumer: &ConsumerStatus, now: Time) -> Option<String> {
    let mut parts: Vec<String> = consumer.state.reason().map(str::to_owned).into_iter().collect();
    if let ConsumerState::Waiting { next_try: Some(at), .. } = consumer.state {
        parts.push(
            (at - now).to_std().map_or("due".to_owned(), |left| format!("next try in {}", rough(left))),
        );
    }
    if let Some(InHand { waits, waiting, .. }) = &consumer.in_hand
        && let Some(next) = waits.first().and_then(|first| first.next_try)
        && !matches!(consumer.state, ConsumerState::Waiting { .. })
    {
        let left = rough((next - now).to_std().unwrap_or_default());
        parts.push(format!("{waiting} waiting, next try in {left}"));
    }
    parts.extend(consumer.notes());
    // Failures of the key are counted with those of the filter.
    let what = match (consumer.subscription.filter_text(), &consumer.subscription.options.key) {
        (None, Some(_)) => "key",
        (Some(_), Some(_)) => "filter or key",
        (_, None) => "filter",
    };
    let last = consumer.subscription.filter_error_id;
    match consumer.subscription.filter_errors {
        ..=0 => {}
        1 => parts.push(format!("its {what} failed on event {last}")),
        n => parts.push(format!("its {what} failed on {n} events, the last of them {last}")),
    }
    let name = consumer.subscription.consumer.as_str();
    (!parts.is_empty()).then(|| format!("{name}: {}", parts.join(", ")))
}

fn size(bytes: u64) -> String {
    let (mut size, mut unit) = (bytes as f64, "B");
    for larger in ["KiB", "MiB", "GiB", "TiB"] {
        if size < 1024.0 {
            break;
        }
        (size, unit) = (size / 1024.0, larger);
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{size:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_have_one_unit() {
        let sizes = [0, 1023, 1024, 45_056, 3 << 40].map(size);
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "44.0 KiB", "3.0 TiB"]);
    }
}
