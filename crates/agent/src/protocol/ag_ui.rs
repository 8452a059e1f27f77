//! An agent behind HTTP that speaks AG-UI, such as those of LangGraph, Pydantic AI and Mastra.
//!
//! The program is a process of our own ([`crate::model`]), which makes one request at a time and prints the events of
//! the answer. An agent that waits for a tool of the client, or for permission, ends its run in AG-UI; here the attempt
//! goes on, and the answers go into the next request.

mod interrupt;
mod messages;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;
use std::time::Duration;

use serde_json::{Map, Value, json};
use thread_conversation::{ClientInput, Spent, ToolCall, ToolResult, Usage};

use self::interrupt::Interrupt;
use self::messages::Messages;
use super::{Done, Ended, Output, Prompt, Protocol, send};
use crate::lines::Lines;
use crate::model::{Endpoint, Failed, Heard, Order, Reply, What};

#[derive(Debug)]
pub struct AgUi {
    endpoint: Endpoint,
    /// Why it cannot be asked at all: then each attempt fails for good.
    hindrance: Option<String>,
    lines: Lines,
    /// The number of the last order. Only what is about it counts.
    last_id: u64,
    is_cancelled: bool,
    /// The agent's name for the conversation, and whether it is recorded.
    thread_id: Option<String>,
    is_recorded: bool,
    turn: Turn,
}

/// What is known of the message that is being answered.
#[derive(Debug, Default)]
struct Turn {
    run_id: String,
    /// How many requests were made.
    requests: u64,
    /// The client's input, without the tools, the state and what else has a field of its own in a request.
    input: Map<String, Value>,
    state: Value,
    messages: Messages,
    /// The message whose text came last.
    text_of: Option<String>,
    /// Calls by their ids; without those that have a result.
    calls: BTreeMap<String, Call>,
    /// The call that was begun last.
    last_call: String,
    client_tools: BTreeSet<String>,
    /// The results of the client's tools, as messages for the next request.
    results: Vec<Value>,
    interrupts: Vec<Interrupt>,
    /// The agent has ended its run.
    is_paused: bool,
}

/// A call without a result.
#[derive(Debug)]
struct Call {
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

impl AgUi {
    pub fn new(endpoint: Endpoint, hindrance: Option<String>) -> AgUi {
        AgUi {
            endpoint,
            hindrance,
            lines: Lines::default(),
            last_id: 0,
            is_cancelled: false,
            thread_id: None,
            is_recorded: false,
            turn: Turn::default(),
        }
    }

    fn order(&mut self, what: What, out: &mut Vec<u8>) {
        self.last_id += 1;
        let order = Order { id: self.last_id, what };
        send(out, serde_json::to_value(order).unwrap_or(Value::Null));
    }

    /// Makes the next request.
    fn request(&mut self, out: &mut Vec<u8>) {
        let turn = &mut self.turn;
        turn.requests += 1;
        turn.is_paused = false;
        for result in std::mem::take(&mut turn.results) {
            turn.messages.add(result);
        }
        let field = |field: &str, none: Value| turn.input.get(field).cloned().unwrap_or(none);
        let mut input = json!({
            "threadId": self.thread_id,
            "runId": format!("{}_{}", turn.run_id, turn.requests),
            "messages": turn.messages.all(),
            "tools": field(ClientInput::TOOLS, json!([])),
            "context": field(ClientInput::CONTEXT, json!([])),
            "forwardedProps": field(ClientInput::FORWARDED_PROPS, json!({})),
            "state": if turn.state.is_null() { json!({}) } else { turn.state.clone() },
        });
        let resume: Vec<Value> = turn.interrupts.drain(..).filter_map(|interrupt| interrupt.answer).collect();
        // Older agents know no such field.
        if !resume.is_empty() {
            input["resume"] = resume.into();
        }
        self.order(What::Run { endpoint: self.endpoint.clone(), input }, out);
    }

    /// Makes the next request if the agent has ended its run for answers that are there now.
    fn go_on(&mut self, out: &mut Vec<u8>) {
        if self.turn.is_paused && !self.turn.is_waiting() {
            self.request(out);
        }
    }

    /// The output in a line of the process.
    fn heard(&mut self, line: &[u8], out: &mut Vec<u8>) -> Vec<Output> {
        let Ok(Reply { id, heard }) = serde_json::from_slice(line) else {
            let error = "the process that asks the agent has printed something else".to_owned();
            return vec![Output::Done(Done::Broken(error))];
        };
        if id != self.last_id {
            return Vec::new();
        }
        match heard {
            Heard::Stopped => vec![Output::Done(Done::Cancelled)],
            _ if self.is_cancelled => Vec::new(),
            Heard::Event(event) => {
                let recorded = std::mem::replace(&mut self.is_recorded, true);
                let session = self.thread_id.clone().filter(|_| !recorded).map(Output::Session);
                session.into_iter().chain(self.event(&event, out)).collect()
            }
            Heard::Failed(Failed { error, retryable, retry_after, .. }) => {
                let wait = retry_after.map(|seconds| Output::RetryAfter(Duration::from_secs(seconds)));
                wait.into_iter().chain([Output::Done(Done::Failed { error, retryable })]).collect()
            }
            _ => Vec::new(),
        }
    }

