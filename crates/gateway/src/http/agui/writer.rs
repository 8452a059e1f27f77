//! The events of AG-UI, as JSON.

use serde_json::{Value, json};
use thread::model::time;
use thread_conversation::{SubAgent, SubChange, ToolCall, ToolResult};

/// The client's version of AG-UI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// 0.x, which has other events for reasoning, and none for sub-agents and interrupts.
    Zero,
    /// 1.0 as clients of the last 0.x read it: they refuse what 1.0 has added to the outcomes of runs.
    Early,
    One,
}

impl Version {
    /// Parses a `protocolVersion`; `None` if it is not given.
    pub fn of_input(text: Option<&str>) -> Option<Version> {
        text.map(|text| if text == "0" || text.starts_with("0.") { Version::Zero } else { Version::One })
    }

    /// Parses the query's `protocol`: `0`, `1` or `1.0`; `None` if it is not given.
    pub fn of_query(text: Option<&str>) -> Option<Version> {
        if text == Some("1") { Some(Version::Early) } else { Version::of_input(text) }
    }
}

/// The message that is open in the stream, with its id.
enum Open {
    Nothing,
    Text(String),
    Reasoning(String),
}

/// Writes events in the form of one version.
pub struct Writer {
    version: Version,
    events: Vec<Value>,
    timestamp: Option<i64>,
    open: Open,
    /// Whether a text message has been opened: only the first gets the message id given by the agent.
    opened_text: bool,
}

impl Writer {
    pub fn new(version: Version) -> Writer {
        Writer { version, events: Vec::new(), timestamp: None, open: Open::Nothing, opened_text: false }
    }

    pub fn version(&self) -> Version {
        self.version
    }

    /// All that follows has this time.
    pub fn at(&mut self, time: &str) {
        self.timestamp = time::parse(time).map(|time| time.timestamp_millis());
    }

