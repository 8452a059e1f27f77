//! One run as those who watch it see it, folded from its records.
//!
//! A [`RunView`] is fed the records of a conversation in order, from the run's message on. Each [`Change`] that it
//! returns is one thing to show, so a form of output is a `match` over changes. Which runs are open, and what must be
//! done about them, is the matter of [`runs`](crate::runs). Pure: no clock and no I/O.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hasher};

use serde_json::Value;

use crate::{
    ClientInput, Entry, Permission, PermissionAnswer, Record, Status, SubAgent, ToolCall, ToolResult,
    shown_call_id,
};

/// What a record changes.
#[derive(Debug, Clone, PartialEq)]
pub enum Change<'r> {
    /// A further attempt begins, or this one begins again where a model's turn was cut off. If the one before had
    /// changed the shared state, that is as at the beginning again.
    Attempt {
        number: u64,
        restored: bool,
    },
    /// A piece of the answer, not empty.
    Text {
        text: &'r str,
        message_id: Option<&'r str>,
    },
    /// A piece of the agent's thinking, not empty.
    Thinking(&'r str),
    /// A call, or if it is known, its corrected details.
    Called {
        /// Its id as clients see it.
        id: String,
        call: &'r ToolCall,
        is_new: bool,
    },
    /// The first result of a call.
    Returned {
        /// The id of the call as clients see it.
        id: String,
        result: &'r ToolResult,
        /// The sub-agents that end with the call.
        ends: Vec<String>,
    },
    Status(Status),
    Plan(&'r Value),
    State(&'r Value),
    /// A JSON Patch, to be applied by [`RunView::patch`].
    StateDelta(&'r Value),
    Unsupported(&'r [String]),
    /// The attempt has failed, and with it its open sub-agents; another attempt follows.
    AttemptFailed {
        error: &'r str,
        ends: Vec<String>,
    },
    /// The agent asks for permission: see [`RunView::asked`].
    Asked(&'r Permission),
    /// Somebody has chosen one of the choices, or the agent has withdrawn the request.
    Permitted(&'r PermissionAnswer),
    SubAgent {
        told: &'r SubAgent,
        /// The id of the call that it works for, as clients see it.
        parent: String,
        did: Vec<SubChange>,
    },
}

/// What a sub-agent does.
#[derive(Debug, Clone, PartialEq)]
pub enum SubChange {
    Began,
    /// `id` is told apart from those of other calls by the sub-agent's.
    Called {
        id: String,
        call: ToolCall,
        is_new: bool,
    },
    Returned {
        id: String,
        result: ToolResult,
    },
    Status(Value),
    AttemptFailed(String),
    /// With its result, if that is known.
    Answered(Option<Value>),
    Failed(String),
    Cancelled(String),
}

/// A call of the run, or of one of its sub-agents.
#[derive(Debug, Clone)]
pub struct Call {
    pub name: String,
    pub has_result: bool,
    /// It is one of the client's tools.
    pub for_client: bool,
    /// How its sub-agent ended, if it has one, unless that continues in the background.
    ended: Option<Result<(), String>>,
}

/// A request for permission without an answer.
#[derive(Debug, Clone)]
pub struct Asked {
    pub event_id: i64,
    /// When it was stored.
    pub at: String,
    pub permission: Permission,
    /// The id of the call that it is for, as clients see it.
    pub call_id: Option<String>,
    /// Whether that call was announced before.
    pub call_is_known: bool,
}

/// A sub-agent of the run.
#[derive(Debug, Clone)]
struct Sub {
    parent: String,
    is_open: bool,
}

/// What has happened in a run.
#[derive(Debug, Clone, Default)]
pub struct RunView {
    subject: i64,
    run_id: Option<String>,
    has_started: bool,
    /// The client's input with the message.
    pub input: ClientInput,
    /// The state that client and agent share, as the client has it.
    pub state: Value,
    state_changed: bool,
    /// The text streamed in this attempt, as a hash.
    streamed: DefaultHasher,
    /// By the ids that clients see.
    calls: HashMap<String, Call>,
    /// In their order.
    call_ids: Vec<String>,
    subs: BTreeMap<String, Sub>,
    asked: BTreeMap<String, Asked>,
}

impl RunView {
    /// The run of a message, or the one that the agent has begun itself with that event.
    pub fn of(subject: i64) -> RunView {
        RunView { subject, state: empty_state(), ..RunView::default() }
    }

    /// Whether the run has started. Before that, records with its id belong to another run of that id.
    pub fn has_started(&self) -> bool {
        self.has_started
    }

    /// Whether a record belongs to this run.
    pub fn has(&self, record: &Record) -> bool {
        self.has_started && record.run_id == self.run_id
    }

    /// Whether the text streamed in this attempt is this.
    pub fn has_streamed(&self, whole: &str) -> bool {
        let mut other = DefaultHasher::new();
        other.write(whole.as_bytes());
        self.streamed.finish() == other.finish()
    }

    /// Calls without a result, with their ids, in their order.
    pub fn open_calls(&self) -> impl Iterator<Item = (&str, &Call)> {
        let calls = self.call_ids.iter().filter_map(|id| Some((&**id, self.calls.get(id)?)));
        calls.filter(|(_, call)| !call.has_result)
    }

    /// Requests for permission without an answer.
    pub fn asked(&self) -> impl Iterator<Item = &Asked> {
        self.asked.values()
    }

    /// The request of that id, if it has no answer.
    pub fn request(&self, request_id: &str) -> Option<&Asked> {
        self.asked.get(request_id)
    }

    /// Sub-agents that are at work, with the ids of the calls that they work for.
    pub fn open_sub_agents(&self) -> impl Iterator<Item = (&str, &str)> {
        self.subs.iter().filter(|(_, sub)| sub.is_open).map(|(id, sub)| (&**id, &*sub.parent))
    }

    /// Changes the shared state. What it is before stays if that fails.
    ///
    /// # Errors
    ///
    /// Those of `patch`.
    pub fn patch<E>(&mut self, patch: impl FnOnce(&mut Value) -> Result<(), E>) -> Result<(), E> {
        patch(&mut self.state)?;
        self.state_changed = true;
        Ok(())
    }

    /// Takes in the message, if that is what the record is, and nothing else.
    pub fn begin(&mut self, record: &Record) {
        if record.id() == self.subject {
            self.run_id = record.run_id.clone();
            self.input = record.input();
            self.state = self.initial_state();
        }
    }

    /// Takes in the next record, unless that is the message.
    pub fn apply<'r>(&mut self, record: &'r Record) -> Option<Change<'r>> {
        let id = record.id();
        match &record.entry {
            Entry::RunStarted { attempt, reply_to } => {
                if reply_to.unwrap_or(id) != self.subject {
                    return None;
                }
                self.has_started = true;
                self.streamed = DefaultHasher::new();
                if *attempt <= 1 {
                    return None;
                }
                let restored = std::mem::take(&mut self.state_changed);
                if restored {
                    self.state = self.initial_state();
                }
                return Some(Change::Attempt { number: *attempt, restored });
            }
            Entry::SubAgent(told) => return self.sub_agent(told),
            Entry::PermissionAnswer(answer) => {
                let asked = self.asked.get(&answer.request_id)?;
                let choices = asked.permission.choices.iter().map(|choice| &*choice.id);
                if !answer.closes(&answer.request_id, choices) {
                    return None;
                }
                self.asked.remove(&answer.request_id);
                return Some(Change::Permitted(answer));
            }
            _ if !self.has(record) => return None,
            _ => {}
        }
        Some(match &record.entry {
            Entry::Token { text, .. } | Entry::Thinking { text, .. } if text.is_empty() => return None,
            Entry::Token { text, message_id } => {
                self.streamed.write(text.as_bytes());
                Change::Text { text, message_id: message_id.as_deref() }
            }
            Entry::Thinking { text, .. } => Change::Thinking(text),
            Entry::TurnCut { .. } => {
                self.streamed = DefaultHasher::new();
                Change::Attempt { number: record.attempt, restored: false }
            }
            Entry::Model { turn, .. } => {
                // The answer is what a later turn says.
                if turn.has_calls() {
                    self.streamed = DefaultHasher::new();
                }
                return None;
            }
            Entry::ToolCall(call) => {
                let id = record.shown_call_id()?;
                let is_new = self.call(&id, call, record.for_client);
                Change::Called { id, call, is_new }
            }
            Entry::ToolResult(result) => {
                if let Some(state) = record.input().0.shift_remove(ClientInput::STATE) {
                    self.state = state;
                }
                let id = record.shown_call_id()?;
                if record.from_client {
                    // The client that gave it has it already.
                    self.calls.entry(id).and_modify(|call| call.has_result = true);
                    return None;
                }
                let goes_on = self.result(&id, result)?;
                let ends = self.close_sub_agents(|sub| !goes_on && sub.parent == id);
                Change::Returned { id, result, ends }
            }
            Entry::Status(status) => Change::Status(*status),
            Entry::Plan(entries) => Change::Plan(entries),
            Entry::State(state) => {
                (self.state, self.state_changed) = (state.clone(), true);
                Change::State(state)
            }
            Entry::StateDelta(delta) => Change::StateDelta(delta),
            Entry::Unsupported(fields) => Change::Unsupported(fields),
            Entry::Error { error, retryable: true, .. } => {
                self.asked.clear();
                Change::AttemptFailed { error, ends: self.close_sub_agents(|_| true) }
            }
            Entry::Permission(asked) => {
                let call_id = record.shown_call_id();
                let asked_now = Asked {
                    event_id: id,
                    at: record.event.created_at.clone(),
                    permission: asked.clone(),
                    call_is_known: call_id.as_ref().is_some_and(|id| self.calls.contains_key(id)),
                    call_id,
                };
                self.asked.insert(asked.request_id.clone(), asked_now);
                Change::Asked(asked)
            }
            _ => return None,
        })
    }

    /// The state that the run begins with.
    fn initial_state(&self) -> Value {
        self.input.get(ClientInput::STATE).cloned().unwrap_or_else(empty_state)
    }

    /// Notes a call. Returns whether it is new.
    fn call(&mut self, id: &str, call: &ToolCall, for_client: bool) -> bool {
        let is_new = !self.calls.contains_key(id);
        if is_new {
            let call = Call { name: call.name.clone(), has_result: false, for_client, ended: None };
            self.calls.insert(id.to_owned(), call);
            self.call_ids.push(id.to_owned());
        }
        is_new
    }

    /// Notes the result of a call. Returns whether its sub-agent continues in the background; `None` if it is not
    /// the first one.
    fn result(&mut self, id: &str, result: &ToolResult) -> Option<bool> {
        let call = self.calls.get_mut(id).filter(|call| !call.has_result)?;
        call.has_result = true;
        let goes_on =
            result.outcome.as_ref().is_ok_and(|it| it["sub_agent"].is_string() && it["status"] == "started");
        if !goes_on {
            call.ended = Some(result.outcome.as_ref().map(drop).map_err(Clone::clone));
        }
        Some(goes_on)
    }

    /// Closes the open sub-agents that are meant: what they did last may be told later.
    fn close_sub_agents(&mut self, is_meant: impl Fn(&Sub) -> bool) -> Vec<String> {
        let meant = self.subs.iter_mut().filter(|(_, sub)| sub.is_open && is_meant(sub));
        let close = |(id, sub): (&String, &mut Sub)| {
            sub.is_open = false;
            id.clone()
        };
        meant.map(close).collect()
    }

    /// The id of a sub-agent's call as clients see it; `None` if this run has no such call.
    fn parent_of(&self, told: &SubAgent) -> Option<String> {
        let id = shown_call_id(&told.parent_call_id, told.attempt);
        if told.attempt > 0 || self.calls.contains_key(&id) {
            return self.calls.contains_key(&id).then_some(id);
        }
        // The attempt is not known: the last one.
        let is_it = |id: &&String| {
            let rest = id.strip_prefix(&*told.parent_call_id).and_then(|rest| rest.strip_prefix('.'));
            rest.is_some_and(|attempt| attempt.parse::<u64>().is_ok())
        };
        self.call_ids.iter().rev().find(is_it).cloned()
    }

    fn sub_agent<'r>(&mut self, told: &'r SubAgent) -> Option<Change<'r>> {
        let parent = self.parent_of(told)?;
        let mut did = Vec::new();
        let is_open = match self.subs.get(&told.sub_agent) {
            Some(sub) => sub.is_open,
            None => {
                did.push(SubChange::Began);
                let ended = self.calls.get(&parent).and_then(|call| call.ended.clone());
                let is_open = ended.is_none();
                // Everything it did is reported after the result of its call.
                did.extend(ended.map(|ended| match ended {
                    Ok(()) => SubChange::Answered(None),
                    Err(why) => SubChange::Failed(why),
                }));
                self.subs.insert(told.sub_agent.clone(), Sub { parent: parent.clone(), is_open });
                is_open
            }
        };
        if is_open {
            did.extend(self.sub_change(told));
        }
        Some(Change::SubAgent { told, parent, did })
    }

    fn sub_change(&mut self, told: &SubAgent) -> Option<SubChange> {
        let SubAgent { sub_agent, event, payload, .. } = told;
        let text = |key: &str| payload[key].as_str().unwrap_or_default().to_owned();
        let change = match &**event {
            "tool_call" => {
                let call: ToolCall = serde_json::from_value(payload.clone()).ok()?;
                let id = format!("{sub_agent}/{}", call.call_id);
                let is_new = self.call(&id, &call, false);
                return Some(SubChange::Called { id, call, is_new });
            }
            "tool_result" => {
                let result: ToolResult = serde_json::from_value(payload.clone()).ok()?;
                let id = format!("{sub_agent}/{}", result.call_id);
                self.result(&id, &result)?;
                return Some(SubChange::Returned { id, result });
            }
            "status" => return Some(SubChange::Status(payload.clone())),
            "error" if payload["retryable"] == true => return Some(SubChange::AttemptFailed(text("error"))),
            "final" => SubChange::Answered(Some(payload["content"].clone())),
            "error" => SubChange::Failed(text("error")),
            "cancelled" => SubChange::Cancelled(text("message")),
            _ => return None,
        };
        if let Some(sub) = self.subs.get_mut(sub_agent) {
            sub.is_open = false;
        }
        Some(change)
    }
}

fn empty_state() -> Value {
    Value::Object(Default::default())
}

#[cfg(test)]
mod tests;
