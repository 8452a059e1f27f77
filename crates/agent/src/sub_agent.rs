//! Sub-agents. Each has its own thread, `<parent>/agents/<sub id>/`, and works for one tool call in its
//! parent's thread.
//!
//! Its events are copied to the parent by a consumer of its thread, the *reporter*. That is an ordinary
//! handler: if it is killed, its next run finishes copying. The idempotency key of a copy is derived from its
//! original, that of the result from the call, so it makes no difference how often they are pushed, or by
//! which process.

use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value, json};
use thread::model::key::IdempotencyKey;
use thread::model::run::Options;
use thread::model::subscription::{ConsumerId, NewSubscription};
use thread::queue::NewThread;
use thread::run::{Launcher, push};
use thread::{After, Error, Event, Filter, Queue, Result};

use crate::install::{FILTER, quoted};
use crate::launcher;
use crate::store::push_once;
use thread_conversation::{
    CONSUMER, Entry, Message, Priority, Record, Run, SubAgent, ToolCall, ToolResult, cancel, ending_of,
    result_key, sub_agent,
};

/// The consumer that copies a sub-agent's events.
pub const REPORTER: &str = "report";

/// The source of a sub-agent's task, and of requests to cancel it.
const PARENT: &str = "internal:agent:default:parent";

/// The tool by which programs start sub-agents. They may show its name with that of its server before it.
pub const TOOL: &str = "subagent_run";

/// How often those who wait for a sub-agent dispatch its consumers, in case all its processes were killed.
pub const DISPATCH_EVERY: Duration = Duration::from_secs(5);

/// The id of the task: it is the first event of a sub-agent's thread.
const TASK: i64 = 1;

/// Filter of the events that the reporter copies.
const COPIED: &str = "source = 'self' AND \
    (type = 'message' OR subtype IN ('toolcall', 'toolresult', 'status', 'error', 'cancelled'))";

/// A sub-agent to start.
#[derive(Debug, Clone)]
pub struct NewSubAgent {
    /// The call it works for; `None` pushes a new one.
    pub call_id: Option<String>,
    /// Its name, for people: `a-z`, `0-9` and `-`.
    pub name: String,
    /// The parent's run that it belongs to.
    pub run_id: String,
    /// The attempt of that run; 0 if it is not known.
    pub attempt: u64,
    pub task: String,
    /// It is not waited for: the call gets a result at once, and the outcome is pushed to the parent later, as a
    /// message with priority `later`.
    pub background: bool,
    /// The command line that starts its adapter.
    pub handler: String,
    pub cwd: PathBuf,
}

/// A sub-agent, as described by its own thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sub {
    pub parent: PathBuf,
    /// Its thread.
    pub dir: PathBuf,
    pub id: String,
    pub name: String,
    pub call_id: String,
    pub run_id: String,
    /// The attempt of that run; 0 if it is not known.
    pub attempt: u64,
    pub background: bool,
}

/// Returns the id and the attempt of the current run of a thread, or of the last one.
///
/// # Errors
///
/// Those of the thread.
pub fn current_run(queue: &mut Queue) -> Result<Option<(String, u64)>> {
    let runs = Filter::new("source = 'self' AND subtype = 'run'", thread::model::filter::Scope::Reading)?;
    let after = queue.start_of_tail(runs.as_ref(), 0, 1)?;
    Ok(queue.read(After(after), runs.as_ref())?.pop().and_then(|event| match Record::of(event) {
        Record { run_id: Some(run_id), entry: Entry::RunStarted { attempt, .. }, .. } => {
            Some((run_id, attempt))
        }
        _ => None,
    }))
}

/// Whether this thread is a sub-agent's: one in the folder `agents` of another thread.
pub fn is_sub_agent(dir: &Path) -> bool {
    let folder = dir.parent().filter(|folder| folder.file_name().is_some_and(|name| name == "agents"));
    folder.and_then(Path::parent).is_some_and(|parent| parent.join("events.db").exists())
}

