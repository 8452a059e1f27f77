//! Shared by `peek` and `await`: options that narrow events down.

use clap::Args;

use crate::failure::{Result, usage};
use crate::model::filter::{Filter, Scope};

/// The longest GLOB pattern that a filter may have, in bytes.
const MAX_PATTERN: usize = 256;

#[derive(Args)]
pub struct NarrowArgs {
    /// Only events of this type: message or record
    #[arg(long = "type", value_name = "TYPE", value_parser = ["message", "record"], hide_possible_values = true)]
    pub kind: Option<String>,
    /// Only events of this subtype
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    pub subtype: Option<String>,
    /// Only from sources that match this shell pattern: internal:*
    #[arg(long, value_name = "GLOB", value_parser = pattern, allow_hyphen_values = true)]
    pub source: Option<String>,
    /// Only with this field in the metadata; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = field, hide_short_help = true)]
    pub meta: Vec<(String, String)>,
    /// An SQL condition over id, created_at, source, type, subtype, content and metadata
    #[arg(long, value_name = "SQL", allow_hyphen_values = true)]
    pub filter: Option<String>,
}

fn pattern(text: &str) -> std::result::Result<String, String> {
    match text.len() {
        ..=MAX_PATTERN => Ok(text.to_owned()),
        _ => Err(format!("a pattern has at most {MAX_PATTERN} bytes")),
    }
}

fn field(text: &str) -> std::result::Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, _)) if key.contains('"') => {
            Err("a key with a quote can only be used in --filter".to_owned())
        }
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("it must be KEY=VALUE".to_owned()),
    }
}

impl NarrowArgs {
    /// Whether none is given.
    pub fn is_empty(&self) -> bool {
        let NarrowArgs { kind, subtype, source, meta, filter } = self;
        let words = [kind, subtype, source].iter().all(|word| word.is_none());
        words && meta.is_empty() && filter.as_deref().is_none_or(|text| text.trim().is_empty())
    }

    /// The filter of --filter and of all others, with further conditions before them.
    pub fn combined(&self, mut conditions: Vec<String>, scope: Scope) -> Result<Option<Filter>> {
        // Checked on its own, so that errors quote the text as the user wrote it.
        let given = Filter::new(self.filter.as_deref().unwrap_or_default(), scope)?;
        let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
        let NarrowArgs { kind, subtype, source, meta, .. } = self;
        conditions.extend(kind.as_deref().map(|kind| format!("type = '{kind}'")));
        conditions.extend(subtype.as_deref().map(|name| format!("subtype = {}", quoted(name))));
        conditions.extend(source.as_deref().map(|pattern| format!("source GLOB {}", quoted(pattern))));
        for (key, value) in meta {
            // Numbers and the like are compared as they are written.
            let path = quoted(&format!("$.\"{key}\""));
            conditions.push(format!("CAST(metadata ->> {path} AS TEXT) = {}", quoted(value)));
        }
        if conditions.iter().any(|condition| condition.contains('\0')) {
            return usage("an option contains NUL", "leave it out");
        }
        if conditions.is_empty() {
            return Ok(given);
        }
        conditions.extend(given.map(|filter| format!("(\n{}\n)", filter.text())));
        Ok(Filter::new(&conditions.join(" AND "), scope)?)
    }
}
