//! The metadata of a run's events.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thread::Event;

use crate::ClientInput;
use crate::lenient::{flag, id, is_default, lenient, object_of, run_id, text};

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
    #[serde(deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    #[serde(skip_serializing_if = "Value::is_null")]
    pub usage: Value,
    #[serde(skip_serializing_if = "Value::is_null")]
    pub cost: Value,
    #[serde(deserialize_with = "lenient", skip_serializing_if = "ClientInput::is_empty")]
    pub run_input: ClientInput,
}

impl Metadata {
    pub fn of(event: &Event) -> Metadata {
        serde_json::from_value(object_of(event).into()).unwrap_or_default()
    }
}
