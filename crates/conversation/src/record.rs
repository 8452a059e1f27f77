//! Reading a conversation's events back.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thread::Event;

use crate::lenient::{lenient, object_of};
use crate::metadata::Metadata;
use crate::{
    AgentOptions, Answer, ClientInput, Fork, Message, ModelTurn, Moved, OptionChosen, Permission,
    PermissionAnswer, SELF, Session, Spent, Status, SubAgent, ToolCall, ToolResult, run_id_of, shown_call_id,
};

/// A stored event as it is read: what it means, and what the metadata of a run's events says.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    pub event: Event,
    /// The id of the run that it belongs to. A message always has one.
    pub run_id: Option<String>,
    /// The number of the run's attempt that it belongs to; 0 if it says none. Programs may use the id of a call again
    /// in a later attempt, so only both together are unique in a run.
    pub attempt: u64,
    /// It is a call of one of the client's tools.
    pub for_client: bool,
    /// It is a result given by a client.
    pub from_client: bool,
    /// It is a result that only closes a call: the program has reported none.
    pub unreported: bool,
    /// What was taken by the attempt that it ends.
    pub spent: Spent,
    pub entry: Entry,
}

impl Record {
    pub fn of(event: Event) -> Record {
        let metadata = Metadata::of(&event);
        let is_own = event.source == SELF;
        let (attempt, for_client) =
            if is_own { (metadata.attempt, metadata.for_client) } else { Default::default() };
        let from_client = is_own && metadata.client.is_some();
        let unreported = is_own && metadata.unreported;
        let spent = match is_own {
            true => Spent::of(metadata.agent.clone(), &metadata.usage, &metadata.cost),
            false => Spent::default(),
        };
        let (run_id, entry) = read(&event, metadata);
        Record { event, run_id, attempt, for_client, from_client, unreported, spent, entry }
    }

    pub fn id(&self) -> i64 {
        self.event.id
    }

    /// Its metadata; empty if that is no object.
    pub fn metadata(&self) -> Map<String, Value> {
        object_of(&self.event)
    }

    /// The id of the call that it is or is about, as clients see it.
    pub fn shown_call_id(&self) -> Option<String> {
        let call_id = match &self.entry {
            Entry::ToolCall(call) => &call.call_id,
            Entry::ToolResult(result) => &result.call_id,
            Entry::Permission(asked) => asked.call_id.as_ref()?,
            Entry::SubAgent(told) => &told.parent_call_id,
            _ => return None,
        };
        Some(shown_call_id(call_id, self.attempt))
    }

    /// What a client handed to the agent with it.
    pub fn input(&self) -> ClientInput {
        Metadata::of(&self.event).run_input
    }
}

