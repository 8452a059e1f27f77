//! What editors see of a session: its events as updates.
//!
//! A [`Transcript`] is fed the events of a session in order. What comes out depends on them alone, so an editor that
//! loads the session later gets what those got who were there, and a connection that was lost makes no difference.

pub mod calls;

use std::collections::BTreeMap;

use agent_client_protocol_schema::v1::{
    AvailableCommand, AvailableCommandInput, AvailableCommandsUpdate, ContentBlock, ContentChunk, Plan,
    PlanEntry, SessionInfoUpdate, SessionUpdate, StopReason, TextContent, UnstructuredCommandInput, Usage,
};
use serde_json::Value;
use thread_protocol::Frame;
use thread_protocol::event::{self, ErrorCode, Event, Final, Message, Role, RunStatus};

use crate::content::{OFFERED, blocks};

/// How a run has ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
    Answered(StopReason, Option<Usage>),
    Cancelled,
    Failed(String),
}

impl Ending {
    /// The end of the run that the event belongs to, if that is what it is.
    pub fn of(event: &Event) -> Option<Ending> {
        match event {
            Event::Final(answer) => Some(Ending::Answered(stop_reason(answer), usage(answer))),
            Event::Cancelled(_) => Some(Ending::Cancelled),
            Event::Error(error) if !error.retryable => Some(Ending::Failed(error.message.clone())),
            _ => None,
        }
    }
}

fn stop_reason(answer: &Final) -> StopReason {
    match answer.stage.as_deref() {
        Some("max_tokens" | "length") => StopReason::MaxTokens,
        Some("max_turn_requests") => StopReason::MaxTurnRequests,
        Some("refusal" | "content_filter") => StopReason::Refusal,
        _ => StopReason::EndTurn,
    }
}

fn usage(answer: &Final) -> Option<Usage> {
    let event::Usage { input_tokens, output_tokens, cached_tokens, reasoning_tokens } =
        *answer.usage.as_ref()?;
    let total = answer.total_tokens.unwrap_or(input_tokens.saturating_add(output_tokens));
    let known = |tokens: u64| (tokens > 0).then_some(tokens);
    let usage = Usage::new(total, input_tokens, output_tokens);
    Some(usage.thought_tokens(known(reasoning_tokens)).cached_read_tokens(known(cached_tokens)))
}

/// What has been shown of a session, as far as that decides what is shown next.
#[derive(Debug, Default)]
pub struct Transcript {
    /// The message that the agent is writing, and what it has of it. An answer that was streamed is not repeated.
    message_id: Option<String>,
    said: String,
    /// The run of each call without a result, by its id for editors.
    calls: BTreeMap<String, String>,
    /// The commands that the agent takes.
    commands: Vec<event::Command>,
}

