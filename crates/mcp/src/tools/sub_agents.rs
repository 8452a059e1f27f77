//! The tool that gives a task to a sub-agent.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use thread::model::filter::Scope as FilterScope;
use thread::{After, Filter, Queue};
use thread_agent::sub_agent::{self, DISPATCH_EVERY, NewSubAgent, Sub, TOOL, threads_in};
use thread_conversation::runs::OpenRun;
use thread_conversation::{Entry, ToolCall};
use thread_sessions::runs::open_runs;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::processes::{Status, of_sub_agent};
use super::queue::MAX_WAIT;
use crate::problem::{Problem, Result};
use crate::scope::{Look, Scope, Turn, open};

/// How long the adapter may take to store the call by which its agent asks.
const STORED: Duration = Duration::from_secs(2);

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunArgs {
    session: Option<String>,
    task: String,
    /// a-z, 0-9 and -
    name: Option<String>,
    /// Do not wait; its answer comes as a message
    background: Option<bool>,
}

pub async fn run(scope: &Arc<Scope>, args: RunArgs, cancelled: &CancellationToken) -> Result<Status> {
    let path = scope.path_of(args.session.as_deref())?;
    let background = args.background.unwrap_or(false);
    let end = Instant::now() + MAX_WAIT;
    if scope.thread.as_ref() == Some(&path) {
        let task = args.task.clone();
        let look = move |parent: &mut Queue| {
            let (_, runs, _) = open_runs(parent)?;
            let Some(run) = runs.active() else { return Ok(Look::Found(())) };
            Ok(call_of(parent, run, &task)?.map_or(Look::Nothing, |_| Look::Found(())))
        };
        // Without it, one is made.
        scope.until(path.clone(), Instant::now() + STORED, cancelled, look).await?;
        if cancelled.is_cancelled() {
            return Err(Problem::new("the request was cancelled", "call it again if it is still needed"));
        }
    }
    let sub =
        scope.blocking(Turn::Write(path.clone()), move |scope| start(scope, &mut open(&path)?, args)).await?;
    if background {
        return scope
            .blocking(Turn::Read(sub.dir.clone()), move |_| of_sub_agent(&sub, &mut open(&sub.dir)?, 0))
            .await;
    }
    loop {
        let looked = sub.clone();
        let look = move |queue: &mut Queue| Ok(looked.ending(queue)?.map_or(Look::Nothing, Look::Found));
        let slice = end.min(Instant::now() + DISPATCH_EVERY);
        let outcome = scope.until(sub.dir.clone(), slice, cancelled, look).await?;
        if outcome.is_none() && scope.ending.is_cancelled() && !scope.is_local {
            // A gateway that ends takes no work with it.
            return Err(Problem::new("this server ends; the sub-agent works on", "ask process_status later"));
        }
        if outcome.is_none() && (cancelled.is_cancelled() || scope.ending.is_cancelled()) {
            let turn = Turn::Write(sub.dir.clone());
            let cancel = move |scope: &Scope| {
                let why = "the request that waited for it was cancelled";
                Ok(sub.cancel(&mut open(&sub.dir)?, &scope.launcher, why)?)
            };
            scope.blocking(turn, cancel).await?;
            return Err(Problem::new("the sub-agent was cancelled", "run it again if it is still needed"));
        }
        if outcome.is_none() && Instant::now() < end {
            let dir = sub.dir.clone();
            let again = move |scope: &Scope| Ok(thread::run::dispatch(&mut open(&dir)?, &scope.launcher)?);
            scope.blocking(Turn::Write(sub.dir.clone()), again).await?;
            continue;
        }
        // It continues if it takes longer; its answer becomes the result of its call, and can be requested.
        return scope
            .blocking(Turn::Write(sub.parent.clone()), move |scope| {
                if let Some(outcome) = &outcome {
                    sub.deliver(&mut open(&sub.parent)?, &scope.launcher, outcome)?;
                }
                of_sub_agent(&sub, &mut open(&sub.dir)?, 0)
            })
            .await;
    }
}

/// The call by which the agent itself asks for this, as it has told its adapter: one that is open, and has no sub-agent
/// yet. `None` if the caller is another program, or the agent does not report its calls.
fn call_of(parent: &mut Queue, run: &OpenRun, task: &str) -> Result<Option<String>> {
    let filter = Filter::new("source = 'self' AND subtype = 'toolcall'", FilterScope::Reading)
        .map_err(thread::Error::from)?;
    let calls = parent.read(After(run.last_begun), filter.as_ref())?;
    // A call may be corrected: the newest record of each counts.
    let mut newest: Vec<ToolCall> = Vec::new();
    for event in &calls {
        let Entry::ToolCall(call) = Entry::of(event) else { continue };
        match newest.iter_mut().find(|known| known.call_id == call.call_id) {
            Some(known) => *known = call,
            None => newest.push(call),
        }
    }
    let has_arguments = |call: &ToolCall| !call.arguments.is_null() && call.arguments != json!({});
    newest.retain(|call| {
        call.name.contains(TOOL)
            && run.open_calls.contains_key(&call.call_id)
            && (!has_arguments(call) || has(&call.arguments, task))
    });
    // One that names the task comes before one that names none.
    newest.sort_by_key(|call| !has_arguments(call));
    let calls: Vec<String> = newest.into_iter().map(|call| call.call_id).collect();
    if calls.is_empty() {
        return Ok(None);
    }
    let subs = threads_in(parent.path()).into_iter().filter_map(|dir| Sub::of(&mut open(&dir).ok()?).ok());
    let subs = subs.filter(|sub| sub.run_id == run.run.run_id && sub.attempt == run.run.attempt);
    let taken: Vec<String> = subs.map(|sub| sub.call_id).collect();
    Ok(calls.into_iter().find(|call| !taken.contains(call)))
}

/// Whether a text is somewhere in a value: programs have their own ways to tell a tool's arguments.
fn has(value: &Value, text: &str) -> bool {
    match value {
        Value::String(said) => said == text,
        Value::Array(values) => values.iter().any(|value| has(value, text)),
        Value::Object(fields) => fields.values().any(|value| has(value, text)),
        _ => false,
    }
}

fn start(scope: &Scope, parent: &mut Queue, args: RunArgs) -> Result<Sub> {
    let name = args.name.unwrap_or_else(|| "agent".to_owned());
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > 64 || !name.chars().all(fits) {
        return Err(Problem::new("the name is not 1 to 64 of a-z, 0-9 and -", "choose another, or none"));
    }
    let no_agent = || {
        Problem::new(
            "this session has no agent whose program a sub-agent could run",
            "use a session whose agent was set by `thread serve --agent` or `thread agent install`",
        )
    };
    let subscription = parent.find_subscription(&scope.consumer)?.ok_or_else(no_agent)?;
    let handler = sub_agent::handler_of_parent(parent, &scope.consumer)?.ok_or_else(no_agent)?;
    let cwd = subscription.cwd.map_or_else(|| parent.path().to_owned(), |cwd| parent.path().join(cwd));
    let (_, runs, _) = open_runs(parent)?;
    let (call_id, run_id, attempt) = match runs.active() {
        Some(run) => (call_of(parent, run, &args.task)?, run.run.run_id.clone(), run.run.attempt),
        None => (None, "run_by_hand".to_owned(), 0),
    };
    let new = NewSubAgent {
        call_id,
        name,
        run_id,
        attempt,
        task: args.task,
        background: args.background.unwrap_or(false),
        handler,
        cwd,
    };
    Ok(sub_agent::start(parent, &scope.launcher, &new)?)
}
