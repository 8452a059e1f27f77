//! An agent that speaks the Agent Client Protocol, version 1, on stdio: JSON-RPC, one message per line.
//!
//! A new process is sent `initialize` and then given a session: the one recorded in the thread if the agent
//! can resume or load it, else a new one, whose first prompt begins with the transcript. After that each message is a
//! prompt. The agent's requests to an editor (files, terminals) are refused.
//!
//! An agent may continue after its answer: it has calls in progress, and reports when they are done.

mod blocks;
mod call;
mod options;
mod requests;
mod servers;

use std::collections::BTreeMap;
use std::path::PathBuf;

use agent_client_protocol_schema::ProtocolVersion;
use agent_client_protocol_schema::v1::{
    AGENT_METHOD_NAMES, CLIENT_METHOD_NAMES, CancelNotification, Implementation, InitializeRequest,
    PROTOCOL_LEVEL_METHOD_NAMES, PromptCapabilities, RequestPermissionOutcome, RequestPermissionRequest,
    RequestPermissionResponse, SelectedPermissionOutcome, SessionNotification, SessionUpdate, ToolCallStatus,
    ToolCallUpdate,
};
use serde_json::{Value, json};

use self::blocks::{part_of, text_of};
use self::call::{Call, known, reported, word_of};
use self::options::Options;
use self::requests::Request;
pub use self::servers::{EDITORS_SERVERS, Servers, ToolServer};
use super::{Done, Output, Prompt, Protocol, send};
use crate::lines::Lines;
use thread_conversation::{
    AgentOptions, Choice, ClientInput, Cost, OptionChosen, Permission, Spent, ToolCall, ToolResult, Usage,
};

/// How many bytes an agent may print that are not messages, such as notices of `npx`.
const NOISE: usize = 64 * 1024;

/// The longest list of commands, or of options, that is handed on, in bytes.
const LONGEST_COMMANDS: usize = 64 * 1024;

/// The names that agents give the id of their own session, where it is another.
const SESSION_ID: [&str; 2] = ["sessionId", "session_id"];

#[derive(Debug, Default)]
pub struct Acp {
    /// Where the agent works; absolute.
    cwd: PathBuf,
    servers: Servers,
    options: Options,
    lines: Lines,
    /// How many bytes it has printed that are not messages.
    noise: usize,
    last_id: u64,
    /// Requests without a response yet, by their ids.
    requests: BTreeMap<u64, Request>,
    /// The session of this process, once the agent has been given what was chosen for it.
    session: Option<String>,
    /// The session until then, and whether it knows nothing of the conversation.
    opened: Option<(String, bool)>,
    /// The session that the agent has now, if it is another: it has begun one itself. Prompts still name the first, by
    /// which the agent knows this client; another process loads this one.
    newest: Option<String>,
    /// The prompt that waits for the session, or for the answer to a choice.
    waiting: Option<Prompt>,
    /// Why a choice was refused, while others are not answered yet.
    refused: Option<String>,
    can_load: bool,
    can_resume: bool,
    /// It takes a prompt while it works on another (`promptQueueing`).
    can_queue: bool,
    /// What prompts may contain besides text and links.
    takes: PromptCapabilities,
    /// The message that the agent is saying in this turn, if it gives its messages ids.
    message: Option<String>,
    /// This prompt's calls, and earlier ones that are still in progress, by their ids.
    calls: BTreeMap<String, Call>,
    /// How many tasks it was given to do in the background, and has not spoken of yet.
    tasks: u32,
    /// What its session has cost so far, as the agent says, and how much of that was passed on.
    cost: Cost,
    told: f64,
    /// The agent's open requests for permission: their JSON-RPC ids, by these ids as text.
    permissions: BTreeMap<String, Value>,
}

impl Acp {
    /// Creates the protocol for an agent that works in this directory, and has these servers' tools.
    pub fn new(cwd: PathBuf, servers: Servers) -> Acp {
        Acp { cwd, servers, ..Acp::default() }
    }

