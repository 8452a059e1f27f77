//! The tools: their names, their descriptions for an LLM, and what they do.

pub mod processes;
pub mod queue;
pub mod schedules;
pub mod sessions;
pub mod sub_agents;
pub mod wait_time;

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use thread_agent::sub_agent::is_sub_agent;
use tokio_util::sync::CancellationToken;

use crate::problem::{Problem, Result};
use crate::schema;
use crate::scope::{Scope, Turn};

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

/// Defines the table [`TOOLS`] and the function that calls them. A row has a tool's name, what it needs, the turn that it
/// takes on its thread (`Own` if it takes none, or several), its function with what that takes and returns, whether it
/// only reads, and its description.
macro_rules! tools {
    ($($name:literal, $needs:ident, $turn:ident $tool:path: $args:ty => $result:ty, $is_read_only:literal: $about:literal;)+) => {
        const TOOLS: &[Tool] = &[$(Tool {
            name: $name,
            about: $about,
            needs: Needs::$needs,
            is_read_only: $is_read_only,
            input: schema::of::<$args>,
            output: schema::of::<$result>,
        }),+];

        async fn called(
            scope: &Arc<Scope>,
            tool: &Tool,
            arguments: Map<String, Value>,
            cancelled: &CancellationToken,
        ) -> Result<Map<String, Value>> {
            match tool.name {
                $($name => {
                    let args: $args = parsed(arguments)?;
                    result(run!($turn $tool, scope, args, cancelled).await?)
                })+
                name => Err(Problem::new(format!("the tool '{name}' does nothing"), "use another")),
            }
        }
    };
}

macro_rules! run {
    (Own $tool:path, $scope:ident, $args:ident, $cancelled:ident) => {
        $tool($scope, $args, $cancelled)
    };
    ($turn:ident $tool:path, $scope:ident, $args:ident, $cancelled:ident) => {{
        let path = $scope.path_of($args.session.as_deref())?;
        $scope.blocking(Turn::$turn(path.clone()), move |scope| $tool(scope, &path, $args))
    }};
}

tools! {
    "push", Nothing, Write queue::push: queue::PushArgs => queue::Pushed, false:
        "Store a message in a thread; its agent answers it. priority: now interrupts, later waits until \
         nothing else is pending. Returns the event's id, and the run that will answer: see \
         process_status, wait.";
    "peek", Nothing, Read queue::peek: queue::PeekArgs => queue::Peeked, true:
        "Read a thread's events, without acknowledging them: the last ones, those after an id, or one by \
         its id. Long contents are cut: next_offset, given as offset with id, gets the rest.";
    "wait", Nothing, Own queue::wait: queue::WaitArgs => queue::Waited, true:
        "Wait until a thread has new events, at most 50 seconds. Returns them, or timed_out; call it again \
         with after = cursor. Use it instead of polling with peek.";
    "ack", Nothing, Write queue::ack: queue::AckArgs => queue::Acked, false:
        "Acknowledge all events up to an id for a consumer without a handler, after they were dealt with. \
         Returns its cursor, which never moves back.";
    "info", Nothing, Read queue::info: queue::InfoArgs => queue::Info, true:
        "The state of a thread: its newest event id, and for each consumer its cursor, whether events are \
         pending, and dead letters.";
    "schedule_create", Nothing, Write schedules::create: schedules::CreateArgs => schedules::Created, false:
        "Have a message come later, as a reminder: once (in, at), or again and again (every, cron). Its agent \
         answers it then.";
    "schedule_list", Nothing, Read schedules::list: schedules::ListArgs => schedules::Listed, true:
        "What is to come.";
    "schedule_cancel", Nothing, Write schedules::cancel: schedules::CancelArgs => schedules::Cancelled, false:
        "Let a message, or a schedule, not come any more.";
    "subscribe", Permission, Write queue::subscribe: queue::SubscribeArgs => queue::Subscribed, false:
        "Register a shell command that is started for each new event of a thread that matches a filter. \
         Returns where it begins.";
    "sessions_search", Root, Own sessions::search: sessions::SearchArgs => sessions::Sessions, true:
        "Find conversations by a text, the day of their last activity, or both, such as what was said \
         about backups yesterday. Returns ids, titles and the matching text; read on with sessions_get.";
    "sessions_list", Root, Own sessions::list: sessions::ListArgs => sessions::Sessions, true:
        "List conversations, the latest active first, with id, title, last message and state.";
    "sessions_get", Root, Read sessions::get: sessions::GetArgs => sessions::Conversation, true:
        "Read the last messages of a conversation, oldest first; before = the first id gets older ones.";
    "process_list", Processes, Own processes::list: processes::ListArgs => processes::Processes, true:
        "What runs or waits now, in all sessions or in one: agents' runs and sub-agents, for how long, and \
         on what. Returns the ids that the other process tools take.";
    "process_status", Processes, Read processes::status: processes::StatusArgs => processes::Status, true:
        "The state of one run or sub-agent, also after its end: then with its answer, or why there is none.";
    "process_cancel", Processes, Write processes::cancel: processes::CancelArgs => processes::Cancelled, false:
        "End a run or sub-agent, running or waiting. Returns once that is requested; process_status reports \
         when it has ended.";
    "process_wait_time", Processes, Read wait_time::wait_time: wait_time::Args => wait_time::WaitTime, true:
        "Estimate how long a message will wait until its run begins. Returns the milliseconds and what \
         they are made of: the runs before it, and how long the last ones took.";
    "subagent_run", Depth, Own sub_agents::run: sub_agents::RunArgs => processes::Status, false:
        "Give a task to a sub-agent, which knows only what the task says, and wait for its answer. After \
         50 seconds it answers `running`: it works on while this run lasts, and process_status has the \
         answer later. One in the background outlives the run.";
}

/// The tools of a server.
pub fn tools(scope: &Scope) -> impl Iterator<Item = &'static Tool> {
    TOOLS.iter().filter(|tool| match tool.needs {
        Needs::Nothing => true,
        Needs::Permission => scope.allow_subscribe,
        Needs::Root => scope.root.is_some(),
        Needs::Processes => scope.has_processes,
        Needs::Depth => scope.has_processes && !scope.thread.as_deref().is_some_and(is_sub_agent),
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

fn parsed<T: DeserializeOwned>(arguments: Map<String, Value>) -> Result<T> {
    serde_json::from_value(arguments.into()).map_err(|e| {
        let what: String = e.to_string().chars().take(200).collect();
        Problem::new(format!("bad arguments: {what}"), "see the tool's inputSchema")
    })
}

fn result(result: impl Serialize) -> Result<Map<String, Value>> {
    match serde_json::to_value(result) {
        Ok(Value::Object(object)) => Ok(object),
        _ => Err(Problem::new("the result is no object", "report this as a mistake of thread")),
    }
}
