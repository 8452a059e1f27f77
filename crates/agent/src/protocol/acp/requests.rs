//! What is asked of an agent: its session and prompts. And its responses.

use agent_client_protocol_schema::ProtocolVersion;
use agent_client_protocol_schema::v1::{
    AGENT_METHOD_NAMES, ContentBlock, InitializeResponse, LoadSessionRequest, NewSessionRequest,
    NewSessionResponse, PromptRequest, PromptResponse, ResumeSessionRequest, StopReason, TextContent,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::blocks::blocks_of;
use super::call::{Call, reported};
use super::{Acp, SESSION_ID, send};
use crate::protocol::{Done, Output, Prompt, context_text};
use crate::transcript::as_text;
use thread_conversation::{ClientInput, OptionChosen};

/// The kinds of requests that are sent to the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    Initialize,
    NewSession,
    LoadSession,
    /// As loading it, but the agent does not repeat its history.
    ResumeSession,
    Prompt,
    /// To change one of its options.
    SetOption,
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

    fn new_session(&mut self, out: &mut Vec<u8>) {
        let params = NewSessionRequest::new(self.cwd.clone()).mcp_servers(self.servers.for_agent());
        self.request(Request::NewSession, AGENT_METHOD_NAMES.session_new, params, out);
    }

    fn load_session(&mut self, session: String, out: &mut Vec<u8>) {
        let params = LoadSessionRequest::new(session, self.cwd.clone()).mcp_servers(self.servers.for_agent());
        self.request(Request::LoadSession, AGENT_METHOD_NAMES.session_load, params, out);
    }

    /// A session is there, but has not been given what was chosen for it. `is_new`: it knows nothing of the conversation.
    fn opened(&mut self, session: String, is_new: bool, result: &Value, out: &mut Vec<u8>) {
        self.options.are(result);
        self.opened = Some((session, is_new));
        let chosen =
            self.waiting.as_mut().map(|prompt| std::mem::take(&mut prompt.chosen)).unwrap_or_default();
        for chosen in &chosen {
            self.set_option(chosen, out);
        }
    }

    /// Asks the agent for another value of one of its options.
    pub(super) fn set_option(&mut self, chosen: &OptionChosen, out: &mut Vec<u8>) {
        let opened = self.opened.as_ref().map(|(session, _)| session);
        let Some(session) = self.session.as_ref().or(opened) else { return };
        let Some((method, params)) = self.options.request(session, chosen) else { return };
        self.request(Request::SetOption, method, params, out);
        self.options.is_asked(self.last_id, chosen.clone());
    }

    /// Sends the prompt that has waited for the session, once the agent has what was chosen. Says which options it has.
    fn may_begin(&mut self, refused: Option<String>, out: &mut Vec<u8>) -> Vec<Output> {
        let refused = refused.or(self.refused.take());
        if self.is_open(Request::SetOption) {
            self.refused = refused;
            return Vec::new();
        }
        let opened = self.opened.take();
        let is_new = opened.as_ref().is_some_and(|(_, is_new)| *is_new);
        if let Some((session, _)) = opened {
            self.session = Some(session);
        }
        let mut output = self.says_options(refused);
        if let Some(prompt) = self.waiting.take() {
            self.send_prompt(&prompt, is_new, out);
        }
        // A session that cannot be taken up again is not worth recording.
        output.extend(self.session.clone().filter(|_| is_new && self.can_continue()).map(Output::Session));
        output
    }

    /// Handles the response to one of our requests.
    pub(super) fn handle_response(
        &mut self,
        (id, request): (u64, Request),
        message: &Value,
        out: &mut Vec<u8>,
    ) -> Result<Vec<Output>, Done> {
        if let Some(error) = message.get("error") {
            if request == Request::SetOption {
                let why = self.servers.without_secrets(error_text(error));
                let refused = self.options.is_refused(id, &why);
                return Ok(self.may_begin(refused, out));
            }
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
            let error = self.servers.without_secrets(error_text(error));
            let error = format!("the agent answered with an error: {error}");
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
                let left_out = self.servers.can_be(&response.agent_capabilities.mcp_capabilities);
                match self.waiting.as_ref().and_then(|prompt| prompt.session.clone()) {
                    Some(session) if self.can_resume => {
                        let params = ResumeSessionRequest::new(session, self.cwd.clone());
                        let params = params.mcp_servers(self.servers.for_agent());
                        self.request(Request::ResumeSession, AGENT_METHOD_NAMES.session_resume, params, out);
                    }
                    Some(session) if self.can_load => self.load_session(session, out),
                    _ => self.new_session(out),
                }
                Ok(left_out.map(Output::Note).into_iter().collect())
            }
            Request::NewSession => {
                let session: NewSessionResponse = parsed(result)?;
                self.opened(session.session_id.to_string(), true, result, out);
                Ok(self.may_begin(None, out))
            }
            Request::ResumeSession | Request::LoadSession => {
                let session = self.waiting.as_ref().and_then(|prompt| prompt.session.clone());
                let Some(session) = session else { return Ok(Vec::new()) };
                self.opened(session, false, result, out);
                Ok(self.may_begin(None, out))
            }
            Request::SetOption => {
                self.options.is_set(id, result);
                Ok(self.may_begin(None, out))
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