    fn message(&mut self, message: &Value, out: &mut Vec<u8>) -> Result<Vec<Output>, Done> {
        let id = message.get("id").filter(|id| !id.is_null());
        match (message.get("method").and_then(Value::as_str), id) {
            (Some(method), Some(id)) => Ok(self.handle_request(method, id, message, out)),
            (Some(method), None) if method == PROTOCOL_LEVEL_METHOD_NAMES.cancel_request => {
                Ok(self.withdrawn(&message["params"]["requestId"], out))
            }
            (Some(method), None) => Ok(self.handle_notification(method, message)),
            (None, Some(id)) => {
                let request = id.as_u64().and_then(|id| self.requests.remove(&id));
                let known = id.as_u64().zip(request);
                known.map_or(Ok(Vec::new()), |known| self.handle_response(known, message, out))
            }
            (None, None) => Ok(Vec::new()),
        }
    }

    /// Handles a notification.
    fn handle_notification(&mut self, method: &str, message: &Value) -> Vec<Output> {
        let update = &message["params"]["update"];
        if update["sessionUpdate"] == "usage_update" {
            self.costs(&update["cost"]);
            return Vec::new();
        }
        if update["sessionUpdate"] == "available_commands_update" {
            return commands(&update["availableCommands"]).into_iter().collect();
        }
        if self.options.update(update) {
            return self.says_options(None);
        }
        // While a session is loaded, the agent repeats its history.
        if method != CLIENT_METHOD_NAMES.session_update || self.session.is_none() {
            return Vec::new();
        }
        let params = &message["params"];
        let id = [&params["_meta"], &params["update"]["_meta"]]
            .into_iter()
            .find_map(|meta| reported(meta.as_object()?, SESSION_ID));
        self.newest =
            id.or_else(|| params["sessionId"].as_str().map(str::to_owned)).or_else(|| self.newest.take());
        // Unknown kinds of updates are ignored.
        let Ok(update) = serde_json::from_value::<SessionNotification>(params.clone()) else {
            return Vec::new();
        };
        let mut output = self.handle_update(update.update);
        // In a turn, only the session in which it ends counts: it may have others for a while.
        if !self.is_open(Request::Prompt) && !output.is_empty() {
            output.extend(self.newest_session());
        }
        output
    }

    /// Handles what the session has cost so far.
    fn costs(&mut self, cost: &Value) {
        let cost = Cost::reported(cost);
        if cost.amount <= 0.0 {
            return;
        }
        // Another session counts from nothing; one that is loaded has cost that before.
        if self.session.is_none() {
            self.told = cost.amount;
        } else if cost.amount < self.told {
            self.told = 0.0;
        }
        self.cost = cost;
    }

    /// What was taken by a turn, and what has been paid since the last one.
    fn used(&mut self, usage: &Value) -> Option<Output> {
        let cost = Cost { amount: (self.cost.amount - self.told).max(0.0), ..self.cost.clone() };
        self.told = self.cost.amount;
        let spent = Spent { usage: Usage::reported(usage), cost, ..Spent::default() };
        (!spent.is_nothing()).then_some(Output::Used(spent))
    }

    fn handle_update(&mut self, update: SessionUpdate) -> Vec<Output> {
        match update {
            SessionUpdate::AgentMessageChunk(chunk) => {
                let said = match part_of(&chunk.content) {
                    Some(part) => Output::Part(part),
                    None => Output::Token(text_of(&chunk.content)),
                };
                // The messages of a turn are one answer.
                let id = chunk.message_id.map(|id| id.to_string());
                let is_next = self.message.is_some() && id.is_some() && self.message != id;
                self.message = id.or_else(|| self.message.take());
                is_next.then(|| Output::Token("\n\n".to_owned())).into_iter().chain([said]).collect()
            }
            SessionUpdate::AgentThoughtChunk(chunk) => vec![Output::Thinking(text_of(&chunk.content))],
            SessionUpdate::Plan(plan) => {
                vec![Output::Plan(serde_json::to_value(plan.entries).unwrap_or_default())]
            }
            SessionUpdate::ToolCall(call) => {
                // Agents use ids again.
                let id = call.tool_call_id.to_string();
                if self.calls.get(&id).is_some_and(|known| known.past) {
                    self.calls.remove(&id);
                }
                self.call(ToolCallUpdate::from(call))
            }
            SessionUpdate::ToolCallUpdate(call) => self.call(call),
            _ => Vec::new(),
        }
    }

