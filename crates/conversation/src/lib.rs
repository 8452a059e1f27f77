//! The events of a conversation: the shape of each kind, written and read back.
//!
//! This is the only module that knows the shapes: [`Message`], [`Run`] and the free functions make
//! [`NewEvent`]s, [`Entry::of`] reads stored ones, [`runs`] says which runs are open. Only [`keys`] does I/O.
//!
//! | event | made by | read as |
//! |---|---|---|
//! | a message to the agent | [`Message::event`] | [`Entry::Message`] |
//! | a request to end a run | [`cancel`] | [`Entry::Cancel`] |
//! | an answer to a permission request | [`permission_answer`] | [`Entry::PermissionAnswer`] |
//! | a title for the conversation | [`title`] | [`Entry::Title`] |
//! | the conversation that this one is a copy of | [`forked`] | [`Entry::Forked`] |
//! | the agent forgets what was said before | [`clear`] | [`Entry::Clear`] |
//! | the agent's session | [`session`] | [`Entry::Session`] |
//! | a copy of a sub-agent's event | [`sub_agent`] | [`Entry::SubAgent`] |
//! | a client goes on with a run | [`continued`] | [`Entry::Continued`] |
//! | the agent's work | the methods of [`Run`] | the other variants of [`Entry`] |
//!
//! # Runs
//!
//! A *run* is everything done in answer to one message, or what the agent does unasked after its answer: a run of
//! its own, known by the event that began it. Its run id is given by the sender or derived from the
//! message's id ([`run_id_of`]). Two messages may have the same run id; their runs are told apart by the
//! message's id, which the events that begin and end a run have as `reply_to`. A run ends with exactly one of
//! an answer, an error that is not retryable, and a cancellation: each is pushed under the key [`end_key`],
//! so there can be only one, whichever process writes it. An event that looks like an ending but is not the
//! one stored under that key ends nothing: [`is_ending`] tells.

pub mod keys;
mod parse;
pub mod runs;

use std::hash::BuildHasher;
use std::time::Duration;

use serde_json::{Map, Value, json};
use thread::NewEvent;
use thread::model::event::{InvalidEvent, Type};
use thread::model::key::IdempotencyKey;

pub use keys::{end_key, ending_of, is_ending, result_key, result_of, sub_key};
pub use parse::{Entry, attempt_of, input_of, is_for_client, is_from_client, is_unreported};

/// The consumer name of the conversation's agent, unless it is installed under another.
pub const CONSUMER: &str = "agent";

/// The source of all events written by the agent's side.
pub const SELF: &str = "self";

/// The longest run id, in bytes. One that is longer, empty or has control characters counts as not given.
pub const MAX_RUN_ID: usize = 256;

/// How long a request for permission waits for an answer, from when it is stored; then it is rejected.
pub const PERMISSION_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// The most that the ending of a run without an answer keeps of what it had said, in bytes.
pub const MAX_PARTIAL: usize = 1024 * 1024;

/// The most that is kept of the result of a tool call, in bytes.
pub const MAX_RESULT: usize = 1024 * 1024;

/// Returns the run id for a message that gives none: `run_<event id>`.
pub fn run_id_of(event_id: i64) -> String {
    format!("run_{event_id}")
}

/// Returns the id of a call as clients see it: programs may use an id again in a later attempt.
pub fn shown_call_id(call_id: &str, attempt: u64) -> String {
    if attempt > 1 { format!("{call_id}.{attempt}") } else { call_id.to_owned() }
}

/// How long a call of one of a client's tools waits for its result.
pub const CLIENT_TOOL_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// When a message is processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    /// At once: it interrupts the current run.
    Now,
    /// After the current run, in the order of ids. Any unknown word means this.
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
    /// It will begin when fewer agents are at work.
    Waiting,
    Thinking,
    ExecutingTool,
    Streaming,
    Done,
}

impl Status {
    pub fn as_str(self) -> &'static str {
        match self {
            Status::Waiting => "waiting",
            Status::Thinking => "thinking",
            Status::ExecutingTool => "executing_tool",
            Status::Streaming => "streaming",
            Status::Done => "done",
        }
    }

    pub fn of(word: &str) -> Option<Status> {
        [Status::Waiting, Status::Thinking, Status::ExecutingTool, Status::Streaming, Status::Done]
            .into_iter()
            .find(|status| status.as_str() == word)
    }
}

