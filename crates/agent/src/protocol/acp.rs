//! An agent that speaks the Agent Client Protocol, version 1, on stdio: JSON-RPC, one message per line.
//!
//! A new process is sent `initialize` and then given a session: the one recorded in the thread if the agent
//! can load it, else a new one, whose first prompt begins with the transcript. After that each message is a
//! prompt. The agent's requests to an editor (files, terminals) are refused.

mod blocks;

use std::collections::BTreeMap;
use std::path::PathBuf;

use agent_client_protocol_schema::ProtocolVersion;
use agent_client_protocol_schema::v1::{
    AGENT_METHOD_NAMES, CLIENT_METHOD_NAMES, CancelNotification, ContentBlock, EnvVariable, Implementation,
    InitializeRequest, InitializeResponse, LoadSessionRequest, McpServer, McpServerStdio, NewSessionRequest,
    NewSessionResponse, PermissionOptionKind, PromptCapabilities, PromptRequest, PromptResponse,
    RequestPermissionOutcome, RequestPermissionRequest, RequestPermissionResponse, SelectedPermissionOutcome,
    SessionNotification, SessionUpdate, StopReason, TextContent, ToolCallContent, ToolCallStatus,
    ToolCallUpdate,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use self::blocks::{blocks_of, part_of, text_of};
use super::{Done, Ended, Output, Prompt, Protocol};
use crate::conversation::{Choice, ClientInput, Permission, ToolCall, ToolResult};
use crate::transcript::as_text;

/// How many bytes an agent may print that are not messages, such as notices of `npx`.
const NOISE: usize = 64 * 1024;

/// The longest message, in bytes.
const LONGEST_LINE: usize = 64 * 1024 * 1024;

/// The kinds of requests that are sent to the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Request {
    Initialize,
    NewSession,
    LoadSession,
    Prompt,
}

/// What is known of a call. An agent may announce it before it knows its details.
#[derive(Debug, Default)]
struct Call {
    name: String,
    arguments: Value,
    /// What it shows, such as a change to a file; empty if nothing.
    content: String,
    /// The name and arguments that were reported.
    reported: Option<(String, Value)>,
    finished: bool,
}

impl Call {
    fn is_complete(&self) -> bool {
        let is_empty = self.arguments.is_null() || self.arguments.as_object().is_some_and(Map::is_empty);
        !self.name.is_empty() && !is_empty
    }

    /// Reports it, unless it was reported like this already.
    fn report(&mut self, call_id: &str) -> Option<Output> {
        let now = (self.name.clone(), self.arguments.clone());
        if self.reported.as_ref() == Some(&now) {
            return None;
        }
        let (name, arguments) = now.clone();
        self.reported = Some(now);
        Some(Output::Call(ToolCall { call_id: call_id.to_owned(), name, arguments }))
    }
}

/// A program that gives the agent tools, by the Model Context Protocol on its stdin and stdout.
#[derive(Debug, Clone)]
pub struct ToolServer {
    pub name: String,
    /// Absolute.
    pub program: PathBuf,
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
}

impl ToolServer {
    fn described(&self) -> McpServer {
        let variables = self.environment.iter().map(|(name, value)| EnvVariable::new(name, value));
        let server = McpServerStdio::new(&self.name, &self.program);
        McpServer::Stdio(server.args(self.arguments.clone()).env(variables.collect()))
    }
}

#[derive(Debug)]
pub struct Acp {
    /// Where the agent works; absolute.
    cwd: PathBuf,
    servers: Vec<ToolServer>,
    /// The beginning of an incomplete line.
    line: Vec<u8>,
    /// How many bytes it has printed that are not messages.
    noise: usize,
    last_id: u64,
    /// Requests without a response yet, by their ids.
    requests: BTreeMap<u64, Request>,
    /// The session of this process.
    session: Option<String>,
    /// The prompt that waits for the session.
    waiting: Option<Prompt>,
    can_load: bool,
    /// What prompts may contain besides text and links.
    takes: PromptCapabilities,
    /// This prompt's calls, by their ids.
    calls: BTreeMap<String, Call>,
    /// The agent's open requests for permission: their JSON-RPC ids, by these ids as text.
    permissions: BTreeMap<String, Value>,
}

