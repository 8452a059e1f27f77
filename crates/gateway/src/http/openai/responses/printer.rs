//! A run as a response and its stream of frames.
//!
//! A frame's `sequence_number` is the id of the event that it comes from, times 16, plus its place among the frames of
//! that event. So a stream that was cut continues at any frame, from any gateway, also after a kill.

use serde_json::{Value, json};
use thread::model::time;
use thread_conversation::{ClientInput, Entry, Record};

use super::super::asked::Begun;
use super::super::calls::CALL;
use super::super::ids;
use super::super::path::About;
use super::super::pieces::{End, Piece, Shown, Used};

/// The prefix of the ids of responses.
pub const RESPONSE: &str = "resp_";

/// How many frames an event may have.
const FRAMES: i64 = 16;

/// A frame, with its number.
pub type Frame = (i64, Value);

/// The kinds of items that grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Reasoning,
}

/// The item that is open.
struct Open {
    kind: Kind,
    text: String,
}

/// A response, as far as its events are known.
pub struct Printer {
    begun: Begun,
    model: String,
    about: Value,
    created_at: i64,
    completed_at: Option<i64>,
    status: &'static str,
    error: Value,
    used: Option<Used>,
    output: Vec<Value>,
    open: Option<Open>,
    has_started: bool,
    /// The last event, and whether events before it are gone: then pieces of text may be.
    last: i64,
    is_pruned: bool,
    frames: Vec<Frame>,
}

impl Printer {
    /// `model` is the name of the agent, if the message names none.
    pub fn new(begun: Begun, model: String) -> Printer {
        Printer {
            begun,
            model,
            about: json!({ "background": false, "previous_response_id": null }),
            created_at: 0,
            completed_at: None,
            status: "queued",
            error: Value::Null,
            used: None,
            output: Vec::new(),
            open: None,
            has_started: false,
            last: 0,
            is_pruned: false,
            frames: Vec::new(),
        }
    }

    pub fn is_over(&self) -> bool {
        !matches!(self.status, "queued" | "in_progress")
    }

    /// Takes in an event and what it shows. Returns its frames.
    pub fn event(&mut self, record: &Record, pieces: Vec<Piece>, shown: &Shown) -> Vec<Frame> {
        let (id, start) = (record.id(), self.begun.start);
        if self.is_over() {
            return Vec::new();
        }
        self.is_pruned |= self.last > 0 && id > self.last + 1;
        self.last = id;
        if id == start.message
            && let Entry::Message(message) = &record.entry
        {
            self.begin(About::of(message).unwrap_or_default(), &record.input());
        }
        let at = time::parse(&record.event.created_at).map_or(0, |at| at.timestamp());
        if id == start.event {
            self.created_at = at;
            self.frame(id, "created", None);
        }
        if id >= start.event && shown.has_started() && !self.has_started {
            self.has_started = true;
            self.status = "in_progress";
            self.frame(id, "in_progress", None);
        }
        self.used = shown.used;
        for piece in pieces {
            if !self.is_over() {
                self.piece(id, at, piece, record.entry.ending().is_some());
            }
        }
        std::mem::take(&mut self.frames)
    }

    /// What the message says about the response.
    fn begin(&mut self, about: About, input: &ClientInput) {
        let is_new = self.begun.start.event == self.begun.start.message;
        self.model = about.model.unwrap_or_else(|| std::mem::take(&mut self.model));
        let of = |values: Option<&Value>| values.and_then(Value::as_array).cloned().unwrap_or_default();
        let texts = of(input.get(ClientInput::CONTEXT)).into_iter();
        let texts: Vec<String> = texts.filter_map(|one| one["value"].as_str().map(str::to_owned)).collect();
        let function = |tool: Value| {
            json!({
                "type": "function",
                "name": tool["name"],
                "description": tool["description"],
                "parameters": tool["parameters"],
                "strict": false,
            })
        };
        let tools: Vec<Value> = of(input.get(ClientInput::TOOLS)).into_iter().map(function).collect();
        self.about = json!({
            "background": about.background,
            "previous_response_id": about.previous.filter(|_| is_new),
            "instructions": if texts.is_empty() { Value::Null } else { texts.join("\n\n").into() },
            "tools": tools,
        });
    }