/// A message from somebody other than the agent.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Message {
    /// Text, or the JSON text of an array of content parts: see [`text_of`].
    pub content: String,
    /// `None` for [`run_id_of`] the event.
    pub run_id: Option<String>,
    pub message_id: Option<String>,
    pub priority: Priority,
    /// Which client of a gateway sent it.
    pub client: Option<String>,
    /// If a message with priority `now` interrupts the run, it is tried again later instead of cancelled.
    pub resume: bool,
    /// All other keys of the metadata, passed on unchanged.
    pub other: Map<String, Value>,
}

impl Message {
    pub fn text(content: impl Into<String>) -> Message {
        Message { content: content.into(), ..Message::default() }
    }

    /// Returns the event of this message from `source`. [`NewEvent::with_key`] adds an idempotency key.
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
        Ok(with_metadata(event, metadata))
    }
}

/// A tool call. `arguments` is any JSON, null if there are none.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ToolCall {
    pub call_id: String,
    pub name: String,
    pub arguments: Value,
    /// What it does, for people.
    pub title: Option<String>,
    /// `read`, `edit`, `execute` and the like.
    pub kind: Option<String>,
    /// The places it works on: `[{"path","line"}]`; null if it names none.
    pub locations: Value,
}

impl ToolCall {
    pub fn new(call_id: impl Into<String>, name: impl Into<String>, arguments: Value) -> ToolCall {
        ToolCall { call_id: call_id.into(), name: name.into(), arguments, ..ToolCall::default() }
    }
}

/// What a client handed to the agent with a message, besides the message: the fields of AG-UI's `RunAgentInput`
/// that are not empty.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ClientInput(pub Map<String, Value>);

impl ClientInput {
    /// The key of a message's metadata that has it.
    pub const KEY: &str = "run_input";

    /// The tools of the client, which its agent may call: `[{"name","description","parameters"}]`.
    pub const TOOLS: &str = "tools";

    /// Any JSON, shared by the client and its agent.
    pub const STATE: &str = "state";

    /// `[{"description","value"}]`.
    pub const CONTEXT: &str = "context";

    /// Any JSON, for the agent alone.
    pub const FORWARDED_PROPS: &str = "forwarded_props";

    /// What the gateway could not hand on: `[{"field","reason"}]`.
    pub const UNSUPPORTED: &str = "unsupported";

    /// The client's name for the run that this one comes from.
    pub const PARENT_RUN_ID: &str = "parent_run_id";

    /// What a program may be given.
    pub const FIELDS: [&str; 4] =
        [ClientInput::TOOLS, ClientInput::STATE, ClientInput::CONTEXT, ClientInput::FORWARDED_PROPS];

    /// The input in the metadata of a message.
    pub fn of(metadata: &Map<String, Value>) -> ClientInput {
        ClientInput(metadata.get(ClientInput::KEY).and_then(Value::as_object).cloned().unwrap_or_default())
    }

    pub fn get(&self, field: &str) -> Option<&Value> {
        self.0.get(field)
    }

    /// The names of the client's tools.
    pub fn tools(&self) -> impl Iterator<Item = &str> {
        let tools = self.get(ClientInput::TOOLS).and_then(Value::as_array).into_iter().flatten();
        tools.filter_map(|tool| tool.get("name")?.as_str())
    }

    /// The fields that a program may be given.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        ClientInput::FIELDS.into_iter().filter_map(|field| Some((field, self.get(field)?)))
    }
}

/// The result of a tool call.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolResult {
    pub call_id: String,
    /// The name of the call; empty if it is not known.
    pub name: String,
    /// What the tool returned, any JSON, or why it failed.
    pub outcome: Result<Value, String>,
    /// What it shows besides, an array, such as changes to files: `{"type":"diff","path","oldText","newText"}`; null if
    /// nothing.
    pub content: Value,
}

impl ToolResult {
    pub fn new(
        call_id: impl Into<String>,
        name: impl Into<String>,
        outcome: Result<Value, String>,
    ) -> ToolResult {
        ToolResult { call_id: call_id.into(), name: name.into(), outcome, content: Value::Null }
    }
}

