//! A model behind HTTP, with OpenAI's chat completions.
//!
//! The program is a process of our own ([`crate::model`]), which asks the model for one turn at a time and calls tools.
//! The whole memory of such an agent is the thread: what is done follows from its events ([`crate::memory`]).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value, json};
use thread_conversation::{ClientInput, ModelTurn, ToolCall, ToolResult};

use super::{Done, Ended, Output, Prompt, Protocol, context_text, send};
use crate::lines::Lines;
use crate::memory::Limits;
use crate::model::{Endpoint, Failed, Heard, Marks, Order, Reply, ToolServer, What, digest_of, function};
use crate::notes::Notebook;

#[derive(Debug)]
pub struct OpenAi {
    options: ModelOptions,
    lines: Lines,
    /// The number of the last order.
    last_id: u64,
    /// What is under way, by the numbers of the orders.
    asked: BTreeMap<u64, Asked>,
    /// The tools of the servers, once they are known.
    tools: Option<BTreeMap<String, Marks>>,
    /// How long the last request was, in bytes.
    sent: usize,
    /// It was asked to stop.
    is_cancelled: bool,
}

/// Settings of a model.
#[derive(Debug)]
pub struct ModelOptions {
    pub endpoint: Endpoint,
    pub model: String,
    /// The file with the system text.
    pub system: Option<PathBuf>,
    pub servers: Vec<ToolServer>,
    /// The folder in which servers are started; made when it is needed.
    pub folder: PathBuf,
    pub notebook: Option<Notebook>,
    /// How many turns a run may have.
    pub max_turns: u64,
    /// How many tokens the model can read, if that is known.
    pub context: Option<u64>,
    /// Why it cannot be asked at all: then each attempt fails for good.
    pub hindrance: Option<String>,
}

/// What an order is about.
#[derive(Debug)]
enum Asked {
    Servers,
    /// A turn, with the digest of its system text, and the newest note that its prompt knows of.
    Turn {
        system: String,
        notes: i64,
    },
    Summary {
        upto: i64,
    },
    Call {
        call_id: String,
        name: String,
    },
    Cancel,
}

impl OpenAi {
    pub fn new(options: ModelOptions) -> OpenAi {
        let lines = Lines::default();
        OpenAi {
            options,
            lines,
            last_id: 0,
            asked: BTreeMap::new(),
            tools: None,
            sent: 0,
            is_cancelled: false,
        }
    }

    /// How long what a run asks for may be.
    pub fn limits(&self) -> Limits {
        let system = self.options.system.as_ref().and_then(|file| std::fs::metadata(file).ok());
        let system = system.map_or(0, |about| usize::try_from(about.len()).unwrap_or(usize::MAX));
        let tools: usize = self.tools.iter().flatten().map(|(_, marks)| marks.size).sum();
        let besides =
            system.saturating_add(tools).saturating_add(self.notebook().map_or(0, |_| Notebook::SIZE));
        Limits { turns: self.options.max_turns, context: self.options.context, besides, yields: false }
    }

    pub fn notebook(&self) -> Option<&Notebook> {
        self.options.notebook.as_ref()
    }

    /// Whether it is known which tools there are.
    pub fn knows_tools(&self) -> bool {
        self.options.servers.is_empty() || self.tools.is_some()
    }

    /// The servers of tools are asked again which there are.
    pub fn forget_tools(&mut self) {
        self.tools = None;
    }

    /// What is known of a tool; `None` if there is no such tool.
    pub fn marks(&self, tool: &str) -> Option<Marks> {
        if self.is_notebooks(tool) {
            return Some(Notebook::marks());
        }
        self.tools.as_ref()?.get(tool).copied()
    }

    /// Whether a tool is one for the notes.
    pub fn is_notebooks(&self, tool: &str) -> bool {
        self.options.notebook.is_some() && Notebook::has(tool)
    }

    /// Whether the model's turn is awaited.
    pub fn is_asking_model(&self) -> bool {
        self.asked.values().any(|asked| matches!(asked, Asked::Turn { .. }))
    }