    fn piece(&mut self, id: i64, at: i64, piece: Piece, is_ending: bool) {
        match piece {
            Piece::Text { text, is_new } => {
                if is_new {
                    self.close(id, "completed");
                }
                // Pieces that are gone were shown to clients: only the whole text stands for them.
                self.grow(id, Kind::Text, &text, !(is_ending && self.is_pruned));
            }
            Piece::Reasoning(text) => self.grow(id, Kind::Reasoning, &text, true),
            Piece::Failed(why) => {
                self.close(id, "incomplete");
                self.grow(id, Kind::Reasoning, &format!("The attempt failed: {why}\n"), true);
            }
            Piece::Call { name, arguments } => {
                self.close(id, "completed");
                self.call(id, &name, &arguments);
                self.end(id, at, "completed");
            }
            Piece::End(end) => {
                self.close(id, if matches!(end, End::Answered { .. }) { "completed" } else { "incomplete" });
                match end {
                    End::Answered { cut: false } => self.end(id, at, "completed"),
                    End::Answered { cut: true } => self.end(id, at, "incomplete"),
                    End::Cancelled(_) => self.end(id, at, "cancelled"),
                    End::Failed(why) => {
                        self.error = json!({ "code": "server_error", "message": why });
                        self.end(id, at, "failed");
                    }
                }
            }
        }
    }

    fn item_id(&self, prefix: &str) -> String {
        let Begun { session, start } = self.begun;
        format!("{}_{}", ids::id(prefix, session, start.event), self.output.len())
    }

    /// The open item, with this status.
    fn item(&self, open: &Open, status: &str) -> Value {
        let is_new = status == "in_progress";
        match open.kind {
            Kind::Text => {
                let content = if is_new { Vec::new() } else { vec![part(open.kind, &open.text)] };
                json!({
                    "type": "message",
                    "id": self.item_id("msg_"),
                    "status": status,
                    "role": "assistant",
                    "content": content,
                })
            }
            Kind::Reasoning => {
                let summary = if is_new { Vec::new() } else { vec![part(open.kind, &open.text)] };
                json!({ "type": "reasoning", "id": self.item_id("rs_"), "summary": summary })
            }
        }
    }

    /// Adds text to the open item, or to a new one.
    fn grow(&mut self, id: i64, kind: Kind, text: &str, is_told: bool) {
        if self.open.as_ref().is_none_or(|open| open.kind != kind) {
            self.close(id, "completed");
            let open = Open { kind, text: String::new() };
            let item = self.item(&open, "in_progress");
            self.frame(id, "output_item.added", Some(json!({ "item": item })));
            self.part_frame(id, kind, "added", json!({ "part": part(kind, "") }));
            self.open = Some(open);
        }
        if let Some(open) = &mut self.open {
            open.text.push_str(text);
        }
        if is_told {
            self.text_frame(id, kind, "delta", text);
        }
    }

    fn close(&mut self, id: i64, status: &str) {
        let Some(open) = self.open.take() else { return };
        self.text_frame(id, open.kind, "done", &open.text);
        self.part_frame(id, open.kind, "done", json!({ "part": part(open.kind, &open.text) }));
        let item = self.item(&open, status);
        self.frame(id, "output_item.done", Some(json!({ "item": item })));
        self.output.push(item);
    }

    /// A call of one of the client's functions.
    fn call(&mut self, id: i64, name: &str, arguments: &str) {
        let item_id = self.item_id("fc_");
        let call_id = ids::id(CALL, self.begun.session, id);
        let item = |status: &str, arguments: &str| {
            json!({
                "type": "function_call",
                "id": item_id,
                "call_id": call_id,
                "name": name,
                "arguments": arguments,
                "status": status,
            })
        };
        self.frame(id, "output_item.added", Some(json!({ "item": item("in_progress", "") })));
        let delta = json!({ "item_id": item_id, "delta": arguments });
        self.frame(id, "function_call_arguments.delta", Some(delta));
        let done = json!({ "item_id": item_id, "arguments": arguments, "name": name });
        self.frame(id, "function_call_arguments.done", Some(done));
        let done = item("completed", arguments);
        self.frame(id, "output_item.done", Some(json!({ "item": done })));
        self.output.push(done);
    }

