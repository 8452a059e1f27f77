//! Reading a conversation's events back.

use serde_json::{Map, Value};
use thread::Event;

use super::{
    Answer, Choice, ClientInput, Fork, MAX_RUN_ID, Message, Permission, Priority, SELF, Status, SubAgent,
    ToolCall, ToolResult, run_id_of,
};

/// The meaning of an event in a conversation.
///
/// Parsing is lenient, whoever pushed the event: a key that is missing or of the wrong type counts as not
/// given, and an event without a meaning is [`Entry::Other`]. The events of a run come from `self`; from any
/// other source they are [`Entry::Other`], so that no outsider can begin or end a run.
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
        /// What had been said of the answer when the run ended.
        partial: Option<String>,
    },
    /// An ending.
    Cancelled {
        why: String,
        reply_to: Option<i64>,
        /// See [`Entry::Answer`].
        began: Option<i64>,
        /// What had been said of the answer.
        partial: Option<String>,
    },
    /// A request to end the run with the event's `run_id`.
    Cancel {
        why: String,
    },
    Permission(Permission),
    PermissionAnswer {
        request_id: String,
        choice: String,
    },
    Session {
        protocol: String,
        session_id: String,
        /// The newest [`Entry::Clear`] before it; 0 if there is none.
        cleared: i64,
    },
    /// The agent forgets what was said before.
    Clear,
    Title(String),
    /// The conversation is a copy of another.
    Forked(Fork),
    SubAgent(SubAgent),
    /// The whole state that the agent shares with its client.
    State(Value),
    /// A change of that state, an array of operations.
    StateDelta(Value),
    /// Fields of the client's input that the program cannot take.
    Unsupported(Vec<String>),
    /// A client goes on with the run of a message, of which it has seen everything up to the event `after`. The
    /// event's `run_id` is the client's name for the rest.
    Continued {
        reply_to: i64,
        after: i64,
    },
    Other,
}

impl Entry {
    /// Returns the id of the run that an event belongs to, and the event's meaning.
    pub fn of(event: &Event) -> (Option<String>, Entry) {
        let metadata = Metadata::of(event);
        let entry = entry(event, &metadata).unwrap_or(Entry::Other);
        let run_id = metadata.text("run_id").filter(|id| is_run_id(id));
        let run_id = match entry {
            Entry::Message(_) => Some(run_id.unwrap_or_else(|| run_id_of(event.id))),
            _ => run_id,
        };
        (run_id, entry)
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
}

/// Returns the number of the attempt that an event of a run belongs to; `None` if it says none. Programs may
/// use the id of a call again in a later attempt, so only both together are unique in a run.
pub fn attempt_of(event: &Event) -> Option<u64> {
    (event.source == SELF).then(|| Metadata::of(event).number("attempt")).flatten()
}

/// Whether a call is of one of the client's tools.
pub fn is_for_client(event: &Event) -> bool {
    event.source == SELF && Metadata::of(event).is_set("for_client")
}

/// Whether a result was given by a client.
pub fn is_from_client(event: &Event) -> bool {
    event.source == SELF && Metadata::of(event).text("client").is_some()
}

/// Whether a result only closes a call: the program has reported none.
pub fn is_unreported(event: &Event) -> bool {
    event.source == SELF && Metadata::of(event).is_set("unreported")
}

/// Returns what a client handed to the agent with this event.
pub fn input_of(event: &Event) -> ClientInput {
    ClientInput::of(&Metadata::of(event).0)
}

/// Run ids are passed to programs in their environment, so length and characters are limited.
fn is_run_id(text: &str) -> bool {
    text.len() <= MAX_RUN_ID && !text.chars().any(char::is_control)
}

struct Metadata(Map<String, Value>);

impl Metadata {
    fn of(event: &Event) -> Metadata {
        let object = event.metadata.as_deref().and_then(|text| serde_json::from_str(text).ok());
        Metadata(object.unwrap_or_default())
    }

    fn text(&self, key: &str) -> Option<String> {
        self.0.get(key)?.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
    }

    /// An event id; may be written as text, as `thread push --meta` does.
    fn id(&self, key: &str) -> Option<i64> {
        let value = self.0.get(key)?;
        value.as_i64().or_else(|| value.as_str()?.parse().ok())
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.0.get(key)?.as_u64()
    }

