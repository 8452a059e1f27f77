//! Sub-agents: an agent on a thread of its own, `<parent>/agents/<sub id>/`, working for one call of a tool
//! in its parent's thread.
//!
//! What it does is copied to the parent by a consumer of its thread, the *reporter*: a handler like any
//! other, so a copy that a kill cut short is finished by the next run. Every copy has the idempotency key
//! of its original, and the result that of the call, so it makes no difference how often, or by whom, they
//! are pushed.

use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use thread::model::run::Options;
use thread::model::subscription::{ConsumerId, NewSubscription};
use thread::queue::Selection;
use thread::run::Launcher;
use thread::{After, Error, Event, Filter, Queue, Result};

use crate::conversation::{
    Entry, Message, Run, SubAgent, ToolCall, ToolResult, cancel, end_key, result_key, sub_agent,
};
use crate::install::{CONSUMER, FILTER};
use crate::launcher::{self, push};

/// The consumer that copies a sub-agent's events.
pub const REPORTER: &str = "report";

/// Who gives a sub-agent its task, and ends it.
const PARENT: &str = "internal:agent:default:parent";

/// How an adapter is told to work on one message: a sub-agent that dies is an error of its call, which the
/// caller decides about; and there will be no other message.
pub const STAY: [&str; 4] = ["--attempts", "1", "--idle", "0s"];

/// The first event of a sub-agent's thread is its task.
const TASK: i64 = 1;

/// What the reporter copies.
const COPIED: &str = "source = 'self' AND \
    (type = 'message' OR subtype IN ('toolcall', 'toolresult', 'status', 'error', 'cancelled'))";

/// A sub-agent to be started.
#[derive(Debug, Clone)]
pub struct NewSubAgent {
    /// The call it works for; `None` makes one.
    pub call_id: Option<String>,
    /// What people call it: `a-z`, `0-9` and `-`.
    pub name: String,
    /// The run of the parent that it belongs to.
    pub run_id: String,
    pub task: String,
    /// Nobody waits for it: the call is answered at once, and what comes of it is said to the parent as a
    /// message with priority `later`.
    pub background: bool,
    /// The command line that starts its adapter.
    pub handler: String,
    pub cwd: PathBuf,
}

/// A sub-agent, as its own thread tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sub {
    pub parent: PathBuf,
    /// Its thread.
    pub dir: PathBuf,
    pub id: String,
    pub name: String,
    pub call_id: String,
    pub run_id: String,
    pub background: bool,
}

/// The run under way in a thread, or the last one.
///
/// # Errors
///
/// Those of the thread.
pub fn current_run(queue: &mut Queue) -> Result<Option<String>> {
    let runs = Filter::new("source = 'self' AND subtype = 'run'", thread::model::filter::Scope::Reading)?;
    let after = queue.start_of_tail(runs.as_ref(), 0, 1)?;
    Ok(queue.read(After(after), runs.as_ref())?.last().and_then(|event| Entry::of(event).0))
}

/// Whether this thread is a sub-agent's: one in the folder `agents` of another thread.
pub fn is_sub_agent(dir: &Path) -> bool {
    let folder = dir.parent().filter(|folder| folder.file_name().is_some_and(|name| name == "agents"));
    folder.and_then(Path::parent).is_some_and(|parent| parent.join("events.db").exists())
}

/// Makes a sub-agent's thread and gives it its task.
///
/// # Errors
///
/// The parent is a sub-agent itself; those of making and writing the thread.
pub fn start(parent: &mut Queue, launcher: &Launcher, new: &NewSubAgent) -> Result<Sub> {
    let dir = parent.path().to_owned();
    if is_sub_agent(&dir) {
        return Err(Error::Other("a sub-agent cannot have sub-agents of its own".into()));
    }
    // A number that nobody else has drawn.
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
        background: new.background,
    };
    Queue::init(&sub.dir)?;
    let mut queue = Queue::open(&sub.dir)?;
    let reporter = launcher::program("thread-agent").map_err(Error::Other)?;
    queue.subscribe(&subscription(
        REPORTER,
        format!("exec {} _report", quote(&reporter)?),
        COPIED,
        &new.cwd,
    ))?;
    queue.subscribe(&subscription(CONSUMER, new.handler.clone(), FILTER, &new.cwd))?;
    if new.call_id.is_none() {
        let arguments = json!({ "sub_agent": sub.id, "task": new.task });
        let call = ToolCall { call_id, name: new.name.clone(), arguments };
        push(parent, launcher, &sub.run().tool_call(&call))?;
    }
    if new.background {
        let started = json!({ "sub_agent": sub.id, "status": "started" });
        sub.push_result(parent, launcher, Ok(started))?;
    }
    let task = Message { content: new.task.clone(), other: sub.about(), ..Message::default() };
    push(&mut queue, launcher, &task.event(PARENT)?)?;
    Ok(sub)
}

