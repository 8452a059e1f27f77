//! The events of a conversation: the shape of each kind, written and read back.
//!
//! This is the only package that knows the shapes. Each is a type that is written and read by `serde`; [`Message`],
//! [`Run`] and the free functions make [`NewEvent`]s of them, [`Record::of`] reads stored ones, [`runs`] says which
//! runs are open, [`RunView`] what has happened in one. Only [`keys`] does I/O.
//!
//! | event | made by | read as |
//! |---|---|---|
//! | a message to the agent | [`Message::event`] | [`Entry::Message`] |
//! | a request to end a run | [`cancel`] | [`Entry::Cancel`] |
//! | an answer to a permission request | [`permission_answer`] | [`Entry::PermissionAnswer`] |
//! | a title for the conversation | [`title`] | [`Entry::Title`] |
//! | the conversation that this one is a copy of | [`forked`] | [`Entry::Forked`] |
//! | the agent forgets the conversation so far | [`clear`] | [`Entry::Clear`] |
//! | the conversation has another agent | [`moved`] | [`Entry::Moved`] |
//! | the agent's session | [`session`] | [`Entry::Session`] |
//! | the commands that the agent takes | [`commands`] | [`Entry::Commands`] |
//! | what can be chosen at the agent | [`options`](fn@options) | [`Entry::Options`] |
//! | somebody has chosen it | [`option`] | [`Entry::OptionChosen`] |
//! | a copy of a sub-agent's event | [`sub_agent`] | [`Entry::SubAgent`] |
//! | a client continues a run | [`continued`] | [`Entry::Continued`] |
//! | the agent's work | the methods of [`Run`] | the other variants of [`Entry`] |
//!
//! # Runs
//!
//! A *run* is everything done in answer to one message, or what the agent does unasked after its answer: a run of
//! its own, known by the event that began it. Its run id is given by the sender or derived from the message's id
//! ([`run_id_of`]). Two messages may have the same run id; their runs are told apart by the message's id, which the
//! events that begin and end a run have as `reply_to`. A run ends with exactly one of an answer, an error that is
//! not retryable, and a cancellation: each is pushed under the key [`end_key`], so there can be only one, whichever
//! process writes it. An event that looks like an ending but is not stored under that key ends nothing:
//! [`is_ending`] checks.

/// An enum of words.
macro_rules! words {
    ($(#[$about:meta])* pub enum $name:ident { $($(#[$meaning:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$meaning])* $variant,)+
        }

        impl $name {
            pub fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $word,)+
                }
            }

            /// `None` if it is another word.
            pub fn of(word: &str) -> Option<$name> {
                match word {
                    $($word => Some($name::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

pub mod keys;
mod lenient;
mod message;
mod metadata;
mod options;
mod record;
mod run;
pub mod runs;
mod spent;
mod tool;
mod turn;
mod view;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thread::NewEvent;
use thread::model::event::{InvalidEvent, Type};
use thread::model::key::IdempotencyKey;

pub use keys::{ending_of, is_ending, moved_key, result_key, result_of, sub_key};
pub use message::{ClientInput, Message, Priority, parts_of, text_of};
pub use options::{AgentOption, AgentOptions, OptionChoice, OptionChosen};
pub use record::{Ending, Entry, Outcome, Record};
pub use run::{MAX_PARTIAL, Run, end_key};
pub use spent::{Cost, Spent, Usage};
pub use tool::{
    Choice, MAX_RESULT, Permission, PermissionAnswer, SubAgent, ToolCall, ToolResult, shown_call_id,
};
pub use turn::ModelTurn;
pub use view::{Asked, Call, Change, RunView, SubChange};

use lenient::{is_default, lenient};
use metadata::Metadata;

/// The consumer name of the conversation's agent, unless it is installed under another.
pub const CONSUMER: &str = "agent";

/// The source of all events written by the agent's side.
pub const SELF: &str = "self";

/// The longest run id, in bytes. One that is longer, empty or has control characters counts as not given.
pub const MAX_RUN_ID: usize = 256;

/// Returns the run id for a message that gives none: `run_<event id>`.
pub fn run_id_of(event_id: i64) -> String {
    format!("run_{event_id}")
}

/// How long a call of one of a client's tools waits for its result.
/// The `stage` of an answer that ends before the agent is done, because a message with [`Priority::Steer`] came.
pub const STEERED: &str = "steered";

pub const CLIENT_TOOL_TIMEOUT: Duration = Duration::from_secs(10 * 60);

words! {
    /// What the agent is doing.
    pub enum Status {
        /// It will begin when fewer agents are running.
        Waiting = "waiting",
        Thinking = "thinking",
        ExecutingTool = "executing_tool",
        Streaming = "streaming",
        Done = "done",
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

/// Where a conversation that is a copy comes from: the content of `forked`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fork {
    pub session_id: String,
    /// The title that it had.
    #[serde(default, deserialize_with = "lenient")]
    pub title: String,
    /// The first message there that was not copied; `None` if all were.
    #[serde(default, deserialize_with = "lenient")]
    pub before: Option<i64>,
}

/// The agent that a conversation has from here on, where there are several to choose from: the content of `agent`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Moved {
    pub name: String,
    /// The model that was chosen for this conversation; `None` for that of the agent.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The directory that was chosen for this conversation; `None` for that of the agent.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// The agent program's own session, for its next process to load: the content of `session`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    pub protocol: String,
    pub session_id: String,
    /// The newest [`clear`] before it, or the [`moved`] with which the conversation came to its agent, whichever is
    /// newer; 0 if there is none.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "is_default")]
    pub cleared: i64,
}

/// A request from `source` to end a run.
///
/// # Errors
///
/// `source` is empty or has control characters.
pub fn cancel(source: &str, run_id: &str, why: &str) -> Result<NewEvent<'static>, InvalidEvent> {
    let metadata = Metadata { run_id: Some(run_id.to_owned()), ..Metadata::default() };
    Ok(with_metadata(record_from(source, "cancel", why.to_owned())?, &metadata))
}

/// This conversation is a copy of another.
///
/// # Errors
///
/// `source` is empty or has control characters.
pub fn forked(source: &str, fork: &Fork) -> Result<NewEvent<'static>, InvalidEvent> {
    record_from(source, "forked", text(fork))
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
    let answer = PermissionAnswer { request_id: request_id.to_owned(), choice: choice.to_owned() };
    record_from(source, "permission_answer", text(&answer))
}

/// A client continues the run of a message under another name: it answered what that run was waiting for, and has
/// seen everything up to the event `after`. The key makes repeated requests one event.
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
    let (run_id, reply_to, after) = (Some(run_id.to_owned()), Some(reply_to), Some(after));
    let metadata = Metadata { run_id, reply_to, after, run_input: input, ..Metadata::default() };
    Ok(with_metadata(record_from(source, "continued", String::new())?, &metadata).keyed(key))
}

/// A title for the conversation; the newest one counts.
///
/// # Errors
///
/// `source` is empty or has control characters.
pub fn title(source: &str, title: &str) -> Result<NewEvent<'static>, InvalidEvent> {
    record_from(source, "title", title.to_owned())
}