    fn end(&mut self, id: i64, at: i64, status: &'static str) {
        (self.status, self.completed_at) = (status, Some(at));
        // There is no frame of that name for a response that was cancelled.
        self.frame(id, if status == "cancelled" { "incomplete" } else { status }, None);
    }

    fn text_frame(&mut self, id: i64, kind: Kind, what: &str, text: &str) {
        let key = if what == "delta" { "delta" } else { "text" };
        let (name, about) = match kind {
            Kind::Text => (
                format!("output_text.{what}"),
                json!({ "item_id": self.item_id("msg_"), "content_index": 0, "logprobs": [], key: text }),
            ),
            Kind::Reasoning => (
                format!("reasoning_summary_text.{what}"),
                json!({ "item_id": self.item_id("rs_"), "summary_index": 0, key: text }),
            ),
        };
        self.frame(id, &name, Some(about));
    }

    fn part_frame(&mut self, id: i64, kind: Kind, what: &str, mut about: Value) {
        let (name, prefix, index) = match kind {
            Kind::Text => ("content_part", "msg_", "content_index"),
            Kind::Reasoning => ("reasoning_summary_part", "rs_", "summary_index"),
        };
        about["item_id"] = self.item_id(prefix).into();
        about[index] = 0.into();
        self.frame(id, &format!("{name}.{what}"), Some(about));
    }

    /// A frame: about the item that is the next of the output, or about the response.
    fn frame(&mut self, id: i64, name: &str, about: Option<Value>) {
        let number = id * FRAMES + self.frames.len() as i64;
        let mut frame = match about {
            Some(mut about) => {
                about["output_index"] = self.output.len().into();
                about
            }
            None => json!({ "response": self.response() }),
        };
        frame["type"] = format!("response.{name}").into();
        frame["sequence_number"] = number.into();
        self.frames.push((number, frame));
    }

    /// The response as it is now.
    pub fn response(&self) -> Value {
        let Begun { session, start } = self.begun;
        let cut = json!({ "reason": "max_output_tokens" });
        let usage = self.used.map_or(Value::Null, |Used { input, output, total }| {
            json!({
                "input_tokens": input,
                "output_tokens": output,
                "total_tokens": total,
                "input_tokens_details": { "cached_tokens": 0, "cache_write_tokens": 0 },
                "output_tokens_details": { "reasoning_tokens": 0 },
            })
        });
        json!({
            "id": ids::id(RESPONSE, session, start.event),
            "object": "response",
            "created_at": self.created_at,
            "completed_at": self.completed_at.filter(|_| self.status == "completed"),
            "status": self.status,
            "incomplete_details": if self.status == "incomplete" { cut } else { Value::Null },
            "model": self.model,
            "previous_response_id": self.about["previous_response_id"],
            "instructions": self.about["instructions"],
            "output": self.output,
            "error": self.error,
            "tools": self.about["tools"].as_array().cloned().unwrap_or_default(),
            "tool_choice": "auto",
            "truncation": "disabled",
            "parallel_tool_calls": true,
            "text": { "format": { "type": "text" } },
            "top_p": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "top_logprobs": 0,
            "temperature": 1.0,
            "reasoning": null,
            "usage": if self.is_over() { usage } else { Value::Null },
            "max_output_tokens": null,
            "max_tool_calls": null,
            "store": true,
            "background": self.about["background"],
            "service_tier": "default",
            "metadata": {},
            "safety_identifier": null,
            "prompt_cache_key": null,
        })
    }
}

/// The only part of an item that grows.
fn part(kind: Kind, text: &str) -> Value {
    match kind {
        Kind::Text => json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] }),
        Kind::Reasoning => json!({ "type": "summary_text", "text": text }),
    }
}