    /// Handles the beginning, progress or end of a call. It is reported once its details are complete or it
    /// begins, again whenever they change, and has one result.
    fn call(&mut self, update: ToolCallUpdate) -> Vec<Output> {
        let mut fields = update.fields;
        let call = known(&mut self.calls, &update.tool_call_id);
        if call.finished {
            return Vec::new();
        }
        call.update(&mut fields, update.meta.as_ref());
        let mut output = Vec::new();
        let ends = matches!(fields.status, Some(ToolCallStatus::Completed | ToolCallStatus::Failed));
        let begins = !matches!(fields.status, None | Some(ToolCallStatus::Pending));
        if call.past {
            // Its turn is over, and it was closed there: it belongs to the turn in which it ends.
            if !ends {
                return output;
            }
            call.reported = None;
        }
        if begins || call.reported.is_some() || call.is_complete() {
            output.extend(call.report());
        }
        let content = Some(call.text()).filter(|text| !text.is_empty());
        let outcome = match fields.status {
            Some(ToolCallStatus::Completed) => {
                Ok(fields.raw_output.or_else(|| content.map(Value::from)).unwrap_or_default())
            }
            Some(ToolCallStatus::Failed) => {
                let output = fields.raw_output.as_ref().map(Value::to_string);
                Err(content.or(output).unwrap_or_else(|| "the tool failed".to_owned()))
            }
            _ => return output,
        };
        call.finished = true;
        let ToolCall { call_id, name, .. } = call.call.clone();
        let content = call.shown(&outcome);
        let is_task = outcome.is_ok() && call.is_task();
        output.push(Output::Result(ToolResult { content, ..ToolResult::new(call_id, name, outcome) }));
        self.tasks += u32::from(is_task);
        output
    }

    /// The turn is over; calls that it began may continue.
    fn turn_done(&mut self) {
        self.message = None;
        self.calls.values_mut().for_each(|call| call.past = true);
    }

    /// What can be chosen now, once the agent has been given what was chosen before.
    fn says_options(&self, refused: Option<String>) -> Vec<Output> {
        let said = AgentOptions { options: self.options.all().to_vec(), refused };
        let fits = || serde_json::to_string(&said).is_ok_and(|text| text.len() <= LONGEST_COMMANDS);
        let is_told = self.session.is_some() && fits();
        is_told.then_some(Output::Options(said)).into_iter().collect()
    }

    /// Whether another process can resume the session.
    fn can_continue(&self) -> bool {
        self.can_load || self.can_resume
    }

    /// The session that another process should resume, if the agent has begun one itself.
    fn newest_session(&self) -> Option<Output> {
        self.newest.clone().filter(|_| self.can_continue()).map(Output::Session)
    }

    /// Handles a request by the agent.
    fn handle_request(
        &mut self,
        method: &str,
        id: &Value,
        message: &Value,
        out: &mut Vec<u8>,
    ) -> Vec<Output> {
        if method != CLIENT_METHOD_NAMES.session_request_permission {
            let error =
                json!({ "code": -32601, "message": format!("this client does not support {method}") });
            send(out, json!({ "jsonrpc": "2.0", "id": id, "error": error }));
            return Vec::new();
        }
        let Ok(asked) = serde_json::from_value::<RequestPermissionRequest>(message["params"].clone()) else {
            let error = json!({ "code": -32602, "message": "invalid parameters" });
            send(out, json!({ "jsonrpc": "2.0", "id": id, "error": error }));
            return Vec::new();
        };
        let request_id = id.to_string();
        self.permissions.insert(request_id.clone(), id.clone());
        if self.session.is_none() {
            self.answer_permission(&request_id, RequestPermissionOutcome::Cancelled, out);
            return Vec::new();
        }
        let call_id = asked.tool_call.tool_call_id.clone();
        let mut output = self.call(asked.tool_call);
        // People judge by what they see, so show everything known about the call.
        let call = known(&mut self.calls, &call_id);
        if std::mem::take(&mut call.past) {
            call.reported = None;
        }
        output.extend(call.report());
        let choices = asked.options.iter().map(|option| Choice {
            id: option.option_id.to_string(),
            name: option.name.clone(),
            kind: word_of(&option.kind).unwrap_or_default(),
        });
        output.push(Output::Asks(Permission {
            request_id,
            title: call.call.title.clone().unwrap_or_else(|| call.call.name.clone()),
            call_id: Some(call.call.call_id.clone()),
            arguments: call.call.arguments.clone(),
            details: call.text(),
            choices: choices.collect(),
            wait_ms: None,
        }));
        output
    }

