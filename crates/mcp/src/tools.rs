//! The tools: their names, their descriptions for an LLM, and what they do.

pub mod processes;
pub mod queue;
pub mod sessions;
pub mod sub_agents;
pub mod wait_time;

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::problem::{Problem, Result};
use crate::schema;
use crate::scope::Scope;

/// What a tool needs to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    /// `--allow-subscribe`
    Permission,
    Root,
    Processes,
    /// Not to be a sub-agent.
    Depth,
}

/// A tool.
pub struct Tool {
    pub name: &'static str,
    /// When to use it, and what it returns.
    pub about: &'static str,
    needs: Needs,
    pub is_read_only: bool,
    input: fn() -> Map<String, Value>,
    pub output: fn() -> Map<String, Value>,
}

const TOOLS: &[Tool] = &[
    Tool {
        name: "push",
        about: "Store a message in a thread; its agent answers it. priority: now interrupts, later waits until \
                nothing else is pending. Returns the event's id, and the run that will answer: see \
                process_status, wait.",
        needs: Needs::Nothing,
        is_read_only: false,
        input: schema::of::<queue::PushArgs>,
        output: schema::of::<queue::Pushed>,
    },
    Tool {
        name: "peek",
        about: "Read a thread's events, without acknowledging them: the last ones, those after an id, or one by \
                its id. Long contents are cut: next_offset, given as offset with id, gets the rest.",
        needs: Needs::Nothing,
        is_read_only: true,
        input: schema::of::<queue::PeekArgs>,
        output: schema::of::<queue::Peeked>,
    },
    Tool {
        name: "wait",
        about: "Wait until a thread has new events, at most 50 seconds. Returns them, or timed_out; call it again \
                with after = cursor. Use it instead of polling with peek.",
        needs: Needs::Nothing,
        is_read_only: true,
        input: schema::of::<queue::WaitArgs>,
        output: schema::of::<queue::Waited>,
    },
    Tool {
        name: "ack",
        about: "Acknowledge all events up to an id for a consumer without a handler, after they were dealt with. \
                Returns its cursor, which never moves back.",
        needs: Needs::Nothing,
        is_read_only: false,
        input: schema::of::<queue::AckArgs>,
        output: schema::of::<queue::Acked>,
    },
    Tool {
        name: "info",
        about: "The state of a thread: its newest event id, and for each consumer its cursor, whether events are \
                pending, and dead letters.",
        needs: Needs::Nothing,
        is_read_only: true,
        input: schema::of::<queue::InfoArgs>,
        output: schema::of::<queue::Info>,
    },
    Tool {
        name: "subscribe",
        about: "Register a shell command that is started for each new event of a thread that matches a filter. \
                Returns where it begins.",
        needs: Needs::Permission,
        is_read_only: false,
        input: schema::of::<queue::SubscribeArgs>,
        output: schema::of::<queue::Subscribed>,
    },
    Tool {
        name: "sessions_search",
        about: "Find conversations by a text, the day of their last activity, or both, such as what was said \
                about backups yesterday. Returns ids, titles and the matching text; read on with sessions_get.",
        needs: Needs::Root,
        is_read_only: true,
        input: schema::of::<sessions::SearchArgs>,
        output: schema::of::<sessions::Sessions>,
    },
    Tool {
        name: "sessions_list",
        about: "List conversations, the latest active first, with id, title, last message and state.",
        needs: Needs::Root,
        is_read_only: true,
        input: schema::of::<sessions::ListArgs>,
        output: schema::of::<sessions::Sessions>,
    },
    Tool {
        name: "sessions_get",
        about: "Read the last messages of a conversation, oldest first; before = the first id gets older ones.",
        needs: Needs::Root,
        is_read_only: true,
        input: schema::of::<sessions::GetArgs>,
        output: schema::of::<sessions::Conversation>,
    },
    Tool {
        name: "process_list",
        about: "What runs or waits now, in all sessions or in one: agents' runs and sub-agents, for how long, and \
                on what. Returns the ids that the other process tools take.",
        needs: Needs::Processes,
        is_read_only: true,
        input: schema::of::<processes::ListArgs>,
        output: schema::of::<processes::Processes>,
    },
    Tool {
        name: "process_status",
        about: "The state of one run or sub-agent, also after its end: then with its answer, or why there is none.",
        needs: Needs::Processes,
        is_read_only: true,
        input: schema::of::<processes::StatusArgs>,
        output: schema::of::<processes::Status>,
    },
    Tool {
        name: "process_cancel",
        about: "End a run or sub-agent, running or waiting. Returns once that is requested; process_status reports \
                when it has ended.",
        needs: Needs::Processes,
        is_read_only: false,
        input: schema::of::<processes::CancelArgs>,
        output: schema::of::<processes::Cancelled>,
    },
    Tool {
        name: "process_wait_time",
        about: "Estimate how long a message will wait until its run begins. Returns the milliseconds and what \
                they are made of: the runs before it, and how long the last ones took.",
        needs: Needs::Processes,
        is_read_only: true,
        input: schema::of::<wait_time::Args>,
        output: schema::of::<wait_time::WaitTime>,
    },
    Tool {
        name: "subagent_run",
        about: "Give a task to a sub-agent, which knows only what the task says, and wait for its answer. After \
                50 seconds it answers `running`: it works on while this run lasts, and process_status has the \
                answer later. One in the background outlives the run.",
        needs: Needs::Depth,
        is_read_only: false,
        input: schema::of::<sub_agents::RunArgs>,
        output: schema::of::<processes::Status>,
    },
];