/// An answer and its optional details.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answer {
    pub content: String,
    pub message_id: Option<String>,
    pub total_tokens: Option<u64>,
    pub latency_ms: Option<u64>,
    pub stage: Option<String>,
}

/// A request by the agent for permission to do something.
#[derive(Debug, Clone, PartialEq)]
pub struct Permission {
    /// Identifies the request in the answer.
    pub request_id: String,
    /// What the agent wants to do, for display.
    pub title: String,
    /// The call that needs permission, if the agent has announced it.
    pub call_id: Option<String>,
    /// The arguments of that call, any JSON, null if there are none.
    pub arguments: Value,
    /// What else is known of it, such as the change to a file; empty if nothing.
    pub details: String,
    pub choices: Vec<Choice>,
}

/// Where a conversation that is a copy comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fork {
    pub session_id: String,
    /// The title that it had.
    pub title: String,
    /// The first message there that was not copied; `None` if all were.
    pub before: Option<i64>,
}

/// One of the choices in a request for permission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Identifies the choice in the answer.
    pub id: String,
    /// For display.
    pub name: String,
    /// `allow_once`, `allow_always`, `reject_once`, `reject_always`, or another word.
    pub kind: String,
}

/// An event of a sub-agent, as copied to its parent's thread.
#[derive(Debug, Clone, PartialEq)]
pub struct SubAgent {
    pub parent_call_id: String,
    /// The attempt of the parent's run that made the call; 0 if it is not known.
    pub attempt: u64,
    pub sub_agent: String,
    /// The event's id in the sub-agent's own thread.
    pub sub_event_id: i64,
    /// `tool_call`, `tool_result`, `status`, `final`, `error` or `cancelled`.
    pub event: String,
    pub payload: Value,
}

/// A run. Its methods make the events that the agent's side writes in answer to one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    pub run_id: String,
    /// The id of the message that it answers; of a run that the agent began itself, of the event that began it.
    pub reply_to: i64,
    /// The number of the attempt that writes; the first is 1. 0 outside of any: then it is left out.
    pub attempt: u64,
    /// The agent began it itself, unasked: it answers no message.
    pub is_own: bool,
}

impl Run {
    /// A run that the agent begins itself. It has one attempt, and is known by the event that begins it, once that is
    /// stored.
    pub fn own() -> Run {
        let run_id = format!("run_{:016x}", std::hash::RandomState::new().hash_one(std::process::id()));
        Run { run_id, reply_to: 0, attempt: 1, is_own: true }
    }