/// The agent must forget everything before this: it starts again with an empty session.
///
/// # Errors
///
/// `source` is empty or has control characters.
pub fn clear(source: &str) -> Result<NewEvent<'static>, InvalidEvent> {
    record_from(source, "clear", String::new())
}

/// The conversation has another agent from here on. `id` names the move: it is recorded once, no matter how many
/// processes do it.
///
/// # Errors
///
/// `source` is empty or has control characters.
pub fn moved(source: &str, id: &str, moved: &Moved) -> Result<NewEvent<'static>, InvalidEvent> {
    let event = record_from(source, "agent", text(moved))?;
    // An id of the program's own is short enough.
    Ok(NewEvent { idempotency_key: moved_key(id).ok(), ..event })
}

/// The agent program's own session, for its next process to load. `cleared` is that of [`Session`].
pub fn session(protocol: &str, session_id: &str, cleared: i64) -> NewEvent<'static> {
    let session = Session { protocol: protocol.to_owned(), session_id: session_id.to_owned(), cleared };
    own_event(Type::Record, Some("session"), text(&session))
}

/// The commands that the agent takes now: `[{"name","description","hint"}]`.
pub fn commands(commands: &Value) -> NewEvent<'static> {
    let content = serde_json::json!({ "commands": commands });
    own_event(Type::Record, Some("commands"), content.to_string())
}

/// What can be chosen at the agent now.
pub fn options(options: &AgentOptions) -> NewEvent<'static> {
    own_event(Type::Record, Some("options"), text(options))
}

/// Somebody has chosen the value of one of the agent's options.
///
/// # Errors
///
/// `source` is empty or has control characters.
pub fn option(source: &str, chosen: &OptionChosen) -> Result<NewEvent<'static>, InvalidEvent> {
    record_from(source, "option", text(chosen))
}

/// A copy of a sub-agent's event, for its parent's thread.
pub fn sub_agent(told: &SubAgent) -> NewEvent<'static> {
    let metadata = Metadata {
        parent_call_id: Some(told.parent_call_id.clone()),
        sub_agent: Some(told.sub_agent.clone()),
        sub_event_id: Some(told.sub_event_id),
        attempt: told.attempt,
        ..Metadata::default()
    };
    let event = with_metadata(own_event(Type::Record, Some("sub_agent"), text(told)), &metadata);
    // The name of a folder is short enough.
    NewEvent { idempotency_key: sub_key(&told.sub_agent, told.sub_event_id).ok(), ..event }
}

fn record_from(
    source: &str,
    subtype: &'static str,
    content: String,
) -> Result<NewEvent<'static>, InvalidEvent> {
    NewEvent::new(source.to_owned(), "record", Some(subtype.into()), content)
}

/// An event from the agent's side. Made without a check: its source and type are always valid.
fn own_event(kind: Type, subtype: Option<&'static str>, content: String) -> NewEvent<'static> {
    NewEvent {
        source: SELF.into(),
        kind,
        subtype: subtype.map(Into::into),
        content: content.into(),
        metadata: None,
        idempotency_key: None,
        created_at: None,
        due: None,
    }
}

/// The JSON of one of these types. They cannot fail to serialize: their keys are strings.
fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// The same as an object.
fn object(value: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(value) {
        Ok(Value::Object(object)) => object,
        _ => Map::new(),
    }
}

fn with_metadata(mut event: NewEvent<'static>, metadata: &impl Serialize) -> NewEvent<'static> {
    let text = text(metadata);
    if text != "{}" {
        event.metadata = Some(text.into());
    }
    event
}

#[cfg(test)]
mod tests;
