//! What an agent behind AG-UI does in answer to one message, as its events tell it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use thread_conversation::{ClientInput, ToolCall, ToolResult};

use super::interrupt::Interrupt;
use super::messages::Messages;
use crate::protocol::{Done, Output};

/// What is known of the message that is being answered.
#[derive(Debug, Default)]
pub struct Turn {
    pub run_id: String,
    /// How many requests were made.
    pub requests: u64,
    /// The client's input, without the tools, the state and what else has a field of its own in a request.
    pub input: Map<String, Value>,
    pub state: Value,
    pub messages: Messages,
    /// The message whose text came last.
    pub text_of: Option<String>,
    /// Calls by their ids; without those that have a result.
    pub calls: BTreeMap<String, Call>,
    /// The call that was begun last.
    pub last_call: String,
    pub client_tools: BTreeSet<String>,
    /// The results of the client's tools, as messages for the next request.
    pub results: Vec<Value>,
    pub interrupts: Vec<Interrupt>,
    /// What a run was interrupted for, as LangGraph says it by default: in events of its own.
    pub on_interrupt: Vec<Value>,
    /// It takes the answer in its own field, too.
    pub is_own_way: bool,
    /// The agent has ended its run.
    pub is_paused: bool,
}

/// A call without a result.
#[derive(Debug)]
pub struct Call {
    name: String,
    arguments: String,
    /// It was told to the adapter.
    is_told: bool,
}

impl Call {
    fn arguments(&self) -> Value {
        match self.arguments.trim() {
            "" => json!({}),
            text => serde_json::from_str(text).unwrap_or_else(|_| text.into()),
        }
    }
}

impl Turn {
    /// Takes the client's input in the place of what is known.
    pub fn update(&mut self, input: &ClientInput) {
        for (field, value) in input.fields() {
            match field {
                ClientInput::STATE => self.state = value.clone(),
                field => drop(self.input.insert(field.to_owned(), value.clone())),
            }
        }
        if input.get(ClientInput::TOOLS).is_some() {
            self.client_tools = input.tools().map(str::to_owned).collect();
        }
    }

    /// Whether an answer is missing that the next request needs.
    pub fn is_waiting(&self) -> bool {
        self.calls.values().any(|call| self.client_tools.contains(&call.name))
            || self.interrupts.iter().any(|interrupt| interrupt.answer.is_none())
    }

    /// What comes of the end of the agent's run.
    pub fn finished(&mut self, event: &Value) -> Vec<Output> {
        let outcome = &event["outcome"];
        if outcome["type"] == "cancelled" {
            return vec![Output::Done(Done::Cancelled)];
        }
        let mut output = Vec::new();
        let own = std::mem::take(&mut self.on_interrupt);
        let is_standard = outcome["type"] == "interrupt";
        self.is_own_way = !is_standard && !own.is_empty();
        if is_standard || self.is_own_way {
            let standard = outcome["interrupts"].as_array().filter(|_| is_standard);
            for interrupt in standard.unwrap_or(&own) {
                let arguments = |call_id: &str| self.calls.get(call_id).map_or(Value::Null, Call::arguments);
                let Some((interrupt, permission)) = Interrupt::of(interrupt, arguments) else { continue };
                self.interrupts.push(interrupt);
                output.push(Output::Asks(permission));
            }
        }
        self.is_paused = self.is_waiting() || !self.results.is_empty() || !self.interrupts.is_empty();
        if self.is_paused {
            return output;
        }
        let said = self.messages.said();
        // Some agents send their text in a snapshot alone, or as the result of the run.
        let text = || self.messages.last_text().or_else(|| event["result"].as_str()).map(str::to_owned);
        let content = if self.text_of.is_none() { text() } else { None };
        output.push(Output::Messages(said.to_vec()));
        output.push(Output::Done(Done::Answered { content, total_tokens: None, stage: None }));
        output
    }
}

