//! Translates the events of one run to AG-UI.
//!
//! The input is the session's events from the message on. The output, ids included, depends only on them and on
//! where the stream begins, so a resumed stream continues exactly where it was interrupted.
//!
//! A stream ends before its run where the agent waits for the client: at a request for permission, and at a call
//! of one of the client's own tools. The client goes on with the run in another stream, which begins behind that
//! event, and opens again what is still open.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hasher};

use serde_json::{Value, json};
use thread::model::time;
use thread_conversation::{
    ClientInput, Entry, PERMISSION_TIMEOUT, Permission, PermissionAnswer, Record, SubAgent, ToolCall,
    ToolResult, parts_of, shown_call_id,
};

use crate::session::event::SessionEvent;

/// The client's version of AG-UI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// 0.x, which has other events for reasoning, and none for sub-agents and interrupts.
    Zero,
    /// 1.0 as clients of the last 0.x read it: they refuse what 1.0 has added to the outcomes of runs.
    Early,
    One,
}

impl Version {
    /// Parses a `protocolVersion`; `None` if it is not given.
    pub fn of_input(text: Option<&str>) -> Option<Version> {
        text.map(|text| if text == "0" || text.starts_with("0.") { Version::Zero } else { Version::One })
    }

    /// Parses the query's `protocol`: `0`, `1` or `1.0`; `None` if it is not given.
    pub fn of_query(text: Option<&str>) -> Option<Version> {
        if text == Some("1") { Some(Version::Early) } else { Version::of_input(text) }
    }
}

/// What a stream shows of the run of a message, or of one that the agent has begun itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// The message, or the event with which a client goes on with its run.
    pub event: i64,
    /// Of a run that the agent has begun itself, the event that began it.
    pub message: i64,
    /// Events of the run up to this one belong to earlier streams.
    pub shown: i64,
}

impl Start {
    /// From the beginning.
    pub fn of_message(id: i64) -> Start {
        Start { event: id, message: id, shown: id - 1 }
    }

    /// What an event begins; `None` if nothing.
    pub fn of(stored: &SessionEvent) -> Option<Start> {
        match stored.record.entry {
            // Also a run that the agent begins itself.
            Entry::Message(_) | Entry::RunStarted { reply_to: None, .. } => {
                Some(Start::of_message(stored.id()))
            }
            Entry::Continued { reply_to, after } if (1..stored.id()).contains(&reply_to) => {
                Some(Start { event: stored.id(), message: reply_to, shown: after })
            }
            _ => None,
        }
    }
}

/// What a run was waiting for when a stream of it began. What had been answered by then does not end the stream.
#[derive(Debug, Default)]
pub struct PendingInput {
    /// The last event that was there.
    pub upto: i64,
    /// Requests for permission, by their ids.
    pub permissions: HashSet<String>,
    /// Calls, by the program's ids.
    pub calls: HashSet<String>,
}

/// Whether the stream goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    GoesOn,
    Ended,
}

/// The message that is open in the stream, with its id.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Open {
    Nothing,
    Text(String),
    Reasoning(String),
}

/// A call of this run.
struct Call {
    name: String,
    has_result: bool,
    for_client: bool,
    /// How its sub-agent ended, if it has one, unless that goes on in the background.
    ended: Option<Result<(), String>>,
}

/// A sub-agent of this run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sub {
    Open,
    Closed,
}

/// A request for permission.
struct Asked {
    event_id: i64,
    interrupt: Value,
    /// The ids of its choices.
    choices: Vec<String>,
}

/// Why a stream is over, though nothing failed.
enum Outcome {
    Success,
    /// By whom, or why.
    Cancelled(String),
    /// The calls that wait for the client.
    Pending(Vec<String>),
    Interrupt(Vec<Value>),
}

/// Events for the client, with the time of the stored event.
#[derive(Default)]
struct Output {
    events: Vec<Value>,
    timestamp: Option<i64>,
}

impl Output {
    fn push(&mut self, mut event: Value) {
        if let Some(timestamp) = self.timestamp {
            event["timestamp"] = timestamp.into();
        }
        self.events.push(event);
    }

    fn custom(&mut self, name: &str, value: Value) {
        self.push(json!({ "type": "CUSTOM", "name": format!("thread.{name}"), "value": value }));
    }
}

