//! A run as a chat completion, whole or in chunks.

use serde_json::{Value, json};
use thread::model::time;

use super::super::asked::Begun;
use super::super::calls::CALL;
use super::super::error::OpenAiError;
use super::super::ids;
use super::super::pieces::{End, Piece, Used};

/// What is the same in all chunks of a completion.
pub struct Printer {
    begun: Begun,
    model: String,
    include_usage: bool,
    /// It is not a stream.
    is_whole: bool,
    /// When the run's message was stored, in seconds since 1970.
    created: i64,
    has_content: bool,
    /// What the whole completion has. Of a stream, nothing is kept.
    content: String,
    reasoning: String,
    calls: Vec<Value>,
    finish: Option<&'static str>,
    failed: Option<OpenAiError>,
}

impl Printer {
    pub fn new(begun: Begun, model: String, is_whole: bool, include_usage: bool) -> Printer {
        Printer {
            begun,
            model,
            include_usage,
            is_whole,
            created: 0,
            has_content: false,
            content: String::new(),
            reasoning: String::new(),
            calls: Vec::new(),
            finish: None,
            failed: None,
        }
    }

    /// The time of the completion: when its event was stored.
    pub fn at(&mut self, event: i64, created_at: &str) {
        if event == self.begun.start.event {
            self.created = time::parse(created_at).map_or(0, |time| time.timestamp());
        }
    }

    /// The event that begins it: a continued run has others before it.
    pub fn begins_at(&self) -> i64 {
        self.begun.start.event
    }

    /// Whether nothing follows.
    pub fn is_over(&self) -> bool {
        self.finish.is_some() || self.failed.is_some()
    }

    /// Why there is no answer.
    pub fn failed(&mut self) -> Option<OpenAiError> {
        self.failed.take()
    }

    fn head(&self, object: &str) -> Value {
        let (Begun { session, start }, created) = (self.begun, self.created);
        let id = ids::id("chatcmpl-", session, start.event);
        json!({ "id": id, "object": object, "created": created, "model": self.model })
    }

    fn chunk(&self, delta: Value, finish: Option<&str>) -> Value {
        let mut chunk = self.head("chat.completion.chunk");
        chunk["choices"] = json!([{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish }]);
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    /// The chunk with which a stream begins.
    pub fn begin(&self) -> Value {
        self.chunk(json!({ "role": "assistant", "content": "" }), None)
    }

    /// Takes in a piece, of the event with this id. Returns the chunks for it.
    pub fn piece(&mut self, event: i64, piece: Piece) -> Vec<Value> {
        let delta = match piece {
            Piece::Text { text, is_new } => {
                let text = if is_new && self.has_content { format!("\n\n{text}") } else { text };
                self.has_content = true;
                if self.is_whole {
                    self.content.push_str(&text);
                }
                json!({ "content": text })
            }
            Piece::Reasoning(text) => self.reason(text),
            Piece::Failed(why) => {
                // Nobody has seen it yet, unless it was streamed.
                if self.is_whole {
                    self.content.clear();
                    self.has_content = false;
                }
                self.reason(format!("\nThe attempt failed: {why}\n"))
            }
            Piece::Call { name, arguments } => {
                let id = ids::id(CALL, self.begun.session, event);
                let call = json!({
                    "id": id,
                    "type": "function",
                    "function": { "name": name, "arguments": arguments },
                });
                self.calls.push(call.clone());
                let mut delta = call;
                delta["index"] = 0.into();
                self.finish = Some("tool_calls");
                let chunk = self.chunk(json!({ "tool_calls": [delta] }), None);
                return vec![chunk, self.chunk(json!({}), self.finish)];
            }
            Piece::End(End::Answered { cut }) => {
                self.finish = Some(if cut { "length" } else { "stop" });
                return vec![self.chunk(json!({}), self.finish)];
            }
            Piece::End(End::Cancelled(why)) => {
                let delta = self.reason(format!("\nThe run was cancelled: {why}\n"));
                self.finish = Some("stop");
                return vec![self.chunk(delta, None), self.chunk(json!({}), self.finish)];
            }
            Piece::End(End::Failed(why)) => {
                let error = OpenAiError::run_failed(&why);
                let body = error.body();
                self.failed = Some(error);
                return vec![body];
            }
        };
        vec![self.chunk(delta, None)]
    }

    fn reason(&mut self, text: String) -> Value {
        if self.is_whole {
            self.reasoning.push_str(&text);
        }
        json!({ "reasoning_content": text })
    }

    /// The chunk with the tokens that were used, if the client asks for it.
    pub fn usage(&self, used: Option<Used>) -> Option<Value> {
        let mut chunk = self.head("chat.completion.chunk");
        chunk["choices"] = json!([]);
        chunk["usage"] = usage(used);
        Some(chunk).filter(|_| self.include_usage && self.failed.is_none())
    }

    /// The whole completion.
    pub fn whole(self, used: Option<Used>) -> Value {
        let mut whole = self.head("chat.completion");
        let content =
            if self.content.is_empty() && !self.calls.is_empty() { Value::Null } else { self.content.into() };
        let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = self.reasoning.into();
        }
        if !self.calls.is_empty() {
            message["tool_calls"] = self.calls.into();
        }
        let choice =
            json!({ "index": 0, "message": message, "logprobs": null, "finish_reason": self.finish });
        whole["choices"] = json!([choice]);
        whole["usage"] = usage(used);
        whole
    }
}

/// The tokens that were used; null if the agent does not say.
fn usage(used: Option<Used>) -> Value {
    used.map_or(Value::Null, |Used { input, output, total }| {
        json!({ "prompt_tokens": input, "completion_tokens": output, "total_tokens": total })
    })
}
