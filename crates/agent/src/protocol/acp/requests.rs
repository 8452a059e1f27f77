//! What is asked of an agent: its session and prompts. And its responses.

use std::path::PathBuf;

use agent_client_protocol_schema::ProtocolVersion;
use agent_client_protocol_schema::v1::{
    AGENT_METHOD_NAMES, ContentBlock, EnvVariable, InitializeResponse, LoadSessionRequest, McpServer,
    McpServerStdio, NewSessionRequest, NewSessionResponse, PromptRequest, PromptResponse,
    ResumeSessionRequest, StopReason, TextContent,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::blocks::blocks_of;
use super::call::{Call, reported};
use super::{Acp, SESSION_ID, send};
use crate::protocol::{Done, Output, Prompt, context_text};
use crate::transcript::as_text;
use thread_conversation::ClientInput;

/// The kinds of requests that are sent to the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    Initialize,
    NewSession,
    LoadSession,
    /// As loading it, but the agent does not repeat its history.
    ResumeSession,
    Prompt,
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

impl Acp {
    pub(super) fn request(
        &mut self,
        request: Request,
        method: &str,
        params: impl Serialize,
        out: &mut Vec<u8>,
    ) {
        self.last_id += 1;
        self.requests.insert(self.last_id, request);
        send(out, json!({ "jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params }));
    }

    pub(super) fn is_open(&self, request: Request) -> bool {
        self.requests.values().any(|open| *open == request)
    }

    /// The ids of the prompts that have no response yet.
    pub(super) fn prompts(&self) -> impl Iterator<Item = u64> {
        self.requests.iter().filter(|(_, open)| **open == Request::Prompt).map(|(id, _)| *id)
    }

    pub(super) fn send_prompt(&mut self, prompt: &Prompt, with_transcript: bool, out: &mut Vec<u8>) {
        self.calls.retain(|_, call| !call.finished);
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

    fn load_session(&mut self, session: String, out: &mut Vec<u8>) {
        let params = LoadSessionRequest::new(session, self.cwd.clone()).mcp_servers(self.servers());
        self.request(Request::LoadSession, AGENT_METHOD_NAMES.session_load, params, out);
    }

    /// Handles the response to one of our requests.
    pub(super) fn handle_response(
        &mut self,
        request: Request,
        message: &Value,
        out: &mut Vec<u8>,
    ) -> Result<Vec<Output>, Done> {
        if let Some(error) = message.get("error") {
            // The agent may no longer have the session, or have it only to load.
            let old = self.waiting.as_ref().and_then(|prompt| prompt.session.clone());
            match (request, old) {
                (Request::ResumeSession, Some(session)) if self.can_load => {
                    self.load_session(session, out);
                    return Ok(Vec::new());
                }
                (Request::ResumeSession | Request::LoadSession, _) => {
                    self.new_session(out);
                    return Ok(Vec::new());
                }
                _ => {}
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
                self.can_resume = response.agent_capabilities.session_capabilities.resume.is_some();
                self.can_queue = queues_prompts(&result["agentCapabilities"]["_meta"]);
                self.takes = response.agent_capabilities.prompt_capabilities;
                match self.waiting.as_ref().and_then(|prompt| prompt.session.clone()) {
                    Some(session) if self.can_resume => {
                        let params = ResumeSessionRequest::new(session, self.cwd.clone());
                        let params = params.mcp_servers(self.servers());
                        self.request(Request::ResumeSession, AGENT_METHOD_NAMES.session_resume, params, out);
                    }
                    Some(session) if self.can_load => self.load_session(session, out),
                    _ => self.new_session(out),
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
                // A session that cannot be taken up again is not worth recording.
                Ok(if self.can_continue() { vec![Output::Session(id)] } else { Vec::new() })
            }
            Request::ResumeSession | Request::LoadSession => {
                if let Some(prompt) = self.waiting.take() {
                    self.session = prompt.session.clone();
                    self.send_prompt(&prompt, false, out);
                }
                Ok(Vec::new())
            }
            Request::Prompt => {
                let done = prompt_done(result)?;
                // Calls that never got complete, and never began.
                let calls = self.calls.values_mut().filter(|call| call.reported.is_none() && !call.past);
                let mut output: Vec<Output> = calls.filter_map(Call::report).collect();
                if !matches!(done, Done::Answered { .. }) {
                    // Work on a cancelled call has ended.
                    self.calls.values_mut().for_each(|call| call.finished = true);
                    self.tasks = 0;
                }
                self.turn_done();
                if let Some(id) = result["_meta"].as_object().and_then(|meta| reported(meta, SESSION_ID)) {
                    self.newest = Some(id);
                }
                output.extend(self.newest_session());
                output.extend(self.used(&result["usage"]));
                output.push(Output::Done(done));
                Ok(output)
            }
        }
    }
}

fn prompt_done(result: &Value) -> Result<Done, Done> {
    let response: PromptResponse = parsed(result)?;
    Ok(match response.stop_reason {
        StopReason::Cancelled => Done::Cancelled,
        StopReason::Refusal => {
            Done::Failed { error: "the agent refused to continue".into(), retryable: false }
        }
        reason => {
            let total_tokens = result["usage"]["totalTokens"].as_u64();
            // Such as `max_tokens`: the answer is not all that it could be.
            let stage = (reason != StopReason::EndTurn)
                .then(|| result["stopReason"].as_str().unwrap_or_default().to_owned());
            Done::Answered { content: None, total_tokens, stage }
        }
    })
}

/// Whether an agent says, under whatever name of its own, that it takes a prompt while it works on another.
fn queues_prompts(meta: &Value) -> bool {
    let mut own = meta.as_object().into_iter().flat_map(|meta| meta.values());
    own.any(|own| own["promptQueueing"] == true)
}

fn parsed<T: DeserializeOwned>(result: &Value) -> Result<T, Done> {
    serde_json::from_value(result.clone())
        .map_err(|e| Done::Broken(format!("the agent's answer does not fit the Agent Client Protocol: {e}")))
}

fn error_text(error: &Value) -> String {
    let message = error["message"].as_str().unwrap_or("no message");
    match error.get("data").filter(|data| !data.is_null()) {
        Some(Value::String(data)) => format!("{message}: {data}"),
        Some(data) => format!("{message}: {data}"),
        None => message.to_owned(),
    }
}