pub struct Translator {
    version: Version,
    thread_id: String,
    /// The client's name for what the stream shows of the run.
    run_id: String,
    start: Start,
    /// The client has everything up to this event.
    after: i64,
    pending: PendingInput,
    /// Where the content of an event is that is too large to be shown.
    content_url: Box<dyn Fn(i64) -> String + Send>,
    /// The run's id in the thread.
    stored_run_id: Option<String>,
    /// What the client gave with the message.
    input: ClientInput,
    /// The state that client and agent share, as the client has it.
    state: Value,
    state_changed: bool,
    /// Whether `RUN_STARTED` was sent.
    begun: bool,
    /// Whether the run has started. Before that, events with its id belong to another run of that id.
    started: bool,
    open: Open,
    /// Whether a text message has been opened: only the first gets the message id given by the agent.
    opened_text: bool,
    streamed: Streamed,
    /// By the ids that clients see.
    calls: HashMap<String, Call>,
    /// In their order.
    call_ids: Vec<String>,
    subs: BTreeMap<String, (Sub, String)>,
    /// Requests for permission without an answer, by their ids.
    permissions: BTreeMap<String, Asked>,
}

/// The text streamed in this attempt, as its length and a hash.
#[derive(Default)]
struct Streamed {
    bytes: usize,
    hash: DefaultHasher,
}

impl Streamed {
    fn add(&mut self, text: &str) {
        self.bytes += text.len();
        self.hash.write(text.as_bytes());
    }

    fn matches(&self, whole: &str) -> bool {
        let mut other = Streamed::default();
        other.add(whole);
        self.bytes == other.bytes && self.hash.finish() == other.hash.finish()
    }
}

impl Translator {
    /// For what a stream shows of a run. `thread_id` and `run_id` are the client's names; it has everything up to
    /// the event `after`.
    pub fn new(
        version: Version,
        thread_id: String,
        run_id: String,
        (start, after): (Start, i64),
        pending: PendingInput,
        content_url: impl Fn(i64) -> String + Send + 'static,
    ) -> Translator {
        Translator {
            version,
            thread_id,
            run_id,
            start,
            after,
            pending,
            content_url: Box::new(content_url),
            stored_run_id: None,
            input: ClientInput::default(),
            state: json!({}),
            state_changed: false,
            begun: false,
            started: false,
            open: Open::Nothing,
            opened_text: false,
            streamed: Streamed::default(),
            calls: HashMap::new(),
            call_ids: Vec::new(),
            subs: BTreeMap::new(),
            permissions: BTreeMap::new(),
        }
    }

    /// What the stream shows.
    pub fn start(&self) -> Start {
        self.start
    }

    /// The message, while its run has not started.
    pub fn waits_for(&self) -> Option<i64> {
        (!self.started).then_some(self.start.message)
    }

    /// How many runs are before this one.
    pub fn queued(&self, position: usize) -> Value {
        let mut output = Output { timestamp: time::parse(&time::now()).map(millis), ..Output::default() };
        output.custom("queued", json!({ "position": position }));
        output.events.pop().unwrap_or_default()
    }

    /// Translates the next event.
    pub fn feed(&mut self, stored: &SessionEvent) -> (Vec<Value>, Run) {
        let timestamp = time::parse(&stored.record.event.created_at).map(millis);
        let mut output = Output { timestamp, ..Output::default() };
        let run = self.translate(stored, &mut output);
        (output.events, run)
    }

    fn translate(&mut self, stored: &SessionEvent, output: &mut Output) -> Run {
        let id = stored.id();
        if id < self.start.message {
            return Run::GoesOn;
        }
        if id == self.start.message {
            self.stored_run_id = stored.record.run_id.clone();
            self.input = stored.record.input();
            self.state = self.initial_state();
        }
        if stored.ends == Some(self.start.message) {
            self.begin(output);
            self.end(stored, output);
            return Run::Ended;
        }
        if !self.begun && id <= self.start.shown {
            // The client has seen it in an earlier stream.
            self.event(stored, &mut Output::default());
            return Run::GoesOn;
        }
        self.begin(output);
        if id == self.start.event {
            let input = stored.record.input();
            for note in input.get(ClientInput::UNSUPPORTED).and_then(Value::as_array).into_iter().flatten() {
                output.custom("unsupported", note.clone());
            }
        }
        match self.event(stored, output) {
            Some(outcome) => {
                self.finish(outcome, None, output);
                Run::Ended
            }
            None => Run::GoesOn,
        }
    }

    /// The state that the run begins with.
    fn initial_state(&self) -> Value {
        self.input.get(ClientInput::STATE).cloned().unwrap_or_else(|| json!({}))
    }

