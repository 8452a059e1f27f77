//! What is known of an agent's calls of tools.

use std::collections::BTreeMap;

use agent_client_protocol_schema::v1::{ContentBlock, ToolCallContent, ToolCallId, ToolCallUpdateFields};
use serde::Serialize;
use serde_json::{Map, Value};

use super::blocks::text_of;
use crate::protocol::Output;
use thread_conversation::ToolCall;

/// What is known of a call. An agent may announce a call before it knows its details.
#[derive(Debug, Default)]
pub struct Call {
    pub call: ToolCall,
    /// What it shows, such as a change to a file.
    content: Vec<ToolCallContent>,
    /// As it was reported.
    pub reported: Option<ToolCall>,
    pub finished: bool,
    /// It began in a turn that is over. If it is not finished, the agent works at it in the background.
    pub past: bool,
}

impl Call {
    pub fn is_complete(&self) -> bool {
        let arguments = &self.call.arguments;
        let is_empty = arguments.is_null() || arguments.as_object().is_some_and(Map::is_empty);
        !self.call.name.is_empty() && !is_empty
    }

    /// Takes over what an update says.
    pub fn update(&mut self, fields: &mut ToolCallUpdateFields, meta: Option<&Map<String, Value>>) {
        let call = &mut self.call;
        let title = fields.title.take().filter(|title| !title.is_empty());
        if let Some(kind) = fields.kind.as_ref().and_then(word_of) {
            call.kind = Some(kind);
        }
        // A title may change, and describes this call; a name is the tool's.
        let given = fields
            .name
            .take()
            .filter(|name| !name.is_empty())
            .or_else(|| reported(meta?, ["toolName", "tool_name"]));
        if let Some(name) = given {
            call.name = name;
        } else if call.name.is_empty() {
            call.name = title.clone().or_else(|| call.kind.clone()).unwrap_or_default();
        }
        call.title = title.or_else(|| call.title.take());
        if let Some(arguments) = fields.raw_input.take() {
            call.arguments = arguments;
        }
        if let Some(locations) = fields.locations.take().filter(|locations| !locations.is_empty()) {
            call.locations = serde_json::to_value(locations).unwrap_or_default();
        }
        if let Some(content) = fields.content.take().filter(|content| !content.is_empty()) {
            self.content = content;
        }
    }

    /// What it shows, as text.
    pub fn text(&self) -> String {
        content_text(&self.content)
    }

    /// Its content, unless that says no more than the result.
    pub fn shown(&self, outcome: &Result<Value, String>) -> Value {
        let text = match outcome {
            Ok(result) => result.as_str(),
            Err(error) => Some(error.as_str()),
        };
        let is_text = |one: &ToolCallContent| matches!(one, ToolCallContent::Content(content) if matches!(content.content, ContentBlock::Text(_)));
        if self.content.is_empty() || self.content.iter().all(is_text) && text == Some(self.text().as_str()) {
            return Value::Null;
        }
        serde_json::to_value(&self.content).unwrap_or_default()
    }

    /// Reports it, unless it was reported like this already.
    pub fn report(&mut self) -> Option<Output> {
        if self.reported.as_ref() == Some(&self.call) {
            return None;
        }
        self.reported = Some(self.call.clone());
        Some(Output::Call(self.call.clone()))
    }

    /// Whether it continues after the agent has answered.
    pub fn is_task(&self) -> bool {
        self.call.arguments.get("run_in_background") == Some(&Value::Bool(true))
    }
}

/// A text that the agent gives in an extension of its own, under one of these names: `{"claudeCode":{"toolName":"Bash"}}`.
pub fn reported(meta: &Map<String, Value>, names: [&str; 2]) -> Option<String> {
    let of = |object: &Map<String, Value>| {
        let text = names.into_iter().find_map(|name| object.get(name)?.as_str())?;
        Some(text.to_owned()).filter(|text| !text.is_empty())
    };
    of(meta).or_else(|| meta.values().find_map(|value| of(value.as_object()?)))
}

/// The word that stands for a value in the protocol.
pub fn word_of(value: &impl Serialize) -> Option<String> {
    serde_json::to_value(value).ok()?.as_str().map(str::to_owned)
}

/// A call, which may be a new one.
pub fn known<'c>(calls: &'c mut BTreeMap<String, Call>, id: &ToolCallId) -> &'c mut Call {
    calls.entry(id.to_string()).or_insert_with(|| Call {
        call: ToolCall { call_id: id.to_string(), ..ToolCall::default() },
        ..Call::default()
    })
}

fn content_text(content: &[ToolCallContent]) -> String {
    let text = |one: &ToolCallContent| match one {
        ToolCallContent::Content(content) => Some(text_of(&content.content)),
        _ => serde_json::to_string(one).ok(),
    };
    content.iter().filter_map(text).collect::<Vec<_>>().join("\n")
}
