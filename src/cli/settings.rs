//! The settings of a subscription, as `subscribe` and `info` show them.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::files::Files;
use crate::model::duration;
use crate::model::run::Options;

/// The settings besides handler and filter, under the names of the options of `subscribe`.
pub fn as_json(files: &Files, cwd: Option<&Path>, options: &Options) -> Map<String, Value> {
    let settings = json!({
        "deliver": options.deliver.as_str(),
        "batch_size": options.batch_size,
        "max_attempts": options.max_attempts,
        "stall_after": options.stall_after,
        "backoff": duration::format_list(&options.backoff),
        "timeout": options.timeout.map(duration::format),
        "cwd": cwd.map(|cwd| files.resolve(cwd).to_string_lossy().into_owned()),
        "env": options.env,
        "clear_env": options.clear_env,
    });
    match settings {
        Value::Object(settings) => settings,
        _ => Map::new(),
    }
}

/// A value of [`as_json`] as text; what is not set is `(none)`.
pub fn as_text(name: &str, value: &Value) -> String {
    match value {
        Value::Null if name == "stall_after" => "never".to_owned(),
        Value::Null => "(none)".to_owned(),
        Value::Object(variables) if variables.is_empty() => "(none)".to_owned(),
        Value::Object(variables) => {
            let words = variables.iter().map(|(name, value)| format!("{name}={}", as_text(name, value)));
            words.collect::<Vec<_>>().join(" ")
        }
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
