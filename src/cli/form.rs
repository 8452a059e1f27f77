//! How `peek` prints an event: as a line of NDJSON, with its content as JSON, or for people.

use std::io;

use anstyle::Style;
use serde_json::Value;

use super::output;
use crate::model::event::{Row, parsed};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Line,
    /// A line whose content is JSON where it can be.
    Parsed,
    Pretty,
}

impl Form {
    /// Appends an event, with its line end.
    pub fn write(self, row: &Row<'_>, out: &mut Vec<u8>) {
        match self {
            Form::Line => row.write_line(out),
            Form::Parsed => row.write_parsed_line(out),
            Form::Pretty => out.extend_from_slice(pretty(row, output::coloured(&io::stdout())).as_bytes()),
        }
    }
}

/// A line about the event, then its content, indented and as JSON where it is that, then its metadata.
fn pretty(row: &Row<'_>, coloured: bool) -> String {
    let event = row.to_event();
    let kind = event.subtype.map_or(event.kind.clone(), |subtype| format!("{}/{subtype}", event.kind));
    let head = format!("{}  {}  {}  {kind}", event.id, event.created_at, event.source);
    let mut text = output::styled(output::plain(&head), Style::new().bold(), coloured) + "\n";
    let json = parsed(event.content.as_bytes()).and_then(|json| serde_json::from_str::<Value>(&json).ok());
    let content = match json.filter(|json| json.is_object() || json.is_array()) {
        Some(json) => serde_json::to_string_pretty(&json).unwrap_or(event.content),
        None => event.content,
    };
    for line in content.lines() {
        text.push_str("    ");
        text.push_str(&output::tame(line));
        text.push('\n');
    }
    if let Some(metadata) = event.metadata {
        text.push_str(&format!("    metadata: {}\n", output::plain(&metadata)));
    }
    text.push('\n');
    text
}