    fn event(&mut self, event: &Value, out: &mut Vec<u8>) -> Vec<Output> {
        let kind = event["type"].as_str().unwrap_or_default();
        match kind {
            "RUN_ERROR" => {
                let told = event["message"]
                    .as_str()
                    .filter(|told| !told.is_empty())
                    .unwrap_or("it does not say why");
                let error = format!("{} failed: {told}", self.endpoint.who());
                vec![Output::Done(Done::Failed { error, retryable: true })]
            }
            "RUN_FINISHED" => {
                let mut output = self.turn.tell_calls();
                let usage = event["usage"].as_array().into_iter().flatten().map(Usage::reported);
                output.extend(usage.map(|usage| Output::Used(Spent { usage, ..Spent::default() })));
                output.extend(self.turn.finished(event));
                self.go_on(out);
                output
            }
            kind => self.turn.event(kind, event),
        }
    }
}

impl Turn {
    /// Whether an answer is missing that the next request needs.
    fn is_waiting(&self) -> bool {
        self.calls.values().any(|call| self.client_tools.contains(&call.name))
            || self.interrupts.iter().any(|interrupt| interrupt.answer.is_none())
    }

    /// What comes of the end of the agent's run.
    fn finished(&mut self, event: &Value) -> Vec<Output> {
        let outcome = &event["outcome"];
        if outcome["type"] == "cancelled" {
            return vec![Output::Done(Done::Cancelled)];
        }
        let mut output = Vec::new();
        if outcome["type"] == "interrupt" {
            for interrupt in outcome["interrupts"].as_array().into_iter().flatten() {
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
    fn event(&mut self, kind: &str, event: &Value) -> Vec<Output> {
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

    /// The output of all calls that were not told.
    fn tell_calls(&mut self) -> Vec<Output> {
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

/// The client's input, as far as it takes the place of what is known.
fn update(turn: &mut Turn, input: &ClientInput) {
    for (field, value) in input.fields() {
        match field {
            ClientInput::STATE => turn.state = value.clone(),
            field => drop(turn.input.insert(field.to_owned(), value.clone())),
        }
    }
    if input.get(ClientInput::TOOLS).is_some() {
        turn.client_tools = input.tools().map(str::to_owned).collect();
    }
}

/// A new name for a conversation.
fn new_thread_id() -> String {
    let random = || std::hash::RandomState::new().hash_one(std::process::id());
    format!("thread_{:016x}{:016x}", random(), random())
}

impl Protocol for AgUi {
    fn name(&self) -> &'static str {
        "ag-ui"
    }

    fn transcript(&self) -> usize {
        0
    }

    fn takes_history(&self) -> bool {
        true
    }

    fn takes(&self, _: &str) -> bool {
        true
    }

    fn started(&mut self) {
        (self.lines, self.turn, self.thread_id) = (Lines::default(), Turn::default(), None);
    }

    fn prepare(&mut self, _: &mut Prompt) -> Result<(), String> {
        self.hindrance.clone().map_or(Ok(()), Err)
    }

    fn prompt(&mut self, prompt: Prompt, out: &mut Vec<u8>) {
        self.is_cancelled = false;
        if self.thread_id.is_none() {
            self.is_recorded = prompt.session.is_some();
            self.thread_id = Some(prompt.session.unwrap_or_else(new_thread_id));
        }
        self.turn = Turn {
            run_id: format!("{}_{}", prompt.run.run_id, prompt.run.attempt),
            messages: Messages::after(prompt.messages),
            state: prompt.state,
            ..Turn::default()
        };
        update(&mut self.turn, &prompt.input);
        self.request(out);
    }

    fn read(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Vec<Output> {
        let mut output = Vec::new();
        for line in self.lines.push(bytes) {
            match line {
                Ok(line) => output.extend(self.heard(&line, out)),
                Err(too_long) => output.push(Output::Done(Done::Broken(too_long.to_string()))),
            }
        }
        output
    }

    fn ended(&mut self, ended: Ended) -> Vec<Output> {
        let error = format!("the process that asks the agent is gone: {ended}");
        vec![Output::Done(Done::Failed { error, retryable: true })]
    }

    fn cancel(&mut self, out: &mut Vec<u8>) -> bool {
        self.is_cancelled = true;
        self.order(What::Cancel, out);
        true
    }

    fn permit(&mut self, request_id: &str, choice: Option<&str>, out: &mut Vec<u8>) {
        let mut interrupts = self.turn.interrupts.iter_mut();
        if let Some(interrupt) = interrupts.find(|interrupt| interrupt.id == request_id) {
            interrupt.answer(choice);
            self.go_on(out);
        }
    }

    fn tool_result(&mut self, result: &ToolResult, input: &ClientInput, out: &mut Vec<u8>) {
        let turn = &mut self.turn;
        turn.calls.remove(&result.call_id);
        let content = match &result.outcome {
            Ok(Value::String(text)) => text.clone(),
            Ok(value) => value.to_string(),
            Err(error) => error.clone(),
        };
        let (id, call_id) = (format!("tool_{}", result.call_id), &result.call_id);
        let mut message = json!({ "id": id, "role": "tool", "toolCallId": call_id, "content": content });
        if let Err(error) = &result.outcome {
            message["error"] = error.clone().into();
        }
        turn.results.push(message);
        update(turn, input);
        self.go_on(out);
    }
}