    /// Begins the stream, and opens again what an earlier one has closed.
    fn begin(&mut self, output: &mut Output) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        self.close(&mut Output::default());
        let mut started = json!({ "type": "RUN_STARTED", "threadId": self.thread_id, "runId": self.run_id });
        if self.version != Version::Zero {
            started["protocolVersion"] = "1.0".into();
        }
        if let Some(parent) =
            self.input.get(ClientInput::PARENT_RUN_ID).filter(|_| self.start.event == self.start.message)
        {
            started["parentRunId"] = parent.clone();
        }
        output.push(started);
        if self.version == Version::Zero {
            return;
        }
        for call_id in &self.call_ids {
            let Some(call) = self.calls.get(call_id).filter(|call| !call.has_result && !call.for_client)
            else {
                continue;
            };
            output
                .push(json!({ "type": "TOOL_CALL_START", "toolCallId": call_id, "toolCallName": call.name }));
            output.push(json!({ "type": "TOOL_CALL_END", "toolCallId": call_id }));
        }
        for (id, (_, call_id)) in self.subs.iter().filter(|(_, (sub, _))| *sub == Sub::Open) {
            output.push(sub_agent_started(id, call_id));
        }
    }

    /// Translates an event that does not end the run. Returns why the stream is over, if it is.
    fn event(&mut self, stored: &SessionEvent, output: &mut Output) -> Option<Outcome> {
        let Record { event, run_id, entry, .. } = &stored.record;
        match entry {
            Entry::RunStarted { attempt, reply_to } => {
                if reply_to.unwrap_or(event.id) == self.start.message {
                    self.started = true;
                    self.streamed = Streamed::default();
                    if *attempt > 1 {
                        output.custom("attempt", json!({ "attempt": attempt }));
                        self.restore_state(output);
                    }
                }
                return None;
            }
            Entry::SubAgent(sub) => {
                self.sub_agent(event.id, sub, output);
                return None;
            }
            Entry::PermissionAnswer(PermissionAnswer { request_id, choice }) => {
                let asked = self.permissions.get(request_id);
                if asked.is_some_and(|asked| asked.choices.contains(choice)) {
                    self.permissions.remove(request_id);
                    output.custom("permission", json!({ "requestId": request_id, "choice": choice }));
                }
                return None;
            }
            Entry::Continued { .. } if event.id == self.start.event => {
                if let Some(state) = stored.record.input().get(ClientInput::STATE) {
                    self.state = state.clone();
                }
                let open = self.interrupts();
                let stops = !open.is_empty() && self.stops(event.id, true);
                return stops.then_some(Outcome::Interrupt(open));
            }
            _ if !self.started || *run_id != self.stored_run_id => return None,
            _ => {}
        }
        if let Some(bytes) = stored.large {
            let url = (self.content_url)(event.id);
            let value = json!({ "type": event.kind, "subtype": event.subtype, "bytes": bytes, "url": url });
            output.custom("large", value);
            return None;
        }
        self.piece(stored, output)
    }

    fn piece(&mut self, stored: &SessionEvent, output: &mut Output) -> Option<Outcome> {
        let event = &stored.record.event;
        match &stored.record.entry {
            Entry::Token { text, .. } | Entry::Thinking { text, .. } if text.is_empty() => {}
            Entry::Token { text, message_id } => {
                self.streamed.add(text);
                self.text(event.id, message_id.as_deref(), text, output);
            }
            Entry::Thinking { text, .. } => self.reasoning(event.id, text, output),
            Entry::ToolCall(call) => {
                let id = shown_call_id(&call.call_id, stored.record.attempt);
                let for_client = stored.record.for_client;
                if self.tool_call(&id, call, for_client, None, output) && for_client {
                    let is_open = self.pending.calls.contains(&call.call_id);
                    return self.stops(event.id, is_open).then(|| Outcome::Pending(vec![id]));
                }
            }
            Entry::ToolResult(result) => {
                if let Some(state) = stored.record.input().get(ClientInput::STATE) {
                    self.state = state.clone();
                }
                let id = shown_call_id(&result.call_id, stored.record.attempt);
                if stored.record.from_client {
                    // The client that gave it has it already.
                    self.calls.entry(id).and_modify(|call| call.has_result = true);
                } else {
                    self.tool_result(&id, result, &format!("result_{}", event.id), None, output);
                }
            }
            Entry::Status(status) => output.custom("status", json!({ "status": status.as_str() })),
            Entry::Plan(entries) => output.custom("plan", json!({ "entries": entries })),
            Entry::State(state) => {
                self.state = state.clone();
                self.state_changed = true;
                output.push(json!({ "type": "STATE_SNAPSHOT", "snapshot": state }));
            }
            Entry::StateDelta(delta) => self.state_delta(delta, output),
            Entry::Unsupported(fields) => {
                for field in fields {
                    let reason = "the agent's protocol cannot take it";
                    output.custom("unsupported", json!({ "field": camel(field), "reason": reason }));
                }
            }
            Entry::Error { error, retryable: true, .. } => {
                self.close(output);
                self.permissions.clear();
                self.fail_sub_agents(error, "attempt_failed", output);
                output.custom("attempt_failed", json!({ "message": error }));
            }
            Entry::Permission(asked) => return self.permission(stored, asked, output),
            _ => {}
        }
        None
    }

    /// Whether a stream ends where the agent waits for the client. `is_open` says whether it was still waiting
    /// when the stream began.
    fn stops(&self, id: i64, is_open: bool) -> bool {
        // A client that has what came after it was not stopped there.
        id == self.after || id > self.after && (id > self.pending.upto || is_open)
    }

    fn permission(
        &mut self,
        stored: &SessionEvent,
        asked: &Permission,
        output: &mut Output,
    ) -> Option<Outcome> {
        let event = &stored.record.event;
        let attempt = stored.record.attempt;
        let Permission { request_id, title, arguments, details, .. } = asked;
        let choices: Vec<Value> =
            asked.choices.iter().map(|c| json!({ "id": c.id, "name": c.name, "kind": c.kind })).collect();
        let call_id = asked.call_id.as_deref().map(|id| shown_call_id(id, attempt));
        let mut about = json!({ "arguments": arguments, "details": details, "choices": choices });
        let call_is_shown = call_id.as_ref().is_some_and(|id| self.calls.contains_key(id));
        let mut interrupt = json!({
            "id": request_id,
            "reason": if call_is_shown { "tool_call" } else { "confirmation" },
            "message": title,
            "responseSchema": response_schema(asked),
            "metadata": { "thread": about },
        });
        if let Some(call_id) = call_id.as_ref().filter(|_| call_is_shown) {
            interrupt["toolCallId"] = call_id.clone().into();
        }
        if let Some(asked_at) = time::parse(&event.created_at) {
            interrupt["expiresAt"] = time::format(asked_at + PERMISSION_TIMEOUT).into();
        }
        let ids = asked.choices.iter().map(|choice| choice.id.clone()).collect();
        self.permissions.insert(request_id.clone(), Asked { event_id: event.id, interrupt, choices: ids });
        let is_open = self.pending.permissions.contains(request_id);
        if self.version != Version::Zero && self.stops(event.id, is_open) {
            return Some(Outcome::Interrupt(self.interrupts()));
        }
        about["requestId"] = request_id.clone().into();
        about["title"] = title.clone().into();
        about["toolCallId"] = call_id.into();
        output.custom("permission", about);
        None
    }

    /// What the run waits for people to answer.
    fn interrupts(&self) -> Vec<Value> {
        let is_open = |(id, asked): &(&String, &Asked)| {
            asked.event_id > self.pending.upto || self.pending.permissions.contains(*id)
        };
        match self.version {
            Version::Zero => Vec::new(),
            _ => self.permissions.iter().filter(is_open).map(|(_, asked)| asked.interrupt.clone()).collect(),
        }
    }

    /// Shows a call, or its corrected details. Returns whether it is new.
    fn tool_call(
        &mut self,
        id: &str,
        call: &ToolCall,
        for_client: bool,
        sub: Option<&str>,
        output: &mut Output,
    ) -> bool {
        if sub.is_none() {
            self.close(output);
        }
        let arguments = if call.arguments.is_null() { json!({}) } else { call.arguments.clone() };
        if self.calls.contains_key(id) {
            // Clients take no arguments after the end of a call.
            let value = json!({ "toolCallId": id, "toolCallName": call.name, "arguments": arguments });
            output.custom("tool_call", value);
            return false;
        }
        let name = call.name.clone();
        self.calls.insert(id.to_owned(), Call { name, has_result: false, for_client, ended: None });
        self.call_ids.push(id.to_owned());
        let start = json!({ "type": "TOOL_CALL_START", "toolCallId": id, "toolCallName": call.name });
        output.push(of_sub_agent(start, sub));
        let delta = json!({ "type": "TOOL_CALL_ARGS", "toolCallId": id, "delta": arguments.to_string() });
        output.push(of_sub_agent(delta, sub));
        output.push(of_sub_agent(json!({ "type": "TOOL_CALL_END", "toolCallId": id }), sub));
        true
    }

    /// Shows the result of a call, the first one.
    fn tool_result(
        &mut self,
        id: &str,
        result: &ToolResult,
        message_id: &str,
        sub: Option<&str>,
        output: &mut Output,
    ) {
        let Some(call) = self.calls.get_mut(id).filter(|call| !call.has_result) else { return };
        call.has_result = true;
        let goes_on =
            result.outcome.as_ref().is_ok_and(|it| it["sub_agent"].is_string() && it["status"] == "started");
        if !goes_on {
            call.ended = Some(result.outcome.as_ref().map(drop).map_err(Clone::clone));
        }
        if sub.is_none() {
            self.close(output);
            if !goes_on {
                self.close_sub_agents_of(id, result, output);
            }
        }
        let content = match &result.outcome {
            Ok(Value::String(text)) | Err(text) => text.clone(),
            Ok(value) => value.to_string(),
        };
        let result = json!({
            "type": "TOOL_CALL_RESULT",
            "messageId": message_id,
            "toolCallId": id,
            "content": content,
            "role": "tool",
        });
        output.push(of_sub_agent(result, sub));
    }

    /// The id of a call as clients see it; `None` if this run has no such call.
    fn shown_call(&self, call_id: &str, attempt: u64) -> Option<String> {
        let id = shown_call_id(call_id, attempt);
        if attempt > 0 || self.calls.contains_key(&id) {
            return self.calls.contains_key(&id).then_some(id);
        }
        // The attempt is not known: the last one.
        let is_it = |id: &&String| {
            let rest = id.strip_prefix(call_id).and_then(|rest| rest.strip_prefix('.'));
            rest.is_some_and(|attempt| attempt.parse::<u64>().is_ok())
        };
        self.call_ids.iter().rev().find(is_it).cloned()
    }

    fn sub_agent(&mut self, event_id: i64, told: &SubAgent, output: &mut Output) {
        let Some(parent) = self.shown_call(&told.parent_call_id, told.attempt) else { return };
        let (id, payload) = (&*told.sub_agent, &told.payload);
        if self.version == Version::Zero {
            let value = json!({
                "parentCallId": parent,
                "subAgent": id,
                "event": told.event,
                "payload": payload,
            });
            return output.custom("sub_agent", value);
        }
        match self.subs.get(id) {
            Some((Sub::Closed, _)) => return,
            Some((Sub::Open, _)) => {}
            None => {
                output.push(sub_agent_started(id, &parent));
                let ended = self.calls.get(&parent).and_then(|call| call.ended.clone());
                let sub = if ended.is_some() { Sub::Closed } else { Sub::Open };
                self.subs.insert(id.to_owned(), (sub, parent));
                // All that it did is told after the result of its call.
                match ended {
                    Some(Ok(())) => return output.push(sub_agent_finished(id, None)),
                    Some(Err(why)) => return output.push(sub_agent_failed(id, &why, "run_failed")),
                    None => {}
                }
            }
        }
        let text = |key: &str| payload[key].as_str().unwrap_or_default().to_owned();
        let custom = |name: &str, value: Value| {
            let custom = json!({ "type": "CUSTOM", "name": format!("thread.{name}"), "value": value });
            of_sub_agent(custom, Some(id))
        };
        // Its calls are told apart from those of others by its own id.
        let call_id = format!("{id}/{}", text("call_id"));
        let ending = match &*told.event {
            "tool_call" => {
                let arguments = payload["arguments"].clone();
                let call = ToolCall::new(call_id.clone(), text("name"), arguments);
                self.tool_call(&call_id, &call, false, Some(id), output);
                return;
            }
            "tool_result" => {
                let outcome = match &payload["error"] {
                    Value::Null => Ok(payload["result"].clone()),
                    Value::String(error) => Err(error.clone()),
                    error => Err(error.to_string()),
                };
                let result = ToolResult::new(call_id.clone(), text("name"), outcome);
                return self.tool_result(&call_id, &result, &format!("result_{event_id}"), Some(id), output);
            }
            "status" => return output.push(custom("status", json!({ "status": payload }))),
            "error" if payload["retryable"] == true => {
                return output.push(custom("attempt_failed", json!({ "message": text("error") })));
            }
            "final" => sub_agent_finished(id, Some(&payload["content"])),
            "error" => sub_agent_failed(id, &text("error"), "run_failed"),
            "cancelled" => sub_agent_failed(id, &text("message"), "cancelled"),
            _ => return,
        };
        output.push(ending);
        if let Some((sub, _)) = self.subs.get_mut(id) {
            *sub = Sub::Closed;
        }
    }

    /// Closes the sub-agent whose call has its result: what it did last may be told later.
    fn close_sub_agents_of(&mut self, call_id: &str, result: &ToolResult, output: &mut Output) {
        for (id, (sub, parent)) in &mut self.subs {
            if *sub == Sub::Closed || parent != call_id {
                continue;
            }
            *sub = Sub::Closed;
            output.push(match &result.outcome {
                Ok(result) => sub_agent_finished(id, Some(result)),
                Err(why) => sub_agent_failed(id, why, "run_failed"),
            });
        }
    }

    /// Closes the sub-agents of an attempt that is over.
    fn fail_sub_agents(&mut self, why: &str, code: &str, output: &mut Output) {
        for (id, (sub, _)) in &mut self.subs {
            if std::mem::replace(sub, Sub::Closed) == Sub::Open {
                output.push(sub_agent_failed(id, why, code));
            }
        }
    }

    fn state_delta(&mut self, delta: &Value, output: &mut Output) {
        let applied = serde_json::from_value::<json_patch::Patch>(delta.clone())
            .map_err(|e| e.to_string())
            .and_then(|patch| json_patch::patch(&mut self.state, &patch).map_err(|e| e.to_string()));
        match applied {
            Ok(()) => {
                self.state_changed = true;
                output.push(json!({ "type": "STATE_DELTA", "delta": delta }));
            }
            // It would fail at the client, too.
            Err(e) => output.custom("unsupported", json!({ "field": "state_delta", "reason": e })),
        }
    }

    /// Undoes the changes of an attempt that failed.
    fn restore_state(&mut self, output: &mut Output) {
        if std::mem::take(&mut self.state_changed) {
            self.state = self.initial_state();
            output.push(json!({ "type": "STATE_SNAPSHOT", "snapshot": self.state }));
        }
    }

    /// Ends the stream with its run.
    fn end(&mut self, stored: &SessionEvent, output: &mut Output) {
        let mut tokens = None;
        let outcome = match &stored.record.entry {
            Entry::Error { error, .. } => {
                self.close(output);
                self.fail_sub_agents(error, "run_failed", output);
                return output.push(json!({ "type": "RUN_ERROR", "message": error, "code": "run_failed" }));
            }
            Entry::Cancelled { why, .. } => {
                output.custom("cancelled", json!({ "message": why }));
                Outcome::Cancelled(why.clone())
            }
            Entry::Answer { answer, .. } => {
                tokens = answer.total_tokens;
                let is_streamed = self.streamed.matches(&answer.content);
                let parts = parts_of(&answer.content).filter(|_| !is_streamed).unwrap_or_default();
                let text = match parts.is_empty() {
                    true => answer.content.clone(),
                    false => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
                };
                if !text.is_empty() && !self.streamed.matches(&text) {
                    self.close(output);
                    // It was not streamed, or differs from what was streamed.
                    self.text(stored.id(), answer.message_id.as_deref(), &text, output);
                }
                // A message of an assistant is text.
                if parts.iter().any(|part| part["type"] != "text") {
                    output.custom("parts", json!({ "messageId": answer.message_id, "parts": parts }));
                }
                Outcome::Success
            }
            _ => Outcome::Success,
        };
        if let Some(bytes) = stored.large {
            output.custom("large", json!({ "bytes": bytes, "url": (self.content_url)(stored.id()) }));
        }
        self.finish(outcome, tokens, output);
    }

    /// Ends the stream, with the tokens that the run has used, if they are known.
    fn finish(&mut self, outcome: Outcome, tokens: Option<u64>, output: &mut Output) {
        self.close(output);
        if let Outcome::Cancelled(why) = &outcome {
            self.fail_sub_agents(why, "cancelled", output);
        }
        for (id, _) in self.subs.iter().filter(|(_, (sub, _))| *sub == Sub::Open) {
            let outcome = json!({ "type": "suspended" });
            output.push(json!({ "type": "SUBAGENT_FINISHED", "subagentRunId": id, "outcome": outcome }));
        }
        let mut finished =
            json!({ "type": "RUN_FINISHED", "threadId": self.thread_id, "runId": self.run_id });
        let outcome = match (outcome, self.version) {
            (_, Version::Zero) | (Outcome::Cancelled(_), Version::Early) => None,
            (Outcome::Cancelled(_), _) => Some(json!({ "type": "cancelled" })),
            (Outcome::Interrupt(interrupts), _) => {
                Some(json!({ "type": "interrupt", "interrupts": interrupts }))
            }
            (Outcome::Pending(calls), Version::One) => {
                Some(json!({ "type": "success", "pendingToolCallIds": calls }))
            }
            (Outcome::Success | Outcome::Pending(_), _) => Some(json!({ "type": "success" })),
        };
        if let Some(outcome) = outcome {
            finished["outcome"] = outcome;
        }
        if let Some(tokens) = tokens.filter(|_| self.version != Version::Zero) {
            finished["usage"] = json!([{ "totalTokens": tokens }]);
        }
        output.push(finished);
    }

    fn text(&mut self, event_id: i64, given: Option<&str>, text: &str, output: &mut Output) {
        if !matches!(self.open, Open::Text(_)) {
            self.close(output);
            let id = match given.filter(|_| !self.opened_text) {
                Some(id) => id.to_owned(),
                None => format!("text_{event_id}"),
            };
            self.opened_text = true;
            output.push(json!({ "type": "TEXT_MESSAGE_START", "messageId": id, "role": "assistant" }));
            self.open = Open::Text(id);
        }
        if let Open::Text(id) = &self.open {
            output.push(json!({ "type": "TEXT_MESSAGE_CONTENT", "messageId": id, "delta": text }));
        }
    }

    fn reasoning(&mut self, event_id: i64, text: &str, output: &mut Output) {
        let zero = self.version == Version::Zero;
        if !matches!(self.open, Open::Reasoning(_)) {
            self.close(output);
            let id = format!("reasoning_{event_id}");
            if zero {
                output.push(json!({ "type": "THINKING_START" }));
                output.push(json!({ "type": "THINKING_TEXT_MESSAGE_START" }));
            } else {
                output.push(json!({ "type": "REASONING_START", "messageId": id }));
                output
                    .push(json!({ "type": "REASONING_MESSAGE_START", "messageId": id, "role": "reasoning" }));
            }
            self.open = Open::Reasoning(id);
        }
        if let Open::Reasoning(id) = &self.open {
            output.push(match zero {
                true => json!({ "type": "THINKING_TEXT_MESSAGE_CONTENT", "delta": text }),
                false => json!({ "type": "REASONING_MESSAGE_CONTENT", "messageId": id, "delta": text }),
            });
        }
    }

    /// Closes the open message, if there is one.
    fn close(&mut self, output: &mut Output) {
        match std::mem::replace(&mut self.open, Open::Nothing) {
            Open::Nothing => {}
            Open::Text(id) => output.push(json!({ "type": "TEXT_MESSAGE_END", "messageId": id })),
            Open::Reasoning(_) if self.version == Version::Zero => {
                output.push(json!({ "type": "THINKING_TEXT_MESSAGE_END" }));
                output.push(json!({ "type": "THINKING_END" }));
            }
            Open::Reasoning(id) => {
                output.push(json!({ "type": "REASONING_MESSAGE_END", "messageId": id }));
                output.push(json!({ "type": "REASONING_END", "messageId": id }));
            }
        }
    }
}

