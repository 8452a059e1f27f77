//! Stored events as frames.

use serde_json::{Map, Value};
use thread_conversation::{
    AgentOption, AgentOptions, ClientInput, Cost, Entry, Message, Moved, OptionChoice, OptionChosen,
    PermissionAnswer, Usage,
};
use thread_protocol::Content;
use thread_protocol::event::{self as frame, Event};
use thread_sessions::SessionId;
use thread_sessions::excerpt::{TITLE, beginning};
use tokio_tungstenite::tungstenite::Utf8Bytes;

use super::event::{Frames, SessionEvent};
use crate::storage::Storage;

/// What clients see of a request to forget.
const CLEARED: &str = "The agent no longer knows the conversation before this.";

/// The frames of a stored event; `None` if clients do not see it.
pub fn of(storage: &Storage, session: SessionId, stored: &SessionEvent) -> Option<Frames> {
    let mut event = shown(storage, session, stored)?;
    let (session, run_id, seq) = (session.to_string(), stored.record.run_id.as_deref(), Some(stored.id()));
    let time = Some(stored.record.event.created_at.as_str());
    let text = |event: &Event| Utf8Bytes::from(event.text(Some(&session), run_id, seq, time));
    let others = text(&event);
    let own = match (&mut event, &stored.record.entry) {
        (Event::Message(message), Entry::Message(Message { client: Some(client), .. })) => {
            message.from_self = true;
            Some((client.clone(), text(&event)))
        }
        _ => None,
    };
    Some(Frames::new(others, own))
}

/// The frame of an event that is not in the thread.
pub fn notice(event: impl Into<Event>, session: Option<SessionId>, run_id: Option<&str>) -> Utf8Bytes {
    let session = session.map(|session| session.to_string());
    event.into().text(session.as_deref(), run_id, None, None).into()
}

/// The id of a message for clients: its own, or one made from the event's id.
pub fn message_id(stored: &SessionEvent) -> String {
    let own = match &stored.record.entry {
        Entry::Message(message) => message.message_id.clone(),
        Entry::Answer { answer, .. } => answer.message_id.clone(),
        _ => None,
    };
    own.unwrap_or_else(|| format!("event_{}", stored.id()))
}

/// The content of a message as clients get it, with the URLs of its attachments signed. Those of an agent or
/// of another program are not: a signature opens a file.
pub fn content_of(storage: &Storage, stored: &SessionEvent) -> Content {
    match (&stored.record.entry, stored.large) {
        (_, Some(bytes)) => Content::Text(too_large(bytes)),
        (Entry::Message(message), None) => {
            let mut content = Content::stored(&message.content);
            if let Content::Parts(parts) = &mut content {
                crate::storage::parts::sign(storage, parts, &message.other);
            }
            content
        }
        (Entry::Answer { answer, .. }, None) => Content::stored(&answer.content),
        (Entry::Error { partial, .. } | Entry::Cancelled { partial, .. }, None) => {
            Content::Text(partial.clone().unwrap_or_default())
        }
        (Entry::Clear, None) => Content::Text(CLEARED.to_owned()),
        (Entry::Moved(moved), None) => Content::Text(moved_text(moved)),
        _ => Content::Text(String::new()),
    }
}

/// Numbers of tokens; `None` if the agent says none.
pub fn usage_of(usage: Usage) -> Option<frame::Usage> {
    let Usage { input_tokens, output_tokens, cached_tokens, reasoning_tokens } = usage;
    (usage != Usage::default()).then_some(frame::Usage {
        input_tokens,
        output_tokens,
        cached_tokens,
        reasoning_tokens,
    })
}

/// A cost; `None` if the agent says none.
pub fn cost_of(cost: &Cost) -> Option<frame::Cost> {
    let currency = Some(cost.currency.clone()).filter(|currency| !currency.is_empty());
    let amount = Cost { currency: String::new(), ..cost.clone() }.to_string();
    (cost.amount > 0.0).then_some(frame::Cost { amount, currency })
}