/// Creates a sub-agent's thread and pushes its task.
///
/// # Errors
///
/// The parent is a sub-agent itself, or not in a directory; those of creating and writing the threads.
pub fn start(parent: &mut Queue, launcher: &Launcher, new: &NewSubAgent) -> Result<Sub> {
    let dir = parent.directory("`thread agent run`")?.to_owned();
    if is_sub_agent(&dir) {
        return Err(Error::Other("a sub-agent cannot have sub-agents of its own".into()));
    }
    // Random, so that ids are unique without coordination.
    let number = std::collections::hash_map::RandomState::new().build_hasher().finish();
    let id = format!("{}-{number:016x}", new.name);
    let call_id = new.call_id.clone().unwrap_or_else(|| format!("call_{id}"));
    let sub = Sub {
        dir: dir.join("agents").join(&id),
        parent: dir,
        id,
        name: new.name.clone(),
        call_id: call_id.clone(),
        run_id: new.run_id.clone(),
        attempt: new.attempt,
        background: new.background,
    };
    Queue::init_as(&sub.dir, NewThread { small: true, ..NewThread::default() })?;
    let mut queue = Queue::open(&sub.dir)?;
    let reporter = launcher::program("thread-agent").map_err(Error::Other)?;
    queue.subscribe(&subscription(
        REPORTER,
        format!("exec {} _report", quoted(&reporter.to_string_lossy())?),
        COPIED,
        &new.cwd,
    ))?;
    queue.subscribe(&subscription(CONSUMER, new.handler.clone(), FILTER, &new.cwd))?;
    if new.call_id.is_none() {
        let arguments = json!({ "sub_agent": sub.id, "task": new.task });
        let call = ToolCall::new(call_id, new.name.clone(), arguments);
        push(parent, launcher, &sub.run().tool_call(&call))?;
    }
    if new.background {
        let started = json!({ "sub_agent": sub.id, "status": "started" });
        sub.push_result(parent, launcher, Ok(started))?;
    }
    let described = Map::from_iter([
        ("sub_agent_name".to_owned(), sub.name.clone().into()),
        ("parent_call_id".to_owned(), sub.call_id.clone().into()),
        ("parent_run_id".to_owned(), sub.run_id.clone().into()),
        ("parent_attempt".to_owned(), sub.attempt.into()),
        ("background".to_owned(), sub.background.into()),
    ]);
    let task = Message { content: new.task.clone(), other: described, ..Message::default() };
    push(&mut queue, launcher, &task.event(PARENT)?)?;
    Ok(sub)
}

/// Returns the command line of the parent's agent; `None` if the consumer's handler is not `thread agent`.
///
/// # Errors
///
/// Those of the parent's thread.
pub fn handler_of_parent(parent: &mut Queue, consumer: &ConsumerId) -> Result<Option<String>> {
    let Some(subscription) = parent.find_subscription(consumer)? else { return Ok(None) };
    let is_adapter = |handler: &String| {
        let mut names = ["thread-agent", "thread agent"].iter();
        let has_agent = |rest: &str| rest.contains(" -- ") || rest.contains(" --url ");
        names.any(|name| handler.split_once(name).is_some_and(|(_, rest)| has_agent(rest)))
    };
    Ok(Some(subscription.handler_cmd).filter(is_adapter))
}

fn subscription(consumer: &str, handler_cmd: String, filter: &str, cwd: &Path) -> NewSubscription {
    NewSubscription {
        consumer: ConsumerId::stored(consumer),
        handler_cmd,
        filter: Some(filter.to_owned()),
        cwd: Some(cwd.to_owned()),
        options: Options { max_attempts: 20, ..Options::default() },
        from: None,
        replace: false,
    }
}