    /// What was written since it was taken last.
    pub fn take(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.events)
    }

    pub fn push(&mut self, mut event: Value) {
        if let Some(timestamp) = self.timestamp {
            event["timestamp"] = timestamp.into();
        }
        self.events.push(event);
    }

    pub fn custom(&mut self, name: &str, value: Value) {
        self.push(custom(name, value));
    }

    pub fn run_started(&mut self, thread_id: &str, run_id: &str, parent: Option<&Value>) {
        let mut started = json!({ "type": "RUN_STARTED", "threadId": thread_id, "runId": run_id });
        if self.version != Version::Zero {
            started["protocolVersion"] = "1.0".into();
        }
        if let Some(parent) = parent {
            started["parentRunId"] = parent.clone();
        }
        self.push(started);
    }

    pub fn state(&mut self, state: &Value) {
        self.push(json!({ "type": "STATE_SNAPSHOT", "snapshot": state }));
    }

    pub fn text(&mut self, event_id: i64, given: Option<&str>, text: &str) {
        if !matches!(self.open, Open::Text(_)) {
            self.close();
            let id = match given.filter(|_| !self.opened_text) {
                Some(id) => id.to_owned(),
                None => format!("text_{event_id}"),
            };
            self.opened_text = true;
            self.push(json!({ "type": "TEXT_MESSAGE_START", "messageId": id, "role": "assistant" }));
            self.open = Open::Text(id);
        }
        if let Open::Text(id) = &self.open {
            self.push(json!({ "type": "TEXT_MESSAGE_CONTENT", "messageId": id, "delta": text }));
        }
    }

    pub fn reasoning(&mut self, event_id: i64, text: &str) {
        let zero = self.version == Version::Zero;
        if !matches!(self.open, Open::Reasoning(_)) {
            self.close();
            let id = format!("reasoning_{event_id}");
            if zero {
                self.push(json!({ "type": "THINKING_START" }));
                self.push(json!({ "type": "THINKING_TEXT_MESSAGE_START" }));
            } else {
                self.push(json!({ "type": "REASONING_START", "messageId": id }));
                self.push(json!({ "type": "REASONING_MESSAGE_START", "messageId": id, "role": "reasoning" }));
            }
            self.open = Open::Reasoning(id);
        }
        if let Open::Reasoning(id) = &self.open {
            self.push(match zero {
                true => json!({ "type": "THINKING_TEXT_MESSAGE_CONTENT", "delta": text }),
                false => json!({ "type": "REASONING_MESSAGE_CONTENT", "messageId": id, "delta": text }),
            });
        }
    }

    /// Closes the open message, if there is one.
    pub fn close(&mut self) {
        match std::mem::replace(&mut self.open, Open::Nothing) {
            Open::Nothing => {}
            Open::Text(id) => self.push(json!({ "type": "TEXT_MESSAGE_END", "messageId": id })),
            Open::Reasoning(_) if self.version == Version::Zero => {
                self.push(json!({ "type": "THINKING_TEXT_MESSAGE_END" }));
                self.push(json!({ "type": "THINKING_END" }));
            }
            Open::Reasoning(id) => {
                self.push(json!({ "type": "REASONING_MESSAGE_END", "messageId": id }));
                self.push(json!({ "type": "REASONING_END", "messageId": id }));
            }
        }
    }

    /// A call, or its corrected details.
    pub fn call(&mut self, id: &str, call: &ToolCall, is_new: bool, sub: Option<&str>) {
        let arguments = if call.arguments.is_null() { json!({}) } else { call.arguments.clone() };
        if !is_new {
            // Clients take no arguments after the end of a call.
            let value = json!({ "toolCallId": id, "toolCallName": call.name, "arguments": arguments });
            return self.custom("tool_call", value);
        }
        let start = json!({ "type": "TOOL_CALL_START", "toolCallId": id, "toolCallName": call.name });
        self.push(of_sub_agent(start, sub));
        let delta = json!({ "type": "TOOL_CALL_ARGS", "toolCallId": id, "delta": arguments.to_string() });
        self.push(of_sub_agent(delta, sub));
        self.push(of_sub_agent(json!({ "type": "TOOL_CALL_END", "toolCallId": id }), sub));
    }

    /// A call that an earlier stream has shown.
    pub fn call_again(&mut self, id: &str, name: &str) {
        if self.version != Version::Zero {
            self.push(json!({ "type": "TOOL_CALL_START", "toolCallId": id, "toolCallName": name }));
            self.push(json!({ "type": "TOOL_CALL_END", "toolCallId": id }));
        }
    }

    pub fn result(&mut self, id: &str, result: &ToolResult, event_id: i64, sub: Option<&str>) {
        let content = match &result.outcome {
            Ok(Value::String(text)) | Err(text) => text.clone(),
            Ok(value) => value.to_string(),
        };
        let result = json!({
            "type": "TOOL_CALL_RESULT",
            "messageId": format!("result_{event_id}"),
            "toolCallId": id,
            "content": content,
            "role": "tool",
        });
        self.push(of_sub_agent(result, sub));
    }

    /// What a sub-agent does.
    pub fn sub_agent(&mut self, event_id: i64, told: &SubAgent, parent: &str, did: Vec<SubChange>) {
        let id = &*told.sub_agent;
        if self.version == Version::Zero {
            let value = json!({
                "parentCallId": parent,
                "subAgent": id,
                "event": told.event,
                "payload": told.payload,
            });
            return self.custom("sub_agent", value);
        }
        for change in did {
            match change {
                SubChange::Began => self.sub_agent_started(id, parent),
                SubChange::Called { id: call_id, call, is_new } => {
                    self.call(&call_id, &call, is_new, Some(id));
                }
                SubChange::Returned { id: call_id, result } => {
                    self.result(&call_id, &result, event_id, Some(id));
                }
                SubChange::Status(status) => {
                    self.push(of_sub_agent(custom("status", json!({ "status": status })), Some(id)));
                }
                SubChange::AttemptFailed(error) => {
                    self.push(of_sub_agent(custom("attempt_failed", json!({ "message": error })), Some(id)));
                }
                SubChange::Answered(result) => self.sub_agent_finished(id, result.as_ref()),
                SubChange::Failed(why) => self.sub_agent_failed(id, &why, "run_failed"),
                SubChange::Cancelled(why) => self.sub_agent_failed(id, &why, "cancelled"),
            }
        }
    }

    /// An event of its own for a sub-agent; clients of 0.x know none.
    fn about_sub_agent(&mut self, event: Value) {
        if self.version != Version::Zero {
            self.push(event);
        }
    }

    pub fn sub_agent_started(&mut self, id: &str, call_id: &str) {
        // The id is the name and 16 digits.
        let name = id.rsplit_once('-').map_or(id, |(name, _)| name);
        self.about_sub_agent(
            json!({ "type": "SUBAGENT_STARTED", "subagentRunId": id, "name": name, "parentToolCallId": call_id }),
        );
    }

    pub fn sub_agent_finished(&mut self, id: &str, result: Option<&Value>) {
        let outcome = json!({ "type": "success" });
        let mut finished = json!({ "type": "SUBAGENT_FINISHED", "subagentRunId": id, "outcome": outcome });
        if let Some(result) = result.filter(|result| !result.is_null()) {
            finished["result"] = result.clone();
        }
        self.about_sub_agent(finished);
    }

    /// It continues when the client continues the run.
    pub fn sub_agent_suspended(&mut self, id: &str) {
        let outcome = json!({ "type": "suspended" });
        self.about_sub_agent(json!({ "type": "SUBAGENT_FINISHED", "subagentRunId": id, "outcome": outcome }));
    }

    pub fn sub_agent_failed(&mut self, id: &str, why: &str, code: &str) {
        self.about_sub_agent(
            json!({ "type": "SUBAGENT_ERROR", "subagentRunId": id, "message": why, "code": code }),
        );
    }
}

fn custom(name: &str, value: Value) -> Value {
    json!({ "type": "CUSTOM", "name": format!("thread.{name}"), "value": value })
}

/// An event that is a sub-agent's, if one is given.
fn of_sub_agent(mut event: Value, sub: Option<&str>) -> Value {
    if let Some(sub) = sub {
        event["subagentRunId"] = sub.into();
    }
    event
}
