//! The protocols for talking to an agent program: one trait, five implementations.
//!
//! A protocol turns prompts into bytes for the program, and the program's bytes into [`Output`]. Processes,
//! storing and timeouts are left to the adapter, which treats all protocols alike. The only files a protocol
//! reads are a prompt's attachments.

mod acp;
mod ag_ui;
mod exec;
mod ndjson;
mod openai;

use std::time::Duration;

use serde_json::Value;

use crate::attachments::Attachment;
use crate::transcript::{MESSAGES, Spoken};
use thread_conversation::{
    AgentOptions, ClientInput, ModelTurn, OptionChosen, Permission, Run, Spent, Status, ToolCall, ToolResult,
};

pub use acp::{Acp, EDITORS_SERVERS, Servers, ToolServer};
pub use ag_ui::AgUi;
pub use exec::Exec;
pub use ndjson::Ndjson;
pub use openai::{ModelOptions, OpenAi};

/// Output of a program.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// A piece of the answer.
    Token(String),
    /// A piece of the agent's thinking.
    Thinking(String),
    /// A content part of the answer that is not text, such as an image.
    Part(Value),
    /// The agent's plan with its progress: the whole list.
    Plan(Value),
    /// The whole state that it shares with the client.
    State(Value),
    /// A change of that state: an array of operations.
    StateDelta(Value),
    /// A call, or its corrected details.
    Call(ToolCall),
    Result(ToolResult),
    /// The messages of an answer as the agent knows them, which it is given again with later prompts.
    Messages(Vec<Value>),
    /// A model's finished turn. What follows from it is decided once it is stored.
    Turn(ModelTurn),
    /// A model's summary of what was said up to an event.
    Summary {
        text: String,
        upto: i64,
    },
    /// The prompt was longer than the model can read, which is known now. The error says so.
    TooLong(String),
    /// The tools that a model is given are known now.
    Tools,
    /// Something that the user should know of: why there are no tools, for example.
    Note(String),
    Status(Status),
    /// If this attempt fails, the next one should not begin before that time has passed.
    RetryAfter(Duration),
    /// The program's own session, for its next process to load.
    Session(String),
    /// The commands that it takes now: `[{"name","description","hint"}]`.
    Commands(Value),
    /// What can be chosen at it now.
    Options(AgentOptions),
    /// What was taken since it said so last: tokens, and what they cost.
    Used(Spent),
    /// A request for permission, answered by [`Protocol::permit`].
    Asks(Permission),
    /// The request for permission of this id needs no answer any more.
    Withdrawn(String),
    Done(Done),
}

/// How a program finished a prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum Done {
    /// It answered. If `content` is `None`, all tokens together are the answer.
    Answered { content: Option<String>, total_tokens: Option<u64>, stage: Option<String> },
    /// The attempt failed; if `retryable`, another may be made.
    Failed { error: String, retryable: bool },
    /// It stopped because it was cancelled.
    Cancelled,
    /// It violated the protocol, so its process must be ended.
    Broken(String),
}

/// One message for the program.
#[derive(Debug, Clone)]
pub struct Prompt {
    pub run: Run,
    /// The message's event as one line of JSON, without the newline.
    pub event: String,
    /// The message's content.
    pub content: String,
    /// The message's attached files.
    pub attachments: Vec<Attachment>,
    /// The conversation so far, for the first prompt of a process; else empty.
    pub transcript: Vec<Spoken>,
    /// The recorded session, for the first prompt of a persistent process; else `None`.
    pub session: Option<String>,
    /// What people have chosen of the program's options, for the first prompt of a process whose protocol
    /// [has](Protocol::has_options) some; else empty.
    pub chosen: Vec<OptionChosen>,
    /// The client's input along with the message.
    pub input: ClientInput,
    /// The messages for the model, if the thread is the agent's whole memory, or the whole conversation with this
    /// message, if the protocol [takes](Protocol::takes_history) that; else empty.
    pub messages: Vec<Value>,
    /// The state that was last shared with the client, if the protocol takes the whole conversation; else null.
    pub state: Value,
}

/// How a process ended: its exit code, or 128 plus the number of the signal that ended it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended(pub i32);