impl Sub {
    /// Returns the sub-agent whose thread this is.
    ///
    /// # Errors
    ///
    /// It is not the thread of a sub-agent: its first event is not a task.
    pub fn of(queue: &mut Queue) -> Result<Sub> {
        let dir = queue.path().to_owned();
        let none = || Error::Other(format!("{} is not a sub-agent's thread", dir.display()));
        let id = dir.file_name().map(|name| name.to_string_lossy().into_owned()).ok_or_else(none)?;
        let parent = dir.parent().and_then(Path::parent).ok_or_else(none)?.to_owned();
        let task = queue.event(TASK)?;
        let Some(Entry::Message(task)) = task.as_ref().map(Entry::of) else { return Err(none()) };
        let text = |key: &str| task.other.get(key).and_then(Value::as_str).map(str::to_owned);
        Ok(Sub {
            name: text("sub_agent_name").ok_or_else(none)?,
            call_id: text("parent_call_id").ok_or_else(none)?,
            run_id: text("parent_run_id").ok_or_else(none)?,
            attempt: task.other.get("parent_attempt").and_then(Value::as_u64).unwrap_or(0),
            background: task.other.get("background") == Some(&Value::Bool(true)),
            parent,
            dir,
            id,
        })
    }

    /// The parent's run; calls and their results have no `reply_to`.
    fn run(&self) -> Run {
        Run { run_id: self.run_id.clone(), attempt: self.attempt, ..Run::default() }
    }

    fn push_result(
        &self,
        parent: &mut Queue,
        launcher: &Launcher,
        outcome: std::result::Result<Value, String>,
    ) -> Result<()> {
        let result = ToolResult::new(self.call_id.clone(), self.name.clone(), outcome);
        // If the call has another result already, that stays.
        push_once(parent, launcher, self.run().tool_result(&result).keyed(result_key(&self.call_id)?))
    }

    /// Returns how it ended, `None` if it has not: its answer, or why there is none.
    pub fn ending(&self, queue: &mut Queue) -> Result<Option<std::result::Result<String, String>>> {
        Ok(ending_of(queue, TASK)?.and_then(|event| match Entry::of(&event) {
            Entry::Answer { answer, .. } => Some(Ok(answer.content)),
            Entry::Error { error, .. } => Some(Err(error)),
            Entry::Cancelled { why, .. } => Some(Err(format!("cancelled: {why}"))),
            _ => None,
        }))
    }

    /// Copies new events to the parent, and delivers the outcome if it has ended.
    ///
    /// # Errors
    ///
    /// Those of either thread. Events already copied stay, and the next run copies the rest.
    pub fn report(&self, queue: &mut Queue, launcher: &Launcher) -> Result<()> {
        let mut parent = Queue::open(&self.parent)?;
        let reporter = ConsumerId::stored(REPORTER);
        let cursor = queue.subscription(&reporter)?.last_acked_id;
        let filter = Filter::new(COPIED, thread::model::filter::Scope::Subscription)?;
        let events = queue.read(After(cursor), filter.as_ref())?;
        for event in &events {
            if let Some(copy) = self.copy_of(event) {
                push_once(&mut parent, launcher, copy)?;
            }
        }
        if let Some(outcome) = self.ending(queue)? {
            self.deliver(&mut parent, launcher, &outcome)?;
        }
        if let Some(last) = events.last() {
            queue.acknowledge(&reporter, last.id)?;
        }
        Ok(())
    }

    /// Pushes the outcome to the parent: as the result of the call and, of a background one, also as a
    /// message.
    ///
    /// # Errors
    ///
    /// Those of the parent's thread.
    pub fn deliver(
        &self,
        parent: &mut Queue,
        launcher: &Launcher,
        outcome: &std::result::Result<String, String>,
    ) -> Result<()> {
        self.push_result(parent, launcher, outcome.clone().map(Value::from))?;
        if !self.background {
            return Ok(());
        }
        let content = match outcome {
            Ok(answer) => answer.clone(),
            Err(error) => format!("failed: {error}"),
        };
        let other = Map::from_iter([
            ("sub_agent".to_owned(), self.id.clone().into()),
            ("parent_call_id".to_owned(), self.call_id.clone().into()),
        ]);
        let message = Message { content, priority: Priority::Later, other, ..Message::default() };
        let event = message.event(&format!("internal:agent:{}:{}", self.id, self.name))?;
        push_once(parent, launcher, event.keyed(IdempotencyKey::reserved("report", &self.id)?))
    }

