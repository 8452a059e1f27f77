//! A model behind HTTP, with OpenAI's chat completions.
//!
//! The program is a process of our own ([`crate::model`]), which asks the model for one turn at a time and keeps
//! nothing. The whole memory of such an agent is the thread: what is asked follows from its events
//! ([`crate::memory`]).

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use thread_conversation::ModelTurn;

use super::{Done, Ended, Output, Prompt, Protocol, send};
use crate::lines::Lines;
use crate::model::{Endpoint, Failed, Heard, Order, Reply};

#[derive(Debug)]
pub struct OpenAi {
    endpoint: Endpoint,
    model: String,
    /// The file with the system text.
    system: Option<PathBuf>,
    /// Why it cannot be asked at all.
    hindrance: Option<String>,
    lines: Lines,
    /// The number of the last order.
    last_id: u64,
    /// The order that is under way, with the digest of its system text.
    asked: Option<(u64, String)>,
    /// It was asked to stop.
    is_cancelled: bool,
}

impl OpenAi {
    /// The protocol for a model. `system` is the file with the system text; because of a `hindrance` each attempt fails
    /// for good.
    pub fn new(
        endpoint: Endpoint,
        model: String,
        system: Option<PathBuf>,
        hindrance: Option<String>,
    ) -> OpenAi {
        let (lines, asked) = (Lines::default(), None);
        OpenAi { endpoint, model, system, hindrance, lines, last_id: 0, asked, is_cancelled: false }
    }

    /// The output in a line of the process; none if it is about an earlier order.
    fn heard(&mut self, line: &[u8]) -> Vec<Output> {
        let Ok(Reply { id, heard }) = serde_json::from_slice(line) else {
            let error = "the process that asks the model has printed something else".to_owned();
            return vec![Output::Done(Done::Broken(error))];
        };
        let Some((_, system)) = self.asked.take_if(|(asked, _)| *asked == id) else { return Vec::new() };
        match heard {
            Heard::Token(text) => {
                self.asked = Some((id, system));
                vec![Output::Token(text)]
            }
            Heard::Thinking(text) => {
                self.asked = Some((id, system));
                vec![Output::Thinking(text)]
            }
            // It was finished just when it should stop.
            Heard::Turn(_) if self.is_cancelled => vec![Output::Done(Done::Cancelled)],
            Heard::Turn(turn) => vec![Output::Turn(ModelTurn { system, ..turn })],
            Heard::Failed(Failed { error, retryable, retry_after }) => {
                let wait = retry_after.map(|seconds| Output::RetryAfter(Duration::from_secs(seconds)));
                wait.into_iter().chain([Output::Done(Done::Failed { error, retryable })]).collect()
            }
            Heard::Stopped => vec![Output::Done(Done::Cancelled)],
        }
    }
}

impl Protocol for OpenAi {
    fn name(&self) -> &'static str {
        "openai"
    }

    fn remembers_by_thread(&self) -> bool {
        true
    }

    fn transcript(&self) -> usize {
        0
    }

    fn takes(&self, _: &str) -> bool {
        false
    }

    fn started(&mut self) {
        (self.lines, self.asked) = (Lines::default(), None);
    }

    fn prepare(&mut self, prompt: &mut Prompt) -> Result<(), String> {
        if let Some(hindrance) = &self.hindrance {
            return Err(hindrance.clone());
        }
        let Some(file) = &self.system else { return Ok(()) };
        let text = std::fs::read_to_string(file)
            .map_err(|e| format!("cannot read the system text in {}: {e}", file.display()))?;
        prompt.messages.insert(0, json!({ "role": "system", "content": text }));
        Ok(())
    }

    fn prompt(&mut self, prompt: Prompt, out: &mut Vec<u8>) {
        self.last_id += 1;
        self.is_cancelled = false;
        let system = prompt.messages.first().filter(|first| first["role"] == "system");
        let digest = system.and_then(|system| system["content"].as_str()).map(digest_of);
        self.asked = Some((self.last_id, digest.unwrap_or_default()));
        let (endpoint, model) = (self.endpoint.clone(), self.model.clone());
        let order = Order::Ask { id: self.last_id, endpoint, model, messages: prompt.messages };
        send(out, serde_json::to_value(order).unwrap_or(Value::Null));
    }

    fn read(&mut self, bytes: &[u8], _: &mut Vec<u8>) -> Vec<Output> {
        let mut output = Vec::new();
        for line in self.lines.push(bytes) {
            match line {
                Ok(line) => output.extend(self.heard(&line)),
                Err(too_long) => output.push(Output::Done(Done::Broken(too_long.to_string()))),
            }
        }
        output
    }

    fn ended(&mut self, ended: Ended) -> Vec<Output> {
        let error = format!("the process that asks the model is gone: {ended}");
        vec![Output::Done(Done::Failed { error, retryable: true })]
    }

    fn cancel(&mut self, out: &mut Vec<u8>) -> bool {
        if self.asked.is_none() {
            return false;
        }
        self.is_cancelled = true;
        send(out, serde_json::to_value(Order::Cancel).unwrap_or(Value::Null));
        true
    }
}

fn digest_of(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}
