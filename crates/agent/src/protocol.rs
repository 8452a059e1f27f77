//! How an agent program is talked to: three ways, one trait.
//!
//! A protocol turns prompts into bytes for the program and its bytes into [`Said`]. It starts nothing,
//! stores nothing and knows no time; the adapter does that, the same for all. Of files it reads only those
//! that came with a prompt.

mod acp;
mod exec;
mod ndjson;

use crate::attachments::Attachment;
use crate::conversation::{Permission, Run, Status, ToolCall, ToolResult};
use crate::transcript::Spoken;

pub use acp::Acp;
pub use exec::Exec;
pub use ndjson::Ndjson;

/// What a program says.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    /// A piece of the answer.
    Token(String),
    /// A piece of its thinking.
    Thinking(String),
    Call(ToolCall),
    Result(ToolResult),
    Status(Status),
    /// Its own session, to be loaded by the next process.
    Session(String),
    /// It waits for an answer, by [`Protocol::permit`].
    Asks(Permission),
    Done(Done),
}

/// How a program is done with a prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum Done {
    /// It has answered. Without a content of its own, all tokens together are the answer.
    Answered { content: Option<String>, total_tokens: Option<u64>, stage: Option<String> },
    /// This attempt failed; another may be made if it is `retryable`.
    Failed { error: String, retryable: bool },
    /// It has stopped because it was told to.
    Cancelled,
    /// What it says makes no sense: it is of no use any more.
    Broken(String),
}

/// One message for the program.
#[derive(Debug, Clone)]
pub struct Prompt {
    pub run: Run,
    /// The message's event as one line of JSON, without the line end.
    pub event: String,
    /// The message's content.
    pub content: String,
    /// The files that came with it.
    pub attachments: Vec<Attachment>,
    /// What was said before, for a process that was not there.
    pub transcript: Vec<Spoken>,
    /// The session that an earlier process of the program had.
    pub session: Option<String>,
}

/// How a process came to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Its exit code, or that of the signal: 128 and its number.
    pub code: i32,
    /// The end of what it wrote to stderr.
    pub stderr: String,
}

pub trait Protocol: Send {
    /// The name it is chosen by.
    fn name(&self) -> &'static str;

    /// Whether one process serves many prompts.
    fn keeps_process(&self) -> bool;

    /// A new process was started: what was said to another is forgotten.
    fn started(&mut self);

    /// Begins a prompt: writes to `out` what the program is to get.
    fn prompt(&mut self, prompt: Prompt, out: &mut Vec<u8>);

    /// Reads what it printed. `out` gets what it is to be sent in answer.
    fn read(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Vec<Said>;

    /// It has ended during a prompt; the last of it is [`Said::Done`].
    fn ended(&mut self, ended: &Ended) -> Vec<Said>;

    /// Tells the program to stop working on the prompt, in its own way. Returns whether there is one; else
    /// it is told by a signal.
    fn cancel(&mut self, out: &mut Vec<u8>) -> bool;

    /// Answers what it asked for; `None` rejects it.
    fn permit(&mut self, request_id: &str, choice: Option<&str>, out: &mut Vec<u8>);
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.code {
            code @ 129.. => write!(f, "the agent program was ended by signal {}", code - 128)?,
            code => write!(f, "the agent program ended with exit code {code}")?,
        }
        match self.stderr.as_str() {
            "" => Ok(()),
            stderr => write!(f, ": {stderr}"),
        }
    }
}
