//! A conversation as events of a thread: what each kind looks like, and how it is read back.
//!
//! Everything that is said, and everything the agent does in answer, is an event. This module is the one
//! place that knows the shapes: [`Message`], [`Run`] and the free functions make [`NewEvent`]s,
//! [`Entry::of`] reads stored ones. Nothing here touches a file or a process.
//!
//! | who | makes an event with | reads it back as |
//! |---|---|---|
//! | somebody speaks | [`Message::event`] | [`Entry::Message`] |
//! | somebody asks for an end | [`cancel`] | [`Entry::Cancel`] |
//! | somebody answers a question of the agent | [`permission_answer`] | [`Entry::PermissionAnswer`] |
//! | somebody names the conversation | [`title`] | [`Entry::Title`] |
//! | the agent works | the methods of [`Run`] | the other variants of [`Entry`] |
//!
//! # Runs
//!
//! A *run* is all that is done in answer to one message. It has a run id, given by the sender or made from
//! the message's id ([`run_id_of`]). Two messages may carry the same run id; what tells their runs apart is
//! the id of the message, which the run's beginning and its ending name as `reply_to`. A run ends with
//! exactly one of an answer, an error that is not retryable, and a cancellation: each is pushed under the
//! key [`end_key`], so there can be only one, whichever process writes it. An event that looks like an
//! ending and is not the one stored under that key ends nothing.

mod parse;

use serde_json::{Map, Value, json};
use thread::NewEvent;
use thread::model::event::{InvalidEvent, Type};

pub use parse::Entry;

/// The source of everything that the agent's side writes.
pub const SELF: &str = "self";

/// The longest run id, in bytes. One that is longer, empty or has control characters counts as not given.
pub const MAX_RUN_ID: usize = 256;

/// The run that a message without a run id begins: `run_<event id>`.
pub fn run_id_of(event_id: i64) -> String {
    format!("run_{event_id}")
}

/// The idempotency key of the one ending of the run that answers this event.
pub fn end_key(event_id: i64) -> String {
    format!("end:{event_id}")
}

/// The idempotency key of the one result of a call that a sub-agent answers.
pub fn result_key(call_id: &str) -> String {
    format!("result:{call_id}")
}

/// The idempotency key of a sub-agent's event in its parent's thread.
pub fn sub_key(sub_agent: &str, event_id: i64) -> String {
    format!("sub:{sub_agent}:{event_id}")
}

/// When a message gets its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    /// Interrupts the run under way.
    Now,
    /// After the run under way, in the order of ids. What is none of these words counts as this.
    #[default]
    Next,
    /// Only when nothing else is pending.
    Later,
}

impl Priority {
    pub fn as_str(self) -> &'static str {
        match self {
            Priority::Now => "now",
            Priority::Next => "next",
            Priority::Later => "later",
        }
    }

    pub fn of(word: &str) -> Priority {
        match word {
            "now" => Priority::Now,
            "later" => Priority::Later,
            _ => Priority::Next,
        }
    }
}

/// What the agent is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Thinking,
    ExecutingTool,
    Streaming,
    Done,
}

impl Status {
    pub fn as_str(self) -> &'static str {
        match self {
            Status::Thinking => "thinking",
            Status::ExecutingTool => "executing_tool",
            Status::Streaming => "streaming",
            Status::Done => "done",
        }
    }

    pub fn of(word: &str) -> Option<Status> {
        [Status::Thinking, Status::ExecutingTool, Status::Streaming, Status::Done]
            .into_iter()
            .find(|status| status.as_str() == word)
    }
}

/// Something said by somebody other than the agent.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Message {
    /// Text, or the JSON text of an array of content parts: see [`text_of`].
    pub content: String,
    /// `None`: the run is called [`run_id_of`] the event.
    pub run_id: Option<String>,
    pub message_id: Option<String>,
    pub priority: Priority,
    /// Which client of a gateway sent it.
    pub client: Option<String>,
    /// If a message with priority `now` interrupts its run, it gets its turn again.
    pub resume: bool,
    /// All other keys of the metadata, kept and handed on as they are.
    pub other: Map<String, Value>,
}

impl Message {
    pub fn text(content: impl Into<String>) -> Message {
        Message { content: content.into(), ..Message::default() }
    }

    /// The event with which `source` says this. Add an idempotency key by
    /// [`NewEvent::with_key`].
    ///
    /// # Errors
    ///
    /// `source` is empty or has control characters.
    pub fn event(&self, source: &str) -> Result<NewEvent<'static>, InvalidEvent> {
        let mut metadata = Map::new();
        let mut put = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                metadata.insert(key.to_owned(), value);
            }
        };
        put("run_id", self.run_id.clone().map(Value::from));
        put("message_id", self.message_id.clone().map(Value::from));
        put("priority", (self.priority != Priority::Next).then(|| self.priority.as_str().into()));
        put("client", self.client.clone().map(Value::from));
        put("resume", self.resume.then_some(Value::Bool(true)));
        for (key, value) in &self.other {
            metadata.entry(key.clone()).or_insert_with(|| value.clone());
        }
        let event = NewEvent::message(source.to_owned(), self.content.clone())?;
        Ok(with(event, metadata))
    }
}