    fn is_set(&self, key: &str) -> bool {
        self.0.get(key).is_some_and(|value| *value == Value::Bool(true) || *value == "true")
    }
}

fn entry(event: &Event, metadata: &Metadata) -> Option<Entry> {
    let content = || event.content.clone();
    if event.kind == "message" {
        return Some(match event.source == SELF {
            true => answer(event, metadata),
            false => Entry::Message(message(event, metadata)),
        });
    }
    let subtype = event.subtype.as_deref()?;
    match subtype {
        "cancel" => return Some(Entry::Cancel { why: content() }),
        "title" => return Some(Entry::Title(content())),
        "clear" => return Some(Entry::Clear),
        "continued" => {
            let (reply_to, after) = (metadata.id("reply_to")?, metadata.id("after")?);
            return Some(Entry::Continued { reply_to, after });
        }
        // An agent must not answer its own requests.
        "forked" => {
            let object = Object::of(event)?;
            return Some(Entry::Forked(Fork {
                session_id: object.text("session_id")?,
                title: object.text("title").unwrap_or_default(),
                before: object.0.get("before").and_then(Value::as_i64),
            }));
        }
        "permission_answer" if event.source == SELF => return None,
        "permission_answer" => {
            let object = Object::of(event)?;
            return Some(Entry::PermissionAnswer {
                request_id: object.text("request_id")?,
                choice: object.text("choice")?,
            });
        }
        _ if event.source != SELF => return None,
        _ => {}
    }
    Some(match subtype {
        "run" => Entry::RunStarted {
            attempt: Object::of(event)?.0.get("attempt")?.as_u64()?,
            reply_to: metadata.id("reply_to"),
        },
        "token" => Entry::Token { text: content(), message_id: metadata.text("message_id") },
        "thinking" => Entry::Thinking { text: content(), message_id: metadata.text("message_id") },
        "toolcall" => Entry::ToolCall(tool_call(&Object::of(event)?)?),
        "toolresult" => Entry::ToolResult(tool_result(&Object::of(event)?)?),
        "status" => Entry::Status(Status::of(&event.content)?),
        "plan" => Entry::Plan(Object::of(event)?.0.remove("entries").filter(Value::is_array)?),
        "state" => Entry::State(Object::of(event)?.0.remove("state")?),
        "state_delta" => Entry::StateDelta(Object::of(event)?.0.remove("delta").filter(Value::is_array)?),
        "unsupported" => {
            let object = Object::of(event)?;
            let fields = object.0.get("fields")?.as_array()?.iter();
            Entry::Unsupported(fields.filter_map(|field| field.as_str().map(str::to_owned)).collect())
        }
        "error" => {
            let object = Object::of(event)?;
            Entry::Error {
                error: object.text("error").unwrap_or_default(),
                retryable: object.0.get("retryable").and_then(Value::as_bool).unwrap_or(false),
                reply_to: metadata.id("reply_to"),
                began: metadata.id("began"),
                interrupted_by: metadata.id("interrupted_by"),
                partial: metadata.text("partial"),
            }
        }
        "cancelled" => Entry::Cancelled {
            why: content(),
            reply_to: metadata.id("reply_to"),
            began: metadata.id("began"),
            partial: metadata.text("partial"),
        },
        "permission" => Entry::Permission(permission(&Object::of(event)?)?),
        "session" => {
            let object = Object::of(event)?;
            Entry::Session {
                protocol: object.text("protocol")?,
                session_id: object.text("session_id")?,
                cleared: object.0.get("cleared").and_then(Value::as_i64).unwrap_or(0),
            }
        }
        "sub_agent" => {
            let mut object = Object::of(event)?;
            Entry::SubAgent(SubAgent {
                parent_call_id: metadata.text("parent_call_id")?,
                attempt: metadata.number("attempt").unwrap_or(0),
                sub_agent: metadata.text("sub_agent")?,
                sub_event_id: metadata.id("sub_event_id")?,
                event: object.text("event")?,
                payload: object.0.remove("payload").unwrap_or_default(),
            })
        }
        _ => return None,
    })
}

fn message(event: &Event, metadata: &Metadata) -> Message {
    let mut other = metadata.0.clone();
    for known in ["run_id", "message_id", "priority", "client", "resume"] {
        other.shift_remove(known);
    }
    Message {
        content: event.content.clone(),
        run_id: metadata.text("run_id").filter(|id| is_run_id(id)),
        message_id: metadata.text("message_id"),
        priority: metadata.text("priority").map_or(Priority::Next, |word| Priority::of(&word)),
        client: metadata.text("client"),
        resume: metadata.is_set("resume"),
        other,
    }
}

fn answer(event: &Event, metadata: &Metadata) -> Entry {
    let answer = Answer {
        content: event.content.clone(),
        message_id: metadata.text("message_id"),
        total_tokens: metadata.number("total_tokens"),
        latency_ms: metadata.number("latency_ms"),
        stage: metadata.text("stage"),
    };
    Entry::Answer { answer, reply_to: metadata.id("reply_to"), began: metadata.id("began") }
}

/// Content that is a JSON object.
struct Object(Map<String, Value>);

impl Object {
    fn of(event: &Event) -> Option<Object> {
        serde_json::from_str(&event.content).ok().map(Object)
    }

    fn text(&self, key: &str) -> Option<String> {
        self.0.get(key)?.as_str().map(str::to_owned)
    }

    /// Null if there is none.
    fn array(&self, key: &str) -> Value {
        self.0.get(key).filter(|value| value.is_array()).cloned().unwrap_or_default()
    }
}

fn tool_call(object: &Object) -> Option<ToolCall> {
    Some(ToolCall {
        call_id: object.text("call_id")?,
        name: object.text("name").unwrap_or_default(),
        arguments: object.0.get("arguments").cloned().unwrap_or_default(),
        title: object.text("title"),
        kind: object.text("kind"),
        locations: object.array("locations"),
    })
}

fn tool_result(object: &Object) -> Option<ToolResult> {
    let error = object.0.get("error").filter(|error| !error.is_null());
    Some(ToolResult {
        call_id: object.text("call_id")?,
        name: object.text("name").unwrap_or_default(),
        outcome: match error {
            Some(Value::String(error)) => Err(error.clone()),
            Some(error) => Err(error.to_string()),
            None => Ok(object.0.get("result").cloned().unwrap_or_default()),
        },
        content: object.array("content"),
    })
}

fn permission(object: &Object) -> Option<Permission> {
    let choices = object.0.get("choices")?.as_array()?;
    let choice = |value: &Value| {
        let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        Some(Choice { id: text("id")?, name: text("name")?, kind: text("kind").unwrap_or_default() })
    };
    Some(Permission {
        request_id: object.text("request_id")?,
        title: object.text("title").unwrap_or_default(),
        call_id: object.text("call_id"),
        arguments: object.0.get("arguments").cloned().unwrap_or_default(),
        details: object.text("details").unwrap_or_default(),
        choices: choices.iter().filter_map(choice).collect(),
    })
}