    /// Starts the servers of tools that are not running. [`Output::Tools`] follows.
    pub fn connect(&mut self, out: &mut Vec<u8>) {
        let folder = &self.options.folder;
        // If it cannot be made, the servers cannot be started, and say so.
        drop(std::fs::create_dir_all(folder));
        let what = What::Connect { servers: self.options.servers.clone(), cwd: folder.clone() };
        self.order(Asked::Servers, what, out);
    }

    /// Asks for a summary. [`Output::Summary`] follows.
    pub fn summarise(&mut self, messages: Vec<Value>, upto: i64, out: &mut Vec<u8>) {
        self.is_cancelled = false;
        self.sent = messages.iter().map(|message| message.to_string().len()).sum();
        let (endpoint, model) = (self.options.endpoint.clone(), self.options.model.clone());
        let what = What::Ask { endpoint, model, messages, tools: Vec::new(), has_servers: false };
        self.order(Asked::Summary { upto }, what, out);
    }

    /// Makes a call. Its result follows.
    pub fn call(&mut self, call: &ToolCall, limit: Duration, out: &mut Vec<u8>) {
        let asked = Asked::Call { call_id: call.call_id.clone(), name: call.name.clone() };
        let arguments: Map<String, Value> = call.arguments.as_object().cloned().unwrap_or_default();
        let again = self.marks(&call.name).is_some_and(Marks::may_repeat);
        self.order(asked, What::Call { name: call.name.clone(), arguments, limit, again }, out);
    }

    /// The client's tools, without those that have the name of one of the agent's own.
    fn clients(&self, input: &ClientInput) -> impl Iterator<Item = Value> {
        let tools = input.get(ClientInput::TOOLS).and_then(Value::as_array).into_iter().flatten();
        tools.filter_map(|tool| {
            let name = tool["name"].as_str().filter(|name| self.marks(name).is_none())?;
            let parameters = match &tool["parameters"] {
                Value::Object(schema) => json!(schema),
                _ => json!({ "type": "object" }),
            };
            Some(function(name, tool["description"].as_str().unwrap_or_default(), parameters))
        })
    }

    fn order(&mut self, asked: Asked, what: What, out: &mut Vec<u8>) {
        self.last_id += 1;
        self.asked.insert(self.last_id, asked);
        let order = Order { id: self.last_id, what };
        send(out, serde_json::to_value(order).unwrap_or(Value::Null));
    }

    /// The output in a line of the process; none if it is about something that was given up.
    fn heard(&mut self, line: &[u8]) -> Vec<Output> {
        let Ok(Reply { id, heard }) = serde_json::from_slice(line) else {
            let error = "the process that asks the model has printed something else".to_owned();
            return vec![Output::Done(Done::Broken(error))];
        };
        if let Heard::Tools(tools) = heard {
            self.tools = Some(tools);
            let is_answer = self.asked.get(&id).is_some_and(|asked| matches!(asked, Asked::Servers));
            if is_answer {
                self.asked.remove(&id);
            }
            return is_answer.then_some(Output::Tools).into_iter().collect();
        }
        if !self.asked.contains_key(&id) {
            return Vec::new();
        }
        match heard {
            Heard::Token(_) | Heard::Thinking(_)
                if matches!(self.asked.get(&id), Some(Asked::Summary { .. })) =>
            {
                Vec::new()
            }
            Heard::Token(text) => vec![Output::Token(text)],
            Heard::Thinking(text) => vec![Output::Thinking(text)],
            Heard::Note(text) => vec![Output::Note(text)],
            heard => self.asked.remove(&id).map_or_else(Vec::new, |asked| self.done(asked, heard)),
        }
    }

