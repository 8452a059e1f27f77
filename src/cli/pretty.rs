//! The output of `peek --pretty`.

use anstyle::Style;
use serde_json::Value;

use super::{environment, output};
use crate::model::event::{Row, parsed};

/// Appends a header line, the indented content (formatted if it is JSON), and the metadata.
pub fn write(row: &Row<'_>, out: &mut Vec<u8>) {
    let event = row.to_event();
    let kind = event.subtype.map_or(event.kind.clone(), |subtype| format!("{}/{subtype}", event.kind));
    let head = format!("{}  {}  {}  {kind}", event.id, event.created_at, event.source);
    let head =
        output::styled(output::plain(&head), Style::new().bold(), output::coloured(&environment::stdout()));
    let json = parsed(event.content.as_bytes()).and_then(|json| serde_json::from_str::<Value>(&json).ok());
    let content = match json.filter(|json| json.is_object() || json.is_array()) {
        Some(json) => serde_json::to_string_pretty(&json).unwrap_or(event.content),
        None => event.content,
    };
    let mut lines = vec![head];
    lines.extend(content.lines().map(|line| format!("    {}", output::sanitize(line))));
    lines.extend(event.metadata.map(|metadata| format!("    metadata: {}", output::plain(&metadata))));
    out.extend_from_slice(lines.join("\n").as_bytes());
    out.extend_from_slice(b"\n\n");
}
