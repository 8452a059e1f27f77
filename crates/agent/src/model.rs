//! A model behind HTTP: OpenAI's chat completions, as most servers of models offer them, and the tools that it is
//! given by the Model Context Protocol; and agents behind HTTP, by AG-UI.
//!
//! [`serve()`] is the process that the adapter starts for [`--protocol openai`](crate::protocol::OpenAi), in the place of
//! an agent program, and for [`--protocol ag-ui`](crate::protocol::AgUi): an [`Order`] in, lines of [`Heard`] out. All that it holds are the connections to the servers of
//! tools.

mod ag_ui;
mod ask;
mod assembly;
mod check;
mod connection;
mod endpoint;
mod http;
mod long_lines;
mod serve;
mod tool_server;
mod tools;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thread_conversation::ModelTurn;

pub use check::{Check, check};
pub use endpoint::{Endpoint, checked_url, default_context, default_key_variable, parse_url};
pub use serve::{digest_of, serve};
pub use tool_server::{At, ToolServer};
pub use tools::function;

/// What a tool returned, or why it failed.
pub type Outcome = Result<String, String>;

/// A line for the process: what to do, under an id.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    pub id: u64,
    pub what: What,
}

/// What to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Connect to these servers of tools, which are started in `cwd` if they are commands. They stay connected.
    Connect { servers: Vec<ToolServer>, cwd: PathBuf },
    /// Ask the model for a turn. It is given these tools, and those of the servers if it `has_servers`.
    Ask { endpoint: Endpoint, model: String, messages: Vec<Value>, tools: Vec<Value>, has_servers: bool },
    /// Call a tool of a server. `again`: if it is not known whether a call was made, it may be made again.
    Call { name: String, arguments: Map<String, Value>, limit: Duration, again: bool },
    /// Run the agent that is there, by AG-UI, with this input.
    Run { endpoint: Endpoint, input: Value },
    /// Stop everything.
    Cancel,
}

/// What a tool's server says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Marks {
    /// It changes nothing.
    pub is_read_only: bool,
    /// Calling it again with the same arguments changes nothing more.
    pub is_idempotent: bool,
    /// How long its description is, in bytes.
    pub size: usize,
}

impl Marks {
    /// Whether a call may be made again if it is not known whether it was made.
    pub fn may_repeat(self) -> bool {
        self.is_read_only || self.is_idempotent
    }
}

/// A line from the process, about the order of that id.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    pub id: u64,
    pub heard: Heard,
}

/// What comes of an order. Of those of [`What::Ask`], the last one is a turn or a failure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Heard {
    Token(String),
    Thinking(String),
    Turn(ModelTurn),
    Failed(Failed),
    /// An event of an agent's run. The last one of [`What::Run`] is its end, or there is a failure.
    Event(Value),
    /// Something that the user should know of.
    Note(String),
    /// The tools of the servers as they are now, by their names.
    Tools(BTreeMap<String, Marks>),
    /// What has come of a call. It is kept as text.
    Returned(Outcome),
    /// Nothing is under way any more.
    Stopped,
}

/// Why there is no turn.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Failed {
    /// For people, with what they can do about it.
    pub error: String,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// How many seconds to wait before.
    pub retry_after: Option<u64>,
    /// What the server says, if it has refused the request.
    pub told: String,
    /// The prompt is longer than so many tokens, which is all that the model can read; 0 if it does not say how many.
    pub context: Option<u64>,
}

impl Failed {
    /// Whether the server seems to have refused the request because of its tools.
    fn is_about_tools(&self) -> bool {
        let told = self.told.to_ascii_lowercase();
        told.contains("tool") || told.contains("function")
    }
}
