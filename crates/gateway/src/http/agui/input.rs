//! The input of AG-UI clients.

use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use thread_conversation::ClientInput;
use thread_protocol::Content;

use super::writer::Version;
use crate::http::error::HttpError;

/// A `RunAgentInput`.
#[derive(Debug)]
pub struct Input {
    /// `None` if the client gives none.
    pub version: Option<Version>,
    pub thread_id: String,
    pub run_id: String,
    /// The last user message; missing only if the client continues a run.
    pub message: Option<UserMessage>,
    /// The id of the user message before it.
    pub previous: Option<String>,
    /// Answers to interrupts.
    pub resume: Vec<Resume>,
    /// Results of calls, in the order of the messages.
    pub results: Vec<ToolMessage>,
    /// How many tool results stand at the end of the messages.
    pub last_results: usize,
    /// The input passed to the agent with the message.
    pub handed: ClientInput,
}

#[derive(Debug)]
pub struct UserMessage {
    pub id: String,
    pub content: Content,
}

/// An answer to an interrupt.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resume {
    pub interrupt_id: String,
    pub status: ResumeStatus,
    #[serde(default)]
    pub payload: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResumeStatus {
    Resolved,
    Cancelled,
}

/// A message of the role `tool`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolMessage {
    pub tool_call_id: String,
    /// A text, or content parts.
    #[serde(default)]
    pub content: Value,
    pub error: Option<String>,
}

/// Longest id that a client may choose, in bytes.
const MAX_ID: usize = 200;

/// The most that is handed to the agent with a message, in bytes of JSON.
const MAX_HANDED: usize = 1024 * 1024;

impl Input {
    /// # Errors
    ///
    /// A field that the gateway needs is missing or invalid.
    pub fn read(body: Value) -> Result<Input, HttpError> {
        let bad = |what: &str| HttpError::new(StatusCode::BAD_REQUEST, format!("the RunAgentInput {what}"));
        let id = |value: &Value, name: &str| {
            let id = value.get(name).and_then(Value::as_str).unwrap_or_default();
            let fits = !id.is_empty() && id.len() <= MAX_ID && !id.chars().any(char::is_control);
            if fits {
                Ok(id.to_owned())
            } else {
                Err(bad(&format!("needs a '{name}' of 1 to {MAX_ID} bytes")))
            }
        };
        let messages =
            body.get("messages").and_then(Value::as_array).ok_or_else(|| bad("has no 'messages'"))?;
        let is = |role: &'static str| move |message: &&Value| message["role"] == role;
        let resume: Option<Vec<Resume>> = match body.get("resume") {
            None | Some(Value::Null) => Some(Vec::new()),
            Some(resume) => serde_json::from_value(resume.clone()).ok(),
        };
        let resume = resume.ok_or_else(|| bad("has a 'resume' that is no list of answers to interrupts"))?;
        let results = messages.iter().filter(is("tool")).map(|one| serde_json::from_value(one.clone()));
        let results: Result<Vec<ToolMessage>, _> = results.collect();
        let results = results.map_err(|_| bad("has a message of the role 'tool' without a 'toolCallId'"))?;
        let last_results = messages.iter().rev().take_while(is("tool")).count();
        let mut users = messages.iter().rev().filter(is("user"));
        let message = match users.next() {
            Some(last) => {
                let content = last.get("content").and_then(|one| serde_json::from_value(one.clone()).ok());
                let empty =
                    |content: &Content| matches!(content, Content::Text(text) if text.trim().is_empty());
                let content = content.filter(|content| !empty(content));
                let content = content.ok_or_else(|| bad("has a last user message without content"))?;
                Some(UserMessage { id: id(last, "id")?, content })
            }
            None if resume.is_empty() && last_results == 0 => return Err(bad("has no user message")),
            None => None,
        };
        let handed = handed(&body, messages);
        if serde_json::to_string(&handed.0).is_ok_and(|text| text.len() > MAX_HANDED) {
            return Err(bad(
                "has more than 1 MiB of tools, state, context and forwardedProps; send less of it",
            ));
        }
        Ok(Input {
            version: Version::of_input(body.get("protocolVersion").and_then(Value::as_str)),
            thread_id: id(&body, "threadId")?,
            run_id: id(&body, "runId")?,
            message,
            previous: users.next().and_then(|one| one["id"].as_str().map(str::to_owned)),
            resume,
            results,
            last_results,
            handed,
        })
    }

    /// Whether the client answers what a run waits for, rather than sending a message.
    pub fn goes_on(&self) -> bool {
        !self.resume.is_empty() || self.last_results > 0
    }
}

/// Notes something that cannot be handed to the agent.
pub fn unsupported(handed: &mut ClientInput, field: &str, reason: &str) {
    let notes = handed.0.entry(ClientInput::UNSUPPORTED).or_insert_with(|| json!([]));
    if let Value::Array(notes) = notes {
        notes.push(json!({ "field": field, "reason": reason }));
    }
}

/// The input passed to the agent: the fields that are not empty.
fn handed(body: &Value, messages: &[Value]) -> ClientInput {
    let mut handed = ClientInput::default();
    for (name, field) in [
        ("tools", ClientInput::TOOLS),
        ("state", ClientInput::STATE),
        ("context", ClientInput::CONTEXT),
        ("forwardedProps", ClientInput::FORWARDED_PROPS),
        ("parentRunId", ClientInput::PARENT_RUN_ID),
    ] {
        let is_empty = |value: &Value| match value {
            Value::Null => true,
            Value::Array(values) => values.is_empty(),
            Value::Object(values) => values.is_empty(),
            _ => false,
        };
        if let Some(value) = body.get(name).filter(|value| !is_empty(value)) {
            handed.0.insert(field.to_owned(), value.clone());
        }
    }
    if messages.iter().any(|message| message["role"] == "system" || message["role"] == "developer") {
        let reason = "messages of the roles system and developer are not handed to the agent";
        unsupported(&mut handed, "messages", reason);
    }
    handed
}
