//! An agent behind HTTP that speaks AG-UI, such as those of LangGraph, Pydantic AI and Mastra.
//!
//! The program is a process of our own ([`crate::model`]), which makes one request at a time and prints the events of
//! the answer. An agent that waits for a tool of the client, or for permission, ends its run in AG-UI; here the attempt
//! continues, and the answers go into the next request.

mod interrupt;
mod messages;
mod turn;

use std::hash::BuildHasher;
use std::time::Duration;

use serde_json::{Value, json};
use thread_conversation::{ClientInput, Spent, ToolResult, Usage};

use self::messages::Messages;
use self::turn::Turn;
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
        if std::mem::take(&mut turn.is_own_way) {
            let mut payloads = resume.into_iter().map(|mut one| match one["payload"].take() {
                Value::Null => json!({ "approved": false }),
                payload => payload,
            });
            // One that waits for several answers is given the first.
            let answer = payloads.next().unwrap_or(Value::Null);
            match &mut input["forwardedProps"] {
                Value::Object(given) => drop(given.insert("command".to_owned(), json!({ "resume": answer }))),
                given => *given = json!({ "command": { "resume": answer } }),
            }
        } else if !resume.is_empty() {
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
        self.turn.update(&prompt.input);
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
        turn.update(input);
        self.go_on(out);
    }
}

#[cfg(test)]
mod tests;