    /// The beginning of the attempt.
    pub fn started(&self) -> NewEvent<'static> {
        let content = json!({ "status": "started", "attempt": self.attempt }).to_string();
        match self.is_own {
            true => self.record("run", content),
            false => self.record_with("run", content, [("reply_to", self.reply_to.into())]),
        }
    }

    /// A piece of the answer.
    pub fn token(&self, message_id: &str, text: impl Into<String>) -> NewEvent<'static> {
        self.record_with("token", text.into(), [("message_id", message_id.into())])
    }

    /// A piece of the agent's thinking.
    pub fn thinking(&self, message_id: &str, text: impl Into<String>) -> NewEvent<'static> {
        self.record_with("thinking", text.into(), [("message_id", message_id.into())])
    }

    pub fn tool_call(&self, call: &ToolCall) -> NewEvent<'static> {
        self.record("toolcall", call_content(call))
    }

    /// A call of one of the client's tools, whose result the client gives.
    pub fn client_tool_call(&self, call: &ToolCall) -> NewEvent<'static> {
        self.record_with("toolcall", call_content(call), [("for_client", true.into())])
    }

    /// The result of one of a client's tools, given by that client, with what it hands to the agent besides.
    pub fn client_tool_result(
        &self,
        client: &str,
        result: &ToolResult,
        input: ClientInput,
    ) -> NewEvent<'static> {
        let event = self.tool_result(result);
        let mut metadata = self.metadata();
        metadata.insert("client".into(), client.into());
        if !input.0.is_empty() {
            metadata.insert(ClientInput::KEY.into(), input.0.into());
        }
        with_metadata(event, metadata)
    }

    /// The result of a call. One that is longer than [`MAX_RESULT`] becomes text, and is cut; such content is left out.
    pub fn tool_result(&self, result: &ToolResult) -> NewEvent<'static> {
        let ToolResult { call_id, name, outcome, content: shown } = result;
        let mut content = json!({ "call_id": call_id });
        if !name.is_empty() {
            content["name"] = name.as_str().into();
        }
        match outcome {
            Ok(Value::String(text)) => content["result"] = cut(text).into(),
            Ok(result) => {
                let text = result.to_string();
                content["result"] = if text.len() > MAX_RESULT { cut(&text).into() } else { result.clone() };
            }
            Err(error) => content["error"] = cut(error).into(),
        }
        if !shown.is_null() && shown.to_string().len() <= MAX_RESULT {
            content["content"] = shown.clone();
        }
        self.record("toolresult", content.to_string())
    }

    /// Closes a call of which the program has reported no result; the outcome says why nobody waits any longer.
    pub fn unreported_result(&self, result: &ToolResult) -> NewEvent<'static> {
        let mut metadata = self.metadata();
        metadata.insert("unreported".into(), true.into());
        with_metadata(self.tool_result(result), metadata)
    }

    pub fn status(&self, status: Status) -> NewEvent<'static> {
        self.record("status", status.as_str())
    }

    /// What the agent intends to do: a list of `{"content","priority","status"}`, which replaces the one before.
    pub fn plan(&self, entries: &Value) -> NewEvent<'static> {
        self.record("plan", json!({ "entries": entries }).to_string())
    }

    /// The whole state that the agent shares with its client.
    pub fn state(&self, state: &Value) -> NewEvent<'static> {
        self.record("state", json!({ "state": state }).to_string())
    }

    /// A change of that state: a JSON Patch (RFC 6902), an array of operations.
    pub fn state_delta(&self, delta: &Value) -> NewEvent<'static> {
        self.record("state_delta", json!({ "delta": delta }).to_string())
    }

    /// The fields of the message's [`ClientInput`] that the program's protocol cannot take.
    pub fn unsupported(&self, fields: &[&str]) -> NewEvent<'static> {
        self.record("unsupported", json!({ "fields": fields }).to_string())
    }

    /// A request for permission.
    pub fn permission(&self, asked: &Permission) -> NewEvent<'static> {
        let choices: Vec<Value> = asked
            .choices
            .iter()
            .map(|choice| json!({ "id": choice.id, "name": choice.name, "kind": choice.kind }))
            .collect();
        let Permission { request_id, title, call_id, arguments, details, .. } = asked;
        let content = json!({
            "request_id": request_id,
            "title": title,
            "call_id": call_id,
            "arguments": arguments,
            "details": details,
            "choices": choices,
        });
        self.record("permission", content.to_string())
    }

    /// An ending: the whole answer.
    pub fn answer(&self, answer: &Answer) -> NewEvent<'static> {
        let mut metadata = self.metadata();
        let mut put = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                metadata.insert(key.to_owned(), value);
            }
        };
        put("message_id", answer.message_id.clone().map(Value::from));
        let (key, id) = self.subject();
        put(key, Some(id));
        put("total_tokens", answer.total_tokens.map(Value::from));
        put("latency_ms", answer.latency_ms.map(Value::from));
        put("stage", answer.stage.clone().map(Value::from));
        with_metadata(own_event(Type::Message, None, answer.content.clone()), metadata)
            .keyed(end_key(self.reply_to))
    }

    /// An ending: an error that is not retryable. `partial` is what had been said of the answer; empty if
    /// nothing.
    pub fn failed(&self, error: &str, partial: &str) -> NewEvent<'static> {
        self.ending("error", error_content(error, false), partial)
    }

    /// The failure of an attempt, not of the run. `interrupted_by` is the message that interrupted it, if one
    /// did: such an attempt does not count.
    pub fn attempt_failed(&self, error: &str, interrupted_by: Option<i64>) -> NewEvent<'static> {
        let mut metadata = self.metadata();
        metadata.insert("reply_to".into(), self.reply_to.into());
        if let Some(id) = interrupted_by {
            metadata.insert("interrupted_by".into(), id.into());
        }
        with_metadata(own_event(Type::Record, Some("error"), error_content(error, true)), metadata)
    }

    /// An ending: the run was cancelled. `why` says by whom, or for what reason; `partial` is what had been
    /// said of the answer, empty if nothing.
    pub fn cancelled(&self, why: &str, partial: &str) -> NewEvent<'static> {
        self.ending("cancelled", why.to_owned(), partial)
    }

    /// An ending that is no answer.
    fn ending(&self, subtype: &'static str, content: String, partial: &str) -> NewEvent<'static> {
        let mut metadata = self.metadata();
        let (key, id) = self.subject();
        metadata.insert(key.into(), id);
        if !partial.is_empty() {
            let end = partial.floor_char_boundary(MAX_PARTIAL);
            metadata.insert("partial".into(), partial[..end].into());
        }
        with_metadata(own_event(Type::Record, Some(subtype), content), metadata).keyed(end_key(self.reply_to))
    }

    fn metadata(&self) -> Map<String, Value> {
        let attempt = (self.attempt > 0).then(|| ("attempt".to_owned(), self.attempt.into()));
        [("run_id".to_owned(), self.run_id.clone().into())].into_iter().chain(attempt).collect()
    }

    fn record(&self, subtype: &'static str, content: impl Into<String>) -> NewEvent<'static> {
        self.record_with(subtype, content.into(), [])
    }

    /// The key and the value by which an ending names its run.
    fn subject(&self) -> (&'static str, Value) {
        (if self.is_own { "began" } else { "reply_to" }, self.reply_to.into())
    }

    fn record_with<const N: usize>(
        &self,
        subtype: &'static str,
        content: String,
        more: [(&str, Value); N],
    ) -> NewEvent<'static> {
        let mut metadata = self.metadata();
        metadata.extend(more.map(|(key, value)| (key.to_owned(), value)));
        with_metadata(own_event(Type::Record, Some(subtype), content), metadata)
    }
}