/// The meaning of an event in a conversation.
///
/// Parsing is lenient, whatever pushed the event: a key that is missing or of the wrong type counts as not given,
/// and an unknown event is [`Entry::Other`]. The events of a run come from `self`; from any other source they are
/// [`Entry::Other`], so that no outsider can begin or end a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Entry {
    Message(Message),
    RunStarted {
        attempt: u64,
        /// The message that is answered; `None` if the agent began the run itself.
        reply_to: Option<i64>,
    },
    Token {
        text: String,
        message_id: Option<String>,
    },
    Thinking {
        text: String,
        message_id: Option<String>,
    },
    /// A turn that a model has finished.
    Model {
        turn: ModelTurn,
        message_id: Option<String>,
    },
    /// The pieces of a turn that was not finished count for nothing.
    TurnCut {
        message_id: Option<String>,
    },
    /// What was said and done up to the event `upto`, in short, in place of it in the prompts of a model.
    Summary {
        text: String,
        upto: i64,
    },
    /// The messages of an answer as the agent knows them, an array.
    Messages(Vec<Value>),
    ToolCall(ToolCall),
    ToolResult(ToolResult),
    Status(Status),
    /// The entries of the agent's plan, an array.
    Plan(Value),
    /// An ending, if it is the event stored under [`end_key`](super::end_key). `reply_to` is missing if the
    /// agent sent the message unasked.
    Answer {
        answer: Answer,
        reply_to: Option<i64>,
        /// The event that began the run, if the agent began it itself.
        began: Option<i64>,
    },
    /// An ending if it is not retryable, else the failure of an attempt.
    Error {
        error: String,
        retryable: bool,
        reply_to: Option<i64>,
        /// See [`Entry::Answer`].
        began: Option<i64>,
        interrupted_by: Option<i64>,
        /// The answer so far, when the run ended.
        partial: Option<String>,
    },
    /// An ending.
    Cancelled {
        why: String,
        reply_to: Option<i64>,
        /// See [`Entry::Answer`].
        began: Option<i64>,
        /// The answer so far.
        partial: Option<String>,
    },
    /// A request to end the run with the event's `run_id`.
    Cancel {
        why: String,
    },
    Permission(Permission),
    PermissionAnswer(PermissionAnswer),
    Session(Session),
    /// The agent forgets everything before.
    Clear,
    /// The conversation has another agent from here on.
    Moved(Moved),
    Title(String),
    /// The commands that the agent takes as messages which begin with a `/`, an array. They replace those from before.
    Commands(Value),
    /// What can be chosen at the agent. It replaces what it said before.
    Options(AgentOptions),
    /// Somebody has chosen the value of one of these options.
    OptionChosen(OptionChosen),
    /// The conversation is a copy of another.
    Forked(Fork),
    SubAgent(SubAgent),
    /// The whole state that the agent shares with its client.
    State(Value),
    /// A change of that state, an array of operations.
    StateDelta(Value),
    /// Fields of the client's input that the program cannot take.
    Unsupported(Vec<String>),
    /// A client continues the run of a message, of which it has seen everything up to the event `after`. The
    /// event's `run_id` is the client's name for the rest.
    Continued {
        reply_to: i64,
        after: i64,
    },
    Other,
}

impl Entry {
    /// Returns the event's meaning alone.
    pub fn of(event: &Event) -> Entry {
        read(event, Metadata::of(event)).1
    }

    /// Returns the message whose run this ends (of a run that the agent began itself, the event that began it),
    /// provided that it is stored under its end key.
    pub fn ends(&self) -> Option<i64> {
        match self {
            Entry::Answer { reply_to, began, .. }
            | Entry::Cancelled { reply_to, began, .. }
            | Entry::Error { retryable: false, reply_to, began, .. } => reply_to.or(*began),
            _ => None,
        }
    }

    /// How the run ends that this is the ending of; `None` if it is none.
    pub fn ending(&self) -> Option<Ending<'_>> {
        let (outcome, text, partial) = match self {
            Entry::Answer { answer, .. } => (Outcome::Answered, &answer.content, &None),
            Entry::Error { error, retryable: false, partial, .. } => (Outcome::Failed, error, partial),
            Entry::Cancelled { why, partial, .. } => (Outcome::Cancelled, why, partial),
            _ => return None,
        };
        Some(Ending { outcome, text, partial: partial.as_deref() })
    }
}

/// The end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending<'e> {
    pub outcome: Outcome,
    /// The answer as it is stored, or why there is none.
    pub text: &'e str,
    /// What had been said of an answer when the run ended without one.
    pub partial: Option<&'e str>,
}

words! {
    /// How a run ends.
    pub enum Outcome {
        Answered = "answered",
        Failed = "failed",
        Cancelled = "cancelled",
    }
}

/// The content of `run`.
#[derive(Serialize, Deserialize)]
pub(crate) struct Started {
    #[serde(skip_deserializing)]
    pub status: &'static str,
    pub attempt: u64,
}

/// The content of `summary`.
#[derive(Serialize, Deserialize)]
pub(crate) struct Summary {
    pub summary: String,
    pub upto: i64,
}

/// The content of `error`.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Failure {
    #[serde(deserialize_with = "lenient")]
    pub error: String,
    #[serde(deserialize_with = "lenient")]
    pub retryable: bool,
}