/// What an answer to a request for permission looks like, as a JSON Schema.
fn response_schema(asked: &Permission) -> Value {
    let ids: Vec<&str> = asked.choices.iter().map(|choice| &*choice.id).collect();
    let named: Vec<Value> =
        asked.choices.iter().map(|choice| json!({ "const": choice.id, "title": choice.name })).collect();
    json!({
        "type": "object",
        "properties": { "choice": { "type": "string", "enum": ids, "oneOf": named } },
        "required": ["choice"],
    })
}

/// An event that is a sub-agent's, if one is given.
fn of_sub_agent(mut event: Value, sub: Option<&str>) -> Value {
    if let Some(sub) = sub {
        event["subagentRunId"] = sub.into();
    }
    event
}

fn sub_agent_started(id: &str, call_id: &str) -> Value {
    // The id is the name and 16 digits.
    let name = id.rsplit_once('-').map_or(id, |(name, _)| name);
    json!({ "type": "SUBAGENT_STARTED", "subagentRunId": id, "name": name, "parentToolCallId": call_id })
}

fn sub_agent_finished(id: &str, result: Option<&Value>) -> Value {
    let outcome = json!({ "type": "success" });
    let mut finished = json!({ "type": "SUBAGENT_FINISHED", "subagentRunId": id, "outcome": outcome });
    if let Some(result) = result.filter(|result| !result.is_null()) {
        finished["result"] = result.clone();
    }
    finished
}