impl Turn {
    /// What comes of an event within the agent's run.
    pub fn event(&mut self, kind: &str, event: &Value) -> Vec<Output> {
        let text = |key: &str| event[key].as_str().unwrap_or_default();
        match kind {
            "TEXT_MESSAGE_START" | "TEXT_MESSAGE_CONTENT" | "TEXT_MESSAGE_CHUNK" => {
                let role = event["role"].as_str().unwrap_or("assistant");
                self.text(text("messageId"), role, text("delta"))
            }
            "REASONING_MESSAGE_START" | "REASONING_MESSAGE_CONTENT" | "REASONING_MESSAGE_CHUNK" => {
                let id = text("messageId");
                if !id.is_empty() {
                    self.messages.begin(id, "reasoning");
                    self.messages.extend(id, text("delta"));
                }
                vec![Output::Thinking(text("delta").to_owned())]
            }
            "REASONING_ENCRYPTED_VALUE" => {
                self.messages.encrypted(text("entityId"), &event["encryptedValue"]);
                Vec::new()
            }
            "THINKING_TEXT_MESSAGE_CONTENT" => vec![Output::Thinking(text("delta").to_owned())],
            "TOOL_CALL_START" | "TOOL_CALL_ARGS" | "TOOL_CALL_CHUNK" => {
                self.call(text("toolCallId"), event);
                Vec::new()
            }
            "TOOL_CALL_END" => self.tell_call(text("toolCallId")).into_iter().collect(),
            "TOOL_CALL_RESULT" => self.result(text("messageId"), text("toolCallId"), &event["content"]),
            "STATE_SNAPSHOT" => {
                self.state = event["snapshot"].clone();
                vec![Output::State(self.state.clone())]
            }
            "STATE_DELTA" => self.patch(&event["delta"]),
            "CUSTOM" if event["name"] == "on_interrupt" => {
                let id = format!("on_interrupt_{}", self.on_interrupt.len() + 1);
                self.on_interrupt.push(Interrupt::of_lang_graph(&id, &event["value"]));
                Vec::new()
            }
            "MESSAGES_SNAPSHOT" => {
                let all = event["messages"].as_array().cloned().unwrap_or_default();
                self.messages.replace(all);
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// Text of a message; without an id, of the last one.
    fn text(&mut self, id: &str, role: &str, delta: &str) -> Vec<Output> {
        let last = self.text_of.clone();
        let id = if id.is_empty() { last.clone().unwrap_or_default() } else { id.to_owned() };
        self.messages.begin(&id, role);
        self.messages.extend(&id, delta);
        if delta.is_empty() || self.messages.role(&id) != Some("assistant") {
            return Vec::new();
        }
        let is_next = last.is_some_and(|last| last != id);
        self.text_of = Some(id);
        let between = is_next.then(|| Output::Token("\n\n".to_owned()));
        between.into_iter().chain([Output::Token(delta.to_owned())]).collect()
    }

    /// A call, or more of its arguments; without an id, of the last one that was begun.
    fn call(&mut self, id: &str, event: &Value) {
        let text = |key: &str| event[key].as_str().unwrap_or_default();
        let id = if id.is_empty() { self.last_call.clone() } else { id.to_owned() };
        if !self.calls.contains_key(&id) && !text("toolCallName").is_empty() {
            let name = text("toolCallName").to_owned();
            let parent = Some(text("parentMessageId")).filter(|parent| !parent.is_empty());
            self.messages.call(parent.unwrap_or(&id), &id, &name);
            self.calls.insert(id.clone(), Call { name, arguments: String::new(), is_told: false });
            self.last_call.clone_from(&id);
        }
        if let Some(call) = self.calls.get_mut(&id) {
            call.arguments.push_str(text("delta"));
            self.messages.extend_arguments(&id, text("delta"));
        }
    }

    /// The output of a call whose arguments are complete, once.
    fn tell_call(&mut self, id: &str) -> Option<Output> {
        let call = self.calls.get_mut(id)?;
        let is_new = !std::mem::replace(&mut call.is_told, true);
        is_new.then(|| Output::Call(ToolCall::new(id, &*call.name, call.arguments())))
    }

    /// The output of all calls that were not told. Those of the client's tools may stand in a snapshot alone, where
    /// clients of AG-UI find them, too.
    pub fn tell_calls(&mut self) -> Vec<Output> {
        for (id, name, arguments) in self.messages.last_calls() {
            let has_result = self.results.iter().any(|result| result["toolCallId"] == *id);
            if self.client_tools.contains(&name) && !id.is_empty() && !has_result {
                self.calls.entry(id).or_insert(Call { name, arguments, is_told: false });
            }
        }
        let ids: Vec<String> = self.calls.keys().cloned().collect();
        ids.iter().filter_map(|id| self.tell_call(id)).collect()
    }

    fn result(&mut self, message_id: &str, call_id: &str, content: &Value) -> Vec<Output> {
        let told = self.tell_call(call_id);
        let name = self.calls.remove(call_id).map(|call| call.name).unwrap_or_default();
        let id = if message_id.is_empty() { format!("tool_{call_id}") } else { message_id.to_owned() };
        self.messages.add(json!({ "id": id, "role": "tool", "toolCallId": call_id, "content": content }));
        let result = Output::Result(ToolResult::new(call_id, name, Ok(content.clone())));
        told.into_iter().chain([result]).collect()
    }

    /// A change of the state. One that does not fit is an error of the agent, which ends the attempt.
    fn patch(&mut self, delta: &Value) -> Vec<Output> {
        let patch = serde_json::from_value::<json_patch::Patch>(delta.clone()).map_err(|e| e.to_string());
        if self.state.is_null() {
            self.state = json!({});
        }
        let patched =
            patch.and_then(|patch| json_patch::patch(&mut self.state, &patch).map_err(|e| e.to_string()));
        match patched {
            Ok(()) => vec![Output::StateDelta(delta.clone())],
            Err(e) => {
                let error = format!("the agent has sent a STATE_DELTA that does not fit the state: {e}");
                vec![Output::Done(Done::Failed { error, retryable: true })]
            }
        }
    }
}
