//! The settings of a subscription, as `subscribe` and `info` show them.

use serde_json::Value;

/// The value of one of the [`Settings`](crate::maintenance::report::Settings) as text; what is not set is `(none)`.
pub fn as_text(name: &str, value: &Value) -> String {
    match value {
        Value::Null if ["max_attempts", "stall_after", "probe"].contains(&name) => "never".to_owned(),
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
