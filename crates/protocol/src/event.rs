//! Events: `{"type":"event","event":E,"payload":{…,"sessionId","runId"},"seq":N}`.

mod permission;

use serde::Serialize;
use serde_json::{Map, Value};

pub use self::permission::{Choice, Permission, PermissionAnswer, PermissionRequest};
use crate::content::{Content, any};

/// An event with what every event has besides its payload.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    pub event: Event,
    /// Null for the answer to a command of a client that is in no session.
    pub session_id: Option<String>,
    pub run_id: Option<String>,
    /// The event's id in its session's thread; `None` if it is not stored there.
    pub seq: Option<i64>,
    /// When it was stored.
    pub time: Option<String>,
}

/// The payload with the keys that each has.
#[derive(Serialize)]
struct Whole<'a, P> {
    r#type: &'static str,
    event: &'static str,
    payload: InSession<'a, P>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seq: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct InSession<'a, P> {
    #[serde(flatten)]
    payload: &'a P,
    session_id: Option<&'a str>,
    run_id: Option<&'a str>,
}

macro_rules! events {
    ($($(#[$about:meta])* $event:ident($payload:ty) = $name:literal,)+) => {
        /// An event, by its payload.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Event {
            $($(#[$about])* $event($payload),)+
        }

        /// The names of all events.
        pub const EVENTS: &[&str] = &[$($name),+];

        $(impl From<$payload> for Event {
            fn from(payload: $payload) -> Event {
                Event::$event(payload)
            }
        })+

        impl Event {
            pub fn name(&self) -> &'static str {
                match self {
                    $(Event::$event(_) => $name,)+
                }
            }

            /// The frame of the event as JSON. `seq` and `time` are those of an event that is stored.
            pub fn text(
                &self,
                session_id: Option<&str>,
                run_id: Option<&str>,
                seq: Option<i64>,
                time: Option<&str>,
            ) -> String {
                match self {
                    $(Event::$event(payload) => crate::to_text(&Whole {
                        r#type: "event",
                        event: $name,
                        payload: InSession { payload, session_id, run_id },
                        seq,
                        time,
                    }),)+
                }
            }

            /// Reads the payload of the event with this name; `None` if there is no such event.
            pub(crate) fn parse(name: &str, payload: &str) -> Option<serde_json::Result<Event>> {
                match name {
                    $($name => Some(serde_json::from_str(payload).map(Event::$event)),)+
                    _ => None,
                }
            }
        }

        #[cfg(test)]
        pub(crate) fn schemas(
            generator: &mut schemars::SchemaGenerator,
        ) -> Vec<(&'static str, schemars::Schema)> {
            vec![$(($name, crate::schema::of::<$payload>(generator))),+]
        }
    };
}

events! {
    /// A message.
    Message(Message) = "message",
    /// To the sender of a message alone: it waits.
    Queued(Queued) = "queued",
    /// What the run is doing.
    Status(Status) = "status",
    /// A piece of the answer.
    Token(Token) = "token",
    /// A piece of the agent's thinking.
    Thinking(Thinking) = "thinking",
    ToolCall(ToolCall) = "tool_call",
    ToolResult(ToolResult) = "tool_result",
    /// The answer: the end of the run.
    Final(Final) = "final",
    /// A failure; the end of the run unless it is `retryable`.
    Error(Error) = "error",
    /// The end of the run.
    Cancelled(Cancelled) = "cancelled",
    /// The session has a new title.
    Title(Title) = "title",
    /// An event of a sub-agent.
    SubAgent(SubAgent) = "sub_agent",
    /// A permission request, or the answer to one.
    Permission(Permission) = "permission",
    /// The number of connections in the session has changed.
    Clients(Clients) = "clients",
    /// The agent's plan; the newest replaces the others.
    Plan(Plan) = "plan",
    /// The commands that the agent takes; the newest replace the others.
    Commands(Commands) = "commands",
    /// What can be chosen at the agent, such as its mode; the newest replaces the others.
    Options(Options) = "options",
    /// Somebody has chosen it. The agent says its options again when it has taken that, or not.
    OptionChosen(OptionChosen) = "option",
    /// Stands for an event that is too large to be shown.
    Large(Large) = "large",
}

payloads! {
    pub struct Message {
        #[cfg_attr(test, schemars(extend("enum" = ["user", "assistant", "system"])))]
        pub role: Role,
        pub content: Content,
        pub message_id: String,
        pub timestamp: String,
        /// Whether this client has sent it.
        pub from_self: bool,
        /// Its source, as in the thread.
        pub source: Option<String>,
        /// Unless it is `next`.
        #[cfg_attr(test, schemars(extend("enum" = ["now", "steer", "later"])))]
        pub priority: Option<Priority>,
        #[serde(default, deserialize_with = "any::object")]
        pub metadata: Option<Map<String, Value>>,
        /// Set if the content is too large; `content` is then a short text that says so.
        pub large: Option<LargeContent>,
    }

    /// Where the content of a message is that is not shown.
    pub struct LargeContent {
        pub bytes: u64,
        pub url: String,
    }

    pub struct Queued {
        /// The id of the request that has sent the message.
        pub request_id: String,
        /// How many runs are ahead of it.
        #[cfg_attr(test, schemars(range(min = 1)))]
        pub position: u64,
        /// The same in words.
        pub message: String,
    }

    pub struct Status {
        pub status: RunStatus,
        /// With `started`: which attempt it is, from 1.
        #[cfg_attr(test, schemars(range(min = 1)))]
        pub attempt: Option<u64>,
    }

    pub struct Token {
        /// The text added.
        pub content: String,
        /// Always true.
        #[cfg_attr(test, schemars(extend("const" = true)))]
        pub delta: bool,
        #[serialize_always]
        pub message_id: Option<String>,
    }

    pub struct Thinking {
        /// The text added.
        pub content: String,
        /// Always true.
        #[cfg_attr(test, schemars(extend("const" = true)))]
        pub delta: bool,
        #[serialize_always]
        pub message_id: Option<String>,
    }

    /// A tool call, or a correction of the one with the same `callId`.
    pub struct ToolCall {
        pub call_id: String,
        pub tool_name: String,
        #[serde(deserialize_with = "any::deserialize")]
        pub arguments: Value,
        /// What the call does, for people.
        pub title: Option<String>,
        /// What kind of tool it is: `read`, `edit`, `delete`, `move`, `search`, `execute`, `think`, `fetch` or another word.
        pub kind: Option<String>,
        /// The files that it works on: `{"path","line"}`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub locations: Vec<Value>,
    }

    /// Has a `result` or an `error`.
    #[cfg_attr(test, schemars(extend("oneOf" = [{"required": ["result"]}, {"required": ["error"]}])))]
    pub struct ToolResult {
        pub call_id: String,
        pub tool_name: String,
        #[serde(default, deserialize_with = "any::present")]
        pub result: Option<Value>,
        pub error: Option<String>,
        /// Further content, such as changes to files: `{"type":"diff","path","oldText","newText"}`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub content: Vec<Value>,
        /// The agent's program never reported a result; `error` has the reason.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        pub unreported: bool,
    }

    pub struct Final {
        pub message_id: String,
        /// The whole answer.
        pub content: Content,
        #[serialize_always]
        pub total_tokens: Option<u64>,
        #[serialize_always]
        pub latency_ms: Option<u64>,
        #[serialize_always]
        pub stage: Option<String>,
        pub timestamp: String,
        /// What was taken, as far as the agent says.
        pub usage: Option<Usage>,
        pub cost: Option<Cost>,
    }

    pub struct Error {
        pub message: String,
        #[cfg_attr(test, schemars(transform = crate::schema::open))]
        pub error_code: ErrorCode,
        /// Whether another attempt follows.
        pub retryable: bool,
    }

    /// Numbers of tokens, as far as the agent says.
    pub struct Usage {
        /// All that was read, those that were in a cache included.
        pub input_tokens: u64,
        /// All that was written, reasoning included.
        pub output_tokens: u64,
        pub cached_tokens: u64,
        pub reasoning_tokens: u64,
    }

    /// What something costs, as the agent says.
    pub struct Cost {
        /// A decimal number, such as `0.25`.
        pub amount: String,
        /// Such as `USD`, if it is known.
        pub currency: Option<String>,
    }

    pub struct Cancelled {
        /// Who asked for it, or why.
        pub message: String,
    }

    pub struct Title {
        pub title: String,
    }

    pub struct SubAgent {
        pub parent_call_id: String,
        pub sub_agent: String,
        /// The name of the sub-agent's event.
        pub event: String,
        /// The payload of that event.
        #[serde(deserialize_with = "any::deserialize")]
        pub payload: Value,
    }

    #[derive(Copy)]
    pub struct Clients {
        pub clients: u64,
    }

    pub struct Plan {
        pub entries: Vec<PlanEntry>,
    }

    pub struct PlanEntry {
        pub content: String,
        pub priority: PlanPriority,
        pub status: PlanStatus,
    }

    pub struct Commands {
        pub commands: Vec<Command>,
    }

    /// What the agent does for a message that begins with `/` and the name.
    pub struct Command {
        pub name: String,
        pub description: String,
        /// What may follow the name.
        pub hint: Option<String>,
    }

    pub struct Options {
        pub options: Vec<AgentOption>,
        /// Why the agent has not taken what was chosen last.
        pub refused: Option<String>,
    }

    /// Something at an agent that has one of several values.
    pub struct AgentOption {
        pub id: String,
        pub name: String,
        pub description: Option<String>,
        /// What kind of thing it is: `mode`, `model`, `thought_level`, or a word of the agent's own.
        pub category: Option<String>,
        /// The id of the choice that it has.
        pub current: String,
        pub choices: Vec<OptionChoice>,
    }

    pub struct OptionChoice {
        pub id: String,
        pub name: String,
        pub description: Option<String>,
    }

    pub struct OptionChosen {
        /// The id of the option.
        pub id: String,
        /// The id of the choice.
        pub value: String,
    }

    pub struct Large {
        /// The source of the stored event.
        pub source: String,
        /// Its type, `message` or `record`.
        pub r#type: String,
        #[serialize_always]
        pub subtype: Option<String>,
        pub bytes: u64,
        /// Where its content can be read.
        pub url: String,
    }
}

impl Token {
    pub fn new(content: impl Into<String>, message_id: Option<String>) -> Token {
        Token { content: content.into(), delta: true, message_id }
    }
}

impl Thinking {
    pub fn new(content: impl Into<String>, message_id: Option<String>) -> Thinking {
        Thinking { content: content.into(), delta: true, message_id }
    }
}

/// Takes in that somebody has chosen the value of an option. One that is not possible changes nothing.
pub fn choose(options: &mut [AgentOption], chosen: &OptionChosen) {
    let can_be = |option: &&mut AgentOption| {
        option.id == chosen.id && option.choices.iter().any(|choice| choice.id == chosen.value)
    };
    if let Some(option) = options.iter_mut().find(can_be) {
        option.current.clone_from(&chosen.value);
    }
}

words! {
    /// Who speaks. In a history, `error` and `cancelled` are the ends of runs that were not answered.
    Role {
        User = "user",
        Assistant = "assistant",
        System = "system",
        Error = "error",
        Cancelled = "cancelled",
    }

    /// When a message is taken up.
    Priority {
        /// At once: it interrupts the run under way.
        Now = "now",
        /// In the middle of the run under way, if the agent takes messages there.
        Steer = "steer",
        Next = "next",
        /// When nothing else waits.
        Later = "later",
    }

    /// What a run is doing.
    RunStatus {
        /// An attempt has begun.
        Started = "started",
        /// It waits for its turn: too many agents are running.
        Waiting = "waiting",
        Thinking = "thinking",
        ExecutingTool = "executing_tool",
        Streaming = "streaming",
        Done = "done",
    }

    /// What kind of failure it is. There may be others than those that are known.
    ErrorCode {
        /// An attempt failed, and another follows.
        AttemptFailed = "attempt_failed",
        /// The run failed.
        RunFailed = "run_failed",
        /// The agent reported it; it ends neither the run nor the attempt.
        Reported = "reported",
        /// The session is gone, and the client is in none.
        SessionDeleted = "session_deleted",
        /// The client hears all sessions, but this one is too many.
        NotWatched = "not_watched",
    }

    /// How important a task of a plan is.
    PlanPriority {
        High = "high",
        Medium = "medium",
        Low = "low",
    }

    /// How far a task of a plan has come.
    PlanStatus {
        Pending = "pending",
        InProgress = "in_progress",
        Completed = "completed",
    }
}