/// The tools of a server.
pub fn tools(scope: &Scope) -> impl Iterator<Item = &'static Tool> {
    TOOLS.iter().filter(|tool| match tool.needs {
        Needs::Nothing => true,
        Needs::Permission => scope.allow_subscribe,
        Needs::Root => scope.root.is_some(),
        Needs::Processes => scope.has_processes,
        Needs::Depth => scope.may_have_sub_agents(),
    })
}

impl Tool {
    /// The schema of its arguments. If there is only one thread, none can be named; if there is none, one must be.
    pub fn input(&self, scope: &Scope) -> Map<String, Value> {
        let mut schema = (self.input)();
        if scope.root.is_none() {
            if let Some(Value::Object(properties)) = schema.get_mut("properties") {
                properties.shift_remove("session");
            }
        } else if scope.thread.is_none()
            && self.name != "process_list"
            && schema["properties"].get("session").is_some()
        {
            let required = schema.entry("required").or_insert_with(|| Vec::<Value>::new().into());
            if let Value::Array(names) = required {
                names.insert(0, "session".into());
            }
        }
        schema
    }
}

/// Calls a tool. `None` if there is none of that name.
pub async fn call(
    scope: &Arc<Scope>,
    name: &str,
    arguments: Map<String, Value>,
    cancelled: &CancellationToken,
) -> Option<Result<Map<String, Value>>> {
    let tool = tools(scope).find(|tool| tool.name == name)?;
    let _call = scope.calls.token();
    // A sub-agent is ended with its call. Everything else is left: what waits for its turn is not begun any more.
    let is_left = async {
        match tool.name {
            "subagent_run" => std::future::pending().await,
            _ => cancelled.cancelled().await,
        }
    };
    tokio::select! {
        done = called(scope, tool, arguments, cancelled) => Some(done),
        () = is_left => Some(Err(Problem::new("the call was cancelled", "call the tool again"))),
    }
}

async fn called(
    scope: &Arc<Scope>,
    tool: &Tool,
    arguments: Map<String, Value>,
    cancelled: &CancellationToken,
) -> Result<Map<String, Value>> {
    let given = Value::Object(arguments);
    match tool.name {
        "push" => result(queue::push(scope, args(given)?).await),
        "peek" => result(queue::peek(scope, args(given)?).await),
        "wait" => result(queue::wait(scope, args(given)?, cancelled).await),
        "ack" => result(queue::ack(scope, args(given)?).await),
        "info" => result(queue::info(scope, args(given)?).await),
        "subscribe" => result(queue::subscribe(scope, args(given)?).await),
        "sessions_search" => result(sessions::search(scope, args(given)?).await),
        "sessions_list" => result(sessions::list(scope, args(given)?).await),
        "sessions_get" => result(sessions::get(scope, args(given)?).await),
        "process_list" => result(processes::list(scope, args(given)?).await),
        "process_status" => result(processes::status(scope, args(given)?).await),
        "process_cancel" => result(processes::cancel(scope, args(given)?).await),
        "process_wait_time" => result(wait_time::wait_time(scope, args(given)?).await),
        "subagent_run" => result(sub_agents::run(scope, args(given)?, cancelled).await),
        name => Err(Problem::new(format!("the tool '{name}' does nothing"), "use another")),
    }
}

fn args<T: DeserializeOwned>(given: Value) -> Result<T> {
    serde_json::from_value(given).map_err(|e| {
        let what: String = e.to_string().chars().take(200).collect();
        Problem::new(format!("bad arguments: {what}"), "see the tool's inputSchema")
    })
}

fn result(done: Result<impl Serialize>) -> Result<Map<String, Value>> {
    match serde_json::to_value(done?) {
        Ok(Value::Object(object)) => Ok(object),
        _ => Err(Problem::new("the result is no object", "report this as a mistake of thread")),
    }
}