/// What can be chosen at an agent.
pub fn options_of(said: &AgentOptions) -> Vec<frame::AgentOption> {
    let choice = |OptionChoice { id, name, description }: &OptionChoice| frame::OptionChoice {
        id: id.clone(),
        name: name.clone(),
        description: description.clone(),
    };
    let option = |option: &AgentOption| frame::AgentOption {
        id: option.id.clone(),
        name: option.name.clone(),
        description: option.description.clone(),
        category: option.category.clone(),
        current: option.current.clone(),
        choices: option.choices.iter().map(choice).collect(),
    };
    said.options.iter().map(option).collect()
}

/// What clients see of a move.
fn moved_text(Moved { name, model, cwd }: &Moved) -> String {
    let model = model.as_ref().map(|model| format!(", with the model {model}")).unwrap_or_default();
    let cwd = cwd.as_ref().map(|cwd| format!(", in {cwd}")).unwrap_or_default();
    format!("From here on, the agent is {name}{model}{cwd}.")
}

/// The same for programs.
pub fn moved_metadata(moved: &Moved) -> Map<String, Value> {
    let given = [("agent", Some(&moved.name)), ("model", moved.model.as_ref()), ("cwd", moved.cwd.as_ref())];
    given.into_iter().filter_map(|(key, value)| Some((key.to_owned(), Value::from(value?.clone())))).collect()
}

/// Where the content of a message is that is too large to be shown.
pub fn large_of(storage: &Storage, session: SessionId, stored: &SessionEvent) -> Option<frame::LargeContent> {
    let bytes = stored.large?;
    Some(frame::LargeContent { bytes, url: storage.event_url(session, stored.id()) })
}

fn too_large(bytes: u64) -> String {
    format!("({:.1} MiB, too large to be shown here)", bytes as f64 / 1_048_576.0)
}