    /// The agent takes back one of its requests, which still gets a response.
    fn withdrawn(&mut self, id: &Value, out: &mut Vec<u8>) -> Vec<Output> {
        let request_id = id.to_string();
        if !self.permissions.contains_key(&request_id) {
            return Vec::new();
        }
        self.answer_permission(&request_id, RequestPermissionOutcome::Cancelled, out);
        vec![Output::Withdrawn(request_id)]
    }

    fn answer_permission(&mut self, request_id: &str, outcome: RequestPermissionOutcome, out: &mut Vec<u8>) {
        if let Some(id) = self.permissions.remove(request_id) {
            let result = RequestPermissionResponse::new(outcome);
            send(out, json!({ "jsonrpc": "2.0", "id": id, "result": result }));
        }
    }

    fn read_line(&mut self, line: &[u8], out: &mut Vec<u8>) -> Vec<Output> {
        let message = serde_json::from_slice::<Value>(line).ok().filter(Value::is_object);
        let Some(message) = message else {
            self.noise += line.len();
            if self.noise <= NOISE {
                return Vec::new();
            }
            let shown: String = String::from_utf8_lossy(line).trim().chars().take(80).collect();
            let shown = self.servers.without_secrets(shown);
            let error = format!("the agent program does not speak the Agent Client Protocol: {shown}");
            return vec![Output::Done(Done::Broken(error))];
        };
        self.message(&message, out).unwrap_or_else(|done| vec![Output::Done(done)])
    }
}

/// The commands that an agent takes; `None` if they are no list, or too long a one.
fn commands(given: &Value) -> Option<Output> {
    let one = |command: &Value| {
        let mut told =
            json!({ "name": command["name"].as_str()?, "description": command["description"].as_str()? });
        if let Some(hint) = command["input"]["hint"].as_str() {
            told["hint"] = hint.into();
        }
        Some(told)
    };
    let all: Value = given.as_array()?.iter().filter_map(one).collect();
    (all.to_string().len() <= LONGEST_COMMANDS).then_some(Output::Commands(all))
}

