//! The leniency with which everything is read.

use serde::Deserialize;
use serde_json::{Map, Value};
use thread::Event;

/// The metadata of an event; empty if it is no object.
pub(crate) fn object_of(event: &Event) -> Map<String, Value> {
    event.metadata.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Reads a value; one of another type counts as not given.
pub(crate) fn lenient<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: serde::de::DeserializeOwned + Default,
{
    Ok(serde_json::from_value(Value::deserialize(from)?).unwrap_or_default())
}

/// Reads a text that is not empty.
pub(crate) fn text<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    Ok(lenient::<D, Option<String>>(from)?.filter(|text| !text.is_empty()))
}

/// Reads a run id. They are passed to programs in their environment, so length and characters are limited.
pub(crate) fn run_id<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    Ok(text(from)?.filter(|id| id.len() <= crate::MAX_RUN_ID && !id.contains(char::is_control)))
}

/// Reads an event id; may be written as text, as `thread push --meta` does.
pub(crate) fn id<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<i64>, D::Error> {
    let value = Value::deserialize(from)?;
    Ok(value.as_i64().or_else(|| value.as_str()?.parse().ok()))
}

/// Reads `true`, which may be written as text.
pub(crate) fn flag<'de, D: serde::Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    let value = Value::deserialize(from)?;
    Ok(value == Value::Bool(true) || value == "true")
}

/// Reads an array; null for anything else.
pub(crate) fn array<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Value, D::Error> {
    Ok(Some(Value::deserialize(from)?).filter(Value::is_array).unwrap_or_default())
}

/// Reads the objects of an array that have the right form.
pub(crate) fn elements<'de, D, T>(from: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: serde::de::DeserializeOwned,
{
    let values = Vec::<Value>::deserialize(from)?;
    let objects = values.into_iter().filter(Value::is_object);
    Ok(objects.filter_map(|value| serde_json::from_value(value).ok()).collect())
}