/// A call of a tool. `arguments` is any JSON, null if there are none.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    pub call_id: String,
    pub name: String,
    pub arguments: Value,
}

/// What became of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolResult {
    pub call_id: String,
    pub name: String,
    /// What the tool returned, any JSON; or why it failed.
    pub outcome: Result<Value, String>,
}

/// An answer, and what may be known about it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answer {
    pub content: String,
    pub message_id: Option<String>,
    pub total_tokens: Option<u64>,
    pub latency_ms: Option<u64>,
    pub stage: Option<String>,
}

/// The agent asks whether it may do something.
#[derive(Debug, Clone, PartialEq)]
pub struct Permission {
    /// By which the answer names it.
    pub request_id: String,
    /// What it wants to do, for people.
    pub title: String,
    /// The call it is about, if the agent has announced one.
    pub call_id: Option<String>,
    pub choices: Vec<Choice>,
}

/// A choice that somebody has who is asked for permission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// What the answer says.
    pub id: String,
    /// For people.
    pub name: String,
    /// `allow_once`, `allow_always`, `reject_once`, `reject_always`, or another word.
    pub kind: String,
}

/// Something that a sub-agent did, as its parent's thread tells it.
#[derive(Debug, Clone, PartialEq)]
pub struct SubAgent {
    pub parent_call_id: String,
    pub sub_agent: String,
    /// The event's id in the sub-agent's own thread.
    pub sub_event_id: i64,
    /// `tool_call`, `tool_result`, `status`, `final`, `error` or `cancelled`.
    pub event: String,
    pub payload: Value,
}

/// A run: the makers of all events that the agent's side writes about one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    pub run_id: String,
    /// The event that it answers.
    pub reply_to: i64,
}

impl Run {
    /// An attempt begins; the first is 1.
    pub fn started(&self, attempt: u64) -> NewEvent<'static> {
        let content = json!({ "status": "started", "attempt": attempt });
        self.ending("run", content.to_string())
    }

    /// A piece of the answer.
    pub fn token(&self, message_id: &str, text: impl Into<String>) -> NewEvent<'static> {
        self.record_with("token", text.into(), [("message_id", message_id.into())])
    }

    /// A piece of its thinking.
    pub fn thinking(&self, message_id: &str, text: impl Into<String>) -> NewEvent<'static> {
        self.record_with("thinking", text.into(), [("message_id", message_id.into())])
    }

    pub fn tool_call(&self, call: &ToolCall) -> NewEvent<'static> {
        let ToolCall { call_id, name, arguments } = call;
        let content = json!({ "call_id": call_id, "name": name, "arguments": arguments });
        self.record("toolcall", content.to_string())
    }

    pub fn tool_result(&self, result: &ToolResult) -> NewEvent<'static> {
        let ToolResult { call_id, name, outcome } = result;
        let content = match outcome {
            Ok(result) => json!({ "call_id": call_id, "name": name, "result": result }),
            Err(error) => json!({ "call_id": call_id, "name": name, "error": error }),
        };
        self.record("toolresult", content.to_string())
    }

    pub fn status(&self, status: Status) -> NewEvent<'static> {
        self.record("status", status.as_str())
    }

    /// The agent asks for permission.
    pub fn permission(&self, asked: &Permission) -> NewEvent<'static> {
        let choices: Vec<Value> = asked
            .choices
            .iter()
            .map(|choice| json!({ "id": choice.id, "name": choice.name, "kind": choice.kind }))
            .collect();
        let Permission { request_id, title, call_id, .. } = asked;
        let content =
            json!({ "request_id": request_id, "title": title, "call_id": call_id, "choices": choices });
        self.record("permission", content.to_string())
    }

    /// The ending: the whole answer.
    pub fn answer(&self, answer: &Answer) -> NewEvent<'static> {
        let mut metadata = self.metadata();
        let mut put = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                metadata.insert(key.to_owned(), value);
            }
        };
        put("message_id", answer.message_id.clone().map(Value::from));
        put("reply_to", Some(self.reply_to.into()));
        put("total_tokens", answer.total_tokens.map(Value::from));
        put("latency_ms", answer.latency_ms.map(Value::from));
        put("stage", answer.stage.clone().map(Value::from));
        with(made(Type::Message, None, answer.content.clone()), metadata).keyed(end_key(self.reply_to))
    }

    /// The ending: it failed for good.
    pub fn failed(&self, error: &str) -> NewEvent<'static> {
        self.ending("error", error_content(error, false)).keyed(end_key(self.reply_to))
    }

    /// The end of an attempt, not of the run. `interrupted_by` is the message that took its turn, if that
    /// is why: such an attempt is not counted.
    pub fn attempt_failed(&self, error: &str, interrupted_by: Option<i64>) -> NewEvent<'static> {
        let mut metadata = self.metadata();
        metadata.insert("reply_to".into(), self.reply_to.into());
        if let Some(id) = interrupted_by {
            metadata.insert("interrupted_by".into(), id.into());
        }
        with(made(Type::Record, Some("error"), error_content(error, true)), metadata)
    }

    /// The ending: somebody wanted it so. `why` says who, or what for.
    pub fn cancelled(&self, why: &str) -> NewEvent<'static> {
        self.ending("cancelled", why).keyed(end_key(self.reply_to))
    }

    fn metadata(&self) -> Map<String, Value> {
        Map::from_iter([("run_id".to_owned(), self.run_id.clone().into())])
    }

    fn record(&self, subtype: &'static str, content: impl Into<String>) -> NewEvent<'static> {
        self.record_with(subtype, content.into(), [])
    }

    fn ending(&self, subtype: &'static str, content: impl Into<String>) -> NewEvent<'static> {
        self.record_with(subtype, content.into(), [("reply_to", self.reply_to.into())])
    }

    fn record_with<const N: usize>(
        &self,
        subtype: &'static str,
        content: String,
        more: [(&str, Value); N],
    ) -> NewEvent<'static> {
        let mut metadata = self.metadata();
        metadata.extend(more.map(|(key, value)| (key.to_owned(), value)));
        with(made(Type::Record, Some(subtype), content), metadata)
    }
}