fn call_content(call: &ToolCall) -> String {
    let ToolCall { call_id, name, arguments, title, kind, locations } = call;
    let mut content = json!({ "call_id": call_id, "name": name, "arguments": arguments });
    for (key, text) in [("title", title), ("kind", kind)] {
        if let Some(text) = text {
            content[key] = text.clone().into();
        }
    }
    if !locations.is_null() {
        content["locations"] = locations.clone();
    }
    content.to_string()
}

/// A result as it is kept.
fn cut(result: &str) -> std::borrow::Cow<'_, str> {
    if result.len() <= MAX_RESULT {
        return result.into();
    }
    let kept = &result[..result.floor_char_boundary(MAX_RESULT)];
    format!("{kept}\n[cut: {} bytes in all]", result.len()).into()
}

fn error_content(error: &str, retryable: bool) -> String {
    json!({ "error": error, "retryable": retryable }).to_string()
}

/// A request from `source` to end a run.
///
/// # Errors
///
/// `source` is empty or has control characters.
pub fn cancel(source: &str, run_id: &str, why: &str) -> Result<NewEvent<'static>, InvalidEvent> {
    record_from(source, "cancel", why.to_owned(), [("run_id", run_id.into())])
}

/// This conversation is a copy of another.
///
/// # Errors
///
/// `source` is empty or has control characters.
pub fn forked(source: &str, fork: &Fork) -> Result<NewEvent<'static>, InvalidEvent> {
    let Fork { session_id, title, before } = fork;
    let content = json!({ "session_id": session_id, "title": title, "before": before }).to_string();
    record_from(source, "forked", content, [])
}

/// An answer to the agent's request for permission: the id of one of its choices.
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
    record_from(source, "permission_answer", content, [])
}

/// A client goes on with the run of a message under another name: it answered what that run was waiting for, and
/// has seen everything up to the event `after`. The key makes it one, however often it is asked for.
///
/// # Errors
///
/// `source` is empty or has control characters.
pub fn continued(
    source: &str,
    run_id: &str,
    reply_to: i64,
    after: i64,
    input: ClientInput,
    key: IdempotencyKey<'static>,
) -> Result<NewEvent<'static>, InvalidEvent> {
    let mut metadata = Map::from_iter([
        ("run_id".to_owned(), run_id.into()),
        ("reply_to".to_owned(), reply_to.into()),
        ("after".to_owned(), after.into()),
    ]);
    if !input.0.is_empty() {
        metadata.insert(ClientInput::KEY.to_owned(), input.0.into());
    }
    let event = NewEvent::new(source.to_owned(), "record", Some("continued".into()), String::new())?;
    Ok(with_metadata(event, metadata).keyed(key))
}

