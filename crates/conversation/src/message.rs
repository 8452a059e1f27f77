//! Messages to the agent, and the input that a client passes along with them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thread::model::event::InvalidEvent;
use thread::{Event, NewEvent};

use crate::lenient::{flag, is_default, object_of, run_id, text};
use crate::with_metadata;

words! {
    /// When a message is processed.
    #[derive(PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Priority {
        /// At once: it interrupts the current run.
        Now = "now",
        /// In the middle of the current run, if the agent takes messages there; otherwise right after it.
        Steer = "steer",
        /// After the current run, in the order of ids. Any unknown word means this.
        #[default]
        Next = "next",
        /// Only when nothing else is pending.
        Later = "later",
    }
}

/// Reads a word; any other value, and an unknown word, is the default.
fn priority<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Priority, D::Error> {
    Ok(text(from)?.and_then(|word| Priority::of(&word)).unwrap_or_default())
}

/// A message from anyone but the agent: an event of the type `message`. All but the content is metadata, and only that
/// is serialized, without `other`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Message {
    /// Text, or the JSON text of an array of content parts: see [`text_of`].
    #[serde(skip)]
    pub content: String,
    /// `None` for [`run_id_of`](crate::run_id_of) the event.
    #[serde(deserialize_with = "run_id", skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    #[serde(deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    #[serde(deserialize_with = "priority", skip_serializing_if = "is_default")]
    pub priority: Priority,
    /// Which client of a gateway sent it.
    #[serde(deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// If a message with priority `now` interrupts the run, it is tried again later instead of cancelled.
    #[serde(deserialize_with = "flag", skip_serializing_if = "is_default")]
    pub resume: bool,
    /// All other keys of the metadata, passed on unchanged.
    #[serde(flatten, skip_serializing)]
    pub other: Map<String, Value>,
}

impl Message {
    pub fn text(content: impl Into<String>) -> Message {
        Message { content: content.into(), ..Message::default() }
    }

    pub(crate) fn of(event: &Event) -> Message {
        let message = serde_json::from_value(object_of(event).into()).unwrap_or_default();
        Message { content: event.content.clone(), ..message }
    }

    /// Returns the event of this message from `source`. [`NewEvent::with_key`] adds an idempotency key.
    ///
    /// # Errors
    ///
    /// `source` is empty or has control characters.
    pub fn event(&self, source: &str) -> Result<NewEvent<'static>, InvalidEvent> {
        let mut metadata = crate::object(self);
        for (key, value) in &self.other {
            metadata.entry(key).or_insert_with(|| value.clone());
        }
        Ok(with_metadata(NewEvent::message(source.to_owned(), self.content.clone())?, &metadata))
    }
}

/// What a client passed to the agent along with a message: the fields of AG-UI's `RunAgentInput` that are not
/// empty. The key `run_input` of the metadata of messages, of results of the client's tools and of
/// [`continued`](crate::continued).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClientInput(pub Map<String, Value>);

impl ClientInput {
    /// The key of a message's metadata that has it.
    pub const KEY: &str = "run_input";

    /// The tools of the client, which its agent may call: `[{"name","description","parameters"}]`.
    pub const TOOLS: &str = "tools";

    /// Any JSON, shared by the client and its agent.
    pub const STATE: &str = "state";

    /// `[{"description","value"}]`.
    pub const CONTEXT: &str = "context";

    /// Any JSON, for the agent alone.
    pub const FORWARDED_PROPS: &str = "forwarded_props";

    /// Fields that the gateway could not pass on: `[{"field","reason"}]`.
    pub const UNSUPPORTED: &str = "unsupported";

    /// The client's name for the run that this one comes from.
    pub const PARENT_RUN_ID: &str = "parent_run_id";

    /// What a program may be given.
    pub const FIELDS: [&str; 4] =
        [ClientInput::TOOLS, ClientInput::STATE, ClientInput::CONTEXT, ClientInput::FORWARDED_PROPS];

    /// The input in the metadata of a message.
    pub fn of(metadata: &Map<String, Value>) -> ClientInput {
        ClientInput(metadata.get(ClientInput::KEY).and_then(Value::as_object).cloned().unwrap_or_default())
    }

    pub fn get(&self, field: &str) -> Option<&Value> {
        self.0.get(field)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The names of the client's tools.
    pub fn tools(&self) -> impl Iterator<Item = &str> {
        let tools = self.get(ClientInput::TOOLS).and_then(Value::as_array).into_iter().flatten();
        tools.filter_map(|tool| tool.get("name")?.as_str())
    }

    /// The fields that a program may be given.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        ClientInput::FIELDS.into_iter().filter_map(|field| Some((field, self.get(field)?)))
    }
}

/// Returns the text of a message's content, for programs that read only text: the content itself or, for an
/// array of content parts, the texts of its parts, joined by newlines.
pub fn text_of(content: &str) -> String {
    let Some(parts) = parts_of(content) else { return content.to_owned() };
    let texts: Vec<&str> = parts.iter().filter_map(|part| part.get("text")?.as_str()).collect();
    texts.join("\n")
}

/// Returns the content parts if the content is a JSON array of objects with a `type`; `None` if it is text.
pub fn parts_of(content: &str) -> Option<Vec<Value>> {
    if !content.trim_start().starts_with('[') {
        return None;
    }
    let parts: Vec<Value> = serde_json::from_str(content).ok()?;
    let typed = |part: &Value| part.get("type").is_some_and(Value::is_string);
    (!parts.is_empty() && parts.iter().all(typed)).then_some(parts)
}
