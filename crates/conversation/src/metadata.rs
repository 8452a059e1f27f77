//! The metadata of a run's events, and the leniency with which everything is read.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thread::Event;

use crate::ClientInput;

/// The metadata of all events but messages to the agent (see [`Message`](crate::Message)): each kind of event has
/// some of these keys, in this order.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Metadata {
    #[serde(deserialize_with = "run_id", skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    #[serde(deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub parent_call_id: Option<String>,
    #[serde(deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub sub_agent: Option<String>,
    #[serde(deserialize_with = "id", skip_serializing_if = "Option::is_none")]
    pub sub_event_id: Option<i64>,
    #[serde(deserialize_with = "lenient", skip_serializing_if = "is_default")]
    pub attempt: u64,
    #[serde(deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    #[serde(deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    #[serde(deserialize_with = "flag", skip_serializing_if = "is_default")]
    pub for_client: bool,
    #[serde(deserialize_with = "flag", skip_serializing_if = "is_default")]
    pub unreported: bool,
    #[serde(deserialize_with = "id", skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<i64>,
    #[serde(deserialize_with = "id", skip_serializing_if = "Option::is_none")]
    pub began: Option<i64>,
    #[serde(deserialize_with = "id", skip_serializing_if = "Option::is_none")]
    pub after: Option<i64>,
    #[serde(deserialize_with = "id", skip_serializing_if = "Option::is_none")]
    pub interrupted_by: Option<i64>,
    #[serde(deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub total_tokens: Option<u64>,
    #[serde(deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<u64>,
    #[serde(deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    #[serde(deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub partial: Option<String>,
    #[serde(deserialize_with = "lenient", skip_serializing_if = "ClientInput::is_empty")]
    pub run_input: ClientInput,
}

/// The metadata of an event; empty if it is no object.
pub(crate) fn object_of(event: &Event) -> Map<String, Value> {
    event.metadata.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

impl Metadata {
    pub fn of(event: &Event) -> Metadata {
        serde_json::from_value(object_of(event).into()).unwrap_or_default()
    }
}

/// Run ids are passed to programs in their environment, so length and characters are limited.
fn is_run_id(text: &str) -> bool {
    text.len() <= crate::MAX_RUN_ID && !text.chars().any(char::is_control)
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

pub(crate) fn run_id<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    Ok(text(from)?.filter(|id| is_run_id(id)))
}

/// Reads an event id; may be written as text, as `thread push --meta` does.
fn id<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<i64>, D::Error> {
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
