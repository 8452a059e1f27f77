//! Tools for what runs: the runs of agents, and their sub-agents.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use thread::model::filter::Scope as FilterScope;
use thread::model::time;
use thread::{Filter, Queue};
use thread_agent::sub_agent::{Sub, threads_in};
use thread_conversation::runs::{OpenRun, Runs};
use thread_conversation::{Ending, Entry, Outcome, ending_of, run_id_of, text_of};
use thread_protocol::method::SessionState;
use thread_sessions::cancel::cancel as cancel_run;
use thread_sessions::excerpt::beginning;
use thread_sessions::runs::open_runs;
use thread_sessions::{RequestError, catalogue};
use tokio_util::sync::CancellationToken;

use crate::problem::{Problem, Result};
use crate::scope::{Scope, Turn, open};
use crate::text::{self, PIECE};

/// How long a list may take.
const LIST_FOR: Duration = Duration::from_secs(2);

/// How many processes are listed at most.
const MOST: usize = 50;

/// How many of the tools that a run waits for are named.
const TOOLS: usize = 10;

/// How much of a message describes a run, in characters.
const ABOUT: usize = 80;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListArgs {
    session: Option<String>,
}

#[derive(Serialize, JsonSchema)]
pub struct Processes {
    processes: Vec<Process>,
    /// Not all sessions were looked at: name one.
    truncated: bool,
}

#[skip_serializing_none]
#[derive(Default, Serialize, JsonSchema)]
pub struct Process {
    session: Option<String>,
    /// Its id, for the other tools.
    process: String,
    /// `run` or `sub_agent`.
    kind: &'static str,
    /// `running`, `asks` for permission, or `waiting`.
    state: &'static str,
    /// For how long it has been in that state.
    elapsed_ms: u64,
    /// The beginning of its message or task.
    about: String,
    /// Tools that it waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tools: Vec<String>,
    runs_ahead: Option<usize>,
}

pub async fn list(scope: &Arc<Scope>, args: ListArgs, _: &CancellationToken) -> Result<Processes> {
    let one = match &scope.root {
        Some(_) => args.session.as_deref().map(|session| scope.path_of(Some(session))).transpose()?,
        None => Some(scope.path_of(args.session.as_deref())?),
    };
    let turn = one.clone().map_or(Turn::List, Turn::Read);
    scope
        .blocking(turn, move |scope| {
            let until = Instant::now() + LIST_FOR;
            let (mut processes, mut truncated) = (Vec::new(), false);
            if let Some(path) = one {
                in_session(scope, &path, &mut processes)?;
                return Ok(Processes { processes, truncated });
            }
            let root = scope.root()?;
            for listed in catalogue::entries(root)? {
                if Instant::now() >= until || processes.len() >= MOST {
                    truncated = true;
                    break;
                }
                let path = root.path_of(listed.id);
                let summary = scope.catalogue.summary(root, &listed);
                let is_at_work = summary
                    .is_ok_and(|summary| summary.state.is_some_and(|state| state != SessionState::Failed));
                // One that cannot be read has nothing to list. What works in the background has no run.
                if is_at_work || path.join("agents").exists() {
                    drop(in_session(scope, &path, &mut processes));
                }
            }
            Ok(Processes { processes, truncated })
        })
        .await
}

fn in_session(scope: &Scope, path: &Path, processes: &mut Vec<Process>) -> Result<()> {
    let session = scope.session_of(path).map(|id| id.to_string());
    let mut queue = open(path)?;
    let (_, runs, _) = open_runs(&mut queue)?;
    for id in runs.in_order() {
        let Some(run) = runs.get(id) else { continue };
        let task = queue.event(id)?.map(|event| text_of(&event.content)).unwrap_or_default();
        processes.push(Process {
            session: session.clone(),
            process: run.run.run_id.clone(),
            kind: "run",
            state: state_of(&runs, run),
            elapsed_ms: elapsed(run.since.as_deref().unwrap_or(&run.created_at)),
            about: beginning(&task, ABOUT),
            tools: tools_of(run),
            runs_ahead: runs.position(id).filter(|ahead| *ahead > 0),
        });
    }
    for dir in threads_in(path) {
        let mut queue = open(&dir)?;
        // Without a task nothing works there yet.
        let Ok(sub) = Sub::of(&mut queue) else { continue };
        if sub.ending(&mut queue)?.is_some() {
            continue;
        }
        let task = queue.event(1)?;
        processes.push(Process {
            session: session.clone(),
            process: sub.id,
            kind: "sub_agent",
            state: "running",
            elapsed_ms: task.as_ref().map_or(0, |task| elapsed(&task.created_at)),
            about: task.map(|task| beginning(&task.content, ABOUT)).unwrap_or_default(),
            ..Process::default()
        });
    }
    Ok(())
}

fn state_of(runs: &Runs, run: &OpenRun) -> &'static str {
    match runs.active().is_some_and(|active| active.id() == run.id()) {
        true if !run.open_permissions.is_empty() => "asks",
        true => "running",
        false => "waiting",
    }
}

fn tools_of(run: &OpenRun) -> Vec<String> {
    run.open_calls.values().take(TOOLS).map(|name| beginning(name, ABOUT)).collect()
}