/// A title for the conversation; the newest one counts.
///
/// # Errors
///
/// `source` is empty or has control characters.
pub fn title(source: &str, title: &str) -> Result<NewEvent<'static>, InvalidEvent> {
    record_from(source, "title", title.to_owned(), [])
}

/// The agent is to forget what was said before this: it begins again with an empty session.
///
/// # Errors
///
/// `source` is empty or has control characters.
pub fn clear(source: &str) -> Result<NewEvent<'static>, InvalidEvent> {
    record_from(source, "clear", String::new(), [])
}

/// The agent program's own session, for its next process to load. `cleared` is the newest [`clear`] before it; 0 if
/// there is none.
pub fn session(protocol: &str, session_id: &str, cleared: i64) -> NewEvent<'static> {
    let mut content = json!({ "protocol": protocol, "session_id": session_id });
    if cleared > 0 {
        content["cleared"] = cleared.into();
    }
    own_event(Type::Record, Some("session"), content.to_string())
}

/// A copy of a sub-agent's event, for its parent's thread.
pub fn sub_agent(told: &SubAgent) -> NewEvent<'static> {
    let content = json!({ "event": told.event, "payload": told.payload }).to_string();
    let mut metadata = Map::from_iter([
        ("parent_call_id".to_owned(), told.parent_call_id.clone().into()),
        ("sub_agent".to_owned(), told.sub_agent.clone().into()),
        ("sub_event_id".to_owned(), told.sub_event_id.into()),
    ]);
    if told.attempt > 0 {
        metadata.insert("attempt".to_owned(), told.attempt.into());
    }
    let event = with_metadata(own_event(Type::Record, Some("sub_agent"), content), metadata);
    // The name of a folder is short enough.
    NewEvent { idempotency_key: sub_key(&told.sub_agent, told.sub_event_id).ok(), ..event }
}

/// Returns the text of a message's content, for programs that read only text: the content itself or, for an
/// array of content parts, the texts of its parts, joined by newlines.
pub fn text_of(content: &str) -> String {
    let Some(parts) = parts_of(content) else { return content.to_owned() };
    let texts: Vec<&str> = parts.iter().filter_map(|part| part.get("text")?.as_str()).collect();
    texts.join("\n")
}

/// Returns the content parts if the content is a JSON array of objects with a `type`; `None` if it is text.
pub fn parts_of(content: &str) -> Option<Vec<Value>> {
    if !content.trim_start().starts_with('[') {
        return None;
    }
    let parts: Vec<Value> = serde_json::from_str(content).ok()?;
    let typed = |part: &Value| part.get("type").is_some_and(Value::is_string);
    (!parts.is_empty() && parts.iter().all(typed)).then_some(parts)
}

fn record_from<const N: usize>(
    source: &str,
    subtype: &'static str,
    content: String,
    metadata: [(&str, Value); N],
) -> Result<NewEvent<'static>, InvalidEvent> {
    let event = NewEvent::new(source.to_owned(), "record", Some(subtype.into()), content)?;
    Ok(with_metadata(event, metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()))
}

/// An event from the agent's side. Made without a check: its source and type are always valid.
fn own_event(kind: Type, subtype: Option<&'static str>, content: impl Into<String>) -> NewEvent<'static> {
    NewEvent {
        source: SELF.into(),
        kind,
        subtype: subtype.map(Into::into),
        content: content.into().into(),
        metadata: None,
        idempotency_key: None,
        created_at: None,
    }
}

fn with_metadata(mut event: NewEvent<'static>, metadata: Map<String, Value>) -> NewEvent<'static> {
    if !metadata.is_empty() {
        event.metadata = Some(Value::Object(metadata).to_string().into());
    }
    event
}

#[cfg(test)]
mod tests;
