//! The loop of a model: it takes a turn, its calls are made, it takes the next one.
//!
//! What is next follows from the thread alone ([`crate::memory`]), so another adapter continues where this one was killed.
//! Each turn, each call and each result is stored before anything follows from it.

use std::time::Instant;

use thread::model::filter::{Filter, Scope};
use thread::queue::{Remaining, Selection};
use thread::{Event, Result};

use super::Adapter;
use super::attempt::{Asked, Attempt, ClientCall, Waiting, turn_id_of};
use super::output::{push_call, push_status};
use super::process::Running;
use crate::memory::{DueCall, Memory, Stage, Step};
use crate::model::Marks;
use crate::protocol::{Done, OpenAi};
use crate::settings::Permit;
use thread_conversation::{Choice, Permission, Record, STEERED, Status, ToolCall, ToolResult, is_ending};

/// The events that a model's next step follows from.
const REMEMBERED: &str = "type = 'message' OR subtype IN ('run', 'model', 'turn_cut', 'summary', 'toolcall', \
                          'toolresult', 'permission', 'permission_answer', 'error', 'cancelled', 'clear', 'forked')";

/// How often a call that may be made again is made if the process that makes it is killed each time.
const MOST_TIMES: u64 = 3;

/// How often that process is started again in an attempt.
const MOST_RESTARTS: u32 = 5;

/// How often a prompt is made shorter in an attempt because the model refuses it.
const MOST_SHORTENED: u32 = 10;

/// Errors that a model gets as the result of a call.
const INTERRUPTED: &str = "interrupted; may have taken effect";
const REJECTED: &str = "permission was denied";

const ALLOW: &str = "allow";
const REJECT: &str = "reject";

impl Adapter {
    /// Begins or continues an attempt of a model.
    pub(super) fn begin_turns(&mut self) -> Result<()> {
        // Servers of tools that have ended since the last attempt, or were not there, are tried again.
        if let Some(model) = self.options.protocol.model() {
            model.forget_tools();
        }
        self.go_on()
    }

    /// Does what the thread says is next, unless the attempt is over.
    pub(super) fn go_on(&mut self) -> Result<()> {
        let goes_on = |attempt: &&mut Attempt| attempt.done.is_none() && attempt.ending.is_none();
        let Some(attempt) = self.attempt.as_mut().filter(goes_on) else { return Ok(()) };
        attempt.steps += 1;
        let id = attempt.run.reply_to;
        let step = self.next_step(id)?;
        let knows_tools = self.options.protocol.model().is_some_and(|model| model.knows_tools());
        if let (Some(attempt), Some(model)) = (&mut self.attempt, self.options.protocol.model()) {
            // A tool of its own hides the client's of the same name.
            attempt.client_tools.retain(|name| model.marks(name).is_none());
        }
        match step {
            Some(Step::Ask { .. } | Step::Summarise { .. } | Step::Call(_)) if !knows_tools => self.list_tools(),
            Some(Step::Ask { messages, number }) => self.ask(messages, number)?,
            Some(Step::Summarise { messages, upto }) => self.summarise(messages, upto),
            Some(Step::Call(due)) => self.see_to(due),
            Some(Step::Answer { turn, message_id }) => {
                let Some(attempt) = &mut self.attempt else { return Ok(()) };
                if let Some(id) = message_id {
                    attempt.message_id = id;
                }
                let stage = Some(turn.finish_reason.clone()).filter(|reason| reason != "stop");
                let total_tokens = turn.total_tokens();
                attempt.done = Some(Done::Answered { content: Some(turn.text()), total_tokens, stage });
            }
            Some(Step::Yield) => {
                let stage = Some(STEERED.to_owned());
                if let Some(attempt) = &mut self.attempt {
                    let content = Some(String::new());
                    attempt.done = Some(Done::Answered { content, total_tokens: None, stage });
                }
            }
            Some(Step::GiveUp(turns)) => self.fail(format!(
                "the model has taken {turns} turns without giving an answer, and may take no more (--max-turns)"
            )),
            None => self.fail("what was asked is no longer in the thread".to_owned()),
        }
        Ok(())
    }

    fn fail(&mut self, error: String) {
        if let Some(attempt) = &mut self.attempt {
            attempt.done = Some(Done::Failed { error, retryable: false });
        }
    }