/// How long ago that was, in milliseconds.
pub fn elapsed(since: &str) -> u64 {
    let Some((since, now)) = time::parse(since).zip(time::parse(&time::now())) else { return 0 };
    u64::try_from((now - since).num_milliseconds()).unwrap_or(0)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StatusArgs {
    pub session: Option<String>,
    /// Id of a run or sub-agent
    process: String,
    /// Of `text`: from this byte on
    offset: Option<usize>,
}

#[skip_serializing_none]
#[derive(Default, Serialize, JsonSchema)]
pub struct Status {
    process: String,
    /// `running`, `asks`, `waiting`, `answered`, `failed` or `cancelled`.
    state: &'static str,
    elapsed_ms: Option<u64>,
    runs_ahead: Option<usize>,
    /// How often it was begun.
    attempts: Option<u64>,
    /// Tools that it waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tools: Vec<String>,
    /// The answer, or why there is none.
    text: Option<String>,
    /// The answer so far, if it ended without one.
    partial: Option<String>,
    /// The text was cut: this tool gives what follows, with this `offset`.
    next_offset: Option<usize>,
}

impl Status {
    fn ended(process: String, state: &'static str, text: &str, offset: usize) -> Status {
        let begin = text.ceil_char_boundary(offset.min(text.len()));
        let end = text.floor_char_boundary((begin + PIECE).min(text.len()));
        Status {
            process,
            state,
            text: Some(text[begin..end].to_owned()),
            next_offset: (end < text.len()).then_some(end),
            ..Status::default()
        }
    }
}

pub fn status(_: &Scope, path: &Path, args: StatusArgs) -> Result<Status> {
    let mut queue = open(path)?;
    let (process, offset) = (args.process, args.offset.unwrap_or(0));
    let (_, runs, _) = open_runs(&mut queue)?;
    if let Some(run) = runs.with_run_id(&process).next() {
        return Ok(Status {
            state: state_of(&runs, run),
            elapsed_ms: Some(elapsed(run.since.as_deref().unwrap_or(&run.created_at))),
            runs_ahead: runs.position(run.id()),
            attempts: Some(run.run.attempt),
            tools: tools_of(run),
            process: process.clone(),
            ..Status::default()
        });
    }
    if let Some((sub, mut queue)) = sub_agent(path, &process)? {
        return of_sub_agent(&sub, &mut queue, offset);
    }
    ended(&mut queue, process, offset)
}

/// The state of a sub-agent.
pub fn of_sub_agent(sub: &Sub, queue: &mut Queue, offset: usize) -> Result<Status> {
    let id = sub.id.clone();
    Ok(match sub.ending(queue)? {
        Some(Ok(answer)) => Status::ended(id, "answered", &answer, offset),
        Some(Err(why)) if why.starts_with("cancelled") => Status::ended(id, "cancelled", &why, offset),
        Some(Err(why)) => Status::ended(id, "failed", &why, offset),
        None => {
            let elapsed_ms = queue.stored_at(1)?.as_deref().map(elapsed);
            Status { process: id, state: "running", elapsed_ms, ..Status::default() }
        }
    })
}

/// The state of a run that is over.
fn ended(queue: &mut Queue, process: String, offset: usize) -> Result<Status> {
    let unknown = || Problem::from(RequestError::UnknownRun(process.chars().take(80).collect()));
    let message = message_of(queue, &process)?.ok_or_else(unknown)?;
    let event = ending_of(queue, message)?.ok_or_else(unknown)?;
    let entry = Entry::of(&event);
    let Ending { outcome, text, partial } = entry.ending().ok_or_else(unknown)?;
    let said = if outcome == Outcome::Answered { text_of(text) } else { text.to_owned() };
    let partial = partial.map(|partial| text::cut(partial).0);
    Ok(Status { partial, ..Status::ended(process, outcome.as_str(), &said, offset) })
}

/// The message whose run has that id, the newest if there are several.
fn message_of(queue: &mut Queue, run_id: &str) -> Result<Option<i64>> {
    if let Some(id) = run_id.strip_prefix("run_").and_then(|id| id.parse().ok())
        && run_id_of(id) == run_id
        && queue.stored_at(id)?.is_some()
    {
        return Ok(Some(id));
    }
    let quoted = run_id.replace('\'', "''");
    let condition = format!("type = 'message' AND source <> 'self' AND metadata ->> 'run_id' = '{quoted}'");
    // A text with control characters or the like makes no filter, and is no run's id.
    let Ok(filter) = Filter::new(&condition, FilterScope::Reading) else { return Ok(None) };
    Ok(queue.newest_matching(filter.as_ref(), i64::MAX, 1)?.first().copied())
}

/// The sub-agent of that id, and its thread. Only a name that is in the folder is one: it is part of no path.
fn sub_agent(path: &Path, id: &str) -> Result<Option<(Sub, Queue)>> {
    let found = threads_in(path).into_iter().find(|dir| dir.file_name().is_some_and(|name| name == id));
    let Some(dir) = found else { return Ok(None) };
    let mut queue = open(&dir)?;
    let sub = Sub::of(&mut queue)?;
    Ok(Some((sub, queue)))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelArgs {
    pub session: Option<String>,
    /// Id of a run or sub-agent
    process: String,
}

#[derive(Serialize, JsonSchema)]
pub struct Cancelled {
    process: String,
    /// `process_status` reports when it has ended.
    requested: bool,
}

pub fn cancel(scope: &Scope, path: &Path, args: CancelArgs) -> Result<Cancelled> {
    if let Some((sub, mut queue)) = sub_agent(path, &args.process)? {
        let requested = sub.ending(&mut queue)?.is_none();
        if requested {
            sub.cancel(&mut queue, &scope.launcher, "requested by a tool")?;
        }
        return Ok(Cancelled { process: sub.id, requested });
    }
    let mut queue = open(path)?;
    let run = cancel_run(&mut queue, &scope.launcher, &scope.source, Some(&args.process))?;
    Ok(Cancelled { process: run.unwrap_or(args.process), requested: true })
}