/// The run that an event belongs to, and its meaning.
fn read(event: &Event, mut metadata: Metadata) -> (Option<String>, Entry) {
    let run_id = metadata.run_id.take();
    match entry(event, metadata).unwrap_or(Entry::Other) {
        entry @ Entry::Message(_) => (Some(run_id.unwrap_or_else(|| run_id_of(event.id))), entry),
        entry => (run_id, entry),
    }
}

fn object(event: &Event) -> Option<Map<String, Value>> {
    serde_json::from_str(&event.content).ok()
}

/// Content that is a JSON object.
fn content<T: DeserializeOwned>(event: &Event) -> Option<T> {
    serde_json::from_value(object(event)?.into()).ok()
}

/// A key of content that is a JSON object.
fn value(event: &Event, key: &str) -> Option<Value> {
    object(event)?.remove(key)
}

fn entry(event: &Event, metadata: Metadata) -> Option<Entry> {
    let text = || event.content.clone();
    let Metadata { message_id, reply_to, began, partial, .. } = metadata;
    let is_own = event.source == SELF;
    if event.kind == "message" {
        let Metadata { total_tokens, latency_ms, stage, .. } = metadata;
        return Some(match is_own {
            true => {
                let answer = Answer { content: text(), message_id, total_tokens, latency_ms, stage };
                Entry::Answer { answer, reply_to, began }
            }
            false => Entry::Message(Message::of(event)),
        });
    }
    Some(match event.subtype.as_deref()? {
        "cancel" => Entry::Cancel { why: text() },
        "title" => Entry::Title(text()),
        "clear" => Entry::Clear,
        "agent" => Entry::Moved(content(event)?),
        "continued" => Entry::Continued { reply_to: reply_to?, after: metadata.after? },
        "forked" => Entry::Forked(content(event)?),
        "option" => Entry::OptionChosen(content(event)?),
        "permission_answer" => {
            let answer: PermissionAnswer = content(event)?;
            // An agent may withdraw its requests, and must not answer them.
            if is_own != answer.choice.is_empty() {
                return None;
            }
            Entry::PermissionAnswer(answer)
        }
        _ if !is_own => return None,
        "run" => Entry::RunStarted { attempt: content::<Started>(event)?.attempt, reply_to },
        "token" => Entry::Token { text: text(), message_id },
        "thinking" => Entry::Thinking { text: text(), message_id },
        "model" => Entry::Model { turn: content(event)?, message_id },
        "turn_cut" => Entry::TurnCut { message_id },
        "summary" => {
            let Summary { summary, upto } = content(event)?;
            Entry::Summary { text: summary, upto }
        }
        "messages" => match value(event, "messages")? {
            Value::Array(messages) => Entry::Messages(messages),
            _ => return None,
        },
        "toolcall" => Entry::ToolCall(content(event)?),
        "toolresult" => Entry::ToolResult(content(event)?),
        "status" => Entry::Status(Status::of(&event.content)?),
        "plan" => Entry::Plan(value(event, "entries").filter(Value::is_array)?),
        "state" => Entry::State(value(event, "state")?),
        "state_delta" => Entry::StateDelta(value(event, "delta").filter(Value::is_array)?),
        "unsupported" => {
            let fields = value(event, "fields")?;
            let fields = fields.as_array()?.iter();
            Entry::Unsupported(fields.filter_map(|field| field.as_str().map(str::to_owned)).collect())
        }
        "error" => {
            let Failure { error, retryable } = content(event)?;
            let interrupted_by = metadata.interrupted_by;
            Entry::Error { error, retryable, reply_to, began, interrupted_by, partial }
        }
        "cancelled" => Entry::Cancelled { why: text(), reply_to, began, partial },
        "permission" => Entry::Permission(content(event)?),
        "session" => Entry::Session(content(event)?),
        "options" => Entry::Options(content(event)?),
        "commands" => Entry::Commands(value(event, "commands").filter(Value::is_array)?),
        "sub_agent" => Entry::SubAgent(SubAgent {
            parent_call_id: metadata.parent_call_id?,
            attempt: metadata.attempt,
            sub_agent: metadata.sub_agent?,
            sub_event_id: metadata.sub_event_id?,
            ..content(event)?
        }),
        _ => return None,
    })
}