    /// The output of an order that is done.
    fn done(&mut self, asked: Asked, heard: Heard) -> Vec<Output> {
        match (asked, heard) {
            (Asked::Cancel, _) => {
                self.asked.clear();
                vec![Output::Done(Done::Cancelled)]
            }
            // Something was finished just when it should stop.
            (Asked::Turn { .. } | Asked::Summary { .. }, _) if self.is_cancelled => Vec::new(),
            (Asked::Turn { system, notes }, Heard::Turn(turn)) => {
                vec![Output::Turn(ModelTurn { system, notes, ..turn })]
            }
            (Asked::Summary { upto }, Heard::Turn(turn)) => vec![Output::Summary { text: turn.text(), upto }],
            (
                Asked::Turn { .. } | Asked::Summary { .. },
                Heard::Failed(Failed { error, context: Some(said), .. }),
            ) => {
                // What was sent was too long, whatever the number of its tokens is.
                let less = self.sent as u64 / 4 / 4 * 3;
                let known = self.options.context.into_iter().chain(Some(said).filter(|said| *said > 0));
                self.options.context = known.chain([less]).min();
                vec![Output::TooLong(error)]
            }
            (
                Asked::Turn { .. } | Asked::Summary { .. },
                Heard::Failed(Failed { error, retryable, retry_after, .. }),
            ) => {
                let wait = retry_after.map(|seconds| Output::RetryAfter(Duration::from_secs(seconds)));
                wait.into_iter().chain([Output::Done(Done::Failed { error, retryable })]).collect()
            }
            (Asked::Call { call_id, name }, Heard::Returned(outcome)) => {
                vec![Output::Result(ToolResult::new(call_id, name, outcome.map(Value::String)))]
            }
            _ => Vec::new(),
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

    fn model(&mut self) -> Option<&mut OpenAi> {
        Some(self)
    }

    fn transcript(&self) -> usize {
        0
    }

    fn takes(&self, field: &str) -> bool {
        matches!(field, ClientInput::TOOLS | ClientInput::CONTEXT)
    }

    fn started(&mut self) {
        (self.lines, self.asked, self.tools) = (Lines::default(), BTreeMap::new(), None);
    }

    fn prepare(&mut self, prompt: &mut Prompt) -> Result<(), String> {
        if let Some(hindrance) = &self.options.hindrance {
            return Err(hindrance.clone());
        }
        let own = self.options.system.as_ref().map(|file| {
            std::fs::read_to_string(file)
                .map_err(|e| format!("cannot read the system text in {}: {e}", file.display()))
        });
        let clients = prompt.input.get(ClientInput::CONTEXT).map(context_text);
        let text: Vec<String> = own.transpose()?.into_iter().chain(clients).collect();
        if !text.is_empty() {
            prompt.messages.insert(0, json!({ "role": "system", "content": text.join("\n\n") }));
        }
        Ok(())
    }

    fn prompt(&mut self, mut prompt: Prompt, out: &mut Vec<u8>) {
        self.is_cancelled = false;
        let mut messages = std::mem::take(&mut prompt.messages);
        let system = messages.first().filter(|first| first["role"] == "system");
        let system = system.and_then(|system| system["content"].as_str()).map(str::to_owned);
        let digest = system.as_deref().map(digest_of).unwrap_or_default();
        let notebook = self.options.notebook.as_ref();
        // A prompt without notes is better than none.
        let (notes, newest) = notebook.and_then(|notebook| notebook.in_prompt().ok()).unwrap_or_default();
        if !notes.is_empty() {
            // In one message with the system text: some models take no other.
            match system {
                Some(text) => messages[0]["content"] = format!("{text}\n\n{notes}").into(),
                None => messages.insert(0, json!({ "role": "system", "content": notes })),
            }
        }
        let (endpoint, model) = (self.options.endpoint.clone(), self.options.model.clone());
        let mut tools = notebook.map(|_| Notebook::described()).unwrap_or_default();
        tools.extend(self.clients(&prompt.input));
        self.sent = messages.iter().chain(&tools).map(|part| part.to_string().len()).sum::<usize>();
        self.sent += self.tools.iter().flatten().map(|(_, marks)| marks.size).sum::<usize>();
        let asked = Asked::Turn { system: digest, notes: newest };
        self.order(asked, What::Ask { endpoint, model, messages, tools, has_servers: true }, out);
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
        self.is_cancelled = true;
        self.order(Asked::Cancel, What::Cancel, out);
        true
    }
}