    fn copy_of(&self, event: &Event) -> Option<thread::NewEvent<'static>> {
        let object = || serde_json::from_str::<Value>(&event.content).unwrap_or_default();
        let (name, payload) = match Entry::of(event) {
            Entry::ToolCall(_) => ("tool_call", object()),
            Entry::ToolResult(_) => ("tool_result", object()),
            Entry::Status(status) => ("status", status.as_str().into()),
            Entry::Answer { answer, .. } => ("final", json!({ "content": answer.content })),
            Entry::Error { .. } => ("error", object()),
            Entry::Cancelled { why, .. } => ("cancelled", json!({ "message": why })),
            _ => return None,
        };
        // What it has taken counts for its parent.
        Some(Record::of(event.clone()).spent.noted(sub_agent(&SubAgent {
            parent_call_id: self.call_id.clone(),
            attempt: self.attempt,
            sub_agent: self.id.clone(),
            sub_event_id: event.id,
            event: name.to_owned(),
            payload,
        })))
    }

    /// Asks it to end, with an event in its thread.
    ///
    /// # Errors
    ///
    /// Those of its thread.
    pub fn cancel(&self, queue: &mut Queue, launcher: &Launcher, why: &str) -> Result<()> {
        let run_id = thread_conversation::run_id_of(TASK);
        push(queue, launcher, &cancel(PARENT, &run_id, why)?).map(drop)
    }

    /// Records in its thread that it was cancelled, unless it has an ending.
    ///
    /// # Errors
    ///
    /// Those of its thread.
    pub fn end(&self, queue: &mut Queue, launcher: &Launcher, why: &str) -> Result<()> {
        let run_id = thread_conversation::run_id_of(TASK);
        let run = Run { run_id, reply_to: TASK, ..Run::default() };
        push_once(queue, launcher, run.cancelled(why, ""))
    }
}

/// Returns the thread directories of the sub-agents of the thread at `dir`.
pub fn threads_in(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir.join("agents")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.join("events.db").exists()).collect()
}

/// Whether a sub-agent of the thread at `parent` is at work for this call of an attempt. Its result is then up to the
/// sub-agent: the program's own may only report that it was begun. One whose thread cannot be read counts as at work.
pub fn is_at_work_for(parent: &Path, run: &Run, call_id: &str) -> bool {
    let is_its = |sub: &Sub| sub.call_id == call_id && sub.run_id == run.run_id && sub.attempt == run.attempt;
    threads_in(parent).iter().any(|dir| {
        let Ok(mut queue) = Queue::open(dir) else { return false };
        let sub = Sub::of(&mut queue).ok().filter(is_its);
        sub.is_some_and(|sub| !matches!(sub.ending(&mut queue), Ok(Some(_))))
    })
}

/// Cancels the sub-agents of a run that are `selected` and have not ended.
///
/// # Errors
///
/// Those of their threads.
pub fn cancel_those_of(
    parent: &Path,
    run_id: &str,
    launcher: &Launcher,
    why: &str,
    selected: impl Fn(&Sub) -> bool,
) -> Result<()> {
    for dir in threads_in(parent) {
        let mut queue = Queue::open(&dir)?;
        // Without a task nothing works here: the creator was killed, or has not pushed it yet.
        let Ok(sub) = Sub::of(&mut queue) else { continue };
        if sub.run_id == run_id && selected(&sub) && sub.ending(&mut queue)?.is_none() {
            sub.cancel(&mut queue, launcher, why)?;
        }
    }
    Ok(())
}