fn error_content(error: &str, retryable: bool) -> String {
    json!({ "error": error, "retryable": retryable }).to_string()
}

/// Somebody asks for the end of a run.
///
/// # Errors
///
/// `source` is empty or has control characters.
pub fn cancel(source: &str, run_id: &str, why: &str) -> Result<NewEvent<'static>, InvalidEvent> {
    theirs(source, "cancel", why.to_owned(), [("run_id", run_id.into())])
}

/// Somebody answers the agent's request for permission with the id of one of the choices.
///
/// # Errors
///
/// `source` is empty or has control characters.
pub fn permission_answer(
    source: &str,
    request_id: &str,
    choice: &str,
) -> Result<NewEvent<'static>, InvalidEvent> {
    let content = json!({ "request_id": request_id, "choice": choice }).to_string();
    theirs(source, "permission_answer", content, [])
}

/// Somebody names the conversation; the newest title is its title.
///
/// # Errors
///
/// `source` is empty or has control characters.
pub fn title(source: &str, title: &str) -> Result<NewEvent<'static>, InvalidEvent> {
    theirs(source, "title", title.to_owned(), [])
}

/// The agent program's own session, to be loaded by the next process of it.
pub fn session(protocol: &str, session_id: &str) -> NewEvent<'static> {
    let content = json!({ "protocol": protocol, "session_id": session_id }).to_string();
    made(Type::Record, Some("session"), content)
}

/// What a sub-agent did, for its parent's thread.
pub fn sub_agent(told: &SubAgent) -> NewEvent<'static> {
    let content = json!({ "event": told.event, "payload": told.payload }).to_string();
    let metadata = Map::from_iter([
        ("parent_call_id".to_owned(), told.parent_call_id.clone().into()),
        ("sub_agent".to_owned(), told.sub_agent.clone().into()),
        ("sub_event_id".to_owned(), told.sub_event_id.into()),
    ]);
    with(made(Type::Record, Some("sub_agent"), content), metadata)
        .keyed(sub_key(&told.sub_agent, told.sub_event_id))
}

/// The text of a message's content, for programs that read nothing but text: the content itself, or, of
/// an array of content parts, the text of those that have some, one below the other.
pub fn text_of(content: &str) -> String {
    let Some(parts) = parts_of(content) else { return content.to_owned() };
    let texts: Vec<&str> = parts.iter().filter_map(|part| part.get("text")?.as_str()).collect();
    texts.join("\n")
}

/// The content parts, if the content is a JSON array of objects that have a `type`; else it is text.
pub fn parts_of(content: &str) -> Option<Vec<Value>> {
    if !content.trim_start().starts_with('[') {
        return None;
    }
    let parts: Vec<Value> = serde_json::from_str(content).ok()?;
    let typed = |part: &Value| part.get("type").is_some_and(Value::is_string);
    (!parts.is_empty() && parts.iter().all(typed)).then_some(parts)
}

fn theirs<const N: usize>(
    source: &str,
    subtype: &'static str,
    content: String,
    metadata: [(&str, Value); N],
) -> Result<NewEvent<'static>, InvalidEvent> {
    let event = NewEvent::new(source.to_owned(), "record", Some(subtype.into()), content)?;
    Ok(with(event, metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()))
}

/// An event of the agent's side; its source and type are always right.
fn made(kind: Type, subtype: Option<&'static str>, content: impl Into<String>) -> NewEvent<'static> {
    NewEvent {
        source: SELF.into(),
        kind,
        subtype: subtype.map(Into::into),
        content: content.into().into(),
        metadata: None,
        idempotency_key: None,
    }
}

fn with(mut event: NewEvent<'static>, metadata: Map<String, Value>) -> NewEvent<'static> {
    if !metadata.is_empty() {
        event.metadata = Some(Value::Object(metadata).to_string().into());
    }
    event
}

trait Keyed {
    fn keyed(self, key: String) -> Self;
}

impl Keyed for NewEvent<'static> {
    fn keyed(mut self, key: String) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }
}

#[cfg(test)]
mod tests;