    /// What the thread says the run of a message does next.
    fn next_step(&mut self, id: i64) -> Result<Option<Step>> {
        let filter = Filter::new(REMEMBERED, Scope::Reading)?;
        let mut selection = Selection { after: self.cleared.min(id - 1), limit: None, filter };
        let Some(mut limits) = self.options.protocol.model().map(|model| model.limits()) else {
            return Ok(None);
        };
        limits.yields = self.runs.steers().is_some() && self.may_continue()?;
        limits.besides += self.attempt.as_ref().map_or(0, |attempt| attempt.handed);
        let mut memory = Memory::default();
        loop {
            let mut page: Vec<Event> = Vec::new();
            let remaining = self.queue.read_page(&mut selection, &mut |row| {
                page.push(row.to_event());
                std::ops::ControlFlow::Continue(())
            })?;
            for event in page {
                let record = Record::of(event);
                let is_ending = is_ending(&mut self.queue, record.id(), &record.entry)?;
                memory.note(&record, is_ending);
            }
            if remaining == Remaining::None {
                self.keep_from(memory.needed_from(self.cleared));
                return Ok(memory.next(id, limits));
            }
        }
    }

    /// Writes an order to the process that asks the model, which is started if it is not running.
    fn order(&mut self, write: impl FnOnce(&mut OpenAi, &mut Vec<u8>)) {
        let Some(run) = self.attempt.as_ref().map(|attempt| attempt.run.clone()) else { return };
        let told = self.tell(&run, "", |protocol, out| {
            if let Some(model) = protocol.model() {
                write(model, out);
            }
        });
        self.is_started(told);
    }

    fn list_tools(&mut self) {
        if let Some(attempt) = &mut self.attempt {
            attempt.lists_tools = true;
        }
        self.order(|model, out| model.connect(out));
    }

    /// Goes on once it is known which tools there are.
    pub(super) fn tools_listed(&mut self) -> Result<()> {
        let is_known = self.options.protocol.model().is_some_and(|model| model.knows_tools());
        let Some(attempt) = self.attempt.as_mut().filter(|attempt| attempt.lists_tools && is_known) else {
            return Ok(());
        };
        attempt.lists_tools = false;
        attempt.last_output = Instant::now();
        self.go_on()
    }

    fn ask(&mut self, messages: Vec<serde_json::Value>, number: u64) -> Result<()> {
        let Some(run) = self.attempt.as_ref().map(|attempt| attempt.run.clone()) else { return Ok(()) };
        let mut prompt = self.prompt(run.clone())?;
        prompt.messages = messages;
        let prepared = self.options.protocol.prepare(&mut prompt);
        let Some(attempt) = &mut self.attempt else { return Ok(()) };
        // What was streamed before the other adapter was killed counts for nothing.
        let is_cut = std::mem::take(&mut attempt.is_continued);
        attempt.message_id = turn_id_of(&run, number + u64::from(is_cut));
        attempt.last_output = Instant::now();
        attempt.text.clear();
        push_status(attempt, &mut self.outbox, Status::Thinking);
        if is_cut {
            self.outbox.event(run.turn_cut(&turn_id_of(&run, number)));
        }
        if let Err(error) = prepared {
            self.fail(error);
            return Ok(());
        }
        let started = self.start(&run, prompt);
        self.is_started(started);
        Ok(())
    }

    /// Asks for a summary of the oldest part of what was said.
    fn summarise(&mut self, messages: Vec<serde_json::Value>, upto: i64) {
        if let Some(attempt) = &mut self.attempt {
            attempt.last_output = Instant::now();
        }
        self.order(|model, out| model.summarise(messages, upto, out));
    }

    /// Tries again with a shorter prompt, if the last one was too long.
    pub(super) fn shorten(&mut self) -> Result<()> {
        let Some(error) = self.attempt.as_mut().and_then(|attempt| attempt.too_long.take()) else {
            return Ok(());
        };
        let Some(attempt) = &mut self.attempt else { return Ok(()) };
        attempt.shortened += 1;
        if attempt.shortened > MOST_SHORTENED {
            self.fail(format!("{error}; even a summary of the conversation is too long for this model"));
            return Ok(());
        }
        self.go_on()
    }