impl Acp {
    /// Creates the protocol for an agent that works in this directory, and has these servers' tools.
    pub fn new(cwd: PathBuf, servers: Vec<ToolServer>) -> Acp {
        Acp {
            cwd,
            servers,
            line: Vec::new(),
            noise: 0,
            last_id: 0,
            requests: BTreeMap::new(),
            session: None,
            waiting: None,
            can_load: false,
            takes: PromptCapabilities::default(),
            calls: BTreeMap::new(),
            permissions: BTreeMap::new(),
        }
    }

    fn request(&mut self, request: Request, method: &str, params: impl Serialize, out: &mut Vec<u8>) {
        self.last_id += 1;
        self.requests.insert(self.last_id, request);
        send(out, json!({ "jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params }));
    }

    fn is_open(&self, request: Request) -> bool {
        self.requests.values().any(|open| *open == request)
    }

    fn send_prompt(&mut self, prompt: &Prompt, with_transcript: bool, out: &mut Vec<u8>) {
        self.calls.clear();
        let mut blocks = blocks_of(&prompt.content, &prompt.attachments, &self.takes);
        if let Some(context) = prompt.input.get(ClientInput::CONTEXT) {
            blocks.insert(0, ContentBlock::Text(TextContent::new(context_text(context))));
        }
        if with_transcript && !prompt.transcript.is_empty() {
            blocks.insert(0, ContentBlock::Text(TextContent::new(as_text(&prompt.transcript))));
        }
        let session = self.session.clone().unwrap_or_default();
        self.request(
            Request::Prompt,
            AGENT_METHOD_NAMES.session_prompt,
            PromptRequest::new(session, blocks),
            out,
        );
    }

    fn servers(&self) -> Vec<McpServer> {
        self.servers.iter().map(ToolServer::described).collect()
    }

    fn new_session(&mut self, out: &mut Vec<u8>) {
        let params = NewSessionRequest::new(self.cwd.clone()).mcp_servers(self.servers());
        self.request(Request::NewSession, AGENT_METHOD_NAMES.session_new, params, out);
    }

    fn message(&mut self, message: &Value, out: &mut Vec<u8>) -> Result<Vec<Output>, Done> {
        let id = message.get("id").filter(|id| !id.is_null());
        match (message.get("method").and_then(Value::as_str), id) {
            (Some(method), Some(id)) => Ok(self.handle_request(method, id, message, out)),
            (Some(method), None) => Ok(self.handle_notification(method, message)),
            (None, Some(id)) => {
                let request = id.as_u64().and_then(|id| self.requests.remove(&id));
                request.map_or(Ok(Vec::new()), |request| self.handle_response(request, message, out))
            }
            (None, None) => Ok(Vec::new()),
        }
    }

    /// Handles the response to one of our requests.
    fn handle_response(
        &mut self,
        request: Request,
        message: &Value,
        out: &mut Vec<u8>,
    ) -> Result<Vec<Output>, Done> {
        if let Some(error) = message.get("error") {
            // The agent may no longer have the session.
            if request == Request::LoadSession {
                self.new_session(out);
                return Ok(Vec::new());
            }
            let error = format!("the agent answered with an error: {}", error_text(error));
            // Errors before the prompt, such as a missing login, would only be repeated.
            return Err(Done::Failed { error, retryable: request == Request::Prompt });
        }
        let result = &message["result"];
        match request {
            Request::Initialize => {
                let response: InitializeResponse = parsed(result)?;
                if response.protocol_version != ProtocolVersion::V1 {
                    let version = response.protocol_version.as_u16();
                    let error = format!(
                        "the agent speaks version {version} of the Agent Client Protocol; this is version 1"
                    );
                    return Err(Done::Failed { error, retryable: false });
                }
                self.can_load = response.agent_capabilities.load_session;
                self.takes = response.agent_capabilities.prompt_capabilities;
                let old = self.waiting.as_ref().and_then(|prompt| prompt.session.clone());
                match old.filter(|_| self.can_load) {
                    Some(session) => {
                        let params = LoadSessionRequest::new(session, self.cwd.clone());
                        let params = params.mcp_servers(self.servers());
                        self.request(Request::LoadSession, AGENT_METHOD_NAMES.session_load, params, out);
                    }
                    None => self.new_session(out),
                }
                Ok(Vec::new())
            }
            Request::NewSession => {
                let session: NewSessionResponse = parsed(result)?;
                let id = session.session_id.to_string();
                self.session = Some(id.clone());
                if let Some(prompt) = self.waiting.take() {
                    self.send_prompt(&prompt, true, out);
                }
                // A session that cannot be loaded is not worth recording.
                Ok(if self.can_load { vec![Output::Session(id)] } else { Vec::new() })
            }
            Request::LoadSession => {
                if let Some(prompt) = self.waiting.take() {
                    self.session = prompt.session.clone();
                    self.send_prompt(&prompt, false, out);
                }
                Ok(Vec::new())
            }
            Request::Prompt => {
                let done = prompt_done(result)?;
                // Calls that never got complete, and never began.
                let calls = self.calls.iter_mut().filter(|(_, call)| call.reported.is_none());
                let mut output: Vec<Output> =
                    calls.filter_map(|(call_id, call)| call.report(call_id)).collect();
                output.push(Output::Done(done));
                Ok(output)
            }
        }
    }

    /// Handles a notification.
    fn handle_notification(&mut self, method: &str, message: &Value) -> Vec<Output> {
        // While a session is loaded, the agent repeats its history.
        if method != CLIENT_METHOD_NAMES.session_update || !self.is_open(Request::Prompt) {
            return Vec::new();
        }
        // Unknown kinds of updates are ignored.
        let Ok(update) = serde_json::from_value::<SessionNotification>(message["params"].clone()) else {
            return Vec::new();
        };
        match update.update {
            SessionUpdate::AgentMessageChunk(chunk) => vec![match part_of(&chunk.content) {
                Some(part) => Output::Part(part),
                None => Output::Token(text_of(&chunk.content)),
            }],
            SessionUpdate::AgentThoughtChunk(chunk) => vec![Output::Thinking(text_of(&chunk.content))],
            SessionUpdate::Plan(plan) => {
                vec![Output::Plan(serde_json::to_value(plan.entries).unwrap_or_default())]
            }
            SessionUpdate::ToolCall(call) => self.call(ToolCallUpdate::from(call)),
            SessionUpdate::ToolCallUpdate(call) => self.call(call),
            _ => Vec::new(),
        }
    }

    /// Handles the beginning, progress or end of a call. It is reported once its details are complete or it
    /// begins, again whenever they change, and has one result.
    fn call(&mut self, update: ToolCallUpdate) -> Vec<Output> {
        let call_id = update.tool_call_id.to_string();
        let fields = update.fields;
        let call = self.calls.entry(call_id.clone()).or_default();
        if call.finished {
            return Vec::new();
        }
        if let Some(name) = fields.title.or(fields.name) {
            call.name = name;
        }
        if let Some(arguments) = fields.raw_input {
            call.arguments = arguments;
        }
        if let Some(content) = fields.content.filter(|content| !content.is_empty()) {
            call.content = content_text(&content);
        }
        let mut output = Vec::new();
        let begins = !matches!(fields.status, None | Some(ToolCallStatus::Pending));
        if begins || call.reported.is_some() || call.is_complete() {
            output.extend(call.report(&call_id));
        }
        let content = Some(call.content.clone()).filter(|text| !text.is_empty());
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
        output.push(Output::Result(ToolResult { call_id, name: call.name.clone(), outcome }));
        output
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
        if !self.is_open(Request::Prompt) {
            self.answer_permission(&request_id, RequestPermissionOutcome::Cancelled, out);
            return Vec::new();
        }
        let call_id = asked.tool_call.tool_call_id.to_string();
        let mut output = self.call(asked.tool_call);
        // What people are to judge is what they see: all that is known of the call.
        let call = self.calls.entry(call_id.clone()).or_default();
        output.extend(call.report(&call_id));
        let choices = asked.options.iter().map(|option| Choice {
            id: option.option_id.to_string(),
            name: option.name.clone(),
            kind: kind_of(option.kind).to_owned(),
        });
        output.push(Output::Asks(Permission {
            request_id,
            title: call.name.clone(),
            call_id: Some(call_id),
            arguments: call.arguments.clone(),
            details: call.content.clone(),
            choices: choices.collect(),
        }));
        output
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
            let error = format!("the agent program does not speak the Agent Client Protocol: {shown}");
            return vec![Output::Done(Done::Broken(error))];
        };
        self.message(&message, out).unwrap_or_else(|done| vec![Output::Done(done)])
    }
}

impl Protocol for Acp {
    fn name(&self) -> &'static str {
        "acp"
    }

    fn keeps_process(&self) -> bool {
        true
    }

    fn takes(&self, field: &str) -> bool {
        field == ClientInput::CONTEXT
    }

    fn started(&mut self) {
        *self = Acp::new(std::mem::take(&mut self.cwd), std::mem::take(&mut self.servers));
    }

    fn prompt(&mut self, prompt: Prompt, out: &mut Vec<u8>) {
        if self.session.is_some() {
            return self.send_prompt(&prompt, false, out);
        }
        // If an earlier attempt ended before there was a session, its handshake still goes on.
        if self.requests.is_empty() {
            let us = Implementation::new("thread-agent", env!("CARGO_PKG_VERSION"));
            let params = InitializeRequest::new(ProtocolVersion::V1).client_info(us);
            self.request(Request::Initialize, AGENT_METHOD_NAMES.initialize, params, out);
        }
        self.waiting = Some(prompt);
    }

    fn read(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Vec<Output> {
        let mut output = Vec::new();
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.line.extend_from_slice(piece);
            let whole = self.line.ends_with(b"\n");
            if whole || self.line.len() > LONGEST_LINE {
                let line = std::mem::take(&mut self.line);
                output.extend(self.read_line(&line, out));
            }
        }
        output
    }

    fn ended(&mut self, ended: Ended) -> Vec<Output> {
        vec![Output::Done(Done::Failed { error: ended.to_string(), retryable: true })]
    }

    fn cancel(&mut self, out: &mut Vec<u8>) -> bool {
        let (Some(session), true) = (self.session.clone(), self.is_open(Request::Prompt)) else {
            return false;
        };
        let params = CancelNotification::new(session);
        send(out, json!({ "jsonrpc": "2.0", "method": AGENT_METHOD_NAMES.session_cancel, "params": params }));
        let open: Vec<String> = self.permissions.keys().cloned().collect();
        for request_id in open {
            self.answer_permission(&request_id, RequestPermissionOutcome::Cancelled, out);
        }
        true
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

fn prompt_done(result: &Value) -> Result<Done, Done> {
    let response: PromptResponse = parsed(result)?;
    Ok(match response.stop_reason {
        StopReason::Cancelled => Done::Cancelled,
        StopReason::Refusal => Done::Failed { error: "the agent refused to go on".into(), retryable: false },
        reason => {
            let total_tokens = result["usage"]["totalTokens"].as_u64();
            // Such as `max_tokens`: the answer is not all that it could be.
            let stage = (reason != StopReason::EndTurn)
                .then(|| result["stopReason"].as_str().unwrap_or_default().to_owned());
            Done::Answered { content: None, total_tokens, stage }
        }
    })
}

fn send(out: &mut Vec<u8>, message: Value) {
    out.extend(message.to_string().into_bytes());
    out.push(b'\n');
}

fn parsed<T: DeserializeOwned>(result: &Value) -> Result<T, Done> {
    serde_json::from_value(result.clone())
        .map_err(|e| Done::Broken(format!("the agent's answer does not fit the Agent Client Protocol: {e}")))
}

/// What a client says of its surroundings: `[{"description","value"}]` as text.
fn context_text(context: &Value) -> String {
    let mut text = String::from("What the user's application says of itself:\n");
    for one in context.as_array().into_iter().flatten() {
        let value = &one["value"];
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        text.push_str(&format!("\n[{}]\n{value}\n", one["description"].as_str().unwrap_or_default()));
    }
    text
}

fn error_text(error: &Value) -> String {
    let message = error["message"].as_str().unwrap_or("no message");
    match error.get("data").filter(|data| !data.is_null()) {
        Some(Value::String(data)) => format!("{message}: {data}"),
        Some(data) => format!("{message}: {data}"),
        None => message.to_owned(),
    }
}

fn content_text(content: &[ToolCallContent]) -> String {
    let text = |one: &ToolCallContent| match one {
        ToolCallContent::Content(content) => Some(text_of(&content.content)),
        _ => serde_json::to_string(one).ok(),
    };
    content.iter().filter_map(text).collect::<Vec<_>>().join("\n")
}

fn kind_of(kind: PermissionOptionKind) -> &'static str {
    match kind {
        PermissionOptionKind::AllowOnce => "allow_once",
        PermissionOptionKind::AllowAlways => "allow_always",
        PermissionOptionKind::RejectOnce => "reject_once",
        PermissionOptionKind::RejectAlways => "reject_always",
        _ => "other",
    }
}