impl Transcript {
    /// What an event adds.
    pub fn apply(&mut self, frame: &Frame) -> Vec<SessionUpdate> {
        let run = frame.run_id.as_deref().unwrap_or_default();
        match &frame.event {
            Event::Message(message) => {
                let mut updates = shown(message, frame.seq.is_some());
                if moved_to(&frame.event).is_some() && !std::mem::take(&mut self.commands).is_empty() {
                    // The other agent says its own.
                    updates.push(self.commands());
                }
                updates
            }
            Event::Commands(now) => {
                self.commands.clone_from(&now.commands);
                vec![self.commands()]
            }
            Event::Token(token) => {
                if token.message_id != self.message_id {
                    self.message_id.clone_from(&token.message_id);
                    self.said.clear();
                }
                self.said.push_str(&token.content);
                vec![said(text(&token.content), token.message_id.as_deref())]
            }
            Event::Thinking(thinking) => {
                vec![thought(text(&thinking.content), thinking.message_id.as_deref())]
            }
            Event::ToolCall(call) => vec![self.called(run, call)],
            Event::ToolResult(result) => self.returned(run, result),
            Event::SubAgent(told) => self.sub_agent(run, told),
            Event::Plan(plan) => {
                // The words of both are the same; a new one is left out.
                let entry =
                    |entry| serde_json::from_value::<PlanEntry>(serde_json::to_value(entry).ok()?).ok();
                vec![SessionUpdate::Plan(Plan::new(plan.entries.iter().filter_map(entry).collect()))]
            }
            Event::Title(title) => {
                let title = title.title.clone();
                vec![SessionUpdate::SessionInfoUpdate(SessionInfoUpdate::new().title(title))]
            }
            Event::Status(status) if status.status == RunStatus::Started => {
                // Without an error before it, what was said counts no more.
                let was_cut = !std::mem::take(&mut self.said).is_empty();
                let note = was_cut.then(|| note(frame, "The answer was cut off. It begins again."));
                note.into_iter().collect()
            }
            Event::Error(error) if error.retryable => {
                let reported = error.error_code == ErrorCode::Reported;
                if reported {
                    return vec![note(frame, &format!("The agent reports: {}", error.message))];
                }
                self.said.clear();
                vec![note(
                    frame,
                    &format!("This attempt has failed: {}. Another one follows.", error.message),
                )]
            }
            Event::Final(answer) => {
                let mut updates = self.left_open(run);
                updates.extend(self.answer(answer));
                updates
            }
            Event::Error(error) => {
                self.said.clear();
                let mut updates = self.left_open(run);
                updates.push(note(frame, &format!("Failed: {}", error.message)));
                updates
            }
            Event::Cancelled(cancelled) => {
                self.said.clear();
                let mut updates = self.left_open(run);
                updates.push(note(frame, &format!("Cancelled: {}", cancelled.message)));
                updates
            }
            Event::Large(large) => {
                let what = large.subtype.as_deref().unwrap_or(&large.r#type);
                let note =
                    note(frame, &format!("{what} of {} bytes, at {} on the gateway", large.bytes, large.url));
                vec![note]
            }
            Event::Options(options) => {
                let note =
                    options.refused.as_ref().map(|why| note(frame, &format!("The agent reports: {why}")));
                note.into_iter().collect()
            }
            // Of no meaning for editors, or for `choices` and `permissions`.
            Event::OptionChosen(_)
            | Event::Queued(_)
            | Event::Status(_)
            | Event::Permission(_)
            | Event::Clients(_) => Vec::new(),
        }
    }

    /// The commands that people have: the gateway's that are offered, and the agent's.
    pub fn commands(&self) -> SessionUpdate {
        let offered = OFFERED.iter().map(|(name, about)| AvailableCommand::new(*name, *about));
        let is_offered = |name: &str| OFFERED.iter().any(|(offered, _)| *offered == name);
        let own = self.commands.iter().filter(|command| !is_offered(&command.name)).map(|command| {
            let shown = AvailableCommand::new(command.name.clone(), command.description.clone());
            let hint = command.hint.clone().map(UnstructuredCommandInput::new);
            shown.input(hint.map(AvailableCommandInput::Unstructured))
        });
        let all = offered.chain(own).collect();
        SessionUpdate::AvailableCommandsUpdate(AvailableCommandsUpdate::new(all))
    }

    /// What an answer has that was not streamed.
    fn answer(&mut self, answer: &Final) -> Vec<SessionUpdate> {
        let was_streamed = self.message_id.as_deref() == Some(&answer.message_id);
        let streamed = std::mem::take(&mut self.said);
        let streamed = if was_streamed { streamed } else { String::new() };
        let whole: String = blocks(&answer.content).iter().filter_map(text_of).collect();
        let id = Some(&*answer.message_id);
        let rest = if streamed.is_empty() { Some(&*whole) } else { whole.strip_prefix(&*streamed) };
        let mut updates = Vec::new();
        match rest {
            Some("") => {}
            Some(rest) => updates.push(said(text(rest), id)),
            // Another text than what was streamed.
            None => updates.push(said(text(&whole), None)),
        }
        let others = blocks(&answer.content).into_iter().filter(|block| text_of(block).is_none());
        updates.extend(others.map(|block| said(block, id)));
        updates
    }
}

/// A message that is not the answer of a run.
fn shown(message: &Message, is_stored: bool) -> Vec<SessionUpdate> {
    let id = Some(&*message.message_id);
    let blocks = blocks(&message.content).into_iter();
    match message.role {
        // The editor shows what was typed in it.
        Role::User if message.from_self => Vec::new(),
        Role::User => blocks.map(|block| SessionUpdate::UserMessageChunk(chunk(block, id))).collect(),
        // What the gateway has to say about the conversation, unlike its answer to a command.
        Role::System if is_stored => blocks.map(|block| thought(block, id)).collect(),
        _ => blocks.map(|block| said(block, id)).collect(),
    }
}

fn text(text: &str) -> ContentBlock {
    ContentBlock::Text(TextContent::new(text))
}

fn text_of(block: &ContentBlock) -> Option<&str> {
    match block {
        ContentBlock::Text(text) => Some(&text.text),
        _ => None,
    }
}

fn chunk(content: ContentBlock, message_id: Option<&str>) -> ContentChunk {
    let chunk = ContentChunk::new(content);
    match message_id {
        Some(id) => chunk.message_id(id),
        None => chunk,
    }
}

fn said(content: ContentBlock, message_id: Option<&str>) -> SessionUpdate {
    SessionUpdate::AgentMessageChunk(chunk(content, message_id))
}

fn thought(content: ContentBlock, message_id: Option<&str>) -> SessionUpdate {
    SessionUpdate::AgentThoughtChunk(chunk(content, message_id))
}

/// Something about the run, as a thought: the protocol has nothing else for it that all editors show.
fn note(frame: &Frame, words: &str) -> SessionUpdate {
    let id = frame.seq.map(|seq| format!("event_{seq}"));
    // Editors that do not know ids of messages put pieces together.
    thought(text(&format!("\n\n{words}\n\n")), id.as_deref())
}

/// Whether a move to another agent is what happened, and to which.
pub fn moved_to(event: &Event) -> Option<&str> {
    match event {
        Event::Message(message) if message.role == Role::System => {
            message.metadata.as_ref()?.get("agent").and_then(Value::as_str)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