pub trait Protocol: Send {
    /// The protocol's name on the command line.
    fn name(&self) -> &'static str;

    /// Whether one process serves many prompts: the program is persistent.
    fn keeps_process(&self) -> bool {
        true
    }

    /// Whether the thread is the agent's whole memory: what it is given follows from the thread's events, so an
    /// attempt can be continued by another adapter.
    fn remembers_by_thread(&self) -> bool {
        false
    }

    /// What a model is given besides messages and does in between, if it is one.
    fn model(&mut self) -> Option<&mut OpenAi> {
        None
    }

    /// Whether a persistent program may print something while no prompt is due. The protocol keeps the state for
    /// this.
    fn speaks_unasked(&self) -> bool {
        false
    }

    /// Whether the program still works on something after its answer, and will report its end.
    fn works_in_background(&self) -> bool {
        false
    }

    /// Notes that the program's unasked output has ended.
    fn unasked_done(&mut self) {}

    /// The maximum number of earlier messages that a new process gets.
    fn transcript(&self) -> usize {
        MESSAGES
    }

    /// Whether each prompt has the whole conversation, with the [messages](Output::Messages) of earlier answers.
    fn takes_history(&self) -> bool {
        false
    }

    /// Whether prompts can have this field of a [`ClientInput`].
    fn takes(&self, field: &str) -> bool;

    /// Resets the state for a new process.
    fn started(&mut self);

    /// Whether something that the process was given when it was started has changed since, so that the next prompt is
    /// better given to another.
    fn is_outdated(&self) -> bool {
        false
    }

    /// Adds to a prompt what does not come from the thread. An error fails the attempt for good.
    fn prepare(&mut self, _prompt: &mut Prompt) -> Result<(), String> {
        Ok(())
    }

    /// Begins a prompt: writes the program's input to `out`.
    fn prompt(&mut self, prompt: Prompt, out: &mut Vec<u8>);

    /// Whether the program may be given its next prompt before it has answered this one.
    fn takes_ahead(&self) -> bool {
        false
    }

    /// Forgets a prompt that was given ahead: its end is not awaited.
    fn forget_ahead(&mut self) {}

    /// Parses the program's stdout, in chunks of any size. Replies to the program are written to `out`.
    fn read(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Vec<Output>;

    /// Handles the exit of the process during a prompt. The last element returned is [`Output::Done`].
    fn ended(&mut self, ended: Ended) -> Vec<Output> {
        vec![Output::Done(Done::Failed { error: ended.to_string(), retryable: true })]
    }

    /// Writes the protocol's message for cancelling the prompt to `out`. Returns `false` if there is none:
    /// then the program gets a signal.
    fn cancel(&mut self, _out: &mut Vec<u8>) -> bool {
        false
    }

    /// Whether a program may have options, such as modes.
    fn has_options(&self) -> bool {
        false
    }

    /// Gives the program, which is running, another value of one of its options. [`Output::Options`] follows.
    fn choose(&mut self, _chosen: &OptionChosen, _out: &mut Vec<u8>) {}

    /// Answers a request for permission; `None` rejects it.
    fn permit(&mut self, _request_id: &str, _choice: Option<&str>, _out: &mut Vec<u8>) {}

    /// Gives the program the result of one of the client's tools, with the client's further input. Called only if
    /// the protocol [takes](Protocol::takes) tools.
    fn tool_result(&mut self, _result: &ToolResult, _input: &ClientInput, _out: &mut Vec<u8>) {}
}

/// A client's context, `[{"description","value"}]`, as text.
fn context_text(context: &Value) -> String {
    let mut text = String::from("What the user's application says of itself:\n");
    for one in context.as_array().into_iter().flatten() {
        let value = &one["value"];
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        text.push_str(&format!("\n[{}]\n{value}\n", one["description"].as_str().unwrap_or_default()));
    }
    text
}

/// Writes a message as a line of JSON.
fn send(out: &mut Vec<u8>, message: Value) {
    out.extend(message.to_string().into_bytes());
    out.push(b'\n');
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            code @ 129.. => write!(f, "the agent program was ended by signal {}", code - 128),
            code => write!(f, "the agent program ended with exit code {code}"),
        }
    }
}