    /// Sees to the calls of a turn: what can be done at once is done, and for the rest somebody is asked.
    fn see_to(&mut self, due: Vec<DueCall>) {
        if let Some(attempt) = &mut self.attempt {
            // A turn is stored, so none was cut off.
            attempt.is_continued = false;
            attempt.waiting.clear();
            attempt.asked.clear();
            for DueCall { call, .. } in &due {
                attempt.waiting.insert(call.call_id.clone(), Waiting { call: call.clone(), is_made: false });
            }
        }
        for due in due {
            self.see_to_one(due);
        }
    }

    fn see_to_one(&mut self, DueCall { call, hindrance, stage }: DueCall) {
        let marks = self.options.protocol.model().and_then(|model| model.marks(&call.name));
        let is_begun = matches!(stage, Stage::Begun { .. });
        if let Some(why) = hindrance {
            return self.refuse(&call, is_begun, why);
        }
        let is_clients =
            self.attempt.as_ref().is_some_and(|attempt| attempt.client_tools.contains(&call.name));
        match (stage, marks) {
            (Stage::Begun { event_id, .. }, _) if is_clients => self.wait_for_client(&call, event_id),
            (_, None) if is_clients => self.make(&call),
            (Stage::Begun { times, .. }, marks) => {
                match marks.is_some_and(Marks::may_repeat) && times < MOST_TIMES {
                    true => self.make(&call),
                    false => self.refuse(&call, true, INTERRUPTED.to_owned()),
                }
            }
            (_, None) => {
                let name: String = call.name.chars().take(100).collect();
                self.refuse(&call, false, format!("there is no tool '{name}'"));
            }
            (Stage::Asked { choice: Some(choice), .. }, _) => self.decided(&call, choice == ALLOW),
            (Stage::Asked { request_id, choice: None }, _) => self.wait_for_permission(&call, request_id),
            (Stage::New, Some(marks)) if marks.is_read_only => self.make(&call),
            (Stage::New, _) => match self.options.settings.permit {
                Permit::Allow => self.make(&call),
                Permit::Reject => self.refuse(&call, false, REJECTED.to_owned()),
                Permit::Ask => self.ask_for_permission(&call),
            },
        }
    }

    /// Waits for the client's result of a call that another adapter has stored as this event.
    fn wait_for_client(&mut self, call: &ToolCall, event_id: i64) {
        let Some(attempt) = &mut self.attempt else { return };
        attempt.calls.insert(call.call_id.clone(), call.name.clone());
        attempt.client_calls.insert(call.call_id.clone(), ClientCall::new(&call.name, Some(event_id)));
        if let Some(waiting) = attempt.waiting.get_mut(&call.call_id) {
            waiting.is_made = true;
        }
    }

    /// Stores a call. Once it is stored, it is made.
    fn make(&mut self, call: &ToolCall) {
        if let Some(attempt) = &mut self.attempt {
            push_call(attempt, &mut self.outbox, call);
        }
    }

    /// Gives an error as the result of a call that is not made.
    fn refuse(&mut self, call: &ToolCall, is_stored: bool, why: String) {
        let Some(attempt) = &mut self.attempt else { return };
        if let Some(waiting) = attempt.waiting.get_mut(&call.call_id) {
            waiting.is_made = true;
        }
        let run = attempt.run.clone();
        if !is_stored {
            // Not given to the client either, if it is one of its tools.
            push_status(attempt, &mut self.outbox, Status::ExecutingTool);
            self.outbox.event(run.tool_call(call));
        }
        attempt.calls.remove(&call.call_id);
        attempt.results.insert(call.call_id.clone());
        self.result(&run, &ToolResult::new(&*call.call_id, &*call.name, Err(why)));
    }

    fn ask_for_permission(&mut self, call: &ToolCall) {
        let Some(attempt) = &self.attempt else { return };
        let request_id = format!("perm_{}_{}", call.call_id, attempt.run.attempt);
        let permission = Permission {
            request_id: request_id.clone(),
            title: call.name.clone(),
            call_id: Some(call.call_id.clone()),
            arguments: call.arguments.clone(),
            details: String::new(),
            choices: choices(),
            wait_ms: self
                .options
                .settings
                .permit_wait
                .0
                .and_then(|wait| u64::try_from(wait.as_millis()).ok()),
        };
        self.outbox.event(attempt.run.permission(&permission));
        self.wait_for_permission(call, request_id);
    }