impl Protocol for Acp {
    fn name(&self) -> &'static str {
        "acp"
    }

    fn speaks_unasked(&self) -> bool {
        true
    }

    fn works_in_background(&self) -> bool {
        self.tasks > 0 || self.calls.values().any(|call| call.past && !call.finished)
    }

    fn unasked_done(&mut self) {
        self.tasks = self.tasks.saturating_sub(1);
        self.turn_done();
    }

    fn takes(&self, field: &str) -> bool {
        field == ClientInput::CONTEXT
    }

    fn started(&mut self) {
        *self = Acp::new(std::mem::take(&mut self.cwd), std::mem::take(&mut self.servers));
        self.servers.read();
    }

    fn is_outdated(&self) -> bool {
        self.servers.have_changed()
    }

    fn prompt(&mut self, prompt: Prompt, out: &mut Vec<u8>) {
        // Whatever was chosen before applies to it.
        if self.session.is_some() && !self.is_open(Request::SetOption) {
            return self.send_prompt(&prompt, false, out);
        }
        // If an earlier attempt ended before there was a session, its handshake is still in progress.
        if self.requests.is_empty() {
            let us = Implementation::new("thread-agent", env!("CARGO_PKG_VERSION"));
            let params = InitializeRequest::new(ProtocolVersion::V1).client_info(us);
            self.request(Request::Initialize, AGENT_METHOD_NAMES.initialize, params, out);
        }
        self.waiting = Some(prompt);
    }

    fn takes_ahead(&self) -> bool {
        self.can_queue && self.session.is_some() && self.prompts().count() == 1
    }

    fn forget_ahead(&mut self) {
        let prompts: Vec<u64> = self.prompts().collect();
        match prompts[..] {
            [_, ahead, ..] => drop(self.requests.remove(&ahead)),
            // It waits until the agent has answered a choice.
            [_] => self.waiting = None,
            [] => {}
        }
    }

    fn read(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Vec<Output> {
        let mut output = Vec::new();
        for line in self.lines.push(bytes) {
            match line {
                Ok(line) => output.extend(self.read_line(&line, out)),
                Err(too_long) => output.push(Output::Done(Done::Broken(too_long.to_string()))),
            }
        }
        output
    }

    fn cancel(&mut self, out: &mut Vec<u8>) -> bool {
        let Some(session) = self.session.clone() else { return false };
        // It has not been given the prompt yet.
        if self.prompts().next().is_none() && self.waiting.take().is_some() {
            return false;
        }
        let params = CancelNotification::new(session);
        send(out, json!({ "jsonrpc": "2.0", "method": AGENT_METHOD_NAMES.session_cancel, "params": params }));
        let open: Vec<String> = self.permissions.keys().cloned().collect();
        for request_id in open {
            self.answer_permission(&request_id, RequestPermissionOutcome::Cancelled, out);
        }
        true
    }

    fn has_options(&self) -> bool {
        true
    }

    fn choose(&mut self, chosen: &OptionChosen, out: &mut Vec<u8>) {
        match (&self.session, &mut self.waiting) {
            (Some(_), _) => self.set_option(chosen, out),
            // It is given with the session.
            (None, Some(prompt)) => {
                prompt.chosen.retain(|before| before.id != chosen.id);
                prompt.chosen.push(chosen.clone());
            }
            (None, None) => {}
        }
    }

    fn permit(&mut self, request_id: &str, choice: Option<&str>, out: &mut Vec<u8>) {
        let outcome = match choice {
            Some(choice) => {
                RequestPermissionOutcome::Selected(SelectedPermissionOutcome::new(choice.to_owned()))
            }
            None => RequestPermissionOutcome::Cancelled,
        };
        self.answer_permission(request_id, outcome, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn option(id: &str, current: &str) -> Value {
        let options = json!([{ "value": "x", "name": "X" }, { "value": "y", "name": "Y" }]);
        json!({ "id": id, "name": id, "type": "select", "currentValue": current, "options": options })
    }

    #[test]
    fn of_several_choices_the_last_that_was_refused_is_said_once_all_are_answered() {
        for (refused, said) in [
            ([true, false], Some("one cannot be y: no")),
            ([false, true], Some("two cannot be y: no")),
            ([true, true], Some("two cannot be y: no")),
            ([false, false], None),
        ] {
            let mut acp = Acp::new(PathBuf::from("/"), Servers::default());
            acp.session = Some("s".to_owned());
            acp.options.are(&json!({ "configOptions": [option("one", "x"), option("two", "x")] }));
            let mut out = Vec::new();
            for id in ["one", "two"] {
                acp.choose(&OptionChosen { id: id.to_owned(), value: "y".to_owned() }, &mut out);
            }
            let sent: Vec<Value> = out
                .split(|byte| *byte == b'\n')
                .filter_map(|line| serde_json::from_slice(line).ok())
                .collect();
            assert_eq!(sent.len(), 2);
            let mut told = Vec::new();
            for (request, refused) in sent.iter().zip(refused) {
                let answer = match refused {
                    true => json!({ "id": request["id"], "error": { "code": 1, "message": "no" } }),
                    false => json!({ "id": request["id"], "result": {} }),
                };
                assert!(told.is_empty());
                told = acp.read(format!("{answer}\n").as_bytes(), &mut Vec::new());
            }
            let [Output::Options(told)] = &told[..] else { panic!("{told:?}") };
            let current: Vec<&str> = told.options.iter().map(|option| &*option.current).collect();
            assert_eq!(
                (current, told.refused.as_deref()),
                (refused.map(|no| if no { "x" } else { "y" }).into(), said)
            );
            // It is reported once.
            acp.choose(&OptionChosen { id: "one".to_owned(), value: "x".to_owned() }, &mut out);
            let answer = json!({ "id": acp.last_id, "result": {} });
            let told = acp.read(format!("{answer}\n").as_bytes(), &mut Vec::new());
            assert!(
                !matches!(&told[..], [Output::Options(AgentOptions { refused: Some(_), .. })]),
                "{told:?}"
            );
        }
    }
}
