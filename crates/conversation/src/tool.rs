//! Tool calls and their results, and the requests for permission to make them.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::lenient::{array, elements, lenient};

/// The most that is kept of the result of a tool call, in bytes.
pub const MAX_RESULT: usize = 1024 * 1024;

/// Returns the id of a call as clients see it: programs may use an id again in a later attempt.
pub fn shown_call_id(call_id: &str, attempt: u64) -> String {
    if attempt > 1 { format!("{call_id}.{attempt}") } else { call_id.to_owned() }
}

/// A tool call, or a correction of the one with the same id: the content of `toolcall`,
/// `{"call_id","name","arguments","title"?,"kind"?,"locations"?}`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ToolCall {
    pub call_id: String,
    #[serde(default, deserialize_with = "lenient")]
    pub name: String,
    /// Any JSON, null if there are none.
    #[serde(default)]
    pub arguments: Value,
    /// What it does, for people.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// `read`, `edit`, `execute` and the like.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The places it works on: `[{"path","line"}]`; null if it names none.
    #[serde(default, deserialize_with = "array", skip_serializing_if = "Value::is_null")]
    pub locations: Value,
}

impl ToolCall {
    pub fn new(call_id: impl Into<String>, name: impl Into<String>, arguments: Value) -> ToolCall {
        ToolCall { call_id: call_id.into(), name: name.into(), arguments, ..ToolCall::default() }
    }
}

/// The result of a tool call: the content of `toolresult`, `{"call_id","name"?,"result","content"?}`, or with
/// `"error"` in place of `"result"`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolResult {
    pub call_id: String,
    /// The name of the call; empty if it is not known.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// What the tool returned, any JSON, or why it failed.
    #[serde(flatten, with = "outcome")]
    pub outcome: Result<Value, String>,
    /// Further content, an array, such as changes to files: `{"type":"diff","path","oldText","newText"}`; null if
    /// nothing.
    #[serde(default, deserialize_with = "array", skip_serializing_if = "Value::is_null")]
    pub content: Value,
}

impl ToolResult {
    pub fn new(
        call_id: impl Into<String>,
        name: impl Into<String>,
        outcome: Result<Value, String>,
    ) -> ToolResult {
        ToolResult { call_id: call_id.into(), name: name.into(), outcome, content: Value::Null }
    }

    /// The result as it is kept: one that is longer than [`MAX_RESULT`] becomes text, and is cut; such content is
    /// left out.
    pub(crate) fn kept(&self) -> ToolResult {
        let outcome = match &self.outcome {
            Ok(Value::String(text)) => Ok(cut(text).into()),
            Ok(result) => {
                let text = result.to_string();
                Ok(if text.len() > MAX_RESULT { cut(&text).into() } else { result.clone() })
            }
            Err(error) => Err(cut(error)),
        };
        let is_short = self.content.to_string().len() <= MAX_RESULT;
        let content = if is_short { self.content.clone() } else { Value::Null };
        ToolResult { content, ..ToolResult::new(&*self.call_id, &*self.name, outcome) }
    }
}

fn cut(result: &str) -> String {
    if result.len() <= MAX_RESULT {
        return result.to_owned();
    }
    let kept = &result[..result.floor_char_boundary(MAX_RESULT)];
    format!("{kept}\n[cut: {} bytes in all]", result.len())
}

/// `"result"` or `"error"`. An error that is null is none.
mod outcome {
    use super::*;

    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Read {
        result: Value,
        error: Value,
    }

    pub fn serialize<S: serde::Serializer>(
        outcome: &Result<Value, String>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match outcome {
            Ok(result) => to.collect_map([("result", result)]),
            Err(error) => to.collect_map([("error", error)]),
        }
    }

    pub fn deserialize<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Result<Value, String>, D::Error> {
        Read::deserialize(from).map(|read| match read.error {
            Value::Null => Ok(read.result),
            Value::String(error) => Err(error),
            error => Err(error.to_string()),
        })
    }
}

/// A request by the agent for permission to do something: the content of `permission`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Permission {
    /// Identifies the request in the answer.
    pub request_id: String,
    /// What the agent wants to do, for display.
    #[serde(default, deserialize_with = "lenient")]
    pub title: String,
    /// The call that needs permission, if the agent has announced it.
    #[serde(default, deserialize_with = "lenient")]
    pub call_id: Option<String>,
    /// The arguments of that call, any JSON, null if there are none.
    #[serde(default)]
    pub arguments: Value,
    /// Further details, such as the change to a file; empty if there are none.
    #[serde(default, deserialize_with = "lenient")]
    pub details: String,
    #[serde(deserialize_with = "elements")]
    pub choices: Vec<Choice>,
    /// How long it waits for an answer, from when it is stored, in milliseconds; then it is rejected. `None`: for as long
    /// as its attempt lasts.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
}

impl Permission {
    /// How long it waits for an answer; `None`: for as long as its attempt lasts.
    pub fn wait(&self) -> Option<Duration> {
        self.wait_ms.map(Duration::from_millis)
    }
}

/// One of the choices in a request for permission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// Identifies the choice in the answer.
    pub id: String,
    /// For display.
    pub name: String,
    /// `allow_once`, `allow_always`, `reject_once`, `reject_always`, or another word.
    #[serde(default, deserialize_with = "lenient")]
    pub kind: String,
}

impl Choice {
    pub fn is_rejection(&self) -> bool {
        self.kind.starts_with("reject")
    }
}

/// The answer to a request for permission: the content of `permission_answer`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermissionAnswer {
    pub request_id: String,
    /// The id of one of the choices; empty if the agent has withdrawn the request.
    pub choice: String,
}

impl PermissionAnswer {
    /// Whether it closes this request, if that has these choices.
    pub fn closes<'c>(&self, request_id: &str, mut choices: impl Iterator<Item = &'c str>) -> bool {
        self.request_id == request_id && (self.choice.is_empty() || choices.any(|id| id == self.choice))
    }
}

/// An event of a sub-agent, as copied to its parent's thread: `sub_agent`, with the content `{"event","payload"}`
/// and the rest as metadata.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubAgent {
    #[serde(skip)]
    pub parent_call_id: String,
    /// The attempt of the parent's run that made the call; 0 if it is not known.
    #[serde(skip)]
    pub attempt: u64,
    #[serde(skip)]
    pub sub_agent: String,
    /// The event's id in the sub-agent's own thread.
    #[serde(skip)]
    pub sub_event_id: i64,
    /// `tool_call`, `tool_result`, `status`, `final`, `error` or `cancelled`.
    pub event: String,
    #[serde(default)]
    pub payload: Value,
}