    fn wait_for_permission(&mut self, call: &ToolCall, request_id: String) {
        let Some(attempt) = &mut self.attempt else { return };
        // It starts again after a restart, because no answer could be heard in between.
        let until = self.options.settings.permit_wait.0.map(|wait| Instant::now() + wait);
        attempt.asked.push(Asked { request_id, program_id: call.call_id.clone(), choices: choices(), until });
    }

    /// Handles the answer to a request; `None` is none in time.
    pub(super) fn call_permitted(&mut self, call_id: &str, choice: Option<&str>) {
        let waiting = self.attempt.as_ref().and_then(|attempt| attempt.waiting.get(call_id));
        let Some(call) = waiting.map(|waiting| waiting.call.clone()) else { return };
        self.decided(&call, choice == Some(ALLOW));
    }

    fn decided(&mut self, call: &ToolCall, is_allowed: bool) {
        match is_allowed {
            true => self.make(call),
            false => self.refuse(call, false, REJECTED.to_owned()),
        }
    }

    /// Makes a call that is stored now.
    pub(super) fn call_stored(&mut self, call_id: &str) {
        let Some(attempt) = self.attempt.as_mut().filter(|attempt| attempt.ending.is_none()) else { return };
        let Some(waiting) = attempt.waiting.get_mut(call_id).filter(|waiting| !waiting.is_made) else {
            return;
        };
        if attempt.client_calls.contains_key(call_id) {
            waiting.is_made = true;
            return;
        }
        let Some(model) = self.options.protocol.model() else { return };
        if !model.knows_tools() {
            // The process has just ended: what becomes of the call is decided once there is another one.
            return;
        }
        waiting.is_made = true;
        let call = waiting.call.clone();
        let limit = self.options.settings.quiet;
        if !model.is_notebooks(&call.name) {
            return self.order(|model, out| model.call(&call, limit, out));
        }
        let Some(notebook) = model.notebook().cloned() else { return };
        let outcome = notebook.call(&call.name, &call.arguments, call_id, &self.launcher);
        let result = ToolResult::new(call_id, &*call.name, outcome.map(Into::into));
        self.handle_output(crate::protocol::Output::Result(result));
    }

    /// Notes that a result is stored. The last one of a turn is followed by the next turn.
    pub(super) fn result_stored(&mut self, call_id: &str) -> Result<()> {
        let Some(attempt) = &mut self.attempt else { return Ok(()) };
        if attempt.waiting.remove(call_id).is_none() || !attempt.waiting.is_empty() {
            return Ok(());
        }
        self.go_on()
    }

    /// Goes on if the process has ended that asks the model and makes calls, as if the adapter had. Returns whether it
    /// has; if the process ends again and again, the attempt fails.
    pub(super) fn go_on_after_exit(&mut self) -> Result<bool> {
        let ended = |running: &Running| running.exited.is_some() && running.stdout_closed;
        let has_exited = self.running.as_ref().is_some_and(ended);
        let is_asking = self.options.protocol.model().is_some_and(|model| model.is_asking_model());
        let is_open = |attempt: &&mut Attempt| {
            attempt.done.is_none() && attempt.ending.is_none() && attempt.restarts < MOST_RESTARTS
        };
        let Some(attempt) = self.attempt.as_mut().filter(|_| has_exited).filter(is_open) else {
            return Ok(false);
        };
        if self.options.protocol.model().is_none() {
            return Ok(false);
        }
        attempt.restarts += 1;
        attempt.lists_tools = false;
        attempt.is_continued |= is_asking;
        let steps = attempt.steps;
        self.warn("the process that asks the model has ended, so it is started again");
        self.drop_exited();
        if let Some(model) = self.options.protocol.model() {
            model.forget_tools();
        }
        // What it has said last is followed by a step, too.
        self.flush_and_catch_up()?;
        if self.attempt.as_ref().is_some_and(|attempt| attempt.steps == steps) {
            self.go_on()?;
        }
        Ok(true)
    }
}

fn choices() -> Vec<Choice> {
    let choice =
        |id: &str, name: &str, kind: &str| Choice { id: id.into(), name: name.into(), kind: kind.into() };
    vec![choice(ALLOW, "Allow", "allow_once"), choice(REJECT, "Reject", "reject_once")]
}