/// The handler of the parent's agent, for one message; `None` if that is none of `thread agent`.
///
/// # Errors
///
/// Those of the parent's thread.
pub fn handler_of_parent(parent: &mut Queue, consumer: &ConsumerId) -> Result<Option<String>> {
    let Some(subscription) = parent.store().subscription(consumer)? else { return Ok(None) };
    let handler = subscription.handler_cmd;
    let adapter = ["thread-agent", "thread agent"].into_iter().find_map(|name| handler.find(name));
    let options_end = adapter.and_then(|at| Some(at + handler[at..].find(" -- ")?));
    // The words stay as somebody has written them, for a shell; of options given twice, the last counts.
    Ok(options_end.map(|at| format!("{} {}{}", &handler[..at], STAY.join(" "), &handler[at..])))
}

fn quote(path: &Path) -> Result<String> {
    let text = path.to_string_lossy();
    let quoted = shlex::try_quote(&text).map(|quoted| quoted.into_owned());
    quoted.map_err(|_| Error::Other("a path has a NUL character".into()))
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
    /// The sub-agent that this thread is of.
    ///
    /// # Errors
    ///
    /// It is none: its first event is not a task.
    pub fn of(queue: &mut Queue) -> Result<Sub> {
        let dir = queue.path().to_owned();
        let none = || Error::Other(format!("{} is not a sub-agent's thread", dir.display()));
        let id = dir.file_name().map(|name| name.to_string_lossy().into_owned()).ok_or_else(none)?;
        let parent = dir.parent().and_then(Path::parent).ok_or_else(none)?.to_owned();
        let mut task = None;
        queue.store().read(TASK - 1, TASK, 1, &mut |row| {
            task = Some(row.to_event());
            std::ops::ControlFlow::Break(())
        })?;
        let Some((_, Entry::Message(task))) = task.as_ref().map(Entry::of) else { return Err(none()) };
        let text = |key: &str| task.other.get(key).and_then(Value::as_str).map(str::to_owned);
        Ok(Sub {
            name: text("sub_agent_name").ok_or_else(none)?,
            call_id: text("parent_call_id").ok_or_else(none)?,
            run_id: text("parent_run_id").ok_or_else(none)?,
            background: task.other.get("background") == Some(&Value::Bool(true)),
            parent,
            dir,
            id,
        })
    }

    fn about(&self) -> serde_json::Map<String, Value> {
        [
            ("sub_agent_name", Value::from(self.name.clone())),
            ("parent_call_id", self.call_id.clone().into()),
            ("parent_run_id", self.run_id.clone().into()),
            ("background", self.background.into()),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
    }

    /// The parent's run, as far as the result of a call needs it.
    fn run(&self) -> Run {
        Run { run_id: self.run_id.clone(), reply_to: 0 }
    }

    fn push_result(
        &self,
        parent: &mut Queue,
        launcher: &Launcher,
        outcome: std::result::Result<Value, String>,
    ) -> Result<()> {
        let result = ToolResult { call_id: self.call_id.clone(), name: self.name.clone(), outcome };
        let event = self.run().tool_result(&result).with_key(result_key(&self.call_id))?;
        match push(parent, launcher, &event) {
            // Somebody has answered the call already.
            Ok(_) | Err(Error::KeyConflict { .. }) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// How it ended, if it has: its answer, or why there is none.
    pub fn ending(&self, queue: &mut Queue) -> Result<Option<std::result::Result<String, String>>> {
        let Some(id) = queue.store().id_of_key(&end_key(TASK))? else { return Ok(None) };
        let mut ending = None;
        queue.store().read(id - 1, id, 1, &mut |row| {
            ending = Some(row.to_event());
            std::ops::ControlFlow::Break(())
        })?;
        Ok(ending.and_then(|event| match Entry::of(&event).1 {
            Entry::Answer { answer, .. } => Some(Ok(answer.content)),
            Entry::Error { error, .. } => Some(Err(error)),
            Entry::Cancelled { why, .. } => Some(Err(format!("cancelled: {why}"))),
            _ => None,
        }))
    }

    /// Copies what is new to the parent, and its ending as the result of the call.
    ///
    /// # Errors
    ///
    /// Those of either thread; what was copied stays, and the rest is for the next run.
    pub fn report(&self, queue: &mut Queue, launcher: &Launcher) -> Result<()> {
        let mut parent = Queue::open(&self.parent)?;
        let reporter = ConsumerId::stored(REPORTER);
        let cursor = queue.subscription(&reporter)?.last_acked_id;
        let filter = Filter::new(COPIED, thread::model::filter::Scope::Subscription)?;
        let mut selection = Selection { filter, ..Selection::from(After(cursor)) };
        let mut events: Vec<Event> = Vec::new();
        while queue.read_page(&mut selection, &mut |row| {
            events.push(row.to_event());
            std::ops::ControlFlow::Continue(())
        })? == thread::queue::Remaining::Some
        {}
        for event in &events {
            if let Some(copy) = self.copy_of(event) {
                push(&mut parent, launcher, &copy)?;
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

    /// Gives the parent what came of it.
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
        let other = [("sub_agent", &self.id), ("parent_call_id", &self.call_id)]
            .map(|(key, value)| (key.to_owned(), Value::from(value.clone())));
        let message = Message {
            content,
            priority: crate::conversation::Priority::Later,
            other: other.into_iter().collect(),
            ..Message::default()
        };
        let event = message.event(&format!("internal:agent:{}:{}", self.id, self.name))?;
        push(parent, launcher, &event.with_key(format!("report:{}", self.id))?).map(drop)
    }

    fn copy_of(&self, event: &Event) -> Option<thread::NewEvent<'static>> {
        let object = || serde_json::from_str::<Value>(&event.content).unwrap_or_default();
        let (name, payload) = match Entry::of(event).1 {
            Entry::ToolCall(_) => ("tool_call", object()),
            Entry::ToolResult(_) => ("tool_result", object()),
            Entry::Status(status) => ("status", status.as_str().into()),
            Entry::Answer { answer, .. } => ("final", json!({ "content": answer.content })),
            Entry::Error { .. } => ("error", object()),
            Entry::Cancelled { why, .. } => ("cancelled", json!({ "message": why })),
            _ => return None,
        };
        Some(sub_agent(&SubAgent {
            parent_call_id: self.call_id.clone(),
            sub_agent: self.id.clone(),
            sub_event_id: event.id,
            event: name.to_owned(),
            payload,
        }))
    }

    /// Asks it to end.
    ///
    /// # Errors
    ///
    /// Those of its thread.
    pub fn cancel(&self, queue: &mut Queue, launcher: &Launcher, why: &str) -> Result<()> {
        let run_id = crate::conversation::run_id_of(TASK);
        push(queue, launcher, &cancel(PARENT, &run_id, why)?).map(drop)
    }

    /// Says that it was ended, unless it has its ending.
    ///
    /// # Errors
    ///
    /// Those of its thread.
    pub fn end(&self, queue: &mut Queue, launcher: &Launcher, why: &str) -> Result<()> {
        let run = Run { run_id: crate::conversation::run_id_of(TASK), reply_to: TASK };
        match push(queue, launcher, &run.cancelled(why)) {
            Ok(_) | Err(Error::KeyConflict { .. }) => Ok(()),
            Err(e) => Err(e),
        }
    }
}

/// The threads of a thread's sub-agents.
pub fn threads_in(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir.join("agents")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.join("events.db").exists()).collect()
}

/// Asks the sub-agents of a run that are meant and have not ended to end.
///
/// # Errors
///
/// Those of their threads.
pub fn cancel_those_of(
    parent: &Path,
    run_id: &str,
    launcher: &Launcher,
    why: &str,
    is_meant: impl Fn(&Sub) -> bool,
) -> Result<()> {
    for dir in threads_in(parent) {
        let mut queue = Queue::open(&dir)?;
        // One whose task was not stored yet is nobody's: the process that made it was killed.
        let Ok(sub) = Sub::of(&mut queue) else { continue };
        if sub.run_id == run_id && is_meant(&sub) && sub.ending(&mut queue)?.is_none() {
            sub.cancel(&mut queue, launcher, why)?;
        }
    }
    Ok(())
}