fn sub_agent_failed(id: &str, why: &str, code: &str) -> Value {
    json!({ "type": "SUBAGENT_ERROR", "subagentRunId": id, "message": why, "code": code })
}

fn millis(time: time::Time) -> i64 {
    time.timestamp_millis()
}

/// A field's name in the client's input.
pub fn camel(field: &str) -> &str {
    if field == ClientInput::FORWARDED_PROPS { "forwardedProps" } else { field }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thread_conversation::{Answer, Message, ToolCall, ToolResult};

    fn types(version: Version, events: &[thread::NewEvent<'_>]) -> (Vec<String>, Run) {
        let point = (Start::of_message(1), 0);
        let url = |id: i64| id.to_string();
        let pending = PendingInput::default();
        let mut translator = Translator::new(version, "t".into(), "r".into(), point, pending, url);
        let (mut types, mut last) = (Vec::new(), Run::GoesOn);
        for (id, event) in (1..).zip(events) {
            let (output, run) = translator.feed(&SessionEvent::stored(id, event));
            types.extend(output.iter().map(|event| event["type"].as_str().unwrap().to_owned()));
            last = run;
        }
        (types, last)
    }

    fn run() -> thread_conversation::Run {
        thread_conversation::Run { run_id: "r".into(), reply_to: 1, attempt: 1, is_own: false }
    }

    fn message() -> thread::NewEvent<'static> {
        let message = Message { run_id: Some("r".into()), ..Message::text("hello") };
        message.event("external:web:main:dm:default:ada").unwrap()
    }

    #[test]
    fn each_message_is_begun_and_ended_around_what_comes_between() {
        let call = ToolCall::new("c", "ls", Value::Null);
        let result = ToolResult::new("c", "ls", Ok("a".into()));
        let answer = Answer { content: "abc".into(), ..Answer::default() };
        let events = [
            message(),
            run().started(),
            run().thinking("m", "hm"),
            run().token("m", "a"),
            run().token("m", "b"),
            run().tool_call(&call),
            run().tool_result(&result),
            run().token("m", "c"),
            run().answer(&answer),
        ];
        let (output, last) = types(Version::One, &events);
        let expected = "RUN_STARTED REASONING_START REASONING_MESSAGE_START REASONING_MESSAGE_CONTENT \
            REASONING_MESSAGE_END REASONING_END TEXT_MESSAGE_START TEXT_MESSAGE_CONTENT TEXT_MESSAGE_CONTENT \
            TEXT_MESSAGE_END TOOL_CALL_START TOOL_CALL_ARGS TOOL_CALL_END TOOL_CALL_RESULT TEXT_MESSAGE_START \
            TEXT_MESSAGE_CONTENT TEXT_MESSAGE_END RUN_FINISHED";
        assert_eq!(
            (output.join(" "), last),
            (expected.split_whitespace().collect::<Vec<_>>().join(" "), Run::Ended)
        );
        let (output, _) = types(Version::Zero, &events);
        assert!(
            output.join(" ").contains("THINKING_TEXT_MESSAGE_END THINKING_END") && output.len() == 18,
            "{output:?}"
        );
    }

    #[test]
    fn an_answer_that_did_not_stream_is_sent_whole() {
        let answer = Answer { content: "other".into(), ..Answer::default() };
        let (output, _) =
            types(Version::One, &[message(), run().started(), run().token("m", "a"), run().answer(&answer)]);
        assert_eq!(
            output[1..].join(" "),
            "TEXT_MESSAGE_START TEXT_MESSAGE_CONTENT TEXT_MESSAGE_END TEXT_MESSAGE_START TEXT_MESSAGE_CONTENT \
             TEXT_MESSAGE_END RUN_FINISHED"
        );
    }

    #[test]
    fn a_failed_attempt_goes_on_and_a_failed_run_is_an_error() {
        let events = [
            message(),
            run().started(),
            run().token("m", "a"),
            run().attempt_failed("killed", None),
            thread_conversation::Run { attempt: 2, ..run() }.started(),
            run().token("m2", "b"),
            run().failed("no", ""),
        ];
        let (output, last) = types(Version::One, &events);
        assert_eq!(
            output.join(" "),
            "RUN_STARTED TEXT_MESSAGE_START TEXT_MESSAGE_CONTENT TEXT_MESSAGE_END CUSTOM CUSTOM TEXT_MESSAGE_START \
             TEXT_MESSAGE_CONTENT TEXT_MESSAGE_END RUN_ERROR"
        );
        assert_eq!(last, Run::Ended);
    }
}