fn shown(storage: &Storage, session: SessionId, stored: &SessionEvent) -> Option<Event> {
    let (event, entry) = (&stored.record.event, &stored.record.entry);
    let message = |role, metadata: Map<String, Value>, priority| {
        Event::from(frame::Message {
            role,
            content: content_of(storage, stored),
            message_id: message_id(stored),
            timestamp: event.created_at.clone(),
            from_self: false,
            source: Some(event.source.clone()),
            priority,
            metadata: Some(metadata).filter(|metadata| !metadata.is_empty()),
            large: large_of(storage, session, stored),
        })
    };
    if let Some(bytes) = stored.large
        && !matches!(entry, Entry::Message(_) | Entry::Answer { .. })
        // The answer has its text.
        && !matches!(event.subtype.as_deref(), Some("model" | "messages"))
    {
        let (source, r#type, subtype) = (event.source.clone(), event.kind.clone(), event.subtype.clone());
        let url = storage.event_url(session, stored.id());
        return Some(frame::Large { source, r#type, subtype, bytes, url }.into());
    }
    let ends = stored.ends.is_some() && stored.large.is_none();
    let call_id = || stored.record.shown_call_id();
    Some(match entry {
        Entry::Message(said) => {
            let priority = (said.priority != Default::default()).then(|| said.priority.as_str().into());
            let mut metadata = said.other.clone();
            // For the agent alone, and as large as it likes.
            metadata.shift_remove(ClientInput::KEY);
            message(frame::Role::User, metadata, priority)
        }
        Entry::Answer { answer, .. } if ends => Event::from(frame::Final {
            message_id: message_id(stored),
            content: Content::stored(&answer.content),
            total_tokens: answer.total_tokens,
            latency_ms: answer.latency_ms,
            stage: answer.stage.clone(),
            usage: usage_of(stored.record.spent.usage),
            cost: cost_of(&stored.record.spent.cost),
            timestamp: event.created_at.clone(),
        }),
        // Said by the agent, but not as the end of a run.
        Entry::Answer { .. } => message(frame::Role::Assistant, Map::new(), None),
        Entry::RunStarted { attempt, .. } => {
            Event::from(frame::Status { status: frame::RunStatus::Started, attempt: Some(*attempt) })
        }
        // The attempt begins again: what it has said so far counts for nothing.
        Entry::TurnCut { .. } => {
            let attempt = Some(stored.record.attempt);
            Event::from(frame::Status { status: frame::RunStatus::Started, attempt })
        }
        Entry::Status(status) => Event::from(frame::Status { status: status.as_str().into(), attempt: None }),
        Entry::Token { text, message_id } => frame::Token::new(text, message_id.clone()).into(),
        Entry::Thinking { text, message_id } => frame::Thinking::new(text, message_id.clone()).into(),
        Entry::ToolCall(call) => Event::from(frame::ToolCall {
            call_id: call_id().unwrap_or_default(),
            tool_name: call.name.clone(),
            arguments: call.arguments.clone(),
            title: call.title.clone(),
            kind: call.kind.clone(),
            locations: call.locations.as_array().cloned().unwrap_or_default(),
        }),
        Entry::ToolResult(result) => Event::from(frame::ToolResult {
            call_id: call_id().unwrap_or_default(),
            tool_name: result.name.clone(),
            result: result.outcome.as_ref().ok().cloned(),
            error: result.outcome.as_ref().err().cloned(),
            content: result.content.as_array().cloned().unwrap_or_default(),
            unreported: stored.record.unreported,
        }),
        Entry::Error { error, retryable, .. } => {
            let error_code = match (ends, retryable) {
                (true, _) => frame::ErrorCode::RunFailed,
                (false, true) => frame::ErrorCode::AttemptFailed,
                // Looks like an ending, but is none.
                (false, false) => frame::ErrorCode::Reported,
            };
            Event::from(frame::Error { message: error.clone(), error_code, retryable: !ends })
        }
        Entry::Cancelled { why, .. } if ends => Event::from(frame::Cancelled { message: why.clone() }),
        Entry::Clear => message(frame::Role::System, Map::new(), None),
        Entry::Moved(moved) => message(frame::Role::System, moved_metadata(moved), None),
        Entry::Title(title) => Event::from(frame::Title { title: beginning(title, TITLE) }),
        Entry::SubAgent(sub) => Event::from(frame::SubAgent {
            parent_call_id: call_id().unwrap_or_default(),
            sub_agent: sub.sub_agent.clone(),
            event: sub.event.clone(),
            payload: sub.payload.clone(),
        }),
        Entry::Permission(asked) => {
            let choice = |choice: &thread_conversation::Choice| frame::Choice {
                id: choice.id.clone(),
                name: choice.name.clone(),
                kind: choice.kind.clone(),
            };
            Event::from(frame::Permission::Request(frame::PermissionRequest {
                request_id: asked.request_id.clone(),
                title: asked.title.clone(),
                call_id: call_id(),
                arguments: asked.arguments.clone(),
                details: asked.details.clone(),
                choices: asked.choices.iter().map(choice).collect(),
            }))
        }
        Entry::PermissionAnswer(PermissionAnswer { request_id, choice }) => {
            Event::from(frame::Permission::Answer(frame::PermissionAnswer {
                request_id: request_id.clone(),
                choice: choice.clone(),
            }))
        }
        Entry::Plan(entries) => {
            // Malformed entries are skipped.
            let entries = entries.as_array().into_iter().flatten();
            let entries = entries.filter_map(|entry| serde_json::from_value(entry.clone()).ok()).collect();
            Event::from(frame::Plan { entries })
        }
        Entry::Commands(commands) => {
            let commands = commands.as_array().into_iter().flatten();
            let known = |command: &Value| serde_json::from_value(command.clone()).ok();
            Event::from(frame::Commands { commands: commands.filter_map(known).collect() })
        }
        Entry::Options(said) => {
            Event::from(frame::Options { options: options_of(said), refused: said.refused.clone() })
        }
        Entry::OptionChosen(OptionChosen { id, value }) => {
            Event::from(frame::OptionChosen { id: id.clone(), value: value.clone() })
        }
        // Internal to the agent, or unknown.
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
